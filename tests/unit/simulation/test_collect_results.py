from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.simulation import collect_results
from harness.simulation.measures import wait_of
from harness.simulation.submission import submissions
from harness.simulation.trace import Trace, TraceJob

BEGIN = 1_800_000_000.0
JOBS = (
    TraceJob("plain", 0, 30, 60, 1, 1, "alice"),
    TraceJob("e1", 5, 30, 60, 1, 1, "bob", array="e", array_index=1),
    TraceJob("e2", 5, 30, 60, 1, 1, "bob", array="e", array_index=2),
    TraceJob("refused", 9, 30, 60, 1, 1, "bob", account="art"),
    TraceJob("requeued", 9, 30, 60, 1, 1, "bob"),
)


def row(job_id: str, name: int, state: str, times: str, flags: str = "", nodes: str = "n1") -> str:
    moments = [
        str(int(BEGIN) + int(at)) if at.lstrip("-").isdigit() else at for at in times.split()
    ]
    facts = [*("2", "2", "bob", "physics", "batch", "normal"), flags, nodes]
    return "|".join([job_id, str(name), state, *moments, *facts])


def outcomes(
    sacct: list[str],
    squeue: str = "",
    suspensions: Mapping[str, Sequence[tuple[float, float | None]]] | None = None,
) -> dict[str, collect_results.JobOutcome]:
    printed = {"sacct": "\n".join(sacct), "squeue": squeue}
    refused, held = {"2": "Invalid account"}, {"0.": {"Priority": 4.0}}
    found = collect_results.outcomes(
        submissions(Trace("t", JOBS)), printed, BEGIN, refused, held, suspensions or {}, 500
    )
    return {outcome.trace_id: outcome for outcome in found}


def test_a_job_that_ended_has_its_times_since_the_beginning() -> None:
    line = row("7", 0, "COMPLETED", "0 1 4 34", "SchedBackfill,StartReceived", "n[1-2]")
    job = outcomes([line])["plain"]
    assert (job.job_id, job.submit, job.eligible, job.start, job.end) == (7, 0, 1, 4, 34)
    assert (job.nodes, job.cpus, job.backfilled) == (("n1", "n2"), 2, True)
    assert job.held == (("Priority", 4.0),)


def test_a_job_that_ran_when_an_earlier_repeat_ended_is_not_of_this_one() -> None:
    earlier = row("7", 0, "RUNNING", "-3000 -3000 -2990 Unknown")
    assert outcomes([earlier])["plain"].start is None
    found = outcomes([earlier, row("7", 0, "COMPLETED", "0 0 4 34")])["plain"]
    assert (found.submit, found.start, found.restarts) == (0, 4, 0)
    just_before = outcomes([row("7", 0, "RUNNING", "-60 -60 -60 Unknown")])["plain"]
    assert just_before.start == -60


def test_elements_of_arrays_are_told_apart_even_if_they_are_pending() -> None:
    found = outcomes(
        [
            row("8_1", 1, "RUNNING", "5 5 9 Unknown", "SchedMain"),
            row("8_[2]", 1, "PENDING", "5 5 Unknown Unknown", nodes="None assigned"),
        ],
        squeue="8|2|PENDING|Resources|physics|batch|normal|1\n",
    )
    assert (found["e1"].state, found["e1"].end, found["e1"].backfilled) == ("RUNNING", None, False)
    pending = found["e2"]
    assert (pending.state, pending.start, pending.nodes) == ("PENDING", None, ())
    assert pending.reason == "Resources"


def test_a_job_that_may_not_start_yet_is_in_squeue_only() -> None:
    job = outcomes([], squeue="7|N/A|PENDING|Dependency|physics|batch|normal|0\n")["plain"]
    assert (job.job_id, job.state, job.reason) == (7, "PENDING", "Dependency")
    assert (job.account, job.partition, job.qos) == ("physics", "batch", "normal")
    assert wait_of(job, 900) is None


def test_a_refused_job_has_the_message_of_sbatch() -> None:
    job = outcomes([])["refused"]
    assert (job.job_id, job.state, job.reason) == (None, "REFUSED", "Invalid account")


def test_a_requeued_job_waited_from_its_submission_to_its_first_start() -> None:
    job = outcomes(
        [
            row("9", 3, "PREEMPTED", "9 9 12 20", "SchedMain"),
            row("9", 3, "CANCELLED by 0", "20 141 150 160", "SchedMain"),
        ]
    )["requeued"]
    assert (job.submit, job.start, job.end) == (9, 12, 160)
    assert (job.state, job.restarts, job.preemptions) == ("CANCELLED", 1, 1)
    assert job.runs == ((12, 20), (150, 160))


def test_a_job_does_not_run_while_it_is_suspended() -> None:
    line = row("7", 0, "COMPLETED", "0 1 4 94")
    job = outcomes([line], suspensions={"0.": [(10.5, 40.5)]})["plain"]
    assert (job.runs, job.preemptions) == (((4, 10.5), (40.5, 94)), 1)
    still = outcomes(
        [row("7", 0, "SUSPENDED", "0 1 4 Unknown")], suspensions={"0.": [(10.5, None)]}
    )
    assert still["plain"].runs == ((4, 10.5),)


def test_a_job_that_was_not_submitted_by_the_end_says_so() -> None:
    assert outcomes([])["plain"].state == "NOT_SUBMITTED"


def test_only_users_have_shares() -> None:
    text = "root||0.0|1.0\n physics||0.5|0.25\n  physics|bob|0.5|0.25\n"
    assert [*collect_results.fairness(text)] == [("physics", "bob", 0.5, 0.25)]
