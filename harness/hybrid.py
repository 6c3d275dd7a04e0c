"""Slurm clusters whose nodes take pods, too: their copilots, and the Kubernetes API in which the ledger is kept."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2

from harness import options, releases
from harness.errors import CannotJudge
from harness.ledger import GROUP, PLURAL, VERSION, waits_for_copilot
from harness.plan import Plan
from harness.rundir import RunDir
from harness.slurm import SlurmCluster
from harness.ssh import Ssh
from harness.wait import wait_until

KUBERNETES = "emulated Kubernetes API, real Slurm"
_PACKAGES = ("kopf", "kmock")


class Hybrid:
    """A live cluster shared with Kubernetes, and its ledger as whoever schedules pods sees it.

    `slurmrestd` is what its copilot connects to: the path of a socket, the API's version, a token.
    """

    def __init__(
        self,
        cluster: SlurmCluster,
        kubernetes: httpx2.Client,
        kubeconfig: Path,
        slurmrestd: tuple[str, str, str],
        log: Path,
    ) -> None:
        self.cluster = cluster
        self.slurmrestd = slurmrestd
        self._kubernetes = kubernetes
        self._kubeconfig, self._log = kubeconfig, log
        self._process: subprocess.Popen[bytes] | None = None

    def start_copilot(self) -> None:
        """Start the copilot."""
        socket, version, token = self.slurmrestd
        command = [sys.executable, "-m", "harness.copilot", socket, version]
        environment = {**os.environ, "KUBECONFIG": str(self._kubeconfig), "SLURM_JWT": token}
        with self._log.open("a") as log:
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)

    def kill_copilot(self) -> None:
        """Kill the copilot, wherever it is; a dead one stays dead."""
        if self._process:
            self._process.kill()
            self._process.wait()

    def page(self, node: str) -> dict[str, Any]:
        """Return the ledger's object of a node."""
        return self._ask("GET", node)

    def ask_for(self, node: str, pod: str, quantities: Mapping[str, str]) -> None:
        """Ask whether a pod may have so much of a node."""
        self._ask("PATCH", node, {"spec": {"admissionChecks": {pod: dict(quantities)}}})

    def answers(self, node: str) -> dict[str, str]:
        """Return what the copilot has said of pods on a node: Ready or Refused."""
        checks = self.page(node).get("status", {}).get("admissionChecks", {})
        return {pod: check["state"] for pod, check in checks.items()}

    def withdraw(self, node: str, pod: str) -> None:
        """Say that a pod is gone from a node, or does not want it any more."""
        self._ask("PATCH", node, {"spec": {"admissionChecks": {pod: None}}})

    def _ask(self, method: str, node: str, patch: Mapping[str, Any] | None = None) -> dict[str, Any]:
        answer = self._kubernetes.request(
            method,
            f"/apis/{GROUP}/{VERSION}/{PLURAL}/{node}",
            content=json.dumps(patch) if patch else None,
            headers={"Content-Type": "application/merge-patch+json"},
        )
        if answer.status_code != 200:
            raise CannotJudge(f"Kubernetes API: {method} {node}: {answer.status_code} {answer.text}")
        told: dict[str, Any] = answer.json()
        return told


@contextmanager
def copilots(run: RunDir, plan: Plan, clusters: Mapping[str, SlurmCluster], ssh: Ssh) -> Iterator[dict[str, Hybrid]]:
    """Have a copilot for each cluster that is shared with Kubernetes; its nodes take jobs from then on.

    CannotJudge where a package for it is missing.
    """
    shared = [name for name, cluster in plan.scenario.clusters.items() if cluster.kubernetes]
    if shared and (missing := [name for name in _PACKAGES if not importlib.util.find_spec(name)]):
        raise CannotJudge(f"no copilot without {', '.join(missing)}", hint="pip install 'slurm-harness[hybrid]'")
    with ExitStack() as stack:
        yield {name: stack.enter_context(_hybrid(run, plan, clusters[name], ssh)) for name in shared}


@contextmanager
def _hybrid(run: RunDir, plan: Plan, cluster: SlurmCluster, ssh: Ssh) -> Iterator[Hybrid]:
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
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        kubeconfig = directory / "kubeconfig"
        emulator = [sys.executable, "-m", "harness.emulator", str(kubeconfig), *scenario.node_names()]
        api = stack.enter_context(subprocess.Popen(emulator, start_new_session=True))
        stack.callback(api.kill)
        wait_until(
            lambda: (api.poll() is None, kubeconfig.exists()),
            all,
            what="emulated Kubernetes API (running, answers)",
            timeout=30,
            hopeless=lambda seen: not seen[0],
        )
        server = json.loads(kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
        hybrid = Hybrid(
            cluster,
            stack.enter_context(httpx2.Client(base_url=server, timeout=30)),
            kubeconfig,
            (str(socket), max(known.plugins["data_parser"]), token.strip().removeprefix("SLURM_JWT=")),
            run.path / "logs" / f"copilot-{cluster.name}.log",
        )
        stack.callback(hybrid.kill_copilot)
        hybrid.start_copilot()
        run.event("copilot", cluster=cluster.name, kubernetes=KUBERNETES)
        wait_until(
            lambda: [node.name for node in cluster.nodes() if waits_for_copilot(node.state, node.reason)],
            lambda waiting: not waiting,
            what=f"copilot has the nodes of {cluster.name} take jobs",
            timeout=60,
        )
        yield hybrid
