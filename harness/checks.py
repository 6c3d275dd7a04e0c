"""Choose the checks that fit a scenario, and note what each says: the plugin of pytest that `harness verify` loads."""

from __future__ import annotations

import difflib
import logging
import os
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from harness import circumstances, interrupts, job_events, releases, topology
from harness.errors import ClusterError, HarnessError
from harness.plan import Plan
from harness.rundir import RunDir
from harness.scenario import Cluster

_MANY_NODES = 20
_RUN = pytest.StashKey[RunDir]()
_PLAN = pytest.StashKey[Plan]()
_STARTED = pytest.StashKey[float]()
_EXPLAINED = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --harness-log-level."""
    group = parser.getgroup("slurm-harness")
    group.addoption(
        "--harness-select", action="append", default=[], metavar="TEXT", help="only checks with this in their name"
    )
    group.addoption("--harness-log-level", default="WARNING", metavar="LEVEL", help="INFO: long waits; DEBUG: commands")


def pytest_configure(config: pytest.Config) -> None:
    """Open the run, have long waits told among the outcomes, and checks clean up when a signal ends them."""
    signals = ExitStack()
    signals.enter_context(interrupts.raised())
    config.add_cleanup(signals.close)
    config.addinivalue_line("markers", "needs(*features): the check is for scenarios with these features only")
    config.addinivalue_line(
        "markers",
        "provokes(*patterns): the check makes daemons log errors that match these; without patterns, any while it runs",
    )
    # pytest takes what checks print; a copy of standard output stays outside of that.
    handler = logging.StreamHandler(os.fdopen(os.dup(1), "w", buffering=1))
    log = logging.getLogger("harness")
    log.addHandler(handler)
    log.setLevel(config.getoption("--harness-log-level"))
    config.stash[_RUN] = RunDir(Path(config.getoption("--harness-run")))
    config.stash[_PLAN] = config.stash[_RUN].plan()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the checks that the scenario gives nothing to do, and those that the user has not selected.

    pytest.UsageError for a feature that is unknown, or a selection that selects nothing.
    """
    known = _features(config.stash[_PLAN])
    needed = {item: {name for mark in item.iter_markers("needs") for name in mark.args} for item in items}
    unknown = [f"{item.nodeid}: {name}" for item, names in needed.items() for name in sorted(names - {*known})]
    if unknown:
        raise pytest.UsageError("needs() names features that checks.py does not define:\n" + "\n".join(unknown))
    fitting = [item for item in items if all(known[name] for name in needed[item])]
    words = config.getoption("--harness-select")
    for word in words:
        if not any(_is_selected(item, word) for item in fitting):
            raise pytest.UsageError(_nothing_selected(word, items))
    chosen = [item for item in fitting if not words or any(_is_selected(item, word) for word in words)]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


def _is_selected(item: pytest.Item, word: str) -> bool:
    return word.lower() in item.nodeid.lower()


def _nothing_selected(word: str, items: Sequence[pytest.Item]) -> str:
    """Return why a word selects no check of a scenario, on a line of its own what else the user may mean."""
    if any(_is_selected(item, word) for item in items):
        return f'the checks with "{word}" in their name do not fit this scenario'
    names = dict.fromkeys(_plain_name(item) for item in items)
    close = difflib.get_close_matches(word.lower().removeprefix("test_"), _parts(names), n=3, cutoff=0.6)
    means = f"did you mean {', '.join(close)}?" if close else "the names of all checks are in the run's report"
    return f'no check has "{word}" in its name\n{means}'


def _plain_name(item: pytest.Item) -> str:
    return item.nodeid.rpartition("::")[2].partition("[")[0].removeprefix("test_")


def _parts(names: Iterable[str]) -> list[str]:
    """Return names with all runs of their words, since a part of a name selects it.

    >>> _parts(["job_runs_once"])
    ['job', 'job_runs', 'job_runs_once', 'runs', 'runs_once', 'once']
    """
    words = [name.split("_") for name in names]
    return list(
        dict.fromkeys(
            "_".join(one[begin:end])
            for one in words
            for begin in range(len(one))
            for end in range(begin + 1, len(one) + 1)
        )
    )


def features(plan: Plan) -> set[str]:
    """Return what a scenario has that checks can be about."""
    return {name for name, value in _features(plan).items() if value}


def _features(plan: Plan) -> dict[str, object]:
    """Return every feature that checks can be about, and whether a scenario has it."""
    scenario = plan.scenario
    enforced = plan.clusters_with_limits()
    qos_of_users = {name for user in scenario.users.values() for name in user.qos}
    limits = {
        option
        for name, qos in (scenario.accounting.qos.items() if scenario.accounting else ())
        for option, value in qos.options.items()
        if enforced and name in qos_of_users and (option != "MaxTRESPerUser" or "gpu" in str(value))
    }
    placed = [one for name in scenario.clusters for one in topology.placed_once(scenario, name)]
    return {
        "accounting": scenario.accounting,
        "job_completion": scenario.accounting and scenario.accounting.job_completion,
        "federation": any(len(federation.clusters) > 1 for federation in scenario.federations.values()),
        "sites": len(plan.sites()) > 1 and plan.offers.engine,  # whose gateway joins them
        "users": scenario.users,
        "two_users": len(scenario.users) > 1,
        "two_hosts": len(plan.hosts) > 1,
        "backup_controllers": any(cluster.backup_controllers for cluster in scenario.clusters.values()),
        "backup_slurmdbd": scenario.accounting and scenario.accounting.backup,
        "topology": placed,
        "placement": any(one.choices() for one in placed),
        "switches": any(one.leaves() for one in placed),
        "segments": any(one.segments() for one in placed),
        "many_nodes": scenario.accounting and any(map(many_nodes, scenario.clusters.values())),
        "lasting": not any(cluster.elastic() for cluster in scenario.clusters.values()),
        "elastic": any(cluster.elastic() for cluster in scenario.clusters.values()),
        "rehearsal": scenario.rehearsal,
        "limit_of_jobs": "MaxJobsPerUser" in limits,
        "limit_of_gpus": "MaxTRESPerUser" in limits,
        "limit_of_time": "MaxWall" in limits,
        "gpus": any(cluster.gpus() for cluster in scenario.clusters.values()),
        "confined_cpus": plan.clusters_that_confine("ConstrainCores"),
        # What jobs do that may swap is the user's own machines' affair.
        "confined_memory": plan.offers.own_kernel and plan.clusters_that_confine("ConstrainRAMSpace"),
        "reboots": plan.offers.own_kernel and all(cluster.static_nodes() for cluster in scenario.clusters.values()),
        "apptainer": any(cluster.apptainer for cluster in scenario.clusters.values()),
        "oci": scenario.users
        and any(cluster.oci is not None and cluster.static_nodes() for cluster in scenario.clusters.values()),
        "job_events": any(job_events.PROGRAM in cluster.files for cluster in scenario.clusters.values()),
        "rest": any(cluster.rest for cluster in scenario.clusters.values()),
        # The checks' jobs and pods want two nodes of some size.
        "kubernetes": any(
            cluster.kubernetes
            and len(cluster.node_names()) > 1
            and all(group.cpus >= 4 and group.memory >= 1000 for group in cluster.nodes)
            for cluster in scenario.clusters.values()
        ),
        "external_jobs": all(releases.get(release).external_jobs for release in plan.releases().values()),
        "room_for_nodes": all(cluster.room_for_nodes() for cluster in scenario.clusters.values()),
        "static_too": any(
            cluster.elastic() and any(group.provision == "static" for group in cluster.nodes)
            for cluster in scenario.clusters.values()
        ),
        "two_shapes": any(
            len([group for group in cluster.nodes if group.provision != "static" and group.features]) > 1
            for cluster in scenario.clusters.values()
        ),
    }


def many_nodes(cluster: Cluster) -> bool:
    """Tell whether so many of a cluster's nodes share hosts that short jobs by the hundred are submitted to them."""
    return bool(cluster.hosts) and len(cluster.node_names()) >= _MANY_NODES


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note each check's outcome, and what Slurm said meanwhile if it failed.

    A broken promise is `failed`, anything else that went wrong `error`.
    """
    report = yield
    run = item.config.stash[_RUN]
    if report.when == "setup":
        item.stash[_STARTED] = time.monotonic() - call.duration
    if report.when != "call" and report.passed:
        return report
    outcome: str = report.outcome
    if call.excinfo and report.failed:
        broken = call.excinfo.errisinstance((AssertionError, ClusterError, pytest.fail.Exception))
        # What a check leaves behind and cannot be removed is the cluster's fault, too.
        outcome = "failed" if broken and report.when in {"call", "teardown"} else "error"
    message = "" if report.passed else str(call.excinfo.value if call.excinfo else report.longrepr)
    if call.excinfo and outcome == "error" and not call.excinfo.errisinstance(HarnessError):
        message = call.excinfo.exconly()  # with the kind of error: what it says may be "" or mean little by itself
    if outcome == "failed":
        message = "\n".join([message, *_circumstances(item, call.start)])
    seconds = time.monotonic() - item.stash[_STARTED]
    run.event("check", id=item.nodeid, outcome=outcome, seconds=round(seconds, 2), message=message)
    first_line = next(iter(message.splitlines()), "")
    print(f"{outcome:7} {item.nodeid} ({seconds:.1f} s) {first_line}".rstrip(), flush=True)
    return report


def _circumstances(item: pytest.Item, since: float) -> list[str]:
    """Return what may have made a check fail, once: its clean-up may fail for the same reason."""
    live = getattr(item, "funcargs", {}).get("harness_run")
    if live is None or item.stash.get(_EXPLAINED, False):
        return []
    item.stash[_EXPLAINED] = True
    return circumstances.of_failure(live.ssh, live.plan, since)
