"""The scenario with a REST API: its checks pass, and each is seen to fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import lifecycle
from harness.open_run import OpenRun
from sabotage import Sabotage, break_and_verify
from support import SCENARIOS, Harness, deployed, sabotages


@pytest.fixture(scope="module")
def rest(harness: Harness, runs: Path) -> Iterator[OpenRun]:
    """The scenario, deployed."""
    with deployed(harness, runs, SCENARIOS / "rest.yml") as run:
        yield run


def test_every_check_of_the_rest_api_passes(rest: OpenRun) -> None:
    evaluation = lifecycle.verify(rest, ["test_rest"])
    assert {check.outcome for check in evaluation.checks} == {"passed"}, evaluation


def test_daemons_that_a_check_restarted_have_started_without_an_error(rest: OpenRun) -> None:
    """The check provokes errors in the same second, before the restart."""
    for check in ("after_its_rotation", "started_without_an_error"):
        evaluation = lifecycle.verify(rest, [check])
        outcomes = [check.outcome for check in evaluation.checks]
        assert outcomes == ["passed"], (evaluation.checks, evaluation.problem)


@pytest.mark.parametrize("sabotage", sabotages("REST"))
def test_check_fails_on_a_broken_rest_api(rest: OpenRun, sabotage: Sabotage) -> None:
    break_and_verify(rest, sabotage)
