"""Importing the bundles of several clusters that share an accounting database."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fakes import packed
from harness import scenario
from harness.errors import UsageError
from harness.site import importer
from harness.site.several_clusters import Imported

TABLES = {
    "cluster.txt": """\
Cluster|Federation|ID|Features|FedState
alpha|pair|2|fast,onsite|ACTIVE
beta|pair|1|cloud|DRAIN
other||0||NA
""",
    "account.txt": "Account|Description|Organization\nphysics|physics|physics\n",
    "assoc.txt": """\
Cluster|Account|User|Partition|ParentName|Share|MaxJobs|QOS|DefaultQOS
alpha|root||||1||normal|
alpha|physics|||root|60|20||
alpha|physics|alice|||1|5||
alpha|optics|||physics|1|||
alpha|optics|alice|||1|||
alpha|physics|ghost|||1|||
beta|root||||1||normal|
beta|physics|||root|20|||
beta|physics|alice|||1|||
beta|physics|stray|||1|||
""",
    "user.txt": """\
User|AdminLevel|DefaultAccount|Coordinators
alice|Operator|optics|optics
ghost|None|physics|
stray|None||
""",
    "qos.txt": "Name|Priority|UsageFactor\nnormal|0|1.000000\nhigh|100|1.000000\n",
    "resource.txt": """\
Name|Server|Type|Count|Cluster|Allowed|Flags
matlab|flexlm|License|20|alpha|50|
matlab|flexlm|License|20|beta|25|
""",
    "dump-alpha.cfg": "User - 'alice':DefaultAccount='optics':AdminLevel='Operator'"
    ":Coordinator='optics'\n",
    "dump-beta.cfg": "User - 'alice':Partition='x':DefaultAccount='physics'\n",
}
SLURM_CONF = """\
ClusterName={name}
SlurmctldHost={name}-head
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=db
JobSubmitPlugins=lua
NodeName={name}[1-2] CPUs=2
PartitionName=all Nodes=ALL
"""
PEOPLE = {
    "users": {"alice": {"uid": 2001, "groups": ["staff"]}},
    "groups": {"staff": {"gid": 7001}},
}


def bundle_of(directory: Path, name: str, hour: int = 12, **changed: str | None) -> Path:
    """Write the bundle of a cluster; `changed` are other texts, or none, by the tables' names."""
    manifest = {
        "format": 1,
        "configuration": "/etc/slurm",
        "collected": f"2026-11-24T{hour}:00:00Z",
        **json.loads(changed.pop("manifest", None) or "{}"),
    }
    files: dict[str, str | None] = {
        "manifest.json": json.dumps(manifest),
        "files/etc/slurm/slurm.conf": (changed.pop("conf", None) or SLURM_CONF).format(name=name),
        "files/etc/slurm/job_submit.lua": f"-- of {name}\n",
        "output/version.txt": changed.pop("version", "slurm 24.11.5\n"),
        "output/users.json": changed.pop("people", None) or json.dumps(PEOPLE),
        **{f"output/sacctmgr/{table}": text for table, text in TABLES.items()},
        **{f"output/sacctmgr/{table}": text for table, text in changed.items()},
    }
    kept = {path: text for path, text in files.items() if text is not None}
    return packed(directory / f"{name}{len([*directory.iterdir()])}.tar.gz", kept)


def rehearsal(*bundles: Path, release: str | None = None) -> Imported:
    return importer.import_site(bundles, release, 1)


def test_clusters_share_accounting_and_keep_accounts_of_their_own(tmp_path: Path) -> None:
    imported = rehearsal(bundle_of(tmp_path, "alpha"), bundle_of(tmp_path, "beta"))
    data = imported.data
    alpha, beta = data["clusters"].values()
    assert alpha["accounts"]["physics"] == {"options": {"Share": "60", "MaxJobs": "20"}}
    assert [*alpha["accounts"]] == ["physics", "optics"]
    assert beta["accounts"] == {"physics": {"options": {"Share": "20"}}}
    assert alpha["associations"]["alice"] == {
        "accounts": ["optics", "physics"],
        "associations": {"physics": {"MaxJobs": "5"}},
    }
    assert beta["associations"] == {
        "alice": {"accounts": ["physics"]},
        "stray": {"accounts": ["physics"]},
    }
    assert data["users"] == {
        "alice": {"uid": 2001, "coordinates": ["optics"], "admin": "Operator"},
        "ghost": {"uid": 100000},
        "stray": {"uid": 100001},
    }
    assert data["groups"] == {"staff": {"gid": 7001, "users": ["alice"]}}
    assert data["accounting"]["host"] == "copy-db1"
    assert data["accounting"]["qos"] == {"high": {"options": {"Priority": "100"}}}
    assert data["accounting"]["resources"]["matlab"]["clusters"] == {"alpha": 50, "beta": 25}
    assert (alpha["controller"], beta["hosts"]) == ("alpha-copy-ctl1", "beta-copy1")


def test_clusters_with_the_same_accounts_share_these(tmp_path: Path) -> None:
    table = TABLES["assoc.txt"].partition("beta|")[0]
    table += "".join(line.replace("alpha", "beta") for line in table.splitlines(keepends=True)[1:])
    paths = [
        bundle_of(tmp_path, name, **{"assoc.txt": table, "dump-beta.cfg": None})
        for name in ("alpha", "beta")
    ]
    data = rehearsal(*paths).data
    assert [*data["accounting"]["accounts"]] == ["physics", "optics"]
    assert data["users"]["alice"]["accounts"] == ["optics", "physics"]
    assert not any("accounts" in cluster for cluster in data["clusters"].values())


def test_federation_keeps_the_order_of_its_ids_and_its_features(tmp_path: Path) -> None:
    imported = rehearsal(bundle_of(tmp_path, "alpha"), bundle_of(tmp_path, "beta"))
    assert imported.data["federations"] == {"pair": {"clusters": ["beta", "alpha"]}}
    assert imported.data["clusters"]["alpha"]["features"] == ["fast", "onsite"]
    found = {(entry.where, entry.name): entry for entry in imported.fidelity}
    assert found["federation", "pair"].state == "the same"
    state = found["federation", "pair state of beta"]
    assert (state.site, state.copy, state.state) == ("DRAIN", "ACTIVE", "emulated")
    assert found["cluster", "other"].state == "left out"
    assert "left out: cluster other: it shares slurmdbd, but its bundle is missing" in (
        imported.notes
    )


def test_federation_is_left_out_if_only_one_of_its_clusters_is_given(tmp_path: Path) -> None:
    imported = rehearsal(bundle_of(tmp_path, "alpha"))
    assert "federations" not in imported.data
    (entry,) = [entry for entry in imported.fidelity if entry.where == "federation"]
    assert (entry.name, entry.site, entry.copy, entry.state, entry.why) == (
        *("pair", "beta,alpha", None, "left out"),
        "no bundle of beta; give one for each of its clusters",
    )
    assert imported.data["users"]["alice"]["accounts"] == ["optics", "physics"]
    assert "stray" not in imported.data["users"]


def test_report_names_the_cluster_of_what_differs(tmp_path: Path) -> None:
    imported = rehearsal(bundle_of(tmp_path, "alpha"), bundle_of(tmp_path, "beta"))
    named = {(entry.where, entry.name) for entry in imported.fidelity}
    assert {("slurm.conf", "AccountingStorageHost"), ("QOS", "high")} <= named
    assert {("alpha account", "physics"), ("beta account", "physics")} <= named
    assert {("alpha slurm.conf", "SlurmctldHost"), ("beta slurm.conf", "SlurmctldHost")} <= named


def test_scripts_of_clusters_stay_apart_and_the_scenario_is_valid(tmp_path: Path) -> None:
    imported = rehearsal(bundle_of(tmp_path, "alpha"), bundle_of(tmp_path, "beta"))
    path = tmp_path / "copy.yml"
    importer.write(path, imported)
    for name in ("alpha", "beta"):
        file = tmp_path / "copy.files" / name / "etc/slurm/job_submit.lua"
        assert file.read_text() == f"-- of {name}\n"
    read = scenario.load(path)
    assert read.of_cluster("beta").users["alice"].default_account == "physics"
    assert read.of_cluster("alpha").users["alice"].default_account == "optics"


def test_newest_bundle_has_the_accounts_and_the_newest_release_is_slurmdbds(
    tmp_path: Path,
) -> None:
    newer = TABLES["assoc.txt"].replace("|60|20|", "|70|20|")
    old = bundle_of(tmp_path, "alpha", version="slurm 24.05.1\n")
    data = rehearsal(old, bundle_of(tmp_path, "beta", 13, **{"assoc.txt": newer})).data
    assert data["clusters"]["alpha"]["accounts"]["physics"]["options"]["Share"] == "70"
    assert data["release"] == "24.11"
    assert data["clusters"]["alpha"]["release"] == "24.05"
    assert "release" not in data["clusters"]["beta"]


def test_different_uid_of_a_user_is_reported_with_the_clusters(tmp_path: Path) -> None:
    people = json.dumps({"users": {"alice": {"uid": 3001}}, "groups": {"staff": {"gid": 7002}}})
    imported = rehearsal(
        bundle_of(tmp_path, "alpha"), bundle_of(tmp_path, "beta", 11, people=people)
    )
    assert imported.data["users"]["alice"]["uid"] == 2001
    for what, number, other in (("user alice", 2001, 3001), ("group staff", 7001, 7002)):
        note = f"{number} on alpha, {other} on beta; the scenario uses {number}"
        assert f"emulated: {what}: {note}" in imported.notes
        why_of = {f"{entry.where} {entry.name}": entry.why for entry in imported.fidelity}
        assert note in {why_of.get(what), why_of.get(f"alpha {what}")}


@pytest.mark.parametrize(
    ("names", "changes", "problem"),
    [
        (("alpha", "alpha"), {}, "alpha0.tar.gz and {}/alpha1.tar.gz are both of cluster alpha"),
        (("alpha", "gamma"), {}, "its slurmdbd has alpha, beta, other, but not gamma"),
        (
            ("alpha", "beta"),
            {"conf": SLURM_CONF.replace("accounting_storage/slurmdbd", "accounting_storage/none")},
            "{}/beta1.tar.gz: cluster beta does not use slurmdbd (AccountingStorageType)",
        ),
        (
            ("alpha", "beta"),
            {"cluster.txt": None},
            "its slurmdbd has no cluster, but not alpha, beta",
        ),
        (
            ("alpha", "beta"),
            {"manifest": '{"pseudonyms": true}'},
            "the pseudonyms in {}/beta1.tar.gz may not be those of the other bundles",
        ),
    ],
)
def test_bundles_that_do_not_fit_together_are_refused(
    tmp_path: Path, names: tuple[str, str], changes: dict[str, Any], problem: str
) -> None:
    first, second = names
    paths = bundle_of(tmp_path, first), bundle_of(tmp_path, second, **changes)
    with pytest.raises(UsageError) as caught:
        rehearsal(*paths)
    assert problem.format(tmp_path) in str(caught.value)


def test_directories_are_imported_one_by_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a site bundle; several clusters need one each"):
        rehearsal(bundle_of(tmp_path, "alpha"), tmp_path)
