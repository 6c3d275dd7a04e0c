"""The network around a daemon: its own host, and one that stands in for all other hosts."""

from __future__ import annotations

import ipaddress
import re
import socket
import subprocess
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from inside.conf import Conf, expand

# Two hosts, so that ports and refused connections behave as in a real cluster.
_HERE, _THERE = "198.19.255.1", "198.19.255.2"
_OTHERS = ipaddress.ip_network("198.18.0.0/16")
THERE = ["nsenter", "--net=/run/netns/others"]  # before a command that runs on the other host

_HOST = re.compile(r"\w[\w.-]{0,63}", re.ASCII)  # 64: the kernel's limit
_NODE_KEYS = ("nodename", "nodehostname", "nodeaddr", "frontendname", "frontendaddr")
_HOST_KEYS = (
    *(
        "slurmctldhost",
        "slurmctldaddr",
        "controlmachine",
        "controladdr",
        "backupcontroller",
        "backupaddr",
    ),
    *("accountingstoragehost", "accountingstoragebackuphost", "accountingstorageexternalhost"),
    *(
        "defaultstoragehost",
        "jobcomphost",
        "dbdhost",
        "dbdaddr",
        "dbdbackuphost",
        "storagehost",
        "storagebackuphost",
    ),
)


def split_host(value: str) -> tuple[str, str]:
    """Split `name(address)`; the address may be ""."""
    name, _, address = value.partition("(")
    return name.strip(), address.rstrip(") ")


class Network:
    """The daemon's host and all others that the configuration names.

    A name that no host can have, such as a template's placeholder, does not resolve, unless it is a
    node's: slurmctld waits seconds for an unknown node, and then starts anyway.
    """

    def __init__(self, conf: Conf, hostname: str | None, role: str, *own: str) -> None:
        """Use the host's own name, or the role's name in the configuration, and its aliases."""
        self._hostname = hostname or (role if _HOST.fullmatch(role) else "reference")
        self._own = {"localhost", "127.0.0.1", "::1", self._hostname, role, *own} - {""}
        nodes = (
            name
            for value in conf.all(*_NODE_KEYS)
            for name in islice(expand(value), _OTHERS.num_addresses)
            if name and name.upper() != "DEFAULT"
        )
        hosts = (
            name
            for value in conf.all(*_HOST_KEYS)
            for name in _names(value)
            if _HOST.fullmatch(name)
        )
        named = dict.fromkeys([*hosts, *nodes])
        self._others = [name for name in named if not self.is_here(name) and not _address(name)]

    def is_here(self, host: str) -> bool:
        """Return whether a host is the daemon's own."""
        return host in self._own

    def build(self) -> None:
        """Name and connect the hosts; addresses other than the daemon's are the other host's."""
        socket.sethostname(self._hostname)
        names = sorted(name for name in self._own if _HOST.fullmatch(name) and not _address(name))
        lines = ["127.0.0.1 localhost", "::1 localhost", f"{_HERE} {' '.join(names)}"]
        # Not zip(strict): surplus names get no address.
        lines += [f"{address} {name}" for address, name in zip(_OTHERS.hosts(), self._others)]  # noqa: B905
        Path("/etc/hosts").write_text("\n".join(lines) + "\n", "latin-1")

        own = [
            _HERE,
            *(
                name
                for name in self._own
                if _address(name) and not ipaddress.ip_address(name).is_loopback
            ),
        ]
        here = [
            "netns add others",
            "link set lo up",
            "link add others type veth peer name daemon netns others",
        ]
        here += [f"address add {address} dev others" for address in own]
        here += ["link set others up", f"route add default dev others src {_HERE}"]
        there = ["link set lo up", "link set daemon up", f"address add {_THERE}/32 dev daemon"]
        there += [f"route add {address} dev daemon" for address in own]
        there += ["route add local default dev lo table main"]
        _ip(here)
        _ip(there, "-netns", "others")


def _ip(commands: Iterable[str], *options: str) -> None:
    subprocess.run(
        ["ip", *options, "-batch", "-"], input="\n".join(commands), text=True, check=True
    )


def _names(value: str) -> list[str]:
    name, address = split_host(value)
    both = (
        host.partition(":")[0] for host in [*islice(expand(name), _OTHERS.num_addresses), address]
    )
    return [host for host in both if host and host.upper() != "DEFAULT"]


def _address(name: str) -> bool:
    try:
        return not ipaddress.ip_address(name).is_unspecified
    except ValueError:
        return False
