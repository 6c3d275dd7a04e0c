"""The pytest plugin, used to test users' own programs on real clusters."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness import lifecycle, providers, rundir
from support import SCENARIOS, Done

EXAMPLES = SCENARIOS.parent / "examples"
FINE = "def test_job(slurm): assert slurm.submit('true').wait().state == 'COMPLETED'"
FAILING = """
def test_job_completes(slurm):
    slurm.submit("sleep 600")
    slurm.submit("echo this went wrong; exit 3").wait("COMPLETED")

def test_jobs_of_the_previous_test_are_gone(slurm, clusters):
    assert slurm.jobs() == []
    assert {job.state for job in clusters["tiny"].jobs()} <= {"CANCELLED", "COMPLETED", "FAILED"}
"""
# slurmctld reuses the ids of jobs that were listed when the second test began.
LOST = """
from harness.wait import wait_until

AGAIN = []

def test_earlier_job(slurm):
    slurm.submit("true").wait()

def test_state_is_lost(slurm, clusters, harness_run):
    earlier = {job.job_id for job in clusters["tiny"].jobs()}
    lose = "systemctl kill -s KILL slurmctld; systemctl stop slurmctld; " + (
        "find $(sed -n s/^StateSaveLocation=//p /etc/slurm/slurm.conf) -type f -delete;"
        " systemctl start slurmctld"
    )
    harness_run.ssh.run("tiny", ["sh", "-c", lose], timeout=180)
    squeue = lambda: slurm.run("squeue", check=False).exit_code
    wait_until(squeue, lambda code: code == 0, what="squeue to answer", timeout=180)
    while not earlier & {*AGAIN}:
        assert not AGAIN or AGAIN[-1] <= max(earlier)
        AGAIN.append(slurm.submit("sleep 600").job_id)

def test_jobs_with_the_ids_of_earlier_ones_are_gone(slurm, clusters):
    assert slurm.jobs() == []
    assert {job.state for job in clusters["tiny"].jobs() if job.job_id in AGAIN} == {"CANCELLED"}
"""
# The node of the first test's cluster stays down.
BREAKING = """
def test_that_breaks_its_cluster(slurm, clusters):
    assert slurm.submit("true").job_id == 1
    clusters["tiny"].run("scontrol", "update", "NodeName=tiny", "State=DOWN", "Reason=broken")

def test_on_the_next_cluster(slurm):
    job = slurm.submit("true")
    assert (job.job_id, job.wait().state) == (1, "COMPLETED")
"""


@pytest.fixture(scope="module")
def session(
    environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Done]]:
    """A function that runs pytest on clusters that stay up until the module ends, if kept."""
    runs = tmp_path_factory.mktemp("runs-of-sessions")
    own = {name: value for name, value in environment.items() if not name.startswith("PYTEST_")}
    own["HARNESS_RUNS"] = str(runs)

    def run(*arguments: str | Path, keep: bool = True) -> Done:
        options = ["-p", "no:cacheprovider", "--scenario", EXAMPLES / "cluster.yml"]
        options += ["--harness-keep"] * keep
        command = [sys.executable, "-m", "pytest", *options, *arguments]
        return subprocess.run(
            command, env=own, cwd=EXAMPLES, capture_output=True, text=True, check=False
        )

    try:
        yield run
    finally:
        for directory in rundir.all_runs(runs):
            lifecycle.down(lifecycle.open_run(directory, providers.get("docker", runs), print))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's directory of tests."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


@pytest.mark.parametrize(
    ("files", "passed"),
    [
        pytest.param("test_jobs.py test_clients.py", 6, marks=pytest.mark.core),
        ("test_rest.py", 1),
        pytest.param("test_federation.py", 1, marks=pytest.mark.exhaustive),
    ],
)
def test_examples_pass_clients_from_pypi_too(
    files: str, passed: int, session: Callable[..., Done]
) -> None:
    done = session(*files.split())
    assert done.returncode == 0, done.stdout + done.stderr
    assert f" {passed} passed" in done.stdout, "none may be skipped"


def test_kept_run_is_used_by_the_next_session(session: Callable[..., Done], project: Path) -> None:
    (project / "test_fine.py").write_text(FINE)
    first, second = session(project), session(project)
    assert (first.returncode, second.returncode) == (0, 0), first.stdout + second.stdout
    assert "which is up" in second.stderr


def test_tests_may_have_new_clusters_each(session: Callable[..., Done], project: Path) -> None:
    (project / "test_breaking.py").write_text(BREAKING)
    done = session("--harness-scope", "function", project, keep=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.count("[deploy]") == 2


def test_jobs_are_cancelled_although_slurmctld_gives_ids_again(
    session: Callable[..., Done], project: Path
) -> None:
    (project / "test_lost.py").write_text(LOST)
    done = session(project)
    assert done.returncode == 0, done.stdout + done.stderr


def test_failed_test_shows_its_job_and_the_daemons(
    session: Callable[..., Done], project: Path
) -> None:
    (project / "test_failing.py").write_text(FAILING)
    done = session(project)
    assert "1 failed, 1 passed" in done.stdout, done.stdout
    for shown in (
        "to be COMPLETED cannot succeed any more",
        "JobState=FAILED",
        "ExitCode=3:0",
        "accounting: batch FAILED, exit code 3:0, on tiny",
        "output:\nthis went wrong\n",
        "WEXITSTATUS 3",
    ):
        assert shown in done.stdout
    assert "wait.py" not in done.stdout, "the traceback ends with the line of the test"
