from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NO_ENGINE = {"DOCKER_HOST": "unix:///nonexistent/docker.sock"}


def harness(
    *arguments: str | Path, cwd: Path, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "harness", *map(str, arguments)]
    env = {**os.environ, "NO_COLOR": "1", **(environment or {})}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)


def test_bad_scenario_is_2_with_places_on_stderr(tmp_path: Path) -> None:
    (tmp_path / "bad.yml").write_text("clusters:\n  a: {controler: x, nodes: [{name: n}]}\n")
    done = harness("run", "bad.yml", cwd=tmp_path)
    assert done.returncode == 2
    assert 'bad.yml:2:7: clusters.a.controler: unknown key; did you mean "controller"?' in done.stderr
    assert done.stdout == ""
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("arguments", [["run"], ["nonsense"], ["run", "x.yml", "--provider", "moon"], ["exec"]])
def test_bad_usage_is_2(arguments: list[str], tmp_path: Path) -> None:
    assert harness(*arguments, cwd=tmp_path).returncode == 2


def test_missing_scenario_and_missing_run_are_2_with_a_hint(tmp_path: Path) -> None:
    for arguments in (["run", "none.yml"], ["verify"], ["exec", "host", "--", "true"]):
        done = harness(*arguments, cwd=tmp_path)
        assert done.returncode == 2, arguments
        assert "hint:" in done.stderr
        assert "Traceback" not in done.stderr


def test_no_engine_is_3_with_a_hint_and_a_report(tmp_path: Path) -> None:
    scenario = ROOT / "scenarios" / "single-node.yml"
    done = harness("run", scenario, "--report", "out", cwd=tmp_path, environment=NO_ENGINE)
    assert done.returncode == 3
    assert "no Docker engine answers at unix:///nonexistent/docker.sock" in done.stdout
    assert "hint: start it" in done.stdout
    assert json.loads((tmp_path / "out" / "report.json").read_text())["verdict"] == "unknown"
    assert "Traceback" not in done.stderr


def test_doctor_without_an_engine_is_3_and_speaks_json(tmp_path: Path) -> None:
    done = harness("doctor", "--format", "json", cwd=tmp_path, environment=NO_ENGINE)
    assert done.returncode == 3
    findings = {finding["subject"]: finding for finding in json.loads(done.stdout)}
    assert findings["engine"]["ok"] is False
    assert findings["engine"]["mend"] is None, "an engine that the user chose is the user's to start"


def test_render_needs_no_engine(tmp_path: Path) -> None:
    done = harness("render", ROOT / "scenarios" / "federation.yml", "-o", "tree", cwd=tmp_path, environment=NO_ENGINE)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "tree" / "aws1" / "etc" / "slurm" / "slurm.conf").exists()


def test_version(tmp_path: Path) -> None:
    assert harness("--version", cwd=tmp_path).stdout.startswith("0.")
