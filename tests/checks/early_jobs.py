"""Jobs that start before the first check, so that the checks that use them need not wait."""

from __future__ import annotations

import secrets
import shlex
import time
from collections.abc import Iterable, Iterator

import pytest
from conftest import Jobs, active_jobs, cancel, only, reserved_nodes, slurm_conf, small

from harness import releases, slurm_options
from harness.cluster import slurm
from harness.cluster.slurm import JobKey, SlurmCluster, job_key
from harness.plan import Plan
from harness.testing import Federation
from harness.verify import checks_plugin, job_trace
from harness.wait import wait_until

# Slurm counts time limits in minutes, and looks for jobs that exceed them every half minute.
SHORTEST_TIME_LIMIT = "--time=1"
# ESLURM_INVALID_TIME_VALUE in Slurm's slurm_errno.c.
_INVALID_TIME = "Invalid time specified"
# Options of jobs, which accounting must record as they are.
REQUEST = ("--job-name=accounting", "--time=3")
# The fixtures whose jobs start early. If nodes come and go, only jobs that need no node do.
_NEED_NO_NODE = ("held_jobs",)
_NEED_NODES = (
    "measured_jobs",
    "exporting_jobs",
    "failing_job",
    "jobs_of_hosts",
    "free_jobs",
    "jobs_with_clusters",
    "constrained_jobs",
    "timed_out_job",
    "hung_ranks",
    "delayed_jobs",
    "warned_jobs",
    "killed_jobs",
    "scrontab_jobs",
)
# The beginning of programs whose ranks use `world`. Debian's mpi4py is built for Open MPI, without
# PMI2, so ranks that Slurm's plugin pmi2 connects (PMI_FD) use MPICH's library if there is one.
# Its binary interface does not change: the numbers are from mpi.h of MPICH 3.1 and later.
WORLD = """
import atexit, ctypes, ctypes.util, os
class Mpich:
    world, integer, add = 0x44000000, 0x4C000405, 0x58000003
    def __init__(self, name):
        self.mpi = ctypes.CDLL(name)
        self.mpi.MPI_Init(None, None)
        atexit.register(self.mpi.MPI_Finalize)
        self.rank, self.size = self.ask("rank"), self.ask("size")
    def ask(self, what):
        number = ctypes.c_int()
        getattr(self.mpi, "MPI_Comm_" + what)(self.world, ctypes.byref(number))
        return number.value
    def allreduce(self, number):
        mine, total = ctypes.c_int(number), ctypes.c_int()
        places = ctypes.byref(mine), ctypes.byref(total)
        self.mpi.MPI_Allreduce(*places, 1, self.integer, self.add, self.world)
        return total.value
    def recv(self):
        place, no_status = ctypes.byref(ctypes.c_int()), ctypes.c_void_p(1)
        any_source, any_tag = -2, -1
        self.mpi.MPI_Recv(place, 1, self.integer, any_source, any_tag, self.world, no_status)
    def Abort(self, code):
        self.mpi.MPI_Abort(self.world, code)
mpich = ctypes.util.find_library("mpich") if "PMI_FD" in os.environ else None
if mpich:
    world = Mpich(mpich)
else:
    from mpi4py import MPI
    world = MPI.COMM_WORLD
"""
# In the command line of the ranks of a job that hangs, and of nothing else.
HUNG_RANK = "rank-that-hangs"
_HUNG_RANKS = f"{WORLD}world.recv()"
# Seconds that `--begin` delays a job.
DELAY = 40


@pytest.fixture(scope="session", autouse=True)
def _start_early(
    request: pytest.FixtureRequest,
    clusters: dict[str, SlurmCluster],
    plan: Plan,
    jobs: Jobs,
    shared_clusters: object,
) -> Iterator[None]:
    """Start the jobs of fixtures that checks use, and cancel those that no check has waited for.

    This comes after the operator, without whom shared nodes take no jobs.

    pytest keeps an error for the checks that use the jobs; it says nothing about the others.
    """

    def start(name: str, checks: Iterable[pytest.Item]) -> bool:
        """Return whether a fixture has started its jobs."""
        began, before = time.time(), len(jobs.submitted)
        try:
            request.getfixturevalue(name)
        except Exception:
            return False
        finally:
            jobs.early[name] = {*jobs.submitted[before:]}
            for item in checks:
                item.stash.setdefault(checks_plugin.BEGAN, began)
        return True

    all_static = not any(cluster.elastic() for cluster in plan.scenario.clusters.values())
    for name in (*_NEED_NO_NODE, *(_NEED_NODES if all_static else ())):
        checks = [
            item for item in request.session.items if name in getattr(item, "fixturenames", ())
        ]
        if checks and not start(name, checks):
            break  # a cluster that takes no jobs may take long to say so
    yield
    if unused := set[JobKey]().union(*jobs.early.values()):
        cancel(clusters, (job for job in active_jobs(clusters) if job_key(*job) in unused))


@pytest.fixture(scope="session")
def held_jobs(clusters: dict[str, SlurmCluster], jobs: Jobs) -> dict[str, str]:
    """The unique name of a held job on each cluster: slurmctld takes up to 5 s to save it."""
    marks = {name: f"saved-{secrets.token_hex(4)}" for name in clusters}
    for name, mark in marks.items():
        jobs.submit_here(clusters[name], "true", "--hold", f"--job-name={mark}")
    return marks


@pytest.fixture(scope="session")
def measured_jobs(clusters: dict[str, SlurmCluster], plan: Plan, jobs: Jobs) -> list[JobKey]:
    """Jobs whose memory Slurm measures, which takes 4 s, one on each cluster that can do so."""
    body = job_trace.step_with_memory(0, mebibytes=20)
    users = {name: _measured_user(cluster, plan, jobs) for name, cluster in clusters.items()}
    return [
        job_key(name, jobs.submit_here(clusters[name], body, *REQUEST, user=user))
        for name, user in users.items()
        if user
    ]


def _measured_user(cluster: SlurmCluster, plan: Plan, jobs: Jobs) -> str | None:
    """Return a user who may run jobs and whose tasks' memory slurmstepd can measure.

    None if there is no such user. In a container, slurmstepd may not read /proc/PID/io of other
    users, and gives up (_handle_stats in common_jag.c).
    """
    conf = plan.slurm_conf(cluster.name)
    if (slurm_options.get(conf, "JobAcctGatherType") or "none").lower().endswith("none"):
        return None
    if plan.capabilities.own_kernel:
        return jobs.user
    kept_out = (slurm_options.get(conf, "DisableRootJobs") or "no").lower() in {"yes", "true", "1"}
    return (
        None
        if kept_out
        or {"--account", "--qos"}
        & {option.partition("=")[0] for option in jobs.access_options(cluster)}
        else "root"
    )


@pytest.fixture(scope="session")
def timed_out_job(clusters: dict[str, SlurmCluster], jobs: Jobs) -> int:
    """A job that reaches its time limit while other checks run, on one CPU of the last cluster."""
    cluster = list(clusters.values())[-1]
    job_id = jobs.submit_here(cluster, job_trace.UNTIL_CANCELLED, SHORTEST_TIME_LIMIT)
    _end_soon(cluster, job_id, jobs)
    return job_id


def _end_soon(cluster: SlurmCluster, job_id: int, jobs: Jobs) -> None:
    """Bring the end time of a job forward once it runs."""
    cluster.wait_for([job_id], {"RUNNING"}, timeout=300)
    _end_in(cluster, job_id, 5, jobs)


def _end_in(cluster: SlurmCluster, job_id: int, seconds: int, jobs: Jobs) -> None:
    """Let a job reach its time limit in some seconds.

    On a busy machine, that time may be over when slurmctld gets the request: it then refuses it.
    """
    update = ("scontrol", "update", f"JobId={job_id}", f"EndTime=now+{seconds}")
    wait_until(
        lambda: cluster.run(*update, user=jobs.user, check=False),
        lambda answer: answer.exit_code == 0,
        what=f"slurmctld of {cluster.name} to change the end of job {job_id}",
        timeout=120,
        give_up=lambda answer: (
            not any(words in answer.stderr for words in (_INVALID_TIME, *slurm.UNCERTAIN))
        ),
    )


def mpi_plugins(plan: Plan, cluster: str) -> list[str]:
    """Return the plugins that checks of MPI use (`checks.mpi`), without those not packaged."""
    hosts = [host for host in plan.hosts if host.cluster == cluster]
    own = any(host.origin or host.image for host in hosts)
    packaged = releases.get(plan.releases()[cluster]).mpi
    return [plugin for plugin in plan.scenario.checks.mpi if own or plugin in packaged]


@pytest.fixture(scope="session")
def hung_ranks(
    clusters: dict[str, SlurmCluster], plan: Plan, jobs: Jobs
) -> list[tuple[SlurmCluster, int]]:
    """A job for each plugin that reaches its time limit, because its MPI ranks hang."""
    hung = [
        (
            cluster,
            jobs.submit_here(
                cluster,
                f"srun --mpi={plugin} python3 -c '{_HUNG_RANKS}' {HUNG_RANK}",
                *("--ntasks=2", "--spread-job", SHORTEST_TIME_LIMIT),
            ),
        )
        for name, cluster in clusters.items()
        for plugin in mpi_plugins(plan, name)
    ]
    for cluster, job_id in hung:
        _end_soon(cluster, job_id, jobs)
    return hung


@pytest.fixture(scope="session")
def exporting_jobs(clusters: dict[str, SlurmCluster], jobs: Jobs) -> dict[str, int]:
    """A job on each cluster for which slurmd runs a login shell of its user."""
    script = '[ "$PASSWORD" = sesame ] && [ "$USER" = "$(id -un)" ]'
    return {
        name: jobs.submit_here(cluster, script, "--export=PASSWORD=sesame")
        for name, cluster in clusters.items()
    }


@pytest.fixture(scope="session")
def failing_job(clusters: dict[str, SlurmCluster], jobs: Jobs) -> int:
    """A job of the first cluster whose script exits with 7."""
    return jobs.submit_here(next(iter(clusters.values())), "exit 7")


@pytest.fixture(scope="session")
def jobs_of_hosts(
    clusters: dict[str, SlurmCluster], plan: Plan, jobs: Jobs
) -> dict[tuple[str, int], str]:
    """A job for a node on each permanent host with nodes: its host, by cluster and job id.

    Each runs in its user's home and writes its output there. A cluster without such hosts has a
    single job, for any node.
    """
    wanted: dict[tuple[str, int], str] = {}
    for name, cluster in clusters.items():
        for host, (user, *place) in job_places(cluster, plan, jobs).items():
            options = (*only(cluster, plan), f"--output={job_trace.OUTPUT}", *place)
            job_id = jobs.submit(cluster, f"{job_trace.WHERE}\nsrun true", *options, user=user)
            wanted[name, job_id] = host
    return wanted


def job_places(cluster: SlurmCluster, plan: Plan, jobs: Jobs) -> dict[str, tuple[str, ...]]:
    """Return a user and sbatch's options for a node on each permanent host with nodes.

    They are returned by host. If there is no such host, the options are for any node.
    """
    static_hosts = {host.name for host in plan.hosts if host.provision == "static"}
    hosts_of = plan.hosts_of(cluster.name)
    rendered = slurm_conf(plan, cluster.name).partitions
    static_nodes = {node for node, host in hosts_of.items() if host in static_hosts}
    free = static_nodes - reserved_nodes(cluster, plan)
    places = {
        hosts_of[node]: (
            jobs.user_of(cluster.name, rendered.get(partition.name, {})),
            f"--partition={partition.name}",
            *jobs.partition_options(cluster.name, rendered.get(partition.name, {})),
            f"--nodelist={node}",
        )
        for partition in cluster.partitions()
        for node in partition.nodes
        if node in free and partition.takes_jobs_of_users
    }
    return places or {"": (jobs.user,)}


@pytest.fixture(scope="session")
def free_jobs(
    federation: Federation, clusters: dict[str, SlurmCluster], jobs: Jobs
) -> list[tuple[str, int]]:
    """Three jobs submitted on each cluster of a federation, which may run anywhere."""
    return [
        (name, jobs.submit(clusters[name], "true")) for _ in range(3) for name in federation.members
    ]


@pytest.fixture(scope="session")
def jobs_with_clusters(federation: Federation, jobs: Jobs) -> dict[str, int]:
    """A job for each cluster of a federation, named with --clusters."""
    return {
        name: jobs.submit(federation.origin, "true", f"--clusters={name}")
        for name in federation.members
    }


@pytest.fixture(scope="session")
def constrained_jobs(
    federation: Federation, plan: Plan, jobs: Jobs
) -> dict[str, tuple[int, set[str]]]:
    """Jobs for each feature that only one cluster has, and the clusters that may run them.

    By --cluster-constraint, for the feature and for its absence.
    """
    features = {name: plan.scenario.clusters[name].features for name in federation.members}
    only_on = {
        feature: name
        for name in features
        for feature in features[name]
        if sum(feature in has for has in features.values()) == 1
    }
    able = {feature: {name} for feature, name in only_on.items()}
    able |= {f"!{feature}": {*federation.members} - {name} for feature, name in only_on.items()}
    return {
        constraint: (
            jobs.submit(federation.origin, "true", f"--cluster-constraint={constraint}"),
            names,
        )
        for constraint, names in able.items()
    }


@pytest.fixture(scope="session")
def delayed_jobs(clusters: dict[str, SlurmCluster], jobs: Jobs) -> dict[str, tuple[int, int]]:
    """For each cluster, the time, and a job that may not start before `DELAY` seconds are over."""
    begin = f"--begin=now+{DELAY}"
    return {
        name: (int(cluster.run("date", "+%s").stdout), jobs.submit_here(cluster, "true", begin))
        for name, cluster in clusters.items()
    }


@pytest.fixture(scope="session")
def warned_jobs(clusters: dict[str, SlurmCluster], jobs: Jobs) -> dict[tuple[str, str], int]:
    """For each cluster, a job whose script gets USR1 before its time limit, one whose step does.

    slurmctld sends the signal 60 to 90 s before the limit, when it next looks for jobs that exceed
    theirs: send_job_warn_signal() in job_mgr.c. The limit comes closer once both can take it.
    """
    task = (
        "trap 'echo note.task=USR1 >> \"$trace\"; exit 0' USR1;"
        ' echo note.ready=1 >> "$trace"; while :; do sleep 1; done'
    )
    script = f"""export trace
trap 'echo note.script=USR1 >> "$trace"; exit 0' USR1
srun sh -c {shlex.quote(task)} & wait"""
    ids = {
        (name, target): jobs.submit_here(
            cluster, script, *small(jobs.plan, name, 5), f"--signal={prefix}USR1@60"
        )
        for name, cluster in clusters.items()
        for target, prefix in (("script", "B:"), ("task", ""))
    }
    _wait_until_ready(jobs, [(name, job_id) for (name, _), job_id in ids.items()])
    for (name, _), job_id in ids.items():
        _end_in(clusters[name], job_id, 60, jobs)
    return ids


@pytest.fixture(scope="session")
def killed_jobs(clusters: dict[str, SlurmCluster], jobs: Jobs) -> dict[str, int]:
    """A job on each cluster that notes SIGTERM at its time limit, and runs until it is killed."""
    script = """
trap 'echo "note.term=$(date +%s.%N)" >> "$trace"' TERM
echo note.ready=1 >> "$trace"
while :; do echo "note.alive=$(date +%s.%N)" >> "$trace"; sleep 0.1; done"""
    ids = {name: jobs.submit_here(cluster, script) for name, cluster in clusters.items()}
    _wait_until_ready(jobs, ids.items())
    for name, job_id in ids.items():
        _end_in(clusters[name], job_id, 1, jobs)
    return ids


def _wait_until_ready(jobs: Jobs, ids: Iterable[tuple[str, int]]) -> None:
    """Wait until jobs have noted in their traces that they are ready to be signalled."""
    keys = {job_key(name, job_id) for name, job_id in ids}
    wait_until(
        lambda: keys - {trace.key for trace in jobs.traces() if "ready" in trace.notes},
        lambda left: not left,
        what="jobs to begin that then reach their time limit",
        timeout=180,
    )


@pytest.fixture(scope="session")
def scrontab_jobs(
    clusters: dict[str, SlurmCluster], plan: Plan, jobs: Jobs
) -> Iterator[dict[str, tuple[str, str]]]:
    """The file to which an entry of a user's scrontab writes, and scrontab's error, by cluster.

    The entry is added to what the user has. Clusters whose packages have no scrontab are left out.
    """
    files, before = {}, {}
    for name, cluster in clusters.items():
        packaged = releases.get(plan.releases()[name]).scrontab
        which = cluster.run("sh", "-c", "command -v scrontab", check=False)
        if not plan.has_scrontab(name) or (which.exit_code and not packaged):
            continue
        file = f"{job_trace.DIRECTORY}/.scrontab-{secrets.token_hex(4)}"
        shown = cluster.run("scrontab", "-l", user=jobs.user, check=False)
        before[name] = "" if shown.exit_code else shown.stdout
        submit = (*plan.scenario.checks.submit, "--output=/dev/null", *jobs.access_options(cluster))
        options = (*submit, *small(plan, name, 1))
        entry = "".join(f"#SCRON {option}\n" for option in options)
        entry += f"* * * * * {job_trace.CREATE_DIRECTORY};"
        entry += f' echo "$SLURM_JOB_ID $(id -un)" >> {file}\n'
        added = cluster.run(
            "scrontab", "-", user=jobs.user, stdin=before[name] + entry, check=False
        )
        files[name] = (file, added.stderr if added.exit_code else "")
    yield files
    for name, text in before.items():
        restore = ("scrontab", "-") if text else ("scrontab", "-r")
        clusters[name].run(*restore, user=jobs.user, stdin=text, check=False)
