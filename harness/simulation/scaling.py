"""Fit a trace to the cluster that simulates it, and note what changes. Pure."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Literal

from harness.parsing import hostlist
from harness.scenario.model import Scenario
from harness.simulation.generator import work
from harness.simulation.trace import Trace, TraceJob

# How a trace of a larger system is fitted: jobs become smaller, or fewer.
By = Literal["nodes", "sampling"]
_MOST_NAMES = 10  # in a note
# If the size of a system is unknown, a job is taken for an error if it is _TOO_LARGE times as large
# as all smaller jobs that ran at once, but at most one job in _ONE_ERROR_IN.
_ONE_ERROR_IN, _TOO_LARGE = 100, 10


@dataclass(frozen=True, slots=True)
class Target:
    """What a cluster offers to the jobs of a trace.

    `users` are pairs of user and default account; `accounts` has all accounts of each user. `gres`
    are names, with and without their types. `memory` is that of the largest node, in MiB.
    """

    nodes: int
    cpus: int
    cpus_per_node: int  # of the largest node
    users: tuple[tuple[str, str | None], ...]
    partitions: tuple[str, ...] = ()
    qos: frozenset[str] = frozenset()
    gres: frozenset[str] = frozenset()
    features: frozenset[str] = frozenset()
    licenses: frozenset[str] = frozenset()
    memory: int | None = None
    accounts: tuple[tuple[str, tuple[str, ...]], ...] = ()


def target_of(scenario: Scenario, cluster: str) -> Target:
    """Return what a cluster of a scenario offers."""
    scenario = scenario.of_cluster(cluster)
    part = scenario.clusters[cluster]
    sizes = [(hostlist.count(group.name), group.counted_cpus()) for group in part.nodes]
    users = scenario.users.items()
    options = {name.lower(): str(value) for name, value in part.options.items()}
    gres = [gres.split(":") for group in part.nodes for gres in group.gres]
    return Target(
        nodes=sum(count for count, _ in sizes),
        cpus=sum(count * cpus for count, cpus in sizes),
        cpus_per_node=max(cpus for _, cpus in sizes),
        users=tuple((name, next(iter(user.accounts), None)) for name, user in users),
        partitions=tuple(
            sorted(part.partitions, key=lambda name: not part.partitions[name].default)
        ),
        qos=frozenset({"normal", *scenario.accounting.qos}) if scenario.accounting else frozenset(),
        gres=frozenset(":".join(words[:length]) for words in gres for length in (1, 2)),
        features=frozenset(feature for group in part.nodes for feature in group.features),
        licenses=frozenset(re.findall(r"([\w.@-]+)(?::\d+)?", options.get("licenses", ""))),
        memory=max(group.memory for group in part.nodes),
        accounts=tuple((name, user.accounts) for name, user in users),
    )


def fit(trace: Trace, target: Target, *, by: By = "nodes", seed: int = 1) -> Trace:
    """Return a trace that a cluster can simulate, with notes on everything that changed.

    If it was recorded on a larger system, it is scaled down, and the load stays the same: by nodes,
    jobs request less, and some small ones are left out; by sampling, only some jobs remain,
    unchanged. What the cluster does not have is replaced: unknown users and partitions by those of
    the cluster, in turn, the busiest first; unknown accounts by the user's default; other unknown
    resources are not requested. Jobs that do not fit the nodes are left out.
    """
    notes = [*trace.notes]
    if _system(trace)[0] > target.cpus:
        trace = replace(trace, jobs=tuple(_plausible(trace, notes)))
    source, size = _system(trace)
    jobs: Sequence[TraceJob] = trace.jobs
    if source > target.cpus:
        before = _load(jobs, source)
        random = Random(seed)  # noqa: S311
        if by == "sampling":
            jobs = _sampled(jobs, target.cpus / source, random)
        else:
            jobs = _shrunk(trace, target, source, random)
        notes.append(
            f"scaled by {by} from {size} to {target.cpus} CPUs: {len(jobs)} of {len(trace.jobs)} "
            f"jobs, load {before:.2f} before and {_load(jobs, target.cpus):.2f} after"
        )
    jobs = _with_known_names(jobs, target, notes)
    return replace(trace, jobs=tuple(_fitting(jobs, target, notes)), notes=tuple(notes))


def _system(trace: Trace) -> tuple[int, str]:
    """Return the number of CPUs of the system that a trace was recorded on, and its description."""
    if trace.cpus:
        return trace.cpus, f"{trace.cpus} CPUs"
    if all(job.recorded_wait is None for job in trace.jobs):  # there may be a queue
        most = max((job.cpus for job in trace.jobs), default=0)
        return most, f"a system of unknown size, whose largest job has {most} CPUs,"
    most = _peak_cpus(trace.jobs)
    return most, f"a system of unknown size, which used at most {most} CPUs at once,"


def _peak_cpus(jobs: Iterable[TraceJob]) -> int:
    """Return the largest number of CPUs that jobs used at once; unknown waits count as none."""
    changes: list[tuple[float, int]] = []
    for job in jobs:
        start = job.submit + (job.recorded_wait or 0)
        changes += [(start, job.cpus), (start + max(job.run_time, 1), -job.cpus)]
    most = used = 0
    for _, cpus in sorted(changes):  # ends first
        used += cpus
        most = max(most, used)
    return most


def _plausible(trace: Trace, notes: list[str]) -> list[TraceJob]:
    """Return the jobs that fit the system of a trace: Slurm would have refused the others.

    A wrong number of nodes or CPUs in a single job would otherwise shrink all the others.
    """
    most = trace.cpus or _largest(trace.jobs)

    def is_plausible(job: TraceJob) -> bool:
        return job.cpus <= most and (job.nodes or 1) <= (trace.nodes or most)

    if wrong := [job for job in trace.jobs if not is_plausible(job)]:
        shown = ", ".join(f"{job.id}: {job.cpus} CPUs" for job in wrong[:_MOST_NAMES])
        system = "with its" if trace.cpus else "whose other jobs need at most"
        notes.append(
            f"too large for the system that the trace was recorded on, {system} {most} CPUs, left "
            f"out: {len(wrong)} jobs (such as {shown})"
        )
    return _without_missing([job for job in trace.jobs if is_plausible(job)])


def _largest(jobs: Sequence[TraceJob]) -> int:
    """Return the CPUs of the largest job, except those that can only be errors."""
    ordered = sorted(jobs, key=lambda job: job.cpus)
    suspects = max(1, len(ordered) // _ONE_ERROR_IN)
    for index in range(max(1, len(ordered) - suspects), len(ordered)):
        smaller, cpus = ordered[:index], ordered[index].cpus
        if cpus > _TOO_LARGE * smaller[-1].cpus and cpus > _TOO_LARGE * _peak_cpus(smaller):
            return smaller[-1].cpus
    return ordered[-1].cpus if ordered else 0


def _load(jobs: Sequence[TraceJob], cpus: int) -> float:
    """Return the CPU time of jobs, relative to that of the CPUs until the last submission."""
    seconds = max((job.submit for job in jobs), default=0.0) or 1.0
    return sum(map(work, jobs)) / (cpus * seconds)


def _sampled(jobs: Sequence[TraceJob], factor: float, random: Random) -> list[TraceJob]:
    """Return some of the jobs, chosen evenly by their work, so that the load stays the same.

    Elements of an array, and jobs that depend on one another, stay together.
    """
    group_of: dict[str, str] = {}
    works: Counter[str] = Counter()
    for job in jobs:
        own = job.array or job.id
        group = next((group_of[name] for name in [own, *_needed(job)] if name in group_of), own)
        group_of |= {job.id: group, own: group}
        works[group] += work(job)  # type: ignore[assignment]
    offset = random.random()
    chosen = {
        group
        for rank, group in enumerate(sorted(works, key=lambda group: (works[group], group)))
        if math.floor(rank * factor + offset) < math.floor((rank + 1) * factor + offset)
    }
    return _without_missing([job for job in jobs if group_of[job.id] in chosen])


def _shrunk(trace: Trace, target: Target, source: int, random: Random) -> list[TraceJob]:
    """Return jobs that request fewer CPUs, with the same load; few jobs with few CPUs remain."""
    factor = target.cpus / source
    node_factor = min(target.nodes / trace.nodes, 1.0) if trace.nodes else None
    jobs = []
    for job in trace.jobs:
        # On average, rounding changes nothing; a job that is rounded to no CPUs is left out.
        cpus = math.floor(job.cpus * factor + random.random())
        if cpus == 0:
            continue
        cpus_per_task = job.cpus_per_task if cpus % job.cpus_per_task == 0 else 1
        nodes = job.nodes
        if nodes is not None:
            fewest = math.ceil(cpus / target.cpus_per_node)
            wanted = math.floor(nodes * node_factor + random.random()) if node_factor else 0
            nodes = min(max(fewest, wanted), cpus // cpus_per_task)
        tasks = cpus // cpus_per_task
        jobs.append(replace(job, nodes=nodes, tasks=tasks, cpus_per_task=cpus_per_task))
    return _without_missing(jobs)


def _without_missing(jobs: Sequence[TraceJob]) -> list[TraceJob]:
    """Return jobs without dependencies on jobs that are not among them."""
    names = {job.id for job in jobs} | {job.array for job in jobs}
    return [job if {*_needed(job)} <= names else replace(job, dependency=None) for job in jobs]


def _needed(job: TraceJob) -> list[str]:
    """Return the jobs and arrays that a job depends on."""
    return re.findall(r":([\w.]+)", job.dependency or "")


def _with_known_names(jobs: Sequence[TraceJob], target: Target, notes: list[str]) -> list[TraceJob]:
    """Return jobs that request only what the cluster has."""
    users = _users(jobs, target, notes)
    partitions = _replacements(
        "partitions", _weights(jobs, lambda job: job.partition), target.partitions, notes
    )
    accounts = {user: {*names} for user, names in target.accounts}
    defaults = dict(target.users)
    dropped: Counter[str] = Counter()

    def if_known(what: str, value: str | None, known: Iterable[str], words: str) -> str | None:
        """Return a value; None if it has words that the cluster does not know."""
        if value is None or {*re.findall(words, value)} <= {*known}:
            return value
        dropped[f"{what} {value}"] += 1
        return None

    fitted = []
    for job in jobs:
        user = users.get(job.user, job.user)
        account = job.account if job.account in accounts.get(user, ()) else defaults.get(user)
        if job.account and user == job.user and account != job.account:
            dropped[f"account {job.account}"] += 1
        memory = job.memory_per_node
        if target.memory and memory and memory > target.memory:
            dropped[f"memory beyond {target.memory} MiB per node"] += 1
            memory = target.memory
        fitted.append(
            replace(
                job,
                user=user,
                account=account,
                partition=partitions.get(job.partition, job.partition) if job.partition else None,
                qos=if_known("QOS", job.qos, target.qos, r"\S+"),
                gres=if_known(
                    "GRES", job.gres, target.gres, r"(?:^|,)(?:gres/)?([^,]+?)(?::\d+)?(?=,|$)"
                ),
                constraint=if_known(
                    "constraint", job.constraint, target.features, r"(?<!\*)\b[A-Za-z_][\w.-]*"
                ),
                licenses=if_known(
                    "license", job.licenses, target.licenses, r"(?:^|[,|])([\w.@-]+)"
                ),
                memory_per_node=memory,
                memory_per_cpu=_capped_memory(job, target, dropped),
            )
        )
    notes += [
        f"not requested, as the cluster does not have it: {what} ({count} jobs)"
        for what, count in dropped.most_common(_MOST_NAMES)
    ]
    if len(dropped) > _MOST_NAMES:
        notes.append(f"not requested either: {len(dropped) - _MOST_NAMES} further values")
    return fitted


def _capped_memory(job: TraceJob, target: Target, dropped: Counter[str]) -> int | None:
    """Return a job's memory per CPU, at most what the largest node has per CPU."""
    most = target.memory and target.memory // target.cpus_per_node
    if most and job.memory_per_cpu and job.memory_per_cpu > most:
        dropped[f"memory beyond {most} MiB per CPU"] += 1
        return most
    return job.memory_per_cpu


def _weights(
    jobs: Sequence[TraceJob], name_of: Callable[[TraceJob], str | None]
) -> dict[str, float]:
    """Return the work of the jobs with each name, the largest first."""
    weights: Counter[str] = Counter()
    for job in jobs:
        if name := name_of(job):
            weights[name] += work(job)  # type: ignore[assignment]
    return dict(sorted(weights.items(), key=lambda item: (-item[1], item[0])))


def _users(jobs: Sequence[TraceJob], target: Target, notes: list[str]) -> dict[str, str]:
    names = [user for user, _ in target.users]
    return _replacements("users", _weights(jobs, lambda job: job.user), names, notes)


def _replacements(
    what: str, weights: Iterable[str], known: Sequence[str], notes: list[str]
) -> dict[str, str]:
    """Return a known name for each unknown one, in turn."""
    unknown = [name for name in weights if name not in known]
    if not known or not unknown:
        return {}
    names = {name: known[number % len(known)] for number, name in enumerate(unknown)}
    shown = ", ".join(f"{name} is {names[name]}" for name in unknown[:_MOST_NAMES])
    more = f", and {len(unknown) - _MOST_NAMES} more" if len(unknown) > _MOST_NAMES else ""
    notes.append(f"{len(unknown)} unknown {what} replaced: {shown}{more}")
    return names


def _fitting(jobs: Sequence[TraceJob], target: Target, notes: list[str]) -> list[TraceJob]:
    """Return the jobs that the nodes can hold."""

    def fits(job: TraceJob) -> bool:
        return (
            job.cpus <= target.cpus
            and (job.nodes or 1) <= target.nodes
            and job.cpus_per_task <= target.cpus_per_node
            and (job.nodes is None or job.cpus <= job.nodes * target.cpus_per_node)
        )

    kept = [job for job in jobs if fits(job)]
    if left_out := len(jobs) - len(kept):
        names = ", ".join([job.id for job in jobs if not fits(job)][:_MOST_NAMES])
        notes.append(f"more than the nodes can hold, left out: {left_out} jobs (such as {names})")
    return _without_missing(kept)
