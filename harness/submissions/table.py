"""Read a table of submissions, YAML or CSV, and report every problem with its place."""

from __future__ import annotations

import csv
import io
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from harness.errors import Problem, UsageError, cannot_read
from harness.parsing import bounded_yaml
from harness.scenario.model import Scenario, did_you_mean
from harness.submissions.answers import EXPECTABLE, FIELDS

# sbatch(1): the long names of short options that are compared with what slurmctld holds, or that
# are not supported.
_SHORT = {
    "A": "account",
    "C": "constraint",
    "L": "licenses",
    "M": "clusters",
    "N": "nodes",
    "W": "wait",
    "n": "ntasks",
    "p": "partition",
    "q": "qos",
    "t": "time",
}
# Options that change what sbatch does, instead of what it submits; ":" separates jobs.
_UNSUPPORTED = frozenset(
    {":", "clusters", "help", "parsable", "test-only", "usage", "version", "wait", "wrap"}
)
_OTHER_KEYS = ("user", "cluster", "name", "options", "expect")
_TRUE, _FALSE = {"true", "yes"}, {"false", "no"}
_HINT = (
    "a row has user, options of sbatch (partition: long, or options: [--partition=long]), and "
    "optionally cluster, name and expect"
)


@dataclass(frozen=True, slots=True)
class Row:
    """A submission: who submits it to which cluster, with which options of sbatch.

    `expected` has the expected values, by column. `place` is FILE:LINE.
    """

    place: str
    user: str
    cluster: str
    name: str
    options: tuple[str, ...]
    expected: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def requested(self) -> dict[str, str]:
        """The values of options by their long names; "" for a flag.

        >>> Row("t.yml:1", "alice", "a", "", ("-pshort", "--time", "5", "-N", "2")).requested
        {'partition': 'short', 'time': '5', 'nodes': '2'}
        """
        values: dict[str, str] = {}
        words = iter(self.options)
        for word in words:
            if match := re.fullmatch(r"--([\w-]+)(?:=(.*))?", word, re.DOTALL):
                is_separate = match[2] is None and match[1] in FIELDS
                values[match[1]] = next(words, "") if is_separate else match[2] or ""
            elif word.startswith("-") and word[1:2] in _SHORT:
                values[_SHORT[word[1]]] = word[2:] or next(words, "")
        return values

    def __str__(self) -> str:
        return self.name or f"{self.user}: {shlex.join(self.options)}".rstrip(": ")


@dataclass(frozen=True, slots=True)
class _Cell:
    """A value and its place. Of YAML, `value` is a node."""

    value: Any
    line: int
    column: int


_Cells = dict[str, _Cell]


def read(path: Path, scenario: Scenario) -> list[Row]:
    """Return the rows of a table for the clusters of a scenario.

    Rows that name no cluster are for its first one. Raises UsageError, which lists all problems.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(cannot_read(path, error)) from error
    problems: list[Problem] = []
    reader = _Reader(path, scenario, problems)
    cells = _csv(path, text, problems) if path.suffix == ".csv" else _yaml(path, text, problems)
    rows = [reader.row(line, row) for line, row in cells]
    names = [str(row) for row in rows]
    for row in rows:
        if names.count(str(row)) > 1:
            line = int(row.place.rpartition(":")[2])
            problems.append(Problem(path, line, 1, "", f'two rows are "{row}": name them'))
    if not rows and not problems:
        problems.append(Problem(path, 1, 1, "", "no submissions"))
    if problems:
        problems.sort(key=lambda problem: (problem.line, problem.column))
        raise UsageError("\n".join(map(str, problems)), hint=_HINT)
    return rows


def _csv(path: Path, text: str, problems: list[Problem]) -> Iterator[tuple[int, _Cells]]:
    """Yield the line and the cells of each row; empty cells are left out."""
    lines = csv.reader(io.StringIO(text, newline=""), strict=True)
    header: list[str] = []
    begins = 1
    try:
        for cells in lines:
            line, begins = begins, lines.line_num + 1
            if not header:
                header = [name.strip() for name in cells]
            elif len(cells) > len(header):
                message = f"{len(cells)} cells, but the header has {len(header)}"
                problems.append(Problem(path, line, 1, "", message))
            elif any(cell.strip() for cell in cells):
                named = zip(header, cells, strict=False)
                yield line, {name: _Cell(cell, line, 1) for name, cell in named if cell.strip()}
    except csv.Error as error:
        problems.append(Problem(path, lines.line_num, 1, "", f"not CSV: {error}"))


def _yaml(path: Path, text: str, problems: list[Problem]) -> Iterator[tuple[int, _Cells]]:
    """Yield the line and the cells of each row."""
    try:
        node = bounded_yaml.Document(text).node
    except bounded_yaml.NotPlain as error:
        problems.append(Problem(path, error.line, error.column, "", error.message))
        return
    if node is not None and not isinstance(node, SequenceNode):
        problems.append(Problem(path, 1, 1, "", "a table must be a list of rows"))
        return
    for item in node.value if node else ():
        line = item.start_mark.line + 1
        if isinstance(item, MappingNode):
            yield line, _mapping(path, item, problems)
        else:
            problems.append(Problem(path, line, 1, "", "a row must be a mapping"))


def _mapping(path: Path, node: MappingNode, problems: list[Problem]) -> _Cells:
    cells: _Cells = {}
    for key, value in node.value:
        line, column = key.start_mark.line + 1, key.start_mark.column + 1
        if key.value in cells:
            problems.append(Problem(path, line, column, key.value, "is defined twice"))
        cells.setdefault(key.value, _Cell(value, line, column))
    return cells


@dataclass(frozen=True, slots=True)
class _Reader:
    """Turns cells into rows, and records their problems."""

    path: Path
    scenario: Scenario
    problems: list[Problem]

    def row(self, line: int, cells: _Cells) -> Row:
        """Return a row without what is wrong in it."""
        if "user" not in cells:
            self.problems.append(Problem(self.path, line, 1, "user", "is required"))
        users, clusters = list(self.scenario.users), list(self.scenario.clusters)
        return Row(
            f"{self.path}:{line}",
            self._one_of("user", cells, users),
            self._one_of("cluster", cells, clusters) or clusters[0],
            self._text("name", cells["name"]) if "name" in cells else "",
            tuple(self._options(cells)),
            dict(self._expected(cells)),
        )

    def _one_of(self, name: str, cells: _Cells, known: list[str]) -> str:
        if name not in cells:
            return ""
        value = self._text(name, cells[name])
        if value not in known:
            self._wrong(name, cells[name], f'no {name} "{value}"{did_you_mean(value, known)}')
        return value

    def _options(self, cells: _Cells) -> Iterator[str]:
        """Yield the options of sbatch; those in `options` come first."""
        words = self._words(cells["options"]) if "options" in cells else []
        for option in {*Row("", "", "", "", tuple(words)).requested, *words} & _UNSUPPORTED:
            self._refuse(option, "options", cells["options"])
        yield from words
        for name, cell in cells.items():
            if name in _OTHER_KEYS or name.startswith("expect."):
                continue
            if not re.fullmatch("[a-z][a-z0-9-]+", name):
                self._wrong(name, cell, "not the long name of an sbatch option")
            if name in _UNSUPPORTED:
                self._refuse(name, name, cell)
            yield from self._option(name, cell)

    def _option(self, name: str, cell: _Cell) -> Iterator[str]:
        value = cell.value
        if isinstance(value, SequenceNode):
            yield f"--{name}={','.join(self._text(name, cell, item) for item in value.value)}"
            return
        text = self._text(name, cell)
        if text in _TRUE:
            yield f"--{name}"
        elif text not in _FALSE and not _is_null(value):
            yield f"--{name}={text}"

    def _refuse(self, option: str, where: str, cell: _Cell) -> None:
        instead = "; name the cluster with the key cluster" if option == "clusters" else ""
        self._wrong(where, cell, f"{option} is not supported{instead}")

    def _words(self, cell: _Cell) -> list[str]:
        if isinstance(cell.value, SequenceNode):
            return [self._text("options", cell, item) for item in cell.value.value]
        try:
            return shlex.split(self._text("options", cell))
        except ValueError as error:
            self._wrong("options", cell, str(error))
            return []

    def _expected(self, cells: _Cells) -> Iterator[tuple[str, str]]:
        expected = {
            name.removeprefix("expect."): cell
            for name, cell in cells.items()
            if name.startswith("expect.")
        }
        if cell := cells.get("expect"):
            if isinstance(cell.value, MappingNode):
                expected |= _mapping(self.path, cell.value, self.problems)
            else:
                self._wrong("expect", cell, "must be a mapping; in CSV, use expect.COLUMN")
        for name, cell in expected.items():
            if name not in EXPECTABLE:
                known = did_you_mean(name, list(EXPECTABLE))
                self._wrong(f"expect.{name}", cell, f"unknown column{known}")
            value = "" if _is_null(cell.value) else self._text(f"expect.{name}", cell)
            if name == "accepted" and value not in _TRUE | _FALSE:
                self._wrong(f"expect.{name}", cell, "must be true or false")
            yield name, value

    def _text(self, name: str, cell: _Cell, node: Any = None) -> str:
        """Return the text of a value as it is written, such as 08 or 1.10."""
        value = cell.value if node is None else node
        if isinstance(value, ScalarNode):
            value = value.value
        elif isinstance(value, Node):
            self._wrong(name, cell, "must be a single value")
            return ""
        return str(value).strip()

    def _wrong(self, where: str, cell: _Cell, message: str) -> None:
        self.problems.append(Problem(self.path, cell.line, cell.column, where, message))


def _is_null(value: Any) -> bool:
    return isinstance(value, ScalarNode) and str(value.tag).endswith(":null")
