"""Accounting is correct.

It comes last (checks_plugin.py), because it also covers the jobs of all other checks.
"""

from __future__ import annotations

import pytest
from conftest import (
    Jobs,
    PoweringUp,
    active_jobs,
    all_records_sent,
    database_rows,
    over_time,
    wait_for_records,
)
from early_jobs import REQUEST

from harness.cluster.slurm import JobKey, Record, SlurmCluster, job_key
from harness.plan import Plan
from harness.ssh import Ssh
from harness.verify import job_events, job_trace, trace_comparison, usage_comparison
from harness.wait import wait_until

pytestmark = pytest.mark.needs("accounting")
# Minutes beyond its limit for which the check waits for a job to be ended.
MOST_OVER_TIME = 5
# Adds up the usage of the last hour and of this one. Prints when they began; the clusters that had
# reservations; and a line for each account and each of its users in each hour: sreport takes an end
# in the future for that of the last full hour, unless that is the start. The second rollup is the
# usual one, after which slurmdbd does not take jobs that start in this hour for late ones.
_REPORT = """
hour=+%Y-%m-%dT%H:00:00
last=$(date --date='1 hour ago' $hour) this=$(date $hour) next=$(date --date='1 hour' $hour)
sacctmgr --immediate rollup $last $next > /dev/null || exit
sacctmgr --immediate rollup > /dev/null || exit
date --date=$last +%s
echo $(sacctmgr --noheader --parsable2 show reservation start=$last format=Cluster | sort -u)
report() {{
    sreport --noheader --parsable2 -t Seconds --tres=cpu cluster AccountUtilizationByUser \\
        clusters={clusters} start=$1 end=$2 format=Cluster,Accounts,Login,Used
}}
report $last $this && report $this $next
"""


@pytest.mark.needs("users")
def test_failed_and_cancelled_jobs_are_recorded_as_such(
    clusters: dict[str, SlurmCluster], jobs: Jobs
) -> None:
    cluster = list(clusters.values())[-1]
    failing = jobs.submit_here(cluster, "exit 3")
    cancelled = jobs.submit_here(cluster, job_trace.UNTIL_CANCELLED)
    jobs.wait_until_begun(cluster, [cancelled])
    cluster.run("scancel", str(cancelled), user=jobs.user)
    cluster.wait_for([failing, cancelled])
    wait_for_records(cluster, {failing: ("FAILED", 3), cancelled: ("CANCELLED", 0)})


@pytest.mark.needs("users", "static")
def test_job_that_timed_out_is_recorded_as_such(
    clusters: dict[str, SlurmCluster], plan: Plan, timed_out_job: int
) -> None:
    cluster = list(clusters.values())[-1]
    minutes = over_time(plan, cluster.name)
    if minutes > MOST_OVER_TIME:
        pytest.skip(f"OverTimeLimit: jobs may run {minutes:.0f} minutes beyond their limit")
    cluster.wait_for([timed_out_job], {"TIMEOUT"}, timeout=180 + 60 * minutes)
    wait_for_records(cluster, {timed_out_job: ("TIMEOUT", None)})


def _job_with_steps() -> str:
    """Return the script of a job that succeeds although one of its steps fails."""
    return "\n".join(["srun true", job_trace.step(1, "--ntasks=1 sh -c 'exit 3'"), "exit 0"])


def _differing_from_request(records: list[Record], keys: list[JobKey]) -> list[str]:
    """Return the jobs whose records differ from their options."""
    return [
        f"job {record.job_id}: submitted with {' '.join(REQUEST)}, "
        f"accounting says {record.name}, {record.time_limit}"
        for record in records
        if record.key in keys and not record.step and record.state != "REVOKED"
        if (record.name, record.time_limit) != ("accounting", "3")
    ]


@pytest.mark.needs("users")
def test_accounting_matches_what_every_job_saw(
    clusters: dict[str, SlurmCluster],
    plan: Plan,
    jobs: Jobs,
    measured_jobs: list[JobKey],
    ssh: Ssh,
    powering: PoweringUp,
) -> None:
    """Compares the records of all jobs of the checks with the jobs' traces.

    All records are correct, none are missing, and there are no duplicates.
    """
    cluster = next(iter(clusters.values()))

    def is_requeued(job_of: tuple[str, int]) -> bool:
        """Return whether a job waits because its node did not come."""
        name, job_id = job_of
        job = clusters[name].job(job_id)
        return bool(job and job.state == "PENDING" and job.reason == "BeginTime")

    own_jobs = [
        job_key(target.name, jobs.submit(target, body, *REQUEST))
        for target in clusters.values()
        for body in ("srun true", "srun true; sleep 1", _job_with_steps())
    ]
    own_jobs += measured_jobs
    wait_until(
        lambda: active_jobs(clusters),
        lambda left: not left,
        what="all jobs to end",
        timeout=180,
        give_up=lambda left: bool(powering.timed_out) and any(map(is_requeued, left)),
        show=lambda left: f"{left} {powering.timed_out}".strip(),
    )
    traces = jobs.traces()
    seen = {trace.key for trace in traces}
    # A job that a check cancelled before it started has no trace; the jobs of this check must have
    # one.
    verified = {key for key in jobs.submitted if key in seen} | {*own_jobs}
    everywhere = f"--clusters={','.join(clusters)}"
    hosts_of = {name: plan.hosts_of(name) for name in clusters}

    logged = job_events.logged_times(ssh, plan)

    def look() -> list[str]:
        records = cluster.records(everywhere)
        differences = trace_comparison.differences(
            verified, traces, records, hosts_of, logged=logged
        )
        return differences + _differing_from_request(records, own_jobs)

    # slurmctld sends records in the background.
    wait_until(
        look,
        lambda problems: not problems,
        what="accounting to agree with the jobs' trace",
        timeout=180,
        give_up=all_records_sent(clusters.values()),
        show="\n".join,
    )
    records = cluster.records(everywhere)
    # Jobs of srun and salloc, and jobs that are not the harness's, leave no trace.
    unseen = [
        record
        for record in records
        if not record.step and record.state == "COMPLETED" and record.key not in seen
    ]
    invented = [
        f"{record.cluster}: job {record.job_id} ({record.name} of {record.user})"
        for record in job_events.invented(ssh, plan, unseen)
    ]
    assert not invented, (
        f"accounting has completed jobs that are not in slurmctld's log: {'; '.join(invented)}"
    )
    steps = {record.key for record in records if record.step == "0"}
    assert {*own_jobs} <= steps, "a step that srun started inside a job has no record"


@pytest.mark.needs("users")
def test_usage_reports_agree_with_accounting(clusters: dict[str, SlurmCluster], jobs: Jobs) -> None:
    """Users of accounts have the CPU time in sreport that their jobs have in sacct.

    slurmdbd adds up the usage of whole hours. It does so now for the last two, of which the second
    has not ended; it will repeat that.
    """
    cluster = next(iter(clusters.values()))
    if not jobs.submitted:
        cluster.wait_for([jobs.submit_here(cluster, "sleep 1")])
    script = _REPORT.format(clusters=",".join(clusters))

    def look() -> list[str]:
        start, reserved, *lines = cluster.run("sh", "-c", script).stdout.splitlines()
        records = cluster.records("--allocations", f"--clusters={','.join(clusters)}")
        return usage_comparison.differences(records, lines, int(start), {*reserved.split()})

    wait_until(
        look,
        lambda problems: not problems,
        what="sreport to agree with sacct",
        timeout=120,
        give_up=all_records_sent(clusters.values()),
        show="\n".join,
    )


@pytest.mark.needs("users", "job_completion")
def test_job_completion_records_match_accounting(
    clusters: dict[str, SlurmCluster], plan: Plan, jobs: Jobs, ssh: Ssh
) -> None:
    cluster = next(iter(clusters.values()))
    given = [
        jobs.submit_here(cluster, "exit 5"),
        jobs.submit_here(cluster, "true"),
    ]
    cluster.wait_for(given)
    columns = "jobid, state, name, user_name, gid, `partition`, starttime, endtime, nodelist"
    query = f"select {columns} from slurm_jobcomp.jobcomp_table"
    host = plan.with_daemon("mariadb")[0].name
    state_numbers = {"COMPLETED": "3", "FAILED": "5"}  # enum job_states in slurm.h

    def in_accounting() -> set[tuple[str, ...]]:
        return {
            (
                str(record.job_id),
                state_numbers.get(record.state, record.state),
                record.name,
                record.user,
                record.gid,
                record.partition,
                str(record.start),
                str(record.end),
                record.node_list,
            )
            for record in cluster.records("--local", "--allocations")
            if record.job_id in given
        }

    def in_completion() -> set[tuple[str, ...]]:
        return {row for row in database_rows(ssh, host, query) if int(row[0]) in given}

    sent = all_records_sent([cluster])
    # Both kinds of records are written in the background.
    wait_until(
        lambda: (in_accounting(), in_completion()),
        lambda seen: len(seen[0]) == len(given) and seen[0] == seen[1],
        what="completion records to agree with those of accounting",
        timeout=120,
        give_up=lambda seen: sent(seen) and all(len(records) == len(given) for records in seen),
    )
