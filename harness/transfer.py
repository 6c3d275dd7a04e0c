"""Copy files and directories to and from hosts, as `cp -r` does."""

from __future__ import annotations

import os
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, cast

from harness.errors import HarnessError, UsageError
from harness.ssh import Ssh

_CHUNK = 2**20
# Limit on a header in bytes. It has 512 bytes, and more for each long name or attribute.
_HEADER = 2**20
_MOST_NOTES = 20


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on an archive: bytes in total, bytes of one file, and members."""

    total: int
    file: int
    members: int


_COPY = Limits(64 * 2**30, 64 * 2**30, 10**6)


def put(ssh: Ssh, host: str, source: Path, target: str) -> None:
    """Copy a file or directory to a host.

    It is copied into `target` if that is a directory, otherwise under that name, and belongs to
    root. Raises UsageError if `source` or the target's directory does not exist.
    """
    if not source.exists():
        raise UsageError(f"{source} does not exist")
    path = PurePosixPath(target)
    if ssh.run(host, ["test", "-d", target], check=False).exit_code == 0:
        path /= source.resolve().name
    elif (
        target.endswith("/")
        or ssh.run(host, ["test", "-d", str(path.parent)], check=False).exit_code != 0
    ):
        raise UsageError(
            f"{host} has no directory {target if target.endswith('/') else path.parent}"
        )
    unpack = ["tar", "--extract", "--no-same-owner", f"--directory={path.parent}"]
    send(ssh, host, source.resolve(), path.name, unpack, _owned_by_root)


def send(
    ssh: Ssh,
    host: str,
    source: Path,
    name: str,
    unpack: Sequence[str],
    change: Callable[[tarfile.TarInfo], tarfile.TarInfo] | None = None,
) -> None:
    """Run a command on a host as root, with a tar archive as its standard input.

    The archive has a file or directory under the name `name`; `change` can alter attributes. Raises
    CommandFailed if the command fails.
    """
    with tempfile.TemporaryFile() as packed:
        with tarfile.open(fileobj=packed, mode="w") as tar:
            tar.add(source, arcname=name, filter=change)
        packed.seek(0)
        ssh.feed(host, unpack, iter(lambda: packed.read(_CHUNK), b""))


def get(ssh: Ssh, host: str, source: str, target: Path) -> None:
    """Copy a file or directory from a host.

    It is copied into `target` if that is a directory, otherwise under that name. The host is not
    trusted: nothing is written elsewhere, and no device or set-user-ID file is created. At most 64
    GiB in a million files are copied. Raises UsageError if `source` or the target's directory does
    not exist, and HarnessError, which lists what is left out.
    """
    path = PurePosixPath(source)
    if ssh.run(host, ["test", "-e", source], check=False).exit_code != 0:
        raise UsageError(f"{host} has no {source}")
    if target.is_dir():
        target /= path.name
    elif not target.parent.is_dir():
        raise UsageError(f"{target.parent} is not a directory")
    command = [
        "tar",
        "--create",
        "--dereference",
        "--hard-dereference",
        f"--directory={path.parent}",
        path.name,
    ]

    def place(name: str) -> str | None:
        first, *rest = PurePosixPath(name).parts or ("",)
        return str(PurePosixPath(target.name, *rest)) if first == path.name else None

    with ssh.printed(host, command) as stream:
        left_out = unpack(stream, target.parent, _COPY, place)
    if left_out:
        raise HarnessError("\n".join(f"{target} is incomplete: {note}" for note in left_out))


def _owned_by_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member


class _Metered:
    """A stream with a budget of `left` bytes.

    tarfile keeps a header in memory, however large it is.
    """

    def __init__(self, stream: IO[bytes], left: int) -> None:
        self._stream = stream
        self.left = left
        self.begun = False

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes; HarnessError beyond `left`."""
        chunk = self._stream.read(size)
        self.begun |= bool(chunk)
        self.left -= len(chunk)
        if self.left < 0:
            raise HarnessError("the host does not send a tar archive: a header never ends")
        return chunk


def unpack(
    stream: IO[bytes], directory: Path, limits: Limits, place: Callable[[str], str | None] = str
) -> list[str]:
    """Unpack the output of tar(1) on an untrusted host; return notes on what is left out or cut.

    Only files and directories are created, all below `directory`, owned by this user and without
    set-user-ID. `place` returns the name that a member gets, or None to leave it out without a
    note. Raises HarnessError if it is not an archive, exceeds `limits` in total, or cannot be
    written; what was unpacked until then stays.
    """
    notes: list[str] = []
    metered = _Metered(stream, _HEADER)
    total = count = 0
    try:
        with tarfile.open(fileobj=cast(IO[bytes], metered), mode="r|") as tar:
            while member := tar.next():
                count, total = count + 1, total + max(member.size, 0)
                if total > limits.total or count > limits.members:
                    limit = (
                        f"{limits.total >> 20} MiB"
                        if total > limits.total
                        else f"{limits.members} files"
                    )
                    raise HarnessError(f"the host sends more than {limit}: the rest is left out")
                metered.left = max(member.size, 0) + _HEADER
                notes = [*notes, *_unpack_member(tar, member, directory, limits.file, place)][
                    :_MOST_NOTES
                ]
        while metered.read(_CHUNK):  # the padding of the last block
            pass
    except OSError as error:
        raise HarnessError(
            f"{error.filename or directory} cannot be written: {error.strerror}"
        ) from error
    except (tarfile.TarError, ValueError, LookupError, ArithmeticError) as error:
        if metered.begun:
            raise HarnessError(f"the host does not send a tar archive: {error}") from error
    return notes


def copy(source: IO[bytes], target: IO[bytes], most: int) -> bool:
    """Copy at most `most` bytes of a stream; return whether that was all of it."""
    while most and (chunk := source.read(min(_CHUNK, most))):
        target.write(chunk)
        most -= len(chunk)
    return not source.read(1)


def _unpack_member(
    tar: tarfile.TarFile,
    member: tarfile.TarInfo,
    directory: Path,
    most: int,
    place: Callable[[str], str | None],
) -> Iterator[str]:
    name = place(member.name)
    if name is None:
        return
    if not member.isreg() and not member.isdir():
        yield f"{name!r} is a link or a special file: left out"
        return
    # Like tarfile.data_filter(), which Python lacks before 3.11.4.
    path = directory / name.lstrip("/")
    if not _is_within(path, directory):
        yield f"{name!r} leads out of the directory: left out"
        return
    (path if member.isdir() else path.parent).mkdir(parents=True, exist_ok=True)
    content = tar.extractfile(member)
    if content is None:
        return
    with open(path, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        whole = copy(content, file, most)
        os.fchmod(file.fileno(), (member.mode & (0o755 if member.mode & 0o100 else 0o644)) | 0o600)
    if not whole:
        yield f"{name!r} has {member.size >> 20} MiB: cut after {most >> 20} MiB"


def _is_within(path: Path, directory: Path) -> bool:
    """Return whether a path, with all links followed, is in a directory."""
    try:
        return path.resolve().is_relative_to(directory.resolve())
    except (OSError, RuntimeError, ValueError):
        return False  # a name that is too long, a cycle of links, a zero byte
