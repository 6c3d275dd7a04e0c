"""Compare what jobs recorded about themselves, their traces, with accounting. Pure: no I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from math import inf
from types import MappingProxyType

from harness.cluster.slurm import JobKey, Record, prints_exit_code
from harness.parsing import hostlist
from harness.verify import job_trace
from harness.verify.job_trace import JobTrace, StepSeen

# Seconds by which Slurm's times and the job's may differ because of clocks and rounding.
TOLERANCE = 2
# Seconds that a busy slurmd may take to end a job that slurmctld has ended.
_ENDED_WITHIN = 60
# Seconds that the daemons of a busy machine may take before a job's first line, and after its last,
# if slurmctld's log does not have the times.
OVERHEAD = 10
# Exit code of a script that SIGTERM ends: 128 + 15.
_TERMINATED = 143


def differences(
    keys: Iterable[JobKey],
    traces: Iterable[JobTrace],
    records: Iterable[Record],
    hosts_of: Mapping[str, Mapping[str, str]],
    overhead: float = OVERHEAD,
    logged: Mapping[JobKey, Collection[float]] = MappingProxyType({}),
) -> list[str]:
    """Return where accounting and the traces of jobs disagree; empty if they agree.

    `hosts_of` has the host of each node of each cluster. A federated job has a record on every
    cluster that it was copied to: one is for its execution, the others are REVOKED. `overhead` and,
    for each job, `logged`: see `compare`.
    """
    expected = set(keys)
    seen = {trace.key: trace for trace in traces if trace.key in expected}
    problems = job_trace.ran_twice(trace for trace in traces if trace.key in expected)
    by_job: dict[JobKey, list[Record]] = {key: [] for key in expected}
    steps: dict[JobKey, dict[str, Record]] = {key: {} for key in expected}
    for record in records:
        if record.key not in expected:
            continue
        if record.step:
            steps[record.key][record.step] = record
        elif record.state != "REVOKED":
            by_job[record.key].append(record)
    for key in sorted(expected):
        job_id = key[1]
        trace = seen.get(key)
        own = by_job[key]
        if trace is None:
            problems.append(f"job {job_id} left no trace: it never ran")
        elif len(own) != 1:
            problems.append(
                f"job {job_id} ran once, but has {len(own)} accounting records that are not REVOKED"
            )
        else:
            problems.extend(
                f"job {job_id}: {text}"
                for text in compare(
                    trace, own[0], hosts_of[trace.cluster], overhead, logged.get(key, ())
                )
            )
            problems.extend(f"job {job_id}: {text}" for text in _compare_steps(trace, steps[key]))
            problems.extend(
                f"job {job_id}: {text}"
                for step in steps[key].values()
                for text in _outside(step, own[0])
            )
    return problems


def _outside(step: Record, job: Record) -> list[str]:
    """Return where a step's record is not within the nodes and the time of its job's record."""
    problems = []
    try:
        foreign_nodes = {*hostlist.expand(step.node_list)} - {*hostlist.expand(job.node_list)}
    except ValueError:
        foreign_nodes = set()
    if foreign_nodes:
        problems.append(
            f"its step {step.step} has {step.node_list} in accounting, the job {job.node_list}"
        )
    # A step may end after its job, which ends when it is cancelled.
    earliest, latest = (job.start or 0) - TOLERANCE, (job.end or inf) + TOLERANCE
    if step.start is None or not earliest <= step.start <= latest:
        problems.append(
            f"its step {step.step} starts at {step.start} in accounting, "
            f"the job ran from {job.start} to {job.end}"
        )
    return problems


def _compare_steps(trace: JobTrace, records: Mapping[str, Record]) -> list[str]:
    """Return where the records of a job's steps differ from what the job recorded."""
    problems = []
    # For a script that Slurm ends, accounting has the signal, not the exit code.
    exit_code = trace.exit_code if trace.exit_code != _TERMINATED else None
    for seen in (StepSeen("batch", exit_code, None), *trace.steps):
        record = records.get(seen.number)
        what = f"its {seen.number} step" if seen.number == "batch" else f"its step {seen.number}"
        if record is None:
            problems.append(f"no record of {what}")
            continue
        if seen.exit_code is not None and not prints_exit_code(record.exit_code, seen.exit_code):
            problems.append(
                f"{what} exited with {seen.exit_code}, accounting says {record.exit_code}"
            )
        # Accounting samples the memory and adds up the processes of a task: only the order of
        # magnitude is comparable.
        if seen.rss and not 0.8 * seen.rss <= (record.max_rss or 0) <= 4 * seen.rss:
            recorded = "none" if record.max_rss is None else f"{record.max_rss >> 20} MiB"
            problems.append(
                f"{what} had {seen.rss >> 20} MiB of memory, MaxRSS in accounting is {recorded}"
            )
    return problems


def compare(
    trace: JobTrace,
    record: Record,
    hosts_of: Mapping[str, str],
    overhead: float = OVERHEAD,
    logged: Collection[float] = (),
) -> list[str]:
    """Return where an execution of a job and its accounting record disagree.

    The record must span the execution: it cuts off no more than TOLERANCE seconds of it, begins at
    most `overhead` seconds before it and ends at most as much after it. It may begin earlier or end
    later if slurmctld's log has the start or end of the job at that time: `logged` has these times.
    slurmctld records the end of a job that it cancels before it notifies slurmd, so the execution
    may last a minute longer.
    """
    problems = []
    if record.cluster != trace.cluster:
        problems.append(f"ran on cluster {trace.cluster}, accounting says {record.cluster}")
    try:
        nodes = hostlist.expand(record.node_list)
    except ValueError:
        nodes = ()
    if trace.host not in {hosts_of.get(node) for node in nodes} or not {*trace.nodes} <= {*nodes}:
        problems.append(f"ran on {trace.host}, accounting says {record.node_list or 'no node'}")
    problems.extend(_compare_facts(trace, record))
    problems.extend(_compare_end(trace, record))
    problems.extend(_compare_times(trace, record, overhead, logged))
    return problems


def _compare_times(
    trace: JobTrace, record: Record, overhead: float, logged: Collection[float]
) -> list[str]:
    ended_by_itself = record.state in {"COMPLETED", "FAILED"}
    cut_off = TOLERANCE if ended_by_itself else max(overhead, _ENDED_WITHIN)

    def wrong(late: float, time: int, cut_off: float = TOLERANCE) -> bool:
        """Return whether a time that is `late` seconds outside the execution is wrong."""
        in_log = any(abs(time - logged_time) <= TOLERANCE for logged_time in logged)
        return not -cut_off <= late <= (inf if in_log else overhead)

    problems = []
    if record.start is None or wrong(int(trace.start) - record.start, record.start):
        problems.append(f"started at {trace.start:.0f}, accounting says {record.start}")
    if trace.end is None:
        return problems
    if record.end is None or wrong(record.end - int(trace.end), record.end, cut_off):
        problems.append(f"ended at {trace.end:.0f}, accounting says {record.end}")
    shortest = int(trace.end - trace.start) - cut_off
    longest = (record.end or inf) - (record.start or 0) + TOLERANCE
    if not shortest <= record.elapsed <= longest:
        problems.append(f"took {trace.end - trace.start:.0f} s, accounting says {record.elapsed} s")
    return problems


def _compare_facts(trace: JobTrace, record: Record) -> list[str]:
    """Return where the job's environment differs from its record, if both have a value."""
    problems = []
    for what in ("user", "gid", "account", "qos", "partition", "work_dir"):
        seen, recorded = getattr(trace, what), getattr(record, what)
        if seen and recorded and seen != recorded:
            problems.append(f"its {what} is {seen}, accounting says {recorded}")
    cpus = sum(trace.cpus)
    if cpus and record.cpus and cpus != record.cpus:
        problems.append(f"it had {cpus} CPUs, accounting says {record.cpus}")
    return problems


def _compare_end(trace: JobTrace, record: Record) -> list[str]:
    if trace.end is None and record.state == "COMPLETED":
        return ["was killed or still runs, accounting says COMPLETED"]
    if trace.exit_code == 0 and record.state != "COMPLETED":
        return [f"exited with 0, accounting says {record.state}"]
    ends = {"FAILED", "CANCELLED", "TIMEOUT"}
    if (trace.exit_code or 0) > 128:  # by a signal
        ends.add("PREEMPTED")
    if trace.exit_code and record.state not in ends:
        return [f"exited with {trace.exit_code}, accounting says {record.state}"]
    ended = record.state in {"COMPLETED", "FAILED"}
    if ended and not prints_exit_code(record.exit_code, trace.exit_code):
        return [f"exited with {trace.exit_code}, accounting says {record.exit_code}"]
    return []
