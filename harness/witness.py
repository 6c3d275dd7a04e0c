"""Jobs that record what they saw independently of Slurm, and the comparison with what Slurm says.

Each execution of a witness job writes a file of its own on its node: what it is, where it ran, start, end and exit
code. A job that ran twice leaves two files; one that never ran, or was killed before its file was in place, none. A
file appears at once, never half written.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

from harness import hostlist
from harness.plan import SHARED_DIRECTORY
from harness.slurm import JobKey, Record, job_key
from harness.ssh import Ssh

DIRECTORY = SHARED_DIRECTORY
# Seconds by which Slurm's times and the job's may differ because of clocks and rounding.
TOLERANCE = 2
# Seconds that the daemons of a busy machine may take before a job's first line, and after its last.
OVERHEAD = 10
# Exit code of a script that SIGTERM ends: 128 + 15.
_TERMINATED = 143

_SCRIPT = f"""#!/bin/sh
umask 022
mkdir -p -m 1777 {DIRECTORY}
name=$SLURM_JOB_ID.$(cat /proc/sys/kernel/random/uuid)
witness={DIRECTORY}/$name
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
mv "{DIRECTORY}/.$name" "$witness"
trap 'code=$?; printf "end=%s\\nexit_code=%s\\n" "$(date +%s.%N)" $code >> "$witness"' EXIT
trap 'exit 143' TERM
"""


class StepSeen(NamedTuple):
    """What a job saw of its own step: srun's exit code, and the task's memory in bytes if the job measured it."""

    number: str
    exit_code: int | None
    rss: int | None


@dataclass(frozen=True, slots=True)
class Witness:
    """What one execution of a job saw. Times are seconds since 1970; `end` is None if the job was killed.

    `task` is the index in an array, `restarts` is how often the job was requeued, `cpus` has the CPUs on each of
    `nodes`. `steps` are those that the job recorded with `step`.
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

    @property
    def key(self) -> JobKey:
        """Identifies the job among those of all clusters."""
        return job_key(self.cluster, self.job_id)


def script(body: str) -> str:
    """Return a batch script that runs `body`, a shell script, and leaves a witness."""
    return f"{_SCRIPT}\n{body}\n"


def step(number: int, srun: str) -> str:
    """Return shell text that runs srun with these arguments, and records its exit code as that of step `number`."""
    return f'srun {srun}; echo "step.{number}.exit_code=$?" >> "$witness"'


def step_with_memory(number: int, mebibytes: int) -> str:
    """Return shell text for a step of one task that holds this much memory long enough for Slurm to measure it."""
    count = mebibytes << 20
    note = f"""awk "/^VmRSS/ {{ print \\"step.{number}.rss_kib=\\" \\$2 }}" /proc/$$/status >> "$witness\""""
    body = f"""memory=$(head -c {count} /dev/zero | tr "\\0" x); {note}; sleep 4"""
    return "export witness; " + step(number, f"--ntasks=1 --acctg-freq=task=1 sh -c '{body}'")


def collect(ssh: Ssh, hosts: Sequence[str]) -> list[Witness]:
    """Return all witnesses on hosts."""
    # One process for thousands of files, an empty line before each; the name of a half-written file begins with a dot.
    awk = "awk 'FNR == 1 { print \"\" } { print }'"
    command = f"[ ! -d {DIRECTORY} ] || find {DIRECTORY} -type f ! -name '.*' -exec {awk} {{}} +"
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda host: ssh.run(host, ["sh", "-c", command]).stdout, hosts)
        return [parse(block) for answer in answers for block in answer.split("\n\n") if block.strip()]


def parse(text: str) -> Witness:
    """Read a witness's file."""
    facts = {name: value for name, _, value in (line.partition("=") for line in text.splitlines()) if value}
    return Witness(
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
    )


def _steps(facts: Mapping[str, str]) -> tuple[StepSeen, ...]:
    numbers = dict.fromkeys(name.split(".")[1] for name in facts if name.startswith("step."))
    found = []
    for number in numbers:
        code, rss = (facts.get(f"step.{number}.{what}") for what in ("exit_code", "rss_kib"))
        found.append(StepSeen(number, int(code) if code else None, int(rss) << 10 if rss else None))
    return tuple(found)


def _counts(text: str) -> tuple[int, ...]:
    """Read SLURM_JOB_CPUS_PER_NODE of sbatch(1).

    >>> _counts("4(x2),1")
    (4, 4, 1)
    """
    found: list[int] = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        found += [int(count)] * int(times or 1)
    return tuple(found)


def ran_twice(witnesses: Iterable[Witness]) -> list[str]:
    """Return the jobs that ran more than once without being requeued in between."""
    counts = Counter((witness.key, witness.restarts) for witness in witnesses)
    return [f"job {job_id} ran {count} times" for ((_, job_id), _), count in sorted(counts.items()) if count > 1]


def differences(
    keys: Iterable[JobKey],
    witnesses: Iterable[Witness],
    records: Iterable[Record],
    hosts_of: Mapping[str, Mapping[str, str]],
    overhead: float = OVERHEAD,
) -> list[str]:
    """Return where accounting and the witnesses of jobs disagree; empty if they agree in everything.

    `hosts_of` has the host of each node of each cluster. A federated job has a record on every cluster that it was
    copied to: one is of the run, the others are REVOKED. `overhead`: see `compare`.
    """
    wanted = set(keys)
    seen = {witness.key: witness for witness in witnesses if witness.key in wanted}
    found = ran_twice(witness for witness in witnesses if witness.key in wanted)
    by_job: dict[JobKey, list[Record]] = {key: [] for key in wanted}
    steps: dict[JobKey, dict[str, Record]] = {key: {} for key in wanted}
    for record in records:
        if record.key not in wanted:
            continue
        if record.step:
            steps[record.key][record.step] = record
        elif record.state != "REVOKED":
            by_job[record.key].append(record)
    for key in sorted(wanted):
        job_id = key[1]
        witness = seen.get(key)
        own = by_job[key]
        if witness is None:
            found.append(f"job {job_id} left no witness: it never ran")
        elif len(own) != 1:
            found.append(f"job {job_id} ran once, but has {len(own)} accounting records that are not REVOKED")
        else:
            found.extend(
                f"job {job_id}: {text}" for text in compare(witness, own[0], hosts_of[witness.cluster], overhead)
            )
            found.extend(f"job {job_id}: {text}" for text in _compare_steps(witness, steps[key]))
    return found


def _compare_steps(witness: Witness, records: Mapping[str, Record]) -> list[str]:
    """Return where the records of a job's steps differ from what the job saw of them."""
    found = []
    # For a script that Slurm ends, accounting has the signal, not the exit code.
    ended = witness.exit_code if witness.exit_code != _TERMINATED else None
    for seen in (StepSeen("batch", ended, None), *witness.steps):
        record = records.get(seen.number)
        what = f"its {seen.number} step" if seen.number == "batch" else f"its step {seen.number}"
        if record is None:
            found.append(f"no record of {what}")
            continue
        if seen.exit_code is not None and record.exit_code != seen.exit_code:
            found.append(f"{what} exited with {seen.exit_code}, accounting says {record.exit_code}")
        # Accounting samples the memory and adds up the processes of a task: only the order of magnitude is comparable.
        if seen.rss and not 0.8 * seen.rss <= (record.max_rss or 0) <= 4 * seen.rss:
            recorded = "none" if record.max_rss is None else f"{record.max_rss >> 20} MiB"
            found.append(f"{what} had {seen.rss >> 20} MiB of memory, MaxRSS in accounting is {recorded}")
    return found


def compare(witness: Witness, record: Record, hosts_of: Mapping[str, str], overhead: float = OVERHEAD) -> list[str]:
    """Return where an execution of a job and its accounting record disagree.

    The record must span the execution: it begins at most `overhead` seconds before it, ends at most as much after it,
    and cuts off no more than TOLERANCE seconds of it.
    """
    found = []
    if record.cluster != witness.cluster:
        found.append(f"ran on cluster {witness.cluster}, accounting says {record.cluster}")
    try:
        nodes = hostlist.expand(record.node_list)
    except ValueError:
        nodes = ()
    if witness.host not in {hosts_of.get(node) for node in nodes} or not {*witness.nodes} <= {*nodes}:
        found.append(f"ran on {witness.host}, accounting says {record.node_list or 'no node'}")
    found.extend(_compare_facts(witness, record))
    found.extend(_compare_end(witness, record))
    if record.start is None or not -overhead <= record.start - int(witness.start) <= TOLERANCE:
        found.append(f"started at {witness.start:.0f}, accounting says {record.start}")
    if witness.end is not None:
        if record.end is None or not -TOLERANCE <= record.end - int(witness.end) <= overhead:
            found.append(f"ended at {witness.end:.0f}, accounting says {record.end}")
        if not -TOLERANCE <= record.elapsed - int(witness.end - witness.start) <= 2 * overhead:
            found.append(f"took {witness.end - witness.start:.0f} s, accounting says {record.elapsed} s")
    return found


def _compare_facts(witness: Witness, record: Record) -> list[str]:
    """Return where the job's own environment differs from its record, as far as both have a value."""
    found = []
    for what in ("user", "account", "qos", "partition", "work_dir"):
        seen, recorded = getattr(witness, what), getattr(record, what)
        if seen and recorded and seen != recorded:
            found.append(f"its {what} is {seen}, accounting says {recorded}")
    cpus = sum(witness.cpus)
    if cpus and record.cpus and cpus != record.cpus:
        found.append(f"it had {cpus} CPUs, accounting says {record.cpus}")
    return found


def _compare_end(witness: Witness, record: Record) -> list[str]:
    if witness.end is None and record.state == "COMPLETED":
        return ["was killed or still runs, accounting says COMPLETED"]
    if witness.exit_code == 0 and record.state != "COMPLETED":
        return [f"exited with 0, accounting says {record.state}"]
    if witness.exit_code and record.state not in {"FAILED", "CANCELLED", "TIMEOUT"}:
        return [f"exited with {witness.exit_code}, accounting says {record.state}"]
    if record.state in {"COMPLETED", "FAILED"} and record.exit_code != witness.exit_code:
        return [f"exited with {witness.exit_code}, accounting says {record.exit_code}"]
    return []
