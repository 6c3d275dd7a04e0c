"""Compare the configuration in the memory of running daemons with the rendered files. Pure: no I/O.

Slurm prints many values differently from how it reads them, and differently in each release, so
both sides are converted to a canonical form first. Options without one are listed in
releases/printed_configuration.toml with the reason, and not compared.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from harness import releases
from harness.parsing import c_numbers, conf, durations, hostlist
from harness.releases import Release
from harness.slurm_options import LOG_LEVELS
from harness.slurmconf.canonical import ENFORCE_TOO, IN_MINUTES, purge_age, renamed
from harness.slurmconf.check import times

Options = Mapping[str, str]  # names in lower case

# Words that releases print for "no value", "no limit" or "no plugin".
_UNSET_WORDS = {
    "",
    "(null)",
    "(null type)",
    "none",
    "n/a",
    "unknown",
    "unlimited",
    "infinite",
    "-1",
}
_UNIT = re.compile(r"(\d+) (?:secs?|min|usec|percent|nodes/min)")
_NAMES_PLUGINS = re.compile(r"type|plugins?")
# Words that imply others: those of PrologFlags in prolog_str2flags() of Slurm's read_config.c.
# In releases in which DeferBatch does not imply Alloc, this hides a missing Alloc.
_IMPLIED = {
    "accountingstorageenforce": ENFORCE_TOO,
    "debugflags": {"tls": {"audittls"}},
    "prologflags": {
        "contain": {"alloc"},
        "deferbatch": {"alloc"},
        "forcerequeueonfail": {"alloc"},
        "nohold": {"alloc"},
        "runinjob": {"alloc", "contain"},
        "x11": {"alloc", "contain"},
    },
}
# Words with the same meaning: those of DebugFlags in debug_str2flags() of Slurm's read_config.c.
# 24.11 prints WorkQueue as ConMgr, 26.05 as thread.
_SAME = {
    "debugflags": {
        "conmgr": "workqueue",
        "elasticsearch": "jobcomp",
        "jag": "jobaccountgather",
        "net": "network",
        "netraw": "networkraw",
        "powersave": "power",
        "thread": "workqueue",
        "threads": "workqueue",
        "trigger": "triggers",
        "workq": "workqueue",
    },
}
# Options of a node that keep CPUs and memory from jobs. Slurm prints them only if one is set, but
# not as in slurm.conf.
_SPECIALIZED = {"corespeccount", "cpuspeclist", "memspeclimit"}
# Options of the cluster that count for the partitions that do not set them.
_SET_FOR_CLUSTER = {"disablerootjobs", "preemptmode"}
# Options of slurm.conf that have other names in `scontrol show`.
_NODE_NAMES = {"features": ("availablefeatures", "activefeatures"), "cpus": ("cputot",)}


@dataclass(frozen=True, slots=True)
class Rendered:
    """A slurm.conf: options; nodes, partitions and NodeSets by name, with DEFAULT lines applied."""

    options: Options
    nodes: Mapping[str, Options]
    partitions: Mapping[str, Options]
    node_sets: Mapping[str, Options]

    def default_partition(self) -> str:
        """Return the default partition, or the first if none is marked as default."""
        marked = [name for name, line in self.partitions.items() if holds(line, "Default")]
        return [*marked[-1:], *self.partitions][0]


def read(text: str) -> Rendered:
    """Read a rendered slurm.conf. Values of an option on several lines are joined by commas."""
    options: dict[str, str] = {}
    lines: dict[str, dict[str, dict[str, str]]]
    lines = {"nodename": {}, "partitionname": {}, "nodeset": {}}
    defaults: dict[str, dict[str, str]] = {"nodename": {}, "partitionname": {}}
    for line in conf.read(text):
        pairs = {pair.key.lower(): pair.value for pair in line.pairs}
        kind = next(iter(pairs), "")
        if kind not in lines:
            if kind not in {"downnodes", "frontendname"}:
                options |= {
                    key: ",".join(filter(None, [options.get(key), value]))
                    for key, value in pairs.items()
                }
            continue
        name = pairs.pop(kind)
        if name.upper() == "DEFAULT":
            defaults[kind] |= pairs
            continue
        members = hostlist.create(name) if kind == "nodename" else (name,)
        line_options = defaults.get(kind, {}) | pairs
        ports = _ports(line_options.get("port", ""))
        for place, member in enumerate(members):
            own = {"port": ports[place]} if len(ports) == len(members) else {}
            lines[kind][member] = line_options | own
    return Rendered(options, lines["nodename"], lines["partitionname"], lines["nodeset"])


def _ports(value: str) -> tuple[str, ...]:
    """Return the ports of a line: a single one, or one for each of its nodes.

    >>> _ports("[20001-20002]")
    ('20001', '20002')
    """
    return hostlist.create(f"[{value.strip('[]')}]") if value else ()


def printed(text: str) -> dict[str, str]:
    r"""Read `scontrol show config`, or the last part of `sacctmgr show configuration`.

    >>> printed("Configuration data\nJobRequeue   = 1\nSlurmctldHost[0] = a\nSlurmctldHost[1] = b")
    {'jobrequeue': '1', 'slurmctldhost': 'a,b'}
    """
    options: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if not equals or not line.strip():
            if options:
                break
            continue
        key = re.sub(r"\[\d+\]", "", name.strip()).lower()
        options[key] = ",".join(filter(None, [options.get(key), value.strip()]))
    return options


def printed_lines(text: str) -> dict[str, dict[str, str]]:
    """Read `scontrol --oneliner show node` or `partition`: name -> options.

    >>> printed_lines("NodeName=n1 Arch=x86_64 Gres=gpu:2(S:0)")["n1"]["gres"]
    'gpu:2(S:0)'
    """
    options_of = {}
    for line in text.splitlines():
        # The first of each counts, because comments, which can hold any text, come last.
        pairs = {key.lower(): value for key, value in reversed(re.findall(r"(\S+?)=(\S*)", line))}
        for kind in {"nodename", "partitionname"} & pairs.keys():
            options_of[pairs.pop(kind)] = pairs
    return options_of


def holds(line: Options, option: str) -> bool:
    """Return whether a yes-or-no option of a line is set."""
    return canonical(option, line.get(option.lower(), "")) == "1"


def canonical(option: str, value: str) -> str:
    """Return the canonical form of an option's value.

    >>> {canonical("MaxTime", time) for time in ("60", "01:00:00", "1:00:00")}
    {'3600'}
    >>> canonical("MaxTime", "0:00:01")
    '60'
    >>> canonical("AccountingStorageEnforce", "qos,limits")
    'associations,limits,qos'
    >>> canonical("PrologFlags", "X11")
    'alloc,contain,x11'
    >>> canonical("DebugFlags", "WorkQ,Net") == canonical("DebugFlags", "Network,ConMgr")
    True
    """
    name = option.lower()
    text = value.strip().strip('"').lower()
    if name.endswith("user"):
        text = re.sub(r"\(\d+\)$", "", text)
    if name == "slurmctldhost":
        text = re.sub(r"\([^)]*\)", "", text)
    if match := _UNIT.fullmatch(text):
        text = match[1]
    if "debug" in name and text.isdigit() and int(text) < len(LOG_LEVELS):
        text = LOG_LEVELS[int(text)]
    if name.startswith("purge"):
        return purge_age(text) or "-"
    items = {_item(name, item.strip()) for item in text.split(",")}
    if name == "privatedata":  # Slurm reads singular and plural, and prints the plural
        items = {item.removesuffix("s") for item in items}
    same = _SAME.get(name, {})
    items = {same.get(item, item) for item in items}
    implied = _IMPLIED.get(name, {})
    items |= {more for item in items for more in implied.get(item, ())}
    return ",".join(sorted(items - {"-"})) or "-"


def _item(name: str, text: str) -> str:
    """Return the canonical form of an item of a list, or of a value that is not a list."""
    if _NAMES_PLUGINS.search(name):
        text = re.sub(r"^\w+/", "", text)
    if text in _UNSET_WORDS:
        return "-"
    if text in {"yes", "true", "no", "false"}:
        return str(int(text in {"yes", "true"}))
    with suppress(ValueError):
        if name in IN_MINUTES:  # Slurm rounds up: time_str2mins()
            return str(-(-durations.seconds(text, 60) // 60) * 60)
        return str(durations.seconds(text, 1))
    return text.rstrip("/") if text.startswith("/") else text


def config(file: str, expected: Options, actual: Options, release: Release) -> Iterator[str]:
    """Yield a line for each option whose value in a daemon's memory differs from its file.

    `expected` is the rendered file, `actual` what the daemon prints. An option that the file does
    not set must have Slurm's default, if that is the same in all releases. Words that the release
    no longer has count for nothing.
    """
    data = table()
    defaults = {
        key: value
        for key, value in data["defaults"][file].items()
        if key not in data["left_out"][file]
    }
    for key, value in {**defaults, **expected, **_implied(file, expected)}.items():
        shown = actual.get(key, "" if key in data["printed_if_set"] else None)
        if key in data["left_out"][file] or shown is None or "%secret:" in value:
            continue
        if key in data["all_is_spelled_out"]:
            if value.lower() == "all":
                continue
            value = _known_words(key, value, release)
        value = _as_number(file, key, value, release)
        if canonical(key, value) != canonical(key, shown):
            source = f"has {value}" if key in expected else f"leaves it at {value}"
            yield f"{_spelling(file, key)} is {shown or 'not set'}, {file} {source}"


def _as_number(file: str, option: str, value: str, release: Release) -> str:
    """Return a whole number as Slurm reads it: 010 is octal (strtoull() in parse_config.c)."""
    known = release.options[file].get(option)
    is_number = known and known.type.startswith("uint") and re.fullmatch("0[0-7]+", value)
    return str(int(value, 8)) if is_number else value


def _known_words(option: str, value: str, release: Release) -> str:
    """Return a value without the words that a release has removed."""
    gone = release.words[option].gone
    return ",".join(word for word in value.split(",") if word.strip().lower() not in gone)


def _implied(file: str, expected: Options) -> dict[str, str]:
    """Return the options whose values differ from the file's because of other options.

    In Slurm: _validate_accounting_storage_enforce() of read_config.c; read_slurmdbd_conf(), which
    archives only what it purges.

    >>> _implied("slurm.conf", {"accountingstorageenforce": "wckeys"})
    {'trackwckey': 'yes'}
    >>> _implied("slurmdbd.conf", {"archivejobs": "yes", "purgejobafter": "1month"})
    {}
    """
    if file == "slurm.conf":
        enforced = {*expected.get("accountingstorageenforce", "").lower().split(",")}
        return {"trackwckey": "yes"} if enforced & {"wckeys", "all"} else {}
    return {
        key: "no"
        for key in expected
        if (match := re.fullmatch(r"archive(event|job|resv|step|suspend|txn|usage)s?", key))
        and not any(re.match(f"purge{match[1]}|{match[1]}purge", other) for other in expected)
    }


def nodes(
    expected: Mapping[str, Options],
    actual: Mapping[str, Options],
    options: Options,
    source: str = "slurm.conf",
) -> Iterator[str]:
    """Yield where the nodes in slurmctld's memory differ from the lines of slurm.conf.

    `options` are those of the cluster; `source` is named in place of slurm.conf.
    """
    for name, options_of_line in expected.items():
        line = renamed("slurm.conf NodeName", options_of_line)
        if name not in actual:
            yield f"node {name} is unknown to slurmctld"
            continue
        if not _SPECIALIZED & line.keys():
            yield from (
                f"node {name}: {_spelling('slurm.conf NodeName', key)} is {actual[name][key]}, "
                f"{source} has no such option"
                for key in sorted(_SPECIALIZED & actual[name].keys())
                if actual[name][key] not in {"0", ""}
            )
        for key, value in _node_options(name, line, options).items():
            shown = [
                actual[name][printed]
                for printed in _NODE_NAMES.get(key, (key,))
                if printed in actual[name]
            ]
            if wrong := [
                text for text in shown if _node_value(key, text) != _node_value(key, value)
            ]:
                wanted = f"has {value}" if key in line else f"leaves it at {value}"
                yield (
                    f"node {name}: {_spelling('slurm.conf NodeName', key)} is {wrong[0]}, "
                    f"{source} {wanted}"
                )


def partitions(
    conf: Rendered, actual: Mapping[str, Options], nodes: Mapping[str, Options]
) -> Iterator[str]:
    """Yield where the partitions in slurmctld's memory differ from the lines of slurm.conf.

    `nodes` are all nodes, including those that slurm.conf does not name.
    """
    data = table()
    sets = {"ALL": {*nodes}} | _node_sets(conf, nodes)
    expected = conf.partitions
    of_cluster = {key: conf.options[key] for key in _SET_FOR_CLUSTER & conf.options.keys()}
    default = [name for name, line in expected.items() if holds(line, "Default")][-1:]
    for name in sorted({*expected} ^ {*actual}):
        yield (
            f"partition {name} is "
            f"{'unknown to slurmctld' if name in expected else 'not in slurm.conf'}"
        )
    for name in sorted({*expected} & {*actual}):
        line = of_cluster | renamed("slurm.conf PartitionName", expected[name])
        if name not in default:  # of several, Slurm takes the last
            line["default"] = "NO"
        # _build_single_partitionline_info of src/slurmctld/read_config.c
        limits = [times.seconds(line.get(key, "")) or 0 for key in ("maxtime", "defaulttime")]
        if 0 < limits[0] < limits[1]:
            del line["defaulttime"]
        if (held := exclusive(actual[name])) != (word := exclusive(line)):
            yield f"partition {name}: Exclusive is {held}, should be {word}"
        for limit in ("DefMem", "MaxMem"):
            if (held := _memory(limit, actual[name])) != (word := _memory(limit, line)):
                yield f"partition {name}: {held}, should be {word}"
        for key, value in {**data["defaults"]["partition"], **line}.items():
            shown = actual[name].get(key, "" if key in {"denyaccounts", "denyqos"} else None)
            if shown is None or key in data["left_out"]["partition"]:
                continue
            expected_value = _partition_value(key, value, sets)
            if expected_value is not None and expected_value != _partition_value(key, shown, sets):
                source = f"has {value}" if key in line else f"leaves it at {value}"
                yield (
                    f"partition {name}: {_spelling('slurm.conf PartitionName', key)} is {shown}, "
                    f"slurm.conf {source}"
                )


def _node_sets(conf: Rendered, nodes: Mapping[str, Options]) -> dict[str, set[str]]:
    """Return the nodes of each NodeSet. Plugins may change features while the cluster runs."""
    sets = {}
    for name, line in conf.node_sets.items():
        if "feature" in line and "nodefeaturesplugins" in conf.options:
            continue
        sets[name] = {*hostlist.create(line.get("nodes", ""))} | {
            node
            for node, options in nodes.items()
            if line.get("feature")
            in renamed("slurm.conf NodeName", options).get("features", "").split(",")
        }
    return sets


def _node_options(name: str, line: Options, options: Options) -> dict[str, str]:
    """Return the options that slurmctld must have for a node.

    Its size is what slurmd detects, without config_overrides.
    """
    data = table()
    expected = {**data["defaults"]["node"], "nodehostname": name, **line}
    expected.setdefault("nodeaddr", expected["nodehostname"])
    if "config_overrides" not in options.get("slurmdparameters", ""):
        expected = {key: value for key, value in expected.items() if key not in data["size"]}
    if "nodefeaturesplugins" in options:
        expected.pop("features", None)
    return {key: value for key, value in expected.items() if key not in data["left_out"]["node"]}


def _node_value(key: str, value: str) -> Any:
    if key == "cpubind":  # Slurm prints "threads" for CpuBind=thread
        return value.lower().removesuffix("s")
    return _gres(value) if key == "gres" else canonical(key, value)


def _gres(value: str) -> dict[str, int]:
    """Return the count of each GRES, without types and sockets, which can come from gres.conf.

    >>> _gres("gpu:tesla:2(S:0-1),gpu:1,bandwidth:lustre:no_consume:4G")
    {'gpu': 3, 'bandwidth': 4294967296}
    """
    counts: dict[str, int] = {}
    for item in re.sub(r"\([^)]*\)", "", value).lower().split(","):
        name, *words = item.split(":")
        if name in _UNSET_WORDS:
            continue
        last = re.fullmatch(r"(\d+)([kmgtp]?)b?", words[-1]) if words else None
        count = c_numbers.strtol(last[1]) * 1024 ** " kmgtp".index(last[2] or " ") if last else 1
        counts[name] = counts.get(name, 0) + count
    return counts


def exclusive(line: Options) -> str:
    """Return what jobs of a partition do not share with others, as 26.05 spells and prints it.

    >>> exclusive({"exclusive": "user"}), exclusive({"exclusivetopo": "YES"}), exclusive({})
    ('USER', 'TOPO', 'NO')
    """
    if word := line.get("exclusive", "").upper():
        return "NO" if word == "NONE" else word
    if holds(line, "ExclusiveTopo"):
        return "TOPO"
    if line.get("oversubscribe", "").lower() == "exclusive":
        return "NODE"
    return "USER" if holds(line, "ExclusiveUser") else "NO"


def _memory(limit: str, line: Options) -> str:
    """Return a partition's own limit of memory as Slurm prints it, whose value for nodes wins.

    >>> _memory("DefMem", {"defmempercpu": "1000"}), _memory("MaxMem", {})
    ('DefMemPerCPU=1000', 'MaxMemPerNode=UNLIMITED')
    """
    units = [unit for unit in ("PerNode", "PerCPU") if f"{limit}{unit}".lower() in line]
    unit = [*units, "PerNode"][0]
    value = line.get(f"{limit}{unit}".lower(), "0").upper()
    return f"{limit}{unit}={'UNLIMITED' if value == '0' else value}"


def _partition_value(key: str, value: str, sets: Mapping[str, Collection[str]]) -> Any:
    """Return a canonical value; None for the nodes of a NodeSet that is not in `sets`."""
    if key in {"allowaccounts", "allowqos", "allowgroups", "allocnodes"} and not value:
        return "all"
    if key == "oversubscribe":  # slurm.conf(5): four jobs by default
        word, _, count = value.lower().partition(":")
        # 26.05 prints NO for both.
        return "no" if word in {"no", "exclusive"} else f"{word}:{count or 4}"
    if key == "preemptmode":  # Slurm prints GANG for partitions without a mode of their own only
        modes = {*value.lower().split(",")} - {"gang"}
        return modes or {"off"}
    if key == "overtimelimit":
        return "unlimited" if value.lower() in {"infinite", "unlimited"} else value.lower()
    if key == "nodes" and value.lower() not in _UNSET_WORDS:
        names: set[str] = set()
        for name in [value.upper()] if value.upper() == "ALL" else hostlist.create(value):
            if name in sets:
                names |= {*sets[name]}
            elif name in sets["ALL"]:
                names.add(name)
            else:
                return None
        return names
    return canonical(key, value)


@cache
def table() -> dict[str, Any]:
    """Return releases/printed_configuration.toml, with names of options in lower case."""
    data = releases.printed()
    return {
        "defaults": data["defaults"],
        "left_out": {file: _lower(part) for file, part in data["left_out"].items()},
        "printed_if_set": {*data["printed_if_set"].lower().split()},
        "all_is_spelled_out": {*data["all_is_spelled_out"].lower().split()},
        "size": {*data["size"].lower().split()},
    }


def _spelling(section: str, key: str) -> str:
    """Return an option's name as Slurm's manual pages spell it."""
    known = (releases.get(name).options.get(section, {}) for name in reversed(releases.KNOWN))
    return next((options[key].name for options in known if key in options), key)


def _lower(part: Mapping[str, str]) -> dict[str, str]:
    return {key.lower(): value for key, value in part.items()}
