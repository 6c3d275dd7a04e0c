"""The container that runs real daemons creates what a configuration names."""

from __future__ import annotations

from pathlib import Path

import pytest

from inside.conf import Conf


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("A=1 # text \\\nB=2", [("a", "1"), ("b", "2")]),
        ("A=\\\n1", [("a", "1")]),
        ("A=x\\#1 # text", [("a", "x#1")]),
        ("A=1\\\\# text", [("a", "1\\")]),
        ("A=1 \\", [("a", "1")]),
    ],
)
def test_lines_are_joined_after_comments_are_removed(
    tmp_path: Path, text: str, pairs: list[tuple[str, str]]
) -> None:
    (tmp_path / "slurm.conf").write_text(text)
    assert Conf(tmp_path / "slurm.conf").pairs == pairs
