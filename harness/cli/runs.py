"""Commands for runs, and for the machine that they run on."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.live import Live as Screen
from rich.markup import escape

from harness import extras
from harness.cli.arguments import (
    DEFAULT_RUNS,
    DEFAULT_SSH_CONFIG,
    AnyRun,
    Check,
    FormatOption,
    Inventory,
    ProviderOption,
    Releases,
    ReportDirectory,
    RunName,
    Runs,
    ScenarioPath,
    Settings,
    SshConfig,
    Verbose,
    Yes,
)
from harness.cli.opening import (
    find_host,
    find_provider,
    find_run,
    must_be_up,
    must_be_writable,
    open_run,
    with_report,
)
from harness.cli.printing import (
    Format,
    err,
    out,
    print_comparison,
    print_json,
    print_profile,
    print_rehearsal,
    print_report,
    print_requirement,
    progress,
    status_table,
)
from harness.errors import HarnessError, UsageError

if TYPE_CHECKING:
    from harness import providers
    from harness.run_list import Row
    from harness.rundir import RunDir

app = typer.Typer()
# Seconds between two refreshes of `status --watch`.
_REFRESH = 2


@app.command("doctor")
def doctor_(
    provider: ProviderOption = "docker",
    fix: Annotated[
        bool, typer.Option("--fix", help="As root on Debian: install and start what is missing.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print only what is missing.")
    ] = False,
    format_: FormatOption = Format.text,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Check whether this machine can run the harness, and print the fix for each problem."""
    from harness import providers

    extras.need("run", "harness doctor")
    from harness import doctor  # here, because its packages may be missing

    if fix:
        doctor.fix(progress(), provider)
    findings = doctor.examine(provider)
    with suppress(HarnessError):  # its cause is among the findings
        findings += doctor.leftovers(providers.get(provider, runs), runs)
    if format_ is Format.json:
        print_json(
            [{name: getattr(finding, name) for name in finding.__slots__} for finding in findings]
        )
    else:
        for finding in findings:
            is_missing = finding.fatal and not finding.ok
            if is_missing or not quiet:
                print_requirement(finding)
    raise typer.Exit(3 if any(finding.fatal and not finding.ok for finding in findings) else 0)


@app.command()
def run(
    scenario_path: ScenarioPath,
    provider: ProviderOption = "docker",
    release: Releases = None,
    settings: Settings = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the hosts up.")] = False,
    report_directory: ReportDirectory = None,
    inventory: Inventory = None,
    ssh_config: SshConfig = DEFAULT_SSH_CONFIG,
    check: Check = False,
    yes: Yes = False,
    format_: FormatOption = Format.text,
    verbose: Verbose = False,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Start a scenario, verify it, write a report, and remove the hosts."""
    from harness import lifecycle
    from harness.rundir import RunDir

    must_be_writable(report_directory)
    source = find_provider(provider, runs, inventory, ssh_config, only_look=check, yes=yes)
    result = lifecycle.run(
        scenario_path,
        source,
        runs,
        progress(),
        choices=release or (),
        settings=settings or (),
        keep=keep,
        report_directory=report_directory,
    )
    print_report(result, format_)
    if keep and source.runs().get(RunDir(Path(result.run)).id):
        effect = "removes them" if source.capabilities.engine else "restores them"
        err.print(f"the hosts are up; `harness down` {effect}")
    raise typer.Exit(result.exit_code())


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
    """Start a scenario's hosts without deploying Slurm; print the run's directory."""
    from harness import lifecycle

    source = find_provider(provider, runs, inventory, ssh_config, only_look=check, yes=yes)
    run = lifecycle.create(scenario_path, source, runs, progress(), release or (), settings or ())
    with run.directory.worked_on():
        try:
            lifecycle.up(run)
        except BaseException as error:
            lifecycle.down_after(run, error)
            raise
    out.print(str(run.directory.path))


@app.command()
def deploy(
    which: RunName = None,
    check: Check = False,
    yes: Yes = False,
    verbose: Verbose = False,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Configure a run's hosts, start the daemons, and wait until the clusters accept jobs."""
    from harness import lifecycle

    directory = find_run(runs, which)
    source = find_provider(directory.provider, runs, only_look=check, yes=yes)
    must_be_up(directory, source)
    run = lifecycle.open_run(directory, source, progress())
    lifecycle.must_start(run.plan, run.tree)
    source.confirm(run.plan, run.tree, run.directory)
    lifecycle.deploy(run)


@app.command()
def verify(
    select: Annotated[
        list[str] | None,
        typer.Option(
            "--select",
            "-k",
            help="Run only checks whose names contain this. Can be repeated.",
            show_default=False,
        ),
    ] = None,
    which: RunName = None,
    format_: FormatOption = Format.text,
    verbose: Verbose = False,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Verify a run whose clusters are up, and write a report."""
    from harness import lifecycle

    run = open_run(runs, which)
    with lifecycle.logs_collected(run):
        evaluation = lifecycle.verify(run, select or ())
    result = lifecycle.write_report(run, evaluation)
    print_report(result, format_)
    raise typer.Exit(result.exit_code())


@app.command()
def rehearse(
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Replay this trace (Standard Workload Format).", exists=True, dir_okay=False
        ),
    ] = None,
    speed: Annotated[
        float, typer.Option(help="Speed of the replay, as a multiple of real time.", min=0.001)
    ] = 60,
    jobs: Annotated[
        int | None, typer.Option(help="Number of jobs; default: as in the scenario.", min=1)
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            help="Seconds over which users submit the jobs; default: as in the scenario.", min=1
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the random jobs.")] = None,
    faulty: Annotated[
        bool, typer.Option("--faults/--no-faults", help="Inject the scenario's faults.")
    ] = True,
    which: RunName = None,
    format_: FormatOption = Format.text,
    verbose: Verbose = False,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Simulate users who submit jobs during faults; check what happened to each job."""
    from harness import scenario
    from harness.rehearsal import execution, workload

    run = open_run(runs, which)
    options = {"jobs": jobs, "seconds": seconds, "seed": seed}
    rehearsal = (run.plan.scenario.rehearsal or scenario.Rehearsal()).model_copy(
        update={name: value for name, value in options.items() if value is not None}
    )
    planned = (
        workload.replay(trace.read_text(errors="replace"), run.plan.scenario, speed)
        if trace
        else workload.generate(run.plan.scenario, rehearsal.jobs, rehearsal.seconds, rehearsal.seed)
    )
    execution.rehearse(run, planned, rehearsal.faults if faulty else ())
    print_rehearsal(run.directory, format_)


@app.command(
    "upgrade",
    epilog="With a scenario, it is brought up first; without one, a run that is up is upgraded.",
)
def upgrade_(
    to: Annotated[
        list[str],
        typer.Option(
            "--to",
            help="Release to upgrade everything to; NAME=RELEASE: only a cluster or slurmdbd."
            " FROM:TO: start with FROM. A:B:C: a chain of upgrades. Instead of a release, an origin"
            " as for --release of `harness run`. Can be repeated.",
            show_default=False,
        ),
    ],
    scenario_path: Annotated[
        Path | None, typer.Argument(help="The scenario file.", show_default=False)
    ] = None,
    which: RunName = None,
    provider: ProviderOption = "docker",
    keep: Annotated[bool, typer.Option("--keep", help="Leave the hosts up.")] = False,
    database: Annotated[
        Path | None,
        typer.Option(
            help="A dump of your own accounting database to upgrade; can be .gz.", exists=True
        ),
    ] = None,
    states: Annotated[
        list[str] | None,
        typer.Option(
            "--state", help="[CLUSTER=]DIRECTORY: a copy of your own StateSaveLocation to upgrade."
        ),
    ] = None,
    batches: Annotated[
        int, typer.Option(help="Number of batches in which a cluster's nodes are upgraded.", min=1)
    ] = 2,
    rate: Annotated[float, typer.Option(help="Jobs submitted per second.", min=0.1, max=20)] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the random jobs.")] = 1,
    stay: Annotated[
        bool, typer.Option("--stay", help="Keep each job on its cluster (sbatch --clusters).")
    ] = False,
    report_directory: ReportDirectory = None,
    format_: FormatOption = Format.text,
    verbose: Verbose = False,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Rehearse rolling upgrades while users submit jobs; check that each job ran exactly once."""
    from harness import lifecycle
    from harness.rehearsal import upgrade

    must_be_writable(report_directory)
    start, chain = upgrade.split_choices(to)
    upgrade_options = upgrade.UpgradeOptions(chain, batches, rate, seed, stay, start)
    if scenario_path:
        source = find_provider(provider, runs)
        upgrade.must_be_possible(scenario_path, source, upgrade_options)
        run = lifecycle.create(scenario_path, source, runs, progress(), start)
        data = upgrade.read_site_data(run.plan, database, states or ())
        report = upgrade.run(run, upgrade_options, data, keep=keep, directory=report_directory)
    elif database or states:
        raise UsageError(
            "--database and --state need a scenario: "
            "a run that is up has its own database and state"
        )
    else:
        run = open_run(runs, which)
        report = upgrade.run_kept(run, upgrade_options, report_directory)
    print_report(report, format_, every_check=True)
    raise typer.Exit(report.exit_code())


@app.command("rehearse-change")
def rehearse_change(
    before: Annotated[Path, typer.Argument(help="The scenario file.", show_default=False)],
    after: Annotated[
        Path,
        typer.Argument(help="The changed scenario file, with the same hosts.", show_default=False),
    ],
    table_path: Annotated[
        Path | None,
        typer.Option(
            "--submissions",
            metavar="TABLE",
            help="Compare how Slurm treats these submissions before and after the change: see "
            "`harness submissions`.",
            exists=True,
            dir_okay=False,
            show_default=False,
        ),
    ] = None,
    provider: ProviderOption = "docker",
    release: Releases = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the hosts up.")] = False,
    rate: Annotated[float, typer.Option(help="Jobs submitted per second.", min=0.1, max=20)] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the random jobs.")] = 1,
    report_directory: ReportDirectory = None,
    format_: FormatOption = Format.text,
    verbose: Verbose = False,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Apply a change with the steps that `harness diff` lists, while users submit jobs.

    Reports what the change did to running and pending jobs, and whether each job ran exactly once.
    """
    from harness import lifecycle
    from harness.rehearsal import change
    from harness.submissions import table

    must_be_writable(report_directory)
    source = find_provider(provider, runs)
    plan = lifecycle.read_plan(before, source, release or ())
    new, changes = change.plan_change(plan, source, after)
    rows = table.read(table_path, plan.scenario) if table_path else []
    run = lifecycle.create(before, source, runs, progress(), release or ())
    wanted = change.ChangeRehearsal(new, changes, rows, rate, seed)
    report = change.run(run, wanted, after, keep=keep, directory=report_directory)
    print_report(report, format_, every_check=True)
    raise typer.Exit(report.exit_code())


@app.command()
def recheck(
    which: AnyRun = None, format_: FormatOption = Format.text, runs: Runs = DEFAULT_RUNS
) -> None:
    """Evaluate a run's last rehearsal again from its recorded evidence; hosts are not needed."""
    from harness import rundir

    print_rehearsal(rundir.find(runs, which), format_)


@app.command("report")
def report_(
    which: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN",
            help=(
                "A run's directory, id or scenario, or a directory with a report.json; "
                "default: the newest run."
            ),
            show_default=False,
        ),
    ] = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Also show how long each stage and check took.")
    ] = False,
    format_: FormatOption = Format.text,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Show a run's report and regenerate report.html; given several runs, compare them."""
    from harness.report import html_report, model
    from harness.simulation import session

    reports = {
        directory: model.read(directory)
        for directory in (with_report(runs, name) for name in which or [""])
    }
    if len(reports) > 1:
        return print_comparison(model.compare(reports), format_)
    ((directory, report),) = reports.items()
    must_be_writable(directory)
    page = html_report.write(directory)
    session.write_reports(directory)  # of a simulation, which has a page of its own
    print_report(report, format_, page)
    if profile and format_ is Format.text:
        print_profile(report)
    return None


@app.command()
def down(
    which: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            help="A run's directory, id or scenario; default: the newest that is up.",
            show_default=False,
        ),
    ] = None,
    everything: Annotated[
        bool,
        typer.Option(
            "--all", help="Remove all your runs on the engine, even those without a directory."
        ),
    ] = False,
    all_users: Annotated[
        bool,
        typer.Option(
            "--all-users", help="As root: also remove other users' runs; without RUN, all of them."
        ),
    ] = False,
    provider: ProviderOption = "docker",
    inventory: Inventory = None,
    ssh_config: SshConfig = DEFAULT_SSH_CONFIG,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Remove a run's hosts, networks and sockets, or restore existing machines.

    The run's directory stays. If it is lost, the run's id is enough; existing machines also need
    --inventory.
    """
    from harness import lifecycle

    if all_users and os.geteuid() != 0:
        raise UsageError("--all-users requires root", hint="sudo harness down --all-users")
    everything = everything or (all_users and not which)
    source = find_provider(provider, runs, inventory, ssh_config)
    chosen: dict[str, RunDir | None]
    if everything:
        chosen = _all_of(source, runs, all_users=all_users)
    elif which and inventory:
        chosen = {which: None}
    else:
        source, chosen = _one_of(source, runs, which, all_users=all_users)
    for run_id, directory in chosen.items():
        for note in lifecycle.remove(source, run_id, directory, all_users=all_users):
            err.print(f"left: {escape(note)}")
        done = "removed" if source.capabilities.engine else "restored the hosts of"
        err.print(f"{done} {run_id}")
    if everything and not chosen:
        err.print("no runs are up")


def _all_of(source: providers.Provider, runs: Path, *, all_users: bool) -> dict[str, RunDir | None]:
    """Return all runs of a provider that are up or have left sockets, by their ids."""
    from harness import rundir

    readable = {run.id: run for run in rundir.all_runs(runs) if run.provider == source.name}
    up: dict[str, RunDir | None] = {
        run_id: readable.get(run_id) for run_id in source.runs(all_users=all_users)
    }
    # A run that was killed may have left only its sockets.
    return up | {run_id: run for run_id, run in readable.items() if run.control_directory.exists()}


def _one_of(
    source: providers.Provider, runs: Path, which: str | None, *, all_users: bool
) -> tuple[providers.Provider, dict[str, RunDir | None]]:
    """Return the run that `which` names, with its provider.

    The run's directory may be lost or unreadable.
    """
    from harness import providers, rundir

    try:
        run = find_run(runs, which)
    except UsageError:
        unreadable = {rundir.id_of(path) for path in rundir.unreadable(runs)}
        run_id = rundir.id_of(Path(which)) if which and Path(which).is_dir() else str(which)
        if run_id not in unreadable and run_id not in source.runs(all_users=all_users):
            raise
        return source, {run_id: None}
    return providers.get(run.provider, runs), {run.id: run}


@app.command()
def status(
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Refresh every two seconds, until Ctrl-C.")
    ] = False,
    provider: ProviderOption = "docker",
    format_: FormatOption = Format.text,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """List your runs with their latest verdicts, and show what running clusters are doing."""
    from harness import providers

    source = providers.get(provider, runs)
    if watch and format_ is Format.text:
        with suppress(KeyboardInterrupt), Screen(console=out, screen=out.is_terminal) as screen:
            while not out.lost:
                screen.update(status_table(_status(source, runs)), refresh=True)
                time.sleep(_REFRESH)
        return None
    rows = _status(source, runs)
    if format_ is Format.json:
        return print_json([asdict(row) for row in rows])
    return out.print(status_table(rows))


def _status(source: providers.Provider, runs: Path) -> list[Row]:
    from harness import run_list as run_status

    return run_status.rows(source, runs, lambda run: open_run(runs, str(run.path), only_up=False))


@app.command()
def logs(
    host: Annotated[
        str | None, typer.Argument(help="The host; default: all.", show_default=False)
    ] = None,
    daemon: Annotated[
        str | None, typer.Argument(help="Such as slurmctld; default: all.", show_default=False)
    ] = None,
    lines: Annotated[int, typer.Option("--lines", "-n", help="Number of lines.")] = 50,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing new lines.")
    ] = False,
    which: RunName = None,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Show the daemons' last log lines on hosts that are up; earlier logs are in RUN/logs/."""
    from harness.cluster import logs as daemon_logs
    from harness.plan import DAEMONS

    run = open_run(runs, which)
    chosen = [find_host(run, host)] if host else list(run.plan.hosts)
    selected = [(on, name) for on in chosen for name in on.daemons if daemon in {None, name}]
    if not selected:
        subject = f"{host} does not run" if host else "no host runs"
        raise UsageError(
            f"{subject} {daemon or 'any daemon'}", hint=f"daemons: {', '.join(DAEMONS)}"
        )
    commands = {
        f"{on.name} {name}": (
            on.name,
            daemon_logs.command(run.plan, on, name, lines, follow=follow),
        )
        for on, name in selected
    }
    if follow:
        width = max(map(len, commands)) if len(commands) > 1 else 0

        def show(source: str, line: str) -> bool:
            out.print(f"[bold]{source:{width}}[/bold]  {escape(line)}" if width else escape(line))
            return not out.lost

        with suppress(KeyboardInterrupt):  # how the user ends it
            daemon_logs.follow(run.ssh, commands, show)
        return
    for source, (on_host, command) in commands.items():
        out.print(f"[bold]==> {source}[/bold]")
        out.print(run.ssh.run(on_host, command, check=False).stdout, markup=False)
