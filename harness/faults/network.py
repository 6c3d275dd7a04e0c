"""Faults of the network: hosts and sites cut off, blocked ports, unknown names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from harness import interrupts
from harness.faults.model import PLACE, PORT, Fault, Kind
from harness.faults.notes import noted_in
from harness.open_run import OpenRun
from harness.providers import CanPartition, Drop, ability


def _set_filters(run: OpenRun, fault: Fault) -> None:
    """Make the hosts that a fault affects drop packets as all noted faults require."""
    _filter(run, fault, noted_in(run.directory))


def _unset_filters(run: OpenRun, fault: Fault) -> None:
    """Make the hosts that a fault affects drop packets as the other noted faults require."""
    _filter(run, fault, [other for other in noted_in(run.directory) if other != fault])


def _filter(run: OpenRun, fault: Fault, faults: Sequence[Fault]) -> None:
    provider = ability(run.provider, CanPartition, str(fault))
    affected = {host for host, _ in _drops(run, fault)}
    drops = _all_drops(run, faults)
    running = provider.hosts(run.directory.id)
    # Otherwise a signal could leave a thread that sets a filter while the fault is being healed.
    with interrupts.deferred(), ThreadPoolExecutor(8) as pool:
        up = [host for host in affected if running.get(host)]
        list(pool.map(lambda host: provider.drop(run.directory.id, host, drops[host]), up))


def set_filter(run: OpenRun, host: str) -> None:
    """Make a host drop packets as all noted faults require, if it runs."""
    if isinstance(run.provider, CanPartition) and run.provider.hosts(run.directory.id).get(host):
        drops = _all_drops(run, noted_in(run.directory))
        run.provider.drop(run.directory.id, host, drops[host])


def _all_drops(run: OpenRun, faults: Sequence[Fault]) -> defaultdict[str, list[Drop]]:
    """Return the packets that each host must drop for several faults."""
    drops: defaultdict[str, list[Drop]] = defaultdict(list)
    for fault in faults:
        for host, drop in _drops(run, fault):
            drops[host].append(drop)
    return drops


def _drops(run: OpenRun, fault: Fault) -> Iterator[tuple[str, Drop]]:
    """Yield the hosts that must drop packets for a fault, and which packets."""
    if fault.kind == "block-port":
        yield fault.on, Drop(port=int(fault.argument))
    elif fault.kind in {"cut", "cut-one-way"}:
        for host in _hosts(run, fault.on):
            for other in _hosts(run, fault.argument):
                yield other, Drop(source=host)
                if fault.kind == "cut":
                    yield host, Drop(source=other)


def _hosts(run: OpenRun, name: str) -> list[str]:
    """Return the hosts of a site, or the single host of that name."""
    return [host.name for host in run.plan.hosts if name in {host.site, host.name}]


KINDS = {
    "cut": Kind(
        "two hosts or sites cannot reach each other",
        _set_filters,
        _unset_filters,
        PLACE,
        CanPartition,
    ),
    "cut-one-way": Kind(
        "the second host or site receives nothing from the first",
        _set_filters,
        _unset_filters,
        PLACE,
        CanPartition,
    ),
    "block-port": Kind(
        "a host receives nothing on a port", _set_filters, _unset_filters, PORT, CanPartition
    ),
    "forget-names": Kind(
        "a host cannot resolve the names of other hosts",
        "for file in /etc/hosts /etc/resolv.conf; do"
        ' [ ! -e $file ] || { cp $file "$aside" && : > $file; } || exit 1; done',
        'for copy in "$aside/hosts" "$aside/resolv.conf"; do'
        ' [ ! -e "$copy" ] || cat "$copy" > "/etc/${copy##*/}"; done',
    ),
}
