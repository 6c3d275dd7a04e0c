"""The command that submits the rows of a table and compares what becomes of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from harness.cli.arguments import (
    DEFAULT_RUNS,
    FormatOption,
    ProviderOption,
    Releases,
    RunName,
    Runs,
    Settings,
    Verbose,
)
from harness.cli.opening import find_provider, open_run
from harness.cli.printing import Format, err, out, print_json, progress
from harness.errors import UsageError
from harness.submissions import answers

if TYPE_CHECKING:
    from harness.open_run import OpenRun
    from harness.submissions import table
    from harness.submissions.answers import Answer

app = typer.Typer()
_COLORS = {answers.REFUSED: "red", answers.WAITS: "yellow", answers.STARTS: "green"}


@app.command(
    epilog="Exit codes: 1 if a row does not meet its expectations; with --exit-code, also if "
    "anything differs."
)
def submissions(
    table_path: Annotated[
        Path,
        typer.Argument(
            metavar="TABLE",
            help="The table of submissions, YAML or CSV: see docs/how-to/test-a-policy.md.",
            exists=True,
            dir_okay=False,
            show_default=False,
        ),
    ],
    scenario_path: Annotated[
        Path | None,
        typer.Argument(
            metavar="SCENARIO",
            help="The scenario file; default: a run that is up.",
            show_default=False,
        ),
    ] = None,
    other: Annotated[
        Path | None,
        typer.Argument(
            metavar="OTHER",
            help="A scenario to compare with: print only the differences.",
            show_default=False,
        ),
    ] = None,
    to: Annotated[
        list[str] | None,
        typer.Option(
            "--to",
            help=(
                "Compare with OTHER, or with SCENARIO itself, on this release; NAME=RELEASE: only "
                "a cluster or slurmdbd. Can be repeated."
            ),
            show_default=False,
        ),
    ] = None,
    which: RunName = None,
    provider: ProviderOption = "docker",
    release: Releases = None,
    settings: Settings = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the hosts up.")] = False,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 1 if anything differs.")
    ] = False,
    format_: FormatOption = Format.text,
    verbose: Verbose = False,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Report which jobs in a table of submissions Slurm refuses, leaves pending or starts, and why.

    Each row is submitted by its user, and cancelled before it can start. If a scenario is given, it
    is brought up first and taken down again. Two scenarios or releases are compared.
    """
    from harness import lifecycle, scenario
    from harness.submissions import submit, table

    if not scenario_path:
        if to or release or settings or keep:
            raise UsageError("--to, --release, --set and --keep need a scenario")
        run = open_run(runs, which)
        rows = table.read(table_path, run.plan.scenario)
        return _print(submit.submit_rows(run.ssh, run.plan, rows), format_)
    if which:
        raise UsageError("--run cannot be combined with a scenario")
    source = find_provider(provider, runs)
    sides = [(scenario_path, [*(release or ())])]
    if other or to:
        sides.append((other or scenario_path, [*(release or ()), *(to or ())]))
    tables = [
        table.read(table_path, scenario.load(path, choices, settings=settings or ()))
        for path, choices in sides
    ]
    created = [
        lifecycle.create(path, source, runs, progress(), choices, settings or ())
        for path, choices in sides
    ]
    found = [_submit(run, rows, keep=keep) for run, rows in zip(created, tables, strict=True)]
    return _print(found[0], format_) if len(found) == 1 else _print_both(found, format_, exit_code)


def _submit(run: OpenRun, rows: Sequence[table.Row], *, keep: bool) -> list[Answer]:
    """Bring a run up, submit the rows, and take it down unless `keep`."""
    from harness import lifecycle
    from harness.submissions import submit

    with lifecycle.provisioned(run, keep=keep), lifecycle.logs_collected(run):
        lifecycle.deploy(run)
        with lifecycle.stage(run, "submissions"):
            return submit.submit_rows(run.ssh, run.plan, rows)


def _print(found: Sequence[Answer], format_: Format) -> None:
    """Print the answer to each row, and exit with 1 if any is unexpected."""
    if format_ is Format.json:
        print_json([asdict(answer) for answer in found])
    else:
        width = max(len(answer.row) for answer in found)
        for answer in found:
            _print_answer(answer, width)
        counts = Counter(answer.outcome for answer in found)
        err.print(", ".join(f"{counts[outcome]} {outcome}" for outcome in _COLORS))
    raise typer.Exit(1 if any(answer.unexpected for answer in found) else 0)


def _print_answer(answer: Answer, width: int) -> None:
    color = _COLORS[answer.outcome]
    held = ", ".join(f"{name} {value}" for name, value in answer.held.items())
    facts = "; ".join(filter(None, [answer.reason, held]))
    out.print(
        f"[{color}]{answer.outcome:7}[/{color}]  "
        f"[bold]{escape(answer.row.ljust(width))}[/bold]  {escape(facts)}"
    )
    for what, texts in (
        ("message", [answer.message]),
        ("changed", answer.changed),
        ("[bold red]not as expected[/bold red]", answer.unexpected),
    ):
        for text in filter(None, texts):
            out.print(f"         {what}: {escape(text)}")


def _print_both(found: Sequence[Sequence[Answer]], format_: Format, exit_code: bool) -> None:
    """Print the rows and columns that differ; with `exit_code`, exit with 1 if any does."""
    before, after = found
    differing = answers.differences(before, after)
    if format_ is Format.json:
        print_json(differing)
    else:
        for row, columns in differing.items():
            out.print(f"[bold]{escape(row)}[/bold]")
            for name, values in columns.items():
                old, new = (escape(value or "-") for value in values)
                out.print(f"    {name}: [red]{old}[/red] -> [green]{new}[/green]")
        err.print(f"{len(differing)} of {len(before)} submissions differ")
    raise typer.Exit(1 if exit_code and differing else 0)
