"""The comparison of accounting with the jobs' own witness: whatever is wrong with either must be found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness import witness
from harness.slurm import Record
from harness.witness import Witness

SEEN = Witness(job_id=7, cluster="aws", host="aws3", start=1000, end=1010, exit_code=0)
JOB = Record(7, "", "aws", "j", "alice", "physics", "COMPLETED", 0, 0, "aws3", 999, 1000, 1010, 10)
BATCH = replace(JOB, step="batch")
REVOKED = replace(JOB, cluster="on-prem", state="REVOKED", node_list="None assigned")


def test_agreement_is_no_difference() -> None:
    assert witness.differences([7], [SEEN], [JOB, BATCH, REVOKED]) == []


def test_differences_of_two_seconds_are_the_daemons_own_work() -> None:
    assert witness.differences([7], [SEEN], [replace(JOB, start=998, end=1012, elapsed=12), BATCH]) == []


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"cluster": "on-prem"}, "ran on cluster aws, accounting says on-prem"),
        ({"node_list": "aws[1-2]"}, "ran on aws3, accounting says aws[1-2]"),
        ({"node_list": "None assigned"}, "ran on aws3, accounting says None assigned"),
        ({"state": "PENDING", "start": None, "end": None, "elapsed": 0}, "exited with 0, accounting says PENDING"),
        ({"state": "FAILED", "exit_code": 1}, "exited with 0, accounting says FAILED"),
        ({"start": 1003}, "started at 1000, accounting says 1003"),
        ({"end": 1007}, "ended at 1010, accounting says 1007"),
        ({"elapsed": 13}, "took 10 s, accounting says 13 s"),
        ({"exit_code": 3}, "exited with 0, accounting says 3"),
    ],
)
def test_wrong_record_is_found(wrong: dict[str, Any], told: str) -> None:
    assert f"job 7: {told}" in witness.differences([7], [SEEN], [replace(JOB, **wrong), BATCH])


def test_failed_job_must_be_recorded_with_its_exit_code() -> None:
    failed = replace(SEEN, exit_code=3)
    assert witness.differences([7], [failed], [replace(JOB, state="FAILED", exit_code=3), BATCH]) == []
    assert witness.differences([7], [failed], [JOB, BATCH]) == ["job 7: exited with 3, accounting says COMPLETED"]
    assert witness.differences([7], [failed], [replace(JOB, state="FAILED", exit_code=4), BATCH]) == [
        "job 7: exited with 3, accounting says 4"
    ]


def test_killed_job_must_not_be_recorded_as_completed() -> None:
    killed = replace(SEEN, end=None, exit_code=None)
    assert witness.differences([7], [killed], [replace(JOB, state="TIMEOUT"), BATCH]) == []
    assert witness.differences([7], [killed], [JOB, BATCH]) == [
        "job 7: was killed or still runs, accounting says COMPLETED"
    ]


def test_missing_doubled_and_unwitnessed_jobs_are_found() -> None:
    assert witness.differences([7], [SEEN], []) == ["job 7 ran once, but has 0 accounting records besides revoked ones"]
    assert witness.differences([7], [SEEN], [JOB, JOB, BATCH]) == [
        "job 7 ran once, but has 2 accounting records besides revoked ones"
    ]
    assert witness.differences([7], [], [JOB, BATCH]) == ["job 7 left no witness: it never ran"]
    assert witness.differences([7], [SEEN], [JOB]) == ["job 7: no record of its batch step"]


def test_job_that_ran_twice_is_found() -> None:
    assert witness.differences([7], [SEEN, replace(SEEN, host="aws1")], [JOB, BATCH])[0] == "job 7 ran 2 times"


def test_witness_of_a_killed_job_has_no_end() -> None:
    assert witness.parse("job_id=7\ncluster=aws\nhost=aws3\nstart=1000\n") == replace(SEEN, end=None, exit_code=None)
