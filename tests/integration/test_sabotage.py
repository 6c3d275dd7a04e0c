"""Each check is seen to fail on a cluster that is broken in the way the check guards against."""

from __future__ import annotations

import re

import pytest

import sabotage as sabotages
from harness.live import Live
from harness.resources import CHECKS
from sabotage import ELASTIC, FEDERATION, SINGLE_NODE, Sabotage, break_and_judge


@pytest.mark.parametrize("sabotage", SINGLE_NODE, ids=str)
def test_check_fails_on_a_broken_single_node(single_node: Live, sabotage: Sabotage) -> None:
    break_and_judge(single_node, sabotage)


@pytest.mark.parametrize("sabotage", FEDERATION, ids=str)
def test_check_fails_on_a_broken_federation(federation: Live, sabotage: Sabotage) -> None:
    break_and_judge(federation, sabotage)


@pytest.mark.parametrize("sabotage", ELASTIC, ids=str)
def test_check_fails_on_broken_elastic_nodes(elastic_nodes: Live, sabotage: Sabotage) -> None:
    break_and_judge(elastic_nodes, sabotage)


def test_every_check_has_its_sabotage() -> None:
    checks = {
        name for path in CHECKS.glob("test_*.py") for name in re.findall(r"^def (test_\w+)", path.read_text(), re.M)
    }
    lists = [value for value in vars(sabotages).values() if isinstance(value, list)]
    sabotaged = {part for of_a_scenario in lists for one in of_a_scenario for part in one.checks}
    assert checks
    assert {name for name in checks if not any(part in name for part in sabotaged)} == set()
