"""Fixtures for tests on genuine Slurm clusters: docs/pytest.md. A session whose tests use none of them is left alone.

The harness itself is imported when a fixture is, so that other sessions do not pay for it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from testinfra.host import Host

    from harness.clients import Rest
    from harness.live import Live
    from harness.slurm import SlurmCluster
    from harness.ssh import Result
    from harness.testing import Faults, Federation, Slurm

_RUN = "harness_run"
_USER = pytest.StashKey["Slurm"]()
_FAULTS = pytest.StashKey["Faults"]()


class _Scenario(NamedTuple):
    """What a marker or the option --scenario names, and the marker's releases."""

    path: Path
    releases: tuple[str, ...] = ()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that say which clusters the tests are on."""
    group = parser.getgroup("slurm-harness", "tests on genuine Slurm clusters")
    group.addoption("--scenario", type=Path, metavar="FILE", help="scenario of the clusters that tests are on")
    group.addoption("--harness-run", metavar="RUN", help="run that tests are on: its directory, id or scenario's name")
    group.addoption("--harness-release", action="append", metavar="RELEASE", help="as `harness run --release`")
    group.addoption("--harness-set", action="append", metavar="KEY=VALUE", help="as `harness run --set`")
    group.addoption("--harness-keep", action="store_true", help="leave a run up that the session has started")


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line(
        "markers",
        "scenario(*files, release=None): the test is on clusters of these scenario files, on one after the other; "
        'release is that of all parts, as "22.05", or of one, as "aws=22.05", or a list of these',
    )


@pytest.hookimpl(trylast=True)  # other parameters may have marks
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Have pytest order tests by their scenarios, which are up one after the other."""
    if _RUN not in metafunc.fixturenames:
        return
    item = metafunc.definition
    # pytest has no public way to see the marks of parameters here; a list of them may be a generator, read once.
    of_calls = [_of(item, call.marks) for call in metafunc._calls] or [_of(item)]
    scenarios = list(dict.fromkeys(scenario for found in of_calls for scenario in found))
    if scenarios == [None]:
        return
    names = ["-".join([one.path.stem, *one.releases]) if one else "none" for one in scenarios]
    metafunc.parametrize(_RUN, scenarios, indirect=True, scope="session", ids=names)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep each test on the scenarios of its own parameters' marks only."""

    def fits(item: pytest.Item) -> bool:
        call = getattr(item, "callspec", None)
        wanted = call.params.get(_RUN, "") if call else ""  # "": the test is on no clusters
        return not call or not isinstance(wanted, _Scenario | None) or wanted in _of(item, call.marks)

    items[:] = filter(fits, items)


def _of(item: pytest.Item, marks: Iterable[pytest.Mark] = ()) -> list[_Scenario | None]:
    """Return the scenarios that a test is on: its parameters' mark, or else its own, or else the option's or None."""
    config = item.config
    marker = next((mark for mark in marks if mark.name == "scenario"), None) or item.get_closest_marker("scenario")
    if not marker:
        path: Path | None = config.getoption("--scenario")
        return [_Scenario((config.invocation_params.dir / path).resolve())] if path else [None]
    if not marker.args:
        pytest.fail(f"{item.nodeid}: its marker scenario() names no file", pytrace=False)
    if unknown := marker.kwargs.keys() - {"release"}:
        pytest.fail(f"{item.nodeid}: its marker scenario() does not take {', '.join(sorted(unknown))}", pytrace=False)
    release = marker.kwargs.get("release") or ()
    releases = tuple(release) if isinstance(release, list | tuple) else (release,)
    if not all(isinstance(word, str) for word in releases) or not all(isinstance(f, str | Path) for f in marker.args):
        pytest.fail(f"{item.nodeid}: its marker scenario() takes texts: files, and release=", pytrace=False)
    return [_Scenario((config.rootpath / file).resolve(), releases) for file in marker.args]


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


def _run_of(config: pytest.Config, scenario: _Scenario | None) -> AbstractContextManager[Live]:
    from harness import providers, rundir, sessions
    from harness.errors import UsageError

    runs = Path(os.environ.get("HARNESS_RUNS", "runs"))
    say = _say(config)
    wanted = None
    if scenario:
        # The marker's come last: a release for all parts overrides what came before.
        releases = (*(config.getoption("--harness-release") or ()), *scenario.releases)
        wanted = sessions.Wanted(scenario.path, releases, tuple(config.getoption("--harness-set") or ()))
    if which := config.getoption("--harness-run"):
        run = rundir.find(runs, which)
        return sessions.opened(run, providers.get(run.provider, runs), say, wanted)
    if wanted is None:
        raise UsageError("no clusters", hint="pytest --scenario FILE, --harness-run RUN or @pytest.mark.scenario(FILE)")
    keep = config.getoption("--harness-keep")
    return sessions.of_scenario(wanted, providers.get("docker", runs), runs, say, keep=keep)


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
    from harness.errors import WaitTimeout
    from harness.testing import Slurm

    user = Slurm.of(harness_run.ssh, harness_run.plan)
    request.node.stash[_USER] = user
    yield user
    faults = request.node.stash.get(_FAULTS, None)
    left = []
    for clean in (user.cancel_all, faults.wait_until_ready if faults else None):
        try:
            if clean:
                clean()
        except WaitTimeout as error:
            left.append(str(error))
    if left:
        raise pytest.fail.Exception("\n".join(["the test leaves something behind:", *left]), pytrace=False)


@pytest.fixture
def faults(request: pytest.FixtureRequest, harness_run: Live, slurm: Slurm) -> Iterator[Faults]:
    """What breaks on purpose. When the test is over, all is healed and the clusters take jobs again."""
    from harness.testing import Faults

    # The clusters are awaited when the jobs of the test are gone: by `slurm`, whose end comes after this one's.
    request.node.stash[_FAULTS] = faults = Faults(harness_run)
    yield faults
    faults.heal_all()


@pytest.fixture
def rest(harness_run: Live, slurm: Slurm) -> Iterator[Rest]:
    """The REST API of the scenario's first cluster with one, for the user of `slurm`."""
    from harness import clients

    with clients.rest(harness_run.ssh, harness_run.plan, slurm) as api:
        yield api


@pytest.fixture
def run_client(request: pytest.FixtureRequest, slurm: Slurm) -> Callable[..., Result]:
    """Run a Python program on the controller's host, with packages that are installed here: docs/pytest.md."""
    from harness import clients

    def run(program: str | Path, *packages: str, python: str = "", timeout: float = 300) -> Result:
        __tracebackhide__ = True
        try:
            return clients.run_client(slurm, request.path.parent / program, packages, python, timeout)
        except clients.UnsuitablePython as error:
            pytest.skip(str(error))

    return run


def _say(config: pytest.Config) -> Callable[[str], None]:
    """Return what shows progress although pytest takes what tests print; with pytest-xdist it names the worker."""
    capture = config.pluginmanager.get_plugin("capturemanager")
    worker = getattr(config, "workerinput", {}).get("workerid", "")
    name = f"slurm-harness {worker}".rstrip()

    def say(text: str) -> None:
        with capture.global_and_fixture_disabled() if capture else nullcontext():
            print(f"{name}: {text}", file=sys.stderr, flush=True)

    return say
