from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes import FakeProvider
from harness import faults, lifecycle
from harness.errors import CannotVerify, ClusterError, CommandFailed, EngineError, UsageError
from harness.faults import Fault, kill_between_saves
from harness.open_run import OpenRun
from harness.providers import Drop
from harness.rehearsal import execution
from harness.shipped_files import SCENARIOS
from harness.ssh import Result, Ssh

FATAL = "fatal: No job state file (/var/lib/slurm/slurmctld/job_state) to recover"


@pytest.fixture
def provider() -> FakeProvider:
    return FakeProvider()


@pytest.fixture
def run(tmp_path: Path, provider: FakeProvider) -> OpenRun:
    """A federation whose engine answers, but not its hosts."""
    opened = lifecycle.create(SCENARIOS / "federation.yml", provider, tmp_path, lambda _: None)
    provider.running[opened.directory.id] = [host.name for host in opened.plan.hosts]
    return opened


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Fault("burn", "aws1"), 'unknown fault "burn"\nhint: known: kill-daemon, stop-daemon'),
        (Fault("stop-daemon", "aws9", "slurmd"), "no host aws9\nhint: known: accounting, "),
        (
            Fault("stop-daemon", "aws1", "slurmctld"),
            "aws1 does not run slurmctld\nhint: it runs munge, slurmd",
        ),
        (Fault("stop-daemon", "aws1"), "DAEMON is missing\nhint: usage: stop-daemon HOST DAEMON"),
        (Fault("kill-host", "aws1", "slurmd"), "unexpected argument\nhint: usage: kill-host HOST"),
        (Fault("kill-host", "aws"), "no host aws"),
        (Fault("cut", "aws", "mars"), "no host or site mars"),
        (Fault("block-port", "aws1", "ssh"), '"ssh" is not a number'),
        (Fault("block-port", "aws1", "-5"), '"-5" is not a number'),
        (Fault("block-port", "aws1", "70000"), "70000 is not a port: the last one is 65535"),
        (Fault("step-clock", "aws1", "--5"), '"--5" is not a number'),
        (Fault("exhaust-quota", "aws1", "zoe"), "no user zoe\nhint: known: alice"),
    ],
    ids=str,
)
def test_fault_without_a_target_is_refused_and_nothing_is_done(
    run: OpenRun, fault: Fault, message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        faults.inject(run, fault)
    assert message in str(caught.value)
    assert faults.active(run) == []


def test_killed_daemon_is_dead_for_systemd_too_before_it_can_be_started(tmp_path: Path) -> None:
    """`systemctl start` does nothing as long as systemd considers the unit active."""
    with subprocess.Popen(["sleep", "300"]) as daemon:
        systemctl = tmp_path / "systemctl"
        asked = tmp_path / "asked"
        systemctl.write_text(
            f"#!/bin/sh\necho >> {asked}\n[ $(wc -l < {asked}) -gt 3 ] && echo 0 ||"
            f" echo {daemon.pid}\n"
        )
        systemctl.chmod(0o755)
        script = faults.KINDS["kill-daemon"].inject
        assert isinstance(script, str)
        path = f"{tmp_path}:{os.environ['PATH']}"
        subprocess.run(
            ["sh", "-ec", script, "sh", "slurmctld"], env={"PATH": path}, check=True, timeout=60
        )
        assert daemon.wait(timeout=60) == -signal.SIGKILL
    assert len(asked.read_text()) == 4


def test_dump_of_a_lost_database_stays_if_it_cannot_be_imported(tmp_path: Path) -> None:
    for name, script in {"systemctl": "exit 0", "mariadb": '[ "$1" = -e ]'}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "aside").mkdir()
    (tmp_path / "aside" / "dump.sql").touch()
    heal = faults.KINDS["lose-database"].heal
    script = f'set -eu; aside={tmp_path}/aside\n{heal}\nrm --recursive "$aside"'
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(["sh", "-c", script], env={"PATH": path}, check=False, timeout=60)
    assert done.returncode != 0
    assert (tmp_path / "aside" / "dump.sql").exists()


def test_host_that_was_paused_drops_what_the_other_faults_require(
    run: OpenRun, provider: FakeProvider
) -> None:
    faults.inject(run, Fault("block-port", "aws1", "6818"))
    faults.inject(run, Fault("pause-host", "aws1"))
    provider.dropped.clear()
    faults.heal(run, Fault("pause-host", "aws1"))
    assert provider.dropped == {"aws1": [Drop(port=6818)]}


def test_fault_is_healed_even_if_another_cannot_be(tmp_path: Path) -> None:
    provider = FakeProvider("unpause", EngineError("gone"))
    run = lifecycle.create(SCENARIOS / "federation.yml", provider, tmp_path, lambda _: None)
    provider.running[run.directory.id] = [host.name for host in run.plan.hosts]
    paused = Fault("pause-host", "aws1")
    with (
        pytest.raises(EngineError),
        faults.injected(run, Fault("block-port", "aws2", "6818"), paused),
    ):
        assert provider.dropped["aws2"]
    assert faults.active(run) == [paused]
    assert not provider.dropped["aws2"]


def test_cut_between_sites_blocks_both_directions_and_is_healed_completely(
    run: OpenRun, provider: FakeProvider
) -> None:
    aws = [host.name for host in run.plan.hosts if host.site == "aws"]
    with faults.injected(run, Fault("cut", "on-prem", "aws"), Fault("block-port", "aws1", "6818")):
        assert {drop.source for drop in provider.dropped["accounting"]} == {*aws}
        assert provider.dropped["aws1"][-1] == Drop(port=6818)
        assert {drop.source for drop in provider.dropped["aws1"][:-1]}.isdisjoint(aws)
    assert {*map(tuple, provider.dropped.values())} == {()}
    assert faults.active(run) == []


def test_one_way_cut_is_noticed_by_the_side_that_receives_nothing(
    run: OpenRun, provider: FakeProvider
) -> None:
    faults.inject(run, Fault("cut-one-way", "aws-ctl", "accounting"))
    assert {host: drops for host, drops in provider.dropped.items() if drops} == {
        "accounting": [Drop(source="aws-ctl")]
    }


def test_fault_is_healed_by_the_next_session(run: OpenRun, provider: FakeProvider) -> None:
    faults.inject(run, Fault("pause-host", "aws1"))
    faults.inject(run, Fault("cut", "aws1", "aws2"))
    with pytest.raises(UsageError, match="already injected"):
        faults.inject(run, Fault("pause-host", "aws1"))
    assert faults.heal_all(run) == []
    assert faults.active(run) == []
    actions = [
        (event["action"], event["fault"])
        for event in run.directory.events()
        if event["kind"] == "fault"
    ]
    assert actions == [
        ("inject", "pause-host aws1"),
        ("injected", "pause-host aws1"),
        ("inject", "cut aws1 aws2"),
        ("injected", "cut aws1 aws2"),
        ("heal", "cut aws1 aws2"),
        ("heal", "pause-host aws1"),
    ]


def test_fault_that_could_not_be_healed_stays_recorded(tmp_path: Path) -> None:
    provider = FakeProvider("unpause", EngineError("gone"))
    run = lifecycle.create(SCENARIOS / "single-node.yml", provider, tmp_path, lambda _: None)
    faults.inject(run, Fault("pause-host", "single"))
    assert faults.heal_all(run) == ["pause-host single: gone"]
    assert faults.active(run) == [Fault("pause-host", "single")]


@pytest.mark.parametrize("error", [EngineError("unable to freeze"), KeyboardInterrupt()])
def test_fault_that_could_not_be_injected_is_undone_and_not_active(
    error: BaseException, tmp_path: Path
) -> None:
    provider = FakeProvider("pause", error)
    run = lifecycle.create(SCENARIOS / "single-node.yml", provider, tmp_path, lambda _: None)
    fault = Fault("pause-host", "single")
    expected = CannotVerify if isinstance(error, EngineError) else KeyboardInterrupt
    with pytest.raises(expected) as caught, faults.injected(run, fault):
        pytest.fail("it is not injected")
    if expected is CannotVerify:
        assert (
            str(caught.value)
            == "pause-host single could not be injected: unable to freeze\nit was undone"
        )
    assert faults.active(run) == faults.noted_in(run.directory) == []
    actions = [event["action"] for event in run.directory.events() if event["kind"] == "fault"]
    assert actions == ["inject", "heal"]


def test_fault_that_could_neither_be_injected_nor_undone_can_still_be_healed(
    tmp_path: Path,
) -> None:
    class Gone(FakeProvider):
        def pause(self, run_id: str, host: str) -> None:
            raise EngineError("no answer")

    provider = Gone("unpause", EngineError("gone"))
    run = lifecycle.create(SCENARIOS / "single-node.yml", provider, tmp_path, lambda _: None)
    fault = Fault("pause-host", "single")
    with pytest.raises(
        CannotVerify, match=r"may be active in part, because undoing it failed: gone"
    ):
        faults.inject(run, fault)
    assert (faults.active(run), faults.half_injected(run)) == ([], [fault])
    with pytest.raises(UsageError, match="already injected"):
        faults.inject(run, fault)
    provider.works_again()
    assert faults.heal_all(run) == []
    assert faults.noted_in(run.directory) == []


def test_fault_is_not_active_while_it_is_being_injected(tmp_path: Path) -> None:
    seen = []

    class Slow(FakeProvider):
        def pause(self, run_id: str, host: str) -> None:
            seen.append((faults.active(run), faults.half_injected(run)))

    run = lifecycle.create(SCENARIOS / "single-node.yml", Slow(), tmp_path, lambda _: None)
    fault = Fault("pause-host", "single")
    faults.inject(run, fault)
    assert seen == [([], [fault])]
    assert (faults.active(run), faults.half_injected(run)) == ([fault], [])


class FakeHosts(Ssh):
    """Hosts whose slurmctld is killed, stops between saves at the third attempt and stays down.

    `heard` are the scripts that they ran, one word each; `starts_at_once`: systemctl start finds
    the daemon running.
    """

    def __init__(self, *, starts_at_once: bool = False, refuses: bool = False) -> None:
        super().__init__(Path("/dev/null"), Path("/dev/null"))
        self.heard: list[str] = []
        self._starts_at_once, self._refuses = starts_at_once, refuses

    def run(self, host: str, command: Sequence[str], **options: Any) -> Result:
        text = " ".join(command)
        if "is-failed" in text:
            return Result(0, "failed\n" if host == "onprem-ctl" else "active\n", "")
        if "tail" in command[0]:
            return Result(
                0,
                f"[2026-11-22T23:40:02.101] error: other\n[2026-11-22T23:40:02.142] {FATAL}\n",
                "",
            )
        for word in ("kill -STOP", "kill -KILL", "signal=CONT", "systemctl start"):
            if word in text:
                self.heard.append(word.split()[-1])
        if "kill -STOP" in text:
            return Result(0 if self.heard.count("-STOP") > 2 else 1, "", "")
        failed = ("systemctl start" in text and not self._starts_at_once) or (
            "-KILL" in text and self._refuses
        )
        if failed and options.get("check", True):
            raise CommandFailed("n1", text, 1, "", "Job for slurmctld.service failed.")
        return Result(0, "", "")


KILLED = Fault("kill-daemon", "onprem-ctl", "slurmctld")


def test_daemon_that_does_not_restart_is_named_with_its_last_fatal_error(run: OpenRun) -> None:
    run = replace(run, ssh=FakeHosts())
    faults.inject(run, KILLED)
    with pytest.raises(ClusterError) as caught:
        faults.heal(run, KILLED)
    assert str(caught.value) == f"slurmctld on onprem-ctl failed: {FATAL}"
    assert faults.active(run) == [KILLED]


def test_daemon_that_fails_after_systemd_has_started_it_is_named_unless_a_fault_strikes_its_host(
    run: OpenRun,
) -> None:
    run = replace(run, ssh=FakeHosts(starts_at_once=True))
    faults.inject(run, KILLED)
    execution.check_daemons(run)
    faults.heal(run, KILLED)
    with pytest.raises(
        ClusterError, match="slurmctld on onprem-ctl failed: fatal: No job state file"
    ):
        execution.check_daemons(run)


def test_slurmctld_is_killed_only_once_it_is_stopped_and_does_not_save(run: OpenRun) -> None:
    hosts = FakeHosts()
    faults.inject_between_saves(replace(run, ssh=hosts), KILLED)
    assert hosts.heard == ["-STOP", "-STOP", "-STOP", "-KILL"]


def test_slurmctld_that_could_not_be_killed_continues(run: OpenRun) -> None:
    hosts = FakeHosts(refuses=True)
    with pytest.raises(CannotVerify, match="could not be injected"):
        faults.inject_between_saves(replace(run, ssh=hosts), KILLED)
    assert hosts.heard[-1] == "signal=CONT"


@pytest.mark.parametrize(
    ("files", "stops"), [([], True), (["job_state"], True), (["job_state.new"], False)]
)
def test_process_is_stopped_only_if_no_state_file_is_half_written(
    tmp_path: Path, files: list[str], stops: bool
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "state").mkdir()
    for name in files:
        (tmp_path / "state" / name).touch()
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            fake = tmp_path / "bin" / "systemctl"
            fake.write_text(f"#!/bin/sh\necho {process.pid}\n")
            fake.chmod(0o755)
            completed = subprocess.run(
                ["sh", "-c", kill_between_saves.STOP_SCRIPT, "stop", str(tmp_path / "state")],
                env={"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"},
                check=False,
            )
            state = Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2].split()[0]
            assert (completed.returncode == 0, state == "T") == (stops, stops)
        finally:
            process.kill()
