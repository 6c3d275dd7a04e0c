"""Turn a scenario into a plan: which hosts, in which networks, with which daemons. Pure: no I/O."""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness import origins, releases, slurm_options
from harness.capabilities import Capabilities
from harness.origins import Family, Origin
from harness.scenario import Cluster, Part, Provision, Scenario

# A directory that hosts that come and go share with their controllers: its files outlive the hosts.
SHARED_DIRECTORY = "/var/tmp/slurm-harness-traces"  # noqa: S108  each job writes its own file
# Where the users' home directories are. If hosts share it, only root creates directories in it.
HOMES = "/home"
# slapd(8): LDAP over TLS.
LDAPS_PORT = "636"
# How nodes are provisioned whose host is not always up.
_MADE_OR_STARTED = {"power", "create"}
# Daemons in the order in which they start; each is an inventory group, a role and a systemd unit.
DAEMONS = (
    "dnsmasq",
    "munge",
    "slapd",
    "sssd",
    "mariadb",
    "slurmdbd",
    "slurmctld",
    "slurmrestd",
    "sackd",
    "slurmd",
    "prometheus",
)


@dataclass(frozen=True, slots=True)
class Volume:
    """A separate disk for a directory, which outlives its host.

    Hosts with the same volume share it. `public`: everyone may write to it, as to /tmp, unless
    systemd-tmpfiles changes that. With a `size`, it is a small disk in memory, whose contents are
    lost when the last of these hosts stops.
    """

    name: str
    directory: str
    public: bool = False
    size: str | None = None


@dataclass(frozen=True, slots=True)
class Host:
    """One host.

    `ports` are the TCP ports and ranges that other sites can reach. `image` is the user's own
    image. `login`: users log in to it and submit jobs. `nodes` are the nodes whose slurmd it runs:
    none, the node of its name, or several that share the host. `provision` is how its node is
    powered up and down; `with_elastic` marks the controller of such nodes. `disks` are directories
    on separate small disks in memory, with their sizes. `apptainer`: users can run Apptainer
    containers. `packages` are packages in addition to those of every host, `spank_plugins` the
    paths of plugins with their sources, `user_data` the text with which cloud-init initializes it.
    `origin` is where Slurm comes from, if that is not Debian's packages of the release.
    `dns_server` is the host that resolves names for it; None if it has them in /etc/hosts.
    """

    name: str
    site: str
    release: str
    daemons: tuple[str, ...]
    ports: tuple[str, ...]
    cluster: str | None = None
    image: str | None = None
    login: bool = False
    nodes: tuple[str, ...] = ()
    provision: Provision = "static"
    with_elastic: bool = False
    volumes: tuple[Volume, ...] = ()
    disks: tuple[tuple[str, str], ...] = ()
    apptainer: bool = False
    packages: tuple[str, ...] = ()
    spank_plugins: tuple[tuple[str, str], ...] = ()
    user_data: str = ""
    origin: Origin | None = None
    dns_server: str | None = None

    @property
    def family(self) -> Family:
        """What is particular to the host's distribution."""
        return origins.family(self.origin.family if self.origin else "debian")

    @property
    def is_permanent(self) -> bool:
        """Whether the host is always up, even if Slurm's daemons on it are not."""
        return self.provision not in _MADE_OR_STARTED


@dataclass(frozen=True, slots=True)
class Plan:
    """The hosts that `harness up` brings up for a scenario. `name` is the scenario's."""

    name: str
    scenario: Scenario
    capabilities: Capabilities
    hosts: tuple[Host, ...]

    def host(self, name: str) -> Host:
        """Return the host with a name; raise KeyError if there is none."""
        for host in self.hosts:
            if host.name == name:
                return host
        raise KeyError(name)

    def slurm_conf(self, cluster: str) -> dict[str, str]:
        """Return the global options of a cluster's slurm.conf."""
        return slurm_options.slurm_conf(self.scenario, cluster, self.capabilities)

    def cgroup_conf(self, cluster: str) -> dict[str, str]:
        """Return the options of a cluster's cgroup.conf."""
        return slurm_options.cgroup_conf(self.scenario, cluster, self.capabilities)

    def oci_conf(self, cluster: str) -> dict[str, str]:
        """Return the options of a cluster's oci.conf; none if it runs no containers."""
        return slurm_options.oci_conf(self.scenario, cluster, self.capabilities)

    def with_daemon(self, daemon: str) -> tuple[Host, ...]:
        """Return the hosts that run a daemon."""
        return tuple(host for host in self.hosts if daemon in host.daemons)

    def permanent_hosts(self) -> tuple[Host, ...]:
        """Return the hosts that are always up."""
        return tuple(host for host in self.hosts if host.is_permanent)

    def hosts_of(self, cluster: str) -> dict[str, str]:
        """Return the nodes of a cluster, each with the host that runs its slurmd."""
        nodes_on = self.scenario.clusters[cluster].nodes_on()
        return {node: host for host, nodes in nodes_on.items() for node in nodes}

    def accounting_client(self) -> Host | None:
        """Return the host on which sacctmgr sets up the accounting database.

        None if the scenario has no accounting. With auth/slurm, commands work only where a daemon
        signs their credentials, and slurmctld has not been started yet.
        """
        if not self.scenario.accounting:
            return None
        return self.with_daemon("slurmctld" if self.scenario.auth == "munge" else "mariadb")[0]

    def login_hosts(self) -> tuple[Host, ...]:
        """Return the hosts on which users log in and submit jobs."""
        return tuple(host for host in self.hosts if host.login)

    def users_log_in(self) -> bool:
        """Return whether users log in over SSH; on the user's own machines, these decide that."""
        users = self.scenario.users
        return bool(users and self.login_hosts() and self.capabilities.engine)

    def shares_homes(self) -> bool:
        """Return whether all hosts share the users' home directories."""
        return bool(self.scenario.users) and HOMES in self.scenario.shared_directories

    def with_reservations(self) -> tuple[Host, ...]:
        """Return the hosts on which scontrol creates the reservations of their cluster."""
        clusters = self.scenario.clusters.values()
        names = {cluster.controller for cluster in clusters if cluster.reservations}
        return tuple(host for host in self.hosts if host.name in names)

    def separate_clusters(self) -> list[tuple[str, str]]:
        """Return each cluster with the next one that shares its slurmdbd but no federation."""
        if not self.scenario.accounting:
            return []
        names = [*self.scenario.clusters]
        federations = [federation.clusters for federation in self.scenario.federations.values()]
        pairs = []
        for number, name in enumerate(names):
            joined = {name}.union(*(members for members in federations if name in members))
            others = [*names[number + 1 :], *names[:number]]
            pairs += [(name, other) for other in others if other not in joined][:1]
        return pairs

    def late_federations(self) -> list[str]:
        """Return the federations that have to wait until their controllers have registered."""
        release_of = self.releases()
        return [
            name
            for name, federation in self.scenario.federations.items()
            if not all(
                releases.get(release_of[cluster]).federates_unregistered
                for cluster in federation.clusters
            )
        ]

    def has_late_objects(self) -> bool:
        """Return whether some objects of the accounting database must wait for the controllers."""
        return bool(self.late_federations() or slurm_options.late_tres(self.scenario))

    def sites(self) -> tuple[str, ...]:
        """Return the sites that have hosts."""
        return tuple(dict.fromkeys(host.site for host in self.hosts))

    def metric_readers(self, cluster: str) -> releases.Readers | None:
        """Return who may read the metrics of a cluster's slurmctld; None if it serves none."""
        conf = self.slurm_conf(cluster)
        release = releases.get(self.releases()[cluster])
        return releases.metric_readers(release, lambda name: slurm_options.get(conf, name))

    def metric_targets(self) -> dict[str, str]:
        """Return HOST:PORT of the slurmctld of each cluster that serves metrics to anyone at all.

        It is that of the first controller: while that one is in control, backups redirect to it.
        """
        return {
            name: slurm_options.conf_servers(cluster, self.slurm_conf(name))[0]
            for name, cluster in self.scenario.clusters.items()
            if self.metric_readers(name) in {"anyone", "token"}
        }

    def clusters_with_private_metrics(self) -> list[str]:
        """Return the clusters whose metrics Prometheus reads with a token."""
        if not self.scenario.monitoring:
            return []
        return [name for name in self.scenario.clusters if self.metric_readers(name) == "token"]

    def clusters_with_limits(self) -> list[str]:
        """Return the clusters with static nodes that enforce the limits of accounting."""
        names = []
        for name, cluster in self.scenario.clusters.items():
            enforced = slurm_options.get(
                self.slurm_conf(name),
                "AccountingStorageEnforce",
            )
            if cluster.static_nodes() and {"limits", "safe", "all"} & {
                *(enforced or "").lower().split(",")
            }:
                names.append(name)
        return names

    def has_scrontab(self, cluster: str) -> bool:
        """Return whether users of a cluster can have a scrontab."""
        parameters = slurm_options.get(self.slurm_conf(cluster), "ScronParameters") or ""
        return "enable" in parameters.lower().split(",")

    def confines_jobs(self, host: Host) -> bool:
        """Return whether the slurmd of a host uses cgroups."""
        return (
            host.cluster is not None
            and "slurmd" in host.daemons
            and slurm_options.is_contained(
                self.scenario, self.scenario.clusters[host.cluster], self.capabilities
            )
        )

    def clusters_that_confine(self, option: str) -> list[str]:
        """Return the clusters with static nodes that enforce an option of cgroup.conf.

        ConstrainCores is such an option.
        """
        names = []
        for name, cluster in self.scenario.clusters.items():
            plugins = slurm_options.get(self.slurm_conf(name), "TaskPlugin") or ""
            if (
                cluster.static_nodes()
                and "task/cgroup" in plugins.lower()
                and slurm_options.is_yes(self.cgroup_conf(name), option)
            ):
                names.append(name)
        return names

    def clusters_that_confine_memory(self) -> list[str]:
        """Return the clusters with static nodes that kill jobs which exceed their memory.

        On a kernel that is not the run's own, such jobs may swap, if Slurm lets them.
        """
        confined = self.clusters_that_confine("ConstrainRAMSpace")
        if self.capabilities.own_kernel:
            return confined
        return [
            name for name in self.clusters_that_confine("ConstrainSwapSpace") if name in confined
        ]

    def releases(self) -> dict[str, str]:
        """Return the release of each cluster, and of slurmdbd."""
        return {
            name: self.scenario.release_of(part) for name, part in self.scenario.parts().items()
        }

    def origins(self) -> dict[str, Origin]:
        """Return where the Slurm of parts comes from, if not from images or Debian's packages."""
        return {name: part.origin for name, part in self.scenario.parts().items() if part.origin}

    def versions(self) -> dict[str, str]:
        """Return the release of each cluster and of slurmdbd, with the patch level if known."""
        return self.releases() | {name: origin.version for name, origin in self.origins().items()}

    def choices(self) -> dict[str, str]:
        """Return the release or origin of each part, as `--release` names it."""
        return self.releases() | {
            name: origin.choice or origin.release for name, origin in self.origins().items()
        }

    def known_faults(self) -> list[str]:
        """Return the known bugs of Slurm in this combination of releases."""
        members = [
            name
            for federation in self.scenario.federations.values()
            for name in federation.clusters
        ]
        older = {self.releases()[name] for name in members}
        newer = sorted({*self.releases().values()})
        faults = (fault for release in newer for fault in releases.get(release).federation_faults)
        with_backup = {
            self.releases()[name]
            for name, cluster in self.scenario.clusters.items()
            if cluster.backup_controllers
        }
        backup_faults = [
            what for release in sorted(with_backup) for what in releases.get(release).backup_faults
        ]
        return [fault.what for fault in faults if fault.older & older] + backup_faults


def make_plan(name: str, scenario: Scenario, capabilities: Capabilities) -> Plan:
    """Return the plan for a scenario on hosts with these capabilities."""
    hosts = [
        host
        for cluster in scenario.clusters
        for host in _cluster_hosts(scenario, cluster, capabilities)
    ]
    if accounting := scenario.accounting:
        ports = ["22", slurm_options.port_of(slurm_options.slurmdbd_conf(scenario), "slurmdbd")]
        if accounting.job_completion:
            ports.append(str(slurm_options.MARIADB_PORT))
        host = Host(
            name=accounting.host,
            site=accounting.site or next(iter(scenario.sites)),
            release=scenario.release_of(accounting),
            daemons=(*authentication(scenario), "mariadb", "slurmdbd"),
            ports=tuple(ports),
            image=accounting.image,
            packages=_package_names(scenario, accounting),
            origin=accounting.origin,
        )
        hosts = (
            [host, *hosts]
            if host.name not in {member.name for member in hosts}
            else [_with_accounting(host, member) for member in hosts]
        )
        if accounting.backup:
            daemons = (*authentication(scenario), "slurmdbd")
            hosts.insert(1, replace(host, name=accounting.backup, daemons=daemons))
    hosts = _with_dns(scenario, _with_directory(scenario, _monitored(scenario, hosts)))
    disks = {host.name: tuple(scenario.disks.get(host.name, {}).items()) for host in hosts}
    shared = tuple(
        Volume(f"shared-{number}", directory, public=directory != HOMES, size=size)
        for number, (directory, size) in enumerate(scenario.shared_directories.items(), 1)
    )
    return Plan(
        name,
        scenario,
        capabilities,
        tuple(
            replace(host, disks=disks[host.name], volumes=(*host.volumes, *shared))
            for host in hosts
        ),
    )


def _monitored(scenario: Scenario, hosts: list[Host]) -> list[Host]:
    """Return hosts of which one runs Prometheus: one of `hosts`, or one more like the first."""
    if (monitoring := scenario.monitoring) is None:
        return hosts
    hosts = _with_host(scenario, hosts, monitoring.host, monitoring.site)
    return [
        replace(
            host,
            daemons=(*host.daemons, "prometheus"),
            ports=(*host.ports, str(monitoring.port)),
            packages=tuple(dict.fromkeys((*host.packages, "prometheus"))),
        )
        if host.name == monitoring.host
        else host
        for host in hosts
    ]


def _with_host(scenario: Scenario, hosts: list[Host], name: str, site: str | None) -> list[Host]:
    """Return hosts with the one of a service, which is like the first host if it is not in them."""
    if name in {host.name for host in hosts}:
        return hosts
    own = Host(
        name=name,
        site=site or next(iter(scenario.sites)),
        release=hosts[0].release,
        daemons=authentication(scenario),
        ports=("22",),
        image=hosts[0].image,
        origin=hosts[0].origin,
    )
    return [*hosts, own]


def _with_directory(scenario: Scenario, hosts: list[Host]) -> list[Host]:
    """Return hosts that have their users from a directory: one runs slapd, and all run sssd."""
    if (directory := scenario.directory) is None:
        return hosts
    changed = []
    for host in _with_host(scenario, hosts, directory.host, directory.site):
        serves = host.name == directory.host
        own = {*host.daemons, "sssd", *(["slapd"] if serves else [])}
        packages = (*host.packages, *(["slapd"] if serves else []), "sssd-ldap", "libnss-sss")
        changed.append(
            replace(
                host,
                daemons=tuple(daemon for daemon in DAEMONS if daemon in own),
                ports=(*host.ports, *([LDAPS_PORT] if serves else [])),
                packages=tuple(dict.fromkeys(packages)),
            )
        )
    return changed


def _with_dns(scenario: Scenario, hosts: list[Host]) -> list[Host]:
    """Return hosts of which one of each site with a DNS server runs it, and the others use it."""
    for site, server in scenario.dns_servers().items():
        hosts = [
            replace(
                host,
                daemons=("dnsmasq", *host.daemons),
                packages=tuple(dict.fromkeys((*host.packages, "dnsmasq"))),
            )
            if host.name == server
            else replace(host, dns_server=server)
            if host.site == site
            else host
            for host in _with_host(scenario, hosts, server, site)
        ]
    return hosts


def _with_accounting(accounting: Host, host: Host) -> Host:
    """Return a cluster's host; the accounting host also gets the daemons of accounting."""
    if host.name != accounting.name:
        return host
    daemons = tuple(daemon for daemon in DAEMONS if daemon in {*accounting.daemons, *host.daemons})
    return replace(
        host, daemons=daemons, ports=tuple(dict.fromkeys((*accounting.ports, *host.ports)))
    )


def _cluster_hosts(scenario: Scenario, name: str, capabilities: Capabilities) -> list[Host]:
    cluster: Cluster = scenario.clusters[name]
    conf = slurm_options.slurm_conf(scenario, name, capabilities)
    nodes_on = cluster.nodes_on()
    provision_of, user_data_of = cluster.provision_of(), cluster.user_data_of()
    known = releases.get(scenario.release_of(cluster))
    packaged = bool(known.apptainer_suite) and not (cluster.origin and cluster.origin.base)
    controllers = (cluster.controller, *cluster.backup_controllers)
    rest_hosts = [cluster.rest_host()] if cluster.rest else []
    login = cluster.login_hosts()
    runs_on = {
        "slurmctld": {*controllers},
        "slurmrestd": {*rest_hosts},
        "sackd": {*login} if known.has_sackd else set(),
        "slurmd": {*nodes_on},
    }
    port_of = {daemon: slurm_options.port_of(conf, daemon) for daemon in ("slurmctld", "slurmd")}
    if cluster.rest:
        port_of["slurmrestd"] = str(cluster.rest.port)
    if cluster.hosts:
        port_of["slurmd"] = slurm_options.node_ports(max(map(len, nodes_on.values())))
    port_of["sackd"] = port_of["slurmd"]  # _listen_for_reconf() in Slurm's sackd.c
    # srun and salloc listen on the host on which they run, which can be any.
    srun_ports = slurm_options.get(conf, "SrunPortRange") or "1024-65535"
    shared = (Volume("shared", SHARED_DIRECTORY, public=True),)
    state = (Volume(f"{name}-state", slurm_options.state_save_location(conf)),)
    hosts = []
    for host in dict.fromkeys((*controllers, *rest_hosts, *login, *nodes_on)):
        daemons = [daemon for daemon, hosts_of in runs_on.items() if host in hosts_of]
        provision = provision_of.get(host, "static")
        # The provisioner starts slurmd on the other hosts.
        started = [] if provision in {"manual", "remote"} else daemons
        with_elastic = host == cluster.controller and cluster.elastic()
        hosts.append(
            Host(
                name=host,
                site=cluster.site or next(iter(scenario.sites)),
                release=scenario.release_of(cluster),
                daemons=(*authentication(scenario), *started),
                ports=("22", *(port_of[daemon] for daemon in daemons), srun_ports),
                cluster=name,
                image=cluster.image,
                login=host in login,
                nodes=nodes_on.get(host, ()),
                provision=provision,
                with_elastic=with_elastic,
                apptainer=cluster.apptainer and host in nodes_on and packaged,
                packages=_package_names(scenario, cluster),
                spank_plugins=tuple(
                    (path, source.text) for path, source in cluster.spank_plugins.items()
                ),
                user_data=user_data_of.get(host, ""),
                origin=cluster.origin,
                volumes=(
                    *(shared if with_elastic or provision in _MADE_OR_STARTED else ()),
                    *(state if cluster.backup_controllers and host in controllers else ()),
                ),
            )
        )
    return hosts


def authentication(scenario: Scenario) -> tuple[str, ...]:
    """Return the daemons that authenticate others: with auth/slurm, Slurm's own do that."""
    return ("munge",) if scenario.auth == "munge" else ()


def _package_names(scenario: Scenario, part: Part) -> tuple[str, ...]:
    """Return the packages to add to the hosts of a part."""
    return tuple(dict.fromkeys((*scenario.package_names, *part.package_names)))
