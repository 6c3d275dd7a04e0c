"""Several engines: where hosts are placed, and what is refused before anything starts."""

from __future__ import annotations

from ipaddress import IPv4Network
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from docker.errors import APIError

from harness import providers, scenario
from harness.capabilities import CONTAINERS
from harness.errors import EngineError, UsageError
from harness.plan import Plan, make_plan
from harness.providers.docker import engine
from harness.providers.docker.containers import DockerProvider
from harness.render import render

SCENARIOS = Path(__file__).parents[3] / "scenarios"


def plan(name: str) -> Plan:
    return make_plan(name, scenario.load(SCENARIOS / f"{name}.yml"), CONTAINERS)


def test_hosts_are_placed_where_their_sites_are() -> None:
    place = DockerProvider("on-prem=one,aws=two").placed(plan("federation"))
    assert {host: at for host, at in place.items() if host in {"onprem-ctl", "accounting"}} == {
        "onprem-ctl": "one",
        "accounting": "one",
    }
    assert {at for host, at in place.items() if host.startswith("aws")} == {"two"}


def test_hosts_are_distributed_but_those_that_share_a_disk_stay_together() -> None:
    place = DockerProvider("one,two").placed(plan("ha"))
    assert place["ctl1"] == place["ctl2"]
    assert {*place.values()} == {"one", "two"}


def test_without_engines_everything_runs_on_the_users_own() -> None:
    assert {*DockerProvider().placed(plan("federation")).values()} == {""}


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("docker:on-prem=one", "no engine for site aws"),
        ("docker:on-prem=one,moon=two", "no site moon"),
        ("docker:on-prem=one,two", "docker:CONTEXT,CONTEXT or docker:SITE=CONTEXT"),
        ("docker:", "docker:CONTEXT,CONTEXT or docker:SITE=CONTEXT"),
        ("podman", "known: docker"),
    ],
)
def test_invalid_targets_are_refused_before_anything_starts(
    name: str, problem: str, tmp_path: Path
) -> None:
    wanted = plan("federation")
    with pytest.raises(UsageError) as caught:
        providers.get(name, tmp_path).confirm(wanted, render(wanted))
    assert problem in f"{caught.value}\n{caught.value.hint}"


class SlowSwarm:
    """A container on an engine whose Swarm attaches it only after four requests."""

    def __init__(self) -> None:
        self.status = "created"
        self.ports = {"22/tcp": [{"HostPort": "2222"}]}
        self._said = [
            "Could not attach to network run-on-prem: context deadline exceeded",
            "attaching to network failed, make sure ...: context deadline exceeded",
            "network run-on-prem not found",
        ]

    def start(self) -> None:
        if self._said:
            raise APIError("500 Server Error", explanation=self._said.pop(0))
        self.status = "running"

    def logs(self) -> bytes:
        return b"ready" if self.status == "running" else b""

    def reload(self) -> None:
        pass


def test_host_that_a_busy_swarm_did_not_attach_in_time_is_started_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    provider = DockerProvider()
    container = SlowSwarm()
    monkeypatch.setattr(provider, "_container", lambda run_id, host: ("", container))
    assert provider.start("run", "ctl").port == 2222


def test_gateway_that_a_busy_swarm_did_not_attach_in_time_is_started_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    provider = DockerProvider()
    container, network = SlowSwarm(), MagicMock()
    containers = MagicMock(**{"list.return_value": [], "create.return_value": container})
    client = MagicMock(containers=containers, api=MagicMock(api_version="1.41"))
    monkeypatch.setattr(DockerProvider, "_client", client)
    sites = {
        "on-prem": (network, IPv4Network("10.1.0.0/24")),
        "aws": (network, IPv4Network("10.2.0.0/24")),
    }
    wanted = plan("federation")
    addresses = {host.name: "10.1.0.5" for host in wanted.hosts}
    provider._gateway("run", wanted, sites, addresses, {})
    assert container.status == "running"


def test_missing_context_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with pytest.raises(EngineError, match="no Docker context nowhere"):
        engine.connect_to("nowhere")
