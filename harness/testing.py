"""What tests on live clusters work with: a user of Slurm, the user's jobs, a federation, faults."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness import faults, transfer
from harness.cluster import slurm
from harness.cluster.slurm import FINISHED, Job, Record, SlurmCluster, parse_details
from harness.errors import CommandFailed, UsageError, WaitTimeout
from harness.open_run import OpenRun
from harness.plan import Plan
from harness.ssh import Result, Ssh
from harness.submissions import submit, table
from harness.submissions.answers import Answer
from harness.wait import wait_until

# Deadlines in seconds, generous because a machine may be busy. A cancelled job is killed after
# KillWait, 30 s (slurm.conf(5)); slurmctld sends records to slurmdbd in the background; daemons
# restart after a fault.
_GONE_WITHIN = 180
_RECORDED_WITHIN = 90
_READY_WITHIN = 240
# squeue(1), JOB STATE CODES; the full list is in job_state_string() of Slurm's source.
_STATES = FINISHED | {
    "COMPLETING",
    "CONFIGURING",
    "EXPEDITING",
    "PENDING",
    "REQUEUED",
    "REQUEUE_FED",
    "REQUEUE_HOLD",
    "RESIZING",
    "RESV_DEL_HOLD",
    "RUNNING",
    "SIGNALING",
    "SPECIAL_EXIT",
    "STAGE_OUT",
    "STOPPED",
    "SUSPENDED",
}
# A job's cluster, id (that of its array) and time of submission in seconds since 1970, because a
# slurmctld that has lost its state reuses ids.
Identity = tuple[str, int, int | None]


@dataclass(frozen=True, slots=True)
class Slurm:
    """A user on the controller of one of the clusters.

    `earlier` are the jobs from before the test.
    """

    ssh: Ssh = field(repr=False)
    plan: Plan = field(repr=False)
    clusters: Mapping[str, SlurmCluster] = field(repr=False)
    cluster: str
    user: str
    earlier: frozenset[Identity] = field(default=frozenset(), repr=False)

    @classmethod
    def of(cls, ssh: Ssh, plan: Plan) -> Slurm:
        """Return the scenario's first user (root, if it has none) on its first cluster.

        The existing jobs become `earlier`.
        """
        clusters = slurm.clusters(ssh, plan)
        fresh = cls(
            ssh, plan, clusters, next(iter(clusters)), next(iter(plan.scenario.users), "root")
        )
        return replace(fresh, earlier=frozenset(identity for identity, _ in fresh._listed()))

    def at(self, cluster: str) -> Slurm:
        """Return the same user on a different cluster's controller.

        Raises UsageError if the scenario has no such cluster.
        """
        if cluster not in self.clusters:
            raise UsageError(
                f"no cluster {cluster}", hint=f"the clusters are {', '.join(self.clusters)}"
            )
        return replace(self, cluster=cluster)

    def as_user(self, user: str) -> Slurm:
        """Return a different user on the same controller.

        Raises UsageError if the scenario has no such user.
        """
        if user not in {*self.plan.scenario.users, "root"}:
            raise UsageError(
                f"no user {user}",
                hint=f"the users are {', '.join([*self.plan.scenario.users, 'root'])}",
            )
        return replace(self, user=user)

    @property
    def controller(self) -> str:
        """The host that the user works on."""
        return self.clusters[self.cluster].controller

    def run(
        self, *command: str, stdin: str = "", check: bool = True, timeout: float = 120
    ) -> Result:
        """Run a command on the controller's host as the user, in the user's home.

        Raises CommandFailed if it fails, unless `check` is False, and WaitTimeout if it takes more
        than `timeout` seconds.
        """
        return self.ssh.run(
            self.controller, command, user=self._login, stdin=stdin, check=check, timeout=timeout
        )

    def put(self, path: Path, at: str) -> None:
        """Copy a file or a directory to a path under the user's home on the controller's host."""
        home = f"/home/{self.user}" if self._login else "/root"
        as_user = ("runuser", "-u", self.user, "--") if self._login else ()
        unpack = [*as_user, "tar", "--extract", "--no-same-owner", f"--directory={home}"]
        transfer.send(self.ssh, self.controller, path, at, unpack)

    def submit(self, script: str, *options: str) -> Submission:
        """Submit a batch script with options of sbatch; raise CommandFailed if Slurm refuses it.

        A script without "#!" is run by sh.
        """
        text = script if script.startswith("#!") else f"#!/bin/sh\n{script}\n"
        job_id, _, cluster = (
            self.run("sbatch", "--parsable", *options, stdin=text).stdout.strip().partition(";")
        )
        return Submission(self, int(job_id), cluster or self.cluster)

    def submissions(self, table_path: str | Path) -> list[Answer]:
        """Return what becomes of the rows of a table: see docs/how-to/test-a-policy.md.

        Raises AssertionError, which names the rows that are not as they expect, UsageError if the
        table is wrong, and CannotVerify if the clusters have jobs.
        """
        __tracebackhide__ = True
        rows = table.read(Path(table_path), self.plan.scenario)
        answers = submit.submit_rows(self.ssh, self.plan, rows)
        wrong = [f"{answer.place}: {answer}" for answer in answers if answer.unexpected]
        if wrong:
            raise AssertionError("\n".join(wrong))
        return answers

    def submission(self, job_id: int) -> Submission:
        """Return a job that another client submitted to this cluster."""
        return Submission(self, job_id, self.cluster)

    def jobs(self) -> list[tuple[str, Job]]:
        """Return the jobs that any user submitted during the test, and the cluster that lists each.

        In a federation several clusters may list a job; it is REVOKED where it does not run. Each
        task of an array is a job.
        """
        listed = self._listed()
        known = {(cluster, job_id) for cluster, job_id, _ in self.earlier}
        federated = {
            job_id
            for (cluster, job_id, submitted), _ in listed
            if (cluster, job_id, submitted) in self.earlier and slurm.origin_id(job_id)
        }

        def is_earlier(identity: Identity, job: Job) -> bool:
            cluster, job_id, _ = identity
            if identity in self.earlier:
                return True
            # A requeue changes the time of submission: batch_requeue_fini() in slurmctld's
            # job_mgr.c.
            return (
                self._restarts(cluster, job.job_id) > 0
                if (cluster, job_id) in known
                else job_id in federated
            )

        return [(identity[0], job) for identity, job in listed if not is_earlier(identity, job)]

    def wait_all(self, *, timeout: float = 180) -> list[tuple[str, Job]]:
        """Wait until all jobs of `jobs` have ended and return them.

        For jobs of clients that return before Slurm has finished them. Raises WaitTimeout, which
        names those left, after `timeout` seconds.
        """
        __tracebackhide__ = True
        _wait_until_ended(self._active, timeout)
        return self.jobs()

    def cancel_all(self) -> None:
        """Cancel the jobs submitted during the test and wait until they have ended.

        Raises WaitTimeout, which names those left.
        """
        cancelled: set[tuple[str, int]] = set()

        def cancel() -> list[tuple[str, Job]]:
            active = self._active()
            for name, cluster in self.clusters.items():
                new = [
                    job.job_id
                    for at, job in active
                    if at == name and (name, job.job_id) not in cancelled
                ]
                if new and cluster.run("scancel", *map(str, new), check=False).exit_code == 0:
                    cancelled.update((name, job_id) for job_id in new)
            return active

        _wait_until_ended(cancel, _GONE_WITHIN)

    def _listed(self) -> list[tuple[Identity, Job]]:
        """Return the jobs that squeue lists on each cluster."""
        listed: list[tuple[Identity, Job]] = []
        for name, cluster in self.clusters.items():
            jobs, times = cluster.jobs("--local", "--all"), cluster.times("--local", "--all")
            # A job without times was purged between the two queries.
            listed += [
                ((name, job.array_id, times[job.job_id]["submit"]), job)
                for job in jobs
                if job.job_id in times
            ]
        return listed

    def _restarts(self, cluster: str, job_id: int) -> int:
        answer = self.clusters[cluster].run(
            "scontrol", "--oneliner", "show", "job", str(job_id), check=False
        )
        return max(
            (int(parse_details(line).get("Restarts", 0)) for line in answer.stdout.splitlines()),
            default=0,
        )

    def _active(self) -> list[tuple[str, Job]]:
        jobs = self.jobs()
        copies = slurm.left_copies(
            {name: [job for at, job in jobs if at == name] for name in self.clusters}
        )
        return [
            (name, job)
            for name, job in jobs
            if job.state not in FINISHED and job.job_id not in copies[name]
        ]

    @property
    def _login(self) -> str | None:
        return None if self.user == "root" else self.user


@dataclass(frozen=True, slots=True)
class Submission:
    """A submitted job; `cluster` is the one it was submitted to."""

    slurm: Slurm
    job_id: int
    cluster: str

    def look(self) -> tuple[str, Job] | None:
        """Return the job as squeue lists it, and the cluster that runs it, or may run it.

        None once slurmctld has forgotten it (slurm.conf(5), MinJobAge). Raises UsageError for an
        array of several jobs.
        """
        seen = self._rows()
        if any(job.job_id != self.job_id for _, job in seen):
            raise UsageError(
                f"job {self.job_id} is an array of several jobs",
                hint="wait_all() waits for all of them, tasks() returns each",
            )
        return self._where_it_runs(seen)

    def wait(self, *states: str, timeout: float = 180) -> Job:
        """Wait until the job is in one of these states (by default, has ended), and return it.

        Keeps waiting while the controller does not answer. Raises WaitTimeout, with the last state,
        after `timeout` seconds, or as soon as the job can no longer reach any of the states, and
        UsageError for an unknown state.
        """
        __tracebackhide__ = True  # a test that fails shows its own line
        return _wait(
            lambda: list(filter(None, [self.look()])), states, timeout, f"job {self.job_id}"
        )[0]

    def wait_all(self, *states: str, timeout: float = 180) -> list[Job]:
        """Wait until every task of an array is in one of these states (by default, has ended).

        Return them sorted by job id, which may not be the order of their indices: see `tasks`. A
        job that is not an array counts as a single task. Raises what `wait` raises.
        """
        __tracebackhide__ = True
        # slurmctld may forget the first tasks before the last has ended.
        ended: dict[int, tuple[str, Job]] = {}

        def look() -> list[tuple[str, Job]]:
            rows = self._rows()
            at = {
                job_id: [row for row in rows if row[1].job_id == job_id]
                for job_id in {job.job_id for _, job in rows}
            }
            seen = {job_id: place for job_id in at if (place := self._where_it_runs(at[job_id]))}
            ended.update(
                {job_id: place for job_id, place in seen.items() if place[1].state in FINISHED}
            )
            return [place for _, place in sorted((ended | seen).items())]

        return _wait(look, states, timeout, f"all tasks of job {self.job_id}")

    def tasks(self) -> dict[int, Submission]:
        """Return the started tasks of an array by index.

        slurmctld keeps all pending tasks in a single record.
        """
        records = {
            int(job["ArrayTaskId"]): job
            for job in self._all_details()
            if job.get("ArrayTaskId", "").isdigit()
        }
        return {
            index: replace(self, job_id=int(job["JobId"])) for index, job in sorted(records.items())
        }

    def cancel(self) -> Job:
        """Cancel the job, or all tasks of an array, as its user.

        Waits for the end, and returns the job or the first task.
        """
        self.slurm.at(self.cluster).run("scancel", str(self.job_id))
        return self.wait_all()[0]

    def ran_on(self) -> str:
        """Return the cluster that runs or ran the job.

        Raises UsageError if every slurmctld has forgotten it.
        """
        rows = self._rows()
        # One task of an array has the array's id.
        own = [row for row in rows if row[1].job_id == self.job_id]
        if place := self._where_it_runs(own or rows):
            return place[0]
        raise UsageError(
            f"slurmctld has forgotten job {self.job_id}",
            hint="increase MinJobAge to keep it longer",
        )

    def details(self) -> dict[str, str]:
        """Return the fields of `scontrol show job`, such as StdOut or ExitCode."""
        return next(
            (job for job in self._all_details() if job.get("JobId") == str(self.job_id)), {}
        )

    def _all_details(self) -> list[dict[str, str]]:
        """Return the fields of the job, or of each task if the id is that of an array."""
        answer = self.slurm.clusters[self.ran_on()].run(
            "scontrol", "--oneliner", "show", "job", str(self.job_id)
        )
        return [parse_details(line) for line in answer.stdout.splitlines() if line]

    def output(self) -> str:
        """Return what the batch script has printed so far.

        Raises UsageError if it has not started, or the job has no batch script, and CommandFailed
        if the file does not exist.
        """
        details = self.details()
        if not {"BatchHost", "StdOut"} <= details.keys():
            raise UsageError(f"job {self.job_id} has no output of a batch script yet")
        hosts = {
            node: host.name for host in self.slurm.plan.hosts for node in (host.name, *host.nodes)
        }
        return self.slurm.ssh.run(hosts[details["BatchHost"]], ["cat", details["StdOut"]]).stdout

    def records(self) -> list[Record]:
        """Return the accounting records of the job and its steps so far.

        Raises UsageError if the scenario has no accounting.
        """
        if not self.slurm.plan.scenario.accounting:
            raise UsageError("this scenario has no accounting, so there are no records of jobs")
        records = self.slurm.clusters[self.ran_on()].records("--local", f"--jobs={self.job_id}")
        # sacct lists all tasks of an array.
        return [record for record in records if record.job_id == self.job_id]

    def record(self) -> Record:
        """Wait for the accounting record of the job's end and return it.

        Raises WaitTimeout after 90 seconds.
        """
        return wait_until(
            lambda: [
                record for record in self.records() if not record.step and record.state in FINISHED
            ],
            bool,
            what=f"accounting to record the end of job {self.job_id}",
            timeout=_RECORDED_WITHIN,
            ignore=(CommandFailed,),
        )[-1]

    def _rows(self) -> list[tuple[str, Job]]:
        clusters = self.slurm.clusters
        if not slurm.origin_id(self.job_id):  # not a federated job
            clusters = {self.cluster: clusters[self.cluster]}
        return [
            (name, job)
            for name, cluster in clusters.items()
            for job in cluster.jobs_of(self.job_id)
        ]

    @staticmethod
    def _where_it_runs(seen: Sequence[tuple[str, Job]]) -> tuple[str, Job] | None:
        # REVOKED: it runs on a different cluster.
        return min(
            seen,
            key=lambda row: (row[1].state == "REVOKED", row[1].state == "PENDING"),
            default=None,
        )


@dataclass(frozen=True)
class Federation:
    """A federation: the cluster that jobs are submitted to, a sibling, and all members' names."""

    name: str
    origin: SlurmCluster
    sibling: SlurmCluster
    members: tuple[str, ...]


def federation(plan: Plan, clusters: Mapping[str, SlurmCluster]) -> Federation:
    """Return the first federation with at least two clusters.

    Raises UsageError if the scenario has none.
    """
    for name, part in plan.scenario.federations.items():
        if len(part.clusters) > 1:
            return Federation(
                name, clusters[part.clusters[0]], clusters[part.clusters[1]], part.clusters
            )
    raise UsageError(
        f"scenario {plan.name} has no federation of several clusters",
        hint="scenarios/federation.yml has one",
    )


class Faults:
    """Faults to inject into a run.

    A fault is given as for `harness fault inject`: "pause-host n1".
    """

    def __init__(self, run: OpenRun) -> None:
        self._live = run
        self._until_the_end = ExitStack()
        self._unready_before = frozenset(self._unready())

    @contextmanager
    def injected(self, *texts: str) -> Iterator[None]:
        """Inject faults, and heal them at the end of this context.

        Raises UsageError if a fault is unknown, or the run has no such host.
        """
        parsed = [faults.parse(self._live.plan, self._live.provider, text) for text in texts]
        with faults.injected(self._live, *parsed):
            yield

    def inject(self, text: str) -> None:
        """Inject a fault until the test is over; UsageError as for `injected`."""
        self._until_the_end.enter_context(self.injected(text))

    def heal_all(self) -> None:
        """Heal all remaining faults, in reverse order."""
        self._until_the_end.close()

    def wait_until_ready(self) -> None:
        """Wait until the clusters take jobs as they did before the test.

        Nodes that were out of service before the test are not waited for: the test that broke them
        has reported them. Raises WaitTimeout, which says what is missing.
        """
        before = self._unready_before
        wait_until(
            self._unready,
            lambda unready: unready.keys() <= before,
            what="the clusters to take jobs again after the test's faults",
            timeout=_READY_WITHIN,
            show=lambda unready: "; ".join(
                text for who, text in unready.items() if who not in before
            ),
            ignore=(CommandFailed,),
        )

    def _unready(self) -> dict[str, str]:
        """Return what keeps clusters from taking jobs, by node or sibling."""
        problems = slurm.not_ready(self._live.plan, slurm.clusters(self._live.ssh, self._live.plan))
        return {re.sub(r"^(\S+ (sibling )?\S+).*", r"\1", problem): problem for problem in problems}


def _wait(
    look: Callable[[], list[tuple[str, Job]]], states: Sequence[str], timeout: float, what: str
) -> list[Job]:
    """Wait until there are jobs and each is in one of these states (by default, has ended)."""
    __tracebackhide__ = True
    expected = _known(states) or FINISHED - {"REVOKED"}
    lost = FINISHED - expected - {"REVOKED"}
    try:
        seen = wait_until(
            look,
            lambda seen: bool(seen) and all(job.state in expected for _, job in seen),
            what=f"{what} to be {'/'.join(sorted(expected))}",
            timeout=timeout,
            give_up=lambda seen: not seen or any(job.state in lost for _, job in seen),
            show=lambda seen: _shown(seen) or "no such job",
            ignore=(CommandFailed,),
        )
    except WaitTimeout as error:
        raise error.with_traceback(None) from None
    return [job for _, job in seen]


def _wait_until_ended(active: Callable[[], list[tuple[str, Job]]], timeout: float) -> None:
    wait_until(
        active,
        lambda left: not left,
        what="all jobs of the test to end",
        timeout=timeout,
        show=_shown,
        ignore=(CommandFailed,),
    )


def _known(states: Sequence[str]) -> frozenset[str]:
    """Return states as a set.

    Raises UsageError if Slurm has no such state, because a wait for it would never end.
    """
    for state in states:
        if state not in _STATES:
            nearest = difflib.get_close_matches(state.upper(), _STATES, n=1)
            raise UsageError(
                f'Slurm has no job state "{state}"',
                hint=f"did you mean {nearest[0]}?" if nearest else "squeue(1) lists them",
            )
    return frozenset(states)


def _shown(jobs: Sequence[tuple[str, Job]]) -> str:
    return ", ".join(f"{job.job_id} {job.state} ({job.reason}) on {name}" for name, job in jobs)
