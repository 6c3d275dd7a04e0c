"""report.html: a single file without external resources.

It is generated from a run's directory, or from a copy of the run's report.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pydantic import BaseModel, Field, TypeAdapter

from harness import events as event_file
from harness.cluster import logs
from harness.cluster.logs import LogLine
from harness.errors import UsageError, cannot_read
from harness.parsing import bounded_json
from harness.report import model
from harness.report.model import Check, Report
from harness.report.timeline import clock, faults, node_spans, seconds, timeline
from harness.report.verdict import PASSED
from harness.shipped_files import TEMPLATES

# Log lines are shown from this many seconds before a check until as many after it, because hosts'
# clocks differ, and daemons log late.
_AROUND = 2
# With more rows, the page would be larger than 10 MB.
_MOST_JOBS = 20_000
# Worst first.
_OUTCOMES = ("failed", "error", "skipped", "passed")

# What a verdict does not cover comes first.
_State = Literal["left out", "emulated", "added", "the same"]


class _Entry(BaseModel):
    """An option or object of a site and its rehearsal copy, as harness.site.fidelity writes it."""

    where: str
    name: str
    site: str | None
    copied: str | None = Field(alias="copy")
    state: _State
    why: str


_ENTRIES = TypeAdapter(list[_Entry])


def write(directory: Path) -> Path:
    """Write DIRECTORY/report.html and return its path.

    It is generated from report.json, and from events.jsonl, fidelity.json and logs/ if they exist.
    UsageError if there is no report.json.
    """
    report = model.read(directory)
    path = directory / "report.html"
    lines = logs.collected(directory / "logs") if report.verdict != PASSED else []
    events = list(event_file.readable(directory / "events.jsonl"))
    text = html(report, events, lines, _fidelity(directory / "fidelity.json"))
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
    return path


def _fidelity(path: Path) -> list[_Entry]:
    """Return how a rehearsal copy differs from its site; [] if that is not known."""
    try:
        return _ENTRIES.validate_python(bounded_json.load(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise UsageError(cannot_read(path, error)) from error


def html(
    report: Report,
    events: Sequence[Mapping[str, Any]],
    lines: Sequence[LogLine],
    fidelity: Sequence[_Entry] = (),
) -> str:
    """Return the HTML report.

    `lines` are the daemons' logs, `fidelity` says how a rehearsal copy differs from its site.
    Everything that comes from a cluster is escaped.
    """
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"clock": clock, "promise": promise, "utc": _utc}
    begin = min((seconds(event) for event in events), default=0.0)
    end = max((seconds(event) for event in events), default=0.0)
    ended = {event["id"]: seconds(event) for event in events if event["kind"] == "check"}
    evidence = {
        check.id: logs.excerpt(
            lines,
            ended[check.id] - check.seconds - _AROUND,
            ended[check.id] + _AROUND,
            check.message,
        )
        for check in report.checks
        if check.outcome in {"failed", "error"} and check.id in ended
    }
    states: dict[str, Counter[str]] = {}
    for job in report.jobs:
        states.setdefault(job["cluster"], Counter())[job["state"]] += 1
    jobs: dict[str, list[dict[str, Any]]] = {}
    for job in _listed_jobs(report.jobs):
        jobs.setdefault(job["cluster"], []).append(job)
    return environment.get_template("report.html.j2").render(
        report=report,
        checks=sorted(report.checks, key=lambda check: _OUTCOMES.index(check.outcome)),
        counts=Counter(check.outcome for check in report.checks),
        evidence=evidence,
        problem_lines=logs.excerpt(lines, begin, end, report.problem) if report.problem else [],
        timeline=timeline(report, events),
        faults=faults(events),
        node_spans=sorted(node_spans(events), key=lambda node_span: node_span[1].begin),
        jobs=jobs,
        states=states,
        commands=commands(report),
        fidelity={
            state: [entry for entry in fidelity if entry.state == state]
            for state in get_args(_State)
        },
    )


def _listed_jobs(jobs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the jobs that the page lists, in their order.

    If there are too many, those that did not complete come before those that did.
    """
    unfinished_first = sorted(
        range(len(jobs)), key=lambda number: jobs[number]["state"] == "COMPLETED"
    )
    return [jobs[number] for number in sorted(unfinished_first[:_MOST_JOBS])]


def repeat(report: Report) -> str:
    """Return the command that repeats a run, on the same releases and with the same settings."""
    if report.command:
        return report.command
    scenario = report.scenario_path or f"{report.scenario}.yml"
    choices = report.choices or report.releases
    several = len({*choices.values()}) > 1
    chosen = [f"{name}={choice}" if several else choice for name, choice in choices.items()]
    options = [word for choice in dict.fromkeys(chosen) for word in ("--release", choice)]
    options += [word for setting in report.settings for word in ("--set", setting)]
    provider = [] if report.provider == "docker" else ["--provider", report.provider]
    return shlex.join(["harness", "run", scenario, *provider, *options])


def commands(report: Report) -> dict[str, str]:
    """Return the commands that repeat a run or parts of it, by purpose."""
    failed = [check for check in report.checks if check.outcome in {"failed", "error"}]
    commands_by_use = {
        "repeat the run": repeat(report),
        "repeat it and leave the hosts up": f"{repeat(report)} --keep",
    }
    if failed and not report.command:
        names = dict.fromkeys(_function(check).partition("[")[0] for check in failed)
        chosen_checks = [word for name in names for word in ("--select", name)]
        commands_by_use["then repeat the failed checks"] = shlex.join(
            ["harness", "verify", *chosen_checks]
        )
    commands_by_use["regenerate this report"] = shlex.join(["harness", "report", report.run])
    return commands_by_use


def _function(check: Check) -> str:
    return check.id.rpartition("::")[2]


def promise(check: Check) -> str:
    """Return what a check asserts, in words.

    >>> promise(Check("test_jobs.py::test_job_runs[srun]", "passed", 1, ""))
    'job runs (srun)'
    >>> promise(Check("change::drain c[1-4]", "passed", 1, ""))
    'drain c[1-4]'
    """
    name = _function(check).replace("_", " ")
    if not name.startswith("test "):
        return name
    name, _, case = name.removeprefix("test ").partition("[")
    return f"{name} ({case.removesuffix(']')})" if case else name


def _utc(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S.%f")[:-3]
