"""libvirt and QEMU: reach them, and explain clearly what is wrong with them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from harness.errors import EngineError

URI = "qemu:///system"
# Vagrant's default, too.
POOL = "default"
POOL_DIRECTORY = "/var/lib/libvirt/images"
EMULATOR = "qemu-system-x86_64"
# Seconds for an operation that libvirt does immediately.
_PATIENCE = 60
# A boot sector: `mov al, 16; out 0xf4, al; hlt`. QEMU's isa-debug-exit makes it the exit code 2 *
# 16 + 1.
_SECTOR = bytes.fromhex("b010e6f4f4").ljust(510, b"\0") + b"\x55\xaa"
_SECTOR_RAN = 33


def virsh(*words: str, check: bool = True, stdin: str = "") -> str:
    """Run a command of libvirt's client.

    EngineError if libvirt does not answer, or, with `check`, if it refuses.
    """
    command = ["virsh", "--connect", URI, "--quiet", *words]
    try:
        # In its own session, because Ctrl-C in a terminal would otherwise end it half-way.
        result = subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=_PATIENCE,
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineError(
            f"{' '.join(command)}: {error}", hint="`harness doctor --provider vagrant`"
        ) from error
    if "failed to connect to the hypervisor" in result.stderr:
        raise EngineError(
            f"libvirt does not answer: {result.stderr.strip()}",
            hint="`harness doctor --provider vagrant`",
        )
    if check and result.returncode != 0:
        raise EngineError(
            f"{' '.join(command)}  (exit {result.returncode})\n{result.stderr.strip()}"
        )
    return result.stdout


def names(*words: str) -> list[str]:
    """Return the names that a listing command prints, one per line."""
    return [line.split()[0] for line in virsh(*words).splitlines() if line.strip()]


def volumes() -> list[str]:
    """Return the volumes of the pool; none if there is no pool yet."""
    return [
        line.split()[0]
        for line in virsh("vol-list", POOL, check=False).splitlines()
        if line.strip()
    ]


@cache
def qemu_version() -> tuple[int, int] | None:
    """Return the first two numbers of QEMU's version, None if QEMU is not installed."""
    match = re.search(r"version (\d+)\.(\d+)", _output_of([EMULATOR, "--version"]))
    return (int(match[1]), int(match[2])) if match else None


@cache
def kvm_boots() -> bool:
    """Return whether KVM can run a machine, by trying: /dev/kvm may exist and still not work."""
    if not os.access("/dev/kvm", os.R_OK | os.W_OK) or not shutil.which(EMULATOR):
        return False
    with tempfile.TemporaryDirectory() as directory:
        sector = Path(directory) / "sector"
        sector.write_bytes(_SECTOR)
        command = [
            EMULATOR,
            "-nodefaults",
            "-display",
            "none",
            "-machine",
            "pc,accel=kvm",
            "-cpu",
            "host",
        ]
        devices = ["-device", "isa-debug-exit,iobase=0xf4", "-drive", f"file={sector},format=raw"]
        return _exit_code([*command, *devices]) == _SECTOR_RAN


def _output_of(command: Sequence[str]) -> str:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_PATIENCE
        ).stdout
    except OSError:
        return ""


def _exit_code(command: Sequence[str]) -> int | None:
    try:
        return subprocess.run(command, capture_output=True, check=False, timeout=10).returncode
    except subprocess.TimeoutExpired:
        return None
