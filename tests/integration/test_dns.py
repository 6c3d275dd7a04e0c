"""The scenario with DNS servers: each of its checks is seen to fail; a host forgets all names."""

from __future__ import annotations

import pytest

from harness import faults
from harness.faults import Fault
from harness.open_run import OpenRun
from sabotage import Sabotage, break_and_verify
from support import kept_up, sabotages

dns = kept_up("dns")


@pytest.mark.parametrize("sabotage", sabotages("DNS"))
def test_check_fails_where_names_are_not_resolved(dns: OpenRun, sabotage: Sabotage) -> None:
    break_and_verify(dns, sabotage)


def test_host_that_forgets_names_does_not_ask_its_dns_server(dns: OpenRun) -> None:
    def code() -> int:
        return dns.ssh.run("onprem1", ["getent", "hosts", "onprem"], check=False).exit_code

    assert code() == 0
    with faults.injected(dns, Fault("forget-names", "onprem1")):
        assert code() != 0
    assert code() == 0
