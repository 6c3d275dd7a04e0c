"""Print results on stdout, and progress and errors on stderr."""

from __future__ import annotations

import errno
import json
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from harness.progress import Say, Step
from harness.report.verdict import FAILED, PASSED, exit_code

if TYPE_CHECKING:
    from harness.providers.existing.preview import HostChanges
    from harness.rehearsal import invariants
    from harness.report.model import Check, Report
    from harness.run_list import Row
    from harness.rundir import RunDir
    from harness.slurmconf import check as configuration_check
    from harness.slurmconf import diff

if TYPE_CHECKING:  # its packages may be missing
    from harness import doctor

_LOG = logging.getLogger("harness")
# How many excused problems of an invariant are printed.
_MOST_EXCUSED = 3


class Output(Console):
    """A console that survives its reader: `| head` that has read enough, or a closed terminal.

    The command continues to its end, and its exit code keeps its meaning.
    """

    lost = False

    def print(self, *objects: Any, **look: Any) -> None:
        """Print as rich does; progress that cannot be printed never stops a cleanup."""
        try:
            super().print(*objects, **look)
        except OSError as error:
            if not self.stderr and error.errno != errno.EIO:  # a terminal that has closed
                raise
            self.on_broken_pipe()

    def on_broken_pipe(self) -> None:
        """Discard further output; Python itself flushes the stream at exit."""
        self.quiet = self.lost = True
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())


out = Output(soft_wrap=True, highlight=False, emoji=False)
err = Output(stderr=True, soft_wrap=True, highlight=False, emoji=False)


class Format(StrEnum):
    """Output formats."""

    text = "text"
    json = "json"


class Progress:
    """Prints lines of progress with the seconds since the beginning.

    On a terminal, steps share one line.
    """

    def __init__(self) -> None:
        self._started = time.monotonic()

    def __call__(self, text: str) -> None:
        """Print a line."""
        err.print(f"[dim]{self._seconds()}[/dim]  {escape(text)}")

    @contextmanager
    def steps(self) -> Iterator[Callable[[Step], None]]:
        """Yield a function that shows a step: see progress.ShowsSteps."""
        # With FORCE_COLOR, rich takes a pipe for a terminal, but nothing can change in place there.
        if not (err.is_terminal and err.file.isatty()) or err.is_dumb_terminal:
            yield lambda step: self(str(step))
            return
        line = _StepLine(self._seconds)
        live = Live(
            line,
            console=err,
            transient=True,
            refresh_per_second=2,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        with suppress(OSError):  # the terminal may have closed
            live.start()
        try:
            yield line.show
        finally:
            with suppress(OSError):
                live.stop()

    def _seconds(self) -> str:
        return f"{time.monotonic() - self._started:6.1f} s"


class _StepLine:
    """The line of the step that runs; its times change with each refresh."""

    def __init__(self, seconds: Callable[[], str]) -> None:
        self._seconds = seconds
        self._step: Step | None = None
        self._shown = time.monotonic()

    def show(self, step: Step) -> None:
        """Replace the step."""
        self._step, self._shown = step, time.monotonic()

    def __rich__(self) -> Text:
        step = self._step
        if step and step.seconds_left:
            left = max(step.seconds_left - (time.monotonic() - self._shown), 0)
            step = replace(step, seconds_left=left)
        text = f"  {step}" if step else ""
        return Text(f"{self._seconds()}{text}", style="dim", no_wrap=True, overflow="ellipsis")


def progress() -> Progress:
    """Return a printer of progress, which includes long waits and, with --verbose, each command."""
    say = Progress()
    _LOG.handlers = [_ProgressHandler(say)]
    if not _LOG.level:
        _LOG.setLevel(logging.INFO)
    return say


class _ProgressHandler(logging.Handler):
    """Prints log records as lines of progress."""

    def __init__(self, say: Say) -> None:
        super().__init__()
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        self._say(record.getMessage())


def set_verbose(verbose: bool) -> None:
    """Show or hide each command on a host in the progress."""
    _LOG.setLevel(logging.DEBUG if verbose else logging.INFO)


def print_json(data: Any) -> None:
    """Print data as JSON, for programs."""
    out.print(json.dumps(data, indent=2), markup=False)


def table_of(headings: Iterable[str], rows: Iterable[Iterable[str]], **look: Any) -> Table:
    """Return a table; `look` is passed to rich's Table.add_column for each column."""
    table = Table(box=None, header_style="bold")
    for heading in headings:
        table.add_column(heading, **look)
    for row in rows:
        table.add_row(*row)
    return table


def print_changes(changes: HostChanges) -> None:
    """Print what a run would change on an existing machine."""
    from harness.providers.existing.preview import HostChanges

    out.print(f"[bold]{changes.host}[/bold]")
    for kind, path, difference in (
        *(("new    ", path, text) for path, text in changes.new),
        *(("differs", path, difference) for path, difference in changes.differing),
    ):
        out.print(f"  {kind}  {escape(path)}")
        for line in difference.splitlines():
            color = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "default")
            out.print(f"           [{color}]{escape(line)}[/{color}]")
    for directory in changes.directories:
        out.print(f"  owner    {escape(directory)}")
    for daemon in changes.daemons:
        out.print(f"  daemon   {daemon}")
    for user in changes.users:
        out.print(f"  user     {user} is created")
    for note in changes.notes:
        out.print(f"  [yellow]note     {escape(note)}[/yellow]")
    if changes == HostChanges(changes.host, notes=changes.notes):
        out.print("  nothing changes")


def print_diff(files: list[diff.FileDiff], changes: list[diff.Change], steps: list[str]) -> None:
    """Print which lines differ, what each change needs, and the steps that apply all changes."""
    from harness.slurmconf import diff

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
    if not changes:
        out.print("Slurm reads the same from both: there is nothing to apply")
        return
    for change in changes:
        what = " ".join(filter(None, [change.file, change.option]))
        values = (
            f": {change.before or '-'} -> {change.after or '-'}"
            if change.before or change.after
            else ""
        )
        where = f" on {change.hosts}" if change.hosts else ""
        action = diff.NEEDS.get(change.needs, change.needs) or "review it"
        drain = f"drain {change.nodes or 'the affected nodes'}, " if change.drain else ""
        needs = escape(drain + action)
        why = f" ({change.why})" if change.why else ""
        out.print(f"{escape(what + values + where)}\n    [bold]{needs}[/bold]{escape(why)}")
    out.print("\n[bold]To apply it to a running cluster:[/bold]")
    for number, step in enumerate(steps, 1):
        out.print(f"{number}. {escape(step)}")


def print_report(
    report: Report, format_: Format, path: Path | None = None, *, every_check: bool = False
) -> None:
    """Print a report and the path of its HTML page: `path`, or the one in the run's directory.

    Checks that passed are only counted, unless `every_check`.
    """
    from harness.report import html_report

    if format_ is Format.json:
        print_json(asdict(report))
        return
    color = {PASSED: "green", FAILED: "red"}.get(report.verdict, "yellow")
    for check in report.checks:
        if every_check:
            _print_check(check)
        elif check.outcome != "passed":
            out.print(
                f"\n[bold]{escape(check.id)}[/bold]: {check.outcome}\n{escape(check.message)}"
            )
    if report.problem:
        out.print(f"\n[bold]no verdict:[/bold] {escape(report.problem)}")
    for fault in report.known_faults:
        out.print(f"\n[bold]known bug in Slurm:[/bold] {escape(fault)}")
    outcomes = _counts(Counter(check.outcome for check in report.checks)) or "none"
    seconds = sum(stage["seconds"] for stage in report.stages)
    title = escape(f"{report.scenario}: {report.description}")
    out.print(f"\n[bold {color}]{report.verdict.upper()}[/bold {color}]  {title}")
    out.print(f"  checks    {outcomes}")
    releases = ", ".join(f"{name} {release}" for name, release in report.releases.items())
    out.print(f"  releases  {escape(releases)}")
    if report.kubernetes:
        out.print(f"  ledger    {escape(report.kubernetes)}")
    stages = ", ".join(f"{stage['name']} {stage['seconds']:.1f}" for stage in report.stages)
    out.print(f"  seconds   {escape(stages)}; {seconds:.0f} in total")
    if report.jobs:
        out.print(f"  jobs      {len(report.jobs)} records")
    if report.verdict != PASSED:
        out.print(f"  repeat    {html_report.repeat(report)} --keep", markup=False)
    out.print(f"  report    {_relative(path or Path(report.run) / 'report.html')}", markup=False)


def print_profile(report: Report) -> None:
    """Print how long stages and checks took, the longest first.

    Checks that took less than 1 % of the run are printed as one line.
    """
    total = sum(stage["seconds"] for stage in report.stages) or 1.0

    def show(seconds: float, what: str) -> None:
        out.print(f"{seconds:9.1f} {seconds / total:6.0%}  {escape(what)}", soft_wrap=True)

    out.print("\n[bold]  seconds  share[/bold]")
    slow = [check for check in report.checks if check.seconds >= total / 100]
    fast = [check.seconds for check in report.checks if check.seconds < total / 100]
    for stage in sorted(report.stages, key=lambda stage: -stage["seconds"]):
        show(stage["seconds"], stage["name"])
        if stage["name"] == "verify":
            for check in sorted(slow, key=lambda check: -check.seconds):
                show(check.seconds, f"  {check.id}")
            show(sum(fast), f"  {len(fast)} shorter checks")
            show(stage["seconds"] - sum(check.seconds for check in report.checks), "  other")


def _print_check(check: Check) -> None:
    """Print a check's outcome, and its message below it."""
    from harness.report import html_report

    color = {"passed": "green", "failed": "red", "skipped": "dim"}.get(check.outcome, "yellow")
    out.print(f"[{color}]{check.outcome:8}[/{color}] {escape(html_report.promise(check))}")
    for line in check.message.splitlines():
        out.print(f"         {escape(line)}")


def print_comparison(differing: dict[str, Any], format_: Format) -> None:
    """Print what runs have in common, and how they differ."""
    if format_ is Format.json:
        return print_json(differing)
    colors = {PASSED: "green", FAILED: "red", None: "dim"}

    def cell(value: Any) -> str:
        text = f"{value:.1f}" if isinstance(value, float) else "-" if value is None else str(value)
        return f"[{colors[value]}]{text}[/{colors[value]}]" if value in colors else escape(text)

    table = Table(box=None, header_style="bold")
    table.add_column("", overflow="fold")
    for number, run in enumerate(differing["runs"], 1):
        out.print(f"{number}  {escape(run)}")
        table.add_column(str(number), justify="right", overflow="fold")
    table.add_row("scenario", *map(cell, differing["scenarios"]))
    table.add_row("verdict", *map(cell, differing["verdicts"]))
    for kind in ("releases", "seconds"):
        for name, values in differing[kind].items():
            table.add_row(escape(f"{kind} {name}"), *map(cell, values))
    out.print(table)
    count, alike = len(differing["checks"]), differing["checks_alike"]
    out.print(f"{alike} checks have the same outcome; {count} differ")
    for name, values in differing["checks"].items():
        out.print(f"  {', '.join(map(cell, values))}  {escape(name)}")
    return None


def print_rehearsal(run: RunDir, format_: Format) -> None:
    """Print the verdict on a run's last rehearsal, and exit with its exit code."""
    from harness.rehearsal import invariants

    history = invariants.read(run.events(), run.plan())
    findings = invariants.evaluate(history)
    verdict = invariants.overall_outcome(findings)
    answers = Counter(submission.answer for submission in history.submissions)
    if format_ is Format.json:
        print_json(
            {
                "verdict": verdict,
                "submissions": answers,
                "findings": [asdict(finding) for finding in findings],
            }
        )
    else:
        for finding in findings:
            _print_invariant(finding)
        out.print(
            f"{verdict.upper()}  submissions: {_counts(answers)}; "
            f"executions seen: {len(history.traces)}"
        )
    raise typer.Exit(exit_code(verdict))


def _print_invariant(finding: invariants.InvariantResult) -> None:
    """Print an invariant's outcome, its problems, and the first few that known bugs excuse."""
    from harness.rehearsal import invariants

    colors = {PASSED: "green", FAILED: "red", invariants.SKIPPED: "dim"}
    color = colors.get(finding.outcome, "yellow")
    out.print(f"[{color}]{finding.outcome:8}[/{color}] {finding.name.replace('_', ' ')}")
    for problem in finding.problems:
        out.print(f"         {escape(problem)}")
    for excused in finding.excused[:_MOST_EXCUSED]:
        out.print(f"         [dim]excused: {escape(excused)}[/dim]")
    if (more := len(finding.excused) - _MOST_EXCUSED) > 0:
        out.print(f"         [dim]excused: {more} more; --format json lists them[/dim]")


def print_findings(findings: list[configuration_check.Finding]) -> None:
    """Print the findings of `harness check` with their places, and daemons that will not start."""
    colors = {"fatal": "bold red", "error": "red", "warning": "yellow", "info": "dim"}
    for finding in findings:
        color = colors[finding.severity]
        place = f"{finding.file}:{finding.line}:{finding.column}"
        refusing = f" ({', '.join(finding.daemons)})" if finding.severity == "fatal" else ""
        out.print(
            f"{escape(place)}: [{color}]{finding.severity}[/{color}]: "
            f"[bold]{escape(finding.option)}[/bold]: {escape(finding.message)}{refusing}"
        )
        if finding.hint:
            out.print(f"    hint: {escape(finding.hint)}")
    counts = Counter(finding.severity for finding in findings)
    summary = ", ".join(f"{counts[severity]} {severity}" for severity in colors if counts[severity])
    daemons = sorted(
        {name for finding in findings if finding.severity == "fatal" for name in finding.daemons}
    )
    refusal = f"; will not start: {', '.join(daemons)}" if daemons else ""
    err.print(f"{summary or 'no findings'}{refusal}")


def print_requirement(finding: doctor.Requirement) -> None:
    """Print a finding of `harness doctor`, and the command that fixes it."""
    if finding.ok:
        mark = "[green]ok[/green]     "
    elif finding.fatal:
        mark = "[red]missing[/red]"
    else:
        mark = "[yellow]warning[/yellow]"
    out.print(f"{mark} {finding.subject}: {escape(finding.text)}")
    if not finding.ok and finding.fix:
        out.print(f"        fix: {escape(finding.fix)}")


def status_table(rows: Sequence[Row]) -> Group:
    """Return what `status` shows."""
    table = table_of(
        ("run", "hosts up", "verdict"),
        ((row.run, ", ".join(row.hosts_up) or "-", row.verdict or "-") for row in rows),
        overflow="fold",
    )
    lines: list[str] = []
    for row in rows:
        for cluster, activity in row.clusters.items():
            text = activity.get("problem") or "; ".join(
                f"{kind} {_counts(activity[kind]) or 'none'}"
                for kind in ("nodes", "jobs")
                if kind in activity
            )
            lines.append(escape(f"{row.run} {cluster}: {text}"))
        warnings = filter(None, (*row.leaked, row.problem))
        lines += [f"[yellow]{escape(text)}[/yellow]" for text in warnings]
    return Group(table, *lines)


def _counts(counts: Mapping[str, int]) -> str:
    """Return counts as text such as "3 idle, 1 down"; "" for none."""
    return ", ".join(f"{count} {what}" for what, count in counts.items())


def _relative(path: Path) -> str:
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
