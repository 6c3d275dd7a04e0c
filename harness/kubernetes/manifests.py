"""What runs the operator and the ledger in Kubernetes, as a directory for kustomize. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ruamel.yaml import YAML

from harness import __version__
from harness.kubernetes.ledger_entries import CLUSTER_NAME, GROUP, PLURAL, VERSION
from harness.plan import Plan
from harness.render import template

# The directory of a rendered tree with the manifests.
DIRECTORY = "kubernetes"
_FILES = ("kustomization", "namespace", "definition", "operator", "clusters")


def manifests(plan: Plan) -> dict[str, str]:
    """Return the name and text of each file; none if Kubernetes shares no cluster of the plan.

    kustomization.yaml lists the others.
    """
    shared = plan.scenario.shared_clusters()
    if not shared:
        return {}
    facts = {
        "group": GROUP,
        "version": VERSION,
        "plural": PLURAL,
        "cluster_name": CLUSTER_NAME,
        "namespace": "slurm-operator",
        "tag": __version__,
        "port": next(iter(shared.values())).port,
        "clusters": [
            {
                "name": name,
                "slurmrestd": plan.scenario.clusters[name].rest_host(),
                "nodes": plan.scenario.clusters[name].node_names(),
            }
            for name in shared
        ],
    }
    return {f"{name}.yaml": template(f"kubernetes/{name}.yaml", **facts) for name in _FILES}


def generic_nodes(files: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the ledger's objects, one for each shared node, from such files."""
    return [found for found in objects(files["clusters.yaml"]) if found["kind"] == "GenericNode"]


def objects(text: str) -> list[dict[str, Any]]:
    """Return the objects of a manifest."""
    return [found for found in YAML(typ="safe", pure=True).load_all(text) if found]
