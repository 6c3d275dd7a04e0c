"""What the tests of the harness itself share."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

SCENARIOS = Path(__file__).parents[2] / "scenarios"
Done = subprocess.CompletedProcess[str]
Harness = Callable[..., Done]


def command(*arguments: str | Path) -> list[str]:
    """Return the command line of the harness."""
    return [sys.executable, "-m", "harness", *map(str, arguments)]
