"""What must be true of a rehearsal, judged from what was seen of it and from nothing else.

Every checker is a function of a history: it can be asked again, of an old run's directory, on another machine. Where
evidence is missing nothing can be said. What Slurm does not promise is excused, and told all the same.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

from pydantic import TypeAdapter, ValidationError

from harness import options
from harness.conf import number
from harness.errors import CannotJudge
from harness.events import what_is_wrong
from harness.plan import Plan
from harness.report import FAILED, PASSED, UNKNOWN
from harness.scenario import Accounting
from harness.slurm import FINISHED, Job, Record, Usage, origin_id
from harness.witness import Witness, compare

# Seconds for which slurmctld keeps to itself what it has learned (SAVE_MAX_WAIT in its state_save.c); a kill loses it.
UNSAVED = 5
# Seconds by which accounting's times and the job's may differ: many jobs start at once, on a busy machine.
TOLERANCE = 5
# Seconds that a message for slurmdbd may wait behind others.
_BACKLOG = 60
# Seconds for which a sibling that did not answer may hold up slurmctld after its fault is healed:
# MessageTimeout twice, for the call and for the connection that is opened again.
_HELD_UP = 20
# NO_VAL of slurm.h: while slurmdbd is down 22.05 writes a record without an id for a copy that it revokes.
_NO_ID = 0xFFFFFFFE
_UNSAVED = f"slurmctld was killed within {UNSAVED} s of it, before it had to have saved it"
SKIPPED = "skipped"
# Reasons of squeue for a job whose nodes a reservation has: select_nodes() in Slurm's node_scheduler.c.
_RESERVED = re.compile("May be reserved|Reserved for maintenance|^Reservation$")
# PriorityDecayHalfLife of at least a day, or none: what was used does not decay much within a rehearsal.
_SLOW_DECAY = re.compile(r"0|[1-9]\d*-.*")
# Log lines that show a known fault of Slurm, by daemon. slurmd: it connected to a starting slurmstepd between its
# bind() and its listen(), in _create_socket(), and took it for dead (_step_connect() in stepd_api.c). slurmdbd:
# proc_req() ignores that the commit failed.
SYMPTOMS = {"slurmd": "Purging vestigial job script", "slurmdbd": "commit failed"}
_PURGED = "known fault of Slurm: slurmd took the slurmstepd that started for a dead one, and removed the job's script"
_COMMIT_FAILED = "the database was killed before slurmdbd had committed the rest, and slurmdbd ignores that"
# What accounting says of a run that came to no end of its own.
_KILLED = {"REQUEUED", "NODE_FAIL", "PREEMPTED"}


@dataclass(frozen=True, slots=True)
class Submission:
    """What a user asked for and was answered. `asked` and `answered` are seconds since 1970."""

    name: str
    cluster: str
    user: str
    tasks: int
    ends: str
    answer: str
    job_id: int | None
    asked: float
    answered: float


@dataclass(frozen=True, slots=True)
class FaultSeen:
    """A fault that is to be injected (`inject`), has been, or was healed; `at` is in seconds since 1970."""

    at: float
    action: str
    fault: str


@dataclass
class History:
    """All that was seen of one rehearsal."""

    plan: Plan
    submissions: list[Submission] = field(default_factory=list)
    witnesses: list[Witness] = field(default_factory=list)
    queue: dict[str, list[Job]] = field(default_factory=lambda: defaultdict(list))
    records: list[Record] = field(default_factory=list)
    usage: dict[str, list[Usage]] = field(default_factory=lambda: defaultdict(list))
    faults: list[FaultSeen] = field(default_factory=list)
    past: dict[str, list[tuple[str, ...]]] = field(default_factory=lambda: defaultdict(list))
    reservations: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    missing: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    log: list[str] = field(default_factory=list)

    @property
    def accepted(self) -> list[Submission]:
        """The submissions that got a job id."""
        return [one for one in self.submissions if one.answer == "accepted"]

    def federated(self, cluster: str) -> tuple[str, ...]:
        """Return the members of a cluster's federation; none outside of federations."""
        federations = self.plan.scenario.federations.values()
        return next((federation.clusters for federation in federations if cluster in federation.clusters), ())

    def kills(self, cluster: str) -> list[tuple[float, float]]:
        """Return the spans in which a slurmctld of a cluster lost what it had not saved."""
        part = self.plan.scenario.clusters[cluster]
        lossy = {
            text
            for host in (part.controller, *part.backup_controllers)
            for text in (f"kill-daemon {host} slurmctld", f"kill-host {host}", f"reboot-host {host}")
        }
        return self.injected(lossy)

    def injected(self, faults: set[str]) -> list[tuple[float, float]]:
        """Return from when to when each of these faults was being injected."""
        spans: list[tuple[float, float]] = []
        for fault in faults:
            for one in self.faults:
                if one.fault == fault and one.action == "inject":
                    spans.append((one.at, one.at))
                elif one.fault == fault and one.action == "injected" and spans:
                    spans[-1] = (spans[-1][0], one.at)
        return spans

    def purged(self, job_id: int) -> bool:
        """Tell whether a slurmd removed a job's script while the job started."""
        script = re.compile(rf"{SYMPTOMS['slurmd']} \S*/job0*{job_id}/")
        return any(script.search(line) for line in self.log)

    def uncommitted(self, at: float) -> bool:
        """Tell whether slurmdbd may have lost what happened at a time: the database was killed, and a commit failed."""
        failed = any(SYMPTOMS["slurmdbd"] in line for line in self.log)
        return failed and any(since - _BACKLOG <= at <= until + 1 for since, until in self.database_kills())

    def database_kills(self) -> list[tuple[float, float]]:
        """Return the spans in which the database was killed."""
        hosts = {host.name for host in self.plan.with_daemon("mariadb")}
        return self.injected({text for host in hosts for text in (f"kill-daemon {host} mariadb", f"kill-host {host}")})

    def unsaved(self) -> set[str]:
        """Return the jobs of which a slurmctld learned something that it need not have saved before it was killed."""
        # A job that slurmctld has started begins a little later.
        learned = [(one.name, one.cluster, one.answered, 1) for one in self.accepted]
        learned += [(run.name, run.cluster, run.start, TOLERANCE) for run in self.witnesses]
        learned += [(run.name, run.cluster, run.end, 1) for run in self.witnesses if run.end is not None]
        kills = {cluster: self.kills(cluster) for cluster in self.plan.scenario.clusters}
        found = {
            name
            for name, cluster, at, late in learned
            if any(since - UNSAVED <= at <= until + late for since, until in kills[cluster])
        }
        # An id that is given again brings whoever gets it into trouble, too.
        given_again = {(one.cluster, one.job_id) for one in self.accepted if one.name in found}
        return found | {one.name for one in self.accepted if (one.cluster, one.job_id) in given_again}

    def struck(self, cluster: str) -> list[tuple[float, float]]:
        """Return begin and end of each fault of a cluster's controller or site; inf if it was not healed."""
        hosts = {self.plan.scenario.clusters[cluster].controller, self.plan.scenario.clusters[cluster].site}
        began: dict[str, float] = {}
        spans = []
        for one in self.faults:
            if not hosts & {*one.fault.split()[1:]}:
                continue
            if one.action == "inject":
                began[one.fault] = one.at
            elif one.action == "heal":
                spans.append((began.pop(one.fault, one.at), one.at))
        return spans + [(at, math.inf) for at in began.values()]

    def away(self, cluster: str, since: float, until: float) -> bool:
        """Tell whether at some time a cluster's slurmctld was down, or was cut off from others."""
        return any(began <= until and healed >= since - UNSAVED for began, healed in self.struck(cluster))

    def held_up_by(self, cluster: str, since: float, until: float) -> str:
        """Return the sibling whose fault may have held up a cluster all that time; "" if none."""
        for sibling in self.federated(cluster):
            spans = self.struck(sibling) if sibling != cluster else []
            if any(began <= since and until <= healed + _HELD_UP for began, healed in spans):
                return sibling
        return ""

    def waits(self, job_id: int) -> tuple[str, str]:
        """Return the cluster on which a job waits, and squeue's reason for it; "" if it waits nowhere."""
        waiting = (
            (cluster, job.reason.replace("_", " "))
            for cluster, jobs in self.queue.items()
            for job in jobs
            if job.job_id == job_id and job.state == "PENDING"
        )
        return next(waiting, ("", ""))

    def ended(self, one: Submission) -> float:
        """Return when the last run of an accepted job ended, or else when the job was accepted."""
        runs = [run.end or run.start for run in self.witnesses if run.name == one.name]
        return max(runs, default=one.answered)

    def final(self) -> dict[str, dict[int, Record | Job]]:
        """Return by name and id what is said last of each job: of where it ran, if it ran anywhere."""
        found: dict[str, dict[int, Record | Job]] = defaultdict(dict)
        if not self.plan.scenario.accounting:
            for job in (job for jobs in self.queue.values() for job in jobs if job.state != "REVOKED"):
                found[job.name][job.job_id] = job
            return found
        last: dict[tuple[str, int, str], Record] = {}
        for record in sorted(self.records, key=lambda record: (record.submit or 0, record.start or 0)):
            last[record.name, record.job_id, record.cluster] = record
        for record in sorted(last.values(), key=lambda record: (_has_run(record), record.submit or 0)):
            if record.state != "REVOKED":
                found[record.name][record.job_id] = record
        return found


@dataclass(frozen=True, slots=True)
class Finding:
    """What a checker says. `problems` are why it failed, or what it is that is not known; `excused` is Slurm's way."""

    name: str
    outcome: str
    problems: tuple[str, ...] = ()
    excused: tuple[str, ...] = ()


def _has_run(record: Record) -> bool:
    """Tell whether a record is of a run; 22.05 gives a start to copies that were cancelled while they waited, too."""
    return bool(record.start) and record.node_list not in {"", "None assigned"}


class Problem(NamedTuple):
    """What is wrong, and with which of the rehearsal's jobs ("": with none of them alone)."""

    job: str
    text: str
    excuse: str = ""


Checker = Callable[[History], Iterator[Problem]]
CHECKERS: dict[str, tuple[Checker, tuple[str, ...], Callable[[History], Any]]] = {}


def checker(*evidence: str, wanted: Callable[[History], Any] = lambda history: True) -> Callable[[Checker], Checker]:
    """Make a function one of the checkers; it needs all `evidence`, and is `wanted` for some histories only."""

    def add(function: Checker) -> Checker:
        CHECKERS[function.__name__] = (function, evidence, wanted)
        return function

    return add


def judge(history: History) -> list[Finding]:
    """Return what every checker says of a history."""
    found = []
    unsaved = history.unsaved()
    for name, (function, evidence, wanted) in CHECKERS.items():
        if not wanted(history):
            found.append(Finding(name, SKIPPED))
            continue
        told = [(one, one.excuse or (_UNSAVED if one.job in unsaved else "")) for one in function(history)]
        problems = tuple(one.text for one, excuse in told if not excuse)
        excused = tuple(f"{one.text}: {excuse}" for one, excuse in told if excuse)
        missing = tuple(f"no {of} {why}" for of in (*evidence, "run") for why in history.missing.get(of, ()))
        if not history.accepted:
            missing = ("no job was accepted", *missing)
        elif not problems and not history.witnesses:
            missing = ("no job ran", *missing)
        outcome = FAILED if problems and not missing else UNKNOWN if missing else PASSED
        found.append(Finding(name, outcome, missing or problems, excused))
    return found


def verdict(findings: Iterable[Finding]) -> str:
    """Return the verdict over all: one that failed decides; without one, whatever is not known does."""
    outcomes = {one.outcome for one in findings}
    return FAILED if FAILED in outcomes else UNKNOWN if UNKNOWN in outcomes else PASSED


def read(events: Iterable[Mapping[str, Any]], plan: Plan) -> History:
    """Read the last rehearsal from a run's events; CannotJudge if there is none, or if an event cannot be one of it."""
    history, ended = None, False
    for place, event in enumerate(events, 1):
        kind = event["kind"]
        if kind == "rehearsal":
            ended = event["action"] == "end"
            history = history if ended else History(plan)
        elif history is not None and not ended:
            try:
                _add(history, kind, event)
            except ValueError as error:
                problem = what_is_wrong(error) if isinstance(error, ValidationError) else str(error)
                raise CannotJudge(f"event {place}, {kind}: {problem}", hint="events.jsonl is damaged") from error
    if history is None:
        raise CannotJudge("there was no rehearsal", hint="harness rehearse")
    if not ended:
        history.missing["run"].append("to its end: the rehearsal did not come to its end")
    return history


def _add(history: History, kind: str, event: Mapping[str, Any]) -> None:
    """Add an event; ValueError if a field is missing or wrong, or the cluster is not in the plan."""
    about = [str(event["cluster"])] if kind in {"submission", "witness", "record"} and event.get("cluster") else []
    about += [event["seen_by"]] if kind in {"queue", "usage"} else []
    if strangers := [name for name in about if name not in history.plan.scenario.clusters]:
        raise ValueError(f"the scenario has no cluster {strangers[0]}")
    if kind == "submission":
        history.submissions.append(_make(Submission, event))
    elif kind == "fault":
        history.faults.append(
            FaultSeen(datetime.fromisoformat(event["time"]).timestamp(), event["action"], event["fault"])
        )
    elif kind == "witness":
        witness = _make(Witness, event)
        if len(witness.nodes) != len(witness.cpus):
            raise ValueError(f"{len(witness.nodes)} nodes, but CPUs of {len(witness.cpus)}")
        history.witnesses.append(witness)
    elif kind == "queue":
        history.queue[event["seen_by"]].append(_make(Job, event))
    elif kind == "record" and event.get("job_id") != _NO_ID:
        history.records.append(_make(Record, event))
    elif kind == "usage":
        history.usage[event["seen_by"]].append(_make(Usage, event))
    elif kind == "reservation":
        history.reservations[event["cluster"]].append(event["name"])
    elif kind == "past":
        history.past[event["cluster"]].append(tuple(event["tables"]))
    elif kind == "log":
        history.log.append(event["line"])
    elif kind == "no_evidence":
        history.missing[event["of"]].append(f"of {event['where']}: {event['why'].partition(chr(10))[0]}")


Made = TypeVar("Made")
_ADAPTERS: dict[type, TypeAdapter[Any]] = {
    kind: TypeAdapter(kind) for kind in (Submission, Witness, Job, Record, Usage)
}


def _make(kind: type[Made], event: Mapping[str, Any]) -> Made:
    # Runs of older versions have not noted all that is noted today.
    names = {one.name for one in fields(kind)}  # type: ignore[arg-type]  # they are dataclasses
    adapter: TypeAdapter[Made] = _ADAPTERS[kind]
    return adapter.validate_python({name: value for name, value in event.items() if name in names})


@checker("queue", "record")
def no_accepted_job_is_lost(history: History) -> Iterator[Problem]:
    """Every job that was accepted has come to its end, all tasks of an array have."""
    final = history.final()
    for one in history.accepted:
        jobs = final.get(one.name, {})
        if len(jobs) < one.tasks:
            lost = f"{one.tasks - len(jobs)} of {one.tasks} are lost"
            yield Problem(one.name, f"job {one.job_id} ({one.name}) of {one.cluster}: {lost}")
        for job in jobs.values():
            if job.state not in FINISHED:
                cluster, reason = history.waits(job.job_id)
                why = f"{job.state} ({reason})" if reason else job.state
                text = f"job {job.job_id} ({one.name}) of {one.cluster} has not ended: {why}"
                excuse = _reserved(history, cluster, reason) or _end_uncommitted(history, job)
                yield Problem(one.name, text, excuse)


def _reserved(history: History, cluster: str, reason: str) -> str:
    """Return what excuses a job that waits: a reservation that the cluster had before the first job."""
    names = ", ".join(history.reservations[cluster])
    return f"{cluster} has reservations of its own: {names}" if names and _RESERVED.search(reason) else ""


def _end_uncommitted(history: History, job: Record | Job) -> str:
    """Return what excuses a record that says RUNNING of a job that has ended."""
    ends = [run.end for run in history.witnesses if (run.name, run.job_id) == (job.name, job.job_id)]
    lost = all(end is not None and history.uncommitted(end) for end in ends)
    return _COMMIT_FAILED if ends and lost and isinstance(job, Record) and job.state == "RUNNING" else ""


@checker("queue", "record")
def jobs_end_as_they_should(history: History) -> Iterator[Problem]:
    """A job that can only succeed is COMPLETED, one that can only fail is FAILED."""
    final = history.final()
    for one in history.accepted:
        for job in final.get(one.name, {}).values():
            if job.state in FINISHED and job.state != one.ends:
                text = f"job {job.job_id} ({one.name}) of {one.cluster} ended {job.state}, should end {one.ends}"
                yield Problem(one.name, f"{text}; {_PURGED}" if history.purged(job.job_id) else text)


@checker("witness")
def no_job_runs_twice(history: History) -> Iterator[Problem]:
    """No job runs twice at once, and twice at all only if it was requeued in between."""
    for name, runs in _executions(history).items():
        for before, after in pairwise(sorted(runs, key=lambda run: (run.start, run.restarts))):
            if before.end is not None and before.end > after.start:
                yield Problem(after.name, f"{name} ran twice at once, on {before.host} and {after.host}")
            elif after.restarts <= before.restarts:
                text = f"{name} ran twice, on {before.host} and {after.host}, and was not requeued"
                yield Problem(after.name, text + _sent_twice(history, before))


def _sent_twice(history: History, run: Witness) -> str:
    """Return what is known of a federation that was cut apart, if that is what had a job run twice."""
    asked = next((one for one in history.accepted if one.name == run.name), None)
    if asked is None or run.cluster == asked.cluster or not history.away(run.cluster, asked.asked, asked.answered):
        return ""
    return (
        f"; known fault of Slurm: what {asked.cluster} sends to {run.cluster} while they are cut off from one another "
        "it may send again when they are joined, also what has run by then"
    )


def _executions(history: History) -> dict[str, list[Witness]]:
    """Return all executions of each job and each task of an array."""
    found: dict[str, list[Witness]] = defaultdict(list)
    for one in history.witnesses:
        found[f"job {one.name}" + (f" task {one.task}" if one.task is not None else "")].append(one)
    return found


@checker("witness", "record")
def no_refused_job_runs(history: History) -> Iterator[Problem]:
    """A user who was told that a job is not accepted can rely on it."""
    refused = {one.name for one in history.submissions if one.answer == "refused"}
    # Without EnforcePartLimits a refused job leaves a record that it failed, though it never had a node.
    recorded = {one.name for one in history.records if _has_run(one) or one.state not in FINISHED}
    seen = recorded | {one.name for one in history.witnesses}
    for name in sorted(seen & refused):
        yield Problem("", f"{name} was refused, but there it is")


@checker()
def job_ids_are_unique(history: History) -> Iterator[Problem]:
    """No two accepted jobs have the same id; a federated one carries the id of the cluster that gave it."""
    given: dict[tuple[str, int | None], list[Submission]] = defaultdict(list)
    for one in history.accepted:
        members = history.federated(one.cluster)
        given["" if members else one.cluster, one.job_id].append(one)
        if members and members[origin_id(one.job_id or 0) - 1 :][:1] != (one.cluster,):
            yield Problem("", f"job {one.job_id} ({one.name}) was given by {one.cluster}, its id says another origin")
    for (_, job_id), ones in given.items():
        if len(ones) > 1:
            forgotten = history.unsaved() >= {one.name for one in ones[:-1]}
            text = f"id {job_id} was given to {', '.join(one.name for one in ones)}"
            yield Problem("", text, _UNSAVED if forgotten else "")


@checker("queue", "record", wanted=lambda history: history.plan.scenario.federations)
def siblings_are_revoked(history: History) -> Iterator[Problem]:
    """Of the copies of a federated job one runs, on one cluster; all others are REVOKED."""
    asked = {one.name: one for one in history.accepted}
    told: dict[str, Iterable[tuple[str, Job | Record]]] = {
        "slurmctld": [(cluster, job) for cluster, jobs in history.queue.items() for job in jobs],
        "accounting": [(record.cluster, record) for record in history.records],
    }
    for what, seen in told.items():
        copies: dict[tuple[str, int], dict[str, str]] = defaultdict(dict)
        for cluster, one in seen:
            if one.state != "REVOKED" and origin_id(one.job_id):
                copies[one.name, one.job_id][cluster] = one.state
        for (name, job_id), states in copies.items():
            if len(states) > 1:
                shown = ", ".join(f"{cluster} {state}" for cluster, state in sorted(states.items()))
                text = f"job {job_id} ({name}) has copies that are not revoked, says {what}: {shown}"
                submission = asked.get(name)
                excuse = _never_told(history, submission, states) or _script_lost(history, submission, states)
                if not excuse and what == "accounting":
                    excuse = _never_written(history, asked.get(name), states)
                yield Problem(name, text, excuse)


def _never_told(history: History, one: Submission | None, states: Mapping[str, str]) -> str:
    """Return what excuses copies that never run: their cluster was away when they were to be revoked."""
    forgotten = _forgotten(states)
    if one is None or not forgotten:
        return ""
    away = all(history.away(cluster, one.asked, history.ended(one)) for cluster in forgotten)
    return f"{', '.join(forgotten)} was away when the job began, and was not told" if away else ""


def _script_lost(history: History, submission: Submission | None, states: Mapping[str, str]) -> str:
    """Return what excuses copies that failed without having run.

    Their slurmctld removed the script of a revoked copy, and was killed before it had saved that: when it starts again
    the copy is pending, and fails for want of its script (_validate_job_files() in job_mgr.c).
    """
    failed = [cluster for cluster, state in states.items() if state == "FAILED"]
    if submission is None or len(failed) != len(states) - 1:
        return ""
    ran = {run.cluster for run in history.witnesses if run.name == submission.name}
    ended = history.ended(submission)
    if ran & {*failed} or not all(
        any(submission.asked <= until and since - UNSAVED <= ended for since, until in history.kills(cluster))
        for cluster in failed
    ):
        return ""
    return f"slurmctld of {', '.join(failed)} was killed before it had saved that the copy was revoked"


def _never_written(history: History, one: Submission | None, states: Mapping[str, str]) -> str:
    """Return what excuses records of copies that never ran: the database was killed when it was to write their end."""
    if one is None or not any(
        one.asked <= until and since <= history.ended(one) + _BACKLOG for since, until in history.database_kills()
    ):
        return ""
    forgotten = ", ".join(_forgotten(states))
    return (
        f"the database was killed before slurmdbd had written the end of the copy on {forgotten}" if forgotten else ""
    )


def _forgotten(states: Mapping[str, str]) -> list[str]:
    """Return the clusters whose copies did not run; none if more than one did."""
    found = [cluster for cluster, state in states.items() if state in {"CANCELLED", "PENDING"}]
    return found if len(states) - len(found) <= 1 else []


def _partition_options(plan: Plan) -> list[Mapping[str, Any]]:
    return [partition.options for part in plan.scenario.clusters.values() for partition in part.partitions.values()]


def _shares_cpus(plan: Plan) -> bool:
    options = (str(one.get("OverSubscribe", "")).upper() for one in _partition_options(plan))
    return any(one.startswith(("FORCE", "YES")) for one in options)


@checker("witness", wanted=lambda history: not _shares_cpus(history.plan))
def no_node_is_overcommitted(history: History) -> Iterator[Problem]:
    """The jobs that run on a node at a time have no more CPUs of it than it has."""
    spans: dict[tuple[str, str], list[tuple[float, float, int]]] = defaultdict(list)
    for one in history.witnesses:
        if one.end is not None:
            for node, cpus in zip(one.nodes, one.cpus, strict=True):
                spans[one.cluster, node].append((one.start, one.end, cpus))
    for (cluster, node), there in spans.items():
        capacity = history.plan.scenario.clusters[cluster].static_nodes().get(node)
        if capacity is not None and (most := _most(there)) > capacity:
            yield Problem("", f"jobs had {most} CPUs of {cluster}'s {node} at a time, it has {capacity}")


def _most(spans: Iterable[tuple[float, float, int]]) -> int:
    """Return the greatest sum of what spans (start, end, weight) have at a time."""
    changes = [change for start, end, weight in spans for change in ((start, 1, weight), (end, 0, -weight))]
    most = now = 0
    for _, _, weight in sorted(changes):
        now += weight
        most = max(most, now)
    return most


@checker("witness", "record", wanted=lambda history: history.plan.scenario.accounting)
def accounting_equals_the_witness(history: History) -> Iterator[Problem]:
    """Every execution has its record, which says what the job itself saw; no record tells of a run that was not."""
    hosts_of = {name: history.plan.hosts_of(name) for name in history.plan.scenario.clusters}
    told: dict[tuple[str, int], list[Record]] = defaultdict(list)
    for record in history.records:
        if record.state != "REVOKED" and _has_run(record):
            told[record.name, record.job_id].append(record)
    for one in sorted(history.witnesses, key=lambda run: run.start, reverse=True):
        # Of a job that ran more than once each run has a record: the one that began when it did.
        near = sorted(told[one.name, one.job_id], key=lambda record: abs((record.start or 0) - one.start))
        if not near:
            text = f"job {one.job_id} ({one.name}) has no record of its run on {one.host}"
            yield Problem(one.name, text, _written_over(history, one) or _start_uncommitted(history, one))
            continue
        told[one.name, one.job_id].remove(near[0])
        if near[0].state == "RUNNING" and _end_uncommitted(history, near[0]):
            continue  # see no_accepted_job_is_lost
        if near[0].state not in _KILLED:
            late = _noticed_late(history, one, near[0])
            seen = replace(one, end=near[0].end) if late else one
            for text in compare(seen, near[0], hosts_of[one.cluster], TOLERANCE):
                yield Problem(one.name, f"job {one.job_id} ({one.name}): {text}")
            if late:
                text = f"job {one.job_id} ({one.name}): ended at {one.end:.0f}, accounting says {near[0].end}"
                yield Problem(one.name, text, late)
    for (name, job_id), left in told.items():
        for record in left:
            if record.state == "COMPLETED":
                text = f"job {job_id} ({name}): accounting has a run on {record.node_list} that nobody saw"
                yield Problem(name, text)


def _written_over(history: History, one: Witness) -> str:
    """Return what excuses a run without a record: its job was requeued while slurmdbd was upgraded."""
    again = [run.start for run in history.witnesses if run.name == one.name and run.restarts > one.restarts]
    marks = {f"upgrade {host.name}" for host in history.plan.with_daemon("slurmdbd")}
    times = [fault.at for fault in history.faults if fault.fault in marks]
    if not again or not times or not (min(times) <= min(again) and one.start <= max(times)):
        return ""
    return "the job was requeued while slurmdbd was upgraded, and slurmctld gave both runs one record"


def _start_uncommitted(history: History, one: Witness) -> str:
    """Return what excuses a run whose job has a record of its end, but not of its start."""
    run = (one.name, one.job_id, one.cluster)
    ended = [
        record
        for record in history.records
        if (record.name, record.job_id, record.cluster) == run and record.state == "COMPLETED" and not record.start
    ]
    return _COMMIT_FAILED if ended and history.uncommitted(one.start) else ""


def _noticed_late(history: History, one: Witness, record: Record) -> str:
    """Return what excuses an end that is recorded late: slurmctld was away, or a sibling held it up."""
    if one.end is None or record.end is None or record.end <= one.end + TOLERANCE:
        return ""
    if history.away(one.cluster, one.end, one.end):
        return f"{one.cluster}'s slurmctld was away, and noticed it late"
    if sibling := history.held_up_by(one.cluster, one.end, record.end):
        return f"{one.cluster}'s slurmctld waited for {sibling}, which did not answer, and noticed it late"
    return ""


@checker(wanted=lambda history: history.past)
def old_records_are_kept(history: History) -> Iterator[Problem]:
    """What accounting had, before an upgrade, of jobs that had ended by then it has after it, and nothing else."""
    for cluster, (before, *later) in history.past.items():
        if later != [before]:
            told = f"they are {later[0]} (number and sum of jobs, of steps)" if later else "nobody saw them after it"
            yield Problem("", f"{cluster}: the records of ended jobs were {before} before the upgrade, {told}")


@checker("witness", wanted=lambda history: history.plan.scenario.accounting)
def limits_are_kept(history: History) -> Iterator[Problem]:
    """At no time more jobs run, on more CPUs, than QOS and accounts allow. Each cluster counts for itself."""
    accounting = _accounting(history.plan)
    for name, qos in accounting.qos.items():
        yield from _over(f"QOS {name}", qos.options, [one for one in history.witnesses if one.qos == name])
    for name, account in accounting.accounts.items():
        below = _below(accounting, name)
        yield from _over(f"account {name}", account.options, [one for one in history.witnesses if one.account in below])


def _has_usage(history: History) -> bool:
    """Tell whether fair-share counts; without priority/multifactor there is no usage to see."""
    nothing = history.accepted and not (history.usage or history.missing.get("usage"))
    return bool(history.plan.scenario.accounting and not nothing)


def _below(accounting: Accounting, name: str) -> set[str]:
    """Return an account and those below it."""
    children = [other for other, account in accounting.accounts.items() if account.parent == name]
    return {name}.union(*(_below(accounting, child) for child in children))


def _over(whose: str, options: Mapping[str, Any], ones: Iterable[Witness]) -> Iterator[Problem]:
    ended = [one for one in ones if one.end is not None]
    for option, limit in _limits(options):
        for (who, cluster), spans in _grouped(ended, per_user="PerUser" in option, cpus="TRES" in option):
            if (most := _most(spans)) > limit:
                what = f"{most} {'CPUs' if 'TRES' in option else 'jobs'} at a time on {cluster}"
                yield Problem("", f"{whose}{who}: {what}, {option} is {limit}")


def _accounting(plan: Plan) -> Accounting:
    if plan.scenario.accounting is None:
        raise ValueError("this checker is for scenarios with accounting")
    return plan.scenario.accounting


def _limits(options: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield the limits that count running jobs or their CPUs."""
    for option, value in options.items():
        if option in {"MaxJobsPerUser", "GrpJobs"}:
            limit = number(str(value))
            if limit is not None:
                yield option, limit
        elif option in {"GrpTRES", "MaxTRESPerUser"}:
            tres = {name: count for name, _, count in (one.partition("=") for one in str(value).split(","))}
            if (limit := number(tres.get("cpu", ""))) is not None:
                yield option, limit


def _grouped(
    ones: Iterable[Witness], *, per_user: bool, cpus: bool
) -> Iterable[tuple[tuple[str, str], list[tuple[float, float, int]]]]:
    spans: dict[tuple[str, str], list[tuple[float, float, int]]] = defaultdict(list)
    for one in ones:
        who = f" of {one.user}" if per_user else ""
        spans[who, one.cluster].append((one.start, one.end or one.start, sum(one.cpus) if cpus else 1))
    return spans.items()


@checker("usage", wanted=_has_usage)
def usage_of_an_account_is_that_of_its_parts(history: History) -> Iterator[Problem]:
    """Fair-share counts for an account what it counts for its users and the accounts below it."""
    for cluster, rows in history.usage.items():
        accounts = _accounting(history.plan).accounts
        if {row.account for row in rows} - {*accounts, "root"}:
            continue  # a site's own past has accounts whose parents nobody has told
        for name in accounts:
            parts = [row.seconds for row in rows if row.user and row.account == name]
            parts += [
                row.seconds for row in rows if not row.user and name == getattr(accounts.get(row.account), "parent", "")
            ]
            whole = sum(row.seconds for row in rows if not row.user and row.account == name)
            # Each is rounded by itself.
            if abs(whole - sum(parts)) > len(parts):
                yield Problem("", f"{cluster}: account {name} has used {whole} s, its parts {sum(parts)} s")


def _counted(plan: Plan) -> list[str]:
    """Return the clusters whose usage keeps what each job took.

    Where no limits are enforced, slurmctld does not count the end of a job (_adjust_limit_usage() in acct_policy.c): it
    counts running jobs every PriorityCalcPeriod, and short ones never. Some sites reset the usage, or let it decay
    within hours.
    """
    found = []
    for name in plan.clusters_with_limits():
        conf = options.slurm_conf(plan.scenario, name, plan.offers)
        reset = str(options.get(conf, "PriorityUsageResetPeriod") or "NONE").upper()
        if reset == "NONE" and _SLOW_DECAY.fullmatch(str(options.get(conf, "PriorityDecayHalfLife") or "7-0")):
            found.append(name)
    return found


def _counts_cpus(history: History) -> bool:
    weighed = any("TRESBillingWeights" in one for one in _partition_options(history.plan))
    return (
        _has_usage(history)
        and bool(_counted(history.plan))
        and not weighed
        and not any("UsageFactor" in qos.options for qos in _accounting(history.plan).qos.values())
    )


@checker("usage", "record", "witness", wanted=_counts_cpus)
def usage_is_that_of_the_jobs(history: History) -> Iterator[Problem]:
    """Fair-share counts for a user at least what the jobs of the rehearsal took; others of the run come on top."""
    cpus_of = {one.job_id: sum(one.cpus) for one in history.witnesses}
    for cluster in _counted(history.plan):
        used: Counter[tuple[str, str]] = Counter()
        for record in history.records:
            if record.cluster == cluster and record.job_id in cpus_of:
                used[record.account, record.user] += record.elapsed * cpus_of[record.job_id]
        for row in history.usage[cluster]:
            took = used[row.account, row.user]
            # What was used decays as time passes; within a rehearsal by much less than this.
            if row.user and row.seconds < 0.98 * took - 1:
                text = f"{cluster}: {row.user} in {row.account} has used {row.seconds} s, the jobs took {took} s"
                saved = not history.kills(cluster)
                yield Problem("", text, "" if saved else "slurmctld was killed before it had saved the rest")
