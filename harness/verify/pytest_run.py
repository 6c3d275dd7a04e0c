"""Run the checks with pytest, in a separate process."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from harness import interrupts, progress
from harness.errors import UsageError
from harness.progress import Say, Step
from harness.report import earlier_reports
from harness.report.model import Check
from harness.rundir import RunDir
from harness.shipped_files import CHECKS

_PYTEST = (sys.executable, "-P", "-m", "pytest")
# pytest's exit codes: 0 all passed, 1 some failed; any other means that pytest itself failed.
_DONE = (0, 1)
_USAGE_ERROR = 4
_MEANING = {2: "it was interrupted", 5: "no check fits the scenario"}
_BY_SEVERITY = ("skipped", "passed", "error", "failed")
# Seconds in which checks must clean up.
_CLEANUP_WITHIN = 60
# What the plugin prints when a check begins.
_CHECK_BEGINS = re.compile(r"check (\d+) of (\d+): (.+)")


def verify(run: RunDir, say: Say, select: Sequence[str] = ()) -> tuple[list[Check], str]:
    """Run the checks that fit the scenario, or those of them whose names contain one of `select`.

    Return the outcome of each, and why there is no verdict ("" if there is one). UsageError if one
    of `select` selects no check, or if another process is verifying the run, whose jobs these
    checks would cancel; then no check has run, and junit.xml is unchanged.
    """
    try:
        with FileLock(run.path / "verify.lock", timeout=0):
            return _verify(run, say, select)
    except Timeout as error:
        raise UsageError(
            f"another process is verifying {run.id}",
            hint="wait until it has ended; both would cancel each other's jobs",
        ) from error


def _verify(run: RunDir, say: Say, select: Sequence[str]) -> tuple[list[Check], str]:
    first_event = len(list(run.events()))
    junit = run.path / "junit.xml.new"
    log = run.path / "logs" / "verify.log"
    log.parent.mkdir(exist_ok=True)
    with log.open("w") as errors, progress.steps(say) as show, ExitStack() as stack:
        with interrupts.deferred():  # a signal during the start would leave the process running
            process = stack.enter_context(
                subprocess.Popen(
                    _command(run, junit, select),
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    env=_environment(),
                )
            )
            stack.push(lambda kind, *_: _end(process) if kind else None)
        step_of = _steps(run)
        for line in process.stdout or ():
            if step := step_of(line.rstrip()):
                show(step)
            else:
                say(line.rstrip())
    exit_code = process.returncode
    if exit_code == _USAGE_ERROR and select:
        junit.unlink(missing_ok=True)
        message, _, hint = _tail(log).removeprefix("ERROR: ").partition("\n")
        raise UsageError(message, hint=hint or None)
    if junit.exists():
        junit.replace(run.path / "junit.xml")
    checks = outcomes(list(run.events())[first_event:])
    if exit_code in _DONE:
        return checks, ""
    reason = _tail(log) or _MEANING.get(exit_code, f"see {log}")
    return checks, f"pytest ended with {exit_code}: {reason}"


def _command(run: RunDir, junit: Path, select: Sequence[str]) -> list[str]:
    level = logging.getLevelName(logging.getLogger("harness").getEffectiveLevel())
    return [
        *(*_PYTEST, str(CHECKS), "--harness-run", str(run.path)),
        *("-c", str(CHECKS / "pytest.ini"), "--rootdir", str(CHECKS)),
        *("-p", "harness.pytest_plugin.plugin", "-p", "no:terminal", "-p", "no:cacheprovider"),
        # At the end of every session, it would collect garbage ten times.
        *("-p", "no:unraisableexception"),
        f"--junitxml={junit}",
        f"--harness-log-level={level}",
        *(f"--harness-select={word}" for word in select),
    ]


def _environment() -> dict[str, str]:
    """Return this process's environment without pytest's options and other plugins.

    These could rerun or reorder checks.
    """
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
    }
    return inherited | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def _steps(run: RunDir) -> Callable[[str], Step | None]:
    """Return a function that parses the line that announces a check; it returns None for others.

    If the newest report of the scenario has the same number of checks, they are expected to take as
    long as they did then.
    """
    started = time.monotonic()
    report = earlier_reports.report(run)

    def step_of(line: str) -> Step | None:
        match = _CHECK_BEGINS.fullmatch(line)
        if not match:
            return None
        number, total = int(match[1]), int(match[2])
        expected = None
        if report and len(report.checks) == total:
            expected = earlier_reports.stage_seconds(report, "verify")
        left = max(expected - (time.monotonic() - started), 0) if expected else None
        return Step("check", number, total, match[3], left)

    return step_of


def _end(process: subprocess.Popen[str]) -> None:
    """End the checks, and give them time to clean up."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=_CLEANUP_WITHIN)
    process.kill()


def outcomes(events: Iterable[Mapping[str, Any]]) -> list[Check]:
    """Return the outcome of each check.

    A check whose cleanup fails has two events: the worse outcome counts, and the check's own
    message comes first.
    """
    checks: dict[str, Check] = {}
    for event in events:
        if event["kind"] != "check":
            continue
        check = Check(event["id"], event["outcome"], event["seconds"], event["message"])
        if before := checks.get(check.id):
            outcome = max(before.outcome, check.outcome, key=_BY_SEVERITY.index)
            message = "\ncleanup: ".join(filter(None, (before.message, check.message)))
            check = replace(check, outcome=outcome, message=message)
        checks[check.id] = check
    return [*checks.values()]


def _tail(path: Path) -> str:
    return path.read_text()[-2000:].strip()
