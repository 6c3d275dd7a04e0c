"""Numbers are read as C reads them: from the beginning, with the sizes of its types."""

from __future__ import annotations

import pytest

from harness.parsing import c_numbers


@pytest.mark.parametrize(
    ("text", "number"),
    [("12x", 12), (" +7", 7), ("-2", -2), ("", 0), ("x", 0), ("0" * 5000 + "3", 3)],
)
def test_strtol_reads_the_digits_at_the_beginning(text: str, number: int) -> None:
    assert c_numbers.strtol(text) == number


def test_huge_numbers_stay_larger_than_any_type() -> None:
    assert c_numbers.strtol("9" * 5000) > 2**64
    assert c_numbers.strtol("-" + "9" * 5000) < -(2**64)


@pytest.mark.parametrize(
    ("text", "number"), [("600000000", 600000000), ("2147483648", -(2**31)), ("9" * 30, -1)]
)
def test_atoi_keeps_the_lowest_32_bits(text: str, number: int) -> None:
    assert c_numbers.atoi(text) == number


@pytest.mark.parametrize(("text", "number"), [("-2", 2**64 - 2), ("9" * 30, 2**64 - 1)])
def test_atoul_makes_negative_numbers_large(text: str, number: int) -> None:
    assert c_numbers.atoul(text) == number
