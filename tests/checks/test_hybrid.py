"""Slurm and Kubernetes share nodes, and never both give away the same resources.

This also holds while daemons and the operator are killed.
"""

from __future__ import annotations

import random
import re
import secrets
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import ge
from threading import Event

import pytest
from conftest import Jobs, reconfigure, wait_until_answers, wait_until_saved

from harness import faults
from harness.cluster import node_state
from harness.cluster.slurm import SlurmCluster
from harness.errors import CommandFailed
from harness.faults import Fault
from harness.kubernetes import amounts
from harness.kubernetes.amounts import Amount, Use
from harness.kubernetes.hybrid_cluster import HybridCluster, new_token
from harness.kubernetes.ledger_entries import READY, REFUSED
from harness.open_run import OpenRun
from harness.parsing import hostlist
from harness.plan import Plan
from harness.rundir import RunDir
from harness.scenario import gpus_of
from harness.ssh import Ssh
from harness.verify import job_trace
from harness.verify.selection import has_room_for_pods
from harness.wait import wait_until

pytestmark = [pytest.mark.needs("kubernetes", "users"), pytest.mark.provokes()]

# How many more jobs and pods come and go after something is killed, and how many jobs may wait in
# the meantime.
MORE, MOST_WAITING = 5, 3
SEED = 1
# CPUs and MiB in `scontrol show node`: what Slurm may give to jobs, what jobs have requested from
# the ledger, and what they have.
OFFERED = r" Gres=\S*k8scpu:(\d+)([KMGT]?)\S*k8smemory:(\d+)([KMGT]?)"
REQUESTED = OFFERED.replace(" Gres", "GresUsed")
ALLOCATED = r"AllocTRES=cpu=(\d+)([KMGT]?),mem=(\d+)([KMGT]?)"
# The same for GPUs, whose allocation is in AllocTRES only if AccountingStorageTRES says so.
LEDGER_GPUS = r"GresUsed=\S*\bk8sgpu:(\d+)"
GPUS = r"GresUsed=(?:\S*,)?gpu:(?:\(null\):|[A-Za-z][\w.-]*:)?(\d+)"


@pytest.fixture
def hybrid(shared_clusters: dict[str, HybridCluster], plan: Plan) -> HybridCluster:
    """The first cluster that is shared with Kubernetes and has room for the pods of checks."""
    return next(
        found
        for name, found in shared_clusters.items()
        if has_room_for_pods(plan.scenario.clusters[name])
    )


@pytest.fixture
def whole(hybrid: HybridCluster, plan: Plan) -> dict[str, Amount]:
    """The size of each node of that cluster."""
    return sizes_of_nodes(plan, hybrid)


def sizes_of_nodes(plan: Plan, hybrid: HybridCluster) -> dict[str, Amount]:
    groups = plan.scenario.clusters[hybrid.cluster.name].nodes
    return {
        name: amounts.of_slurm(group.cpus, group.memory, gpus_of(group.gres))
        for group in groups
        for name in hostlist.expand(group.name)
    }


@contextmanager
def pod(hybrid: HybridCluster, node: str, wanted: Amount, answer: str = READY) -> Iterator[str]:
    """Request a pod, wait for this answer, and withdraw it at the end."""
    name = f"pod-{secrets.token_hex(4)}"
    hybrid.request_for(node, name, wanted.quantities())
    try:
        wait_for_answer(hybrid, node, name, answer)
        yield name
    finally:
        hybrid.withdraw(node, name)


def submitted(jobs: Jobs, cluster: SlurmCluster, body: str, *options: str) -> int | None:
    """Submit a job and return its id; None if no node has enough resources left."""
    try:
        return jobs.submit_here(cluster, body, *options)
    except CommandFailed as error:
        if "node configuration is not available" not in error.stderr:
            raise
        return None


def wait_for_answer(hybrid: HybridCluster, node: str, name: str, wanted: str) -> None:
    wait_until(
        lambda: hybrid.answers(node).get(name),
        lambda answer: answer == wanted,
        what=f"the pod on {node} to be {wanted}",
        timeout=180,
        give_up=bool,
        show=lambda answer: f"{answer} {hybrid.reason(node, name)}".strip(),
    )


def shown(cluster: SlurmCluster, node: str) -> str:
    return cluster.run("scontrol", "--details", "--oneliner", "show", "node", node).stdout


def offered(cluster: SlurmCluster, node: str) -> tuple[int, ...]:
    """Return the CPUs and MiB that Slurm has left to jobs."""
    return sizes(OFFERED, shown(cluster, node))


def sizes(pattern: str, text: str, units: str = "_KMGT") -> tuple[int, ...]:
    """Return numbers with their units, of which the first is 1 and each other 1024 of the last."""
    match = re.search(pattern, text)
    found = match.groups() if match else ("0", "", "0", "")
    return tuple(
        int(number) * 1024 ** (units.index(unit) if unit else 0)
        for number, unit in zip(found[::2], found[1::2], strict=True)
    )


def test_pod_is_refused_where_jobs_occupy_the_node_and_job_waits_where_pods_do(
    hybrid: HybridCluster, whole: dict[str, Amount], jobs: Jobs
) -> None:
    cluster, (node, size) = hybrid.cluster, next(iter(whole.items()))
    half = amounts.of_slurm(size.cpus // 2, size.memory // 2)
    most = Amount(size.millicpus - half.millicpus + 100, 100)
    options = (f"--nodelist={node}", f"--ntasks={half.cpus}", f"--mem={half.memory}")
    first = jobs.submit_here(cluster, job_trace.UNTIL_CANCELLED, *options)
    cluster.wait_for([first], {"RUNNING"})
    with pod(hybrid, node, most, REFUSED), pod(hybrid, node, half):
        second = jobs.submit_here(cluster, job_trace.UNTIL_CANCELLED, *options)
        allocated = wait_until(
            lambda: hybrid.ledger_object(node)["status"]["allocatedResources"],
            lambda parts: [part["allocated"] for part in parts] == [half.quantities()] * 2,
            what=f"{node} to be allocated half to Slurm and half to Kubernetes",
            timeout=150,
        )
        assert [part["type"] for part in allocated] == ["Slurm", "Kubernetes"]
        assert_waits(cluster, second)
    cluster.wait_for([second], {"RUNNING"})


def assert_waits(cluster: SlurmCluster, job_id: int) -> None:
    """Wait until slurmctld has considered a job, and fail unless it is pending."""
    seen = wait_until(
        lambda: cluster.job(job_id),
        lambda job: job.state != "PENDING" or job.reason not in {"None", "Priority"},
        what="slurmctld to consider the job",
        timeout=120,
    )
    assert seen.state == "PENDING", f"a job that needs what a pod has is {seen.state}"


@pytest.mark.needs("several_shared_clusters")
def test_operator_keeps_the_ledger_of_each_cluster_and_uses_a_token_that_was_replaced(
    hybrid: HybridCluster, shared_clusters: dict[str, HybridCluster], plan: Plan
) -> None:
    """Without a valid token for one cluster, it still answers pods on the others."""
    other = next(found for found in shared_clusters.values() if found is not hybrid)
    (node, *_), (other_node, *_) = (sizes_of_nodes(plan, found) for found in (hybrid, other))
    before = offered(hybrid.cluster, node)
    name, wanted = f"pod-{secrets.token_hex(4)}", Amount(500, 100)
    other.operator.replace_token(other.cluster.name, "invalid")
    try:
        other.request_for(other_node, name, wanted.quantities())
        for _ in range(2):
            with pod(hybrid, node, wanted):
                pass
        wait_until(
            lambda: offered(hybrid.cluster, node),
            lambda sizes: sizes == before,
            what=f"{node} to offer {before} again",
            timeout=120,
        )
        assert name not in other.answers(other_node), (
            f"the operator has answered a pod on {other_node}, for which it has no valid token"
        )
        other.operator.replace_token(other.cluster.name, new_token(plan, other.cluster))
        wait_for_answer(other, other_node, name, READY)
        left = amounts.left_to_slurm(sizes_of_nodes(plan, other)[other_node], [wanted])
        # Several times: what something else changes, the operator changes back.
        wrong = [
            f"{found} offers {now} to jobs, should be {should_be}"
            for found, of, should_be in 5
            * (
                (node, hybrid.cluster, before),
                (other_node, other.cluster, (left.cpus, left.memory)),
            )
            if (now := offered(of, found)) != should_be
        ]
        assert not wrong, f"while a pod has {wanted.quantities()} of {other_node}: {wrong}"
    finally:
        other.operator.replace_token(other.cluster.name, new_token(plan, other.cluster))
        other.withdraw(other_node, name)


@pytest.mark.needs("external_jobs")
def test_external_job_reserves_for_a_pod_what_other_jobs_wait_for_and_starts_nothing(
    hybrid: HybridCluster, whole: dict[str, Amount], jobs: Jobs, ssh: Ssh
) -> None:
    """The reverse direction: a scheduler of pods asks only Slurm.

    It binds a pod when the pod's external job runs.
    """
    cluster, (node, size) = hybrid.cluster, next(iter(whole.items()))
    options = (f"--nodelist={node}", f"--ntasks={size.cpus // 2 + 1}")
    external = cluster.run(
        "sbatch", "--parsable", "--external", *options, user=jobs.user
    ).stdout.strip()
    cluster.wait_for([int(external)], {"RUNNING"})
    job_id = jobs.submit_here(cluster, job_trace.UNTIL_CANCELLED, *options)
    assert_waits(cluster, job_id)
    with pod(hybrid, node, Amount(size.millicpus // 2, 0), REFUSED):
        pass
    # Last, because a busy slurmd may start what a job runs late.
    started = ssh.run(
        node, ["pgrep", "--list-full", "--full", rf"^slurmstepd: \[{external}\."], check=False
    ).stdout
    assert not started, f"the external job has started {started}"
    cluster.run("scancel", external, user=jobs.user)
    cluster.wait_for([job_id], {"RUNNING"})


@pytest.mark.needs("external_jobs", "room_for_nodes")
def test_external_node_is_allocated_only_to_external_jobs_and_only_once_whatever_restarts(
    hybrid: HybridCluster, jobs: Jobs
) -> None:
    """Slurm does the accounting for a node that it does not run, such as a Kubernetes node."""
    cluster = hybrid.cluster
    with external_node(
        cluster, jobs.user, "CPUs=2 RealMemory=500 Gres=k8scpu:2,k8smemory:500"
    ) as node:
        ordinary = cluster.run(
            "sbatch", f"--nodelist={node}", "--wrap=true", user=jobs.user, check=False
        )
        assert ordinary.exit_code, f"a job that needs slurmd may start on {node}, which has none"
        ask = ("sbatch", "--parsable", "--external", f"--nodelist={node}", "--ntasks=2")
        first = int(cluster.run(*ask, user=jobs.user).stdout)
        cluster.wait_for([first], {"RUNNING"})
        cluster.run("systemctl", "restart", "slurmctld")
        wait_until_answers(cluster)
        reconfigure(cluster)
        second = int(cluster.run(*ask, user=jobs.user).stdout)
        assert_waits(cluster, second)
        cluster.run("scancel", str(first), user=jobs.user)
        cluster.wait_for([second], {"RUNNING"})


@contextmanager
def external_node(cluster: SlurmCluster, user: str, size: str) -> Iterator[str]:
    """Create a node without slurmd; at the end delete it, and cancel the user's jobs."""
    node = f"outside-{secrets.token_hex(4)}"
    # Any address will do, but slurmctld resolves it: if it cannot, it retries for ten seconds.
    cluster.run(
        "scontrol",
        "create",
        f"NodeName={node}",
        "State=EXTERNAL",
        "NodeAddr=127.0.0.1",
        *size.split(),
    )
    try:
        yield node
    finally:
        # Cancel all of the user's jobs: one that waits for the node would start on it immediately.
        cluster.run("scancel", f"--user={user}")
        wait_until(
            lambda: cluster.run("squeue", "--noheader", f"--user={user}").stdout,
            lambda jobs: not jobs,
            what=f"{user} to have no jobs",
            timeout=180,
        )
        cluster.run("scontrol", "delete", f"NodeName={node}")


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--ntasks=3",),
        ("--cpus-per-task=2", "--mem-per-cpu=70"),
        ("--cpus-per-task=2", "--mem-per-cpu=300"),
        ("--ntasks=2", "--cpus-per-task=2", "--mem=333"),
        ("--mincpus=3",),
        ("--nodes=2", "--ntasks-per-node=2"),
        ("--nodes=2", "--ntasks=5", "--mem=120"),
        ("--ntasks=2", "--gres=k8scpu:0,k8smemory:1"),
        ("--array=1-2", "--cpus-per-task=2"),
    ],
    ids=" ".join,
)
def test_every_job_requests_from_the_ledger_what_it_gets(
    options: tuple[str, ...], hybrid: HybridCluster, whole: dict[str, Amount], jobs: Jobs
) -> None:
    job_id = jobs.submit_here(hybrid.cluster, job_trace.UNTIL_CANCELLED, *options)
    hybrid.cluster.wait_for([job_id], {"RUNNING"})
    texts = {node: shown(hybrid.cluster, node) for node in whole}
    pairs = {
        node: (sizes(REQUESTED, text), sizes(ALLOCATED, text, "MGT"))
        for node, text in texts.items()
    }
    assert any(allocated != (0, 0) for _, allocated in pairs.values())
    for node, (from_ledger, allocated) in pairs.items():
        assert all(
            requested >= other for requested, other in zip(from_ledger, allocated, strict=True)
        ), (
            f"{' '.join(options)}: jobs have {allocated} of {node}, "
            f"but requested {from_ledger} from the ledger"
        )


@pytest.mark.needs("shared_gpus")
@pytest.mark.parametrize(
    "options",
    [
        ("--gres=gpu:1",),
        ("--gpus=2", "--nodes=1"),
        ("--gpus-per-task=1", "--ntasks=2", "--nodes=1"),
    ],
    ids=" ".join,
)
def test_gpus_of_pods_are_not_given_to_jobs_nor_those_of_jobs_to_pods(
    options: tuple[str, ...], hybrid: HybridCluster, whole: dict[str, Amount], jobs: Jobs
) -> None:
    cluster, (node, size) = hybrid.cluster, next(iter(whole.items()))
    here = (f"--nodelist={node}", *options)
    with pod(hybrid, node, Amount(1000, 100, size.gpus)):
        accepted = submitted(jobs, cluster, job_trace.UNTIL_CANCELLED, *here)
        assert not accepted, f"sbatch {' '.join(here)} is accepted although pods have all GPUs"
    job_id = wait_until(
        lambda: submitted(jobs, cluster, job_trace.UNTIL_CANCELLED, *here),
        bool,
        what=f"{node} to have GPUs again",
        timeout=120,
    )
    cluster.wait_for([job_id], {"RUNNING"})
    text = shown(cluster, node)
    requested, allocated = (sum(map(int, re.findall(what, text))) for what in (LEDGER_GPUS, GPUS))
    assert requested >= allocated > 0, (
        f"{' '.join(options)}: jobs have {allocated} GPUs of {node}, "
        f"but requested {requested} from the ledger"
    )
    left = size.gpus - requested
    with (
        pod(hybrid, node, Amount(100, 10, left + 1), REFUSED),
        pod(hybrid, node, Amount(100, 10, left)),
    ):
        pass


def test_user_cannot_bypass_the_ledger(
    hybrid: HybridCluster, whole: dict[str, Amount], jobs: Jobs
) -> None:
    cluster, node = hybrid.cluster, next(iter(whole))
    job_id = jobs.submit_here(cluster, "true", "--hold")
    refused = [
        *(
            ("sbatch", f"--{option}", "--wrap=true")
            for option in (
                *("exclusive", "mem=0", "mem-per-cpu=0", "ntasks-per-gpu=1"),
                *("tres-per-task=gres/k8scpu:1", "gpus-per-socket=1", "cpus-per-gpu=2"),
                "gres=gpu:9999999999999999999,gpu:1",
            )
        ),
        *(
            ("scontrol", "update", f"JobId={job_id}", change)
            for change in (
                "Gres=k8scpu:0",
                "NumCPUs=2",
                "NumTasks=2",
                "MinMemoryNode=500",
                "MinMemoryCPU=500",
                "CpusPerTres=gres/gpu:4",
                "MemPerTres=gres/gpu:500",
            )
        ),
        ("scontrol", "update", f"NodeName={node}", "Gres=k8scpu:99,k8smemory:99999"),
        ("scontrol", "update", f"NodeName={node}", "State=RESUME"),
        ("scontrol", "reconfigure"),
        ("scontrol", "create", "NodeName=mine", "State=CLOUD"),
    ]
    allowed = [
        " ".join(command)
        for command in refused
        if not cluster.run(*command, user=jobs.user, check=False).exit_code
    ]
    assert not allowed, f"{jobs.user} was allowed: {allowed}"
    cluster.run("scontrol", "update", f"JobId={job_id}", "TimeLimit=5", user=jobs.user)


@contextmanager
def killed(hybrid: HybridCluster) -> Iterator[None]:
    """Kill the operator, and start it again at the end."""
    hybrid.operator.kill()
    try:
        yield
    finally:
        hybrid.operator.start()


@contextmanager
def drained(cluster: SlurmCluster, node: str) -> Iterator[None]:
    """Drain a node as an administrator, and resume it at the end."""
    cluster.run("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=no fan")
    try:
        yield
    finally:
        # slurmctld refuses this if something else has resumed the node.
        cluster.run("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)
        wait_until(
            lambda: next(
                candidate.reason for candidate in cluster.nodes() if candidate.name == node
            ),
            lambda reason: "no fan" not in reason,
            what=f"{node}, which was resumed, to take jobs again after slurmctld starts",
            timeout=120,
        )


def test_slurmctld_that_forgot_what_pods_have_starts_no_job_until_the_operator_has_cut_again(
    hybrid: HybridCluster, whole: dict[str, Amount], jobs: Jobs, harness_run: OpenRun
) -> None:
    cluster, (node, size) = hybrid.cluster, next(iter(whole.items()))
    other = next(name for name in whole if name != node)
    wanted = (1, size.memory - 100)
    with drained(cluster, other), pod(hybrid, node, Amount(size.millicpus - 1000, 100)):
        # Several times: what something else changes, the operator changes back.
        for _ in range(5):
            now = offered(cluster, node)
            assert now == wanted, (
                f"{node} offers {now} to jobs, the operator has set {wanted}: "
                "something else changes Gres of nodes"
            )
        with killed(hybrid):
            with faults.injected(
                harness_run, Fault("stop-daemon", cluster.controller, "slurmctld")
            ):
                pass
            wait_until(
                lambda: [candidate.name for candidate in cluster.nodes() if candidate.slurmd_start],
                lambda names: names == [*whole],
                what="all nodes to register with slurmctld",
                timeout=120,
                ignore=(CommandFailed,),
            )
            states = {candidate.name: candidate.state for candidate in cluster.nodes()}
            assert node_state.is_draining(states[other]), (
                f"{other}, which an administrator drained, is {states[other]} "
                "although no operator runs: something else resumes nodes"
            )
            job_id = jobs.submit_here(
                cluster, job_trace.UNTIL_CANCELLED, f"--nodelist={node}", "--ntasks=2"
            )
            assert_waits(cluster, job_id)
        wait_until(
            lambda: shown(cluster, node),
            lambda text: sizes(OFFERED, text) == wanted and "DRAIN" not in text,
            what=f"{node} to take jobs with {wanted}",
            timeout=180,
        )
        state = cluster.job(job_id).state
        assert state == "PENDING", (
            f"a job that needs what a pod has is {state} although the operator has set {wanted}: "
            "something else changes Gres of nodes, or the operator resumes them too early"
        )
        reasons = {candidate.name: candidate.reason for candidate in cluster.nodes()}
        assert "no fan" in reasons[other], (
            f"the operator has resumed {other}, which an administrator drained"
        )
    cluster.wait_for([job_id], {"RUNNING"})


@dataclass
class Pods:
    """A scheduler of pods of many sizes, with a record of what each pod had."""

    hybrid: HybridCluster
    whole: dict[str, Amount]
    chance: random.Random
    requested: dict[str, tuple[str, Amount]] = field(default_factory=dict)
    bound: dict[str, tuple[float, float]] = field(default_factory=dict)
    uses: list[Use] = field(default_factory=list)
    refused: int = 0

    def step(self, *, more: bool) -> None:
        """Bind admitted pods, drop those that were refused or have ended, and request one more."""
        now = time.time()
        answers = {node: self.hybrid.answers(node) for node in self.whole}
        for name, (node, wanted) in [*self.requested.items()]:
            answer = None if name in self.bound else answers[node].get(name)
            if answer == READY:
                self.bound[name] = (time.time(), now + self.chance.uniform(0.5, 4))
            gone = name in self.bound and now > self.bound[name][1]
            if gone:
                self.uses.append(Use(name, node, wanted, self.bound[name][0], now))
            self.refused += answer == REFUSED
            if gone or answer == REFUSED:
                del self.requested[name]
                self.hybrid.withdraw(node, name)
        if more and len(self.requested) < 2 * len(self.whole):
            node, size = self.chance.choice([*self.whole.items()])
            share = self.chance.uniform(0.1, 0.5)
            # Some pods request all CPUs, which are rarely free: only between the end of one job and
            # the start of the next.
            cpus = self.chance.choice((share, 1))
            wanted = Amount(int(size.millicpus * cpus), int(size.memory * share))
            name = f"pod-{secrets.token_hex(4)}"
            self.requested[name] = (node, wanted)
            self.hybrid.request_for(node, name, wanted.quantities())

    def run(self, stopped: Event) -> None:
        """Let pods come and go until stopped, then let all of them go."""
        while not stopped.wait(0.2):
            self.step(more=True)
        wait_until(
            lambda: self.step(more=False) or [*self.requested],
            lambda left: not left,
            what="pods to go",
            timeout=120,
        )


@dataclass
class Work:
    """Users who submit jobs of many sizes, and a record of the memory that each job requested."""

    cluster: SlurmCluster
    whole: dict[str, Amount]
    jobs: Jobs
    chance: random.Random
    memory_of: dict[int, int] = field(default_factory=dict)
    refused: int = 0

    def run(self, stopped: Event) -> None:
        """Submit jobs until stopped, with only a few waiting at a time."""
        size = next(iter(self.whole.values()))
        while not stopped.wait(0.2):
            if sum(job.state == "PENDING" for job in self.cluster.jobs("--local")) < MOST_WAITING:
                body = f"sleep {self.chance.uniform(0.5, 3):.1f}"
                self.submit(
                    body,
                    self.chance.randint(1, size.cpus // 2),
                    self.chance.randint(50, size.memory // 2),
                )

    def submit(self, body: str, cpus: int, memory: int) -> int | None:
        """Submit a job and return its id; None if no node has enough resources left."""
        options = ("--nodes=1", f"--ntasks={cpus}", f"--mem={memory}")
        job_id = submitted(self.jobs, self.cluster, body, *options)
        if job_id:
            self.memory_of[job_id] = memory
        else:
            self.refused += 1
        return job_id

    def uses(self) -> list[Use]:
        """Return what the jobs had of their nodes, according to their traces."""
        return [
            Use(
                f"job {seen.job_id}",
                seen.host,
                Amount(seen.cpus[0] * 1000, memory),
                seen.start,
                seen.end,
            )
            for seen in self.jobs.traces()
            if (memory := self.memory_of.get(seen.job_id)) and seen.end
        ]


def test_jobs_and_pods_never_have_the_same_cpu_or_memory(
    hybrid: HybridCluster,
    whole: dict[str, Amount],
    jobs: Jobs,
    harness_run: OpenRun,
    plan: Plan,
    run: RunDir,
) -> None:
    """Random jobs and pods come and go while the operator, slurmrestd and slurmctld are killed.

    They are killed one after the other. The scheduler of pods records what pods had, and the jobs
    record what they had: neither asks the other side.
    """
    pods = Pods(hybrid, whole, random.Random(SEED))  # noqa: S311  no secret
    work = Work(hybrid.cluster, whole, jobs, random.Random(SEED))  # noqa: S311

    def kill(daemon: str) -> None:
        with faults.injected(
            harness_run, Fault("kill-daemon", plan.with_daemon(daemon)[0].name, daemon)
        ):
            pass

    def kill_operator() -> None:
        with killed(hybrid):
            pass

    def kill_slurmctld() -> int:
        # slurmctld loses its latest changes, even that a job runs or has ended, so let a single job
        # run until it is cancelled, and start no other.
        hybrid.cluster.wait_for([*work.memory_of], timeout=180)
        long_job = wait_until(
            lambda: work.submit("sleep 300 & wait", 1, 50),
            bool,
            what="a job to be accepted",
            timeout=180,
        )
        hybrid.cluster.wait_for([long_job], {"RUNNING"})
        mark, since = f"last-{secrets.token_hex(4)}", time.time()
        jobs.submit_here(hybrid.cluster, "true", "--hold", f"--job-name={mark}")
        wait_until_saved(hybrid.cluster, mark, plan, since)
        kill("slurmctld")
        wait_until_answers(hybrid.cluster)
        return long_job

    with ThreadPoolExecutor(2) as pool:
        ended = Event()
        with_pods = pool.submit(pods.run, ended)
        try:
            go_on(pool, work, pods, with_pods)
            go_on(pool, work, pods, with_pods, kill_operator)
            go_on(pool, work, pods, with_pods, lambda: kill("slurmrestd"))
            long_job = kill_slurmctld()
            go_on(pool, work, pods, with_pods)
            hybrid.cluster.run("scancel", str(long_job), user=jobs.user)
        finally:
            ended.set()
        with_pods.result()
    hybrid.cluster.wait_for([*work.memory_of], timeout=180)
    uses = work.uses()
    uses_beside_pods = [
        use
        for use in uses
        if any(other.node == use.node and at_once(use, other) for other in pods.uses)
    ]
    counts = {
        "jobs": len(uses),
        "pods": len(pods.uses),
        "jobs_beside_pods": len(uses_beside_pods),
        "refused_pods": pods.refused,
    }
    run.event("hybrid", **counts, refused_jobs=work.refused)
    wrong = amounts.overcommitted([*uses, *pods.uses], whole)
    assert not wrong, "\n".join(wrong)
    assert len(uses) == len(work.memory_of), f"{len(work.memory_of)} jobs were submitted, {counts}"
    assert all(counts.values()), f"too little happened: {counts}"


def at_once(use: Use, other: Use) -> bool:
    return use.start < other.end and other.start < use.end


def go_on(
    pool: ThreadPoolExecutor,
    work: Work,
    pods: Pods,
    with_pods: Future[None],
    kill: Callable[[], None] | None = None,
) -> None:
    """Call `kill`, then let jobs and pods come and go until there were some more of each."""
    ended = Event()
    with_jobs = pool.submit(work.run, ended)

    def counts() -> tuple[int, int]:
        for future in (with_jobs, with_pods):
            if future.done():
                future.result()  # the error that ended it
        return len(work.memory_of), len(pods.uses)

    try:
        if kill:
            kill()
        enough = [count + MORE for count in counts()]
        wait_until(
            counts,
            lambda seen: all(map(ge, seen, enough)),
            what=f"{MORE} more jobs and pods",
            timeout=300,
        )
    finally:
        ended.set()
    with_jobs.result()
