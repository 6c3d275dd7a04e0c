"""Helpers that the tests of the harness share."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import pytest

from harness import lifecycle, providers, rundir
from harness.open_run import OpenRun

SCENARIOS = Path(__file__).parents[2] / "scenarios"
# Reduces the scenario with many nodes to twenty.
SMALL_SCALE = (
    "--set",
    "clusters.scale.nodes.0.name=n[1-20]",
    "--set",
    "clusters.scale.hosts=sim[1-2]",
)
Done = subprocess.CompletedProcess[str]
Harness = Callable[..., Done]


# The program that `command_line` runs; conftest.py replaces it.
_HARNESS: tuple[str, ...] = (sys.executable, "-m", "harness")


def command(*arguments: str | Path) -> list[str]:
    """Return the command line of the harness in a process of its own, for signals and terminals."""
    return [sys.executable, "-m", "harness", *map(str, arguments)]


def environment_of(runs: Path) -> dict[str, str]:
    """Return the environment of a command line that keeps its runs' directories in `runs`."""
    return {**os.environ, "HARNESS_RUNS": str(runs), "NO_COLOR": "1"}


def command_line(environment: dict[str, str]) -> Harness:
    """Return a function that runs the harness with this environment as a user would."""

    def run(*arguments: str | Path) -> Done:
        return subprocess.run(
            [*_HARNESS, *map(str, arguments)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def kept(
    harness: Harness, runs: Path, scenario: str, *choices: str, quick: bool = False
) -> Iterator[OpenRun]:
    """Run a scenario, which must pass, and keep it up for tests that break it.

    With `quick`, run a single check.
    """
    path = SCENARIOS / f"{scenario}.yml"
    if quick:
        with deployed(harness, runs, path, *choices) as run:
            evaluation = lifecycle.verify(run, ["batch_job_runs_once"])
            assert evaluation.verdict() == "passed", evaluation
            yield run
        return
    done, run = new_run(harness, runs, "run", path, "--keep", *choices)
    try:
        assert done.returncode == 0, done.stdout + done.stderr
        yield run
    finally:
        lifecycle.down(run)


def new_run(harness: Harness, runs: Path, *words: str | Path) -> tuple[Done, OpenRun]:
    """Run a command; return its result, and the run that it created."""
    before = {run.id for run in rundir.all_runs(runs)}
    done = harness(*words)
    created = [run for run in rundir.all_runs(runs) if run.id not in before]
    assert len(created) == 1, done.stdout + done.stderr
    return done, lifecycle.open_run(created[0], providers.get(created[0].provider, runs), print)


def kept_up(scenario: str, *choices: str, scope: Literal["module", "session"] = "module") -> Any:
    """Return a fixture: a shipped scenario's run, passed and still up."""

    @pytest.fixture(scope=scope)
    def run(harness: Harness, runs: Path, passed_before: frozenset[str]) -> Iterator[OpenRun]:
        quick = scenario in passed_before
        yield from kept(harness, runs, scenario, *choices, quick=quick)

    return run


def sabotage_modules() -> list[ModuleType]:
    """Return sabotage.py and every sabotage_*.py beside it."""
    return [
        importlib.import_module(path.stem)
        for path in sorted(Path(__file__).parent.glob("sabotage*.py"))
    ]


def sabotages(scenario: str) -> list[Any]:
    """Return the sabotages that all modules list under a name, such as FEDERATION.

    Their ids are MODULE-SABOTAGE.
    """
    return [
        pytest.param(sabotage, id=f"{module.__name__.removeprefix('sabotage_')}-{sabotage}")
        for module in sabotage_modules()
        for sabotage in getattr(module, scenario, [])
    ]


@contextmanager
def deployed(harness: Harness, runs: Path, path: Path, *options: str) -> Iterator[OpenRun]:
    """Bring a scenario up, deploy it, and take it down at the end."""
    up, run = new_run(harness, runs, "up", path, *options)
    try:
        assert up.returncode == 0, up.stderr
        lifecycle.deploy(run)
        yield run
    finally:
        lifecycle.down(run)


def verified(harness: Harness, path: Path, checks: Iterable[str], *options: str) -> Done:
    """Bring a scenario up, deploy it, run some of its checks, and take it down."""
    up = harness("up", path, *options)
    assert up.returncode == 0, up.stderr
    try:
        deploy = harness("deploy", "--run", path.stem)
        assert deploy.returncode == 0, deploy.stdout + deploy.stderr
        return harness(
            "verify",
            "--run",
            path.stem,
            *(word for check in checks for word in ("--select", check)),
        )
    finally:
        harness("down", path.stem)
