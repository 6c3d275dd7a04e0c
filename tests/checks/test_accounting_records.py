"""Accounting is correct.

It comes last (checks_plugin.py), because it also covers the jobs of all other checks.
"""

from __future__ import annotations

import re

import pytest
from conftest import Jobs, PoweringUp, active_jobs, all_records_sent, over_time, wait_for_records
from early_jobs import REQUEST
from test_hosts import has_own_image

from harness import render, slurm_options
from harness.cluster.slurm import JobKey, Record, SlurmCluster, job_key
from harness.plan import Plan
from harness.ssh import Ssh
from harness.verify import job_events, job_trace, trace_comparison
from harness.wait import wait_until

pytestmark = pytest.mark.needs("accounting")
# Minutes beyond its limit for which the check waits for a job to be ended.
MOST_OVER_TIME = 5


def table(cluster: SlurmCluster, *command: str) -> set[tuple[str, ...]]:
    """Return the rows that sacctmgr prints."""
    answer = cluster.run("sacctmgr", "--parsable2", "--noheader", *command).stdout
    return {tuple(line.split("|")) for line in answer.splitlines()}


def test_every_cluster_is_registered_with_its_controller(
    clusters: dict[str, SlurmCluster], plan: Plan
) -> None:
    for name, cluster in clusters.items():
        address = cluster.run("getent", "ahostsv4", cluster.controller).stdout.split()[0]
        port = slurm_options.port_of(plan.slurm_conf(name), "slurmctld")
        expected = {(name, address, str(number)) for number in slurm_options.ports(port)}
        for queried in clusters.values():
            rows = table(queried, "show", "cluster", "format=cluster,controlhost,controlport")
            assert expected & rows, f"{name} is not registered at {address}:{port}: {rows}"
    assert {row[0] for row in table(cluster, "show", "cluster", "format=cluster")} == {*clusters}
    rows = table(cluster, "show", "federation", "format=federation,cluster")
    federated = {(federation, member) for federation, member, *_ in rows if member}
    assert federated == {
        (name, member)
        for name, federation in plan.scenario.federations.items()
        for member in federation.clusters
    }, "the federations in the database are not the scenario's"


def test_database_has_the_settings_of_its_file(plan: Plan, ssh: Ssh) -> None:
    host = plan.with_daemon("mariadb")[0].name
    text = next(
        file.text for file in render.render(plan)[host] if file.path.endswith("90-slurm.cnf")
    )
    wanted = {"read_only": "OFF"} | {
        name.removeprefix("loose_"): value
        for name, value in re.findall(
            r"^((?:loose_)?innodb_\w+|max_allowed_packet)=(\S+)", text, re.MULTILINE
        )
    }
    query = (
        f"show global variables where variable_name in ({', '.join(repr(name) for name in wanted)})"
    )
    answer = ssh.run(host, ["mariadb", "-N", "-B", "-e", query]).stdout
    seen = dict(line.split("\t") for line in answer.splitlines())
    assert seen
    wrong = []
    for name, value in seen.items():
        number = re.fullmatch(r"(\d+)M", wanted[name])
        if value != (str(int(number[1]) << 20) if number else wanted[name]):
            wrong.append(f"MariaDB's {name} is {value}")
    if has_own_image(plan, host):
        query = (
            "select lower(variable_name), global_value from information_schema.system_variables"
            " where global_value_origin = 'SQL' and not global_value <=> default_value"
        )
        changed = ssh.run(host, ["mariadb", "-N", "-B", "-e", query]).stdout.splitlines()
        wrong += [
            "someone has set MariaDB's {} to {}".format(*line.split("\t"))
            for line in changed
            if line.split("\t")[0] not in wanted
        ]
    assert not wrong, "\n".join(wrong)


def test_only_daemons_change_the_database(plan: Plan, ssh: Ssh) -> None:
    """Triggers and events can change records, and so can anyone who needs no password.

    Machines, and images of users, may have such accounts for databases of their own.
    """
    databases = ", ".join(f"'{name}'" for name in slurm_options.database_grants(plan.scenario))
    triggers = f"""
        select 'trigger', trigger_name, event_object_table from information_schema.triggers
        where trigger_schema in ({databases})
        union select 'event', event_name, event_schema from information_schema.events
        where event_schema in ({databases})
    """
    accounts = """
        select user, host from mysql.global_priv
        where json_value(priv, '$.plugin') in ('', 'mysql_native_password')
        and ifnull(json_value(priv, '$.authentication_string'), '') = ''
        and not json_value(priv, '$.account_locked') <=> true
    """

    def rows(host: str, query: str) -> list[list[str]]:
        answer = ssh.run(host, ["mariadb", "-N", "-B", "-e", query])
        return [line.split("\t") for line in answer.stdout.splitlines()]

    wrong = []
    for host in (host.name for host in plan.with_daemon("mariadb")):
        wrong += [
            "{}: MariaDB's {} {} may change records of {}".format(host, *row)
            for row in rows(host, triggers)
        ]
        if has_own_image(plan, host):
            wrong += [
                "{}: MariaDB accepts '{}'@'{}' without a password".format(host, *row)
                for row in rows(host, accounts)
            ]
    assert not wrong, "\n".join(wrong)


def test_tables_of_accounting_are_transactional_and_have_one_collation(
    plan: Plan, ssh: Ssh
) -> None:
    """Without transactions, slurmdbd cannot take back what an administrator does not confirm.

    MariaDB refuses queries that compare text in tables with different collations.
    """
    host = plan.with_daemon("mariadb")[0].name
    query = (
        "select engine, table_collation, group_concat(table_name) from information_schema.tables"
        f" where table_schema = '{next(iter(slurm_options.database_grants(plan.scenario)))}'"
        " and table_type = 'BASE TABLE' group by 1, 2 order by count(*) desc"
    )
    answer = ssh.run(host, ["mariadb", "-N", "-B", "-e", query]).stdout
    kinds = [line.split("\t") for line in answer.splitlines()]
    assert kinds
    wrong = [f"{engine}: {tables}" for engine, _, tables in kinds if engine != "InnoDB"]
    assert not wrong, f"tables without transactions: {'; '.join(wrong)}"
    assert len({collation for _, collation, _ in kinds}) == 1, (
        f"most tables are {kinds[0][1]}, but: {kinds[1:]}"
    )


def test_slurmdbd_adds_up_the_usage_of_this_hour(plan: Plan, ssh: Ssh) -> None:
    """The next sum of usage begins where the last one ended: not before a time to come."""
    host = plan.with_daemon("mariadb")[0].name
    database = next(iter(slurm_options.database_grants(plan.scenario)))
    query = " union ".join(
        f"select '{name}', from_unixtime(greatest(hourly_rollup, daily_rollup, monthly_rollup))"
        f" from `{database}`.`{name}_last_ran_table`"
        " where greatest(hourly_rollup, daily_rollup, monthly_rollup) > unix_timestamp() + 60"
        for name in plan.scenario.clusters
    )
    lines = ssh.run(host, ["mariadb", "-N", "-B", "-e", query]).stdout.splitlines()
    wrong = ["{}: slurmdbd adds up usage only from {} on".format(*x.split("\t")) for x in lines]
    assert not wrong, "\n".join(wrong)


@pytest.mark.needs("users")
def test_failed_and_cancelled_jobs_are_recorded_as_such(
    clusters: dict[str, SlurmCluster], jobs: Jobs
) -> None:
    cluster = list(clusters.values())[-1]
    failing = jobs.submit_here(cluster, "exit 3")
    cancelled = jobs.submit_here(cluster, "sleep 300")
    cluster.wait_for([cancelled], {"RUNNING"})
    cluster.run("scancel", str(cancelled), user=jobs.user)
    cluster.wait_for([failing, cancelled])
    wait_for_records(cluster, {failing: ("FAILED", 3), cancelled: ("CANCELLED", 0)})


@pytest.mark.needs("users", "static")
def test_job_that_timed_out_is_recorded_as_such(
    clusters: dict[str, SlurmCluster], plan: Plan, timed_out_job: int
) -> None:
    cluster = list(clusters.values())[-1]
    minutes = over_time(plan, cluster.name)
    if minutes > MOST_OVER_TIME:
        pytest.skip(f"OverTimeLimit: jobs may run {minutes:.0f} minutes beyond their limit")
    cluster.wait_for([timed_out_job], {"TIMEOUT"}, timeout=180 + 60 * minutes)
    wait_for_records(cluster, {timed_out_job: ("TIMEOUT", None)})


def _job_with_steps() -> str:
    """Return the script of a job that succeeds although one of its steps fails."""
    return "\n".join(["srun true", job_trace.step(1, "--ntasks=1 sh -c 'exit 3'"), "exit 0"])


def _differing_from_request(records: list[Record], keys: list[JobKey]) -> list[str]:
    """Return the jobs whose records differ from their options."""
    return [
        f"job {record.job_id}: submitted with {' '.join(REQUEST)}, "
        f"accounting says {record.name}, {record.time_limit}"
        for record in records
        if record.key in keys and not record.step and record.state != "REVOKED"
        if (record.name, record.time_limit) != ("accounting", "3")
    ]


@pytest.mark.needs("users")
def test_accounting_matches_what_every_job_saw(
    clusters: dict[str, SlurmCluster],
    plan: Plan,
    jobs: Jobs,
    measured_jobs: list[JobKey],
    ssh: Ssh,
    powering: PoweringUp,
) -> None:
    """Compares the records of all jobs of the checks with the jobs' traces.

    All records are correct, none are missing, and there are no duplicates.
    """
    cluster = next(iter(clusters.values()))

    def is_requeued(job_of: tuple[str, int]) -> bool:
        """Return whether a job waits because its node did not come."""
        name, job_id = job_of
        job = clusters[name].job(job_id)
        return bool(job and job.state == "PENDING" and job.reason == "BeginTime")

    own_jobs = [
        job_key(target.name, jobs.submit(target, body, *REQUEST))
        for target in clusters.values()
        for body in ("srun true", "srun true; sleep 1", _job_with_steps())
    ]
    own_jobs += measured_jobs
    wait_until(
        lambda: active_jobs(clusters),
        lambda left: not left,
        what="all jobs to end",
        timeout=180,
        give_up=lambda left: bool(powering.fault) and any(map(is_requeued, left)),
        show=lambda left: f"{left} {powering.fault}".strip(),
    )
    traces = jobs.traces()
    seen = {trace.key for trace in traces}
    # A job that a check cancelled before it started has no trace; the jobs of this check must have
    # one.
    verified = {key for key in jobs.submitted if key in seen} | {*own_jobs}
    everywhere = f"--clusters={','.join(clusters)}"
    hosts_of = {name: plan.hosts_of(name) for name in clusters}

    logged = job_events.logged_times(ssh, plan)

    def look() -> list[str]:
        records = cluster.records(everywhere)
        differences = trace_comparison.differences(
            verified, traces, records, hosts_of, logged=logged
        )
        return differences + _differing_from_request(records, own_jobs)

    # slurmctld sends records in the background.
    wait_until(
        look,
        lambda problems: not problems,
        what="accounting to agree with the jobs' trace",
        timeout=180,
        give_up=all_records_sent(clusters.values()),
        show="\n".join,
    )
    records = cluster.records(everywhere)
    # Jobs of srun and salloc, and jobs that are not the harness's, leave no trace.
    unseen = [
        record
        for record in records
        if not record.step and record.state == "COMPLETED" and record.key not in seen
    ]
    invented = [
        f"{record.cluster}: job {record.job_id} ({record.name} of {record.user})"
        for record in job_events.invented(ssh, plan, unseen)
    ]
    assert not invented, (
        f"accounting has completed jobs that slurmctld's log does not know: {'; '.join(invented)}"
    )
    steps = {record.key for record in records if record.step == "0"}
    assert {*own_jobs} <= steps, "a step that srun started inside a job has no record"


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
    columns = "jobid, state, name, user_name, gid, `partition`, starttime, endtime, nodelist"
    query = f"select {columns} from slurm_jobcomp.jobcomp_table"
    host = plan.with_daemon("mariadb")[0].name
    state_numbers = {"COMPLETED": "3", "FAILED": "5"}  # enum job_states in slurm.h

    def in_accounting() -> set[tuple[str, ...]]:
        return {
            (
                str(record.job_id),
                state_numbers.get(record.state, record.state),
                record.name,
                record.user,
                record.gid,
                record.partition,
                str(record.start),
                str(record.end),
                record.node_list,
            )
            for record in cluster.records("--local", "--allocations")
            if record.job_id in given
        }

    def in_completion() -> set[tuple[str, ...]]:
        answer = ssh.run(host, ["mariadb", "-N", "-B", "-e", query]).stdout
        rows = (tuple(line.split("\t")) for line in answer.splitlines())
        return {row for row in rows if int(row[0]) in given}

    sent = all_records_sent([cluster])
    # Both kinds of records are written in the background.
    wait_until(
        lambda: (in_accounting(), in_completion()),
        lambda seen: len(seen[0]) == len(given) and seen[0] == seen[1],
        what="completion records to agree with those of accounting",
        timeout=120,
        give_up=lambda seen: sent(seen) and all(len(records) == len(given) for records in seen),
    )
