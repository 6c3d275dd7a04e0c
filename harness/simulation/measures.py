"""Measure a simulation: waits, slowdown, utilization, fairness. Pure.

- A job *waits* from when it may start until it starts: from its submission, or, if it waits for
  another job or a begin time, from when it became eligible. A job that has not started by the end
  of the simulation counts with what it has waited until then, which is a lower bound: otherwise a
  policy would look better the fewer large jobs it starts.
- The *bounded slowdown* of a job that ended is the time from when it may start until its end,
  relative to its run time, but at least 1. Run times below 10 seconds count as 10 seconds, so that
  the shortest jobs do not decide the mean. Of a job that was requeued, the last run counts.
- *Percentiles* are nearest-rank: the 95th is the smallest value that at least 95% of values do not
  exceed.
- *Utilization* is the share of the cluster's CPU time that jobs have allocated, from the end of the
  warm-up until the end of the trace. What jobs do after that is not counted, because then no new
  jobs arrive.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from harness.simulation.model import JobOutcome, Simulation

SHORTEST = 10.0  # seconds of a run time in the bounded slowdown
REFUSED, PENDING = "REFUSED", "PENDING"
NOT_ENDED = {"PENDING", "RUNNING", "SUSPENDED", "REQUEUED", "CONFIGURING", "COMPLETING"}
# The largest number of CPUs of each size class; larger jobs are in the last one.
_SIZES = (1, 4, 16, 64, 256, 1024)


@dataclass(frozen=True, slots=True)
class Waits:
    """Statistics of the waits of some jobs, in seconds; None if there are no jobs."""

    mean: float | None
    median: float | None
    p95: float | None
    longest: float | None


@dataclass(frozen=True, slots=True)
class Group:
    """The jobs of a user, account, partition, QOS or size class.

    `slowdown` is the mean of the bounded slowdown, `cpu_hours` what the jobs used.
    """

    name: str
    jobs: int
    wait: Waits
    slowdown: float | None
    cpu_hours: float


@dataclass(frozen=True, slots=True)
class Share:
    """A user's association: its share and its part of the usage; over all, each adds up to 1."""

    account: str
    user: str
    share: float
    usage: float


@dataclass(frozen=True, slots=True)
class Measures:
    """Everything that is measured in a simulation.

    `states` counts jobs by their last state. `not_started` counts those whose wait is only a lower
    bound. `backfilled` is the part of the started jobs that backfill scheduled, if that is known.
    `unfairness` is the part of the usage that should have gone to others for usage to equal shares,
    from 0 to 1. `held` has the reasons for which jobs waited, with their job hours if they were
    watched, otherwise with the number of jobs that still wait.
    """

    jobs: int
    wait: Waits
    slowdown: float | None
    slowdown_median: float | None
    slowdown_p95: float | None
    utilization: float | None
    queue: float | None  # mean number of waiting jobs
    states: dict[str, int]
    refused: int
    timed_out: int
    preempted: int
    not_started: int
    backfilled: float | None
    unfairness: float | None
    held: dict[str, float]
    held_unit: str
    refusals: dict[str, int]
    shares: tuple[Share, ...] = ()
    groups: dict[str, tuple[Group, ...]] = field(default_factory=dict)


def measure(simulation: Simulation) -> Measures:
    """Return the measures of a simulation, of the jobs that were submitted after its warm-up."""
    jobs = measured_jobs(simulation)
    end = end_of(simulation)
    waits = sorted(wait for job in jobs if (wait := wait_of(job, end)) is not None)
    slowdowns = sorted(value for job in jobs if (value := slowdown_of(job)) is not None)
    begin, close = period(simulation)
    length = close - begin
    known = [job.backfilled for job in jobs if job.backfilled is not None]
    shares = _shares(simulation)
    held, unit = _wait_reasons(jobs)
    states = Counter(job.state for job in jobs)
    return Measures(
        jobs=len(jobs),
        wait=_waits(waits),
        slowdown=fmean(slowdowns) if slowdowns else None,
        slowdown_median=percentile(slowdowns, 50),
        slowdown_p95=percentile(slowdowns, 95),
        utilization=_overlap(_allocations(simulation), begin, close) / (simulation.cpus * length)
        if simulation.cpus and length > 0
        else None,
        queue=_overlap(_queued(simulation), begin, close) / length if length > 0 else None,
        states=dict(states.most_common()),
        refused=states[REFUSED],
        timed_out=states["TIMEOUT"],
        preempted=sum(bool(job.preemptions) or job.state == "PREEMPTED" for job in jobs),
        not_started=sum(job.start is None and wait_of(job, end) is not None for job in jobs),
        backfilled=sum(known) / len(known) if known else None,
        unfairness=sum(abs(share.usage - share.share) for share in shares) / 2 if shares else None,
        held=held,
        held_unit=unit,
        refusals=dict(
            Counter(job.reason or "no reason" for job in jobs if job.state == REFUSED).most_common()
        ),
        shares=shares,
        groups={name: _groups(jobs, key, end) for name, key in GROUPS.items()},
    )


def measured_jobs(simulation: Simulation) -> list[JobOutcome]:
    """Return the jobs that were submitted after the warm-up."""
    return [job for job in simulation.jobs if job.submit >= simulation.warm_up * 3600]


def end_of(simulation: Simulation) -> float:
    """Return when a simulation ended, in seconds."""
    if simulation.ended is not None:
        return simulation.ended
    times = (time for job in simulation.jobs for time in (job.submit, job.start, job.end) if time)
    last = max(times, default=0.0)
    drained = all(job.state not in NOT_ENDED for job in simulation.jobs)
    return last if drained else max(last, simulation.hours * 3600)


def period(simulation: Simulation) -> tuple[float, float]:
    """Return the seconds between which utilization and queue are measured."""
    ended = math.inf if simulation.ended is None else simulation.ended
    return simulation.warm_up * 3600, min(simulation.hours * 3600, ended)


def wait_of(job: JobOutcome, end: float) -> float | None:
    """Return how long a job waited until it started, or has waited by the end.

    None if it was refused, cancelled before it started, or may not start yet.
    """
    if job.start is not None:
        return max(job.start - _eligible(job), 0.0)
    if job.job_id is not None and job.eligible is None:
        return None
    return max(end - _eligible(job), 0.0) if job.state in NOT_ENDED else None


def _eligible(job: JobOutcome) -> float:
    return job.submit if job.eligible is None else max(job.eligible, job.submit)


def slowdown_of(job: JobOutcome) -> float | None:
    """Return the bounded slowdown of a job; None if it did not end."""
    if job.start is None or job.end is None or job.state in NOT_ENDED:
        return None
    runs = runs_of(job, job.end)
    counted = runs[-1:] if job.restarts else runs
    run_time = sum(end - begin for begin, end in counted)
    response = job.end - min(_eligible(job), counted[0][0])
    return max(response / max(run_time, SHORTEST), 1.0)


def runs_of(job: JobOutcome, end: float) -> tuple[tuple[float, float], ...]:
    """Return begin and end of each run of a job; one that still runs ends with the simulation."""
    if job.runs:
        return job.runs
    if job.start is None:
        return ()
    return ((job.start, max(end if job.end is None else job.end, job.start)),)


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Return a percentile of sorted values by nearest rank; None if there are no values.

    >>> percentile([1, 2, 3, 4], 50), percentile(list(range(1, 101)), 95), percentile([], 50)
    (2, 95, None)
    """
    if not values:
        return None
    return values[max(math.ceil(len(values) * percent / 100) - 1, 0)]


def _waits(values: Sequence[float]) -> Waits:
    return Waits(
        fmean(values) if values else None,
        percentile(values, 50),
        percentile(values, 95),
        values[-1] if values else None,
    )


def size_class(cpus: int) -> str:
    """Return the name of a size class.

    >>> size_class(1), size_class(5), size_class(5000)
    ('1 CPU', '5-16 CPUs', 'more than 1024 CPUs')
    """
    index = bisect_left(_SIZES, cpus)
    if index == len(_SIZES):
        return f"more than {_SIZES[-1]} CPUs"
    if index == 0:
        return "1 CPU"
    return f"{_SIZES[index - 1] + 1}-{_SIZES[index]} CPUs"


# What jobs are grouped by.
GROUPS: dict[str, Callable[[JobOutcome], str]] = {
    "user": lambda job: job.user,
    "account": lambda job: job.account,
    "partition": lambda job: job.partition,
    "qos": lambda job: job.qos,
    "size": lambda job: size_class(job.cpus),
}


def _groups(
    jobs: Sequence[JobOutcome], key: Callable[[JobOutcome], str], end: float
) -> tuple[Group, ...]:
    """Return the groups of jobs: size classes by size, others by name."""
    members: dict[str, list[JobOutcome]] = {}
    for job in sorted(jobs, key=lambda job: job.cpus) if key is GROUPS["size"] else jobs:
        members.setdefault(key(job) or "none", []).append(job)
    names = members if key is GROUPS["size"] else sorted(members)
    return tuple(_group(name, members[name], end) for name in names)


def _group(name: str, jobs: Sequence[JobOutcome], end: float) -> Group:
    slowdowns = [value for job in jobs if (value := slowdown_of(job)) is not None]
    return Group(
        name,
        len(jobs),
        _waits(sorted(wait for job in jobs if (wait := wait_of(job, end)) is not None)),
        fmean(slowdowns) if slowdowns else None,
        sum((close - begin) * job.cpus for job in jobs for begin, close in runs_of(job, end))
        / 3600,
    )


def _shares(simulation: Simulation) -> tuple[Share, ...]:
    """Return the shares and usage of users' associations, so that each adds up to 1."""
    entries = [entry for entry in simulation.fairness if entry[1]]
    shares = sum(max(share, 0.0) for _, _, share, _ in entries)
    usage = sum(max(used, 0.0) for _, _, _, used in entries)
    if not shares or not usage:
        return ()
    return tuple(
        Share(account, user, max(share, 0.0) / shares, max(used, 0.0) / usage)
        for account, user, share, used in entries
    )


def _wait_reasons(jobs: Iterable[JobOutcome]) -> tuple[dict[str, float], str]:
    """Return how much jobs waited for each reason, the largest first, and the unit."""
    seconds: Counter[str] = Counter()
    pending: Counter[str] = Counter()
    for job in jobs:
        for reason, held in job.held:
            seconds[reason] += held  # type: ignore[assignment]
        if job.state == PENDING:
            pending[job.reason or "unknown"] += 1
    if seconds:
        return {reason: held / 3600 for reason, held in seconds.most_common()}, "job hours"
    return {reason: float(count) for reason, count in pending.most_common()}, "jobs at the end"


def _allocations(simulation: Simulation) -> Iterator[tuple[float, float, float]]:
    """Yield when CPUs were allocated: begin, end and number."""
    end = end_of(simulation)
    for job in simulation.jobs:
        for begin, close in runs_of(job, end):
            yield begin, close, job.cpus


def _queued(simulation: Simulation) -> Iterator[tuple[float, float, float]]:
    """Yield when jobs waited: begin, end and 1."""
    end = end_of(simulation)
    for job in simulation.jobs:
        if (wait := wait_of(job, end)) is not None:
            yield _eligible(job), _eligible(job) + wait, 1


def _overlap(spans: Iterable[tuple[float, float, float]], begin: float, end: float) -> float:
    """Return the sum, over all spans, of number times seconds within two times."""
    return sum(
        number * max(min(close, end) - max(start, begin), 0.0) for start, close, number in spans
    )


def utilization_over_time(simulation: Simulation, points: int) -> list[float]:
    """Return the mean utilization, from 0 to 1, in each of `points` equal parts."""
    used = _over_time(_allocations(simulation), end_of(simulation), points)
    return [value / (simulation.cpus or 1) for value in used]


def queue_over_time(simulation: Simulation, points: int) -> list[float]:
    """Return the mean number of waiting jobs in each of `points` equal parts."""
    return _over_time(_queued(simulation), end_of(simulation), points)


def _over_time(spans: Iterable[tuple[float, float, float]], end: float, points: int) -> list[float]:
    """Return the mean sum of the spans' numbers in each of `points` equal parts from 0 to `end`.

    >>> _over_time([(0, 5, 2), (5, 10, 1)], 10, 2)
    [2.0, 1.0]
    """
    step = end / points or 1.0
    # For each part: what spans that begin or end in it add to it, and to each later part.
    sums, changes = [0.0] * (points + 1), [0.0] * (points + 1)
    for start, close, number in spans:
        for at, sign in ((start, number), (max(close, start), -number)):
            index = min(max(int(at / step), 0), points)
            sums[index] += sign * (index + 1 - max(at, 0.0) / step)
            changes[index] += sign
    means, level = [], 0.0
    for index in range(points):
        means.append(max(level + sums[index], 0.0))
        level += changes[index]
    return means
