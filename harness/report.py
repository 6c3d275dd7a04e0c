"""The verdict of a run, and its report as JSON and HTML."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from harness.resources import TEMPLATES
from harness.topology import Box

PASSED, FAILED, UNKNOWN = "passed", "failed", "unknown"


@dataclass(frozen=True, slots=True)
class Check:
    """One check. `outcome` is passed, failed (the cluster is wrong), error (the check crashed) or skipped."""

    id: str
    outcome: str
    seconds: float
    message: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """All that is to be told of a run.

    `problem` is what kept it from being judged, `topologies` a picture of each.
    """

    scenario: str
    description: str
    verdict: str
    releases: dict[str, str]
    provider: str
    run: str
    stages: list[dict[str, Any]]
    checks: list[Check]
    jobs: list[dict[str, Any]] = field(default_factory=list)
    problem: str = ""
    known_faults: list[str] = field(default_factory=list)
    topologies: dict[str, list[Box]] = field(default_factory=dict)
    events: str = "events.jsonl"

    def exit_code(self) -> int:
        """Return the exit code that the verdict stands for."""
        return exit_code(self.verdict)


def exit_code(verdict: str) -> int:
    """Return the exit code that a verdict stands for."""
    return {PASSED: 0, FAILED: 1}.get(verdict, 3)


def judge(checks: Sequence[Check], problem: str = "") -> str:
    """Return the verdict: a failed check decides; without one, whatever could not be judged does.

    >>> judge([])
    'unknown'
    """
    outcomes = {check.outcome for check in checks}
    if "failed" in outcomes:
        return FAILED
    if problem or "error" in outcomes or "passed" not in outcomes:
        return UNKNOWN
    return PASSED


def timeline(jobs: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return a lane for each node list that jobs ran on; its bars are in percent of the time from first to last."""
    ran = [job for job in jobs if job["start"] and job["end"] and job["state"] != "REVOKED"]
    if not ran:
        return {}
    begin, end = min(job["start"] for job in ran), max(job["end"] for job in ran)
    percent = 100 / max(end - begin, 1)
    lanes: dict[str, list[dict[str, Any]]] = {}
    for job in sorted(ran, key=lambda job: (job["cluster"], job["node_list"], job["start"])):
        bar = {
            "left": round((job["start"] - begin) * percent, 2),
            "width": round((job["end"] - job["start"]) * percent, 2),
            "title": f"job {job['job_id']} {job['state']}, {job['end'] - job['start']} s",
        }
        lanes.setdefault(f"{job['cluster']} {job['node_list']}", []).append(bar)
    return lanes


def write(report: Report, directory: Path) -> None:
    """Write report.json and report.html; junit.xml comes from pytest itself."""
    directory.mkdir(parents=True, exist_ok=True)
    data = asdict(report)
    (directory / "report.json").write_text(json.dumps(data, indent=2) + "\n")
    # `report.html.j2` is a page for people: everything that comes from a cluster is escaped.
    environment = Environment(loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, autoescape=True)
    (directory / "report.html").write_text(
        environment.get_template("report.html.j2").render(data, timeline=timeline(report.jobs))
    )
