"""Render a plan into the files of every host. Pure: no clock, no random, no socket, no secret."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from harness import hostlist, options, releases
from harness.options import Offers
from harness.plan import Host, Plan
from harness.resources import TEMPLATES
from harness.scenario import Cluster, NodeGroup, Scenario


@dataclass(frozen=True, slots=True)
class RenderedFile:
    """One file of a host. `unit` is the systemd unit that must be restarted or reloaded when the file changes.

    Where a secret belongs, `text` holds a mark (see options.secret).
    """

    path: str
    text: str
    owner: str = "root"
    group: str = "root"
    mode: str = "0644"
    unit: str | None = None
    action: str | None = None

    def sha256(self) -> str:
        """Return the hash of the text, with the marks of secrets in it."""
        return hashlib.sha256(self.text.encode()).hexdigest()


Tree = dict[str, tuple[RenderedFile, ...]]
TOKEN_FILE = "/etc/slurm/provision.token"  # noqa: S105  its path
_POWER_KEY = "/etc/slurm/power_ssh_key"
_NODE_POWER = "/usr/local/sbin/slurm-node-power"
# The options of slurm.conf, and path -> text of the files.
_ClusterFiles = tuple[dict[str, str], dict[str, str]]


def render(plan: Plan) -> Tree:
    """Return the files of each host."""
    clusters = {name: _cluster_files(plan.scenario, name, plan.offers) for name in plan.scenario.clusters}
    return {host.name: _host_files(plan, host, clusters) for host in plan.hosts}


def slurm_conf(plan: Plan, cluster: str) -> str:
    """Return the text of a cluster's slurm.conf."""
    return _cluster_files(plan.scenario, cluster, plan.offers)[1]["/etc/slurm/slurm.conf"]


def manifest(tree: Tree) -> dict[str, dict[str, dict[str, str | None]]]:
    """Return what there is to know about each file besides its text: host -> path -> facts."""
    return {
        host: {
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
        for host, files in tree.items()
    }


def _host_files(plan: Plan, host: Host, clusters: dict[str, _ClusterFiles]) -> tuple[RenderedFile, ...]:
    scenario = plan.scenario
    files = [
        RenderedFile("/etc/munge/munge.key", options.secret("munge_key"), "munge", "munge", "0400", "munge", "restart")
    ]
    if scenario.users:
        for path in ("/etc/sysusers.d/cluster-users.conf", "/etc/tmpfiles.d/cluster-users.conf"):
            files.append(RenderedFile(path, template(path, users=scenario.users)))
    directories: dict[str, tuple[str, str]] = {}
    devices: list[str] = []
    if host.cluster:
        conf, texts = clusters[host.cluster]
        cluster = scenario.clusters[host.cluster]
        unit = next((daemon for daemon in ("slurmctld", "slurmrestd") if daemon in host.daemons), "slurmd")
        server = f"{cluster.controller}:{_first_port(conf)}" if cluster.configless and host.nodes else None
        flags = [f"--conf-server={server}"] * bool(server) + ["-b"] * (host.provision != "static")
        flags += _dynamic_flags(cluster, host)
        for path in _units(cluster, host, flags):
            text = template(path, nodes=host.nodes, flags=flags)
            files.append(RenderedFile(path, text, unit="slurmd", action="restart"))
        if cluster.elastic():
            files.extend(_power_files(cluster, host, conf))
        for path, text in texts.items() if not cluster.configless or unit != "slurmd" else ():
            action = "reload" if path == "/etc/slurm/slurm.conf" and unit != "slurmrestd" else "restart"
            mode = "0755" if text.startswith("#!") else "0644"
            files.append(RenderedFile(path, text, mode=mode, unit=unit, action=action))
        if cluster.rest and "slurmrestd" in host.daemons:
            files.extend(_rest_files(scenario, cluster, host.name, cluster.rest.port))
        daemons = (*host.daemons, "slurmd") if host.nodes else host.daemons
        directories |= options.directories(conf, host.name, daemons, host.nodes)
        if cluster.oci is not None and host.nodes:
            directories |= {f"{options.CONTAINERS}/{user}": (user, "0700") for user in scenario.users}
        devices = _devices(cluster, host, plan.offers)
    if "slurmdbd" in host.daemons:
        files.extend(_accounting_files(scenario, with_database="mariadb" in host.daemons))
        directories |= options.directories(options.slurmdbd_conf(scenario), host.name, host.daemons, ())
    if _takes_tokens(scenario, host):
        conf = clusters[host.cluster][0] if host.cluster else options.slurmdbd_conf(scenario)
        owner = options.get(conf, "SlurmUser") or "root"
        unit = "slurmctld" if "slurmctld" in host.daemons else "slurmdbd"
        key = options.secret("jwt_key")
        files.append(RenderedFile(options.JWT_KEY, key, owner, owner, "0400", unit, "restart"))
    if directories:
        path = "/etc/tmpfiles.d/slurm.conf"
        files.append(RenderedFile(path, template(path, directories=directories, devices=devices)))
    if host == plan.accounting_client():
        path = "/usr/local/sbin/slurm-accounting-objects"
        text = template(
            path,
            scenario=scenario,
            slurm_users=sorted({options.get(conf, "SlurmUser") or "root" for conf, _ in clusters.values()}),
            late_tres=options.late_tres(scenario.accounting),
            late_federations=plan.late_federations(),
        )
        files.append(RenderedFile(path, text, mode="0755"))
    return tuple(files)


def _takes_tokens(scenario: Scenario, host: Host) -> bool:
    """Return whether a host runs a daemon that needs the key of the tokens."""
    with_rest = {name for name, cluster in scenario.clusters.items() if cluster.rest}
    return bool(with_rest) and (
        "slurmdbd" in host.daemons or ("slurmctld" in host.daemons and host.cluster in with_rest)
    )


def _rest_files(scenario: Scenario, cluster: Cluster, host: str, port: int) -> Iterator[RenderedFile]:
    """Yield the files of slurmrestd: a user of its own, and what its unit needs besides the package's own."""
    user, unit = "/etc/sysusers.d/slurmrestd.conf", "/etc/systemd/system/slurmrestd.service.d/options.conf"
    yield RenderedFile(user, template(user))
    environment = options.slurmrestd_environment(scenario, cluster)
    text = template(unit, environment=environment, listen=f"{host}:{port}")
    yield RenderedFile(unit, text, unit="slurmrestd", action="restart")


def _devices(cluster: Cluster, host: Host, offers: Offers) -> list[str]:
    """Return the files that stand for devices on a host."""
    groups = [group for group in cluster.nodes if group.gres and {*hostlist.expand(group.name)} & {*host.nodes}]
    found = (
        file for group in groups for _, files in options.stand_in_devices(cluster, group, offers) for file in files
    )
    return sorted({*found})


def _gres_lines(cluster: Cluster, offers: Offers) -> list[dict[str, str]]:
    return [
        options.merged({"NodeName": group.name, "Name": "gpu", "Type": kind, "File": hostlist.fold(files)})
        for group in cluster.nodes
        for kind, files in options.stand_in_devices(cluster, group, offers)
    ]


def _units(cluster: Cluster, host: Host, flags: Sequence[str]) -> list[str]:
    """Return the units that a host's slurmds need besides the package's own."""
    if cluster.hosts and host.nodes:
        return ["/etc/systemd/system/slurmd.service", "/etc/systemd/system/slurmd@.service"]
    return ["/etc/systemd/system/slurmd.service.d/options.conf"] if flags else []


def _power_files(cluster: Cluster, host: Host, conf: Mapping[str, str]) -> Iterator[RenderedFile]:
    """Yield the programs that power nodes up and down, and what they need on both ends."""
    if host.name == cluster.controller:
        levels = {group.name: group.provision for group in cluster.nodes if group.provision != "static"}
        facts = {
            "levels": levels,
            "port": options.API_PORT,
            "known_hosts": f"{options.state_save_location(conf)}/known_hosts",
            "log": f"{options.LOG_DIRECTORY}/power.log",
            # slurm.conf(5) has these defaults.
            "patience": {
                "resume": int(options.get(conf, "ResumeTimeout") or 60),
                "suspend": int(options.get(conf, "SuspendTimeout") or 30),
            },
        }
        for name in (*options.POWER_PROGRAMS.values(), "wait-for-nodes"):
            source = "slurm-wait-for-nodes" if name == "wait-for-nodes" else "slurm-power"
            text = template(f"{options.PROGRAMS}/{source}", **facts)
            yield RenderedFile(f"{options.PROGRAMS}/slurm-{name}", text, mode="0755")
        owner = options.get(conf, "SlurmUser") or "root"
        if {"power", "create"} & {*levels.values()}:
            yield RenderedFile(TOKEN_FILE, options.secret("provision_token"), owner, owner, "0400")
        if "remote" in levels.values():
            yield RenderedFile(_POWER_KEY, options.secret("power_ssh_key"), owner, owner, "0400")
    if host.provision == "remote":
        yield RenderedFile(_NODE_POWER, template(_NODE_POWER), mode="0755")
        # sshd_config(5): read beside authorized_keys, which is the administrator's.
        text = f'restrict,command="{_NODE_POWER}" {options.secret("power_ssh_key_pub")}\n'
        yield RenderedFile("/root/.ssh/authorized_keys2", text, mode="0600")


def _first_port(conf: Mapping[str, str]) -> str:
    """Return the first of slurmctld's ports."""
    return (options.get(conf, "SlurmctldPort") or "6817").partition("-")[0]


def _cluster_files(scenario: Scenario, name: str, offers: Offers) -> _ClusterFiles:
    """Return the options of a cluster's slurm.conf, and the files that all its hosts share."""
    cluster = scenario.clusters[name]
    conf = options.slurm_conf(scenario, name, offers)
    nodes = list(_node_lines(cluster))
    lines = [options.merged(line) for line in cluster.lines]
    cgroup = options.cgroup_conf(scenario, name, offers)
    gres = _gres_lines(cluster, offers)
    oci = options.oci_conf(scenario, name, offers)
    slurm_conf, cgroup_conf = "/etc/slurm/slurm.conf", "/etc/slurm/cgroup.conf"
    gres_conf, oci_conf = "/etc/slurm/gres.conf", "/etc/slurm/oci.conf"
    return conf, {
        slurm_conf: template(
            slurm_conf,
            cluster=name,
            options=conf,
            nodes=nodes,
            lines=lines,
            partitions=_partition_lines(scenario, cluster),
        ),
        # Where there is none and no default, the daemons have their own.
        **({cgroup_conf: template(cgroup_conf, options=cgroup)} if cgroup or cluster.defaults else {}),
        **({gres_conf: template(gres_conf, lines=gres)} if gres else {}),
        **_topology_file(scenario, cluster),
        **({oci_conf: template(oci_conf, options=oci)} if oci else {}),
        **(_job_submit_file(conf) if cluster.kubernetes else {}),
        **{f"/etc/slurm/{file}": text for file, text in cluster.files.items()},
    }


def _node_lines(cluster: Cluster) -> Iterator[dict[str, str]]:
    """Yield the lines of all nodes: one for each group, or one for each host that nodes of a group share."""
    place = {node: (host, index) for host, nodes in cluster.nodes_on().items() for index, node in enumerate(nodes)}
    for group in cluster.nodes:
        if group.dynamic:
            continue
        if not cluster.hosts:
            yield _node_line(cluster, group, {"NodeName": group.name})
            continue
        for host, run in groupby(hostlist.expand(group.name), key=lambda node: place[node][0]):
            nodes = list(run)
            ports = options.node_ports(len(nodes), skip=place[nodes[0]][1])
            names = {"NodeName": hostlist.fold(nodes), "NodeHostname": host, "NodeAddr": host, "Port": f"[{ports}]"}
            yield _node_line(cluster, group, names)


def _dynamic_flags(cluster: Cluster, host: Host) -> list[str]:
    """Return the flags with which a slurmd registers its node, if slurm.conf does not have it."""
    for group in cluster.nodes:
        if group.dynamic and {*host.nodes} & {*hostlist.expand(group.name)}:
            told = _node_line(cluster, group, {})
            del told["State"]
            return ["-Z", "--conf", f"'{' '.join(f'{name}={value}' for name, value in told.items())}'"]
    return []


def _node_line(cluster: Cluster, group: NodeGroup, names: Mapping[str, str]) -> dict[str, str]:
    sizes = zip(options.LEDGER_GRES, (group.cpus, group.memory), strict=True) if cluster.kubernetes else ()
    gres = (*group.gres, *(f"{name}:{size}" for name, size in sizes))
    # At its start slurmctld does not know what pods have: its nodes take no jobs until the copilot has reported it.
    lasting = "DRAIN" if cluster.kubernetes else "UNKNOWN"
    defaults = {
        **names,
        "CPUs": group.cpus if cluster.defaults or "cpus" in group.model_fields_set else None,
        "RealMemory": group.memory if cluster.defaults or "memory" in group.model_fields_set else None,
        # Slurm fills nodes of the least weight first: those that are there anyway.
        "Weight": 1000 if group.provision != "static" else None,
        "Features": ",".join(group.features) or None,
        "Gres": ",".join(gres) or None,
        "State": lasting if group.provision == "static" else "CLOUD",
    }
    return options.merged(defaults, group.options)


def _job_submit_file(conf: Mapping[str, str]) -> dict[str, str]:
    """Return the path and text of the plugin that makes every job request what the ledger counts."""
    path, (cpus, memory) = "/etc/slurm/job_submit.lua", options.LEDGER_GRES
    default = options.get(conf, "DefMemPerCPU")
    return {path: template(path, cpus=cpus, memory=memory, memory_per_cpu=int(default or 0))}


def _topology_file(scenario: Scenario, cluster: Cluster) -> dict[str, str]:
    """Return the path and text of the file that describes a cluster's topologies, if it has any."""
    path = f"/etc/slurm/{releases.get(scenario.release_of(cluster)).topology_file}"
    return {path: template(path, topologies=cluster.topology)} if cluster.topology else {}


def _partition_lines(scenario: Scenario, cluster: Cluster) -> list[dict[str, str]]:
    by_name = releases.get(scenario.release_of(cluster)).topology_file == "topology.yaml"
    return [
        options.merged(
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


def _accounting_files(scenario: Scenario, *, with_database: bool) -> list[RenderedFile]:
    slurmdbd, mariadb, sql = (
        "/etc/slurm/slurmdbd.conf",
        "/etc/mysql/mariadb.conf.d/90-slurm.cnf",
        "/etc/mysql/slurm.sql",
    )
    conf = options.slurmdbd_conf(scenario)
    with_jobcomp = bool(scenario.accounting and scenario.accounting.job_completion)
    with_backup = bool(scenario.accounting and scenario.accounting.backup)
    address = "0.0.0.0" if with_jobcomp or with_backup else "127.0.0.1"  # noqa: S104  of a network of the run's own
    # slurmdbd.conf(5): owned by SlurmUser and readable only by it, because it holds a password.
    text = template(slurmdbd, options=conf)
    files = [RenderedFile(slurmdbd, text, "slurm", "slurm", "0600", "slurmdbd", "restart")]
    if not with_database:
        return files
    return [
        *files,
        RenderedFile(mariadb, template(mariadb, sql=sql, address=address), unit="mariadb", action="restart"),
        RenderedFile(
            sql, template(sql, grants=options.database_grants(scenario)), "mysql", "mysql", "0400", "mariadb", "restart"
        ),
    ]


def template(target: str, **facts: Any) -> str:
    """Render the template of a target path; templates/ mirrors the hosts' file system."""
    return _environment().get_template(f"{target.lstrip('/')}.j2").render(facts)


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
    # Each language has its way to write a text so that it stays one; options are texts of the user's.
    environment.filters["shell"] = shlex.quote
    environment.filters["python"] = lambda value: json.dumps(value, ensure_ascii=False, sort_keys=True)
    environment.filters["sql"] = sql_text
    environment.filters["sql_name"] = sql_name
    environment.filters["systemd"] = _in_systemd_quotes
    environment.filters["tmpfiles"] = _tmpfiles_word
    environment.filters["line"] = _line
    environment.filters["quoted"] = _quoted
    environment.filters["written"] = options.written
    environment.filters["late"] = options.late
    environment.filters["early"] = options.early
    environment.filters["sacctmgr"] = lambda values: shlex.join(f"{k}={v}" for k, v in options.merged(values).items())
    return environment


def sql_text(text: str) -> str:
    """Write a text for MariaDB.

    >>> sql_text("it's")
    "'it''s'"
    """
    return "'{}'".format(text.replace("\\", "\\\\").replace("'", "''"))


def sql_name(name: str) -> str:
    """Write the name of a database for MariaDB.

    >>> sql_name("slurm_acct_db"), sql_name("acct-db")
    ('slurm_acct_db', '`acct-db`')
    """
    return name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) else "`{}`".format(name.replace("`", "``"))


def _in_systemd_quotes(text: str) -> str:
    """Write a text as it goes between double quotes in a unit: systemd.syntax(7), systemd.unit(5) on specifiers."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")


def _tmpfiles_word(text: str) -> str:
    """Write a field of tmpfiles.d(5)."""
    escaped = _in_systemd_quotes(text)
    return escaped if re.fullmatch(r"[^\s'\"\\]+", text) else f'"{escaped}"'


def _line(options_: Mapping[str, str]) -> str:
    """Write options as one line."""
    return " ".join(f"{name}={_quoted(value)}" for name, value in options_.items())


def _quoted(value: str) -> str:
    """Write a value as Slurm's parser reads it again (see harness.conf); one in quotes stays as it is."""
    escaped = value.replace("\\", "\\\\").replace("#", "\\#")
    plain = escaped and not re.search(r"\s", escaped)
    return escaped if plain or re.fullmatch('"[^"]*"', escaped) else f'"{escaped}"'
