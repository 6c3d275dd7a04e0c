"""What differs between Linux distributions, from families.toml."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from harness import releases
from harness.origins.model import NotAnOrigin


@dataclass(frozen=True, slots=True)
class Family:
    """What distributions with the same package manager have in common: see families.toml."""

    name: str
    dockerfiles: str
    package: str
    architectures: Mapping[str, str]
    host_packages: tuple[str, ...]
    slurm_packages: tuple[str, ...]
    loaded_packages: tuple[str, ...]
    unneeded_packages: str
    build_packages: tuple[str, ...]
    like: tuple[str, ...]
    mariadb_settings: str
    mariadb_statements: str
    install: str
    installed_packages: str
    verify_packages: str
    list_files: str
    owner_of_file: str
    provided_packages: str
    header_packages: tuple[str, ...]
    header_files: str
    copied_settings: Mapping[str, str]
    packages_of: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Base:
    """A version of a distribution that hosts can run.

    `name` is the version's name, such as trixie; `slurm` the release of its own Slurm, "" if it has
    none; `apt_options` are needed to install its packages, and `host_packages` are those of every
    host. `has_ldap`: its users can come from a directory.
    """

    distribution: str
    name: str
    family: Family
    image: str
    slurm: str
    apt_options: tuple[str, ...] = ()
    host_packages: tuple[str, ...] = ()
    has_ldap: bool = False

    @property
    def bootstrappable(self) -> bool:
        """Whether mmdebstrap can build it where no registry answers."""
        return self.distribution == "debian"


@cache
def family(name: str) -> Family:
    """Return the data of a family."""
    data: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in _data()["family"][name].items()
    }
    return Family(name, **data)


def family_of(names: Iterable[str]) -> Family:
    """Return the family of a distribution, by ID and ID_LIKE of its os-release(5).

    >>> family_of(["rocky", "rhel", "centos", "fedora"]).name, family_of([]).name
    ('el', 'debian')
    """
    known = [family(name) for name in _data()["family"]]
    return next(
        (candidate for name in names for candidate in known if name in candidate.like), known[0]
    )


def library_directories() -> tuple[str, ...]:
    """Return the directories of libraries, as patterns of a shell."""
    return tuple(_data()["library_directories"])


@cache
def base(text: str) -> Base:
    """Return the base of a name such as debian:trixie; NotAnOrigin if it is unknown.

    >>> base("debian:13").name, base("debian:trixie").slurm, base("ubuntu:24.04").slurm
    ('trixie', '24.11', '23.11')
    """
    distribution, _, version = text.partition(":")
    known = _data()["distribution"]
    if distribution not in known or not re.fullmatch(r"[a-z0-9][a-z0-9.]*", version):
        raise NotAnOrigin(
            f'unknown base "{text}"',
            f"write DISTRIBUTION:VERSION, such as debian:trixie; known: {', '.join(known)}",
        )
    facts = known[distribution]
    names = facts.get("names", {})
    name = names.get(version, version)
    version = next((number for number, named in names.items() if named == name), version)
    packaged = [
        release for release in map(releases.get, releases.packaged()) if release.suite == name
    ]
    of_debian = packaged[0] if distribution == "debian" and packaged else None
    known_family = family(facts["family"])
    return Base(
        distribution,
        name,
        known_family,
        facts["image"].format(version=version, name=name),
        of_debian.name if of_debian else facts.get("slurm", {}).get(name, ""),
        of_debian.apt_options if of_debian else (),
        (*known_family.host_packages, *(of_debian.host_packages if of_debian else ())),
        name in facts.get("ldap", ()),
    )


def default_base(release: str) -> str:
    """Return the base on which a release is installed if none is named.

    It is the newest Debian whose own Slurm is not newer, or the oldest.

    >>> default_base("23.11"), default_base("25.11")
    ('debian:bookworm', 'debian:trixie')
    """
    older = [name for name in releases.packaged() if name <= release] or [releases.packaged()[0]]
    return f"debian:{releases.get(older[-1]).suite}"


@cache
def _data() -> dict[str, Any]:
    return tomllib.loads((Path(__file__).parent / "families.toml").read_text())
