"""Slurm's hostlist expressions: c[1-3,7] is c1, c2, c3 and c7."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from math import prod
from typing import NamedTuple

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

# Limits of a hostlist: twice the nodes of any slurmctld. With several brackets in a name, folding
# is slow.
MOST_NAMES = 2**17
MOST_OF_SEVERAL_BRACKETS = 10_000
# MAX_RANGE and MAX_PREFIX_CNT of src/common/hostlist.c.
MOST_OF_A_RANGE = 64 * 1024
# Slurm accepts almost any character; hosts, files and ClusterShell do not.
_NAME = r"[A-Za-z0-9._-]"
_RANGE = r"[0-9]{1,9}(?:-[0-9]{1,9})?"
_RANGES = rf"\[{_RANGE}(?:,{_RANGE})*\]"
_EXPRESSION = re.compile(rf"{_NAME}*(?:{_RANGES}{_NAME}*)*")
_BRACKETS = re.compile(r"\[(.*?)\]")
_OUTSIDE_COMMA = re.compile(r",(?![^\[]*\])")
_NUMBERED = re.compile(r"(.*?)([0-9]{0,18})")
# Device files are folded, too.
_PLAIN = re.compile(r"[A-Za-z0-9._/-]{1,255}")
_LONGEST_NAME = 255
_SEPARATORS = "\t, \n"
_STRTOUL = re.compile(r"[ \t\n\v\f\r]*([+-]?[0-9]+)")
_SEVERAL_NUMBERS = re.compile("[0-9][^0-9]+[0-9]")


class TooManyNames(ValueError):
    """A hostlist has more names than the caller accepts."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """How a release reads hostlists: _hostlist_create_bracketed of src/common/hostlist.c.

    With `suffixes`, text may follow the last "]". With `completes_brackets`, a name without "]" is
    cut at its last "[" and gets a "]" instead; otherwise it is refused.
    """

    suffixes: bool = True
    completes_brackets: bool = False


NEWEST = Grammar()


@lru_cache(maxsize=1024)
def expand(hostlist: str, most: int = MOST_NAMES) -> tuple[str, ...]:
    """Return the names of a hostlist, in its order.

    Raises ValueError if it is invalid, and TooManyNames, which is a ValueError, before it expands a
    hostlist of more than `most` names.

    >>> expand("c[1-2],login")
    ('c1', 'c2', 'login')
    """
    _parts(hostlist, most)
    try:
        return create(hostlist)
    except TooManyNames:
        raise
    except ValueError as error:
        raise ValueError(f'"{_short(hostlist)}" is not a hostlist: {error}') from error


@lru_cache(maxsize=4096)
def create(hostlist: str, grammar: Grammar = NEWEST, most: int = MOST_NAMES) -> tuple[str, ...]:
    """Return the names that Slurm's hostlist_create() makes of any text, in their order.

    Raises ValueError with Slurm's words if Slurm refuses the text, and TooManyNames, which is a
    ValueError, before it makes more than `most` names.

    >>> create("c[9-010],m+1, ")
    ('c9', 'c10', 'm+1')
    """
    names = _Names(most)
    for token in _tokens(hostlist):
        prefix, bracket, rest = token.rpartition("[")
        if not bracket:
            names.add(token)
            continue
        inside, closed, suffix = rest.partition("]")
        if not closed:
            if not grammar.completes_brackets:
                raise ValueError(f'"{_short(token)}" has a "[" without a "]"')
            names.add(f"{prefix}]" if prefix else rest)
            continue
        if suffix[:1] == ",":
            suffix = ""
        if suffix and not grammar.suffixes:
            raise ValueError(f'"{_short(token)}" has text after its last "]"')
        ranges = _ranges(inside)
        prefixes = _count_prefixes(prefix, most)
        if prefixes * _numbers(ranges) > most:
            raise TooManyNames(f"has more than {most} names")
        if prefixes:
            names.add_ranges(prefix, ranges, suffix)
    return tuple(names.names)


def _tokens(hostlist: str) -> Iterator[str]:
    """Yield what _next_tok of hostlist.c finds between separators, which may be in brackets."""
    start = 0
    while True:
        while start < len(hostlist) and hostlist[start] in _SEPARATORS:
            start += 1
        if start == len(hostlist):
            return
        end = _token_end(hostlist, start)
        yield hostlist[start:end]
        start = end


def _token_end(hostlist: str, start: int) -> int:
    end = parsed = start
    while True:
        while end < len(hostlist) and hostlist[end] not in _SEPARATORS:
            end += 1
        while True:
            opened = hostlist.find("[", parsed)
            closed = hostlist.find("]", parsed)
            if opened < 0 or opened > end or closed < opened:
                return end
            if closed >= end:
                break
            parsed = closed + 1
        end = closed


def _count_prefixes(prefix: str, most: int) -> int:
    """Return the number of prefixes that the ranges in a prefix make, without making them.

    There are none if something is wrong to the left of its last ranges, which Slurm ignores after
    trying all that is right of it. Raises ValueError if the last ranges are wrong, and
    TooManyNames.
    """
    count, innermost = 1, True
    while True:
        prefix, opened, rest = prefix.rpartition("[")
        inside, closed, _ = rest.rpartition("]")
        if not (opened and closed):
            return count
        try:
            count *= _numbers(_ranges(inside))
        except ValueError:
            if innermost:
                raise
            return 0
        if count > most:
            raise TooManyNames(f"has more than {most} names")
        innermost = False


def _numbers(ranges: Iterable[_Range]) -> int:
    return sum(part.last - part.first + 1 for part in ranges)


def _ranges(inside: str) -> list[_Range]:
    return [_range(text) for text in inside.split(",")]


def _range(text: str) -> _Range:
    """Return a range as _parse_single_range of hostlist.c reads it, with strtoul()."""
    low_text, _, high_text = text.partition("-")
    low, high = _STRTOUL.match(low_text), _STRTOUL.match(high_text)
    rest = high_text[high.end() :] if high else low_text[low.end() :] if low else ""
    if "x" in text or not low or (high_text and not high) or high_text[:1] == "-" or rest:
        raise ValueError(f"Invalid range: `{_short(text)}'")
    first = _unsigned_long(low[1])
    last = _unsigned_long(high[1]) if high else first
    if first > last:
        raise ValueError(f"Invalid range: `{_short(text)}'")
    if last - first + 1 > MOST_OF_A_RANGE:
        raise ValueError(f"Too many hosts in range `{_short(text)}'")
    return _Range(first, last, len(low_text))


def _unsigned_long(digits: str) -> int:
    size = digits.lstrip("+-0")[:21] or "0"
    number = min(int(size), 2**64 - 1)
    return -number % 2**64 if digits[0] == "-" else number


class _Range(NamedTuple):
    first: int
    last: int
    width: int

    def numbers(self) -> Iterator[str]:
        return (str(number).zfill(self.width) for number in range(self.first, self.last + 1))


@dataclass
class _Names:
    """The names so far. No more than `most` are made, and no more than `most` prefixes tried."""

    most: int
    names: list[str] = field(default_factory=list)
    prefixes: int = 0

    def add(self, *names: str) -> None:
        if len(self.names) + len(names) > self.most:
            raise TooManyNames(f"has more than {self.most} names")
        self.names.extend(names)

    def add_ranges(self, prefix: str, ranges: list[_Range], suffix: str) -> None:
        """Do as _push_range_list of hostlist.c: a prefix may have ranges, too."""
        before, opened, rest = prefix.rpartition("[")
        inside, closed, after = rest.rpartition("]")
        if not (opened and closed):
            for part in ranges:
                if len(prefix) + part.width + len(suffix) > _LONGEST_NAME:
                    raise TooManyNames(f'"{_short(prefix)}" is too long for the name of a host')
                if len(self.names) + part.last - part.first >= self.most:
                    raise TooManyNames(f"has more than {self.most} names")
                self.names.extend(f"{prefix}{number}{suffix}" for number in part.numbers())
            return
        count = 0
        for part in _ranges(inside):
            count += part.last - part.first + 1
            if count > MOST_OF_A_RANGE:
                raise ValueError(f"Too many hosts in range `{_short(inside)}'")
            for number in part.numbers():
                self.prefixes += 1
                if self.prefixes > self.most:
                    raise TooManyNames(f"has more than {self.most} names")
                try:
                    self.add_ranges(f"{before}{number}{after}", ranges, suffix)
                except TooManyNames:
                    raise
                except ValueError:
                    pass  # Slurm, too, ignores what is wrong further to the left


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
        if len(part) - sum(map(len, _BRACKETS.findall(part))) > _LONGEST_NAME:
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
    """Return the shortest hostlist for names. Slurm accepts it: no range has more than 64K names.

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
    folded = str(NodeSet.fromlist(runs, resolver=RESOLVER_NOGROUP))
    if len(plain) > MOST_OF_A_RANGE:
        folded = _BRACKETS.sub(_short_ranges, folded)
    return ",".join(filter(None, [folded, *others]))


def _short_ranges(brackets: re.Match[str]) -> str:
    """Split the ranges in brackets that are too long for Slurm."""
    texts = []
    for part in brackets[1].split(","):
        first, _, last = part.partition("-")
        for begin in range(int(first), int(last or first) + 1, MOST_OF_A_RANGE):
            end = min(begin + MOST_OF_A_RANGE - 1, int(last or first))
            numbers = dict.fromkeys(str(number).zfill(len(first)) for number in (begin, end))
            texts.append("-".join(numbers))
    return f"[{','.join(texts)}]"


def _runs(names: Iterable[str]) -> Iterator[str]:
    """Yield a hostlist for each run of neighbors, whose last numbers go up by one.

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
