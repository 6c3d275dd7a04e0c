"""The shapes of topologies: the nodes that a job of some size can get, and pictures of them.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, pairwise, product
from math import gcd, prod

from harness import releases
from harness.parsing import conf, hostlist
from harness.scenario import Scenario, Topology, Torus

# Without BlockSizes, slurmctld combines up to 2**4 blocks (block_record_validate).
_DOUBLINGS = 4


@dataclass(frozen=True, slots=True)
class Unit:
    """Nodes that a job gets together if possible.

    These are nodes under a switch, of a block or combined blocks, or of a sub-cube.
    """

    name: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Box:
    """A part of a picture, which contains boxes, or rows of nodes or hostlists."""

    name: str
    boxes: tuple[Box, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


Level = tuple[Unit, ...]


@dataclass(frozen=True, slots=True)
class Placed:
    """A topology with a partition whose jobs it places, and its nodes.

    `near_switches` is a fact of the release.
    """

    name: str
    topology: Topology
    partition: str
    nodes: frozenset[str]
    near_switches: bool

    def choices(self) -> list[Level]:
        """Return the levels with several units; a job should get nodes of only one of them."""
        most_levels = 1 if self.topology.switches and not self.near_switches else None
        usable = (self._within(level) for level in levels(self.topology)[:most_levels])
        return [level for level in usable if len(level) > 1]

    def most_nodes(self) -> int:
        """Return the largest number of nodes that a job can have.

        They are below one switch, in whole blocks, or in a sub-cube.
        """
        sizes = levels(self.topology)
        if self.topology.blocks:
            # A larger job can get several of the largest combined blocks, but no block that is in
            # none of them.
            all_in_one = _block_counts(self.topology)[-1] >= len(self.topology.blocks)
            return (
                len(self.nodes)
                if all_in_one
                else sum(len(self.nodes & {*unit.nodes}) for unit in sizes[-1])
            )
        units = ({*unit.nodes} for level in sizes for unit in level)
        return max(
            (
                len(self.nodes & unit)
                for unit in units
                if self.topology.switches or self.nodes >= unit
            ),
            default=0,
        )

    def leaves(self) -> Level:
        """Return the leaf switches over which a job can be spread.

        There are none without a switch above them.
        """
        tree = levels(self.topology) if self.topology.switches else []
        leaves = self._within(tree[0]) if len(tree) > 1 else ()
        return leaves if len(leaves) > 1 else ()

    def segments(self) -> Level:
        """Return blocks or sub-cubes that have as many nodes as a larger unit but are not one.

        () if there are none.
        """
        if self.topology.switches or not (choices := self.choices()):
            return ()
        small = _apart(choices[0])
        for level in choices[1:]:
            count, rest = divmod(len(level[0].nodes), len(small[0].nodes))
            for units in combinations(small, count) if not rest else ():
                nodes = {node for unit in units for node in unit.nodes}
                if not any(nodes >= {*unit.nodes} for unit in level):
                    return units
        return ()

    def _within(self, level: Level) -> Level:
        return tuple(unit for unit in level if len(unit.nodes) > 1 and self.nodes >= {*unit.nodes})


def levels(topology: Topology) -> list[Level]:
    """Return the units of each level: leaf switches and those above, block sizes, or placements.

    The units of the first level are the smallest.
    """
    match topology.plugin:
        case "tree":
            return _tree_levels(topology)
        case "block":
            return _block_levels(topology)
        case _:
            return _torus_levels(topology)


def parts(topology: Topology) -> dict[str, tuple[str, ...]]:
    """Return everything that has a name (switches, blocks or toruses) with its nodes."""
    if topology.switches:
        return {unit.name: unit.nodes for level in levels(topology) for unit in level}
    return {str(place[1]): nodes for place, nodes in topology.nodes_of().items()}


def joined_blocks(topology: Topology) -> dict[str, tuple[str, ...]]:
    """Return the combined blocks of slurmctld by name; the last of a size may lack some blocks.

    >>> joined_blocks(Topology(blocks={"b1": "n1", "b2": "n2", "b3": "n3"}, block_sizes=[1, 2, 4]))
    {'b[1-2]': ('n1', 'n2'), 'b[1-3]': ('n1', 'n2', 'n3')}
    """
    blocks = [Unit(name, hostlist.expand(nodes)) for name, nodes in topology.blocks.items()]
    joined = (
        _joined(blocks[start : start + count])
        for smaller, count in pairwise(_block_counts(topology) if blocks else [])
        for start in range(0, len(blocks), count)
        if len(blocks) - start > smaller  # block_record_validate()
    )
    return {unit.name: unit.nodes for unit in joined}


def address(topology: Topology, node: str) -> str:
    """Return SLURM_TOPOLOGY_ADDR of a node.

    It names the switches from the top down, or the block, or the coordinates in a torus.

    >>> address(Topology(blocks={"b1": "n[1-2]"}), "n2")
    'b1.n2'
    """
    for name, torus in topology.toruses.items():
        for coordinates, member in _coordinates(torus).items():
            if member == node:
                return f"{name}:{':'.join(map(str, coordinates))}.{node}"
    above = [name for name, nodes in reversed(parts(topology).items()) if node in nodes]
    return ".".join((*above, node))


def placed(scenario: Scenario, cluster_name: str) -> dict[str, Placed]:
    """Return the partitions of a cluster whose jobs are placed by a topology."""
    cluster = scenario.clusters[cluster_name]
    near = releases.get(scenario.release_of(cluster)).near_switches
    return {
        partition_name: Placed(
            name,
            cluster.topology[name],
            partition_name,
            frozenset(cluster.nodes_of_partition(partition)),
            near,
        )
        for partition_name, partition in cluster.partitions.items()
        if (name := cluster.topology_of(partition))
    }


def placed_once(scenario: Scenario, cluster_name: str) -> list[Placed]:
    """Return each topology that places jobs of a cluster, with its largest partition."""
    by_size = sorted(placed(scenario, cluster_name).values(), key=lambda item: len(item.nodes))
    return [*{item.name: item for item in by_size}.values()]


def most_connected(topology_conf: str, nodes: Sequence[str]) -> int:
    r"""Return how many of some nodes a job can have if they need a switch above them all.

    A text without switches connects all nodes.

    >>> most_connected("SwitchName=s1 Nodes=n[1-3]\nSwitchName=s2 Nodes=n4", ["n2", "n3", "n4"])
    2
    """
    switches = [
        {pair.key.lower(): pair.value for pair in line.pairs}
        for line in conf.read(topology_conf)
        if line.pairs and line.pairs[0].key.lower() == "switchname"
    ]
    nodes_of: dict[str, set[str]] = {}
    waiting = switches
    while waiting:
        ready = [switch for switch in waiting if {*_names(switch.get("switches"))} <= {*nodes_of}]
        for switch in ready:
            below = [nodes_of[child] for child in _names(switch.get("switches"))]
            nodes_of[switch["switchname"]] = {*_names(switch.get("nodes"))}.union(*below)
        waiting = [switch for switch in waiting if switch not in ready] if ready else []
    if not nodes_of:
        return len(nodes)
    return max(1, *(len(reached.intersection(nodes)) for reached in nodes_of.values()))


def _names(names: str | None) -> tuple[str, ...]:
    return hostlist.create(names) if names else ()


def picture(topology: Topology) -> list[Box]:
    """Return the picture of a topology.

    It shows switches and blocks with their content, and toruses as a grid for each z.
    """
    match topology.plugin:
        case "tree":
            below = topology.switches_below()
            tops = [
                name for name in below if not any(name in children for children in below.values())
            ]
            return [_switch_box(topology, name) for name in tops]
        case "block":
            return _block_boxes(levels(topology))
        case _:
            return [
                Box(name, boxes=tuple(_planes(torus))) for name, torus in topology.toruses.items()
            ]


def _apart(level: Level) -> Level:
    """Return units of the size of the first that share no node."""
    apart: list[Unit] = []
    for unit in level:
        if len(unit.nodes) == len(level[0].nodes) and not any(
            {*unit.nodes} & {*other.nodes} for other in apart
        ):
            apart.append(unit)
    return tuple(apart)


def _tree_levels(topology: Topology) -> list[Level]:
    below = topology.switches_below()
    leaves = {place[1]: nodes for place, nodes in topology.nodes_of().items()}

    @cache
    def height(name: str) -> int:
        return 1 + max(map(height, below[name])) if below[name] else 0

    @cache
    def nodes(name: str) -> tuple[str, ...]:
        return (
            tuple(node for child in below[name] for node in nodes(child))
            if below[name]
            else leaves[name]
        )

    return [
        tuple(Unit(name, nodes(name)) for name in below if height(name) == level)
        for level in range(max(map(height, below)) + 1)
    ]


def _block_levels(topology: Topology) -> list[Level]:
    blocks = [Unit(name, hostlist.expand(nodes)) for name, nodes in topology.blocks.items()]
    counts = _block_counts(topology)
    starts = {count: range(0, len(blocks) - count + 1, count) for count in counts}
    return [
        tuple(_joined(blocks[start : start + count]) for start in starts[count])
        for count in counts
        if starts[count]
    ]


def _block_counts(topology: Topology) -> list[int]:
    """Return how many blocks are combined at each size."""
    sizes = topology.block_sizes
    return sorted(
        {size // sizes[0] for size in sizes} or {2**power for power in range(_DOUBLINGS + 1)}
    )


def _joined(blocks: Sequence[Unit]) -> Unit:
    return Unit(
        hostlist.fold(block.name for block in blocks),
        tuple(node for block in blocks for node in block.nodes),
    )


def _torus_levels(topology: Topology) -> list[Level]:
    """Return the sub-cubes of each size. Placements of the same size are equally good."""
    units: dict[int, list[Unit]] = {}
    for name, torus in topology.toruses.items():
        for placement in torus.placements:
            units.setdefault(prod(placement), []).extend(_sub_cubes(name, torus, placement))
    return [tuple(units[size]) for size in sorted(units)]


def _sub_cubes(name: str, torus: Torus, placement: Sequence[int]) -> Iterator[Unit]:
    """Yield the sub-cubes of a shape.

    Each begins where another ends, and may wrap around the torus's edge.
    """
    node_at = _coordinates(torus)
    anchors = (
        range(0, size, gcd(step, size)) for step, size in zip(placement, torus.dims, strict=True)
    )
    for anchor in product(*anchors):
        cells = product(
            *(range(start, start + size) for start, size in zip(anchor, placement, strict=True))
        )
        nodes = (
            node_at[tuple(at % size for at, size in zip(cell, torus.dims, strict=True))]
            for cell in cells
        )
        yield Unit(f"{name} from {':'.join(map(str, anchor))}", tuple(nodes))


def _coordinates(torus: Torus) -> dict[tuple[int, ...], str]:
    """Return the node at each place; topology.yaml(5): x varies fastest."""
    width, depth, height = torus.dims
    places = ((x, y, z) for z in range(height) for y in range(depth) for x in range(width))
    return dict(zip(places, hostlist.expand(torus.nodes), strict=True))


def _switch_box(topology: Topology, name: str) -> Box:
    switch = topology.switches[name]
    if switch.nodes:
        return Box(name, rows=((switch.nodes,),))
    return Box(
        name, boxes=tuple(_switch_box(topology, child) for child in topology.switches_below()[name])
    )


def _block_boxes(levels_: Sequence[Level]) -> list[Box]:
    """Return the boxes of the largest combined blocks, then of blocks that are in none."""
    boxes = [Box(block.name, rows=((hostlist.fold(block.nodes),),)) for block in levels_[0]]
    for lower, level in pairwise(levels_):
        inside = sum({*unit.nodes} <= {*level[0].nodes} for unit in lower)
        joined = [
            Box(unit.name, boxes=tuple(boxes[index * inside : (index + 1) * inside]))
            for index, unit in enumerate(level)
        ]
        boxes = [*joined, *boxes[len(level) * inside :]]
    return boxes


def _planes(torus: Torus) -> Iterator[Box]:
    width, depth, height = torus.dims
    node_at = _coordinates(torus)
    for z in range(height):
        yield Box(
            f"z {z}",
            rows=tuple(tuple(node_at[x, y, z] for x in range(width)) for y in range(depth)),
        )
