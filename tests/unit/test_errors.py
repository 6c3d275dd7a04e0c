"""Messages of commands that fail begin with the cause."""

from __future__ import annotations

import pytest

from harness.errors import CommandFailed


@pytest.mark.parametrize(
    ("stderr", "message"),
    [
        ("", "n1: exit 1\nssh n1"),
        ("no such host\n", "n1: exit 1: no such host\nssh n1"),
        (
            "Traceback\n  line 1\nOSError: full\n",
            "n1: exit 1: OSError: full\nTraceback\n  line 1\nssh n1",
        ),
        (
            'Job for slurmd.service failed.\nSee "systemctl status slurmd.service" for details.\n',
            "n1: exit 1: Job for slurmd.service failed.\n"
            'See "systemctl status slurmd.service" for details.\nssh n1',
        ),
    ],
)
def test_message_begins_with_the_cause_and_ends_with_the_command(stderr: str, message: str) -> None:
    assert str(CommandFailed("n1", "ssh n1", 1, "", stderr)) == message


def test_message_says_what_an_exit_code_of_ssh_means() -> None:
    lost = "n1: exit 255: the connection was lost, or a signal ended the command\nssh n1"
    assert str(CommandFailed("n1", "ssh n1", 255, "", "")) == lost
    assert str(CommandFailed("n1", "ssh n1", 255, "", "no")) == "n1: exit 255: no\nssh n1"
