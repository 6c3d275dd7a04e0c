"""Draw a run on one time axis: stages, checks, faults, and each node with its jobs. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any

from harness.cluster import node_state
from harness.cluster.slurm import FINISHED
from harness.parsing import hostlist
from harness.report.model import Report

# More lanes per cluster would be too thin to see: adjacent nodes share a lane.
_MOST_LANES = 48
# Jobs that run at the same time on the nodes of a lane get a row each. If there are more jobs than
# this, rows overlap.
_MOST_ROWS = 24
# More lines would hide what they connect.
_MOST_LINKS = 250
_LANE, _JOBS, _HEADING, _STRIP = 20.0, 32.0, 28.0, 4.0
# In percent of the axis. Narrower bars would be invisible; in each row, such bars of the same kind
# are merged if they touch.
_NARROWEST = 0.15
# If there are more bars, wider ones are merged, too, so that browsers draw the picture quickly.
_MOST_BARS = 10_000
_MERGED = (_NARROWEST, 0.3, 0.6, 1.2, 2.4)
_TICKS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)
_POWER = {"resume": "coming", "up": "up", "suspend": "going", "down": ""}


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
    """A span as it is drawn.

    `left` and `width` are in percent of the axis, `top` and `height` in pixels.
    """

    kind: str
    left: float
    width: float
    top: float
    height: float
    title: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class Lane:
    """A lane of the picture, in pixels.

    A `heading` has the name of a cluster above the lanes of its nodes.
    """

    name: str
    top: float
    height: float
    heading: bool = False


@dataclass(frozen=True, slots=True)
class Link:
    """A line from where a job was submitted to the sibling cluster that ran it.

    `left` and `right` are in percent of the axis, `top` and `bottom` in pixels.
    """

    left: float
    top: float
    right: float
    bottom: float


@dataclass
class Timeline:
    """The picture.

    `begin` is in seconds since 1970, `ticks` are in percent of the axis, with labels. `burst` is
    the number of jobs that a sibling cluster ran; if there are too many, `links` is empty.
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
    """Draw a report's jobs, stages, checks, faults and nodes; None if nothing has a time."""
    rows = {("", name): spans for name, spans in _run_spans(report, events).items() if spans}
    lane_of: dict[str, tuple[str, str]] = {}
    for cluster, nodes in _nodes(report, events).items():
        lane_of |= lanes(cluster, nodes)
    rows |= {lane: [] for lane in lane_of.values()}
    for node, span in (*_job_spans(report), *node_spans(events)):
        if node in lane_of:
            rows[lane_of[node]].append(span)
    drawn = picture(rows)
    if drawn:
        drawn_lanes = (lane for lane in drawn.lanes if not lane.heading)
        of_row = dict(zip(rows, drawn_lanes, strict=True))
        _link(drawn, report, {node: of_row[row] for node, row in lane_of.items()})
    return drawn


def lanes(group: str, nodes: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return the row of each node: its group, and the nodes that share a lane."""
    size = -(-len(nodes) // _MOST_LANES) or 1
    lane_of = {}
    for start in range(0, len(nodes), size):
        names = nodes[start : start + size]
        lane_of.update(dict.fromkeys(names, (group, hostlist.fold(names))))
    return lane_of


def picture(rows: Mapping[tuple[str, str], Sequence[Span]]) -> Timeline | None:
    """Draw rows on one axis, each with a group and a name; None if they have no spans.

    A heading with the name of the group is above its rows.
    """
    spans = [span for row in rows.values() for span in row]
    if not spans:
        return None
    begin = min(span.begin for span in spans)
    drawn = Timeline(begin, max(max(span.end for span in spans) - begin, 1))
    _draw(drawn, rows)
    step = next((tick for tick in _TICKS if drawn.seconds / tick <= 10), drawn.seconds / 10)
    times = (step * number for number in range(int(drawn.seconds // step) + 1))
    drawn.ticks = [(_percent(drawn, begin + time), clock(time)) for time in times]
    return drawn


def clock(seconds: float) -> str:
    """Format seconds as a clock does.

    >>> clock(3725.4), clock(65)
    ('1:02:05', '1:05')
    """
    minutes, second = divmod(int(seconds), 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"


def job_kind(state: str) -> str:
    """Return how a job of a state is drawn: completed, cancelled, failed or running."""
    if state == "COMPLETED":
        return "completed"
    if state in {"CANCELLED", "PREEMPTED", "REVOKED"}:
        return "cancelled"
    return "failed" if state in FINISHED else "running"


def end_of_start(events: Iterable[Mapping[str, Any]], started: float) -> float:
    """Return when a daemon had started up.

    That is when, after `started`, the clusters were ready or a check began for the first time. If
    neither happened, a user restarted the daemon, and everything that it logs belongs to its start.
    """
    for event in events:
        end = seconds(event)  # an event is written when it is over
        if event.get("name") == "ready" and end > started:
            return end
        if event["kind"] == "check" and end - event["seconds"] > started:
            return end - float(event["seconds"])
    return math.inf


def faults(events: Iterable[Mapping[str, Any]]) -> list[Span]:
    """Return the faults from injection to healing, or to the last event if never healed."""
    spans: list[Span] = []
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
            spans.append(Span("fault", active.pop(name), last, name))
    spans += [Span("fault", at, last, f"{name} (not healed)") for name, at in active.items()]
    return sorted(spans, key=lambda span: span.begin)


def _run_spans(report: Report, events: Sequence[Mapping[str, Any]]) -> dict[str, list[Span]]:
    """Return the spans of the whole run: stages, the checks in the report, faults."""
    in_report = {check.id for check in report.checks}
    checks = {
        event["id"]: event
        for event in events
        if event["kind"] == "check" and event["id"] in in_report
    }
    stages = [event for event in events if event["kind"] == "stage"]
    return {
        "stages": [
            _event_span(
                event, "stage", f"{event['name']}, {event['seconds']} s", str(event["name"])
            )
            for event in stages
        ],
        "checks": [
            _event_span(
                event,
                f"check {event['outcome']}",
                f"{event['outcome']}: {event['id']}, {event['seconds']} s",
            )
            for event in checks.values()
        ],
        "faults": [
            Span(span.kind, span.begin, span.end, span.title, str(number))
            for number, span in enumerate(faults(events), 1)
        ],
    }


def _event_span(event: Mapping[str, Any], kind: str, title: str, label: str = "") -> Span:
    """Return the span of an event that is written when it is over."""
    end = seconds(event)
    return Span(kind, end - event["seconds"], end, title, label)


def _nodes(report: Report, events: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the nodes of each cluster, including those that are only known from jobs."""
    nodes = {
        cluster: dict.fromkeys(hostlist.expand(names)) for cluster, names in report.nodes.items()
    }
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
    """Yield the spans in which nodes were coming, up, going, and down or drained.

    The first three come from slurmctld's power programs, or from its node states if there is no
    event of such a program. A node that was not suspended is up until the last event.
    """
    powered = {node for event in events if event["kind"] == "power" for node in event["nodes"]}
    last: dict[tuple[str, str], tuple[float, str, str]] = {}
    for event in events:
        if event["kind"] == "power" and event["action"] in _POWER:
            changes = [
                (node, "power", _POWER[event["action"]], event["action"]) for node in event["nodes"]
            ]
        elif event["kind"] == "node" and "cluster" in event:
            kind = node_state.phase(event["state"], power_is_known=event["name"] in powered)
            changes = [(event["name"], "state", kind, event["state"])]
        else:
            continue
        at = seconds(event)
        for node, source, kind, state in changes:
            begin, before, state_before = last.get((node, source), (at, "", ""))
            if kind == before:
                continue
            if before:
                yield node, _strip(node, before, state_before, begin, at)
            last[node, source] = (at, kind, state)
    for (node, source), (begin, kind, state) in last.items():
        if kind and source == "power":  # other states may have changed unnoticed
            yield node, _strip(node, kind, state, begin, seconds(events[-1]))


def _strip(node: str, kind: str, state: str, begin: float, end: float) -> Span:
    return Span(f"strip {kind}", begin, end, f"{node} {kind} ({state}), {end - begin:.1f} s")


def _draw(drawn: Timeline, rows: Mapping[tuple[str, str], Sequence[Span]]) -> None:
    """Draw the rows one below the other, with a heading above those of each cluster."""
    cluster = ""
    placed: list[tuple[Sequence[Span], float, float]] = []
    for (group, name), spans in rows.items():
        if group != cluster:
            drawn.lanes.append(Lane(group, drawn.height, _HEADING, heading=True))
            drawn.height += _HEADING
            cluster = group
        strips = [span for span in spans if span.kind.startswith("strip ")]
        # Rounded times may overlap by less than is visible.
        slack = drawn.seconds * _NARROWEST / 100
        stacked = _stack([span for span in spans if not span.kind.startswith("strip ")], slack)
        height = _JOBS if len(stacked) > 1 else _LANE
        lane = Lane(name, drawn.height, height)
        drawn.lanes.append(lane)
        drawn.height += height
        room = height - _STRIP - 3
        for number, row in enumerate(stacked):
            top = lane.top + 1 + room * number / len(stacked)
            placed.append((row, top, max(room / len(stacked) - 0.5, 0.5)))
        placed.append((strips, lane.top + height - _STRIP - 1, _STRIP))
    drawn.height = round(drawn.height)
    for merged in _MERGED:
        drawn.bars = [bar for row in placed for bar in _bars(drawn, *row, merged)]
        if len(drawn.bars) <= _MOST_BARS:
            break


def _stack(spans: Iterable[Span], slack: float) -> list[list[Span]]:
    """Return rows of spans that do not overlap, as far as _MOST_ROWS rows suffice.

    >>> spans = [Span("", 0, 2, ""), Span("", 1, 3, ""), Span("", 2, 4, "")]
    >>> [len(row) for row in _stack(spans, 0)]
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


def _bars(
    drawn: Timeline, spans: Iterable[Span], top: float, height: float, merged: float
) -> Iterator[Bar]:
    """Yield the bars of a row.

    Bars of a kind that touch and are narrower than `merged` percent of the axis become one, which
    limits their number.
    """
    run: list[Span] = []
    narrow = drawn.seconds * merged / 100

    def bar() -> Bar:
        first, last = run[0], max(span.end for span in run)
        title = first.title
        if len(run) > 1:
            begin, end = clock(first.begin - drawn.begin), clock(last - drawn.begin)
            title = f"{len(run)} {first.kind}, {begin} to {end}"
        left, right = _percent(drawn, first.begin), _percent(drawn, last)
        width = round(max(right - left, _NARROWEST), 3)
        return Bar(first.kind, left, width, round(top, 1), round(height, 1), title, first.label)

    for span in spans:
        both_narrow = run and all(
            neighbor.end - neighbor.begin < 2 * narrow for neighbor in (span, run[-1])
        )
        if run and not (
            both_narrow and span.kind == run[-1].kind and span.begin - run[-1].end < narrow
        ):
            yield bar()
            run = []
        run.append(span)
    if run:
        yield bar()


def _link(drawn: Timeline, report: Report, lane_of: Mapping[str, Lane]) -> None:
    """Draw a line from its origin cluster for each job that a sibling cluster ran."""
    headings = {lane.name: lane for lane in drawn.lanes if lane.heading}
    members = [*report.federations.values()]
    for job in report.jobs:
        clusters = next((names for names in members if job["cluster"] in names), [job["cluster"]])
        origin = (
            clusters[job["origin"] - 1] if 0 < job["origin"] <= len(clusters) else job["cluster"]
        )
        nodes = [node for node in _expanded(job["node_list"]) if node in lane_of]
        if (
            origin == job["cluster"]
            or origin not in headings
            or not nodes
            or not (job["submit"] and job["start"])
        ):
            continue
        start, target = headings[origin], lane_of[nodes[0]]
        begin, end = _percent(drawn, job["submit"]), _percent(drawn, job["start"])
        drawn.links.append(
            Link(begin, start.top + start.height - _STRIP, end, target.top + target.height / 2)
        )
    drawn.burst = len(drawn.links)
    if drawn.burst > _MOST_LINKS:
        drawn.links = []


def _percent(drawn: Timeline, at: float) -> float:
    return round(max(at - drawn.begin, 0) * 100 / drawn.seconds, 3)


def seconds(event: Mapping[str, Any]) -> float:
    """Return when an event was written, in seconds since 1970."""
    return datetime.fromisoformat(event["time"]).timestamp()
