"""Read a configuration just far enough to create what it names; the daemon interprets the rest."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

_COMMENT = re.compile(r"(?<!\\)((?:\\\\)*)#.*")
_CONTINUED = re.compile(r"(?<!\\)((?:\\\\)*)\\\s*\Z")
_ESCAPED = re.compile(r"\\(.?)")
_INCLUDE = re.compile(r"\s*include\s+(\S+)", re.IGNORECASE)
_PAIR = re.compile(r'([\w.]+)\s*[-+*/]?=[ \t]*("[^"]*"|[^\s"]\S*)')
_PART = re.compile(r"(?:[^,\[]|\[[^\]]*\]?)+")
_LARGEST = 65536  # hosts of one range

CONF = Path("/etc/slurm")


def expand(expression: str) -> Iterator[str]:
    """Yield the hosts of a hostlist expression.

    >>> list(expand("n[08-10,x],m"))
    ['n08', 'n09', 'n10', 'nx', 'm']
    >>> list(expand("n[1-],m[2"))
    ['n1', 'm[2']
    """
    for part in _PART.findall(expression):
        head, bracket, rest = part.partition("[")
        inside, end, tail = rest.partition("]")
        if bracket and not end:
            yield part
            continue
        middles = (
            [name for item in inside.split(",") for name in _numbers(item)] if bracket else [""]
        )
        for middle in middles:
            for last in expand(tail) if tail else [""]:
                yield head + middle + last


def _numbers(item: str) -> list[str]:
    low, _, high = item.partition("-")
    high = high or low  # as _parse_single_range of hostlist.c
    if not (low.isdecimal() and high.isdecimal() and int(high) - int(low) < _LARGEST):
        return [item]
    return [str(number).zfill(len(low)) for number in range(int(low), int(high) + 1)]


class Conf:
    """The `key=value` pairs of configuration files and their includes; keys are in lower case."""

    def __init__(self, *files: Path) -> None:
        self.pairs = [pair for file in files for pair in _read(file, frozenset())]

    def all(self, *keys: str) -> list[str]:
        """Return every value of the keys, in order."""
        return [value for key, value in self.pairs if key in keys]

    def get(self, key: str, default: str = "") -> str:
        """Return a key's last value, which is the one Slurm takes."""
        return (self.all(key) or [default])[-1]

    def items(self, *keys: str) -> list[str]:
        """Return the keys' values, split at commas."""
        return [
            item.strip() for value in self.all(*keys) for item in value.split(",") if item.strip()
        ]

    def setting(self, key: str, name: str) -> str:
        """Return a setting within a key's value, or "".

        jwt_key of AuthAltParameters=jwt_key=/a,jwks=/b is /a.
        """
        return next(
            (item.partition("=")[2] for item in self.items(key) if item.partition("=")[0] == name),
            "",
        )

    def port(self, key: str, default: int) -> int:
        """Return a port, or the default if the value is not a port."""
        value = self.get(key)
        return int(value) if value.isdecimal() and 0 < int(value) < 65536 else default


def _read(path: Path, includers: frozenset[Path]) -> Iterator[tuple[str, str]]:
    try:
        text = path.read_text("latin-1")
    except OSError:  # the daemon reports it
        return
    cluster = next(iter(re.findall(r"(?im)^\s*clustername\s*=\s*(\S+)", text)), "%c").lower()
    for line in _logical_lines(text):
        include = _INCLUDE.match(line)
        if include and path not in includers:
            yield from _read(CONF / include[1].replace("%c", cluster), includers | {path})
        elif not include:
            yield from ((key.lower(), value.strip('"')) for key, value in _PAIR.findall(line))


def _logical_lines(text: str) -> Iterator[str]:
    """Yield the lines as _get_next_line of src/common/parse_config.c does.

    It removes comments before it joins lines, and backslashes last.
    """
    begun = ""
    for physical in text.split("\n"):
        line = _COMMENT.sub(r"\1", physical)
        kept = _CONTINUED.sub(r"\1", line)
        begun += kept
        if kept == line:
            yield _ESCAPED.sub(r"\1", begun)
            begun = ""
    if begun:
        yield _ESCAPED.sub(r"\1", begun)
