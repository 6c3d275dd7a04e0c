"""What accounting lets each user have at a time, and what part of a node each job has to itself."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass

import pytest
from conftest import (
    Jobs,
    everywhere,
    longest,
    only,
    slurm_conf,
    small,
    takes_one_job,
)

from harness import releases, slurm_options
from harness.cluster.slurm import Partition, SlurmCluster
from harness.parsing import hostlist
from harness.plan import Plan
from harness.slurmconf import drift
from harness.verify import job_trace
from harness.wait import wait_until

# Time limit of jobs that a check ends itself.
MINUTES = 5


@dataclass(frozen=True)
class Limited:
    """A QOS that limits its users, one of these users, and a cluster that enforces the QOS."""

    qos: str
    user: str
    limits: dict[str, str]
    cluster: SlurmCluster


@pytest.fixture(scope="module")
def limited(clusters: dict[str, SlurmCluster], plan: Plan) -> list[Limited]:
    """Every QOS with a user, on each cluster that enforces limits."""
    accounting = plan.scenario.accounting
    assert accounting
    people = {name: plan.scenario.of_cluster(name).users for name in clusters}
    return [
        Limited(
            name,
            user,
            {option: str(value) for option, value in qos.options.items()},
            clusters[cluster],
        )
        for cluster in plan.clusters_with_limits()
        for name, qos in accounting.qos.items()
        for user in [
            next((user for user, facts in people[cluster].items() if name in facts.qos), "")
        ]
        if user
    ]


def cpus_of(limited: Limited, plan: Plan) -> int:
    """Return how many CPUs the cluster has on permanent nodes."""
    return sum(plan.scenario.clusters[limited.cluster.name].static_nodes().values())


def submit(jobs: Jobs, limited: Limited, *wanted: str) -> int:
    """Submit a job under the limits that runs until it is cancelled."""
    cluster_option = only(limited.cluster, jobs.plan)
    smallest = small(jobs.plan, limited.cluster.name, MINUTES)
    return jobs.submit(
        limited.cluster,
        job_trace.UNTIL_CANCELLED,
        *cluster_option,
        *smallest,
        *wanted,
        f"--qos={limited.qos}",
        user=limited.user,
    )


def waits_because(cluster: SlurmCluster, job_id: int, reason: str) -> None:
    """Wait until slurmctld gives this reason for a pending job.

    The reason is `None` until slurmctld has considered the job.
    """
    wait_until(
        lambda: cluster.job(job_id),
        lambda job: job is not None and (job.state, job.reason) == ("PENDING", reason),
        what=f"job {job_id} to pend with the reason {reason}",
        timeout=120,
        give_up=lambda job: job is not None and job.state == "RUNNING",
    )


@pytest.mark.needs("limit_of_jobs")
def test_user_has_no_more_jobs_at_a_time_than_the_qos_allows(
    limited: list[Limited], jobs: Jobs, plan: Plan
) -> None:
    able = [
        limit
        for limit in limited
        if int(limit.limits.get("MaxJobsPerUser", sys.maxsize)) <= cpus_of(limit, plan)
    ]
    if not able:
        pytest.skip("no cluster has the CPUs for as many jobs as a QOS allows")

    def reach_limits(cluster: str) -> None:
        for limit in able:
            if limit.cluster.name == cluster:
                reach_limit_of_jobs(limit, jobs)

    everywhere(reach_limits, {limit.cluster.name for limit in able})


def reach_limit_of_jobs(limit: Limited, jobs: Jobs) -> None:
    """Fail unless a job beyond a limit waits until another one ends."""
    first, *others = [submit(jobs, limit) for _ in range(int(limit.limits["MaxJobsPerUser"]))]
    jobs.wait_until_begun(limit.cluster, [first, *others])
    beyond = submit(jobs, limit)
    waits_because(limit.cluster, beyond, "QOSMaxJobsPerUserLimit")
    limit.cluster.run("scancel", str(first), user=limit.user)
    jobs.wait_until_begun(limit.cluster, [beyond])
    limit.cluster.run("scancel", str(beyond), *map(str, others), user=limit.user)
    limit.cluster.wait_for([beyond, *others])


@pytest.mark.needs("limit_of_gpus")
def test_user_has_no_more_gpus_at_a_time_than_the_qos_allows(
    limited: list[Limited], jobs: Jobs, plan: Plan
) -> None:
    for limit in limited:
        allowed = re.search(r"gres/gpu=(\d+)", limit.limits.get("MaxTRESPerUser", ""))
        if allowed and plan.scenario.clusters[limit.cluster.name].gpus():
            full_job = submit(jobs, limit, f"--gres=gpu:{allowed[1]}")
            jobs.wait_until_begun(limit.cluster, [full_job])
            beyond = submit(jobs, limit, "--gres=gpu:1")
            waits_because(limit.cluster, beyond, "QOSMaxGRESPerUser")
            limit.cluster.run("scancel", str(full_job), user=limit.user)
            jobs.wait_until_begun(limit.cluster, [beyond])
            limit.cluster.run("scancel", str(beyond), user=limit.user)
            limit.cluster.wait_for([beyond])


@pytest.mark.needs("limit_of_time")
def test_job_that_requests_more_time_than_the_qos_allows_does_not_start(
    limited: list[Limited], jobs: Jobs
) -> None:
    limits_of_time = [
        (limit, int(slurm_options.minutes(limit.limits["MaxWall"])) + 1)
        for limit in limited
        if "MaxWall" in limit.limits
    ]
    # 20.11 reports the limit of the partition first.
    reachable = [
        (limit, too_long)
        for limit, too_long in limits_of_time
        if too_long <= longest(jobs.plan, limit.cluster.name)
    ]
    if not reachable:
        pytest.skip(
            "MaxTime of a partition is below MaxWall of every QOS: "
            "no job can exceed only the latter"
        )
    for limit, too_long in reachable:
        waits_because(
            limit.cluster,
            submit(jobs, limit, f"--time={too_long}"),
            "QOSMaxWallDurationPerJobLimit",
        )


def jobs_share_nodes(plan: Plan, cluster: str, partition: Partition) -> bool:
    """Return whether a partition takes jobs of users, and several on a node."""
    conf = slurm_conf(plan, cluster)
    release = releases.get(plan.scenario.release_of(plan.scenario.clusters[cluster]))
    default = releases.default_of(release, "slurm.conf", "SelectType")
    return (
        partition.takes_jobs_of_users
        and "linear" not in conf.options.get("selecttype", default)
        and drift.exclusive(conf.partitions[partition.name]) == "NO"
    )


@pytest.mark.needs("gpus")
def test_gpus_are_allocated_to_one_job_at_a_time_which_knows_its_own(
    clusters: dict[str, SlurmCluster], plan: Plan, jobs: Jobs
) -> None:
    # More than one GPU shows more; three show that a job gets several.
    places = [
        (count, cluster, node, partition.name)
        for name, cluster in clusters.items()
        for node, count in plan.scenario.clusters[name].gpus().items()
        for partition in cluster.partitions()
        if node in partition.nodes
        and jobs_share_nodes(plan, name, partition)
        and not takes_one_job(plan, name)
        and most_jobs(plan, cluster, node) > min(count, 3)
    ]
    if not places:
        pytest.skip("no partition has a node with GPUs that several jobs may share")
    count, cluster, node, partition = max(places, key=lambda place: min(place[0], 3))
    line = slurm_conf(plan, cluster.name).partitions[partition]
    user = jobs.user_of(cluster.name, line)
    options = [
        *only(cluster, plan),
        f"--partition={partition}",
        *jobs.partition_options(cluster.name, line),
        *small(plan, cluster.name, MINUTES),
        f"--nodelist={node}",
    ]
    show = ["sh", "-c", "echo $CUDA_VISIBLE_DEVICES"]
    taken: set[str] = set()

    def hold(gpus: int) -> None:
        job_id = jobs.submit(
            cluster, job_trace.UNTIL_CANCELLED, *options, f"--gres=gpu:{gpus}", user=user
        )
        jobs.wait_until_begun(cluster, [job_id])
        shown = cluster.run("scontrol", "--local", "show", "job", "--details", str(job_id)).stdout
        for indices in re.findall(r"IDX:([0-9,-]+)", shown):
            taken.update(hostlist.expand(f"[{indices}]"))

    for gpus in filter(None, (max(count - 2, 0), min(count - 1, 1))):
        hold(gpus)
    assert len(taken) == count - 1, f"jobs with {count - 1} GPUs in all have {sorted(taken)}"
    gpu = cluster.run("srun", *options, "--gres=gpu:1", *show, user=user).stdout.strip()
    assert gpu not in taken, f"a job got GPU {gpu}, which belongs to another job"
    assert {gpu} | taken == {str(number) for number in range(count)}
    assert cluster.run("srun", *options, *show, user=user).stdout.strip() in {"", "NoDevFiles"}
    hold(1)
    waits_because(
        cluster, jobs.submit(cluster, "true", *options, "--gres=gpu:1", user=user), "Resources"
    )


def most_jobs(plan: Plan, cluster: SlurmCluster, node: str) -> int:
    """Return how many jobs can run on a node at once, each with its own core or socket."""
    shown = drift.printed_lines(
        cluster.run("scontrol", "--local", "--oneliner", "show", "node", node).stdout
    )[node]
    parameters = slurm_options.get(plan.slurm_conf(cluster.name), "SelectTypeParameters") or ""
    by_socket = "CR_SOCKET" in parameters.upper()
    return int(shown["sockets"]) * (1 if by_socket else int(shown["corespersocket"]))
