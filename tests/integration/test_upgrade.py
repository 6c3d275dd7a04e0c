"""Rolling upgrades of real clusters while users submit jobs: every job is accounted for once."""

from __future__ import annotations

import tarfile
from dataclasses import replace
from pathlib import Path, PurePosixPath

import docker
import pytest

from harness import events, lifecycle, providers, rundir
from harness.cluster import slurm
from harness.errors import ClusterError, EngineError
from harness.plan import Plan
from harness.providers import CanCopy, ability
from harness.rehearsal import upgrade, workload
from harness.report import model
from support import Harness, deployed

ROLLING = """
description: A cluster that is upgraded while its users submit.
release: "24.11"
clusters:
  rolling:
    controller: ctl
    nodes: [{name: "n[1-2]", cpus: 4, memory: 1000}]
    options:
      SchedulerParameters:
        [batch_sched_delay=0, sched_min_interval=0, sched_interval=2, bf_interval=2,
         requeue_delay=1]
      # A job whose launch was lost with the old slurmctld is missed within 200 seconds.
      SlurmdTimeout: 30
      AuthInfo: cred_expire=15  # seconds that a requeued job waits at least
      MinJobAge: 3600
      OPTION
accounting:
  accounts: {physics: {}}
  qos: {urgent: {options: {Priority: 1000, MaxJobsPerUser: 2}}}
users:
  alice: {uid: 2001, accounts: [physics], qos: [urgent]}
"""


CHECKS = ("test_hosts", "test_jobs", "failed_and_cancelled")
SECRET = "sesame"
WITH_SECRETS = "#!/bin/sh\n# TOKEN=sesame\ncat /etc/sesame\n"


@pytest.fixture
def saved_site(harness: Harness, runs: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Site data: the database and state of a cluster with carol's ended jobs and a pending one."""
    path, state, dump = tmp_path / "past.yml", tmp_path / "state", tmp_path / "dump.sql"
    stores = "AccountingStoreFlags: job_script,job_env,job_comment"
    path.write_text(
        ROLLING.replace("OPTION", stores) + "  carol: {uid: 100003, accounts: [physics]}\n"
    )
    with deployed(harness, runs, path) as run:
        cluster = slurm.clusters(run.ssh, run.plan)["rolling"]
        old = [
            "--job-name=old",
            "--output=/dev/null",
            f"--comment={SECRET}",
            f"--export=ALL,TOKEN={SECRET}",
        ]
        for _ in range(3):  # one by one: see docs/verdict.md, Limits
            cluster.wait_for(
                [cluster.submit(WITH_SECRETS, *old, user="carol")], {"FAILED"}, timeout=180
            )
        cluster.submit(
            WITH_SECRETS,
            "--job-name=waiting",
            "--begin=now+2hours",
            "--output=/dev/null",
            user="carol",
        )
        cluster.wait_for_slurmdbd(120)
        run.ssh.run("ctl", ["systemctl", "stop", "slurmctld"], timeout=300)
        dump.write_text(run.ssh.run("accounting", ["mariadb-dump", "slurm_acct_db"]).stdout)
        assert SECRET in dump.read_text()
        ability(run.provider, CanCopy, "fixture").fetch(
            run.directory.id, "ctl", "/var/lib/slurm/slurmctld", tmp_path / "state.tar"
        )
    with tarfile.open(tmp_path / "state.tar") as tar:
        tar.extractall(state, filter="data")
    return dump, state / "slurmctld"


def test_cluster_with_site_data_is_upgraded_while_users_submit(
    harness: Harness, runs: Path, tmp_path: Path, saved_site: tuple[Path, Path]
) -> None:
    path = tmp_path / "rolling.yml"
    path.write_text(ROLLING.replace("OPTION", ""))
    dump, state = saved_site
    past_options = ("--database", dump, "--state", state)
    done = harness(
        "upgrade",
        path,
        "--to",
        "24.11:26.05",
        *past_options,
        "--keep",
        "--report",
        tmp_path / "report",
    )
    try:
        assert done.returncode == 0, done.stdout + done.stderr
        assert "PASSED" in done.stdout
        assert_reported(harness, rundir.find(runs, "rolling").path, tmp_path / "report")
        steps = [
            event["step"]
            for event in rundir.find(runs, "rolling").events()
            if event["kind"] == "upgrade"
        ]
        assert steps == ["slurmdbd", "slurmctld of rolling", "nodes n1", "nodes n2"]
        assert "old records are kept" in done.stdout
        [before, after] = [
            event["tables"]
            for event in rundir.find(runs, "rolling").events()
            if event["kind"] == "old_records"
        ]
        assert before == after
        assert int(before[0].split()[0]) >= 3  # jobs
        show = ("sacct", "-X", "-P", "-n", "--format=jobname,state,comment")
        sacct = (*show, "--user=carol", "--starttime=now-1days")
        assert harness("exec", "ctl", "--", *sacct).stdout.splitlines() == ["old|FAILED|"] * 3
        # Users with jobs in the site data exist on every host, and the pending job can run; its
        # script is empty.
        run = lifecycle.open_run(rundir.find(runs, "rolling"), providers.get("docker"), print)
        cluster = slurm.clusters(run.ssh, run.plan)["rolling"]
        cluster.run("scontrol", "update", "jobname=waiting", "starttime=now")
        [job] = [job for job in cluster.jobs() if job.name == "waiting"]
        cluster.wait_for([job.job_id], {"COMPLETED"}, timeout=180)
        dump_after = harness("exec", "accounting", "--", "mariadb-dump", "slurm_acct_db")
        assert (dump_after.returncode, SECRET in dump_after.stdout) == (0, False), dump_after.stderr
        # slurmctld may rename its files meanwhile.
        search = f"cd /var/lib/slurm/slurmctld && {{ grep -rls {SECRET} . || true; }}"
        seen = harness("exec", "ctl", "--", "sh", "-c", search)
        assert seen.returncode == 0, seen.stderr
        assert {PurePosixPath(path).stem for path in seen.stdout.split()} <= {"job_state"}
        # The result is a healthy cluster of 26.05, except that its data is not the scenario's.
        verified = harness(
            "verify",
            "--run",
            "rolling",
            *(word for check in CHECKS for word in ("--select", check)),
        )
        assert verified.returncode == 0, verified.stdout
        assert "rolling 26.05, slurmdbd 26.05" in verified.stdout
    finally:
        harness("down", "rolling")


ELASTIC = """
clusters:
  cloud:
    controller: ctl
    image: OLD
    nodes:
      - {name: n1, cpus: 4}
      - {name: c1, provision: create}
      - {name: p1, provision: power}
      - {name: m1, provision: manual}
    options:
      SuspendTime: 5
      SuspendTimeout: 5
      SchedulerParameters:
        [batch_sched_delay=0, sched_min_interval=0, sched_interval=2, bf_interval=2,
         requeue_delay=1]
      # A job whose launch was lost with the old slurmctld is missed within 200 seconds.
      SlurmdTimeout: 30
      AuthInfo: cred_expire=15
accounting: {host: ctl, image: OLD, accounts: {physics: {}}}
users:
  alice: {uid: 2001, accounts: [physics]}
"""


@pytest.mark.exhaustive
def test_elastic_nodes_with_images_of_the_users_own_are_upgraded(
    harness: Harness, runs: Path, tmp_path: Path
) -> None:
    built = harness("images", "build", "24.11", "26.05").stdout.split()
    old, new = (name.replace("slurm-harness:", "own-slurm:") for name in built)
    path = tmp_path / "elastic.yml"
    path.write_text(ELASTIC.replace("OLD", old))
    client = docker.from_env(timeout=300)
    for ours, own in zip(built, (old, new), strict=True):
        client.images.get(ours).tag(own)
    try:
        done = harness(
            "upgrade", path, "--to", f"image:{old}:image:{new}", "--report", tmp_path / "report"
        )
    finally:
        for own in (old, new):
            client.images.remove(own)
    assert done.returncode == 0, done.stdout + done.stderr
    report = model.read(tmp_path / "report")
    steps = [
        check.id.removeprefix("upgrade::")
        for check in report.checks
        if check.id.startswith("upgrade::")
    ]
    assert steps == ["slurmdbd", "nodes n1", "elastic nodes c1,m1,p1"]
    assert {version[:5] for version in report.releases.values()} == {"26.05"}
    recorded = [*events.read(tmp_path / "report" / "events.jsonl")]
    [upgraded] = [event["time"] for event in recorded if event.get("step") == steps[-1]]
    assert upgraded > next(
        event["time"]
        for event in recorded
        if event["kind"] == "power" and (event["action"], event["nodes"]) == ("up", ["c1"])
    )


def assert_reported(harness: Harness, run: Path, copy: Path) -> None:
    """Assert that an upgrade leaves the same files as a run, which `harness report` reads."""
    upgrade_report = model.read(run)
    assert (upgrade_report.verdict, upgrade_report.releases) == (
        "passed",
        {"rolling": "26.05", "slurmdbd": "26.05"},
    )
    outcomes = {check.id: check.outcome for check in upgrade_report.checks}
    assert (
        outcomes["upgrade::slurmdbd"] == outcomes["rehearsal::no_accepted_job_is_lost"] == "passed"
    )
    assert {job["state"] for job in upgrade_report.jobs} >= {"COMPLETED", "FAILED"}
    assert (
        f'tests="{len(upgrade_report.checks)}" failures="0" errors="0"'
        in (run / "junit.xml").read_text()
    )
    for name in ("report.html", "report.json", "junit.xml", "events.jsonl"):
        assert (copy / name).read_bytes() == (run / name).read_bytes()
    assert "PASSED" in harness("report", copy).stdout


def full(*_: object) -> None:
    raise EngineError("no space left on this machine")


def test_step_that_cannot_be_done_is_undone(
    harness: Harness, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether its data cannot be saved, or its gate stays closed."""
    path = tmp_path / "stuck.yml"
    # A node that is lost would requeue the job.
    path.write_text(
        ROLLING.replace("OPTION", "").replace("SlurmdTimeout: 30", "SlurmdTimeout: 300")
    )
    with deployed(harness, runs, path) as run:
        cluster = slurm.clusters(run.ssh, run.plan)["rolling"]
        body = "#!/bin/sh\nuntil [ -e /tmp/go ]; do sleep 0.2; done\n"
        job_id = cluster.submit(body, "--output=/dev/null", user="alice")
        cluster.wait_for([job_id], {"RUNNING"}, timeout=180)
        [new] = upgrade.plan_chain(run, upgrade.UpgradeOptions([["26.05"]]))
        jobs = workload.generate(run.plan.scenario, 300, 300, 1)
        with monkeypatch.context() as patch:
            patch.setattr(run.provider, "fetch", full)
            with pytest.raises(EngineError, match="no space left"):
                upgrade.upgrade(run, [new], jobs)
        assert cluster.run("sacctmgr", "--noheader", "show", "cluster", "format=cluster").stdout
        with pytest.raises(
            ClusterError, match="slurmctld of rolling could not be upgraded and was rolled back"
        ):
            upgrade.upgrade(run, [with_an_unknown_option(new)], jobs)
        steps = [
            (event["id"], event["outcome"])
            for event in run.directory.events()
            if event["kind"] == "check"
        ]
        assert steps == [
            ("upgrade::slurmdbd", "error"),
            ("upgrade::slurmdbd", "passed"),
            ("upgrade::slurmctld of rolling", "failed"),
        ]
        # Earlier steps stay upgraded.
        assert rundir.find(runs, "stuck").plan().releases() == {
            "rolling": "24.11",
            "slurmdbd": "26.05",
        }
        assert cluster.run("sinfo", "--version").stdout.startswith("slurm-wlm 24.11")
        job = cluster.job(job_id)
        assert job
        assert job.state == "RUNNING"
        for host in run.plan.hosts:
            run.ssh.run(host.name, ["touch", "/tmp/go"])
        cluster.wait_for([job_id], {"COMPLETED"}, timeout=300)


def with_an_unknown_option(plan: Plan) -> Plan:
    """Return a plan with which slurmctld refuses to start."""
    cluster = plan.scenario.clusters["rolling"]
    cluster = cluster.model_copy(update={"options": {**cluster.options, "NoSuchOption": "1"}})
    return replace(
        plan, scenario=plan.scenario.model_copy(update={"clusters": {"rolling": cluster}})
    )
