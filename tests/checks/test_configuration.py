"""Running daemons use the rendered configuration: having it in their files is not enough."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import pytest
from conftest import problems_on, slurm_conf, slurmdbd_differences

from harness import releases, render, slurm_options
from harness.cluster import logs, node_state
from harness.cluster.slurm import SlurmCluster
from harness.plan import Host, Plan
from harness.slurmconf import drift
from harness.ssh import Ssh

# What slurmctld logs when it reads slurm.conf: when it starts, which since 23.11 includes each
# reconfiguration, and when it receives a request or a signal to reconfigure.
_SLURMCTLD_READS = r"started on cluster|Reconfigure signal|Processing Reconfiguration Request"
# What it logs when a slurmd registers: at its start, and then about every half hour.
_DIFFERENT = r"Node ([^ ]+) appears to have a different slurm.conf"


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
        rendered = slurm_conf(plan, name).options
        release = releases.get(plan.releases()[name])
        wrong += prefixed(name, drift.config("slurm.conf", rendered, held, release))
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
        # A node that is resumed gets the address of its host, and a dynamic node that from which
        # slurmctld hears of it.
        dynamic, static = dynamic_nodes(plan, name), scenario.static_nodes()
        for node, line in held.items():
            resumed = node not in static and not node_state.is_powered_down(line["state"])
            if resumed or node in dynamic:
                line.pop("nodeaddr", None)
        wrong += prefixed(name, drift.nodes(conf.nodes, held, conf.options))
        wrong += prefixed(name, drift.nodes(dynamic, held, conf.options, "slurmd --conf"))
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
        conf = slurm_conf(plan, name)
        held = drift.printed_lines(
            cluster.run("scontrol", "--all", "--oneliner", "show", "partition").stdout
        )
        nodes = {**conf.nodes, **dynamic_nodes(plan, name)}
        wrong += prefixed(name, drift.partitions(conf, held, nodes))
    assert not wrong, "\n".join(wrong)


def dynamic_nodes(plan: Plan, cluster: str) -> dict[str, drift.Options]:
    """Return the options of each node that registers itself, with names in lower case."""
    return {
        node: {name.lower(): str(value) for name, value in options.items()}
        for node, options in render.dynamic_nodes(plan.scenario.clusters[cluster]).items()
    }


def test_every_slurmd_has_read_the_slurm_conf_of_slurmctld(
    clusters: dict[str, SlurmCluster], plan: Plan, ssh: Ssh
) -> None:
    """Covers nodes that are always up, also if their file is right again."""
    wrong = []
    for name, cluster in clusters.items():
        reported = reported_as_different(ssh, plan, name)
        started = {node.name: node.slurmd_start or 0 for node in cluster.nodes()}
        hosts = {node: plan.host(host) for node, host in plan.hosts_of(name).items()}
        wrong += [
            has_read_another(name, node)
            for node in sorted(reported.keys() & hosts.keys() & started.keys())
            if hosts[node].provision == "static"
            and reported[node] > max([started[node], *_slurmd_reads(ssh, plan, hosts[node], node)])
        ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.needs("static")
def test_every_slurmd_logs_at_the_rendered_level(ssh: Ssh, plan: Plan) -> None:
    """Covers nodes that slurm.conf names and that are always up, and one slurmd on each host.

    Of its options, a slurmd prints only its log level and log file.
    """

    def look(name: str) -> list[str]:
        host = plan.host(name)
        level = slurm_options.log_level(plan.slurm_conf(str(host.cluster)), "SlurmdDebug")
        show = ["env", f"SLURMD_NODENAME={host.nodes[0]}", "scontrol", "show", "slurmd"]
        answer = ssh.run(name, show, check=False)
        held = re.search(r"^Slurmd Debug += ([0-9]+)$", answer.stdout, re.M)
        if not held:
            return [f"slurmd of {host.nodes[0]} does not print its log level: {answer.stderr}"]
        if int(held[1]) == level:
            return []
        found, wanted = slurm_options.LOG_LEVELS[int(held[1])], slurm_options.LOG_LEVELS[level]
        return [f"slurmd of {host.nodes[0]} logs at level {found}; SlurmdDebug is {wanted}"]

    hosts = [
        host.name
        for host in plan.hosts
        if host.nodes and host.provision == "static"
        # On 22.05, scontrol cannot find a slurmd that slurm.conf does not name.
        if host.nodes[0] not in dynamic_nodes(plan, str(host.cluster))
    ]
    problems = problems_on(hosts, look)
    assert not problems, "\n".join(problems)


def has_read_another(cluster: str, node: str) -> str:
    """Return that the slurmd of a node has read a different slurm.conf."""
    return (
        f"{cluster}: the slurm.conf that slurmd of {node} has read is not that of slurmctld, "
        "which logged this when slurmd registered"
    )


def reported_as_different(ssh: Ssh, plan: Plan, cluster: str) -> dict[str, float]:
    """Return when slurmctld last logged that a node has a different slurm.conf.

    Only lines since slurmctld last read its own slurm.conf count.
    """
    if slurm_options.log_level(plan.slurm_conf(cluster), "SlurmctldDebug") < slurm_options.LOG_INFO:
        return {}  # it does not log when it reads slurm.conf
    reported: dict[str, float] = {}
    for host in plan.with_daemon("slurmctld"):
        if host.cluster != cluster:
            continue
        paths = logs.log_files(plan, host, "slurmctld")
        zone, lines = logs.matching(
            ssh, host.name, paths, "slurmctld", f"{_DIFFERENT}|{_SLURMCTLD_READS}"
        )
        of_host: dict[str, float] = {}
        for at, text in sorted(logs.dated(lines, zone), key=lambda line: line[0]):
            if different := re.search(_DIFFERENT, text):
                of_host[different[1]] = at
            else:
                of_host.clear()
        reported |= of_host
    return reported


def _slurmd_reads(ssh: Ssh, plan: Plan, host: Host, node: str) -> Iterator[float]:
    """Yield when a node's slurmd read slurm.conf: at each start and reload.

    A slurmd before 23.11 does not log a reload, but systemd does.
    """
    paths = dict(zip(host.nodes, logs.log_files(plan, host, "slurmd"), strict=False))
    own_log = [paths[node]] if node in paths else []
    for log, pattern in ((own_log, "slurmd version .* started"), ([], "Reloading ")):
        zone, lines = logs.matching(ssh, host.name, log, "slurmd", pattern)
        yield from (at for at, _ in logs.dated(lines, zone))


@pytest.mark.needs("accounting")
def test_slurmdbd_holds_the_rendered_configuration(
    clusters: dict[str, SlurmCluster], plan: Plan
) -> None:
    wrong = slurmdbd_differences(next(iter(clusters.values())), plan)
    assert not wrong, "\n".join(prefixed("slurmdbd", wrong))
