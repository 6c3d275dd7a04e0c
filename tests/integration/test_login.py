"""The scenario with a login host: each of its checks is seen to fail."""

from __future__ import annotations

import pytest

from harness.open_run import OpenRun
from sabotage import Sabotage, break_and_verify
from support import kept_up, sabotages

login = kept_up("login")


@pytest.mark.parametrize("sabotage", sabotages("LOGIN"))
def test_check_fails_on_a_broken_login_host(login: OpenRun, sabotage: Sabotage) -> None:
    break_and_verify(login, sabotage)
