"""Start a daemon on a case, in namespaces of its own."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from inside import daemons

# linux/sched.h: mount, UTS, IPC, PID and network namespaces; sys/mount.h; sys/prctl.h.
_NEW_NAMESPACES = 0x00020000 | 0x04000000 | 0x08000000 | 0x20000000 | 0x40000000
_BIND, _RECURSIVE, _PRIVATE = 0x1000, 0x4000, 0x40000
_PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)


def run(case: dict[str, Any], scratch: Path) -> None:
    """Write the verdict on a case to `scratch/verdict`, as JSON, and errors to `scratch/errors`.

    This must run in a process of its own: everything that it starts ends with that process.
    """
    _must(_libc.unshare(_NEW_NAMESPACES))
    if child := os.fork():  # the first process in the new PID namespace
        os.waitpid(child, 0)
        return
    try:
        os.setsid()  # a signal to a process group crosses PID namespaces
        _must(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL))
        with (scratch / "errors").open("wb", 0) as errors:
            os.dup2(errors.fileno(), sys.stderr.fileno())
        with (scratch / "verdict").open("w") as verdict:
            # Daemons close every descriptor that they could have; a container may allow millions.
            resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
            _enter(scratch)
            json.dump(daemons.verdict(case), verdict)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def _enter(scratch: Path) -> None:
    """Give this process an overlay of the container's file system, for its mount namespace only."""
    upper, work, root = (scratch / name for name in ("upper", "work", "root"))
    for directory in (upper, work, root):
        directory.mkdir()
    _mount("none", "/", None, _RECURSIVE | _PRIVATE)
    _mount("overlay", root, "overlay", data=f"lowerdir=/,upperdir={upper},workdir={work}")
    _mount("proc", root / "proc", "proc")
    _mount("/dev", root / "dev", None, _BIND | _RECURSIVE)
    _mount("tmpfs", root / "run", "tmpfs")
    os.chroot(root)
    os.chdir("/")


def _mount(
    source: str, target: str | Path, kind: str | None, flags: int = 0, data: str | None = None
) -> None:
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    _must(_libc.mount(*texts[:3], ctypes.c_ulong(flags), texts[3]))


def _must(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
