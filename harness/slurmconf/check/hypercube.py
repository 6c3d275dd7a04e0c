"""topology.conf of topology/hypercube, which Slurm had until 23.02 (topology_hypercube.c)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from harness.slurmconf.check.findings import FATAL, Finding
from harness.slurmconf.check.nodes import no_hostlist
from harness.slurmconf.check.parsed_file import Row, Source

_NAME = re.compile("r([0-9]+)i([0-9]+)s([0-9]+)")
_LARGEST_NUMBER = 1023
_MOST_NODES, _MOST_LINKS = 256, 64


def check(source: Source, nodes: Collection[str] | None) -> Iterator[Finding]:
    """Yield what slurmctld refuses about the switches of a hypercube, and their links."""
    rows = source.rows("switchname")
    names = [row.first.value for row in rows]
    links: dict[str, list[str]] = {}
    if not rows:
        message = "there is no switch: slurmctld crashes"
        yield source.find_here(FATAL, "missing", "SwitchName", message)
    for row in rows:
        name = row.first.value
        if name in links:
            message = f"switch {name} is already defined"
            yield source.find(row.first, FATAL, "twice", message)
        if not row.get("nodes") and not row.get("switches"):
            message = f"switch {name} has neither switches nor nodes"
            yield source.find(row.first, source.release.unusable_value, "missing", message)
        numbers = _NAME.fullmatch(name)
        if not numbers or any(int(part[:9]) > _LARGEST_NUMBER for part in numbers.groups()):
            message = f'"{name}" is not a place such as r0i1s2, up to {_LARGEST_NUMBER} each'
            yield source.find(row.first, FATAL, "value", message)
        yield from _nodes(source, row, nodes)
        links[name], problem = _links(row.get("switches") or "", names)
        if problem or not links[name]:
            about = row.own.get("switches") or row.first
            message = problem or f"switch {name} has no link (_resize_switch_connections)"
            yield source.find(about, FATAL, "value", message)
    if rows and (apart := [name for name in names if name not in _reached(links)]):
        message = f"no link leads to {apart[0]} (_find_new_switches)"
        yield source.find(rows[0].first, FATAL, "undefined", message)


def _nodes(source: Source, row: Row, nodes: Collection[str] | None) -> Iterator[Finding]:
    """Check the nodes of a switch, which are also read without brackets."""
    setting = row.own.get("nodes")
    if setting is None:
        return
    if problem := no_hostlist(setting.value, source.release):
        yield source.find(setting, FATAL, "hostlist", problem)
        return
    # strtok() with " ,", and from the second name on with " ,.-".
    first, *others = [*re.split("[ ,]+", setting.value.strip(" ,"), maxsplit=1), ""][:2]
    words = [first, *filter(None, re.split("[ ,.-]+", others[0]))]
    unknown = [word for word in words if word and nodes is not None and word not in nodes]
    if unknown:
        message = f'there is no node "{unknown[0]}"; name each node'
        yield source.find(setting, FATAL, "undefined", message)
    elif len(words) > _MOST_NODES:
        yield source.find(setting, FATAL, "count", f"more than {_MOST_NODES} nodes")


def _links(switches: str, names: Collection[str]) -> tuple[list[str], str]:
    """Return the switches in a list of links, and what is wrong with the list.

    Each has a speed, as in "r0i0s1-4": without one at its end, slurmctld crashes.
    """
    words = [word for word in re.split("[,-]+", switches) if word]
    links: list[str] = []
    while words:
        name = words.pop(0)
        if len(links) == _MOST_LINKS:
            return links, f"more than {_MOST_LINKS} links"
        if name not in names:
            return links, f"there is no switch {name}"
        links.append(name)
        if not words:
            return links, f"{name} has no speed: slurmctld crashes"
        speed = re.match("[0-9]+", words[0])
        if speed:
            words.pop(0)
            if not int(speed[0][:9]):
                return links, f"the speed of {name} is 0"
    return links, ""


def _reached(links: dict[str, list[str]]) -> set[str]:
    """Return the switches to which links lead from the first one that has the most."""
    reached: set[str] = set()
    left = [max(links, key=lambda name: len(links[name]))]
    while left:
        name = left.pop()
        if name not in reached:
            reached.add(name)
            left += links[name]
    return reached
