"""Slurm's hostlist expressions: c[1-3,7] stands for c1, c2, c3 and c7."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import groupby

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

# ClusterShell accepts more than Slurm does (groups, steps, set operators), so the characters come first.
_NAME = r"[A-Za-z0-9._-]"
_RANGES = r"\[\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*\]"
_EXPRESSION = re.compile(rf"{_NAME}*(?:{_RANGES}{_NAME}*)*")
_OUTSIDE_COMMA = re.compile(r",(?![^\[]*\])")
_NUMBERED = re.compile(r"(.*?)(\d*)")
_RANGE = re.compile(r"(\d+)-(\d+)")
# Digits; Slurm's numbers are unsigned long.
_LONGEST_NUMBER = 20
# Four times the nodes with which slurmctld starts (MAX_SLURM_NODES of slurm.h): a cluster with too many is told so.
MOST_NAMES = 4 * 64 * 1024


class TooManyNames(ValueError):
    """A hostlist stands for more names than the caller takes."""


@lru_cache(maxsize=1024)
def expand(hostlist: str, most: int = MOST_NAMES) -> tuple[str, ...]:
    """Return the names that a hostlist stands for, in its order; ValueError says what is wrong with it.

    TooManyNames, a ValueError, if it stands for more than `most`; it is not expanded then.

    >>> expand("c[1-2],login")
    ('c1', 'c2', 'login')
    """
    names: list[str] = []
    for part in _OUTSIDE_COMMA.split(hostlist):
        if not part or not _EXPRESSION.fullmatch(part) or part[0] in ".-":
            raise ValueError(f'"{part or hostlist}" is not a hostlist such as c[1-4] or c1,c2')
        if len(names) + _count(part) > most:
            raise TooManyNames(f'"{_shortened(hostlist)}" stands for more than {most} names')
        try:
            names.extend(NodeSet(part, resolver=RESOLVER_NOGROUP))
        except NodeSetException as error:
            raise ValueError(f'"{part}" is not a hostlist: {error}') from error
    return tuple(names)


def _count(part: str) -> int:
    """Return how many names a part of a hostlist stands for at most: a range counts each of its numbers."""
    sets = re.findall(r"\[([^\]]*)\]", part)
    return math.prod(sum(map(_numbers, ranges.split(","))) for ranges in sets)


def _numbers(one: str) -> int:
    """Return how many numbers there are in a range such as 1-4, or 7; longer numbers than int() reads are too many."""
    if not (bounds := _RANGE.fullmatch(one)):
        return 1
    if max(map(len, bounds.groups())) > _LONGEST_NUMBER:
        return MOST_NAMES + 1
    first, last = map(int, bounds.groups())
    return max(0, last - first + 1)


def _shortened(text: str, most: int = 60) -> str:
    return text if len(text) <= most else f"{text[:most]}..."


def fold(names: Iterable[str]) -> str:
    """Return the shortest hostlist for names.

    >>> fold(["c1", "c2", "c4"])
    'c[1-2,4]'
    """
    return str(NodeSet.fromlist(list(_runs(names)), resolver=RESOLVER_NOGROUP))


def _runs(names: Iterable[str]) -> Iterator[str]:
    """Yield a hostlist for each run of neighbours, whose last numbers go up by one: ClusterShell reads each by itself.

    >>> list(_runs(["c8", "c9", "c10", "c11", "c13", "login"]))
    ['c[8-9]', 'c[10-11]', 'c[13-13]', 'login']
    """

    def place(numbered: tuple[int, re.Match[str]]) -> tuple[str, int, int]:
        index, match = numbered
        prefix, digits = match.groups()
        return prefix, len(digits), int(digits or index) - index

    matches = enumerate(match for name in names if (match := _NUMBERED.fullmatch(name)))
    for (prefix, width, _), run in groupby(matches, key=place):
        numbers = [match[2] for _, match in run]
        yield f"{prefix}[{numbers[0]}-{numbers[-1]}]" if width else prefix
