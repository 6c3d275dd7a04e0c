"""Workload traces: which jobs users submitted, and how long they ran. Pure: no I/O."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TraceJob:
    """A job that users submitted, or one element of a job array.

    Times are in seconds; `submit` counts from the beginning of the trace, and is negative if the
    job was running then. None means that the job did not request it, so the cluster's defaults
    apply.
    """

    id: str
    submit: float
    run_time: float
    limit: int | None
    nodes: int | None
    tasks: int
    user: str
    cpus_per_task: int = 1
    memory_per_node: int | None = None  # MiB
    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    gres: str | None = None
    constraint: str | None = None
    licenses: str | None = None
    # As for `sbatch --dependency`, such as "afterok:ID", with identifiers of this trace.
    dependency: str | None = None
    # The job array that it belongs to, and its index there.
    array: str | None = None
    array_index: int | None = None
    nice: int = 0
    exclusive: bool = False
    memory_per_cpu: int | None = None  # MiB; at most one of the two memories is set
    # How long it waited on the system that the trace was recorded on.
    recorded_wait: float | None = None
    # How long its user waited after the end of the job that it depends on before submitting it.
    think_time: float | None = None

    @property
    def cpus(self) -> int:
        """The CPUs that its tasks need."""
        return self.tasks * self.cpus_per_task


@dataclass(frozen=True, slots=True)
class Trace:
    """Jobs in the order of their submission, and what reading them left out or scaled.

    `nodes` and `cpus` are the size of the system that the trace was recorded on, if it says so.
    """

    source: str
    jobs: tuple[TraceJob, ...]
    notes: tuple[str, ...] = ()
    nodes: int | None = None
    cpus: int | None = None


@dataclass(slots=True)
class System:
    """The size of the system that a trace was recorded on, as far as it is known."""

    nodes: int | None = None
    cpus: int | None = None
