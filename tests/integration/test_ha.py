"""The scenario whose daemons take over from one another, and what it is seen to catch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.live import Live
from sabotage import HA, Sabotage, break_and_judge
from support import Harness, kept


@pytest.fixture(scope="module")
def ha(harness: Harness, runs: Path) -> Iterator[Live]:
    """The scenario, passed and still up."""
    yield from kept(harness, runs, "ha")


@pytest.mark.parametrize("sabotage", HA, ids=str)
def test_check_fails_where_nobody_takes_over(ha: Live, sabotage: Sabotage) -> None:
    break_and_judge(ha, sabotage)
