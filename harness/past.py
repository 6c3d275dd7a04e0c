"""A site's own past for a rehearsal: a dump of its accounting database, and what slurmctld saved of its state.

What is secret stays behind: scripts and environments of jobs, the command lines and comments that users wrote, keys.
Jobs that still wait have a script in its place that does nothing. Names of users, accounts, jobs and directories are
kept, and what slurmctld's job_state has of a job, which is binary; all of it goes with the run's hosts.
"""

from __future__ import annotations

import fnmatch
import gzip
import io
import re
import struct
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO

from pydantic import TypeAdapter, ValidationError

from harness import options
from harness.errors import UsageError
from harness.live import Live
from harness.plan import Plan
from harness.scenario import User, UserName

_SYSTEM = {b"mysql", b"sys", b"performance_schema", b"information_schema"}
# Tables of slurmdbd whose rows stay behind, and columns that are emptied: accounting_storage_mysql.c.
_SECRET_TABLES = re.compile(rb"INSERT (?:IGNORE )?INTO `\w+_job_(?:env|script)_table`")
_SECRET_COLUMNS = ("submit_line", "admin_comment", "system_comment", "derived_es", "extra")
# Files of a StateSaveLocation that stay behind.
_SECRET_FILES = ("*.key", "*.pem", "*.crt", "*.jwks", "jwt*")
# What a job that waits gets in place of its own. An environment is a count of strings, and the strings:
# _write_data_array_to_file() of slurmctld's job_mgr.c.
_IN_PLACE = {"script": b"#!/bin/sh\n", "environment": struct.pack("=I", 1) + b"PATH=/usr/bin:/bin\0"}
_USERS = TypeAdapter(dict[UserName, User])
# Seconds for what a large database takes.
PATIENCE = 24 * 3600


@dataclass(frozen=True, slots=True)
class Past:
    """A dump that mysqldump or mariadb-dump wrote (it may end in .gz), and the StateSaveLocation of each cluster."""

    database: Path | None = None
    states: Mapping[str, Path] = field(default_factory=dict)


def examine(past: Past, plan: Plan) -> None:
    """Refuse a past that is none of the plan's clusters, before anything starts; UsageError says whose it is."""
    if past.database:
        if not plan.scenario.accounting:
            raise UsageError("--database: the scenario has no accounting")
        _, clusters = _whose(past.database)
        if not clusters & {*plan.scenario.clusters}:
            raise UsageError(
                f"{past.database} is of {', '.join(sorted(clusters))}, the scenario has "
                f"{', '.join(plan.scenario.clusters)}",
                hint="give the scenario's cluster the name that it has in slurm.conf (ClusterName)",
            )
    for name, directory in past.states.items():
        if name not in plan.scenario.clusters:
            raise UsageError(f"--state {name}={directory}: the scenario has {', '.join(plan.scenario.clusters)}")
        try:
            said = _cluster_of(directory)
        except OSError as error:
            raise UsageError(f"{directory} is no StateSaveLocation: it has no file clustername") from error
        if said != name:
            raise UsageError(f"{directory} is the state of {said}, not of {name}")


def bring(live: Live, past: Past) -> dict[str, User]:
    """Load a past into hosts that are up, before their daemons start; return the users who have jobs in it."""
    for name, directory in past.states.items():
        live.say(f"state of {name}: {directory}")
        _bring_state(live, name, directory)
    if not past.database:
        return {}
    live.say(f"database: {past.database}")
    host, database = live.plan.with_daemon("mariadb")[0].name, _database(live.plan)
    sql = _sql(live.plan)
    live.ssh.run(host, ["systemctl", "start", "mariadb"])
    live.ssh.run(host, ["mariadb", "-e", f"CREATE DATABASE `{database}`"])
    live.ssh.feed(host, sql, _scrubbed(past.database))
    emptied = live.ssh.run(host, sql, stdin=_EMPTY_COLUMNS).stdout
    live.ssh.run(host, sql, stdin=emptied, timeout=PATIENCE)
    clusters = {*live.plan.scenario.clusters} & _whose(past.database)[1]
    return _users(live.ssh.run(host, sql, stdin=_who(clusters), timeout=PATIENCE).stdout, live.plan)


def remembered(live: Live, until: float) -> dict[str, list[str]]:
    """Return of each cluster what slurmdbd's tables have of jobs and steps that had ended by `until`.

    Whatever slurmdbd does to its tables, this stays the same: the number of records, and a sum over what they say.
    """
    host = live.plan.with_daemon("mariadb")[0].name
    ended = f"time_end BETWEEN 1 AND {until:.0f}"
    facts = "CONCAT_WS(',', id_job, id_user, state, exit_code, time_submit, time_start, time_end, account, job_name)"
    found = {}
    for name in live.plan.scenario.clusters:
        ask = f"""
            SELECT COUNT(*), COALESCE(SUM(CRC32({facts})), 0) FROM `{name}_job_table` WHERE {ended};
            SELECT COUNT(*), COALESCE(SUM(time_end), 0) FROM `{name}_step_table` WHERE {ended};"""  # noqa: S608
        found[name] = live.ssh.run(host, _sql(live.plan), stdin=ask, timeout=PATIENCE).stdout.splitlines()
    return found


def _cluster_of(directory: Path) -> str:
    """Return the name in a state's clustername; from 24.11 on the id follows that slurmdbd gave the cluster."""
    return (directory / "clustername").read_text(errors="replace").strip().partition("|")[0]


def _database(plan: Plan) -> str:
    return options.get(options.slurmdbd_conf(plan.scenario), "StorageLoc") or "slurm_acct_db"


def _sql(plan: Plan) -> list[str]:
    """Return the command that reads statements for slurmdbd's database, and writes plain rows."""
    return ["mariadb", "--batch", "--skip-column-names", f"--database={_database(plan)}"]


def _open(dump: Path) -> IO[bytes]:
    return gzip.open(dump) if dump.suffix == ".gz" else dump.open("rb")  # type: ignore[return-value]


def _sections(dump: Path) -> Iterator[tuple[bytes, bytes]]:
    """Yield the lines of a dump, each with the database that it is of; b"" where the dump is of one and names none."""
    database = b""
    with _open(dump) as lines:
        for line in lines:
            if line.startswith((b"USE `", b"CREATE DATABASE ")):
                if use := re.match(rb"USE `(.+)`;", line):
                    database = use[1]
            else:
                yield database, line


@cache  # a dump may be large
def _whose(dump: Path) -> tuple[bytes, set[str]]:
    """Return the database of a dump that is slurmdbd's, and its clusters."""
    found: dict[bytes, set[str]] = {}
    try:
        for database, line in _sections(dump):
            if (table := re.match(rb"CREATE TABLE `(.+)_job_table`", line)) and database not in _SYSTEM:
                found.setdefault(database, set()).add(table[1].decode(errors="replace"))
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"cannot read {dump}: {error}") from error
    if len(found) != 1:
        told = f"{len(found)} databases of slurmdbd" if found else "no database of slurmdbd"
        raise UsageError(f"{dump} has {told}", hint="mysqldump --single-transaction slurm_acct_db > dump.sql")
    return found.popitem()


def _scrubbed(dump: Path) -> Iterator[bytes]:
    """Yield the statements of slurmdbd's database in a dump, but for those that have scripts and environments."""
    wanted, _ = _whose(dump)
    secret = False
    for database, line in _sections(dump):
        if database in {wanted, b""}:
            secret = secret or bool(_SECRET_TABLES.match(line))
            if not secret:
                yield line
            # A line's end within a value is written as \n; newer dumps have each row on a line of its own.
            secret = secret and not line.rstrip(b"\r\n").endswith(b";")


_EMPTY_COLUMNS = """
    SELECT CONCAT('UPDATE `', table_name, '` SET `', column_name, "`='' WHERE `", column_name, "` != '';")
    FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name REGEXP '_(job|step)_table$' AND column_name IN ({});
""".format(", ".join(f"'{column}'" for column in _SECRET_COLUMNS))  # noqa: S608  nobody else has a say in it


def _who(clusters: Iterable[str]) -> str:
    """Return what asks for the names and uids of users who have jobs."""
    return "\n".join(
        f"SELECT DISTINCT user, id_user FROM `{name}_job_table` JOIN `{name}_assoc_table` USING (id_assoc);"  # noqa: S608
        for name in sorted(clusters)
    )


def _users(rows: str, plan: Plan) -> dict[str, User]:
    """Return the users of rows (name, uid) that can be made on the plan's hosts, and are not made there anyway."""
    taken = {user.uid for user in plan.scenario.users.values()}
    found: dict[str, User] = {}
    for name, uid in (line.split("\t") for line in rows.splitlines()):
        if name not in plan.scenario.users and int(uid) not in taken:
            with suppress(ValidationError):  # root's, daemons', and names that Debian does not take
                found |= _USERS.validate_python({name: {"uid": int(uid)}})
                taken.add(int(uid))
    return found


def _bring_state(live: Live, cluster: str, directory: Path) -> None:
    """Put a StateSaveLocation where a cluster's slurmctld looks for it."""
    controller = live.plan.scenario.clusters[cluster].controller
    conf = options.slurm_conf(live.plan.scenario, cluster, live.plan.offers)
    script = 'mkdir -p "$1" && tar --extract --directory="$1" && chown -R slurm: "$1" && chmod 700 "$1"'
    live.ssh.feed(controller, ["sh", "-c", script, "sh", options.state_save_location(conf)], [_state_tar(directory)])


def _state_tar(directory: Path) -> bytes:
    """Return a tar of a StateSaveLocation without what is secret."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path in sorted(directory.rglob("*")):
            name = path.relative_to(directory)
            if not path.is_file() or any(fnmatch.fnmatch(path.name, pattern) for pattern in _SECRET_FILES):
                continue
            # The id is left out: without --database slurmdbd gives another one.
            content = _cluster_of(directory).encode() if path.name == "clustername" else path.read_bytes()
            if name.parts[0].startswith("hash."):
                content = _IN_PLACE.get(path.name, b"")
            info = tarfile.TarInfo(str(name))
            info.size, info.mode, info.mtime = len(content), 0o600, int(path.stat().st_mtime)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()
