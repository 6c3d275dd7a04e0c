"""Importing site bundles, which are untrusted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fakes import packed
from harness.errors import UsageError
from harness.site import importer

SLURM_CONF = """\
ClusterName=site
SlurmctldHost=ctl
AccountingStorageType=accounting_storage/slurmdbd
Include /opt/slurm/nodes.conf
PartitionName=all Nodes=ALL Default=YES
"""
MANIFEST = {"format": 1, "configuration": "/etc/slurm"}
USERS = {"users": {"alice": {"uid": 2001}, "daemon": {"uid": 1}}, "groups": {}}
FILES = {
    "manifest.json": json.dumps(MANIFEST),
    "files/etc/slurm/slurm.conf": SLURM_CONF,
    "files/opt/slurm/nodes.conf": "NodeName=n[1-4] CPUs=2 RealMemory=500\n",
    "output/version.txt": "slurm-wlm 22.05.8\n",
    "output/users.json": json.dumps(USERS),
    "output/sacctmgr/account.txt": "Account|Description|Organization\nphysics|optics lab|physics\n",
    "output/sacctmgr/assoc.txt": """\
Cluster|Account|User|Partition|ParentName|Share|MaxJobs|QOS|DefaultQOS
site|root||||1||normal|
site|physics|||root|60|20||
site|physics|alice|||1|5|high,normal|high
site|physics|alice|all||1|||
site|physics|ghost|||1|||
site|physics|daemon|||1|||
other|physics|||root|1|||
""",
    "output/sacctmgr/user.txt": """\
User|AdminLevel|DefaultAccount|Coordinators
alice|Operator|physics|physics
""",
    "output/sacctmgr/qos.txt": """\
Name|Priority|GraceTime|PreemptMode|UsageFactor|MaxJobsPU
normal|0|00:00:00|cluster|1.000000|
high|100|00:00:30|cluster|1.000000|4
""",
}

Import = Callable[..., tuple[dict[str, Any], list[str]]]


@pytest.fixture
def imported(tmp_path: Path) -> Import:
    """Import the bundle, with some files changed (or left out: None)."""

    def run(**changes: Any) -> tuple[dict[str, Any], list[str]]:
        files = {**FILES, **changes.get("files", {})}
        kept = {name: text for name, text in files.items() if text is not None}
        path = packed(tmp_path / "site.tar.gz", kept, *changes.get("links", ()))
        imported = importer.import_site(path, changes.get("release"), changes.get("rehearsal"))
        return imported.data, imported.notes

    return run


def test_bundle_becomes_a_scenario_with_accounts_qos_and_users(imported: Import) -> None:
    data, notes = imported()
    assert data["release"] == "22.05"
    assert data["description"] == "Imported from /etc/slurm."
    assert [group["name"] for group in data["clusters"]["site"]["nodes"]] == ["n[1-4]"]
    assert data["accounting"]["accounts"] == {
        "physics": {"options": {"Share": "60", "MaxJobs": "20", "Description": "optics lab"}}
    }
    assert data["accounting"]["qos"] == {
        "high": {"options": {"Priority": "100", "GraceTime": "30", "MaxJobsPU": "4"}}
    }
    assert data["users"] == {
        "alice": {
            "uid": 2001,
            "accounts": ["physics"],
            "associations": {
                "physics": {"MaxJobs": "5", "QOS": "high,normal", "DefaultQOS": "high"}
            },
            "coordinates": ["physics"],
            "admin": "Operator",
        }
    }
    assert notes == [
        "left out: user alice: association with partition all",
        "left out: user ghost: unknown on the host where the bundle was collected",
        "left out: user daemon: uid 1 is a system user's",
    ]


def test_rehearsal_copy_has_the_sites_users_and_accounts(imported: Import) -> None:
    data, _ = imported(rehearsal=2)
    assert [*data["users"]] == ["alice"]
    assert [*data["accounting"]["accounts"]] == ["physics"]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"manifest.json": None}, "is not a whole site bundle"),
        ({"manifest.json": "{}"}, "2 errors in its manifest"),
        ({"output/users.json": "["}, "is not a whole site bundle"),
        ({"manifest.json": json.dumps({**MANIFEST, "format": 9})}, "format 9, not 1"),
        ({"manifest.json": json.dumps({**MANIFEST, "configuration": "/../.."})}, "outside"),
        ({"output/version.txt": "slurm 19.05.1\n"}, "runs Slurm 19.05"),
        ({"output/version.txt": None}, "unknown release"),
        ({"files/etc/slurm/slurm.conf": None}, "/etc/slurm: no such file or directory"),
    ],
)
def test_bad_bundles_are_refused_with_a_reason(
    imported: Import, changes: dict[str, str | None], problem: str
) -> None:
    with pytest.raises(UsageError) as caught:
        imported(files=changes)
    assert problem in str(caught.value)
    assert "/tmp/" not in str(caught.value).replace("site.tar.gz", "").partition(": ")[2]


def test_truncated_bundle_is_refused(tmp_path: Path) -> None:
    path = packed(tmp_path / "site.tar.gz", FILES)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(UsageError, match="is not a whole site bundle"):
        importer.import_site(path, None, None)


def test_include_of_a_bundle_does_not_read_this_machines_files(
    imported: Import, tmp_path: Path
) -> None:
    secret = tmp_path / "secret.conf"
    secret.write_text("NodeName=secret1\n")
    changed = SLURM_CONF.replace("/opt/slurm/nodes.conf", str(secret))
    with pytest.raises(UsageError):
        imported(files={"files/etc/slurm/slurm.conf": changed})
    data, _ = imported(links=[("files/etc/slurm/gres.conf", str(secret))])
    assert "secret1" not in str(data)
