"""Settings that limit how long the daemons may work, and their values in a simulation. Pure.

releases/simulated_time.toml lists them, with the reasons.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from harness import releases, slurm_options

_DATA = Path(releases.__file__).parent / "simulated_time.toml"
# The rate of real time, at which no setting changes.
_SLOWEST = 1.0


@dataclass(frozen=True, slots=True)
class TimeSetting:
    """A setting that the rate of a simulation changes: see simulated_time.toml."""

    file: str
    option: str
    default: int | str
    source: str
    why: str
    word: str = ""
    default_word: str = ""
    most: int = 0
    unless: tuple[int, ...] = ()
    fixed: str = ""

    @property
    def name(self) -> str:
        """The option, and the word of its value if it is one."""
        return f"{self.option}={self.word}" if self.word else self.option


@dataclass(frozen=True, slots=True)
class ScaledSetting:
    """What a setting is in the user's configuration, and in a simulation."""

    file: str
    name: str
    own: str
    simulated: str
    why: str


@cache
def known() -> tuple[TimeSetting, ...]:
    """Return all settings that the rate changes."""
    entries = tomllib.loads(_DATA.read_text())["setting"]
    return tuple(
        TimeSetting(**{**entry, "unless": tuple(entry.get("unless", ()))}) for entry in entries
    )


def scaled(
    file: str, options: Mapping[str, str], rate: float
) -> tuple[dict[str, str], list[ScaledSetting]]:
    """Return the options of a file to override in a simulation at a rate, and what was changed.

    `options` are all of the file. At the rate 1 nothing changes.
    """
    if rate <= _SLOWEST:
        return {}, []
    overrides: dict[str, str] = {}
    changes: list[ScaledSetting] = []
    for setting in known():
        if setting.file != file:
            continue
        value = overrides.get(setting.option) or slurm_options.get(options, setting.option) or ""
        own, new = _of_word(setting, value, rate) if setting.word else _of(setting, value, rate)
        if own == new:
            continue
        overrides[setting.option] = _with_word(value, setting.word, new) if setting.word else new
        changes.append(ScaledSetting(file, setting.name, own, new, setting.why))
    return overrides, changes


def _of(setting: TimeSetting, value: str, rate: float) -> tuple[str, str]:
    own = value or str(setting.default)
    return own, setting.fixed or _times(setting, own, rate)


def _of_word(setting: TimeSetting, value: str, rate: float) -> tuple[str, str]:
    own = _word(value, setting.word) or (
        _word(value, setting.default_word) if setting.default_word else ""
    )
    own = own or str(setting.default)
    return own, _times(setting, own, rate)


def _times(setting: TimeSetting, own: str, rate: float) -> str:
    """Return a value times the rate, at most what Slurm accepts; other texts stay as they are."""
    if not re.fullmatch(r"\d+", own) or int(own) in setting.unless:
        return own
    return str(max(int(own), min(round(int(own) * rate), setting.most)))


def _word(value: str, word: str) -> str:
    """Return the value of a word.

    >>> _word("defer,bf_max_time=60", "bf_max_time")
    '60'
    """
    found = re.search(rf"(?:^|,)\s*{word}=([^,]*)", value, re.IGNORECASE)
    return found[1] if found else ""


def _with_word(value: str, word: str, new: str) -> str:
    """Return a value with a word set.

    >>> _with_word("defer,bf_max_time=60,x", "bf_max_time", "90"), _with_word("", "a", "1")
    ('defer,x,bf_max_time=90', 'a=1')
    """
    words: Sequence[str] = [part.strip() for part in value.split(",") if part.strip()]
    kept = [part for part in words if part.partition("=")[0].lower() != word.lower()]
    return ",".join([*kept, f"{word}={new}"])
