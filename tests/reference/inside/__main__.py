"""Entry points of the reference container.

prepare       begin the accounting database, while the image is built
run CASES     start the daemons on the cases in a JSON file, several at a time;
              print one JSON line per case, in order
names TEXTS   print one JSON line per hostlist in a JSON file, in order: the names of its hosts
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from inside import services

_AT_ONCE = min(2 * (os.cpu_count() or 1), 8)  # daemons mostly wait; each may need 250 MiB
_HANGS = 900  # seconds after which the rig gives up on a case, which is the rig's own fault
_SCRATCH = Path(
    "/reference"
)  # a tmpfs, because an overlay cannot be on the container's own overlay
_UNSHARE = ["unshare", "--mount", "--uts", "--ipc", "--net", "--pid", "--fork", "--kill-child"]


def _run(case: dict[str, Any]) -> str:
    """Return the verdict on a case as JSON; everything it started ends with its PID namespace."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(dir=_SCRATCH) as scratch:
        try:
            done = subprocess.run(
                [*_UNSHARE, sys.executable, "-m", "inside.case", scratch],
                input=json.dumps(case),
                capture_output=True,
                text=True,
                check=False,
                timeout=_HANGS,
            )
            verdict = json.loads(done.stdout) if done.returncode == 0 else {"started": None}
            verdict["rig"] = done.stderr[-3000:]
        except subprocess.TimeoutExpired:
            verdict = {"started": None, "rig": f"no verdict in {_HANGS} s"}
    return json.dumps({**verdict, "seconds": round(time.monotonic() - begin, 2)})


def _names(hostlist: str) -> str:
    """Return the names of a hostlist, or null if scontrol refuses it, as JSON."""
    done = subprocess.run(
        ["scontrol", "show", "hostnames", hostlist],
        env={**os.environ, "SLURM_CONF": str(services.OWN / "slurm.conf")},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.dumps(None if "Invalid hostlist" in done.stderr else done.stdout.splitlines())


def main() -> None:
    """Run the command line."""
    command, *arguments = sys.argv[1:]
    if command == "prepare":
        services.prepare()
    elif command in {"run", "names"}:
        answer = _run if command == "run" else _names
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for line in pool.map(answer, json.loads(Path(arguments[0]).read_text())):
                print(line, flush=True)


main()
