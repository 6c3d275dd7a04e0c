"""The whole flow of a run, top to bottom."""

from __future__ import annotations

import shutil
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from harness import deploy as deployment
from harness import (
    diff,
    elastic,
    faults,
    hostlist,
    hybrid,
    interrupts,
    logs,
    page,
    past,
    report,
    rundir,
    scenario,
    slurm,
    topology,
)
from harness.errors import BUG, CannotJudge, HarnessError, WaitTimeout, describe
from harness.inventory import Machine, inventory
from harness.live import Live, Say
from harness.options import OWN_MACHINES, PROGRAMS, hide
from harness.plan import Plan, make_plan
from harness.providers import Provider
from harness.render import render
from harness.report import Check, Report
from harness.rundir import RunDir
from harness.verify import verify as judge_live

REPORT_FILES = ("report.json", "report.html", "junit.xml", "events.jsonl")
# Seconds that a cluster has to tell what it does.
_PATIENCE = 5


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

    `choices` are releases that the user chose, `settings` what lies over the file: see scenario.load.
    """
    live = create(scenario_path, provider, runs, say, choices, settings)

    def judge(judged: Judged) -> None:
        with provisioned(live, keep=keep), logs_collected(live):
            deploy(live)
            try:
                judged.checks, judged.jobs, judged.problem = verify(live)
            finally:
                for left in faults.heal_all(live):
                    live.say(f"not healed: {left}")

    return reported(live, judge, report_directory)


@dataclass
class Judged:
    """What was found out about a run: its checks, all jobs that ran, and what kept it from being judged.

    `facts` are more fields of the report.
    """

    checks: list[Check] = field(default_factory=list)
    jobs: list[dict[str, Any]] = field(default_factory=list)
    problem: str = ""
    facts: dict[str, Any] = field(default_factory=dict)


def reported(live: Live, judge: Callable[[Judged], None], directory: Path | None = None) -> Report:
    """Have `judge` find out about a run, and write the report of what it found, whatever ends it."""
    judged = Judged()
    try:
        judge(judged)
    except HarnessError as error:
        # What could not be removed is told after what went wrong before.
        before = error.__context__ if isinstance(error.__context__, HarnessError) and not error.__cause__ else None
        judged.problem = "\n".join(map(str, filter(None, [before, error])))
    except KeyboardInterrupt:
        judged.problem = "interrupted"
    except Exception as error:  # a bug of ours: what was seen so far is reported all the same
        judged.problem = unexpected(live, error)
    return write_report(live, judged.checks, judged.jobs, judged.problem, directory, **judged.facts)


def unexpected(live: Live, error: Exception) -> str:
    """Write the traceback of an unexpected error to RUN/traceback.txt; return the message that names it."""
    path = live.run.path / "traceback.txt"
    secrets = live.run.secrets()
    path.write_text(hide("".join(traceback.format_exception(error)), secrets))
    return f"unexpected error: {hide(describe(error), secrets)}; traceback: {path}\nhint: {BUG}"


def create(
    scenario_path: Path,
    provider: Provider,
    runs: Path,
    say: Say,
    choices: Sequence[str] = (),
    settings: Sequence[str] = (),
) -> Live:
    """Read and render a scenario into a new run's directory."""
    name = scenario.name_of(scenario_path)
    read = scenario.load(scenario_path, choices, provider.release_of_image, provider.lacks, settings)
    plan = make_plan(name, read, provider.offers)
    for scheduled in read.rehearsal.faults if read.rehearsal else ():
        faults.parse(plan, scheduled.fault)
    hybrid.find_packages(plan)
    provider.ask(plan, render(plan))
    directory = RunDir.create(runs, scenario_path, plan, provider.name, settings)
    live = _live(directory, plan, provider, say)
    for fault in plan.known_faults():
        say(f"known fault of Slurm: {fault}")
    with stage(live, "render"):
        directory.write_tree(live.tree)
        directory.make_secrets(live.tree)
    return live


def open_run(directory: RunDir, provider: Provider, say: Say) -> Live:
    """Return a run that is there, for another stage."""
    return _live(directory, directory.plan(), provider, say)


def side(
    which: str,
    live: Callable[[str], Live],
    release_of_image: Callable[[str], str] | None = None,
    tell: Callable[[Path, scenario.Scenario], None] = lambda *_: None,
) -> diff.Side:
    """Return what a user names as one of two configurations.

    That is a scenario, a file or directory of Slurm's, what `harness render` wrote, or a run: the files that its hosts
    have, or what was rendered for them if they are down. `live` opens a run, `tell` hears of a scenario that is read.
    """
    path = Path(which)
    if path.is_file() and scenario.is_named_like_one(path):
        read = scenario.load(path, (), release_of_image)
        tell(path, read)
        plan = make_plan(path.stem, read, OWN_MACHINES)
        return diff.plan_side(which, plan, render(plan))
    if path.exists() and not (path / "run.json").exists():
        return diff.directory_side(path)
    opened = live(which)
    if not opened.provider.runs().get(opened.run.id):
        return diff.plan_side(f"{which} (down, as it was rendered)", opened.plan, opened.tree)
    return diff.live_side(which, opened.plan, opened.tree, opened.ssh, opened.run.secrets())


def up(live: Live) -> None:
    """Start all hosts of the plan, and wait until SSH answers on each."""
    with stage(live, "images"):
        live.provider.prepare(live.plan, live.say)
    with stage(live, "up"):
        machines = live.provider.up(live.run, live.plan, live.plan.lasting_hosts())
        _write_inventory(live, machines)
        sleeping = [host for host in live.plan.hosts if host.provision == "power"]
        secrets = live.run.secrets()
        files = {host.name: elastic.files_of(live.tree, host.name, secrets) for host in sleeping}
        if sleeping:
            live.provider.make(live.run, live.plan, sleeping, files)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(live.wait_for_ssh, machines))
        if elastic.is_wanted(live.plan):
            elastic.start(live.run)


def give_past(live: Live, own: past.Past) -> Live:
    """Load a site's own past into hosts that are up and not deployed yet; return the run with the users it tells of."""
    with stage(live, "past"):
        live.run.add_users(past.bring(live, own))
    return open_run(live.run, live.provider, live.say)


def deploy(live: Live) -> None:
    """Put the files in place, start the daemons, and wait until the clusters take jobs."""
    with stage(live, "deploy"):
        deployment.deploy(live.run, live.plan, live.tree, live.ssh, live.say)
    with stage(live, "ready"):
        try:
            slurm.wait_until_ready(live.plan, slurm.clusters(live.ssh, live.plan))
        except WaitTimeout as error:
            raise CannotJudge(f"{error}\n{_why_not_ready(live)}".rstrip()) from error


def verify(live: Live, select: Sequence[str] = ()) -> tuple[list[Check], list[dict[str, Any]], str]:
    """Judge the live clusters: the checks, all jobs that ran, and what kept the checks from judging."""
    with stage(live, "verify"):
        checks, problem = judge_live(live.run, live.say, select)
        if any(check.outcome == "failed" for check in checks) and (lost := _lost(live)):
            # Then it is not the clusters that are wrong.
            checks = [replace(check, outcome="error") if check.outcome == "failed" else check for check in checks]
            problem = "\n".join(filter(None, [problem, lost]))
        try:
            return checks, jobs(live), problem
        except HarnessError as error:
            live.say(f"the report has no jobs: {error}")
            return checks, [], problem


def write_report(
    live: Live,
    checks: list[Check],
    jobs: list[dict[str, Any]],
    problem: str,
    directory: Path | None = None,
    **facts: Any,
) -> Report:
    """Write the report into the run's directory, and into `directory` too; `facts` are more of its fields."""
    events = list(live.run.events())
    result = Report(
        scenario=live.plan.name,
        description=live.plan.scenario.description,
        verdict=report.judge(checks, problem),
        releases=live.plan.releases(),
        provider=live.provider.name,
        run=str(live.run.path),
        stages=[{"name": event["name"], "seconds": event["seconds"]} for event in events if event["kind"] == "stage"],
        checks=checks,
        jobs=jobs,
        problem=problem,
        known_faults=live.plan.known_faults(),
        topologies={
            f"{name}: {topology_name}": topology.picture(described)
            for name, cluster in live.plan.scenario.clusters.items()
            for topology_name, described in cluster.topology.items()
        },
        kubernetes=next((event["kubernetes"] for event in reversed(events) if event["kind"] == "copilot"), ""),
        scenario_path=live.run.scenario_path,
        settings=live.run.settings,
        started=live.run.started,
        nodes={
            name: hostlist.fold(cluster.node_names())
            for name, cluster in live.plan.scenario.clusters.items()
            if cluster.nodes
        },
        federations={name: [*federation.clusters] for name, federation in live.plan.scenario.federations.items()},
        layout=report.layout(live.plan),
    )
    result = replace(result, **facts)
    report.write(result, live.run.path)
    page.write(live.run.path)
    if directory:
        _copy_report(live.run.path, directory)
    return result


def _copy_report(path: Path, directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name in REPORT_FILES:
            if (path / name).exists():
                shutil.copyfile(path / name, directory / name)
    except OSError as error:
        raise CannotJudge(f"{directory}: {error.strerror}", hint=f"the report is in {path}") from error


def down(live: Live) -> None:
    """Remove all that a run has outside of its directory."""
    with interrupts.ignored(), stage(live, "down"):
        for note in remove(live.provider, live.run.id, live.run):
            live.say(f"left: {note}")


def remove(provider: Provider, run_id: str, run: RunDir | None, *, all_users: bool = False) -> list[str]:
    """Remove all that a run has outside of its directory, which may be lost (None). Return what stays changed.

    `all_users` ends other users' processes that belong to the run, too.
    """
    elastic.stop(run_id, all_users=all_users)
    left = provider.down(run_id)
    rundir.remove_control_directories(run_id, run)
    if run:
        (run.path / "working.lock").unlink(missing_ok=True)
    return left


@contextmanager
def provisioned(live: Live, *, keep: bool = False) -> Iterator[None]:
    """Bring the hosts up, and take them down whatever happens; `keep` leaves them, unless the user interrupts."""
    removed = False
    with live.run.worked_on():
        try:
            try:
                up(live)
                yield
            finally:
                if not keep:
                    down(live)
                    removed = True
        except KeyboardInterrupt:
            if not removed:  # kept, or the signal came just before `down`, which ignores them
                down(live)
            raise


@contextmanager
def logs_collected(live: Live) -> Iterator[None]:
    """Fetch the daemons' logs at the end, whatever happens."""
    try:
        yield
    finally:
        with interrupts.ignored(), stage(live, "logs"):
            for problem in logs.collect(live.ssh, _up(live), live.run.path / "logs"):
                live.say(f"no logs of {problem}")


@contextmanager
def stage(live: Live, name: str) -> Iterator[None]:
    """Say what begins, and note how many seconds it took."""
    live.say(f"[{name}]")
    started = time.monotonic()
    try:
        yield
    finally:
        live.run.event("stage", name=name, seconds=round(time.monotonic() - started, 2))


def _live(directory: RunDir, plan: Plan, provider: Provider, say: Say) -> Live:
    return Live(directory, plan, render(plan), provider, directory.ssh(), say)


def doing(live: Live) -> dict[str, dict[str, Any]]:
    """Return how many nodes and jobs of each cluster are in each state, or the problem with asking it."""
    found: dict[str, dict[str, Any]] = {}
    for name, cluster in slurm.clusters(live.ssh, live.plan, _PATIENCE).items():
        try:
            found[name] = {
                "nodes": Counter(node.state for node in cluster.nodes()),
                "jobs": Counter(job.state for job in cluster.jobs("--local")),
            }
        except HarnessError as error:
            found[name] = {"problem": error.message.splitlines()[-1]}
    return found


def leaked(live: Live) -> list[str]:
    """Return what says of each host that runs, although slurmctld has powered its node down, how it is removed."""
    there = live.provider.hosts(live.run.id)
    found = []
    for name, cluster in slurm.clusters(live.ssh, live.plan, _PATIENCE).items():
        hosts = {host.name for host in live.plan.hosts if host.cluster == name and not host.lasts}
        if not any(there.get(host) for host in hosts):
            continue
        found += [
            f"{node.name} runs, but slurmctld has powered it down: "
            f"harness exec {cluster.controller} -- {PROGRAMS}/slurm-suspend {node.name}"
            for node in cluster.nodes()
            if node.name in hosts and there.get(node.name) and slurm.powered_down(node.state)
        ]
    return found


def _lost(live: Live) -> str:
    """Return which hosts that should last are not there any more ("" if all are), or why nobody knows."""
    try:
        there = live.provider.hosts(live.run.id)
    except HarnessError as error:
        return str(error)
    lost = [host.name for host in live.plan.lasting_hosts() if not there.get(host.name)]
    return f"lost on the way: {hostlist.fold(lost)}" if lost else ""


def _up(live: Live) -> list[str]:
    """Return the hosts that last, and those that come and go and happen to be up."""
    come_and_go = not all(host.lasts for host in live.plan.hosts)
    there = live.provider.hosts(live.run.id) if come_and_go else {}
    return [host.name for host in live.plan.hosts if host.lasts or there.get(host.name)]


def _write_inventory(live: Live, machines: Sequence[Machine]) -> None:
    run_ = live.run
    path = run_.path / "inventory" / "hosts.yml"
    path.parent.mkdir(exist_ok=True)
    with path.open("w") as file:
        YAML(typ="safe", pure=True).dump(inventory(live.plan, machines), file)
    run_.ssh_config.write_text(live.provider.ssh_config(run_, machines))


def _why_not_ready(live: Live) -> str:
    """Return the last lines of the controllers, and of the nodes that are not idle."""
    suspects = [(host, "slurmctld") for host in live.plan.with_daemon("slurmctld")]
    try:
        missing = slurm.not_ready(live.plan, slurm.clusters(live.ssh, live.plan))
        text = "; ".join(missing)
        for host in live.plan.with_daemon("slurmd"):
            if silent := [node for node in host.nodes if f" {node} " in text]:
                suspects.append((replace(host, nodes=(silent[0],)), "slurmd"))
    except HarnessError:
        pass
    return "\n".join(
        f"{host.name}: {daemon} said last:\n{logs.last_lines(live.ssh, live.plan, host, daemon, 10)}"
        for host, daemon in suspects[:4]
    )


def jobs(live: Live) -> list[dict[str, Any]]:
    """Return every job of the run, as accounting has it, or squeue where there is no accounting."""
    live_clusters = slurm.clusters(live.ssh, live.plan)
    found: list[dict[str, Any]] = []
    for cluster in live_clusters.values():
        if live.plan.scenario.accounting:
            found += [
                asdict(record) | {"origin": slurm.origin_id(record.job_id)}
                for record in cluster.records("--local", "--allocations")
            ]
        else:
            times = cluster.times()
            found += [
                asdict(job) | {"origin": 0, "cluster": cluster.name} | times[job.job_id]
                for job in cluster.jobs()
                if job.job_id in times
            ]
    return found
