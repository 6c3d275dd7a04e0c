"""Run Slurm's commands, and read their output into values.

It reads the parsable text rather than JSON: the text is the same in every release since 20.11,
which has no JSON, and it is what administrators see.
"""

from __future__ import annotations

import re
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from harness.cluster import node_state
from harness.errors import CannotVerify, CommandFailed, HarnessError, LateAnswer, WaitTimeout
from harness.parsing import durations, hostlist
from harness.plan import Plan
from harness.ssh import Result, Ssh
from harness.wait import wait_until

# squeue(1), JOB STATE CODES: the final states.
FINISHED = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REVOKED",
        "TIMEOUT",
    }
)
# Separates the columns of sacct: the names of jobs and directories may contain "|".
SEPARATOR = "\x1f"
# What squeue and sacct print for a job without nodes.
NO_NODES = frozenset({"", "None assigned"})
# In a federation, the bits above these hold the id of the origin cluster
# (slurm.schedmd.com/federation.html).
JobKey = tuple[str, int]
_LOCAL_ID_BITS = 26
# slurm.conf(5): MaxArraySize is 1001 by default, one more than the largest index.
_LARGEST_ARRAY = 1000
# More jobs or nodes than these are counted, not named.
_MANY = 20
# Additional seconds for each node, because many nodes may share a busy machine.
_SECONDS_A_NODE = 0.2
# The comment of every job that the harness submits, which distinguishes it from the jobs of others:
# see `Job.ours`.
MARK = "slurm-harness"
_SUBMIT = frozenset({"sbatch", "srun", "salloc"})
# Words of commands that can be repeated: queries, and changes that do not add up.
_REPEATABLE = frozenset(
    [
        *("squeue", "sinfo", "sacct", "sprio", "sshare", "sdiag", "sreport", "show", "token"),
        *("scancel", "update"),
    ]
)
# Refused if the node has been resumed already: _valid_node_state_change() in node_mgr.c.
_RESUME = "State=RESUME"
# Errors of sbatch after which slurmctld may have accepted the job nevertheless.
UNCERTAIN = (
    "timed out",
    "Zero Bytes",
    "Connection reset",
    "Unable to contact",
    "Unexpected message",
)
# SLURM_PROTOCOL_SOCKET_IMPL_TIMEOUT in Slurm's slurm_errno.c.
LATE = "Socket timed out on send/recv operation"
# squeue(1), JOB REASON CODES: reasons of a pending job while other jobs have its nodes.
_NODES_TAKEN = frozenset(
    {"None", "Resources", "Priority", "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved"}
)


# The reason of a job that slurmd could not start, until an administrator releases it.
_LAUNCH_FAILED = "launch_failed_requeued_held"


def origin_id(job_id: int) -> int:
    """Return the federation id of a job's origin cluster; 0 outside of federations.

    >>> origin_id(67108865)
    1
    """
    return job_id >> _LOCAL_ID_BITS


def job_key(cluster: str, job_id: int) -> JobKey:
    """Return the key that identifies a job.

    A federated job has the same id on all clusters; any other id is only valid on its own cluster.
    """
    return ("" if origin_id(job_id) else cluster, job_id)


@dataclass(frozen=True, slots=True)
class Job:
    """A job as squeue shows it on one cluster; `array_id` is the id of its array, or its own id."""

    job_id: int
    state: str
    node_list: str
    name: str
    user: str
    reason: str
    array_id: int
    comment: str = ""

    @property
    def ours(self) -> bool:
        """Whether the harness submitted it."""
        return self.comment == MARK

    @property
    def has_run(self) -> bool:
        """Whether it has ended on nodes.

        The copy of a federated job that ran elsewhere has none, whatever its state.
        """
        return self.state in FINISHED and self.node_list not in NO_NODES


@dataclass(frozen=True, slots=True)
class Node:
    """A node as slurmctld sees it; `state` is for example IDLE or DOWN+CLOUD+POWERED_DOWN.

    `slurmd_start` is in seconds since 1970, and `version` that of slurmd, such as 24.11.5; None if
    no slurmd has registered.
    """

    name: str
    state: str
    reason: str
    slurmd_start: int | None
    version: str | None


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition as slurmctld sees it; None means no limit."""

    name: str
    state: str
    default: bool
    nodes: tuple[str, ...]
    max_nodes: int | None
    root_only: bool
    needs_reservation: bool
    needs_group: bool

    @property
    def takes_jobs(self) -> bool:
        """Whether it starts jobs that request no reservation."""
        return self.state == "UP" and not self.needs_reservation

    @property
    def takes_jobs_of_users(self) -> bool:
        """Whether it starts such jobs of all users."""
        return self.takes_jobs and not self.root_only and not self.needs_group


@dataclass(frozen=True, slots=True)
class Reservation:
    """A reservation as slurmctld sees it. Times are in seconds since 1970."""

    name: str
    start: int
    end: int
    nodes: str
    users: str

    def __str__(self) -> str:
        start, end = (
            f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC" for at in (self.start, self.end)
        )
        return f"reservation {self.name} of {self.nodes} for {self.users} from {start} to {end}"


@dataclass(frozen=True, slots=True)
class Record:
    """A job or step in the accounting database, or a job in slurmctld's memory.

    Times are in seconds since 1970, None if they are not known yet.
    """

    job_id: int
    step: str  # "" for the job itself, else batch, extern, 0, 1, ...
    cluster: str
    name: str
    user: str
    account: str
    state: str
    exit_code: int
    signal: int
    node_list: str
    submit: int | None
    start: int | None
    end: int | None
    elapsed: int
    qos: str = ""
    partition: str = ""
    cpus: int = 0
    time_limit: str = ""  # minutes, UNLIMITED or Partition_Limit
    work_dir: str = ""
    max_rss: int | None = None  # bytes; None if it was not measured
    gid: str = ""
    eligible: int | None = None
    tres: str = ""  # allocated: cpu=1,mem=50M,node=1

    @property
    def key(self) -> JobKey:
        """The key that identifies the job."""
        return job_key(self.cluster, self.job_id)


@dataclass(frozen=True, slots=True)
class Usage:
    """The fair-share usage of a user in an account, or of an account, in billing seconds."""

    account: str
    user: str
    seconds: int


@dataclass(frozen=True, slots=True)
class Share:
    """The usage of a user, in billing seconds, and the user's fair-share factor, from 0 to 1."""

    seconds: int
    factor: float


@dataclass(frozen=True, slots=True)
class Sibling:
    """Another cluster of the federation, as one controller sees it."""

    cluster: str
    federation_id: int
    state: str
    synced: bool


class SlurmCluster:
    """A running cluster, queried on its controller.

    `submit_options` come before the other options of each submitted job. `accounting`: sacct knows
    the jobs that slurmctld has forgotten (slurm.conf(5), MinJobAge).
    """

    def __init__(
        self,
        ssh: Ssh,
        name: str,
        controller: str,
        timeout: float = 120,
        submit_options: Sequence[str] = (),
        *,
        accounting: bool = False,
    ) -> None:
        self.name = name
        self.controller = controller
        self._ssh = ssh
        self._timeout = timeout
        self._submit_options = (f"--comment={MARK}", *submit_options)
        self._accounting = accounting

    def marked(self) -> tuple[str, ...]:
        """Return the options with which jobs are submitted elsewhere than on the controller."""
        return self._submit_options

    def run(
        self, *command: str, user: str | None = None, stdin: str = "", check: bool = True
    ) -> Result:
        """Run a command on the controller, as root or an ordinary user.

        Submitted jobs are marked as the harness's. Raises LateAnswer if a daemon does not answer in
        time: members of a federation block each other for that long (fed_mgr_job_lock()). What can
        be repeated is repeated before.
        """
        repeatable = not _REPEATABLE.isdisjoint(command) and _RESUME not in command
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                return self._run(*command, user=user, stdin=stdin, check=check)
            except LateAnswer:
                if not repeatable or time.monotonic() >= deadline:
                    raise

    def _run(self, *command: str, user: str | None, stdin: str, check: bool) -> Result:
        submits = command[0] in _SUBMIT
        if submits:
            command = (command[0], *self._submit_options, *command[1:])
        try:
            return self._ssh.run(
                self.controller, command, user=user, stdin=stdin, check=check, timeout=self._timeout
            )
        except WaitTimeout as error:
            if not submits:
                raise
            raise self._explained(error) from error
        except CommandFailed as error:
            if submits or LATE not in error.stderr:
                raise
            raise LateAnswer(
                error.host, error.command_line, error.returncode, error.stdout, error.stderr
            ) from error

    def submit(self, script: str, *options: str, user: str) -> int:
        """Submit a batch script as a user, in the user's home; return the job id."""
        login = None if user == "root" else user
        answer = self.run("sbatch", "--parsable", *options, user=login, stdin=script).stdout
        return int(answer.split(";")[0])

    def submit_each(self, script: str, options: Sequence[Sequence[str]], user: str) -> list[int]:
        """Submit a batch script with each set of options, over one connection; return the job ids.

        An array is even faster: it is a single message, and a single record in slurmctld until its
        tasks start.
        """
        end = "END-OF-BATCH-SCRIPT"
        begin = (
            f"set -e; script=$(mktemp); trap 'rm \"$script\"' EXIT; cat > \"$script\" << '{end}'"
        )
        sbatch = ["sbatch", *self._submit_options, "--parsable"]
        calls = [f'{shlex.join([*sbatch, *job_options])} < "$script"' for job_options in options]
        program = "\n".join([begin, script.rstrip("\n"), end, *calls, ""])
        timeout = self._timeout + len(calls)
        answer = self._ssh.run(
            self.controller, ["sh"], user=user, stdin=program, timeout=timeout
        ).stdout
        return [int(line.split(";")[0]) for line in answer.splitlines()]

    def jobs(self, *options: str) -> list[Job]:
        """Return the jobs that squeue lists, including finished ones until MinJobAge has passed."""
        answer = self.run(
            "squeue", "--noheader", "--states=all", "--format=%A|%T|%N|%u|%r|%F|%k|%j", *options
        ).stdout
        return [parse_job(line) for line in _lines(answer) if re.match(r"\d+\|", line)]

    def priorities(self, job_ids: Sequence[int]) -> list[tuple[str, str, int]]:
        """Return the partition, QOS and priority of pending jobs, in the order of `job_ids`.

        All are of the same moment.
        """
        jobs = f"--jobs={','.join(map(str, job_ids))}"
        answer = self.run("squeue", "--noheader", "--local", "--all", jobs, "--format=%A|%P|%q|%Q")
        rows = [line.split("|") for line in _lines(answer.stdout)]
        priority_of = {int(row[0]): (row[1], row[2], int(row[3])) for row in rows}
        return [priority_of[job_id] for job_id in job_ids if job_id in priority_of]

    def times(self, *options: str) -> dict[int, dict[str, int | None]]:
        """Return when the jobs that squeue lists were submitted, started and ended.

        A time is None if it has not come yet.
        """
        query = ("squeue", "--noheader", "--states=all", "--format=%A|%T|%V|%S|%e", *options)
        return parse_times(self.run("env", "SLURM_TIME_FORMAT=%s", *query).stdout)

    def job(self, job_id: int) -> Job | None:
        """Return a job, even if it is REVOKED; None if this cluster has no job with this id."""
        return next(iter(self.jobs_of(job_id)), None)

    def jobs_of(self, job_id: int) -> list[Job]:
        """Return the jobs with an id on this cluster: one job, all tasks of an array, or none.

        The job may be REVOKED. If slurmctld has forgotten it, its end comes from accounting.
        """
        try:
            return self.jobs("--local", "--all", f"--jobs={job_id}") or self._ended(job_id)
        except CommandFailed as error:
            if "Invalid job id" in error.stderr:
                return self._ended(job_id)
            raise

    def _ended(self, job_id: int) -> list[Job]:
        """Return an ended job, or all tasks of an array, from accounting.

        The list is empty if accounting does not answer.
        """
        if not self._accounting:
            return []
        try:
            records = self.records("--local", "--allocations", f"--jobs={job_id}")
        except CommandFailed:
            return []
        last = {record.job_id: record for record in records}  # a requeued job has several
        return [
            Job(record.job_id, record.state, record.node_list, record.name, record.user, "", job_id)
            for record in last.values()
            if record.state in FINISHED
        ]

    def wait_for(
        self,
        job_ids: Iterable[int],
        states: Iterable[str] = FINISHED,
        timeout: float = 120,
        give_up: Callable[[list[Job]], bool] = lambda jobs: False,
    ) -> list[Job]:
        """Wait until all jobs, and all tasks of arrays, are in one of `states` on this cluster.

        Raises WaitTimeout early if a job has ended in another state, or is held because its launch
        failed, or `give_up` holds.
        """
        wanted, states = set(job_ids), frozenset(states)

        def look() -> list[Job]:
            jobs = [job for job in self.jobs("--local") if {job.job_id, job.array_id} & wanted]
            forgotten = wanted - {job_id for job in jobs for job_id in (job.job_id, job.array_id)}
            return jobs + [job for job_id in forgotten for job in self._ended(job_id)]

        def done(jobs: list[Job]) -> bool:
            known = {job_id for job in jobs for job_id in (job.job_id, job.array_id)}
            return wanted <= known and all(job.state in states for job in jobs)

        def lost(job: Job) -> bool:
            return job.state in FINISHED - states or (
                job.state == "PENDING" and job.reason.replace(" ", "_") == _LAUNCH_FAILED
            )

        try:
            return wait_until(
                look,
                done,
                what=f"jobs {sorted(wanted)} on {self.name} to be {'/'.join(sorted(states))}",
                timeout=timeout,
                give_up=lambda jobs: any(map(lost, jobs)) or give_up(jobs),
                show=_shown,
            )
        except WaitTimeout as error:
            raise self._explained(error) from error

    def _explained(self, error: WaitTimeout) -> HarnessError:
        """Return an error with the reasons of pending jobs.

        It is CannotVerify if jobs of other users occupy the nodes.
        """
        try:
            active = [job for job in self.jobs("--local") if job.state not in FINISHED]
        except HarnessError:
            return WaitTimeout(str(error), printed=error.printed)
        waiting = [job for job in active if job.ours and job.state == "PENDING"]
        others = [job for job in active if not job.ours and job.node_list]
        if (
            waiting
            and others
            and all(job.reason.replace(" ", "_") in _NODES_TAKEN for job in waiting)
        ):
            busy = ", ".join(
                f"{job.node_list} with job {job.job_id} of {job.user}" for job in others[:_MANY]
            )
            return CannotVerify(
                f"nodes of {self.name} are busy with jobs of others: {busy}; {error}",
                hint="wait for these jobs, or give the checks a reservation: `checks.submit`",
            )
        why = f"waiting: {_shown(waiting)}; " if waiting else ""
        return WaitTimeout(f"{why}{error}", printed=error.printed)

    def nodes(self) -> list[Node]:
        """Return all nodes, including those without a partition."""
        answer = self.run(
            "env", "SLURM_TIME_FORMAT=%s", "scontrol", "--all", "--oneliner", "show", "node"
        ).stdout
        return [parse_node(line) for line in _lines(answer) if line.startswith("NodeName=")]

    def partitions(self) -> list[Partition]:
        """Return all partitions, including hidden ones."""
        answer = self.run("scontrol", "--all", "--oneliner", "show", "partition").stdout
        return [parse_partition(line) for line in _lines(answer)]

    def reservations(self) -> list[Reservation]:
        """Return all reservations that have not ended."""
        query = ("env", "SLURM_TIME_FORMAT=%s", "scontrol", "--oneliner", "show", "reservation")
        return [
            parse_reservation(line)
            for line in _lines(self.run(*query).stdout)
            if "ReservationName=" in line
        ]

    def topology(self, *name: str) -> dict[str, tuple[str, ...]]:
        """Return the nodes of each switch, block, combined block or torus of a topology."""
        return parse_topology(self.run("scontrol", "show", "topology", *name).stdout)

    def waiting_for_slurmdbd(self) -> int:
        """Return the number of messages that slurmctld keeps until slurmdbd accepts them."""
        match = re.search(r"DBD Agent queue size:\s*(\d+)", self.run("sdiag").stdout)
        return int(match[1]) if match else 0

    def wait_for_slurmdbd(self, timeout: float) -> None:
        """Wait until slurmdbd has accepted all messages."""
        wait_until(
            self.waiting_for_slurmdbd,
            lambda waiting: not waiting,
            what=f"slurmdbd to take the messages of {self.name}",
            timeout=timeout,
        )

    def usage(self) -> list[Usage]:
        """Return the fair-share usage of each association; none if slurmctld does not count it."""
        if "priority/basic" in self.run("scontrol", "show", "config").stdout:
            return []
        rows = self._sshare("Account,User,RawUsage")
        return [Usage(account.strip(), user, int(seconds or 0)) for account, user, seconds in rows]

    def shares(self, account: str) -> dict[str, Share]:
        """Return the usage and the fair-share factor of each user of an account."""
        rows = self._sshare("User,RawUsage,FairShare", f"--accounts={account}")
        return {user: Share(int(seconds), float(factor)) for user, seconds, factor in rows if user}

    def _sshare(self, columns: str, *options: str) -> list[list[str]]:
        """Return what sshare prints about accounts and users."""
        fixed = ("sshare", "--all", "--parsable2", "--noheader", f"--format={columns}")
        return [line.split("|") for line in _lines(self.run(*fixed, *options).stdout)]

    def token(self, user: str, lifespan: int) -> str:
        """Return a token for a user, as an administrator gets it, valid for `lifespan` seconds."""
        answer = self.run("scontrol", "token", f"username={user}", f"lifespan={lifespan}").stdout
        return answer.strip().removeprefix("SLURM_JWT=")

    def controller_failed(self) -> bool:
        """Return whether systemd has seen slurmctld fail on the controller."""
        answer = self.run("systemctl", "is-failed", "--quiet", "slurmctld", check=False)
        return answer.exit_code == 0

    def siblings(self) -> list[Sibling]:
        """Return all clusters of the federation, this one first; empty if it is in none."""
        answer = self.run("scontrol", "show", "federation").stdout
        return parse_federation(answer)

    def records(self, *options: str) -> list[Record]:
        """Return the accounting records of jobs and steps.

        They include duplicates, and are of this cluster unless `options` say otherwise.
        """
        fields = "JobIDRaw,Cluster,JobName,User,Account,State,ExitCode,NodeList,Submit,Start,End"
        fields += ",ElapsedRaw,QOS,Partition,AllocCPUS,TimelimitRaw,WorkDir,MaxRSS,GID"
        fields += ",Eligible,AllocTRES"
        answer = self.run(
            "env",
            "SLURM_TIME_FORMAT=%s",
            "sacct",
            "--parsable2",
            f"--delimiter={SEPARATOR}",
            "--noheader",
            "--allusers",
            "--duplicates",
            "--starttime=2000-01-01",
            f"--format={fields}",
            *options,
        ).stdout
        return [parse_record(line) for line in _lines(answer)]

    def records_of_all(self, *options: str) -> list[Record]:
        """Return the accounting records, also of jobs that were cancelled before they could start.

        Such a job depended on another, was held, or had a later begin time. sacct lists it only if
        it is asked for jobs that ended in this state until now: sacct(1), --state.
        """
        seen = self.records(*options)
        cancelled = self.records(*options, "--state=CANCELLED", "--endtime=now")
        listed = {*seen}
        return [*seen, *(record for record in cancelled if record not in listed)]

    def remembered(self) -> list[Record]:
        """Return the jobs in slurmctld's memory.

        These are pending and running jobs, and ended ones until MinJobAge has passed.
        """
        query = ("scontrol", "--all", "--local", "--oneliner", "show", "job")
        answer = self.run("env", "SLURM_TIME_FORMAT=%s", *query).stdout
        return [
            parse_remembered(line, self.name)
            for line in _lines(answer)
            if line.startswith("JobId=")
        ]


def clusters(ssh: Ssh, plan: Plan, timeout: float = 120) -> dict[str, SlurmCluster]:
    """Return the running clusters of a plan by name.

    A command times out after `timeout` seconds, or later if the cluster has many nodes.
    """
    scenario = plan.scenario
    return {
        name: SlurmCluster(
            ssh,
            name,
            part.controller,
            timeout + len(part.node_names()) * _SECONDS_A_NODE,
            scenario.checks.submit,
            accounting=scenario.accounting is not None,
        )
        for name, part in scenario.clusters.items()
    }


def array_sizes(count: int) -> list[int]:
    """Return the sizes of the smallest number of arrays that together have `count` tasks.

    >>> array_sizes(2300)
    [1000, 1000, 300]
    """
    return [min(_LARGEST_ARRAY, count - begun) for begun in range(0, count, _LARGEST_ARRAY)]


def _shown(jobs: Sequence[Job]) -> str:
    """Return the state of each job, or for many jobs the number of jobs in each state."""
    if len(jobs) > _MANY:
        return ", ".join(
            f"{count} {state}" for state, count in Counter(job.state for job in jobs).items()
        )
    places = [f" on {job.node_list}" if job.node_list else "" for job in jobs]
    shown = (
        f"{job.job_id} {job.state}{place} ({job.reason})"
        for job, place in zip(jobs, places, strict=True)
    )
    return ", ".join(shown) or "no job"


def left_copies(jobs_on: Mapping[str, Sequence[Job]]) -> dict[str, set[int]]:
    """Return, for each cluster, its sibling jobs that have ended on other clusters.

    A cluster that was disconnected may get them from the origin cluster after they were revoked.
    They never run and never disappear.
    """
    ended = {
        job.job_id
        for jobs in jobs_on.values()
        for job in jobs
        if job.state in FINISHED - {"REVOKED"}
    }
    return {
        name: {job.job_id for job in jobs if job.reason == "FedJobLock" and job.job_id in ended}
        for name, jobs in jobs_on.items()
    }


def prints_exit_code(printed: int, code: int | None) -> bool:
    """Return whether sacct may print this for an exit code.

    Up to 25.05, it subtracts 128 from 128 and more (src/sacct/print.c).

    >>> prints_exit_code(105, 233)
    True
    """
    return printed == code or (code is not None and code >= 128 and printed == code - 128)


def parse_job(line: str) -> Job:
    """Read one line of squeue. The comment and the name, which users choose, come last.

    >>> parse_job("7|RUNNING|n1|alice|None|7|slurm-harness|a|b").name
    'a|b'
    """
    job_id, state, node_list, user, reason, array_id, comment, name = line.split("|", 7)
    return Job(int(job_id), state, node_list, name, user, reason, int(array_id), comment)


def parse_node(line: str) -> Node:
    """Read one line of `scontrol --oneliner show node`.

    >>> node = parse_node("NodeName=c1 State=DOWN+DRAIN Version=24.11.5 Reason=no fan [root@1]")
    >>> node.state, node.reason, node.slurmd_start, node.version
    ('DOWN+DRAIN', 'no fan [root@1]', None, '24.11.5')
    """
    reason = re.search(r" Reason=(.*?)(?: Comment=|\s*$)", line)
    state = re.search(r" State=(\S+)", line)
    start = re.search(r" SlurmdStartTime=(\S+)", line)
    version = re.search(r" Version=(\S+)", line)
    name = line.partition(" ")[0].removeprefix("NodeName=")
    return Node(
        name,
        node_state.normalized(state[1]) if state else "",
        reason[1] if reason else "",
        _time(start[1]) if start else None,
        version[1] if version else None,
    )


def parse_partition(line: str) -> Partition:
    """Read one line of `scontrol --oneliner show partition`.

    >>> line = "PartitionName=p AllowAccounts=ALL Default=YES MaxNodes=2 Nodes=c[1-2] State=UP"
    >>> parse_partition(line).nodes
    ('c1', 'c2')
    """
    facts = dict(re.findall(r"(\w+)=(\S*)", line))
    nodes = facts.get("Nodes", "")
    limit = facts.get("MaxNodes", "UNLIMITED")
    return Partition(
        name=facts["PartitionName"],
        state=facts["State"],
        default=facts.get("Default") == "YES",
        nodes=hostlist.expand(nodes) if nodes not in {"", "(null)"} else (),
        max_nodes=None if limit == "UNLIMITED" else int(limit),
        root_only=facts.get("RootOnly") == "YES",
        needs_reservation=facts.get("ReqResv") == "YES",
        needs_group=facts.get("AllowGroups", "ALL") != "ALL",
    )


def parse_reservation(line: str) -> Reservation:
    """Read one line of `scontrol --oneliner show reservation`.

    >>> line = "ReservationName=r StartTime=60 EndTime=120 Nodes=c1 Users=(null) Accounts=physics"
    >>> str(parse_reservation(line))
    'reservation r of c1 for physics from 1970-01-01 00:01 UTC to 1970-01-01 00:02 UTC'
    """
    facts = dict(re.findall(r"(\w+)=(\S*)", line))
    users = [
        facts[name]
        for name in ("Users", "Groups", "Accounts", "QOS")
        if facts.get(name, "(null)") != "(null)"
    ]
    return Reservation(
        name=facts["ReservationName"],
        start=int(facts["StartTime"]),
        end=int(facts["EndTime"]),
        nodes=facts.get("Nodes", "(null)"),
        users=",".join(users) or "nobody",
    )


def parse_times(text: str) -> dict[int, dict[str, int | None]]:
    """Read `squeue --format="%A|%T|%V|%S|%e"`, whose start and end may only be estimates.

    >>> parse_times("7|RUNNING|1700000000|1700000005|1700003605")
    {7: {'submit': 1700000000, 'start': 1700000005, 'end': None}}
    """
    times = {}
    for line in _lines(text):
        job_id, state, submit, start, end = line.split("|")
        times[int(job_id)] = {
            "submit": _time(submit),
            "start": None if state == "PENDING" else _time(start),
            "end": _time(end) if state in FINISHED else None,
        }
    return times


def parse_topology(text: str) -> dict[str, tuple[str, ...]]:
    """Read `scontrol show topology`.

    >>> parse_topology("SwitchName=s1 Level=0 LinkSpeed=1 Nodes=c[1-2]")
    {'s1': ('c1', 'c2')}
    >>> parse_topology("AggregatedBlock=b2,b1 BlockIndex=2 Nodes=c[1-4] BlockSize=4")
    {'b[1-2]': ('c1', 'c2', 'c3', 'c4')}
    """
    rows = re.findall(
        r"^(?:SwitchName|BlockName|AggregatedBlock|TorusName)=(\S+) .*\bNodes=(\S+)", text, re.M
    )
    return {hostlist.fold(hostlist.expand(name)): hostlist.expand(nodes) for name, nodes in rows}


def parse_record(line: str) -> Record:
    """Read one line of `sacct --parsable2`, whose columns SEPARATOR separates."""
    job, cluster, name, user, account, state, exit_code, node_list, *rest = line.split(SEPARATOR)
    submit, start, end, elapsed, qos, partition, cpus, time_limit, work_dir, *rest = rest
    max_rss, gid, eligible, tres = rest
    job_id, _, step = job.partition(".")
    # A cancelled step may have no exit code.
    code, signal = (exit_code or "0:0").split(":")
    return Record(
        job_id=int(job_id),
        step=step,
        cluster=cluster,
        name=name,
        user=user,
        account=account,
        state=state.split()[0],  # "CANCELLED by 2001"
        exit_code=int(code),
        signal=int(signal),
        node_list=node_list,
        submit=_time(submit),
        start=_time(start),
        end=_time(end),
        elapsed=int(elapsed),
        qos=qos,
        partition=partition,
        cpus=int(cpus or 0),
        time_limit=time_limit,
        work_dir=work_dir,
        max_rss=_bytes(max_rss),
        gid=gid,
        eligible=_time(eligible),
        tres=tres,
    )


def parse_remembered(line: str, cluster: str) -> Record:
    """Read one line of `scontrol --oneliner show job`.

    Of several states, such as REVOKED|COMPLETING, the first counts.
    """
    facts: dict[str, str] = {}
    for name, value in re.findall(r"(?<!\S)([A-Z]\w*)=(\S*)", line):
        facts.setdefault(name, value)
    job_name = re.search(r" JobName=(.*?)(?: HetJobIdSet=\S*)? UserId=", line)
    code, _, signal = facts["ExitCode"].partition(":")
    ended = facts["JobState"] in FINISHED
    return Record(
        job_id=int(facts["JobId"]),
        step="",
        cluster=cluster,
        name=_some(job_name[1]) if job_name else "",  # 26.05: (null) for a job of a REST client
        user=facts["UserId"].partition("(")[0],
        account=facts["Account"],
        state=facts["JobState"],
        exit_code=int(code),
        signal=int(signal),
        node_list=_some(facts.get("NodeList", "")),
        submit=_time(facts["SubmitTime"]),
        start=None if facts["JobState"] == "PENDING" else _time(facts["StartTime"]),
        end=_time(facts["EndTime"]) if ended else None,
        elapsed=durations.seconds(facts["RunTime"], unit=1),
        qos=_some(facts["QOS"]),
        partition=facts["Partition"],
        cpus=int(facts["NumCPUs"].partition("-")[0]),
        time_limit=_minutes(facts["TimeLimit"]),
        work_dir=_some(facts.get("WorkDir", "")),
        gid=re.sub(r".*\((\d+)\)", r"\1", facts.get("GroupId", "")),
        eligible=_time(facts.get("EligibleTime", "Unknown")),
        tres=_some(facts.get("AllocTRES", facts.get("TRES", ""))),  # until 22.05: TRES
    )


def parse_details(text: str) -> dict[str, str]:
    """Read `scontrol --oneliner show job`; values can contain blanks.

    >>> parse_details("JobId=7 Command=/bin/my prog WorkDir=/tmp StdOut=/tmp/o")["Command"]
    '/bin/my prog'
    """
    return dict(
        re.findall(r"(?:^|(?<= ))([A-Z][\w/:]*)=(.*?)(?= [A-Z][\w/:]*=|\s*$)", text.strip())
    )


def _some(text: str) -> str:
    return "" if text in {"(null)", "N/A"} else text


def _minutes(text: str) -> str:
    return str(durations.seconds(text, unit=1) // 60) if text[:1].isdigit() else text


def _bytes(text: str) -> int | None:
    """Read a size as sacct prints it.

    >>> _bytes("2048K"), _bytes("0"), _bytes("")
    (2097152, 0, None)
    """
    match = re.fullmatch(r"([\d.]+)([KMGTP]?)", text)
    return int(float(match[1]) * 1024 ** " KMGTP".index(match[2] or " ")) if match else None


def parse_federation(text: str) -> list[Sibling]:
    """Read `scontrol show federation`.

    >>> parse_federation("Self: a:10.0.0.1:6817 ID:1 FedState:ACTIVE Features:")
    [Sibling(cluster='a', federation_id=1, state='ACTIVE', synced=True)]
    """
    siblings = []
    for line in text.splitlines():
        match = re.search(r"(Self|Sibling):\s+([^:\s]+):\S* ID:(\d+) FedState:(\S+)", line)
        if match:
            kind, cluster, federation_id, state = match.groups()
            synced = kind == "Self" or (
                "Synced:Yes" in line and "PersistConnSend/Recv:Yes/Yes" in line
            )
            siblings.append(Sibling(cluster, int(federation_id), state, synced))
    return siblings


def not_ready(plan: Plan, run: dict[str, SlurmCluster], *, idle: bool = False) -> list[str]:
    """Return what keeps clusters from accepting jobs: nodes out of service, unconnected siblings.

    With `idle`, running jobs count as well.
    """
    missing = []
    for name, cluster in run.items():
        known = {node.name: node for node in cluster.nodes()}
        provision_of = plan.scenario.clusters[name].provision_of()
        for node_name in provision_of:
            node = known.get(node_name)
            # The operator starts together with the checks.
            if (
                node
                and plan.scenario.clusters[name].kubernetes
                and node_state.waits_for_operator(node.state, node.reason)
            ):
                continue
            if node is None or not _is_ready(
                node, static=provision_of[node_name] == "static", idle=idle
            ):
                state = (
                    f"{node.state} ({node.reason or 'no reason given'})"
                    if node
                    else "unknown to slurmctld"
                )
                missing.append(f"{name}: {node_name} {state}")
    missing += [f"{name}: sibling {other} not connected" for name, other in _unconnected(plan, run)]
    return missing


def reconfigure(cluster: SlurmCluster) -> None:
    """Reconfigure slurmctld; repeat the request if its answer does not arrive.

    slurmctld answers once a new process has read everything (_attempt_reconfig() in controller.c),
    which on a busy machine may take longer than scontrol waits: MessageTimeout.
    """

    def reconfigure() -> str:
        try:
            cluster.run("scontrol", "reconfigure")
        except CommandFailed as error:
            if not any(words in error.stderr for words in UNCERTAIN):
                raise
            return str(error)
        return ""

    wait_until(
        reconfigure,
        lambda problem: not problem,
        what=f"slurmctld of {cluster.name} to be reconfigured",
        timeout=180,
        give_up=lambda _: cluster.controller_failed(),
    )


def connect_siblings(
    plan: Plan, run: dict[str, SlurmCluster], say: Callable[[str], None], timeout: float = 90
) -> None:
    """Wait until the members of each federation are connected; restart one that never will be.

    A slurmctld that starts may lose its connection to a sibling forever: if the sibling connects
    to it twice at the same moment, the end of the first connection also closes the second, and
    nothing but a restart is sure to open it again. See _open_persist_sends() and
    _persist_callback_fini() in Slurm's fed_mgr.c. A slurmctld that does not answer is left alone.
    """

    def look() -> list[tuple[str, str]]:
        try:
            if not (missing := [*_unconnected(plan, run)]):
                return []
        except CommandFailed:
            if not has_failed():
                raise
            return []
        return [] if has_failed() else missing

    def has_failed() -> bool:  # the wait for the cluster reports why
        return any(cluster.controller_failed() for cluster in run.values())

    try:
        wait_until(
            look,
            lambda missing: not missing,
            what="the members of federations to connect",
            timeout=timeout,
            ignore=(CommandFailed, WaitTimeout),
        )
    except WaitTimeout:
        with suppress(CommandFailed, WaitTimeout):
            if missing := [*_unconnected(plan, run)]:
                name, other = missing[0]
                say(f"{name} lost its connection to {other} at the start: restarting its slurmctld")
                run[name].run("systemctl", "restart", "slurmctld")


def _unconnected(plan: Plan, run: dict[str, SlurmCluster]) -> Iterator[tuple[str, str]]:
    """Yield each member of a federation with each sibling to which it is not connected."""
    for federation in plan.scenario.federations.values():
        for name in federation.clusters:
            siblings = run[name].siblings()
            for other in federation.clusters:
                if not any(sibling.cluster == other and sibling.synced for sibling in siblings):
                    yield name, other


def _is_ready(node: Node, *, static: bool, idle: bool) -> bool:
    if not static and node_state.is_powered_down(node.state):
        return True
    return (
        node_state.is_idle(node.state)
        if static and idle
        else not idle and node_state.takes_jobs(node.state)
    )


def wait_until_ready(
    plan: Plan, run: dict[str, SlurmCluster], timeout: float = 300, *, idle: bool = False
) -> None:
    """Wait until every cluster accepts jobs on all its nodes; WaitTimeout says what is missing.

    With `idle`, also wait until all jobs have ended. The limit is `timeout` seconds, or more if
    there are many nodes; it ends at once if the only controller of a cluster has failed.
    """
    nodes = sum(len(cluster.node_names()) for cluster in plan.scenario.clusters.values())

    def look() -> list[str]:
        try:
            return not_ready(plan, run, idle=idle)
        except CommandFailed as error:
            for name, cluster in run.items():
                if (
                    not plan.scenario.clusters[name].backup_controllers
                    and cluster.controller_failed()
                ):
                    raise WaitTimeout(
                        f"slurmctld of {name} has failed on {cluster.controller}"
                    ) from error
            raise

    wait_until(
        look,
        lambda missing: not missing,
        what="the clusters to be ready",
        timeout=timeout + nodes * _SECONDS_A_NODE,
        show=lambda missing: "; ".join(
            [*missing[:_MANY], *[f"{len(missing)} in all"] * (len(missing) > _MANY)]
        ),
        ignore=(CommandFailed,),
    )


def _lines(text: str) -> Sequence[str]:
    # For several clusters, squeue and sinfo print "CLUSTER: name" before the lines of each.
    return [line for line in text.splitlines() if line and not line.startswith("CLUSTER: ")]


def _time(text: str) -> int | None:
    return int(text) if text.isdigit() and int(text) > 0 else None
