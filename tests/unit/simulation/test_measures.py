"""Measures of simulations whose values are easy to compute by hand."""

from statistics import fmean

import pytest

from harness.simulation.measures import (
    end_of,
    measure,
    percentile,
    queue_over_time,
    slowdown_of,
    utilization_over_time,
    wait_of,
)
from harness.simulation.model import JobOutcome, Quality, Simulation

_QUALITY = Quality(30.0, 120.0, 0, 0, 0, 0, 0, 0)


def _job(
    submit: float = 0, start: float | None = 0, end: float | None = 100, **fields: object
) -> JobOutcome:
    values: dict = {
        "trace_id": "1",
        "job_id": 1,
        "state": "COMPLETED",
        "eligible": None,
        "nodes": ("n1",),
        "cpus": 1,
        "user": "alice",
        "account": "physics",
        "partition": "batch",
        "qos": "normal",
    }
    return JobOutcome(submit=submit, start=start, end=end, **(values | fields))


def _simulation(*jobs: JobOutcome, hours: float = 1, **fields: object) -> Simulation:
    values: dict = {
        "policy": "p",
        "repeat": 1,
        "release": "24.11",
        "nodes": 2,
        "cpus": 8,
        "quality": _QUALITY,
        "scheduler": {},
    }
    return Simulation(jobs=jobs, hours=hours, **(values | fields))


def test_a_job_waits_from_when_it_is_eligible() -> None:
    assert wait_of(_job(submit=10, start=25), 1000) == 15
    assert wait_of(_job(submit=10, start=25, eligible=20), 1000) == 5
    assert wait_of(_job(submit=10, start=25, eligible=5), 1000) == 15


def test_a_pending_job_has_waited_until_the_end() -> None:
    pending = _job(
        submit=600, eligible=600, start=None, end=None, state="PENDING", reason="Priority"
    )
    measured = measure(_simulation(_job(), pending))

    assert measured.wait.longest == 3000
    assert measured.not_started == 1
    assert (measured.held, measured.held_unit) == ({"Priority": 1}, "jobs at the end")


def test_a_job_that_waits_for_another_one_at_the_end_has_not_waited_yet() -> None:
    dependent = _job(start=None, end=None, state="PENDING", reason="Dependency")
    measured = measure(_simulation(_job(start=30), dependent))

    assert (measured.wait.mean, measured.wait.longest) == (30, 30)
    assert (measured.not_started, measured.queue) == (0, pytest.approx(30 / 3600))


def test_a_job_that_was_not_submitted_before_an_interruption_has_no_wait() -> None:
    later = _job(submit=1000, start=None, end=None, state="NOT_SUBMITTED", job_id=None)
    assert measure(_simulation(_job(start=30), later, ended=900)).wait.mean == 30


def test_refused_and_cancelled_jobs_do_not_wait() -> None:
    refused = _job(start=None, end=None, state="REFUSED", reason="Invalid account", job_id=None)
    cancelled = _job(start=None, end=50, state="CANCELLED")
    measured = measure(_simulation(_job(start=30), refused, cancelled))

    assert measured.wait.mean == 30
    assert (measured.jobs, measured.refused, measured.not_started) == (3, 1, 0)
    assert measured.refusals == {"Invalid account": 1}
    assert measured.states == {"COMPLETED": 1, "REFUSED": 1, "CANCELLED": 1}


def test_mean_median_and_95th_percentile_of_waits() -> None:
    waits = [*range(1, 20), 1000]
    wait = measure(_simulation(*(_job(start=seconds) for seconds in waits))).wait

    # By nearest rank: the 10th and the 19th of 20.
    assert (wait.mean, wait.median, wait.p95, wait.longest) == (fmean(waits), 10, 19, 1000)
    assert percentile([5], 95) == 5


@pytest.mark.parametrize(
    ("wait", "run_time", "slowdown"),
    [
        (0, 100, 1),
        (100, 100, 2),
        (90, 1, 9.1),  # not 91: its run time counts as 10 seconds
        (0, 1, 1),  # not 0.1
        (20, 0, 2),
    ],
)
def test_bounded_slowdown(wait: float, run_time: float, slowdown: float) -> None:
    assert slowdown_of(_job(start=wait, end=wait + run_time)) == pytest.approx(slowdown)


def test_slowdown_is_only_that_of_jobs_that_ended() -> None:
    assert slowdown_of(_job(state="RUNNING", end=None)) is None
    assert slowdown_of(_job(state="TIMEOUT", start=100)) == 10  # it ran for no time at all


def test_a_requeued_job_uses_cpus_only_while_it_runs() -> None:
    job = _job(start=60, end=3600, cpus=8, runs=((60, 360), (3300, 3600)), restarts=1)
    measured = measure(_simulation(job))

    assert measured.wait.mean == 60
    assert measured.slowdown == 12  # an hour for the five minutes of its last run
    assert measured.utilization == pytest.approx(1 / 6)
    assert measured.groups["size"][0].cpu_hours == pytest.approx(8 / 6)


def test_a_suspended_job_has_run_for_all_of_its_runs() -> None:
    assert slowdown_of(_job(start=0, end=300, runs=((0, 50), (250, 300)))) == 3


def test_utilization_counts_cpu_time_until_the_end_of_the_trace() -> None:
    measured = measure(
        _simulation(
            _job(start=0, end=1800, cpus=8),  # all CPUs for half of the hour
            _job(start=3000, end=9000, cpus=4),  # half of them for its last sixth, and longer
        )
    )

    assert measured.utilization == pytest.approx(0.5 + 0.5 / 6)


def test_an_interrupted_simulation_is_measured_until_then() -> None:
    running = _job(start=0, end=None, state="RUNNING", cpus=8)
    measured = measure(_simulation(running, ended=900.0))

    assert measured.utilization == 1
    assert measured.groups["size"][0].cpu_hours == 2


def test_jobs_of_the_warm_up_are_not_measured() -> None:
    measured = measure(
        _simulation(
            _job(submit=0, start=600, end=2700, cpus=8),
            _job(submit=1800, start=1860, end=2700),
            warm_up=0.5,
        )
    )

    assert (measured.jobs, measured.wait.mean) == (1, 60)
    # What runs after the warm-up occupies the nodes, whenever it was submitted.
    assert measured.utilization == pytest.approx((8 * 900 + 840) / (8 * 1800))


def test_the_queue_is_the_mean_number_of_waiting_jobs() -> None:
    jobs = [_job(submit=0, start=900), _job(submit=600, start=1500, eligible=900)]

    assert measure(_simulation(*jobs)).queue == pytest.approx((900 + 600) / 3600)


def test_groups_have_their_own_measures() -> None:
    groups = measure(
        _simulation(
            _job(start=10, end=3610, user="bob", cpus=4),
            _job(start=30, end=3630, user="bob", cpus=64),
            _job(start=2, end=3602),
        )
    ).groups

    assert [(group.name, group.jobs, group.wait.mean) for group in groups["user"]] == [
        ("alice", 1, 2),
        ("bob", 2, 20),
    ]
    assert [(group.name, group.cpu_hours) for group in groups["size"]] == [
        ("1 CPU", 1),
        ("2-4 CPUs", 4),
        ("17-64 CPUs", 64),
    ]
    assert groups["user"][1].slowdown == pytest.approx((3610 / 3600 + 3630 / 3600) / 2)


def test_unfairness_is_the_usage_that_belongs_to_others() -> None:
    def unfairness(*usages: float) -> float | None:
        users = ("alice", "bob", "carol")
        associations = [("a", user, 0.2, used) for user, used in zip(users, usages, strict=True)]
        total = ("a", "", 0.6, sum(usages))
        return measure(_simulation(fairness=(total, *associations))).unfairness

    assert unfairness(0.5, 0.5, 0.5) == pytest.approx(0)
    assert unfairness(0.9, 0, 0) == pytest.approx(2 / 3)
    assert unfairness(0, 0, 0) is None  # nobody has used anything


def test_reasons_are_counted_in_job_hours_if_jobs_were_watched() -> None:
    measured = measure(
        _simulation(
            _job(held=(("Priority", 1800.0), ("Resources", 600.0))),
            _job(held=(("Resources", 3000.0),)),
        )
    )

    assert (measured.held, measured.held_unit) == ({"Resources": 1, "Priority": 0.5}, "job hours")


def test_backfilled_timed_out_and_preempted_jobs() -> None:
    measured = measure(
        _simulation(
            _job(backfilled=True),
            _job(backfilled=False, state="TIMEOUT"),
            _job(backfilled=False, preemptions=2),
            _job(backfilled=None, state="PREEMPTED"),
        )
    )

    assert measured.backfilled == pytest.approx(1 / 3)
    assert (measured.timed_out, measured.preempted) == (1, 2)


def test_nothing_is_measured_of_no_jobs() -> None:
    measured = measure(_simulation())

    assert measured.wait.mean is measured.slowdown is measured.backfilled is None
    assert (measured.jobs, measured.utilization, measured.queue) == (0, 0, 0)
    assert utilization_over_time(_simulation(), 4) == [0, 0, 0, 0]


def test_utilization_and_queue_over_time() -> None:
    simulation = _simulation(
        _job(submit=0, start=0, end=1000, cpus=4),
        _job(submit=0, start=500, end=750, cpus=4),
    )

    assert end_of(simulation) == 1000
    assert utilization_over_time(simulation, 4) == pytest.approx([0.5, 0.5, 1, 0.5])
    assert utilization_over_time(simulation, 1) == pytest.approx([0.625])
    assert queue_over_time(simulation, 5) == pytest.approx([1, 1, 0.5, 0, 0])
