"""Users submit jobs while faults come and go: all checkers must agree with the evidence."""

from __future__ import annotations

import pytest

from harness.errors import CannotVerify, HarnessError
from harness.open_run import OpenRun
from harness.rehearsal import execution, invariants, workload
from harness.rehearsal.invariants import CHECKERS, InvariantResult
from harness.report.verdict import UNKNOWN

pytestmark = [pytest.mark.needs("rehearsal"), pytest.mark.provokes()]


@pytest.fixture(scope="module")
def findings(harness_run: OpenRun, request: pytest.FixtureRequest) -> dict[str, InvariantResult]:
    """The checkers' results for the scenario's rehearsal.

    No check runs after an aborted rehearsal, because it would only fail for the same reason.
    """
    plan = harness_run.plan
    wanted = plan.scenario.rehearsal
    jobs = workload.generate(plan.scenario, wanted.jobs, wanted.seconds, wanted.seed)
    try:
        execution.rehearse(harness_run, jobs, wanted.faults)
    except HarnessError:
        request.session.shouldfail = "the rehearsal was aborted"
        raise
    return {
        finding.name: finding
        for finding in invariants.evaluate(invariants.read(harness_run.directory.events(), plan))
    }


@pytest.mark.parametrize("name", CHECKERS)
def test_rehearsal_shows_that(findings: dict[str, InvariantResult], name: str) -> None:
    finding = findings[name]
    problems = "\n".join(finding.problems)
    if finding.outcome == UNKNOWN:
        raise CannotVerify(problems)
    if finding.outcome == invariants.SKIPPED:
        pytest.skip("it does not apply to this scenario")
    assert not finding.problems, problems
