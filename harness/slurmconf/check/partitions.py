"""Partitions and NodeSets of slurm.conf."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from harness.parsing import c_numbers, hostlist
from harness.releases import Release
from harness.slurmconf.check import grammar, times
from harness.slurmconf.check.findings import ERROR, FATAL, INFO, SLURMCTLD, Finding, only_in
from harness.slurmconf.check.nodes import (
    both_per_cpu_and_per_node,
    is_cpu_bind,
    names_of,
    no_hostlist,
    node_names,
)
from harness.slurmconf.check.parsed_file import Row, Source

_EXCLUSIVE = re.compile("no|none|node|user|topo", re.IGNORECASE)
_OVERSUBSCRIBE = re.compile(r"no|exclusive|(yes|force)(:.*)?", re.IGNORECASE)
# _parse_hostlist_function of src/common/node_conf.c.
_FUNCTION = re.compile("(feature|(block|ring|switch|torus)(with)?){")
_STATE = re.compile("(down|up|drain|inactive).*", re.IGNORECASE)


def check(source: Source) -> Iterator[Finding]:
    """Yield the problems that slurmctld has with the partitions and NodeSets of slurm.conf."""
    node_sets, known = source.rows("nodeset"), node_names(source)
    yield from _node_sets(source, node_sets, known)
    yield from _partitions(source, node_sets, known)


def _node_sets(source: Source, node_sets: list[Row], known: Mapping[str, Row]) -> Iterator[Finding]:
    for row in node_sets:
        name = row.first.value
        if name in known and source.release.refuses_node_set_like_node:
            yield source.find(row.first, FATAL, "twice", f"there is also a node {name}")
        nodes = row.own.get("nodes")
        if nodes is None or nodes.value.upper() == "ALL":
            continue
        names = names_of(nodes.value, source.release)
        missing = [name_ for name_ in names or () if name_ not in known]
        if names is None:
            problem = no_hostlist(nodes.value, source.release)
            yield source.find(nodes, INFO, "hostlist", f"{problem}; it names no node")
        elif missing:
            yield source.find(nodes, INFO, "undefined", f"no such node: {hostlist.fold(missing)}")


def _partitions(
    source: Source, node_sets: list[Row], known: Mapping[str, Row]
) -> Iterator[Finding]:
    rows = source.rows("partitionname")
    seen: dict[str, Row] = {}
    for row in rows:
        refused = list(_partition_values(source, row))
        yield from refused
        if refused and source.release.unusable_value == ERROR:
            continue  # slurmctld leaves it out
        name = row.first.value
        if name in seen:
            message = f"partition {name} is already in line {seen[name].first.line.number}"
            yield source.find(row.first, FATAL, "twice", message, daemons=SLURMCTLD)
        seen[name] = row
        yield from _accepted(source, row)
        yield from both_per_cpu_and_per_node(source, row.all)
        yield from only_in(SLURMCTLD, _qos(source, row))
        yield from only_in(SLURMCTLD, _partition_nodes(source, row, node_sets, known))
        yield from _default_memory(source, row, node_sets, known)
    if not seen and source.release.needs_node_and_partition:
        message = "there is no usable partition; this release requires one"
        yield source.find_here(FATAL, "missing", "PartitionName", message, daemons=SLURMCTLD)
    elif not any((row.get("default") or "").lower() in {"yes", "true", "up", "1"} for row in rows):
        yield source.find_here(
            ERROR,
            "missing",
            "PartitionName",
            "no partition has Default=YES: jobs must name one",
            "Default=YES",
        )


def _partition_values(source: Source, row: Row) -> Iterator[Finding]:
    """Yield what _parse_partitionname of src/common/read_config.c refuses."""
    severity = source.release.unusable_value
    for key in ("maxtime", "defaulttime"):
        setting = row.all.get(key)
        problem = times.problem(setting.value) if setting else ""
        if setting and problem:
            yield source.find(setting, severity, "value", f'"{setting.value}" {problem}')
    forms = {
        "exclusive": (_EXCLUSIVE, "NO, NODE, USER or TOPO"),
        "oversubscribe": (_OVERSUBSCRIBE, "NO, EXCLUSIVE, YES[:n] or FORCE[:n]"),
        "shared": (_OVERSUBSCRIBE, "NO, EXCLUSIVE, YES[:n] or FORCE[:n]"),
        "state": (_STATE, "UP, DOWN, DRAIN or INACTIVE"),
    }
    for key, (form, words) in forms.items():
        setting = row.all.get(key)
        if setting and not form.fullmatch(setting.value):
            if key == "shared" and "oversubscribe" in row.all:
                continue
            yield source.find(setting, severity, "value", f'"{setting.value}" is not {words}')
    # DEFAULT lines have no effect on these two.
    select = row.own.get("selecttypeparameters")
    if select and not select.value.lower().startswith(("cr_core", "cr_socket")):
        message = f'"{select.value}" is not CR_Core, CR_Socket, or one of these with _Memory'
        yield source.find(select, severity, "value", message)
    suspend = row.own.get("suspendtime")
    bounded = source.release.bounds_partition_suspend_time
    if suspend and bounded and not times.is_suspend_time(suspend.value):
        message = f'"{suspend.value}" is not INFINITE or a number of seconds below 2^32'
        yield source.find(suspend, severity, "value", message)
    yield from _preempt_mode(source, row)


def _accepted(source: Source, row: Row) -> Iterator[Finding]:
    """Yield what _parse_partitionname accepts with an error, and a time that is not used."""
    for allow, deny in (("allowaccounts", "denyaccounts"), ("allowqos", "denyqos")):
        if (row.get(allow) or "all").lower() != "all" and row.get(deny):
            message = f"is ignored because of {row.all[allow].name}"
            yield source.find(row.all[deny], ERROR, "contradiction", message)
    for key in ("oversubscribe", "shared"):
        setting = row.all.get(key)
        count = re.fullmatch("(yes|force):(.*)", setting.value if setting else "", re.IGNORECASE)
        if (
            setting
            and count
            and c_numbers.atoi(count[2]) < (1 if count[1].lower() == "force" else 2)
        ):
            yield source.find(setting, ERROR, "value", f'"{setting.value}" is read as NO')
    limit, bind = row.all.get("overtimelimit"), row.all.get("cpubind")
    if limit and c_numbers.strtol(limit.value) < 0:
        yield source.find(limit, ERROR, "value", f'"{limit.value}" is less than 0, and ignored')
    if bind and not is_cpu_bind(bind.value):
        yield source.find(bind, ERROR, "value", f'"{bind.value}" is invalid, and ignored')
    user, topo = row.own.get("exclusiveuser"), row.own.get("exclusivetopo")
    if (
        user
        and topo
        and "exclusive" in source.release.options["slurm.conf PartitionName"]
        and grammar.is_true(user.value)
        and grammar.is_true(topo.value)
    ):
        yield source.find(user, ERROR, "contradiction", "is ignored because of ExclusiveTopo")
    default, most = row.all.get("defaulttime"), row.all.get("maxtime")
    limits = [(times.seconds(setting.value) or 0) if setting else 0 for setting in (most, default)]
    if default and most and 0 < limits[0] < limits[1]:
        message = f"{default.value} is more than MaxTime={most.value}, and ignored"
        yield source.find(default, INFO, "contradiction", message)


def _preempt_mode(source: Source, row: Row) -> Iterator[Finding]:
    """Yield a PreemptMode that preempt_mode_num() refuses; later releases take it for GANG."""
    mode = row.all.get("preemptmode")
    if mode is None:
        return
    words = [word.lower() for word in mode.value.split(",") if word]
    modifiers = [word for word in words if word in source.release.preempt_modifiers]
    unknown = {*words} - source.release.words["preemptmode"].known - {*modifiers}
    refused = unknown or len(words) - len(modifiers) > 1 or {"gang", "within"} <= {*words}
    if not source.release.refuses_preempt_mode_of_partition:
        if refused or "gang" in words:
            message = f'"{mode.value}" is ignored: GANG is an option of the whole cluster'
            yield source.find(mode, ERROR, "word", message)
    elif refused:
        yield source.find(
            mode,
            source.release.unusable_value,
            "word",
            f'"{mode.value}" is not one of OFF, CANCEL, REQUEUE and SUSPEND',
        )


def _qos(source: Source, row: Row) -> Iterator[Finding]:
    """Yield QOS that do not exist: src/slurmctld/read_config.c, _build_single_partitionline_info.

    With a database, it knows which QOS there are.
    """
    enforced = {*source.words("accountingstorageenforce")} & {"qos", "all"}
    for key in ("qos", "allowqos", "denyqos"):
        setting = row.all.get(key)
        needed = source.release.qos_needs_slurmdbd
        if setting is None or (setting.value.upper() == "ALL" and (key != "denyqos" or needed)):
            continue
        if needed and not setting.value and key != "qos":
            continue
        if not source.uses_slurmdbd() and (key != "qos" or source.release.qos_needs_slurmdbd):
            message = f'QOS "{setting.value}" requires accounting_storage/slurmdbd'
            severity = FATAL if source.release.qos_needs_slurmdbd else ERROR
            yield source.find(setting, severity, "qos", message)
        elif (
            key == "qos"
            and ("," in setting.value or not setting.value)
            and source.uses_slurmdbd()
            and (source.release.qos_needs_slurmdbd or enforced)
        ):
            message = f'"{setting.value}" is not one QOS'
            hint = f"AllowQos={setting.value} lets jobs choose" if setting.value else ""
            yield source.find(setting, FATAL, "qos", message, hint)


def _partition_nodes(
    source: Source, row: Row, node_sets: list[Row], known: Mapping[str, Row]
) -> Iterator[Finding]:
    """Yield nodes that do not exist: src/slurmctld/read_config.c, nodespec_to_hostlist."""
    setting = row.all.get("nodes")
    if setting is None or _is_all(setting.value, source.release):
        return
    names = names_of(setting.value, source.release)
    if names is None:
        problem = no_hostlist(setting.value, source.release)
        yield source.find(setting, FATAL, "hostlist", problem, "such as c[1-4]")
        return
    if source.release.crashes_on_bad_node_set:
        yield from _bad_node_sets(source, names, node_sets)
    names = _replaced(names, node_sets, source.release)
    if source.release.node_set_of_all == "alone" and names == ("ALL",):
        return  # _handle_nodesets makes text of the names, which is compared with ALL again
    lookup_matches_all = len(known) == 1 and "localhost" in known
    functions = source.release.node_functions  # such as feature{gpu}
    missing = [name for name in names if name not in known and not (functions and "{" in name)]
    wrong = [name for name in names if functions and "{" in name and not _FUNCTION.match(name)]
    if wrong:
        message = f"{wrong[0]} is not a function such as feature{{gpu}}; it is ignored"
        yield source.find(setting, ERROR, "value", message)
    if missing and not lookup_matches_all:
        hint = "write ALL alone" if "ALL" in (name.upper() for name in missing) else ""
        message = f"no such node: {hostlist.fold(missing)}"
        yield source.find(setting, FATAL, "undefined", message, hint)


def _default_memory(
    source: Source, row: Row, node_sets: list[Row], known: Mapping[str, Row]
) -> Iterator[Finding]:
    """Yield a default memory of jobs that no node of the partition has."""
    settings = [
        setting
        for place in (row.all, source.settings)
        for name in ("defmempernode", "defmempercpu")
        if (setting := place.get(name))
    ]
    if not settings:
        return
    names = names_of(row.get("nodes") or "", source.release) or ()
    names = _replaced(names, node_sets, source.release)
    sizes = [known[name].get("realmemory") if name in known else None for name in names]
    if not sizes or None in sizes:
        return  # nodes without RealMemory have what they detect
    most = max(c_numbers.strtol(str(size)) for size in sizes)
    if most < c_numbers.strtol(settings[0].value):
        message = (
            f"no node of partition {row.first.value} has more memory than RealMemory={most}: jobs "
            "that request none are refused"
        )
        yield source.find(settings[0], INFO, "contradiction", message)


def _bad_node_sets(
    source: Source, names: tuple[str, ...], node_sets: list[Row]
) -> Iterator[Finding]:
    """Yield node sets on which slurmctld crashes: src/common/hostlist.c, hostlist_push."""
    for row in node_sets:
        nodes = row.all.get("nodes")
        if nodes and row.first.value in names and names_of(nodes.value, source.release) is None:
            problem = f"{no_hostlist(nodes.value, source.release)}; slurmctld crashes"
            yield source.find(nodes, FATAL, "hostlist", problem, "such as c[1-4]")


def _is_all(value: str, release: Release) -> bool:
    return value == "ALL" or (value.upper() == "ALL" and release.all_nodes_in_any_case)


def _replaced(names: tuple[str, ...], node_sets: list[Row], release: Release) -> tuple[str, ...]:
    """Replace each NodeSet by its nodes. Nodes that have its Feature exist anyway."""
    left = list(names)
    for row in node_sets:
        if row.first.value in left:
            left.remove(row.first.value)
            nodes = row.get("nodes") or ""
            if nodes.upper() != "ALL" or release.node_set_of_all != "always":
                left += names_of(nodes, release) or ()
    return tuple(left)
