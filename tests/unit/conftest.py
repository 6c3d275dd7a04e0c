"""Tests of properties have no deadline: a busy machine's pause proves nothing.

Tests of signals start with none ignored: a shell ignores SIGINT for what it starts in the background, nohup SIGHUP.
"""

from __future__ import annotations

import signal

from hypothesis import settings

from harness import interrupts

for number in interrupts.SIGNALS:
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)

settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
