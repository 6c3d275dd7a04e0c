"""What a rehearsal waits for between faults."""

from __future__ import annotations

from harness.rehearsal import execution
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
