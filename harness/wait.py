"""Wait for something that can be observed, never for a fixed time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from harness.errors import LateAnswer, WaitTimeout

_LOG = logging.getLogger(__name__)
# Seconds after which a wait is first logged. It is logged again after pauses that double each time,
# up to a minute.
_FIRST_LOG, _LONGEST_SILENCE = 10, 60
# Observing must not keep a machine busy, least of all a slow or busy one, where each look takes
# longer. The pause is three times as long as the look, but at most 15 seconds, and at least a
# twentieth of the time waited so far, up to a second.
_PAUSE_PER_LOOK, _LONGEST_PAUSE = 3, 15.0
_PAUSE_PER_WAIT, _LONGEST_PAUSE_PER_WAIT = 0.05, 1.0
Seen = TypeVar("Seen")


def wait_until(
    look: Callable[[], Seen],
    done: Callable[[Seen], bool],
    *,
    what: str,
    timeout: float,
    give_up: Callable[[Seen], bool] = lambda seen: False,
    show: Callable[[Seen], str] = str,
    interval: float = 0.1,
    ignore: tuple[type[Exception], ...] = (),
) -> Seen:
    """Call `look` until `done` holds for the state that it returns, and return that state.

    Pauses for at least `interval` seconds between two calls. `what` completes "waiting for ...";
    `show` describes a state, when it is reported. Errors in `ignore`, and an answer of Slurm that
    is late because a daemon is busy, count as a state that is not `done`. Raises WaitTimeout with
    the last state after `timeout` seconds, or as soon as `give_up` holds, which means that the wait
    can no longer succeed. A long wait is logged with its last state.
    """
    ignored: tuple[type[Exception], ...] = (LateAnswer, *ignore)
    started = last_logged = time.monotonic()
    silence = _FIRST_LOG
    state = partial(str, "nothing")
    while True:
        began = time.monotonic()
        if began - last_logged >= silence:
            last_logged, silence = began, min(2 * silence, _LONGEST_SILENCE)
            _LOG.info("waiting for %s for %.0f s; last state: %s", what, began - started, state())
        try:
            seen = look()
        except ignored as error:
            state = partial(str, error)
        else:
            state = partial(show, seen)
            if done(seen):
                return seen
            if give_up(seen):
                seconds = time.monotonic() - started
                raise WaitTimeout(
                    f"waiting for {what} cannot succeed any more after {seconds:.1f} s; "
                    f"last state: {show(seen)}"
                )
        ended = time.monotonic()
        if ended - started >= timeout:
            raise WaitTimeout(
                f"timed out after {timeout:.0f} s waiting for {what}; last state: {state()}"
            )
        time.sleep(_pause(ended - began, ended - started, interval))


def _pause(look_seconds: float, waited_seconds: float, interval: float) -> float:
    """Return the seconds until the next look."""
    return max(
        interval,
        min(_PAUSE_PER_LOOK * look_seconds, _LONGEST_PAUSE),
        min(_PAUSE_PER_WAIT * waited_seconds, _LONGEST_PAUSE_PER_WAIT),
    )
