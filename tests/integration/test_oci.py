"""The containers that Slurm runs: each of their checks is seen to fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import lifecycle
from harness.open_run import OpenRun
from sabotage import CONTAINERS, Sabotage, break_and_verify
from support import SCENARIOS, Harness, deployed


@pytest.fixture(scope="module")
def containers(harness: Harness, runs: Path) -> Iterator[OpenRun]:
    """The scenario, whose containers pass their checks."""
    with deployed(harness, runs, SCENARIOS / "oci.yml") as run:
        evaluation = lifecycle.verify(run, ["test_oci"])
        assert evaluation.verdict() == "passed"
        yield run


@pytest.mark.parametrize("sabotage", CONTAINERS, ids=str)
def test_check_fails_where_slurm_does_not_run_containers_as_it_should(
    containers: OpenRun, sabotage: Sabotage
) -> None:
    break_and_verify(containers, sabotage)
