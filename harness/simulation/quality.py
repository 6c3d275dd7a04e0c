"""How well a simulation kept time, and whether its figures can be trusted. Pure.

docs/simulation.md explains the bounds.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from harness.simulation.model import JobOutcome, Quality
from harness.simulation.submission import Submission
from harness.simulation.trace import TraceJob

# Bounds, in simulated seconds or as a part of the mean run time, whichever is larger. Ten times the
# delays of Slurm on the real clock would be 1 s; more than 2 % of all run time changes the load.
_OVERSHOOT_SECONDS, _OVERSHOOT_PART = 1.0, 0.02
_TAIL = 5
# slurmctld's main scheduler runs at most every few seconds, so that a later submission matters.
_LATENESS_SECONDS = 3.0
_SKEW_SECONDS = 2.0
# squeue is asked every real second, so that a shorter time can be that between two answers.
_COMPLETING_SECONDS = 300.0
# Jobs that end within this part of their limit, or this many seconds before it, may time out on
# real clusters too.
_CLOSE_SECONDS = 2.0
_ADVICE = "choose a lower --rate or fewer nodes, or wait until the machine is idle"


def measure(
    submissions: Sequence[Submission],
    outcomes: Sequence[JobOutcome],
    *,
    rate: float,
    seconds: float,
    clock_skew: float,
    late_due: Mapping[str, float] | None = None,
    longest_completing: float = 0.0,
    slowed: Mapping[str, float] | None = None,
) -> Quality:
    """Return the quality of a simulation with these outcomes.

    `late_due` has when submissions were due, by their keys, if not at the time in the trace.
    `longest_completing` is how long a job kept its nodes after its end, as far as squeue showed it.
    `slowed` has for how many of the real seconds the clock was slow, by reason.
    """
    known = late_due or {}
    jobs = {job.id: job for submission in submissions for job in submission.jobs.values()}
    due = {
        job.id: known.get(submission.key, submission.submit)
        for submission in submissions
        for job in submission.jobs.values()
    }
    overshoots = [
        outcome.end - outcome.start - jobs[outcome.trace_id].run_time
        for outcome in outcomes
        if outcome.state == "COMPLETED"
        and not outcome.runs
        and outcome.end is not None
        and outcome.start is not None
    ]
    # slurmctld records whole seconds: the time of a job submitted on time is rounded down.
    lateness = [
        max(0.0, outcome.submit - due[outcome.trace_id])
        for outcome in outcomes
        if outcome.job_id is not None
    ]
    false_timeouts = sum(is_false_timeout(outcome, jobs[outcome.trace_id]) for outcome in outcomes)
    run_times = [job.run_time for job in jobs.values()]
    quality = Quality(
        rate=rate,
        seconds=seconds,
        overshoot_mean=_mean(overshoots),
        overshoot_p95=_percentile(overshoots),
        lateness_mean=_mean(lateness),
        lateness_p95=_percentile(lateness),
        false_timeouts=false_timeouts,
        clock_skew=clock_skew,
        longest_completing=longest_completing,
        slowed={
            reason: round(part / seconds, 3)
            for reason, part in sorted((slowed or {}).items())
            if seconds
        },
    )
    return _with_problems(quality, _mean(run_times))


def is_false_timeout(outcome: JobOutcome, job: TraceJob) -> bool:
    """Return whether a job timed out although the trace has it end before its limit."""
    return (
        outcome.state == "TIMEOUT"
        and job.limit is not None
        and job.run_time < job.limit - _CLOSE_SECONDS
    )


def slowed_text(slowed: Mapping[str, float]) -> str:
    """Return why the clock was slow, and in which part of the real time.

    >>> slowed_text({"computing": 0.334, "next event": 0.12})
    'computing 33%, next event 12%'
    """
    return ", ".join(f"{reason} {part:.0%}" for reason, part in slowed.items())


def _with_problems(quality: Quality, run_time: float) -> Quality:
    """Return a quality with what is out of bounds."""
    overshoot = max(_OVERSHOOT_SECONDS, _OVERSHOOT_PART * run_time)
    checks = [
        (quality.overshoot_mean, overshoot, "jobs ran too long, on average by"),
        (quality.overshoot_p95, _TAIL * overshoot, "one in twenty jobs ran too long, by"),
        (quality.lateness_mean, _LATENESS_SECONDS, "jobs were submitted late, on average by"),
        (
            quality.lateness_p95,
            _TAIL * _LATENESS_SECONDS,
            "one in twenty jobs was submitted late, by",
        ),
        (quality.clock_skew, _SKEW_SECONDS, "the clocks of two daemons differed by"),
        (
            quality.longest_completing,
            _COMPLETING_SECONDS,
            "a job that had ended kept its nodes for",
        ),
    ]
    problems = [
        f"{what} {value:.1f} s, more than {bound:.1f} s: {_ADVICE}"
        for value, bound, what in checks
        if value > bound
    ]
    if quality.false_timeouts:
        problems.append(
            f"{quality.false_timeouts} jobs timed out although they end before their limits in the "
            f"trace: {_ADVICE}"
        )
    return replace(quality, problems=tuple(problems))


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else 0.0


def _percentile(values: Sequence[float]) -> float:
    """Return the 95th percentile, the smallest value that is not exceeded by 95 %."""
    ordered = sorted(values)
    return ordered[-(-len(ordered) * 95 // 100) - 1] if ordered else 0.0
