"""The pytest plugin in its users' sessions, with fake runs."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness import releases, testing
from harness.errors import CannotVerify, WaitTimeout
from harness.open_run import Say
from harness.providers import Provider
from harness.pytest_plugin import evidence, sessions
from harness.pytest_plugin.sessions import WantedClusters

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[3]


class FakeUser:
    def cancel_all(self) -> None:
        print("cancelled")


class FakeFaults:
    def __init__(self, run: object) -> None:
        pass

    def heal_all(self) -> None:
        print("healed")

    def wait_until_ready(self) -> None:
        print("ready")


@contextmanager
def of_scenario(
    wanted: WantedClusters, provider: Provider, runs: Path, say: Say, *, keep: bool, new: bool
) -> Iterator[SimpleNamespace]:
    """Record the scenario of a run; a broken one does not come up."""
    path = wanted.path
    if path.stem == "broken":
        raise CannotVerify("no engine", hint="harness doctor")
    say(f"up {path.name} {[*wanted.choices]} {[*wanted.settings]} {keep}{' new' * new}")
    yield SimpleNamespace(ssh=None, plan=path)
    say(f"down {path.name}")


def of_failure(used: object, begin: float, end: float, message: str) -> list[tuple[str, str]]:
    return [("Slurm's job 7", f"FAILED {message.splitlines()[-1]}")]


@pytest.fixture(autouse=True)
def _no_clusters(monkeypatch: pytest.MonkeyPatch, pytester: pytest.Pytester) -> None:
    """Sessions within this process have fake runs, and no plugin that only kmock needs."""
    monkeypatch.delenv("CI", raising=False)  # with it, pytest's summary repeats the whole error
    pytester.makeini("[pytest]\naddopts = -p no:asyncio -p no:kmock")
    monkeypatch.setattr(sessions, "of_scenario", of_scenario)
    monkeypatch.setattr(evidence, "of_failure", of_failure)
    monkeypatch.setattr(testing.Slurm, "of", lambda ssh, plan: FakeUser())
    monkeypatch.setattr(testing, "Faults", FakeFaults)


def test_session_without_its_fixtures_imports_nothing_of_the_harness(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_it():
            plugin = {"harness", "harness.pytest_plugin", "harness.pytest_plugin.plugin"}
            assert {name for name in sys.modules if name.startswith("harness")} == plugin
        """
    )
    # In a process of its own: this one has imported it.
    pytester.runpytest_subprocess("--strict-markers").assert_outcomes(passed=1)


def test_projects_own_fixtures_and_markers_take_precedence(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("import pytest\n@pytest.fixture\ndef slurm():\n    return 'mine'\n")
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.scenario("has another meaning")
        def test_it(slurm):
            assert slurm == "mine"

        def test_that_fails(slurm):
            assert slurm == "the harness's"
        """
    )
    result = pytester.runpytest()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.no_fnmatch_line("*Slurm's job*")


def test_option_chooses_the_scenario_and_all_tests_share_its_run(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_one(slurm): pass\ndef test_two(slurm): pass")
    options = (
        "--scenario",
        "lab.yml",
        "--harness-release",
        "26.05",
        "--harness-set",
        "a.b=1",
        "--harness-keep",
    )
    result = pytester.runpytest(*options)
    result.assert_outcomes(passed=2)
    lines = re.findall(r"slurm-harness: (.*)", result.stderr.str())
    assert lines == ["up lab.yml ['26.05'] ['a.b=1'] True", "down lab.yml"]


@pytest.mark.parametrize(("scope", "runs"), [("function", 3), ("class", 2), ("module", 1)])
def test_tests_share_clusters_in_the_scope_of_the_option(
    scope: str, runs: int, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(
        """
        class Test:
            def test_one(self, slurm): pass
            def test_two(self, slurm): pass

        def test_three(slurm): pass
        """
    )
    result = pytester.runpytest("--scenario", "lab.yml", "--harness-scope", scope)
    result.assert_outcomes(passed=3)
    lines = re.findall(r"slurm-harness: (.*)", result.stderr.str())
    assert lines == ["up lab.yml [] [] False new", "down lab.yml"] * runs


@pytest.mark.parametrize("option", [["--harness-run", "lab"], ["--harness-keep"]])
def test_new_clusters_for_each_test_are_not_kept(
    option: list[str], pytester: pytest.Pytester
) -> None:
    result = pytester.runpytest("--harness-scope", "function", *option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines("*--harness-scope function starts new clusters*")


def test_scenarios_of_markers_and_of_the_option_are_up_one_at_a_time(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.scenario("a.yml", "b.yml")
        def test_on_both(slurm): pass

        def test_on_the_options(slurm): pass

        @pytest.mark.scenario("a.yml")
        def test_on_one(slurm): pass
        """
    )
    result = pytester.runpytest("-v", "--scenario", "b.yml")
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["*test_on_both?a?*"])
    lines = re.findall(r"slurm-harness: (\w+ \w)", result.stderr.str())
    assert lines == ["up a", "down a", "up b", "down b"]


def test_marker_names_the_releases_of_its_run(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.scenario("a.yml", release="22.05")
        def test_on_one_release(slurm): pass

        @pytest.mark.scenario("a.yml", release=["24.11", "aws=22.05"])
        def test_on_two(slurm): pass

        @pytest.mark.scenario("a.yml")
        def test_on_the_options(slurm): pass
        """
    )
    result = pytester.runpytest("-v", "--harness-release", "26.05")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(
        ["*test_on_one_release?a-22.05?*", "*test_on_two?a-24.11-aws=22.05?*"]
    )
    assert re.findall(r"up a.yml (\[.*?\])", result.stderr.str()) == [
        "['26.05', '22.05']",
        "['26.05', '24.11', 'aws=22.05']",
        "['26.05']",
    ]


def test_marker_of_a_parameter_names_the_scenario_of_its_case(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        CASES = [
            pytest.param(1, marks=pytest.mark.scenario("a.yml")),
            pytest.param(2, marks=[pytest.mark.scenario("b.yml", "c.yml", release="22.05")]),
            3,
        ]

        @pytest.mark.scenario("d.yml")
        @pytest.mark.parametrize("case", iter(CASES))
        def test_it(slurm, case, request):
            print("case", case, request.node.name)

        @pytest.mark.parametrize("case", CASES)
        def test_without_clusters(case): pass
        """
    )
    result = pytester.runpytest("-s", "--scenario", "e.yml")
    result.assert_outcomes(passed=7)
    assert sorted(re.findall(r"case (.*)", result.stdout.str())) == [
        "1 test_it[1-a]",
        "2 test_it[2-b-22.05]",
        "2 test_it[2-c-22.05]",
        "3 test_it[3-d]",
    ]


def test_parameter_without_clusters_among_others_says_how_to_get_some(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("case", [pytest.param(1, marks=pytest.mark.scenario("a.yml")), 2])
        def test_it(slurm, case): pass
        """
    )
    result = pytester.runpytest()
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["the test needs clusters*", "hint: pytest --scenario FILE*"])


@pytest.mark.parametrize("of", ["function", "parameter"])
def test_marker_with_an_unknown_keyword_is_an_error(of: str, pytester: pytest.Pytester) -> None:
    mark = 'pytest.mark.scenario("a.yml", releases="22.05")'
    marks = {
        "function": f"@{mark}",
        "parameter": f"@pytest.mark.parametrize('x', [pytest.param(1, marks={mark})])",
    }
    pytester.makepyfile(
        f"import pytest\n{marks[of]}\ndef test_it(slurm{', x' * (of == 'parameter')}): pass"
    )
    result = pytester.runpytest()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*::test_it: the marker scenario() does not take releases"])


def test_line_of_a_worker_of_xdist_names_it(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import pytest
        from harness.pytest_plugin import plugin

        @pytest.fixture
        def say(request):
            return plugin._say(request.config)
        """
    )
    pytester.makepyfile("def test_it(say): say('up lab')")
    assert "slurm-harness: up lab" in pytester.runpytest_subprocess().stderr.str()
    assert "slurm-harness gw0: up lab" in pytester.runpytest_subprocess("-n", "1").stderr.str()


def test_marker_without_a_file_is_reported(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import pytest\n@pytest.mark.scenario()\ndef test_it(slurm): pass")
    result = pytester.runpytest()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*::test_it: the marker scenario() needs a file"])


def test_test_without_any_clusters_says_how_to_have_some(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(slurm): pass")
    result = pytester.runpytest()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["the test needs clusters*", "hint: pytest --scenario FILE*"])


def test_run_that_does_not_come_up_is_tried_once_and_reported_without_a_traceback(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile("def test_one(slurm): pass\ndef test_two(slurm): pass")
    result = pytester.runpytest("--scenario", "broken.yml")
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["no engine", "hint: harness doctor"])
    assert result.stdout.str().count("hint: harness doctor") == 2, "once for each test"


def test_failed_test_shows_its_jobs_and_cancels_them(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(slurm):\n    assert 1 == 2\ndef test_fine(slurm): pass")
    result = pytester.runpytest("--scenario", "lab.yml")
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(
        ["*Slurm's job 7*", "FAILED test_*py:2: AssertionError", "*cancelled*"]
    )
    assert result.stdout.str().count("Slurm's job 7") == 1


def test_faults_are_healed_before_jobs_are_cancelled_and_clusters_awaited(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile("def test_it(faults): pass")
    result = pytester.runpytest("--scenario", "lab.yml", "-s")
    result.assert_outcomes(passed=1)
    assert re.findall(r"\b(healed|cancelled|ready)", result.stdout.str()) == [
        "healed",
        "cancelled",
        "ready",
    ]


def test_clusters_are_awaited_even_if_jobs_are_left(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(user: object) -> None:
        raise WaitTimeout("9 COMPLETING")

    monkeypatch.setattr(FakeUser, "cancel_all", fail)
    pytester.makepyfile("def test_it(faults): pass")
    result = pytester.runpytest("--scenario", "lab.yml", "-s")
    result.assert_outcomes(passed=1, errors=1)
    assert re.findall(r"\b(healed|ready)", result.stdout.str()) == ["healed", "ready"]
    result.stdout.fnmatch_lines(
        ["*ERROR at teardown of test_it*", "the test has left something behind:", "9 COMPLETING"]
    )
    assert "wait.py" not in result.stdout.str()


def test_documentation_shows_examples_that_run() -> None:
    examples = "\n".join(path.read_text() for path in (ROOT / "examples").rglob("*.py"))
    shown = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "pytest.md").read_text(), re.S)
    assert shown
    assert [block for block in shown if block not in examples] == []


@pytest.mark.parametrize("release", releases.KNOWN)
def test_scenario_of_the_examples_has_no_findings(release: str) -> None:
    path = ROOT / "examples" / "cluster.yml"
    command = [sys.executable, "-m", "harness", "check", path, "--release", release]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert completed.stderr.strip() == "no findings", completed.stdout


@pytest.mark.parametrize("arguments", ["5", "'a.yml', release=24.11", "'a.yml', release=[None]"])
def test_marker_without_text_is_reported(arguments: str, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        f"import pytest\n@pytest.mark.scenario({arguments})\ndef test_it(slurm): pass"
    )
    result = pytester.runpytest()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["*::test_it: its marker scenario() takes only strings: files, and release="]
    )
