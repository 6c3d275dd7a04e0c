"""The harness itself on a real engine: genuine daemons, broken on purpose."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.live import Live
from support import Done, Harness, command, kept


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
