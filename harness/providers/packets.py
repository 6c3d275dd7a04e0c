"""Packet filters: what a fault in the network is made of, and what a gateway lets through. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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


def _range(text: str) -> str:
    """Write a port, or a range of ports; ValueError if it is none."""
    found = options.ports(text)
    return str(found[0]) if len(found) == 1 else f"{found[0]}-{found[-1]}"
