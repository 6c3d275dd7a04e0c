"""Lay out the plots of a comparison, for templates/simulation.html.j2. Pure."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from harness.report.timeline import Span, Timeline, clock, job_kind, lanes, picture
from harness.simulation import measures
from harness.simulation.comparison import PolicyResults, duration
from harness.simulation.model import Simulation

WIDTH, HEIGHT = 560, 220  # of a plot's area, in its own units
_POINTS = 200
# Steps of an axis of time, in seconds.
_STEPS = (60, 300, 600, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800)
# Waits below this are drawn at the left edge of a logarithmic axis.
_SHORTEST_WAIT = 1.0
_WAIT_TICKS = (1, 10, 60, 600, 3600, 21600, 86400, 604800, 2592000)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a plot: the number of its policy, and its points as SVG has them."""

    policy: int
    points: str
    title: str


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot; ticks are positions and labels."""

    name: str
    title: str
    description: str
    lines: tuple[Line, ...]
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]


def plots(policies: Sequence[PolicyResults]) -> list[Plot]:
    """Return the plots that compare policies, a line for each simulation."""
    end = max(
        measures.end_of(simulation) for policy in policies for simulation in policy.simulations
    )
    return [
        _waits(policies),
        _over_time(
            "utilization",
            "Utilization over time",
            "Allocated CPUs, as a percentage of all CPUs",
            policies,
            end,
            lambda simulation, points: [
                100 * value for value in measures.utilization_over_time(simulation, points)
            ],
            100.0,
        ),
        _over_time(
            "queue",
            "Queue length over time",
            "Jobs that are waiting and could start if there were room",
            policies,
            end,
            measures.queue_over_time,
        ),
    ]


def _waits(policies: Sequence[PolicyResults]) -> Plot:
    """Return the distribution of waits: the part of the jobs that waited no longer than x."""
    waits = [
        (number, simulation, _sorted_waits(simulation))
        for number, policy in enumerate(policies)
        for simulation in policy.simulations
    ]
    longest = max((values[-1] for _, _, values in waits if values), default=0.0)
    top = max(longest, 10.0)

    def x(seconds: float) -> float:
        return WIDTH * math.log(max(seconds, _SHORTEST_WAIT)) / math.log(top)

    steps = [top ** (number / _POINTS) for number in range(_POINTS + 1)]
    lines = tuple(
        Line(
            number,
            _path((x(step), bisect_right(values, step) / len(values)) for step in steps),
            _title(policies, number, simulation),
        )
        for number, simulation, values in waits
        if values
    )
    ticks = tuple((round(x(tick), 1), duration(tick)) for tick in _WAIT_TICKS if tick <= top)
    return Plot(
        "waits",
        "Waits",
        "Percentage of jobs that waited no longer than the time below; further left is better",
        lines,
        ticks,
        _y_ticks(100.0),
    )


def _sorted_waits(simulation: Simulation) -> list[float]:
    end = measures.end_of(simulation)
    jobs = measures.measured_jobs(simulation)
    return sorted(wait for job in jobs if (wait := measures.wait_of(job, end)) is not None)


def _over_time(
    name: str,
    title: str,
    description: str,
    policies: Sequence[PolicyResults],
    end: float,
    values_of: Callable[[Simulation, int], list[float]],
    top: float | None = None,
) -> Plot:
    """Return a plot of a quantity over simulated time; without `top`, the largest value counts."""
    series = [
        (number, simulation, values_of(simulation, _POINTS))
        for number, policy in enumerate(policies)
        for simulation in policy.simulations
    ]
    top = top or nice_top(max((max(values) for _, _, values in series), default=0.0))
    end = max(end, 1.0)
    lines = []
    for number, simulation, values in series:
        width = WIDTH * measures.end_of(simulation) / end / _POINTS
        points = ((width * (at + 0.5), min(value / top, 1.0)) for at, value in enumerate(values))
        lines.append(Line(number, _path(points), _title(policies, number, simulation)))
    step = next((step for step in _STEPS if end / step <= 8), end / 8)
    ticks = tuple(
        (round(WIDTH * step * number / end, 1), clock(step * number))
        for number in range(int(end // step) + 1)
    )
    return Plot(name, title, description, tuple(lines), ticks, _y_ticks(top))


def nice_top(value: float) -> float:
    """Return a round number that is at least as large as a value.

    >>> nice_top(0), nice_top(7.2), nice_top(130)
    (1.0, 8.0, 200.0)
    """
    if value <= 1:
        return 1.0
    power = 10 ** math.floor(math.log10(value))
    return float(next(power * step for step in (1, 2, 4, 5, 8, 10) if power * step >= value))


def _y_ticks(top: float) -> tuple[tuple[float, str], ...]:
    return tuple((HEIGHT * (1 - part / 4), f"{top * part / 4:g}") for part in range(5))


def _path(points: Iterator[tuple[float, float]]) -> str:
    """Return the points of a line, whose y is from 0 at the bottom to 1 at the top.

    Points on a horizontal line are left out, except its first and last one.
    """
    shown: list[tuple[float, float]] = []
    for x, y in points:
        point = (round(x, 1), round(HEIGHT * (1 - y), 1))
        if len(shown) > 1 and shown[-2][1] == shown[-1][1] == point[1]:
            shown[-1] = point
        else:
            shown.append(point)
    return " ".join(f"{x:g},{y:g}" for x, y in shown)


def _title(policies: Sequence[PolicyResults], number: int, simulation: Simulation) -> str:
    policy = policies[number]
    return (
        f"{policy.name}, repeat {simulation.repeat}" if len(policy.simulations) > 1 else policy.name
    )


def gantt(simulation: Simulation) -> Timeline | None:
    """Return a chart of what ran on which nodes; nodes share lanes if there are many.

    None if no job has run. A job's last run is drawn once in each lane, without the times in which
    it was suspended.
    """
    names = _nodes(simulation)
    lane_of = lanes("", names)
    rows: dict[tuple[str, str], list[Span]] = {lane: [] for lane in lane_of.values()}
    end = measures.end_of(simulation)
    for job in sorted(simulation.jobs, key=lambda job: job.start or 0):
        if job.start is None:
            continue
        runs = measures.runs_of(job, end)
        for begin, close in runs[-1:] if job.restarts else runs:
            title = (
                f"job {job.job_id} of {job.user}, {job.state}: {job.cpus} CPUs, waited "
                f"{duration(max(job.start - job.submit, 0))}, ran {duration(close - begin)}"
            )
            span = Span(job_kind(job.state), max(begin, 0.0), max(close, 0.0), title)
            for lane in dict.fromkeys(lane_of[node] for node in job.nodes if node in lane_of):
                rows[lane].append(span)
    return picture(rows)


def _nodes(simulation: Simulation) -> list[str]:
    """Return the names of all nodes that are known, n2 before n10."""
    names = {*simulation.node_names, *(node for job in simulation.jobs for node in job.nodes)}
    return sorted(names, key=lambda name: [(len(part), part) for part in re.split(r"(\d+)", name)])
