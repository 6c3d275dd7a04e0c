from __future__ import annotations

import pytest

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
