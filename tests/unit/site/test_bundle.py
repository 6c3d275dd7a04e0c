"""Importing site bundles, which are untrusted."""

from __future__ import annotations

import json
import time
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
USERS = {
    "users": {
        "alice": {"uid": 2001, "groups": ["alice", "staff"]},
        "daemon": {"uid": 1, "groups": ["daemon"]},
        "scanner": {"uid": 1, "groups": ["scanner"]},
    },
    "groups": {"alice": {"gid": 2001}, "daemon": {"gid": 1}, "staff": {"gid": 7001}},
}
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
site|physics|scanner|||1|||
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
        imported = importer.import_site([path], changes.get("release"), changes.get("rehearsal"))
        return imported.data, imported.notes

    return run


def test_coordinators_do_not_get_the_accounts_below_as_their_own(imported: Import) -> None:
    """Sacctmgr shows a coordinator of an account as one of all accounts below it."""
    user = "User - 'alice':DefaultAccount='physics':Coordinator='physics':Fairshare=1\n"
    tables = {
        "assoc.txt": """\
Cluster|Account|User|Partition|ParentName
site|root|||
site|physics|||root
site|optics|||physics
site|physics|alice||
""",
        "user.txt": "User|DefaultAccount|Coordinators\nalice|physics|optics,physics\n",
        "dump-site.cfg": user,
    }
    data, _ = imported(files={f"output/sacctmgr/{name}": text for name, text in tables.items()})
    assert data["users"]["alice"]["coordinates"] == ["physics"]


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
                "physics": {"MaxJobs": "5", "QOS": "high,normal", "DefaultQOS": "high"},
                "physics:all": {},
            },
            "coordinates": ["physics"],
            "admin": "Operator",
        },
        "ghost": {"uid": 100000, "accounts": ["physics"]},
        "scanner": {"uid": 100001, "accounts": ["physics"]},
    }
    assert data["groups"] == {"staff": {"gid": 7001, "users": ["alice"]}}
    assert notes == [
        "left out: user daemon: a system user of every host has this name",
        "emulated: user ghost: unknown on the host where the bundle was collected; the scenario "
        "uses 100000",
        "emulated: user scanner: uid 1 belongs to a system user; the scenario uses 100001",
    ]


def test_rehearsal_copy_has_the_sites_users_and_accounts(imported: Import) -> None:
    data, _ = imported(rehearsal=2)
    assert [*data["users"]] == ["alice", "ghost", "scanner"]
    assert [*data["accounting"]["accounts"]] == ["physics"]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"manifest.json": None}, "is not a complete site bundle"),
        ({"manifest.json": "{}"}, "manifest.json: "),
        ({"output/users.json": "["}, "is not a complete site bundle"),
        ({"manifest.json": json.dumps({**MANIFEST, "format": 9})}, "format 9, not 1"),
        ({"manifest.json": json.dumps({**MANIFEST, "configuration": "/../.."})}, "outside"),
        ({"output/version.txt": "slurm 19.05.1\n"}, "runs Slurm 19.05"),
        ({"output/version.txt": None}, "unknown release"),
        ({"files/etc/slurm/slurm.conf": None}, "/etc/slurm: No such file or directory"),
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
    with pytest.raises(UsageError, match="is not a complete site bundle"):
        importer.import_site([path], None, None)


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


RESERVATIONS = """\
ReservationName=now StartTime=2026-11-24T11:00:00 EndTime=2026-11-24T13:00:00 Duration=02:00:00 \
Nodes=n[1-2] NodeCnt=2 CoreCnt=4 Features=(null) PartitionName=all Flags=MAINT,SPEC_NODES \
TRES=cpu=4 Users=alice,nobody Accounts=(null) Licenses=(null) State=ACTIVE
ReservationName=next StartTime=2026-11-25T12:00:00 EndTime=2026-11-25T13:00:00 Duration=01:00:00 \
Nodes=n3 NodeCnt=1 Flags=SPEC_NODES Users=(null) Accounts=physics Licenses=matlab:1
ReservationName=old StartTime=2026-11-23T12:00:00 EndTime=2026-11-23T13:00:00 Nodes=n3 Flags=
"""
OBJECTS = {
    "manifest.json": json.dumps({**MANIFEST, "collected": "2026-11-24T12:00:00Z"}),
    "output/scontrol/reservations.txt": RESERVATIONS,
    "output/scontrol/nodes.txt": "NodeName=n4 State=IDLE+DRAIN Reason=a loose cable [root@2026]\n",
    "output/sacctmgr/resource.txt": """\
Name|Server|Type|Count|Cluster|Allowed|Flags
matlab|flexlm|License|20|site|50|
matlab|flexlm|License|20|other|25|
""",
}


def test_reservations_and_licenses_are_imported_relative_to_the_time_of_the_bundle(
    imported: Import,
) -> None:
    data, notes = imported(files=OBJECTS)
    assert data["clusters"]["site"]["reservations"] == {
        "now": {
            "StartTime": "now",
            "Duration": "60",
            "Nodes": "n[1-2]",
            "Users": "alice",
            "Flags": "MAINT",
        },
        "next": {
            "StartTime": "now+1440minutes",
            "Duration": "60",
            "Nodes": "n3",
            "Accounts": "physics",
            "Licenses": "matlab:1",
        },
    }
    assert data["accounting"]["resources"] == {
        "matlab": {"server": "flexlm", "count": 20, "clusters": {"site": 50}}
    }
    assert [note for note in notes if "user " not in note] == [
        "left out: reservation old: it had ended",
        "left out: node n4 IDLE+DRAIN (a loose cable): all nodes are up from the start",
        "emulated: reservation now: it begins at now, for alice instead of alice,nobody",
        "emulated: reservation next: it begins at now+1440minutes",
    ]


def test_limits_of_the_root_account_are_imported(imported: Import) -> None:
    name = "output/sacctmgr/assoc.txt"
    table = FILES[name].replace("site|root||||1||normal|", "site|root||||1|200|normal|")
    assert imported(files={name: table})[0]["accounting"]["accounts"]["root"] == {
        "options": {"MaxJobs": "200"}
    }


def test_accounts_in_a_circle_are_left_out_with_their_users(imported: Import) -> None:
    name = "output/sacctmgr/assoc.txt"
    circle = "site|a|||b|1|||\nsite|b|||a|1|||\nsite|c|||b|1|||\nsite|a|alice|||1|||\n"
    data, notes = imported(files={name: FILES[name] + circle})
    assert [*data["accounting"]["accounts"]] == ["physics"]
    assert data["users"]["alice"]["accounts"] == ["physics"]
    for account, parent in ("ab", "ba", "cb"):
        why = f"its parent {parent} is not below root (assoc.txt)"
        assert f"left out: account {account}: {why}" in notes


def test_names_that_a_scenario_cannot_have_are_left_out(imported: Import) -> None:
    name = "output/sacctmgr/assoc.txt"
    rows = "site|a b|||root|1|||\nsite|physics|jane.doe|||1|||\n"
    notes = imported(files={name: FILES[name] + rows})[1]
    assert "left out: account a b: a scenario cannot have this name" in notes
    assert "left out: user jane.doe: a scenario cannot have this name" in notes


def test_ten_thousand_users_are_imported_in_seconds(imported: Import) -> None:
    name = "output/sacctmgr/assoc.txt"
    people = [f"u{number}" for number in range(10_000)]
    rows = "".join(f"site|physics|{user}|||1|5||\n" for user in people)
    users = {
        "users": {user: {"uid": 70_000 + number} for number, user in enumerate(people)},
        "groups": {},
    }
    files = {name: FILES[name] + rows, "output/users.json": json.dumps(users)}
    began = time.process_time()
    data, _ = imported(files=files, rehearsal=2)
    assert len(data["users"]) == len(people) + 3
    assert time.process_time() - began < 15, "of this process, whatever else the machine does"
