"""Policies on a clock that runs fast: answers that follow from Slurm's documentation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.simulation import results
from harness.simulation.outcome import JobOutcome, Simulation
from support import Done, Harness

SCENARIO = Path(__file__).with_name("simulated.yml")
BACKFILL, BUILTIN = "simulated", "simulated with clusters.small.options.SchedulerType=sched/builtin"
COLUMNS = (
    "id,submit,run_time,limit,nodes,tasks,user,partition,licenses,dependency,array,array_index"
)
# A queue of one node: each job needs all of it for a minute.
QUEUE = [f"q{number},{20 * number},60,120,1,1,alice,queue,,,," for number in range(6)]
# wide needs both nodes, of which long has one; narrow ends before wide can start.
PAIR = [
    "long,0,500,600,1,1,alice,pair,,,,",
    "wide,10,60,120,2,2,alice,pair,,,,",
    "narrow,20,60,120,1,1,bob,pair,,,,",
]
PREEMPTED = ["low,0,200,600,1,1,alice,low,,,,", "high,100,60,120,1,1,bob,high,,,,"]
LICENSED = [
    "holder,0,100,180,1,1,alice,licensed,matlab,,,",
    "waiter,10,60,120,1,1,bob,licensed,matlab,,,",
]
OTHER = [
    "after,30,10,60,1,1,bob,licensed,,afterany:holder,,",
    "e1,200,30,60,1,1,bob,licensed,,,batch,1",
    "e2,200,60,120,1,1,bob,licensed,,,batch,2",
    "endless,300,500,60,1,1,bob,licensed,,,,",
    # It could end only after the maintenance has begun.
    "maintained,1100,30,120,1,1,bob,licensed,,,,",
]
# A third of an hour after the beginning, for five minutes.
MAINTENANCE, MAINTAINED = "0.325+0.0834", (1170, 1470)
# slurmctld starts jobs at most 3 s (batch_sched_delay) and the time of a message after it could,
# and its backfill scheduler runs every 30 s (bf_interval): slurm.conf(5), SchedulerParameters.
DELAY, BACKFILL_DELAY = 8, 45
# Slurm ends jobs up to 30 s after their limit: slurm.conf(5), OverTimeLimit.
LATE_END = 35


@pytest.fixture(scope="module")
def done(harness: Harness, tmp_path_factory: pytest.TempPathFactory) -> tuple[Done, Path]:
    """Both policies, simulated once."""
    directory = tmp_path_factory.mktemp("simulation")
    trace = directory / "trace.csv"
    lines = [COLUMNS, *QUEUE, *PAIR, *PREEMPTED, *LICENSED, *OTHER]
    trace.write_text("\n".join([*lines, ""]))
    report = directory / "report"
    setting = "clusters.small.options.SchedulerType=sched/builtin"
    command = ("simulate", SCENARIO, "--trace", trace, "--repeat", "1", "--set", setting)
    command += ("--maintenance", MAINTENANCE)
    return harness(*command, "--report", report), report


@pytest.fixture(scope="module")
def simulations(done: tuple[Done, Path]) -> dict[str, Simulation]:
    answer, directory = done
    found = {simulation.policy: simulation for simulation in results.read(directory)}
    assert {*found} == {BACKFILL, BUILTIN}, answer.stdout + answer.stderr
    return found


@pytest.fixture(params=[BACKFILL, BUILTIN])
def jobs(
    request: pytest.FixtureRequest, simulations: dict[str, Simulation]
) -> dict[str, JobOutcome]:
    return by_name(simulations[request.param])


def by_name(simulation: Simulation) -> dict[str, JobOutcome]:
    return {job.trace_id: job for job in simulation.jobs}


def start(job: JobOutcome) -> float:
    assert job.start is not None, job
    return job.start


@pytest.mark.core
def test_the_report_compares_the_policies(done: tuple[Done, Path]) -> None:
    answer, directory = done
    report = json.loads((directory / "report.json").read_text())
    # A very busy machine may keep a simulation from keeping time, and the report must say so.
    problems = [found.quality.problems for found in results.read(directory)]
    expected = (3, "unknown") if any(problems) else (0, "passed")
    assert (answer.returncode, report["verdict"]) == expected, answer.stdout + answer.stderr
    assert [policy["name"] for policy in report["policies"]] == [BACKFILL, BUILTIN]
    assert {"mean", "median", "p95"} <= report["policies"][0]["wait"].keys()
    assert {"scenario", "stages", "checks", "jobs", "events"} <= report.keys()
    assert (directory / "report.html").exists()


@pytest.mark.core
def test_a_queue_of_one_node_is_first_in_first_out(jobs: dict[str, JobOutcome]) -> None:
    free = 0.0
    for number in range(len(QUEUE)):
        job = jobs[f"q{number}"]
        assert job.state == "COMPLETED"
        expected = max(job.submit, free)
        assert expected <= start(job) <= expected + DELAY
        free = job.end or 0.0
        assert 60 <= free - start(job) <= 60 + DELAY


@pytest.mark.core
def test_backfill_starts_a_job_that_delays_no_other(simulations: dict[str, Simulation]) -> None:
    with_backfill, without = by_name(simulations[BACKFILL]), by_name(simulations[BUILTIN])
    assert start(with_backfill["narrow"]) <= 20 + BACKFILL_DELAY
    assert with_backfill["narrow"].backfilled
    assert start(without["narrow"]) >= start(without["wide"]) >= 500
    assert start(with_backfill["wide"]) <= 500 + BACKFILL_DELAY


def test_a_partition_of_a_higher_tier_preempts(jobs: dict[str, JobOutcome]) -> None:
    low, high = jobs["low"], jobs["high"]
    assert start(high) <= 100 + BACKFILL_DELAY
    assert (low.restarts, low.preemptions) == (1, 1)
    assert low.state == "COMPLETED"
    assert (low.end or 0) >= (high.end or 0) + 200


def test_a_license_is_used_by_one_job_at_a_time(jobs: dict[str, JobOutcome]) -> None:
    end = jobs["holder"].end or 0
    assert end <= start(jobs["waiter"]) <= end + BACKFILL_DELAY
    assert "Licenses" in dict(jobs["waiter"].held)


def test_no_job_runs_during_maintenance(jobs: dict[str, JobOutcome]) -> None:
    begin, end = MAINTAINED
    assert end <= start(jobs["maintained"]) <= end + BACKFILL_DELAY
    for job in jobs.values():
        assert start(job) >= end or (job.end or 0) <= begin + DELAY, job


def test_dependencies_arrays_and_limits_are_those_of_the_trace(
    jobs: dict[str, JobOutcome],
) -> None:
    assert start(jobs["after"]) >= (jobs["holder"].end or 0)
    first, second = jobs["e1"], jobs["e2"]
    assert (first.end or 0) - start(first) == pytest.approx(30, abs=DELAY)
    assert (second.end or 0) - start(second) == pytest.approx(60, abs=DELAY)
    endless = jobs["endless"]
    assert endless.state == "TIMEOUT"
    assert 60 <= (endless.end or 0) - start(endless) <= 60 + LATE_END


def test_figures_of_a_clock_that_is_too_fast_are_unknown(harness: Harness, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    burst = [f"b{number},0,5,60,1,1,alice,,,,," for number in range(300)]
    trace.write_text("\n".join([COLUMNS, *burst, ""]))
    report = tmp_path / "report"
    command = ("simulate", SCENARIO, "--trace", trace, "--repeat", "1", "--hours", "0.1")
    answer = harness(*command, "--rate", "100", "--report", report)
    assert answer.returncode == 3, answer.stdout + answer.stderr
    assert "jobs were submitted late" in answer.stdout
    assert json.loads((report / "report.json").read_text())["verdict"] == "unknown"


def test_what_cannot_be_simulated_is_refused_before_anything_starts(
    harness: Harness, tmp_path: Path
) -> None:
    for scenario in ("federation", "elastic-l1"):
        answer = harness("simulate", Path(__file__).parents[2] / "scenarios" / f"{scenario}.yml")
        assert answer.returncode == 2
        assert "a simulation does not support" in answer.stderr
