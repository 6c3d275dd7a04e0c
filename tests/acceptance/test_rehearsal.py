"""Users submit while faults come and go: what was seen of it all must be as it should."""

from __future__ import annotations

import pytest

from harness import checkers, rehearsal, workload
from harness.checkers import CHECKERS, Finding
from harness.errors import CannotJudge
from harness.live import Live
from harness.report import UNKNOWN

pytestmark = pytest.mark.needs("rehearsal")


@pytest.fixture(scope="module")
def findings(harness_run: Live) -> dict[str, Finding]:
    """What the checkers say of the scenario's rehearsal."""
    plan = harness_run.plan
    wanted = plan.scenario.rehearsal
    works = workload.generate(plan.scenario, wanted.jobs, wanted.seconds, wanted.seed)
    rehearsal.rehearse(harness_run, works, wanted.faults)
    return {finding.name: finding for finding in checkers.judge(checkers.read(harness_run.run.events(), plan))}


@pytest.mark.parametrize("name", CHECKERS)
def test_rehearsal_shows_that(findings: dict[str, Finding], name: str) -> None:
    finding = findings[name]
    told = "\n".join(finding.problems)
    if finding.outcome == UNKNOWN:
        raise CannotJudge(told)
    if finding.outcome == checkers.SKIPPED:
        pytest.skip("nothing in the scenario is about it")
    assert not finding.problems, told
