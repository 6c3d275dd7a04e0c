from __future__ import annotations

import pytest

from harness import scenario
from harness.errors import UsageError
from harness.rehearsal import workload
from harness.shipped_files import SCENARIOS

FEDERATION = scenario.load(SCENARIOS / "federation-faults.yml")
TRACE = """\
; Version: 2.2
; Computer: a trace that was made for this test
  1   100  5  60   8 -1 -1   8  100 -1 1  3 1 -1 1 -1 -1 -1
  2   130  5  30 900 -1 -1 900  100 -1 0  4 1 -1 1 -1 -1 -1
  3   160 -1  -1  -1 -1 -1   2  100 -1 5  4 1 -1 1 -1 -1 -1
  4   220  5  12   2 -1 -1  -1  100 -1 1  5 1 -1 1 -1  2 10
  4   220  5   6   2 -1 -1  -1  100 -1 2  5 1 -1 1 -1  2 10
"""


def test_workload_depends_only_on_its_seed() -> None:
    assert workload.generate(FEDERATION, 50, 60, 1) == workload.generate(FEDERATION, 50, 60, 1)
    assert workload.generate(FEDERATION, 50, 60, 1) != workload.generate(FEDERATION, 50, 60, 2)


def test_workload_has_jobs_of_all_kinds_that_fit_their_cluster() -> None:
    jobs = workload.generate(FEDERATION, 400, 60, 1)
    assert len(jobs) == 400
    assert [job.at for job in jobs] == sorted(job.at for job in jobs)
    assert {job.user for job in jobs} == {"alice", "bob"}
    assert {job.cluster for job in jobs} == {"on-prem", "aws"}
    options = {option for job in jobs for option in job.options}
    assert options >= {
        "--array=1-3",
        "--nodes=2",
        "--cpus-per-task=4",
        "--requeue",
        "--clusters=aws",
        "--qos=urgent",
    }
    assert options.isdisjoint({"--nodes=3", "--cpus-per-task=5"})
    assert {job.ends for job in jobs} == {"COMPLETED", "FAILED"}
    assert {job.tasks for job in jobs} == {1, 3}
    following = [job for job in jobs if job.after is not None]
    assert following
    assert all(
        job.after < job.number and jobs[job.after].cluster == job.cluster for job in following
    )
    assert all(job.user == "alice" for job in jobs if "--qos=urgent" in job.options)


def test_scenario_without_users_or_static_nodes_has_no_workload() -> None:
    with pytest.raises(UsageError, match="needs users and static nodes"):
        workload.generate(FEDERATION.model_copy(update={"users": {}}), 1, 1, 1)
    elastic = scenario.load(SCENARIOS / "elastic-l0.yml")
    moving = [group for group in elastic.clusters["cloud"].nodes if group.provision != "static"]
    cluster = elastic.clusters["cloud"].model_copy(update={"nodes": tuple(moving)})
    with pytest.raises(UsageError, match="needs users and static nodes"):
        workload.generate(elastic.model_copy(update={"clusters": {"cloud": cluster}}), 1, 1, 1)


def test_trace_is_replayed_faster_and_no_wider_than_the_clusters() -> None:
    jobs = workload.replay(TRACE, FEDERATION, 60)
    assert [(job.at, job.body, job.options, job.ends) for job in jobs] == [
        (0.0, "sleep 1.00", ("--ntasks=8",), "COMPLETED"),
        (0.5, "sleep 0.50; exit 1", ("--ntasks=8",), "FAILED"),
        (2.0, "sleep 0.20", ("--ntasks=2",), "COMPLETED"),
    ]
    assert [job.after for job in jobs] == [None, None, 1]
    assert {job.cluster for job in jobs} == {"on-prem", "aws"}


@pytest.mark.parametrize("line", ["1 2 3", "1 2 3 x 5 6 7 8 9 10 11 12 13 14 15 16 17 18"])
def test_line_of_a_trace_that_is_not_a_job_is_named(line: str) -> None:
    with pytest.raises(UsageError, match="line 2 of the trace is not a job: 1 2 3"):
        workload.replay(f"; a comment\n{line}\n", FEDERATION, 1)


def test_trace_without_a_job_that_ran_is_refused() -> None:
    with pytest.raises(UsageError, match="no job that ran"):
        workload.replay("; nothing\n", FEDERATION, 1)
