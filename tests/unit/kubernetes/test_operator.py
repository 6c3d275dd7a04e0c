from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from harness.errors import ClusterError
from harness.kubernetes import operator
from harness.kubernetes.amounts import Amount
from harness.kubernetes.ledger_entries import Entries
from harness.kubernetes.operator import SharedNode

WHOLE = Amount(4000, 1000)
SMALL = {"cpu": "500m", "memory": "100Mi"}
LARGE = {"cpu": "3", "memory": "100Mi"}
ALL_CPUS = {"cpu": "4"}
IN_USE = "gres/k8scpu count changed and jobs are using them (4 != 1)"


class FakeSlurm:
    """A slurmctld with one node.

    It accepts a cut below what runs, forgets it when it restarts, and starts jobs on request. The
    node does not report allocated CPUs where it offers none.
    """

    def __init__(self, **facts: Any) -> None:
        self.seen = SharedNode("n1", WHOLE, WHOLE, Amount(), **facts)
        self.before_offer: Callable[[], None] = lambda: None
        self.before_resume: Callable[[], None] = lambda: None
        self.capabilities: list[Amount] = []
        self.deaf = False
        self.reconsidered = 0

    async def node(self, name: str) -> SharedNode:
        assert name == self.seen.name
        used = (self.seen.used.millicpus if self.seen.offered.cpus else 0, self.seen.used.memory)
        return replace(self.seen, used=Amount(*used))

    async def taken(self, node: SharedNode) -> Amount:
        return self.seen.used

    async def offer(self, node: SharedNode, amount: Amount) -> None:
        self.before_offer()
        self.capabilities.append(amount)
        if not self.deaf:
            self.seen = replace(self.seen, offered=amount)

    async def reconfigure(self) -> None:
        self.seen = replace(self.seen, valid=True)
        self.restart()

    async def resume(self, node: SharedNode, amount: Amount) -> None:
        assert self.seen.valid, "slurmctld resumes no such node"
        self.before_resume()
        self.seen = replace(self.seen, waits=False, offered=amount)

    async def forget_reason(self, node: SharedNode) -> None:
        self.seen = replace(self.seen, resumed=False)

    async def reconsider(self) -> None:
        self.reconsidered += 1

    def start_job(self, amount: Amount) -> None:
        self.seen = replace(self.seen, used=amount)

    def restart(self) -> None:
        self.seen = replace(self.seen, offered=WHOLE, waits=True)


def settle(slurm: FakeSlurm, wanted: dict[str, dict[str, str]], entries: Entries) -> dict[str, str]:
    """Settle once, and return what is reported for each pod."""
    asyncio.run(operator.settle(slurm, "n1", wanted, entries))
    return {pod: check["state"] for pod, check in entries.checks().items()}


def test_resources_of_pods_are_cut_and_given_back_when_they_are_gone() -> None:
    slurm, entries = FakeSlurm(), Entries()
    assert settle(slurm, {"a": SMALL, "b": LARGE}, entries) == {"a": "Ready", "b": "Ready"}
    assert (slurm.seen.offered, slurm.reconsidered) == (Amount(0, 800), 0)
    assert settle(slurm, {"a": SMALL}, entries) == {"a": "Ready"}
    assert (slurm.seen.offered, slurm.reconsidered) == (Amount(3000, 900), 1)
    assert settle(slurm, {}, entries) == {}
    assert slurm.seen.offered == WHOLE


def test_pod_is_refused_where_jobs_occupy_the_node_and_stays_refused() -> None:
    slurm, entries = FakeSlurm(), Entries()
    slurm.start_job(Amount(2000, 100))
    assert settle(slurm, {"a": LARGE}, entries) == {"a": "Refused"}
    assert slurm.capabilities == []
    slurm.start_job(Amount())
    assert settle(slurm, {"a": LARGE}, entries) == {"a": "Refused"}
    assert settle(slurm, {}, entries) == {}
    assert settle(slurm, {"a": LARGE}, entries) == {"a": "Ready"}


@pytest.mark.parametrize(
    ("pod", "offer"), [(LARGE, Amount(1000, 900)), (ALL_CPUS, Amount(0, 1000))]
)
def test_cut_is_reverted_where_a_job_was_faster(pod: dict[str, str], offer: Amount) -> None:
    slurm, entries = FakeSlurm(), Entries()
    slurm.before_offer = lambda: slurm.start_job(Amount(2000, 100))
    assert settle(slurm, {"a": pod}, entries) == {"a": "Refused"}
    assert slurm.capabilities == [offer, WHOLE]
    assert "in the meantime" in entries.checks()["a"]["message"]


def test_pod_that_asks_for_no_quantity_is_refused() -> None:
    assert settle(FakeSlurm(), {"a": {"cpu": "much"}}, Entries()) == {"a": "Refused"}


def test_restarted_slurmctld_gets_its_cut_before_its_node_takes_jobs() -> None:
    slurm, entries = FakeSlurm(), Entries()
    settle(slurm, {"a": LARGE}, entries)
    slurm.restart()

    def not_yet() -> None:
        assert slurm.seen.waits

    slurm.before_offer = not_yet
    settle(slurm, {"a": LARGE}, entries)
    assert (slurm.seen.offered, slurm.seen.waits) == (Amount(1000, 900), False)


def test_slurmctld_that_restarts_just_before_a_node_is_resumed_does_not_offer_what_pods_have() -> (
    None
):
    slurm, entries = FakeSlurm(), Entries()
    settle(slurm, {"a": LARGE}, entries)
    slurm.restart()
    slurm.before_resume = slurm.restart
    settle(slurm, {"a": LARGE}, entries)
    assert (slurm.seen.offered, slurm.seen.waits) == (Amount(1000, 900), False)


@pytest.mark.parametrize("drained", [False, True])
def test_node_that_registered_after_a_cut_takes_jobs_again_unless_it_had_been_drained(
    drained: bool,
) -> None:
    slurm, entries = FakeSlurm(drained=drained), Entries()
    settle(slurm, {"a": LARGE}, entries)
    slurm.seen = replace(slurm.seen, waits=True, valid=False, drained=False)
    settle(slurm, {"a": LARGE}, entries)
    assert (slurm.seen.offered, slurm.seen.valid, slurm.seen.waits) == (
        Amount(1000, 900),
        True,
        drained,
    )


def test_resumed_node_does_not_keep_its_reason() -> None:
    slurm = FakeSlurm(resumed=True)
    settle(slurm, {}, Entries())
    assert not slurm.seen.resumed


def test_operator_that_restarts_keeps_what_was_promised_and_decides_on_the_rest() -> None:
    slurm, entries = FakeSlurm(), Entries()
    settle(slurm, {"a": LARGE}, entries)
    # The previous operator was killed after it had cut for b, before it promised.
    slurm.seen = replace(slurm.seen, offered=Amount(0, 800))
    entries = Entries.of(
        {"admissionChecks": entries.checks() | {"c": {"state": "Refused", "message": ""}}}
    )
    assert settle(slurm, {"a": LARGE, "b": LARGE}, entries) == {"a": "Ready", "b": "Refused"}
    assert slurm.seen.offered == Amount(1000, 900)


def test_nothing_is_promised_where_slurm_does_not_accept_the_cut() -> None:
    slurm, entries = FakeSlurm(), Entries()
    slurm.deaf = True
    with pytest.raises(ClusterError, match="n1 still offers"):
        settle(slurm, {"a": SMALL}, entries)
    assert entries.checks() == {}


@pytest.mark.parametrize(
    ("state", "reason", "facts"),
    [
        (["IDLE"], "", {}),
        (["IDLE", "DRAIN"], "", {"waits": True}),
        (["IDLE", "DRAIN"], "no fan", {"drained": True}),
        (["MIXED", "DRAIN", "INVALID_REG"], IN_USE, {"waits": True, "valid": False}),
        (["MIXED"], "no fan", {"resumed": True}),
        (["MIXED"], "resumed", {}),
        (["IDLE", "DRAIN"], "resumed", {"waits": True}),
        (["DOWN"], "Not responding", {}),
        (["IDLE", "REBOOT_REQUESTED"], "new kernel", {}),
    ],
)
def test_node_is_parsed_from_slurmrestd(
    state: list[str], reason: str, facts: dict[str, bool]
) -> None:
    body = {
        "name": "n1",
        "cpus": 4,
        "real_memory": 1000,
        "gres": "gpu:a100:2(S:0),k8scpu:3,k8smemory:900,k8sgpu:1",
        "gres_used": "gpu:a100:1(IDX:0),k8scpu:1,k8smemory:50,k8sgpu:1",
        "state": state,
        "reason": reason,
    }
    sizes = (Amount(4000, 1000, 2), Amount(3000, 900, 1), Amount(1000, 50, 1))
    node = SharedNode("n1", *sizes, ("gpu:a100:2",), **facts)
    assert operator.parse_node(body) == node


def test_sizes_that_slurmctld_writes_with_a_unit_are_read() -> None:
    """_get_suffix() in gres.c writes multiples of 1024 so."""
    body = {
        "name": "n1",
        "cpus": 64,
        "real_memory": 256000,
        "gres": "k8scpu:64,k8smemory:250K",
        "gres_used": "k8scpu:0,k8smemory:0",
        "state": ["IDLE"],
        "reason": "",
    }
    assert operator.parse_node(body).offered == Amount(64000, 256000)


def test_only_jobs_on_the_node_now_hold_resources_of_it() -> None:
    def job(*states: str, gpus: tuple[str, ...] = (), **cpus_on: int) -> dict[str, Any]:
        parts = [
            {"name": name, "cpus": {"count": count}, "memory": {"allocated": 10}}
            for name, count in cpus_on.items()
        ]
        return {
            "job_state": list(states),
            "job_resources": {"nodes": {"allocation": parts}} if parts else None,
            "gres_detail": gpus,
        }

    body = [
        job("PENDING"),
        job("RUNNING", n1=1, n2=2, gpus=("gpu:a100:2(IDX:0,3),k8sgpu:2", "gpu:1(IDX:1)")),
        job("RUNNING", n2=4),
        job("COMPLETED", n1=4),
        job("COMPLETED", "COMPLETING", n1=2),
    ]
    assert operator.parse_jobs(body, "n1") == Amount(3000, 20, 2)


def test_slurmrestd_that_does_not_answer_is_named(tmp_path: Path) -> None:
    async def ask() -> None:
        async with operator.Clusters(str(tmp_path / "socket-{cluster}"), tmp_path) as clusters:
            await (await clusters.slurmrestd("main")).node("n1")

    with pytest.raises(ClusterError, match=r"there is no token: .*main"):
        asyncio.run(ask())
    (tmp_path / "main").write_text("token\n")
    with pytest.raises(ClusterError, match="slurmrestd does not answer GET /openapi"):
        asyncio.run(ask())


NODE = SharedNode("n1", WHOLE, WHOLE, Amount())


class FakeSlurmrestd:
    """A slurmrestd that serves one version, and warns in each answer."""

    def __init__(self, token: Path) -> None:
        self.serves = "v0.0.41"
        self.paths = ("/slurm/{}/jobs/", "/slurm/v0.0.9/jobs/", "/slurmdb/v0.1.0/jobs/")
        self.requests: list[tuple[str, str]] = []
        self._token = token

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        path = request.url.path
        self.requests.append((path, request.headers["X-SLURM-USER-TOKEN"]))
        if path == "/openapi/v3":
            paths = {path.format(self.serves): {} for path in self.paths}
            return httpx2.Response(200, json={"paths": paths})
        if self.serves not in path:
            return httpx2.Response(404)
        return httpx2.Response(200, json={"jobs": [], "warnings": [{"description": "a warning"}]})

    def ask(self, question: Callable[[operator.Slurmrestd], Coroutine[Any, Any, object]]) -> None:
        """Let the operator ask something."""

        async def talk() -> None:
            transport = httpx2.MockTransport(self._answer)
            async with httpx2.AsyncClient(transport=transport, base_url="http://slurm") as client:
                await question(operator.Slurmrestd(client, self._token))

        asyncio.run(talk())


def test_warning_is_an_error_only_if_slurmrestd_should_change_something(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("token\n")
    slurmrestd = FakeSlurmrestd(tmp_path / "token")
    slurmrestd.ask(lambda slurm: slurm.taken(NODE))
    with pytest.raises(ClusterError, match="a warning"):
        slurmrestd.ask(lambda slurm: slurm.resume(NODE, WHOLE))


def test_token_and_slurmrestd_may_be_replaced_while_the_operator_runs(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old\n")
    slurmrestd = FakeSlurmrestd(token)

    async def ask(slurm: operator.Slurmrestd) -> None:
        await slurm.taken(NODE)
        token.write_text("new\n")
        await slurm.taken(NODE)
        slurmrestd.serves = "v0.0.42"
        with pytest.raises(ClusterError, match="404"):
            await slurm.taken(NODE)
        await slurm.taken(NODE)

    slurmrestd.ask(ask)
    assert slurmrestd.requests == [
        ("/openapi/v3", "old"),
        ("/slurm/v0.0.41/jobs/", "old"),
        ("/slurm/v0.0.41/jobs/", "new"),
        ("/slurm/v0.0.41/jobs/", "new"),
        ("/openapi/v3", "new"),
        ("/slurm/v0.0.42/jobs/", "new"),
    ]


def test_slurmrestd_without_a_version_that_the_operator_needs_is_named(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("token\n")
    slurmrestd = FakeSlurmrestd(tmp_path / "token")
    slurmrestd.paths = ("/slurmdb/v0.0.42/jobs/",)
    with pytest.raises(ClusterError, match="serves no version of /slurm"):
        slurmrestd.ask(lambda slurm: slurm.taken(NODE))


def test_name_of_a_cluster_cannot_be_a_path(tmp_path: Path) -> None:
    async def ask() -> None:
        async with operator.Clusters("http://{cluster}", tmp_path) as clusters:
            await clusters.slurmrestd("../main")

    with pytest.raises(ClusterError, match=r"'../main' is not the name of a cluster"):
        asyncio.run(ask())
