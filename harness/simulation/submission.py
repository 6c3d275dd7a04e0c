"""Turn the jobs of a trace into submissions, and check that a scenario's cluster knows them. Pure.

The elements of a job array are submitted together, as one array.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.errors import UsageError
from harness.parsing import hostlist
from harness.scenario import Cluster, Scenario
from harness.simulation.trace import Trace, TraceJob

# How many names or jobs an error lists.
_MANY = 5
_DEPENDENCY = re.compile(r"(afterany|afterok|afternotok|after|aftercorr):(.+)")


@dataclass(frozen=True, slots=True)
class Submission:
    """One call of sbatch, which submits a job, or the elements of a job array.

    `jobs` are its jobs in the trace by their index in the array, "" if it is no array. `after` are
    its dependencies: kind, key of an earlier submission, index in its array or "". `think_time` is
    how long its user waited after the end of these, 0 if the trace does not say.
    """

    key: str
    user: str
    options: tuple[str, ...]
    jobs: dict[str, TraceJob]
    after: tuple[tuple[str, str, str], ...]
    think_time: float = 0.0

    @property
    def submit(self) -> float:
        """When it is submitted, in seconds from the beginning of the trace."""
        return min(job.submit for job in self.jobs.values())


def submissions(trace: Trace) -> list[Submission]:
    """Return the submissions of a trace in the order of their times."""
    groups: dict[tuple[str, ...], list[TraceJob]] = {}
    for job in trace.jobs:
        group_key = ("array", job.array, *_options(job)) if job.array else ("job", job.id)
        groups.setdefault(group_key, []).append(job)
    places = {
        job.id: (str(number), "" if job.array is None else str(job.array_index))
        for number, group in enumerate(groups.values())
        for job in group
    }
    unordered = [
        Submission(
            key=str(number),
            user=group[0].user,
            options=(f"--job-name={number}", *_options(group[0]), *_array(group)),
            jobs={places[job.id][1]: job for job in group},
            after=tuple(_after(group[0], places, str(number))),
            think_time=group[0].think_time or 0.0,
        )
        for number, group in enumerate(groups.values())
    ]
    return sorted(unordered, key=lambda submission: (submission.submit, int(submission.key)))


def _options(job: TraceJob) -> tuple[str, ...]:
    """Return the options of sbatch for a job, except those of its array."""
    values: dict[str, object | None] = {
        "nodes": job.nodes,
        "ntasks": job.tasks,
        "cpus-per-task": job.cpus_per_task if job.cpus_per_task > 1 else None,
        "mem": None if job.memory_per_node is None else f"{job.memory_per_node}M",
        "time": None if job.limit is None else f"0:{job.limit}",
        "account": job.account,
        "partition": job.partition,
        "qos": job.qos,
        "gres": job.gres,
        "constraint": job.constraint,
        "licenses": job.licenses,
        "nice": job.nice or None,
    }
    options = [f"--{name}={value}" for name, value in values.items() if value is not None]
    return (*options, *(["--exclusive"] if job.exclusive else []))


def _array(group: Sequence[TraceJob]) -> list[str]:
    if group[0].array is None:
        return []
    indices = ",".join(str(index) for index in sorted(job.array_index or 0 for job in group))
    return [f"--array={indices}"]


def _after(
    job: TraceJob, places: dict[str, tuple[str, str]], own: str
) -> Iterable[tuple[str, str, str]]:
    """Yield the dependencies of a job on earlier submissions; those on other jobs are left out."""
    for part in (job.dependency or "").split(","):
        if match := _DEPENDENCY.fullmatch(part.strip()):
            for earlier in match[2].split(":"):
                key, index = places.get(earlier, ("", ""))
                if key and int(key) < int(own):
                    yield match[1], key, index


def must_fit(trace: Trace, scenario: Scenario) -> None:
    """Raise UsageError with what the jobs need and the scenario lacks.

    This names unknown users, accounts, partitions and QOS, and jobs that no nodes can hold.
    """
    ((name, cluster),) = scenario.clusters.items()
    if not trace.jobs:
        raise UsageError(
            f"{trace.source} has no job that {name} can run", hint="\n".join(trace.notes) or None
        )
    scenario = scenario.of_cluster(name)
    accounts = scenario.accounting.accounts if scenario.accounting else {}
    qos = {"normal", *(scenario.accounting.qos if scenario.accounting else ())}
    partitions = {*cluster.partitions} or {"ALL"}
    problems = [
        *_unknown("user", (job.user for job in trace.jobs), scenario.users),
        *_unknown("account", (job.account for job in trace.jobs), {*accounts, "root"}),
        *_unknown("partition", _partitions(trace), partitions),
        *_unknown("QOS", (job.qos for job in trace.jobs), qos),
        *_too_large(trace, cluster),
    ]
    if problems:
        raise UsageError(
            "\n".join([f"{trace.source} does not fit the scenario:", *problems]),
            hint="add what is missing to the scenario, or scale or change the trace",
        )


def _partitions(trace: Trace) -> Iterable[str | None]:
    for job in trace.jobs:
        yield from (job.partition or "").split(",") if job.partition else ()


def _unknown(kind: str, used: Iterable[str | None], known: Iterable[str]) -> list[str]:
    known = {*known}
    counts = Counter(name for name in used if name is not None and name not in known)
    if not counts:
        return []
    shown = [f"{name} ({count} jobs)" for name, count in counts.most_common(_MANY)]
    more = f" and {len(counts) - _MANY} more" if len(counts) > _MANY else ""
    return [f"unknown {kind}: {', '.join(shown)}{more}"]


def _too_large(trace: Trace, cluster: Cluster) -> list[str]:
    """Return the jobs that need more nodes, or larger nodes, than the cluster has."""
    sizes = [
        (group.counted_cpus(), group.memory)
        for group in cluster.nodes
        for _ in range(hostlist.count(group.name))
    ]
    too_large = []
    for job in trace.jobs:
        nodes = job.nodes or 1
        cpus = job.cpus_per_task * (-(-job.tasks // nodes) if job.nodes else 1)
        memory = job.memory_per_node or 0
        fitting = [size for size in sizes if size[0] >= job.cpus_per_task and size[1] >= memory]
        total = sum(size[0] for size in fitting)
        if len(fitting) < nodes or total < job.tasks * job.cpus_per_task:
            too_large.append(f"{job.id} (nodes {nodes}, CPUs per node {cpus}, memory {memory} MiB)")
    if not too_large:
        return []
    more = f" and {len(too_large) - _MANY} more" if len(too_large) > _MANY else ""
    return [f"too large for the nodes: {', '.join(too_large[:_MANY])}{more}"]
