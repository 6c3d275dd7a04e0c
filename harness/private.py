"""Directories that nobody else can change, also in places where everybody can write."""

from __future__ import annotations

import os
import pwd
import stat
from contextlib import suppress
from pathlib import Path

from harness.errors import CannotJudge


def directory(path: Path) -> Path:
    """Make a directory that only this user can enter, or see that it is one; CannotJudge if it is not.

    A link does not count as a directory: its owner could change where it leads.
    """
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise CannotJudge(
            f"{path} of {owner(path)} has mode {stat.S_IMODE(found.st_mode):04o}: others could read or replace what "
            "would be in it",
            hint=f"have it removed: rm -r {path}",
        )
    return path


def cache() -> Path:
    """Return the directory of this user's files that serve several runs: XDG Base Directory Specification.

    CannotJudge if it cannot be made, or is not private.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    try:
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        return directory(base / "slurm-harness")
    except (OSError, RuntimeError) as error:
        raise CannotJudge(f"{base} cannot be written: {error}", hint="XDG_CACHE_HOME names another") from error


def is_own(path: Path) -> bool:
    """Tell whether a file or directory that is there, and no link, belongs to this user."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return found.st_uid == os.geteuid() and not stat.S_ISLNK(found.st_mode)


def exposed(path: Path) -> str:
    """Return why others could have written a directory, or a file in it or one level below ("" if they could not)."""
    for found in (path, *(sorted(path.iterdir()) if _is_open(path) else ())):
        inside = sorted(found.iterdir()) if found != path and found.is_dir() and not found.is_symlink() else []
        for one in (found, *inside):
            facts = one.lstat()
            if facts.st_uid not in {0, os.geteuid()}:
                return f"{one} belongs to {owner(one)}"
            if not stat.S_ISLNK(facts.st_mode) and facts.st_mode & 0o022:
                return f"others than its owner can write {one}"
    return ""


def _is_open(path: Path) -> bool:
    """Tell whether others reach what is in a directory."""
    return bool(path.lstat().st_mode & 0o011)


def owner(path: Path) -> str:
    """Return the name of the user to whom a file belongs, or the number where it has no name."""
    number = path.lstat().st_uid
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
