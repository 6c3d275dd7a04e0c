"""libvirt and QEMU: reach them, and explain clearly what is wrong with them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from harness.errors import EngineError, WaitTimeout
from harness.wait import wait_until

URI = "qemu:///system"
# Vagrant's default, too.
POOL = "default"
POOL_DIRECTORY = "/var/lib/libvirt/images"
EMULATOR = "qemu-system-x86_64"
# Seconds for an operation that libvirt does immediately.
_PATIENCE = 60
# A boot sector that does what a kernel does and KVM in a virtual machine may not be able to do: it
# enters protected mode, and returns with `iret`. QEMU's isa-debug-exit makes the number that it
# then writes the exit code 2 * 16 + 1.
_SECTOR = (
    bytes.fromhex(
        "fa31c08ed8"  # cli; xor ax, ax; mov ds, ax
        "660f01164c7c"  # lgdt [0x7c4c]
        "0f20c00c010f22c0"  # mov eax, cr0; or al, 1; mov cr0, eax
        "66ea1b7c00000800"  # jmp 8:0x7c1b
        "66b810008ed0bc007c0000"  # mov ax, 16; mov ss, ax; mov esp, 0x7c00
        "9c6a08682f7c0000cf"  # pushfd; push 8; push 0x7c2f; iret
        "b010e6f4f4"  # mov al, 16; out 0xf4, al; hlt
        "0000000000000000ffff0000009acf00ffff00000092cf00"  # the descriptors: none, code, data
        "1700347c0000"  # their size and place
    ).ljust(510, b"\0")
    + b"\x55\xaa"
)
_SECTOR_RAN = 33
# Seconds in which the boot sector must have run.
_BOOTS_WITHIN = 60


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
        return _exit_code([*command, *devices], Path(directory) / "errors") == _SECTOR_RAN


def _output_of(command: Sequence[str]) -> str:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_PATIENCE
        ).stdout
    except OSError:
        return ""


def _exit_code(command: Sequence[str], errors: Path) -> int:
    """Return the exit code of QEMU, which keeps running forever after a KVM error."""
    with (
        errors.open("wb") as file,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file) as qemu,
    ):
        with suppress(WaitTimeout):
            wait_until(
                lambda: qemu.poll() is not None or b"KVM internal error" in errors.read_bytes(),
                bool,
                what="KVM to run a boot sector",
                timeout=_BOOTS_WITHIN,
            )
        qemu.kill()
    return qemu.returncode
