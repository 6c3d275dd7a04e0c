"""What more than one verb takes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from harness.cli.printing import Format, set_verbose

ScenarioPath = Annotated[Path, typer.Argument(help="The scenario file.", show_default=False)]
Runs = Annotated[Path, typer.Option("--runs", envvar="HARNESS_RUNS", help="Where runs keep their directories.")]


def _run_option(unset: str) -> Any:
    return typer.Option("--run", "-r", help=f"A run's directory, id or scenario; {unset}.", show_default=False)


RunName = Annotated[str | None, _run_option("of several, or unset, the newest that is up")]
AnyRun = Annotated[str | None, _run_option("unset, the newest run")]
Releases = Annotated[
    list[str] | None,
    typer.Option(
        "--release",
        help="Put every cluster and slurmdbd on this release; NAME=RELEASE puts one of them on it. Can be repeated.",
        show_default=False,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Lay a value over the scenario, such as clusters.alpha.nodes.0.cpus=4. Can be repeated.",
        show_default=False,
    ),
]
ProbeImages = Annotated[
    bool,
    typer.Option(
        "--probe-images",
        help="Look into images that a scenario names (image:): pull them if need be, and run their programs without "
        "rights. Unset, nothing of them is run, and their release is what `release:` says.",
    ),
]
ProviderOption = Annotated[
    str,
    typer.Option(
        "--provider",
        envvar="HARNESS_PROVIDER",
        help="Where hosts come from: docker, docker:[SITE=]CONTEXT,... for engines in one Swarm, vagrant, or existing.",
    ),
]
Inventory = Annotated[
    Path | None,
    typer.Option(
        "--inventory",
        help="The machines of --provider existing, as Ansible takes them; unset, those that the scenario names.",
        exists=True,
        show_default=False,
    ),
]
SshConfig = Annotated[
    str, typer.Option("--ssh-config", envvar="HARNESS_SSH_CONFIG", help="How ssh reaches existing machines.")
]
Check = Annotated[bool, typer.Option("--check", help="Show what would change on existing machines, and end.")]
Yes = Annotated[bool, typer.Option("--yes", help="Change existing machines, once it is shown what changes.")]
ReportDirectory = Annotated[
    Path | None,
    typer.Option("--report", help="Write the report to this directory too.", show_default=False),
]
FormatOption = Annotated[Format, typer.Option("--format", help="How to print.")]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose",
        "-v",
        envvar="HARNESS_VERBOSE",
        callback=set_verbose,
        help="Show Ansible's tasks, and each command on a host.",
    ),
]
DEFAULT_RUNS = Path("runs")
DEFAULT_SSH_CONFIG = "~/.ssh/config"
