"""The format of events.jsonl, with the fields that readers can rely on."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from harness.errors import CannotVerify, cannot_read
from harness.parsing import bounded_json

# The duration of a run, a stage or a check; the timeline cannot show more.
Seconds = Annotated[float, Field(ge=0, le=1e9)]
Moment = Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False)]  # seconds since 1970


def _time(text: str) -> str:
    try:
        datetime.fromisoformat(text).astimezone(UTC)
    except OverflowError as error:
        raise ValueError("the time is out of range") from error
    return text


Time = Annotated[str, AfterValidator(_time)]


class _Event(BaseModel):
    """The fields that every event has; some kinds have more."""

    model_config = ConfigDict(strict=True)

    time: Time
    kind: str


class _Check(_Event):
    id: str
    outcome: str
    seconds: Seconds
    message: str


class _Stage(_Event):
    name: str
    seconds: Seconds


class _Fault(_Event):
    action: str
    fault: str


class _Power(_Event):
    action: str
    nodes: list[str]


class _Node(_Event):
    cluster: str = ""
    name: str
    state: str


class _Rehearsal(_Event):
    action: str
    releases: dict[str, str] = {}


class _Seen(_Event):
    seen_by: str


class _Reservation(_Event):
    cluster: str
    name: str


class _OldRecords(_Event):
    cluster: str
    tables: list[str]


class _Log(_Event):
    line: str


class _LogTimes(_Event):
    cluster: str
    job_id: int
    times: list[Moment]


class _NoEvidence(_Event):
    of: str
    where: str
    why: str


_OF_KIND: dict[str, type[_Event]] = {
    **dict.fromkeys(("queue", "record", "usage", "trace"), _Seen),
    "check": _Check,
    "fault": _Fault,
    "log": _Log,
    "log_times": _LogTimes,
    "no_evidence": _NoEvidence,
    "node": _Node,
    "old_records": _OldRecords,
    "power": _Power,
    "rehearsal": _Rehearsal,
    "reservation": _Reservation,
    "stage": _Stage,
}


def parse(line: str) -> dict[str, Any]:
    """Return the event in a line, with every field of its kind.

    Raises ValueError, which says what is wrong.
    """
    event = bounded_json.load(line)
    try:
        kind = _Event.model_validate(event).kind
        _OF_KIND.get(kind, _Event).model_validate(event)
    except ValidationError as error:
        raise ValueError(what_is_wrong(error)) from error
    return dict(event)


def what_is_wrong(error: ValidationError) -> str:
    """Return pydantic's first problem in one line, with its place."""
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'it'}: {first['msg']}"


def read(path: Path) -> list[dict[str, Any]]:
    """Return the events of a file, oldest first.

    An incomplete last line is left out: the harness was killed while writing it. Raises
    CannotVerify, which names the first line that is not an event.
    """
    events = []
    *lines, last = _lines(path)
    for number, line in enumerate((*lines, *filter(None, [last])), 1):
        try:
            events.append(parse(line))
        except ValueError as error:
            if number > len(lines):
                break
            raise CannotVerify(
                f"{path}:{number}: not an event: {error}",
                hint="the file is damaged; remove the line to read the others",
            ) from error
    return events


def readable(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the readable events of a file; none if there is no file."""
    for line in _lines(path):
        try:
            yield parse(line)
        except ValueError:
            continue


def _lines(path: Path) -> list[str]:
    """Return the lines of a file; the last one is "" if the file is complete."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").split("\n")
    except FileNotFoundError:
        return [""]
    except OSError as error:
        raise CannotVerify(cannot_read(path, error)) from error
