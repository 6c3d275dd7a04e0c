"""What a fault is, and what a kind of fault consists of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harness.open_run import OpenRun
from harness.providers import Provider

# What kind of argument a fault takes; `registry.kind_of` checks it.
DAEMON, PLACE, PORT, SECONDS, LINE, DIRECTORY, USER = (
    "DAEMON",
    "HOST|SITE",
    "PORT",
    "SECONDS",
    "LINE",
    "DIRECTORY",
    "USER",
)
# The exit code of a script that has changed nothing; its standard error says why.
NOTHING_DONE = 3


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault: its kind, the host or site that it affects, and the argument of its kind."""

    kind: str
    on: str
    argument: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, [self.kind, self.on, self.argument]))


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault: its effect, how to inject and heal it, and the argument that it takes.

    A script runs as root on the host, with the argument as $1 and the fault's own directory as
    $aside. A function does what the host cannot do to itself, through a provider that has the
    ability `needs`.
    """

    effect: str
    inject: str | Callable[[OpenRun, Fault], None]
    heal: str | Callable[[OpenRun, Fault], None]
    argument: str = ""
    needs: type[Provider] = Provider

    def usage(self, name: str) -> str:
        """Return how the kind of this name is written, such as "kill-daemon HOST DAEMON"."""
        return f"{name} {self.subject} {self.argument}".rstrip()

    @property
    def subject(self) -> str:
        """What the fault affects: a host, or a host or site if its argument can be either."""
        return PLACE if self.argument == PLACE else "HOST"
