"""All kinds of faults, and which of them a run supports.

A new family of faults is a module and an entry in KINDS.
"""

from __future__ import annotations

import re

from harness.errors import UsageError
from harness.faults import (
    clock,
    configuration,
    daemons,
    database,
    disk,
    federations,
    hosts,
    network,
)
from harness.faults.model import DAEMON, PLACE, PORT, SECONDS, USER, Fault, Kind
from harness.plan import DAEMONS, Plan
from harness.providers import Provider, ability

KINDS: dict[str, Kind] = {
    **daemons.KINDS,
    **hosts.KINDS,
    **network.KINDS,
    **clock.KINDS,
    **configuration.KINDS,
    **database.KINDS,
    **disk.KINDS,
    **federations.KINDS,
}
_NUMBERS = {PORT: "[1-9][0-9]{0,4}", SECONDS: "[+-]?[0-9]{1,9}"}
_LAST_PORT = 65535


def parse(plan: Plan, provider: Provider, text: str) -> Fault:
    """Read a fault as the command line takes it: "kill-daemon ctl slurmctld".

    UsageError as for `kind_of`.
    """
    words = text.split(maxsplit=2)
    if len(words) < 2:
        raise UsageError(f'"{text}" is not a fault', hint="for example: kill-daemon ctl slurmctld")
    fault = Fault(*words)
    kind_of(plan, provider, fault)
    return fault


def kind_of(plan: Plan, provider: Provider, fault: Fault) -> Kind:
    """Return the kind of a fault.

    UsageError if it is unknown or malformed, or this run does not support it.
    """
    kind = KINDS.get(fault.kind)
    if kind is None:
        raise UsageError(f'unknown fault "{fault.kind}"', hint=f"known: {', '.join(KINDS)}")
    if bool(kind.argument) != bool(fault.argument):
        problem = "unexpected argument" if fault.argument else f"{kind.argument} is missing"
        raise UsageError(f"{fault}: {problem}", hint=f"usage: {kind.usage(fault.kind)}")
    if kind.needs is not Provider:
        ability(provider, kind.needs, str(fault))
    _check_names(plan, fault, kind)
    if kind.argument == DAEMON:
        _check_daemon(plan, fault)
    if kind.argument == USER and fault.argument not in plan.scenario.users:
        raise UsageError(
            f"{fault}: no user {fault.argument}", hint=f"known: {', '.join(plan.scenario.users)}"
        )
    number = _NUMBERS.get(kind.argument)
    if number and not re.fullmatch(number, fault.argument):
        raise UsageError(
            f'{fault}: "{fault.argument}" is not a number', hint=f"usage: {kind.usage(fault.kind)}"
        )
    if kind.argument == PORT and int(fault.argument) > _LAST_PORT:
        raise UsageError(f"{fault}: {fault.argument} is not a port: the last one is {_LAST_PORT}")
    return kind


def _check_names(plan: Plan, fault: Fault, kind: Kind) -> None:
    """UsageError if the plan does not have a host, or site, that a fault names."""
    known = [host.name for host in plan.hosts]
    named = [fault.on]
    if kind.argument == PLACE:
        known += sorted(plan.sites())
        named.append(fault.argument)
    for name in named:
        if name not in known:
            kinds = "host or site" if kind.argument == PLACE else "host"
            raise UsageError(f"{fault}: no {kinds} {name}", hint=f"known: {', '.join(known)}")


def _check_daemon(plan: Plan, fault: Fault) -> None:
    """UsageError if a fault's host does not run its daemon."""
    host = plan.host(fault.on)
    possible = (*host.daemons, *(["slurmd"] if host.nodes else []))
    running = [daemon for daemon in DAEMONS if daemon in possible]
    if fault.argument.partition("@")[0] not in running:
        raise UsageError(
            f"{fault}: {fault.on} does not run {fault.argument}",
            hint=f"it runs {', '.join(running)}",
        )
