"""The command that starts the harness: in a process of its own, unless conftest.py changes it."""

from __future__ import annotations

import sys

WORDS: tuple[str, ...] = (sys.executable, "-m", "harness")
