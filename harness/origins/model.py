"""Where a host's Slurm should come from, and what was found there. Pure: no I/O."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

_KEYS = ("source", "packages", "base", "image")
_HINT = (
    "write source:FILE, packages:DIRECTORY, base:DISTRIBUTION:VERSION or image:NAME; a source or "
    "packages can be followed by a comma and a base"
)


class NotAnOrigin(ValueError):
    """Slurm cannot come from there: the message says why, and `hint` how to fix it."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Wanted:
    """The user's choice of where a host's Slurm comes from; parts are "" if not given.

    `source` is a tarball, an unpacked source, or a URL; `packages` a directory of packages; `base`
    a distribution such as debian:trixie, whose own Slurm is taken if there is neither. `image` is
    an image of the user's, which stands alone.
    """

    source: str = ""
    packages: str = ""
    base: str = ""
    image: str = ""

    def __bool__(self) -> bool:
        return bool(self.source or self.packages or self.base or self.image)

    def under(self, directory: Path) -> Wanted:
        """Return the same with absolute paths; relative ones are below `directory`."""
        source = self.source if is_url(self.source) else _absolute(self.source, directory)
        return replace(self, source=source, packages=_absolute(self.packages, directory))


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the Slurm of a host comes from, and which it is.

    `version` is the release with its patch level, such as 24.11.5, or only the release if nothing
    says more. `digest` is that of the source or the packages; "" if Slurm is the base's own, or in
    an `image` of the user's, which has no base. `family` is the one of the distribution: see
    families.toml.
    """

    base: str
    release: str
    version: str
    source: str = ""
    packages: str = ""
    digest: str = ""
    family: str = "debian"
    image: str = ""

    @property
    def choice(self) -> str:
        """The choice that names it: see `parse`."""
        return ",".join(f"{key}:{value}" for key in _KEYS if (value := getattr(self, key)))


def is_origin(text: str) -> bool:
    """Return whether a user's choice names an origin rather than a release.

    >>> is_origin("24.11"), is_origin("source:slurm-25.11.2.tar.bz2")
    (False, True)
    """
    return text.startswith(tuple(f"{key}:" for key in _KEYS))


def parse(text: str) -> Wanted:
    """Return what a choice such as "source:FILE,base:debian:trixie" names.

    >>> parse("source:slurm-25.11.2.tar.bz2,base:ubuntu:24.04")
    Wanted(source='slurm-25.11.2.tar.bz2', packages='', base='ubuntu:24.04', image='')
    """
    parts: dict[str, str] = {}
    for part in re.split(rf",(?=(?:{'|'.join(_KEYS)}):)", text):
        key, _, value = part.partition(":")
        if key not in _KEYS or not value or key in parts:
            raise NotAnOrigin(f"{text}: not an origin of Slurm", _HINT)
        parts[key] = value
    if "image" in parts and len(parts) > 1:
        raise NotAnOrigin(f"{text}: an image has a Slurm and a base of its own", _HINT)
    return Wanted(**parts)


def is_url(source: str) -> bool:
    """Return whether a source is downloaded."""
    return source.startswith(("https://", "http://"))


def _absolute(path: str, directory: Path) -> str:
    return str((directory / Path(path).expanduser()).absolute()) if path else ""
