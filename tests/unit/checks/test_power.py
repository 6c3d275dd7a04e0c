"""When checks stop waiting for nodes that do not come or do not go."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import pytest

from harness.elastic import node_failures
from harness.errors import WaitTimeout


@pytest.fixture
def powering(load: Callable[..., ModuleType], monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A session with one elastic cluster, and the nodes on which its slurmctld gives up."""
    late: set[str] = set()
    monkeypatch.setattr(node_failures, "given_up", lambda run, cluster, since: late)
    elastic = SimpleNamespace(elastic=lambda: True)
    scenario = SimpleNamespace(clusters={"cloud": elastic})
    run = SimpleNamespace(plan=SimpleNamespace(scenario=scenario))
    session = load("conftest").PoweringUp(run, {"cloud": None})
    return SimpleNamespace(session=session, late=late)


def test_only_the_first_check_waits_for_nodes_that_do_not_come(powering: SimpleNamespace) -> None:
    powering.late |= {"c1", "c2"}
    with pytest.raises(WaitTimeout, match="its own"), powering.session.by("test_first"):
        raise WaitTimeout("its own")
    with (
        pytest.raises(WaitTimeout, match=r"c\[1-2\] did not register .*test_first"),
        powering.session.by("test_second"),
    ):
        pytest.fail("it waits again")


@pytest.mark.parametrize("fails", [True, False])
def test_later_checks_wait_if_every_node_came_or_the_check_passed(
    powering: SimpleNamespace, fails: bool
) -> None:
    if fails:
        with pytest.raises(WaitTimeout, match="its own"), powering.session.by("test_first"):
            raise WaitTimeout("its own")
    else:
        powering.late.add("c1")  # it came at the second attempt
        with powering.session.by("test_first"):
            pass
    with powering.session.by("test_second"):
        pass
    assert not powering.session.timed_out


def test_only_the_first_check_waits_for_nodes_that_do_not_go(
    load: Callable[..., ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = load(
        *("conftest", "test_hosts", "test_nodes", "test_processes", "test_configuration"),
        "test_elastic",
    )
    monkeypatch.setattr(checks, "ROUNDS", 0)

    class Elastic(checks.Elastic):  # type: ignore[misc]
        def seconds(self, option: str) -> int:
            return 60 if self.stuck else 0

        def awake(self) -> dict[str, str]:
            return {"c3": "IDLE+CLOUD"}

        def running(self) -> set[str]:
            return {"c3"}

    elastic = Elastic(None, None, None, None, None)
    with pytest.raises(WaitTimeout, match="timed out"):
        elastic.wait_until_down()
    with pytest.raises(WaitTimeout, match=r"cannot succeed.*an earlier check .* c3 to power down"):
        elastic.wait_until_down()
