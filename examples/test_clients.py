"""Two Slurm clients from PyPI, unmodified."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from harness.ssh import Result
from harness.testing import Slurm


def test_submitit_calls_functions_in_jobs(run_client: Callable[..., Result], slurm: Slurm) -> None:
    # submitit 1.5.4 declares 3.8, but fails with a KeyError on 3.9:
    # github.com/facebookincubator/submitit/issues/1807
    done = run_client("clients/with_submitit.py", "submitit", python=">=3.10")
    assert done.stdout.split("\n") == ["3", "[11, 22, 33]", "True", ""]
    states = Counter((job.user, job.name, job.state) for _, job in slurm.wait_all())
    assert states == {("alice", "submitit", "COMPLETED"): 4, ("alice", "submitit", "FAILED"): 1}


def test_dask_jobqueue_computes_on_workers_in_jobs(
    run_client: Callable[..., Result], slurm: Slurm
) -> None:
    assert run_client("clients/with_dask_jobqueue.py", "dask-jobqueue").stdout == "285\n"
    assert [job.name for _, job in slurm.jobs()] == ["dask-worker"] * 2
