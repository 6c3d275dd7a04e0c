from collections import Counter

import pytest

from harness.errors import UsageError
from harness.simulation.generator import generate, work
from harness.simulation.trace import Trace

_USERS = [("alice", "physics"), ("bob", "physics"), ("carol", "chemistry")]


def _generated(seed: int = 1, jobs: int = 2000, hours: float = 48, **options: object) -> Trace:
    arguments: dict = {"users": _USERS, "partitions": ["batch", "long"], "nodes": 100}
    return generate(seed, jobs, hours, **(arguments | {"cpus_per_node": 4} | options))


def test_the_same_seed_generates_the_same_trace() -> None:
    assert _generated() == _generated()
    assert _generated() != _generated(seed=2)


def test_jobs_are_as_many_as_asked_for_and_in_the_order_of_their_submission() -> None:
    jobs = _generated(jobs=777, hours=24).jobs

    assert len(jobs) == len({job.id for job in jobs}) == 777
    submits = [job.submit for job in jobs]
    assert submits == sorted(submits)
    assert submits[0] >= 0
    assert submits[-1] < 24 * 3600


@pytest.mark.parametrize("load", [0.5, 1.15, 2])
def test_the_work_is_what_the_load_says(load: float) -> None:
    trace = _generated(load=load)

    assert sum(map(work, trace.jobs)) / (400 * 48 * 3600) == pytest.approx(load, rel=0.02)
    assert trace.notes == (f"generated with seed 1: 2000 jobs in 48 h, load {load:.2f}",)


def test_a_load_that_few_short_jobs_cannot_reach_is_noted() -> None:
    notes = _generated(jobs=3, hours=1).notes

    assert notes[-1] == "the load is less than 1.15: no job runs for more than 0.5 h"


def test_every_job_fits_the_nodes() -> None:
    jobs = _generated(jobs=3000, nodes=10, cpus_per_node=3, largest=0.5).jobs

    assert {job.nodes for job in jobs} == {1, 2, 4}
    assert all(1 <= job.cpus <= (job.nodes or 0) * 3 for job in jobs)
    assert all(job.run_time >= 1 and (job.limit or 0) >= 60 for job in jobs)
    assert all((job.limit or 0) % 60 == 0 for job in jobs)


def test_users_submit_more_by_day_and_on_working_days() -> None:
    # From Friday at midnight, for three days.
    jobs = _generated(jobs=9000, hours=72, hour=0, weekday=4).jobs
    by_hour = Counter(int(job.submit // 3600) for job in jobs)

    def submitted(begin: int, end: int) -> int:
        return sum(by_hour[hour] for hour in range(begin, end))

    assert submitted(9, 17) > 2 * submitted(0, 8)
    assert submitted(0, 24) > 1.3 * submitted(24, 48)


def test_a_trace_has_arrays_chains_and_jobs_that_reach_their_limits() -> None:
    jobs = {job.id: job for job in _generated(gres=["gpu:1"], qos=["normal", "high"]).jobs}

    arrays = Counter(job.array for job in jobs.values() if job.array)
    assert max(arrays.values()) > 3
    for job in jobs.values():
        if job.array == job.id:
            assert job.array_index == 0
    waiting = [job for job in jobs.values() if job.dependency]
    assert waiting
    for job in waiting:
        kind, before = (job.dependency or "").split(":")
        assert kind == "afterany"
        assert jobs[before].submit <= job.submit
    late = sum(job.run_time > (job.limit or 0) for job in jobs.values())
    assert 0.005 < late / len(jobs) < 0.08
    assert {job.gres for job in jobs.values()} == {None, "gpu:1"}
    assert {job.qos for job in jobs.values()} == {"normal", "high"}


def test_the_busiest_users_come_first() -> None:
    users = Counter(job.user for job in _generated().jobs)

    assert users["alice"] > users["bob"] > users["carol"] > 0


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"jobs": 0}, "jobs must be from 1"),
        ({"jobs": 10**9}, "jobs must be from 1"),
        ({"hours": float("nan")}, "hours must be more than 0"),
        ({"load": float("inf")}, "load must be more than 0"),
        ({"users": []}, "there must be users"),
        ({"nodes": 0}, "nodes and CPUs must be at least 1"),
        ({"hour": 24, "weekday": 7}, "hour must be from 0 to 23; weekday must be from 0 to 6"),
    ],
)
def test_impossible_arguments_are_refused(change: dict, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        _generated(**change)
