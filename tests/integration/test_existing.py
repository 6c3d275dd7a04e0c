"""Existing machines: containers stand in for them, with an ordinary user, sudo and a cluster."""

from __future__ import annotations

import io
import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import docker
import pytest

from harness import lifecycle, providers, releases, rundir
from harness.open_run import OpenRun
from harness.providers import CanPause, ability, images
from harness.providers.existing import host_side
from harness.wait import wait_until
from sabotage import UP
from support import Done, Harness, command

# The containers stand in for existing machines, so they use cgroups as those do.
LENT = """
description: A cluster on existing machines.
clusters:
  lent:
    controller: boss
    nodes: [{name: worker, cpus: 2, memory: 500}]
    options: {ProctrackType: proctrack/linuxproc, TaskPlugin: null,
              JobAcctGatherType: jobacct_gather/linux, SlurmdParameters: config_overrides}
    cgroup: {CgroupPlugin: disabled, ConstrainCores: null, ConstrainRAMSpace: null,
             ConstrainDevices: null}
accounting: {host: boss, accounts: {physics: {}}}
users: {alice: {uid: 2001, accounts: [physics]}}
"""
IMAGE = """
FROM {base}
RUN sed -i 's/^hosts:.*/hosts: files dns/' /etc/nsswitch.conf \
    && apt-get -o Acquire::Check-Valid-Until=false update \
    && apt-get install --yes --no-install-recommends sudo \
    && useradd --create-home carol && echo 'carol ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/carol
"""
# The cluster of the same name that the machines ran before, with a munge key of its own.
BEFORE = """
ClusterName=lent
SlurmctldHost=boss
SlurmUser=slurm
StateSaveLocation=/var/spool/before
SlurmdSpoolDir=/var/spool/before-d
ProctrackType=proctrack/linuxproc
NodeName=worker CPUs=1
PartitionName=before Nodes=ALL
"""
SETTLE = """
set -e
systemctl is-system-running --wait > /dev/null || true
install -d -o carol -m 0700 /home/carol/.ssh
install -o carol -m 0600 /root/.ssh/authorized_keys /home/carol/.ssh/authorized_keys
if [ "$(hostname)" = boss ]; then
    head -c 64 /dev/zero > /etc/munge/munge.key
    chown munge: /etc/munge/munge.key && chmod 0400 /etc/munge/munge.key
    mkdir -p /etc/slurm && cat > /etc/slurm/slurm.conf && install -d -o slurm /var/spool/before
    systemctl enable --quiet --now munge slurmctld
fi
"""
# Everything that a run may touch: files with owners, modes and contents, users, units, databases.
PICTURE = f"""
cd / && find etc home usr/local var/lib/slurm* var/log/slurm* var/tmp var/spool ! -path '*/.ssh*' \
    ! -path 'var/spool/before*' ! -name '*-' ! -name .pwd.lock -printf '%p %y %u %g %m %l\\n' | sort
find etc home usr/local var/lib/slurm* -type f ! -name '*-' -exec sha256sum {{}} + | sort
systemctl show --property=Id,ActiveState,UnitFileState \
    munge mariadb slurmdbd slurmctld slurmd slurmrestd
ls /var/lib/mysql | grep slurm
! systemctl is-active --quiet slurmctld || {{
    {UP}
    scontrol show partition | grep PartitionName
}}
true
"""


@dataclass
class Strangers:
    """The machines, as their owner sees them, and how the user runs the harness on them."""

    owner: OpenRun
    harness: Harness
    environment: dict[str, str]
    scenario: Path
    inventory: Path

    def words(self, verb: str, *more: str) -> list[str | Path]:
        return [verb, self.scenario, "--provider", "existing", "--inventory", self.inventory, *more]

    def run(self, verb: str, *more: str) -> Done:
        return self.harness(*self.words(verb, *more))

    def shell(self, host: str, script: str, stdin: str = "") -> str:
        return self.owner.ssh.run(host, ["sh", "-c", script], stdin=stdin, timeout=300).stdout

    def picture(self, *hosts: str) -> set[str]:
        """Return the state of the machines, or of some of them, as lines."""
        return {
            f"{host}: {line}"
            for host in hosts or ("boss", "worker")
            for line in self.shell(host, PICTURE).splitlines()
        }


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    """A host with sudo and an ordinary user."""
    client = docker.from_env(timeout=300)
    base = images.ensure(client, releases.get(releases.DEFAULT), print)
    built, _ = client.images.build(
        fileobj=io.BytesIO(IMAGE.format(base=base).encode()),
        tag="slurm-harness-test:stranger",
        rm=True,
    )
    yield built.tags[0]
    client.images.remove(built.tags[0], force=True)


@pytest.fixture(scope="module")
def strangers(
    image: str,
    environment: dict[str, str],
    harness: Harness,
    runs: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Strangers]:
    """Two machines: one runs the controller of a cluster called lent, the other runs nothing."""
    directory = tmp_path_factory.mktemp("strangers")
    machines, scenario = directory / "machines.yml", directory / "lent.yml"
    machines.write_text(
        LENT.replace("    controller", f"    image: {image}\n    controller").replace(
            "host: boss", f"host: boss, image: '{image}'"
        )
    )
    scenario.write_text(LENT)
    up = harness("up", machines)
    owner = lifecycle.open_run(rundir.find(runs, "machines"), providers.get("docker"), print)
    try:
        assert up.returncode == 0, up.stderr
        own, inventory = directory / "ssh_config", directory / "hosts.ini"
        known = directory / "known_hosts"
        _, host_key = (owner.directory.path / "known_hosts").read_text().split(" ", 1)
        ports = dict.fromkeys(("boss", "worker"), "")
        for host in ports:
            owner.ssh.run(host, ["sh", "-c", SETTLE], stdin=BEFORE, timeout=300)
            config = subprocess.run(
                ["ssh", "-G", "-F", owner.directory.ssh_config, host],
                capture_output=True,
                text=True,
                check=True,
            )
            ports[host] = next(
                line.split()[1] for line in config.stdout.splitlines() if line.startswith("port ")
            )
        known.write_text("".join(f"[127.0.0.1]:{port} {host_key}" for port in ports.values()))
        own.write_text(f"UserKnownHostsFile {known}\nUser carol\n")
        lines = [
            f"{host} ansible_host=127.0.0.1 ansible_port={port}" for host, port in ports.items()
        ]
        lines += ["[all:vars]", f"ansible_ssh_private_key_file={owner.directory.key('ssh_key')}"]
        inventory.write_text("\n".join(lines) + "\n")
        theirs = environment | {
            "HARNESS_SSH_CONFIG": str(own),
            "HARNESS_RUNS": str(directory / "runs"),
        }

        def run(*arguments: str | Path) -> Done:
            return subprocess.run(
                command(*arguments), env=theirs, capture_output=True, text=True, check=False
            )

        yield Strangers(owner, run, theirs, scenario, inventory)
    finally:
        lifecycle.down(owner)


@pytest.fixture(autouse=True)
def given_back(strangers: Strangers) -> Iterator[None]:
    """Give back machines that a failed test still holds, restored for the next test."""
    yield
    script = f"cat {host_side.HELD}/record.json 2> /dev/null || true"
    records = [strangers.shell(host, script) for host in ("boss", "worker")]
    for run_id in {json.loads(text)["run"]["id"] for text in records if text}:
        strangers.harness(
            "down", "--provider", "existing", "--inventory", strangers.inventory, run_id
        )


def test_changes_are_shown_and_nothing_changes_without_consent(strangers: Strangers) -> None:
    before = strangers.picture()
    done = strangers.run("run", "--check")
    assert done.returncode == 0, done.stderr
    assert "-PartitionName=before Nodes=ALL" in done.stdout
    assert 'u alice 2001 "Cluster user alice" /home/alice /bin/bash' in done.stdout, (
        "text of a new file"
    )
    assert "owner    /home/alice: none -> alice alice 0700" in done.stdout
    assert "daemon   munge restarts" in done.stdout
    assert "daemon   slurmd starts" in done.stdout
    assert "user     alice is created" in done.stdout
    done = strangers.run("run")
    assert done.returncode == 2
    assert "error: nothing was changed\nhint: --yes makes the changes" in done.stderr
    assert sorted(strangers.picture() ^ before) == []


def assert_refused(strangers: Strangers, reason: str) -> None:
    """Assert that a run is a usage error with this reason, and changes nothing on the machines."""
    before = strangers.picture()
    done = strangers.run("run", "--yes")
    assert done.returncode == 2
    assert reason in done.stderr
    assert sorted(strangers.picture() ^ before) == []


def test_host_that_runs_another_cluster_is_refused(strangers: Strangers) -> None:
    strangers.shell(
        "worker", "mkdir -p /etc/slurm && echo ClusterName=foreign > /etc/slurm/slurm.conf"
    )
    try:
        assert_refused(
            strangers, "worker: /etc/slurm/slurm.conf belongs to cluster foreign, not to lent"
        )
    finally:
        strangers.shell("worker", "rm /etc/slurm/slurm.conf")


def test_existing_account_or_database_is_refused_and_still_works(strangers: Strangers) -> None:
    make = {
        "account slurm@localhost": "CREATE USER slurm@localhost IDENTIFIED BY 'sesame'",
        "database slurm_acct_db": "CREATE DATABASE slurm_acct_db;"
        " CREATE TABLE slurm_acct_db.theirs (x INT)",
    }
    works = {
        "account slurm@localhost": "mariadb --user=slurm --password=sesame --execute 'SELECT 1'",
        "database slurm_acct_db": "mariadb slurm_acct_db --execute 'SELECT * FROM theirs'",
    }
    try:
        for what, statements in make.items():
            strangers.shell("boss", f'systemctl start mariadb && mariadb --execute "{statements}"')
            for state in ("start", "stop"):
                strangers.shell("boss", f"systemctl {state} mariadb")
                before = strangers.picture()
                done = strangers.run("run", "--yes")
                assert done.returncode in {2, 3}
                assert re.search(f"already has (an? )?{what}", done.stdout + done.stderr)
                assert sorted(strangers.picture() ^ before) == []
                strangers.shell("boss", f"systemctl start mariadb && {works[what]}")
            strangers.shell("boss", 'mariadb --execute "DROP USER IF EXISTS slurm@localhost"')
    finally:
        drop = "DROP USER IF EXISTS slurm@localhost; DROP DATABASE IF EXISTS slurm_acct_db"
        strangers.shell(
            "boss", f'systemctl start mariadb; mariadb --execute "{drop}"; systemctl stop mariadb'
        )


def test_directory_that_other_machines_may_share_is_refused(strangers: Strangers) -> None:
    strangers.shell(
        "worker", "mkdir -p /etc/slurm && mv /etc/slurm /home/slurm && ln -s /home/slurm /etc/slurm"
    )
    try:
        assert_refused(strangers, "worker: /etc/slurm is a link to /home/slurm")
    finally:
        strangers.shell("worker", "rm /etc/slurm && mv /home/slurm /etc/slurm")


def test_machines_that_lack_something_are_refused_with_the_reason_and_unchanged(
    strangers: Strangers,
) -> None:
    strangers.shell(
        "worker",
        "chmod 0644 /etc/sudoers.d/carol; mv /etc/sudoers.d/carol /root; mv /usr/sbin/slurmd /root",
    )
    try:
        done = strangers.run("up", "--yes")
        assert done.returncode == 3
        assert "hint: allow sudo without a password" in done.stderr
        strangers.shell("worker", "mv /root/carol /etc/sudoers.d")
        done = strangers.run("up", "--yes")
        assert done.returncode == 2
        assert "worker: it lacks packages: apt-get install slurmd" in done.stderr
    finally:
        strangers.shell(
            "worker", "mv /root/carol /etc/sudoers.d 2>/dev/null; mv /root/slurmd /usr/sbin"
        )


def test_machines_are_restored_completely_and_held_exclusively(strangers: Strangers) -> None:
    before = strangers.picture()
    up = strangers.run("up", "--yes")
    assert up.returncode == 0, up.stderr
    run = rundir.find(Path(strangers.environment["HARNESS_RUNS"]), None)
    try:
        deployed = strangers.harness("deploy", "--yes")
        assert deployed.returncode == 0, deployed.stderr
        some = ["every_file", "runs_its_daemons", "batch_job", "registered_with"]
        verified = strangers.harness("verify", *(word for name in some for word in ("-k", name)))
        assert verified.returncode == 0, verified.stdout + verified.stderr
        again = strangers.harness("deploy", "--check")
        assert again.stdout == "boss\n  nothing changes\nworker\n  nothing changes\n"
        second = strangers.run("run", "--yes")
        assert second.returncode == 2
        assert f"worker: run {run.id} of " in second.stderr
        strangers.shell(
            "boss", "runuser -u alice -- sbatch --chdir=/tmp --output=/dev/null --wrap='sleep 1000'"
        )
    finally:
        down = strangers.harness("down")
    assert down.returncode == 0, down.stderr
    assert sorted(strangers.picture() ^ before) == []


def test_run_that_was_killed_is_given_back_even_if_its_directory_is_lost(
    strangers: Strangers,
) -> None:
    before = strangers.picture()
    with begun(strangers) as process:
        process.kill()
    runs = Path(strangers.environment["HARNESS_RUNS"])
    run = rundir.find(runs, None)
    run.path.rename(runs / "elsewhere")
    down = strangers.harness(
        "down", "--provider", "existing", "--inventory", strangers.inventory, run.id
    )
    assert down.returncode == 0, down.stderr
    assert sorted(strangers.picture() ^ before) == []


def test_unreachable_host_is_reported_and_given_back_when_it_answers_again(
    strangers: Strangers,
) -> None:
    before = strangers.picture()
    owner = strangers.owner
    with begun(strangers) as process:
        provider = ability(owner.provider, CanPause, "test")
        provider.pause(owner.directory.id, "worker")
        try:
            output, _ = process.communicate(timeout=900)
        finally:
            provider.unpause(owner.directory.id, "worker")
    assert process.returncode == 3
    assert "worker could not be restored" in output
    assert "again to restore the remaining hosts" in output
    assert sorted(strangers.picture("boss") - before) == []
    down = strangers.harness("down")
    assert down.returncode == 0, down.stderr
    assert sorted(strangers.picture() ^ before) == []


@contextmanager
def begun(strangers: Strangers) -> Iterator[subprocess.Popen[str]]:
    """Start a run, and yield it once it has replaced the worker's files, before slurmd starts."""
    words = command(*strangers.words("run", "--yes"))
    with subprocess.Popen(
        words, env=strangers.environment, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            wait_until(
                lambda: strangers.shell("worker", "ls /var/lib/slurm-harness"),
                lambda seen: "files.json" in seen,
                what="files to be on worker",
                timeout=300,
                interval=0.1,
                give_up=lambda _: process.poll() is not None,
            )
            yield process
        finally:
            process.kill()
