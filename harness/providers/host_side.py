"""Runs as root on a host that is somebody's: tells what is there, puts it aside for a run, and puts it back.

The text of this file is sent to hosts, so it wants nothing but Python 3.8 and its own library. What a run replaces is
put aside in one directory that only root can read, and that comes into being in one step: a host is held by a run, with
all that is needed to put it back, or it is not. Whatever interrupts `give_back`, it can be called again.
"""

from __future__ import annotations

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
from typing import Any

HOME = "/var/lib/slurm-harness"
HELD = f"{HOME}/held"
# Where slurm.conf is; the last one is slurmd's own copy where it asks slurmctld for it.
_CONFS = ("/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf", "/run/slurm/conf/slurm.conf")
_DATABASES = "/var/lib/mysql"
_UNIT_PROPERTIES = "--property=Id,LoadState,ActiveState,UnitFileState"


class Refused(Exception):
    """A host is not to be touched."""


class HostSide:
    """A host's files below `root`, and its commands."""

    def __init__(self, root: str = "/") -> None:
        self.root = root
        self.problems: list[str] = []

    def call(self, *command: str) -> tuple[int, str]:
        """Run a command; return its exit code and what it said."""
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        except FileNotFoundError:
            return 127, f"{command[0]}: not found"
        return done.returncode, done.stdout.strip()

    def look(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """Tell what a run wants to know; changes nothing."""
        return {
            "name": socket.gethostname().partition(".")[0],
            "held": self.holder(),
            "held_for_this": self._record().get("wanted") == wanted,
            "clusters": self.clusters(),
            "releases": {
                daemon: self.call(daemon, "-V")[1] for daemon in wanted["daemons"] if daemon.startswith("slurm")
            },
            "lacking": [package for package, traces in wanted["packages"].items() if not any(map(self._has, traces))],
            "unresolved": [name for name in wanted["names"] if not _resolves(name)],
            "hardware": self.call("slurmd", "-C")[1],
            "files": {path: self._file(path) for path in wanted["files"]},
            "units": self.units(wanted["units"]),
            "uids": {name: _uid(name) for name in wanted["users"]},
            "owners": {name: _user(uid) for name, uid in wanted["users"].items() if uid is not None},
            "databases": [name for name in wanted["databases"] if os.path.isdir(self._at(f"{_DATABASES}/{name}"))],
        }

    def holder(self) -> dict[str, Any] | None:
        """Return the run that holds this host."""
        return self._record().get("run")

    def clusters(self) -> list[tuple[str, str | None]]:
        """Return the files and daemons that belong to a cluster, each with its name if it tells one."""
        found = [(conf, self._cluster_name(conf)) for conf in _CONFS if os.path.exists(self._at(conf))]
        for pid in filter(str.isdigit, os.listdir(self._at("/proc"))):
            try:
                with open(self._at(f"/proc/{pid}/comm"), encoding="utf-8") as comm:
                    daemon = comm.read().strip()
                if daemon not in {"slurmctld", "slurmd"}:
                    continue
                with open(self._at(f"/proc/{pid}/cmdline"), encoding="utf-8") as cmdline:
                    arguments = cmdline.read().split("\0")
                with open(self._at(f"/proc/{pid}/environ"), encoding="utf-8") as environ:
                    variables = dict(entry.partition("=")[::2] for entry in environ.read().split("\0"))
            except OSError:  # it has ended
                continue
            own = [after for before, after in zip(arguments, arguments[1:]) if before == "-f"]
            confs = [*own, variables.get("SLURM_CONF", ""), *_CONFS]
            conf = next((conf for conf in confs if conf and os.path.exists(self._at(conf))), "")
            found.append((f"{daemon}, process {pid}", self._cluster_name(conf)))
        return found

    def units(self, names: list[str]) -> dict[str, dict[str, str]]:
        """Return what systemd says of units."""
        text = self.call("systemctl", "show", _UNIT_PROPERTIES, *(f"{name}.service" for name in names))[1]
        facts = [dict(line.partition("=")[::2] for line in unit.splitlines()) for unit in text.split("\n\n")]
        return dict(zip(names, facts))

    def hold(self, run: dict[str, Any], wanted: dict[str, Any]) -> None:
        """Put aside all that a run will replace, and hold the host for it; a host that it holds stays as it is.

        Refused if another run holds it.
        """
        if self._held_by(run["id"]):
            return
        fresh = self._at(f"{HELD}.{run['id']}")
        shutil.rmtree(fresh, ignore_errors=True)
        os.makedirs(self._at(HOME), exist_ok=True)
        os.mkdir(fresh, 0o700)
        for path in wanted["files"]:
            if os.path.lexists(self._at(path)):
                aside = os.path.join(fresh, "files", path.lstrip("/"))
                os.makedirs(os.path.dirname(aside), exist_ok=True)
                _copy(self._at(path), aside)
        parents = {parent for path in (*wanted["files"], *wanted["directories"]) for parent in _parents(path)}
        record = {
            "run": run,
            "since": time.time(),
            "wanted": wanted,
            "parents": sorted(parent for parent in parents if not os.path.isdir(self._at(parent))),
            "directories": {path: self._directory(path) for path in wanted["directories"]},
            "units": self.units(wanted["daemons"]),
            "users": [name for name in wanted["users"] if _uid(name) is None],
        }
        with open(os.path.join(fresh, "record.json"), "w", encoding="utf-8") as file:
            json.dump(record, file)
        os.sync()
        try:
            os.rename(fresh, self._at(HELD))  # fails if another run has done it meanwhile
        except OSError as error:
            shutil.rmtree(fresh)
            self._held_by(run["id"])
            raise Refused(str(error)) from error

    def give_back(self, run_id: str) -> dict[str, list[str]]:
        """Make the host what it was before a run held it; return `problems`, which another call may mend, and `left`.

        `left` is what stays other than it was. Where the run holds nothing there is nothing to do.
        """
        half_made = self._at(f"{HELD}.{run_id}")
        shutil.rmtree(half_made, ignore_errors=True)
        holder = self.holder()
        if holder is None or holder["id"] != run_id:
            return {"problems": [], "left": []}
        record = self._record()
        units = record["units"]
        ran = [unit for unit, before in units.items() if before["ActiveState"] == "active"]
        files = record["wanted"]["files"]
        replaced = [path for path in files if self._is_replaced(path)]
        touched = {files[path] for path in replaced}
        self._stop([unit for unit in units if unit not in ran or unit in touched], ran)
        for path in replaced:
            self._put_back(path)
        self._must("systemctl", "daemon-reload")
        self._drop_databases(record["wanted"]["databases"], ran)
        for unit, before in units.items():
            self._put_boot_back(unit, before["UnitFileState"])
        for user in record["users"]:
            self._remove_user(user)
        left = [self._put_directory_back(path, was, record["since"]) for path, was in record["directories"].items()]
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
        """Return what `hold` wrote down; nothing where no run holds this host."""
        try:
            with open(self._at(f"{HELD}/record.json"), encoding="utf-8") as file:
                record: dict[str, Any] = json.load(file)
        except FileNotFoundError:
            return {}
        return record

    def _held_by(self, run_id: str) -> bool:
        holder = self.holder()
        if holder and holder["id"] != run_id:
            raise Refused(f"run {holder['id']} of {holder['by']} holds it since {holder['since']}")
        return bool(holder)

    def _at(self, path: str) -> str:
        return os.path.join(self.root, path.lstrip("/"))

    def _has(self, trace: str) -> bool:
        """Tell whether there is a program, or a file that matches a pattern."""
        sbin = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])
        return bool(glob.glob(self._at(trace)) if "/" in trace else shutil.which(trace, path=sbin))

    def _file(self, path: str) -> dict[str, Any] | None:
        """Return what is to know of a file; its text only where everybody may read it."""
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
        """Return owner and mode of a directory, and whether it is empty; None if there is none."""
        try:
            status = os.stat(self._at(path))
        except FileNotFoundError:
            return None
        empty = os.path.isdir(self._at(path)) and not os.listdir(self._at(path))
        return {"owner": (status.st_uid, status.st_gid), "mode": status.st_mode & 0o7777, "empty": empty}

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
        names = (self._cluster_name(os.path.join(os.path.dirname(conf), one), depth - 1) for one in included)
        return next(filter(None, names), None)

    def _is_replaced(self, path: str) -> bool:
        """Tell whether a file is another than the one put aside, or is there although there was none."""
        here, aside = self._at(path), self._at(f"{HELD}/files{path}")
        if not os.path.lexists(here) or not os.path.lexists(aside):
            return os.path.lexists(here) or os.path.lexists(aside)
        return _identity(here) != _identity(aside)

    def _put_back(self, path: str) -> None:
        """Put the file that was put aside in its place in one step, or remove the one that was not there."""
        here, aside = self._at(path), self._at(f"{HELD}/files{path}")
        if os.path.lexists(aside):
            os.makedirs(os.path.dirname(here), exist_ok=True)
            fresh = f"{here}.slurm-harness"
            if os.path.lexists(fresh):
                os.unlink(fresh)
            _copy(aside, fresh)
            os.replace(fresh, here)
        else:
            os.unlink(here)

    def _must(self, *command: str) -> None:
        """Run a command; where it fails that is one of the problems."""
        code, said = self.call(*command)
        if code != 0:
            self.problems.append(f"{' '.join(command)}: {said}")

    def _stop(self, units: list[str], ran: list[str]) -> None:
        """Stop units, those that need others first; of a slurmd that did not run before, its jobs too."""
        now = self.units(units)
        for unit in reversed(units):
            if now[unit]["LoadState"] != "loaded":
                continue
            self._must("systemctl", "stop", unit)
            if unit == "slurmd" and unit not in ran:
                # slurmd leaves its jobs alone when it stops.
                self.call("systemctl", "kill", "--kill-who=all", "--signal=KILL", unit, "slurmstepd.scope")

    def _put_boot_back(self, unit: str, before: str) -> None:
        """Have systemd start a unit at boot, or not, as it did before."""
        now = self.units([unit])[unit]["UnitFileState"]
        if now != before and now in {"enabled", "disabled"}:
            self._must("systemctl", "--quiet", "enable" if before == "enabled" else "disable", unit)

    def _drop_databases(self, databases: dict[str, list[str]], ran: list[str]) -> None:
        """Drop the databases and accounts that the run made."""
        made = [name for name in databases if os.path.isdir(self._at(f"{_DATABASES}/{name}"))]
        if not made:
            return
        self._must("systemctl", "start", "mariadb")
        for name in made:
            user, host = databases[name]
            self._must("mariadb", "--execute", f"DROP USER IF EXISTS '{user}'@'{host}'; DROP DATABASE `{name}`")
        if "mariadb" not in ran:
            self._must("systemctl", "stop", "mariadb")

    def _remove_user(self, name: str) -> None:
        """Remove a user that the run made, and end what still runs as it."""
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
        """Remove a directory that came with a file; return why it stays, if it does."""
        try:
            os.rmdir(self._at(path))
        except FileNotFoundError:
            return ""
        except OSError as error:
            return f"{path} was not there before and stays: {error.strerror}"
        return ""

    def _put_directory_back(self, path: str, before: dict[str, Any] | None, since: float) -> str:
        """Make a directory what it was; return what cannot be: what was written among what was there stays."""
        here = self._at(path)
        if not os.path.lexists(here):
            return ""
        if before is None:
            _remove(here)
            return ""
        os.chown(here, *before["owner"])
        os.chmod(here, before["mode"])
        if before["empty"]:
            for name in os.listdir(here):
                _remove(os.path.join(here, name))
            return ""
        names = [os.path.join(at, name) for at, _, files in os.walk(here) for name in files]
        written = any(os.lstat(name).st_mtime > since for name in names)
        return f"{path} was not empty before: what was written there since stays" if written else ""


def _copy(source: str, target: str) -> None:
    """Copy a file or link with its owner, mode and times."""
    shutil.copy2(source, target, follow_symlinks=False)
    status = os.lstat(source)
    os.chown(target, status.st_uid, status.st_gid, follow_symlinks=False)


def _identity(path: str) -> tuple[Any, ...]:
    """Return what makes two files or links the same."""
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
    found = []
    while os.path.dirname(path) != path:
        path = os.path.dirname(path)
        found.append(path)
    return found


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
    """Do what a request asks for; return the answer as JSON."""
    try:
        told = getattr(HostSide(), request["verb"])(*request["arguments"])
    except Refused as error:
        return json.dumps({"refused": str(error)})
    return json.dumps({"told": told})
