"""The documentation is true: its commands, its links, and the pages generated from the program."""

from __future__ import annotations

import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from ruamel.yaml import YAML
from typer.core import TyperGroup
from typer.testing import CliRunner

import golden
from harness import cli, render, rundir, scenario
from harness.site import collect

ROOT = Path(__file__).parents[3]
REFERENCE = ROOT / "docs" / "reference"
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
CI = ROOT / "docs" / "how-to" / "ci.md"
ACTION = ROOT / "action.yml"
GITLAB = CI.with_name("gitlab-ci.yml")
# Commands that are run here, page by page, with the exit codes that they may have.
WITHOUT_ENGINE = {
    "init": {0},
    "schema": {0},
    "render": {0},
    "check": {0, 1},  # 1: it found the error that the page is about
    "import": {0},
    "collect": {0},
    "diff": {0},
    "report": {0},
    "fault list": {0},
    "doctor": {3},  # it finds no engine
    "run": {3},  # it reads the scenario, and leaves a run's directory
}
# Commands that need an engine, and the module of tests/integration that runs them.
WITH_ENGINE = {
    "run": "support",
    "up": "support",
    "down": "support",
    "deploy": "test_stages",
    "verify": "test_stages",
    "status": "test_stages",
    "exec": "test_stages",
    "logs": "test_stages",
    "shell": "test_stages",
    "ssh": "test_stages",
    "rehearse": "test_rehearsal",
    "simulate": "test_simulation",
    "recheck": "test_rehearsal",
    "upgrade": "test_upgrade",
    "rehearse-change": "test_change",
    "fault inject": "test_faults",
    "fault heal": "test_faults",
    "images build": "test_sources",
    "images list": "test_engines",
    "images save": "test_engines",
    "images load": "test_engines",
    "images extend": "test_schedmd",
    "schedmd-suite": "test_schedmd",
    "submissions": "test_submissions",
    "cp": "test_schedmd",
}
# Compares with hosts that are up, as tests/integration/test_diff.py does.
OF_LIVE_HOSTS = ["diff", "runs/federation/latest/tree", "federation"]
# The scenario whose problems docs/scenario.md shows.
BROKEN = """\
clusters:
  alpha:
    controller: ctl
    nodes:
      - name: n[1-3
        cpu: 2
federations:
  f:
    clusters: [alpha, beta]
"""
APP = typer.main.get_command(cli.app)
OPERATORS = {"|", "||", "&", "&&", ";", "(", ")"}
Words = list[str]


def yaml_shown(page: Path) -> list[str]:
    return re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.M | re.S)


def without_fences(text: str) -> str:
    return re.sub(r"^( *)```.*?^\1```", "", text, flags=re.M | re.S)


def shown(text: str) -> Iterator[Words]:
    """Yield every simple shell command that a page shows."""
    lines = re.findall(r"^    (?:\$ )?(harness .*)", without_fences(text), re.M)
    for _, language, block in re.findall(r"^( *)```(\w*)\n(.*?)^\1```", text, re.M | re.S):
        if language in {"sh", ""}:  # "" shows what a command prints, too
            lines += block.splitlines() if language else re.findall(r"^ *\$ (.*)", block, re.M)
    yield from simple_commands(lines)


def simple_commands(lines: list[str]) -> Iterator[Words]:
    """Yield the words of each simple command; an unfinished line continues in the next one."""
    before = ""
    for line in lines:
        before += line.replace("$(", " ; (")
        if before.endswith("\\"):
            before = before[:-1]
            continue
        words = shlex.shlex(before, posix=True, punctuation_chars=True)
        words.wordchars += ":,@^%+{}[]$!"
        try:
            yield from split(list(words))
        except ValueError:  # an open quote
            before += "\n"
            continue
        before = ""
    assert not before, f"a command does not end: {before}"


def split(words: Words) -> Iterator[Words]:
    """Yield the simple commands of a list or pipeline, without redirections."""
    command: Words = []
    skip = False
    for word in [*words, ";"]:
        if word in OPERATORS:
            if command:
                yield [Path(command[0]).name, *command[1:]]
            command = []
        elif not command and re.match(r"[A-Z_]+=", word):
            continue  # a variable for the command
        elif word in {">", ">>", "<"}:
            skip = True
        elif skip:
            skip = False
        else:
            command.append(word)


def verb(words: Words) -> str:
    """Return the verb of a command line, of two words where it is of a group."""
    group = APP.commands.get(words[0]) if isinstance(APP, TyperGroup) else None
    return " ".join(words[:2]) if isinstance(group, TyperGroup) else words[0]


def parse(words: Words) -> None:
    """Let the command line parse its words, but run nothing."""
    command: Any = APP
    context, name = None, "harness"
    while True:
        context = command.make_context(name, words, parent=context)
        if not isinstance(command, TyperGroup):
            return
        name, command, words = command.resolve_command(
            context, [*context._protected_args, *context.args]
        )


def of_harness(page: Path) -> list[Words]:
    return [words[1:] for words in shown(page.read_text()) if words[0] == "harness"]


COMMANDS = [(page, words) for page in PAGES for words in of_harness(page)]


@pytest.fixture
def desk(assumed_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the files that the pages assume, and no engine."""
    desk = shutil.copytree(assumed_files, tmp_path / "desk", symlinks=True)
    monkeypatch.chdir(desk)
    monkeypatch.setenv("PATH", f"{desk / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("DOCKER_HOST", "nowhere://")
    monkeypatch.delenv("HARNESS_RUNS", raising=False)
    return desk


@pytest.fixture(scope="session")
def assumed_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The files that the pages assume."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield _lay_out(tmp_path_factory.mktemp("assumed"), monkeypatch)


def _lay_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scenarios").symlink_to(ROOT / "scenarios")
    rundir.write_rendered(
        tmp_path / "tree", render.render(golden.plan_of("federation")), with_secrets=False
    )
    for name in ("etc-slurm", "site", "new"):
        shutil.copytree(tmp_path / "tree" / "onprem-ctl" / "etc" / "slurm", tmp_path / name)
    sinfo = tmp_path / "bin" / "sinfo"
    sinfo.parent.mkdir()
    sinfo.write_text("#!/bin/sh\necho slurm 24.11.5\n")
    sinfo.chmod(0o755)
    monkeypatch.setenv("PATH", f"{sinfo.parent}:{os.environ['PATH']}")
    collect.main(["--conf", "etc-slurm", "--output", "site.tar.gz"])
    sacctmgr = sinfo.with_name("sacctmgr")
    clusters = r"Cluster|Federation\nalpha|pair\nbeta|pair\n"
    sacctmgr.write_text(f"#!/bin/sh\ncase $* in *'show cluster'*) printf '{clusters}' ;; esac\n")
    sacctmgr.chmod(0o755)
    for name in ("alpha", "beta"):
        conf = shutil.copytree(tmp_path / "site", tmp_path / "clusters" / name) / "slurm.conf"
        conf.write_text(conf.read_text().replace("ClusterName=on-prem", f"ClusterName={name}"))
        collect.main(["--conf", str(conf.parent), "--output", f"{name}.tar.gz"])
    for name in ("hosts.yml", "dump.sql.gz", "lublin.swf", "policy.yml"):
        (tmp_path / name).touch()
    with tarfile.open(tmp_path / "slurm-25.11.2.tar.bz2", "w:bz2") as tar:
        meta = b"  Name: slurm\n  Version: 25.11.2\n"
        member = tarfile.TarInfo("slurm-25.11.2/META")
        member.size = len(meta)
        tar.addfile(member, io.BytesIO(meta))
    (tmp_path / "state").mkdir()
    (tmp_path / "slurm-24.11.5" / "testsuite").mkdir(parents=True)
    shutil.copyfile("scenarios/single-node.yml", "scenario.yml")
    (tmp_path / "broken.yml").write_text(BROKEN)
    return tmp_path


@pytest.mark.parametrize(
    ("page", "words"), COMMANDS, ids=[f"{page.stem}: {' '.join(words)}" for page, words in COMMANDS]
)
@pytest.mark.usefixtures("desk")
def test_every_command_shown_exists(page: Path, words: Words) -> None:
    parse(words)
    for word in words:
        assert not word.startswith("scenarios/") or (ROOT / word).exists(), (
            f"{page.name} names {word}"
        )


def test_every_command_shown_is_run_by_a_test() -> None:
    for page, words in COMMANDS:
        if verb(words) not in WITHOUT_ENGINE or words == OF_LIVE_HOSTS:
            name = "test_diff" if words == OF_LIVE_HOSTS else WITH_ENGINE.get(verb(words))
            assert name, f"{page.name}: no test runs `harness {' '.join(words)}`"
    for name, module in WITH_ENGINE.items():
        text = (ROOT / "tests" / "integration" / f"{module}.py").read_text()
        assert ", ".join(f'"{word}"' for word in name.split()) in text, (
            f"{module} does not run `harness {name}`"
        )


@pytest.mark.parametrize(
    "page", [page for page in PAGES if of_harness(page)], ids=lambda page: page.stem
)
def test_commands_that_need_no_engine_do_what_the_documentation_says(
    page: Path, desk: Path
) -> None:
    runner = CliRunner()
    # Directories that pages use for a report from someone else, or for earlier runs.
    for name in ("single-node", "federation"):
        runner.invoke(cli.app, ["run", f"scenarios/{name}.yml", "--report", "artifact"])
    for name in ("before", "after"):
        shutil.copytree("artifact", name)
    for words in shown(page.read_text()):
        words = [word.replace("/etc/slurm", "etc-slurm") for word in words]
        if words[0] == "cp":
            shutil.copyfile(*words[1:])
        if (
            words[0] != "harness"
            or verb(words[1:]) not in WITHOUT_ENGINE
            or words[1:] == OF_LIVE_HOSTS
        ):
            continue
        if "--provider" in words or "--inventory" in words:
            continue  # the user's own machines
        completed = runner.invoke(cli.app, words[1:])
        if "broken.yml" in words:
            assert completed.exit_code == 2
            assert all(line in page.read_text() for line in completed.output.splitlines())
        else:
            assert completed.exit_code in WITHOUT_ENGINE[verb(words[1:])], (
                f"{' '.join(words)}\n{completed.output}"
            )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_in_the_text_use_existing_verbs_and_options(page: Path) -> None:
    for command_line in re.findall(r"`harness ([^`]+)`", without_fences(page.read_text())):
        words = command_line.split(" -- ")[0].split()
        command: Any = APP
        while isinstance(command, TyperGroup) and words and not words[0].startswith("-"):
            assert words[0] in command.commands, f"{page.name}: `harness {command_line}`"
            command = command.commands[words.pop(0)]
        options = {option for parameter in command.params for option in parameter.opts} | {
            "--install-completion",
            "--show-completion",
            "--help",
        }
        wrong = {word for word in words if word.startswith("-")} - options
        assert not wrong, f"{page.name}: `harness {command_line}` has no {', '.join(wrong)}"


def test_every_target_shown_is_in_the_makefile() -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
    for page in PAGES:
        named = [words[1:] for words in shown(page.read_text()) if words[0] == "make"]
        named += [
            command_line.split() for command_line in re.findall(r"`make ([^`]+)`", page.read_text())
        ]
        assert {word for words in named for word in words if "=" not in word} <= {*targets}, page


def headings(page: Path) -> set[str]:
    """Return GitHub's anchors for the headings of a page."""
    found = re.findall(r"^#+ (.*)", without_fences(page.read_text()), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: page.stem)
def test_every_link_leads_somewhere(page: Path) -> None:
    text = page.read_text()
    for link in re.findall(r"\]\(([^)]+)\)|src(?:set)?=\"([^\"]+)\"", text):
        name, _, heading = "".join(link).partition("#")
        if name.startswith("https:"):
            continue
        target = page.parent / name if name else page
        assert target.exists(), f"{page.name}: {name}"
        assert not heading or heading in headings(target), f"{page.name}: {name}#{heading}"


def test_every_page_is_in_the_index() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {
        (index.parent / name).resolve() for name in re.findall(r"\]\(([^)#]+)", index.read_text())
    }
    assert {page for page in PAGES if page.is_relative_to(index.parent)} <= {*linked, index}


def test_every_scenario_is_listed() -> None:
    page = ROOT / "docs" / "scenarios.md"
    linked = re.findall(r"\(\.\./scenarios/([\w-]+)\.yml\)", page.read_text())
    assert sorted(linked) == sorted(path.stem for path in (ROOT / "scenarios").glob("*.yml"))


def test_every_module_is_on_the_map() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    package = ROOT / "harness"
    modules = {path.name for path in package.glob("*.py") if not path.name.startswith("__")}
    folders = {f"harness/{path.parent.name}/" for path in package.glob("*/__init__.py")}
    assert {name for name in modules | folders if name not in text} == set()


def test_generated_pages_match_the_program(tmp_path: Path) -> None:
    subprocess.run([sys.executable, REFERENCE / "generate.py", tmp_path], check=True)
    for made in tmp_path.iterdir():
        assert (REFERENCE / made.name).read_text() == made.read_text(), (
            "`make docs` regenerates them"
        )


def test_every_check_shown_exists() -> None:
    page = ROOT / "docs" / "how-to" / "write-a-check.md"
    (code,) = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)
    assert code in (ROOT / "tests" / "checks" / "test_jobs.py").read_text()


def test_example_of_the_scenario_file_is_valid(tmp_path: Path) -> None:
    (tmp_path / "example.yml").write_text(yaml_shown(ROOT / "docs" / "scenario.md")[0])
    assert scenario.load(tmp_path / "example.yml").clusters.keys() == {"alpha"}


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ("github-actions", ACTION.read_text()),
        ("github-workflows", yaml_shown(CI)[0]),
        ("gitlab-ci", GITLAB.read_text()),
        ("gitlab-ci", yaml_shown(CI)[1]),
    ],
    ids=["action", "workflow", "gitlab", "gitlab-include"],
)
def test_ci_for_users_fits_its_schema(schema: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "ci.yml").write_text(text)
    command = [
        Path(sys.executable).with_name("check-jsonschema"),
        "--builtin-schema",
        f"vendor.{schema}",
    ]
    transform = ["--data-transform", "gitlab-ci"] if schema == "gitlab-ci" else []
    completed = subprocess.run(
        [*command, *transform, tmp_path / "ci.yml"], capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, completed.stdout


@pytest.mark.parametrize(
    "scripts",
    [
        [step["run"] for step in YAML(typ="safe").load(ACTION)["runs"]["steps"] if "run" in step],
        YAML(typ="safe").load(GITLAB)["slurm-harness"]["script"],
    ],
    ids=["github", "gitlab"],
)
def test_ci_for_users_runs_commands_that_exist(scripts: list[str]) -> None:
    text = re.sub(r"\$\{RELEASE:\+(.*?)\}", r"\1", "\n".join(scripts))
    commands = [
        shlex.split(found)
        for found in re.findall(r"(?:^|[{|] )\s*harness ([^;|&>\n]+)", text, re.M)
    ]
    for words in commands:
        parse([word for word in words if word != "${options[@]}"])
    assert {verb(words) for words in commands} >= {"run", "images load", "images save"}


def test_promises_name_existing_tests() -> None:
    named = re.findall(r"`(?:(tests/[\w/]+\.py)::)?(test_\w+)`", (ROOT / "SECURITY.md").read_text())
    file = ""
    for path, test in named:
        file = path or file
        assert f"def {test}(" in (ROOT / file).read_text(), test
    assert len(named) > 10
