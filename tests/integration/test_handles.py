"""The stages and daily handles of a run that is up."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from harness import lifecycle, providers, rundir, slurm
from harness.live import Live
from support import Harness


def starts(live: Live) -> dict[str, str]:
    """Return what systemd calls the present start of every daemon of every host; a reload is none."""
    return {
        f"{host.name} {daemon}": live.ssh.run(
            host.name, ["systemctl", "show", "--property=InvocationID", "--value", daemon]
        ).stdout.strip()
        for host in live.plan.hosts
        for daemon in host.daemons
    }


@pytest.mark.parametrize("scenario", ["single_node", "federation"])
def test_second_deploy_changes_and_restarts_nothing(
    scenario: str, harness: Harness, request: pytest.FixtureRequest
) -> None:
    live: Live = request.getfixturevalue(scenario)
    before = starts(live)
    done = harness("deploy", "--run", live.run.id)
    assert done.returncode == 0, done.stderr
    assert starts(live) == before
    newest = max((live.run.path / "artifacts").iterdir(), key=lambda path: path.stat().st_mtime)
    assert "changed=1" not in (newest / "stdout").read_text()


def test_changed_partition_is_taken_without_a_restart(single_node: Live, harness: Harness) -> None:
    before = starts(single_node)
    scenario = single_node.run.path / "scenario.yml"
    text = scenario.read_text()
    scenario.write_text(text.replace("cpus: 2", "cpus: 2\n    partitions: {main: {default: true}, second: {}}"))
    try:
        assert harness("deploy", "--run", "single-node").returncode == 0
        assert "second" in single_node.ssh.run("single", ["sinfo", "--noheader", "--format=%P"]).stdout
        assert starts(single_node) == before
    finally:
        scenario.write_text(text)
        assert harness("deploy", "--run", "single-node").returncode == 0
    assert "second" not in single_node.ssh.run("single", ["sinfo", "--noheader", "--format=%P"]).stdout


def test_exec_passes_arguments_and_exit_code_on(single_node: Live, harness: Harness) -> None:
    done = harness("exec", "single", "--run", "single-node", "--", "sh", "-c", "echo 'two  words'; exit 5")
    assert (done.stdout, done.returncode) == ("two  words\n", 5)


def test_exec_on_an_unknown_host_names_the_known_ones(single_node: Live, harness: Harness) -> None:
    done = harness("exec", "nowhere", "--run", "single-node", "--", "true")
    assert done.returncode == 2
    assert "hosts are single" in done.stderr


@pytest.mark.parametrize(
    ("daemon", "text"), [("slurmctld", "Running as primary controller"), ("slurmd", "slurmd started")]
)
def test_logs_shows_what_a_daemon_said(single_node: Live, harness: Harness, daemon: str, text: str) -> None:
    done = harness("logs", "single", daemon, "--lines", "500", "--run", "single-node")
    assert done.returncode == 0, done.stderr
    assert text in done.stdout


def test_status_lists_what_is_up(single_node: Live, harness: Harness) -> None:
    rows = json.loads(harness("status", "--format", "json").stdout)
    row = next(row for row in rows if row["run"] == single_node.run.id)
    assert row["hosts_up"] == ["single"]
    assert row["verdict"] == "passed"


def test_nothing_of_a_run_listens_beyond_loopback(single_node: Live) -> None:
    import docker

    container = docker.from_env().containers.get(f"{single_node.run.id}-single")
    published = [bind for binds in container.ports.values() for bind in binds or []]
    assert {bind["HostIp"] for bind in published} == {"127.0.0.1"}


def test_host_has_dockers_default_rights_only(single_node: Live) -> None:
    """The entry point drops what it needed to boot: no process may have more, not even root's."""
    status = single_node.ssh.run("single", ["cat", "/proc/1/status", "/proc/self/status"]).stdout
    bounding = {line.split()[1] for line in status.splitlines() if line.startswith("CapBnd")}
    assert bounding == {"00000000a80425fb"}  # capabilities(7): Docker's default fourteen


SMALL = """
clusters: {small: {controller: small-ctl, nodes: [{name: "small1"}]}}
accounting: {accounts: {physics: {}}}
users: {alice: {uid: 2001, accounts: [physics]}}
"""


def test_install_script_makes_a_cluster_of_machines_that_have_none(
    harness: Harness, runs: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    path, tree, programs = tmp_path / "small.yml", tmp_path / "tree", tmp_path / "bin"
    path.write_text(SMALL)
    programs.mkdir()
    refusing = ["sh", "-c", f"{tree}/install.sh"]
    assert harness("render", path, "--containers", "-o", tree).returncode == 0
    assert "secrets are missing" in subprocess.run(refusing, capture_output=True, text=True, check=False).stderr
    assert harness("render", path, "--containers", "--with-secrets", "-o", tree).returncode == 0
    assert harness("up", path).returncode == 0
    live = lifecycle.open_run(rundir.find(runs, "small"), providers.get("docker"), print)
    try:
        (programs / "ssh").write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {live.run.ssh_config} "$@"\n')
        (programs / "ssh").chmod(0o755)
        with_ssh = {**environment, "PATH": f"{programs}:{environment['PATH']}"}
        for _ in (1, 2):  # it may be run again
            done = subprocess.run(
                [tree / "install.sh"], env=with_ssh, capture_output=True, text=True, check=False, timeout=300
            )
            assert done.returncode == 0, done.stdout + done.stderr
        slurm.wait_until_ready(live.plan, slurm.clusters(live.ssh, live.plan))
        checks, _, problem = lifecycle.verify(live, ["batch_job_runs_once", "associations", "munge_credential"])
        assert {check.outcome for check in checks} == {"passed"}, problem
    finally:
        lifecycle.down(live)
