"""What simulated users submit: random jobs of many kinds, or the jobs of a trace."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from harness.errors import UsageError
from harness.parsing import conf, hostlist, swf
from harness.parsing.swf import SwfJob
from harness.scenario import Cluster, Scenario

Ending = Literal["COMPLETED", "FAILED"]
_FORMAT = "a job's line is 18 numbers: www.cs.huji.ac.il/labs/parallel/workload/swf.html"
# A job that requeues itself; its first run ends when slurmctld kills it.
_REQUEUES_ITSELF = (
    '[ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] ||'
    ' { scontrol requeue "$SLURM_JOB_ID"; sleep 60 & wait; }; sleep 1'
)


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A job to submit `at` seconds after the start.

    It depends on the job whose number is `after`.
    """

    number: int
    at: float
    cluster: str
    user: str
    body: str
    options: tuple[str, ...] = ()
    tasks: int = 1
    ends: Ending = "COMPLETED"
    after: int | None = None


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of job: its share of all jobs, and what it requests."""

    share: int
    body: Callable[[random.Random], str]
    options: Callable[[random.Random, Cluster], Sequence[str]] = lambda chance, cluster: ()
    tasks: int = 1
    ends: Ending = "COMPLETED"
    follows: bool = False
    stays: bool = False


def requeues_itself(job: PlannedJob) -> bool:
    """Return whether a job is of the kind whose first run requeues it."""
    return job.body == _REQUEUES_ITSELF


def _short(chance: random.Random) -> str:
    return f"sleep {chance.choice([0, 0, 1, 1, 2, 4])}"


def _wide(chance: random.Random, cluster: Cluster) -> Sequence[str]:
    nodes, limits = _default_partition(cluster)
    return [
        f"--nodes={chance.randint(1, min(4, len(nodes), limits.get('maxnodes', 4)))}",
        "--ntasks-per-node=1",
    ]


def _big(chance: random.Random, cluster: Cluster) -> Sequence[str]:
    nodes, limits = _default_partition(cluster)
    most = min(nodes.values())
    return [f"--cpus-per-task={chance.randint(1, min(most, limits.get('maxcpuspernode', most)))}"]


def _default_partition(cluster: Cluster) -> tuple[dict[str, int], dict[str, int]]:
    """Return the default partition's nodes with their CPUs, and its limits by lower-case name."""
    nodes = cluster.static_nodes()
    for partition in cluster.partitions.values():
        options = {name.lower(): str(value) for name, value in partition.options.items()}
        if not partition.default and options.get("default", "").lower() not in {"yes", "true"}:
            continue
        named = options.get("nodes", partition.nodes)
        named_nodes = {name: nodes[name] for name in _expanded(named) if name in nodes}
        limits = {name: conf.number(value) for name, value in options.items()}
        return named_nodes or nodes, {
            name: limit for name, limit in limits.items() if limit is not None
        }
    return nodes, {}


def _expanded(names: str) -> tuple[str, ...]:
    try:
        return hostlist.expand(names)
    except ValueError:
        return ()  # such as functions of node sets


_KINDS = (
    _Kind(8, _short),
    _Kind(4, _short, _big),
    _Kind(3, _short, _wide),
    _Kind(2, _short, lambda chance, cluster: ["--array=1-3"], tasks=3),
    _Kind(2, _short, follows=True),
    _Kind(2, _short, stays=True),
    _Kind(2, lambda chance: "exit 3", ends="FAILED"),
    _Kind(1, lambda chance: "sleep 20"),
    _Kind(1, lambda chance: _REQUEUES_ITSELF, lambda chance, cluster: ["--requeue"], stays=True),
)


def generate(
    scenario: Scenario, jobs: int, seconds: float, seed: int, *, stay: bool = False
) -> list[PlannedJob]:
    """Return `jobs` jobs of all kinds, spread at random over `seconds`.

    The same seed gives the same jobs. With `stay`, every job stays on the cluster that it is
    submitted to. UsageError if no user can submit jobs, or no node is static.
    """
    chance = random.Random(seed)  # noqa: S311  reproducible, not secret
    users, clusters = _users_and_clusters(scenario)
    times = sorted(chance.uniform(0, seconds) for _ in range(jobs))
    federated = {
        name for federation in scenario.federations.values() for name in federation.clusters
    }
    planned: list[PlannedJob] = []
    for number, at in enumerate(times):
        kind = chance.choices(_KINDS, [kind.share for kind in _KINDS])[0]
        cluster, user = chance.choice([*clusters]), chance.choice(users)
        qos = chance.choice(["", *scenario.of_cluster(cluster).users[user].qos])
        earlier = [job.number for job in planned if job.cluster == cluster]
        options = [
            *kind.options(chance, clusters[cluster]),
            *([f"--qos={qos}"] if qos else []),
            *([f"--clusters={cluster}"] if (stay or kind.stays) and cluster in federated else []),
        ]
        after = chance.choice(earlier) if kind.follows and earlier else None
        planned.append(
            PlannedJob(
                number,
                at,
                cluster,
                user,
                kind.body(chance),
                tuple(options),
                kind.tasks,
                kind.ends,
                after,
            )
        )
    return planned


def replay(trace: str, scenario: Scenario, speed: float) -> list[PlannedJob]:
    """Return the jobs of a trace in the Standard Workload Format, `speed` times as fast.

    Times shrink, sizes do not: a job that requests more than a cluster has gets the whole cluster.
    Jobs that never ran, and lines about parts of a job, are left out; jobs that failed in the trace
    fail again. UsageError names an invalid line.
    """
    users, clusters = _users_and_clusters(scenario)
    planned: list[PlannedJob] = []
    number_of: dict[float, int] = {}
    for job in _jobs(trace):
        cluster = [*clusters][len(planned) % len(clusters)]
        nodes = clusters[cluster].static_nodes()
        tasks = max(1, min(job.processors, sum(nodes.values())))
        number_of[job.number] = len(planned)
        planned.append(
            PlannedJob(
                len(planned),
                job.submit_time / speed,
                cluster,
                users[int(job.user) % len(users)],
                f"sleep {job.run_time / speed:.2f}" + ("; exit 1" if job.failed else ""),
                (f"--ntasks={tasks}",),
                ends="FAILED" if job.failed else "COMPLETED",
                after=number_of.get(job.preceding_job),
            )
        )
    if not planned:
        raise UsageError("the trace has no job that ran")
    first = min(job.at for job in planned)
    return sorted(
        (replace(job, at=round(job.at - first, 3)) for job in planned),
        key=lambda job: (job.at, job.number),
    )


def _jobs(trace: str) -> Iterator[SwfJob]:
    """Yield the jobs of a trace that ran; UsageError names a line that is not a job."""
    for place, line in enumerate(trace.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith(";"):
            continue
        try:
            job = swf.parse(line)
        except ValueError as error:
            raise UsageError(
                f"line {place} of the trace is not a job: {line.strip()[:60]} ({error})",
                hint=_FORMAT,
            ) from None
        if job.ran and not job.is_part:
            yield job


def _users_and_clusters(scenario: Scenario) -> tuple[list[str], dict[str, Cluster]]:
    clusters = {
        name: cluster for name, cluster in scenario.clusters.items() if cluster.static_nodes()
    }
    users = [
        name
        for name in scenario.users
        if not scenario.accounting
        or all(part.users[name].accounts for part, _ in scenario.accounting_trees())
    ]
    if not users or not clusters:
        raise UsageError(
            "a workload needs users and static nodes",
            hint="add `users:` with `accounts:`, or nodes without `provision:`",
        )
    return users, clusters
