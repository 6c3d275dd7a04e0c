"""Sources and packages that only say what they are."""

from __future__ import annotations

import io
import struct
import tarfile
from pathlib import Path

META = "  Meta:\t\t1\n  Name:\t\tslurm\n  Version:\t{}\n  Release:\t1\n"


def tarball(path: Path, version: str, *, name: str = "slurm-x/META") -> Path:
    """Write a tarball of Slurm's source that only has its META."""
    text = META.format(version).encode()
    with tarfile.open(path, "w:bz2") as tar:
        info = tarfile.TarInfo(name)
        info.size = len(text)
        tar.addfile(info, io.BytesIO(text))
    return path


def deb(directory: Path, name: str, version: str, architecture: str = "amd64") -> Path:
    """Write a .deb file that only has its control file."""
    control = f"Package: {name}\nVersion: {version}\nArchitecture: {architecture}\nDescription: x\n"
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:xz") as tar:
        info = tarfile.TarInfo("./control")
        info.size = len(control)
        tar.addfile(info, io.BytesIO(control.encode()))
    members = {"debian-binary": b"2.0\n", "control.tar.xz": buffer.getvalue()}
    content = b"!<arch>\n"
    for member, data in members.items():
        content += f"{member:16}{0:<12}{0:<6}{0:<6}{'100644':8}{len(data):<10}`\n".encode()
        content += data + b"\n" * (len(data) % 2)
    path = directory / f"{name}_{version.replace(':', '%3a')}_{architecture}.deb"
    path.write_bytes(content)
    return path


def rpm(directory: Path, name: str, version: str, architecture: str = "x86_64") -> Path:
    """Write an .rpm file that only has its header."""

    def section(fields: dict[int, str]) -> bytes:
        index, store = b"", b""
        for tag, text in fields.items():
            index += struct.pack(">4I", tag, 6, len(store), 1)
            store += text.encode() + b"\0"
        return (
            struct.pack(">4sIII", b"\x8e\xad\xe8\x01", 0, len(fields), len(store)) + index + store
        )

    signature = section({269: "0123456789"})
    padding = b"\0" * (-len(signature) % 8)
    header = section({1000: name, 1001: version, 1002: "1.el9", 1022: architecture})
    path = directory / f"{name}-{version}-1.el9.{architecture}.rpm"
    path.write_bytes(b"\xed\xab\xee\xdb".ljust(96, b"\0") + signature + padding + header)
    return path
