"""Generate workload traces with the daily rhythm and job mixture of a real site. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

from harness.errors import UsageError
from harness.simulation.trace import Trace, TraceJob

MOST_JOBS = 200_000
# Submissions per hour of the day, relative to the busiest: few at night, most in office hours.
_HOURS = (
    *(0.25, 0.2, 0.15, 0.15, 0.15, 0.2, 0.3, 0.45, 0.7, 0.9, 1.0, 1.0),
    *(0.85, 0.9, 1.0, 1.0, 0.95, 0.85, 0.7, 0.55, 0.5, 0.45, 0.4, 0.3),
)
# Relative to a working day, from Monday.
_WEEKDAYS = (1.0, 1.0, 1.0, 1.0, 0.9, 0.45, 0.4)
# What users ask for when they round up, in minutes.
_LIMITS = (1, 2, 5, 10, 15, 20, 30, 45, 60, 90, 120, 180, 240, 360, 480, 720, 1440, 2880, 4320)
# Of all sessions, in which a user submits similar jobs.
_ARRAYS, _CHAINS, _WITH_GRES = 0.08, 0.08, 0.5
_SERIAL = 0.4  # sessions with jobs for one node
_REACH_LIMIT = 0.04  # jobs
_LONGEST = 0.5  # run time, relative to the length of the trace


@dataclass(frozen=True, slots=True)
class _Session:
    """What the jobs that a user submits one after the other have in common."""

    begin: float
    user: str
    account: str | None
    partition: str | None
    qos: str | None
    gres: str | None
    nodes: int
    tasks: int
    run_time: float
    overestimate: float
    kind: str  # "array", "chain" or "single"


def generate(
    seed: int,
    jobs: int,
    hours: float,
    users: Sequence[tuple[str, str | None]],
    partitions: Sequence[str],
    nodes: int,
    cpus_per_node: int,
    *,
    load: float = 1.15,
    hour: int = 8,
    weekday: int = 0,
    gres: Sequence[str] = (),
    qos: Sequence[str] = (),
    largest: float = 0.33,
) -> Trace:
    """Return a trace, the same for the same arguments.

    `users` are pairs of user and account, the busiest first; `partitions` and `qos` have the most
    used first, and can be empty. Each of `gres` is what some jobs ask for per node, such as
    "gpu:1". `load` is the CPU time of all jobs, relative to what the nodes can do in `hours`:
    beyond 1, queues grow. The trace begins at `hour` of a `weekday`, 0 for Monday. No job needs
    more than `largest` of the nodes, or runs longer than half of the trace.
    """
    _refuse_impossible(jobs, hours, users, nodes, cpus_per_node, load, hour, weekday, largest)
    random = Random(seed)  # noqa: S311 - nothing here is secret
    drawn: list[TraceJob] = []
    while len(drawn) < jobs:
        session = _session(
            random,
            _arrival(random, hours, hour, weekday),
            users,
            (partitions, qos, gres),
            max(1, int(nodes * largest)),
            cpus_per_node,
        )
        drawn += _jobs(random, session, jobs - len(drawn), hours * 3600, len(drawn))
    scaled = _scaled(drawn, load * nodes * cpus_per_node * hours * 3600, hours * 3600 * _LONGEST)
    ordered = sorted(scaled, key=lambda job: (job.submit, int(job.id)))
    reached = sum(work(job) for job in ordered) / (nodes * cpus_per_node * hours * 3600)
    notes = [f"generated with seed {seed}: {jobs} jobs in {hours:g} h, load {reached:.2f}"]
    if reached < 0.9 * load:
        notes.append(
            f"the load is less than {load:g}: no job runs for more than {_LONGEST * hours:g} h"
        )
    return Trace(
        f"generated, seed {seed}", tuple(ordered), tuple(notes), nodes, nodes * cpus_per_node
    )


def work(job: TraceJob) -> float:
    """Return the CPU seconds of a job, which its limit bounds."""
    run_time = job.run_time if job.limit is None else min(job.run_time, job.limit)
    return run_time * job.cpus


def _refuse_impossible(
    jobs: int,
    hours: float,
    users: Sequence[tuple[str, str | None]],
    nodes: int,
    cpus_per_node: int,
    load: float,
    hour: int,
    weekday: int,
    largest: float,
) -> None:
    wrong = {
        f"jobs must be from 1 to {MOST_JOBS}": not 1 <= jobs <= MOST_JOBS,
        "hours must be more than 0 and at most 8784": not 0 < hours <= 8784,
        "there must be users": not users,
        "nodes and CPUs must be at least 1": nodes < 1 or cpus_per_node < 1,
        "load must be more than 0 and at most 100": not 0 < load <= 100,
        "hour must be from 0 to 23": not 0 <= hour < 24,
        "weekday must be from 0 to 6": not 0 <= weekday < 7,
        "largest must be more than 0 and at most 1": not 0 < largest <= 1,
    }
    if problems := [message for message, is_wrong in wrong.items() if is_wrong]:
        raise UsageError(f"no trace can be generated: {'; '.join(problems)}")


def _arrival(random: Random, hours: float, hour: int, weekday: int) -> float:
    """Return when a session begins, in seconds."""
    while True:
        at = random.random() * hours
        day, of_day = divmod(hour + at, 24)
        if random.random() < _HOURS[int(of_day)] * _WEEKDAYS[(weekday + int(day)) % 7]:
            return at * 3600


def _session(
    random: Random,
    begin: float,
    users: Sequence[tuple[str, str | None]],
    choices: tuple[Sequence[str], Sequence[str], Sequence[str]],
    most_nodes: int,
    cpus_per_node: int,
) -> _Session:
    user, account = users[_skewed_index(random, len(users))]
    partitions, qos, gres = choices
    if random.random() < _SERIAL:
        nodes, tasks = 1, min(2 ** random.randrange(4), cpus_per_node)
    else:
        nodes = min(2 ** random.randrange(most_nodes.bit_length()), most_nodes)
        tasks = nodes * cpus_per_node
    draw = random.random()
    return _Session(
        begin=begin,
        user=user,
        account=account,
        partition=partitions[_skewed_index(random, len(partitions))] if partitions else None,
        qos=qos[_skewed_index(random, len(qos))] if qos else None,
        gres=random.choice(gres) if gres and random.random() < _WITH_GRES else None,
        nodes=nodes,
        tasks=tasks,
        run_time=random.lognormvariate(0, 1.4),
        overestimate=random.choice((1.1, 1.5, 2, 3, 5)),
        kind="array" if draw < _ARRAYS else "chain" if draw < _ARRAYS + _CHAINS else "single",
    )


def _skewed_index(random: Random, count: int) -> int:
    """Return a random index below `count`; each is less likely than the one before."""
    return random.choices(range(count), [1 / (rank + 1) for rank in range(count)])[0]


def _jobs(
    random: Random, session: _Session, most: int, end: float, number: int
) -> Iterator[TraceJob]:
    """Yield the jobs of a session; the numbers of their identifiers begin after `number`.

    Their run times and limits are relative: `_scaled` turns them into seconds.
    """
    count = min(1 + int(random.expovariate(1 / 4)), most)
    array = str(number + 1) if session.kind == "array" and count > 1 else None
    at = session.begin
    for index in range(count):
        own = number + index + 1
        if index and array is None:
            at = min(at + random.expovariate(1 / 30), end - 1)
        run_time = session.run_time * random.uniform(0.8, 1.2)
        reaches = random.random() < _REACH_LIMIT
        yield TraceJob(
            id=str(own),
            submit=round(at, 1),
            run_time=run_time,
            # The ratio of limit and run time, times 1000.
            limit=int(1000 * (0.6 if reaches else session.overestimate)),
            nodes=session.nodes,
            tasks=session.tasks,
            user=session.user,
            account=session.account,
            partition=session.partition,
            qos=session.qos,
            gres=session.gres,
            dependency=f"afterany:{own - 1}" if session.kind == "chain" and index else None,
            array=array,
            array_index=index if array else None,
        )


def _scaled(jobs: Sequence[TraceJob], wanted: float, longest: float) -> list[TraceJob]:
    """Return the jobs with limits, and with run times in seconds that add up to the wanted work."""

    def run_time(job: TraceJob, factor: float) -> float:
        return round(min(max(job.run_time * factor, 1), longest), 1)

    def limit(job: TraceJob, factor: float) -> int:
        return _limit(run_time(job, factor), (job.limit or 0) / 1000)

    def total(factor: float) -> float:
        return sum(min(run_time(job, factor), limit(job, factor)) * job.cpus for job in jobs)

    # The work grows with the factor, but not evenly: bisection on a logarithmic scale.
    low, high = -12.0, 25.0
    for _ in range(25):
        middle = (low + high) / 2
        if total(math.exp(middle)) < wanted:
            low = middle
        else:
            high = middle
    factor = math.exp(high)
    return [replace(job, run_time=run_time(job, factor), limit=limit(job, factor)) for job in jobs]


def _limit(run_time: float, ratio: float) -> int:
    """Return the limit in seconds that a user would ask for.

    >>> _limit(100, 1.5), _limit(600, 0.6)
    (300, 300)
    """
    minutes = run_time * ratio / 60
    if ratio < 1:
        return 60 * max([limit for limit in _LIMITS if limit <= minutes] or [1])
    return 60 * next((limit for limit in _LIMITS if limit >= minutes), math.ceil(minutes))
