from __future__ import annotations

from pathlib import Path

import pytest

from harness import scenario
from harness.errors import UsageError
from harness.simulation.submission import must_fit, submissions
from harness.simulation.trace import Trace, TraceJob

SCENARIO = scenario.load(Path(__file__).parents[3] / "scenarios" / "simulate.yml")


def job(name: str, submit: float = 0, **facts: object) -> TraceJob:
    values = {"limit": 60, "nodes": 1, "tasks": 1, "user": "alice", **facts}
    return TraceJob(name, submit, 30, **values)  # type: ignore[arg-type]


def test_a_job_asks_for_what_the_trace_says() -> None:
    (submission,) = submissions(
        Trace(
            "t",
            (
                job(
                    "a",
                    limit=90,
                    nodes=2,
                    tasks=4,
                    cpus_per_task=2,
                    memory_per_node=500,
                    account="physics",
                    partition="batch",
                    qos="normal",
                    gres="gpu:1",
                    constraint="amd",
                    licenses="matlab:2",
                    nice=7,
                    exclusive=True,
                ),
            ),
        )
    )
    assert {
        *("--nodes=2", "--ntasks=4", "--cpus-per-task=2", "--mem=500M", "--time=0:90"),
        *("--account=physics", "--partition=batch", "--qos=normal", "--gres=gpu:1"),
        *("--constraint=amd", "--licenses=matlab:2", "--nice=7", "--exclusive"),
    } <= {*submission.options}


def test_what_a_job_does_not_ask_for_is_left_to_the_cluster() -> None:
    (submission,) = submissions(Trace("t", (job("a", limit=None, nodes=None),)))
    assert submission.options == ("--job-name=0", "--ntasks=1")


def test_elements_of_an_array_are_one_submission_unless_they_differ() -> None:
    elements = [job(f"a{index}", array="a", array_index=index) for index in (3, 1)]
    other = job("a5", array="a", array_index=5, nodes=2, tasks=2)
    first, second = submissions(Trace("t", (*elements, other)))
    assert "--array=1,3" in first.options
    assert {index: element.id for index, element in first.jobs.items()} == {"3": "a3", "1": "a1"}
    assert "--array=5" in second.options


def test_dependencies_are_on_earlier_submissions_of_the_trace() -> None:
    element = job("e", array="e", array_index=4)
    later = job("b", 5, dependency="afterok:a:e,afterany:elsewhere")
    *_, submission = submissions(Trace("t", (job("a"), element, later)))
    assert submission.after == (("afterok", "0", ""), ("afterok", "1", "4"))


def test_submissions_are_in_the_order_of_their_times() -> None:
    made = submissions(Trace("t", (job("late", 9), job("early", 1))))
    assert [submission.submit for submission in made] == [1, 9]


def test_everything_that_the_scenario_lacks_is_named_at_once() -> None:
    trace = Trace(
        "jobs.csv",
        (
            job("a", user="zoe"),
            job("b", account="art"),
            job("c", partition="gpu"),
            job("d", qos="fast"),
            job("e", nodes=101, tasks=101),
            job("f", memory_per_node=8001),
            job("g", cpus_per_task=5),
        ),
    )
    with pytest.raises(UsageError) as caught:
        must_fit(trace, SCENARIO)
    for words in (
        *("jobs.csv", "unknown user: zoe (1 jobs)", "unknown account: art"),
        *(
            "unknown partition: gpu",
            "unknown QOS: fast",
            "too large for the nodes: e ",
            "f (",
            "g (",
        ),
    ):
        assert words in str(caught.value)


def test_a_trace_that_fits_is_accepted() -> None:
    must_fit(Trace("t", (job("a", nodes=100, tasks=400, account="physics"),)), SCENARIO)


def test_a_trace_without_a_job_that_fits_is_refused_with_what_was_left_out() -> None:
    notes = ("1 job was left out: too large",)
    with pytest.raises(UsageError, match="t has no job that sim can run") as caught:
        must_fit(Trace("t", (), notes), SCENARIO)
    assert caught.value.hint == notes[0]
