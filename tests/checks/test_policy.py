"""The site's own policy: what partitions, limits and QOS do with jobs."""

from __future__ import annotations

import re
import time

import pytest
from conftest import Jobs, only

from harness import slurm_options
from harness.cluster import policy, slurm
from harness.cluster.slurm import SlurmCluster, parse_details
from harness.plan import Plan
from harness.ssh import Ssh
from harness.submissions import submit
from harness.submissions.answers import REFUSED, STARTS
from harness.submissions.table import Row
from harness.verify import job_trace
from harness.wait import wait_until

# What happens to a preempted job, and its states, by PreemptMode: slurm.conf(5).
PREEMPTED = {
    "requeue": ("requeued", {"PENDING", "REQUEUED", "REQUEUE_HOLD"}),
    "cancel": ("cancelled", {"PREEMPTED", "CANCELLED"}),
    "suspend": ("suspended", {"SUSPENDED"}),
}


@pytest.mark.needs("policy")
def test_partitions_and_limits_accept_the_right_users_and_refuse_others(
    plan: Plan, ssh: Ssh, jobs: Jobs
) -> None:
    """A job for each partition, reservation, license and kind of limit; none of them runs."""
    submissions = policy.submissions(plan)
    rows = [
        Row(job.what, job.user, job.cluster, job.what, (*plan.scenario.checks.submit, *job.options))
        for job in submissions
    ]
    unrelated = {job_id for _, job_id in jobs.left_alone()}
    problems = []
    for job, answer in zip(
        submissions, submit.submit_rows(ssh, plan, rows, unrelated), strict=True
    ):
        seen = f"{job.what}: {' '.join(job.options)}: {answer.outcome}, {answer.reason or '-'}"
        plugins = slurm_options.get(plan.slurm_conf(job.cluster), "JobSubmitPlugins")
        if not job.reason:
            # Limits and scripts may refuse what the partition accepts.
            if re.search(policy.NO_ACCESS, answer.reason):
                problems.append(f"{seen}; should be accepted")
        elif job.refused and answer.outcome != REFUSED:
            problems.append(f"{seen}; should be refused: {job.reason}")
        elif answer.outcome == STARTS:
            problems.append(f"{seen}; should wait or be refused: {job.reason}")
        elif not plugins and not re.search(job.reason, answer.reason):
            problems.append(f"{seen}; the reason should be {job.reason}")
    assert not problems, "\n".join(problems)


@pytest.mark.needs("preemption", "static")
def test_jobs_preempt_those_of_lower_qos(
    clusters: dict[str, SlurmCluster], plan: Plan, jobs: Jobs
) -> None:
    """A job of a higher QOS gets the node of a running job, which is treated as configured."""
    for pair in policy.preemptions(plan):
        cluster = clusters[pair.cluster]
        options = (
            *only(cluster, plan),
            f"--partition={pair.partition}",
            f"--account={pair.account}",
            "--exclusive",
            "--nodes=1",
        )
        time = "--time=5"
        outcome, states = PREEMPTED[pair.mode]
        low = jobs.submit(
            cluster,
            job_trace.UNTIL_CANCELLED,
            *options,
            time,
            f"--qos={pair.low}",
            "--requeue",
            user=pair.user,
        )
        jobs.wait_until_begun(cluster, [low])
        running = cluster.job(low)
        assert running
        node = f"--nodelist={running.node_list}"
        high = jobs.submit(
            cluster,
            job_trace.UNTIL_CANCELLED,
            *options,
            time,
            node,
            f"--qos={pair.high}",
            user=pair.user,
        )
        jobs.wait_until_begun(cluster, [high])
        wait_until(
            lambda: cluster.job(low),  # noqa: B023  called at once
            lambda job: job is not None and job.state in states,  # noqa: B023
            what=f"job {low} of QOS {pair.low}, preempted by {pair.high}, to be {outcome}",
            timeout=120,
        )
        cluster.run("scancel", str(high), str(low), user=pair.user)
        cluster.wait_for([high, low])


@pytest.mark.needs("priority")
def test_priority_follows_qos_partition_nice_value_and_size(
    clusters: dict[str, SlurmCluster], plan: Plan, jobs: Jobs
) -> None:
    """Two jobs that may not start yet differ in one factor, and by its weight in priority."""
    wrong = []
    for order in policy.orders(plan):
        cluster = clusters[order.cluster]
        ids = [
            jobs.submit(cluster, "true", *options, "--begin=now+1hour", user=order.user)
            for options in order.options
        ]
        seen = cluster.priorities(ids)
        cluster.run("scancel", *map(str, ids), user=order.user)
        cluster.wait_for(ids)
        assert len(seen) == 2, f"{cluster.name}: squeue does not show jobs {ids} of {order.user}"
        (*_, first), (*_, second) = seen
        # job_submit.lua of the site may have changed the jobs. Slurm cuts fractions off, and 0 is
        # the priority of held jobs.
        is_unchanged = tuple((partition, qos) for partition, qos, _ in seen) == order.columns
        expected = max(1, first - order.difference)
        if is_unchanged and abs(second - expected) > 1:
            wrong.append(
                f"{cluster.name}: jobs of {order.user} that differ in {order.factor}"
                f" ({' and '.join(' with QOS '.join(columns) for columns in order.columns)})"
                f" have priorities {first} and {second}, should have {first} and {expected:.0f}"
            )
    assert not wrong, "\n".join(wrong)


@pytest.mark.needs("age", "static")
def test_priority_grows_with_the_age_of_a_job(
    clusters: dict[str, SlurmCluster], plan: Plan, jobs: Jobs
) -> None:
    """Two jobs wait for the same node; the second may start some seconds after the first.

    Slurm calculates priorities again after PriorityCalcPeriod, or when a job is released.
    """
    wrong = []
    for age in policy.ages(plan):
        cluster = clusters[age.cluster]
        filling = jobs.submit(
            cluster, job_trace.UNTIL_CANCELLED, *age.options, "--exclusive", user=age.user
        )
        cluster.wait_for([filling], {"RUNNING"})
        node = f"--nodelist={cluster.job(filling).node_list}"
        ids = [
            jobs.submit(cluster, "true", *age.options, node, f"--begin={begin}", user=age.user)
            for begin in ("now", f"now+{age.seconds}")
        ]
        first, second = wait_until(
            lambda: [waits_since(cluster, job_id) for job_id in ids],  # noqa: B023  called at once
            all,
            what=f"jobs {ids} to gain age",
            timeout=120,
        )
        began = time.monotonic()
        cluster.run("scontrol", "release", *map(str, ids))
        took = time.monotonic() - began
        priorities = [priority for *_, priority in cluster.priorities(ids)]
        gained, expected = priorities[0] - priorities[1], age.per_second * (second - first)
        # The two may be released in different seconds.
        if abs(gained - expected) > age.per_second * (1 + int(took)) + 1:
            wrong.append(
                f"{cluster.name}: jobs of {age.user}, of which one has waited {second - first} s"
                f" longer, have priorities {priorities[0]} and {priorities[1]}; they should differ"
                f" by {expected:.0f}"
            )
    assert not wrong, "\n".join(wrong)


def waits_since(cluster: SlurmCluster, job_id: int) -> int | None:
    """Return since when a job gains age, in seconds since 1970; None if it does not."""
    query = ("scontrol", "--local", "--oneliner", "show", "job", str(job_id))
    shown = parse_details(cluster.run("env", "SLURM_TIME_FORMAT=%s", *query).stdout)
    return int(shown["AccrueTime"]) if shown["AccrueTime"].isdigit() else None


@pytest.mark.needs("fair_share", "static")
@pytest.mark.provokes  # slurmctld is restarted
def test_user_with_more_usage_per_share_has_lower_priority(
    clusters: dict[str, SlurmCluster], plan: Plan, jobs: Jobs
) -> None:
    """One of two users of an account runs a job, and then both have jobs that may not start yet.

    slurmctld calculates fair share when it starts, and after each PriorityCalcPeriod.
    """
    wrong = []
    for pair in policy.rivals(plan):
        cluster = clusters[pair.cluster]
        used = jobs.submit(cluster, "sleep 5", *pair.options, user=pair.users[0])
        cluster.wait_for([used], {"COMPLETED"})
        cluster.run("systemctl", "restart", "slurmctld")
        slurm.wait_until_ready(plan, clusters)
        shares = [cluster.shares(pair.account)[user] for user in pair.users]
        ids = [
            jobs.submit(cluster, "true", *pair.options, "--begin=now+1hour", user=user)
            for user in pair.users
        ]
        priorities = [priority for *_, priority in cluster.priorities(ids)]
        for job_id, user in zip(ids, pair.users, strict=True):
            cluster.run("scancel", str(job_id), user=user)
        cluster.wait_for(ids)
        seen = (
            f"{cluster.name}: jobs of {' and '.join(pair.users)} in account {pair.account} have "
            f"priorities {' and '.join(map(str, priorities))}"
        )
        levels = [share.seconds / own for share, own in zip(shares, pair.shares, strict=True)]
        more = levels.index(max(levels))
        if levels[0] == levels[1] or priorities[more] >= priorities[1 - more]:
            usage = " and ".join(f"{level:.0f} s" for level in levels)
            wrong.append(f"{seen}, although their usage per share is {usage}")
        # Slurm cuts fractions off; sshare prints six digits.
        expected = pair.weight * (shares[0].factor - shares[1].factor)
        if abs(priorities[0] - priorities[1] - expected) > 1 + pair.weight * 1e-6:
            wrong.append(f"{seen}, which should differ by {expected:.0f}")
    assert not wrong, "\n".join(wrong)
