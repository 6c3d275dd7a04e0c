from __future__ import annotations

from pathlib import Path

import pytest

from harness import scenario
from harness.errors import UsageError
from harness.simulation import usage

SCENARIO = scenario.load(Path(__file__).parents[3] / "scenarios" / "simulate.yml")


def file(directory: Path, *lines: str) -> Path:
    path = directory / "usage.txt"
    path.write_text("\n".join([*lines, ""]))
    return path


def test_usage_is_that_of_users_in_any_order_of_columns(tmp_path: Path) -> None:
    path = file(
        tmp_path,
        "Account|User|RawShares|RawUsage",
        "root|||900",
        " physics||1|900",
        "  physics|alice|1|800",
        "  physics|bob|1|",
        "  physics|alice|1|100",
    )
    assert usage.read(path) == {("physics", "alice"): 900, ("physics", "bob"): 0}


def test_lines_that_are_no_usage_are_all_named(tmp_path: Path) -> None:
    path = file(
        tmp_path, "Account|User|RawUsage", "physics|alice", "physics|bob|nan", "physics|bob|-1"
    )
    with pytest.raises(UsageError) as caught:
        usage.read(path)
    for number in (2, 3, 4):
        assert f"{path}:{number}: " in str(caught.value)


@pytest.mark.parametrize("content", [[], ["Account|User"], ["\0" * 100]])
def test_other_files_are_refused(tmp_path: Path, content: list[str]) -> None:
    with pytest.raises(UsageError, match=r":1: no columns Account, User, RawUsage"):
        usage.read(file(tmp_path, *content))


def test_usage_of_associations_that_the_cluster_lacks_is_noted() -> None:
    kept, notes = usage.of_cluster(
        {("physics", "alice"): 5.0, ("physics", "carol"): 6.0, ("art", "zoe"): 7.0}, SCENARIO
    )
    assert kept == {("physics", "alice"): 5.0}
    assert "2 associations" in notes[0]
    assert "carol in physics, zoe in art" in notes[0]


def test_the_associations_of_the_cluster_itself_count() -> None:
    own = [
        "clusters.sim.accounts={art: {}}",
        "clusters.sim.associations={alice: {accounts: [art]}}",
    ]
    read = scenario.load(Path(__file__).parents[3] / "scenarios" / "simulate.yml", settings=own)
    kept, notes = usage.of_cluster({("physics", "alice"): 5.0, ("art", "alice"): 7.0}, read)
    assert kept == {("art", "alice"): 7.0}
    assert "1 associations that the scenario lacks: alice in physics" in notes[0]
