from __future__ import annotations

from dataclasses import replace

from harness.simulation import quality
from harness.simulation.model import JobOutcome, Quality
from harness.simulation.submission import submissions
from harness.simulation.trace import Trace, TraceJob

TRACE = Trace("t", tuple(TraceJob(f"j{n}", 10.0 * n, 50, 60, 1, 1, "alice") for n in range(20)))


def outcome(number: int) -> JobOutcome:
    submit = 10.0 * number
    return JobOutcome(
        trace_id=f"j{number}",
        job_id=number + 1,
        state="COMPLETED",
        submit=submit,
        eligible=submit,
        start=submit,
        end=submit + 50,
        nodes=("n1",),
        cpus=1,
        user="alice",
        account="physics",
        partition="batch",
        qos="normal",
    )


def measured(outcomes: list[JobOutcome], skew: float = 0) -> Quality:
    return quality.measure(submissions(TRACE), outcomes, rate=30, seconds=10, clock_skew=skew)


EXACT = [outcome(number) for number in range(20)]


def test_a_simulation_that_kept_time_has_no_problems() -> None:
    found = measured(EXACT)
    assert (found.overshoot_mean, found.lateness_mean, found.problems) == (0, 0, ())


def test_jobs_that_run_too_long_are_a_problem() -> None:
    late = [replace(job, end=(job.end or 0) + 3) for job in EXACT]
    found = measured(late)
    assert found.overshoot_mean == 3
    assert "jobs ran too long, on average by 3.0 s" in found.problems[0]
    assert "--rate" in found.problems[0]


def test_a_few_jobs_that_run_far_too_long_are_a_problem() -> None:
    late = [*EXACT[:18], *(replace(job, end=(job.end or 0) + 9) for job in EXACT[18:])]
    found = measured(late)
    assert found.overshoot_mean < 1
    assert "one in twenty jobs ran too long" in found.problems[0]


def test_late_submissions_are_a_problem() -> None:
    found = measured([replace(job, submit=job.submit + 4) for job in EXACT])
    assert "submitted late" in found.problems[0]


def test_a_job_is_due_when_its_user_has_thought() -> None:
    later = [*EXACT[:19], replace(EXACT[19], submit=500.0)]
    found = quality.measure(
        submissions(TRACE), later, rate=30, seconds=10, clock_skew=0, late_due={"19": 480.0}
    )
    assert found.lateness_mean == 1


def test_a_job_that_keeps_its_nodes_is_a_problem() -> None:
    found = quality.measure(
        submissions(TRACE), EXACT, rate=30, seconds=10, clock_skew=0, longest_completing=20_000
    )
    assert "a job that had ended kept its nodes for 20000.0 s" in found.problems[0]


def test_time_in_which_the_clock_was_slow_is_a_part_of_the_real_time() -> None:
    reasons = {"submitting": 2.5, "ending": 5.0}
    found = quality.measure(
        submissions(TRACE), EXACT, rate=30, seconds=10, clock_skew=0, slowed=reasons
    )
    assert found.slowed == {"ending": 0.5, "submitting": 0.25}


def test_a_timeout_of_a_job_that_ends_before_its_limit_is_a_problem() -> None:
    found = measured([replace(EXACT[0], state="TIMEOUT"), *EXACT[1:]])
    assert found.false_timeouts == 1
    assert "1 jobs timed out" in found.problems[0]


def test_clocks_that_differ_are_a_problem() -> None:
    assert "clocks" in measured(EXACT, skew=2.5).problems[0]


def test_requeued_refused_and_unfinished_jobs_say_nothing_about_run_times() -> None:
    found = measured(
        [
            replace(EXACT[0], end=900.0, restarts=1, runs=((0.0, 20.0), (850.0, 900.0))),
            replace(EXACT[1], job_id=None, state="REFUSED", start=None, end=None),
            replace(EXACT[2], state="RUNNING", end=None),
        ]
    )
    assert (found.overshoot_mean, found.problems) == (0, ())
