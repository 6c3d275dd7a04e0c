"""Packet filters: what a fault in the network is made of, and what a gateway lets through. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from ipaddress import IPv4Network

from harness import options
from harness.plan import Plan
from harness.providers import Drop


def rules(drops: Sequence[Drop], addresses: Mapping[str, str], first: str = "") -> str:
    """Return nft(8)'s commands for what a host drops, instead of what it dropped so far; `first` comes before."""
    dropped = [
        "".join(
            [
                f"ip saddr {addresses[drop.source]} " if drop.source else "",
                f"meta l4proto {{ tcp, udp }} th dport {drop.port} " if drop.port else "",
                "drop",
            ]
        )
        for drop in drops
        if drop.source is None or drop.source in addresses  # a host that does not exist yet says nothing
    ]
    fresh = "add table inet faults\ndelete table inet faults\n"
    if not dropped:
        return fresh
    chain = "\n".join(["type filter hook input priority -10", *filter(None, [first]), *dropped])
    return f"{fresh}table inet faults {{\nchain input {{\n{chain}\n}}\n}}\n"


def between_sites(plan: Plan, addresses: Mapping[str, str]) -> str:
    """Return nft(8)'s commands for a gateway that lets through what the hosts of other sites may ask a host for."""
    open_ports = [
        f"ip daddr {addresses[host.name]} tcp dport {{ {', '.join(map(_range, host.ports))} }} accept"
        for host in plan.hosts
    ]
    chain = "\n".join(
        [
            "type filter hook forward priority filter; policy drop;",
            "ct state established,related accept",
            "meta l4proto icmp accept",
            *open_ports,
            "ct state new counter reject with tcp reset",
        ]
    )
    return f"flush ruleset\ntable inet sites {{\nchain forward {{\n{chain}\n}}\n}}\n"


def only_hosts(sites: Iterable[IPv4Network]) -> str:
    """Return nft(8)'s commands for a host that reaches the subnets of its run's sites, and is reached from there only.

    The first address of each is the machine's, under which it has its other services, too: from there only SSH comes
    in, and nothing new goes there. Nothing goes to Docker's name server, which would ask others. No rule needs the
    kernel to keep track of connections.
    """
    sites = list(sites)
    subnets, machine = ", ".join(map(str, sites)), ", ".join(str(subnet[1]) for subnet in sites)
    return f"""\
table inet only_hosts {{
    chain input {{
        type filter hook input priority filter; policy drop;
        iifname "lo" accept
        ip saddr {{ {machine} }} tcp dport 22 accept
        ip saddr {{ {machine} }} drop
        ip saddr {{ {subnets} }} accept
    }}
    chain output {{
        type filter hook output priority filter; policy drop;
        ip daddr 127.0.0.11 reject
        oifname "lo" accept
        ip daddr {{ {machine} }} tcp sport 22 tcp flags & (syn | ack) != syn accept
        ip daddr {{ {machine} }} reject
        ip daddr {{ {subnets} }} accept
        reject
    }}
}}
"""


def _range(text: str) -> str:
    """Write a port, or a range of ports; ValueError if it is none."""
    found = options.ports(text)
    return str(found[0]) if len(found) == 1 else f"{found[0]}-{found[-1]}"
