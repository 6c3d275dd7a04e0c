"""Read a site bundle, which `harness collect` describes: configuration and accounting of a site.

A bundle is not trusted: only regular files are unpacked, below one directory and up to a limit, and
nothing in them is run.
"""

from __future__ import annotations

import gzip
import re
import tempfile
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import count, islice
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from pydantic import BaseModel, StringConstraints, TypeAdapter, ValidationError

from harness import releases, transfer
from harness.cluster import node_state
from harness.cluster.association_comparison import (
    ASSOCIATION,
    ASSOCIATION_DEFAULTS,
    QOS,
    QOS_DEFAULTS,
    columns,
    value,
)
from harness.errors import HarnessError, UsageError
from harness.events import what_is_wrong
from harness.scenario import SYSTEM_USERS, UserName
from harness.site import collect

# The directory of a bundle's files, which have their full paths below it.
_FILES = "files"
_LIMITS = transfer.Limits(256 * 2**20, 64 * 2**20, 20_000)
# The line of a coordinator in the output of `sacctmgr dump`: the user, and the accounts.
_COORDINATOR = re.compile(r"(?m)^User - '([^'\n]*)':.*?\bCoordinator='([^'\n]*)'")
_DEFAULT_ACCOUNT = re.compile(
    r"(?m)^User - '([^'\n]*)'(?::Partition='[^'\n]*')?:DefaultAccount='([^'\n]*)'"
)
_INCLUDE = re.compile(r"(?im)^([ \t]*include[ \t]+)(/\S+)")
Row = Mapping[str, str]


class _File(BaseModel):
    """A file in a list of the manifest. Only the list of files has modes."""

    file: str
    mode: Annotated[str, StringConstraints(pattern="^[0-7]{4}$")] = "0644"

    @property
    def path(self) -> str:
        """Its path on the site."""
        return self.file.removeprefix(_FILES)


class _Manifest(BaseModel):
    """What this module needs of a bundle's manifest."""

    format: int
    collected: datetime = datetime.fromtimestamp(0, UTC)
    configuration: PurePosixPath
    files: tuple[_File, ...] = ()
    replaced: tuple[_File, ...] = ()
    pseudonyms: bool = False


class _User(BaseModel):
    uid: int
    groups: tuple[str, ...] = ()


class _Group(BaseModel):
    gid: int


class _People(BaseModel):
    """The users and groups of a site."""

    users: dict[str, _User] = {}
    groups: dict[str, _Group] = {}


# Columns that `sacctmgr modify` knows by another name: qos_functions.c.
_OPTIONS = {
    "MaxSubmitPU": "MaxSubmitJobsPU",
    "MaxSubmitPA": "MaxSubmitJobsPA",
    "MinPrioThreshold": "MinPrioThresh",
}
_USER_NAME = TypeAdapter(UserName)
_UNUSUAL = "a scenario cannot have this name"
# Users without an ordinary uid get one from here on.
_FIRST_FREE_UID = 100_000
# What `scontrol show reservation` prints, and `scontrol create reservation` takes.
_RESERVATION = (
    *("Nodes", "PartitionName", "Users", "Groups", "Accounts", "Licenses", "MaxStartDelay"),
)
# Flags that scontrol shows, but does not take: scontrol(1).
_SHOWN_FLAGS = {"SPEC_NODES", "ALL_NODES", "OVERLAP_JOBS"}


@dataclass(frozen=True, slots=True)
class Bundle:
    """An unpacked bundle: the configuration's directory, release, users, and sacctmgr's tables.

    `site_directory` is the configuration's directory on the site, and `paths` has the paths of the
    files there; `replaced` has the number of secrets that harness-collect has replaced in a file,
    and `modes` its permissions, if they are known. `tables` is the directory of the tables; it may
    belong to another bundle with the same accounting database.
    """

    root: Path
    configuration: Path
    release: str | None
    users: Mapping[str, _User]
    groups: Mapping[str, _Group]
    collected: float
    site_directory: str
    paths: frozenset[str]
    modes: Mapping[str, int]
    replaced: Mapping[str, int]
    tables: Path
    has_pseudonyms: bool = False

    def text(self, path: str) -> str:
        """Return the text of a file, by its path on the site, with its line ends."""
        return (self.root / _FILES / path.lstrip("/")).read_bytes().decode(errors="replace")

    def original(self, text: str) -> str:
        """Return a text with the site's paths instead of those of the unpacked files."""
        return text.replace(str(self.root / _FILES), "")

    def table(self, name: str) -> list[Row]:
        """Return the rows of a table of sacctmgr, such as "assoc"; none if it was not collected."""
        path = self.tables / f"{name}.txt"
        if not path.is_file():
            return []
        header, *rows = path.read_text(errors="replace").splitlines() or [""]
        return [dict(zip(header.split("|"), row.split("|"), strict=False)) for row in rows]

    def default_accounts(self, cluster: str) -> dict[str, str]:
        """Return the default account of each user on a cluster, as far as they are known.

        The table of users has the default accounts of one of the clusters only.
        """
        of_any = {row["User"]: row.get("DefaultAccount", "") for row in self.table("user")}
        return of_any | dict(_DEFAULT_ACCOUNT.findall(self.dump(cluster)))

    def coordinated_accounts(self, cluster: str) -> dict[str, list[str]]:
        """Return the accounts that each user coordinates, without those below them.

        The table of users has those, too; Slurm lets a coordinator manage them.
        """
        if not (dump := self.dump(cluster)):
            rows = {row["User"]: row.get("Coordinators", "") for row in self.table("user")}
            return {user: accounts.split(",") for user, accounts in rows.items() if accounts}
        return {user: accounts.split(",") for user, accounts in _COORDINATOR.findall(dump)}

    def dump(self, cluster: str) -> str:
        """Return what `sacctmgr dump` has written about a cluster; "" if nothing."""
        path = self.tables / f"dump-{cluster}.cfg"
        return path.read_text(errors="replace") if path.is_file() else ""


class ConfigurationDirectory(Bundle):
    """A site's /etc/slurm, or a copy of it, as a bundle."""

    __slots__ = ()

    def text(self, path: str) -> str:
        """Return the text of a file, by its path on the site, with its line ends."""
        relative = PurePosixPath(path).relative_to(self.site_directory)
        return (self.root / relative).read_bytes().decode(errors="replace")


def of_directory(directory: Path) -> Bundle:
    """Return a configuration directory, which is the site's /etc/slurm, as a bundle.

    Links to files outside of it are not followed.
    """
    files = [
        path
        for path in islice(sorted(directory.rglob("*")), _LIMITS.members)
        if path.is_file()
        and path.stat().st_size <= _LIMITS.file
        and path.resolve().is_relative_to(directory.resolve())
    ]
    paths = {f"/etc/slurm/{path.relative_to(directory)}": path for path in files}
    modes = {name: path.stat().st_mode & 0o777 for name, path in paths.items()}
    return ConfigurationDirectory(
        directory,
        directory,
        None,
        {},
        {},
        0,
        "/etc/slurm",
        frozenset(paths),
        modes,
        {},
        directory / "output" / "sacctmgr",
    )


def is_bundle(path: Path) -> bool:
    """Return whether a path is a file that may be a bundle, which `opened` would read."""
    return path.is_file() and path.name.endswith((".tar.gz", ".tgz"))


@contextmanager
def opened(path: Path) -> Iterator[Bundle]:
    """Unpack a bundle for as long as the context lasts.

    Raises UsageError if it is truncated, has a different format, or is not a bundle.
    """
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        try:
            with gzip.open(path) as stream:
                transfer.unpack(stream, root, _LIMITS)  # type: ignore[arg-type]
            manifest = _Manifest.model_validate_json((root / "manifest.json").read_bytes())
            users_text = root / "output" / "users.json"
            text = users_text.read_bytes() if users_text.is_file() else b"{}"
            people = _People.model_validate_json(text)
            files = root / _FILES
            bundle = Bundle(
                root,
                files / str(manifest.configuration).lstrip("/"),
                _release(root),
                people.users,
                people.groups,
                manifest.collected.timestamp(),
                str(manifest.configuration),
                frozenset(
                    f"/{path.relative_to(files)}" for path in files.rglob("*") if path.is_file()
                ),
                {file.path: int(file.mode, 8) for file in manifest.files},
                Counter(file.path for file in manifest.replaced),
                root / "output" / "sacctmgr",
                manifest.pseudonyms,
            )
        except (HarnessError, OSError, EOFError, zlib.error, ValueError, LookupError) as error:
            reason = str(error).replace(str(root), "")
            if isinstance(error, ValidationError):
                file = "output/users.json" if error.title == _People.__name__ else "manifest.json"
                reason = f"{file}: {what_is_wrong(error)}"
            raise UsageError(
                f"{path} is not a complete site bundle: {reason}", hint="harness collect --help"
            ) from error
        if manifest.format != collect.FORMAT:
            raise UsageError(
                f"{path} is a bundle of format {manifest.format}, not {collect.FORMAT}",
                hint="collect it again with the script that `harness collect` prints",
            )
        if not bundle.configuration.resolve().is_relative_to(root.resolve()):
            raise UsageError(f"{path}: its configuration is outside of the bundle")
        _copy_includes(bundle)
        try:
            yield bundle
        except UsageError as error:
            message = bundle.original(str(error))
            raise UsageError(message, hint=error.hint and bundle.original(error.hint)) from error


def _release(root: Path) -> str | None:
    """Return the release in the output of `sinfo --version`, such as slurm-wlm 20.11.4."""
    path = root / "output" / "version.txt"
    match = re.search(r"\b(\d\d\.\d\d)\b", path.read_text()) if path.is_file() else None
    return match and match[1]


def _copy_includes(bundle: Bundle) -> None:
    """Copy the files that the configuration includes by absolute path into its directory."""

    def relative(match: re.Match[str]) -> str:
        source = bundle.root / _FILES / match[2].lstrip("/")
        if not source.is_file() or not source.resolve().is_relative_to(bundle.root.resolve()):
            return match[0]
        inside = PurePosixPath("included") / match[2].lstrip("/")
        target = bundle.configuration / inside
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            target.write_text(_INCLUDE.sub(relative, source.read_text("latin-1")), "latin-1")
        return f"{match[1]}{inside}"

    for path in sorted(bundle.configuration.glob("*.conf")):
        text = path.read_text("latin-1")
        path.write_text(_INCLUDE.sub(relative, text), "latin-1")


@dataclass(frozen=True, slots=True)
class SiteObjects:
    """What a bundle has of a cluster besides its configuration, as parts of a scenario.

    `accounting`, `users` and `groups` have the keys of a scenario's parts of these names, and
    `reservations` those of its cluster. `left_out` are notes on what the scenario does not have,
    `emulated` on what it has in a different form.
    """

    accounting: dict[str, Any] = field(default_factory=dict)
    users: dict[str, Any] = field(default_factory=dict)
    groups: dict[str, Any] = field(default_factory=dict)
    reservations: dict[str, Any] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    emulated: list[str] = field(default_factory=list)


def sharing(bundles: Sequence[Bundle]) -> list[Bundle]:
    """Return bundles of clusters with one accounting database, as if collected together.

    Each has the tables of the newest, and the users and groups of all: a host may not know those
    of another cluster.
    """
    oldest_first = sorted(bundles, key=lambda bundle: bundle.collected)
    users: dict[str, _User] = {}
    groups: dict[str, _Group] = {}
    for bundle in oldest_first:
        for name, user in bundle.users.items():
            group_names = (*(users[name].groups if name in users else ()), *user.groups)
            users[name] = user.model_copy(update={"groups": tuple(dict.fromkeys(group_names))})
        groups |= bundle.groups
    tables = oldest_first[-1].tables
    return [replace(bundle, tables=tables, users=users, groups=groups) for bundle in bundles]


def differences(bundles: Mapping[str, Bundle]) -> Iterator[str]:
    """Yield notes on users and groups with different numbers on the clusters; the newest counts."""
    newest_first = sorted(bundles, key=lambda name: bundles[name].collected, reverse=True)
    known: dict[tuple[str, str], tuple[int, str]] = {}
    for cluster in newest_first:
        own = [
            *(("user", name, user.uid) for name, user in bundles[cluster].users.items()),
            *(("group", name, group.gid) for name, group in bundles[cluster].groups.items()),
        ]
        for kind, name, number in own:
            used, where = known.setdefault((kind, name), (number, cluster))
            if number != used:
                yield (
                    f"{kind} {name}: {used} on {where}, {number} on {cluster}; "
                    f"the scenario uses {used}"
                )


@dataclass(frozen=True, slots=True)
class Member:
    """A cluster of slurmdbd, and its place in a federation, if it belongs to one."""

    cluster: str
    federation: str
    number: int
    features: tuple[str, ...]
    state: str


def members(bundle: Bundle) -> list[Member]:
    """Return the clusters of a site's slurmdbd; those of federations in the order of their ids."""
    clusters = [
        Member(
            row["Cluster"],
            row.get("Federation", ""),
            int(row["ID"]) if row.get("ID", "").isdecimal() else 0,
            tuple(word for word in row.get("Features", "").split(",") if word),
            row.get("FedState", ""),
        )
        for row in bundle.table("cluster")
    ]
    return sorted(clusters, key=lambda member: member.number)


def objects(bundle: Bundle, cluster: str, others: Collection[str] = ()) -> SiteObjects:
    """Return a cluster's accounts, QOS, licenses, users, groups and reservations.

    Users of the `others`, with which it shares the accounting database, exist but have no account.
    """
    imported = SiteObjects()
    rows = [row for row in bundle.table("assoc") if row["Cluster"] == cluster]
    accounts = _accounts(bundle, rows, imported.left_out)
    qos = {}
    for row in bundle.table("qos"):
        options = _options(row, QOS, QOS_DEFAULTS)
        if float(row.get("LimitFactor") or 0):
            note = f"LimitFactor={row['LimitFactor']}: some releases do not have it"
            imported.left_out.append(f"QOS {row['Name']} {note}")
        if not _is_name(row["Name"]):
            imported.left_out.append(f"QOS {row['Name']}: {_UNUSUAL}")
        elif options or row["Name"] != "normal":
            qos[row["Name"]] = {"options": options} if options else {}
    parts = {
        "accounts": accounts,
        "qos": qos,
        "resources": _resources(bundle, cluster, imported.left_out),
    }
    imported.accounting.update({key: value for key, value in parts.items() if value})
    imported.users.update(_users(bundle, cluster, {*accounts, "root"}, others, imported))
    imported.groups.update(_groups(bundle, imported))
    imported.reservations.update(reservations(bundle, imported))
    if names := {row["WCKey"] for row in bundle.table("wckey") if row.get("WCKey", "") not in "*"}:
        imported.left_out.append(
            f"wckeys: {', '.join(sorted(names))}: scenarios do not support them"
        )
    return imported


def _accounts(bundle: Bundle, rows: Iterable[Row], left_out: list[str]) -> dict[str, Any]:
    """Return a cluster's accounts; "root" only if it has options of its own."""
    account_rows = {row["Account"]: row for row in bundle.table("account")}
    accounts: dict[str, Any] = {}
    for row in rows:
        name, parent = row["Account"], row["ParentName"]
        if row["User"]:
            continue
        if not _is_name(name):
            left_out.append(f"account {name}: {_UNUSUAL}")
            continue
        options = _options(row, ASSOCIATION, ASSOCIATION_DEFAULTS, leave=("ParentName",))
        if name == "root":
            if options.get("QOS") == "normal":  # slurmdbd gives it DefaultQOS
                del options["QOS"]
            if options:
                accounts[name] = {"options": options}
            continue
        options |= {
            column: account_rows[name][column]
            for column in ("Description", "Organization")
            if name in account_rows and account_rows[name][column] not in {"", name}
        }
        accounts[name] = {
            **({"parent": parent} if parent != "root" else {}),
            **({"options": options} if options else {}),
        }
    return _without_orphans(accounts, left_out)


def _without_orphans(accounts: dict[str, Any], left_out: list[str]) -> dict[str, Any]:
    """Return accounts without those that are not below root, such as a circle of accounts."""
    is_below_root: dict[str, bool] = {"root": True}
    for name in accounts:
        path: list[str] = []
        ancestor = name
        while ancestor not in is_below_root and ancestor in accounts and ancestor not in path:
            path.append(ancestor)
            ancestor = accounts[ancestor].get("parent", "root")
        is_below_root |= dict.fromkeys(path, is_below_root.get(ancestor, False))
    for name in accounts:
        if not is_below_root[name]:
            parent = accounts[name].get("parent")
            left_out.append(f"account {name}: its parent {parent} is not below root (assoc.txt)")
    return {name: account for name, account in accounts.items() if is_below_root[name]}


def _resources(bundle: Bundle, cluster: str, left_out: list[str]) -> dict[str, Any]:
    """Return slurmdbd's licenses."""
    resources: dict[str, Any] = {}
    for row in bundle.table("resource"):
        name = row["Name"]
        if not (_is_name(name) and _is_name(row["Server"])):
            left_out.append(f"license {name}: {_UNUSUAL}")
            continue
        facts = resources.setdefault(
            name, {"server": row["Server"], "count": int(row["Count"]), "clusters": {}}
        )
        if facts["server"] != row["Server"]:
            left_out.append(f"license {name}@{row['Server']}: {name}@{facts['server']} is imported")
        elif row.get("Cluster") == cluster and row.get("Allowed", "").isdecimal():
            facts["clusters"][cluster] = int(row["Allowed"])
        if row.get("Flags", "").lower() == "absolute":
            facts["options"] = {"Flags": "absolute"}
    return resources


def reservations(bundle: Bundle, imported: SiteObjects) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the site's reservations that have not ended, with the options that create them.

    Times are relative, so that the reservation does what it did when the bundle was collected.
    """
    path = bundle.root / "output" / "scontrol" / "reservations.txt"
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    for line in lines:
        facts = {
            name: text
            for name, text in re.findall(r"(\w+)=(\S*)", line)
            if text not in {"", "(null)", "n/a"}
        }
        name = facts.get("ReservationName", "")
        if not name:
            continue
        try:
            times = _times(facts, bundle.collected)
        except ValueError:
            imported.left_out.append(
                f"reservation {name}: its times cannot be read (reservations.txt)"
            )
            continue
        if not _is_name(name) or not times:
            why = _UNUSUAL if times else "it had ended"
            imported.left_out.append(f"reservation {name}: {why}")
            continue
        flags = [flag for flag in facts.get("Flags", "").split(",") if flag not in _SHOWN_FLAGS]
        options = times | {option: facts[option] for option in _RESERVATION if option in facts}
        if "PART_NODES" not in flags:
            options.pop("PartitionName", None)
        why = f"it begins at {times['StartTime']}"
        if users := facts.get("Users"):
            own = {*imported.users, "root"}
            known = [user for user in users.split(",") if user.lstrip("-") in own]
            options["Users"] = ",".join(known) or "root"
            if options["Users"] != users:
                why += f", for {options['Users']} instead of {users}"
        if any(flags):
            options["Flags"] = ",".join(flags)
        imported.emulated.append(f"reservation {name}: {why}")
        yield name, options


def node_states(bundle: Bundle) -> Iterator[str]:
    """Yield notes on nodes that took no jobs when the bundle was collected."""
    path = bundle.root / "output" / "scontrol" / "nodes.txt"
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    for line in lines:
        name, state, reason = (
            match[1] if (match := re.search(pattern, line)) else ""
            for pattern in (r"^NodeName=(\S+)", r"\bState=(\S+)", r"\bReason=(.*?)(?: \[|$)")
        )
        if node_state.is_out_of_service(node_state.normalized(state)):
            why = f" ({reason})" if reason else ""
            yield f"node {name} {state}{why}: all nodes are up from the start"


def _times(facts: Mapping[str, str], collected: float) -> dict[str, str]:
    """Return when a reservation begins, and for how long; nothing if it had ended."""
    begin, end = (
        datetime.fromisoformat(facts[key]).replace(tzinfo=UTC).timestamp()
        for key in ("StartTime", "EndTime")
    )
    later = max(0, round((begin - collected) / 60))
    minutes = round((end - max(begin, collected)) / 60)
    if minutes <= 0:
        return {}
    return {
        "StartTime": f"now+{later}minutes" if later else "now",
        "Duration": str(minutes),
    }


def _users(
    bundle: Bundle,
    cluster: str,
    accounts: set[str],
    others: Collection[str],
    imported: SiteObjects,
) -> Iterator[tuple[str, Any]]:
    """Yield the users of a cluster and of others, with their accounts on the cluster."""
    rows_of: dict[str, dict[str, Row]] = {}
    for row in bundle.table("assoc"):
        if not row["User"] or row["User"] == "root":
            continue
        if row["Cluster"] == cluster and row["Account"] in accounts:
            partition = f":{row['Partition']}" if row["Partition"] else ""
            rows_of.setdefault(row["User"], {})[f"{row['Account']}{partition}"] = row
        elif row["Cluster"] in others:
            rows_of.setdefault(row["User"], {})
    user_rows = {row["User"]: row for row in bundle.table("user")}
    defaults = bundle.default_accounts(cluster)
    coordinated = bundle.coordinated_accounts(cluster)
    uids = _uids(bundle)
    for name, rows in rows_of.items():
        if name not in uids:
            imported.left_out.append(f"user {name}: {_name_problem(name)}")
            continue
        uid, why = uids[name]
        if why:
            imported.emulated.append(f"user {name}: {why}; the scenario uses {uid}")
        user_row = user_rows.get(name, {})
        coordinates = [account for account in coordinated.get(name, ()) if account in accounts]
        level = user_row.get("AdminLevel", "None")
        yield (
            name,
            {
                "uid": uid,
                **_associations(rows, defaults.get(name, "")),
                **({"coordinates": coordinates} if coordinates else {}),
                **({"admin": level} if level in {"Operator", "Administrator"} else {}),
            },
        )


def _associations(rows: Mapping[str, Row], default: str) -> dict[str, Any]:
    """Return a user's accounts, the default one first, and the options of associations."""
    accounts = sorted(
        (account for account in rows if ":" not in account),
        key=lambda account: (account != default, account),
    )
    options_of = {
        account: options
        for account, row in rows.items()
        if (options := _options(row, ASSOCIATION, ASSOCIATION_DEFAULTS)) or ":" in account
    }
    parts = {"accounts": accounts, "associations": options_of}
    return {key: value for key, value in parts.items() if value}


def _uids(bundle: Bundle) -> dict[str, tuple[int, str]]:
    """Return each user's uid, the same for all clusters, and why it is not the site's."""
    used = {user.uid for user in bundle.users.values()}
    free = (uid for uid in count(_FIRST_FREE_UID) if uid not in used)
    owner_of: dict[int, str] = {}
    uids: dict[str, tuple[int, str]] = {}
    for name in dict.fromkeys(row["User"] for row in bundle.table("assoc")):
        if name in {"", "root"} or _name_problem(name):
            continue
        uid, why = bundle.users[name].uid if name in bundle.users else -1, ""
        if name not in bundle.users:
            why = "unknown on the host where the bundle was collected"
        elif not _is_user_id(uid) or uid in owner_of:
            why = f"uid {uid} belongs to {owner_of.get(uid, 'a system user')}"
        if why:
            uid = next(free)
        owner_of[uid] = name
        uids[name] = uid, why
    return uids


def _name_problem(name: str) -> str:
    """Return why a scenario cannot have a user of this name; "" if it can."""
    try:
        _USER_NAME.validate_python(name)
    except ValidationError:
        return _UNUSUAL
    return "a system user of every host has this name" if name in SYSTEM_USERS else ""


def _is_user_id(uid: int) -> bool:
    return 1000 <= uid <= 60000 or 65536 <= uid < 2**31


def _groups(bundle: Bundle, imported: SiteObjects) -> Iterator[tuple[str, Any]]:
    """Yield the groups of the imported users, except each user's own."""
    members: dict[str, list[str]] = {}
    for name in imported.users:
        for group in bundle.users[name].groups if name in bundle.users else ():
            members.setdefault(group, []).append(name)
    gids: dict[int, str] = {}
    for group, users in members.items():
        gid = bundle.groups[group].gid if group in bundle.groups else 0
        if group in imported.users:
            others = [user for user in users if user != group]
            if others:
                imported.left_out.append(
                    f"group {group}: a user's own group; other members: {', '.join(others)}"
                )
            continue
        try:
            _USER_NAME.validate_python(group)
        except ValidationError:
            imported.left_out.append(f"group {group}: {_UNUSUAL}")
            continue
        if gid < 1 or gid in gids:
            imported.left_out.append(f"group {group}: gid {gid} belongs to {gids.get(gid, 'root')}")
            continue
        gids[gid] = group
        yield group, {"gid": gid, "users": users}


def _is_name(name: str) -> bool:
    """Return whether a scenario can have an object of this name."""
    return bool(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name))


def _options(
    row: Row, kind: Mapping[str, str], defaults: Mapping[str, str], leave: Iterable[str] = ()
) -> dict[str, str]:
    """Return the columns of a row that differ from their defaults, as options of sacctmgr."""
    options = {
        _OPTIONS.get(column, column): row[column]
        for column in columns(kind)
        if column in row
        and column not in leave
        and value(column, row[column]) != value(column, defaults.get(column, ""))
    }
    if "GraceTime" in options:  # sacctmgr shows hours, minutes and seconds, but reads seconds
        options["GraceTime"] = f"{value('GraceTime', options['GraceTime']):.0f}"
    return options


def release_of(bundle: Bundle, path: Path) -> str:
    """Return the site's release; UsageError if the bundle has none, or none that is known."""
    if bundle.release is None or bundle.release not in releases.KNOWN:
        raise UsageError(
            f"{path}: the site runs Slurm {bundle.release or 'of an unknown release'}",
            hint=f"choose the nearest with --release; known: {', '.join(releases.KNOWN)}",
        )
    return bundle.release
