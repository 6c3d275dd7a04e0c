"""Directories that only this user can change, even in places that everybody can write to."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from harness.errors import CannotVerify


def directory(path: Path) -> Path:
    """Create a directory that only this user can enter, or check that an existing one is private.

    A link does not count as a directory: its owner could change its target. Raises CannotVerify if
    the directory is not private.
    """
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    status = path.lstat()
    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or mode & 0o077:
        raise CannotVerify(
            f"{path} of {owner(path)} has mode {mode:04o}: other users could "
            "read or replace files in it",
            hint=f"ask its owner or root to remove it: rm -r {path}",
        )
    return path


def cache() -> Path:
    """Return the cache directory of this user, as in the XDG Base Directory Specification.

    Raises CannotVerify if it cannot be created, or is not private.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    try:
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        return directory(base / "slurm-harness")
    except (OSError, RuntimeError) as error:
        raise CannotVerify(
            f"{base} cannot be written: {error}", hint="set XDG_CACHE_HOME to a different directory"
        ) from error


def is_own(path: Path) -> bool:
    """Return whether an existing file or directory belongs to this user and is not a link."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return status.st_uid == os.geteuid() and not stat.S_ISLNK(status.st_mode)


def exposed(path: Path) -> str:
    """Return why other users could have written to a directory or its files; "" if they could not.

    Looks at the files in the directory, and in the directories directly below it.
    """
    for file in _files(path):
        status = file.lstat()
        if status.st_uid not in {0, os.geteuid()}:
            return f"{file} belongs to {owner(file)}"
        if not stat.S_ISLNK(status.st_mode) and status.st_mode & 0o022:
            return f"users other than its owner can write {file}"
    return ""


def _files(path: Path) -> Iterator[Path]:
    """Yield a directory and, if other users can reach them, its files and those one level below."""
    yield path
    for child in sorted(path.iterdir()) if _is_open(path) else ():
        yield child
        if child.is_dir() and not child.is_symlink():
            yield from sorted(child.iterdir())


def _is_open(path: Path) -> bool:
    """Return whether other users can reach the files in a directory."""
    return bool(path.lstat().st_mode & 0o011)


def owner(path: Path) -> str:
    """Return the name of a file's owner, or the user ID if it has no name."""
    number = path.lstat().st_uid
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
