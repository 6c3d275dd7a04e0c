"""What a run would change on existing machines, and reasons to refuse. Pure: reads their facts."""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness import origins, run_secrets, slurm_options
from harness.parsing import hostlist
from harness.plan import DAEMONS, SHARED_DIRECTORY, Host, Plan
from harness.render import RenderedFile

# Where install_files records which files it installed.
_RECORD = "/var/lib/slurm-harness/files.json"
_USUAL_OWNER = ("root", "root", "0644")
_OF_EVERY_MARIADB = {"information_schema", "mysql", "performance_schema", "sys"}
# What each daemon needs, as keys of `packages_of` in families.toml, and programs or files that show
# that it is installed.
_NEEDS = {
    "dnsmasq": {"dnsmasq": ["dnsmasq"]},
    "munge": {"munge": ["munged"]},
    "mariadb": {"mariadb": ["mariadbd", "mysqld"]},
    "slurmdbd": {
        "slurmdbd": ["slurmdbd"],
        "mysql-plugin": [
            f"{directory}/slurm*/accounting_storage_mysql.so"
            for directory in origins.library_directories()
        ],
    },
    "slurmctld": {"slurmctld": ["slurmctld"], "commands": ["scontrol"]},
    "slurmrestd": {"slurmrestd": ["slurmrestd"]},
    "sackd": {"sackd": ["sackd"], "commands": ["scontrol"]},
    "slurmd": {"slurmd": ["slurmd"], "commands": ["scontrol"]},
    "prometheus": {"prometheus": ["prometheus"]},
    "slapd": {"slapd": ["slapd"]},
    "sssd": {"sssd": ["sssd"]},
}


@dataclass(frozen=True, slots=True)
class HostChanges:
    """What a run changes on a host: new files with their text, differing files with a diff, etc."""

    host: str
    new: tuple[tuple[str, str], ...] = ()
    differing: tuple[tuple[str, str], ...] = ()
    directories: tuple[str, ...] = ()
    daemons: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def wanted(plan: Plan, host: Host, files: Sequence[RenderedFile]) -> dict[str, Any]:
    """Return what host_side inspects and sets aside on a host."""
    scenario = plan.scenario
    lines = [line for file in files for line in file.text.splitlines()]
    users = {match[1]: match[2] for match in map(_USER.match, lines) if match}
    grants = slurm_options.database_grants(scenario) if "mariadb" in host.daemons else {}
    return {
        "files": {**{file.path: file.unit for file in files}, _RECORD: None},
        "directories": {
            match[1]: [match[3], match[4], match[2]]
            for match in map(_DIRECTORY.match, lines)
            if match
        }
        | {SHARED_DIRECTORY: None},
        "users": {name: None if uid == "-" else int(uid) for name, uid in users.items()},
        "units": list(DAEMONS),
        "daemons": list(host.daemons),
        "packages": {
            host.family.packages_of[name]: traces for name, traces in _needs(plan, host).items()
        },
        "names": [other.name for other in plan.hosts],
        "databases": {name: [account, where] for name, (account, where, _) in grants.items()},
    }


def _needs(plan: Plan, host: Host) -> dict[str, list[str]]:
    """Return what a host needs, with traces of each."""
    needs = {name: traces for daemon in host.daemons for name, traces in _NEEDS[daemon].items()}
    if host.apptainer:
        needs["apptainer"] = ["apptainer"]
    if _runs_containers(plan, host):
        needs |= {"crun": ["crun"], "busybox": ["busybox"]}
    return needs


def _runs_containers(plan: Plan, host: Host) -> bool:
    """Return whether Slurm runs users' containers on a host."""
    return bool(
        host.cluster and host.nodes and plan.scenario.clusters[host.cluster].oci is not None
    )


# Lines of tmpfiles.d(5) and sysusers.d(5).
_DIRECTORY = re.compile(r"[dc] (/\S+) (\S+) (\S+) (\S+)")
_USER = re.compile(r"u (\S+) (\S+) ")


def refusals(plan: Plan, host: Host, facts: Mapping[str, Any], run_id: str | None) -> Iterator[str]:
    """Yield the reasons why a host cannot or must not be used as planned.

    `run_id` is None before the run exists.
    """
    held = facts["held"]
    if held and held["id"] != run_id:
        yield (
            f"run {held['id']} of {held['by']} holds it; "
            f"`harness down {held['id']}` there restores it"
        )
        return
    if held and not facts["held_for_this"]:
        yield (
            "the scenario has changed since the run began to hold it: "
            "`harness down`, then `harness up` again"
        )
    if facts["lacking"]:
        yield f"it lacks packages: {host.family.install} {' '.join(facts['lacking'])}"
    if facts["name"] != host.name:
        yield (
            f"its host name is {facts['name']}, which Slurm uses: "
            f"hostnamectl set-hostname {host.name}"
        )
    if facts["unresolved"]:
        yield f"it cannot resolve {', '.join(facts['unresolved'])}: add them to /etc/hosts or DNS"
    # slurmdbd of 26.05 prints its release only if it has a slurmdbd.conf: a check verifies it in
    # the run.
    for daemon, output in facts["releases"].items():
        version = re.match(r"slurm\S* (\d+\.\d+)", output)
        if version and version[1] != host.release:
            yield (
                f"its {daemon} is release {version[1]}, the scenario requires {host.release}: "
                f"--release {version[1]}"
            )
    ours = {host.cluster} if host.cluster else {*plan.scenario.clusters}
    for where, name in facts["clusters"]:
        if name is None:
            yield f"{where} belongs to a cluster of unknown name"
        elif name not in ours:
            yield f"{where} belongs to cluster {name}, not to {' or '.join(sorted(map(str, ours)))}"
    for name, uid in plan.scenario.users.items():
        existing_uid, owner = facts["uids"].get(name), facts["owners"].get(name)
        if existing_uid not in {None, uid.uid}:
            yield f"user {name} has uid {existing_uid} on the host and {uid.uid} in the scenario"
        elif owner not in {None, name}:
            yield f"uid {uid.uid} belongs to {owner} on the host and to {name} in the scenario"
    yield from _too_small(plan, host, facts["hardware"])
    if held:
        return
    if "slurmdbd" in host.daemons and facts["files"].get("/etc/slurm/slurmdbd.conf"):
        yield "it has its own slurmdbd (/etc/slurm/slurmdbd.conf), which other clusters may use"
    for where, what in facts["shared"].items():
        yield f"{where} is {what}, so other machines may share what the run writes there"
    yield from _taken(plan, host, facts)
    for unit in host.daemons:
        if facts["units"][unit]["LoadState"] == "masked":
            yield f"its {unit} is masked: systemctl unmask {unit}"


def _taken(plan: Plan, host: Host, facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield the existing databases and accounts that the run would create, and later remove."""
    mariadb = facts["mariadb"] or {"problem": "", "accounts": [], "databases": []}
    if mariadb["problem"]:
        yield f"root cannot list the databases and accounts of its MariaDB: {mariadb['problem']}"
    for name, (user, where, _) in (
        slurm_options.database_grants(plan.scenario).items() if "mariadb" in host.daemons else ()
    ):
        if name in {*facts["databases"], *mariadb["databases"]}:
            yield (
                f"it already has a database {name}: "
                "choose another name with accounting.slurmdbd.StorageLoc"
            )
        if [user, where] in mariadb["accounts"]:
            yield (
                f"its MariaDB already has an account {user}@{where}, whose password would change: "
                "choose another name with accounting.slurmdbd.StorageUser"
            )


def _too_small(plan: Plan, host: Host, hardware: str) -> Iterator[str]:
    """Yield the sizes below the scenario's that `slurmd -C` reports: slurmctld rejects the node."""
    sizes = {name: int(value) for name, value in re.findall(r"\b(CPUs|RealMemory)=(\d+)", hardware)}
    cluster = plan.scenario.clusters.get(host.cluster or "")
    if not cluster or cluster.hosts or not sizes:
        return
    for group in cluster.nodes:
        for name, size in (("CPUs", group.cpus), ("RealMemory", group.memory)):
            if {*host.nodes} & {*hostlist.expand(group.name)} and size > sizes.get(name, size):
                yield f"it has {name}={sizes[name]}, the scenario requires {size}"


def changes(
    host: Host, files: Sequence[RenderedFile], facts: Mapping[str, Any], secrets: Mapping[str, str]
) -> HostChanges:
    """Return what a run changes on a host; `secrets` is empty before the run exists."""
    new: list[tuple[str, str]] = []
    differing: list[tuple[str, str]] = []
    effects: dict[str, str] = {}
    for file in files:
        existing = facts["files"][file.path]
        text = run_secrets.reveal(file.text, secrets) if secrets else file.text
        if existing is None:
            new.append((file.path, _difference(file, None, secrets)))
        elif (existing["owner"], existing["group"], existing["mode"], existing["sha256"]) != (
            *(file.owner, file.group, file.mode),
            hashlib.sha256(text.encode()).hexdigest(),
        ):
            differing.append((file.path, _difference(file, existing, secrets)))
        else:
            continue
        if file.unit and effects.get(file.unit) != "restarts":
            effects[file.unit] = f"{file.action}s"
    units = facts["units"]
    daemons = {
        unit: effects.get(unit) if units[unit]["ActiveState"] == "active" else "starts"
        for unit in host.daemons
    }
    others = [
        f"{unit} is not part of the scenario, but {'runs' if running else 'starts at boot'}: "
        "checks will report it"
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


def _directories(
    files: Sequence[RenderedFile], existing: Mapping[str, Sequence[str] | None]
) -> Iterator[str]:
    """Yield the directories that are created, or whose owner, group or mode changes."""
    for file in files:
        for match in filter(None, map(_DIRECTORY.match, file.text.splitlines())):
            path, mode, *owner = match.groups()
            before = existing[path]
            if before is None or [*before] != [*owner, mode]:
                old = " ".join(before) if before else "none"
                yield f"{path}: {old} -> {' '.join([*owner, mode])}"


def _of_mariadb(host: Host, mariadb: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield what the user should know about a MariaDB that others may use."""
    if "mariadb" in host.daemons and mariadb is None:
        yield (
            "MariaDB is not running: it is started first, "
            "and refused if it already has the run's account or database"
        )
    if mariadb and (others := sorted({*mariadb["databases"]} - _OF_EVERY_MARIADB)):
        yield (
            f"MariaDB, which has databases {', '.join(others)}, "
            "restarts and listens where the run needs it"
        )


def _difference(
    file: RenderedFile, existing: Mapping[str, Any] | None, secrets: Mapping[str, str]
) -> str:
    """Return a diff without passwords; for a file not readable by everyone, only owner and mode."""
    owner = (file.owner, file.group, file.mode)
    if existing is None:
        ownership = "" if owner == _USUAL_OWNER else f"+ {' '.join(owner)}\n"
        existing = {"text": ""}
    else:
        owners = [(existing["owner"], existing["group"], existing["mode"]), owner]
        ownership = "".join(
            f"{sign} {' '.join(who)}\n"
            for sign, who in zip("-+", owners, strict=True)
            if owners[0] != owners[1]
        )
    if existing["text"] is None or not int(file.mode, 8) & 0o004:
        return f"{ownership}its text is not shown, because not everyone may read it"
    before, after = (
        run_secrets.PASSWORD.sub(r"\1hidden", run_secrets.hide(text, secrets)).splitlines()
        for text in (existing["text"], file.text)
    )
    return ownership + "\n".join(list(difflib.unified_diff(before, after, lineterm="", n=1))[2:])
