"""What a rehearsal waits for between faults."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from harness import scenario
from harness.capabilities import OWN_MACHINES
from harness.plan import make_plan
from harness.rehearsal import execution
from harness.shipped_files import SCENARIOS
from harness.ssh import Result


class Controller:
    """A controller whose sockets are given; `asked` is what it was asked for."""

    def __init__(self, name: str, sockets: str = "") -> None:
        self.controller, self.sockets, self.asked = name, sockets, ""

    def run(self, *command: str) -> Result:
        self.asked = command[-1]
        return Result(0, self.sockets, "")


def test_connection_that_only_one_controller_has_closed_is_half_open() -> None:
    closed = "FIN-WAIT-1 0      24  198.18.1.11:41000 198.18.2.10:6817\n"
    aws, on_prem = Controller("aws-ctl"), Controller("onprem-ctl", closed)
    assert execution.half_open_connections([aws]) == []
    assert not aws.asked
    assert execution.half_open_connections([aws, on_prem]) == [
        "onprem-ctl: FIN-WAIT-1 0 24 198.18.1.11:41000 198.18.2.10:6817"
    ]
    assert "( dst onprem-ctl )" in aws.asked


def test_slurmctld_with_messages_for_slurmdbd_has_not_saved_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = SCENARIOS / "federation-faults.yml"
    run = SimpleNamespace(plan=make_plan("faults", scenario.load(path), OWN_MACHINES))
    clusters = [
        SimpleNamespace(name=name, controller=controller, waiting_for_slurmdbd=lambda: 3)
        for name, controller in (("on-prem", "onprem-ctl"), ("aws", "aws-ctl"))
    ]
    for affected, unsent in (
        (set(), ["on-prem", "aws"]),
        ({"onprem-ctl"}, ["aws"]),
        ({"accounting"}, []),  # they wait for the fault to be healed
    ):
        monkeypatch.setattr(execution.faults, "affected", lambda _, hosts=affected: hosts)
        assert execution.unsent(run, clusters) == unsent  # type: ignore[arg-type]
