"""The scenario with Prometheus: each of its checks is seen to fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.open_run import OpenRun
from sabotage import Sabotage, break_and_verify
from support import Harness, kept, sabotages


@pytest.fixture(scope="module")
def monitoring(harness: Harness, runs: Path, quick: bool) -> Iterator[OpenRun]:
    """The scenario, passed and still up."""
    yield from kept(harness, runs, "monitoring", quick=quick)


@pytest.mark.parametrize("sabotage", sabotages("MONITORING"))
def test_check_fails_on_broken_monitoring(monitoring: OpenRun, sabotage: Sabotage) -> None:
    break_and_verify(monitoring, sabotage)
