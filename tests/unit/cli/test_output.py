"""Promises of docs/reference/output.md for every command: exit codes, streams, JSON, color."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harness_command
import pytest
import typer
from typer.core import TyperGroup

from harness import cli
from harness.cli import printing
from harness.report import model

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "reference" / "output.md").read_text()
LOOKS = ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TERM", "COLUMNS", "GITHUB_ACTIONS")
ESCAPE = "\x1b["
COLORED = re.compile(r"\x1b\[[\d;]*3\d")


def environment(**variables: str) -> dict[str, str]:
    plain = {name: value for name, value in os.environ.items() if name not in LOOKS}
    return {**plain, "DOCKER_HOST": "unix:///nonexistent/docker.sock", "TERM": "xterm", **variables}


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """A directory with scenarios and a slurm.conf, right ones and wrong ones."""
    (tmp_path / "bad.yml").write_text("clusters: {a: {b: 1}}\n")
    (tmp_path / "slurm.conf").write_text("Foo=1\n")
    scenario = (ROOT / "scenarios" / "single-node.yml").read_text()
    (tmp_path / "one.yml").write_text(scenario)
    (tmp_path / "two.yml").write_text(scenario.replace("cpus: 2", "cpus: 1"))
    return tmp_path


def piped(directory: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    # These variables are read when the command line is imported.
    words = harness_command.IN_ITS_OWN_PROCESS if variables else harness_command.WORDS
    return subprocess.run(
        [*words, *arguments],
        cwd=directory,
        env=environment(**variables),
        capture_output=True,
        text=True,
        check=False,
    )


def on_terminal(directory: Path, *arguments: str, **variables: str) -> str:
    """Return what a command prints where stdout and stderr are a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*harness_command.IN_ITS_OWN_PROCESS, *arguments],
        cwd=directory,
        env=environment(**variables),
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    printed = b""
    try:
        while more := os.read(ours, 65536):
            printed += more
    except OSError:  # EIO: the last writer has closed the terminal
        pass
    os.close(ours)
    process.wait()
    return printed.decode()


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        (0, "--version"),
        (0, "check one.yml"),
        (0, "diff one.yml two.yml"),
        (1, "diff one.yml two.yml --exit-code"),
        (1, "check slurm.conf"),
        (2, ""),
        (2, "nonsense"),
        (2, "check bad.yml"),
        (2, "check none.yml"),
        (3, "run one.yml"),
        (3, "status"),
    ],
)
def test_exit_code_matches_the_documentation(code: int, arguments: str, desk: Path) -> None:
    completed = piped(desk, *arguments.split())
    assert completed.returncode == code, completed.stderr
    assert f"| {code} |" in PAGE
    if code == 2 and arguments:
        assert completed.stdout == ""
        assert completed.stderr


def test_report_exits_with_0_whatever_the_verdict(desk: Path) -> None:
    assert piped(desk, "run", "one.yml").returncode == 3
    completed = piped(desk, "report")
    assert (completed.returncode, "UNKNOWN" in completed.stdout) == (0, True)


def test_profile_lists_stages_and_checks_the_longest_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = model.Report(
        scenario="one",
        description="",
        verdict="passed",
        releases={},
        provider="docker",
        run="",
        stages=[{"name": "up", "seconds": 5.0}, {"name": "verify", "seconds": 15.0}],
        checks=[
            model.Check("fast", "passed", 0.04),
            model.Check("slow", "passed", 2.0),
            model.Check("slowest", "failed", 10.0),
        ],
    )
    printing.print_profile(report)
    assert capsys.readouterr().out.split("\n")[1:] == [
        "  seconds  share",
        "     15.0    75%  verify",
        "     10.0    50%    slowest",
        "      2.0    10%    slow",
        "      0.0     0%    1 shorter checks",
        "      3.0    15%    other",
        "      5.0    25%  up",
        "",
    ]


def verbs(command: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(command, TyperGroup):
        for word, below in command.commands.items():
            yield from verbs(below, f"{name} {word}".strip())
    else:
        yield name, command


def test_page_names_the_commands_that_print_json() -> None:
    every = dict(verbs(typer.main.get_command(cli.app)))
    have = {
        name
        for name, verb in every.items()
        if any("--format" in option.opts for option in verb.params)
    }
    section = PAGE.partition("These commands have it:")[2].partition(". `harness schema`")[0]
    assert {" ".join(name.split()) for name in re.findall(r"`([^`]+)`", section)} == have


def test_json_is_all_of_stdout_and_progress_is_on_stderr(desk: Path) -> None:
    completed = piped(desk, "run", "one.yml", "--format", "json", FORCE_COLOR="1")
    assert json.loads(completed.stdout)["verdict"] == "unknown"
    assert "[images]" in re.sub(r"\x1b\[[\d;]*m", "", completed.stderr)
    assert json.loads(on_terminal(desk, "check", "slurm.conf", "--format", "json"))["findings"]
    assert piped(desk, "check", "bad.yml", "--format", "json").stdout == ""
    assert piped(desk, "status", "--format", "json").stdout == ""


def test_color_is_for_terminals_unless_a_variable_says_otherwise(desk: Path) -> None:
    check = ("check", "slurm.conf")
    assert COLORED.search(on_terminal(desk, *check))
    assert ESCAPE not in piped(desk, *check).stdout
    without = on_terminal(desk, *check, NO_COLOR="1")
    assert (ESCAPE in without, COLORED.search(without)) == (True, None)
    assert COLORED.search(piped(desk, *check, FORCE_COLOR="1").stdout)
    assert not COLORED.search(piped(desk, *check, FORCE_COLOR="1", NO_COLOR="1").stdout)
    for variables in ({"FORCE_COLOR": ""}, {"TERM": "dumb"}):
        assert ESCAPE not in on_terminal(desk, *check, **variables), variables


def test_tables_fit_columns_and_other_lines_are_not_wrapped(desk: Path) -> None:
    def width(*arguments: str, **variables: str) -> int:
        return max(map(len, piped(desk, *arguments, **variables).stdout.splitlines()))

    assert width("fault", "list") == 80
    assert 80 < width("fault", "list", COLUMNS="200") <= 200
    (desk / "slurm.conf").write_text(f"{'Foo' * 50}=1\n")
    assert width("check", "slurm.conf", COLUMNS="40") > 150


def test_completion_is_installed_for_the_shell_and_completes(tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    own = {**environment(), "HOME": str(tmp_path), "PATH": path}

    def bash(script: str) -> str:
        command = [
            "bash",
            "-c",
            f"{script}\ntrue",
        ]  # a shell with nothing left to do would exec the program
        return subprocess.run(
            command, cwd=tmp_path, env=own, check=True, capture_output=True, text=True
        ).stdout

    assert "complete -o default -F _harness_completion harness" in bash("harness --show-completion")
    assert not [*tmp_path.iterdir()]
    assert "bash completion installed" in bash("harness --install-completion")
    script = 'source ~/.bashrc; _harness_completion harness; echo "${COMPREPLY[@]}"'
    assert bash(f"COMP_WORDS=(harness rep); COMP_CWORD=1; {script}").split() == ["report"]
    assert bash(f"COMP_WORDS=(harness fault l); COMP_CWORD=2; {script}").split() == ["list"]
    assert bash(f"COMP_WORDS=(harness run --prov); COMP_CWORD=2; {script}").split() == [
        "--provider"
    ]
    assert bash(f"COMP_WORDS=(harness check --format ''); COMP_CWORD=3; {script}").split() == [
        "text",
        "json",
    ]
