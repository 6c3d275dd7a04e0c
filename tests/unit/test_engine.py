from __future__ import annotations

from collections import namedtuple
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import docker
import pytest
import requests
from docker.errors import APIError, ImageNotFound

from harness import releases
from harness.errors import EngineError
from harness.providers import engine, images
from harness.providers.docker import DockerProvider
from harness.providers.subnets import routes

Usage = namedtuple("Usage", "total used free")


class FakeClient:
    """An engine of a version, without any image."""

    def __init__(self, version: str = "20.10.24") -> None:
        self._version = version
        self.images = self

    def version(self) -> dict[str, str]:
        return {"Version": self._version}

    def info(self) -> dict[str, str]:
        return {"DockerRootDir": "/"}

    def get(self, name: str) -> Any:
        raise ImageNotFound(name)


def test_engine_that_is_too_old_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker, "DockerClient", lambda **_: FakeClient("19.03.5"))
    with pytest.raises(EngineError, match=r"Docker engine 19\.3 is too old"):
        engine.connect()


def test_disk_without_room_for_an_image_is_told_before_anything_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images.shutil, "disk_usage", lambda path: Usage(100, 99, 5e8))
    with pytest.raises(EngineError, match=r"0\.5 GB free in /") as caught:
        images.ensure(FakeClient(), releases.get("24.11"), print)  # type: ignore[arg-type]
    assert "docker system prune" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("explanation", "hint"),
    [
        ("write /x: no space left on device", "docker system df"),
        ("Pool overlaps with other one on this address space", "choose another `subnet:`"),
        ("Bind for 127.0.0.1:80 failed: port is already allocated", "another program"),
        ("dial unix /var/run/docker.sock: permission denied", "join the group docker"),
    ],
)
def test_engines_own_errors_come_with_a_hint(explanation: str, hint: str) -> None:
    with pytest.raises(EngineError, match="cannot do it") as caught, engine.engine_errors("cannot do it"):
        raise APIError("x", response=requests.Response(), explanation=explanation)
    assert hint in str(caught.value.hint)


def test_image_name_changes_with_what_it_is_made_of(monkeypatch: pytest.MonkeyPatch) -> None:
    before = images.tag(releases.get("24.11"))
    assert images.tag(releases.get("24.11")) == before
    monkeypatch.setattr(images, "_HOST_PACKAGES", ("systemd",))
    assert images.tag(releases.get("24.11")) != before


def test_subnets_that_this_machine_routes_elsewhere_are_known(tmp_path: Path) -> None:
    table = tmp_path / "route"
    table.write_text(
        "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
        "eth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
        "br0\t000012C6\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
    )
    assert routes(table) == [IPv4Network("198.18.0.0/24")]
    assert routes(tmp_path / "none") == []


class Busy:
    """A container that cannot be frozen at first, and its engine's client."""

    def __init__(self, *errors: str) -> None:
        self.errors = [*errors]
        self.containers = self

    def get(self, name: str) -> Busy:
        return self

    def pause(self) -> None:
        if self.errors:
            raise APIError("500 Server Error", explanation=self.errors.pop(0))


def test_host_that_cannot_be_frozen_at_first_is_frozen_then() -> None:
    provider, busy = DockerProvider(), Busy("runc did not terminate successfully: unable to freeze", "unable to freeze")
    provider._connected[""] = busy  # type: ignore[assignment]
    provider.pause("run", "host")
    assert busy.errors == []


def test_host_that_cannot_be_frozen_for_another_reason_is_told_at_once() -> None:
    provider, busy = DockerProvider(), Busy("Container is not running", "")
    provider._connected[""] = busy  # type: ignore[assignment]
    with pytest.raises(EngineError, match="cannot pause host: Container is not running"):
        provider.pause("run", "host")
    assert busy.errors == [""]
