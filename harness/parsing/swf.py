"""Parse lines of the Standard Workload Format: www.cs.huji.ac.il/labs/parallel/workload/swf.html.

Each line has 18 numbers, and -1 where a value is unknown; lines that begin with ";" are comments.
"""

from __future__ import annotations

import math
from typing import NamedTuple

# Status of a line that describes a part of a job between two checkpoints; another line of the same
# job sums up all of its parts.
_PARTS = {2, 3, 4}
_FAILED, _CANCELLED = 0, 5
# Larger numbers are errors; smaller ones are exact.
_LARGEST = 1e15


class SwfJob(NamedTuple):
    """A line of a trace, in the order of its fields; times are in seconds."""

    number: float
    submit_time: float
    wait_time: float
    run_time: float
    allocated_processors: float
    average_cpu_time: float
    used_memory: float  # KiB per processor
    requested_processors: float
    requested_time: float
    requested_memory: float  # KiB per processor
    status: float
    user: float
    group: float
    executable: float
    queue: float
    partition: float
    preceding_job: float
    think_time: float

    @property
    def processors(self) -> int:
        """The processors that it requested or, if that is unknown, got; below 1: unknown."""
        requested = self.requested_processors
        return int(requested if requested > 0 else self.allocated_processors)

    @property
    def is_part(self) -> bool:
        """Whether the line describes a part of a job that another line sums up."""
        return self.status in _PARTS

    @property
    def failed(self) -> bool:
        """Whether the job failed."""
        return self.status == _FAILED

    @property
    def ran(self) -> bool:
        """Whether the job ran, and for how long is known."""
        return self.run_time > 0 or (self.run_time == 0 and self.status != _CANCELLED)


def parse(line: str) -> SwfJob:
    """Return the job of a line that is no comment; further words are ignored.

    Raises ValueError that says what is wrong.

    >>> parse("1 0 -1 60 4 " + "-1 " * 13).processors
    4
    >>> parse("1 0 x")
    Traceback (most recent call last):
        ...
    ValueError: 3 fields instead of 18
    """
    words = line.split()
    if len(words) < len(SwfJob._fields):
        raise ValueError(f"{len(words)} fields instead of {len(SwfJob._fields)}")
    return SwfJob(*map(_number, SwfJob._fields, words))


def is_swf(line: str) -> bool:
    """Return whether a file whose first line this is seems to be in this format."""
    return line.startswith(";") or (len(line.split()) >= len(SwfJob._fields) and "|" not in line)


def _number(field: str, word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not abs(value) < _LARGEST:
        name = field.replace("_", " ")
        raise ValueError(f"{name}: {word[:20]} is not a number that a trace can have")
    return value
