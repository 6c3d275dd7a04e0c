"""Reduce configuration files to what is needed for something to remain true of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

Files = dict[str, str]
# Returns which of several sets of files still have the property.
Test = Callable[[Sequence[Files]], Sequence[bool]]
_Pieces = list[tuple[str, str]]  # file and text


def reduced(files: Files, test: Test) -> Files:
    """Return the smallest files that a test accepts: first without lines, then without words."""
    for split in (_lines, _words):
        files = _joined(_minimal(split(files), lambda many: test([*map(_joined, many)])))
    return files


def _lines(files: Files) -> _Pieces:
    return [(name, line) for name, text in files.items() for line in text.splitlines(keepends=True)]


def _words(files: Files) -> _Pieces:
    """Split lines before blanks, commas and quotes, and keep the end of each line apart."""
    return [
        (name, word)
        for name, text in files.items()
        for word in re.findall(r"\n|[ \t,]*[^\s,]+|[^\S\n]+|,+", text)
    ]


def _joined(pieces: _Pieces) -> Files:
    files: Files = {}
    for name, text in pieces:
        files[name] = files.get(name, "") + text
    return files


def _minimal(pieces: _Pieces, test: Callable[[list[_Pieces]], Sequence[bool]]) -> _Pieces:
    """Remove chunks of pieces, halving their size, until no single piece can be removed.

    One call of the test tries all chunks of a size on their own; then it tries many together.
    """
    size = len(pieces) // 2
    while size:
        chunks = [range(start, start + size) for start in range(0, len(pieces), size)]
        accepted = test([_without(pieces, [chunk]) for chunk in chunks])
        removable = [chunk for chunk, alone in zip(chunks, accepted, strict=True) if alone]
        if not removable:
            size //= 2
            continue
        # All of them, the first half, its first half, ...; the first one alone is known.
        counts = [len(removable) >> shift for shift in range(len(removable).bit_length())]
        smaller = [_without(pieces, removable[:count]) for count in counts]
        known = [*(test(smaller[:-1]) if len(smaller) > 1 else []), True]
        pieces = smaller[known.index(True)]
    return pieces


def _without(pieces: _Pieces, chunks: Sequence[range]) -> _Pieces:
    return [piece for i, piece in enumerate(pieces) if not any(i in chunk for chunk in chunks)]
