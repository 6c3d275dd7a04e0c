from __future__ import annotations

import time

import pytest

from harness.simulation.host_side import begin

_BOOT = time.mktime(time.strptime("2026-11-29T13:00:05", "%Y-%m-%dT%H:%M:%S"))


def _begin(earliest: float, repeat: int = 1, **facts: str) -> float:
    """Return how long after the start of slurmctld a simulation begins."""
    found = begin(_BOOT + earliest, repeat, {"BOOT_TIME": "2026-11-29T13:00:05", **facts})
    return found - _BOOT


def test_repeats_begin_at_moments_that_are_spread_over_the_calculations_of_usage() -> None:
    moments = sorted(_begin(0, repeat, PriorityCalcPeriod="00:05:00") for repeat in range(1, 6))
    assert moments == [27, 70, 141, 185, 256]
    assert _begin(186, PriorityCalcPeriod="00:05:00") == 185 + 300


@pytest.mark.parametrize("repeat", [1, 2, 3])
def test_a_repeat_has_the_same_moment_however_long_its_daemons_took_to_start(repeat: int) -> None:
    moments = {_begin(seconds, repeat) % 300 for seconds in range(0, 900, 7)}
    assert len(moments) == 1


def test_without_multifactor_priorities_it_begins_as_with_the_default_period() -> None:
    assert _begin(12) == _begin(12, PriorityCalcPeriod="00:05:00")


def test_a_long_period_does_not_delay_the_beginning() -> None:
    assert _begin(12, PriorityCalcPeriod="1-00:00:00") < 3600
