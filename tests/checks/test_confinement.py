"""Cgroups confine jobs to their CPUs, memory and devices."""

from __future__ import annotations

import re

import pytest
from conftest import Jobs, small_here, wait_for_records

from harness.cluster.slurm import SlurmCluster
from harness.plan import Plan
from harness.ssh import Ssh

pytestmark = [pytest.mark.needs("users"), pytest.mark.provokes()]

MINUTES = 10


@pytest.mark.needs("confined_cpus")
def test_job_cannot_use_more_cpus_than_it_was_allocated(
    clusters: dict[str, SlurmCluster], plan: Plan, users: list[str], jobs: Jobs
) -> None:
    take_all = (
        "taskset --cpu-list --pid 0-$(($(nproc --all) - 1)) $$ > /dev/null; "
        "echo $(nproc) $SLURM_CPUS_ON_NODE"
    )
    for name in plan.clusters_that_confine("ConstrainCores"):
        cluster = clusters[name]
        options = small_here(cluster, plan, jobs, MINUTES)
        usable, allocated = cluster.run(
            "srun", *options, "sh", "-c", take_all, user=users[0]
        ).stdout.split()
        assert usable == allocated, (
            f"{name}: a job that was allocated {allocated} CPUs runs on {usable}"
        )


@pytest.mark.needs("confined_memory")
def test_job_that_exceeds_its_memory_is_killed_and_recorded_as_out_of_memory(
    clusters: dict[str, SlurmCluster], plan: Plan, jobs: Jobs
) -> None:
    """The command tail keeps the last line in memory, here the whole input."""
    for name in plan.clusters_that_confine_memory():
        cluster = clusters[name]
        greedy = "#!/bin/sh\nhead --bytes=150M /dev/zero | tail > /dev/null\n"
        options = [*small_here(cluster, plan, jobs, MINUTES), "--output=/dev/null"]
        job_id = cluster.submit(greedy, *options, user=jobs.user)
        cluster.wait_for([job_id], {"OUT_OF_MEMORY"})
        if plan.scenario.accounting:
            wait_for_records(cluster, {job_id: ("OUT_OF_MEMORY", None)})


@pytest.mark.needs("confined_devices")
def test_job_can_open_only_the_devices_of_its_gpus(
    clusters: dict[str, SlurmCluster], plan: Plan, ssh: Ssh, users: list[str], jobs: Jobs
) -> None:
    """Also if it ignores CUDA_VISIBLE_DEVICES."""
    show = (
        'for device in "$@"; do (: < "$device") 2> /dev/null && echo "$device"; done;'
        ' scontrol show job --details "$SLURM_JOB_ID" | grep -o "IDX:[0-9]*"'
    )
    for name in plan.clusters_that_confine("ConstrainDevices"):
        cluster = clusters[name]
        for node in plan.scenario.clusters[name].gpus():
            devices = _gpu_devices(ssh, plan.hosts_of(name)[node])
            options = [*small_here(cluster, plan, jobs, MINUTES), f"--nodelist={node}"]
            for gpus in (0, 1):
                command = ["srun", *options, *[f"--gres=gpu:{gpus}"] * gpus, "sh", "-c", show, "sh"]
                lines = cluster.run(*command, *devices, user=users[0], check=False).stdout.split()
                own = [devices[int(line[4:])] for line in lines if line.startswith("IDX:")]
                opened = [line for line in lines if line in devices]
                assert len(own) == gpus, f"{node}: a job with {gpus} GPUs has {own}"
                assert opened == own, (
                    f"{node}: a job can open {' '.join(opened) or 'no device'} of"
                    f" {' '.join(devices)}, but its GPU is {' '.join(own) or 'none'}"
                )


def _gpu_devices(ssh: Ssh, host: str) -> list[str]:
    """Return the device files of a host's GPUs, in the order of their numbers in Slurm."""
    shown = ssh.run(host, ["slurmd", "-G"])
    found = re.findall(r"Gres Name=gpu .*File=(\S+)", shown.stdout + shown.stderr)
    assert found, f"{host}: slurmd -G shows no device of a GPU: {shown.stdout}{shown.stderr}"
    return ssh.run(host, ["scontrol", "show", "hostnames", ",".join(found)]).stdout.split()
