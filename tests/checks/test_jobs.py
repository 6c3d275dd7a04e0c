"""Ordinary users can run jobs, and can do only what they are allowed to."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from conftest import Jobs, Powering, everywhere, only, reserved_nodes, slurm_conf

from harness import slurm_options, topology
from harness.cluster import node_state
from harness.cluster.slurm import Partition, SlurmCluster, job_key
from harness.errors import WaitTimeout
from harness.parsing import hostlist
from harness.plan import Plan
from harness.slurmconf import drift
from harness.ssh import Result
from harness.verify import job_trace
from harness.wait import wait_until

pytestmark = pytest.mark.needs("users")

# A task whose child crashes in an empty directory. Prints the task's limits of core files, and the
# owner and the mode of each file that the child has left.
_CRASH = """
import json, os, resource, signal, tempfile
with tempfile.TemporaryDirectory() as directory:
    os.chdir(directory)
    child = os.fork()
    if not child:
        os.kill(os.getpid(), signal.SIGSEGV)
    os.waitpid(child, 0)
    files = [os.stat(name) for name in os.listdir()]
soft, hard = (
    "unlimited" if limit == resource.RLIM_INFINITY else str(limit)
    for limit in resource.getrlimit(resource.RLIMIT_CORE)
)
print(json.dumps({
    "node": os.environ["SLURMD_NODENAME"],
    "soft": soft,
    "hard": hard,
    "pattern": open("/proc/sys/kernel/core_pattern").read().strip(),
    "files": [[file.st_uid, oct(file.st_mode & 0o7777)] for file in files],
}))
"""


@pytest.fixture(params=["srun", "salloc"])
def start_command(request: pytest.FixtureRequest) -> list[str]:
    """Commands that run a task in the foreground."""
    return {"srun": ["srun"], "salloc": ["salloc", "--quiet", "srun"]}[request.param]


def test_interactive_job_runs_on_a_node_as_its_user(
    clusters: dict[str, SlurmCluster],
    plan: Plan,
    users: list[str],
    jobs: Jobs,
    start_command: list[str],
) -> None:
    program, *rest = start_command
    task = ["sh", "-c", "echo $(cat /proc/sys/kernel/hostname) $(id -u); exit 7"]

    def start(name: str) -> Result:
        cluster = clusters[name]
        options = (*only(cluster, plan), *jobs.access_options(cluster))
        return cluster.run(program, *options, *rest, *task, user=users[0], check=False)

    for name, answer in everywhere(start, clusters).items():
        assert answer.exit_code == 7, (
            f"{name}: {program} ends with {answer.exit_code}, its task with 7: {answer.stderr}"
        )
        host, uid = answer.stdout.split()
        assert host in plan.scenario.clusters[name].nodes_on(), (
            f"{name}: {program} ran on {host}, the host of no node"
        )
        assert int(uid) == plan.scenario.users[users[0]].uid, (
            f"{name}: {program} ran as uid {uid}, not as {users[0]}"
        )


def test_batch_job_runs_once_on_every_host_of_nodes(
    clusters: dict[str, SlurmCluster],
    plan: Plan,
    jobs: Jobs,
    jobs_of_hosts: dict[tuple[str, int], str],
) -> None:
    """A cluster whose nodes all come and go gets one job: other checks cover such nodes."""
    for name, cluster in clusters.items():
        cluster.wait_for([job_id for at, job_id in jobs_of_hosts if at == name], {"COMPLETED"})
    seen = jobs.traces()
    for (name, job_id), host in jobs_of_hosts.items():
        job = f"{name}: job {job_id} for {host or 'any node'}"
        ran = [trace for trace in seen if trace.key == job_key(name, job_id)]
        assert len(ran) == 1, f"{job} ran {len(ran)} times"
        hosts = [host] if host else plan.scenario.clusters[name].nodes_on()
        assert (ran[0].cluster, ran[0].host, ran[0].exit_code) in [
            (name, trace, 0) for trace in hosts
        ], job
        wrong = job_trace.misplaced(ran[0])
        assert not wrong, f"{job}: {'; '.join(wrong)}"


@pytest.mark.needs("static")
def test_every_node_takes_jobs(clusters: dict[str, SlurmCluster]) -> None:
    """A node that did not respond is asked again only after up to 100 s (SlurmdTimeout/3)."""
    wait_until(
        lambda: [
            (name, node)
            for name, cluster in clusters.items()
            for node in cluster.nodes()
            if node_state.is_out_of_service(node.state)
        ],
        lambda left: not left,
        what="every node to take jobs",
        timeout=300,
        give_up=lambda left: (
            not any(node_state.may_return(node.state, node.reason) for _, node in left)
        ),
        show=lambda left: "; ".join(
            f"{name}: {node.name} {node.state} {node.reason}".strip() for name, node in left
        ),
    )


def test_job_on_all_nodes_of_a_partition_starts_a_task_on_each(
    clusters: dict[str, SlurmCluster], plan: Plan, jobs: Jobs, powering_up: Powering
) -> None:
    def run_in_each_partition(name: str) -> None:
        cluster = clusters[name]
        partitions = cluster.partitions()
        assert {partition.name for partition in partitions} == {
            *plan.scenario.clusters[name].partitions
        }, name
        conf, reserved = slurm_conf(plan, name), reserved_nodes(cluster, plan)
        most = most_nodes(partitions, plan, name, conf)
        for partition in partitions:
            assert_as_configured(partition, plan, name)
            able = [node for node in partition.nodes if node not in reserved]
            if able and partition.takes_jobs:
                line = conf.partitions[partition.name]
                count = min(len(able), most[partition.name])
                run_on_nodes(count, able, partition.name, line, cluster, jobs)

    with powering_up():
        everywhere(run_in_each_partition, clusters)


def assert_as_configured(partition: Partition, plan: Plan, cluster: str) -> None:
    """Fail if a partition has other nodes or another state than in the scenario."""
    configured = plan.scenario.clusters[cluster].partitions[partition.name]
    all_nodes = [*plan.hosts_of(cluster)]
    wanted = slurm_options.get(configured.options, "Nodes") or configured.nodes
    nodes = all_nodes if wanted == "ALL" else hostlist.create(str(wanted))
    if {*nodes} <= {*all_nodes}:  # otherwise it names a NodeSet
        assert sorted(partition.nodes) == sorted(nodes), partition.name
    state = str(slurm_options.get(configured.options, "State") or "UP").upper()
    assert partition.state == state, partition.name


def run_on_nodes(
    count: int,
    able: list[str],
    partition: str,
    line: drift.Options,
    cluster: SlurmCluster,
    jobs: Jobs,
) -> None:
    """Run a job on `count` nodes of those that are able, with a task on each.

    `line` has the options of the partition.
    """
    hosts_of = jobs.plan.hosts_of(cluster.name)
    places = Counter(f"{hosts_of[node]} {node}" for node in able)
    command = (
        *("srun", *only(cluster, jobs.plan), f"--partition={partition}"),
        *(*jobs.partition_options(cluster.name, line), f"--nodes={count}", "--ntasks-per-node=1"),
        *("sh", "-c", "echo $(cat /proc/sys/kernel/hostname) $SLURMD_NODENAME"),
    )
    user = "root" if drift.holds(line, "RootOnly") else jobs.user_of(cluster.name, line)
    try:
        answer = cluster.run(*command, user=user)
    except WaitTimeout as error:
        silent = places - Counter(error.printed.splitlines())
        nodes_without = hostlist.fold(place.split()[1] for place in silent)
        raise WaitTimeout(f"{partition}: no output of {nodes_without}: {error}") from error
    seen = Counter(answer.stdout.splitlines())
    assert seen.total() == count, partition
    assert seen <= places, f"{partition}: unexpected tasks, by host and node: {[*(seen - places)]}"


def most_nodes(
    partitions: list[Partition], plan: Plan, cluster: str, conf: drift.Rendered
) -> dict[str, int]:
    """Return for each partition how many of its nodes a job may have."""
    placed = topology.placed(plan.scenario, cluster)
    tree = "topology/tree" in conf.options.get("topologyplugin", "")
    text = plan.scenario.clusters[cluster].files.get("topology.conf", "")

    def most(partition: Partition) -> int:
        limit = drift.canonical(
            "MaxNodes", conf.partitions[partition.name].get("maxnodes", "UNLIMITED")
        )
        allowed = int(limit) if limit.isdigit() else len(partition.nodes)
        if partition.name in placed:
            return min(allowed, placed[partition.name].most_nodes())
        return min(allowed, topology.most_connected(text, partition.nodes)) if tree else allowed

    return {partition.name: most(partition) for partition in partitions}


def test_failing_job_is_seen_as_failed_with_its_exit_code(
    clusters: dict[str, SlurmCluster], failing_job: int
) -> None:
    cluster = next(iter(clusters.values()))
    cluster.wait_for([failing_job], {"FAILED"})
    shown = cluster.run("scontrol", "--local", "show", "job", str(failing_job), check=False)
    if "Invalid job id" not in shown.stderr:  # slurmctld forgets ended jobs after MinJobAge
        assert "ExitCode=7:0" in shown.stdout


@pytest.mark.needs("user_environment")
def test_job_gets_the_variables_that_its_user_exports(
    clusters: dict[str, SlurmCluster], exporting_jobs: dict[str, int]
) -> None:
    """For such a job, slurmd runs a login shell of the user to get the environment."""
    for name, cluster in clusters.items():
        cluster.wait_for([exporting_jobs[name]], {"COMPLETED"})


def test_task_that_crashes_leaves_a_core_file_only_if_its_user_wants_one(
    clusters: dict[str, SlurmCluster], plan: Plan, users: list[str], jobs: Jobs
) -> None:
    """Users say so with the limit of the shell in which they submit."""
    uid = plan.scenario.users[users[0]].uid

    def look(name: str) -> list[str]:
        cluster = clusters[name]
        options = (*cluster.marked(), *only(cluster, plan), *jobs.access_options(cluster))
        task = shlex.join(["srun", *options, "python3", "-c", _CRASH])
        script = f"""hard=$(prlimit --core --output=HARD --noheadings | tr -d ' ')
            for wanted in $hard 0; do
                echo $wanted
                prlimit --core=$wanted: {task}
            done"""
        answer = cluster.run("sh", "-ec", script, user=users[0]).stdout.splitlines()
        return [
            f"{name}: {problem}"
            for wanted, crash in zip(answer[::2], answer[1::2], strict=True)
            for problem in _wrong_crash(plan.slurm_conf(name), wanted, json.loads(crash), uid)
        ]

    wrong = [problem for problems in everywhere(look, clusters).values() for problem in problems]
    assert not wrong, "; ".join(wrong)


def _wrong_crash(
    conf: Mapping[str, Any], wanted: str, crash: Mapping[str, Any], uid: int
) -> Iterator[str]:
    """Yield what is wrong after a task's child crashed, with the limit that its user wanted."""
    node, soft, hard, files = (crash[name] for name in ("node", "soft", "hard", "files"))
    # slurmstepd reduces a user's limit to its own hard one: _set_limit() in Slurm's ulimits.c.
    if slurm_options.propagates(conf, "CORE") and soft != min(wanted, hard, key=_bytes):
        yield (
            f"the limit of core files of a task on {node} is {soft}, that of the shell which "
            f"submitted it is {wanted}: PropagateResourceLimits has no effect"
        )
    # core(5): otherwise, a program or a directory of the node gets them.
    if crash["pattern"].startswith(("|", "/")):
        return
    if bool(files) != (soft != "0"):
        yield (
            f"a task that crashed on {node} left {len(files)} core files, with a limit of {soft} "
            f"bytes (core_pattern: {crash['pattern']})"
        )
    for owner, mode in files:
        if (owner, mode) != (uid, "0o600"):
            yield f"a core file on {node} belongs to uid {owner}, not {uid}, and has mode {mode}"


def _bytes(limit: str) -> float:
    return math.inf if limit == "unlimited" else float(limit)


@pytest.mark.needs("two_users")
@pytest.mark.provokes("Security violation, .*KILL_JOB")
def test_user_cannot_cancel_a_job_of_another_user(
    clusters: dict[str, SlurmCluster], plan: Plan, jobs: Jobs, users: list[str]
) -> None:
    cluster = next(iter(clusters.values()))
    job_id = jobs.submit_here(cluster, job_trace.UNTIL_CANCELLED)
    jobs.wait_until_begun(cluster, [job_id])
    answer = cluster.run("scancel", str(job_id), user=users[1], check=False)
    assert "Access/permission denied" in answer.stderr, f"scancel as {users[1]}: {answer.stderr}"
    assert cluster.job(job_id).state == "RUNNING"
    cluster.run("scancel", str(job_id), user=users[0])
    cluster.wait_for([job_id], {"CANCELLED"})


@pytest.mark.provokes(
    "Security violation, .*(UPDATE_NODE|UPDATE_PARTITION|RECONFIGURE|SHUTDOWN)",
    "_slurm_rpc_reconfigure_controller: Invalid user id",
)
def test_user_cannot_change_the_cluster(
    clusters: dict[str, SlurmCluster], plan: Plan, users: list[str]
) -> None:
    if plan.scenario.users[users[0]].privileged:
        pytest.skip("every user of the scenario is an administrator or a coordinator")
    for name, cluster in clusters.items():
        node = plan.scenario.clusters[name].node_names()[0]
        partition = next(iter(plan.scenario.clusters[name].partitions))
        change_node = ("scontrol", "update", f"NodeName={node}")
        change_partition = ("scontrol", "update", f"PartitionName={partition}")
        for command, undo in (
            ((*change_node, "State=DRAIN", "Reason=mischief"), (*change_node, "State=RESUME")),
            ((*change_partition, "State=DOWN"), (*change_partition, "State=UP")),
            (("scontrol", "reconfigure"), ()),
            (("scontrol", "shutdown"), ()),
        ):
            answer = cluster.run(*command, user=users[0], check=False)
            if answer.exit_code == 0 and undo:
                cluster.run(*undo)  # it would break the checks that follow, too
            assert answer.exit_code != 0, f"{name}: {users[0]} may use {shlex.join(command)}"
            assert re.search("Invalid user id|Access/permission denied", answer.stderr), (
                answer.stderr
            )
        flags = {flag for node in cluster.nodes() for flag in node_state.words(node.state)}
        assert not flags & {"DOWN", "DRAIN"}, flags


def test_every_job_ran_at_most_once(jobs: Jobs) -> None:
    """Last in this file, because it covers all jobs so far."""
    seen = jobs.traces()
    assert seen, "no job left a trace"
    assert not job_trace.ran_twice(seen)
