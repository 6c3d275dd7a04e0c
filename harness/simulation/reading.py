"""Read workload traces: Standard Workload Format, sacct's output, CSV, and site bundles.

Files are read as streams; only the jobs of the chosen hours are kept in memory.
"""

from __future__ import annotations

import gzip
import math
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from pydantic import ValidationError

from harness import releases
from harness.errors import UsageError, cannot_read
from harness.parsing import hostlist, swf
from harness.scenario import NodeGroup
from harness.simulation import csv_trace, sacct, swf_trace
from harness.simulation.reading_log import ReadingLog
from harness.simulation.trace import System, Trace, TraceJob
from harness.site import bundle, importer

FORMATS = ("swf", "sacct", "csv")
MOST_LINES = 10_000_000
MOST_JOBS = 200_000
_LONGEST_LINE = 1 << 16
_GZIP = b"\x1f\x8b"
_HINT = (
    "the formats are in docs/simulation-traces.md: Standard Workload Format, the output of sacct "
    "--parsable2 with its header, CSV, and a site bundle"
)
# Values that become arguments of sbatch. Names cannot begin like an option.
_NAME = re.compile(r"[A-Za-z0-9_][\w.@+-]{0,127}\$?", re.ASCII)
_EXPRESSION = re.compile(r"[\w.@+:,=*&|()\[\]/!?<>~-]{1,512}", re.ASCII)
_NAMES = ("user", "account", "partition", "qos", "array")
_EXPRESSIONS = ("id", "gres", "constraint", "licenses", "dependency")
# Jobs that were running at the beginning are submitted this many seconds earlier, so that they have
# their nodes by then.
LEAD = 60.0
# If no job ends in the first _QUIET seconds, and in this part of the time of all submissions, the
# first jobs were submitted before the period that the trace lists.
_QUIET, _QUIET_PART = 4 * 3600.0, 0.1
_LARGEST_TASKS = 2**24  # slurm.h: NO_VAL is far beyond
# A longer run time is an error, such as a record that was never closed.
_LONGEST_RUN = 366 * 86400.0

_Jobs = Iterable[tuple[int, TraceJob]]


def read(
    path: Path,
    *,
    hours: float | None = None,
    begin: float = 0.0,
    starting_state: bool = False,
    cluster: str | None = None,
    format_: str | None = None,
) -> Trace:
    """Return the jobs of a file that were submitted within `hours` after `begin` (in hours, too).

    Both count from the file's first submission. With `starting_state`, jobs that were running or
    pending at `begin` are submitted at the beginning; those that were running are submitted a
    minute before, to end when they did. `cluster` chooses the jobs of a cluster in sacct's output.
    `format_` is one of FORMATS; by default, the content decides.

    Raises UsageError with all problems of the file, as FILE:LINE.
    """
    with ExitStack() as stack:
        source, system = path, System()
        if bundle.is_bundle(path):
            opened = stack.enter_context(bundle.opened(path))
            source = opened.root / "output" / "jobs.txt"
            if not source.is_file():
                raise UsageError(
                    f"{path} has no jobs", hint="collect it with `harness-collect --days 7`"
                )
            system = _size(opened, path)
        file = _File(source, path, format_, cluster)
        window = _Window(begin * 3600, None if hours is None else hours * 3600, starting_state)
        if begin:
            window.origin = min((job.submit for _, job in file.jobs(file.log())), default=0.0)
        log = file.log()
        kept = _jobs_in_window(
            file.jobs(log, system), window, log, path, merge=file.format == "sacct"
        )
        log.raise_problems()
    jobs = _in_order(kept, window, log)
    notes = (*log.notes(), *(window.notes() if file.format == "sacct" else ()))
    if not jobs:
        raise UsageError(f"{path}: no job can be simulated", hint="\n".join(notes) or _HINT)
    return Trace(str(path), tuple(jobs), notes, system.nodes, system.cpus)


def _size(site: bundle.Bundle, path: Path) -> System:
    """Return the size of a site according to its configuration, if that can be read."""
    try:
        release = releases.get(bundle.release_of(site, path))
        data, _ = importer.import_directory(site.configuration, release, for_copy=True)
        (cluster,) = data["clusters"].values()
        groups = [NodeGroup.model_validate(group) for group in cluster["nodes"]]
    except (UsageError, ValidationError):
        return System()
    sizes = [(hostlist.count(group.name), group.counted_cpus()) for group in groups]
    nodes = sum(count for count, _ in sizes)
    return System(nodes or None, sum(count * cpus for count, cpus in sizes) or None)


@dataclass
class _Window:
    """The part of a trace that is kept, in seconds; `origin` is the first submission, if known.

    `first`, `last` and `first_end` are the first and last submission and the first end of all jobs
    that were read.
    """

    begin: float
    length: float | None
    starting_state: bool
    origin: float | None = None
    first: float = math.inf
    last: float = -math.inf
    first_end: float = math.inf

    def extend(self, job: TraceJob) -> None:
        """Take note of a job that was read."""
        self.first = min(self.first, job.submit)
        self.last = max(self.last, job.submit)
        self.first_end = min(self.first_end, _end(job))

    def notes(self) -> Iterator[str]:
        """Yield a note if jobs were submitted long before the period that sacct lists."""
        before = self.first_end - self.first
        if before > max(_QUIET, _QUIET_PART * (self.last - self.first), self.begin):
            yield (
                f"the first job was submitted {before / 3600:.1f} h before any job ended: sacct "
                "lists all jobs that ran after its --starttime; leave these hours out with "
                f"--begin {math.floor(before / 360) / 10:g}"
            )

    @property
    def start(self) -> float:
        """When it begins, according to what has been read of the trace."""
        return (self.first if self.origin is None else self.origin) + self.begin

    def has(self, job: TraceJob) -> bool:
        start = self.start
        if job.submit < start:
            return self.starting_state and _end(job) > start
        return self.length is None or job.submit < start + self.length


def _end(job: TraceJob) -> float:
    return job.submit + (job.recorded_wait or 0) + job.run_time


class _File:
    """A file with a trace, which can be read several times."""

    def __init__(self, source: Path, path: Path, format_: str | None, cluster: str | None) -> None:
        self._source, self._path, self._cluster = source, path, cluster
        self.format = format_ or self._detected_format()

    def log(self) -> ReadingLog:
        """Return a new log."""
        return ReadingLog(self._path, _HINT)

    def jobs(self, log: ReadingLog, system: System | None = None) -> _Jobs:
        """Return the jobs, read from the beginning."""
        lines = self._lines()
        if self.format == "swf":
            return swf_trace.jobs(lines, log, system or System())
        if self.format == "sacct":
            return sacct.jobs(lines, log, self._cluster)
        return csv_trace.jobs(lines, log)

    def _detected_format(self) -> str:
        first = next((line for _, line in self._lines()), "")
        kinds: dict[str, Callable[[str], bool]] = {
            "sacct": sacct.is_sacct,
            "csv": csv_trace.is_csv,
            "swf": swf.is_swf,
        }
        for name, fits in kinds.items():
            if fits(first):
                return name
        problem = ":1: unknown trace format" if first else " is empty"
        raise UsageError(f"{self._path}{problem}", hint=_HINT)

    def _lines(self) -> Iterator[tuple[int, str]]:
        """Yield lines that are not blank, with their numbers."""
        try:
            if not self._source.is_file():
                raise UsageError(f"{self._path} is not a file", hint=_HINT)
            with self._source.open("rb") as raw:
                packed = raw.read(2) == _GZIP
                raw.seek(0)
                if packed:
                    with gzip.open(raw) as unpacked:
                        yield from self._decoded(unpacked)  # type: ignore[arg-type]
                else:
                    yield from self._decoded(raw)
        except (OSError, EOFError, zlib.error) as error:
            raise UsageError(cannot_read(self._path, error)) from error

    def _decoded(self, stream: BinaryIO) -> Iterator[tuple[int, str]]:
        number = 0
        while line := stream.readline(_LONGEST_LINE + 1):
            number += 1
            if len(line) > _LONGEST_LINE:
                raise UsageError(f"{self._path}:{number}: longer than {_LONGEST_LINE} bytes")
            if number > MOST_LINES:
                raise UsageError(
                    f"{self._path}: more than {MOST_LINES} lines", hint="split the file"
                )
            if text := line.decode("utf-8-sig" if number == 1 else "utf-8", "replace").strip():
                yield number, text


def _jobs_in_window(
    jobs: _Jobs, window: _Window, log: ReadingLog, path: Path, *, merge: bool
) -> list[TraceJob]:
    """Return the jobs in the window in the order of the file; runs of a requeued job are merged."""
    kept: dict[str, TraceJob] = {}
    for number, job in jobs:
        window.extend(job)
        if not window.has(job):
            continue
        if problem := _problem(job):
            log.problem(number, problem)
            continue
        if job.run_time > _LONGEST_RUN:
            log.count(number, "ran for more than a year, left out")
            continue
        if before := kept.pop(job.id, None):
            if not merge:
                log.problem(number, f"job {job.id} appears twice")
                continue
            log.count(number, "requeued, the last run counts")
            submit = min(before.submit, job.submit)
            job = replace(job, submit=submit)
        if job.run_time < 1:
            log.count(number, "ran for less than a second")
        elif job.limit and job.run_time > job.limit:
            log.count(number, "ran longer than its limit, may time out")
        kept[job.id] = job
        if len(kept) > MOST_JOBS:
            kept = {name: other for name, other in kept.items() if window.has(other)}
        if len(kept) > MOST_JOBS:
            raise UsageError(
                f"{path}: more than {MOST_JOBS} jobs", hint="choose a part of it with --hours"
            )
    return [job for job in kept.values() if window.has(job)]


def _problem(job: TraceJob) -> str:
    """Return why sbatch would not accept a value of a job; "" if it accepts all."""
    for pattern, names in ((_NAME, _NAMES), (_EXPRESSION, _EXPRESSIONS)):
        for name in names:
            value = getattr(job, name)
            if value is not None and not pattern.fullmatch(value):
                return f"{name}: {value[:40]!r} is not a value that sbatch accepts"
    if job.tasks > _LARGEST_TASKS or job.cpus > _LARGEST_TASKS:
        return f"{job.cpus} CPUs are more than any cluster has"
    return ""


def _in_order(kept: list[TraceJob], window: _Window, log: ReadingLog) -> list[TraceJob]:
    """Return jobs in the order of submission, with times relative to the window's beginning."""
    start = window.start
    if window.origin is None:
        start = min((job.submit for job in kept), default=0.0)
    known = {job.id for job in kept} | {job.array for job in kept if job.array}
    jobs = []
    for job in sorted(kept, key=lambda job: _sort_key(job, start)):
        submit = round(job.submit - start, 3)
        if submit < 0:
            job = _remainder(job, start)
            submit = job.submit
            what = "running" if submit else "pending"
            log.count(0, f"{what} at the beginning, submitted by then")
        jobs.append(replace(job, submit=submit, dependency=_dependency(job, known, log)))
    return jobs


def _sort_key(job: TraceJob, start: float) -> tuple[float, float]:
    """Return the order of submission; jobs that were running at the beginning are first."""
    began = job.submit + (job.recorded_wait or 0)
    if job.submit < start:
        return (-2.0, began) if began < start else (-1.0, job.submit)
    return job.submit, 0.0


def _remainder(job: TraceJob, start: float) -> TraceJob:
    """Return what remained, at the beginning, of a job that was submitted before.

    Its submission is relative to the beginning.
    """
    elapsed = start - job.submit - (job.recorded_wait or 0)
    if elapsed <= 0:
        return replace(job, submit=0.0, recorded_wait=None)
    passed = elapsed - LEAD
    limit = job.limit and max(round(job.limit - passed), 60)
    run_time = job.run_time - passed
    return replace(job, submit=-LEAD, run_time=run_time, limit=limit, recorded_wait=None)


def _dependency(job: TraceJob, known: set[str], log: ReadingLog) -> str | None:
    """Return a job's dependencies on jobs of the trace."""
    if job.dependency is None:
        return None
    separator = "?" if "?" in job.dependency else ","
    parts = []
    for part in job.dependency.split(separator):
        kind, *names = part.split(":")
        names = [name for name in names if name.split("+")[0] in known]
        if names or kind == "singleton":
            parts.append(":".join([kind, *names]))
    dependency = separator.join(parts) or None
    if dependency != job.dependency:
        log.count(0, "depends on a job that is not in the trace, does not wait for it")
    return dependency
