from __future__ import annotations

from collections.abc import Iterator

import harness_command
import preloaded
import pytest


@pytest.fixture(scope="session", autouse=True)
def _preloaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let commands fork from a process that has imported the harness."""
    path = str(tmp_path_factory.mktemp("preloaded") / "socket")
    with preloaded.server(path), pytest.MonkeyPatch.context() as patch:
        patch.setattr(harness_command, "WORDS", preloaded.program(path, "harness"))
        yield
