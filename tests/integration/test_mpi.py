"""The scenario with MPI programs: each of its checks is seen to fail."""

from __future__ import annotations

import pytest

from harness.open_run import OpenRun
from sabotage import Sabotage, break_and_verify
from support import kept_up, sabotages

mpi = kept_up("mpi")


@pytest.mark.parametrize("sabotage", sabotages("MPI"))
def test_check_fails_on_broken_mpi(mpi: OpenRun, sabotage: Sabotage) -> None:
    break_and_verify(mpi, sabotage)
