"""What jobs and pods may use of the nodes that Slurm and Kubernetes share. Pure.

Pods request Kubernetes quantities, and Slurm counts whole CPUs and MiB: the difference stays
unused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from decimal import Decimal
from math import ceil
from operator import add

# kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity.
# kubernetes.utils.parse_quantity accepts more than the API server does, such as "-1" and "NaN".
_UNITS = {
    "": Decimal(1),
    **{unit: Decimal(1000) ** power for power, unit in zip((-3, -2, -1), "num", strict=True)},
    **{unit: Decimal(1000**power) for power, unit in enumerate("kMGTPE", 1)},
    **{f"{unit}i": Decimal(1024**power) for power, unit in enumerate("KMGTPE", 1)},
}
_MIB = _UNITS["Mi"]
# Kubernetes' resources for whole GPUs, as device plugins name them, and those for parts of GPUs.
_GPU = re.compile(r".*/gpu|gpu\.intel\.com/(i915|xe)")
_PART_OF_A_GPU = re.compile(r".*(gpu|/mig-).*")


@dataclass(frozen=True, slots=True)
class Amount:
    """CPUs, in thousandths, memory in MiB, and GPUs."""

    millicpus: int = 0
    memory: int = 0
    gpus: int = 0

    def __add__(self, other: Amount) -> Amount:
        return self._with(add, other)

    @property
    def cpus(self) -> int:
        """Whole CPUs, rounded up."""
        return ceil(Decimal(self.millicpus) / 1000)

    def fits_in(self, room: Amount) -> bool:
        """Return whether another amount fits in this one."""
        return self.or_more(room) == room

    def or_more(self, other: Amount) -> Amount:
        """Return the larger of both amounts, separately for each resource.

        >>> Amount(2000, 0).or_more(Amount(1000, 100))
        Amount(millicpus=2000, memory=100, gpus=0)
        """
        return self._with(max, other)

    def _with(self, combine: Callable[[int, int], int], other: Amount) -> Amount:
        return Amount(*map(combine, astuple(self), astuple(other)))

    def quantities(self) -> dict[str, str]:
        """Return the amount as Kubernetes quantities.

        >>> Amount(1735, 2393).quantities()
        {'cpu': '1735m', 'memory': '2393Mi'}
        >>> Amount(1000, 0, 2).quantities()
        {'cpu': '1000m', 'memory': '0Mi', 'nvidia.com/gpu': '2'}
        """
        gpus = {"nvidia.com/gpu": str(self.gpus)} if self.gpus else {}
        return {"cpu": f"{self.millicpus}m", "memory": f"{self.memory}Mi"} | gpus


def of_slurm(cpus: int, memory: int, gpus: int = 0) -> Amount:
    """Return the amount for Slurm's units, CPUs and MiB."""
    return Amount(cpus * 1000, memory, gpus)


def of_pod(quantities: Mapping[str, str | float]) -> Amount:
    """Return what a pod requests, rounded up.

    GPUs are those of all makers. ValueError for an invalid quantity, or a part of a GPU.

    >>> of_pod({"cpu": 0.5, "memory": "1Gi", "amd.com/gpu": 1})
    Amount(millicpus=500, memory=1024, gpus=1)
    """
    cpus, memory = (_number(quantities.get(name, 0)) for name in ("cpu", "memory"))
    gpus = Decimal(0)
    for name, size in quantities.items():
        if _GPU.fullmatch(name):
            gpus += _number(size)
        elif _PART_OF_A_GPU.fullmatch(name) and _number(size):
            raise ValueError(f"{name}: Slurm and Kubernetes share only whole GPUs")
    return Amount(ceil(cpus * 1000), ceil(memory / _MIB), ceil(gpus))


def _number(quantity: str | float) -> Decimal:
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)(?:[eE](\d+))?([kKMGTPE]i?|[num])?", str(quantity))
    if not match or (match[3] or "") not in _UNITS:
        raise ValueError(f"{quantity!r} is not a quantity such as 500m or 200Mi")
    return Decimal(match[1]).scaleb(int(match[2] or 0)) * _UNITS[match[3] or ""]


def total(amounts: Iterable[Amount]) -> Amount:
    """Return the sum of amounts."""
    return sum(amounts, Amount())


def left_to_slurm(whole: Amount, held: Iterable[Amount]) -> Amount:
    """Return what pods with these amounts leave of a node: whole CPUs, and never less than nothing.

    >>> left_to_slurm(Amount(4000, 1000), [Amount(500, 100), Amount(700, 100)])
    Amount(millicpus=2000, memory=800, gpus=0)
    """
    pods = total(held)
    return of_slurm(
        max(whole.millicpus // 1000 - pods.cpus, 0),
        max(whole.memory - pods.memory, 0),
        max(whole.gpus - pods.gpus, 0),
    )


@dataclass(frozen=True, slots=True)
class Use:
    """What a job or a pod used of a node, from `start` to `end` in seconds since 1970."""

    who: str
    node: str
    amount: Amount
    start: float
    end: float


def overcommitted(uses: Sequence[Use], whole: Mapping[str, Amount]) -> list[str]:
    """Return where and when jobs and pods used more of a node than it has."""
    problems = []
    for first in uses:
        concurrent_uses = [
            use for use in uses if use.node == first.node and use.start <= first.start < use.end
        ]
        if not total(use.amount for use in concurrent_uses).fits_in(whole[first.node]):
            who = ", ".join(f"{use.who} {use.amount.quantities()}" for use in concurrent_uses)
            problems.append(
                f"{first.node} has {whole[first.node].quantities()}, "
                f"at {first.start:.2f} taken by {who}"
            )
    return problems
