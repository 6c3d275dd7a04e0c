"""Turn a plan and its machines into Ansible's inventory and ssh's configuration. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.plan import DAEMONS, Plan

# The interpreter of programs on the hosts.
PYTHON = "/usr/bin/python3"


@dataclass(frozen=True, slots=True)
class Machine:
    """A host that is up.

    SSH answers at `address` and `port`; None leaves them to the user's own ssh configuration.
    `proxy` is a command that connects its standard input and output to SSH on the host.
    """

    name: str
    address: str | None
    port: int | None
    user: str | None = "root"
    key: str | None = None
    proxy: str | None = None


def inventory(plan: Plan, machines: Sequence[Machine]) -> dict[str, Any]:
    """Return Ansible's inventory.

    It has a group DAEMON_hosts for each daemon, and `accounting_client` for the host of sacctmgr.
    That host is also in `late_accounting_client` if objects have to wait for the controllers.
    `reservation_clients` create the reservations of their cluster. Names of groups have an
    underscore, so that no host can have the name of a group.
    """
    up = {machine.name for machine in machines}
    groups = {f"{daemon}_hosts": plan.with_daemon(daemon) for daemon in DAEMONS}
    groups["accounting_client"] = tuple(filter(None, [plan.accounting_client()]))
    groups["late_accounting_client"] = (
        groups["accounting_client"] if plan.has_late_objects() else ()
    )
    groups["reservation_clients"] = plan.with_reservations()
    return {
        "all": {
            "hosts": {machine.name: {} for machine in machines},
            "vars": {
                "ansible_python_interpreter": PYTHON,
                **({} if plan.capabilities.root else {"ansible_become": True}),
            },
            "children": {
                group: {"hosts": {host.name: {} for host in hosts if host.name in up}}
                for group, hosts in groups.items()
            },
        }
    }


def ssh_config(
    machines: Sequence[Machine], key: Path, known_hosts: Path, sockets: Path, more: Path
) -> str:
    """Return a configuration with which ssh(1) reaches hosts by name, over one connection each.

    The files in `more` are for hosts that come and go.
    """
    lines = [
        f'Include "{more}/*"',
        "Host *",
        f'    IdentityFile "{key}"',
        "    IdentitiesOnly yes",
        f'    UserKnownHostsFile "{known_hosts}"',
        "    GlobalKnownHostsFile /dev/null",
        "    HostKeyAlias harness",
        # This key exchange takes OpenSSH 9.2 seven times the CPU time of all else in a connection.
        "    KexAlgorithms -sntrup*",
        *_unattended(sockets, alive=15),
    ]
    return "\n".join(lines) + "\n" + "".join(map(ssh_host, machines))


def own_ssh_config(machines: Sequence[Machine], sockets: Path | None, own: str) -> str:
    """Return a configuration for existing machines that includes the user's `own` and the system's.

    Settings for a machine's address apply as well. Without `sockets`, connections are not shared.
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
    """Return the options for ssh(1) without a terminal.

    ssh gives up on a host after three times `alive` seconds of silence. ConnectTimeout includes the
    time that sshd needs to start and to greet, which takes long where CPUs are busy.
    """
    shared = ["    ControlMaster auto", f'    ControlPath "{sockets}/%C"', "    ControlPersist 60"]
    return [
        "    StrictHostKeyChecking yes",
        "    BatchMode yes",
        "    ConnectTimeout 30",
        f"    ServerAliveInterval {alive}",
        "    LogLevel ERROR",
        *(shared if sockets else ["    ControlPath none"]),
    ]


def ssh_host(machine: Machine) -> str:
    """Return the part of an ssh configuration for one host."""
    key = machine.key and f'"{machine.key}"'
    facts = {
        "HostName": machine.address,
        "Port": machine.port,
        "User": machine.user,
        "IdentityFile": key,
        "ProxyCommand": machine.proxy and machine.proxy.replace("%", "%%"),
    }
    return f"Host {machine.name}\n" + "".join(
        f"    {name} {value}\n" for name, value in facts.items() if value
    )
