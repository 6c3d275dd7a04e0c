"""Rolling upgrades of genuine clusters while users submit: every job is accounted for once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness import rundir, slurm, upgrade, workload
from harness.errors import ClusterError
from harness.plan import Plan
from support import Harness, deployed

ROLLING = """
description: A cluster that is upgraded while its users submit.
release: "24.11"
clusters:
  rolling:
    controller: ctl
    nodes: [{name: "n[1-2]", cpus: 4, memory: 1000}]
    options:
      SchedulerParameters: batch_sched_delay=0,sched_min_interval=0,sched_interval=2,bf_interval=2,requeue_delay=1
      AuthInfo: cred_expire=6  # seconds that a requeued job waits at least
      MinJobAge: 3600
      OPTION
accounting:
  accounts: {physics: {}}
  qos: {urgent: {options: {Priority: 1000, MaxJobsPerUser: 2}}}
users:
  alice: {uid: 2001, accounts: [physics], qos: [urgent]}
"""


def test_cluster_is_upgraded_while_users_submit(harness: Harness, runs: Path, tmp_path: Path) -> None:
    path = tmp_path / "rolling.yml"
    path.write_text(ROLLING.replace("OPTION", ""))
    done = harness("upgrade", path, "--to", "24.11:26.05", "--keep")
    try:
        assert done.returncode == 0, done.stdout + done.stderr
        assert "PASSED" in done.stdout
        steps = [event["step"] for event in rundir.find(runs, "rolling").events() if event["kind"] == "upgrade"]
        assert steps == ["slurmdbd", "slurmctld of rolling", "nodes n1", "nodes n2"]
        # What came out of it is a cluster of 26.05 in which all is well.
        verified = harness("verify", "--run", "rolling")
        assert verified.returncode == 0, verified.stdout
        assert "rolling 26.05, slurmdbd 26.05" in verified.stdout
    finally:
        harness("down", "rolling")


def test_step_whose_gate_stays_shut_is_undone(harness: Harness, runs: Path, tmp_path: Path) -> None:
    path = tmp_path / "stuck.yml"
    path.write_text(ROLLING.replace("OPTION", ""))
    with deployed(harness, runs, path) as live:
        cluster = slurm.clusters(live.ssh, live.plan)["rolling"]
        job_id = cluster.submit("#!/bin/sh\nsleep 100\n", "--output=/dev/null", user="alice")
        cluster.wait_for([job_id], {"RUNNING"})
        new = upgrade.plan_upgrade(live, ["26.05"])
        works = workload.generate(live.plan.scenario, 300, 300, 1)
        with pytest.raises(ClusterError, match="slurmctld of rolling could not be upgraded, and is what it was"):
            upgrade.upgrade(live, with_an_option_that_nobody_knows(new), works)
        # What was upgraded before stays so.
        assert rundir.find(runs, "stuck").plan().releases() == {"rolling": "24.11", "slurmdbd": "26.05"}
        assert cluster.run("sinfo", "--version").stdout.startswith("slurm-wlm 24.11")
        cluster.wait_for([job_id], {"COMPLETED"}, timeout=120)


def with_an_option_that_nobody_knows(plan: Plan) -> Plan:
    """Return a plan on which slurmctld refuses to start."""
    cluster = plan.scenario.clusters["rolling"]
    cluster = cluster.model_copy(update={"options": {**cluster.options, "NoSuchOption": "1"}})
    return replace(plan, scenario=plan.scenario.model_copy(update={"clusters": {"rolling": cluster}}))
