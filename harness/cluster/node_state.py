"""What a node's state means. Pure.

A state is Slurm's text, a base state and its flags: `DOWN+CLOUD+POWERED_DOWN` (scontrol(1), "show
node"; `node_state_flags` in slurm_protocol_defs.c), or what `normalized` makes of a text of 20.11.
"""

from __future__ import annotations

import re

from harness.slurm_options import LEDGER_GRES

# A node of a maintenance reservation is MAINT in 20.11, and MAINTENANCE in 22.05 at the latest.
_OUT_OF_SERVICE = frozenset(
    [
        "DOWN",
        "DRAIN",
        "FAIL",
        "FAILING",
        "INVAL",
        "INVALID_REG",
        "MAINT",
        "MAINTENANCE",
        "NOT_RESPONDING",
        "UNKNOWN",
    ]
)
_LOST = frozenset(["DOWN", "FAIL", "NOT_RESPONDING", "UNKNOWN"])
_IDLE = frozenset(["IDLE", "DYNAMIC_NORM", "RESERVED"])
_IN_SERVICE = _IDLE | frozenset(["ALLOCATED", "BLOCKED", "CLOUD", "COMPLETING", "MIXED", "PLANNED"])
_POWERED_DOWN = frozenset(["IDLE", "CLOUD", "POWERED_DOWN"])
# Flags in order of precedence in the report: a node that is powered down or not up yet may be DOWN,
# too.
_POWER_PHASES = {
    "POWERING_UP": "coming",
    "POWERING_DOWN": "going",
    "POWER_DOWN": "going",
    "POWERED_DOWN": "",
}
_PHASES = _POWER_PHASES | {"DOWN": "down", "FAIL": "down", "DRAIN": "drained"}
# The reason of a node that drained and was resumed for the ledger: Slurm lets a reason be changed,
# but never removed.
RESUMED = "resumed"
# Why slurmctld drains a node that registers again after its gres was cut while jobs use it:
# _node_config_validate() in gres.c.
_CUT_IN_USE = tuple(f"gres/{name} count changed and jobs are using them" for name in LEDGER_GRES)
# What 20.11 prints after a base state (node_state_string() in slurm_protocol_defs.c).
_SYMBOLS = {
    "*": "NOT_RESPONDING",
    "$": "MAINTENANCE",
    "@": "REBOOT_REQUESTED",
    "#": "POWERING_UP",
    "%": "POWERING_DOWN",
    "~": "POWERED_DOWN",
}


def normalized(state: str) -> str:
    """Return a state with the flags of later releases in place of those of 20.11.

    slurm_sprint_node_table() in 20.11's node_info.c names power saving POWER.

    >>> normalized("DOWN*+CLOUD+POWER"), normalized("IDLE+CLOUD+POWERED_DOWN")
    ('DOWN+NOT_RESPONDING+CLOUD+POWERED_DOWN', 'IDLE+CLOUD+POWERED_DOWN')
    """
    for symbol, flag in _SYMBOLS.items():
        state = state.replace(symbol, f"+{flag}")
    return re.sub(r"\+POWER\b", "+POWERED_DOWN", state)


def words(state: str) -> set[str]:
    """Return the base state and the flags of a state.

    >>> sorted(words("DOWN+CLOUD"))
    ['CLOUD', 'DOWN']
    """
    return {*state.split("+")}


def takes_jobs(state: str) -> bool:
    """Return whether a node takes jobs, or is full.

    >>> takes_jobs("MIXED+COMPLETING"), takes_jobs("IDLE+DRAIN")
    (True, False)
    >>> takes_jobs("ALLOCATED+NOT_RESPONDING")
    False
    """
    return words(state) <= _IN_SERVICE


def is_idle(state: str) -> bool:
    """Return whether a node is in service and has no job."""
    return words(state) <= _IDLE


def is_out_of_service(state: str) -> bool:
    """Return whether a node accepts no jobs for a reason other than being powered down."""
    return bool(words(state) & _OUT_OF_SERVICE)


def is_lost(state: str) -> bool:
    """Return whether slurmctld has lost a node: down, failed, or not responding."""
    return bool(words(state) & _LOST)


def is_drained(state: str) -> bool:
    """Return whether a node takes no more jobs and has none."""
    return words(state) >= {"IDLE", "DRAIN"}


def is_draining(state: str) -> bool:
    """Return whether a node takes no more jobs, whether it still has some or not."""
    return "DRAIN" in words(state)


def is_powered_down(state: str) -> bool:
    """Return whether a node is powered down and a job may resume it.

    Such a node need not respond.
    """
    return words(state) - {"NOT_RESPONDING"} == _POWERED_DOWN


def is_suspended(state: str) -> bool:
    """Return whether a node is powered down, or is being powered down.

    >>> is_suspended("IDLE+CLOUD+POWERING_DOWN"), is_suspended("IDLE+CLOUD")
    (True, False)
    """
    return bool(words(state) & {"POWER_DOWN", "POWERING_DOWN", "POWERED_DOWN"})


def has_gone_down(state: str) -> bool:
    """Return whether powering a node down is over."""
    flags = words(state)
    return "POWERED_DOWN" in flags and not flags & {"POWERING_DOWN", "POWER_DOWN"}


def has_come_up(state: str) -> bool:
    """Return whether a node is powered up and responds; it may be drained.

    >>> has_come_up("IDLE+CLOUD+DRAIN"), has_come_up("IDLE+CLOUD+DRAIN+POWERING_UP")
    (True, False)
    """
    return not words(state) & (_LOST | _POWER_PHASES.keys())


def waits_for_operator(state: str, reason: str) -> bool:
    """Return whether a node shared with Kubernetes takes no job until the operator resumes it.

    Nodes that drain for any other reason were drained by a user.
    """
    return "DRAIN" in words(state) and (not reason or reason.startswith((RESUMED, *_CUT_IN_USE)))


def may_return(state: str, reason: str) -> bool:
    """Return whether a node that is out of service may take jobs again without an administrator.

    It did not respond, has not registered yet, or waits for the operator.

    >>> may_return("IDLE+NOT_RESPONDING", ""), may_return("DOWN", "Not responding")
    (True, True)
    >>> may_return("DOWN", "no fan"), may_return("IDLE+DRAIN", "Kill task failed")
    (False, False)
    """
    return (
        bool(words(state) & {"NOT_RESPONDING", "UNKNOWN"})
        or reason.startswith("Not responding")
        or waits_for_operator(state, reason)
    )


def phase(state: str, *, power_is_known: bool = False) -> str:
    """Return the word for a state in the report's timeline, "" for a node in normal service.

    With `power_is_known`, power flags are ignored.

    >>> phase("DOWN+CLOUD+POWERING_UP"), phase("IDLE+DRAIN"), phase("MIXED")
    ('coming', 'drained', '')
    """
    flags = words(state)
    flag = next((flag for flag in _PHASES if flag in flags), "")
    return "" if power_is_known and flag in _POWER_PHASES else _PHASES.get(flag, "")
