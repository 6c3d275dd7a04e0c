"""Wait for what can be seen, never for a time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

import tenacity

from harness.errors import WaitTimeout

_LOG = logging.getLogger(__name__)
# Seconds after which a wait is logged, and logged again.
_LONG = 10
# Looking must keep nobody busy: seconds from which on a look is long, how many times as long the pause after it is, and
# its limit in seconds; after other looks the part of the time waited so far, and its limit.
_LONG_LOOK, _PAUSE, _LONGEST_PAUSE = 1.0, 4, 15.0
_PART, _LONGEST_PART = 0.05, 1.0
Seen = TypeVar("Seen")


def wait_until(
    look: Callable[[], Seen],
    done: Callable[[Seen], bool],
    *,
    what: str,
    timeout: float,
    hopeless: Callable[[Seen], bool] = lambda seen: False,
    show: Callable[[Seen], str] = str,
    interval: float = 0.25,
    ignore: tuple[type[Exception], ...] = (),
) -> Seen:
    """Look until `done` and return what was seen then; look every `interval` seconds for at most `timeout` seconds.

    `what` completes "waiting for ...". A pause is a twentieth of the time waited so far where that is longer than
    `interval`, at most a second; after a look of a second or more it is four times as long as the look, at most
    15 seconds. Errors in `ignore` count as nothing seen. Raises WaitTimeout with the last state when the time is up,
    or as soon as `hopeless` says that the wait cannot succeed any more. A long wait is logged with its last state.
    """
    started = time.monotonic()
    told = started
    last = "nothing"
    took = 0.0

    def pause(_: object) -> float:
        if took >= _LONG_LOOK:
            return max(interval, min(_PAUSE * took, _LONGEST_PAUSE))
        return max(interval, min(_PART * (time.monotonic() - started), _LONGEST_PART))

    def attempt() -> Seen | None:
        nonlocal last, told, took
        if (now := time.monotonic()) - told >= _LONG:
            told = now
            _LOG.info("waiting for %s for %.0f s; last state: %s", what, now - started, last)
        try:
            seen = look()
        except ignore as error:
            last = str(error)
            return None
        finally:
            took = time.monotonic() - now
        last = show(seen)
        if done(seen):
            return seen
        if hopeless(seen):
            waited = time.monotonic() - started
            raise WaitTimeout(f"waiting for {what} cannot succeed any more after {waited:.1f} s; last state: {last}")
        return None

    try:
        return tenacity.Retrying(
            stop=tenacity.stop_after_delay(timeout),
            wait=pause,
            retry=tenacity.retry_if_result(lambda seen: seen is None),
        )(attempt)  # type: ignore[return-value]  # None is retried
    except tenacity.RetryError:
        message = f"timed out after {timeout:.0f} s waiting for {what}; last state: {last}"
        raise WaitTimeout(message) from None
