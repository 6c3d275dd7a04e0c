"""The clusters of a federation place jobs together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import pytest
from conftest import Jobs, origin_of
from test_database import table

from harness.cluster.slurm import SlurmCluster, parse_details
from harness.plan import Plan
from harness.testing import Federation
from harness.verify import job_trace
from harness.wait import wait_until

pytestmark = [pytest.mark.needs("federation", "users")]


def differing_members(seen: Mapping[str, str], wanted: Mapping[str, str]) -> str:
    """Return what is different about each cluster that should be in the federation, or is."""
    return "; ".join(
        f"{name} is {seen.get(name, 'no member')}; it should be {wanted.get(name, 'no member')}"
        for name in sorted(seen.keys() | wanted.keys())
        if seen.get(name) != wanted.get(name)
    )


def member(federation: str, number: int | str, state: str) -> str:
    """Return how a cluster is described that is a member of a federation."""
    return f"{federation}'s member {number}, {state}"


def test_federation_is_formed_with_all_clusters_active(
    federation: Federation, clusters: dict[str, SlurmCluster]
) -> None:
    rows = table(
        federation.origin,
        "show",
        "federation",
        federation.name,
        "format=federation,cluster,id,fedstate",
    )
    wanted = {
        name: member(federation.name, number, "ACTIVE")
        for number, name in enumerate(federation.members, 1)
    }
    # sacctmgr ends each of these rows with a separator.
    recorded = {
        name: member(joined, number, state) for joined, name, number, state, *_ in rows if name
    }
    differing = differing_members(recorded, wanted)
    assert not differing, f"in accounting, {differing}"
    for name in federation.members:
        # A busy sibling that answers late is connected again.
        siblings = wait_until(
            clusters[name].siblings,
            lambda seen: all(sibling.synced for sibling in seen),
            what=f"{name} to be connected to its siblings",
            timeout=120,
        )
        seen = {
            sibling.cluster: member(federation.name, sibling.federation_id, sibling.state)
            for sibling in siblings
        }
        differing = differing_members(seen, wanted)
        assert not differing, f"for slurmctld of {name}, {differing}"


def test_job_ids_carry_the_origin_and_are_unique(
    federation: Federation, free_jobs: list[tuple[str, int]], ran_on: Callable[[int], str]
) -> None:
    assert [origin_of(job_id, federation) for _, job_id in free_jobs] == [
        name for name, _ in free_jobs
    ]
    assert max(Counter(job_id for _, job_id in free_jobs).values()) == 1
    # A job cancelled just as it ends is CANCELLED although it exited with 0, so let them end.
    assert {ran_on(job_id) for _, job_id in free_jobs} <= {*federation.members}


def test_jobs_burst_to_the_sibling_when_the_origin_is_full(
    federation: Federation,
    full_origin: list[int],
    jobs: Jobs,
    ran_on: Callable[[int], str],
) -> None:
    bursting = [jobs.submit(federation.origin, "sleep 1") for _ in range(4)]
    siblings = {*federation.members} - {federation.origin.name}
    for job_id in bursting:
        assert_may_run_on(siblings, federation.origin, job_id)
    assert {ran_on(job_id) for job_id in bursting} <= siblings
    for job_id in bursting:
        # The sibling informs the origin in the background; a short job may have ended by then.
        wait_until(
            lambda: federation.origin.job(job_id),  # noqa: B023  called at once
            lambda job: job is not None and job.state == "REVOKED",
            what=f"{federation.origin.name} to track job {job_id} as REVOKED",
            timeout=180,
        )
    # Where they ran, according to the jobs and not to Slurm.
    seen = [trace for trace in jobs.traces() if trace.job_id in bursting]
    assert {trace.cluster for trace in seen} <= siblings
    assert sorted(trace.job_id for trace in seen) == sorted(bursting), "each ran exactly once"
    assert_full(federation, full_origin)


def assert_may_run_on(names: set[str], origin: SlurmCluster, job_id: int) -> None:
    """Fail unless a job's origin lets it run on these clusters: otherwise it never will."""
    # Of the origin only: without the answer of a sibling that is busy, scontrol does not show a job
    # that the origin has revoked.
    show = ("scontrol", "--all", "--local", "--oneliner", "show", "job", str(job_id))
    details = origin.run(*show).stdout
    viable = parse_details(details)["FedViableSiblings"]
    missing = names - {*viable.split(",")}
    assert not missing, (
        f"job {job_id} cannot run on {', '.join(sorted(missing))}: FedViableSiblings={viable}"
    )


def assert_full(federation: Federation, filling: list[int]) -> None:
    """Fail unless the jobs that fill the origin still run."""
    assert {federation.origin.job(job_id).state for job_id in filling} == {"RUNNING"}, (
        "the origin was not full"
    )


def test_clusters_option_keeps_jobs_on_the_cluster_that_it_names(
    jobs_with_clusters: dict[str, int], ran_on: Callable[[int], str]
) -> None:
    for name, job_id in jobs_with_clusters.items():
        assert ran_on(job_id) == name, f"job {job_id} with --clusters={name} ran elsewhere"


def test_clusters_option_with_several_names_uses_the_free_cluster(
    federation: Federation,
    clusters: dict[str, SlurmCluster],
    full_origin: list[int],
    jobs: Jobs,
    ran_on: Callable[[int], str],
) -> None:
    both = f"--clusters={federation.sibling.name},{federation.origin.name}"
    job_id = jobs.submit(federation.origin, "true", both)
    # sbatch submits it to the cluster that it expects to start it first.
    origin = clusters[origin_of(job_id, federation)]
    assert_may_run_on({federation.sibling.name}, origin, job_id)
    assert ran_on(job_id) == federation.sibling.name
    assert_full(federation, full_origin)


def test_cluster_constraint_chooses_clusters_by_their_features(
    constrained_jobs: dict[str, tuple[int, set[str]]], ran_on: Callable[[int], str]
) -> None:
    if not constrained_jobs:
        pytest.skip("no cluster has a feature that no other has: clusters.NAME.features")
    for constraint, (job_id, able) in constrained_jobs.items():
        assert ran_on(job_id) in able, constraint


@pytest.fixture
def set_state_of_sibling(federation: Federation) -> Iterator[Callable[[str], None]]:
    """Return a function that sets the state of the sibling, which is ACTIVE before and after."""
    name = federation.sibling.name

    def state_on(cluster: SlurmCluster) -> str | None:
        states = {sibling.cluster: sibling.state for sibling in cluster.siblings()}
        return states.get(name)

    before = state_on(federation.origin)
    assert before == "ACTIVE", f"before this check, {name} is {before}"

    def set_state(state: str) -> None:
        federation.origin.run(
            "sacctmgr", "--immediate", "modify", "cluster", name, "set", f"fedstate={state}"
        )
        for cluster in (federation.origin, federation.sibling):
            wait_until(
                partial(state_on, cluster),
                lambda seen: (seen or "").split("+")[0] == state,
                what=f"{cluster.name} to know that {name} is {state}",
                timeout=120,
            )

    yield set_state
    set_state("ACTIVE")


def test_draining_cluster_gets_no_new_federated_jobs(
    federation: Federation,
    set_state_of_sibling: Callable[[str], None],
    jobs: Jobs,
    plan: Plan,
    ran_on: Callable[[int], str],
) -> None:
    # A running job keeps the sibling from reaching DRAINED, which its slurmctld checks every five
    # seconds. A sibling that is set active at that moment does not answer for minutes, and is
    # DRAINED afterwards (seen in 24.11).
    running = jobs.submit_here(federation.sibling, job_trace.UNTIL_CANCELLED)
    federation.sibling.wait_for([running], {"RUNNING"})
    set_state_of_sibling("DRAIN")
    others = {*federation.members} - {federation.sibling.name}
    # More jobs than the origin takes at once, so that some would burst if they could.
    nodes = len(plan.scenario.clusters[federation.origin.name].node_names())
    given = [jobs.submit(federation.origin, "sleep 0.5", "--exclusive") for _ in range(2 * nodes)]
    assert {ran_on(job_id) for job_id in given} == others
    assert {trace.cluster for trace in jobs.traces() if trace.job_id in given} == others


def test_federated_views_agree_with_each_cluster_and_with_the_jobs(
    federation: Federation, clusters: dict[str, SlurmCluster], plan: Plan, jobs: Jobs
) -> None:
    given = [
        jobs.submit(clusters[name], job_trace.UNTIL_CANCELLED, f"--clusters={name}")
        for name in federation.members
        for _ in (1, 2)
    ]
    for name, pair in zip(
        federation.members, zip(given[::2], given[1::2], strict=True), strict=True
    ):
        clusters[name].wait_for(pair, {"RUNNING"})
    running = wait_until(
        lambda: {
            trace.job_id: (trace.cluster, trace.host)
            for trace in jobs.traces()
            if trace.job_id in given
        },
        lambda seen: len(seen) == len(given),
        what="the jobs to start",
        timeout=90,
    )
    hosts_of = {
        node: host for name in federation.members for node, host in plan.hosts_of(name).items()
    }
    expected = {job_id: host for job_id, (_, host) in running.items()}
    nodes = {
        (name, node)
        for name in federation.members
        for node in plan.scenario.clusters[name].node_names()
    }

    def queue(cluster: SlurmCluster) -> dict[int, str | None]:
        jobs = cluster.jobs("--federation")
        return {job.job_id: hosts_of.get(job.node_list) for job in jobs if job.job_id in given}

    def node_list(cluster: SlurmCluster) -> set[tuple[str, ...]]:
        columns = ("--noheader", "--Node", "--Format=Cluster:40,NodeList:40")
        lines = cluster.run("sinfo", "--federation", *columns).stdout.splitlines()
        return {tuple(line.split()) for line in lines}

    for name in federation.members:
        # A member that answers late, on a busy machine, is left out of what they print.
        wait_until(
            partial(queue, clusters[name]),
            lambda seen: seen == expected,
            what=f"squeue --federation on {name} to list the jobs and their hosts {expected}",
            timeout=180,
        )
        wait_until(
            partial(node_list, clusters[name]),
            lambda seen: seen == nodes,
            what=f"sinfo --federation on {name} to list {nodes}",
            timeout=180,
        )
    if plan.scenario.accounting:
        recorded = wait_until(
            lambda: {
                record.job_id: (record.cluster, hosts_of.get(record.node_list))
                for record in federation.origin.records("--federation", "--allocations")
                if record.job_id in given and record.state == "RUNNING"
            },
            lambda seen: len(seen) == len(given),
            what="sacct --federation to list the running jobs",
            timeout=180,
        )
        assert recorded == running


def test_no_federated_job_ran_twice(jobs: Jobs) -> None:
    """Last in this file, because it covers all jobs so far."""
    seen = jobs.traces()
    assert seen, "no job left a trace"
    assert not job_trace.ran_twice(seen)
