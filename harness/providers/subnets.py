"""Subnets for the networks of runs, and the addresses of hosts in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from harness.errors import EngineError
from harness.plan import Plan

# The range of subnets for scenarios that name none: RFC 2544 reserves it for tests in a laboratory.
RANGE = IPv4Network("198.18.0.0/15")
# The first address belongs to this machine, the second to the gateway between sites.
GATEWAY, FIRST_HOST = 2, 10


def free(size: int, taken: Iterable[IPv4Network] = ()) -> Iterator[IPv4Network]:
    """Yield subnets of `size` or more addresses, neither in `taken` nor routed by this machine."""
    used = [*taken, *routes()]
    for subnet in RANGE.subnets(new_prefix=min(24, 32 - size.bit_length())):
        if not any(subnet.overlaps(other) for other in used):
            yield subnet


def for_site(
    plan: Plan, site: str, more: int = 0, taken: Iterable[IPv4Network] = ()
) -> Iterator[IPv4Network]:
    """Yield the subnet that the scenario names for a site, or else free subnets of its size.

    `more` is the number of addresses needed besides those of the hosts. EngineError if no subnet is
    left.
    """
    size = sum(host.site == site for host in plan.hosts) + FIRST_HOST + 1 + more
    wanted = plan.scenario.sites[site].subnet
    if wanted and wanted.num_addresses < size + 1:
        raise EngineError(
            f"subnet {wanted} of site {site} is too small: {size + 1} addresses are needed"
        )
    yield from [wanted] if wanted else free(size, taken)
    if not wanted:
        raise EngineError(
            f"no free subnet for site {site} in {RANGE}",
            hint="`harness down --all` frees those of old runs",
        )


def addresses(plan: Plan, sites: Mapping[str, IPv4Network]) -> dict[str, str]:
    """Return the address of each host at some sites, including hosts that are not up yet."""
    left = {site: map(str, _for_hosts(subnet)) for site, subnet in sites.items()}
    return {host.name: next(left[host.site]) for host in plan.hosts if host.site in left}


def _for_hosts(subnet: IPv4Network) -> Iterator[IPv4Address]:
    return (subnet[number] for number in range(FIRST_HOST, subnet.num_addresses - 1))


def routes(table: Path = Path("/proc/net/route")) -> list[IPv4Network]:
    """Return the subnets that this machine has routes to, except the default: proc_pid_net(5)."""
    if not table.exists():
        return []
    subnets = []
    for line in table.read_text().splitlines()[1:]:
        _, destination, _, _, _, _, _, mask, *_ = line.split()
        address, netmask = (
            IPv4Address(int.from_bytes(bytes.fromhex(word), "little"))
            for word in (destination, mask)
        )
        subnets.append(IPv4Network(f"{address}/{netmask}"))
    return [subnet for subnet in subnets if subnet.prefixlen > 0]
