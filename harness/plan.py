"""Turn a scenario into a plan: which hosts, in which networks, with which daemons. Pure: no I/O."""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness import options, releases
from harness.options import Offers
from harness.scenario import Cluster, Provision, Scenario

# A directory that hosts which come and go share with their controllers: what they write there outlives them.
SHARED_DIRECTORY = "/var/tmp/slurm-harness-witness"  # noqa: S108  on the cluster's hosts, each file by its own job
# Who powers a node whose host is not there all the time.
_MADE_OR_STARTED = {"power", "create"}
# In the order in which they are started; each is an inventory group, a role and a systemd unit.
DAEMONS = ("munge", "mariadb", "slurmdbd", "slurmctld", "slurmrestd", "slurmd")


@dataclass(frozen=True, slots=True)
class Volume:
    """A disk of its own for a directory, which outlives its host; hosts that name the same one share it.

    `public`: everyone may write there, as in /tmp, unless systemd-tmpfiles says otherwise.
    """

    name: str
    directory: str
    public: bool = False


@dataclass(frozen=True, slots=True)
class Host:
    """One host. `ports` are the TCP ports and ranges that other sites may reach; `image` is the user's own.

    `nodes` are the nodes whose slurmd it runs: none, its own name's, or the several that share it. `provision` is how
    its node comes and goes; `with_elastic` marks the controller of such nodes. `disks` are directories that are a small
    disk of their own, in memory, and their sizes. `apptainer`: users can run containers there. `packages` are Debian
    packages besides those of every host.
    """

    name: str
    site: str
    release: str
    daemons: tuple[str, ...]
    ports: tuple[str, ...]
    cluster: str | None = None
    image: str | None = None
    nodes: tuple[str, ...] = ()
    provision: Provision = "static"
    with_elastic: bool = False
    volumes: tuple[Volume, ...] = ()
    disks: tuple[tuple[str, str], ...] = ()
    apptainer: bool = False
    packages: tuple[str, ...] = ()

    @property
    def lasts(self) -> bool:
        """Whether the host is up all the time, with Slurm's daemons or without."""
        return self.provision not in _MADE_OR_STARTED


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

    def lasting_hosts(self) -> tuple[Host, ...]:
        """Return the hosts that are up all the time."""
        return tuple(host for host in self.hosts if host.lasts)

    def hosts_of(self, cluster: str) -> dict[str, str]:
        """Return the nodes of a cluster, each with the host that runs its slurmd."""
        nodes_on = self.scenario.clusters[cluster].nodes_on()
        return {node: host for host, nodes in nodes_on.items() for node in nodes}

    def accounting_client(self) -> Host | None:
        """Return the host on which sacctmgr sets up the accounting database; None without accounting."""
        return self.with_daemon("slurmctld")[0] if self.scenario.accounting else None

    def late_federations(self) -> list[str]:
        """Return the federations that must not be made before their controllers have told slurmdbd of themselves."""
        told = self.releases()
        return [
            name
            for name, federation in self.scenario.federations.items()
            if not all(releases.get(told[cluster]).federates_unregistered for cluster in federation.clusters)
        ]

    def has_late_objects(self) -> bool:
        """Tell whether something in the accounting database has to wait for the controllers."""
        return bool(self.late_federations() or options.late_tres(self.scenario.accounting))

    def sites(self) -> tuple[str, ...]:
        """Return the sites that have hosts."""
        return tuple(dict.fromkeys(host.site for host in self.hosts))

    def clusters_with_limits(self) -> list[str]:
        """Return the clusters that hold users to the limits of accounting, on nodes that last."""
        found = []
        for name, cluster in self.scenario.clusters.items():
            enforced = options.get(options.slurm_conf(self.scenario, name, self.offers), "AccountingStorageEnforce")
            if cluster.static_nodes() and {"limits", "safe", "all"} & {*(enforced or "").lower().split(",")}:
                found.append(name)
        return found

    def clusters_that_confine(self, option: str) -> list[str]:
        """Return the clusters whose nodes hold jobs in cgroups to what an option of cgroup.conf says."""
        found = []
        for name, cluster in self.scenario.clusters.items():
            plugins = options.get(options.slurm_conf(self.scenario, name, self.offers), "TaskPlugin") or ""
            confines = options.get(options.cgroup_conf(self.scenario, name, self.offers), option) or ""
            if cluster.static_nodes() and "task/cgroup" in plugins.lower() and confines.lower() in {"yes", "true"}:
                found.append(name)
        return found

    def releases(self) -> dict[str, str]:
        """Return the release of each cluster, and of slurmdbd."""
        return {name: self.scenario.release_of(part) for name, part in self.scenario.parts().items()}

    def known_faults(self) -> list[str]:
        """Return what Slurm itself is known to get wrong in this combination of releases."""
        members = [name for federation in self.scenario.federations.values() for name in federation.clusters]
        older = {self.releases()[name] for name in members}
        newer = sorted({*self.releases().values()})
        faults = (fault for release in newer for fault in releases.get(release).federation_faults)
        with_backup = {self.releases()[name] for name, one in self.scenario.clusters.items() if one.backup_controllers}
        backup_faults = [what for release in sorted(with_backup) for what in releases.get(release).backup_faults]
        return [fault.what for fault in faults if fault.older & older] + backup_faults


def make_plan(name: str, scenario: Scenario, offers: Offers) -> Plan:
    """Return the plan for a scenario on hosts that offer this much."""
    hosts = [host for cluster in scenario.clusters for host in _cluster_hosts(scenario, cluster, offers)]
    if accounting := scenario.accounting:
        ports = ["22", options.get(options.slurmdbd_conf(scenario), "DbdPort") or "6819"]
        if accounting.job_completion:
            ports.append(str(options.MARIADB_PORT))
        host = Host(
            name=accounting.host,
            site=accounting.site or next(iter(scenario.sites)),
            release=scenario.release_of(accounting),
            daemons=("munge", "mariadb", "slurmdbd"),
            ports=tuple(ports),
            image=accounting.image,
        )
        hosts = [host, *hosts] if host.name not in {one.name for one in hosts} else [_both(host, one) for one in hosts]
        if accounting.backup:
            hosts.insert(1, replace(host, name=accounting.backup, daemons=("munge", "slurmdbd")))
    disks = {host.name: tuple(scenario.disks.get(host.name, {}).items()) for host in hosts}
    shared = tuple(
        Volume(f"shared-{number}", directory, public=True)
        for number, directory in enumerate(scenario.shared_directories, 1)
    )
    return Plan(
        name,
        scenario,
        offers,
        tuple(replace(host, disks=disks[host.name], volumes=(*host.volumes, *shared)) for host in hosts),
    )


def _both(accounting: Host, host: Host) -> Host:
    """Return a cluster's host, with the daemons of the accounting host if it is that too."""
    if host.name != accounting.name:
        return host
    daemons = tuple(daemon for daemon in DAEMONS if daemon in {*accounting.daemons, *host.daemons})
    return replace(host, daemons=daemons, ports=tuple(dict.fromkeys((*accounting.ports, *host.ports))))


def _cluster_hosts(scenario: Scenario, name: str, offers: Offers) -> list[Host]:
    cluster: Cluster = scenario.clusters[name]
    conf = options.slurm_conf(scenario, name, offers)
    nodes_on = cluster.nodes_on()
    provision_of = cluster.provision_of()
    known = releases.get(scenario.release_of(cluster))
    controllers = (cluster.controller, *cluster.backup_controllers)
    rest_hosts = [cluster.rest.host or cluster.controller] if cluster.rest else []
    runs_on = {"slurmctld": {*controllers}, "slurmrestd": {*rest_hosts}, "slurmd": {*nodes_on}}
    port_of = {
        "slurmctld": options.get(conf, "SlurmctldPort") or "6817",
        "slurmd": options.get(conf, "SlurmdPort") or "6818",
    }
    if cluster.rest:
        port_of["slurmrestd"] = str(cluster.rest.port)
    if cluster.hosts:
        port_of["slurmd"] = options.node_ports(max(map(len, nodes_on.values())))
    # srun and salloc listen where they are started: on the controller, or on a node inside a job.
    srun_ports = options.get(conf, "SrunPortRange") or "1024-65535"
    shared = (Volume("shared", SHARED_DIRECTORY, public=True),)
    state = (Volume(f"{name}-state", options.state_save_location(conf)),)
    hosts = []
    for host in dict.fromkeys((*controllers, *rest_hosts, *nodes_on)):
        daemons = [daemon for daemon, hosts_of in runs_on.items() if host in hosts_of]
        provision = provision_of.get(host, "static")
        # Someone else starts slurmd there.
        started = [] if provision in {"manual", "remote"} else daemons
        with_elastic = host == cluster.controller and cluster.elastic()
        hosts.append(
            Host(
                name=host,
                site=cluster.site or next(iter(scenario.sites)),
                release=scenario.release_of(cluster),
                daemons=("munge", *started),
                ports=("22", *(port_of[daemon] for daemon in daemons), srun_ports),
                cluster=name,
                image=cluster.image,
                nodes=nodes_on.get(host, ()),
                provision=provision,
                with_elastic=with_elastic,
                apptainer=cluster.apptainer and host in nodes_on and bool(known.apptainer_suite),
                packages=cluster.packages,
                volumes=(
                    *(shared if with_elastic or provision in _MADE_OR_STARTED else ()),
                    *(state if cluster.backup_controllers and host in controllers else ()),
                ),
            )
        )
    return hosts
