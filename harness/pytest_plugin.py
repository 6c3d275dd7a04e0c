"""Fixtures for tests on genuine Slurm clusters: docs/pytest.md. A session whose tests use none of them is left alone.

The harness itself is imported when a fixture is, so that other sessions do not pay for it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from testinfra.host import Host

    from harness.live import Live
    from harness.slurm import SlurmCluster
    from harness.testing import Faults, Federation, Slurm

_RUN = "harness_run"
_USER = pytest.StashKey["Slurm"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that say which clusters the tests are on."""
    group = parser.getgroup("slurm-harness", "tests on genuine Slurm clusters")
    group.addoption("--scenario", type=Path, metavar="FILE", help="scenario of the clusters that tests are on")
    group.addoption("--harness-run", metavar="RUN", help="run that tests are on: its directory, id or scenario's name")
    group.addoption("--harness-release", action="append", metavar="RELEASE", help="as `harness run --release`")
    group.addoption("--harness-keep", action="store_true", help="leave a run up that the session has started")


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line(
        "markers", "scenario(*files): the test is on clusters of these scenario files, on one after the other"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Have pytest order tests by their scenarios, which are up one after the other."""
    if _RUN not in metafunc.fixturenames:
        return
    config = metafunc.config
    paths = [config.invocation_params.dir / path for path in [config.getoption("--scenario")] if path]
    if marker := metafunc.definition.get_closest_marker("scenario"):
        if not marker.args:
            pytest.fail(f"{metafunc.definition.nodeid}: its marker scenario() names no file", pytrace=False)
        paths = [config.rootpath / file for file in marker.args]
    if paths:
        paths = [path.resolve() for path in paths]
        metafunc.parametrize(_RUN, paths, indirect=True, scope="session", ids=[path.stem for path in paths])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show with a test that failed what its jobs and the daemons did."""
    report = yield
    used = item.stash.get(_USER, None)
    if used and call.when == "call" and report.failed:
        from harness import evidence

        report.sections += evidence.of_failure(used, call.start, call.stop, str(report.longrepr))
    return report


@pytest.fixture(scope="session")
def harness_run(request: pytest.FixtureRequest) -> Iterator[Live]:
    """The run that the test is on: --harness-run, or one of the marker's scenario, or else of --scenario."""
    from harness.errors import HarnessError

    with ExitStack() as stack:
        try:
            live = stack.enter_context(_run_of(request.config, getattr(request, "param", None)))
        except HarnessError as error:
            raise pytest.fail.Exception(str(error), pytrace=False) from None
        yield live


def _run_of(config: pytest.Config, wanted: Path | None) -> AbstractContextManager[Live]:
    from harness import providers, rundir, sessions
    from harness.errors import UsageError

    runs = Path(os.environ.get("HARNESS_RUNS", "runs"))
    say = _say(config)
    if which := config.getoption("--harness-run"):
        run = rundir.find(runs, which)
        return sessions.opened(run, providers.get(run.provider, runs), say, wanted)
    if wanted is None:
        raise UsageError("no clusters", hint="pytest --scenario FILE, --harness-run RUN or @pytest.mark.scenario(FILE)")
    choices, keep = config.getoption("--harness-release") or (), config.getoption("--harness-keep")
    return sessions.of_scenario(wanted, providers.get("docker", runs), runs, say, choices=choices, keep=keep)


@pytest.fixture(scope="session")
def clusters(harness_run: Live) -> dict[str, SlurmCluster]:
    """The live clusters by their names, which root asks."""
    from harness import slurm

    return slurm.clusters(harness_run.ssh, harness_run.plan)


@pytest.fixture(scope="session")
def hosts(harness_run: Live) -> dict[str, Host]:
    """Testinfra's hosts by their names, but for those that come and go."""
    import testinfra

    ssh = harness_run.ssh
    return {
        host.name: testinfra.get_host(f"ssh://{host.name}", ssh_config=str(ssh.config), sudo=ssh.sudo)
        for host in harness_run.plan.lasting_hosts()
    }


@pytest.fixture(scope="session")
def federation(harness_run: Live, clusters: dict[str, SlurmCluster]) -> Federation:
    """The scenario's first federation of more than one cluster; a scenario without any fails the test."""
    from harness import testing

    return testing.federation(harness_run.plan, clusters)


@pytest.fixture
def slurm(request: pytest.FixtureRequest, harness_run: Live) -> Iterator[Slurm]:
    """The scenario's first user at its first cluster. When the test is over, the jobs submitted meanwhile are gone."""
    from harness.testing import Slurm

    user = Slurm.of(harness_run.ssh, harness_run.plan)
    request.node.stash[_USER] = user
    yield user
    user.cancel_all()


@pytest.fixture
def faults(harness_run: Live, slurm: Slurm) -> Iterator[Faults]:
    """What breaks on purpose. When the test is over, all is healed and the clusters take jobs again."""
    from harness.testing import Faults

    faults = Faults(harness_run)
    yield faults
    faults.heal_all()
    slurm.cancel_all()
    faults.wait_until_ready()


def _say(config: pytest.Config) -> Callable[[str], None]:
    """Return what shows progress although pytest takes what tests print."""
    capture = config.pluginmanager.get_plugin("capturemanager")

    def say(text: str) -> None:
        with capture.global_and_fixture_disabled() if capture else nullcontext():
            print(f"slurm-harness: {text}", file=sys.stderr, flush=True)

    return say
