"""Property tests have no deadline, signals are not ignored, directories are not the user's.

A pause on a busy machine proves nothing. A shell starts background processes with SIGINT ignored,
nohup with SIGHUP ignored.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import settings

from harness import interrupts

for number in interrupts.SIGNALS:
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)

# The same examples in each run.
settings.register_profile("unit", deadline=None, derandomize=True)
settings.load_profile("unit")


def pytest_xdist_auto_num_workers() -> int:
    """Three workers for two CPUs, because some tests wait for processes."""
    return max(1, 3 * (os.cpu_count() or 1) // 2)


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
        for name in ("HARNESS_RUNS", "FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS"):
            patched.delenv(name, raising=False)
        patched.setenv("NO_PROXY", "127.0.0.1,localhost")
        yield


@pytest.fixture(autouse=True)
def _no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep `harness import --rehearsal` from starting the copy."""
    monkeypatch.setattr("harness.cli.files._start_once", lambda _: None)
