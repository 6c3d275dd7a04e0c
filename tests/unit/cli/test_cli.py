from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import harness_command
import pytest

from harness import releases, scenario
from harness.slurmconf import check

ROOT = Path(__file__).parents[3]
SINGLE_NODE = ROOT / "scenarios" / "single-node.yml"
SITE = ROOT / "tests" / "integration" / "site"
NO_ENGINE = {"DOCKER_HOST": "unix:///nonexistent/docker.sock"}


def harness(
    *arguments: str | Path, cwd: Path, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    words = [*harness_command.WORDS, *map(str, arguments)]
    env = {**os.environ, "NO_COLOR": "1", **(environment or {})}
    return subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, check=False)


def test_bad_scenario_is_2_with_places_on_stderr(tmp_path: Path) -> None:
    (tmp_path / "bad.yml").write_text("clusters:\n  a: {controler: x, nodes: [{name: n}]}\n")
    completed = harness("run", "bad.yml", cwd=tmp_path)
    assert completed.returncode == 2
    assert (
        'bad.yml:2:7: clusters.a.controler: unknown key; did you mean "controller"?'
        in completed.stderr
    )
    assert completed.stdout == ""
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "arguments", [["run"], ["nonsense"], ["run", "x.yml", "--provider", "moon"], ["exec"]]
)
def test_bad_usage_is_2(arguments: list[str], tmp_path: Path) -> None:
    assert harness(*arguments, cwd=tmp_path).returncode == 2


def test_missing_scenario_and_missing_run_are_2_with_a_hint(tmp_path: Path) -> None:
    for arguments in (["run", "none.yml"], ["verify"], ["exec", "host", "--", "true"]):
        completed = harness(*arguments, cwd=tmp_path)
        assert completed.returncode == 2, arguments
        assert "hint:" in completed.stderr
        assert "Traceback" not in completed.stderr


def test_missing_engine_is_3_with_a_hint_and_a_report(tmp_path: Path) -> None:
    scenario = ROOT / "scenarios" / "single-node.yml"
    completed = harness("run", scenario, "--report", "out", cwd=tmp_path, environment=NO_ENGINE)
    assert completed.returncode == 3
    reason = (
        "no Docker engine answers at unix:///nonexistent/docker.sock: No such file or directory\n"
    )
    assert completed.stdout.count(reason) == 1
    assert "hint: start it" in completed.stdout
    assert json.loads((tmp_path / "out" / "report.json").read_text())["verdict"] == "unknown"
    assert "Traceback" not in completed.stderr


def test_doctor_without_an_engine_is_3_and_speaks_json(tmp_path: Path) -> None:
    completed = harness("doctor", "--format", "json", cwd=tmp_path, environment=NO_ENGINE)
    assert completed.returncode == 3
    findings = {finding["subject"]: finding for finding in json.loads(completed.stdout)}
    assert findings["engine"]["ok"] is False
    assert findings["engine"]["fix"] is None, "an engine that the user chose is the user's to start"


def test_render_needs_no_engine(tmp_path: Path) -> None:
    completed = harness(
        "render",
        ROOT / "scenarios" / "federation.yml",
        "-o",
        "tree",
        cwd=tmp_path,
        environment=NO_ENGINE,
    )
    assert completed.returncode == 0, completed.stderr
    assert (tmp_path / "tree" / "aws1" / "etc" / "slurm" / "slurm.conf").exists()


def test_render_writes_manifests_for_clusters_that_kubernetes_shares(tmp_path: Path) -> None:
    path = ROOT / "scenarios" / "kubernetes-hybrid.yml"
    completed = harness("render", path, "-o", "tree", cwd=tmp_path, environment=NO_ENGINE)
    assert "the operator in Kubernetes: tree/kubernetes" in completed.stdout
    assert 'name: "n1"' in (tmp_path / "tree" / "kubernetes" / "clusters.yaml").read_text()


def test_version(tmp_path: Path) -> None:
    assert harness("--version", cwd=tmp_path).stdout.startswith("0.")


def test_report_is_rewritten_and_runs_are_compared(tmp_path: Path) -> None:
    scenario = ROOT / "scenarios" / "single-node.yml"
    harness("run", scenario, "--report", "one", cwd=tmp_path, environment=NO_ENGINE)
    (tmp_path / "one" / "report.html").unlink()
    again = harness("report", "one", cwd=tmp_path)
    assert again.returncode == 0
    assert "UNKNOWN" in again.stdout
    assert "no Docker engine answers" in (tmp_path / "one" / "report.html").read_text()
    both = harness("report", "one", "single-node", "--format", "json", cwd=tmp_path)
    assert json.loads(both.stdout)["verdicts"] == ["unknown", "unknown"]
    assert (
        "0 checks have the same outcome"
        in harness("report", "one", "single-node", cwd=tmp_path).stdout
    )


def test_report_without_any_run_names_the_directory_of_runs(tmp_path: Path) -> None:
    completed = harness("report", cwd=tmp_path)
    assert completed.returncode == 2
    assert "error: no run under runs\n" in completed.stderr


def test_directory_without_a_report_is_2_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    completed = harness("report", "empty", cwd=tmp_path)
    assert completed.returncode == 2
    assert "empty has no report.json\nhint:" in completed.stderr


def test_init_writes_a_valid_scenario_and_overwrites_none(tmp_path: Path) -> None:
    completed = harness("init", "lab", cwd=tmp_path)
    assert completed.returncode == 0
    assert completed.stdout.endswith("harness run lab.yml\n")
    for release in releases.packaged():
        path = tmp_path / "lab.yml"
        assert check.check_scenario(path, scenario.load(path, [release]), None) == []
    (schema,) = tmp_path.glob("*.json")
    assert f"$schema={schema.name}\n" in (tmp_path / "lab.yml").read_text()
    assert json.loads(schema.read_text()) == json.loads(harness("schema", cwd=tmp_path).stdout)
    (tmp_path / "lab.yml").write_text("mine")
    again = harness("init", "lab.yml", cwd=tmp_path)
    assert again.returncode == 2
    assert "lab.yml already exists\nhint:" in again.stderr
    assert (tmp_path / "lab.yml").read_text() == "mine"


def test_init_can_start_from_a_shipped_scenario(tmp_path: Path) -> None:
    assert harness("init", "mine", "--like", "federation", cwd=tmp_path).returncode == 0
    shipped = (ROOT / "scenarios" / "federation.yml").read_text()
    assert (tmp_path / "mine.yml").read_text().partition("\n")[2] == shipped


@pytest.mark.parametrize("arguments", [["two words"], ["none/here"], ["lab", "--like", "nonesuch"]])
def test_init_refuses_a_path_that_cannot_be_a_scenario(
    arguments: list[str], tmp_path: Path
) -> None:
    completed = harness("init", *arguments, cwd=tmp_path)
    assert completed.returncode == 2
    assert completed.stderr.startswith("error: ")
    assert not [*tmp_path.iterdir()]


def test_completion_knows_the_verbs(tmp_path: Path) -> None:
    asked = {"_HARNESS_COMPLETE": "complete_bash", "COMP_WORDS": "harness rep", "COMP_CWORD": "1"}
    program = Path(sys.executable).with_name("harness")
    completed = subprocess.run(
        [program], env={**os.environ, **asked}, capture_output=True, text=True, check=False
    )
    assert completed.stdout.split() == ["report"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", SINGLE_NODE, "--report", "file"],
        ["run", SINGLE_NODE, "--report", "file/below"],
        ["run", SINGLE_NODE, "--runs", "file"],
        ["up", SINGLE_NODE, "--runs", "/proc/nowhere"],
        ["render", SINGLE_NODE, "-o", "file"],
        ["import", SITE, "-o", "missing/site.yml"],
        ["images", "save", "."],
        ["images", "save", "missing/images.tar"],
        ["bench", "nodes", "-o", "file"],
        ["bench", "simulations", "-o", "file"],
    ],
    ids=lambda arguments: " ".join(word for word in arguments if isinstance(word, str)),
)
def test_output_that_cannot_be_written_is_2_before_anything_starts(
    arguments: list[str | Path], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("mine")
    completed = harness(*arguments, cwd=tmp_path, environment=NO_ENGINE)
    assert completed.returncode == 2, completed.stderr
    assert "cannot be written" in completed.stderr or "is a directory" in completed.stderr
    assert "Traceback" not in completed.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "mine"


def test_unexpected_error_is_3_with_its_traceback_and_how_to_report_it(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(
        "from harness import cli, scenario\n"
        "def schema(): raise KeyError('partitions')\n"
        "scenario.schema = schema\n"
        "cli.main()\n"
    )
    completed = subprocess.run(
        [sys.executable, "broken.py", "schema"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 3
    assert "Traceback" in completed.stderr
    assert (
        "unexpected error: KeyError: 'partitions'\nhint: this is a bug in the harness"
        in completed.stderr
    )


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name
)
def test_interrupt_while_the_command_line_loads_is_3_without_a_traceback(
    number: signal.Signals,
) -> None:
    # `harness.cli` is the first of the modules that take long.
    slow = (
        "import os, sys; sys.modules['harness.cli'] = None;"
        " from harness import __main__, interrupts\n"
    )
    slow += f"interrupts.exit_quietly(); os.kill(os.getpid(), {int(number)}); __main__.main()"
    completed = subprocess.run(
        [sys.executable, "-c", slow], capture_output=True, text=True, check=False
    )
    assert (completed.returncode, completed.stderr) == (3, "interrupted\n")


def test_closed_pipe_does_not_change_the_exit_code(tmp_path: Path) -> None:
    reading = "; exit ${PIPESTATUS[0]}"
    for pipe in ("true", "head -1"):  # `schema` prints more than a pipe holds
        script = f"'{sys.executable}' -m harness schema | {pipe}{reading}"
        completed = subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert (completed.returncode, completed.stderr) == (0, ""), pipe


OWN_IMAGE = "clusters:\n  one:\n    image: mine:1\n    controller: box\n    nodes: [{name: box}]\n"


@pytest.mark.parametrize(
    "arguments",
    [["check", "own.yml"], ["render", "own.yml", "-o", "out"], ["diff", "own.yml", "own.yml"]],
)
def test_images_are_run_only_on_request(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "own.yml").write_text(OWN_IMAGE)
    completed = harness(*arguments, cwd=tmp_path, environment=NO_ENGINE)
    assert completed.returncode == 0, completed.stderr
    output = completed.stdout + completed.stderr
    assert "own.yml:3:12: " in output
    assert "clusters.one.image: mine:1 was not inspected; assuming Slurm 24.11" in output
    assert "`release:` next to `image:`" in output
    probed = harness(*arguments, "--probe-images", cwd=tmp_path, environment=NO_ENGINE)
    assert probed.returncode == 3
    assert "no Docker engine answers at unix:///nonexistent/docker.sock" in probed.stderr


def test_table_of_submissions_is_read_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "policy.yml").write_text("- {user: alise, expect: {accepted: true}}\n")
    completed = harness("submissions", "policy.yml", SINGLE_NODE, cwd=tmp_path)
    assert (completed.returncode, completed.stdout) == (2, "")
    assert 'policy.yml:1:4: user: no user "alise"; did you mean "alice"?' in completed.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--to", "26.05"], "need a scenario"),
        (["scenario.yml", "--run", "x"], "--run cannot be combined with a scenario"),
    ],
)
def test_options_of_submissions_that_contradict_each_other_are_refused(
    words: list[str], problem: str, tmp_path: Path
) -> None:
    (tmp_path / "policy.yml").write_text("- {user: alice}\n")
    completed = harness("submissions", "policy.yml", *words, cwd=tmp_path)
    assert completed.returncode == 2
    assert problem in completed.stderr


def test_change_that_is_refused_leaves_no_run_behind(tmp_path: Path) -> None:
    completed = harness("rehearse-change", SINGLE_NODE, SINGLE_NODE, cwd=tmp_path)
    assert completed.returncode == 2
    assert "there is no change that Slurm would see" in completed.stderr
    assert not (tmp_path / "runs").exists()


SCENARIO_MODULES = {"jinja2", "docker", "harness.scenario", "harness.lifecycle"}


def loaded_by(*arguments: str) -> tuple[set[str], str]:
    """Run the command line; return which modules it loaded, and what it printed."""
    program = (
        "import sys; from harness import cli; sys.stdout = sys.stderr\n"
        "try: cli.main()\n"
        "finally: print(*sys.modules, file=sys.__stdout__)"
    )
    completed = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False
    )
    return {*completed.stdout.split()}, completed.stderr


def test_command_line_loads_only_what_it_needs_to_start() -> None:
    loaded, printed = loaded_by("--help")
    assert "rehearse-change" in printed
    assert loaded >= {"typer", "rich"}
    assert not loaded & (SCENARIO_MODULES | {"pydantic", "ruamel"})


def test_check_of_slurms_files_does_not_load_what_only_scenarios_need(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text("ClusterName=c\nSlurmctldHost=h\n")
    loaded, printed = loaded_by("check", str(tmp_path))
    assert "1 error" in printed, printed
    assert "harness.slurmconf.check" in loaded
    assert not loaded & SCENARIO_MODULES


def test_diff_says_what_it_compares_if_a_name_is_nothing(tmp_path: Path) -> None:
    completed = harness("diff", "nosuch", "x", cwd=tmp_path)
    assert completed.returncode == 2
    assert "nosuch is not a file, a directory or a run" in completed.stderr
    assert "hint: name a scenario" in completed.stderr
