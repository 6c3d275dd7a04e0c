"""The ledger of shared nodes: an object for each in the Kubernetes API, with its pods. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.kubernetes import amounts
from harness.kubernetes.amounts import Amount

# Where the ledger's objects, one GenericNode for each Slurm node, are in the Kubernetes API.
GROUP, VERSION, PLURAL = "slurm-harness.test", "v1alpha1", "genericnodes"
# The namespace of a run's ledger.
NAMESPACE = "slurm-harness"
# The names of clusters: each is part of the name of a Service.
CLUSTER_NAME = "^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$"
# The outcomes of a pod's admission check.
READY, REFUSED = "Ready", "Refused"


@dataclass(slots=True)
class Entries:
    """The ledger's entries of a node: what each pod holds, and why others are refused.

    `drained` says that a user drains the node. slurmctld overwrites the user's reason when a node
    is not valid.
    """

    held: dict[str, Amount] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    drained: bool = False

    @classmethod
    def of(cls, status: Mapping[str, Any]) -> Entries:
        """Return the entries in the status of an object."""
        checks = status.get("admissionChecks") or {}
        return cls(
            {pod: amounts.of_pod(check) for pod, check in checks.items() if check["state"] == READY}
        )

    def checks(self) -> dict[str, dict[str, str]]:
        """Return the status to write, with the outcome of each pod."""
        ready = {pod: {"state": READY, **amount.quantities()} for pod, amount in self.held.items()}
        return ready | {
            pod: {"state": REFUSED, "message": why} for pod, why in self.refused.items()
        }
