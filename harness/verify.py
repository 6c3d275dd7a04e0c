"""Judge a live run with pytest, in a process of its own."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.report import Check
from harness.resources import CHECKS
from harness.rundir import RunDir

# pytest's exit codes: 0 all passed, 1 some failed; all others mean that pytest itself could not do its work.
_JUDGED = (0, 1)


def verify(run: RunDir, say: Callable[[str], None], select: Sequence[str] = ()) -> tuple[list[Check], str]:
    """Run the checks that fit the scenario, or those of them whose names contain one of `select`.

    Return what each said, and what kept them from judging ("" if nothing).
    """
    before = len(list(run.events()))
    command = [
        *(sys.executable, "-m", "pytest", str(CHECKS), "--harness-run", str(run.path)),
        *("-c", str(CHECKS / "pytest.ini"), "--rootdir", str(CHECKS)),
        *("-p", "harness.pytest_plugin", "-p", "no:terminal", "-p", "no:cacheprovider"),
        f"--junitxml={run.path / 'junit.xml'}",
        f"--harness-log-level={logging.getLevelName(logging.getLogger('harness').getEffectiveLevel())}",
        *(["-k", " or ".join(select)] if select else []),
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    # Plugins that a user has for other tests may rerun or reorder checks.
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    log = run.path / "logs" / "verify.log"
    log.parent.mkdir(exist_ok=True)
    with log.open("w") as errors:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment) as process:
            try:
                for line in process.stdout or ():
                    say(line.rstrip())
            except BaseException:
                process.terminate()
                raise
        exit_code = process.returncode
    # A check that passed, but left something behind that it could not remove, is told of twice: the last counts.
    checks = {
        event["id"]: Check(event["id"], event["outcome"], event["seconds"], event["message"])
        for event in list(run.events())[before:]
        if event["kind"] == "check"
    }
    problem = "" if exit_code in _JUDGED else f"pytest ended with {exit_code}: {_tail(log) or 'no check fits'}"
    return [*checks.values()], problem


def _tail(path: Path) -> str:
    return path.read_text()[-2000:].strip()
