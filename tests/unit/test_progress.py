"""How long work shows its progress: lines in a pipe, one changing line on a terminal."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fakes import SCENARIO, FakeProvider
from harness import lifecycle, progress
from harness.cli import printing
from harness.cli.printing import Output, Progress
from harness.errors import EngineError
from harness.progress import Step
from harness.providers import dockerfiles
from harness.report import assembly, earlier_reports, model
from harness.report.assembly import Evaluation
from harness.report.model import Check
from harness.verify import pytest_run


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def printed(monkeypatch: pytest.MonkeyPatch, file: io.StringIO) -> str:
    """Return what two steps and a line between them print to a file."""
    monkeypatch.setattr(printing, "err", Output(file=file, soft_wrap=True, highlight=False))
    say = Progress()
    with progress.steps(say) as show:
        show(Step("check", 1, 2, "test_a.py::test_one", 130))
        say("failed  test_a.py::test_one")
        show(Step("check", 2, 2, "test_a.py::test_two"))
    return file.getvalue()


@pytest.mark.parametrize("variables", [{}, {"FORCE_COLOR": "1", "NO_COLOR": "1"}])
def test_steps_in_a_pipe_are_lines_without_control_sequences(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    text = printed(monkeypatch, io.StringIO())
    if not variables:
        assert "\x1b" not in text
    assert "\x1b[2K" not in text  # erases a line
    assert "\r" not in text
    assert [line.partition(" s")[2].split("  ", 1)[1] for line in text.splitlines()] == [
        "check 1 of 2: test_a.py::test_one (about 2 min left)",
        "failed  test_a.py::test_one",
        "check 2 of 2: test_a.py::test_two",
    ]


@pytest.mark.parametrize("no_color", [False, True])
def test_steps_on_a_terminal_share_a_line_that_disappears(
    no_color: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    text = printed(monkeypatch, Terminal())
    assert "\x1b[2K" in text
    assert text.count("check 1 of 2: test_a.py::test_one (about 2 min left)\n") == 0
    last_erased = text.rindex("\x1b[2K")
    assert "check" not in text[last_erased:]


def test_terminal_without_control_sequences_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in printed(monkeypatch, Terminal())


def write_report(run: Any, checks: int, seconds: float) -> None:
    run.directory.event("stage", name="verify", seconds=seconds)
    evaluation = Evaluation([Check(f"a::{number}", "passed", 1) for number in range(checks)])
    model.write(assembly.report(run.directory, run.plan, evaluation), run.directory.path)


def test_remaining_time_is_taken_from_the_last_run_with_as_many_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = lifecycle.create(SCENARIO, FakeProvider(), tmp_path, print)
    write_report(before, 2, 100)
    clock = iter([0.0, 30.0, 60.0, 200.0])
    monkeypatch.setattr(pytest_run, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    step_of = pytest_run._steps(before.directory)
    assert step_of("waiting for n1") is None
    assert step_of("check 1 of 2: a::0") == Step("check", 1, 2, "a::0", 70)
    assert str(step_of("check 2 of 2: a::1")) == "check 2 of 2: a::1 (about 40 s left)"
    assert str(step_of("check 2 of 2: a::1")) == "check 2 of 2: a::1"
    monkeypatch.setattr(pytest_run, "time", SimpleNamespace(monotonic=lambda: 0.0))
    assert pytest_run._steps(before.directory)("check 1 of 3: a::0") == Step("check", 1, 3, "a::0")


def test_stage_says_how_long_it_took_in_the_last_run(tmp_path: Path) -> None:
    lines: list[str] = []
    run = lifecycle.create(SCENARIO, FakeProvider(), tmp_path, lines.append)
    write_report(run, 2, 100)
    later = lifecycle.create(SCENARIO, FakeProvider(), tmp_path, lines.append)
    with lifecycle.stage(later, "verify"), lifecycle.stage(later, "ready"):
        pass
    assert lines[-2:] == ["[verify] (100 s in the last run)", "[ready]"]


def test_damaged_report_of_an_earlier_run_is_skipped(tmp_path: Path) -> None:
    run = lifecycle.create(SCENARIO, FakeProvider(), tmp_path, print)
    (run.directory.path / "report.json").write_text(json.dumps({"verdict": "?"}))
    assert earlier_reports.report(run.directory) is None


class FakeBuilder:
    """An engine that builds an image and prints what the real one prints."""

    def __init__(self, *entries: dict[str, str]) -> None:
        self._entries = entries
        self.api = self

    def build(self, **_: Any) -> Any:
        yield from self._entries


def test_image_build_shows_its_steps(tmp_path: Path) -> None:
    lines: list[str] = []
    builder = FakeBuilder(
        {"stream": "Step 1/2 : FROM debian"}, {"stream": "\n"}, {"stream": "Step 2/2 : RUN true"}
    )
    dockerfiles.from_dockerfile(builder, tmp_path, "box:1", {}, lines.append)  # type: ignore[arg-type]
    assert lines == ["step 1 of 2: box:1: FROM debian", "step 2 of 2: box:1: RUN true"]


def test_failed_image_build_ends_with_the_output(tmp_path: Path) -> None:
    lines = [{"stream": f"Get:{number}\n"} for number in range(100)]
    builder = FakeBuilder(
        *lines, {"stream": "\x1b[91mE: no package slurm\n\x1b[0m"}, {"error": "returned code 100"}
    )
    with pytest.raises(EngineError) as failed:
        dockerfiles.from_dockerfile(builder, tmp_path, "box:1", {}, print)  # type: ignore[arg-type]
    first, *output = str(failed.value).splitlines()
    assert first == "cannot build box:1: returned code 100"
    assert {"Get:99", "E: no package slurm"} <= {*output}
    assert "Get:1" not in output
