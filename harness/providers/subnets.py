"""Subnets for the networks of runs: free ones, and who has which address in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

# Where a subnet is looked for if a scenario names none: RFC 2544 keeps this range for tests in one laboratory.
RANGE = IPv4Network("198.18.0.0/15")
# The first belongs to this machine, the second to the gateway between sites.
GATEWAY, FIRST_HOST = 2, 10


def size_for(hosts: int) -> int:
    """Return how many addresses a subnet for so many hosts has to have, but for the last, which is no host's."""
    return hosts + FIRST_HOST + 1


def free(size: int, taken: Iterable[IPv4Network] = ()) -> Iterator[IPv4Network]:
    """Yield subnets of at least `size` addresses, none of which is in `taken` or has a route from this machine."""
    used = [*taken, *routes()]
    for subnet in RANGE.subnets(new_prefix=min(24, 32 - size.bit_length())):
        if not any(subnet.overlaps(other) for other in used):
            yield subnet


def hosts_in(subnet: IPv4Network) -> Iterator[IPv4Address]:
    """Yield the addresses of a subnet that hosts may have."""
    return (subnet[number] for number in range(FIRST_HOST, subnet.num_addresses - 1))


def routes(table: Path = Path("/proc/net/route")) -> list[IPv4Network]:
    """Return the subnets that this machine has routes to, but for the default route: see proc_pid_net(5)."""
    if not table.exists():
        return []
    found = []
    for line in table.read_text().splitlines()[1:]:
        _, destination, _, _, _, _, _, mask, *_ = line.split()
        address, netmask = (IPv4Address(int.from_bytes(bytes.fromhex(word), "little")) for word in (destination, mask))
        found.append(IPv4Network(f"{address}/{netmask}"))
    return [subnet for subnet in found if subnet.prefixlen > 0]
