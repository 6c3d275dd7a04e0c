"""Read the outcomes of jobs from a simulated cluster."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import NamedTuple

from harness.cluster.slurm import NO_NODES, SlurmCluster
from harness.parsing import hostlist
from harness.simulation.model import JobOutcome
from harness.simulation.reading import LEAD
from harness.simulation.submission import Submission
from harness.simulation.trace import TraceJob

_FIELDS = (
    "JobID,JobName,State,Submit,Eligible,Start,End,ReqCPUS,AllocCPUS,User,Account,Partition,QOS,"
    "Flags,NodeList"
)


class _Row(NamedTuple):
    """A line of sacct: an execution of a job, in the order of the fields above."""

    job_id: str
    name: str
    state: str
    submit: str
    eligible: str
    start: str
    end: str
    requested_cpus: str
    cpus: str
    user: str
    account: str
    partition: str
    qos: str
    flags: str
    nodes: str


class _Pending(NamedTuple):
    """A pending job in squeue. sacct lacks those that may not start yet."""

    job_id: int
    reason: str
    account: str
    partition: str
    qos: str


def clock_text(seconds: float) -> str:
    """Return simulated time as hours, minutes and seconds.

    >>> clock_text(90061)
    '25:01:01'
    """
    whole = int(seconds)
    return f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}"


def query(cluster: SlurmCluster, begin: float) -> dict[str, str]:
    """Return what Slurm's commands print about the jobs since a simulated time."""
    # sacct compares with the real clock unless both times are given.
    since, until = (
        f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%S}" for at in (begin - LEAD, begin + 1e9)
    )
    sacct = ("sacct", "--allusers", "--allocations", "--duplicates", "--parsable2", "--noheader")
    queries = {
        "sacct": (
            *("env", "SLURM_TIME_FORMAT=%s", "TZ=UTC", *sacct),
            *(f"--starttime={since}", f"--endtime={until}", f"--format={_FIELDS}"),
        ),
        "squeue": ("squeue", "--noheader", "--all", "--array", "--format=%F|%K|%T|%r|%a|%P|%q|%j"),
        "sdiag": ("sdiag",),
        "sshare": (
            *("sshare", "--all", "--parsable2", "--noheader"),
            "--format=Account,User,NormShares,EffectvUsage",
        ),
        "config": ("scontrol", "show", "config"),
    }
    return {name: cluster.run(*query).stdout for name, query in queries.items()}


def outcomes(
    submissions: Sequence[Submission],
    printed: Mapping[str, str],
    begin: float,
    refused: Mapping[str, str],
    held: Mapping[str, Mapping[str, float]],
    suspensions: Mapping[str, Sequence[tuple[float, float | None]]],
    end: float,
) -> list[JobOutcome]:
    """Return the outcome of each job of a trace.

    `refused` has sbatch's messages by key. By KEY.INDEX, `held` has the seconds for which a job
    waited for each reason, and `suspensions` the spans in which it was suspended. Spans and `end`,
    the end of the simulation, are in seconds since the beginning.
    """
    rows: dict[tuple[str, str], list[_Row]] = {}
    for line in printed["sacct"].splitlines():
        row = _Row(*line.split("|", len(_Row._fields) - 1))
        # A job that ran when an earlier repeat ended has no end in accounting, and still overlaps.
        submitted = _since(begin, row.submit)
        if submitted is not None and submitted < -LEAD - 1:
            continue
        for index in _indices(row.job_id):
            rows.setdefault((row.name, index), []).append(row)
    waiting = _pending(printed["squeue"])
    job_outcomes = []
    for submission in submissions:
        for index, job in submission.jobs.items():
            job_rows = rows.get((submission.key, index), [])
            message = refused.get(submission.key, "")
            pending = waiting.get((submission.key, index))
            outcome = _outcome(job, job_rows, begin, message, pending)
            name = f"{submission.key}.{index}"
            suspended = suspensions.get(name, ())
            job_outcomes.append(
                replace(
                    outcome,
                    held=tuple(held.get(name, {}).items()),
                    runs=tuple(_runs(job_rows, begin, end, suspended)),
                    preemptions=outcome.preemptions + len(suspended),
                )
            )
    return job_outcomes


def _runs(
    rows: Sequence[_Row], begin: float, end: float, suspended: Sequence[tuple[float, float | None]]
) -> Iterator[tuple[float, float]]:
    """Yield begin and end of each run of a job that ran several times or was suspended."""
    runs = []
    for row in rows:
        if (start := _since(begin, row.start)) is not None:
            close = _since(begin, row.end)
            runs.append((start, max(start, end if close is None else close)))
    if len(runs) < 2 and not suspended:
        return
    for start, close in sorted(runs):
        for halt, resume in suspended:
            if start < halt < close:
                yield start, halt
                start = close if resume is None else min(resume, close)
        if start < close:
            yield start, close


def _outcome(
    job: TraceJob, rows: Sequence[_Row], begin: float, message: str, pending: _Pending | None
) -> JobOutcome:
    executions = sorted(rows, key=lambda row: int(row.submit or 0))
    if not executions:
        state = "REFUSED" if message else "PENDING" if pending else "NOT_SUBMITTED"
        return JobOutcome(
            trace_id=job.id,
            job_id=pending.job_id if pending else None,
            state=state,
            submit=job.submit,
            eligible=None,
            start=None,
            end=None,
            nodes=(),
            cpus=job.tasks * job.cpus_per_task,
            user=job.user,
            account=pending.account if pending else job.account or "",
            partition=pending.partition if pending else job.partition or "",
            qos=pending.qos if pending else job.qos or "",
            reason=pending.reason if pending else message,
        )
    first, last = executions[0], executions[-1]
    return JobOutcome(
        trace_id=job.id,
        job_id=int(re.split(r"[_+.]", last.job_id)[0]),
        # Accounting adds who cancelled a job: "CANCELLED by 0".
        state=last.state.split(" ")[0],
        submit=_since(begin, first.submit) or 0.0,
        eligible=_since(begin, first.eligible),
        start=_since(begin, first.start),
        end=_since(begin, last.end),
        nodes=hostlist.expand(last.nodes) if last.nodes not in NO_NODES else (),
        cpus=int(last.cpus or 0) or int(last.requested_cpus or 0),
        user=last.user,
        account=last.account,
        partition=last.partition,
        qos=last.qos,
        reason=pending.reason if pending else "",
        backfilled=_backfilled(first),
        restarts=len(executions) - 1,
        preemptions=sum(row.state == "PREEMPTED" for row in executions),
    )


def _backfilled(row: _Row) -> bool | None:
    """Return whether the backfill scheduler started a job; None if it has not started."""
    return "SchedBackfill" in row.flags if "Sched" in row.flags else None


def _since(begin: float, moment: str) -> float | None:
    return int(moment) - begin if moment.isdigit() and int(moment) > 0 else None


def _indices(job_id: str) -> Iterator[str]:
    """Yield the indices of a record in its job array, "" for a job without one.

    >>> [*_indices("7_[2-3,5%2]")], [*_indices("7_4")], [*_indices("7")]
    (['2', '3', '5'], ['4'], [''])
    """
    _, _, part = job_id.partition("_")
    if not part.startswith("["):
        yield part
        return
    for span in part.strip("[]").partition("%")[0].split(","):
        first, _, last = span.partition("-")
        last, _, step = last.partition(":")
        yield from map(str, range(int(first), int(last or first) + 1, int(step or 1)))


def _pending(text: str) -> dict[tuple[str, str], _Pending]:
    """Return pending jobs by name and index."""
    pending = {}
    for line in text.splitlines():
        job_id, index, state, reason, account, partition, qos, name = line.split("|", 7)
        if state == "PENDING":
            key = (name, "" if index == "N/A" else index)
            pending[key] = _Pending(int(job_id), reason, account, partition, qos)
    return pending


def numbers(sdiag: str) -> dict[str, float]:
    r"""Return the numbers that sdiag prints, by their names; those of backfilling begin with "bf ".

    >>> numbers("Main schedule statistics (microseconds):\n\tTotal cycles: 7\n")
    {'Total cycles': 7.0}
    """
    values: dict[str, float] = {}
    prefix = ""
    for line in sdiag.splitlines():
        if line.startswith("Remote Procedure Call"):
            break
        if line.startswith("Backfilling stats"):
            prefix = "bf "
        name, _, value = line.strip().partition(":")
        if re.fullmatch(r"\s*-?\d+(\.\d+)?", value):
            values[f"{prefix}{name.strip()}"] = float(value)
    return values


def fairness(sshare: str) -> Iterator[tuple[str, str, float, float]]:
    """Yield account, user, normalized shares and effective usage of each user's association."""
    for line in sshare.splitlines():
        account, user, shares, usage = line.split("|")
        if user and shares:
            yield account.strip(), user, float(shares), float(usage or 0)
