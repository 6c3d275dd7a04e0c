"""What Slurm requires of switches and blocks, however they are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

_POWERS_OF_TWO = {2**level for level in range(16)}


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


def is_deep(switches: Mapping[str, Sequence[str]], most: int) -> bool:
    """Return whether Slurm must go through switches more than `most` times to know their levels.

    The order decides: a switch is done if all those below it are. There may be no loop.

    >>> is_deep({"a": [], "top": ["a"], "root": ["top"]}, 1)
    False
    >>> is_deep({"root": ["top"], "top": ["a"], "a": []}, 1)
    True
    """
    done = {switch for switch, below in switches.items() if not below}
    for _ in range(most):
        if len(done) == len(switches):
            break
        for switch, below in switches.items():
            if all(child in done or child not in switches for child in below):
                done.add(switch)
    return len(done) < len(switches)


def wrong_block_sizes(sizes: Sequence[int]) -> list[int]:
    """Return the indexes of the block sizes that are not the first one times a power of two.

    Slurm knows 16 such sizes (MAX_BLOCK_LEVELS).

    >>> wrong_block_sizes([4, 8, 12, 32, 4 * 2**15, 4 * 2**16])
    [2, 5]
    """
    base = sizes[0] if sizes else 0
    return [
        place
        for place, size in enumerate(sizes)
        if base <= 0 or size % base or size // base not in _POWERS_OF_TWO
    ]
