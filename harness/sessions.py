"""The run that a test session works on: one that is kept, or one of its own. A run is one session's at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import filelock

from harness import faults, lifecycle, rundir, scenario, slurm
from harness.errors import CannotJudge, UsageError, WaitTimeout
from harness.live import Live, Say
from harness.plan import make_plan
from harness.providers import Provider
from harness.rundir import RunDir


@contextmanager
def opened(run: RunDir, provider: Provider, say: Say, scenario_path: Path | None = None) -> Iterator[Live]:
    """Have a run that is up; UsageError if another session has it, or the scenario's file was not this one.

    CannotJudge if the clusters take no jobs.
    """
    if scenario_path and not _is_of(run, scenario_path):
        raise UsageError(f"{run.id} is not of {scenario_path} as that is now")
    if not (lock := _taken(run)):
        raise UsageError(f"another session works on {run.id}")
    with lock:
        yield _ready(lifecycle.open_run(run, provider, say))


@contextmanager
def of_scenario(
    path: Path, provider: Provider, runs: Path, say: Say, *, choices: Sequence[str] = (), keep: bool = False
) -> Iterator[Live]:
    """Have the newest run of a scenario that is up, whole and no other session's, or else one that is gone at the end.

    `choices` are releases: see Scenario.put_on. A run is of the scenario if the file was the same, and whole
    if all its hosts are up and no fault is injected. With `keep` a new run stays, too.
    """
    for run in _whole_runs(path, provider, runs, choices):
        if lock := _taken(run):
            with lock:
                say(f"on {run.id}, which is up")
                yield _ready(lifecycle.open_run(run, provider, say))
                return
    live = lifecycle.create(path, provider, runs, say, choices)
    with _lock(live.run), lifecycle.provisioned(live, keep=keep), lifecycle.logs_collected(live):
        lifecycle.deploy(live)
        yield live


def _whole_runs(path: Path, provider: Provider, runs: Path, choices: Sequence[str]) -> Iterator[RunDir]:
    read = scenario.load(path, choices, provider.release_of_image, provider.lacks)
    releases = make_plan(scenario.name_of(path), read, provider.offers).releases()
    up = provider.runs()
    for run in reversed(rundir.all_runs(runs)):
        if run.id not in up or run.provider != provider.name or not _is_of(run, path):
            continue
        plan = run.plan()
        deployed = any(event["kind"] == "stage" and event["name"] == "ready" for event in run.events())
        hosts_up = {host.name for host in plan.lasting_hosts()} <= {*up[run.id]}
        if plan.releases() == releases and deployed and hosts_up and not faults.noted_in(run):
            yield run


def _is_of(run: RunDir, path: Path) -> bool:
    return (run.path / "scenario.yml").read_bytes() == path.read_bytes()


def _ready(live: Live) -> Live:
    try:
        slurm.wait_until_ready(live.plan, slurm.clusters(live.ssh, live.plan))
    except WaitTimeout as error:
        raise CannotJudge(f"{live.run.id} takes no jobs: {error}", hint=f"harness down {live.run.id}") from error
    return live


def _taken(run: RunDir) -> AbstractContextManager[object] | None:
    """Return what gives a run back when it is left, or None if another session has it."""
    try:
        return _lock(run).acquire()
    except filelock.Timeout:
        return None


def _lock(run: RunDir) -> filelock.BaseFileLock:
    """Return what a session holds as long as it works on a run; it goes with the session's process."""
    return filelock.FileLock(run.path / "session.lock", timeout=0)
