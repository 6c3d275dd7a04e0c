"""The shapes of topologies: what a job of a size may get, and how people see it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, pairwise, product
from math import gcd, prod

from harness import hostlist, releases
from harness.scenario import Scenario, Topology, Torus

# Without BlockSizes slurmctld joins blocks up to four times over (block_record_validate).
_DOUBLINGS = 4


@dataclass(frozen=True, slots=True)
class Unit:
    """What a job gets as a whole if it can: the nodes under a switch, a block or blocks that are one, a sub-cube."""

    name: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Box:
    """A part of a picture: what is in it, boxes or rows of nodes, or of hostlists."""

    name: str
    boxes: tuple[Box, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


Level = tuple[Unit, ...]


@dataclass(frozen=True, slots=True)
class Placed:
    """A topology, with a partition and its nodes whose jobs it places; see releases for `near_switches`."""

    name: str
    topology: Topology
    partition: str
    nodes: frozenset[str]
    near_switches: bool

    def choices(self) -> list[Level]:
        """Return the levels of which a job gets one unit where it could get nodes of several."""
        matter = 1 if self.topology.switches and not self.near_switches else None
        found = (self._within(level) for level in levels(self.topology)[:matter])
        return [level for level in found if len(level) > 1]

    def most_nodes(self) -> int:
        """Return how many nodes a job can have at most: those below one switch, of whole blocks, or of a sub-cube."""
        sizes = levels(self.topology)
        if self.topology.blocks:
            # Slurm's largest blocks may be joined for larger jobs, but what is too little for one more is left out.
            all_in_one = _block_counts(self.topology)[-1] >= len(self.topology.blocks)
            return len(self.nodes) if all_in_one else sum(len(self.nodes & {*unit.nodes}) for unit in sizes[-1])
        units = ({*unit.nodes} for level in sizes for unit in level)
        return max(
            (len(self.nodes & unit) for unit in units if self.topology.switches or self.nodes >= unit), default=0
        )

    def leaves(self) -> Level:
        """Return the leaf switches among which a job can be spread; none where no switch is above them."""
        tree = levels(self.topology) if self.topology.switches else []
        leaves = self._within(tree[0]) if len(tree) > 1 else ()
        return leaves if len(leaves) > 1 else ()

    def segments(self) -> Level:
        """Return blocks or sub-cubes that are as many nodes as a larger one, but are none; () if there are none."""
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
    """Return the units of each level: of leaf switches and those above, of each block size, of each placement.

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
    """Return all that Slurm knows by a name, every switch, block or torus, with its nodes."""
    if topology.switches:
        return {unit.name: unit.nodes for level in levels(topology) for unit in level}
    return {str(place[1]): nodes for place, nodes in topology.nodes_of().items()}


def address(topology: Topology, node: str) -> str:
    """Return what SLURM_TOPOLOGY_ADDR is on a node: the switches from the top down, its block, or its coordinates.

    >>> address(Topology(blocks={"b1": "n[1-2]"}), "n2")
    'b1.n2'
    """
    for name, torus in topology.toruses.items():
        for coordinates, there in _coordinates(torus).items():
            if there == node:
                return f"{name}:{':'.join(map(str, coordinates))}.{node}"
    way = [name for name, nodes in reversed(parts(topology).items()) if node in nodes]
    return ".".join((*way, node))


def placed(scenario: Scenario, cluster_name: str) -> dict[str, Placed]:
    """Return the partitions of a cluster whose jobs a topology places."""
    cluster = scenario.clusters[cluster_name]
    near = releases.get(scenario.release_of(cluster)).near_switches
    return {
        partition_name: Placed(
            name, cluster.topology[name], partition_name, frozenset(cluster.nodes_of_partition(partition)), near
        )
        for partition_name, partition in cluster.partitions.items()
        if (name := cluster.topology_of(partition))
    }


def placed_once(scenario: Scenario, cluster_name: str) -> list[Placed]:
    """Return each topology that places jobs of a cluster once, with the largest partition."""
    by_size = sorted(placed(scenario, cluster_name).values(), key=lambda one: len(one.nodes))
    return [*{one.name: one for one in by_size}.values()]


def picture(topology: Topology) -> list[Box]:
    """Return what a topology looks like: switches and blocks with what is in them, toruses as a grid for each z."""
    match topology.plugin:
        case "tree":
            below = topology.switches_below()
            tops = [name for name in below if not any(name in children for children in below.values())]
            return [_switch_box(topology, name) for name in tops]
        case "block":
            return _block_boxes(levels(topology))
        case _:
            return [Box(name, boxes=tuple(_planes(torus))) for name, torus in topology.toruses.items()]


def _apart(level: Level) -> Level:
    """Return units of the first one's size that have no node in common."""
    found: list[Unit] = []
    for unit in level:
        if len(unit.nodes) == len(level[0].nodes) and not any({*unit.nodes} & {*one.nodes} for one in found):
            found.append(unit)
    return tuple(found)


def _tree_levels(topology: Topology) -> list[Level]:
    below = topology.switches_below()
    leaves = {place[1]: nodes for place, nodes in topology.nodes_of().items()}

    @cache
    def height(name: str) -> int:
        return 1 + max(map(height, below[name])) if below[name] else 0

    @cache
    def nodes(name: str) -> tuple[str, ...]:
        return tuple(node for child in below[name] for node in nodes(child)) if below[name] else leaves[name]

    return [
        tuple(Unit(name, nodes(name)) for name in below if height(name) == level)
        for level in range(max(map(height, below)) + 1)
    ]


def _block_levels(topology: Topology) -> list[Level]:
    blocks = [Unit(name, hostlist.expand(nodes)) for name, nodes in topology.blocks.items()]
    counts = _block_counts(topology)
    starts = {count: range(0, len(blocks) - count + 1, count) for count in counts}
    return [
        tuple(_joined(blocks[start : start + count]) for start in starts[count]) for count in counts if starts[count]
    ]


def _block_counts(topology: Topology) -> list[int]:
    """Return how many blocks are one at each size."""
    sizes = topology.block_sizes
    return sorted({size // sizes[0] for size in sizes} or {2**power for power in range(_DOUBLINGS + 1)})


def _joined(blocks: Sequence[Unit]) -> Unit:
    return Unit(hostlist.fold(block.name for block in blocks), tuple(node for block in blocks for node in block.nodes))


def _torus_levels(topology: Topology) -> list[Level]:
    """Return the sub-cubes of each size: the placements of a size are equally good."""
    units: dict[int, list[Unit]] = {}
    for name, torus in topology.toruses.items():
        for placement in torus.placements:
            units.setdefault(prod(placement), []).extend(_sub_cubes(name, torus, placement))
    return [tuple(units[size]) for size in sorted(units)]


def _sub_cubes(name: str, torus: Torus, placement: Sequence[int]) -> Iterator[Unit]:
    """Yield the sub-cubes of a shape: each begins where another ends, and may go on behind the torus's edge."""
    node_at = _coordinates(torus)
    anchors = (range(0, size, gcd(step, size)) for step, size in zip(placement, torus.dims, strict=True))
    for anchor in product(*anchors):
        cells = product(*(range(start, start + size) for start, size in zip(anchor, placement, strict=True)))
        nodes = (node_at[tuple(at % size for at, size in zip(cell, torus.dims, strict=True))] for cell in cells)
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
    return Box(name, boxes=tuple(_switch_box(topology, child) for child in topology.switches_below()[name]))


def _block_boxes(levels_: Sequence[Level]) -> list[Box]:
    """Return the boxes of the largest blocks; what is too few for one stands beside them."""
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
        yield Box(f"z {z}", rows=tuple(tuple(node_at[x, y, z] for x in range(width)) for y in range(depth)))
