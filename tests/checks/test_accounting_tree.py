"""Every cluster has the accounts, users, QOS and limits of the scenario, and no others."""

from __future__ import annotations

import pytest

from harness.cluster import association_comparison
from harness.cluster.association_comparison import ASSOCIATION, QOS
from harness.cluster.slurm import SlurmCluster
from harness.plan import Plan
from harness.wait import wait_until

pytestmark = pytest.mark.needs("accounting")


def show(cluster: SlurmCluster, *query: str) -> str:
    """Return the output of `sacctmgr show`."""
    return cluster.run("sacctmgr", "--parsable2", "--noheader", "show", *query).stdout


def different_associations(cluster: SlurmCluster, plan: Plan) -> list[str]:
    """Return where slurmdbd's associations of a cluster differ from the scenario."""
    columns = association_comparison.columns(ASSOCIATION)
    # WOPLimits leaves out the limits that an association inherits.
    query = ("association", "woplimits", "where", f"cluster={cluster.name}")
    seen = association_comparison.parse(
        show(cluster, *query, f"format=account,user,partition,{','.join(columns)}"), 3, columns
    )
    wanted = association_comparison.associations(plan.scenario.of_cluster(cluster.name))
    return [
        f"{cluster.name}: {text}"
        for text in association_comparison.differences(wanted, seen, "association")
    ]


def different_qos(cluster: SlurmCluster, plan: Plan) -> list[str]:
    """Return where slurmdbd's QOS differ from the scenario."""
    columns = association_comparison.columns(QOS)
    seen = association_comparison.parse(
        show(cluster, "qos", f"format=name,{','.join(columns)}"), 1, columns
    )
    wanted = association_comparison.qos(plan.scenario)
    return association_comparison.differences(wanted, seen, "QOS")


def different_users(cluster: SlurmCluster, plan: Plan) -> list[str]:
    """Return where slurmdbd's users of a cluster differ from the scenario."""
    columns = ["DefaultAccount", "AdminLevel", "Coordinators"]
    query = ("user", "withcoord", "withassoc", "where", f"cluster={cluster.name}")
    seen = association_comparison.parse(
        show(cluster, *query, f"format=user,{','.join(columns)}"), 1, columns
    )
    wanted = association_comparison.users(plan.scenario.of_cluster(cluster.name))
    # sacctmgr also lists the users who have accounts on other clusters only.
    seen = {
        key: row
        for key, row in seen.items()
        if row["DefaultAccount"] or key in wanted or key[0] not in plan.scenario.users
    }
    return [
        f"{cluster.name}: {text}"
        for text in association_comparison.differences(wanted, seen, "user")
    ]


def different_licenses(cluster: SlurmCluster, plan: Plan) -> list[str]:
    """Return which of slurmdbd's licenses are missing, and which are not in the scenario."""
    # With clusters, it leaves out licenses that no cluster may use.
    text = show(cluster, "resource", "format=name,server")
    text += show(cluster, "resource", "withclusters", "format=name,server,cluster")
    seen = association_comparison.parse_licenses(text)
    wanted = association_comparison.licenses(plan.scenario)
    return association_comparison.differences(wanted, seen, "license")


def test_associations_and_qos_match_the_scenario(
    clusters: dict[str, SlurmCluster], plan: Plan
) -> None:
    """Fair share, limits, parent and QOS of each association on each cluster.

    Also each QOS, and which licenses slurmdbd divides among clusters.
    """
    problems = [
        text for cluster in clusters.values() for text in different_associations(cluster, plan)
    ]
    problems += different_qos(next(iter(clusters.values())), plan)
    problems += different_licenses(next(iter(clusters.values())), plan)
    assert not problems, "\n".join(problems)


def test_users_and_accounts_match_the_scenario(
    clusters: dict[str, SlurmCluster], plan: Plan
) -> None:
    """Default accounts, AdminLevel, coordinators, descriptions and organizations."""
    problems = [text for cluster in clusters.values() for text in different_users(cluster, plan)]
    columns = ["Description", "Organization", "Coordinators"]
    cluster = next(iter(clusters.values()))
    seen = association_comparison.parse(
        show(cluster, "account", "withcoord", f"format=account,{','.join(columns)}"), 1, columns
    )
    problems += association_comparison.differences(
        association_comparison.accounts(plan.scenario), seen, "account"
    )
    assert not problems, "\n".join(problems)


def different_in_memory(cluster: SlurmCluster, plan: Plan) -> list[str]:
    """Return how the users, associations and QOS in slurmctld's memory differ."""
    wanted = association_comparison.in_memory(plan.scenario.of_cluster(cluster.name))
    shown = cluster.run("scontrol", "--oneliner", "show", "assoc_mgr").stdout
    seen = association_comparison.parse_memory(shown)
    return [
        text
        for *tables, kind in zip(wanted, seen, ("user", "association", "QOS"), strict=True)
        for text in association_comparison.differences(*tables, kind)
    ]


def test_every_slurmctld_knows_the_scenarios_associations(
    clusters: dict[str, SlurmCluster], plan: Plan
) -> None:
    """Only what slurmctld has in memory is enforced; slurmdbd sends changes in the background."""

    def look() -> list[str]:
        return [
            f"{name}: {text}"
            for name, cluster in clusters.items()
            for text in different_in_memory(cluster, plan)
        ]

    def are_wrong_in_slurmdbd(_: list[str]) -> bool:
        comparisons = (different_associations, different_users, different_qos)
        return any(
            different(cluster, plan) for cluster in clusters.values() for different in comparisons
        )

    wait_until(
        look,
        lambda differences: not differences,
        what="each slurmctld to have the scenario's associations in memory",
        timeout=60,
        give_up=are_wrong_in_slurmdbd,
        show="\n".join,
    )
