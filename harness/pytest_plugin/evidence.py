"""What is shown for a failed test: its jobs, their output, and the daemons' log lines."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from harness.cluster import logs
from harness.errors import HarnessError
from harness.testing import Slurm, Submission

# How many of a failed test's last jobs are shown, and how many characters of each job's output.
_JOBS_SHOWN, _OUTPUT_SHOWN = 5, 2000
_NOTHING = {"", "(null)", "N/A", "None"}
# Seconds by which clocks of hosts may differ, and by which daemons may log late.
_AROUND = 2
# Seconds in which slurmdbd should take what slurmctld sends to it.
_RECORDED_WITHIN = 30


def of_failure(used: Slurm, begin: float, end: float, message: str) -> list[tuple[str, str]]:
    """Return the last jobs of a failed test and what the daemons logged, each with a heading.

    The times are in seconds since 1970. Daemons' lines about jobs that `message` names are
    included, too.
    """
    _wait_until_recorded(used)
    try:
        jobs = used.jobs()
        last = {job.job_id: name for name, job in jobs if job.state != "REVOKED"}
        sections = [
            _section(Submission(used, job_id, name))
            for job_id, name in [*last.items()][-_JOBS_SHOWN:]
        ]
        about = " ".join([message, *(f"job {job.job_id}" for _, job in jobs)])
    except HarnessError as error:
        sections, about = [("Slurm's jobs", f"not available: {error}")], message
    with tempfile.TemporaryDirectory() as directory:
        problems = logs.collect(
            used.ssh, [host.name for host in used.plan.permanent_hosts()], Path(directory)
        )
        lines = logs.excerpt(logs.collected(Path(directory)), begin - _AROUND, end + _AROUND, about)
    log_lines = [
        f"{datetime.fromtimestamp(line.at, UTC):%H:%M:%S} {line.source}: {line.text}"
        for line in lines
    ]
    return [
        *sections,
        (
            "Slurm's daemons",
            "\n".join([*log_lines, *problems]) or "nothing about these jobs, and no errors",
        ),
    ]


def _wait_until_recorded(used: Slurm) -> None:
    """Wait until slurmdbd has accepted slurmctld's messages; what comes later is not shown."""
    for cluster in used.clusters.values() if used.plan.scenario.accounting else ():
        with suppress(HarnessError):
            cluster.wait_for_slurmdbd(_RECORDED_WITHIN)


def _section(job: Submission) -> tuple[str, str]:
    def details() -> str:
        return "\n".join(
            f"{name}={value}" for name, value in job.details().items() if value not in _NOTHING
        )

    def records() -> str:
        rows = job.records() if job.slurm.plan.scenario.accounting else []
        return "\n".join(
            f"accounting: {record.step or 'job'} {record.state}, "
            f"exit code {record.exit_code}:{record.signal}, on {record.node_list}"
            for record in rows
        )

    def output() -> str:
        return f"output:\n{job.output()[-_OUTPUT_SHOWN:]}"

    return f"Slurm's job {job.job_id} on {job.cluster}", "\n".join(
        filter(None, map(_answer_or_error, (details, records, output)))
    )


def _answer_or_error(look: Callable[[], str]) -> str:
    """Return what `look` returns, or its error."""
    try:
        return look()
    except HarnessError as error:
        return str(error)
