"""Switches and blocks of topology.conf and topology.yaml.

The rules are those of switch_record_validate and block_record_validate in src/plugins/topology.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness import releases
from harness.parsing import bounded_yaml, c_numbers, conf, hostlist, topology_rules
from harness.releases import Release
from harness.slurmconf.check import hypercube, positions, toruses, yaml_file
from harness.slurmconf.check.findings import (
    ERROR,
    FATAL,
    INFO,
    SLURMCTLD,
    SLURMD,
    WARNING,
    Finding,
    only_in,
)
from harness.slurmconf.check.nodes import names_of, no_hostlist, node_names
from harness.slurmconf.check.parsed_file import Configuration, Row, Source
from harness.slurmconf.check.read_files import NEED_TOPOLOGY, is_read

_KEYS = {"topology/tree": {"switchname"}, "topology/block": {"blockname", "blocksizes"}}
_KEYS["topology/block"].add("blocklevels")
_KEYS["topology/ring"] = {"ringname"}
# How often switch_record_validate() goes through the switches.
_MOST_PASSES = 21


@dataclass(frozen=True, slots=True)
class _Unit:
    """A switch or a block.

    `find` returns a finding about its "nodes" or "children", or "" about itself, with severity,
    code and message.
    """

    name: str
    nodes: str | None
    children: str | None
    find: Callable[[str, str, str, str], Finding]


# Returns the severity of a problem of a node with its unit of a topology, and the problem; "" if
# there is none.
_Placing = Callable[[str, str], tuple[str, str]]
# Kind of a topology -> where topology.yaml lists its parts, and what one is called.
_UNITS = {"tree": ("switches", "switch"), "block": ("blocks", "block")}


def check(configuration: Configuration) -> Iterator[Finding]:
    """Yield the problems that slurmctld has with its topologies."""
    slurm_conf = configuration.get("slurm.conf")
    source = configuration.get("topology.conf")
    yaml = configuration.others.get("topology.yaml")
    if source and is_read(configuration, "topology.conf"):
        yield from _topology_conf(source, slurm_conf)
    if yaml:
        yield from _topology_yaml(yaml, configuration)
    elif configuration.whole:
        yield from _wrong_units(configuration, {"default": _default_placing(configuration)})
    plugin = slurm_conf.settings.get("topologyplugin") if slurm_conf else None
    described = yaml and configuration.release.topology_file == "topology.yaml"
    if slurm_conf and plugin and configuration.whole and not described:
        needed = "topology.yaml" if plugin.value == "topology/torus3d" else ""
        if plugin.value in NEED_TOPOLOGY and not source:
            needed = "topology.conf"
        if needed:
            message = f"requires {needed}, which does not exist"
            daemons = SLURMCTLD if plugin.value == "topology/hypercube" else ()
            yield slurm_conf.find(plugin, FATAL, "missing", message, daemons=daemons)


def _topology_conf(source: Source, slurm_conf: Source | None) -> Iterator[Finding]:
    plugin = slurm_conf.get("topologyplugin") if slurm_conf else "topology/tree"
    if plugin == "topology/hypercube":
        nodes = node_names(slurm_conf) if slurm_conf else None
        yield from only_in(SLURMCTLD, hypercube.check(source, nodes))
    if plugin not in _KEYS:
        return
    known = {*source.release.options["topology.conf"]}
    for _, line in source.lines:
        key = line.pairs[0].key.lower() if line.pairs else ""
        if key in known - _KEYS[plugin]:
            setting = next(iter(source.all_of(key)))
            yield source.find(setting, FATAL, "unknown", f"is unknown to {plugin}")
            return  # the parser gives up here
    nodes = node_names(slurm_conf) if slurm_conf else None
    if plugin == "topology/tree":
        switches = [_switch(source, row) for row in source.rows("switchname")]
        if not switches:
            severity = source.release.empty_topology
            yield source.find_here(severity, "missing", "SwitchName", "there is no switch")
        longest = source.release.longest_switch_name
        for switch in switches:
            if longest and len(switch.name.encode()) > longest:
                message = f"the name of a switch has at most {longest} bytes"
                yield switch.find("", FATAL, "value", message)
        yield from _tree(source.release, switches, nodes, empty=source.release.empty_switches)
    elif plugin == "topology/ring":
        rings = [_switch(source, row) for row in source.rows("ringname")]
        if not rings:
            yield source.find_here(FATAL, "missing", "RingName", "there is no ring")
        yield from _rings(source.release, rings, nodes)
    else:
        yield from _blocks_conf(source, nodes)


def _switch(source: Source, row: Row) -> _Unit:
    def find(key: str, severity: str, code: str, message: str) -> Finding:
        about = row.own["switches" if key == "children" else key] if key else row.first
        return source.find(about, severity, code, message)

    nodes, switches = row.get("nodes"), row.get("switches")
    return _Unit(row.first.value, nodes, switches, find)


def _blocks_conf(source: Source, nodes: Mapping[str, Row] | None) -> Iterator[Finding]:
    blocks = [_switch(source, row) for row in source.rows("blockname")]
    setting = source.settings.get("blocksizes")
    sizes = [c_numbers.atoi(word) for word in setting.words()] if setting else []
    if setting and (not sizes or topology_rules.wrong_block_sizes(sizes)):
        message = f'"{setting.value}": each size must be the first one times a power of two'
        yield source.find(setting, FATAL, "value", message)
        return
    if not blocks:
        severity = source.release.empty_topology
        yield source.find_here(severity, "missing", "BlockName", "there is no block")
    yield from _blocks(source.release, blocks, sizes, nodes)


def _tree(
    release: Release, switches: Sequence[_Unit], nodes: Mapping[str, Row] | None, *, empty: bool
) -> Iterator[Finding]:
    below: dict[str, tuple[str, ...]] = {}
    leaf_of: dict[str, str] = {}
    unusable = []
    for switch in switches:
        if switch.name in below:
            message = f"switch {switch.name} is already defined"
            yield switch.find("", FATAL, "twice", message)
        if switch.nodes is not None and switch.children is not None:
            message = "a switch has either Nodes or Switches, not both"
            yield switch.find("", release.unusable_value, "contradiction", message)
            unusable.append(switch)
        elif switch.nodes is None and switch.children is None and not empty:
            message = f"switch {switch.name} has neither child switches nor nodes"
            yield switch.find("", release.unusable_value, "missing", message)
            unusable.append(switch)
        if switch in unusable and release.unusable_value == ERROR:
            continue  # _parse_switches drops the line
        if switch.children == "":
            message = "there is nothing below it: slurmctld crashes"
            yield switch.find("children", FATAL, "missing", message)
        yield from _members(release, switch)
        below[switch.name] = names_of(switch.children or "", release) or ()
        yield from _leaves(release, switch, nodes, leaf_of)
    if release.unusable_value == ERROR:
        switches = [switch for switch in switches if switch not in unusable]
    yield from _links(switches, below)
    if switches and nodes:
        yield from _reach(release, switches, nodes, leaf_of)


def _reach(
    release: Release,
    switches: Sequence[_Unit],
    nodes: Mapping[str, Row],
    leaf_of: Mapping[str, str],
) -> Iterator[Finding]:
    """Yield nodes on no switch, or else a tree without a root (switch_record_validate)."""
    lacking = [node for node in nodes if node not in leaf_of]
    if lacking and any(switch.nodes is not None for switch in switches):
        message = f"no switch reaches {hostlist.fold(lacking)}"
        yield switches[-1].find("", _incomplete(release), "incomplete", message)
        return
    reached = {
        switch.name: nodes.keys() & (names_of(switch.nodes or "", release) or ())
        for switch in switches
    }
    for _ in switches:
        before = sum(map(len, reached.values()))
        for switch in switches:
            for child in names_of(switch.children or "", release) or ():
                reached[switch.name] |= reached.get(child, set())
        if sum(map(len, reached.values())) == before:
            break
    if max(map(len, reached.values())) < len(nodes):
        severity = WARNING if release.logs_warnings else INFO
        message = "no switch reaches all nodes through the switches below it"
        yield switches[-1].find("", severity, "incomplete", message)


def _incomplete(release: Release) -> str:
    """Return the severity of nodes on no switch or several, and of unknown nodes on a switch."""
    return WARNING if release.logs_warnings else ERROR


def _members(release: Release, unit: _Unit) -> Iterator[Finding]:
    for key, value in (("nodes", unit.nodes), ("children", unit.children)):
        if value and (problem := no_hostlist(value, release)):
            yield unit.find(key, FATAL, "hostlist", problem)


def _leaves(
    release: Release, switch: _Unit, nodes: Mapping[str, Row] | None, leaf_of: dict[str, str]
) -> Iterator[Finding]:
    """Yield nodes that do not exist or are on two leaves; record the leaf of each node."""
    names = names_of(switch.nodes or "", release) or ()
    missing = [node for node in names if nodes is not None and node not in nodes]
    if missing:
        message = f"no such node in slurm.conf: {hostlist.fold(missing)}"
        yield switch.find("nodes", _incomplete(release), "undefined", message)
    for node in dict.fromkeys(names):  # a bitmap of each switch counts a node once
        if node in leaf_of and (nodes is None or node in nodes):
            message = f"{node} is already on switch {leaf_of[node]}"
            yield switch.find("nodes", _incomplete(release), "twice", message)
        leaf_of[node] = switch.name


def _links(switches: Sequence[_Unit], below: Mapping[str, tuple[str, ...]]) -> Iterator[Finding]:
    """Yield switches that are missing below others, or that form a loop."""
    others = {name: [child for child in names if child != name] for name, names in below.items()}
    loop = topology_rules.loop(others)
    if not loop and topology_rules.is_deep(others, _MOST_PASSES):
        message = f"more than {_MOST_PASSES} levels in this order"
        yield switches[0].find("", FATAL, "circle", message)
    for switch in switches:
        for child in below[switch.name] if switch.children else ():
            if child not in below or child == switch.name:
                yield switch.find("children", FATAL, "undefined", f"there is no switch {child}")
        if switch.name in loop:
            message = "it is below itself: the switches form a loop"
            yield switch.find("", FATAL, "circle", message)


def _blocks(
    release: Release,
    blocks: Sequence[_Unit],
    sizes: Sequence[int],
    nodes: Mapping[str, Row] | None,
) -> Iterator[Finding]:
    seen: set[str] = set()
    in_blocks: set[str] = set()
    least = sizes[0] if sizes else 0
    for block in blocks:
        if block.name in seen:
            yield block.find("", FATAL, "twice", f"block {block.name} is already defined")
        seen.add(block.name)
        if block.nodes is None and not release.empty_switches:
            yield block.find("", FATAL, "missing", f"block {block.name} hasn't got nodes")
            continue
        yield from _members(release, block)
        names = names_of(block.nodes or "", release) or ()
        in_blocks.update(names)
        missing = [node for node in names if nodes is not None and node not in nodes]
        if missing:
            message = f"no such node: {hostlist.fold(missing)}"
            yield block.find("nodes", WARNING, "undefined", message)
        size = len({*names}) - len({*missing})
        if size < least and release.full_blocks and nodes is not None:
            message = f"{size} nodes, but each block has at least {least}"
            yield block.find("nodes", FATAL, "count", message)
        least = least or size
    joined = ",".join(block.name for block in blocks)
    combined = release.lists_joined_blocks and len(blocks) > 1 and len(sizes) > 1
    if combined and (problem := no_hostlist(joined, release)):
        yield blocks[0].find("", FATAL, "hostlist", problem)
    if blocks and not least and nodes is not None:
        yield blocks[0].find("", FATAL, "missing", "blocks do not contain any nodes")
        return
    lacking = [node for node in nodes or {} if node not in in_blocks]
    if blocks and lacking:
        message = f"no block has {hostlist.fold(lacking)}"
        yield blocks[-1].find("", WARNING, "incomplete", message)


def _rings(
    release: Release, rings: Sequence[_Unit], nodes: Mapping[str, Row] | None
) -> Iterator[Finding]:
    """Yield what ring_record_validate() refuses, or warns about."""
    seen: set[str] = set()
    in_rings: set[str] = set()
    for ring in rings:
        if ring.name in seen:
            yield ring.find("", FATAL, "twice", f"ring {ring.name} is already defined")
        seen.add(ring.name)
        if ring.nodes and (problem := no_hostlist(ring.nodes, release)):
            # Only slurmd ends if topology_g_build_config() fails.
            finding = ring.find("nodes", ERROR, "hostlist", f"{problem}; the ring is not used")
            yield replace(finding, daemons=SLURMCTLD)
            yield replace(finding, daemons=SLURMD, severity=FATAL, message=problem)
            return
        names = names_of(ring.nodes or "", release) or ()
        in_rings.update(names)
        if missing := [name for name in names if nodes is not None and name not in nodes]:
            message = f"no such node: {hostlist.fold(missing)}"
            yield ring.find("nodes", WARNING, "undefined", message)
        size = 0
        for name in names:
            if size >= positions.LARGEST_RING:
                message = f"a ring has at most {positions.LARGEST_RING} nodes"
                yield ring.find("nodes", FATAL, "count", message)
                break
            size += nodes is None or name in nodes
    if rings and (lacking := [node for node in nodes or {} if node not in in_rings]):
        message = f"no ring has {hostlist.fold(lacking)}"
        yield rings[-1].find("", WARNING, "incomplete", message)


def _topology_yaml(path: Path, configuration: Configuration) -> Iterator[Finding]:
    if configuration.release.topology_file != "topology.yaml":
        first = releases.first("topology.yaml")
        yield yaml_file.find(path, 1, INFO, "too-new", "", f"is not read before {first}")
        return
    try:
        topologies = _topologies(path)
    except bounded_yaml.NotPlain as error:
        yield yaml_file.find(path, error.line, FATAL, "unreadable", "", error.message)
        return
    if not topologies or not all(isinstance(part, dict) for part, _ in topologies):
        message = "must be a list of topologies, each with its name under the key topology"
        yield yaml_file.find(path, 1, FATAL, "value", "topology", message)
        return
    for part, place in topologies:
        yield from _one_topology(path, configuration, part, place)
    known = {
        str(part.get("topology")): _placing(path, configuration, part, place)
        for part, place in topologies
    }
    yield from _wrong_units(configuration, known)


def _topologies(path: Path) -> list[tuple[Any, Any]]:
    """Return the topologies of topology.yaml with their nodes in the document."""
    document = bounded_yaml.Document(yaml_file.first_document(conf.read_text(path)))
    node, data = document.node, document.data()
    if isinstance(data, list):
        return [(part, yaml_file.at(node, index)) for index, part in enumerate(data)]
    # A single topology needs no list.
    return [(data, node)] if isinstance(data, dict) else []


def names(configuration: Configuration) -> set[str] | None:
    """Return the names of the topologies of slurmctld; None if they are unknown."""
    yaml = configuration.others.get("topology.yaml")
    if yaml is None:
        return {"default"} if configuration.whole else None
    try:
        return {
            str(part.get("topology")) for part, _ in _topologies(yaml) if isinstance(part, dict)
        }
    except bounded_yaml.NotPlain:
        return None


def _placing(path: Path, configuration: Configuration, part: dict[str, Any], node: Any) -> _Placing:
    """Return the rules of a topology of topology.yaml for nodes that name a unit of it."""
    slurm_conf, release = configuration.get("slurm.conf"), configuration.release
    nodes = node_names(slurm_conf) if slurm_conf else ()
    for kind, keys in _UNITS.items():
        if isinstance(part.get(kind), dict):
            units = _units(path, part[kind], yaml_file.at(node, kind), *keys)
            return lambda _, unit: (FATAL, _wrong_unit(kind, units, unit))
    if isinstance(part.get("ring"), dict):
        return positions.Rings(toruses.dicts(part["ring"], "rings"), nodes, release).problem
    if isinstance(part.get("torus3d"), dict):
        found = toruses.dicts(part["torus3d"], "toruses")
        return positions.Toruses(found, nodes, release).problem
    return lambda *_: (FATAL, "")


def _default_placing(configuration: Configuration) -> _Placing:
    """Return the rules of the topology of topology.conf for nodes that name a unit of it."""
    slurm_conf, source = configuration.get("slurm.conf"), configuration.get("topology.conf")
    kind = ((slurm_conf and slurm_conf.get("topologyplugin")) or "").removeprefix("topology/")
    if kind not in _UNITS or source is None:
        return lambda *_: (FATAL, "")
    units = [_switch(source, row) for row in source.rows(f"{_UNITS[kind][1]}name")]
    return lambda _, unit: (FATAL, _wrong_unit(kind, units, unit))


def _wrong_units(configuration: Configuration, known: Mapping[str, _Placing]) -> Iterator[Finding]:
    """Yield topologies, switches and blocks that nodes and partitions name and that do not exist.

    src/interfaces/topology.c, _get_tctx_index_by_name(), and topology_p_add_rm_node() of each
    plugin end slurmctld's read_slurm_conf(), or log an error and choose another place.
    """
    slurm_conf = configuration.get("slurm.conf")
    options = configuration.release.options["slurm.conf PartitionName"]
    if slurm_conf is None or "topology" not in options:
        return
    for row in (*slurm_conf.rows("nodename"), *slurm_conf.rows("partitionname")):
        setting = row.all.get("topology") if "topology" in row.values else None
        words = setting.words() if setting else []
        names = [word.partition(":")[0] for word in words]
        if row.first.name.lower() == "partitionname" and setting:
            names = [setting.value]
        unknown = [name for name in names if name not in known]
        if setting and not unknown and row.first.name.lower() == "nodename":
            for word in words:
                name, _, unit = word.partition(":")
                nodes = names_of(row.first.value, configuration.release) or ()
                for severity, problem in _placed(known[name], nodes, unit) if unit else ():
                    code = "undefined" if severity == FATAL else "count"
                    yield slurm_conf.find(setting, severity, code, problem, daemons=SLURMCTLD)
        if setting and unknown:
            message = f"there is no topology {unknown[0]}"
            hint = f"known: {', '.join(sorted(known))}"
            yield slurm_conf.find(setting, FATAL, "undefined", message, hint, SLURMCTLD)


def _placed(place: _Placing, nodes: Sequence[str], unit: str) -> Iterator[tuple[str, str]]:
    """Put nodes on a unit; yield the first problem of each severity, and end if it is FATAL."""
    seen: set[str] = set()
    for severity, problem in (place(node, unit) for node in nodes):
        if problem and severity not in seen:
            seen.add(severity)
            yield severity, problem
        if problem and severity == FATAL:
            return


def _wrong_unit(kind: str, units: Sequence[_Unit], path: str) -> str:
    """Return why a node cannot be on a block, or on a switch at the end of a path of switches."""
    by_name = {unit.name: unit for unit in units}
    if kind == "block":
        return "" if path in by_name else f"there is no block {path}"
    if kind != "tree":
        return ""
    above: _Unit | None = None
    for place, name in enumerate(path.split(":")):
        if name in by_name:
            above = by_name[name]
        elif place == 0:
            return f"there is no switch {name}"
        elif above and above.nodes:
            return f"switch {above.name} has nodes, so no switch can be below it"
        else:
            above = None  # slurmctld creates the switch
    return f"{above.name} is not a leaf switch" if above and above.children else ""


def _is_chosen(value: object) -> bool:
    """Return whether the value of a type of topologies chooses it (TOPOLOGY_FLAT and others).

    A mapping does, even an empty one. Texts that mean neither true nor false count as true
    (_convert_data_force_bool).
    """
    no = isinstance(value, str) and re.fullmatch(
        r"false|no|off|f|n|0|~|null|", value, re.IGNORECASE
    )
    return isinstance(value, dict) or (bool(value) and not no)


def _one_topology(
    path: Path, configuration: Configuration, part: dict[str, Any], node: Any
) -> Iterator[Finding]:
    release = configuration.release
    known = release.options["topology.yaml"]
    plugins = {key for key in known if known[key].type.startswith("topology_")}
    line = yaml_file.line_of(node)
    for key in part:
        if str(key) not in known:
            severity = WARNING if release.reports_unknown_topology_keys else INFO
            message = "is unknown and ignored"
            yield yaml_file.find(path, line, severity, "unknown", str(key), message)
    for key in plugins & part.keys():
        is_mapping = isinstance(part[key], dict)
        if key != "flat" and not is_mapping:
            yield yaml_file.find(path, line, FATAL, "value", key, "must be a mapping")
            return
        if key == "flat" and is_mapping and "topology.yaml flat" not in release.options:
            yield yaml_file.find(path, line, FATAL, "value", key, "must be true or false")
            return
    chosen = [key for key in part if key in plugins and _is_chosen(part[key])]
    name = f"topology {part.get('topology', 'without a name')}"
    if len(chosen) > 1:
        message = f"{name} has several types: {', '.join(chosen)}"
        yield yaml_file.find(path, line, FATAL, "contradiction", "topology", message)
        return
    if not chosen:
        message = f"{name} has no type; it needs one of {', '.join(sorted(plugins))}"
        yield yaml_file.find(path, line, FATAL, "missing", "topology", message)
        return
    slurm_conf = configuration.get("slurm.conf")
    nodes = node_names(slurm_conf) if slurm_conf else None
    if isinstance(part.get("tree"), dict):
        switches = _units(path, part["tree"], yaml_file.at(node, "tree"), "switches", "switch")
        if not switches:
            message = "No switches configured"
            yield yaml_file.find(
                path,
                yaml_file.line_of(node),
                release.empty_topology,
                "missing",
                "switches",
                message,
            )
        yield from _nameless(release, switches)
        yield from _tree(release, switches, nodes, empty=True)
    if isinstance(part.get("block"), dict):
        yield from _block_yaml(path, release, part, node, nodes)
    if isinstance(part.get("ring"), dict) and "ring" in plugins:
        rings = _units(path, part["ring"], yaml_file.at(node, "ring"), "rings", "ring")
        if not rings:
            yield yaml_file.find(
                path, yaml_file.line_of(node), FATAL, "missing", "rings", "No rings configured"
            )
        yield from _nameless(release, rings)
        yield from _rings(release, rings, nodes)
    if isinstance(part.get("torus3d"), dict) and "torus3d" in plugins:
        yield from _toruses(path, release, part["torus3d"], yaml_file.at(node, "torus3d"), nodes)


def _toruses(
    path: Path, release: Release, part: dict[str, Any], node: Any, nodes: Mapping[str, Row] | None
) -> Iterator[Finding]:
    found = toruses.dicts(part, "toruses")
    if not found:
        yield yaml_file.find(
            path, yaml_file.line_of(node), FATAL, "missing", "toruses", "No torus3d configured"
        )
    for place, problem in toruses.problems(found, nodes, release):
        line = yaml_file.line_of(yaml_file.at(yaml_file.at(node, "toruses"), place))
        yield yaml_file.find(path, line, FATAL, "value", "toruses", problem)
    for place, torus in enumerate(found):
        if nodes is not None and (missing := toruses.unknown(torus, nodes, release)):
            line = yaml_file.line_of(yaml_file.at(yaml_file.at(node, "toruses"), place))
            message = f"no such node: {hostlist.fold(missing)}"
            yield yaml_file.find(path, line, WARNING, "undefined", "nodes", message)


def _block_yaml(
    path: Path, release: Release, part: dict[str, Any], node: Any, nodes: Mapping[str, Row] | None
) -> Iterator[Finding]:
    block = part["block"]
    sizes = block.get("block_sizes") or []
    sizes = sizes if isinstance(sizes, list) else [sizes]
    numbers = [conf.number(str(size)) or 0 for size in sizes]
    if topology_rules.wrong_block_sizes(numbers) and release.checks_yaml_block_sizes:
        line = yaml_file.line_of(yaml_file.at(yaml_file.at(node, "block"), "block_sizes"))
        message = f"{sizes}: each size must be the first one times a power of two"
        yield yaml_file.find(path, line, FATAL, "value", "block_sizes", message)
        return
    blocks = _units(path, block, yaml_file.at(node, "block"), "blocks", "block")
    if not blocks:
        message = "No blocks configured"
        yield yaml_file.find(
            path, yaml_file.line_of(node), release.empty_topology, "missing", "blocks", message
        )
    yield from _nameless(release, blocks)
    yield from _blocks(release, blocks, numbers, nodes)


def _nameless(release: Release, units: Sequence[_Unit]) -> Iterator[Finding]:
    for unit in units:
        if release.units_need_names and not unit.name:
            yield unit.find("", FATAL, "missing", "has no name")


def _units(
    path: Path, plugin: dict[str, Any], node: Any, list_key: str, name_key: str
) -> list[_Unit]:
    """Return the switches or blocks of a topology; what is not one is left out."""

    def unit(index: int, data: dict[str, Any]) -> _Unit:
        line = yaml_file.line_of(yaml_file.at(yaml_file.at(node, list_key), index))

        def find(key: str, severity: str, code: str, message: str) -> Finding:
            return yaml_file.find(path, line, severity, code, key or name_key, message)

        nodes, children = (
            None if data.get(key) is None else str(data[key]) for key in ("nodes", "children")
        )
        # switch_record_validate() ignores the children of a leaf.
        children = None if nodes is not None else children
        return _Unit(str(data.get(name_key, "")), nodes, children, find)

    units = plugin.get(list_key)
    return [
        unit(index, data)
        for index, data in enumerate(units if isinstance(units, list) else [])
        if isinstance(data, dict)
    ]
