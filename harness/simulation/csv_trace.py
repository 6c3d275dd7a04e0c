"""Read and write traces as CSV, with the fields of `TraceJob` as columns."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path

from harness.errors import UsageError
from harness.parsing import durations
from harness.simulation.reading_log import ReadingLog
from harness.simulation.trace import Trace, TraceJob

COLUMNS = tuple(field.name for field in fields(TraceJob))
_NEEDED = ("submit", "run_time", "user")
_INTEGERS = (
    *("nodes", "tasks", "cpus_per_task", "memory_per_node", "memory_per_cpu", "array_index"),
    "nice",
)
_TRUE, _FALSE = {"true", "yes", "1"}, {"false", "no", "0", ""}


def is_csv(line: str) -> bool:
    """Return whether a file whose first line this is seems to be in this format."""
    return {*_NEEDED} <= {name.strip() for name in line.split(",")}


def write(trace: Trace, path: Path) -> None:
    """Write the jobs of a trace, which `jobs` reads again; UsageError if that fails."""
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(COLUMNS)
            for job in trace.jobs:
                values = (getattr(job, name) for name in COLUMNS)
                writer.writerow("" if value is None else value for value in values)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error


def jobs(lines: Iterable[tuple[int, str]], log: ReadingLog) -> Iterator[tuple[int, TraceJob]]:
    """Yield jobs with their lines; a job without an identifier has its line's number."""
    header: list[str] = []
    for number, line in lines:
        try:
            cells = next(csv.reader([line], strict=True), [])
        except csv.Error as error:
            log.problem(number, f"not CSV: {error}")
            continue
        if not header:
            header = [name.strip() for name in cells]
            for name in sorted({*header} - {*COLUMNS}):
                log.problem(number, f"{name[:40]}: unknown column; known: {', '.join(COLUMNS)}")
            if len({*header}) < len(header):
                log.problem(number, "two columns have the same name")
            log.raise_problems()
        elif len(cells) != len(header):
            log.problem(number, f"{len(cells)} cells, but the header has {len(header)}")
        else:
            row = {name: cell.strip() for name, cell in zip(header, cells, strict=True)}
            try:
                yield number, _job(row, str(number))
            except ValueError as error:
                log.problem(number, str(error))


def _job(row: Mapping[str, str], own_id: str) -> TraceJob:
    for name in _NEEDED:
        if not row.get(name):
            raise ValueError(f"{name}: missing")
    texts = {
        name: row.get(name) or None
        for name in (
            *("account", "partition", "qos", "gres", "constraint", "licenses", "dependency"),
            "array",
        )
    }
    integers = {name: _integer(name, row[name]) for name in _INTEGERS if row.get(name)}
    exclusive = row.get("exclusive", "").lower()
    if exclusive not in _TRUE | _FALSE:
        raise ValueError(f"exclusive: {exclusive[:20]!r} is neither true nor false")
    limit = row.get("limit")
    return TraceJob(
        **{
            "tasks": integers.get("nodes", 1),
            "nodes": None,
            **texts,
            **integers,
        },  # type: ignore[arg-type]
        id=row.get("id") or own_id,
        submit=_moment(row["submit"]),
        run_time=_seconds("run_time", row["run_time"]),
        limit=math.ceil(_seconds("limit", limit)) if limit else None,
        user=row["user"],
        exclusive=exclusive in _TRUE,
        recorded_wait=_optional("recorded_wait", row),
        think_time=_optional("think_time", row),
    )


def _integer(name: str, text: str) -> int:
    lowest = {"nice": -(2**31), "array_index": 0}.get(name, 1)
    try:
        value = int(text[:20])
    except ValueError as error:
        raise ValueError(f"{name}: {text[:20]!r} is not a whole number") from error
    if not lowest <= value < 2**31:
        raise ValueError(f"{name}: {value} is out of range")
    return value


def _optional(name: str, row: Mapping[str, str]) -> float | None:
    return _seconds(name, row[name]) if row.get(name) else None


def _seconds(name: str, text: str) -> float:
    """Return a duration: a number of seconds, or a time such as 02:30:00 or 1-00."""
    try:
        value = float(durations.seconds(text[:20])) if {":", "-"} & {*text[1:]} else float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1e12:
        raise ValueError(f"{name}: {text[:20]!r} is neither a number of seconds nor a duration")
    return value


def _moment(text: str) -> float:
    """Return a time in seconds: a number, or a date and time, whose time zone does not matter."""
    try:
        value = float(text)
    except ValueError:
        try:
            at = datetime.fromisoformat(text)
            value = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            value = math.nan
    if not 0 <= value < 1e12:
        raise ValueError(f"submit: {text[:30]!r} is neither a number of seconds nor a time")
    return value
