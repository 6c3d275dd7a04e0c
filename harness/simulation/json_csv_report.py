"""Write a comparison of policies for programs: report.json and CSV files.

Like report.html, they are generated from the simulations in the directory alone.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from statistics import fmean
from typing import Any

from harness.errors import UsageError
from harness.report.verdict import PASSED, UNKNOWN
from harness.simulation import measures, simulation_files
from harness.simulation.comparison import (
    HEADLINES,
    Comparison,
    Difference,
    PolicyResults,
    compare,
    headline_values,
)
from harness.simulation.measures import Group, Measures
from harness.simulation.model import JobOutcome, Simulation

FILES = ("report.json", "jobs.csv", "measures.csv", "over_time.csv", "details.csv")
# Equal parts of a simulation for which utilization and queue length are listed.
_PARTS = 100
_COUNTS = ("refused", "timed_out", "preempted", "not_started", "backfilled", "unfairness")
_JOB_COLUMNS = tuple(
    field.name for field in fields(JobOutcome) if field.name not in {"nodes", "held", "runs"}
)


def write(directory: Path) -> Comparison:
    """Write FILES of a directory's simulations.

    Returns their comparison. UsageError if there are no simulations, or if writing fails.
    """
    comparison = compare(simulation_files.read(directory))
    try:
        text = json.dumps(data(comparison), indent=2, allow_nan=False)
        json_file, *csv_files = FILES
        (directory / json_file).write_text(text + "\n", encoding="utf-8")
        tables = (_jobs, _measures, _over_time, _details)
        for name, table in zip(csv_files, tables, strict=True):
            rows = table(comparison.policies)
            with (directory / name).open("w", encoding="utf-8", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows(map(_cells, rows))
    except OSError as error:
        raise UsageError(f"{directory} cannot be written to: {error.strerror}") from error
    return comparison


def data(comparison: Comparison) -> dict[str, Any]:
    """Return what report.json contains.

    Values of a policy are means of its repeats; `spread` has the smallest and largest of each.
    `verdict` is unknown if a simulation did not keep time well enough.
    """
    first = comparison.policies[0].simulations[0]
    problems = [problem for policy in comparison.policies for problem in policy.problems]
    return {
        "kind": "simulation",
        "verdict": UNKNOWN if problems else PASSED,
        "trace": first.trace,
        "hours": first.hours,
        "warm_up": first.warm_up,
        "nodes": first.nodes,
        "cpus": first.cpus,
        "notes": list(first.notes),
        "statements": list(comparison.statements),
        "policies": [_policy(policy) for policy in comparison.policies],
        "differences": [_difference(difference) for difference in comparison.differences],
    }


def _policy(policy: PolicyResults) -> dict[str, Any]:
    all_measures = policy.measures
    values = zip(HEADLINES, zip(*map(headline_values, all_measures), strict=True), strict=True)
    repeats = zip(policy.simulations, all_measures, strict=True)
    return {
        "name": policy.name,
        "release": policy.simulations[0].release,
        **_means([_values(measured) for measured in all_measures]),
        "spread": {
            measure.name: [_rounded(min(known)), _rounded(max(known))]
            for measure, own in values
            if (known := [value for value in own if value is not None])
        },
        "groups": {
            kind: _means_of_groups([measured.groups[kind] for measured in all_measures])
            for kind in measures.GROUPS
        },
        "repeats": [_repeat(simulation, measured) for simulation, measured in repeats],
        "problems": policy.problems,
    }


def _values(measured: Measures) -> dict[str, Any]:
    """Return the measures that are single numbers; those of waits together."""
    names = ("jobs", "slowdown", "slowdown_median", "slowdown_p95", "utilization", "queue")
    return {
        "wait": asdict(measured.wait),
        **{name: getattr(measured, name) for name in names + _COUNTS},
    }


def _repeat(simulation: Simulation, measured: Measures) -> dict[str, Any]:
    return {
        "repeat": simulation.repeat,
        **_means([_values(measured)]),
        "states": measured.states,
        "held": {reason: _rounded(value) for reason, value in measured.held.items()},
        "held_unit": measured.held_unit,
        "refusals": measured.refusals,
        "shares": [asdict(share) for share in measured.shares],
        "over_time": _series(simulation),
        "quality": asdict(simulation.quality),
        "scheduler": simulation.scheduler,
        "settings": [
            dict(zip(("option", "own", "simulated", "why"), setting, strict=True))
            for setting in simulation.settings
        ],
    }


def _means(entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the means of numbers, by name; None if a number is missing in an entry.

    An integer that is the same in all entries stays an integer.
    """
    means: dict[str, Any] = {}
    for name, value in entries[0].items():
        values = [entry[name] for entry in entries]
        if isinstance(value, dict):
            means[name] = _means(values)
        else:
            same = len({*values}) == 1
            mean = None if None in values else values[0] if same else fmean(values)
            means[name] = mean if mean is None or isinstance(mean, int) else _rounded(mean)
    return means


def _means_of_groups(repeats: Sequence[Iterable[Group]]) -> dict[str, Any]:
    """Return the means of the groups that all repeats have, by name."""
    by_name = [{group.name: group for group in groups} for groups in repeats]
    return {
        name: _means([_group(groups[name]) for groups in by_name])
        for name in by_name[0]
        if all(name in groups for groups in by_name)
    }


def _group(group: Group) -> dict[str, Any]:
    return {name: value for name, value in asdict(group).items() if name != "name"}


def _difference(difference: Difference) -> dict[str, Any]:
    threshold = difference.threshold
    return {
        "measure": difference.measure.name,
        "group": dict([difference.group]) if difference.group else None,
        "policies": [difference.first, difference.second],
        "values": [
            [_rounded(value) for value in values]
            for values in (difference.first_values, difference.second_values)
        ],
        "change": _rounded(difference.change),
        "threshold": None if threshold is None else _rounded(threshold),
        "verdict": difference.verdict,
    }


def _rounded(value: float) -> float:
    return round(value, 4)


def _jobs(policies: Sequence[PolicyResults]) -> Iterator[list[Any]]:
    """Yield a header, and a row for each job of each simulation."""
    yield ["policy", "repeat", *_JOB_COLUMNS, "nodes", "wait", "slowdown"]
    for policy in policies:
        for simulation in policy.simulations:
            end = measures.end_of(simulation)
            for job in simulation.jobs:
                wait, slowdown = measures.wait_of(job, end), measures.slowdown_of(job)
                yield [
                    policy.name,
                    simulation.repeat,
                    *(getattr(job, name) for name in _JOB_COLUMNS),
                    " ".join(job.nodes),
                    wait,
                    slowdown,
                ]


def _measures(policies: Sequence[PolicyResults]) -> Iterator[list[Any]]:
    """Yield a header, and a row for all jobs and for each group of each simulation."""
    yield [
        *("policy", "repeat", "kind", "group", "jobs", "wait_mean", "wait_median", "wait_p95"),
        *("wait_longest", "slowdown", "cpu_hours", "utilization", "queue", *_COUNTS),
    ]
    for policy in policies:
        for simulation, measured in zip(policy.simulations, policy.measures, strict=True):
            head = [policy.name, simulation.repeat]
            wait = measured.wait
            cpu_hours = sum(group.cpu_hours for group in measured.groups["size"])
            row = [wait.mean, wait.median, wait.p95, wait.longest, measured.slowdown, cpu_hours]
            row += [measured.utilization, measured.queue]
            row += [getattr(measured, name) for name in _COUNTS]
            yield [*head, "all", "", measured.jobs, *row]
            for kind, groups in measured.groups.items():
                for group in groups:
                    wait = group.wait
                    row = [wait.mean, wait.median, wait.p95, wait.longest, group.slowdown]
                    row += [group.cpu_hours, *[None] * (2 + len(_COUNTS))]
                    yield [*head, kind, group.name, group.jobs, *row]


def _series(simulation: Simulation) -> dict[str, Any]:
    """Return utilization and queue length in equal parts of a simulation.

    `seconds` is the length of a part.
    """
    values = {
        "utilization": measures.utilization_over_time(simulation, _PARTS),
        "queue": measures.queue_over_time(simulation, _PARTS),
    }
    return {
        "seconds": _rounded(measures.end_of(simulation) / _PARTS),
        **{name: [_rounded(value) for value in own] for name, own in values.items()},
    }


def _over_time(policies: Sequence[PolicyResults]) -> Iterator[list[Any]]:
    """Yield a header, and a row for each part of each simulation."""
    yield ["policy", "repeat", "begin", "utilization", "queue"]
    for policy in policies:
        for simulation in policy.simulations:
            series = _series(simulation)
            values = zip(series["utilization"], series["queue"], strict=True)
            for part, (utilization, queue) in enumerate(values):
                begin = part * series["seconds"]
                yield [policy.name, simulation.repeat, begin, utilization, queue]


def _details(policies: Sequence[PolicyResults]) -> Iterator[list[Any]]:
    """Yield a header, and a row for each value that has a name of its own."""
    yield ["policy", "repeat", "kind", "name", "value"]
    for policy in policies:
        for simulation, measured in zip(policy.simulations, policy.measures, strict=True):
            quality = asdict(simulation.quality)
            quality.pop("problems")
            slowed = quality.pop("slowed")
            share_of = {f"{share.account}/{share.user}": share for share in measured.shares}
            kinds: dict[str, dict[str, Any]] = {
                "state": measured.states,
                f"held, in {measured.held_unit}": measured.held,
                "refused": measured.refusals,
                "share": {name: share.share for name, share in share_of.items()},
                "usage": {name: share.usage for name, share in share_of.items()},
                "scheduler": simulation.scheduler,
                "quality": quality,
                "slowed": slowed,
            }
            for kind, values in kinds.items():
                for name, value in values.items():
                    yield [policy.name, simulation.repeat, kind, name, value]


def _cells(row: Iterable[Any]) -> list[Any]:
    """Return a row for CSV, whose texts spreadsheets must not take for formulas."""
    return [
        _rounded(value)
        if isinstance(value, float)
        else f"'{value}"
        if isinstance(value, str) and value[:1] in {*"=+-@"}
        else value
        for value in row
    ]
