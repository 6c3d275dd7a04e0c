"""A rehearsal: simulated users submit jobs while faults come and go; evidence goes to events.jsonl.

Evidence is recorded during the rehearsal (submissions, faults, and the states of nodes and jobs)
and once the clusters are idle: the trace of every execution, the records of every job in slurmctld
and accounting, and the usage of every association.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from harness import faults, interrupts, releases
from harness.cluster import logs, slurm
from harness.cluster.history import Recorder
from harness.cluster.slurm import FINISHED, JobKey, SlurmCluster
from harness.elastic import provisioning
from harness.errors import CannotVerify, ClusterError, CommandFailed, HarnessError, WaitTimeout
from harness.faults import Fault
from harness.open_run import OpenRun
from harness.rehearsal.invariants import SYMPTOMS, UNSAVED, UNSYNCED
from harness.rehearsal.workload import PlannedJob
from harness.scenario import ScheduledFault
from harness.ssh import Result
from harness.verify import job_events, job_trace
from harness.wait import wait_until

# Once all jobs are submitted and all faults are healed: seconds in which at least one more job must
# end (a requeued job waits for two minutes: AuthInfo=cred_expire), and seconds in which all must.
_LIMIT = 600
_LONGEST = 3600
# Seconds in which accounting must record another end.
_RECORDED = 180
# Seconds in which slurmctld must be reconfigured and reconnected; a failed attempt may take 25 s.
_RECONFIGURED = 300
# States of TCP connections that one end has closed or not yet opened: ss(8).
_HALF_OPEN = ("fin-wait-1", "fin-wait-2", "close-wait", "closing", "last-ack", "syn-sent")


def rehearse(run: OpenRun, jobs: Sequence[PlannedJob], schedule: Sequence[ScheduledFault]) -> None:
    """Submit jobs while faults come and go, wait until all jobs have ended, gather evidence."""
    planned_faults = [
        (entry, faults.parse(run.plan, run.provider, entry.fault)) for entry in schedule
    ]
    with rehearsing(run) as users:
        if any(entry.saved for entry in schedule):
            for cluster in users.clusters.values():
                save_usage(run, cluster)
        _submit_and_inject(run, users, jobs, planned_faults)


@dataclass
class Users:
    """Simulated users. `answers` has each job's id, None if it was not accepted."""

    run: OpenRun
    clusters: Mapping[str, SlurmCluster]
    recorders: Sequence[Recorder]
    token: str
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(8))
    answers: dict[int, Future[int | None]] = field(default_factory=dict)

    def name(self, job: PlannedJob) -> str:
        """Return the name with which a job is submitted."""
        return f"{self.token}-{job.number}"

    def submit(self, job: PlannedJob) -> None:
        """Submit a job in the background."""
        earlier = self.answers.get(job.after) if job.after is not None else None
        # If interrupted while a thread starts, the pool would not wait for that thread at the end.
        with interrupts.deferred():
            self.answers[job.number] = self.pool.submit(self._submit, job, earlier)

    def _submit(self, job: PlannedJob, earlier: Future[int | None] | None) -> int | None:
        name = self.name(job)
        options = [*job.options, f"--job-name={name}", "--output=/dev/null"]
        if earlier and (before := earlier.result()):
            options.append(f"--dependency=afterany:{before}")
        submitted = time.time()
        job_id, message = None, ""
        try:
            job_id = self.clusters[job.cluster].submit(
                job_trace.script(job.body), *options, user=job.user
            )
            answer = "accepted"
        except CommandFailed as error:
            message = error.stderr.strip()
            answer = "unknown" if any(words in message for words in slurm.UNCERTAIN) else "refused"
        except HarnessError as error:
            answer, message = "unknown", str(error)
        facts = {
            "job_id": job_id,
            "answer": answer,
            "message": message,
            "submitted": submitted,
            "answered": time.time(),
        }
        self.run.directory.event("submission", **asdict(job), name=name, **facts)
        return job_id


@contextmanager
def rehearsing(run: OpenRun) -> Iterator[Users]:
    """Simulate users who submit jobs; then heal all faults, let all jobs end, and gather evidence.

    Every job has the name TOKEN-NUMBER, because slurmctld may reuse an id after a crash.
    """
    token = f"r{secrets.token_hex(3)}"
    run.directory.event("rehearsal", action="begin", token=token, releases=run.plan.releases())
    clusters = slurm.clusters(run.ssh, run.plan)
    for name, cluster in clusters.items():
        for reservation in cluster.reservations():
            run.directory.event("reservation", cluster=name, name=reservation.name)
    with ExitStack() as stack:
        stack.enter_context(provisioning.manual_nodes_powered(run.plan, clusters, run.ssh))
        recorders = [
            stack.enter_context(Recorder(cluster, run.directory)) for cluster in clusters.values()
        ]
        users = Users(run, clusters, recorders, token)
        try:
            with users.pool:
                yield users
        finally:
            unhealed = faults.heal_all(run)
        for answer in users.answers.values():
            answer.result()
        if unhealed:
            raise HarnessError(f"not healed: {'; '.join(unhealed)}")
        run.say("waiting until every job has ended")
        _wait_until_settled(run, clusters, token)
    gather(run, clusters, token)
    run.directory.event("rehearsal", action="end", token=token)


def _submit_and_inject(
    run: OpenRun,
    users: Users,
    jobs: Sequence[PlannedJob],
    planned_faults: Sequence[tuple[ScheduledFault, Fault]],
) -> None:
    """Submit jobs, inject and heal faults at their times; a delay postpones all that follows."""
    changed: list[Future[None]] = []
    with ThreadPoolExecutor(1) as fault_thread:

        def change(what: Callable[[OpenRun, Fault], None], fault: Fault) -> None:
            for change_done in changed:
                if change_done.done():
                    change_done.result()
            run.say(f"{what.__name__.replace('_', ' ')} {fault}")
            with interrupts.deferred():
                changed.append(fault_thread.submit(what, run, fault))

        def inject(entry: ScheduledFault, fault: Fault) -> None:
            if entry.saved:
                _wait_until_saved(users)
            change(faults.inject_between_saves if entry.saved else faults.inject, fault)

        def inject_quietly(entry: ScheduledFault, fault: Fault) -> None:
            inject(entry, fault)
            changed[-1].result()
            time.sleep(entry.lasts)
            change(faults.heal, fault)
            changed[-1].result()
            _wait_until_closed(users)

        actions: list[tuple[float, Callable[[], None]]] = [
            (job.at, partial(users.submit, job)) for job in jobs
        ]
        for scheduled, fault in planned_faults:
            if scheduled.quiet:
                actions.append((scheduled.at, partial(inject_quietly, scheduled, fault)))
                continue
            actions.append((scheduled.at, partial(inject, scheduled, fault)))
            actions.append((scheduled.at + scheduled.lasts, partial(change, faults.heal, fault)))
        started = time.monotonic()
        for at, act in sorted(actions, key=lambda action: action[0]):
            time.sleep(max(0, started + at - time.monotonic()))
            before = time.monotonic()
            act()
            started += time.monotonic() - before
    for change_done in changed:
        change_done.result()


def save_usage(run: OpenRun, cluster: SlurmCluster) -> None:
    """Make slurmctld save the fair-share usage, on releases that do not start without it.

    slurmctld saves it every five minutes (PriorityCalcPeriod), and when it is reconfigured. Nobody
    should submit jobs to its federation in the meantime: a member that is being reconfigured blocks
    its siblings (docs/slurm-defects.md). If slurmctld holds locks at that moment ("Locks left
    set"), it continues with its old configuration, and the request is repeated. Return when it is
    connected with the same siblings as before.
    """

    def reconfigure() -> Result:
        check_daemons(run)
        return cluster.run("scontrol", "reconfigure", check=False)

    if releases.get(run.plan.releases()[cluster.name]).needs_saved_usage:
        before = _connected(cluster)
        with faults.noted(run, "reconfigure", [cluster.controller]):
            wait_until(
                reconfigure,
                lambda answer: answer.exit_code == 0,
                what=f"{cluster.name} to be reconfigured",
                timeout=_RECONFIGURED,
                ignore=(WaitTimeout,),
            )
            wait_until(
                lambda: _connected(cluster),
                lambda now: now >= before,
                what=f"{cluster.name} to be connected with {', '.join(sorted(before))}",
                timeout=_RECONFIGURED,
                ignore=(CommandFailed, WaitTimeout),
            )


def _wait_until_closed(users: Users) -> None:
    """Wait until both ends know which connections between controllers a fault has broken.

    After a cut, a member of a federation may have closed a connection that its sibling still has:
    TCP repeats the close at growing intervals, for as long again as the cut lasted. When the close
    arrives, the sibling closes its other connection too (_persist_callback_fini() in fed_mgr.c).
    What they send each other until then is lost or repeated. They connect again when they have
    something to send.
    """
    wait_until(
        lambda: half_open_connections([*users.clusters.values()]),
        lambda connections: not connections,
        what="broken connections between controllers to be closed at both ends",
        timeout=_RECONFIGURED,
        show="; ".join,
        ignore=(CommandFailed, WaitTimeout),
    )


def half_open_connections(clusters: Sequence[SlurmCluster]) -> list[str]:
    """Return the TCP connections between controllers that one end has closed or not yet opened."""
    connections = []
    for cluster in clusters:
        others = [other.controller for other in clusters if other is not cluster]
        if not others:
            continue
        states = " ".join(f"state {state}" for state in _HALF_OPEN)
        peers = " or ".join(f"dst {other}" for other in others)
        command = f"ss --no-header --numeric --tcp {states} '( {peers} )'"
        connections += [
            f"{cluster.controller}: {' '.join(line.split())}"
            for line in cluster.run("sh", "-c", command).stdout.splitlines()
        ]
    return connections


def _connected(cluster: SlurmCluster) -> set[str]:
    return {sibling.cluster for sibling in cluster.siblings() if sibling.synced}


def _wait_until_saved(users: Users) -> None:
    """Wait until every slurmctld has been idle long enough to have saved its state.

    ClusterError names a daemon that has failed.
    """

    def is_saved() -> bool:
        check_daemons(users.run)
        resting = all(recorder.jobs_rested() > UNSAVED + 2 for recorder in users.recorders)
        answered = all(answer.done() for answer in users.answers.values())
        return resting and answered and not unsent(users.run, users.clusters.values())

    what = "every slurmctld to have saved its state"
    wait_until(
        is_saved,
        bool,
        what=what,
        timeout=_LIMIT,
        interval=1,
        ignore=(CommandFailed, WaitTimeout),
    )


def unsent(run: OpenRun, clusters: Iterable[SlurmCluster]) -> list[str]:
    """Return the clusters whose slurmctld has messages for a slurmdbd that no fault affects.

    It would lose them if it were killed: it saves them only when it is stopped (_agent() in
    slurmdbd_agent.c).
    """
    affected = faults.affected(run)
    database_hosts = (*run.plan.with_daemon("slurmdbd"), *run.plan.with_daemon("mariadb"))
    if affected.intersection(host.name for host in database_hosts):
        return []
    return [
        cluster.name
        for cluster in clusters
        if cluster.controller not in affected and cluster.waiting_for_slurmdbd()
    ]


def check_daemons(run: OpenRun) -> None:
    """Raise ClusterError if a controller or database has failed without a fault on its host."""
    affected = faults.affected(run)
    hosts = [host.name for host in run.plan.hosts if host.name not in affected]
    if failed := faults.failed_daemons(run, hosts):
        raise ClusterError("; ".join(failed))


def _wait_until_settled(run: OpenRun, clusters: Mapping[str, SlurmCluster], token: str) -> None:
    """Wait until all jobs have ended and are recorded; the checkers report those that have not.

    ClusterError names a daemon that has failed.
    """
    waits = [("every job to end", _LIMIT, partial(_unsettled, run, clusters, token))]
    if run.plan.scenario.accounting:
        waits.append(("accounting to record it", _RECORDED, partial(_unrecorded, clusters, token)))
    for what, patience, look in waits:
        try:
            wait_until(
                partial(_left_or_error, run, look),
                lambda left: left == [],
                what=what,
                timeout=_LONGEST,
                give_up=_standstill(patience),
                interval=1,
                show=lambda left: (
                    str(left) if isinstance(left, HarnessError) else "; ".join(left[:5])
                ),
            )
        except WaitTimeout as error:
            run.say(str(error))


def _unsettled(run: OpenRun, clusters: Mapping[str, SlurmCluster], token: str) -> list[str]:
    """Return the jobs that have not ended, and the records that have not reached slurmdbd.

    slurmctld forwards its records every five seconds, and does not count those that it has not
    begun to send.
    """
    left = []
    jobs_of = {name: cluster.jobs("--local") for name, cluster in clusters.items()}
    copies = slurm.left_copies(jobs_of)
    for name, cluster in clusters.items():
        left += [
            f"{name} {job.job_id} {job.state} {job.reason}"
            for job in jobs_of[name]
            if job.name.startswith(f"{token}-")
            and job.state not in FINISHED
            and job.job_id not in copies[name]
        ]
        if run.plan.scenario.accounting and (waiting := cluster.waiting_for_slurmdbd()):
            left.append(f"{name}: {waiting} messages for slurmdbd")
    return left


def _unrecorded(clusters: Mapping[str, SlurmCluster], token: str) -> list[str]:
    """Return the jobs that have ended, but whose end is not in accounting."""
    left = []
    for name, cluster in clusters.items():
        ended = {
            job.job_id
            for job in cluster.jobs("--local")
            if job.name.startswith(f"{token}-") and job.state in FINISHED
        }
        recorded = {
            record.job_id
            for record in cluster.records_of_all("--local", "--allocations")
            if record.state in FINISHED
        }
        left += [f"{name} {job_id}" for job_id in sorted(ended - recorded)]
    return left


def _left_or_error(run: OpenRun, look: Callable[[], list[str]]) -> list[str] | HarnessError:
    """Return what is left, or an error that may be gone at the next attempt."""
    try:
        check_daemons(run)
        return look()
    except (CommandFailed, WaitTimeout, CannotVerify) as error:
        return error


def _standstill(patience: float) -> Callable[[list[str] | HarnessError], bool]:
    """Return a function that reports whether the list has not shrunk for `patience` seconds."""
    least, since = math.inf, time.monotonic()

    def is_standstill(left: list[str] | HarnessError) -> bool:
        nonlocal least, since
        if not isinstance(left, HarnessError) and len(left) < least:
            least, since = len(left), time.monotonic()
        return time.monotonic() - since > patience

    return is_standstill


def gather(run: OpenRun, clusters: Mapping[str, SlurmCluster], token: str) -> None:
    """Record the evidence of a rehearsal's jobs, and which evidence is not available."""
    ran: set[JobKey] = set()

    def note(kind: str, where: str, look: Callable[..., Iterable[Any]], *options: str) -> None:
        try:
            records = [*look(*options)]
        except HarnessError as error:
            run.directory.event("no_evidence", of=kind, where=where, why=str(error))
            return
        ran.update(record.key for record in records if kind == "trace")
        for record in records:
            if kind == "usage" or record.name.startswith(f"{token}-"):
                run.directory.event(kind, **{"seen_by": where, **asdict(record)})

    for host in run.plan.permanent_hosts():
        if host.nodes or host.with_elastic:  # it shares the traces of hosts that may be gone
            note("trace", host.name, partial(job_trace.collect, run.ssh, [host.name]))
    for name, cluster in clusters.items():
        note("queue", name, cluster.jobs, "--local")
        if run.plan.scenario.accounting:
            note("record", name, cluster.records_of_all, "--local", "--allocations")
            note("usage", name, cluster.usage)
    with suppress(HarnessError):
        for (cluster_name, job_id), times in job_events.logged_times(run.ssh, run.plan).items():
            if (cluster_name, job_id) in ran:
                run.directory.event("log_times", cluster=cluster_name, job_id=job_id, times=times)
    _note_symptoms(run)  # last, so that it finds what explains the rest


def _note_symptoms(run: OpenRun) -> None:
    """Record log lines that show known bugs in Slurm, so that the checkers can name the bug."""
    for host in run.plan.permanent_hosts():
        for daemon, words in SYMPTOMS.items():
            paths = logs.log_files(run.plan, host, daemon) if daemon in host.daemons else []
            with suppress(HarnessError):
                words_of = [f"--regexp={text}" for text in words]
                command = ["grep", "--no-filename", "--no-messages", *words_of, *paths]
                lines = run.ssh.run(host.name, command, check=False).stdout if paths else ""
                for line in lines.splitlines():
                    run.directory.event("log", seen_by=host.name, daemon=daemon, line=line)
        runs_slurmctld = "slurmctld" in host.daemons
        for path in logs.log_files(run.plan, host, "slurmctld") if runs_slurmctld else []:
            with suppress(HarnessError):
                end = run.ssh.run(host.name, ["tail", "-n", "20", path], check=False).stdout
                if UNSYNCED in end:
                    line = f"{host.cluster}: {UNSYNCED}"
                    run.directory.event("log", seen_by=host.name, daemon="slurmctld", line=line)
