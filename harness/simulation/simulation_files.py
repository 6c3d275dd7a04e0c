"""Write simulations to a run's directory, and read them: a file of JSON lines for each.

The first line of a file has what concerns the simulation as a whole, each further one a job.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from harness.errors import UsageError, cannot_read
from harness.events import what_is_wrong
from harness.parsing import bounded_json
from harness.simulation.model import JobOutcome, Simulation

DIRECTORY = "simulations"
_NAME = re.compile(r"(\d{1,6})\.jsonl")
_LONGEST_LINE = 1 << 20
_MOST_JOBS = 1_000_000
_T = TypeVar("_T")
_HINT = "`harness simulate --report DIR` writes it"
_JOB = TypeAdapter(JobOutcome)
_SIMULATION = TypeAdapter(Simulation)


def write(simulation: Simulation, directory: Path) -> Path:
    """Write a simulation below a directory, and return its file.

    It replaces one of the same policy and repeat. The file is written completely or not at all.
    """
    target = directory / DIRECTORY
    path = _path(simulation, target)
    head = asdict(simulation)
    jobs = head.pop("jobs")
    try:
        target.mkdir(parents=True, exist_ok=True)
        descriptor, partial = tempfile.mkstemp(dir=target)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                for entry in (head, *jobs):
                    file.write(json.dumps(entry, separators=(",", ":"), allow_nan=False) + "\n")
            Path(partial).chmod(0o644)
            Path(partial).rename(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(partial).unlink()
            raise
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
    return path


def read(directory: Path) -> list[Simulation]:
    """Return the simulations of a directory in the order in which they were first written.

    Raises UsageError if there are none, or if a file is damaged.
    """
    simulations = [_read(path) for path in _files(directory / DIRECTORY)]
    if not simulations:
        raise UsageError(f"{directory} has no simulations", hint=_HINT)
    return simulations


def _files(target: Path) -> list[Path]:
    """Return the files of simulations, by number."""
    if not target.is_dir():
        return []
    numbered = [
        (int(match[1]), path) for path in target.iterdir() if (match := _NAME.fullmatch(path.name))
    ]
    return [path for _, path in sorted(numbered)]


def _path(simulation: Simulation, target: Path) -> Path:
    """Return the file of a simulation: that of an earlier one of the same name, or a new one."""
    files = _files(target)
    for path in files:
        with contextlib.suppress(UsageError):
            head = next(_lines(path))[1]
            if (head.get("policy"), head.get("repeat")) == (simulation.policy, simulation.repeat):
                return path
    number = int(files[-1].stem) + 1 if files else 1
    return target / f"{number:03}.jsonl"


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the lines of a file, which must be objects, with their numbers."""
    try:
        with path.open("rb") as file:
            for number in range(1, _MOST_JOBS + 2):
                line = file.readline(_LONGEST_LINE)
                if not line:
                    return
                data = bounded_json.load(line.decode("utf-8")) if line.endswith(b"\n") else None
                if not isinstance(data, dict):
                    raise UsageError(
                        f"{path}:{number}: not an object on a line of its own", hint=_HINT
                    )
                yield number, data
    except (OSError, ValueError) as error:
        raise UsageError(cannot_read(path, error), hint=_HINT) from error


def _read(path: Path) -> Simulation:
    lines = _lines(path)
    _, head = next(lines, (1, {}))
    jobs = [_valid(_JOB, f"{path}:{number}", _known(entry, JobOutcome)) for number, entry in lines]
    return _valid(_SIMULATION, f"{path}:1", _known(head, Simulation) | {"jobs": jobs})


def _valid(kind: TypeAdapter[_T], place: str, data: dict[str, Any]) -> _T:
    try:
        return kind.validate_python(data)
    except ValidationError as error:
        raise UsageError(f"{place}: {what_is_wrong(error)}", hint=_HINT) from error


def _known(entry: dict[str, Any], kind: type) -> dict[str, Any]:
    """Return the fields that this version knows; later ones may add others."""
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in entry.items() if name in names}
