"""Fixtures for tests on real Slurm clusters: docs/pytest.md.

Sessions whose tests use none of them are unaffected. The harness itself is imported when a fixture
is first used, so that other sessions are not slowed down.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import pytest

if TYPE_CHECKING:
    from testinfra.host import Host

    from harness.cluster.slurm import SlurmCluster
    from harness.open_run import OpenRun
    from harness.pytest_plugin.clients import Rest
    from harness.ssh import Result
    from harness.testing import Faults, Federation, Slurm

_RUN = "harness_run"
_Scope = Literal["session", "package", "module", "class", "function"]
_USER = pytest.StashKey["Slurm"]()
_FAULTS = pytest.StashKey["Faults"]()


class _Scenario(NamedTuple):
    """A file that a marker or the option --scenario names, and the marker's releases."""

    path: Path
    releases: tuple[str, ...] = ()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that choose the tests' clusters."""
    group = parser.getgroup("slurm-harness", "tests on real Slurm clusters")
    group.addoption("--scenario", type=Path, metavar="FILE", help="scenario of the tests' clusters")
    group.addoption(
        "--harness-run",
        metavar="RUN",
        help="existing run to test on: its directory, id or scenario",
    )
    group.addoption(
        "--harness-release", action="append", metavar="RELEASE", help="as `harness run --release`"
    )
    group.addoption(
        "--harness-set", action="append", metavar="KEY=VALUE", help="as `harness run --set`"
    )
    group.addoption(
        "--harness-keep", action="store_true", help="keep the runs that the session starts"
    )
    group.addoption(
        "--harness-scope",
        choices=get_args(_Scope),
        default="session",
        help="tests that share clusters: function starts new ones for each test (default: session)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and refuse options that contradict each other."""
    options = config.option
    if options.harness_scope != "session" and (options.harness_run or options.harness_keep):
        raise pytest.UsageError(
            f"--harness-scope {options.harness_scope} starts new clusters and removes them: "
            "leave out --harness-run and --harness-keep"
        )
    config.addinivalue_line(
        "markers",
        "scenario(*files, release=None): "
        "run the test on the clusters of each of these scenario files in turn; "
        'release applies to all parts, as "22.05", or to one, as "aws=22.05", '
        "or is a list of these",
    )


@pytest.hookimpl(trylast=True)  # other parameters may have marks
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Group tests by scenario, so that the clusters of one scenario are up at a time."""
    if _RUN not in metafunc.fixturenames:
        return
    item = metafunc.definition
    # pytest has no public access to the marks of parameters here; their list may be a generator,
    # which can be read only once.
    of_calls = [_of(item, call.marks) for call in metafunc._calls] or [_of(item)]
    scenarios = list(dict.fromkeys(scenario for of_call in of_calls for scenario in of_call))
    if scenarios == [None]:
        return
    names = [
        "-".join([scenario.path.stem, *scenario.releases]) if scenario else "none"
        for scenario in scenarios
    ]
    scope = _scope(_RUN, metafunc.config)
    metafunc.parametrize(_RUN, scenarios, indirect=True, scope=scope, ids=names)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Remove combinations of a test's parameters with scenarios that their marks do not name."""

    def fits(item: pytest.Item) -> bool:
        call = getattr(item, "callspec", None)
        wanted = call.params.get(_RUN, "") if call else ""  # "": the test uses no clusters
        return (
            not call or not isinstance(wanted, _Scenario | None) or wanted in _of(item, call.marks)
        )

    items[:] = filter(fits, items)


def _of(item: pytest.Item, marks: Iterable[pytest.Mark] = ()) -> list[_Scenario | None]:
    """Return a test's scenarios.

    They come from the mark of its parameters, else its own mark, else --scenario; else [None].
    """
    config = item.config
    marker = next(
        (mark for mark in marks if mark.name == "scenario"), None
    ) or item.get_closest_marker("scenario")
    if not marker:
        path: Path | None = config.getoption("--scenario")
        return [_Scenario((config.invocation_params.dir / path).resolve())] if path else [None]
    if not marker.args:
        pytest.fail(f"{item.nodeid}: the marker scenario() needs a file", pytrace=False)
    if unknown := marker.kwargs.keys() - {"release"}:
        pytest.fail(
            f"{item.nodeid}: the marker scenario() does not take {', '.join(sorted(unknown))}",
            pytrace=False,
        )
    release = marker.kwargs.get("release") or ()
    releases = tuple(release) if isinstance(release, list | tuple) else (release,)
    if not all(isinstance(word, str) for word in releases) or not all(
        isinstance(f, str | Path) for f in marker.args
    ):
        pytest.fail(
            f"{item.nodeid}: its marker scenario() takes only strings: files, and release=",
            pytrace=False,
        )
    return [_Scenario((config.rootpath / file).resolve(), releases) for file in marker.args]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add what the jobs and the daemons did to the report of a failed test."""
    report = yield
    used = item.stash.get(_USER, None)
    if used and call.when == "call" and report.failed:
        from harness.pytest_plugin import evidence

        report.sections += evidence.of_failure(used, call.start, call.stop, str(report.longrepr))
    return report


def _scope(fixture_name: str, config: pytest.Config) -> _Scope:
    """Return the scope of the fixtures that belong to a run."""
    scope: _Scope = config.getoption("--harness-scope")
    return scope


@pytest.fixture(scope=_scope)
def harness_run(request: pytest.FixtureRequest) -> Iterator[OpenRun]:
    """The test's run: from --harness-run, the marker's scenario, or --scenario."""
    from harness.errors import HarnessError

    with ExitStack() as stack:
        try:
            run = stack.enter_context(_run_of(request.config, getattr(request, "param", None)))
        except HarnessError as error:
            raise pytest.fail.Exception(str(error), pytrace=False) from None
        yield run


def _run_of(config: pytest.Config, scenario: _Scenario | None) -> AbstractContextManager[OpenRun]:
    from harness import providers, rundir
    from harness.errors import UsageError
    from harness.pytest_plugin import sessions

    runs = Path(os.environ.get("HARNESS_RUNS", "runs"))
    say = _say(config)
    wanted = None
    if scenario:
        # The marker's releases come last: a release for all parts overrides those before it.
        releases = (*(config.getoption("--harness-release") or ()), *scenario.releases)
        wanted = sessions.WantedClusters(
            scenario.path, releases, tuple(config.getoption("--harness-set") or ())
        )
    if which := config.getoption("--harness-run"):
        run = rundir.find(runs, which)
        return sessions.opened(run, providers.get(run.provider, runs), say, wanted)
    if wanted is None:
        raise UsageError(
            "the test needs clusters, but no scenario or run is named",
            hint="pytest --scenario FILE, --harness-run RUN or @pytest.mark.scenario(FILE)",
        )
    keep = config.getoption("--harness-keep")
    new = config.getoption("--harness-scope") != "session"
    provider = providers.get("docker", runs)
    return sessions.of_scenario(wanted, provider, runs, say, keep=keep, new=new)


@pytest.fixture(scope=_scope)
def clusters(harness_run: OpenRun) -> dict[str, SlurmCluster]:
    """The live clusters by name; their commands run as root."""
    from harness.cluster import slurm

    return slurm.clusters(harness_run.ssh, harness_run.plan)


@pytest.fixture(scope=_scope)
def hosts(harness_run: OpenRun) -> dict[str, Host]:
    """Testinfra's hosts by name, without those that come and go."""
    import testinfra

    ssh = harness_run.ssh
    return {
        host.name: testinfra.get_host(
            f"ssh://{host.name}", ssh_config=str(ssh.config), sudo=ssh.sudo
        )
        for host in harness_run.plan.permanent_hosts()
    }


@pytest.fixture(scope=_scope)
def federation(harness_run: OpenRun, clusters: dict[str, SlurmCluster]) -> Federation:
    """The scenario's first federation of several clusters; the test fails if there is none."""
    from harness import testing

    return testing.federation(harness_run.plan, clusters)


@pytest.fixture
def slurm(request: pytest.FixtureRequest, harness_run: OpenRun) -> Iterator[Slurm]:
    """The scenario's first user on its first cluster.

    After the test, all jobs submitted during it are cancelled.
    """
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
        raise pytest.fail.Exception(
            "\n".join(["the test has left something behind:", *left]), pytrace=False
        )


@pytest.fixture
def faults(request: pytest.FixtureRequest, harness_run: OpenRun, slurm: Slurm) -> Iterator[Faults]:
    """Injects faults. After the test, all faults are healed and the clusters take jobs again."""
    from harness.testing import Faults

    # `slurm`, which is torn down after this, waits for the clusters once the test's jobs are gone.
    request.node.stash[_FAULTS] = faults = Faults(harness_run)
    yield faults
    faults.heal_all()


@pytest.fixture
def rest(harness_run: OpenRun, slurm: Slurm) -> Iterator[Rest]:
    """The REST API of the first cluster that has one, for the user of `slurm`."""
    from harness.pytest_plugin import clients

    with clients.rest(harness_run.ssh, harness_run.plan, slurm) as api:
        yield api


@pytest.fixture
def run_client(request: pytest.FixtureRequest, slurm: Slurm) -> Callable[..., Result]:
    """Run a Python program on the controller's host, with packages from here: docs/pytest.md."""
    from harness.pytest_plugin import clients

    def run(program: str | Path, *packages: str, python: str = "", timeout: float = 900) -> Result:
        __tracebackhide__ = True
        try:
            return clients.run_client(
                slurm, request.path.parent / program, packages, python, timeout
            )
        except clients.UnsuitablePython as error:
            pytest.skip(str(error))

    return run


def _say(config: pytest.Config) -> Callable[[str], None]:
    """Return a function that prints progress past pytest's capture.

    With pytest-xdist, each line names the worker.
    """
    capture = config.pluginmanager.get_plugin("capturemanager")
    worker = getattr(config, "workerinput", {}).get("workerid", "")
    name = f"slurm-harness {worker}".rstrip()

    def say(text: str) -> None:
        with capture.global_and_fixture_disabled() if capture else nullcontext():
            print(f"{name}: {text}", file=sys.stderr, flush=True)

    return say
