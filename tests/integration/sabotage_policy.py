"""Sabotages of a policy: a limit, a partition and a preemption that differ from the scenario's."""

from __future__ import annotations

from sabotage import Sabotage


def changed(check: str, do: str, undo: str, message: str) -> Sabotage:
    """Return a sabotage of the scenario policy.yml: a command, and one that undoes it."""
    return Sabotage((check,), ("p1", do), ("p1", undo), message)


POLICY = [
    changed(
        "partitions_and_limits",
        "sacctmgr -i modify account physics set grptres=cpu=-1",
        "sacctmgr -i modify account physics set grptres=cpu=8",
        "Assoc limit GrpTRES cpu=8 of alice",
    ),
    changed(
        "partitions_and_limits",
        "scontrol update partitionname=long allowaccounts=all",
        "scontrol update partitionname=long allowaccounts=physics",
        "partition long refuses bob",
    ),
    changed(
        "preempt_those_of_lower_qos",
        "sacctmgr -i modify qos quick set preempt-=patient",
        "sacctmgr -i modify qos quick set preempt=patient",
        "RUNNING",
    ),
]
