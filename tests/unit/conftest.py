"""Tests of properties have no deadline: a busy machine's pause proves nothing."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
