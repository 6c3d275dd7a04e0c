from __future__ import annotations

import pytest

from harness import releases
from harness.simulation import adapted_timeouts


def test_settings_that_count_the_work_of_daemons_are_multiplied() -> None:
    overrides, changes = adapted_timeouts.scaled("slurm.conf", {"MessageTimeout": "20"}, 30)
    assert overrides["MessageTimeout"] == "600"
    assert overrides["TCPTimeout"] == "60"  # its default is 2
    (change,) = [change for change in changes if change.name == "MessageTimeout"]
    assert (change.own, change.simulated) == ("20", "600")
    assert change.why


def test_words_of_a_value_are_multiplied_and_others_stay() -> None:
    own = {"SchedulerParameters": "defer,bf_window=1440,max_sched_time=3,bf_interval=60"}
    overrides, _ = adapted_timeouts.scaled("slurm.conf", own, 10)
    words = set(overrides["SchedulerParameters"].split(","))
    assert {"defer", "bf_window=1440", "bf_interval=60", "max_sched_time=30"} <= words
    assert "bf_max_time=600" in words  # bf_interval is its default


def test_no_value_exceeds_what_slurm_accepts() -> None:
    overrides, _ = adapted_timeouts.scaled("slurm.conf", {"SlurmdTimeout": "3000"}, 100)
    assert overrides["SlurmdTimeout"] == "65533"
    assert "bf_yield_interval=10000000" in overrides["SchedulerParameters"]
    assert "bf_max_time=3000" in overrides["SchedulerParameters"]


@pytest.mark.parametrize(
    ("option", "value"), [("SlurmdTimeout", "0"), ("PrologEpilogTimeout", "65534")]
)
def test_values_with_a_special_meaning_stay(option: str, value: str) -> None:
    assert option not in adapted_timeouts.scaled("slurm.conf", {option: value}, 30)[0]


def test_at_the_rate_of_real_time_nothing_changes() -> None:
    assert adapted_timeouts.scaled("slurm.conf", {"MessageTimeout": "20"}, 1) == ({}, [])


@pytest.mark.parametrize("setting", adapted_timeouts.known(), ids=lambda setting: setting.name)
def test_every_release_knows_the_settings(setting: adapted_timeouts.TimeSetting) -> None:
    for name in releases.packaged():
        assert setting.option.lower() in {
            option.lower() for option in releases.get(name).options[setting.file]
        }
    assert setting.source
    assert setting.why
