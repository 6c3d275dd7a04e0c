"""Nodes that have their own kernel reboot and lose power."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass

import pytest
from conftest import Jobs, only, small, wait_until_saved

from harness import faults
from harness.cluster import logs, slurm
from harness.cluster.slurm import SlurmCluster
from harness.errors import CommandFailed, Unreachable, WaitTimeout
from harness.faults import Fault
from harness.open_run import OpenRun
from harness.plan import Plan
from harness.ssh import Ssh
from harness.wait import wait_until

pytestmark = [
    pytest.mark.needs("users"),
    pytest.mark.provokes(),
    pytest.mark.provokes("Main process exited"),  # of a host that reboots or loses its power
]

MINUTES = 10
# Deadline in seconds for a host to start a requested reboot.
_GOES_DOWN = 180


@dataclass(frozen=True)
class NodeUnderTest:
    """A permanent node, and its host."""

    cluster: SlurmCluster
    name: str
    host: str


@pytest.fixture(scope="module")
def node(clusters: dict[str, SlurmCluster], plan: Plan) -> NodeUnderTest:
    """The last node of the first cluster."""
    name, part = next(iter(plan.scenario.clusters.items()))
    last = [*part.static_nodes()][-1]
    return NodeUnderTest(clusters[name], last, plan.hosts_of(name)[last])


@pytest.mark.needs("reboots")
def test_node_reboots_on_request_and_accepts_jobs_again(
    node: NodeUnderTest, plan: Plan, ssh: Ssh, users: list[str], jobs: Jobs
) -> None:
    before = boot_of(node, ssh)
    node.cluster.run("scontrol", "reboot", "ASAP", "nextstate=RESUME", node.name)
    wait_until(
        lambda: boot_of(node, ssh),
        lambda boot: boot != before,
        what=f"{node.host} to go down for the reboot of {node.name} that scontrol requested",
        timeout=_GOES_DOWN,
        ignore=(WaitTimeout,),
    )
    wait_until(
        lambda: boot_of(node, ssh),
        lambda boot: boot not in {"", before},
        what=f"{node.host} to come up again",
        timeout=plan.capabilities.boot_seconds,
        ignore=(WaitTimeout,),
    )
    takes_jobs(node, plan, users[0], jobs)


@pytest.mark.needs("reboots")
def test_jobs_of_a_node_that_lost_power_are_requeued_or_fail_and_it_accepts_jobs_again(
    node: NodeUnderTest,
    plan: Plan,
    harness_run: OpenRun,
    clusters: dict[str, SlurmCluster],
    users: list[str],
    jobs: Jobs,
) -> None:
    cluster = node.cluster
    smallest = (*small(plan, cluster.name, MINUTES), "--output=/dev/null")
    options = [
        *only(cluster, plan),
        *jobs.access_options(cluster),
        *smallest,
        f"--nodelist={node.name}",
    ]
    again, never = (
        cluster.submit("#!/bin/sh\nexec sleep 900\n", *options, option, user=users[0])
        for option in ("--requeue", "--no-requeue")
    )
    cluster.wait_for([again, never], {"RUNNING"})
    # If slurmctld is on the same host, it loses what it has not saved.
    mark, since = f"seen-{secrets.token_hex(4)}", time.time()
    cluster.run("scontrol", "update", f"JobId={never}", f"Comment={mark}")
    wait_until_saved(cluster, mark, plan, since)
    # So would its log, which other checks read.
    host = plan.host(node.host)
    if "slurmctld" in host.daemons and (files := logs.log_files(plan, host, "slurmctld")):
        harness_run.ssh.run(host.name, ["sync", *files])
    with faults.injected(harness_run, Fault("kill-host", node.host)):
        pass

    def look() -> dict[int, tuple[str, str]]:
        if node.host == cluster.controller:
            # When the node registered, slurmctld had only just started, and it assumes for 20 s
            # (BatchStartTimeout and MessageTimeout) that jobs are running. On its own it asks the
            # node again only with about every 20th ping, so make slurmd register.
            harness_run.ssh.run(
                node.host, ["sh", "-c", "systemctl reset-failed; systemctl try-restart slurmd"]
            )
        return {job_id: state_of(cluster, job_id) for job_id in (again, never)}

    wait_until(
        look,
        lambda seen: (
            seen[again] in {("PENDING", "1"), ("RUNNING", "1")}
            and seen[never] == ("NODE_FAIL", "0")
        ),
        what=f"job {again} to be requeued, and job {never} to fail, "
        f"because {node.name} lost its power",
        timeout=180,
        interval=5,
        ignore=(CommandFailed, Unreachable),
    )
    cluster.run("scancel", str(again))
    takes_jobs(node, plan, users[0], jobs)
    if node.host == cluster.controller:
        join_again(cluster, clusters, plan)


def join_again(cluster: SlurmCluster, clusters: dict[str, SlurmCluster], plan: Plan) -> None:
    """Make a controller's siblings drop their connections to it, which it could not close.

    Otherwise they keep the connections forever, and the controller waits for its siblings (seen in
    24.11).
    """
    for federation in plan.scenario.federations.values():
        for sibling in (
            {*federation.clusters} - {cluster.name} if cluster.name in federation.clusters else ()
        ):
            clusters[sibling].run("systemctl", "restart", "slurmctld")
    slurm.wait_until_ready(plan, clusters)


def boot_of(node: NodeUnderTest, ssh: Ssh) -> str:
    """Return the id of the current boot of a node's host, or "" while it is down.

    Raises WaitTimeout if it is not known, because the host is slow to answer.
    """
    try:
        return ssh.run(node.host, ["cat", "/proc/sys/kernel/random/boot_id"], timeout=30).stdout
    except (Unreachable, CommandFailed):
        return ""


def state_of(cluster: SlurmCluster, job_id: int) -> tuple[str, str]:
    """Return a job's state and number of restarts."""
    shown = cluster.run("scontrol", "--oneliner", "show", "job", str(job_id)).stdout
    facts = dict(word.split("=", 1) for word in shown.split() if "=" in word)
    return facts["JobState"], facts["Restarts"]


def takes_jobs(node: NodeUnderTest, plan: Plan, user: str, jobs: Jobs) -> None:
    """Wait until a node is idle, and run a job on it.

    Also wait for slurmdbd, which may be on the same host.
    """
    cluster = node.cluster
    if plan.scenario.accounting:
        wait_until(
            lambda: cluster.run("sacctmgr", "--noheader", "show", "cluster").stdout,
            bool,
            what="slurmdbd to answer again",
            timeout=plan.capabilities.boot_seconds,
            ignore=(CommandFailed, Unreachable),
        )
    wait_until(
        lambda: next(
            f"{candidate.state} {candidate.reason}"
            for candidate in cluster.nodes()
            if candidate.name == node.name
        ),
        lambda state: state.split()[0] == "IDLE",
        what=f"{node.name} to take jobs again",
        timeout=180,
        ignore=(CommandFailed, Unreachable),
    )
    options = [*only(cluster, plan), *jobs.access_options(cluster), f"--nodelist={node.name}"]
    cluster.run("srun", "--job-name=interactive", *options, "--ntasks=1", "true", user=user)
