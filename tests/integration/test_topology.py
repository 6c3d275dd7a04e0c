"""Topologies: each check of placement is seen to fail; older releases use topology.conf."""

from __future__ import annotations

import pytest

from harness.open_run import OpenRun
from sabotage import TOPOLOGY, Sabotage, break_and_verify
from support import SCENARIOS, Harness, kept_up, verified

# The scenario with a tree, blocks and a torus, passed and still up.
topologies = kept_up("topology")


@pytest.mark.parametrize("sabotage", TOPOLOGY, ids=str)
def test_check_fails_where_jobs_are_placed_differently(
    topologies: OpenRun, sabotage: Sabotage
) -> None:
    break_and_verify(topologies, sabotage)


def test_blocks_of_topology_conf_are_respected(harness: Harness) -> None:
    done = verified(harness, SCENARIOS / "topology-block.yml", ["test_topology"])
    assert done.returncode == 0, done.stdout + done.stderr


def test_release_without_a_topology_is_refused_before_anything_starts(harness: Harness) -> None:
    done = harness("run", SCENARIOS / "topology.yml", "--release", "24.11")
    assert done.returncode == 2
    assert "release 24.11 supports only one topology; 25.05 supports several" in done.stderr
    assert (
        "topology/torus3d needs torus3d of topology.yaml, which release 24.11 lacks; 26.05 has it"
        in done.stderr
    )
