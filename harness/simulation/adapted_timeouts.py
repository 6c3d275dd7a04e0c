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

_SETTINGS_FILE = Path(releases.__file__).parent / "simulated_time.toml"
# The rate at which the clock is that of real time: no setting changes.
_REAL_TIME = 1.0


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
    """A setting with its value in the user's configuration, and in a simulation."""

    file: str
    name: str
    own: str
    simulated: str
    why: str


@cache
def known() -> tuple[TimeSetting, ...]:
    """Return all settings that the rate changes."""
    entries = tomllib.loads(_SETTINGS_FILE.read_text())["setting"]
    return tuple(
        TimeSetting(**{**entry, "unless": tuple(entry.get("unless", ()))}) for entry in entries
    )


def scaled(
    file: str, options: Mapping[str, str], rate: float
) -> tuple[dict[str, str], list[ScaledSetting]]:
    """Return the options of a file to override in a simulation at a rate, and what changes.

    `options` are all options of the file. At the rate 1 nothing changes.
    """
    if rate <= _REAL_TIME:
        return {}, []
    overrides: dict[str, str] = {}
    changes: list[ScaledSetting] = []
    for setting in known():
        if setting.file != file:
            continue
        value = overrides.get(setting.option) or slurm_options.get(options, setting.option) or ""
        own, new = (
            _scaled_word(setting, value, rate)
            if setting.word
            else _scaled_option(setting, value, rate)
        )
        if own == new:
            continue
        overrides[setting.option] = _with_word(value, setting.word, new) if setting.word else new
        changes.append(ScaledSetting(file, setting.name, own, new, setting.why))
    return overrides, changes


def _scaled_option(setting: TimeSetting, value: str, rate: float) -> tuple[str, str]:
    own = value or str(setting.default)
    return own, setting.fixed or _scaled_value(setting, own, rate)


def _scaled_word(setting: TimeSetting, value: str, rate: float) -> tuple[str, str]:
    own = _word_value(value, setting.word) or (
        _word_value(value, setting.default_word) if setting.default_word else ""
    )
    own = own or str(setting.default)
    return own, _scaled_value(setting, own, rate)


def _scaled_value(setting: TimeSetting, own: str, rate: float) -> str:
    """Return a value times the rate, at most what Slurm accepts; other texts are unchanged."""
    if not re.fullmatch(r"\d+", own) or int(own) in setting.unless:
        return own
    return str(max(int(own), min(round(int(own) * rate), setting.most)))


def _word_value(value: str, word: str) -> str:
    """Return the value of a word in an option's value; "" if it has no such word.

    >>> _word_value("defer,bf_max_time=60", "bf_max_time")
    '60'
    """
    match = re.search(rf"(?:^|,)\s*{word}=([^,]*)", value, re.IGNORECASE)
    return match[1] if match else ""


def _with_word(value: str, word: str, new: str) -> str:
    """Return an option's value with one word replaced or added.

    >>> _with_word("defer,bf_max_time=60,x", "bf_max_time", "90"), _with_word("", "a", "1")
    ('defer,x,bf_max_time=90', 'a=1')
    """
    words: Sequence[str] = [part.strip() for part in value.split(",") if part.strip()]
    kept = [part for part in words if part.partition("=")[0].lower() != word.lower()]
    return ",".join([*kept, f"{word}={new}"])
