"""What the checks share.

A check leaves the clusters as it found them: its jobs are gone before the next check starts.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

import pytest

from harness import lifecycle, providers, releases, render, slurm_options
from harness.cluster import logs, slurm
from harness.cluster.slurm import FINISHED, Job, JobKey, Reservation, SlurmCluster, job_key
from harness.elastic import node_failures, provisioning
from harness.errors import CommandFailed, HarnessError, WaitTimeout
from harness.kubernetes import hybrid_cluster
from harness.kubernetes.hybrid_cluster import HybridCluster
from harness.open_run import OpenRun
from harness.parsing import hostlist
from harness.plan import Plan
from harness.rundir import RunDir
from harness.scenario import User
from harness.slurmconf import drift
from harness.ssh import Ssh
from harness.testing import Federation
from harness.verify import checks_plugin, job_trace
from harness.verify.job_trace import JobTrace
from harness.wait import wait_until

pytest_plugins = ("early_jobs",)

# Seconds in which a script that looks at all files of a host ends, even on a busy machine.
READS_ALL_FILES = 300
# Creates the smallest root file system that a container can have, in an empty directory.
SMALLEST_ROOT = """
mkdir -p dev etc home proc sys tmp var usr/bin; ln -s usr/bin bin
cp "$(command -v busybox)" usr/bin/busybox
for program in sh cat id env echo grep setsid sleep; do ln -s busybox usr/bin/$program; done
echo inside > where
"""


# A slurmdbd that is stopped wakes its own thread with SIGUSR1, perhaps when it no longer handles
# signals: rpc_mgr_wake() in Slurm's rpc_mgr.c.
ENDED_BY_ITS_OWN_SIGNAL = r"slurmdbd\.service: Main process exited, code=killed, status=10/USR1"
# What slurmctld logs if it cannot save jobs: save_buf_to_state() in state_save.c, and until 24.05
# dump_all_job_state() in job_mgr.c.
_NOT_SAVED = "(Can.t save state, .*|Error writing file )[^ ]*/job_state"


@dataclass
class Jobs:
    """Submits jobs that leave a trace, and keeps a list of them."""

    ssh: Ssh
    plan: Plan
    users: list[str]
    submitted: list[JobKey] = field(default_factory=list)
    # Jobs by the fixture that started them (see early_jobs.py), until the check that uses it ends.
    early: dict[str, set[JobKey]] = field(default_factory=dict)
    # Jobs that did not end when they were cancelled.
    stuck: set[JobKey] = field(default_factory=set)
    _access_options: dict[str, list[str]] = field(default_factory=dict)

    @property
    def user(self) -> str:
        """The user to whom jobs belong, unless a check says otherwise."""
        return self.users[0]

    def user_of(self, cluster: str, partition: drift.Options) -> str:
        """Return the first user who has an account, a QOS and a group that a partition allows."""
        users = self.plan.scenario.of_cluster(cluster).users
        allowed = (
            name
            for name in self.users
            if name in users and _allows(partition, users[name]) and self._is_in(partition, name)
        )
        return next(allowed, self.user)

    def _is_in(self, partition: drift.Options, user: str) -> bool:
        """Return whether a user is in one of the groups that a partition allows."""
        allowed = partition.get("allowgroups") or "ALL"
        own = self.plan.scenario.groups_of(user)
        return allowed.upper() == "ALL" or bool(own & {*allowed.split(",")})

    def partition_options(self, cluster: str, partition: drift.Options) -> list[str]:
        """Return the options for the account and QOS that `user_of` needs for a partition.

        If the partition does not restrict accounts or QOS, there is no option for them. There is
        one for memory if jobs without it get all memory of their nodes.
        """
        users = self.plan.scenario.of_cluster(cluster).users
        user = users[self.user_of(cluster, partition)]
        return [
            *self._memory_options(cluster),
            *(
                f"--{option}={next(iter(own), names[0])}"
                for option, names, own in _allowed(partition, user)
            ),
        ]

    def submit(
        self,
        cluster: SlurmCluster,
        body: str,
        *options: str,
        user: str | None = None,
        target: SlurmCluster | None = None,
    ) -> int:
        """Submit a trace job on a cluster's controller and return its id; discard its output.

        If there is a `target`, the job is submitted to that cluster, not in the same federation.
        """
        script = job_trace.script(body)
        to_target = [f"--clusters={target.name}"] if target else []
        access_options = self.access_options(target or cluster)
        job_id = cluster.submit(
            script,
            "--output=/dev/null",
            *to_target,
            *access_options,
            *options,
            user=user or self.user,
        )
        self.submitted.append(job_key((target or cluster).name, job_id))
        return job_id

    def submit_here(
        self, cluster: SlurmCluster, body: str, *options: str, user: str | None = None
    ) -> int:
        """Submit a job that no other cluster of a federation may take."""
        return self.submit(cluster, body, *only(cluster, self.plan), *options, user=user)

    def wait_until_begun(self, cluster: SlurmCluster, job_ids: Collection[int]) -> None:
        """Wait until jobs run, and their scripts have begun.

        Only then do they end as soon as they are cancelled: slurmstepd sends no SIGTERM to a task
        that it has not executed yet (proctrack/linuxproc, kill_tree.c), which is killed after
        KillWait.
        """
        cluster.wait_for(job_ids, {"RUNNING"})
        wait_until(
            lambda: {trace.job_id for trace in self.traces() if trace.cluster == cluster.name},
            {*job_ids}.issubset,
            what=f"the scripts of jobs {sorted(job_ids)} on {cluster.name} to begin",
            timeout=120,
            show=lambda begun: f"those of {sorted(begun & {*job_ids})} have begun",
        )

    def access_options(self, cluster: SlurmCluster) -> list[str]:
        """Return the options that jobs need in a cluster's default partition.

        If there is none, those for the first partition.
        """
        if cluster.name not in self._access_options:
            conf = slurm_conf(self.plan, cluster.name)
            name = conf.default_partition()
            line = conf.partitions[name]
            named = [] if drift.holds(line, "Default") else [f"--partition={name}"]
            self._access_options[cluster.name] = [
                *named,
                *self.partition_options(cluster.name, line),
            ]
        return self._access_options[cluster.name]

    def _memory_options(self, cluster: str) -> list[str]:
        """Return the option for memory if jobs have no default: DefMemPerCPU and others."""
        parts = self.plan.scenario.clusters[cluster].partitions.values()
        options = [self.plan.slurm_conf(cluster), *(part.options for part in parts)]
        names = {name.lower() for part in options for name, value in part.items() if value}
        has_default = any(name.startswith("defmem") for name in names)
        return [] if has_default else little_memory(self.plan, cluster)

    def left_alone(self) -> set[JobKey]:
        """Return the jobs that do not belong to the check that runs."""
        return self.stuck.union(*self.early.values())

    def traces(self) -> list[JobTrace]:
        """Return the traces of all jobs so far."""
        return job_trace.collect(self.ssh, self.places())

    def places(self) -> list[str]:
        """Return the hosts with the directories that jobs write to."""
        return [
            host.name for host in self.plan.permanent_hosts() if host.nodes or host.with_elastic
        ]


@dataclass
class PoweringUp:
    """Waits for nodes to power up; after the first wait that times out, all others fail at once."""

    run: OpenRun
    clusters: Mapping[str, SlurmCluster]
    # The nodes that did not register, and the check that waited for them.
    timed_out: str = ""

    @contextmanager
    def by(self, check: str) -> Iterator[None]:
        """Fail at once if nodes did not come for an earlier check; record it if they do not now."""
        if self.timed_out:
            raise WaitTimeout(f"not tried, because an earlier check timed out: {self.timed_out}")
        began = time.time()
        try:
            yield
        except HarnessError:
            late: set[str] = set()
            for name, cluster in self.clusters.items():
                if self.run.plan.scenario.clusters[name].elastic():
                    with suppress(HarnessError):
                        late |= node_failures.given_up(self.run, cluster, began)
            if late:
                nodes = hostlist.fold(late)
                self.timed_out = f"{nodes} did not register within ResumeTimeout ({check})"
            raise


Powering = Callable[[], AbstractContextManager[None]]


def everywhere(function, names):  # noqa: ANN001, ANN201  any function of a host's or cluster's name
    """Call a function for each name, in parallel; return the result for each."""
    with ThreadPoolExecutor(8) as pool:
        return dict(zip(names, pool.map(function, names), strict=True))


def problems_on(hosts: Iterable[str], look: Callable[[str], Iterable[str]]) -> list[str]:
    """Return the problems that `look` finds on each host; all hosts are looked at in parallel."""
    found = everywhere(lambda host: [*look(host)], [*hosts])
    return [line for lines in found.values() for line in lines]


def database_rows(ssh: Ssh, host: str, query: str) -> list[tuple[str, ...]]:
    """Return the rows with which the MariaDB of a host answers a query."""
    answer = ssh.run(host, ["mariadb", "-N", "-B", "-e", query]).stdout
    return [tuple(line.split("\t")) for line in answer.splitlines()]


def address_of(ssh: Ssh, host: str) -> str:
    """Return the IPv4 address that a host's name has on the host itself."""
    return ssh.run(host, ["getent", "ahostsv4", host]).stdout.split()[0]


def listening(ssh: Ssh, host: str, port: int | str) -> set[str]:
    """Return the addresses, each with the port, at which a host accepts connections at a port."""
    sockets = ["ss", "--no-header", "--listening", "--numeric", "--tcp", f"sport = :{port}"]
    return {line.split()[3] for line in ssh.run(host, sockets).stdout.splitlines()}


def longest(plan: Plan, cluster: str) -> float:
    """Return the longest time, in minutes, that every partition lets a job run."""
    partitions = plan.scenario.clusters[cluster].partitions.values()
    limits = (slurm_options.get(partition.options, "MaxTime") for partition in partitions)
    return min((slurm_options.minutes(str(limit)) for limit in limits if limit), default=inf)


def over_time(plan: Plan, cluster: str) -> float:
    """Return for how many minutes at most a job may run beyond its limit: OverTimeLimit."""
    partitions = plan.scenario.clusters[cluster].partitions.values()
    options = [plan.slurm_conf(cluster), *(partition.options for partition in partitions)]
    limits = [slurm_options.get(part, "OverTimeLimit") for part in options]
    return max((slurm_options.minutes(str(limit)) for limit in limits if limit), default=0)


def small(plan: Plan, cluster: str, minutes: int) -> tuple[str, ...]:
    """Return the options of a job that is as small as possible.

    It may run for `minutes`, or for as long as every partition allows.
    """
    allowed = min(minutes, longest(plan, cluster))
    return ("--ntasks=1", *little_memory(plan, cluster), f"--time={max(1, int(allowed))}")


def little_memory(plan: Plan, cluster: str) -> list[str]:
    """Return the option for little memory, if jobs are allocated memory in every partition."""
    has_memory = slurm_options.has_memory(plan.scenario.clusters[cluster])
    return ["--mem=50"] if has_memory and all(_counts_memory(plan, cluster)) else []


def takes_one_job(plan: Plan, cluster: str) -> bool:
    """Return whether a node has a single MiB, of which a job gets all: no RealMemory."""
    has_memory = slurm_options.has_memory(plan.scenario.clusters[cluster])
    return not has_memory and any(_counts_memory(plan, cluster))


def _counts_memory(plan: Plan, cluster: str) -> Iterator[bool]:
    """Yield whether jobs are allocated memory: by default, and in partitions that say so."""
    parts = plan.scenario.clusters[cluster].partitions.values()
    # Without SelectTypeParameters, memory counts since 21.08.
    conf = plan.slurm_conf(cluster)
    yield "memory" in (slurm_options.get(conf, "SelectTypeParameters") or "CR_Core_Memory").lower()
    for part in parts:
        if own := slurm_options.get(part.options, "SelectTypeParameters"):
            yield "memory" in str(own).lower()


def current_reservations(
    cluster: SlurmCluster, plan: Plan
) -> tuple[list[Reservation], list[Reservation]]:
    """Return a cluster's reservations, except for those that the scenario has for later.

    First those that the scenario defines and that are active or begin within a day, then all
    others. A reservation delays jobs that may run past its start, however late it begins: jobs
    without a time limit.
    """
    defined = plan.scenario.clusters[cluster.name].reservations
    soon = time.time() + 24 * 3600
    reservations = cluster.reservations()
    return (
        [one for one in reservations if one.name in defined and one.start < soon],
        [one for one in reservations if one.name not in defined],
    )


def reserved_nodes(cluster: SlurmCluster, plan: Plan) -> set[str]:
    """Return the nodes that the scenario reserves now, or within a day.

    Nodes of other reservations are not included: checks that need such a node fail.
    """
    defined, _ = current_reservations(cluster, plan)
    return {
        node
        for reservation in defined
        if reservation.nodes != "(null)"
        for node in hostlist.expand(reservation.nodes)
    }


def only(cluster: SlurmCluster, plan: Plan) -> list[str]:
    """Return the option that keeps a job on a cluster, if there is a federation."""
    return [f"--clusters={cluster.name}"] if plan.scenario.federations else []


def small_here(cluster: SlurmCluster, plan: Plan, jobs: Jobs, minutes: int) -> list[str]:
    """Return the options of a small job that no other cluster of a federation may take."""
    return [
        *only(cluster, plan),
        *jobs.access_options(cluster),
        *small(plan, cluster.name, minutes),
    ]


def slurm_conf(plan: Plan, cluster: str) -> drift.Rendered:
    """Return a cluster's slurm.conf as rendered, which checks compare with the live cluster."""
    return drift.read(render.slurm_conf(plan, cluster))


def _allowed(partition: drift.Options, user: User) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield an option that a partition restricts, the names it allows, and those the user has."""
    for option, limit, own in (
        ("account", "allowaccounts", user.accounts),
        ("qos", "allowqos", ("normal", *user.qos)),
    ):
        allowed = partition.get(limit) or "ALL"
        if allowed.upper() != "ALL":
            names = allowed.split(",")
            yield option, names, [name for name in own if name in names]


def _allows(partition: drift.Options, user: User) -> bool:
    return all(own for _, _, own in _allowed(partition, user))


@pytest.fixture(scope="session")
def harness_run(pytestconfig: pytest.Config) -> OpenRun:
    """The run under test, in any state: the checks report what is wrong with it."""
    run = RunDir(Path(pytestconfig.getoption("--harness-run")))
    return lifecycle.open_run(run, providers.get(run.provider, run.root), print)


@pytest.fixture(scope="session")
def run(harness_run: OpenRun) -> RunDir:
    """The directory of the run under test."""
    return harness_run.directory


@pytest.fixture(scope="session")
def plan(harness_run: OpenRun) -> Plan:
    """The plan of the run."""
    return harness_run.plan


@pytest.fixture(scope="session")
def ssh(harness_run: OpenRun) -> Ssh:
    """Commands on hosts."""
    return harness_run.ssh


@pytest.fixture(scope="session")
def users(plan: Plan) -> list[str]:
    """The users of the scenario.

    Those with accounts on all clusters and without rights over others' jobs come first, and of
    these the ones whom more partitions allow.
    """
    partitions = [
        (plan.scenario.of_cluster(cluster).users, line)
        for cluster in plan.scenario.clusters
        for line in slurm_conf(plan, cluster).partitions.values()
    ]

    def rank(name: str) -> tuple[bool, bool, int]:
        lacks_accounts = not all(people[name].accounts for people, _ in partitions)
        closed = sum(not _allows(line, people[name]) for people, line in partitions)
        return lacks_accounts, plan.scenario.users[name].privileged, closed

    return sorted(plan.scenario.users, key=rank)


@pytest.fixture(scope="session")
def jobs(ssh: Ssh, plan: Plan, users: list[str]) -> Jobs:
    """The session's jobs, which belong to the first user unless a check says otherwise."""
    return Jobs(ssh, plan, users or ["root"])


@pytest.fixture(scope="session")
def powering(harness_run: OpenRun, clusters: dict[str, SlurmCluster]) -> PoweringUp:
    """What the session knows of nodes that do not come."""
    return PoweringUp(harness_run, clusters)


@pytest.fixture
def powering_up(request: pytest.FixtureRequest, powering: PoweringUp) -> Powering:
    """A context in which a check waits for nodes to come."""
    return lambda: powering.by(request.node.name)


@pytest.fixture(autouse=True)
def clean_queue(
    request: pytest.FixtureRequest, clusters: dict[str, SlurmCluster], jobs: Jobs
) -> Iterator[None]:
    """Cancel the harness's jobs that a check left behind, and wait until they are gone.

    All other jobs are left alone, and no cluster is asked after a check that runs no jobs.
    """
    yield
    if checks_plugin.only_looks(request.function):
        return
    for name in request.node.fixturenames:
        jobs.early.pop(name, None)
    if not (left := active_jobs(clusters, jobs)):
        return
    cancel(clusters, left)
    try:
        wait_until(
            lambda: active_jobs(clusters, jobs),
            lambda left: not left,
            what="all jobs to end on every cluster",
            timeout=180,
            show=lambda left: "; ".join(f"{name}: job {job_id} is left" for name, job_id in left),
        )
    except WaitTimeout:
        # The check that left them behind has reported them; later clean-ups need not wait again.
        jobs.stuck |= {job_key(*job) for job in active_jobs(clusters, jobs)}
        raise


def active_jobs(
    clusters: Mapping[str, SlurmCluster], jobs: Jobs | None = None
) -> list[tuple[str, int]]:
    """Return the harness's jobs that have not ended.

    Copies that never run are left out, and with `jobs` those that a check leaves alone.
    """
    jobs_of = everywhere(lambda name: clusters[name].jobs("--local"), clusters)
    copies = slurm.left_copies(jobs_of)
    left_alone = jobs.left_alone() if jobs else set()
    return [
        (name, job.job_id)
        for name, cluster_jobs in jobs_of.items()
        for job in cluster_jobs
        if job.ours
        and job.state not in FINISHED
        and job.job_id not in copies[name]
        and job_key(name, job.job_id) not in left_alone
    ]


def cancel(clusters: Mapping[str, SlurmCluster], unwanted: Iterable[tuple[str, int]]) -> None:
    """Cancel jobs, which are named by cluster and id; it does not matter if they end before."""
    jobs_of: defaultdict[str, list[str]] = defaultdict(list)
    for name, job_id in unwanted:
        jobs_of[name].append(str(job_id))
    for name, job_ids in jobs_of.items():
        clusters[name].run("scancel", *job_ids, check=False)


@pytest.fixture(scope="session", autouse=True)
def _manual_power(clusters: dict[str, SlurmCluster], plan: Plan, ssh: Ssh) -> Iterator[None]:
    """Power the nodes that Slurm does not power itself, as an administrator would."""
    with provisioning.manual_nodes_powered(plan, clusters, ssh):
        yield


@pytest.fixture(scope="session", autouse=True)
def shared_clusters(
    run: RunDir, plan: Plan, clusters: dict[str, SlurmCluster], ssh: Ssh, _manual_power: None
) -> Iterator[dict[str, HybridCluster]]:
    """The clusters shared with Kubernetes, with a running operator.

    Without the operator, the nodes take no jobs.
    """
    with hybrid_cluster.with_operator(run, plan, clusters, ssh) as shared:
        yield shared


def all_records_sent(
    clusters: Collection[SlurmCluster], seconds: float = 15
) -> Callable[[object], bool]:
    """Return a `give_up` for waits for records.

    It gives up once no slurmctld has had anything to send to slurmdbd for `seconds` before the last
    look began: a slow look may miss what arrives after its beginning.
    """
    last = before = time.monotonic()

    def nothing_to_send(_: object) -> bool:
        nonlocal last, before
        began = before
        try:
            waiting = any(cluster.waiting_for_slurmdbd() for cluster in clusters)
        except CommandFailed:  # no slurmctld is in control
            waiting = True
        before = time.monotonic()
        if waiting:
            last = before
        return began - last > seconds

    return nothing_to_send


def wait_for_records(
    cluster: SlurmCluster,
    wanted: Mapping[int, tuple[str, int | None]],
    timeout: float = 180,
    where: str = "accounting",
) -> None:
    """Wait until accounting has jobs with these states and exit codes (None: any).

    Errors call accounting `where`. slurmctld sends records in the background, and resends them if
    slurmdbd does not answer.
    """

    def look() -> dict[int, tuple[str, int | None]]:
        return {
            record.job_id: (
                record.state,
                None if wanted[record.job_id][1] is None else record.exit_code,
            )
            for record in cluster.records("--local", "--allocations")
            if record.job_id in wanted
        }

    wait_until(
        look,
        lambda seen: seen == wanted,
        what=f"{where} to have {wanted}",
        timeout=timeout,
        give_up=all_records_sent([cluster]),
        ignore=(CommandFailed,),
    )


def slurmdbd_differences(cluster: SlurmCluster, plan: Plan) -> list[str]:
    """Return how the configuration of the slurmdbd in control differs from the rendered one."""
    answer = cluster.run("sacctmgr", "show", "configuration").stdout
    held = drift.printed(answer.partition("SlurmDBD configuration:")[2])
    if not held:
        return [f"it prints no configuration: {answer}"]
    release = releases.get(plan.releases()[cluster.name])
    wanted = {
        key.lower(): value for key, value in slurm_options.slurmdbd_conf(plan.scenario).items()
    }
    for option in release.shown_from_slurm_conf:
        held.pop(option, None)
    return [*drift.config("slurmdbd.conf", wanted, held, release)]


def wait_until_answers(cluster: SlurmCluster, timeout: float = 180) -> None:
    """Wait until slurmctld answers: systemd has started it before it listens."""
    wait_until(
        lambda: cluster.jobs("--local"),
        lambda _: True,
        what=f"{cluster.controller} to answer",
        timeout=timeout,
        ignore=(CommandFailed,),
    )


def reconfigure(cluster: SlurmCluster) -> None:
    """Let slurmctld and the slurmds of a cluster read their configuration again."""
    # A slurmctld that holds locks at that moment refuses, and continues ("Locks left set").
    wait_until(
        lambda: cluster.run("scontrol", "reconfigure", check=False),
        lambda answer: answer.exit_code == 0,
        what=f"slurmctld of {cluster.name} to be reconfigured",
        timeout=120,
    )


def wait_until_saved(cluster: SlurmCluster, mark: str, plan: Plan, since: float) -> None:
    """Wait until slurmctld has saved a job with `mark`: it saves every 5 s (SAVE_MAX_WAIT).

    Gives up if it has logged since a time, in seconds since 1970, that it cannot. It may not try
    again until something else changes.
    """
    directory = slurm_options.get(plan.slurm_conf(cluster.name), "StateSaveLocation")
    paths = logs.log_files(plan, plan.host(cluster.controller), "slurmctld")
    errors = logs.matching_command(paths, "slurmctld", _NOT_SAVED)

    def look() -> tuple[int, str]:
        find = ("grep", "--quiet", "--text", mark, f"{directory}/job_state")
        code = cluster.run(*find, check=False).exit_code
        zone, *lines = cluster.run(*errors).stdout.splitlines()
        return code, max((text for at, text in logs.dated(lines, zone) if at >= since), default="")

    wait_until(
        look,
        lambda seen: seen[0] == 0,
        what=f"slurmctld of {cluster.name} to save its jobs in {directory} (StateSaveLocation), "
        f"as seen on {cluster.controller}",
        timeout=120,
        give_up=lambda seen: bool(seen[1]),
        show=lambda seen: seen[1] or f"grep of the job ends with {seen[0]}",
    )


@pytest.fixture
def full_origin(federation: Federation, jobs: Jobs, plan: Plan) -> list[int]:
    """Jobs that take every node of the origin cluster that is not reserved until cancelled."""
    origin = federation.origin
    nodes = {*plan.scenario.clusters[origin.name].node_names()} - reserved_nodes(origin, plan)
    filling = [jobs.submit_here(origin, job_trace.UNTIL_CANCELLED, "--exclusive") for _ in nodes]
    origin.wait_for(filling, {"RUNNING"})
    return filling


@pytest.fixture(scope="session")
def ran_on(clusters: dict[str, SlurmCluster]) -> Callable[[int], str]:
    """Wait until a federated job has ended, and return the cluster that ran it."""

    def find(job_id: int) -> str:
        def look() -> dict[str, Job]:
            jobs_found = {name: cluster.job(job_id) for name, cluster in clusters.items()}
            return {name: job for name, job in jobs_found.items() if job}

        ended = wait_until(
            look,
            lambda seen: any(job.has_run for job in seen.values()),
            what=f"job {job_id} to run and end",
            timeout=120,
            show=lambda seen: ", ".join(f"{name}: {job.state}" for name, job in seen.items()),
        )
        return next(name for name, job in ended.items() if job.has_run)

    return find


def origin_of(job_id: int, federation: Federation) -> str:
    """Return the cluster whose federation id is in a federated job's id."""
    by_id = dict(enumerate(federation.members, 1))
    return by_id.get(slurm.origin_id(job_id), "no cluster of the federation")
