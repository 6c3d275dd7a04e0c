"""Read slurm.conf and similar files as Slurm's parser does, and keep all text and each place.

The grammar is that of src/common/parse_config.c, which has not changed from 20.11 to 26.05. Text
that cannot be read as options is kept separately: for any file, `"".join(line.raw for line in
read(text))` is its text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from harness.errors import UsageError, cannot_read

# More than any site has: 20,000 nodes with a line each take 4 MiB.
MOST_BYTES = 16 * 2**20
_NUMBER = re.compile("[0-9]{1,18}")
_BLANK = " \t\n\v\f\r"
_PAIR = re.compile(
    rf"[{_BLANK}]*([A-Za-z0-9_.]+)[{_BLANK}]*[-*+/]?=[{_BLANK}]*"
    rf"(?:\"([^\"]*)\"(?![^{_BLANK}])|([^{_BLANK}]+))"
)
# Include must be at the very beginning of a line; Slurm ignores what follows the file's name.
_INCLUDE = re.compile(rf"include[{_BLANK}]+([^{_BLANK}]+)", re.IGNORECASE)
_BLANKS = re.compile(rf"[{_BLANK}]")
_COMMENT = re.compile(r"(?<!\\)((?:\\\\)*)#.*", re.DOTALL)
_CONTINUED = re.compile(rf"(?<!\\)((?:\\\\)*)\\[{_BLANK}]*\Z")


class Pair(NamedTuple):
    """One KEY=VALUE. `start` and `value_start` are offsets in the text of its line."""

    key: str
    value: str
    start: int
    value_start: int


class Line(NamedTuple):
    """One logical line: a backslash joins lines, and `text` has no comments.

    `raw` is the text in the file. `rest` is the offset in `text` at which text that cannot be read
    begins, or None. `include` is the name after Include. `places` has the line and column of each
    character of `text`, or is None if `text` begins at the line's first column and has no gaps.
    Line numbers count from 1.
    """

    number: int
    raw: str
    text: str
    pairs: tuple[Pair, ...]
    rest: int | None
    include: str | None
    places: tuple[tuple[int, int], ...] | None

    def place(self, offset: int) -> tuple[int, int]:
        """Return the line and column of an offset in `text`."""
        if self.places is None:
            return self.number, offset + 1
        return self.places[min(offset, len(self.places) - 1)] if self.places else (self.number, 1)


def read(text: str) -> Iterator[Line]:
    """Yield the lines of a file's text."""
    physical = (
        text.splitlines(keepends=True) if not _ODD_ENDS.search(text) else _NEWLINE.findall(text)
    )
    number = 0
    while number < len(physical):
        first = physical[number]
        number += 1
        if "\\" not in first and "\0" not in first:
            stripped = first.partition("#")[0]
            yield _line(number, first, stripped, None)
            continue
        begun = number
        raw, characters, places = [], [], []
        while True:
            part = physical[number - 1]
            raw.append(part)
            kept = _COMMENT.sub(r"\1", part.partition("\0")[0], count=1)
            continued = _CONTINUED.search(kept)
            if continued:
                kept = kept[: continued.end(1)]
            characters.append(kept)
            places += [(number, column) for column in range(1, len(kept) + 1)]
            if not continued or number >= len(physical):
                break
            number += 1
        yield _line(begun, "".join(raw), *_unescaped("".join(characters), places))


def rest_of_include(before: Sequence[Line], line: Line) -> str:
    r"""Return what Slurm reads after the file of an Include that ends its line's text.

    _parse_include_directive looks for a blank, and finds it behind the end of the text: in what is
    left in the line buffer of a comment, or of longer lines before. "" if it finds none there.

    >>> lines = list(read("PartitionName=p Nodes=ALL\nInclude x.conf"))
    >>> rest_of_include(lines[:1], lines[1])
    ' Nodes=ALL'
    """
    if not line.include or _INCLUDE.fullmatch(line.text) is None:
        return ""
    buffer = ""
    for earlier in (*before, line):
        text = f"{earlier.raw if earlier.places is None else earlier.text}\0"
        buffer = text + buffer[len(text) :]
    blank = _BLANKS.search(buffer, len(line.text) + 1)
    return buffer[blank.start() :].partition("\0")[0].rstrip(_BLANK) if blank else ""


def read_text(path: Path, most: int = MOST_BYTES) -> str:
    """Return a file's text with its line ends.

    A file that is not UTF-8 is read as Latin-1, which accepts all bytes. Raises UsageError if it
    cannot be read, or has more than `most` bytes.
    """
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise UsageError(cannot_read(path, error)) from error
    if len(content) > most:
        raise UsageError(f"{path}: a file with its Includes has at most {MOST_BYTES // 2**20} MiB")
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content.decode("latin-1")


def number(value: str) -> int | None:
    """Return a value as an integer of at most 18 digits; None if it is not one.

    >>> number("42"), number("4K"), number("9" * 5000)
    (42, None, None)
    """
    return int(value) if _NUMBER.fullmatch(value) else None


# Lines end only with "\n"; str.splitlines() knows more line ends.
_ODD_ENDS = re.compile("[\v\f\r\x1c-\x1e\x85\u2028\u2029]")
_NEWLINE = re.compile("[^\n]*\n|[^\n]+")


def _unescaped(text: str, places: list[tuple[int, int]]) -> tuple[str, tuple[tuple[int, int], ...]]:
    """Remove each backslash, and keep the character after it."""
    kept = []
    index = 0
    while index < len(text):
        if text[index] == "\\":
            index += 1
        if index < len(text):
            kept.append(index)
        index += 1
    return "".join(text[index] for index in kept), tuple(places[index] for index in kept)


def _line(number: int, raw: str, text: str, places: tuple[tuple[int, int], ...] | None) -> Line:
    include = _INCLUDE.match(text)
    pairs: list[Pair] = []
    end = include.end() if include else 0
    if not include:
        while match := _PAIR.match(text, end):
            quoted = match[2] is not None
            key = match.start(1)
            pairs.append(
                Pair(
                    match[1], match[2] if quoted else match[3], key, match.start(2 if quoted else 3)
                )
            )
            end = match.end()
    tail = text[end:]
    left = tail.lstrip(_BLANK)
    rest = end + len(tail) - len(left) if left else None
    return Line(number, raw, text, tuple(pairs), rest, include[1] if include else None, places)
