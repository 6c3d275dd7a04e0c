from __future__ import annotations

import time

from harness.simulation.host_side import begin

_BOOT = time.mktime(time.strptime("2026-11-29T13:00:05", "%Y-%m-%dT%H:%M:%S"))


def _begin(earliest: float, **facts: str) -> float:
    """Return how long after the start of slurmctld a simulation begins."""
    return begin(_BOOT + earliest, {"BOOT_TIME": "2026-11-29T13:00:05", **facts}) - _BOOT


def test_a_simulation_begins_half_way_between_two_calculations_of_usage() -> None:
    assert _begin(12, PriorityCalcPeriod="00:05:00") == 150
    assert _begin(151, PriorityCalcPeriod="00:05:00") == 450
    assert _begin(151, PriorityCalcPeriod="00:01:00") == 210


def test_without_multifactor_priorities_it_begins_as_with_the_default_period() -> None:
    assert _begin(12) == 150


def test_a_long_period_does_not_delay_the_beginning() -> None:
    assert _begin(12, PriorityCalcPeriod="1-00:00:00") == 1800
