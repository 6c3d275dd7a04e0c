"""Shrink an imported cluster to a rehearsal copy that fits a few hosts. Pure.

It keeps the site's nodes, partitions, features, GRES counts, topology, limits and priorities.
Options that depend on the site's machines, programs, users or secrets are replaced and listed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from harness.site.scripts import SiteScripts
from harness.slurmconf.check.findings import ERROR, FATAL, Finding

# The hosts share all nodes; the first is also the controller and the accounting host.
_HOST = "copy"
_ACCOUNT = "rehearsal"
_USERS = {"alice": 2001, "bob": 2002}
_STAND_IN = "/bin/true"

# Programs of the site, each of which is replaced by one that does nothing. These and the following
# options are in lower case.
_PROGRAMS = {
    "epilog",
    "epilogslurmctld",
    "healthcheckprogram",
    "mailprog",
    "prolog",
    "prologslurmctld",
    "rebootprogram",
    "srunepilog",
    "srunprolog",
    "taskepilog",
    "taskprolog",
    "unkillablestepprogram",
}
# Hosts, users and containment of jobs, for which the harness has its own options.
_OURS = {
    "accountingstoragebackuphost",
    "accountingstorageexternalhost",
    "accountingstoragehost",
    "accountingstorageloc",
    "accountingstorageport",
    "accountingstoragetype",
    "accountingstorageuser",
    "authalttypes",
    "authaltparameters",
    "authinfo",
    "authtype",
    "backupaddr",
    "backupcontroller",
    "controladdr",
    "controlmachine",
    "credtype",
    "cryptotype",
    "jobacctgathertype",
    "proctracktype",
    "slurmctldaddr",
    "slurmctldhost",
    "slurmdport",
    "slurmduser",
    "slurmuser",
    "taskplugin",
    "taskpluginparam",
    "certgentype",
    "certmgrtype",
    "tlsparameters",
    "tlstype",
}
# Hardware, services and plugins of the site.
_SITES = {
    "acctgatherenergytype",
    "acctgatherfilesystemtype",
    "acctgatherinfinibandtype",
    "acctgatherinterconnecttype",
    "acctgathernodefreq",
    "acctgatherprofiletype",
    "burstbuffertype",
    "clifilterplugins",
    "communicationparameters",
    "corespecplugin",
    "extsensorsfreq",
    "extsensorstype",
    "jobacctgatherparams",
    "jobcomphost",
    "jobcomploc",
    "jobcompparams",
    "jobcompport",
    "jobcomptype",
    "jobcompuser",
    "jobcontainertype",
    "jobsubmitplugins",
    "mpidefault",
    "nodefeaturesplugins",
    "powerparameters",
    "powerplugin",
    "prepplugins",
    "slurmdparameters",
    "switchparameters",
    "switchtype",
    "usepam",
    "x11parameters",
}
# Power saving: in the copy, all nodes are up from the start.
_POWER = {
    "resumefailprogram",
    "resumeprogram",
    "resumerate",
    "resumetimeout",
    "suspendexcnodes",
    "suspendexcparts",
    "suspendexcstates",
    "suspendprogram",
    "suspendrate",
    "suspendtime",
    "suspendtimeout",
}
_WHY = (
    (_OURS, "the harness has its own"),
    (_SITES, "needs the site's hardware, services or plugins"),
    (_POWER, "all nodes are up from the start"),
)
_POWER_WORDS = re.compile(r"(cloud|power_save|idle_on_node_suspend|enable_configless)")
# Defaults of the harness that are removed unless the site sets the option.
_UNASKED = (
    "AccountingStorageEnforce",
    "DefMemPerCPU",
    "ReturnToService",
    "SelectType",
    "SelectTypeParameters",
    "SlurmctldPort",
    "SrunPortRange",
)
_NODE_OPTIONS = {
    **dict.fromkeys(("bcastaddr", "nodeaddr", "nodehostname", "port"), "the harness has its own"),
    "state": "all nodes are up from the start",
}
_PARTITION_OPTIONS = {
    **dict.fromkeys(("allocnodes", "allowgroups"), "needs the site's hosts or users"),
    "state": "all partitions are up from the start",
}
_ACCOUNTING_NAMES = {
    "accounts": ("allowaccounts", "denyaccounts"),
    "qos": ("allowqos", "denyqos", "qos"),
}
# Options of slurmdbd.conf that are policies, not locations.
_SLURMDBD = re.compile(
    "purge|archive(?!dir|script)|max|all|private|track|default|disable|parameters|debug"
)
# Codes of findings about options or values that the release does not have.
_NOT_TAKEN = {"gone", "obsolete", "plugin", "refused", "too-new", "unknown"}
_FILES = {"topology.conf", "topology.yaml"}
# An absolute path in a value. Names of plugins such as select/linear are not paths.
_PATH = re.compile(r"(^|[=,:\"])/")


def shrink(
    data: Mapping[str, Any],
    hosts: int,
    findings: Iterable[Finding],
    scripts: SiteScripts | None = None,
) -> tuple[dict[str, Any], list[str]]:
    """Return an imported scenario that runs on `hosts` hosts, and a list of what was replaced.

    `findings` are those about the site's files: what the release does not accept is left out.
    `scripts` are the site's own, which replace nothing.
    """
    replaced: list[str] = []
    refused = {
        finding.option.lower(): finding.message
        for finding in findings
        if finding.severity in {FATAL, ERROR} and finding.code in _NOT_TAKEN
    }
    ((name, cluster),) = data["clusters"].items()
    accounting = data.get("accounting")
    copy: dict[str, Any] = {
        **data,
        "description": f"{data['description']} A rehearsal copy on {hosts} hosts.",
        "clusters": {
            name: _cluster(
                cluster, hosts, refused, replaced, scripts, with_accounting=bool(accounting)
            )
        },
        "users": data.get("users") or {user: {"uid": uid} for user, uid in _USERS.items()},
    }
    if accounting:
        named = _accounting_names(cluster.get("partitions", {}))
        slurmdbd = accounting.get("slurmdbd", {})
        kept = {key: value for key, value in slurmdbd.items() if _SLURMDBD.match(key.lower())}
        replaced += [
            f"slurmdbd.conf: {key}={slurmdbd[key]}: the harness has its own"
            for key in slurmdbd
            if key not in kept
        ]
        copy["accounting"] = {
            "host": f"{_HOST}1",
            "accounts": accounting.get("accounts")
            or {account: {} for account in (_ACCOUNT, *named["accounts"])},
            "qos": accounting.get("qos") or {qos: {} for qos in named["qos"] if qos != "normal"},
            **({"slurmdbd": kept} if kept else {}),
        }
        if not data.get("users"):
            for user in copy["users"].values():
                user |= {
                    "accounts": list(copy["accounting"]["accounts"]),
                    "qos": list(copy["accounting"]["qos"]),
                }
    return copy, replaced


def _cluster(
    cluster: Mapping[str, Any],
    hosts: int,
    refused: Mapping[str, str],
    replaced: list[str],
    scripts: SiteScripts | None,
    *,
    with_accounting: bool,
) -> dict[str, Any]:
    own = scripts.options if scripts else {}
    others = {name: value for name, value in cluster["options"].items() if name not in own}
    options = dict(_options(others, refused, replaced))
    options |= {name: value for name, value in own.items() if value is not None}
    present = {option.lower() for option in options}
    options |= {option: None for option in _UNASKED if option.lower() not in present}
    lines = []
    for line in cluster.get("lines", ()):
        first = next(iter(line))
        if first.lower() in {"downnodes", "frontendname"}:
            replaced.append(f"{first}={line[first]}: all nodes are up from the start")
        else:
            lines.append(line)
    files = cluster.get("files", {})
    replaced += [
        f"{file}: needs the site's hardware or programs" for file in files if file not in _FILES
    ]
    if cluster.get("cgroup"):
        replaced.append("cgroup.conf: the harness has its own")
    partition_options = {**refused, **_PARTITION_OPTIONS}
    if not with_accounting:
        names = (option for options in _ACCOUNTING_NAMES.values() for option in options)
        partition_options |= dict.fromkeys(names, "there is no accounting")
    parts = {
        "controller": f"{_HOST}1",
        "hosts": f"{_HOST}[1-{hosts}]" if hosts > 1 else f"{_HOST}1",
        "options": options,
        "nodes": [
            _nodes(group, {**refused, **_NODE_OPTIONS}, replaced) for group in cluster["nodes"]
        ],
        "lines": lines,
        "partitions": {
            name: {
                "options": _without(
                    f"partition {name}", part["options"], partition_options, replaced
                )
            }
            for name, part in cluster.get("partitions", {}).items()
        },
        "files": {file: text for file, text in files.items() if file in _FILES},
        "scripts": scripts.scripts if scripts else {},
        "stand_ins": scripts.stand_ins if scripts else {},
    }
    return {key: value for key, value in parts.items() if value}


def _options(
    options: Mapping[str, Any], refused: Mapping[str, str], replaced: list[str]
) -> Iterator[tuple[str, Any]]:
    for name, value in options.items():
        key = name.lower()
        why = next((why for names, why in _WHY if key in names), refused.get(key))
        if key in _PROGRAMS:
            replaced.append(f"{name}={value}: replaced by {_STAND_IN}")
            yield name, _STAND_IN
        elif why:
            replaced.append(f"{name}={value}: {why}")
        elif _PATH.search(str(value)):
            replaced.append(
                f"{name}={value}: a path of the site; the harness has its own path or none"
            )
        elif key == "slurmctldparameters":
            words = str(value).split(",")
            kept = [word for word in words if not _POWER_WORDS.match(word)]
            replaced.extend(f"{name}={word}: not needed here" for word in words if word not in kept)
            if kept:
                yield name, ",".join(kept)
        else:
            yield name, value


def _nodes(
    group: Mapping[str, Any], unwanted: Mapping[str, str], replaced: list[str]
) -> dict[str, Any]:
    options = _without(f"nodes {group['name']}", group["options"], unwanted, replaced)
    gres = next((options.pop(option) for option in list(options) if option.lower() == "gres"), None)
    present = {option.lower() for option in options}
    # Slurm derives those that the site does not set from the rest of the line.
    options |= {option: None for option in ("CPUs", "RealMemory") if option.lower() not in present}
    return {
        "name": group["name"],
        **({"gres": str(gres).split(",")} if gres else {}),
        "options": options,
    }


def _without(
    where: str, options: Mapping[str, Any], unwanted: Mapping[str, str], replaced: list[str]
) -> dict[str, Any]:
    kept = {}
    for name, value in options.items():
        if name.lower() not in unwanted:
            kept[name] = value
        elif value not in {None, "UP", "UNKNOWN"}:
            replaced.append(f"{where}: {name}={value}: {unwanted[name.lower()]}")
    return kept


def _accounting_names(partitions: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the accounts and QOS that partitions name."""
    names_of: dict[str, dict[str, None]] = {kind: {} for kind in _ACCOUNTING_NAMES}
    for part in partitions.values():
        for name, value in part["options"].items():
            for kind, options in _ACCOUNTING_NAMES.items():
                if name.lower() in options and str(value).upper() not in {"ALL", "N/A"}:
                    names_of[kind] |= dict.fromkeys(str(value).lower().split(","))
    return {kind: list(names) for kind, names in names_of.items()}
