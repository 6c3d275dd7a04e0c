"""Which run a test session works on, with fake hosts."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from fakes import SCENARIO, FakeProvider
from harness import lifecycle, rundir
from harness.cluster.slurm import Job
from harness.errors import CannotVerify, ScenarioError, UsageError, WaitTimeout
from harness.open_run import OpenRun
from harness.pytest_plugin import sessions
from harness.pytest_plugin.sessions import WantedClusters
from harness.rundir import RunDir


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts come up without SSH, and clusters accept jobs at once."""
    monkeypatch.setattr(OpenRun, "wait_for_ssh", lambda *_: None)
    monkeypatch.setattr("harness.cluster.logs.collect", lambda *_: [])
    monkeypatch.setattr("harness.cluster.slurm.wait_until_ready", lambda *_: None)
    monkeypatch.setattr("harness.cluster.slurm.SlurmCluster.jobs", lambda *_: [])

    def deploy(run: OpenRun) -> None:
        run.directory.event("stage", name="ready", seconds=0)

    monkeypatch.setattr(lifecycle, "deploy", deploy)


@pytest.fixture
def provider() -> FakeProvider:
    return FakeProvider()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A scenario's file that may be changed."""
    return Path(shutil.copy(SCENARIO, tmp_path / "mine.yml"))


@pytest.fixture
def kept(path: Path, provider: FakeProvider, tmp_path: Path) -> RunDir:
    """A run that a session has left up."""
    with sessions.of_scenario(WantedClusters(path), provider, tmp_path, print, keep=True) as run:
        return run.directory


def used(
    path: Path, provider: FakeProvider, runs: Path, *choices: str, settings: tuple[str, ...] = ()
) -> str:
    with sessions.of_scenario(
        WantedClusters(path, choices, settings), provider, runs, print
    ) as run:
        assert run.directory.id in provider.runs()
        return run.directory.id


def test_session_takes_down_what_it_started(
    path: Path, provider: FakeProvider, tmp_path: Path
) -> None:
    used(path, provider, tmp_path)
    assert provider.runs() == {}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signal_that_ends_a_session_takes_down_what_it_started(
    number: signal.Signals, path: Path, provider: FakeProvider, tmp_path: Path
) -> None:
    before = signal.getsignal(number)
    with (
        pytest.raises(KeyboardInterrupt),
        sessions.of_scenario(WantedClusters(path), provider, tmp_path, print),
    ):
        os.kill(os.getpid(), number)
    assert provider.runs() == {}
    assert signal.getsignal(number) == before


def test_kept_run_is_reused_and_stays(
    path: Path, provider: FakeProvider, tmp_path: Path, kept: RunDir
) -> None:
    assert [used(path, provider, tmp_path) for _ in (1, 2)] == [kept.id] * 2
    assert [*provider.runs()] == [kept.id]


def test_run_whose_scenario_cannot_be_read_is_left_alone(
    path: Path, provider: FakeProvider, tmp_path: Path, kept: RunDir
) -> None:
    (kept.path / "scenario.yml").unlink()
    assert used(path, provider, tmp_path) != kept.id


def test_run_of_a_changed_file_is_left_alone(
    path: Path, provider: FakeProvider, tmp_path: Path, kept: RunDir
) -> None:
    path.write_text(path.read_text() + "# changed\n")
    assert used(path, provider, tmp_path) != kept.id
    assert [*provider.runs()] == [kept.id]
    with (
        pytest.raises(
            UsageError, match=r"was created from a scenario that differs from .*mine.yml"
        ),
        sessions.opened(kept, provider, print, WantedClusters(path)),
    ):
        pass


def test_run_on_another_release_is_left_alone(
    path: Path, provider: FakeProvider, tmp_path: Path, kept: RunDir
) -> None:
    assert used(path, provider, tmp_path, "26.05") != kept.id
    assert used(path, provider, tmp_path, "24.11") == kept.id


def test_run_with_other_settings_is_left_alone(
    path: Path, provider: FakeProvider, tmp_path: Path
) -> None:
    """Settings change the clusters, just as editing the file would."""
    settings = ("clusters.single.nodes.0.cpus=1",)
    with sessions.of_scenario(
        WantedClusters(path, (), settings), provider, tmp_path, print, keep=True
    ) as run:
        changed = run.directory
    assert used(path, provider, tmp_path) != changed.id
    assert used(path, provider, tmp_path, settings=settings) == changed.id


@pytest.mark.parametrize(
    ("choices", "settings", "message"),
    [
        (("26.05",), (), r"is on single=24.11, not on single=26.05"),
        (
            (),
            ("users.alice.uid=2005",),
            r"was created with no --set, not with --set users.alice.uid=2005",
        ),
    ],
)
def test_named_run_must_match_the_request(
    choices: tuple[str, ...],
    settings: tuple[str, ...],
    message: str,
    path: Path,
    provider: FakeProvider,
    kept: RunDir,
) -> None:
    wanted = WantedClusters(path, choices, settings)
    with pytest.raises(UsageError, match=message), sessions.opened(kept, provider, print, wanted):
        pass
    with sessions.opened(kept, provider, print, WantedClusters(path)) as run:
        assert run.directory.id == kept.id


@pytest.mark.parametrize("lack", ["host", "fault", "ready"])
def test_incomplete_run_is_left_alone(
    lack: str, path: Path, provider: FakeProvider, tmp_path: Path, kept: RunDir
) -> None:
    if lack == "host":
        provider.running[kept.id].clear()
    elif lack == "ready":
        kept.events_path.unlink()
    else:
        (kept.path / "faults").mkdir()
        (kept.path / "faults" / "one.json").write_text('{"kind": "pause-host", "on": "single"}')
    assert used(path, provider, tmp_path) != kept.id


def test_run_belongs_to_one_session_at_a_time(
    path: Path, provider: FakeProvider, tmp_path: Path, kept: RunDir
) -> None:
    with sessions.of_scenario(WantedClusters(path), provider, tmp_path, print) as run:
        assert run.directory.id == kept.id
        assert used(path, provider, tmp_path) != kept.id
        with (
            pytest.raises(UsageError, match=f"another session is using {kept.id}"),
            sessions.opened(kept, provider, print),
        ):
            pass
    with sessions.opened(kept, provider, print) as opened:
        assert opened.directory.id == kept.id


def test_run_that_accepts_no_jobs_gives_no_verdict(
    provider: FakeProvider, kept: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise WaitTimeout("single: single DOWN")

    monkeypatch.setattr("harness.cluster.slurm.wait_until_ready", never)
    with pytest.raises(CannotVerify, match="single DOWN"), sessions.opened(kept, provider, print):
        pass


def test_jobs_that_another_session_has_left_are_reported_once(
    provider: FakeProvider,
    kept: RunDir,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    jobs = [
        Job(7, "RUNNING", "single", "sh", "alice", "None", 7),
        Job(8, "FAILED", "single", "sh", "alice", "None", 8),
    ]
    monkeypatch.setattr("harness.cluster.slurm.SlurmCluster.jobs", lambda *_: jobs)
    with sessions.opened(kept, provider, print):
        pass
    assert (
        capsys.readouterr().out
        == "jobs from before this session are left alone: 7 RUNNING of alice on single\n"
    )


def test_invalid_scenario_is_reported_before_anything_starts(
    path: Path, provider: FakeProvider, tmp_path: Path
) -> None:
    path.write_text(path.read_text().replace("cpus", "cpu"))
    with pytest.raises(ScenarioError, match=r'mine.yml:10:9: .*did you mean "cpus"'):
        used(path, provider, tmp_path)
    assert rundir.all_runs(tmp_path) == []
