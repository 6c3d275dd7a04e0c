"""Follow what daemons log."""

from __future__ import annotations

from collections.abc import Sequence

from harness import logs
from harness.ssh import Ssh


class Here(Ssh):
    """Hosts that are this machine."""

    def __init__(self) -> None:
        pass

    def command(self, host: str, command: Sequence[str] = (), *, tty: bool = False) -> list[str]:
        return [*command]


def test_following_ends_when_nobody_wants_more() -> None:
    seen: list[str] = []

    def say(name: str, line: str) -> bool:
        seen.append(f"{name}: {line}")
        return len(seen) < 3

    logs.follow(Here(), {"ctl": ("ctl", ["yes", "more"]), "quiet": ("ctl", ["sleep", "1000"])}, say)
    assert seen[:3] == ["ctl: more"] * 3
