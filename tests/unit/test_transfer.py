"""Files that are copied to hosts and from them, whatever a host sends."""

from __future__ import annotations

import io
import subprocess
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from typer.testing import CliRunner

from harness import cli, transfer
from harness.errors import HarnessError, UsageError
from harness.ssh import Result
from harness.transfer import Limits


class FakeHost:
    """A host with files, which packs and unpacks as tar(1) does; `sends` replaces its archive."""

    def __init__(self, root: Path, sends: bytes | None = None) -> None:
        self._root = root
        self._sends = sends

    def run(self, host: str, command: Sequence[str], *, check: bool = True) -> Result:
        _, kind, path = command
        full_path = self._root / path.lstrip("/")
        return Result(int(not (full_path.is_dir() if kind == "-d" else full_path.exists())), "", "")

    def feed(self, host: str, command: Sequence[str], chunks: Iterable[bytes]) -> None:
        directory = command[-1].partition("=")[2]
        sent = b"".join(chunks)
        with tarfile.open(fileobj=io.BytesIO(sent)) as tar:
            assert {(member.uid, member.uname) for member in tar} == {(0, "root")}
        option = f"--directory={self._root / directory.lstrip('/')}"
        subprocess.run([*command[:-1], option], input=sent, check=True)

    @contextmanager
    def printed(self, host: str, command: Sequence[str]) -> Iterator[IO[bytes]]:
        if self._sends is not None:
            yield io.BytesIO(self._sends)
            return
        *_, directory, name = command
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            tar.add(self._root / directory.partition("=")[2].lstrip("/") / name, arcname=name)
        packed.seek(0)
        yield packed


def tar_of(*members: tarfile.TarInfo) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(b"x" * member.size))
    return buffer.getvalue()


def member(
    name: str, type_: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644
) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = type_, link, mode
    info.size = 1 if type_ == tarfile.REGTYPE else 0
    return info


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """What the host has."""
    (tmp_path / "host" / "srv" / "data").mkdir(parents=True)
    (tmp_path / "host" / "srv" / "data" / "file").write_text("content")
    return tmp_path / "host"


@pytest.mark.parametrize(
    ("target", "path"), [("/srv", "srv/tree/a/b"), ("/srv/new", "srv/new/a/b")]
)
def test_directory_is_copied_into_an_existing_one_or_takes_the_name(
    target: str, path: str, root: Path, tmp_path: Path
) -> None:
    (tmp_path / "tree" / "a").mkdir(parents=True)
    (tmp_path / "tree" / "a" / "b").write_text("b")
    transfer.put(FakeHost(root), "h", tmp_path / "tree", target)  # type: ignore[arg-type]
    assert (root / path).read_text() == "b"


@pytest.mark.parametrize(("target", "path"), [("", "file"), ("other", "other")])
def test_file_is_copied_into_a_directory_or_takes_the_name(
    target: str, path: str, root: Path, tmp_path: Path
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    transfer.get(FakeHost(root), "h", "/srv/data/file", here / target)  # type: ignore[arg-type]
    assert (here / path).read_text() == "content"


def test_directory_can_be_fetched_under_another_name(root: Path, tmp_path: Path) -> None:
    transfer.get(FakeHost(root), "h", "/srv/data", tmp_path / "copy")  # type: ignore[arg-type]
    assert (tmp_path / "copy" / "file").read_text() == "content"


def test_missing_path_is_a_usage_error(root: Path, tmp_path: Path) -> None:
    host = FakeHost(root)
    with pytest.raises(UsageError, match="missing does not exist"):
        transfer.put(host, "h", tmp_path / "missing", "/srv")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="h has no directory /none"):
        transfer.put(host, "h", tmp_path, "/none/name")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="h has no directory /srv/new/"):
        transfer.put(host, "h", tmp_path, "/srv/new/")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="h has no /none"):
        transfer.get(host, "h", "/none", tmp_path)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="is not a directory"):
        transfer.get(host, "h", "/srv/data", tmp_path / "a" / "b")  # type: ignore[arg-type]


@pytest.mark.parametrize("places", [("a", "b"), ("h:/a", "g:/b"), ("./h:a", "dir/h:b")])
def test_copies_go_between_a_host_and_here(places: tuple[str, str], tmp_path: Path) -> None:
    completed = CliRunner().invoke(cli.app, ["cp", *places, "--runs", str(tmp_path)])
    assert (completed.exit_code, "one argument must be HOST:PATH" in completed.output) == (2, True)


@pytest.mark.parametrize("places", [("a", "h:"), ("h:", "a")])
def test_place_on_a_host_needs_a_path(places: tuple[str, str], tmp_path: Path) -> None:
    completed = CliRunner().invoke(cli.app, ["cp", *places, "--runs", str(tmp_path)])
    assert (completed.exit_code, "h: has no path" in completed.output) == (2, True)


@pytest.mark.parametrize(
    "sent",
    [
        member("data/../../evil"),
        member("data", tarfile.SYMTYPE, "/etc/shadow"),
        member("data/link", tarfile.SYMTYPE, "../../evil"),
        member("data/disk", tarfile.BLKTYPE),
        member("data/hard", tarfile.LNKTYPE, "data/other"),
    ],
    ids=["outside", "link", "link-outside", "device", "hard-link"],
)
def test_nothing_that_a_host_sends_is_written_outside_the_target(
    sent: tarfile.TarInfo, root: Path, tmp_path: Path
) -> None:
    (tmp_path / "here").mkdir()
    with pytest.raises(HarnessError, match=r"is incomplete: .*: left out"):
        transfer.get(FakeHost(root, tar_of(sent)), "h", "/srv/data", tmp_path / "here")  # type: ignore[arg-type]
    assert not (tmp_path / "evil").exists()


def test_files_of_other_names_and_rights_beyond_the_users_are_dropped(
    root: Path, tmp_path: Path
) -> None:
    sent = tar_of(member("data/tool", mode=0o4755), member("other"))
    transfer.get(FakeHost(root, sent), "h", "/srv/data", tmp_path / "copy")  # type: ignore[arg-type]
    assert [path.name for path in (tmp_path / "copy").iterdir()] == ["tool"]
    assert (tmp_path / "copy" / "tool").stat().st_mode & 0o7777 == 0o755


def test_archive_is_streamed_and_read_no_further_than_the_limits(tmp_path: Path) -> None:
    files = [member(f"{name}.log") for name in "abc"]
    for file in files:
        file.size = 3 * 2**20
    sent = tar_of(*files)
    limits = Limits(total=8 * 2**20, file=2**20, members=10)
    with pytest.raises(HarnessError, match="more than 8 MiB: the rest is left out"):
        transfer.unpack(io.BytesIO(sent), tmp_path, limits)
    assert {path.name: path.stat().st_size for path in tmp_path.iterdir()} == {
        "a.log": 2**20,
        "b.log": 2**20,
    }
    notes = transfer.unpack(io.BytesIO(sent), tmp_path, Limits(2**30, 2**20, 10))
    assert notes == [f"'{name}.log' has 3 MiB: cut after 1 MiB" for name in "abc"]
    with pytest.raises(HarnessError, match="more than 2 files"):
        transfer.unpack(io.BytesIO(sent), tmp_path, Limits(2**30, 2**20, 2))


@pytest.mark.parametrize(
    "sent",
    [
        b"no archive",
        tar_of(member("a"))[: -tarfile.RECORDSIZE] + b"x" * 2**22,
        tar_of(member("a"))[: tarfile.BLOCKSIZE + 1],
    ],
    ids=["text", "endless", "cut"],
)
def test_file_that_is_not_an_archive_is_reported(sent: bytes, tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match="not send a tar archive"):
        transfer.unpack(io.BytesIO(sent), tmp_path, Limits(2**30, 2**20, 10))


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME], ids=["pax", "gnu"])
def test_endless_header_is_not_read(kind: bytes, tmp_path: Path) -> None:
    header = member("endless", kind)
    header.size = 2**40

    class Endless(io.RawIOBase):
        begun = False

        def read(self, size: int = -1) -> bytes:
            if not self.begun:
                self.begun = True
                return header.tobuf(tarfile.GNU_FORMAT)
            return b"x" * size

    with pytest.raises(HarnessError, match="not send a tar archive: a header never ends"):
        transfer.unpack(Endless(), tmp_path, Limits(2**30, 2**20, 10))  # type: ignore[arg-type]
