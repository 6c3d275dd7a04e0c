"""Switches and blocks of topology.conf and topology.yaml.

The rules are those of switch_record_validate and block_record_validate in src/plugins/topology.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml.nodes import MappingNode, SequenceNode

from harness import releases
from harness.parsing import bounded_yaml, conf, hostlist, topology_rules
from harness.releases import Release
from harness.slurmconf.check.findings import (
    ERROR,
    FATAL,
    INFO,
    SLURMCTLD,
    SLURMD,
    WARNING,
    Finding,
)
from harness.slurmconf.check.nodes import names_of, no_hostlist, node_names
from harness.slurmconf.check.parsed_file import Configuration, Row, Source

_KEYS = {"topology/tree": {"switchname"}, "topology/block": {"blockname", "blocksizes"}}
_KEYS["topology/block"].add("blocklevels")
_NEED_TOPOLOGY = {"topology/tree", "topology/block", "topology/hypercube"}


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


def check(configuration: Configuration) -> Iterator[Finding]:
    """Yield the problems that slurmctld has with its topologies."""
    slurm_conf = configuration.get("slurm.conf")
    source = configuration.get("topology.conf")
    yaml = configuration.others.get("topology.yaml")
    if source:
        yield from _topology_conf(source, slurm_conf)
    if yaml:
        yield from _topology_yaml(yaml, configuration)
    elif configuration.whole:
        yield from _unknown_topologies(configuration, {"default"})
    plugin = slurm_conf.settings.get("topologyplugin") if slurm_conf else None
    described = source or (yaml and configuration.release.topology_file == "topology.yaml")
    if (
        slurm_conf
        and plugin
        and plugin.value in _NEED_TOPOLOGY
        and configuration.whole
        and not described
    ):
        message = "requires topology.conf, which does not exist"
        daemons = SLURMCTLD if plugin.value == "topology/hypercube" else ()
        yield slurm_conf.find(plugin, FATAL, "missing", message, daemons=daemons)


def _topology_conf(source: Source, slurm_conf: Source | None) -> Iterator[Finding]:
    plugin = slurm_conf.get("topologyplugin") if slurm_conf else "topology/tree"
    if plugin not in _KEYS:
        yield source.find_here(
            INFO,
            "unused",
            "topology.conf",
            f"is not read with TopologyPlugin={plugin or '(unset)'}",
        )
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
        yield from _tree(source.release, switches, nodes, empty=source.release.empty_switches)
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
    sizes = [conf.number(word) or 0 for word in setting.words()] if setting else []
    if setting and topology_rules.wrong_block_sizes(sizes):
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
    for switch in switches:
        if switch.name in below:
            message = f"switch {switch.name} is already defined"
            yield switch.find("", FATAL, "twice", message)
        if switch.nodes is not None and switch.children is not None:
            message = "a switch has either Nodes or Switches, not both"
            yield switch.find("", release.unusable_value, "contradiction", message)
        elif switch.nodes is None and switch.children is None and not empty:
            message = f"switch {switch.name} has neither child switches nor nodes"
            yield switch.find("", release.unusable_value, "missing", message)
        yield from _members(release, switch)
        below[switch.name] = names_of(switch.children or "", release) or ()
        yield from _leaves(release, switch, nodes, leaf_of)
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
    for node in names:
        if node in leaf_of and (nodes is None or node in nodes):
            message = f"{node} is already on switch {leaf_of[node]}"
            yield switch.find("nodes", _incomplete(release), "twice", message)
        leaf_of[node] = switch.name


def _links(switches: Sequence[_Unit], below: Mapping[str, tuple[str, ...]]) -> Iterator[Finding]:
    """Yield switches that are missing below others, or that form a loop."""
    others = {name: [child for child in names if child != name] for name, names in below.items()}
    loop = topology_rules.loop(others)
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
    if blocks and not least and nodes is not None:
        yield blocks[0].find("", FATAL, "missing", "blocks do not contain any nodes")
        return
    lacking = [node for node in nodes or {} if node not in in_blocks]
    if blocks and lacking:
        message = f"no block has {hostlist.fold(lacking)}"
        yield blocks[-1].find("", WARNING, "incomplete", message)


def _topology_yaml(path: Path, configuration: Configuration) -> Iterator[Finding]:
    if configuration.release.topology_file != "topology.yaml":
        first = releases.first("topology.yaml")
        yield _yaml(path, 1, INFO, "too-new", "", f"is not read before {first}")
        return
    try:
        document = bounded_yaml.Document(conf.read_text(path))
        node, data = document.node, document.data()
    except bounded_yaml.NotPlain as error:
        yield _yaml(path, error.line, FATAL, "unreadable", "", error.message)
        return
    if not isinstance(data, list) or not all(
        isinstance(part, dict) and "topology" in part for part in data
    ):
        yield _yaml(
            path,
            1,
            FATAL,
            "value",
            "topology",
            "must be a list of topologies, each with its name under the key topology",
        )
        return
    for index, part in enumerate(data):
        yield from _one_topology(path, configuration, part, _at(node, index))
    yield from _unknown_topologies(configuration, {str(part["topology"]) for part in data})


def _unknown_topologies(configuration: Configuration, known: set[str]) -> Iterator[Finding]:
    """Yield topologies that nodes and partitions name and that do not exist.

    src/interfaces/topology.c, _get_tctx_index_by_name(), ends slurmctld's read_slurm_conf().
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
        if setting and unknown:
            message = f"there is no topology {unknown[0]}"
            hint = f"known: {', '.join(sorted(known))}"
            yield slurm_conf.find(setting, FATAL, "undefined", message, hint, SLURMCTLD)


def _one_topology(
    path: Path, configuration: Configuration, part: dict[str, Any], node: Any
) -> Iterator[Finding]:
    release = configuration.release
    known = release.options["topology.yaml"]
    plugins = {key for key in known if known[key].type.startswith("topology_")}
    for key in part:
        if str(key).lower() not in known:
            yield _yaml(path, _line(node), WARNING, "unknown", str(key), "is unknown and ignored")
    if not plugins & {str(key).lower() for key in part}:
        words = ", ".join(sorted(plugins))
        message = f"topology {part['topology']} has no type; it needs one of {words}"
        yield _yaml(path, _line(node), FATAL, "missing", "topology", message)
        return
    slurm_conf = configuration.get("slurm.conf")
    nodes = node_names(slurm_conf) if slurm_conf else None
    if isinstance(part.get("tree"), dict):
        switches = _units(path, part["tree"], _at(node, "tree"), "switches", "switch")
        if not switches:
            message = "No switches configured"
            yield _yaml(path, _line(node), release.empty_topology, "missing", "switches", message)
        yield from _tree(release, switches, nodes, empty=True)
    if isinstance(part.get("block"), dict):
        yield from _block_yaml(path, release, part, node, nodes)


def _block_yaml(
    path: Path, release: Release, part: dict[str, Any], node: Any, nodes: Mapping[str, Row] | None
) -> Iterator[Finding]:
    block = part["block"]
    sizes = block.get("block_sizes") or []
    sizes = sizes if isinstance(sizes, list) else [sizes]
    numbers = [conf.number(str(size)) or 0 for size in sizes]
    if topology_rules.wrong_block_sizes(numbers):
        line = _line(_at(_at(node, "block"), "block_sizes"))
        message = f"{sizes}: each size must be the first one times a power of two"
        yield _yaml(path, line, FATAL, "value", "block_sizes", message)
        return
    blocks = _units(path, block, _at(node, "block"), "blocks", "block")
    if not blocks:
        message = "No blocks configured"
        yield _yaml(path, _line(node), release.empty_topology, "missing", "blocks", message)
    yield from _blocks(release, blocks, numbers, nodes)


def _units(
    path: Path, plugin: dict[str, Any], node: Any, list_key: str, name_key: str
) -> list[_Unit]:
    """Return the switches or blocks of a topology; what is not one is left out."""

    def unit(index: int, data: dict[str, Any]) -> _Unit:
        line = _line(_at(_at(node, list_key), index))

        def find(key: str, severity: str, code: str, message: str) -> Finding:
            return _yaml(path, line, severity, code, key or name_key, message)

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


def _at(node: Any, key: str | int) -> Any:
    """Return the value of a key, or an item of a list, of a YAML node; None if there is none."""
    if isinstance(node, SequenceNode) and isinstance(key, int):
        return node.value[key] if key < len(node.value) else None
    if isinstance(node, MappingNode):
        return next((value for name, value in node.value if name.value == key), None)
    return None


def _line(node: Any) -> int:
    return node.start_mark.line + 1 if node is not None else 1


def _yaml(path: Path, line: int, severity: str, code: str, option: str, message: str) -> Finding:
    return Finding(
        str(path), line, 1, severity, code, option or path.name, message, "", SLURMCTLD + SLURMD
    )
