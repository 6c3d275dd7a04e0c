"""Each check fails on a cluster that is broken in the way that the check guards against."""

from __future__ import annotations

import re

import pytest

from harness.open_run import OpenRun
from harness.report.model import Check
from harness.shipped_files import CHECKS
from sabotage import Sabotage, break_and_verify, undetected
from support import sabotage_modules, sabotages


@pytest.mark.parametrize("sabotage", sabotages("SINGLE_NODE"))
def test_check_fails_on_a_broken_single_node(single_node: OpenRun, sabotage: Sabotage) -> None:
    break_and_verify(single_node, sabotage)


@pytest.mark.parametrize("sabotage", sabotages("FEDERATION"))
def test_check_fails_on_a_broken_federation(federation: OpenRun, sabotage: Sabotage) -> None:
    break_and_verify(federation, sabotage)


@pytest.mark.parametrize("sabotage", sabotages("ELASTIC"))
def test_check_fails_on_broken_elastic_nodes(elastic_nodes: OpenRun, sabotage: Sabotage) -> None:
    break_and_verify(elastic_nodes, sabotage)


def test_every_check_has_its_sabotage() -> None:
    checks = {
        name
        for path in CHECKS.glob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.M)
    }
    lists = [
        value
        for module in sabotage_modules()
        for value in vars(module).values()
        if isinstance(value, list)
    ]
    sabotaged = {
        part.partition("[")[0]
        for sabotages in lists
        for sabotage in sabotages
        for part in sabotage.checks
    }
    assert checks
    assert {name for name in checks if not any(part in name for part in sabotaged)} == set()


def test_sabotage_is_detected_only_if_each_check_names_the_cause() -> None:
    sabotage = Sabotage(("first", "second"), ("", ""), ("", ""), "broken")
    fails = [Check(f"test_{name}", "failed", 1, "it is broken") for name in sabotage.checks]
    assert undetected(sabotage, fails) == []
    assert undetected(sabotage, fails[:1]) == ["second"]
    assert undetected(sabotage, [fails[0], Check("test_second", "failed", 1, "timed out")]) == [
        "test_second"
    ]
    assert undetected(sabotage, [fails[0], Check("test_second", "error", 1, "broken")]) == [
        "test_second"
    ]
