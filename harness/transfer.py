"""Copy files and directories to hosts and from them, as `cp -r` does."""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import IO

from harness.errors import HarnessError, UsageError
from harness.ssh import Ssh

_CHUNK = 2**20


def put(ssh: Ssh, host: str, source: Path, target: str) -> None:
    """Copy a file or directory to a host: into `target` if that is a directory, otherwise under that name.

    On the host it belongs to root. UsageError if `source` or the target's directory does not exist.
    """
    if not source.exists():
        raise UsageError(f"{source} does not exist")
    path = PurePosixPath(target)
    if ssh.run(host, ["test", "-d", target], check=False).exit_code == 0:
        path /= source.resolve().name
    elif target.endswith("/") or ssh.run(host, ["test", "-d", str(path.parent)], check=False).exit_code != 0:
        raise UsageError(f"{host} has no directory {target if target.endswith('/') else path.parent}")
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
    """Give a command on a host, which root runs, a tar archive of a file or directory under a name.

    `change` may alter what the archive says of each file. CommandFailed if the command fails.
    """
    with tempfile.TemporaryFile() as packed:
        with tarfile.open(fileobj=packed, mode="w") as tar:
            tar.add(source, arcname=name, filter=change)
        packed.seek(0)
        ssh.feed(host, unpack, iter(lambda: packed.read(_CHUNK), b""))


def get(ssh: Ssh, host: str, source: str, target: Path) -> None:
    """Copy a file or directory from a host: into `target` if that is a directory, otherwise under that name.

    The host is not trusted: nothing is written outside the target, and no device or set-user-ID file is created.
    UsageError if `source` or the target's directory does not exist.
    """
    path = PurePosixPath(source)
    if ssh.run(host, ["test", "-e", source], check=False).exit_code != 0:
        raise UsageError(f"{host} has no {source}")
    if target.is_dir():
        target /= path.name
    elif not target.parent.is_dir():
        raise UsageError(f"{target.parent} is not a directory")
    with tempfile.TemporaryFile() as packed:
        command = ["tar", "--create", "--dereference", f"--directory={path.parent}", path.name]
        ssh.save(host, command, packed)
        packed.seek(0)
        _unpack(packed, path.name, target)


def _owned_by_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member


def _unpack(packed: IO[bytes], name: str, target: Path) -> None:
    """Unpack the file or directory of a name as `target`, and nothing else."""

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
