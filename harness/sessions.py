"""The run that a test session works on: one that is kept, or one of its own. A run is one session's at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import filelock

from harness import faults, interrupts, lifecycle, rundir, scenario, slurm
from harness.errors import CannotJudge, HarnessError, UsageError, WaitTimeout
from harness.live import Live, Say
from harness.plan import make_plan
from harness.providers import Provider
from harness.rundir import RunDir

# Seconds in which a run takes jobs again: daemons that have just started on a busy machine.
_READY_WITHIN = 240


@dataclass(frozen=True, slots=True)
class Wanted:
    """The clusters that tests are for: a scenario's file, releases (see Scenario.put_on) and KEY=VALUE settings."""

    path: Path
    choices: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()

    def releases(self, provider: Provider) -> dict[str, str]:
        """Return the releases that a new run would be on; ScenarioError if the file is wrong."""
        release_of, lacks = provider.release_of_image, provider.lacks
        read = scenario.load(self.path, self.choices, release_of, lacks, self.settings)
        return make_plan(scenario.name_of(self.path), read, provider.offers).releases()


@contextmanager
def opened(run: RunDir, provider: Provider, say: Say, wanted: Wanted | None = None) -> Iterator[Live]:
    """Have a run that is up; UsageError if another session has it, or it is not what is wanted.

    Its releases and settings may be any if none are wanted. CannotJudge if the clusters take no jobs.
    """
    if wanted:
        asked = wanted.releases(provider) if wanted.choices else run.plan().releases()
        settings = wanted.settings or run.settings
        if difference := _difference(run, replace(wanted, settings=tuple(settings)), asked):
            raise UsageError(f"{run.id} {difference}")
    if not (lock := _taken(run)):
        raise UsageError(f"another session works on {run.id}")
    with interrupts.raised(), lock:
        yield _ready(lifecycle.open_run(run, provider, say))


@contextmanager
def of_scenario(wanted: Wanted, provider: Provider, runs: Path, say: Say, *, keep: bool = False) -> Iterator[Live]:
    """Have the newest run of a scenario that is up, whole and no other session's, or else one that is gone at the end.

    A run is of the scenario if its file, releases and settings are the same, and whole if all its hosts are up and no
    fault is injected. With `keep` a new run stays, too.
    """
    for run in _whole_runs(wanted, provider, runs):
        if lock := _taken(run):
            with interrupts.raised(), lock:
                say(f"on {run.id}, which is up")
                yield _ready(lifecycle.open_run(run, provider, say))
                return
    live = lifecycle.create(wanted.path, provider, runs, say, wanted.choices, wanted.settings)
    with interrupts.raised(), _lock(live.run), lifecycle.provisioned(live, keep=keep), lifecycle.logs_collected(live):
        lifecycle.deploy(live)
        yield live


def _whole_runs(wanted: Wanted, provider: Provider, runs: Path) -> Iterator[RunDir]:
    releases, up = wanted.releases(provider), provider.runs()
    for run in reversed(rundir.all_runs(runs)):
        if run.id not in up or run.provider != provider.name:
            continue
        try:
            whole = _is_whole(run, wanted, releases, {*up[run.id]})
        except (HarnessError, OSError):  # its scenario cannot be read
            continue
        if whole:
            yield run


def _is_whole(run: RunDir, wanted: Wanted, releases: dict[str, str], up: set[str]) -> bool:
    """Tell whether a run is of a scenario on these releases, deployed, with all hosts up and no fault injected."""
    if _difference(run, wanted, releases):
        return False
    deployed = any(event["kind"] == "stage" and event["name"] == "ready" for event in run.events())
    return deployed and {host.name for host in run.plan().lasting_hosts()} <= up and not faults.noted_in(run)


def _difference(run: RunDir, wanted: Wanted, releases: dict[str, str]) -> str:
    """Return how a run differs from a scenario on these releases, "" if it does not."""
    if (run.path / "scenario.yml").read_bytes() != wanted.path.read_bytes():
        return f"was made from another file than {wanted.path} is now"
    if run.settings != [*wanted.settings]:
        return f"was made with {_shown(run.settings)}, not with {_shown(wanted.settings)}"
    there = run.plan().releases()
    return "" if there == releases else f"is on {_pairs(there)}, not on {_pairs(releases)}"


def _pairs(releases: dict[str, str]) -> str:
    return ", ".join(f"{name}={release}" for name, release in releases.items())


def _shown(settings: Sequence[str]) -> str:
    return " ".join(f"--set {setting}" for setting in settings) or "no --set"


def _ready(live: Live) -> Live:
    try:
        slurm.wait_until_ready(live.plan, slurm.clusters(live.ssh, live.plan), _READY_WITHIN)
    except WaitTimeout as error:
        raise CannotJudge(f"{live.run.id} takes no jobs: {error}", hint=f"harness down {live.run.id}") from error
    if left := _left_jobs(live):
        live.say(f"jobs from before this session stay: {', '.join(left)}")
    return live


def _left_jobs(live: Live) -> list[str]:
    return [
        f"{job.job_id} {job.state} of {job.user} on {name}"
        for name, cluster in slurm.clusters(live.ssh, live.plan).items()
        for job in cluster.jobs("--local")
        if job.state not in slurm.FINISHED
    ]


def _taken(run: RunDir) -> AbstractContextManager[object] | None:
    """Return what gives a run back when it is left, or None if another session has it."""
    try:
        return _lock(run).acquire()
    except filelock.Timeout:
        return None


def _lock(run: RunDir) -> filelock.BaseFileLock:
    """Return what a session holds as long as it works on a run; it goes with the session's process."""
    return filelock.FileLock(run.path / "session.lock", timeout=0)
