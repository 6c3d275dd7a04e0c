"""What the hosts of a provider can do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What the hosts of a provider can do.

    `cgroups`: Slurm may use the controllers of a cgroup tree, which in containers has version 2.
    `own_hardware`: a host has its CPUs and memory for itself; otherwise nodes have the size in the
    scenario, even if slurmd detects a different one. `engine`: hosts can be created, switched off,
    paused and disconnected from one another. `root`: root can log in over SSH; otherwise a user
    with sudo does. `own_kernel`: hosts are created for the run and boot their own kernel, which may
    take `boot_seconds`. `namespaces`: slurmd can create namespaces, or knows that it cannot
    (max_pid_namespaces is 0).
    """

    cgroups: bool
    own_hardware: bool
    engine: bool = True
    root: bool = True
    own_kernel: bool = False
    boot_seconds: int = 120
    namespaces: bool = True


# On an engine that gives them no cgroup controllers.
CONTAINERS = Capabilities(cgroups=False, own_hardware=False)
OWN_MACHINES = Capabilities(cgroups=True, own_hardware=True, engine=False, root=False)
