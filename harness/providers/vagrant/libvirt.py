"""libvirt and QEMU: reach them, and say plainly what is wrong with them."""

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
# Vagrant's own, too.
POOL = "default"
POOL_DIRECTORY = "/var/lib/libvirt/images"
EMULATOR = "qemu-system-x86_64"
# Seconds for what libvirt does at once.
_PATIENCE = 60
# A boot sector: `mov al, 16; out 0xf4, al; hlt`. QEMU's isa-debug-exit makes it the exit code 2 *
# 16 + 1.
_SECTOR = bytes.fromhex("b010e6f4f4").ljust(510, b"\0") + b"\x55\xaa"
_SECTOR_RAN = 33


def virsh(*words: str, check: bool = True, stdin: str = "") -> str:
    """Run a command of libvirt's client.

    EngineError if libvirt does not answer, or refuses and `check`.
    """
    command = ["virsh", "--connect", URI, "--quiet", *words]
    try:
        # In a session of its own, or Ctrl-C in a terminal would end it half-way.
        done = subprocess.run(
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
    if "failed to connect to the hypervisor" in done.stderr:
        raise EngineError(
            f"libvirt does not answer: {done.stderr.strip()}",
            hint="`harness doctor --provider vagrant`",
        )
    if check and done.returncode != 0:
        raise EngineError(f"{' '.join(command)}  (exit {done.returncode})\n{done.stderr.strip()}")
    return done.stdout


def names(*words: str) -> list[str]:
    """Return the names that a listing command prints, one a line."""
    return [line.split()[0] for line in virsh(*words).splitlines() if line.strip()]


def volumes() -> list[str]:
    """Return the volumes of the pool; none where there is no pool yet."""
    return [
        line.split()[0]
        for line in virsh("vol-list", POOL, check=False).splitlines()
        if line.strip()
    ]


@cache
def qemu_version() -> tuple[int, int] | None:
    """Return the first two numbers of QEMU's version, None where there is none."""
    found = re.search(r"version (\d+)\.(\d+)", _said([EMULATOR, "--version"]))
    return (int(found[1]), int(found[2])) if found else None


@cache
def kvm_boots() -> bool:
    """Return whether KVM runs a machine, by trying: /dev/kvm may exist and yet not work."""
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


def _said(command: Sequence[str]) -> str:
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
