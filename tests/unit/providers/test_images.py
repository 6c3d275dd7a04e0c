"""Images in a file, for engines that can reach no registry."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import requests
from docker.errors import ImageNotFound
from typer.testing import CliRunner

from harness import cli, releases
from harness.errors import EngineError, UsageError
from harness.origins import Origin
from harness.providers import dockerfiles, images
from harness.providers.docker import engine
from harness.shipped_files import IMAGES

CURRENT = images.tag(releases.get("24.11"))


def test_image_is_copied_by_its_own_name_whatever_other_names_it_has() -> None:
    engine_of_image, other = MagicMock(), MagicMock()
    other.images.get.side_effect = ImageNotFound("no such image")
    images.copy(CURRENT, engine_of_image, other, print)
    engine_of_image.api.get_image.assert_called_once_with(CURRENT)
    other.api.load_image.assert_called_once()


class FakeEngine:
    """An engine that saves and loads images like Docker, and fails halfway if `breaks` is set."""

    def __init__(self, breaks: bool = False, has: Sequence[str] = ()) -> None:
        self.has = list(has)
        self.images = SimpleNamespace(get=self.has.index, list=self._list)
        self.api = SimpleNamespace(
            base_url="http+docker://localhost",
            api_version="1.41",
            get=self._get,
            load_image=self._load,
        )
        self._breaks = breaks

    @contextmanager
    def _get(self, url: str, params: dict[str, list[str]], stream: bool) -> Iterator[Any]:
        assert (url, stream) == ("http+docker://localhost/v1.41/images/get", True)

        def content(size: int) -> Iterator[bytes]:
            whole = saved(params["names"])
            yield whole[:100]
            if self._breaks:
                raise requests.ConnectionError("the engine is gone")
            yield whole[100:]

        yield SimpleNamespace(raise_for_status=lambda: None, iter_content=content)

    def _list(self, name: str, filters: dict[str, str]) -> list[SimpleNamespace]:
        return [SimpleNamespace(tags=[name], attrs={"Size": 1}) for name in self.has]

    def _load(self, data: io.BufferedReader, *, quiet: bool) -> Iterator[dict[str, str]]:
        assert not quiet  # an engine that is quiet answers only at the end
        yield {"status": "Loading layer"}
        if self._breaks:
            yield {"error": "no space left on device"}
            return
        self.has = names_in(data)


def tar(files: dict[str, str]) -> bytes:
    return images.archive(images.Entry(path, text.encode()) for path, text in files.items())


def saved(names: Sequence[str], labels: dict[str, str] | None = None) -> bytes:
    """Return what `docker save` writes, without the layers."""
    manifest = [{"RepoTags": [name], "Config": "config.json"} for name in names]
    config = {"config": {"Labels": labels}}
    return tar({"manifest.json": json.dumps(manifest), "config.json": json.dumps(config)})


def names_in(data: io.BufferedReader) -> list[str]:
    with tarfile.open(fileobj=data) as opened:
        manifest = json.load(opened.extractfile("manifest.json") or io.BytesIO())
    return [name for image in manifest for name in image["RepoTags"]]


def test_images_that_are_saved_can_be_loaded_under_their_names(tmp_path: Path) -> None:
    names = sorted(images.wanted())
    images.save(FakeEngine(), names, tmp_path / "images.tar")  # type: ignore[arg-type]
    other = FakeEngine()
    assert images.load(other, tmp_path / "images.tar") == names  # type: ignore[arg-type]
    assert other.has == names


def test_saved_releases_have_all_their_existing_images_and_no_old_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = releases.get("26.05")
    wanted = sorted(map(images.tag, (release, releases.with_apptainer(release))))
    fake_engine = FakeEngine(has=[*wanted, "slurm-harness:26.05-000000000000", CURRENT])
    monkeypatch.setattr(engine, "connect", lambda: fake_engine)
    file = tmp_path / "images.tar"
    completed = CliRunner().invoke(cli.app, ["images", "save", str(file), "26.05"])
    assert (completed.exit_code, completed.output) == (0, f"{file}: {', '.join(wanted)}\n")
    with file.open("rb") as data:
        assert names_in(data) == wanted


@pytest.mark.parametrize("fits", [True, False])
def test_image_of_a_source_is_loaded_if_this_version_would_build_the_same(
    fits: bool, tmp_path: Path
) -> None:
    file, name = tmp_path / "images.tar", "slurm-harness:25.11.2-0123456789ab"
    built_from = dockerfiles.digest(IMAGES, "") if fits else "of another version"
    file.write_bytes(saved([name], {"harness.files": built_from}))
    fake_engine = FakeEngine()
    if fits:
        assert images.load(fake_engine, file) == [name]  # type: ignore[arg-type]
    else:
        with pytest.raises(UsageError, match=f"{name}, which this version .* does not use"):
            images.load(fake_engine, file)  # type: ignore[arg-type]
    assert fake_engine.has == [name] * fits


def test_name_of_an_extended_image_depends_on_its_contents() -> None:
    release, other = releases.get("24.11"), releases.get("22.05")
    name = images.extended_tag(release, ["gcc", "expect"])
    assert name.startswith("slurm-harness-extended:24.11-")
    assert name == images.extended_tag(release, ["expect", "gcc", "gcc"])
    assert (
        len(
            {
                name,
                images.extended_tag(release, ["gcc"]),
                images.extended_tag(other, ["gcc", "expect"]),
            }
        )
        == 3
    )
    assert images.extended_tag(release, []) == CURRENT
    plugins = {
        images.extended_tag(release, [], [(path, source)]) for path in "ab" for source in "cd"
    }
    assert len({*plugins, name, CURRENT}) == 6


def test_plugin_that_does_not_compile_is_named_with_its_errors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def build(_: object, directory: Path, *arguments: object) -> None:
        (source,) = directory.glob("spank/**/*.c")
        at = source.relative_to(directory / "spank")
        raise EngineError(f"cannot build\n./{at}:1:1: error: {source.read_text()}")

    monkeypatch.setattr(images, "ensure", lambda *_: CURRENT)
    monkeypatch.setattr(images, "has", lambda *_: False)
    monkeypatch.setattr(images, "from_dockerfile", build)
    client = MagicMock()
    client.images.list.return_value = [SimpleNamespace(id="stage")]
    with pytest.raises(EngineError, match=r"\./opt/a\.c:1:1: error: not C") as caught:
        images.extend(client, releases.get("24.11"), [], print, [("/opt/a.so", "not C")])
    assert "spank.h of this release" in str(caught.value.hint)
    client.images.remove.assert_called_once_with("stage")


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ("debian:trixie", "no package in .* has Slurm's headers"),
        ("rockylinux:9", "cannot be compiled on rockylinux"),
    ],
)
def test_plugin_is_refused_where_there_are_no_headers(
    base: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = Origin(base, "25.11", "25.11.2", packages=str(tmp_path), digest="a")
    monkeypatch.setattr(images, "ensure", lambda *_: CURRENT)
    monkeypatch.setattr(images, "has", lambda *_: False)
    with pytest.raises(UsageError, match=message):
        images.extend(None, origin, [], print, [("/opt/a.so", "")])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "arguments", [["--package", "x; reboot"], ["--package", "-y"], ["--package", "A"]]
)
def test_only_names_of_packages_extend_an_image(arguments: list[str]) -> None:
    completed = CliRunner().invoke(cli.app, ["images", "extend", "24.11", *arguments])
    assert (completed.exit_code, "not a name of a Debian package" in completed.output) == (2, True)


@pytest.mark.parametrize(
    ("file", "breaks", "error"),
    [("images.tar", True, EngineError), ("none/images.tar", False, UsageError)],
)
def test_failed_save_leaves_no_file(
    file: str, breaks: bool, error: type[Exception], tmp_path: Path
) -> None:
    with pytest.raises(
        error, match=r"the engine is gone|images\.tar cannot be written: No such file or directory"
    ):
        images.save(FakeEngine(breaks), [CURRENT], tmp_path / file)  # type: ignore[arg-type]
    assert not [*tmp_path.iterdir()]


def test_images_of_another_version_of_the_harness_are_not_loaded(tmp_path: Path) -> None:
    fake_engine, file = FakeEngine(), tmp_path / "images.tar"
    images.save(fake_engine, [CURRENT, "slurm-harness:24.11-000000000000"], file)  # type: ignore[arg-type]
    with pytest.raises(
        UsageError, match=r"images\.tar has slurm-harness:24\.11-000000000000, which this version"
    ) as caught:
        images.load(fake_engine, file)  # type: ignore[arg-type]
    assert "with this version: `harness images save`" in str(caught.value.hint)
    assert fake_engine.has == []


def test_engine_without_room_for_images_is_reported(tmp_path: Path) -> None:
    images.save(FakeEngine(), [CURRENT], tmp_path / "images.tar")  # type: ignore[arg-type]
    with pytest.raises(EngineError, match=r"cannot load .*: no space left on device") as caught:
        images.load(FakeEngine(breaks=True), tmp_path / "images.tar")  # type: ignore[arg-type]
    assert "free disk space" in str(caught.value.hint)


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"not a tar",
        tar({}),
        tar({"manifest.json": "no JSON"}),
        tar({"manifest.json": "[{}]"}),
        tar({"manifest.json": '[{"RepoTags": null}]'}),
    ],
)
def test_file_that_the_harness_did_not_save_is_refused(
    content: bytes | None, tmp_path: Path
) -> None:
    file = tmp_path / "images.tar"
    if content is not None:
        file.write_bytes(content)
    problem = (
        "No such file or directory"
        if content is None
        else "was not written by `harness images save`"
    )
    with pytest.raises(UsageError, match=problem):
        images.load(FakeEngine(), file)  # type: ignore[arg-type]


class Probed:
    """An engine with one image; `says` is what the image's shell prints, or the error instead."""

    def __init__(self, says: bytes | Exception) -> None:
        self.says, self.given, self.pulled, self.removed = says, {}, [], []  # type: ignore[var-annotated]
        self.images = SimpleNamespace(get=self._get, pull=lambda *name: self.pulled.append(name))
        self.containers = SimpleNamespace(create=self._create)

    def _get(self, image: str) -> None:
        raise ImageNotFound(image)

    def _create(self, image: str, command: list[str], **given: Any) -> SimpleNamespace:
        self.given = given
        return SimpleNamespace(
            start=lambda: None,
            wait=self._wait,
            logs=lambda stderr: self.says,
            remove=lambda force, v: self.removed.append((force, v)),
        )

    def _wait(self, timeout: float) -> None:
        if isinstance(self.says, Exception):
            raise self.says


def test_image_is_asked_for_its_release_without_privileges() -> None:
    probed = Probed(b"distribution rocky rhel centos fedora\nslurm 25.05.1\n")
    origin = images.origin_of(probed, "mine:1")  # type: ignore[arg-type]
    assert (origin.release, origin.version, origin.family) == ("25.05", "25.05.1", "el")
    assert probed.pulled == [("mine", "1")]
    assert probed.removed == [(True, True)]
    wanted = {
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "network_mode": "none",
        "read_only": True,
        "user": "65534:65534",
    }
    assert {name: probed.given.get(name) for name in wanted} == wanted
    assert not {"cap_add", "privileged", "volumes", "devices"} & {*probed.given}


def test_image_that_never_answers_is_reported_and_removed() -> None:
    probed = Probed(requests.ReadTimeout("60 s"))
    with pytest.raises(EngineError, match="cannot inspect image mine: 60 s"):
        images.origin_of(probed, "mine")  # type: ignore[arg-type]
    assert probed.removed == [(True, True)]


@pytest.mark.parametrize(
    ("says", "lacks"), [(b"lacks ip\nslurm 25.05.1\n", "ip"), (b"\xff", "Slurm")]
)
def test_image_that_cannot_be_a_host_is_reported_with_what_it_lacks(
    says: bytes, lacks: str
) -> None:
    with pytest.raises(EngineError, match=f"image mine cannot be a host: it lacks {lacks}"):
        images.origin_of(Probed(says), "mine")  # type: ignore[arg-type]
