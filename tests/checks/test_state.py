"""Slurm saves its state: jobs survive a restart of its daemons."""

from __future__ import annotations

import shlex
import time

import pytest
from conftest import problems_on, wait_until_saved

from harness import slurm_options
from harness.cluster.slurm import SlurmCluster
from harness.plan import Plan
from harness.ssh import Ssh
from harness.verify import checks_plugin


@pytest.mark.needs("users")
def test_slurmctld_saves_its_jobs_where_every_controller_sees_them(
    request: pytest.FixtureRequest, plan: Plan, held_jobs: dict[str, str], ssh: Ssh
) -> None:
    """A slurmctld that cannot save its state loses jobs at its next start, and reuses their ids."""
    since = request.node.stash.get(checks_plugin.BEGAN, time.time())
    for name, mark in held_jobs.items():
        scenario = plan.scenario.clusters[name]
        for controller in (scenario.controller, *scenario.backup_controllers):
            wait_until_saved(SlurmCluster(ssh, name, controller), mark, plan, since)


def test_slurmctld_can_read_and_write_its_saved_state(ssh: Ssh, plan: Plan) -> None:
    """A wrong file makes it forget its jobs, or refuse to start, but only at its next start.

    It must be able to read and write each, but keys need only be readable, and the file with the
    cluster's name must have it.
    """

    def look(name: str) -> list[str]:
        cluster = str(plan.host(name).cluster)
        conf = plan.slurm_conf(cluster)
        user = slurm_options.get(conf, "SlurmUser") or "root"
        directory = slurm_options.state_save_location(conf)
        # Files that are renamed or removed in the meantime are not an error.
        find = (
            f"find {shlex.quote(directory)} ! -type l"
            r" \( ! -readable -o ! -writable ! -name '*.key' -o -type d ! -executable \)"
            r" -printf '%p has mode %m and owner %u:%g\n' 2> /dev/null"
        )
        answer = ssh.run(name, ["runuser", "-u", user, "--", "sh", "-c", find], check=False)
        wrong = [
            f"{name}: {user} cannot read and write its state: {line}"
            for line in answer.stdout.splitlines()
        ]
        # _init_cluster_name() of controller.c; since 24.11 followed by the cluster's id
        of_state = ssh.run(name, ["cat", f"{directory}/clustername"], check=False).stdout.strip()
        if of_state and of_state.partition("|")[0] != cluster.lower():
            wrong.append(f"{name}:{directory}/clustername is of {of_state}, not of {cluster}")
        return wrong

    hosts = [
        host.name for host in plan.with_daemon("slurmctld") if host.cluster and host.is_permanent
    ]
    problems = problems_on(hosts, look)
    assert not problems, "\n".join(problems)
