"""What the options name: a run, a host of it, a provider, a release."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile

import typer

from harness import lifecycle, providers, releases, rundir
from harness.cli.arguments import DEFAULT_SSH_CONFIG
from harness.cli.printing import print_changes, progress
from harness.errors import HarnessError, UsageError
from harness.live import Live
from harness.plan import Host
from harness.providers.existing import ExistingProvider
from harness.providers.preview import HostChanges
from harness.rundir import RunDir


def find_run(runs: Path, which: str | None) -> RunDir:
    """Return the newest run that `--run` names; one that is seen to be up comes before newer ones."""
    named = rundir.named(runs, which)
    if len(named) > 1:
        with suppress(HarnessError):  # what the user wants of the run may need no engine
            hosts = providers.get(named[-1].provider, runs).runs()
            named = [run for run in named if hosts.get(run.id)] or named
    return named[-1]


def open_run(runs: Path, which: str | None) -> Live:
    """Open such a run; progress is printed."""
    directory = find_run(runs, which)
    return lifecycle.open_run(directory, providers.get(directory.provider, runs), progress())


def with_report(runs: Path, which: str) -> Path:
    """Return a run's directory, or one that holds no more than a report; "" is the newest run's."""
    if which and (Path(which) / "report.json").exists():
        return Path(which)
    try:
        return rundir.find(runs, which or None).path
    except UsageError:
        if Path(which).is_dir():  # the user means it: let it be told what it lacks
            return Path(which)
        raise


def find_host(live: Live, name: str) -> Host:
    """Return a host of a run; UsageError tells those that there are."""
    for host in live.plan.hosts:
        if host.name == name:
            return host
    raise UsageError(
        f"no host {name} in {live.run.id}",
        hint=f"hosts are {', '.join(host.name for host in live.plan.hosts)}",
    )


def find_provider(
    name: str,
    runs: Path,
    inventory: Path | None = None,
    ssh_config: str = DEFAULT_SSH_CONFIG,
    *,
    only_look: bool = False,
    yes: bool = False,
) -> providers.Provider:
    """Return a provider; existing machines it changes with `yes` only, when the user has seen what changes."""
    if name != ExistingProvider.name:
        if inventory or only_look or yes:
            raise UsageError("--inventory, --check and --yes are for machines that are there: --provider existing")
        return providers.get(name, runs)

    def agree(changes: Sequence[HostChanges]) -> None:
        for one in changes:
            print_changes(one)
        if only_look:
            raise typer.Exit
        if not yes:
            raise UsageError("nothing was changed", hint="--yes changes it, --check shows it only")

    return ExistingProvider(runs, inventory, ssh_config, agree)


def must_be_known(*names: str | None) -> None:
    """Refuse releases that nothing is known of; None is no release."""
    for name in filter(None, names):
        if name not in releases.KNOWN:
            raise UsageError(f"no release {name}", hint=f"known are {', '.join(releases.KNOWN)}")


def must_be_writable(directory: Path | None) -> None:
    """Refuse a directory in which no file can be written, before the work whose results it is for.

    What does not exist yet must have a parent in which it can be made; nothing is made. None is no directory.
    """
    if directory is None:
        return
    try:
        there = next(path for path in (directory, *directory.absolute().parents) if path.exists())
        with TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise UsageError(f"{directory} cannot be written: {error.strerror}") from error


def must_be_writable_file(path: Path) -> None:
    """Refuse a file that cannot be written, before the work whose result it is for; it may exist."""
    if path.is_dir():
        raise UsageError(f"{path} is a directory", hint="name a file")
    if not path.parent.exists():
        raise UsageError(f"{path} cannot be written: there is no directory {path.parent}")
    must_be_writable(path.parent)
    if path.exists() and not os.access(path, os.W_OK):
        raise UsageError(f"{path} cannot be written: {os.strerror(errno.EACCES)}")
