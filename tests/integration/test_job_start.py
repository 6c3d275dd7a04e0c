"""The scenario whose jobs record how they start: each of its checks is seen to fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.open_run import OpenRun
from sabotage import JOB_START, Sabotage, break_and_verify
from support import Harness, kept


@pytest.fixture(scope="module")
def job_modes(harness: Harness, runs: Path, quick: bool) -> Iterator[OpenRun]:
    """The scenario, passed and still up."""
    yield from kept(harness, runs, "job-modes", quick=quick)


@pytest.mark.parametrize("sabotage", JOB_START, ids=str)
def test_check_fails_where_jobs_start_differently(job_modes: OpenRun, sabotage: Sabotage) -> None:
    break_and_verify(job_modes, sabotage)
