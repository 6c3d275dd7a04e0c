"""Inject and heal faults.

A fault is noted before it is injected and counts as active once it is injected. What it replaces on
a host stays there, in a directory that only root can read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from harness.errors import CannotVerify, ClusterError, CommandFailed, HarnessError, UsageError
from harness.faults import notes
from harness.faults.failed_daemons import failed_daemons
from harness.faults.model import NOTHING_DONE, Fault
from harness.faults.registry import KINDS, kind_of
from harness.open_run import OpenRun

_ASIDE = "/var/lib/slurm-harness/faults"
# Seconds for a script that restarts daemons; a database may be slow.
_PATIENCE = 300


def inject(run: OpenRun, fault: Fault) -> None:
    """Inject a fault completely or not at all: if that fails half way, the fault is undone.

    UsageError if the run does not support the fault or already has it; CannotVerify if the
    injection failed.
    """
    kind = kind_of(run.plan, run.provider, fault)
    if fault in notes.noted_in(run.directory):
        raise UsageError(f"{fault}: this fault is already injected", hint="harness fault heal")
    notes.begin(run.directory, fault)
    try:
        _execute(run, fault, kind.inject)
    except BaseException as error:
        if isinstance(error, CommandFailed) and error.returncode == NOTHING_DONE:
            notes.remove(run.directory, fault)
            raise UsageError(f"{fault}: {error.stderr.strip()}") from error
        undone = _undo(run, fault)
        if isinstance(error, HarnessError):
            raise CannotVerify(f"{fault} could not be injected: {error}\n{undone}") from error
        raise
    notes.complete(run.directory, fault)


def heal(run: OpenRun, fault: Fault) -> None:
    """Heal a fault; ClusterError with a daemon's last error if the daemon does not start again."""
    action = KINDS[fault.kind].heal
    try:
        _execute(run, fault, action if callable(action) else f'{action}\nrm --recursive "$aside"')
    except CommandFailed as error:
        if failed := failed_daemons(run, [fault.on]):
            raise ClusterError("; ".join(failed)) from error
        raise
    notes.remove(run.directory, fault)


def heal_all(run: OpenRun) -> list[str]:
    """Heal all faults, the latest first, including those injected in part.

    Return which could not be healed, and why.
    """
    problems = []
    for fault in reversed(notes.noted_in(run.directory)):
        try:
            heal(run, fault)
        except HarnessError as error:
            problems.append(f"{fault}: {error}")
    return problems


@contextmanager
def injected(
    run: OpenRun, *faults: Fault, how: Callable[[OpenRun, Fault], None] = inject
) -> Iterator[None]:
    """Inject faults, and heal them at the end of the block, each even if another cannot be."""
    with ExitStack() as healing:
        for fault in faults:
            how(run, fault)
            healing.callback(heal, run, fault)
        yield


def _undo(run: OpenRun, fault: Fault) -> str:
    """Heal a fault that was injected in part; return the outcome."""
    try:
        heal(run, fault)
    except HarnessError as error:
        return (
            f"it may be active in part, because undoing it failed: {error}\n"
            "`harness fault heal` tries again"
        )
    return "it was undone"


def _execute(run: OpenRun, fault: Fault, action: str | Callable[[OpenRun, Fault], None]) -> None:
    if callable(action):
        action(run, fault)
        return
    aside = f"{_ASIDE}/{notes.file_name(fault)}"
    script = f"set -eu; aside={aside}; mkdir -p -m 0700 {_ASIDE} $aside\n{action}"
    run.ssh.run(fault.on, ["sh", "-c", script, fault.kind, fault.argument], timeout=_PATIENCE)
