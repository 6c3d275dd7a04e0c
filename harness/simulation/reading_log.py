"""What the readers of traces found wrong, left out or assumed, with lines."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from harness.errors import UsageError

# Beyond this, reading stops: the file is in another format.
_MOST_PROBLEMS = 20


class ReadingLog:
    """Problems, which make a trace unusable, and notes about jobs that were left out or changed."""

    def __init__(self, path: Path, hint: str) -> None:
        self._path = path
        self._hint = hint
        self._problems: list[str] = []
        self._notes: Counter[str] = Counter()
        self._first: dict[str, int] = {}

    def problem(self, line: int, message: str) -> None:
        """Record a problem. Raises UsageError with all of them if there are too many."""
        self._problems.append(f"{self._path}:{line}: {message}")
        if len(self._problems) >= _MOST_PROBLEMS:
            self._problems.append(f"{self._path}: reading stopped after {_MOST_PROBLEMS} problems")
            self.raise_problems()

    def count(self, line: int, what: str) -> None:
        """Count a job that `what` says something about; `line` is 0 if it does not matter."""
        self._notes[what] += 1
        self._first.setdefault(what, line)

    def raise_problems(self) -> None:
        """Raise UsageError with all problems, if there are any."""
        if self._problems:
            raise UsageError("\n".join(self._problems), hint=self._hint)

    def notes(self) -> tuple[str, ...]:
        """Return a note for each kind of job that was counted."""
        return tuple(
            f"{what}: {count} {'job' if count == 1 else 'jobs'}{self._where(what)}"
            for what, count in self._notes.items()
        )

    def _where(self, what: str) -> str:
        line = self._first[what]
        return f" (first: line {line})" if line else ""
