"""Every daemon's process still has what its systemd unit gave it, such as limits and umask."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from functools import partial

from conftest import problems_on
from test_hosts import has_own_image, shared_nodes

from harness.plan import Plan
from harness.ssh import Ssh

# The property of a unit (systemd.exec(5)) for each limit in /proc/PID/limits.
_PROPERTY_OF = {
    "Max cpu time": "LimitCPU",
    "Max file size": "LimitFSIZE",
    "Max data size": "LimitDATA",
    "Max stack size": "LimitSTACK",
    "Max core file size": "LimitCORE",
    "Max resident set": "LimitRSS",
    "Max processes": "LimitNPROC",
    "Max open files": "LimitNOFILE",
    "Max locked memory": "LimitMEMLOCK",
    "Max address space": "LimitAS",
    "Max file locks": "LimitLOCKS",
    "Max pending signals": "LimitSIGPENDING",
    "Max msgqueue size": "LimitMSGQUEUE",
    "Max nice priority": "LimitNICE",
    "Max realtime priority": "LimitRTPRIO",
    "Max realtime timeout": "LimitRTTIME",
}
# What a daemon lowers itself: munged writes no core file, which could have its key.
_LOWERED = {("munge", "Max core file size")}
# Daemons that set a umask of their own.
_OWN_UMASK = {"munge", "mariadb", "sssd"}
# Daemons that change to a group which is not their account's.
_OWN_GROUP = {"dnsmasq"}
# Variables that systemd sets (systemd.exec(5)), and those with which a slurmctld or slurmd that
# reconfigures itself starts its successor.
_OF_SYSTEMD = re.compile(
    "PATH|LANG|USER|LOGNAME|HOME|SHELL|INVOCATION_ID|JOURNAL_STREAM|SYSTEMD_EXEC_PID|NOTIFY_SOCKET"
    "|PIDFILE|MAINPID|MEMORY_PRESSURE_(WATCH|WRITE)|(RUNTIME|STATE|LOGS)_DIRECTORY"
    r"|SLURM\w*_RECONF\w*"
)
_PROPERTIES = ",".join(
    [
        "Id",
        "Nice",
        "OOMScoreAdjust",
        "UMask",
        "CPUSchedulingPolicy",
        "Environment",
        *(name for limit in _PROPERTY_OF.values() for name in (limit, f"{limit}Soft")),
    ]
)
# Prints the limits, score, umask, groups and CPUs of systemd, then of the main process of each
# unit "$@".
_SCRIPT = f"""
of() {{
    sed -n 's/^Max/limit Max/p' /proc/$1/limits
    echo oom=$(cat /proc/$1/oom_score_adj)
    echo program=$(readlink /proc/$1/exe)
    echo umask=$(sed -n 's/^Umask:.//p' /proc/$1/status)
    uid=$(sed -n 's/^Uid:.\\([0-9]*\\).*/\\1/p' /proc/$1/status)
    echo account=$(id -un $uid)
    echo groups=$(id -G $uid)
    echo group_names=$(id -Gn $uid)
    echo has_groups=$(sed -n 's/^\\(Gid\\|Groups\\)://p' /proc/$1/status)
    echo cpus=$(sed -n 's/^Cpus_allowed_list:.//p' /proc/$1/status)
    set -- $1 $(sed 's/.*) //' /proc/$1/stat)
    echo nice=${{18}}
    echo policy=${{40}}
    tr '\\0' '\\n' < /proc/$1/environ | sed -n 's/^\\([A-Za-z_0-9]*\\)=.*/variable \\1/p'
}}
of 1
for unit; do
    shown=$(systemctl show --property=MainPID,LoadState,EnvironmentFiles,{_PROPERTIES} $unit)
    # systemd has forgotten what a unit gave its daemon if it is masked.
    case $shown in *LoadState=masked*) continue ;; esac
    pid=$(printf '%s\\n' "$shown" | sed -n s/^MainPID=//p)
    [ $pid = 0 ] && continue
    echo
    printf '%s\\n' "$shown"
    files=$(printf '%s\\n' "$shown" | sed -n 's/^EnvironmentFiles=\\([^ ]*\\).*/\\1/p')
    [ -z "$files" ] || sed -n 's/^ *\\([A-Za-z_0-9]*\\)=.*/given \\1/p' $files
    of $pid
done 2> /dev/null
"""


def test_every_daemon_has_the_limits_priority_and_environment_of_its_unit(
    ssh: Ssh, plan: Plan
) -> None:
    hosts = [host.name for host in plan.permanent_hosts()]
    problems = problems_on(hosts, partial(wrong_processes, ssh, plan))
    assert not problems, "\n".join(problems)


def wrong_processes(ssh: Ssh, plan: Plan, name: str) -> list[str]:
    """Return how the daemons of a host differ from what their units give them."""
    host = plan.host(name)
    shared = shared_nodes(host, plan)
    # On a host that is up without its slurmd, slurmctld starts it.
    units = {*host.daemons, *(f"slurmd@{node}" for node in shared)}
    if host.nodes and not shared:
        units.add("slurmd")
    answer = ssh.run(name, ["sh", "-c", _SCRIPT, "sh", *units]).stdout
    systemd, *daemons = answer.split("\n\n")
    return [
        f"{name}: {line}"
        for daemon in daemons
        for line in _differences(daemon, systemd, exact=has_own_image(plan, name))
    ]


def _differences(printed: str, of_systemd: str, *, exact: bool) -> Iterator[str]:
    """Yield how a daemon differs from its unit.

    On machines, slurmd may bind itself to CPUs that jobs do not use (CpuSpecList), and systemd may
    have variables for all daemons: only `exact` hosts have neither.
    """
    facts, systemd = _facts(printed), _facts(of_systemd)
    daemon = facts["Id"].removesuffix(".service")
    yield from _wrong_limits(daemon, printed, of_systemd, facts)
    # A daemon may raise its own priority.
    if int(facts["nice"]) > int(facts["Nice"]):
        yield f"{daemon} has nice value {facts['nice']}, its unit has {facts['Nice']}"
    if facts["program"].endswith(" (deleted)"):
        yield f"{daemon} runs a program that was replaced on disk, until it is restarted"
    # systemd in a container cannot lower the score.
    if int(facts["oom"]) > (most := max(int(facts["OOMScoreAdjust"]), int(systemd["oom"]))):
        yield f"{daemon} has OOM score adjustment {facts['oom']}, its unit has {most}"
    # Files that Prolog and other programs make have it, too.
    if daemon not in _OWN_UMASK and facts["umask"] != facts["UMask"]:
        yield f"{daemon} has umask {facts['umask']}, its unit has {facts['UMask']}"
    if facts["policy"] != facts["CPUSchedulingPolicy"]:
        yield (
            f"{daemon} has CPU scheduling policy {facts['policy']} (sched(7)), its unit has "
            f"{facts['CPUSchedulingPolicy']}"
        )
    if exact and facts["cpus"] != systemd["cpus"]:
        yield f"{daemon} may use CPUs {facts['cpus']}, not {systemd['cpus']}"
    if exact and daemon not in _OWN_GROUP:
        yield from _missing_groups(daemon, facts)
    given = {*re.findall(r"^given (.*)$", printed, re.M)}
    given |= {*re.findall(r"(\w+)=", facts["Environment"])}
    variables = re.findall(r"^variable (.*)$", printed, re.M)
    # A slurmd that reconfigures itself passes this on, too: read_config.c sets it.
    if "SLURMD_RECONF" in variables:
        given.add("SLURM_CONF")
    for variable in variables if exact else ():
        if variable not in given and not _OF_SYSTEMD.fullmatch(variable):
            yield f"{daemon} has {variable} in its environment, which its unit does not set"


def _missing_groups(daemon: str, facts: Mapping[str, str]) -> Iterator[str]:
    """Yield the groups that a daemon's account has, and the daemon itself only when it restarts."""
    names = dict(zip(facts["groups"].split(), facts["group_names"].split(), strict=True))
    for group in sorted(names.keys() - {*facts["has_groups"].split()}):
        yield (
            f"{daemon} will be in group {names[group]} when it restarts, "
            f"because its account {facts['account']} now is"
        )


def _wrong_limits(
    daemon: str, printed: str, of_systemd: str, facts: Mapping[str, str]
) -> Iterator[str]:
    """Yield the limits that a daemon has and its unit does not.

    systemd in a container cannot give a daemon more than it has itself. A daemon may raise its soft
    limits to the hard ones.
    """
    most = {limit: hard for limit, _, hard in _limits(of_systemd)}
    for limit, soft, hard in _limits(printed):
        given_soft, given_hard = (
            _number(facts[f"{_PROPERTY_OF[limit]}{part}"]) for part in ("Soft", "")
        )
        for kind, actual, given in (("soft", soft, given_soft), ("hard", hard, given_hard)):
            least = 0 if (daemon, limit) in _LOWERED else min(given, most[limit])
            if not least <= actual <= given_hard:
                yield (
                    f"{daemon} has {limit} {actual:.0f} ({kind}), its unit has {given:.0f}"
                ).replace("inf", "unlimited")


def _limits(printed: str) -> Iterator[tuple[str, float, float]]:
    """Yield the name, soft and hard value of each limit in /proc/PID/limits."""
    for limit, soft, hard in re.findall(r"^limit (Max .*?) {2,}(\S+) +(\S+)", printed, re.M):
        yield limit, _number(soft), _number(hard)


def _number(limit: str) -> float:
    return math.inf if limit in {"infinity", "unlimited"} else float(limit)


def _facts(printed: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in printed.splitlines() if re.match(r"\w+=", line))
