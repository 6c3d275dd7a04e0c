"""Shrink an imported cluster to a rehearsal copy that fits a few hosts. Pure.

All nodes share the given number of hosts. slurmctld and slurmdbd, and their backups, have hosts of
their own, unless the site runs them together or on a node: upgrades depend on that.
It keeps the site's nodes, partitions, features, GRES counts, topology, limits and priorities.
Options that depend on the site's machines, programs, users or secrets are replaced and listed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from harness.parsing import c_numbers, hostlist
from harness.site.fidelity import Replaced
from harness.site.scripts import SiteScripts
from harness.slurm_options import LOG_DIRECTORY, get
from harness.slurmconf.check.findings import ERROR, FATAL, Finding
from harness.slurmconf.check.nodes import names_of

# How the names of all hosts begin, and those of the hosts that run slurmdbd.
HOST = "copy"
ACCOUNTING = f"{HOST}-db"
_ACCOUNT = "rehearsal"
_USERS = {"alice": 2001, "bob": 2002}
_STAND_IN = "/bin/true"
# Options, with the copy's values, without which other options of the site have no effect or are
# refused.
_LOG_OPTIONS = {"slurmschedlogfile": f"{LOG_DIRECTORY}/slurmsched.log"}
# Why a copy does not have a site's file, if not because of hardware or programs.
_WHY = {
    "plugstack.conf": "its plugins were compiled for the site; add their sources to spank_plugins"
}
_COMPLETION_LOG = f"{LOG_DIRECTORY}/jobcomp.log"

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
# Options for hosts, users and containment of jobs, which the harness sets itself.
_HARNESS_OPTIONS = {
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
    "slurmctldlogfile",
    "slurmctldpidfile",
    "slurmdlogfile",
    "slurmdpidfile",
    "slurmdspooldir",
    "statesavelocation",
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
# Options for hardware, services and plugins of the site.
_SITE_OPTIONS = {
    "acctgatherenergytype",
    "acctgatherfilesystemtype",
    "acctgatherinfinibandtype",
    "acctgatherinterconnecttype",
    "acctgathernodefreq",
    "acctgatherprofiletype",
    "burstbuffertype",
    "clifilterplugins",
    "corespecplugin",
    "defaultstoragehost",
    "defaultstorageloc",
    "defaultstorageport",
    "defaultstoragetype",
    "defaultstorageuser",
    "extsensorsfreq",
    "extsensorstype",
    "jobcomphost",
    "jobcompparams",
    "jobcompport",
    "jobcompuser",
    "jobcontainertype",
    "jobsubmitplugins",
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
# Plugins that need no service: those that write records of completed jobs, and those for MPI. The
# slurmds that share a host would also share the directories of mpi/pmix.
_COMPLETIONS, _MPI = {"jobcomp/none", "jobcomp/filetxt"}, {"none", "pmi2"}
# Power saving: in the copy, all nodes are up from the start.
_POWER_OPTIONS = {
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
# Limits that the jobs of the checks exceed, because they request little memory.
_FOR_LARGE_JOBS = {"vsizefactor"}
_OF_THE_SITE = "needs the site's hardware, services or plugins"
_REASONS = (
    (_FOR_LARGE_JOBS, "the jobs of the checks request too little memory for it"),
    (_HARNESS_OPTIONS, "the harness has its own"),
    (_SITE_OPTIONS, _OF_THE_SITE),
    (_POWER_OPTIONS, "all nodes are up from the start"),
)
# For CLOUD nodes, whose power saving is emulated: the options that the harness sets itself, the
# longest SuspendTime in seconds, and words of SlurmctldParameters.
_CLOUD_POWER_OPTIONS = _POWER_OPTIONS | {"treewidth"}
_LONGEST_SUSPEND_TIME = 60
_CLOUD_WORDS = ("cloud_dns", "idle_on_node_suspend", "power_save_interval=0")
_CREATED = "the harness creates the hosts of CLOUD nodes for jobs, and removes them"
_POWER_WORDS = re.compile(r"(cloud|power_save|idle_on_node_suspend|enable_configless)")
# Defaults of the harness that are removed unless the site sets the option.
_UNWANTED_DEFAULTS = (
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
# Groups without imported users get gids from here on.
_FIRST_FREE_GID = 200_000
_ACCOUNTING_NAMES = {
    "accounts": ("allowaccounts", "denyaccounts"),
    "qos": ("allowqos", "denyqos", "qos"),
}
# Options of slurmdbd.conf that are policies, not locations.
_SLURMDBD = re.compile(
    "purge|archive(?!dir|script)|max|all|private|track|default|disable|parameters|debug"
)
_NEED_ACCOUNTING = {
    **dict.fromkeys(
        ("accountingstorageenforce", "accountingstoragetres"), "there is no accounting"
    ),
    # init() of priority/multifactor, which logs an error.
    **dict.fromkeys(
        ("priorityweightage", "priorityweightfairshare"), "is ignored without slurmdbd"
    ),
}
# Words of PrologFlags that require proctrack/cgroup. Slurm takes them to include Alloc.
_PROLOG_WORDS = {"contain", "x11"}
# Codes of findings about options or values that the release does not have.
_REFUSED_CODES = {"gone", "obsolete", "plugin", "refused", "too-new", "unknown"}
_FILES = {"topology.conf", "topology.yaml"}
# Options with the default memory of jobs, and with the memory that they may request.
_JOB_MEMORY = ("DefMemPerCPU", "DefMemPerNode", "DefMemPerGPU", "MaxMemPerCPU", "MaxMemPerNode")
# The memory of nodes that detect theirs on the site: MiB per CPU, and a number of CPUs.
_MEMORY_PER_CPU, _MOST_CPUS = 1024, 64
# Names of nodes that a host can have.
_NODE = re.compile("[A-Za-z0-9_][A-Za-z0-9_.-]*")
# An absolute path in a value. Names of plugins such as select/linear are not paths.
_PATH = re.compile(r"(^|[=,:\"])/")


def shrink(
    data: Mapping[str, Any],
    hosts: int,
    findings: Iterable[Finding],
    scripts: SiteScripts | None = None,
    prefix: str = HOST,
) -> tuple[dict[str, Any], list[Replaced]]:
    """Return an imported scenario that runs on `hosts` hosts, and a list of what was replaced.

    `findings` are those about the site's files: what the release does not accept is left out.
    `scripts` are those of the site that the copy runs. The names of the hosts that run slurmctld
    and the nodes begin with `prefix`.
    """
    replaced: list[Replaced] = []
    refused = {
        finding.option.lower(): finding.message
        for finding in findings
        if finding.severity in {FATAL, ERROR} and finding.code in _REFUSED_CODES
    }
    ((name, cluster),) = data["clusters"].items()
    accounting = data.get("accounting")
    cluster = _with_all_nodes(cluster, hosts, replaced)
    nodes = [node for group in cluster["nodes"] for node in names_of(group["name"]) or ()]
    if not nodes and get(cluster["options"], "MaxNodeCount"):
        cluster = {**cluster, "nodes": _dynamic_nodes(cluster, hosts, prefix)}
        why = "nodes that register themselves, each on a host of its own"
        replaced.append(Replaced("nodes", "", None, why))
    elif len(nodes) < hosts:
        why = f"{len(nodes)} instead of {hosts}: the site has no more nodes"
        replaced.append(Replaced("hosts", "", None, why))
        hosts = max(len(nodes), 1)
    cluster = _with_cloud_nodes(cluster, hosts, replaced)
    controllers = _controllers(cluster, {*nodes, *_node_hosts(cluster)}, prefix, replaced)
    copy: dict[str, Any] = {
        **data,
        "description": f"{data['description']} A rehearsal copy on {hosts} host{'s'[: hosts > 1]}.",
        "clusters": {
            name: {
                "controller": controllers[0],
                **({"backup_controllers": controllers[1:]} if controllers[1:] else {}),
                **_cluster(
                    cluster,
                    _hosts(cluster, hosts, prefix),
                    refused,
                    replaced,
                    scripts,
                    with_accounting=bool(accounting),
                    with_groups="groups" in data,
                ),
            }
        },
        "users": data.get("users") or {user: {"uid": uid} for user, uid in _USERS.items()},
    }
    if "groups" in data:
        copy["groups"] = data["groups"] | _empty_groups(cluster, data)
    if accounting:
        named = _accounting_names(cluster.get("partitions", {}))
        slurmdbd = accounting.get("slurmdbd", {})
        kept = {key: value for key, value in slurmdbd.items() if _SLURMDBD.match(key.lower())}
        replaced += [
            Replaced("slurmdbd.conf", key, slurmdbd[key], "the harness has its own")
            for key in slurmdbd
            if key not in kept
        ]
        copy["accounting"] = {
            "host": controllers[0]
            if accounting["host"] == cluster["controller"]
            else f"{ACCOUNTING}1",
            **({"backup": f"{ACCOUNTING}2"} if get(slurmdbd, "DbdBackupHost") else {}),
            "accounts": accounting.get("accounts")
            or {account: {} for account in (_ACCOUNT, *named["accounts"])},
            "qos": accounting.get("qos") or {qos: {} for qos in named["qos"] if qos != "normal"},
            **({"resources": accounting["resources"]} if accounting.get("resources") else {}),
            **({"slurmdbd": kept} if kept else {}),
        }
        if not data.get("users"):
            for user in copy["users"].values():
                user |= {
                    "accounts": list(copy["accounting"]["accounts"]),
                    "qos": list(copy["accounting"]["qos"]),
                }
    return copy, replaced


def _empty_groups(cluster: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the groups that partitions allow, but to which no imported user belongs."""
    named = {
        group: None
        for part in cluster.get("partitions", {}).values()
        for group in str(get(part["options"], "AllowGroups") or "").split(",")
        if group and group.upper() != "ALL"
    }
    empty = [name for name in named if name not in {**data["groups"], **data["users"]}]
    return {name: {"gid": gid} for gid, name in enumerate(empty, _FIRST_FREE_GID)}


def _with_all_nodes(
    cluster: Mapping[str, Any], hosts: int, replaced: list[Replaced]
) -> Mapping[str, Any]:
    """Return a cluster with at least one node, no node twice, and all that partitions name."""
    groups: list[dict[str, Any]] = []
    nodes: set[str] = set()
    for group in cluster["nodes"]:
        names = names_of(group["name"]) or ()
        new = [name for name in names if name not in nodes and _NODE.fullmatch(name)]
        if len(new) < len(names):
            why = "not the name of a node, or the second line of the same node; left out"
            left_out = hostlist.fold([name for name in names if name not in new])
            replaced.append(Replaced("slurm.conf", "NodeName", left_out, why))
            group = {**group, "name": hostlist.fold(new)}
        if new:
            groups.append(group)
            nodes |= {*new}
    partitions, named = _named_nodes(cluster, replaced)
    missing = [name for name in named if name not in nodes]
    if not get(cluster["options"], "MaxNodeCount"):
        if not nodes and not missing:
            missing = [f"node{number}" for number in range(1, hosts + 1)]
        if missing:
            name = hostlist.fold(missing)
            why = "no line of the site defines them; added, with one CPU each"
            replaced.append(Replaced("slurm.conf", "NodeName", name, why))
            groups.append({"name": name, "options": {"State": None}})
    return {**cluster, "nodes": groups, **({"partitions": partitions} if partitions else {})}


def _named_nodes(
    cluster: Mapping[str, Any], replaced: list[Replaced]
) -> tuple[dict[str, Any], list[str]]:
    """Return a cluster's partitions, with valid hostlists, and the nodes that they name."""
    sets = {str(get(line, "NodeSet")).upper() for line in cluster.get("lines", ())} | {"ALL", ""}
    named: dict[str, None] = {}
    partitions = {}
    for name, part in cluster.get("partitions", {}).items():
        options = part["options"]
        nodes = str(get(options, "Nodes") or "")
        listed = names_of(nodes)
        names = [node for node in listed or () if node.upper() not in sets]
        if listed is None or not all(map(_NODE.fullmatch, names)):
            why = "not a hostlist; replaced by all nodes"
            replaced.append(Replaced("slurm.conf", f"PartitionName {name} Nodes", nodes, why))
            options = {**options, _spelling(options, "Nodes"): "ALL"}
            names = []
        partitions[name] = {**part, "options": options}
        named |= dict.fromkeys(names)
    return partitions, list(named)


def _spelling(options: Mapping[str, Any], name: str) -> str:
    """Return an option's name as it is spelled in `options`."""
    return next(option for option in options if option.lower() == name.lower())


def _node_hosts(cluster: Mapping[str, Any]) -> Iterator[str]:
    """Yield the hosts of nodes whose names differ from their hosts' names."""
    for group in cluster["nodes"]:
        yield from names_of(str(get(group.get("options", {}), "NodeHostname") or "")) or ()


def _hosts(cluster: Mapping[str, Any], hosts: int, prefix: str) -> str | None:
    """Return the hosts that share the nodes; None if each node has its own."""
    if any(group.get("dynamic") for group in cluster["nodes"]):
        return None
    groups = [group for group in cluster["nodes"] if "provision" not in group]
    hosts = min(hosts, sum(len(names_of(group["name"]) or ()) for group in groups))
    if not hosts:
        return None
    return f"{prefix}[1-{hosts}]" if hosts > 1 else f"{prefix}1"


def _controllers(
    cluster: Mapping[str, Any], node_hosts: Collection[str], prefix: str, replaced: list[Replaced]
) -> list[str]:
    """Return the hosts that run slurmctld in the copy: as many as the site has.

    A cluster whose nodes come and go has only one.
    """
    if cluster["controller"] in node_hosts:
        return [f"{prefix}1"]
    options = cluster["options"]
    hosts = get(options, "SlurmctldHost") or [
        *filter(None, [get(options, "ControlMachine"), get(options, "BackupController")])
    ]
    hosts = [hosts] if isinstance(hosts, str) else hosts
    if hosts[1:] and any("provision" in group for group in cluster["nodes"]):
        why = "a cluster whose nodes come and go has a single controller"
        replaced.append(Replaced("slurm.conf", "SlurmctldHost", hosts[1:], why))
        hosts = hosts[:1]
    count = max(len(hosts), 1)
    return [f"{prefix}-ctl{number}" for number in range(1, count + 1)]


def _with_cloud_nodes(
    cluster: Mapping[str, Any], hosts: int, replaced: list[Replaced]
) -> Mapping[str, Any]:
    """Return a cluster in which as many CLOUD nodes as there are hosts are created for jobs."""
    options = cluster["options"]
    if not (get(options, "ResumeProgram") and get(options, "SuspendProgram")):
        return cluster
    groups: list[dict[str, Any]] = []
    free = hosts
    for group in cluster["nodes"]:
        own = {name: value for name, value in group["options"].items() if name.lower() != "state"}
        if str(get(group["options"], "State")).upper() != "CLOUD":
            groups.append(group)
            continue
        names = names_of(group["name"]) or ()
        created, others = names[:free], names[free:]
        free -= len(created)
        if created:
            name = hostlist.fold(created)
            groups.append({**group, "name": name, "provision": "create", "options": own})
        if others:
            name = hostlist.fold(others)
            why = f"always up; only {hosts} nodes come and go"
            replaced.append(Replaced("slurm.conf", f"NodeName {name} State", "CLOUD", why))
            groups.append({**group, "name": name, "options": own})
    return {**cluster, "nodes": groups}


def _power_saving(
    options: Mapping[str, Any], replaced: list[Replaced]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options without those for power saving, and the copy's options for it."""
    others = {}
    for name, value in options.items():
        if name.lower() in _CLOUD_POWER_OPTIONS:
            replaced.append(Replaced("slurm.conf", name, value, _CREATED))
        elif name.lower() != "slurmctldparameters":
            others[name] = value
    time = c_numbers.strtol(str(get(options, "SuspendTime") or ""))
    power: dict[str, Any] = {
        "SuspendTime": min(time, _LONGEST_SUSPEND_TIME) if time > 0 else _LONGEST_SUSPEND_TIME
    }
    if parameters := get(options, "SlurmctldParameters"):
        words = [word for word in str(parameters).split(",") if not _POWER_WORDS.match(word)]
        power["SlurmctldParameters"] = ",".join(dict.fromkeys([*words, *_CLOUD_WORDS]))
        if power["SlurmctldParameters"] != parameters:
            replaced.append(Replaced("slurm.conf", "SlurmctldParameters", parameters, _CREATED))
    return others, power


def _dynamic_nodes(cluster: Mapping[str, Any], hosts: int, prefix: str) -> list[dict[str, Any]]:
    """Return nodes for a site whose nodes all register themselves, some for each NodeSet."""
    features = [
        feature
        for line in cluster.get("lines", ())
        if get(line, "NodeSet") and (feature := get(line, "Feature"))
    ]
    names = [f"{prefix}{number}" for number in range(1, max(hosts, len(features)) + 1)]
    return [
        {
            "name": hostlist.fold(names[index :: len(features) or 1]),
            "cpus": 2,
            "dynamic": True,
            **({"features": [feature]} if feature else {}),
        }
        for index, feature in enumerate(features or [""])
    ]


def _cluster(
    cluster: Mapping[str, Any],
    hosts: str | None,
    refused: Mapping[str, str],
    replaced: list[Replaced],
    scripts: SiteScripts | None,
    *,
    with_accounting: bool,
    with_groups: bool,
) -> dict[str, Any]:
    own = scripts.options if scripts else {}
    unwanted = {**refused, **({} if with_accounting else _NEED_ACCOUNTING)}
    others = {name: value for name, value in cluster["options"].items() if name not in own}
    power: dict[str, Any] = {}
    if any("provision" in group for group in cluster["nodes"]):
        others, power = _power_saving(others, replaced)
    options = dict(_options(others, unwanted, replaced)) | power
    if str(get(options, "JobCompType")).lower() == "jobcomp/filetxt":
        options["JobCompLoc"] = _COMPLETION_LOG  # its default is a file that slurm cannot create
    options |= {name: value for name, value in own.items() if value is not None}
    present = {option.lower() for option in options}
    options |= {option: None for option in _UNWANTED_DEFAULTS if option.lower() not in present}
    lines = []
    for line in cluster.get("lines", ()):
        first = next(iter(line))
        if first.lower() in {"downnodes", "frontendname"}:
            why = "all nodes are up from the start"
            replaced.append(Replaced("slurm.conf", first, line[first], why))
        else:
            lines.append(line)
    files = cluster.get("files", {})
    replaced += [
        Replaced(file, "", None, _WHY.get(file, "needs the site's hardware or programs"))
        for file in files
        if file not in _FILES
    ]
    if cluster.get("cgroup"):
        replaced.append(Replaced("cgroup.conf", "", None, "the harness has its own"))
    memory = _default_memory(cluster)
    partition_options = {**refused, **_PARTITION_OPTIONS}
    if with_groups:
        del partition_options["allowgroups"]
    if not with_accounting:
        names = (option for options in _ACCOUNTING_NAMES.values() for option in options)
        partition_options |= dict.fromkeys(names, "there is no accounting")
    parts = {
        "hosts": hosts,
        "options": options,
        "nodes": cluster["nodes"]
        if hosts is None
        else [
            _nodes(group, {**refused, **_NODE_OPTIONS}, replaced, memory)
            for group in cluster["nodes"]
        ],
        "lines": lines,
        "partitions": {
            name: {
                "options": _remove_unwanted(
                    f"PartitionName {name}", part["options"], partition_options, replaced
                )
            }
            for name, part in cluster.get("partitions", {}).items()
        },
        "files": {file: text for file, text in files.items() if file in _FILES},
        "scripts": scripts.scripts if scripts else {},
        "reservations": cluster.get("reservations", {}),
        "stand_ins": scripts.stand_ins if scripts else {},
    }
    return {key: value for key, value in parts.items() if value}


def _options(
    options: Mapping[str, Any],
    refused: Mapping[str, str],
    replaced: list[Replaced],
) -> Iterator[tuple[str, Any]]:
    for name, value in options.items():
        kept, why = _copy_value(name.lower(), value, refused)
        if why:
            replaced.append(Replaced("slurm.conf", name, value, why))
        if kept is not None:
            yield name, kept


def _copy_value(key: str, value: Any, refused: Mapping[str, str]) -> tuple[Any, str]:
    """Return the copy's value of an option, None if it has none, and why it differs."""
    why = next((why for names, why in _REASONS if key in names), refused.get(key))
    if key in _PROGRAMS:
        return _STAND_IN, f"replaced by {_STAND_IN}"
    if key in _LOG_OPTIONS:
        return _LOG_OPTIONS[key], f"replaced by {_LOG_OPTIONS[key]}"
    if why:
        return None, why
    if _PATH.search(str(value)):
        return None, "a path of the site; the harness has its own path or none"
    words = str(value).split(",")
    if key == "mpidefault" and str(value).lower() not in _MPI:
        return None, "mpi/pmix needs a host for each node" if "pmix" in str(value) else _OF_THE_SITE
    if key == "jobcomptype" and str(value).lower() not in _COMPLETIONS:
        return None, _OF_THE_SITE
    if key == "communicationparameters":
        kept = [word for word in words if "ipv" not in word.lower()]
        if kept != words:
            return ",".join(kept) or None, "the hosts have IPv4 addresses only"
    if key == "prologflags":
        kept = [word for word in words if word.strip().lower() not in _PROLOG_WORDS]
        if kept != words:
            text = ",".join(dict.fromkeys(("Alloc", *kept)))
            return text, "Contain and X11 need proctrack/cgroup"
    if key == "slurmctldparameters":
        kept = [word for word in words if not _POWER_WORDS.match(word)]
        if kept != words:
            left_out = ",".join(word for word in words if word not in kept)
            return ",".join(kept) or None, f"{left_out} is not needed here"
    return value, ""


def _nodes(
    group: Mapping[str, Any],
    unwanted: Mapping[str, str],
    replaced: list[Replaced],
    memory: int,
) -> dict[str, Any]:
    options = _remove_unwanted(f"NodeName {group['name']}", group["options"], unwanted, replaced)
    gres = next((options.pop(option) for option in list(options) if option.lower() == "gres"), None)
    if memory and get(options, "RealMemory") is None:
        options["RealMemory"] = memory
        why = "added: jobs of the site request memory, and its nodes detect what they have"
        replaced.append(Replaced("slurm.conf", f"NodeName {group['name']} RealMemory", memory, why))
    present = {option.lower() for option in options}
    # Slurm derives those that the site does not set from the rest of the line.
    options |= {option: None for option in ("CPUs", "RealMemory") if option.lower() not in present}
    return {
        "name": group["name"],
        **({"provision": group["provision"]} if "provision" in group else {}),
        # Sockets, such as (S:0-1), depend on the site's hardware.
        **({"gres": re.sub(r"\([^)]*\)", "", str(gres)).split(",")} if gres else {}),
        "options": options,
    }


def _default_memory(cluster: Mapping[str, Any]) -> int:
    """Return the memory in MiB of nodes without RealMemory; 0 if the site's jobs request none."""
    parts = [
        cluster["options"],
        *(part["options"] for part in cluster.get("partitions", {}).values()),
    ]
    defaults = [
        c_numbers.strtol(str(value))
        for options in parts
        for name in _JOB_MEMORY
        if str(value := get(options, name) or "").isdecimal()
    ]
    selects = str(get(cluster["options"], "SelectTypeParameters") or "").lower()
    if not defaults and "memory" not in selects:
        return 0
    return _MEMORY_PER_CPU * _MOST_CPUS + max(defaults, default=0) * _MOST_CPUS


def _remove_unwanted(
    where: str, options: Mapping[str, Any], unwanted: Mapping[str, str], replaced: list[Replaced]
) -> dict[str, Any]:
    kept = {}
    for name, value in options.items():
        if name.lower() not in unwanted:
            kept[name] = value
        elif value not in {None, "UP", "UNKNOWN"}:
            why = unwanted[name.lower()]
            replaced.append(Replaced("slurm.conf", f"{where} {name}", value, why))
    return kept


def _accounting_names(partitions: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the accounts and QOS that partitions name. ALL means all only where it allows."""
    names_of: dict[str, dict[str, None]] = {kind: {} for kind in _ACCOUNTING_NAMES}
    for part in partitions.values():
        for name, value in part["options"].items():
            means_all = str(value).upper() in {"ALL", "N/A"} and not name.lower().startswith("deny")
            for kind, options in _ACCOUNTING_NAMES.items():
                if name.lower() in options and not means_all:
                    names_of[kind] |= dict.fromkeys(str(value).lower().split(","))
    return {kind: list(names) for kind, names in names_of.items()}
