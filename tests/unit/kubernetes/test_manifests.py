"""The manifests of the operator, read as Kubernetes reads them."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from kubernetes import client

from fakes import SCENARIO
from harness import scenario
from harness.capabilities import OWN_MACHINES
from harness.kubernetes import manifests
from harness.plan import make_plan

SHARED = SCENARIO.with_name("kubernetes-hybrid.yml")
# The type of each kind of object in the client that is generated from Kubernetes' own API.
TYPES = {
    "CustomResourceDefinition": "V1CustomResourceDefinition",
    "Deployment": "V1Deployment",
    "Namespace": "V1Namespace",
    "Role": "V1Role",
    "RoleBinding": "V1RoleBinding",
    "Service": "V1Service",
    "ServiceAccount": "V1ServiceAccount",
}


def files() -> dict[str, str]:
    return manifests.manifests(make_plan("shared", scenario.load(SHARED), OWN_MACHINES))


def all_objects() -> list[dict[str, Any]]:
    return [found for text in files().values() for found in manifests.objects(text)]


def test_kustomization_lists_every_file() -> None:
    rendered = files()
    (kustomization,) = manifests.objects(rendered.pop("kustomization.yaml"))
    assert kustomization["resources"] == [*rendered]


@pytest.mark.parametrize("kind", TYPES)
def test_objects_are_valid_and_have_no_unknown_fields(kind: str) -> None:
    api = client.ApiClient()
    of_kind = [found for found in all_objects() if found["kind"] == kind]
    assert of_kind
    for found in of_kind:
        read = api.deserialize(json.dumps(found), TYPES[kind], "application/json")
        assert api.sanitize_for_serialization(read) == found


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


def test_scenario_without_a_shared_cluster_has_no_manifests() -> None:
    plan = make_plan("federation", scenario.load(SCENARIO), OWN_MACHINES)
    assert manifests.manifests(plan) == {}
