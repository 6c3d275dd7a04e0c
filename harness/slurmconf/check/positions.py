"""Positions in rings and toruses that nodes of slurm.conf name: topology_p_add_rm_node()."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from harness.releases import Release
from harness.slurmconf.check import toruses
from harness.slurmconf.check.findings import ERROR, FATAL
from harness.slurmconf.check.nodes import names_of

# MAX_RING_SIZE of ring_record.h.
LARGEST_RING = 16
_LARGEST_POSITION = 2**16 - 1
# strtoul() with any base.
_NUMBER = re.compile(r"\s*\+?(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9]\d{0,20})", re.ASCII)


class Rings:
    """The rings of a topology, while nodes are added in the order of slurm.conf."""

    def __init__(
        self, rings: list[dict[str, Any]], nodes: Collection[str], release: Release
    ) -> None:
        """Fill the rings with their nodes, as far as slurm.conf has them."""
        self._members = {
            str(ring.get("ring")): {*nodes}.intersection(
                names_of(str(ring.get("nodes") or ""), release) or ()
            )
            for ring in rings
        }

    def problem(self, node: str, unit: str) -> tuple[str, str]:
        """Move a node to RING:POSITION; return the severity of a problem and what it is, or ""."""
        name, _, position = unit.partition(":")
        numbers = _numbers(position)
        if len(numbers) != 1 or numbers[0] >= LARGEST_RING:
            return FATAL, f'"{unit}" is not RING:POSITION, with a position below {LARGEST_RING}'
        members = self._members.get(name)
        if members is None and numbers[0]:
            return FATAL, f"there is no ring {name}, and the position in a new ring must be 0"
        members = self._members.setdefault(name, set())
        if node not in members and len(members) == LARGEST_RING:
            return FATAL, f"ring {name} already has {LARGEST_RING} nodes"
        for other in self._members.values():
            other.discard(node)
        size = len(members)  # of the others: the node itself can be the last
        members.add(node)
        if numbers[0] > size:
            message = f"ring {name} ends at position {size}, so {node} is at position 0"
            return ERROR, message
        return ERROR, ""


class Toruses:
    """The toruses of a topology, while nodes are added in the order of slurm.conf."""

    def __init__(
        self, found: list[dict[str, Any]], nodes: Collection[str], release: Release
    ) -> None:
        """Fill the toruses with their nodes, as far as slurm.conf has them."""
        self._sizes = {str(torus.get("name")): toruses.size(torus) for torus in found}
        self._cells = {
            str(torus.get("name")): toruses.cells(torus, nodes, release) for torus in found
        }

    def problem(self, node: str, unit: str) -> tuple[str, str]:
        """Move a node to TORUS:X:Y:Z; return FATAL and why that is impossible, or ""."""
        return FATAL, self._problem(node, unit)

    def _problem(self, node: str, unit: str) -> str:
        name, _, position = unit.partition(":")
        numbers = _numbers(position, most=3)
        if len(numbers) != 3 or max(numbers) > _LARGEST_POSITION:
            return f'"{unit}" is not TORUS:X:Y:Z'
        if name not in self._cells:
            return f"there is no torus {name}"
        if any(at >= size for at, size in zip(numbers, self._sizes[name], strict=True)):
            return f"{position} is outside of torus {name}"
        x, y, z = numbers
        occupant = self._cells[name].get((x, y, z), node)
        if occupant != node:
            return f"{position} of torus {name} is the place of {occupant}"
        for cells in self._cells.values():
            for cell in [cell for cell, other in cells.items() if other == node]:
                del cells[cell]
        self._cells[name][x, y, z] = node
        return ""


def _numbers(position: str, most: int = 1) -> list[int]:
    """Return the numbers of a position; [] if one of them is none. Slurm ignores what follows."""
    words = position.split(":")
    found = [_NUMBER.fullmatch(word) for word in (words[:most] if most > 1 else words)]
    return [_integer(match[1]) for match in found if match] if all(found) else []


def _integer(digits: str) -> int:
    is_octal = re.fullmatch("0[0-7]+", digits)
    return int(digits, 8) if is_octal else int(digits, 0)
