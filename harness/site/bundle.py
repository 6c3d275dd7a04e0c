"""Read a site bundle, which `harness collect` describes: configuration and accounting of a site.

A bundle is untrusted: only regular files are unpacked, below one directory and up to a limit, and
nothing in them is run.
"""

from __future__ import annotations

import gzip
import json
import re
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from pydantic import BaseModel, StringConstraints, TypeAdapter, ValidationError

from harness import releases, transfer
from harness.cluster.association_comparison import (
    ASSOCIATION,
    ASSOCIATION_DEFAULTS,
    QOS,
    QOS_DEFAULTS,
    columns,
    value,
)
from harness.errors import HarnessError, UsageError
from harness.site import collect

# The directory of a bundle's files, which have their full paths below it.
_FILES = "files"
_LIMITS = transfer.Limits(256 * 2**20, 64 * 2**20, 20_000)
_INCLUDE = re.compile(r"(?im)^([ \t]*include[ \t]+)(/\S+)")
Row = Mapping[str, str]


class _File(BaseModel):
    """A file of a bundle: its mode, or, in the list of what is replaced, nothing."""

    file: str
    mode: Annotated[str, StringConstraints(pattern="^[0-7]{4}$")] = "0644"

    @property
    def path(self) -> str:
        """Its path on the site."""
        return self.file.removeprefix(_FILES)


class _Manifest(BaseModel):
    """What this module needs of a bundle's manifest."""

    format: int
    configuration: PurePosixPath
    files: tuple[_File, ...] = ()
    replaced: tuple[_File, ...] = ()


class _User(BaseModel):
    uid: int
    groups: tuple[str, ...] = ()


_USERS = TypeAdapter(dict[str, _User])


@dataclass(frozen=True, slots=True)
class Bundle:
    """An unpacked bundle: the configuration's directory, release, users, and sacctmgr's tables.

    `site_directory` is the configuration's directory on the site, and `paths` the paths of the
    files there; `replaced` are those in which harness-collect has replaced secrets, with their
    number, and `modes` the permissions, as far as they are known.
    """

    root: Path
    configuration: Path
    release: str | None
    users: Mapping[str, _User]
    site_directory: str
    paths: frozenset[str]
    modes: Mapping[str, int]
    replaced: Mapping[str, int]

    def text(self, path: str) -> str:
        """Return the text of a file, by its path on the site, with its line ends."""
        return (self.root / _FILES / path.lstrip("/")).read_bytes().decode(errors="replace")

    def original(self, text: str) -> str:
        """Return a text with the site's paths instead of those of the unpacked files."""
        return text.replace(str(self.root / _FILES), "")

    def table(self, name: str) -> list[Row]:
        """Return the rows of a table of sacctmgr, such as "assoc"; none if it was not collected."""
        path = self.root / "output" / "sacctmgr" / f"{name}.txt"
        if not path.is_file():
            return []
        header, *rows = path.read_text(errors="replace").splitlines() or [""]
        return [dict(zip(header.split("|"), row.split("|"), strict=False)) for row in rows]


class ConfigurationDirectory(Bundle):
    """The files of a site's /etc/slurm, or of a copy of it, as those of a bundle."""

    __slots__ = ()

    def text(self, path: str) -> str:
        """Return the text of a file, by its path on the site, with its line ends."""
        relative = PurePosixPath(path).relative_to(self.site_directory)
        return (self.root / relative).read_bytes().decode(errors="replace")


def of_directory(directory: Path) -> Bundle:
    """Return the files of a configuration directory, which is the site's /etc/slurm.

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
        directory, directory, None, {}, "/etc/slurm", frozenset(paths), modes, {}
    )


def is_bundle(path: Path) -> bool:
    """Return whether a path is a file that may be a bundle, which `opened` would read."""
    return path.is_file() and path.name.endswith((".tar.gz", ".tgz"))


@contextmanager
def opened(path: Path) -> Iterator[Bundle]:
    """Unpack a bundle for as long as the context lasts.

    Raises UsageError if it is truncated, has a different format, or is no bundle.
    """
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        try:
            with gzip.open(path) as stream:
                transfer.unpack(stream, root, _LIMITS)  # type: ignore[arg-type]
            manifest = _Manifest.model_validate_json((root / "manifest.json").read_bytes())
            users_text = root / "output" / "users.json"
            users = json.loads(users_text.read_bytes())["users"] if users_text.is_file() else {}
            files = root / _FILES
            bundle = Bundle(
                root,
                files / str(manifest.configuration).lstrip("/"),
                _release(root),
                _USERS.validate_python(users),
                str(manifest.configuration),
                frozenset(
                    f"/{path.relative_to(files)}" for path in files.rglob("*") if path.is_file()
                ),
                {file.path: int(file.mode, 8) for file in manifest.files},
                Counter(file.path for file in manifest.replaced),
            )
        except (HarnessError, OSError, EOFError, zlib.error, ValueError, LookupError) as error:
            reason = str(error).replace(str(root), "")
            if isinstance(error, ValidationError):
                reason = f"{error.error_count()} errors in its manifest or users.json"
            raise UsageError(
                f"{path} is not a whole site bundle: {reason}", hint="harness collect --help"
            ) from error
        if manifest.format != collect.FORMAT:
            raise UsageError(
                f"{path} is a bundle of format {manifest.format}, not {collect.FORMAT}",
                hint="collect it again with the script that `harness collect` prints",
            )
        if not bundle.configuration.resolve().is_relative_to(root.resolve()):
            raise UsageError(f"{path}: its configuration is outside of the bundle")
        _bring_in_includes(bundle)
        try:
            yield bundle
        except UsageError as error:
            message = bundle.original(str(error))
            raise UsageError(message, hint=error.hint and bundle.original(error.hint)) from error


def _release(root: Path) -> str | None:
    """Return the release in the output of `sinfo --version`, such as slurm-wlm 20.11.4."""
    path = root / "output" / "version.txt"
    found = re.search(r"\b(\d\d\.\d\d)\b", path.read_text()) if path.is_file() else None
    return found and found[1]


def _bring_in_includes(bundle: Bundle) -> None:
    """Copy files that the configuration includes by absolute path into its directory."""

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


def accounting(bundle: Bundle, cluster: str) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """Return a cluster's accounts and QOS, its users, and notes on what is left out.

    The first has the keys of a scenario's `accounting`, the second those of its `users`.
    """
    rows = [row for row in bundle.table("assoc") if row["Cluster"] == cluster]
    notes: list[str] = []
    of_accounts = {row["Account"]: row for row in bundle.table("account")}
    accounts = {}
    for row in rows:
        name = row["Account"]
        if row["User"]:
            continue
        options = _options(row, ASSOCIATION, ASSOCIATION_DEFAULTS, leave=("ParentName",))
        if name == "root":
            options.pop("QOS", None)  # slurmdbd gives it DefaultQOS
            notes += [f"account root: {option}={text}" for option, text in options.items()]
            continue
        options |= {
            column: of_accounts[name][column]
            for column in ("Description", "Organization")
            if name in of_accounts and of_accounts[name][column] not in {"", name}
        }
        parent = row["ParentName"]
        accounts[name] = {
            **({"parent": parent} if parent != "root" else {}),
            **({"options": options} if options else {}),
        }
    qos = {}
    for row in bundle.table("qos"):
        options = _options(row, QOS, QOS_DEFAULTS)
        if options or row["Name"] != "normal":
            qos[row["Name"]] = {"options": options} if options else {}
    objects = {
        **({"accounts": accounts} if accounts else {}),
        **({"qos": qos} if qos else {}),
    }
    return objects, dict(_users(bundle, rows, {*accounts}, notes)), notes


def reservations(bundle: Bundle) -> list[str]:
    """Return notes on the site's reservations, which a scenario cannot have."""
    path = bundle.root / "output" / "scontrol" / "reservations.txt"
    text = path.read_text(errors="replace") if path.is_file() else ""
    names = re.findall(r"(?m)^ReservationName=(\S+)", text)
    return [f"reservation {name}: reservations are not imported" for name in names]


def _users(
    bundle: Bundle, rows: Iterable[Row], accounts: set[str], notes: list[str]
) -> Iterator[tuple[str, Any]]:
    """Yield a cluster's users with their accounts, the default account first."""
    of_user: dict[str, dict[str, Row]] = {}
    for row in rows:
        if row["User"] and row["Partition"]:
            notes.append(f"user {row['User']}: association with partition {row['Partition']}")
        elif row["User"] and row["User"] != "root":
            of_user.setdefault(row["User"], {})[row["Account"]] = row
    people = {row["User"]: row for row in bundle.table("user")}
    used: dict[int, str] = {}
    for name, own in of_user.items():
        if name not in bundle.users:
            notes.append(f"user {name}: unknown on the host where the bundle was collected")
            continue
        uid = bundle.users[name].uid
        if uid < 1000 or uid in used:
            notes.append(f"user {name}: uid {uid} is {used.get(uid, 'a system user')}'s")
            continue
        used[uid] = name
        person = people.get(name, {})
        default = person.get("DefaultAccount", "")
        associations = {
            account: options
            for account, row in own.items()
            if (options := _options(row, ASSOCIATION, ASSOCIATION_DEFAULTS))
        }
        coordinates = [
            account for account in person.get("Coordinators", "").split(",") if account in accounts
        ]
        level = person.get("AdminLevel", "None")
        yield (
            name,
            {
                "uid": uid,
                "accounts": sorted(own, key=lambda account: (account != default, account)),
                **({"associations": associations} if associations else {}),
                **({"coordinates": coordinates} if coordinates else {}),
                **({"admin": level} if level in {"Operator", "Administrator"} else {}),
            },
        )


def _options(
    row: Row, kind: Mapping[str, str], defaults: Mapping[str, str], leave: Iterable[str] = ()
) -> dict[str, str]:
    """Return the columns of a row that differ from their defaults, as options of sacctmgr."""
    options = {
        column: row[column]
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
            hint=f"choose the nearest with --release; known are {', '.join(releases.KNOWN)}",
        )
    return bundle.release
