"""Commands for faults."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Annotated

import typer
from rich.markup import escape

from harness.cli.arguments import DEFAULT_RUNS, FormatOption, Group, RunName, Runs
from harness.cli.opening import open_run
from harness.cli.printing import Format, out, print_json, table_of
from harness.errors import HarnessError, UsageError

app = typer.Typer(cls=Group, no_args_is_help=True, help="Break a run on purpose, and heal it.")


@app.command("inject", epilog="`harness fault list` lists the kinds of faults and their arguments.")
def inject(
    kind: Annotated[str, typer.Argument(help="The kind of fault.", show_default=False)],
    on: Annotated[
        str,
        typer.Argument(metavar="host", help="The host; for cuts, also a site.", show_default=False),
    ],
    more: Annotated[
        str,
        typer.Argument(
            metavar="argument",
            help="The second argument of the kind, such as a daemon, a port or a second host.",
        ),
    ] = "",
    seconds: Annotated[
        float | None,
        typer.Option(
            "--for",
            help="Heal it after this many seconds; default: leave it active.",
            show_default=False,
        ),
    ] = None,
    which: RunName = None,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Inject a fault; `harness fault heal` heals it."""
    from harness import faults

    run, fault = open_run(runs, which), faults.Fault(kind, on, more)
    if seconds is None:
        return faults.inject(run, fault)
    with faults.injected(run, fault):
        time.sleep(seconds)
    return None


@app.command("heal")
def heal(which: RunName = None, runs: Runs = DEFAULT_RUNS) -> None:
    """Heal all injected faults, the newest first."""
    from harness import faults

    run = open_run(runs, which)
    if problems := faults.heal_all(run):
        raise HarnessError("\n".join(problems))


@app.command("list")
def list_(
    which: RunName = None, runs: Runs = DEFAULT_RUNS, format_: FormatOption = Format.text
) -> None:
    """List the kinds of faults, and the active faults of a run."""
    from harness import faults

    try:
        run = open_run(runs, which, only_up=False)
        active, half_injected = faults.active(run), faults.half_injected(run)
    except UsageError:
        active, half_injected = [], []  # there is no run yet
    kinds = {
        name: {"usage": kind.usage(name), "effect": kind.effect}
        for name, kind in faults.KINDS.items()
    }
    if format_ is Format.json:
        lists = {"active": active, "half_injected": half_injected}
        return print_json(
            {"kinds": kinds} | {name: [*map(asdict, listed)] for name, listed in lists.items()}
        )
    rows = ((about["usage"], about["effect"]) for about in kinds.values())
    out.print(table_of(("fault", "what happens"), rows, overflow="fold"))
    for fault in active:
        out.print(f"[yellow]active: {escape(str(fault))}[/yellow]")
    for fault in half_injected:
        out.print(
            f"[yellow]possibly active, its injection did not finish: {escape(str(fault))}[/yellow]"
        )
    return None
