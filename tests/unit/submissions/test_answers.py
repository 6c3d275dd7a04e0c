from __future__ import annotations

import pytest

from harness.submissions import answers
from harness.submissions.answers import REFUSED, STARTS, WAITS, Answer


def answer(outcome: str = STARTS, reason: str = "", **held: str) -> Answer:
    return Answer("a row", "t.yml:1", "alice", "a", outcome, reason, held=held)


@pytest.mark.parametrize(
    ("name", "asked", "held"),
    [
        ("time", "90", "01:30:00"),
        ("time", "10:30", "00:11:00"),  # slurmctld rounds up
        ("time", "infinite", "UNLIMITED"),
        ("partition", "a,b", "b,a"),
        ("account", "Physics", "physics"),
        ("nodes", "2-4", "2"),
        ("licenses", "matlab", "matlab:1"),
        ("gres", "gpu:tesla", "gpu:tesla:1"),
    ],
)
def test_option_that_is_only_spelled_differently_is_not_changed(
    name: str, asked: str, held: str
) -> None:
    assert answers.changed({name: asked}, {name: held}) == ()


def test_changed_options_are_named_with_both_values() -> None:
    asked = {"time": "2-0", "qos": "quick", "licenses": "matlab:2", "mem": "4G"}
    assert answers.changed(asked, {"time": "1-00:00:00", "qos": "quick"}) == (
        "time: 2-0 -> 1-00:00:00",
        "licenses: matlab:2 -> -",
    )


@pytest.mark.parametrize(
    "expected",
    [
        {"accepted": "true", "outcome": "waits", "reason": "MaxCpu"},
        {"time": "60", "partition": "short", "tres": "mem=1G,cpu=2"},
        {"licenses": "", "message": ""},
    ],
)
def test_expectation_that_holds(expected: dict[str, str]) -> None:
    seen = answer(
        WAITS, "QOSMaxCpuLimit", time="01:00:00", partition="short", tres="cpu=2,mem=1G,node=1"
    )
    assert answers.unexpected(expected, seen) == ()


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        ({"accepted": "yes"}, 'accepted: expected "yes", is "false"'),
        ({"outcome": "waits"}, 'outcome: expected "waits", is "refused"'),
        ({"reason": "QOS"}, 'reason: expected "QOS", is "Invalid qos"'),
        ({"reason": ""}, 'reason: expected "", is "Invalid qos"'),
        ({"time": "5"}, 'time: expected "5", is ""'),
        ({"tres": "cpu=1"}, 'tres: expected "cpu=1", is "cpu=12"'),
    ],
)
def test_expectation_that_does_not_hold_is_named_with_what_is(
    expected: dict[str, str], message: str
) -> None:
    seen = answer(REFUSED, "Invalid qos", tres="cpu=12")
    assert answers.unexpected(expected, seen) == (message,)


def test_only_rows_and_columns_that_differ_are_differences() -> None:
    before = [answer(time="01:00:00", qos="normal"), answer()]
    after = [answer(WAITS, "Limit", time="01:00:00"), answer()]
    assert answers.differences(before, after) == {
        "a row": {
            "outcome": ("starts", "waits"),
            "reason": ("", "Limit"),
            "qos": ("normal", ""),
        }
    }
    assert answers.differences(before, before) == {}


def test_fields_of_each_release_become_the_same_columns() -> None:
    old = {"TRES": "cpu=1", "NumNodes": "3", "TresPerNode": "gres:gpu:1 NtasksPerTRES:0"}
    new = {"ReqTRES": "cpu=1", "NumNodes": "3-12", "TresPerNode": "gres/gpu:1"}
    columns = {"nodes": "3", "tres": "cpu=1", "gres": "gpu:1"}
    assert answers.held(old) == answers.held(new) == columns
