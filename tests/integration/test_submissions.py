"""What becomes of a table of submissions under a policy, on real daemons."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.cluster import slurm
from harness.cluster.slurm import SlurmCluster
from harness.open_run import OpenRun
from harness.wait import wait_until
from sabotage import Sabotage, break_and_verify
from sabotage_policy import POLICY as SABOTAGES
from support import Done, Harness, command, deployed

POLICY = Path(__file__).with_name("policy.yml")
TABLE = Path(__file__).with_name("submissions.yml")
# The limit that a row of the table exceeds, its row, and what differs without the limit.
LIMIT, LONGER = 'MaxWall: "0:30:00"', 'MaxWall: "1:00:00"'
ROW = "too long for the QOS"
DIFFERENCES = f"""\
{ROW}
    outcome: waits -> starts
    reason: QOSMaxWallDurationPerJobLimit -> -
"""
TEST = """
def test_policy(slurm):
    answers = slurm.submissions({table!r})
    assert {{answer.outcome for answer in answers}} == {{"refused", "waits", "starts"}}
"""


@pytest.fixture(scope="module")
def policy(harness: Harness, runs: Path) -> Iterator[OpenRun]:
    with deployed(harness, runs, POLICY) as run:
        yield run


@pytest.fixture
def cluster(policy: OpenRun) -> SlurmCluster:
    return slurm.clusters(policy.ssh, policy.plan)["policy"]


@pytest.fixture
def longer(cluster: SlurmCluster) -> Iterator[None]:
    """The limit is raised."""

    def set_limit(value: str) -> None:
        cluster.run("sacctmgr", "-i", "modify", "qos", "quick", "set", f"MaxWall={value}")
        wait_until(
            lambda: cluster.run("scontrol", "show", "assoc_mgr", "qos=quick", "flags=qos").stdout,
            lambda text: f"MaxWallPJ={value}" in text,
            what=f"slurmctld to learn MaxWall={value}",
            timeout=60,
        )

    set_limit("60")
    yield
    set_limit("30")


@pytest.fixture
def asked(harness: Harness, policy: OpenRun) -> Callable[..., Done]:
    return lambda *options: harness("submissions", TABLE, "--run", policy.directory.path, *options)


def jobs_and_usage(cluster: SlurmCluster) -> tuple[set[int], int]:
    jobs = {job.job_id for job in cluster.jobs() if job.state != "CANCELLED"}
    return jobs, sum(usage.seconds for usage in cluster.usage())


def nothing_is_left(cluster: SlurmCluster, jobs: set[int], usage: int) -> bool:
    """Return whether a cluster has no more jobs, usage and reservations than before."""
    more_jobs, more_usage = jobs_and_usage(cluster)
    reservations = {reservation.name for reservation in cluster.reservations()}
    return more_jobs <= jobs and more_usage <= usage and reservations == {"course", "lab"}


@pytest.mark.core
def test_every_row_is_as_expected_and_nothing_has_run(
    asked: Callable[..., Done], cluster: SlurmCluster
) -> None:
    before = jobs_and_usage(cluster)
    done = asked("--format", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = {answer["row"]: answer for answer in json.loads(done.stdout)}
    assert len(found) == 20
    assert found["Lua shortens"]["changed"] == ["time: 45 -> 00:15:00"]
    assert nothing_is_left(cluster, *before)


@pytest.mark.core
@pytest.mark.usefixtures("longer")
def test_row_that_is_not_as_expected_is_named(asked: Callable[..., Done]) -> None:
    done = asked()
    assert done.returncode == 1, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    wrong = [number for number, line in enumerate(lines) if "not as expected" in line]
    assert [lines[number].split(": ", 1)[1] for number in wrong] == [
        'outcome: expected "waits", is "starts"',
        'reason: expected "QOSMaxWallDurationPerJobLimit", is ""',
    ]
    assert lines[wrong[0] - 1].startswith(f"starts   {ROW} ")


def test_checks_of_the_policy_pass(harness: Harness, policy: OpenRun) -> None:
    # Accounting must agree with the jobs that were preempted.
    checks = ("--select", "test_policy", "--select", "accounting_matches")
    done = harness("verify", "--run", policy.directory.path, *checks)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout


@pytest.mark.parametrize("sabotage", SABOTAGES, ids=str)
def test_check_fails_where_the_policy_differs(policy: OpenRun, sabotage: Sabotage) -> None:
    break_and_verify(policy, sabotage)


def test_only_the_row_whose_limit_differs_is_printed(harness: Harness, tmp_path: Path) -> None:
    other = tmp_path / "other.yml"
    text = POLICY.read_text()
    assert LIMIT in text
    other.write_text(text.replace(LIMIT, LONGER))
    done = harness("submissions", TABLE, POLICY, other, "--exit-code")
    assert (done.returncode, done.stdout) == (1, DIFFERENCES), done.stderr


def test_releases_have_the_same_policy(harness: Harness) -> None:
    releases = ("--release", "20.11", "--to", "26.05")
    done = harness("submissions", TABLE, POLICY, *releases, "--exit-code")
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def test_interrupt_leaves_no_job(
    environment: dict[str, str], policy: OpenRun, cluster: SlurmCluster
) -> None:
    before = jobs_and_usage(cluster)
    line = command("submissions", TABLE, "--run", policy.directory.path)
    with subprocess.Popen(
        line,
        env=environment,
        stdout=subprocess.DEVNULL,
        # A shell starts background processes with SIGINT ignored; a terminal does not.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        wait_until(
            lambda: [job for job in cluster.jobs() if job.state == "PENDING"],
            bool,
            what="a job of the table",
            timeout=400,
            interval=0.05,
            give_up=lambda _: process.poll() is not None,
        )
        process.send_signal(signal.SIGINT)
        assert process.wait(400) == 3
    assert nothing_is_left(cluster, *before)


def test_cluster_with_jobs_is_not_asked(asked: Callable[..., Done], cluster: SlurmCluster) -> None:
    job_id = cluster.submit("#!/bin/sh\n", "--hold", user="bob")
    try:
        done = asked()
    finally:
        cluster.run("scancel", str(job_id))
    assert (done.returncode, done.stdout) == (3, "")
    assert f"policy: 1 active jobs would affect the answers: {job_id} PENDING of bob" in done.stderr


@pytest.mark.parametrize("raised", [False, True])
def test_policy_can_be_tested_with_pytest(
    raised: bool,
    request: pytest.FixtureRequest,
    environment: dict[str, str],
    policy: OpenRun,
    tmp_path: Path,
) -> None:
    if raised:
        request.getfixturevalue("longer")
    (tmp_path / "test_policy.py").write_text(TEST.format(table=str(TABLE)))
    options = ("-p", "no:cacheprovider", "--harness-run", str(policy.directory.path))
    own = {name: value for name, value in environment.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "test_policy.py"],
        env=own,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == (1 if raised else 0), done.stdout + done.stderr
    if raised:
        assert f'{ROW}: starts; outcome: expected "waits", is "starts"' in done.stdout
