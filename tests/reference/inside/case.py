"""Start a daemon on the case on stdin, in the namespaces that `inside run` creates for it.

Each case starts an interpreter, so this imports only what it needs.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

from inside import daemons


def _enter(scratch: Path) -> None:
    """Give this process an overlay of the container's file system, for its mount namespace only."""
    upper, work, root = (scratch / name for name in ("upper", "work", "root"))
    for directory in (upper, work, root):
        directory.mkdir()
    for command in (
        [
            "mount",
            "-t",
            "overlay",
            "overlay",
            "-o",
            f"lowerdir=/,upperdir={upper},workdir={work}",
            str(root),
        ],
        ["mount", "-t", "proc", "proc", str(root / "proc")],
        ["mount", "--rbind", "/dev", str(root / "dev")],
        ["mount", "-t", "tmpfs", "tmpfs", str(root / "run")],
    ):
        subprocess.run(command, check=True)
    os.chroot(root)
    os.chdir("/")


def main() -> None:
    """Print the verdict as JSON; the argument is a directory for what the daemon writes."""
    # Daemons close every descriptor that they could have; a container may allow millions.
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    _enter(Path(sys.argv[1]))
    print(json.dumps(daemons.verdict(json.load(sys.stdin))))


main()
