from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from fakes import SCENARIO, FakeProvider
from harness import inventory, lifecycle
from harness.errors import UsageError
from harness.report.verdict import verdict
from harness.shipped_files import CHECKS
from harness.verify import pytest_run


def test_checks_on_unreachable_hosts_give_no_verdict(tmp_path: Path) -> None:
    run = lifecycle.create(SCENARIO, FakeProvider(), tmp_path, print)
    machines = [inventory.Machine(host.name, "127.0.0.1", 1) for host in run.plan.hosts]
    config = inventory.ssh_config(
        machines,
        run.directory.key("ssh_key"),
        tmp_path / "known",
        run.directory.control_directory,
        run.directory.machines,
    )
    run.directory.ssh_config.write_text(config)
    lines: list[str] = []
    checks, problem = pytest_run.verify(run.directory, lines.append)
    assert checks
    assert {check.outcome for check in checks} == {"error"}
    assert [line for line in lines if line.startswith("check ")] == [
        f"check {number} of {len(checks)}: {check.id}" for number, check in enumerate(checks, 1)
    ]
    assert sum(line.startswith("error   ") for line in lines) >= len(checks)
    assert verdict((check.outcome for check in checks), problem) == "unknown"


def test_run_that_another_process_verifies_is_left_alone(tmp_path: Path) -> None:
    run = lifecycle.create(SCENARIO, FakeProvider(), tmp_path, print)
    with (
        FileLock(run.directory.path / "verify.lock"),
        pytest.raises(UsageError, match="another process is verifying single"),
    ):
        pytest_run.verify(run.directory, print)
    assert not [event for event in run.directory.events() if event["kind"] == "check"]


def test_signal_while_the_checks_start_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = lifecycle.create(SCENARIO, FakeProvider(), tmp_path, print)
    started = []

    class Started(subprocess.Popen[str]):
        def __init__(self, *_: Any, **__: Any) -> None:
            super().__init__(["sleep", "300"], stdout=subprocess.PIPE, text=True)
            started.append(self)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(subprocess, "Popen", Started)
    with pytest.raises(KeyboardInterrupt):
        pytest_run.verify(run.directory, print)
    (process,) = started
    assert process.wait(timeout=60) == -signal.SIGTERM


@pytest.mark.parametrize(
    ("select", "message", "hint"),
    [
        (
            ["no_check_has_this_name"],
            'no check has "no_check_has_this_name" in its name',
            "the run's report lists the names of all checks",
        ),
        (
            ["batch_jop_runs"],
            'no check has "batch_jop_runs" in its name',
            "did you mean batch_job_runs",
        ),
        (
            ["batch_job", "munge_credentail"],
            'no check has "munge_credentail"',
            "did you mean munge_credential",
        ),
        (
            ["federation"],
            'no check with "federation" in its name applies to this scenario',
            None,
        ),
    ],
)
def test_selection_of_nothing_is_a_usage_error_and_leaves_the_report(
    select: list[str], message: str, hint: str | None, tmp_path: Path
) -> None:
    run = lifecycle.create(SCENARIO, FakeProvider(), tmp_path, print)
    (run.directory.path / "junit.xml").write_text("as before")
    with pytest.raises(UsageError) as caught:
        pytest_run.verify(run.directory, print, select)
    assert message in caught.value.message
    assert caught.value.hint is None if hint is None else str(caught.value.hint).startswith(hint)
    assert [path.read_text() for path in run.directory.path.glob("junit*")] == ["as before"]
    assert not [event for event in run.directory.events() if event["kind"] == "check"]


def test_scenario_without_applicable_checks_gets_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = lifecycle.create(SCENARIO, FakeProvider(), tmp_path, print)
    (tmp_path / "checks").mkdir()
    for name in ("pytest.ini", "conftest.py", "early_jobs.py"):
        shutil.copy(CHECKS / name, tmp_path / "checks")
    monkeypatch.setattr(pytest_run, "CHECKS", tmp_path / "checks")
    checks, problem = pytest_run.verify(run.directory, print)
    assert checks == []
    assert verdict((check.outcome for check in checks), problem) == "unknown"
    assert "no check fits" in problem  # and no check needs a feature that does not exist


def test_check_that_needs_an_unknown_feature_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = tmp_path / "checks"
    shipped.mkdir()
    shutil.copy(CHECKS / "pytest.ini", shipped)
    check = "import pytest\n\n@pytest.mark.needs('users', 'typo')\ndef test_nothing():\n    pass\n"
    (shipped / "test_it.py").write_text(check)
    monkeypatch.setattr(pytest_run, "CHECKS", shipped)
    run = lifecycle.create(SCENARIO, FakeProvider(), tmp_path, print)
    checks, problem = pytest_run.verify(run.directory, print)
    assert checks == []
    assert "test_it.py::test_nothing: typo" in problem


@pytest.mark.parametrize("select", [(), ("nothing",)])
def test_file_that_cannot_be_read_is_the_reason_that_no_check_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, select: tuple[str, ...]
) -> None:
    shipped = tmp_path / "checks"
    shipped.mkdir()
    shutil.copy(CHECKS / "pytest.ini", shipped)
    (shipped / "test_it.py").write_text("import nowhere_at_all\n")
    (shipped / "test_other.py").write_text("def test_other():\n    pass\n")
    monkeypatch.setattr(pytest_run, "CHECKS", shipped)
    run = lifecycle.create(SCENARIO, FakeProvider(), tmp_path, print)
    checks, problem = pytest_run.verify(run.directory, print, select)
    assert checks == []
    assert "test_it.py" in problem
    assert "No module named 'nowhere_at_all'" in problem


def event(outcome: str, message: str, check: str = "a.py::test_it") -> dict[str, Any]:
    return {"kind": "check", "id": check, "outcome": outcome, "seconds": 1.0, "message": message}


@pytest.mark.parametrize(
    ("first", "last", "outcome", "message"),
    [
        (
            ("failed", "slurmctld is stopped"),
            ("failed", "squeue"),
            "failed",
            "slurmctld is stopped\ncleanup: squeue",
        ),
        (
            ("failed", "no such job"),
            ("error", "host is gone"),
            "failed",
            "no such job\ncleanup: host is gone",
        ),
        (("passed", ""), ("failed", "a job is left"), "failed", "a job is left"),
        (("passed", ""), ("error", "host is gone"), "error", "host is gone"),
    ],
)
def test_failure_of_a_check_comes_before_that_of_its_cleanup(
    first: tuple[str, str], last: tuple[str, str], outcome: str, message: str
) -> None:
    check, other = pytest_run.outcomes(
        [event(*first), event(*last), event("passed", "", "other"), {"kind": "stage"}]
    )
    assert (check.outcome, check.message) == (outcome, message)
    assert (other.outcome, other.message) == ("passed", "")
