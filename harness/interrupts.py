"""Signals: the first one interrupts the program; later ones do not interrupt its cleanup.

SIGINT comes from Ctrl-C, SIGTERM from CI systems and kill(1), SIGHUP from a terminal that closes.
A signal that is ignored when the process starts, as under nohup(1), stays ignored.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def exit_quietly() -> None:
    """End the process on a signal at once, with exit code 3: there is nothing to clean up yet."""
    _handle(_exit)


def raise_once() -> None:
    """Raise KeyboardInterrupt on the first signal.

    Ignore later ones, so that cleanup is not interrupted.
    """
    _handle(_raise)


@contextmanager
def raised() -> Iterator[None]:
    """Handle signals in this context as `raise_once` does; no effect outside the main thread.

    For programs such as pytest, which SIGTERM and SIGHUP would otherwise end before they clean up.
    """
    with _replaced(_raise):
        yield


@contextmanager
def ignored() -> Iterator[None]:
    """Ignore the signals in this context; no effect outside the main thread."""
    with _replaced(signal.SIG_IGN):
        yield


@contextmanager
def deferred() -> Iterator[Callable[[], bool]]:
    """Hold signals back until the end of this context.

    Yields a function that returns whether a signal has arrived.
    """
    came = False

    def note(*_: object) -> None:
        nonlocal came
        came = True

    with _replaced(note):
        yield lambda: came
    if came:
        for number in SIGNALS:
            signal.raise_signal(number)  # returns only if the process was started to ignore it
        raise KeyboardInterrupt


@contextmanager
def _replaced(handler: Callable[..., None] | signal.Handlers) -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        _handle(handler)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def _handle(handler: Callable[..., None] | signal.Handlers) -> None:
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def _exit(*_: object) -> None:
    with suppress(OSError):  # the terminal may be gone
        os.write(2, b"interrupted\n")
    os._exit(3)


def _raise(*_: object) -> None:
    _handle(signal.SIG_IGN)
    raise KeyboardInterrupt
