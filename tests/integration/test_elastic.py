"""The ladder of elastic resume, and the ways in which it fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import docker
import pytest

from harness import elastic, lifecycle, providers, rundir, slurm, witness
from harness.errors import CommandFailed
from harness.lifecycle import Live
from harness.slurm import SlurmCluster, job_key
from harness.wait import wait_until
from support import SCENARIOS, Harness

FAILING = """
description: Nodes that are made for jobs, with little patience.
clusters:
  cloud:
    controller: ctl
    nodes: [{name: "c[1-2]", provision: create}]
    options:
      SuspendTime: 3
      SuspendTimeout: 3
      ResumeTimeout: 12
      SlurmdTimeout: 10
      AuthInfo: cred_expire=6  # a job that lost its node is not tried again before its credential has expired
      SchedulerParameters: sched_min_interval=0,sched_interval=2,bf_interval=2,requeue_delay=1
      MinJobAge: 3600
users: {alice: {uid: 2001}}
"""
# Each level of the ladder, each on another release; the checks that are about it.
LADDER = [("elastic-l0", "24.11"), ("elastic-l1", "22.05"), ("elastic-l2", "26.05"), ("cloudburst", "24.11")]
CHECKS = ("elastic", "burst", "runs_its_daemons", "without_an_error", "accounting_matches")


@pytest.mark.parametrize(("name", "release"), LADDER)
def test_ladder(harness: Harness, name: str, release: str) -> None:
    up = harness("up", SCENARIOS / f"{name}.yml", "--release", release)
    assert up.returncode == 0, up.stderr
    try:
        assert harness("deploy", "--run", name).returncode == 0
        done = harness("verify", "--run", name, *(word for check in CHECKS for word in ("--check", check)))
        assert done.returncode == 0, done.stdout + done.stderr
    finally:
        harness("down", name)
    assert not docker.from_env().volumes.list(filters={"label": "harness.scenario"})


@pytest.fixture(scope="module")
def failing(harness: Harness, runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A cluster whose nodes do not exist yet."""
    path = tmp_path_factory.mktemp("scenario") / "failing.yml"
    path.write_text(FAILING)
    up = harness("up", path)
    live = lifecycle.open_run(rundir.find(runs, "failing"), providers.get("docker"), print)
    try:
        assert up.returncode == 0, up.stderr
        lifecycle.deploy(live)
        yield live
    finally:
        lifecycle.down(live)


@pytest.fixture
def cluster(failing: Live) -> Iterator[SlurmCluster]:
    """The cluster; its nodes are powered down, with no host left, before each test and after it."""
    cluster = slurm.clusters(failing.ssh, failing.plan)["cloud"]
    wait_until_at_rest(failing, cluster)
    yield cluster
    wait_until_at_rest(failing, cluster)


def wait_until_at_rest(live: Live, cluster: SlurmCluster) -> None:
    wait_until(
        lambda: [node.state for node in cluster.nodes() if not slurm.powered_down(node.state)],
        lambda left: not left,
        what="all nodes powered down",
        timeout=60,
        ignore=(CommandFailed,),
    )
    wait_until(
        lambda: live.provider.hosts(live.run.id), lambda there: {*there} == {"ctl"}, what="no host left", timeout=15
    )


def submit(cluster: SlurmCluster, body: str, *options: str) -> int:
    return cluster.submit(witness.script(body), "--output=/dev/null", *options, user="alice")


def ran(live: Live, job_id: int) -> list[str]:
    """Return the hosts on which a job ran: one for each time."""
    return [one.host for one in witness.collect(live.ssh, ["ctl"]) if one.key == job_key("cloud", job_id)]


def power_log(live: Live) -> str:
    return live.ssh.run("ctl", ["cat", "/var/log/slurm/power.log"], check=False).stdout


def wait_for_state(cluster: SlurmCluster, node: str, flag: str, timeout: float = 30) -> None:
    wait_until(
        lambda: next(one.state for one in cluster.nodes() if one.name == node),
        lambda state: flag in state.split("+"),
        what=f"{node} {flag}",
        timeout=timeout,
        interval=0.1,
        ignore=(CommandFailed,),
    )


def test_api_that_is_down_is_asked_again_until_it_answers(failing: Live, cluster: SlurmCluster) -> None:
    elastic.stop(failing.run.id)
    job_id = submit(cluster, "true", "--nodelist=c1")
    wait_for_state(cluster, "c1", "POWERING_UP")
    assert {*failing.provider.hosts(failing.run.id)} == {"ctl"}
    elastic.start(failing.run)
    cluster.wait_for([job_id], {"COMPLETED"})
    assert ran(failing, job_id) == ["c1"]


def test_node_that_never_registers_is_given_up_and_its_job_runs_once_when_it_can(
    failing: Live, cluster: SlurmCluster
) -> None:
    key = failing.run.path / "secrets" / "munge_key"
    right = key.read_text()
    key.write_text("f" * 64)
    try:
        began = len(power_log(failing))
        job_id = submit(cluster, "true", "--nodelist=c1")
        wait_for_state(cluster, "c1", "DOWN", timeout=40)
        wait_until(lambda: power_log(failing)[began:], lambda text: "resume-fail" in text, what="c1 healed", timeout=15)
        assert ran(failing, job_id) == []
    finally:
        key.write_text(right)
    cluster.wait_for([job_id], {"COMPLETED"}, timeout=90)
    assert ran(failing, job_id) == ["c1"]


def test_restart_of_slurmctld_while_nodes_come_up_loses_no_job(failing: Live, cluster: SlurmCluster) -> None:
    job_id = submit(cluster, "true", "--nodelist=c2")
    wait_for_state(cluster, "c2", "POWERING_UP")
    failing.ssh.run("ctl", ["systemctl", "restart", "slurmctld"])
    cluster.wait_for([job_id], {"COMPLETED"}, timeout=90)
    assert ran(failing, job_id) == ["c2"]


def test_job_whose_host_dies_is_requeued(failing: Live, cluster: SlurmCluster) -> None:
    job_id = submit(cluster, "sleep 4", "--nodelist=c1", "--requeue")
    cluster.wait_for([job_id], {"RUNNING"})
    wait_until(lambda: ran(failing, job_id), lambda hosts: hosts == ["c1"], what="the job has begun", timeout=10)
    failing.provider.remove(failing.run.id, "c1")
    wait_for_state(cluster, "c1", "DOWN", timeout=60)
    cluster.wait_for([job_id], {"COMPLETED"}, timeout=120)
    assert ran(failing, job_id) == ["c1", "c1"]


def test_of_contradicting_requests_the_last_counts(failing: Live, cluster: SlurmCluster) -> None:
    for _ in range(2):
        for action in ("resume", "resume", "suspend", "resume", "suspend", "suspend"):
            failing.ssh.run("ctl", [f"/usr/local/sbin/slurm-{action}", "c[1-2]"])
    wait_until_at_rest(failing, cluster)
    time.sleep(2)  # nothing may come back
    assert {*failing.provider.hosts(failing.run.id)} == {"ctl"}


@pytest.mark.parametrize(
    ("spoil", "mend"),
    [("chmod 0644 FILE", "chmod 0755 FILE"), ("chmod 0777 FILE", "chmod 0755 FILE")],
    ids=["not executable", "writable by others"],
)
def test_program_that_slurmctld_refuses_keeps_the_job_waiting(
    failing: Live, cluster: SlurmCluster, spoil: str, mend: str
) -> None:
    do: Callable[[str], object] = lambda script: failing.ssh.run(  # noqa: E731
        "ctl", ["sh", "-c", script.replace("FILE", "/usr/local/sbin/slurm-resume") + "; scontrol reconfigure"]
    )
    do(spoil)
    try:
        job_id = submit(cluster, "true", "--nodelist=c1")
        log = "grep -E 'ResumeProgram|power_save' /var/log/slurm/slurmctld.log | tail -5"
        wait_until(
            lambda: failing.ssh.run("ctl", ["sh", "-c", log]).stdout,
            lambda text: "ot executable" in text or "writ" in text or "invalid" in text,
            what="slurmctld refuses the program",
            timeout=20,
        )
        assert {*failing.provider.hosts(failing.run.id)} == {"ctl"}
    finally:
        do(mend)
    cluster.wait_for([job_id], {"COMPLETED"}, timeout=90)
    assert ran(failing, job_id) == ["c1"]
