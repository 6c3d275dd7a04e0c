"""What decides whether a check runs."""

from __future__ import annotations

import ast

import pytest

from harness import scenario
from harness.capabilities import CONTAINERS, OWN_MACHINES, Capabilities
from harness.errors import UsageError
from harness.plan import make_plan
from harness.shipped_files import CHECKS, SCENARIOS
from harness.verify import selection

PLAN = make_plan("single-node", scenario.load(SCENARIOS / "single-node.yml"), OWN_MACHINES)
NEEDS = {
    "test_jobs.py::test_job_runs_once[a]": {"users"},
    "test_hosts.py::test_two_hosts": {"two_hosts"},
}


def needs_of_shipped_checks() -> dict[str, set[str]]:
    """Return what the markers of the checks in tests/checks need, by file and line."""
    return {
        f"{path.name}:{node.lineno}": {ast.literal_eval(argument) for argument in node.args}
        for path in sorted(CHECKS.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.needs"
    }


def test_every_feature_that_a_check_needs_is_defined() -> None:
    needs_of = needs_of_shipped_checks()
    assert len(needs_of) > 10
    assert selection.unknown_features(needs_of) == []


def test_every_defined_feature_is_needed_by_a_check() -> None:
    assert selection.FEATURES.keys() <= set().union(*needs_of_shipped_checks().values())


def test_misspelled_feature_is_found() -> None:
    assert selection.unknown_features({"test_jobs.py:7": {"usres", "users"}}) == [
        "test_jobs.py:7: usres"
    ]


def test_checks_whose_features_the_scenario_lacks_are_left_out() -> None:
    assert selection.select(PLAN, NEEDS) == ["test_jobs.py::test_job_runs_once[a]"]


@pytest.mark.parametrize("word", ["JOB_RUNS", "test_jobs.py", "once[a]"])
def test_part_of_a_name_selects_a_check(word: str) -> None:
    assert selection.select(PLAN, NEEDS, [word]) == ["test_jobs.py::test_job_runs_once[a]"]


def test_word_that_selects_nothing_is_an_error_that_suggests_a_name() -> None:
    with pytest.raises(UsageError) as caught:
        selection.select(PLAN, NEEDS, ["job_runs", "job_ruins"])
    assert caught.value.message == 'no check has "job_ruins" in its name'
    assert caught.value.hint == "did you mean job_runs, job_runs_once, runs?"


@pytest.mark.parametrize(
    ("release", "capabilities", "is_there"),
    [
        ("23.11", CONTAINERS, False),
        ("24.05", CONTAINERS, False),
        ("24.05", OWN_MACHINES, True),
        ("22.05", CONTAINERS, True),
        ("24.11", CONTAINERS, True),
    ],
)
def test_slurmd_that_clones_itself_for_the_users_environment_does_not_do_so_in_a_container(
    release: str, capabilities: Capabilities, is_there: bool
) -> None:
    read = scenario.load(SCENARIOS / "single-node.yml", [release])
    plan = make_plan("single-node", read, capabilities)
    assert selection.FEATURES["user_environment"](plan) is is_there


def test_clusters_are_separate_if_no_federation_has_both() -> None:
    def pairs(name: str) -> list[tuple[str, str]]:
        return make_plan(
            name, scenario.load(SCENARIOS / f"{name}.yml"), CONTAINERS
        ).separate_clusters()

    assert pairs("monitoring") == [("open", "private"), ("private", "open")]
    assert pairs("federation") == []
    assert pairs("job-modes") == []  # they have no slurmdbd in which to find one another
    apart = [("suite", "fed1"), ("fed1", "suite"), ("fed2", "suite"), ("fed3", "suite")]
    assert pairs("schedmd-suite") == apart
