"""Signals: the first one interrupts, and none interrupts the cleanup that follows."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

# Cleans up after the first signal while others arrive; prints the outcome.
PROGRAM = """
import signal, sys
from harness import interrupts

number = signal.Signals[sys.argv[1]]
interrupts.raise_once()
try:
    try:
        {first}
    finally:
        signal.raise_signal(number)
        with interrupts.ignored():
            signal.raise_signal(number)
        signal.raise_signal(signal.SIGTERM)
        print("cleaned up")
except KeyboardInterrupt:
    print("interrupted")
"""
RAISED = "signal.raise_signal(number)"
DEFERRED = """
        with interrupts.deferred() as came:
            signal.raise_signal(number)
            signal.raise_signal(number)
            assert came()
"""


def run(
    program: str, *arguments: str, before: list[str] | None = None
) -> subprocess.CompletedProcess[str]:
    command = [*(before or []), sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("first", [RAISED, DEFERRED], ids=["raised", "deferred"])
@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_first_signal_interrupts_and_no_other_interrupts_the_cleanup(
    number: str, first: str
) -> None:
    completed = run(PROGRAM.replace("{first}", first), number)
    assert (completed.stdout, completed.stderr) == ("cleaned up\ninterrupted\n", "")


def test_signal_that_the_process_was_started_to_ignore_stays_ignored() -> None:
    program = (
        "import signal; from harness import interrupts; interrupts.raise_once(); "
        "signal.raise_signal(signal.SIGHUP); print('goes on')"
    )
    completed = run(program, before=["nohup"])
    assert completed.stdout == "goes on\n", completed.stderr


def test_deferred_signal_interrupts_once_where_sigint_is_ignored() -> None:
    program = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)" + PROGRAM.replace(
        "{first}", DEFERRED
    )
    completed = run(program, "SIGTERM")
    assert (completed.stdout, completed.stderr) == ("cleaned up\ninterrupted\n", "")


def test_handlers_are_as_before_afterwards() -> None:
    from harness import interrupts

    before = [signal.getsignal(number) for number in interrupts.SIGNALS]
    with interrupts.ignored(), interrupts.deferred():
        pass
    assert [signal.getsignal(number) for number in interrupts.SIGNALS] == before
