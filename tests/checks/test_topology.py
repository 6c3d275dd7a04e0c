"""Jobs are placed as the topology of their partition requires."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from conftest import Jobs, only

from harness import releases, topology
from harness.cluster import slurm
from harness.cluster.slurm import Job, SlurmCluster
from harness.errors import WaitTimeout
from harness.parsing import hostlist
from harness.plan import Plan
from harness.topology import Level, Placed, Unit
from harness.wait import wait_until

pytestmark = pytest.mark.needs("topology", "static")

# How many seconds a job waits for the switches that it requests, after Slurm first considers it.
SECONDS_FOR_SWITCHES = 5
# The nodes of each switch, block or torus.
Parts = Mapping[str, Iterable[str]]


@dataclass(frozen=True)
class Fabric:
    """A live cluster with one of the topologies that place its jobs."""

    cluster: SlurmCluster
    placed: Placed

    def __str__(self) -> str:
        return (
            f"{self.cluster.name}, partition {self.placed.partition}, topology {self.placed.name}"
        )

    def submit(self, jobs: Jobs, count: int, *more: str) -> int:
        """Submit a job that requests this many whole nodes."""
        wanted = (f"--partition={self.placed.partition}", f"--nodes={count}", "--exclusive")
        return jobs.submit_here(self.cluster, "true", *wanted, *more)

    def ran_on(self, job_id: int) -> set[str]:
        """Wait until a job has ended, and return its nodes."""
        (job,) = self.cluster.wait_for([job_id], {"COMPLETED"}, timeout=120)
        return {*hostlist.expand(job.node_list)}


@pytest.fixture
def fabrics(clusters: dict[str, SlurmCluster], plan: Plan) -> list[Fabric]:
    """All topologies that place jobs."""
    return [
        Fabric(clusters[name], placed)
        for name in clusters
        for placed in topology.placed_once(plan.scenario, name)
    ]


@pytest.fixture
def at_rest(clusters: dict[str, SlurmCluster], plan: Plan) -> Callable[[], None]:
    """Return a function that waits until all nodes are idle: another check's job may still run."""
    return lambda: slurm.wait_until_ready(plan, clusters, timeout=240, idle=True)


@contextmanager
def kept_free_of_jobs(cluster: SlurmCluster, nodes: Iterable[str]) -> Iterator[None]:
    """Reserve nodes so that no jobs use them: the topology would influence jobs that fill them."""
    name = f"check-{secrets.token_hex(4)}"
    wanted = (
        f"Nodes={hostlist.fold(nodes)}",
        "StartTime=now",
        "Duration=30",
        "Users=root",
        "Flags=IGNORE_JOBS",
    )
    cluster.run("scontrol", "create", "reservation", f"ReservationName={name}", *wanted)
    try:
        yield
    finally:
        cluster.run("scontrol", "delete", f"ReservationName={name}")


def without_room(units: Level, size: int, free: Unit | None = None) -> set[str]:
    """Return nodes to take so that only the unit `free` has room for a job of this size."""
    taken: set[str] = set()
    for unit in units:
        if unit != free:
            left = [node for node in unit.nodes if node not in taken]
            can_go = [node for node in left if not (free and node in free.nodes)]
            taken.update(can_go[: max(len(left) - size + 1, 0)])
    return taken


def test_every_switch_block_and_torus_has_its_nodes(fabrics: list[Fabric], plan: Plan) -> None:
    wrong: list[str] = []
    for fabric in fabrics:
        release = releases.get(plan.releases()[fabric.cluster.name])
        name = [fabric.placed.name] if release.topology_file == "topology.yaml" else []
        wanted = topology.parts(fabric.placed.topology)
        if release.lists_joined_blocks:
            wanted |= topology.joined_blocks(fabric.placed.topology)
        if not (seen := fabric.cluster.topology(*name)):
            wrong.append(f"{fabric}: slurmctld prints no topology")
            continue
        wrong += [
            f"{fabric}: {difference}"
            for difference in differences(seen, wanted, release.topology_file)
        ]
    assert not wrong, "\n".join(wrong)


def differences(seen: Parts, wanted: Parts, file: str) -> Iterator[str]:
    """Yield a line for each switch, block or torus whose nodes differ in slurmctld and its file."""
    for part in {**wanted, **seen}:
        held, right = (
            hostlist.fold(parts[part]) if part in parts else "missing" for parts in (seen, wanted)
        )
        if held != right:
            yield f"{part} is {held} in slurmctld's memory, {right} in {file}"


@pytest.mark.needs("placement")
def test_job_gets_the_only_switch_block_or_sub_cube_that_has_room(
    fabrics: list[Fabric], at_rest: Callable[[], None], jobs: Jobs
) -> None:
    """Without a topology, it would get nodes of several units."""
    for fabric in fabrics:
        for level in fabric.placed.choices():
            at_rest()
            size = max(len(unit.nodes) for unit in level)
            free = [unit for unit in level if len(unit.nodes) == size][-1]
            with kept_free_of_jobs(fabric.cluster, without_room(level, size, free)):
                seen = fabric.ran_on(fabric.submit(jobs, size))
            result = f"{fabric}: a job of {size} nodes got {hostlist.fold(seen)}"
            assert seen == {*free.nodes}, (
                f"{result}, not {free.name}: {hostlist.fold(free.nodes)}; "
                "slurmctld may have read a different topology or order of nodes"
            )


@pytest.mark.needs("switches")
def test_job_waits_for_the_switches_that_it_requests_and_then_takes_others(
    fabrics: list[Fabric], at_rest: Callable[[], None], jobs: Jobs
) -> None:
    for fabric in fabrics:
        if leaves := fabric.placed.leaves():
            at_rest()
            size = max(len(leaf.nodes) for leaf in leaves)
            with kept_free_of_jobs(fabric.cluster, without_room(leaves, size)):
                job_id = fabric.submit(jobs, size, f"--switches=1@0:{SECONDS_FOR_SWITCHES:02}")
                seen = fabric.ran_on(job_id)
            taken = [leaf.name for leaf in leaves if seen & {*leaf.nodes}]
            assert len(taken) > 1, f"{fabric}: it got {hostlist.fold(seen)} of {taken}"
            waited = seconds_until_start(fabric.cluster, job_id)
            assert waited >= SECONDS_FOR_SWITCHES, (
                f"{fabric}: it took switches {taken} after only {waited} s"
            )


def seconds_until_start(cluster: SlurmCluster, job_id: int) -> int:
    """Return how long a job waited."""
    command = (
        "env",
        "SLURM_TIME_FORMAT=%s",
        "squeue",
        "--noheader",
        "--states=all",
        "--format=%V %S",
    )
    submitted, started = cluster.run(*command, f"--jobs={job_id}").stdout.split()
    return int(started) - int(submitted)


@pytest.mark.needs("segments")
def test_job_in_segments_takes_blocks_or_sub_cubes_that_do_not_form_a_larger_one(
    fabrics: list[Fabric], at_rest: Callable[[], None], jobs: Jobs
) -> None:
    """A job of the same size without segments waits."""
    for fabric in fabrics:
        if not (segments := fabric.placed.segments()):
            continue
        at_rest()
        free = {node for unit in segments for node in unit.nodes}
        with kept_free_of_jobs(fabric.cluster, fabric.placed.nodes - free):
            whole = fabric.submit(jobs, len(free))
            job = looked_at(fabric.cluster, whole)
            assert job.state == "PENDING", (
                f"{fabric}: a job got {job.node_list}, which is not a larger unit"
            )
            fabric.cluster.run("scancel", str(whole))
            option = f"--segment={len(segments[0].nodes)}"
            in_segments = fabric.submit(jobs, len(free), option)
            try:
                nodes = fabric.ran_on(in_segments)
            except WaitTimeout as error:
                pytest.fail(f"{fabric}: a job with {option} did not get {sorted(free)}: {error}")
            assert nodes == free, f"{fabric}: a job with {option}"


def looked_at(cluster: SlurmCluster, job_id: int) -> Job:
    """Wait until slurmctld has tried to start a job."""
    return wait_until(
        lambda: cluster.job(job_id),
        lambda job: (
            job is not None and (job.state != "PENDING" or job.reason not in {"None", "Priority"})
        ),
        what=f"slurmctld to consider job {job_id}",
        timeout=120,
    )


@pytest.mark.needs("users")
def test_job_sees_where_its_node_is(fabrics: list[Fabric], plan: Plan, users: list[str]) -> None:
    """The address comes from the default topology, even if another topology places the job.

    See topology_g_get_node_addr().
    """
    for fabric in fabrics:
        default = next(iter(plan.scenario.clusters[fabric.cluster.name].topology.values()))
        count = fabric.placed.most_nodes()
        task = ["sh", "-c", "echo $SLURMD_NODENAME $SLURM_TOPOLOGY_ADDR"]
        wanted = (
            f"--partition={fabric.placed.partition}",
            f"--nodes={count}",
            "--ntasks-per-node=1",
        )
        answer = fabric.cluster.run(
            "srun", *only(fabric.cluster, plan), *wanted, *task, user=users[0]
        ).stdout
        # A leaf directly below the top has empty levels in between.
        seen = {
            node: re.sub(r"\.+", ".", address)
            for node, address in map(str.split, answer.splitlines())
        }
        right = {node: topology.address(default, node) for node in seen}
        wrong = [
            f"{fabric}: slurmd of {node} places it at {address}, should be {right[node]}"
            for node, address in sorted(seen.items())
            if address != right[node]
        ]
        assert not wrong, "\n".join(wrong)
        assert len(seen) == count, (
            f"{fabric}: tasks ran on {hostlist.fold(seen)}, should be {count} nodes"
        )
