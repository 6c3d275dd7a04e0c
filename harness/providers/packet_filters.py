"""Packet filters for network faults, for gateways between sites, and for hosts. Pure: no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from ipaddress import IPv4Network

from harness import slurm_options
from harness.plan import Plan
from harness.providers import Drop


def rules(drops: Sequence[Drop], addresses: Mapping[str, str], first: str = "") -> str:
    """Return nft(8) commands that replace what a host drops, with the rule `first` in front."""
    dropped = [
        "".join(
            [
                f"ip saddr {addresses[drop.source]} " if drop.source else "",
                f"meta l4proto {{ tcp, udp }} th dport {drop.port} " if drop.port else "",
                "drop",
            ]
        )
        for drop in drops
        if drop.source is None
        or drop.source in addresses  # a host that does not exist yet sends nothing
    ]
    fresh = "add table inet faults\ndelete table inet faults\n"
    if not dropped:
        return fresh
    chain = "\n".join(["type filter hook input priority -10", *filter(None, [first]), *dropped])
    return f"{fresh}table inet faults {{\nchain input {{\n{chain}\n}}\n}}\n"


def between_sites(plan: Plan, addresses: Mapping[str, str]) -> str:
    """Return nft(8) commands for a gateway that lets through only the ports of each host."""
    ports_of = {host.name: ", ".join(map(_range, host.ports)) for host in plan.hosts}
    open_ports = [
        f"ip daddr {addresses[name]} tcp dport {{ {ports} }} accept"
        for name, ports in ports_of.items()
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
    """Return nft(8) commands that confine a host to the subnets of its run's sites.

    The first address of each subnet belongs to the machine, which has other services there: only
    SSH is accepted from it, and no new connections go to it. Docker's name server, which would
    forward queries, is blocked. No rule requires the kernel to track connections.
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
    """Return a port or a range of ports for nft(8); ValueError if it is neither."""
    ports = slurm_options.ports(text)
    return str(ports[0]) if len(ports) == 1 else f"{ports[0]}-{ports[-1]}"
