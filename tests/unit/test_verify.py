from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fakes import SCENARIO, FakeProvider
from harness import inventory, lifecycle, report, verify
from harness.errors import UsageError
from harness.resources import CHECKS


def test_checks_on_hosts_that_do_not_answer_judge_nothing(tmp_path: Path) -> None:
    live = lifecycle.create(SCENARIO, FakeProvider(), tmp_path, print)
    machines = [inventory.Machine(host.name, "127.0.0.1", 1) for host in live.plan.hosts]
    config = inventory.ssh_config(
        machines, live.run.key("ssh_key"), tmp_path / "known", live.run.control_directory, live.run.machines
    )
    live.run.ssh_config.write_text(config)
    checks, problem = verify.verify(live.run, print)
    assert checks
    assert {check.outcome for check in checks} == {"error"}
    assert report.judge(checks, problem) == "unknown"


def test_signal_while_the_checks_start_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live = lifecycle.create(SCENARIO, FakeProvider(), tmp_path, print)
    started = []

    class Started(subprocess.Popen[str]):
        def __init__(self, *_: Any, **__: Any) -> None:
            super().__init__(["sleep", "300"], stdout=subprocess.PIPE, text=True)
            started.append(self)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(subprocess, "Popen", Started)
    with pytest.raises(KeyboardInterrupt):
        verify.verify(live.run, print)
    (process,) = started
    assert process.wait(timeout=60) == -signal.SIGTERM


@pytest.mark.parametrize(
    ("select", "message", "hint"),
    [
        (
            ["no_check_has_this_name"],
            'no check has "no_check_has_this_name" in its name',
            "the names of all checks are",
        ),
        (["batch_jop_runs"], 'no check has "batch_jop_runs" in its name', "did you mean batch_job_runs"),
        (["batch_job", "munge_credentail"], 'no check has "munge_credentail"', "did you mean munge_credential"),
        (["federation"], 'the checks with "federation" in their name do not fit this scenario', None),
    ],
)
def test_selection_of_nothing_is_a_usage_error_and_leaves_the_report(
    select: list[str], message: str, hint: str | None, tmp_path: Path
) -> None:
    live = lifecycle.create(SCENARIO, FakeProvider(), tmp_path, print)
    (live.run.path / "junit.xml").write_text("as before")
    with pytest.raises(UsageError) as caught:
        verify.verify(live.run, print, select)
    assert message in caught.value.message
    assert caught.value.hint is None if hint is None else str(caught.value.hint).startswith(hint)
    assert [path.read_text() for path in live.run.path.glob("junit*")] == ["as before"]
    assert not [event for event in live.run.events() if event["kind"] == "check"]


def test_scenario_that_no_check_fits_is_not_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live = lifecycle.create(SCENARIO, FakeProvider(), tmp_path, print)
    (tmp_path / "checks").mkdir()
    for name in ("pytest.ini", "conftest.py"):
        shutil.copy(CHECKS / name, tmp_path / "checks")
    monkeypatch.setattr(verify, "CHECKS", tmp_path / "checks")
    checks, problem = verify.verify(live.run, print)
    assert checks == []
    assert report.judge(checks, problem) == "unknown"
    assert "no check fits" in problem  # and no check needs a feature that there is not


def test_check_that_needs_an_unknown_feature_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = tmp_path / "checks"
    shipped.mkdir()
    shutil.copy(CHECKS / "pytest.ini", shipped)
    check = "import pytest\n\n@pytest.mark.needs('users', 'typo')\ndef test_nothing():\n    pass\n"
    (shipped / "test_it.py").write_text(check)
    monkeypatch.setattr(verify, "CHECKS", shipped)
    live = lifecycle.create(SCENARIO, FakeProvider(), tmp_path, print)
    checks, problem = verify.verify(live.run, print)
    assert checks == []
    assert "test_it.py::test_nothing: typo" in problem


def event(outcome: str, message: str, check: str = "a.py::test_it") -> dict[str, Any]:
    return {"kind": "check", "id": check, "outcome": outcome, "seconds": 1.0, "message": message}


@pytest.mark.parametrize(
    ("first", "last", "outcome", "message"),
    [
        (("failed", "slurmctld is stopped"), ("failed", "squeue"), "failed", "slurmctld is stopped\nclean-up: squeue"),
        (("failed", "no such job"), ("error", "host is gone"), "failed", "no such job\nclean-up: host is gone"),
        (("passed", ""), ("failed", "a job is left"), "failed", "a job is left"),
        (("passed", ""), ("error", "host is gone"), "error", "host is gone"),
    ],
)
def test_what_a_check_found_comes_before_what_its_clean_up_found(
    first: tuple[str, str], last: tuple[str, str], outcome: str, message: str
) -> None:
    check, other = verify.outcomes([event(*first), event(*last), event("passed", "", "other"), {"kind": "stage"}])
    assert (check.outcome, check.message) == (outcome, message)
    assert (other.outcome, other.message) == ("passed", "")
