"""Marks that represent secrets in rendered files until the files are copied to their hosts.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_SECRET = re.compile(r"%secret:(\w+)%")
# A password in a file of Slurm or MariaDB: what precedes it on its line, and the password.
PASSWORD = re.compile(r"(?im)^(\s*\w*pass\s*=\s*)(?!%secret:)(\S+)")


def secret(name: str) -> str:
    """Return the mark that represents a secret."""
    return f"%secret:{name}%"


def secrets_in(text: str) -> set[str]:
    """Return the names of the secrets that a rendered text needs."""
    return set(_SECRET.findall(text))


def reveal(text: str, secrets: Mapping[str, str]) -> str:
    """Replace marks with their secrets."""
    return _SECRET.sub(lambda match: secrets[match.group(1)], text)


def is_secret(text: str) -> bool:
    """Return whether a rendered text is nothing but a secret."""
    return bool(_SECRET.fullmatch(text))


def hide(text: str, secrets: Mapping[str, str]) -> str:
    """Replace secrets in a text with their marks."""
    for name, value in secrets.items():
        text = text.replace(value, secret(name))
    return text
