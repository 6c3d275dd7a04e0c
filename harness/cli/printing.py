"""How what was done is told: on stdout what was asked for, on stderr progress and errors."""

from __future__ import annotations

import errno
import json
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Any

import typer
from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table

from harness import check, checkers, diff, page
from harness.providers.preview import HostChanges
from harness.report import FAILED, PASSED, Check, Report, exit_code
from harness.rundir import RunDir

_LOG = logging.getLogger("harness")


class Output(Console):
    """A console that loses its reader without an error: `| head` has read enough, or the terminal has closed.

    What the command does goes on to its end, and its exit code means what it always means.
    """

    lost = False

    def print(self, *objects: Any, **look: Any) -> None:
        """Print as rich does; progress that cannot be printed, whatever the reason, stops no cleanup."""
        try:
            super().print(*objects, **look)
        except OSError as error:
            if not self.stderr and error.errno != errno.EIO:  # a terminal that has closed
                raise
            self.on_broken_pipe()

    def on_broken_pipe(self) -> None:
        """Send what else is printed nowhere; Python itself flushes the stream at exit."""
        self.quiet = self.lost = True
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())


out = Output(soft_wrap=True, highlight=False, emoji=False)
err = Output(stderr=True, soft_wrap=True, highlight=False, emoji=False)


class Format(StrEnum):
    """How data is printed."""

    text = "text"
    json = "json"


def progress() -> Callable[[str], None]:
    """Return what prints a line of progress, with the seconds since the beginning."""
    started = time.monotonic()

    def say(text: str) -> None:
        err.print(f"[dim]{time.monotonic() - started:6.1f} s[/dim]  {escape(text)}")

    _LOG.handlers = [_Saying(say)]
    if not _LOG.level:
        _LOG.setLevel(logging.INFO)
    return say


class _Saying(logging.Handler):
    """Has long waits, and with --verbose each command, told among the progress."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__()
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        """Say it."""
        self._say(record.getMessage())


def set_verbose(verbose: bool) -> None:
    """Have each command on a host told among the progress, or not."""
    _LOG.setLevel(logging.DEBUG if verbose else logging.INFO)


def print_json(data: Any) -> None:
    """Print data as JSON, for programs."""
    out.print(json.dumps(data, indent=2), markup=False)


def table_of(headings: Iterable[str], rows: Iterable[Iterable[str]], **look: Any) -> Table:
    """Return a table; `look` is what rich's Table.add_column takes, the same for each column."""
    table = Table(box=None, header_style="bold")
    for heading in headings:
        table.add_column(heading, **look)
    for row in rows:
        table.add_row(*row)
    return table


def print_changes(changes: HostChanges) -> None:
    """Print what a run would change on a machine that is somebody's."""
    out.print(f"[bold]{changes.host}[/bold]")
    for what, path, difference in (
        *(("new    ", path, text) for path, text in changes.new),
        *(("differs", path, difference) for path, difference in changes.differing),
    ):
        out.print(f"  {what}  {escape(path)}")
        for line in difference.splitlines():
            color = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "default")
            out.print(f"           [{color}]{escape(line)}[/{color}]")
    for directory in changes.directories:
        out.print(f"  owner    {escape(directory)}")
    for daemon in changes.daemons:
        out.print(f"  daemon   {daemon}")
    for user in changes.users:
        out.print(f"  user     {user} is made")
    for note in changes.notes:
        out.print(f"  [yellow]note     {escape(note)}[/yellow]")
    if changes == HostChanges(changes.host, notes=changes.notes):
        out.print("  nothing changes")


def print_diff(files: list[diff.FileDiff], changes: list[diff.Change], steps: list[str]) -> None:
    """Print which lines differ, what each needs, and the steps that take them into a running cluster."""
    colors = {"+": "green", "-": "red", "@": "cyan"}
    for file in files:
        if file.hosts:
            out.print(f"[bold]# on {file.hosts}[/bold]")
        for line in file.text.splitlines():
            color = colors.get(line[:1], "default")
            out.print(f"[{color}]{escape(line)}[/{color}]")
    if not files:
        out.print("nothing differs")
        return
    out.print()
    for change in changes:
        what = " ".join(filter(None, [change.file, change.option]))
        values = f": {change.before or '-'} -> {change.after or '-'}" if change.before or change.after else ""
        where = f" on {change.hosts}" if change.hosts else ""
        needs = f"{'drain, ' if change.drain else ''}{diff.NEEDS.get(change.needs, change.needs) or 'look at it'}"
        why = f" ({change.why})" if change.why else ""
        out.print(f"{escape(what + values + where)}\n    [bold]{needs}[/bold]{escape(why)}")
    out.print("\n[bold]To take it into a running cluster:[/bold]")
    for number, step in enumerate(steps, 1):
        out.print(f"{number}. {escape(step)}")


def print_report(report: Report, format_: Format, path: Path | None = None, *, every_check: bool = False) -> None:
    """Print a report, and where it can be read in a browser; that is `path`, or in the run's directory.

    Checks that passed are only counted, unless `every_check`.
    """
    if format_ is Format.json:
        print_json(asdict(report))
        return
    color = {PASSED: "green", FAILED: "red"}.get(report.verdict, "yellow")
    for one in report.checks:
        if every_check:
            _print_check(one)
        elif one.outcome != "passed":
            out.print(f"\n[bold]{escape(one.id)}[/bold]: {one.outcome}\n{escape(one.message)}")
    if report.problem:
        out.print(f"\n[bold]could not judge:[/bold] {escape(report.problem)}")
    for fault in report.known_faults:
        out.print(f"\n[bold]known fault of Slurm:[/bold] {escape(fault)}")
    counts = Counter(one.outcome for one in report.checks)
    told = ", ".join(f"{count} {outcome}" for outcome, count in counts.items()) or "none"
    seconds = sum(stage["seconds"] for stage in report.stages)
    what = escape(f"{report.scenario}: {report.description}")
    out.print(f"\n[bold {color}]{report.verdict.upper()}[/bold {color}]  {what}")
    out.print(f"  checks    {told}")
    out.print(f"  releases  {escape(', '.join(f'{name} {release}' for name, release in report.releases.items()))}")
    if report.kubernetes:
        out.print(f"  ledger    {escape(report.kubernetes)}")
    stages = ", ".join(f"{stage['name']} {stage['seconds']:.1f}" for stage in report.stages)
    out.print(f"  seconds   {escape(stages)}; in all {seconds:.0f}")
    out.print(f"  jobs      {len(report.jobs)} records")
    if report.verdict != PASSED:
        out.print(f"  look      {page.repeat(report)} --keep", markup=False)
    out.print(f"  report    {_relative(path or Path(report.run) / 'report.html')}", markup=False)


def _print_check(check: Check) -> None:
    """Print a check's outcome, and below it what it says."""
    color = {"passed": "green", "failed": "red", "skipped": "dim"}.get(check.outcome, "yellow")
    out.print(f"[{color}]{check.outcome:8}[/{color}] {escape(page.promise(check))}")
    for line in check.message.splitlines():
        out.print(f"         {escape(line)}")


def print_comparison(differing: dict[str, Any], format_: Format) -> None:
    """Print what runs have in common and what not."""
    if format_ is Format.json:
        return print_json(differing)
    colors = {PASSED: "green", FAILED: "red", None: "dim"}

    def told(value: Any) -> str:
        text = f"{value:.1f}" if isinstance(value, float) else "-" if value is None else str(value)
        return f"[{colors[value]}]{text}[/{colors[value]}]" if value in colors else escape(text)

    table = Table(box=None, header_style="bold")
    table.add_column("", overflow="fold")
    for number, run in enumerate(differing["runs"], 1):
        out.print(f"{number}  {escape(run)}")
        table.add_column(str(number), justify="right", overflow="fold")
    table.add_row("scenario", *map(told, differing["scenarios"]))
    table.add_row("verdict", *map(told, differing["verdicts"]))
    for kind in ("releases", "seconds"):
        for name, values in differing[kind].items():
            table.add_row(escape(f"{kind} {name}"), *map(told, values))
    out.print(table)
    out.print(f"{differing['checks_alike']} checks have the same outcome; {len(differing['checks'])} do not")
    for name, values in differing["checks"].items():
        out.print(f"  {', '.join(map(told, values))}  {escape(name)}")
    return None


def print_judgement(run: RunDir, format_: Format) -> None:
    """Print what the checkers say of a run's last rehearsal, and exit as its verdict says."""
    history = checkers.read(run.events(), run.plan())
    findings = checkers.judge(history)
    verdict = checkers.verdict(findings)
    answers = Counter(one.answer for one in history.submissions)
    if format_ is Format.json:
        print_json({"verdict": verdict, "submissions": answers, "findings": [asdict(one) for one in findings]})
    else:
        colors = {PASSED: "green", FAILED: "red", checkers.SKIPPED: "dim"}
        for one in findings:
            color = colors.get(one.outcome, "yellow")
            out.print(f"[{color}]{one.outcome:8}[/{color}] {one.name.replace('_', ' ')}")
            for problem in one.problems:
                out.print(f"         {escape(problem)}")
            for excused in one.excused[:3]:
                out.print(f"         [dim]excused: {escape(excused)}[/dim]")
            if len(one.excused) > 3:
                out.print(f"         [dim]excused: {len(one.excused) - 3} more; --format json tells them[/dim]")
        told = ", ".join(f"{count} {answer}" for answer, count in answers.items())
        out.print(f"{verdict.upper()}  submissions: {told}; executions seen: {len(history.witnesses)}")
    raise typer.Exit(exit_code(verdict))


def print_findings(findings: list[check.Finding]) -> None:
    """Print what `check` found, each with its place, and what does not start."""
    colors = {"fatal": "bold red", "error": "red", "warning": "yellow", "info": "dim"}
    for finding in findings:
        color = colors[finding.severity]
        place = f"{finding.file}:{finding.line}:{finding.column}"
        out.print(
            f"{escape(place)}: [{color}]{finding.severity}[/{color}]: "
            f"[bold]{escape(finding.option)}[/bold]: {escape(finding.message)}"
        )
        if finding.hint:
            out.print(f"    hint: {escape(finding.hint)}")
    counts = Counter(finding.severity for finding in findings)
    told = ", ".join(f"{counts[severity]} {severity}" for severity in colors if counts[severity])
    stops = sorted({finding.daemon for finding in findings if finding.severity == "fatal"})
    refusal = f"; does not start: {', '.join(stops)}" if stops else ""
    err.print(f"{told or 'nothing to say'}{refusal}")


def status_table(rows: list[dict[str, Any]]) -> Group:
    """Return what `status` shows."""
    table = table_of(
        ("run", "hosts up", "verdict"),
        ((row["run"], ", ".join(row["hosts_up"]) or "-", row["verdict"] or "-") for row in rows),
        overflow="fold",
    )
    told: list[str] = []
    for row in rows:
        for cluster, does in row["clusters"].items():
            kinds = (
                f"{kind} {', '.join(f'{count} {state}' for state, count in does[kind].items()) or 'none'}"
                for kind in ("nodes", "jobs")
                if kind in does
            )
            told.append(escape(f"{row['run']} {cluster}: {does.get('problem') or '; '.join(kinds)}"))
        told += [f"[yellow]{escape(text)}[/yellow]" for text in (*row["leaked"], row["problem"]) if text]
    return Group(table, *told)


def _relative(path: Path) -> str:
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
