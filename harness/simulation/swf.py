"""Read the Standard Workload Format of the Parallel Workloads Archive.

Each line has 18 fields, and -1 where a value is unknown; lines that begin with ";" are comments,
some of which describe the system.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from harness.simulation.reading_log import ReadingLog
from harness.simulation.trace import TraceJob

_FIELDS = (
    *("job number", "submit time", "wait time", "run time", "allocated processors"),
    *("average CPU time", "used memory", "requested processors", "requested time"),
    *("requested memory", "status", "user ID", "group ID", "executable number"),
    *("queue number", "partition number", "preceding job number", "think time"),
)
_DIRECTIVE = re.compile(r";\s*(MaxProcs|MaxNodes)\s*:\s*(\d{1,9})\b")
# Status of a line that describes a part of a job between two checkpoints; another line of the same
# job sums up all of its parts.
_PARTIAL = {2, 3, 4}
_CANCELLED = 5


@dataclass
class System:
    """The system that a trace was recorded on, as far as its header describes it."""

    nodes: int | None = None
    cpus: int | None = None


def is_swf(line: str) -> bool:
    """Return whether a file whose first line this is seems to be in this format."""
    words = line.split()
    return line.startswith(";") or (len(words) >= len(_FIELDS) and "|" not in line)


def jobs(
    lines: Iterable[tuple[int, str]], log: ReadingLog, system: System
) -> Iterator[tuple[int, TraceJob]]:
    """Yield jobs with their lines; `submit` is as in the file. Fills in `system`."""
    for number, line in lines:
        if line.startswith(";"):
            if match := _DIRECTIVE.match(line):
                name, value = match[1], int(match[2]) or None
                if name == "MaxProcs":
                    system.cpus = value
                else:
                    system.nodes = value
        elif (values := _values(number, line, log)) and (job := _job(number, values, log)):
            yield number, job


def _values(number: int, line: str, log: ReadingLog) -> list[float] | None:
    words = line.split()
    if len(words) < len(_FIELDS):
        log.problem(number, f"{len(words)} fields instead of {len(_FIELDS)}")
        return None
    values = []
    for name, word in zip(_FIELDS, words, strict=False):
        try:
            value = float(word)
        except ValueError:
            value = math.nan
        if not abs(value) < 1e15:
            log.problem(number, f"{name}: {word[:20]} is not a number that a trace can have")
            return None
        values.append(value)
    return values


def _job(number: int, values: list[float], log: ReadingLog) -> TraceJob | None:
    """Return the job of a line, or None if it cannot be simulated."""
    job_id, submit, wait, run_time, allocated, _, _, requested, limit, memory = values[:10]
    status, user, group, _, queue, partition, preceding, think_time = values[10:18]
    processors = int(requested) if requested > 0 else int(allocated)
    if status in _PARTIAL:
        log.count(number, "part of a job between two checkpoints, left out")
        return None
    if submit < 0:
        log.problem(number, f"submit time: {submit:g} is negative")
        return None
    if run_time < 0 or (status == _CANCELLED and run_time == 0):
        log.count(number, "no run time (cancelled before the start, or unknown), left out")
        return None
    if processors < 1:
        log.count(number, "no number of processors, left out")
        return None
    depends = preceding > 0
    return TraceJob(
        id=str(int(job_id)),
        submit=submit,
        run_time=run_time,
        limit=math.ceil(limit) if limit > 0 else None,
        nodes=None,
        tasks=processors,
        user=f"u{int(user)}" if user >= 0 else "unknown",
        memory_per_cpu=math.ceil(memory / 1024) if memory > 0 else None,
        account=f"g{int(group)}" if group >= 0 else None,
        partition=_partition(queue, partition),
        dependency=f"afterany:{int(preceding)}" if depends else None,
        recorded_wait=wait if wait >= 0 else None,
        think_time=think_time if depends and think_time >= 0 else None,
    )


def _partition(queue: float, partition: float) -> str | None:
    if queue >= 0:
        return f"q{int(queue)}"
    return f"p{int(partition)}" if partition >= 0 else None
