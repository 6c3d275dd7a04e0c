"""One machine with GPUs and containers: each of its checks is seen to fail."""

from __future__ import annotations

import pytest

from harness.open_run import OpenRun
from sabotage import WORKSTATION, Sabotage, break_and_verify
from support import kept_up

# The workstation, passed and still up, on the release that has Apptainer.
workstation = kept_up("apptainer", "--release", "26.05")


@pytest.mark.parametrize("sabotage", WORKSTATION, ids=str)
def test_check_fails_on_a_broken_workstation(workstation: OpenRun, sabotage: Sabotage) -> None:
    break_and_verify(workstation, sabotage)
