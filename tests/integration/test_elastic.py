"""Elastic resume on two sites at once, and nodes that power themselves down."""

from __future__ import annotations

from pathlib import Path

import docker
import pytest

from harness import rundir
from harness.open_run import OpenRun
from sabotage import CLOUDBURST, Sabotage, break_and_verify
from support import SCENARIOS, Harness, kept_up, verified

# The checks that are about powering nodes up and down.
CHECKS = ("elastic", "runs_its_daemons", "without_an_error", "accounting_matches")


# Nodes that shut themselves down: slurmd runs the program, not slurmctld.
POWER_ACTION = """\
    lines:
      - {PowerAction: off, Location: slurmd, Program: "/usr/sbin/shutdown -h now"}
    options:
      SuspendProgram: off
"""


# The federation that bursts, passed and still up.
cloudburst = kept_up("cloudburst")


@pytest.mark.parametrize("sabotage", CLOUDBURST, ids=str)
def test_check_fails_on_a_broken_cloudburst(cloudburst: OpenRun, sabotage: Sabotage) -> None:
    break_and_verify(cloudburst, sabotage)


def test_nodes_may_power_themselves_down(harness: Harness, runs: Path, tmp_path: Path) -> None:
    path = tmp_path / "self.yml"
    path.write_text(
        (SCENARIOS / "elastic-l2.yml").read_text().replace("    options:\n", POWER_ACTION)
    )
    done = verified(harness, path, CHECKS, "--release", "26.05")
    assert done.returncode == 0, done.stdout + done.stderr
    of_run = {"label": f"harness.run={rundir.find(runs, path.stem).id}"}
    assert not docker.from_env(timeout=300).volumes.list(filters=of_run)
    asked = [event for event in rundir.find(runs, "self").events() if event["kind"] == "power"]
    assert {event["action"] for event in asked} >= {"resume", "up"}
    assert not [event for event in asked if event["action"] == "suspend"], (
        "the API was asked to do it"
    )
