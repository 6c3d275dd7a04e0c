"""Slurm's hostlist expressions: c[1-3,7] stands for c1, c2, c3 and c7."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

# ClusterShell accepts more than Slurm does (groups, steps, set operators), so the characters come first.
_NAME = r"[A-Za-z0-9._-]"
_RANGES = r"\[\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*\]"
_EXPRESSION = re.compile(rf"{_NAME}*(?:{_RANGES}{_NAME}*)*")
_OUTSIDE_COMMA = re.compile(r",(?![^\[]*\])")


def expand(hostlist: str) -> tuple[str, ...]:
    """Return the names that a hostlist stands for, in its order; ValueError says what is wrong with it.

    >>> expand("c[1-2],login")
    ('c1', 'c2', 'login')
    """
    names: list[str] = []
    for part in _OUTSIDE_COMMA.split(hostlist):
        if not part or not _EXPRESSION.fullmatch(part) or part[0] in ".-":
            raise ValueError(f'"{part or hostlist}" is not a hostlist such as c[1-4] or c1,c2')
        try:
            names.extend(NodeSet(part, resolver=RESOLVER_NOGROUP))
        except NodeSetException as error:
            raise ValueError(f'"{part}" is not a hostlist: {error}') from error
    return tuple(names)


def fold(names: Iterable[str]) -> str:
    """Return the shortest hostlist for names.

    >>> fold(["c1", "c2", "c4"])
    'c[1-2,4]'
    """
    return str(NodeSet.fromlist(list(names), resolver=RESOLVER_NOGROUP))
