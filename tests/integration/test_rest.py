"""The scenario with a REST API: its checks pass, and each is seen to fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import lifecycle
from harness.live import Live
from sabotage import REST, Sabotage, break_and_judge
from support import SCENARIOS, Harness, deployed


@pytest.fixture(scope="module")
def rest(harness: Harness, runs: Path) -> Iterator[Live]:
    """The scenario, deployed."""
    with deployed(harness, runs, SCENARIOS / "rest.yml") as live:
        yield live


@pytest.mark.core
def test_every_check_of_the_rest_api_passes(rest: Live) -> None:
    checks, _, problem = lifecycle.verify(rest, ["test_rest"])
    assert {check.outcome for check in checks} == {"passed"}, (checks, problem)


@pytest.mark.parametrize("sabotage", REST, ids=str)
def test_check_fails_where_the_rest_api_is_not_as_it_should_be(rest: Live, sabotage: Sabotage) -> None:
    break_and_judge(rest, sabotage)
