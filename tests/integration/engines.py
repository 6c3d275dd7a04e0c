"""Docker engines as if on separate machines: one network namespace each, joined by a switch."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import docker
from docker.errors import APIError, DockerException

from harness import releases
from harness.providers import images
from harness.providers.docker import engine
from harness.wait import wait_until

# Seconds in which an engine must start, answer a request or end: 5 s on an idle machine. An engine
# that starts accepts connections before it answers.
_PATIENCE = 180


class Engines:
    """Engines "e1", "e2", ... in one Swarm that the first manages.

    `config` has Docker contexts with these names.
    """

    def __init__(self, root: Path, count: int) -> None:
        self.root = root
        self.config = root / "docker"
        self.names = [f"e{number}" for number in range(1, count + 1)]
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._clients: dict[str, docker.DockerClient] = {}

    def client(self, name: str) -> docker.DockerClient:
        """Return a client of an engine."""
        if name not in self._clients:
            self._clients[name] = docker.DockerClient(self.host(name), timeout=_PATIENCE)
        return self._clients[name]

    def host(self, name: str) -> str:
        """Return the value of DOCKER_HOST for an engine."""
        return f"unix://{self._directory(name) / 'sock'}"

    def begin(self) -> None:
        """Start all, and join them."""
        self.config.mkdir()
        self._ip("netns", "add", self._namespace("switch"))
        self._ip("-n", self._namespace("switch"), "link", "add", "switch", "type", "bridge")
        self._ip("-n", self._namespace("switch"), "link", "set", "switch", "up")
        for number, name in enumerate(self.names, 1):
            self._directory(name).mkdir()
            # Separate machines have disks of their own: a Swarm does not attach containers to its
            # networks while the disk is busy with the images of other engines.
            swarm, data = self._directory(name) / "swarm", self._directory(name) / "data"
            swarm.mkdir()
            run("mount", "-t", "tmpfs", "-o", "size=64m,mode=0700", "swarm", str(swarm))
            data.mkdir()
            (data / "swarm").symlink_to(swarm)
            self._plug(name, f"{self._address(number)}/24")
            self.start(name)
            endpoint = f"host={self.host(name)}"
            run(
                "docker",
                "--config",
                str(self.config),
                "context",
                "create",
                name,
                "--docker",
                endpoint,
            )
        first, *others = self.names
        address = self._address(1)
        self.client(first).swarm.init(advertise_addr=address)
        token = self.client(first).swarm.attrs["JoinTokens"]["Worker"]
        for number, name in enumerate(others, 2):
            self._join(name, f"{address}:2377", token, self._address(number))

    def _join(self, name: str, manager: str, token: str, address: str) -> None:
        """Join an engine to the swarm, which goes on in the background after 20 s."""
        client = self.client(name)
        try:
            client.swarm.join([manager], token, advertise_addr=address)
        except APIError as error:
            if "Timeout was reached" not in str(error):
                raise
        wait_until(
            lambda: str(client.info()["Swarm"]["LocalNodeState"]),
            lambda state: state == "active",
            what=f"{name} to join the swarm",
            timeout=300,
        )

    def start(self, name: str) -> None:
        """Start an engine, and wait until it answers."""
        directory = self._directory(name)
        with (directory / "log").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                [
                    *("nsenter", f"--net=/run/netns/{self._namespace(name)}"),
                    *(
                        "dockerd",
                        "--host",
                        f"unix://{directory / 'sock'}",
                        "--pidfile",
                        str(directory / "pid"),
                    ),
                    *(
                        "--data-root",
                        str(directory / "data"),
                        "--exec-root",
                        str(directory / "exec"),
                    ),
                ],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        # Connect only now, because docker's library leaks a socket that it could not connect.
        wait_until(
            (directory / "sock").exists,
            bool,
            what=f"engine {name} to start",
            timeout=_PATIENCE,
            give_up=lambda _: self._daemons[name].poll() is not None,
            show=lambda _: (directory / "log").read_text()[-500:],
        )
        self.client(name).ping()

    def kill(self, name: str) -> None:
        """Kill an engine and everything that it runs, as a power failure would."""
        inits = [
            container.attrs["State"]["Pid"] for container in self.client(name).containers.list()
        ]
        self._daemons[name].kill()
        self._daemons[name].wait()
        self._kill_helpers(name)
        for init in inits:
            os.kill(init, signal.SIGKILL)
        # What is in /run of a machine: an engine does not start if another process has, by now, the
        # process id in its file.
        for file in ("sock", "pid", "exec/containerd/containerd.pid"):
            (self._directory(name) / file).unlink()

    def _kill_helpers(self, name: str) -> None:
        """Kill an engine's helper processes, which have its directory on their command lines."""
        run("pkill", "-KILL", "--full", str(self._directory(name)), check=False)

    def link(self, name: str, state: str) -> None:
        """Set the link between an engine and the switch "up" or "down"."""
        self._ip("-n", self._namespace("switch"), "link", "set", name, state)

    def end(self) -> None:
        """Stop all engines, and remove everything that is left of them."""
        for name, daemon in self._daemons.items():
            if daemon.poll() is None:
                with suppress(DockerException):
                    self.client(name).swarm.leave(force=True)
                daemon.terminate()
                daemon.wait(_PATIENCE)
            self._kill_helpers(name)
        for client in self._clients.values():
            client.close()
        for mount in reversed(Path("/proc/self/mounts").read_text().splitlines()):
            if (at := mount.split()[1]).startswith(str(self.root)):
                run("umount", "--lazy", at)
        for name in ("switch", *self.names):
            run("ip", "netns", "delete", self._namespace(name), check=False)
        shutil.rmtree(self.root, ignore_errors=True)

    def _directory(self, name: str) -> Path:
        return self.root / name

    def _namespace(self, name: str) -> str:
        return f"{self.root.name}-{name}"

    def _address(self, number: int) -> str:
        return f"192.0.2.{number}"

    def _plug(self, name: str, address: str) -> None:
        space = self._namespace(name)
        self._ip("netns", "add", space)
        peer = ("peer", "name", "eth0", "netns", space)
        self._ip("-n", self._namespace("switch"), "link", "add", name, "type", "veth", *peer)
        self._ip("-n", self._namespace("switch"), "link", "set", name, "master", "switch", "up")
        self._ip("-n", space, "address", "add", address, "dev", "eth0")
        for device in ("lo", "eth0"):
            self._ip("-n", space, "link", "set", device, "up")

    def _ip(self, *words: str) -> None:
        run("ip", *words)


def run(*command: str, check: bool = True) -> None:
    """Run a command; a failure shows its errors."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 or not check, f"{' '.join(command)}\n{done.stderr}"


@contextmanager
def engines(count: int, release: str) -> Iterator[Engines]:
    """Start engines; the first has the image of a release from the user's own engine."""
    started = Engines(Path(tempfile.mkdtemp(prefix="engines")), count)
    try:
        started.begin()
        with closing(engine.connect()) as own:
            image = images.ensure(own, releases.get(release), print)
            images.copy(image, own, started.client(started.names[0]), print)
        yield started
    finally:
        started.end()
