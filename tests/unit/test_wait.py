from __future__ import annotations

import re
from itertools import count

import pytest

from harness import wait
from harness.errors import CommandFailed, WaitTimeout
from harness.wait import wait_until


def test_wait_returns_the_last_observed_state() -> None:
    seen = iter([1, 2, 3])
    assert (
        wait_until(lambda: next(seen), lambda n: n == 3, what="three", timeout=5, interval=0) == 3
    )


def test_timeout_reports_the_last_state() -> None:
    with pytest.raises(
        WaitTimeout, match=r"timed out after 0 s waiting for c2 to be idle; last state: c2 DOWN\*"
    ):
        wait_until(
            lambda: "c2 DOWN*",
            lambda seen: False,
            what="c2 to be idle",
            timeout=0.05,
            interval=0.01,
        )


def test_wait_that_cannot_succeed_any_more_ends_at_once() -> None:
    with pytest.raises(
        WaitTimeout,
        match=r"waiting for running cannot succeed any more after .* last state: FAILED",
    ):
        wait_until(
            lambda: "FAILED",
            lambda seen: False,
            give_up=lambda seen: True,
            what="running",
            timeout=60,
        )


def test_ignored_errors_do_not_end_a_wait_and_others_do() -> None:
    def look() -> str:
        raise CommandFailed("n1", "squeue", 1, "", "no controller")

    with pytest.raises(WaitTimeout, match="no controller"):
        wait_until(look, bool, what="x", timeout=0.05, interval=0.01, ignore=(CommandFailed,))
    with pytest.raises(CommandFailed):
        wait_until(look, bool, what="x", timeout=5)


def test_a_long_wait_is_logged_with_its_last_state(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = count(0, 0.25)  # seconds from one glance at the clock to the next
    monkeypatch.setattr(wait.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(wait.time, "sleep", lambda _: None)
    seen = iter(range(200))
    with caplog.at_level("INFO", "harness"):
        wait_until(lambda: next(seen), lambda n: n == 199, what="n1 idle", timeout=1000)
    assert re.fullmatch(r"waiting for n1 idle for 1\d s; last state: \d+", caplog.messages[0])
    assert 1 < len(caplog.messages) < 10, "now and then, not at each look"


def test_slow_condition_is_not_checked_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    clock = iter(range(0, 1000, 3))  # each look takes three seconds
    monkeypatch.setattr(wait.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(wait.time, "sleep", pauses.append)
    seen = iter([1, 2])
    wait_until(lambda: next(seen), lambda n: n == 2, what="two", timeout=1000)
    assert pauses == [9]


def test_pauses_grow_with_the_time_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    now, pauses = [0.0], list[float]()

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(wait.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(wait.time, "sleep", sleep)
    wait_until(lambda: now[0], lambda seen: seen > 60, what="a minute", timeout=1000)
    assert set(pauses[:20]) == {0.1}
    assert pauses == sorted(pauses)
    assert pauses[-1] == 1
    assert len(pauses) < 110
