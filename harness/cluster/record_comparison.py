"""Compare accounting records with what slurmctld knows about jobs. Pure: no I/O."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable

from harness.cluster.slurm import FINISHED, JobKey, Record, job_key, prints_exit_code
from harness.parsing import hostlist

# slurmctld sends its own times to slurmdbd; one second allows for rounding.
TOLERANCE = 1
# NO_VAL of slurm.h: 22.05 records this id for sibling jobs that it revokes while slurmdbd is down.
_NO_ID = 0xFFFFFFFE
# slurmctld's log names a job of an array as ARRAY_TASK(ID).
_JOB_ID = re.compile(r"JobId=(\d+)(?:_\d+\((\d+)\))?")
_SAME = {
    "name": "name",
    "user": "user",
    "gid": "group id",
    "account": "account",
    "qos": "QOS",
    "partition": "partition",
    "state": "state",
    "cpus": "number of CPUs",
    "time_limit": "time limit",
    "work_dir": "working directory",
}


def disagreements(remembered: Iterable[Record], records: Iterable[Record]) -> list[str]:
    """Return where the records of ended jobs differ from slurmctld's memory.

    Jobs that never ran are left out, because releases differ in what they record about them.
    """
    records_of: dict[tuple[str, int], list[Record]] = defaultdict(list)
    for record in records:
        if not record.step and record.state != "REVOKED":
            records_of[record.cluster, record.job_id].append(record)
    problems = []
    for job in remembered:
        if job.state not in FINISHED - {"REVOKED"} or not job.node_list:
            continue
        start = job.start or 0
        # Each run of a requeued job has a record; slurmctld remembers the last run.
        candidates = sorted(
            records_of[job.cluster, job.job_id], key=lambda record: abs((record.start or 0) - start)
        )
        wrong = (
            _differences(job, candidates[0])
            if candidates
            else ["slurmctld remembers it, accounting has no record of it"]
        )
        problems += [f"job {job.job_id} on {job.cluster}: {text}" for text in wrong]
    return problems


def _differences(job: Record, record: Record) -> list[str]:
    differences = []
    for field, what in _SAME.items():
        remembered, recorded = getattr(job, field), getattr(record, field)
        if remembered and remembered != recorded:
            differences.append(
                f"its {what} is {remembered}, accounting says {recorded or 'nothing'}"
            )
    if _nodes(job) != _nodes(record):
        differences.append(f"its nodes are {job.node_list}, accounting says {record.node_list}")
    # slurmctld keeps the exit code of a job that it ends itself, slurmdbd does not.
    if job.state in {"COMPLETED", "FAILED"} and not (
        prints_exit_code(record.exit_code, job.exit_code) and record.signal == job.signal
    ):
        differences.append(
            f"its exit code is {job.exit_code}:{job.signal}, "
            f"accounting says {record.exit_code}:{record.signal}"
        )
    # slurmdbd may know more, such as energy.
    recorded_tres = dict(_tres(record))
    for kind, amount in _tres(job):
        if recorded_tres.get(kind) != amount:
            differences.append(
                f"its {kind} is {amount}, accounting says {recorded_tres.get(kind, 'nothing')}"
            )
    for what in ("submit", "eligible", "start", "end"):
        at, recorded = getattr(job, what), getattr(record, what)
        if at is not None and (recorded is None or abs(recorded - at) > TOLERANCE):
            differences.append(f"its {what} is {at} for slurmctld, accounting says {recorded}")
    return differences


def _tres(record: Record) -> list[tuple[str, str]]:
    return re.findall(r"([^,=]+)=([^,]+)", record.tres)


def _nodes(record: Record) -> set[str]:
    try:
        return {*hostlist.expand(record.node_list)}
    except ValueError:
        return set()


def runaways(remembered: Iterable[Record], records: Iterable[Record]) -> list[str]:
    """Return the jobs without an end in accounting that slurmctld has ended or does not know."""
    states = {(job.cluster, job.job_id): job.state for job in remembered}
    problems = []
    for record in records:
        if record.step or record.end is not None:
            continue
        state = states.get((record.cluster, record.job_id), "")
        if not state or state in FINISHED:
            known = f"{state} for slurmctld" if state else "unknown to slurmctld"
            problems.append(
                f"job {record.job_id} on {record.cluster} is {record.state} in accounting, but "
                f"{known}"
            )
    return problems


def jobs_named_in(log: str, cluster: str) -> set[JobKey]:
    r"""Return the jobs that a log of slurmctld names.

    >>> sorted(jobs_named_in("sched: Allocate JobId=10_3(13) NodeList=c1\nJobId=7", "c"))
    [('c', 7), ('c', 10), ('c', 13)]
    """
    ids = {int(text) for match in _JOB_ID.findall(log) for text in match if text}
    return {job_key(cluster, job_id) for job_id in ids}


def never_submitted(
    records: Iterable[Record], known: Collection[JobKey], since: float
) -> list[str]:
    """Return a line for each unknown job in accounting that was submitted since a time.

    `since` is in seconds since 1970.
    """
    unknown = {
        (record.cluster, record.job_id): record
        for record in records
        if not record.step
        and record.key not in known
        and record.job_id != _NO_ID
        and (record.submit or since) >= since
    }
    return [
        f"job {job_id} of {record.user or 'no user'} on {cluster} is {record.state} in accounting,"
        " but was never submitted"
        for (cluster, job_id), record in sorted(unknown.items())
    ]
