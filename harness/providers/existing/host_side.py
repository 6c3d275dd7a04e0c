"""Runs as root on an existing machine: inspects it, saves what a run replaces, restores it.

The text of this file is sent to hosts, so it needs only Python 3.8 and its standard library. What a
run replaces is saved in a directory that only root can read and that is created in one step:
either a run holds a host, with everything needed to restore it, or it does not. If `restore` is
interrupted, it can be called again.
"""

from __future__ import annotations

import fcntl
import glob
import grp
import hashlib
import json
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterable
from typing import Any

HOME = "/var/lib/slurm-harness"
HELD = f"{HOME}/held"
# Paths of slurm.conf; the last one is the copy that slurmd fetches in configless mode.
_CONFS = ("/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf", "/run/slurm/conf/slurm.conf")
_DATABASES = "/var/lib/mysql"
# Links that distributions create; they lead nowhere outside of the host.
_USUAL_LINKS = {
    "/bin",
    "/lib",
    "/lib64",
    "/sbin",
    "/usr/local/sbin",
    "/usr/sbin",
    "/var/lock",
    "/var/run",
}
# Types of file systems, as in /proc/mounts, that several hosts may share.
_OF_SEVERAL_HOSTS = re.compile(
    r"(nfs|cifs|smb|lustre|gpfs|beegfs|ceph|glusterfs|afs|9p|orangefs|wekafs|ocfs2|gfs2"
    r"|fuse\.(sshfs|glusterfs|ceph))"
)
_UNIT_PROPERTIES = "--property=Id,LoadState,ActiveState,UnitFileState"


class Refused(Exception):
    """The host must not be changed."""


class HostSide:
    """A host's files below `root`, and its commands."""

    def __init__(self, root: str = "/") -> None:
        self.root = root
        self.problems: list[str] = []

    def call(self, *command: str) -> tuple[int, str]:
        """Run a command; return its exit code and output."""
        try:
            done = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
            )
        except FileNotFoundError:
            return 127, f"{command[0]}: not found"
        return done.returncode, done.stdout.strip()

    def look(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """Return the facts that a run needs, without changing anything."""
        return {
            "name": socket.gethostname().partition(".")[0],
            "held": self.holder(),
            "held_for_this": self._record().get("wanted") == wanted,
            "clusters": self.clusters(),
            "releases": {
                daemon: self.call(daemon, "-V")[1]
                for daemon in wanted["daemons"]
                if daemon.startswith("slurm")
            },
            "lacking": [
                package
                for package, traces in wanted["packages"].items()
                if not any(map(self._has, traces))
            ],
            "unresolved": [name for name in wanted["names"] if not _resolves(name)],
            "hardware": self.call("slurmd", "-C")[1],
            "files": {path: self._file(path) for path in wanted["files"]},
            "units": self.units(wanted["units"]),
            "uids": {name: _uid(name) for name in wanted["users"]},
            "owners": {
                name: _user(uid) for name, uid in wanted["users"].items() if uid is not None
            },
            "directories": {path: self._owner_of_directory(path) for path in wanted["directories"]},
            "shared": self._shared(wanted["files"]),
            "mariadb": self._mariadb() if wanted["databases"] else None,
            "databases": [
                name
                for name in wanted["databases"]
                if os.path.isdir(self._at(f"{_DATABASES}/{name}"))
            ],
        }

    def holder(self) -> dict[str, Any] | None:
        """Return the run that holds this host."""
        return self._record().get("run")

    def clusters(self) -> list[tuple[str, str | None]]:
        """Return the files and daemons of clusters, each with the cluster's name if known."""
        clusters = [
            (conf, self._cluster_name(conf)) for conf in _CONFS if os.path.exists(self._at(conf))
        ]
        for pid in filter(str.isdigit, os.listdir(self._at("/proc"))):
            try:
                with open(self._at(f"/proc/{pid}/comm"), encoding="utf-8") as comm:
                    daemon = comm.read().strip()
                if daemon not in {"slurmctld", "slurmd"}:
                    continue
                with open(self._at(f"/proc/{pid}/cmdline"), encoding="utf-8") as cmdline:
                    arguments = cmdline.read().split("\0")
                with open(self._at(f"/proc/{pid}/environ"), encoding="utf-8") as environ:
                    variables = dict(
                        entry.partition("=")[::2] for entry in environ.read().split("\0")
                    )
            except OSError:  # it has ended
                continue
            own = [after for before, after in zip(arguments, arguments[1:]) if before == "-f"]
            confs = [*own, variables.get("SLURM_CONF", ""), *_CONFS]
            conf = next((conf for conf in confs if conf and os.path.exists(self._at(conf))), "")
            clusters.append((f"{daemon}, process {pid}", self._cluster_name(conf)))
        return clusters

    def units(self, names: list[str]) -> dict[str, dict[str, str]]:
        """Return the properties of systemd units."""
        text = self.call(
            "systemctl", "show", _UNIT_PROPERTIES, *(f"{name}.service" for name in names)
        )[1]
        facts = [
            dict(line.partition("=")[::2] for line in unit.splitlines())
            for unit in text.split("\n\n")
        ]
        return dict(zip(names, facts))

    def hold(self, run: dict[str, Any], wanted: dict[str, Any]) -> None:
        """Save everything that a run will replace, and hold the host for the run.

        A host that the run already holds is left alone. Refused if another run holds it, or if its
        MariaDB already has what the run would create: until that is known, the run must not remove
        anything from MariaDB.
        """
        if not self._held_by(run["id"]):
            self._save(run, wanted)
        record = self._record()
        if record.get("databases") is None:
            self._claim(wanted["databases"], record["units"]["mariadb"]["ActiveState"] == "active")
            self._write_record(HELD, {**record, "databases": wanted["databases"]})

    def _save(self, run: dict[str, Any], wanted: dict[str, Any]) -> None:
        fresh = self._at(f"{HELD}.{run['id']}")
        shutil.rmtree(fresh, ignore_errors=True)
        os.makedirs(self._at(HOME), exist_ok=True)
        os.mkdir(fresh, 0o700)
        for path in wanted["files"]:
            if os.path.lexists(self._at(path)):
                saved = os.path.join(fresh, "files", path.lstrip("/"))
                os.makedirs(os.path.dirname(saved), exist_ok=True)
                _copy(self._at(path), saved)
        parents = {
            parent
            for path in (*wanted["files"], *wanted["directories"])
            for parent in _parents(path)
        }
        record = {
            "run": run,
            "since": time.time(),
            "wanted": wanted,
            "parents": sorted(parent for parent in parents if not os.path.isdir(self._at(parent))),
            "directories": {path: self._directory(path) for path in wanted["directories"]},
            "units": self.units(wanted["daemons"]),
            "users": [name for name in wanted["users"] if _uid(name) is None],
            # What the run creates; None until the run knows that none of it exists yet.
            "databases": None if wanted["databases"] else {},
        }
        self._write_record(f"{HELD}.{run['id']}", record)
        os.sync()
        try:
            os.rename(fresh, self._at(HELD))  # fails if another run came first
        except OSError as error:
            shutil.rmtree(fresh)
            self._held_by(run["id"])
            raise Refused(str(error)) from error

    def _claim(self, databases: dict[str, list[str]], runs: bool) -> None:
        """Refused if MariaDB (started if necessary) has one of these databases or accounts."""
        try:
            if not runs:
                code, output = self.call("systemctl", "start", "mariadb")
                if code != 0:
                    raise Refused(f"its MariaDB does not start: {output}")
            mariadb = self._mariadb()
        finally:
            if not runs:
                self.call("systemctl", "stop", "mariadb")
        if mariadb is None or mariadb["problem"]:
            problem = mariadb and mariadb["problem"]
            raise Refused(f"cannot list the databases and accounts of its MariaDB: {problem}")
        taken = [f"database {name}" for name in databases if name in mariadb["databases"]]
        taken += [
            f"account {user}@{host}"
            for user, host in databases.values()
            if [user, host] in mariadb["accounts"]
        ]
        if taken:
            raise Refused(f"its MariaDB already has {' and '.join(taken)}")

    def restore(self, run_id: str) -> dict[str, list[str]]:
        """Restore the host; return `problems`, which another call may solve, and `left`.

        `left` is what differs from the state before the run and cannot be restored. Does nothing if
        the run does not hold the host.
        """
        half_made = self._at(f"{HELD}.{run_id}")
        shutil.rmtree(half_made, ignore_errors=True)
        holder = self.holder()
        if holder is None or holder["id"] != run_id:
            return {"problems": [], "left": []}
        # The installation of files continues although its deploy was killed, and locks this.
        home = os.open(self._at(HOME), os.O_RDONLY)
        try:
            fcntl.flock(home, fcntl.LOCK_EX)
            return self._restore(half_made)
        finally:
            os.close(home)

    def _restore(self, half_made: str) -> dict[str, list[str]]:
        record = self._record()
        units = record["units"]
        ran = [unit for unit, before in units.items() if before["ActiveState"] == "active"]
        files = record["wanted"]["files"]
        replaced = [path for path in files if self._is_replaced(path)]
        touched = {files[path] for path in replaced}
        self._stop([unit for unit in units if unit not in ran or unit in touched], ran)
        for path in replaced:
            self._restore_file(path)
        self._must("systemctl", "daemon-reload")
        self._drop_databases(record.get("databases") or {}, ran)
        for unit, before in units.items():
            self._restore_unit(unit, before["UnitFileState"])
        for user in record["users"]:
            self._remove_user(user)
        left = [
            self._restore_directory(path, was, record["since"])
            for path, was in record["directories"].items()
        ]
        left += [self._remove_parent(parent) for parent in reversed(record["parents"])]
        for unit, now in self.units(ran).items():
            if now["ActiveState"] != "active":
                self._must("systemctl", "start", unit)
        if not self.problems:
            os.rename(self._at(HELD), half_made)
            shutil.rmtree(half_made)
            if not os.listdir(self._at(HOME)):
                os.rmdir(self._at(HOME))
        return {"problems": self.problems, "left": [note for note in left if note]}

    def _record(self) -> dict[str, Any]:
        """Return the record that `hold` wrote; empty if no run holds this host."""
        try:
            with open(self._at(f"{HELD}/record.json"), encoding="utf-8") as file:
                record: dict[str, Any] = json.load(file)
        except FileNotFoundError:
            return {}
        return record

    def _held_by(self, run_id: str) -> bool:
        holder = self.holder()
        if holder and holder["id"] != run_id:
            raise Refused(
                f"run {holder['id']} of {holder['by']} has held it since {holder['since']}"
            )
        return bool(holder)

    def _at(self, path: str) -> str:
        return os.path.join(self.root, path.lstrip("/"))

    def _has(self, trace: str) -> bool:
        """Return whether there is a program with this name, or a file that matches this pattern."""
        sbin = os.pathsep.join(
            [os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"]
        )
        return bool(glob.glob(self._at(trace)) if "/" in trace else shutil.which(trace, path=sbin))

    def _file(self, path: str) -> dict[str, Any] | None:
        """Return a file's owner, mode and checksum, and its text if everyone may read it."""
        try:
            status = os.stat(self._at(path))
            with open(self._at(path), "rb") as file:
                content = file.read()
        except FileNotFoundError:
            return None
        return {
            "owner": _user(status.st_uid) or str(status.st_uid),
            "group": _group(status.st_gid),
            "mode": f"{status.st_mode & 0o7777:04o}",
            "sha256": hashlib.sha256(content).hexdigest(),
            "text": content.decode(errors="replace") if status.st_mode & 0o004 else None,
        }

    def _directory(self, path: str) -> dict[str, Any] | None:
        """Return a directory's owner and mode, and whether it is empty; None if it is missing."""
        try:
            status = os.stat(self._at(path))
        except FileNotFoundError:
            return None
        empty = os.path.isdir(self._at(path)) and not os.listdir(self._at(path))
        return {
            "owner": (status.st_uid, status.st_gid),
            "mode": status.st_mode & 0o7777,
            "empty": empty,
        }

    def _cluster_name(self, conf: str, depth: int = 3) -> str | None:
        """Return the ClusterName of a slurm.conf, or of a file that it includes: slurm.conf(5)."""
        try:
            with open(self._at(conf), encoding="utf-8", errors="replace") as file:
                text = file.read()
        except OSError:
            return None
        named = re.search(r"(?im)^\s*ClusterName\s*=\s*([^\s#]+)", text)
        if named:
            return named[1].lower()
        included = re.findall(r"(?im)^\s*include\s+(\S+)", text) if depth else []
        names = (
            self._cluster_name(os.path.join(os.path.dirname(conf), path), depth - 1)
            for path in included
        )
        return next(filter(None, names), None)

    def _is_replaced(self, path: str) -> bool:
        """Return whether a file differs from its saved copy, or is new."""
        current, saved = self._at(path), self._at(f"{HELD}/files{path}")
        if not os.path.lexists(current) or not os.path.lexists(saved):
            return os.path.lexists(current) or os.path.lexists(saved)
        return _identity(current) != _identity(saved)

    def _restore_file(self, path: str) -> None:
        """Restore a saved file, in one step; remove one that did not exist before."""
        current, saved = self._at(path), self._at(f"{HELD}/files{path}")
        if os.path.lexists(saved):
            os.makedirs(os.path.dirname(current), exist_ok=True)
            fresh = f"{current}.slurm-harness"
            if os.path.lexists(fresh):
                os.unlink(fresh)
            _copy(saved, fresh)
            os.replace(fresh, current)
        else:
            os.unlink(current)

    def _must(self, *command: str) -> None:
        """Run a command; if it fails, add that to the problems."""
        code, output = self.call(*command)
        if code != 0:
            self.problems.append(f"{' '.join(command)}: {output}")

    def _stop(self, units: list[str], ran: list[str]) -> None:
        """Stop units in the order of their dependencies.

        The jobs of a slurmd that was not running before the run are killed, too.
        """
        now = self.units(units)
        for unit in reversed(units):
            if now[unit]["LoadState"] != "loaded":
                continue
            self._must("systemctl", "stop", unit)
            if unit == "slurmd" and unit not in ran:
                # slurmd leaves its jobs alone when it stops.
                self.call(
                    "systemctl", "kill", "--kill-who=all", "--signal=KILL", unit, "slurmstepd.scope"
                )

    def _restore_unit(self, unit: str, before: str) -> None:
        """Enable or disable a unit, as it was before."""
        now = self.units([unit])[unit]["UnitFileState"]
        if now != before and now in {"enabled", "disabled"}:
            self._must("systemctl", "--quiet", "enable" if before == "enabled" else "disable", unit)

    def _drop_databases(self, databases: dict[str, list[str]], ran: list[str]) -> None:
        """Drop the databases and accounts that the run created, or was about to create."""
        if not databases:
            return
        self._must("systemctl", "start", "mariadb")
        for name, (user, host) in databases.items():
            database = name.replace("`", "``")
            account = "@".join(map(_sql, (user, host)))
            drop = f"DROP USER IF EXISTS {account}; DROP DATABASE IF EXISTS `{database}`"
            self._must("mariadb", "--execute", drop)
        if "mariadb" not in ran:
            self._must("systemctl", "stop", "mariadb")

    def _mariadb(self) -> dict[str, Any] | None:
        """Return the accounts and databases of a running MariaDB, or the `problem` with it."""
        if self.units(["mariadb"])["mariadb"]["ActiveState"] != "active":
            return None
        accounts = "SELECT 'account', User, Host FROM mysql.user"
        databases = "SELECT 'database', SCHEMA_NAME FROM information_schema.SCHEMATA"
        code, output = self.call(
            "mariadb", "--batch", "--skip-column-names", "--execute", f"{accounts}; {databases}"
        )
        rows = [line.split("\t") for line in output.splitlines()]
        return {
            "problem": output if code != 0 else "",
            "accounts": [row[1:] for row in rows if row[0] == "account"],
            "databases": [row[1] for row in rows if row[0] == "database"],
        }

    def _shared(self, paths: Iterable[str]) -> dict[str, str]:
        """Return the directories above files that other hosts may share, each with the reason."""
        mounts: dict[str, str] = {}
        try:
            with open(self._at("/proc/self/mounts"), encoding="utf-8") as file:
                mounts = {
                    words[1]: words[2] for words in map(str.split, file)
                }  # of several, the last one counts
        except OSError:
            pass
        directories = {}
        for path in paths:
            for parent in _parents(path):
                if os.path.islink(self._at(parent)) and parent not in _USUAL_LINKS:
                    directories[parent] = f"a link to {os.path.realpath(self._at(parent))}"
            mounted = next((parent for parent in _parents(path) if parent in mounts), "")
            if _OF_SEVERAL_HOSTS.match(mounts.get(mounted, "")):
                directories[mounted] = f"on {mounts[mounted]}"
        return directories

    def _owner_of_directory(self, path: str) -> list[str] | None:
        """Return the owner, group and mode of a directory; None if it does not exist."""
        facts = self._directory(path)
        if facts is None:
            return None
        uid, gid = facts["owner"]
        return [_user(uid) or str(uid), _group(gid), f"{facts['mode']:04o}"]

    def _write_record(self, directory: str, record: dict[str, Any]) -> None:
        path = os.path.join(self._at(directory), "record.json")
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            json.dump(record, file)
        os.replace(f"{path}.new", path)

    def _remove_user(self, name: str) -> None:
        """Remove a user that the run created, and kill the user's processes."""
        uid = _uid(name)
        if uid is None:
            return
        for pid in filter(str.isdigit, os.listdir(self._at("/proc"))):
            try:
                if os.stat(self._at(f"/proc/{pid}")).st_uid == uid:
                    os.kill(int(pid), signal.SIGKILL)
            except (FileNotFoundError, ProcessLookupError):
                continue
        self._must("userdel", "--force", name)

    def _remove_parent(self, path: str) -> str:
        """Remove a directory that was created for a file; return why it remains, if it does."""
        try:
            os.rmdir(self._at(path))
        except FileNotFoundError:
            return ""
        except OSError as error:
            return f"{path} did not exist before and remains: {error.strerror}"
        return ""

    def _restore_directory(self, path: str, before: dict[str, Any] | None, since: float) -> str:
        """Restore a directory; return what remains.

        Files added to a directory that was not empty are not removed.
        """
        current = self._at(path)
        if not os.path.lexists(current):
            return ""
        if before is None:
            _remove(current)
            return ""
        os.chown(current, *before["owner"])
        os.chmod(current, before["mode"])
        if before["empty"]:
            for name in os.listdir(current):
                _remove(os.path.join(current, name))
            return ""
        names = [os.path.join(at, name) for at, _, files in os.walk(current) for name in files]
        written = any(os.lstat(name).st_mtime > since for name in names)
        return f"{path} was not empty before: files written there since remain" if written else ""


def _copy(source: str, target: str) -> None:
    """Copy a file or link with its owner, mode and times."""
    shutil.copy2(source, target, follow_symlinks=False)
    status = os.lstat(source)
    os.chown(target, status.st_uid, status.st_gid, follow_symlinks=False)


def _identity(path: str) -> tuple[Any, ...]:
    """Return a value that is equal for two files or links only if they are the same."""
    status = os.lstat(path)
    if os.path.islink(path):
        return (os.readlink(path),)
    with open(path, "rb") as file:
        return (status.st_uid, status.st_gid, status.st_mode, file.read())


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)


def _parents(path: str) -> list[str]:
    parents = []
    while os.path.dirname(path) != path:
        path = os.path.dirname(path)
        parents.append(path)
    return parents


def _sql(text: str) -> str:
    """Quote a text for MariaDB."""
    return "'{}'".format(text.replace("\\", "\\\\").replace("'", "''"))


def _resolves(name: str) -> bool:
    try:
        socket.getaddrinfo(name, None)
    except socket.gaierror:
        return False
    return True


def _uid(name: str) -> int | None:
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return None


def _user(uid: int) -> str | None:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def answer(request: dict[str, Any]) -> str:
    """Execute a request; return the answer as JSON."""
    try:
        result = getattr(HostSide(), request["verb"])(*request["arguments"])
    except Refused as error:
        return json.dumps({"refused": str(error)})
    return json.dumps({"result": result})
