"""Users submit while faults come and go: what was seen of it all must be as it should."""

from __future__ import annotations

import pytest

from harness import checkers, lifecycle, providers, rehearsal, workload
from harness.checkers import CHECKERS, Finding
from harness.errors import CannotJudge
from harness.plan import Plan
from harness.report import UNKNOWN
from harness.rundir import RunDir

pytestmark = pytest.mark.needs("rehearsal")


@pytest.fixture(scope="module")
def findings(run: RunDir, plan: Plan) -> dict[str, Finding]:
    """What the checkers say of the scenario's rehearsal."""
    wanted = plan.scenario.rehearsal
    live = lifecycle.open_run(run, providers.get(run.provider, run.root), print)
    works = workload.generate(plan.scenario, wanted.jobs, wanted.seconds, wanted.seed)
    rehearsal.rehearse(live, works, wanted.faults)
    return {finding.name: finding for finding in checkers.judge(checkers.read(run.events(), plan))}


@pytest.mark.parametrize("name", CHECKERS)
def test_rehearsal_shows_that(findings: dict[str, Finding], name: str) -> None:
    finding = findings[name]
    told = "\n".join(finding.problems)
    if finding.outcome == UNKNOWN:
        raise CannotJudge(told)
    if finding.outcome == checkers.SKIPPED:
        pytest.skip("nothing in the scenario is about it")
    assert not finding.problems, told
