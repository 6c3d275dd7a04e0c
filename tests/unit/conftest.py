"""Property tests have no deadline, signals are not ignored, directories are not the user's.

A pause on a busy machine proves nothing. A shell starts background processes with SIGINT ignored,
nohup with SIGHUP ignored.
"""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import settings

from harness import interrupts

for number in interrupts.SIGNALS:
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)

settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")


@pytest.fixture(scope="session", autouse=True)
def _own_temporary_directory() -> Iterator[None]:
    """Keep locks, and sockets of runs that no test takes down, in a directory of the session.

    Its path is short, as paths of sockets must be.
    """
    with (
        tempfile.TemporaryDirectory(prefix="unit-") as directory,
        pytest.MonkeyPatch.context() as patched,
    ):
        patched.setattr(tempfile, "tempdir", directory)
        patched.setenv("TMPDIR", directory)
        patched.setenv("XDG_CACHE_HOME", directory)
        patched.delenv("HARNESS_RUNS", raising=False)
        yield


@pytest.fixture(autouse=True)
def _no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep `harness import --rehearsal` from starting the copy."""
    monkeypatch.setattr("harness.cli.files._start_once", lambda _: None)
