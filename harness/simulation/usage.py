"""Fair-share usage at the beginning of a simulation: read it, and write what slurmctld loads.

Slurm has no command that sets usage. slurmctld loads it from `assoc_usage` in StateSaveLocation,
whose format has been the same since 20.11: load_assoc_usage() of src/common/assoc_mgr.c.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

from harness.errors import UsageError, cannot_read
from harness.scenario import Scenario
from harness.simulation.reading_log import ReadingLog
from harness.site import bundle

# By account and user, in seconds of a CPU.
Usage = Mapping[tuple[str, str], float]
_COLUMNS = ("Account", "User", "RawUsage")
_LARGEST = 1 << 26  # bytes of a file
_MOST_NAMES = 5  # names in a note
_BUNDLE_FILE = "output/sshare.txt"
_HINT = "sshare --all --parsable2 --format=Account,User,RawUsage prints it"


def read(path: Path) -> dict[tuple[str, str], float]:
    """Return the usage of each user's associations from the output of sshare, or a site bundle.

    Raises UsageError with all lines that are wrong.
    """
    if not bundle.is_bundle(path):
        return _read(path)
    with bundle.opened(path) as opened:
        if not (opened.root / _BUNDLE_FILE).is_file():
            raise UsageError(
                f"{path} has no fair-share usage",
                hint="harness-collect collects it where PriorityType=priority/multifactor",
            )
        return _read(opened.root / _BUNDLE_FILE)


def _read(path: Path) -> dict[tuple[str, str], float]:
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST + 1)
    except OSError as error:
        raise UsageError(cannot_read(path, error), hint=_HINT) from error
    if len(data) > _LARGEST:
        raise UsageError(f"{path} has more than {_LARGEST} bytes", hint=_HINT)
    header, *lines = data.decode("utf-8", "replace").splitlines() or [""]
    names = [name.strip() for name in header.split("|")]
    if not {*_COLUMNS} <= {*names}:
        raise UsageError(f"{path}:1: no columns {', '.join(_COLUMNS)}", hint=_HINT)
    places = [names.index(name) for name in _COLUMNS]
    log = ReadingLog(path, _HINT)
    usage: dict[tuple[str, str], float] = {}
    for number, line in enumerate(lines, 2):
        cells = line.split("|")
        if len(cells) != len(names):
            log.problem(number, f"{len(cells)} cells, but the header has {len(names)}")
            continue
        account, user, seconds = (cells[place].strip() for place in places)
        if user:  # otherwise the sum of an account
            value = _number(seconds)
            if value is None:
                log.problem(number, f"RawUsage: {seconds[:20]!r} is not a number of seconds")
                continue
            usage[account, user] = usage.get((account, user), 0.0) + value
    log.raise_problems()
    return usage


def _number(text: str) -> float | None:
    try:
        value = float(text or 0)
    except ValueError:
        return None
    return value if 0 <= value < math.inf else None


def of_cluster(usage: Usage, scenario: Scenario) -> tuple[dict[tuple[str, str], float], list[str]]:
    """Return the usage of the associations of a scenario's only cluster, and a note on the others.

    A user has an association with each of the user's accounts on the cluster.
    """
    (name,) = scenario.clusters
    users = scenario.of_cluster(name).users
    known = {(account, user) for user, facts in users.items() for account in facts.accounts}
    lacking = [f"{user} in {account}" for account, user in usage if (account, user) not in known]
    notes = []
    if lacking:
        names = ", ".join(lacking[:_MOST_NAMES]) + (", ..." if len(lacking) > _MOST_NAMES else "")
        notes = [f"usage left out of {len(lacking)} associations that the scenario lacks: {names}"]
    return {pair: seconds for pair, seconds in usage.items() if pair in known}, notes


def state(version: int, moment: float, usage: Iterable[tuple[int, float]]) -> bytes:
    """Return the content of `assoc_usage`: usage by the ids of associations.

    `version` is the protocol version of the slurmctld that loads it.
    """
    parts = [struct.pack(">HQ", version, int(moment))]
    for association, seconds in usage:
        text = f"{seconds:f}".encode() + b"\0"
        # No usage per resource and no wall time: only limits need them.
        parts.append(struct.pack(">II", association, len(text)) + text + struct.pack(">II", 0, 0))
    return b"".join(parts)
