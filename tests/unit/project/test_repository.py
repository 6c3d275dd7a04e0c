"""Everything around the program: CI, templates, pinned packages, hooks, the format of files."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from ruamel.yaml import YAML

from harness import releases

ROOT = Path(__file__).parents[3]
GITHUB = ROOT / ".github"
ACTION = ROOT / "action.yml"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FORMS = sorted(path for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config")
SCHEMAS = {
    "github-workflows": WORKFLOWS,
    "github-issue-forms": FORMS,
    "github-issue-config": [GITHUB / "ISSUE_TEMPLATE" / "config.yml"],
    "dependabot": [GITHUB / "dependabot.yml"],
}
PINNED = [ROOT / "constraints.txt", ROOT / ".github" / "site" / "constraints.txt"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MAKEFILE = (ROOT / "Makefile").read_text()


def read(path: Path) -> Any:
    return YAML(typ="safe").load(path)


def named(paths: list[Path]) -> Any:
    return pytest.mark.parametrize("path", paths, ids=lambda path: path.stem)


@pytest.mark.parametrize("schema", SCHEMAS)
def test_what_github_reads_fits_its_schema(schema: str) -> None:
    assert SCHEMAS[schema]
    command = [
        Path(sys.executable).with_name("check-jsonschema"),
        "--builtin-schema",
        f"vendor.{schema}",
    ]
    completed = subprocess.run(
        [*command, *SCHEMAS[schema]], capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, completed.stdout


@named([*WORKFLOWS, ACTION])
def test_actions_are_pinned_to_commits_with_their_versions(path: Path) -> None:
    for used in re.findall(r"uses: (.*)", path.read_text()):
        assert used == "./" or re.fullmatch(r"[\w./-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", used), used


def test_an_action_has_one_version_everywhere() -> None:
    used = {
        line
        for path in [*WORKFLOWS, ACTION]
        for line in re.findall(r"uses: ([^./].*)", path.read_text())
    }
    pins = {(repository(line), line.partition("@")[2]) for line in used}
    assert len(pins) == len({name for name, _ in pins}), sorted(pins)


def repository(used: str) -> str:
    return "/".join(used.partition("@")[0].split("/")[:2])


@named(WORKFLOWS)
def test_workflow_has_minimal_permissions_a_timeout_and_no_concurrent_runs(path: Path) -> None:
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert set(workflow["concurrency"]) == {"group", "cancel-in-progress"}
    assert "pull_request_target" not in workflow["on"]
    for name, job in workflow["jobs"].items():
        assert job["timeout-minutes"] <= 90, name
        # Only a job that publishes something may have permissions of its own.
        if "permissions" in job:
            assert (
                "pull_request" not in workflow["on"] or job["if"] == "github.event_name == 'push'"
            )
            assert job["environment"]
            assert not [step for step in job["steps"] if "run" in step], (
                f"{name} runs code of the repository"
            )
        for step in job["steps"]:
            if "checkout" in step.get("uses", ""):
                assert step["with"]["persist-credentials"] is False
            assert "${{" not in step.get("run", ""), "what others wrote could become a command"


def test_workflows_run_targets_of_make() -> None:
    targets = set(re.findall(r"^([\w-]+):", MAKEFILE, re.M))
    steps = [
        step for path in WORKFLOWS for job in read(path)["jobs"].values() for step in job["steps"]
    ]
    words = [shlex.split(step["run"]) for step in steps if step.get("run", "").startswith("make ")]
    used = {command[1] for command in words}
    assert {"check", "test", "site", "release"} <= used <= targets


def test_every_packaged_release_is_accepted() -> None:
    job = read(GITHUB / "workflows" / "acceptance.yml")["jobs"]["scenario"]
    assert sorted(job["strategy"]["matrix"]["release"]) == sorted(releases.packaged())
    (run,) = [step["with"] for step in job["steps"] if step.get("uses") == "./"]
    inputs = read(ACTION)["inputs"]
    assert set(run) <= set(inputs)
    assert (ROOT / run["scenario"]).exists()
    assert f"run scenarios/{Path(run['scenario']).name}" in MAKEFILE, "as `make run` does"


def test_updates_are_proposed_for_packages_and_actions() -> None:
    updates = {
        update["package-ecosystem"]: update for update in read(GITHUB / "dependabot.yml")["updates"]
    }
    assert updates["pip"]["directories"] == ["/", "/.github/site"]
    assert updates["github-actions"]["directory"] == "/"


def commands_of_check() -> Iterator[list[str]]:
    recipe = re.search(r"^check:.*\n((?:\t.*\n)+)", MAKEFILE, re.M)
    assert recipe
    for line in recipe[1].replace("$(CURDIR)/", "").replace("$(BIN)/", ".venv/bin/").splitlines():
        words = [word for word in shlex.split(line) if not word.startswith("PATH=")]
        yield [Path(words[0]).name, *(word for word in words[1:] if word != ".")]


def test_hooks_run_everything_of_make_check_except_the_tests() -> None:
    (local,) = read(ROOT / ".pre-commit-config.yaml")["repos"]
    assert local["repo"] == "local", "so that constraints.txt alone names versions"
    entries = []
    for hook in local["hooks"]:
        entry = hook["entry"].replace(" --force-exclude", "")
        words = shlex.split(re.sub(r"^sh -c '.*exec (.*)'$", r"\1", entry))
        entries.append([Path(words[0]).name, *words[1:]])
        assert "exec" in entry or words[0].startswith(".venv/bin/")
    assert entries == [command for command in commands_of_check() if command[0] != "pytest"]


def pins(path: Path) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([\w.-]+)==(\S+)", path.read_text(), re.M):
        found.setdefault(name, set()).add(version)
    return found


@named(PINNED)
def test_every_package_is_pinned_with_hashes_and_no_index(path: Path) -> None:
    for entry in re.split(r"\n(?=\S)", path.read_text().strip()):
        first, *hashes = entry.split(" \\\n")
        assert re.fullmatch(r"[\w.-]+==[\w.!+]+(?: ; [^:/]+)?", first), first
        assert hashes, first
        assert all(re.fullmatch(r" {4}--hash=sha256:[0-9a-f]{64}", line) for line in hashes), first


def test_packages_of_the_web_site_have_the_same_versions() -> None:
    ours, site = map(pins, PINNED)
    assert {
        name: versions for name, versions in site.items() if versions != ours.get(name, versions)
    } == {}


@pytest.mark.parametrize(
    ("path", "requirements"),
    [
        (
            PINNED[0],
            [
                *PROJECT["project"]["dependencies"],
                *PROJECT["project"]["optional-dependencies"]["dev"],
            ],
        ),
        (PINNED[1], PROJECT["dependency-groups"]["docs"]),
    ],
    ids=["constraints", "site"],
)
def test_pinned_packages_match_pyproject(path: Path, requirements: list[str]) -> None:
    found = pins(path)
    for requirement in map(Requirement, requirements):
        name = canonicalize_name(requirement.name)
        if name != PROJECT["project"]["name"]:
            assert all(version in requirement.specifier for version in found[name]), requirement


def test_files_follow_editorconfig() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    wrong = []
    for name in listed.split("\0"):
        path = ROOT / name
        if not path.is_file() or path.is_symlink():
            continue
        data = path.read_bytes()
        if not data or b"\0" in data or name.endswith(".gz"):
            continue
        lines = data.decode().split("\n")
        indents = {line[: len(line) - len(line.lstrip())] for line in lines}
        if lines[-1] or b"\r\n" in data or any(line != line.rstrip(" \t") for line in lines):
            wrong.append(name)
        if path.name not in {"Makefile", "rules"} and any("\t" in indent for indent in indents):
            wrong.append(name)
    assert wrong == []
