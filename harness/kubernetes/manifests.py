"""What runs the operator and the ledger in Kubernetes, and Slurm's daemons. Pure.

Each is a directory for kustomize.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ruamel.yaml import YAML

from harness import __version__, render
from harness.kubernetes.ledger_entries import CLUSTER_NAME, GROUP, PLURAL, VERSION
from harness.plan import Plan

# The directory of a rendered tree with the manifests.
DIRECTORY = "kubernetes"
_FILES = ("kustomization", "namespace", "definition", "operator", "clusters")
_DAEMON_FILES = ("kustomization", "namespace", "slurmctld", "slurmd")
# The label of the nodes of Kubernetes that run a cluster's slurmd.
_LABEL = f"{GROUP}/cluster"
# What slurm.conf says in pods. The StatefulSet "slurmctld" calls its pod slurmctld-0, and slurmctld
# runs only where this is the host's name. The Service with the pod's address is called slurmctld,
# too. Without a file, daemons in the foreground log to stderr alone. The directories are volumes.
_IN_PODS = {
    "SlurmctldHost": "slurmctld-0(slurmctld)",
    "StateSaveLocation": "/var/lib/slurm/slurmctld",
    "SlurmdSpoolDir": "/var/lib/slurm/slurmd",
    "SlurmctldPidFile": "/run/slurmctld/slurmctld.pid",
    "SlurmdPidFile": "/run/slurm/slurmd.pid",
    "SlurmctldLogFile": None,
    "SlurmdLogFile": None,
}


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
    return {f"{name}.yaml": render.template(f"kubernetes/{name}.yaml", **facts) for name in _FILES}


def daemons(plan: Plan) -> dict[str, str]:
    """Return path and text of the files that run the daemons of each shared cluster in pods.

    None for a cluster without munge, whose slurmds share hosts, or with GPUs, which pods lack.
    """
    pods = replace(plan.capabilities, cgroups=False, own_kernel=False, namespaces=False)
    return {
        f"daemons/{name}/{path}": text
        for name in plan.scenario.shared_clusters()
        if plan.scenario.auth == "munge"
        and not plan.scenario.clusters[name].hosts
        and not plan.scenario.clusters[name].gpus()
        for path, text in _daemons_of(replace(plan, capabilities=pods), name)
    }


def _daemons_of(plan: Plan, name: str) -> Iterator[tuple[str, str]]:
    configuration = render.cluster_files(plan, name, _IN_PODS)
    facts = {
        "cluster": name,
        "namespace": f"slurm-{name}",
        "release": plan.scenario.release_of(plan.scenario.clusters[name]),
        "configuration": list(configuration),
        "nodes": plan.scenario.clusters[name].node_names(),
        "label": _LABEL,
        "slurm_id": 64030,  # as in Debian, and in the images of the harness
    }
    yield from configuration.items()
    for file in _DAEMON_FILES:
        yield f"{file}.yaml", render.template(f"kubernetes/daemons/{file}.yaml", **facts)


def generic_nodes(files: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the ledger's objects, one for each shared node, from such files."""
    return [found for found in objects(files["clusters.yaml"]) if found["kind"] == "GenericNode"]


def objects(text: str) -> list[dict[str, Any]]:
    """Return the objects of a manifest."""
    return [found for found in YAML(typ="safe", pure=True).load_all(text) if found]
