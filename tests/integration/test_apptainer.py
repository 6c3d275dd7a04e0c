"""One machine with GPUs and containers: each of its checks is seen to fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.open_run import OpenRun
from sabotage import WORKSTATION, Sabotage, break_and_verify
from support import Harness, kept


@pytest.fixture(scope="module")
def workstation(harness: Harness, runs: Path, quick: bool) -> Iterator[OpenRun]:
    """The workstation, passed and still up, on the release that has Apptainer."""
    yield from kept(harness, runs, "apptainer", "--release", "26.05", quick=quick)


@pytest.mark.parametrize("sabotage", WORKSTATION, ids=str)
def test_check_fails_on_a_broken_workstation(workstation: OpenRun, sabotage: Sabotage) -> None:
    break_and_verify(workstation, sabotage)
