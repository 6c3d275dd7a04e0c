import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.errors import UsageError
from harness.simulation import simulation_files
from harness.simulation.model import JobOutcome, Quality, Simulation

_QUALITY = Quality(30.0, 120.5, 0.1, 0.4, 0.2, 0.9, 0, 0.01, ("slow",))
_JOB = JobOutcome(
    "1_2",
    7,
    "COMPLETED",
    0.5,
    0.5,
    3.0,
    9.0,
    ("n1", "n2"),
    8,
    "alice",
    "physics",
    "batch",
    "normal",
    "",
    True,
    1,
    1,
    (("Priority", 2.5),),
)
_SIMULATION = Simulation(
    "site.yml",
    1,
    "24.11",
    2,
    8,
    1.0,
    (_JOB, replace(_JOB, trace_id="2", job_id=None)),
    _QUALITY,
    {"Jobs started": 1.0},
    (("physics", "alice", 0.5, 1.0),),
    0.1,
    3600.0,
    "t.swf",
    ("note",),
    ("n1", "n2"),
    (("bf_max_time", "30", "900", "why"),),
)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = simulation_files.write(_SIMULATION, tmp_path)

    assert path == tmp_path / "simulations" / "001.jsonl"
    assert simulation_files.read(tmp_path) == [_SIMULATION]


def test_simulations_keep_their_order(tmp_path: Path) -> None:
    written = [
        replace(_SIMULATION, policy=policy, repeat=repeat)
        for policy in ("z/../é", "a")
        for repeat in range(1, 7)
    ]
    for simulation in written:
        simulation_files.write(simulation, tmp_path)

    assert simulation_files.read(tmp_path) == written


def test_a_simulation_replaces_one_of_the_same_policy_and_repeat(tmp_path: Path) -> None:
    simulation_files.write(_SIMULATION, tmp_path)
    simulation_files.write(replace(_SIMULATION, repeat=2), tmp_path)
    again = replace(_SIMULATION, jobs=())
    simulation_files.write(again, tmp_path)

    assert simulation_files.read(tmp_path) == [again, replace(_SIMULATION, repeat=2)]


def test_a_failed_write_leaves_the_earlier_simulation(tmp_path: Path) -> None:
    simulation_files.write(_SIMULATION, tmp_path)
    with pytest.raises(ValueError, match="not JSON compliant"):
        simulation_files.write(replace(_SIMULATION, hours=float("nan")), tmp_path)

    assert simulation_files.read(tmp_path) == [_SIMULATION]
    assert len([*(tmp_path / "simulations").iterdir()]) == 1


def test_fields_of_later_versions_are_ignored(tmp_path: Path) -> None:
    path = simulation_files.write(_SIMULATION, tmp_path)
    head, *jobs = map(json.loads, path.read_text().splitlines())
    entries = [head | {"new": 1}, *(job | {"new": {"a": 1}} for job in jobs)]
    path.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))

    assert simulation_files.read(tmp_path) == [_SIMULATION]


def test_a_directory_without_simulations_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no simulations"):
        simulation_files.read(tmp_path)


@pytest.mark.parametrize(
    ("line", "text", "problem"),
    [
        (1, "[]", r"001\.jsonl:1: not an object"),
        (1, "", r"cannot read .*001\.jsonl"),
        (2, '{"trace_id": "1"}', r"001\.jsonl:2: job_id: Field required"),
        (3, '{"trace_id": NaN}', r"cannot read .*001\.jsonl: NaN is not a finite number"),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, line: int, text: str, problem: str) -> None:
    path = simulation_files.write(_SIMULATION, tmp_path)
    lines = path.read_text().splitlines()
    lines[line - 1] = text
    path.write_text("\n".join(lines) + "\n")

    with pytest.raises(UsageError, match=problem):
        simulation_files.read(tmp_path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.integers(0, 900), content=st.binary(max_size=12))
def test_any_damage_is_refused_or_read(tmp_path: Path, position: int, content: bytes) -> None:
    path = simulation_files.write(_SIMULATION, tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:position] + content + whole[position + len(content) + 1 :])
    try:
        simulation_files.read(tmp_path)
    except UsageError as error:
        assert "simulations" in str(error)  # noqa: PT017 - the damage may not matter
    finally:
        path.unlink()
