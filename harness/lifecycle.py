"""The whole flow of a run, top to bottom."""

from __future__ import annotations

import shutil
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from harness import deploy as deployment
from harness import faults, interrupts, rundir, scenario
from harness.cluster import logs, slurm
from harness.elastic import provisioning
from harness.errors import BUG, CannotVerify, HarnessError, UsageError, WaitTimeout, describe
from harness.inventory import Machine, inventory
from harness.kubernetes import hybrid_cluster
from harness.open_run import OpenRun, Say
from harness.parsing import hostlist
from harness.plan import Plan, make_plan
from harness.providers import CanCreate, Provider, ability, image_reader
from harness.render import Tree, render
from harness.report import assembly, earlier_reports, html_report, model
from harness.report.assembly import Evaluation
from harness.report.model import Report
from harness.run_secrets import hide
from harness.rundir import RunDir
from harness.slurmconf import check as configuration_check
from harness.slurmconf.check.findings import FATAL
from harness.verify import pytest_run

# A stage that takes at least this many seconds counts as long.
_LONG = 10
REPORT_FILES = ("report.json", "report.html", "junit.xml", "events.jsonl", "fidelity.json")


def run(
    scenario_path: Path,
    provider: Provider,
    runs: Path,
    say: Say,
    *,
    choices: Sequence[str] = (),
    settings: Sequence[str] = (),
    keep: bool = False,
    report_directory: Path | None = None,
) -> Report:
    """Render, bring up, deploy, verify, report and take down; `keep` leaves the hosts up.

    `choices` are releases that the user chose, `settings` override values of the scenario file: see
    scenario.load.
    """
    run = create(scenario_path, provider, runs, say, choices, settings)

    def evaluate(evaluation: Evaluation) -> None:
        with provisioned(run, keep=keep), logs_collected(run):
            deploy(run)
            try:
                verify(run, evaluation=evaluation)
            finally:
                for problem in faults.heal_all(run):
                    run.say(f"not healed: {problem}")

    return reported(run, evaluate, report_directory)


def start_once(scenario_path: Path, provider: Provider, say: Say) -> None:
    """Bring a scenario up until its clusters accept jobs, and take it down; keep nothing."""
    with tempfile.TemporaryDirectory(prefix="harness-") as runs:
        run = create(scenario_path, provider, Path(runs), say)
        with provisioned(run):
            deploy(run)


def reported(
    run: OpenRun, evaluate: Callable[[Evaluation], None], directory: Path | None = None
) -> Report:
    """Have `evaluate` fill in an evaluation of a run, and write its report, even after an error."""
    evaluation = Evaluation()
    try:
        evaluate(evaluation)
    except HarnessError as error:
        evaluation.problem = _with_notes(str(error), error)
    except KeyboardInterrupt as error:
        evaluation.problem = _with_notes("interrupted", error)
    except Exception as error:  # a bug in the harness: report what is known so far
        evaluation.problem = _with_notes(unexpected(run, error), error)
    return write_report(run, evaluation, directory)


def _with_notes(problem: str, error: BaseException) -> str:
    """Return a problem, and below it the notes of its error.

    They say what else went wrong, such as hosts that could not be removed.
    """
    return "\n".join([problem, *getattr(error, "__notes__", [])])


def unexpected(run: OpenRun, error: Exception) -> str:
    """Write the traceback of an unexpected error to RUN/traceback.txt.

    Returns a message about the error that names this file.
    """
    path = run.directory.path / "traceback.txt"
    secrets = run.directory.secrets()
    path.write_text(hide("".join(traceback.format_exception(error)), secrets))
    return f"unexpected error: {hide(describe(error), secrets)}; traceback: {path}\nhint: {BUG}"


def create(
    scenario_path: Path,
    provider: Provider,
    runs: Path,
    say: Say,
    choices: Sequence[str] = (),
    settings: Sequence[str] = (),
) -> OpenRun:
    """Read and render a scenario into a new run's directory.

    Raises UsageError if the daemons would refuse what is rendered.
    """
    plan = read_plan(scenario_path, provider, choices, settings)
    rehearsal = plan.scenario.rehearsal
    for scheduled in rehearsal.faults if rehearsal else ():
        faults.parse(plan, provider, scheduled.fault)
    hybrid_cluster.find_packages(plan)
    tree = render(plan)
    must_start(plan, tree)
    provider.confirm(plan, tree)
    directory = RunDir.create(runs, scenario_path, plan, provider.name, settings)
    run = OpenRun(directory, plan, tree, provider, directory.ssh(), say)
    for fault in plan.known_faults():
        say(f"known bug in Slurm: {fault}")
    with stage(run, "render"):
        directory.write_tree(tree)
        directory.make_secrets(tree)
    return run


def read_plan(
    scenario_path: Path, provider: Provider, choices: Sequence[str], settings: Sequence[str] = ()
) -> Plan:
    """Read a scenario and return its plan on the hosts of a provider."""
    name = scenario.name_of(scenario_path)
    read = scenario.load(scenario_path, choices, image_reader(provider), provider.lacks, settings)
    return make_plan(name, read, provider.capabilities)


def must_start(plan: Plan, tree: Tree) -> None:
    """Raise UsageError with the lines of a rendered configuration that daemons refuse."""
    findings = configuration_check.check_tree(plan, tree, plan.name)
    if refused := [str(finding) for finding in findings if finding.severity == FATAL]:
        raise UsageError(
            "\n".join(["daemons would not start with this configuration:", *refused]),
            hint="`harness render` writes these files; if the daemons do start with them, this is "
            "a bug in the harness: please report it",
        )


def open_run(directory: RunDir, provider: Provider, say: Say) -> OpenRun:
    """Open an existing run for another stage."""
    plan = directory.plan()
    return OpenRun(directory, plan, render(plan), provider, directory.ssh(), say)


def up(run: OpenRun) -> None:
    """Start all hosts of the plan, and wait until SSH answers on each."""
    with stage(run, "images"):
        run.provider.prepare(run.plan, run.say)
    with stage(run, "up"):
        machines = run.provider.up(run.directory, run.plan, run.plan.permanent_hosts())
        _write_inventory(run, machines)
        sleeping = [host for host in run.plan.hosts if host.provision == "power"]
        secrets = run.directory.secrets()
        files = {
            host.name: provisioning.files_of(run.tree, host.name, secrets) for host in sleeping
        }
        if sleeping:
            provider = ability(run.provider, CanCreate, "provision: power")
            provider.make(run.directory, run.plan, sleeping, files)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(run.wait_for_ssh, machines))
        if provisioning.is_wanted(run.plan):
            provisioning.start(run.directory)


def deploy(run: OpenRun) -> None:
    """Install the files, start the daemons, and wait until the clusters accept jobs."""
    with stage(run, "deploy"):
        deployment.deploy(run.directory, run.plan, run.tree, run.ssh, run.say)
    with stage(run, "ready"):
        try:
            wait_until_ready(run)
        except WaitTimeout as error:
            raise CannotVerify(f"{error}\n{_why_not_ready(run)}".rstrip()) from error


def wait_until_ready(run: OpenRun, plan: Plan | None = None, timeout: float = 300) -> None:
    """Wait until the clusters accept jobs, and federations are connected; see cluster.slurm.

    They are those of another plan if a change has been applied.
    """
    plan = plan or run.plan
    clusters = slurm.clusters(run.ssh, plan)
    slurm.connect_siblings(plan, clusters, run.say)
    slurm.wait_until_ready(plan, clusters, timeout)


def verify(
    run: OpenRun, select: Sequence[str] = (), evaluation: Evaluation | None = None
) -> Evaluation:
    """Run the checks on clusters that are up.

    Fills in `evaluation`, or else a new one, and returns it.
    """
    evaluation = evaluation or Evaluation()
    with stage(run, "verify"):
        evaluation.checks, problem = pytest_run.verify(run.directory, run.say, select)
        failed = any(check.outcome == "failed" for check in evaluation.checks)
        missing = _missing_hosts(run) if failed else ""
        if missing:  # the checks failed because of that, so they say nothing about the clusters
            evaluation.checks = [
                replace(check, outcome="error") if check.outcome == "failed" else check
                for check in evaluation.checks
            ]
        evaluation.problem = "\n".join(filter(None, [problem, missing]))
        try:
            evaluation.jobs = jobs(run)
        except HarnessError as error:
            run.say(f"the report lists no jobs: {error}")
    return evaluation


def write_report(run: OpenRun, evaluation: Evaluation, directory: Path | None = None) -> Report:
    """Write the report into the run's directory, and also into `directory`."""
    report = assembly.report(run.directory, run.plan, evaluation)
    model.write(report, run.directory.path)
    html_report.write(run.directory.path)
    if directory:
        _copy_report(run.directory.path, directory)
    return report


def _copy_report(path: Path, directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name in REPORT_FILES:
            if (path / name).exists():
                shutil.copyfile(path / name, directory / name)
    except OSError as error:
        raise CannotVerify(
            f"{directory}: {error.strerror}", hint=f"the report is in {path}"
        ) from error


def down(run: OpenRun) -> None:
    """Remove everything that a run has outside its directory."""
    with interrupts.ignored(), stage(run, "down"):
        for note in remove(run.provider, run.directory.id, run.directory):
            run.say(f"left: {note}")


def down_after(run: OpenRun, error: BaseException) -> None:
    """Take a run down after an error; what cannot be removed becomes a note of that error."""
    try:
        down(run)
    except HarnessError as problem:
        if str(problem) != str(error):
            error.add_note(str(problem))


def remove(
    provider: Provider, run_id: str, run: RunDir | None, *, all_users: bool = False
) -> list[str]:
    """Remove everything that a run has outside its directory; return notes on what stays changed.

    `run` is None if the directory is lost. `all_users` also ends other users' processes that belong
    to the run.
    """
    provisioning.stop(run_id, all_users=all_users)
    notes = provider.down(run_id)
    rundir.remove_control_directories(run_id, run)
    if run:
        (run.path / "working.lock").unlink(missing_ok=True)
    return notes


@contextmanager
def provisioned(run: OpenRun, *, keep: bool = False) -> Iterator[None]:
    """Bring the hosts up, and take them down at the end.

    `keep` leaves them up, unless the user interrupts.
    """
    removed = False
    with run.directory.worked_on():
        try:
            try:
                up(run)
                yield
            except BaseException as error:
                if not keep:
                    down_after(run, error)
                    removed = True
                raise
            if not keep:
                down(run)
                removed = True
        except KeyboardInterrupt as error:
            # Not removed yet: the hosts were to be kept, or the signal came just before `down`,
            # which ignores signals.
            if not removed:
                down_after(run, error)
            raise


@contextmanager
def logs_collected(run: OpenRun) -> Iterator[None]:
    """Collect the daemons' logs at the end, even after an error."""
    try:
        yield
    finally:
        with interrupts.ignored(), stage(run, "logs"):
            try:
                problems = logs.collect(run.ssh, _hosts_up(run), run.directory.path / "logs")
            except HarnessError as error:
                problems = [str(error)]
            for problem in problems:
                run.say(f"logs not collected: {problem}")


@contextmanager
def stage(run: OpenRun, name: str) -> Iterator[None]:
    """Print that a stage begins, and how long it took in the last run.

    Records how many seconds it takes this time.
    """
    report = earlier_reports.report(run.directory)
    expected = earlier_reports.stage_seconds(report, name) if report else None
    run.say(
        f"[{name}] ({expected:.0f} s in the last run)" if (expected or 0) >= _LONG else f"[{name}]"
    )
    started = time.monotonic()
    try:
        yield
    finally:
        run.directory.event("stage", name=name, seconds=round(time.monotonic() - started, 2))


def _missing_hosts(run: OpenRun) -> str:
    """Return a message about hosts that should be up and have stopped; "" if there are none.

    If the provider does not answer, the message says why.
    """
    try:
        running = run.provider.hosts(run.directory.id)
    except HarnessError as error:
        return str(error)
    missing = [host.name for host in run.plan.permanent_hosts() if not running.get(host.name)]
    return f"stopped during the run: {hostlist.fold(missing)}" if missing else ""


def _hosts_up(run: OpenRun) -> list[str]:
    """Return the hosts that are always up, and those of the others that are up now."""
    come_and_go = not all(host.is_permanent for host in run.plan.hosts)
    running = run.provider.hosts(run.directory.id) if come_and_go else {}
    return [host.name for host in run.plan.hosts if host.is_permanent or running.get(host.name)]


def _write_inventory(run: OpenRun, machines: Sequence[Machine]) -> None:
    path = run.directory.path / "inventory" / "hosts.yml"
    path.parent.mkdir(exist_ok=True)
    with path.open("w") as file:
        YAML(typ="safe", pure=True).dump(inventory(run.plan, machines), file)
    run.directory.ssh_config.write_text(run.provider.ssh_config(run.directory, machines))


def _why_not_ready(run: OpenRun) -> str:
    """Return the last log lines of the controllers, and of nodes that are not ready."""
    suspects = [(host, "slurmctld") for host in run.plan.with_daemon("slurmctld")]
    try:
        missing = slurm.not_ready(run.plan, slurm.clusters(run.ssh, run.plan))
        text = "; ".join(missing)
        for host in run.plan.with_daemon("slurmd"):
            if silent := [node for node in host.nodes if f" {node} " in text]:
                suspects.append((replace(host, nodes=(silent[0],)), "slurmd"))
    except HarnessError:
        pass
    return "\n".join(
        f"last log lines of {daemon} on {host.name}:\n"
        f"{logs.last_lines(run.ssh, run.plan, host, daemon, 10)}"
        for host, daemon in suspects[:4]
    )


def jobs(run: OpenRun) -> list[dict[str, Any]]:
    """Return every job of the run, from accounting, or from squeue if there is no accounting."""
    rows: list[dict[str, Any]] = []
    for cluster in slurm.clusters(run.ssh, run.plan).values():
        if run.plan.scenario.accounting:
            rows += [
                asdict(record) | {"origin": slurm.origin_id(record.job_id)}
                for record in cluster.records("--local", "--allocations")
            ]
        else:
            times = cluster.times()
            rows += [
                asdict(job) | {"origin": 0, "cluster": cluster.name} | times[job.job_id]
                for job in cluster.jobs()
                if job.job_id in times
            ]
    return rows
