"""Errors and interruptions: clear messages, the right exit code, nothing left behind."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import docker
import pytest

from harness import rundir
from harness.wait import wait_until
from support import SCENARIOS, Harness, command, command_line, environment_of

SINGLE_NODE = SCENARIOS / "single-node.yml"
# Deadlines in seconds for a run, which takes one minute on an idle machine, and for the cleanup of
# an interrupted one.
LONGEST_RUN, LONGEST_END = 900, 400


Left = Callable[[], list[str]]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Where this test's own runs keep their directories."""
    return tmp_path / "runs"


@pytest.fixture
def environment(runs: Path) -> dict[str, str]:
    """The environment of this test's own runs."""
    return environment_of(runs)


@pytest.fixture
def harness(environment: dict[str, str]) -> Harness:
    """Run the command line for this test's own runs."""
    return command_line(environment)


@pytest.fixture
def left(runs: Path) -> Left:
    """Return what this test's runs, and no others, have on the engine, and their sockets."""
    engine = docker.from_env(timeout=300)

    def listed() -> list[str]:
        there = rundir.all_runs(runs)
        own = [{"label": f"harness.run={run.id}"} for run in there]
        containers = [
            str(container.name)
            for run in own
            for container in engine.containers.list(all=True, filters=run)
        ]
        networks = [
            str(network.name) for run in own for network in engine.networks.list(filters=run)
        ]
        volumes = [str(volume.name) for run in own for volume in engine.volumes.list(filters=run)]
        sockets = [str(run.control_directory) for run in there if run.control_directory.exists()]
        return containers + networks + volumes + sockets

    return listed


def start(environment: dict[str, str], until: str) -> subprocess.Popen[str]:
    """Start a run with a volume, and return it when its progress shows `until`."""
    process = subprocess.Popen(
        command("run", SINGLE_NODE, "--set", "shared_directories=[/home]"),
        env=environment,
        text=True,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        # A shell starts background processes with SIGINT ignored; a terminal does not.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stderr
    for line in process.stderr:
        if until in line:
            return process
    pytest.fail(f"the run ended before it came to {until}")


@pytest.mark.parametrize("whole_group", [True, False], ids=["terminal", "one-process"])
@pytest.mark.parametrize(
    "stage",
    ["[up]", "[deploy]", pytest.param("Start the controllers", marks=pytest.mark.core), "[verify]"],
)
def test_interrupt_removes_everything_and_gives_no_verdict(
    stage: str, whole_group: bool, left: Left, environment: dict[str, str], runs: Path
) -> None:
    process = start(environment, stage)
    if whole_group:  # as Ctrl-C in a terminal does
        os.killpg(process.pid, signal.SIGINT)
    else:  # as a CI system does
        process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=LONGEST_END)
    assert process.returncode == 3, out
    assert "UNKNOWN" in out
    assert left() == []
    run = rundir.find(runs, "single-node")
    report = json.loads((run.path / "report.json").read_text())
    assert (report["verdict"], report["problem"]) == ("unknown", "interrupted")
    if stage != "[up]":
        assert (run.path / "logs" / "single" / "journal.log").stat().st_size > 0


@pytest.mark.parametrize("stage", ["[up]", "[deploy]", "[verify]"])
def test_repeated_signals_still_remove_everything(
    stage: str, left: Left, environment: dict[str, str], runs: Path
) -> None:
    with start(environment, stage) as process:
        process.send_signal(signal.SIGTERM)
        assert process.stderr
        for number, _ in enumerate(process.stderr):  # at any point of the cleanup
            process.send_signal((signal.SIGTERM, signal.SIGINT, signal.SIGHUP)[number % 3])
        assert process.stdout
        out = process.stdout.read()
    assert left() == []
    assert process.returncode == 3, out
    assert (
        json.loads((rundir.find(runs, "single-node").path / "report.json").read_text())["problem"]
        == "interrupted"
    )


@pytest.mark.parametrize("stage", ["[up]", "[deploy]", "[verify]"])
def test_terminal_that_closes_removes_everything(
    stage: str, left: Left, environment: dict[str, str], runs: Path
) -> None:
    terminal, end = pty.openpty()
    process = subprocess.Popen(
        ["setsid", "--ctty", "--wait", *command("run", SINGLE_NODE)],
        env=environment,
        stdin=end,
        stdout=end,
        stderr=end,
    )
    os.close(end)
    seen = ""
    while stage not in seen:
        seen += os.read(terminal, 1000).decode(
            errors="replace"
        )  # a read may end within a character
    os.close(terminal)  # the kernel sends SIGHUP, and writing to the terminal fails from now on
    process.wait()
    assert left() == []
    report = json.loads((rundir.find(runs, "single-node").path / "report.json").read_text())
    assert (report["verdict"], report["problem"]) == ("unknown", "interrupted")


def test_run_continues_when_its_progress_is_no_longer_read(
    left: Left, environment: dict[str, str]
) -> None:
    with start(environment, "[up]") as process:
        assert process.stderr
        process.stderr.close()
        assert process.stdout
        out = process.stdout.read()
    assert process.returncode == 0, out
    assert "PASSED" in out
    assert left() == []


@pytest.mark.alone
@pytest.mark.parametrize("stage", ["[up]", "[deploy]", "[verify]"])
def test_down_cleans_up_after_a_killed_run_without_its_directory(
    stage: str, left: Left, environment: dict[str, str], tmp_path: Path
) -> None:
    process = start(environment, stage)
    wait_until(
        left,
        bool,
        what="the run to have something on the engine",
        timeout=LONGEST_RUN,
        give_up=lambda _: process.poll() is not None,
        interval=0.01,
    )
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert left() != []
    elsewhere = {**environment, "HARNESS_RUNS": str(tmp_path)}
    done = subprocess.run(
        command("down", "--all"), env=elsewhere, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert left() == []


@pytest.mark.alone
@pytest.mark.skipif(os.geteuid() != 0, reason="other users' runs are for root to remove")
def test_only_root_removes_runs_of_other_users_and_only_on_request(harness: Harness) -> None:
    engine = docker.from_env(timeout=300)
    labels = {"harness.run": "theirs-20261122T041700-d94c01", "harness.uid": "54321"}
    network = engine.networks.create("slurm-harness-test-theirs", labels=labels, internal=True)
    try:
        assert labels["harness.run"] not in harness("status", "--format", "json").stdout
        assert harness("down", "--all").returncode == 0
        assert engine.networks.list(ids=[network.id])
        done = harness("down", "--all-users")
        assert f"removed {labels['harness.run']}" in done.stderr
        assert not engine.networks.list(ids=[network.id])
    finally:
        for left_over in engine.networks.list(ids=[network.id]):
            left_over.remove()


def test_two_runs_of_one_scenario_do_not_interfere(left: Left, environment: dict[str, str]) -> None:
    arguments = {
        "text": True,
        "env": environment,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
    }
    both = [subprocess.Popen(command("run", SINGLE_NODE), **arguments) for _ in range(2)]  # type: ignore[call-overload]
    for process in both:
        out, _ = process.communicate(timeout=LONGEST_RUN)
        assert process.returncode == 0, out
    assert left() == []


def test_subnet_in_use_is_reported(left: Left, harness: Harness, tmp_path: Path) -> None:
    scenario = tmp_path / "taken.yml"
    scenario.write_text(SINGLE_NODE.read_text() + "\nsites: {here: {subnet: 10.213.0.0/24}}\n")
    pool = docker.types.IPAMConfig(pool_configs=[docker.types.IPAMPool(subnet="10.213.0.0/16")])
    taken = docker.from_env(timeout=300).networks.create("slurm-harness-test-taken", ipam=pool)
    try:
        done = harness("run", scenario)
    finally:
        taken.remove()
    assert done.returncode == 3
    assert "cannot create the network of site here with subnet 10.213.0.0/24" in done.stdout
    assert "hint: another network has this subnet" in done.stdout
    assert "Traceback" not in done.stderr
    assert left() == []


def test_failed_task_is_reported_with_the_output_of_its_command(
    left: Left, harness: Harness, tmp_path: Path
) -> None:
    scenario = tmp_path / "refused.yml"
    scenario.write_text(
        SINGLE_NODE.read_text() + "\naccounting: {qos: {odd: {options: {GrpTRES: nonsense=3}}}}\n"
    )
    done = harness("run", scenario, "--report", tmp_path / "report")
    assert done.returncode == 3
    assert re.search("in slurmdbd: failed\nnon-zero return code\n(.*\n)*.*nonsense", done.stdout), (
        done.stdout
    )
    problem = json.loads((tmp_path / "report" / "report.json").read_text())["problem"]
    assert "nonsense" in problem
    assert left() == []


def test_daemon_that_does_not_start_is_reported_with_its_log(
    left: Left, harness: Harness, tmp_path: Path
) -> None:
    scenario = tmp_path / "broken.yml"
    scenario.write_text(
        SINGLE_NODE.read_text().replace(
            "    options:\n",
            "    options:\n      JobCompType: jobcomp/filetxt\n      JobCompLoc: /none-such/jobs\n",
        )
    )
    done = harness("run", scenario, "--report", tmp_path / "report")
    assert done.returncode == 3
    assert "last log lines of slurmctld on single:" in done.stdout
    assert "slurmctld of single has failed on single" in done.stdout
    assert "fatal: open /none-such/jobs: No such file or directory" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    html = (tmp_path / "report" / "report.html").read_text()
    assert re.search("<b>single/slurmctld.log</b> .*open /none-such/jobs", html), (
        "the daemon's log is quoted"
    )
    assert left() == []
