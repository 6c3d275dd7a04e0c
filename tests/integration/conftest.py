"""The harness itself on a real engine: genuine daemons, broken on purpose."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.live import Live
from support import Harness, command_line, environment_of, kept

# What a worker's run wants at most: 12 hosts with 7 inotify instances each, and their memory.
_INOTIFY, _MEMORY = 12 * 7, 1.5e9
# Runs that tests of several modules share: one worker has all of these tests.
_SHARED = ("federation", "single_node", "elastic_nodes")
# Modules whose tests share no run: each may have a worker of its own. The tests of another module have one.
_APART = {"judge", "releases", "scenarios", "upgrade"}
# What takes minutes: no worker shall begin with that when others end.
_LONGEST = (
    "federation",
    "elastic",
    "elastic_failures",
    "ha",
    "rehearsal",
    "engines",
    "single_node",
    "hybrid",
    "upgrade",
    "judge",
)


def pytest_xdist_auto_num_workers() -> int:
    """Two workers for a CPU and one more, because tests wait; fewer where the machine is too small for their runs."""
    instances = Path("/proc/sys/fs/inotify/max_user_instances")
    enough = int(instances.read_text()) // _INOTIFY if instances.exists() else math.inf
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // _MEMORY
    return int(max(1, min(2 * (os.cpu_count() or 1) + 1, enough, memory)))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test the group that one worker has, and put first what takes longest."""

    def part(item: pytest.Item) -> str:
        shared = (name for name in _SHARED if name in getattr(item, "fixturenames", ()))
        return next(shared, item.path.stem.removeprefix("test_"))

    items.sort(key=lambda item: _LONGEST.index(part(item)) if part(item) in _LONGEST else len(_LONGEST))
    for item in items:
        if part(item) not in _APART:
            item.add_marker(pytest.mark.xdist_group(part(item)))


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
