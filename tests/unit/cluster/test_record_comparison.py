"""Accounting records are compared with slurmctld's memory of the jobs: every error is found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.cluster import record_comparison
from harness.cluster.slurm import Record

JOB = Record(
    *(7, "", "aws", "j", "alice", "physics", "COMPLETED", 0, 0, "aws[1-2]", 999, 1000, 1010, 10),
    *("normal", "batch", 4, "60", "/home/alice"),
    eligible=999,
    tres="cpu=4,mem=50M,node=2",
)


def test_record_that_slurmctld_sent_is_genuine() -> None:
    assert record_comparison.disagreements([JOB], [replace(JOB, step="batch"), JOB]) == []
    assert (
        record_comparison.disagreements([JOB], [replace(JOB, end=1011, node_list="aws1,aws2")])
        == []
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"name": "k"}, "its name is j, accounting says k"),
        ({"user": "bob"}, "its user is alice, accounting says bob"),
        ({"account": ""}, "its account is physics, accounting says nothing"),
        ({"qos": "urgent"}, "its QOS is normal, accounting says urgent"),
        ({"partition": "other"}, "its partition is batch, accounting says other"),
        ({"state": "FAILED"}, "its state is COMPLETED, accounting says FAILED"),
        ({"exit_code": 1}, "its exit code is 0:0, accounting says 1:0"),
        ({"cpus": 200}, "its number of CPUs is 4, accounting says 200"),
        ({"time_limit": "1"}, "its time limit is 60, accounting says 1"),
        ({"work_dir": "/"}, "its working directory is /home/alice, accounting says /"),
        ({"node_list": "aws1"}, "its nodes are aws[1-2], accounting says aws1"),
        ({"submit": 900}, "its submit is 999 for slurmctld, accounting says 900"),
        ({"eligible": 900}, "its eligible is 999 for slurmctld, accounting says 900"),
        ({"tres": "cpu=4,node=2,mem=70M,energy=3"}, "its mem is 50M, accounting says 70M"),
        ({"tres": "cpu=4,mem=50M"}, "its node is 2, accounting says nothing"),
        ({"start": 1003}, "its start is 1000 for slurmctld, accounting says 1003"),
        ({"end": 1018}, "its end is 1010 for slurmctld, accounting says 1018"),
        ({"end": None}, "its end is 1010 for slurmctld, accounting says None"),
    ],
)
def test_wrong_record_is_found(wrong: dict[str, Any], message: str) -> None:
    assert record_comparison.disagreements([JOB], [replace(JOB, **wrong)]) == [
        f"job 7 on aws: {message}"
    ]


def test_missing_record_is_found_except_for_jobs_that_continue_or_were_revoked() -> None:
    others = [
        replace(JOB, job_id=8, state="RUNNING", end=None),
        replace(JOB, job_id=9, state="REVOKED"),
    ]
    cancelled = replace(JOB, job_id=10, state="CANCELLED", node_list="")
    assert record_comparison.disagreements([JOB, *others, cancelled], []) == [
        "job 7 on aws: slurmctld remembers it, accounting has no record of it"
    ]


def test_job_that_was_requeued_is_compared_with_the_record_of_its_last_run() -> None:
    first = replace(JOB, state="REQUEUED", start=900, end=950, elapsed=50)
    assert record_comparison.disagreements([JOB], [first, JOB]) == []


def test_sacct_may_subtract_128_from_an_exit_code() -> None:
    failed = replace(JOB, state="FAILED", exit_code=233)
    recorded = replace(failed, exit_code=105)
    assert record_comparison.disagreements([failed], [recorded]) == []
    assert record_comparison.disagreements([recorded], [failed]) != []


def test_exit_code_of_a_job_that_slurm_ended_may_differ() -> None:
    cancelled = replace(JOB, state="CANCELLED", exit_code=143)
    assert record_comparison.disagreements([cancelled], [replace(cancelled, exit_code=0)]) == []


def test_record_without_an_end_must_belong_to_a_running_job() -> None:
    going_on = replace(JOB, state="RUNNING", end=None)
    assert record_comparison.runaways([going_on], [going_on]) == []
    assert record_comparison.runaways([JOB], [going_on]) == [
        "job 7 on aws is RUNNING in accounting, but COMPLETED for slurmctld"
    ]
    assert record_comparison.runaways([], [going_on]) == [
        "job 7 on aws is RUNNING in accounting, but unknown to slurmctld"
    ]


def test_unknown_job_is_found_unless_it_is_older_than_the_clusters() -> None:
    failed = replace(JOB, state="FAILED")
    assert record_comparison.never_submitted([failed], {JOB.key}, 0) == []
    assert record_comparison.never_submitted([failed], set(), 1000) == []
    assert record_comparison.never_submitted(
        [failed, replace(failed, step="batch")], {("on-prem", 7)}, 0
    ) == ["job 7 of alice on aws is FAILED in accounting, but was never submitted"]
