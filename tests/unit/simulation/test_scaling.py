from dataclasses import replace

import pytest

from harness import scenario
from harness.parsing import hostlist
from harness.shipped_files import SCENARIOS
from harness.simulation.generator import generate, work
from harness.simulation.scaling import Target, fit, target_of
from harness.simulation.trace import Trace, TraceJob

_TARGET = Target(10, 40, 4, (("alice", "physics"), ("bob", None)), ("batch", "long"))


def _job(name: str = "1", tasks: int = 4, **fields: object) -> TraceJob:
    values: dict = {"submit": 0, "run_time": 100, "limit": None, "nodes": None, "user": "alice"}
    return TraceJob(name, tasks=tasks, **(values | fields))


def _fitted(*jobs: TraceJob, target: Target = _TARGET, **options: object) -> Trace:
    return fit(Trace("t", jobs), target, **options)  # type: ignore[arg-type]


def test_a_trace_that_fits_does_not_change() -> None:
    job = _job(account="physics", partition="long", nodes=2)

    assert _fitted(job) == Trace("t", (job,))


@pytest.mark.parametrize("by", ["nodes", "sampling"])
def test_the_load_stays_about_the_same(by: str) -> None:
    users = [("alice", "physics"), ("bob", None)]
    large = generate(1, 4000, 48, users, ["batch"], 160, 4, largest=0.06)
    fitted = fit(large, _TARGET, by=by)  # type: ignore[arg-type]

    load = sum(map(work, fitted.jobs)) / (40 * fitted.jobs[-1].submit)
    assert load == pytest.approx(1.15, abs=0.15)
    assert f"scaled by {by} from 640 CPUs to 40 CPUs" in fitted.notes[1]
    assert f"load 1.15 before and {load:.2f} after" in fitted.notes[1]
    assert all(job.cpus <= 40 and (job.nodes or 1) <= 10 for job in fitted.jobs)
    assert all(job.cpus <= 4 * (job.nodes or 10) for job in fitted.jobs)


def test_scaling_is_the_same_for_the_same_seed() -> None:
    large = generate(1, 300, 10, [("alice", "physics")], [], 160, 4)

    assert fit(large, _TARGET) == fit(large, _TARGET)
    by_seed = [fit(large, _TARGET, by="sampling", seed=seed).jobs for seed in (1, 2)]
    assert by_seed[0] != by_seed[1]


def test_nodes_and_cpus_scale_on_their_own() -> None:
    # As many nodes, but smaller ones: 128 CPUs become 4.
    trace = Trace("t", (_job(tasks=256, nodes=2),), nodes=10, cpus=1280)

    assert [(job.nodes, job.tasks) for job in fit(trace, _TARGET).jobs] == [(2, 8)]


def test_sampling_keeps_arrays_and_dependent_jobs_together() -> None:
    arrays = [
        _job(f"{array}{index}", array=f"a{array}", array_index=index)
        for array in range(100, 150)
        for index in range(3)
    ]
    chains = [_job(f"c{array}", dependency=f"afterok:a{array}") for array in range(100, 150)]
    fitted = fit(Trace("t", (*arrays, *chains), cpus=80), _TARGET, by="sampling").jobs

    kept = {job.array for job in fitted} - {None}
    assert 10 < len(kept) < 40
    for array in kept:
        assert sum(job.array == array for job in fitted) == 3
    assert {f"afterok:{array}" for array in kept} == {job.dependency for job in fitted} - {None}


def test_a_system_of_unknown_size_is_as_large_as_what_its_jobs_used() -> None:
    jobs = [
        _job("1", 40, recorded_wait=0),
        _job("2", 40, submit=10, recorded_wait=0),
        _job("3", 40, submit=20, recorded_wait=80),  # starts when the first one ends
    ]

    assert "used at most 80 CPUs at once, to 40 CPUs" in _fitted(*jobs).notes[0]
    assert "whose largest job has 80 CPUs, to 40 CPUs" in _fitted(_job(tasks=80)).notes[0]


def test_unknown_users_and_partitions_are_replaced_in_turn_the_busiest_first() -> None:
    fitted = _fitted(
        _job("1", user="u1", partition="q1"),
        _job("2", user="u2", partition="q2", run_time=500),
        _job("3", user="u3", partition="batch", run_time=50),
        _job("4", user="bob", account="physics"),
    )

    assert [(job.user, job.account, job.partition) for job in fitted.jobs] == [
        ("bob", None, "long"),
        ("alice", "physics", "batch"),
        ("alice", "physics", "batch"),
        ("bob", None, None),
    ]
    assert fitted.notes == (
        "3 unknown users replaced: u2 is alice, u1 is bob, u3 is alice",
        "2 unknown partitions replaced: q2 is batch, q1 is long",
        "not requested, as the cluster does not have it: account physics (1 jobs)",
    )


def test_accounts_of_a_user_are_kept() -> None:
    target = replace(_TARGET, accounts=(("alice", ("physics", "chemistry")),))

    assert _fitted(_job(account="chemistry"), target=target).jobs[0].account == "chemistry"


@pytest.mark.parametrize(
    ("field", "kept", "dropped"),
    [
        ("qos", "high", "low"),
        ("gres", "gpu:a100:2", "gpu:h100:2"),
        ("gres", "gpu:2", "gpu:1,shard:1"),
        ("constraint", "[ib*2&amd]|ib", "ib&intel"),
        ("licenses", "matlab:2", "matlab:1,ansys"),
    ],
)
def test_what_the_cluster_does_not_have_is_not_requested(
    field: str, kept: str, dropped: str
) -> None:
    target = replace(
        _TARGET,
        qos=frozenset({"high"}),
        gres=frozenset({"gpu", "gpu:a100"}),
        features=frozenset({"ib", "amd"}),
        licenses=frozenset({"matlab"}),
    )
    fitted = _fitted(_job("1", **{field: kept}), _job("2", **{field: dropped}), target=target)

    assert [getattr(job, field) for job in fitted.jobs] == [kept, None]
    assert dropped in fitted.notes[0]


def test_memory_is_lowered_to_that_of_a_node() -> None:
    target = replace(_TARGET, memory=1000)
    fitted = _fitted(
        _job("1", memory_per_node=4000), _job("2", memory_per_cpu=500), _job("3"), target=target
    )

    memories = [(job.memory_per_node, job.memory_per_cpu) for job in fitted.jobs]
    assert memories == [(1000, None), (None, 250), (None, None)]
    assert len(fitted.notes) == 2


def test_jobs_that_no_nodes_can_hold_are_left_out() -> None:
    trace = Trace(
        "t",
        (
            _job("1"),
            _job("2", nodes=11, tasks=11),
            _job("3", tasks=1, cpus_per_task=5),
            _job("4", nodes=1, tasks=5),
            _job("5", dependency="afterok:4"),
        ),
        cpus=40,
    )
    fitted = fit(trace, _TARGET)

    assert [(job.id, job.dependency) for job in fitted.jobs] == [("1", None), ("5", None)]
    assert fitted.notes == ("more than the nodes can hold, left out: 3 jobs (such as 2, 3, 4)",)


def test_a_scenario_says_what_its_cluster_offers() -> None:
    read = scenario.load(SCENARIOS / "federation.yml")
    name, cluster = next(iter(read.clusters.items()))
    target = target_of(read, name)

    assert target.nodes == len(cluster.node_names())
    assert target.cpus == sum(
        group.counted_cpus() * hostlist.count(group.name) for group in cluster.nodes
    )
    assert {user for user, _ in target.users} == {*read.users}
    assert {*target.partitions} == {*cluster.partitions}


def _day(count: int, **fields: object) -> list[TraceJob]:
    """Return small jobs, of which 16 use 64 CPUs at once."""
    return [
        _job(str(number), submit=10 * number, run_time=160, **fields) for number in range(count)
    ]


@pytest.mark.parametrize("known", [{}, {"recorded_wait": 0}])
@pytest.mark.parametrize("by", ["nodes", "sampling"])
def test_a_wrong_number_of_nodes_does_not_shrink_the_other_jobs(by: str, known: dict) -> None:
    wrong = _job("typo", 4_000_000, nodes=1_000_000, submit=5, **known)
    jobs = [*_day(400, **known), _job("wide", 60, submit=9, **known)]
    with_error = _fitted(*jobs, wrong, by=by)

    assert with_error.jobs == _fitted(*jobs, by=by).jobs
    assert with_error.notes[0] == (
        "too large for the system that the trace was recorded on, whose other jobs need at most 60 "
        "CPUs, left out: 1 jobs (such as typo: 4000000 CPUs)"
    )
    assert f"scaled by {by} from a system of unknown size" in with_error.notes[1]


def test_jobs_beyond_the_size_of_their_system_are_left_out() -> None:
    jobs = (*_day(20), _job("cpus", 81), _job("nodes", 4, nodes=21), _job("all", 80, nodes=20))
    fitted = fit(Trace("t", jobs, cpus=80, nodes=20), _TARGET)

    assert (
        "with its 80 CPUs, left out: 2 jobs (such as cpus: 81 CPUs, nodes: 4 C" in fitted.notes[0]
    )
    assert "scaled by nodes from 80 CPUs to 40 CPUs: " in fitted.notes[1]
    assert {"cpus", "nodes", "all"} & {job.id for job in fitted.jobs} == {"all"}


def test_large_jobs_are_no_errors_if_there_are_several_or_the_others_used_as_much() -> None:
    many = [_job(f"wide{number}", 2000, submit=number) for number in range(5)]
    at_once = [*_day(400), _job("wide", 600, submit=9)]
    for jobs in ([*_day(400), *many], at_once):
        assert "left out" not in _fitted(*jobs).notes[0]
