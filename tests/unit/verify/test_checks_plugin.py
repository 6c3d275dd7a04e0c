"""The order in which checks run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from harness.errors import WaitTimeout
from harness.shipped_files import CHECKS
from harness.verify import checks_plugin


def test_hosts_are_looked_at_before_jobs_run_and_all_other_checks_are_judged_last() -> None:
    checks = {
        "test_accounting_records.py": lambda jobs: None,
        "test_auth_slurm.py": lambda plan, ssh: None,
        "test_daemon_logs.py": lambda clusters: None,
        "test_hosts.py": lambda plan, ssh: None,
        "test_jobs.py": lambda jobs, plan: None,
        "test_limits.py": lambda users: None,
        "test_nodes.py": lambda clusters: None,
    }
    in_order = sorted(checks, key=lambda file: checks_plugin.place(file, checks[file]))
    assert in_order == [
        "test_hosts.py",
        "test_auth_slurm.py",
        "test_nodes.py",
        "test_jobs.py",
        "test_limits.py",
        "test_accounting_records.py",
        "test_daemon_logs.py",
    ]


def test_files_that_come_first_or_last_exist() -> None:
    assert {checks_plugin._FIRST, *checks_plugin._LAST} <= {
        file.name for file in CHECKS.glob("test_*.py")
    }


def test_checks_that_run_jobs_are_skipped_once_three_failed_slowly() -> None:
    outcomes: list[str] = []
    run: Any = SimpleNamespace(event=lambda kind, **facts: outcomes.append(facts["outcome"]))
    stash = pytest.Stash()
    stash[checks_plugin._RUN] = run

    def item(function: Any) -> Any:
        config = SimpleNamespace(stash=stash)
        return SimpleNamespace(
            config=config, function=function, stash=pytest.Stash(), nodeid="test_jobs.py::test_job"
        )

    def fail(seconds: float) -> None:
        check = item(lambda jobs: None)
        checks_plugin.pytest_runtest_setup(check)
        check.stash[checks_plugin._STARTED] = 0.0
        with pytest.raises(WaitTimeout) as info:
            raise WaitTimeout("no job starts")
        call: Any = SimpleNamespace(when="call", duration=seconds, excinfo=info, start=0.0)
        report: Any = SimpleNamespace(when="call", outcome="failed", passed=False, failed=True)
        generator = checks_plugin.pytest_runtest_makereport(check, call)
        next(generator)
        with pytest.raises(StopIteration):
            generator.send(report)

    for seconds in (60.0, 59.9, 120.0, 61.0):
        fail(seconds)
    with pytest.raises(pytest.skip.Exception, match="not run: 3 earlier checks each took 60 s"):
        fail(1.0)
    checks_plugin.pytest_runtest_setup(item(lambda clusters, ssh: None))
    assert outcomes == 4 * ["failed"]
