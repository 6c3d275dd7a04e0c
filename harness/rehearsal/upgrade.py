"""A rehearsed upgrade: slurmdbd, controllers, then nodes in batches, while users submit jobs.

slurm.schedmd.com/upgrades.html documents that order, and which releases can be upgraded to which.
A chain of upgrades goes through several releases, one upgrade after the other.
To upgrade a host, the harness recreates it with the newer release and carries its data over: a dump
of the database, slurmctld's state, logs and traces. After each step, a gate waits until the
clusters work again. If it stays shut, the step is rolled back: the old host is restored with its
data.
"""

from __future__ import annotations

import math
import re
import shlex
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from harness import faults, interrupts, lifecycle, origins, releases, slurm_options
from harness.cluster import node_state, slurm
from harness.cluster.slurm import FINISHED, Node, SlurmCluster
from harness.elastic import provisioning
from harness.errors import ClusterError, CommandFailed, HarnessError, UsageError, WaitTimeout
from harness.faults.database import WAIT_FOR_SLURMDBD
from harness.open_run import OpenRun
from harness.parsing import hostlist
from harness.plan import SHARED_DIRECTORY, Host, Plan
from harness.providers import CanRecreate, Provider, ability, image_reader
from harness.rehearsal import invariants
from harness.rehearsal.execution import Users, rehearsing
from harness.rehearsal.invariants import InvariantResult
from harness.rehearsal.workload import PlannedJob, generate
from harness.render import render
from harness.report import model
from harness.report.assembly import Evaluation
from harness.report.model import Check, Report
from harness.report.verdict import UNKNOWN
from harness.site import site_data
from harness.wait import wait_until

# Jobs before the first step, and after the last one.
_BEFORE, _AFTER = 15, 15
# Seconds for which users submit jobs at most: for as long as each upgrade of a chain takes.
_LONGEST = 1800
_DUMPS = "/var/lib/slurm-harness-dumps"
# Deadline in seconds for each wait of a step, such as for a job's end; a large database has longer.
_PATIENCE = 300
_DEAD = "dead: "
# The reason of the nodes that a step drains.
_REASON = "upgrade"
# Seconds after a job's end in which its record may still change, because the job is requeued or
# slurmctld is late.
_FINAL = 20
_NAMES = (
    """mariadb -N -B -e 'SHOW DATABASES' | grep -vxE 'mysql|sys|(information|performance)_schema'"""
)
_DUMP = f"""set -eu; umask 077; mkdir -p {_DUMPS}
    names=$({_NAMES})
    mariadb-dump --single-transaction --routines --databases $names > {_DUMPS}/dump.sql"""
_LOAD = rf"""set -eu
    for database in $({_NAMES}); do mariadb -e "DROP DATABASE \`$database\`"; done
    mariadb < {_DUMPS}/dump.sql"""


@dataclass(frozen=True, slots=True)
class UpgradeOptions:
    """What to upgrade to, and what users submit in the meantime.

    `chain` has the choices of each upgrade, as for `--release`; `start` are those of the releases
    that the run must be on before, if the user names them. The nodes of each cluster are upgraded
    in `batches`. Users submit `rate` jobs per second; each `seed` generates different jobs, and
    `stay` keeps each job on its cluster.
    """

    chain: Sequence[Sequence[str]]
    batches: int = 2
    rate: float = 1
    seed: int = 1
    stay: bool = False
    start: Sequence[str] = ()

    def planned_jobs(self, plan: Plan) -> list[PlannedJob]:
        """Return enough jobs for users to submit during the longest upgrades."""
        seconds = _LONGEST * len(self.chain)
        count = int(seconds * self.rate)
        return generate(plan.scenario, count, seconds, self.seed, stay=self.stay)


@dataclass(frozen=True, slots=True)
class Step:
    """Hosts that are upgraded together. `nodes` are drained first, and resumed afterwards.

    `elastic`: they are powered down in between.
    """

    name: str
    hosts: tuple[str, ...]
    cluster: str | None = None
    nodes: tuple[str, ...] = ()
    elastic: bool = False


def plan_chain(run: OpenRun, upgrade_options: UpgradeOptions) -> list[Plan]:
    """Return the plan of a run after each upgrade.

    UsageError if the run is not on the releases that the user names, or for the reasons of
    `must_be_possible`.
    """
    before = _plan(run, upgrade_options.start)
    if _changed_hosts(run.plan, before):
        raise UsageError(
            f"the run is on {_distinct(run.plan.choices())}, not on {_distinct(before.choices())}",
            hint="the first upgrade of a run that is up begins with the releases that it runs",
        )
    plans = [run.plan, *(_plan(run, choices) for choices in upgrade_options.chain)]
    _must_be_possible(run.provider, plans)
    return plans[1:]


def _plan(run: OpenRun, choices: Sequence[str]) -> Plan:
    """Return the plan of a run on the releases and origins that the user chose."""
    return run.directory.plan(choices, image_reader(run.provider))


def must_be_possible(
    scenario_path: Path, provider: Provider, upgrade_options: UpgradeOptions
) -> None:
    """Raise UsageError if a scenario cannot be upgraded, before a run of it is created.

    It cannot if the harness is unable to do one of the upgrades, if Slurm does not support it (the
    hint is then a supported chain), or if the newer daemons would refuse the configuration.
    """
    start = upgrade_options.start
    all_choices = [start, *([*start, *choices] for choices in upgrade_options.chain)]
    _must_be_possible(
        provider, [lifecycle.read_plan(scenario_path, provider, choices) for choices in all_choices]
    )


def _must_be_possible(provider: Provider, plans: Sequence[Plan]) -> None:
    ability(provider, CanRecreate, "upgrade")
    if shared := plans[0].scenario.shared_clusters():
        raise UsageError(
            f"clusters that share nodes with Kubernetes cannot be upgraded: {', '.join(shared)}; "
            "no operator runs during an upgrade"
        )
    if small := [host.name for host in plans[0].hosts if host.disks]:
        raise UsageError(
            f"an upgrade would lose what is on the disks of {hostlist.fold(small)}",
            hint="remove the key `disks` from a copy of the scenario",
        )
    if len(plans[0].hosts) == 1 and any(volume.size for volume in plans[0].hosts[0].volumes):
        raise UsageError(
            f"an upgrade would lose what is in the shared directories of {plans[0].hosts[0].name}: "
            "they are in memory, and no other host has them",
            hint="remove their sizes from a copy of the scenario",
        )
    for name in plans[0].releases():
        _must_be_supported(name, plans)
    for older, newer in pairwise(plans):
        changed = _changed_hosts(older, newer)
        if not changed:
            raise UsageError(f"all parts are already on {_distinct(newer.versions())}")
        tree = render(newer)
        try:
            provider.confirm(newer, tree)
        except UsageError as error:
            path = _supported_path(next(iter(newer.releases())), plans)
            hint = f"{error.hint}; for example --to {path}" if error.hint else None
            raise UsageError(error.message, hint=hint) from error
        lifecycle.must_start(newer, tree)


def _must_be_supported(name: str, plans: Sequence[Plan]) -> None:
    """Raise UsageError if Slurm does not support one of the upgrades of a cluster or slurmdbd."""
    for older, newer in pairwise([plan.releases()[name] for plan in plans]):
        if newer < older:
            raise UsageError(f"{name} is on {older}: Slurm cannot be downgraded to {newer}")
        if len(releases.upgrade_path(older, newer)) > 2:
            served = ", ".join(releases.get(newer).serves[:-1])
            raise UsageError(
                f"{name}: Slurm {newer} supports upgrades from {served}, not from {older}",
                hint=f"the shortest way is --to {_supported_path(name, plans)}",
            )


def _supported_path(name: str, plans: Sequence[Plan]) -> str:
    """Return a supported chain for a cluster or slurmdbd: its releases, and those that it lacks."""
    choices = [plan.choices()[name] for plan in plans]
    path = choices[:1]
    for (older, newer), choice in zip(pairwise(plans), choices[1:], strict=True):
        way = releases.upgrade_path(older.releases()[name], newer.releases()[name])
        path += [*way[1:-1], choice]
    lacking = {*releases.KNOWN} - {*releases.packaged()}
    return ":".join(
        f"source:slurm-{choice}.X.tar.bz2" if choice in lacking else choice for choice in path
    )


def _distinct(choices: Mapping[str, str]) -> str:
    """Return the releases of all parts as text, each once."""
    return ", ".join(sorted({*choices.values()}))


def known_faults(plans: Sequence[Plan]) -> list[str]:
    """Return Slurm's known bugs during upgrades, while slurmdbd is newer than the clusters."""
    known: list[str] = []
    passed: set[str] = set()
    for older, newer in pairwise(plans):
        passed.update(older.releases().values())
        if newer.scenario.accounting:
            slurmdbd = newer.releases()["slurmdbd"]
            between = replace(older, scenario=older.scenario.put_on([f"slurmdbd={slurmdbd}"]))
            faults_with_older = releases.get(slurmdbd).chain_faults
            known += between.known_faults()
            known += [fault.what for fault in faults_with_older if fault.older & passed]
    return [*dict.fromkeys(known)]


def steps(old: Plan, new: Plan, batches: int = 2) -> list[Step]:
    """Return the steps of an upgrade in the order that Slurm requires.

    The static nodes of each cluster are split into `batches`. Its elastic nodes come last and all
    at once, because the provisioning API creates hosts of only one release for a cluster.
    """
    remaining = {host.name: host for host in _changed_hosts(old, new)}

    def step_of(
        name: str, hosts: Sequence[Host], cluster: str | None, *, elastic: bool = False
    ) -> Iterator[Step]:
        present = [remaining.pop(host.name) for host in hosts if host.name in remaining]
        if present:
            yield Step(
                name,
                tuple(host.name for host in present),
                cluster,
                tuple(node for host in present for node in host.nodes),
                elastic,
            )

    ordered = [*step_of("slurmdbd", old.with_daemon("slurmdbd"), None)]
    for cluster in old.scenario.clusters:
        controllers = [host for host in old.with_daemon("slurmctld") if host.cluster == cluster]
        ordered += step_of(f"slurmctld of {cluster}", controllers, cluster)
    for cluster in old.scenario.clusters:
        of_cluster = [host for host in remaining.values() if host.cluster == cluster]
        elastic = [host for host in of_cluster if host.provision != "static"]
        hosts = [host for host in of_cluster if host not in elastic]
        size = math.ceil(len(hosts) / batches)
        for first in range(0, len(hosts), size or 1):
            batch = hosts[first : first + size]
            ordered += step_of(
                f"nodes {hostlist.fold(host.name for host in batch)}", batch, cluster
            )
        names = hostlist.fold(host.name for host in elastic)
        ordered += step_of(f"elastic nodes {names}", elastic, cluster, elastic=True)
    return ordered


def _named_after_target(step: Step, new: Plan) -> Step:
    """Return a step with its target in its name: a chain upgrades the same hosts several times."""
    version = new.versions()[step.cluster or "slurmdbd"]
    return replace(step, name=f"{step.name} to {version}")


def _with_daemon(run: OpenRun, step: Step, daemon: str) -> list[str]:
    """Return the hosts of a step that run a daemon."""
    return [host.name for host in run.plan.with_daemon(daemon) if host.name in step.hosts]


def _changed_hosts(old: Plan, new: Plan) -> list[Host]:
    return [
        host
        for host, other in zip(old.hosts, new.hosts, strict=True)
        if (host.release, host.origin) != (other.release, other.origin)
    ]


def run(
    run: OpenRun,
    upgrade_options: UpgradeOptions,
    site: site_data.SiteData | None = None,
    *,
    keep: bool = False,
    directory: Path | None = None,
) -> Report:
    """Bring a run up, upgrade it while users submit jobs, take it down and report.

    `site` is loaded before the upgrade; `keep` leaves the hosts up. The report is copied to
    `directory`.
    """
    plans = plan_chain(run, upgrade_options)

    def evaluate(evaluation: Evaluation) -> None:
        # If something cannot be built, fail before the older hosts are up.
        _prepare(run, plans)
        with lifecycle.provisioned(run, keep=keep), lifecycle.logs_collected(run):
            opened = _with_site_data(run, site) if site else run
            lifecycle.deploy(opened)
            _upgrade_and_check(opened, upgrade_options, evaluation)

    return lifecycle.reported(run, evaluate, directory)


def split_choices(choices: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Split each [NAME=][FROM:]TO[:TO...] into the releases to start on, and those of each upgrade.

    Each can be an origin, as for `--release`. Choices without FROM have no release to start on. A
    part with fewer releases than others stays on its last one.

    >>> split_choices(["22.05:24.11", "alpha=25.11"])
    (['22.05'], [['24.11', 'alpha=25.11']])
    >>> split_choices(["22.05:source:slurm-23.11.11.tar.bz2:base:ubuntu:26.04"])
    (['22.05'], [['source:slurm-23.11.11.tar.bz2'], ['base:ubuntu:26.04']])
    >>> split_choices(["image:site/slurm:24.11:image:site/slurm:25.05"])
    (['image:site/slurm:24.11'], [['image:site/slurm:25.05']])
    """
    start, targets = [], []
    for choice in choices:
        name = named[0] if (named := re.match("[A-Za-z0-9_-]*=", choice)) else ""
        path = [f"{name}{element}" for element in _split_path(choice.removeprefix(name))]
        start += path[:-1][:1]
        targets.append(path[1:] or path)
    count = max(map(len, targets), default=0)
    return start, [[path[min(index, len(path) - 1)] for path in targets] for index in range(count)]


def _split_path(path: str) -> list[str]:
    """Split releases and origins at the colons between them; origins have colons too."""
    elements: list[str] = []
    for word in path.split(":"):
        last = elements[-1] if elements else ""
        # A release after the name of an image is its tag.
        is_release = word in releases.KNOWN and not last.startswith("image:")
        begins = is_release or origins.is_origin(f"{word}:")
        if origins.is_origin(f"{last}:") and not (begins and ":" in last):
            elements[-1] = f"{last}:{word}"
        else:
            elements.append(word)
    return elements


def read_site_data(
    plan: Plan, database: Path | None, states: Sequence[str]
) -> site_data.SiteData | None:
    """Return a site's database and states, None if there are neither.

    A state is given as [CLUSTER=]DIRECTORY. UsageError if they do not fit the plan.
    """
    if not database and not states:
        return None
    data = site_data.SiteData(database, dict(_split_state(plan, state) for state in states))
    site_data.examine(data, plan)
    return data


def _split_state(plan: Plan, text: str) -> tuple[str, Path]:
    """Split [CLUSTER=]DIRECTORY; the cluster can be left out if it is the only one."""
    cluster, _, directory = text.rpartition("=")
    clusters = [*plan.scenario.clusters]
    if not cluster and len(clusters) > 1:
        raise UsageError(
            f"--state {text} does not name its cluster", hint=f"--state {clusters[0]}={text}"
        )
    return cluster or clusters[0], Path(directory)


def _with_site_data(run: OpenRun, own: site_data.SiteData) -> OpenRun:
    """Load a site's data into hosts that are up but not deployed; return the run with its users."""
    with lifecycle.stage(run, "site data"):
        run.directory.add_users(site_data.load(run, own))
    return lifecycle.open_run(run.directory, run.provider, run.say)


def run_kept(
    run: OpenRun, upgrade_options: UpgradeOptions, directory: Path | None = None
) -> Report:
    """Upgrade a run that is up while users submit jobs, and report."""
    plan_chain(run, upgrade_options)

    def evaluate(evaluation: Evaluation) -> None:
        with lifecycle.logs_collected(run):
            _upgrade_and_check(run, upgrade_options, evaluation)

    return lifecycle.reported(run, evaluate, directory)


def _upgrade_and_check(
    run: OpenRun, upgrade_options: UpgradeOptions, evaluation: Evaluation
) -> None:
    """Upgrade a run; its checks are the steps and the rehearsal's checkers."""
    plans = plan_chain(run, upgrade_options)
    for fault in known_faults([run.plan, *plans]):
        run.say(f"known bug in Slurm during this upgrade: {fault}")
    begin = len(list(run.directory.events()))
    try:
        with lifecycle.stage(run, "upgrade"):
            upgrade(run, plans, upgrade_options.planned_jobs(run.plan), upgrade_options.batches)
        history = invariants.read(run.directory.events(), run.directory.plan())
        evaluation.checks = promises(invariants.evaluate(history))
    except ClusterError:
        # A failed step is a failed check. Any other error says nothing about the clusters.
        if not any(check.outcome == "failed" for check in steps_since(run, begin)):
            raise
    finally:
        evaluation.checks = [*steps_since(run, begin), *evaluation.checks]
        model.write_junit(evaluation.checks, run.directory.path / "junit.xml")
        evaluation.facts = _facts(run, plans)
        try:
            evaluation.jobs = lifecycle.jobs(run)
        except HarnessError as error:
            run.say(f"the report lists no jobs: {error}")


def promises(findings: Iterable[InvariantResult]) -> list[Check]:
    """Return the checkers' results as checks of a report."""
    outcomes = {UNKNOWN: "error"}
    return [
        Check(
            f"rehearsal::{result.name}",
            outcomes.get(result.outcome, result.outcome),
            0,
            "\n".join([*result.problems, *(f"excused: {text}" for text in result.excused)]),
        )
        for result in findings
    ]


def steps_since(run: OpenRun, begin: int) -> list[Check]:
    """Return the steps done since the event with index `begin`, as checks."""
    events = (event for event in list(run.directory.events())[begin:] if event["kind"] == "check")
    return [
        Check(event["id"], event["outcome"], event["seconds"], event["message"]) for event in events
    ]


def _facts(run: OpenRun, plans: Sequence[Plan]) -> dict[str, Any]:
    """Return the fields of a report that differ between upgrades and a run."""
    now = run.directory.plan()
    all_plans = [run.plan, *plans]
    paths = _upgrade_paths([plan.versions() for plan in all_plans])
    choices = _upgrade_paths([plan.choices() for plan in all_plans])
    scenario = run.directory.scenario_path
    return {
        "description": (
            f"{run.plan.scenario.description} Upgraded while users submit jobs: {', '.join(paths)}."
        ).strip(),
        "releases": now.versions(),
        "choices": now.choices(),
        "layout": model.layout(now),
        "known_faults": [*dict.fromkeys([*run.plan.known_faults(), *known_faults(all_plans)])],
        "command": shlex.join(
            [
                "harness",
                "upgrade",
                scenario,
                *(word for choice in choices for word in ("--to", choice)),
            ]
        ),
    }


def _upgrade_paths(versions: Sequence[Mapping[str, str]]) -> list[str]:
    """Return NAME=FROM:TO for each part, or a single FROM:TO if all parts have the same."""
    paths = {
        name: ":".join(plan_versions[name] for plan_versions in versions) for name in versions[0]
    }
    same = {*paths.values()}
    return [*same] if len(same) == 1 else [f"{name}={path}" for name, path in paths.items()]


def _prepare(run: OpenRun, plans: Sequence[Plan]) -> None:
    for plan in plans:
        run.provider.prepare(plan, run.say)


def upgrade(
    run: OpenRun, plans: Sequence[Plan], jobs: Sequence[PlannedJob], batches: int = 2
) -> None:
    """Upgrade a run to each plan, step by step, while users submit jobs; then let all jobs end.

    Finally gather the evidence. ClusterError names the step whose gate stayed shut; only that step
    has been rolled back.
    """
    _prepare(run, plans)
    interrupted = threading.Event()

    def upgrade_all() -> None:
        since = time.time() - _FINAL
        record_old_jobs(since)
        for older, newer in pairwise([run.plan, *plans]):
            todo = steps(older, newer, batches)
            if len(plans) > 1:
                todo = [_named_after_target(step, newer) for step in todo]
            _upgrade_to(replace(run, plan=older, tree=render(older)), newer, todo, interrupted)
            if interrupted.is_set():
                return
        record_old_jobs(since)

    def record_old_jobs(since: float) -> None:
        """Record the old jobs in the database, before the first step and after the last one."""
        for cluster, tables in (
            site_data.remembered(run, since).items() if run.plan.scenario.accounting else ()
        ):
            run.directory.event("old_records", cluster=cluster, tables=tables)

    with rehearsing(run) as users, ThreadPoolExecutor(1) as administrator:
        try:
            submit_meanwhile(users, jobs, lambda: administrator.submit(upgrade_all))
        except BaseException:
            interrupted.set()  # the current step is finished first
            raise


def _upgrade_to(
    run: OpenRun, new: Plan, todo: Sequence[Step], interrupted: threading.Event
) -> None:
    """Do the steps that lead to a plan; after each, record which parts are upgraded."""
    for number, step in enumerate(todo, 1):
        if interrupted.is_set():
            return
        _do_and_record(run, new, step)
        parts = {step.cluster or "slurmdbd" for step in todo[:number]}
        done = parts - {step.cluster or "slurmdbd" for step in todo[number:]}
        run.directory.upgraded(
            _plan(run, [f"{part}={new.choices()[part]}" for part in sorted(done)])
        )
    run.directory.upgraded(new)
    run.directory.write_tree(render(new))


def submit_meanwhile(
    users: Users, jobs: Sequence[PlannedJob], begin: Callable[[], Future[None]]
) -> None:
    """Submit jobs, call `begin` after the first few, and submit a few more once it has ended.

    If there are too few jobs, call `begin` after the last one.
    """
    operation: Future[None] | None = None
    jobs_left = _AFTER
    started = time.monotonic()
    for job in jobs:
        time.sleep(max(0, started + job.at - time.monotonic()))
        users.submit(job)
        if job.number + 1 == _BEFORE:
            # If interrupted while a thread starts, the executor would not wait for that thread at
            # the end.
            with interrupts.deferred():
                operation = begin()
        if operation and operation.done():
            operation.result()
            jobs_left -= 1
            if not jobs_left:
                return
    if not operation:
        with interrupts.deferred():
            operation = begin()
    operation.result()


def _do_and_record(run: OpenRun, new: Plan, step: Step) -> None:
    """Do a step, and record its outcome as if it were a check."""
    run.say(f"upgrade of {step.name}")
    before = time.monotonic()
    outcome, message = "error", ""
    try:
        _do(run, new, step)
        outcome = "passed"
    except HarnessError as error:
        outcome, message = "failed" if isinstance(error, ClusterError) else "error", str(error)
        raise
    finally:
        seconds = round(time.monotonic() - before, 1)
        run.directory.event(
            "check", id=f"upgrade::{step.name}", outcome=outcome, seconds=seconds, message=message
        )
        run.say(f"{outcome:7} upgrade of {step.name} ({seconds} s)")


def _do(run: OpenRun, new: Plan, step: Step) -> None:
    before = time.monotonic()
    keep = run.directory.path / "upgrade"
    keep.mkdir(mode=0o700, exist_ok=True)
    provider = ability(run.provider, CanRecreate, "upgrade")
    with faults.noted(run, "upgrade", step.hosts):
        known = _unfinished(run, step)
        permanent = [host for host in step.hosts if run.plan.host(host).is_permanent]
        try:
            if step.elastic:
                _park(run, step)
            else:
                _drain(run, step)
            _stop_daemons(run, step)
            directories = {host: _directories_to_carry(run, host) for host in permanent}
            for host, carried in directories.items():
                provider.stop(run.directory.id, host)
                for number, directory in enumerate(carried):
                    provider.fetch(run.directory.id, host, directory, keep / f"{host}.{number}.tar")
        except Exception:
            _continue(run, step, permanent)
            raise
        try:
            _recreate(run, step, new, directories)
            _wait_at_gate(run, new, step, known)
        except Exception as error:
            run.say(f"{step.name}: {error}; rolling back")
            for host in step.hosts:
                with suppress(HarnessError):  # the host may not exist
                    provider.fetch(
                        run.directory.id, host, "/var/log/slurm", keep / f"{host}.failed.tar"
                    )
            _recreate(run, step, run.plan, directories)
            _wait_at_gate(run, run.plan, step, set())
            if not isinstance(error, HarnessError):  # a bug
                raise
            raise ClusterError(
                f"{step.name} could not be upgraded and was rolled back: {error}"
            ) from error
    for host, carried in directories.items():
        for number in range(len(carried)):
            (keep / f"{host}.{number}.tar").unlink()
    run.directory.event("upgrade", step=step.name, seconds=round(time.monotonic() - before, 1))


def _continue(run: OpenRun, step: Step, hosts: Iterable[str]) -> None:
    """Start what a step has stopped before it replaced anything, as far as that succeeds."""
    with suppress(HarnessError):
        running = run.provider.hosts(run.directory.id)
        for host in hosts:
            if not running.get(host):
                run.start_host(host)
    for daemon in ("slurmdbd", "slurmctld"):
        for host in _with_daemon(run, step, daemon):
            with suppress(HarnessError):
                run.ssh.run(host, ["systemctl", "start", daemon], timeout=_PATIENCE)
                if daemon == "slurmdbd":
                    run.ssh.run(host, ["sh", "-c", WAIT_FOR_SLURMDBD], timeout=_PATIENCE)
    for cluster, nodes in _nodes_of(run, step):
        with suppress(HarnessError):
            resume(cluster, nodes)


def _unfinished(run: OpenRun, step: Step) -> set[int]:
    """Return the jobs that must survive the upgrade of a cluster's controller."""
    if step.cluster is None or not _with_daemon(run, step, "slurmctld"):
        return set()
    cluster = slurm.clusters(run.ssh, run.plan)[step.cluster]
    return {job.job_id for job in cluster.jobs("--local") if job.state not in FINISHED}


def _drain(run: OpenRun, step: Step) -> None:
    """Drain the step's nodes, and wait for the jobs that they run."""
    for cluster, nodes in _nodes_of(run, step):
        drain(cluster, nodes, _REASON)


def drain(cluster: SlurmCluster, nodes: Sequence[str], reason: str) -> None:
    """Drain nodes, and wait for the jobs that they run; WaitTimeout names those that do not end."""
    _set_state(cluster, nodes, "DRAIN", reason)
    try:
        _wait_for_states(cluster, nodes, node_state.is_drained, "to drain")
    except WaitTimeout as error:
        left = [
            f"job {job.job_id} {job.state}"
            for job in cluster.jobs("--local")
            if job.state not in FINISHED and {*nodes} & {*hostlist.expand(job.node_list)}
        ]
        raise WaitTimeout(f"{error}; {', '.join(left)}") from error


def _park(run: OpenRun, step: Step) -> None:
    """Drain and power down the step's nodes, and wait until their hosts are gone or stopped."""
    provider = ability(run.provider, CanRecreate, "upgrade")
    going = {host for host in step.hosts if not run.plan.host(host).is_permanent}
    for cluster, nodes in _nodes_of(run, step):
        _keep_powered_down(cluster, nodes)
    wait_until(
        lambda: {host for host, up in provider.hosts(run.directory.id).items() if up} & going,
        lambda up: not up,
        what=f"the hosts of {step.name} to stop",
        timeout=_PATIENCE,
        show=hostlist.fold,
    )


def _keep_powered_down(cluster: SlurmCluster, nodes: Sequence[str]) -> None:
    """Drain nodes, power them down once their jobs have ended, and wait for that.

    slurmctld resumes a drained node that it powers down (_do_power_work() in power_save.c), but
    gives it no job before SuspendTimeout is over. The node is then drained again.
    """

    def look() -> dict[str, str]:
        states = _states(cluster, nodes)
        if open_ := [node for node in nodes if not node_state.is_draining(states[node])]:
            _set_state(cluster, open_, "DRAIN")
        idle = [
            node
            for node, state in states.items()
            if node_state.is_drained(state) and not node_state.is_suspended(state)
        ]
        if idle:
            _set_state(cluster, idle, "POWER_DOWN")
        return states

    _wait_for_states(
        cluster,
        nodes,
        lambda state: node_state.is_drained(state) and node_state.has_gone_down(state),
        "to be drained and powered down",
        look,
    )


def _power_cycle(run: OpenRun, plan: Plan, step: Step) -> None:
    """Power one of the step's nodes for each kind of provisioning up and down.

    All others have the same image and programs.
    """
    for cluster, nodes in _nodes_of(run, step):
        names = [*{run.plan.host(name).provision: name for name in reversed(nodes)}.values()]
        _set_state(cluster, names, "POWER_UP")
        _wait_until_each_came_up(cluster, names, plan, step)
        _keep_powered_down(cluster, names)


def _wait_until_each_came_up(
    cluster: SlurmCluster, names: Sequence[str], plan: Plan, step: Step
) -> None:
    """Wait until each node has been up: the first may be idle for SuspendTime before the last is.

    Raises ClusterError if one fails the step.
    """
    missing = {*names}

    def look() -> set[str]:
        for node in cluster.nodes():
            if node.name in missing and node_state.has_come_up(node.state):
                if problem := _problem(node, plan, step):
                    raise ClusterError(problem)
                missing.remove(node.name)
        return missing

    wait_until(
        look,
        lambda missing: not missing,
        what=f"{hostlist.fold(names)} to be powered up",
        timeout=_PATIENCE,
        show=lambda missing: f"{hostlist.fold(missing)} not yet",
        ignore=(CommandFailed,),
    )


def _wait_for_states(
    cluster: SlurmCluster,
    nodes: Sequence[str],
    done: Callable[[str], bool],
    what: str,
    look: Callable[[], dict[str, str]] | None = None,
) -> None:
    """Wait until all nodes are in a state; WaitTimeout has their last ones."""
    wait_until(
        look or partial(_states, cluster, nodes),
        lambda states: all(map(done, states.values())),
        what=f"{hostlist.fold(nodes)} {what}",
        timeout=_PATIENCE,
        ignore=(CommandFailed,),
    )


def _set_state(
    cluster: SlurmCluster, nodes: Sequence[str], state: str, reason: str = _REASON
) -> None:
    """Change the state of nodes; a node that drains needs a reason."""
    names = f"NodeName={hostlist.fold(nodes)}"
    cluster.run("scontrol", "update", names, f"State={state}", f"Reason={reason}")


def resume(cluster: SlurmCluster, nodes: Sequence[str]) -> None:
    """Resume nodes that are drained once slurmctld, which may have restarted, answers.

    For a node that has not registered again, update_node() in Slurm's node_mgr.c resumes it, and
    answers "Invalid node state specified" all the same.
    """
    names = hostlist.fold(nodes)

    def drained() -> list[str]:
        cluster.run("scontrol", "update", f"NodeName={names}", "State=RESUME", check=False)
        return [
            name for name, state in _states(cluster, nodes).items() if node_state.is_draining(state)
        ]

    wait_until(
        drained,
        lambda drained: not drained,
        what=f"slurmctld to resume {names}",
        timeout=_PATIENCE,
        show=hostlist.fold,
        ignore=(CommandFailed,),
    )


def _nodes_of(run: OpenRun, step: Step) -> Iterator[tuple[SlurmCluster, list[str]]]:
    """Yield the clusters that have nodes on the step's hosts, with these nodes."""
    for name, cluster in slurm.clusters(run.ssh, run.plan).items():
        if nodes := [node for node in run.plan.hosts_of(name) if node in step.nodes]:
            yield cluster, nodes


def _states(cluster: SlurmCluster, nodes: Sequence[str]) -> dict[str, str]:
    return {node.name: node.state for node in cluster.nodes() if node.name in nodes}


def _stop_daemons(run: OpenRun, step: Step) -> None:
    """Stop the daemons that write, and then dump the database.

    A backup is stopped first, because it would take over otherwise.
    """
    for daemon in ("slurmdbd", "slurmctld"):
        for host in reversed(_with_daemon(run, step, daemon)):
            run.ssh.run(host, ["systemctl", "stop", daemon], timeout=_PATIENCE)
    for host in _with_daemon(run, step, "mariadb"):
        run.ssh.run(host, ["sh", "-c", _DUMP], timeout=site_data.PATIENCE)


def _directories_to_carry(run: OpenRun, name: str) -> list[str]:
    """Return the directories to copy to the recreated host; those on its disks remain."""
    host = run.plan.host(name)
    wanted = ["/var/log/slurm", SHARED_DIRECTORY]
    if "mariadb" in host.daemons:
        wanted.append(_DUMPS)
    if "slurmctld" in host.daemons and host.cluster:
        conf = run.plan.slurm_conf(host.cluster)
        wanted.append(slurm_options.state_save_location(conf))
    disks = {volume.directory for volume in host.volumes}
    existing = run.ssh.run(
        name, ["sh", "-c", f"ls -d {shlex.join(wanted)} 2> /dev/null; true"]
    ).stdout.split()
    return [directory for directory in wanted if directory in existing and directory not in disks]


def _recreate(run: OpenRun, step: Step, plan: Plan, directories: dict[str, list[str]]) -> None:
    """Recreate the step's hosts from a plan with the data of the old hosts, and start them."""
    directory = run.directory
    provider = ability(run.provider, CanRecreate, "upgrade")
    tree, secrets = render(plan), directory.secrets()
    restarts_api = step.elastic and provisioning.is_wanted(plan)

    def recreate(name: str) -> None:
        host = plan.host(name)
        # slurmdbd must not see a database before the dump is loaded.
        daemons = tuple(daemon for daemon in host.daemons if daemon != "slurmdbd")
        provider.remove(directory.id, name)
        if host.provision == "create":
            return
        provider.make(
            directory,
            plan,
            [replace(host, daemons=daemons)],
            {name: provisioning.files_of(tree, name, secrets)},
        )
        if not host.is_permanent:
            return
        for number, kept in enumerate(directories[name]):
            provider.put(
                directory.id, name, kept, directory.path / "upgrade" / f"{name}.{number}.tar"
            )
        run.start_host(name)
        if "mariadb" in host.daemons:
            wait_until(
                lambda: run.ssh.run(name, ["mariadb", "-e", "SELECT 1"], check=False).exit_code,
                lambda code: code == 0,
                what=f"MariaDB on {name} to answer",
                timeout=_PATIENCE,
            )
            run.ssh.run(name, ["sh", "-c", _LOAD], timeout=site_data.PATIENCE)
        if "slurmdbd" in host.daemons:
            run.ssh.run(
                name, ["systemctl", "enable", "--now", "slurmdbd"], timeout=site_data.PATIENCE
            )

    if restarts_api:
        provisioning.stop(directory.id)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(recreate, step.hosts))
    if restarts_api:  # it reads the plan from the run's directory
        choice = f"{step.cluster}={plan.choices()[str(step.cluster)]}"
        directory.upgraded(_plan(run, [choice]))
        provisioning.start(directory)


def _problem(node: Node, plan: Plan, step: Step) -> str:
    """Return why a node that is up fails a step towards a plan, "" if it does not."""
    version = plan.versions()[step.cluster or "slurmdbd"]
    # After an upgrade that takes longer than SlurmdTimeout, a node that responds again stays DOWN
    # until it is resumed: its reason is not "Not responding" (validate_node_specs() in node_mgr.c).
    resumable = node.name in step.nodes and node.reason.startswith(_REASON)
    if node_state.is_lost(node.state) and not (resumable and node.state == "DOWN+DRAIN"):
        return f"{node.name} {node.state}"
    if node.name in step.nodes and not (node.version or "").startswith(version):
        return f"{node.name} runs slurmd {node.version}, not {version}"
    return ""


def _failed_daemons(run: OpenRun, step: Step) -> list[str]:
    """Return the daemons of a step that have failed, according to systemd."""
    failures = []
    for daemon in ("slurmdbd", "slurmctld"):
        for host in _with_daemon(run, step, daemon):
            state = run.ssh.run(
                host, ["systemctl", "is-active", daemon], check=False
            ).stdout.strip()
            failures += [f"{_DEAD}{daemon} on {host}"] if state == "failed" else []
    return failures


def _wait_at_gate(run: OpenRun, plan: Plan, step: Step, known: set[int]) -> None:
    """Wait until daemons, nodes, jobs and federations are back after a step towards a plan.

    WaitTimeout names what is missing.
    """
    clusters = slurm.clusters(run.ssh, run.plan)

    def missing() -> list[str]:
        if failed := _failed_daemons(run, step):
            return failed
        problems = []
        for cluster in clusters.values():
            if run.plan.scenario.accounting:
                cluster.run("sacctmgr", "--noheader", "--parsable2", "show", "cluster")
            problems += [
                problem
                for node in cluster.nodes()
                if not node_state.is_suspended(node.state)
                and (problem := _problem(node, plan, step))
            ]
        if known:
            # A federated job may have started on another cluster, which revokes the copy.
            jobs = {job.job_id for cluster in clusters.values() for job in cluster.jobs("--local")}
            problems += [f"no slurmctld knows job {job_id}" for job_id in sorted(known - jobs)]
        for federation in run.plan.scenario.federations.values():
            for name in federation.clusters:
                problems += [
                    f"{name} - {sibling.cluster}"
                    for sibling in clusters[name].siblings()
                    if not sibling.synced
                ]
        return problems

    wait_until(
        missing,
        lambda problems: not problems,
        what=f"the gate of {step.name} to open",
        timeout=site_data.PATIENCE if _with_daemon(run, step, "slurmdbd") else _PATIENCE,
        give_up=lambda problems: any(problem.startswith(_DEAD) for problem in problems),
        show="; ".join,
        ignore=(HarnessError,),
    )
    if step.elastic:
        _power_cycle(run, plan, step)
    for cluster, nodes in _nodes_of(run, step):
        resume(cluster, nodes)
