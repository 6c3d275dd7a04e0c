"""What `harness check` finds, and how severe it is."""

from __future__ import annotations

from dataclasses import dataclass

FATAL, ERROR, WARNING, INFO = "fatal", "error", "warning", "info"
SEVERITIES = (FATAL, ERROR, WARNING, INFO)


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem that daemons of a release have with a configuration, with its place.

    Lines and columns count from 1. `severity` is one of: fatal, the daemon refuses to start; error,
    it starts but logs an error; warning, it starts and logs a warning, or a default changed; info,
    it logs neither. `daemon` is the first one that reports it.
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
        text = (
            f"{self.file}:{self.line}:{self.column}: {self.severity}: {self.option}: "
            f"{self.message} [{self.code}]"
        )
        return f"{text}\n    hint: {self.hint}" if self.hint else text
