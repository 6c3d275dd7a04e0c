"""Read what `sacct --parsable2` or `--parsable` prints, with its header line."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime

from harness.parsing import durations
from harness.simulation.reading_log import ReadingLog
from harness.simulation.trace import TraceJob

_UNKNOWN = {"", "unknown", "none", "n/a", "none assigned", "(null)"}
_NO_LIMIT = {*_UNKNOWN, "unlimited", "partition_limit", "invalid"}
_UNITS = {"": 1.0, "K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}
_MEMORY = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)([KMGTP]?)B?([nc]?)", re.IGNORECASE)
# slurm.h: job and step identifiers have 32 bits.
_JOB_ID = re.compile(r"(\d{1,10})(?:_(?:(\d{1,10})|\[[^\]]*\])|\+(\d{1,10}))?")
_DEPENDENCY = re.compile(r"(after|afterany|afterok|afternotok|aftercorr):(\d{1,10}(?::\d{1,10})*)")
_GRES = re.compile(r"gres/([\w.-]+(?::[\w.-]+)?)=(\d{1,9})")
# Columns that may have what is needed, the best first. If one is empty, the next counts.
_CPUS = ("reqcpus", "alloccpus", "ncpus")
_NODES = ("allocnodes", "nnodes", "reqnodes")
_LARGEST = 10**12  # seconds since 1970


def is_sacct(line: str) -> bool:
    """Return whether a file whose first line this is seems to be in this format."""
    names = set(line.lower().strip().split("|"))
    return bool(names & {"jobid", "jobidraw"}) and "submit" in names


class Table:
    """A header line, and what it lacks."""

    def __init__(self, header: str) -> None:
        self.names = header.lower().strip().split("|")

    def problems(self) -> Iterator[str]:
        """Yield what is missing."""
        needed = {
            "JobIDRaw or JobID": ("jobidraw", "jobid"),
            "Submit": ("submit",),
            "User": ("user",),
            "Start": ("start",),
            "End, Elapsed or ElapsedRaw": ("end", "elapsed", "elapsedraw"),
            "ReqCPUS, AllocCPUS or NCPUS": _CPUS,
        }
        for column, names in needed.items():
            if not {*names} & {*self.names}:
                yield f"no column {column}"

    def row(self, line: str) -> dict[str, str] | None:
        """Return the cells of a line by name; None if their number is wrong."""
        cells = line.rstrip("\n").split("|")
        if len(cells) == len(self.names) + 1 and not cells[-1]:  # sacct --parsable
            cells.pop()
        return dict(zip(self.names, cells, strict=True)) if len(cells) == len(self.names) else None


def jobs(
    lines: Iterable[tuple[int, str]], log: ReadingLog, cluster: str | None
) -> Iterator[tuple[int, TraceJob]]:
    """Yield jobs with their lines; `submit` is in seconds since 1970.

    A job that was requeued has several rows; it is yielded once for each row.
    """
    table: Table | None = None
    clusters: set[str] = set()
    for number, line in lines:
        if table is None:
            table = Table(line)
            for problem in table.problems():
                log.problem(number, problem)
            log.raise_problems()
            continue
        row = table.row(line)
        if row is None:
            cells = line.count("|") + 1
            log.problem(number, f"{cells} columns, but the header has {len(table.names)}")
            continue
        name = row.get("cluster", "")
        if cluster is not None and name and name != cluster:
            log.count(number, f"not of cluster {cluster}, left out")
            continue
        if name and name not in clusters:
            clusters.add(name)
            if len(clusters) > 1:
                names = " and ".join(sorted(clusters))
                log.problem(
                    number, f"jobs of several clusters, {names}: choose one with sacct --clusters"
                )
        try:
            job = _job(number, row, log)
        except ValueError as error:
            log.problem(number, str(error))
            continue
        if job:
            yield number, job


def _job(number: int, row: Mapping[str, str], log: ReadingLog) -> TraceJob | None:
    """Return the job of a row, or None if the row is a step or cannot be simulated."""
    text = row.get("jobid", "") or row.get("jobidraw", "")
    if "." in text or "." in row.get("jobidraw", ""):
        return None  # a step
    match = _JOB_ID.fullmatch(text)
    if not match:
        raise ValueError(f"JobID: {text[:40]!r} is not a job")
    if match[3]:
        log.count(number, "component of a heterogeneous job, becomes a separate job")
    state = row.get("state", "").split(" ")[0].upper()
    if state == "REVOKED":
        log.count(number, "ran on another cluster of the federation, left out")
        return None
    submit = _time(row, "submit")
    if submit is None:
        raise ValueError("Submit: missing")
    limit, run_time = _limit(row), _run_time(row)
    start = _time(row, "start")
    if start is None:
        log.count(number, "never started, left out")
        return None
    if run_time is None:
        if limit is None:
            log.count(number, "still running without a limit, left out")
            return None
        log.count(number, "still running, runs as long as its limit allows")
        run_time = limit
    if run_time < 0:
        log.count(number, "ended before it started, left out")
        return None
    cpus = next((value for name in _CPUS if (value := _integer(row, name))), 0)
    if cpus < 1:
        log.count(number, "no number of CPUs, left out")
        return None
    nodes = next((value for name in _NODES if (value := _integer(row, name))), None)
    per_node, per_cpu = _memory(row, nodes or 1)
    return TraceJob(
        id=row.get("jobidraw", "").split("+")[0] if not match[3] and row.get("jobidraw") else text,
        submit=submit,
        run_time=run_time,
        limit=limit,
        nodes=min(nodes, cpus) if nodes else None,
        tasks=cpus,
        user=row["user"],
        memory_per_node=per_node,
        memory_per_cpu=per_cpu,
        account=row.get("account") or None,
        partition=row.get("partition", "").split(",")[0] or None,
        qos=row.get("qos") or None,
        gres=_gres(row, nodes or 1),
        constraint=_known(row, "constraints"),
        licenses=_known(row, "licenses"),
        dependency=_dependency(row),
        array=match[1] if match[2] else None,
        array_index=int(match[2]) if match[2] else None,
        recorded_wait=max(start - submit, 0.0),
    )


def _known(row: Mapping[str, str], name: str) -> str | None:
    text = row.get(name, "").strip()
    return None if text.lower() in _UNKNOWN else text


def _time(row: Mapping[str, str], name: str) -> float | None:
    """Return a time in seconds since 1970, as if the site's time zone were UTC."""
    text = _known(row, name)
    if text is None:
        return None
    if re.fullmatch(r"\d{1,12}", text):
        return float(text) or None
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(
            f"{name.capitalize()}: {text[:40]!r} is not a time such as 2026-11-22T22:00:00"
        ) from error
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def _run_time(row: Mapping[str, str]) -> float | None:
    """Return a job's run time, None if it was running; it is negative if its times are wrong."""
    start, end = _time(row, "start"), _time(row, "end")
    if "end" in row and end is None:
        return None
    if text := _known(row, "elapsedraw"):
        return float(_digits("ElapsedRaw", text))
    if text := _known(row, "elapsed"):
        return float(_duration("Elapsed", text.partition(".")[0]))
    return None if start is None or end is None else end - start


def _limit(row: Mapping[str, str]) -> int | None:
    """Return the limit in seconds, None if the partition's limit applies."""
    raw, text = row.get("timelimitraw", ""), row.get("timelimit", "")
    if raw and raw.lower() not in _NO_LIMIT:
        return _digits("TimelimitRaw", raw) * 60 or None
    if text.lower() in _NO_LIMIT:
        return None
    return _duration("Timelimit", text) or None


def _duration(name: str, text: str) -> int:
    if len(text) > 20:
        raise ValueError(f"{name}: {text[:20]}... is not a duration")
    try:
        return min(durations.seconds(text), _LARGEST)
    except ValueError as error:
        raise ValueError(f"{name}: {text!r} is not a duration such as 1-00:00:00") from error


def _digits(name: str, text: str) -> int:
    if not re.fullmatch(r"\d{1,12}", text):
        raise ValueError(f"{name}: {text[:20]!r} is not a number")
    return int(text)


def _integer(row: Mapping[str, str], name: str) -> int | None:
    """Return a count, which sacct may print with a unit."""
    text = _known(row, name)
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)([KM]?)", text)
    if not match:
        raise ValueError(f"{name}: {text[:20]!r} is not a number")
    return round(float(match[1]) * {"": 1, "K": 1000, "M": 1000_000}[match[2]])


def _memory(row: Mapping[str, str], nodes: int) -> tuple[int | None, int | None]:
    """Return the requested MiB per node and per CPU; at most one of them is known.

    Since 21.08, ReqMem is of the whole job; before, it ends in n for a node or c for a CPU.
    """
    text = _known(row, "reqmem")
    if text is None or text in {"?", "0"}:
        return None, None
    match = _MEMORY.fullmatch(text)
    if not match:
        raise ValueError(f"ReqMem: {text[:20]!r} is not an amount of memory such as 4Gn")
    amount = float(match[1]) * _UNITS[match[2].upper()]
    if match[3].lower() == "c":
        return None, math.ceil(amount) or None
    return math.ceil(amount / (1 if match[3] else nodes)) or None, None


def _gres(row: Mapping[str, str], nodes: int) -> str | None:
    """Return the GRES that a job requests per node, with their types if known."""
    text = row.get("reqtres") or row.get("alloctres") or ""
    counts = {name: int(count) for name, count in _GRES.findall(text)}
    typed = {name.partition(":")[0] for name in counts if ":" in name}
    parts = [
        f"{name}:{math.ceil(count / nodes)}"
        for name, count in counts.items()
        if count and name not in typed
    ]
    return ",".join(parts) or None


def _dependency(row: Mapping[str, str]) -> str | None:
    """Return the dependencies on jobs, without what sacct adds in parentheses."""
    text = re.sub(r"\([^)]*\)|_\*", "", row.get("dependency", ""))
    parts = [match[0] for match in _DEPENDENCY.finditer(text)]
    return ",".join(parts) or None
