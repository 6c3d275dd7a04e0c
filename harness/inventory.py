"""Turn a plan and its machines into what Ansible and SSH need to reach them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.plan import DAEMONS, Plan

# With what programs run on the hosts.
PYTHON = "/usr/bin/python3"


@dataclass(frozen=True, slots=True)
class Machine:
    """A host that is up: `address` and `port` are where SSH answers; None leaves it to the user's own configuration.

    `proxy` is a command that connects its standard input and output with SSH on the host.
    """

    name: str
    address: str | None
    port: int | None
    user: str | None = "root"
    key: str | None = None
    proxy: str | None = None


def inventory(plan: Plan, machines: Sequence[Machine]) -> dict[str, Any]:
    """Return Ansible's inventory: a group DAEMON_hosts for each daemon, and `accounting_client` for sacctmgr's host.

    That is in `late_accounting_client`, too, if it has something to do when the controllers are up. No host can have a
    group's name, because host names have no underscore.
    """
    up = {machine.name for machine in machines}
    groups = {f"{daemon}_hosts": plan.with_daemon(daemon) for daemon in DAEMONS}
    groups["accounting_client"] = tuple(filter(None, [plan.accounting_client()]))
    groups["late_accounting_client"] = groups["accounting_client"] if plan.has_late_objects() else ()
    return {
        "all": {
            "hosts": {machine.name: {} for machine in machines},
            "vars": {
                "ansible_python_interpreter": PYTHON,
                **({} if plan.offers.root else {"ansible_become": True}),
            },
            "children": {
                group: {"hosts": {host.name: {} for host in hosts if host.name in up}}
                for group, hosts in groups.items()
            },
        }
    }


def ssh_config(machines: Sequence[Machine], key: Path, known_hosts: Path, sockets: Path, more: Path) -> str:
    """Return a configuration for ssh(1) with which every host is reached by its name, over one shared connection.

    Files in `more` are for hosts that come and go.
    """
    lines = [
        f'Include "{more}/*"',
        "Host *",
        f'    IdentityFile "{key}"',
        "    IdentitiesOnly yes",
        f'    UserKnownHostsFile "{known_hosts}"',
        "    GlobalKnownHostsFile /dev/null",
        "    HostKeyAlias harness",
        *_unattended(sockets, alive=15),
    ]
    return "\n".join(lines) + "\n" + "".join(map(ssh_host, machines))


def own_ssh_config(machines: Sequence[Machine], sockets: Path | None, own: str) -> str:
    """Return such a configuration for machines that the user reaches already, as `own` and the system's own file say.

    What they say of a machine's address counts, too. Without `sockets` connections are not shared.
    """
    lines = [
        "Host *",
        *_unattended(sockets, alive=5),
        f'Include "{own}"',
        "Include /etc/ssh/ssh_config",
        "Match final all",
    ]
    return "".join(map(ssh_host, machines)) + "\n".join(lines) + "\n"


def _unattended(sockets: Path | None, alive: int) -> list[str]:
    """Return what keeps ssh(1) from asking; it gives a host up that said nothing for three times `alive` seconds."""
    shared = ["    ControlMaster auto", f'    ControlPath "{sockets}/%C"', "    ControlPersist 60"]
    return [
        "    StrictHostKeyChecking yes",
        "    BatchMode yes",
        "    ConnectTimeout 5",
        f"    ServerAliveInterval {alive}",
        "    LogLevel ERROR",
        *(shared if sockets else ["    ControlPath none"]),
    ]


def ssh_host(machine: Machine) -> str:
    """Return the part of such a configuration that is for one host."""
    key = machine.key and f'"{machine.key}"'
    facts = {
        "HostName": machine.address,
        "Port": machine.port,
        "User": machine.user,
        "IdentityFile": key,
        "ProxyCommand": machine.proxy and machine.proxy.replace("%", "%%"),
    }
    return f"Host {machine.name}\n" + "".join(f"    {name} {value}\n" for name, value in facts.items() if value)
