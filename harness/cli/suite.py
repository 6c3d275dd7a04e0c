"""The verb that runs SchedMD's own testsuite."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from harness.cli.arguments import DEFAULT_RUNS, FormatOption, RunName, Runs, Verbose
from harness.cli.opening import open_run
from harness.cli.printing import Format, out, print_json
from harness.errors import UsageError
from harness.live import Live
from harness.schedmd import results, suite
from harness.schedmd.results import Expected, Outcome

app = typer.Typer()


@app.command("schedmd-suite")
def schedmd_suite(
    source: Annotated[
        Path,
        typer.Argument(
            help="A source tree of Slurm of the same release.", exists=True, file_okay=False, show_default=False
        ),
    ],
    patterns: Annotated[
        list[str] | None,
        typer.Option(
            "--select",
            "-s",
            help="Tests to run, such as test_101_1, 1.1, 37.* or *; unset, the quick ones. Can be repeated.",
            show_default=False,
        ),
    ] = None,
    user: Annotated[
        str | None,
        typer.Option("--user", "-u", help="User to run them as; unset, the first Administrator.", show_default=False),
    ] = None,
    expected: Annotated[
        Path | None,
        typer.Option(
            "--expected",
            help="Your own list of expected results; unset, that of the release.",
            exists=True,
            dir_okay=False,
            show_default=False,
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(help="Seconds after which a test is stopped.", min=1)] = 1800,
    which: RunName = None,
    format_: FormatOption = Format.text,
    verbose: Verbose = False,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Run Slurm's own tests on a run, and print those whose results differ from the expected ones.

    The run needs what scenarios/schedmd-suite.yml has; see docs/how-to/schedmd-suite.md. Results and the output of
    tests that did not pass are in RUN/schedmd-suite.
    """
    live = open_run(runs, which)
    release = live.plan.releases()[next(iter(live.plan.scenario.clusters))]
    if (of_source := results.release_of(source)) != release:
        raise UsageError(f"{source} is Slurm {of_source}, but the run has {release}")
    list_ = results.read_expected(release, expected)
    wanted = patterns or list_.quick
    if not wanted:
        raise UsageError(f"no quick tests are known for {release}", hint="--select '*' runs all tests")
    tests = results.select(results.tests_of(source), wanted)
    on_hosts = suite.put(live, source, user or _administrator(live), seconds)
    outcomes = suite.run(on_hosts, tests, list_)
    if format_ is Format.json:
        print_json(suite.report(on_hosts, outcomes, list_))
    else:
        _print(outcomes, list_, live.run.path / "schedmd-suite")
    raise typer.Exit(1 if results.news(outcomes, list_) else 0)


def _administrator(live: Live) -> str:
    users = live.plan.scenario.users
    if not users:
        raise UsageError(f"{live.run.id} has no users", hint="--user root runs the tests as root")
    return next((name for name, user in users.items() if user.admin == "Administrator"), next(iter(users)))


def _print(outcomes: list[Outcome], expected: Expected, kept: Path) -> None:
    """Print the unexpected outcomes, the counts, and where the report is."""
    found = results.news(outcomes, expected)
    for one in found:
        said = f": {one.outcome.reason}" if one.outcome.reason else ""
        why = f" ({one.why})" if one.why else ""
        out.print(f"[bold]{escape(one.outcome.id)}[/bold]: {one.outcome.status}{escape(said)}")
        out.print(f"    expected: {one.expected}{escape(why)}")
    counted = ", ".join(f"{count} {status}" for status, count in results.counts(outcomes).items())
    color, verdict = ("red", f"{len(found)} NOT AS EXPECTED") if found else ("green", "AS EXPECTED")
    out.print(f"[bold {color}]{verdict}[/bold {color}]  {len(outcomes)} tests: {counted}")
    out.print(f"  report  {kept / 'report.json'}", markup=False)
