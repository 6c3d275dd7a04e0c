"""Checkers over a history: each finds its own violations only, and knows when it cannot tell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

import pytest

from harness import scenario
from harness.capabilities import OWN_MACHINES
from harness.cluster.slurm import Job, Record, Usage
from harness.errors import CannotVerify
from harness.plan import Plan, make_plan
from harness.rehearsal import invariants
from harness.rehearsal.invariants import CHECKERS, FaultSeen, History, Submission
from harness.shipped_files import SCENARIOS
from harness.verify.job_trace import JobTrace

PLAN = make_plan(
    "federation-faults", scenario.load(SCENARIOS / "federation-faults.yml"), OWN_MACHINES
)
ID = (1 << 26) + 7
AWS_ID = (2 << 26) + 8


def good() -> History:
    """A federated job that ran on aws, an array of two on on-prem, a requeued job; all correct."""
    history = History(PLAN)
    submission = Submission("r-0", "on-prem", "alice", 1, "COMPLETED", "accepted", ID, 99.0, 100.0)
    history.submissions = [
        submission,
        replace(submission, name="r-1", tasks=2, job_id=ID + 1),
        replace(submission, name="r-2", cluster="aws", job_id=AWS_ID),
        replace(submission, name="r-3", answer="refused", job_id=None),
    ]
    ran = JobTrace(
        ID,
        "aws",
        "aws1",
        101.5,
        104.5,
        0,
        "r-0",
        None,
        0,
        "alice",
        "physics",
        "urgent",
        ("aws1",),
        (2,),
    )
    on_prem = replace(ran, cluster="on-prem", host="onprem1", nodes=("onprem1",), qos="normal")
    history.traces = [
        ran,
        replace(on_prem, job_id=ID + 1, name="r-1", task=1, user="bob", account="chemistry"),
        replace(on_prem, job_id=ID + 2, name="r-1", task=2, user="bob", account="chemistry"),
        replace(
            ran, job_id=AWS_ID, name="r-2", start=101.2, end=102.1, exit_code=143, qos="normal"
        ),
        replace(ran, job_id=AWS_ID, name="r-2", start=110.2, end=111.1, restarts=1, qos="normal"),
    ]
    record = Record(
        ID, "", "aws", "r-0", "alice", "physics", "COMPLETED", 0, 0, "aws1", 100, 101, 104, 3
    )
    on_prem = replace(
        record, cluster="on-prem", node_list="onprem1", name="r-1", user="bob", account="chemistry"
    )
    history.records = [
        record,
        replace(record, cluster="on-prem", state="REVOKED", start=None, elapsed=0),
        replace(on_prem, job_id=ID + 1),
        replace(on_prem, job_id=ID + 2),
        replace(record, job_id=AWS_ID, name="r-2", state="REQUEUED", end=102, elapsed=1),
        replace(record, job_id=AWS_ID, name="r-2", submit=103, start=110, end=111, elapsed=1),
    ]
    job = Job(ID, "COMPLETED", "aws1", "r-0", "alice", "None", ID)
    history.queue["aws"] = [job, replace(job, job_id=AWS_ID, name="r-2")]
    history.queue["on-prem"] = [
        replace(job, state="REVOKED", node_list=""),
        replace(job, job_id=ID + 1, name="r-1"),
        replace(job, job_id=ID + 2, name="r-1"),
    ]
    history.usage["aws"] = [
        Usage("root", "", 10),
        Usage("physics", "", 10),
        Usage("physics", "alice", 10),
        Usage("chemistry", "", 0),
        Usage("chemistry", "bob", 0),
    ]
    history.usage["on-prem"] = [Usage("chemistry", "", 12), Usage("chemistry", "bob", 12)]
    history.old_records["aws"] = [("7\t99", "9\t111")] * 2
    return history


def outcomes(history: History) -> dict[str, str]:
    return {finding.name: finding.outcome for finding in invariants.evaluate(history)}


def test_limits_do_not_count_a_requeued_job_whose_processes_have_not_ended() -> None:
    history = good()
    requeued = history.traces[3] = replace(history.traces[3], end=103.5, qos="urgent")
    later = replace(history.traces[0], start=103.0, job_id=ID + 9, name="r-9")
    history.traces += [later]
    assert [*invariants.limits_are_kept(history)] == []
    history.traces += [replace(requeued, job_id=ID + 10, name="r-10")]
    (violation,) = invariants.limits_are_kept(history)
    assert "3 jobs at the same time" in violation.text


def test_job_that_slurmctld_has_forgotten_is_not_lost_if_it_ran_to_its_end() -> None:
    history = good()
    history.plan = make_plan("one", scenario.load(SCENARIOS / "single-node.yml"), OWN_MACHINES)
    history.queue.clear()
    assert [*invariants.no_accepted_job_is_lost(history)] == []
    history.traces[0] = replace(history.traces[0], end=None)
    (violation,) = invariants.no_accepted_job_is_lost(history)
    assert "r-0" in violation.text


def test_good_history_passes_all_checkers() -> None:
    findings = invariants.evaluate(good())
    assert dict.fromkeys(CHECKERS, "passed") == {
        finding.name: finding.outcome for finding in findings
    }
    assert not any(finding.excused for finding in findings)
    assert invariants.overall_outcome(findings) == "passed"


Change = Callable[[History], object]


def lose(history: History) -> None:
    history.records = [record for record in history.records if record.name != "r-0"]


def set_record(name: str, **wrong: Any) -> Change:
    def change(history: History) -> None:
        at = max(
            index
            for index, record in enumerate(history.records)
            if record.name == name and record.start
        )
        history.records[at] = replace(history.records[at], **wrong)

    return change


def run_again(**other: Any) -> Change:
    return lambda history: history.traces.append(replace(history.traces[0], **other))


def set_usage(account: str, user: str, seconds: int) -> Change:
    def change(history: History) -> None:
        history.usage["aws"] = [
            replace(row, seconds=seconds) if (row.account, row.user) == (account, user) else row
            for row in history.usage["aws"]
        ]

    return change


def set_site_data(seen: list[tuple[str, ...]]) -> Change:
    return lambda history: history.old_records.update({"aws": seen})


BAD: list[tuple[str, Change, str]] = [
    ("no_accepted_job_is_lost", lose, "job 67108871 (r-0) of on-prem: 1 of 1 are lost"),
    (
        "no_accepted_job_is_lost",
        set_record("r-0", state="RUNNING", end=None),
        "has not ended: RUNNING",
    ),
    (
        "no_accepted_job_is_lost",
        lambda history: history.records.pop(3),
        "(r-1) of on-prem: 1 of 2 are lost",
    ),
    (
        "jobs_end_as_they_should",
        set_record("r-0", state="FAILED"),
        "ended FAILED, should end COMPLETED",
    ),
    (
        "no_job_runs_twice",
        run_again(start=102.0, end=105.0, host="aws2"),
        "ran twice at the same time, on aws1 and aws2",
    ),
    (
        "no_job_runs_twice",
        run_again(start=106.0, end=107.0),
        "ran twice, on aws1 and aws1, and was not requeued",
    ),
    (
        "no_refused_job_runs",
        run_again(name="r-3", job_id=ID + 9),
        "r-3 was refused, but exists",
    ),
    (
        "job_ids_are_unique",
        lambda history: history.submissions.append(replace(history.submissions[0], name="r-4")),
        "id 67108871 was given to r-0, r-4",
    ),
    (
        "job_ids_are_unique",
        lambda history: history.submissions.append(
            replace(history.submissions[0], name="r-4", job_id=AWS_ID + 1)
        ),
        "was submitted to on-prem, but its id has a different origin cluster",
    ),
    (
        "siblings_are_revoked",
        lambda history: history.queue["on-prem"].append(
            replace(history.queue["aws"][0], state="PENDING")
        ),
        "according to slurmctld: aws COMPLETED, on-prem PENDING",
    ),
    (
        "siblings_are_revoked",
        lambda history: history.records.append(
            replace(history.records[0], cluster="on-prem", state="CANCELLED")
        ),
        "according to accounting: aws COMPLETED, on-prem CANCELLED",
    ),
    (
        "no_node_is_overcommitted",
        run_again(job_id=ID + 9, cpus=(3,), start=104.0),
        "jobs had 5 CPUs of aws's aws1 at the same time, it has 4",
    ),
    (
        "accounting_equals_the_trace",
        set_record("r-0", end=120, elapsed=19),
        "ended at 104, accounting says 120",
    ),
    ("accounting_equals_the_trace", set_record("r-0", node_list="aws2"), "accounting says aws2"),
    (
        "accounting_equals_the_trace",
        set_record("r-0", user="bob"),
        "its user is alice, accounting says bob",
    ),
    (
        "accounting_equals_the_trace",
        set_record("r-0", cpus=200),
        "it had 2 CPUs, accounting says 200",
    ),
    (
        "accounting_equals_the_trace",
        lambda history: history.records.pop(),
        "has no record of its run on aws1",
    ),
    (
        "accounting_equals_the_trace",
        lambda history: history.records.append(replace(history.records[0], start=300)),
        "accounting has a run on aws1 without a trace",
    ),
    (
        "limits_are_kept",
        lambda history: history.traces.extend([history.traces[0]] * 2),
        "QOS urgent of alice: 3 jobs at the same time on aws, MaxJobsPerUser is 2",
    ),
    (
        "limits_are_kept",
        lambda history: history.traces.extend([history.traces[1]] * 2),
        "account chemistry: 8 CPUs at the same time on on-prem, GrpTRES is 6",
    ),
    (
        "old_records_are_kept",
        set_site_data([("7\t99", "9\t111"), ("6\t98", "9\t111")]),
        "after it they were ('6\\t98', '9\\t111')",
    ),
    (
        "old_records_are_kept",
        set_site_data([("7\t99", "9\t111")]),
        "before the upgrade, they were not read after it",
    ),
    (
        "usage_of_an_account_is_that_of_its_parts",
        set_usage("physics", "", 20),
        "physics has used 20 s, its parts 10 s",
    ),
    (
        "usage_is_that_of_the_jobs",
        set_usage("physics", "alice", 1),
        "alice in physics has used 1 s, the jobs took",
    ),
]


@pytest.mark.parametrize(("name", "change", "message"), BAD)
def test_checker_finds_its_violation(name: str, change: Change, message: str) -> None:
    history = good()
    change(history)
    finding = next(finding for finding in invariants.evaluate(history) if finding.name == name)
    assert finding.outcome == "failed"
    assert any(message in problem for problem in finding.problems), finding.problems
    assert not finding.excused


def test_every_checker_has_a_test_that_makes_it_fail() -> None:
    assert {name for name, _, _ in BAD} == {*CHECKERS}


@pytest.mark.parametrize("kind", ["queue", "record", "trace", "usage", "run"])
def test_no_claim_is_made_where_evidence_is_missing(kind: str) -> None:
    history = good()
    history.missing[kind].append("of aws1: it does not answer")
    found = outcomes(history)
    wanting = {
        name for name, (_, evidence, _) in CHECKERS.items() if kind == "run" or kind in evidence
    }
    assert wanting
    assert {name for name, outcome in found.items() if outcome == "unknown"} == wanting
    assert invariants.overall_outcome(invariants.evaluate(history)) == "unknown"


def test_no_claim_is_made_where_no_job_was_accepted() -> None:
    history = History(PLAN)
    history.old_records = good().old_records
    assert {*outcomes(history).values()} == {"unknown"}


def killed(history: History, at: float) -> None:
    fault = "kill-daemon onprem-ctl slurmctld"
    history.faults = [FaultSeen(at, "inject", fault), FaultSeen(at + 8, "heal", fault)]


def test_what_slurmctld_learned_just_before_it_was_killed_is_excused_and_nothing_older() -> None:
    history = good()
    lose(history)
    killed(history, 104)
    [excused] = invariants.evaluate(history)[0].excused
    assert "1 of 1 are lost: slurmctld was killed within 5 s of the change" in excused
    assert outcomes(history)["no_accepted_job_is_lost"] == "passed"
    killed(history, 106)
    assert outcomes(history)["no_accepted_job_is_lost"] == "failed"


def test_slow_kill_excuses_what_was_learned_until_it_took_effect() -> None:
    history = good()
    lose(history)
    killed(history, 97)
    assert outcomes(history)["no_accepted_job_is_lost"] == "failed"
    history.faults.insert(1, replace(history.faults[0], at=99.5, action="injected"))
    assert outcomes(history)["no_accepted_job_is_lost"] == "passed"


def test_revoked_copy_may_fail_but_not_run_if_slurmctld_was_killed_before_it_saved() -> None:
    history = good()
    history.queue["on-prem"][0] = replace(history.queue["on-prem"][0], state="FAILED")
    assert outcomes(history)["siblings_are_revoked"] == "failed", "nothing was killed"
    killed = "kill-daemon onprem-ctl slurmctld"
    history.faults = [FaultSeen(107, action, killed) for action in ("inject", "injected", "heal")]
    finding = next(
        finding
        for finding in invariants.evaluate(history)
        if finding.name == "siblings_are_revoked"
    )
    assert finding.outcome == "passed"
    assert (
        "slurmctld of on-prem was killed before it had saved that the copy was revoked"
        in finding.excused[0]
    )
    history.faults = [FaultSeen(130, action, killed) for action in ("inject", "injected", "heal")]
    assert outcomes(history)["siblings_are_revoked"] == "failed", "slurmctld had saved it"
    history.faults = [FaultSeen(107, action, killed) for action in ("inject", "injected", "heal")]
    ran = replace(history.traces[0], start=90.0, end=95.0)
    history.traces.append(replace(ran, cluster="on-prem", host="onprem1", nodes=("onprem1",)))
    assert outcomes(history)["siblings_are_revoked"] == "failed", "the copy ran"


def test_copies_of_a_cluster_that_was_away_may_be_cancelled_but_may_not_have_run() -> None:
    history = good()
    copy = replace(history.records[1], state="CANCELLED")
    history.records[1] = copy
    assert outcomes(history)["siblings_are_revoked"] == "failed"
    history.faults = [
        FaultSeen(98, "inject", "cut on-prem aws"),
        FaultSeen(108, "heal", "cut on-prem aws"),
    ]
    assert outcomes(history)["siblings_are_revoked"] == "passed"
    history.faults = [
        FaultSeen(58, "inject", "cut on-prem aws"),
        FaultSeen(68, "heal", "cut on-prem aws"),
    ]
    assert outcomes(history)["siblings_are_revoked"] == "failed"
    history.faults = [
        FaultSeen(98, "inject", "cut on-prem aws"),
        FaultSeen(108, "heal", "cut on-prem aws"),
    ]
    history.records[1] = replace(copy, state="COMPLETED", start=101, node_list="onprem1")
    assert outcomes(history)["siblings_are_revoked"] == "failed"


def test_copy_may_be_cancelled_if_it_was_under_way_while_its_origin_came_back() -> None:
    history = good()
    copy = replace(history.records[0], state="CANCELLED", start=None, node_list=None)
    history.records[:2] = [copy, replace(history.records[0], cluster="on-prem")]
    killed = "kill-daemon onprem-ctl slurmctld"
    history.faults = [FaultSeen(95, "inject", killed), FaultSeen(99.5, "heal", killed)]
    forgot = [
        f"[2026-11-24T16:02:05.249] _reconcile_fed_job: didn't find JobId={ID} on cluster aws",
        f"[2026-11-24T16:02:05.249] _reconcile_fed_job: origin JobId={ID} is currently locked by "
        "sibling 0, this is ok",
    ]
    for log in (
        [],
        forgot[:1],
        [line.replace("cluster aws", "cluster aws2") for line in forgot],
        [line.replace(f"={ID}", f"={ID}7") for line in forgot],
    ):
        history.log = log
        assert outcomes(history)["siblings_are_revoked"] == "failed", "slurmctld forgot no copy"
    for job in (f"JobId={ID}", f"JobId={ID}_*", f"JobId={ID}_1({ID + 1})"):
        history.log = [line.replace(f"JobId={ID}", job) for line in forgot]
        finding = next(
            finding
            for finding in invariants.evaluate(history)
            if finding.name == "siblings_are_revoked"
        )
        assert finding.outcome == "passed"
        assert "the copy on aws was under way while the controllers" in finding.excused[0]
    history.faults = [FaultSeen(65, "inject", killed), FaultSeen(69.5, "heal", killed)]
    assert outcomes(history)["siblings_are_revoked"] == "failed", "they had long reconnected"
    history.faults = [FaultSeen(95, "inject", killed), FaultSeen(99.5, "heal", killed)]
    history.records[0] = replace(copy, state="COMPLETED", start=101, node_list="aws1")
    assert outcomes(history)["siblings_are_revoked"] == "failed", "both copies ran"


def test_only_the_record_of_a_copy_may_stay_open_after_the_database_was_killed() -> None:
    history = good()
    history.records[1] = replace(history.records[1], state="CANCELLED", end=None)
    killed = FaultSeen(107, "inject", "kill-daemon accounting mariadb")
    history.faults = [killed]
    assert outcomes(history)["siblings_are_revoked"] == "passed"
    history.faults = [replace(killed, at=98)]
    assert outcomes(history)["siblings_are_revoked"] == "failed"
    history.faults = [killed]
    history.records[1] = replace(history.records[1], state="COMPLETED")
    assert outcomes(history)["siblings_are_revoked"] == "failed"


def test_job_behind_a_copy_that_its_origin_forgot_names_the_bug() -> None:
    history = good()
    copy = replace(history.queue["aws"][0], job_id=ID, state="PENDING", reason="FedJobLock")
    waiting = replace(copy, job_id=AWS_ID, name="r-2", reason="Priority")
    history.queue["aws"] = [copy, waiting]
    history.records = [
        replace(record, state="PENDING", start=None, end=None)
        if record.job_id == AWS_ID
        else record
        for record in history.records
    ]
    history.log = [
        f"_reconcile_fed_job: didn't find JobId={ID} on cluster aws",
        f"_reconcile_fed_job: origin JobId={ID} is currently locked by sibling 0, this is ok",
    ]
    problems = [text for finding in invariants.evaluate(history) for text in finding.problems]
    assert any(f"job {ID} on aws is a copy" in text for text in problems), problems


def test_job_of_a_controller_that_waits_for_its_siblings_names_the_bug() -> None:
    history = good()
    history.records[0] = replace(history.records[0], state="PENDING", end=None)
    history.log = ["on-prem: federation siblings not synced yet"]
    problems = [text for finding in invariants.evaluate(history) for text in finding.problems]
    assert any("slurmctld of on-prem waits forever" in text for text in problems), problems


@pytest.mark.parametrize(
    "symptom", ["error: commit failed", "error: unable to re-connect to as_mysql database"]
)
@pytest.mark.parametrize(
    ("changed", "excused"),
    [
        (
            {"state": "COMPLETED", "start": None, "node_list": "None assigned"},
            "has no record of its run on aws1",
        ),
        ({"state": "RUNNING", "end": None}, "has not ended: RUNNING"),
    ],
    ids=["start", "end"],
)
def test_record_may_lack_what_slurmdbd_did_not_commit_when_the_database_was_killed(
    changed: dict[str, Any], excused: str, symptom: str
) -> None:
    history = good()
    history.records[0] = replace(history.records[0], **changed)
    killed = [
        FaultSeen(104, "inject", "kill-daemon accounting mariadb"),
        FaultSeen(105, "injected", "kill-daemon accounting mariadb"),
    ]
    history.faults, history.log = killed, [symptom]
    findings = invariants.evaluate(history)
    assert {finding.outcome for finding in findings} <= {"passed", "skipped"}
    assert [text for finding in findings for text in finding.excused if excused in text]
    history.faults = [replace(fault, at=fault.at - 10) for fault in killed]
    assert "failed" in outcomes(history).values(), "killed before"
    history.faults, history.log = killed, []
    assert "failed" in outcomes(history).values(), "no commit failed"


@pytest.mark.parametrize(
    ("name", "killed_at", "excused"),
    [
        ("r-0", 100, f"job {ID} (r-0) of on-prem: 1 of 1 are lost"),
        ("r-2", 105, f"job {AWS_ID} (r-2) of aws has not ended: REQUEUED"),
    ],
    ids=["submitted", "requeued"],
)
def test_job_may_lack_the_record_that_slurmdbd_did_not_commit_when_the_database_was_killed(
    name: str, killed_at: float, excused: str
) -> None:
    history = good()
    (lost,) = (
        record for record in history.records if record.name == name and record.state == "COMPLETED"
    )
    history.records.remove(lost)
    assert outcomes(history)["accounting_equals_the_trace"] == "failed", "no database was killed"
    history.faults = [
        FaultSeen(killed_at, "inject", "kill-daemon accounting mariadb"),
        FaultSeen(killed_at + 1, "injected", "kill-daemon accounting mariadb"),
    ]
    assert outcomes(history)["accounting_equals_the_trace"] == "failed", "no commit failed"
    history.log = ["error: commit failed"]
    findings = invariants.evaluate(history)
    assert {finding.outcome for finding in findings} <= {"passed", "skipped"}
    for words in (excused, "has no record of its run on aws1"):
        assert [text for finding in findings for text in finding.excused if words in text]
    history.faults = [replace(fault, at=fault.at - 20) for fault in history.faults]
    assert outcomes(history)["accounting_equals_the_trace"] == "failed", "killed before"
    history.faults = [replace(fault, at=fault.at + 100) for fault in history.faults]
    assert outcomes(history)["accounting_equals_the_trace"] == "failed", "killed long after"
    history.faults = [replace(fault, at=fault.at - 80) for fault in history.faults]
    history.traces = [
        replace(run, end=None) if (run.name, run.restarts) == (name, lost.job_id == AWS_ID) else run
        for run in history.traces
    ]
    assert "failed" in outcomes(history).values(), "the job has not ended"


def kill_database(history: History, at: float) -> None:
    """Let the database be killed, and a commit fail."""
    fault = "kill-daemon accounting mariadb"
    history.faults += [FaultSeen(at, "inject", fault), FaultSeen(at + 1, "injected", fault)]
    history.log = ["error: commit failed"]


def test_requeued_jobs_first_record_may_lack_the_end_that_slurmdbd_did_not_commit() -> None:
    history = good()
    history.records[4] = replace(history.records[4], state="RUNNING", end=None)
    assert outcomes(history)["accounting_equals_the_trace"] == "failed", "no database was killed"
    kill_database(history, 104)
    assert outcomes(history)["accounting_equals_the_trace"] == "passed"
    history.faults.clear()
    kill_database(history, 80)
    assert outcomes(history)["accounting_equals_the_trace"] == "failed", "killed before"


def test_copys_record_may_be_the_only_one_if_slurmdbd_did_not_commit_that_of_the_run() -> None:
    history = good()
    history.records[0] = replace(
        history.records[1], state="PENDING", end=None, node_list="None assigned"
    )
    del history.records[1]
    assert outcomes(history)["no_accepted_job_is_lost"] == "failed", "no database was killed"
    kill_database(history, 104)
    assert outcomes(history)["no_accepted_job_is_lost"] == "passed"
    history.records[0] = replace(history.records[0], cluster="aws")
    assert outcomes(history)["no_accepted_job_is_lost"] == "failed", "not the copy's record"


def test_record_without_an_end_does_not_count_as_usage() -> None:
    history = good()
    history.records[0] = replace(history.records[0], state="RUNNING", end=None, elapsed=90)
    assert outcomes(history)["usage_is_that_of_the_jobs"] == "passed"
    assert outcomes(history)["no_accepted_job_is_lost"] == "failed"
    kill_database(history, 104)
    assert {*outcomes(history).values()} <= {"passed", "skipped"}


def test_messages_that_slurmdbd_may_lose_were_kept_while_it_was_down() -> None:
    history = good()
    history.records[0] = replace(history.records[0], state="RUNNING", end=None)
    kill_database(history, 170)
    assert outcomes(history)["no_accepted_job_is_lost"] == "failed", "the end was a minute before"
    down = [
        FaultSeen(at, action, "stop-daemon accounting slurmdbd")
        for at, action in ((90, "inject"), (91, "injected"), (165, "heal"))
    ]
    history.faults = [*down, *history.faults]
    assert outcomes(history)["no_accepted_job_is_lost"] == "passed"
    history.faults[2] = replace(down[2], at=105)
    assert outcomes(history)["no_accepted_job_is_lost"] == "failed", "up for more than a minute"


def test_job_may_be_forgotten_if_slurmctld_was_killed_after_it_started_it_on_a_slow_node() -> None:
    history = good()
    killed = "kill-daemon aws-ctl slurmctld"
    history.faults = [FaultSeen(91, "inject", killed), FaultSeen(92, "injected", killed)]
    history.submissions[0] = replace(history.submissions[0], submitted=80, answered=81)
    history.log_times["", ID] = [90.5]
    assert "r-0" in history.unsaved()
    for logged in ([80.5], [93.5], []):
        history.log_times["", ID] = logged
        assert "r-0" not in history.unsaved(), "saved, or started after the kill"


def test_submission_may_be_forgotten_if_slurmctld_was_killed_before_sbatch_answered() -> None:
    history = good()
    history.submissions[2] = replace(history.submissions[2], submitted=90, answered=99)
    killed = "kill-daemon aws-ctl slurmctld"
    history.faults = [FaultSeen(92, "inject", killed), FaultSeen(93, "injected", killed)]
    assert "r-2" in history.unsaved()
    history.submissions[2] = replace(history.submissions[2], submitted=95)
    assert "r-2" not in history.unsaved()


def test_end_that_a_busy_slurmctld_notices_late_is_excused_if_its_log_has_it() -> None:
    history = good()
    history.records[0] = replace(history.records[0], end=116, elapsed=15)
    history.log_times["", ID] = [101.4, 105.0]
    assert outcomes(history)["accounting_equals_the_trace"] == "failed", "slurmctld logged 105"
    history.log_times["", ID] = [101.4, 116.3]
    result = next(
        finding
        for finding in invariants.evaluate(history)
        if finding.name == "accounting_equals_the_trace"
    )
    assert (result.outcome, len(result.excused)) == ("passed", 1)
    assert "slurmctld logged it then" in result.excused[0]


def test_job_whose_script_slurmd_removed_is_excused() -> None:
    history = good()
    history.records[0] = replace(history.records[0], state="FAILED", exit_code=2)
    history.log = [
        "_handle_stray_script: Purging vestigial job script"
        f" /var/lib/slurm/slurmd/job{ID}/slurm_script"
    ]
    finding = next(
        finding
        for finding in invariants.evaluate(history)
        if finding.name == "jobs_end_as_they_should"
    )
    assert (finding.outcome, len(finding.excused)) == ("passed", 1)
    assert "should end COMPLETED: slurmd mistook a starting slurmstepd" in finding.excused[0]
    history.log = [f"Purging vestigial job script /var/lib/slurm/slurmd/job{ID}7/slurm_script"]
    finding = next(
        finding
        for finding in invariants.evaluate(history)
        if finding.name == "jobs_end_as_they_should"
    )
    assert finding.outcome == "failed"
    assert finding.problems[0].endswith("should end COMPLETED")


def test_requeued_job_may_have_one_record_where_slurmdbd_was_upgraded_meanwhile() -> None:
    history = good()
    del history.records[-2]
    history.faults = [
        FaultSeen(105, "inject", "upgrade accounting"),
        FaultSeen(109, "heal", "upgrade accounting"),
    ]
    assert outcomes(history)["accounting_equals_the_trace"] == "passed"
    history.faults = [replace(fault, at=fault.at - 20) for fault in history.faults]
    assert outcomes(history)["accounting_equals_the_trace"] == "failed"


def test_job_that_ends_while_slurmctld_is_down_is_recorded_late() -> None:
    history = good()
    history.records[0] = replace(history.records[0], end=130, elapsed=29)
    history.faults = [
        FaultSeen(90, "inject", "stop-daemon aws-ctl slurmctld"),
        FaultSeen(125, "heal", "stop-daemon aws-ctl slurmctld"),
    ]
    finding = next(
        finding
        for finding in invariants.evaluate(history)
        if finding.name == "accounting_equals_the_trace"
    )
    assert finding.outcome == "passed"
    assert "aws's slurmctld was down, and noticed it late" in finding.excused[0]
    history.faults[1] = replace(history.faults[1], at=95)
    assert outcomes(history)["accounting_equals_the_trace"] == "failed"


def test_job_that_waits_for_a_reservation_of_the_site_is_excused_and_no_other_is() -> None:
    def waiting(reason: str, reservations: list[str]) -> invariants.InvariantResult:
        history = good()
        set_record("r-0", state="PENDING", start=None, end=None, node_list="None assigned")(history)
        history.queue["aws"][0] = replace(history.queue["aws"][0], state="PENDING", reason=reason)
        history.reservations["aws"] = reservations
        return next(
            finding
            for finding in invariants.evaluate(history)
            if finding.name == "no_accepted_job_is_lost"
        )

    reserved = "ReqNodeNotAvail, May be reserved for other job"
    excused = waiting(reserved, ["maintenance"])
    assert excused.outcome == "passed"
    assert f"PENDING ({reserved}): aws has its own reservations: maintenance" in excused.excused[0]
    assert waiting(reserved, []).outcome == "failed"
    assert waiting("Resources", ["maintenance"]).outcome == "failed"
    assert waiting("ReqNodeNotAvail, UnavailableNodes:aws1", ["maintenance"]).outcome == "failed"


def test_no_claim_is_made_where_all_jobs_wait_for_a_reservation() -> None:
    history = good()
    history.traces = []
    history.records = [
        replace(history.records[0], state="PENDING", start=None, end=None, node_list="")
    ]
    history.submissions = history.submissions[:1]
    history.queue["aws"] = [replace(history.queue["aws"][0], state="PENDING", reason="Reservation")]
    history.reservations["aws"] = ["maintenance"]
    assert invariants.overall_outcome(invariants.evaluate(history)) == "unknown"


def test_record_of_a_refused_job_that_never_had_a_node_is_not_a_run() -> None:
    history = good()
    never = replace(
        history.records[0], name="r-3", state="FAILED", start=None, node_list="None assigned"
    )
    history.records.append(never)
    assert outcomes(history)["no_refused_job_runs"] == "passed"
    history.records[-1] = replace(never, state="PENDING")
    assert outcomes(history)["no_refused_job_runs"] == "failed"


@pytest.mark.parametrize(
    ("options", "outcome"),
    [
        ({}, "failed"),
        ({"PriorityDecayHalfLife": "14-0"}, "failed"),
        ({"AccountingStorageEnforce": None}, "skipped"),  # short jobs are never counted
        ({"AccountingStorageEnforce": "associations"}, "skipped"),
        ({"PriorityUsageResetPeriod": "NOW"}, "skipped"),
        ({"PriorityDecayHalfLife": "0:30"}, "skipped"),
    ],
)
def test_usage_is_compared_only_where_it_keeps_what_jobs_took(
    options: dict[str, str | None], outcome: str
) -> None:
    history = good()
    set_usage("physics", "alice", 1)(history)
    history.plan = with_options(options)
    assert outcomes(history)["usage_is_that_of_the_jobs"] == outcome


@pytest.mark.parametrize(
    ("begun_on", "options", "outcome"),
    [
        ("22.05", {}, "skipped"),
        ("22.05", {"PriorityType": "priority/multifactor"}, "failed"),
        ("23.11", {}, "failed"),
    ],
)
def test_usage_is_not_expected_of_releases_that_keep_none(
    begun_on: str, options: dict[str, str | None], outcome: str
) -> None:
    history = good()
    set_usage("physics", "alice", 1)(history)
    history.plan = with_options(options)
    history.begun_on = dict.fromkeys(PLAN.scenario.clusters, begun_on)
    assert outcomes(history)["usage_is_that_of_the_jobs"] == outcome


def with_options(options: dict[str, str | None]) -> Plan:
    """Return the plan with more options of every slurm.conf."""
    clusters = {
        name: cluster.model_copy(update={"options": {**cluster.options, **options}})
        for name, cluster in PLAN.scenario.clusters.items()
    }
    return replace(PLAN, scenario=PLAN.scenario.model_copy(update={"clusters": clusters}))


def test_node_has_the_cpus_of_its_options() -> None:
    history = good()
    cluster = PLAN.scenario.clusters["aws"]
    groups = tuple(
        group.model_copy(update={"cpus": 1, "options": {"CPUs": 8}}) for group in cluster.nodes
    )
    clusters = {**PLAN.scenario.clusters, "aws": cluster.model_copy(update={"nodes": groups})}
    history.plan = replace(PLAN, scenario=PLAN.scenario.model_copy(update={"clusters": clusters}))
    run_again(job_id=ID + 9, cpus=(6,), start=104.0)(history)
    assert outcomes(history)["no_node_is_overcommitted"] == "passed"
    run_again(job_id=ID + 10, cpus=(1,), start=104.0)(history)
    finding = next(
        finding
        for finding in invariants.evaluate(history)
        if finding.name == "no_node_is_overcommitted"
    )
    assert finding.problems == ("jobs had 9 CPUs of aws's aws1 at the same time, it has 8",)


@pytest.mark.parametrize(
    ("options", "cpus"),
    [
        ({}, 1),
        ({"CPUs": 8}, 8),
        ({"procs": "6"}, 6),
        ({"CPUs": None, "Sockets": 2, "CoresPerSocket": 4, "ThreadsPerCore": 2}, 16),
        ({"CPUs": 8, "Sockets": 2, "CoresPerSocket": 4, "ThreadsPerCore": 2}, 8),
        (
            {"CPUs": 5, "Sockets": 2, "CoresPerSocket": 4, "ThreadsPerCore": 2},
            16,
        ),  # Slurm resets it
        ({"CPUs": 8, "CoresPerSocket": 2, "ThreadsPerCore": 2}, 8),
        ({"CPUs": None, "Boards": 2, "SocketsPerBoard": 2, "CoresPerSocket": 3}, 12),
        ({"CPUs": None}, 1),
    ],
)
def test_cpus_are_counted_as_slurmctld_does(options: dict[str, int | None], cpus: int) -> None:
    assert scenario.NodeGroup(name="n1", options=options).counted_cpus() == cpus


def test_job_that_slurmd_starts_late_is_accepted_if_slurmctlds_log_has_its_start() -> None:
    history = good()
    history.traces[0] = replace(history.traces[0], start=109.0, end=112.0)
    history.records[0] = replace(history.records[0], end=112, elapsed=11)
    assert outcomes(history)["accounting_equals_the_trace"] == "failed"
    history.log_times["", ID] = [101.4, 112.3]
    assert outcomes(history)["accounting_equals_the_trace"] == "passed"
    history.records[0] = replace(history.records[0], end=130, elapsed=29)
    history.log_times["", ID] = [101.4, 130.3]
    assert outcomes(history)["accounting_equals_the_trace"] == "failed", "its end was noticed late"


def test_job_that_ends_while_a_sibling_does_not_answer_is_recorded_late_but_not_later() -> None:
    history = good()
    history.records[0] = replace(history.records[0], end=130, elapsed=29)
    history.faults = [
        FaultSeen(104, "inject", "reconfigure onprem-ctl"),
        FaultSeen(112, "heal", "reconfigure onprem-ctl"),
    ]
    finding = next(
        finding
        for finding in invariants.evaluate(history)
        if finding.name == "accounting_equals_the_trace"
    )
    assert finding.outcome == "passed"
    assert finding.excused == (
        f"job {ID} (r-0): ended at 104, accounting says 130: "
        "aws's slurmctld waited for on-prem, which did not answer, and noticed it late",
    )
    history.faults[1] = replace(history.faults[1], at=109)
    assert outcomes(history)["accounting_equals_the_trace"] == "failed", (
        "20 s after the fault was healed"
    )
    history.faults = [
        FaultSeen(106, "inject", "reconfigure onprem-ctl"),
        FaultSeen(112, "heal", "reconfigure onprem-ctl"),
    ]
    assert outcomes(history)["accounting_equals_the_trace"] == "failed", "the job ended before it"
    history.faults = [
        FaultSeen(104, "inject", "pause-host aws1"),
        FaultSeen(112, "heal", "pause-host aws1"),
    ]
    assert outcomes(history)["accounting_equals_the_trace"] == "failed", (
        "not the sibling's controller"
    )


def test_history_is_read_from_the_last_rehearsal_of_a_run() -> None:
    history = good()
    at = datetime(2026, 1, 1, tzinfo=UTC)
    begin = {"kind": "rehearsal", "action": "begin"}
    events: list[dict[str, Any]] = [
        begin,
        {"kind": "submission", **asdict(history.submissions[0])},
        {"kind": "rehearsal", "action": "end"},
        begin,
        *({"kind": "submission", **asdict(submission)} for submission in history.submissions),
        {"kind": "fault", "action": "inject", "fault": "pause-host aws1", "time": at.isoformat()},
        *({"kind": "trace", "seen_by": "aws1", **asdict(trace)} for trace in history.traces),
        *({"kind": "record", "seen_by": "aws", **asdict(record)} for record in history.records),
        *(
            {"kind": "queue", "seen_by": cluster, **asdict(job)}
            for cluster, jobs in history.queue.items()
            for job in jobs
        ),
        *(
            {"kind": "usage", "seen_by": cluster, **asdict(row)}
            for cluster, rows in history.usage.items()
            for row in rows
        ),
        *(
            {"kind": "old_records", "cluster": name, "tables": [*tables]}
            for name, seen in history.old_records.items()
            for tables in seen
        ),
        {"kind": "no_evidence", "of": "trace", "where": "aws2", "why": "does not answer\nat all"},
    ]
    end = {"kind": "rehearsal", "action": "end"}
    history.faults = [FaultSeen(at.timestamp(), "inject", "pause-host aws1")]
    history.missing["trace"] = ["of aws2: does not answer"]
    assert invariants.read([*events, end], PLAN) == history
    assert invariants.read(events, PLAN).missing["run"]
    with pytest.raises(CannotVerify, match="no rehearsal"):
        invariants.read([], PLAN)


def test_submission_that_an_older_version_recorded_is_read() -> None:
    submission = good().submissions[0]
    event = {"kind": "submission", **asdict(submission)}
    event["asked"] = event.pop("submitted")
    begin, end = ({"kind": "rehearsal", "action": action} for action in ("begin", "end"))
    assert invariants.read([begin, event, end], PLAN).submissions == [submission]


@pytest.mark.parametrize("name", ["", "nowhere"])
def test_submission_to_an_unknown_cluster_is_refused(name: str) -> None:
    event = {"kind": "submission", **asdict(good().submissions[0]), "cluster": name}
    begin = {"kind": "rehearsal", "action": "begin"}
    with pytest.raises(CannotVerify, match=f'event 2, submission: .* no cluster "{name}"'):
        invariants.read([begin, event], PLAN)
