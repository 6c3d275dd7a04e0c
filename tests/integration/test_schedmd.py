"""A small suite built like SchedMD's runs on real daemons, with the features that it needs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from harness.open_run import OpenRun
from harness.wait import wait_until
from support import SCENARIOS, Harness, deployed

# Each file reports its outcome in a different way, or needs something that the others do not.
SUITE = {
    "META": "  Major:\t24\n  Minor:\t11\n",
    "testsuite/python/tests/test_101_1.py": """
import os, pathlib, subprocess, time
import pytest

def test_job_on_another_host_writes_into_the_home(tmp_path):
    conf = pathlib.Path(os.environ["SLURM_TESTSUITE_CONF"]).read_text()
    assert conf.startswith("SlurmSourceDir=/home/")
    out = tmp_path / "out"
    subprocess.run(["sbatch", "--wait", f"--output={out}", "--wrap=hostname"], check=True)
    assert out.read_text() == "suite-sim1\\n"

@pytest.mark.parametrize("word", ["a*b"])
def test_fails(word):
    assert word == "x"

def test_skips():
    pytest.skip("this needs a miracle")
""",
    "testsuite/python/tests/test_102_1.py": """
import subprocess

def test_administrator_changes_accounting():
    subprocess.run(["sacctmgr", "-i", "modify", "user", "bob", "set", "fairshare=7"], check=True)
    subprocess.run(["sacctmgr", "-i", "add", "cluster", "left-behind"], check=True)
""",
    "testsuite/expect/test1.1": """
set timeout 120
spawn srun -N1 hostname
expect { "suite-sim1" { exit 0 } timeout { exit 1 } eof { exit 2 } }
""",
    "testsuite/expect/test1.2": """
puts "\\[2026-11-22 10:00:00\\] Fatal   this job is lost (fail@globals:431,test1.2:3)"
exit 1
""",
    "testsuite/expect/test1.3": "exit 255\n",
    "testsuite/expect/test1.4": "exec sudo scontrol update nodename=node0"
    " state=down reason=x\nsleep 600\n",
}
AS_IT_IS = """
quick = ["101_1", "102_1", "1.1"]
[failed]
"test_101_1::test_fails[a*b]" = "x is not y"
"test1.2" = "jobs get lost"
[skipped]
"test_101_1::test_skips" = "miracles are rare"
"test1.3" = "not here"
"""


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source tree with this suite, and lists of expected results beside it."""
    source = tmp_path_factory.mktemp("slurm") / "source"
    for name, text in SUITE.items():
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (source.parent / "as-it-is.toml").write_text(AS_IT_IS)
    (source.parent / "nothing.toml").write_text('[failed]\n"test1.1" = "srun is broken"\n')
    return source


@pytest.fixture(scope="module")
def cluster(
    harness: Harness, runs: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OpenRun]:
    """The scenario for the suite, with one node and the controller, and without its federation."""
    data = YAML(typ="safe").load(SCENARIOS / "schedmd-suite.yml")
    main = data["clusters"]["suite"]
    main |= {"hosts": "suite-sim1", "nodes": [{"name": "node0", "cpus": 4, "memory": 1000}]}
    del data["federations"]
    path = tmp_path_factory.mktemp("scenario") / "small-suite.yml"
    with path.open("w") as file:
        YAML().dump({**data, "clusters": {"suite": main}}, file)
    with deployed(harness, runs, path) as run:
        yield run


def test_suite_with_the_expected_results_passes(
    cluster: OpenRun, suite: Path, harness: Harness
) -> None:
    expected = suite.parent / "as-it-is.toml"
    select = (
        "--select",
        "101_*",
        "--select",
        "102_*",
        "--select",
        "1.1",
        "--select",
        "1.2",
        "--select",
        "1.3",
    )
    done = harness(
        "schedmd-suite", suite, "--run", cluster.directory.id, "--expected", expected, *select
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "AS EXPECTED  7 tests: 3 passed, 2 failed, 2 skipped" in done.stdout
    shown = cluster.ssh.run(
        "suite-ctl", ["sacctmgr", "-n", "-P", "show", "cluster", "format=cluster"]
    ).stdout
    assert shown == "suite\n"
    kept = cluster.directory.path / "schedmd-suite"
    assert {path.name for path in kept.glob("*.log")} == {
        "test_101_1.log",
        "test1.2.log",
        "test1.3.log",
    }
    report = json.loads((kept / "report.json").read_text())
    assert (report["user"], report["unexpected"], len(report["tests"])) == ("carol", [], 7)


def test_only_unexpected_results_are_printed_and_a_test_that_does_not_end_is_stopped(
    cluster: OpenRun, suite: Path, harness: Harness
) -> None:
    options = (
        "--expected",
        suite.parent / "nothing.toml",
        "--seconds",
        "90",
        "--select",
        "1.*",
        "--user",
        "alice",
    )
    done = harness("schedmd-suite", suite, "--run", cluster.directory.id, *options)
    assert done.returncode == 1, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == ["test1.1: passed", "    expected: failed (srun is broken)"]
    assert "test1.2: failed: this job is lost" in lines
    assert "test1.3: skipped: exit 255: no output" in lines
    assert "test1.4: failed: did not end within 90 s" in lines
    assert "4 NOT AS EXPECTED  4 tests: 1 passed, 2 failed, 1 skipped" in lines
    node = cluster.ssh.run("suite-ctl", ["scontrol", "--oneliner", "show", "node", "node0"]).stdout
    assert "State=IDLE" in node, node


def test_ordinary_user_cannot_do_an_administrators_work(
    cluster: OpenRun, suite: Path, harness: Harness
) -> None:
    expected = (
        "--expected",
        suite.parent / "nothing.toml",
        "--select",
        "102_1",
        "--format",
        "json",
    )
    done = harness(
        "schedmd-suite", suite, "--run", cluster.directory.id, "--user", "alice", *expected
    )
    assert done.returncode == 1
    (outcome,) = (one["outcome"] for one in json.loads(done.stdout)["unexpected"])
    assert (outcome["id"], outcome["status"]) == (
        "test_102_1::test_administrator_changes_accounting",
        "failed",
    )


def test_source_tree_of_another_release_is_refused(
    cluster: OpenRun, suite: Path, harness: Harness, tmp_path: Path
) -> None:
    (tmp_path / "META").write_text("Major: 25\nMinor: 05\n")
    done = harness("schedmd-suite", tmp_path, "--run", cluster.directory.id)
    assert done.returncode == 2
    assert "is Slurm 25.05, but the run has 24.11" in done.stderr


def test_home_is_shared_by_the_hosts_and_slurm_user_submits_jobs(
    cluster: OpenRun, harness: Harness
) -> None:
    run = ("--run", cluster.directory.id)
    done = harness(
        "exec", "suite-ctl", *run, "--user", "alice", "--", "sh", "-c", "pwd; echo shared > file"
    )
    assert (done.stdout, done.returncode) == ("/home/alice\n", 0), done.stderr
    done = harness("exec", "suite-sim1", *run, "--user", "alice", "--", "cat", "file")
    assert done.stdout == "shared\n", done.stderr
    done = harness(
        "exec",
        "suite-ctl",
        *run,
        "--user",
        "slurm",
        "--",
        "srun",
        "--chdir=/",
        "id",
        "--user",
        "--name",
    )
    assert done.stdout == "slurm\n", done.stderr
    done = harness("exec", "suite-ctl", *run, "--user", "nobody-here", "--", "true")
    assert (done.returncode, "has no user nobody-here" in done.stderr) == (2, True)


def test_detached_command_runs_on_as_its_user(cluster: OpenRun, harness: Harness) -> None:
    run = ("--run", cluster.directory.id)
    done = harness(
        "exec",
        "suite-ctl",
        *run,
        "--user",
        "bob",
        "--detach",
        "--",
        "sh",
        "-c",
        "id -un; pwd; exec sleep 600",
    )
    assert done.returncode == 0, done.stderr
    unit = done.stdout.strip()
    ssh = cluster.ssh
    assert ssh.run("suite-ctl", ["systemctl", "is-active", unit], check=False).stdout == "active\n"
    journal = ["journalctl", "--unit", unit, "--output=cat"]
    wait_until(
        lambda: ssh.run("suite-ctl", journal).stdout.splitlines(),
        lambda lines: {"bob", "/home/bob"} <= {*lines},
        what=f"{unit} to print its user and directory",
        timeout=90,
    )
    ssh.run("suite-ctl", ["systemctl", "stop", unit])


def test_files_go_to_a_host_and_come_back(
    cluster: OpenRun, harness: Harness, tmp_path: Path
) -> None:
    run = ("--run", cluster.directory.id)
    (tmp_path / "jobs" / "a").mkdir(parents=True)
    (tmp_path / "jobs" / "a" / "run.sh").write_text("#!/bin/sh\n")
    (tmp_path / "jobs" / "a" / "run.sh").chmod(0o755)
    assert harness("cp", tmp_path / "jobs", "suite-ctl:/srv", *run).returncode == 0
    listed = cluster.ssh.run("suite-ctl", ["stat", "--format=%U %a", "/srv/jobs/a/run.sh"]).stdout
    assert listed == "root 755\n"
    assert harness("cp", "suite-ctl:/srv/jobs/a", tmp_path / "back", *run).returncode == 0
    assert (tmp_path / "back" / "run.sh").read_text() == "#!/bin/sh\n"
    done = harness("cp", "suite-ctl:/none", tmp_path, *run)
    assert (done.returncode, "suite-ctl has no /none" in done.stderr) == (2, True)


def test_extended_image_has_the_packages_and_resolves_names_like_every_host(
    cluster: OpenRun, harness: Harness
) -> None:
    packages = cluster.plan.scenario.clusters["suite"].packages
    options = (word for package in packages for word in ("--package", package))
    done = harness("images", "extend", "24.11", *options)
    assert done.returncode == 0, done.stderr
    name = done.stdout.strip()
    assert name in harness("images", "list").stdout
    done = harness("images", "extend", "24.11", "--package", "no-such-package-at-all")
    assert done.returncode == 3
    assert "Unable to locate package no-such-package-at-all" in done.stderr
    assert (
        cluster.ssh.run("suite-ctl", ["grep", "^hosts:", "/etc/nsswitch.conf"]).stdout
        == "hosts: files\n"
    )
    assert (
        cluster.ssh.run("suite-ctl", ["sh", "-c", "command -v expect"]).stdout
        == "/usr/bin/expect\n"
    )
