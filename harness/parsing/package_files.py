"""Read the name, version and architecture of .deb and .rpm files, without dpkg or rpm.

deb(5) describes the first; rpm.org, "RPM V4 Package format", the second.
"""

from __future__ import annotations

import io
import struct
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

# A control archive or an RPM header is a few kilobytes; scripts of a package may make it larger.
_MOST_BYTES = 2**24
_DEB, _RPM = b"!<arch>\n", b"\xed\xab\xee\xdb"
_HEADER = b"\x8e\xad\xe8\x01"
_RPM_TAGS = {1000: "name", 1001: "version", 1002: "release", 1022: "architecture"}


class NotAPackage(ValueError):
    """A file is damaged, or not a package; `hint` says what to do."""

    hint = "copy the file again, or remove it"


class NeedsZstd(NotAPackage):
    """A package is compressed with zstd, which this machine lacks."""

    hint = "apt-get install zstd"


@dataclass(frozen=True, slots=True)
class PackageFile:
    """What a package says about itself; `version` as in 24.11.5-1, without an epoch."""

    path: Path
    name: str
    version: str
    architecture: str


def read(path: Path) -> PackageFile:
    """Return what a .deb or .rpm file says about itself."""
    try:
        with path.open("rb") as file:
            magic = file.read(8)
            if magic == _DEB:
                fields = _control(file)
            elif magic.startswith(_RPM):
                fields = _rpm_header(file)
            else:
                raise NotAPackage(f"{path} is neither a .deb nor an .rpm file")
    except (OSError, EOFError, LookupError, struct.error, tarfile.TarError, UnicodeError) as error:
        raise NotAPackage(f"{path} is not a package, or damaged: {error}") from error
    if missing := [name for name in ("name", "version", "architecture") if not fields.get(name)]:
        raise NotAPackage(f"{path} has no {missing[0]}: it is damaged")
    version = fields["version"].rpartition(":")[2]
    return PackageFile(path, fields["name"], version, fields["architecture"])


def _control(file: io.BufferedReader) -> dict[str, str]:
    """Return the fields of a .deb file's control file; the file is read from its first member."""
    while header := file.read(60):
        name, size = header[:16].decode("ascii").strip().rstrip("/"), int(header[48:58] or b"0")
        if name.startswith("control.tar"):
            if size > _MOST_BYTES:
                raise EOFError("its control archive is too large")
            data = file.read(size)
            if name.endswith(".zst"):
                data = _decompressed(data, file.name)
            with tarfile.open(fileobj=io.BytesIO(data)) as tar:
                member = next(member for member in tar if member.name in {"control", "./control"})
                text = (tar.extractfile(member) or io.BytesIO()).read(_MOST_BYTES).decode()
            lines = (line.partition(":") for line in text.splitlines() if line[:1].strip())
            fields = {key.lower(): value.strip() for key, _, value in lines}
            return {**fields, "name": fields["package"]}
        file.seek(size + size % 2, io.SEEK_CUR)
    raise EOFError("it has no control archive")


def _decompressed(data: bytes, name: str) -> bytes:
    """Decompress zstd, which Python's library has only since 3.14."""
    try:
        return subprocess.run(
            ["zstd", "--decompress", "--stdout"], input=data, capture_output=True, check=True
        ).stdout
    except FileNotFoundError as error:
        raise NeedsZstd(f"{name} is compressed with zstd, which is not installed") from error
    except subprocess.CalledProcessError as error:
        raise EOFError(error.stderr.decode(errors="replace").strip()) from error


def _rpm_header(file: io.BufferedReader) -> dict[str, str]:
    """Return the fields of an RPM's header, which follows its lead and its signature."""
    file.seek(96)
    _index, store = _rpm_section(file)
    file.seek(-len(store) % 8, io.SEEK_CUR)  # only the signature is padded
    index, store = _rpm_section(file)
    fields = {}
    for start in range(0, len(index), 16):
        tag, _kind, offset, _count = struct.unpack(">4I", index[start : start + 16])
        if tag in _RPM_TAGS:
            fields[_RPM_TAGS[tag]] = store[offset : store.index(b"\0", offset)].decode()
    fields["version"] = "-".join(filter(None, [fields.get("version"), fields.pop("release", "")]))
    return fields


def _rpm_section(file: io.BufferedReader) -> tuple[bytes, bytes]:
    magic, _reserved, entries, size = struct.unpack(">4sIII", file.read(16))
    if magic != _HEADER or entries * 16 + size > _MOST_BYTES:
        raise EOFError("it has no header")
    return file.read(entries * 16), file.read(size)
