"""Layers of hierarchical resources: what hres_init() of src/slurmctld/licenses.c makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

# MAX_HIERARCHY_DEPTH of licenses.h.
_MOST_LEVELS = 16


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of a resource, with the line that it begins on.

    `base` is what of its `count` is always in use.
    """

    resource: str
    mode: str
    nodes: frozenset[str]
    count: int
    base: int
    line: int


@dataclass(slots=True, eq=False)
class _Record:
    """A layer in slurmctld's list of licenses, or a license without layers.

    `level` counts from the leaves, `depth` from the root.
    """

    layer: Layer | None
    resource_id: int
    parent: _Record | None = None
    level: int = 0
    depth: int = 0

    @property
    def nodes(self) -> frozenset[str]:
        return self.layer.nodes if self.layer else frozenset()


# A layer that slurmctld refuses, the key that is wrong, and why.
_Problem = tuple[Layer, str, str]


def problem(layers: Sequence[Layer], licenses: int) -> _Problem | None:
    """Return the first layer that slurmctld refuses, the key that is wrong, and why.

    No resource has two layers of the same nodes, or two modes. Before the layers, slurmctld's list
    has the licenses of slurm.conf, which affect the order in which it sorts layers.
    """
    names = [*dict.fromkeys(layer.resource for layer in layers)]
    given = [_Record(None, len(names)) for _ in range(licenses)]
    given += [_Record(layer, names.index(layer.resource)) for layer in layers]
    records = _sorted(given)
    trees = [record for record in records if record.layer and record.layer.mode == "MODE_3"]
    return _rootless(trees) or _too_deep(trees) or _uneven(trees) or _too_large_base(records)


def _sorted(records: list[_Record]) -> list[_Record]:
    """Sort as qsort() of the GNU C library does, a merge sort: list_sort() uses it.

    Layers that do not contain each other compare equal, so no other sort has the same result.
    """
    if len(records) < 2:
        return records
    middle = len(records) // 2
    left, right = _sorted(records[:middle]), _sorted(records[middle:])
    merged = []
    while left and right:
        merged.append((right if _comes_after(left[0], right[0]) else left).pop(0))
    return [*merged, *left, *right]


def _comes_after(record: _Record, other: _Record) -> bool:
    """Return whether _sort_hres() puts a record behind another one."""
    if record.resource_id != other.resource_id:
        return record.resource_id < other.resource_id
    if record.layer and other.layer and record.layer.mode == "MODE_1":
        return record.layer.count < other.layer.count
    is_in_tree = record.layer is not None and record.layer.mode == "MODE_3"
    return is_in_tree and record.nodes > other.nodes


def _rootless(trees: Sequence[_Record]) -> _Problem | None:
    """Set the parents and levels of layers: _foreach_license_set_mode3()."""
    for _, group in groupby(trees, key=lambda record: record.resource_id):
        tree, has_root = [*group], False
        for record in tree:
            record.parent = next((other for other in tree if record.nodes < other.nodes), None)
            if record.parent:
                record.parent.level = record.level + 1
            elif has_root and record.layer:
                name = record.layer.resource
                message = f"{name} has no layer with all nodes, which MODE_3 requires"
                return record.layer, "nodes", message
            else:
                has_root = True
    return None


def _too_deep(trees: Sequence[_Record]) -> _Problem | None:
    """Set the depths of layers: _foreach_license_set_path()."""
    for record in trees:
        path = [record]
        while parent := path[-1].parent:
            path.append(parent)
        record.depth = len(path)
        if len(path) > _MOST_LEVELS and record.layer:
            message = f"{record.layer.resource} has more than {_MOST_LEVELS} levels"
            return record.layer, "nodes", message
    return None


def _uneven(trees: Sequence[_Record]) -> _Problem | None:
    """Compare the leaves before the first layer above them: _foreach_license_set_cnt()."""
    first: _Record | None = None
    for record in trees:
        if first is None or first.resource_id != record.resource_id or first.level < record.level:
            first = record
        elif not record.level and not first.level and record.depth != first.depth and record.layer:
            message = f"{record.layer.resource} has lowest layers on different levels"
            return record.layer, "nodes", message
    return None


def _too_large_base(records: Sequence[_Record]) -> _Problem | None:
    """Add up the bases of MODE_3, from the leaves: _foreach_license_set_base()."""
    below = dict.fromkeys(records, 0)
    for record in records:
        if record.layer is None:
            continue
        base = record.layer.base + below[record]
        if base > record.layer.count:
            return record.layer, "base", f"{base} is more than the count of {record.layer.count}"
        if record.parent:
            below[record.parent] += base
    return None
