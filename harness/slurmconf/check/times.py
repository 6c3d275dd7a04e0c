"""Times in slurm.conf, as time_str2secs() and its like of src/common/parse_time.c read them."""

from __future__ import annotations

import re
from functools import lru_cache

from harness.parsing import c_numbers

_UNLIMITED = re.compile("-1|infinite|unlimited", re.IGNORECASE)
_TIME = re.compile(r"\d+(:\d+){0,2}|-\d+|\d+-(\d+(:\d+){0,2})?", re.ASCII)
UNLIMITED = -1
NO_VALUE = -2  # NO_VAL in 32 bits with a sign
NO_TIME = "is not a time such as 7-0 or 12:00:00"


@lru_cache(maxsize=4096)
def seconds(value: str) -> int | None:
    """Return the seconds of a time, calculated with 32 bits; None if it is not a time.

    >>> seconds("1-0"), seconds("2"), seconds("INFINITE"), seconds("2h")
    (86400, 120, -1, None)
    """
    if _UNLIMITED.fullmatch(value):
        return UNLIMITED
    if not _TIME.fullmatch(value):
        return None
    if value.startswith("-"):  # %d reads the dash as a sign
        return c_numbers.int32(c_numbers.atoi(value) * 86400)
    days, dash, clock = value.partition("-") if "-" in value else ("0", "", value)
    numbers = [c_numbers.atoi(number) for number in clock.split(":") if number]
    if dash or len(numbers) == 3:
        hours, minutes_, rest = (*numbers, 0, 0, 0)[:3]
    else:
        hours, (minutes_, rest) = 0, (*numbers, 0)[:2]
    return c_numbers.int32(c_numbers.atoi(days) * 86400 + hours * 3600 + minutes_ * 60 + rest)


def minutes(value: str) -> int | None:
    """Return the minutes of a time, rounded up; None if it is not a time, or less than zero.

    >>> minutes("0:1"), minutes("UNLIMITED"), minutes("99999999999"), minutes("4294967295")
    (1, -1, None, 0)
    """
    size = seconds(value)
    if size is None or size == UNLIMITED:
        return size
    rounded = c_numbers.int32(size + 59)
    # C rounds a quotient towards 0.
    whole = rounded // 60 if rounded >= 0 else -(-rounded // 60)
    return whole if size != NO_VALUE and whole >= UNLIMITED else None


def problem(value: str) -> str:
    """Return why slurmctld refuses a time that it keeps in minutes; "" if it accepts it."""
    if seconds(value) is None:
        return NO_TIME
    return "is too long a time" if minutes(value) is None else ""


def is_suspend_time(value: str) -> bool:
    """Return whether slurm_atoul() makes a number of 32 bits of a SuspendTime, or it is -1.

    It reads NONE and INFINITE as 0.
    """
    return value == "-1" or c_numbers.atoul(value) < 2**32
