"""What the tests of the harness itself share."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from harness import lifecycle, providers, rundir
from harness.live import Live

SCENARIOS = Path(__file__).parents[2] / "scenarios"
Done = subprocess.CompletedProcess[str]
Harness = Callable[..., Done]


def command(*arguments: str | Path) -> list[str]:
    """Return the command line of the harness."""
    return [sys.executable, "-m", "harness", *map(str, arguments)]


def kept(harness: Harness, runs: Path, scenario: str) -> Iterator[Live]:
    """Run a scenario, which must pass, and keep it up for tests that break it."""
    done = harness("run", SCENARIOS / f"{scenario}.yml", "--keep")
    live = lifecycle.open_run(rundir.find(runs, scenario), providers.get("docker"), print)
    try:
        assert done.returncode == 0, done.stdout + done.stderr
        yield live
    finally:
        lifecycle.down(live)
