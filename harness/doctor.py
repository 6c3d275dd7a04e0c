"""Is this machine fit for a provider? Each finding names the command that mends it."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from harness import rundir
from harness.errors import EngineError, HarnessError, WaitTimeout
from harness.providers import Provider, docker, engine, libvirt, subnets
from harness.wait import wait_until

# An image takes about 0.75 GB; a federation's hosts and logs about as much again.
_DISK_GB = 4
_MEMORY_GB = 2
# ssh_config(5), ControlPath: %C is 40 characters; ssh(1) makes the socket under a name of 17 more, and renames it.
_SOCKET_NAME = 40 + 17
# A federation's.
_SITES, _HOSTS_OF_A_SITE = 2, 16
# As accounting is compared with what jobs saw.
_CLOCK_SECONDS = 2
# The first QEMU whose emulation has booted every machine.
_OLDEST_EMULATION = (10, 0)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. `mend` is a shell command that puts it right; `fatal`: nothing works without it."""

    subject: str
    ok: bool
    said: str
    mend: str | None = None
    fatal: bool = False


def examine(provider: str = "docker") -> list[Finding]:
    """Look at everything that a provider needs; nothing is changed."""
    return [*_findings(), *(_vagrant_findings() if provider == "vagrant" else ())]


def leftovers(source: Provider, runs: Path) -> list[Finding]:
    """Look for what runs have left that were killed, and for hosts whose run has no directory in `runs`."""
    known = {run.id: run for run in rundir.all_runs(runs)}
    there = source.runs()
    found = {run.id: "the process that worked on it was killed" for run in known.values() if run.is_abandoned()}
    found |= {run_id: f"it has no directory in {runs}" for run_id in there if run_id not in known}
    findings = [
        Finding("leftovers", False, f"{run_id}: {why}", f"harness down {run_id}") for run_id, why in found.items()
    ]
    used = {run_id[-6:] for run_id in {*there, *found, *(run.id for run in known.values() if run.is_worked_on())}}
    used |= {run.id[-6:] for run in known.values() if run.provider != source.name}
    for path in rundir.control_directories():
        if rundir.token_of(path) not in used and not _is_used(path):
            findings.append(Finding("leftovers", False, f"{path}: its run is not up", f"rm -r {path}"))
    return findings or [Finding("leftovers", True, "none of runs that were killed")]


def _is_used(directory: Path) -> bool:
    """Tell whether a process listens on a socket in a directory."""
    for path in directory.glob("*"):
        with socket.socket(socket.AF_UNIX) as client:
            if client.connect_ex(str(path)) == 0:
                return True
    return False


def mend(say: Callable[[str], None], provider: str = "docker") -> list[Finding]:
    """Run the commands that put right what keeps everything from working, as root on Debian; return what is left.

    After each command all is looked at again: a daemon that was started may bring along what seemed to be missing.
    """
    tried: set[str] = set()
    while os.geteuid() == 0 and shutil.which("apt-get"):
        missing = (found for found in examine(provider) if found.fatal and not found.ok and found.mend)
        finding = next((found for found in missing if found.subject not in tried), None)
        if not finding:
            break
        tried.add(finding.subject)
        say(f"{finding.subject}: {finding.said}")
        say(f"$ {finding.mend}")
        done = subprocess.run(["sh", "-c", str(finding.mend)], capture_output=True, text=True, check=False)
        libvirt.qemu_version.cache_clear()
        libvirt.kvm_boots.cache_clear()
        if done.returncode != 0:
            raise HarnessError(f"{finding.mend}  (exit {done.returncode})\n{done.stderr.strip()}")
        if finding.subject == "engine":
            try:
                wait_until(engine.connect, bool, what="the engine to answer", timeout=60, ignore=(EngineError,))
            except WaitTimeout as error:
                raise EngineError(
                    error.message, hint="/var/log/dockerd.log or `journalctl -u docker` says why"
                ) from error
    return [finding for finding in examine(provider) if not finding.ok]


def _findings() -> Iterator[Finding]:
    client = None
    try:
        client = engine.connect()
        yield Finding("engine", True, f"Docker engine {client.version()['Version']}")
    except EngineError as error:
        yield Finding("engine", False, error.message, _engine_command(), fatal=True)
    for program in ("ssh", "ssh-keygen"):
        there = shutil.which(program)
        yield Finding(program, bool(there), there or "not found", _install("openssh-client"), fatal=True)
    yield _ssh_sockets(tempfile.gettempdir())
    yield _base_image()
    here = client is None or str(client.api.base_url).startswith("http+docker://localhost")
    info = client.info() if client else {}
    yield _disk(Path(info.get("DockerRootDir", "/var/lib/docker") if here else "/"))
    yield _memory(Path("/proc/meminfo").read_text() if here else f"MemAvailable: {info['MemTotal'] // 1024} kB")
    if here:
        yield from _inotify(Path("/proc/sys/fs/inotify/max_user_instances"))
        yield from _cgroup2(Path("/proc/filesystems"))
    if client:
        yield _subnets(sum(1 for _ in subnets.free(_HOSTS_OF_A_SITE, docker.taken([client]))))
        yield _clock(datetime.fromisoformat(info["SystemTime"]), datetime.now(UTC))


def _vagrant_findings() -> Iterator[Finding]:
    plugins = _said(["vagrant", "plugin", "list"])
    there = "vagrant-libvirt" in plugins
    said = plugins.splitlines()[0] if there else "no vagrant with the plugin vagrant-libvirt"
    yield Finding("vagrant", there, said, _install("vagrant vagrant-libvirt"), fatal=True)
    yield _qemu()
    boots = libvirt.kvm_boots()
    said = "runs machines" if boots else "runs no machine here: QEMU emulates them, which takes ten times as long"
    yield Finding("KVM", boots, said)
    try:
        version = libvirt.virsh("version", "--daemon").splitlines()[-1]
    except HarnessError as error:
        yield Finding("libvirt", False, str(error).splitlines()[0], _libvirt_command(), fatal=True)
    else:
        yield Finding("libvirt", True, version)
    pool = "running" in _said(["virsh", "--connect", libvirt.URI, "pool-info", libvirt.POOL])
    steps = [f"define-as {libvirt.POOL} dir --target {libvirt.POOL_DIRECTORY}"]
    steps += [f"{verb} {libvirt.POOL}" for verb in ("build", "autostart", "start")]
    make = "; ".join(f"virsh --connect {libvirt.URI} pool-{step}" for step in steps)
    yield Finding("storage pool", pool, f"{libvirt.POOL} {'is active' if pool else 'is not active'}", make, fatal=True)


def _qemu() -> Finding:
    version = libvirt.qemu_version()
    there = version is not None and bool(shutil.which("qemu-img"))
    said = f"QEMU {version[0]}.{version[1]}" if version and there else "no qemu-system-x86_64 and qemu-img"
    if version and there and version < _OLDEST_EMULATION and not libvirt.kvm_boots():
        # Seen with 7.2: four of thirty kernels ended in a panic while they booted.
        there, said = False, f"{said} emulates machines that crash; {_OLDEST_EMULATION[0]} does not, nor does KVM"
    packages = "qemu-system-x86 qemu-utils"
    release = _said(["sh", "-c", ". /etc/os-release && echo $VERSION_CODENAME"]).strip()
    if release != "bookworm":
        return Finding("QEMU", there, said, _install(packages), fatal=True)
    # The mirror of this machine, whatever it is, has the suite with a newer one, too.
    mirror = "$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 'Codename: bookworm' | head -n 1)"
    source = f'"deb {mirror} bookworm-backports main" > /etc/apt/sources.list.d/bookworm-backports.list'
    return Finding("QEMU", there, said, f"echo {source} && {_install(f'-t bookworm-backports {packages}')}", fatal=True)


def _libvirt_command() -> str:
    """Return how libvirt of this very machine is installed and started."""
    packages = "libvirt-daemon-system libvirt-clients libvirt-daemon-driver-qemu dnsmasq-base"
    install = "" if shutil.which("libvirtd") and shutil.which("virsh") else f"{_install(packages)} && "
    if Path("/run/systemd/system").is_dir():
        return f"{install}systemctl start libvirtd"
    # No systemd here, and no udev: without the right to open the device, libvirt asks QEMU anew what it can, each time.
    device = "{ [ ! -e /dev/kvm ] || { chgrp kvm /dev/kvm && chmod 0660 /dev/kvm; }; }"
    return f"{install}{device} && setsid virtlogd --daemon && setsid libvirtd --daemon"


def _said(command: list[str]) -> str:
    """Return what a command prints, "" if there is none of that name."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


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


def _ssh_sockets(directory: str) -> Finding:
    """Look at where shared connections have their sockets: unix(7) wants paths of less than 108 bytes."""
    longest = len(os.fsencode(directory)) + len(f"/{rundir.CONTROL}123456-123456789012/") + _SOCKET_NAME
    said = f"shared connections have their sockets in {directory}, with paths of {longest} bytes of 107"
    return Finding("ssh sockets", longest < 108, said, "export TMPDIR=/tmp", fatal=True)


def _disk(directory: Path) -> Finding:
    free = shutil.disk_usage(directory if directory.exists() else "/").free / 1e9
    said = f"{free:.1f} GB free; {_DISK_GB} GB are needed"
    return Finding("disk", free >= _DISK_GB, said, "docker system prune")


def _memory(meminfo: str) -> Finding:
    """Look at what proc_meminfo(5) says can be had."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo, re.MULTILINE)
    free = int(found[1]) * 1024 / 1e9 if found else 0
    said = f"{free:.1f} GB can be had; a federation of 9 hosts takes about 1 GB"
    return Finding("memory", free >= _MEMORY_GB, said, "harness down")


def _inotify(limit: Path) -> Iterator[Finding]:
    if limit.exists():
        count = int(limit.read_text())
        said = f"fs.inotify.max_user_instances={count}; a host takes 7: its systemd and D-Bus"
        yield Finding("inotify", count >= 128, said, "sysctl -w fs.inotify.max_user_instances=1024")


def _cgroup2(filesystems: Path) -> Iterator[Finding]:
    """Look whether hosts can mount the cgroup tree that their systemd wants; the machine may use another."""
    if filesystems.exists():
        there = "\tcgroup2\n" in filesystems.read_text()
        said = "the kernel has cgroup2" if there else "the hosts' systemd wants cgroup2: Linux 4.5 and later have it"
        yield Finding("cgroups", there, said, fatal=True)


def _subnets(free: int) -> Finding:
    said = f"{free} subnets are free; each site takes one"
    return Finding("subnets", free >= _SITES, said, "docker network prune")


def _clock(engines: datetime, ours: datetime) -> Finding:
    """Look whether what hosts say of times fits what this machine notes."""
    ahead = (engines - ours).total_seconds()
    said = f"the engine's is {abs(ahead):.1f} s {'ahead' if ahead > 0 else 'behind'}"
    return Finding("clock", abs(ahead) < _CLOCK_SECONDS, said, "timedatectl set-ntp true")


def _install(packages: str) -> str:
    return f"apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install --yes {packages}"
