"""Reports of earlier runs of the same scenario, to estimate how long a run takes."""

from __future__ import annotations

from contextlib import suppress

from harness.errors import UsageError
from harness.report import model
from harness.report.model import Report
from harness.rundir import RunDir


def report(run: RunDir) -> Report | None:
    """Return the newest readable report of the run's scenario; None if there is none."""
    paths = run.path.parent.glob("[0-9]*/report.json")
    for path in sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True):
        with suppress(UsageError):
            return model.read(path.parent)
    return None


def stage_seconds(report: Report, stage: str) -> float | None:
    """Return how long the last run of a stage took; None if it did not run."""
    seconds = [float(row["seconds"]) for row in report.stages if row["name"] == stage]
    return seconds[-1] if seconds else None
