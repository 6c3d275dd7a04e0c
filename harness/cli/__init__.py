"""The command line. The only package that prints or exits."""

from __future__ import annotations

import signal
from typing import Annotated, Any

import typer
from rich.markup import escape
from typer.core import TyperGroup

from harness import __version__
from harness.cli import bench, fault, files, images, runs
from harness.cli.printing import err, out
from harness.errors import HarnessError


class Verbs(TyperGroup):
    """The verbs; an error of any of them becomes one message, and the exit code that errors.py promises."""

    def invoke(self, ctx: Any) -> Any:
        """Run a verb."""
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
    cls=Verbs,
    no_args_is_help=True,
    add_completion=True,
    help="Build, deploy and verify genuine Slurm clusters from one scenario file.",
    epilog="Exit codes: 0 passed or done; 1 a check failed; 2 bad usage or bad scenario; 3 could not judge.",
)
app.add_typer(files.app)
app.add_typer(runs.app)
app.add_typer(images.app, name="images")
app.add_typer(bench.app, name="bench")
app.add_typer(fault.app, name="fault")


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        out.print(__version__)
        raise typer.Exit


def main() -> None:
    """Run the command line."""
    signal.signal(signal.SIGTERM, _interrupt)
    app()


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
