"""For tests of Slurm clients: Python programs in the cluster, the REST API on this machine."""

from __future__ import annotations

import re
import shutil
import socket
import socketserver
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from threading import Thread

import httpx2
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from harness.cluster.slurm import SlurmCluster
from harness.errors import UsageError
from harness.plan import Plan
from harness.ssh import Result, Ssh
from harness.testing import Slurm


class UnsuitablePython(UsageError):
    """A package does not support the host's Python."""


def run_client(
    slurm: Slurm, program: Path, packages: tuple[str, ...], python: str, timeout: float
) -> Result:
    """Run a Python program with its packages in the user's home on the controller's host.

    It gets `timeout` seconds. `python` is a version specifier, by default that of the packages:
    UnsuitablePython if the host's Python does not match. UsageError if a package is not installed
    here.
    """
    needed = sorted(_needed(packages))
    version = slurm.run(
        "python3", "-c", "import platform; print(platform.python_version())"
    ).stdout.strip()
    for name in needed:
        supported = (
            (python if name in packages else "")
            or distribution(name).metadata["Requires-Python"]
            or ""
        )
        if version not in SpecifierSet(supported):
            raise UnsuitablePython(
                f"{name} requires Python {supported}, {slurm.controller} has {version}"
            )
    with tempfile.TemporaryDirectory() as directory:
        for name in needed:
            _copy_package(name, Path(directory))
        slurm.put(Path(directory), "packages")
    slurm.put(program, program.name)
    return slurm.run("env", "PYTHONPATH=packages", "python3", program.name, timeout=timeout)


def _needed(packages: tuple[str, ...]) -> set[str]:
    """Return the names of packages and of their dependencies without extras."""
    names: set[str] = set()
    left = [*packages]
    while left:
        if (name := left.pop()) in names:
            continue
        names.add(name)
        try:
            requirements = map(Requirement, distribution(name).requires or ())
        except PackageNotFoundError as error:
            raise UsageError(
                f"{name} is not installed", hint="run_client copies it from pytest's environment"
            ) from error
        left += [
            requirement.name
            for requirement in requirements
            if not requirement.marker or requirement.marker.evaluate({"extra": ""})
        ]
    return names


def _copy_package(name: str, directory: Path) -> None:
    for file in distribution(name).files or ():
        if ".." not in file.parts and "__pycache__" not in file.parts:
            (directory / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(Path(str(file.locate())), directory / file)


@dataclass(frozen=True, slots=True)
class Rest:
    """The REST API of a cluster, for a user.

    `url` leads to slurmrestd from this machine; `client` sends the user's token.
    """

    cluster: SlurmCluster = field(repr=False)
    user: str
    url: str
    client: httpx2.Client = field(repr=False)

    def token(self, user: str = "", lifespan: int = 3600) -> str:
        """Return a token that is valid for `lifespan` seconds, by default for the test's user."""
        return self.cluster.token(user or self.user, lifespan)

    def headers(self, user: str = "") -> dict[str, str]:
        """Return the headers that authenticate a user to slurmrestd, by default the test's."""
        return {"X-SLURM-USER-NAME": user or self.user, "X-SLURM-USER-TOKEN": self.token(user)}

    def versions(self, family: str = "slurm") -> list[str]:
        """Return the API versions of slurmctld ("slurm") or slurmdbd ("slurmdb"), oldest first."""
        answer = self.client.get("/openapi/v3").raise_for_status().json()
        matches = (re.match(rf"/{family}/(v[^/]+)/", path) for path in answer["paths"])
        return sorted({match[1] for match in matches if match})


@contextmanager
def rest(ssh: Ssh, plan: Plan, slurm: Slurm) -> Iterator[Rest]:
    """Connect to the REST API of the first cluster that has one; UsageError if no cluster has."""
    name, cluster = next(
        ((name, cluster) for name, cluster in plan.scenario.clusters.items() if cluster.rest),
        (None, None),
    )
    if name is None or cluster is None or cluster.rest is None:
        raise UsageError(
            f"no cluster of {plan.name} has a REST API", hint="add `rest: {}` to a cluster"
        )
    host = cluster.rest_host()
    with (
        ssh.forwarded(host, f"{host}:{cluster.rest.port}") as path,
        _listening(path) as port,
        httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as client,
    ):
        api = Rest(slurm.clusters[name], slurm.user, str(client.base_url).rstrip("/"), client)
        client.headers.update(api.headers())
        yield api


@contextmanager
def _listening(path: Path) -> Iterator[int]:
    """Forward a port of this machine's loopback interface to a Unix socket; yield the port."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.socket(socket.AF_UNIX) as far, suppress(OSError):
                far.connect(str(path))
                back = Thread(target=_copy, args=(far, self.request), daemon=True)
                back.start()
                _copy(self.request, far)
                back.join()

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        block_on_close = False  # a client may keep its connection open

    with Server(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
