"""The options of every Slurm file: the scenario's, and defaults that fit the release. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from math import inf
from pathlib import PurePosixPath
from typing import Any, TypeVar

from harness import releases
from harness.capabilities import Capabilities
from harness.parsing import durations
from harness.parsing.conf import number
from harness.run_secrets import secret
from harness.scenario import (
    FIRST_NODE_PORT,
    Accounting,
    Cluster,
    NodeGroup,
    Scenario,
    gres_count,
    gres_type,
)

LOG_DIRECTORY = "/var/log/slurm"
# The log of the programs that power nodes up and down, on their controller.
POWER_LOG = f"{LOG_DIRECTORY}/power.log"
PROGRAMS = "/usr/local/sbin"
POWER_PROGRAMS = {"Resume": "resume", "Suspend": "suspend", "ResumeFail": "resume-fail"}
# The port on which the provisioning API answers on a controller.
API_PORT = 8470
MARIADB_PORT = 3306
# Database and account of the job completion records. They are not slurmdbd's, because every user
# can read slurm.conf.
JOB_COMPLETION = "slurm_jobcomp"
# Daemon, option, whether the option names a file, mode of the directory.
_DIRECTORIES = (
    ("slurmdbd", "PidFile", True, "0755"),
    ("slurmdbd", "LogFile", True, "0755"),
    ("slurmctld", "StateSaveLocation", False, "0700"),
    ("slurmctld", "SlurmctldPidFile", True, "0755"),
    ("slurmctld", "SlurmctldLogFile", True, "0755"),
    ("slurmd", "SlurmdSpoolDir", False, "0755"),
    ("slurmd", "SlurmdPidFile", True, "0755"),
    ("slurmd", "SlurmdLogFile", True, "0755"),
)
# Directories that must not belong to SlurmUser.
_SYSTEM_DIRECTORIES = {
    *("/", "/dev", "/run", "/tmp", "/var", "/var/lib"),  # noqa: S108  named to leave them alone
    *("/var/log", "/var/run", "/var/spool", "/var/tmp"),  # noqa: S108
}
# slurm.conf(5), SlurmctldDebug.
LOG_LEVELS = (
    "quiet",
    "fatal",
    "error",
    "info",
    "verbose",
    "debug",
    "debug2",
    "debug3",
    "debug4",
    "debug5",
)
LOG_INFO = LOG_LEVELS.index("info")
# The key with which auth/slurm signs credentials: all hosts of a scenario have the same one.
AUTH_KEY = "/etc/slurm/slurm.key"
# Several such keys with names, which are used instead if the file is there.
AUTH_KEYS = "/etc/slurm/slurm.jwks"
# The key that signs tokens: slurmctld and slurmdbd must have the same one.
JWT_KEY = "/etc/slurm/jwt_hs256.key"
# The option with which slurmctld serves metrics, and the paths at which it does: http.c.
METRICS = "MetricsType"
METRIC_PATHS = tuple(
    f"/metrics/{what}" for what in ("jobs", "nodes", "partitions", "scheduler", "jobs-users-accts")
)
_DEVICES = "/dev/slurm-gpu"
# crun keeps the state of each user's containers here.
CONTAINERS = "/run/crun"
# GRES for what Kubernetes leaves of a node: CPUs, and memory in MiB. They have no device files.
LEDGER_GRES = ("k8scpu", "k8smemory", "k8sgpu")
_PORT_OPTIONS = {"slurmctld": "SlurmctldPort", "slurmd": "SlurmdPort", "slurmdbd": "DbdPort"}
# TRES that AccountingStorageTRES of slurm.conf must name, unlike CPUs, memory or energy.
_LATE_TRES = re.compile(r"\b(gres|license|bb|ic)/([^=,]+)")


Value = TypeVar("Value")


def merged(*layers: Mapping[str, Any], repeated: Collection[str] = ()) -> dict[str, str]:
    """Return the options of all layers; a later layer overrides an earlier one.

    Names are compared without case, and the last spelling is kept. None removes an option. A list
    becomes one value with commas, or one line per item for the options in `repeated`, which are in
    lower case.

    >>> options = {"ReturnToService": 2, "MailProg": "/bin/mail"}
    >>> merged(options, {"returntoservice": True, "MailProg": None})
    {'returntoservice': 'YES'}
    """
    result: dict[str, tuple[str, Any]] = {}
    for layer in layers:
        for name, value in layer.items():
            result[name.lower()] = (name, value)
    return {
        name: "\n".join(map(_text, value))
        if key in repeated and isinstance(value, list | tuple)
        else _text(value)
        for key, (name, value) in result.items()
        if value is not None
    }


def get(options: Mapping[str, Value], name: str) -> Value | None:
    """Return the value of an option; the case of its name does not matter."""
    return next((value for key, value in options.items() if key.lower() == name.lower()), None)


def slurm_conf(scenario: Scenario, name: str, capabilities: Capabilities) -> dict[str, str]:
    """Return the global options of a cluster's slurm.conf; slurm.conf(5) explains each."""
    cluster = scenario.clusters[name]
    defaults = (
        _slurm_conf_defaults(scenario, name, capabilities),
        _topology_plugin(scenario, cluster),
    )
    repeated = _repeated(scenario, cluster)
    conf = merged(*defaults, cluster.options, repeated=repeated)
    if cluster.defaults and scenario.monitoring:
        tokens = _metric_tokens(scenario, cluster, conf)
        conf = merged(*defaults, tokens, cluster.options, repeated=repeated)
    parameters = get(conf, "SlurmctldParameters")
    if (
        serves_configuration(scenario, cluster)
        and "enable_configless" not in (parameters or "").lower()
    ):
        conf = merged(
            conf, {"SlurmctldParameters": ",".join(filter(None, [parameters, "enable_configless"]))}
        )
    return conf


def serves_configuration(scenario: Scenario, cluster: Cluster) -> bool:
    """Return whether hosts get their configuration from slurmctld (enable_configless)."""
    has_sackd = releases.get(scenario.release_of(cluster)).has_sackd
    return cluster.configless or bool(cluster.login and has_sackd)


def conf_servers(cluster: Cluster, conf: Mapping[str, str]) -> list[str]:
    """Return the slurmctlds that serve the configuration (slurmd(8), --conf-server)."""
    port = ports(port_of(conf, "slurmctld"))[0]
    return [f"{host}:{port}" for host in (cluster.controller, *cluster.backup_controllers)]


def late(values: Mapping[str, Value]) -> dict[str, str]:
    """Return the limits on TRES that slurmdbd knows only after a slurmctld registered them."""
    return {name: value for name, value in merged(values).items() if _LATE_TRES.search(value)}


def early(values: Mapping[str, Value]) -> dict[str, str]:
    """Return the limits that `late` leaves out."""
    return {name: value for name, value in merged(values).items() if not _LATE_TRES.search(value)}


def late_tres(scenario: Scenario) -> list[str]:
    """Return the TRES of late limits, as `sacctmgr show tres format=type,name` prints them."""
    if (accounting := scenario.accounting) is None:
        return []
    limits = [qos.options for qos in accounting.qos.values()]
    for part, _ in scenario.accounting_trees():
        accounts = part.accounting.accounts if part.accounting else {}
        limits += [account.options for account in accounts.values()]
        limits += [
            options for user in part.users.values() for options in user.associations.values()
        ]
    values = [value for limit in limits for value in late(limit).values()]
    return sorted(
        {f"{kind}|{name}" for value in values for kind, name in _LATE_TRES.findall(value)}
    )


def state_save_location(conf: Mapping[str, Value]) -> str:
    """Return the directory in which slurmctld saves its state; Slurm's default is /var/spool."""
    return str(get(conf, "StateSaveLocation") or "/var/spool")


def _slurm_conf_defaults(
    scenario: Scenario, name: str, capabilities: Capabilities
) -> dict[str, Any]:
    cluster = scenario.clusters[name]
    if not cluster.defaults:
        controllers = (
            {} if get(cluster.options, "ControlMachine") else {"SlurmctldHost": cluster.controller}
        )
        return {"ClusterName": name, **controllers}
    defaults: dict[str, Any] = {
        "ClusterName": name,
        "SlurmctldHost": [cluster.controller, *cluster.backup_controllers],
        "SlurmUser": "slurm",
        "AuthType": f"auth/{scenario.auth}",
        "CredType": "cred/slurm" if scenario.auth == "slurm" else None,
        "SlurmctldPort": releases.DEFAULT_PORTS["slurmctld"],
        "SlurmdPort": releases.DEFAULT_PORTS["slurmd"],
        "SrunPortRange": "60001-63000",
        "StateSaveLocation": "/var/lib/slurm/slurmctld",
        "SlurmdSpoolDir": "/var/lib/slurm/slurmd",
        "SlurmctldPidFile": "/run/slurmctld/slurmctld.pid",
        "SlurmdPidFile": "/run/slurm/slurmd.pid",
        "SlurmctldLogFile": f"{LOG_DIRECTORY}/slurmctld.log",
        "SlurmdLogFile": f"{LOG_DIRECTORY}/slurmd.log",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core_Memory",
        "DefMemPerCPU": _memory_of_a_cpu(cluster),
        # With 1, a node that did not respond returns to service by itself, and one that an
        # administrator set DOWN does not. Only 2 returns a node that is DOWN for other reasons:
        # after ResumeTimeout, or by the operator.
        "ReturnToService": 2 if cluster.elastic() or cluster.kubernetes else 1,
        "MailProg": "/bin/true",
        **(
            {"RebootProgram": "/usr/sbin/reboot", "ResumeTimeout": capabilities.boot_seconds}
            if capabilities.own_kernel
            else {}
        ),
        **_containment(scenario, cluster, capabilities),
        # So that each job has a step that takes in sessions.
        **({"PrologFlags": "Contain"} if cluster.pam_slurm_adopt else {}),
        **({"LaunchParameters": "enable_nss_slurm"} if cluster.nss_slurm else {}),
    }
    gres_types = dict.fromkeys(
        gres.partition(":")[0] for group in cluster.nodes for gres in group.gres
    )
    if cluster.kubernetes:
        gres_types |= dict.fromkeys(LEDGER_GRES)
        defaults["JobSubmitPlugins"] = "lua"
    if gres_types:
        defaults["GresTypes"] = ",".join(gres_types)
    if cluster.hosts:
        defaults |= {
            "SlurmdSpoolDir": "/var/lib/slurm/slurmd/%n",
            "SlurmdPidFile": "/run/slurm/%n.pid",
            "SlurmdLogFile": f"{LOG_DIRECTORY}/slurmd-%n.log",
        }
    if any(group.dynamic for group in cluster.nodes):
        # No fan-out: slurmds do not know nodes that slurm.conf does not name.
        defaults |= {"MaxNodeCount": len(cluster.node_names()), "TreeWidth": 65533}
    if cluster.elastic():
        defaults |= _power_saving(cluster, capabilities, releases.get(scenario.release_of(cluster)))
    if cluster.rest:
        defaults |= _tokens(cluster.rest.max_token_life)
    if scenario.monitoring and METRICS.lower() in _known(scenario, cluster):
        defaults[METRICS] = "metrics/openmetrics"
    if scenario.accounting:
        defaults |= _accounting_storage(scenario.accounting)
        contained = is_contained(scenario, cluster, capabilities)
        defaults["JobAcctGatherType"] = f"jobacct_gather/{'cgroup' if contained else 'linux'}"
    return defaults


def _memory_of_a_cpu(cluster: Cluster) -> int | None:
    """Return the memory per CPU that every node has; None if a node has no RealMemory."""
    if not has_memory(cluster):
        return None
    return min((group.memory // group.cpus for group in cluster.nodes), default=None)


def has_memory(cluster: Cluster) -> bool:
    """Return whether every node has a RealMemory; without it slurmctld assumes 1 MiB."""
    return all(map(real_memory, cluster.nodes))


def real_memory(group: NodeGroup) -> int:
    """Return the memory of each node of a group in MiB; 0 if it has no RealMemory."""
    return number(get(merged({"RealMemory": group.memory}, group.options), "RealMemory") or "") or 0


def minutes(value: str) -> float:
    """Return a time limit in minutes: slurm.conf(5), MaxTime.

    >>> minutes("90"), minutes("1-00"), minutes("00:30:00"), minutes("unlimited")
    (90.0, 1440.0, 30.0, inf)
    """
    if value.lower() in {"unlimited", "infinite", "-1"}:
        return inf
    return durations.seconds(value) / 60


def log_level(conf: Mapping[str, Value], name: str) -> int:
    """Return the log level of a daemon as a number: slurm.conf(5), SlurmctldDebug.

    The default is 3, info.

    >>> log_level({"slurmddebug": "error"}, "SlurmdDebug"), log_level({}, "SlurmdDebug")
    (2, 3)
    """
    level = str(get(conf, name) or "info").lower()
    if (count := number(level)) is not None:
        return count
    return LOG_LEVELS.index(level) if level in LOG_LEVELS else LOG_INFO


def port_of(conf: Mapping[str, Value], daemon: str) -> str:
    """Return the port, or the range of ports, on which a daemon listens.

    That is the value of its option, or else Slurm's default.

    >>> port_of({"slurmctldport": "6810-6813"}, "slurmctld"), port_of({}, "slurmdbd")
    ('6810-6813', '6819')
    """
    return str(get(conf, _PORT_OPTIONS[daemon]) or releases.DEFAULT_PORTS[daemon])


def propagates(conf: Mapping[str, Value], limit: str) -> bool:
    """Return whether tasks get a limit, such as "CORE", from the shell that submits the job.

    slurm.conf(5): PropagateResourceLimits, PropagateResourceLimitsExcept.

    >>> propagates({}, "CORE"), propagates({"PropagateResourceLimits": "NONE"}, "CORE")
    (True, False)
    >>> propagates({"PropagateResourceLimitsExcept": "MEMLOCK,CORE"}, "CORE")
    False
    """
    named = str(get(conf, "PropagateResourceLimits") or "ALL").upper()
    excepted = str(get(conf, "PropagateResourceLimitsExcept") or "").upper()
    listed = not {limit, "ALL"}.isdisjoint((excepted or named).split(","))
    return listed != bool(excepted)


def is_yes(options: Mapping[str, Any], name: str) -> bool:
    """Return whether an option is set to YES or TRUE, in any case.

    >>> is_yes({"ConstrainCores": True}, "constraincores"), is_yes({}, "ConstrainCores")
    (True, False)
    """
    return str(get(options, name)).lower() in {"yes", "true"}


def ports(value: str) -> range:
    """Return the ports that an option such as SlurmctldPort names.

    >>> ports("6811-6818")
    range(6811, 6819)
    """
    first, _, last = value.partition("-")
    return range(int(first), int(last or first) + 1)


def _topology_plugin(scenario: Scenario, cluster: Cluster) -> dict[str, Any]:
    """Return the option without which topology.conf is not read; topology.yaml needs none."""
    needs_plugin = (
        cluster.topology
        and releases.get(scenario.release_of(cluster)).topology_file == "topology.conf"
    )
    return (
        {"TopologyPlugin": f"topology/{next(iter(cluster.topology.values())).plugin}"}
        if needs_plugin
        else {}
    )


def _repeated(scenario: Scenario, cluster: Cluster) -> set[str]:
    """Return the options that slurm.conf of the cluster's release may repeat, in lower case."""
    return {name for name, option in _known(scenario, cluster).items() if option.type == "array"}


def _known(scenario: Scenario, cluster: Cluster) -> Mapping[str, releases.Option]:
    """Return the options that slurm.conf of the cluster's release may have, in lower case."""
    return releases.get(scenario.release_of(cluster)).options["slurm.conf"]


def node_ports(count: int, skip: int = 0) -> str:
    """Return the ports of `count` slurmds that share a host, after those of `skip` others.

    >>> node_ports(3)
    '20001-20003'
    """
    first = FIRST_NODE_PORT + skip
    return f"{first}-{first + count - 1}" if count > 1 else str(first)


def stand_in_devices(
    cluster: Cluster, group: NodeGroup, capabilities: Capabilities
) -> Iterator[tuple[str | None, list[str]]]:
    """Yield the GPUs of a node group by type, with the copies of /dev/null that represent them.

    slurmd counts only GPUs with devices. Nothing is yielded if the hosts have real GPUs, or if
    gres.conf is given.
    """
    if (capabilities.own_hardware and not cluster.hosts) or "gres.conf" in cluster.files:
        return
    first = 0
    for gres in group.gres:
        if gres.partition(":")[0].lower() == "gpu":
            count = gres_count(gres)
            yield gres_type(gres), [f"{_DEVICES}{index}" for index in range(first, first + count)]
            first += count


def wants_confinement(cluster: Cluster) -> bool:
    """Return whether the scenario says what cgroups confine the jobs of a cluster to."""
    return any(
        name.lower().startswith("constrain") and is_yes(cluster.cgroup, name)
        for name in cluster.cgroup
    )


def is_contained(scenario: Scenario, cluster: Cluster, capabilities: Capabilities) -> bool:
    """Return whether Slurm uses cgroups, unless options of the cluster say otherwise.

    Slurmds that share a host do not, because each would claim the whole host. In containers, Slurm
    needs its plugin for version 2, and uses it only if the scenario says so.
    """
    if not capabilities.cgroups or cluster.hosts:
        return False
    return capabilities.own_hardware or (
        wants_confinement(cluster) and releases.get(scenario.release_of(cluster)).supports_cgroup_v2
    )


def _containment(
    scenario: Scenario, cluster: Cluster, capabilities: Capabilities
) -> dict[str, Any]:
    own_hardware = capabilities.own_hardware and not cluster.hosts
    if is_contained(scenario, cluster, capabilities):
        # To bind the tasks of users, task/affinity needs CAP_SYS_NICE, which containers lack.
        options = {
            "ProctrackType": "proctrack/cgroup",
            "TaskPlugin": "task/cgroup,task/affinity" if own_hardware else "task/cgroup",
        }
    else:
        options = {"ProctrackType": "proctrack/linuxproc"}
    return options | ({} if own_hardware else {"SlurmdParameters": "config_overrides"})


def _power_saving(
    cluster: Cluster, capabilities: Capabilities, known: releases.Release
) -> dict[str, Any]:
    """Return the options for power saving.

    See slurm.conf(5) and slurm.schedmd.com/elastic_computing.html.
    """
    static = [group.name for group in cluster.nodes if group.provision == "static"]
    return {
        **{
            f"{action}Program": f"{PROGRAMS}/slurm-{name}"
            for action, name in POWER_PROGRAMS.items()
        },
        # slurmctld looks at jobs whose nodes are powering up only every 30 s, but immediately when
        # this program ends.
        "PrologSlurmctld": f"{PROGRAMS}/slurm-wait-for-nodes",
        "SuspendTime": 300,
        "ResumeTimeout": capabilities.boot_seconds,
        "SuspendTimeout": 30,
        "ResumeRate": 0,
        "SuspendRate": 0,
        "SuspendExcNodes": ",".join(static) or None,
        # No fan-out: messages must not pass through nodes that are down.
        "TreeWidth": 65533,
        # Up to 22.05, powered-down nodes are visible only with it.
        "PrivateData": "cloud" if "cloud" in known.words["privatedata"].known else None,
        "SlurmctldParameters": "cloud_dns,idle_on_node_suspend,power_save_interval=0",
    }


def _tokens(max_life: int | None = None) -> dict[str, Any]:
    """Return the options with which a daemon accepts tokens: slurm.conf(5), AuthAltParameters.

    `max_life` is in seconds.
    """
    parameters = {"jwt_key": JWT_KEY, "max_token_lifespan": max_life}
    return {
        "AuthAltTypes": "auth/jwt",
        "AuthAltParameters": [f"{name}={value}" for name, value in parameters.items() if value],
    }


def _metric_tokens(scenario: Scenario, cluster: Cluster, conf: Mapping[str, str]) -> dict[str, Any]:
    """Return the options with which Prometheus may read metrics in spite of PrivateData.

    auth/jwt needs a key of its own, or slurmctld does not start, even if it takes no tokens for
    other requests: init() in auth_jwt.c.
    """
    release = releases.get(scenario.release_of(cluster))
    options = {
        "AuthAltParameters": f"jwt_key={JWT_KEY}",
        "SlurmctldHttpAuthParameters": f"jwt_key={JWT_KEY}",
    }
    with_tokens = merged(options, conf)
    readers = releases.metric_readers(release, lambda name: get(with_tokens, name))
    return (
        {}
        if readers != "token"
        else {name: value for name, value in options.items() if get(conf, name) is None}
    )


def slurmrestd_environment(scenario: Scenario, cluster: Cluster) -> dict[str, str]:
    """Return slurmrestd's environment (slurmrestd(8)).

    slurmrestd accepts only tokens, and has no slurmdbd plugin if there is no slurmdbd. Older
    releases detect a missing slurmdbd themselves.
    """
    plugins = releases.get(scenario.release_of(cluster)).plugins.get("openapi", frozenset())
    without = ",".join(f"openapi/{name}" for name in sorted(plugins - {"slurmdbd"}))
    return {
        "SLURM_JWT": "daemon",
        "SLURMRESTD_AUTH_TYPES": "rest_auth/jwt",
        **(
            {}
            if scenario.accounting or "slurmdbd" not in plugins
            else {"SLURMRESTD_OPENAPI_PLUGINS": without}
        ),
    }


def _accounting_storage(accounting: Accounting) -> dict[str, Any]:
    options: dict[str, Any] = {
        "AccountingStorageType": "accounting_storage/slurmdbd",
        "AccountingStorageHost": accounting.host,
        "AccountingStorageBackupHost": accounting.backup,
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
        "AuthType": f"auth/{scenario.auth}",
        "DbdHost": accounting.host,
        "DbdBackupHost": accounting.backup,
        "DbdPort": releases.DEFAULT_PORTS["slurmdbd"],
        "SlurmUser": "slurm",
        "LogFile": f"{LOG_DIRECTORY}/slurmdbd.log",
        "PidFile": "/run/slurmdbd/slurmdbd.pid",
        "StorageType": "accounting_storage/mysql",
        "StorageHost": accounting.host if accounting.backup else "localhost",
        "StorageLoc": "slurm_acct_db",
        "StorageUser": "slurm",
        "StoragePass": secret("database_password"),
    }
    if any(cluster.rest for cluster in scenario.clusters.values()):
        defaults |= _tokens()
    return merged(defaults, accounting.slurmdbd)


def database_grants(scenario: Scenario) -> dict[str, tuple[str, str, str]]:
    """Return the databases of accounting, each with its account, the account's host and password.

    The defaults are those of slurmdbd.conf(5).
    """
    if scenario.accounting is None:
        return {}
    conf = slurmdbd_conf(scenario)
    grants = {
        get(conf, "StorageLoc") or "slurm_acct_db": (
            get(conf, "StorageUser") or "root",
            "%" if scenario.accounting.backup else "localhost",
            get(conf, "StoragePass") or "",
        )
    }
    if scenario.accounting.job_completion:
        grants[JOB_COMPLETION] = (JOB_COMPLETION, "%", secret("job_completion_password"))
    return grants


def cgroup_conf(scenario: Scenario, name: str, capabilities: Capabilities) -> dict[str, str]:
    """Return the options of a cluster's cgroup.conf; cgroup.conf(5) explains each."""
    cluster = scenario.clusters[name]
    if not cluster.defaults:
        return merged(cluster.cgroup)
    if not is_contained(scenario, cluster, capabilities):
        defaults = releases.get(scenario.release_of(cluster)).cgroup_conf_without_controllers
    elif capabilities.own_hardware:
        defaults = dict.fromkeys(("ConstrainCores", "ConstrainRAMSpace", "ConstrainDevices"), True)
    else:
        defaults = {}
    return merged(defaults, cluster.cgroup)


def oci_conf(scenario: Scenario, name: str, capabilities: Capabilities) -> dict[str, str]:
    """Return the options of a cluster's oci.conf that its release knows; oci.conf(5) explains each.

    Without any options, Slurm runs no containers.
    """
    cluster = scenario.clusters[name]
    if cluster.oci is None:
        return {}
    crun = f"crun --cgroup-manager=disabled --root={CONTAINERS}/%u"
    # slurmstepd cleans up as root (cleanup_container() in its container.c), and crun runs the hooks
    # of a bundle.
    cleanup = f"/usr/sbin/runuser --user=%u -- {crun}"
    # Docker's seccomp profile allows neither pivot_root nor keyrings.
    confined = "" if capabilities.own_hardware else " --no-pivot --no-new-keyring"
    defaults = {
        # Without it, each step leaves a directory in the bundle, from 25.05 on.
        "MountSpoolDir": "/run/slurm",
        "EnvExclude": "^(SLURM_CONF|SLURM_CONF_SERVER)=",
        # With this variable, crun would pass slurmd's socket to the container.
        "RunTimeEnvExclude": "^NOTIFY_SOCKET=",
        # Without `exec`, a signal ends the shell, and Slurm assumes that the task has ended.
        "RunTimeRun": f"exec {crun} run{confined} --bundle=%b %n-%j-%s-%t",
        # With a RunTimeRun, Slurm queries only at the end of a step, and from 23.02 on about task
        # -1: "stopped" makes it delete what is left of any task. A value cannot contain double
        # quotes, so printf generates them.
        "RunTimeQuery": r"printf '{\042status\042: \042stopped\042}'",
        "RunTimeKill": f"{cleanup} kill --regex ^%n-%j-%s- KILL",
        # crun passes the container's state to hooks through a pipe. A hook that ends without
        # reading it would end crun, too, with SIGPIPE, before it has deleted the container.
        "RunTimeDelete": f"trap '' PIPE; {cleanup} delete --force --regex ^%n-%j-%s-",
    }
    known = releases.get(scenario.release_of(cluster)).options["oci.conf"]
    return merged(
        {option: value for option, value in defaults.items() if option.lower() in known},
        cluster.oci,
    )


def directories(
    conf: Mapping[str, str], host: str, daemons: Sequence[str], nodes: Sequence[str]
) -> dict[str, tuple[str, str]]:
    """Return the directories that a host's daemons write to, each with owner and mode.

    Packages create only some of them. `nodes` are the nodes whose slurmd the host runs.
    """
    owners: dict[str, tuple[str, str]] = {}
    for daemon, option, is_file, mode in _DIRECTORIES:
        value = get(conf, option) if daemon in daemons else None
        if not value:
            continue
        pattern = _directory(value, is_file=is_file).replace("%h", host)
        for node in nodes if daemon == "slurmd" and "%n" in pattern else [host]:
            directory = pattern.replace("%n", node)
            if directory not in _SYSTEM_DIRECTORIES:
                owner = "root" if daemon == "slurmd" else get(conf, "SlurmUser") or "root"
                owners.setdefault(directory, (owner, mode))
    return owners


@lru_cache
def _directory(path: str, *, is_file: bool) -> str:
    return str(PurePosixPath(path).parent if is_file else PurePosixPath(path))


def written(conf: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the name and value of each line of a file.

    An option that may be repeated has one line for each of its values.
    """
    return [(name, value) for name, text in conf.items() for value in text.split("\n")]


def _text(value: Any) -> str:
    match value:
        case bool():
            return "YES" if value else "NO"
        case list() | tuple():
            return ",".join(_text(item) for item in value)
        case _:
            return str(value)
