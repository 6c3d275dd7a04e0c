"""When checks give up waiting for accounting."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import pytest


def test_a_look_that_began_before_all_records_were_sent_is_not_the_last(
    load: Callable[..., ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy machine takes 20 s for a look, which does not see what arrives in that time."""
    checks, state = load("conftest"), SimpleNamespace(now=0.0, waiting=0)
    monkeypatch.setattr(time, "monotonic", lambda: state.now)
    cluster = SimpleNamespace(waiting_for_slurmdbd=lambda: state.waiting)
    give_up = checks.all_records_sent([cluster], seconds=15)
    seen = []
    for state.now, state.waiting in ((20.0, 0), (40.0, 3), (60.0, 0), (80.0, 0)):
        seen.append(give_up(None))
    assert seen == [False, False, False, True]
