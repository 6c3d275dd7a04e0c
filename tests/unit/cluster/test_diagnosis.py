from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from fakes import SCENARIO, FakeProvider
from harness import plan, scenario
from harness.cluster import diagnosis
from harness.errors import WaitTimeout
from harness.ssh import Result, Ssh

NOW = datetime.now(UTC)
NODE = "NodeName=single State=IDLE+DRAIN Reason=no fan [root@2026-11-01]"
RESERVATION = "ReservationName=theirs StartTime=0 EndTime=60 Nodes=single Users=bob"


class Controller(Ssh):
    """A host whose Slurm commands print what the test says; any other command times out."""

    def __init__(self, **answers: str) -> None:
        self.answers = {"show config": ""} | answers

    def run(self, host: str, command: Any, **_: Any) -> Result:
        words = " ".join(command)
        for word, answer in self.answers.items():
            if word in words:
                return Result(0, answer, "")
        raise WaitTimeout(f"{host}: {words} timed out after 10 s")


def seen(settings: Sequence[str] = (), **answers: str) -> list[str]:
    single_node = scenario.load(SCENARIO, settings=settings)
    single = plan.make_plan("single-node", single_node, FakeProvider.capabilities)
    return diagnosis.of_failure(
        Controller(**answers), single, (NOW - timedelta(seconds=30)).timestamp()
    )


def logged(seconds_ago: float, text: str) -> str:
    return f"[{NOW - timedelta(seconds=seconds_ago):%Y-%m-%dT%H:%M:%S.000}] {text}\n"


def test_what_keeps_jobs_from_running_is_shown() -> None:
    jobs = (
        "7|PENDING||alice|Reserved|7||j\n8|RUNNING|single|alice|None|8||j\n"
        "6|COMPLETED|single|alice|None|6||j\n"
    )
    report = seen(squeue=jobs, node=NODE, reservation=RESERVATION, tail="+0000\n")
    assert report == [
        "single: job 7 of alice PENDING (Reserved)",
        "single: node single IDLE+DRAIN (no fan [root@2026-11-01])",
        "single: reservation theirs of single for bob from 1970-01-01 00:00 UTC to 1970-01-01"
        " 00:01 UTC",
    ]


def test_option_that_is_different_in_memory_comes_first_and_once() -> None:
    config = "Configuration data as of now\nKillWait = 9 sec\nSuspendExcNodes = c1\n"
    kill, suspend = (
        "single: KillWait is 9 sec, slurm.conf leaves it at 30",
        "single: SuspendExcNodes is c1, slurm.conf leaves it at none",
    )
    lines = seen(squeue="", node="", reservation="", tail="+0000\n", **{"show config": config})
    assert {*lines} == {kill, suspend}
    message = f"timed out\n{kill}"
    assert diagnosis.with_causes_first(message, lines) == f"{suspend}\n{message}"


def test_errors_that_daemons_logged_meanwhile_are_shown_once() -> None:
    lines = (
        logged(300, "error: old")
        + logged(9, "error: no memory for job 7")
        + logged(8, "error: no memory for job 8")
    )
    report = seen(
        squeue="",
        node="",
        reservation="",
        tail=f"+0000\n{lines}{logged(-86400, 'error: tomorrow')}",
    )
    assert report == ["single logged: error: no memory for job 8"]


def test_what_a_host_printed_before_it_hung_is_shown() -> None:
    class Hangs(Controller):
        def run(self, host: str, command: Any, **options: Any) -> Result:
            if "scontrol ping" in " ".join(command):
                raise WaitTimeout(
                    "...", printed="+0000\nnot active: munge is stopped by a signal\n"
                )
            return super().run(host, command, **options)

    single = plan.make_plan("single-node", scenario.load(SCENARIO), FakeProvider.capabilities)
    report = diagnosis.of_failure(Hangs(squeue="", node="", reservation=""), single, 0)
    causes = ["single: munge is stopped by a signal"]
    assert report == [*causes, "single: no answer in 45 s"]
    assert diagnosis.with_causes_first("timed out", report).splitlines()[:2] == [
        *causes,
        "timed out",
    ]


def test_statement_that_the_database_refused_is_shown_before_its_consequences() -> None:
    refused = "error: mysql_query failed: 1290 The MariaDB server is running with --read-only"
    later = [f"error: Couldn't modify {what}" for what in ("cluster", "job", "step", "event")]
    lines = logged(9, refused) + "".join(logged(8, line) for line in later)
    report = seen(squeue="", node="", reservation="", tail=f"+0000\n{lines}")
    assert report == [f"single logged: {line}" for line in [*later[-2:], refused]]
    message = diagnosis.with_causes_first("timed out", report)
    assert message.splitlines()[:2] == [f"single logged: {refused}", "timed out"]


def test_change_of_a_job_is_shown_with_who_made_it_unless_it_was_a_user() -> None:
    changed = "_slurm_rpc_update_job: complete JobId=7 uid=0 usec="
    by_user = logged(8, "_slurm_rpc_update_job: complete JobId=8 uid=2001 usec=5")
    lines = logged(9, f"{changed}5") + logged(8, f"{changed}6") + by_user
    lines += logged(7, "_slurm_rpc_kill_job: REQUEST_KILL_JOB JobId=9 uid 0")
    lines += logged(7, "_slurm_rpc_kill_job: REQUEST_KILL_JOB JobId=10 uid 2001")
    report = seen(squeue="", node="", reservation="", tail=f"+0000\n{lines}")
    assert report == [
        "single: uid 0 changed job 7 (scontrol update or hold), 2 times",
        "single: uid 0 cancelled job 9 (scancel)",
    ]


def test_node_that_does_not_reach_slurmctld_is_shown() -> None:
    for said, shown in (
        ("Slurmctld(primary) at ctl is DOWN", "Slurmctld(primary) at ctl is DOWN"),
        ("", "no answer in 8 s"),
    ):
        report = seen(squeue="", node="", reservation="", tail=f"+0000\nscontrol ping: {said}\n")
        assert report == [f"single cannot reach slurmctld: {shown}"]


def test_silent_node_whose_slurmd_the_controller_does_not_reach_comes_first() -> None:
    class Unreached(Controller):
        def run(self, host: str, command: Any, **more: Any) -> Result:
            if "/dev/tcp/192.0.2.7/6818" in command[-1]:
                return Result(124, "", "")
            return super().run(host, command, **more)

    node = "NodeName=single NodeAddr=192.0.2.7 State=IDLE+NOT_RESPONDING"
    controller = Unreached(squeue="", node=node, reservation="", tail="+0000\n")
    single = plan.make_plan("single-node", scenario.load(SCENARIO), FakeProvider.capabilities)
    report = diagnosis.of_failure(controller, single, 0)
    unreached = "single cannot reach slurmd of single at 192.0.2.7:6818: no answer in 5 s"
    state = "single: node single IDLE+NOT_RESPONDING ()"
    assert report == [unreached, state]
    message = diagnosis.with_causes_first("timed out", report)
    assert message.splitlines() == [unreached, "timed out", state]


def test_daemon_that_has_ended_is_shown_with_how_it_ended() -> None:
    report = seen(
        squeue="",
        node="",
        reservation="",
        tail="+0000\nnot active: slurmctld is failed (core-dump)\n",
    )
    assert report == ["single: slurmctld is failed (core-dump)"]


def test_daemon_that_systemd_restarted_is_shown_once() -> None:
    line = "slurmrestd.service: Main process exited, code=killed, status=9/KILL"
    report = seen(squeue="", node="", reservation="", tail=f"+0000\n{line}\n{line}\n")
    assert report == [f"single: {line}"]


def test_unreachable_cluster_is_shown_as_such() -> None:
    report = seen(tail="+0000\n")
    assert len(report) == 1
    assert report[0].endswith("timed out after 10 s")


def test_refused_job_leads_to_the_options_for_all_jobs_of_the_checks(tmp_path: Path) -> None:
    path = tmp_path / "s.yml"
    path.write_text(
        "clusters: {a: {controller: c, nodes: [{name: n}], options: {JobSubmitPlugins: lua}}}"
    )
    strict = plan.make_plan("s", scenario.load(path), FakeProvider.capabilities)
    refused = "sbatch: error: Batch job submission failed: Unspecified error"
    assert diagnosis.of_refusal(strict, "no such file") == []
    (hint,) = diagnosis.of_refusal(strict, refused)
    assert hint.startswith("hint: with JobSubmitPlugins=lua")
    assert "checks: {submit: [--time=5]}" in hint
    single = plan.make_plan("single-node", scenario.load(SCENARIO), FakeProvider.capabilities)
    assert diagnosis.of_refusal(single, refused) == []


def test_daemons_that_do_not_run_locks_and_programs_come_before_a_command_that_failed() -> None:
    lines = [
        "on-prem: job 7 of alice PENDING (Resources)",
        "cloud: munge is inactive (success)",
        "cloud: slurmctld is failed (exit-code): fatal: auth/jwt: key file is insecure",
        "onprem: slurmd is stopped by a signal",
        "db: MariaDB takes 9 s for a statement of slurm, Waiting for backup lock: insert",
        "onprem: epilog_slurmd of job 7 has been running for 90 s",
        "cloud logged: error: it is late",
        "db: MariaDB takes 9 s for a statement of root, User sleep: SELECT SLEEP(90)",
    ]
    assert diagnosis.with_causes_first("squeue failed", lines).splitlines() == [
        *lines[1:6],
        "squeue failed",
        lines[0],
        *lines[6:],
    ]


def test_reservation_of_the_scenario_that_keeps_jobs_waiting_comes_with_a_hint() -> None:
    settings = ["clusters.single.reservations={theirs: {StartTime: now, Nodes: ALL, Users: bob}}"]
    queue = "7|PENDING|||Resources|7|slurm-harness|sh"
    hint = "hint: if no node is left for the checks, `checks: {submit: [--reservation=theirs]}`"
    answers = {"node": "", "reservation": RESERVATION, "tail": "+0000\n"}
    assert [line for line in seen(settings, squeue=queue, **answers) if hint in line]
    assert not [line for line in seen(squeue=queue, **answers) if hint in line]
    assert not [line for line in seen(settings, squeue="", **answers) if hint in line]


def test_programs_that_do_not_end_are_shown_once() -> None:
    line = "program: epilog_slurmctld of job 7 has been running for 90 s\n"
    report = seen(squeue="", node="", reservation="", tail=f"+0000\n{line}{line}")
    assert report == ["single: epilog_slurmctld of job 7 has been running for 90 s"]
