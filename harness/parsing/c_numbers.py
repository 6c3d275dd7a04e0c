"""Read numbers as the functions of C do: the digits at the beginning, and no error."""

from __future__ import annotations

import re

_DIGITS = re.compile(r"\s*([+-]?)(\d+)", re.ASCII)
# More digits than any type holds; Python converts at most 4300 digits.
_MOST_DIGITS = 25


def strtol(text: str) -> int:
    """Return the number at the beginning of a text, without bounds; 0 if there is none.

    >>> strtol("12x"), strtol("-2"), strtol("many")
    (12, -2, 0)
    """
    found = _DIGITS.match(text)
    if not found:
        return 0
    digits = found[2].lstrip("0") or "0"
    size = int(digits) if len(digits) <= _MOST_DIGITS else 10**_MOST_DIGITS
    return -size if found[1] == "-" else size


def begins_with_digit(text: str) -> bool:
    """Return whether a text begins with a digit, as isdigit() of C sees it."""
    return "0" <= text[:1] <= "9"


def atoi(text: str) -> int:
    """Return a number as atoi does: the lowest 32 bits of a number of 64 bits, with a sign.

    >>> atoi("4294967297"), atoi("-1")
    (1, -1)
    """
    return int32(max(-(2**63), min(strtol(text), 2**63 - 1)))


def int32(number: int) -> int:
    """Return what a variable of 32 bits with a sign keeps of a number.

    >>> int32(2**31), int32(2**32 + 5)
    (-2147483648, 5)
    """
    return (number + 2**31) % 2**32 - 2**31


def atoul(text: str) -> int:
    """Return a number as strtoul does: a negative one becomes a large one.

    >>> atoul("7") , atoul("-1") == 2**64 - 1
    (7, True)
    """
    return min(strtol(text), 2**64 - 1) % 2**64
