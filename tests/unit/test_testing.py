"""The objects that tests on clusters use, with clusters that give prepared answers."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest

from fakes import SCENARIO, FakeProvider
from harness import scenario, testing
from harness.cluster.slurm import SEPARATOR
from harness.errors import CommandFailed, UsageError, WaitTimeout
from harness.plan import Plan, make_plan
from harness.pytest_plugin import clients, evidence
from harness.ssh import Result, Ssh
from harness.testing import Slurm

FEDERATION = SCENARIO.parent / "federation.yml"
FEDERATED = (1 << 26) + 7


class FakeClusters(Ssh):
    """Controllers that know jobs: {host: {job id: [states]}}; scancel ends them.

    Each state is seen once, the last one forever. `submitted` has the submit times of jobs that
    differ from 100, `array_of` the array of jobs that are tasks.
    """

    def __init__(self, jobs: dict[str, dict[int, list[str]]]) -> None:
        super().__init__(Path("ssh_config"), Path("sockets"))
        self.jobs = jobs
        self.commands: list[tuple[str, str | None, str]] = []
        self.answers: dict[str, str] = {}
        self.submitted: dict[int, int] = {}
        self.array_of: dict[int, int] = {}

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
        jobs = self.jobs.setdefault(host, {})
        if command[0] == "squeue":
            wanted = [int(word.partition("=")[2]) for word in command if word.startswith("--jobs=")]
            shown = {
                job_id: states
                for job_id, states in jobs.items()
                if not wanted or job_id // 10 == wanted[0] // 10
            }
            rows = [
                f"{one}|{states[0]}|n1|alice|None|{self.array_of.get(one, one)}||sbatch"
                for one, states in shown.items()
            ]
            for states in shown.values():
                del states[: len(states) > 1]
            return Result(0, "\n".join(rows), "")
        if "squeue" in command:
            rows = [
                f"{one}|{states[0]}|{self.submitted.get(one, 100)}|N/A|N/A"
                for one, states in jobs.items()
            ]
            return Result(0, "\n".join(rows), "")
        if command[0] == "scancel":
            jobs.update({int(word): ["CANCELLED"] for word in command[1:]})
            return Result(0, "", "")
        for beginning, answer in self.answers.items():
            if " ".join(command).startswith(beginning):
                return Result(0, answer, "")
        raise CommandFailed("n1", " ".join(command), 1, "", "no such thing")


def plan_of(path: Path) -> Plan:
    return make_plan(path.stem, scenario.load(path), FakeProvider.capabilities)


def user_of(
    jobs: dict[str, dict[int, list[str]]], path: Path = SCENARIO
) -> tuple[FakeClusters, Slurm]:
    clusters = FakeClusters(jobs)
    return clusters, Slurm.of(clusters, plan_of(path))


def test_first_user_works_at_the_first_cluster_and_others_are_available() -> None:
    _, slurm = user_of({}, FEDERATION)
    assert (slurm.user, slurm.cluster, slurm.controller) == ("alice", "on-prem", "onprem-ctl")
    assert (slurm.as_user("bob").user, slurm.at("aws").controller) == ("bob", "aws-ctl")
    with pytest.raises(UsageError, match="users are alice, bob"):
        slurm.as_user("carol")
    with pytest.raises(UsageError, match="clusters are on-prem, aws"):
        slurm.at("moon")


def test_script_without_an_interpreter_gets_sh_and_the_job_its_cluster_from_sbatch() -> None:
    clusters, slurm = user_of({}, FEDERATION)
    clusters.answers["sbatch --parsable"] = "7;aws\n"
    job = slurm.submit("hostname", "--clusters=aws")
    assert (job.job_id, job.cluster) == (7, "aws")
    assert clusters.commands[-1] == ("onprem-ctl", "alice", "sbatch --parsable --clusters=aws")


def test_wait_returns_the_job_in_the_first_requested_state() -> None:
    clusters, slurm = user_of({})
    clusters.jobs["single"][7] = ["PENDING", "RUNNING", "COMPLETED"]
    assert slurm.submission(7).wait("RUNNING", "COMPLETED").state == "RUNNING"
    assert slurm.submission(7).wait().state == "COMPLETED"


def test_wait_that_cannot_succeed_any_more_says_why() -> None:
    _, slurm = user_of({"single": {7: ["FAILED"]}})
    with pytest.raises(
        WaitTimeout,
        match=r"job 7 to be RUNNING cannot succeed any more .* FAILED \(None\) on single",
    ):
        slurm.submission(7).wait("RUNNING")
    with pytest.raises(WaitTimeout, match="no such job"):
        slurm.submission(17).wait()


def test_controller_that_is_down_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    clusters, slurm = user_of({"single": {7: ["COMPLETED"]}})
    answers = iter([CommandFailed("n1", "squeue", 1, "", "Unable to contact slurm controller")])
    run = clusters.run

    def away_once(host: str, command: Sequence[str], **options: Any) -> Result:
        for error in answers:
            raise error
        return run(host, command, **options)

    monkeypatch.setattr(clusters, "run", away_once)
    assert slurm.submission(7).wait().state == "COMPLETED"


def test_federated_job_is_followed_to_the_cluster_that_runs_it() -> None:
    jobs = {
        "onprem-ctl": {FEDERATED: ["PENDING", "REVOKED"]},
        "aws-ctl": {FEDERATED: ["PENDING", "COMPLETED"]},
    }
    _, slurm = user_of(jobs, FEDERATION)
    job = slurm.submission(FEDERATED)
    assert job.wait().state == "COMPLETED"
    assert job.ran_on() == "aws"


@pytest.mark.parametrize("state", ["RUNING", "running", "DONE"])
def test_wait_for_an_unknown_state_is_refused(state: str) -> None:
    _, slurm = user_of({"single": {7: ["RUNNING"]}})
    with pytest.raises(UsageError, match=rf'Slurm has no job state "{state}"\nhint: '):
        slurm.submission(7).wait(state)


def test_array_is_not_a_single_job() -> None:
    _, slurm = user_of({"single": {70: ["COMPLETED"], 71: ["RUNNING"]}})
    with pytest.raises(UsageError, match=r"job 70 is an array of several jobs\nhint: wait_all\(\)"):
        slurm.submission(70).wait()


def test_wait_all_waits_for_every_task_of_an_array() -> None:
    tasks = {70: ["PENDING", "RUNNING", "COMPLETED"], 71: ["RUNNING", "COMPLETED"], 72: ["FAILED"]}
    _, slurm = user_of({"single": tasks})
    states = [(job.job_id, job.state) for job in slurm.submission(70).wait_all()]
    assert states == [(70, "COMPLETED"), (71, "COMPLETED"), (72, "FAILED")]


def test_wait_for_an_array_ends_when_one_task_can_no_longer_reach_the_state() -> None:
    _, slurm = user_of({"single": {70: ["RUNNING"], 71: ["FAILED"]}})
    with pytest.raises(
        WaitTimeout, match=r"all tasks of job 70 to be COMPLETED .*70 RUNNING .*, 71 FAILED"
    ):
        slurm.submission(70).wait_all("COMPLETED")


def test_task_that_slurmctld_has_forgotten_meanwhile_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clusters, slurm = user_of(
        {"single": {70: ["RUNNING", "RUNNING", "COMPLETED"], 71: ["COMPLETED"]}}
    )
    run = clusters.run

    def forget_after(host: str, command: Sequence[str], **options: Any) -> Result:
        answer = run(host, command, **options)
        clusters.jobs["single"].pop(71, None)
        return answer

    monkeypatch.setattr(clusters, "run", forget_after)
    assert [job.job_id for job in slurm.submission(70).wait_all()] == [70, 71]


def test_array_is_cancelled_with_all_its_tasks() -> None:
    clusters, slurm = user_of({"single": {70: ["RUNNING"], 71: ["CANCELLED"]}})
    assert slurm.submission(70).cancel().state == "CANCELLED"
    assert ("single", "alice", "scancel 70") in clusters.commands


def test_tasks_of_an_array_are_known_by_their_indices() -> None:
    clusters, slurm = user_of({"single": {70: ["PENDING"], 71: ["RUNNING"], 72: ["RUNNING"]}})
    lines = [
        f"JobId={job} ArrayJobId=70 ArrayTaskId={task} "
        for job, task in ((70, "3-9"), (72, "1"), (71, "2"))
    ]
    clusters.answers["scontrol"] = "\n".join(lines)
    assert {index: task.job_id for index, task in slurm.submission(70).tasks().items()} == {
        1: 72,
        2: 71,
    }


def test_output_is_read_on_the_host_that_ran_the_batch_script() -> None:
    clusters, slurm = user_of({"onprem-ctl": {7: ["COMPLETED"]}}, FEDERATION)
    clusters.answers = {
        "scontrol --oneliner show job 7": "JobId=7 Command=a b BatchHost=onprem2"
        " StdOut=/home/alice/o\n",
        "cat /home/alice/o": "hello\n",
    }
    assert slurm.submission(7).output() == "hello\n"
    assert clusters.commands[-1][0] == "onprem2"


def test_details_of_an_array_task_are_its_own() -> None:
    clusters, slurm = user_of({"single": {70: ["COMPLETED"], 71: ["FAILED"]}})
    clusters.answers["scontrol"] = "JobId=71 JobState=FAILED\n\nJobId=70 JobState=COMPLETED\n"
    assert slurm.submission(70).details()["JobState"] == "COMPLETED"


def test_job_that_has_not_begun_has_no_output() -> None:
    clusters, slurm = user_of({"single": {7: ["PENDING"]}})
    clusters.answers["scontrol"] = "JobId=7 JobState=PENDING StdOut=/o\n"
    with pytest.raises(UsageError, match="job 7 has no output"):
        slurm.submission(7).output()


def test_record_belongs_to_the_job_itself_and_its_end() -> None:
    sacct = "{}|on-prem|sbatch|alice|physics|{}|3:0|n1|1|2|3|1|normal|batch|1|60|/alice||2001||"
    clusters, slurm = user_of({"onprem-ctl": {7: ["FAILED"]}}, FEDERATION)
    rows = [("7", "FAILED"), ("7.batch", "FAILED"), ("8", "COMPLETED")]
    clusters.answers["env SLURM_TIME_FORMAT=%s sacct"] = "\n".join(
        sacct.format(*row).replace("|", SEPARATOR) for row in rows
    )
    record = slurm.submission(7).record()
    assert (record.job_id, record.step, record.exit_code) == (7, "", 3)
    assert [record.step for record in slurm.submission(7).records()] == ["", "batch"]


def test_record_needs_accounting() -> None:
    with pytest.raises(UsageError, match="no accounting"):
        user_of({})[1].submission(7).record()


def test_only_what_the_test_has_submitted_is_cancelled() -> None:
    clusters, slurm = user_of({"single": {7: ["RUNNING"], 8: ["COMPLETED"]}})
    clusters.jobs["single"] |= {9: ["RUNNING"], 10: ["COMPLETED"], 11: ["PENDING"]}
    slurm.cancel_all()
    assert [command for _, _, command in clusters.commands if command.startswith("scancel")] == [
        "scancel 9 11"
    ]
    assert [job.job_id for _, job in slurm.jobs()] == [9, 10, 11]


def test_job_that_got_an_earlier_jobs_id_again_is_the_tests() -> None:
    """A slurmctld that has lost its state restarts its ids."""
    clusters, slurm = user_of({"single": {1: ["COMPLETED"], 2: ["RUNNING"]}})
    clusters.jobs["single"] = {1: ["RUNNING"]}
    clusters.submitted[1] = 130
    clusters.answers["scontrol --oneliner show job 1"] = (
        "JobId=1 JobState=RUNNING Restarts=0 Requeue=1"
    )
    assert [job.job_id for _, job in slurm.jobs()] == [1]
    slurm.cancel_all()
    assert clusters.jobs["single"] == {1: ["CANCELLED"]}


def test_earlier_job_that_is_requeued_is_not_the_tests() -> None:
    clusters, slurm = user_of({"single": {7: ["RUNNING"]}})
    clusters.jobs["single"] = {7: ["PENDING"]}
    clusters.submitted[7] = 130
    clusters.answers["scontrol --oneliner show job 7"] = (
        "JobId=7 JobState=PENDING Restarts=1 Requeue=1"
    )
    assert slurm.jobs() == []


def test_task_of_an_earlier_array_that_starts_meanwhile_is_not_the_tests() -> None:
    clusters, slurm = user_of({"single": {7: ["PENDING"]}})
    clusters.jobs["single"][8] = ["RUNNING"]
    clusters.array_of[8] = 7
    assert slurm.jobs() == []


def test_earlier_federated_job_that_moves_to_another_cluster_is_not_the_tests() -> None:
    clusters, slurm = user_of({"onprem-ctl": {FEDERATED: ["PENDING"]}}, FEDERATION)
    clusters.jobs["aws-ctl"] = {FEDERATED: ["RUNNING"]}
    assert slurm.jobs() == []


def test_job_that_cannot_be_cancelled_at_once_is_cancelled_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clusters, slurm = user_of({})
    clusters.jobs["single"][9] = ["RUNNING"]
    refusals = iter([Result(1, "", "Unable to contact slurm controller")])
    run = clusters.run

    def away_once(host: str, command: Sequence[str], **options: Any) -> Result:
        return (
            next(refusals, None) or run(host, command, **options)
            if command[0] == "scancel"
            else run(host, command)
        )

    monkeypatch.setattr(clusters, "run", away_once)
    slurm.cancel_all()
    assert clusters.jobs["single"] == {9: ["CANCELLED"]}


def test_all_jobs_of_the_test_are_awaited() -> None:
    clusters, slurm = user_of({"single": {7: ["RUNNING"]}})
    clusters.jobs["single"] |= {8: ["COMPLETING", "COMPLETING", "FAILED"], 9: ["COMPLETED"]}
    ended = [(job.job_id, job.state) for _, job in slurm.wait_all()]
    assert ended == [(8, "FAILED"), (9, "COMPLETED")]
    clusters.jobs["single"][8] = ["COMPLETING"]
    with pytest.raises(WaitTimeout, match=r"all jobs of the test to end.*8 COMPLETING"):
        slurm.wait_all(timeout=0)


def test_job_that_does_not_end_fails_the_test_that_left_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clusters, slurm = user_of({})
    clusters.jobs["single"][9] = ["COMPLETING"]
    monkeypatch.setattr(testing, "_GONE_WITHIN", 0)
    run = clusters.run

    def cancel_nothing(host: str, command: Sequence[str], **options: Any) -> Result:
        return Result(0, "", "") if command[0] == "scancel" else run(host, command, **options)

    monkeypatch.setattr(clusters, "run", cancel_nothing)
    with pytest.raises(WaitTimeout, match=r"all jobs of the test to end.*9 COMPLETING"):
        slurm.cancel_all()
    Slurm.of(clusters, slurm.plan).cancel_all()  # the next test's


@pytest.fixture
def problems(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What keeps the clusters from accepting jobs; a test may change it."""
    found: list[str] = []
    monkeypatch.setattr("harness.cluster.slurm.not_ready", lambda *_: list(found))
    monkeypatch.setattr("harness.cluster.slurm.clusters", lambda *_: {})
    monkeypatch.setattr(testing, "_READY_WITHIN", 0)
    return found


def test_nodes_that_were_out_of_service_before_the_test_are_not_waited_for(
    problems: list[str],
) -> None:
    problems += ["lab: n1 DOWN* (Not responding)", "a: sibling b not connected"]
    faults = testing.Faults(SimpleNamespace(ssh=None, plan=None))  # type: ignore[arg-type]
    problems[0] = "lab: n1 DOWN+DRAIN (Kill task failed)"
    faults.wait_until_ready()


@pytest.mark.parametrize("problem", ["lab: n2 DOWN (Not responding)", "a: sibling c not connected"])
def test_node_that_a_test_leaves_out_of_service_fails_that_test(
    problems: list[str], problem: str
) -> None:
    problems += ["lab: n1 DOWN ()", "a: sibling b not connected"]
    faults = testing.Faults(SimpleNamespace(ssh=None, plan=None))  # type: ignore[arg-type]
    problems.append(problem)
    with pytest.raises(WaitTimeout, match=rf"last state: {re.escape(problem)}$"):
        faults.wait_until_ready()


def test_scenario_without_a_federation_is_reported() -> None:
    with pytest.raises(UsageError, match="single-node has no federation"):
        testing.federation(plan_of(SCENARIO), {})


def test_evidence_lists_the_tests_jobs_and_what_is_unavailable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("harness.cluster.logs.collect", lambda *_: ["single: no answer"])
    clusters, slurm = user_of({"single": {7: ["COMPLETED"]}})
    clusters.jobs["single"][18] = ["FAILED"]
    clusters.answers["scontrol"] = (
        "JobId=18 JobState=FAILED BatchHost=single StdOut=/o Dependency=(null)\n"
    )
    (heading, text), daemons = evidence.of_failure(slurm, 0, 1, "assert")
    assert heading == "Slurm's job 18 on single"
    assert text == "JobId=18\nJobState=FAILED\nBatchHost=single\nStdOut=/o\n" + (
        "n1: exit 1: no such thing\ncat /o"
    )
    assert daemons == ("Slurm's daemons", "single: no answer")


def test_evidence_of_an_unreachable_cluster_is_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise CommandFailed("n1", "squeue", 1, "", "Unable to contact slurm controller")

    monkeypatch.setattr("harness.cluster.logs.collect", lambda *_: [])
    _, slurm = user_of({})
    monkeypatch.setattr(FakeClusters, "run", fail)
    (heading, text), _ = evidence.of_failure(slurm, 0, 1, "assert")
    assert heading == "Slurm's jobs"
    assert "Unable to contact slurm controller" in text


def test_package_that_is_not_installed_is_named(tmp_path: Path) -> None:
    _, slurm = user_of({})
    with pytest.raises(UsageError, match="no-such-package is not installed"):
        clients.run_client(slurm, tmp_path / "program.py", ("no-such-package",), "", 1)


@pytest.mark.parametrize(("python", "suits"), [("", False), (">=3.8", True)])
def test_hosts_python_must_match_the_packages(
    python: str, suits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pluggy itself requires 3.9 or later; it requires no other package."""
    (tmp_path / "program.py").write_text("")
    hosts, slurm = user_of({})
    hosts.answers = {
        "python3 -c": "3.8.2\n",
        "env PYTHONPATH=packages python3 program.py": "done\n",
    }
    monkeypatch.setattr(hosts, "feed", lambda *_: None)
    if suits:
        assert clients.run_client(slurm, tmp_path / "program.py", ("pluggy",), python, 1) == Result(
            0, "done\n", ""
        )
    else:
        with pytest.raises(
            clients.UnsuitablePython, match=r"pluggy requires Python >=3\.\d+, single has 3.8.2"
        ):
            clients.run_client(slurm, tmp_path / "program.py", ("pluggy",), python, 1)


@pytest.fixture
def slurmrestd(tmp_path: Path) -> Iterator[Path]:
    """A socket that answers each request, on its own connection, with the number of bytes read."""

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                text = connection.recv(1 << 16)
                headers = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: "
                body = b"token" if b"X-SLURM-USER-TOKEN: secret" in text else b"none"
                connection.sendall(f"{headers}{len(body)}\r\n\r\n".encode() + body)

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        server.listen()
        Thread(target=serve, daemon=True).start()
        yield tmp_path / "socket"
        server.shutdown(socket.SHUT_RDWR)


def test_rest_is_a_url_on_loopback_and_a_client_with_a_token(
    slurmrestd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = FEDERATION.parent / "rest.yml"
    hosts, slurm = user_of({}, path)
    hosts.answers["scontrol token username=alice"] = "SLURM_JWT=secret\n"

    @contextmanager
    def forwarded(host: str, target: str) -> Iterator[Path]:
        assert (host, target) == ("rest", "rest:6820")
        yield slurmrestd

    monkeypatch.setattr(hosts, "forwarded", forwarded)
    with clients.rest(hosts, plan_of(path), slurm) as api:
        assert api.url.startswith("http://127.0.0.1:")
        assert [api.client.get("/").text, httpx2.get(api.url, timeout=60).text] == ["token", "none"]
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(api.url)


def test_scenario_without_a_rest_api_is_named() -> None:
    hosts, slurm = user_of({})
    with (
        pytest.raises(UsageError, match="no cluster of single-node has a REST API"),
        clients.rest(hosts, slurm.plan, slurm),
    ):
        pass
