"""A run that people work on, and clusters with settings of real sites, pass if they are healthy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.cluster import slurm
from harness.cluster.slurm import SlurmCluster
from harness.open_run import OpenRun
from harness.wait import wait_until
from support import Done, Harness, deployed

SCENARIO = """
description: One host that people work on.
clusters:
  lived:
    controller: lived
    nodes: [{name: lived, cpus: 4, memory: 1000, options: {}}]
    partitions: {main: {default: true, options: {}}}
    options: {}
accounting:
  host: lived
  accounts: {physics: {}}
  qos: {brief: {options: {MaxWall: 10, MaxJobsPerUser: 2}}}
users:
  alice: {uid: 2001, accounts: [physics], qos: [brief]}
  bob: {uid: 2002, accounts: [physics]}
"""
DEMANDS_A_TIME_LIMIT = """
function slurm_job_submit(job, partitions, uid)
    if job.time_limit == slurm.NO_VAL then
        slurm.log_user("every job needs a time limit")
        return slurm.ERROR
    end
    return slurm.SUCCESS
end
function slurm_job_modify(job, record, partitions, uid) return slurm.SUCCESS end
return slurm.SUCCESS
"""
SITES = {
    "quiet": [
        "clusters.lived.options.SlurmctldDebug=0",
        "clusters.lived.options.SlurmdDebug=2",
        "clusters.lived.options.SlurmctldPort=6807-6814",
        "clusters.lived.options.MinJobAge=2",
    ],
    "without memory": [
        "clusters.lived.nodes.0.options.RealMemory=null",
        "clusters.lived.options.SelectTypeParameters=CR_Core",
        "clusters.lived.partitions.main.options.MaxTime=3",
        "clusters.lived.options.JobSubmitPlugins=lua",
        f"clusters.lived.files={json.dumps({'job_submit.lua': DEMANDS_A_TIME_LIMIT})}",
        "checks={submit: [--time=2]}",
    ],
}
# Submits a job that holds a part of the node, or all of it, until it is cancelled.
HOLD = ("sbatch", "--parsable", "--output=/dev/null", "--wrap=sleep 3600")
INVENT = """
    mariadb slurm_acct_db -e "
        create temporary table invented select * from lived_job_table where id_job = {like} limit 1;
        update invented set job_db_inx = 99999, id_job = 99999, job_name = 'sh';
        insert into lived_job_table select * from invented"
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scenario's file."""
    path = tmp_path_factory.mktemp("lived") / "lived.yml"
    path.write_text(SCENARIO)
    return path


@pytest.mark.parametrize("settings", SITES.values(), ids=SITES.keys())
def test_cluster_with_settings_of_real_sites_passes(
    harness: Harness, path: Path, settings: list[str]
) -> None:
    done = harness("run", path, *(word for setting in settings for word in ("--set", setting)))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def lived(harness: Harness, runs: Path, path: Path) -> Iterator[OpenRun]:
    """The scenario, deployed."""
    with deployed(harness, runs, path) as run:
        yield run


@pytest.fixture
def cluster(lived: OpenRun) -> Iterator[SlurmCluster]:
    """The cluster, and no job left on it afterwards."""
    cluster = slurm.clusters(lived.ssh, lived.plan)["lived"]
    yield cluster
    cluster.run("scancel", "--user=alice")
    slurm.wait_until_ready(lived.plan, {"lived": cluster}, idle=True)


def held(lived: OpenRun, cluster: SlurmCluster, *options: str) -> int:
    """Submit a job as alice that is not the harness's, and wait until it runs."""
    job_id = int(lived.ssh.run("lived", [*HOLD, *options], user="alice").stdout)
    cluster.wait_for([job_id], {"RUNNING"})
    return job_id


def verify(harness: Harness, *checks: str) -> Done:
    """Run some checks on the cluster."""
    return harness(
        "verify", "--run", "lived", *(word for check in checks for word in ("--select", check))
    )


def test_deploy_and_verify_leave_a_users_running_job_alone(
    harness: Harness, lived: OpenRun, cluster: SlurmCluster
) -> None:
    running = held(lived, cluster, "--ntasks=1")
    pending = int(lived.ssh.run("lived", [*HOLD, "--hold"], user="alice").stdout)
    done = harness("deploy", "--run", "lived")
    assert done.returncode == 0, done.stdout + done.stderr
    done = verify(harness, "test_jobs", "test_limits", "test_accounting_records")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [cluster.job(job_id).state for job_id in (running, pending)] == ["RUNNING", "PENDING"]


def test_checks_say_when_other_users_jobs_occupy_the_nodes(
    harness: Harness, lived: OpenRun, cluster: SlurmCluster
) -> None:
    job_id = held(lived, cluster, "--exclusive")
    assert slurm.not_ready(lived.plan, {"lived": cluster}) == []
    done = verify(harness, "job_on_all_nodes")
    assert done.returncode == 3, done.stdout + done.stderr
    assert f"busy with jobs of others: lived with job {job_id} of alice" in done.stdout, done.stdout
    assert cluster.job(job_id).state == "RUNNING"


def test_node_that_an_administrator_set_down_stays_so_and_is_named(
    lived: OpenRun, cluster: SlurmCluster
) -> None:
    cluster.run("scontrol", "update", "NodeName=lived", "State=DOWN", "Reason=no fan")
    before = cluster.nodes()[0].slurmd_start
    try:
        cluster.run("sh", "-c", "systemctl reset-failed; systemctl restart slurmd")
        wait_until(
            cluster.nodes,
            lambda nodes: nodes[0].slurmd_start != before,
            what="slurmd to register",
            timeout=90,
        )
        assert [
            text.partition(" [")[0] for text in slurm.not_ready(lived.plan, {"lived": cluster})
        ] == ["lived: lived DOWN (no fan"]
    finally:
        cluster.run("scontrol", "update", "NodeName=lived", "State=RESUME")


def test_interactive_job_of_a_user_is_genuine_and_an_invented_record_of_one_is_not(
    harness: Harness, lived: OpenRun
) -> None:
    print_id = ["srun", "--job-name=sh", "printenv", "SLURM_JOB_ID"]
    genuine_id = int(lived.ssh.run("lived", print_id, user="alice").stdout)
    genuine = verify(harness, "accounting_matches")
    assert genuine.returncode == 0, genuine.stdout + genuine.stderr
    lived.ssh.run("lived", ["sh", "-c", INVENT.format(like=genuine_id)])
    try:
        done = verify(harness, "accounting_matches")
    finally:
        lived.ssh.run(
            "lived",
            ["mariadb", "slurm_acct_db", "-e", "delete from lived_job_table where id_job = 99999"],
        )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "not in slurmctld's log: lived: job 99999 (sh of alice)" in done.stdout
