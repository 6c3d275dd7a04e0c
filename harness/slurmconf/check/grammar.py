"""What the parser reports: unreadable text, unknown or repeated options, values of a wrong type."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from functools import lru_cache

from harness import releases
from harness.parsing.conf import Line
from harness.slurmconf.check.findings import ERROR, FATAL, INFO, WARNING, Finding
from harness.slurmconf.check.parsed_file import KINDS, Setting, Source

_UNLIMITED = re.compile("unlimited|infinite", re.IGNORECASE)
_NUMBER = re.compile(r"\s*\+?(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)?", re.ASCII)
_FLOAT = re.compile(
    r"\s*[+-]?(0x([\da-f]+\.?[\da-f]*|\.[\da-f]+)(p[+-]?\d+)?|(\d+\.?\d*|\.\d+)(e[+-]?\d+)?"
    r"|inf|infinity|nan)?",
    re.IGNORECASE | re.ASCII,
)
_TRUE = re.compile("yes|up|true|1", re.IGNORECASE)
_BOOLEAN = re.compile(f"{_TRUE.pattern}|no|down|false|0", re.IGNORECASE)
_LEAST_FLOAT, _MOST_FLOAT = 2.0**-126, (2 - 2.0**-23) * 2.0**127
_LIMITS = {"uint16": 2**16, "uint32": 2**32, "uint64": 2**64, "long": 2**63}
# Files that each plugin reads for its own options only (mpi_g_daemon_init, PARSE_FLAGS_IGNORE_NEW).
_IGNORES_UNKNOWN = {"mpi.conf"}
_CONSEQUENCE = {
    FATAL: "is refused",
    ERROR: "is ignored, with an error in the log",
    WARNING: "is accepted, with a warning",
    INFO: "is ignored",
}


def is_true(value: str) -> bool:
    """Return whether _handle_boolean of src/common/parse_config.c reads a value as true."""
    return bool(_TRUE.fullmatch(value))


def check(source: Source) -> Iterator[Finding]:
    """Yield what the parser of a release reports about a file, in the order of its lines."""
    if source.kind not in source.release.options:
        yield source.find_here(
            INFO, "unused", source.kind, f"is not read before {releases.first(source.kind)}"
        )
        return
    yield from source.findings
    seen: dict[str, Setting] = {}
    fine: set[tuple[str, str, str]] = set()
    sections = source.sections
    known = source.release.options[source.kind]
    for path, line in source.lines:
        if line.rest is not None:
            yield _unreadable(source, path, line)
        if not line.pairs:
            continue
        first = Setting(path, line, line.pairs[0])
        key = first.name.lower()
        if key not in known:
            yield _unknown(source, source.kind, first)
            continue
        if section := sections.get(key):
            yield from _refused(source, section, first)
            yield from _row(source, section, path, line, fine)
            continue
        if len(line.pairs) > 1:
            second = Setting(path, line, line.pairs[1])
            yield source.find(
                second,
                FATAL,
                "second-option",
                f"is on the line of {first.name}",
                "put each option on its own line",
            )
        yield from _value_or_refusal(source, source.kind, first)
        if key in seen and known[key].type != "array":
            number = seen[key].line.number
            yield source.find(
                first, ERROR, "twice", f"is already set in line {number}; the last one counts"
            )
        seen[key] = first


def value_problem(kind: str, value: str) -> str | None:
    """Return why Slurm's parsers reject a value of a type (src/common/parse_value.c).

    None if they accept it.
    """
    if kind == "boolean":
        return None if _BOOLEAN.fullmatch(value) else "is not YES or NO"
    if kind == "float":
        if _UNLIMITED.fullmatch(value):
            return None
        if not _FLOAT.fullmatch(value):
            return "is not a number"
        return "is out of range" if _is_out_of_range(value) else None
    if kind not in _LIMITS:
        return None
    if kind == "long":
        value = value.replace("-", "", 1)
    size = number(kind, value)
    if size is None:
        return (
            "is less than zero" if re.fullmatch(r"\s*-\d+", value, re.ASCII) else "is not a number"
        )
    return None if size < _LIMITS[kind] else f"is more than {_LIMITS[kind] - 1}"


def _is_out_of_range(value: str) -> bool:
    """Return whether strtof reports that 32 bits cannot hold a number."""
    text = value.strip().lower() or "0"
    is_hexadecimal = "0x" in text
    try:
        size = abs(float.fromhex(text) if is_hexadecimal else float(text))
    except OverflowError:
        return True
    digits = re.split("p" if is_hexadecimal else "e", text.replace("0x", ""))[0]
    too_small = size < _LEAST_FLOAT and bool(re.search("[1-9a-f]", digits))
    return "inf" not in text and (size > _MOST_FLOAT or too_small)


@lru_cache(maxsize=4096)
def number(kind: str, value: str) -> int | None:
    """Return the number that s_p_handle_uint16 and its like read; None if it is not one.

    It can be more than the type holds.

    >>> number("uint32", "0x10"), number("uint32", "4k"), number("uint16", "INFINITE")
    (16, 4096, 65535)
    """
    if _UNLIMITED.fullmatch(value):
        return _LIMITS[kind] - 1
    digits = _NUMBER.match(value)
    rest = value[digits.end() :] if digits else value
    if digits is None or rest.lower() not in ({"", "k"} if kind in {"uint32", "uint64"} else {""}):
        return None
    text = digits[1] or "0"
    base = 16 if text[:2].lower() == "0x" else 8 if text[0] == "0" else 10
    # A number with more digits than any limit is too large; Python converts at most 4300 digits.
    return int(text, base) * (1024 if rest else 1) if len(text) < 100 else _LIMITS[kind]


def number_of(source: Source, name: str) -> int | None:
    """Return an option's value as its parser reads it; None if it is not set or not a number."""
    setting = source.settings.get(name)
    option = source.release.options[source.kind].get(name)
    if setting is None or option is None or value_problem(option.type, setting.value):
        return None
    return number(option.type, setting.value)


def _row(
    source: Source, section: str, path: str, line: Line, fine: set[tuple[str, str, str]]
) -> Iterator[Finding]:
    """Check the options of a line after its first.

    `fine` are options and values that have no problem, because lines often repeat them.
    """
    known = source.release.options[section]
    seen: set[str] = set()
    for pair in line.pairs[1:]:
        key = pair.key.lower()
        if key in seen:
            repeated = Setting(path, line, pair)
            yield source.find(
                repeated, ERROR, "twice", "is set twice in this line; the last one counts"
            )
        seen.add(key)
        memo = (section, key, pair.value)
        if memo in fine:
            continue
        setting = Setting(path, line, pair)
        if key not in known:
            yield _unknown(source, section, setting)
            return  # the parser gives up here
        findings = list(_value_or_refusal(source, section, setting))
        yield from findings
        if not findings:
            fine.add(memo)


def _value_or_refusal(source: Source, section: str, setting: Setting) -> Iterator[Finding]:
    """Yield problems with a value. Up to 20.11, nothing more is read of one of a wrong type."""
    findings = list(_value(source, section, setting))
    yield from findings
    if not findings or source.release.unusable_value != ERROR:
        yield from _refused(source, section, setting)


def _value(source: Source, section: str, setting: Setting) -> Iterator[Finding]:
    kind = source.release.options[section][setting.name.lower()].type
    if kind in {"string", "array"}:
        return
    if problem := value_problem(kind, setting.value):
        severity = source.release.unusable_value
        consequence = "; the option is ignored" if severity == ERROR else ""
        yield source.find(setting, severity, "value", f'"{setting.value}" {problem}{consequence}')


def _refused(source: Source, section: str, setting: Setting) -> Iterator[Finding]:
    refusal = source.release.refused.get(section, {}).get(setting.name.lower())
    severity = refusal.of(setting.value) if refusal else None
    if refusal and severity:
        message = f"{_CONSEQUENCE[severity]} since {refusal.since}"
        code = "refused" if severity == FATAL else "obsolete"
        yield source.find(setting, severity, code, message, refusal.hint, refusal.daemons)


def _unknown(source: Source, section: str, setting: Setting) -> Finding:
    release, key = source.release, setting.name.lower()
    if source.kind in _IGNORES_UNKNOWN:
        return source.find(
            setting, INFO, "unknown", f"is not an option of {source.kind}, and is ignored"
        )
    where = "" if section == source.kind else f" in a {section.split()[1]} line"
    if gone := release.gone.get(section, {}).get(key):
        before = _refusal_hint(section, key)
        return source.find(
            setting, FATAL, "gone", f"is unknown since {gone}{where}", before or "remove it"
        )
    if first := releases.since(section, setting.name):
        return source.find(setting, FATAL, "too-new", f"is unknown before {first}{where}")
    names = {key_: option.name for key_, option in release.options[section].items()}
    elsewhere = [
        kind for kind in KINDS if kind != source.kind and key in release.options.get(kind, {})
    ]
    close = difflib.get_close_matches(key, names, n=1)
    hint = (
        f"it belongs in {elsewhere[0]}"
        if elsewhere
        else f"did you mean {names[close[0]]}?"
        if close
        else ""
    )
    return source.find(setting, FATAL, "unknown", f"is not an option of {source.kind}{where}", hint)


def _refusal_hint(section: str, key: str) -> str:
    """Return the hint of the last release that knew an option and refused it."""
    refusals = (
        releases.get(name).refused.get(section, {}).get(key) for name in reversed(releases.KNOWN)
    )
    return next((refusal.hint for refusal in refusals if refusal), "")


def _unreadable(source: Source, path: str, line: Line) -> Finding:
    text = line.text[line.rest :].strip()
    shown = text if len(text) <= 60 else f"{text[:57]}..."
    hint = ""
    if re.fullmatch(r"[A-Za-z0-9_.]+\s*[-*+/]?=", text):
        hint = 'a line without a value is an error; remove it, or write ""'
    elif text.lower().startswith("include"):
        hint = "Include must begin its line, and names one file"
    elif line.pairs:
        hint = "put quotes around a value with blanks"
    number, column = line.place(line.rest or 0)
    severity, message = FATAL, f'cannot be read: "{shown}"'
    if source.kind in _IGNORES_UNKNOWN:
        severity, message = INFO, f"{message}, and is ignored"
    option = line.pairs[0].key if line.pairs else ""
    return Finding(
        path, number, column, severity, "unreadable", option, message, hint, KINDS[source.kind]
    )
