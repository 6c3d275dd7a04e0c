"""The database of accounting is as it was set up, and only slurmdbd changes it."""

from __future__ import annotations

import re

import pytest
from conftest import database_rows
from test_hosts import has_own_image

from harness import render, slurm_options
from harness.cluster.slurm import SlurmCluster
from harness.plan import Plan
from harness.ssh import Ssh

pytestmark = pytest.mark.needs("accounting")


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
    seen = database_rows(ssh, host, query)
    assert seen
    wrong = []
    for name, value in seen:
        number = re.fullmatch(r"(\d+)M", wanted[name])
        if value != (str(int(number[1]) << 20) if number else wanted[name]):
            wrong.append(f"MariaDB's {name} is {value}")
    if has_own_image(plan, host):
        query = (
            "select lower(variable_name), global_value from information_schema.system_variables"
            " where global_value_origin = 'SQL' and not global_value <=> default_value"
        )
        wrong += [
            f"MariaDB's {name} was set to {value} while it runs"
            for name, value in database_rows(ssh, host, query)
            if name not in wanted
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
    wrong = []
    for host in (host.name for host in plan.with_daemon("mariadb")):
        wrong += [
            "{}: MariaDB's {} {} may change records of {}".format(host, *row)
            for row in database_rows(ssh, host, triggers)
        ]
        if has_own_image(plan, host):
            wrong += [
                "{}: MariaDB accepts '{}'@'{}' without a password".format(host, *row)
                for row in database_rows(ssh, host, accounts)
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
    kinds = database_rows(ssh, host, query)
    assert kinds
    wrong = [f"{engine}: {tables}" for engine, _, tables in kinds if engine != "InnoDB"]
    assert not wrong, f"tables without transactions: {'; '.join(wrong)}"
    assert len({collation for _, collation, _ in kinds}) == 1, (
        f"most tables are {kinds[0][1]}, but: {kinds[1:]}"
    )


def test_slurmdbd_rolls_up_the_usage_of_this_hour(plan: Plan, ssh: Ssh) -> None:
    """The next rollup starts where the last one ended, which must not be in the future."""
    host = plan.with_daemon("mariadb")[0].name
    database = next(iter(slurm_options.database_grants(plan.scenario)))
    query = " union ".join(
        f"select '{name}', from_unixtime(greatest(hourly_rollup, daily_rollup, monthly_rollup))"
        f" from `{database}`.`{name}_last_ran_table`"
        " where greatest(hourly_rollup, daily_rollup, monthly_rollup) > unix_timestamp() + 60"
        for name in plan.scenario.clusters
    )
    wrong = [
        f"{name}: slurmdbd rolls usage up only from {later} on"
        for name, later in database_rows(ssh, host, query)
    ]
    assert not wrong, "\n".join(wrong)
