"""What a recorder can say of a cluster that does not answer."""

from __future__ import annotations

from pathlib import Path

from fakes import SCENARIO, FakeProvider
from harness import lifecycle
from harness.cluster import slurm
from harness.cluster.history import Recorder, Sighting


def test_unreachable_cluster_does_not_count_as_idle(tmp_path: Path) -> None:
    run = lifecycle.create(SCENARIO, FakeProvider(), tmp_path, lambda _: None)
    [cluster] = slurm.clusters(run.ssh, run.plan).values()
    seen = [Sighting(100, "job", "7", "RUNNING"), Sighting(107, "node", "single", "IDLE")]
    recorder = Recorder(cluster, run.directory, seen=seen, looked=103)
    assert recorder.jobs_rested() == 3
    recorder.looked = 108
    assert recorder.jobs_rested() == 8
