"""Places in a configuration file that is YAML, and findings about them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ruamel.yaml.nodes import MappingNode, SequenceNode

from harness.slurmconf.check.findings import SLURMCTLD, SLURMD, Finding

_VERSION = re.compile(r"\A((?:[ \t]*(?:#.*)?\n)*)%(?=YAML[ \t]+1\.[12][ \t]*\n---)")


def first_document(text: str) -> str:
    r"""Return what Slurm's plugin reads of a file: up to a line that ends a document.

    A version that libyaml accepts becomes a comment.

    >>> first_document("--- a\n--- b\n"), first_document("# c\n---\na\n...\nb")
    ('--- a\n', '# c\n---\na\n')
    >>> first_document("%YAML 1.1\n---\na")
    '# YAML 1.1\n---\na'
    """
    text = _VERSION.sub(r"\1# ", text)
    begun = False
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        if begun and re.match(r"(---|\.\.\.)(\s|$)", line):
            return "".join(lines[:number])
        begun = begun or not re.match(r"\s*(#.*)?$|%", line)
    return text


def at(node: Any, key: str | int) -> Any:
    """Return the value of a key, or an item of a list, of a YAML node; None if there is none."""
    if isinstance(node, SequenceNode) and isinstance(key, int):
        return node.value[key] if key < len(node.value) else None
    if isinstance(node, MappingNode):
        return next((value for name, value in node.value if name.value == key), None)
    return None


def line_of(node: Any) -> int:
    """Return the line of a YAML node; 1 if there is none."""
    return node.start_mark.line + 1 if node is not None else 1


def find(path: Path, line: int, severity: str, code: str, option: str, message: str) -> Finding:
    """Return a finding of slurmctld and slurmd about a line of a file."""
    return Finding(
        str(path), line, 1, severity, code, option or path.name, message, "", SLURMCTLD + SLURMD
    )
