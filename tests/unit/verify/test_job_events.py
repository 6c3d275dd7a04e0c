from __future__ import annotations

from typing import Any

import pytest

from harness.capabilities import Capabilities
from harness.cluster.slurm import SEPARATOR, Record, parse_record
from harness.plan import make_plan
from harness.scenario import load
from harness.shipped_files import SCENARIOS
from harness.ssh import Result, Ssh
from harness.verify import job_events
from harness.verify.job_events import Event, parse_journal, parse_log


# As the daemons of 20.11, 22.05, 24.11 and 26.05 log them.
@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("_slurm_rpc_submit_batch_job: JobId=7 InitPrio=4294901758 usec=512", "submitted"),
        ("sched: _slurm_rpc_allocate_resources JobId=7 NodeList=n[1-2] usec=397", "allocated"),
        ("sched: Allocate JobId=7 NodeList=n1 #CPUs=1 Partition=main", "allocated"),
        ("sched/backfill: _start_job: Started JobId=7 in main on n1", "allocated"),
        ("HETJOB: _start_job: Started JobId=7 in main on n1", "allocated"),
        ("Launching batch job 7 for UID 2001", "batch launched"),
        ("Launching batch JobId=7 SLUID=sFA9M80C6N8000 for UID 2001", "batch launched"),
        (
            "launch task StepId=7.0 request from UID:2001 GID:2001 HOST:198.18.0.10 PORT:36120",
            "step launched",
        ),
        ("_job_complete: JobId=7 WEXITSTATUS 0", "completed"),
    ],
)
def test_line_of_a_daemon_is_an_event_of_its_job_only(text: str, what: str) -> None:
    line = f"[2026-01-01T01:00:00.250] {text}"
    assert parse_log(line, "ctl", "+0100", 7) == Event(1767225600.250999, "ctl", what)
    assert parse_log(line, "ctl", "+0100", 8) is None


def test_line_may_name_its_time_zone() -> None:
    """slurm.conf(5), LogTimeFormat: rfc5424_ms."""
    line = "[2026-01-01T01:00:00.250+01:00] Launching batch job 7 for UID 2001"
    assert parse_log(line, "ctl", "+0000", 7) == Event(1767225600.250999, "ctl", "batch launched")


@pytest.mark.parametrize("level", ["debug2: ", "debug2:  "])
def test_node_is_free_once_its_epilog_has_ended(level: str) -> None:
    line = f"[2026-01-01T00:00:00.250] {level}_slurm_rpc_epilog_complete: JobId=7 Node=n2 "
    assert parse_log(line, "ctl", "+0000", 7) == Event(1767225600.250999, "n2", "freed")


@pytest.mark.parametrize(
    "text",
    [
        "sched: _slurm_rpc_allocate_resources JobId=7 NodeList=(null) usec=397",
        "_job_complete: JobId=7 done",
        "launch task StepId=17.7 request from UID:7 GID:7 HOST:198.18.0.7 PORT:7",
        "something else of JobId=7",
    ],
)
def test_other_lines_are_not_events(text: str) -> None:
    assert parse_log(f"[2026-01-01T00:00:00.250] {text}", "ctl", "+0000", 7) is None
    assert parse_log(text, "ctl", "+0000", 7) is None


def test_journal_entry_has_the_kernels_time_and_uid() -> None:
    line = (
        '{"_SOURCE_REALTIME_TIMESTAMP":"1767225600250000","__REALTIME_TIMESTAMP":"1767225600999999",'
        '"_HOSTNAME":"n1","_UID":"2001","MESSAGE":"7 prolog_task begins"}'
    )
    assert parse_journal(line, 7) == Event(1767225600.25, "n1", "TaskProlog begins", 2001)
    assert parse_journal(line.replace("prolog_task", "script"), 7) == Event(
        1767225600.25, "n1", "script begins", 2001
    )
    assert parse_journal(line, 77) is None


RAN = """\
+0100
[2026-01-01T01:00:00.250] sched: _slurm_rpc_allocate_resources JobId=7 NodeList=(null) usec=397
[2026-01-01T01:00:05.250] sched: Allocate JobId=8 NodeList=n1 #CPUs=1 Partition=main
[2026-01-01T01:00:05.250] sched/backfill: _start_job: Started JobId=8_2(9) in main on n1
_job_complete: JobId=12+1(13) WEXITSTATUS 0
"""


class Logs(Ssh):
    """The controller's log, whatever is asked."""

    def __init__(self) -> None:
        pass

    def run(self, host: str, command: Any, **_: Any) -> Result:
        return Result(0, RAN, "")


def record(job_id: int, start: int) -> Record:
    times = f"{start}|{start}|{start + 1}"
    text = (
        f"{job_id}|single|sh|alice|physics|COMPLETED|0:0|n1|{times}|1|normal|main|1|UNLIMITED|/||||"
    )
    return parse_record(text.replace("|", SEPARATOR))


def test_record_without_a_log_line_is_invented() -> None:
    plan = make_plan(
        "p", load(SCENARIOS / "single-node.yml"), Capabilities(cgroups=False, own_hardware=False)
    )
    at = 1767225605
    genuine = [record(8, at), record(9, at), record(13, at + 5000)]  # the last line has no time
    wrong = [record(7, at), record(8, at + 60), record(10, at)]
    assert job_events.invented(Logs(), plan, [*genuine, *wrong]) == wrong


def test_slurmctld_that_logs_no_jobs_is_no_evidence_against_records() -> None:
    settings = ["clusters.single.options={SlurmctldDebug: error}"]
    quiet = load(SCENARIOS / "single-node.yml", settings=settings)
    plan = make_plan("p", quiet, Capabilities(cgroups=False, own_hardware=False))
    assert job_events.invented(Logs(), plan, [record(7, 1767225605)]) == []


class LateJournal(Ssh):
    """A host whose journal has an entry only after it was told to write what it was sent."""

    def __init__(self) -> None:
        pass

    def run(self, host: str, command: Any, **_: Any) -> Result:
        synced, _, read = command[-1].partition("journalctl --sync")
        entry = ENTRY if "journalctl" in read and "journalctl" not in synced else ""
        return Result(0, f"+0000\n{entry}", "")


ENTRY = (
    '{"MESSAGE": "7 script ends", "_SOURCE_REALTIME_TIMESTAMP": "1767225600250000",'
    ' "_HOSTNAME": "single", "_UID": "2001"}\n'
)


def test_events_include_those_that_the_journal_has_not_written_yet() -> None:
    plan = make_plan(
        "p", load(SCENARIOS / "single-node.yml"), Capabilities(cgroups=False, own_hardware=False)
    )
    events = job_events.collect(LateJournal(), plan, "single", 7)
    assert [event.what for event in events] == ["script ends"]
