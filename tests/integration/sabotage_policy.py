"""Sabotages of a policy: limits, partitions, preemption, users' rights and PrivateData."""

from __future__ import annotations

from sabotage import CONF, DBD_CONF, RESTART_SLURMDBD, Sabotage, at_once
from sabotage_configuration import RECONFIGURE

_RIGHTS = "administrators_and_coordinators"
_PRIVATE = "private_data"
_POLICY = "partitions_and_limits"
_HIDDEN = "PrivateData"


def changed(check: str, do: str, undo: str, message: str) -> Sabotage:
    """Return a sabotage of the scenario policy.yml: a command, and one that undoes it."""
    return Sabotage((check,), ("p1", do), ("p1", undo), message)


def read(option: str, value: str, conf: str, reload: str) -> tuple[str, str]:
    """Return scripts that make a daemon read another value than its file then has."""
    change = f"sed -i.right s/^{option}=.*/{option}={value}/ {conf}"
    # A daemon may not read a file that belongs to another user.
    restore = f"sed -i s/^{option}=.*/$(grep ^{option}= {conf}.right)/ {conf}; rm {conf}.right"
    return f"{change}; {reload}; {restore}", reload


POLICY = [
    at_once(
        changed(
            _POLICY,
            "sacctmgr -i modify account physics set grptres=cpu=-1",
            "sacctmgr -i modify account physics set grptres=cpu=8",
            "Assoc limit GrpTRES cpu=8 of alice",
        ),
        changed(
            _POLICY,
            "scontrol update reservationname=lab accounts=physics,chemistry",
            "scontrol update reservationname=lab accounts=physics",
            "reservation lab refuses bob",
        ),
        changed(
            _POLICY, *read("Licenses", "matlab:3", CONF, RECONFIGURE), "3 of 2 licenses matlab"
        ),
    ),
    changed(
        _POLICY,
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
    changed(
        "priority_follows",
        *read("PriorityWeightQOS", "5000", CONF, RECONFIGURE),
        "jobs of alice that differ in QOS (short with QOS patient and short with QOS normal) have",
    ),
    changed(
        "priority_follows",
        "scontrol update partitionname=long priorityjobfactor=1",
        "scontrol update partitionname=long priorityjobfactor=4",
        "jobs of alice that differ in partition (long with QOS normal and short with QOS normal)",
    ),
    at_once(
        changed(
            _RIGHTS,
            "sacctmgr -i modify user olga set adminlevel=none",
            "sacctmgr -i modify user olga set adminlevel=operator",
            "olga (AdminLevel operator) cannot create and delete a reservation",
        ),
        changed(
            _RIGHTS,
            "sacctmgr -i modify user alice set adminlevel=operator",
            "sacctmgr -i modify user alice set adminlevel=none",
            "alice (AdminLevel none) may not cancel a job of bob in account chemistry, but can",
        ),
        changed(
            _RIGHTS,
            "sacctmgr -i delete coordinator account=physics names=carol",
            "sacctmgr -i add coordinator account=physics names=carol",
            "carol (AdminLevel none, coordinator of physics) cannot add bob to account physics",
        ),
        changed(
            _RIGHTS,
            "sacctmgr -i modify user adam set adminlevel=operator",
            "sacctmgr -i modify user adam set adminlevel=administrator",
            "adam (AdminLevel administrator) cannot change QOS normal",
        ),
    ),
    changed(
        _RIGHTS,
        "sacctmgr -i modify user alice set adminlevel=administrator",
        "sacctmgr -i modify user alice set adminlevel=none",
        "alice (AdminLevel none) may not change NodeName=n1 Weight=1, but can",
    ),
    changed(
        _PRIVATE,
        *read(_HIDDEN, "partitions", CONF, RECONFIGURE),
        "bob sees jobs of others",
    ),
    changed(
        _PRIVATE,
        *read(_HIDDEN, "partitions", CONF, RECONFIGURE),
        "bob does not see partitions of others",
    ),
    changed(
        _PRIVATE,
        *read(_HIDDEN, "none", DBD_CONF, RESTART_SLURMDBD),
        "bob sees accounts of others",
    ),
]
