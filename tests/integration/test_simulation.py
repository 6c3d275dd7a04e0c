"""Policies on a clock that runs fast: answers that follow from Slurm's documentation."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path

import pytest

from harness.simulation import simulation_files
from harness.simulation.model import JobOutcome, Simulation
from support import Done, Harness, command

SCENARIO = Path(__file__).with_name("simulated.yml")
BACKFILL, BUILTIN = "simulated", "simulated with clusters.small.options.SchedulerType=sched/builtin"
COLUMNS = (
    "id,submit,run_time,limit,nodes,tasks,user,partition,licenses,dependency,array,array_index,"
    "qos,nice,memory_per_node,think_time,recorded_wait"
)
# A queue of one node: each job needs all of it for a minute.
QUEUE = [f"q{number},{20 * number},60,120,1,1,alice,queue,,,," for number in range(6)]
# wide needs both nodes, of which long has one; narrow ends before wide can start.
PAIR = [
    "long,0,500,600,1,1,alice,pair,,,,",
    "wide,10,60,120,2,2,alice,pair,,,,",
    "narrow,20,60,120,1,1,alice,pair,,,,",
]
# The first is preempted by the second. A node has 100 MiB: both fit when the first is suspended.
PREEMPTED = [
    f"{mode}{row},,,,,,,40"
    for mode, node in (("requeued", 4), ("cancelled", 7), ("suspended", 8))
    for row in (f",0,200,600,1,1,alice,{mode}", f"_by,100,60,120,1,1,bob,urgent{node}")
]
LICENSED = [
    "holder,0,100,180,1,1,alice,licensed,matlab,,,",
    "waiter,10,60,120,1,1,bob,licensed,matlab,,,",
]
# The order of submission is another one than that of priorities.
SHARED = [
    "usage,0,300,360,1,1,carol,shared",
    "spender,100,60,120,1,1,carol,shared",
    "saver,120,60,120,1,1,dave,shared",
]
AGING = [
    "before,0,300,360,1,1,alice,aging",
    "patient,10,60,120,1,1,alice,aging,,,,,,1000",
    "hasty50,60,60,120,1,1,alice,aging",
    "hasty150,160,60,120,1,1,alice,aging",
]
LIMITED = [
    "capped,0,100,120,1,1,alice,limited,,,,,capped",
    "above,10,60,120,1,1,bob,limited,,,,,capped",
    "free,20,60,120,1,1,bob,limited",
    "single,300,100,120,1,1,alice,limited,,,,,single",
    "second,310,60,120,1,1,alice,limited,,,,,single",
    "other,320,60,120,1,1,bob,limited,,,,,single",
]
RESERVED = [
    "excluded,0,30,60,1,1,alice,reserved",
]
FAILING = ["unlucky,0,200,300,1,1,bob,failing"]
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
# The simulation begins at 360 s, a tenth of an hour.
BEGUN = [
    "ended,0,100,600,1,1,alice,queue",
    "running,100,600,900,1,1,alice,queue,,,,,,,,,0",
    "pending,200,60,120,1,1,alice,queue,,,,,,,,,900",
    "holder,370,60,120,1,1,alice,shared",
    "spender,380,60,120,1,1,carol,shared",
    "saver,390,60,120,1,1,dave,shared",
    "short,360,50,120,1,1,bob,licensed",
    "thought,361,10,60,1,1,bob,licensed,,afterany:short,,,,,,200",
    "endless,360,500,60,1,1,bob,licensed",
    "after_endless,361,10,60,1,1,bob,licensed,,afterany:endless,,,,,,200",
    "late,560,10,60,1,1,bob,pair",
]
USAGE = "Account|User|RawUsage\nchemistry||90000\nchemistry|carol|90000\nchemistry|dave|0\n"
# A hundred seconds after the beginning, for a hundred seconds.
FAILURE, FAILED = "n13@0.02778+0.02778", (100, 200)
# slurmctld starts jobs at most 3 s (batch_sched_delay) and the time of a message after it could,
# and its backfill scheduler runs every 30 s (bf_interval): slurm.conf(5), SchedulerParameters. A
# simulation whose figures are known lets one job in twenty be 15 s late (simulation/quality.py).
DELAY, BACKFILL_DELAY = 18, 48
# The end of a reservation is no event: sched/builtin looks every 60 s (sched_interval).
INTERVAL_DELAY = 78
# Slurm ends jobs up to 30 s after their limit: slurm.conf(5), OverTimeLimit.
LATE_END = 30 + DELAY


@pytest.fixture(scope="module")
def done(harness: Harness, tmp_path_factory: pytest.TempPathFactory) -> tuple[Done, Path]:
    """Both policies, simulated once."""
    directory = tmp_path_factory.mktemp("simulation")
    trace = directory / "trace.csv"
    tables = (QUEUE, PAIR, PREEMPTED, LICENSED, SHARED, AGING, LIMITED, RESERVED, FAILING, OTHER)
    write(trace, *(line for table in tables for line in table))
    report = directory / "report"
    setting = "clusters.small.options.SchedulerType=sched/builtin"
    command = ("simulate", SCENARIO, "--trace", trace, "--repeat", "1", "--set", setting)
    command += ("--maintenance", MAINTENANCE, "--node-failure", FAILURE)
    return harness(*command, "--report", report), report


@pytest.fixture(scope="module")
def simulations(done: tuple[Done, Path]) -> dict[str, Simulation]:
    answer, directory = done
    found = {simulation.policy: simulation for simulation in simulation_files.read(directory)}
    assert {*found} == {BACKFILL, BUILTIN}, answer.stdout + answer.stderr
    return found


@pytest.fixture(params=[BACKFILL, BUILTIN])
def jobs(
    request: pytest.FixtureRequest, simulations: dict[str, Simulation]
) -> dict[str, JobOutcome]:
    return by_name(simulations[request.param])


def write(path: Path, *rows: str) -> None:
    """Write a trace, whose rows may lack their last cells."""
    cells = COLUMNS.count(",")
    lines = [row + "," * (cells - row.count(",")) for row in rows]
    path.write_text("\n".join([COLUMNS, *lines, ""]))


def by_name(simulation: Simulation) -> dict[str, JobOutcome]:
    """Return the jobs of a simulation, which must have kept time: others show nothing."""
    assert not simulation.quality.problems
    return {job.trace_id: job for job in simulation.jobs}


def start(job: JobOutcome) -> float:
    assert job.start is not None, job
    return job.start


@pytest.mark.core
def test_the_report_compares_the_policies(done: tuple[Done, Path]) -> None:
    answer, directory = done
    report = json.loads((directory / "report.json").read_text())
    # A very busy machine may keep a simulation from keeping time, and the report must say so.
    problems = [found.quality.problems for found in simulation_files.read(directory)]
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


@pytest.mark.exhaustive
def test_nodes_may_be_on_several_hosts(harness: Harness, tmp_path: Path) -> None:
    trace, report = tmp_path / "trace.csv", tmp_path / "report"
    write(trace, *QUEUE, *PAIR)
    path = tmp_path / "several.yml"
    path.write_text(SCENARIO.read_text().replace("hosts: s1", "hosts: s[1-3]"))
    answer = harness("simulate", path, "--trace", trace, "--repeat", "1", "--report", report)
    (simulation,) = simulation_files.read(report)
    jobs = by_name(simulation)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert {job.state for job in jobs.values()} == {"COMPLETED"}
    assert 500 <= start(jobs["wide"]) <= 500 + BACKFILL_DELAY


def test_a_preempted_job_is_requeued(jobs: dict[str, JobOutcome]) -> None:
    """It runs for 200 s again after the 60 s of the job that preempted it at 100 s.

    slurm.conf(5): jobs of a partition with a higher PriorityTier preempt those of a lower one, as
    the PreemptMode of the lower one says.
    """
    job, urgent = jobs["requeued"], jobs["requeued_by"]
    assert start(urgent) <= 100 + BACKFILL_DELAY
    assert (job.state, job.restarts, job.preemptions) == ("COMPLETED", 1, 1)
    (_, stopped), (again, end) = job.runs
    assert stopped <= start(urgent) + DELAY
    assert again >= (urgent.end or 0)
    assert end - again == pytest.approx(200, abs=DELAY)


def test_a_preempted_job_is_cancelled(jobs: dict[str, JobOutcome]) -> None:
    """It ends when the other starts, at 100 s, and never runs again."""
    job, urgent = jobs["cancelled"], jobs["cancelled_by"]
    assert start(urgent) <= 100 + BACKFILL_DELAY
    assert (job.state, job.restarts, job.preemptions) == ("PREEMPTED", 0, 1)
    assert 100 <= (job.end or 0) <= start(urgent) + DELAY


def test_a_preempted_job_is_suspended(jobs: dict[str, JobOutcome]) -> None:
    """It has run for 100 s, waits for the 60 s of the other, and runs for the 100 s that are left.

    slurm.conf(5): PreemptMode=SUSPEND,GANG: the gang scheduler resumes it. It may look for that
    only every SchedulerTimeSlice, 30 s.
    """
    job, urgent = jobs["suspended"], jobs["suspended_by"]
    assert start(urgent) <= 100 + BACKFILL_DELAY
    assert (job.state, job.restarts, job.preemptions) == ("COMPLETED", 0, 1)
    (_, halt), (resume, end) = job.runs
    assert halt == pytest.approx(start(urgent), abs=DELAY)
    assert resume == pytest.approx(urgent.end or 0, abs=30 + DELAY)
    assert halt - start(job) + end - resume == pytest.approx(200, abs=DELAY)


def test_a_user_without_usage_comes_first(jobs: dict[str, JobOutcome]) -> None:
    """Carol has used 300 s when the node becomes free, Dave nothing, and their shares are equal.

    Fair tree: the shares of siblings divided by their usage are 0.5 / 1 for Carol, and infinite for
    Dave. So his rank is higher, by at least a fourth of PriorityWeightFairshare for four users,
    25,000 points, while the age of Carol's job is worth 200.
    """
    free = jobs["usage"].end or 0
    assert free <= start(jobs["saver"]) <= free + BACKFILL_DELAY
    assert start(jobs["spender"]) >= (jobs["saver"].end or 0)


def test_an_old_job_overtakes_younger_ones(jobs: dict[str, JobOutcome]) -> None:
    """Age counts 6000 points / 600 s, so that a nice of 1000 makes up for an age of 100 s.

    The job that waits since 10 s comes after that of 60 s (500 points of age more, 1000 of nice
    less), and before that of 160 s (1500 points more).
    """
    order = sorted(("patient", "hasty50", "hasty150"), key=lambda name: start(jobs[name]))
    assert order == ["hasty50", "patient", "hasty150"]
    assert start(jobs["hasty50"]) >= (jobs["before"].end or 0) >= 300


def test_a_qos_limits_what_its_jobs_use_at_once(jobs: dict[str, JobOutcome]) -> None:
    """GrpTRES=cpu=1: the second job of the QOS waits for the first, though a node is free.

    A job of another QOS, submitted later, starts at once.
    """
    end = jobs["capped"].end or 0
    assert end <= start(jobs["above"]) <= end + BACKFILL_DELAY
    assert start(jobs["free"]) <= 20 + BACKFILL_DELAY
    assert "QOSGrpCpuLimit" in dict(jobs["above"].held)


def test_a_qos_limits_the_jobs_of_a_user(jobs: dict[str, JobOutcome]) -> None:
    """MaxJobsPerUser=1: the second job of a user waits for the first, that of another does not."""
    end = jobs["single"].end or 0
    assert end <= start(jobs["second"]) <= end + BACKFILL_DELAY
    assert start(jobs["other"]) <= 320 + BACKFILL_DELAY
    assert "QOSMaxJobsPerUserLimit" in dict(jobs["second"].held)


def test_jobs_of_a_node_that_fails_run_again(jobs: dict[str, JobOutcome]) -> None:
    """slurm.conf(5), JobRequeue: a batch job is requeued when its node fails.

    Its node is the only one of its partition, so it starts again when that is back, for 200 s.
    """
    (_, stopped), (again, end) = jobs["unlucky"].runs
    begin, back = FAILED
    assert begin <= stopped <= begin + DELAY
    assert again >= back
    assert end - again == pytest.approx(200, abs=DELAY)
    assert (jobs["unlucky"].state, jobs["unlucky"].restarts) == ("COMPLETED", 1)


def test_a_license_is_used_by_one_job_at_a_time(jobs: dict[str, JobOutcome]) -> None:
    end = jobs["holder"].end or 0
    assert end <= start(jobs["waiter"]) <= end + BACKFILL_DELAY
    assert "Licenses" in dict(jobs["waiter"].held)


def test_no_job_runs_during_maintenance(jobs: dict[str, JobOutcome]) -> None:
    begin, end = MAINTAINED
    assert end <= start(jobs["maintained"]) <= end + INTERVAL_DELAY
    for job in jobs.values():
        assert start(job) >= end or (job.end or 0) <= begin + DELAY, job


def test_reservations_of_the_scenario_are_there(jobs: dict[str, JobOutcome]) -> None:
    """Carol's reservation has the only node for 15 minutes, from shortly before the beginning."""
    assert 300 <= start(jobs["excluded"]) <= 900 + INTERVAL_DELAY


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
    write(trace, *(f"b{number},0,5,60,1,1,alice" for number in range(300)))
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


def test_an_interrupted_simulation_has_what_was_measured(
    environment: dict[str, str], tmp_path: Path
) -> None:
    write(
        tmp_path / "trace.csv",
        "endless,0,100000,200000,1,1,alice,queue",
        "behind,10,60,120,1,1,alice,queue",
        "unknown,20,60,120,1,1,carol,limited,,,,,capped",  # a QOS that Carol cannot use
        *(job for job in PREEMPTED if job.startswith("suspended")),
        "tomorrow,86400,60,120,1,1,alice,queue",
    )
    options = ("--trace", tmp_path / "trace.csv", "--repeat", "1", "--report", tmp_path / "report")
    with subprocess.Popen(
        command("simulate", SCENARIO, *options),
        env=environment,
        text=True,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stderr
        for line in process.stderr:
            # The suspended job runs for 200 s. It is suspended for the 60 s of the other, and until
            # the gang scheduler looks, up to 30 s later; each start and end may be late by DELAY.
            if (clock := re.search(r"(\d+):(\d+):\d+ simulated", line)) and clock[0] > "00:07":
                process.send_signal(signal.SIGINT)
                break
        out, errors = process.communicate()
    assert process.returncode == 3, out + errors
    (simulation,) = simulation_files.read(tmp_path / "report")
    found = by_name(simulation)
    assert {name: job.state for name, job in found.items()} == {
        "endless": "RUNNING",
        "behind": "PENDING",
        "unknown": "REFUSED",
        "suspended": "COMPLETED",
        "suspended_by": "COMPLETED",
        "tomorrow": "NOT_SUBMITTED",
    }
    assert "nvalid qos" in found["unknown"].reason
    assert {*dict(found["behind"].held)} & {"Priority", "Resources"}
    assert len(found["suspended"].runs) == 2
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert (report["verdict"], report["problem"]) == ("unknown", "interrupted")
    assert report["policies"][0]["refused"] == 1


@pytest.fixture(scope="module")
def begun(harness: Harness, tmp_path_factory: pytest.TempPathFactory) -> tuple[Done, Path]:
    """A simulation that begins with usage, and jobs that run, wait, or depend on others.

    It is of another release than the others.
    """
    directory = tmp_path_factory.mktemp("begun")
    write(directory / "trace.csv", *BEGUN)
    (directory / "usage.txt").write_text(USAGE)
    command = ("simulate", SCENARIO, "--trace", directory / "trace.csv", "--repeat", "1")
    command += (
        "--release",
        "26.05",
        "--begin",
        "0.1",
        "--running",
        "--warm-up",
        "0.05",
        "--think-time",
    )
    command += ("--usage", directory / "usage.txt", "--report", directory / "report")
    return harness(*command), directory / "report"


@pytest.fixture(scope="module")
def later(begun: tuple[Done, Path]) -> dict[str, JobOutcome]:
    answer, directory = begun
    assert (directory / simulation_files.DIRECTORY).exists(), answer.stdout + answer.stderr
    (simulation,) = simulation_files.read(directory)
    return by_name(simulation)


def test_jobs_run_or_wait_as_they_did_when_the_simulation_begins(
    later: dict[str, JobOutcome],
) -> None:
    """One has run for 260 of its 600 s, so that it runs for 340 s; the other waits for its node."""
    assert "ended" not in later
    running, pending = later["running"], later["pending"]
    assert -60 <= start(running) <= DELAY
    assert running.end == pytest.approx(340, abs=DELAY)
    assert (running.end or 0) <= start(pending) <= (running.end or 0) + BACKFILL_DELAY


def test_usage_at_the_beginning_counts(later: dict[str, JobOutcome]) -> None:
    """Carol has all of her account's usage: Dave comes first, though he submits later."""
    assert start(later["saver"]) >= (later["holder"].end or 0)
    assert start(later["spender"]) >= (later["saver"].end or 0)


def test_users_submit_after_they_have_thought(later: dict[str, JobOutcome]) -> None:
    """Both think for 200 s from the end of the job before, even if that is a timeout."""
    assert later["thought"].submit == pytest.approx((later["short"].end or 0) + 200, abs=DELAY)
    assert later["endless"].state == "TIMEOUT"
    assert later["after_endless"].submit >= (later["endless"].end or 0) + 200 - 1
    assert later["after_endless"].state == "COMPLETED"


def test_jobs_of_the_warm_up_are_not_measured(
    begun: tuple[Done, Path], later: dict[str, JobOutcome]
) -> None:
    report = json.loads((begun[1] / "report.json").read_text())
    measured = {name for name, job in later.items() if job.submit >= 180}
    assert measured == {"thought", "after_endless", "late"}
    assert report["policies"][0]["jobs"] == len(measured)
