"""Slurm clusters whose nodes take pods, too: their copilots, and the Kubernetes API in which the ledger is kept."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import options, releases
from harness.errors import CannotJudge
from harness.ledger import waits_for_copilot
from harness.plan import Plan
from harness.rundir import RunDir
from harness.slurm import SlurmCluster
from harness.ssh import Ssh
from harness.wait import wait_until

if TYPE_CHECKING:
    from harness.kubernetes_api import KubernetesApi

_PACKAGES = ("kopf", "kmock", "kubernetes")


class Hybrid:
    """A live cluster shared with Kubernetes, and its ledger as whoever schedules pods sees it.

    `slurmrestd` is what its copilot connects to: the path of a socket, the API's version, a token.
    """

    def __init__(
        self, cluster: SlurmCluster, kubernetes: KubernetesApi, slurmrestd: tuple[str, str, str], log: Path
    ) -> None:
        self.cluster = cluster
        self.slurmrestd = slurmrestd
        self._kubernetes = kubernetes
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start_copilot(self) -> None:
        """Start the copilot."""
        socket, version, token = self.slurmrestd
        command = [sys.executable, "-P", "-m", "harness.copilot", socket, version]
        environment = {**os.environ, "KUBECONFIG": str(self._kubernetes.kubeconfig), "SLURM_JWT": token}
        with self._log.open("a") as log:
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)

    def kill_copilot(self) -> None:
        """Kill the copilot, wherever it is; a dead one stays dead."""
        if self._process:
            self._process.kill()
            self._process.wait()

    def page(self, node: str) -> dict[str, Any]:
        """Return the ledger's object of a node."""
        return self._kubernetes.page(node)

    def ask_for(self, node: str, pod: str, quantities: Mapping[str, str]) -> None:
        """Ask whether a pod may have so much of a node."""
        self._kubernetes.change(node, {"spec": {"admissionChecks": {pod: dict(quantities)}}})

    def answers(self, node: str) -> dict[str, str]:
        """Return what the copilot has said of pods on a node: Ready or Refused."""
        checks = self.page(node).get("status", {}).get("admissionChecks", {})
        return {pod: check["state"] for pod, check in checks.items()}

    def withdraw(self, node: str, pod: str) -> None:
        """Say that a pod is gone from a node, or does not want it any more."""
        self._kubernetes.change(node, {"spec": {"admissionChecks": {pod: None}}})


def find_packages(plan: Plan) -> None:
    """CannotJudge where a package is missing that a plan's copilots need."""
    shared = any(cluster.kubernetes for cluster in plan.scenario.clusters.values())
    if shared and (missing := [name for name in _PACKAGES if not importlib.util.find_spec(name)]):
        raise CannotJudge(f"no copilot without {', '.join(missing)}", hint="pip install 'slurm-harness[hybrid]'")


@contextmanager
def copilots(run: RunDir, plan: Plan, clusters: Mapping[str, SlurmCluster], ssh: Ssh) -> Iterator[dict[str, Hybrid]]:
    """Have a copilot for each cluster that is shared with Kubernetes; its nodes take jobs from then on.

    CannotJudge where a package for it is missing.
    """
    find_packages(plan)
    shared = [name for name, cluster in plan.scenario.clusters.items() if cluster.kubernetes]
    with ExitStack() as stack:
        yield {name: stack.enter_context(_hybrid(run, plan, clusters[name], ssh)) for name in shared}


@contextmanager
def _hybrid(run: RunDir, plan: Plan, cluster: SlurmCluster, ssh: Ssh) -> Iterator[Hybrid]:
    from harness import kubernetes_api  # needs packages that other scenarios do not

    scenario = plan.scenario.clusters[cluster.name]
    known = releases.get(plan.releases()[cluster.name])
    rest = scenario.rest
    if rest is None:
        raise CannotJudge(f"{cluster.name} has no slurmrestd")
    host = rest.host or scenario.controller
    slurm_user = options.get(options.slurm_conf(plan.scenario, cluster.name, plan.offers), "SlurmUser") or "root"
    token = cluster.run("scontrol", "token", f"username={slurm_user}", "lifespan=86400").stdout
    with ExitStack() as stack:
        socket = stack.enter_context(ssh.forwarded(host, f"{host}:{rest.port}"))
        logs = run.path / "logs"
        logs.mkdir(exist_ok=True)
        api = stack.enter_context(
            kubernetes_api.with_ledger(scenario.node_names(), logs / f"kubernetes-{cluster.name}.log")
        )
        slurmrestd = (str(socket), max(known.plugins["data_parser"]), token.strip().removeprefix("SLURM_JWT="))
        hybrid = Hybrid(cluster, api, slurmrestd, logs / f"copilot-{cluster.name}.log")
        stack.callback(hybrid.kill_copilot)
        hybrid.start_copilot()
        run.event("copilot", cluster=cluster.name, kubernetes=api.name)
        wait_until(
            lambda: [node.name for node in cluster.nodes() if waits_for_copilot(node.state, node.reason)],
            lambda waiting: not waiting,
            what=f"the copilot to let the nodes of {cluster.name} take jobs",
            timeout=180,
        )
        yield hybrid
