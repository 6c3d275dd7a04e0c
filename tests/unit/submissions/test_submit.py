"""Asking a slurmctld that is imitated: it refuses, counts and considers jobs."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from fakes import SCENARIO
from harness import interrupts, scenario
from harness.capabilities import Capabilities
from harness.errors import CannotVerify
from harness.plan import make_plan
from harness.ssh import Result, Ssh
from harness.submissions import submit
from harness.submissions.answers import Answer
from harness.submissions.table import Row

PLAN = make_plan("single-node", scenario.load(SCENARIO), Capabilities(False, False))
RESERVED = "ReqNodeNotAvail,_Reserved_for_maintenance"


class FakeSlurm(Ssh):
    """A controller whose users may have `most` jobs; its scheduler runs when a reservation changes.

    The name of a job says what becomes of it: "refuse", "limited", "federated", which another
    cluster considers at first, "left over", which the first cycles do not consider, or "sociable",
    whose QOS depends on other jobs.
    """

    def __init__(self, most: int = 100, config: str = "") -> None:
        super().__init__(Path("ssh_config"), Path("sockets"))
        self.most, self.config = most, config
        self.jobs: dict[int, dict[str, str]] = {}
        self.reserved = self.other_job = False
        self.cycles = self.submitted = self.most_seen = 0
        self.error = "Batch job submission failed: Invalid qos specification"
        self.interrupt_at = 0
        # Whether an update does not wait for a cycle, and the cycle before is counted only now.
        self.busy = False
        self.asked = 0

    def run(
        self,
        host: str,
        command: Sequence[str],
        *,
        user: str | None = None,
        stdin: str = "",
        check: bool = True,
        timeout: float = 60,
    ) -> Result:
        match command:
            case "sbatch", "--parsable", *options:
                assert stdin == "#!/bin/sh\n"
                return self._sbatch(str(user), options)
            case "scancel", *ids:
                for job_id in ids:
                    del self.jobs[int(job_id)]
            case "squeue", *_:
                other = "7|PENDING||bob|None|7||x\n" if self.other_job else ""
                return Result(0, other, "")
            case ("sdiag",):
                if self.busy:
                    self.asked += 1
                    if self.asked % 3 == 2:
                        self._count_cycle()
                    if self.asked % 3 == 0:
                        self._consider_jobs()
                return Result(0, f"Main schedule statistics\n\tTotal cycles: {self.cycles}\n", "")
            case "scontrol", "create", *_:
                assert not self.reserved
                self.reserved = True
            case "scontrol", "update", *_:
                if not self.busy:
                    self._consider_jobs()
                    self._count_cycle()
            case "scontrol", "delete", *_:
                assert not self.jobs, "these would start"
                self.reserved = False
            case "scontrol", "show", "config":
                return Result(0, self.config, "")
            case "scontrol", *_, "job":
                return Result(0, "".join(map(self._shown, self.jobs)), "")
            case "scontrol", *_, job_id:
                return Result(0, self._shown(int(job_id)), "")
            case _:
                raise AssertionError(command)
        return Result(0, "", "")

    def _sbatch(self, user: str, options: Sequence[str]) -> Result:
        assert self.reserved
        self.submitted += 1
        if self.submitted == self.interrupt_at:
            signal.raise_signal(signal.SIGINT)
        full = len([job for job in self.jobs.values() if job["user"] == user]) >= self.most
        if "--job-name=refuse" in options or full:
            return Result(1, "", f"sbatch: error: {self.error}\n")
        name = next((option[11:] for option in options if option.startswith("--job-name=")), "x")
        qos = "shared" if name == "sociable" and self.jobs else "normal"
        self.jobs[self.submitted] = {"user": user, "name": name, "qos": qos, "reason": RESERVED}
        self.most_seen = max(self.most_seen, len(self.jobs))
        return Result(0, f"{self.submitted}\n", "sbatch: be nice\n" if name == "noted" else "")

    def _count_cycle(self) -> None:
        self.cycles += 1

    def _consider_jobs(self) -> None:
        for job in self.jobs.values():
            if job["name"] == "limited":
                job["reason"] = "AssocGrpCpuLimit"
            if job["name"] == "left over":
                job["reason"] = "None" if self.cycles < 5 else RESERVED
            if job["name"] == "federated":
                job["reason"] = "FedJobLock" if self.cycles < 5 else RESERVED

    def _shown(self, job_id: int) -> str:
        job = self.jobs[job_id]
        return (
            f"JobId={job_id} JobState=PENDING Reason={job['reason']} QOS={job['qos']} "
            f"Priority=5 TimeLimit=00:05:00\n"
        )


def row(number: int, name: str, *options: str, user: str = "alice") -> Row:
    label = f"{number} {name}"
    return Row(f"t.yml:{number}", user, "single", label, (f"--job-name={name}", *options))


def ask(ssh: FakeSlurm, *names: str) -> list[Answer]:
    return submit.submit_rows(ssh, PLAN, [row(number, name) for number, name in enumerate(names)])


@pytest.fixture
def signals() -> Iterator[None]:
    with interrupts.raised():
        yield


def test_answers_say_what_becomes_of_each_row_in_order() -> None:
    slurm = FakeSlurm()
    rows = [row(1, "x", "--time=9"), row(2, "refuse"), row(3, "limited"), row(4, "noted")]
    found = submit.submit_rows(slurm, PLAN, rows)
    assert [(answer.outcome, answer.reason, answer.message) for answer in found] == [
        ("starts", "", ""),
        ("refused", "Invalid qos specification", ""),
        ("waits", "AssocGrpCpuLimit", ""),
        ("starts", "", "be nice"),
    ]
    assert found[0].held == {"qos": "normal", "time": "00:05:00", "priority": "5"}
    assert found[0].changed == ("time: 9 -> 00:05:00",)
    assert (slurm.jobs, slurm.reserved) == ({}, False)


@pytest.mark.parametrize("name", ["federated", "left over"])
def test_job_that_is_not_considered_yet_is_looked_at_again(name: str) -> None:
    (answer,) = ask(FakeSlurm(), name)
    assert (answer.outcome, answer.reason) == ("starts", "")


def test_cycle_that_began_before_the_last_job_does_not_count() -> None:
    slurm = FakeSlurm()
    slurm.busy = True
    (answer,) = ask(slurm, "limited")
    assert (answer.outcome, answer.reason) == ("waits", "AssocGrpCpuLimit")


def test_limit_of_submitted_jobs_does_not_let_rows_affect_each_other() -> None:
    slurm = FakeSlurm(most=2)
    found = ask(slurm, *["limited"] * 7)
    assert {answer.reason for answer in found} == {"AssocGrpCpuLimit"}
    assert slurm.most_seen == 2


def test_row_that_other_rows_affect_is_asked_alone() -> None:
    slurm = FakeSlurm()
    found = ask(slurm, "x", "sociable", "sociable")
    assert {answer.held["qos"] for answer in found} == {"normal"}
    assert slurm.submitted == 2 * 3 + 2


def test_no_more_jobs_are_pending_than_the_scheduler_considers() -> None:
    slurm = FakeSlurm(config="SchedulerParameters = partition_job_depth=0,default_queue_depth=3\n")
    ask(slurm, *["x"] * 8)
    assert slurm.most_seen == 3


def test_priority_without_meaning_is_left_out() -> None:
    (answer,) = ask(FakeSlurm(config="PriorityType            = priority/basic\n"), "x")
    assert "priority" not in answer.held


def test_cluster_with_jobs_is_not_asked() -> None:
    slurm = FakeSlurm()
    slurm.other_job = True
    with pytest.raises(CannotVerify, match=r"single: 1 active jobs .*: 7 PENDING of bob"):
        ask(slurm, "x")
    assert not slurm.reserved


def test_slurmctld_that_does_not_answer_is_no_refusal() -> None:
    slurm = FakeSlurm()
    slurm.error = "Unable to contact slurm controller (connect failure)"
    with pytest.raises(CannotVerify, match=re.escape("t.yml:1: slurmctld of single does not")):
        ask(slurm, "x", "refuse")
    assert (slurm.jobs, slurm.reserved) == ({}, False)


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize("at", [1, 3, 5])  # alone, and of those pending together the first and last
def test_interrupt_leaves_no_job_and_no_reservation(at: int) -> None:
    slurm = FakeSlurm()
    slurm.interrupt_at = at
    with pytest.raises(KeyboardInterrupt):
        ask(slurm, "x", "limited", "refuse")
    assert slurm.submitted == at
    assert (slurm.jobs, slurm.reserved) == ({}, False)
