"""Nodes and DownNodes of slurm.conf: names, counts, dangling references."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from harness import releases
from harness.parsing import c_numbers, hostlist
from harness.releases import Release
from harness.slurmconf.check import grammar
from harness.slurmconf.check.findings import (
    ERROR,
    FATAL,
    INFO,
    SLURMCTLD,
    SLURMD,
    Finding,
    only_in,
)
from harness.slurmconf.check.parsed_file import Row, Setting, Settings, Source
from harness.slurmconf.check.times import is_suspend_time

# node_state_string() has no name for NODE_STATE_ERROR, so state_str2int() does not know it.
_STATES = {"unknown", "down", "idle", "allocated", "mixed", "future"}
_STATE_PREFIXES = ("cloud", "drain", "fail")
# Counts of a node that cannot be 0.
_SIZES = (
    "boards",
    "corespersocket",
    "cpus",
    "procs",
    "sockets",
    "socketsperboard",
    "threadspercore",
)
# xlate_cpu_bind_str of src/common/slurm_resource_info.c.
_CPU_BIND = re.compile("no|none|sockets?|ldoms?|cores?|threads?|off", re.IGNORECASE)
_PLAIN = re.compile("[A-Za-z0-9_][A-Za-z0-9._-]*")
_ORIGIN = ("nodehostname", "nodeaddr", "bcastaddr")


def check(source: Source) -> Iterator[Finding]:
    """Yield the problems that slurmctld has with the nodes of slurm.conf."""
    known: dict[str, Setting] = {}
    yield from _default_lines(source)
    # Of lines that differ only in names and addresses, the rest is checked once: there may be many.
    fine: set[tuple[object, ...]] = set()
    for row in source.rows("nodename"):
        names = names_of(row.first.value, source.release)
        count = len(names or ())
        yield from _node_names(source, row, names, known)
        rest = row.alike
        if not row.values.keys().isdisjoint(_ORIGIN):
            yield from _addresses(source, row, count)
            rest = row.values_without(_ORIGIN)
        if (count, rest) not in fine:
            findings = list(_node_options(source, row, count))
            yield from findings
            if not findings:
                fine.add((count, rest))
    yield from _mistaken_nodes(source)
    for row in source.rows("downnodes"):
        yield from _down_nodes(source, row, known)
    maximum = source.settings.get("maxnodecount")
    if maximum and (source.get("selecttype") or default_select(source)) != "select/cons_tres":
        yield source.find(maximum, FATAL, "contradiction", "needs SelectType=select/cons_tres")
    else:
        yield from _too_many(source, maximum, len(known))
    if not known and not maximum and source.release.needs_node_and_partition:
        yield source.find_here(
            FATAL, "missing", "NodeName", "there is no node; this release requires one"
        )


def _down_nodes(source: Source, row: Row, known: dict[str, Setting]) -> Iterator[Finding]:
    """Yield what _handle_downnodes_line of src/slurmctld/read_config.c ignores with an error."""
    names = names_of(row.first.value, source.release)
    missing = [name for name in names or () if name not in known]
    state = row.own.get("state")
    if state and not _is_node_state(source.release, state.value):
        yield source.find(state, ERROR, "value", f'"{state.value}" is not a node state')
    elif names is None:
        problem = no_hostlist(row.first.value, source.release)
        yield source.find(row.first, ERROR, "hostlist", problem)
    elif missing:
        yield source.find(row.first, ERROR, "undefined", f"no such node: {hostlist.fold(missing)}")


def _too_many(source: Source, maximum: Setting | None, count: int) -> Iterator[Finding]:
    """Yield a MaxNodeCount that slurmctld refuses, or more nodes than it accepts.

    _validate_and_set_defaults of src/common/read_config.c and create_node_record_at of node_conf.c.
    """
    release = source.release
    number = grammar.number("uint32", maximum.value) or 0 if maximum else 0
    if maximum and release.most_nodes and number > release.most_nodes - 1:
        message = f"{maximum.value} is higher than the maximum allowed ({release.most_nodes - 1})"
        yield source.find(maximum, FATAL, "value", message)
    elif maximum and number < count and (number or not release.zero_is_no_node_limit):
        message = f"{maximum.value} is lower than the number of nodes ({count})"
        yield source.find(maximum, release.too_many_nodes, "count", message)
    elif release.most_nodes and count > release.most_nodes:
        message = f"there are {count} nodes; the release supports {release.most_nodes}"
        yield source.find_here(FATAL, "count", "NodeName", message)


def names_of(value: str, release: Release | None = None) -> tuple[str, ...] | None:
    """Return the nodes that a release reads from a hostlist; None if it refuses the hostlist.

    Without a release, the newest one reads it.
    """
    if _PLAIN.fullmatch(value):
        return (value,)
    try:
        return hostlist.create(value, _grammar(release) if release else hostlist.NEWEST)
    except ValueError:
        return None


def no_hostlist(value: str, release: Release) -> str:
    """Return why a release refuses a hostlist; "" if it accepts it."""
    try:
        hostlist.create(value, _grammar(release))
    except ValueError as error:
        return f'"{value}" is not a hostlist: {error}'
    return ""


def _grammar(release: Release) -> hostlist.Grammar:
    return hostlist.Grammar(release.hostlist_suffixes, release.completes_brackets)


def node_names(source: Source) -> dict[str, Row]:
    """Return all nodes with their lines."""
    return {
        name: row
        for row in source.rows("nodename")
        for name in names_of(row.first.value, source.release) or ()
    }


def is_cpu_bind(value: str) -> bool:
    """Return whether a CpuBind names at most one unit, and is verbose at most."""
    words = re.split("[,;]+", value.strip(",;").lower())
    units = [word for word in words if word not in {"", "v", "verbose"}]
    return len(units) < 2 and all(map(_CPU_BIND.fullmatch, units))


def is_cloud(row: Row) -> bool:
    """Return whether the nodes of a line have State=CLOUD."""
    return (row.get("state") or "").upper().startswith("CLOUD")


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
    if names is None:
        problem = no_hostlist(row.first.value, source.release)
        yield source.find(row.first, FATAL, "hostlist", problem, "such as c[1-4]")
        return
    if not row.first.value:
        yield source.find(
            row.first,
            source.release.empty_node_name,
            "hostlist",
            "names no node",
        )
    if "[" in row.first.value and "]" not in row.first.value:
        yield source.find(
            row.first,
            ERROR,
            "hostlist",
            f"is read as the name of a single node: {names[-1]}",
            "such as c[1-4]",
        )
    here: set[str] = set()
    for name in names:
        if name in known or name in here:
            line = known[name].line.number if name in known else row.first.line.number
            message = f"node {name} is already in line {line}"
            yield source.find(row.first, FATAL, "twice", message)
            break
        here.add(name)
    known.update(dict.fromkeys(names, row.first))


def _mistaken_nodes(source: Source) -> Iterator[Finding]:
    """Yield the node that slurmctld takes for an earlier one: node_conf.c, _check_callback.

    It also compares the name with host names, and finds localhost as long as that is the only node.
    """
    rows = source.rows("nodename")
    if not rows or not (
        rows[0].first.value.startswith("localhost")
        or any("nodehostname" in row.values for row in rows)
    ):
        return
    nodes: list[tuple[Row, str]] = []
    node_of_host: dict[str, str] = {}
    for row in rows:
        names = names_of(row.first.value, source.release) or ()
        setting = row.own.get("nodehostname")
        hosts = (names_of(setting.value, source.release) if setting else None) or names
        for index, name in enumerate(names):
            nodes.append((row, name))
            node_of_host.setdefault(hosts[min(index, len(hosts) - 1)], name)
    seen: set[str] = set()
    for row, name in nodes:
        other = "localhost" if seen == {"localhost"} else node_of_host.get(name)
        if other in seen and other != name:
            message = f"{name} is taken for {other}, an earlier node"
            hint = "name localhost last" if other == "localhost" else "choose another NodeName"
            yield source.find(row.first, FATAL, "twice", message, hint)
            return
        seen.add(name)


def _node_options(source: Source, row: Row, count: int) -> Iterator[Finding]:
    port = row.all.get("port")
    if count and port:
        yield from _ports(source, port, count)
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
        types = {*source.words("grestypes")}  # in the exact case (gres_name_filter)
        for word in gres.words():
            name = word.partition(":")[0]
            if not types:
                yield source.find(
                    gres,
                    INFO,
                    "gres",
                    f"{name} is ignored, because GresTypes is not set",
                    "GresTypes=...",
                )
                break
            if name not in types:
                yield source.find(
                    gres, ERROR, "gres", f"{name} is not in GresTypes", f"GresTypes=...,{name}"
                )
    suspend = row.all.get("suspendtime")
    if suspend and not is_suspend_time(suspend.value):
        message = f'"{suspend.value}" is not INFINITE or a number of seconds below 2^32'
        yield source.find(suspend, source.release.unusable_value, "value", message)
    features = row.all.get("features") or row.all.get("feature")
    if features and not features.value and not source.get("nodefeaturesplugins"):
        message = "is empty, and replaced by none (restore_node_features)"
        yield source.find(features, ERROR, "value", message, "remove it", SLURMCTLD)
    yield from _shape(source, row)
    yield from _reserved(source, row)
    yield from only_in(SLURMCTLD, _specialized(source, row))


def _addresses(source: Source, row: Row, count: int) -> Iterator[Finding]:
    """Check the names and addresses of a line's nodes."""
    if count:
        yield from _counts(source, row, count)
    yield from _ipv6_address(source, row)
    yield from _broadcast_address(source, row)


def _counts(source: Source, row: Row, count: int) -> Iterator[Finding]:
    """Check the lists that go with a line's nodes: src/common/node_conf.c, expand_nodeline_info."""
    for key in _ORIGIN:
        setting = row.own.get(key)
        if setting is None:
            continue
        names = names_of(setting.value, source.release)
        if names is None:
            problem = no_hostlist(setting.value, source.release)
            yield source.find(setting, FATAL, "hostlist", problem, "such as c[1-4]")
        elif not names and key == "bcastaddr":
            continue
        elif len(names) not in {1, count}:
            # NodeHostname is also the default of NodeAddr.
            any_count = (
                key == "nodehostname"
                and "nodeaddr" in row.own
                and not source.release.counts_hostnames
            )
            yield from _wrong_count(source, setting, len(names), count, any_count=any_count)
        elif len(names) < count and not source.release.nodes_may_share_address:
            message = (
                f"one for {count} nodes; a Slurm built without --enable-multiple-slurmd refuses it"
            )
            yield source.find(setting, INFO, "count", message)


def _wrong_count(
    source: Source, setting: Setting, size: int, count: int, *, any_count: bool
) -> Iterator[Finding]:
    message = f"{size} for {count} nodes; must be one, or one per node"
    yield source.find(setting, INFO if any_count else FATAL, "count", message)


def _ports(source: Source, port: Setting, count: int) -> Iterator[Finding]:
    value = port.value
    bare = value[:1] != "[" and ("-" in value or "," in value)
    ports = names_of(f"[{value}]" if bare else value, source.release)
    if ports is None:
        problem = no_hostlist(f"[{value}]" if bare else value, source.release)
        yield source.find(port, FATAL, "hostlist", problem, "such as 7001 or [7001-7004]")
    elif len(ports) not in {0, 1, count}:
        yield source.find(
            port, FATAL, "count", f"{len(ports)} for {count} nodes; must be one, or one per node"
        )
    elif not all(0 < c_numbers.atoi(number) < 65536 for number in ports):
        yield source.find(port, FATAL, "value", f'"{value}" is not a port or a range of ports')


def _ipv6_address(source: Source, row: Row) -> Iterator[Finding]:
    """Yield a NodeAddr that slurm_set_addr cannot resolve."""
    address = row.all.get("nodeaddr")
    if address and address.value.count(":") > 1 and "[" not in address.value:
        parameters = (source.get("communicationparameters") or "").lower()
        if re.fullmatch("[0-9a-fA-F:.]+", address.value) and "enableipv6" not in parameters:
            message = f"{address.value} cannot be used without CommunicationParameters=EnableIPv6"
            yield source.find(address, ERROR, "value", message)


def _broadcast_address(source: Source, row: Row) -> Iterator[Finding]:
    """Yield a BcastAddr that slurmd refuses with NoInAddrAny (slurmd.c, _read_config).

    NoInAddrAny used to belong to TopologyParam, and still works there.
    """
    address = row.own.get("bcastaddr")
    words = (source.get(key) or "" for key in ("communicationparameters", "topologyparam"))
    if address and address.value and any("noinaddrany" in word.lower() for word in words):
        message = "cannot be combined with CommunicationParameters=NoInAddrAny"
        yield source.find(address, FATAL, "contradiction", message, daemons=SLURMD)


def _is_node_state(release: Release, value: str) -> bool:
    state = value.lower()
    prefixes = (*_STATE_PREFIXES, *(("external",) if release.external_jobs else ()))
    return state in _STATES or state.startswith(prefixes)


def _shape(source: Source, row: Row) -> Iterator[Finding]:
    """Check the CPUs of a node: src/common/read_config.c, _parse_nodename.

    Up to 22.05, select_p_node_init() of select/cons_* refuses some of the CPUs that it accepts.
    """
    for key in (key for key in _SIZES if key in row.values and not _number(row, key)):
        yield source.find(row.all[key], ERROR, "value", "cannot be 0; slurmctld uses 1")
    if {"sockets", "socketsperboard"} <= row.values.keys():
        message = "is ignored because of SocketsPerBoard"
        yield source.find(row.all["sockets"], ERROR, "contradiction", message)
    sockets, cores, threads = shape_of(row)
    cpus = _cpus(row)
    if (boards := _number(row, "boards")) > sockets:
        message = f"{boards} boards for {sockets} sockets; slurmctld uses 1"
        yield source.find(row.all["boards"], ERROR, "contradiction", message)
    matching = {sockets * cores, sockets * cores * threads}
    if not cpus:
        return
    about = row.all.get("cpus") or row.all["procs"]
    shape = f"{sockets} sockets, {cores} cores each, {threads} threads each"
    if cpus not in matching | {sockets}:
        yield source.find(
            about,
            ERROR,
            "cpus",
            f"{cpus} CPUs do not match {shape}; slurmctld sets them to {max(matching)}",
        )
    elif (
        cpus not in matching
        and source.release.cons_refuses_cpu_per_socket
        and (source.get("selecttype") or default_select(source)).startswith("select/cons_")
    ):
        message = f"{cpus} CPUs do not match {shape}"
        yield source.find(about, FATAL, "cpus", message, daemons=SLURMCTLD)


def _reserved(source: Source, row: Row) -> Iterator[Finding]:
    """Check what a node reserves for its system: src/common/read_config.c, _parse_nodename."""
    count, cpus = row.all.get("corespeccount"), row.all.get("cpuspeclist")
    total = cpus_of(row)
    sockets, of_socket, _ = shape_of(row)
    cores = sockets * of_socket
    if count and _number(row, "corespeccount") >= cores:
        message = f"{count.value} of {cores} cores; slurmctld uses 1"
        yield source.find(count, ERROR, "value", message)
    elif count and cpus and _number(row, "corespeccount"):
        message = "is ignored because of CPUSpecList"
        yield source.find(count, ERROR, "contradiction", message)
    if cpus and bits_of(cpus.value, total) is None:
        message = (
            f'"{cpus.value}" is not a list of CPUs of this node (0-{total - 1}); it is ignored'
        )
        yield source.find(cpus, ERROR, "value", message)
    memory = row.all.get("realmemory")
    size = _number(row, "realmemory") if memory else 1
    limit = row.all.get("memspeclimit", memory if size == 0 else None)
    if limit and _number(row, "memspeclimit") >= size:
        message = f"MemSpecLimit is not below RealMemory ({size} MB); it is ignored"
        yield source.find(limit, ERROR, "value", message)
    bind = row.all.get("cpubind")
    if bind and not is_cpu_bind(bind.value):
        yield source.find(bind, ERROR, "value", f'"{bind.value}" is invalid and ignored')


def _specialized(source: Source, row: Row) -> Iterator[Finding]:
    """Yield specialized cores on all sockets: cons_tres, _check_allocatable_sockets()."""
    select = source.get("selecttype") or default_select(source)
    words = {word.lower() for word in source.words("selecttypeparameters")}
    if (
        not select.startswith("select/cons_")
        or not words & {"cr_socket", "cr_socket_memory"}
        or grammar.is_true(source.get("allowspecresourcesusage") or "no")
    ):
        return
    sockets, cores, threads = shape_of(row)
    count, cpus = row.all.get("corespeccount"), row.all.get("cpuspeclist")
    ids = bits_of(cpus.value, sockets * cores * threads) if cpus else None
    about = None
    if cpus and ids:
        if {cpu // (cores * threads) for cpu in ids} == {*range(sockets)}:
            about = cpus
    elif count and (sockets - 1) * cores < _number(row, "corespeccount") < sockets * cores:
        about = count
    if about:
        yield source.find(
            about,
            FATAL,
            "contradiction",
            "CR_Socket and AllowSpecResourcesUsage=NO: uses cores from all sockets, which makes "
            "the node non-usable",
            "leave one socket without specialized cores",
        )


def _sockets(row: Row, cpus_of_socket: int) -> int:
    """Return the sockets of a node as _parse_nodename() infers them."""
    boards = _number(row, "boards") or 1
    if "socketsperboard" in row.values:
        return boards * (_number(row, "socketsperboard") or 1)
    if "sockets" in row.values:
        return _number(row, "sockets") or 1
    cpus = _cpus(row)
    inferred = cpus // cpus_of_socket if cpus % cpus_of_socket == 0 else 0
    return inferred or boards


def _cpus(row: Row) -> int:
    """Return the CPUs that a node says it has, at least 1; 0 if it says nothing."""
    key = "cpus" if "cpus" in row.values else "procs"
    return (_number(row, key) or 1) if key in row.values else 0


def cpus_of(row: Row) -> int:
    """Return the CPUs of a node."""
    return _cpus(row) or math.prod(shape_of(row))


def shape_of(row: Row) -> tuple[int, int, int]:
    """Return the sockets of a node, the cores of each, and the threads of each core."""
    cores, threads = _number(row, "corespersocket") or 1, _number(row, "threadspercore") or 1
    return _sockets(row, cores * threads), cores, threads


def bits_of(text: str, size: int) -> set[int] | None:
    """Return the bits that a list such as 0-3,6 sets, or None (bit_unfmt of bitstring.c).

    Except in the format with a step, it skips all but digits, commas and hyphens.

    >>> bits_of("0-1,x3", 4), bits_of("0-4", 4), bits_of("0-5:2", 5)
    ({0, 1, 3}, None, {0, 2, 4})
    """
    bits: set[int] = set()
    if ":" in text:
        steps = re.fullmatch(r"(\d{1,9})-(\d{1,9}):(\d{1,9})", text)
        first, last, step = map(int, steps.groups()) if steps else (0, 0, 0)
        bits = {*range(first, min(last, size + step), step)} if step and last >= first else set()
        return bits if step and last >= first and max(bits, default=0) < size else None
    for part in text.split(",") if text and text[0] != "," else ():
        *starts, last = (int("0" + re.sub(r"\D", "", number)) for number in part.split("-"))
        first = starts[-1] if starts else last
        if max(first, last) >= size:
            return None
        bits |= {*range(first, last + 1)}
    return bits


def _number(row: Row, key: str) -> int:
    kind = "uint64" if key in {"realmemory", "memspeclimit"} else "uint16"
    return grammar.number(kind, row.get(key) or "") or 0


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
