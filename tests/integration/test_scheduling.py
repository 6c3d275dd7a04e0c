"""The scenario whose scheduling policy is checked: each of its checks is seen to fail."""

from __future__ import annotations

import pytest

from harness.open_run import OpenRun
from sabotage import Sabotage, break_and_verify
from support import kept_up, sabotages

scheduling = kept_up("scheduling")


@pytest.mark.parametrize("sabotage", sabotages("SCHEDULING"))
def test_check_fails_where_jobs_are_scheduled_differently(
    scheduling: OpenRun, sabotage: Sabotage
) -> None:
    break_and_verify(scheduling, sabotage)
