"""Changes of the configuration, rehearsed on live clusters while users submit jobs."""

from __future__ import annotations

from pathlib import Path

from support import Harness

SITE = """\
description: A small site, to change its configuration.
release: "{release}"
clusters:
  one:
    controller: ctl
    hosts: sim[1-2]
    nodes:
      - {{name: "c[1-4]", cpus: 2, memory: 500}}
    partitions:
      main: {{default: true, options: {{MaxTime: "2:00:00"}}}}
    options:
      SchedulerParameters: batch_sched_delay=0,sched_min_interval=0,sched_interval=2,requeue_delay=1
      MinJobAge: 3600
      AuthInfo: cred_expire=15  # seconds that a requeued job waits at least
accounting:
  host: ctl
  accounts: {{physics: {{}}, chemistry: {{}}}}
users:
  alice: {{uid: 2001, accounts: [physics]}}
  bob: {{uid: 2002, accounts: [physics]}}
"""
ROWS = """\
- {name: ninety minutes, user: alice, time: 90}
- {name: half an hour, user: bob, time: 30, expect: {outcome: starts}}
"""


def test_change_is_applied_as_diff_advises_and_harms_no_job(
    harness: Harness, tmp_path: Path
) -> None:
    before, after, table = (tmp_path / name for name in ("site.yml", "after.yml", "rows.yml"))
    text = SITE.format(release="22.05")
    before.write_text(text)
    shorter = text.replace('"2:00:00"', '"1:00:00"')
    option = "SelectTypeParameters: CR_Core"
    after.write_text(shorter.replace("      MinJobAge", f"      {option}\n      MinJobAge"))
    table.write_text(ROWS)
    done = harness("rehearse-change", before, after, "--submissions", table)
    assert done.returncode == 0, done.stdout + done.stderr
    steps = ("drain c[1-4]", "copy the files to their hosts", "restart slurmctld", "resume c[1-4]")
    for step in (*steps, "jobs", "no accepted job is lost"):
        assert f"passed   {step}\n" in done.stdout
    assert "ninety minutes: outcome: starts -> waits" in done.stdout
    assert "ninety minutes: reason: - -> PartitionTimeLimit" in done.stdout
    assert "half an hour: " not in done.stdout


def test_jobs_that_a_change_keeps_from_running_are_named(harness: Harness, tmp_path: Path) -> None:
    before, after = tmp_path / "site.yml", tmp_path / "after.yml"
    before.write_text(SITE.format(release="24.11"))
    limit = 'MaxTime: "2:00:00"'
    after.write_text(before.read_text().replace(limit, f"{limit}, AllowAccounts: chemistry"))
    done = harness("rehearse-change", before, after, "--rate", "4")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "failed   jobs\n" in done.stdout
    harmed = done.stdout.partition("failed   jobs\n")[2]
    assert "PENDING (PartitionConfig), waits forever after the change" in harmed
    # Also those that are cancelled while they depend on others.
    assert "PENDING (Dependency), waits forever after the change" in harmed
    assert "passed   no accepted job is lost\n" in done.stdout


def test_migration_from_munge_leaves_a_cluster_that_uses_slurms_own_keys(
    harness: Harness, tmp_path: Path
) -> None:
    before, after = tmp_path / "site.yml", tmp_path / "after.yml"
    before.write_text(SITE.format(release="24.11").replace("host: ctl", "host: db"))
    after.write_text(f"{before.read_text()}auth: slurm\n")
    try:
        done = harness("rehearse-change", before, after, "--keep")
        assert done.returncode == 0, done.stdout + done.stderr
        for step in ("stop slurmd, slurmctld and slurmdbd on all hosts", "disable --now munge"):
            assert f"passed   {step}\n" in done.stdout
        selected = ("test_hosts", "test_auth_slurm", "test_jobs")
        words = (word for check in selected for word in ("--select", check))
        verified = harness("verify", "--run", "site", *words)
        assert verified.returncode == 0, verified.stdout
    finally:
        harness("down", "site")
