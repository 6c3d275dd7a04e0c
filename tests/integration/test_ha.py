"""The scenario whose daemons have backups: each of its checks is seen to fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.open_run import OpenRun
from sabotage import Sabotage, break_and_verify
from support import Harness, kept, sabotages


@pytest.fixture(scope="module")
def ha(harness: Harness, runs: Path, quick: bool) -> Iterator[OpenRun]:
    """The scenario, passed and still up."""
    yield from kept(harness, runs, "ha", quick=quick)


@pytest.mark.parametrize("sabotage", sabotages("HA"))
def test_check_fails_on_a_broken_pair(ha: OpenRun, sabotage: Sabotage) -> None:
    break_and_verify(ha, sabotage)
