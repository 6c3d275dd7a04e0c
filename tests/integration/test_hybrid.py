"""The scenario shared with Kubernetes: each of its checks is seen to fail."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness import lifecycle
from harness.cluster import slurm
from harness.kubernetes import hybrid_cluster
from harness.kubernetes.amounts import Amount
from harness.kubernetes.ledger_entries import READY, REFUSED, Entries
from harness.open_run import OpenRun
from harness.wait import wait_until
from sabotage import HYBRID, Sabotage, break_and_verify
from support import SCENARIOS, Harness, deployed

if TYPE_CHECKING:
    from harness.kubernetes.operator import SharedNode, Slurmrestd


@pytest.fixture(scope="module")
def shared(harness: Harness, runs: Path) -> Iterator[OpenRun]:
    """The scenario, deployed with a release that has external jobs."""
    with deployed(harness, runs, SCENARIOS / "kubernetes-hybrid.yml", "--release", "26.05") as run:
        yield run


def test_quick_checks_of_the_ledger_pass(shared: OpenRun) -> None:
    evaluation = lifecycle.verify(
        shared,
        [
            "jobs_occupy_the_node",
            "bypass_the_ledger",
            "operator_has_cut_again",
            "external_job",
            "external_node",
        ],
    )
    assert {check.outcome for check in evaluation.checks} == {"passed"}, evaluation


@pytest.mark.parametrize("sabotage", HYBRID, ids=str)
def test_check_fails_where_the_ledger_is_not_kept(shared: OpenRun, sabotage: Sabotage) -> None:
    break_and_verify(shared, sabotage)


@pytest.mark.parametrize(("jobs_are_asked", "answer"), [(True, REFUSED), (False, READY)])
def test_operator_queries_jobs_and_so_sees_one_that_starts_before_it_cuts_all_cpus(
    jobs_are_asked: bool, answer: str, shared: OpenRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only here, because kopf is slow to import, and each worker imports this module.
    from harness.kubernetes import operator

    job_ids: list[int] = []
    offer = operator.Slurmrestd.offer

    async def offer_after_a_job(self: Slurmrestd, node: SharedNode, amount: Amount) -> None:
        if not job_ids:
            job_ids.append(
                cluster.submit(
                    "#!/bin/sh\nsleep 3600", "--nodelist=n1", "--output=/dev/null", user="alice"
                )
            )
            cluster.wait_for(job_ids, {"RUNNING"})
        await offer(self, node, amount)

    async def taken_by_none(self: Slurmrestd, node: SharedNode) -> Amount:
        return Amount()

    async def answer_to_a_pod() -> str:
        entries = Entries()
        connected = there["shared"].operator
        async with operator.Clusters(connected.slurmrestd, connected.tokens) as known:
            slurmrestd = await known.slurmrestd("shared")
            await operator.settle(slurmrestd, "n1", {"pod": {"cpu": "4"}}, entries)
            state = entries.checks()["pod"]["state"]
            await operator.settle(slurmrestd, "n1", {}, entries)
        return state

    monkeypatch.setattr(operator.Slurmrestd, "offer", offer_after_a_job)
    if not jobs_are_asked:
        monkeypatch.setattr(operator.Slurmrestd, "taken", taken_by_none)
    with hybrid_cluster.with_operator(
        shared.directory, shared.plan, slurm.clusters(shared.ssh, shared.plan), shared.ssh
    ) as there:
        cluster = there["shared"].cluster
        there["shared"].operator.kill()
        try:
            assert asyncio.run(answer_to_a_pod()) == answer
        finally:
            cluster.run("scancel", "--user=alice")
            cluster.wait_for(job_ids)


def test_node_that_registers_after_a_cut_below_a_running_job_takes_jobs_again(
    shared: OpenRun,
) -> None:
    with hybrid_cluster.with_operator(
        shared.directory, shared.plan, slurm.clusters(shared.ssh, shared.plan), shared.ssh
    ) as there:
        ledger, cluster = there["shared"], there["shared"].cluster

        def node() -> slurm.Node:
            return next(node for node in cluster.nodes() if node.name == "n1")

        # Of its last registration, slurmctld must know that it offered everything: an earlier test
        # may have reconfigured slurmctld, which forgets the amounts, and asks for them later.
        started = node().slurmd_start
        shared.ssh.run("n1", ["systemctl", "restart", "slurmd"])
        wait_until(
            node, lambda seen: seen.slurmd_start != started, what="n1 to register", timeout=300
        )
        job_id = cluster.submit(
            "#!/bin/sh\nsleep 3600",
            "--nodelist=n1",
            "--mem=100",
            "--output=/dev/null",
            user="alice",
        )
        try:
            cluster.wait_for([job_id], {"RUNNING"})
            ledger.request_for("n1", "pod", {"cpu": "1", "memory": "100Mi"})
            wait_until(
                lambda: ledger.answers("n1").get("pod"),
                lambda state: state == READY,
                what="n1 to be cut",
                timeout=300,
            )
            ledger.operator.kill()
            shared.ssh.run("n1", ["systemctl", "restart", "slurmd"])
            wait_until(
                node, lambda seen: "INVALID_REG" in seen.state, what="n1 to drain", timeout=300
            )
            ledger.operator.start()
            wait_until(
                node, lambda seen: seen.state == "MIXED", what="n1 to take jobs", timeout=300
            )
            assert cluster.job(job_id)
        finally:
            cluster.run("scancel", "--user=alice")
            cluster.wait_for([job_id])


def test_slurmrestd_that_is_too_old_is_refused_before_anything_starts(harness: Harness) -> None:
    done = harness("run", SCENARIOS / "kubernetes-hybrid.yml", "--release", "22.05")
    assert done.returncode == 2
    assert (
        "clusters.shared.kubernetes: slurmrestd 22.05 does not report what jobs have; 24.05 does"
        in done.stderr
    )
