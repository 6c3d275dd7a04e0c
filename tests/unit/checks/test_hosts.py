"""What the checks of hosts find in logs."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import ModuleType

import pytest

AT = 1767225600.25  # 2026-01-01T00:00:00.250 UTC


@pytest.fixture
def host_checks(load: Callable[..., ModuleType]) -> ModuleType:
    """The module tests/checks/test_hosts.py."""
    return load("conftest", "test_hosts")


# slurm.conf(5), LogTimeFormat: iso8601_ms, the default, and rfc5424_ms.
@pytest.mark.parametrize("time", ["2026-01-01T01:00:00.250", "2026-01-01T01:00:00.250+01:00"])
def test_errors_are_found_by_their_time_with_a_zone_and_without(
    host_checks: ModuleType, time: str
) -> None:
    line = f"[{time}] error: no such file"
    lines = [
        line,
        f"[{time}] debug: fine",
        f"[{time}] error: System GPU detection failed",
        f"[{time}] error: slurm_send_node_msg: [socket:[7]]"
        " slurm_bufs_sendto(msg_type=RESPONSE_SLURM_RC) failed:"
        " Unexpected missing socket error",
        f"[{time}] error: slurm_send_node_msg: [socket:[7]]"
        " slurm_bufs_sendto(msg_type=SRUN_JOB_COMPLETE) failed: Message send failure",
        f"[{time}] error: slurm_msg_sendto: address:port=192.0.2.7:40312 msg_type=7004:"
        " Message send failure",
        f"[{time}] error: slurm_receive_msgs: [[n1]:41498] failed:"
        " Socket timed out on send/recv operation",
        f"[{time}] error: Unable to register: Socket timed out on send/recv operation",
        f"[{time}] error: slurm_receive_msg: No response to persist_init",
        f"[{time}] error: _agent_thread: Failed to send RPC: Unspecified error",
        "error: no time",
    ]
    assert [*host_checks.complaints(lines, "+0100", AT - 1, AT + 1)] == [(AT, line)]
    assert [*host_checks.complaints(lines, "+0100", AT + 1, AT + 2)] == []


def test_errors_before_a_start_do_not_count_even_in_its_second(host_checks: ModuleType) -> None:
    line = "[2026-01-01T00:00:00.250] error: token expired"
    assert [*host_checks.complaints([line], "+0000", AT + 0.1, AT + 9)] == []
    line = "[2026-01-01T00:00:00] error: in a log of whole seconds"
    assert [*host_checks.complaints([line], "+0000", AT + 0.1, AT + 9)] == [(int(AT), line)]


def test_process_that_ends_while_it_is_looked_at_does_not_count(host_checks: ModuleType) -> None:
    slurmd = "7 slurmd S 0::/system.slice/slurmd.service /usr/sbin/slurmd -D"
    (facts,) = host_checks.facts_of_processes(f"{slurmd}\n8\n9 slurmd Z\n")
    assert facts[::2] == ["7", "S", "/usr/sbin/slurmd -D"]


@pytest.mark.parametrize("job", ["Job 7", "JobId=7 SLUID=s8NBM1J2A3G"])  # until 25.11, since then
def test_start_of_a_job_that_is_cancelled_meanwhile_is_expected(
    load: Callable[..., ModuleType], job: str
) -> None:
    log_checks = load("conftest", "test_hosts", "test_daemon_logs")
    line = f"[2026-01-01T00:00:00.250] error: {job} already killed, do not launch batch job"
    other = f"[2026-01-01T00:00:00.250] error: {job} already running, do not launch second copy"
    found = [
        any(re.search(pattern, text) for pattern in log_checks.HARMLESS) for text in (line, other)
    ]
    assert found == [True, False]


def test_log_that_was_rotated_without_the_daemon_is_noticed(host_checks: ModuleType) -> None:
    (problem,) = host_checks.rotated("/log", ["/log.1 (deleted)"])
    assert problem.startswith("still writes to /log.1 (deleted), not to /log: ")
    assert [*host_checks.rotated("/log", ["/log", "/log.1"])] == []
    assert [*host_checks.rotated("/log", [])] == []
