"""Can this machine run a provider? Each finding has the command that fixes it."""

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
from harness.providers import Provider, subnets
from harness.providers.docker import containers, engine
from harness.providers.vagrant import libvirt
from harness.wait import wait_until

# An image takes about 0.75 GB; the hosts and logs of a federation take about as much again.
_DISK_GB = 4
_MEMORY_GB = 2
# ssh_config(5), ControlPath: %C is 40 characters; ssh(1) creates the socket under a name that is 17
# characters longer, and renames it.
_SOCKET_NAME = 40 + 17
# The sites of a federation, and the hosts of each site.
_SITES, _HOSTS_OF_A_SITE = 2, 16
# How much clocks may differ: accounting is compared with the times that jobs record.
_CLOCK_SECONDS = 2
# The first QEMU whose emulation booted every machine in tests.
_OLDEST_EMULATION = (10, 0)


@dataclass(frozen=True, slots=True)
class Requirement:
    """Something that a provider needs, and whether this machine has it.

    `fix` is a shell command. Without a `fatal` requirement, nothing works.
    """

    subject: str
    ok: bool
    text: str
    fix: str | None = None
    fatal: bool = False


def examine(provider: str = "docker") -> list[Requirement]:
    """Examine everything that a provider needs; change nothing."""
    return [*_findings(), *(_vagrant_findings() if provider == "vagrant" else ())]


def leftovers(source: Provider, runs: Path) -> list[Requirement]:
    """Find what killed runs have left behind, and hosts whose run has no directory in `runs`."""
    known = {run.id: run for run in rundir.all_runs(runs)}
    up = source.runs()
    problems = {
        run.id: "the process that worked on it was killed"
        for run in known.values()
        if run.is_abandoned()
    }
    problems |= {run_id: f"it has no directory in {runs}" for run_id in up if run_id not in known}
    findings = [
        Requirement("leftovers", False, f"{run_id}: {why}", f"harness down {run_id}")
        for run_id, why in problems.items()
    ]
    used = {
        run_id[-6:]
        for run_id in {*up, *problems, *(run.id for run in known.values() if run.is_worked_on())}
    }
    used |= {run.id[-6:] for run in known.values() if run.provider != source.name}
    for path in rundir.control_directories():
        if rundir.token_of(path) not in used and not _is_used(path):
            findings.append(
                Requirement("leftovers", False, f"{path}: its run is not up", f"rm -r {path}")
            )
    return findings or [Requirement("leftovers", True, "killed runs have left nothing behind")]


def _is_used(directory: Path) -> bool:
    """Return whether a process listens on a socket in a directory."""
    for path in directory.glob("*"):
        with socket.socket(socket.AF_UNIX) as client:
            if client.connect_ex(str(path)) == 0:
                return True
    return False


def fix(say: Callable[[str], None], provider: str = "docker") -> list[Requirement]:
    """Run the fixes of fatal findings, as root on Debian; return what is still not ok.

    Everything is examined again after each command: a daemon that starts may provide what seemed to
    be missing.
    """
    tried: set[str] = set()
    while os.geteuid() == 0 and shutil.which("apt-get"):
        finding = next(
            (
                finding
                for finding in examine(provider)
                if finding.fatal and not finding.ok and finding.fix and finding.subject not in tried
            ),
            None,
        )
        if not finding:
            break
        tried.add(finding.subject)
        say(f"{finding.subject}: {finding.text}")
        say(f"$ {finding.fix}")
        done = subprocess.run(
            ["sh", "-c", str(finding.fix)], capture_output=True, text=True, check=False
        )
        libvirt.qemu_version.cache_clear()
        libvirt.kvm_boots.cache_clear()
        if done.returncode != 0:
            raise HarnessError(f"{finding.fix}  (exit {done.returncode})\n{done.stderr.strip()}")
        if finding.subject == "engine":
            try:
                wait_until(
                    engine.connect,
                    bool,
                    what="the engine to answer",
                    timeout=300,
                    ignore=(EngineError,),
                )
            except WaitTimeout as error:
                raise EngineError(
                    error.message, hint="/var/log/dockerd.log or `journalctl -u docker` says why"
                ) from error
    return [finding for finding in examine(provider) if not finding.ok]


def _findings() -> Iterator[Requirement]:
    client = None
    try:
        client = engine.connect()
        yield Requirement("engine", True, f"Docker engine {client.version()['Version']}")
    except EngineError as error:
        yield Requirement("engine", False, error.message, _engine_command(), fatal=True)
    for program, package in (
        ("ssh", "openssh-client"),
        ("ssh-keygen", "openssh-client"),
        ("openssl", "openssl"),
    ):
        path = shutil.which(program)
        yield Requirement(program, bool(path), path or "not found", _install(package), fatal=True)
    yield _ssh_sockets(tempfile.gettempdir())
    yield _base_image()
    yield _zstd()
    is_local = client is None or str(client.api.base_url).startswith("http+docker://localhost")
    info = client.info() if client else {}
    yield _disk(Path(info.get("DockerRootDir", "/var/lib/docker") if is_local else "/"))
    yield _memory(
        Path("/proc/meminfo").read_text()
        if is_local
        else f"MemAvailable: {info['MemTotal'] // 1024} kB"
    )
    if is_local:
        yield from _inotify(Path("/proc/sys/fs/inotify/max_user_instances"))
        yield from _cgroup2(Path("/proc/filesystems"))
    if client:
        yield _subnets(sum(1 for _ in subnets.free(_HOSTS_OF_A_SITE, containers.taken([client]))))
        yield _clock(datetime.fromisoformat(info["SystemTime"]), datetime.now(UTC))


def _vagrant_findings() -> Iterator[Requirement]:
    plugins = _output(["vagrant", "plugin", "list"])
    has_plugin = "vagrant-libvirt" in plugins
    text = plugins.splitlines()[0] if has_plugin else "no vagrant with the plugin vagrant-libvirt"
    yield Requirement("vagrant", has_plugin, text, _install("vagrant vagrant-libvirt"), fatal=True)
    yield _qemu()
    boots = libvirt.kvm_boots()
    text = (
        "runs machines"
        if boots
        else "cannot run machines here: QEMU emulates them, which takes ten times as long"
    )
    yield Requirement("KVM", boots, text)
    try:
        version = libvirt.virsh("version", "--daemon").splitlines()[-1]
    except HarnessError as error:
        yield Requirement(
            "libvirt", False, str(error).splitlines()[0], _libvirt_command(), fatal=True
        )
    else:
        yield Requirement("libvirt", True, version)
    pool = "running" in _output(["virsh", "--connect", libvirt.URI, "pool-info", libvirt.POOL])
    steps = [f"define-as {libvirt.POOL} dir --target {libvirt.POOL_DIRECTORY}"]
    steps += [f"{verb} {libvirt.POOL}" for verb in ("build", "autostart", "start")]
    fix = "; ".join(f"virsh --connect {libvirt.URI} pool-{step}" for step in steps)
    yield Requirement(
        "storage pool",
        pool,
        f"{libvirt.POOL} {'is active' if pool else 'is not active'}",
        fix,
        fatal=True,
    )


def _qemu() -> Requirement:
    version = libvirt.qemu_version()
    is_fit = version is not None and bool(shutil.which("qemu-img"))
    text = (
        f"QEMU {version[0]}.{version[1]}"
        if version and is_fit
        else "no qemu-system-x86_64 and qemu-img"
    )
    if version and is_fit and version < _OLDEST_EMULATION and not libvirt.kvm_boots():
        # With 7.2, four of thirty kernels panicked while they booted.
        is_fit = False
        text += f": emulated machines can crash; use QEMU {_OLDEST_EMULATION[0]} or KVM"
    packages = "qemu-system-x86 qemu-utils"
    release = _output(["sh", "-c", ". /etc/os-release && echo $VERSION_CODENAME"]).strip()
    if release != "bookworm":
        return Requirement("QEMU", is_fit, text, _install(packages), fatal=True)
    # The mirror that this machine uses also has the suite with a newer QEMU.
    mirror = (
        "$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 'Codename: bookworm'"
        " | head -n 1)"
    )
    source = (
        f'"deb {mirror} bookworm-backports main" > /etc/apt/sources.list.d/bookworm-backports.list'
    )
    return Requirement(
        "QEMU",
        is_fit,
        text,
        f"echo {source} && {_install(f'-t bookworm-backports {packages}')}",
        fatal=True,
    )


def _libvirt_command() -> str:
    """Return the command that installs and starts libvirt on this machine."""
    packages = "libvirt-daemon-system libvirt-clients libvirt-daemon-driver-qemu dnsmasq-base"
    install = (
        "" if shutil.which("libvirtd") and shutil.which("virsh") else f"{_install(packages)} && "
    )
    if Path("/run/systemd/system").is_dir():
        return f"{install}systemctl start libvirtd"
    # No systemd here, and no udev: as long as libvirt is not allowed to open the device, it asks
    # QEMU for its capabilities each time.
    device = "{ [ ! -e /dev/kvm ] || { chgrp kvm /dev/kvm && chmod 0660 /dev/kvm; }; }"
    return f"{install}{device} && setsid virtlogd --daemon && setsid libvirtd --daemon"


def _output(command: list[str]) -> str:
    """Return what a command prints, or "" if it does not exist."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=60
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _engine_command() -> str | None:
    """Return the command that starts an engine on this machine.

    None if the user chose a different engine.
    """
    if "DOCKER_HOST" in os.environ or sys.platform != "linux":
        return None
    # mmdebstrap builds images where no registry answers; docker.io contains dockerd.
    packages = {"dockerd": "docker.io", "mmdebstrap": "mmdebstrap"}
    missing = " ".join(
        package for program, package in packages.items() if not shutil.which(program)
    )
    install = f"{_install(missing)} && " if missing else ""
    if Path("/run/systemd/system").is_dir():
        return f"{install}systemctl start docker"
    # No systemd here: the engine runs until the machine stops.
    # Debian's default of 128 inotify instances is enough for 18 hosts.
    more = "{ sysctl -qw fs.inotify.max_user_instances=1024 || true; } && "
    return f"{install}{more}{{ setsid dockerd > /var/log/dockerd.log 2>&1 < /dev/null & }}"


def _base_image() -> Requirement:
    path = shutil.which("mmdebstrap")
    text = path or "mmdebstrap not found: images can only be built where a registry answers"
    return Requirement("base image", bool(path), text, _install("mmdebstrap"))


def _zstd() -> Requirement:
    path = shutil.which("zstd")
    text = path or "zstd not found: files of Ubuntu's packages (packages:) cannot be read"
    return Requirement("zstd", bool(path), text, _install("zstd"))


def _ssh_sockets(directory: str) -> Requirement:
    """Examine the paths of the sockets of shared connections: unix(7) limits them to 107 bytes."""
    longest = (
        len(os.fsencode(directory)) + len(f"/{rundir.CONTROL}123456-123456789012/") + _SOCKET_NAME
    )
    text = f"paths of sockets in {directory} have {longest} bytes; 107 is the limit"
    return Requirement("ssh sockets", longest < 108, text, "export TMPDIR=/tmp", fatal=True)


def _disk(directory: Path) -> Requirement:
    free = shutil.disk_usage(directory if directory.exists() else "/").free / 1e9
    text = f"{free:.1f} GB free; {_DISK_GB} GB are needed"
    return Requirement("disk", free >= _DISK_GB, text, "docker system prune")


def _memory(meminfo: str) -> Requirement:
    """Examine MemAvailable of proc_meminfo(5)."""
    available = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo, re.MULTILINE)
    free = int(available[1]) * 1024 / 1e9 if available else 0
    text = f"{free:.1f} GB available; a federation of 9 hosts needs about 1 GB"
    return Requirement("memory", free >= _MEMORY_GB, text, "harness down")


def _inotify(limit: Path) -> Iterator[Requirement]:
    if limit.exists():
        count = int(limit.read_text())
        text = f"fs.inotify.max_user_instances={count}; each host needs 7 (systemd and D-Bus)"
        yield Requirement(
            "inotify", count >= 128, text, "sysctl -w fs.inotify.max_user_instances=1024"
        )


def _cgroup2(filesystems: Path) -> Iterator[Requirement]:
    """Examine whether the hosts' systemd can mount the cgroup2 that it needs.

    The machine itself may use version 1.
    """
    if filesystems.exists():
        has_cgroup2 = "\tcgroup2\n" in filesystems.read_text()
        text = (
            "the kernel has cgroup2"
            if has_cgroup2
            else "the hosts' systemd needs cgroup2: Linux 4.5 and later have it"
        )
        yield Requirement("cgroups", has_cgroup2, text, fatal=True)


def _subnets(free: int) -> Requirement:
    text = f"{free} subnets are free; each site needs one"
    return Requirement("subnets", free >= _SITES, text, "docker network prune")


def _clock(engines: datetime, ours: datetime) -> Requirement:
    """Compare the clock of the engine with that of this machine: reports have times of both."""
    ahead = (engines - ours).total_seconds()
    text = f"the engine's clock is {abs(ahead):.1f} s {'ahead' if ahead > 0 else 'behind'}"
    return Requirement("clock", abs(ahead) < _CLOCK_SECONDS, text, "timedatectl set-ntp true")


def _install(packages: str) -> str:
    return f"apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install --yes {packages}"
