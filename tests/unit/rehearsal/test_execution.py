"""What a rehearsal waits for between faults."""

from __future__ import annotations

from harness.cluster.slurm import Sibling
from harness.rehearsal import execution
from harness.ssh import Result


class Member:
    """A member of a federation whose sockets and siblings are given."""

    def __init__(self, name: str, sockets: str = "", synced: bool = True) -> None:
        self.name, self.controller = name, f"{name}-ctl"
        self.sockets, self.synced = sockets, synced

    def run(self, *command: str) -> Result:
        assert command[:2] == ("sh", "-c")
        return Result(0, self.sockets, "")

    def siblings(self) -> list[Sibling]:
        return [Sibling(name, 1, "ACTIVE", self.synced) for name in ("aws", "on-prem")]


def test_connection_that_one_member_has_closed_is_a_disconnected_federation() -> None:
    closed = "FIN-WAIT-1 0 24 198.18.1.11:41000 198.18.2.10:6817\n"
    assert execution.disconnected([Member("aws"), Member("on-prem")]) == []
    assert execution.disconnected([Member("aws", closed), Member("on-prem", synced=False)]) == [
        "aws-ctl has a connection FIN-WAIT-1 0 24 198.18.1.11:41000 198.18.2.10:6817",
        "on-prem is not connected with aws",
    ]
