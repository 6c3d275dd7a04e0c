"""What a daemon needs running beside it: munge, MariaDB, slurmdbd."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from inside.conf import CONF
from inside.files import MUNGE, PLUGINS, add_user
from inside.network import THERE

OWN = Path("/etc/reference")  # the rig's own slurm.conf and slurmdbd.conf
DATA = Path("/var/lib/reference/mysql")
_SOCKET = Path("/run/mysqld/mysqld.sock")
_LOGS = Path("/var/log/reference")
_MUNGE_KEY = Path("/etc/munge/munge.key")
_START = 90.0  # seconds
# mariadbd as its user, which may listen below port 1024, too.
_CAPABILITY = "+net_bind_service"
_AS_MYSQL = [
    *("setpriv", "--reuid=mysql", "--regid=mysql", "--clear-groups"),
    *(f"--inh-caps={_CAPABILITY}", f"--ambient-caps={_CAPABILITY}"),
]
_LISTEN = "0A"  # TCP_LISTEN of net/tcp_states.h
_TURN = 0.05  # seconds between two looks


class RigError(Exception):
    """The rig itself failed: no verdict."""


def wait_until(ready: Callable[[], bool], seconds: float) -> bool:
    """Wait until it is ready; return whether it was in time, which is longer on a busy machine.

    A turn counts as a third of the time it takes, but at least as the time it sleeps.
    """
    spent, last = 0.0, time.monotonic()
    while not ready():
        if spent > seconds:
            return False
        time.sleep(_TURN)
        now = time.monotonic()
        spent += max(_TURN, (now - last) / 3)
        last = now
    return True


def listens(pid: int) -> bool:
    """Return whether a process accepts TCP connections, at any port."""
    sockets = set()
    for descriptor in Path(f"/proc/{pid}/fd").glob("*"):
        with suppress(OSError):  # closed meanwhile
            sockets.add(str(descriptor.readlink()))
    for table in ("tcp", "tcp6"):
        with suppress(OSError):  # the process has ended, or IPv6 is off
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                _, _, _, state, *_, inode = line.split()[:10]
                if state == _LISTEN and f"socket:[{inode}]" in sockets:
                    return True
    return False


def start_munge() -> None:
    """Start munged; it answers when this returns."""
    for directory in (
        MUNGE.parent,
        Path("/var/lib/munge"),
        Path("/var/log/munge"),
        _MUNGE_KEY.parent,
    ):
        directory.mkdir(exist_ok=True)
        shutil.chown(directory, "munge", "munge")
        directory.chmod(0o755 if directory == MUNGE.parent else 0o700)
    if not _MUNGE_KEY.exists():
        _MUNGE_KEY.write_bytes(os.urandom(1024))
        shutil.chown(_MUNGE_KEY, "munge", "munge")
        _MUNGE_KEY.chmod(0o400)
    subprocess.run(
        ["munged"],
        user="munge",
        group="munge",
        extra_groups=[],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,  # it complains that it has no address of its own
        check=True,
    )


class MariaDB:
    """A MariaDB in which every account exists, with every password."""

    _OPTIONS = (
        *(
            f"--datadir={DATA}",
            f"--socket={_SOCKET}",
            "--pid-file=/run/mysqld/mysqld.pid",
        ),
        *("--skip-grant-tables", "--skip-name-resolve", "--skip-log-bin"),
        *(
            "--innodb-flush-log-at-trx-commit=0",
            "--skip-innodb-doublewrite",
            "--innodb-log-file-size=32M",
        ),
        # slurmdbd's recommendations, without which it complains.
        *(
            "--innodb-buffer-pool-size=2G",
            "--innodb-lock-wait-timeout=900",
            "--max-allowed-packet=16M",
        ),
        "--loose-innodb-snapshot-isolation=OFF",
    )

    def __init__(self, port: int = 3306, here: bool = True) -> None:
        """Start it on the daemon's host or on the other one."""
        _SOCKET.parent.mkdir(exist_ok=True)
        shutil.chown(_SOCKET.parent, "mysql", "mysql")
        _LOGS.mkdir(exist_ok=True)
        command = [
            *([] if here else THERE),
            *_AS_MYSQL,
            "mariadbd",
            "--no-defaults",
            *self._OPTIONS,
            f"--port={port}",
        ]
        with (_LOGS / "mariadb.log").open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def wait(self) -> None:
        """Wait until it answers."""
        wait_until(lambda: self._process.poll() is not None or _answers(), _START)
        if not _answers():
            raise RigError("MariaDB: " + (_LOGS / "mariadb.log").read_text("latin-1")[-2000:])

    def create(self, database: str) -> None:
        """Create a database, if its name is valid.

        Slurm would create it, but cannot with every client library: after a failed connection, the
        one of MariaDB 11.8.9 accepts no result that has a column.
        """
        if re.fullmatch(r"(?!\d+$)[\w$]+", database, re.ASCII):
            command = ["mariadb", "--no-defaults", f"--socket={_SOCKET}", "-e"]
            # A word of SQL fails here as it does in the daemon.
            subprocess.run([*command, f"CREATE DATABASE IF NOT EXISTS {database}"], check=False)

    def stop(self) -> None:
        """Stop it in good order."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(_START)


def _answers() -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(_SOCKET)) == 0


class Slurmdbd:
    """A slurmdbd with a plain configuration of its own, for a slurmctld that reads a case's."""

    def __init__(self, port: int, auth: dict[str, str], user: str, here: bool = True) -> None:
        """Start it as slurmctld's user; `auth` are the options with which the two authenticate."""
        owner = add_user(user)
        plugin = auth.get("AuthType", "").replace("/", "_")
        common = {
            "SlurmUser": user if owner != (0, 0) else "root",
            **(auth if (PLUGINS / f"{plugin}.so").exists() else {}),
        }
        slurmdbd = {
            **common,
            "DbdHost": "localhost",
            "DbdPort": port,
            "PidFile": "/run/reference-slurmdbd.pid",
            "StorageType": "accounting_storage/mysql",
            "StorageUser": "slurm",
        }
        slurm = {  # for sacctmgr
            **common,
            "ClusterName": "reference",
            "SlurmctldHost": "localhost",
            "AccountingStorageType": "accounting_storage/slurmdbd",
            "AccountingStoragePort": port,
        }
        OWN.mkdir(exist_ok=True)
        for name, options in (("slurmdbd.conf", slurmdbd), ("slurm.conf", slurm)):
            path = OWN / name
            path.write_text("".join(f"{key}={value}\n" for key, value in options.items()))
            path.chmod(0o600)
            os.chown(path, *owner)
        if (CONF / "slurm.key").exists():
            (OWN / "slurm.key").symlink_to(CONF / "slurm.key")
        _LOGS.mkdir(exist_ok=True)
        self._log = _LOGS / "slurmdbd.log"
        self._where = [] if here else THERE
        self._environment = {**os.environ, "SLURM_CONF": str(OWN / "slurm.conf")}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*self._where, "slurmdbd", "-D", "-v"],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def wait(self) -> None:
        """Wait until it answers."""
        pid = self._process.pid
        wait_until(lambda: self._process.poll() is not None or listens(pid), _START)
        if not listens(pid):
            raise RigError("slurmdbd: " + self._log.read_text("latin-1")[-2000:])

    def add(self, kind: str, *names: str) -> None:
        """Add to the accounting database, as an administrator does; existing objects stay."""
        if names:
            command = [*self._where, "sacctmgr", "--immediate", "add", kind, ",".join(names)]
            done = subprocess.run(
                command, env=self._environment, capture_output=True, text=True, check=False
            )
            if done.returncode and "already exist" not in done.stdout + done.stderr:
                print(" ".join(command), done.stdout, done.stderr, file=sys.stderr)

    def stop(self) -> None:
        """Stop it in good order."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(_START)


def prepare() -> None:
    """Create the accounting database, so that each case starts with slurmdbd's tables in place."""
    DATA.mkdir(parents=True)
    shutil.chown(DATA, "mysql", "mysql")
    install = [
        "mariadb-install-db",
        "--no-defaults",
        "--user=mysql",
        f"--datadir={DATA}",
        "--skip-test-db",
    ]
    subprocess.run([*install, "--innodb-log-file-size=32M"], check=True, stdout=subprocess.DEVNULL)
    start_munge()
    # Images are built in the network of the machine, perhaps several at the same time.
    mariadb = MariaDB(_free_port())
    mariadb.wait()
    mariadb.create("slurm_acct_db")
    slurmdbd = Slurmdbd(_free_port(), {}, "root")
    slurmdbd.wait()
    slurmdbd.stop()
    mariadb.stop()


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("", 0))
        return int(server.getsockname()[1])
