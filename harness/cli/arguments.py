"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from harness.cli.printing import Format, set_verbose


class Group(TyperGroup):
    """Commands that help lists with the whole first paragraph of each one's own help."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for command in self.commands.values():
            command.short_help = " ".join((command.help or "").partition("\n\n")[0].split())


ScenarioPath = Annotated[Path, typer.Argument(help="The scenario file.", show_default=False)]
Runs = Annotated[Path, typer.Option("--runs", envvar="HARNESS_RUNS", help="Directory of all runs.")]


def _run_option(default: str) -> Any:
    return typer.Option(
        "--run",
        "-r",
        help=f"A run's directory, id or scenario; default: {default}.",
        show_default=False,
    )


RunName = Annotated[str | None, _run_option("the newest that is up")]
AnyRun = Annotated[str | None, _run_option("the newest run")]
Releases = Annotated[
    list[str] | None,
    typer.Option(
        "--release",
        help=(
            "Use this release for every cluster and slurmdbd, or with NAME=RELEASE for one of "
            "them. Instead of a release, name an origin: source:FILE or packages:DIRECTORY (either "
            "can be followed by ,base:NAME), base:NAME, or image:NAME. Can be repeated."
        ),
        show_default=False,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help=(
            "Override a value of the scenario, such as clusters.alpha.nodes.0.cpus=4. "
            "Can be repeated."
        ),
        show_default=False,
    ),
]
ProbeImages = Annotated[
    bool,
    typer.Option(
        "--probe-images",
        help=(
            "Inspect the images that a scenario names (image:): pull them if necessary, and run "
            "their programs without privileges. By default nothing in them runs, and `release:` "
            "says which release they have."
        ),
    ),
]
ProviderOption = Annotated[
    str,
    typer.Option(
        "--provider",
        envvar="HARNESS_PROVIDER",
        help=(
            "Where hosts come from: docker, docker:[SITE=]CONTEXT,... (engines in one Swarm), "
            "vagrant, or existing."
        ),
    ),
]
Inventory = Annotated[
    Path | None,
    typer.Option(
        "--inventory",
        help=(
            "Ansible inventory of the machines for --provider existing; default: those that the "
            "scenario names."
        ),
        exists=True,
        show_default=False,
    ),
]
SshConfig = Annotated[
    str,
    typer.Option(
        "--ssh-config",
        envvar="HARNESS_SSH_CONFIG",
        help="ssh_config(5) file for existing machines.",
    ),
]
Check = Annotated[
    bool, typer.Option("--check", help="Show what would change on existing machines, then exit.")
]
Yes = Annotated[
    bool, typer.Option("--yes", help="Show what changes on existing machines, then change it.")
]
ReportDirectory = Annotated[
    Path | None,
    typer.Option("--report", help="Also write the report to this directory.", show_default=False),
]
FormatOption = Annotated[Format, typer.Option("--format", help="Output format.")]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose",
        "-v",
        envvar="HARNESS_VERBOSE",
        callback=set_verbose,
        help="Show Ansible's tasks and each command that runs on a host.",
    ),
]
DEFAULT_RUNS = Path("runs")
DEFAULT_SSH_CONFIG = "~/.ssh/config"
