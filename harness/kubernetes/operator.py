"""The operator: Slurm offers what pods leave of a node, and pods get what jobs leave of it.

    KUBECONFIG=... SLURM_JWT=... python -m harness.kubernetes.operator SLURMRESTD VERSION

SLURMRESTD is a URL, or the path of a socket; VERSION is that of its API, such as v0.0.42; the token
is SlurmUser's.

The ledger has an object of kind GenericNode for each Slurm node. A scheduler of pods writes a pod's
request into its spec (`admissionChecks`), places the pod once the status says `Ready` for it, and
removes the request when the pod is gone. Only the operator writes the status, and it cuts what pods
hold from the gres of the Slurm node.

If the operator is killed, Slurm may have too little left, but never too much: the operator cuts
before it promises, and gives back after the pod is gone. When it starts, it reads from the status
what was promised. slurmctld forgets the cut whenever it starts, but its nodes drain until the
operator has cut again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sys
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

import httpx2
import kopf

from harness.cluster import node_state
from harness.cluster.node_state import RESUMED
from harness.errors import ClusterError
from harness.kubernetes import amounts
from harness.kubernetes.amounts import Amount
from harness.kubernetes.ledger_entries import GROUP, PLURAL, VERSION, Entries
from harness.slurm_options import LEDGER_GRES

# Seconds between two polls of a node.
INTERVAL = 0.5
# The states of a job that has nodes.
_WITH_NODES = {"RUNNING", "SUSPENDED", "COMPLETING"}
# All states of a node that takes jobs.
_TAKES_JOBS = {"IDLE", "MIXED", "ALLOCATED"}


@dataclass(frozen=True, slots=True)
class SharedNode:
    """A node as slurmctld sees it: its size, what Slurm offers of it, and what jobs use.

    `other_gres` are those that the ledger does not count. The node `waits` for the operator if
    slurmctld has restarted, or if it was not `valid` when it registered after a cut: such a node
    cannot be resumed. `drained` and `resumed` say what a user has done. A resumed node still has
    the reason of its drain, and would seem to drain again when slurmctld restarts.
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


class SlurmApi(Protocol):
    """What the operator needs from Slurm."""

    async def node(self, name: str) -> SharedNode:
        """Return a node."""

    async def taken(self, node: SharedNode) -> Amount:
        """Return what jobs use of a node, from their own records."""

    async def offer(self, node: SharedNode, amount: Amount) -> None:
        """Limit what Slurm offers of a node."""

    async def reconfigure(self) -> None:
        """Make slurmctld reread its configuration: all nodes register and wait for the operator."""

    async def resume(self, node: SharedNode) -> None:
        """Let a node take jobs."""

    async def forget_reason(self, node: SharedNode) -> None:
        """Clear the reason of a node that was resumed."""

    async def reconsider(self) -> None:
        """Release the jobs that Slurm has held because no node had enough left."""


class Slurmrestd:
    """Slurm's REST API; ClusterError if it refuses a request, or accepts it only in part."""

    def __init__(self, client: httpx2.AsyncClient, version: str) -> None:
        self._client = client
        self._version = version

    async def node(self, name: str) -> SharedNode:
        """Return a node."""
        return parse_node((await self._ask("GET", f"node/{name}"))["nodes"][0])

    async def taken(self, node: SharedNode) -> Amount:
        """Return what jobs use of a node, from their own records."""
        return parse_jobs(await self._jobs(), node.name)

    async def offer(self, node: SharedNode, amount: Amount) -> None:
        """Limit what Slurm offers of a node."""
        sizes = zip(LEDGER_GRES, (amount.cpus, amount.memory), strict=True)
        await self._ask(
            "POST",
            f"node/{node.name}",
            gres=",".join((*node.other_gres, *(f"{name}:{size}" for name, size in sizes))),
        )

    async def reconfigure(self) -> None:
        """Make slurmctld reread its configuration: all nodes register and wait for the operator."""
        await self._ask("GET", "reconfigure/")

    async def resume(self, node: SharedNode) -> None:
        """Let a node take jobs."""
        await self._ask("POST", f"node/{node.name}", state=["RESUME"])

    async def forget_reason(self, node: SharedNode) -> None:
        """Clear the reason of a node that was resumed."""
        await self._ask("POST", f"node/{node.name}", reason=RESUMED)

    async def reconsider(self) -> None:
        """Release the jobs that Slurm has held because no node had enough left."""
        for job in await self._jobs():
            if "PENDING" in job["job_state"] and job["state_reason"] == "BadConstraints":
                with suppress(ClusterError):  # it may have ended in the meantime
                    await self._ask("POST", f"job/{job['job_id']}", hold=False)

    async def _jobs(self) -> list[dict[str, Any]]:
        jobs: list[dict[str, Any]] = (await self._ask("GET", "jobs/"))["jobs"]
        return jobs

    async def _ask(self, method: str, what: str, **changes: Any) -> dict[str, Any]:
        path = f"/slurm/{self._version}/{what}"
        try:
            answer = await self._client.request(method, path, json=changes or None)
        except httpx2.TransportError as error:
            raise ClusterError(f"slurmrestd does not answer {method} {path}: {error!r}") from error
        content: dict[str, Any] = answer.json() if answer.content else {}
        # slurmrestd ignores unknown fields with a warning.
        if answer.status_code != 200 or content.get("errors") or content.get("warnings"):
            raise ClusterError(f"{method} {path} {changes}: {answer.status_code} {answer.text}")
        return content


def parse_node(facts: Mapping[str, Any]) -> SharedNode:
    """Parse a node from slurmrestd."""
    # Each without its sockets, as in "(S:0)".
    gres = [entry for entry in re.sub(r"\([^)]*\)", "", facts["gres"]).split(",") if entry]
    waits = node_state.waits_for_operator("+".join(facts["state"]), facts["reason"])
    return SharedNode(
        name=facts["name"],
        whole=amounts.of_slurm(facts["cpus"], facts["real_memory"]),
        offered=_sizes(facts["gres"]),
        # Not alloc_cpus: for a single node, slurmctld returns its value from the last query of all
        # nodes.
        used=_sizes(facts["gres_used"]),
        other_gres=tuple(entry for entry in gres if entry.partition(":")[0] not in LEDGER_GRES),
        waits=waits,
        valid="INVALID_REG" not in facts["state"],
        drained="DRAIN" in facts["state"] and not waits,
        resumed={*facts["state"]} <= _TAKES_JOBS and facts["reason"] not in {"", RESUMED},
    )


def parse_jobs(jobs: Iterable[Mapping[str, Any]], name: str) -> Amount:
    """Return what jobs from slurmrestd use of a node; ended jobs still list what they used."""
    resources = [job["job_resources"] for job in jobs if _WITH_NODES & {*job["job_state"]}]
    parts = [
        part
        for resource in resources
        for part in resource["nodes"]["allocation"]
        if part["name"] == name
    ]
    return amounts.total(
        amounts.of_slurm(part["cpus"]["count"], part["memory"]["allocated"]) for part in parts
    )


def _sizes(gres: str) -> Amount:
    sizes = dict(re.findall(r"(\w+):(\d+)", gres))
    return amounts.of_slurm(*(int(sizes.get(name, 0)) for name in LEDGER_GRES))


async def settle(
    slurm: SlurmApi, name: str, wanted: Mapping[str, Mapping[str, Any]], entries: Entries
) -> SharedNode:
    """Apply the entries to Slurm's node, decide on new pods, and return the node."""
    entries.held = {pod: amount for pod, amount in entries.held.items() if pod in wanted}
    entries.refused = {pod: why for pod, why in entries.refused.items() if pod in wanted}
    node = await slurm.node(name)
    entries.drained = node.drained or (entries.drained and node.waits)
    if node.waits and not node.valid:
        await slurm.reconfigure()
        node = await slurm.node(name)
    node = await _cut(slurm, node, entries.held)
    if node.waits and not entries.drained:
        await slurm.resume(node)
    if node.resumed:
        await slurm.forget_reason(node)
    for pod, quantities in wanted.items():
        if pod not in entries.held and pod not in entries.refused:
            node = await _admit(slurm, node, pod, quantities, entries)
    return node


async def _admit(
    slurm: SlurmApi, node: SharedNode, pod: str, quantities: Mapping[str, Any], entries: Entries
) -> SharedNode:
    """Cut a pod's request from a node; undo that if jobs use it, which Slurm does not check."""
    try:
        held = entries.held | {pod: amounts.of_pod(quantities)}
    except ValueError as error:
        entries.refused[pod] = str(error)
        return node
    if not (amounts.total(held.values()) + node.used).fits_in(node.whole):
        entries.refused[pod] = f"jobs use {node.used.quantities()} of {node.whole.quantities()}"
        return node
    cut = await _cut(slurm, node, held)
    # Jobs may have started before the cut; those that start after it fit. The records of the jobs
    # decide, because a node that no longer offers a gres does not report how much of it is used
    # (_node_gres_used() in gres.c).
    used = cut.used.or_more(await slurm.taken(cut))
    if not (amounts.total(held.values()) + used).fits_in(cut.whole):
        entries.refused[pod] = (
            f"jobs have taken {used.quantities()} of {cut.whole.quantities()} in the meantime"
        )
        return await _cut(slurm, cut, entries.held)
    entries.held = held
    return cut


async def _cut(slurm: SlurmApi, node: SharedNode, held: Mapping[str, Amount]) -> SharedNode:
    """Make Slurm offer what pods leave of a node, and return the changed node."""
    left = amounts.left_to_slurm(node.whole, held.values())
    if node.offered == left:
        return node
    before = node.offered
    await slurm.offer(node, left)
    node = await slurm.node(node.name)
    if node.offered != left:
        raise ClusterError(
            f"{node.name} still offers {node.offered.quantities()}, not {left.quantities()}"
        )
    if not left.fits_in(before):
        await slurm.reconsider()
    return node


@kopf.on.startup()
def _configure(settings: kopf.OperatorSettings, **_: Any) -> None:
    settings.posting.enabled = False


@kopf.timer(GROUP, VERSION, PLURAL, interval=INTERVAL, backoff=INTERVAL)
async def keep(
    spec: kopf.Spec, status: kopf.Status, patch: kopf.Patch, memo: kopf.Memo, **_: Any
) -> None:
    """Reconcile Slurm's node and the object's status.

    Decisions stay in memory: the object may be older than the last status that was written.
    """
    entries = memo.setdefault("entries", Entries.of(status))
    node = await settle(memo.slurm, spec["alias"], spec.get("admissionChecks") or {}, entries)
    written, checks = status.get("admissionChecks") or {}, entries.checks()
    if changed := {
        pod: checks.get(pod)
        for pod in written.keys() | checks.keys()
        if written.get(pod) != checks.get(pod)
    }:
        patch.status["admissionChecks"] = changed
    used = {"Slurm": node.used, "Kubernetes": amounts.total(entries.held.values())}
    allocated = [{"type": kind, "allocated": amount.quantities()} for kind, amount in used.items()]
    if status.get("allocatedResources") != allocated:
        patch.status["allocatedResources"] = allocated


@asynccontextmanager
async def connected(where: str, version: str, token: str) -> AsyncIterator[Slurmrestd]:
    """Connect to a slurmrestd, a URL or the path of a socket, as the user of a token."""
    is_url = "://" in where
    async with httpx2.AsyncClient(
        transport=None if is_url else httpx2.AsyncHTTPTransport(uds=where),
        base_url=where if is_url else "http://slurm",
        headers={"X-SLURM-USER-TOKEN": token},
        timeout=30,
    ) as client:
        yield Slurmrestd(client, version)


async def run(where: str, version: str, token: str) -> None:
    """Run the operator until a signal arrives."""
    async with connected(where, version, token) as slurm:
        await kopf.operator(clusterwide=True, standalone=True, memo=kopf.Memo(slurm=slurm))


if __name__ == "__main__":
    # Otherwise kopf's messages about failed handlers would be lost.
    logging.basicConfig(level=logging.WARNING, format="[%(asctime)s] %(levelname)s: %(message)s")
    asyncio.run(run(sys.argv[1], sys.argv[2], os.environ["SLURM_JWT"]))
