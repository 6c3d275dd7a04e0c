"""What tests on clusters hold in their hands, with clusters that are told what to answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fakes import SCENARIO, FakeProvider
from harness import evidence, scenario, testing
from harness.errors import CommandFailed, UsageError, WaitTimeout
from harness.plan import Plan, make_plan
from harness.ssh import Result, Ssh
from harness.testing import Slurm

FEDERATION = SCENARIO.parent / "federation.yml"
FEDERATED = (1 << 26) + 7


class FakeClusters(Ssh):
    """Controllers that know jobs: {host: {job id: [states, each seen once, the last for ever]}}; scancel ends them."""

    def __init__(self, jobs: dict[str, dict[int, list[str]]]) -> None:
        super().__init__(Path("ssh_config"), Path("sockets"))
        self.jobs = jobs
        self.commands: list[tuple[str, str | None, str]] = []
        self.answers: dict[str, str] = {}

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
        self.commands.append((host, user, " ".join(command)))
        there = self.jobs.setdefault(host, {})
        if command[0] == "squeue":
            wanted = [int(word.partition("=")[2]) for word in command if word.startswith("--jobs=")]
            shown = {
                job_id: states for job_id, states in there.items() if not wanted or job_id // 10 == wanted[0] // 10
            }
            told = [f"{one}|{states[0]}|n1|sbatch|alice|None|{one}" for one, states in shown.items()]
            for states in shown.values():
                del states[: len(states) > 1]
            return Result(0, "\n".join(told), "")
        if command[0] == "scancel":
            there.update({int(word): ["CANCELLED"] for word in command[1:]})
            return Result(0, "", "")
        for beginning, answer in self.answers.items():
            if " ".join(command).startswith(beginning):
                return Result(0, answer, "")
        raise CommandFailed(" ".join(command), 1, "", "no such thing")


def plan_of(path: Path) -> Plan:
    return make_plan(path.stem, scenario.load(path), FakeProvider.offers)


def user_of(jobs: dict[str, dict[int, list[str]]], path: Path = SCENARIO) -> tuple[FakeClusters, Slurm]:
    clusters = FakeClusters(jobs)
    return clusters, Slurm.of(clusters, plan_of(path))


def test_first_user_works_at_the_first_cluster_and_others_are_to_be_had() -> None:
    _, slurm = user_of({}, FEDERATION)
    assert (slurm.user, slurm.cluster, slurm.controller) == ("alice", "on-prem", "onprem-ctl")
    assert (slurm.as_user("bob").user, slurm.at("aws").controller) == ("bob", "aws-ctl")
    with pytest.raises(UsageError, match="users are alice, bob"):
        slurm.as_user("carol")
    with pytest.raises(UsageError, match="clusters are on-prem, aws"):
        slurm.at("moon")


def test_script_without_an_interpreter_is_for_sh_and_the_job_is_on_the_cluster_that_sbatch_names() -> None:
    clusters, slurm = user_of({}, FEDERATION)
    clusters.answers["sbatch --parsable"] = "7;aws\n"
    job = slurm.submit("hostname", "--clusters=aws")
    assert (job.job_id, job.cluster) == (7, "aws")
    assert clusters.commands[-1] == ("onprem-ctl", "alice", "sbatch --parsable --clusters=aws")


def test_wait_returns_the_job_in_the_first_state_that_is_wanted() -> None:
    clusters, slurm = user_of({})
    clusters.jobs["single"][7] = ["PENDING", "RUNNING", "COMPLETED"]
    assert slurm.submission(7).wait("RUNNING", "COMPLETED").state == "RUNNING"
    assert slurm.submission(7).wait().state == "COMPLETED"


def test_wait_for_what_cannot_be_any_more_tells_why() -> None:
    _, slurm = user_of({"single": {7: ["FAILED"]}})
    with pytest.raises(WaitTimeout, match=r"job 7 RUNNING: hopeless .* FAILED \(None\) on single"):
        slurm.submission(7).wait("RUNNING")
    with pytest.raises(WaitTimeout, match="no such job"):
        slurm.submission(17).wait()


def test_controller_that_is_away_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    clusters, slurm = user_of({"single": {7: ["COMPLETED"]}})
    answers = iter([CommandFailed("squeue", 1, "", "Unable to contact slurm controller")])
    run = clusters.run

    def away_once(host: str, command: Sequence[str], **options: Any) -> Result:
        for error in answers:
            raise error
        return run(host, command, **options)

    monkeypatch.setattr(clusters, "run", away_once)
    assert slurm.submission(7).wait().state == "COMPLETED"


def test_federated_job_is_followed_to_the_cluster_that_runs_it() -> None:
    jobs = {"onprem-ctl": {FEDERATED: ["PENDING", "REVOKED"]}, "aws-ctl": {FEDERATED: ["PENDING", "COMPLETED"]}}
    _, slurm = user_of(jobs, FEDERATION)
    job = slurm.submission(FEDERATED)
    assert job.wait().state == "COMPLETED"
    assert job.ran_on() == "aws"


def test_array_is_no_single_job() -> None:
    _, slurm = user_of({"single": {70: ["COMPLETED"], 71: ["RUNNING"]}})
    with pytest.raises(UsageError, match=r"job 70 is an array of several\nhint: slurm.jobs\(\)"):
        slurm.submission(70).wait()


def test_output_is_read_on_the_host_that_ran_the_batch_script() -> None:
    clusters, slurm = user_of({"onprem-ctl": {7: ["COMPLETED"]}}, FEDERATION)
    clusters.answers = {
        "scontrol --oneliner show job 7": "JobId=7 Command=a b BatchHost=onprem2 StdOut=/home/alice/o\n",
        "cat /home/alice/o": "hello\n",
    }
    assert slurm.submission(7).output() == "hello\n"
    assert clusters.commands[-1][0] == "onprem2"


def test_details_of_an_arrays_job_are_its_own() -> None:
    clusters, slurm = user_of({"single": {70: ["COMPLETED"], 71: ["FAILED"]}})
    clusters.answers["scontrol"] = "JobId=71 JobState=FAILED\n\nJobId=70 JobState=COMPLETED\n"
    assert slurm.submission(70).details()["JobState"] == "COMPLETED"


def test_job_that_has_not_begun_has_no_output() -> None:
    clusters, slurm = user_of({"single": {7: ["PENDING"]}})
    clusters.answers["scontrol"] = "JobId=7 JobState=PENDING StdOut=/o\n"
    with pytest.raises(UsageError, match="job 7 has no output"):
        slurm.submission(7).output()


def test_record_is_of_the_job_itself_and_its_end() -> None:
    sacct = "{}|on-prem|sbatch|alice|physics|{}|3:0|n1|1|2|3|1"
    clusters, slurm = user_of({"onprem-ctl": {7: ["FAILED"]}}, FEDERATION)
    rows = [("7", "FAILED"), ("7.batch", "FAILED"), ("8", "COMPLETED")]
    clusters.answers["env SLURM_TIME_FORMAT=%s sacct"] = "\n".join(sacct.format(*row) for row in rows)
    record = slurm.submission(7).record()
    assert (record.job_id, record.step, record.exit_code) == (7, "", 3)
    assert [one.step for one in slurm.submission(7).records()] == ["", "batch"]


def test_record_needs_accounting() -> None:
    with pytest.raises(UsageError, match="no accounting"):
        user_of({})[1].submission(7).record()


def test_only_what_the_test_has_submitted_is_cancelled() -> None:
    clusters, slurm = user_of({"single": {7: ["RUNNING"], 8: ["COMPLETED"]}})
    clusters.jobs["single"] |= {9: ["RUNNING"], 10: ["COMPLETED"], 11: ["PENDING"]}
    slurm.cancel_all()
    assert [command for _, _, command in clusters.commands if command.startswith("scancel")] == ["scancel 9 11"]
    assert [job.job_id for _, job in slurm.jobs()] == [9, 10, 11]


def test_scenario_without_a_federation_is_told() -> None:
    with pytest.raises(UsageError, match="single-node has no federation"):
        testing.federation(plan_of(SCENARIO), {})


def test_evidence_tells_of_the_tests_jobs_and_of_what_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.logs.collect", lambda *_: ["single: no answer"])
    clusters, slurm = user_of({"single": {7: ["COMPLETED"]}})
    clusters.jobs["single"][18] = ["FAILED"]
    clusters.answers["scontrol"] = "JobId=18 JobState=FAILED BatchHost=single StdOut=/o Dependency=(null)\n"
    (heading, text), daemons = evidence.of_failure(slurm, 0, 1, "assert")
    assert heading == "Slurm's job 18 on single"
    assert text == "JobId=18\nJobState=FAILED\nBatchHost=single\nStdOut=/o\n" + ("cat /o  (exit 1)\nno such thing")
    assert daemons == ("Slurm's daemons", "single: no answer")


def test_evidence_of_a_cluster_that_does_not_answer_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise CommandFailed("squeue", 1, "", "Unable to contact slurm controller")

    monkeypatch.setattr("harness.logs.collect", lambda *_: [])
    _, slurm = user_of({})
    monkeypatch.setattr(FakeClusters, "run", fail)
    (heading, text), _ = evidence.of_failure(slurm, 0, 1, "assert")
    assert heading == "Slurm's jobs"
    assert "Unable to contact slurm controller" in text
