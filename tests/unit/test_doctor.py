from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness import doctor
from harness.doctor import Requirement
from harness.providers import subnets
from harness.providers.docker import engine

NOW = datetime(2026, 1, 1, tzinfo=UTC)
FULL = "MemTotal: 8000000 kB\nMemAvailable: {} kB\n"


def of_file(look: str, path: Path, text: str) -> Requirement:
    path.write_text(text)
    (finding,) = getattr(doctor, look)(path)
    assert isinstance(finding, Requirement)
    return finding


def test_problems_are_reported_with_their_fixes(tmp_path: Path) -> None:
    pairs = [
        (doctor._memory(FULL.format(4_000_000)), doctor._memory(FULL.format(100_000))),
        (doctor._ssh_sockets("/tmp"), doctor._ssh_sockets(f"/tmp/{'long' * 10}")),
        (doctor._subnets(2), doctor._subnets(1)),
        (
            doctor._clock(NOW, NOW + timedelta(seconds=0.5)),
            doctor._clock(NOW, NOW - timedelta(minutes=1)),
        ),
        (of_file("_inotify", tmp_path / "i", "1024"), of_file("_inotify", tmp_path / "i", "20")),
        (
            of_file("_cgroup2", tmp_path / "f", "nodev\tcgroup2\n"),
            of_file("_cgroup2", tmp_path / "f", "nodev\tcgroup\n"),
        ),
    ]
    for good, bad in pairs:
        assert good.ok, good
        assert not bad.ok, bad
        assert bad.fix or bad.subject == "cgroups", "nobody's kernel is replaced by a command"


def test_disk_that_is_too_small_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "GB free" in doctor._disk(tmp_path).text
    monkeypatch.setattr(doctor, "_DISK_GB", 10**9)
    assert not doctor._disk(tmp_path).ok


def test_clock_problem_names_the_clock_and_the_offset() -> None:
    assert (
        doctor._clock(NOW - timedelta(minutes=1), NOW).text == "the engine's clock is 60.0 s behind"
    )


class FakeEngine:
    """An engine on another machine, with a clock of its own and no network."""

    api = SimpleNamespace(base_url="https://far.example.org:2376")
    networks = SimpleNamespace(list=list)

    def version(self) -> dict[str, str]:
        return {"Version": "28.0"}

    def info(self) -> dict[str, object]:
        return {
            "DockerRootDir": "/far",
            "MemTotal": 64 * 10**9,
            "SystemTime": "2020-01-01T00:00:00.123456789Z",
        }


def test_remote_engine_is_asked_about_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "connect", FakeEngine)
    monkeypatch.setattr(subnets, "routes", list)
    found = {finding.subject: finding for finding in doctor.examine()}
    assert found["memory"].text.startswith("64.0 GB")
    assert found["subnets"].text.startswith("512 ")
    assert not found["clock"].ok
    assert not {"inotify", "cgroups"} & {*found}, "this machine's say nothing of the engine's"


def test_dependencies_started_with_a_daemon_are_not_repaired_separately(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    daemon = tmp_path / "daemon"

    def examine(_: str) -> list[Requirement]:
        exists = daemon.exists()
        return [
            Requirement("daemon", exists, "does not answer", f"touch {daemon}", fatal=True),
            Requirement(
                "its pool",
                exists,
                "is not active",
                "echo it is there already >&2; exit 1",
                fatal=True,
            ),
        ]

    monkeypatch.setattr(doctor, "examine", examine)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda _: "/usr/bin/apt-get")
    assert doctor.fix(lambda _: None) == []
