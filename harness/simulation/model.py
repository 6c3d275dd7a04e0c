"""The data of a simulation: what happened to each job of a trace, and how well it kept time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

# A time or duration; plots cannot show more.
Seconds = Annotated[float, Field(ge=-1e9, le=1e9)]
Count = Annotated[int, Field(ge=0, le=10**9)]


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """What happened to one job of a trace.

    Times are simulated seconds since the beginning of the trace, None if that never happened.
    """

    trace_id: str
    job_id: int | None  # None: refused
    # As in sacct, such as COMPLETED, TIMEOUT or PREEMPTED; REFUSED if sbatch failed; PENDING,
    # RUNNING or NOT_SUBMITTED if the simulation ended before.
    state: str
    submit: Seconds
    eligible: Seconds | None
    start: Seconds | None
    end: Seconds | None
    nodes: tuple[str, ...]
    cpus: Count
    user: str
    account: str
    partition: str
    qos: str
    # What a refused job's sbatch printed, or why a pending job waited at the end.
    reason: str = ""
    backfilled: bool | None = None
    restarts: int = 0
    # How often another job preempted it: requeued, cancelled or suspended it.
    preemptions: int = 0
    # How long it was seen pending for each reason, such as Priority or QOSMaxJobsPerUserLimit.
    held: tuple[tuple[str, Seconds], ...] = ()
    # Begin and end of each of its runs, if it ran several times or was suspended: `start` is the
    # first begin, `end` the last end, and `nodes` are those of the last run.
    runs: tuple[tuple[Seconds, Seconds], ...] = ()


@dataclass(frozen=True, slots=True)
class Quality:
    """How well a simulation kept time; a policy's figures count only if all are within bounds.

    Seconds are simulated ones.
    """

    rate: float  # mean simulated seconds per real second
    seconds: float  # real
    overshoot_mean: float  # run times beyond the trace's
    overshoot_p95: float
    lateness_mean: float  # submissions after their time in the trace
    lateness_p95: float
    false_timeouts: int  # jobs that timed out although the trace has them end earlier
    clock_skew: float  # largest difference between the clocks of two daemons
    problems: tuple[str, ...] = ()  # what is out of bounds, and what to do
    # In which part of the real time the clock ran below its highest rate, and why: sbatch had not
    # answered (submitting), slurmctld had not recorded the end of a job (ending), the daemons used
    # a CPU or waited for one (computing), or something was about to happen (next event).
    slowed: dict[str, float] = field(default_factory=dict)
    longest_completing: float = 0.0  # how long a job kept its nodes after its end


@dataclass(frozen=True, slots=True)
class Simulation:
    """One policy simulated once."""

    policy: str
    repeat: int  # from 1
    release: str
    nodes: Count
    cpus: Count
    hours: Annotated[float, Field(gt=0, le=1e5)]
    jobs: tuple[JobOutcome, ...]
    quality: Quality
    # sdiag of the cluster at the end, as printed names and numbers.
    scheduler: dict[str, float]
    # Effective usage and shares of each association at the end: account, user, share, usage.
    fairness: tuple[tuple[str, str, float, float], ...] = ()
    # Jobs submitted in these first hours are not measured, nor what the nodes did meanwhile.
    warm_up: Annotated[float, Field(ge=0, le=1e5)] = 0.0
    # When it ended, in simulated seconds; None: when its last job did. If that was before the trace
    # ended, it was interrupted.
    ended: Seconds | None = None
    trace: str = ""  # where the trace is from
    notes: tuple[str, ...] = ()  # what reading and scaling the trace left out or changed
    node_names: tuple[str, ...] = ()  # of all nodes, if known
    # Options adapted to the clock: name, the user's value, the value in the simulation, why.
    settings: tuple[tuple[str, str, str, str], ...] = ()
