"""What a rehearsal copy keeps of a site, and what it replaces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness import scenario
from harness.releases import Release, get
from harness.site import importer, rehearsal_copy
from harness.slurmconf import check

SITE = """\
ClusterName=c
SlurmctldHost=ctl.example.org
ProctrackType=proctrack/cgroup
NodeName=n[1-4] CPUs=4
PartitionName=main Nodes=ALL Default=YES
"""


@pytest.fixture
def release() -> Release:
    return get("24.11")


def copy(
    tmp_path: Path, release: Release, text: str, hosts: int = 2
) -> tuple[dict[str, Any], list[str]]:
    """Return the only cluster of the copy of a slurm.conf, which daemons accept, and the notes."""
    (tmp_path / "slurm.conf").write_text(text)
    data, _ = importer.import_directory(tmp_path, release)
    data, notes = rehearsal_copy.shrink(data, hosts, check.check_path(tmp_path, release))
    path = tmp_path / "copy.yml"
    path.write_text(importer.dump(data))
    findings = check.check_scenario(path, scenario.load(path))
    assert not [finding for finding in findings if finding.severity in {"fatal", "error"}]
    (cluster,) = data["clusters"].values()
    return cluster, [str(note) for note in notes]


@pytest.mark.parametrize(
    ("flags", "kept"),
    [
        ("X11", "Alloc"),
        ("Contain,Serial", "Alloc,Serial"),
        ("Alloc,X11", "Alloc"),
        ("NoHold", "NoHold"),
    ],
)
def test_prolog_flags_that_need_cgroups_are_left_out(
    tmp_path: Path, release: Release, flags: str, kept: str
) -> None:
    cluster, notes = copy(tmp_path, release, f"{SITE}PrologFlags={flags}\n")
    assert cluster["options"]["PrologFlags"] == kept
    flag_notes = [note for note in notes if note.startswith("PrologFlags=")]
    assert bool(flag_notes) == (flags != kept)


@pytest.mark.parametrize(
    ("option", "kept"),
    [
        ("MpiDefault=pmi2", {"MpiDefault": "pmi2"}),
        ("MpiDefault=pmix", {}),
        ("MpiDefault=openmpi", {}),
        ("JobAcctGatherParams=OverMemoryKill", {"JobAcctGatherParams": "OverMemoryKill"}),
        ("CommunicationParameters=EnableIPv6", {}),
        (
            "CommunicationParameters=EnableIPv6,CheckGhalQuiesce",
            {"CommunicationParameters": "CheckGhalQuiesce"},
        ),
        ("JobCompType=jobcomp/script\nJobCompLoc=/opt/done", {}),
        (
            "JobCompType=jobcomp/filetxt",
            {"JobCompType": "jobcomp/filetxt", "JobCompLoc": "/var/log/slurm/jobcomp.log"},
        ),
        (
            "JobCompType=jobcomp/filetxt\nJobCompLoc=/var/log/jobs.txt",
            {"JobCompType": "jobcomp/filetxt", "JobCompLoc": "/var/log/slurm/jobcomp.log"},
        ),
    ],
)
def test_plugins_that_the_hosts_can_load_are_kept(
    tmp_path: Path, release: Release, option: str, kept: dict[str, str]
) -> None:
    names = {line.partition("=")[0] for line in option.splitlines()} | kept.keys()
    cluster, _ = copy(tmp_path, release, f"{SITE}{option}\n")
    options = {name: cluster["options"][name] for name in names & cluster["options"].keys()}
    assert options == kept


def test_level_of_the_scheduler_log_is_kept_with_a_file_for_it(
    tmp_path: Path, release: Release
) -> None:
    options = "SlurmSchedLogLevel=1\nSlurmSchedLogFile=/site/sched.log\n"
    cluster, notes = copy(tmp_path, release, SITE + options)
    assert cluster["options"]["SlurmSchedLogLevel"] == 1
    assert cluster["options"]["SlurmSchedLogFile"] == "/var/log/slurm/slurmsched.log"
    assert any(note.startswith("SlurmSchedLogFile=/site/sched.log") for note in notes)


def test_options_of_accounting_are_left_out_where_there_is_none(
    tmp_path: Path, release: Release
) -> None:
    options = "AccountingStorageEnforce=limits\nAccountingStorageTRES=gres/gpu\nGresTypes=gpu\n"
    weights = "PriorityType=priority/multifactor\nPriorityWeightAge=5\nPriorityWeightJobSize=9\n"
    cluster, notes = copy(tmp_path, release, SITE + options + weights)
    assert "PriorityWeightAge" not in cluster["options"]
    assert cluster["options"]["PriorityWeightJobSize"] == 9
    assert cluster["options"]["AccountingStorageEnforce"] is None
    assert "AccountingStorageTRES" not in cluster["options"]
    assert "AccountingStorageEnforce=limits: there is no accounting" in notes


def test_site_with_fewer_nodes_than_hosts_gets_a_host_for_each_node(
    tmp_path: Path, release: Release
) -> None:
    cluster, notes = copy(tmp_path, release, SITE.replace("n[1-4]", "n[1-2]"), hosts=5)
    assert cluster["hosts"] == "copy[1-2]"
    assert "hosts: 2 instead of 5: the site has no more nodes" in notes


@pytest.mark.parametrize(
    ("hosts", "controller", "backups"),
    [
        ("SlurmctldHost=ctl", "copy-ctl1", []),
        ("SlurmctldHost=ctl\nSlurmctldHost=other", "copy-ctl1", ["copy-ctl2"]),
        ("SlurmctldHost=n1", "copy1", []),
        ("SlurmctldHost=s1\nNodeName=v1 NodeHostname=s1", "copy1", []),
    ],
)
def test_controllers_have_hosts_of_their_own_unless_the_site_runs_them_on_nodes(
    tmp_path: Path, release: Release, hosts: str, controller: str, backups: list[str]
) -> None:
    cluster, _ = copy(tmp_path, release, SITE.replace("SlurmctldHost=ctl.example.org", hosts))
    assert cluster["controller"] == controller
    assert cluster.get("backup_controllers", []) == backups


def test_site_whose_nodes_register_themselves_gets_some_for_each_node_set(
    tmp_path: Path, release: Release
) -> None:
    text = SITE.replace("NodeName=n[1-4] CPUs=4\n", "MaxNodeCount=100\n").replace("ALL", "big")
    sets = "NodeSet=small Feature=small\nNodeSet=big Feature=big\n"
    cluster, _ = copy(tmp_path, release, text + sets, hosts=3)
    assert "hosts" not in cluster
    assert [(group["name"], group["features"]) for group in cluster["nodes"]] == [
        ("copy[1,3]", ["small"]),
        ("copy2", ["big"]),
    ]


CLOUD = """\
ResumeProgram=/opt/site/resume
SuspendProgram=/opt/site/suspend
SuspendTime={time}
SuspendExcNodes=n1
SlurmctldParameters=node_reg_mem_percent=80,cloud_reg_addrs
TreeWidth=16
NodeName=c[1-6] CPUs=4 State=CLOUD Feature=cloud
"""


@pytest.mark.parametrize(("time", "kept"), [(600, 60), (20, 20), (-1, 60)])
def test_hosts_of_cloud_nodes_are_created_for_jobs(
    tmp_path: Path, release: Release, time: int, kept: int
) -> None:
    cluster, notes = copy(tmp_path, release, SITE + CLOUD.format(time=time))
    assert cluster["hosts"] == "copy[1-2]"
    assert [(group["name"], group.get("provision")) for group in cluster["nodes"]] == [
        ("n[1-4]", None),
        ("c[1-2]", "create"),
        ("c[3-6]", None),
    ]
    options = cluster["options"]
    assert options["SuspendTime"] == kept
    assert options["SlurmctldParameters"] == (
        "node_reg_mem_percent=80,cloud_dns,idle_on_node_suspend,power_save_interval=0"
    )
    assert not {"ResumeProgram", "SuspendExcNodes", "TreeWidth"} & {*options}
    assert "NodeName c[3-6] State=CLOUD: always up; only 2 nodes come and go" in notes
    created = "the harness creates the hosts of CLOUD nodes for jobs, and removes them"
    assert f"SuspendExcNodes=n1: {created}" in notes


def test_copy_whose_nodes_come_and_go_has_one_controller(tmp_path: Path, release: Release) -> None:
    hosts = "SlurmctldHost=a\nSlurmctldHost=b\nSlurmctldHost=c\n"
    site = SITE.replace("SlurmctldHost=ctl.example.org\n", hosts) + CLOUD.format(time=60)
    cluster, notes = copy(tmp_path, release, site)
    assert "backup_controllers" not in cluster
    why = "a cluster whose nodes come and go has a single controller"
    assert f"SlurmctldHost=b,c: {why}" in notes


def test_site_with_cloud_nodes_only_shares_no_hosts(tmp_path: Path, release: Release) -> None:
    text = SITE.replace("NodeName=n[1-4] CPUs=4\n", "") + CLOUD.format(time=60)
    cluster, _ = copy(tmp_path, release, text.replace("c[1-6]", "c[1-2]"))
    assert "hosts" not in cluster
    assert [group["name"] for group in cluster["nodes"]] == ["c[1-2]"]


def test_cloud_nodes_without_power_saving_are_always_up(tmp_path: Path, release: Release) -> None:
    text = SITE + CLOUD.format(time=600).replace("ResumeProgram", "#ResumeProgram")
    cluster, notes = copy(tmp_path, release, text)
    assert not [group for group in cluster["nodes"] if "provision" in group]
    assert "NodeName c[1-6] State=CLOUD: all nodes are up from the start" in notes
