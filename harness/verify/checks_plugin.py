"""The pytest plugin that `harness verify` loads: it selects checks and records their outcomes."""

from __future__ import annotations

import inspect
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack
from pathlib import Path

import pytest

from harness import interrupts
from harness.cluster import diagnosis
from harness.elastic import node_failures
from harness.errors import ClusterError, HarnessError, UsageError
from harness.kubernetes import hybrid_cluster
from harness.plan import Plan
from harness.rundir import RunDir
from harness.verify import selection

_RUN = pytest.StashKey[RunDir]()
_PLAN = pytest.StashKey[Plan]()
_STARTED = pytest.StashKey[float]()
_EXPLAINED = pytest.StashKey[bool]()
_JOB = re.compile(r"\b(?:job |JobId=)(\d+)")
# When the first job of a check began, in seconds since 1970, if that was before the check.
BEGAN = pytest.StashKey[float]()
# A check that uses no other fixtures only looks at hosts and clusters, and runs no jobs.
_READ_ONLY_FIXTURES = {"clusters", "hosts", "plan", "run", "ssh"}
# Daemons, programs and files on hosts come first: they are the cause of much else.
_FIRST = "test_hosts.py"
# The files that come last, in this order: they verify what all other checks have left.
_LAST = ("test_accounting_records.py", "test_daemon_logs.py", "test_slurmctld_agreement.py")
# After this many failures that took this many seconds each, the cluster does not do what jobs need,
# and each further check would wait as long.
_SLOW_FAILURES, _SLOW = 3, 60.0
_SLOW_SO_FAR = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that pytest_run.py passes."""
    group = parser.getgroup("slurm-harness")
    group.addoption(
        "--harness-select",
        action="append",
        default=[],
        metavar="TEXT",
        help="only checks whose name contains TEXT",
    )
    group.addoption(
        "--harness-log-level",
        default="WARNING",
        metavar="LEVEL",
        help="INFO logs long waits; DEBUG also logs commands",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Open the run, print long waits, and let checks clean up when a signal ends them."""
    signals = ExitStack()
    signals.enter_context(interrupts.raised())
    config.add_cleanup(signals.close)
    config.addinivalue_line(
        "markers", "needs(*features): only run the check on scenarios with these features"
    )
    config.addinivalue_line(
        "markers",
        "provokes(*patterns): the check makes daemons log errors that match; "
        "without patterns, any errors",
    )
    # pytest captures standard output while checks run, but not a copy of it.
    handler = logging.StreamHandler(os.fdopen(os.dup(1), "w", buffering=1))
    log = logging.getLogger("harness")
    log.addHandler(handler)
    log.setLevel(config.getoption("--harness-log-level"))
    config.stash[_RUN] = RunDir(Path(config.getoption("--harness-run")))
    config.stash[_PLAN] = config.stash[_RUN].plan()


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Print why a file cannot be read, which no other plugin does."""
    if report.failed:
        print(f"{report.nodeid}: {report.longreprtext}", file=sys.stderr)


def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Function]
) -> None:
    """Keep only the checks that fit the scenario and that the user selected: see selection.py.

    Those that only look come first: jobs that start early run meanwhile.
    """
    if session.testsfailed:  # to read a file; pytest ends
        return
    needs_of = {
        item.nodeid: {name for mark in item.iter_markers("needs") for name in mark.args}
        for item in items
    }
    if unknown := selection.unknown_features(needs_of):
        raise pytest.UsageError(
            "needs() names features that selection.py does not define:\n" + "\n".join(unknown)
        )
    try:
        selected = {
            *selection.select(config.stash[_PLAN], needs_of, config.getoption("--harness-select"))
        }
    except UsageError as error:
        raise pytest.UsageError("\n".join(filter(None, [error.message, error.hint]))) from error
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in selected])
    items[:] = sorted(
        (item for item in items if item.nodeid in selected),
        key=lambda item: place(item.path.name, item.function),
    )


def place(file: str, check: Callable[..., object]) -> tuple[int, bool, bool]:
    """Return the sort key of a check in a file; checks with the same key keep their order."""
    last = _LAST.index(file) + 1 if file in _LAST else 0
    return last, not only_looks(check), file != _FIRST


def only_looks(check: Callable[..., object]) -> bool:
    """Return whether a check runs no jobs, and changes nothing that other checks look at.

    >>> only_looks(lambda ssh, plan: None), only_looks(lambda ssh, jobs: None)
    (True, False)
    """
    return inspect.signature(check).parameters.keys() <= _READ_ONLY_FIXTURES


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    """Print the number and name of the check that begins, and how many checks there are."""
    checks = item.session.items
    print(f"check {checks.index(item) + 1} of {len(checks)}: {item.nodeid}", flush=True)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Function) -> None:
    """Skip checks that run jobs once several checks have failed slowly."""
    slow = item.config.stash.get(_SLOW_SO_FAR, 0)
    if slow >= _SLOW_FAILURES and not only_looks(item.function):
        pytest.skip(f"not run: {slow} earlier checks each took {_SLOW:.0f} s or more to fail")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Record each check's outcome, and what may have made it fail.

    If the cluster did not do what the check asserts, the outcome is `failed`; after any other
    error, `error`.
    """
    report = yield
    run = item.config.stash[_RUN]
    if report.when == "setup":
        item.stash[_STARTED] = time.monotonic() - call.duration
    if report.when != "call" and report.passed:
        return report
    outcome: str = report.outcome
    if call.excinfo and report.failed:
        # A cluster may also refuse what a check's fixtures ask of it, or keep it from cleaning up.
        is_cluster_error = call.excinfo.errisinstance(ClusterError) or (
            report.when != "setup"
            and call.excinfo.errisinstance((AssertionError, pytest.fail.Exception))
        )
        outcome = "failed" if is_cluster_error else "error"
        if call.duration >= _SLOW:
            slow = item.config.stash.get(_SLOW_SO_FAR, 0)
            item.config.stash[_SLOW_SO_FAR] = slow + 1
    message = "" if report.passed else str(call.excinfo.value if call.excinfo else report.longrepr)
    if call.excinfo and outcome == "error" and not call.excinfo.errisinstance(HarnessError):
        message = call.excinfo.exconly()  # with its class: the message may be empty or unclear
    if call.excinfo and outcome == "failed":
        circumstances = _circumstances(item, call.start, message)
        # A check's own finding comes first, but the failure of a command is not a finding.
        if call.excinfo.errisinstance(ClusterError):
            message = diagnosis.with_causes_first(message, circumstances)
        else:
            message = "\n".join([message, *circumstances])
    seconds = time.monotonic() - item.stash[_STARTED]
    run.event("check", id=item.nodeid, outcome=outcome, seconds=round(seconds, 2), message=message)
    if outcome != "passed":
        first_line = next(iter(message.splitlines()), "")
        print(f"{outcome:7} {item.nodeid} ({seconds:.1f} s) {first_line}".rstrip(), flush=True)
    return report


def _circumstances(item: pytest.Item, since: float, message: str) -> list[str]:
    """Return why a check may have failed, only once: its cleanup may fail for the same reason."""
    run = getattr(item, "funcargs", {}).get("harness_run")
    if run is None or item.stash.get(_EXPLAINED, False):
        return []
    item.stash[_EXPLAINED] = True
    began = item.stash.get(BEGAN, since)
    lines = diagnosis.of_failure(run.ssh, run.plan, began)
    if began < since:
        known = provoked(item.session)
        lines = [line for line in lines if not is_of_another_check(line, message, known)]
    return [
        *diagnosis.of_refusal(run.plan, message),
        *lines,
        *node_failures.of_failure(run, began),
        *hybrid_cluster.of_failure(run.directory, began),
    ]


def provoked(session: pytest.Session) -> list[str]:
    """Return the patterns of the errors that a session's checks make daemons log."""
    return [
        pattern
        for item in session.items
        for mark in item.iter_markers("provokes")
        for pattern in mark.args
    ]


def is_of_another_check(line: str, message: str, known: Iterable[str]) -> bool:
    """Return whether a circumstance is due to a check that ran since a failed check's job began.

    It names a job that the failed check's message does not name, or matches a pattern of `known`,
    the errors that checks provoke.

    >>> is_of_another_check("ctl: uid 0 cancelled job 7 (scancel)", "job 6 is CANCELLED", [])
    True
    """
    job = _JOB.search(line)
    return bool(job and not re.search(rf"\b{job[1]}\b", message)) or any(
        re.search(pattern, line) for pattern in known
    )
