"""Job traces: what jobs record about themselves, independently of Slurm.

`trace_comparison` compares them with accounting. Each execution of a trace job writes a file on
its node with the job's identity, the place where it ran, its start, end and exit code. A job that
ran twice leaves two files; a job that never ran, or was killed before its file was in place, leaves
none. A file appears in one step, never half written.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

from harness.cluster.slurm import JobKey, job_key
from harness.parsing import hostlist
from harness.plan import SHARED_DIRECTORY
from harness.ssh import Ssh

DIRECTORY = SHARED_DIRECTORY
# Shell code, in one line, that creates the directory if there is none. It has its mode before it
# has its name: mkdir -m would set the mode last, and jobs of other users start at the same time.
CREATE_DIRECTORY = (
    f"[ -d {DIRECTORY} ] || {{ new=$(mktemp -d {DIRECTORY}.XXXXXX) && chmod 1777 $new"
    f" && mv -n -T $new {DIRECTORY}; rmdir $new; }} 2> /dev/null; [ -d {DIRECTORY} ]"
)

_SCRIPT = f"""#!/bin/sh
umask 022
{CREATE_DIRECTORY}
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
    echo "gid=$(id -g)"
    echo "account=$SLURM_JOB_ACCOUNT"
    echo "qos=$SLURM_JOB_QOS"
    echo "nodes=$SLURM_JOB_NODELIST"
    echo "cpus=$SLURM_JOB_CPUS_PER_NODE"
    echo "partition=$SLURM_JOB_PARTITION"
    echo "work_dir=$SLURM_SUBMIT_DIR"
}} > "{DIRECTORY}/.$name"
mv "{DIRECTORY}/.$name" "$trace" || exit
trap 'code=$?; printf "end=%s\\nexit_code=%s\\n" "$(date +%s.%N)" $code >> "$trace"' EXIT
trap 'exit 143' TERM
"""

# Shell code that ends at once when its job is cancelled. With proctrack/cgroup, Slurm sends SIGTERM
# only to the shell, which handles it while it waits, but not while a program runs.
UNTIL_CANCELLED = "sleep 3600 & wait $!"
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
    gid: str = ""

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
        gid=facts.get("gid", ""),
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
