from __future__ import annotations

import re

import pytest

from harness import wait
from harness.errors import CommandFailed, WaitTimeout
from harness.wait import wait_until


def test_what_was_seen_when_it_was_done_is_returned() -> None:
    seen = iter([1, 2, 3])
    assert wait_until(lambda: next(seen), lambda n: n == 3, what="three", timeout=5, interval=0) == 3


def test_timeout_tells_the_last_sight() -> None:
    with pytest.raises(WaitTimeout, match=r"c2 idle: not so after 0 s; last seen: c2 DOWN\*"):
        wait_until(lambda: "c2 DOWN*", lambda seen: False, what="c2 idle", timeout=0.05, interval=0.01)


def test_hopeless_ends_at_once() -> None:
    with pytest.raises(WaitTimeout, match="hopeless"):
        wait_until(lambda: "FAILED", lambda seen: False, hopeless=lambda seen: True, what="running", timeout=60)


def test_ignored_errors_count_as_nothing_seen_and_others_do_not() -> None:
    def look() -> str:
        raise CommandFailed("squeue", 1, "", "no controller")

    with pytest.raises(WaitTimeout, match="no controller"):
        wait_until(look, bool, what="x", timeout=0.05, interval=0.01, ignore=(CommandFailed,))
    with pytest.raises(CommandFailed):
        wait_until(look, bool, what="x", timeout=5)


def test_a_long_wait_is_told_with_its_last_sight(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(wait, "_LONG", 0.05)
    seen = iter(range(20))
    with caplog.at_level("INFO", "harness"):
        wait_until(lambda: next(seen), lambda n: n == 19, what="n1 idle", timeout=5, interval=0.01)
    assert re.fullmatch(r"waiting for n1 idle: 0 s; last seen: \d+", caplog.messages[0])
    assert len(caplog.messages) < 5, "now and then, not at each look"


def test_a_long_look_is_not_taken_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    clock = iter(range(0, 1000, 3))  # each look takes three seconds
    monkeypatch.setattr(wait.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(wait.tenacity.nap.time, "sleep", pauses.append)
    seen = iter([1, 2])
    wait_until(lambda: next(seen), lambda n: n == 2, what="two", timeout=1000)
    assert pauses == [12]
