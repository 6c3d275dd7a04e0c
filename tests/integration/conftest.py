"""The harness itself on a real engine: genuine daemons, broken on purpose."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import lifecycle, providers, rundir
from harness.lifecycle import Live
from support import SCENARIOS, Done, Harness, command


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the session's runs keep their directories."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="session")
def environment(runs: Path) -> dict[str, str]:
    """The environment of the harness's command line."""
    return {**os.environ, "HARNESS_RUNS": str(runs), "NO_COLOR": "1"}


@pytest.fixture(scope="session")
def harness(environment: dict[str, str]) -> Harness:
    """Run the harness's command line as a user would."""

    def run(*arguments: str | Path) -> Done:
        return subprocess.run(command(*arguments), env=environment, capture_output=True, text=True, check=False)

    return run


def kept(harness: Harness, runs: Path, scenario: str) -> Iterator[Live]:
    """Run a scenario, which must pass, and keep it up for tests that break it."""
    done = harness("run", SCENARIOS / f"{scenario}.yml", "--keep")
    live = lifecycle.open_run(rundir.find(runs, scenario), providers.get("docker"), print)
    try:
        assert done.returncode == 0, done.stdout + done.stderr
        yield live
    finally:
        lifecycle.down(live)


@pytest.fixture(scope="session")
def federation(harness: Harness, runs: Path) -> Iterator[Live]:
    """The federation, passed and still up."""
    yield from kept(harness, runs, "federation")


@pytest.fixture(scope="session")
def elastic_nodes(harness: Harness, runs: Path) -> Iterator[Live]:
    """Nodes that are made for jobs, passed and still up."""
    yield from kept(harness, runs, "elastic-l3")


@pytest.fixture(scope="session")
def single_node(harness: Harness, runs: Path) -> Iterator[Live]:
    """The single node, passed and still up."""
    yield from kept(harness, runs, "single-node")
