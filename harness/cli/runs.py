"""The verbs of runs, and of the machine that they are on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.live import Live as Screen
from rich.markup import escape

from harness import doctor, lifecycle, page, past, providers, rehearsal, report, rundir, scenario, upgrade, workload
from harness import logs as daemon_logs
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
from harness.cli.opening import find_host, find_provider, find_run, must_be_writable, open_run, with_report
from harness.cli.printing import (
    Format,
    err,
    out,
    print_comparison,
    print_json,
    print_judgement,
    print_report,
    progress,
    status_table,
)
from harness.errors import HarnessError, UsageError
from harness.plan import DAEMONS, Plan
from harness.rundir import RunDir
from harness.ssh import as_user

app = typer.Typer()
# Where a host has its slurm.conf: its own, or that of slurmctld.
_SLURM_CONFS = ("/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf")
# Seconds between two looks of `status --watch`.
_BETWEEN_LOOKS = 2
# Seconds for which users submit jobs during an upgrade, if it takes that long.
_LONGEST_UPGRADE = 1800


@app.command()
def run(
    scenario_path: ScenarioPath,
    provider: ProviderOption = "docker",
    release: Releases = None,
    settings: Settings = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the hosts up for a closer look.")] = False,
    report_directory: ReportDirectory = None,
    inventory: Inventory = None,
    ssh_config: SshConfig = DEFAULT_SSH_CONFIG,
    check: Check = False,
    yes: Yes = False,
    format_: FormatOption = Format.text,
    verbose: Verbose = False,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Render, bring up, deploy, verify, report, take down."""
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
        err.print(f"the hosts are up; `harness down` {'removes them' if source.offers.engine else 'gives them back'}")
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
    """Start a scenario's hosts, without Slurm on them yet; prints the run's directory."""
    source = find_provider(provider, runs, inventory, ssh_config, only_look=check, yes=yes)
    live = lifecycle.create(scenario_path, source, runs, progress(), release or (), settings or ())
    with live.run.worked_on():
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
    directory = find_run(runs, which)
    source = find_provider(directory.provider, runs, only_look=check, yes=yes)
    live = lifecycle.open_run(directory, source, progress())
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
    """Check a run whose clusters are up, and report."""
    live = open_run(runs, which)
    with lifecycle.logs_collected(live):
        judged = lifecycle.verify(live, select or ())
    result = lifecycle.write_report(live, *judged)
    print_report(result, format_)
    raise typer.Exit(result.exit_code())


@app.command()
def rehearse(
    trace: Annotated[
        Path | None,
        typer.Option(help="Replay this trace, in the Standard Workload Format.", exists=True, dir_okay=False),
    ] = None,
    speed: Annotated[float, typer.Option(help="Replay the trace this many times as fast.", min=0.001)] = 60,
    jobs: Annotated[int | None, typer.Option(help="How many jobs; unset, as the scenario says.", min=1)] = None,
    seconds: Annotated[float | None, typer.Option(help="Seconds over which they are submitted.", min=1)] = None,
    seed: Annotated[int | None, typer.Option(help="Each number generates different jobs.")] = None,
    faulty: Annotated[bool, typer.Option("--faults/--no-faults", help="Inject the scenario's faults.")] = True,
    which: RunName = None,
    format_: FormatOption = Format.text,
    verbose: Verbose = False,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Simulate users who submit jobs of many kinds to a run while faults come and go, and check the evidence."""
    live = open_run(runs, which)
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
    print_judgement(live.run, format_)


@app.command("upgrade", epilog="A scenario is brought up first; without one, a run that was kept is upgraded.")
def upgrade_(
    to: Annotated[
        list[str],
        typer.Option(
            "--to",
            help="Release to upgrade all parts to; NAME=RELEASE: a cluster or slurmdbd. FROM:TO starts at FROM.",
            show_default=False,
        ),
    ],
    scenario_path: Annotated[Path | None, typer.Argument(help="The scenario file.", show_default=False)] = None,
    which: RunName = None,
    provider: ProviderOption = "docker",
    keep: Annotated[bool, typer.Option("--keep", help="Leave the hosts up for a closer look.")] = False,
    database: Annotated[
        Path | None,
        typer.Option(help="A dump of your own accounting database to upgrade; may be .gz.", exists=True),
    ] = None,
    states: Annotated[
        list[str] | None,
        typer.Option("--state", help="[CLUSTER=]DIRECTORY: a copy of your own StateSaveLocation to upgrade."),
    ] = None,
    batches: Annotated[int, typer.Option(help="Number of batches for each cluster's nodes.", min=1)] = 2,
    rate: Annotated[float, typer.Option(help="Jobs submitted per second.", min=0.1, max=20)] = 1,
    seed: Annotated[int, typer.Option(help="Each number generates different jobs.")] = 1,
    stay: Annotated[bool, typer.Option("--stay", help="Keep each job on its cluster (sbatch --clusters).")] = False,
    report_directory: ReportDirectory = None,
    format_: FormatOption = Format.text,
    verbose: Verbose = False,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Rehearse a rolling upgrade while users submit jobs, and prove that every job is accounted for once."""
    must_be_writable(report_directory)
    begin = [choice for choice in (_upgrade_choice(choice)[0] for choice in to) if choice]
    target = [_upgrade_choice(choice)[1] for choice in to]

    def works(plan: Plan) -> list[workload.Work]:
        return workload.generate(plan.scenario, int(_LONGEST_UPGRADE * rate), _LONGEST_UPGRADE, seed, stay=stay)

    if scenario_path:
        live = lifecycle.create(scenario_path, find_provider(provider, runs), runs, progress(), begin)
        own = past.Past(database, dict(_state(live.plan, one) for one in states or ()))
        past.examine(own, live.plan)
        given = own if database or states else None
        result = upgrade.run(live, target, works, batches, given, keep=keep, directory=report_directory)
    else:
        if database or states:
            raise UsageError("--database and --state need a scenario: a run that is up has its own database and state")
        live = open_run(runs, which)
        result = upgrade.run_kept(live, target, works, batches, report_directory)
    print_report(result, format_, every_check=True)
    raise typer.Exit(result.exit_code())


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
def judge(which: AnyRun = None, format_: FormatOption = Format.text, runs: Runs = DEFAULT_RUNS) -> None:
    """Judge the last rehearsal of a run again from its evidence; its hosts may be gone."""
    print_judgement(rundir.find(runs, which), format_)


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
    """Print the report of a run and regenerate its report.html; of several runs, print how they differ."""
    reports = {directory: report.read(directory) for directory in (with_report(runs, name) for name in which or [""])}
    if len(reports) > 1:
        return print_comparison(report.compare(reports), format_)
    ((directory, told),) = reports.items()
    must_be_writable(directory)
    return print_report(told, format_, page.write(directory))


@app.command()
def down(
    which: Annotated[
        str | None,
        typer.Argument(
            help="A run's directory, id or scenario; of several, or unset, the newest that is up.", show_default=False
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All your runs on the engine, with or without directory.")
    ] = False,
    all_users: Annotated[
        bool, typer.Option("--all-users", help="As root: other users' runs, too; without RUN, all of them.")
    ] = False,
    provider: ProviderOption = "docker",
    inventory: Inventory = None,
    ssh_config: SshConfig = DEFAULT_SSH_CONFIG,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Remove a run's hosts, networks and sockets, or give existing machines back. Its directory stays.

    If the directory is lost, the run's id is enough; existing machines need --inventory, too.
    """
    if all_users and os.geteuid() != 0:
        raise UsageError("--all-users is for root", hint="sudo harness down --all-users")
    everything = everything or (all_users and not which)
    source = find_provider(provider, runs, inventory, ssh_config)
    chosen: dict[str, RunDir | None]
    if everything:
        known = {run.id: run for run in rundir.all_runs(runs) if run.provider == source.name}
        chosen = {run_id: known.get(run_id) for run_id in source.runs(all_users=all_users)}
        # A run that was killed may have left no more than its sockets.
        chosen |= {run_id: run for run_id, run in known.items() if run.control_directory.exists()}
    elif which and inventory:
        chosen = {which: None}
    else:
        try:
            found = find_run(runs, which)
        except UsageError:
            lost = {rundir.id_of(path) for path in rundir.unreadable(runs)}
            run_id = rundir.id_of(Path(which)) if which and Path(which).is_dir() else str(which)
            if run_id not in lost and run_id not in source.runs(all_users=all_users):
                raise
            chosen = {run_id: None}
        else:
            source, chosen = providers.get(found.provider, runs), {found.id: found}
    for run_id, run_ in chosen.items():
        for note in lifecycle.remove(source, run_id, run_, all_users=all_users):
            err.print(f"left: {escape(note)}")
        err.print(f"{'removed' if source.offers.engine else 'gave back the hosts of'} {run_id}")
    if everything and not chosen:
        err.print("no runs are up")


@app.command()
def status(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Look again and again, until Ctrl-C.")] = False,
    provider: ProviderOption = "docker",
    format_: FormatOption = Format.text,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """List your runs with their latest verdicts, and what the clusters that are up are doing."""
    source = providers.get(provider, runs)
    if watch and format_ is Format.text:
        with suppress(KeyboardInterrupt), Screen(console=out, screen=out.is_terminal) as screen:
            while not out.lost:
                screen.update(status_table(_status(source, runs)), refresh=True)
                time.sleep(_BETWEEN_LOOKS)
        return None
    rows = _status(source, runs)
    if format_ is Format.json:
        return print_json(rows)
    return out.print(status_table(rows))


def _status(source: providers.Provider, runs: Path) -> list[dict[str, Any]]:
    there = source.runs()
    known = {run.id: run for run in rundir.all_runs(runs)}
    problems = {rundir.id_of(path): (path, problem) for path, problem in rundir.unreadable(runs).items()}
    rows = [
        {
            "run": run_id,
            "hosts_up": there.get(run_id, []),
            "verdict": _verdict(known.get(run_id)),
            "directory": str(known[run_id].path) if run_id in known else None,
            **_asked(known.get(run_id) if run_id in there else None),
            "problem": "",
        }
        for run_id in sorted({*there, *known, *problems})
    ]
    for row in rows:
        if row["run"] in problems:
            path, problem = problems[row["run"]]
            row |= {"directory": str(path), "problem": str(problem)}
    return rows


def _asked(run: RunDir | None) -> dict[str, Any]:
    """Return what a run's clusters are doing, and its hosts that should not run any more, if they answer."""
    found: dict[str, Any] = {"clusters": {}, "leaked": []}
    if run:
        with suppress(HarnessError):
            live = open_run(run.path.parents[1], str(run.path))
            found["clusters"] = lifecycle.doing(live)
            found["leaked"] = lifecycle.leaked(live)
    return found


def _verdict(run: RunDir | None) -> str | None:
    path = run.path / "report.json" if run else None
    try:
        return str(json.loads(path.read_text())["verdict"]) if path and path.exists() else None
    except (ValueError, KeyError, TypeError):  # the harness was killed while it wrote it
        return "unreadable"


@app.command()
def logs(
    host: Annotated[str | None, typer.Argument(help="One host; unset, all.", show_default=False)] = None,
    daemon: Annotated[str | None, typer.Argument(help=f"One of {', '.join(DAEMONS)}.", show_default=False)] = None,
    lines: Annotated[int, typer.Option("--lines", "-n", help="How many of the last lines.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as more is logged.")] = False,
    which: RunName = None,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Show the daemons' last log lines on hosts that are up; those of earlier runs are in RUN/logs/."""
    live = open_run(runs, which)
    chosen = [find_host(live, host)] if host else list(live.plan.hosts)
    wanted = [(on, name) for on in chosen for name in on.daemons if daemon in {None, name}]
    if not wanted:
        raise UsageError(f"{host or 'no host'} runs no {daemon}", hint=f"daemons are {', '.join(DAEMONS)}")
    commands = {
        f"{on.name} {name}": (on.name, daemon_logs.command(live.plan, on, name, lines, follow=follow))
        for on, name in wanted
    }
    if follow:
        width = max(map(len, commands)) if len(commands) > 1 else 0

        def say(of: str, line: str) -> bool:
            out.print(f"[bold]{of:{width}}[/bold]  {escape(line)}" if width else escape(line))
            return not out.lost

        with suppress(KeyboardInterrupt):  # which is how it ends
            daemon_logs.follow(live.ssh, commands, say)
        return
    for of, (on_host, command) in commands.items():
        out.print(f"[bold]==> {of}[/bold]")
        out.print(live.ssh.run(on_host, command, check=False).stdout, markup=False)


@app.command()
def ssh(
    host: Annotated[str, typer.Argument(help="The host.", show_default=False)],
    which: RunName = None,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Open a shell on a host."""
    live = open_run(runs, which)
    raise typer.Exit(subprocess.run(live.ssh.command(find_host(live, host).name, tty=True), check=False).returncode)


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
    live = open_run(runs, which)
    users = list(live.plan.scenario.users)
    if not users or user not in {None, *users}:
        raise UsageError(
            f"no user {user or ''} in {live.run.id}".replace("  ", " "), hint=f"users are {', '.join(users) or 'none'}"
        )
    on = find_host(live, host or next(iter(live.plan.scenario.clusters.values())).controller)
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
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Check whether this machine is fit. Each problem comes with the command that fixes it."""
    if mend:
        doctor.mend(progress(), provider)
    findings = doctor.examine(provider)
    with suppress(HarnessError):  # whose cause is among the findings
        findings += doctor.leftovers(providers.get(provider, runs), runs)
    if format_ is Format.json:
        print_json([{name: getattr(finding, name) for name in finding.__slots__} for finding in findings])
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
