"""Find daemons that have failed although systemd has started them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from harness.cluster import logs
from harness.open_run import OpenRun
from harness.plan import Host

# The daemons that keep state. Each has a systemd unit of the same name.
_KEEP_STATE = ("slurmctld", "slurmdbd", "mariadb")


def failed_daemons(run: OpenRun, hosts: Sequence[str]) -> list[str]:
    """Return the failed controllers and databases on hosts, each with its last logged error.

    `systemctl start` may have succeeded: slurmctld reports to systemd that it is up before it reads
    its state (xsystemd_change_mainpid() in controller.c).
    """
    running = run.provider.hosts(run.directory.id)
    failed = [
        (host, daemon)
        for host in run.plan.hosts
        if host.name in hosts and running.get(host.name)
        for daemon in _failed_units(run, host)
    ]
    return [
        f"{daemon} on {host.name} failed: "
        f"{_last_error(logs.last_lines(run.ssh, run.plan, host, daemon, 200))}"
        for host, daemon in failed
    ]


def _failed_units(run: OpenRun, host: Host) -> list[str]:
    units = [daemon for daemon in _KEEP_STATE if daemon in host.daemons]
    if not units:
        return []
    states = run.ssh.run(host.name, ["systemctl", "is-failed", *units], check=False).stdout.split()
    return [unit for unit, state in zip(units, states, strict=False) if state == "failed"]


def _last_error(log: str) -> str:
    r"""Return the last fatal error in a log, or else the last error.

    >>> _last_error("[2026-11-22T23:40:02] error: a\n[2026-11-22T23:40:03] fatal: b\nerror: c")
    'fatal: b'
    """
    for word in ("fatal", "error"):
        if errors := re.findall(rf"\b{word}: .*", log, re.IGNORECASE):
            return str(errors[-1])
    return "no error in its log"
