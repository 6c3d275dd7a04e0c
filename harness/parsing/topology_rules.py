"""What Slurm requires of switches and blocks, however they are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter


def loop(switches: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return a loop of switches, each of which is below the next; the last is the first again.

    () if there is no loop.

    >>> loop({"top": ["a"], "a": ["b"], "b": ["a"]}), loop({"top": ["a"]})
    (('a', 'b', 'a'), ())
    """
    try:
        TopologicalSorter(switches).prepare()
    except CycleError as error:
        return tuple(error.args[1])
    return ()


def passes(switches: Mapping[str, Sequence[str]]) -> int:
    """Return how often Slurm must go through a tree of switches until it knows all their levels.

    The order decides: a switch is done if all those below it are. There may be no loop.

    >>> passes({"leaf": [], "top": ["leaf"]}), passes({"top": ["a"], "a": ["b"], "b": []})
    (1, 2)
    """
    done = {switch for switch, below in switches.items() if not below}
    count = 0
    while len(done) < len(switches):
        before = len(done)
        for switch, below in switches.items():
            if all(child in done or child not in switches for child in below):
                done.add(switch)
        count += 1
        if len(done) == before:
            return count
    return count


def wrong_block_sizes(sizes: Sequence[int]) -> list[int]:
    """Return the places of the block sizes that are not the first one times a power of two.

    >>> wrong_block_sizes([4, 8, 12, 32])
    [2]
    """
    base = sizes[0] if sizes else 0
    return [
        place
        for place, size in enumerate(sizes)
        if base <= 0 or size % base or (size // base).bit_count() != 1
    ]
