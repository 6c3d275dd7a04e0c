"""report.html: one file without outside resources, made of what a run's directory or a report's holds."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from harness import events, logs, report
from harness.errors import UsageError
from harness.logs import Line
from harness.report import PASSED, Check, Report
from harness.resources import TEMPLATES
from harness.timeline import clock, faults, node_spans, seconds, timeline

# Clocks of hosts and what a daemon writes a little later; in seconds.
_AROUND = 2
# Worst first.
_OUTCOMES = ("failed", "error", "skipped", "passed")


def write(directory: Path) -> Path:
    """Write DIRECTORY/report.html from report.json, and from events.jsonl and logs/ if they are there; return it.

    UsageError if there is no report.json.
    """
    told = report.read(directory)
    path = directory / "report.html"
    lines = logs.collected(directory / "logs") if told.verdict != PASSED else []
    text = html(told, list(events.readable(directory / "events.jsonl")), lines)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
    return path


def html(told: Report, happened: Sequence[Mapping[str, Any]], lines: Sequence[Line]) -> str:
    """Return the page; `lines` are what the daemons logged. Everything that comes from a cluster is escaped."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"clock": clock, "promise": promise, "utc": _utc}
    begin = min((seconds(event) for event in happened), default=0.0)
    end = max((seconds(event) for event in happened), default=0.0)
    ended = {event["id"]: seconds(event) for event in happened if event["kind"] == "check"}
    evidence = {
        check.id: logs.excerpt(
            lines, ended[check.id] - check.seconds - _AROUND, ended[check.id] + _AROUND, check.message
        )
        for check in told.checks
        if check.outcome in {"failed", "error"} and check.id in ended
    }
    jobs: dict[str, list[dict[str, Any]]] = {}
    for job in told.jobs:
        jobs.setdefault(job["cluster"], []).append(job)
    return environment.get_template("report.html.j2").render(
        told=told,
        checks=sorted(told.checks, key=lambda check: _OUTCOMES.index(check.outcome)),
        counts=Counter(check.outcome for check in told.checks),
        evidence=evidence,
        problem_lines=logs.excerpt(lines, begin, end, told.problem) if told.problem else [],
        timeline=timeline(told, happened),
        faults=faults(happened),
        node_spans=sorted(node_spans(happened), key=lambda one: one[1].begin),
        jobs=jobs,
        states={cluster: Counter(job["state"] for job in of_it) for cluster, of_it in jobs.items()},
        commands=commands(told),
    )


def repeat(told: Report) -> str:
    """Return the command that does all of a run again, on the same releases and with the same settings."""
    if told.command:
        return told.command
    scenario = told.scenario_path or f"{told.scenario}.yml"
    several = len({*told.releases.values()}) > 1
    chosen = [f"{name}={release}" if several else release for name, release in told.releases.items()]
    options = [word for choice in dict.fromkeys(chosen) for word in ("--release", choice)]
    options += [word for setting in told.settings for word in ("--set", setting)]
    provider = [] if told.provider == "docker" else ["--provider", told.provider]
    return shlex.join(["harness", "run", scenario, *provider, *options])


def commands(told: Report) -> dict[str, str]:
    """Return the commands that repeat a run, or look closer, each with what it does."""
    failed = [check for check in told.checks if check.outcome in {"failed", "error"}]
    found = {"all of it again": repeat(told), "again, and leave the hosts up": f"{repeat(told)} --keep"}
    if failed and not told.command:
        names = dict.fromkeys(_function(check).partition("[")[0] for check in failed)
        chosen_checks = [word for name in names for word in ("--check", name)]
        found["then what failed, once more"] = shlex.join(["harness", "verify", *chosen_checks])
    found["this page, from what is in the run's directory"] = shlex.join(["harness", "report", told.run])
    return found


def _function(check: Check) -> str:
    return check.id.rpartition("::")[2]


def promise(check: Check) -> str:
    """Return what a check is about, in words."""
    name, _, case = _function(check).removeprefix("test_").replace("_", " ").partition("[")
    return f"{name} ({case.removesuffix(']')})" if case else name


def _utc(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S.%f")[:-3]
