"""What a failed test shows: its jobs, their output, and what the daemons logged meanwhile."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from harness.cluster import logs
from harness.errors import HarnessError
from harness.testing import Slurm, Submission

# Of a failed test: its last jobs, and the last characters of each one's output.
_JOBS_TOLD, _OUTPUT_TOLD = 5, 2000
_NOTHING = {"", "(null)", "N/A", "None"}
# Clocks of hosts and what a daemon writes a little later; in seconds.
_AROUND = 2


def of_failure(used: Slurm, begin: float, end: float, message: str) -> list[tuple[str, str]]:
    """Return the last jobs of a failed test and what the daemons logged, each with a heading.

    The times are in seconds since 1970; daemons' lines about jobs that `message` names are told,
    too.
    """
    try:
        jobs = used.jobs()
        last = {job.job_id: name for name, job in jobs if job.state != "REVOKED"}
        found = [
            _told(Submission(used, job_id, name)) for job_id, name in [*last.items()][-_JOBS_TOLD:]
        ]
        about = " ".join([message, *(f"job {job.job_id}" for _, job in jobs)])
    except HarnessError as error:
        found, about = [("Slurm's jobs", f"not to be had: {error}")], message
    with tempfile.TemporaryDirectory() as directory:
        problems = logs.collect(
            used.ssh, [host.name for host in used.plan.lasting_hosts()], Path(directory)
        )
        lines = logs.excerpt(logs.collected(Path(directory)), begin - _AROUND, end + _AROUND, about)
    said = [
        f"{datetime.fromtimestamp(line.at, UTC):%H:%M:%S} {line.source}: {line.text}"
        for line in lines
    ]
    return [
        *found,
        (
            "Slurm's daemons",
            "\n".join([*said, *problems]) or "nothing about these jobs, and no bad news",
        ),
    ]


def _told(job: Submission) -> tuple[str, str]:
    def details() -> str:
        return "\n".join(
            f"{name}={value}" for name, value in job.details().items() if value not in _NOTHING
        )

    def records() -> str:
        there = job.records() if job.slurm.plan.scenario.accounting else []
        return "\n".join(
            f"accounting: {one.step or 'job'} {one.state}, exit code {one.exit_code}:{one.signal}, on {one.node_list}"
            for one in there
        )

    def output() -> str:
        return f"output:\n{job.output()[-_OUTPUT_TOLD:]}"

    return f"Slurm's job {job.job_id} on {job.cluster}", "\n".join(
        filter(None, map(_said, (details, records, output)))
    )


def _said(look: Callable[[], str]) -> str:
    """Return what is seen, or why it cannot be."""
    try:
        return look()
    except HarnessError as error:
        return str(error)
