"""Notes about faults in a run's directory, which let a later command heal them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from harness import rundir
from harness.faults.model import Fault
from harness.open_run import OpenRun
from harness.rundir import RunDir

# What the note of a fault contains until the fault is injected.
_BEGUN = "begun"


def begin(run: RunDir, fault: Fault) -> None:
    """Note that a fault is about to be injected."""
    path = _path(run, fault)
    path.parent.mkdir(exist_ok=True)
    rundir.write_atomically(path, json.dumps(asdict(fault) | {_BEGUN: True}))
    run.event("fault", action="inject", fault=str(fault))


def complete(run: RunDir, fault: Fault) -> None:
    """Note that a fault is injected."""
    rundir.write_atomically(_path(run, fault), json.dumps(asdict(fault)))
    run.event("fault", action="injected", fault=str(fault))


def remove(run: RunDir, fault: Fault) -> None:
    """Note that a fault is healed, or has changed nothing."""
    _path(run, fault).unlink()
    run.event("fault", action="heal", fault=str(fault))


def active(run: OpenRun) -> list[Fault]:
    """Return the faults that are injected and not healed, the latest last."""
    return [fault for fault, begun in _notes(run.directory) if not begun]


def half_injected(run: OpenRun) -> list[Fault]:
    """Return the faults whose injection is running, was killed, or could not be undone."""
    return [fault for fault, begun in _notes(run.directory) if begun]


def noted_in(run: RunDir) -> list[Fault]:
    """Return the faults that a run has or may have, the latest last."""
    return [fault for fault, _ in _notes(run)]


def affected(run: OpenRun) -> set[str]:
    """Return the hosts that active faults affect."""
    names = {name for fault in active(run) for name in (fault.on, fault.argument)}
    return {host.name for host in run.plan.hosts if {host.name, host.site} & names}


@contextmanager
def noted(run: OpenRun, action: str, hosts: Sequence[str]) -> Iterator[None]:
    """Record an intervention that is not a fault, such as an upgrade, as faults are recorded."""
    for host in hosts:
        run.directory.event("fault", action="inject", fault=f"{action} {host}")
    try:
        yield
    finally:
        for host in hosts:
            run.directory.event("fault", action="heal", fault=f"{action} {host}")


def file_name(fault: Fault) -> str:
    """Return a name for the files of a fault: readable, and different for each fault."""
    readable = "".join(letter if letter.isalnum() else "-" for letter in str(fault))
    return f"{readable[:60]}-{hashlib.sha256(str(fault).encode()).hexdigest()[:8]}"


def _notes(run: RunDir) -> list[tuple[Fault, bool]]:
    """Return each noted fault, and whether its injection has begun without being completed."""
    found = []
    for path in (run.path / "faults").glob("*.json"):
        with suppress(FileNotFoundError):  # healed meanwhile
            found.append((path.stat().st_mtime_ns, path.read_text()))
    notes = []
    for _, text in sorted(found):
        facts = json.loads(text)
        begun = facts.pop(_BEGUN, False)
        notes.append((Fault(**facts), begun))
    return notes


def _path(run: RunDir, fault: Fault) -> Path:
    return run.path / "faults" / f"{file_name(fault)}.json"
