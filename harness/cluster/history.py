"""Record the history of a cluster: each state of its nodes and jobs, and when it was first seen."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Self

from harness.cluster.slurm import SlurmCluster
from harness.errors import HarnessError
from harness.rundir import RunDir


@dataclass(frozen=True, slots=True)
class Sighting:
    """A node or job seen in a new state; `at` is in seconds since 1970."""

    at: float
    kind: Literal["node", "job"]
    name: str
    state: str


@dataclass
class Recorder:
    """Polls nodes and jobs inside `with`, and records each new state, also in events.jsonl.

    States that last less than `interval` seconds plus the time of a poll can be missed. `looked` is
    when the last successful poll began, in seconds since 1970.
    """

    cluster: SlurmCluster
    run: RunDir
    interval: float = 0.5
    seen: list[Sighting] = field(default_factory=list)
    looked: float = 0

    def __enter__(self) -> Self:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._record)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()

    def of(self, name: str | int, since: float = 0) -> list[Sighting]:
        """Return the sightings of a node or job since a time."""
        return [seen for seen in self.seen if seen.name == str(name) and seen.at >= since]

    def jobs_rested(self) -> float:
        """Return how long no job had changed its state at the last successful poll, in seconds."""
        last = max((seen.at for seen in self.seen if seen.kind == "job"), default=0.0)
        return self.looked - last

    def _record(self) -> None:
        last: dict[str, str] = {}
        ended = False
        while not ended:  # and once more, to see the last state
            ended = self._ended.wait(self.interval)
            began = time.time()
            try:
                nodes = {node.name: node.state for node in self.cluster.nodes()}
                saw_nodes = time.time()
                jobs = {str(job.job_id): job.state for job in self.cluster.jobs("--local")}
            except HarnessError:
                continue  # slurmctld does not answer
            kinds: dict[Literal["node", "job"], tuple[float, dict[str, str]]] = {
                "node": (saw_nodes, nodes),
                "job": (time.time(), jobs),
            }
            for kind, (when, states) in kinds.items():
                for name, state in states.items():
                    if last.get(name) != state:
                        self.seen.append(Sighting(when, kind, name, state))
                        self.run.event(kind, cluster=self.cluster.name, name=name, state=state)
            last |= nodes | jobs
            self.looked = began
