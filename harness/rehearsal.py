"""A rehearsal: users submit while faults come and go; all that is seen of it goes to events.jsonl, to be judged later.

What counts as evidence, besides submissions, faults and states seen on the way: the witness of every execution, what
slurmctld and accounting say of every job, and the usage of every association, all of it once the clusters are at rest.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from harness import faults, options, releases, slurm, witness
from harness.checkers import UNSAVED
from harness.errors import CommandFailed, HarnessError, WaitTimeout
from harness.faults import Fault
from harness.history import Recorder
from harness.live import Live
from harness.scenario import ScheduledFault
from harness.slurm import FINISHED, SlurmCluster
from harness.wait import wait_until
from harness.workload import Work

# Seconds in which the jobs end once the last one is submitted and all faults are healed.
_LIMIT = 300
# Seconds in which accounting knows it.
_RECORDED = 20
# Where sbatch says this, slurmctld may have taken the job all the same.
_UNCERTAIN = ("timed out", "Zero Bytes", "Connection reset", "Unable to contact", "Unexpected message")


def rehearse(live: Live, works: Sequence[Work], schedule: Sequence[ScheduledFault]) -> None:
    """Submit works while faults come and go, wait until all jobs have ended, and gather the evidence."""
    planned = [(one, faults.parse(live.plan, one.fault)) for one in schedule]
    with rehearsing(live) as users:
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

        def change(what: Callable[[Live, Fault], None], fault: Fault, *, saved: bool = False) -> None:
            if saved:
                _wait_until_saved(users)
            live.say(f"{what.__name__} {fault}")
            changed.append(breaker.submit(what, live, fault))

        def meanwhile_quiet(one: ScheduledFault, fault: Fault) -> None:
            change(faults.inject, fault, saved=one.saved)
            changed[-1].result()
            time.sleep(one.lasts)
            change(faults.heal, fault)
            changed[-1].result()

        actions: list[tuple[float, Callable[[], None]]] = [(work.at, partial(users.submit, work)) for work in works]
        for one, fault in planned:
            if one.quiet:
                actions.append((one.at, partial(meanwhile_quiet, one, fault)))
                continue
            actions.append((one.at, partial(change, faults.inject, fault, saved=one.saved)))
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

    By itself it does so every five minutes (PriorityCalcPeriod); also when it is reconfigured. A member of a federation
    that waits for another one cannot be ("Locks left set", or no answer; seen in 26.05), and goes on as it was: it is
    asked again. Returns when it is as connected with its federation as before.
    """
    if releases.get(live.plan.releases()[cluster.name]).wants_saved_usage:
        before = _connected(cluster)
        with faults.noted(live, "reconfigure", [cluster.controller]):
            wait_until(
                lambda: cluster.run("scontrol", "reconfigure", check=False),
                lambda answer: answer.exit_code == 0,
                what=f"{cluster.name} is reconfigured",
                timeout=120,
            )
            wait_until(
                lambda: _connected(cluster),
                lambda now: now >= before,
                what=f"{cluster.name} is connected with {', '.join(sorted(before))}",
                timeout=60,
                ignore=(CommandFailed,),
            )


def _connected(cluster: SlurmCluster) -> set[str]:
    return {sibling.cluster for sibling in cluster.siblings() if sibling.synced}


def _wait_until_saved(users: Users) -> None:
    """Wait until no slurmctld has learned anything for so long that it has saved all it knows."""
    for cluster in users.clusters.values():
        save_usage(users.live, cluster)

    def rests() -> bool:
        last = max((one.at for recorder in users.recorders for one in recorder.seen if one.kind == "job"), default=0)
        return time.time() - last > UNSAVED + 2 and all(answer.done() for answer in users.answers.values())

    def is_saved() -> bool:
        return rests() and not any(_is_saving(users.live, cluster) for cluster in users.clusters.values())

    wait_until(is_saved, bool, what="a moment when every slurmctld has saved what it knows", timeout=_LIMIT)


def _is_saving(live: Live, cluster: SlurmCluster) -> bool:
    """Tell whether slurmctld is writing its state: to FILE.new, which it renames; a busy disk may take seconds.

    One that was killed leaves such a file behind.
    """
    directory = options.state_save_location(options.slurm_conf(live.plan.scenario, cluster.name, live.plan.offers))
    find = ["find", directory, "-maxdepth", "1", "-name", "*.new", "-newermt", "15 seconds ago"]
    return bool(live.ssh.run(cluster.controller, find).stdout)


def _settle(live: Live, clusters: Mapping[str, SlurmCluster], token: str) -> None:
    """Wait until all jobs have ended, and accounting knows it; that they do not is for the checkers to say.

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
            ended = {job.job_id for job in cluster.jobs("--local") if job.name.startswith(f"{token}-")}
            known = {one.job_id for one in cluster.records("--local", "--allocations") if one.state in FINISHED}
            left += [f"{name} {job_id}" for job_id in sorted(ended - known)]
        return left

    waits = [("every job has ended", _LIMIT, unsettled)]
    if live.plan.scenario.accounting:
        waits.append(("accounting knows it", _RECORDED, unrecorded))
    for what, timeout, look in waits:
        try:
            wait_until(
                look,
                lambda left: not left,
                what=what,
                timeout=timeout,
                interval=1,
                show=lambda left: "; ".join(left[:5]),
                ignore=(HarnessError,),
            )
        except WaitTimeout as error:
            live.say(str(error))


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

    for host in live.plan.lasting_hosts():
        if host.nodes:
            note("witness", host.name, partial(witness.collect, live.ssh, [host.name]))
    for name, cluster in clusters.items():
        note("queue", name, cluster.jobs, "--local")
        if live.plan.scenario.accounting:
            note("record", name, cluster.records, "--local", "--allocations")
            note("usage", name, cluster.usage)
