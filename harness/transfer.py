"""Copy files and directories to hosts and from them, as `cp -r` does."""

from __future__ import annotations

import tarfile
import tempfile
from pathlib import Path, PurePosixPath
from typing import IO

from harness.errors import HarnessError, UsageError
from harness.ssh import Ssh

_CHUNK = 2**20


def put(ssh: Ssh, host: str, source: Path, target: str) -> None:
    """Copy a file or directory to a host, where it is root's: into `target` if that is a directory, otherwise as it.

    UsageError if there is no source, or no directory for it.
    """
    if not source.exists():
        raise UsageError(f"{source} is not there")
    path = PurePosixPath(target)
    if ssh.run(host, ["test", "-d", target], check=False).exit_code == 0:
        path /= source.resolve().name
    elif target.endswith("/") or ssh.run(host, ["test", "-d", str(path.parent)], check=False).exit_code != 0:
        raise UsageError(f"{host} has no directory {target if target.endswith('/') else path.parent}")
    with tempfile.TemporaryFile() as packed:
        with tarfile.open(fileobj=packed, mode="w") as tar:
            tar.add(source.resolve(), arcname=path.name, filter=_roots)
        packed.seek(0)
        command = ["tar", "--extract", "--no-same-owner", f"--directory={path.parent}"]
        ssh.feed(host, command, iter(lambda: packed.read(_CHUNK), b""))


def get(ssh: Ssh, host: str, source: str, target: Path) -> None:
    """Copy a file or directory from a host: into `target` if that is a directory, otherwise as it.

    What a host sends is not trusted: nothing is written elsewhere, and no device or set-user-ID file is made.
    UsageError if there is no source, or no directory for it.
    """
    path = PurePosixPath(source)
    if ssh.run(host, ["test", "-e", source], check=False).exit_code != 0:
        raise UsageError(f"{host} has no {source}")
    if target.is_dir():
        target /= path.name
    elif not target.parent.is_dir():
        raise UsageError(f"{target.parent} is no directory")
    with tempfile.TemporaryFile() as packed:
        command = ["tar", "--create", "--dereference", f"--directory={path.parent}", path.name]
        ssh.save(host, command, packed)
        packed.seek(0)
        _unpack(packed, path.name, target)


def _roots(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member


def _unpack(packed: IO[bytes], name: str, target: Path) -> None:
    """Unpack what is below a name as `target`."""

    def renamed(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
        first, *rest = PurePosixPath(member.name).parts
        if first != name:
            return None
        return tarfile.data_filter(member.replace(name=str(PurePosixPath(target.name, *rest)), deep=False), path)

    try:
        with tarfile.open(fileobj=packed) as tar:
            tar.extractall(target.parent, filter=renamed)  # noqa: S202  the filter is tarfile's own for data
    except (tarfile.TarError, OSError) as error:
        raise HarnessError(f"{target} cannot be written: {error}") from error
