"""Slurm's daemons in containers that have what the manifests for Kubernetes give them."""

from __future__ import annotations

import io
import secrets
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import docker
import pytest

from harness import releases, scenario
from harness.capabilities import CONTAINERS
from harness.errors import WaitTimeout
from harness.kubernetes import manifests
from harness.parsing import durations
from harness.plan import make_plan
from harness.providers import images
from harness.wait import wait_until
from pods import Kubelet, Pod, kubelet
from support import SCENARIOS

# Containers have no GPUs.
PLAN = make_plan(
    "pods",
    scenario.load(
        SCENARIOS / "kubernetes-hybrid.yml", settings=["clusters.shared.nodes.0.gres=[]"]
    ),
    CONTAINERS,
)
NODES = PLAN.scenario.clusters["shared"].node_names()
USER = "alice"
# What a site's image has and the harness's does not: names from DNS, users, and no systemd.
DOCKERFILE = """FROM {base}
STOPSIGNAL SIGTERM
RUN sed -i 's/^hosts:.*/hosts: files dns/' /etc/nsswitch.conf && useradd {user}
"""


def workload(kind: str) -> dict[str, Any]:
    """Return the StatefulSet or DaemonSet of the manifests."""
    prefix = "daemons/shared/"
    (found,) = (
        found
        for path, text in manifests.daemons(PLAN).items()
        if path.startswith(prefix) and path.endswith(".yaml")
        for found in manifests.objects(text)
        if found["kind"] == kind
    )
    return found


def configuration() -> dict[str, dict[str, bytes]]:
    """Return the ConfigMap of the manifests, as kustomize generates it."""
    rendered = manifests.daemons(PLAN)
    (kustomization,) = manifests.objects(rendered["daemons/shared/kustomization.yaml"])
    return {
        generated["name"]: {
            name: rendered[f"daemons/shared/{name}"].encode() for name in generated["files"]
        }
        for generated in kustomization["configMapGenerator"]
    }


def keys() -> dict[str, dict[str, bytes]]:
    """Return the Secret that the documentation lets the user create."""
    sizes = {"munge.key": 1024, "jwt_hs256.key": 32}
    return {"slurm-keys": {name: secrets.token_bytes(size) for name, size in sizes.items()}}


@pytest.fixture(scope="module")
def engine() -> Iterator[docker.DockerClient]:
    with closing(docker.from_env(timeout=300)) as client:
        yield client


@pytest.fixture(scope="module")
def image(engine: docker.DockerClient) -> Iterator[str]:
    """The image of a site."""
    base = images.ensure(engine, releases.get(releases.DEFAULT), print)
    dockerfile = DOCKERFILE.format(base=base, user=USER).encode()
    context = io.BytesIO(images.archive([images.Entry("Dockerfile", dockerfile)]))
    built, _ = engine.images.build(
        fileobj=context, custom_context=True, tag=f"slurm-harness-test:pods-{uuid4().hex}", rm=True
    )
    yield built.tags[0]
    engine.images.remove(built.tags[0], force=True)


@dataclass
class Cluster:
    """The pods of a cluster."""

    kubelet: Kubelet
    slurmctld: Pod
    slurmds: dict[str, Pod]

    def run(self, *command: str, user: str = USER) -> str:
        """Run a command beside slurmctld."""
        return self.slurmctld.run("slurmctld", *command, user=user).strip()

    def states(self) -> dict[str, str]:
        """Return the state of each node."""
        lines = self.run("sinfo", "--noheader", "--Node", "--format=%N %T").splitlines()
        return dict(line.split() for line in lines)

    def wait_for_idle_nodes(self) -> None:
        """Wait until all nodes are idle; resume those that are drained, as the operator does."""

        def resumed() -> dict[str, str]:
            for node, state in self.states().items():
                if state == "drained":
                    with suppress(AssertionError):  # the node has not registered yet
                        update = ("scontrol", "update", f"nodename={node}", "state=resume")
                        self.run(*update, user="slurm")
            return self.states()

        wait_until(
            resumed,
            lambda states: states == dict.fromkeys(NODES, "idle"),
            what="nodes to be idle",
            timeout=300,
            show=lambda states: "\n".join(
                [str(states), *(pod.logs() for pod in (self.slurmctld, *self.slurmds.values()))]
            ),
            ignore=(AssertionError,),
        )


def start_slurmctld(started: Kubelet) -> Pod:
    stateful_set = workload("StatefulSet")
    name = stateful_set["metadata"]["name"]
    return started.start(stateful_set, f"{name}-0", service=stateful_set["spec"]["serviceName"])


@pytest.fixture(scope="module")
def cluster(engine: docker.DockerClient, image: str) -> Iterator[Cluster]:
    """The cluster, with all nodes up."""
    with kubelet(engine, image, NODES, {**configuration(), **keys()}) as started:
        slurmctld = start_slurmctld(started)
        daemon_set = workload("DaemonSet")
        slurmds = {node: started.start(daemon_set, f"slurmd-{node}", node) for node in NODES}
        ready = Cluster(started, slurmctld, slurmds)
        ready.wait_for_idle_nodes()
        yield ready


def test_a_job_of_a_user_runs_in_the_pods_of_all_nodes(cluster: Cluster) -> None:
    identity = cluster.slurmds[NODES[0]].run("slurmd", "id", USER).strip()
    everywhere = (f"--nodes={len(NODES)}", "--chdir=/tmp", "--time=5")
    printed = cluster.run("srun", *everywhere, "--label", "sh", "-c", "hostname; id")
    assert {line.split(": ", 1)[1] for line in printed.splitlines() if ": " in line} >= {
        *NODES,
        identity,
    }
    # Only the user may write to the directory.
    directory = f"/tmp/{uuid4().hex}"
    cluster.run("srun", *everywhere, "mkdir", "-m", "0700", directory)
    cluster.run(
        *("sbatch", "--wait", *everywhere, f"--output={directory}/out"),
        f"--wrap=cd {directory}; sbcast /etc/hostname sent; srun sh -c 'cat sent; hostname'",
    )
    written = cluster.slurmds[NODES[0]].run("slurmd", "cat", f"{directory}/out", user=USER)
    assert sorted(written.splitlines()) == sorted([*NODES, *[NODES[0]] * len(NODES)])


def test_jobs_survive_a_new_pod_of_slurmctld(cluster: Cluster) -> None:
    names = {state: uuid4().hex for state in ("RUNNING", "PENDING")}
    submit = ("sbatch", "--parsable", "--chdir=/tmp", "--output=/dev/null", "--wrap=sleep 3601")
    running = cluster.run(*submit, f"--job-name={names['RUNNING']}")
    cluster.run(*submit, f"--job-name={names['PENDING']}", "--hold")

    def jobs() -> dict[str, str]:
        lines = cluster.run("squeue", "--noheader", "--format=%T %j").splitlines()
        return dict(line.split() for line in lines)

    def wait_for_jobs(names: dict[str, str], what: str) -> None:
        wait_until(
            jobs, lambda seen: seen == names, what=what, timeout=300, ignore=(AssertionError,)
        )

    wait_for_jobs(names, "the job to run")
    cluster.kubelet.stop(cluster.slurmctld)
    cluster.slurmctld = start_slurmctld(cluster.kubelet)
    wait_for_jobs(names, "slurmctld to know its jobs")
    cluster.run("scancel", f"--user={USER}")
    wait_for_jobs({}, f"job {running} to end")
    for pod in cluster.slurmds.values():
        wait_until(
            lambda pod=pod: pod.run("slurmd", "ps", "-eo", "args"),
            lambda processes: "sleep 3601" not in processes and "defunct" not in processes,
            what="nothing to be left of the job",
            timeout=300,
            ignore=(AssertionError,),
        )
    # In slurm.conf, nodes are drained until the operator has cut.
    cluster.wait_for_idle_nodes()


def test_job_is_requeued_when_slurmd_has_a_new_pod(cluster: Cluster) -> None:
    node = NODES[-1]
    submit = ("sbatch", "--parsable", "--chdir=/tmp", "--output=/dev/null", "--wrap=sleep 3602")
    job_id = cluster.run(*submit, f"--nodelist={node}")

    def job(field: str) -> str:
        return cluster.run("squeue", "--noheader", f"--jobs={job_id}", f"--Format={field}")

    # slurmctld does not miss a job that is younger: _purge_missing_jobs() of job_mgr.c.
    age = sum(
        int(cluster.run("sh", "-c", f"scontrol show config | awk '$1 == \"{name}\" {{print $3}}'"))
        for name in ("BatchStartTimeout", "MessageTimeout")
    )
    wait_until(
        lambda: job("TimeUsed"),
        lambda used: job("State") == "RUNNING" and durations.seconds(used) > age,
        what=f"the job to be older than {age} s",
        timeout=300,
    )
    cluster.kubelet.stop(cluster.slurmds[node])
    cluster.slurmds[node] = cluster.kubelet.start(workload("DaemonSet"), f"slurmd-{node}", node)
    wait_until(
        lambda: job("State"), lambda state: state == "PENDING", what="a requeue", timeout=300
    )
    cluster.run("scancel", job_id)
    cluster.wait_for_idle_nodes()


def test_jobs_that_would_end_slurmd_are_refused(cluster: Cluster) -> None:
    submit = ("sbatch", "--chdir=/tmp", "--output=/dev/null", "--wrap=true")
    for option in ("--export=NONE", "--export=HOME", "--get-user-env"):
        with pytest.raises(AssertionError, match="cannot load a user's environment"):
            cluster.run(*submit, option)


def test_slurmd_that_lacks_a_capability_does_not_start(cluster: Cluster) -> None:
    daemon_set = workload("DaemonSet")
    (slurmd,) = daemon_set["spec"]["template"]["spec"]["containers"]
    slurmd["securityContext"]["capabilities"]["add"].remove("SETGID")
    with pytest.raises(WaitTimeout, match="setgroups: Operation not permitted"):
        cluster.kubelet.start(daemon_set, "slurmd-without", NODES[0])


def test_node_with_a_different_munge_key_does_not_register(
    engine: docker.DockerClient, image: str
) -> None:
    with kubelet(engine, image, NODES, {**configuration(), **keys()}) as started:
        start_slurmctld(started)
        started.files |= keys()
        slurmd = started.start(workload("DaemonSet"), "slurmd", NODES[0])
        wait_until(
            slurmd.logs,
            lambda logs: "Invalid credential" in logs,
            what="a key to be refused",
            timeout=300,
        )
