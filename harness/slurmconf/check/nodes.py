"""Nodes, partitions, NodeSets and DownNodes of slurm.conf: names, counts, dangling references."""

from __future__ import annotations

import re
from collections.abc import Iterator

from harness import releases
from harness.parsing import conf, hostlist
from harness.releases import Release
from harness.slurmconf.check.findings import ERROR, FATAL, WARNING, Finding
from harness.slurmconf.check.parsed_file import Row, Setting, Settings, Source

_STATES = {"unknown", "down", "idle", "allocated", "error", "mixed", "future"}
_STATE_PREFIXES = ("cloud", "drain", "fail")
TIME = re.compile(r"-1|infinite|unlimited|\d+(:\d+){0,2}|\d+-(\d+(:\d+){0,2})?", re.IGNORECASE)
_OVERSUBSCRIBE = re.compile(r"no|exclusive|(yes|force)(:.*)?", re.IGNORECASE)
_PARTITION_STATE = re.compile("(down|up|drain|inactive).*", re.IGNORECASE)
_BETWEEN = re.compile(r"[,\s]+(?![^\[]*\])")
_PLAIN = re.compile("[A-Za-z0-9_][A-Za-z0-9._-]*")
_ORIGIN = ("nodehostname", "nodeaddr", "bcastaddr")


def check(source: Source) -> Iterator[Finding]:
    """Yield the problems that slurmctld has with the nodes and partitions of slurm.conf."""
    known: dict[str, Setting] = {}
    yield from _default_lines(source)
    # Lines that differ only in the names of their nodes are checked once: there may be many.
    fine: set[tuple[tuple[str, int], int]] = set()
    for row in source.rows("nodename"):
        names = names_of(row.first.value)
        yield from _node_names(source, row, names, known)
        alike = (row.alike, len(names or ()))
        if alike not in fine:
            findings = list(_node_options(source, row, len(names or ())))
            yield from findings
            if not findings:
                fine.add(alike)
    node_sets = {row.first.value: row for row in source.rows("nodeset")}
    yield from _node_sets(source, node_sets, known)
    yield from _partitions(source, node_sets, known)
    for row in source.rows("downnodes"):
        missing = [name for name in names_of(row.first.value) or () if name not in known]
        if missing:
            yield source.find(
                row.first, ERROR, "undefined", f"no such node: {hostlist.fold(missing)}"
            )
    maximum = source.settings.get("maxnodecount")
    if maximum and (source.get("selecttype") or default_select(source)) != "select/cons_tres":
        yield source.find(maximum, FATAL, "contradiction", "needs SelectType=select/cons_tres")
    if not known and not maximum and source.release.needs_node_and_partition:
        yield source.find_here(
            FATAL, "missing", "NodeName", "there is no node; this release requires one"
        )


def names_of(value: str) -> tuple[str, ...] | None:
    """Return the nodes that a hostlist names; None if it is invalid."""
    if _PLAIN.fullmatch(value):
        return (value,)
    parts = _parts(value)
    try:
        return hostlist.expand(",".join(parts)) if parts else ()
    except ValueError:
        return None


def _parts(value: str) -> list[str]:
    """Return the parts of a hostlist between commas and blanks; Slurm skips empty parts."""
    return [part for part in _BETWEEN.split(value) if part]


def node_names(source: Source) -> dict[str, Row]:
    """Return all nodes with their lines."""
    return {
        name: row for row in source.rows("nodename") for name in names_of(row.first.value) or ()
    }


def default_select(source: Source) -> str:
    """Return the default SelectType of the release."""
    return releases.default_of(source.release, "slurm.conf", "SelectType")


def _default_lines(source: Source) -> Iterator[Finding]:
    for setting in source.all_of("nodename"):
        if setting.value.upper() != "DEFAULT":
            continue
        for pair in setting.line.pairs[1:]:
            if pair.key.lower() in _ORIGIN:
                address = Setting(setting.path, setting.line, pair)
                severity = source.release.unusable_value
                yield source.find(
                    address, severity, "default-line", "is not allowed with NodeName=DEFAULT"
                )


def _node_names(
    source: Source, row: Row, names: tuple[str, ...] | None, known: dict[str, Setting]
) -> Iterator[Finding]:
    if names is None and not source.release.refuses_odd_node_name and "]" not in row.first.value:
        yield source.find(
            row.first, WARNING, "hostlist", "is read as the name of a single node", "such as c[1-4]"
        )
        names = (row.first.value,)
    if names is None:
        yield source.find(
            row.first, FATAL, "hostlist", f'"{row.first.value}" is not a hostlist such as c[1-4]'
        )
        return
    if not names:
        yield source.find(
            row.first,
            source.release.empty_node_name,
            "hostlist",
            "names no node",
        )
    for name in names:
        if name in known:
            message = f"node {name} is already in line {known[name].line.number}"
            yield source.find(row.first, FATAL, "twice", message)
            break
    known.update(dict.fromkeys(names, row.first))


def _node_options(source: Source, row: Row, count: int) -> Iterator[Finding]:
    if count:
        yield from _counts(source, row, count)
    state = row.all.get("state")
    if state and not _is_node_state(source.release, state.value):
        yield source.find(
            state,
            FATAL,
            "value",
            f'"{state.value}" is not a node state',
            "such as UNKNOWN or CLOUD",
        )
    gres = row.all.get("gres")
    if gres:
        types = {word.lower() for word in source.words("grestypes")}
        for word in gres.words():
            name = word.partition(":")[0]
            if not types:
                yield source.find(
                    gres,
                    ERROR,
                    "gres",
                    f"{name} is ignored, because GresTypes is not set",
                    "GresTypes=...",
                )
                break
            if name.lower() not in types:
                yield source.find(
                    gres, ERROR, "gres", f"{name} is not in GresTypes", f"GresTypes=...,{name}"
                )
    yield from _shape(source, row)


def _counts(source: Source, row: Row, count: int) -> Iterator[Finding]:
    for key in _ORIGIN:
        setting = row.own.get(key)
        if setting is None:
            continue
        names = names_of(setting.value)
        if names is None:
            yield source.find(
                setting, FATAL, "hostlist", f'"{setting.value}" is not a hostlist such as c[1-4]'
            )
        elif len(names) not in {1, count}:
            yield source.find(
                setting,
                FATAL,
                "count",
                f"{len(names)} for {count} nodes; must be one, or one per node",
            )
        elif len(names) < count and not source.release.nodes_may_share_address:
            message = (
                f"one for {count} nodes; a Slurm built without --enable-multiple-slurmd refuses it"
            )
            yield source.find(setting, WARNING, "count", message)
    port = row.all.get("port")
    ports = names_of(port.value) if port else None
    if port and ports is not None:
        if len(ports) not in {1, count}:
            yield source.find(
                port,
                FATAL,
                "count",
                f"{len(ports)} for {count} nodes; must be one, or one per node",
            )
        elif not all(0 < (conf.number(number) or 0) < 65536 for number in ports):
            yield source.find(
                port, FATAL, "value", f'"{port.value}" is not a port or a range of ports'
            )


def _is_node_state(release: Release, value: str) -> bool:
    state = value.lower()
    prefixes = (*_STATE_PREFIXES, *(("external",) if release.external_jobs else ()))
    return state in _STATES or state.startswith(prefixes)


def _shape(source: Source, row: Row) -> Iterator[Finding]:
    """Check the CPUs of a node: src/common/read_config.c, _parse_nodename.

    Before 23.11, it is select/cons_tres that checks them.
    """
    sizes = {
        key: _number(row, key) for key in ("cpus", "procs", "sockets", "socketsperboard", "boards")
    }
    cores, threads = _number(row, "corespersocket") or 1, _number(row, "threadspercore") or 1
    cpus = sizes["cpus"] or sizes["procs"]
    boards = sizes["boards"] or 1
    sockets = sizes["socketsperboard"] * boards if sizes["socketsperboard"] else sizes["sockets"]
    if not cpus or not sockets:
        return
    fitting = {sockets, sockets * cores, sockets * cores * threads}
    if cpus not in fitting:
        about = row.all.get("cpus") or row.all["procs"]
        shape = f"{sockets} sockets, {cores} cores each, {threads} threads each"
        yield source.find(
            about,
            ERROR,
            "cpus",
            f"{cpus} CPUs do not match {shape}; slurmctld sets them to {max(fitting)}",
        )


def _number(row: Row, key: str) -> int:
    return conf.number(row.get(key) or "") or 0


def _node_sets(
    source: Source, node_sets: dict[str, Row], known: dict[str, Setting]
) -> Iterator[Finding]:
    for name, row in node_sets.items():
        if name in known and source.release.refuses_node_set_like_node:
            yield source.find(row.first, FATAL, "twice", f"there is also a node {name}")
        nodes = row.own.get("nodes")
        missing = (
            [
                name_
                for name_ in names_of(nodes.value) or ()
                if name_ not in known and name_.upper() != "ALL"
            ]
            if nodes
            else []
        )
        if nodes and missing:
            yield source.find(
                nodes, WARNING, "undefined", f"no such node: {hostlist.fold(missing)}"
            )


def _partitions(
    source: Source, node_sets: dict[str, Row], known: dict[str, Setting]
) -> Iterator[Finding]:
    rows = source.rows("partitionname")
    seen: dict[str, Row] = {}
    for row in rows:
        for name in row.first.words():
            if name in seen:
                message = f"partition {name} is already in line {seen[name].first.line.number}"
                yield source.find(row.first, FATAL, "twice", message)
            seen[name] = row
        yield from _partition_values(source, row)
        yield from _partition_nodes(source, row, node_sets, known)
    if not rows and source.release.needs_node_and_partition:
        yield source.find_here(
            FATAL, "missing", "PartitionName", "there is no partition; this release requires one"
        )
    if rows and not any(
        (row.get("default") or "").lower() in {"yes", "true", "up", "1"} for row in rows
    ):
        yield source.find_here(
            ERROR,
            "missing",
            "PartitionName",
            "no partition has Default=YES: jobs must name one",
            "Default=YES",
        )


def _partition_values(source: Source, row: Row) -> Iterator[Finding]:
    severity = source.release.unusable_value  # with an error, slurmctld leaves the partition out
    for key in ("maxtime", "defaulttime"):
        setting = row.all.get(key)
        if setting and not TIME.fullmatch(setting.value):
            yield source.find(
                setting,
                severity,
                "value",
                f'"{setting.value}" is not a time such as 7-0 or 12:00:00',
            )
    shared = row.all.get("oversubscribe") or row.all.get("shared")
    if shared and not _OVERSUBSCRIBE.fullmatch(shared.value):
        yield source.find(
            shared,
            severity,
            "value",
            f'"{shared.value}" is not NO, EXCLUSIVE, YES[:n] or FORCE[:n]',
        )
    for key in ("qos", "allowqos", "denyqos"):
        setting = row.all.get(key)
        # src/slurmctld/read_config.c; with a database, it knows which QOS there are.
        if (
            setting
            and not source.uses_slurmdbd()
            and source.release.qos_needs_slurmdbd
            and setting.value.upper() != "ALL"
        ):
            yield source.find(
                setting,
                FATAL,
                "qos",
                f'QOS "{setting.value}" requires accounting_storage/slurmdbd',
            )
    state = row.all.get("state")
    if state and not _PARTITION_STATE.fullmatch(state.value):
        yield source.find(
            state, severity, "value", f'"{state.value}" is not UP, DOWN, DRAIN or INACTIVE'
        )
    yield from both_per_cpu_and_per_node(source, row.all)


def _partition_nodes(
    source: Source, row: Row, node_sets: dict[str, Row], known: dict[str, Setting]
) -> Iterator[Finding]:
    setting = row.all.get("nodes")
    if setting is None or not setting.value:
        return
    if setting.value == "ALL" or (
        setting.value.upper() == "ALL" and source.release.all_nodes_in_any_case
    ):
        return
    if re.search(r"[{}]", setting.value) and source.release.node_functions:
        return  # functions such as feature{gpu}
    parts = _parts(setting.value)
    nodes = [part for part in parts if part not in node_sets]
    for part in parts:
        node_set = node_sets.get(part)
        nodes += _parts(node_set.get("nodes") or "") if node_set else []
    names = names_of(",".join(nodes))
    if names is None:
        yield source.find(
            setting, FATAL, "hostlist", f'"{setting.value}" is not a hostlist such as c[1-4]'
        )
        return
    lookup_matches_all = len(known) == 1 and "localhost" in known
    missing = [name for name in names if name not in known]
    if "ALL" in (name.upper() for name in missing) and source.release.all_among_nodes:
        missing = [name for name in missing if name.upper() != "ALL"]
    if missing and not lookup_matches_all:
        yield source.find(setting, FATAL, "undefined", f"no such node: {hostlist.fold(missing)}")


def both_per_cpu_and_per_node(source: Source, settings: Settings) -> Iterator[Finding]:
    """Yield the memory limits per CPU that are ignored because there is a limit per node."""
    for per_cpu, per_node in (("defmempercpu", "defmempernode"), ("maxmempercpu", "maxmempernode")):
        if per_cpu in settings and per_node in settings:
            yield source.find(
                settings[per_cpu],
                ERROR,
                "contradiction",
                f"is ignored because {settings[per_node].name} is set",
            )
