"""Accounting tells the truth. The file's name puts it last: it judges all jobs of the checks before it too."""

from __future__ import annotations

import re

import pytest
from conftest import Jobs, active_jobs, wait_for_records

from harness import options, render, witness
from harness.plan import Plan
from harness.slurm import SlurmCluster, job_key
from harness.ssh import Ssh
from harness.wait import wait_until

pytestmark = pytest.mark.needs("accounting")


def table(cluster: SlurmCluster, *command: str) -> set[tuple[str, ...]]:
    """Return what sacctmgr shows, row by row."""
    answer = cluster.run("sacctmgr", "--parsable2", "--noheader", *command).stdout
    return {tuple(line.split("|")) for line in answer.splitlines()}


def test_every_cluster_is_registered_with_its_controller(clusters: dict[str, SlurmCluster], plan: Plan) -> None:
    for name, cluster in clusters.items():
        address = cluster.run("getent", "ahostsv4", cluster.controller).stdout.split()[0]
        port = options.get(options.slurm_conf(plan.scenario, name, plan.offers), "SlurmctldPort") or "6817"
        for asked in clusters.values():
            assert (name, address, port) in table(asked, "show", "cluster", "format=cluster,controlhost,controlport")
    assert {row[0] for row in table(cluster, "show", "cluster", "format=cluster")} == {*clusters}


def test_associations_and_qos_are_the_scenarios(clusters: dict[str, SlurmCluster], plan: Plan) -> None:
    scenario = plan.scenario
    for name, cluster in clusters.items():
        rows = table(cluster, "show", "association", "where", f"cluster={name}", "format=account,user")
        wanted = {("root", ""), ("root", "root"), *((account, "") for account in scenario.accounting.accounts)}
        wanted |= {(account, user) for user, facts in scenario.users.items() for account in facts.accounts}
        assert rows == wanted, name
    assert {row[0] for row in table(cluster, "show", "qos", "format=name")} == {"normal", *scenario.accounting.qos}


def test_database_has_the_settings_of_its_file(plan: Plan, ssh: Ssh) -> None:
    host = plan.with_daemon("mariadb")[0].name
    text = next(file.text for file in render.render(plan)[host] if file.path.endswith("90-slurm.cnf"))
    wanted = {
        name.removeprefix("loose_"): value
        for name, value in re.findall(r"^((?:loose_)?innodb_\w+|max_allowed_packet)=(\S+)", text, re.MULTILINE)
    }
    query = f"show global variables where variable_name in ({', '.join(repr(name) for name in wanted)})"
    answer = ssh.run(host, ["mariadb", "-N", "-B", "-e", query]).stdout
    seen = dict(line.split("\t") for line in answer.splitlines())
    assert seen
    for name, value in seen.items():
        number = re.fullmatch(r"(\d+)M", wanted[name])
        assert value == (str(int(number[1]) << 20) if number else wanted[name]), f"MariaDB's {name} is {value}"


def test_tables_of_accounting_have_one_collation(plan: Plan, ssh: Ssh) -> None:
    """The daemon compares texts of several tables in one query, which the database refuses where they differ."""
    host = plan.with_daemon("mariadb")[0].name
    query = (
        "select table_collation, group_concat(table_name) from information_schema.tables"
        " where table_schema = 'slurm_acct_db' group by table_collation order by count(*) desc"
    )
    first, *others = ssh.run(host, ["mariadb", "-N", "-B", "-e", query]).stdout.splitlines()
    assert first
    assert not others, f"most tables are {first.split()[0]}, but: {others}"


@pytest.mark.needs("users")
def test_failed_and_cancelled_jobs_are_recorded_as_such(clusters: dict[str, SlurmCluster], jobs: Jobs) -> None:
    cluster = list(clusters.values())[-1]
    failing = jobs.submit_here(cluster, "exit 3")
    cancelled = jobs.submit_here(cluster, "sleep 300")
    cluster.wait_for([cancelled], {"RUNNING"})
    cluster.run("scancel", str(cancelled), user=jobs.user)
    cluster.wait_for([failing, cancelled])
    wait_for_records(cluster, {failing: ("FAILED", 3), cancelled: ("CANCELLED", 0)})


@pytest.mark.needs("users", "lasting")
def test_job_that_timed_out_is_recorded_as_such(clusters: dict[str, SlurmCluster], timed_out_job: int) -> None:
    cluster = list(clusters.values())[-1]
    cluster.wait_for([timed_out_job], {"TIMEOUT"}, timeout=180)
    wait_for_records(cluster, {timed_out_job: ("TIMEOUT", None)})


@pytest.mark.needs("users")
def test_accounting_matches_what_every_job_saw(clusters: dict[str, SlurmCluster], plan: Plan, jobs: Jobs) -> None:
    """Compares all jobs of the checks with their own witnesses: none missing, none doubled, each right."""
    cluster = next(iter(clusters.values()))
    fresh = [
        job_key(one.name, jobs.submit(one, f"srun true; sleep {n % 3}")) for n in range(3) for one in clusters.values()
    ]
    wait_until(lambda: active_jobs(clusters), lambda left: not left, what="all jobs ended", timeout=90)
    witnesses = jobs.witnesses()
    seen = {one.key for one in witnesses}
    # A job that a check cancelled before it began rightly left no witness; those of this check may not be missing.
    judged = {key for key in jobs.submitted if key in seen} | {*fresh}
    everywhere = f"--clusters={','.join(clusters)}"
    hosts_of = {name: plan.hosts_of(name) for name in clusters}

    def look() -> list[str]:
        return witness.differences(judged, witnesses, cluster.records(everywhere), hosts_of)

    # slurmctld sends its records on in the background.
    wait_until(
        look, lambda found: not found, what="accounting agrees with the jobs' witness", timeout=20, show="\n".join
    )
    records = cluster.records(everywhere)
    unknown = {record.key for record in records if not record.step and record.state == "COMPLETED"} - seen
    # A job of srun has the name of its program; 20.11 does not show its only step.
    interactive = {record.key for record in records if record.name in {"sh", "cat", "interactive"}}
    assert not unknown - interactive, "accounting has completed jobs that nobody saw run"
    steps = {record.key for record in records if record.step == "0"}
    assert {*fresh} <= steps, "a step that srun started inside a job has no record"


@pytest.mark.needs("users", "job_completion")
def test_job_completion_records_match_accounting(
    clusters: dict[str, SlurmCluster], plan: Plan, jobs: Jobs, ssh: Ssh
) -> None:
    cluster = next(iter(clusters.values()))
    given = [
        jobs.submit_here(cluster, "exit 5"),
        jobs.submit_here(cluster, "true"),
    ]
    cluster.wait_for(given)
    query = "select jobid, state, nodelist from slurm_jobcomp.jobcomp_table"
    host = plan.with_daemon("mariadb")[0].name
    state_numbers = {"COMPLETED": 3, "FAILED": 5}  # enum job_states in slurm.h

    def in_accounting() -> set[tuple[int, int, str]]:
        records = cluster.records("--local", "--allocations")
        return {
            (record.job_id, state_numbers.get(record.state, -1), record.node_list)
            for record in records
            if record.job_id in given
        }

    def in_completion() -> set[tuple[int, int, str]]:
        rows = (line.split("\t") for line in ssh.run(host, ["mariadb", "-N", "-B", "-e", query]).stdout.splitlines())
        return {(int(job_id), int(state), nodes) for job_id, state, nodes in rows if int(job_id) in given}

    # Both are written in the background.
    wait_until(
        lambda: (in_accounting(), in_completion()),
        lambda seen: len(seen[0]) == len(given) and seen[0] == seen[1],
        what="completion records like those of accounting",
        timeout=15,
    )
