"""Slurm saves its state: jobs survive a restart of its daemons."""

from __future__ import annotations

import pytest
from conftest import wait_until_saved

from harness.cluster.slurm import SlurmCluster
from harness.plan import Plan
from harness.ssh import Ssh


@pytest.mark.needs("users")
def test_slurmctld_saves_its_jobs_where_every_controller_sees_them(
    plan: Plan, held_jobs: dict[str, str], ssh: Ssh
) -> None:
    """A slurmctld that cannot save its state loses jobs at its next start, and reuses their ids."""
    for name, mark in held_jobs.items():
        scenario = plan.scenario.clusters[name]
        for controller in (scenario.controller, *scenario.backup_controllers):
            wait_until_saved(SlurmCluster(ssh, name, controller), mark, plan)
