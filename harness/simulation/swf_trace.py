"""Read traces in the Standard Workload Format; comments of their headers describe the system."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator

from harness.parsing import swf
from harness.parsing.swf import SwfJob
from harness.simulation.reading_log import ReadingLog
from harness.simulation.trace import System, TraceJob

_DIRECTIVE = re.compile(r";\s*(MaxProcs|MaxNodes)\s*:\s*(\d{1,9})\b")


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
            continue
        try:
            job = swf.parse(line)
        except ValueError as error:
            log.problem(number, str(error))
        else:
            if traced := _job(number, job, log):
                yield number, traced


def _job(number: int, job: SwfJob, log: ReadingLog) -> TraceJob | None:
    """Return the job of a line, or None if it cannot be simulated."""
    if job.is_part:
        log.count(number, "part of a job between two checkpoints, left out")
        return None
    if job.submit_time < 0:
        log.problem(number, f"submit time: {job.submit_time:g} is negative")
        return None
    if not job.ran:
        log.count(number, "no run time (cancelled before the start, or unknown), left out")
        return None
    if job.processors < 1:
        log.count(number, "no number of processors, left out")
        return None
    depends = job.preceding_job > 0
    memory = job.requested_memory
    return TraceJob(
        id=str(int(job.number)),
        submit=job.submit_time,
        run_time=job.run_time,
        limit=math.ceil(job.requested_time) if job.requested_time > 0 else None,
        nodes=None,
        tasks=job.processors,
        user=f"u{int(job.user)}" if job.user >= 0 else "unknown",
        memory_per_cpu=math.ceil(memory / 1024) if memory > 0 else None,
        account=f"g{int(job.group)}" if job.group >= 0 else None,
        partition=_partition(job),
        dependency=f"afterany:{int(job.preceding_job)}" if depends else None,
        recorded_wait=job.wait_time if job.wait_time >= 0 else None,
        think_time=job.think_time if depends and job.think_time >= 0 else None,
    )


def _partition(job: SwfJob) -> str | None:
    if job.queue >= 0:
        return f"q{int(job.queue)}"
    return f"p{int(job.partition)}" if job.partition >= 0 else None
