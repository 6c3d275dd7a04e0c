"""What the patch levels of a release change."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from harness import releases, scenario
from harness.slurmconf.check import check_path, check_scenario

LEVELS = [
    pytest.param(level, changes, id=level)
    for name in releases.KNOWN
    for level, changes in tomllib.loads(
        (Path(releases.__file__).parent / f"{name}.toml").read_text()
    )
    .get("before", {})
    .items()
]
BASE = "ClusterName=c\nSlurmctldHost=h\nNodeName=n1\nPartitionName=p Nodes=n1 Default=YES\n"


def previous(level: str) -> str:
    release, _, patch = level.rpartition(".")
    return f"{release}.{int(patch) - 1}"


@pytest.mark.parametrize(("level", "changes"), LEVELS)
def test_each_part_of_a_patch_level_changes_something(level: str, changes: dict[str, Any]) -> None:
    before, now = releases.get(previous(level)), releases.get(level)
    assert changes["source"]
    for key, value in changes.get("behaviour", {}).items():
        assert (getattr(before, key), getattr(now, key) != value) == (value, True)
    for section, words in changes.get("without_options", {}).items():
        for word in words.lower().split():
            assert word not in before.options[section]
            assert word in now.options[section]
    for option, words in changes.get("without_words", {}).items():
        for word in words.lower().split():
            assert word not in before.words[option.lower()].known
            assert word in now.words[option.lower()].known
    for section, options in changes.get("accepted", {}).items():
        for option in options.lower().split():
            assert option not in before.refused[section]
            assert option in now.refused[section]
    for option, words in changes.get("unbounded", {}).items():
        for word in words.split():
            assert word not in before.keyword_bounds[option.lower()]
            assert word in now.keyword_bounds[option.lower()]
    known = {"source", "behaviour", "without_options", "without_words", "accepted", "unbounded"}
    assert set(changes) <= known | {"defaults"}


@pytest.mark.parametrize("name", releases.KNOWN)
def test_release_and_unknown_patch_levels_are_the_newest_known_one(name: str) -> None:
    newest = releases.get(name)
    assert releases.get(f"{name}.99").words == newest.words
    assert releases.get(f"{name}.99").options == newest.options


def test_check_reports_a_word_that_a_later_patch_level_adds(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text(f"{BASE}ReconfigFlags=KeepNodeStateFuture\n")
    (finding,) = check_path(tmp_path, releases.get("24.11.3"))
    assert finding.message == '"KeepNodeStateFuture" is unknown before 24.11.4 and ignored'
    assert finding.severity == "error"
    assert check_path(tmp_path, releases.get("24.11.4")) == []
    assert check_path(tmp_path, releases.get("24.11")) == []


def test_check_reports_an_option_that_a_later_patch_level_adds(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text(BASE)
    (tmp_path / "cgroup.conf").write_text("CgroupJobIdPaths=yes\n")
    (finding,) = check_path(tmp_path, releases.get("26.05.1"))
    assert (finding.severity, finding.message) == ("fatal", "is unknown before 26.05.2")
    (older,) = check_path(tmp_path, releases.get("24.11"))
    assert older.message == "is unknown before 26.05.2"
    assert check_path(tmp_path, releases.get("26.05.2")) == []


def test_check_reports_a_value_that_a_patch_level_began_to_refuse(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text(
        f"{BASE}SlurmctldParameters=rl_enable,rl_table_size=0\nEpilogMsgTime=2000000\n"
    )
    severities = {
        level: sorted(finding.severity for finding in check_path(tmp_path, releases.get(level)))
        for level in ("25.11.0", "25.11.1", "25.11.6", "25.11")
    }
    assert severities == {
        "25.11.0": [],
        "25.11.1": ["fatal"],
        "25.11.6": ["error", "fatal"],
        "25.11": ["error", "fatal"],
    }


def test_defaults_change_with_patch_levels(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text(BASE)

    def changed(older: str, newer: str) -> list[str]:
        found = check_path(tmp_path, releases.get(newer), releases.get(older))
        return [finding.message for finding in found if "conmgr_max_connections" in finding.option]

    message = "the default changed with 25.05.4: 50 before, now 512"
    assert changed("25.05.3", "25.05.4") == [message]
    assert changed("24.11", "25.11") == [message]
    assert changed("25.05.4", "25.11") == []
    assert changed("25.05", "25.11") == []
    assert changed("24.11.3", "25.05.3") == []


def test_names_of_releases_and_patch_levels_are_known() -> None:
    assert releases.is_known("24.11")
    assert releases.is_known("24.11.3")
    assert not any(map(releases.is_known, ("24.12", "24.11.x", "24.11.3.1", "24", "")))


def test_scenario_is_checked_for_the_patch_level_of_its_release(tmp_path: Path) -> None:
    path = tmp_path / "s.yml"
    path.write_text(
        'release: "24.11"\nclusters: {c: {controller: c, nodes: [{name: n, cpus: 1}],'
        " options: {ReconfigFlags: KeepNodeStateFuture}}}\n"
    )
    read = scenario.load(path)
    assert check_scenario(path, read) == check_scenario(path, read, level="24.11.4") == []
    (finding,) = check_scenario(path, read, level="24.11.3")
    assert finding.option == "ReconfigFlags"
    assert check_scenario(path, read, level="25.11.3") == []
