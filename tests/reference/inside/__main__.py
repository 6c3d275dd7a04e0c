"""Entry points of the reference container.

prepare       begin the accounting database, while the image is built
run CASES     start the daemons on the cases in a JSON file, several at a time;
              print one JSON line per case, in order
names TEXTS   print one JSON line per hostlist in a JSON file, in order: the names of its hosts
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import connection
from pathlib import Path
from typing import Any

from inside import case, services

_AT_ONCE = min(2 * (os.cpu_count() or 1), 8)  # daemons mostly wait; each may need 250 MiB
_HANGS = 900  # seconds after which the rig gives up on a case, which is the rig's own fault
# A tmpfs, because an overlay cannot be on the container's own overlay.
_SCRATCH = Path("/reference")


class _Attempt:
    """A case that a daemon reads, in a forked process, which has everything loaded."""

    def __init__(self, given: dict[str, Any]) -> None:
        self._begin = time.monotonic()
        self._scratch = Path(tempfile.mkdtemp(dir=_SCRATCH))
        self.process = multiprocessing.get_context("fork").Process(
            target=case.run, args=(given, self._scratch)
        )
        self.process.start()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begin

    def verdict(self) -> str:
        """Return the verdict as JSON; what still runs is killed."""
        hangs = self.process.is_alive()
        self.process.kill()
        self.process.join()
        errors, written = (self._scratch / name for name in ("errors", "verdict"))
        text = written.read_text() if written.exists() else ""
        rig = errors.read_text(errors="replace")[-3000:] if errors.exists() else "it did not start"
        shutil.rmtree(self._scratch)
        verdict = {"started": None} if hangs or not text else json.loads(text)
        verdict["rig"] = f"no verdict in {_HANGS} s" if hangs else rig
        return json.dumps({**verdict, "seconds": round(self.seconds, 2)})


def _verdicts(cases: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the verdict on each case as JSON, in order; several cases run at a time."""
    running: dict[int, _Attempt] = {}
    ended: dict[int, str] = {}
    begun = 0
    for number in range(len(cases)):
        while number not in ended:
            while begun < len(cases) and len(running) < _AT_ONCE:
                running[begun] = _Attempt(cases[begun])
                begun += 1
            left = min(_HANGS - attempt.seconds for attempt in running.values())
            connection.wait([one.process.sentinel for one in running.values()], max(left, 0))
            for other, attempt in [*running.items()]:
                if not attempt.process.is_alive() or attempt.seconds > _HANGS:
                    ended[other] = running.pop(other).verdict()
        yield ended.pop(number)


def _names(hostlists: list[str]) -> Iterator[str]:
    """Yield the names of each hostlist, or null if scontrol refuses it, as JSON."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        yield from pool.map(_names_of, hostlists)


def _names_of(hostlist: str) -> str:
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
    else:
        questions = json.loads(Path(arguments[0]).read_text())
        answer = _verdicts if command == "run" else _names
        for line in answer(questions):
            print(line, flush=True)


main()
