"""The tests of the suite, their outcomes, and which outcomes are unexpected.

Pure: no host, no engine.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET  # parses what our own pytest run wrote

from pydantic import BaseModel, ConfigDict

from harness.errors import UsageError, cannot_read

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
_EXPECT_TEST = re.compile(r"test(\d+)\.(\d+)")
_PYTHON_TEST = re.compile(r"(test_(\d+)_(\d+))\.py")
# regression.py of the suite: a test that exits with more than 127 is skipped.
_SKIPPED_FROM = 128
# The suite's globals print: "[date] Fatal   message (fail@globals:431,test1.3:51)".
_EXPECT_REASONS = ("Fatal", "Error", "Warning")
_LONGEST_REASON = 300
_DIRECTORY = Path(__file__).parent / "expected"


@dataclass(frozen=True, slots=True)
class SuiteTest:
    """A file of the suite: expect runs test1.1, pytest runs test_101_1."""

    name: str
    python: bool

    @property
    def number(self) -> tuple[int, int]:
        """The two numbers in its name."""
        major, minor = re.findall(r"\d+", self.name)
        return int(major), int(minor)

    @property
    def federated(self) -> bool:
        """Whether it needs a federation of three clusters."""
        return not self.python and self.number[0] == 37


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a test; each function of a Python test has its own: test_101_1::test_name."""

    id: str
    status: str
    seconds: float
    reason: str = ""


class Expected(BaseModel):
    """The tests of a release that do not pass, with reasons, and a selection that takes minutes.

    In names, `*` matches anything.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    failed: Mapping[str, str] = {}
    skipped: Mapping[str, str] = {}
    quick: tuple[str, ...] = ()

    def of(self, id_: str) -> tuple[str, str]:
        """Return the expected status of a test, and the reason unless it is expected to pass."""
        for status, reasons in ((FAILED, self.failed), (SKIPPED, self.skipped)):
            for pattern, reason in reasons.items():
                if _matches(pattern, id_):
                    return status, reason
        return PASSED, ""


@dataclass(frozen=True, slots=True)
class UnexpectedOutcome:
    """A test whose outcome is not the expected one.

    `why` is the reason that the list gives for the expected outcome.
    """

    outcome: Outcome
    expected: str
    why: str


def read_expected(release: str, path: Path | None = None) -> Expected:
    """Read the list in a file, or the shipped one of a release, which is empty if there is none.

    Raises UsageError if the file is not a list of expected results.
    """
    file = path or _DIRECTORY / f"{release}.toml"
    if not path and not file.exists():
        return Expected()
    try:
        return Expected.model_validate(tomllib.loads(file.read_text()))
    except OSError as error:
        raise UsageError(cannot_read(file, error)) from error
    except ValueError as error:
        raise UsageError(f"{file} is not a list of expected results: {error}") from error


def tests_of(source: Path) -> list[SuiteTest]:
    """Return the tests of a source tree of Slurm, in order; raise UsageError if it has none."""
    suite = source / "testsuite"
    expect = [
        match[0]
        for path in suite.glob("expect/test*")
        if (match := _EXPECT_TEST.fullmatch(path.name))
    ]
    python = [
        match[1]
        for path in suite.glob("python/tests/*.py")
        if (match := _PYTHON_TEST.fullmatch(path.name))
    ]
    tests = [
        *(SuiteTest(name, python=True) for name in python),
        *(SuiteTest(name, python=False) for name in expect),
    ]
    if not tests:
        raise UsageError(
            f"{source} has no testsuite/expect or testsuite/python/tests",
            hint=(
                "SOURCE is a source tree of Slurm, such as slurm-24.11.5; "
                "releases since 26.05 come without the suite"
            ),
        )
    return sorted(tests, key=lambda test: (not test.python, test.number))


def release_of(source: Path) -> str:
    """Return the release of a source tree, such as 24.11.

    Raises UsageError if its META file does not name one.
    """
    try:
        facts = dict(
            re.findall(r"^\s*(Major|Minor):\s*(\d+)", (source / "META").read_text(), re.MULTILINE)
        )
        return f"{facts['Major']}.{facts['Minor']}"
    except (OSError, KeyError) as error:
        raise UsageError(
            f"{source} is not a source tree of Slurm: it has no META file with a release"
        ) from error


def select(tests: Sequence[SuiteTest], patterns: Iterable[str]) -> list[SuiteTest]:
    """Return the tests that match patterns such as 1.*, test1.1 or test_101_*.

    Raises UsageError if a pattern matches none.

    >>> select([SuiteTest("test1.1", False), SuiteTest("test1.10", False)], ["1.1"])
    [SuiteTest(name='test1.1', python=False)]
    """
    chosen: set[str] = set()
    for pattern in patterns:
        forms = {pattern.removesuffix(".py"), f"test{pattern}", f"test_{pattern}"}
        named = {test.name for test in tests if any(_matches(form, test.name) for form in forms)}
        if not named:
            raise UsageError(
                f"no test {pattern} in the suite", hint="test names: test_101_1, 1.1 or 37.*"
            )
        chosen |= named
    return [test for test in tests if test.name in chosen]


def of_expect(test: SuiteTest, exit_code: int, output: str, seconds: float) -> Outcome:
    """Return the outcome of an expect test from its exit code, as regression.py does."""
    if exit_code == 0:
        return Outcome(test.name, PASSED, seconds)
    status = SKIPPED if exit_code >= _SKIPPED_FROM else FAILED
    for level in _EXPECT_REASONS:
        if match := re.search(rf"\[[^\]]+\][ \[]+{level}[ \]:]+(.*)", output):
            # The call stack at the end is useless without the suite's source.
            return Outcome(
                test.name, status, seconds, _short(re.sub(r" \([\w@.,:/-]+\)\s*$", "", match[1]))
            )
    return Outcome(test.name, status, seconds, f"exit {exit_code}: {_last_line(output)}")


def of_pytest(
    test: SuiteTest, exit_code: int, output: str, junit: str, seconds: float
) -> list[Outcome]:
    """Return the outcomes of a pytest test's functions from its JUnit file.

    A test without any result, because pytest did not get to run it, has failed.
    """
    try:
        cases = list(ET.fromstring(junit).iter("testcase"))  # noqa: S314  our own pytest wrote it
    except ET.ParseError:
        cases = []
    merged: dict[str, Outcome] = {}
    for case in cases:
        outcome = _of_case(test, case)
        # A function whose teardown also fails is listed twice.
        if outcome.id not in merged or outcome.status == FAILED:
            merged[outcome.id] = outcome
    if merged:
        return list(merged.values())
    return [
        Outcome(test.name, FAILED, seconds, f"pytest exited with {exit_code}: {_last_line(output)}")
    ]


def timed_out(test: SuiteTest, seconds: float) -> Outcome:
    """Return the outcome of a test that was stopped after `seconds`."""
    return Outcome(test.name, FAILED, seconds, f"did not end within {seconds:.0f} s")


def unexpected_outcomes(outcomes: Iterable[Outcome], expected: Expected) -> list[UnexpectedOutcome]:
    """Return the outcomes that differ from the list: failures, skips, and unexpected passes."""
    unexpected = []
    for outcome in outcomes:
        status, why = expected.of(outcome.id)
        if outcome.status != status:
            unexpected.append(UnexpectedOutcome(outcome, status, why))
    return unexpected


def counts(outcomes: Iterable[Outcome]) -> dict[str, int]:
    """Return how many tests have each status."""
    counted = Counter(outcome.status for outcome in outcomes)
    return {status: counted[status] for status in (PASSED, FAILED, SKIPPED)}


def _of_case(test: SuiteTest, case: ET.Element) -> Outcome:
    seconds = float(case.get("time") or 0)
    function = case.get("name") or ""
    # A module that is skipped as a whole is a case with the module's name.
    id_ = test.name if function.endswith(test.name) else f"{test.name}::{function}"
    for tag, status in (("failure", FAILED), ("error", FAILED), ("skipped", SKIPPED)):
        element = case.find(tag)
        # The suite itself expects an xfail.
        if element is not None and element.get("type") != "pytest.xfail":
            return Outcome(
                id_, status, seconds, _short(element.get("message") or element.text or "")
            )
    return Outcome(id_, PASSED, seconds)


def _matches(pattern: str, name: str) -> bool:
    """Return whether a pattern, in which `*` matches anything, matches a test's name."""
    return bool(re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name))


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_REASON else f"{line[:_LONGEST_REASON]}..."


def _last_line(output: str) -> str:
    return _short((output.strip().splitlines() or ["no output"])[-1])
