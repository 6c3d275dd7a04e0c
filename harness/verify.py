"""Judge a live run with pytest, in a process of its own."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness import interrupts
from harness.errors import UsageError
from harness.report import Check
from harness.resources import CHECKS
from harness.rundir import RunDir

# pytest's exit codes: 0 all passed, 1 some failed; all others mean that pytest itself could not do its work.
_JUDGED = (0, 1)
_BY_SEVERITY = ("skipped", "passed", "error", "failed")
_USAGE_ERROR = 4
# Seconds that checks have to end what they have started.
_ENDING = 60


def verify(run: RunDir, say: Callable[[str], None], select: Sequence[str] = ()) -> tuple[list[Check], str]:
    """Run the checks that fit the scenario, or those of them whose names contain one of `select`.

    Return what each said, and what kept them from judging ("" if nothing). UsageError if one of `select` selects none;
    then nothing has run, and junit.xml is what it was.
    """
    before = len(list(run.events()))
    junit = run.path / "junit.xml.new"
    command = [
        *(sys.executable, "-P", "-m", "pytest", str(CHECKS), "--harness-run", str(run.path)),
        *("-c", str(CHECKS / "pytest.ini"), "--rootdir", str(CHECKS)),
        *("-p", "harness.pytest_plugin", "-p", "no:terminal", "-p", "no:cacheprovider"),
        f"--junitxml={junit}",
        f"--harness-log-level={logging.getLevelName(logging.getLogger('harness').getEffectiveLevel())}",
        *(f"--harness-select={word}" for word in select),
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    # Plugins that a user has for other tests may rerun or reorder checks.
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    log = run.path / "logs" / "verify.log"
    log.parent.mkdir(exist_ok=True)
    with log.open("w") as errors, ExitStack() as stack:
        with interrupts.deferred():  # a signal during the start would leave the process running
            process = stack.enter_context(
                subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
            )
            stack.push(lambda kind, *_: _end(process) if kind else None)
        for line in process.stdout or ():
            say(line.rstrip())
    exit_code = process.returncode
    if exit_code == _USAGE_ERROR and select:
        junit.unlink(missing_ok=True)
        message, _, hint = _tail(log).removeprefix("ERROR: ").partition("\n")
        raise UsageError(message, hint=hint or None)
    if junit.exists():
        junit.replace(run.path / "junit.xml")
    checks = outcomes(list(run.events())[before:])
    problem = "" if exit_code in _JUDGED else f"pytest ended with {exit_code}: {_tail(log) or 'no check fits'}"
    return checks, problem


def _end(process: subprocess.Popen[str]) -> None:
    """End the checks, which first end what they have started."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=_ENDING)
    process.kill()


def outcomes(events: Iterable[Mapping[str, Any]]) -> list[Check]:
    """Return what each check found.

    A check whose clean-up fails has two events: the worse outcome counts, and what the check found comes first.
    """
    checks: dict[str, Check] = {}
    for event in events:
        if event["kind"] != "check":
            continue
        check = Check(event["id"], event["outcome"], event["seconds"], event["message"])
        if before := checks.get(check.id):
            outcome = max(before.outcome, check.outcome, key=_BY_SEVERITY.index)
            message = "\nclean-up: ".join(filter(None, (before.message, check.message)))
            check = replace(check, outcome=outcome, message=message)
        checks[check.id] = check
    return [*checks.values()]


def _tail(path: Path) -> str:
    return path.read_text()[-2000:].strip()
