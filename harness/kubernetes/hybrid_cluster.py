"""Slurm clusters shared with Kubernetes: their operators, and the API that stores the ledger."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import extras, slurm_options
from harness.cluster.node_state import waits_for_operator
from harness.cluster.slurm import SlurmCluster
from harness.kubernetes import manifests
from harness.kubernetes.ledger_entries import NAMESPACE
from harness.plan import Plan
from harness.rundir import RunDir
from harness.ssh import Ssh
from harness.wait import wait_until

if TYPE_CHECKING:
    from harness.kubernetes.apiserver import KubernetesApi


class Operator:
    """The operator of all clusters that are shared with Kubernetes.

    In `directory`, it finds the socket and the token of each cluster's slurmrestd.
    """

    def __init__(self, kubeconfig: Path, directory: Path, log: Path) -> None:
        self.tokens = directory / "tokens"
        self._sockets = directory / "sockets"
        self._kubeconfig = kubeconfig
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def slurmrestd(self) -> str:
        """The path of a slurmrestd's socket, with {cluster} in place of the cluster's name."""
        return f"{self._sockets}/{{cluster}}"

    def add(self, cluster: str, socket: Path, token: str) -> None:
        """Connect it to the slurmrestd of a cluster."""
        self._sockets.mkdir(exist_ok=True)
        self.tokens.mkdir(exist_ok=True, mode=0o700)
        (self._sockets / cluster).symlink_to(socket)
        self.replace_token(cluster, token)

    def replace_token(self, cluster: str, token: str) -> None:
        """Replace the token for a cluster, as Kubernetes does when its Secret changes."""
        new = self.tokens / f".{cluster}"
        new.touch(mode=0o600)
        new.write_text(token)
        new.replace(self.tokens / cluster)

    def start(self) -> None:
        """Start the operator."""
        command = [sys.executable, "-P", "-m", "harness.kubernetes.operator"]
        command += ["--namespace", NAMESPACE, "--tokens", str(self.tokens)]
        command += ["--parent", str(os.getpid())]
        environment = {**os.environ, "KUBECONFIG": str(self._kubeconfig)}
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [*command, "--slurmrestd", self.slurmrestd],
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        """Kill the operator; do nothing if it has already ended."""
        if self._process:
            self._process.kill()
            self._process.wait()


class HybridCluster:
    """A running cluster shared with Kubernetes, and its ledger as a scheduler of pods sees it."""

    def __init__(
        self, cluster: SlurmCluster, kubernetes: KubernetesApi, operator: Operator
    ) -> None:
        self.cluster = cluster
        self.operator = operator
        self._kubernetes = kubernetes

    def ledger_object(self, node: str) -> dict[str, Any]:
        """Return the ledger's object of a node."""
        return self._kubernetes.ledger_object(node)

    def request_for(self, node: str, pod: str, quantities: Mapping[str, str]) -> None:
        """Request an amount of a node for a pod."""
        self._kubernetes.change(node, {"spec": {"admissionChecks": {pod: dict(quantities)}}})

    def answers(self, node: str) -> dict[str, str]:
        """Return the operator's answers for the pods on a node: Ready or Refused."""
        return {pod: check["state"] for pod, check in self._checks(node).items()}

    def reason(self, node: str, pod: str) -> str:
        """Return why the operator has refused a pod."""
        return str(self._checks(node).get(pod, {}).get("message", ""))

    def _checks(self, node: str) -> dict[str, dict[str, Any]]:
        status: dict[str, Any] = self.ledger_object(node).get("status", {})
        return status.get("admissionChecks") or {}

    def withdraw(self, node: str, pod: str) -> None:
        """Remove a pod's request from a node."""
        self._kubernetes.change(node, {"spec": {"admissionChecks": {pod: None}}})


def find_packages(plan: Plan) -> None:
    """CannotVerify if a package that a plan's operators need is missing."""
    if plan.scenario.shared_clusters():
        extras.need("hybrid", "a cluster shared with Kubernetes")


def of_failure(run: RunDir, since: float) -> list[str]:
    """Return the last line that the operator logged, if it was logged after `since`."""
    log = _log(run)
    if not log.exists() or log.stat().st_mtime <= since:
        return []
    return [f"operator: {line}" for line in log.read_text().splitlines()[-1:]]


def _log(run: RunDir) -> Path:
    return run.path / "logs" / "operator.log"


@contextmanager
def with_operator(
    run: RunDir, plan: Plan, clusters: Mapping[str, SlurmCluster], ssh: Ssh
) -> Iterator[dict[str, HybridCluster]]:
    """Run an operator for the clusters that are shared with Kubernetes; their nodes then take jobs.

    CannotVerify if a package for this is missing.
    """
    find_packages(plan)
    shared = plan.scenario.shared_clusters()
    if not shared:
        yield {}
        return
    from harness.kubernetes import apiserver  # needs packages that other scenarios do not

    logs = run.path / "logs"
    logs.mkdir(exist_ok=True)
    with ExitStack() as stack:
        files = manifests.manifests(plan)
        api = stack.enter_context(apiserver.with_ledger(files, logs / "kubernetes.log"))
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        operator = Operator(api.kubeconfig, directory, _log(run))
        for name, rest in shared.items():
            host = plan.scenario.clusters[name].rest_host()
            socket = stack.enter_context(ssh.forwarded(host, f"{host}:{rest.port}"))
            operator.add(name, socket, new_token(plan, clusters[name]))
        stack.callback(operator.kill)
        operator.start()
        run.event("operator", kubernetes=api.name)
        wait_until(
            lambda: [
                node.name
                for name in shared
                for node in clusters[name].nodes()
                if waits_for_operator(node.state, node.reason)
            ],
            lambda waiting: not waiting,
            what="the operator to let the nodes that Kubernetes shares take jobs",
            timeout=180,
        )
        yield {name: HybridCluster(clusters[name], api, operator) for name in shared}


def new_token(plan: Plan, cluster: SlurmCluster) -> str:
    """Return a new token of a cluster's SlurmUser that is valid for a day."""
    user = slurm_options.get(plan.slurm_conf(cluster.name), "SlurmUser") or "root"
    return cluster.token(user, 86400)
