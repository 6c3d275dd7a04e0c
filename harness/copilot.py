"""The copilot: Slurm gives away what the ledger leaves to it, and pods are admitted where Slurm's jobs leave room.

    KUBECONFIG=... SLURM_JWT=... python -m harness.copilot SLURMRESTD VERSION

SLURMRESTD is a URL, or the path of a socket; VERSION of its API is such as v0.0.42; the token is SlurmUser's.

The ledger is an object GenericNode for each Slurm node. Whoever schedules pods writes into its spec what a pod wants
(`admissionChecks`), and places the pod once its status says `Ready` of it; when the pod is gone, so is what stands in
the spec. The copilot alone writes the status, and cuts what pods hold from the gres of the Slurm node.

Killed at any moment it leaves Slurm with too little, never too much: it cuts before it promises, and gives back after
the pod is gone. A copilot that starts reads in the status what was promised. slurmctld forgets the cut whenever it
starts, but its nodes drain until the copilot has cut again.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import httpx2
import kopf

from harness import ledger
from harness.errors import ClusterError
from harness.ledger import GROUP, PLURAL, READY, REFUSED, RESUMED, VERSION, Amount
from harness.options import LEDGER_GRES

# Seconds between two looks at a node.
INTERVAL = 0.5
# A job that has nodes is in one of these states.
_WITH_NODES = {"RUNNING", "SUSPENDED", "COMPLETING"}
# A node that takes jobs has no other states.
_TAKES_JOBS = {"IDLE", "MIXED", "ALLOCATED"}


@dataclass(frozen=True, slots=True)
class Node:
    """A node as slurmctld sees it: how large it is, what of it Slurm may give away, and what jobs have.

    `other_gres` are those that the ledger does not count. `waits` for the copilot, since slurmctld started or because
    it was not `valid` when it registered after a cut: then nobody can resume it. `drained` by somebody. `resumed` by
    somebody it still has the reason for which it drained, and would seem to drain for it when slurmctld starts again.
    """

    name: str
    whole: Amount
    offered: Amount
    used: Amount
    other_gres: tuple[str, ...] = ()
    waits: bool = False
    valid: bool = True
    drained: bool = False
    resumed: bool = False


class Slurm(Protocol):
    """What the copilot wants of Slurm."""

    async def node(self, name: str) -> Node:
        """Return a node."""

    async def taken(self, node: Node) -> Amount:
        """Return what jobs have of a node, by their own records."""

    async def offer(self, node: Node, amount: Amount) -> None:
        """Have Slurm give away no more than an amount of a node."""

    async def reconfigure(self) -> None:
        """Have slurmctld read its configuration anew, and all nodes register and wait for the copilot."""

    async def resume(self, node: Node) -> None:
        """Let a node take jobs."""

    async def forget_reason(self, node: Node) -> None:
        """Have a node that was resumed not keep the reason for which it drained."""

    async def reconsider(self) -> None:
        """Have Slurm look again at the jobs that it has given up."""


class Slurmrestd:
    """Slurm, asked over its REST API; ClusterError where it refuses, or takes only a part of what it is told."""

    def __init__(self, client: httpx2.AsyncClient, version: str) -> None:
        self._client = client
        self._version = version

    async def node(self, name: str) -> Node:
        """Return a node."""
        return parse_node((await self._ask("GET", f"node/{name}"))["nodes"][0])

    async def taken(self, node: Node) -> Amount:
        """Return what jobs have of a node, by their own records."""
        return parse_jobs(await self._jobs(), node.name)

    async def offer(self, node: Node, amount: Amount) -> None:
        """Have Slurm give away no more than an amount of a node."""
        sizes = zip(LEDGER_GRES, (amount.cpus, amount.memory), strict=True)
        await self._ask(
            "POST", f"node/{node.name}", gres=",".join((*node.other_gres, *(f"{name}:{size}" for name, size in sizes)))
        )

    async def reconfigure(self) -> None:
        """Have slurmctld read its configuration anew, and all nodes register and wait for the copilot."""
        await self._ask("GET", "reconfigure/")

    async def resume(self, node: Node) -> None:
        """Let a node take jobs."""
        await self._ask("POST", f"node/{node.name}", state=["RESUME"])

    async def forget_reason(self, node: Node) -> None:
        """Have a node that was resumed not keep the reason for which it drained."""
        await self._ask("POST", f"node/{node.name}", reason=RESUMED)

    async def reconsider(self) -> None:
        """Have Slurm look again at the jobs that it has given up: it holds those that no node has enough left for."""
        for job in await self._jobs():
            if "PENDING" in job["job_state"] and job["state_reason"] == "BadConstraints":
                with suppress(ClusterError):  # it may have gone meanwhile
                    await self._ask("POST", f"job/{job['job_id']}", hold=False)

    async def _jobs(self) -> list[dict[str, Any]]:
        jobs: list[dict[str, Any]] = (await self._ask("GET", "jobs/"))["jobs"]
        return jobs

    async def _ask(self, method: str, what: str, **changes: Any) -> dict[str, Any]:
        path = f"/slurm/{self._version}/{what}"
        answer = await self._client.request(method, path, json=changes or None)
        told: dict[str, Any] = answer.json() if answer.content else {}
        # What slurmrestd does not know it leaves out with a warning.
        if answer.status_code != 200 or told.get("errors") or told.get("warnings"):
            raise ClusterError(f"{method} {path} {changes}: {answer.status_code} {answer.text}")
        return told


def parse_node(told: Mapping[str, Any]) -> Node:
    """Read a node of slurmrestd's."""
    # Without the sockets that slurmd found them at, as "(S:0)".
    gres = [entry for entry in re.sub(r"\([^)]*\)", "", told["gres"]).split(",") if entry]
    waits = ledger.waits_for_copilot(told["state"], told["reason"])
    return Node(
        name=told["name"],
        whole=ledger.of_slurm(told["cpus"], told["real_memory"]),
        offered=_sizes(told["gres"]),
        # Not alloc_cpus: of a single node slurmctld tells what it was when somebody asked for all nodes.
        used=_sizes(told["gres_used"]),
        other_gres=tuple(entry for entry in gres if entry.partition(":")[0] not in LEDGER_GRES),
        waits=waits,
        valid="INVALID_REG" not in told["state"],
        drained="DRAIN" in told["state"] and not waits,
        resumed={*told["state"]} <= _TAKES_JOBS and told["reason"] not in {"", RESUMED},
    )


def parse_jobs(told: Iterable[Mapping[str, Any]], name: str) -> Amount:
    """Return what jobs of slurmrestd's have of a node; one that is over still tells what it had."""
    resources = [job["job_resources"] for job in told if _WITH_NODES & {*job["job_state"]}]
    parts = [part for one in resources for part in one["nodes"]["allocation"] if part["name"] == name]
    return ledger.total(ledger.of_slurm(part["cpus"]["count"], part["memory"]["allocated"]) for part in parts)


def _sizes(gres: str) -> Amount:
    found = dict(re.findall(r"(\w+):(\d+)", gres))
    return ledger.of_slurm(*(int(found.get(name, 0)) for name in LEDGER_GRES))


@dataclass(slots=True)
class Page:
    """The ledger's page of one node: what each pod holds, and why others may not have it.

    `drained` tells that somebody drains the node: slurmctld writes over the reason when a node is not valid.
    """

    held: dict[str, Amount] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    drained: bool = False

    @classmethod
    def of(cls, status: Mapping[str, Any]) -> Page:
        """Return what was promised before."""
        checks = status.get("admissionChecks") or {}
        return cls({pod: ledger.of_pod(check) for pod, check in checks.items() if check["state"] == READY})

    def checks(self) -> dict[str, dict[str, str]]:
        """Return what is told of each pod."""
        ready = {pod: {"state": READY, **amount.quantities()} for pod, amount in self.held.items()}
        return ready | {pod: {"state": REFUSED, "message": why} for pod, why in self.refused.items()}


async def settle(slurm: Slurm, name: str, wanted: Mapping[str, Mapping[str, Any]], page: Page) -> Node:
    """Make Slurm's node what the page says, decide on the pods that are not on it yet, and return the node."""
    page.held = {pod: amount for pod, amount in page.held.items() if pod in wanted}
    page.refused = {pod: why for pod, why in page.refused.items() if pod in wanted}
    node = await slurm.node(name)
    page.drained = node.drained or (page.drained and node.waits)
    if node.waits and not node.valid:
        await slurm.reconfigure()
        node = await slurm.node(name)
    node = await _cut(slurm, node, page.held)
    if node.waits and not page.drained:
        await slurm.resume(node)
    if node.resumed:
        await slurm.forget_reason(node)
    for pod, quantities in wanted.items():
        if pod not in page.held and pod not in page.refused:
            node = await _admit(slurm, node, pod, quantities, page)
    return node


async def _admit(slurm: Slurm, node: Node, pod: str, quantities: Mapping[str, Any], page: Page) -> Node:
    """Cut what a pod wants from a node, and take it back if jobs have it: Slurm accepts a cut below what runs."""
    try:
        held = page.held | {pod: ledger.of_pod(quantities)}
    except ValueError as error:
        page.refused[pod] = str(error)
        return node
    if not (ledger.total(held.values()) + node.used).fits_in(node.whole):
        page.refused[pod] = f"jobs have {node.used.quantities()} of {node.whole.quantities()}"
        return node
    cut = await _cut(slurm, node, held)
    # Jobs may have started between the look and the cut; none that does not fit has started since. They are asked
    # themselves: a node that offers nothing of a gres does not tell what is used of it (_node_gres_used() in gres.c).
    used = cut.used.or_more(await slurm.taken(cut))
    if not (ledger.total(held.values()) + used).fits_in(cut.whole):
        page.refused[pod] = f"jobs have taken {used.quantities()} of {cut.whole.quantities()} meanwhile"
        return await _cut(slurm, cut, page.held)
    page.held = held
    return cut


async def _cut(slurm: Slurm, node: Node, held: Mapping[str, Amount]) -> Node:
    """Have Slurm offer what pods leave of a node, and return the node as it is then."""
    left = ledger.left_to_slurm(node.whole, held.values())
    if node.offered == left:
        return node
    before = node.offered
    await slurm.offer(node, left)
    node = await slurm.node(node.name)
    if node.offered != left:
        raise ClusterError(f"{node.name} still offers {node.offered.quantities()}, not {left.quantities()}")
    if not left.fits_in(before):
        await slurm.reconsider()
    return node


@kopf.on.startup()
def _configure(settings: kopf.OperatorSettings, **_: Any) -> None:
    settings.posting.enabled = False


@kopf.timer(GROUP, VERSION, PLURAL, interval=INTERVAL, backoff=INTERVAL)
async def keep(spec: kopf.Spec, status: kopf.Status, patch: kopf.Patch, memo: kopf.Memo, **_: Any) -> None:
    """Keep Slurm's node and the object's status what they should be.

    What was decided stays in memory: the object may be seen as it was before the last answer was written.
    """
    page = memo.setdefault("page", Page.of(status))
    node = await settle(memo.slurm, spec["alias"], spec.get("admissionChecks") or {}, page)
    told, checks = status.get("admissionChecks") or {}, page.checks()
    if changed := {pod: checks.get(pod) for pod in told.keys() | checks.keys() if told.get(pod) != checks.get(pod)}:
        patch.status["admissionChecks"] = changed
    amounts = {"Slurm": node.used, "Kubernetes": ledger.total(page.held.values())}
    allocated = [{"type": kind, "allocated": amount.quantities()} for kind, amount in amounts.items()]
    if status.get("allocatedResources") != allocated:
        patch.status["allocatedResources"] = allocated


@asynccontextmanager
async def connected(where: str, version: str, token: str) -> AsyncIterator[Slurmrestd]:
    """Connect to a slurmrestd, a URL or the path of a socket, as who has a token."""
    is_url = "://" in where
    async with httpx2.AsyncClient(
        transport=None if is_url else httpx2.AsyncHTTPTransport(uds=where),
        base_url=where if is_url else "http://slurm",
        headers={"X-SLURM-USER-TOKEN": token},
        timeout=10,
    ) as client:
        yield Slurmrestd(client, version)


async def run(where: str, version: str, token: str) -> None:
    """Keep the ledger until a signal comes."""
    async with connected(where, version, token) as slurm:
        await kopf.operator(clusterwide=True, standalone=True, memo=kopf.Memo(slurm=slurm))


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], sys.argv[2], os.environ["SLURM_JWT"]))
