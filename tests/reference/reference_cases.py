"""Small configurations, each with one thing that some release refuses, ignores or misreads."""

from __future__ import annotations

BASE = """\
ClusterName=c
SlurmctldHost=head
SlurmUser=slurm
StateSaveLocation=/var/spool/slurmctld
NodeName=n[1-4] CPUs=2
PartitionName=p Nodes=ALL Default=YES
"""
DATABASE = "AccountingStorageType=accounting_storage/slurmdbd\n"
SLURMDBD = "DbdHost=db\nSlurmUser=slurm\nStorageType=accounting_storage/mysql\n"
TREE = "TopologyPlugin=topology/tree"


def with_(*lines: str, without: str = "", **files: str) -> dict[str, str]:
    """Return the base configuration with lines and files added, but no line starting `without`."""
    base = "".join(
        f"{line}\n" for line in BASE.splitlines() if not (without and line.startswith(without))
    )
    named = {name.replace("_conf", ".conf"): text for name, text in files.items()}
    return {"slurm.conf": base + "".join(f"{line}\n" for line in lines), **named}


def options(*texts: str) -> dict[str, dict[str, str]]:
    """Return a case for each line that is added to the base configuration."""
    return {text: with_(text) for text in texts}


# Options that releases dropped, renamed or introduced.
CHANGED = options(
    *(
        "FastSchedule=0",
        "FastSchedule=1",
        "FastSchedule=2",
        "FastSchedule=1.5",
        "MemLimitEnforce=no",
        "SallocDefaultCommand=srun",
    ),
    *(
        "AccountingStorageLoc=x",
        "Layouts=power/cpufreq",
        "MsgAggregationParams=WindowMsgs=10",
        "ChosLoc=/x",
    ),
    *(
        "AccountingStorageType=accounting_storage/filetxt",
        "AccountingStorageType=accounting_storage/mysql",
    ),
    *(
        "SwitchType=switch/generic",
        "AccountingStoreJobComment=yes",
        "AccountingStoreFlags=job_comment",
    ),
    *(
        "CacheGroups=1",
        "CheckpointType=checkpoint/none",
        "JobCheckpointDir=/x",
        "SchedulerPort=7321",
    ),
    *(
        "SchedulerRootFilter=1",
        "DefaultStorageHost=x",
        "SbcastParameters=Compression=lz4",
        "SlurmctldPlugstack=x",
    ),
    *("LaunchType=launch/slurm", "RoutePlugin=route/default", "TopologyPlugin=topology/hypercube"),
    *(
        "TopologyPlugin=topology/none",
        "TopologyPlugin=topology/default",
        "TopologyPlugin=topology/flat",
    ),
    "TopologyPlugin=topology/3d_torus",
    *(
        "JobCredentialPrivateKey=/x",
        "ExtSensorsType=ext_sensors/none",
        "CoreSpecPlugin=core_spec/none",
    ),
    *(
        "PowerPlugin=",
        "PowerParameters=x",
        "SchedulerAuth=x",
        "GetEnvTimeout=2",
        "AccountingStorageUser=x",
    ),
    *(
        "CommunicationParameters=NoAddrCache",
        "SlurmctldParameters=cloud_reg_addrs",
        "CryptoType=crypto/munge",
    ),
    *(
        "SchedulerParameters=enable_job_state_cache",
        "FrontendName=f",
        "MaxNodeCount=10",
        "NodeSet=s Nodes=n[1-2]",
    ),
    *(
        "PartitionName=q Nodes=n1 ExclusiveUser=yes",
        "PartitionName=q Nodes=n1 Exclusive=USER",
        "HashPlugin=hash/k12",
    ),
    *(
        "PartitionName=q Nodes=n1 ExclusiveTopo=yes",
        "PrologFlags=DeferBatch",
        "DebugFlags=TimeCray",
        "Prolog=/opt/p",
    ),
    *(
        "DebugFlags=Task",
        "DebugFlags=FrontEnd",
        "ReconfigFlags=KeepNodeStateFuture",
        "ReconfigFlags=odd",
        "TaskPluginParam=Sched",
    ),
    *("TaskPluginParam=Boards", "SelectTypeParameters=CR_ALLOCATE_FULL_SOCKET", "KeepAliveTime=10"),
)
CHANGED |= {
    f"{kind} {text}": with_(**{kind.replace(".", "_"): f"{text}\n"})
    for kind, text in (
        *(
            ("cgroup.conf", "CgroupPlugin=disabled"),
            ("cgroup.conf", "TaskAffinity=no"),
            ("cgroup.conf", "NoSuch=1"),
        ),
        *(
            ("cgroup.conf", "CgroupReleaseAgentDir=/x"),
            ("cgroup.conf", "CgroupAutomount=yes"),
            ("cgroup.conf", "CgroupAutomount=maybe"),
        ),
        *(("cgroup.conf", "ConstrainKmemSpace=no"), ("cgroup.conf", "RootOwnedCgroups=yes")),
        *(("cgroup.conf", "AllowedDevicesFile=/x"), ("cgroup.conf", "ConstrainCores=maybe")),
        *(("cgroup.conf", "IgnoreSystemd=yes"), ("cgroup.conf", "SystemdTimeout=5")),
    )
}
PLUGINS = options(
    *(
        "SelectType=select/cons_res",
        "SelectType=select/linear",
        "SelectType=select/nothing",
        "SelectType=cons_tres",
    ),
    *(
        "PreemptType=preempt/none",
        "PreemptType=preempt/job_prio",
        "JobCompType=jobcomp/none",
        "MCSPlugin=mcs/none",
    ),
    *(
        "PriorityType=priority/basic",
        "SchedulerType=sched/hold",
        "SchedulerType=sched/builtin",
        "MpiDefault=none",
    ),
    *(
        "AuthType=auth/none",
        "AuthType=auth/authd",
        "JobSubmitPlugins=nothing",
        "JobSubmitPlugins=job_submit/lua",
    ),
    *(
        "AcctGatherEnergyType=acct_gather_energy/rsmi",
        "AcctGatherProfileType=acct_gather_profile/none",
    ),
    *(
        "AcctGatherInfinibandType=acct_gather_infiniband/none",
        "AcctGatherInfinibandType=acct_gather_infiniband/odd",
        "AcctGatherInfinibandType=odd\nAcctGatherInterconnectType=acct_gather_interconnect/none",
        "SwitchType=switch/none",
        "TaskPlugin=task/nothing",
    ),
    *(
        "ProctrackType=proctrack/nothing",
        "PrEpPlugins=prep/script",
        "JobContainerType=job_container/tmpfs",
    ),
    *(
        "NamespaceType=namespace/tmpfs",
        "BurstBufferType=burst_buffer/generic",
        "CredType=cred/none",
    ),
    *(
        "SelectTypeParameters=CR_Core",
        "SelectTypeParameters=CR_Memory",
        "SelectTypeParameters=CR_Nothing",
    ),
)
# Names without a type, "none" and empty values.
PLUGINS |= options(
    "AuthType=munge",
    "CredType=auth/munge",
    "CredType=cred/slurm",
    "CryptoType=crypto/openssl",
    "TLSType=none",
    "HashPlugin=none",
    "JobSubmitPlugins=none",
    'JobCompType=""',
    "JobCompType=priority/multifactor",
    'PriorityType=""',
)
PLUGINS |= {
    "cons_res with CR_Core": with_("SelectType=select/cons_res", "SelectTypeParameters=CR_Core"),
    "cons_tres": with_("SelectType=select/cons_tres"),
    "cons_tres with CR_Core_Memory": with_(
        "SelectType=select/cons_tres", "SelectTypeParameters=CR_Core_Memory"
    ),
    "cons_tres with CR_Memory": with_(
        "SelectType=select/cons_tres", "SelectTypeParameters=CR_Memory"
    ),
    "cons_tres with two": with_(
        "SelectType=select/cons_tres", "SelectTypeParameters=CR_CPU,CR_Core"
    ),
    "linear with CR_Core": with_("SelectType=select/linear", "SelectTypeParameters=CR_Core"),
    "linear with tree": with_(
        "SelectType=select/linear", TREE, topology_conf="SwitchName=s Nodes=n[1-4]\n"
    ),
}
# What the parser accepts, and what it does not.
GRAMMAR = options(
    *(
        "NoSuchOption=1",
        "MessageTimeout=",
        'MailDomain=""',
        "MessageTimeout=10s",
        "MessageTimeout=0x10",
        "TreeWidth=70000",
    ),
    *(
        "MessageTimeout = 20",
        "messagetimeout=20",
        "MessageTimeout=20 MinJobAge=30",
        "MinJobAge=30 ; comment",
        "; comment",
    ),
    *(
        "MailDomain=a b",
        'MailDomain="a b"',
        'MailDomain="a b"c',
        "MailDomain=a#b",
        "Just words",
        "MailProg: /bin/x",
    ),
    *(
        "MaxJobCount=10K",
        "MaxJobCount=10M",
        "MaxJobCount=-1",
        "MaxJobCount=INFINITE",
        "UsePAM=1",
        "UsePAM=on",
        "UsePAM=2",
    ),
    *(
        "MessageTimeout+=30",
        "PriorityWeightAge=UNLIMITED",
        "MessageTimeout=20\nMessageTimeout=30",
        "MinJobAge=\\\n30",
    ),
    *(
        "MinJobAge=30 \\",
        " Include x.conf",
        "Include missing.conf",
        "Include *.conf",
        "# comment \\\nMinJobAge=30",
    ),
    *(
        "NodeName=m1 CPUs=2 NoSuch=3",
        "NodeName=m1 CPUs=two",
        "NodeName=m1 CPUs=2 CPUs=4",
        "CPUs=2 NodeName=m1",
    ),
    *(
        "NodeName=m1 Port=",
        "PartitionName=q Nodes=n1 MaxTime=never",
        "PartitionName=q Nodes=n1 State=maybe",
    ),
    *(
        "PartitionName=q Nodes=n1 OverSubscribe=maybe",
        "PartitionName=q Nodes=n1 NoSuch=1",
        "DownNodes=n1 State=DOWN",
    ),
)
GRAMMAR |= {
    "include": with_("Include a.conf", a_conf="MinJobAge=30\n"),
    "include without an end of line": {"slurm.conf": BASE + "Include a.conf", "a.conf": ""},
    "include of a bad file": with_("Include a.conf", a_conf="NoSuchOption=1\n"),
    "include by cluster": with_("Include %c.conf", c_conf="MinJobAge=30\n"),
    "CRLF": {"slurm.conf": BASE.replace("\n", "\r\n")},
    "byte order mark": {"slurm.conf": "\xef\xbb\xbf" + BASE},
    "no end of line": {"slurm.conf": BASE.rstrip("\n")},
    "nothing": {"slurm.conf": ""},
}
NODES = options(
    *(
        "NodeName=n1 CPUs=2",
        "NodeName=ALL",
        "NodeName=m[1-3",
        "NodeName=m[3-1]",
        "NodeName=m1,,m2,",
        "NodeName=m1 State=ODD",
    ),
    *(
        "NodeName=m1 State=CLOUD",
        "NodeName=m1 State=FUTURE",
        "NodeName=m1 State=idle",
        "NodeName=m1 State=DRAINED",
    ),
    *(
        "NodeName=m[1-2] NodeAddr=10.0.0.1",
        "NodeName=m[1-2] NodeAddr=10.0.0.[1-2]",
        "NodeName=m[1-2] NodeAddr=10.0.0.[1-3]",
    ),
    *(
        "NodeName=m[1-2] NodeHostname=h[1-2]",
        "NodeName=m[1-2] NodeHostname=h",
        "NodeName=m[1-2] Port=[7001-7002]",
    ),
    *(
        "NodeName=m[1-2] Port=[7001-7003]",
        "NodeName=m1 Port=99999",
        "NodeName=m1 CPUs=8 Sockets=2 CoresPerSocket=4",
    ),
    *(
        "NodeName=m1 CPUs=7 Sockets=2 CoresPerSocket=4",
        "NodeName=m1 Gres=gpu:1",
        "NodeName=DEFAULT NodeAddr=x",
    ),
    *(
        "PartitionName=q Nodes=other",
        "PartitionName=q Nodes=n[1-9]",
        "PartitionName=q Nodes=all",
        "PartitionName=q",
    ),
    *(
        "PartitionName=p Nodes=n1",
        "PartitionName=q Nodes=n1,,n2,",
        "DownNodes=other State=DOWN",
        "PartitionName=q Nodes=n[1",
    ),
    *(
        "PartitionName=q Nodes=n1 QOS=special",
        "PartitionName=q Nodes=n1 TRESBillingWeights=CPU=1,GRES/gpu=2",
    ),
    *(
        "PartitionName=q Nodes=n1 TRESBillingWeights=CPU=1.0",
        "PartitionName=q Nodes=n1 TRESBillingWeights=CPU=0x1.8p1,Mem=0x10G",
        "PartitionName=q Nodes=n1 TRESBillingWeights=CPU=0xG",
        "AccountingStorageTRES=gres/gpu",
        "AccountingStorageTRES=gpu",
    ),
    *("Licenses=a:2,b", "DefMemPerCPU=1\nDefMemPerNode=2", "MaxMemPerCPU=1\nMaxMemPerNode=2"),
    *("PartitionName=q Nodes=n1 DefMemPerCPU=1 DefMemPerNode=2", "NodeSet=s Nodes=other"),
    "NodeSet=s Nodes=n[1-2]\nPartitionName=q Nodes=s",
    "NodeSet=n1 Nodes=n[1-2]",
)
NODES |= {
    "no node": with_(without="NodeName"),
    "no partition": with_(without="PartitionName"),
    "no default partition": with_("PartitionName=q Nodes=n1", without="PartitionName"),
}
# How releases read lists of hosts: src/common/hostlist.c and expand_nodeline_info().
HOSTLISTS = options(
    "NodeName=m[01-100]",
    "NodeName=m[1-2]-ib",
    "NodeName=m[1-2]]",
    "NodeName=m[1-70000]",
    "NodeName=m[1-2],m[2-3]",
    "NodeName=m+1",
    "NodeName=m1 Port=-1",
    "NodeName=m[1-2] Port=[7001",
    "NodeName=m1 State=ERROR",
    "NodeName=m[1-2] NodeHostname=h[1-3]",
    "NodeName=m[1-2] NodeHostname=h[1-3] NodeAddr=h[1-2]",
    "PartitionName=q,q Nodes=n1",
    "PartitionName=q Nodes=n1,ALL",
    "NodeSet=s Nodes=ALL\nPartitionName=q Nodes=s",
    "NodeSet=s Nodes=n[1\nPartitionName=q Nodes=s",
)
# Nodes that _check_callback() takes for others, because of host names.
HOSTLISTS |= options(
    "NodeName=m1 NodeHostname=m2\nNodeName=m2 NodeHostname=m3",
    "NodeName=m2 NodeHostname=m3\nNodeName=m1 NodeHostname=m2",
    "NodeName=m[1-2] NodeHostname=h\nNodeName=h",
    "NodeName=h\nNodeName=m[1-2] NodeHostname=h",
    "NodeName=m[1-2] NodeHostname=m[2-3]",
)
HOSTLISTS |= {
    text: with_(text, "PartitionName=q Nodes=ALL", without="NodeName")
    for text in ("NodeName=localhost,n1", "NodeName=n1,localhost")
}
# What _parse_partitionname() refuses.
PARTITIONS = options(
    "PartitionName=q Nodes=n1 MaxTime=99999999999",
    "PartitionName=q Nodes=n1 SuspendTime=99999999999",
    "PartitionName=q Nodes=n1 Exclusive=odd",
    "PartitionName=q Nodes=n1 PreemptMode=odd",
    "PartitionName=q Nodes=n1 SelectTypeParameters=CR_CPU",
)
# Without the partitions that _parse_partitionname() refuses, 20.11 may have none left.
PARTITIONS |= {
    f"only partition: {text}": with_(text, without="PartitionName")
    for text in (
        "PartitionName=q Nodes=ALL State=odd",
        "PartitionName=DEFAULT State=odd\nPartitionName=q Nodes=ALL",
        "PartitionName=q Nodes=ALL State=odd\nPartitionName=r Nodes=n1",
    )
}
PARTITIONS |= options(
    "PartitionName=q Nodes=missing State=odd", "PartitionName=p Nodes=n1 State=odd"
)
# What slurmctld refuses about hosts, licenses and specialized cores.
HOSTS = options(
    "Licenses=matlab:,:5",
    "SelectType=select/cons_tres\nSelectTypeParameters=CR_Core\nMaxNodeCount=999999",
    "NodeName=m1 TRESWeights=x",
    "NodeName=m1 SuspendTime=99999999999",
    "SuspendExcNodes=n[1",
    "SelectType=select/cons_tres\nSelectTypeParameters=CR_Core\nMaxNodeCount=0",
    "SelectType=select/cons_tres\nSelectTypeParameters=CR_Core\nMaxNodeCount=2",
    "PowerAction=a Program=/bin/true",
    "PowerAction=a Location=slurmctld",
    "PowerAction=a Location=slurmctld Program=true",
    "PowerAction=a Location=slurmd Program=true",
    "NodeFeaturesPlugins=node_features/knl_cray",
    "NodeFeaturesPlugins=knl_cray\nSuspendProgram=/opt/s\nResumeProgram=/opt/r\nSuspendTime=60",
    "SelectType=select/cons_tres\nSelectTypeParameters=CR_Socket\n"
    "NodeName=m1 CPUs=4 Sockets=2 CoresPerSocket=2 CoreSpecCount=3",
)
_CONS = "SelectType=select/cons_tres\nSelectTypeParameters=CR_Core\n"
HOSTS |= options(
    f"{_CONS}NodeName=m1 CPUs=1 CoresPerSocket=6",
    f"{_CONS}NodeName=m1 CPUs=2 Sockets=2 CoresPerSocket=4",
    f"{_CONS}NodeName=m1 CPUs=7 CoresPerSocket=4",
    "SelectType=select/linear\nNodeName=m1 CPUs=2 Sockets=2 CoresPerSocket=4",
)
HOSTS |= {
    text: with_(text, without="SlurmctldHost")
    for text in (
        "SlurmctldHost=@HEAD@",
        "SlurmctldHost=head[1-2]",
        "SlurmctldHost=head(",
        "ControlMachine=a,b",
        "ControlMachine=head\nBackupController=head",
        "SlurmctldHost=head\nSlurmctldHost=localhost",
    )
}
HOSTS |= {
    text: with_(text, without=text.partition("=")[0])
    for text in (
        "StateSaveLocation='/var/spool/slurmctld'",
        "StateSaveLocation=state",
        "SlurmUser=192.0.2.1",
    )
}
HOSTS["TRES without a name"] = with_(DATABASE, "AccountingStorageTRES=gres/")
HOSTS["TRES with an old name"] = with_(DATABASE, "AccountingStorageTRES=bb/cray")
HOSTS["TRES of GPU usage"] = with_(
    DATABASE, "AccountingStorageTRES=gres/gpu", "NodeName=m1 TRESWeights=gres/gpumem=1"
)
HOSTS["long password"] = with_(DATABASE, f"AccountingStoragePass=/{'x' * 511}")
MEANING = options(
    *(
        "PreemptMode=SUSPEND",
        "PreemptMode=SUSPEND,GANG",
        "PreemptMode=GANG",
        "PreemptMode=REQUEUE",
        "PreemptMode=odd",
    ),
    *(
        "PreemptType=preempt/qos",
        "PreemptType=preempt/qos\nPreemptMode=REQUEUE",
        "PreemptMode=REQUEUE,CANCEL",
    ),
    *(
        "PriorityDecayHalfLife=0",
        "PriorityDecayHalfLife=7d",
        "PriorityDecayHalfLife=14-0",
        "PriorityMaxAge=1-0",
    ),
    *(
        "PriorityDecayHalfLife=0\nPriorityUsageResetPeriod=NONE",
        "PriorityUsageResetPeriod=HOURLY",
        "FirstJobId=0",
    ),
    *(
        "MaxDBDMsgs=100",
        "MaxJobCount=0",
        "MaxStepCount=0",
        "MaxArraySize=5000000",
        "SchedulerTimeSlice=1",
        "MinJobAge=1",
    ),
    *(
        "MCSParameters=ondemand",
        "MCSPlugin=mcs/group",
        "PrologFlags=Contain,NoHold",
        "PrologFlags=odd",
        "PrologFlags=X11",
    ),
    *(
        "DebugFlags=odd",
        "SlurmctldDebug=loud",
        "SlurmctldDebug=3",
        "SlurmdDebug=debug2",
        "EnforcePartLimits=maybe",
    ),
    *(
        "AccountingStorageEnforce=odd",
        "AccountingStorageEnforce=limits",
        "PropagateResourceLimits=all",
    ),
    *(
        "PropagateResourceLimitsExcept=MEMLOCK",
        "PropagatePrioProcess=3",
        "SlurmSchedLogLevel=1",
        "TreeWidth=0",
    ),
    *(
        "HealthCheckNodeState=ODD",
        "SuspendTime=never",
        "SuspendTime=60",
        "SlurmUser=@@USER@@",
        "UnkillableStepTimeout=10",
    ),
    *(
        "LaunchParameters=enable_nss_slurm,disable_send_gids",
        "JobAcctGatherType=jobacct_gather/linux",
    ),
    *(
        "JobAcctGatherParams=UsePss,NoShared",
        "CommunicationParameters=DisableIPv4",
        "BackupAddr=x",
        "ControlMachine=head",
    ),
    *(
        "SlurmctldHost=head",
        "SlurmctldHost=spare(10.0.0.2",
        "SlurmctldHost=spare(10.0.0.2)",
        "GresTypes=gpu",
        "GresTypes=odd",
    ),
    "JobContainerType=job_container/tmpfs\nPrologFlags=Contain",
    *(
        "Licenses=a:x",
        "Licenses=a=2",
        "Licenses=a:2;b:3",
        "GresTypes=mps",
        "GresTypes=gpu,mps",
        "SlurmctldPort=0",
    ),
    *(
        "SlurmctldPort=6817-6820",
        "SlurmctldPort=6820-6817",
        "SlurmctldPort=many",
        "AuthAltTypes=auth/nothing",
    ),
    *(
        "SlurmctldParameters=enable_stepmgr",
        "SlurmctldParameters=max_dbd_msg_action=stop",
        "TLSType=tls/nothing",
    ),
    *(
        "SlurmctldParameters=max_dbd_msg_action=exit",
        "HashPlugin=hash/nothing",
        "JobCompType=jobcomp/nothing",
    ),
    *(
        "PrioritySiteFactorPlugin=site_factor/nothing",
        "AcctGatherProfileType=acct_gather_profile/nothing",
    ),
)
# Numbers as the daemon's own functions read them.
MEANING |= options(
    "SlurmctldPort=68171",
    "SlurmctldPort=6817-6817",
    "SlurmctldPort=1022-1025",
    "FirstJobId=100\nMaxJobId=10",
    "FirstJobId=INFINITE",
    "SelectType=select/cons_tres\nMaxNodeCount=999999",
    "SlurmdUser=task/cgroup",
    "SlurmctldPort=1-65536",
    "Licenses=a:10000000000000000000",
    "MaxDBDMsgs=0",
    "PriorityCalcPeriod=0",
    "PriorityCalcPeriod=99999999999",
    "PriorityDecayHalfLife=99999999999",
    "PriorityMaxAge=35791394",
    "PreemptExemptTime=-5",
    "SuspendTime=-2",
    "PropagatePrioProcess=yes",
    "SlurmctldDebug=info,debug",
    "SlurmctldDebug=65534",
    "SchedulerParameters=max_script_size=600000000",
    "SchedulerParameters=max_submit_line_size=999999999",
    "SchedulerParameters=max_job_bf=5",
    "SlurmctldParameters=conmgr_max_connections=abc",
    "SlurmctldParameters=conmgr_threads=99999",
    "SlurmctldParameters=conmgr_read_timeout=abc",
    "SlurmctldParameters=conmgr_read_timeout=10s",
    "SlurmctldParameters=rl_enable,rl_bucket_size=0",
    "SlurmctldParameters=rl_enable,rl_table_size=",
    "SlurmctldParameters=threadpool=odd",
    "SlurmctldParameters=threadpool_preserve=99999",
)
# Up to 20.11, DefaultStorageType is the default of AccountingStorageType.
MEANING |= options(
    "DefaultStorageType=slurmdbd\nDefaultStoragePort=7000\nAccountingStorageTRES=gres/gpu",
    "DefaultStorageType=mysql",
    "DefaultStorageType=none",
    "DefaultStorageType=odd\nAccountingStorageType=accounting_storage/none",
)
# Words that exclude or require others.
MEANING |= options(
    "PreemptType=preempt/partition_prio\nPreemptMode=WITHIN",
    "PreemptMode=WITHIN",
    "PriorityFlags=NO_FAIR_TREE",
    "PropagateResourceLimits=ALL,NONE",
    "PropagateResourceLimits=ODD\nPropagateResourceLimitsExcept=NONE",
    "HealthCheckNodeState=START_ONLY,IDLE",
    "HealthCheckNodeState=REBOOT_ONLY,ODD",
    "AccountingStorageTRES=fs/diskette",
    'AccountingStorageTRES="cpu, mem"',
    'PartitionName=q Nodes=n1 TRESBillingWeights="CPU=1, Mem=nan"',
    "PartitionName=q Nodes=n1 TRESBillingWeights=CPU=1,Mem=nan",
    'SchedulerParameters="defer, max_job_bf=5"',
    "SchedulerParameters=bf_max_job_test=9,max_job_bf=5",
    'SchedulerParameters="defer, max_script_size=600000000"',
    'GresTypes="gpu, mps"',
    "DefaultStorageType=slurmdbd\nAccountingStorageTRES=gres/gpu",
    "TaskPlugin=task/cray_aries\nTaskPluginParam=SlurmdOffSpec",
    "TaskPluginParam=cores,threads",
    "TaskPluginParam=OOMKillStep",
    'DebugFlags="Gres, Steps"',
    "SelectTypeParameters=CR_Core,CR_Core",
    "BcastExclude=lib,usr",
    "PluginDir=usr/lib/slurm",
    "SlurmSchedLogFile=x/y",
    "JobCompType=jobcomp/script\nJobCompLoc=x/y",
    "JobCompType=jobcomp/filetxt\nJobCompLoc=x/y",
    "JobCompType=jobcomp/filetxt\nJobCompLoc=tmp/y",
    "JobCompType=jobcomp/filetxt\nJobCompLoc=y",
    "JobCompType=jobcomp/mysql\nJobCompLoc=a-b",
    "JobCompType=jobcomp/mysql\nJobCompPassScript=x/y",
    "JobCompType=jobcomp/mysql\nJobCompLoc=/var/log/x",
    "PartitionName=q Nodes=n1 MaxTime=4294967295",
    "AuthAltTypes=auth/jwt\nAuthAltParameters=jwt_key=",
    "AuthAltTypes=auth/jwt\nAuthAltParameters=jwt_key=/home/",
    "AuthAltTypes=auth/jwt\nAuthAltParameters=jwt_key=x/y",
    "StateSaveLocation=/",
    "StateSaveLocation=/dev/null",
    "StateSaveLocation=state\nAuthAltTypes=auth/jwt",
    "PrologSlurmctld=prolog.sh",
    "PrepPlugins=none\nEpilogSlurmctld=x/epilog",
    "JobContainerType=tmpfs",
    "SlurmctldParameters=enable_stepmgr\nPrologFlags=X11",
    "SelectType=select/cray_aries\nSelectTypeParameters=CR_Core",
    "SelectType=select/cray_aries\nSelectTypeParameters=OTHER_CONS_RES",
    "AcctGatherEnergyType=acct_gather_energy/gpu",
    "TaskPlugin=cgroup\nTaskPluginParam=OOMKillStep",
    f"{DATABASE}AccountingStorageTRES=gres/",
)
MEANING |= {
    "no ClusterName": with_(without="ClusterName"),
    "no SlurmctldHost": with_(without="SlurmctldHost"),
    "ControlMachine alone": with_("ControlMachine=head", without="SlurmctldHost"),
    "max_dbd_msg_action with slurmdbd": with_(
        DATABASE, "SlurmctldParameters=max_dbd_msg_action=stop"
    ),
    "enforced with slurmdbd": with_(
        DATABASE, "AccountingStorageEnforce=associations,limits,qos,safe"
    ),
    "TRES with slurmdbd": with_(DATABASE, "AccountingStorageTRES=gres/gpu"),
}
TOPOLOGY = {
    f"tree: {text}": with_(TREE, topology_conf=f"{text}\n")
    for text in (
        "SwitchName=s Nodes=n[1-4]",
        "SwitchName=a Nodes=n[1-2]\nSwitchName=b Nodes=n[3-4]\nSwitchName=root Switches=a,b",
        "SwitchName=a Nodes=n[1-2]",
        "SwitchName=a Nodes=n[1-4]\nSwitchName=a Nodes=n[3-4]",
        "SwitchName=a Nodes=n[1-4]\nSwitchName=b Switches=c",
        "SwitchName=a Nodes=n[1-4]\nSwitchName=b Switches=c\nSwitchName=c Switches=b",
        "SwitchName=a Nodes=n[1-4] Switches=b\nSwitchName=b Nodes=n1",
        "SwitchName=a Nodes=n[1-4] Switches=x",
        "SwitchName=a Nodes=n[1-9]",
        "SwitchName=a Nodes=n[1-4] Speed=1",
        "",
    )
}
TOPOLOGY |= {
    f"tree: {text}": with_(TREE, topology_conf=f"{text}\n")
    for text in ("SwitchName=s", "SwitchName=s Nodes=n[1-", "BlockName=b Nodes=n1\nBlockSizes=1")
}
TOPOLOGY |= {
    f"block: {text}": with_("TopologyPlugin=topology/block", topology_conf=f"{text}\n")
    for text in (
        "SwitchName=s Nodes=n[1-4]",
        "BlockName=b\nBlockSizes=1",
        "BlockName=b Nodes=n[1-4]\nBlockSizes=1,32768",
        "BlockName=b Nodes=n[1-4]\nBlockSizes=1,65536",
        "BlockName=b Nodes=n[1-4]\nBlockSizes=99",
    )
}
_LEAF = "{switch: s, nodes: 'n[1-4]'}"
TOPOLOGY |= {
    f"yaml: {text}": with_(
        **{"topology.yaml": f"- topology: t\n  cluster_default: true\n  {text}\n"}
    )
    for text in (
        f"tree: {{switches: [{_LEAF}, {{switch: r, children: 's,x'}}]}}",
        f"tree: {{switches: [{_LEAF}, {_LEAF}]}}",
        "tree: {switches: []}",
        "block: {block_sizes: [1, 3], blocks: [{block: b, nodes: 'n[1-4]'}]}",
        "",
    )
}
TOPOLOGY |= options(
    "TopologyPlugin=topology/tree",
    "TopologyPlugin=topology/block",
    "NodeName=m1 Topology=nosuch:x",
    "PartitionName=q Nodes=n1 Topology=nosuch",
)
TOPOLOGY |= {
    f"block: {text}": with_("TopologyPlugin=topology/block", topology_conf=f"{text}\n")
    for text in (
        "BlockName=a Nodes=n[1-2]\nBlockName=b Nodes=n[3-4]\nBlockSizes=2,4",
        "BlockName=a Nodes=n[1-2]\nBlockName=b Nodes=n[3-4]\nBlockSizes=2,6",
        "BlockName=a Nodes=n[1-2]\nBlockName=a Nodes=n[3-4]\nBlockSizes=2",
        "BlockName=a Nodes=n[1-4]\nBlockLevels=0",
    )
}
ACCT_GATHER = {
    "acct_gather of no plugin": with_(acct_gather_conf="ProfileInfluxDBHost=x\n"),
    "acct_gather of its plugin": with_(
        "AcctGatherProfileType=acct_gather_profile/hdf5",
        acct_gather_conf="ProfileHDF5Dir=/opt/profiles\n",
    ),
    "acct_gather of another plugin": with_(
        "AcctGatherProfileType=acct_gather_profile/hdf5", acct_gather_conf="EnergyIPMIFrequency=1\n"
    ),
    "acct_gather with an unknown option": with_(acct_gather_conf="NoSuch=1\n"),
}
COMPANIONS = options(
    "AcctGatherProfileType=acct_gather_profile/hdf5",
    "AcctGatherProfileType=acct_gather_profile/influxdb",
    "NodeFeaturesPlugins=node_features/helpers",
    "JobCompType=jobcomp/script",
    "RoutePlugin=route/topology",
    f"{DATABASE}AccountingStoragePass=password",
) | {
    "hdf5 with an unknown default": with_(
        "AcctGatherProfileType=acct_gather_profile/hdf5",
        acct_gather_conf="ProfileHDF5Dir=/opt/profiles\nProfileHDF5Default=odd\n",
    ),
    "ipmi without a frequency": with_(
        "AcctGatherEnergyType=acct_gather_energy/ipmi", acct_gather_conf="EnergyIPMIFrequency=0\n"
    ),
    "OverMemoryKill and task/cgroup": with_(
        "TaskPlugin=task/cgroup",
        "JobAcctGatherParams=OverMemoryKill",
        cgroup_conf="ConstrainRAMSpace=yes\n",
    ),
    "mpi.conf with an unknown option": with_("MpiDefault=pmix", mpi_conf="NoSuch=1\n"),
}
HELPERS = {
    f"helpers.conf: {text}": with_(
        "NodeFeaturesPlugins=node_features/helpers", helpers_conf=f"{text}\n"
    )
    for text in (
        "Feature=a Helper=/opt/h",
        "",
        "Feature=a-b Helper=/opt/h",
        "Feature=a,b Helper=/opt/h",
        "Feature=a Helper=/opt/h\nFeature=a Helper=/opt/h",
        "NodeName=n1 Helper=/opt/h",
    )
}
# Files that only plugins read.
UNUSED = {
    f"{name} without its plugin": with_(**{name: "NoSuch=1\n"})
    for name in ("burst_buffer.conf", "helpers.conf", "topology.conf")
}
UNUSED["burst_buffer.conf with its plugin"] = with_(
    "BurstBufferType=burst_buffer/lua", burst_buffer_conf="NoSuch=1\n"
)
# slurmctld reads gres.conf for cloud nodes.
GRES = {
    f"cloud gres: {text}": with_(
        "GresTypes=gpu",
        "NodeName=cloud[0-1] CPUs=1 Gres=gpu:1 State=CLOUD",
        gres_conf=f"{text}\n",
    )
    for text in (
        "Name=gpu Count=two",
        "Name=gpu File=/dev/null Cores=0-1",
        "Name=gpu File=/dev/null MultipleFiles=/dev/null,/dev/zero",
        "Name=gpu MultipleFiles=/dev/null",
        "NodeName=n1 Name=gpu Count=two",
    )
}
# What slurmctld accepts with an error or a warning in its log.
_POWER = "SuspendTime=60\nSuspendProgram=/opt/suspend\nResumeProgram=/opt/resume\n"
LOGGED = options(
    "PriorityType=priority/multifactor\nPriorityWeightAge=100\nPriorityWeightFairshare=100",
    "PriorityWeightQOS=4294967295\nPriorityWeightPartition=10",
    "PriorityType=priority/multifactor\nPrioritySiteFactorPlugin=site_factor/nothing",
    "SlurmdUser=slurm\nTaskPlugin=task/cgroup",
    "SlurmdUser=slurm",
    "StateSaveLocation=/var/tmp",
    "SlurmdSpoolDir=/tmp",
    "HealthCheckProgram=/opt/check\nHealthCheckInterval=30\nHealthCheckTimeout=30",
    "HealthCheckProgram=/opt/check\nHealthCheckInterval=30",
    "HealthCheckTimeout=0",
    "JobAcctGatherParams=UsePss",
    "JobAcctGatherType=jobacct_gather/linux\nJobAcctGatherParams=NoShared",
    "JobAcctGatherType=jobacct_gather/linux\nProctrackType=proctrack/pgid",
    "DefaultStorageType=slurmdbd\nAccountingStorageEnforce=limits",
    "MCSPlugin=mcs/none\nMCSParameters=ondemand",
    "SlurmdParameters=l3cache_as_socket,numa_node_as_socket",
    "CliFilterPlugins=none,lua",
    "MpiDefault=openmpi",
    "EpilogMsgTime=2000000",
    "EpilogMsgTime=1000000",
    "MessageTimeout=101",
    "CommunicationParameters=keepaliveprobes=-1",
    "CommunicationParameters=host_unreach_retry_count=-1",
    "SlurmctldParameters=validate_nodeaddr_threads=65",
    "SlurmctldParameters=conmgr_threads=1",
    "SchedulerParameters=bf_interval=0",
    "SchedulerParameters=bf_interval=-1",
    "SchedulerParameters=bf_window=100000,bf_resolution=5000",
    "SchedulerParameters=bf_max_job_test=0",
    "SchedulerParameters=bf_yield_interval=0",
    "SchedulerParameters=bf_yield_rpc_cnt=1000",
    "SchedulerParameters=bf_node_space_size=1",
    "SchedulerParameters=max_rpc_cnt=2000",
    "SchedulerParameters=bf_max_job_part=100",
    "SchedulerParameters=bf_max_job_user=600",
    "SchedulerParameters=bf_max_job_user=10,bf_max_job_assoc=20",
    "SchedulerType=sched/builtin\nSchedulerParameters=bf_resolution=5000",
    f"{_POWER}SuspendExcNodes=n[1-9]",
    f"{_POWER}SuspendExcParts=p,q",
    f"{_POWER}SuspendExcNodes=ALL",
    f"{_POWER}SuspendExcStates=odd",
    "SuspendExcStates=odd",
    "PartitionName=q Nodes=n1 SuspendTime=60",
    "MinJobAge=0",
    "UnkillableStepTimeout=0",
    "SuspendTime=60\nSuspendProgram=suspend\nResumeProgram=/opt/resume",
    "CpuFreqDef=odd",
    "CpuFreqDef=PerformanceX",
    "CpuFreqGovernors=OnDemand,odd",
    "RequeueExit=1-3,odd",
    "RequeueExitHold=1-3,5",
    "RequeueExit=5-3",
    "RoutePlugin=route/nothing",
    "UrlParserType=url_parser/nothing",
    "SlurmdPort=0",
    "MaxDBDMsgs=0",
    "SuspendProgram=suspend",
    f"{_POWER}ResumeFailProgram=fail",
    "PartitionName=q Nodes=n1 AllowQos=odd",
    "PartitionName=q Nodes=n1 Shared=odd",
    "NodeName=m1 CPUSpecList=odd",
    "NodeName=m1 CPUs=0",
    "NodeName=m1 CoresPerSocket=0 ThreadsPerCore=0 Boards=0",
    "NodeName=m1 Sockets=0",
    "NodeName=m1 Sockets=2 SocketsPerBoard=2",
    "NodeName=m1 Boards=4 Sockets=2",
    "NodeName=m1 CPUs=7 CoresPerSocket=2",
    "NodeName=m1 CPUs=4 CoreSpecCount=4",
    "NodeName=m1 CPUs=4 CPUSpecList=0-4",
    "NodeName=m1 CPUs=4 CPUSpecList=0 CoreSpecCount=1",
    "NodeName=m1 RealMemory=1000 MemSpecLimit=1000",
    "NodeName=m1 MemSpecLimit=100",
    "NodeName=m1 CpuBind=odd",
    "NodeName=m1 CpuBind=cores",
    "PartitionName=q Nodes=n1 CpuBind=odd",
    "PartitionName=q Nodes=n1 OverSubscribe=YES:1",
    "PartitionName=q Nodes=n1 OverSubscribe=FORCE:0",
    "PartitionName=q Nodes=n1 OverTimeLimit=-1",
    "PartitionName=q Nodes=n1 DefaultTime=20 MaxTime=10",
    "PartitionName=q Nodes=n1 AllowAccounts=a DenyAccounts=b",
    "PartitionName=q Nodes=n1 AllowAccounts=ALL DenyAccounts=b",
    "PartitionName=q Nodes=n1 PreemptMode=GANG",
    "GresTypes=mps,gpu\nSelectType=select/cons_tres\nSelectTypeParameters=CR_Core\n"
    "NodeName=m1 Gres=odd:1",
    # Not SlurmctldHost=spare/1: slurmctld looks for that host for 110 s.
    "SlurmctldHost=spare/1(10.0.0.2)",
)
LOGGED |= options(
    *(
        f"JobCompType=jobcomp/kafka\nJobCompLoc=/opt/kafka.conf\nJobCompParams={parameters}"
        for parameters in (
            "poll_interval=x,topic=a,topic_job_start=a",
            "Poll_Interval=x,topic=A,topic_job_start=a",
            "poll_interval=99999999999999999999,topic_job_start=c",
            "poll_interval=4,flush_timeout=x,Topic=a,topic_job_start=a",
        )
    ),
    "MCSPlugin=mcs/group\nMCSParameters=ondemand,select",
    "MCSPlugin=mcs/group\nMCSParameters=ondemand:root",
    "SlurmctldParameters=threadpool=enabled",
    "GresTypes=gpu\nNodeName=m1 Gres=gpu:5x",
    "AuthInfo=cred_expire=4",
    "AuthInfo=socket=,ttl=60",
    'AuthInfo=""',
    'AuthType=""',
    "RequeueExit=255-256",
    "AuthInfo=cred_expire=5,ttl=5",
)
LOGGED |= options(
    "PartitionName=q Nodes=n1,n{1..4}",
    'MailProg="/bin/mail -s x"',
    'MailProg=""',
    "MailProg=none",
    "MessageTimeout=0",
    'SlurmctldHost=""',
    "DownNodes=DEFAULT State=DOWN",
    "DownNodes=n[1-",
    "NodeName=m1 RealMemory=0",
    "NodeName=m1 NodeAddr=fe80::1",
    "GresTypes=GPU\nNodeName=m1 Gres=gpu:1",
    "GresTypes=gpu,gpu",
    "EpilogSlurmctld=/opt/x/*",
    "Include /etc/slurm",
    "SchedulerParameters=bf_hetjob_prio=odd",
    "SchedulerParameters=bf_min_prio_reserve=-1",
    "SelectType=select/cons_tres\nSelectTypeParameters=CR_Core\nSchedulerParameters=bf_window_linear=-1",
    "DependencyParameters=max_depend_depth=-1",
    "SlurmctldParameters=power_save_interval=120",
    "UrlParserType=url_parser/libhttp_parser",
)
_SAVING = "SuspendProgram=/opt/s\nResumeProgram=/opt/r\nSuspendTime=300\n"
# Several independent errors each.
LOGGED |= options(
    "MaxJobId=67108864\nSlurmctldDebug=11\nSlurmdSyslogDebug=65547\n"
    "SchedulerParameters=preempt_reorder_count=-1\nNodeName=m1 CpuBind=cores,threads\n"
    "PartitionName=q Nodes=n1 CpuBind=v,cores,none",
    "PreemptParameters=reorder_count=-1\nPrologFlags=Serial,RunInJob\n"
    "PartitionName=q Nodes=n1 ExclusiveUser=yes ExclusiveTopo=yes\nHttpParserType=odd\n"
    "UrlParserType=libhttp_parser",
    f"{_SAVING}SlurmctldParameters=power_save_interval=-1\nSuspendRate=60000",
    f"{_SAVING}SlurmctldParameters=power_save_interval=65537\nResumeRate=60000",
    "SuspendTime=INFINITE",
    "SuspendTime=4294967295",
    "DownNodes=n1 State=CLOUD",
    "SchedulerType=sched/builtin\nSchedulerParameters=sched_min_interval=0,max_job_bf=0",
    "SchedulerType=sched/builtin\nSchedulerParameters=bf_interval=-1,max_job_bf=0,bf_max_job_test=5",
    "MessageTimeout=\xc2\xa010",  # a no-break space in UTF-8
    "NodeName=m1 ThreadsPerCore=UNLIMITED\nNodeName=m2 RealMemory=0x10 MemSpecLimit=1k",
    'SlurmSchedLogFile=""',
    'NodeName=m1 Features="" Procs=0 Sockets=2 CoresPerSocket=6\n'
    "NodeName=m2 CPUs=4 CpuSpecList=0-9:2",
    "SelectType=select/cons_tres\nSelectTypeParameters=CR_Core\n"
    "NodeName=m1 CPUs=0 SocketsPerBoard=1 CoresPerSocket=6 ThreadsPerCore=2",
    "AccountingStorageEnforce=nosteps",
    "CommunicationParameters=keepalivetime=0",
    "PartitionName=q Nodes=n1 DenyQos=ALL",
    'PartitionName=q Nodes=n1 DenyQos=""',
    "SuspendTime=300\nResumeProgram=r\nResumeFailProgram=f",
    # Directories instead of files.
    "SlurmctldPidFile=/var/run\nSlurmdPidFile=/var/run",
    "SlurmSchedLogFile=/var/log",
    "JobCompType=jobcomp/filetxt\nJobCompLoc=/home/",
    "JobCompType=jobcomp/script\nJobCompLoc=/var/log/",
    "AuthInfo=socket=/run",
    "AuthAltTypes=auth/jwt\nAuthAltParameters=jwt_key=/var/spool",
)
LOGGED |= {
    f"{name}: {text}": with_(
        "BurstBufferType=burst_buffer/lua\nProctrackType=proctrack/cgroup", **{name: f"{text}\n"}
    )
    for name, text in (
        ("cgroup.conf", "MemorySwappiness=101"),
        ("burst_buffer_lua.conf", "DefaultPool=a"),
        ("burst_buffer_lua.conf", "Foo=1"),
        ("burst_buffer_datawarp.conf", "Foo=1"),
    )
}
LOGGED["burst_buffer_lua.conf and burst_buffer_datawarp.conf"] = with_(
    "BurstBufferType=burst_buffer/lua",
    **{"burst_buffer_lua.conf": "Foo=1\n", "burst_buffer_datawarp.conf": "\n"},
)
LOGGED["burst_buffer.conf with what burst_buffer/lua ignores"] = with_(
    "BurstBufferType=burst_buffer/lua",
    burst_buffer_conf="AllowUsers=slurm,root\nGetSysState=/x\nGetSysStatus=/x\nDefaultPool=a\n"
    "Granularity=0\nFlags=EnablePersistent,EmulateCray\nStageInTimeout=2073601\nOtherTimeout=2073600\n",
)
LOGGED["helpers.conf with an unknown flag"] = with_(
    "NodeFeaturesPlugins=node_features/helpers",
    helpers_conf="Feature=a Helper=/opt/h Flags=Rebootless\nFeature=b Helper=/opt/h Flags=odd\n",
)
LOGGED |= {
    f"cloud gres with more: {text}": with_(
        "GresTypes=gpu,nic",
        "NodeName=cloud[0-1] CPUs=1 Gres=gpu:1 State=CLOUD",
        gres_conf=f"{text}\n",
    )
    for text in (
        "Name=gpu File=/dev/null,/dev/zero",
        "Name=gpu Type=a File=/dev/null",
        "Name=GPU File=/dev/null",
        "Name=gpu File=/dev/null\nName=nic Count=2",
        "Name=gpu File=/dev/null Links=0,x\nName=odd Count=2",
        "NodeName=cloud0 Name=gpu,nic\nNodeName=cloud1 Name=gpu File=/dev/null Links=-1",
        "AutoDetect=cuda\nName=gpu File=/dev/null AutoDetect=off",
        "AutoDetect=full",
    )
}
LOGGED |= {
    "cgroup.conf CgroupPlugin=cgroup/v1": with_(
        "ProctrackType=proctrack/cgroup", cgroup_conf="CgroupPlugin=cgroup/v1\n"
    ),
    "tree without a root": with_(
        TREE, topology_conf="SwitchName=a Nodes=n[1-2]\nSwitchName=b Nodes=n[3-4]\n"
    ),
    "tree with a node on two leaves": with_(
        TREE,
        topology_conf="SwitchName=a Nodes=n[1-3]\nSwitchName=b Nodes=n[3-4]\n"
        "SwitchName=r Switches=a,b\n",
    ),
    "tree with a node twice on a leaf": with_(
        TREE, topology_conf="SwitchName=s Nodes=n[1-3],n[3-4]\n"
    ),
    "yaml: a partition's tree of some nodes, with an unknown key": with_(
        "PartitionName=q Nodes=n[1-4] Topology=b",
        **{
            "topology.yaml": "- {topology: a, cluster_default: true, flat: true}\n"
            "- {topology: b, name: b, tree: {switches: [{switch: s, nodes: 'n[1-2]'}]}}\n"
        },
    ),
    "block of some nodes": with_(
        "TopologyPlugin=topology/block", topology_conf="BlockName=b Nodes=n[1-2]\nBlockSizes=2\n"
    ),
    "cloud gres with a file": with_(
        "GresTypes=gpu",
        "NodeName=cloud[0-1] CPUs=1 Gres=gpu:1 State=CLOUD",
        gres_conf="NodeName=cloud0 Name=gpu File=/dev/null\n",
    ),
}
_RESOURCE = "- {resource: r, mode: MODE_1, layers: [%s]}"
RESOURCES = {
    f"resources.yaml {text}": with_("Licenses=a", **{"resources.yaml": f"{text}\n"})
    for text in (
        "- {resource: r",
        "{}",
        "- {resource: r, layers: []}",
        *(
            _RESOURCE % layers
            for layers in (
                "{nodes: 'n[1-2]', count: 5}, {nodes: [n3], count: '0x5'}",
                "{nodes: n9, count: 5}",
                "{nodes: n1}",
                "{nodes: n1, count: many}",
                "{nodes: [n1, n2], count: 5}, {nodes: 'n[1-2]', count: 6}",
                "{nodes: n1, count: 5, base: [{name: x, value: 6}]}",
            )
        ),
        "- {resource: a, mode: MODE_1, layers: [{nodes: n1, count: 5}]}",
        "- {resource: r, mode: MODE_3, layers: [{nodes: n1, count: 1}, {nodes: n2, count: 1}]}",
    )
}
_LEVELS_OF_MODE_3 = [f"{{nodes: 'm[1-{number}]', count: 1}}" for number in range(1, 18)]
_MODE_3 = "- {resource: r, mode: MODE_3, %s layers: [%s]}"
_UNEVEN = ["{nodes: m1, count: 1}", "{nodes: m3, count: 1}", "{nodes: 'm[1-2]', count: 1}"]
RESOURCES |= {
    f"resources.yaml MODE_3: {name}": with_(
        "NodeName=m[1-17]", **{"resources.yaml": _MODE_3 % (keys, ", ".join(layers)) + "\n"}
    )
    for name, keys, layers in (
        ("16 levels", "", _LEVELS_OF_MODE_3[1:]),
        ("17 levels", "", _LEVELS_OF_MODE_3),
        ("uneven leaves that are compared", "", [*_UNEVEN, _LEVELS_OF_MODE_3[3]]),
        (
            "uneven leaves that are not",
            "",
            [_UNEVEN[0], _UNEVEN[2], _UNEVEN[1], _LEVELS_OF_MODE_3[3]],
        ),
        ("topology", "topology: x, variables: [{name: v, value: 1}],", _LEVELS_OF_MODE_3[:2]),
        ("topology without variables", "topology: x,", _LEVELS_OF_MODE_3[:2]),
    )
}
RESOURCES |= {
    f"rpc_queue.yaml {text}": with_(
        "SlurmctldParameters=enable_rpc_queue", **{"rpc_queue.yaml": f"{text}\n"}
    )
    for text in ("rpc_queue: []", "rpc_queue: [", "[]")
}
# Options of plugins.
PLUGIN_OPTIONS = options(
    "PriorityMaxAge=35791393",
    "PriorityCalcPeriod=0:00:30",
    "PriorityDecayHalfLife=71582788:16",
    "PreemptExemptTime=71582788:14",
    "GresTypes=GPU,mps",
    "GresTypes=gpu,MPS",
    "GresTypes=aXXXb,bXXXa",
    "CertmgrType=certmgr/script",
    "CertmgrType=certmgr/script\nCertmgrParameters=sign_csr_script=/opt/sign",
    "CertmgrType=certmgr/script\n"
    "CertmgrParameters=sign_csr_script=/opt/sign,certificate_renewal_period=-1",
    "BurstBufferType=burst_buffer/lua,burst_buffer/datawarp",
    "NodeFeaturesPlugins=node_features/knl_generic\nResumeProgram=/bin/true",
    "ExtSensorsType=ext_sensors/rrd",
    "SlurmctldPlugstack=nonstop",
    "PowerPlugin=power/nothing",
    'JobCompType=jobcomp/filetxt\nJobCompLoc=""',
    "AuthInfo=password",
    "SlurmctldParameters=rl_enable,rl_table_size=-1",
    "SlurmctldParameters=threadpool_preallocate=5000",
)
# Files that only a plugin reads.
PLUGIN_FILES = {
    f"knl_generic.conf: {text}": with_(
        "NodeFeaturesPlugins=node_features/knl_generic", **{"knl_generic.conf": f"{text}\n"}
    )
    for text in (
        "AllowMCDRAM=cache,odd\nDefaultMCDRAM=flat,memory\nAllowNUMA=a2a,SNC2\nSystemType=dell",
        "AllowMCDRAM=odd",
        "DefaultNUMA=a2a,quad",
        "SystemType=odd",
        "AllowUserBoot=@@x",
        "NodeRebootWeight=5",
        "NoSuch=5",
    )
}
PLUGIN_FILES |= {
    f"helpers: {text}": with_("NodeFeaturesPlugins=node_features/helpers", helpers_conf=text)
    for text in (
        "Feature=a Helper=/bin/true\n",
        "Feature=a,b Helper=/bin/true\n",
        "Feature=9a Helper=/bin/true\n",
        "Feature=a Helper=/bin/true\nFeature=a Helper=/bin/false\n",
        "Feature=a Helper=/bin/true\nAllowUserBoot=@@x\n",
        "NodeName=n1 Helper=/bin/true\n",
        "BootTime=5\n",
    )
}
PLUGIN_FILES |= {
    f"{plugin}: {text}": with_(
        f"AcctGather{plugin.partition('/')[0].capitalize()}Type=acct_gather_{plugin}",
        acct_gather_conf=f"{more}{text}\n",
    )
    for plugin, more, texts in (
        ("energy/ipmi", "", ("EnergyIPMIFrequency=INFINITE", "EnergyIPMIFrequency=2147483647")),
        ("energy/xcc", "", ("EnergyIPMIFrequency=0x0", "EnergyIPMIPowerSensors=Node=1")),
        (
            "profile/influxdb",
            "ProfileInfluxDBHost=h\nProfileInfluxDBDatabase=d\nProfileInfluxDBRTPolicy=p\n",
            ("ProfileInfluxDBFlags=odd", "ProfileInfluxDBExtraTags=user"),
        ),
    )
    for text in texts
}
# GRES of cloud nodes, across several lines.
GRES |= {
    f"cloud gres {gres}: {text}": with_(
        "GresTypes=gpu,mps",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core",
        f"NodeName=cloud0 CPUs=2 Gres={gres} State=CLOUD",
        gres_conf=f"{text}\n",
    )
    for gres, text in (
        ("gpu:2", "Name=gpu File=/dev/null\nName=gpu Count=1"),
        ("gpu:2", "Name=gpu Type=a File=/dev/null\nName=gpu File=/dev/zero"),
        ("gpu:2", "Name=gpu Count=1\nName=gpu Count=1"),
        ("gpu:2", "Name=gpu File=/dev/null\nName=gpu File=/dev/null"),
        ("gpu:2", "Name=gpu File=/dev/null\nNodeName=n1 Name=gpu Count=1"),
        ("gpu:a:1,gpu:2", ""),
        ("gpu:1", "Name=gpu File=/dev/null Flags=no_gpu_env,amd_gpu_env"),
        ("gpu:2", "Name=gpu File=/dev/null\nName=gpu File=/dev/zero Flags=nvidia_gpu_env"),
        ("gpu:2", "Name=gpu File=/dev/null\nName=gpu File=/dev/zero Flags=CountOnly"),
        ("gpu:1", "AutoDetect=nvml"),
        ("gpu:1", "Name=gpu Count=-5"),
        ("gpu:1,mps:100", ""),
        ("gpu:1,mps:100", "Name=gpu File=/dev/null"),
        ("gpu:1,mps:100", "Name=gpu File=/dev/null\nName=mps File=/dev/null Count=50"),
        ("gpu:1,mps:a:50,mps:b:50", "Name=gpu File=/dev/null"),
    )
}
# Cores of GRES of a cloud node with two sockets of two cores, or four of one.
GRES |= {
    f"cloud gres {gres} on {shape}: {text}": with_(
        "GresTypes=gpu",
        f"NodeName=cloud0 {shape} Gres={gres} State=CLOUD",
        gres_conf=f"{text}\n",
    )
    for shape in ("Sockets=2 CoresPerSocket=2 ThreadsPerCore=2", "CPUs=4")
    for gres, text in (
        ("gpu:1", "Name=gpu File=/dev/null Cores=0-1"),
        ("gpu:1", "Name=gpu File=/dev/null Cores=0-3"),
        ("gpu:1", "Name=gpu File=/dev/null Cores=1-2"),
        ("gpu:1", "Name=gpu File=/dev/null Cores=0-5"),
        ("gpu:1", "Name=gpu File=/dev/null Cores=0-7:2"),
        ("gpu:1", "Name=gpu Cores=1"),
        ("gpu:1", "Name=gpu File=/dev/null Cores=all"),
        ("gpu:2", "Name=gpu File=/dev/null Cores=0-1\nName=gpu File=/dev/zero"),
        ("gpu:2", "Name=gpu File=/dev/null\nName=gpu File=/dev/zero Cores=0-1"),
    )
}
_HYPERCUBE = (
    "SwitchName=r0i0s0 Nodes=n1,n2 Switches=r0i0s1-{}\nSwitchName={} Nodes=n3,n4 Switches={}"
)
_LEVELS = [f"SwitchName=s{level} Switches=s{level + 1}" for level in range(22)]
TOPOLOGY |= {
    f"{plugin}: {text}": with_(f"TopologyPlugin=topology/{plugin}", topology_conf=f"{text}\n")
    for plugin, text in (
        ("hypercube", _HYPERCUBE.format(4, "r0i0s1", "r0i0s0-4")),
        ("hypercube", _HYPERCUBE.format(0, "r0i0s1", "r0i0s0-4")),
        ("hypercube", _HYPERCUBE.format(4, "r0i0s1", "r0i0s0")),
        ("hypercube", _HYPERCUBE.format(4, "s1", "r0i0s0-4")),
        ("hypercube", "SwitchName=r0i0s0 Nodes=n[1-4] Switches=r0i0s0-4"),
        ("hypercube", ""),
        ("ring", "RingName=a Nodes=n[1-4]"),
        ("ring", "RingName=a Nodes=n[1-2]\nRingName=a Nodes=n[3-4]"),
        ("ring", "RingName=a Nodes=n[1-"),
        ("torus3d", ""),
        ("tree", f"SwitchName={'s' * 70} Nodes=n[1-4]"),
        ("tree", "\n".join((*_LEVELS, "SwitchName=s22 Nodes=n[1-4]"))),
        ("tree", "\n".join((*_LEVELS[1:], "SwitchName=s22 Nodes=n[1-4]"))),
        ("tree", 'SwitchName=a Nodes=n[1-4]\nSwitchName=b Switches=""'),
        ("block", 'BlockName=b Nodes=n[1-4]\nBlockSizes=""'),
        ("block", "BlockName=b[1 Nodes=n[1-2]\nBlockName=c Nodes=n[3-4]\nBlockSizes=2,4"),
    )
}
_SQUARE = "name: a, dims: {x: 2, y: 2, z: 1}"
TOPOLOGY |= {
    f"yaml: {text}": with_(
        **{"topology.yaml": f"- topology: t\n  cluster_default: true\n  {text}\n"}
    )
    for text in (
        "tree: {switches: [{nodes: 'n[1-4]'}]}",
        "ring: {rings: []}",
        f"torus3d: {{toruses: [{{{_SQUARE}, nodes: 'n[1-4]'}}]}}",
        f"torus3d: {{toruses: [{{{_SQUARE}, nodes: 'n[1-3]'}}]}}",
        f"torus3d: {{toruses: [{{{_SQUARE}}}, {{{_SQUARE}}}]}}",
        f"torus3d: {{toruses: [{{{_SQUARE}, placements: [{{dims: {{x: 3, y: 1, z: 1}}}}]}}]}}",
    )
}


def _torus(*regions: tuple[str, int]) -> str:
    """Return a torus of 2*2*2 with regions: their nodes, and the row that they are in."""
    listed = ", ".join(
        f"{{nodes: 'n[{nodes}]', anchor: {{x: 0, y: {y}, z: 0}}, dims: {{x: 2, y: 1, z: 1}}}}"
        for nodes, y in regions
    )
    dims = "dims: {x: 2, y: 2, z: 2}"
    return f"torus3d: {{toruses: [{{name: a, {dims}, regions: [{listed}]}}]}}"


_RING = "ring: {rings: [{ring: r, nodes: 'n[1-4]'}]}"
_PLACED = [
    *((_RING, f"m1 Topology=t:{unit}") for unit in ("r:0", "r:9", "r:16", "r", "s:0", "s:1")),
    *((_RING, f"m1 Topology=t:{unit}") for unit in ("r:0x3", "r:1:2")),
    *((_RING, f"m[1-{number}] Topology=t:r:0") for number in (12, 14)),
    *(
        (_torus(("1-2", 0), ("3-4", 1)), f"{node} Topology=t:a:{cell}")
        for node, cell in (
            ("m1", "0:0:1"),
            ("m1", "0:0:0"),
            ("m1", "2:0:0"),
            ("m1", "0:0"),
            ("m1", "0:0:1:x"),
            ("m1", "-1:0:0"),
            ("m[1-2]", "0:0:1"),
        )
    ),
    (_torus(("1-2", 0)), "m1 Topology=t:b:0:0:0"),
    *((_torus(("1-2", 0), (nodes, 0)), "m1") for nodes in ("3-4", "7-8")),
]
TOPOLOGY |= {
    f"yaml: {text} and {node}": with_(
        f"NodeName={node}",
        **{"topology.yaml": f"- topology: t\n  cluster_default: true\n  {text}\n"},
    )
    for text, node in _PLACED
}
TOPOLOGY |= {
    f"tree and {text}": with_(TREE, text, topology_conf="SwitchName=s Nodes=n[1-4]\n")
    for text in ("NodeName=m1 Topology=default:s", "NodeName=m1 Topology=default:nosuch")
}
TOPOLOGY |= {
    f"topology.yaml: {text}": with_(**{"topology.yaml": f"{text}\n"})
    for text in (
        "- flat: true",
        "topology: a\nflat: true",
        "- topology: a\n  flat: maybe",
        "- topology: a\n  flat: no",
        "- topology: a\n  Flat: true",
        "- topology: a\n  flat: {}",
        "%YAML 1.1\n---\n- topology: a\n  flat: true",
        "- topology: a\n  tree: null",
        "- topology: a\n  flat: true\n  tree: {switches: [{switch: s, nodes: n1}]}",
        "- topology: a\n  flat: true\n---\n- [",
        "[]",
    )
}
SLURMCTLD = {
    "base": with_(),
    **CHANGED,
    **PLUGINS,
    **GRAMMAR,
    **NODES,
    **HOSTLISTS,
    **HOSTS,
    **PARTITIONS,
    **MEANING,
    **TOPOLOGY,
    **ACCT_GATHER,
    **COMPANIONS,
    **HELPERS,
    **UNUSED,
    **GRES,
    **LOGGED,
    **RESOURCES,
    **PLUGIN_OPTIONS,
    **PLUGIN_FILES,
}
# slurmd reads the lines of gres.conf that are about its node, which is the first one.
_GPUS = ("GresTypes=gpu", "NodeName=n[1-4] CPUs=2 Gres=gpu:2")


def with_slurmd(*lines: str, without: str = "", **files: str) -> dict[str, str]:
    """Return the base configuration, so that slurmd needs no cgroups, with lines and files."""
    return with_("ProctrackType=proctrack/linuxproc", *lines, without=without, **files)


SLURMD_CASES = {"slurmd base": with_slurmd()}
SLURMD_CASES |= {
    f"gres: {text}": with_slurmd(*_GPUS, without="NodeName", gres_conf=f"{text}\n")
    for text in (
        "Name=gpu File=/dev/null,/dev/zero",
        "Name=gpu Count=two",
        "Name=gpu Count=-1",
        "Name=gpu File=/dev/null Count=2",
        "Name=gpu File=/dev/null MultipleFiles=/dev/null,/dev/zero",
        "Name=gpu MultipleFiles=/dev/null",
        "Name=gpu File=null",
        "Name=gpu File=dev/null Count=1",
        "Name=gpu File=/dev/null Cores=0-9999",
        "Name=gpu File=/dev/null NoSuch=1",
        "Name=odd Count=1",
        "Name=odd Count=two",
        "NodeName=n1 Count=two",
        "NodeName=n1 Name=gpu Count=two",
        "NodeName=n[1 Name=gpu Count=two",
        "AutoDetect=off",
        "AutoDetect=odd",
        # Several lines contradict each other.
        "Name=gpu File=/dev/null\nName=gpu Count=1",
        "Name=gpu Type=a File=/dev/null\nName=gpu File=/dev/zero",
        "Name=gpu Type=a Count=1\nName=gpu Type=b Count=1",
        "Name=gpu Count=1\nName=gpu Count=1",
        "NodeName=n1 Name=gpu File=/dev/null\nName=gpu Count=1",
        "NodeName=n1 AutoDetect=off\nNodeName=n1 AutoDetect=odd",
        "NodeName=n1 AutoDetect=off\nNodeName=n[1-2] AutoDetect=OFF",
        "Name=gpu File=/dev/null Flags=nvidia_gpu_env,no_gpu_env",
        "Name=gpu File=/dev/null Flags=nvidia_gpu_env\nName=gpu File=/dev/zero",
        "Name=gpu File=/dev/null\nName=gpu File=/dev/zero Flags=nvidia_gpu_env",
        "Name=gpu File=/dev/null Flags=nvidia_gpu_env\nName=gpu File=/dev/zero Flags=no_gpu_env",
    )
}
SLURMD_CASES |= {
    "gres.conf without GresTypes": with_slurmd(gres_conf="NoSuch=1\n"),
    "Gres with and without a type": with_slurmd(
        "GresTypes=gpu", "NodeName=n[1-4] CPUs=2 Gres=gpu:a:1,gpu:2", without="NodeName"
    ),
    "Gres with a type": with_slurmd(
        "GresTypes=gpu",
        "NodeName=n[1-4] CPUs=2 Gres=gpu:a:1,gpu:b:1",
        without="NodeName",
        gres_conf="Name=gpu Type=c File=/dev/null,/dev/zero\n",
    ),
    "mps without a gpu": with_slurmd(
        "GresTypes=gpu,mps",
        "NodeName=n[1-4] CPUs=2 Gres=gpu:1,mps:100",
        without="NodeName",
        gres_conf="Name=mps Count=100\n",
    ),
}
# A node that differs from its host is drained.
SLURMD_CASES |= {
    f"node: {text}": with_slurmd(f"NodeName=n[1-4] {text}", without="NodeName")
    for text in (
        "CPUs=64",
        "RealMemory=99999999",
        "CPUs=2 CpuSpecList=odd",
        "NodeHostname=h[1-4] NodeAddr=10.0.0.[1-4]",
    )
}
SLURMD_CASES |= {
    f"slurmd {text}": with_slurmd(text)
    for text in (
        "TaskPlugin=task/odd",
        "TaskPlugin=task/cray_aries",
        "SlurmctldPort=4294967296",
        "SlurmctldPort=4294974113",
        'StateSaveLocation=""',
        'SlurmdSpoolDir=""',
        "SlurmdSpoolDir=x/y",
        "SlurmdSpoolDir=var/spool/y",
        "JobAcctGatherType=jobacct_gather/odd",
        "PrEpPlugins=prep/odd",
        "CliFilterPlugins=cli_filter/odd",
        "SlurmdDebug=loud",
        "SlurmdParameters=conmgr_max_connections=0",
    )
}
SLURMD_CASES["BcastAddr with NoInAddrAny"] = with_slurmd(
    "NodeName=n[1-4] CPUs=2 BcastAddr=10.0.0.[1-4]",
    "TopologyParam=NoInAddrAny",
    without="NodeName",
)
_CONTAINER = ("JobContainerType=job_container/tmpfs", "PrologFlags=Contain")
_HELPERS = "NodeFeaturesPlugins=node_features/helpers"
SLURMD_CASES |= {
    "job_container.conf": with_slurmd(*_CONTAINER, job_container_conf="BasePath=/opt/jobs\n"),
    "no job_container.conf": with_slurmd(*_CONTAINER),
    "job_container.conf without BasePath": with_slurmd(*_CONTAINER, job_container_conf=""),
    "job_container.conf with an unknown option": with_slurmd(
        *_CONTAINER, job_container_conf="NoSuch=1\n"
    ),
    "job_container.conf with a BasePath that jobs hide": with_slurmd(
        *_CONTAINER, job_container_conf="BasePath=/tmp/jobs\n"
    ),
    "job_container.conf with a node without BasePath": with_slurmd(
        *_CONTAINER, job_container_conf="NodeName=n[1-4] InitScript=/opt/x\n"
    ),
    "unused job_container.conf": with_slurmd(job_container_conf="NoSuch=1\n"),
    "no namespace.yaml": with_slurmd("NamespaceType=namespace/linux", "PrologFlags=Contain"),
    "no helpers.conf": with_slurmd(_HELPERS),
    "helpers.conf without Feature": with_slurmd(_HELPERS, helpers_conf="BootTime=1\n"),
    "helpers.conf with a Helper alone": with_slurmd(_HELPERS, helpers_conf="Helper=/opt/h\n"),
    "helpers.conf with a Feature": with_slurmd(_HELPERS, helpers_conf="Feature=a Helper=/opt/h\n"),
    "helpers.conf with one Feature twice": with_slurmd(
        _HELPERS, helpers_conf="Feature=a Helper=/opt/h\nFeature=a Helper=/opt/x\n"
    ),
    "helpers.conf with one Feature twice for a node": with_slurmd(
        _HELPERS,
        helpers_conf="NodeName=n1 Feature=a Helper=/opt/h\nNodeName=n1 Feature=a Helper=/opt/x\n",
    ),
    "unknown CgroupPlugin": with_slurmd(cgroup_conf="CgroupPlugin=cgroup/odd\n"),
    "no cgroups": with_slurmd(cgroup_conf="CgroupPlugin=disabled\n"),
    "proctrack/cgroup without cgroups": with_(
        "ProctrackType=proctrack/cgroup", cgroup_conf="CgroupPlugin=disabled\n"
    ),
    "oci.conf with an unknown option": with_slurmd(oci_conf="NoSuch=1\n"),
    "plugstack.conf with an unknown word": with_slurmd(plugstack_conf="odd\n"),
}
SLURMDBD_CASES = {
    f"slurmdbd {text or 'base'}": {"slurmdbd.conf": f"{SLURMDBD}{text}\n"}
    for text in (
        *(
            "",
            "NoSuchOption=1",
            "PurgeJobAfter=12months",
            "PurgeJobAfter=1y",
            "PurgeEventMonths=3",
            "DebugLevel=loud",
        ),
        *(
            "DebugFlags=odd",
            "DebugFlags=DB_JOB",
            "DbdHost=@@HOST@@",
            "SlurmUser=@@USER@@",
            "AuthType=auth/slurm",
        ),
        *(
            "StorageType=accounting_storage/none",
            "DbdPort=many",
            "DbdPort=1023",
            "StorageParameters=odd",
            "AllowNoDefAcct=yes",
            "PrivateData=jobs",
            "LogTimeFormat=x",
        ),
        *(
            "AllResourcesAbsolute=yes",
            "DisableCoordDBD=yes",
            "MaxPurgeLimit=10",
            "DisableRollups=yes",
            "HashPlugin=hash/k12",
        ),
        *(
            "MessageTimeout=101",
            "AuthType=munge",
            "AuthAltTypes=auth/jwt",
            "SlurmUser=0",
            "StorageLoc=slurm-acct-db",
            "StorageLoc=select",
            "StorageLoc=window",
            "CommunicationParameters=DisableIPv4",
        ),
        'ArchiveDir=""',
        'PluginDir=""',
        "ArchiveDir=archive",
        "ArchiveScript=0",
        "PluginDir=7-0",
        "StorageLoc=/var/lib/x",
        "DbdBackupHost=@@HOST@@",
        'AuthType=""',
        "AuthInfo=x",
        "PurgeJobAfter=4294967294",
        "DebugLevelSyslog=4294967294",
        "DbdPort=10M",
        "StoragePassScript=x/y",
        "ArchiveScript=/var/log",
        "PluginDir=a:b",
        "PidFile=/home/",
        "AuthAltTypes=auth/jwt\nAuthAltParameters=jwks=/etc/slurm/jwks.json",
    )
}
SLURMDBD_CASES["slurmdbd without StorageType"] = {"slurmdbd.conf": "DbdHost=db\nSlurmUser=slurm\n"}
SLURMDBD_CASES["slurmdbd without DbdHost"] = {
    "slurmdbd.conf": SLURMDBD.removeprefix("DbdHost=db\n") + "DbdBackupHost=@@HOST@@\n"
}

# Who may read metrics: options of slurm.conf beside MetricsType.
_TOKENS = "AuthAltTypes=auth/jwt\nAuthAltParameters=jwt_key=/etc/jwt.key"
_HTTP_TOKENS = f"{_TOKENS}\nSlurmctldHttpAuthParameters=jwt_key=/etc/jwt.key"
METRICS = options(
    *(
        f"MetricsType=metrics/openmetrics\n{more}"
        for more in (
            "PrivateData=odd",
            "PrivateData=jobs",
            "PrivateData=usage,odd",
            f"PrivateData=jobs\n{_TOKENS}",
            f"PrivateData=jobs\n{_HTTP_TOKENS}",
            "PrivateData=all\nMetricsParameters=ignore_private_data",
            "PrivateData=all\nMetricsParameters=ignore_private_data=1",
            "MetricsAuthUsers=root",
            f"MetricsAuthUsers=slurm\n{_HTTP_TOKENS}",
            "MetricsAuthUsers=root\nMetricsParameters=ignore_private_data",
        )
    ),
)
