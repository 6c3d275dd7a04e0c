"""The scenario with a directory of users: each of its checks is seen to fail."""

from __future__ import annotations

import pytest

from harness.open_run import OpenRun
from sabotage import Sabotage, break_and_verify
from support import kept_up, sabotages

directory = kept_up("directory")


@pytest.mark.parametrize("sabotage", sabotages("DIRECTORY"))
def test_check_fails_on_a_broken_directory(directory: OpenRun, sabotage: Sabotage) -> None:
    break_and_verify(directory, sabotage)
