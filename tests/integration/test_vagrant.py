"""Virtual machines: the smallest scenario with all that only they show, broken on purpose; what a killed run leaves.

It runs where `harness doctor --provider vagrant` finds nothing missing; it installs nothing.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import doctor, providers, rundir
from harness.live import Live
from harness.wait import wait_until
from sabotage import MACHINE, Sabotage, break_and_judge
from support import SCENARIOS, Harness, command, kept

MISSING = [finding for finding in doctor.examine("vagrant") if finding.fatal and not finding.ok]
pytestmark = pytest.mark.skipif(
    bool(MISSING),
    reason="NOT RUN, nothing is proven of virtual machines here: "
    + "; ".join(f"{finding.subject}: {finding.said}" for finding in MISSING)
    + "; as root, `harness doctor --provider vagrant --mend`",
)


@pytest.fixture(scope="module")
def machine(harness: Harness, runs: Path) -> Iterator[Live]:
    """A single node that is a virtual machine, passed and still up."""
    yield from kept(harness, runs, "single-node", "--provider", "vagrant")


@pytest.mark.parametrize("sabotage", MACHINE, ids=str)
def test_check_fails_on_a_broken_machine(machine: Live, sabotage: Sabotage) -> None:
    break_and_judge(machine, sabotage)


def test_nothing_is_left_of_a_run_that_was_killed_and_lost_its_directory(
    harness: Harness, environment: dict[str, str], runs: Path
) -> None:
    libvirt = providers.get("vagrant", runs)
    before = {*libvirt.runs()}
    words = command("up", SCENARIOS / "single-node.yml", "--provider", "vagrant")
    with subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL) as process:
        try:
            (run_id,) = wait_until(
                lambda: [run_id for run_id in libvirt.runs() if run_id not in before and libvirt.hosts(run_id)],
                bool,
                what="a machine is made",
                timeout=120,
                hopeless=lambda _: process.poll() is not None,
            )
        finally:
            process.kill()
    rundir.find(runs, run_id).path.rename(runs / "lost")
    down = harness("down", "--provider", "vagrant", run_id)
    assert down.returncode == 0, down.stderr
    assert run_id not in libvirt.runs()
