"""Read JSON that may be damaged. Values that Python cannot handle are refused like invalid JSON."""

from __future__ import annotations

import json
import re
from math import isfinite
from typing import Any

# Levels of nested lists and objects.
DEEPEST = 64
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def load(text: str) -> Any:
    r"""Return the data of a text.

    Half of a surrogate pair, which no file can hold, becomes "?". Raises ValueError if the text is
    not JSON, has infinite numbers or is deeper than DEEPEST.

    >>> load('["\\ud800"]')
    ['?']
    """
    try:
        data = json.loads(text, parse_constant=_number, parse_float=_number)
    except RecursionError as error:
        raise ValueError(f"more than {DEEPEST} levels of lists and objects") from error
    if _is_too_deep(data):
        raise ValueError(f"more than {DEEPEST} levels of lists and objects")
    if _SURROGATE.search(text):
        data = json.loads(json.dumps(data, ensure_ascii=False).encode("utf-8", errors="replace"))
    return data


def _number(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError(f"{text[:20]} is not a finite number")
    return number


def _is_too_deep(data: Any) -> bool:
    level = [data]
    for _ in range(DEEPEST):
        children = (
            value.values() if isinstance(value, dict) else value
            for value in level
            if isinstance(value, dict | list)
        )
        level = [child for below in children for child in below if isinstance(child, dict | list)]
        if not level:
            return False
    return True
