"""The pytest plugin, as those use it who test programs of their own on genuine clusters."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness import lifecycle, providers, rundir
from support import SCENARIOS, Done

EXAMPLES = SCENARIOS.parent / "examples"
FAILING = """
def test_job_completes(slurm):
    slurm.submit("sleep 600")
    slurm.submit("echo this went wrong; exit 3").wait("COMPLETED")

def test_jobs_of_the_test_before_are_gone(slurm, clusters):
    assert slurm.jobs() == []
    assert {job.state for job in clusters["tiny"].jobs()} == {"CANCELLED", "COMPLETED", "FAILED"}
"""


@pytest.fixture(scope="module")
def session(environment: dict[str, str], runs: Path) -> Iterator[Callable[..., Done]]:
    """Run pytest on the examples' cluster, which stays up from one session to the next, and is gone at the end."""
    own = {name: value for name, value in environment.items() if not name.startswith("PYTEST_")}

    def run(*arguments: str | Path) -> Done:
        command = [sys.executable, "-m", "pytest", "--scenario", EXAMPLES / "cluster.yml", "--harness-keep", *arguments]
        return subprocess.run(command, env=own, cwd=EXAMPLES, capture_output=True, text=True, check=False)

    try:
        yield run
    finally:
        for one in rundir.all_runs(runs):
            if one.path.parent.name == "cluster":
                lifecycle.down(lifecycle.open_run(one, providers.get("docker"), print))


def test_examples_pass_clients_from_pypi_too(session: Callable[..., Done]) -> None:
    done = session("-p", "no:cacheprovider", "test_jobs.py", "test_clients.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout, "none may be skipped"


def test_failed_test_on_the_same_run_shows_its_job_and_the_daemons(
    session: Callable[..., Done], tmp_path: Path
) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_failing.py").write_text(FAILING)
    done = session("-p", "no:cacheprovider", tmp_path)
    assert "which is up" in done.stderr, "the session before has left it"
    assert "1 failed, 1 passed" in done.stdout, done.stdout
    for shown in (
        "COMPLETED: hopeless",
        "JobState=FAILED",
        "ExitCode=3:0",
        "accounting: batch FAILED, exit code 3:0, on tiny",
        "output:\nthis went wrong\n",
        "WEXITSTATUS 3",
    ):
        assert shown in done.stdout
    assert "tenacity" not in done.stdout, "the traceback ends with the line of the test"
