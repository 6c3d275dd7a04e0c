"""Read YAML with only text, numbers, true, false, null, lists, and mappings with text as keys.

Everything else in YAML is refused, with its place. The limits are part of the scenario's format
(docs/scenario.md).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer, MaxDepthExceededError
from ruamel.yaml.constructor import SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, StringMark, YAMLError
from ruamel.yaml.events import AliasEvent
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError
from ruamel.yaml.scanner import Scanner

MOST_BYTES = 4 * 2**20
# Levels of nested lists and mappings.
DEEPEST = 32
# How many values all aliases of a file may repeat.
MOST_REPEATED = 10_000
# Bits of the largest integers; Slurm has no larger ones.
_MOST_BITS = 64
_TAG = "tag:yaml.org,2002:"
_TEXT, _MERGE = f"{_TAG}str", f"{_TAG}merge"
# Authors of scenarios mean text by "2026-11-23", "=" and, as a value, "<<".
_ALSO_TEXT = {f"{_TAG}timestamp", f"{_TAG}value", _MERGE}
_SCALARS = {*(f"{_TAG}{kind}" for kind in ("null", "bool", "int", "float")), _TEXT}
_SURROGATE = re.compile("[\ud800-\udfff]")


class NotPlain(ValueError):
    """A text is not such YAML. Lines and columns count from 1."""

    def __init__(self, message: str, mark: StringMark | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.line, self.column = (mark.line + 1, mark.column + 1) if mark else (1, 1)


class Document:
    """The nodes of a text, with their places; `node` is None if the text is empty.

    Raises NotPlain if it is not such YAML.
    """

    def __init__(self, text: str) -> None:
        if len(text) > MOST_BYTES:  # a character has at least one byte
            raise NotPlain(f"more than {MOST_BYTES // 2**20} MiB")
        yaml = YAML(typ="safe", pure=True)
        yaml.Scanner, yaml.Composer, yaml.Constructor = _Scanner, _Composer, _Constructor
        yaml.allow_duplicate_keys = True
        yaml.max_depth = DEEPEST
        with _explained(text):
            self._constructor, _ = yaml.get_constructor_parser(text)
            self.node: Node | None = self._constructor.composer.get_single_node()
            if self.node is not None:
                _check(self.node, set())

    def data(self) -> Any:
        """Return the data, in which the first of duplicate keys counts.

        This removes merge keys from the nodes.
        """
        with _explained(""):
            return None if self.node is None else self._constructor.construct_document(self.node)


def load(text: str) -> Any:
    """Return the data of a text; raise NotPlain if it is not such YAML."""
    return Document(text).data()


@contextmanager
def _explained(text: str) -> Iterator[None]:
    """Turn the library's errors into NotPlain."""
    try:
        yield
    except ReaderError as error:
        before = text[: error.position]
        mark = StringMark(
            "", error.position, before.count("\n"), len(before) - before.rfind("\n") - 1, None, 0
        )
        raise NotPlain(
            f"not YAML: the character U+{error.character:04X} is not allowed", mark
        ) from error
    except MaxDepthExceededError as error:
        raise NotPlain(
            f"more than {DEEPEST} levels of lists and mappings", error.problem_mark
        ) from error
    except MarkedYAMLError as error:
        raise NotPlain(f"not YAML: {error.problem or error.context}", error.problem_mark) from error
    except YAMLError as error:
        raise NotPlain(f"not YAML: {error}") from error


class _Scanner(Scanner):
    """Refuses directives: they change the version of YAML, or define tags."""

    def fetch_directive(self) -> None:
        """Refuse a line such as %YAML 1.1."""
        raise NotPlain(
            "a line that begins with % is a YAML directive: remove it", self.reader.get_mark()
        )


class _Composer(Composer):
    """Composes nodes. Aliases can repeat only complete nodes, and MOST_REPEATED values in all."""

    def __init__(self, loader: Any = None) -> None:
        super().__init__(loader=loader)
        self.warn_double_anchors = False
        self._repeated = 0
        self._sizes: dict[int, tuple[int, int]] = {}

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Return the next node."""
        mark = self.parser.peek_event().start_mark if self.parser.check_event(AliasEvent) else None
        node = super().compose_node(parent, index)
        if mark:
            self._allow(node, mark)
        return node

    def _allow(self, node: Any, mark: StringMark) -> None:
        """Refuse an alias of a node that is incomplete or too large."""
        if node.end_mark is None:
            raise NotPlain("an alias cannot be inside the node that it refers to", mark)
        count, levels = self._size(node)
        self._repeated += count
        if self._repeated > MOST_REPEATED:
            raise NotPlain(f"aliases repeat more than {MOST_REPEATED} values", mark)
        if self.depth + levels > DEEPEST:
            raise NotPlain(f"more than {DEEPEST} levels within this alias", mark)

    def _size(self, node: Any) -> tuple[int, int]:
        """Return the number of values in a node, and of their levels."""
        if id(node) not in self._sizes:
            below = [self._size(child) for child in _children(node)]
            count = 1 + sum(size for size, _ in below)
            self._sizes[id(node)] = count, 1 + max((levels for _, levels in below), default=0)
        return self._sizes[id(node)]


class _Constructor(SafeConstructor):
    """Constructs data from nodes with plain tags. A tag may still not match its value."""

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        """Return the data of a node."""
        try:
            data = super().construct_object(node, deep)
            if (isinstance(data, float) and not isfinite(data)) or (
                isinstance(data, int) and data.bit_length() > _MOST_BITS
            ):
                raise ValueError("not finite, or too large")  # noqa: TRY301  refused like the others
        except NotPlain:
            raise
        except (LookupError, ValueError) as error:  # for "!!int abc", "!!bool x" or 5,000 digits
            kind = str(node.tag).removeprefix(_TAG)
            shown = str(node.value)[:20]
            raise NotPlain(f'"{shown}" is not a value of type {kind}', node.start_mark) from error
        return data


def _check(node: Any, checked: set[int]) -> None:
    """Refuse nodes that are not plain. A date is text."""
    if id(node) in checked:
        return
    checked.add(id(node))
    if node.tag in _ALSO_TEXT:
        node.tag = _TEXT
    kinds = {ScalarNode: _SCALARS, SequenceNode: {f"{_TAG}seq"}, MappingNode: {f"{_TAG}map"}}[
        type(node)
    ]
    if node.tag not in kinds:
        raise NotPlain(
            f"the tag {str(node.tag).replace(_TAG, '!!')} does not match this value",
            node.start_mark,
        )
    if isinstance(node, ScalarNode) and _SURROGATE.search(node.value):
        raise NotPlain("half of a surrogate pair is not a character", node.start_mark)
    for key, value in node.value if isinstance(node, MappingNode) else ():
        if key.tag != _MERGE:
            _check(key, checked)
            if key.tag != _TEXT:
                shown = (
                    f': write "{key.value[:40]}", with the quotes'
                    if isinstance(key, ScalarNode)
                    else ""
                )
                raise NotPlain(f"a key must be text{shown}", key.start_mark)
        _check(value, checked)
    for item in node.value if isinstance(node, SequenceNode) else ():
        _check(item, checked)


def _children(node: Any) -> Iterator[Any]:
    if isinstance(node, MappingNode):
        yield from (child for pair in node.value for child in pair)
    elif isinstance(node, SequenceNode):
        yield from node.value


def is_named_like_a_scenario(path: Path) -> bool:
    """Return whether a file is a scenario by its name.

    topology.yaml is YAML too, but one of Slurm's files.
    """
    return path.suffix in {".yml", ".yaml"} and path.name != "topology.yaml"
