"""The scenario whose scheduling policy is checked: each of its checks is seen to fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.open_run import OpenRun
from sabotage import Sabotage, break_and_verify
from support import Harness, kept, sabotages


@pytest.fixture(scope="module")
def scheduling(harness: Harness, runs: Path, quick: bool) -> Iterator[OpenRun]:
    """The scenario, passed and still up."""
    yield from kept(harness, runs, "scheduling", quick=quick)


@pytest.mark.parametrize("sabotage", sabotages("SCHEDULING"))
def test_check_fails_where_jobs_are_scheduled_differently(
    scheduling: OpenRun, sabotage: Sabotage
) -> None:
    break_and_verify(scheduling, sabotage)
