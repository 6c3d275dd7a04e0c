"""What a run would change on hosts that are somebody's, and why it must not. Pure: it judges what hosts told."""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness import hostlist, options
from harness.plan import DAEMONS, SHARED_DIRECTORY, Host, Plan
from harness.render import RenderedFile

# Where install_files notes what it put in place.
_RECORD = "/var/lib/slurm-harness/files.json"
_USUAL_OWNER = ("root", "root", "0644")
_OF_EVERY_MARIADB = {"information_schema", "mysql", "performance_schema", "sys"}
# Debian's packages of what a daemon needs; each is there if a program of that name, or such a file, is.
_PACKAGES = {
    "munge": {"munge": ["munged"]},
    "mariadb": {"mariadb-server": ["mariadbd", "mysqld"]},
    "slurmdbd": {
        "slurmdbd": ["slurmdbd"],
        "slurm-wlm-mysql-plugin": [
            f"/usr/lib{where}/accounting_storage_mysql.so" for where in ("/*/slurm*", "64/slurm")
        ],
    },
    "slurmctld": {"slurmctld": ["slurmctld"], "slurm-client": ["scontrol"]},
    "slurmrestd": {"slurmrestd": ["slurmrestd"]},
    "slurmd": {"slurmd": ["slurmd"], "slurm-client": ["scontrol"]},
}


@dataclass(frozen=True, slots=True)
class HostChanges:
    """What a run changes on a host: files that are new (with their text) or differ (with the difference) and so on."""

    host: str
    new: tuple[tuple[str, str], ...] = ()
    differing: tuple[tuple[str, str], ...] = ()
    directories: tuple[str, ...] = ()
    daemons: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def wanted(plan: Plan, host: Host, files: Sequence[RenderedFile]) -> dict[str, Any]:
    """Return what a host is asked about, and what is put aside there: see host_side."""
    scenario = plan.scenario
    made = [line for file in files for line in file.text.splitlines()]
    users = {found[1]: found[2] for found in map(_USER.match, made) if found}
    grants = options.database_grants(scenario) if "mariadb" in host.daemons else {}
    return {
        "files": {**{file.path: file.unit for file in files}, _RECORD: None},
        "directories": {found[1]: [found[3], found[4], found[2]] for found in map(_DIRECTORY.match, made) if found}
        | {SHARED_DIRECTORY: None},
        "users": {name: None if uid == "-" else int(uid) for name, uid in users.items()},
        "units": list(DAEMONS),
        "daemons": list(host.daemons),
        "packages": {name: traces for daemon in host.daemons for name, traces in _PACKAGES[daemon].items()}
        | ({"apptainer": ["apptainer"]} if host.apptainer else {})
        | ({"crun": ["crun"], "busybox-static": ["busybox"]} if _runs_containers(plan, host) else {}),
        "names": [other.name for other in plan.hosts],
        "databases": {name: [account, where] for name, (account, where, _) in grants.items()},
    }


def _runs_containers(plan: Plan, host: Host) -> bool:
    """Tell whether Slurm runs users' containers on a host."""
    return bool(host.cluster and host.nodes and plan.scenario.clusters[host.cluster].oci is not None)


# Lines of tmpfiles.d(5) and sysusers.d(5).
_DIRECTORY = re.compile(r"[dc] (/\S+) (\S+) (\S+) (\S+)")
_USER = re.compile(r"u (\S+) (\S+) ")


def refusals(plan: Plan, host: Host, facts: Mapping[str, Any], run_id: str | None) -> Iterator[str]:
    """Yield why a host cannot be what the plan says, or must not; `run_id` is the run's, if it has one yet."""
    held = facts["held"]
    if held and held["id"] != run_id:
        yield f"run {held['id']} holds it, of {held['by']}, where `harness down {held['id']}` gives it back"
        return
    if held and not facts["held_for_this"]:
        yield "what the run puts there is not what it was held for: `harness down`, then `harness up` again"
    if facts["lacking"]:
        yield f"it lacks what nothing is installed for: apt-get install {' '.join(facts['lacking'])}"
    if facts["name"] != host.name:
        yield f"it calls itself {facts['name']}, and Slurm goes by that name: hostnamectl set-hostname {host.name}"
    if facts["unresolved"]:
        yield f"it does not know the addresses of {', '.join(facts['unresolved'])}: /etc/hosts or DNS has to tell"
    # slurmdbd of 26.05 wants a slurmdbd.conf to tell: a check judges it when it runs.
    for daemon, said in facts["releases"].items():
        found = re.match(r"slurm\S* (\d+\.\d+)", said)
        if found and found[1] != host.release:
            yield f"its {daemon} is of release {found[1]}, the scenario's is {host.release}: --release {found[1]}"
    ours = {host.cluster} if host.cluster else {*plan.scenario.clusters}
    for where, name in facts["clusters"]:
        if name is None:
            yield f"{where} belongs to a cluster whose name it does not tell"
        elif name not in ours:
            yield f"{where} belongs to cluster {name}, not to {' or '.join(sorted(map(str, ours)))}"
    for name, uid in plan.scenario.users.items():
        there, owner = facts["uids"].get(name), facts["owners"].get(name)
        if there not in {None, uid.uid}:
            yield f"user {name} has uid {there} there, the scenario's has {uid.uid}"
        elif owner not in {None, name}:
            yield f"uid {uid.uid} is {owner}'s there, and {name}'s in the scenario"
    yield from _too_small(plan, host, facts["hardware"])
    if held:
        return
    if "slurmdbd" in host.daemons and facts["files"].get("/etc/slurm/slurmdbd.conf"):
        yield "it has a slurmdbd of its own (/etc/slurm/slurmdbd.conf), to which other clusters may report"
    for where, what in facts["shared"].items():
        yield f"{where} is {what}, so what the run writes there may be for other machines too"
    yield from _taken(plan, host, facts)
    for unit in host.daemons:
        if facts["units"][unit]["LoadState"] == "masked":
            yield f"its {unit} is masked: systemctl unmask {unit}"


def _taken(plan: Plan, host: Host, facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a host's MariaDB has already of what the run would make, change, and remove."""
    mariadb = facts["mariadb"] or {"problem": "", "accounts": [], "databases": []}
    if mariadb["problem"]:
        yield f"its MariaDB does not tell root what it has: {mariadb['problem']}"
    for name, (user, where, _) in options.database_grants(plan.scenario).items() if "mariadb" in host.daemons else ():
        if name in {*facts["databases"], *mariadb["databases"]}:
            yield f"it has a database {name} already: accounting.slurmdbd.StorageLoc names another one"
        if [user, where] in mariadb["accounts"]:
            yield (
                f"its MariaDB has an account {user}@{where} already, whose password would change: "
                "accounting.slurmdbd.StorageUser names another one"
            )


def _too_small(plan: Plan, host: Host, said: str) -> Iterator[str]:
    """Yield what a node has less of than the scenario says, as `slurmd -C` tells it: slurmctld would not take it."""
    there = {name: int(value) for name, value in re.findall(r"\b(CPUs|RealMemory)=(\d+)", said)}
    cluster = plan.scenario.clusters.get(host.cluster or "")
    if not cluster or cluster.hosts or not there:
        return
    for group in cluster.nodes:
        for name, wants in (("CPUs", group.cpus), ("RealMemory", group.memory)):
            if {*host.nodes} & {*hostlist.expand(group.name)} and wants > there.get(name, wants):
                yield f"it has {name}={there[name]}, the scenario says {wants}"


def changes(
    host: Host, files: Sequence[RenderedFile], facts: Mapping[str, Any], secrets: Mapping[str, str]
) -> HostChanges:
    """Return what a run changes on a host; `secrets` are the run's, if it has any yet."""
    new: list[tuple[str, str]] = []
    differing: list[tuple[str, str]] = []
    heard: dict[str, str] = {}
    for file in files:
        there = facts["files"][file.path]
        text = options.reveal(file.text, secrets) if secrets else file.text
        if there is None:
            new.append((file.path, _difference(file, None, secrets)))
        elif (there["owner"], there["group"], there["mode"], there["sha256"]) != (
            *(file.owner, file.group, file.mode),
            hashlib.sha256(text.encode()).hexdigest(),
        ):
            differing.append((file.path, _difference(file, there, secrets)))
        else:
            continue
        if file.unit and heard.get(file.unit) != "restarts":
            heard[file.unit] = f"{file.action}s"
    units = facts["units"]
    daemons = {unit: heard.get(unit) if units[unit]["ActiveState"] == "active" else "starts" for unit in host.daemons}
    others = [
        f"{unit} is not the scenario's, and {'runs' if running else 'starts at boot'}: the checks will say so"
        for unit, fact in units.items()
        if unit not in host.daemons
        and ((running := fact["ActiveState"] == "active") or fact["UnitFileState"] == "enabled")
    ]
    return HostChanges(
        host.name,
        tuple(new),
        tuple(differing),
        tuple(_directories(files, facts["directories"])),
        tuple(f"{unit} {what}" for unit, what in daemons.items() if what),
        tuple(name for name, uid in facts["uids"].items() if uid is None),
        (*others, *(() if facts["held"] else _of_mariadb(host, facts["mariadb"]))),
    )


def _directories(files: Sequence[RenderedFile], there: Mapping[str, Sequence[str] | None]) -> Iterator[str]:
    """Yield the directories that are made, or get another owner, group or mode."""
    for file in files:
        for found in filter(None, map(_DIRECTORY.match, file.text.splitlines())):
            path, mode, *owner = found.groups()
            before = there[path]
            if before is None or [*before] != [*owner, mode]:
                yield f"{path}: {' '.join(before) if before else 'none'} -> {' '.join([*owner, mode])}"


def _of_mariadb(host: Host, mariadb: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield what is to be known of a MariaDB that others may use."""
    if "mariadb" in host.daemons and mariadb is None:
        yield "MariaDB does not run: it is started first, and refused if it has the run's account or database already"
    if mariadb and (others := sorted({*mariadb["databases"]} - _OF_EVERY_MARIADB)):
        yield f"MariaDB, which has databases {', '.join(others)}, restarts, and listens where the run needs it"


def _difference(file: RenderedFile, there: Mapping[str, Any] | None, secrets: Mapping[str, str]) -> str:
    """Return a diff without passwords, of a new file all lines; of one that not everybody may read, only who may."""
    owner = (file.owner, file.group, file.mode)
    if there is None:
        told = "" if owner == _USUAL_OWNER else f"+ {' '.join(owner)}\n"
        there = {"text": ""}
    else:
        owners = [(there["owner"], there["group"], there["mode"]), owner]
        told = "".join(
            f"{sign} {' '.join(who)}\n" for sign, who in zip("-+", owners, strict=True) if owners[0] != owners[1]
        )
    if there["text"] is None or not int(file.mode, 8) & 0o004:
        return f"{told}its text is not shown, because not everybody may read it"
    before, after = (
        options.PASSWORD.sub(r"\1hidden", options.hide(text, secrets)).splitlines()
        for text in (there["text"], file.text)
    )
    return told + "\n".join(list(difflib.unified_diff(before, after, lineterm="", n=1))[2:])
