"""Progress of long work: lines such as "check 3 of 41: NAME", or one line that changes in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

# Prints a line of progress.
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Step:
    """The beginning of a step, the `number`th of `total`.

    `seconds_left` is an estimate until the end of all steps, if there is one.
    """

    kind: str
    number: int
    total: int
    name: str
    seconds_left: float | None = None

    def __str__(self) -> str:
        left = f" ({_about(self.seconds_left)} left)" if self.seconds_left else ""
        return f"{self.kind} {self.number} of {self.total}: {self.name}{left}"


@runtime_checkable
class ShowsSteps(Protocol):
    """A `Say` that has a better way to show steps than one line each."""

    def steps(self) -> AbstractContextManager[Callable[[Step], None]]:
        """Return a context whose value shows a step; the last step disappears at the end."""


@contextmanager
def steps(say: Say) -> Iterator[Callable[[Step], None]]:
    """Yield a function that shows each step as it begins.

    It uses the steps of `say`, or prints a line for each step if `say` has none.
    """
    if isinstance(say, ShowsSteps):
        with say.steps() as show:
            yield show
    else:
        yield lambda step: say(str(step))


def _about(seconds: float) -> str:
    """Return an estimated time in words.

    >>> _about(0.4), _about(44), _about(100)
    ('about 1 s', 'about 44 s', 'about 2 min')
    """
    return f"about {max(seconds, 1):.0f} s" if seconds < 90 else f"about {seconds / 60:.0f} min"
