"""Tests of properties have no deadline: a busy machine's pause proves nothing. Shared directories stay clean."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")


@pytest.fixture(scope="session", autouse=True)
def _own_temporary_directory() -> Iterator[None]:
    """Keep the sockets of runs that no test takes down, and locks, in a directory that goes with the session.

    Its path is short, as those of sockets must be.
    """
    with tempfile.TemporaryDirectory(prefix="unit-") as directory, pytest.MonkeyPatch.context() as patched:
        patched.setattr(tempfile, "tempdir", directory)
        patched.setenv("TMPDIR", directory)
        patched.setenv("XDG_CACHE_HOME", directory)
        yield
