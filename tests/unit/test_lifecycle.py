"""The flow of a run with fake hosts: whatever happens, everything is taken down."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from fakes import SCENARIO, FakeProvider
from harness import extras, lifecycle, rundir
from harness.errors import CannotVerify, EngineError, UsageError
from harness.report import model
from harness.shipped_files import SCENARIOS
from harness.verify import pytest_run


@pytest.mark.parametrize("where", ["prepare", "up"])
@pytest.mark.parametrize("error", [EngineError("no disk"), KeyboardInterrupt()])
def test_error_during_startup_leaves_nothing_behind_and_gives_no_verdict(
    where: str, error: BaseException, tmp_path: Path
) -> None:
    provider = FakeProvider(where, error)
    result = lifecycle.run(
        SCENARIO, provider, tmp_path / "runs", print, report_directory=tmp_path / "report"
    )
    assert provider.runs() == {}
    assert result.verdict == "unknown"
    assert result.problem == (str(error) or "interrupted")
    assert json.loads((tmp_path / "report" / "report.json").read_text())["verdict"] == "unknown"


def test_leftovers_are_reported_after_the_error_that_came_first(tmp_path: Path) -> None:
    class Sticky(FakeProvider):
        def down(self, run_id: str) -> list[str]:
            raise CannotVerify("a host is not given back", hint="down again")

    result = lifecycle.run(SCENARIO, Sticky("up", EngineError("no disk")), tmp_path, print)
    assert result.problem == "no disk\na host is not given back\nhint: down again"


def test_refused_hosts_leave_no_run_behind(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not yours"):
        lifecycle.run(
            SCENARIO, FakeProvider("ask", UsageError("not yours")), tmp_path / "runs", print
        )
    assert not (tmp_path / "runs").exists()


def test_configuration_that_slurmctld_refuses_is_reported_before_anything_starts(
    tmp_path: Path,
) -> None:
    path = tmp_path / "refused.yml"
    place = "    options:\n"
    path.write_text(
        SCENARIO.read_text().replace(place, f"{place}      SchedulerType: sched/none\n")
    )
    with pytest.raises(UsageError) as caught:
        lifecycle.run(path, FakeProvider(), tmp_path / "runs", print)
    assert re.search(r":/etc/slurm/slurm\.conf:\d+:1: fatal: SchedulerType: ", str(caught.value))
    assert not (tmp_path / "runs").exists()


def test_missing_package_of_the_operator_is_reported_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(extras.MODULES, "hybrid", ("kopf", "not_installed"))
    with pytest.raises(CannotVerify, match="not installed: not_installed"):
        lifecycle.run(SCENARIOS / "kubernetes-hybrid.yml", FakeProvider(), tmp_path / "runs", print)
    assert not (tmp_path / "runs").exists()


def test_host_that_never_answers_is_reported_with_its_console(tmp_path: Path) -> None:
    provider = FakeProvider()
    provider.capabilities = replace(provider.capabilities, boot_seconds=1)
    result = lifecycle.run(SCENARIO, provider, tmp_path, print)
    assert result.verdict == "unknown"
    assert "single did not come up" in result.problem
    assert "the console's last words" in result.problem
    assert provider.runs() == {}


@pytest.mark.parametrize(
    ("running", "outcome", "verdict", "problem"),
    [
        (["single"], "failed", "failed", ""),
        ([], "failed", "unknown", "stopped during the run: single"),
        (EngineError("no engine answers"), "failed", "unknown", "no engine answers"),
        ([], "passed", "passed", ""),
    ],
)
def test_check_that_fails_because_of_a_lost_host_gives_no_verdict(
    running: list[str] | EngineError,
    outcome: str,
    verdict: str,
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Losing(FakeProvider):
        def hosts(self, run_id: str) -> dict[str, bool]:
            if isinstance(running, EngineError):
                raise running
            return dict.fromkeys(running, True)

    checks = [model.Check("jobs", outcome, 0.1, "no job ran"), model.Check("files", "passed", 0.1)]
    monkeypatch.setattr(pytest_run, "verify", lambda *_: (checks, ""))
    evaluation = lifecycle.verify(lifecycle.create(SCENARIO, Losing(), tmp_path, print))
    assert evaluation.verdict() == verdict
    assert evaluation.problem == problem
    assert evaluation.checks[0].message == "no job ran"


def test_host_that_stopped_is_not_waited_for(tmp_path: Path) -> None:
    result = lifecycle.run(SCENARIO, FakeProvider("boot"), tmp_path, print)
    assert "cannot succeed any more after" in result.problem
    assert "the host has stopped" in result.problem
    assert result.verdict == "unknown"


def test_bug_in_the_harness_is_reported_with_its_traceback_after_cleanup(tmp_path: Path) -> None:
    provider = FakeProvider("up", RuntimeError("a bug"))
    result = lifecycle.run(SCENARIO, provider, tmp_path, print)
    assert provider.runs() == {}
    assert (result.verdict, result.exit_code()) == ("unknown", 3)
    assert result.problem.startswith("unexpected error: RuntimeError: a bug; traceback: ")
    assert (
        "raise self._error\nRuntimeError: a bug" in (Path(result.run) / "traceback.txt").read_text()
    )


def test_report_that_cannot_be_copied_is_reported_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    provider = FakeProvider("up", EngineError("no disk"))
    with pytest.raises(
        CannotVerify, match=r"file: (File exists|Not a directory)\nhint: the report is in "
    ):
        lifecycle.run(
            SCENARIO, provider, tmp_path / "runs", print, report_directory=tmp_path / "file"
        )


@pytest.mark.parametrize("keep", [True, False])
def test_interrupt_takes_hosts_down_once_even_with_keep(
    keep: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = FakeProvider()
    run = lifecycle.create(SCENARIO, provider, tmp_path, print)
    monkeypatch.setattr(
        lifecycle, "up", lambda run: provider.up(run.directory, run.plan, run.plan.hosts)
    )
    with pytest.raises(KeyboardInterrupt), lifecycle.provisioned(run, keep=keep):
        raise KeyboardInterrupt
    assert provider.runs() == {}
    assert [event["name"] for event in run.directory.events() if event["kind"] == "stage"] == [
        "render",
        "down",
    ]


def test_two_runs_at_the_same_moment_have_directories_of_their_own(tmp_path: Path) -> None:
    runs = [lifecycle.create(SCENARIO, FakeProvider(), tmp_path, print).directory for _ in range(2)]
    assert runs[0].path != runs[1].path
    assert runs[0].id != runs[1].id
    assert (tmp_path / "single-node" / "latest").resolve() == runs[1].path
    assert rundir.find(tmp_path, "single-node").id == runs[1].id
    assert rundir.find(tmp_path, runs[0].id).id == runs[0].id


def test_secrets_are_random_private_and_kept_over_a_second_deploy(tmp_path: Path) -> None:
    run, other = (lifecycle.create(SCENARIO, FakeProvider(), tmp_path, print) for _ in range(2))
    assert run.directory.secrets() != other.directory.secrets()
    before = run.directory.secrets()
    run.directory.make_secrets(run.tree)
    assert run.directory.secrets() == before
    for directory in (run.directory.path / "secrets", run.directory.path / "keys"):
        assert directory.stat().st_mode & 0o777 == 0o700
        for path in directory.glob("*[!b]"):  # all but the public halves
            assert path.stat().st_mode & 0o777 == 0o600, path
    everything = [
        path
        for path in run.directory.path.rglob("*")
        if path.is_file() and path.parent.name != "secrets"
    ]
    assert not [
        path
        for path in everything
        if run.directory.secrets()["munge_key"] in path.read_text(errors="replace")
    ]


def test_release_option_is_remembered_by_the_run(tmp_path: Path) -> None:
    scenario = tmp_path / "mixed.yml"
    scenario.write_text(
        "clusters: {one: {controller: box, release: '22.05', nodes: [{name: box}]}}"
    )
    run = lifecycle.create(scenario, FakeProvider(), tmp_path / "runs", print, choices=["24.11"])
    assert run.plan.releases() == {"one": "24.11"}
    assert rundir.find(tmp_path / "runs", "mixed").plan() == run.plan


def test_settings_are_remembered_by_the_run(tmp_path: Path) -> None:
    settings = ["clusters.single.nodes.0.cpus=7"]
    run = lifecycle.create(SCENARIO, FakeProvider(), tmp_path / "runs", print, settings=settings)
    again = rundir.find(tmp_path / "runs", "single-node").plan()
    assert [plan.scenario.clusters["single"].nodes[0].cpus for plan in (run.plan, again)] == [7, 7]


def test_scenario_whose_file_cannot_name_a_run_is_refused(tmp_path: Path) -> None:
    scenario = tmp_path / "my cluster.yml"
    scenario.write_text(SCENARIO.read_text())
    with pytest.raises(UsageError, match="a run is named after its scenario"):
        lifecycle.create(scenario, FakeProvider(), tmp_path / "runs", print)
