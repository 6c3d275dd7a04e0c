"""SchedMD's suite: which of its tests run, what they reported, and which results are new."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import releases
from harness.errors import UsageError
from harness.schedmd import results
from harness.schedmd.results import (
    FAILED,
    PASSED,
    SKIPPED,
    Expected,
    Outcome,
    SuiteTest,
    UnexpectedOutcome,
)

PYTHON, EXPECT = SuiteTest("test_101_1", python=True), SuiteTest("test1.1", python=False)
LISTS = sorted(Path(results.__file__).parent.glob("expected/*.toml"))
JUNIT = """<?xml version="1.0" encoding="utf-8"?>
<testsuites><testsuite name="pytest">
<testcase classname="tests.test_101_1" name="test_passes" time="1.5" />
<testcase classname="tests.test_101_1" name="test_fails[two words]" time="2.0">
  <failure message="assert 1&#10;  == 2">traceback</failure></testcase>
<testcase classname="tests.test_101_1" name="test_fails_at_its_end" time="0.5" />
<testcase classname="tests.test_101_1" name="test_fails_at_its_end" time="0.1">
  <error message="no end" /></testcase>
<testcase classname="tests.test_101_1" name="test_skips" time="0.1">
  <skipped type="pytest.skip" message="needs sudo">x</skipped></testcase>
<testcase classname="tests.test_101_1" name="test_is_known_to_fail" time="0.1">
  <skipped type="pytest.xfail" message="Issue 1" /></testcase>
</testsuite></testsuites>"""
FATAL = """\
[2026-11-22 10:00:00.000] Command spawn sbatch (run_command@globals:1110,test1.1:29)
[2026-11-22 10:00:01.000] Error   first of two (subfail@globals:499,test1.1:40)
[2026-11-22 10:00:01.000] Fatal   Failed to   submit job (fail@globals:431,test1.3:51,test1.3:50)
==============
FAILURE
"""


def tree(root: Path, *tests: str, version: str = "24 11") -> Path:
    """Make a source tree of Slurm with files for tests."""
    major, minor = version.split()
    for name in tests:
        path = root / "testsuite" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (root / "META").write_text(f"  Meta:\t\t1\n  Major:\t{major}\n  Minor:\t{minor}\n")
    return root


def test_tests_of_a_source_tree_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    names = (
        "expect/test1.10",
        "expect/test1.9",
        "expect/test1.9.prog.c",
        "expect/globals",
        "expect/inc1.9.1",
    )
    source = tree(
        tmp_path,
        *names,
        "python/tests/test_102_1.py",
        "python/tests/test_11_1.py",
        "python/tests/x.py",
    )
    found = results.tests_of(source)
    assert [test.name for test in found] == ["test_11_1", "test_102_1", "test1.9", "test1.10"]
    assert [test.python for test in found] == [True, True, False, False]
    assert results.release_of(source) == "24.11"


def test_directory_that_is_not_a_source_tree_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="it has no META file with a release"):
        results.release_of(tmp_path)
    with pytest.raises(UsageError, match="has no testsuite") as raised:
        results.tests_of(tree(tmp_path))
    assert "releases since 26.05 come without the suite" in str(raised.value.hint)


@pytest.mark.parametrize(
    ("pattern", "chosen"),
    [
        ("1.1", ["test1.1"]),
        ("test1.1", ["test1.1"]),
        ("1.*", ["test1.1", "test1.11"]),
        ("101_*", ["test_101_1"]),
        ("test_101_1.py", ["test_101_1"]),
        ("*", ["test_101_1", "test1.1", "test1.11", "test37.1"]),
    ],
)
def test_tests_are_selected_by_their_names(pattern: str, chosen: list[str]) -> None:
    tests = [
        PYTHON,
        EXPECT,
        SuiteTest("test1.11", python=False),
        SuiteTest("test37.1", python=False),
    ]
    assert [test.name for test in results.select(tests, [pattern])] == chosen


def test_pattern_that_names_no_test_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match=r"no test 2\.\* in the suite"):
        results.select([PYTHON, EXPECT], ["1.1", "2.*"])


def test_tests_of_chapter_37_are_about_a_federation() -> None:
    assert SuiteTest("test37.10", python=False).federated
    assert not SuiteTest("test_37_1", python=True).federated
    assert not EXPECT.federated


@pytest.mark.parametrize(
    ("exit_code", "output", "status", "reason"),
    [
        (0, FATAL, PASSED, ""),
        (1, FATAL, FAILED, "Failed to submit job"),
        (1, "invalid command name\n\n", FAILED, "exit 1: invalid command name"),
        (
            255,
            "[2026] Warning  no gres (of any type) (skip@globals:399,test1.1:31)",
            SKIPPED,
            "no gres (of any type)",
        ),
        (127, "", FAILED, "exit 127: no output"),
        (128, "", SKIPPED, "exit 128: no output"),
    ],
)
def test_exit_code_says_what_a_test_under_expect_did(
    exit_code: int, output: str, status: str, reason: str
) -> None:
    assert results.of_expect(EXPECT, exit_code, output, 3.0) == Outcome(
        "test1.1", status, 3.0, reason
    )


def test_each_function_of_a_test_under_pytest_reports_once() -> None:
    assert results.of_pytest(PYTHON, 1, "", JUNIT, 9.0) == [
        Outcome("test_101_1::test_passes", PASSED, 1.5),
        Outcome("test_101_1::test_fails[two words]", FAILED, 2.0, "assert 1 == 2"),
        Outcome("test_101_1::test_fails_at_its_end", FAILED, 0.1, "no end"),
        Outcome("test_101_1::test_skips", SKIPPED, 0.1, "needs sudo"),
        Outcome("test_101_1::test_is_known_to_fail", PASSED, 0.1),
    ]


def test_module_that_is_skipped_as_a_whole_is_one_test() -> None:
    junit = (
        '<testsuite><testcase name="tests.test_101_1">'
        '<skipped message="no sudo"/></testcase></testsuite>'
    )
    assert results.of_pytest(PYTHON, 5, "", junit, 1.0) == [
        Outcome("test_101_1", SKIPPED, 0.0, "no sudo")
    ]


@pytest.mark.parametrize("junit", ["", "<testsuite/>", "<testsui"])
def test_test_under_pytest_that_reports_nothing_failed(junit: str) -> None:
    (outcome,) = results.of_pytest(PYTHON, 4, "collecting\nERROR: no module atf\n", junit, 1.0)
    assert outcome == Outcome(
        "test_101_1", FAILED, 1.0, "pytest exited with 4: ERROR: no module atf"
    )


def test_only_unexpected_results_are_news() -> None:
    expected = Expected(
        failed={"test37.10": "a bug"}, skipped={"test_102_1::*": "needs sudo", "test1.9": "no MPI"}
    )
    as_expected = [
        Outcome("test1.1", PASSED, 1),
        Outcome("test37.10", FAILED, 1, "job is there"),
        Outcome("test_102_1::test_a[1*x]", SKIPPED, 1),
    ]
    surprises = [
        Outcome("test37.1", FAILED, 1),
        Outcome("test_102_10::test_a", SKIPPED, 1),
        Outcome("test1.9", FAILED, 1),
        Outcome("test_102_1::test_b", PASSED, 1),
    ]
    assert results.unexpected_outcomes([*as_expected, *surprises], expected) == [
        UnexpectedOutcome(surprises[0], PASSED, ""),
        UnexpectedOutcome(surprises[1], PASSED, ""),
        UnexpectedOutcome(surprises[2], SKIPPED, "no MPI"),
        UnexpectedOutcome(surprises[3], SKIPPED, "needs sudo"),
    ]
    assert results.counts(as_expected) == {PASSED: 1, FAILED: 1, SKIPPED: 1}


@pytest.mark.parametrize(
    "text", ['skiped = {"test1.1" = "x"}', 'quick = "1.1"', "[failed]\na = 1", "quick = ["]
)
def test_file_that_is_not_a_list_of_expected_results_is_a_usage_error(
    text: str, tmp_path: Path
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"mine\.toml is not a list of expected results"):
        results.read_expected("24.11", path)


def test_release_without_a_list_expects_everything_to_pass() -> None:
    assert results.read_expected("20.11") == Expected()


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_shipped_lists_give_a_reason_for_each_test(path: Path) -> None:
    expected = results.read_expected(path.stem)
    assert path.stem in releases.KNOWN
    assert expected.quick
    assert all(reason.strip() for reason in (*expected.failed.values(), *expected.skipped.values()))
    assert not {*expected.failed} & {*expected.skipped}


def test_scancel_at_a_sibling_is_a_known_fault_of_24_11() -> None:
    assert results.read_expected("24.11").of("test37.10")[0] == FAILED
