"""Every fault: it has its effect while it is active, and none once it is healed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from harness import faults
from harness.cluster import slurm
from harness.errors import CommandFailed, HarnessError
from harness.faults import Fault
from harness.open_run import OpenRun
from harness.wait import wait_until
from support import Harness, deployed

# Deadline in seconds for steps that take 20 s on an idle machine. slurmctld asks a node that was
# silent only every 100 s.
PATIENCE = 400


@dataclass(frozen=True)
class Case:
    """A fault, and a script on a host that prints "fine" without it and `effect` with it."""

    fault: Fault
    host: str
    script: str
    effect: str = ""

    def __str__(self) -> str:
        return str(self.fault)


def hears(host: str, port: int) -> str:
    """Return a script that says whether something listens on a port of a host."""
    return f"timeout 5 bash -c '< /dev/tcp/{host}/{port}' && echo fine"


SMALL_DISKS = """
description: Disks that can be filled.
clusters:
  small:
    controller: ctl
    nodes: [{name: n1, cpus: 4}]
    options:
      SchedulerParameters: batch_sched_delay=0,sched_min_interval=0,sched_interval=2
      MinJobAge: 3600
accounting: {host: db, accounts: {physics: {}}}
users: {alice: {uid: 2001, accounts: [physics]}}
disks:
  ctl: {/var/lib/slurm/slurmctld: 20M}
  db: {/var/lib/mysql: 600M}
"""
ANSWERS = "timeout 15 {} > /dev/null && echo fine"
CASES = [
    Case(
        Fault("leave-federation", "aws-ctl"),
        "aws-ctl",
        "scontrol show federation | grep --quiet 'Self:.*FedState:ACTIVE' && echo fine",
    ),
    Case(
        Fault("stop-daemon", "onprem-ctl", "slurmctld"),
        "onprem1",
        ANSWERS.format("scontrol ping | grep UP"),
    ),
    Case(
        Fault("kill-daemon", "onprem1", "slurmd"),
        "onprem1",
        "systemctl is-failed slurmd || echo fine",
        "failed",
    ),
    Case(
        Fault("pause-daemon", "accounting", "slurmdbd"),
        "onprem-ctl",
        ANSWERS.format("sacctmgr show cluster"),
    ),
    Case(
        # systemd restarts a munged that was killed, after 100 ms (Restart=on-abort).
        Fault("stop-daemon", "onprem2", "munge"),
        "onprem2",
        "munge -n > /dev/null && echo fine",
        # "Failed to connect to" it, or "to access" it once systemd has removed its directory.
        'munge.socket.2": ',
    ),
    Case(Fault("cut", "on-prem", "aws"), "onprem-ctl", hears("aws-ctl", 6817)),
    Case(
        Fault("cut", "onprem1", "onprem-ctl"), "onprem1", ANSWERS.format("scontrol ping | grep UP")
    ),
    Case(Fault("cut-one-way", "aws-ctl", "accounting"), "aws-ctl", hears("accounting", 6819)),
    Case(Fault("block-port", "accounting", "6819"), "aws-ctl", hears("accounting", 6819)),
    Case(Fault("forget-names", "onprem1"), "onprem1", ANSWERS.format("getent hosts onprem-ctl")),
    Case(Fault("step-clock", "aws4", "900"), "aws4", "munge -n | ssh-as-ctl", "Rewound credential"),
    Case(Fault("change-munge-key", "aws3"), "aws3", "munge -n | ssh-as-ctl", "Invalid credential"),
    Case(
        Fault("change-conf", "aws2", "# mine"),
        "aws2",
        "grep '# mine' /etc/slurm/slurm.conf || echo fine",
        "# mine",
    ),
    Case(
        Fault("change-database-password", "accounting"),
        "onprem-ctl",
        ANSWERS.format("sacctmgr show cluster"),
    ),
    Case(
        Fault("lose-database", "accounting"),
        "onprem-ctl",
        "sacctmgr --noheader show cluster format=cluster | grep on-prem > /dev/null && echo fine",
    ),
    Case(Fault("kill-host", "aws4"), "aws-ctl", hears("aws4", 6818)),
    Case(
        Fault("pause-host", "aws4"),
        "aws-ctl",
        "srun --immediate=15 --nodelist=aws4 true && echo fine",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_fault_has_its_effect_and_is_healed(federation: OpenRun, case: Case) -> None:
    def wait_until_fine(what: str) -> None:
        wait_until(
            lambda: look(federation, case), lambda seen: "fine" in seen, what=what, timeout=PATIENCE
        )

    wait_until_fine(f"all to be fine before {case} is injected")
    with faults.injected(federation, case.fault):
        wait_until(
            lambda: look(federation, case),
            lambda seen: "fine" not in seen and case.effect in seen,
            what=f"{case} to have its effect",
            timeout=PATIENCE,
        )
    wait_until_fine(f"{case} to be healed")
    wait_until_ready(federation)


def wait_until_ready(run: OpenRun) -> None:
    slurm.wait_until_ready(run.plan, slurm.clusters(run.ssh, run.plan), timeout=PATIENCE)


def look(run: OpenRun, case: Case) -> str:
    """Return what a case's script prints; `| ssh-as-ctl` pipes it to unmunge on aws-ctl."""
    script = case.script.removesuffix("| ssh-as-ctl")
    try:
        said = run.ssh.run(
            case.host, ["sh", "-c", f"{{ {script.strip()}; }} 2>&1"], check=False, timeout=60
        ).stdout
        if script != case.script:
            read = run.ssh.run("aws-ctl", ["unmunge"], stdin=said, check=False)
            said = "fine" if read.exit_code == 0 else read.stdout + read.stderr
    except HarnessError as error:
        said = type(error).__name__  # the command's text has "fine" in it
    return said


def test_slurmdbd_listens_as_soon_as_its_fault_is_healed(federation: OpenRun) -> None:
    with faults.injected(federation, Fault("stop-daemon", "accounting", "slurmdbd")):
        # slurmdbd cannot listen before its database answers. Timers can be a minute late.
        later = ["systemd-run", "--quiet", "--on-active=3", "--timer-property=AccuracySec=100ms"]
        for words, signal in (([], "STOP"), (later, "CONT")):
            command = [*words, "systemctl", "kill", f"--signal={signal}", "mariadb"]
            federation.ssh.run("accounting", command)
    listening = federation.ssh.run("accounting", ["ss", "-Hltn", "sport = :6819"])
    assert "6819" in listening.stdout


def test_rebooted_host_comes_back_with_its_daemons(federation: OpenRun) -> None:
    cluster = slurm.clusters(federation.ssh, federation.plan)["aws"]
    before = {node.name: node.slurmd_start or 0 for node in cluster.nodes()}
    with faults.injected(federation, Fault("reboot-host", "aws1")):
        wait_until(
            lambda: {node.name: node.slurmd_start or 0 for node in cluster.nodes()},
            lambda now: now["aws1"] > before["aws1"] and now["aws2"] == before["aws2"],
            what="slurmd of aws1 to register again",
            timeout=PATIENCE,
        )
    wait_until_ready(federation)


def test_fault_is_injected_listed_and_healed_from_the_command_line(
    federation: OpenRun, harness: Harness
) -> None:
    run = str(federation.directory.path)
    assert harness("fault", "inject", "stop-daemon", "aws1", "slurmd", "--run", run).returncode == 0
    assert "active: stop-daemon aws1 slurmd" in harness("fault", "list", "--run", run).stdout
    assert (
        federation.ssh.run("aws1", ["systemctl", "is-active", "slurmd"], check=False).stdout
        == "inactive\n"
    )
    assert harness("fault", "heal", "--run", run).returncode == 0
    assert federation.ssh.run("aws1", ["systemctl", "is-active", "slurmd"]).stdout == "active\n"
    done = harness("fault", "inject", "pause-daemon", "aws1", "slurmd", "--for", "1", "--run", run)
    assert done.returncode == 0, done.stderr
    listed = harness("fault", "list", "--run", run)
    assert (listed.returncode, "active" in listed.stdout) == (0, False), (
        listed.stdout + listed.stderr
    )
    refused = harness("fault", "inject", "fill-disk", "aws1", "/var/spool", "--run", run)
    assert refused.returncode == 2, refused.stdout
    assert "too large to fill" in refused.stderr
    wait_until_ready(federation)


def test_full_disks_lose_no_job_and_no_record(harness: Harness, runs: Path, tmp_path: Path) -> None:
    path = tmp_path / "small.yml"
    path.write_text(SMALL_DISKS)
    with deployed(harness, runs, path) as run:
        cluster = slurm.clusters(run.ssh, run.plan)["small"]

        def submit(body: str) -> int:
            return cluster.submit(f"#!/bin/sh\n{body}\n", "--output=/dev/null", user="alice")

        jobs = [submit("until [ -e /tmp/go ]; do sleep 0.2; done")]
        cluster.wait_for(jobs, {"RUNNING"})
        with faults.injected(run, Fault("fill-disk", "ctl", "/var/lib/slurm/slurmctld")):
            run.ssh.run("n1", ["touch", "/tmp/go"])
            with pytest.raises(CommandFailed, match="I/O error writing script/environment to file"):
                submit("true")
            cluster.wait_for(jobs, {"COMPLETED"})
        with faults.injected(run, Fault("fill-disk", "db", "/var/lib/mysql")):
            full = run.ssh.run(
                "db",
                ["dd", "if=/dev/zero", "of=/var/lib/mysql/more", "bs=64k", "count=1"],
                check=False,
            )
            assert "No space left on device" in full.stderr
            run.ssh.run("db", ["rm", "/var/lib/mysql/more"])
            jobs.append(submit("true"))
            cluster.wait_for(jobs, {"COMPLETED"})
        run.ssh.run("ctl", ["systemctl", "restart", "slurmctld"], timeout=PATIENCE)
        wait_until(
            lambda: {
                record.job_id: record.state
                for record in cluster.records("--local", "--allocations")
            },
            lambda states: states == dict.fromkeys(jobs, "COMPLETED"),
            what="both jobs to be recorded",
            timeout=PATIENCE,
            ignore=(CommandFailed,),
        )
        assert {job.job_id for job in cluster.jobs()} == {*jobs}, "slurmctld has saved them"
