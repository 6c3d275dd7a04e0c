"""report.html of a comparison of policies: a single file without external resources.

It is generated from the simulations in a directory alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from harness.errors import UsageError
from harness.shipped_files import TEMPLATES
from harness.simulation import measures, plots, simulation_files
from harness.simulation.comparison import (
    HEADLINES,
    Comparison,
    Difference,
    PolicyResults,
    compare,
    headline_values,
    shown,
)
from harness.simulation.measures import Measures
from harness.simulation.quality import slowed_text

# Of users and accounts; the others are in measures.csv.
_MOST_GROUPS = 50
_QUALITY = {
    "rate": "rate",
    "seconds": "real seconds",
    "overshoot_mean": "overshoot, mean s",
    "overshoot_p95": "overshoot, 95% s",
    "lateness_mean": "lateness, mean s",
    "lateness_p95": "lateness, 95% s",
    "false_timeouts": "false timeouts",
    "clock_skew": "clock skew, s",
    "longest_completing": "completing, longest s",
}
_SLOWED = "clock slowed by"

_COUNTS = {
    "refused": "refused",
    "timed_out": "timed out",
    "preempted": "preempted",
    "not_started": "not started",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """A value of a policy: the mean of its repeats, their range, and whether it differs.

    `differs` is in comparison with the first policy, None if that is unknown.
    """

    value: str
    range: str = ""
    differs: bool | None = False


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table, with a cell for each policy."""

    name: str
    cells: tuple[Cell, ...]


def write(directory: Path) -> Path:
    """Write DIRECTORY/report.html and return its path.

    UsageError if the directory has no simulations, or if it cannot be written to.
    """
    path = directory / "report.html"
    text = html(compare(simulation_files.read(directory)))
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
    return path


def html(comparison: Comparison) -> str:
    """Return the HTML report. Everything that comes from a cluster or a trace is escaped."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    policies = comparison.policies
    return environment.get_template("simulation.html.j2").render(
        comparison=comparison,
        policies=policies,
        first=policies[0].simulations[0],
        problems=[problem for policy in policies for problem in policy.problems],
        rows=headline_rows(comparison),
        groups=_groups(comparison),
        fairness=_fairness(policies),
        held=_table(policies, lambda measured: measured.held),
        held_unit=policies[0].measures[0].held_unit,
        refusals=_table(policies, lambda measured: measured.refusals),
        quality=[
            (policy.name, simulation.repeat, _quality(asdict(simulation.quality)))
            for policy in policies
            for simulation in policy.simulations
        ],
        quality_names=[*_QUALITY.values(), _SLOWED],
        scheduler=_scheduler(policies),
        settings=[
            *dict.fromkeys(
                setting
                for policy in policies
                for item in policy.simulations
                for setting in item.settings
            )
        ],
        plots=plots.plots(policies),
        width=plots.WIDTH,
        height=plots.HEIGHT,
        charts=[(policy.name, plots.gantt(policy.simulations[0])) for policy in policies],
    )


def headline_rows(comparison: Comparison) -> list[Row]:
    """Return the rows of the table of measures."""
    return [*_headlines(comparison), *_counts(comparison.policies)]


def cell(values: Sequence[float | None], unit: str, difference: Difference | None = None) -> Cell:
    """Return the cell of a policy's values of its repeats."""
    known = [value for value in values if value is not None]
    if not known:
        return Cell("-")
    low, high = shown(min(known), unit), shown(max(known), unit)
    verdict = difference.verdict if difference else "within the spread"
    return Cell(
        shown(fmean(known), unit),
        f"{low} - {high}" if low != high else "",
        None if verdict == "unknown" else verdict == "beyond the spread",
    )


def _headlines(comparison: Comparison) -> Iterator[Row]:
    for index, measure in enumerate(HEADLINES):
        yield Row(
            measure.name,
            tuple(
                cell(
                    [headline_values(measured)[index] for measured in policy.measures],
                    measure.unit,
                    _difference(comparison, policy, measure.name, None),
                )
                for policy in comparison.policies
            ),
        )


def _difference(
    comparison: Comparison, policy: PolicyResults, name: str, group: tuple[str, str] | None
) -> Difference | None:
    """Return the difference between the first policy and this one."""
    first = comparison.policies[0].name
    return next(
        (
            difference
            for difference in comparison.differences
            if (difference.first, difference.second) == (first, policy.name)
            and (difference.measure.name, difference.group) == (name, group)
        ),
        None,
    )


def _counts(policies: Sequence[PolicyResults]) -> Iterator[Row]:
    for name, title in _COUNTS.items():
        values = [[float(getattr(item, name)) for item in policy.measures] for policy in policies]
        yield Row(f"jobs {title}", tuple(cell(own, "") for own in values))
    for name, title in {"backfilled": "jobs backfilled", "unfairness": "unfairness"}.items():
        parts = [
            [
                None if (value := getattr(item, name)) is None else 100 * value
                for item in policy.measures
            ]
            for policy in policies
        ]
        yield Row(title, tuple(cell(own, "%") for own in parts))


def _groups(comparison: Comparison) -> dict[str, list[tuple[str, str, tuple[Cell, ...]]]]:
    """Return the mean waits of each group, with the number of its jobs, by kind."""
    tables: dict[str, list[tuple[str, str, tuple[Cell, ...]]]] = {}
    for kind in measures.GROUPS:
        groups_of = [
            [{group.name: group for group in item.groups[kind]} for item in policy.measures]
            for policy in comparison.policies
        ]
        counts = {
            name: group.jobs
            for repeats in reversed(groups_of)
            for item in repeats
            for name, group in item.items()
        }
        names = list(counts)
        if len(names) > _MOST_GROUPS:
            names = sorted(names, key=lambda name: -counts[name])[:_MOST_GROUPS]
        tables[kind] = [
            (
                name,
                str(counts[name]),
                tuple(
                    cell(
                        [item[name].wait.mean if name in item else None for item in repeats],
                        "s",
                        _difference(comparison, policy, HEADLINES[0].name, (kind, name)),
                    )
                    for policy, repeats in zip(comparison.policies, groups_of, strict=True)
                ),
            )
            for name in (names if kind == "size" else sorted(names))
        ]
    return {kind: table for kind, table in tables.items() if len(table) > 1}


def _fairness(policies: Sequence[PolicyResults]) -> list[tuple[str, str, str, tuple[Cell, ...]]]:
    """Return account, user, share, and usage with each policy, in percent."""
    shares = {
        (share.account, share.user): share.share
        for policy in policies
        for item in policy.measures
        for share in item.shares
    }
    usage = [
        [
            {(share.account, share.user): 100 * share.usage for share in item.shares}
            for item in policy.measures
        ]
        for policy in policies
    ]
    chosen = sorted(shares, key=lambda pair: -shares[pair])[:_MOST_GROUPS]
    return [
        (
            *pair,
            shown(100 * shares[pair], "%"),
            tuple(cell([item.get(pair) for item in repeats], "%") for repeats in usage),
        )
        for pair in sorted(chosen)
    ]


def _table(
    policies: Sequence[PolicyResults], counts_of: Callable[[Measures], Mapping[str, float]]
) -> list[Row]:
    """Return counts by name, the largest first."""
    all_counts = [[counts_of(item) for item in policy.measures] for policy in policies]
    names = dict.fromkeys(name for repeats in all_counts for counts in repeats for name in counts)
    rows = [
        (
            max(counts.get(name, 0.0) for repeats in all_counts for counts in repeats),
            Row(name, tuple(cell([item.get(name, 0.0) for item in own], "") for own in all_counts)),
        )
        for name in names
    ]
    rows.sort(key=lambda item: -item[0])
    return [row for _, row in rows[:_MOST_GROUPS]]


def _scheduler(policies: Sequence[PolicyResults]) -> list[Row]:
    """Return what sdiag printed."""
    names = dict.fromkeys(
        name for policy in policies for item in policy.simulations for name in item.scheduler
    )
    return [
        Row(
            name,
            tuple(
                cell([item.scheduler.get(name) for item in policy.simulations], "")
                for policy in policies
            ),
        )
        for name in names
    ]


def _quality(quality: dict[str, Any]) -> list[str]:
    numbers = (f"{quality[name]:.1f}".removesuffix(".0") for name in _QUALITY)
    return [*numbers, slowed_text(quality["slowed"]) or "-"]
