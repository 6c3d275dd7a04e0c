"""The scenario whose jobs record how they start: each of its checks is seen to fail."""

from __future__ import annotations

import pytest

from harness.open_run import OpenRun
from sabotage import JOB_START, Sabotage, break_and_verify
from support import kept_up

job_modes = kept_up("job-modes")


@pytest.mark.parametrize("sabotage", JOB_START, ids=str)
def test_check_fails_where_jobs_start_differently(job_modes: OpenRun, sabotage: Sabotage) -> None:
    break_and_verify(job_modes, sabotage)
