"""Running daemons use the rendered configuration: having it in their files is not enough."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest
from conftest import slurm_conf, slurmdbd_differences

from harness.cluster.slurm import SlurmCluster
from harness.plan import Plan
from harness.slurmconf import drift


def prefixed(name: str, differences: Iterable[str]) -> Iterator[str]:
    """Yield differences, each with the name of the cluster or daemon in front."""
    yield from (f"{name}: {difference}" for difference in differences)


def test_slurmctld_holds_the_rendered_configuration(
    clusters: dict[str, SlurmCluster], plan: Plan
) -> None:
    wrong = []
    for name, cluster in clusters.items():
        held = drift.printed(cluster.run("scontrol", "show", "config").stdout)
        assert held, f"{name}: slurmctld prints no configuration"
        wrong += prefixed(name, drift.config("slurm.conf", slurm_conf(plan, name).options, held))
        # scontrol compares the hash of the file on its host with that of the file that slurmctld
        # last read.
        if "different" in (hashes := held.get("hash_val", "")).lower():
            wrong.append(
                f"{name}: the slurm.conf that slurmctld has read "
                f"is not the one on {cluster.controller}: {hashes}"
            )
    assert not wrong, "\n".join(wrong)


def test_slurmctld_holds_the_rendered_nodes(clusters: dict[str, SlurmCluster], plan: Plan) -> None:
    wrong = []
    for name, cluster in clusters.items():
        conf = slurm_conf(plan, name)
        scenario = plan.scenario.clusters[name]
        held = drift.printed_lines(
            cluster.run("scontrol", "--all", "--oneliner", "show", "node").stdout
        )
        if scenario.kubernetes:  # the operator changes gres while the cluster runs
            held = {
                node: {key: value for key, value in line.items() if key != "gres"}
                for node, line in held.items()
            }
        wrong += prefixed(name, drift.nodes(conf.nodes, held, conf.options))
        wrong += [
            f"{name}: node {node} is not in the scenario"
            for node in {*held} - {*scenario.node_names()}
        ]
    assert not wrong, "\n".join(wrong)


def test_slurmctld_holds_the_rendered_partitions(
    clusters: dict[str, SlurmCluster], plan: Plan
) -> None:
    wrong = []
    for name, cluster in clusters.items():
        nodes = plan.scenario.clusters[name].node_names()
        held = drift.printed_lines(
            cluster.run("scontrol", "--all", "--oneliner", "show", "partition").stdout
        )
        wrong += prefixed(name, drift.partitions(slurm_conf(plan, name).partitions, held, nodes))
    assert not wrong, "\n".join(wrong)


@pytest.mark.needs("accounting")
def test_slurmdbd_holds_the_rendered_configuration(
    clusters: dict[str, SlurmCluster], plan: Plan
) -> None:
    wrong = slurmdbd_differences(next(iter(clusters.values())), plan)
    assert not wrong, "\n".join(prefixed("slurmdbd", wrong))
