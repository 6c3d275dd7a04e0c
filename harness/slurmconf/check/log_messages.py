"""Which lines of the daemons' logs are about what `harness check` finds."""

from __future__ import annotations

import re

# Lines that do not name the option that they are about -> the option (regular expressions).
_OPTION_OF_MESSAGE = {
    "default partition not set": "PartitionName",
    "select/linear with topology/tree": "TopologyPlugin",
    "gathered, but not stored|much slower algorithm": "JobAcctGatherType",
    "power_save module disabled": "SuspendTime",
    "power_save program": "(Suspend|Resume|ResumeFail)Program",
    "cannot create jobcomp context": "JobCompType|DefaultStorageType",
    "cannot create site_factor context": "PrioritySiteFactorPlugin",
    "default storage type": "DefaultStorageType",
    "Unable to resolve": "NodeName|SlurmctldHost",
    "DownNode ": "DownNodes",
    "switches lack access|no switch can reach|No switches|neither child": "SwitchName|switch",
    "both child switches and nodes": "SwitchName",
    "Rings lack access": "RingName|ring",
    "Position .* in ring must be": "Topology",
    "(?i)blocks lack access|blocks do not contain|no blocks": "BlockName",
    "Invalid hostnames in|Multiple leaf switches|lookup failure for node ": "Nodes",
    "PreemptParameters reorder_count": "SchedulerParameters",
    "rate exceeds maximum": "(Suspend|Resume)Rate",
    "CONMGR_THREADS=": "SlurmctldParameters",
    "backfill scheduler bf_|^warning: bf_|^error: (Both )?bf_": "SchedulerParameters",
    "mcs/group: no group in": "MCSParameters",
    "threadpool is unavailable": "SlurmctldParameters",
    "ignoring invalid user": "(Allow|Deny)Users",
    "found get_sys_state which": "GetSysState",
    "found get_sys_status which": "GetSysStatus",
    "more configured than expected": "(Node)?Name",
    "PriorityWeight values": "PriorityWeight.*",
    'file-less GPU|configuration lacks "File"': "Gres",
    "hostlist_create error": "Nodes",
    "experimental rpc queuing": "SlurmctldParameters",
    "_make_requeue_array": "RequeueExit(Hold)?",
    "CpuFreqGov|cpu_freq_verify_govlist": "CpuFreqGovernors",
    "cannot create route context": "RoutePlugin",
    "unknown autodetect flag": "AutoDetect",
    "cannot create http_parser context": "HttpParserType",
    "cannot create url_parser context": "UrlParserType",
    "addrs?: failure on n": "SlurmdPort",
    "no QOS on the system": "AllowQos|DenyQos",
    "If munged is up|Munge encode failed": "AuthInfo",
    "Unable to create NodeName list": "DownNodes",
    "MemSpecLimit=0 is invalid": "RealMemory",
    "Invalid hostlist_function": "Nodes",
    '(Unable to resolve "|failure on )[0-9a-f]*:': "NodeAddr",
    "Duplicate plugin gres/": "GresTypes",
    "socket keepalive|keepalive socket": "KeepAliveTime|CommunicationParameters",
    "power save module can not work": "SlurmctldParameters",
    "Invalid storage option": "StorageParameters",
    "Configured MailProg": "MailProg",
    "ignoring max_depend_depth": "DependencyParameters",
    "for OverSubscribe": "Shared",
    "pidfile `|SlurmctldPid ==": "(Slurmctld)?PidFile",
    "jobcomp/script: .* isn't a regular file": "JobCompLoc",
    "CPUs=.* (is invalid|match no)": "Procs",
    "We have no QOS": "(Allow|Deny)Qos",
    "Normalizing debug level": "Slurm(ctl)?d(Syslog)?Debug",
    "Exclusive=USER ignored": "ExclusiveUser",
    "doesn't match socket boundaries|GRES core specification|has CPUs configured": "Cores|CPUs",
    "workers_init: thread count": "Slurm(ctl)?dParameters",
    "jobcomp/kafka: invalid poll_interval=": "JobCompParams",
}


def is_about(line: str, option: str) -> bool:
    """Return whether an error or warning of a log can be about an option.

    >>> is_about("error: read_slurm_conf: default partition not set.", "PartitionName")
    True
    """
    name = re.escape(option.removesuffix("s"))
    named = re.search(rf"(?<![\w-]){name}s?(?![\w-])", line, re.IGNORECASE)
    return bool(named) or _is_known_message_about(line, option)


def is_certainly_about(line: str, option: str) -> bool:
    """Return whether an error or warning of a log is about an option, and nothing else.

    Many lines have words such as "node", so only names of several words count by themselves.

    >>> is_certainly_about("error: Nodes n1 not responding", "Nodes")
    False
    """
    is_distinct = bool(re.search(r"[a-z][A-Z]", option))
    return (is_distinct and is_about(line, option)) or _is_known_message_about(line, option)


def _is_known_message_about(line: str, option: str) -> bool:
    return any(
        re.fullmatch(about, option, re.IGNORECASE) and re.search(pattern, line)
        for pattern, about in _OPTION_OF_MESSAGE.items()
    )
