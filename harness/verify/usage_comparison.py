"""Compare the usage that sreport prints with the jobs in accounting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from harness.cluster.slurm import Record


def differences(
    records: Sequence[Record], lines: Iterable[str], start: int, reserved: Collection[str] = ()
) -> list[str]:
    """Return the users of accounts whose CPU seconds since `start` differ from those of their jobs.

    `lines` are those of `sreport cluster AccountUtilizationByUser`, which may be of several hours:
    cluster, account, user and CPU seconds. Left out are users whose jobs still run, or began before
    `start`, and the clusters that had reservations, whose idle time counts as their users'.
    """
    wanted: Counter[tuple[str, str, str]] = Counter()
    unknown = set()
    for record in records:
        key = (record.cluster, record.account, record.user)
        if record.start and (record.end is None or record.start < start < record.end):
            unknown.add(key)
        elif record.end is not None and record.end > start:
            wanted[key] += record.cpus * record.elapsed
    printed: Counter[tuple[str, str, str]] = Counter()
    for line in lines:
        cluster, account, user, seconds = line.split("|")
        if user:  # otherwise the sum of the account
            printed[cluster, account, user] += int(seconds)
    return [
        f"{'/'.join(key)}: sreport has {printed[key]} CPU seconds, "
        f"the jobs in accounting have {wanted[key]}"
        for key in sorted({*wanted, *printed} - unknown)
        if printed[key] != wanted[key] and key[0] not in reserved
    ]
