"""The canonical form of options: what Slurm makes of a value. Pure: no I/O.

Values, or lines, with the same canonical form configure the same. A value whose form is not known
is its own canonical form, so that a difference that Slurm sees is never hidden.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import TypeVar

from harness import releases
from harness.parsing import c_numbers, conf, durations, hostlist
from harness.releases import Release
from harness.slurm_options import LOG_LEVELS
from harness.slurmconf.check import values
from harness.slurmconf.check.nodes import names_of

# time_str2mins() in Slurm's parse_time.c: a number alone is minutes, and seconds are rounded up.
IN_MINUTES = {
    "maxtime",
    "defaulttime",
    "prioritydecayhalflife",
    "prioritymaxage",
    "prioritycalcperiod",
}
# _validate_accounting_storage_enforce() in Slurm's read_config.c.
ENFORCE_TOO = {
    "limits": {"associations"},
    "safe": {"associations", "limits"},
    "wckeys": {"associations"},
    "qos": {"associations"},
    "nojobs": {"nosteps"},
}
# What AccountingStorageTRES always has: DEFAULT_ACCOUNTING_TRES of read_config.h.
_ALWAYS_TRES = {"cpu", "mem", "energy", "node", "billing", "fs/disk", "vmem", "pages"}
# s_p_handle_boolean() in Slurm's parse_value.c.
_BOOLEANS = {
    **dict.fromkeys(("yes", "up", "true", "1"), "yes"),
    **dict.fromkeys(("no", "down", "false", "0"), "no"),
}
_UNLIMITED = {"unlimited", "infinite", "-1"}
# strtoul() with base 0; s_p_handle_uint32() accepts a K.
_INTEGER = re.compile(r"(0x[0-9a-f]{1,16}|0[0-7]{0,22}|[1-9][0-9]{0,18})(k?)", re.IGNORECASE)
# Lists whose order does not matter. Slurm converts the names of accounts and QOS to lower case.
_SETS = {
    "accountingstoragetres",
    "allowgroups",
    "denygroups",
    "feature",
    "features",
    "grestypes",
    "licenses",
    "priorityweighttres",
    "requeueexit",
    "requeueexithold",
    "suspendexcparts",
    "tresbillingweights",
    "tresweights",
}
_LOWER_SETS = {
    "accountingstoreflags",
    "allowaccounts",
    "allowqos",
    "defaultqos",
    "denyaccounts",
    "denyqos",
    "dependencyparameters",
    "federationparameters",
    "priorityflags",
    "scronparameters",
}
_HOSTLISTS = {"allocnodes", "nodes", "suspendexcnodes", "switches"}
# Options whose value is a word in any case.
_WORDS = {"clustername", "cpubind", "state"}
# Older names of options, and the newer ones.
_OLDER_NAMES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "slurm.conf": {
        "acctgatherinfinibandtype": ("acctgatherinterconnecttype",),
        "sbcastparameters": ("bcastparameters",),
    },
    "slurm.conf NodeName": {"feature": ("features",), "procs": ("cpus",)},
    "slurm.conf PartitionName": {
        "priority": ("priorityjobfactor", "prioritytier"),
        "shared": ("oversubscribe",),
    },
}
# Kinds of lines that releases/printed_configuration.toml names differently.
_TABLES = {"slurm.conf NodeName": "node", "slurm.conf PartitionName": "partition"}
# Options of a node that depend on one another: _parse_nodename() of read_config.c.
SIZE = ("boards", "sockets", "socketsperboard", "corespersocket", "threadspercore", "cpus")

Values = Mapping[str, str]  # by names in lower case
Value = TypeVar("Value")


def same(release: Release, section: str, key: str, before: str | None, after: str | None) -> bool:
    """Return whether a release makes the same of two values of an option; None is not set.

    >>> same(releases.get("24.11"), "slurm.conf", "maxjobcount", None, "10000")
    True
    """
    return before == after or _form(release, section, key, before) == _form(
        release, section, key, after
    )


def _form(release: Release, section: str, key: str, value: str | None) -> str:
    default = defaults(release.name, section).get(key, "none")
    if value is None:
        return "" if default == "none" else canonical(release, section, key, default)
    if value == "" and default == "none":  # an empty item is an item of an array
        return "empty" if _type(release, section, key) == "array" else ""
    form = canonical(release, section, key, value)
    return "" if (default, form) == ("none", "none") and _knows_none(release, key) else form


def _knows_none(release: Release, key: str) -> bool:
    """Return whether the word "none" stands for nothing, and is not a path or a name."""
    if words := release.words.get(key):
        return words.unknown == "silent" or "none" in words.known
    return key in {"mpidefault", "suspendtime"}


@cache
def defaults(release: str, section: str) -> Values:
    """Return the defaults of the options of a file, or of a kind of line in it."""
    changed = {
        option
        for name in releases.KNOWN
        for option in releases.get(name).defaults.get(section, {})
        if "=" not in option
    }
    constant = releases.printed()
    table = _TABLES.get(section, section)
    return {
        **{
            key: value
            for part in ("defaults", "unprinted_defaults")
            for key, value in constant[part].get(table, {}).items()
            # Slurm prints these words, but reads none; CpuBind=off differs from no CpuBind.
            if value not in {"GLOBAL", "N/A", "NONE"} and key != "cpubind"
        },
        **{
            option.lower(): releases.default_of(releases.get(release), section, option)
            for option in changed
        },
    }


def canonical(release: Release, section: str, key: str, value: str) -> str:
    """Return the canonical form of an option's value.

    >>> newest = releases.get("26.05")
    >>> canonical(newest, "slurm.conf PartitionName", "maxtime", "1-0")
    '1440'
    >>> canonical(newest, "slurm.conf NodeName", "gres", "gpu:a100:2,bandwidth:4K")
    'bandwidth:4096,gpu:a100:2'
    """
    kind = _type(release, section, key)
    lower = value.lower()
    if reader := _READERS.get(key):
        return reader(value)
    if section == "slurmdbd.conf" and key.startswith("purge") and key.endswith("after"):
        return purge_age(lower)
    if kind == "boolean":
        return _BOOLEANS.get(lower, lower)
    if kind.startswith("uint") or kind == "float":
        return _number(lower)
    if key in release.words:
        return _keywords(value)
    if key in values.PLUGIN_OF:
        return ",".join(values.plugins(release, key, value))
    return value


def _type(release: Release, section: str, key: str) -> str:
    option = release.options.get(section, {}).get(key)
    return option.type if option else ""


def renamed(section: str, options: Mapping[str, Value]) -> dict[str, Value]:
    """Return options with the newer names of options that have an older one.

    >>> renamed("slurm.conf PartitionName", {"shared": "yes", "priority": "5"})
    {'oversubscribe': 'yes', 'priorityjobfactor': '5', 'prioritytier': '5'}
    """
    older = _OLDER_NAMES.get(section, {})
    newer = {name: value for key, value in options.items() for name in older.get(key, ())}
    others = {key: value for key, value in options.items() if key not in older}
    if "feature" in older and "feature" in options:
        others.pop("features", None)  # _parse_nodename() takes Feature, if both are in one line
    return {**newer, **others}


def node_size(options: Values) -> tuple[int, ...] | None:
    """Return the size of a node as _parse_nodename() derives it; None if it is not in numbers.

    >>> node_size({"sockets": "2", "corespersocket": "8"})
    (1, 2, 8, 1, 16)
    """
    sizes = {key: _number(options[key].lower()) for key in SIZE if key in options}
    if not all(conf.number(size) for size in sizes.values()):
        return None
    given = {key: int(size) for key, size in sizes.items()}
    boards, cores, threads = (
        given.get(key, 1) for key in ("boards", "corespersocket", "threadspercore")
    )
    per_socket = cores * threads
    cpus = given.get("cpus", 0)
    if "socketsperboard" in given:
        sockets = boards * given["socketsperboard"]
    elif "sockets" in given:
        sockets = given["sockets"]
    else:
        sockets = cpus // per_socket if cpus and cpus % per_socket == 0 else boards
    return boards, sockets, cores, threads, cpus or sockets * per_socket


def purge_age(text: str) -> str:
    """Return an age in slurmdbd.conf with its unit and no archive mark (slurmdb_parse_purge()).

    >>> purge_age("12"), purge_age("12 months*"), purge_age("30d"), purge_age("none")
    ('12m', '12m', '30d', '')
    """
    match = re.match(r"(\d+)\s*([a-z]?)", text)
    return f"{match[1]}{match[2] or 'm'}" if match else ""


def _number(text: str) -> str:
    if text in _UNLIMITED:
        return "unlimited"
    if match := _INTEGER.fullmatch(text):
        digits = match[1]
        octal = len(digits) > 1 and digits.isdigit() and digits.startswith("0")
        return str(int(digits, 8 if octal else 0) * (1024 if match[2] else 1))
    with suppress(ValueError):
        return f"{float(text):.15g}"
    return text


def _minutes(value: str) -> str:
    if value.lower() in _UNLIMITED:
        return "unlimited"
    with suppress(ValueError):
        return str(-(-durations.seconds(value) // 60))
    return value.lower()


def _log_level(value: str) -> str:
    level = conf.number(value)
    return LOG_LEVELS[level] if level is not None and level < len(LOG_LEVELS) else value.lower()


def _keywords(value: str) -> str:
    """Return keywords sorted by their names; of a name that occurs twice, Slurm finds the first."""
    first: dict[str, str] = {}
    for item in _items(value):
        name, equals, number = item.partition("=")
        first.setdefault(name.lower(), f"{equals}{number}")
    return ",".join(sorted(name + number for name, number in first.items())) or "none"


def _items(value: str) -> Iterator[str]:
    return filter(None, (item.strip() for item in value.split(",")))


def _set(value: str) -> str:
    return ",".join(sorted({*_items(value)}))


def _tres(value: str) -> str:
    return ",".join(sorted({*_items(value.lower())} - _ALWAYS_TRES))


def _enforced(value: str) -> str:
    words = {*_items(value.lower())}
    return ",".join(sorted(words.union(*(ENFORCE_TOO.get(word, ()) for word in words)) - {"none"}))


def _hosts(value: str) -> str:
    """Return the names of a hostlist; partitions may separate them with blanks."""
    if value.upper() == "ALL":
        return "ALL"
    names = names_of(",".join(value.split()))
    return hostlist.fold(sorted({*names})) if names and ":" not in value else value


def _gres(value: str) -> str:
    """Return each GRES with its count; the order counts only among types of the same name."""
    return ",".join(
        sorted(map(_gres_count, _items(value)), key=lambda item: item.partition(":")[0])
    )


def _gres_count(item: str) -> str:
    *words, last = item.split(":")
    count = re.fullmatch(r"(\d+)([kmgtp]?)b?", last, re.IGNORECASE) if words else None
    if not count:
        return f"{item}:1"
    size = c_numbers.strtol(count[1]) * 1024 ** " kmgtp".index(count[2].lower() or " ")
    return ":".join([*words, str(size)])


def _shares(value: str) -> str:
    """Return OverSubscribe with its count of jobs; slurm.conf(5): four by default."""
    word, _, count = value.lower().partition(":")
    return f"{word}:{count or 4}" if word in {"yes", "force"} else word


def _part_limits(value: str) -> str:
    return {"yes": "all", "no": "no"}.get(_BOOLEANS.get(value.lower(), ""), value.lower())


_READERS: dict[str, Callable[[str], str]] = {
    **dict.fromkeys(IN_MINUTES, _minutes),
    **dict.fromkeys(_SETS, _set),
    **dict.fromkeys(_LOWER_SETS, lambda value: _set(value.lower())),
    **dict.fromkeys(_HOSTLISTS, _hosts),
    **dict.fromkeys(_WORDS, str.lower),
    **{f"{daemon}debug": _log_level for daemon in ("slurmctld", "slurmd")},
    **{f"{daemon}syslogdebug": _log_level for daemon in ("slurmctld", "slurmd")},
    "accountingstorageenforce": _enforced,
    "accountingstoragetres": _tres,
    "debuglevel": _log_level,
    "debuglevelsyslog": _log_level,
    "enforcepartlimits": _part_limits,
    "file": lambda value: ",".join(names_of(value) or (value,)),
    "flags": lambda value: _set(value.lower()),
    "gres": _gres,
    "mpidefault": lambda value: value.lower() or "none",
    "oversubscribe": _shares,
    "suspendtime": lambda value: "none" if value.lower() in {*_UNLIMITED, "none"} else value,
}
