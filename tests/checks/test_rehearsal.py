"""Users submit jobs while faults come and go: all checkers must agree with the evidence."""

from __future__ import annotations

import pytest

from harness.errors import CannotVerify, HarnessError
from harness.open_run import OpenRun
from harness.rehearsal import execution, invariants, workload
from harness.rehearsal.invariants import CHECKERS, InvariantResult
from harness.report.model import UNKNOWN

pytestmark = [pytest.mark.needs("rehearsal"), pytest.mark.provokes()]


@pytest.fixture(scope="module")
def findings(
    harness_run: OpenRun, request: pytest.FixtureRequest
) -> dict[str, InvariantResult] | HarnessError:
    """What the checkers say of the scenario's rehearsal, or why it broke off.

    No check runs after one that broke off: it would only fail for the same reason.
    """
    plan = harness_run.plan
    wanted = plan.scenario.rehearsal
    works = workload.generate(plan.scenario, wanted.jobs, wanted.seconds, wanted.seed)
    try:
        execution.rehearse(harness_run, works, wanted.faults)
    except HarnessError as error:
        request.session.shouldfail = "the rehearsal broke off"
        return error  # raised by the first check: what a fixture raises decides no verdict
    return {
        finding.name: finding
        for finding in invariants.evaluate(invariants.read(harness_run.directory.events(), plan))
    }


@pytest.mark.parametrize("name", CHECKERS)
def test_rehearsal_shows_that(
    findings: dict[str, InvariantResult] | HarnessError, name: str
) -> None:
    if isinstance(findings, HarnessError):
        raise findings
    finding = findings[name]
    told = "\n".join(finding.problems)
    if finding.outcome == UNKNOWN:
        raise CannotVerify(told)
    if finding.outcome == invariants.SKIPPED:
        pytest.skip("nothing in the scenario concerns it")
    assert not finding.problems, told
