"""The scenario with MPI programs: each of its checks is seen to fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.open_run import OpenRun
from sabotage import Sabotage, break_and_verify
from support import Harness, kept, sabotages


@pytest.fixture(scope="module")
def mpi(harness: Harness, runs: Path, quick: bool) -> Iterator[OpenRun]:
    """The scenario, passed and still up."""
    yield from kept(harness, runs, "mpi", quick=quick)


@pytest.mark.parametrize("sabotage", sabotages("MPI"))
def test_check_fails_on_broken_mpi(mpi: OpenRun, sabotage: Sabotage) -> None:
    break_and_verify(mpi, sabotage)
