"""The order in which checks run."""

from __future__ import annotations

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
