"""Render a plan into the files of every host.

Pure: no clock, no randomness, no network, no secrets.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import groupby
from pathlib import PurePosixPath
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from harness import association_groups, releases, run_secrets, slurm_options
from harness.capabilities import Capabilities
from harness.parsing import hostlist
from harness.plan import LDAPS_PORT, Host, Plan
from harness.scenario import Cluster, Monitoring, NodeGroup, Scenario, UserDirectory, gpus_of
from harness.shipped_files import TEMPLATES


@dataclass(frozen=True, slots=True)
class RenderedFile:
    """One file of a host. When it changes, systemd must restart or reload `unit`.

    In place of a secret, `text` has a placeholder (see run_secrets.secret).
    """

    path: str
    text: str
    owner: str = "root"
    group: str = "root"
    mode: str = "0644"
    unit: str | None = None
    action: str | None = None

    def sha256(self) -> str:
        """Return the hash of the text, in which marks represent secrets."""
        return _sha256(self.text)


@lru_cache
def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


Tree = dict[str, tuple[RenderedFile, ...]]
# The key with which all users log in; its private half stays in the run's directory.
USER_KEY = "user_ssh_key_pub"
TOKEN_FILE = "/etc/slurm/provision.token"  # noqa: S105  its path
_DNSMASQ = "/etc/dnsmasq.d/cluster.conf"
_SLAPD = "/etc/systemd/system/slapd.service"
# The name of the directory of users, and where slapd keeps it.
_SUFFIX, _DIRECTORY_DATABASE = "dc=cluster", "/var/lib/ldap/cluster"
_LDAP_KEY = "/etc/ldap/directory.key"
# The certificate of the directory, which every host has.
LDAP_CERTIFICATE = "/etc/ssl/certs/directory.crt"
_PROMETHEUS_TOKEN = "/etc/prometheus/slurm.token"  # noqa: S105  its path
_SLURM_CONF = "/etc/slurm/slurm.conf"
_POWER_KEY = "/etc/slurm/power_ssh_key"
_SACKD = "/etc/systemd/system/sackd.service.d/options.conf"
_SACCTMGR_CONF = "/usr/local/lib/slurm-harness/slurm.conf"
_NODE_POWER = "/usr/local/sbin/slurm-node-power"
# The program that stands in for those that the site's scripts call and the hosts lack.
_STAND_IN = "/usr/local/lib/slurm-harness/stand-in"
# The templates of MariaDB's files, whose places depend on the distribution.
_MARIADB_SETTINGS = "/etc/mysql/mariadb.conf.d/90-slurm.cnf"
_MARIADB_STATEMENTS = "/etc/mysql/slurm.sql"


@dataclass(frozen=True, slots=True)
class _ClusterFacts:
    """What the hosts of a cluster share.

    `conf` are the options of slurm.conf; `texts` are the files by path. `devices` are the files
    that represent a node's devices, and `flags` are those with which a slurmd registers a dynamic
    node; other nodes are not in them.
    """

    conf: Mapping[str, str]
    texts: Mapping[str, str]
    devices: Mapping[str, Sequence[str]]
    flags: Mapping[str, Sequence[str]]


# The daemons that sign credentials of auth/slurm.
_SIGNING = ("slurmctld", "slurmdbd", "sackd", "slurmd")
_NO_LOGIN = "/etc/nologin"
_PAM_OF_SSHD = "/etc/pam.d/sshd"
_NSS_SLURM = ("/etc/nss_slurm.conf", "/etc/systemd/system/slurmd.service.d/nss_slurm.conf")
_RESERVATIONS = "/usr/local/sbin/slurm-reservations"


@dataclass(frozen=True, slots=True)
class _Shared:
    """What the hosts of a plan share."""

    clusters: Mapping[str, _ClusterFacts]
    user_files: Sequence[RenderedFile]
    accounting_client: Host | None


def render(plan: Plan, hosts: Iterable[Host] | None = None) -> Tree:
    """Return the files of each host, or only of `hosts`.

    Files that are the same on several hosts are the same object.
    """
    users, groups = plan.scenario.users, plan.scenario.groups
    directory = plan.scenario.directory
    paths = ["/etc/sysusers.d/cluster-users.conf", "/etc/tmpfiles.d/cluster-users.conf"]
    facts = {"users": users, "groups": groups, "key": "", "directory": bool(directory)}
    if directory:
        del paths[0]
    if plan.users_log_in():
        facts["key"] = run_secrets.secret(USER_KEY)
    shared = _Shared(
        {name: _cluster_facts(plan, name) for name in plan.scenario.clusters},
        [
            *(RenderedFile(path, template(path, **facts)) for path in paths if users or groups),
            *(_sssd_files(plan.scenario, directory) if directory else ()),
        ],
        plan.accounting_client(),
    )
    seen: dict[RenderedFile, RenderedFile] = {}
    return {
        host.name: tuple(seen.setdefault(file, file) for file in _host_files(plan, host, shared))
        for host in (plan.hosts if hosts is None else hosts)
    }


def slurm_conf(plan: Plan, cluster: str) -> str:
    """Return the text of a cluster's slurm.conf."""
    return _cluster_files(plan, cluster, plan.slurm_conf(cluster))[_SLURM_CONF]


def cluster_files(plan: Plan, cluster: str, changes: Mapping[str, str | None]) -> dict[str, str]:
    """Return name and text of the files in /etc/slurm that all hosts of a cluster share.

    `changes` override options of slurm.conf; None removes one.
    """
    conf = slurm_options.merged(plan.slurm_conf(cluster), changes)
    files = _cluster_files(plan, cluster, conf)
    return {PurePosixPath(path).name: text for path, text in files.items()}


def manifest(files: Iterable[RenderedFile]) -> dict[str, dict[str, str | None]]:
    """Return everything about a host's files except their text: path -> facts."""
    return {
        file.path: {
            "owner": file.owner,
            "group": file.group,
            "mode": file.mode,
            "sha256": file.sha256(),
            "unit": file.unit,
            "action": file.action,
        }
        for file in files
    }


def _host_files(plan: Plan, host: Host, shared: _Shared) -> Iterator[RenderedFile]:
    scenario, clusters = plan.scenario, shared.clusters
    yield from _authentication_key(plan, host, clusters)
    yield from shared.user_files
    if plan.users_log_in() and {"slurmctld", "slurmdbd", "mariadb"} & {*host.daemons}:
        text = template(_NO_LOGIN, hosts=[login.name for login in plan.login_hosts()])
        yield RenderedFile(_NO_LOGIN, text)
    if host.cluster:
        yield from _files_of_member(plan, host, host.cluster, clusters[host.cluster])
    if "slurmdbd" in host.daemons:
        yield from _accounting_files(scenario, host)
    if _takes_tokens(plan, host):
        yield _token_key(scenario, host, clusters)
    if "dnsmasq" in host.daemons:
        yield RenderedFile(_DNSMASQ, template(_DNSMASQ), unit="dnsmasq", action="restart")
    if "slapd" in host.daemons:
        yield from _slapd_files(scenario, host)
    if (monitoring := scenario.monitoring) and host.name == monitoring.host:
        yield from _prometheus_files(plan, host, monitoring)
    yield from _tmpfiles(plan, host, clusters)
    if host == shared.accounting_client:
        yield from _accounting_objects(plan, host, clusters)
    for cluster in scenario.clusters.values():
        if host.name == cluster.controller and cluster.reservations:
            text = template(_RESERVATIONS, reservations=cluster.reservations)
            yield RenderedFile(_RESERVATIONS, text, mode="0755")


def _authentication_key(
    plan: Plan, host: Host, clusters: Mapping[str, _ClusterFacts]
) -> Iterator[RenderedFile]:
    """Yield the key that a host shares with all others, if something on it needs the key."""
    if plan.scenario.auth == "munge":
        key = run_secrets.secret("munge_key")
        path, owner = "/etc/munge/munge.key", "munge"
        yield RenderedFile(path, key, owner, owner, "0400", "munge", "restart")
        return
    daemons = {*host.daemons, *(["slurmd"] if host.nodes else [])}
    unit = next((name for name in _SIGNING if name in daemons), None)
    if unit:
        of_dbd = slurm_options.slurmdbd_conf(plan.scenario)
        conf = clusters[host.cluster].conf if host.cluster else of_dbd
        owner = slurm_options.get(conf, "SlurmUser") or "root"
        key = run_secrets.secret("slurm_key")
        yield RenderedFile(slurm_options.AUTH_KEY, key, owner, owner, "0600", unit, "restart")


def _files_of_member(
    plan: Plan, host: Host, name: str, facts: _ClusterFacts
) -> Iterator[RenderedFile]:
    """Yield the files that a host has because it belongs to a cluster."""
    conf, texts = facts.conf, facts.texts
    cluster = plan.scenario.clusters[name]
    flags = _slurmd_flags(cluster, host, facts)
    for path in _units(cluster, host, flags):
        text = _shared_template(path, nodes=host.nodes, flags=flags)
        yield RenderedFile(path, text, unit="slurmd", action="restart")
    if cluster.pam_slurm_adopt and plan.users_log_in() and "slurmd" in host.daemons:
        yield RenderedFile(_PAM_OF_SSHD, template(_PAM_OF_SSHD))
    if cluster.nss_slurm and host.nodes:
        spool = slurm_options.get(conf, "SlurmdSpoolDir") or "/var/spool/slurmd"
        for path in _NSS_SLURM:
            text = template(path, node=host.nodes[0], spool=spool.replace("%h", host.name))
            yield RenderedFile(path, text, unit="slurmd", action="restart")
    opened = releases.get(plan.scenario.release_of(cluster)).slurmd_opens_controller_scripts
    yield from _power_files(cluster, host, conf, everywhere=opened)
    yield from _slurm_files(cluster, host, texts)
    yield from _scripts(cluster, host, plan.capabilities)
    if "sackd" in host.daemons:
        text = template(_SACKD, servers=",".join(slurm_options.conf_servers(cluster, conf)))
        yield RenderedFile(_SACKD, text, unit="sackd", action="restart")
    if cluster.rest and "slurmrestd" in host.daemons:
        yield from _rest_files(plan.scenario, cluster, host.name, cluster.rest.port)


def _slurm_files(cluster: Cluster, host: Host, texts: Mapping[str, str]) -> Iterator[RenderedFile]:
    """Yield slurm.conf and the files beside it, unless a host gets them from slurmctld."""
    units = (unit for unit in ("slurmctld", "slurmrestd") if unit in host.daemons)
    unit = next(units, None if host.login else "slurmd")
    if "sackd" in host.daemons or (cluster.configless and unit == "slurmd"):
        return
    for path, text in texts.items():
        mode = "0755" if text.startswith("#!") else "0644"
        reloads = path == _SLURM_CONF and unit != "slurmrestd"
        action = ("reload" if reloads else "restart") if unit else None
        yield RenderedFile(path, text, mode=mode, unit=unit, action=action)


def _scripts(cluster: Cluster, host: Host, capabilities: Capabilities) -> Iterator[RenderedFile]:
    """Yield the scripts that a host runs, and what stands in for programs that it lacks.

    Daemons read a script each time they run it, so none has to restart when it changes.
    """
    is_controller = host.name in {cluster.controller, *cluster.backup_controllers}
    places = {"all": True, "controllers": is_controller, "nodes": bool(host.nodes)}
    for path, script in cluster.scripts.items():
        if places[script.hosts]:
            yield RenderedFile(path, script.text, mode=script.mode)
    if cluster.stand_ins and not capabilities.own_hardware:
        links = {path: program or _STAND_IN for path, program in cluster.stand_ins.items()}
        path = "/etc/tmpfiles.d/slurm-stand-ins.conf"
        yield RenderedFile(_STAND_IN, template(_STAND_IN), mode="0755")
        yield RenderedFile(path, _shared_template(path, links=(*links.items(),)))


def _slurmd_flags(cluster: Cluster, host: Host, facts: _ClusterFacts) -> tuple[str, ...]:
    """Return the flags of a host's slurmds.

    They say where the configuration is (--conf-server), that the node comes and goes (-b), or that
    slurm.conf does not name it (-Z).
    """
    flags = []
    if cluster.configless and host.nodes:
        flags.append(f"--conf-server={slurm_options.conf_servers(cluster, facts.conf)[0]}")
    if host.provision != "static":
        flags.append("-b")
    return (*flags, *(flag for node in host.nodes for flag in facts.flags.get(node, ())))


def _token_key(
    scenario: Scenario, host: Host, clusters: Mapping[str, _ClusterFacts]
) -> RenderedFile:
    """Return the key with which slurmctld and slurmdbd check tokens."""
    conf = clusters[host.cluster].conf if host.cluster else slurm_options.slurmdbd_conf(scenario)
    owner = slurm_options.get(conf, "SlurmUser") or "root"
    unit = "slurmctld" if "slurmctld" in host.daemons else "slurmdbd"
    key = run_secrets.secret(run_secrets.JWT_KEY)
    return RenderedFile(slurm_options.JWT_KEY, key, owner, owner, "0400", unit, "restart")


def _tmpfiles(
    plan: Plan, host: Host, clusters: Mapping[str, _ClusterFacts]
) -> Iterator[RenderedFile]:
    """Yield the file that creates a host's directories and devices, if it needs any."""
    directories: dict[str, tuple[str, str]] = {}
    devices: list[str] = []
    if host.cluster:
        cluster = plan.scenario.clusters[host.cluster]
        daemons = (*host.daemons, "slurmd") if host.nodes else host.daemons
        facts = clusters[host.cluster]
        directories |= slurm_options.directories(facts.conf, host.name, daemons, host.nodes)
        if cluster.oci is not None and host.nodes:
            directories |= {
                f"{slurm_options.CONTAINERS}/{user}": (user, "0700") for user in plan.scenario.users
            }
        devices = sorted({file for node in host.nodes for file in facts.devices.get(node, ())})
    if "slurmdbd" in host.daemons:
        conf = slurm_options.slurmdbd_conf(plan.scenario)
        directories |= slurm_options.directories(conf, host.name, host.daemons, ())
    if directories:
        path = "/etc/tmpfiles.d/slurm.conf"
        text = _shared_template(path, directories=(*directories.items(),), devices=(*devices,))
        yield RenderedFile(path, text)


def _accounting_objects(
    plan: Plan, host: Host, clusters: Mapping[str, _ClusterFacts]
) -> Iterator[RenderedFile]:
    """Yield the program that creates accounts, users, QOS and federations in slurmdbd.

    On a host without a cluster, it needs a slurm.conf with the address of slurmdbd.
    """
    path = "/usr/local/sbin/slurm-accounting-objects"
    slurm_users = {
        slurm_options.get(facts.conf, "SlurmUser") or "root" for facts in clusters.values()
    }
    text = template(
        path,
        scenario=plan.scenario,
        slurm_users=sorted(slurm_users),
        late_tres=slurm_options.late_tres(plan.scenario),
        late_federations=plan.late_federations(),
        groups=association_groups,
        slurm_conf="" if host.cluster else _SACCTMGR_CONF,
    )
    yield RenderedFile(path, text, mode="0755")
    if not host.cluster:
        first = next(iter(clusters.values()))
        yield RenderedFile(_SACCTMGR_CONF, first.texts[_SLURM_CONF])


def _takes_tokens(plan: Plan, host: Host) -> bool:
    """Return whether a host runs a daemon that needs the key with which tokens are signed."""
    with_rest = {name for name, cluster in plan.scenario.clusters.items() if cluster.rest}
    if with_rest and "slurmdbd" in host.daemons:
        return True
    return "slurmctld" in host.daemons and (
        host.cluster in with_rest or host.cluster in plan.clusters_with_private_metrics()
    )


def _prometheus_files(plan: Plan, host: Host, monitoring: Monitoring) -> Iterator[RenderedFile]:
    """Yield the configuration of Prometheus, the token with which it reads, and its address."""
    private = plan.clusters_with_private_metrics()
    config = "/etc/prometheus/prometheus.yml"
    text = template(
        config,
        monitoring=monitoring,
        targets=plan.metric_targets(),
        paths=slurm_options.METRIC_PATHS,
        private=private,
        token=_PROMETHEUS_TOKEN,
    )
    yield RenderedFile(config, text, unit="prometheus", action="restart")
    if private:
        token = run_secrets.secret(run_secrets.ROOT_TOKEN)
        owner = "prometheus"
        yield RenderedFile(_PROMETHEUS_TOKEN, token, owner, owner, "0400", "prometheus", "restart")
    unit = "/etc/systemd/system/prometheus.service.d/options.conf"
    container = plan.capabilities.engine and not plan.capabilities.own_kernel
    text = template(unit, host=host.name, port=monitoring.port, container=container)
    yield RenderedFile(unit, text, unit="prometheus", action="restart")


def _slapd_files(scenario: Scenario, host: Host) -> Iterator[RenderedFile]:
    """Yield slapd's configuration, the users that it serves, its key for TLS, and its unit."""
    key = run_secrets.secret(run_secrets.tls(host.name, "key"))
    yield RenderedFile(_LDAP_KEY, key, "openldap", "openldap", "0400", "slapd", "restart")
    facts = {
        "suffix": _SUFFIX,
        "database": _DIRECTORY_DATABASE,
        "host": host.name,
        "port": LDAPS_PORT,
        "certificate": LDAP_CERTIFICATE,
        "key": _LDAP_KEY,
    }
    for path in ("/etc/ldap/slapd.conf", "/etc/ldap/users.ldif", _SLAPD):
        text = template(path, users=scenario.users, groups=scenario.groups, **facts)
        yield RenderedFile(path, text, unit="slapd", action="restart")


def _sssd_files(scenario: Scenario, directory: UserDirectory) -> Iterator[RenderedFile]:
    """Yield the configuration of sssd, the certificate that it trusts, and when it has started."""
    certificate = run_secrets.secret(run_secrets.tls(directory.host, "certificate"))
    yield RenderedFile(LDAP_CERTIFICATE, certificate, unit="sssd", action="restart")
    path, unit = "/etc/sssd/sssd.conf", "/etc/systemd/system/sssd.service.d/options.conf"
    text = template(path, suffix=_SUFFIX, host=directory.host, certificate=LDAP_CERTIFICATE)
    yield RenderedFile(path, text, mode="0600", unit="sssd", action="restart")
    text = template(unit, user=next(iter(scenario.users)))
    yield RenderedFile(unit, text, unit="sssd", action="restart")


def _rest_files(
    scenario: Scenario, cluster: Cluster, host: str, port: int
) -> Iterator[RenderedFile]:
    """Yield slurmrestd's files: its user, and the additions to its unit."""
    user, unit = (
        "/etc/sysusers.d/slurmrestd.conf",
        "/etc/systemd/system/slurmrestd.service.d/options.conf",
    )
    yield RenderedFile(user, template(user))
    environment = slurm_options.slurmrestd_environment(scenario, cluster)
    text = template(unit, environment=environment, listen=f"{host}:{port}")
    yield RenderedFile(unit, text, unit="slurmrestd", action="restart")


def _devices(cluster: Cluster, capabilities: Capabilities) -> dict[str, list[str]]:
    """Return the files that represent the devices of each node that has any."""
    return {
        node: files
        for group in cluster.nodes
        if group.gres
        and (
            files := [
                file
                for _, files_of_kind in slurm_options.stand_in_devices(cluster, group, capabilities)
                for file in files_of_kind
            ]
        )
        for node in hostlist.expand(group.name)
    }


def _gres_lines(cluster: Cluster, capabilities: Capabilities) -> list[dict[str, str]]:
    return [
        slurm_options.merged(
            {"NodeName": group.name, "Name": "gpu", "Type": kind, "File": hostlist.fold(files)}
        )
        for group in cluster.nodes
        for kind, files in slurm_options.stand_in_devices(cluster, group, capabilities)
    ]


def _units(cluster: Cluster, host: Host, flags: Sequence[str]) -> list[str]:
    """Return the files of units that a host's slurmds need in addition to the package's."""
    if cluster.hosts and host.nodes:
        return ["/etc/systemd/system/slurmd.service", "/etc/systemd/system/slurmd@.service"]
    return ["/etc/systemd/system/slurmd.service.d/options.conf"] if flags else []


def _power_files(
    cluster: Cluster, host: Host, conf: Mapping[str, str], *, everywhere: bool
) -> Iterator[RenderedFile]:
    """Yield the programs that power nodes up and down, and what they need on both ends.

    Nodes get PrologSlurmctld only if it must be `everywhere`.
    """
    if host.name == cluster.controller and cluster.elastic():
        yield from _power_programs(cluster, conf)
    elif everywhere and cluster.elastic():
        yield _program("wait-for-nodes")
    if host.provision == "remote":
        yield RenderedFile(_NODE_POWER, template(_NODE_POWER), mode="0755")
        # sshd_config(5): read in addition to authorized_keys, which is the administrator's.
        text = f'restrict,command="{_NODE_POWER}" {run_secrets.secret("power_ssh_key_pub")}\n'
        yield RenderedFile("/root/.ssh/authorized_keys2", text, mode="0600")


def _power_programs(cluster: Cluster, conf: Mapping[str, str]) -> Iterator[RenderedFile]:
    """Yield the programs that slurmctld calls, and their secrets."""
    levels = {group.name: group.provision for group in cluster.nodes if group.provision != "static"}
    # slurm.conf(5) has these defaults.
    resume_timeout = int(slurm_options.get(conf, "ResumeTimeout") or 60)
    suspend_timeout = int(slurm_options.get(conf, "SuspendTimeout") or 30)
    facts = {
        "levels": levels,
        "port": slurm_options.API_PORT,
        "known_hosts": f"{slurm_options.state_save_location(conf)}/known_hosts",
        "log": slurm_options.POWER_LOG,
        "patience": {"resume": resume_timeout, "suspend": max(resume_timeout, suspend_timeout)},
    }
    for name in slurm_options.POWER_PROGRAMS.values():
        yield _program(name, "power", **facts)
    yield _program("wait-for-nodes")
    owner = slurm_options.get(conf, "SlurmUser") or "root"
    if {"power", "create"} & {*levels.values()}:
        token = run_secrets.secret("provision_token")
        yield RenderedFile(TOKEN_FILE, token, owner, owner, "0400")
    if "remote" in levels.values():
        key = run_secrets.secret("power_ssh_key")
        yield RenderedFile(_POWER_KEY, key, owner, owner, "0400")


def _program(name: str, source: str = "", **facts: Any) -> RenderedFile:
    """Return the program slurm-NAME, rendered from its own template or that of `source`."""
    text = template(f"{slurm_options.PROGRAMS}/slurm-{source or name}", **facts)
    return RenderedFile(f"{slurm_options.PROGRAMS}/slurm-{name}", text, mode="0755")


def _cluster_facts(plan: Plan, name: str) -> _ClusterFacts:
    cluster, conf = plan.scenario.clusters[name], plan.slurm_conf(name)
    return _ClusterFacts(
        conf,
        _cluster_files(plan, name, conf),
        _devices(cluster, plan.capabilities),
        _dynamic_flags(cluster),
    )


def _cluster_files(plan: Plan, name: str, conf: Mapping[str, str]) -> dict[str, str]:
    """Return path and text of the files that all hosts of a cluster share.

    `conf` are the options of its slurm.conf.
    """
    scenario, cluster = plan.scenario, plan.scenario.clusters[name]
    files = {
        _SLURM_CONF: template(
            _SLURM_CONF,
            cluster=name,
            options=conf,
            nodes=list(_node_lines(cluster)),
            lines=[slurm_options.merged(line) for line in cluster.lines],
            partitions=_partition_lines(scenario, cluster),
        )
    }
    cgroup, gres, oci = (
        plan.cgroup_conf(name),
        _gres_lines(cluster, plan.capabilities),
        plan.oci_conf(name),
    )
    # Without the file, the daemons use their own defaults.
    if cgroup or cluster.defaults:
        files["/etc/slurm/cgroup.conf"] = template("/etc/slurm/cgroup.conf", options=cgroup)
    if gres:
        files["/etc/slurm/gres.conf"] = template("/etc/slurm/gres.conf", lines=gres)
    files |= _topology_file(scenario, cluster)
    if oci:
        files["/etc/slurm/oci.conf"] = template("/etc/slurm/oci.conf", options=oci)
    if cluster.kubernetes:
        files |= _job_submit_file(conf, plan.capabilities)
    files |= {f"/etc/slurm/{file}": text for file, text in cluster.files.items()}
    return files


def _node_lines(cluster: Cluster) -> Iterator[dict[str, str]]:
    """Yield the NodeName lines.

    There is one for each group of nodes, or for each host that nodes of a group share.
    """
    place = {
        node: (host, index)
        for host, nodes in cluster.nodes_on().items()
        for index, node in enumerate(nodes)
    }
    for group in cluster.nodes:
        if group.dynamic:
            continue
        if not cluster.hosts:
            yield _node_line(cluster, group, {"NodeName": group.name})
            continue
        if group.provision != "static":
            names = {"NodeName": group.name, "Port": slurm_options.node_ports(1)}
            yield _node_line(cluster, group, names)
            continue
        for host, run in groupby(hostlist.expand(group.name), key=lambda node: place[node][0]):
            nodes = list(run)
            ports = slurm_options.node_ports(len(nodes), skip=place[nodes[0]][1])
            names = {
                "NodeName": hostlist.fold(nodes),
                "NodeHostname": host,
                "NodeAddr": host,
                "Port": f"[{ports}]",
            }
            yield _node_line(cluster, group, names)


def _dynamic_flags(cluster: Cluster) -> dict[str, list[str]]:
    """Return the flags with which a slurmd registers each node that slurm.conf does not name."""
    flags_of = {}
    for node, options in dynamic_nodes(cluster).items():
        conf = " ".join(f"{name}={value}" for name, value in options.items())
        flags_of[node] = ["-Z", "--conf", f"'{conf}'"]
    return flags_of


def dynamic_nodes(cluster: Cluster) -> dict[str, dict[str, str]]:
    """Return the options with which slurmd registers each node that slurm.conf does not name."""
    options_of: dict[str, dict[str, str]] = {}
    for group in cluster.nodes:
        if group.dynamic:
            line = _node_line(cluster, group, {})
            del line["State"]
            options_of |= dict.fromkeys(hostlist.expand(group.name), line)
    return options_of


def _node_line(cluster: Cluster, group: NodeGroup, names: Mapping[str, str]) -> dict[str, str]:
    amounts = (group.cpus, group.memory, gpus_of(group.gres))
    sizes = zip(slurm_options.LEDGER_GRES, amounts, strict=True) if cluster.kubernetes else ()
    gres = (*group.gres, *(f"{name}:{size}" for name, size in sizes if size))
    # When slurmctld starts, it does not know what pods use: nodes take no jobs until the operator
    # has reported it.
    static_state = "DRAIN" if cluster.kubernetes else "UNKNOWN"
    defaults = {
        **names,
        "CPUs": group.cpus if cluster.defaults or "cpus" in group.model_fields_set else None,
        "RealMemory": group.memory
        if cluster.defaults or "memory" in group.model_fields_set
        else None,
        # Slurm uses nodes of the lowest weight first: those that are always up.
        "Weight": 1000 if group.provision != "static" else None,
        "Features": ",".join(group.features) or None,
        "Gres": ",".join(gres) or None,
        "State": static_state if group.provision == "static" else "CLOUD",
    }
    return slurm_options.merged(defaults, group.options)


def _job_submit_file(conf: Mapping[str, str], capabilities: Capabilities) -> dict[str, str]:
    """Return path and text of the plugin that makes every job request the GRES of the ledger."""
    path, names = "/etc/slurm/job_submit.lua", slurm_options.LEDGER_GRES
    default = slurm_options.get(conf, "DefMemPerCPU")
    facts = {"ledger": names, "memory_per_cpu": int(default or 0)}
    return {path: template(path, namespaces=capabilities.namespaces, **facts)}


def _topology_file(scenario: Scenario, cluster: Cluster) -> dict[str, str]:
    """Return path and text of the file that describes a cluster's topologies, if it has any."""
    path = f"/etc/slurm/{releases.get(scenario.release_of(cluster)).topology_file}"
    return {path: template(path, topologies=cluster.topology)} if cluster.topology else {}


def _partition_lines(scenario: Scenario, cluster: Cluster) -> list[dict[str, str]]:
    by_name = releases.get(scenario.release_of(cluster)).topology_file == "topology.yaml"
    return [
        slurm_options.merged(
            {
                "PartitionName": name,
                "Nodes": partition.nodes,
                "Default": True if partition.default else None,
                "State": "UP",
                "Topology": partition.topology if by_name else None,
            },
            partition.options,
        )
        for name, partition in cluster.partitions.items()
    ]


def _accounting_files(scenario: Scenario, host: Host) -> Iterator[RenderedFile]:
    # slurmdbd.conf(5): owned by SlurmUser and readable only by it, because it holds a password.
    path = "/etc/slurm/slurmdbd.conf"
    text = template(path, options=slurm_options.slurmdbd_conf(scenario))
    yield RenderedFile(path, text, "slurm", "slurm", "0600", "slurmdbd", "restart")
    if "mariadb" not in host.daemons:
        return
    accounting = scenario.accounting
    from_elsewhere = bool(accounting and (accounting.job_completion or accounting.backup))
    address = "0.0.0.0" if from_elsewhere else "127.0.0.1"  # noqa: S104  in the run's own network
    settings, sql = host.family.mariadb_settings, host.family.mariadb_statements
    text = template(_MARIADB_SETTINGS, sql=sql, address=address)
    yield RenderedFile(settings, text, unit="mariadb", action="restart")
    text = template(_MARIADB_STATEMENTS, grants=slurm_options.database_grants(scenario))
    yield RenderedFile(sql, text, "mysql", "mysql", "0400", "mariadb", "restart")


def template(target: str, **facts: Any) -> str:
    """Render the template of a target path; templates/ mirrors the hosts' file system."""
    return _environment().get_template(f"{target.lstrip('/')}.j2").render(facts)


@lru_cache
def _shared_template(target: str, **facts: Hashable) -> str:
    """Render a template whose text is often the same on many hosts."""
    return template(target, **facts)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701  configuration files, not HTML
    )
    # The user writes the options, and each language quotes text in its own way.
    environment.filters["shell"] = shlex.quote
    environment.filters["python"] = lambda value: json.dumps(
        value, ensure_ascii=False, sort_keys=True
    )
    environment.filters["sql"] = sql_text
    environment.filters["sql_name"] = sql_name
    environment.filters["systemd"] = _in_systemd_quotes
    environment.filters["tmpfiles"] = _tmpfiles_word
    environment.filters["line"] = _line
    environment.filters["quoted"] = _quoted
    environment.filters["written"] = slurm_options.written
    environment.filters["late"] = slurm_options.late
    environment.filters["early"] = slurm_options.early
    environment.filters["sacctmgr"] = lambda values: shlex.join(
        f"{k}={v}" for k, v in slurm_options.merged(values).items()
    )
    return environment


def sql_text(text: str) -> str:
    """Quote a text for MariaDB.

    >>> sql_text("it's")
    "'it''s'"
    """
    return "'{}'".format(text.replace("\\", "\\\\").replace("'", "''"))


def sql_name(name: str) -> str:
    """Quote the name of a database for MariaDB.

    >>> sql_name("slurm_acct_db"), sql_name("acct-db")
    ('slurm_acct_db', '`acct-db`')
    """
    return (
        name
        if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)
        else "`{}`".format(name.replace("`", "``"))
    )


def _in_systemd_quotes(text: str) -> str:
    """Escape a text for double quotes in a unit.

    See systemd.syntax(7), and systemd.unit(5) on specifiers.
    """
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")


def _tmpfiles_word(text: str) -> str:
    """Quote a field of tmpfiles.d(5)."""
    escaped = _in_systemd_quotes(text)
    return escaped if re.fullmatch(r"[^\s'\"\\]+", text) else f'"{escaped}"'


def _line(options_: Mapping[str, str]) -> str:
    """Write options as one line."""
    return " ".join(f"{name}={_quoted(value)}" for name, value in options_.items())


def _quoted(value: str) -> str:
    """Quote a value for Slurm's parser (see harness.parsing.conf).

    A value in quotes stays as it is.
    """
    escaped = value.replace("\\", "\\\\").replace("#", "\\#")
    plain = escaped and not re.search(r"\s", escaped)
    return escaped if plain or re.fullmatch('"[^"]*"', escaped) else f'"{escaped}"'
