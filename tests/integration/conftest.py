"""Tests of the harness on a Docker engine, with real daemons that are broken on purpose."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

import preloaded
import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

import support
from harness.verify import pytest_run
from support import Harness, command_line, environment_of, kept_up

# The most that a worker's run needs: 12 hosts with 7 inotify instances each, and their memory.
_INOTIFY, _MEMORY = 12 * 7, 1.5e9
# Modules whose cases share no run, and modules in which only the cases of a test do. All tests of
# any other module run on one worker.
_BY_CASE = ("change", "reference", "releases", "scenarios", "site_bundle", "upgrade")
_BY_TEST = ("elastic", "sabotage")
# Modules that share the single node and the federation. Faults come last: daemons that they restart
# log errors.
_SHARING = ("stages", "isolation", "faults")
# Modules of which `make test` runs the first sabotage of each kind.
_CORE = ("sabotage", "submissions")
# The scenarios of which `make test` runs all checks.
_IN_MAKE_TEST = ("elastic-l3", "federation", "single-node")
# The longest modules, which start first, so that no worker still runs one when the others are done.
_LONGEST = (
    "sources",
    "ha",
    "sabotage",
    "reference",
    "elastic_failures",
    "submissions",
    "elastic",
    "hybrid",
    "rehearsal",
    "monitoring",
    "simulation",
    "simulated_clock",  # short, but otherwise waits in `make test` for another module to end
    "scheduling",
    "upgrade",
    "change",
    "site_bundle",
    "used_clusters",
    "job_start",
    "diff",
    "engines",
    "apptainer",
    "rest",
    "mpi",
    "login",
    "scenarios",
    "existing",
    "interruptions",
    "pods",
    "dns",
    "directory",
    "schedmd",
    "oci",
    *_SHARING,
)


def pytest_xdist_auto_num_workers() -> int:
    """Four workers per CPU, because tests wait; fewer if memory or inotify is limited."""
    instances = Path("/proc/sys/fs/inotify/max_user_instances")
    enough = int(instances.read_text()) // _INOTIFY if instances.exists() else math.inf
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // _MEMORY
    return int(max(1, min(4 * (os.cpu_count() or 1), enough, memory)))


class _Parts(LoadScopeScheduling):
    """Distribute the tests; those that share a run stay together, in the order of collection."""

    def _split_scope(self, nodeid: str) -> str:
        module = _module(nodeid)
        if module in _BY_CASE:
            return nodeid
        if module in _SHARING:
            return "sharing"
        test, _, case = nodeid.partition("[")
        if module == "sabotage" and self.config.option.markexpr != "core":
            # Those of sabotage.py have one run, and those of all sabotage_*.py another.
            return f"{test}[{case.startswith('sabotage-')}"
        return test if module in _BY_TEST else nodeid.partition("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Use this distribution whatever `--dist` says."""
    config.option.loadscopereorder = False
    return _Parts(config, log)


@pytest.hookimpl(tryfirst=True)  # before pytest reads the marks for -m
def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    """Put the longest modules first; mark the sabotages.

    One of each kind in _CORE is part of `make test`; those of checks that another sabotage has
    broken are part of `make test-exhaustive`.
    """
    order = {module: number for number, module in enumerate(_LONGEST)}
    items.sort(key=lambda item: order.get(_module(item.nodeid), len(order)))
    with_sabotage = [
        item for item in items if "[" in item.nodeid and "sabotage" in item.callspec.params
    ]
    # These break checks of other hosts, or of a Slurm that was compiled.
    unlike_others = {"vagrant", "sources"}
    with_sabotage = [item for item in with_sabotage if _module(item.nodeid) not in unlike_others]
    first_of_each_kind = {
        (
            item.originalname,
            item.callspec.id.partition("-")[0] if _module(item.nodeid) == "sabotage" else "",
        ): item
        for item in reversed(with_sabotage)
        if _module(item.nodeid) in _CORE
    }
    core = [*first_of_each_kind.values()]
    broken: set[str] = set()
    for item in [*core, *with_sabotage]:
        checks = {*item.callspec.params["sabotage"].checks}
        if item in core:
            item.add_marker("core")
        elif checks <= broken:
            item.add_marker("exhaustive")
        broken |= checks


def _module(nodeid: str) -> str:
    return Path(nodeid.partition("::")[0]).stem.removeprefix("test_")


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the session's runs keep their directories."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="session", autouse=True)
def _preloaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let what this process starts fork from a process that has imported it all."""
    path = str(tmp_path_factory.mktemp("preloaded") / "socket")
    with preloaded.server(path), pytest.MonkeyPatch.context() as patch:
        patch.setattr(pytest_run, "_PYTEST", preloaded.program(path, "pytest"))
        patch.setattr(support, "_HARNESS", preloaded.program(path, "harness"))
        yield


@pytest.fixture(scope="session")
def environment(runs: Path) -> dict[str, str]:
    """The environment of the harness's command line."""
    return environment_of(runs)


@pytest.fixture(scope="session")
def harness(environment: dict[str, str]) -> Harness:
    """A function that runs the harness's command line as a user would."""
    return command_line(environment)


@pytest.fixture(scope="session")
def passed_before(pytestconfig: pytest.Config) -> frozenset[str]:
    """The scenarios of which `make test` has run all checks; its other parts come later."""
    expression = pytestconfig.option.markexpr
    return frozenset() if expression in {"", "core"} else frozenset(_IN_MAKE_TEST)


# The federation, passed and still up.
federation = kept_up("federation", scope="session")


# The scenario whose nodes are created for jobs, passed and still up.
elastic_nodes = kept_up("elastic-l3", scope="session")


# The single node, passed and still up.
single_node = kept_up("single-node", scope="session")
