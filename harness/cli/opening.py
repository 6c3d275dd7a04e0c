"""Open what the options name: a run, one of its hosts, a provider; refuse what cannot be used."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

import typer

from harness import extras, releases
from harness.cli.arguments import DEFAULT_SSH_CONFIG
from harness.cli.printing import print_changes, progress
from harness.errors import HarnessError, UsageError

if TYPE_CHECKING:
    from harness import providers
    from harness.open_run import OpenRun
    from harness.plan import Host
    from harness.providers.existing.preview import HostChanges
    from harness.rundir import RunDir


def find_run(runs: Path, which: str | None) -> RunDir:
    """Return the newest run that `--run` names.

    Runs that are up come before newer ones that are down.
    """
    from harness import providers, rundir

    named = rundir.named(runs, which)
    if len(named) > 1:
        with suppress(HarnessError):  # the command may need no engine
            hosts = providers.get(named[-1].provider, runs).runs()
            named = [run for run in named if hosts.get(run.id)] or named
    return named[-1]


def open_run(runs: Path, which: str | None, *, only_up: bool = True) -> OpenRun:
    """Open the run that `--run` names, with printed progress.

    Raises UsageError for a run without hosts, unless `only_up` is false.
    """
    from harness import lifecycle, providers

    directory = find_run(runs, which)
    provider = providers.get(directory.provider, runs)
    if only_up:
        must_be_up(directory, provider)
    return lifecycle.open_run(directory, provider, progress())


def must_be_up(directory: RunDir, provider: providers.Provider) -> None:
    """Raise UsageError if nothing of a run is left but its directory.

    Hosts that have stopped count as hosts.
    """
    if directory.id not in provider.runs():
        raise UsageError(
            f"{directory.path} is not up: its hosts have been removed",
            hint="`harness status` lists the runs, `harness up SCENARIO` starts one",
        )


def with_report(runs: Path, which: str) -> Path:
    """Return a run's directory, or one that only has a report; "" stands for the newest run."""
    from harness import rundir

    if which and (Path(which) / "report.json").exists():
        return Path(which)
    try:
        return rundir.find(runs, which or None).path
    except UsageError:
        if which and Path(which).is_dir():  # reading its report fails, and says what is missing
            return Path(which)
        raise


def find_host(run: OpenRun, name: str) -> Host:
    """Return a host of a run; if there is none of that name, raise UsageError with all names."""
    for host in run.plan.hosts:
        if host.name == name:
            return host
    raise UsageError(
        f"no host {name} in {run.directory.id}",
        hint=f"its hosts are {', '.join(host.name for host in run.plan.hosts)}",
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
    """Return a provider.

    That of existing machines first shows what it would change, and changes it only with `yes`.
    """
    from harness import providers
    from harness.providers.existing.hosts import ExistingProvider

    if name != ExistingProvider.name:
        if inventory or only_look or yes:
            raise UsageError("--inventory, --check and --yes require --provider existing")
        return providers.get(name, runs)

    extras.need("run", f"provider {name}")

    def agree(changes: Sequence[HostChanges]) -> None:
        for of_host in changes:
            print_changes(of_host)
        if only_look:
            raise typer.Exit
        if not yes:
            raise UsageError(
                "nothing was changed", hint="--yes makes the changes, --check only shows them"
            )

    return ExistingProvider(runs, inventory, ssh_config, agree)


def must_be_known(*names: str | None) -> None:
    """Raise UsageError for an unknown release; None stands for no release."""
    for name in filter(None, names):
        if not releases.is_known(name):
            raise UsageError(
                f"unknown release {name}", hint=f"known releases: {', '.join(releases.KNOWN)}"
            )


def must_be_writable(directory: Path | None) -> None:
    """Raise UsageError if no file can be written in a directory.

    For a check before the work whose results go there. A directory that does not exist must have a
    parent in which it can be created; nothing is created. None stands for no directory.
    """
    if directory is None:
        return
    try:
        parents = directory.absolute().parents
        existing = next(path for path in (directory, *parents) if path.exists())
        with TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise UsageError(f"{directory} cannot be written: {error.strerror}") from error


def must_be_writable_file(path: Path) -> None:
    """Raise UsageError if a file, which may exist, cannot be written.

    For a check before the work whose result goes there.
    """
    if path.is_dir():
        raise UsageError(f"{path} is a directory", hint="name a file")
    if not path.parent.exists():
        raise UsageError(f"{path} cannot be written: there is no directory {path.parent}")
    must_be_writable(path.parent)
    if path.exists() and not os.access(path, os.W_OK):
        raise UsageError(f"{path} cannot be written: {os.strerror(errno.EACCES)}")
