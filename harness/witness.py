"""Jobs that tell what they saw by a way that does not pass through Slurm, and the comparison with what Slurm says.

Each execution of a witness job writes one file of its own on the node it runs on: what it is, where, start, end and
exit code. A job that ran twice leaves two files; one that never ran, or was killed before its file was in place, none.
A reader never sees half of what is written.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from harness import hostlist
from harness.plan import SHARED_DIRECTORY
from harness.slurm import JobKey, Record, job_key
from harness.ssh import Ssh

DIRECTORY = SHARED_DIRECTORY
# Seconds by which clocks and rounding may set Slurm's times and the job's apart.
TOLERANCE = 2
# Seconds that a busy machine's daemons may take before a job's first line, and after its last.
OVERHEAD = 10

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
    echo "user=$SLURM_JOB_USER"
    echo "account=$SLURM_JOB_ACCOUNT"
    echo "qos=$SLURM_JOB_QOS"
    echo "nodes=$SLURM_JOB_NODELIST"
    echo "cpus=$SLURM_JOB_CPUS_PER_NODE"
}} > "{DIRECTORY}/.$name"
mv "{DIRECTORY}/.$name" "$witness"
trap 'code=$?; printf "end=%s\\nexit_code=%s\\n" "$(date +%s.%N)" $code >> "$witness"' EXIT
trap 'exit 143' TERM
"""


@dataclass(frozen=True, slots=True)
class Witness:
    """What one execution of a job saw. Times are seconds since 1970; `end` is None where the job was killed.

    `task` is the number within an array, `restarts` counts how often the job was requeued, `cpus` are those of each of
    `nodes`.
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

    @property
    def key(self) -> JobKey:
        """What tells the job from all others."""
        return job_key(self.cluster, self.job_id)


def script(body: str) -> str:
    """Return a batch script that runs `body`, a shell text, and leaves a witness."""
    return f"{_SCRIPT}\n{body}\n"


def collect(ssh: Ssh, hosts: Sequence[str]) -> list[Witness]:
    """Return all witnesses on hosts."""
    # One process for thousands of files, an empty line before each; what is half written has a dot before its name.
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
    )


def _counts(text: str) -> tuple[int, ...]:
    """Read what sbatch(1) calls SLURM_JOB_CPUS_PER_NODE.

    >>> _counts("4(x2),1")
    (4, 4, 1)
    """
    found: list[int] = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        found += [int(count)] * int(times or 1)
    return tuple(found)


def ran_twice(witnesses: Iterable[Witness]) -> list[str]:
    """Return what speaks for a job that ran more than once, and was not requeued in between."""
    counts = Counter((witness.key, witness.restarts) for witness in witnesses)
    return [f"job {job_id} ran {count} times" for ((_, job_id), _), count in sorted(counts.items()) if count > 1]


def differences(
    keys: Iterable[JobKey],
    witnesses: Iterable[Witness],
    records: Iterable[Record],
    hosts_of: Mapping[str, Mapping[str, str]],
    overhead: float = OVERHEAD,
) -> list[str]:
    """Return where accounting and the jobs' own witness disagree about jobs; empty if they agree in everything.

    `hosts_of` tells the host of each cluster's nodes. A federated job has a record on every cluster it was copied to:
    one tells of the run, the others are REVOKED. `overhead`: see `compare`.
    """
    wanted = set(keys)
    seen = {witness.key: witness for witness in witnesses if witness.key in wanted}
    found = ran_twice(witness for witness in witnesses if witness.key in wanted)
    by_job: dict[JobKey, list[Record]] = {key: [] for key in wanted}
    steps: dict[JobKey, set[str]] = {key: set() for key in wanted}
    for record in records:
        if record.key not in wanted:
            continue
        if record.step:
            steps[record.key].add(record.step)
        elif record.state != "REVOKED":
            by_job[record.key].append(record)
    for key in sorted(wanted):
        job_id = key[1]
        witness = seen.get(key)
        told = by_job[key]
        if witness is None:
            found.append(f"job {job_id} left no witness: it never ran")
        elif len(told) != 1:
            found.append(f"job {job_id} ran once, but has {len(told)} accounting records besides revoked ones")
        else:
            found.extend(
                f"job {job_id}: {text}" for text in compare(witness, told[0], hosts_of[witness.cluster], overhead)
            )
            if "batch" not in steps[key]:
                found.append(f"job {job_id}: no record of its batch step")
    return found


def compare(witness: Witness, record: Record, hosts_of: Mapping[str, str], overhead: float = OVERHEAD) -> list[str]:
    """Return where one execution of a job and the accounting record of it disagree.

    The record's time must hold the job's: it begins at most `overhead` seconds before and ends so much after it, and
    cuts off no more than TOLERANCE seconds of it.
    """
    found = []
    if record.cluster != witness.cluster:
        found.append(f"ran on cluster {witness.cluster}, accounting says {record.cluster}")
    try:
        nodes = hostlist.expand(record.node_list)
    except ValueError:
        nodes = ()
    if witness.host not in {hosts_of.get(node) for node in nodes}:
        found.append(f"ran on {witness.host}, accounting says {record.node_list or 'no node'}")
    found.extend(_compare_end(witness, record))
    if record.start is None or not -overhead <= record.start - int(witness.start) <= TOLERANCE:
        found.append(f"started at {witness.start:.0f}, accounting says {record.start}")
    if witness.end is not None:
        if record.end is None or not -TOLERANCE <= record.end - int(witness.end) <= overhead:
            found.append(f"ended at {witness.end:.0f}, accounting says {record.end}")
        if not -TOLERANCE <= record.elapsed - int(witness.end - witness.start) <= 2 * overhead:
            found.append(f"took {witness.end - witness.start:.0f} s, accounting says {record.elapsed} s")
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
