"""Submit the rows of a table to running clusters, and return how these treat each; no job runs.

Meanwhile, all nodes are reserved, so that no job starts: it would count as usage, and change the
fair share of later rows. A reservation hides nothing: select_nodes() in slurmctld's
node_scheduler.c still refuses a job that can never run, and replaces the reason of a job that waits
for nodes by the limit that it exceeds, if any.

A row is submitted twice. The first time it is alone, so limits on the number of submitted jobs
apply as for a single job; that decides whether it is refused, and what slurmctld holds. slurmctld
evaluates most limits only when its main scheduler considers a job, up to `batch_sched_delay`
seconds later (slurm.conf(5); 3 by default), so the second time, many rows are pending together, as
many as the limits allow. A row that others could affect is then submitted once more, alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from harness import interrupts
from harness.cluster import slurm
from harness.cluster.slurm import FINISHED, SlurmCluster, parse_details
from harness.errors import CannotVerify, CommandFailed, HarnessError
from harness.plan import Plan
from harness.ssh import Ssh
from harness.submissions import answers
from harness.submissions.answers import REFUSED, STARTS, WAITS, Answer
from harness.submissions.table import Row
from harness.wait import wait_until

_SCRIPT = "#!/bin/sh\n"
_RESERVATION = "slurm-harness"
# The reason of a job that could start if its nodes were not reserved: select_nodes() in slurmctld's
# node_scheduler.c.
_RESERVED = "ReqNodeNotAvail,_Reserved_for_maintenance"
# The reason of a federated job while another cluster considers it: _schedule() in slurmctld's
# job_scheduler.c.
_LOCKED = "FedJobLock"
# Reasons that may be due to other jobs.
_REASONS_OF_OTHERS = frozenset({"Priority", "Resources", "Dependency"})
# Columns that slurmctld sets when a job is submitted; a scheduler may change the others.
_DECIDED = ("partition", "qos", "account", "time", "gres", "constraint", "licenses", "reservation")
# The most rows that are pending at a time; these options limit how many a scheduler looks at.
_MOST_PENDING = 50
_DEPTHS = re.compile(r"\b(?:default_queue_depth|partition_job_depth)=(\d+)")
# Seconds. The main scheduler runs at least once a minute (slurm.conf(5), sched_interval).
_CONSIDERED_WITHIN = 300
_ANSWERED_WITHIN = 300
_CANCELLED_WITHIN = 180
# How many jobs an error names.
_MOST_NAMED = 5


def submit_rows(
    ssh: Ssh, plan: Plan, rows: Sequence[Row], unrelated: Collection[int] = ()
) -> list[Answer]:
    """Return the answer to each row of a table from the clusters of a plan, which are up.

    `unrelated` are the ids of other jobs that may be active meanwhile. Raises CannotVerify if a
    cluster has others, or does not answer. After an interrupt, it cancels its jobs before it raises
    KeyboardInterrupt.
    """
    clusters = slurm.clusters(ssh, plan)
    answer_of: dict[Row, Answer] = {}
    with interrupts.deferred() as interrupted, _nodes_reserved(list(clusters.values()), unrelated):
        for name, cluster in clusters.items():
            cluster_rows = [row for row in rows if row.cluster == name]
            answer_of |= (
                _Submitter(ssh, cluster, interrupted).answers(cluster_rows) if cluster_rows else {}
            )
    return [answer_of[row] for row in rows]


@contextmanager
def _nodes_reserved(clusters: Sequence[SlurmCluster], unrelated: Collection[int]) -> Iterator[None]:
    """Reserve all nodes of clusters that have no jobs, until the jobs of this context are gone."""
    for cluster in clusters:
        if jobs := _active(cluster, unrelated):
            examples = ", ".join(jobs[:_MOST_NAMED])
            raise CannotVerify(
                f"{cluster.name}: {len(jobs)} active jobs would affect the answers: {examples}",
                hint="wait for them, or cancel them",
            )
    reserved: list[SlurmCluster] = []
    try:
        for cluster in clusters:
            _reserve(cluster)
            reserved.append(cluster)
        yield
    except BaseException as error:
        try:
            _release(reserved, unrelated)
        except HarnessError as problem:
            error.add_note(str(problem))
        raise
    _release(reserved, unrelated)


def _active(cluster: SlurmCluster, unrelated: Collection[int]) -> list[str]:
    """Return the jobs of a cluster that have not ended, except those in `unrelated`."""
    jobs = [
        job
        for job in cluster.jobs("--local", "--all")
        if job.state not in FINISHED and job.job_id not in unrelated
    ]
    return [f"{job.job_id} {job.state} of {job.user}" for job in jobs]


def _release(clusters: Sequence[SlurmCluster], unrelated: Collection[int]) -> None:
    """Release the nodes; a federation may cancel copies of a job on other clusters later."""
    for cluster in clusters:
        wait_until(
            lambda: _active(cluster, unrelated),  # noqa: B023  called at once
            lambda jobs: not jobs,
            what=f"the jobs of {cluster.name} to be cancelled",
            timeout=_CANCELLED_WITHIN,
        )
        cluster.run("scontrol", "delete", f"ReservationName={_RESERVATION}")


def _reserve(cluster: SlurmCluster) -> None:
    delete = f"harness exec {cluster.controller} -- scontrol delete ReservationName={_RESERVATION}"
    # It ends by itself if this process is killed.
    facts = ("StartTime=now", "Duration=1-0", "Users=root", "Nodes=ALL", "Flags=MAINT,IGNORE_JOBS")
    try:
        cluster.run("scontrol", "create", f"ReservationName={_RESERVATION}", *facts)
    except CommandFailed as error:
        raise CannotVerify(
            f"cannot reserve the nodes of {cluster.name}: {error}",
            hint=f"if a killed command has left a reservation: {delete}",
        ) from error


def _is_unconsidered(details: Mapping[str, str]) -> bool:
    """Return whether a job still waits for its federation, or to be considered by the scheduler.

    A cycle of the scheduler ends after max_sched_time, without the jobs that are left
    (slurm.conf(5)).
    """
    return details["JobState"] == "PENDING" and details["Reason"] in {_LOCKED, "None"}


def _depends_on_others(together: Answer, alone: Answer) -> bool:
    """Return whether a row's answer may come from rows that were pending together with it."""
    return together.reason in _REASONS_OF_OTHERS or any(
        together.held.get(name) != alone.held.get(name) for name in _DECIDED
    )


class _Submitter:
    """Submits rows to one cluster; `interrupted` returns whether to stop early."""

    def __init__(self, ssh: Ssh, cluster: SlurmCluster, interrupted: Callable[[], bool]) -> None:
        self._ssh, self._cluster, self._interrupted = ssh, cluster, interrupted
        config = cluster.run("scontrol", "show", "config").stdout
        depths = [int(depth) for depth in _DEPTHS.findall(config)]
        self._most = min([_MOST_PENDING, *filter(None, depths)])  # 0: no limit
        # The priorities of priority/basic only follow the order of submission.
        self._basic = "priority/basic" in config

    def answers(self, rows: Sequence[Row]) -> dict[Row, Answer]:
        """Return the answer to each row, or to some after an interrupt."""
        answer_of: dict[Row, Answer] = {}
        for row in rows:
            answer_of |= self._submit_together([row], considered=False)
        waiting = [row for row in rows if row in answer_of and answer_of[row].outcome != REFUSED]
        while waiting and not self._interrupted():
            together = self._submit_together(waiting, considered=True)
            for row, seen in together.items():
                if len(together) > 1 and _depends_on_others(seen, answer_of[row]):
                    seen = self._submit_together([row], considered=True).get(row, seen)
                answer_of[row] = replace(answer_of[row], outcome=seen.outcome, reason=seen.reason)
            waiting = [row for row in waiting if row not in together]
        return {
            row: replace(answer, unexpected=answers.unexpected(row.expected, answer))
            for row, answer in answer_of.items()
        }

    def _submit_together(self, rows: Sequence[Row], *, considered: bool) -> dict[Row, Answer]:
        """Submit rows, cancel their jobs, and return the answers.

        With `considered`, wait for the scheduler first. The first row is always answered. Others
        are left out if they are refused, possibly due to those before them, or if there are too
        many. After an interrupt, there may be no answers.
        """
        answer_of: dict[Row, Answer] = {}
        jobs: dict[Row, tuple[int, str]] = {}
        full: set[str] = set()
        try:
            for row in rows:
                if self._interrupted():
                    return {}
                if row.user in full or len(jobs) == self._most:
                    continue
                submitted = self._submit(row)
                if not isinstance(submitted, Answer):
                    jobs[row] = submitted
                elif jobs:
                    full.add(row.user)
                else:
                    answer_of[row] = submitted
            if jobs:
                job_ids = [job_id for job_id, _ in jobs.values()]
                details = self._considered(job_ids) if considered else self._details(job_ids)
                answer_of |= {
                    row: self._answer(row, details[job_id], message)
                    for row, (job_id, message) in jobs.items()
                }
        finally:
            if jobs:
                self._cluster.run("scancel", *(str(job_id) for job_id, _ in jobs.values()))
        return answer_of

    def _submit(self, row: Row) -> Answer | tuple[int, str]:
        """Return the id of a row's job and what sbatch printed, or why it is refused."""
        # Nothing is added that job_submit.lua could see, not even the harness's comment.
        result = self._ssh.run(
            self._cluster.controller,
            ["sbatch", "--parsable", *row.options],
            user=row.user,
            stdin=_SCRIPT,
            check=False,
            timeout=_ANSWERED_WITHIN,
        )
        message = sbatch_messages(result.stderr)
        if result.exit_code == 0:
            return int(result.stdout.split()[-1].split(";")[0]), message
        if any(words in message for words in slurm.UNCERTAIN):
            raise CannotVerify(
                f"{row.place}: slurmctld of {row.cluster} does not answer: {message}"
            )
        return Answer(str(row), row.place, row.user, row.cluster, REFUSED, message)

    def _details(self, job_ids: Sequence[int]) -> dict[int, dict[str, str]]:
        """Return the fields of jobs by their ids; those of an array by the array's."""
        only = map(str, job_ids if len(job_ids) == 1 else ())
        lines = self._cluster.run("scontrol", "--oneliner", "--all", "show", "job", *only).stdout
        jobs = [parse_details(line) for line in lines.splitlines() if line.startswith("JobId=")]
        return {int(job["JobId"]): job for job in jobs}

    def _answer(self, row: Row, details: dict[str, str], message: str) -> Answer:
        held = answers.held(details)
        if self._basic:
            held.pop("priority", None)
        reason = "" if details["Reason"] == _RESERVED else details["Reason"]
        outcome = WAITS if reason and details["JobState"] == "PENDING" else STARTS
        changed = answers.changed(row.requested, held)
        facts = (str(row), row.place, row.user, row.cluster)
        return Answer(*facts, outcome, reason, message, held, changed)

    def _considered(self, job_ids: Sequence[int]) -> dict[int, dict[str, str]]:
        """Return the fields of jobs once the scheduler has considered each of them."""

        def look() -> dict[int, dict[str, str]]:
            self._wait_for_scheduler(len(job_ids))
            return self._details(job_ids)

        return wait_until(
            look,
            lambda details: (
                self._interrupted()
                or not any(_is_unconsidered(details[job_id]) for job_id in job_ids)
            ),
            what=f"{self._cluster.name} to consider {len(job_ids)} jobs",
            timeout=_CONSIDERED_WITHIN,
        )

    def _wait_for_scheduler(self, count: int) -> None:
        """Wait until a cycle of the main scheduler has begun and ended.

        slurmctld counts a cycle after it has released the cycle's locks (_sched_agent() in
        job_scheduler.c), so the first that it counts may have begun before the last job came.
        """
        before = self._cycles()

        def look() -> int:
            nonlocal before
            self._schedule()
            cycles = self._cycles()
            before = min(before, cycles)  # sdiag(1): counters restart at midnight UTC
            return cycles - before

        wait_until(
            look,
            lambda cycles: cycles > 1 or self._interrupted(),
            what=f"the scheduler of {self._cluster.name} to consider {count} jobs",
            timeout=_CONSIDERED_WITHIN,
        )

    def _schedule(self) -> None:
        """Make slurmctld schedule soon, by an update that changes nothing.

        See _slurm_rpc_resv_update() in slurmctld's proc_req.c.
        """
        update = ("scontrol", "update", f"ReservationName={_RESERVATION}", "Duration=1-0")
        self._cluster.run(*update)

    def _cycles(self) -> int:
        """Return the number of cycles of the main scheduler since its counters restarted."""
        text = self._cluster.run("sdiag").stdout
        match = re.search(r"Main schedule statistics.*?Total cycles:\s*(\d+)", text, re.DOTALL)
        if not match:
            raise CannotVerify(
                f"sdiag on {self._cluster.controller} prints no cycles: {text[:500]}"
            )
        return int(match[1])


def sbatch_messages(stderr: str) -> str:
    r"""Return the messages of sbatch in one line, without its own name.

    >>> sbatch_messages("sbatch: error: Limit\nsbatch: error: Batch job submission failed: x")
    'Limit; x'
    """
    lines = (re.sub(r"^sbatch: (error: )?", "", line).strip() for line in stderr.splitlines())
    messages = (line.removeprefix("Batch job submission failed: ") for line in lines)
    return "; ".join(line for line in messages if line and not line.startswith('Try "sbatch'))
