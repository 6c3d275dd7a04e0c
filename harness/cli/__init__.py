"""The command line: prints results and errors, and sets the exit code.

Each command imports the modules that it needs, because all of them take longer to load than most
commands take to run.
"""

from __future__ import annotations

import io
import sys
import traceback
from typing import Annotated, Any

import typer
from rich.markup import escape

from harness import __version__, interrupts
from harness.cli import bench, fault, files, hosts, images, runs, simulations, submissions, suite
from harness.cli.arguments import Group
from harness.cli.printing import err, out
from harness.errors import BUG, CannotVerify, HarnessError, describe


class Commands(Group):
    """All commands.

    An error in any of them becomes one message, and the exit code that errors.py defines.
    """

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except HarnessError as error:
            err.print(f"[bold red]error:[/bold red] {escape(error.message)}")
            if error.hint:
                err.print(f"[bold]hint:[/bold] {escape(error.hint)}")
            raise typer.Exit(error.exit_code) from error
        except KeyboardInterrupt as error:
            err.print("interrupted")
            raise typer.Exit(3) from error


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,  # with rich, help takes twice as long
    context_settings={"max_content_width": 110},
    help="Build, deploy and verify real Slurm clusters from one scenario file.",
    epilog=(
        "Exit codes: 0 passed or done; 1 a check failed; 2 bad usage or bad scenario; 3 no verdict."
    ),
)
app.add_typer(files.app)
app.add_typer(runs.app)
app.add_typer(hosts.app)
app.add_typer(submissions.app)
app.add_typer(simulations.app)
app.add_typer(suite.app)
app.add_typer(images.app, name="images")
app.add_typer(bench.app, name="bench")
app.add_typer(fault.app, name="fault")


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        out.print(__version__)
        raise typer.Exit


def main() -> None:
    """Run the command line.

    An unexpected error ends it with exit code 3, which does not blame the clusters.
    """
    interrupts.raise_once()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # escape characters that its encoding lacks
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except Exception as error:  # typer turns all other errors into exit codes
        err.print(traceback.format_exc().rstrip(), style="dim", markup=False)
        err.print(f"[bold red]unexpected error:[/bold red] {escape(describe(error))}")
        err.print(f"[bold]hint:[/bold] {BUG}")
        sys.exit(CannotVerify.exit_code)
