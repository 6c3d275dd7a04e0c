"""Slurm's answers to submissions: whether they are as expected, and how two differ. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from harness.parsing import durations

# The columns of what slurmctld holds, which have the names of sbatch's options, and the fields of
# `scontrol show job`, of which the first that is printed counts: TRES is ReqTRES since 23.02.
# "nodes" is the smallest number.
FIELDS = {
    "partition": ("Partition",),
    "qos": ("QOS",),
    "account": ("Account",),
    "time": ("TimeLimit",),
    "nodes": ("NumNodes",),
    "ntasks": ("NumTasks",),
    "cpus": ("NumCPUs",),
    "tres": ("ReqTRES", "TRES"),
    "gres": ("TresPerNode",),
    "constraint": ("Features",),
    "licenses": ("Licenses",),
    "reservation": ("Reservation",),
    "priority": ("Priority",),
}
COLUMNS = ("outcome", "reason", "message", *FIELDS)
# What `expect` can name.
EXPECTABLE = ("accepted", *COLUMNS)
REFUSED, WAITS, STARTS = "refused", "waits", "starts"
# Columns for which a part of the text may be expected.
_TEXTS = frozenset({"reason", "message"})


@dataclass(frozen=True, slots=True)
class Answer:
    """Slurm's answer to a submission.

    `outcome` is refused, waits or starts. `reason` is why: the message of sbatch, or squeue's
    REASON. `message` is what sbatch printed although it submitted the job, for example from
    slurm.log_user() in job_submit.lua. `held` is what slurmctld held, by column. `changed` are the
    options that slurmctld held differently, `unexpected` what differs from `expect`.
    """

    row: str
    place: str
    user: str
    cluster: str
    outcome: str
    reason: str = ""
    message: str = ""
    held: Mapping[str, str] = field(default_factory=dict)
    changed: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "; ".join([f"{self.row}: {self.outcome}", *self.unexpected])

    def columns(self) -> dict[str, str]:
        """Return the value of each column; "" for none."""
        own = {"outcome": self.outcome, "reason": self.reason, "message": self.message}
        return {column: own.get(column) or self.held.get(column, "") for column in COLUMNS}


def held(details: Mapping[str, str]) -> dict[str, str]:
    """Return the columns of the fields of `scontrol show job`; those without a value are left out.

    >>> held({"NumNodes": "2-4", "Features": "(null)", "TresPerNode": "gres/gpu:1"})
    {'nodes': '2', 'gres': 'gpu:1'}
    """
    columns = {
        column: next((details[name] for name in names if name in details), "")
        for column, names in FIELDS.items()
    }
    # Before 26.05, scontrol prints a range only if the job requests one.
    columns["nodes"] = columns["nodes"].partition("-")[0]
    # 20.11 prints "gres:gpu:1 NtasksPerTRES:0".
    columns["gres"] = re.sub(r"\bgres[:/]", "", columns["gres"].partition(" ")[0])
    return {name: value for name, value in columns.items() if value not in {"", "(null)", "N/A"}}


def changed(requested: Mapping[str, str], holds: Mapping[str, str]) -> tuple[str, ...]:
    """Return the options that were requested and are held with a different value.

    >>> changed({"time": "120", "qos": "quick"}, {"time": "02:00:00", "qos": "normal"})
    ('qos: quick -> normal',)
    """
    return tuple(
        f"{name}: {value} -> {holds.get(name, '-')}"
        for name, value in requested.items()
        if name in FIELDS and canonical(name, value) != canonical(name, holds.get(name, ""))
    )


def unexpected(expected: Mapping[str, str], answer: Answer) -> tuple[str, ...]:
    """Return what differs from what a row expects."""
    columns = answer.columns() | {"accepted": str(answer.outcome != REFUSED).lower()}
    return tuple(
        f'{name}: expected "{value}", is "{columns[name]}"'
        for name, value in expected.items()
        if not _meets(name, value, columns[name])
    )


def _meets(name: str, expected: str, value: str) -> bool:
    if name in _TEXTS and expected:
        return expected in value
    if name == "tres" and expected:
        return {*expected.split(",")} <= {*value.split(",")}
    if name == "accepted":
        return (expected in {"true", "yes"}) == (value == "true")
    return canonical(name, expected) == canonical(name, value)


def canonical(name: str, value: str) -> object:
    """Return a value so that different spellings of it are equal.

    >>> canonical("time", "2-00:00:00") == canonical("time", "2880")
    True
    >>> canonical("licenses", "matlab") == canonical("licenses", "matlab:1")
    True
    """
    text = value.lower()
    match name:
        case "time":
            try:
                return -(-durations.seconds(text) // 60)  # slurmctld holds whole minutes
            except ValueError:
                return "unlimited" if text in {"unlimited", "infinite", "-1"} else text
        case "partition" | "qos":
            return {*text.split(",")}
        case "licenses" | "gres":
            items = (item for item in text.removeprefix("gres:").split(",") if item)
            return {item if re.search(r":\d+\w?$", item) else f"{item}:1" for item in items}
        case "nodes":
            return text.partition("-")[0]
        case _:
            return text


def differences(
    before: Sequence[Answer], after: Sequence[Answer]
) -> dict[str, dict[str, tuple[str, str]]]:
    """Return, for each row whose answers differ, the columns that do: before and after."""
    differing = {}
    for old, new in zip(before, after, strict=True):
        columns = new.columns()
        if columns_differing := {
            name: (value, columns[name])
            for name, value in old.columns().items()
            if value != columns[name]
        }:
            differing[old.row] = columns_differing
    return differing
