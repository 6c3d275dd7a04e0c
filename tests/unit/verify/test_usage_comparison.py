"""The usage that sreport prints, compared with the jobs in accounting."""

from __future__ import annotations

from dataclasses import replace

from harness.cluster.slurm import SEPARATOR, parse_record
from harness.verify.usage_comparison import differences

BEGIN = 7200
LINE = (
    "7|one|job|alice|physics|COMPLETED|0:0|n1|7300|7300|7310|10|normal|main|4|60|/home/alice||2001"
    "|7300|cpu=4"
)
JOB = parse_record(LINE.replace("|", SEPARATOR))
REPORT = ["one|root||40", "one|physics||40", "one|physics|alice|40"]


def test_same_usage_has_no_differences() -> None:
    assert differences([JOB], REPORT, BEGIN) == []


def test_usage_of_several_hours_is_added_up() -> None:
    later = replace(JOB, start=10800, end=10810)
    assert differences([JOB, later], [*REPORT, *REPORT], BEGIN) == []


def test_differing_missing_and_invented_usage_is_told() -> None:
    bob = replace(JOB, user="bob")
    lines = ["one|physics|alice|41", "one|physics|carol|5"]
    assert differences([JOB, bob], lines, BEGIN) == [
        "one/physics/alice: sreport has 41 CPU seconds, the jobs in accounting have 40",
        "one/physics/bob: sreport has 0 CPU seconds, the jobs in accounting have 40",
        "one/physics/carol: sreport has 5 CPU seconds, the jobs in accounting have 0",
    ]


def test_user_with_a_job_that_runs_or_began_before_is_left_out() -> None:
    running = replace(JOB, end=None)
    before = replace(JOB, user="bob", start=7000)
    lines = ["one|physics|alice|1000", "one|physics|bob|1000"]
    assert differences([JOB, running, before], lines, BEGIN) == []


def test_cluster_with_a_reservation_is_left_out() -> None:
    other = replace(JOB, cluster="other")
    lines = ["one|physics|alice|90", "other|physics|alice|41"]
    assert differences([JOB, other], lines, BEGIN, ["one"]) == [
        "other/physics/alice: sreport has 41 CPU seconds, the jobs in accounting have 40"
    ]


def test_job_that_ended_before_or_never_began_does_not_count() -> None:
    before = replace(JOB, start=7000, end=7100)
    pending = replace(JOB, start=None, end=None)
    cancelled = replace(JOB, start=None, elapsed=0)
    assert differences([before, pending, cancelled, JOB], REPORT, BEGIN) == []
