"""Slurm's hostlist expressions: c[1-3,7] is c1, c2, c3 and c7."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import groupby
from math import prod

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

# Limits of a hostlist: twice the nodes of any slurmctld. With several brackets in a name, folding
# is slow.
MOST_NAMES = 2**17
MOST_OF_SEVERAL_BRACKETS = 10_000
# ClusterShell accepts more than Slurm does (groups, steps, set operators), so characters are
# checked first.
_NAME = r"[A-Za-z0-9._-]"
_RANGE = r"[0-9]{1,9}(?:-[0-9]{1,9})?"
_RANGES = rf"\[{_RANGE}(?:,{_RANGE})*\]"
_EXPRESSION = re.compile(rf"{_NAME}*(?:{_RANGES}{_NAME}*)*")
_BRACKETS = re.compile(r"\[(.*?)\]")
_OUTSIDE_COMMA = re.compile(r",(?![^\[]*\])")
_NUMBERED = re.compile(r"(.*?)([0-9]{0,18})")
# Device files are folded, too.
_PLAIN = re.compile(r"[A-Za-z0-9._/-]{1,255}")
_SEVERAL_NUMBERS = re.compile("[0-9][^0-9]+[0-9]")


class TooManyNames(ValueError):
    """A hostlist has more names than the caller accepts."""


@lru_cache(maxsize=1024)
def expand(hostlist: str, most: int = MOST_NAMES) -> tuple[str, ...]:
    """Return the names of a hostlist, in its order.

    Raises ValueError if it is invalid, and TooManyNames, which is a ValueError, before it expands a
    hostlist of more than `most` names.

    >>> expand("c[1-2],login")
    ('c1', 'c2', 'login')
    """
    names: list[str] = []
    for part in _parts(hostlist, most):
        try:
            names.extend(NodeSet(part, resolver=RESOLVER_NOGROUP))
        except (NodeSetException, ValueError) as error:
            raise ValueError(f'"{_short(part)}" is not a hostlist: {error}') from error
    return tuple(names)


def count(hostlist: str) -> int:
    """Return the number of names of a hostlist without expanding it; raise errors as `expand` does.

    >>> count("c[1-10]x[1-3],login")
    31
    """
    return sum(map(_count, _parts(hostlist)))


def _parts(hostlist: str, most: int = MOST_NAMES) -> list[str]:
    """Return the parts of a hostlist between its commas.

    Raises ValueError if it is invalid or too long.
    """
    parts: list[str] = _OUTSIDE_COMMA.split(hostlist)
    names = 0
    for part in parts:
        if not part or not _EXPRESSION.fullmatch(part) or part[0] in ".-":
            raise ValueError(
                f'"{_short(part or hostlist)}" is not a hostlist such as c[1-4] or c1,c2'
            )
        if len(part) - sum(map(len, _BRACKETS.findall(part))) > 255:
            raise ValueError(f'"{_short(part)}" is too long for the name of a host')
        more = _count(part)
        names += more
        if part.count("[") > 1 and more > MOST_OF_SEVERAL_BRACKETS:
            raise TooManyNames(f'"{_short(part)}" has more than {MOST_OF_SEVERAL_BRACKETS} names')
        if names > most:
            raise TooManyNames(f'"{_short(hostlist)}" has more than {most} names')
    return parts


def _count(part: str) -> int:
    """Return the number of names of an expression; a range that ends before it begins has none."""
    ranges = (
        (span.partition("-") for span in inside.split(",")) for inside in _BRACKETS.findall(part)
    )
    return prod(
        sum(max(int(last or first) - int(first) + 1, 0) for first, _, last in of) for of in ranges
    )


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


def fold(names: Iterable[str]) -> str:
    """Return the shortest hostlist for names.

    Text that cannot be the name of a host or file is kept as it is. Many names with several numbers
    each are folded by the last number only.

    >>> fold(["c1", "c2", "c4"])
    'c[1-2,4]'
    """
    every = list(names)
    plain = [name for name in every if _PLAIN.fullmatch(name)]
    others = [name for name in every if not _PLAIN.fullmatch(name)]
    runs = list(_runs(plain))
    if len([name for name in plain if _SEVERAL_NUMBERS.search(name)]) > MOST_OF_SEVERAL_BRACKETS:
        return ",".join([*runs, *others])
    return ",".join(filter(None, [str(NodeSet.fromlist(runs, resolver=RESOLVER_NOGROUP)), *others]))


def _runs(names: Iterable[str]) -> Iterator[str]:
    """Yield a hostlist for each run of neighbours, whose last numbers go up by one.

    ClusterShell then parses ranges instead of single names.

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
