"""The stages and everyday commands of an open run."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from harness import faults, lifecycle, providers, rundir
from harness.cluster import slurm
from harness.errors import CommandFailed, WaitTimeout
from harness.open_run import OpenRun
from harness.wait import wait_until
from support import SCENARIOS, Harness, command

# What deploy prints if there is nothing to do.
NOTHING_TO_DO = "nothing to do: every host has its files, and its daemons are running"


def starts(run: OpenRun) -> dict[str, str]:
    """Return systemd's invocation ID of every daemon on every host; a reload keeps it."""
    return {
        f"{host.name} {daemon}": run.ssh.run(
            host.name, ["systemctl", "show", "--property=InvocationID", "--value", daemon]
        ).stdout.strip()
        for host in run.plan.hosts
        for daemon in host.daemons
    }


@pytest.mark.parametrize(
    "scenario", [pytest.param("single_node", marks=pytest.mark.core), "federation"]
)
def test_second_deploy_changes_and_restarts_nothing(
    scenario: str, harness: Harness, request: pytest.FixtureRequest
) -> None:
    run: OpenRun = request.getfixturevalue(scenario)
    before = starts(run)
    done = harness("deploy", "--run", run.directory.id)
    assert done.returncode == 0, done.stderr
    assert NOTHING_TO_DO in done.stderr
    assert starts(run) == before
    # Errors that checks provoked before the deploy still do not count.
    done = harness("verify", "--run", run.directory.id, "--select", "started_without_an_error")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "drift",
    [
        "echo '# drift' >> /etc/slurm/slurm.conf",
        "chmod 0644 /etc/munge/munge.key",
        "rm /etc/slurm/cgroup.conf",
        "systemctl stop slurmd",
        "systemctl disable --quiet slurmctld",
    ],
)
def test_deploy_finds_and_repairs_drift(drift: str, single_node: OpenRun, harness: Harness) -> None:
    single_node.ssh.run("single", ["sh", "-c", drift])
    done = harness("deploy", "--run", single_node.directory.id)
    assert done.returncode == 0, done.stderr
    assert NOTHING_TO_DO not in done.stderr
    done = harness(
        "verify",
        "--run",
        single_node.directory.id,
        "--select",
        "every_file",
        "--select",
        "runs_its_daemons",
    )
    assert done.returncode == 0, done.stdout


def test_deploy_recreates_what_slurmdbd_has_lost(federation: OpenRun, harness: Harness) -> None:
    client = federation.plan.with_daemon("slurmctld")[0].name
    federation.ssh.run(client, ["sacctmgr", "--immediate", "delete", "user", "bob"])
    assert harness("deploy", "--run", federation.directory.id).returncode == 0
    done = harness("verify", "--run", federation.directory.id, "--select", "associations")
    assert done.returncode == 0, done.stdout


@contextmanager
def second_partition(run: OpenRun, harness: Harness) -> Iterator[None]:
    """Add a partition to the scenario; at the end, deploy the scenario without it."""
    scenario = run.directory.path / "scenario.yml"
    text = scenario.read_text()
    scenario.write_text(
        text.replace("cpus: 2", "cpus: 2\n    partitions: {main: {default: true}, second: {}}")
    )
    try:
        yield
    finally:
        scenario.write_text(text)
        assert harness("deploy", "--run", run.directory.id).returncode == 0
    wait_for_partitions(run, "main*")


def partitions(run: OpenRun) -> list[str]:
    return run.ssh.run("single", ["sinfo", "--noheader", "--format=%P"]).stdout.split()


def wait_for_partitions(run: OpenRun, *names: str) -> None:
    """Wait until slurmctld, which reloads on a signal, has these partitions."""
    wait_until(
        lambda: partitions(run),
        lambda seen: seen == [*names],
        what=f"slurmctld to have the partitions {', '.join(names)}",
        timeout=180,
        ignore=(CommandFailed,),
    )


def test_changed_partition_takes_effect_without_a_restart(
    single_node: OpenRun, harness: Harness
) -> None:
    before = starts(single_node)
    with second_partition(single_node, harness):
        done = harness("deploy", "--run", single_node.directory.id)
        assert (done.returncode, "Reconfigure single" in done.stderr) == (0, True), done.stderr
        assert partitions(single_node) == ["main*", "second"]
        assert starts(single_node) == before


def test_deploy_says_why_slurmctld_refuses_a_change_and_the_next_one_completes_it(
    single_node: OpenRun, harness: Harness
) -> None:
    plugin = "/usr/lib/*/slurm-wlm/priority_multifactor.so"
    path = single_node.ssh.run("single", ["sh", "-c", f"ls {plugin}"]).stdout.strip()
    single_node.ssh.run("single", ["mv", path, f"{path}.off"])
    with second_partition(single_node, harness):
        try:
            done = harness("deploy", "--run", single_node.directory.id)
        finally:
            single_node.ssh.run("single", ["mv", f"{path}.off", path])
        assert done.returncode != 0
        assert "single: scontrol reconfigure: failed" in done.stderr
        assert "cannot find priority plugin for priority/multifactor" in done.stderr
        assert harness("deploy", "--run", single_node.directory.id).returncode == 0
        wait_for_partitions(single_node, "main*", "second")


@pytest.mark.core
def test_exec_passes_arguments_and_exit_code_on(single_node: OpenRun, harness: Harness) -> None:
    done = harness(
        "exec",
        "single",
        "--run",
        single_node.directory.id,
        "--",
        "sh",
        "-c",
        "echo 'two  words'; exit 5",
    )
    assert (done.stdout, done.returncode) == ("two  words\n", 5)


def test_run_that_is_up_comes_before_newer_ones_that_are_not(
    single_node: OpenRun, harness: Harness, runs: Path
) -> None:
    assert harness("up", SCENARIOS / "single-node.yml").returncode == 0
    newer = rundir.find(runs, "single-node").id
    assert newer != single_node.directory.id
    assert harness("down", newer).returncode == 0
    assert harness("exec", "single", "--run", "single-node", "--", "true").returncode == 0


def test_exec_on_an_unknown_host_names_the_known_ones(
    single_node: OpenRun, harness: Harness
) -> None:
    done = harness("exec", "nowhere", "--run", single_node.directory.id, "--", "true")
    assert done.returncode == 2
    assert "hosts are single" in done.stderr


@pytest.mark.parametrize(
    ("daemon", "text"),
    [("slurmctld", "Running as primary controller"), ("slurmd", "slurmd started")],
)
def test_logs_shows_what_a_daemon_logged(
    single_node: OpenRun, harness: Harness, daemon: str, text: str
) -> None:
    done = harness("logs", "single", daemon, "--lines", "500", "--run", single_node.directory.id)
    assert done.returncode == 0, done.stderr
    assert text in done.stdout


def test_logs_follows_several_daemons_at_once(
    single_node: OpenRun, environment: dict[str, str]
) -> None:
    following = command("logs", "--follow", "--lines", "0", "--run", single_node.directory.id)
    with subprocess.Popen(
        following, env=environment, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        seen: list[str] = []
        reader = Thread(
            target=lambda: (
                seen.extend(iter(process.stdout.readline, "")) if process.stdout else None
            )
        )
        reader.start()

        def submitted() -> set[str]:
            single_node.ssh.run("single", ["srun", "true"], user="alice")
            return {
                name
                for line in list(seen)
                for name in ("slurmctld", "slurmd")
                if line.startswith(f"single {name} ")
            }

        try:
            wait_until(
                submitted,
                lambda names: len(names) == 2,
                what="both daemons to be followed",
                timeout=180,
                ignore=(CommandFailed, WaitTimeout),
            )
        finally:
            process.terminate()  # Ctrl-C is ignored by what a script starts in the background
            reader.join()
    assert process.returncode == 0


@pytest.mark.core
def test_shell_is_a_users_with_the_clusters_configuration(
    single_node: OpenRun, environment: dict[str, str]
) -> None:
    def shell(script: str, *options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command("shell", "--run", single_node.directory.id, *options),
            env=environment,
            input=script,
            capture_output=True,
            text=True,
            check=False,
        )

    done = shell("id -un; pwd; echo $SLURM_CONF; srun id -u; exit 4", "--user", "bob")
    assert (done.stdout.split(), done.returncode) == (
        ["bob", "/home/bob", "/etc/slurm/slurm.conf", "2002"],
        4,
    )
    assert shell("id -un").stdout == "alice\n", "unset, the first user"
    refused = shell("", "--user", "carol")
    assert (refused.returncode, "its users are alice, bob" in refused.stderr) == (2, True)


def test_verbose_shows_each_command_of_the_checks_too(
    single_node: OpenRun, harness: Harness
) -> None:
    done = harness(
        "verify", "--verbose", "--select", "interactive_job", "--run", single_node.directory.id
    )
    assert done.returncode == 0, done.stdout
    assert "alice@single$ srun " in done.stderr
    quiet = harness("verify", "--select", "interactive_job", "--run", single_node.directory.id)
    assert (quiet.returncode, "$ " in quiet.stderr) == (0, False), quiet.stderr


@pytest.mark.core
def test_status_lists_what_is_up(single_node: OpenRun, harness: Harness) -> None:
    def look() -> dict[str, Any]:
        rows = json.loads(harness("status", "--format", "json").stdout)
        return next(row for row in rows if row["run"] == single_node.directory.id)

    # A job of the previous test may be completing.
    row = wait_until(
        look,
        lambda row: row["clusters"]["single"].get("nodes") == {"IDLE": 1},
        what="status to list one idle node",
        timeout=180,
    )
    assert row["hosts_up"] == ["single"]
    assert row["verdict"] == "passed"


def test_status_does_not_wait_for_an_unreachable_cluster(
    single_node: OpenRun, harness: Harness
) -> None:
    with faults.injected(single_node, faults.Fault("stop-daemon", "single", "slurmctld")):
        rows = json.loads(harness("status", "--format", "json").stdout)
    row = next(row for row in rows if row["run"] == single_node.directory.id)
    # scontrol gives up before `status` does.
    assert "Unable to contact slurm controller" in row["clusters"]["single"]["problem"]


@pytest.mark.core
def test_nothing_of_a_run_listens_beyond_loopback(single_node: OpenRun) -> None:
    import docker

    container = docker.from_env(timeout=300).containers.get(f"{single_node.directory.id}-single")
    published = [bind for binds in container.ports.values() for bind in binds or []]
    assert {bind["HostIp"] for bind in published} == {"127.0.0.1"}


@pytest.mark.core
def test_host_has_dockers_default_rights_only(single_node: OpenRun) -> None:
    """The entry point drops the capabilities that only the boot needs, even those of root."""
    status = single_node.ssh.run("single", ["cat", "/proc/1/status", "/proc/self/status"]).stdout
    bounding = {line.split()[1] for line in status.splitlines() if line.startswith("CapBnd")}
    assert bounding == {"00000000a80425fb"}  # capabilities(7): Docker's default fourteen


SMALL = """
clusters: {small: {controller: small-ctl, nodes: [{name: "small1"}]}}
accounting: {accounts: {physics: {}}}
users: {alice: {uid: 2001, accounts: [physics]}}
"""


def test_install_script_turns_plain_machines_into_a_cluster(
    harness: Harness, runs: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    path, tree, programs = tmp_path / "small.yml", tmp_path / "tree", tmp_path / "bin"
    path.write_text(SMALL)
    programs.mkdir()
    refusing = ["sh", "-c", f"{tree}/install.sh"]
    assert harness("render", path, "--containers", "-o", tree).returncode == 0
    assert (
        "secrets are missing"
        in subprocess.run(refusing, capture_output=True, text=True, check=False).stderr
    )
    assert harness("render", path, "--containers", "--with-secrets", "-o", tree).returncode == 0
    assert harness("up", path).returncode == 0
    run = lifecycle.open_run(rundir.find(runs, "small"), providers.get("docker"), print)
    try:
        (programs / "ssh").write_text(
            f'#!/bin/sh\nexec /usr/bin/ssh -F {run.directory.ssh_config} "$@"\n'
        )
        (programs / "ssh").chmod(0o755)
        with_ssh = {**environment, "PATH": f"{programs}:{environment['PATH']}"}
        for _ in (1, 2):  # it may be run again
            done = subprocess.run(
                [tree / "install.sh"], env=with_ssh, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stdout + done.stderr
        slurm.wait_until_ready(run.plan, slurm.clusters(run.ssh, run.plan))
        evaluation = lifecycle.verify(
            run, ["batch_job_runs_once", "associations", "munge_credential"]
        )
        assert {check.outcome for check in evaluation.checks} == {"passed"}, evaluation.problem
    finally:
        lifecycle.down(run)


def test_logs_into_a_closed_pipe_is_not_an_error(
    single_node: OpenRun, environment: dict[str, str]
) -> None:
    logs = shlex.join(command("logs", "--lines", "5000", "--run", single_node.directory.id))
    script = f"{logs} | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_selection_that_selects_nothing_leaves_the_report(
    single_node: OpenRun, harness: Harness
) -> None:
    report = single_node.directory.path / "report.json"
    before = report.read_text()
    done = harness("verify", "--run", single_node.directory.id, "--select", "batch_jop_runs")
    assert done.returncode == 2
    assert (
        'no check has "batch_jop_runs" in its name\nhint: did you mean batch_job_runs'
        in done.stderr
    )
    assert report.read_text() == before
