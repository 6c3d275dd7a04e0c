"""Many nodes that share hosts, reduced to twenty: the checks pass, and each is seen to fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import lifecycle
from harness.open_run import OpenRun
from sabotage import SCALE, Sabotage, break_and_verify
from support import SCENARIOS, SMALL_SCALE, Harness, deployed


@pytest.fixture(scope="module")
def scale(harness: Harness, runs: Path) -> Iterator[OpenRun]:
    """The scenario with twenty nodes on two hosts, deployed."""
    with deployed(harness, runs, SCENARIOS / "scale.yml", *SMALL_SCALE) as run:
        yield run


def test_many_nodes_and_jobs_pass(scale: OpenRun) -> None:
    verified = [name for sabotage in SCALE for name in sabotage.checks]
    evaluation = lifecycle.verify(scale, [*verified, "without_an_error"])
    assert len(evaluation.checks) == 4
    assert evaluation.verdict() == "passed", evaluation.checks


@pytest.mark.parametrize("sabotage", SCALE, ids=str)
def test_check_fails_where_one_of_many_nodes_or_jobs_is_wrong(
    scale: OpenRun, sabotage: Sabotage
) -> None:
    break_and_verify(scale, sabotage)
