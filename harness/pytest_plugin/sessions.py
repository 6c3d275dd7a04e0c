"""The run that a test session uses: one that is already up, or a temporary one.

Only one session uses a run at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import filelock

from harness import faults, interrupts, lifecycle, rundir, scenario
from harness.cluster import slurm
from harness.errors import CannotVerify, HarnessError, UsageError, WaitTimeout
from harness.open_run import OpenRun, Say
from harness.plan import make_plan
from harness.providers import Provider, image_reader
from harness.rundir import RunDir

# Deadline in seconds for a run to take jobs; daemons may have just started on a busy machine.
_READY_WITHIN = 240


@dataclass(frozen=True, slots=True)
class WantedClusters:
    """The clusters that tests need.

    These are a scenario file, releases (as for Scenario.put_on) and KEY=VALUE settings.
    """

    path: Path
    choices: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()

    def releases(self, provider: Provider) -> dict[str, str]:
        """Return the releases that a new run would have; ScenarioError if the file is invalid."""
        read = scenario.load(
            self.path, self.choices, image_reader(provider), provider.lacks, self.settings
        )
        return make_plan(scenario.name_of(self.path), read, provider.capabilities).releases()


@contextmanager
def opened(
    run: RunDir, provider: Provider, say: Say, wanted: WantedClusters | None = None
) -> Iterator[OpenRun]:
    """Use a run that is up.

    UsageError if another session uses it, or if it differs from what is wanted. Releases and
    settings are compared only if `wanted` specifies some. CannotVerify if the clusters take no
    jobs.
    """
    if wanted:
        asked = wanted.releases(provider) if wanted.choices else run.plan().releases()
        settings = wanted.settings or run.settings
        if difference := _difference(run, replace(wanted, settings=tuple(settings)), asked):
            raise UsageError(f"{run.id} {difference}")
    if not (lock := _locked(run)):
        raise UsageError(f"another session is using {run.id}")
    with interrupts.raised(), lock:
        yield _ready(lifecycle.open_run(run, provider, say))


@contextmanager
def of_scenario(
    wanted: WantedClusters,
    provider: Provider,
    runs: Path,
    say: Say,
    *,
    keep: bool = False,
    new: bool = False,
) -> Iterator[OpenRun]:
    """Use the newest run of a scenario that is up, intact and free, or else a temporary one.

    With `new`, always use a temporary one.

    A run belongs to the scenario if its file, releases and settings are the same; it is intact if
    all its hosts are up and no fault is injected, and free if no other session uses it. `keep`
    leaves a new run up, too.
    """
    for intact in () if new else _intact_runs(wanted, provider, runs):
        if lock := _locked(intact):
            with interrupts.raised(), lock:
                say(f"using {intact.id}, which is up")
                yield _ready(lifecycle.open_run(intact, provider, say))
                return
    run = lifecycle.create(wanted.path, provider, runs, say, wanted.choices, wanted.settings)
    with (
        interrupts.raised(),
        _lock(run.directory),
        lifecycle.provisioned(run, keep=keep),
        lifecycle.logs_collected(run),
    ):
        lifecycle.deploy(run)
        yield run


def _intact_runs(wanted: WantedClusters, provider: Provider, runs: Path) -> Iterator[RunDir]:
    releases, up = wanted.releases(provider), provider.runs()
    for run in reversed(rundir.all_runs(runs)):
        if run.id not in up or run.provider != provider.name:
            continue
        try:
            intact = _is_intact(run, wanted, releases, {*up[run.id]})
        except (HarnessError, OSError):  # its scenario cannot be read
            continue
        if intact:
            yield run


def _is_intact(run: RunDir, wanted: WantedClusters, releases: dict[str, str], up: set[str]) -> bool:
    """Return whether a run has the wanted scenario and releases and is intact.

    It is intact if it was deployed, all its hosts are up and no fault is injected.
    """
    if _difference(run, wanted, releases):
        return False
    deployed = any(event["kind"] == "stage" and event["name"] == "ready" for event in run.events())
    return (
        deployed
        and {host.name for host in run.plan().permanent_hosts()} <= up
        and not faults.noted_in(run)
    )


def _difference(run: RunDir, wanted: WantedClusters, releases: dict[str, str]) -> str:
    """Return how a run differs from a scenario on these releases, or "" if it does not."""
    if (run.path / "scenario.yml").read_bytes() != wanted.path.read_bytes():
        return f"was created from a scenario that differs from {wanted.path}"
    if run.settings != [*wanted.settings]:
        return f"was created with {_shown(run.settings)}, not with {_shown(wanted.settings)}"
    run_releases = run.plan().releases()
    return (
        ""
        if run_releases == releases
        else f"is on {_pairs(run_releases)}, not on {_pairs(releases)}"
    )


def _pairs(releases: dict[str, str]) -> str:
    return ", ".join(f"{name}={release}" for name, release in releases.items())


def _shown(settings: Sequence[str]) -> str:
    return " ".join(f"--set {setting}" for setting in settings) or "no --set"


def _ready(run: OpenRun) -> OpenRun:
    try:
        slurm.wait_until_ready(run.plan, slurm.clusters(run.ssh, run.plan), _READY_WITHIN)
    except WaitTimeout as error:
        raise CannotVerify(
            f"{run.directory.id} accepts no jobs: {error}", hint=f"harness down {run.directory.id}"
        ) from error
    if left := _left_jobs(run):
        run.say(f"jobs from before this session are left alone: {', '.join(left)}")
    return run


def _left_jobs(run: OpenRun) -> list[str]:
    return [
        f"{job.job_id} {job.state} of {job.user} on {name}"
        for name, cluster in slurm.clusters(run.ssh, run.plan).items()
        for job in cluster.jobs("--local")
        if job.state not in slurm.FINISHED
    ]


def _locked(run: RunDir) -> AbstractContextManager[object] | None:
    """Return a run's lock as a context manager, or None if another session holds it."""
    try:
        return _lock(run).acquire()
    except filelock.Timeout:
        return None


def _lock(run: RunDir) -> filelock.BaseFileLock:
    """Return the lock that a session holds while it uses a run.

    The lock is released when the session's process ends.
    """
    return filelock.FileLock(run.path / "session.lock", timeout=0)
