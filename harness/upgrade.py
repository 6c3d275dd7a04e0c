"""A rehearsed upgrade: slurmdbd, then the controllers, then the nodes in batches, while users keep submitting jobs.

That order, and which releases can be upgraded to which: slurm.schedmd.com/upgrades.html. To upgrade a host, the harness
recreates it with the newer release and carries its data over: a dump of the database, slurmctld's state, logs and
witnesses. After each step a gate waits until the clusters work again; if it stays shut, the step is rolled back: the
old host comes back with its data.
"""

from __future__ import annotations

import math
import shlex
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from harness import checkers, elastic, faults, hostlist, lifecycle, options, past, releases, report, slurm
from harness.checkers import Finding
from harness.errors import ClusterError, CommandFailed, HarnessError, UsageError
from harness.lifecycle import Judged
from harness.live import Live
from harness.plan import SHARED_DIRECTORY, Host, Plan
from harness.rehearsal import Users, rehearsing
from harness.render import render
from harness.report import Check, Report
from harness.slurm import FINISHED, SlurmCluster
from harness.wait import wait_until
from harness.workload import Work

# Jobs before the first step, and after the last one.
_BEFORE, _AFTER = 15, 15
_DUMPS = "/var/lib/slurm-harness-dumps"
# Deadline in seconds of a step's waits, such as for a job's end; a large database may take longer.
_PATIENCE = 300
_DEAD = "dead: "
# Seconds after a job's end in which its record may still change: when it is requeued, or slurmctld is behind.
_FINAL = 20
_NAMES = """mariadb -N -B -e 'SHOW DATABASES' | grep -vxE 'mysql|sys|(information|performance)_schema'"""
_DUMP = f"""set -eu; umask 077; mkdir -p {_DUMPS}
    names=$({_NAMES})
    mariadb-dump --single-transaction --routines --databases $names > {_DUMPS}/dump.sql"""
# Generates what users submit, from the plan of a run that is up.
MakeWorks = Callable[[Plan], Sequence[Work]]
_LOAD = rf"""set -eu
    for database in $({_NAMES}); do mariadb -e "DROP DATABASE \`$database\`"; done
    mariadb < {_DUMPS}/dump.sql"""


@dataclass(frozen=True, slots=True)
class Step:
    """Hosts that are upgraded together. `nodes` are drained first, and resumed afterwards."""

    name: str
    hosts: tuple[str, ...]
    cluster: str | None = None
    nodes: tuple[str, ...] = ()


def plan_upgrade(live: Live, choices: Sequence[str]) -> Plan:
    """Return the plan of a run on other releases; `choices` name them as `--release` does.

    UsageError if the harness cannot do the upgrade, or Slurm does not support it; the hint is the shortest way.
    """
    if not live.plan.offers.engine or live.plan.offers.own_kernel:
        raise UsageError("an upgrade is rehearsed on hosts that can be recreated: --provider docker")
    new = live.run.plan(choices)
    older, newer = live.plan.releases(), new.releases()
    for name, release in newer.items():
        way = releases.upgrade_path(older[name], release)
        if release < older[name]:
            raise UsageError(f"{name} is on {older[name]}: Slurm cannot be downgraded to {release}")
        if len(way) > 2:
            served = ", ".join(releases.get(release).serves[:-1])
            raise UsageError(
                f"{name}: Slurm {release} supports upgrades from {served}, not from {older[name]}",
                hint=f"the shortest way is {' -> '.join(way)}",
            )
    if older == newer:
        raise UsageError(f"all parts are already on {', '.join(sorted({*newer.values()}))}")
    changed = _changed(live.plan, new)
    if own := [host.name for host in changed if host.image]:
        raise UsageError(f"{', '.join(own)}: to upgrade a host with an image of your own, name another image")
    if going := [host.name for host in changed if host.provision != "static"]:
        raise UsageError(f"{hostlist.fold(going)}: hosts that come and go cannot be upgraded yet")
    return new


def known_faults(old: Plan, new: Plan) -> list[str]:
    """Return Slurm's known faults during the upgrade, while slurmdbd is newer than the clusters."""
    if not new.scenario.accounting:
        return []
    between = replace(old, scenario=old.scenario.put_on([f"slurmdbd={new.releases()['slurmdbd']}"]))
    return between.known_faults()


def steps(old: Plan, new: Plan, batches: int = 2) -> list[Step]:
    """Return the steps in the order that Slurm requires; the nodes of each cluster are split into `batches`."""
    left = {host.name: host for host in _changed(old, new)}

    def take(name: str, hosts: Sequence[Host], cluster: str | None) -> Iterator[Step]:
        there = [left.pop(host.name) for host in hosts if host.name in left]
        if there:
            yield Step(
                name, tuple(host.name for host in there), cluster, tuple(node for host in there for node in host.nodes)
            )

    found = [*take("slurmdbd", old.with_daemon("slurmdbd"), None)]
    for cluster in old.scenario.clusters:
        controllers = [host for host in old.with_daemon("slurmctld") if host.cluster == cluster]
        found += take(f"slurmctld of {cluster}", controllers, cluster)
    for cluster in old.scenario.clusters:
        hosts = [host for host in left.values() if host.cluster == cluster]
        size = math.ceil(len(hosts) / batches)
        for first in range(0, len(hosts), size or 1):
            batch = hosts[first : first + size]
            found += take(f"nodes {hostlist.fold(host.name for host in batch)}", batch, cluster)
    return found


def _host(plan: Plan, name: str) -> Host:
    return next(host for host in plan.hosts if host.name == name)


def _with_daemon(live: Live, step: Step, daemon: str) -> list[str]:
    """Return the hosts of a step that run a daemon."""
    return [host.name for host in live.plan.with_daemon(daemon) if host.name in step.hosts]


def _changed(old: Plan, new: Plan) -> list[Host]:
    return [host for host, other in zip(old.hosts, new.hosts, strict=True) if host.release != other.release]


def run(
    live: Live,
    choices: Sequence[str],
    works: MakeWorks,
    batches: int = 2,
    own: past.Past | None = None,
    *,
    keep: bool = False,
    directory: Path | None = None,
) -> Report:
    """Bring a run up, upgrade it while users submit jobs, take it down and report; `keep` leaves the hosts up.

    `choices` are the releases to upgrade to, as for --release; `own` is a past to load before.
    """
    plan_upgrade(live, choices)

    def judge(judged: Judged) -> None:
        with lifecycle.provisioned(live, keep=keep), lifecycle.logs_collected(live):
            opened = lifecycle.give_past(live, own) if own else live
            lifecycle.deploy(opened)
            _judge(opened, choices, works, batches, judged)

    return lifecycle.reported(live, judge, directory)


def run_kept(
    live: Live, choices: Sequence[str], works: MakeWorks, batches: int = 2, directory: Path | None = None
) -> Report:
    """Upgrade a run that is up while users submit jobs, and report."""
    plan_upgrade(live, choices)

    def judge(judged: Judged) -> None:
        with lifecycle.logs_collected(live):
            _judge(live, choices, works, batches, judged)

    return lifecycle.reported(live, judge, directory)


def _judge(live: Live, choices: Sequence[str], works: MakeWorks, batches: int, judged: Judged) -> None:
    """Upgrade a run; its checks are the steps, and the checkers of the rehearsal."""
    new = plan_upgrade(live, choices)
    for fault in known_faults(live.plan, new):
        live.say(f"known fault of Slurm during this upgrade: {fault}")
    begin = len(list(live.run.events()))
    try:
        with lifecycle.stage(live, "upgrade"):
            upgrade(live, new, works(live.plan), batches)
        judged.checks = promises(checkers.judge(checkers.read(live.run.events(), live.run.plan())))
    except ClusterError:
        # A failed step is a failed check. Any other error says nothing about the clusters.
        if not any(check.outcome == "failed" for check in _steps_of(live, begin)):
            raise
    finally:
        judged.checks = [*_steps_of(live, begin), *judged.checks]
        report.write_junit(judged.checks, live.run.path / "junit.xml")
        judged.facts = _facts(live, new)
        try:
            judged.jobs = lifecycle.jobs(live)
        except HarnessError as error:
            live.say(f"the report lists no jobs: {error}")


def promises(findings: Iterable[Finding]) -> list[Check]:
    """Return checkers' findings as checks of a report."""
    outcomes = {report.UNKNOWN: "error"}
    return [
        Check(
            f"rehearsal::{one.name}",
            outcomes.get(one.outcome, one.outcome),
            0,
            "\n".join([*one.problems, *(f"excused: {text}" for text in one.excused)]),
        )
        for one in findings
    ]


def _steps_of(live: Live, begin: int) -> list[Check]:
    """Return the steps done since the event with index `begin`, as checks."""
    events = (event for event in list(live.run.events())[begin:] if event["kind"] == "check")
    return [Check(event["id"], event["outcome"], event["seconds"], event["message"]) for event in events]


def _facts(live: Live, new: Plan) -> dict[str, Any]:
    """Return the fields of a report that differ between an upgrade and a run."""
    now, older = live.run.plan(), live.plan.releases()
    ways = [f"{name}={release}:{new.releases()[name]}" for name, release in older.items()]
    if len({way.partition("=")[2] for way in ways}) == 1:
        ways = [ways[0].partition("=")[2]]
    scenario = live.run.scenario_path
    return {
        "description": f"{live.plan.scenario.description} Upgraded while users submit jobs: {', '.join(ways)}.".strip(),
        "releases": now.releases(),
        "layout": report.layout(now),
        "known_faults": [*live.plan.known_faults(), *known_faults(live.plan, new)],
        "command": shlex.join(["harness", "upgrade", scenario, *(word for way in ways for word in ("--to", way))]),
    }


def upgrade(live: Live, new: Plan, works: Sequence[Work], batches: int = 2) -> None:
    """Upgrade a run step by step while users submit jobs; then wait until all jobs have ended, and gather the evidence.

    ClusterError names the step whose gate stayed shut; only that step has been rolled back.
    """
    live.provider.prepare(new, live.say)
    interrupted = threading.Event()

    def go() -> None:
        since = time.time() - _FINAL
        remember(since)
        todo = steps(live.plan, new, batches)
        for number, step in enumerate(todo, 1):
            if interrupted.is_set():
                return
            _do_noted(live, new, step)
            parts = {step.cluster or "slurmdbd" for step in todo[:number]}
            done = parts - {step.cluster or "slurmdbd" for step in todo[number:]}
            live.run.upgraded(live.run.plan([f"{part}={new.releases()[part]}" for part in sorted(done)]))
        live.run.upgraded(new)
        live.run.write_tree(render(new))
        remember(since)

    def remember(since: float) -> None:
        """Record the old jobs in the database, before the first step and after the last one."""
        for cluster, tables in past.remembered(live, since).items() if live.plan.scenario.accounting else ():
            live.run.event("past", cluster=cluster, tables=tables)

    with rehearsing(live) as users, ThreadPoolExecutor(1) as administrator:
        try:
            _submit_meanwhile(users, works, lambda: administrator.submit(go))
        except BaseException:
            interrupted.set()  # the current step is finished first
            raise


def _submit_meanwhile(users: Users, works: Sequence[Work], begin: Callable[[], Future[None]]) -> None:
    """Submit jobs, call `begin` after the first few, and submit until a few more came after its end.

    If there are too few jobs, `begin` is called after the last one.
    """
    doing: Future[None] | None = None
    after = _AFTER
    started = time.monotonic()
    for work in works:
        time.sleep(max(0, started + work.at - time.monotonic()))
        users.submit(work)
        if work.number + 1 == _BEFORE:
            doing = begin()
        if doing and doing.done():
            doing.result()
            after -= 1
            if not after:
                return
    (doing or begin()).result()


def _do_noted(live: Live, new: Plan, step: Step) -> None:
    """Do a step, and record its outcome as that of a check."""
    live.say(f"upgrade of {step.name}")
    before = time.monotonic()
    outcome, message = "error", ""
    try:
        _do(live, new, step)
        outcome = "passed"
    except HarnessError as error:
        outcome, message = "failed" if isinstance(error, ClusterError) else "error", str(error)
        raise
    finally:
        seconds = round(time.monotonic() - before, 1)
        live.run.event("check", id=f"upgrade::{step.name}", outcome=outcome, seconds=seconds, message=message)
        live.say(f"{outcome:7} upgrade of {step.name} ({seconds} s)")


def _do(live: Live, new: Plan, step: Step) -> None:
    before = time.monotonic()
    keep = live.run.path / "upgrade"
    keep.mkdir(mode=0o700, exist_ok=True)
    with faults.noted(live, "upgrade", step.hosts):
        known = _unfinished(live, step)
        _drain(live, step)
        _stop_daemons(live, step)
        directories = {host: _to_carry(live, host) for host in step.hosts}
        for host, carried in directories.items():
            live.provider.stop(live.run.id, host)
            for number, directory in enumerate(carried):
                live.provider.fetch(live.run.id, host, directory, keep / f"{host}.{number}.tar")
        try:
            _remake(live, step, new, directories)
            _gate(live, step, known)
        except HarnessError as error:
            live.say(f"{step.name}: {error}; rolling back")
            for host in step.hosts:
                with suppress(HarnessError):  # it may not even be there
                    live.provider.fetch(live.run.id, host, "/var/log/slurm", keep / f"{host}.failed.tar")
            _remake(live, step, live.plan, directories)
            _gate(live, step, set())
            raise ClusterError(f"{step.name} could not be upgraded and was rolled back: {error}") from error
    for host, carried in directories.items():
        for number in range(len(carried)):
            (keep / f"{host}.{number}.tar").unlink()
    live.run.event("upgrade", step=step.name, seconds=round(time.monotonic() - before, 1))


def _unfinished(live: Live, step: Step) -> set[int]:
    """Return the jobs that must survive the upgrade of a cluster's controller."""
    if step.cluster is None or not _with_daemon(live, step, "slurmctld"):
        return set()
    cluster = slurm.clusters(live.ssh, live.plan)[step.cluster]
    return {job.job_id for job in cluster.jobs("--local") if job.state not in FINISHED}


def _drain(live: Live, step: Step) -> None:
    """Drain the step's nodes, and wait for the jobs that they run."""
    for cluster, nodes in _nodes_of(live, step):
        cluster.run("scontrol", "update", f"NodeName={hostlist.fold(nodes)}", "State=DRAIN", "Reason=upgrade")
        wait_until(
            partial(_states, cluster, nodes),
            lambda states: all({*state.split("+")} >= {"IDLE", "DRAIN"} for state in states.values()),
            what=f"{hostlist.fold(nodes)} to drain",
            timeout=_PATIENCE,
            ignore=(CommandFailed,),
        )


def _nodes_of(live: Live, step: Step) -> Iterator[tuple[SlurmCluster, list[str]]]:
    """Yield the clusters that have nodes on the step's hosts, with these nodes."""
    for name, cluster in slurm.clusters(live.ssh, live.plan).items():
        if nodes := [node for node in live.plan.hosts_of(name) if node in step.nodes]:
            yield cluster, nodes


def _states(cluster: SlurmCluster, nodes: Sequence[str]) -> dict[str, str]:
    return {one.name: one.state for one in cluster.nodes() if one.name in nodes}


def _stop_daemons(live: Live, step: Step) -> None:
    """Stop the daemons that write: a backup first, or it would take over. Then dump the database."""
    for daemon in ("slurmdbd", "slurmctld"):
        for host in reversed(_with_daemon(live, step, daemon)):
            live.ssh.run(host, ["systemctl", "stop", daemon], timeout=_PATIENCE)
    for host in _with_daemon(live, step, "mariadb"):
        live.ssh.run(host, ["sh", "-c", _DUMP], timeout=past.PATIENCE)


def _to_carry(live: Live, name: str) -> list[str]:
    """Return the directories to carry over to a host's successor; those on disks of their own outlive the host."""
    host = _host(live.plan, name)
    wanted = ["/var/log/slurm", SHARED_DIRECTORY]
    if "mariadb" in host.daemons:
        wanted.append(_DUMPS)
    if "slurmctld" in host.daemons and host.cluster:
        conf = options.slurm_conf(live.plan.scenario, host.cluster, live.plan.offers)
        wanted.append(options.state_save_location(conf))
    disks = {volume.directory for volume in host.volumes}
    there = live.ssh.run(name, ["sh", "-c", f"ls -d {shlex.join(wanted)} 2> /dev/null; true"]).stdout.split()
    return [directory for directory in wanted if directory in there and directory not in disks]


def _remake(live: Live, step: Step, plan: Plan, directories: dict[str, list[str]]) -> None:
    """Recreate the step's hosts from a plan with their predecessors' directories, and start them."""
    run = live.run
    tree, secrets = render(plan), run.secrets()

    def remake(name: str) -> None:
        host = _host(plan, name)
        # slurmdbd must not see a database before it is the one that was dumped.
        daemons = tuple(daemon for daemon in host.daemons if daemon != "slurmdbd")
        live.provider.remove(run.id, name)
        live.provider.make(run, plan, [replace(host, daemons=daemons)], {name: elastic.files_of(tree, name, secrets)})
        for number, directory in enumerate(directories[name]):
            live.provider.put(run.id, name, directory, run.path / "upgrade" / f"{name}.{number}.tar")
        live.start_host(name)
        if "mariadb" in host.daemons:
            wait_until(
                lambda: live.ssh.run(name, ["mariadb", "-e", "SELECT 1"], check=False).exit_code,
                lambda code: code == 0,
                what=f"MariaDB on {name} to answer",
                timeout=_PATIENCE,
            )
            live.ssh.run(name, ["sh", "-c", _LOAD], timeout=past.PATIENCE)
        if "slurmdbd" in host.daemons:
            live.ssh.run(name, ["systemctl", "enable", "--now", "slurmdbd"], timeout=past.PATIENCE)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(remake, step.hosts))


def _dead(live: Live, step: Step) -> list[str]:
    """Return the daemons of a step that systemd says have failed."""
    found = []
    for daemon in ("slurmdbd", "slurmctld"):
        for host in _with_daemon(live, step, daemon):
            state = live.ssh.run(host, ["systemctl", "is-active", daemon], check=False).stdout.strip()
            found += [f"{_DEAD}{daemon} on {host}"] if state == "failed" else []
    return found


def _gate(live: Live, step: Step, known: set[int]) -> None:
    """Wait until daemons, nodes, jobs and federations are back after a step; WaitTimeout names what is missing."""
    clusters = slurm.clusters(live.ssh, live.plan)

    def missing() -> list[str]:
        if dead := _dead(live, step):
            return dead
        found = []
        for cluster in clusters.values():
            if live.plan.scenario.accounting:
                cluster.run("sacctmgr", "--noheader", "--parsable2", "show", "cluster")
            bad = {"DOWN", "NOT_RESPONDING", "UNKNOWN", "FAIL"}
            found += [f"{one.name} {one.state}" for one in cluster.nodes() if bad & {*one.state.split("+")}]
        if known:
            # A federated job may have started on another cluster, which revokes the copy.
            there = {job.job_id for cluster in clusters.values() for job in cluster.jobs("--local")}
            found += [f"no slurmctld knows job {job_id}" for job_id in sorted(known - there)]
        for federation in live.plan.scenario.federations.values():
            for name in federation.clusters:
                found += [f"{name} - {one.cluster}" for one in clusters[name].siblings() if not one.synced]
        return found

    wait_until(
        missing,
        lambda found: not found,
        what=f"the gate of {step.name} to open",
        timeout=past.PATIENCE if _with_daemon(live, step, "slurmdbd") else _PATIENCE,
        hopeless=lambda found: any(one.startswith(_DEAD) for one in found),
        show="; ".join,
        ignore=(HarnessError,),
    )
    for cluster, nodes in _nodes_of(live, step):
        cluster.run("scontrol", "update", f"NodeName={hostlist.fold(nodes)}", "State=RESUME")
