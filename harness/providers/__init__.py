"""Providers bring hosts up and remove them; they know nothing about clusters.

`Provider` and the abilities are defined in protocols.py. A new provider is a package here and a
case in `get`.
"""

from __future__ import annotations

from pathlib import Path

from harness import extras
from harness.errors import UsageError
from harness.providers.protocols import (
    ABILITIES,
    CanCopy,
    CanCreate,
    CanPartition,
    CanPause,
    CanPower,
    CanReadImages,
    CanRecreate,
    Drop,
    Provider,
    ability,
    image_reader,
)

__all__ = [
    "ABILITIES",
    "CanCopy",
    "CanCreate",
    "CanPartition",
    "CanPause",
    "CanPower",
    "CanReadImages",
    "CanRecreate",
    "Drop",
    "Provider",
    "ability",
    "get",
    "image_reader",
]


def get(name: str, runs: Path = Path("runs")) -> Provider:
    """Return the provider of that name; a name may have arguments, as in "docker:CONTEXT,CONTEXT".

    `runs` is the directory of all runs. UsageError if there is no such provider, CannotVerify if
    packages are missing.
    """
    extras.need("run", f"provider {name}")
    # Not at the top of the file: these modules import this one, and each takes time.
    match name.split(":", 1):
        case ["docker", *engines]:
            from harness.providers.docker.containers import DockerProvider

            return DockerProvider(*engines)
        case ["existing"]:
            from harness.providers.existing.hosts import ExistingProvider

            return ExistingProvider(runs)
        case ["vagrant"]:
            from harness.providers.vagrant.machines import VagrantProvider

            return VagrantProvider(runs)
    raise UsageError(
        f'no provider "{name}"',
        hint="known: docker, docker:CONTEXT,CONTEXT,..., vagrant and existing",
    )
