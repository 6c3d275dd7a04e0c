from __future__ import annotations

from pathlib import Path

import pytest

from fakes import FakeProvider
from harness import faults, lifecycle
from harness.errors import EngineError, UsageError
from harness.faults import Fault
from harness.live import Live
from harness.providers import Drop
from harness.resources import SCENARIOS


@pytest.fixture
def provider() -> FakeProvider:
    return FakeProvider()


@pytest.fixture
def live(tmp_path: Path, provider: FakeProvider) -> Live:
    """A federation of which only the engine answers."""
    opened = lifecycle.create(SCENARIOS / "federation.yml", provider, tmp_path, lambda _: None)
    provider.there[opened.run.id] = [host.name for host in opened.plan.hosts]
    return opened


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (Fault("burn", "aws1"), 'no fault "burn"\nhint: known are kill-daemon, stop-daemon'),
        (Fault("stop-daemon", "aws9", "slurmd"), "no host aws9\nhint: there are accounting, "),
        (Fault("stop-daemon", "aws1", "slurmctld"), "aws1 runs no slurmctld\nhint: it runs munge, slurmd"),
        (Fault("stop-daemon", "aws1"), "nothing is given\nhint: it is stop-daemon HOST DAEMON"),
        (Fault("kill-host", "aws1", "slurmd"), "something is given\nhint: it is kill-host HOST"),
        (Fault("kill-host", "aws"), "no host aws"),
        (Fault("cut", "aws", "mars"), "no host mars"),
        (Fault("block-port", "aws1", "ssh"), '"ssh" is no number'),
    ],
    ids=str,
)
def test_fault_that_has_no_place_is_refused_and_nothing_is_done(live: Live, fault: Fault, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        faults.inject(live, fault)
    assert told in str(caught.value)
    assert faults.active(live) == []


def test_cut_between_sites_is_heard_by_neither_and_healed_as_a_whole(live: Live, provider: FakeProvider) -> None:
    aws = [host.name for host in live.plan.hosts if host.site == "aws"]
    with faults.injected(live, Fault("cut", "on-prem", "aws"), Fault("block-port", "aws1", "6818")):
        assert {drop.source for drop in provider.dropped["accounting"]} == {*aws}
        assert provider.dropped["aws1"][-1] == Drop(port=6818)
        assert {drop.source for drop in provider.dropped["aws1"][:-1]}.isdisjoint(aws)
    assert {*map(tuple, provider.dropped.values())} == {()}
    assert faults.active(live) == []


def test_cut_one_way_is_noticed_by_who_hears_nothing(live: Live, provider: FakeProvider) -> None:
    faults.inject(live, Fault("cut-one-way", "aws-ctl", "accounting"))
    assert {host: drops for host, drops in provider.dropped.items() if drops} == {
        "accounting": [Drop(source="aws-ctl")]
    }


def test_fault_is_healed_by_whoever_comes_next(live: Live, provider: FakeProvider) -> None:
    faults.inject(live, Fault("pause-host", "aws1"))
    faults.inject(live, Fault("cut", "aws1", "aws2"))
    with pytest.raises(UsageError, match="injected already"):
        faults.inject(live, Fault("pause-host", "aws1"))
    assert faults.heal_all(live) == []
    assert faults.active(live) == []
    told = [(event["action"], event["fault"]) for event in live.run.events() if event["kind"] == "fault"]
    assert told == [
        ("inject", "pause-host aws1"),
        ("injected", "pause-host aws1"),
        ("inject", "cut aws1 aws2"),
        ("injected", "cut aws1 aws2"),
        ("heal", "cut aws1 aws2"),
        ("heal", "pause-host aws1"),
    ]


def test_what_could_not_be_healed_stays_written_down(tmp_path: Path) -> None:
    provider = FakeProvider("unpause", EngineError("gone"))
    live = lifecycle.create(SCENARIOS / "single-node.yml", provider, tmp_path, lambda _: None)
    faults.inject(live, Fault("pause-host", "single"))
    assert faults.heal_all(live) == ["pause-host single: gone"]
    assert faults.active(live) == [Fault("pause-host", "single")]
