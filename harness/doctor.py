"""Is this machine fit for the Docker provider? Each finding names the command that mends it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.errors import EngineError, HarnessError, WaitTimeout
from harness.providers import engine
from harness.wait import wait_until

# An image takes about 0.75 GB; a federation's hosts and logs about as much again.
_DISK_GB = 4
_MEMORY_GB = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. `mend` is a shell command that puts it right; `fatal`: nothing works without it."""

    subject: str
    ok: bool
    said: str
    mend: str | None = None
    fatal: bool = False


def examine() -> list[Finding]:
    """Look at everything; nothing is changed."""
    return list(_findings())


def mend(say: Callable[[str], None]) -> list[Finding]:
    """Run the commands that put right what keeps everything from working, as root on Debian; return what is left."""
    for finding in examine():
        if finding.ok or not finding.fatal or not finding.mend:
            continue
        if os.geteuid() != 0 or not shutil.which("apt-get"):
            continue
        say(f"{finding.subject}: {finding.said}")
        say(f"$ {finding.mend}")
        done = subprocess.run(["sh", "-c", finding.mend], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise HarnessError(f"{finding.mend}  (exit {done.returncode})\n{done.stderr.strip()}")
        if finding.subject == "engine":
            try:
                wait_until(engine.connect, bool, what="the engine answers", timeout=60, ignore=(EngineError,))
            except WaitTimeout as error:
                raise EngineError(
                    error.message, hint="/var/log/dockerd.log or `journalctl -u docker` says why"
                ) from error
    return [finding for finding in examine() if not finding.ok]


def _findings() -> Iterator[Finding]:
    yield _engine()
    for program in ("ssh", "ssh-keygen"):
        there = shutil.which(program)
        yield Finding(program, bool(there), there or "not found", _install("openssh-client"), fatal=True)
    yield _base_image()
    yield _disk()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    yield Finding("memory", memory >= _MEMORY_GB, f"{memory:.1f} GB; a federation of 9 hosts takes about 1 GB")
    instances = Path("/proc/sys/fs/inotify/max_user_instances")
    if instances.exists():
        count = int(instances.read_text())
        said = f"fs.inotify.max_user_instances={count}; a host takes 7: its systemd and D-Bus"
        yield Finding("inotify", count >= 128, said, "sysctl -w fs.inotify.max_user_instances=1024")


def _engine() -> Finding:
    try:
        version = engine.connect().version()["Version"]
    except EngineError as error:
        return Finding("engine", False, error.message, _engine_command(), fatal=True)
    return Finding("engine", True, f"Docker engine {version}")


def _engine_command() -> str | None:
    """Return how an engine of this very machine is started; None where the user chose another one."""
    if "DOCKER_HOST" in os.environ or sys.platform != "linux":
        return None
    # mmdebstrap makes images where no registry answers; docker.io brings dockerd.
    packages = {"dockerd": "docker.io", "mmdebstrap": "mmdebstrap"}
    missing = " ".join(package for program, package in packages.items() if not shutil.which(program))
    install = f"{_install(missing)} && " if missing else ""
    if Path("/run/systemd/system").is_dir():
        return f"{install}systemctl start docker"
    # No systemd here: the engine runs until the machine stops.
    # Debian's 128 inotify instances are 18 hosts.
    more = "{ sysctl -qw fs.inotify.max_user_instances=1024 || true; } && "
    return f"{install}{more}{{ setsid dockerd > /var/log/dockerd.log 2>&1 < /dev/null & }}"


def _base_image() -> Finding:
    there = shutil.which("mmdebstrap")
    said = there or "mmdebstrap not found: images can be built only where a registry answers"
    return Finding("base image", bool(there), said, _install("mmdebstrap"))


def _disk() -> Finding:
    directory = Path("/var/lib/docker")
    free = shutil.disk_usage(directory if directory.exists() else "/").free / 1e9
    said = f"{free:.1f} GB free; {_DISK_GB} GB are needed"
    return Finding("disk", free >= _DISK_GB, said, "docker system prune")


def _install(packages: str) -> str:
    return f"apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install --yes {packages}"
