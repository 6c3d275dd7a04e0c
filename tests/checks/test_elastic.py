"""Nodes come when jobs need them, and go when they are idle.

No more nodes come than are needed, and nothing is left behind.
"""

from __future__ import annotations

import json
import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import pytest
from conftest import Jobs, Powering, everywhere, problems_on
from test_configuration import has_read_another, reported_as_different
from test_hosts import printed, wrong_files, wrong_packages, wrong_programs
from test_nodes import users_script, wrong_directories, wrong_users
from test_processes import wrong_processes

from harness import providers, releases, render, slurm_options
from harness.cluster.history import Recorder, Sighting
from harness.cluster.node_state import is_draining, is_powered_down, is_suspended, words
from harness.cluster.slurm import FINISHED, Job, SlurmCluster, job_key
from harness.elastic import node_failures
from harness.errors import WaitTimeout
from harness.parsing import hostlist
from harness.plan import Plan
from harness.rundir import RunDir
from harness.ssh import Ssh
from harness.testing import Federation
from harness.verify import job_trace
from harness.wait import wait_until

pytestmark = [pytest.mark.needs("elastic", "users"), pytest.mark.provokes()]
# Seconds for slurmctld's own polling on a busy machine, in addition to the times in slurm.conf.
ROUNDS = 60
# Seconds in which slurmctld must start a job once its node is up. It looks for such jobs when it
# launches them, but with a PrologSlurmctld only every half minute: prolog_running_decr() in
# job_scheduler.c, and PERIODIC_TIMEOUT.
BEGINS, PERIODIC_TIMEOUT = 25, 30


@dataclass
class Elastic:
    """A cluster whose nodes come and go, and a recorder of their states."""

    cluster: SlurmCluster
    plan: Plan
    run: RunDir
    ssh: Ssh
    recorder: Recorder
    # The nodes that did not power down in time; no check waits for them again.
    stuck: set[str] = field(default_factory=set)

    @property
    def nodes(self) -> dict[str, str]:
        """The nodes that come and go, and how each is provisioned."""
        provision_of = self.plan.scenario.clusters[self.cluster.name].provision_of()
        return {
            name: provision for name, provision in provision_of.items() if provision != "static"
        }

    def partition_options(self) -> list[str]:
        """Return options that submit a job to a partition with all nodes that come and go."""
        partitions = self.cluster.partitions()
        names = [part.name for part in partitions if {*self.nodes} <= {*part.nodes}]
        return [f"--partition={name}" for name in names[:1]]

    def seconds(self, option: str) -> int:
        """Return the value of a time option in slurm.conf, in seconds."""
        conf = self.plan.slurm_conf(self.cluster.name)
        return int(slurm_options.get(conf, option) or 0)

    def states(self) -> dict[str, set[str]]:
        """Return the state and flags of each node that comes and goes."""
        return {
            node.name: {*node.state.split("+")}
            for node in self.cluster.nodes()
            if node.name in self.nodes
        }

    def resumed(self, since: float) -> set[str]:
        """Return the nodes that were powered up since a time at which all were down.

        A node may come up too fast to be seen POWERING_UP; it then stays up for SuspendTime.
        """
        now = time.time()
        wait_until(
            lambda: self.recorder.looked,
            lambda at: at > now,
            what="the recorder to poll the nodes",
            timeout=ROUNDS,
        )
        return {node for node in self.nodes if any(map(_awake, self.recorder.of(node, since)))}

    def up(self, node: str, since: float) -> Sighting | None:
        """Return the first sighting of a node that shows that it has been up since a time.

        It may be up for SuspendTime only, and a poll may take longer than that: a node that was
        powered up and is powered down again has been up, unless it failed to come.
        """
        awake = False
        for seen in self.recorder.of(node, since):
            served = "POWER" not in _state(seen) or (awake and is_suspended(_state(seen)))
            if served and not words(seen.state) & {"DOWN", "DRAIN"}:
                return None if self.failed(node, since) else seen
            awake = awake or _awake(seen)
        return None

    def failed(self, node: str, since: float) -> bool:
        """Return whether slurmctld has noted since a time that a node did not come."""
        return any(
            note["action"] == "resume-fail" and node in note["nodes"] and note["time"] >= since
            for note in self.notes()
        )

    def running(self) -> set[str]:
        """Return the nodes whose host runs, according to the engine and not to Slurm.

        If the host is permanent, its slurmd must run.
        """
        hosts = providers.get(self.run.provider).hosts(self.run.id)
        present = [name for name in self.nodes if hosts.get(name)]
        # In parallel, because a node may run for a few seconds only.
        with ThreadPoolExecutor(max(1, len(present))) as pool:
            runs = [*pool.map(self._runs, present)]
        return {name for name, is_running in zip(present, runs, strict=True) if is_running}

    def _runs(self, name: str) -> bool:
        if self.nodes[name] not in {"manual", "remote"}:
            return True
        command = ["systemctl", "is-active", "--quiet", "slurmd"]
        return self.ssh.run(name, command, check=False).exit_code == 0

    def awake(self) -> dict[str, str]:
        """Return the nodes that are not powered down, with their states."""
        nodes = (node for node in self.cluster.nodes() if node.name in self.nodes)
        return {node.name: node.state for node in nodes if not is_powered_down(node.state)}

    def wait_until_down(self) -> None:
        """Wait until every node is powered down and its host is gone."""
        limit = (
            self.seconds("SuspendTime")
            + self.seconds("SuspendTimeout")
            + self.seconds("ResumeTimeout")
            + ROUNDS
        )
        try:
            wait_until(
                self.awake,
                lambda left: not left,
                what="all nodes to power down",
                timeout=limit,
                give_up=lambda left: (
                    any(map(is_draining, left.values())) or bool(self.stuck & left.keys())
                ),
            )
            wait_until(
                self.running,
                lambda left: not left,
                what="their hosts to be removed",
                timeout=180,
                give_up=lambda left: bool(self.stuck & left),
                show=lambda left: ", ".join(map(self.last_request, sorted(left))),
            )
        except WaitTimeout as error:
            if self.stuck:
                earlier = hostlist.fold(self.stuck)
                raise WaitTimeout(
                    f"{error}; an earlier check also timed out waiting for {earlier} to power down"
                ) from error
            self.stuck = {*self.awake()} | self.running()
            raise

    def notes(self) -> list[dict[str, Any]]:
        """Return what the programs that slurmctld calls to power nodes have noted."""
        text = self.cluster.run("cat", slurm_options.POWER_LOG, check=False).stdout
        return [json.loads(line) for line in text.splitlines()]

    def gave_up(self, jobs: Iterable[Job], node: str, since: float) -> bool:
        """Return whether slurmctld has requeued a job and noted that its node did not come."""
        waiting = any(job.state == "PENDING" and job.reason == "BeginTime" for job in jobs)
        return waiting and self.failed(node, since)

    def last_request(self, node: str) -> str:
        """Return a node with the last request for it that is in the log."""
        actions = [note["action"] for note in self.notes() if node in note["nodes"]]
        last = actions[-1] if actions else "none: the log was truncated, or no program was called"
        return f"{node}, whose last request in {slurm_options.POWER_LOG} is {last}"


def _awake(seen: Sighting) -> bool:
    return not is_suspended(_state(seen))


def _state(seen: Sighting) -> str:
    """Return a node's state; with POWER_DOWN it is up until its job ends (PowerDownOnIdle)."""
    return seen.state.replace("+POWER_DOWN", "")


class Signal:
    """Lets a check end its jobs: on any machine, they run for as long as the check needs them."""

    def __init__(self, elastic: Elastic, jobs: Jobs) -> None:
        self._elastic, self._jobs = elastic, jobs
        self._file = f"{job_trace.DIRECTORY}/.end-{secrets.token_hex(4)}"
        self.awaited = f"until [ -e {self._file} ]; do sleep 0.5; done"

    def give(self) -> None:
        """Let the jobs end."""
        command = f"{job_trace.CREATE_DIRECTORY} && touch {self._file}"
        for host in self._jobs.places():
            self._elastic.ssh.run(host, ["sh", "-c", command])


@pytest.fixture(scope="module")
def elastic(
    clusters: dict[str, SlurmCluster], plan: Plan, run: RunDir, ssh: Ssh
) -> Iterator[Elastic]:
    """The cluster whose nodes come and go."""
    cluster = next(
        clusters[name] for name, part in plan.scenario.clusters.items() if part.elastic()
    )
    with Recorder(cluster, run) as recorder:
        yield Elastic(cluster, plan, run, ssh, recorder)


def test_job_resumes_the_node_that_it_requests_and_no_other(
    elastic: Elastic, jobs: Jobs, plan: Plan, powering_up: Powering
) -> None:
    elastic.wait_until_down()
    node = list(elastic.nodes)[-1]
    began = time.time()
    with powering_up():
        job_id = jobs.submit_here(
            elastic.cluster, "srun true", *elastic.partition_options(), f"--nodelist={node}"
        )
        elastic.cluster.wait_for(
            [job_id],
            {"COMPLETED"},
            timeout=elastic.seconds("ResumeTimeout") + ROUNDS,
            give_up=lambda jobs: elastic.gave_up(jobs, node, began),
        )
    up = wait_until(lambda: elastic.up(node, began), bool, what=f"{node} to be up", timeout=ROUNDS)
    assert elastic.resumed(began) == {node}
    key = job_key(elastic.cluster.name, job_id)
    ran = [trace for trace in jobs.traces() if trace.key == key]
    assert [trace.host for trace in ran] == [node]
    # When slurmctld started it, because a busy node may launch it late: job_config_fini() in
    # job_mgr.c sets the start to the time when the nodes are up.
    times = elastic.cluster.times("--local").get(job_id, {})
    waited = (times.get("start") or ran[0].start) - up.at
    has_prolog = slurm_options.get(plan.slurm_conf(elastic.cluster.name), "PrologSlurmctld")
    assert waited < BEGINS + (PERIODIC_TIMEOUT if has_prolog else 0), (
        f"the job began {waited:.0f} s after its node was up"
    )
    # The program notes the request once it is answered, which may be after the node is up.
    wait_until(
        lambda: [
            *node_failures.unrecorded_nodes(elastic.notes(), [node], elastic.cluster.controller)
        ],
        lambda lost: not lost,
        what="the request to be noted",
        timeout=ROUNDS,
        show="\n".join,
    )


def test_idle_nodes_are_powered_down_and_their_hosts_are_gone(
    elastic: Elastic, jobs: Jobs, powering_up: Powering
) -> None:
    with powering_up():
        job_id = jobs.submit_here(
            elastic.cluster,
            "true",
            *elastic.partition_options(),
            f"--nodelist={next(iter(elastic.nodes))}",
        )
        elastic.cluster.wait_for(
            [job_id], {"COMPLETED"}, timeout=elastic.seconds("ResumeTimeout") + ROUNDS
        )
    elastic.wait_until_down()
    assert elastic.awake() == {}
    created = {name for name, provision in elastic.nodes.items() if provision == "create"}
    wait_until(
        lambda: created & {*providers.get(elastic.run.provider).hosts(elastic.run.id)},
        lambda left: not left,
        what="hosts of created nodes to be removed",
        timeout=180,
    )


def test_sinfo_shows_which_nodes_are_powered_down(elastic: Elastic, jobs: Jobs) -> None:
    """Until 22.05, slurmctld hides them without PrivateData=cloud: _is_cloud_hidden()."""
    elastic.wait_until_down()
    name = elastic.cluster.name
    conf, known = elastic.plan.slurm_conf(name), releases.get(elastic.plan.releases()[name])
    private = (slurm_options.get(conf, "PrivateData") or "").lower()
    hidden = "cloud" in known.words["privatedata"].known and "cloud" not in private
    answer = elastic.cluster.run("sinfo", "--noheader", "--Node", "--format=%N %t", user=jobs.user)
    states = dict(line.split() for line in answer.stdout.splitlines())
    shown = {node: states.get(node, "not shown") for node in elastic.nodes}
    assert all(
        state == "not shown" if hidden else state.endswith("~") for state in shown.values()
    ), f"powered down, which sinfo marks with ~{' or hides' if hidden else ''}: {shown}"


def test_programs_that_power_nodes_leave_no_defunct_process(elastic: Elastic) -> None:
    elastic.wait_until_down()
    controller = elastic.cluster.controller

    def defunct() -> list[str]:
        command = ["ps", "-e", "--no-headers", "-o", "pid,ppid,stat,args"]
        lines = elastic.ssh.run(controller, command).stdout.splitlines()
        processes = {words[0]: words[1:] for line in lines if (words := line.split(maxsplit=3))}
        return [
            f"{args}, whose parent is {processes.get(parent, ['', '', 'gone'])[2]}"
            for parent, state, args in processes.values()
            if state.startswith("Z")
        ]

    wait_until(
        defunct,
        lambda found: not found,
        what=f"processes on {controller} to be reaped",
        timeout=ROUNDS,
        show="; ".join,
    )


def test_jobs_resume_as_many_nodes_as_they_request_at_once(
    elastic: Elastic, jobs: Jobs, powering_up: Powering
) -> None:
    elastic.wait_until_down()
    nodes = [*elastic.nodes][: max(1, len(elastic.nodes) - 1)]
    began = time.time()
    with powering_up():
        wide = jobs.submit_here(
            elastic.cluster,
            "srun true",
            *elastic.partition_options(),
            f"--nodes={len(nodes)}",
            f"--nodelist={','.join(nodes)}",
        )
        elastic.cluster.wait_for(
            [wide], {"COMPLETED"}, timeout=elastic.seconds("ResumeTimeout") + ROUNDS
        )
    assert_resumed(elastic, nodes, began)
    with powering_up():
        array = jobs.submit_here(
            elastic.cluster,
            "true",
            *elastic.partition_options(),
            "--array=1-4",
            f"--nodelist={nodes[0]}",
        )
        wait_until(
            lambda: [
                job.state for job in elastic.cluster.jobs("--local", "--array", f"--jobs={array}")
            ],
            lambda states: states == ["COMPLETED"] * 4,
            what="the array to complete",
            timeout=elastic.seconds("ResumeTimeout") + ROUNDS,
            give_up=lambda states: bool({*states} & (FINISHED - {"COMPLETED"})),
        )
    assert_resumed(elastic, nodes, began)


def test_resumed_nodes_have_the_users_files_programs_and_limits_of_a_host(
    elastic: Elastic, jobs: Jobs, powering_up: Powering
) -> None:
    """A job holds all of them, because they may be gone when other checks look on hosts."""
    host_of = elastic.plan.hosts_of(elastic.cluster.name)
    hosts = [*dict.fromkeys(host_of[node] for node in elastic.nodes)]
    ssh, plan, tree = elastic.ssh, elastic.plan, render.render(elastic.plan)
    controller = plan.scenario.clusters[elastic.cluster.name].controller
    zone = printed(ssh, controller, "date +%z")

    def look(name: str) -> list[str]:
        wrong = wrong_files(ssh, elastic.run, plan, tree, name)
        wrong += wrong_directories(ssh, plan, tree, name)
        wrong += wrong_programs(ssh, plan, tree, name) + wrong_packages(ssh, plan, tree, name)
        wrong += wrong_processes(ssh, plan, name)
        if (here := printed(ssh, name, "date +%z")) != zone:
            wrong.append(f"{name} has time zone {here.strip()}, {controller} has {zone.strip()}")
        return wrong

    with held(elastic, jobs, powering_up, [*elastic.nodes]):
        users = everywhere(lambda name: printed(ssh, name, users_script(plan)).splitlines(), hosts)
        wrong = [*wrong_users(users, plan), *problems_on(hosts, look)]
    assert not wrong, "\n".join(wrong)


@contextmanager
def held(
    elastic: Elastic, jobs: Jobs, powering_up: Powering, nodes: Sequence[str]
) -> Iterator[None]:
    """Bring nodes up, and keep them, with a job that runs on all of them."""
    with powering_up():
        job_id = jobs.submit_here(
            elastic.cluster,
            f"srun --nodes={len(nodes)} --ntasks-per-node=1 sleep infinity",
            *elastic.partition_options(),
            f"--nodelist={','.join(nodes)}",
            f"--nodes={len(nodes)}",
        )
        elastic.cluster.wait_for(
            [job_id], {"RUNNING"}, timeout=elastic.seconds("ResumeTimeout") + ROUNDS
        )
    try:
        yield
    finally:
        elastic.cluster.run("scancel", str(job_id), user=jobs.user)


@pytest.mark.needs("user_data")
def test_created_nodes_were_initialized_by_cloud_init_from_their_user_data(
    elastic: Elastic, jobs: Jobs, powering_up: Powering
) -> None:
    """Nothing to wait for: slurmd starts after cloud-init has ended."""
    user_data = elastic.plan.scenario.clusters[elastic.cluster.name].user_data_of()
    nodes = [node for node, text in user_data.items() if text]
    with held(elastic, jobs, powering_up, nodes):
        wrong = problems_on(
            nodes, lambda node: [*wrong_initialization(elastic.ssh, node, user_data[node])]
        )
    assert not wrong, "\n".join(wrong)


def wrong_initialization(ssh: Ssh, node: str, user_data: str) -> Iterator[str]:
    """Yield what cloud-init has not done on a node, and the modules that failed."""
    answer = json.loads(printed(ssh, node, "cloud-init status --format json") or "{}")
    if (status := answer.get("status", "missing")) != "done":
        yield f"{node}: cloud-init is {status}: {answer.get('detail', '')}"
    # Releases since 24.1 list what they skipped, such as user-data that is not valid.
    skipped = answer.get("recoverable_errors", {})
    errors = [skipped.get(level, []) for level in ("CRITICAL", "ERROR", "WARNING")]
    for error in dict.fromkeys([*answer.get("errors", []), *chain.from_iterable(errors)]):
        yield f"{node}: cloud-init: {error}"
    if (source := answer.get("datasource")) != "nocloud":
        yield f"{node}: the data source of cloud-init is {source}, should be nocloud"
    elif printed(ssh, node, "cloud-init query userdata") != f"{user_data}\n":
        yield f"{node}: cloud-init has other user-data than the scenario"


def assert_resumed(elastic: Elastic, nodes: Collection[str], since: float) -> None:
    """Assert that these nodes, and no others, were powered up since a time."""
    resumed = elastic.resumed(since)
    message = f"jobs that requested {sorted(nodes)} powered up {sorted(resumed)}"
    release = releases.get(elastic.plan.releases()[elastic.cluster.name])
    if release.resumes_nodes_between:
        message += (
            ": a fault of this release, which also powers up the nodes between those of a job"
        )
    assert resumed == {*nodes}, message


def test_administrator_powers_a_node_up_and_down(elastic: Elastic, powering_up: Powering) -> None:
    elastic.wait_until_down()
    node = next(iter(elastic.nodes))
    began = time.time()
    with powering_up():
        elastic.cluster.run("scontrol", "update", f"NodeName={node}", "State=POWER_UP")
        # It may be suspended again before the next poll, so ask the recorder.
        wait_until(
            lambda: elastic.up(node, began),
            bool,
            what=f"{node} to be up",
            timeout=elastic.seconds("ResumeTimeout") + ROUNDS,
            show=lambda _: f"{node}: {elastic.awake()}",
        )
    assert elastic.resumed(began) == {node}
    elastic.cluster.run("scontrol", "update", f"NodeName={node}", "State=POWER_DOWN")
    elastic.wait_until_down()


@pytest.mark.needs("static_and_elastic")
def test_static_nodes_are_filled_first_and_never_suspended(elastic: Elastic, jobs: Jobs) -> None:
    elastic.wait_until_down()
    provision_of = elastic.plan.scenario.clusters[elastic.cluster.name].provision_of()
    partitions = elastic.cluster.partitions()
    usual = next((part for part in partitions if part.default), partitions[0])
    static = {name for name in usual.nodes if provision_of[name] == "static"}
    began = time.time()
    signal = Signal(elastic, jobs)
    job_ids = [jobs.submit_here(elastic.cluster, signal.awaited, "--exclusive") for _ in static]
    elastic.cluster.wait_for(job_ids, {"RUNNING"})
    signal.give()
    elastic.cluster.wait_for(job_ids, {"COMPLETED"})
    host_of = elastic.plan.hosts_of(elastic.cluster.name)
    ran = {trace.host for trace in jobs.traces() if trace.job_id in job_ids}
    assert ran == {host_of[node] for node in static}
    assert elastic.resumed(began) == set()
    assert not [
        sighting
        for node in static
        for sighting in elastic.recorder.of(node)
        if "POWER" in sighting.state
    ]


@pytest.mark.needs("two_shapes")
def test_job_resumes_a_node_of_the_shape_that_it_requests(
    elastic: Elastic, jobs: Jobs, powering_up: Powering
) -> None:
    elastic.wait_until_down()
    groups = elastic.plan.scenario.clusters[elastic.cluster.name].nodes
    began = time.time()
    with powering_up():
        job_of = {
            group.name: jobs.submit_here(
                elastic.cluster, "true", f"--constraint={group.features[0]}"
            )
            for group in groups
            if group.features and group.provision != "static"
        }
        elastic.cluster.wait_for(
            job_of.values(), {"COMPLETED"}, timeout=elastic.seconds("ResumeTimeout") + ROUNDS
        )
    assert len(elastic.resumed(began)) == len(job_of)


@pytest.mark.needs("federation")
def test_jobs_that_burst_resume_no_more_cloud_nodes_than_they_need(
    elastic: Elastic,
    federation: Federation,
    jobs: Jobs,
    plan: Plan,
    ran_on: Callable[[int], str],
    powering_up: Powering,
) -> None:
    elastic.wait_until_down()
    cpus = 2  # of each job
    began = time.time()
    signal = Signal(elastic, jobs)
    job = (signal.awaited, "--nodes=1", f"--cpus-per-task={cpus}")
    on_origin = sum(room for _, room in rooms(plan, federation.origin.name, cpus))
    # If both clusters have room, the one that schedules first takes a job, so fill the origin.
    job_ids = [jobs.submit_here(federation.origin, *job) for _ in range(on_origin)]
    federation.origin.wait_for(job_ids, {"RUNNING"})
    with powering_up():
        burst = [jobs.submit(federation.origin, *job) for _ in range(8)]
        job_ids += burst
        # All must run at once, because a job that has ended would leave its node to the next one.
        elastic.cluster.wait_for(
            burst, {"RUNNING"}, timeout=elastic.seconds("ResumeTimeout") + ROUNDS
        )
    signal.give()
    assert Counter(map(ran_on, job_ids)) == {
        federation.origin.name: on_origin,
        elastic.cluster.name: 8,
    }
    wanted, left = 0, 8
    for _, room in rooms(plan, elastic.cluster.name, cpus):
        wanted += left > 0
        left -= room
    # Only their number is checked, because 22.05 does not always take the nodes of least weight.
    resumed = sorted(elastic.resumed(began))
    assert len(resumed) == wanted, (
        f"{wanted} nodes have room for the jobs, {resumed} were powered up"
    )
    seen = {
        trace.job_id: (trace.cluster, trace.host)
        for trace in jobs.traces()
        if trace.job_id in job_ids
    }
    assert {*seen} == {*job_ids}
    if plan.scenario.accounting:
        wait_until(
            lambda: {
                record.job_id: (record.cluster, record.node_list)
                for record in federation.origin.records("--federation", "--allocations")
                if record.job_id in job_ids and record.state == "COMPLETED"
            },
            lambda recorded: recorded == seen,
            what="sacct --federation to agree with what the jobs saw",
            timeout=180,
        )
    elastic.wait_until_down()


def rooms(plan: Plan, cluster: str, cpus: int) -> list[tuple[str, int]]:
    """Return a cluster's nodes in the order in which Slurm fills them, and each node's room.

    A node's room is the number of jobs with `cpus` CPUs that fit on it.
    """
    groups = plan.scenario.clusters[cluster].nodes
    weighed = sorted(
        groups,
        key=lambda group: (
            group.provision != "static",
            slurm_options.get(group.options, "Weight") or 0,
        ),
    )
    return [(node, group.cpus // cpus) for group in weighed for node in hostlist.expand(group.name)]


def test_every_job_on_resumed_nodes_ran_once(elastic: Elastic, jobs: Jobs) -> None:
    elastic.wait_until_down()
    assert not job_trace.ran_twice(jobs.traces())


def test_every_resumed_node_has_read_the_slurm_conf_of_slurmctld(elastic: Elastic) -> None:
    """Reads slurmctld's log, because the hosts are gone. The last registration of a node counts."""
    cluster = elastic.cluster
    reported = reported_as_different(elastic.ssh, elastic.plan, cluster.name)
    different = [
        has_read_another(cluster.name, node.name)
        for node in cluster.nodes()
        if node.name in elastic.nodes and reported.get(node.name, 0) > (node.slurmd_start or 0)
    ]
    assert not different, "\n".join(different)
