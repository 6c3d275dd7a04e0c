from __future__ import annotations

import signal
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from fakes import FakeProvider
from harness import lifecycle, releases, scenario
from harness.capabilities import OWN_MACHINES
from harness.cluster import slurm
from harness.errors import ClusterError, UsageError, WaitTimeout
from harness.open_run import OpenRun
from harness.plan import Plan, make_plan
from harness.providers import images
from harness.rehearsal import execution, upgrade
from harness.rehearsal.invariants import CHECKERS
from harness.rehearsal.upgrade import Step, UpgradeOptions
from harness.rehearsal.workload import PlannedJob
from harness.render import Tree
from harness.report import html_report, model
from harness.rundir import RunDir
from harness.shipped_files import SCENARIOS
from harness.site import site_data


def plan(name: str, *choices: str) -> Plan:
    return make_plan(name, scenario.load(SCENARIOS / f"{name}.yml", choices), OWN_MACHINES)


def options(*choices: str, batches: int = 2) -> UpgradeOptions:
    """The options of `harness upgrade` with a --to for each choice."""
    start, chain = upgrade.split_choices(choices)
    return UpgradeOptions(chain, batches, start=start)


def quiet_users() -> SimpleNamespace:
    return SimpleNamespace(submit=lambda work: None)


def test_slurmdbd_comes_first_then_controllers_then_nodes_in_batches() -> None:
    assert upgrade.steps(plan("federation", "24.11"), plan("federation", "26.05"), 3) == [
        Step("slurmdbd", ("accounting",)),
        Step("slurmctld of on-prem", ("onprem-ctl",), "on-prem"),
        Step("slurmctld of aws", ("aws-ctl",), "aws"),
        Step("nodes onprem1", ("onprem1",), "on-prem", ("onprem1",)),
        Step("nodes onprem2", ("onprem2",), "on-prem", ("onprem2",)),
        Step("nodes aws[1-2]", ("aws1", "aws2"), "aws", ("aws1", "aws2")),
        Step("nodes aws[3-4]", ("aws3", "aws4"), "aws", ("aws3", "aws4")),
    ]


def test_backups_are_upgraded_together_with_their_primaries() -> None:
    found = upgrade.steps(plan("ha", "24.11"), plan("ha", "26.05"))
    assert [step.hosts for step in found] == [("db1", "db2"), ("ctl1", "ctl2"), ("n1",), ("n2",)]


def test_unchanged_parts_are_left_alone() -> None:
    new = plan("federation", "24.11", "slurmdbd=26.05", "aws=26.05")
    assert [step.name for step in upgrade.steps(plan("federation", "24.11"), new)] == [
        "slurmdbd",
        "slurmctld of aws",
        "nodes aws[1-2]",
        "nodes aws[3-4]",
    ]


def test_host_with_all_roles_is_upgraded_in_one_step() -> None:
    [step] = upgrade.steps(plan("single-node", "24.11"), plan("single-node", "26.05"))
    assert (step.hosts, step.nodes) == (("single",), ("single",))


def test_elastic_nodes_are_upgraded_last_and_together() -> None:
    found = upgrade.steps(plan("elastic-l3", "24.11"), plan("elastic-l3", "26.05"))
    elastic = ("l1", "c1", "c2", "c3")
    assert found[-2:] == [
        Step("nodes n1", ("n1",), "cloud", ("n1",)),
        Step("elastic nodes c[1-3],l1", elastic, "cloud", elastic, elastic=True),
    ]


@pytest.mark.parametrize(
    ("version", "in_step", "problem"),
    [
        ("26.05.2", True, ""),
        ("24.11.5", True, "n1 runs slurmd 24.11.5, not 26.05"),
        (None, True, "n1 runs slurmd None, not 26.05"),
        ("24.11.5", False, ""),
    ],
)
def test_gate_stays_closed_until_the_nodes_of_the_step_run_the_new_release(
    version: str | None, in_step: bool, problem: str
) -> None:
    step = Step("nodes", ("n1",), "on-prem", ("n1",) if in_step else ())
    node = slurm.Node("n1", "IDLE", "", 0, version)
    assert upgrade._problem(node, plan("federation", "26.05"), step) == problem


@pytest.mark.parametrize(
    ("state", "reason", "in_step", "problem"),
    [
        ("DOWN+DRAIN", "upgrade", True, ""),
        ("DOWN+DRAIN", "no fan", True, "n1 DOWN+DRAIN"),
        ("DOWN+DRAIN", "upgrade", False, "n1 DOWN+DRAIN"),
        ("DOWN+DRAIN+NOT_RESPONDING", "upgrade", True, "n1 DOWN+DRAIN+NOT_RESPONDING"),
    ],
)
def test_gate_opens_for_a_node_that_was_away_for_longer_than_slurmd_timeout(
    state: str, reason: str, in_step: bool, problem: str
) -> None:
    step = Step("nodes", ("n1",), "on-prem", ("n1",) if in_step else ())
    node = slurm.Node("n1", state, reason, 0, "26.05.2")
    assert upgrade._problem(node, plan("federation", "26.05"), step) == problem


@pytest.mark.parametrize(
    ("name", "to", "message", "hint"),
    [
        (
            "federation",
            "22.05:24.11",
            "Slurm 24.11 supports upgrades from 23.02, 23.11, 24.05, not from 22.05",
            "the shortest way is --to 22.05:source:slurm-23.11.X.tar.bz2:24.11",
        ),
        (
            "federation",
            "20.11:22.05:24.11:26.05",
            "Slurm 24.11 supports upgrades from 23.02, 23.11, 24.05, not from 22.05",
            "the shortest way is --to 20.11:22.05:source:slurm-23.11.X.tar.bz2:24.11:26.05",
        ),
        (
            "single-node",
            "20.11:24.11",
            "Slurm 24.11 supports upgrades from 23.02, 23.11, 24.05, not from 20.11",
            "the shortest way is --to 20.11:22.05:source:slurm-23.11.X.tar.bz2:24.11",
        ),
        ("federation", "26.05:24.11", "Slurm cannot be downgraded to 24.11", None),
        ("federation", "24.11:26.05:24.11", "Slurm cannot be downgraded to 24.11", None),
        ("federation", "24.11:24.11", "all parts are already on 24.11", None),
        ("federation", "20.11:22.05:22.05", "all parts are already on 22.05", None),
        ("single-node", "20.11:99.99:24.11", 'unknown release "99.99"', None),
        ("single-node", "20.11:", 'unknown release ""', None),
    ],
)
def test_impossible_upgrade_is_refused_before_there_is_a_run(
    name: str, to: str, message: str, hint: str | None
) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        upgrade.must_be_possible(SCENARIOS / f"{name}.yml", FakeProvider(), options(to))
    assert refused.value.hint == hint


def test_upgrade_that_would_lose_a_shared_directory_in_memory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "one.yml"
    text = (SCENARIOS / "single-node.yml").read_text()
    path.write_text(f"{text}\nshared_directories: {{/home: 100M}}\n")
    with pytest.raises(UsageError, match="lose what is in the shared directories of single"):
        upgrade.must_be_possible(path, FakeProvider(), options("22.05:23.11"))


def test_chain_with_a_release_that_debian_lacks_is_refused_with_a_hint_at_a_source() -> None:
    class Debian(FakeProvider):
        def confirm(self, plan: Plan, tree: Tree, run: RunDir | None = None) -> None:
            for host in plan.hosts:
                images.base_of(images.on(host))

    with pytest.raises(UsageError, match=r"Debian has no packages of Slurm 23\.11") as refused:
        upgrade.must_be_possible(
            SCENARIOS / "single-node.yml", Debian(), options("20.11:22.05:23.11:24.11:26.05")
        )
    way = "20.11:22.05:source:slurm-23.11.X.tar.bz2:24.11:26.05"
    assert str(refused.value.hint).endswith(f"for example --to {way}")


@pytest.mark.parametrize(
    ("choices", "start", "chain"),
    [
        (["26.05"], [], [["26.05"]]),
        (["aws=26.05", "slurmdbd=26.05"], [], [["aws=26.05", "slurmdbd=26.05"]]),
        (["20.11:22.05:23.11"], ["20.11"], [["22.05"], ["23.11"]]),
        (["source:a.tar:packages:debs"], ["source:a.tar"], [["packages:debs"]]),
        (
            ["22.05:source:https://x.org/slurm-23.11.11.tar.bz2,base:debian:bookworm:24.11"],
            ["22.05"],
            [["source:https://x.org/slurm-23.11.11.tar.bz2,base:debian:bookworm"], ["24.11"]],
        ),
        (
            ["packages:24.11:base:ubuntu:26.04:26.05"],
            ["packages:24.11"],
            [["base:ubuntu:26.04"], ["26.05"]],
        ),
        (["image:a/b:24.11:image:c:26.05"], ["image:a/b:24.11"], [["image:c:26.05"]]),
        (["22.05:image:a:base:debian:forky"], ["22.05"], [["image:a"], ["base:debian:forky"]]),
        (
            ["slurmdbd=20.11:22.05:source:a=b.tar", "alpha=20.11:22.05"],
            ["slurmdbd=20.11", "alpha=20.11"],
            [["slurmdbd=22.05", "alpha=22.05"], ["slurmdbd=source:a=b.tar", "alpha=22.05"]],
        ),
    ],
)
def test_chain_is_split_at_the_colons_between_releases_and_origins(
    choices: list[str], start: list[str], chain: list[list[str]]
) -> None:
    assert upgrade.split_choices(choices) == (start, chain)


def test_chain_goes_through_all_of_its_releases_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = SCENARIOS / "ha.yml"
    run = lifecycle.create(path, FakeProvider(), tmp_path, print, ["20.11"])
    done: list[tuple[str, str, str]] = []

    def do(run: OpenRun, new: Plan, step: Step) -> None:
        part = step.cluster or "slurmdbd"
        done.append((step.name, run.plan.releases()[part], new.releases()[part]))
        # What has been upgraded so far is recorded, also in the middle of the chain.
        assert run.directory.plan().releases()[part] == run.plan.releases()[part]

    monkeypatch.setattr(upgrade, "_do", do)
    monkeypatch.setattr(upgrade, "rehearsing", lambda run: nullcontext(quiet_users()))
    monkeypatch.setattr(site_data, "remembered", lambda run, since: {"main": [str(since)]})
    plans = upgrade.plan_chain(run, options("20.11:22.05:23.11"))
    upgrade.upgrade(run, plans, [], batches=1)
    cluster = next(iter(run.plan.scenario.clusters))
    assert done == [
        ("slurmdbd to 22.05", "20.11", "22.05"),
        (f"slurmctld of {cluster} to 22.05", "20.11", "22.05"),
        ("nodes n[1-2] to 22.05", "20.11", "22.05"),
        ("slurmdbd to 23.11", "22.05", "23.11"),
        (f"slurmctld of {cluster} to 23.11", "22.05", "23.11"),
        ("nodes n[1-2] to 23.11", "22.05", "23.11"),
    ]
    assert {*run.directory.plan().releases().values()} == {"23.11"}
    past = [event["tables"] for event in run.directory.events() if event["kind"] == "old_records"]
    assert len(past) == 2, "old records are read before the first upgrade and after the last one"
    assert past[0] == past[1]


def test_chain_ends_with_the_step_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = lifecycle.create(SCENARIOS / "ha.yml", FakeProvider(), tmp_path, print, ["20.11"])

    def do(run: OpenRun, new: Plan, step: Step) -> None:
        if step.name == "slurmdbd to 23.11":
            raise ClusterError("could not be upgraded and was rolled back")

    monkeypatch.setattr(upgrade, "_do", do)
    monkeypatch.setattr(upgrade, "rehearsing", lambda run: nullcontext(quiet_users()))
    monkeypatch.setattr(site_data, "remembered", lambda run, since: {})
    monkeypatch.setattr(UpgradeOptions, "planned_jobs", lambda self, plan: [])
    monkeypatch.setattr(lifecycle, "logs_collected", lambda run: nullcontext())
    monkeypatch.setattr(lifecycle, "jobs", lambda run: [])
    result = upgrade.run_kept(run, options("20.11:22.05:23.11:24.11", batches=1))
    failed = [(check.id, check.message) for check in result.checks if check.outcome == "failed"]
    assert failed == [
        ("upgrade::slurmdbd to 23.11", "could not be upgraded and was rolled back"),
    ]
    assert [check.id for check in result.checks][-1] == failed[0][0]
    assert (result.verdict, {*result.releases.values()}) == ("failed", {"22.05"})
    assert result.command.endswith("ha.yml --to 20.11:22.05:23.11:24.11")


def test_run_that_is_up_must_be_on_the_first_release(tmp_path: Path) -> None:
    run = lifecycle.create(SCENARIOS / "ha.yml", FakeProvider(), tmp_path, print, ["22.05"])
    with pytest.raises(UsageError, match=r"the run is on 22\.05, not on 20\.11"):
        upgrade.plan_chain(run, options("20.11:22.05:23.11"))
    assert len(upgrade.plan_chain(run, options("22.05:23.11"))) == 1


def test_configuration_that_the_newer_daemons_refuse_is_reported_before_the_upgrade(
    tmp_path: Path,
) -> None:
    path, place = tmp_path / "old.yml", "    options:\n"
    line = "      TaskPluginParam: Sched\n"
    text = (SCENARIOS / "single-node.yml").read_text().replace(place, place + line)
    path.write_text(text)
    with pytest.raises(UsageError, match="fatal: TaskPluginParam"):
        upgrade.must_be_possible(path, FakeProvider(), options("20.11:22.05"))


def test_upgraded_run_is_on_its_new_releases(tmp_path: Path) -> None:
    run = lifecycle.create(SCENARIOS / "federation.yml", FakeProvider(), tmp_path, print, ["24.11"])
    run.directory.upgraded(upgrade.plan_chain(run, options("26.05"))[-1])
    assert {*run.directory.plan().releases().values()} == {"26.05"}


def test_what_slurm_gets_wrong_along_the_way_is_reported() -> None:
    [fault] = upgrade.known_faults([plan("federation", "24.11"), plan("federation", "26.05")])
    assert "slurmdbd 26.05 loses the records of federated jobs" in fault
    assert upgrade.known_faults([plan("ha", "24.11"), plan("ha", "26.05")]) == []
    [lost] = plan("ha", "26.05").known_faults()
    assert "backup controller" in lost
    chain = [plan("ha", release) for release in ("23.11", "24.11", "26.05")]
    [lost] = upgrade.known_faults(chain)
    assert "submitted before slurmctld 24.11" in lost
    assert upgrade.known_faults(chain[:2]) == []


@pytest.mark.parametrize(
    ("older", "newer", "way"),
    [
        ("20.11", "22.05", ("20.11", "22.05")),
        ("24.11", "26.05", ("24.11", "26.05")),
        ("20.11", "26.05", ("20.11", "22.05", "23.11", "24.11", "26.05")),
        ("26.05", "20.11", ()),
    ],
)
def test_shortest_path_through_releases(older: str, newer: str, way: tuple[str, ...]) -> None:
    assert releases.upgrade_path(older, newer) == way


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpenRun:
    """A cluster that is up as far as an upgrade can tell."""
    for stage in ("provisioned", "logs_collected"):
        monkeypatch.setattr(lifecycle, stage, lambda run, **_: nullcontext())
    monkeypatch.setattr(lifecycle, "deploy", lambda run: None)
    monkeypatch.setattr(lifecycle, "jobs", lambda run: [])
    opened = lifecycle.create(
        SCENARIOS / "federation.yml", FakeProvider(), tmp_path, print, ["24.11"]
    )
    opened.directory.event(
        "check", id="of an earlier verify", outcome="failed", seconds=1, message=""
    )
    return opened


def test_upgrade_is_reported_with_its_steps_and_the_checkers_findings(
    run: OpenRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def upgraded(run: OpenRun, plans: list[Plan], jobs: object, batches: int) -> None:
        run.directory.event("rehearsal", action="begin")
        run.directory.event(
            "check", id="upgrade::slurmdbd", outcome="passed", seconds=2.5, message=""
        )
        run.directory.event("rehearsal", action="end")
        run.directory.upgraded(plans[-1])

    monkeypatch.setattr(upgrade, "upgrade", upgraded)
    result = upgrade.run(run, options("26.05"), directory=tmp_path / "copy")
    assert {*result.releases.values()} == {"26.05"}
    assert result.command == f"harness upgrade {run.directory.scenario_path} --to 24.11:26.05"
    assert html_report.commands(result)["repeat the run"] == result.command
    outcomes = {check.id: check.outcome for check in result.checks}
    assert outcomes.pop("upgrade::slurmdbd") == "passed"
    assert outcomes == {
        f"rehearsal::{name}": "skipped" if name == "old_records_are_kept" else "error"
        for name in CHECKERS
    }, "no job was accepted"
    assert (result.verdict, result.exit_code()) == ("unknown", 3)
    junit = (tmp_path / "copy" / "junit.xml").read_text()
    assert (
        f'tests="{len(result.checks)}" failures="0" errors="{len(CHECKERS) - 1}" skipped="1"'
        in junit
    )
    assert model.read(tmp_path / "copy") == result
    assert "no job was accepted" in (tmp_path / "copy" / "report.html").read_text()


def test_step_that_failed_fails_the_upgrade(run: OpenRun, monkeypatch: pytest.MonkeyPatch) -> None:
    def stuck(run: OpenRun, new: Plan, step: Step) -> None:
        raise ClusterError("slurmdbd could not be upgraded and was rolled back")

    def upgraded(run: OpenRun, plans: list[Plan], jobs: object, batches: int) -> None:
        upgrade._do_and_record(run, plans[0], upgrade.steps(run.plan, plans[0])[0])

    monkeypatch.setattr(upgrade, "_do", stuck)
    monkeypatch.setattr(upgrade, "upgrade", upgraded)
    result = upgrade.run_kept(run, options("slurmdbd=26.05"))
    assert [(check.id, check.outcome, check.message) for check in result.checks] == [
        ("upgrade::slurmdbd", "failed", "slurmdbd could not be upgraded and was rolled back")
    ]
    assert (result.verdict, result.problem, result.exit_code()) == ("failed", "", 1)
    assert result.command.endswith(
        "--to on-prem=24.11:24.11 --to aws=24.11:24.11 --to slurmdbd=24.11:26.05"
    )


def test_upgrade_that_could_not_begin_is_reported_as_unknown(
    run: OpenRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise WaitTimeout("accounting knows it: timed out")

    monkeypatch.setattr(upgrade, "upgrade", refuse)
    result = upgrade.run_kept(run, options("26.05"))
    assert (result.verdict, result.problem, result.checks) == (
        "unknown",
        "accounting knows it: timed out",
        [],
    )


def test_upgrade_begins_even_if_few_jobs_are_submitted() -> None:
    users = quiet_users()
    jobs = [PlannedJob(number, 0, "single", "alice", "true") for number in range(3)]
    begun: list[Future[None]] = []

    def begin() -> Future[None]:
        begun.append(Future())
        begun[0].set_result(None)
        return begun[0]

    upgrade.submit_meanwhile(users, jobs, begin)  # type: ignore[arg-type]
    assert len(begun) == 1


def test_signal_while_the_upgrade_starts_interrupts_once_it_has_started() -> None:
    users = quiet_users()
    begun: list[Future[None]] = []

    def begin() -> Future[None]:
        signal.raise_signal(signal.SIGINT)
        begun.append(Future())
        return begun[0]

    with pytest.raises(KeyboardInterrupt):
        upgrade.submit_meanwhile(users, [], begin)  # type: ignore[arg-type]
    assert len(begun) == 1


def test_signal_while_a_job_is_submitted_interrupts_once_its_answer_is_awaited(
    run: OpenRun,
) -> None:
    class Interrupted(ThreadPoolExecutor):
        def submit(self, *_: object) -> Future[int | None]:  # type: ignore[override]
            signal.raise_signal(signal.SIGINT)
            return Future()

    users = execution.Users(run, {}, [], "token", Interrupted(1))
    with pytest.raises(KeyboardInterrupt):
        users.submit(PlannedJob(0, 0, "aws", "alice", "true"))
    assert [*users.answers] == [0]
