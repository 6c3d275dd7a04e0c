"""Rehearsals on real daemons: rechecking gives the same verdict, and violations are found."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from harness.open_run import OpenRun
from sabotage import REHEARSAL, Sabotage, on_host
from support import Harness, kept_up, verified

SHORT = ("rehearse", "--no-faults", "--jobs", "50", "--seconds", "6")
TRACE = """\
; six jobs of two users
1    0 -1 300 1 -1 -1 1 -1 -1 1 1 1 -1 1 -1 -1 -1
2   60 -1 300 8 -1 -1 8 -1 -1 1 2 1 -1 1 -1 -1 -1
3   90 -1 120 2 -1 -1 2 -1 -1 0 1 1 -1 1 -1 -1 -1
4  120 -1  60 4 -1 -1 4 -1 -1 1 2 1 -1 1 -1  2 60
5  150 -1  60 1 -1 -1 1 -1 -1 1 1 1 -1 1 -1 -1 -1
6  180 -1  -1 1 -1 -1 1 -1 -1 5 1 1 -1 1 -1 -1 -1
"""
DOWN = """
description: A slurmctld that does not start again.
clusters:
  down:
    controller: ctl
    nodes: [{name: n1, cpus: 2}]
users: {alice: {uid: 2001}}
rehearsal:
  jobs: 5
  seconds: 4
  faults:
    - {at: 1, lasts: 6, fault: change-conf ctl SelectType=select/none-such}
    - {at: 2, lasts: 1, fault: kill-daemon ctl slurmctld}
"""


# The federation that went through its faults, passed and still up.
faulty = kept_up("federation-faults")


def test_old_rehearsal_is_rechecked_from_its_recorded_history(
    harness: Harness, faulty: OpenRun
) -> None:
    again = harness("recheck", "--run", faulty.directory.path, "--format", "json")
    assert again.returncode == 0, again.stdout
    verified = json.loads(again.stdout)
    assert verified["verdict"] == "passed"
    assert verified["submissions"]["accepted"] > 200
    faults = [
        (event["fault"], event["action"])
        for event in faulty.directory.events()
        if event["kind"] == "fault"
    ]
    assert faults == [
        (entry.fault, action)
        for entry in faulty.plan.scenario.rehearsal.faults
        for action in ("inject", "injected", "heal")
    ]


def test_trace_is_replayed(harness: Harness, faulty: OpenRun, tmp_path: Path) -> None:
    trace = tmp_path / "trace.swf"
    trace.write_text(TRACE)
    done = harness(
        "rehearse", "--run", faulty.directory.path, "--no-faults", "--trace", trace, "--speed", "60"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # A job that Slurm requeues is executed again.
    seen = re.search(r"PASSED  submissions: 5 accepted; executions seen: (\d+)", done.stdout)
    assert seen, done.stdout
    assert int(seen[1]) >= 5, done.stdout


@pytest.mark.parametrize("sabotage", REHEARSAL, ids=str)
def test_rehearsal_finds_violations(harness: Harness, faulty: OpenRun, sabotage: Sabotage) -> None:
    on_host(faulty, *sabotage.do)
    try:
        done = harness(*SHORT, "--run", faulty.directory.path)
    finally:
        on_host(faulty, *sabotage.undo)
    assert done.returncode == 1, done.stdout + done.stderr
    missing = [line for line in sabotage.message.splitlines() if line not in done.stdout]
    assert not missing, done.stdout


def test_daemon_that_does_not_restart_is_the_only_failure(harness: Harness, tmp_path: Path) -> None:
    path = tmp_path / "down.yml"
    path.write_text(DOWN)
    done = verified(harness, path, ["rehearsal_shows"])
    assert done.returncode == 1, done.stdout + done.stderr
    assert "slurmctld on ctl failed: fatal: " in done.stdout
    failed = {*re.findall(r"failed +(test_\S+)", done.stderr)}
    assert failed == {"test_rehearsal.py::test_rehearsal_shows_that[no_accepted_job_is_lost]"}
    assert "1 failed" in done.stdout
