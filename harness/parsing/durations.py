"""Times as Slurm reads and prints them."""

from __future__ import annotations

import re

_DURATION = re.compile(r"(?:(?P<days>\d+)-)?(?P<clock>\d+(?::\d+){0,2})")


def seconds(text: str, unit: int = 60) -> int:
    """Return a time in seconds: see time_str2secs() in Slurm's parse_time.c.

    The forms are DAYS-HOURS[:MINUTES[:SECONDS]], [HOURS:]MINUTES:SECONDS, and a number of units of
    `unit` seconds. Raises ValueError if the text is not a time.

    >>> seconds("1-02:03:04"), seconds("1-2"), seconds("02:30")
    (93784, 93600, 150)
    >>> seconds("90"), seconds("90", unit=1)
    (5400, 90)
    """
    match = _DURATION.fullmatch(text)
    if not match:
        raise ValueError(f"{text} is not a time")
    numbers = [int(number) for number in match["clock"].split(":")]
    if match["days"]:
        hours, minutes, rest = (*numbers, 0, 0)[:3]
    elif len(numbers) == 1:
        return numbers[0] * unit
    else:
        hours, minutes, rest = (0, *numbers)[-3:]
    return 86400 * int(match["days"] or 0) + 3600 * hours + 60 * minutes + rest
