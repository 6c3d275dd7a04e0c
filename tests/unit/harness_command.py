"""The command that starts the harness; `WORDS` is what a conftest.py may change."""

from __future__ import annotations

import sys

IN_ITS_OWN_PROCESS = (sys.executable, "-m", "harness")
WORDS: tuple[str, ...] = IN_ITS_OWN_PROCESS
