"""The GitHub Action and the GitLab job do what their runners make of them; no engine answers."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[3]
ACTION = YAML(typ="safe").load(ROOT / "action.yml")
GITLAB = YAML(typ="safe").load(ROOT / "docs" / "how-to" / "gitlab-ci.yml")
# docs.github.com: `shell: bash`. GitLab's runner assembles a script like this in
# shells/bash.go; without FF_USE_NEW_BASH_EVAL_STRATEGY it leaves out the parentheses, and every
# failed job ends with 1.
GITHUB_SHELL = ["bash", "--noprofile", "--norc", "-eo", "pipefail"]
GITLAB_SHELL = "set -eo pipefail\nset +o noclobber\n: | {evaluated}\nexit 0\n"
NO_ENGINE = 3
# Commands that need an engine are only recorded; a run finds none, and still leaves its report.
HARNESS = """\
#!/bin/sh
echo "$*" >> "$CALLS"
case "$1 $2" in
    "images save") echo image > "$3" ;;
    "images load") test -e "$3" ;;
    *) exec python -m harness "$@" ;;
esac
"""
MAKE = f"""\
#!/bin/sh
exec {shutil.which("make")} --dry-run "$@" > /dev/null
"""
PYTHON = f"""\
#!/bin/sh
exec {sys.executable} "$@"
"""


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def runner(tmp_path: Path) -> dict[str, str]:
    """A runner's environment; `repository` is the harness, set up, `job` the user's repository."""
    repository = tmp_path / "repository"
    repository.mkdir()
    for path in ROOT.iterdir():
        if path.name not in {".git", ".venv", "runs"}:
            (repository / path.name).symlink_to(path)
    program(repository / ".venv" / "bin" / "harness", HARNESS)
    program(repository / ".venv" / "bin" / "python", PYTHON)
    program(tmp_path / "bin" / "make", MAKE)
    (tmp_path / "job" / "my scenarios").mkdir(parents=True)
    shutil.copy(ROOT / "scenarios" / "single-node.yml", tmp_path / "job" / "my scenarios")
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("HARNESS_")},
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "CALLS": str(tmp_path / "calls"),
        "DOCKER_HOST": "nowhere://",
    }


class Workflow:
    """A composite action's steps as GitHub runs them; actions that it uses only have `outputs`."""

    def __init__(
        self, directory: Path, environment: Mapping[str, str], inputs: Mapping[str, str]
    ) -> None:
        self.directory = directory
        self.environment = {
            **environment,
            "GITHUB_ACTION_PATH": str(directory / "repository"),
            "RUNNER_TEMP": str(directory),
            **{
                name: str(directory / name)
                for name in ("GITHUB_OUTPUT", "GITHUB_PATH", "GITHUB_STEP_SUMMARY")
            },
        }
        defaults = {
            name: facts["default"] for name, facts in ACTION["inputs"].items() if "default" in facts
        }
        self.values = {f"inputs.{name}": value for name, value in (defaults | dict(inputs)).items()}
        self.exit_code = 0
        self.used: dict[str, dict[str, str]] = {}

    def run(self, outputs: Mapping[str, str], steps: int | None = None) -> None:
        """Run all steps whose condition holds, or of the first `steps`."""
        self.values |= outputs
        for step in ACTION["runs"]["steps"][:steps]:
            condition = step.get("if", "")
            if ("always()" in condition or self.exit_code == 0) and self.holds(condition):
                if "run" in step:
                    self.step(step)
                else:
                    self.used[step["name"]] = {
                        name: self.filled_in(text) for name, text in step["with"].items()
                    }

    def holds(self, condition: str) -> bool:
        compared = re.findall(r"([\w.-]+) != '(.*?)'", condition)
        assert " && ".join(
            f"{name} != '{text}'" for name, text in compared
        ) == condition.removeprefix("always()")
        return all(self.values.get(name, "") != text for name, text in compared)

    def filled_in(self, text: str) -> str:
        return re.sub(r"\$\{\{ (\S+) \}\}", lambda found: self.values[found[1]], text)

    def step(self, step: Mapping[str, Any]) -> None:
        """Run a step, and record what it adds to PATH and to its outputs."""
        for name in ("GITHUB_OUTPUT", "GITHUB_PATH"):
            Path(self.environment[name]).write_text("")
        script = self.directory / "step.sh"
        script.write_text(step["run"])
        given = {name: self.filled_in(text) for name, text in step.get("env", {}).items()}
        completed = subprocess.run(
            [*GITHUB_SHELL, script],
            cwd=self.directory / "job",
            env=self.environment | given,
            capture_output=True,
            text=True,
            check=False,
        )
        assert completed.returncode in {0, NO_ENGINE}, (
            f"{step['name']}\n{completed.stdout}{completed.stderr}"
        )
        self.exit_code = self.exit_code or completed.returncode
        for line in Path(self.environment["GITHUB_OUTPUT"]).read_text().splitlines():
            name, _, value = line.partition("=")
            self.values[f"steps.{step['id']}.outputs.{name}"] = value
        for line in reversed(Path(self.environment["GITHUB_PATH"]).read_text().splitlines()):
            self.environment["PATH"] = f"{line}:{self.environment['PATH']}"


@pytest.mark.parametrize(
    ("inputs", "cached", "calls"),
    [
        (
            {},
            "",
            [
                "run my scenarios/single-node.yml --report slurm-harness-report",
                "report slurm-harness-report",
            ],
        ),
        (
            {
                "release": "24.11",
                "options": "--release single=26.05 --verbose",
                "report": "a report",
            },
            "",
            [
                "images save {file} 24.11",
                "run my scenarios/single-node.yml --release 24.11 --report a report"
                " --release single=26.05 --verbose",
                "report a report",
            ],
        ),
        (
            {"release": "24.11"},
            "true",
            [
                "images load {file}",
                "run my scenarios/single-node.yml --release 24.11 --report slurm-harness-report",
                "report slurm-harness-report",
            ],
        ),
    ],
    ids=["no release", "image not cached", "image cached"],
)
def test_action_runs_the_scenario_and_shows_its_verdict(
    inputs: dict[str, str], cached: str, calls: list[str], runner: dict[str, str], tmp_path: Path
) -> None:
    workflow = Workflow(tmp_path, runner, {"scenario": "my scenarios/single-node.yml", **inputs})
    file = tmp_path / "slurm-harness-24.11.tar"
    if cached:
        file.touch()
    workflow.run({"steps.cache.outputs.cache-hit": cached})
    assert workflow.exit_code == NO_ENGINE
    assert (tmp_path / "calls").read_text().splitlines() == [
        call.format(file=file) for call in calls
    ]
    summary = (tmp_path / "GITHUB_STEP_SUMMARY").read_text().splitlines()
    assert (summary[0], summary[-1]) == ("```", "```")
    assert "no Docker engine answers" in "\n".join(summary)
    assert file.exists() == bool(inputs.get("release"))
    assert ("Keep the image" in workflow.used) == (bool(inputs.get("release")) and not cached)


def test_key_of_a_cached_image_changes_with_the_release_and_the_images_sources(
    runner: dict[str, str], tmp_path: Path
) -> None:
    def key(release: str) -> str:
        workflow = Workflow(
            tmp_path, runner, {"scenario": "my scenarios/single-node.yml", "release": release}
        )
        workflow.run({}, steps=3)
        return workflow.used["Look for the image"]["key"]

    before = key("24.11")
    assert re.fullmatch(r"slurm-harness-24\.11-[0-9a-f]{64}", before)
    assert key("25.05") != before
    other = "from harness.providers import images; images.wanted = lambda: {'another'}; "
    program(
        tmp_path / "repository" / ".venv" / "bin" / "python",
        f'#!/bin/sh\n[ "$1" = -c ] && shift && set -- -c "{other}$1"\nexec {sys.executable} "$@"\n',
    )
    assert key("24.11") != before


@pytest.mark.parametrize("cached", [True, False], ids=["image cached", "image not cached"])
def test_gitlab_job_runs_the_scenario_and_leaves_a_report(
    cached: bool, runner: dict[str, str], tmp_path: Path
) -> None:
    job, repository = tmp_path / "job", tmp_path / "repository"
    git = ["git", "-C", repository, "-c", "user.name=x", "-c", "user.email=x@example.org"]
    for words in (
        ["init", "--quiet"],
        ["add", "--force", "."],
        ["commit", "--quiet", "-m", "all"],
        ["tag", "v1"],
    ):
        subprocess.run([*git, *words], check=True)
    variables = GITLAB["variables"] | {
        "SLURM_HARNESS_REPOSITORY": repository.as_uri(),
        "SCENARIO": "my scenarios/single-node.yml",
    }
    kept = job / GITLAB["slurm-harness"]["cache"]["paths"][0].replace(
        "$RELEASE", variables["RELEASE"]
    )
    if cached:
        kept.touch()
    script = "\n".join(GITLAB["slurm-harness"]["script"])
    evaluated = f"eval {shlex.quote(script)}"
    if variables.get("FF_USE_NEW_BASH_EVAL_STRATEGY") == "true":
        evaluated = f"({evaluated})"
    completed = subprocess.run(
        ["bash"],
        input=GITLAB_SHELL.format(evaluated=evaluated),
        cwd=job,
        env=runner | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == NO_ENGINE, completed.stdout + completed.stderr
    file = f"images-{variables['RELEASE']}.tar"
    assert (tmp_path / "calls").read_text().splitlines() == [
        f"images load {file}",
        *([] if cached else [f"images save {file} {variables['RELEASE']}"]),
        f"run my scenarios/single-node.yml --release {variables['RELEASE']} --report report",
    ]
    assert kept.exists()
    assert (job / GITLAB["slurm-harness"]["artifacts"]["paths"][0] / "report.html").exists()
