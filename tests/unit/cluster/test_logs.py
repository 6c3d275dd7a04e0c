"""Following the daemons' logs."""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from harness import ssh, transfer
from harness.cluster import logs
from harness.errors import CannotVerify, CommandFailed, WaitTimeout
from harness.ssh import Ssh


class Here(Ssh):
    """Hosts that are this machine."""

    def __init__(self) -> None:
        super().__init__(Path("/dev/null"), Path())

    def command(self, host: str, command: Sequence[str] = (), *, tty: bool = False) -> list[str]:
        return [*command]


def test_following_ends_when_the_reader_closes_the_pipe() -> None:
    seen: list[str] = []

    def say(name: str, line: str) -> bool:
        seen.append(f"{name}: {line}")
        return len(seen) < 3

    logs.follow(Here(), {"ctl": ("ctl", ["yes", "more"]), "quiet": ("ctl", ["sleep", "1000"])}, say)
    assert seen[:3] == ["ctl: more"] * 3


class Shim(Here):
    """A host whose programs are those of a directory."""

    def __init__(self, programs: Path) -> None:
        super().__init__()
        self._programs = programs

    def command(self, host: str, command: Sequence[str] = (), *, tty: bool = False) -> list[str]:
        return ["env", f"PATH={self._programs}:{os.environ['PATH']}", "sh", "-c", " ".join(command)]


def shim(directory: Path, **programs: str) -> Shim:
    directory.mkdir()
    for name, script in programs.items():
        (directory / name).write_text(f"#!/bin/sh\n{script}\n")
        (directory / name).chmod(0o755)
    return Shim(directory)


def test_logs_of_a_host_become_plain_files_of_this_user(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("sesame")
    with tarfile.open(tmp_path / "sent.tar", "w") as sent:
        for name, kind, link in (
            ("slurm/slurmd.log", tarfile.REGTYPE, ""),
            ("slurm/shadow.log", tarfile.SYMTYPE, str(secret)),
            ("slurm/near.log", tarfile.SYMTYPE, "slurmd.log"),
            ("slurm/hard.log", tarfile.LNKTYPE, "slurm/slurmd.log"),
            ("slurm/disk", tarfile.BLKTYPE, ""),
            ("slurm/pipe", tarfile.FIFOTYPE, ""),
            ("../../evil", tarfile.REGTYPE, ""),
        ):
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.mode = kind, link, 0o4755
            sent.addfile(info)
    host = shim(tmp_path / "bin", journalctl="echo said", tar=f"cat {tmp_path}/sent.tar")
    notes = logs.collect(host, ["n1"], tmp_path / "logs")
    assert len(notes) == 6
    assert "n1: 'slurm/shadow.log' is a link or a special file: left out" in notes
    assert "n1: '../../evil' leads out of the directory: left out" in notes
    files = {
        str(path.relative_to(tmp_path / "logs"))
        for path in (tmp_path / "logs").rglob("*")
        if path.is_file()
    }
    assert files == {"n1/journal.log", "n1/slurm/slurmd.log"}
    status = (tmp_path / "logs/n1/slurm/slurmd.log").lstat()
    assert (stat.S_IMODE(status.st_mode), status.st_uid) == (0o755, os.getuid())
    assert (tmp_path / "logs/n1/journal.log").read_text() == "said\n"


def test_host_without_a_journal_or_logs_is_reported(tmp_path: Path) -> None:
    host = shim(tmp_path / "bin", journalctl="echo none >&2; exit 4", tar="echo gone >&2; exit 2")
    notes = logs.collect(host, ["n1"], tmp_path / "logs")
    assert [text.splitlines()[0].rpartition(" ")[2] for text in notes] == ["none", "gone"]


def test_endless_journal_is_truncated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_LIMITS", transfer.Limits(2**20, 2**20, 10))
    host = shim(tmp_path / "bin", journalctl="exec yes", tar="exec yes")
    notes = logs.collect(host, ["n1"], tmp_path / "logs")
    assert notes[0] == "n1: the journal has more than 1 MiB; the rest was not copied"
    assert "not send a tar archive" in notes[1]
    assert (tmp_path / "logs/n1/journal.log").stat().st_size == 2**20


def test_endless_response_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh, "_MOST_OUTPUT", 2**20)
    host = shim(tmp_path / "bin")
    for number in ("1", "2"):
        with pytest.raises(CannotVerify, match="prints more than 1 MiB"):
            host.run("n1", ["sh", "-c", f"yes >&{number}"])
    assert host.run("n1", ["cat"], stdin="a\r\nb" * 100_000).stdout == "a\nb" * 100_000
    with pytest.raises(WaitTimeout, match="n1: sh timed out after 3 s: n1") as caught:
        host.run("n1", ["env", "A=b", "sh", "-c", "echo n1; exec sleep 60"], timeout=3)
    assert caught.value.printed == "n1\n"
    with (
        pytest.raises(WaitTimeout, match="timed out after 0 s"),
        host.printed("n1", ["exec", "sleep", "60"], 0.1) as stream,
    ):
        assert stream.read(1) == b""
    with (
        pytest.raises(CommandFailed, match="n1: exit 3: why"),
        host.printed("n1", ["sh", "-c", "echo why >&2; exit 3"]) as ended,
    ):
        assert ended.read(1) == b""
    host.feed("n1", ["sh", "-c", f"cat > {tmp_path}/fed"], [b"a" * 100_000, b"b" * 100_000])
    assert (tmp_path / "fed").stat().st_size == 200_000
    with pytest.raises(CommandFailed, match="exit 5"):
        host.feed("n1", ["sh", "-c", "exit 5"], [b"a" * 2**20] * 3)
