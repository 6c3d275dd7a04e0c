"""Turn a scenario into a plan: which hosts, in which networks, with which daemons. Pure: no I/O."""

from __future__ import annotations

from dataclasses import dataclass

from harness import options
from harness.options import Offers
from harness.scenario import Cluster, Scenario

# In the order in which they are started; each is an inventory group, a role and a systemd unit.
DAEMONS = ("munge", "mariadb", "slurmdbd", "slurmctld", "slurmd")


@dataclass(frozen=True, slots=True)
class Host:
    """One host. `ports` are the TCP ports and port ranges that other sites may reach."""

    name: str
    site: str
    release: str
    daemons: tuple[str, ...]
    ports: tuple[str, ...]
    cluster: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be brought up. `name` is the scenario's."""

    name: str
    scenario: Scenario
    offers: Offers
    hosts: tuple[Host, ...]

    def with_daemon(self, daemon: str) -> tuple[Host, ...]:
        """Return the hosts that run a daemon."""
        return tuple(host for host in self.hosts if daemon in host.daemons)

    def accounting_client(self) -> Host | None:
        """Return the host on which sacctmgr sets up the accounting database; None without accounting."""
        return self.with_daemon("slurmctld")[0] if self.scenario.accounting else None

    def sites(self) -> tuple[str, ...]:
        """Return the sites that have hosts."""
        return tuple(dict.fromkeys(host.site for host in self.hosts))

    def releases(self) -> dict[str, str]:
        """Return the release of each cluster, and of slurmdbd."""
        scenario = self.scenario
        found = {name: options.release_of(scenario, cluster).name for name, cluster in scenario.clusters.items()}
        if scenario.accounting:
            found["slurmdbd"] = options.release_of(scenario, scenario.accounting).name
        return found


def make_plan(name: str, scenario: Scenario, offers: Offers) -> Plan:
    """Return the plan for a scenario on hosts that offer this much."""
    hosts = [host for cluster in scenario.clusters for host in _cluster_hosts(scenario, cluster, offers)]
    if accounting := scenario.accounting:
        ports = ["22", options.get(options.slurmdbd_conf(scenario), "DbdPort") or "6819"]
        if accounting.job_completion:
            ports.append(str(options.MARIADB_PORT))
        hosts.insert(
            0,
            Host(
                name=accounting.host,
                site=accounting.site or next(iter(scenario.sites)),
                release=options.release_of(scenario, accounting).name,
                daemons=("munge", "mariadb", "slurmdbd"),
                ports=tuple(ports),
            ),
        )
    return Plan(name, scenario, offers, tuple(hosts))


def _cluster_hosts(scenario: Scenario, name: str, offers: Offers) -> list[Host]:
    cluster: Cluster = scenario.clusters[name]
    conf = options.slurm_conf(scenario, name, offers)
    runs_on = {"slurmctld": {cluster.controller}, "slurmd": {*cluster.node_names()}}
    port_of = {
        "slurmctld": options.get(conf, "SlurmctldPort") or "6817",
        "slurmd": options.get(conf, "SlurmdPort") or "6818",
    }
    # srun and salloc listen where they are started: on the controller, or on a node inside a job.
    srun_ports = options.get(conf, "SrunPortRange") or "1024-65535"
    hosts = []
    for host in dict.fromkeys((cluster.controller, *cluster.node_names())):
        daemons = [daemon for daemon, hosts_of in runs_on.items() if host in hosts_of]
        hosts.append(
            Host(
                name=host,
                site=cluster.site or next(iter(scenario.sites)),
                release=options.release_of(scenario, cluster).name,
                daemons=("munge", *daemons),
                ports=("22", *(port_of[daemon] for daemon in daemons), srun_ports),
                cluster=name,
            )
        )
    return hosts
