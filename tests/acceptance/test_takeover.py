"""If a daemon fails, its backup takes over and later gives control back; no job is lost, and none runs twice."""

from __future__ import annotations

import secrets
import time

import pytest
from conftest import Jobs, wait_for_records, wait_until_saved

from harness import faults, rehearsal, witness
from harness.errors import CommandFailed
from harness.faults import Fault
from harness.live import Live
from harness.plan import Plan
from harness.slurm import SlurmCluster
from harness.ssh import Ssh
from harness.wait import wait_until

pytestmark = [pytest.mark.needs("users"), pytest.mark.provokes()]
# Deadline in seconds for what takes 20 s on an idle machine.
PATIENCE = 180


@pytest.mark.needs("backup_controllers", "accounting")
def test_backup_controller_takes_over_and_gives_back_without_losing_a_job(
    harness_run: Live, clusters: dict[str, SlurmCluster], plan: Plan, ssh: Ssh, jobs: Jobs, timed_out_job: int
) -> None:
    name, part = next((name, part) for name, part in plan.scenario.clusters.items() if part.backup_controllers)
    first, second = clusters[name], SlurmCluster(ssh, name, part.backup_controllers[0])
    first.wait_for([timed_out_job], {"TIMEOUT"}, timeout=PATIENCE)
    running = jobs.submit_here(first, "sleep 20")
    array = jobs.submit_here(first, "sleep 20", "--array=1-4")
    wait_until(
        lambda: [job.state for job in first.jobs("--local", "--array", f"--jobs={running},{array}")],
        lambda states: states == ["RUNNING"] * 5,
        what="the jobs to run",
        timeout=PATIENCE,
    )
    mark = f"last-{secrets.token_hex(4)}"
    pending = jobs.submit_here(first, "true", f"--dependency=afterok:{running}", f"--job-name={mark}")
    rehearsal.save_usage(harness_run, first)
    wait_until_saved(first, mark, plan)
    killed = Fault("kill-daemon", part.controller, "slurmctld")
    with faults.injected(harness_run, killed, how=faults.inject_between_saves):
        began = time.monotonic()
        during = submit_to(second, jobs)
        harness_run.run.event("takeover", daemon="slurmctld", seconds=round(time.monotonic() - began, 1))
        second.wait_for([during, array, running, pending], {"COMPLETED"}, timeout=PATIENCE)
        wait_for_control(second)
    began = time.monotonic()
    wait_for_control(first)
    harness_run.run.event("given_back", daemon="slurmctld", seconds=round(time.monotonic() - began, 1))
    with faults.injected(harness_run, Fault("stop-daemon", second.controller, "slurmctld")):
        after = jobs.submit_here(first, "true")
        first.wait_for([after], {"COMPLETED"})
    states = [job.state for job in first.jobs("--local", "--array", f"--jobs={running},{array},{pending},{during}")]
    assert states == ["COMPLETED"] * 7
    seen = {one.job_id for one in jobs.witnesses()}
    assert seen >= {running, array, pending, during, after}
    assert not witness.ran_twice(jobs.witnesses())


def submit_to(backup: SlurmCluster, jobs: Jobs) -> int:
    """Submit a job as soon as the backup controller takes it, and return its id.

    At the moment of the takeover connections are reset, so retry.
    """

    def look() -> tuple[str, int]:
        state = backup.run("systemctl", "is-active", "slurmctld", check=False).stdout.strip()
        return state, jobs.submit_here(backup, "true") if state == "active" else 0

    _, job_id = wait_until(
        look,
        lambda seen: seen[1] > 0,
        what=f"{backup.controller} to take jobs",
        timeout=PATIENCE,
        hopeless=lambda seen: seen[0] != "active",
        show=lambda seen: f"slurmctld is {seen[0]}",
        ignore=(CommandFailed,),
    )
    return job_id


def wait_for_control(cluster: SlurmCluster) -> None:
    """Wait until slurmdbd has the address of `cluster.controller` as that of the controller in charge."""
    address = cluster.run("getent", "ahostsv4", cluster.controller).stdout.split()[0]
    wait_until(
        lambda: cluster.run("sacctmgr", "--noheader", "--parsable2", "show", "cluster", "format=controlhost").stdout,
        lambda seen: address in seen.split(),
        what=f"{cluster.controller} to be in control",
        timeout=PATIENCE,
        ignore=(CommandFailed,),
    )


@pytest.mark.needs("backup_slurmdbd")
def test_backup_slurmdbd_takes_over_and_gives_back_without_losing_a_record(
    harness_run: Live, clusters: dict[str, SlurmCluster], plan: Plan, jobs: Jobs
) -> None:
    cluster = next(iter(clusters.values()))
    accounting = plan.scenario.accounting
    for lost in (accounting.host, accounting.backup):
        with faults.injected(harness_run, Fault("kill-daemon", lost, "slurmdbd")):
            began = time.monotonic()
            job_id = jobs.submit_here(cluster, "true")
            cluster.wait_for([job_id], {"COMPLETED"})
            wait_for_records(cluster, {job_id: ("COMPLETED", 0)}, timeout=PATIENCE)
            harness_run.run.event("takeover", daemon="slurmdbd", seconds=round(time.monotonic() - began, 1))
