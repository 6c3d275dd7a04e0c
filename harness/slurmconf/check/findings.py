"""What `harness check` finds, and how severe it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

FATAL, ERROR, WARNING, INFO = "fatal", "error", "warning", "info"
SEVERITIES = (FATAL, ERROR, WARNING, INFO)
SLURMCTLD, SLURMD, SLURMDBD = ("slurmctld",), ("slurmd",), ("slurmdbd",)
SLURMSTEPD = ("slurmstepd",)


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem that daemons of a release have with a configuration, with its place.

    Lines and columns count from 1. `severity` is one of: fatal, the daemon refuses to start; error,
    it starts but logs an error; warning, it starts and logs a warning, or a default changed; info,
    it logs neither. `daemons` are those that have the problem.
    """

    file: str
    line: int
    column: int
    severity: str
    code: str
    option: str
    message: str
    hint: str
    daemons: tuple[str, ...]

    def __str__(self) -> str:
        text = (
            f"{self.file}:{self.line}:{self.column}: {self.severity}: {self.option}: "
            f"{self.message} [{self.code}]"
        )
        return f"{text}\n    hint: {self.hint}" if self.hint else text


def only_in(daemons: tuple[str, ...], findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield findings that only some of the daemons have that read the file."""
    for finding in findings:
        yield replace(finding, daemons=daemons)
