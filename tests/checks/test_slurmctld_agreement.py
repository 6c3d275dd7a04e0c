"""Accounting agrees with slurmctld.

It comes last (checks_plugin.py), because it covers the jobs of all other checks.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from datetime import datetime

import pytest
from conftest import Jobs, all_records_sent

from harness.cluster import logs, record_comparison
from harness.cluster.slurm import JobKey, SlurmCluster
from harness.plan import Plan
from harness.rundir import RunDir
from harness.ssh import Ssh
from harness.wait import wait_until

pytestmark = pytest.mark.needs("accounting")
# Seconds by which the clocks of this machine and the cluster may differ.
CLOCKS = 60
JOB_ID = r"JobId=[0-9]+(_[0-9]+\([0-9]+\))?"


def wait_until_none(
    look: Callable[[], list[str]], what: str, clusters: dict[str, SlurmCluster]
) -> None:
    """Wait until `look` returns nothing, because slurmctld sends records in the background."""
    given_up = all_records_sent(clusters.values())
    wait_until(
        look, lambda left: not left, what=what, timeout=180, give_up=given_up, show="\n".join
    )


@pytest.mark.needs("users")
def test_accounting_agrees_with_what_slurmctld_remembers(
    clusters: dict[str, SlurmCluster], jobs: Jobs, run: RunDir
) -> None:
    """Compares ended jobs field by field, and times to the second.

    Only running and pending jobs may have an open record. A rehearsal's jobs are left to the
    rehearsal, which knows what Slurm may have lost due to a fault.
    """
    rehearsed = {event["name"] for event in run.events() if event["kind"] == "submission"}
    fresh = {name: jobs.submit_here(cluster, "true") for name, cluster in clusters.items()}
    for name, cluster in clusters.items():
        cluster.wait_for([fresh[name]], timeout=180)

    def look() -> list[str]:
        problems = []
        for cluster in clusters.values():
            recorded, remembered = (
                [record for record in source if record.name not in rehearsed]
                for source in (cluster.records("--local", "--allocations"), cluster.remembered())
            )
            problems += record_comparison.disagreements(remembered, recorded)
            problems += record_comparison.runaways(remembered, recorded)
        return problems

    wait_until_none(look, "accounting to agree with slurmctld", clusters)


def test_accounting_has_no_job_that_was_never_submitted(
    clusters: dict[str, SlurmCluster], plan: Plan, jobs: Jobs, run: RunDir, ssh: Ssh
) -> None:
    """A check submitted the job, or slurmctld remembers it, or slurmctld's log names it."""
    ready = [
        datetime.fromisoformat(event["time"]).timestamp()
        for event in run.events()
        if event.get("name") == "ready"
    ]
    since = ready[0] - CLOCKS if ready else 0

    if jobs.submitted and not _logged(plan, ssh).intersection(jobs.submitted):
        pytest.skip(
            "slurmctld's log names no jobs: "
            "SlurmctldDebug is below info, or there is no SlurmctldLogFile"
        )

    def look() -> list[str]:
        in_accounting = [
            record
            for cluster in clusters.values()
            for record in cluster.records("--local", "--allocations")
        ]
        known = {*jobs.submitted, *(seen.key for seen in jobs.traces())}
        known |= {job.key for cluster in clusters.values() for job in cluster.remembered()}
        known |= _logged(plan, ssh)
        return record_comparison.never_submitted(in_accounting, known, since)

    wait_until_none(look, "accounting to have only jobs that were submitted", clusters)


def _logged(plan: Plan, ssh: Ssh) -> set[JobKey]:
    """Return the jobs that are named in the log of any slurmctld."""
    keys: set[JobKey] = set()
    for host in plan.with_daemon("slurmctld"):
        for path in logs.log_files(plan, host, "slurmctld"):
            script = f"grep -Eo '{JOB_ID}' {shlex.quote(path)} | sort --unique"
            keys |= record_comparison.jobs_named_in(
                ssh.run(host.name, ["sh", "-c", script]).stdout, str(host.cluster)
            )
    return keys
