"""Faults of hosts: without power, hanging, rebooted."""

from __future__ import annotations

from harness.cluster import slurm
from harness.cluster.slurm import Node
from harness.errors import CommandFailed, Unreachable, WaitTimeout
from harness.faults import network
from harness.faults.model import Fault, Kind
from harness.open_run import OpenRun
from harness.providers import CanPause, CanPower, ability
from harness.wait import wait_until

# Seconds that a slurmd may take to register with a busy slurmctld.
_REGISTERED = 300
# The reason that slurmctld gives for a node whose reboot it did not request.
_REBOOTED = "Node unexpectedly rebooted"


def _kill(run: OpenRun, fault: Fault) -> None:
    ability(run.provider, CanPower, str(fault)).kill(run.directory.id, fault.on)


def _start(run: OpenRun, fault: Fault) -> None:
    if not run.provider.hosts(run.directory.id).get(fault.on):
        run.start_host(fault.on)
        network.set_filter(run, fault.on)
    _resume_nodes(run, fault.on)


def _reboot(run: OpenRun, fault: Fault) -> None:
    ability(run.provider, CanPower, str(fault)).stop(run.directory.id, fault.on)
    run.start_host(fault.on)
    network.set_filter(run, fault.on)


def _pause(run: OpenRun, fault: Fault) -> None:
    ability(run.provider, CanPause, str(fault)).pause(run.directory.id, fault.on)


def _unpause(run: OpenRun, fault: Fault) -> None:
    ability(run.provider, CanPause, str(fault)).unpause(run.directory.id, fault.on)
    network.set_filter(run, fault.on)


def _resume_nodes(run: OpenRun, name: str) -> None:
    """Resume a host's nodes that are DOWN because they rebooted: slurm.conf(5), ReturnToService.

    To Slurm, hosts that share a kernel reboot only when their engine's machine does
    (validate_node_specs in slurmctld's node_mgr.c). A node that does not register, perhaps because
    of another fault, stays as it is.
    """
    host = run.plan.host(name)
    if not (run.plan.capabilities.own_kernel and host.cluster and "slurmd" in host.daemons):
        return
    cluster = slurm.clusters(run.ssh, run.plan)[host.cluster]
    # Fails until slurmd has started: date(1) takes no time for midnight.
    show = (
        "at=$(systemctl show --property=ExecMainStartTimestamp --value slurmd);"
        ' [ -n "$at" ] && date -d "$at" +%s'
    )

    def registered() -> list[Node]:
        started = int(run.ssh.run(name, ["sh", "-c", show]).stdout)
        nodes = [node for node in cluster.nodes() if node.name in host.nodes]
        return [node for node in nodes if (node.slurmd_start or 0) >= started]

    try:
        nodes = wait_until(
            registered,
            lambda nodes: len(nodes) == len(host.nodes),
            what=f"{name} to register",
            timeout=_REGISTERED,
            ignore=(CommandFailed, Unreachable),
        )
    except WaitTimeout as error:
        run.say(str(error))
        return
    for node in nodes:
        if "DOWN" in node.state and _REBOOTED in node.reason:
            cluster.run("scontrol", "update", f"NodeName={node.name}", "State=RESUME")


KINDS = {
    "kill-host": Kind("a host loses power", _kill, _start, needs=CanPower),
    "pause-host": Kind("a host hangs", _pause, _unpause, needs=CanPause),
    "reboot-host": Kind("a host is rebooted", _reboot, _start, needs=CanPower),
}
