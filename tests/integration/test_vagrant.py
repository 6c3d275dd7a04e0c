"""Virtual machines: a single node and a federation, broken on purpose; machines that come and go.

Also users' sessions and files, containers on a machine with cgroup v2, and what a killed run leaves
behind. The tests run where `harness doctor --provider vagrant` finds nothing missing; they install
nothing.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness import doctor, faults, lifecycle, providers, releases, rundir
from harness.cluster import node_state, slurm
from harness.errors import WaitTimeout
from harness.faults import Fault
from harness.open_run import OpenRun
from harness.providers import images
from harness.wait import wait_until
from sabotage import (
    CONFINEMENT,
    GPU_MACHINE,
    MACHINE,
    MACHINES,
    USER_DATA_MACHINES,
    Sabotage,
    break_and_verify,
)
from sabotage_login import LOGIN_MACHINES
from support import SCENARIOS, Harness, command, command_line, deployed, kept, new_run

# One node of each kind that comes and goes.
COMING_AND_GOING = """
release: "24.11"
clusters:
  cloud:
    controller: ctl
    nodes:
      - {name: p1, memory: 300, provision: power}
      - name: c1
        memory: 300
        provision: create
        user_data:
          text: |
            #cloud-config
            write_files:
              - {path: /home/alice/site, content: "cloud", owner: "alice:alice", defer: true}
            runcmd:
              - [cp, /opt/motd, /etc/motd]
    options:
      SuspendTime: 5
      SuspendTimeout: 30
      ResumeTimeout: 900  # emulated on a busy computer, cloud-init takes minutes
      SchedulerParameters:
        [batch_sched_delay=0, sched_min_interval=0, sched_interval=2, bf_interval=2,
         requeue_delay=1]
users: {alice: {uid: 2001}}
shared_directories: [/opt]
"""
GPUS = """
release: "24.11"
clusters:
  gpus:
    controller: single
    nodes: [{name: single, cpus: 2, memory: 500, gres: ["gpu:2"]}]
    files: {gres.conf: "Name=gpu File=/dev/gpu[1-2]"}
users: {alice: {uid: 2001}}
"""
USERS_LOG_IN = """
release: "24.11"
clusters:
  campus:
    controller: ctl
    login: login
    pam_slurm_adopt: true
    nodes: [{name: n1, cpus: 2, memory: 300}]
    options:
      SchedulerParameters: batch_sched_delay=0,sched_min_interval=0,sched_interval=2
users: {alice: {uid: 2001}, bob: {uid: 2002}}
shared_directories: [/home]
"""
NFS_PORT = "2049"
WITH_ENGINE = """
release: "24.11"
clusters: {engine: {controller: engine, nodes: [{name: engine, cpus: 2, memory: 5000}]}}
"""
CONFINED = [
    f"--set=clusters.single.cgroup.Constrain{what}=true"
    for what in ("Cores", "RAMSpace", "SwapSpace")
]
# The box's image resolves no names, so that hosts depend on nothing outside of the run.
DOWNLOAD = """
sed -i 's/^hosts:.*/hosts: files dns/' /etc/nsswitch.conf
apt-get update >&2
apt-get install --yes --no-install-recommends --download-only docker.io >&2
tar --directory=/var/cache/apt/archives --create .
"""


@pytest.fixture(scope="module", autouse=True)
def _vagrant() -> None:
    """Skip the tests where something is missing; to find out takes seconds."""
    missing = [one for one in doctor.examine("vagrant") if one.fatal and not one.ok]
    if missing:
        pytest.skip(
            "NOT RUN, nothing is proven of virtual machines here: "
            + "; ".join(f"{one.subject}: {one.text}" for one in missing)
            + "; as root, `harness doctor --provider vagrant --fix`"
        )


def test_machines_boot_when_jobs_need_their_nodes_and_stop_when_these_are_idle(
    harness: Harness, runs: Path, tmp_path: Path
) -> None:
    """User-data initializes those that are created, before jobs run there."""
    scenario = tmp_path / "coming-and-going.yml"
    scenario.write_text(COMING_AND_GOING)
    checks = ("job_resumes_the_node", "as_many_nodes_as_they_request", "hosts_are_gone", "ran_once")
    with deployed(harness, runs, scenario, "--provider", "vagrant") as run:
        run.ssh.run("ctl", ["sh", "-c", "echo welcome > /opt/motd"])
        (sabotage,) = USER_DATA_MACHINES
        evaluation = lifecycle.verify(run, [*checks, *sabotage.checks])
        assert evaluation.verdict() == "passed", evaluation
        (cluster,) = slurm.clusters(run.ssh, run.plan).values()
        script = "#!/bin/sh\ncat /etc/motd ~/site; stat --format=' of %U' ~/site\n"
        job_id = cluster.submit(script, "--nodelist=c1", "--output=/opt/%j", user="alice")
        cluster.wait_for([job_id], {"COMPLETED"}, timeout=1200)
        output = run.ssh.run("ctl", ["cat", f"/opt/{job_id}"]).stdout
        assert output == "welcome\ncloud of alice\n"
        # A node that is still up was initialized before the sabotage.
        wait_until(
            lambda: {node.name: node.state for node in cluster.nodes()},
            lambda states: node_state.is_powered_down(states["c1"]),
            what="c1 to be powered down",
            timeout=1200,
        )
        break_and_verify(run, sabotage)


def test_job_that_ignores_its_variables_opens_only_its_own_gpus(
    harness: Harness, runs: Path, tmp_path: Path
) -> None:
    scenario = tmp_path / "gpus.yml"
    scenario.write_text(GPUS)
    up, run = new_run(harness, runs, "up", scenario, "--provider", "vagrant")
    try:
        assert up.returncode == 0, up.stderr
        # Two consoles of the kernel stand in for GPUs.
        make = "mknod -m 666 /dev/gpu1 c 4 61; mknod -m 666 /dev/gpu2 c 4 62"
        run.ssh.run("single", ["sh", "-c", make])
        lifecycle.deploy(run)
        (sabotage,) = GPU_MACHINE
        evaluation = lifecycle.verify(run, sabotage.checks)
        assert evaluation.verdict() == "passed", evaluation
        break_and_verify(run, sabotage)
    finally:
        lifecycle.down(run)


def test_sessions_belong_to_jobs_and_jobs_wait_for_a_file_server_that_is_gone(
    harness: Harness, runs: Path, tmp_path: Path
) -> None:
    scenario = tmp_path / "login.yml"
    scenario.write_text(USERS_LOG_IN)
    with deployed(harness, runs, scenario, "--provider", "vagrant") as run:
        evaluation = lifecycle.verify(run, ["test_login", "test_homes"])
        assert evaluation.verdict() == "passed", evaluation
        for sabotage in LOGIN_MACHINES:
            break_and_verify(run, sabotage)
        (cluster,) = slurm.clusters(run.ssh, run.plan).values()
        script = "#!/bin/sh\nsleep 5; echo done\n"
        with faults.injected(run, Fault("block-port", "ctl", NFS_PORT)):
            job_id = cluster.submit(script, "--output=/home/alice/%j", user="alice")
            cluster.wait_for([job_id], {"RUNNING"})
            with pytest.raises(WaitTimeout):
                cluster.wait_for([job_id], {"COMPLETED"}, timeout=60)
        cluster.wait_for([job_id], {"COMPLETED"}, timeout=300)
        output = run.ssh.run("login", ["cat", f"/home/alice/{job_id}"]).stdout
        assert output == "done\n"

        def write(user: str) -> str:
            options = ("srun", "--quiet", f"--chdir=/home/{user}", "dd")
            sizes = ("if=/dev/zero", "of=file", "bs=64K", "count=16", "conv=fsync", "status=none")
            return cluster.run(*options, *sizes, user=user, check=False).stderr

        with faults.injected(run, Fault("exhaust-quota", "ctl", "alice")):
            assert "Disk quota exceeded" in write("alice")
            assert not write("bob")
        assert not write("alice")


def test_containers_on_a_machine_with_cgroup_v2_confine_jobs(
    harness: Harness,
    environment: dict[str, str],
    runs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The engine is in a virtual machine."""
    scenario, saved, socket = tmp_path / "engine.yml", tmp_path / "image.tar", tmp_path / "socket"
    scenario.write_text(WITH_ENGINE)
    image = images.tag(releases.get("24.11"))
    up, run = new_run(harness, runs, "up", scenario, "--provider", "vagrant")
    forward: subprocess.Popen[bytes] | None = None
    try:
        assert up.returncode == 0, up.stderr
        download = ("docker", "run", "--rm", "--entrypoint=sh", image, "-euc", DOWNLOAD)
        packages = subprocess.run(download, check=True, capture_output=True).stdout
        ssh = ("ssh", "-F", str(run.directory.ssh_config))
        install = (
            "mkdir packages; tar -C packages -x; dpkg --install packages/*.deb; rm -r packages"
        )
        subprocess.run([*ssh, "engine", install], check=True, input=packages, capture_output=True)
        forward = subprocess.Popen(
            [*ssh, "-N", "-o", "ControlPath=none", "-L", f"{socket}:/run/docker.sock", "engine"]
        )
        wait_until(socket.exists, bool, what="SSH to forward the engine's socket", timeout=60)
        there = command_line({**environment, "DOCKER_HOST": f"unix://{socket}"})
        for done in (harness("images", "save", saved, "24.11"), there("images", "load", saved)):
            assert done.returncode == 0, done.stderr

        monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
        create = ("docker", "context", "create", "inner", f"--docker=host=unix://{socket}")
        subprocess.run(create, check=True, capture_output=True)
        inside = command_line({**environment, "DOCKER_CONFIG": str(tmp_path / "docker")})
        with contextmanager(kept)(
            inside, runs, "single-node", "--provider=docker:inner", *CONFINED
        ) as containers:
            for sabotage in CONFINEMENT:
                break_and_verify(containers, sabotage)
    finally:
        if forward:
            forward.kill()
            forward.wait()
        lifecycle.down(run)


def test_nothing_is_left_of_a_killed_run_that_lost_its_directory(
    harness: Harness, environment: dict[str, str], runs: Path
) -> None:
    libvirt = providers.get("vagrant", runs)
    before = {*libvirt.runs()}
    words = command("up", SCENARIOS / "single-node.yml", "--provider", "vagrant")
    with subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL) as process:
        try:
            (run_id,) = wait_until(
                lambda: [
                    run_id
                    for run_id in libvirt.runs()
                    if run_id not in before and libvirt.hosts(run_id)
                ],
                bool,
                what="a machine to be made",
                timeout=300,
                give_up=lambda _: process.poll() is not None,
            )
        finally:
            process.kill()
    rundir.find(runs, run_id).path.rename(runs / "lost")
    down = harness("down", "--provider", "vagrant", run_id)
    assert down.returncode == 0, down.stderr
    assert run_id not in libvirt.runs()


@pytest.fixture(scope="module")
def machines(request: pytest.FixtureRequest, harness: Harness, runs: Path) -> Iterator[OpenRun]:
    """A scenario's virtual machines, passed and still up; those of the one before are gone."""
    yield from kept(harness, runs, request.param, "--provider", "vagrant")


@pytest.mark.parametrize(
    ("machines", "sabotage"),
    [
        *(("single-node", sabotage) for sabotage in MACHINE),
        *(("federation-small", sabotage) for sabotage in MACHINES),
    ],
    indirect=["machines"],
    ids=str,
    scope="module",
)
def test_check_fails_on_broken_machines(machines: OpenRun, sabotage: Sabotage) -> None:
    break_and_verify(machines, sabotage)
