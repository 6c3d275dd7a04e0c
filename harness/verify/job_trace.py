"""Job traces: what jobs record about themselves, independently of Slurm.

They are compared with accounting. Each execution of a trace job writes a file on its node with the
job's identity, the place where it ran, its start, end and exit code. A job that ran twice leaves
two files; a job that never ran, or was killed before its file was in place, leaves none. A file
appears in one step, never half written.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import inf
from types import MappingProxyType
from typing import NamedTuple

from harness.cluster.slurm import JobKey, Record, job_key
from harness.parsing import hostlist
from harness.plan import SHARED_DIRECTORY
from harness.ssh import Ssh

DIRECTORY = SHARED_DIRECTORY
# Seconds by which Slurm's times and the job's may differ because of clocks and rounding.
TOLERANCE = 2
# Seconds that the daemons of a busy machine may take before a job's first line, and after its last,
# if slurmctld's log does not have the times.
OVERHEAD = 10
# Exit code of a script that SIGTERM ends: 128 + 15.
_TERMINATED = 143

_SCRIPT = f"""#!/bin/sh
umask 022
mkdir -p -m 1777 {DIRECTORY}
name=$SLURM_JOB_ID.$(cat /proc/sys/kernel/random/uuid)
trace={DIRECTORY}/$name
{{
    echo "job_id=$SLURM_JOB_ID"
    echo "cluster=$SLURM_CLUSTER_NAME"
    echo "host=$(cat /proc/sys/kernel/hostname)"
    echo "start=$(date +%s.%N)"
    echo "name=$SLURM_JOB_NAME"
    echo "task=$SLURM_ARRAY_TASK_ID"
    echo "restarts=$SLURM_RESTART_COUNT"
    echo "user=$(id -un 2> /dev/null)"
    echo "account=$SLURM_JOB_ACCOUNT"
    echo "qos=$SLURM_JOB_QOS"
    echo "nodes=$SLURM_JOB_NODELIST"
    echo "cpus=$SLURM_JOB_CPUS_PER_NODE"
    echo "partition=$SLURM_JOB_PARTITION"
    echo "work_dir=$SLURM_SUBMIT_DIR"
}} > "{DIRECTORY}/.$name"
mv "{DIRECTORY}/.$name" "$trace"
trap 'code=$?; printf "end=%s\\nexit_code=%s\\n" "$(date +%s.%N)" $code >> "$trace"' EXIT
trap 'exit 143' TERM
"""

# sbatch's --output of a job that runs `WHERE`.
OUTPUT = "slurm-harness-%j.out"
# Shell code that notes where a job runs and where its output goes, and removes the output.
WHERE = """
output=$(readlink /proc/$$/fd/1)
{
    echo "note.home=$(cd "/home/$(id -un)" && pwd -P)"
    echo "note.directory=$(pwd -P)"
    echo "note.output=$output"
    echo "note.owner=$(stat --dereference --format=%U /proc/$$/fd/1)"
} >> "$trace"
rm --force "$output"
"""


class StepSeen(NamedTuple):
    """What a job recorded about one of its steps.

    `exit_code` is srun's; `rss` is the task's memory in bytes, if it was measured.
    """

    number: str
    exit_code: int | None
    rss: int | None


@dataclass(frozen=True, slots=True)
class JobTrace:
    """What one execution of a job recorded. Times are in seconds since 1970.

    `end` is None if the job was killed. `task` is the index in an array, `restarts` is how often
    the job was requeued, `cpus` has the CPUs on each of `nodes`. `steps` are those that the job
    recorded with `step`, `notes` what its body added to the file as `note.NAME=VALUE`.
    """

    job_id: int
    cluster: str
    host: str
    start: float
    end: float | None
    exit_code: int | None
    name: str = ""
    task: int | None = None
    restarts: int = 0
    user: str = ""
    account: str = ""
    qos: str = ""
    nodes: tuple[str, ...] = ()
    cpus: tuple[int, ...] = ()
    partition: str = ""
    work_dir: str = ""
    steps: tuple[StepSeen, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def key(self) -> JobKey:
        """The key that identifies the job among those of all clusters."""
        return job_key(self.cluster, self.job_id)


def script(body: str) -> str:
    """Return a batch script that runs `body`, a shell script, and leaves a trace."""
    return f"{_SCRIPT}\n{body}\n"


def step(number: int, srun: str) -> str:
    """Return shell code that runs srun with these arguments, and records its exit code."""
    return f'srun {srun}; echo "step.{number}.exit_code=$?" >> "$trace"'


def step_with_memory(number: int, mebibytes: int) -> str:
    """Return shell code for a step of one task that uses this much memory.

    It keeps the memory long enough for Slurm to measure it.
    """
    count = mebibytes << 20
    program = f'"/^VmRSS/ {{ print \\"step.{number}.rss_kib=\\" \\$2 }}"'
    note = f'awk {program} /proc/$$/status >> "$trace"'
    body = f"""memory=$(head -c {count} /dev/zero | tr "\\0" x); {note}; sleep 4"""
    return "export trace; " + step(number, f"--ntasks=1 --acctg-freq=task=1 sh -c '{body}'")


def collect(ssh: Ssh, hosts: Sequence[str]) -> list[JobTrace]:
    """Return all traces on hosts."""
    # A single process for thousands of files, with an empty line before each. The name of a
    # half-written file begins with a dot.
    awk = "awk 'FNR == 1 { print \"\" } { print }'"
    command = f"[ ! -d {DIRECTORY} ] || find {DIRECTORY} -type f ! -name '.*' -exec {awk} {{}} +"
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda host: ssh.run(host, ["sh", "-c", command]).stdout, hosts)
        return [
            parse(block) for answer in answers for block in answer.split("\n\n") if block.strip()
        ]


def parse(text: str) -> JobTrace:
    """Parse the file of a trace."""
    facts = {
        name: value
        for name, _, value in (line.partition("=") for line in text.splitlines())
        if value
    }
    return JobTrace(
        job_id=int(facts["job_id"]),
        cluster=facts["cluster"],
        host=facts["host"],
        start=float(facts["start"]),
        end=float(facts["end"]) if "end" in facts else None,
        exit_code=int(facts["exit_code"]) if "exit_code" in facts else None,
        name=facts.get("name", ""),
        task=int(facts["task"]) if "task" in facts else None,
        restarts=int(facts.get("restarts", 0)),
        user=facts.get("user", ""),
        account=facts.get("account", ""),
        qos=facts.get("qos", ""),
        nodes=hostlist.expand(facts["nodes"]) if "nodes" in facts else (),
        cpus=_counts(facts.get("cpus", "")),
        partition=facts.get("partition", ""),
        work_dir=facts.get("work_dir", ""),
        steps=_steps(facts),
        notes={
            name.removeprefix("note."): value
            for name, value in facts.items()
            if name.startswith("note.")
        },
    )


def misplaced(trace: JobTrace) -> list[str]:
    """Return whether a job ran in the wrong place: one line for each problem.

    The job ran `WHERE`, and was submitted in the user's home with the output `OUTPUT`.
    """
    home, directory, output, owner = (
        trace.notes.get(name, "") for name in ("home", "directory", "output", "owner")
    )
    wanted = f"{home}/{OUTPUT.replace('%j', str(trace.job_id))}"
    problems = []
    if directory != home:
        problems.append(
            f"ran in {directory or 'no directory'}, "
            f"not in {home or 'a home, which it could not enter'}"
        )
    if output != wanted:
        problems.append(f"its output went to {output}, not to {wanted}")
    if owner != trace.user:
        problems.append(f"its output belongs to {owner}, not to {trace.user}")
    return problems


def _steps(facts: Mapping[str, str]) -> tuple[StepSeen, ...]:
    numbers = dict.fromkeys(name.split(".")[1] for name in facts if name.startswith("step."))
    steps = []
    for number in numbers:
        code, rss = (facts.get(f"step.{number}.{what}") for what in ("exit_code", "rss_kib"))
        steps.append(StepSeen(number, int(code) if code else None, int(rss) << 10 if rss else None))
    return tuple(steps)


def _counts(text: str) -> tuple[int, ...]:
    """Read SLURM_JOB_CPUS_PER_NODE of sbatch(1).

    >>> _counts("4(x2),1")
    (4, 4, 1)
    """
    counts: list[int] = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(count)] * int(times or 1)
    return tuple(counts)


def ran_twice(traces: Iterable[JobTrace]) -> list[str]:
    """Return the jobs that ran more than once without being requeued in between."""
    counts = Counter((trace.key, trace.restarts) for trace in traces)
    return [
        f"job {job_id} ran {count} times"
        for ((_, job_id), _), count in sorted(counts.items())
        if count > 1
    ]


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
    problems = ran_twice(trace for trace in traces if trace.key in expected)
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
        if seen.exit_code is not None and record.exit_code != seen.exit_code:
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
    def wrong(late: float, time: int) -> bool:
        """Return whether a time that is `late` seconds outside the execution is wrong."""
        in_log = any(abs(time - logged_time) <= TOLERANCE for logged_time in logged)
        return not -TOLERANCE <= late <= (inf if in_log else overhead)

    problems = []
    if record.start is None or wrong(int(trace.start) - record.start, record.start):
        problems.append(f"started at {trace.start:.0f}, accounting says {record.start}")
    if trace.end is None:
        return problems
    if record.end is None or wrong(record.end - int(trace.end), record.end):
        problems.append(f"ended at {trace.end:.0f}, accounting says {record.end}")
    shortest = int(trace.end - trace.start) - TOLERANCE
    longest = (record.end or inf) - (record.start or 0) + TOLERANCE
    if not shortest <= record.elapsed <= longest:
        problems.append(f"took {trace.end - trace.start:.0f} s, accounting says {record.elapsed} s")
    return problems


def _compare_facts(trace: JobTrace, record: Record) -> list[str]:
    """Return where the job's environment differs from its record, if both have a value."""
    problems = []
    for what in ("user", "account", "qos", "partition", "work_dir"):
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
    if trace.exit_code and record.state not in {"FAILED", "CANCELLED", "TIMEOUT"}:
        return [f"exited with {trace.exit_code}, accounting says {record.state}"]
    if record.state in {"COMPLETED", "FAILED"} and record.exit_code != trace.exit_code:
        return [f"exited with {trace.exit_code}, accounting says {record.exit_code}"]
    return []
