from __future__ import annotations

from pathlib import Path

import pytest

from harness import scenario
from harness.errors import UsageError
from harness.scenario import Scenario
from harness.simulation.execution import must_be_possible, must_have_nodes

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
