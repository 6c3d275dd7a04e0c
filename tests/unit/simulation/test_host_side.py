from __future__ import annotations

import os
import time

import pytest

from harness.simulation.host_side import Driver, _cpu_times_of_machine, begin

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


def test_a_job_is_completing_from_when_it_is_first_seen_until_it_is_gone() -> None:
    driver = Driver.__new__(Driver)
    driver.held, driver.counts, driver.completing = {}, {}, {}
    driver.longest_completing = 0.0
    for now, states in (
        (10, ["RUNNING None", "RUNNING None"]),
        (20, ["COMPLETING None", "RUNNING None"]),
        (50, ["COMPLETING None", "COMPLETING None"]),
        (60, ["RUNNING None", "COMPLETING None"]),
    ):
        driver._count(
            [[state, key, "N/A"] for key, state in zip("ab", states, strict=True)], now, 10
        )
    assert driver.longest_completing == 30
    assert driver.completing == {"b.": 50}


def test_process_ids_of_other_hosts_are_not_taken_for_processes_of_this_one() -> None:
    driver = Driver.__new__(Driver)
    driver.news, writer = os.pipe()
    driver.host, driver.buffer, driver.begin, driver.ends = "s1", b"", 0.0, []
    driver.run_times = dict.fromkeys(("near.", "far."), 60.0)
    driver.slurmstepd_of, driver.end_of, driver.left, driver.suspensions = {}, {}, {}, {}
    os.write(
        writer, b"near. started s1 7 100\nfar. started s2 8 100\nnear. started s1 x 200\nfar.\n"
    )
    driver._read_news()
    assert driver.slurmstepd_of == {"near.": 7, "far.": None}
    assert driver.end_of == {"near.": 160, "far.": 160}


def test_machine_computes_at_least_as_much_as_a_process_of_it() -> None:
    before, _ = _cpu_times_of_machine()
    began = time.process_time()
    # Where a hypervisor pauses the machine, this may count as the time of the process only.
    while (computed := _cpu_times_of_machine()[0] - before) < 0.25e6:
        assert time.process_time() < began + 10, computed
