from collections.abc import Sequence
from random import Random
from statistics import fmean

import pytest

from harness.simulation.comparison import Comparison, compare, threshold_of
from harness.simulation.model import JobOutcome, Quality, Simulation

_QUALITY = Quality(30.0, 120.0, 0, 0, 0, 0, 0, 0)


def _simulation(
    policy: str, repeat: int, waits: Sequence[float], problems: tuple[str, ...] = ()
) -> Simulation:
    jobs = tuple(
        JobOutcome(
            str(number),
            number,
            "COMPLETED",
            0,
            0,
            wait,
            wait + 600,
            ("n1",),
            1,
            "alice" if number % 2 else "bob",
            "physics",
            "batch",
            "normal",
        )
        for number, wait in enumerate(waits)
    )
    quality = Quality(30.0, 120.0, 0, 0, 0, 0, 0, 0, problems)
    return Simulation(policy, repeat, "24.11", 100, 400, 1.0, jobs, quality, {})


def _compared(before: Sequence[float], after: Sequence[float], **options: object) -> Comparison:
    """Compare two policies, given the mean wait of each repeat."""
    return compare(
        [
            _simulation(policy, repeat, [wait] * 40, **options)  # type: ignore[arg-type]
            for policy, waits in (("old", before), ("new", after))
            for repeat, wait in enumerate(waits, 1)
        ]
    )


def _verdict(comparison: Comparison, measure: str = "mean wait") -> str:
    return next(
        difference.verdict
        for difference in comparison.differences
        if difference.measure.name == measure and difference.group is None
    )


def test_a_large_difference_exceeds_the_spread() -> None:
    comparison = _compared([100, 102, 104], [200, 205, 203])

    assert _verdict(comparison) == "beyond the spread"
    assert comparison.statements[0] == (
        "With new, the mean wait is longer than with old: 3.4 min instead of 102 s"
    )
    assert any(
        text.startswith("With new, the mean wait is longer for user alice (3.4 min instead of")
        for text in comparison.statements
    )


def test_a_difference_as_large_as_that_between_repeats_does_not() -> None:
    comparison = _compared([100, 120, 110], [115, 130, 108])

    assert _verdict(comparison) == "within the spread"
    assert comparison.statements == (
        "No difference between old and new exceeds the spread between repeats",
    )


def test_one_simulation_of_each_shows_no_spread() -> None:
    comparison = _compared([100], [500])

    assert _verdict(comparison) == "unknown"
    assert comparison.statements == (
        "Unknown: one simulation each of old and new does not show the effect of chance; "
        "use --repeat 3 or more",
    )


def test_two_repeats_show_large_differences_only() -> None:
    assert _verdict(_compared([100, 104], [125, 129])) == "within the spread"
    assert _verdict(_compared([100, 104], [160, 164])) == "beyond the spread"


def test_a_difference_that_the_method_does_not_resolve_is_none() -> None:
    # Repeats that happen to be equal do not make 3% a difference.
    assert _verdict(_compared([100] * 3, [103] * 3)) == "within the spread"
    assert _verdict(_compared([100] * 3, [106] * 3)) == "beyond the spread"
    assert _verdict(_compared([0] * 3, [0.9] * 3)) == "within the spread"


def test_ranges_that_overlap_are_no_difference() -> None:
    # Student's t alone would call this a difference.
    before = [100, 100, 100, 100, 100, 100, 100, 100, 100, 141]
    after = [140, 140, 140, 140, 140, 140, 140, 140, 140, 140]
    assert fmean(after) - fmean(before) > (threshold_of(before, after, 1) or 0)

    assert _verdict(_compared(before, after)) == "within the spread"


def test_nothing_is_concluded_from_simulations_that_did_not_keep_time() -> None:
    comparison = _compared([100, 101], [900, 901], problems=("too fast: lower --rate",))

    assert {difference.verdict for difference in comparison.differences} == {"unknown"}
    assert comparison.statements == tuple(
        f"Unknown: the simulations of {name} did not keep time well enough: repeat 1: too fast: "
        "lower --rate; repeat 2: too fast: lower --rate"
        for name in ("old", "new")
    )


def test_one_policy_alone_is_not_compared() -> None:
    comparison = compare([_simulation("only", 1, [1, 2])])

    assert (comparison.differences, comparison.statements) == ((), ())
    assert [policy.name for policy in comparison.policies] == ["only"]


def test_every_pair_of_policies_is_compared() -> None:
    comparison = compare(
        [_simulation(name, repeat, [9] * 20) for name in "abc" for repeat in (1, 2)]
    )

    pairs = {(difference.first, difference.second) for difference in comparison.differences}
    assert pairs == {("a", "b"), ("a", "c"), ("b", "c")}


def test_groups_with_few_jobs_are_not_compared() -> None:
    few = compare([_simulation(name, 1, [9] * 19) for name in "ab"])  # 9 of alice, 10 of bob
    many = compare([_simulation(name, 1, [9] * 20) for name in "ab"])

    assert [item.group for item in few.differences if item.group] == [("user", "bob")]
    assert {item.group for item in many.differences if item.group} == {
        ("user", "alice"),
        ("user", "bob"),
    }


def test_a_difference_reads_as_a_sentence() -> None:
    differences = _compared([100, 100], [200, 200]).differences

    assert str(differences[0]) == (
        "mean wait: 100 s with old, 3.3 min with new; the difference exceeds the spread (10 s)"
    )


@pytest.mark.parametrize("repeats", [2, 3, 5])
def test_chance_alone_rarely_exceeds_the_spread(repeats: int) -> None:
    random = Random(1)
    tries = 2000
    wrong = 0
    for _ in range(tries):
        # Repeats that differ by as much as measured: 8% of the mean.
        before, after = (
            [random.gauss(1000, 80) for _ in range(repeats)] for _ in ("before", "after")
        )
        threshold = threshold_of(before, after, 1.0) or 0
        apart = max(before) < min(after) or max(after) < min(before)
        wrong += apart and abs(fmean(after) - fmean(before)) > threshold

    assert wrong / tries < 0.015


@pytest.mark.parametrize(("repeats", "found"), [(2, 0.4), (3, 0.9), (5, 0.98)])
def test_a_wait_that_doubles_is_found(repeats: int, found: float) -> None:
    random = Random(1)
    tries = 50
    right = 0
    for _ in range(tries):
        before = [random.gauss(1000, 80) for _ in range(repeats)]
        after = [random.gauss(2000, 160) for _ in range(repeats)]
        right += _verdict(_compared(before, after)) == "beyond the spread"

    assert right / tries >= found


def test_groups_must_differ_by_more_than_all_jobs() -> None:
    # The difference is 6 standard deviations: more than 3.8, but less than 7.0.
    comparison = _compared([990, 1000, 1010], [1050, 1060, 1070])
    verdicts = {item.group: item.verdict for item in comparison.differences if item.group}

    assert verdicts == {
        ("user", "alice"): "within the spread",
        ("user", "bob"): "within the spread",
    }
    assert _verdict(comparison) == "beyond the spread"


@pytest.mark.parametrize("wrong", ["a", "b"])
def test_one_policy_that_did_not_keep_time_is_enough_to_conclude_nothing(wrong: str) -> None:
    comparison = compare(
        [
            _simulation(name, repeat, [wait] * 20, ("late",) if name == wrong else ())
            for name, wait in (("a", 9), ("b", 900))
            for repeat in (1, 2)
        ]
    )

    assert {difference.verdict for difference in comparison.differences} == {"unknown"}
