"""The scenario whose daemons have backups: each of its checks is seen to fail."""

from __future__ import annotations

import pytest

from harness.open_run import OpenRun
from sabotage import Sabotage, break_and_verify
from support import kept_up, sabotages

ha = kept_up("ha")


@pytest.mark.parametrize("sabotage", sabotages("HA"))
def test_check_fails_on_a_broken_pair(ha: OpenRun, sabotage: Sabotage) -> None:
    break_and_verify(ha, sabotage)
