"""What a test on live clusters has in its hands: a user of Slurm, the user's jobs, a federation, faults."""

from __future__ import annotations

import re
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness import faults, slurm
from harness.errors import CommandFailed, UsageError, WaitTimeout
from harness.live import Live
from harness.plan import Plan
from harness.slurm import FINISHED, Job, JobKey, Record, SlurmCluster, job_key
from harness.ssh import Result, Ssh
from harness.wait import wait_until

# Seconds in which a job that was cancelled is gone: slurm.conf(5), KillWait is 30.
_GONE_WITHIN = 60
# Seconds in which slurmdbd has a record: slurmctld sends them in the background.
_RECORDED_WITHIN = 15


@dataclass(frozen=True, slots=True)
class Slurm:
    """A user at the controller of one of the clusters. `earlier` are the jobs that there were before the test."""

    ssh: Ssh = field(repr=False)
    plan: Plan = field(repr=False)
    clusters: Mapping[str, SlurmCluster] = field(repr=False)
    cluster: str
    user: str
    earlier: frozenset[JobKey] = field(default=frozenset(), repr=False)

    @classmethod
    def of(cls, ssh: Ssh, plan: Plan) -> Slurm:
        """Return the scenario's first user (root, if it has none) at its first cluster, from now on."""
        clusters = slurm.clusters(ssh, plan)
        fresh = cls(ssh, plan, clusters, next(iter(clusters)), next(iter(plan.scenario.users), "root"))
        return replace(fresh, earlier=frozenset(job_key(name, job.job_id) for name, job in fresh.jobs()))

    def at(self, cluster: str) -> Slurm:
        """Return the same user at another cluster's controller; UsageError if the scenario has none of this name."""
        if cluster not in self.clusters:
            raise UsageError(f"no cluster {cluster}", hint=f"clusters are {', '.join(self.clusters)}")
        return replace(self, cluster=cluster)

    def as_user(self, user: str) -> Slurm:
        """Return another user at the same controller; UsageError if the scenario has none of this name."""
        if user not in {*self.plan.scenario.users, "root"}:
            raise UsageError(f"no user {user}", hint=f"users are {', '.join(self.plan.scenario.users)}")
        return replace(self, user=user)

    @property
    def controller(self) -> str:
        """The host on which the user works."""
        return self.clusters[self.cluster].controller

    def run(self, *command: str, stdin: str = "", check: bool = True, timeout: float = 60) -> Result:
        """Run a command on the controller's host as the user, in the user's home.

        CommandFailed if it fails and `check`; WaitTimeout if it takes more than `timeout` seconds.
        """
        return self.ssh.run(self.controller, command, user=self._login, stdin=stdin, check=check, timeout=timeout)

    def put(self, path: Path, at: str) -> None:
        """Copy a file or a directory to a path under the user's home on the controller's host."""
        with tempfile.TemporaryFile() as packed:
            with tarfile.open(fileobj=packed, mode="w") as tar:
                tar.add(path, at)
            packed.seek(0)
            into = f"/home/{self.user}" if self._login else "/root"
            unpack = ("tar", "--extract", "--no-same-owner", "--directory", into)
            as_user = ("runuser", "-u", self.user, "--") if self._login else ()
            self.ssh.feed(self.controller, [*as_user, *unpack], iter(lambda: packed.read(1 << 20), b""))

    def submit(self, script: str, *options: str) -> Submission:
        """Submit a batch script with sbatch's options; without "#!" it is for sh. CommandFailed if Slurm refuses it."""
        text = script if script.startswith("#!") else f"#!/bin/sh\n{script}\n"
        job_id, _, cluster = self.run("sbatch", "--parsable", *options, stdin=text).stdout.strip().partition(";")
        return Submission(self, int(job_id), cluster or self.cluster)

    def submission(self, job_id: int) -> Submission:
        """Return a job that a client of Slurm has submitted at this cluster."""
        return Submission(self, job_id, self.cluster)

    def jobs(self) -> list[tuple[str, Job]]:
        """Return the jobs that were submitted during the test, by whomever, each with the cluster that tells of it.

        In a federation several may tell of one; where it does not run it is REVOKED. An array is a job for each task.
        """
        found = [(name, job) for name, cluster in self.clusters.items() for job in cluster.jobs("--local", "--all")]
        return [(name, job) for name, job in found if job_key(name, job.job_id) not in self.earlier]

    def cancel_all(self) -> None:
        """Cancel what was submitted during the test and has not ended, and wait until it is gone."""
        for name, cluster in self.clusters.items():
            if left := [str(job.job_id) for where, job in self._active() if where == name]:
                cluster.run("scancel", *left, check=False)
        wait_until(
            self._active,
            lambda left: not left,
            what="no job of the test left",
            timeout=_GONE_WITHIN,
            show=lambda left: ", ".join(f"{job.job_id} {job.state} on {name}" for name, job in left),
        )

    def _active(self) -> list[tuple[str, Job]]:
        jobs = self.jobs()
        copies = slurm.left_copies({name: [job for at, job in jobs if at == name] for name in self.clusters})
        return [(name, job) for name, job in jobs if job.state not in FINISHED and job.job_id not in copies[name]]

    @property
    def _login(self) -> str | None:
        return None if self.user == "root" else self.user


@dataclass(frozen=True, slots=True)
class Submission:
    """A job, as the one who submitted it follows it; `cluster` is the one it was submitted to."""

    slurm: Slurm
    job_id: int
    cluster: str

    def look(self) -> tuple[str, Job] | None:
        """Return the job as squeue has it, and which cluster says so: in a federation, the one that runs it or may.

        None once slurmctld has forgotten it (slurm.conf(5), MinJobAge). UsageError for a job array: it is several jobs.
        """
        seen = self._rows()
        if any(job.job_id != self.job_id for _, job in seen):
            raise UsageError(f"job {self.job_id} is an array of several", hint="slurm.jobs() has them all")
        return self._where_it_runs(seen)

    def wait(self, *states: str, timeout: float = 60) -> Job:
        """Wait until the job is in one of these states, or has ended if none is named, and return it.

        A controller that is away is waited for, too. WaitTimeout, which tells what was seen last, if it takes more than
        `timeout` seconds or cannot be any more.
        """
        __tracebackhide__ = True  # a test that fails shows its own line
        wanted = frozenset(states) or FINISHED - {"REVOKED"}
        try:
            seen = wait_until(
                self.look,
                lambda seen: seen is not None and seen[1].state in wanted,
                what=f"job {self.job_id} {'/'.join(sorted(wanted))}",
                timeout=timeout,
                hopeless=lambda seen: seen is None or seen[1].state in FINISHED - wanted - {"REVOKED"},
                show=lambda seen: f"{seen[1].state} ({seen[1].reason}) on {seen[0]}" if seen else "no such job",
                ignore=(CommandFailed,),
            )
        except WaitTimeout as error:
            raise error.with_traceback(None) from None
        return seen[1]  # type: ignore[index]  # it is there

    def cancel(self) -> Job:
        """Cancel the job as its user, and wait until it has ended."""
        self.slurm.at(self.cluster).run("scancel", str(self.job_id))
        return self.wait()

    def ran_on(self) -> str:
        """Return the cluster that has the job; UsageError if none has it any more."""
        if there := self._where_it_runs([one for one in self._rows() if one[1].job_id == self.job_id]):
            return there[0]
        raise UsageError(f"job {self.job_id} is not known any more", hint="a longer MinJobAge keeps it")

    def details(self) -> dict[str, str]:
        """Return what `scontrol show job` tells, by its own names, such as StdOut or ExitCode."""
        answer = self.slurm.clusters[self.ran_on()].run("scontrol", "--oneliner", "show", "job", str(self.job_id))
        told = map(parse_details, answer.stdout.splitlines())  # of an array, all its jobs
        return next((one for one in told if one.get("JobId") == str(self.job_id)), {})

    def output(self) -> str:
        """Return what the batch script has printed so far; UsageError if it has not begun, or the job has none.

        CommandFailed if the file is not there.
        """
        details = self.details()
        if not {"BatchHost", "StdOut"} <= details.keys():
            raise UsageError(f"job {self.job_id} has no output of a batch script yet")
        hosts = {node: host.name for host in self.slurm.plan.hosts for node in (host.name, *host.nodes)}
        return self.slurm.ssh.run(hosts[details["BatchHost"]], ["cat", details["StdOut"]]).stdout

    def records(self) -> list[Record]:
        """Return what accounting has of the job so far, and of its steps; UsageError where there is no accounting."""
        if not self.slurm.plan.scenario.accounting:
            raise UsageError("this scenario has no accounting, which keeps records of jobs")
        found = self.slurm.clusters[self.ran_on()].records("--local", f"--jobs={self.job_id}")
        return [record for record in found if record.job_id == self.job_id]  # of an array, sacct tells all jobs

    def record(self) -> Record:
        """Return what accounting has of the job when it has its end; WaitTimeout if it has not in 15 seconds."""
        return wait_until(
            lambda: [one for one in self.records() if not one.step and one.state in FINISHED],
            bool,
            what=f"record of the end of job {self.job_id}",
            timeout=_RECORDED_WITHIN,
            ignore=(CommandFailed,),
        )[-1]

    def _rows(self) -> list[tuple[str, Job]]:
        everywhere = slurm.origin_id(self.job_id)
        asked = self.slurm.clusters if everywhere else {self.cluster: self.slurm.clusters[self.cluster]}
        return [(name, job) for name, cluster in asked.items() for job in cluster.jobs_of(self.job_id)]

    @staticmethod
    def _where_it_runs(seen: Sequence[tuple[str, Job]]) -> tuple[str, Job] | None:
        # REVOKED: another cluster has it.
        return min(seen, key=lambda one: (one[1].state == "REVOKED", one[1].state == "PENDING"), default=None)


@dataclass(frozen=True)
class Federation:
    """A federation under test: the cluster that jobs are submitted to, and another one; the names of all members."""

    name: str
    origin: SlurmCluster
    sibling: SlurmCluster
    members: tuple[str, ...]


def federation(plan: Plan, clusters: Mapping[str, SlurmCluster]) -> Federation:
    """Return the first federation with at least two clusters; UsageError if the scenario has none."""
    for name, part in plan.scenario.federations.items():
        if len(part.clusters) > 1:
            return Federation(name, clusters[part.clusters[0]], clusters[part.clusters[1]], part.clusters)
    raise UsageError(f"scenario {plan.name} has no federation of several clusters", hint="scenario federation has")


class Faults:
    """What is broken on purpose in a run. A fault is said as `harness fault inject` takes it: "pause-host n1"."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._until_the_end = ExitStack()
        self._any = False

    @contextmanager
    def injected(self, *texts: str) -> Iterator[None]:
        """Have faults while this is entered; UsageError if one is none, or the run has no place for it."""
        wanted = [faults.parse(self._live.plan, text) for text in texts]
        self._any = True
        with faults.injected(self._live, *wanted):
            yield

    def inject(self, text: str) -> None:
        """Have a fault until the test is over; UsageError as above."""
        self._until_the_end.enter_context(self.injected(text))

    def heal_all(self) -> None:
        """Heal what is left, the last first."""
        self._until_the_end.close()

    def wait_until_ready(self) -> None:
        """Wait until all nodes take jobs again, if there was a fault; WaitTimeout says what is amiss."""
        if self._any:
            slurm.wait_until_ready(self._live.plan, slurm.clusters(self._live.ssh, self._live.plan))


def parse_details(text: str) -> dict[str, str]:
    """Read `scontrol --oneliner show job`; a value may hold blanks.

    >>> parse_details("JobId=7 Command=/bin/my prog WorkDir=/tmp StdOut=/tmp/o")["Command"]
    '/bin/my prog'
    """
    return dict(re.findall(r"(?:^|(?<= ))([A-Z][\w/:]*)=(.*?)(?= [A-Z][\w/:]*=|\s*$)", text.strip()))
