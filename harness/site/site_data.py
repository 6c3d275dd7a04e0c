"""A site's data for a rehearsal: a dump of its accounting database, and slurmctld's saved state.

Secrets are not copied: scripts and environments of jobs, the command lines and comments that users
wrote, keys. Pending jobs get a script that does nothing. Names of users, accounts, jobs and
directories are copied, and slurmctld's job_state, which is binary. All of it is removed with the
run's hosts.
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

from harness import slurm_options
from harness.errors import UsageError, cannot_read
from harness.open_run import OpenRun
from harness.plan import Plan
from harness.scenario import User, UserName

_SYSTEM = {b"mysql", b"sys", b"performance_schema", b"information_schema"}
# Tables of slurmdbd whose rows are not copied, and columns that are emptied:
# accounting_storage_mysql.c.
_SECRET_TABLES = re.compile(rb"INSERT (?:IGNORE )?INTO `\w+_job_(?:env|script)_table`")
_SECRET_COLUMNS = ("submit_line", "admin_comment", "system_comment", "derived_es", "extra")
# Files of a StateSaveLocation that are not copied.
_SECRET_FILES = ("*.key", "*.pem", "*.crt", "*.jwks", "jwt*")
# The files that a pending job gets instead. An environment is a number of strings, then these:
# _write_data_array_to_file() of slurmctld's job_mgr.c.
_IN_PLACE = {
    "script": b"#!/bin/sh\n",
    "environment": struct.pack("=I", 1) + b"PATH=/usr/bin:/bin\0",
}
_USERS = TypeAdapter(dict[UserName, User])
# Seconds for operations on a large database.
PATIENCE = 24 * 3600


@dataclass(frozen=True, slots=True)
class SiteData:
    """A dump of mysqldump or mariadb-dump (.gz or not), and each cluster's StateSaveLocation."""

    database: Path | None = None
    states: Mapping[str, Path] = field(default_factory=dict)


def examine(data: SiteData, plan: Plan) -> None:
    """Refuse data of clusters that the plan does not have, before anything starts.

    Raises UsageError, which names the cluster of the data.
    """
    if data.database:
        if not plan.scenario.accounting:
            raise UsageError("--database: the scenario has no accounting")
        _, clusters = _database_and_clusters(data.database)
        if not clusters & {*plan.scenario.clusters}:
            raise UsageError(
                f"{data.database} is the database of {', '.join(sorted(clusters))}, but the "
                f"scenario has {', '.join(plan.scenario.clusters)}",
                hint="use the ClusterName of slurm.conf as the name of the scenario's cluster",
            )
    for name, directory in data.states.items():
        if name not in plan.scenario.clusters:
            raise UsageError(
                f"--state {name}={directory}: the scenario has {', '.join(plan.scenario.clusters)}"
            )
        try:
            cluster_name = _cluster_of(directory)
        except OSError as error:
            raise UsageError(
                f"{directory} is not a StateSaveLocation: it has no file clustername"
            ) from error
        if cluster_name != name:
            raise UsageError(f"{directory} is the state of {cluster_name}, not of {name}")


def load(run: OpenRun, data: SiteData) -> dict[str, User]:
    """Load the data into hosts that are up, before their daemons start.

    Returns the users who have jobs in it.
    """
    for name, directory in data.states.items():
        run.say(f"state of {name}: {directory}")
        _load_state(run, name, directory)
    if not data.database:
        return {}
    run.say(f"database: {data.database}")
    host, database = run.plan.with_daemon("mariadb")[0].name, _database(run.plan)
    sql = _sql(run.plan)
    run.ssh.run(host, ["systemctl", "start", "mariadb"], timeout=PATIENCE)
    run.ssh.run(host, ["mariadb", "-e", f"CREATE DATABASE `{database}`"], timeout=PATIENCE)
    run.ssh.feed(host, sql, _scrubbed(data.database))
    emptied = run.ssh.run(host, sql, stdin=_EMPTY_COLUMNS, timeout=PATIENCE).stdout
    run.ssh.run(host, sql, stdin=emptied, timeout=PATIENCE)
    clusters = {*run.plan.scenario.clusters} & _database_and_clusters(data.database)[1]
    rows = run.ssh.run(host, sql, stdin=_job_users_query(clusters), timeout=PATIENCE).stdout
    return _users(rows, run.plan)


def remembered(run: OpenRun, until: float) -> dict[str, list[str]]:
    """Return, for each cluster, a summary of the records of jobs and steps ended by `until`.

    It has the number of records and a sum over their values, which must not change when slurmdbd
    converts its tables.
    """
    host = run.plan.with_daemon("mariadb")[0].name
    ended = f"time_end BETWEEN 1 AND {until:.0f}"
    facts = (
        "CONCAT_WS(',', id_job, id_user, state, exit_code, time_submit, time_start, time_end, "
        "account, job_name)"
    )
    summaries = {}
    for name in run.plan.scenario.clusters:
        query = f"""
            SELECT COUNT(*), COALESCE(SUM(CRC32({facts})), 0) FROM `{name}_job_table` WHERE {ended};
            SELECT COUNT(*), COALESCE(SUM(time_end), 0) FROM `{name}_step_table` WHERE {ended};"""  # noqa: S608
        summaries[name] = run.ssh.run(
            host, _sql(run.plan), stdin=query, timeout=PATIENCE
        ).stdout.splitlines()
    return summaries


def _cluster_of(directory: Path) -> str:
    """Return the name in the file clustername.

    From 24.11 on, the cluster's id in slurmdbd follows it.
    """
    return (directory / "clustername").read_text(errors="replace").strip().partition("|")[0]


def _database(plan: Plan) -> str:
    return (
        slurm_options.get(slurm_options.slurmdbd_conf(plan.scenario), "StorageLoc")
        or "slurm_acct_db"
    )


def _sql(plan: Plan) -> list[str]:
    """Return the command that runs SQL on slurmdbd's database and prints plain rows."""
    return ["mariadb", "--batch", "--skip-column-names", f"--database={_database(plan)}"]


def _open(dump: Path) -> IO[bytes]:
    return gzip.open(dump) if dump.suffix == ".gz" else dump.open("rb")  # type: ignore[return-value]


def _sections(dump: Path) -> Iterator[tuple[bytes, bytes]]:
    """Yield the lines of a dump, each with the name of its database.

    The name is b"" in a dump of a single database, which does not name it.
    """
    database = b""
    with _open(dump) as lines:
        for line in lines:
            if line.startswith((b"USE `", b"CREATE DATABASE ")):
                if use := re.match(rb"USE `(.+)`;", line):
                    database = use[1]
            else:
                yield database, line


@cache  # a dump can be large
def _database_and_clusters(dump: Path) -> tuple[bytes, set[str]]:
    """Return slurmdbd's database in a dump, and its clusters."""
    clusters_of: dict[bytes, set[str]] = {}
    try:
        for database, line in _sections(dump):
            if (
                table := re.match(rb"CREATE TABLE `(.+)_job_table`", line)
            ) and database not in _SYSTEM:
                clusters_of.setdefault(database, set()).add(table[1].decode(errors="replace"))
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(cannot_read(dump, error)) from error
    if len(clusters_of) != 1:
        content = (
            f"{len(clusters_of)} databases of slurmdbd"
            if clusters_of
            else "no database of slurmdbd"
        )
        raise UsageError(
            f"{dump} has {content}", hint="mysqldump --single-transaction slurm_acct_db > dump.sql"
        )
    return clusters_of.popitem()


def _scrubbed(dump: Path) -> Iterator[bytes]:
    """Yield a dump's statements of slurmdbd's database, without scripts and environments."""
    slurmdbd_database, _ = _database_and_clusters(dump)
    secret = False
    for database, line in _sections(dump):
        if database in {slurmdbd_database, b""}:
            secret = secret or bool(_SECRET_TABLES.match(line))
            if not secret:
                yield line
            # A line end in a value is written as \n; newer dumps have one line per row.
            secret = secret and not line.rstrip(b"\r\n").endswith(b";")


_EMPTY_COLUMNS = """
    SELECT CONCAT(
        'UPDATE `', table_name, '` SET `', column_name, "`='' WHERE `", column_name, "` != '';"
    )
    FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name REGEXP '_(job|step)_table$'
        AND column_name IN ({});
""".format(", ".join(f"'{column}'" for column in _SECRET_COLUMNS))  # noqa: S608  built from constants


def _job_users_query(clusters: Iterable[str]) -> str:
    """Return the query for names and uids of users who have jobs."""
    return "\n".join(
        f"SELECT DISTINCT user, id_user FROM `{name}_job_table` "  # noqa: S608
        f"JOIN `{name}_assoc_table` USING (id_assoc);"
        for name in sorted(clusters)
    )


def _users(rows: str, plan: Plan) -> dict[str, User]:
    """Return the users of rows (name, uid) that the plan's hosts lack and can create."""
    used_uids = {user.uid for user in plan.scenario.users.values()}
    users: dict[str, User] = {}
    for name, uid in (line.split("\t") for line in rows.splitlines()):
        if name not in plan.scenario.users and int(uid) not in used_uids:
            with suppress(ValidationError):  # root, daemons, and names that Debian does not accept
                users |= _USERS.validate_python({name: {"uid": int(uid)}})
                used_uids.add(int(uid))
    return users


def _load_state(run: OpenRun, cluster: str, directory: Path) -> None:
    """Copy a StateSaveLocation to where a cluster's slurmctld looks for it."""
    controller = run.plan.scenario.clusters[cluster].controller
    conf = run.plan.slurm_conf(cluster)
    script = (
        'mkdir -p "$1" && tar --extract --directory="$1" && chown -R slurm: "$1" && chmod 700 "$1"'
    )
    run.ssh.feed(
        controller,
        ["sh", "-c", script, "sh", slurm_options.state_save_location(conf)],
        [_state_tar(directory)],
    )


def _state_tar(directory: Path) -> bytes:
    """Return a tar archive of a StateSaveLocation without secrets."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path in sorted(directory.rglob("*")):
            name = path.relative_to(directory)
            if not path.is_file() or any(
                fnmatch.fnmatch(path.name, pattern) for pattern in _SECRET_FILES
            ):
                continue
            # The id is left out: without --database, slurmdbd assigns a new one.
            content = (
                _cluster_of(directory).encode() if path.name == "clustername" else path.read_bytes()
            )
            if name.parts[0].startswith("hash."):
                content = _IN_PLACE.get(path.name, b"")
            info = tarfile.TarInfo(str(name))
            info.size, info.mode, info.mtime = len(content), 0o600, int(path.stat().st_mtime)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()
