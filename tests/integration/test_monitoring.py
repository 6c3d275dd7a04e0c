"""The scenario with Prometheus: each of its checks is seen to fail."""

from __future__ import annotations

import pytest

from harness.open_run import OpenRun
from sabotage import Sabotage, break_and_verify
from support import kept_up, sabotages

monitoring = kept_up("monitoring")


@pytest.mark.parametrize("sabotage", sabotages("MONITORING"))
def test_check_fails_on_broken_monitoring(monitoring: OpenRun, sabotage: Sabotage) -> None:
    break_and_verify(monitoring, sabotage)
