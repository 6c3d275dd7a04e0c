"""Compare policies, and state which differences exceed what chance explains. Pure.

Repeats of a simulation differ although nothing has changed, because small delays decide which job
starts first, and schedules are chaotic. What differs between two policies may therefore be chance.
With few repeats, the rule must be cautious. A difference between the means of two policies is
*beyond the spread* if all of this holds:

- One of them was simulated at least twice: one simulation of each says nothing about chance.
- It exceeds what the standard deviation of repeats explains with a confidence of 99%: Student's t
  for the pooled variance of the two policies, which assumes that chance affects both alike, and
  about normally. With two repeats of each, that is 9.9 standard deviations, with three 3.8, with
  five 2.1: few repeats only show large differences. For groups of jobs, the confidence is 99.9%,
  because there are many of them, and one of a hundred would pass by chance.
- The ranges of the repeats do not overlap, which guards against the assumption above.
- It exceeds what the method itself resolves: 5% of the larger value, and a small absolute amount,
  such as 1 second of a wait, because Slurm counts in seconds.

All of this is about the one trace that was simulated: other days have other jobs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean, variance
from typing import Literal

from harness.simulation.measures import Measures, measure
from harness.simulation.model import Simulation

# Quantiles of Student's t with 1, 2, ... degrees of freedom, two-sided; more count as the last.
_T_99 = (63.66, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250, 3.169)
_T_99_9 = (636.6, 31.60, 12.92, 8.610, 6.869, 5.959, 5.408, 5.041, 4.781, 4.587)
_RELATIVE = 0.05
# Groups with fewer jobs are not compared.
_FEWEST_JOBS = 10

Verdict = Literal["beyond the spread", "within the spread", "unknown"]


@dataclass(frozen=True, slots=True)
class Measure:
    """A measure that policies are compared by.

    `resolution` is the smallest difference that means anything, in its unit.
    """

    name: str
    unit: str
    resolution: float


HEADLINES = (
    Measure("mean wait", "s", 1.0),
    Measure("median wait", "s", 1.0),
    Measure("95th percentile of waits", "s", 1.0),
    Measure("mean bounded slowdown", "", 0.05),
    Measure("utilization", "%", 0.5),
    Measure("mean queue length", "jobs", 0.5),
)


@dataclass(frozen=True, slots=True)
class PolicyResults:
    """A policy with its simulations and their measures, in the order of the repeats."""

    name: str
    simulations: tuple[Simulation, ...]
    measures: tuple[Measures, ...]

    @property
    def problems(self) -> list[str]:
        """What is wrong with the quality of its simulations."""
        return [
            f"repeat {simulation.repeat}: {problem}" if len(self.simulations) > 1 else problem
            for simulation in self.simulations
            for problem in simulation.quality.problems
        ]


@dataclass(frozen=True, slots=True)
class Difference:
    """How a measure differs between two policies.

    `group` is a pair such as ("user", "alice"), None for all jobs. `threshold` is what a
    difference of the means must exceed, None if the spread is unknown.
    """

    measure: Measure
    group: tuple[str, str] | None
    first: str
    second: str
    first_values: tuple[float, ...]
    second_values: tuple[float, ...]
    threshold: float | None
    verdict: Verdict

    @property
    def change(self) -> float:
        """The difference of the means: negative if the second policy has less."""
        return fmean(self.second_values) - fmean(self.first_values)

    def __str__(self) -> str:
        group = f" of {self.group[0]} {self.group[1]}" if self.group else ""
        before, after = fmean(self.first_values), fmean(self.second_values)
        values = f"{shown(before, self.measure.unit)} with {self.first}, "
        values += f"{shown(after, self.measure.unit)} with {self.second}"
        text = f"{self.measure.name}{group}: {values}"
        if self.threshold is None:
            return f"{text}; the spread is unknown"
        word = "exceeds" if self.verdict == "beyond the spread" else "does not exceed"
        threshold = shown(self.threshold, self.measure.unit)
        return f"{text}; the difference {word} the spread ({threshold})"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Policies side by side, and the differences of each pair."""

    policies: tuple[PolicyResults, ...]
    differences: tuple[Difference, ...]
    statements: tuple[str, ...]


def compare(simulations: Sequence[Simulation]) -> Comparison:
    """Return the comparison of all policies, in the order of their first simulations."""
    by_name: dict[str, list[Simulation]] = {}
    for simulation in simulations:
        by_name.setdefault(simulation.policy, []).append(simulation)
    policies = []
    for name, repeats in by_name.items():
        repeats.sort(key=lambda simulation: simulation.repeat)
        policies.append(PolicyResults(name, tuple(repeats), tuple(map(measure, repeats))))
    differences = tuple(
        difference
        for first, second in combinations(policies, 2)
        for difference in _differences(first, second)
    )
    return Comparison(tuple(policies), differences, tuple(_statements(policies, differences)))


def headline_values(measures: Measures) -> tuple[float | None, ...]:
    """Return the values of HEADLINES."""
    return (
        measures.wait.mean,
        measures.wait.median,
        measures.wait.p95,
        measures.slowdown,
        None if measures.utilization is None else 100 * measures.utilization,
        measures.queue,
    )


def _differences(first: PolicyResults, second: PolicyResults) -> Iterator[Difference]:
    columns = [
        [tuple(values) for values in zip(*map(headline_values, policy.measures), strict=True)]
        for policy in (first, second)
    ]
    for measure_, before, after in zip(HEADLINES, *columns, strict=True):
        yield from _difference(measure_, None, first, second, before, after)
    waits = [_waits_of_groups(policy) for policy in (first, second)]
    for group in waits[0]:
        if group in waits[1]:
            yield from _difference(
                HEADLINES[0], group, first, second, waits[0][group], waits[1][group]
            )


def _waits_of_groups(policy: PolicyResults) -> dict[tuple[str, str], tuple[float | None, ...]]:
    """Return the mean waits of each group with enough jobs, in all repeats."""
    waits: dict[tuple[str, str], list[float | None]] = {}
    for measures in policy.measures:
        for kind, groups in measures.groups.items():
            if len(groups) > 1:  # the only group is all jobs
                for group in groups:
                    mean = group.wait.mean if group.jobs >= _FEWEST_JOBS else None
                    waits.setdefault((kind, group.name), []).append(mean)
    return {
        group: tuple(values)
        for group, values in waits.items()
        if len(values) == len(policy.measures)
    }


def _difference(
    measure_: Measure,
    group: tuple[str, str] | None,
    first: PolicyResults,
    second: PolicyResults,
    first_values: Sequence[float | None],
    second_values: Sequence[float | None],
) -> Iterator[Difference]:
    """Yield the difference of a measure that all simulations have."""
    before = tuple(value for value in first_values if value is not None)
    after = tuple(value for value in second_values if value is not None)
    if len(before) < len(first_values) or len(after) < len(second_values):
        return
    threshold = threshold_of(before, after, measure_.resolution, _T_99_9 if group else _T_99)
    verdict: Verdict = "unknown"
    if threshold is not None and not first.problems and not second.problems:
        disjoint = max(before) < min(after) or max(after) < min(before)
        beyond = disjoint and abs(fmean(after) - fmean(before)) > threshold
        verdict = "beyond the spread" if beyond else "within the spread"
    yield Difference(measure_, group, first.name, second.name, before, after, threshold, verdict)


def threshold_of(
    before: Sequence[float],
    after: Sequence[float],
    resolution: float,
    quantiles: Sequence[float] = _T_99,
) -> float | None:
    """Return what a difference of the means must exceed; None if the effect of chance is unknown.

    >>> threshold_of([1], [100], 1) is None
    True
    >>> threshold_of([100, 100, 100], [200, 200, 200], 1)
    10.0
    """
    freedom = len(before) + len(after) - 2
    if freedom < 1:
        return None
    squares = sum(
        variance(values) * (len(values) - 1) for values in (before, after) if len(values) > 1
    )
    error = math.sqrt(squares / freedom * (1 / len(before) + 1 / len(after)))
    chance = quantiles[min(freedom, len(quantiles)) - 1] * error
    return max(chance, _RELATIVE * max(abs(fmean(before)), abs(fmean(after))), resolution)


def _statements(
    policies: Sequence[PolicyResults], differences: Sequence[Difference]
) -> Iterator[str]:
    """Yield what can be concluded, in plain words, the most important first."""
    for policy in policies:
        if policy.problems:
            yield (
                f"Unknown: the simulations of {policy.name} did not keep time well enough: "
                f"{'; '.join(policy.problems)}"
            )
        pending = [measures.not_started for measures in policy.measures]
        if any(pending):
            yield (
                f"{policy.name}: {max(pending)} jobs had not started at the end; their waits are "
                "lower bounds"
            )
    for first, second in combinations(policies, 2):
        pair_differences = [
            difference
            for difference in differences
            if (difference.first, difference.second) == (first.name, second.name)
        ]
        yield from _pair_statements(first, second, pair_differences)


def _pair_statements(
    first: PolicyResults, second: PolicyResults, differences: Sequence[Difference]
) -> Iterator[str]:
    pair = f"{first.name} and {second.name}"
    if first.problems or second.problems:
        return
    if all(difference.threshold is None for difference in differences):
        yield (
            f"Unknown: one simulation each of {pair} does not show the effect of chance; "
            "use --repeat 3 or more"
        )
        return
    beyond = [item for item in differences if item.verdict == "beyond the spread"]
    if not beyond:
        yield f"No difference between {pair} exceeds the spread between repeats"
    for difference in beyond:
        if difference.group is None:
            yield (
                f"With {second.name}, the {difference.measure.name} is {_direction(difference)} "
                f"than with {first.name}: {_values(difference)}"
            )
    for direction in ("shorter", "longer"):
        groups = [
            f"{' '.join(difference.group)} ({_values(difference)})"
            for difference in beyond
            if difference.group and _direction(difference) == direction
        ]
        if groups:
            yield f"With {second.name}, the mean wait is {direction} for {', '.join(groups)}"


def _values(difference: Difference) -> str:
    unit = difference.measure.unit
    before, after = fmean(difference.first_values), fmean(difference.second_values)
    return f"{shown(after, unit)} instead of {shown(before, unit)}"


def _direction(difference: Difference) -> str:
    is_duration = difference.measure.unit == "s"
    if difference.change < 0:
        return "shorter" if is_duration else "lower"
    return "longer" if is_duration else "higher"


def shown(value: float | None, unit: str) -> str:
    """Return a value as people read it.

    >>> shown(90.04, "s"), shown(3900, "s"), shown(93.42, "%"), shown(4.567, ""), shown(None, "s")
    ('90 s', '1:05 h', '93.4 %', '4.57', '-')
    """
    if value is None:
        return "-"
    if unit == "s":
        return duration(value)
    if unit == "%":
        return f"{value:.1f} %"
    text = f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{text} {unit}".rstrip()


def duration(seconds: float) -> str:
    """Return a duration as people read it.

    >>> duration(0.4), duration(89.6), duration(150), duration(3600 * 30)
    ('0.4 s', '90 s', '2.5 min', '1 d 6:00 h')
    """
    if seconds < 10:
        return f"{seconds:.1f} s" if seconds % 1 else f"{seconds:.0f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.1f}".removesuffix(".0") + " min"
    minutes = round(seconds / 60)
    days, rest = divmod(minutes, 1440)
    return f"{f'{days} d ' if days else ''}{rest // 60}:{rest % 60:02} h"
