"""What happened in a run, on one axis of time: stages, checks, faults, and each node with its jobs. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any

from harness import hostlist
from harness.report import Report
from harness.slurm import FINISHED

# More lanes of a cluster would be too thin to see: nodes that stand side by side share one.
_MOST_LANES = 48
# More rows of a lane overlap: jobs that run side by side on the nodes of one lane.
_MOST_ROWS = 24
# More lines would hide what they join.
_MOST_LINKS = 250
_LANE, _JOBS, _HEADING, _STRIP = 20.0, 32.0, 28.0, 4.0
# In percent of the axis. Narrower bars could not be seen; those of a row and a kind that touch become one.
_NARROWEST = 0.15
_TICKS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)
_POWER = {"resume": "coming", "up": "up", "suspend": "going", "down": ""}
# A node's flags (scontrol(1)); the first that it has counts, and one that has none is as it should be. What is powered
# down, or is not up yet, may be DOWN, too.
_POWER_STATES = {"POWERING_UP": "coming", "POWERING_DOWN": "going", "POWER_DOWN": "going", "POWERED_DOWN": ""}
_STATES = _POWER_STATES | {"DOWN": "down", "FAIL": "down", "DRAIN": "drained"}


@dataclass(frozen=True, slots=True)
class Span:
    """Something that lasted, in seconds since 1970."""

    kind: str
    begin: float
    end: float
    title: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class Bar:
    """A span as it is drawn: `left` and `width` in percent of the axis, `top` and `height` in pixels."""

    kind: str
    left: float
    width: float
    top: float
    height: float
    title: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class Lane:
    """A line of the picture, in pixels; `heading` is the name of a cluster above the lanes of its nodes."""

    name: str
    top: float
    height: float
    heading: bool = False


@dataclass(frozen=True, slots=True)
class Link:
    """From where a job was submitted to where a sibling ran it: percent of the axis, and pixels."""

    left: float
    top: float
    right: float
    bottom: float


@dataclass
class Timeline:
    """The picture. `begin` is in seconds since 1970, `ticks` are percent of the axis with what stands there.

    `burst` tells how many jobs a sibling ran; where they are too many, `links` is empty.
    """

    begin: float
    seconds: float
    height: float = 0
    lanes: list[Lane] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    burst: int = 0
    ticks: list[tuple[float, str]] = field(default_factory=list)


def timeline(report: Report, events: Sequence[Mapping[str, Any]]) -> Timeline | None:
    """Draw a report's jobs and what happened around them; None if nothing has a time."""
    rows = {("", name): spans for name, spans in _around(report, events).items() if spans}
    lane_of: dict[str, tuple[str, str]] = {}
    for cluster, nodes in _nodes(report, events).items():
        size = -(-len(nodes) // _MOST_LANES)
        for start in range(0, len(nodes), size):
            names = nodes[start : start + size]
            lane = (cluster, hostlist.fold(names))
            rows[lane] = []
            lane_of.update(dict.fromkeys(names, lane))
    for node, span in (*_job_spans(report), *node_spans(events)):
        if node in lane_of:
            rows[lane_of[node]].append(span)
    spans = [span for row in rows.values() for span in row]
    if not spans:
        return None
    begin = min(span.begin for span in spans)
    drawn = Timeline(begin, max(max(span.end for span in spans) - begin, 1))
    _draw(drawn, rows)
    lanes = dict(zip(rows, (lane for lane in drawn.lanes if not lane.heading), strict=True))
    _link(drawn, report, {node: lanes[row] for node, row in lane_of.items()})
    step = next((tick for tick in _TICKS if drawn.seconds / tick <= 10), drawn.seconds / 10)
    times = (step * number for number in range(int(drawn.seconds // step) + 1))
    drawn.ticks = [(_percent(drawn, begin + time), clock(time)) for time in times]
    return drawn


def clock(seconds: float) -> str:
    """Write seconds as people read a clock.

    >>> clock(3725.4), clock(65)
    ('1:02:05', '1:05')
    """
    minutes, second = divmod(int(seconds), 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"


def job_kind(state: str) -> str:
    """Tell whether a job's state is a good end, someone's wish, a bad end, or none yet."""
    if state == "COMPLETED":
        return "completed"
    if state in {"CANCELLED", "PREEMPTED", "REVOKED"}:
        return "cancelled"
    return "failed" if state in FINISHED else "running"


def end_of_start(events: Iterable[Mapping[str, Any]], started: float) -> float:
    """Return when the start of a daemon was over: the clusters were ready, or a check began, for the first time since.

    Where neither happened a person restarted the daemon, and all that it logs belongs to its start.
    """
    for event in events:
        end = seconds(event)  # an event is written when it is over
        if event.get("name") == "ready" and end > started:
            return end
        if event["kind"] == "check" and end - event["seconds"] > started:
            return end - float(event["seconds"])
    return math.inf


def faults(events: Iterable[Mapping[str, Any]]) -> list[Span]:
    """Return the faults from their injection to when they were healed, or to the last event if they never were."""
    found: list[Span] = []
    active: dict[str, float] = {}
    last = 0.0
    for event in events:
        last = seconds(event)
        if event["kind"] != "fault":
            continue
        name = str(event["fault"])
        if event["action"] == "inject":
            active[name] = last
        elif event["action"] == "heal" and name in active:
            found.append(Span("fault", active.pop(name), last, name))
    found += [Span("fault", at, last, f"{name} (not healed)") for name, at in active.items()]
    return sorted(found, key=lambda span: span.begin)


def _around(report: Report, events: Sequence[Mapping[str, Any]]) -> dict[str, list[Span]]:
    """Return what is no cluster's: the stages, the checks that the report tells of, the faults."""
    told = {check.id for check in report.checks}
    checks = {event["id"]: event for event in events if event["kind"] == "check" and event["id"] in told}
    stages = [event for event in events if event["kind"] == "stage"]
    return {
        "stages": [
            _lasted(event, "stage", f"{event['name']}, {event['seconds']} s", str(event["name"])) for event in stages
        ],
        "checks": [
            _lasted(event, f"check {event['outcome']}", f"{event['outcome']}: {event['id']}, {event['seconds']} s")
            for event in checks.values()
        ],
        "faults": [
            Span(span.kind, span.begin, span.end, span.title, str(number))
            for number, span in enumerate(faults(events), 1)
        ],
    }


def _lasted(event: Mapping[str, Any], kind: str, title: str, label: str = "") -> Span:
    """Return the span of an event that is written when it is over."""
    end = seconds(event)
    return Span(kind, end - event["seconds"], end, title, label)


def _nodes(report: Report, events: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the nodes of each cluster, those too that only jobs tell of."""
    nodes = {cluster: dict.fromkeys(hostlist.expand(names)) for cluster, names in report.nodes.items()}
    for job in report.jobs:
        nodes.setdefault(job["cluster"], {}).update(dict.fromkeys(_expanded(job["node_list"])))
    for event in events:
        if event["kind"] == "node" and "cluster" in event:
            nodes.setdefault(event["cluster"], {})[event["name"]] = None
    return {cluster: list(names) for cluster, names in nodes.items() if names}


@cache
def _expanded(node_list: str) -> tuple[str, ...]:
    try:
        return hostlist.expand(node_list)
    except ValueError:
        return ()  # such as "None assigned"


def _job_spans(report: Report) -> Iterator[tuple[str, Span]]:
    for job in sorted(report.jobs, key=lambda job: job["start"] or 0):
        if job["start"] and job["end"] and job["state"] != "REVOKED":
            title = f"job {job['job_id']} {job['state']}, {job['end'] - job['start']} s"
            span = Span(job_kind(job["state"]), job["start"], job["end"], title)
            yield from ((node, span) for node in _expanded(job["node_list"]))


def node_spans(events: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Span]]:
    """Yield how nodes came and went, as the programs of slurmctld said, and when slurmctld saw them down or drained.

    Where nobody but slurmctld tells of power, its states do. Nodes that nobody suspended are up to the last event.
    """
    powered = {node for event in events if event["kind"] == "power" for node in event["nodes"]}
    last: dict[tuple[str, str], tuple[float, str, str]] = {}
    for event in events:
        if event["kind"] == "power" and event["action"] in _POWER:
            changes = [(node, "power", _POWER[event["action"]], event["action"]) for node in event["nodes"]]
        elif event["kind"] == "node" and "cluster" in event:
            flags = {*event["state"].split("+")}
            flag = next((flag for flag in _STATES if flag in flags), "")
            kind = "" if flag in _POWER_STATES and event["name"] in powered else _STATES.get(flag, "")
            changes = [(event["name"], "state", kind, event["state"])]
        else:
            continue
        at = seconds(event)
        for node, source, kind, said in changes:
            begin, before, meant = last.get((node, source), (at, "", ""))
            if kind == before:
                continue
            if before:
                yield node, _strip(node, before, meant, begin, at)
            last[node, source] = (at, kind, said)
    for (node, source), (begin, kind, meant) in last.items():
        if kind and source == "power":  # a state that was seen last may have changed unseen
            yield node, _strip(node, kind, meant, begin, seconds(events[-1]))


def _strip(node: str, kind: str, meant: str, begin: float, end: float) -> Span:
    return Span(f"strip {kind}", begin, end, f"{node} {kind} ({meant}), {end - begin:.1f} s")


def _draw(drawn: Timeline, rows: Mapping[tuple[str, str], Sequence[Span]]) -> None:
    """Put the rows below one another, a heading above those of each cluster, and spans that overlap side by side."""
    cluster = ""
    for (group, name), spans in rows.items():
        if group != cluster:
            drawn.lanes.append(Lane(group, drawn.height, _HEADING, heading=True))
            drawn.height += _HEADING
            cluster = group
        strips = [span for span in spans if span.kind.startswith("strip ")]
        # What is rounded may overlap by less than could be seen.
        slack = drawn.seconds * _NARROWEST / 100
        stacked = _stack([span for span in spans if not span.kind.startswith("strip ")], slack)
        height = _JOBS if len(stacked) > 1 else _LANE
        lane = Lane(name, drawn.height, height)
        drawn.lanes.append(lane)
        drawn.height += height
        room = height - _STRIP - 3
        for number, row in enumerate(stacked):
            top = lane.top + 1 + room * number / len(stacked)
            drawn.bars += _bars(drawn, row, top, max(room / len(stacked) - 0.5, 0.5))
        drawn.bars += _bars(drawn, strips, lane.top + height - _STRIP - 1, _STRIP)
    drawn.height = round(drawn.height)


def _stack(spans: Iterable[Span], slack: float) -> list[list[Span]]:
    """Return rows in each of which no span begins before another has ended, if that takes no more than _MOST_ROWS.

    >>> [len(row) for row in _stack([Span("", 0, 2, ""), Span("", 1, 3, ""), Span("", 2, 4, "")], 0)]
    [2, 1]
    """
    rows: list[list[Span]] = []
    for span in sorted(spans, key=lambda span: (span.begin, span.end)):
        free = (row for row in rows if row[-1].end <= span.begin + slack)
        row = next(free, None) if len(rows) < _MOST_ROWS else min(rows, key=lambda row: row[-1].end)
        if row is None:
            rows.append([span])
        else:
            row.append(span)
    return rows


def _bars(drawn: Timeline, spans: Iterable[Span], top: float, height: float) -> Iterator[Bar]:
    """Yield the bars of a row; narrow ones of a kind that touch become one, so that none are too many to draw."""
    run: list[Span] = []
    narrow = drawn.seconds * _NARROWEST / 100

    def bar() -> Bar:
        first, last = run[0], max(span.end for span in run)
        title = first.title
        if len(run) > 1:
            title = f"{len(run)} {first.kind}, {clock(first.begin - drawn.begin)} to {clock(last - drawn.begin)}"
        left, right = _percent(drawn, first.begin), _percent(drawn, last)
        width = round(max(right - left, _NARROWEST), 3)
        return Bar(first.kind, left, width, round(top, 1), round(height, 1), title, first.label)

    for span in spans:
        both_narrow = run and all(one.end - one.begin < 2 * narrow for one in (span, run[-1]))
        if run and not (both_narrow and span.kind == run[-1].kind and span.begin - run[-1].end < narrow):
            yield bar()
            run = []
        run.append(span)
    if run:
        yield bar()


def _link(drawn: Timeline, report: Report, lane_of: Mapping[str, Lane]) -> None:
    """Link each job that a sibling ran with the cluster that it was submitted to, its origin."""
    headings = {lane.name: lane for lane in drawn.lanes if lane.heading}
    members = [*report.federations.values()]
    for job in report.jobs:
        clusters = next((names for names in members if job["cluster"] in names), [job["cluster"]])
        origin = clusters[job["origin"] - 1] if 0 < job["origin"] <= len(clusters) else job["cluster"]
        nodes = [node for node in _expanded(job["node_list"]) if node in lane_of]
        if origin == job["cluster"] or origin not in headings or not nodes or not (job["submit"] and job["start"]):
            continue
        there, here = headings[origin], lane_of[nodes[0]]
        begin, end = _percent(drawn, job["submit"]), _percent(drawn, job["start"])
        drawn.links.append(Link(begin, there.top + there.height - _STRIP, end, here.top + here.height / 2))
    drawn.burst = len(drawn.links)
    if drawn.burst > _MOST_LINKS:
        drawn.links = []


def _percent(drawn: Timeline, at: float) -> float:
    return round(max(at - drawn.begin, 0) * 100 / drawn.seconds, 3)


def seconds(event: Mapping[str, Any]) -> float:
    """Return when an event was written, in seconds since 1970."""
    return datetime.fromisoformat(event["time"]).timestamp()
