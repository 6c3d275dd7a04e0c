from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import pytest

from harness.report.model import Check, Report
from harness.report.timeline import Timeline, end_of_start, faults, job_kind, node_spans, timeline

BEGIN = 1_700_000_000


def event(second: float, kind: str, **facts: Any) -> dict[str, Any]:
    return {"time": datetime.fromtimestamp(BEGIN + second, UTC).isoformat(), "kind": kind, **facts}


def job(number: int, nodes: str, start: int, end: int, **facts: Any) -> dict[str, Any]:
    times = {"submit": BEGIN + start, "start": BEGIN + start, "end": BEGIN + end}
    return {
        "job_id": number,
        "cluster": "a",
        "origin": 0,
        "state": "COMPLETED",
        "node_list": nodes,
        **times,
        **facts,
    }


def drawn(
    jobs: list[dict[str, Any]], events: list[dict[str, Any]] | None = None, **facts: Any
) -> Timeline:
    checks = [Check("t::test_x", "failed", 2)]
    picture = timeline(
        Report("s", "d", "failed", {}, "docker", "/r", [], checks, jobs, **facts), events or []
    )
    assert picture
    return picture


def test_jobs_are_drawn_in_the_lane_of_each_of_their_nodes_at_their_time() -> None:
    picture = drawn([job(1, "n[1-2]", 0, 50), job(2, "n2", 50, 100)], nodes={"a": "n[1-3]"})
    assert [lane.name for lane in picture.lanes] == [
        "stages",
        "checks",
        "faults",
        "a",
        "n1",
        "n2",
        "n3",
    ][3:]
    assert [(bar.left, bar.width, bar.title) for bar in picture.bars] == [
        (0, 50, "job 1 COMPLETED, 50 s"),
        (0, 50, "job 1 COMPLETED, 50 s"),
        (50, 50, "job 2 COMPLETED, 50 s"),
    ]
    tops = {lane.name: (lane.top, lane.top + lane.height) for lane in picture.lanes}
    assert tops["n1"][0] < picture.bars[0].top < tops["n1"][1] < picture.bars[1].top < tops["n2"][1]


def test_concurrent_jobs_are_drawn_side_by_side_and_jobs_that_never_ran_are_not_drawn() -> None:
    revoked = job(9, "None assigned", 0, 1, state="REVOKED")
    first, second = drawn([job(1, "n1", 0, 50), job(2, "n1", 10, 60), revoked]).bars
    assert first.top + first.height <= second.top


def test_ten_thousand_short_jobs_become_few_bars_labeled_with_counts() -> None:
    picture = drawn([job(number, "n1", number, number + 1) for number in range(10_000)])
    assert len(picture.bars) == 1
    assert picture.bars[0].title == "10000 completed, 0:00 to 2:46:40"


def test_wider_bars_are_merged_where_there_would_be_too_many() -> None:
    def spread(count: int, nodes: int) -> list[dict[str, Any]]:
        """Jobs of 0.4 % of the axis, which is long enough for a bar each, one after another."""
        return [
            job(number, f"n{number % nodes}", number // nodes * 10, number // nodes * 10 + 10)
            for number in range(count)
        ]

    assert len(drawn(spread(40 * 250, 40)).bars) == 40 * 250
    merged = drawn(spread(44 * 250, 44)).bars
    assert len(merged) == 44
    assert merged[0].title == "250 completed, 0:00 to 41:40"


def test_failed_job_stands_out_among_completed_ones() -> None:
    states = ["COMPLETED", "NODE_FAIL", "COMPLETED"]
    jobs = [
        job(number, "n1", 10 * number, 10 * number + 1, state=state)
        for number, state in enumerate(states)
    ]
    picture = drawn([*jobs, job(9, "n2", 0, 100_000)])
    assert [bar.kind for bar in picture.bars] == ["completed", "failed", "completed", "completed"]


def test_thousands_of_nodes_share_lanes() -> None:
    picture = drawn([job(1, "n4999", 0, 1)], nodes={"a": "n[1-5000]"})
    assert len(picture.lanes) < 60
    assert picture.lanes[1].name == "n[1-105]"


def test_a_job_that_a_sibling_ran_is_linked_with_its_origin() -> None:
    remote = job(1, "b1", 10, 20, cluster="b", origin=1, submit=BEGIN)
    at_home = job(2, "b1", 0, 20, cluster="b", origin=2)
    picture = drawn([remote, at_home], nodes={"a": "a1", "b": "b1"}, federations={"f": ["a", "b"]})
    (link,) = picture.links
    assert (link.left, link.right) == (0, 50)
    lanes = {lane.name: lane for lane in picture.lanes}
    assert lanes["a"].top < link.top < lanes["a1"].top
    assert lanes["b1"].top < link.bottom < lanes["b1"].top + lanes["b1"].height


def test_too_many_links_are_counted_instead_of_drawn() -> None:
    jobs = [job(n, "b1", n, n + 1, cluster="b", origin=1) for n in range(1, 1001)]
    picture = drawn(jobs, nodes={"a": "a1", "b": "b1"}, federations={"f": ["a", "b"]})
    assert (picture.links, picture.burst) == ([], 1000)


def test_stages_checks_and_faults_share_a_time_axis() -> None:
    events = [
        event(10, "stage", name="up", seconds=10),
        event(14, "fault", action="inject", fault="kill-host n1"),
        event(18, "check", id="t::test_x", outcome="failed", seconds=2, message=""),
        event(
            18,
            "check",
            id="t::test_of_an_earlier_verify",
            outcome="passed",
            seconds=2,
            message="",
        ),
        event(20, "fault", action="heal", fault="kill-host n1"),
    ]
    picture = drawn([], events)
    assert [(bar.kind, bar.left, bar.width) for bar in picture.bars] == [
        ("stage", 0, 50),
        ("check failed", 80, 10),
        ("fault", 70, 30),
    ]
    assert (picture.ticks[0], picture.ticks[-1]) == ((0, "0:00"), (100, "0:20"))


def test_fault_that_was_never_healed_is_reported_as_such() -> None:
    (span,) = faults(
        [
            event(1, "fault", action="inject", fault="cut a b"),
            event(5, "stage", name="down", seconds=1),
        ]
    )
    assert (span.title, span.end - span.begin) == ("cut a b (not healed)", 4)


def test_node_spans_follow_the_programs_except_that_slurmctld_reports_down() -> None:
    events = [
        event(0, "power", action="resume", nodes=["n1"]),
        event(1, "node", cluster="a", name="n1", state="MIXED+CLOUD+NOT_RESPONDING+POWERING_UP"),
        event(2, "power", action="up", nodes=["n1"]),
        event(3, "node", cluster="a", name="n1", state="IDLE+CLOUD"),
        event(5, "node", cluster="a", name="n1", state="DOWN+CLOUD+NOT_RESPONDING"),
        event(6, "node", cluster="a", name="n1", state="IDLE+CLOUD"),
        event(7, "power", action="suspend", nodes=["n1"]),
        event(8, "power", action="down", nodes=["n1"]),
    ]
    spans = {span.kind: (span.begin - BEGIN, span.end - BEGIN) for _, span in node_spans(events)}
    assert spans == {
        "strip coming": (0, 2),
        "strip up": (2, 7),
        "strip down": (5, 6),
        "strip going": (7, 8),
    }


def test_node_that_was_never_suspended_is_up_to_the_end() -> None:
    events = [
        event(0, "power", action="up", nodes=["n1"]),
        event(9, "stage", name="down", seconds=1),
    ]
    assert [(span.kind, span.end - span.begin) for _, span in node_spans(events)] == [
        ("strip up", 9)
    ]


def test_slurmctlds_states_are_used_where_only_it_knows_about_power() -> None:
    states = [
        "IDLE+CLOUD+POWERED_DOWN",
        "MIXED+CLOUD+POWERING_UP",
        "ALLOCATED+CLOUD",
        "IDLE+CLOUD+POWERING_DOWN",
        "IDLE",
    ]
    events = [
        event(second, "node", cluster="a", name="n1", state=state)
        for second, state in enumerate(states)
    ]
    assert [span.kind for _, span in node_spans(events)] == ["strip coming", "strip going"]


def test_timeline_without_times_is_not_drawn() -> None:
    assert timeline(Report("s", "d", "unknown", {}, "docker", "/r", [], []), []) is None


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("COMPLETED", "completed"),
        ("TIMEOUT", "failed"),
        ("PREEMPTED", "cancelled"),
        ("COMPLETING", "running"),
    ],
)
def test_state_of_a_job_decides_the_kind_of_its_bar(state: str, kind: str) -> None:
    assert job_kind(state) == kind


def test_daemon_start_ends_when_the_clusters_are_first_ready_after_it() -> None:
    """A later deploy that restarts nothing must not extend it: checks provoke errors meanwhile."""
    events = [
        event(60, "stage", name="ready", seconds=5),
        event(120, "check", id="x", outcome="passed", seconds=20),
        event(300, "stage", name="ready", seconds=1),
    ]
    assert end_of_start(events, BEGIN + 30) == BEGIN + 60
    assert end_of_start(events, BEGIN + 70) == BEGIN + 100  # restarted by hand, before a check
    assert end_of_start(events, BEGIN + 110) == BEGIN + 300
    assert end_of_start(events, BEGIN + 400) == math.inf
