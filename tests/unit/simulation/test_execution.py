from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import CompletedProcess
from types import SimpleNamespace
from typing import Any

import pytest

from harness import scenario
from harness.errors import UsageError
from harness.scenario import Scenario
from harness.simulation import execution
from harness.simulation.execution import Rates, must_be_possible, must_have_nodes

SIMULATE = Path(__file__).parents[3] / "scenarios" / "simulate.yml"


def load(*settings: str) -> Scenario:
    return scenario.load(SIMULATE, settings=settings)


def test_the_shipped_scenario_is_possible() -> None:
    must_be_possible(load())
    must_be_possible(load("clusters.sim.options.SuspendTime=-1"))


@pytest.mark.parametrize("place", ["options", "partitions.batch.options"])
def test_power_saving_is_refused(place: str) -> None:
    with pytest.raises(UsageError, match="powered up and down"):
        must_be_possible(load(f"clusters.sim.{place}.suspendtime=300"))


def test_reservations_at_fixed_times_are_refused() -> None:
    facts = '{StartTime: "2026-12-01T08:00", Duration: 60, Nodes: ALL, Users: root}'
    with pytest.raises(UsageError, match="fixed times do not fit a simulation: monday"):
        must_be_possible(load(f"clusters.sim.reservations={{monday: {facts}}}"))
    soon = '{StartTime: "now+90minutes", Duration: 60, Nodes: ALL, Users: root}'
    must_be_possible(load(f"clusters.sim.reservations={{soon: {soon}}}"))


@pytest.mark.parametrize(
    ("nodes", "problem"),
    [("n[1-200]", "sim has no node n101"), ("n[1-", "not a hostlist"), ("n[9-1]", "hostlist")],
)
def test_nodes_that_are_to_fail_exist(nodes: str, problem: str) -> None:
    must_have_nodes(load(), ["n[1-4,9]"])
    with pytest.raises(UsageError, match=problem.replace("[", r"\[")):
        must_have_nodes(load(), [nodes])


class _InterruptedSsh:
    """A host whose driver prints lines, the user's Ctrl-C between them, and `left` when stopped."""

    def __init__(self, before: list[dict[str, Any]], left: list[str]) -> None:
        self.before, self.left = before, left
        self.requests: list[dict[str, Any]] = []

    def feed(self, *_: object) -> None:
        pass

    def run(self, *_: object, stdin: str, timeout: float) -> CompletedProcess[str]:
        self.requests.append(json.loads(stdin))
        return CompletedProcess([], 0, "null")

    @contextmanager
    def printed(self, *_: object) -> Iterator[_InterruptedSsh]:
        yield self

    def __iter__(self) -> _InterruptedSsh:
        return self

    def __next__(self) -> bytes:
        if self.before:
            return json.dumps(self.before.pop(0)).encode()
        if not self.requests:
            raise KeyboardInterrupt
        if self.left:
            return self.left.pop(0).encode()
        raise StopIteration


def _interrupted(ssh: _InterruptedSsh) -> execution._DriverReport:
    run = SimpleNamespace(ssh=ssh, say=lambda line: None, plan=SimpleNamespace(hosts=["c1"]))
    policy: Any = SimpleNamespace(
        run=run,
        controller=SimpleNamespace(name="c1"),
        rates=Rates(20, 100),
        hours=1,
        maintenance=(),
        failures=(),
        submissions=(),
    )
    facts = execution._DriverReport()
    with pytest.raises(KeyboardInterrupt):
        execution._run_driver(policy, 1, facts)
    return facts


def test_an_interrupted_driver_reports_what_it_has_seen() -> None:
    end = {
        "kind": "end",
        "end": 1090.0,
        "refused": {"2": "Invalid account"},
        "held": {"3.": {"Priority": 4.0}},
        "suspensions": {"4.": [[5.0, None]]},
        "due": {},
        "slowed": {},
        "longest_completing": 0.0,
    }
    begin = {"kind": "begin", "begin": 1000.0, "pid": 77}
    # The interrupt has cut the first line that is left.
    ssh = _InterruptedSsh([begin], ['0.5, "pending": 3}', json.dumps(end)])
    facts = _interrupted(ssh)

    assert ssh.requests == [{"verb": "stop_driving", "pid": 77}]
    assert (facts.end, facts.refused) == (1090.0, {"2": "Invalid account"})
    assert (facts.held, facts.suspensions) == (end["held"], end["suspensions"])


def test_a_driver_that_has_not_begun_is_not_waited_for() -> None:
    assert _interrupted(_InterruptedSsh([], [])).begin == 0
