"""Render a plan into the files of every host. Pure: no clock, no random, no socket, no secret."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from harness import options
from harness.options import Offers
from harness.plan import Host, Plan
from harness.resources import TEMPLATES
from harness.scenario import Cluster, Scenario


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


def render(plan: Plan) -> Tree:
    """Return the files of each host."""
    clusters = {name: _cluster_files(plan.scenario, name, plan.offers) for name in plan.scenario.clusters}
    return {host.name: _host_files(plan, host, clusters) for host in plan.hosts}


def manifest(tree: Tree) -> dict[str, dict[str, dict[str, str | None]]]:
    """Return what is to know of each file besides its text: host -> path -> facts."""
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


def _host_files(plan: Plan, host: Host, clusters: dict[str, tuple[str, str]]) -> tuple[RenderedFile, ...]:
    scenario = plan.scenario
    files = [
        RenderedFile("/etc/munge/munge.key", options.secret("munge_key"), "munge", "munge", "0400", "munge", "restart")
    ]
    if scenario.users:
        for path in ("/etc/sysusers.d/cluster-users.conf", "/etc/tmpfiles.d/cluster-users.conf"):
            files.append(RenderedFile(path, _template(path, users=scenario.users)))
    if host.cluster:
        slurm_conf, cgroup_conf = clusters[host.cluster]
        unit = "slurmctld" if "slurmctld" in host.daemons else "slurmd"
        files.append(RenderedFile("/etc/slurm/slurm.conf", slurm_conf, unit=unit, action="reload"))
        files.append(RenderedFile("/etc/slurm/cgroup.conf", cgroup_conf, unit=unit, action="restart"))
    if "slurmdbd" in host.daemons:
        files.extend(_accounting_files(scenario))
    if host == plan.accounting_client():
        path = "/usr/local/sbin/slurm-accounting-objects"
        files.append(RenderedFile(path, _template(path, scenario=scenario), mode="0755"))
    return tuple(files)


def _cluster_files(scenario: Scenario, name: str, offers: Offers) -> tuple[str, str]:
    """Return the slurm.conf and cgroup.conf that all hosts of a cluster share."""
    cluster = scenario.clusters[name]
    slurm_conf = _template(
        "/etc/slurm/slurm.conf",
        cluster=name,
        options=options.slurm_conf(scenario, name, offers),
        nodes=[_node_line(group) for group in cluster.nodes],
        partitions=_partition_lines(cluster),
    )
    cgroup_conf = _template("/etc/slurm/cgroup.conf", options=options.cgroup_conf(scenario, name, offers))
    return slurm_conf, cgroup_conf


def _node_line(group: Any) -> dict[str, str]:
    defaults = {
        "NodeName": group.name,
        "CPUs": group.cpus,
        "RealMemory": group.memory,
        "Features": ",".join(group.features) or None,
        "State": "UNKNOWN",
    }
    return options.merged(defaults, group.options)


def _partition_lines(cluster: Cluster) -> list[dict[str, str]]:
    return [
        options.merged(
            {
                "PartitionName": name,
                "Nodes": partition.nodes,
                "Default": True if partition.default else None,
                "State": "UP",
            },
            partition.options,
        )
        for name, partition in cluster.partitions.items()
    ]


def _accounting_files(scenario: Scenario) -> list[RenderedFile]:
    slurmdbd, mariadb, sql = (
        "/etc/slurm/slurmdbd.conf",
        "/etc/mysql/mariadb.conf.d/90-slurm.cnf",
        "/etc/mysql/slurm.sql",
    )
    conf = options.slurmdbd_conf(scenario)
    with_jobcomp = bool(scenario.accounting and scenario.accounting.job_completion)
    # Database -> account, host it comes from, password; slurmdbd.conf(5) has these defaults.
    grants = {
        options.get(conf, "StorageLoc") or "slurm_acct_db": (
            options.get(conf, "StorageUser") or "root",
            "localhost",
            options.get(conf, "StoragePass") or "",
        )
    }
    if with_jobcomp:
        grants[options.JOB_COMPLETION] = (options.JOB_COMPLETION, "%", options.secret("job_completion_password"))
    address = "0.0.0.0" if with_jobcomp else "127.0.0.1"  # noqa: S104  of a network of the run's own
    return [
        # slurmdbd.conf(5): owned by SlurmUser and readable by nobody else, because it holds a password.
        RenderedFile(slurmdbd, _template(slurmdbd, options=conf), "slurm", "slurm", "0600", "slurmdbd", "restart"),
        RenderedFile(mariadb, _template(mariadb, sql=sql, address=address), unit="mariadb", action="restart"),
        RenderedFile(sql, _template(sql, grants=grants), "mysql", "mysql", "0400", "mariadb", "restart"),
    ]


def _template(target: str, **facts: Any) -> str:
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
    environment.filters["line"] = _line
    environment.filters["sacctmgr"] = lambda values: shlex.join(f"{k}={v}" for k, v in options.merged(values).items())
    return environment


def _line(options_: Mapping[str, str]) -> str:
    """Write options as one line; slurm.conf(5) wants values with blanks in quotes."""
    return " ".join(f'{name}="{value}"' if " " in value else f"{name}={value}" for name, value in options_.items())
