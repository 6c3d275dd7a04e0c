"""srun starts MPI programs: their ranks find each other, and end together."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from conftest import Jobs, everywhere, only, problems_on, reserved_nodes, slurm_conf
from early_jobs import HUNG_RANK, WORLD, mpi_plugins
from test_jobs import most_nodes

from harness import releases
from harness.cluster.slurm import SlurmCluster
from harness.errors import WaitTimeout
from harness.plan import Plan
from harness.ssh import Result, Ssh

pytestmark = pytest.mark.needs("mpi")

# Each rank prints that it begins, and a sum that takes all ranks. A rank that srun has not
# connected to the others is rank 0 of 1. A rank of Open MPI 5 that gets a message before it has
# left MPI_Init can crash (open-mpi/ompi pull request 13559), so none is sent at once.
SUM = """
import os, time
print("begun on", os.environ["SLURMD_NODENAME"], flush=True)
time.sleep(1)
total = world.allreduce(world.rank + 1)
print("rank", world.rank, "of", world.size, "on", os.environ["SLURMD_NODENAME"], "sum", total)
"""
# The last rank ends the others, which wait for a message that none sends.
ABORT = """
world.Abort(7) if world.rank == world.size - 1 else world.recv()
"""
# Exit codes of srun if a rank has aborted with 7, for plugins that may not keep it: pmi2 kills the
# step, and that rank with it (_handle_abort in Slurm's pmi1.c and pmi2.c); on 26.05, srun ends it.
ABORTED = {"pmi2": {7, 128 + signal.SIGKILL, 128 + signal.SIGTERM}}
# Clusters, each with one of its plugins.
Plugins = list[tuple[str, str]]
Program = Callable[[str, str, str], Result]


@pytest.fixture
def plugins(plan: Plan) -> Plugins:
    """The clusters, each with one of the plugins to check that its packages have."""
    plugins = [
        (name, plugin) for name in plan.scenario.clusters for plugin in mpi_plugins(plan, name)
    ]
    if not plugins:
        wanted = {*plan.scenario.checks.mpi}
        able = [name for name in releases.packaged() if wanted & releases.get(name).mpi]
        pytest.skip(
            f"Debian's packages have mpi/{', mpi/'.join(wanted)} for Slurm {', '.join(able)}, "
            f"not for {', '.join({*plan.releases().values()})}"
        )
    return plugins


@pytest.fixture(scope="session")
def sizes(clusters: dict[str, SlurmCluster], plan: Plan) -> dict[str, int]:
    """The most nodes that a job may have in each cluster's default partition."""

    def size(name: str) -> int:
        cluster, conf = clusters[name], slurm_conf(plan, name)
        default = conf.default_partition()
        partition = next(part for part in cluster.partitions() if part.name == default)
        free = {*partition.nodes} - reserved_nodes(cluster, plan)
        return min(len(free), most_nodes([partition], plan, name, conf)[default])

    return everywhere(size, clusters)


@pytest.fixture
def run_ranks(
    clusters: dict[str, SlurmCluster], plan: Plan, jobs: Jobs, sizes: dict[str, int]
) -> Program:
    """A function that runs a Python program as ranks with a plugin, at least two of them."""

    def run(name: str, plugin: str, program: str) -> Result:
        cluster, nodes = clusters[name], sizes[name]
        return cluster.run(
            *("srun", *only(cluster, plan), *jobs.access_options(cluster), f"--mpi={plugin}"),
            *(f"--nodes={nodes}", f"--ntasks={max(nodes, 2)}", "python3", "-c", WORLD + program),
            user=jobs.user,
            check=False,
        )

    return run


def test_ranks_on_all_nodes_compute_together(
    plugins: Plugins, sizes: dict[str, int], run_ranks: Program
) -> None:
    """At least two ranks, on as many nodes of the default partition as a job may have."""

    def compute(pair: tuple[str, str]) -> None:
        name, plugin = pair
        ranks = max(sizes[name], 2)
        what = f"{name}: srun --mpi={plugin}"
        try:
            answer = run_ranks(name, plugin, SUM)
        except WaitTimeout as error:
            raise WaitTimeout(
                f"{what}: of {ranks} ranks, {error.printed.count('begun')} began and "
                f"{error.printed.count('sum')} ended: {error}"
            ) from error
        assert answer.exit_code == 0, f"{what} ends with {answer.exit_code}: {answer.stderr}"
        results = [line.split() for line in answer.stdout.splitlines() if "sum" in line]
        wanted = [(rank, ranks, ranks * (ranks + 1) // 2) for rank in range(ranks)]
        seen = sorted((int(line[1]), int(line[3]), int(line[7])) for line in results)
        assert seen == wanted, f"{what}: rank, number of ranks and their sum: {seen}"
        assert len({line[5] for line in results}) == sizes[name], f"{what}: {answer.stdout}"

    everywhere(compute, plugins)


def test_abort_of_a_rank_ends_all_with_its_exit_code(plugins: Plugins, run_ranks: Program) -> None:
    """The others wait for a message, and must not wait on."""

    def abort(pair: tuple[str, str]) -> None:
        name, plugin = pair
        answer = run_ranks(name, plugin, ABORT)
        assert answer.exit_code in ABORTED.get(plugin, {7}), (
            f"{name}: srun --mpi={plugin} ends with {answer.exit_code}, the rank that aborted "
            f"with 7: {answer.stderr}"
        )

    everywhere(abort, plugins)


def test_hung_rank_is_killed_at_the_time_limit(
    plan: Plan,
    ssh: Ssh,
    plugins: Plugins,
    hung_ranks: list[tuple[SlurmCluster, int]],
) -> None:
    """All ranks wait for a message. Once the job has ended, no host has any left."""
    for cluster, job_id in hung_ranks:
        cluster.wait_for([job_id], {"TIMEOUT"}, timeout=300)

    def left(host: str) -> list[str]:
        ids = ssh.run(host, ["pgrep", "--full", HUNG_RANK], check=False).stdout
        return [f"{host}: process {pid} outlived its job" for pid in ids.split()]

    hosts = [host.name for host in plan.permanent_hosts() if host.nodes]
    problems = problems_on(hosts, left)
    assert not problems, "\n".join(problems)
