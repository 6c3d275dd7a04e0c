"""If a daemon fails, its backup takes over and later gives control back.

No job is lost, and none runs twice.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from conftest import (
    Jobs,
    listening,
    slurm_conf,
    slurmdbd_differences,
    wait_for_records,
    wait_until_answers,
    wait_until_saved,
)

from harness import faults, slurm_options
from harness.cluster.slurm import SlurmCluster
from harness.errors import CommandFailed, WaitTimeout
from harness.faults import Fault
from harness.open_run import OpenRun
from harness.plan import Plan
from harness.rehearsal import execution
from harness.ssh import Ssh
from harness.verify import job_trace
from harness.wait import wait_until

pytestmark = [pytest.mark.needs("users"), pytest.mark.provokes()]
# Deadline in seconds for what takes 20 s on an idle machine.
PATIENCE = 180


@pytest.mark.needs("backup_controllers", "accounting")
def test_backup_controller_takes_over_and_hands_back_without_losing_a_job(
    harness_run: OpenRun,
    clusters: dict[str, SlurmCluster],
    plan: Plan,
    ssh: Ssh,
    jobs: Jobs,
    timed_out_job: int,
) -> None:
    name, part = next(
        (name, part) for name, part in plan.scenario.clusters.items() if part.backup_controllers
    )
    allowed = int(slurm_conf(plan, name).options.get("slurmctldtimeout") or 120)
    # Slurm's commands and slurmstepds wait 1.5 times SlurmctldTimeout for a backup on standby.
    patience = PATIENCE + 2 * allowed
    first, second = (
        clusters[name],
        SlurmCluster(ssh, name, part.backup_controllers[0], patience, plan.scenario.checks.submit),
    )
    first.wait_for([timed_out_job], {"TIMEOUT"}, timeout=PATIENCE)
    # The end of a job is recorded late if no slurmctld is in control.
    until_takeover = f"sleep {20 + allowed * 3 // 2}"
    running = jobs.submit_here(first, until_takeover)
    array = jobs.submit_here(first, until_takeover, "--array=1-4")
    wait_until(
        lambda: [
            job.state for job in first.jobs("--local", "--array", f"--jobs={running},{array}")
        ],
        # On a busy machine, the first may have ended when the last begins.
        lambda states: len(states) == 5 and {*states} <= {"RUNNING", "COMPLETING", "COMPLETED"},
        what="the jobs to run",
        timeout=PATIENCE,
    )
    mark, since = f"last-{secrets.token_hex(4)}", time.time()
    pending = jobs.submit_here(
        first, "true", f"--dependency=afterok:{running}", f"--job-name={mark}"
    )
    execution.save_usage(harness_run, first)
    wait_until_saved(first, mark, plan, since)
    killed = Fault("kill-daemon", part.controller, "slurmctld")
    with (
        answering_again(first),
        faults.injected(harness_run, killed, how=faults.inject_between_saves),
    ):
        began = time.monotonic()
        during = submit_to(second, jobs, patience, allowed)
        seconds = round(time.monotonic() - began, 1)
        harness_run.directory.event("takeover", daemon="slurmctld", seconds=seconds)
        try:
            wait_for_every_slurmd(second, plan, jobs)
            second.wait_for([during, array, running, pending], {"COMPLETED"}, timeout=PATIENCE)
        except WaitTimeout as error:
            taken = (
                f"{second.controller} took over after {seconds} s, SlurmctldTimeout is {allowed} s"
            )
            raise WaitTimeout(f"{taken}: {error}") from error
        wait_for_control(second)
        if name in plan.clusters_with_limits():
            assert_refuses_an_unknown_account(second, jobs)
    began = time.monotonic()
    wait_for_control(first)
    harness_run.directory.event(
        "failback", daemon="slurmctld", seconds=round(time.monotonic() - began, 1)
    )
    with faults.injected(harness_run, Fault("stop-daemon", second.controller, "slurmctld")):
        after = jobs.submit_here(first, "true")
        first.wait_for([after], {"COMPLETED"})
    states = [
        job.state
        for job in first.jobs("--local", "--array", f"--jobs={running},{array},{pending},{during}")
    ]
    assert states == ["COMPLETED"] * 7, f"after the takeover, the jobs are {', '.join(states)}"
    lost = {running, array, pending, during, after} - {trace.job_id for trace in jobs.traces()}
    assert not lost, f"jobs that left no trace: {', '.join(map(str, sorted(lost)))}"
    twice = job_trace.ran_twice(jobs.traces())
    assert not twice, f"both controllers were in control: {'; '.join(twice)}"


@contextmanager
def answering_again(cluster: SlurmCluster) -> Iterator[None]:
    """Leave only once the controller answers, even after an error: the clean-up needs it."""
    try:
        yield
    finally:
        with suppress(WaitTimeout):
            wait_until_answers(cluster, PATIENCE)


def submit_to(backup: SlurmCluster, jobs: Jobs, timeout: float, allowed: int) -> int:
    """Submit a job as soon as the backup controller takes it, and return its id.

    Connections are reset at the moment of the takeover, so retry. `allowed` is SlurmctldTimeout.
    """

    def look() -> tuple[str, int]:
        state = backup.run("systemctl", "is-active", "slurmctld", check=False).stdout.strip()
        return state, jobs.submit_here(backup, "true") if state == "active" else 0

    _, job_id = wait_until(
        look,
        lambda seen: seen[1] > 0,
        what=f"{backup.controller} to take jobs, SlurmctldTimeout is {allowed} s",
        timeout=timeout,
        give_up=lambda seen: seen[0] != "active",
        show=lambda seen: f"slurmctld is {seen[0]}",
        ignore=(CommandFailed,),
    )
    return job_id


def assert_refuses_an_unknown_account(backup: SlurmCluster, jobs: Jobs) -> None:
    """Fail if a backup in control accepts a job that the first controller would refuse.

    slurmctld sets what it enforces when it starts (accounting_enforce in controller.c), and not
    when it reads slurm.conf again to take over.
    """
    refusal = ""
    try:
        jobs.submit_here(backup, "true", f"--account=no-{secrets.token_hex(4)}")
    except CommandFailed as error:
        refusal = error.stderr
    assert refusal, (
        f"slurmctld of {backup.controller} accepts an account that does not exist: it was"
        " started without AccountingStorageEnforce, so restart it"
    )
    assert "Invalid account" in refusal


def wait_for_every_slurmd(backup: SlurmCluster, plan: Plan, jobs: Jobs) -> None:
    """Run a job on each host of the default partition.

    Its slurmd must receive messages from the backup, and answer them.
    """
    permanent = {host.name for host in plan.permanent_hosts()}
    hosts, default = plan.hosts_of(backup.name), slurm_conf(plan, backup.name).default_partition()
    partition = next(part for part in backup.partitions() if part.name == default)
    nodes = {hosts[node]: node for node in partition.nodes if hosts[node] in permanent}
    submitted = {
        jobs.submit_here(backup, "true", f"--nodelist={node}"): node for node in nodes.values()
    }

    def unfinished() -> list[str]:
        states = {job.job_id: job.state for job in backup.jobs("--local")}
        return [
            f"job {job_id} on {node} is {states[job_id]}"
            for job_id, node in submitted.items()
            if states.get(job_id, "COMPLETED") != "COMPLETED"
        ]

    wait_until(
        unfinished,
        lambda left: not left,
        what=f"slurmctld of {backup.controller} and each slurmd to reach each other",
        timeout=PATIENCE,
        show="; ".join,
        ignore=(CommandFailed,),
    )


def wait_for_control(cluster: SlurmCluster) -> None:
    """Wait until `cluster.controller` is in control according to slurmdbd."""
    address = cluster.run("getent", "ahostsv4", cluster.controller).stdout.split()[0]
    wait_until(
        lambda: (
            cluster.run(
                "sacctmgr", "--noheader", "--parsable2", "show", "cluster", "format=controlhost"
            ).stdout
        ),
        lambda seen: address in seen.split(),
        what=f"{cluster.controller} to be in control",
        timeout=PATIENCE,
        ignore=(CommandFailed,),
    )


@pytest.mark.needs("backup_slurmdbd")
def test_backup_slurmdbd_takes_over_and_hands_back_without_losing_a_record(
    harness_run: OpenRun, clusters: dict[str, SlurmCluster], plan: Plan, ssh: Ssh, jobs: Jobs
) -> None:
    cluster = next(iter(clusters.values()))
    accounting = plan.scenario.accounting
    recorded: dict[int, tuple[str, int | None]] = {}
    for lost in (accounting.host, accounting.backup):
        with faults.injected(harness_run, Fault("kill-daemon", lost, "slurmdbd")):
            other = accounting.backup if lost == accounting.host else accounting.host
            command = ["systemctl", "is-active", "slurmdbd"]
            state = ssh.run(other, command, check=False).stdout.strip()
            assert state == "active", f"slurmdbd of {other} is {state}"
            began = time.monotonic()
            job_id = jobs.submit_here(cluster, "true")
            cluster.wait_for([job_id], {"COMPLETED"})
            recorded[job_id] = ("COMPLETED", 0)
            wait_for_records(cluster, {job_id: recorded[job_id]}, timeout=PATIENCE)
            harness_run.directory.event(
                "takeover", daemon="slurmdbd", seconds=round(time.monotonic() - began, 1)
            )
            wrong = [f"slurmdbd of {other}: {line}" for line in slurmdbd_differences(cluster, plan)]
            assert not wrong, "\n".join(wrong)
        wait_for_standby(ssh, plan)
        where = (
            f"slurmdbd of {accounting.host}, "
            f"whose database must be that of {accounting.backup} too,"
        )
        wait_for_records(cluster, recorded, where=where)


def wait_for_standby(ssh: Ssh, plan: Plan) -> None:
    """Wait until the backup slurmdbd does not listen, because the first one is back."""
    accounting = plan.scenario.accounting
    port = slurm_options.slurmdbd_conf(plan.scenario)["DbdPort"]
    wait_until(
        lambda: listening(ssh, accounting.backup, port),
        lambda addresses: not addresses,
        what=f"slurmdbd of {accounting.backup} to give control back "
        f"to slurmdbd of {accounting.host}",
        timeout=PATIENCE,
        show=lambda _: f"it listens on port {port}; does it reach {accounting.host}:{port}?",
    )
