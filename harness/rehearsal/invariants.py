"""What must hold after a rehearsal, checked from its recorded evidence alone.

Every checker is a function of a history: it can run again later, on another machine, from a run's
directory. If its evidence is missing, a checker's outcome is unknown. What Slurm does not promise
is excused, but still reported.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

from pydantic import TypeAdapter, ValidationError

from harness import releases, slurm_options
from harness.cluster.slurm import FINISHED, NO_NODES, Job, JobKey, Record, Usage, origin_id
from harness.errors import CannotVerify
from harness.events import what_is_wrong
from harness.parsing.conf import number
from harness.plan import Plan
from harness.report.verdict import FAILED, PASSED, UNKNOWN
from harness.scenario import Accounting
from harness.verify.job_trace import JobTrace
from harness.verify.trace_comparison import compare

# Seconds until slurmctld saves a change (SAVE_MAX_WAIT in its state_save.c); if it is killed before
# that, the change is lost.
UNSAVED = 5
# Seconds by which times in accounting and in the job's trace may differ on a busy machine.
TOLERANCE = 5
# Seconds for which a message for slurmdbd may be queued.
_BACKLOG = 60
# Seconds for which a sibling that does not answer may delay slurmctld after the sibling's fault is
# healed: MessageTimeout twice, for the call and for reopening the connection.
_DELAY = 20
# Seconds by which slurmctld may notice the end of a job late without any fault: a busy sibling may
# delay it by MessageTimeout.
_SLOW = 10 + TOLERANCE
# NO_VAL of slurm.h: while slurmdbd is down, 22.05 writes a record without an id for each copy that
# it revokes.
_NO_ID = 0xFFFFFFFE
_UNSAVED = f"slurmctld was killed within {UNSAVED} s of the change, before it had to save it"
SKIPPED = "skipped"
# squeue's reasons for a job whose nodes are reserved: select_nodes() in Slurm's node_scheduler.c.
_RESERVED = re.compile("May be reserved|Reserved for maintenance|^Reservation$")
# PriorityDecayHalfLife of at least a day, or none: usage hardly decays during a rehearsal.
_SLOW_DECAY = re.compile(r"0|[1-9]\d*-.*")
# Log lines that show a known bug in Slurm, by daemon. slurmd connected to a starting slurmstepd
# between the latter's bind() and listen(), in _create_socket(), and took it for dead
# (_step_connect() in stepd_api.c). slurmdbd's proc_req() ignores the result of a commit, which
# either fails or finds no connection: acct_storage_p_commit() first calls check_connection(), which
# replaces a broken connection and so gives up its transaction. slurmctld's _reconcile_fed_job()
# logs both lines when it forgets that it sent a copy of a job to a sibling.
SYMPTOMS = {
    "slurmctld": ("_reconcile_fed_job: didn't find JobId=", "is currently locked by sibling"),
    "slurmd": ("Purging vestigial job script",),
    "slurmdbd": ("commit failed", "unable to re-connect to as_mysql database"),
}
# What slurmctld logs repeatedly while it waits forever for its siblings: it mixes answers up if it
# has queried them twice in a second (schedule() and fed_mgr.c).
UNSYNCED = "federation siblings not synced yet"
_PURGED = "slurmd mistook a starting slurmstepd for a dead one, and removed the job's script"
_COMMIT_FAILED = (
    "the database was killed before slurmdbd had committed the rest, "
    "and slurmdbd ignores the failed commit"
)
# States in accounting of a run that did not end by itself.
_KILLED = {"REQUEUED", "NODE_FAIL", "PREEMPTED"}


@dataclass(frozen=True, slots=True)
class Submission:
    """A submission and its answer. `submitted` and `answered` are in seconds since 1970."""

    name: str
    cluster: str
    user: str
    tasks: int
    ends: str
    answer: str
    job_id: int | None
    submitted: float
    answered: float


@dataclass(frozen=True, slots=True)
class FaultSeen:
    """A step of a fault: injection begun (`inject`), injected, or healed.

    `at` is in seconds since 1970.
    """

    at: float
    action: str
    fault: str


@dataclass
class History:
    """The evidence of one rehearsal.

    `plan` describes the clusters at the end; `begun_on` has their releases at the start, if known.
    """

    plan: Plan
    begun_on: Mapping[str, str] = field(default_factory=dict)
    submissions: list[Submission] = field(default_factory=list)
    traces: list[JobTrace] = field(default_factory=list)
    queue: dict[str, list[Job]] = field(default_factory=lambda: defaultdict(list))
    records: list[Record] = field(default_factory=list)
    usage: dict[str, list[Usage]] = field(default_factory=lambda: defaultdict(list))
    faults: list[FaultSeen] = field(default_factory=list)
    old_records: dict[str, list[tuple[str, ...]]] = field(default_factory=lambda: defaultdict(list))
    reservations: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    missing: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    log: list[str] = field(default_factory=list)
    log_times: dict[JobKey, list[float]] = field(default_factory=dict)

    @property
    def accepted(self) -> list[Submission]:
        """The submissions that got a job id."""
        return [submission for submission in self.submissions if submission.answer == "accepted"]

    def federated(self, cluster: str) -> tuple[str, ...]:
        """Return the members of a cluster's federation; none outside of federations."""
        federations = self.plan.scenario.federations.values()
        return next(
            (federation.clusters for federation in federations if cluster in federation.clusters),
            (),
        )

    def kills(self, cluster: str) -> list[tuple[float, float]]:
        """Return the spans in which a slurmctld of a cluster lost unsaved state."""
        part = self.plan.scenario.clusters[cluster]
        lossy = {
            text
            for host in (part.controller, *part.backup_controllers)
            for text in (
                f"kill-daemon {host} slurmctld",
                f"kill-host {host}",
                f"reboot-host {host}",
            )
        }
        return self.injected(lossy)

    def injected(self, faults: set[str]) -> list[tuple[float, float]]:
        """Return the spans in which these faults were being injected."""
        spans: list[tuple[float, float]] = []
        for fault in faults:
            for seen in self.faults:
                if seen.fault == fault and seen.action == "inject":
                    spans.append((seen.at, seen.at))
                elif seen.fault == fault and seen.action == "injected" and spans:
                    spans[-1] = (spans[-1][0], seen.at)
        return spans

    def is_unsynced(self, cluster: str) -> bool:
        """Return whether a controller still waited for its siblings at the end."""
        return f"{cluster}: {UNSYNCED}" in self.log

    def purged(self, job_id: int) -> bool:
        """Return whether a slurmd removed a job's script while the job started."""
        script = re.compile(rf"{SYMPTOMS['slurmd'][0]} \S*/job0*{job_id}/")
        return any(script.search(line) for line in self.log)

    def forgot(self, job_id: int | None, sibling: str) -> bool:
        """Return whether a job's origin logged that it forgot the copy that it sent to a sibling.

        An array may be logged as 7_*, and its tasks as 7_1(8).
        """
        missing, removed = SYMPTOMS["slurmctld"]
        job = rf"JobId={job_id}(_\S+)?"
        lines = (
            rf"{missing.removesuffix('JobId=')}{job} on cluster {re.escape(sibling)}$",
            rf"origin {job} {removed}",
        )
        return all(any(re.search(line, logged) for logged in self.log) for line in lines)

    def forgotten_copy(self, cluster: str) -> int | None:
        """Return a pending copy that its origin forgot; slurmctld may start no job behind it."""
        copies = (
            job.job_id
            for job in self.queue.get(cluster, ())
            if job.state == "PENDING" and self.forgot(job.job_id, cluster)
        )
        return next(copies, None)

    def uncommitted(self, begin: float, end: float) -> bool:
        """Return whether slurmdbd may have lost an event that lies between two times.

        It may if the database was killed then, and slurmdbd logged that a commit failed.
        """
        failed = any(words in line for line in self.log for words in SYMPTOMS["slurmdbd"])
        return failed and any(
            self._queued_since(since) <= end and begin <= until + 1
            for since, until in self.database_kills()
        )

    def _queued_since(self, at: float) -> float:
        """Return when the oldest message for slurmdbd that may be queued at a time was sent.

        That is earlier if slurmdbd or its database has failed: slurmctld kept all messages since.
        """
        hosts = {
            host.name
            for daemon in ("slurmdbd", "mariadb")
            for host in self.plan.with_daemon(daemon)
        }
        spans = self.fault_spans(hosts)
        outages = [began for began, healed in spans if began <= at <= healed + _BACKLOG]
        return min([at - _BACKLOG, *(began - TOLERANCE for began in outages)])

    def database_kills(self) -> list[tuple[float, float]]:
        """Return the spans in which the database was killed."""
        hosts = {host.name for host in self.plan.with_daemon("mariadb")}
        return self.injected(
            {
                text
                for host in hosts
                for text in (f"kill-daemon {host} mariadb", f"kill-host {host}")
            }
        )

    def unsaved(self) -> set[str]:
        """Return the jobs whose last change slurmctld may not have saved before it was killed."""
        # Each change, and the span in which slurmctld may have learned of it: it accepts a job
        # before sbatch prints its id, and starts a job before its first line.
        changes = [
            (submission.name, submission.cluster, submission.submitted, submission.answered)
            for submission in self.accepted
        ]
        changes += [(run.name, run.cluster, *self._allocated(run)) for run in self.traces]
        changes += [
            (run.name, run.cluster, run.end, run.end) for run in self.traces if run.end is not None
        ]
        kills = {cluster: self.kills(cluster) for cluster in self.plan.scenario.clusters}
        names = {
            name
            for name, cluster, first, last in changes
            if any(
                since - UNSAVED <= last and first <= until + 1 for since, until in kills[cluster]
            )
        }
        # If an id was given to two jobs, both are affected.
        affected_ids = {
            (submission.cluster, submission.job_id)
            for submission in self.accepted
            if submission.name in names
        }
        return names | {
            submission.name
            for submission in self.accepted
            if (submission.cluster, submission.job_id) in affected_ids
        }

    def _allocated(self, run: JobTrace) -> tuple[float, float]:
        """Return the span in which slurmctld started a run; only its log has the exact time."""
        logged = [at for at in self.log_times.get(run.key, ()) if at <= run.start]
        return (max(logged), max(logged)) if logged else (run.start - TOLERANCE, run.start)

    def cluster_fault_spans(self, cluster: str) -> list[tuple[float, float]]:
        """Return the start and end of each fault of a cluster's controller or site.

        The end is math.inf if the fault was not healed.
        """
        part = self.plan.scenario.clusters[cluster]
        return self.fault_spans({part.controller, part.site})

    def fault_spans(self, hosts: Collection[str | None]) -> list[tuple[float, float]]:
        """Return the start and end of each fault of some hosts or sites.

        The end is math.inf if the fault was not healed.
        """
        began: dict[str, float] = {}
        spans = []
        for seen in self.faults:
            if not {*hosts} & {*seen.fault.split()[1:]}:
                continue
            if seen.action == "inject":
                began[seen.fault] = seen.at
            elif seen.action == "heal":
                spans.append((began.pop(seen.fault, seen.at), seen.at))
        return spans + [(at, math.inf) for at in began.values()]

    def unavailable(self, cluster: str, since: float, until: float) -> bool:
        """Return whether a cluster's slurmctld was down or cut off at some point in a span."""
        return any(
            began <= until and healed >= since - UNSAVED
            for began, healed in self.cluster_fault_spans(cluster)
        )

    def delayed_by(self, cluster: str, since: float, until: float) -> str:
        """Return the sibling whose fault may have delayed a cluster for a whole span, or ""."""
        for sibling in self.federated(cluster):
            spans = self.cluster_fault_spans(sibling) if sibling != cluster else []
            if any(began <= since and until <= healed + _DELAY for began, healed in spans):
                return sibling
        return ""

    def waits(self, job_id: int) -> tuple[str, str]:
        """Return the cluster on which a job is pending, and squeue's reason; both "" if on none."""
        waiting = (
            (cluster, job.reason.replace("_", " "))
            for cluster, jobs in self.queue.items()
            for job in jobs
            if job.job_id == job_id and job.state == "PENDING"
        )
        return next(waiting, ("", ""))

    def ended(self, submission: Submission) -> float:
        """Return when the last run of an accepted job ended, or else when the job was accepted."""
        runs = [run.end or run.start for run in self.traces if run.name == submission.name]
        return max(runs, default=submission.answered)

    def final(self) -> dict[str, dict[int, Record | Job]]:
        """Return each job's last record by name and id, preferably from the cluster that ran it."""
        jobs_of: dict[str, dict[int, Record | Job]] = defaultdict(dict)
        if not self.plan.scenario.accounting:
            for job in (
                job for jobs in self.queue.values() for job in jobs if job.state != "REVOKED"
            ):
                jobs_of[job.name][job.job_id] = job
            return jobs_of
        last: dict[tuple[str, int, str], Record] = {}
        for record in sorted(
            self.records, key=lambda record: (record.submit or 0, record.start or 0)
        ):
            last[record.name, record.job_id, record.cluster] = record
        for record in sorted(
            last.values(), key=lambda record: (_has_run(record), record.submit or 0)
        ):
            if record.state != "REVOKED":
                jobs_of[record.name][record.job_id] = record
        return jobs_of


@dataclass(frozen=True, slots=True)
class InvariantResult:
    """A checker's outcome.

    `problems` say what failed or is unknown, `excused` what Slurm permits.
    """

    name: str
    outcome: str
    problems: tuple[str, ...] = ()
    excused: tuple[str, ...] = ()


def _has_run(record: Record) -> bool:
    """Return whether a record is for an actual run.

    22.05 also records a start for copies that were cancelled while pending.
    """
    return bool(record.start) and record.node_list not in NO_NODES


class Violation(NamedTuple):
    """A problem, and the job that has it ("" if it does not belong to a single job)."""

    job: str
    text: str
    excuse: str = ""


Checker = Callable[[History], Iterator[Violation]]
CHECKERS: dict[str, tuple[Checker, tuple[str, ...], Callable[[History], Any]]] = {}


def checker(
    *evidence: str, wanted: Callable[[History], Any] = lambda history: True
) -> Callable[[Checker], Checker]:
    """Register a checker that needs `evidence`; histories that are not `wanted` are skipped."""

    def add(function: Checker) -> Checker:
        CHECKERS[function.__name__] = (function, evidence, wanted)
        return function

    return add


def evaluate(history: History) -> list[InvariantResult]:
    """Return every checker's result for a history."""
    results = []
    unsaved = history.unsaved()
    for name, (function, evidence, wanted) in CHECKERS.items():
        if not wanted(history):
            results.append(InvariantResult(name, SKIPPED))
            continue
        violations = [
            (violation, violation.excuse or (_UNSAVED if violation.job in unsaved else ""))
            for violation in function(history)
        ]
        problems = tuple(violation.text for violation, excuse in violations if not excuse)
        excused = tuple(f"{violation.text}: {excuse}" for violation, excuse in violations if excuse)
        missing = tuple(
            f"no {kind} {why}"
            for kind in (*evidence, "run")
            for why in history.missing.get(kind, ())
        )
        if not history.accepted:
            missing = ("no job was accepted", *missing)
        elif not problems and not history.traces:
            missing = ("no job ran", *missing)
        outcome = FAILED if problems and not missing else UNKNOWN if missing else PASSED
        results.append(InvariantResult(name, outcome, missing or problems, excused))
    return results


def overall_outcome(findings: Iterable[InvariantResult]) -> str:
    """Return the overall outcome: failed if a checker failed, else unknown if one is unknown."""
    outcomes = {result.outcome for result in findings}
    return FAILED if FAILED in outcomes else UNKNOWN if UNKNOWN in outcomes else PASSED


def read(events: Iterable[Mapping[str, Any]], plan: Plan) -> History:
    """Read the last rehearsal from a run's events.

    CannotVerify if there is no rehearsal, or an event is damaged.
    """
    history, ended = None, False
    for place, event in enumerate(events, 1):
        kind = event["kind"]
        if kind == "rehearsal":
            ended = event["action"] == "end"
            history = history if ended else History(plan, event.get("releases", {}))
        elif history is not None and not ended:
            try:
                _add(history, kind, event)
            except ValueError as error:
                problem = what_is_wrong(error) if isinstance(error, ValidationError) else str(error)
                raise CannotVerify(
                    f"event {place}, {kind}: {problem}", hint="events.jsonl is damaged"
                ) from error
    if history is None:
        raise CannotVerify("there was no rehearsal", hint="harness rehearse")
    if not ended:
        history.missing["run"].append("to its end: the rehearsal was interrupted")
    return history


def _add(history: History, kind: str, event: Mapping[str, Any]) -> None:
    """Add an event to a history; ValueError for missing or wrong fields and unknown clusters."""
    of_cluster = kind in {"submission", "trace", "record"} and "cluster" in event
    named = [str(event["cluster"])] if of_cluster else []
    named += [event["seen_by"]] if kind in {"queue", "usage"} else []
    if unknown := [name for name in named if name not in history.plan.scenario.clusters]:
        raise ValueError(f'the scenario has no cluster "{unknown[0]}"')
    if kind == "submission":
        history.submissions.append(_make(Submission, event))
    elif kind == "fault":
        history.faults.append(
            FaultSeen(
                datetime.fromisoformat(event["time"]).timestamp(), event["action"], event["fault"]
            )
        )
    elif kind == "trace":
        trace = _make(JobTrace, event)
        if len(trace.nodes) != len(trace.cpus):
            raise ValueError(f"{len(trace.nodes)} nodes, but CPUs of {len(trace.cpus)}")
        history.traces.append(trace)
    elif kind == "queue":
        history.queue[event["seen_by"]].append(_make(Job, event))
    elif kind == "record" and event.get("job_id") != _NO_ID:
        history.records.append(_make(Record, event))
    elif kind == "usage":
        history.usage[event["seen_by"]].append(_make(Usage, event))
    elif kind == "reservation":
        history.reservations[event["cluster"]].append(event["name"])
    elif kind == "old_records":
        history.old_records[event["cluster"]].append(tuple(event["tables"]))
    elif kind == "log":
        history.log.append(event["line"])
    elif kind == "log_times":
        history.log_times[event["cluster"], event["job_id"]] = event["times"]
    elif kind == "no_evidence":
        history.missing[event["of"]].append(
            f"of {event['where']}: {event['why'].partition(chr(10))[0]}"
        )


Made = TypeVar("Made")
_ADAPTERS: dict[type, TypeAdapter[Any]] = {
    kind: TypeAdapter(kind) for kind in (Submission, JobTrace, Job, Record, Usage)
}
# The names that fields of events had in older versions, and their names now.
_NEW_NAMES = {"asked": "submitted"}


def _make(kind: type[Made], event: Mapping[str, Any]) -> Made:
    # Older versions recorded fewer fields, some under other names; newer ones may record more.
    values = {_NEW_NAMES.get(name, name): value for name, value in event.items()}
    names = {field_of_kind.name for field_of_kind in fields(kind)}  # type: ignore[arg-type]  # they are dataclasses
    adapter: TypeAdapter[Made] = _ADAPTERS[kind]
    return adapter.validate_python({name: value for name, value in values.items() if name in names})


@checker("queue", "record")
def no_accepted_job_is_lost(history: History) -> Iterator[Violation]:
    """Every accepted job has ended, with all tasks of its array."""
    final = history.final()
    # Without accounting, nothing but a trace remains of a job once MinJobAge has passed.
    forgets = not history.plan.scenario.accounting
    for submission in history.accepted:
        jobs = final.get(submission.name, {})
        known = {*jobs} | {
            trace.job_id
            for trace in history.traces
            if forgets and trace.name == submission.name and trace.end is not None
        }
        if len(known) < submission.tasks:
            lost = f"{submission.tasks - len(known)} of {submission.tasks} are lost"
            unrecorded = [
                run
                for run in history.traces
                if run.name == submission.name and run.job_id not in known
            ]
            excused = len(known) + len(unrecorded) == submission.tasks and all(
                _record_uncommitted(history, run) for run in unrecorded
            )
            yield Violation(
                submission.name,
                f"job {submission.job_id} ({submission.name}) of {submission.cluster}: {lost}",
                _COMMIT_FAILED if excused else "",
            )
        for job in jobs.values():
            if job.state not in FINISHED:
                cluster, reason = history.waits(job.job_id)
                why = f"{job.state} ({reason})" if reason else job.state
                text = (
                    f"job {job.job_id} ({submission.name}) of {submission.cluster} "
                    f"has not ended: {why}"
                )
                if history.is_unsynced(submission.cluster):
                    text += (
                        f"; known bug in Slurm: slurmctld of {submission.cluster} waits forever "
                        "for its siblings, and starts no jobs until it is restarted"
                    )
                if copy := history.forgotten_copy(cluster):
                    text += (
                        f"; known bug in Slurm: job {copy} on {cluster} is a copy that its origin "
                        "forgot while controllers reconnected, and jobs wait behind it"
                    )
                excuse = _reserved(history, cluster, reason) or _end_uncommitted(history, job)
                yield Violation(submission.name, text, excuse)


def _reserved(history: History, cluster: str, reason: str) -> str:
    """Return the excuse for a pending job: a reservation that existed before the first job."""
    names = ", ".join(history.reservations[cluster])
    return (
        f"{cluster} has its own reservations: {names}" if names and _RESERVED.search(reason) else ""
    )


def _end_uncommitted(history: History, job: Record | Job) -> str:
    """Return the excuse for a job that has ended, but whose last record says otherwise.

    If the end was not committed, the record is RUNNING. If the last run's record was not committed
    at all, the last record is that of an earlier run, or of a copy that did not run. slurmdbd
    commits each message separately.
    """
    runs = [run for run in history.traces if (run.name, run.job_id) == (job.name, job.job_id)]
    if not runs or not isinstance(job, Record):
        return ""
    if job.state == "RUNNING":
        own = min(runs, key=lambda run: abs((job.start or 0) - run.start))
        lost = own.end is not None and history.uncommitted(own.end, own.end)
        return _COMMIT_FAILED if lost else ""
    last = max(runs, key=lambda run: run.restarts)
    if job.state in _KILLED or (job.state == "PENDING" and job.cluster != last.cluster):
        return _record_uncommitted(history, last)
    return ""


@checker("queue", "record")
def jobs_end_as_they_should(history: History) -> Iterator[Violation]:
    """A job that can only succeed is COMPLETED; a job that can only fail is FAILED."""
    final = history.final()
    for submission in history.accepted:
        for job in final.get(submission.name, {}).values():
            if job.state in FINISHED and job.state != submission.ends:
                text = (
                    f"job {job.job_id} ({submission.name}) of {submission.cluster} "
                    f"ended {job.state}, should end {submission.ends}"
                )
                yield Violation(
                    submission.name, text, _PURGED if history.purged(job.job_id) else ""
                )


@checker("trace")
def no_job_runs_twice(history: History) -> Iterator[Violation]:
    """No job runs twice at the same time, or twice at all without being requeued in between."""
    for name, runs in _executions(history).items():
        for before, after in pairwise(sorted(runs, key=lambda run: (run.start, run.restarts))):
            if before.end is not None and before.end > after.start:
                yield Violation(
                    after.name,
                    f"{name} ran twice at the same time, on {before.host} and {after.host}",
                )
            elif after.restarts <= before.restarts:
                text = f"{name} ran twice, on {before.host} and {after.host}, and was not requeued"
                yield Violation(after.name, text + _message_repeated(history, before))


def _message_repeated(history: History, run: JobTrace) -> str:
    """Return the known bug of a divided federation, if it made a job run twice."""
    accepted = next(
        (submission for submission in history.accepted if submission.name == run.name), None
    )
    if (
        accepted is None
        or run.cluster == accepted.cluster
        or not history.unavailable(run.cluster, accepted.submitted, accepted.answered)
    ):
        return ""
    return (
        f"; known bug in Slurm: after {accepted.cluster} and {run.cluster} were cut off from "
        "each other, messages may be sent again, even for jobs that have run by then"
    )


def _executions(history: History) -> dict[str, list[JobTrace]]:
    """Return all executions of each job and each task of an array."""
    runs_of: dict[str, list[JobTrace]] = defaultdict(list)
    for trace in history.traces:
        runs_of[
            f"job {trace.name}" + (f" task {trace.task}" if trace.task is not None else "")
        ].append(trace)
    return runs_of


@checker("trace", "record")
def no_refused_job_runs(history: History) -> Iterator[Violation]:
    """A job that was refused does not exist."""
    refused = {
        submission.name for submission in history.submissions if submission.answer == "refused"
    }
    # Without EnforcePartLimits, a refused job leaves a record of its failure, although it never had
    # a node.
    recorded = {
        record.name
        for record in history.records
        if _has_run(record) or record.state not in FINISHED
    }
    seen = recorded | {trace.name for trace in history.traces}
    for name in sorted(seen & refused):
        yield Violation("", f"{name} was refused, but exists")


@checker()
def job_ids_are_unique(history: History) -> Iterator[Violation]:
    """No two accepted jobs have the same id; a federated id contains its origin cluster."""
    submissions_of: dict[tuple[str, int | None], list[Submission]] = defaultdict(list)
    for submission in history.accepted:
        members = history.federated(submission.cluster)
        submissions_of["" if members else submission.cluster, submission.job_id].append(submission)
        if members and members[origin_id(submission.job_id or 0) - 1 :][:1] != (
            submission.cluster,
        ):
            yield Violation(
                "",
                f"job {submission.job_id} ({submission.name}) "
                f"was submitted to {submission.cluster}, "
                "but its id has a different origin cluster",
            )
    for (_, job_id), submissions in submissions_of.items():
        if len(submissions) > 1:
            unsaved = history.unsaved() >= {submission.name for submission in submissions[:-1]}
            names = ", ".join(submission.name for submission in submissions)
            text = f"id {job_id} was given to {names}"
            yield Violation("", text, _UNSAVED if unsaved else "")


@checker("queue", "record", wanted=lambda history: history.plan.scenario.federations)
def siblings_are_revoked(history: History) -> Iterator[Violation]:
    """A federated job runs as one sibling job, on one cluster; all others are REVOKED."""
    submissions = {submission.name: submission for submission in history.accepted}
    sources: dict[str, Iterable[tuple[str, Job | Record]]] = {
        "slurmctld": [(cluster, job) for cluster, jobs in history.queue.items() for job in jobs],
        "accounting": [(record.cluster, record) for record in history.records],
    }
    for source, seen in sources.items():
        copies: dict[tuple[str, int], dict[str, str]] = defaultdict(dict)
        for cluster, copy in seen:
            if copy.state != "REVOKED" and origin_id(copy.job_id):
                copies[copy.name, copy.job_id][cluster] = copy.state
        for (name, job_id), states in copies.items():
            if len(states) > 1:
                shown = ", ".join(f"{cluster} {state}" for cluster, state in sorted(states.items()))
                text = (
                    f"job {job_id} ({name}) has sibling jobs that are not revoked, "
                    f"according to {source}: {shown}"
                )
                submission = submissions.get(name)
                excuse = (
                    _revocation_undelivered(history, submission, states)
                    or _copy_under_way(history, submission, states)
                    or _script_lost(history, submission, states)
                )
                if not excuse and source == "accounting":
                    excuse = _revocation_unwritten(history, submissions.get(name), states)
                yield Violation(name, text, excuse)


def _revocation_undelivered(
    history: History, submission: Submission | None, states: Mapping[str, str]
) -> str:
    """Return the excuse for sibling jobs that never run: the revocation did not arrive."""
    unrun = _unrun_copies(states)
    if submission is None or not unrun:
        return ""
    unavailable = all(
        history.unavailable(cluster, submission.submitted, history.ended(submission))
        for cluster in unrun
    )
    return f"{', '.join(unrun)} was not reachable when the job began" if unavailable else ""


def _copy_under_way(
    history: History, submission: Submission | None, states: Mapping[str, str]
) -> str:
    """Return the excuse for sibling jobs that never run: their origin forgot where it sent them.

    When controllers connect again after a fault, the origin compares its jobs with those of a
    sibling. If a copy is still on its way, the sibling does not list it: the origin removes the
    sibling from the job's active ones (_reconcile_fed_job() in fed_mgr.c), and revokes no copy
    there. It logs both.
    """
    unrun = _unrun_copies(states)
    if submission is None or not unrun:
        return ""
    reconnected = any(
        began <= submission.answered and submission.submitted <= healed + _DELAY
        for cluster in (submission.cluster, *unrun)
        for began, healed in history.cluster_fault_spans(cluster)
    )
    if not reconnected or not all(history.forgot(submission.job_id, cluster) for cluster in unrun):
        return ""
    return f"the copy on {', '.join(unrun)} was under way while the controllers reconnected"


def _script_lost(history: History, submission: Submission | None, states: Mapping[str, str]) -> str:
    """Return the excuse for sibling jobs that failed without having run.

    Their slurmctld removed the script of a revoked copy, and was killed before it had saved the
    revocation. When it starts again, the copy is pending, and fails because its script is missing
    (_validate_job_files() in job_mgr.c).
    """
    failed = [cluster for cluster, state in states.items() if state == "FAILED"]
    if submission is None or len(failed) != len(states) - 1:
        return ""
    ran = {run.cluster for run in history.traces if run.name == submission.name}
    ended = history.ended(submission)
    if ran & {*failed} or not all(
        any(
            submission.submitted <= until and since - UNSAVED <= ended
            for since, until in history.kills(cluster)
        )
        for cluster in failed
    ):
        return ""
    return (
        f"slurmctld of {', '.join(failed)} was killed before it had saved that the copy was revoked"
    )


def _revocation_unwritten(
    history: History, submission: Submission | None, states: Mapping[str, str]
) -> str:
    """Return the excuse for records of sibling jobs that never ran: the database was killed."""
    if submission is None or not any(
        submission.submitted <= until and since <= history.ended(submission) + _BACKLOG
        for since, until in history.database_kills()
    ):
        return ""
    unrun = ", ".join(_unrun_copies(states))
    return (
        f"the database was killed before slurmdbd had written the end of the copy on {unrun}"
        if unrun
        else ""
    )


def _unrun_copies(states: Mapping[str, str]) -> list[str]:
    """Return the clusters whose copies did not run; an empty list if more than one copy ran."""
    clusters = [cluster for cluster, state in states.items() if state in {"CANCELLED", "PENDING"}]
    return clusters if len(states) - len(clusters) <= 1 else []


def _partition_options(plan: Plan) -> list[Mapping[str, Any]]:
    return [
        partition.options
        for part in plan.scenario.clusters.values()
        for partition in part.partitions.values()
    ]


def _shares_cpus(plan: Plan) -> bool:
    values = (
        str(partition_options.get("OverSubscribe", "")).upper()
        for partition_options in _partition_options(plan)
    )
    return any(value.startswith(("FORCE", "YES")) for value in values)


@checker("trace", wanted=lambda history: not _shares_cpus(history.plan))
def no_node_is_overcommitted(history: History) -> Iterator[Violation]:
    """Jobs that run on a node at the same time never have more CPUs than the node."""
    spans: dict[tuple[str, str], list[tuple[float, float, int]]] = defaultdict(list)
    for trace in history.traces:
        if trace.end is not None:
            for node, cpus in zip(trace.nodes, trace.cpus, strict=True):
                spans[trace.cluster, node].append((trace.start, trace.end, cpus))
    for (cluster, node), node_spans in spans.items():
        capacity = history.plan.scenario.clusters[cluster].static_nodes().get(node)
        if capacity is not None and (peak := _peak(node_spans)) > capacity:
            yield Violation(
                "",
                f"jobs had {peak} CPUs of {cluster}'s {node} at the same time, it has {capacity}",
            )


def _peak(spans: Iterable[tuple[float, float, int]]) -> int:
    """Return the greatest sum of the weights of overlapping spans (start, end, weight)."""
    changes = [
        change for start, end, weight in spans for change in ((start, 1, weight), (end, 0, -weight))
    ]
    peak = now = 0
    for _, _, weight in sorted(changes):
        now += weight
        peak = max(peak, now)
    return peak


@checker("trace", "record", wanted=lambda history: history.plan.scenario.accounting)
def accounting_equals_the_trace(history: History) -> Iterator[Violation]:
    """Every execution has a record that agrees with its trace; every record has an execution."""
    hosts_of = {name: history.plan.hosts_of(name) for name in history.plan.scenario.clusters}
    records_of: dict[tuple[str, int], list[Record]] = defaultdict(list)
    for record in history.records:
        if record.state != "REVOKED" and _has_run(record):
            records_of[record.name, record.job_id].append(record)
    for trace in sorted(history.traces, key=lambda run: run.start, reverse=True):
        # If a job ran more than once, each run has its own record, with the same start.
        candidates = sorted(
            (
                record
                for record in records_of[trace.name, trace.job_id]
                if record.end is None or record.end + TOLERANCE > trace.start
            ),
            key=lambda record: abs((record.start or 0) - trace.start),
        )
        if not candidates:
            text = f"job {trace.job_id} ({trace.name}) has no record of its run on {trace.host}"
            yield Violation(
                trace.name,
                text,
                _record_overwritten(history, trace)
                or _start_uncommitted(history, trace)
                or _record_uncommitted(history, trace),
            )
            continue
        records_of[trace.name, trace.job_id].remove(candidates[0])
        if candidates[0].state == "RUNNING" and _end_uncommitted(history, candidates[0]):
            continue  # see no_accepted_job_is_lost
        if candidates[0].state not in _KILLED:
            late = _noticed_late(history, trace, candidates[0])
            seen = replace(trace, end=candidates[0].end) if late else trace
            # A busy slurmd may start a job late; a job whose end slurmctld notices late needs an
            # excuse.
            starts = [at for at in history.log_times.get(trace.key, ()) if at <= trace.start]
            for text in compare(seen, candidates[0], hosts_of[trace.cluster], TOLERANCE, starts):
                yield Violation(trace.name, f"job {trace.job_id} ({trace.name}): {text}")
            if late:
                text = (
                    f"job {trace.job_id} ({trace.name}): "
                    f"ended at {trace.end:.0f}, accounting says {candidates[0].end}"
                )
                yield Violation(trace.name, text, late)
    for (name, job_id), left in records_of.items():
        for record in left:
            if record.state == "COMPLETED":
                text = (
                    f"job {job_id} ({name}): "
                    f"accounting has a run on {record.node_list} without a trace"
                )
                yield Violation(name, text)


def _record_overwritten(history: History, trace: JobTrace) -> str:
    """Return the excuse for a run without a record: a requeue while slurmdbd was upgraded."""
    restarts = [
        run.start
        for run in history.traces
        if run.name == trace.name and run.restarts > trace.restarts
    ]
    upgrades = {f"upgrade {host.name}" for host in history.plan.with_daemon("slurmdbd")}
    times = [fault.at for fault in history.faults if fault.fault in upgrades]
    if not restarts or not times or not (min(times) <= min(restarts) and trace.start <= max(times)):
        return ""
    return (
        "the job was requeued while slurmdbd was upgraded, and slurmctld gave both runs one record"
    )


def _start_uncommitted(history: History, trace: JobTrace) -> str:
    """Return the excuse for a run whose job has a record of its end, but not of its start."""
    run = (trace.name, trace.job_id, trace.cluster)
    ended = [
        record
        for record in history.records
        if (record.name, record.job_id, record.cluster) == run
        and record.state == "COMPLETED"
        and not record.start
    ]
    return _COMMIT_FAILED if ended and history.uncommitted(trace.start, trace.start) else ""


def _record_uncommitted(history: History, trace: JobTrace) -> str:
    """Return the excuse for a run that has ended and has no record at all.

    slurmctld has a record inserted once, when a job is submitted or requeued, and then updated; an
    update of a record that was not committed does nothing (as_mysql_job_start() in
    as_mysql_job.c).
    """
    begin = max(
        [submission.submitted for submission in history.accepted if submission.name == trace.name]
        + [
            record.end
            for record in history.records
            if (record.name, record.job_id, record.cluster)
            == (trace.name, trace.job_id, trace.cluster)
            and record.state in _KILLED
            and record.end is not None
        ],
        default=trace.start,
    )
    lost = trace.end is not None and history.uncommitted(begin, trace.start)
    return _COMMIT_FAILED if lost else ""


def _noticed_late(history: History, trace: JobTrace, record: Record) -> str:
    """Return the excuse for a late end: slurmctld was down, waited for a sibling, or was slow.

    A slow one logs the end at the time that accounting has.
    """
    if trace.end is None or record.end is None or record.end <= trace.end + TOLERANCE:
        return ""
    if history.unavailable(trace.cluster, trace.end, trace.end + TOLERANCE):
        return f"{trace.cluster}'s slurmctld was down, and noticed it late"
    if sibling := history.delayed_by(trace.cluster, trace.end, record.end):
        return (
            f"{trace.cluster}'s slurmctld waited for {sibling}, which did not answer, "
            "and noticed it late"
        )
    logged = history.log_times.get(trace.key, ())
    if record.end <= trace.end + _SLOW and any(0 <= at - record.end < 2 for at in logged):
        return f"{trace.cluster}'s slurmctld logged it then: the machine was busy"
    return ""


@checker(wanted=lambda history: history.old_records)
def old_records_are_kept(history: History) -> Iterator[Violation]:
    """An upgrade does not change the records of jobs that ended before it."""
    for cluster, (before, *later) in history.old_records.items():
        if later != [before]:
            outcome = (
                f"after it they were {later[0]} (number and sum of jobs, of steps)"
                if later
                else "they were not read after it"
            )
            yield Violation(
                "",
                f"{cluster}: the records of ended jobs were {before} before the upgrade, {outcome}",
            )


@checker("trace", "record", wanted=lambda history: history.plan.scenario.accounting)
def limits_are_kept(history: History) -> Iterator[Violation]:
    """Running jobs and their CPUs never exceed the limits of QOS and accounts, on each cluster."""
    accounting = _accounting(history.plan)
    counted = [*_while_counted(history)]
    for name, qos in accounting.qos.items():
        yield from _exceeded(
            f"QOS {name}", qos.options, [trace for trace in counted if trace.qos == name]
        )
    for cluster in history.plan.scenario.clusters:
        accounting = _accounting(history.plan, cluster)
        traces = [trace for trace in counted if trace.cluster == cluster]
        for name, account in accounting.accounts.items():
            below = _with_descendants(accounting, name)
            yield from _exceeded(
                f"account {name}",
                account.options,
                [trace for trace in traces if trace.account in below],
            )


def _while_counted(history: History) -> Iterator[JobTrace]:
    """Yield the runs of jobs without the time in which limits did not count them any more.

    When slurmctld ends a run, it subtracts the run from the usage at once, although its processes
    have not ended yet: deallocate_nodes() in node_scheduler.c calls acct_policy_job_fini().
    """
    killed: dict[tuple[str, int, str], list[int]] = defaultdict(list)
    for record in history.records:
        if record.state in _KILLED and record.end is not None:
            killed[record.name, record.job_id, record.cluster].append(record.end)
    for trace in history.traces:
        # A record has whole seconds.
        ends = [
            end for end in killed[trace.name, trace.job_id, trace.cluster] if end + 1 > trace.start
        ]
        if trace.end is None or not ends:
            yield trace
        else:
            yield replace(trace, end=max(trace.start, min(trace.end, *ends)))


def _has_usage(history: History) -> bool:
    """Return whether fair-share is recorded; without priority/multifactor there is no usage."""
    unrecorded = history.accepted and not (history.usage or history.missing.get("usage"))
    return bool(history.plan.scenario.accounting and not unrecorded)


def _with_descendants(accounting: Accounting, name: str) -> set[str]:
    """Return an account and all accounts below it."""
    children = [other for other, account in accounting.accounts.items() if account.parent == name]
    return {name}.union(*(_with_descendants(accounting, child) for child in children))


def _exceeded(
    owner: str, options: Mapping[str, Any], traces: Iterable[JobTrace]
) -> Iterator[Violation]:
    """Yield the limits in `options`, those of `owner`, that running jobs exceeded."""
    ended = [trace for trace in traces if trace.end is not None]
    for option, limit in _limits(options):
        for (of_user, cluster), spans in _job_spans(
            ended, per_user="PerUser" in option, cpus="TRES" in option
        ):
            if (peak := _peak(spans)) > limit:
                what = (
                    f"{peak} {'CPUs' if 'TRES' in option else 'jobs'} at the same time on {cluster}"
                )
                yield Violation("", f"{owner}{of_user}: {what}, {option} is {limit}")


def _accounting(plan: Plan, cluster: str | None = None) -> Accounting:
    """Return the scenario's accounting, with the accounts of a cluster if one is given."""
    scenario = plan.scenario.of_cluster(cluster) if cluster else plan.scenario
    if scenario.accounting is None:
        raise ValueError("this checker is for scenarios with accounting")
    return scenario.accounting


def _limits(options: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield the limits that count running jobs or their CPUs."""
    for option, value in options.items():
        if option in {"MaxJobsPerUser", "GrpJobs"}:
            limit = number(str(value))
            if limit is not None:
                yield option, limit
        elif option in {"GrpTRES", "MaxTRESPerUser"}:
            tres = {
                name: count
                for name, _, count in (entry.partition("=") for entry in str(value).split(","))
            }
            if (limit := number(tres.get("cpu", ""))) is not None:
                yield option, limit


def _job_spans(
    traces: Iterable[JobTrace], *, per_user: bool, cpus: bool
) -> Iterable[tuple[tuple[str, str], list[tuple[float, float, int]]]]:
    """Return when jobs ran, and the weight of each: by user, if `per_user`, and by cluster."""
    spans: dict[tuple[str, str], list[tuple[float, float, int]]] = defaultdict(list)
    for trace in traces:
        of_user = f" of {trace.user}" if per_user else ""
        spans[of_user, trace.cluster].append(
            (trace.start, trace.end or trace.start, sum(trace.cpus) if cpus else 1)
        )
    return spans.items()


@checker("usage", wanted=_has_usage)
def usage_of_an_account_is_that_of_its_parts(history: History) -> Iterator[Violation]:
    """The usage of an account is the sum of the usage of its users and child accounts."""
    for cluster, rows in history.usage.items():
        accounts = _accounting(history.plan, cluster).accounts
        if {row.account for row in rows} - {*accounts, "root"}:
            continue  # site data has accounts whose parents are unknown
        for name in accounts:
            parts = [row.seconds for row in rows if row.user and row.account == name]
            parts += [
                row.seconds
                for row in rows
                if not row.user and name == getattr(accounts.get(row.account), "parent", "")
            ]
            whole = sum(row.seconds for row in rows if not row.user and row.account == name)
            # Each part is rounded separately.
            if abs(whole - sum(parts)) > len(parts):
                yield Violation(
                    "", f"{cluster}: account {name} has used {whole} s, its parts {sum(parts)} s"
                )


def _fully_counted(history: History) -> list[str]:
    """Return the clusters whose usage includes every job.

    If no limits are enforced, slurmctld does not count the end of a job (_adjust_limit_usage() in
    acct_policy.c): it counts running jobs every PriorityCalcPeriod, so it may never count short
    jobs. Some sites reset the usage, or let it decay within hours. priority/basic, the default
    up to 23.02, keeps none: after an upgrade from there, the usage of earlier jobs is missing.
    """
    clusters = []
    for name in history.plan.clusters_with_limits():
        conf = history.plan.slurm_conf(name)
        begun_on = history.begun_on.get(name, "")
        if begun_on in releases.KNOWN and _priority_type(conf, begun_on) == "priority/basic":
            continue
        reset = str(slurm_options.get(conf, "PriorityUsageResetPeriod") or "NONE").upper()
        if reset == "NONE" and _SLOW_DECAY.fullmatch(
            str(slurm_options.get(conf, "PriorityDecayHalfLife") or "7-0")
        ):
            clusters.append(name)
    return clusters


def _priority_type(conf: Mapping[str, str], release: str) -> str:
    default = releases.default_of(releases.get(release), "slurm.conf", "PriorityType")
    return str(slurm_options.get(conf, "PriorityType") or default).lower()


def _usage_is_cpu_time(history: History) -> bool:
    """Return whether usage is in CPU seconds, and includes every job of at least one cluster."""
    weighed = any(
        "TRESBillingWeights" in partition_options
        for partition_options in _partition_options(history.plan)
    )
    return (
        _has_usage(history)
        and bool(_fully_counted(history))
        and not weighed
        and not any("UsageFactor" in qos.options for qos in _accounting(history.plan).qos.values())
    )


@checker("usage", "record", "trace", wanted=_usage_is_cpu_time)
def usage_is_that_of_the_jobs(history: History) -> Iterator[Violation]:
    """The usage of a user is at least that of the rehearsal's jobs; the run may have other jobs."""
    cpus_of = {trace.job_id: sum(trace.cpus) for trace in history.traces}
    for cluster in _fully_counted(history):
        used: Counter[tuple[str, str]] = Counter()
        for record in history.records:
            # The elapsed time of a record without an end grows: see no_accepted_job_is_lost.
            if record.cluster == cluster and record.job_id in cpus_of and record.end:
                used[record.account, record.user] += record.elapsed * cpus_of[record.job_id]
        for row in history.usage[cluster]:
            took = used[row.account, row.user]
            # Usage decays, but by much less than this during a rehearsal.
            if row.user and row.seconds < 0.98 * took - 1:
                text = (
                    f"{cluster}: {row.user} in {row.account} has used {row.seconds} s, "
                    f"the jobs took {took} s"
                )
                saved = not history.kills(cluster)
                yield Violation(
                    "", text, "" if saved else "slurmctld was killed before it had saved the rest"
                )
