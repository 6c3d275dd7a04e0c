"""Find out which Slurm is in a source or in packages, without unpacking or installing them."""

from __future__ import annotations

import hashlib
import re
import tarfile
from collections.abc import Iterable
from pathlib import Path

from harness import releases
from harness.errors import cannot_read
from harness.origins import families
from harness.origins.model import NotAnOrigin, Origin, Wanted, is_url
from harness.parsing import package_files
from harness.parsing.package_files import PackageFile

_VERSION = re.compile(r"\d\d\.\d\d(\.\d+)?")
# META is a kilobyte, and among the first files of a tarball.
_META_BYTES = 2**16
_CHUNK = 2**20


def resolve(wanted: Wanted, release: str | None = None) -> Origin:
    """Return the origin that a user wants, with the Slurm that is there; NotAnOrigin says why not.

    `release` is the one that the user names beside it: it must be that of the source or the
    packages, and is needed if these do not say theirs.
    """
    if wanted.image:
        raise NotAnOrigin(
            f"image {wanted.image} is not built by the harness",
            "`docker save` and `docker load` copy it",
        )
    if wanted.source and wanted.packages:
        raise NotAnOrigin("both source and packages", "Slurm comes from one of them: remove one")
    base = families.base(wanted.base) if wanted.base else None
    digest = ""
    if wanted.source:
        version, digest = _of_source(wanted.source)
        where = f"source {wanted.source}"
    elif wanted.packages:
        files = package_paths(Path(wanted.packages))
        version, digest = _of_packages(files), _digest_of(files)
        where = f"the packages in {wanted.packages}"
    else:
        version = base.slurm if base else ""
        where = wanted.base
        if not version and not release:
            raise NotAnOrigin(
                f"{wanted.base} has no packages of Slurm", "add `source:` or `packages:`"
            )
    if not version and not release:
        raise NotAnOrigin(f"{where}: cannot find out the release", "add `release:`")
    found = ".".join((version or release or "").split(".")[:2])
    if release not in {None, found}:
        raise NotAnOrigin(f"{release}, but {where} has Slurm {version}")
    if found not in releases.KNOWN:
        raise NotAnOrigin(
            f"{where} has Slurm {version}; known releases: {', '.join(releases.KNOWN)}"
        )
    base = base or families.base(families.default_base(found))
    if wanted.packages:
        _must_fit(files, base)
    name = wanted.base or families.default_base(found)
    return Origin(
        name, found, version or found, wanted.source, wanted.packages, digest, base.family.name
    )


def package_paths(directory: Path) -> list[Path]:
    """Return the packages in a directory that a host needs; NotAnOrigin if there are none."""
    if not directory.is_dir():
        raise NotAnOrigin(
            f"{directory} is not a directory", "name a directory of .deb or .rpm files"
        )
    kinds = {
        family.package: re.compile(family.unneeded_packages)
        for family in map(families.family, ("debian", "el"))
    }
    paths = sorted(path for path in directory.iterdir() if path.suffix in kinds)
    if not paths:
        raise NotAnOrigin(f"{directory} has no packages", "name a directory of .deb or .rpm files")
    if len(suffixes := {path.suffix for path in paths}) > 1:
        raise NotAnOrigin(f"{directory} has both {' and '.join(sorted(suffixes))} files")
    return [path for path in paths if not kinds[path.suffix].search(path.stem)]


def _of_source(source: str) -> tuple[str, str]:
    """Return the version and the digest of a source."""
    if is_url(source):
        named = re.search(rf"slurm-({_VERSION.pattern})", source)
        return (named[1] if named else ""), hashlib.sha256(source.encode()).hexdigest()
    path = Path(source)
    meta = _meta(path)
    version = re.search(r"^\s*Version:\s*(\S+)", meta, re.MULTILINE)
    name = re.search(r"^\s*Name:\s*(\S+)", meta, re.MULTILINE)
    if not version or not name or name[1] != "slurm" or not _VERSION.match(version[1]):
        raise NotAnOrigin(
            f"{source} is not Slurm's source", "its META does not name a version of Slurm"
        )
    return version[1], _digest_of(_files_below(path) if path.is_dir() else [path], path)


def _meta(path: Path) -> str:
    """Return the text of META, the file in Slurm's source that says its version."""
    nothing = NotAnOrigin(
        f"{path} is not Slurm's source",
        "name a tarball from schedmd.com, such as slurm-25.11.2.tar.bz2, or an unpacked one",
    )
    try:
        if path.is_dir():
            with (path / "META").open(encoding="utf-8") as file:
                return file.read(_META_BYTES)
        with tarfile.open(path) as tar:
            for member in tar:
                if re.fullmatch(r"(\./)?[^/]+/META", member.name) and member.isfile():
                    content = tar.extractfile(member)
                    return content.read(_META_BYTES).decode() if content else ""
    except FileNotFoundError as error:
        raise (nothing if path.is_dir() else NotAnOrigin(cannot_read(path, error))) from error
    except tarfile.ReadError as error:
        raise NotAnOrigin(f"{path} is not a tar archive, or damaged", nothing.hint) from error
    except (OSError, EOFError, tarfile.TarError, ValueError) as error:
        raise NotAnOrigin(cannot_read(path, error), nothing.hint) from error
    raise nothing


def _of_packages(paths: Iterable[Path]) -> str:
    """Return the version of Slurm in packages; "" if none of them says it."""
    read = [_read(path) for path in paths]
    version_of = {
        file.path.name: match[0]
        for file in read
        if "slurm" in file.name and (match := _VERSION.match(file.version))
    }
    if len({*version_of.values()}) > 1:
        differing = ", ".join(f"{name} ({version})" for name, version in version_of.items())
        raise NotAnOrigin(
            f"packages of several versions of Slurm: {differing}",
            "keep those of one version in the directory",
        )
    return next(iter(version_of.values()), "")


def _must_fit(paths: Iterable[Path], base: families.Base) -> None:
    """Raise NotAnOrigin for packages that a base's package manager cannot install."""
    for path in paths:
        if path.suffix != base.family.package:
            raise NotAnOrigin(
                f"{path.name} cannot be installed on {base.distribution}:{base.name}, which has "
                f"{base.family.package} packages",
                "add the base that the packages were built on, such as base:debian:bookworm",
            )


def _read(path: Path) -> PackageFile:
    try:
        return package_files.read(path)
    except package_files.NotAPackage as error:
        raise NotAnOrigin(str(error), error.hint) from error


def foreign(paths: Iterable[Path], machine: str) -> list[str]:
    """Return the names of packages that were not built for a machine, such as x86_64."""
    own = {"all", "noarch"}
    for family in map(families.family, ("debian", "el")):
        own.add(family.architectures.get(machine, machine))
    return [
        f"{path.name} ({read.architecture})"
        for path in paths
        if (read := _read(path)).architecture not in own
    ]


def _files_below(directory: Path) -> list[Path]:
    return sorted(
        path
        for path in directory.rglob("*")
        if path.is_file() and ".git" not in path.relative_to(directory).parts
    )


def _digest_of(paths: Iterable[Path], top: Path | None = None) -> str:
    """Return a digest of the names and contents of files."""
    digest = hashlib.sha256()
    for path in paths:
        name = path.relative_to(top) if top and top != path else path.name
        digest.update(f"{name}\0".encode())
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    return digest.hexdigest()
