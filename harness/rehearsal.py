"""A rehearsal: users submit while faults come and go; all that is seen of it goes to events.jsonl, to be judged later.

What counts as evidence, besides submissions, faults and states seen on the way: the witness of every execution, what
slurmctld and accounting say of every job, and the usage of every association, all of it once the clusters are at rest.
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

from harness import faults, logs, releases, slurm, witness
from harness.checkers import SYMPTOMS, UNSAVED
from harness.errors import CannotJudge, ClusterError, CommandFailed, HarnessError, WaitTimeout
from harness.faults import Fault
from harness.history import Recorder
from harness.live import Live
from harness.scenario import ScheduledFault
from harness.slurm import FINISHED, SlurmCluster
from harness.ssh import Result
from harness.wait import wait_until
from harness.workload import Work

# Seconds in which a further job ends, once the last one is submitted and all faults are healed: one that is requeued
# waits for two minutes (AuthInfo=cred_expire). And seconds that all of them have.
_LIMIT = 600
_LONGEST = 3600
# Seconds in which accounting knows it.
_RECORDED = 60
# Seconds in which slurmctld is reconfigured and connected again; an attempt that fails may take 25 s.
_RECONFIGURED = 300
# Where sbatch says this, slurmctld may have taken the job all the same.
_UNCERTAIN = ("timed out", "Zero Bytes", "Connection reset", "Unable to contact", "Unexpected message")


def rehearse(live: Live, works: Sequence[Work], schedule: Sequence[ScheduledFault]) -> None:
    """Submit works while faults come and go, wait until all jobs have ended, and gather the evidence."""
    planned = [(one, faults.parse(live.plan, one.fault)) for one in schedule]
    with rehearsing(live) as users:
        if any(one.saved for one in schedule):
            for cluster in users.clusters.values():
                save_usage(live, cluster)
        _act(live, users, works, planned)


@dataclass
class Users:
    """Those who submit, and what they were answered: the ids of the works, None where there is none."""

    live: Live
    clusters: Mapping[str, SlurmCluster]
    recorders: Sequence[Recorder]
    token: str
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(8))
    answers: dict[int, Future[int | None]] = field(default_factory=dict)

    def submit(self, work: Work) -> None:
        """Have one of them submit a work."""
        earlier = self.answers.get(work.after) if work.after is not None else None
        self.answers[work.number] = self.pool.submit(self._submit, work, earlier)

    def _submit(self, work: Work, earlier: Future[int | None] | None) -> int | None:
        name = f"{self.token}-{work.number}"
        options = [*work.options, f"--job-name={name}", "--output=/dev/null"]
        if earlier and (before := earlier.result()):
            options.append(f"--dependency=afterany:{before}")
        asked = time.time()
        job_id, said = None, ""
        try:
            job_id = self.clusters[work.cluster].submit(witness.script(work.body), *options, user=work.user)
            answer = "accepted"
        except CommandFailed as error:
            said = error.stderr.strip()
            answer = "unknown" if any(words in said for words in _UNCERTAIN) else "refused"
        except HarnessError as error:
            answer, said = "unknown", str(error)
        facts = {"job_id": job_id, "answer": answer, "said": said, "asked": asked, "answered": time.time()}
        self.live.run.event("submission", **asdict(work), name=name, **facts)
        return job_id


@contextmanager
def rehearsing(live: Live) -> Iterator[Users]:
    """Have users submit while this is entered; then heal all faults, let all jobs end, and gather the evidence.

    Every job has the name TOKEN-NUMBER: after a crash slurmctld may give an id again.
    """
    token = f"r{secrets.token_hex(3)}"
    live.run.event("rehearsal", action="begin", token=token)
    clusters = slurm.clusters(live.ssh, live.plan)
    for name, cluster in clusters.items():
        for reservation in cluster.reservations():
            live.run.event("reservation", cluster=name, name=reservation.name)
    with ExitStack() as entered:
        recorders = [entered.enter_context(Recorder(one, live.run, interval=0.5)) for one in clusters.values()]
        users = Users(live, clusters, recorders, token)
        try:
            with users.pool:
                yield users
        finally:
            left = faults.heal_all(live)
        for answer in users.answers.values():
            answer.result()
        if left:
            raise HarnessError(f"not healed: {'; '.join(left)}")
        live.say("waiting until every job has ended")
        _settle(live, clusters, token)
    gather(live, clusters, token)
    live.run.event("rehearsal", action="end", token=token)


def _act(live: Live, users: Users, works: Sequence[Work], planned: Sequence[tuple[ScheduledFault, Fault]]) -> None:
    """Do at its time what is to be done; where something has to wait, all that comes after it waits as long."""
    changed: list[Future[None]] = []
    with ThreadPoolExecutor(1) as breaker:

        def change(what: Callable[[Live, Fault], None], fault: Fault) -> None:
            for one_changed in changed:
                if one_changed.done():
                    one_changed.result()
            live.say(f"{what.__name__.replace('_', ' ')} {fault}")
            changed.append(breaker.submit(what, live, fault))

        def inject(one: ScheduledFault, fault: Fault) -> None:
            if one.saved:
                _wait_until_saved(users)
            change(faults.inject_between_saves if one.saved else faults.inject, fault)

        def meanwhile_quiet(one: ScheduledFault, fault: Fault) -> None:
            inject(one, fault)
            changed[-1].result()
            time.sleep(one.lasts)
            change(faults.heal, fault)
            changed[-1].result()

        actions: list[tuple[float, Callable[[], None]]] = [(work.at, partial(users.submit, work)) for work in works]
        for one, fault in planned:
            if one.quiet:
                actions.append((one.at, partial(meanwhile_quiet, one, fault)))
                continue
            actions.append((one.at, partial(inject, one, fault)))
            actions.append((one.at + one.lasts, partial(change, faults.heal, fault)))
        started = time.monotonic()
        for at, act in sorted(actions, key=lambda action: action[0]):
            time.sleep(max(0, started + at - time.monotonic()))
            before = time.monotonic()
            act()
            started += time.monotonic() - before
    for one_changed in changed:
        one_changed.result()


def save_usage(live: Live, cluster: SlurmCluster) -> None:
    """Have slurmctld save fair-share's usage, where it does not start without it.

    By itself it does so every five minutes (PriorityCalcPeriod), and when it is reconfigured. Nobody should
    submit to its federation meanwhile: a member that is reconfigured holds up its siblings (docs/rehearsal.md).
    If slurmctld holds locks at that moment ("Locks left set") it continues with its old configuration, and the
    request is repeated. Returns when it is as connected with its federation as before.
    """

    def reconfigure() -> Result:
        check_daemons(live)
        return cluster.run("scontrol", "reconfigure", check=False)

    if releases.get(live.plan.releases()[cluster.name]).wants_saved_usage:
        before = _connected(cluster)
        with faults.noted(live, "reconfigure", [cluster.controller]):
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


def _connected(cluster: SlurmCluster) -> set[str]:
    return {sibling.cluster for sibling in cluster.siblings() if sibling.synced}


def _wait_until_saved(users: Users) -> None:
    """Wait until no slurmctld has learned anything for so long that it has saved all it knows.

    ClusterError names a daemon that has failed.
    """

    def is_saved() -> bool:
        check_daemons(users.live)
        resting = all(recorder.jobs_rested() > UNSAVED + 2 for recorder in users.recorders)
        return resting and all(answer.done() for answer in users.answers.values())

    what = "a moment when every slurmctld has saved what it knows"
    wait_until(is_saved, bool, what=what, timeout=_LIMIT, interval=1)


def check_daemons(live: Live) -> None:
    """Raise ClusterError if a controller or database has failed on a host without an active fault."""
    affected = faults.affected(live)
    hosts = [host.name for host in live.plan.hosts if host.name not in affected]
    if failed := faults.failed_daemons(live, hosts):
        raise ClusterError("; ".join(failed))


def _settle(live: Live, clusters: Mapping[str, SlurmCluster], token: str) -> None:
    """Wait until all jobs have ended, and accounting knows it; that they do not is for the checkers to say.

    ClusterError names a daemon that has failed.

    slurmctld sends its records on every five seconds, and does not count what it has not begun to send.
    """

    def unsettled() -> list[str]:
        left = []
        there = {name: cluster.jobs("--local") for name, cluster in clusters.items()}
        copies = slurm.left_copies(there)
        for name, cluster in clusters.items():
            left += [
                f"{name} {job.job_id} {job.state} {job.reason}"
                for job in there[name]
                if job.name.startswith(f"{token}-") and job.state not in FINISHED and job.job_id not in copies[name]
            ]
            if live.plan.scenario.accounting and (waiting := cluster.waiting_for_slurmdbd()):
                left.append(f"{name}: {waiting} messages for slurmdbd")
        return left

    def unrecorded() -> list[str]:
        left = []
        for name, cluster in clusters.items():
            ended = {
                job.job_id
                for job in cluster.jobs("--local")
                if job.name.startswith(f"{token}-") and job.state in FINISHED
            }
            known = {one.job_id for one in cluster.records("--local", "--allocations") if one.state in FINISHED}
            left += [f"{name} {job_id}" for job_id in sorted(ended - known)]
        return left

    def watched(look: Callable[[], list[str]]) -> list[str]:
        check_daemons(live)
        return look()

    waits = [("every job to end", _LIMIT, unsettled)]
    if live.plan.scenario.accounting:
        waits.append(("accounting to have its end", _RECORDED, unrecorded))
    for what, patience, look in waits:
        try:
            wait_until(
                partial(_or_error, partial(watched, look)),
                lambda left: left == [],
                what=what,
                timeout=_LONGEST,
                hopeless=_standstill(patience),
                interval=1,
                show=lambda left: str(left) if isinstance(left, HarnessError) else "; ".join(left[:5]),
            )
        except WaitTimeout as error:
            live.say(str(error))


def _or_error(look: Callable[[], list[str]]) -> list[str] | HarnessError:
    """Return what is left, or the error of a command or host that may answer the next time."""
    try:
        return look()
    except (CommandFailed, WaitTimeout, CannotJudge) as error:
        return error


def _standstill(patience: float) -> Callable[[list[str] | HarnessError], bool]:
    """Return what tells whether what is left has not become less for so many seconds."""
    least, since = math.inf, time.monotonic()

    def is_standstill(left: list[str] | HarnessError) -> bool:
        nonlocal least, since
        if not isinstance(left, HarnessError) and len(left) < least:
            least, since = len(left), time.monotonic()
        return time.monotonic() - since > patience

    return is_standstill


def gather(live: Live, clusters: Mapping[str, SlurmCluster], token: str) -> None:
    """Note what is known of a rehearsal's jobs; where something cannot be known, note that."""

    def note(kind: str, where: str, look: Callable[..., Iterable[Any]], *options: str) -> None:
        try:
            seen = [*look(*options)]
        except HarnessError as error:
            live.run.event("no_evidence", of=kind, where=where, why=str(error))
            return
        for one in seen:
            if kind == "usage" or one.name.startswith(f"{token}-"):
                live.run.event(kind, **{"seen_by": where, **asdict(one)})

    _note_symptoms(live)
    for host in live.plan.lasting_hosts():
        if host.nodes:
            note("witness", host.name, partial(witness.collect, live.ssh, [host.name]))
    for name, cluster in clusters.items():
        note("queue", name, cluster.jobs, "--local")
        if live.plan.scenario.accounting:
            note("record", name, cluster.records, "--local", "--allocations")
            note("usage", name, cluster.usage)


def _note_symptoms(live: Live) -> None:
    """Note the lines of logs that show known faults of Slurm. Without them the checkers cannot name these."""
    for host in live.plan.lasting_hosts():
        for daemon, words in SYMPTOMS.items():
            paths = logs.log_files(live.plan, host, daemon) if daemon in host.daemons else []
            with suppress(HarnessError):
                command = ["grep", "--no-filename", "--no-messages", words, *paths]
                lines = live.ssh.run(host.name, command, check=False).stdout if paths else ""
                for line in lines.splitlines():
                    live.run.event("log", seen_by=host.name, daemon=daemon, line=line)
