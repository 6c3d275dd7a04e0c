"""Paths that cannot be right on any machine: relative ones, and directories instead of files."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from harness.slurmconf.check.findings import FATAL, Finding
from harness.slurmconf.check.parsed_file import Setting, Source

# Directories of /, where services start.
_ROOT = re.compile(
    r"(\.|boot|dev|etc|home|lib|lib64|media|mnt|opt|proc|root|run|s?bin|srv|sys|tmp|usr|var)(/|$)"
)
# Directories of every machine: hier(7).
_DIRECTORIES = re.compile(
    "/|/(boot|dev|etc|home|mnt|opt|proc|root|run|srv|sys|tmp)"
    "|/etc/slurm|(/usr(/local)?)?/(bin|lib|sbin)|/usr(/local)?(/(share|src))?"
    "|/var(/(cache|lib|log|run|spool|tmp))?"
)


def is_missing_path(path: str) -> bool:
    """Return whether a path is relative, and in a directory that does not exist in /."""
    return path[:1] != "/" and not _ROOT.match(path)


def is_directory(path: str) -> bool:
    """Return whether a path can only be a directory.

    >>> is_directory("/var/log"), is_directory("/opt/x/"), is_directory("/var/log/slurm.log")
    (True, True, False)
    """
    is_absolute = path[:1] == "/"
    return path[-1:] == "/" or (
        is_absolute and bool(_DIRECTORIES.fullmatch(posixpath.normpath(path)))
    )


def relative_path(
    source: Source, setting: Setting, daemons: tuple[str, ...] = ()
) -> Iterator[Finding]:
    """Yield a path in a directory that does not exist in /, where services start."""
    if is_missing_path(setting.value):
        message = f'"{setting.value}" is not an absolute path: it does not exist'
        yield source.find(setting, FATAL, "path", message, daemons=daemons)


def directory(
    source: Source, setting: Setting, severity: str, daemons: tuple[str, ...] = ()
) -> Iterator[Finding]:
    """Yield a directory where a daemon needs a file."""
    if is_directory(setting.value):
        message = f'"{setting.value}" is a directory, not a file'
        yield source.find(setting, severity, "path", message, daemons=daemons)
