"""The options of every Slurm file: the harness's defaults, under the release's, under the scenario's. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness import releases
from harness.scenario import Accounting, Cluster, Scenario

LOG_DIRECTORY = "/var/log/slurm"
MARIADB_PORT = 3306
# Database and account of the job completion records: not slurmdbd's, because every user can read slurm.conf.
JOB_COMPLETION = "slurm_jobcomp"
_SECRET = re.compile(r"%secret:(\w+)%")


@dataclass(frozen=True, slots=True)
class Offers:
    """What the hosts of a provider offer to Slurm.

    `cgroups`: a cgroup tree whose controllers Slurm may use. `own_hardware`: CPUs and memory of a host are its own;
    otherwise nodes take the size that the scenario says, whatever slurmd finds.
    """

    cgroups: bool
    own_hardware: bool


def secret(name: str) -> str:
    """Return the mark that stands for a secret until the file is put on its host."""
    return f"%secret:{name}%"


def secrets_in(text: str) -> set[str]:
    """Return the names of the secrets that a rendered text wants."""
    return set(_SECRET.findall(text))


def reveal(text: str, secrets: Mapping[str, str]) -> str:
    """Put the secrets in the place of their marks."""
    return _SECRET.sub(lambda match: secrets[match.group(1)], text)


def merged(*layers: Mapping[str, Any]) -> dict[str, str]:
    """Lay options over one another, whatever their case; null removes, and the last spelling stays.

    >>> merged({"ReturnToService": 2, "MailProg": "/bin/mail"}, {"returntoservice": True, "MailProg": None})
    {'returntoservice': 'YES'}
    """
    result: dict[str, tuple[str, Any]] = {}
    for layer in layers:
        for name, value in layer.items():
            result[name.lower()] = (name, value)
    return {name: _text(value) for name, value in result.values() if value is not None}


def get(options: Mapping[str, str], name: str) -> str | None:
    """Return an option whatever its case."""
    return next((value for key, value in options.items() if key.lower() == name.lower()), None)


def slurm_conf(scenario: Scenario, name: str, offers: Offers) -> dict[str, str]:
    """Return the global options of a cluster's slurm.conf; slurm.conf(5) explains each."""
    cluster = scenario.clusters[name]
    defaults: dict[str, Any] = {
        "ClusterName": name,
        "SlurmctldHost": cluster.controller,
        "SlurmUser": "slurm",
        "AuthType": "auth/munge",
        "SlurmctldPort": 6817,
        "SlurmdPort": 6818,
        "SrunPortRange": "60001-63000",
        "StateSaveLocation": "/var/lib/slurm/slurmctld",
        "SlurmdSpoolDir": "/var/lib/slurm/slurmd",
        "SlurmctldPidFile": "/run/slurmctld/slurmctld.pid",
        "SlurmdPidFile": "/run/slurm/slurmd.pid",
        "SlurmctldLogFile": f"{LOG_DIRECTORY}/slurmctld.log",
        "SlurmdLogFile": f"{LOG_DIRECTORY}/slurmd.log",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core_Memory",
        "DefMemPerCPU": min((group.memory // group.cpus for group in cluster.nodes), default=None),
        "ReturnToService": 2,
        "MailProg": "/usr/bin/true",
        **_containment(offers),
    }
    if scenario.accounting:
        defaults |= _accounting_storage(scenario.accounting)
        defaults["JobAcctGatherType"] = f"jobacct_gather/{'cgroup' if offers.cgroups else 'linux'}"
    return merged(defaults, release_of(scenario, cluster).slurm_conf, cluster.options)


def _containment(offers: Offers) -> dict[str, Any]:
    if offers.cgroups:
        return {
            "ProctrackType": "proctrack/cgroup",
            "TaskPlugin": "task/cgroup,task/affinity",
        }
    return {
        "ProctrackType": "proctrack/linuxproc",
        **({} if offers.own_hardware else {"SlurmdParameters": "config_overrides"}),
    }


def _accounting_storage(accounting: Accounting) -> dict[str, Any]:
    options: dict[str, Any] = {
        "AccountingStorageType": "accounting_storage/slurmdbd",
        "AccountingStorageHost": accounting.host,
        "AccountingStorageEnforce": "associations,limits,qos",
    }
    if accounting.job_completion:
        options |= {
            "JobCompType": "jobcomp/mysql",
            "JobCompHost": accounting.host,
            "JobCompPort": MARIADB_PORT,
            "JobCompLoc": JOB_COMPLETION,
            "JobCompUser": JOB_COMPLETION,
            "JobCompPass": secret("job_completion_password"),
        }
    return options


def slurmdbd_conf(scenario: Scenario) -> dict[str, str]:
    """Return the options of slurmdbd.conf; slurmdbd.conf(5) explains each."""
    accounting = scenario.accounting
    if accounting is None:
        return {}
    defaults: dict[str, Any] = {
        "AuthType": "auth/munge",
        "DbdHost": accounting.host,
        "DbdPort": 6819,
        "SlurmUser": "slurm",
        "LogFile": f"{LOG_DIRECTORY}/slurmdbd.log",
        "PidFile": "/run/slurmdbd/slurmdbd.pid",
        "StorageType": "accounting_storage/mysql",
        "StorageHost": "localhost",
        "StorageLoc": "slurm_acct_db",
        "StorageUser": "slurm",
        "StoragePass": secret("database_password"),
    }
    return merged(defaults, release_of(scenario, accounting).slurmdbd_conf, accounting.slurmdbd)


def cgroup_conf(scenario: Scenario, name: str, offers: Offers) -> dict[str, str]:
    """Return the options of a cluster's cgroup.conf; cgroup.conf(5) explains each."""
    cluster = scenario.clusters[name]
    if offers.cgroups:
        defaults: dict[str, Any] = {"ConstrainCores": True, "ConstrainRAMSpace": True, "ConstrainDevices": True}
    else:
        defaults = release_of(scenario, cluster).cgroup_conf_without_controllers
    return merged(defaults, cluster.cgroup)


def release_of(scenario: Scenario, part: Cluster | Accounting) -> releases.Release:
    """Return the release of a cluster or of slurmdbd."""
    return releases.get(part.release or scenario.release)


def _text(value: Any) -> str:
    match value:
        case bool():
            return "YES" if value else "NO"
        case list() | tuple():
            return ",".join(_text(item) for item in value)
        case _:
            return str(value)
