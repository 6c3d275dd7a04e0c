"""The verdict on a case: create the files it needs, start the daemon, and see what it decides."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import time
from collections.abc import Callable
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from inside.conf import CONF, Conf, expand
from inside.files import PLUGINS, furnish
from inside.network import Network, split_host
from inside.services import MariaDB, RigError, Slurmdbd, listens, start_munge, wait_until

_PATIENCE = 90.0  # seconds in which a daemon starts or refuses
_SETTLE = 6  # looks at which all threads of a daemon sleep once they have read their options
_SPINS = 3.0  # seconds of CPU time after which a thread that never sleeps is no longer waited for
_LOG = Path("/var/log/reference/daemon.log")
_PROBLEM = re.compile(r"^(?:\S+: )?(?:\[[^]]*\] )?((?:fatal|error|warning): .*)$", re.MULTILINE)
# What every first start logs, before there is any state to recover, and what a busy machine causes.
_NOT_ITS_FAULT = re.compile(
    r"state file |NOTE: Trying backup|NOTE: .* may be lost|High latency for"
)
# The daemon waits a minute for a file, or for ever for a slurmdbd that does not accept it.
_HOPELESS = re.compile(
    r"retrying in 1sec up to 60sec|Sending PersistInit msg: Protocol authentication error"
)
_NEEDS_CGROUPS = re.compile(r"unable to create \w+ (cgroup )?namespace")


class Daemon:
    """A daemon that reads the configuration of a case."""

    def __init__(self, *command: str) -> None:
        _LOG.parent.mkdir(exist_ok=True)
        with _LOG.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    @property
    def log(self) -> str:
        """What it has logged so far."""
        return _LOG.read_text("latin-1")

    @property
    def exit_code(self) -> int | None:
        """Its exit code, or None while it runs."""
        return self._process.poll()

    @property
    def refuses(self) -> bool:
        """Whether it has ended, or waits for something that cannot happen."""
        return self.exit_code is not None or bool(_HOPELESS.search(self.log))

    def listens(self) -> bool:
        """Return whether it accepts connections."""
        return listens(self._process.pid)

    def reaches(self, line: str, answers: Callable[[], bool]) -> bool:
        """Wait for a log line (a regular expression), then an answer; return whether both came."""
        if not self._comes(lambda: bool(re.search(line, self.log))) or not self._comes(answers):
            return False
        self._settle()
        return self.exit_code is None

    def _comes(self, sign: Callable[[], bool]) -> bool:
        came = False

        def comes() -> bool:
            nonlocal came
            came = sign()
            return came or self.refuses

        wait_until(comes, _PATIENCE)
        return came and not self.refuses

    def _settle(self) -> None:
        """Wait until all its threads have slept for a while: they have read their options.

        A thread that never sleeps (that of jobcomp/kafka with a poll_interval of 0) has, too, once
        it has used a lot of CPU time.
        """
        looks, spins = 0, self._cpu_time() + _SPINS

        def settled() -> bool:
            nonlocal looks
            looks = looks + 1 if self._sleeps() else 0
            return self.exit_code is not None or looks > _SETTLE or self._cpu_time() > spins

        wait_until(settled, _PATIENCE)

    def _cpu_time(self) -> float:
        try:
            stat = Path(f"/proc/{self._process.pid}/stat").read_text("latin-1")
        except OSError:  # it has ended
            return 0.0
        user, system = stat.rpartition(")")[2].split()[11:13]  # proc_pid_stat(5)
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def _sleeps(self) -> bool:
        states = set()
        for thread in Path(f"/proc/{self._process.pid}/task").glob("*/stat"):
            with suppress(OSError):  # the thread has ended
                states.add(thread.read_text("latin-1").rpartition(")")[2].split()[0])
        return states <= {"S", "I"}

    def verdict(self, started: bool) -> dict[str, Any]:
        """Return the verdict on what it did."""
        problems = [
            problem for problem in _PROBLEM.findall(self.log) if not _NOT_ITS_FAULT.search(problem)
        ]
        fatal = [problem for problem in problems if problem.startswith("fatal: ")] or problems[-1:]
        return {
            "started": started,
            "exit_code": self.exit_code,
            "timed_out": not started and not self.refuses,
            "fatal": None if started else "".join(fatal[:1]),
            "problems": problems,
            "log_tail": "" if started else self.log[-3000:],
        }


def verdict(case: dict[str, Any]) -> dict[str, Any]:
    """Return the verdict on a case: its files, the daemon, and the daemon's host or None."""
    if CONF.exists():  # packages may come without it
        shutil.rmtree(CONF)
    for name, text in case["files"].items():
        path = CONF / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "latin-1")
    run = {"slurmctld": _slurmctld, "slurmd": _slurmd, "slurmdbd": _slurmdbd}[case["daemon"]]
    result = run(case["hostname"])
    return {**result, **_shown()} if case["shows"] and result["started"] else result


def _slurmctld(hostname: str | None) -> dict[str, Any]:
    conf = Conf(CONF / "slurm.conf")
    name, address = split_host(
        (conf.all("slurmctldhost") or conf.items("controlmachine") or [""])[0]
    )
    network = Network(
        conf, hostname, name, address, conf.get("controladdr"), conf.get("slurmctldaddr")
    )
    network.build()
    furnish(conf)
    start_munge()
    _start_accounting(conf, network)

    daemon = Daemon("/usr/sbin/slurmctld", "-D", "-vv", "-f", str(CONF / "slurm.conf"))
    return daemon.verdict(
        daemon.reaches("Running as primary controller", lambda: _answers(daemon.listens))
    )


def _shown() -> dict[str, str]:
    return {
        "config": _show("config"),
        "node": _show("node"),
        "partition": _show("partition"),
        "metrics": _metrics(),
    }


def _show(what: str) -> str:
    """Return what scontrol shows; ask again if slurmctld answers too late."""
    began = time.monotonic()
    while True:
        done = _run("scontrol", "--all", "--oneliner", "show", what)
        if "timed out" not in done.stderr or time.monotonic() - began > _PATIENCE:
            return done.stdout


def _metrics() -> list[int]:
    """Return the status of a request for metrics without a token, and of one with root's token.

    There is none without MetricsType, or if slurmctld does not speak HTTP.
    """
    conf = Conf(CONF / "slurm.conf")
    if not conf.get("metricstype"):
        return []
    host, _ = split_host((conf.all("slurmctldhost") or [""])[0])
    token = _run("scontrol", "token", "username=root").stdout.strip().removeprefix("SLURM_JWT=")
    statuses = []
    for headers in ({}, {"Authorization": f"Bearer {token}"}):
        connection = HTTPConnection(host, conf.port("slurmctldport", 6817), timeout=_PATIENCE)
        with suppress(OSError, HTTPException), closing(connection):
            connection.request("GET", "/metrics/jobs", headers=headers)
            statuses.append(connection.getresponse().status)
    return statuses


def _answers(listens: Callable[[], bool]) -> bool:
    """Return whether slurmctld listens; if so, a command has got its answer, or never will.

    No command can authenticate, or reach slurmctld with MessageTimeout=0, or without IPv4, which is
    all that the rig has.
    """
    if not listens():
        return False
    _run("scontrol", "ping")
    return True


def _slurmd(hostname: str | None) -> dict[str, Any]:
    conf = Conf(CONF / "slurm.conf")
    node = hostname or _first_node(conf)
    Network(conf, node, node).build()
    files = furnish(conf)
    values = Conf(CONF / "gres.conf").all("file", "multiplefiles")
    for number, path in enumerate(name for value in values for name in expand(value)):
        if path.startswith("/"):
            with suppress(OSError):  # an impossible path stays missing; an existing file stays
                files.parent(Path(path))
                os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(195, number))
    _choose_cgroups()
    start_munge()
    who = [] if hostname else ["-N", node]
    daemon = Daemon("/usr/sbin/slurmd", "-D", "-vv", *who, "-f", str(CONF / "slurm.conf"))
    # Without slurmctld, it goes on trying to register.
    started = daemon.reaches("slurmd started on ", lambda: True)
    if not started and _NEEDS_CGROUPS.search(daemon.log):
        raise RigError("the configuration needs cgroups, which the container lacks")
    return daemon.verdict(started)


def _choose_cgroups() -> None:
    """Choose cgroup/v1, unless the case chooses, because that starts without any cgroups."""
    path = CONF / "cgroup.conf"
    if (PLUGINS / "cgroup_v1.so").exists() and not Conf(path).get("cgroupplugin"):
        with path.open("a") as file:
            file.write("\nCgroupPlugin=cgroup/v1\n")


def _first_node(conf: Conf) -> str:
    """Return the first node that has a host, or "node" if there is none."""
    name = ""
    nodes: dict[str, str] = {}
    for key, value in conf.pairs:
        if key in {"nodename", "partitionname", "nodeset", "downnodes"}:
            name = next(expand(value), "") if key == "nodename" and value != "DEFAULT" else ""
        if name:
            nodes.setdefault(name, "")
            if key == "state":
                nodes[name] = value.upper()
    return next(
        (n for n, state in nodes.items() if not state.startswith(("CLOUD", "FUTURE"))), "node"
    )


def _start_accounting(conf: Conf, network: Network) -> None:
    """Start what slurmctld needs: slurmdbd with its objects, and MariaDB for jobcomp/mysql."""
    # Up to 21.08 DefaultStorage... stands in for each AccountingStorage... that is missing.
    kind, host = (
        conf.get(f"accountingstorage{part}", conf.get(f"defaultstorage{part}"))
        for part in ("type", "host")
    )
    wants_slurmdbd = kind.endswith("slurmdbd")
    wants_jobcomp = conf.get("jobcomptype").endswith("mysql")
    if not wants_slurmdbd and not wants_jobcomp:
        return
    mariadb = MariaDB(
        conf.port("jobcompport", 3306), network.is_here(conf.get("jobcomphost", "localhost"))
    )
    mariadb.wait()
    if wants_jobcomp:
        mariadb.create(_database(conf.get("jobcomploc"), "slurm_jobcomp_db"))
    if not wants_slurmdbd:
        return
    slurmdbd = Slurmdbd(
        port=conf.port("accountingstorageport", conf.port("defaultstorageport", 6819)),
        auth={
            key: conf.get(key.lower()) for key in ("AuthType", "AuthInfo") if conf.get(key.lower())
        },
        user=split_host(conf.get("slurmuser", "root"))[0],
        here=network.is_here(host or "localhost"),
    )
    slurmdbd.wait()
    slurmdbd.add("cluster", conf.get("clustername", "cluster").lower())
    for what, keys in (
        ("qos", ("qos", "allowqos", "denyqos")),
        ("account", ("allowaccounts", "denyaccounts")),
    ):
        slurmdbd.add(
            what, *sorted({name.lower() for name in conf.items(*keys)} - {"all", "normal", "root"})
        )


def _slurmdbd(hostname: str | None) -> dict[str, Any]:
    conf = Conf(CONF / "slurmdbd.conf")
    network = Network(conf, hostname, conf.get("dbdhost", "localhost"), conf.get("dbdaddr"))
    network.build()
    files = furnish(conf)
    for path in filter(Path.is_file, CONF.rglob("*")):  # it may be included
        files.file(path, mode=0o600)
    start_munge()
    mariadb = MariaDB(
        conf.port("storageport", 3306), network.is_here(conf.get("storagehost", "localhost"))
    )
    mariadb.wait()
    mariadb.create(_database(conf.get("storageloc"), "slurm_acct_db"))
    daemon = Daemon("/usr/sbin/slurmdbd", "-D", "-vv")
    return daemon.verdict(daemon.reaches(r"slurmdbd version \S+ started", daemon.listens))


def _database(name: str, default: str) -> str:
    """Return the database that a daemon uses: names with "." or "/" count as missing."""
    return default if re.search("[./]|^$", name) else name


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
