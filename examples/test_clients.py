"""Two clients of Slurm, as they come from PyPI."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from harness.ssh import Result
from harness.testing import Slurm


def test_submitit_calls_functions_in_jobs(run_client: Callable[[str, str], Result], slurm: Slurm) -> None:
    assert run_client("with_submitit.py", "submitit").stdout.split("\n") == ["3", "[11, 22, 33]", "True", ""]
    states = Counter((job.user, job.name, job.state) for _, job in slurm.jobs())
    assert states == {("alice", "submitit", "COMPLETED"): 4, ("alice", "submitit", "FAILED"): 1}


def test_dask_jobqueue_computes_on_workers_in_jobs(run_client: Callable[[str, str], Result], slurm: Slurm) -> None:
    assert run_client("with_dask_jobqueue.py", "dask-jobqueue").stdout == "285\n"
    assert [job.name for _, job in slurm.jobs()] == ["dask-worker"] * 2
