from __future__ import annotations

from pathlib import Path

from fakes import SCENARIO, FakeProvider
from harness import inventory, lifecycle, report, verify


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


def test_no_check_at_all_judges_nothing(tmp_path: Path) -> None:
    live = lifecycle.create(SCENARIO, FakeProvider(), tmp_path, print)
    checks, problem = verify.verify(live.run, print, ["no_check_has_this_name"])
    assert checks == []
    assert report.judge(checks, problem) == "unknown"
    assert "no check fits" in problem
