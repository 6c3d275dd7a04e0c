"""The verbs of faults."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Annotated

import typer
from rich.markup import escape

from harness import faults
from harness.cli.arguments import DEFAULT_RUNS, FormatOption, RunName, Runs
from harness.cli.opening import open_run
from harness.cli.printing import Format, out, print_json, table_of
from harness.errors import HarnessError, UsageError

app = typer.Typer(no_args_is_help=True, help="Break a run on purpose, and heal it.")


@app.command("inject", epilog="`harness fault list` tells the kinds.")
def inject(
    kind: Annotated[str, typer.Argument(help="What breaks.", show_default=False)],
    on: Annotated[str, typer.Argument(help="The host; for cuts, a site too.", show_default=False)],
    more: Annotated[str, typer.Argument(help="What else the kind wants: a daemon, another host.")] = "",
    seconds: Annotated[
        float | None, typer.Option("--for", help="Heal it after so many seconds; unset, leave it.", show_default=False)
    ] = None,
    which: RunName = None,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Break something; `harness fault heal` heals it."""
    live, fault = open_run(runs, which), faults.Fault(kind, on, more)
    if seconds is None:
        return faults.inject(live, fault)
    with faults.injected(live, fault):
        time.sleep(seconds)
    return None


@app.command("heal")
def heal(which: RunName = None, runs: Runs = DEFAULT_RUNS) -> None:
    """Heal all that is broken on purpose, the last first."""
    live = open_run(runs, which)
    if problems := faults.heal_all(live):
        raise HarnessError("\n".join(problems))


@app.command("list")
def list_(which: RunName = None, runs: Runs = DEFAULT_RUNS, format_: FormatOption = Format.text) -> None:
    """List the kinds of faults, and those that a run has now."""
    try:
        live = open_run(runs, which)
        active, half_injected = faults.active(live), faults.half_injected(live)
    except UsageError:
        active, half_injected = [], []  # there is no run yet
    kinds = {name: {"wants": f"HOST {kind.wants}".rstrip(), "says": kind.says} for name, kind in faults.KINDS.items()}
    if format_ is Format.json:
        lists = {"active": active, "half_injected": half_injected}
        return print_json({"kinds": kinds} | {name: [*map(asdict, found)] for name, found in lists.items()})
    rows = ((name, about["wants"], about["says"]) for name, about in kinds.items())
    out.print(table_of(("kind", "wants", "what happens"), rows, overflow="fold"))
    for fault in active:
        out.print(f"[yellow]active: {escape(str(fault))}[/yellow]")
    for fault in half_injected:
        out.print(f"[yellow]perhaps active, its injection did not end: {escape(str(fault))}[/yellow]")
    return None
