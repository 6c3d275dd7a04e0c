"""Rehearse a configuration change: apply it to live clusters while users submit jobs.

The steps are exactly those that `harness diff` lists: a daemon that they do not restart keeps
running. They are also what an administrator would do on the site's own machines.
"""

from __future__ import annotations

import shlex
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from harness import deploy as deployment
from harness import lifecycle, scenario
from harness.cluster import slurm
from harness.cluster.slurm import FINISHED, Job, SlurmCluster
from harness.errors import ClusterError, CommandFailed, HarnessError, UsageError, WaitTimeout
from harness.faults.database import WAIT_FOR_SLURMDBD
from harness.open_run import OpenRun
from harness.parsing import hostlist
from harness.plan import Host, Plan, make_plan
from harness.providers import Provider, image_reader
from harness.rehearsal import invariants
from harness.rehearsal.execution import rehearsing
from harness.rehearsal.upgrade import drain, promises, resume, steps_since, submit_meanwhile
from harness.rehearsal.workload import PlannedJob, generate, requeues_itself
from harness.render import render
from harness.report import model
from harness.report.assembly import Evaluation
from harness.report.model import Check, Report
from harness.scenario import Scenario
from harness.slurmconf import diff
from harness.slurmconf.diff import STEPS, Change
from harness.submissions import answers, submit
from harness.submissions.table import Row
from harness.wait import wait_until

# Users submit jobs for as long as the change takes, but at most for this many seconds.
_LONGEST = 900
# Seconds for a command such as the restart of a daemon.
_PATIENCE = 180
# What cannot be rehearsed on a live cluster.
_MANUAL = ("state", "sacctmgr", "upgrade")
_DAEMONS = ("slurmd", "slurmctld", "slurmdbd")
# States that a running or pending job may have after a change. The checkers of rehearsals find out
# whether a failed job should have failed.
_UNHARMED = {"RUNNING", "COMPLETING", "COMPLETED", "FAILED", "PENDING", "CONFIGURING"}
# Seconds after which jobs that wait while nothing runs are taken to wait forever. By default,
# slurmctld tries to start them every 60 seconds (sched_interval).
_STANDSTILL = 90
# Deadline in seconds for all jobs to start while some run.
_ALL_START_WITHIN = 3600


@dataclass(frozen=True, slots=True)
class ChangeRehearsal:
    """A change to rehearse: the plan afterwards, and what differs.

    Users submit `rate` jobs per second; each `seed` generates different jobs. `rows` are submitted
    before and after the change, to compare the answers.
    """

    new: Plan
    changes: Sequence[Change]
    rows: Sequence[Row] = ()
    rate: float = 1
    seed: int = 1

    def planned_jobs(self, plan: Plan) -> list[PlannedJob]:
        """Return enough jobs for users to submit during the longest change."""
        return generate(plan.scenario, int(_LONGEST * self.rate), _LONGEST, self.seed)


def plan_change(
    plan: Plan, provider: Provider, path: Path, settings: Sequence[str] = ()
) -> tuple[Plan, list[Change]]:
    """Return the plan of the changed scenario, and what differs.

    UsageError if nothing does, if the change requires different hosts, different releases or manual
    steps, or if daemons would refuse one of the two configurations.
    """
    _must_have_no_operator(plan.scenario)
    tree = render(plan)
    lifecycle.must_start(plan, tree)
    releases = plan.releases()
    known = scenario.load(path, (), image_reader(provider), provider.lacks, settings)
    choices = [f"{name}={releases[name]}" for name in releases if name in known.clusters]
    read = scenario.load(path, choices, image_reader(provider), provider.lacks, settings)
    _must_have_no_operator(read)
    new = make_plan(plan.name, read, plan.capabilities)
    if differing := {*map(_identity, plan.hosts)} ^ {*map(_identity, new.hosts)}:
        names = hostlist.fold(sorted({host for host, _ in differing}))
        raise UsageError(
            f"{names}: a change of hosts, daemons, releases, packages, SPANK plugins, user-data, "
            "disks, shared directories, Apptainer or name servers cannot be rehearsed on clusters "
            "that are up",
            hint="`harness upgrade` rehearses other releases",
        )
    new_tree = render(new)
    lifecycle.must_start(new, new_tree)
    changes = diff.changes(
        diff.plan_source("before", plan, tree), diff.plan_source("after", new, new_tree)
    )
    if not changes:
        raise UsageError(f"{path}: there is no change that Slurm would see")
    if manual := [change for change in changes if change.needs in _MANUAL]:
        lines = [
            f"{item.file} {item.option}: {diff.NEEDS[item.needs]}. {item.why}" for item in manual
        ]
        raise UsageError("\n".join(["these changes require manual steps:", *lines]))
    return new, changes


def _must_have_no_operator(known: Scenario) -> None:
    if shared := known.shared_clusters():
        raise UsageError(
            "changes of clusters that share nodes with Kubernetes cannot be rehearsed: "
            f"{', '.join(shared)}; no operator runs during a rehearsal"
        )


def _identity(host: Host) -> tuple[str, object]:
    """Return what a host has from the moment it is created."""
    daemons = frozenset(host.daemons) - {"munge"}  # a change of AuthType starts or stops it
    installed = (host.image, host.release, frozenset(host.packages), host.spank_plugins)
    created = (host.disks, host.volumes, host.apptainer, host.dns_server, host.user_data)
    return host.name, (host.cluster, daemons, installed, created)


def run(
    run: OpenRun,
    rehearsal: ChangeRehearsal,
    path: Path,
    *,
    keep: bool = False,
    directory: Path | None = None,
) -> Report:
    """Bring a run up, apply a change while users submit jobs, take it down and report.

    `path` is the changed scenario, which becomes that of the run. `keep` leaves the hosts up. The
    report is copied to `directory`.
    """

    def evaluate(evaluation: Evaluation) -> None:
        with lifecycle.provisioned(run, keep=keep), lifecycle.logs_collected(run):
            lifecycle.deploy(run)
            _change_and_check(run, rehearsal, path, evaluation)

    return lifecycle.reported(run, evaluate, directory)


def _change_and_check(
    run: OpenRun, rehearsal: ChangeRehearsal, path: Path, evaluation: Evaluation
) -> None:
    begin = len(list(run.directory.events()))
    before = _answers(run, run.plan, rehearsal.rows)
    checks: list[Check] = []
    try:
        with lifecycle.stage(run, "change"):
            checks.append(change(run, rehearsal))
        history = invariants.read(run.directory.events(), run.plan)
        checks += promises(invariants.evaluate(history))
        if rehearsal.rows:
            checks.append(_compare_answers(before, _answers(run, rehearsal.new, rehearsal.rows)))
        run.directory.take_scenario(path)
    except ClusterError:
        # A failed step is a failed check. Any other error says nothing about the clusters.
        if not any(check.outcome == "failed" for check in steps_since(run, begin)):
            raise
    finally:
        evaluation.checks = [*steps_since(run, begin), *checks]
        model.write_junit(evaluation.checks, run.directory.path / "junit.xml")
        evaluation.facts = _facts(run, rehearsal, path)
        try:
            evaluation.jobs = lifecycle.jobs(run)
        except HarnessError as error:
            run.say(f"the report lists no jobs: {error}")


def _answers(run: OpenRun, plan: Plan, rows: Sequence[Row]) -> list[answers.Answer]:
    """Return how clusters without jobs treat a table of submissions."""
    if not rows:
        return []
    with lifecycle.stage(run, "submissions"):
        return submit.submit_rows(run.ssh, plan, rows)


def _compare_answers(before: Sequence[answers.Answer], after: Sequence[answers.Answer]) -> Check:
    """Return how the answers to submissions changed; failed if a row expects something else."""
    lines = [
        f"{row}: {name}: {old or '-'} -> {new or '-'}"
        for row, columns in answers.differences(before, after).items()
        for name, (old, new) in columns.items()
    ]
    wrong = [f"{answer.row}: {text}" for answer in after for text in answer.unexpected]
    message = "\n".join([*wrong, *(lines or ["the same before and after the change"])])
    return Check("change::submissions", "failed" if wrong else "passed", 0, message)


def _facts(run: OpenRun, rehearsal: ChangeRehearsal, path: Path) -> dict[str, Any]:
    """Return the fields of a report that differ between the rehearsal of a change and a run."""
    steps = "; ".join(diff.steps(rehearsal.changes))
    before = run.directory.scenario_path
    return {
        "description": f"{run.plan.scenario.description} Changed while users submit jobs: {steps}.",
        "command": shlex.join(["harness", "rehearse-change", before, str(path)]),
    }


def change(run: OpenRun, rehearsal: ChangeRehearsal) -> Check:
    """Apply a change while users submit jobs, let all jobs end, and gather the evidence.

    Returns what the change did to jobs. ClusterError names the step that failed.
    """
    clusters = slurm.clusters(run.ssh, run.plan)
    interrupted = threading.Event()
    harmed: list[str] = []
    counts: Counter[str] = Counter()

    def apply() -> None:
        before = {
            key: job for key, job in _jobs(clusters).items() if job.state in {"RUNNING", "PENDING"}
        }
        counts.update(job.state for job in before.values())
        for name, action in _actions(run, rehearsal, clusters):
            if interrupted.is_set():
                return
            _do_and_record(run, name, action)
        after = _jobs(clusters)
        for key, job in before.items():
            if job.name not in requeued and (problem := harm(job, after.get(key))):
                harmed.append(f"{key[0]}: {problem}")

    jobs = rehearsal.planned_jobs(run.plan)
    with rehearsing(run) as users, ThreadPoolExecutor(1) as administrator:
        requeued = {users.name(job) for job in jobs if requeues_itself(job)}
        try:
            submit_meanwhile(users, jobs, lambda: administrator.submit(apply))
        except BaseException:
            interrupted.set()  # the current step is finished first
            raise
        for (name, _), job in _waiting_forever(clusters).items():
            harmed.append(f"{name}: {_describe(job)} waits forever after the change")
            clusters[name].run("scancel", str(job.job_id), check=False)
    shown = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
    message = "\n".join([*harmed, f"jobs when the change began: {shown or 'none'}"])
    return Check("change::jobs", "failed" if harmed else "passed", 0, message)


def _waiting_forever(clusters: Mapping[str, SlurmCluster]) -> dict[tuple[str, int], Job]:
    """Wait until no job is pending, or nothing runs any more; return the jobs that still wait."""
    last_progress = time.monotonic()

    def look() -> dict[tuple[str, int], Job]:
        nonlocal last_progress
        try:
            jobs = {key: job for key, job in _jobs(clusters).items() if job.state not in FINISHED}
        except CommandFailed:  # what happens meanwhile is unknown
            last_progress = time.monotonic()
            raise
        pending = {key: job for key, job in jobs.items() if job.state == "PENDING"}
        if len(pending) < len(jobs) or any(job.reason == "BeginTime" for job in pending.values()):
            last_progress = time.monotonic()
        return pending

    return wait_until(
        look,
        lambda pending: not pending or time.monotonic() - last_progress > _STANDSTILL,
        what="every job to start",
        timeout=_ALL_START_WITHIN,
        show=lambda pending: f"{len(pending)} pending jobs",
        ignore=(CommandFailed,),
    )


def _jobs(clusters: Mapping[str, SlurmCluster]) -> dict[tuple[str, int], Job]:
    return {
        (name, job.job_id): job
        for name, cluster in clusters.items()
        for job in cluster.jobs("--local")
    }


def harm(before: Job, after: Job | None) -> str:
    """Return what a change did to a running or pending job; "" if the job is not affected.

    >>> job = Job(7, "RUNNING", "", "j", "alice", "None", 7)
    >>> harm(job, Job(7, "PENDING", "", "j", "alice", "BeginTime", 7))
    'job 7 of alice, RUNNING (None), is PENDING (BeginTime) after the change'
    """
    if after is None:  # slurmctld has forgotten it; the checkers find out whether it ran
        return ""
    waits_again = before.state == "RUNNING" and after.state == "PENDING"
    if after.state in _UNHARMED and not waits_again:
        return ""
    return f"{_describe(before)} is {after.state} ({after.reason}) after the change"


def _describe(job: Job) -> str:
    return f"job {job.job_id} of {job.user}, {job.state} ({job.reason}),"


def _do_and_record(run: OpenRun, name: str, action: Callable[[], object]) -> None:
    """Do a step, and record its outcome as if it were a check."""
    run.say(f"change: {name}")
    began = time.monotonic()
    outcome, message = "error", ""
    try:
        action()
        outcome = "passed"
    except (CommandFailed, WaitTimeout) as error:
        outcome, message = "failed", str(error)
        raise ClusterError(f"{name}: {error}") from error
    except HarnessError as error:
        message = str(error)
        raise
    finally:
        seconds = round(time.monotonic() - began, 1)
        facts = {"outcome": outcome, "seconds": seconds, "message": message}
        run.directory.event("check", id=f"change::{name}", **facts)
        run.say(f"{outcome:7} change: {name} ({seconds} s)")


def _actions(
    run: OpenRun, rehearsal: ChangeRehearsal, clusters: Mapping[str, SlurmCluster]
) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the steps of a change: the name of each, and a function that does it."""
    new, changes = rehearsal.new, rehearsal.changes
    changed_hosts = {host for item in changes for host in hostlist.expand(item.hosts)}
    changed = [name for name in clusters if changed_hosts & {*_hosts_of(new, name)}]
    nodes = diff.drained(changes)
    draining = {
        name: [node for node in run.plan.hosts_of(name) if nodes == "" or node in _names(nodes)]
        for name in (changed if nodes is not None else ())
    }
    for name, concerned in draining.items():
        if concerned:
            yield (
                f"drain {hostlist.fold(concerned)}",
                partial(drain, clusters[name], concerned, "change"),
            )
    for need in diff.needed(changes):
        yield STEPS.get(need, need), _Action(run, rehearsal, changed, need)
    for name, drained in draining.items():
        if concerned := [node for node in drained if node in new.hosts_of(name)]:
            yield f"resume {hostlist.fold(concerned)}", partial(resume, clusters[name], concerned)
    yield "wait until the clusters accept jobs", lambda: lifecycle.wait_until_ready(run, new)


def _names(nodes: str | None) -> set[str]:
    return {*hostlist.expand(nodes)} if nodes else set()


def _hosts_of(plan: Plan, cluster: str) -> list[str]:
    return [host.name for host in plan.hosts if host.cluster in {cluster, None}]


@dataclass(frozen=True, slots=True)
class _Action:
    """Does one step of STEPS, or a command for the units of the hosts that it concerns."""

    run: OpenRun
    rehearsal: ChangeRehearsal
    clusters: Sequence[str]
    need: str

    def __call__(self) -> None:
        new = self.rehearsal.new
        match self.need:
            case "copy":
                tree = render(new)
                self.run.directory.make_secrets(tree)
                deployment.copy(self.run.directory, new, tree, self.run.ssh)
                self.run.directory.write_tree(tree)
            case "stop":
                for daemon in _DAEMONS:
                    self._systemctl("stop", daemon)
            case "start":
                self._systemctl("start", "slurmctld")
                self._systemctl("start", "slurmd")
            case "start slurmdbd":
                self._systemctl("start", "slurmdbd")
            case "all":
                self._systemctl("stop", "slurmctld")
                self._systemctl("restart", "slurmd")
                self._systemctl("start", "slurmctld")
            case "reload":
                self._systemctl("reload", "slurmdbd")
            case "slurmdbd" | "slurmctld" | "slurmd":
                self._systemctl("restart", self.need)
            case "reconfigure":
                for name in self.clusters:
                    slurm.reconfigure(slurm.clusters(self.run.ssh, new)[name])
            case "objects":
                client = new.accounting_client()
                if client:
                    self._run_on(client.name, "/usr/local/sbin/slurm-accounting-objects", "")
            case _:
                self._run_command()

    def _systemctl(self, verb: str, daemon: str) -> None:
        """Run `systemctl VERB DAEMON` on the hosts of the changed clusters, one by one.

        Waits until slurmdbd listens, because slurmctld would log errors.
        """
        for host in self.rehearsal.new.with_daemon(daemon):
            if host.cluster is None or host.cluster in self.clusters:
                self._run_on(host.name, "systemctl", verb, daemon)
                if daemon == "slurmdbd" and verb != "stop":
                    self._run_on(host.name, "sh", "-c", WAIT_FOR_SLURMDBD)

    def _run_command(self) -> None:
        """Run a command such as "restart UNIT" or "run systemd-sysusers"."""
        verb, *words = self.need.split()
        command = words if verb == "run" else ["systemctl", verb, *words]
        for item in self.rehearsal.changes:
            if item.needs == self.need:
                for host in hostlist.expand(item.hosts):
                    self._run_on(host, *command)

    def _run_on(self, host: str, *command: str) -> None:
        self.run.ssh.run(host, command, timeout=_PATIENCE)
