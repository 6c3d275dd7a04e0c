"""Accounting is compared with the jobs' own trace: every error in either is found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.cluster.slurm import Record
from harness.verify import job_trace
from harness.verify.job_trace import JobTrace
from harness.verify.trace_comparison import compare, differences

SEEN = JobTrace(
    *(67108871, "aws", "aws3", 1000, 1010, 0),
    user="alice",
    account="physics",
    qos="normal",
    nodes=("aws3",),
    cpus=(2,),
    partition="batch",
    work_dir="/home/alice",
)
JOB = Record(
    *(67108871, "", "aws", "j", "alice", "physics", "COMPLETED", 0, 0, "aws3", 999, 1000, 1010, 10),
    *("normal", "batch", 2, "60", "/home/alice"),
)
BATCH = replace(JOB, step="batch")
HOSTS = {"aws": {f"aws{number}": f"aws{number}" for number in range(1, 10)}, "other": {"o1": "o1"}}
REVOKED = replace(JOB, cluster="on-prem", state="REVOKED", node_list="None assigned")


def test_matching_values_are_no_difference() -> None:
    assert differences([SEEN.key], [SEEN], [JOB, BATCH, REVOKED], HOSTS) == []


@pytest.mark.parametrize("times", [(1002, 1008, 8), (990, 1020, 30)])
def test_record_holds_the_jobs_time_and_the_daemons_own_work(times: tuple[int, int, int]) -> None:
    start, end, elapsed = times
    record = replace(JOB, start=start, end=end, elapsed=elapsed)
    assert differences([SEEN.key], [SEEN], [record, BATCH], HOSTS) == []


@pytest.mark.parametrize(
    ("record_times", "logged", "expected"),
    [
        ((940, 1090, 150), [941.5, 1089.2], []),
        ((940, 1010, 70), [941.5, 1089.2], []),
        ((940, 1010, 70), [943.5], ["started at 1000, accounting says 940"]),
        ((1000, 1090, 90), [999.9, 1087.0], ["ended at 1010, accounting says 1090"]),
        ((1003, 1010, 7), [1003.0], ["started at 1000, accounting says 1003"]),
    ],
)
def test_slurmctlds_log_distinguishes_slow_daemons_from_wrong_records(
    record_times: tuple[int, int, int], logged: list[float], expected: list[str]
) -> None:
    start, end, elapsed = record_times
    record = replace(JOB, start=start, end=end, elapsed=elapsed)
    found = compare(SEEN, record, HOSTS["aws"], logged=logged)
    assert [text for text in found if not text.startswith("took")] == expected


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"cluster": "on-prem"}, "ran on cluster aws, accounting says on-prem"),
        ({"node_list": "aws[1-2]"}, "ran on aws3, accounting says aws[1-2]"),
        ({"node_list": "None assigned"}, "ran on aws3, accounting says None assigned"),
        (
            {"state": "PENDING", "start": None, "end": None, "elapsed": 0},
            "exited with 0, accounting says PENDING",
        ),
        ({"state": "FAILED", "exit_code": 1}, "exited with 0, accounting says FAILED"),
        ({"start": 1003}, "started at 1000, accounting says 1003"),
        ({"start": 989}, "started at 1000, accounting says 989"),
        ({"end": 1007}, "ended at 1010, accounting says 1007"),
        ({"end": 1021}, "ended at 1010, accounting says 1021"),
        ({"elapsed": 7}, "took 10 s, accounting says 7 s"),
        ({"elapsed": 31}, "took 10 s, accounting says 31 s"),
        ({"exit_code": 3}, "exited with 0, accounting says 3"),
        ({"user": "bob"}, "its user is alice, accounting says bob"),
        ({"account": "chemistry"}, "its account is physics, accounting says chemistry"),
        ({"qos": "urgent"}, "its qos is normal, accounting says urgent"),
        ({"partition": "other"}, "its partition is batch, accounting says other"),
        ({"work_dir": "/tmp"}, "its work_dir is /home/alice, accounting says /tmp"),
        ({"cpus": 200}, "it had 2 CPUs, accounting says 200"),
    ],
)
def test_wrong_record_is_found(wrong: dict[str, Any], problem: str) -> None:
    assert f"job 67108871: {problem}" in differences(
        [SEEN.key], [SEEN], [replace(JOB, **wrong), BATCH], HOSTS
    )


def test_failed_job_must_be_recorded_with_its_exit_code() -> None:
    failed = replace(SEEN, exit_code=3)
    batch = replace(BATCH, exit_code=3)
    assert (
        differences([SEEN.key], [failed], [replace(JOB, state="FAILED", exit_code=3), batch], HOSTS)
        == []
    )
    assert differences([SEEN.key], [failed], [JOB, batch], HOSTS) == [
        "job 67108871: exited with 3, accounting says COMPLETED"
    ]
    assert differences(
        [SEEN.key], [failed], [replace(JOB, state="FAILED", exit_code=4), batch], HOSTS
    ) == ["job 67108871: exited with 3, accounting says 4"]


@pytest.mark.parametrize(
    ("exit_code", "problems"),
    [(143, []), (3, ["job 67108871: exited with 3, accounting says PREEMPTED"])],
)
def test_preempted_job_was_ended_by_a_signal(exit_code: int, problems: list[str]) -> None:
    ended = replace(SEEN, exit_code=exit_code)
    record = replace(JOB, state="PREEMPTED", exit_code=0)
    batch = replace(BATCH, exit_code=exit_code)
    assert differences([SEEN.key], [ended], [record, batch], HOSTS) == problems


def test_steps_must_be_recorded_with_their_exit_code_and_memory() -> None:
    text = "job_id=67108871\ncluster=aws\nhost=aws3\nstart=1000\nend=1010\nexit_code=0\n"
    seen = job_trace.parse(f"{text}step.0.exit_code=3\nstep.1.rss_kib=20480\nstep.1.exit_code=0\n")
    first, second = (
        replace(JOB, step=number, exit_code=code, max_rss=21 << 20)
        for number, code in (("0", 3), ("1", 0))
    )

    def found(*steps: Record) -> list[str]:
        return differences([SEEN.key], [seen], [JOB, BATCH, *steps], HOSTS)

    assert found(first, second) == []
    assert found(second) == ["job 67108871: no record of its step 0"]
    assert found(replace(first, exit_code=0), second) == [
        "job 67108871: its step 0 exited with 3, accounting says 0"
    ]
    memory = "job 67108871: its step 1 had 20 MiB of memory, MaxRSS in accounting is"
    assert found(first, replace(second, max_rss=None)) == [f"{memory} none"]
    assert found(first, replace(second, max_rss=1 << 30)) == [f"{memory} 1024 MiB"]


def test_killed_job_must_not_be_recorded_as_completed() -> None:
    killed = replace(SEEN, end=None, exit_code=None)
    assert differences([SEEN.key], [killed], [replace(JOB, state="TIMEOUT"), BATCH], HOSTS) == []
    assert differences([SEEN.key], [killed], [JOB, BATCH], HOSTS) == [
        "job 67108871: was killed or still runs, accounting says COMPLETED"
    ]


def test_missing_doubled_and_untraced_jobs_are_found() -> None:
    assert differences([SEEN.key], [SEEN], [], HOSTS) == [
        "job 67108871 ran once, but has 0 accounting records that are not REVOKED"
    ]
    assert differences([SEEN.key], [SEEN], [JOB, JOB, BATCH], HOSTS) == [
        "job 67108871 ran once, but has 2 accounting records that are not REVOKED"
    ]
    assert differences([SEEN.key], [], [JOB, BATCH], HOSTS) == [
        "job 67108871 left no trace: it never ran"
    ]
    assert differences([SEEN.key], [SEEN], [JOB], HOSTS) == [
        "job 67108871: no record of its batch step"
    ]


def test_job_that_ran_twice_is_found() -> None:
    assert (
        differences([SEEN.key], [SEEN, replace(SEEN, host="aws1")], [JOB, BATCH], HOSTS)[0]
        == "job 67108871 ran 2 times"
    )


def test_jobs_of_unfederated_clusters_may_share_an_id() -> None:
    here, there = (
        replace(SEEN, job_id=7),
        replace(SEEN, job_id=7, cluster="other", host="o1", nodes=("o1",)),
    )
    records = [replace(JOB, job_id=7), replace(BATCH, job_id=7)]
    records += [replace(record, cluster="other", node_list="o1") for record in records]
    assert differences([here.key, there.key], [here, there], records, HOSTS) == []
    assert job_trace.ran_twice([here, here, there]) == ["job 7 ran 2 times"]


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (replace(BATCH, start=1002), []),
        (replace(BATCH, end=1300), []),
        (
            replace(BATCH, node_list="ghost"),
            ["job 67108871: its step batch has ghost in accounting, the job aws3"],
        ),
        (
            replace(BATCH, start=400),
            [
                "job 67108871: its step batch starts at 400 in accounting, "
                "the job ran from 1000 to 1010"
            ],
        ),
    ],
)
def test_steps_are_within_the_nodes_and_the_time_of_their_job(
    step: Record, expected: list[str]
) -> None:
    assert differences([SEEN.key], [SEEN], [JOB, step], HOSTS) == expected


def test_group_of_the_job_is_that_of_its_process() -> None:
    found = compare(replace(SEEN, gid="2001"), replace(JOB, gid="0"), HOSTS["aws"])
    assert found == ["its gid is 2001, accounting says 0"]
