"""Toruses of topology.yaml: what _validate_config of torus3d_record.c refuses."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from math import prod
from typing import Any

from harness.parsing import conf
from harness.releases import Release
from harness.slurmconf.check.nodes import names_of

_Size = tuple[int, int, int]
# A position in a torus, and the node there.
_Cells = dict[_Size, str]


def problems(
    toruses: list[dict[str, Any]], nodes: Collection[str] | None, release: Release
) -> Iterator[tuple[int, str]]:
    """Yield the toruses that slurmctld refuses, by their places, and why."""
    seen: dict[str, set[str]] = {}
    for place, torus in enumerate(toruses):
        name = str(torus.get("name") or "")
        own_problems = [*_problems(torus, release)]
        yield from ((place, problem) for problem in own_problems)
        if not own_problems and len([*_filled(torus, nodes or (), release)]) > len(
            cells(torus, nodes or (), release)
        ):
            yield place, f"regions of torus {name} overlap"
        if name in seen:
            yield place, f"torus {name} is already defined"
        parts = [torus, *dicts(torus, "regions")]
        lists = (names_of(str(part["nodes"]), release) for part in parts if part.get("nodes"))
        own = {node for names in lists for node in names or ()} & {*(nodes or ())}
        for other, others in seen.items():
            if own & others:
                yield place, f"torus {name} shares {min(own & others)} with {other}"
        seen[name] = own


def _problems(torus: Mapping[str, Any], release: Release) -> Iterator[str]:
    size, regions = _size(torus, "dims"), dicts(torus, "regions")
    if not torus.get("name"):
        yield "a torus has no name"
    if torus.get("nodes") is not None and regions:
        yield "a torus has either nodes or regions, not both"
    if 0 in size:
        yield "dims must have x, y and z, and none of them can be 0"
        return
    if prod(size) >= 2**32:
        yield "dims are too large"
        return
    if regions:
        yield from _regions(size, regions, release)
    elif torus.get("nodes"):
        yield from _count("torus", str(torus["nodes"]), size, release)
    for placement in dicts(torus, "placements"):
        yield from _placement(size, placement)


def _regions(size: _Size, regions: list[dict[str, Any]], release: Release) -> Iterator[str]:
    for region in regions:
        corner, own = _size(region, "anchor"), _size(region, "dims")
        if not region.get("nodes"):
            yield "a region has no nodes"
        elif any(at + length > most for at, length, most in zip(corner, own, size, strict=True)):
            yield "a region exceeds its torus"
        else:
            yield from _count("region", str(region["nodes"]), own, release)


def _placement(size: _Size, placement: Mapping[str, Any]) -> Iterator[str]:
    own, seed = _size(placement, "dims"), _size(placement, "anchor_seed")
    given = zip(_size(placement, "anchor_spacing"), own, strict=True)
    spacing = [space or length for space, length in given]
    if 0 in own:
        yield "dims of a placement must have x, y and z, and none of them can be 0"
    elif any(length > most for length, most in zip(own, size, strict=True)):
        yield "a placement exceeds its torus"
    elif any(space > most for space, most in zip(spacing, size, strict=True)) or any(
        start >= most for start, most in zip(seed, size, strict=True)
    ):
        yield "anchor_spacing and anchor_seed of a placement must be within its torus"


def _count(what: str, nodes: str, size: _Size, release: Release) -> Iterator[str]:
    names = names_of(nodes, release)
    if names is None:
        yield f'"{nodes}" is not a hostlist'
    elif len(names) != prod(size):
        yield f"the {what} has {len(names)} nodes, but its dims make {prod(size)}"


def unknown(torus: Mapping[str, Any], nodes: Collection[str], release: Release) -> list[str]:
    """Return the nodes of a torus that slurm.conf does not have."""
    parts = dicts(torus, "regions") or (torus,)
    lists = (names_of(str(part.get("nodes") or ""), release) for part in parts)
    return [name for names in lists for name in names or () if name not in nodes]


def _size(data: Mapping[str, Any], key: str) -> _Size:
    part = data.get(key)
    x, y, z = (
        conf.number(str(part.get(axis))) or 0 if isinstance(part, dict) else 0 for axis in "xyz"
    )
    return x, y, z


def cells(torus: Mapping[str, Any], nodes: Collection[str], release: Release) -> _Cells:
    """Return the positions of the nodes that slurm.conf has."""
    return dict(_filled(torus, nodes, release))


def _filled(
    torus: Mapping[str, Any], nodes: Collection[str], release: Release
) -> Iterator[tuple[_Size, str]]:
    for part in dicts(torus, "regions") or (torus,):
        (x, y, z), (width, height, _) = _size(part, "anchor"), size(part)
        for index, node in enumerate(names_of(str(part.get("nodes") or ""), release) or ()):
            if node in nodes and width and height:
                row = index // width
                yield (x + index % width, y + row % height, z + row // height), node


def size(torus: Mapping[str, Any]) -> _Size:
    """Return the dimensions of a torus or a region; 0 where they are missing."""
    return _size(torus, "dims")


def dicts(data: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """Return the mappings in a list; what is not one is left out."""
    part = data.get(key)
    return [item for item in part if isinstance(item, dict)] if isinstance(part, list) else []
