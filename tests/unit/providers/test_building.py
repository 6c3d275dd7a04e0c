"""Packages from Slurm's source: built once, with a clear error if that is not possible."""

from __future__ import annotations

import io
import tarfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import APIError, ImageNotFound
from package_samples import deb, tarball

from harness import file_ownership, origins, scenario
from harness.capabilities import CONTAINERS
from harness.errors import CannotVerify, EngineError, UsageError
from harness.origins import Origin, Wanted
from harness.plan import make_plan
from harness.providers import building, dockerfiles, images
from harness.providers.docker.containers import DockerProvider
from harness.shipped_files import SCENARIOS

OUTPUT = ["harness: unpack", "harness: compile 2", "gcc -c a.c", "a.c:1: error: no such thing"]


class Builder:
    """An engine whose containers print OUTPUT and end with a code, with packages if it is 0."""

    def __init__(self, code: int = 0, *, answers: bool = True) -> None:
        self.code, self.answers, self.started, self.removed = code, answers, 0, 0
        self.images = SimpleNamespace(get=self._get, pull=self._get)
        self.volumes = SimpleNamespace(create=lambda name, labels: None)
        self.containers = SimpleNamespace(create=self._create)

    def info(self) -> dict[str, str]:
        return {"DockerRootDir": "/none", "Architecture": "x86_64"}

    def _get(self, *name: str) -> None:
        if not self.answers:
            raise (APIError if len(name) > 1 else ImageNotFound)("no such host")

    def _create(self, image: str, **given: Any) -> SimpleNamespace:
        assert given["network_mode"] == "none"
        return SimpleNamespace(
            put_archive=lambda path, data: None,
            start=self._start,
            logs=self._logs,
            wait=lambda: {"StatusCode": self.code},
            get_archive=self._packages,
            remove=self._remove,
        )

    def _logs(self, *, stream: bool = False, follow: bool = False) -> Iterator[bytes] | bytes:
        """The stream ends early."""
        lines = [f"{line}\n".encode() for line in OUTPUT]
        return iter(lines[:-1]) if stream else b"".join(lines)

    def _start(self) -> None:
        self.started += 1

    def _remove(self, force: bool, v: bool) -> None:
        self.removed += 1

    def _packages(self, path: str) -> tuple[Iterator[bytes], None]:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            directory = tarfile.TarInfo("packages")
            directory.type, directory.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(directory)
            tar.addfile(tarfile.TarInfo("packages/slurm-smd_25.11.2-1_amd64.deb"))
        return iter([buffer.getvalue()]), None


@pytest.fixture
def origin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Origin:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return origins.resolve(Wanted(source=str(tarball(tmp_path / "s.tar.bz2", "25.11.2"))))


def test_packages_are_built_once(origin: Origin) -> None:
    engine, lines = Builder(), []  # type: ignore[var-annotated]
    directory = building.packages(engine, origin, lines.append)  # type: ignore[arg-type]
    assert [path.name for path in directory.iterdir()] == ["slurm-smd_25.11.2-1_amd64.deb"]
    assert building.packages(engine, origin, print) == directory  # type: ignore[arg-type]
    assert (engine.started, engine.removed) == (1, 1)
    assert any("building packages on debian:trixie" in line for line in lines)


def test_packages_depend_on_base_and_options(
    origin: Origin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = building.digest(origin)
    other = origins.resolve(Wanted(source=origin.source, base="debian:bookworm"))
    assert building.digest(other) != before
    monkeypatch.setenv("DEB_BUILD_OPTIONS", "noopt")
    assert building.digest(origin) != before


def test_build_that_fails_shows_its_end_and_its_log_and_leaves_no_packages(origin: Origin) -> None:
    engine = Builder(code=2)
    with pytest.raises(EngineError) as caught:
        building.packages(engine, origin, print)  # type: ignore[arg-type]
    message = str(caught.value)
    assert "Slurm 25.11.2 cannot be built on debian:trixie (exit 2):" in message
    assert OUTPUT[-1] in message
    (log,) = (file_ownership.cache() / "builds").iterdir()
    assert str(log) in message
    assert log.read_text().splitlines() == OUTPUT
    assert (engine.removed, caught.value.exit_code) == (1, 3)
    assert not [*(file_ownership.cache() / "packages").iterdir()]


def test_base_that_no_registry_has_is_reported_with_what_helps() -> None:
    engine = Builder(answers=False)
    with pytest.raises(EngineError, match=r"cannot pull ubuntu:24\.04") as caught:
        dockerfiles.base_image(engine, origins.base("ubuntu:24.04"), print)  # type: ignore[arg-type]
    assert "docker load" in str(caught.value)


def test_source_that_cannot_be_downloaded_is_reported_and_leaves_nothing(
    origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise urllib.error.URLError("no route to host")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    origin = origins.resolve(Wanted(source="https://example.com/slurm-25.11.2.tar.bz2"))
    with pytest.raises(CannotVerify, match=r"cannot download .*: .*no route to host"):
        building.packages(Builder(), origin, print)  # type: ignore[arg-type]
    assert not [*(file_ownership.cache() / "sources").iterdir()]


def test_packages_of_another_architecture_are_refused_before_there_is_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deb(tmp_path, "slurm-smd", "25.11.2-1", "arm64")
    choice = f"packages:{tmp_path}"
    plan = make_plan("s", scenario.load(SCENARIOS / "single-node.yml", [choice]), CONTAINERS)
    monkeypatch.setattr(DockerProvider, "_client", Builder())
    message = r"the engine's architecture: slurm-smd_25\.11\.2-1_arm64"
    with pytest.raises(UsageError, match=message):
        DockerProvider().confirm(plan, {})
    with pytest.raises(UsageError, match=message):
        images.build(Builder(), plan.origins()["single"], print)  # type: ignore[arg-type]


@pytest.mark.parametrize("choice", ["23.02", "base:rockylinux:9"])
def test_release_that_cannot_be_had_is_refused_without_an_engine(
    choice: str, tmp_path: Path
) -> None:
    path = tmp_path / "s.yml"
    path.write_text('release: "23.02"\nclusters: {a: {controller: b, nodes: [{name: b}]}}')
    text = path.read_text()
    if choice.startswith("base:"):
        path.write_text(
            text.replace("clusters:", f"base: {choice.removeprefix('base:')}\nclusters:")
        )
        with pytest.raises(UsageError, match="rockylinux:9 has no packages of Slurm"):
            scenario.load(path)
        return
    plan = make_plan("s", scenario.load(path), CONTAINERS)
    with pytest.raises(UsageError, match=r"Debian has no packages of Slurm 23\.02") as caught:
        DockerProvider().confirm(plan, {})
    assert "source" in str(caught.value)
