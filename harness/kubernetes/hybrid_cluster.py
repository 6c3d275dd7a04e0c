"""Slurm clusters shared with Kubernetes: their operators, and the API that stores the ledger."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import extras, releases, slurm_options
from harness.cluster.node_state import waits_for_operator
from harness.cluster.slurm import SlurmCluster
from harness.errors import CannotVerify
from harness.plan import Plan
from harness.rundir import RunDir
from harness.ssh import Ssh
from harness.wait import wait_until

if TYPE_CHECKING:
    from harness.kubernetes.apiserver import KubernetesApi


class HybridCluster:
    """A running cluster shared with Kubernetes, and its ledger as a scheduler of pods sees it.

    `slurmrestd` is what its operator connects to: a socket's path, the API's version and a token.
    """

    def __init__(
        self,
        cluster: SlurmCluster,
        kubernetes: KubernetesApi,
        slurmrestd: tuple[str, str, str],
        log: Path,
    ) -> None:
        self.cluster = cluster
        self.slurmrestd = slurmrestd
        self._kubernetes = kubernetes
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start_operator(self) -> None:
        """Start the operator."""
        socket, version, token = self.slurmrestd
        command = [sys.executable, "-P", "-m", "harness.kubernetes.operator", socket, version]
        environment = {
            **os.environ,
            "KUBECONFIG": str(self._kubernetes.kubeconfig),
            "SLURM_JWT": token,
        }
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, start_new_session=True
            )

    def kill_operator(self) -> None:
        """Kill the operator; do nothing if it has already ended."""
        if self._process:
            self._process.kill()
            self._process.wait()

    def ledger_object(self, node: str) -> dict[str, Any]:
        """Return the ledger's object of a node."""
        return self._kubernetes.ledger_object(node)

    def request_for(self, node: str, pod: str, quantities: Mapping[str, str]) -> None:
        """Request an amount of a node for a pod."""
        self._kubernetes.change(node, {"spec": {"admissionChecks": {pod: dict(quantities)}}})

    def answers(self, node: str) -> dict[str, str]:
        """Return the operator's answers for the pods on a node: Ready or Refused."""
        checks = self.ledger_object(node).get("status", {}).get("admissionChecks", {})
        return {pod: check["state"] for pod, check in checks.items()}

    def withdraw(self, node: str, pod: str) -> None:
        """Remove a pod's request from a node."""
        self._kubernetes.change(node, {"spec": {"admissionChecks": {pod: None}}})


def find_packages(plan: Plan) -> None:
    """CannotVerify if a package that a plan's operators need is missing."""
    shared = any(cluster.kubernetes for cluster in plan.scenario.clusters.values())
    if shared:
        extras.need("hybrid", "a cluster shared with Kubernetes")


def of_failure(run: RunDir, plan: Plan, since: float) -> list[str]:
    """Return the last line that each cluster's operator logged, if it was logged after `since`."""
    lines = []
    for name, cluster in plan.scenario.clusters.items():
        log = _log(run, name)
        if cluster.kubernetes and log.exists() and log.stat().st_mtime > since:
            lines += [f"operator of {name}: {line}" for line in log.read_text().splitlines()[-1:]]
    return lines


def _log(run: RunDir, cluster: str) -> Path:
    return run.path / "logs" / f"operator-{cluster}.log"


@contextmanager
def operators(
    run: RunDir, plan: Plan, clusters: Mapping[str, SlurmCluster], ssh: Ssh
) -> Iterator[dict[str, HybridCluster]]:
    """Run an operator for each cluster that is shared with Kubernetes; its nodes then take jobs.

    CannotVerify if a package for this is missing.
    """
    find_packages(plan)
    shared = [name for name, cluster in plan.scenario.clusters.items() if cluster.kubernetes]
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(_with_operator(run, plan, clusters[name], ssh))
            for name in shared
        }


@contextmanager
def _with_operator(
    run: RunDir, plan: Plan, cluster: SlurmCluster, ssh: Ssh
) -> Iterator[HybridCluster]:
    from harness.kubernetes import apiserver  # needs packages that other scenarios do not

    scenario = plan.scenario.clusters[cluster.name]
    known = releases.get(plan.releases()[cluster.name])
    rest = scenario.rest
    if rest is None:
        raise CannotVerify(f"{cluster.name} has no slurmrestd")
    host = rest.host or scenario.controller
    slurm_user = slurm_options.get(plan.slurm_conf(cluster.name), "SlurmUser") or "root"
    token = cluster.run("scontrol", "token", f"username={slurm_user}", "lifespan=86400").stdout
    with ExitStack() as stack:
        socket = stack.enter_context(ssh.forwarded(host, f"{host}:{rest.port}"))
        logs = run.path / "logs"
        logs.mkdir(exist_ok=True)
        api = stack.enter_context(
            apiserver.with_ledger(scenario.node_names(), logs / f"kubernetes-{cluster.name}.log")
        )
        slurmrestd = (
            str(socket),
            max(known.plugins["data_parser"]),
            token.strip().removeprefix("SLURM_JWT="),
        )
        hybrid = HybridCluster(cluster, api, slurmrestd, _log(run, cluster.name))
        stack.callback(hybrid.kill_operator)
        hybrid.start_operator()
        run.event("operator", cluster=cluster.name, kubernetes=api.name)
        wait_until(
            lambda: [
                node.name for node in cluster.nodes() if waits_for_operator(node.state, node.reason)
            ],
            lambda waiting: not waiting,
            what=f"the operator to let the nodes of {cluster.name} take jobs",
            timeout=180,
        )
        yield hybrid
