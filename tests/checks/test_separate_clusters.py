"""Commands reach clusters that are in no federation with their own: --clusters (-M)."""

from __future__ import annotations

import pytest
from conftest import Jobs

from harness.cluster.slurm import SlurmCluster, job_key
from harness.parsing.hostlist import fold
from harness.plan import Plan
from harness.wait import wait_until

pytestmark = [pytest.mark.needs("separate_clusters", "users")]


def test_jobs_of_separate_clusters_are_submitted_listed_and_cancelled_from_here(
    clusters: dict[str, SlurmCluster], plan: Plan, jobs: Jobs
) -> None:
    """From each cluster for another: one job runs, and one is held until it is cancelled."""
    for here, there in plan.separate_clusters():
        verify(clusters[here], clusters[there], jobs)


def verify(here: SlurmCluster, there: SlurmCluster, jobs: Jobs) -> None:
    option, where = f"--clusters={there.name}", f"{there.name}, as seen from {here.name}"
    assert_reaches(there, here, option)
    job_id = jobs.submit(here, "true", target=there)
    held = jobs.submit(here, "true", "--hold", target=there)
    listed = here.jobs(option, f"--jobs={held}")
    assert [(job.state, job.user) for job in listed] == [("PENDING", jobs.user)], where
    here.run("scancel", option, str(held), user=jobs.user)
    there.wait_for([held], {"CANCELLED"})
    there.wait_for([job_id], {"COMPLETED"})
    traces = [trace for trace in jobs.traces() if trace.key == job_key(there.name, job_id)]
    assert [trace.cluster for trace in traces] == [there.name], where
    # slurmctld sends records in the background.
    wait_until(
        lambda: here.records(option, "--allocations", f"--jobs={job_id}"),
        lambda seen: (
            {(record.cluster, record.state) for record in seen} == {(there.name, "COMPLETED")}
        ),
        what=f"sacct on {here.name} to show job {job_id} of {there.name} as COMPLETED",
        timeout=120,
    )


def assert_reaches(there: SlurmCluster, here: SlurmCluster, option: str) -> None:
    """Fail unless commands with this option reach a cluster; they ask the database where it is.

    The nodes tell which one answered: `scontrol show config` of 26.05 cannot read the answer of a
    slurmctld of 24.11.
    """
    list_nodes = ("sinfo", "--all", "--noheader", "--Node", "--format=%N")
    shown = here.run(*list_nodes, option, check=False)
    reached = fold(set(shown.stdout.split())) or f"no cluster ({shown.stderr.strip()})"
    address = ("sacctmgr", "--noheader", "--parsable2", "show", "cluster", there.name)
    at = here.run(*address, "format=ControlHost,ControlPort").stdout.strip().replace("|", ":")
    assert reached == fold(set(there.run(*list_nodes, "--local").stdout.split())), (
        f"on {here.name}, {option} reaches {reached}: the database says that it is at {at}"
    )
