"""Users, groups, files and directories for a daemon: everything that its configuration names."""

from __future__ import annotations

import grp
import os
import pwd
import re
from contextlib import suppress
from pathlib import Path

from inside.conf import CONF, Conf
from inside.network import split_host

_LIBRARIES = Path("/usr/lib/x86_64-linux-gnu")
# Debian's packages have them in a directory of their own name.
PLUGINS = next(path for name in ("slurm-wlm", "slurm") if (path := _LIBRARIES / name).is_dir())
MUNGE = Path("/run/munge/munge.socket.2")

_ACCOUNT = re.compile(r"(?!\d{10})\w[\w.@+-]*\$?", re.ASCII)
_DIRECTORIES = (
    *("statesavelocation", "slurmdspooldir", "tmpfs", "jobcheckpointdir", "archivedir", "basepath"),
    *("profilehdf5dir", "cgroupmountpoint", "cgroupreleaseagentdir"),
)
_MUNGE_SOCKETS = ("authinfo", "accountingstoragepass", "storagepass")
_COMPANIONS = (
    "acct_gather.conf",
    "burst_buffer.conf",
    "cgroup.conf",
    "helpers.conf",
    "job_container.conf",
)
_LUA_FUNCTIONS = (
    *("slurm_job_submit", "slurm_job_modify", "slurm_jobcomp_log_record"),
    *(
        "slurm_bb_job_process",
        "slurm_bb_pools",
        "slurm_bb_job_teardown",
        "slurm_bb_setup",
        "slurm_bb_data_in",
    ),
    *(
        "slurm_bb_test_data_in",
        "slurm_bb_real_size",
        "slurm_bb_paths",
        "slurm_bb_pre_run",
        "slurm_bb_post_run",
    ),
    *("slurm_bb_data_out", "slurm_bb_test_data_out", "slurm_bb_get_status"),
)


def add_group(name: str) -> None:
    """Create a group, if the name is valid."""
    known = {entry.gr_name for entry in grp.getgrall()}
    if _ACCOUNT.fullmatch(name) and not name.isdecimal() and name not in known:
        with Path("/etc/group").open("a") as file:
            file.write(f"{name}:x:{70000 + len(known)}:\n")


def add_user(name: str) -> tuple[int, int]:
    """Create a user, if the name or number is valid; return its user and group ID, or root's."""
    known = {key: entry for entry in pwd.getpwall() for key in (entry.pw_name, str(entry.pw_uid))}
    if name not in known:
        if not _ACCOUNT.fullmatch(name):
            return 0, 0
        login, number = (f"u{name}", int(name)) if name.isdecimal() else (name, 70000 + len(known))
        add_group(login)
        with Path("/etc/passwd").open("a") as file:
            file.write(
                f"{login}:x:{number}:{grp.getgrnam(login).gr_gid}::/nonexistent:/usr/sbin/nologin\n"
            )
        return number, grp.getgrnam(login).gr_gid
    return known[name].pw_uid, known[name].pw_gid


class Files:
    """Creates files and directories of the daemon's user; existing ones keep their content."""

    def __init__(self, user: str) -> None:
        self._owner = add_user(user)

    def directory(self, path: Path) -> None:
        """Create a directory that the owner may write to."""
        for missing in reversed([path, *path.parents]):
            if not missing.exists():
                missing.mkdir()
                os.chown(missing, *self._owner)
        # /tmp stays writable by everyone, and munged needs a / of root.
        if not path.stat().st_mode & 0o002 and path != Path("/"):
            os.chown(path, *self._owner)

    def parent(self, path: Path) -> None:
        """Create the directory that a path is in; an existing one keeps its owner."""
        if not path.parent.exists():
            self.directory(path.parent)

    def file(self, path: Path, content: bytes = b"", mode: int = 0o644) -> None:
        """Create a file with this mode."""
        self.parent(path)
        if not path.exists():
            path.write_bytes(content)
        if path.is_file():
            path.chmod(mode)
            os.chown(path, *self._owner)

    def program(self, path: Path) -> None:
        """Create a program that does nothing; for a pattern, one that matches it."""
        if not path.exists():
            self.file(Path(re.sub(r"[*?]", "x", str(path))), b"#!/bin/sh\nexit 0\n", 0o755)

    def link(self, path: Path, target: Path) -> None:
        """Create a symbolic link to the target."""
        if not path.exists():
            self.parent(path)
            path.symlink_to(target)


def furnish(conf: Conf) -> Files:
    """Create everything that slurm.conf or slurmdbd.conf names or leaves to a default."""
    files = Files(split_host(conf.get("slurmuser", "root"))[0])
    add_user(split_host(conf.get("slurmduser", "root"))[0])
    for value in conf.all("allowgroups", "mcsparameters"):
        for name in re.split(r"[,|:]", value):
            add_group(name)
    _keys(conf, files)
    for script in ("job_submit.lua", "jobcomp.lua", "burst_buffer.lua"):
        lua = "".join(f"function {name}(...) return 0 end\n" for name in _LUA_FUNCTIONS)
        files.file(CONF / script, lua.encode())

    defaults = [("statesavelocation", _state(conf)), ("slurmdspooldir", "/var/spool/slurmd")]
    defaults += [("jobcomploc", "/var/log/slurm_jobcomp.log")]
    defaults += [("mailprog", "/bin/mail"), ("mailprog", "/usr/bin/mail")]
    for key, value in [*defaults, *conf.pairs, *Conf(*(CONF / name for name in _COMPANIONS)).pairs]:
        if value.startswith("/"):
            with suppress(OSError):  # an impossible path stays missing: the daemon decides
                _have(files, key, value, is_script=conf.get("jobcomptype") == "jobcomp/script")
    return files


def _have(files: Files, key: str, value: str, is_script: bool) -> None:
    path = Path(value if key in _DIRECTORIES else value.split()[0])
    if key in _MUNGE_SOCKETS:
        files.link(path, MUNGE)
    elif key == "plugindir":
        for directory in value.split(":"):
            files.link(Path(directory), PLUGINS)
    elif key in _DIRECTORIES:
        files.directory(path)
    elif key.endswith("pidfile"):
        files.parent(path)  # the daemon writes it as root
    elif key.endswith("file") or (key == "jobcomploc" and not is_script):
        files.file(path)
    else:
        files.program(path)


def _keys(conf: Conf, files: Files) -> None:
    secret = os.urandom(1024)
    http = conf.get("slurmctldhttpauthparameters")
    if http or any("jwt" in value for value in conf.all("authtype", "authalttypes")):
        for option in ("authaltparameters", "slurmctldhttpauthparameters"):
            key = conf.setting(option, "jwt_key") or f"{_state(conf)}/jwt_hs256.key"
            if key.startswith("/"):  # with a relative one, its directory would exist too
                files.file(Path(key), secret[:32], 0o600)
            jwks = conf.setting(option, "jwks")
            if jwks:
                files.file(Path(jwks), b'{"keys": []}')
    plugins = conf.items("authtype", "credtype", "cryptotype", "authalttypes")
    if any(plugin.split("/")[-1] == "slurm" for plugin in plugins):
        files.file(CONF / "slurm.key", secret, 0o600)
    munge = conf.setting("authinfo", "socket")
    if munge:
        files.link(Path(munge), MUNGE)


def _state(conf: Conf) -> str:
    return conf.get("statesavelocation", "/var/spool")
