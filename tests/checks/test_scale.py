"""Many nodes that share hosts.

Each behaves like a separate node, and of many short jobs none is lost or counted twice.
"""

from __future__ import annotations

import re
from collections import Counter

import pytest
from conftest import Jobs, all_records_sent

from harness.cluster import slurm
from harness.cluster.node_state import is_draining
from harness.cluster.slurm import FINISHED, Node, SlurmCluster, job_key
from harness.parsing import hostlist
from harness.plan import Plan
from harness.ssh import Ssh
from harness.verify import job_events, trace_comparison
from harness.verify.selection import has_many_nodes
from harness.wait import wait_until

pytestmark = pytest.mark.needs("users", "static", "many_nodes")
JOBS_OF_A_NODE = 10
# More would slow down a machine with few CPUs.
AT_ONCE = 50
# Seconds that a busy machine's daemons may take before and after each of these many jobs.
OVERHEAD = 60
# Jobs per second if all daemons share two busy CPUs.
LEAST_PER_SECOND = 1


@pytest.fixture
def large(clusters: dict[str, SlurmCluster], plan: Plan) -> SlurmCluster:
    """The first cluster with many nodes."""
    return next(
        cluster
        for name, cluster in clusters.items()
        if has_many_nodes(plan.scenario.clusters[name])
    )


def test_every_node_is_idle_and_has_its_own_slurmd(
    large: SlurmCluster, plan: Plan, jobs: Jobs, ssh: Ssh
) -> None:
    for host, nodes in plan.scenario.clusters[large.name].nodes_on().items():
        # Count only children of systemd, because a slurmd that starts a job has two processes for a
        # moment.
        processes = ssh.run(
            host, ["pgrep", "--parent=1", "--list-full", "--exact", "slurmd"], check=False
        ).stdout
        running = Counter(re.findall(r" -N (\S+)", processes))
        others = {*(running - Counter(nodes)), *(Counter(nodes) - running)}
        assert running == Counter(nodes), (
            f"{host} does not run exactly one slurmd for each of {hostlist.fold(others)}"
        )

    def look() -> list[Node]:
        left_alone = jobs.left_alone()
        busy = {
            job.node_list
            for job in large.jobs("--local")
            if job_key(large.name, job.job_id) in left_alone and job.state not in FINISHED
        }
        return [
            node
            for node in large.nodes()
            if not node.slurmd_start or (node.state != "IDLE" and node.name not in busy)
        ]

    wait_until(
        look,
        lambda left: not left,
        what="every node to register and be idle",
        timeout=180,
        give_up=lambda left: any(is_draining(node.state) for node in left),
        show=lambda left: "; ".join(
            f"{node.name} {node.state} {node.reason}" for node in left[:20]
        ),
    )


def test_each_of_many_short_jobs_runs_once_and_has_one_record(
    large: SlurmCluster, plan: Plan, jobs: Jobs, ssh: Ssh
) -> None:
    hosts_of = plan.hosts_of(large.name)
    count = JOBS_OF_A_NODE * len(hosts_of)
    sizes = slurm.array_sizes(count)
    limit = max(1, AT_ONCE // len(sizes))
    arrays = [jobs.submit_here(large, "true", f"--array=1-{size}%{limit}") for size in sizes]
    seconds = 60 + count / LEAST_PER_SECOND
    ended = large.wait_for(arrays, {"COMPLETED"}, timeout=seconds)
    keys = {job_key(large.name, job.job_id) for job in ended}
    assert len(keys) == count, f"{len(keys)} jobs of {count}"
    traces, logged = jobs.traces(), job_events.logged_times(ssh, plan)
    wait_until(
        lambda: trace_comparison.differences(
            keys, traces, large.records("--local"), {large.name: hosts_of}, OVERHEAD, logged
        ),
        lambda differences: not differences,
        what=f"accounting to agree with the traces of {count} jobs",
        timeout=180 + count / 30,
        give_up=all_records_sent([large]),
        show=lambda differences: "\n".join([*differences[:10], f"{len(differences)} differences"]),
    )
