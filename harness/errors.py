"""Every error that this program raises on purpose, and the exit code that it ends with.

HarnessError                      exit code
├── UsageError                    2  the command line or a file it names is wrong
│   ├── NoSuchRun                 2  no run matches the name that was given
│   └── ScenarioError             2  all problems of a scenario file, each with its place
├── CannotVerify                   3  there can be no verdict on the cluster
│   ├── EngineError               3  the container engine is missing, too old or full, or refuses
│   ├── Unreachable               3  a host did not come up, or no longer answers
│   └── DeployError               3  deployment failed, with the last log lines of the daemons
└── ClusterError                  1  the cluster did something wrong
    ├── CommandFailed             1  a command on a host failed
    │   └── LateAnswer            1  a daemon of Slurm did not answer in time
    └── WaitTimeout               1  an expected event did not happen

Any other exception is a bug in the harness: exit code 3, and a traceback.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from pathlib import Path

# The hint for an unexpected error.
BUG = (
    "this is a bug in the harness; please report it with the traceback, the command and "
    "`harness --version`"
)

# ssh(1) exits with this if the connection failed or was lost, or a signal ended the command.
NO_EXIT_CODE = 255


class HarnessError(Exception):
    """What went wrong and where; `hint` says how to fix it."""

    exit_code = 3

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message


class UsageError(HarnessError):
    """The command line, or a file that it names, is wrong."""

    exit_code = 2


class NoSuchRun(UsageError):
    """No run matches the name that was given, or there are no runs."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem of a file, with its place. Lines and columns count from 1."""

    path: Path
    line: int
    column: int
    where: str
    message: str

    def __str__(self) -> str:
        subject = f"{self.where}: " if self.where else ""
        return f"{self.path}:{self.line}:{self.column}: {subject}{self.message}"


class ScenarioError(UsageError):
    """All problems of a scenario file."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


class CannotVerify(HarnessError):
    """There can be no verdict on the cluster."""


class EngineError(CannotVerify):
    """The container engine is missing, too old or full, or refuses a request."""


class Unreachable(CannotVerify):
    """A host did not come up, or no longer answers."""


class DeployError(CannotVerify):
    """Deployment failed on a host; the message has the last log lines of its daemons."""


class ClusterError(HarnessError):
    """The cluster did something wrong."""

    exit_code = 1


class CommandFailed(ClusterError):
    """A command on a host failed."""

    def __init__(
        self, host: str, command_line: str, exit_code: int, stdout: str, stderr: str
    ) -> None:
        printed = stderr or stdout
        if exit_code == NO_EXIT_CODE and not printed:
            printed = "the connection was lost, or a signal ended the command"
        super().__init__(command_message(f"{host}: exit {exit_code}", command_line, printed))
        self.host = host
        self.command_line = command_line
        self.returncode = exit_code
        self.stdout = stdout
        self.stderr = stderr


class LateAnswer(CommandFailed):
    """A query of Slurm failed because the daemon did not answer within MessageTimeout."""


def command_message(outcome: str, command_line: str, printed: str) -> str:
    r"""Return the message of a command that did not succeed.

    Its first line ends with the last line that the command printed, most likely the cause, unless
    that is systemctl's advice. Its last line can be pasted into a shell.

    >>> command_message("n1: exit 1", "ssh n1 -- squeue", "a warning\nslurm_load_jobs error\n")
    'n1: exit 1: slurm_load_jobs error\na warning\nssh n1 -- squeue'
    """
    lines = printed.strip().splitlines()
    cause = next((line for line in reversed(lines) if not line.startswith('See "systemctl ')), "")
    others = [line for line in lines if line != cause]
    return "\n".join([f"{outcome}: {cause}" if cause else outcome, *others, command_line])


class WaitTimeout(ClusterError):
    """An expected event did not happen in time, or can no longer happen.

    If a command did not end in time, `printed` is its output so far.
    """

    def __init__(self, message: str, *, hint: str | None = None, printed: str = "") -> None:
        super().__init__(message, hint=hint)
        self.printed = printed


def cannot_read(path: Path, error: Exception) -> str:
    """Return the message about a file that cannot be read, without the number of the error.

    >>> cannot_read(Path("jobs.yml"), FileNotFoundError(2, "No such file or directory", "jobs.yml"))
    'cannot read jobs.yml: No such file or directory'
    """
    reason = error.strerror if isinstance(error, OSError) else None
    return f"cannot read {path}: {reason or error}"


def describe(error: BaseException) -> str:
    """Return an unexpected error in one line, with its class: its message may be empty or unclear.

    >>> describe(KeyError("partitions"))
    "KeyError: 'partitions'"
    """
    return traceback.format_exception_only(error)[-1].strip()
