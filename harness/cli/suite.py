"""The command that runs SchedMD's own test suite."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from harness.cli.arguments import DEFAULT_RUNS, FormatOption, RunName, Runs, Verbose
from harness.cli.opening import open_run
from harness.cli.printing import Format, out, print_json
from harness.errors import UsageError

if TYPE_CHECKING:
    from harness.open_run import OpenRun
    from harness.schedmd.results import Expected, Outcome

app = typer.Typer()


@app.command("schedmd-suite")
def schedmd_suite(
    source: Annotated[
        Path,
        typer.Argument(
            help="Slurm's source tree, of the same release as the run.",
            exists=True,
            file_okay=False,
            show_default=False,
        ),
    ],
    patterns: Annotated[
        list[str] | None,
        typer.Option(
            "--select",
            "-s",
            help=(
                "Tests to run, such as test_101_1, 1.1, 37.* or *; default: the quick ones. "
                "Can be repeated."
            ),
            show_default=False,
        ),
    ] = None,
    user: Annotated[
        str | None,
        typer.Option(
            "--user",
            "-u",
            help="User to run them as; default: the first Administrator.",
            show_default=False,
        ),
    ] = None,
    expected: Annotated[
        Path | None,
        typer.Option(
            "--expected",
            help="Your own list of expected results; default: that of the release.",
            exists=True,
            dir_okay=False,
            show_default=False,
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(help="Time limit for each test, in seconds.", min=1)
    ] = 1800,
    which: RunName = None,
    format_: FormatOption = Format.text,
    verbose: Verbose = False,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Run Slurm's own tests on a run, and print those whose results differ from the expected ones.

    The run needs what scenarios/schedmd-suite.yml has; see docs/how-to/schedmd-suite.md. Results
    and the output of tests that did not pass are in RUN/schedmd-suite.
    """
    from harness.schedmd import results, suite

    run = open_run(runs, which)
    release = run.plan.releases()[next(iter(run.plan.scenario.clusters))]
    if (of_source := results.release_of(source)) != release:
        raise UsageError(
            f"{source} is Slurm {of_source}, but the run has {release}",
            hint=f"name the source of Slurm {release}, or choose a run with --run",
        )
    list_ = results.read_expected(release, expected)
    selected = patterns or list_.quick
    if not selected:
        raise UsageError(
            f"no quick tests are known for {release}", hint="--select '*' runs all tests"
        )
    tests = results.select(results.tests_of(source), selected)
    on_hosts = suite.put(run, source, user or _administrator(run), seconds)
    outcomes = suite.run(on_hosts, tests, list_)
    if format_ is Format.json:
        print_json(suite.report(on_hosts, outcomes, list_))
    else:
        _print(outcomes, list_, run.directory.path / "schedmd-suite")
    raise typer.Exit(1 if results.unexpected_outcomes(outcomes, list_) else 0)


def _administrator(run: OpenRun) -> str:
    users = run.plan.scenario.users
    if not users:
        raise UsageError(
            f"{run.directory.id} has no users", hint="--user root runs the tests as root"
        )
    return next(
        (name for name, user in users.items() if user.admin == "Administrator"), next(iter(users))
    )


def _print(outcomes: list[Outcome], expected: Expected, kept: Path) -> None:
    """Print the unexpected outcomes, the counts, and where the report is."""
    from harness.schedmd import results

    unexpected = results.unexpected_outcomes(outcomes, expected)
    for one in unexpected:
        reason = f": {one.outcome.reason}" if one.outcome.reason else ""
        why = f" ({one.why})" if one.why else ""
        out.print(f"[bold]{escape(one.outcome.id)}[/bold]: {one.outcome.status}{escape(reason)}")
        out.print(f"    expected: {one.expected}{escape(why)}")
    counted = ", ".join(f"{count} {status}" for status, count in results.counts(outcomes).items())
    color, verdict = (
        ("red", f"{len(unexpected)} NOT AS EXPECTED") if unexpected else ("green", "AS EXPECTED")
    )
    out.print(f"[bold {color}]{verdict}[/bold {color}]  {len(outcomes)} tests: {counted}")
    out.print(f"  report  {kept / 'report.json'}", markup=False)
