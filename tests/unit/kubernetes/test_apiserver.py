"""Which Kubernetes API keeps the ledger, and what is reported where it cannot."""

from __future__ import annotations

import json
from pathlib import Path

import httpx2
import pytest

from fakes import SCENARIO, FakeProvider
from harness import lifecycle
from harness.errors import CannotVerify
from harness.kubernetes import apiserver, hybrid_cluster
from harness.kubernetes.ledger_entries import GROUP, NAMESPACE, PLURAL, VERSION


def files(*nodes: str) -> dict[str, str]:
    """Return manifests with these nodes."""
    spec = "{{cluster: main, alias: {node}, type: Slurm}}"
    text = "---\nkind: GenericNode\nmetadata: {{name: {node}}}\nspec: " + spec + "\n"
    return {"clusters.yaml": "".join(text.format(node=node) for node in nodes)}


def test_emulated_api_keeps_an_object_for_each_node(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    with apiserver.with_ledger(files("n1", "n2"), tmp_path / "log") as api:
        assert api.name == "emulated Kubernetes API"
        api.change("n2", {"spec": {"admissionChecks": {"pod": {"cpu": "1"}}}})
        assert api.ledger_object("n1")["spec"] == {
            "cluster": "main",
            "alias": "n1",
            "type": "Slurm",
        }
        assert api.ledger_object("n2")["spec"]["admissionChecks"] == {"pod": {"cpu": "1"}}
        with pytest.raises(CannotVerify, match="not found"):
            api.ledger_object("n3")


def test_emulated_api_answers_nobody_without_its_token(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    with (
        apiserver.with_ledger(files("n1"), tmp_path / "log") as api,
        httpx2.Client(timeout=60) as client,
    ):
        known = json.loads(api.kubeconfig.read_text())
        server = known["clusters"][0]["cluster"]["server"]
        page = f"{server}/apis/{GROUP}/{VERSION}/namespaces/{NAMESPACE}/{PLURAL}/n1"
        token = known["users"][0]["user"]["token"]
        assert client.get(page, headers={"Authorization": f"Bearer {token}"}).status_code == 200
        for stranger in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": b"Bearer \xe2\x82\xac"},
        ):
            assert client.get(page, headers=stranger).status_code == 401
            assert client.patch(page, headers=stranger, content=b"{}").status_code == 401
        assert api.kubeconfig.stat().st_mode & 0o777 == 0o600


def test_kubeconfig_without_a_reachable_cluster_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    with (
        pytest.raises(CannotVerify, match="KUBECONFIG"),
        apiserver.with_ledger(files("n1"), tmp_path / "log"),
    ):
        pass
    nowhere = {"name": "nowhere", "cluster": {"server": "http://127.0.0.1:1"}}
    context = {"name": "nowhere", "context": {"cluster": "nowhere", "user": "me"}}
    known = {"clusters": [nowhere], "contexts": [context], "users": [{"name": "me", "user": {}}]}
    kubeconfig.write_text(json.dumps({**known, "current-context": "nowhere"}))
    with (
        pytest.raises(CannotVerify, match="no Kubernetes API answers"),
        apiserver.with_ledger(files("n1"), tmp_path),
    ):
        pass


def test_directory_without_the_programs_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    with (
        pytest.raises(CannotVerify, match="etcd"),
        apiserver.with_ledger(files("n1"), tmp_path / "log"),
    ):
        pass


def test_operators_last_line_is_shown_with_a_failed_check(tmp_path: Path) -> None:
    scenario = SCENARIO.with_name("kubernetes-hybrid.yml")
    run = lifecycle.create(scenario, FakeProvider(), tmp_path, print)
    log = run.directory.path / "logs" / "operator.log"
    log.parent.mkdir()
    log.write_text("[2026-01-01 00:00:00] ERROR: fails\nClusterError: n1 still offers 4 CPUs\n")
    written = log.stat().st_mtime
    assert hybrid_cluster.of_failure(run.directory, written - 1) == [
        "operator: ClusterError: n1 still offers 4 CPUs"
    ]
    assert hybrid_cluster.of_failure(run.directory, written + 1) == []
