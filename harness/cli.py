"""The command line. The only module that prints or exits."""

from __future__ import annotations

import json
import logging
import os
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live as Screen
from rich.markup import escape
from rich.table import Table
from typer.core import TyperGroup

from harness import (
    __version__,
    bench,
    check,
    checkers,
    diff,
    doctor,
    faults,
    importer,
    install,
    lifecycle,
    page,
    past,
    providers,
    rehearsal,
    releases,
    render,
    report,
    rundir,
    scenario,
    twin,
    upgrade,
    workload,
)
from harness import logs as daemon_logs
from harness.errors import HarnessError, ScenarioError, UsageError
from harness.live import Live
from harness.options import OWN_MACHINES
from harness.plan import DAEMONS, Host, Plan, make_plan
from harness.providers import boxes, engine, images
from harness.providers.existing import ExistingProvider
from harness.providers.preview import HostChanges
from harness.report import FAILED, PASSED, Report, exit_code
from harness.resources import SCENARIOS, TEMPLATES
from harness.rundir import RunDir
from harness.ssh import as_user


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
images_app = typer.Typer(no_args_is_help=True, help="Build, list, save and load the base images of the hosts.")
app.add_typer(images_app, name="images")
bench_app = typer.Typer(no_args_is_help=True, help="Measure the harness itself.")
app.add_typer(bench_app, name="bench")
fault_app = typer.Typer(no_args_is_help=True, help="Break a run on purpose, and heal it.")
app.add_typer(fault_app, name="fault")

_LOG = logging.getLogger("harness")
out = Console(soft_wrap=True, highlight=False, emoji=False)
err = Console(stderr=True, soft_wrap=True, highlight=False, emoji=False)


def _set_verbose(verbose: bool) -> None:
    _LOG.setLevel(logging.DEBUG if verbose else logging.INFO)


class Format(StrEnum):
    """How data is printed."""

    text = "text"
    json = "json"


ScenarioPath = Annotated[Path, typer.Argument(help="The scenario file.", show_default=False)]
Runs = Annotated[Path, typer.Option("--runs", envvar="HARNESS_RUNS", help="Where runs keep their directories.")]
RunName = Annotated[
    str | None,
    typer.Option("--run", "-r", help="A run's directory, id or scenario; unset, the newest run.", show_default=False),
]
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
FormatOption = Annotated[Format, typer.Option("--format", help="How to print.")]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose",
        "-v",
        envvar="HARNESS_VERBOSE",
        callback=_set_verbose,
        help="Show Ansible's tasks, and each command on a host.",
    ),
]
DEFAULT_RUNS = Path("runs")
DEFAULT_SSH_CONFIG = "~/.ssh/config"
# Where a host has its slurm.conf: of its own, or from slurmctld.
_SLURM_CONFS = ("/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf")
# Seconds between two looks of `status --watch`.
_BETWEEN_LOOKS = 2
# Seconds for which users submit during an upgrade, if it takes so long.
_LONGEST_UPGRADE = 1800


@app.command()
def init(
    name: Annotated[str, typer.Argument(help="The scenario's name.")] = "my-cluster",
    like: Annotated[
        str | None,
        typer.Option("--like", help="Begin with a scenario that is shipped, such as federation.", show_default=False),
    ] = None,
) -> None:
    """Write a scenario to begin with, and the schema with which an editor completes it."""
    path = Path(name if name.endswith((".yml", ".yaml")) else f"{name}.yml")
    scenario.name_of(path)
    shipped = {one.stem: one for one in sorted(SCENARIOS.glob("*.yml"))}
    if like and like not in shipped:
        raise UsageError(f"no scenario {like} is shipped", hint=f"there are {', '.join(shipped)}")
    schema_path = path.with_name("slurm-harness.schema.json")
    begin = shipped[like] if like else TEMPLATES / "scenario.yml"
    try:
        with path.open("x") as file:
            file.write(f"# yaml-language-server: $schema={schema_path.name}\n{begin.read_text()}")
    except FileExistsError as error:
        raise UsageError(f"{path} is there already", hint="name another scenario, or remove it") from error
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
    schema_path.write_text(json.dumps(scenario.schema(), indent=2) + "\n")
    out.print(f"{path} is written. Look at it, then: harness run {shlex.quote(str(path))}", markup=False)


@app.command()
def schema() -> None:
    """Print the JSON Schema of scenario files, for editors."""
    _print_json(scenario.schema())


@app.command()
def run(
    scenario_path: ScenarioPath,
    provider: ProviderOption = "docker",
    release: Releases = None,
    settings: Settings = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the hosts up for a closer look.")] = False,
    report_directory: Annotated[
        Path | None,
        typer.Option("--report", help="Write the report to this directory too.", show_default=False),
    ] = None,
    inventory: Inventory = None,
    ssh_config: SshConfig = DEFAULT_SSH_CONFIG,
    check: Check = False,
    yes: Yes = False,
    format_: FormatOption = Format.text,
    verbose: Verbose = False,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Render, bring up, deploy, verify, report, take down."""
    source = _provider(provider, runs, inventory, ssh_config, only_look=check, yes=yes)
    result = lifecycle.run(
        scenario_path,
        source,
        runs,
        _progress(),
        choices=release or (),
        settings=settings or (),
        keep=keep,
        report_directory=report_directory,
    )
    _print_report(result, format_)
    if keep and source.runs().get(RunDir(Path(result.run)).id):
        err.print(f"the hosts are up; `harness down` {'removes them' if source.offers.engine else 'gives them back'}")
    raise typer.Exit(result.exit_code())


@app.command("render")
def render_(
    scenario_path: ScenarioPath,
    output: Annotated[Path, typer.Option("--output", "-o", help="Directory to write to.", show_default=False)],
    containers: Annotated[
        bool, typer.Option("--containers", help="For the harness's own containers, not for machines of your own.")
    ] = False,
    release: Releases = None,
    settings: Settings = None,
    with_secrets: Annotated[
        bool, typer.Option("--with-secrets", help="Make keys and passwords, and write them too (mode 0600).")
    ] = False,
) -> None:
    """Write the configuration of every host to OUTPUT/HOST/..., OUTPUT/manifest.json and OUTPUT/install.sh."""
    docker = providers.get("docker")
    read = scenario.load(scenario_path, release or (), docker.release_of_image, settings=settings or ())
    plan = make_plan(scenario_path.stem, read, docker.offers if containers else OWN_MACHINES)
    tree = render.render(plan)
    rundir.write_rendered(output, tree, with_secrets=with_secrets)
    (output / "install.sh").write_text(install.script(plan, tree))
    (output / "install.sh").chmod(0o755)
    out.print(f"{sum(map(len, tree.values()))} files for {len(tree)} hosts in {output}; install.sh puts them there")


@app.command("check")
def check_(
    paths: Annotated[
        list[Path],
        typer.Argument(help="A scenario, a slurm.conf or another file of Slurm's, or a directory.", show_default=False),
    ],
    release: Annotated[
        str | None,
        typer.Option(
            "--release",
            help=f"The release whose daemons are to read it; unset, the scenario's, and {releases.DEFAULT} for files.",
            show_default=False,
        ),
    ] = None,
    older: Annotated[
        str | None,
        typer.Option("--from", help="The release it comes from: tells what an upgrade changes.", show_default=False),
    ] = None,
    settings: Settings = None,
    format_: FormatOption = Format.text,
) -> None:
    """Say what the daemons of a release will do with a configuration: refuse it, ignore lines, work otherwise."""
    _must_be_known(release, older)
    if settings and not all(map(scenario.is_named_like_one, paths)):
        raise UsageError("--set is for scenarios", hint="check files of Slurm's by themselves")
    image_release = providers.get("docker").release_of_image
    before = releases.get(older) if older else None
    findings: list[check.Finding] = []
    for path in paths:
        if scenario.is_named_like_one(path):
            read = scenario.load(path, [release] if release else (), image_release, settings=settings or ())
            findings += check.check_scenario(path, read, before)
        else:
            findings += check.check_path(path, releases.get(release or releases.DEFAULT), before)
    if format_ is Format.json:
        _print_json({"release": release or releases.DEFAULT, "findings": [asdict(finding) for finding in findings]})
    else:
        _print_findings(findings)
    raise typer.Exit(1 if {"fatal", "error"} & {finding.severity for finding in findings} else 0)


@app.command("import")
def import_(
    directory: Annotated[Path, typer.Argument(help="A site's /etc/slurm, or a copy of it.", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="The scenario to write.", show_default=False)],
    release: Annotated[str, typer.Option("--release", help="The release that it runs.")] = releases.DEFAULT,
    twin_hosts: Annotated[
        int | None,
        typer.Option(
            "--twin",
            min=1,
            metavar="N",
            help="Make it a rehearsal copy on N hosts: the same nodes and limits without the site's machines.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write a scenario that renders to the configuration of an existing cluster, but for its passwords."""
    _must_be_known(release)
    if output.exists():
        raise UsageError(f"{output} is there already", hint="name another file, or remove it")
    data, left_out = importer.import_directory(directory, releases.get(release))
    told = [f"left out: {text}" for text in left_out]
    if twin_hosts:
        data, replaced = twin.twin(data, twin_hosts, check.check_path(directory, releases.get(release)))
        told += [f"replaced: {text}" for text in replaced]
    output.write_text(importer.dump(data, told))
    for text in told:
        err.print(escape(text))
    try:
        read = scenario.load(output)
    except ScenarioError:
        err.print(f"{output} is written, but is not a right scenario yet:")
        raise
    out.print(
        f"{output}: {len(read.clusters)} cluster, {sum(len(c.node_names()) for c in read.clusters.values())} nodes"
    )


@app.command("diff")
def diff_(
    before: Annotated[str, typer.Argument(help="A scenario, a directory, a rendered tree or a run.")],
    after: Annotated[str, typer.Argument(help="Another one.")],
    release: Annotated[
        str | None,
        typer.Option(
            "--release", help="The release that is to take the change; unset, its hosts'.", show_default=False
        ),
    ] = None,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 1 if anything differs.")] = False,
    format_: FormatOption = Format.text,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Say what differs between two configurations, and what a running cluster needs to take the change."""
    _must_be_known(release)
    docker = providers.get("docker")
    sides = [
        lifecycle.side(which, lambda name: _open(runs, name), docker.release_of_image) for which in (before, after)
    ]
    try:
        old, new = diff.matched(*sides)
    except ValueError as error:
        raise UsageError(str(error), hint="name a scenario or directory of that one cluster") from error
    files, changes = diff.file_diffs(old, new), diff.changes(old, new, release)
    steps = diff.steps(changes)
    if format_ is Format.json:
        _print_json({"files": list(map(asdict, files)), "changes": list(map(asdict, changes)), "steps": steps})
    else:
        _print_diff(files, changes, steps)
    raise typer.Exit(1 if exit_code and files else 0)


@app.command()
def up(
    scenario_path: ScenarioPath,
    provider: ProviderOption = "docker",
    release: Releases = None,
    settings: Settings = None,
    inventory: Inventory = None,
    ssh_config: SshConfig = DEFAULT_SSH_CONFIG,
    check: Check = False,
    yes: Yes = False,
    verbose: Verbose = False,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Start a scenario's hosts, without Slurm on them yet; prints the run's directory."""
    source = _provider(provider, runs, inventory, ssh_config, only_look=check, yes=yes)
    live = lifecycle.create(scenario_path, source, runs, _progress(), release or (), settings or ())
    try:
        lifecycle.up(live)
    except BaseException:
        lifecycle.down(live)
        raise
    out.print(str(live.run.path))


@app.command()
def deploy(
    which: RunName = None, check: Check = False, yes: Yes = False, verbose: Verbose = False, runs: Runs = DEFAULT_RUNS
) -> None:
    """Put the configuration on a run's hosts, start the daemons, wait until the clusters take jobs."""
    directory = rundir.find(runs, which)
    source = _provider(directory.provider, runs, only_look=check, yes=yes)
    live = lifecycle.open_run(directory, source, _progress())
    source.ask(live.plan, live.tree, live.run)
    lifecycle.deploy(live)


@app.command()
def verify(
    select: Annotated[
        list[str] | None,
        typer.Option("--check", "-k", help="Only checks with this in their name.", show_default=False),
    ] = None,
    which: RunName = None,
    format_: FormatOption = Format.text,
    verbose: Verbose = False,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Judge a run whose clusters are up."""
    live = _open(runs, which)
    with lifecycle.logs_collected(live):
        judged = lifecycle.verify(live, select or ())
    result = lifecycle.write_report(live, *judged)
    _print_report(result, format_)
    raise typer.Exit(result.exit_code())


@app.command()
def rehearse(
    trace: Annotated[
        Path | None,
        typer.Option(help="Replay this trace, in the Standard Workload Format.", exists=True, dir_okay=False),
    ] = None,
    speed: Annotated[float, typer.Option(help="How many times as fast as it was.", min=0.001)] = 60,
    jobs: Annotated[int | None, typer.Option(help="How many jobs; unset, as the scenario says.", min=1)] = None,
    seconds: Annotated[float | None, typer.Option(help="Seconds over which they are submitted.", min=1)] = None,
    seed: Annotated[int | None, typer.Option(help="Another number makes other jobs.")] = None,
    faulty: Annotated[bool, typer.Option("--faults/--no-faults", help="Whether the scenario's faults come.")] = True,
    which: RunName = None,
    format_: FormatOption = Format.text,
    verbose: Verbose = False,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Have users submit jobs of many kinds to a run while faults come and go, and judge what was seen."""
    live = _open(runs, which)
    asked = {"jobs": jobs, "seconds": seconds, "seed": seed}
    wanted = (live.plan.scenario.rehearsal or scenario.Rehearsal()).model_copy(
        update={name: value for name, value in asked.items() if value is not None}
    )
    works = (
        workload.replay(trace.read_text(errors="replace"), live.plan.scenario, speed)
        if trace
        else workload.generate(live.plan.scenario, wanted.jobs, wanted.seconds, wanted.seed)
    )
    rehearsal.rehearse(live, works, wanted.faults if faulty else ())
    _print_judgement(live.run, format_)


@app.command("upgrade", epilog="A scenario is brought up first; without one, a run that was kept is upgraded.")
def upgrade_(
    to: Annotated[
        list[str],
        typer.Option(
            "--to",
            help="The release that all parts go to; NAME=RELEASE: a cluster, or slurmdbd. FROM:TO begins at FROM.",
            show_default=False,
        ),
    ],
    scenario_path: Annotated[Path | None, typer.Argument(help="The scenario file.", show_default=False)] = None,
    which: RunName = None,
    provider: ProviderOption = "docker",
    keep: Annotated[bool, typer.Option("--keep", help="Leave the hosts up for a closer look.")] = False,
    database: Annotated[
        Path | None,
        typer.Option(help="A dump of your own accounting database (.gz too) that is upgraded.", exists=True),
    ] = None,
    states: Annotated[
        list[str] | None,
        typer.Option("--state", help="[CLUSTER=]DIRECTORY: a copy of your own StateSaveLocation that is upgraded."),
    ] = None,
    batches: Annotated[int, typer.Option(help="In how many batches each cluster's nodes come.", min=1)] = 2,
    rate: Annotated[float, typer.Option(help="Jobs that are submitted in a second.", min=0.1, max=20)] = 1,
    seed: Annotated[int, typer.Option(help="Another number makes other jobs.")] = 1,
    stay: Annotated[bool, typer.Option("--stay", help="No job leaves its cluster (sbatch --clusters).")] = False,
    format_: FormatOption = Format.text,
    verbose: Verbose = False,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Rehearse a rolling upgrade while users submit jobs, and prove that every job is accounted for once."""
    begin = [_upgrade_choice(choice)[0] for choice in to]
    target = [_upgrade_choice(choice)[1] for choice in to]

    def works(live: Live) -> list[workload.Work]:
        return workload.generate(live.plan.scenario, int(_LONGEST_UPGRADE * rate), _LONGEST_UPGRADE, seed, stay=stay)

    if scenario_path:
        chosen = [choice for choice in begin if choice]
        live = lifecycle.create(scenario_path, _provider(provider, runs), runs, _progress(), chosen)
        own = past.Past(database, dict(_state(live.plan, one) for one in states or ()))
        past.examine(own, live.plan)
        upgrade.plan_upgrade(live, target)
        with lifecycle.provisioned(live, keep=keep), lifecycle.logs_collected(live):
            if database or states:
                live = lifecycle.give_past(live, own)
            lifecycle.deploy(live)
            _upgrade(live, upgrade.plan_upgrade(live, target), batches, works(live))
    else:
        if database or states:
            raise UsageError("--database and --state want a scenario: a run that is up has a past of its own")
        live = _open(runs, which)
        _upgrade(live, upgrade.plan_upgrade(live, target), batches, works(live))
    _print_judgement(live.run, format_)


def _upgrade(live: Live, new: Plan, batches: int, works: Sequence[workload.Work]) -> None:
    """Upgrade a run while users submit, and tell how long each step took."""
    for fault in upgrade.known_faults(live.plan, new):
        err.print(f"known fault of Slurm on the way: {escape(fault)}")
    upgrade.upgrade(live, new, works, batches)
    for event in live.run.events():
        if event["kind"] == "upgrade":
            err.print(f"  {event['step']:30} {event['seconds']:6.1f} s")


def _state(plan: Plan, text: str) -> tuple[str, Path]:
    """Split [CLUSTER=]DIRECTORY; unset, the cluster is the only one."""
    cluster, _, directory = text.rpartition("=")
    if not cluster and len(plan.scenario.clusters) > 1:
        raise UsageError(
            f"--state {text}: of which cluster?", hint=f"--state {next(iter(plan.scenario.clusters))}={text}"
        )
    return cluster or next(iter(plan.scenario.clusters)), Path(directory)


def _upgrade_choice(choice: str) -> tuple[str, str]:
    """Split NAME=FROM:TO into NAME=FROM ("" if there is no FROM) and NAME=TO."""
    name, equals, both = choice.rpartition("=")
    older, colon, newer = both.rpartition(":")
    return (f"{name}{equals}{older}" if colon else "", f"{name}{equals}{newer}")


@app.command()
def judge(which: RunName = None, format_: FormatOption = Format.text, runs: Runs = DEFAULT_RUNS) -> None:
    """Judge the last rehearsal of a run again, from what was seen of it; its hosts may be gone."""
    _print_judgement(rundir.find(runs, which), format_)


@app.command("report")
def report_(
    which: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN]...",
            help="A run's directory, id or scenario, or a directory with a report.json; unset, the newest run.",
            show_default=False,
        ),
    ] = None,
    format_: FormatOption = Format.text,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Tell of a run again, and write its report.html anew; of several, tell where they differ."""
    reports = {directory: report.read(directory) for directory in (_with_report(runs, name) for name in which or [""])}
    if len(reports) > 1:
        return _print_comparison(report.compare(reports), format_)
    ((directory, told),) = reports.items()
    return _print_report(told, format_, page.write(directory))


@app.command()
def down(
    which: Annotated[
        str | None,
        typer.Argument(help="A run's directory, id or scenario; unset, the newest.", show_default=False),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All runs on the engine, with or without directory.")
    ] = False,
    provider: ProviderOption = "docker",
    inventory: Inventory = None,
    ssh_config: SshConfig = DEFAULT_SSH_CONFIG,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Remove a run's hosts and networks, or give existing machines back. Its directory, with all evidence, stays.

    Where the directory is lost, the run's id is enough; for existing machines with --inventory.
    """
    source = _provider(provider, runs, inventory, ssh_config)
    if everything:
        chosen = list(source.runs())
    elif which and inventory:
        chosen = [which]
    else:
        try:
            found = rundir.find(runs, which)
        except UsageError:
            if which not in source.runs():
                raise
            chosen = [str(which)]
        else:
            source, chosen = providers.get(found.provider, runs), [found.id]
    for run_id in chosen:
        for note in lifecycle.remove(source, run_id):
            err.print(f"left: {escape(note)}")
        err.print(f"{'removed' if source.offers.engine else 'gave back the hosts of'} {run_id}")
    if everything and not chosen:
        err.print("nothing is there")


@app.command()
def status(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Look again and again, until Ctrl-C.")] = False,
    provider: ProviderOption = "docker",
    format_: FormatOption = Format.text,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """List the runs with their newest verdicts, and what the clusters that are up do."""
    source = providers.get(provider, runs)
    if watch and format_ is Format.text:
        with suppress(KeyboardInterrupt), Screen(console=out, screen=out.is_terminal) as screen:
            while True:
                screen.update(_status_table(_status(source, runs)), refresh=True)
                time.sleep(_BETWEEN_LOOKS)
    rows = _status(source, runs)
    if format_ is Format.json:
        return _print_json(rows)
    return out.print(_status_table(rows))


@app.command()
def logs(
    host: Annotated[str | None, typer.Argument(help="One host; unset, all.", show_default=False)] = None,
    daemon: Annotated[str | None, typer.Argument(help=f"One of {', '.join(DAEMONS)}.", show_default=False)] = None,
    lines: Annotated[int, typer.Option("--lines", "-n", help="How many of the last lines.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as more is logged.")] = False,
    which: RunName = None,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Show what daemons logged last, on hosts that are up; earlier runs keep theirs in RUN/logs/."""
    live = _open(runs, which)
    chosen = [_host(live, host)] if host else list(live.plan.hosts)
    wanted = [(on, name) for on in chosen for name in on.daemons if daemon in {None, name}]
    if not wanted:
        raise UsageError(f"{host or 'no host'} runs no {daemon}", hint=f"daemons are {', '.join(DAEMONS)}")
    commands = {
        f"{on.name} {name}": (on.name, daemon_logs.command(live.plan, on, name, lines, follow=follow))
        for on, name in wanted
    }
    if follow:
        width = max(map(len, commands)) if len(commands) > 1 else 0

        def say(of: str, line: str) -> None:
            out.print(f"[bold]{of:{width}}[/bold]  {escape(line)}" if width else escape(line))

        with suppress(KeyboardInterrupt):  # which is how it ends
            daemon_logs.follow(live.ssh, commands, say)
        return
    for of, (on_host, command) in commands.items():
        out.print(f"[bold]==> {of}[/bold]")
        out.print(live.ssh.run(on_host, command, check=False).stdout, markup=False)


@app.command("exec", context_settings={"ignore_unknown_options": True})
def exec_(
    host: Annotated[str, typer.Argument(help="The host.", show_default=False)],
    command: Annotated[list[str], typer.Argument(help="The command, after --.", show_default=False)],
    which: RunName = None,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Run a command on a host as root: `harness exec HOST -- sinfo -N`."""
    live = _open(runs, which)
    remote = live.ssh.command(_host(live, host).name, [shlex.join(command)])
    raise typer.Exit(subprocess.run(remote, check=False).returncode)


@app.command()
def ssh(
    host: Annotated[str, typer.Argument(help="The host.", show_default=False)],
    which: RunName = None,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Open a shell on a host."""
    live = _open(runs, which)
    raise typer.Exit(subprocess.run(live.ssh.command(_host(live, host).name, tty=True), check=False).returncode)


@app.command()
def shell(
    host: Annotated[
        str | None, typer.Argument(help="The host; unset, the first cluster's controller.", show_default=False)
    ] = None,
    user: Annotated[
        str | None, typer.Option("--user", "-u", help="A user of the scenario; unset, the first.", show_default=False)
    ] = None,
    which: RunName = None,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Open a shell as a user of the cluster, who submits jobs: `echo squeue | harness shell` runs one command."""
    live = _open(runs, which)
    users = list(live.plan.scenario.users)
    if not users or user not in {None, *users}:
        raise UsageError(
            f"no user {user or ''} in {live.run.id}".replace("  ", " "), hint=f"users are {', '.join(users) or 'none'}"
        )
    on = _host(live, host or next(iter(live.plan.scenario.clusters.values())).controller)
    script = f"for SLURM_CONF in {' '.join(_SLURM_CONFS)}; do [ ! -e $SLURM_CONF ] || break; done; "
    command = live.ssh.command(
        on.name, [as_user(user or users[0], f"{script}export SLURM_CONF; exec bash -l")], tty=sys.stdin.isatty()
    )
    raise typer.Exit(subprocess.run(command, check=False).returncode)


@app.command("doctor")
def doctor_(
    provider: ProviderOption = "docker",
    mend: Annotated[bool, typer.Option("--mend", help="As root on Debian: install and start what is missing.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only what is missing.")] = False,
    format_: FormatOption = Format.text,
) -> None:
    """Is this machine fit? Each finding comes with the command that mends it."""
    if mend:
        doctor.mend(_progress(), provider)
    findings = doctor.examine(provider)
    if format_ is Format.json:
        _print_json([{name: getattr(finding, name) for name in finding.__slots__} for finding in findings])
    else:
        for finding in (finding for finding in findings if not (quiet and (finding.ok or not finding.fatal))):
            mark = (
                "[green]ok[/green]     "
                if finding.ok
                else "[red]missing[/red]"
                if finding.fatal
                else "[yellow]weak[/yellow]   "
            )
            out.print(f"{mark} {finding.subject}: {escape(finding.said)}")
            if not finding.ok and finding.mend:
                out.print(f"        mend: {escape(finding.mend)}")
    raise typer.Exit(3 if any(finding.fatal and not finding.ok for finding in findings) else 0)


@images_app.command("build")
def images_build(
    names: Annotated[list[str] | None, typer.Argument(help="Releases; unset, all.", show_default=False)] = None,
) -> None:
    """Build the image of each release, if the engine does not have it yet."""
    for image in _built(names):
        out.print(image)


@images_app.command("save")
def images_save(
    file: Annotated[Path, typer.Argument(help="The tar file to write.", show_default=False)],
    names: Annotated[list[str] | None, typer.Argument(help="Releases; unset, all.", show_default=False)] = None,
) -> None:
    """Write images to a file, for an engine without a registry; those that are not there are built first.

    A release's image with Apptainer goes along if the engine has it.
    """
    chosen, client = {*_built(names)}, engine.connect()
    chosen |= {image for release, image, _ in images.built(client) if not names or release in names} & images.wanted()
    images.save(client, sorted(chosen), file)
    out.print(f"{file}: {', '.join(sorted(chosen))}", markup=False)


@images_app.command("load")
def images_load(
    file: Annotated[Path, typer.Argument(help="What `harness images save` wrote.", show_default=False)],
) -> None:
    """Give the engine the images of a file; they must be those that this version of the harness uses."""
    for image in images.load(engine.connect(), file):
        out.print(image)


@images_app.command("list")
def images_list(format_: FormatOption = Format.text) -> None:
    """List the images of the engine, and the boxes of Vagrant; one that is not current is of no use any more."""
    current = images.wanted() | boxes.wanted()
    rows: list[dict[str, Any]] = [
        {"release": release, "kind": kind, "image": name, "bytes": size, "current": name in current}
        for kind, there in (("image", images.built(engine.connect())), ("box", boxes.known()))
        for release, name, size in there
    ]
    if format_ is Format.json:
        return _print_json(rows)
    for row in rows:
        size = f"{row['bytes'] / 1e6:.0f} MB{'' if row['current'] else '  (old)'}"
        out.print(f"{row['kind']:5}  {row['image']}  {size}")
    return None


@fault_app.command("inject", epilog="`harness fault list` tells the kinds.")
def fault_inject(
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
    live, fault = _open(runs, which), faults.Fault(kind, on, more)
    if seconds is None:
        return faults.inject(live, fault)
    with faults.injected(live, fault):
        time.sleep(seconds)
    return None


@fault_app.command("heal")
def fault_heal(which: RunName = None, runs: Runs = DEFAULT_RUNS) -> None:
    """Heal all that is broken on purpose, the last first."""
    live = _open(runs, which)
    if problems := faults.heal_all(live):
        raise HarnessError("\n".join(problems))


@fault_app.command("list")
def fault_list(which: RunName = None, runs: Runs = DEFAULT_RUNS, format_: FormatOption = Format.text) -> None:
    """List the kinds of faults, and those that a run has now."""
    try:
        active = faults.active(_open(runs, which))
    except UsageError:
        active = []  # there is no run yet
    kinds = {name: {"wants": f"HOST {kind.wants}".rstrip(), "says": kind.says} for name, kind in faults.KINDS.items()}
    if format_ is Format.json:
        return _print_json({"kinds": kinds, "active": [asdict(fault) for fault in active]})
    table = Table(box=None, header_style="bold")
    for heading in ("kind", "wants", "what happens"):
        table.add_column(heading, overflow="fold")
    for name, about in kinds.items():
        table.add_row(name, about["wants"], about["says"])
    out.print(table)
    for fault in active:
        out.print(f"[yellow]active: {escape(str(fault))}[/yellow]")
    return None


@bench_app.command("first-run")
def bench_first_run(
    scenario_path: Annotated[
        Path, typer.Argument(help="The scenario file.", show_default="scenarios/federation.yml")
    ] = SCENARIOS / "federation.yml",
    repeat: Annotated[int, typer.Option(min=1, help="How often; the median counts.")] = 3,
    format_: FormatOption = Format.text,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Compare up and deploy with the floor: the same files and daemons on the same hosts by a plain script."""
    result = bench.first_run(scenario_path, providers.get("docker"), runs, _progress(), repeat=repeat)
    if format_ is Format.json:
        return _print_json(result)
    for number, (seconds, ratio) in enumerate(zip(result["rounds"], result["ratios"], strict=True), 1):
        for who, stages in seconds.items():
            told = ", ".join(f"{name} {value:.1f}" for name, value in stages.items())
            out.print(f"round {number}  {who:8} {sum(stages.values()):5.1f} s  ({told})")
        out.print(f"round {number}  ratio    {ratio:5.2f}")
    out.print(f"median ratio {result['ratio']:.2f}; {result['ansible_tasks']} Ansible tasks on {result['hosts']} hosts")
    return None


@bench_app.command("elastic")
def bench_elastic(
    scenario_path: Annotated[
        Path, typer.Argument(help="The scenario file.", show_default="scenarios/elastic-l3.yml")
    ] = SCENARIOS / "elastic-l3.yml",
    release: Releases = None,
    repeat: Annotated[int, typer.Option(min=1, help="How often; the median counts.")] = 5,
    nodes: Annotated[int, typer.Option(min=1, help="How many nodes a job brings at once.")] = 1,
    format_: FormatOption = Format.text,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Time jobs that bring their nodes, beside the same hosts started by hand until slurmctld knows their slurmds."""
    docker = providers.get("docker")
    result = bench.elastic_nodes(
        scenario_path, docker, runs, _progress(), choices=release or (), repeat=repeat, count=nodes
    )
    if format_ is Format.json:
        return _print_json(result)
    rows = {str(number): one for number, one in enumerate(result["rounds"], 1)}
    rows |= {"median": result["median"], "worst": result["worst"]}
    _print_seconds(rows)
    out.print(f"{result['scenario']}: {result['nodes']} nodes, {result['provision']}, release {result['release']}")
    return None


@bench_app.command("nodes")
def bench_nodes(
    scenario_path: Annotated[
        Path, typer.Argument(help="The scenario file.", show_default="scenarios/scale.yml")
    ] = SCENARIOS / "scale.yml",
    release: Releases = None,
    nodes: Annotated[
        list[int] | None,
        typer.Option(min=1, help="A number of nodes. Can be repeated.", show_default="50, 100, 200, 500, 1000"),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write nodes.json and nodes.svg.")] = Path(),
    format_: FormatOption = Format.text,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Measure memory and time of nodes that share hosts, with growing numbers of them."""
    counts = {"counts": nodes} if nodes else {}
    docker = providers.get("docker")
    result = bench.nodes(scenario_path, docker, runs, _progress(), choices=release or (), **counts)
    output.mkdir(parents=True, exist_ok=True)
    (output / "nodes.json").write_text(json.dumps(result, indent=2) + "\n")
    (output / "nodes.svg").write_text(bench.plot(result))
    if format_ is Format.json:
        return _print_json(result)
    headings = ("nodes", "hosts", "s until registered", "MiB a slurmd", "MiB slurmctld", "MiB of the machine a node")
    _print_numbers(headings, (map(str, row.values()) for row in result["rows"]))
    out.print(f"{result['scenario']}: release {result['release']}; {output / 'nodes.json'}, {output / 'nodes.svg'}")
    return None


@bench_app.command("jobs")
def bench_jobs(
    scenario_path: Annotated[
        Path, typer.Argument(help="The scenario file.", show_default="scenarios/scale.yml")
    ] = SCENARIOS / "scale.yml",
    release: Releases = None,
    settings: Settings = None,
    jobs: Annotated[int, typer.Option(min=1, help="How many.")] = 1000,
    repeat: Annotated[int, typer.Option(min=1, help="How often; the median counts.")] = 3,
    format_: FormatOption = Format.text,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Compare short jobs and the wait for their end with the floor: sbatch and squeue in a shell; and with an array."""
    result = bench.jobs(
        scenario_path,
        providers.get("docker"),
        runs,
        _progress(),
        choices=release or (),
        settings=settings or (),
        count=jobs,
        repeat=repeat,
    )
    if format_ is Format.json:
        return _print_json(result)
    _print_seconds({str(number): one for number, one in enumerate(result["rounds"], 1)})
    told = ", ".join(f"{way} {ratio:.2f}" for way, ratio in result["ratio"].items())
    out.print(
        f"{result['scenario']}: {result['jobs']} jobs, release {result['release']}; median ratios to the floor: {told}"
    )
    return None


def _print_seconds(rows: Mapping[str, Mapping[str, float]]) -> None:
    """Print how long each step of each round took; all rounds have the same steps."""
    headings = ("seconds", *next(iter(rows.values())))
    _print_numbers(headings, ([name, *(f"{value:.1f}" for value in one.values())] for name, one in rows.items()))


def _print_numbers(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    table = Table(box=None, header_style="bold")
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*row)
    out.print(table)


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


def _progress() -> Callable[[str], None]:
    """Return what prints a line of progress, with the seconds since the beginning."""
    started = time.monotonic()

    def say(text: str) -> None:
        err.print(f"[dim]{time.monotonic() - started:6.1f} s[/dim]  {escape(text)}")

    _LOG.handlers = [_Saying(say)]
    if not _LOG.level:
        _LOG.setLevel(logging.INFO)
    return say


class _Saying(logging.Handler):
    """Has long waits, and with --verbose each command, told among the progress."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__()
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        """Say it."""
        self._say(record.getMessage())


def _built(names: Sequence[str] | None) -> list[str]:
    """Return the images of some releases, or of all; build those that the engine does not have."""
    _must_be_known(*names or ())
    client = engine.connect()
    return [images.ensure(client, releases.get(name), _progress()) for name in names or releases.PACKAGED]


def _must_be_known(*names: str | None) -> None:
    """Refuse releases that nothing is known of; None is no release."""
    for name in filter(None, names):
        if name not in releases.KNOWN:
            raise UsageError(f"no release {name}", hint=f"known are {', '.join(releases.KNOWN)}")


def _with_report(runs: Path, which: str) -> Path:
    """Return a run's directory, or one that holds no more than a report; "" is the newest run's."""
    if which and (Path(which) / "report.json").exists():
        return Path(which)
    try:
        return rundir.find(runs, which or None).path
    except UsageError:
        if Path(which).is_dir():  # the user means it: let it be told what it lacks
            return Path(which)
        raise


def _open(runs: Path, which: str | None) -> Live:
    directory = rundir.find(runs, which)
    return lifecycle.open_run(directory, providers.get(directory.provider, runs), _progress())


def _provider(
    name: str,
    runs: Path,
    inventory: Path | None = None,
    ssh_config: str = DEFAULT_SSH_CONFIG,
    *,
    only_look: bool = False,
    yes: bool = False,
) -> providers.Provider:
    """Return a provider; existing machines it changes with `yes` only, when the user has seen what changes."""
    if name != ExistingProvider.name:
        if inventory or only_look or yes:
            raise UsageError("--inventory, --check and --yes are for machines that are there: --provider existing")
        return providers.get(name, runs)

    def agree(changes: Sequence[HostChanges]) -> None:
        for one in changes:
            _print_changes(one)
        if only_look:
            raise typer.Exit
        if not yes:
            raise UsageError("nothing was changed", hint="--yes changes it, --check shows it only")

    return ExistingProvider(runs, inventory, ssh_config, agree)


def _print_changes(changes: HostChanges) -> None:
    out.print(f"[bold]{changes.host}[/bold]")
    for path in changes.new:
        out.print(f"  new      {escape(path)}")
    for path, difference in changes.differing:
        out.print(f"  differs  {escape(path)}")
        for line in difference.splitlines():
            color = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "default")
            out.print(f"           [{color}]{escape(line)}[/{color}]")
    for daemon in changes.daemons:
        out.print(f"  daemon   {daemon}")
    for user in changes.users:
        out.print(f"  user     {user} is made")
    for note in changes.notes:
        out.print(f"  [yellow]note     {escape(note)}[/yellow]")
    if changes == HostChanges(changes.host, notes=changes.notes):
        out.print("  nothing changes")


def _host(live: Live, name: str) -> Host:
    for host in live.plan.hosts:
        if host.name == name:
            return host
    raise UsageError(
        f"no host {name} in {live.run.id}",
        hint=f"hosts are {', '.join(host.name for host in live.plan.hosts)}",
    )


def _print_diff(files: list[diff.FileDiff], changes: list[diff.Change], steps: list[str]) -> None:
    colors = {"+": "green", "-": "red", "@": "cyan"}
    for file in files:
        if file.hosts:
            out.print(f"[bold]# on {file.hosts}[/bold]")
        for line in file.text.splitlines():
            color = colors.get(line[0], "default")
            out.print(f"[{color}]{escape(line)}[/{color}]")
    if not files:
        out.print("nothing differs")
        return
    out.print()
    for change in changes:
        what = " ".join(filter(None, [change.file, change.option]))
        values = f": {change.before or '-'} -> {change.after or '-'}" if change.before or change.after else ""
        where = f" on {change.hosts}" if change.hosts else ""
        needs = f"{'drain, ' if change.drain else ''}{diff.NEEDS.get(change.needs, change.needs) or 'look at it'}"
        why = f" ({change.why})" if change.why else ""
        out.print(f"{escape(what + values + where)}\n    [bold]{needs}[/bold]{escape(why)}")
    out.print("\n[bold]To take it into a running cluster:[/bold]")
    for number, step in enumerate(steps, 1):
        out.print(f"{number}. {escape(step)}")


def _print_report(report: Report, format_: Format, path: Path | None = None) -> None:
    """Print a report, and where it can be read in a browser; that is `path`, or in the run's directory."""
    if format_ is Format.json:
        _print_json(asdict(report))
        return
    color = {PASSED: "green", FAILED: "red"}.get(report.verdict, "yellow")
    for one in report.checks:
        if one.outcome != "passed":
            out.print(f"\n[bold]{escape(one.id)}[/bold]: {one.outcome}\n{escape(one.message)}")
    if report.problem:
        out.print(f"\n[bold]could not judge:[/bold] {escape(report.problem)}")
    for fault in report.known_faults:
        out.print(f"\n[bold]known fault of Slurm:[/bold] {escape(fault)}")
    counts = Counter(one.outcome for one in report.checks)
    told = ", ".join(f"{count} {outcome}" for outcome, count in counts.items()) or "none"
    seconds = sum(stage["seconds"] for stage in report.stages)
    out.print(f"\n[bold {color}]{report.verdict.upper()}[/bold {color}]  {report.scenario}: {report.description}")
    out.print(f"  checks    {told}")
    out.print(f"  releases  {', '.join(f'{name} {release}' for name, release in report.releases.items())}")
    if report.kubernetes:
        out.print(f"  ledger    {escape(report.kubernetes)}")
    stages = ", ".join(f"{stage['name']} {stage['seconds']:.1f}" for stage in report.stages)
    out.print(f"  seconds   {stages}; in all {seconds:.0f}")
    out.print(f"  jobs      {len(report.jobs)} records")
    if report.verdict != PASSED:
        out.print(f"  look      {page.repeat(report)} --keep", markup=False)
    out.print(f"  report    {_relative(path or Path(report.run) / 'report.html')}")


def _print_comparison(differing: dict[str, Any], format_: Format) -> None:
    if format_ is Format.json:
        return _print_json(differing)
    colors = {PASSED: "green", FAILED: "red", None: "dim"}

    def told(value: Any) -> str:
        text = f"{value:.1f}" if isinstance(value, float) else "-" if value is None else str(value)
        return f"[{colors[value]}]{text}[/{colors[value]}]" if value in colors else escape(text)

    table = Table(box=None, header_style="bold")
    table.add_column("", overflow="fold")
    for number, run in enumerate(differing["runs"], 1):
        out.print(f"{number}  {escape(run)}")
        table.add_column(str(number), justify="right", overflow="fold")
    table.add_row("scenario", *map(told, differing["scenarios"]))
    table.add_row("verdict", *map(told, differing["verdicts"]))
    for kind in ("releases", "seconds"):
        for name, values in differing[kind].items():
            table.add_row(escape(f"{kind} {name}"), *map(told, values))
    out.print(table)
    out.print(f"{differing['checks_alike']} checks have the same outcome; {len(differing['checks'])} do not")
    for name, values in differing["checks"].items():
        out.print(f"  {', '.join(map(told, values))}  {escape(name)}")
    return None


def _print_judgement(run: RunDir, format_: Format) -> None:
    """Print what the checkers say of a run's last rehearsal, and exit as its verdict says."""
    history = checkers.read(run.events(), run.plan())
    findings = checkers.judge(history)
    verdict = checkers.verdict(findings)
    answers = Counter(one.answer for one in history.submissions)
    if format_ is Format.json:
        _print_json({"verdict": verdict, "submissions": answers, "findings": [asdict(one) for one in findings]})
    else:
        colors = {PASSED: "green", FAILED: "red", checkers.SKIPPED: "dim"}
        for one in findings:
            color = colors.get(one.outcome, "yellow")
            out.print(f"[{color}]{one.outcome:8}[/{color}] {one.name.replace('_', ' ')}")
            for problem in one.problems:
                out.print(f"         {escape(problem)}")
            for excused in one.excused[:3]:
                out.print(f"         [dim]excused: {escape(excused)}[/dim]")
            if len(one.excused) > 3:
                out.print(f"         [dim]excused: {len(one.excused) - 3} more; --format json tells them[/dim]")
        told = ", ".join(f"{count} {answer}" for answer, count in answers.items())
        out.print(f"{verdict.upper()}  submissions: {told}; executions seen: {len(history.witnesses)}")
    raise typer.Exit(exit_code(verdict))


def _print_findings(findings: list[check.Finding]) -> None:
    colors = {"fatal": "bold red", "error": "red", "warning": "yellow", "info": "dim"}
    for finding in findings:
        color = colors[finding.severity]
        place = f"{finding.file}:{finding.line}:{finding.column}"
        out.print(
            f"{escape(place)}: [{color}]{finding.severity}[/{color}]: "
            f"[bold]{escape(finding.option)}[/bold]: {escape(finding.message)}"
        )
        if finding.hint:
            out.print(f"    hint: {escape(finding.hint)}")
    counts = Counter(finding.severity for finding in findings)
    told = ", ".join(f"{counts[severity]} {severity}" for severity in colors if counts[severity])
    stops = sorted({finding.daemon for finding in findings if finding.severity == "fatal"})
    refusal = f"; does not start: {', '.join(stops)}" if stops else ""
    err.print(f"{told or 'nothing to say'}{refusal}")


def _print_json(data: Any) -> None:
    out.print(json.dumps(data, indent=2), markup=False)


def _status(source: providers.Provider, runs: Path) -> list[dict[str, Any]]:
    there = source.runs()
    known = {run.id: run for run in rundir.all_runs(runs)}
    return [
        {
            "run": run_id,
            "hosts_up": there.get(run_id, []),
            "verdict": _verdict(known.get(run_id)),
            "directory": str(known[run_id].path) if run_id in known else None,
            **_asked(known.get(run_id) if run_id in there else None),
        }
        for run_id in sorted({*there, *known})
    ]


def _status_table(rows: list[dict[str, Any]]) -> Group:
    table = Table(box=None, header_style="bold")
    for heading in ("run", "hosts up", "verdict"):
        table.add_column(heading, overflow="fold")
    told: list[str] = []
    for row in rows:
        table.add_row(row["run"], ", ".join(row["hosts_up"]) or "-", row["verdict"] or "-")
        for cluster, does in row["clusters"].items():
            kinds = (
                f"{kind} {', '.join(f'{count} {state}' for state, count in does[kind].items()) or 'none'}"
                for kind in ("nodes", "jobs")
                if kind in does
            )
            told.append(escape(f"{row['run']} {cluster}: {does.get('problem') or '; '.join(kinds)}"))
        told += [f"[yellow]{escape(text)}[/yellow]" for text in row["leaked"]]
    return Group(table, *told)


def _asked(run: RunDir | None) -> dict[str, Any]:
    """Return what the clusters of a run do, and its hosts that should not run any more, if it can tell."""
    found: dict[str, Any] = {"clusters": {}, "leaked": []}
    if run:
        with suppress(HarnessError):
            live = _open(run.path.parents[1], str(run.path))
            found["clusters"] = lifecycle.doing(live)
            found["leaked"] = lifecycle.leaked(live)
    return found


def _verdict(run: RunDir | None) -> str | None:
    path = run.path / "report.json" if run else None
    return str(json.loads(path.read_text())["verdict"]) if path and path.exists() else None


def _relative(path: Path) -> str:
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
