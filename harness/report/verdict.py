"""Passed, failed or unknown: what the outcomes of its checks make of a run. Pure."""

from __future__ import annotations

from collections.abc import Iterable

PASSED, FAILED, UNKNOWN = "passed", "failed", "unknown"


def verdict(outcomes: Iterable[str], problem: str = "") -> str:
    """Return the verdict on a run.

    It is failed if a check failed, passed if checks passed and nothing went wrong, else unknown.
    `problem` is why checks could not run.

    >>> verdict([])
    'unknown'
    """
    seen = set(outcomes)
    if "failed" in seen:
        return FAILED
    if problem or "error" in seen or "passed" not in seen:
        return UNKNOWN
    return PASSED


def exit_code(verdict: str) -> int:
    """Return the exit code of a verdict: 0 passed, 1 failed, 3 unknown."""
    return {PASSED: 0, FAILED: 1}.get(verdict, 3)
