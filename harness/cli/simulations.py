"""The command that simulates scheduling policies."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.arguments import (
    DEFAULT_RUNS,
    FormatOption,
    ProviderOption,
    Releases,
    ReportDirectory,
    Runs,
    Settings,
    Verbose,
)
from harness.cli.opening import find_provider, must_be_writable
from harness.cli.printing import Format, print_json, print_report, progress
from harness.errors import UsageError

app = typer.Typer()
# A begin and a length, in hours.
_TIMES = re.compile(r"(\d+(?:\.\d+)?)\+(\d+(?:\.\d+)?)", re.ASCII)


@app.command(
    epilog="Exit codes: 3 if a simulation did not keep time, so its figures are not reliable."
)
def simulate(
    scenario_path: Annotated[
        Path, typer.Argument(metavar="SCENARIO", help="The scenario file.", show_default=False)
    ],
    changed: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="CHANGED", help="Changed scenarios to compare it with.", show_default=False
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Jobs to submit: Standard Workload Format, output of sacct --parsable2, CSV, or a "
            "site bundle; default: generated jobs.",
            exists=True,
            dir_okay=False,
            show_default=False,
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(help="Number of generated jobs.", min=1)] = 200,
    hours: Annotated[
        float | None,
        typer.Option(
            help="Number of hours of the trace to simulate; default: all of it. Without a trace: "
            "hours over which the generated jobs are submitted; default: 1.",
            min=0.01,
            show_default=False,
        ),
    ] = None,
    begin: Annotated[
        float, typer.Option(help="Number of hours to skip at the beginning of the trace.", min=0)
    ] = 0,
    sample: Annotated[
        bool,
        typer.Option(
            "--sample",
            help="Scale the trace of a larger system down by leaving jobs out; default: by "
            "shrinking them.",
        ),
    ] = False,
    running: Annotated[
        bool,
        typer.Option(
            "--running",
            help="Also submit the jobs that were running or pending when the simulated hours of "
            "the trace begin.",
        ),
    ] = False,
    warm_up: Annotated[
        float,
        typer.Option(help="Number of hours at the beginning that are not measured.", min=0),
    ] = 0,
    maintenance: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOUR+HOURS",
            help="Reserve all nodes for maintenance, such as 12+1.5: from hour 12, for 1.5 hours. "
            "Can be repeated.",
            show_default=False,
        ),
    ] = None,
    node_failure: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NODES@HOUR+HOURS",
            help="Set nodes down, such as n[1-4]@6+0.5: at hour 6, for half an hour. Slurm "
            "requeues their jobs. Can be repeated.",
            show_default=False,
        ),
    ] = None,
    think_time: Annotated[
        bool,
        typer.Option(
            "--think-time",
            help="Submit jobs that depend on others after these have ended and the think time of "
            "the trace has passed; default: at the time in the trace, with a dependency.",
        ),
    ] = False,
    usage: Annotated[
        Path | None,
        typer.Option(
            help="Fair-share usage at the beginning: a site bundle, or the output of "
            "sshare --all --parsable2 --format=Account,User,RawUsage. Default: none.",
            exists=True,
            dir_okay=False,
            show_default=False,
        ),
    ] = None,
    repeat: Annotated[int, typer.Option(help="Number of simulations of each policy.", min=1)] = 3,
    rate: Annotated[
        float | None,
        typer.Option(
            help="Simulated seconds per real second; default: 100 while nothing happens, at most "
            "20 while Slurm works.",
            min=1,
            max=100,
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the generated jobs.")] = 1,
    settings: Settings = None,
    provider: ProviderOption = "docker",
    release: Releases = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the hosts up.")] = False,
    report_directory: ReportDirectory = None,
    format_: FormatOption = Format.text,
    verbose: Verbose = False,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Compare waiting times under scheduling policies, with real daemons on an accelerated clock.

    With --set, simulate the scenario both as it is and with these settings.
    """
    from harness.cli.simulation_summary import print_comparison
    from harness.simulation import session
    from harness.simulation.execution import GOVERNED, Rates

    must_be_writable(report_directory)
    if trace is None and (begin or sample or running):
        raise UsageError("--begin, --sample and --running need --trace")
    options = session.Options(
        trace=trace,
        jobs=jobs,
        hours=hours,
        begin=begin,
        by="sampling" if sample else "nodes",
        seed=seed,
        running=running,
        warm_up=warm_up,
        maintenance=tuple(map(_maintenance, maintenance or ())),
        failures=tuple(map(_failure, node_failure or ())),
        think_time=think_time,
        usage=usage,
        rates=Rates(rate, rate) if rate else GOVERNED,
    )
    found = session.sources([scenario_path, *(changed or ())], settings or ())
    source = find_provider(provider, runs)
    command = shlex.join(["harness", *sys.argv[1:]])
    prepared = session.prepare(found, source, runs, progress(), release or (), options, command)
    result, comparison = session.run(prepared, repeat, keep=keep, directory=report_directory)
    if format_ is Format.json:
        print_json(json.loads((Path(result.run) / "report.json").read_text()))
    else:
        page = report_directory and report_directory / "report.html"
        print_report(result, format_, page, every_check=True)
        if comparison:
            print_comparison(comparison, format_)
    raise typer.Exit(result.exit_code())


def _maintenance(text: str) -> tuple[float, float]:
    """Return when maintenance begins and how long it lasts, in hours.

    >>> _maintenance("12+1.5")
    (12.0, 1.5)
    """
    match = _TIMES.fullmatch(text)
    if not match or not float(match[2]):
        raise UsageError(f"--maintenance {text}: write HOUR+HOURS, such as 12+1.5")
    return float(match[1]), float(match[2])


def _failure(text: str) -> tuple[str, float, float]:
    """Return the nodes that fail, when, and for how long, in hours.

    >>> _failure("n[1-4]@6+0.5")
    ('n[1-4]', 6.0, 0.5)
    """
    nodes, _, times = text.rpartition("@")
    match = _TIMES.fullmatch(times)
    if not match or not float(match[2]) or not re.fullmatch(r"[\w.\[\],-]+", nodes):
        raise UsageError(f"--node-failure {text}: write NODES@HOUR+HOURS, such as n[1-4]@6+0.5")
    return nodes, float(match[1]), float(match[2])
