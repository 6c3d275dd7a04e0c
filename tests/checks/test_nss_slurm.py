"""Processes of jobs get their user and its groups from slurmstepd: nss_slurm."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from conftest import Jobs, problems_on, small_here

from harness import faults
from harness.cluster.slurm import SlurmCluster
from harness.faults import Fault
from harness.open_run import OpenRun
from harness.plan import Plan
from harness.ssh import Ssh

pytestmark = pytest.mark.needs("users", "nss_slurm")

MINUTES = 10


@pytest.fixture
def nodes(plan: Plan, clusters: dict[str, SlurmCluster]) -> dict[str, tuple[SlurmCluster, str]]:
    """The hosts of the nodes that use nss_slurm, each with its cluster and node."""
    return {
        host.name: (clusters[host.cluster], host.nodes[0])
        for host in plan.with_daemon("slurmd")
        if host.is_permanent and host.cluster and plan.scenario.clusters[host.cluster].nss_slurm
    }


@pytest.fixture
def member_jobs(plan: Plan, jobs: Jobs) -> Jobs:
    """Jobs of the user who is in the most groups."""
    by_groups = sorted(jobs.users, key=lambda user: -len(plan.scenario.groups_of(user)))
    return replace(jobs, users=by_groups)


def test_jobs_get_their_user_and_its_groups_from_slurmstepd(
    ssh: Ssh, plan: Plan, nodes: dict[str, tuple[SlurmCluster, str]], member_jobs: Jobs
) -> None:
    """Every process of a node asks slurmstepd first, and only those of jobs get their user.

    Before 24.11.6 and 25.05.1, others get the groups of jobs, too: see docs/directory.md.
    """
    user = member_jobs.user
    groups = " ".join(sorted(plan.scenario.groups_of(user)))
    look_up = f"getent -s slurm passwd {user}; getent -s slurm group {groups}"

    def look(host: str) -> Iterator[str]:
        cluster, node = nodes[host]
        order = ["sed", "-nE", r"s/^(passwd|group): *([a-z]+).*/\1 \2/p", "/etc/nsswitch.conf"]
        first = dict(line.split() for line in ssh.run(host, order).stdout.splitlines())
        for database in ("passwd", "group"):
            if (source := first.get(database, "files")) != "slurm":
                yield f"{host}: {database} is looked up in {source} first, not in slurm"
        # slurmstepd has what slurmctld knows, but of the members of a group only the user.
        by_slurmctld = ["sh", "-c", f"getent passwd {user}; getent group {groups}"]
        passwd, *entries = ssh.run(cluster.controller, by_slurmctld).stdout.splitlines()
        wanted = [passwd, *(f"{entry.rpartition(':')[0]}:{user}" for entry in entries)]
        seen = run_on(node, cluster, plan, member_jobs, look_up)
        if seen != wanted:
            yield f"{host}: slurmstepd tells a job of {user}: {seen}, should be {wanted}"
        others = ["getent", "-s", "slurm", "passwd", user]
        if answer := ssh.run(host, others, check=False).stdout:
            yield f"{host}: slurmstepd answers a process outside of jobs: {answer}"

    problems = problems_on(nodes, look)
    assert not problems, "\n".join(problems)


@pytest.mark.needs("directory")
@pytest.mark.provokes
def test_jobs_know_their_user_and_its_groups_on_a_node_without_sssd(
    harness_run: OpenRun,
    ssh: Ssh,
    plan: Plan,
    nodes: dict[str, tuple[SlurmCluster, str]],
    member_jobs: Jobs,
) -> None:
    user = member_jobs.user
    host, (cluster, node) = next(iter(nodes.items()))
    with faults.injected(harness_run, Fault("stop-daemon", host, "sssd")):
        # What processes can read of sssd's cache while it is stopped; it creates them again.
        ssh.run(host, ["sh", "-c", "rm -f /var/lib/sss/mc/*"])
        known = ssh.run(host, ["id", user], check=False)
        assert known.exit_code, f"{host} knows {user} although sssd is stopped: {known.stdout}"
        seen = run_on(node, cluster, plan, member_jobs, "id -un; id -Gn | tr ' ' '\\n' | sort")
    wanted = [user, *sorted(plan.scenario.groups_of(user))]
    assert seen == wanted, f"{host}: without sssd, a job of {user} sees {seen}, not {wanted}"


def run_on(node: str, cluster: SlurmCluster, plan: Plan, jobs: Jobs, command: str) -> list[str]:
    """Return what a shell command prints on a node, as a job of the user; errors come last."""
    options = [*small_here(cluster, plan, jobs, MINUTES), f"--nodelist={node}"]
    answer = cluster.run("srun", *options, "sh", "-c", command, user=jobs.user, check=False)
    return [*answer.stdout.splitlines(), *dict.fromkeys(answer.stderr.splitlines())]
