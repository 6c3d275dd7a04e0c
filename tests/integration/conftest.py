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
_INOTIFY, _MEMORY = 12 * 7, 3e9
# The modules that take minutes: one worker has a whole module, and none shall begin with such a one when others end.
_LONGEST = ("sabotage", "elastic", "judge", "upgrade", "ha", "rehearsal", "elastic_failures", "releases", "engines")


def pytest_xdist_auto_num_workers() -> int:
    """One worker more than there are CPUs, because tests wait; fewer where the machine is too small for their runs."""
    instances = Path("/proc/sys/fs/inotify/max_user_instances")
    enough = int(instances.read_text()) // _INOTIFY if instances.exists() else math.inf
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // _MEMORY
    return int(max(1, min((os.cpu_count() or 1) + 1, enough, memory)))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the modules that take longest first."""
    last = len(_LONGEST)
    order = {f"test_{name}": number for number, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: order.get(item.path.stem, last))


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
