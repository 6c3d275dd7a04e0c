"""The harness itself on a real engine: genuine daemons, broken on purpose."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.live import Live
from support import Harness, command_line, environment_of, kept

# What two runs side by side want at most: 24 hosts with 7 inotify instances each, and their memory.
_INOTIFY, _MEMORY_GB = 2 * 12 * 7, 6


def pytest_xdist_auto_num_workers() -> int:
    """Two workers (most of a test is waiting for Slurm), or one where the machine is too small for two clusters."""
    instances = Path("/proc/sys/fs/inotify/max_user_instances")
    enough = not instances.exists() or int(instances.read_text()) >= _INOTIFY
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return 2 if enough and memory >= _MEMORY_GB else 1


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the session's runs keep their directories."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="session")
def environment(runs: Path) -> dict[str, str]:
    """The environment of the harness's command line."""
    return environment_of(runs)


@pytest.fixture(scope="session")
def harness(environment: dict[str, str]) -> Harness:
    """Run the harness's command line as a user would."""
    return command_line(environment)


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
