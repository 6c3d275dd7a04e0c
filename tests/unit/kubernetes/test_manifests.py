"""The manifests of the operator and of Slurm's daemons, read as Kubernetes reads them."""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import Any

import jsonschema
import pytest
from kubernetes import client

from fakes import SCENARIO
from harness import render, scenario
from harness.capabilities import OWN_MACHINES
from harness.kubernetes import manifests
from harness.parsing import hostlist
from harness.plan import make_plan

SHARED = SCENARIO.with_name("kubernetes-hybrid.yml")
# The type of each kind of object in the client that is generated from Kubernetes' own API.
TYPES = {
    "CustomResourceDefinition": "V1CustomResourceDefinition",
    "DaemonSet": "V1DaemonSet",
    "Deployment": "V1Deployment",
    "Namespace": "V1Namespace",
    "Role": "V1Role",
    "RoleBinding": "V1RoleBinding",
    "Service": "V1Service",
    "ServiceAccount": "V1ServiceAccount",
    "StatefulSet": "V1StatefulSet",
}
# kustomize reads the first itself, and the definition has the schema of the second.
OTHER_KINDS = {"Kustomization", "GenericNode"}


def files() -> dict[str, str]:
    return manifests.manifests(make_plan("shared", scenario.load(SHARED), OWN_MACHINES))


def all_objects() -> list[dict[str, Any]]:
    return [found for text in files().values() for found in manifests.objects(text)]


def test_kustomization_lists_every_file() -> None:
    rendered = files()
    (kustomization,) = manifests.objects(rendered.pop("kustomization.yaml"))
    assert kustomization["resources"] == [*rendered]


def daemons(cluster: str = "shared", *settings: str) -> dict[str, str]:
    without_gpus = ("clusters.shared.nodes.0.gres=[]", *settings)
    plan = make_plan("shared", scenario.load(SHARED, settings=without_gpus), OWN_MACHINES)
    prefix = f"daemons/{cluster}/"
    return {
        path.removeprefix(prefix): text
        for path, text in manifests.daemons(plan).items()
        if path.startswith(prefix)
    }


def daemon_objects(cluster: str = "shared") -> list[dict[str, Any]]:
    return [
        found
        for path, text in daemons(cluster).items()
        if path.endswith(".yaml")
        for found in manifests.objects(text)
    ]


def pods(cluster: str = "shared") -> dict[str, dict[str, Any]]:
    """Return the pods of a cluster's daemons by the name of their workload."""
    return {
        found["metadata"]["name"]: found["spec"]["template"]["spec"]
        for found in daemon_objects(cluster)
        if found["kind"] in {"StatefulSet", "DaemonSet"}
    }


def test_objects_are_valid_and_have_no_unknown_fields() -> None:
    found = [*all_objects(), *daemon_objects(), *daemon_objects("other")]
    assert {one["kind"] for one in found} == TYPES.keys() | OTHER_KINDS
    api = client.ApiClient()
    for one in found:
        if kind := TYPES.get(one["kind"]):
            read = api.deserialize(json.dumps(one), kind, "application/json")
            assert api.sanitize_for_serialization(read) == one


def test_generic_nodes_are_valid_by_their_definition() -> None:
    rendered = files()
    (definition,) = manifests.objects(rendered["definition.yaml"])
    (version,) = definition["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    nodes = manifests.generic_nodes(rendered)
    assert [(node["spec"]["cluster"], node["metadata"]["name"]) for node in nodes] == [
        ("shared", "n1"),
        ("shared", "n2"),
        ("other", "m1"),
    ]
    for node in nodes:
        jsonschema.validate(node, schema)
    with pytest.raises(jsonschema.ValidationError, match="does not match"):
        jsonschema.validate({"spec": {**nodes[0]["spec"], "cluster": "../shared"}}, schema)


def test_operator_runs_without_rights_that_it_does_not_need() -> None:
    (deployment,) = (found for found in all_objects() if found["kind"] == "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    (role,) = (found for found in all_objects() if found["kind"] == "Role")
    assert {verb for rule in role["rules"] for verb in rule["verbs"]} == {
        *("get", "list", "watch", "patch")
    }
    assert not [found for found in all_objects() if found["kind"].startswith("ClusterRole")]


def test_daemons_have_a_directory_of_their_own_that_lists_every_file() -> None:
    rendered = daemons()
    (kustomization,) = manifests.objects(rendered.pop("kustomization.yaml"))
    (generated,) = kustomization["configMapGenerator"]
    assert {*kustomization["resources"], *generated["files"]} == {*rendered}
    assert not any("daemons" in text for text in files().values())


def test_directories_that_daemons_write_to_are_volumes() -> None:
    settings = ["clusters.shared.options.slurmdspooldir=/elsewhere/%n"]
    lines = daemons("shared", *settings)["slurm.conf"].splitlines()
    conf = dict(line.split("=", 1) for line in lines if "=" in line and " " not in line)
    for name, files, directories in (
        ("slurmctld", ["SlurmctldPidFile"], ["StateSaveLocation"]),
        ("slurmd", ["SlurmdPidFile"], ["SlurmdSpoolDir"]),
    ):
        (container,) = pods()[name]["containers"]
        mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
        parents = {str(PurePosixPath(conf[option]).parent) for option in files}
        assert parents | {conf[option] for option in directories} <= mounted


@pytest.mark.parametrize("cluster", ["shared", "other"])
def test_daemons_have_no_rights_that_they_do_not_need(cluster: str) -> None:
    for pod in pods(cluster).values():
        assert not pod.get("hostPID")
        assert not pod.get("hostIPC")
        assert not pod["automountServiceAccountToken"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not [volume for volume in pod["volumes"] if "hostPath" in volume]
        for container in [*pod["initContainers"], *pod["containers"]]:
            security = container["securityContext"]
            assert not security.get("privileged")
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"]["drop"] == ["ALL"]
            assert ("add" in security["capabilities"]) == (container["name"] == "slurmd")


def test_daemons_have_no_secrets() -> None:
    rendered = daemons()
    assert not any("%secret:" in text for text in rendered.values())
    assert not any("kind: Secret" in text for text in rendered.values())


def test_slurm_conf_names_the_pod_of_slurmctld_and_the_nodes_that_run_slurmd() -> None:
    rendered = daemons()
    service, stateful_set = manifests.objects(rendered["slurmctld.yaml"])
    pod, name = f"{stateful_set['metadata']['name']}-0", service["metadata"]["name"]
    assert stateful_set["spec"]["serviceName"] == name
    lines = rendered["slurm.conf"].splitlines()
    assert [line for line in lines if line.startswith("SlurmctldHost=")] == [
        f"SlurmctldHost={pod}({name})"
    ]
    (nodes,) = (line.split()[0] for line in lines if line.startswith("NodeName="))
    (selected,) = pods()["slurmd"]["nodeSelector"].items()
    names = " ".join(hostlist.expand(nodes.removeprefix("NodeName=")))
    assert f"kubectl label nodes {names} {'='.join(selected)}\n" in rendered["slurmd.yaml"]


def test_pods_have_no_cgroups_whatever_the_machines_have() -> None:
    rendered = daemons()
    assert "ProctrackType=proctrack/linuxproc" in rendered["slurm.conf"]
    assert "CgroupPlugin=disabled" in rendered["cgroup.conf"]
    on_machines = render.cluster_files(
        make_plan("shared", scenario.load(SHARED), OWN_MACHINES), "shared", {}
    )
    assert "proctrack/cgroup" in on_machines["slurm.conf"]
    assert "SLURM_GET_USER_ENV" in rendered["job_submit.lua"]
    assert "SLURM_GET_USER_ENV" not in on_machines["job_submit.lua"]


@pytest.mark.parametrize(
    "setting", ["auth=slurm", "clusters.shared.hosts=h1", 'clusters.shared.nodes.0.gres=["gpu:1"]']
)
def test_cluster_whose_daemons_cannot_run_in_these_pods_has_no_such_manifests(setting: str) -> None:
    assert daemons("shared", setting) == {}


def test_scenario_without_a_shared_cluster_has_no_manifests() -> None:
    plan = make_plan("federation", scenario.load(SCENARIO), OWN_MACHINES)
    assert manifests.manifests(plan) == {}
    assert manifests.daemons(plan) == {}
