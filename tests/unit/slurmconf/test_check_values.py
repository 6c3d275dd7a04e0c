"""Values that some releases refuse: check reports a fatal finding for exactly these releases."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import releases
from harness.slurmconf import check

BASE = """\
ClusterName=c
SlurmctldHost=head
SlurmUser=slurm
NodeName=n[1-4] CPUs=2
PartitionName=p Nodes=ALL Default=YES
"""
ALL = frozenset(releases.KNOWN)


def since(first: str) -> frozenset[str]:
    """Return the releases from one on."""
    return frozenset(name for name in ALL if name >= first)


def refused_by(directory: Path, known_by: frozenset[str]) -> frozenset[str]:
    """Return the releases for which a directory has a fatal finding, among those given."""
    return frozenset(
        name
        for name in known_by
        if any(
            finding.severity == "fatal"
            for finding in check.check_path(directory, releases.get(name))
        )
    )


@pytest.mark.parametrize(
    ("text", "known", "refused"),
    [
        ("AuthType=munge", ALL, ALL - since("23.11")),
        ("AuthType=auth/munge,auth/jwt", ALL, ALL),
        ("CredType=auth/munge", ALL, ALL - since("23.11")),
        ("CredType=cred/slurm", ALL, ALL - since("23.11")),
        ("CredType=cred/munge\nCryptoType=crypto/openssl", ALL, frozenset()),
        ("CryptoType=crypto/openssl", ALL, ALL),
        ("CryptoType=crypto/munge", ALL, frozenset()),
        ("TLSType=none", since("24.05"), since("25.05")),
        ("TLSType=tls/none", since("24.05"), frozenset()),
        ("HashPlugin=none", since("24.05"), since("24.05")),
        ('HashPlugin=""', since("24.05"), frozenset()),
        ("JobSubmitPlugins=lua,none", ALL, ALL),
        ("MetricsType=nothing", since("25.11"), since("25.11")),
        ("MetricsType=metrics/openmetrics", since("25.11"), frozenset()),
        ('JobSubmitPlugins=""', ALL, frozenset()),
        ('JobCompType=""', ALL, since("23.02")),
        ("JobCompType=priority/multifactor", ALL, ALL),
        ('PriorityType=""', ALL, ALL),
        ("ExtSensorsType=ext_sensors/nothing", ALL, ALL - since("23.11")),
    ],
)
def test_plugin_names_are_read_as_each_release_reads_them(
    tmp_path: Path, text: str, known: frozenset[str], refused: frozenset[str]
) -> None:
    (tmp_path / "slurm.conf").write_text(f"{BASE}{text}\n")
    assert refused_by(tmp_path, known) == refused


@pytest.mark.parametrize(
    ("text", "known", "refused"),
    [
        ("SlurmctldPort=68171", ALL, frozenset()),
        ("SlurmctldPort=6817-6817", ALL, ALL),
        ("FirstJobId=0x64\nMaxJobId=99", ALL, ALL),
        ("FirstJobId=INFINITE", ALL, ALL),
        ("MaxJobId=INFINITE", ALL, frozenset()),
        ("SelectType=select/cons_tres\nMaxNodeCount=65536", since("22.05"), frozenset()),
        ("SelectType=select/cons_tres\nMaxNodeCount=65537", since("22.05"), since("24.11")),
        ("SlurmdUser=task/cgroup", ALL, ALL),
        ("SlurmdUser=3000000000", ALL, ALL - since("24.05")),
        ("SlurmdUser=99999999999999999999", ALL, ALL),
        ("FirstJobId=99999999999", ALL, since("21.08")),
        ('PriorityMaxAge=""', ALL, ALL),
        ('PreemptExemptTime=""', ALL, ALL),
        ("PriorityCalcPeriod=0:00", ALL, ALL),
        ("PriorityCalcPeriod=0:01", ALL, frozenset()),
        ("PriorityCalcPeriod=99999999999", ALL, ALL),
        ("PriorityMaxAge=35791394", ALL, ALL),
        ("PriorityMaxAge=35791393", ALL, frozenset()),
        ("PreemptExemptTime=-5", ALL, frozenset()),
        ("PriorityMaxAge=-5", ALL, ALL),
        ("MaxDBDMsgs=0", ALL, ALL),
        ("SlurmctldPort=1-65536", ALL, ALL),
        ("SlurmctldPort=4294967296", ALL, ALL),
        ("SlurmctldPort=4294974113", ALL, frozenset()),
        ("SlurmctldPort=1024-66560", ALL, frozenset()),
        ("SuspendTime=-2", ALL, since("23.02")),
        ("SuspendTime=INFINITE", ALL, frozenset()),
        ("PropagatePrioProcess=yes", ALL, since("21.08")),
        ("PropagatePrioProcess=3", ALL, ALL),
        ("SlurmctldDebug=info,debug", ALL, ALL),
        ("SlurmctldDebug=3x", ALL, frozenset()),
        ("SlurmctldDebug=65534", ALL, ALL),
        ("SlurmdSyslogDebug=4294967294", ALL, ALL),
        ("SlurmctldDebug=4294967295", ALL, frozenset()),
        ("SlurmSchedLogLevel=0x1", ALL, ALL),
        ('EnforcePartLimits=""', ALL, ALL),
        ("SchedulerParameters=max_script_size=600000000", ALL, since("21.08")),
        ("SchedulerParameters=max_submit_line_size=2097153", ALL, since("23.11")),
        ('SchedulerParameters="defer, max_script_size=600000000"', ALL, since("21.08")),
        ('SlurmctldParameters="x, conmgr_max_connections=0"', ALL, frozenset()),
        ("SchedulerParameters=bf_max_job_test=9,max_job_bf=5", ALL, frozenset()),
        ("SchedulerParameters=max_job_bf=5", ALL, ALL),
        ("SchedulerType=sched/builtin\nSchedulerParameters=max_job_bf=5", ALL, frozenset()),
        ("SlurmctldParameters=conmgr_max_connections=x", ALL, since("24.11")),
        ("SlurmctldParameters=conmgr_threads=1", ALL, since("24.11") - since("25.05")),
        ("SlurmctldParameters=conmgr_threads=0", ALL, frozenset()),
        ("SlurmctldParameters=conmgr_read_timeout=x", ALL, since("26.05")),
        (f"SlurmctldParameters=conmgr_read_timeout={2**64 - 2}", ALL, frozenset()),
        (f"SlurmctldParameters=conmgr_read_timeout={2**64 - 1}", ALL, since("26.05")),
        ("SlurmctldParameters=conmgr_read_timeout=10s", ALL, since("26.05")),
        ("SlurmctldParameters=conmgr_read_timeout=1-00:00:00", ALL, since("26.05")),
        ("SlurmctldParameters=conmgr_read_timeout=0:30", ALL, frozenset()),
        ("SlurmctldParameters=conmgr_read_timeout=2027-01-01T10:00", ALL, frozenset()),
        ("SlurmctldParameters=rl_enable,rl_bucket_size=0", ALL, since("25.11")),
        ("SlurmctldParameters=rl_bucket_size=0", ALL, frozenset()),
        ("SlurmctldParameters=rl_enable,rl_bucket_size=", ALL, frozenset()),
        ("SlurmctldParameters=rl_enable,RL_bucket_size=0", ALL, frozenset()),
        ("SlurmctldParameters=conmgr_quiesce_timeout=-1", ALL, since("25.05")),
        ("SlurmctldParameters=threadpool=odd", ALL, since("26.05")),
        ("SlurmctldParameters=threadpool=Disabled", ALL, frozenset()),
        ("SlurmctldParameters=threadpool_preserve=2049", ALL, since("26.05")),
        ("SuspendRate=60001", ALL, since("26.05")),  # slurmctld divides by 0
        ("SuspendRate=60000\nResumeRate=60000", ALL, frozenset()),
    ],
)
def test_numbers_are_read_as_each_release_reads_them(
    tmp_path: Path, text: str, known: frozenset[str], refused: frozenset[str]
) -> None:
    (tmp_path / "slurm.conf").write_text(f"{BASE}{text}\n")
    assert refused_by(tmp_path, known) == refused


@pytest.mark.parametrize(
    ("text", "known", "refused"),
    [
        ("PreemptType=preempt/partition_prio\nPreemptMode=WITHIN", since("22.05"), since("22.05")),
        ("PreemptMode=WITHIN", since("22.05"), since("22.05")),
        ("PreemptType=preempt/qos\nPreemptMode=PRIORITY", since("25.05"), since("25.05")),
        ("PreemptType=preempt/qos\nPreemptMode=SUSPEND,WITHIN", since("22.05"), frozenset()),
        ("PriorityFlags=NO_FAIR_TREE", ALL, since("23.11") - since("25.11")),
        ("PriorityType=priority/basic\nPriorityFlags=NO_FAIR_TREE", ALL, frozenset()),
        ("PropagateResourceLimits=ALL,NONE", ALL, ALL),
        ("DefaultStorageType=mysql", ALL - since("21.08"), ALL),
        ("DefaultStorageType=none", ALL - since("21.08"), frozenset()),
        (
            "DefaultStorageType=slurmdbd\nAccountingStorageTRES=gres/gpu",
            ALL - since("21.08"),
            frozenset(),
        ),
        ("PropagateResourceLimits=ODD\nPropagateResourceLimitsExcept=NONE", ALL, frozenset()),
        ("HealthCheckNodeState=START_ONLY,IDLE", ALL, since("26.05")),
        ("HealthCheckNodeState=START_ONLY,ODD,start_only", ALL, frozenset()),
        ("HealthCheckNodeState=REBOOT_ONLY,START_ONLY", ALL, since("26.05")),
        (
            "TaskPlugin=task/cray_aries\nTaskPluginParam=SlurmdOffSpec",
            ALL - since("24.05"),
            ALL,
        ),
        ("TaskPluginParam=cores,threads", ALL, ALL),
        ("TaskPluginParam=autobind=cores,autobind=threads", ALL, ALL),
        ("TaskPluginParam=cores,autobind=threads", ALL, frozenset()),
        ("TaskPluginParam=OOMKillStep", since("24.11"), since("24.11")),
        ("TaskPlugin=task/cgroup\nTaskPluginParam=OOMKillStep", since("24.11"), frozenset()),
        ("TaskPlugin=cgroup\nTaskPluginParam=OOMKillStep", since("24.11"), frozenset()),
        ("TaskPluginParam=SlurmdSpecOverride", since("25.05"), since("25.05")),
        ("TaskPlugin=task/cgroup\nTaskPluginParam=SlurmdSpecOverride", since("25.05"), frozenset()),
        ('DebugFlags="Gres, Steps"', ALL, ALL),
        ('PropagateResourceLimits="CORE, DATA"', ALL, frozenset()),
        ('LaunchParameters="mem_sort, test_exec"', ALL, frozenset()),
        ("SelectTypeParameters=CR_Core,CR_Core", ALL, ALL),
        ("BcastExclude=lib,/usr", since("21.08"), since("21.08")),
        ("BcastExclude=NONE", since("21.08"), frozenset()),
        ("PluginDir=usr/lib/slurm", ALL, ALL),
        ('PluginDir=""', ALL, ALL),
        ('StateSaveLocation=""', ALL, ALL),
        ("JobContainerType=tmpfs", since("21.08") - since("25.11"), since("21.08")),
        ("JobContainerType=tmpfs\nPrologFlags=X11", since("21.08") - since("25.11"), frozenset()),
        ("SlurmctldParameters=Enable_StepMgr", since("24.05"), since("24.05")),
        ("SlurmctldParameters=enable_stepmgr\nPrologFlags=X11", since("24.05"), frozenset()),
        (
            "SelectType=select/cray_aries\nSelectTypeParameters=CR_Core",
            ALL - since("24.05"),
            ALL - since("24.05"),
        ),
        (
            "SelectType=select/cray_aries\nSelectTypeParameters=OTHER_CONS_RES",
            ALL - since("23.11"),
            ALL - since("23.11"),
        ),
        (
            "AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageTRES=gres/",
            ALL,
            ALL,
        ),
    ],
)
def test_contradictions_are_refused_where_the_release_refuses_them(
    tmp_path: Path, text: str, known: frozenset[str], refused: frozenset[str]
) -> None:
    (tmp_path / "slurm.conf").write_text(f"{BASE}{text}\n")
    (tmp_path / "job_container.conf").write_text("BasePath=/opt/jobs\n")
    assert refused_by(tmp_path, known) == refused & known


def test_value_of_a_wrong_type_is_no_refusal_where_the_option_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text(f"{BASE}FastSchedule=1.5\n")
    assert refused_by(tmp_path, frozenset({"20.11", "21.08"})) == since("21.08") - since("22.05")
    (tmp_path / "slurm.conf").write_text(f"{BASE}FastSchedule=2\n")
    assert refused_by(tmp_path, frozenset({"20.11"})) == {"20.11"}


def test_value_of_an_option_that_a_release_ignores_is_not_checked(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text(BASE)
    (tmp_path / "cgroup.conf").write_text("CgroupAutomount=maybe\n")
    assert refused_by(tmp_path, ALL) == since("21.08") - since("23.11")


PROFILE = "AcctGatherProfileType=acct_gather_profile/"
MEMORY = "TaskPlugin=task/cgroup\nJobAcctGatherParams=OverMemoryKill"
NO_CGROUPS = "ProctrackType=proctrack/linuxproc"
CONTAINER = "JobContainerType=job_container/tmpfs\nPrologFlags=Contain"
HELPERS = "NodeFeaturesPlugins=node_features/helpers"
SLURMDBD = "DbdHost=db\nSlurmUser=slurm\nStorageType=accounting_storage/mysql\n"
NO_HOST = SLURMDBD.removeprefix("DbdHost=db\n")
NONE: frozenset[str] = frozenset()


@pytest.mark.parametrize(
    ("text", "files", "refused"),
    [
        (f"{PROFILE}hdf5", {}, ALL),
        (f"{PROFILE}hdf5", {"acct_gather.conf": "ProfileHDF5Dir=/p"}, NONE),
        (f"{PROFILE}hdf5", {"acct_gather.conf": "ProfileHDF5Dir=/p\nProfileHDF5Default=x"}, ALL),
        (f"{PROFILE}influxdb", {"acct_gather.conf": "ProfileInfluxDBDatabase=x"}, ALL),
        (
            f"{PROFILE}influxdb",
            {"acct_gather.conf": "ProfileInfluxDBHost=h\nProfileInfluxDBDatabase=x"},
            ALL - since("26.05"),
        ),
        (
            "AcctGatherEnergyType=acct_gather_energy/ipmi",
            {"acct_gather.conf": "EnergyIPMIFrequency=0"},
            ALL,
        ),
        (MEMORY, {"cgroup.conf": "ConstrainRAMSpace=yes"}, ALL),
        (MEMORY, {"cgroup.conf": "ConstrainRAMSpace=no"}, NONE),
        ("JobCompType=jobcomp/script", {}, since("23.02")),
        ("JobCompType=jobcomp/script\nJobCompLoc=/x", {}, NONE),
        (
            "AccountingStorageType=accounting_storage/slurmdbd\nAccountingStoragePass=secret",
            {},
            ALL,
        ),
        (
            "AccountingStorageType=accounting_storage/slurmdbd\nAccountingStoragePass=/munge",
            {},
            NONE,
        ),
        ("", {"slurmdbd.conf": f"{SLURMDBD}AuthAltTypes=auth/jwt"}, ALL),
        (
            "",
            {
                "slurmdbd.conf": f"{SLURMDBD}AuthAltTypes=auth/jwt\n"
                "AuthAltParameters=jwt_key=/etc/slurm/k"
            },
            NONE,
        ),
        ("", {"slurmdbd.conf": f"{SLURMDBD}SlurmUser=0"}, ALL - since("23.11")),
        ("", {"slurmdbd.conf": f"{SLURMDBD}StorageLoc=slurm-acct-db"}, ALL),
        ("", {"slurmdbd.conf": f"{SLURMDBD}StorageLoc=1db"}, NONE),
        ("", {"slurmdbd.conf": f"{SLURMDBD}StorageLoc=Select"}, ALL),
        ("", {"slurmdbd.conf": f"{SLURMDBD}StorageLoc={'x' * 65}"}, ALL),
        ("", {"slurmdbd.conf": f"{SLURMDBD}StorageHost=db:3307"}, ALL),
        ("", {"slurmdbd.conf": f"{SLURMDBD}StorageHost=::1"}, NONE),
        ("", {"slurmdbd.conf": f"{SLURMDBD}StorageLoc=/var/lib/x"}, NONE),
        ("", {"slurmdbd.conf": f"{SLURMDBD}ArchiveDir=archive"}, ALL),
        ("", {"slurmdbd.conf": f"{SLURMDBD}ArchiveDir=var/archive"}, NONE),
        ("", {"slurmdbd.conf": f"{SLURMDBD}PluginDir=plugins"}, ALL),
        ("", {"slurmdbd.conf": f"{SLURMDBD}DbdBackupHost=@@HOST@@"}, NONE),
        ("", {"slurmdbd.conf": f"{NO_HOST}DbdBackupHost=@@HOST@@"}, NONE),
        ("SlurmdSpoolDir=x/y", {}, ALL),
        ("SlurmdSpoolDir=y", {}, NONE),
        ("SlurmdSpoolDir=var/spool/y", {}, NONE),
        ("SlurmSchedLogFile=x/y", {}, ALL),
        ("SlurmSchedLogFile=y", {}, NONE),
        ("JobCompType=jobcomp/script\nJobCompLoc=x/y", {}, since("23.02")),
        ("JobCompType=jobcomp/filetxt\nJobCompLoc=y", {}, ALL),
        ("JobCompType=jobcomp/filetxt\nJobCompLoc=y\nSlurmUser=root", {}, NONE),
        ("JobCompType=jobcomp/mysql\nJobCompLoc=a-b", {}, ALL),
        ("JobCompType=jobcomp/mysql\nJobCompLoc=a.b", {}, NONE),
        ("StateSaveLocation=/", {}, ALL),
        ("StateSaveLocation=/dev/null", {}, ALL),
        ("StateSaveLocation=/dev/shm/slurm", {}, NONE),
        ("StateSaveLocation=/developers", {}, NONE),
        ("StateSaveLocation=/\nSlurmUser=root", {}, NONE),
        ("PrologSlurmctld=prolog.sh", {}, since("23.02")),
        ("PrologSlurmctld=/opt/prolog.sh", {}, NONE),
        ("AccountingStorageType=accounting_storage/slurmdbd\nAccountingStoragePort=0", {}, ALL),
        ("AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageHost=d:1", {}, ALL),
        ("SlurmdUser=4294967295", {}, ALL),
        ("PartitionName=q Nodes=n1 MaxTime=4294967295", {}, NONE),
        ("PartitionName=q Nodes=n1 TRESBillingWeights=CPU=0x1.8p1,Mem=0x.8G", {}, NONE),
        ("PartitionName=q Nodes=n1 TRESBillingWeights=CPU=0xG", {}, ALL),
        ("AcctGatherEnergyType=acct_gather_energy/rsmi", {}, frozenset({"22.05"})),
        (
            "TopologyPlugin=topology/tree",
            {"topology.conf": "SwitchName=a Nodes=n[1-4] Switches=x"},
            since("21.08"),
        ),
        ("", {"slurmdbd.conf": f"{SLURMDBD}CommunicationParameters=DisableIPv4"}, ALL),
        ("", {"mpi.conf": "Foo=1"}, NONE),
        ("", {"mpi.conf": "no value"}, NONE),
        (
            "TopologyPlugin=topology/block",
            {"topology.conf": 'BlockName=b Nodes=n[1-4]\nBlockSizes=""'},
            ALL,
        ),
        ("", {"cgroup.conf": "AllowedRAMSpace=1e39"}, since("21.08")),
        ("", {"cgroup.conf": "AllowedRAMSpace=1e-50"}, since("21.08")),
        ("", {"cgroup.conf": "AllowedRAMSpace=0e50"}, NONE),
        ("", {"cgroup.conf": "AllowedRAMSpace=0x1.8p4"}, NONE),
        ("AuthAltTypes=auth/jwt\nAuthAltParameters=jwt_key=", {}, ALL - since("23.11")),
        ("AuthAltTypes=auth/jwt\nAuthAltParameters=jwt_key=/home/", {}, ALL),
        ("AuthAltParameters=jwt_key=/home/", {}, NONE),
        ("AuthAltTypes=auth/jwt\nAuthAltParameters=jwt_key=x/y", {}, ALL),
        ("AuthAltTypes=auth/jwt\nAuthAltParameters=jwt_key=etc/y", {}, NONE),
        ("", {"cgroup.conf": "CgroupPlugin=cgroup/odd"}, ALL),
        ("", {"cgroup.conf": "CgroupPlugin=cgroup/v1"}, ALL - since("21.08")),
        ("", {"cgroup.conf": "CgroupPlugin=disabled"}, ALL),
        (NO_CGROUPS, {"cgroup.conf": "CgroupPlugin=disabled"}, ALL - since("24.05")),
        (CONTAINER, {"job_container.conf": ""}, ALL - {"21.08"} - since("23.11")),
        (CONTAINER, {"job_container.conf": "NoSuch=1"}, ALL),
        ("", {"job_container.conf": "NoSuch=1"}, NONE),
        (CONTAINER, {"job_container.conf": "BasePath=/tmp/jobs"}, ALL - since("23.02")),
        (CONTAINER, {"job_container.conf": "BasePath=/tmpfs"}, ALL - since("21.08")),
        (CONTAINER, {"job_container.conf": "NodeName=n1 InitScript=/opt/x"}, ALL),
        (HELPERS, {"helpers.conf": "BootTime=1"}, ALL - since("23.02")),
        (HELPERS, {"helpers.conf": "Feature=a\nFeature=a"}, ALL - since("23.02")),
        (HELPERS, {"helpers.conf": "Feature=a\nFeature=a Helper=/x"}, ALL),
        (
            HELPERS,
            {"helpers.conf": "NodeName=n[1-2] Feature=a Helper=/x\nNodeName=n2 Feature=a,b"},
            ALL,
        ),
        (
            HELPERS,
            {"helpers.conf": "NodeName=n1 Feature=a Helper=/x\nNodeName=n2 Feature=a"},
            ALL - since("23.02"),
        ),
        ('SlurmdSpoolDir=""', {}, ALL),
        ("TaskPlugin=cray_aries,affinity", {}, ALL),
        ("TaskPlugin=cgroup,cray_aries", {}, since("24.05")),
        ("SlurmdParameters=conmgr_max_connections=0", {}, since("24.11")),
    ],
)
def test_companions_are_required_where_the_release_requires_them(
    tmp_path: Path, text: str, files: dict[str, str], refused: frozenset[str]
) -> None:
    (tmp_path / "slurm.conf").write_text(f"{BASE}{text}\n")
    for name, content in files.items():
        (tmp_path / name).write_text(f"{content}\n")
    assert refused_by(tmp_path, ALL) == refused


def test_helpers_need_their_file_only_where_its_absence_is_known(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text(f"{BASE}NodeFeaturesPlugins=helpers\n")
    assert refused_by(tmp_path, since("21.08")) == since("21.08")
    assert refused_by(tmp_path / "slurm.conf", since("21.08")) == frozenset()


@pytest.mark.parametrize(
    "line", ["RoutePlugin=route/odd", "PrioritySiteFactorPlugin=site_factor/odd"]
)
def test_slurmctld_23_02_loads_plugins_that_nothing_uses(tmp_path: Path, line: str) -> None:
    (tmp_path / "slurm.conf").write_text(f"{BASE}PriorityType=priority/basic\n{line}\n")
    assert refused_by(tmp_path, ALL) == {"23.02"}


def test_route_topology_requires_topology_tree(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text(f"{BASE}RoutePlugin=route/topology\n")
    assert refused_by(tmp_path, ALL) == ALL - since("23.11")
