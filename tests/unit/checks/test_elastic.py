"""When checks consider an elastic node up, from polls that may be rare, and initialized."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from harness.cluster.history import Sighting

BEGAN = 100.0
COMING, UP, GOING = "IDLE+CLOUD+POWERING_UP", "IDLE+CLOUD", "IDLE+CLOUD+POWERING_DOWN"


@pytest.fixture
def checks(load: Callable[..., ModuleType]) -> ModuleType:
    """The module tests/checks/test_elastic.py."""
    return load(
        *("conftest", "test_hosts", "test_nodes", "test_processes", "test_configuration"),
        "test_elastic",
    )


@pytest.mark.parametrize(
    ("states", "failed", "at"),
    [
        ([COMING, UP, GOING], False, 102),
        ([COMING, "ALLOCATED+CLOUD"], False, 102),
        ([COMING, GOING], False, 102),  # no poll fell into the time in which it was up
        ([COMING, "IDLE+CLOUD+POWERED_DOWN"], False, 102),
        ([COMING, GOING], True, None),
        ([COMING, "DOWN+CLOUD", GOING], True, None),
        ([COMING, "IDLE+CLOUD+DRAIN", "IDLE+CLOUD+DRAIN+POWERING_DOWN"], False, None),
        ([GOING, "IDLE+CLOUD+POWERED_DOWN"], False, None),
        ([COMING], False, None),
    ],
)
def test_node_was_up_if_it_is_powered_down_again_and_did_not_fail_to_come(
    checks: ModuleType, states: list[str], failed: bool, at: float | None
) -> None:
    sightings = [
        Sighting(BEGAN + number, "node", "c1", state) for number, state in enumerate(states, 1)
    ]
    note = {"action": "resume-fail", "nodes": ["c1"], "time": BEGAN + 3}

    class Elastic(checks.Elastic):  # type: ignore[misc]
        def notes(self) -> list[dict[str, Any]]:
            return [note] if failed else []

    recorder = SimpleNamespace(of=lambda name, since: sightings)
    seen = Elastic(None, None, None, None, recorder).up("c1", BEGAN)
    assert (seen.at if seen else None) == at


DONE = {"status": "done", "datasource": "nocloud", "errors": []}
FAILED = "('scripts_user', RuntimeError('Runparts: 1 failures (runcmd) in 1 attempted commands'))"


@pytest.mark.parametrize(
    ("answer", "user_data", "wrong"),
    [
        (DONE, "#!", []),
        (DONE | {"recoverable_errors": {"DEPRECATED": ["old key"]}}, "#!", []),
        (DONE | {"recoverable_errors": {"WARNING": ["not YAML"]}}, "#!", ["cloud-init: not YAML"]),
        (
            DONE | {"status": "error", "detail": "DataSourceNoCloud", "errors": [FAILED]},
            "#!",
            ["cloud-init is error: DataSourceNoCloud", f"cloud-init: {FAILED}"],
        ),
        (
            DONE | {"datasource": "none"},
            "#!",
            ["the data source of cloud-init is none, should be nocloud"],
        ),
        (DONE, "#!/bin/sh", ["cloud-init has other user-data than the scenario"]),
        (
            None,
            "#!",
            [
                "cloud-init is missing: ",
                "the data source of cloud-init is None, should be nocloud",
            ],
        ),
    ],
)
def test_what_cloud_init_has_not_done_on_a_node_is_reported(
    checks: ModuleType, answer: dict[str, Any] | None, user_data: str, wrong: list[str]
) -> None:
    def run(host: str, command: list[str], *, check: bool) -> SimpleNamespace:
        status = json.dumps(answer) if answer else ""
        return SimpleNamespace(stdout=status if "status" in command[-1] else "#!\n")

    found = [*checks.wrong_initialization(SimpleNamespace(run=run), "c1", user_data)]
    assert found == [f"c1: {line}" for line in wrong]
