"""What the daemons logged while the checks ran: it comes after the other checks."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import pytest
from conftest import everywhere, problems_on
from test_hosts import CLIENT_ENDED, PEER_ENDED, complaints, daemons_with_logs, is_known

from harness.cluster import diagnosis
from harness.plan import Plan
from harness.report import timeline
from harness.rundir import RunDir
from harness.ssh import Ssh
from harness.verify import checks_plugin

# pytest imports this module when it collects the checks, before it runs the first one.
BEGAN = time.time()
# Seconds after a check or fault during which daemons may still log errors that it provoked.
AFTERMATH = 20
# Seconds before the checks that also count: a few selected checks may take less time than systemd
# needs to restart a daemon.
MOMENT = 2
# Errors that daemons log although nothing is wrong, and why they cannot be avoided.
HARMLESS = (
    PEER_ENDED,
    CLIENT_ENDED,
    # slurmd queries a slurmstepd that is just starting or ending.
    r"stepd_connect to StepId=\S+ failed: No such file",
    # The machine is busy; checks notice missing answers.
    r"(Socket|Connection) timed out|Connection (refused|reset)",
    # A job was cancelled before its node received the message that starts it. slurmctld sends both
    # at the same time, and calls this "not a real error": _slurm_rpc_complete_batch_script().
    r"error: Job(Id=| )\d+.* already killed, do not launch batch job$",
)
# The same without slurmdbd: slurmctld 23.11 looks for new QOS in accounting_storage/none.
HARMLESS_WITHOUT_SLURMDBD = (r"_refresh_assoc_mgr_qos_list: no new list given back",)


def test_no_daemon_logged_an_error_that_no_check_provoked(
    request: pytest.FixtureRequest, ssh: Ssh, plan: Plan, run: RunDir
) -> None:
    """Covers errors, not warnings. A check's marker `provokes` names the errors that it causes."""
    markers = {item.nodeid: [*item.iter_markers("provokes")] for item in request.session.items}
    events = [event for event in run.events() if timeline.seconds(event) > BEGAN]
    spans = [*disturbances(events, markers)]
    known_errors = [
        *checks_plugin.provoked(request.session),
        *HARMLESS,
        *(() if plan.scenario.accounting else HARMLESS_WITHOUT_SLURMDBD),
    ]
    end = time.time()

    def look(daemon_log: tuple[str, str, str]) -> list[str]:
        name, daemon, path = daemon_log
        zone, *lines = ssh.run(
            name, ["sh", "-c", f"date +%z; cat {shlex.quote(path)} || true"]
        ).stdout.splitlines()
        return [
            f"{name}: {daemon}: {line}"
            for at, line in complaints(lines, zone, BEGAN, end, levels="error|fatal")
            if not any(begin <= at <= end + AFTERMATH for begin, end in spans)
            and not is_known(plan, name, line)
            and not any(re.search(pattern, line) for pattern in known_errors)
        ]

    problems = [
        line for lines in everywhere(look, daemons_with_logs(plan)).values() for line in lines
    ]
    assert not problems, "\n".join(problems)


def test_no_daemon_ended_unless_a_fault_ended_it(
    request: pytest.FixtureRequest, ssh: Ssh, plan: Plan, run: RunDir
) -> None:
    """A daemon that systemd restarted at once would otherwise go unnoticed."""
    known_errors = checks_plugin.provoked(request.session)
    spans = timeline.faults(run.events())
    script = (
        f"{diagnosis.JOURNAL_IS_WRITTEN};"
        f" journalctl --quiet --no-pager --output=short-unix --since=@{BEGAN - MOMENT:.0f} _PID=1"
        " | grep -aE ' slurm[^ ]*: Main process exited' || true"
    )

    def look(name: str) -> list[str]:
        lines = ssh.run(name, ["sh", "-c", script]).stdout.splitlines()
        return [
            f"{name}: {line.partition(': ')[2]}"
            for line in lines
            if not any(
                span.begin <= float(line.split()[0]) <= span.end + AFTERMATH for span in spans
            )
            and not any(re.search(pattern, line) for pattern in known_errors)
        ]

    names = [host.name for host in plan.permanent_hosts()]
    problems = problems_on(names, look)
    assert not problems, "\n".join(problems)


def disturbances(
    events: Iterable[Mapping[str, Any]], markers: Mapping[str, list[pytest.Mark]]
) -> Iterator[tuple[float, float]]:
    """Yield the start and end of each fault, and of each check with `provokes` without patterns.

    Such a check ends, with its cleanup, where the next one begins.
    """
    events = [*events]
    yield from ((fault.begin, fault.end) for fault in timeline.faults(events))
    checks = [event for event in events if event["kind"] == "check"]
    begins = [*(timeline.seconds(event) - event["seconds"] for event in checks), time.time()]
    for event, (begin, end) in zip(checks, pairwise(begins), strict=True):
        if any(not mark.args for mark in markers.get(event["id"], [])):
            yield begin, end
