"""The operator: Slurm offers what pods leave of a node, and pods get what jobs leave of it.

    python -m harness.kubernetes.operator --namespace NAME --tokens DIRECTORY [--slurmrestd URL]

It finds the Kubernetes API as kubectl does, or as the service account of its pod.

The ledger has an object of kind GenericNode for each Slurm node. A scheduler of pods writes a pod's
request into its spec (`admissionChecks`), places the pod once the status says `Ready` for it, and
removes the request when the pod is gone. Only the operator writes the status, and it cuts what pods
hold from the gres of the Slurm node.

One operator keeps the ledger of several clusters. It reads a cluster's token before each request,
so a token that is about to expire can be replaced while the operator runs.

If the operator is killed, Slurm may have too little left, but never too much: the operator cuts
before it promises, and gives back after the pod is gone. When it starts, it reads from the status
what was promised. slurmctld forgets the cut whenever it starts, but its nodes drain until the
operator has cut again.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Protocol

import httpx2
import kopf

from harness.cluster import node_state
from harness.cluster.node_state import RESUMED
from harness.errors import ClusterError
from harness.kubernetes import amounts
from harness.kubernetes.amounts import Amount
from harness.kubernetes.ledger_entries import CLUSTER_NAME, GROUP, PLURAL, VERSION, Entries
from harness.scenario import gpus_of, gres_count
from harness.slurm_options import LEDGER_GRES

# Seconds between two polls of a node.
INTERVAL = 0.5
# Where a cluster's slurmrestd is: a Service in the operator's own namespace.
SLURMRESTD = "http://{cluster}-slurmrestd:6820"
_CLUSTER_NAME = re.compile(CLUSTER_NAME)
_API_PATH = re.compile(r"/slurm/v(\d+)\.(\d+)\.(\d+)/")
# The states of a job that has nodes.
_WITH_NODES = {"RUNNING", "SUSPENDED", "COMPLETING"}
# The sockets or devices of a gres, as in "(S:0)" and "(IDX:0,2)".
_GRES_DETAILS = re.compile(r"\([^)]*\)")
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

    async def resume(self, node: SharedNode, amount: Amount) -> None:
        """Let a node take jobs, and limit what Slurm offers of it, in a single step."""

    async def forget_reason(self, node: SharedNode) -> None:
        """Clear the reason of a node that was resumed."""

    async def reconsider(self) -> None:
        """Release the jobs that Slurm has held because no node had enough left."""


class Slurmrestd:
    """Slurm's REST API; ClusterError if it refuses a request, or accepts it only in part.

    Use the newest version that it serves. `token` is the file with SlurmUser's token.
    """

    def __init__(self, client: httpx2.AsyncClient, token: Path) -> None:
        self._client = client
        self._token = token
        self._version = ""

    async def node(self, name: str) -> SharedNode:
        """Return a node."""
        return parse_node((await self._ask("GET", f"node/{name}"))["nodes"][0])

    async def taken(self, node: SharedNode) -> Amount:
        """Return what jobs use of a node, from their own records."""
        return parse_jobs(await self._jobs(), node.name)

    async def offer(self, node: SharedNode, amount: Amount) -> None:
        """Limit what Slurm offers of a node."""
        await self._ask("POST", f"node/{node.name}", gres=_gres(node, amount))

    async def reconfigure(self) -> None:
        """Make slurmctld reread its configuration: all nodes register and wait for the operator."""
        await self._ask("GET", "reconfigure/")

    async def resume(self, node: SharedNode, amount: Amount) -> None:
        """Let a node take jobs, and limit what Slurm offers of it, in a single step.

        Otherwise slurmctld might forget an earlier limit just before: update_node() in node_mgr.c
        applies both while it holds its lock.
        """
        changes = {"gres": _gres(node, amount), "state": ["RESUME"]}
        await self._ask("POST", f"node/{node.name}", **changes)

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
        if not self._version:
            document = await self._request("GET", "/openapi/v3")
            versions = filter(None, map(_API_PATH.match, document.get("paths", ())))
            newest = max((tuple(map(int, version.groups())) for version in versions), default=None)
            if not newest:
                raise ClusterError("slurmrestd serves no version of /slurm")
            self._version = "v{}.{}.{}".format(*newest)
        return await self._request(method, f"/slurm/{self._version}/{what}", **changes)

    async def _request(self, method: str, path: str, **changes: Any) -> dict[str, Any]:
        try:
            token = self._token.read_text().strip()
            answer = await self._client.request(
                method, path, json=changes or None, headers={"X-SLURM-USER-TOKEN": token}
            )
        except OSError as error:
            raise ClusterError(f"there is no token: {error}") from error
        except httpx2.TransportError as error:
            raise ClusterError(f"slurmrestd does not answer {method} {path}: {error!r}") from error
        if answer.status_code == HTTPStatus.NOT_FOUND:  # after an upgrade
            self._version = ""
        is_json = "json" in answer.headers.get("content-type", "")
        content: dict[str, Any] = answer.json() if is_json and answer.content else {}
        # slurmrestd ignores unknown fields with a warning; it also warns if there is no job.
        ignored = changes and content.get("warnings")
        if answer.status_code != HTTPStatus.OK or content.get("errors") or ignored:
            raise ClusterError(f"{method} {path} {changes}: {answer.status_code} {answer.text}")
        return content


class Clusters:
    """The slurmrestd of each cluster.

    `where` is its URL or the path of its socket, with {cluster} in place of the cluster's name;
    `tokens` is a directory with a file for each cluster.
    """

    def __init__(self, where: str, tokens: Path) -> None:
        self._where = where
        self._tokens = tokens
        self._connected: dict[str, Slurmrestd] = {}
        self._clients = AsyncExitStack()

    async def slurmrestd(self, cluster: str) -> Slurmrestd:
        """Return the slurmrestd of a cluster; ClusterError for what cannot be its name."""
        if not _CLUSTER_NAME.fullmatch(cluster):
            raise ClusterError(f"{cluster!r} is not the name of a cluster")
        if cluster not in self._connected:
            where = self._where.format(cluster=cluster)
            is_url = "://" in where
            client = httpx2.AsyncClient(
                transport=None if is_url else httpx2.AsyncHTTPTransport(uds=where),
                base_url=where if is_url else "http://slurm",
                timeout=30,
            )
            await self._clients.enter_async_context(client)
            self._connected[cluster] = Slurmrestd(client, self._tokens / cluster)
        return self._connected[cluster]

    async def __aenter__(self) -> Clusters:
        """Connections are made when they are needed."""
        return self

    async def __aexit__(self, *error: object) -> None:
        """Close all connections."""
        await self._clients.aclose()


def _gres(node: SharedNode, amount: Amount) -> str:
    """Return the gres of a node that offers this amount."""
    sizes = [amount.cpus, amount.memory, amount.gpus]
    ledger = zip(LEDGER_GRES, sizes if node.whole.gpus else sizes[:-1], strict=False)
    return ",".join((*node.other_gres, *(f"{name}:{size}" for name, size in ledger)))


def parse_node(facts: Mapping[str, Any]) -> SharedNode:
    """Parse a node from slurmrestd."""
    gres = _entries(facts["gres"])
    waits = node_state.waits_for_operator("+".join(facts["state"]), facts["reason"])
    return SharedNode(
        name=facts["name"],
        whole=amounts.of_slurm(facts["cpus"], facts["real_memory"], gpus_of(gres)),
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
    used = []
    for job in jobs:
        if _WITH_NODES & {*job["job_state"]}:
            parts = job["job_resources"]["nodes"]["allocation"]
            # For each node, such as "gpu:a100:1(IDX:0),k8scpu:2"; none if the job has no gres.
            gres = job["gres_detail"] or [""] * len(parts)
            used += [
                amounts.of_slurm(
                    part["cpus"]["count"],
                    part["memory"]["allocated"],
                    gpus_of(_entries(one)),
                )
                for part, one in zip(parts, gres, strict=True)
                if part["name"] == name
            ]
    return amounts.total(used)


def _sizes(gres: str) -> Amount:
    """Return the ledger's part of a gres; slurmctld writes multiples of 1024 as 250K."""
    sizes = {one.partition(":")[0]: gres_count(one) for one in _entries(gres)}
    return amounts.of_slurm(*(sizes.get(name, 0) for name in LEDGER_GRES))


def _entries(gres: str) -> list[str]:
    """Return the entries of a gres without their sockets and devices."""
    return [entry for entry in _GRES_DETAILS.sub("", gres).split(",") if entry]


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
        await slurm.resume(node, amounts.left_to_slurm(node.whole, entries.held.values()))
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
    settings.scanning.disabled = True  # it may not list namespaces and definitions


@kopf.timer(GROUP, VERSION, PLURAL, interval=INTERVAL, backoff=INTERVAL)
async def keep(
    spec: kopf.Spec, status: kopf.Status, patch: kopf.Patch, memo: kopf.Memo, **_: Any
) -> None:
    """Reconcile Slurm's node and the object's status.

    Decisions stay in memory: the object may be older than the last status that was written.
    """
    entries = memo.setdefault("entries", Entries.of(status))
    slurm = await memo.clusters.slurmrestd(spec["cluster"])
    node = await settle(slurm, spec["alias"], spec.get("admissionChecks") or {}, entries)
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


async def run(namespace: str, tokens: Path, where: str, parent: int | None) -> None:
    """Run the operator for the ledger in a namespace until a signal arrives.

    If `parent` is the process that has started it, it also ends with this process.
    """
    ended = asyncio.Event()

    async def watch() -> None:
        while os.getppid() == parent:
            await asyncio.sleep(1)
        ended.set()

    async with Clusters(where, tokens) as clusters, asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(watch()) if parent else None
        await kopf.operator(
            namespaces=[namespace],
            standalone=True,
            memo=kopf.Memo(clusters=clusters),
            stop_flag=ended,
        )
        if watching:
            watching.cancel()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m harness.kubernetes.operator")
    parser.add_argument("--namespace", required=True, help="the namespace of the GenericNodes")
    parser.add_argument(
        "--tokens",
        required=True,
        type=Path,
        help="a directory with SlurmUser's token for each cluster, in a file of the cluster's name",
    )
    parser.add_argument(
        "--slurmrestd",
        default=SLURMRESTD,
        help="the URL, or the path of the socket, of a cluster's slurmrestd (default: %(default)s)",
    )
    parser.add_argument("--parent", type=int, help="end when this parent process has ended")
    return parser.parse_args()


if __name__ == "__main__":
    # Otherwise kopf's messages about failed handlers would be lost.
    logging.basicConfig(level=logging.WARNING, format="[%(asctime)s] %(levelname)s: %(message)s")
    arguments = _arguments()
    asyncio.run(run(arguments.namespace, arguments.tokens, arguments.slurmrestd, arguments.parent))
