"""What a check finds, and how bad it is."""

from __future__ import annotations

from dataclasses import dataclass

FATAL, ERROR, WARNING, INFO = "fatal", "error", "warning", "info"
SEVERITIES = (FATAL, ERROR, WARNING, INFO)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that daemons of a release do with a configuration, at its place. Lines and columns count from 1.

    `severity`: fatal, the daemon refuses to start; error, it starts but logs an error and ignores the line, or the
    cluster cannot work; warning, deprecated or a changed default; info, advice. `daemon` is the first to say so.
    """

    file: str
    line: int
    column: int
    severity: str
    code: str
    option: str
    message: str
    hint: str
    daemon: str

    def __str__(self) -> str:
        text = f"{self.file}:{self.line}:{self.column}: {self.severity}: {self.option}: {self.message} [{self.code}]"
        return f"{text}\n    hint: {self.hint}" if self.hint else text
