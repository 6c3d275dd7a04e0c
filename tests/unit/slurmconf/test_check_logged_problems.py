"""Options that daemons accept with an error or a warning in their logs, in some releases only."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import releases
from harness.slurmconf import check

BASE = """\
ClusterName=c
SlurmctldHost=head
NodeName=n[1-4] CPUs=2
PartitionName=p Nodes=ALL Default=YES
"""
ALL = frozenset(releases.KNOWN)
NONE: frozenset[str] = frozenset()
POWER = "SuspendTime=60\nSuspendProgram=/suspend\nResumeProgram=/resume\n"
MPS = "GresTypes=gpu,mps\nSelectType=select/cons_tres\nSelectTypeParameters=CR_Core\n"
MULTIFACTOR = "PriorityType=priority/multifactor\nPriorityWeightAge=1\n"


def since(first: str) -> frozenset[str]:
    """Return the releases from one on."""
    return frozenset(name for name in ALL if name >= first)


def reporting(directory: Path, option: str, severity: str) -> frozenset[str]:
    """Return the releases for which a directory has a finding about an option."""
    return frozenset(
        name
        for name in ALL
        for finding in check.check_path(directory, releases.get(name))
        if (finding.option, finding.severity) == (option, severity)
    )


@pytest.mark.parametrize(("user", "expected"), [("slurm", ALL), ("root", NONE), ("0", NONE)])
def test_slurmd_of_a_packaged_unit_runs_as_root(
    tmp_path: Path, user: str, expected: frozenset[str]
) -> None:
    (tmp_path / "slurm.conf").write_text(f"{BASE}SlurmdUser={user}\n")
    assert reporting(tmp_path, "SlurmdUser", "info") == expected


@pytest.mark.parametrize(
    ("text", "option", "errors", "warnings"),
    [
        (MULTIFACTOR, "PriorityWeightAge", ALL, NONE),
        (
            f"{MULTIFACTOR}AccountingStorageType=accounting_storage/slurmdbd",
            "PriorityWeightAge",
            NONE,
            NONE,
        ),
        (
            f"{MULTIFACTOR}DefaultStorageType=slurmdbd",
            "PriorityWeightAge",
            since("21.08"),
            NONE,
        ),
        ("PriorityWeightQOS=4294967295\nPriorityWeightAge=1", "PriorityWeightAge", ALL, NONE),
        ("SlurmdUser=slurm", "SlurmdUser", ALL, NONE),
        ("SlurmdUser=slurm\nProctrackType=proctrack/linuxproc", "SlurmdUser", NONE, NONE),
        ("StateSaveLocation=/tmp/", "StateSaveLocation", ALL, NONE),
        ("StateSaveLocation=/tmp/slurm", "StateSaveLocation", NONE, NONE),
        ("HealthCheckInterval=60", "HealthCheckInterval", since("26.05"), NONE),
        ("HealthCheckInterval=61", "HealthCheckInterval", NONE, NONE),
        ("JobAcctGatherParams=UsePss", "JobAcctGatherParams", since("24.05"), NONE),
        (
            "JobAcctGatherType=jobacct_gather/linux\nProctrackType=proctrack/pgid\n"
            "AccountingStorageType=accounting_storage/slurmdbd",
            "JobAcctGatherType",
            NONE,
            since("23.02"),
        ),
        ("MCSPlugin=mcs/none\nMCSParameters=x", "MCSParameters", NONE, since("23.02")),
        ("MCSPlugin=mcs/group\nMCSParameters=select", "MCSParameters", NONE, since("23.02")),
        ("MCSPlugin=mcs/group\nMCSParameters=select:", "MCSParameters", NONE, since("23.02")),
        ("MCSPlugin=mcs/group\nMCSParameters=select:root", "MCSParameters", NONE, NONE),
        ("GresTypes=gpu\nNodeName=m Gres=gpu:5x", "Gres", ALL, NONE),
        ("GresTypes=gpu\nNodeName=m Gres=gpu:a:2(S:0),gpu:b", "Gres", NONE, NONE),
        (f"{MPS}NodeName=m Gres=mps:9", "Gres", since("22.05"), NONE),
        (f"{MPS}NodeName=m Gres=mps:9,gpu:1", "Gres", NONE, NONE),
        (
            "SlurmctldParameters=threadpool=enabled",
            "SlurmctldParameters",
            NONE,
            since("26.05"),
        ),
        ("SlurmctldParameters=threadpool=disabled", "SlurmctldParameters", NONE, NONE),
        ("CliFilterPlugins=lua,none", "CliFilterPlugins", since("23.11"), NONE),
        ("MpiDefault=openmpi", "MpiDefault", ALL - since("23.11"), NONE),
        ("EpilogMsgTime=1000001", "EpilogMsgTime", since("25.11"), NONE),
        ("EpilogMsgTime=1000000", "EpilogMsgTime", NONE, NONE),
        ("MessageTimeout=101", "MessageTimeout", since("21.08"), NONE),
        ("DebugFlags=Task", "DebugFlags", since("22.05"), NONE),
        (
            "CommunicationParameters=NoAddrCache",
            "CommunicationParameters",
            since("23.11"),
            NONE,
        ),
        ("SlurmctldParameters=cloud_reg_addrs", "SlurmctldParameters", since("23.11"), NONE),
        ("SchedulerParameters=bf_interval=-1", "SchedulerParameters", ALL - since("22.05"), NONE),
        ("SchedulerParameters=bf_window=43201", "SchedulerParameters", ALL, NONE),
        (
            "SchedulerType=sched/builtin\nSchedulerParameters=bf_window=43201",
            "SchedulerParameters",
            NONE,
            NONE,
        ),
        (
            "SchedulerParameters=bf_max_job_part=300",
            "SchedulerParameters",
            ALL - since("21.08"),
            NONE,
        ),
        ("SchedulerParameters=bf_max_job_user=501", "SchedulerParameters", NONE, since("23.02")),
        ("SuspendTime=60", "SuspendTime", ALL - since("26.05"), NONE),
        (f"{POWER}SuspendExcParts=q", "SuspendExcParts", ALL, NONE),
        (f"{POWER}SuspendExcNodes=n[1-5]", "SuspendExcNodes", ALL, NONE),
        (f"{POWER}SuspendExcNodes=n[1-4]:2", "SuspendExcNodes", NONE, NONE),
        ("NodeName=m Boards=2 Sockets=1", "Boards", ALL, NONE),
        ("NodeName=m ThreadsPerCore=0", "ThreadsPerCore", ALL, NONE),
        ("NodeName=m CPUs=8 CPUSpecList=7", "CPUSpecList", NONE, NONE),
        ("NodeName=m CPUs=8 CPUSpecList=8", "CPUSpecList", ALL, NONE),
        ("NodeName=m CPUs=8 CoreSpecCount=8", "CoreSpecCount", ALL, NONE),
        ("NodeName=m RealMemory=9 MemSpecLimit=8", "MemSpecLimit", NONE, NONE),
        ("NodeName=m MemSpecLimit=1", "MemSpecLimit", ALL, NONE),
        ("PartitionName=q OverSubscribe=FORCE:0", "OverSubscribe", ALL, NONE),
        ("PartitionName=q OverSubscribe=FORCE:1", "OverSubscribe", NONE, NONE),
        ("PartitionName=q AllowAccounts=a DenyAccounts=b", "DenyAccounts", ALL, NONE),
        ("PartitionName=q AllowAccounts=ALL DenyAccounts=b", "DenyAccounts", NONE, NONE),
        (f"{POWER}SuspendExcNodes=ALL", "SuspendExcNodes", ALL - since("24.05"), NONE),
        ("PartitionName=q PreemptMode=GANG", "PreemptMode", since("24.11"), NONE),
        ("RequeueExit=1-256", "RequeueExit", ALL, NONE),
        ("RequeueExit=0,255", "RequeueExit", NONE, NONE),
        ("AuthInfo=cred_expire=4", "AuthInfo", ALL, NONE),
        ("AuthInfo=cred_expire=5", "AuthInfo", NONE, NONE),
        ("AuthInfo=CRED_EXPIRE=4", "AuthInfo", NONE, NONE),
        ("AuthInfo=socket=,ttl=9", "AuthInfo", since("22.05") - since("23.11"), NONE),
        ("AuthInfo=socket=/run/x,ttl=9", "AuthInfo", NONE, NONE),
        ("AuthInfo=password", "AuthInfo", since("22.05") - since("23.11"), NONE),
        ("SlurmctldHost=spare/1", "SlurmctldHost", ALL, NONE),
        ("SlurmctldHost=spare/1(10.0.0.2)", "SlurmctldHost", NONE, NONE),
    ],
)
def test_what_a_release_logs_is_reported_with_its_severity(
    tmp_path: Path, text: str, option: str, errors: frozenset[str], warnings: frozenset[str]
) -> None:
    (tmp_path / "slurm.conf").write_text(f"{BASE}{text}\n")
    assert reporting(tmp_path, option, "error") == errors
    assert reporting(tmp_path, option, "warning") == warnings


def test_time_of_a_partition_that_slurmctld_does_not_use_is_reported(tmp_path: Path) -> None:
    line = "PartitionName=q DefaultTime=1:00:00 MaxTime=30"
    (tmp_path / "slurm.conf").write_text(f"{BASE}{line}\n")
    assert reporting(tmp_path, "DefaultTime", "info") == ALL


def test_unknown_user_in_helpers_conf_is_an_error_until_it_is_fatal(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text(f"{BASE}NodeFeaturesPlugins=node_features/helpers\n")
    (tmp_path / "helpers.conf").write_text("Feature=a\nAllowUserBoot=root,@\n")
    assert reporting(tmp_path, "AllowUserBoot", "error") == since("21.08") - since("23.02")
    assert reporting(tmp_path, "AllowUserBoot", "fatal") == since("23.02")


@pytest.mark.parametrize(
    ("text", "option"),
    [
        ("DenyUsers=0", "DenyUsers"),
        ("GetSysStatus=/x", "GetSysStatus"),
        ("Flags=DisablePersistent,EmulateCray", "Flags"),
        ("OtherTimeout=2073601", "OtherTimeout"),
        ("StageOutTimeout=2073600\nAllowUsers=slurm\nFlags=DisablePersistent", None),
    ],
)
def test_what_burst_buffer_lua_ignores_is_an_error(
    tmp_path: Path, text: str, option: str | None
) -> None:
    (tmp_path / "slurm.conf").write_text(f"{BASE}BurstBufferType=burst_buffer/lua\n")
    (tmp_path / "burst_buffer.conf").write_text(f"{text}\n")
    findings = check.check_path(tmp_path, releases.get("24.11"))
    assert [finding.option for finding in findings if finding.severity == "error"] == [
        option
    ] * bool(option)


@pytest.mark.parametrize(
    ("links", "errors"),
    [
        ("0,-1", NONE),
        ("-1,-2,1023", NONE),
        ("0,x,-1", ALL),
        ("0,1", since("21.08")),
        ("-1,-1", since("21.08")),
        ("-1,1024", ALL),
    ],
)
def test_links_without_one_own_place_are_an_error(
    tmp_path: Path, links: str, errors: frozenset[str]
) -> None:
    node = "GresTypes=gpu\nNodeName=m State=CLOUD Gres=gpu:1\n"
    (tmp_path / "slurm.conf").write_text(f"{BASE}{node}")
    (tmp_path / "gres.conf").write_text(f"Name=gpu File=/dev/a Links={links}\n")
    assert reporting(tmp_path, "Links", "error") == errors


@pytest.mark.parametrize(("flags", "is_logged"), [("REBOOTLESS", False), ("rebootless,x", True)])
def test_unknown_flag_of_a_feature_is_an_error(tmp_path: Path, flags: str, is_logged: bool) -> None:
    (tmp_path / "slurm.conf").write_text(f"{BASE}NodeFeaturesPlugins=node_features/helpers\n")
    (tmp_path / "helpers.conf").write_text(f"Feature=a Flags={flags}\n")
    assert reporting(tmp_path, "Flags", "error") == (since("24.05") if is_logged else NONE)


@pytest.mark.parametrize(
    ("gres", "text", "is_logged"),
    [
        ("gpu:1", "Name=gpu File=/dev/a[0-1]", True),
        ("gpu:2", "Name=gpu File=/dev/a[0-1]", False),
        ("gpu:2", "Name=gpu Type=a File=/dev/a[0-1]", True),
        ("gpu:A:1,gpu:b:1", "Name=gpu Type=a File=/dev/a\nName=gpu Type=b File=/dev/b", False),
        ("gpu:a:1,gpu:b:1", "Name=gpu File=/dev/a[0-1]", False),
        ("gpu:2", "Name=gpu File=/dev/a[0-1]\nName=nic Count=1", True),
        ("gpu:2", "NodeName=m Name=gpu File=/dev/a[0-1]\nNodeName=x Name=gpu Count=9", False),
    ],
)
def test_gres_conf_with_more_than_slurm_conf_is_a_warning(
    tmp_path: Path, gres: str, text: str, is_logged: bool
) -> None:
    node = f"GresTypes=gpu,nic\nNodeName=m CPUs=2 State=CLOUD Gres={gres}\n"
    (tmp_path / "slurm.conf").write_text(f"{BASE}{node}")
    (tmp_path / "gres.conf").write_text(f"{text}\n")
    option = "NodeName" if text.startswith("NodeName") else "Name"
    found = [
        one for one in check.check_path(tmp_path, releases.get("24.11")) if one.code == "count"
    ]
    assert [(finding.option, finding.severity) for finding in found] == [
        (option, "warning")
    ] * is_logged


@pytest.mark.parametrize(
    ("topology", "option", "severity"),
    [
        ("SwitchName=a Nodes=n[1-2]", "SwitchName", "incomplete"),
        ("SwitchName=a Nodes=n[1-5]", "Nodes", "incomplete"),
        ("SwitchName=a Nodes=n[1-4]\nSwitchName=b Nodes=n1", "Nodes", "incomplete"),
        ("SwitchName=a Nodes=n[1-2]\nSwitchName=b Nodes=n[3-4]", "SwitchName", "rootless"),
        (
            "SwitchName=r Switches=a,b\nSwitchName=a Nodes=n[1-2]\nSwitchName=b Nodes=n[3-4]",
            "SwitchName",
            "complete",
        ),
    ],
)
def test_incomplete_tree_is_an_error_until_slurm_logs_warnings(
    tmp_path: Path, topology: str, option: str, severity: str
) -> None:
    (tmp_path / "slurm.conf").write_text(f"{BASE}TopologyPlugin=topology/tree\n")
    (tmp_path / "topology.conf").write_text(f"{topology}\n")
    before = ALL - since("23.02")
    expected = {
        "incomplete": (before, since("23.02")),
        "rootless": (NONE, since("23.02")),
        "complete": (NONE, NONE),
    }[severity]
    assert reporting(tmp_path, option, "error") == expected[0]
    assert reporting(tmp_path, option, "warning") == expected[1]


RING = "ring: {rings: [{ring: r, nodes: 'n[1-4]'}]}"
TORUS = (
    "torus3d: {toruses: [{name: a, dims: {x: 2, y: 1, z: 1},"
    " regions: [{anchor: {x: 0}, dims: {x: 2, y: 1, z: 1}, nodes: '%s'}]}]}"
)


@pytest.mark.parametrize(
    ("topology", "line", "option", "severity"),
    [
        (RING, "", "ring", ""),
        (RING, "NodeName=m1", "ring", "warning"),
        (RING.replace("1-4", "1-5"), "", "nodes", "warning"),
        (RING, "NodeName=m1 Topology=t:r:4", "Topology", ""),
        (RING, "NodeName=m1 Topology=t:r:5", "Topology", "error"),
        (RING, "NodeName=m[1-2] Topology=t:r:5", "Topology", "error"),
        (RING, "NodeName=m1 Topology=t:s:0", "Topology", ""),
        (TORUS % "n[1-2]", "", "nodes", ""),
        (TORUS % "n[1,9]", "", "nodes", "warning"),
    ],
)
def test_what_slurmctld_logs_about_rings_and_toruses_is_reported(
    tmp_path: Path, topology: str, line: str, option: str, severity: str
) -> None:
    (tmp_path / "slurm.conf").write_text(f"{BASE}{line}\n")
    (tmp_path / "topology.yaml").write_text(f"- topology: t\n  {topology}\n")
    logged = [name for name in ("error", "warning") if "26.05" in reporting(tmp_path, option, name)]
    assert logged == ([severity] if severity else [])


@pytest.mark.parametrize(
    ("text", "unread"),
    [
        ("", NONE),
        ("PrivateData=jobs", since("25.11")),
        ("PrivateData=jobs\nMetricsParameters=ignore_private_data", NONE),
        ("MetricsAuthUsers=root\nMetricsParameters=ignore_private_data", since("26.05")),
        ("PrivateData=jobs\nSlurmctldHttpAuthParameters=jwt_key=/etc/key", NONE),
    ],
)
def test_metrics_that_nobody_can_read_are_reported(
    tmp_path: Path, text: str, unread: frozenset[str]
) -> None:
    text = f"{BASE}MetricsType=metrics/openmetrics\n{text}\n"
    (tmp_path / "slurm.conf").write_text(text)
    # 25.11 refuses the last three, whose options it does not know, but reads PrivateData.
    reporting_releases = reporting(tmp_path, "MetricsType", "info")
    assert reporting_releases - {"25.11"} == unread - {"25.11"}
    assert ("25.11" in reporting_releases) == ("PrivateData" in text)
