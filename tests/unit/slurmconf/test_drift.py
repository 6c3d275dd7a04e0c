from __future__ import annotations

import pytest

import golden
from harness import releases, render
from harness.slurmconf import drift

CONF = """\
ClusterName=c
SlurmctldHost=ctl1
SlurmctldHost=ctl2(10.0.0.2)
AccountingStorageEnforce=limits,QOS
SlurmdParameters=config_overrides
SlurmUser=slurm
NodeName=DEFAULT CPUs=2 Weight=3
NodeName=n[1-2] Features=local Gres=gpu:tesla:2
PartitionName=DEFAULT MaxTime=60
PartitionName=short Nodes=n1
PartitionName=main Nodes=ALL Default=YES MaxTime=1-00:00:00
"""
# As Slurm 24.11 prints it.
CONFIG = """\
Configuration data as of 2026-11-23T00:29:39
AccountingStorageEnforce = associations,limits,qos
ClusterName             = c
JobRequeue              = 1
MinJobAge               = 300 sec
PriorityFlags           =
SlurmctldHost[0]        = ctl1
SlurmctldHost[1]        = ctl2
SlurmUser               = slurm(64030)
TaskPlugin              = (null)

MPI Plugins Configuration:
MinJobAge               = 7
"""
NODES = """\
NodeName=n1 CPUTot=2 AvailableFeatures=local ActiveFeatures=local Gres=gpu:tesla:2(S:0) \
NodeAddr=n1 NodeHostName=n1 Weight=3
NodeName=n2 CPUTot=2 AvailableFeatures=local ActiveFeatures=local Gres=gpu:2 \
NodeAddr=n2 NodeHostName=n2 Weight=3
"""
PARTITIONS = """\
PartitionName=short AllowAccounts=ALL Default=NO MaxNodes=UNLIMITED MaxTime=01:00:00 \
Nodes=n1 State=UP
PartitionName=main AllowAccounts=ALL Default=YES MaxNodes=UNLIMITED MaxTime=1-00:00:00 \
Nodes=n[1-2] State=UP SuspendTime=GLOBAL PowerDownOnIdle=NO
"""


def config(text: str) -> list[str]:
    options = drift.read(CONF).options
    return [*drift.config("slurm.conf", options, drift.printed(text), releases.get("24.11"))]


def nodes(text: str) -> list[str]:
    rendered = drift.read(CONF)
    return [*drift.nodes(rendered.nodes, drift.printed_lines(text), rendered.options)]


def partitions(text: str) -> list[str]:
    rendered = drift.read(CONF)
    return [*drift.partitions(rendered, drift.printed_lines(text), rendered.nodes)]


def test_different_spelling_in_slurms_output_is_no_difference() -> None:
    assert (config(CONFIG), nodes(NODES), partitions(PARTITIONS)) == ([], [], [])


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (
            "JobRequeue              = 1",
            "JobRequeue = 0",
            "JobRequeue is 0, slurm.conf leaves it at 1",
        ),
        (
            "associations,limits,qos",
            "none",
            "AccountingStorageEnforce is none, slurm.conf has limits,QOS",
        ),
        ("300 sec", "2 sec", "MinJobAge is 2 sec, slurm.conf leaves it at 300"),
        ("= ctl2", "= ctl3", "SlurmctldHost is ctl1,ctl3, slurm.conf has ctl1,ctl2(10.0.0.2)"),
    ],
)
def test_option_that_differs_in_memory_is_named(before: str, after: str, message: str) -> None:
    assert config(CONFIG.replace(before, after)) == [message]


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("Weight=3", "Weight=1", "node n1: Weight is 1, slurm.conf has 3"),
        (
            "Weight=3",
            "Weight=3 CpuBind=threads",
            "node n1: CpuBind is threads, slurm.conf leaves it at off",
        ),
        (
            "Weight=3",
            "Weight=3 CoreSpecCount=1",
            "node n1: CoreSpecCount is 1, slurm.conf has no such option",
        ),
        (
            "ActiveFeatures=local",
            "ActiveFeatures=big",
            "node n1: Features is big, slurm.conf has local",
        ),
        ("tesla:2(S:0)", "tesla:1", "node n1: Gres is gpu:tesla:1, slurm.conf has gpu:tesla:2"),
        ("NodeName=n1", "NodeName=n9", "node n1 is unknown to slurmctld"),
    ],
)
def test_node_that_differs_in_memory_is_named(before: str, after: str, message: str) -> None:
    assert nodes(NODES.replace(before, after, 1)) == [message]


def test_port_that_differs_in_memory_is_named() -> None:
    expected = drift.read("NodeName=n[1-2] NodeHostname=h Port=[20001-20002]").nodes
    held = {"n1": {"port": "20001"}, "n2": {"port": "20001"}}
    assert [*drift.nodes(expected, held, {})] == ["node n2: Port is 20001, slurm.conf has 20002"]


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("UNLIMITED", "1", "partition short: MaxNodes is 1, slurm.conf leaves it at UNLIMITED"),
        ("01:00:00", "00:05:00", "partition short: MaxTime is 00:05:00, slurm.conf has 60"),
        ("Default=YES", "Default=NO", "partition main: Default is NO, slurm.conf has YES"),
        ("Nodes=n[1-2]", "Nodes=n1", "partition main: Nodes is n1, slurm.conf has ALL"),
        (
            "AllowAccounts=ALL",
            "DenyAccounts=x",
            "partition short: DenyAccounts is x, slurm.conf leaves it at NONE",
        ),
        ("State=UP", "State=DOWN", "partition short: State is DOWN, slurm.conf leaves it at UP"),
        (
            "OnIdle=NO",
            "OnIdle=YES",
            "partition main: PowerDownOnIdle is YES, slurm.conf leaves it at NO",
        ),
        (
            "SuspendTime=GLOBAL",
            "SuspendTime=60",
            "partition main: SuspendTime is 60, slurm.conf leaves it at GLOBAL",
        ),
        (
            "MaxNodes=",
            "ExclusiveTopo=YES MaxNodes=",
            "partition short: Exclusive is TOPO, should be NO",
        ),
        (
            "MaxNodes=",
            "Exclusive=NODE MaxNodes=",
            "partition short: Exclusive is NODE, should be NO",
        ),
        (
            "MaxNodes=",
            "DefMemPerCPU=10 MaxNodes=",
            "partition short: DefMemPerCPU=10, should be DefMemPerNode=UNLIMITED",
        ),
        (
            "MaxNodes=",
            "OverTimeLimit=UNLIMITED MaxNodes=",
            "partition short: OverTimeLimit is UNLIMITED, slurm.conf leaves it at NONE",
        ),
    ],
)
def test_partition_that_differs_in_memory_is_named(before: str, after: str, message: str) -> None:
    assert partitions(PARTITIONS.replace(before, after, 1)) == [message]


def test_partition_of_jobs_that_name_none_is_the_default_one_or_the_first() -> None:
    assert drift.read(CONF).default_partition() == "main"
    assert drift.read("PartitionName=a\nPartitionName=b").default_partition() == "a"


def test_older_name_of_an_option_is_no_difference() -> None:
    conf = drift.read(CONF.replace("Features=local", "Feature=local"))
    assert [*drift.nodes(conf.nodes, drift.printed_lines(NODES), conf.options)] == []


def test_of_several_default_partitions_slurm_takes_the_last() -> None:
    conf = drift.read(CONF.replace("short Nodes=n1", "short Nodes=n1 Default=YES"))
    live = drift.printed_lines(PARTITIONS)
    assert [*drift.partitions(conf, live, conf.nodes)] == []


def test_partition_has_the_clusters_value_of_some_options() -> None:
    live = drift.printed_lines(
        "PartitionName=p PreemptMode=GANG,SUSPEND DisableRootJobs=YES DefMemPerNode=UNLIMITED"
    )
    conf = drift.read("PreemptMode=suspend,gang\nDisableRootJobs=YES\nPartitionName=p")
    assert [*drift.partitions(conf, live, {})] == []
    conf = drift.read(
        "PreemptMode=REQUEUE\nDefMemPerNode=5\nPartitionName=p DefMemPerNode=7 DisableRootJobs=NO"
    )
    assert [*drift.partitions(conf, live, {})] == [
        "partition p: DefMemPerNode=UNLIMITED, should be DefMemPerNode=7",
        "partition p: DisableRootJobs is YES, slurm.conf has NO",
        "partition p: PreemptMode is GANG,SUSPEND, slurm.conf has REQUEUE",
    ]


def test_nodes_of_a_node_set_are_those_with_its_feature() -> None:
    conf = drift.read("NodeSet=guests Feature=guest\nPartitionName=p Nodes=n1,guests")
    nodes: dict[str, drift.Options] = {
        "n1": {},
        "d1": {"features": "guest"},
        "d2": {"feature": "big,guest"},
    }

    def found(held: str) -> list[str]:
        live = drift.printed_lines(f"PartitionName=p Nodes={held}")
        return [*drift.partitions(conf, live, nodes)]

    assert found("n1,d1") == ["partition p: Nodes is n1,d1, slurm.conf has n1,guests"]
    assert found("n1,d[1-2]") == []


def test_slurm_ignores_a_default_time_above_the_limit() -> None:
    live = PARTITIONS.replace("MaxTime=01:00:00", "DefaultTime=NONE MaxTime=01:00:00")
    for time, differs in (("90", False), ("30", True)):
        conf = drift.read(CONF.replace("MaxTime=60", f"MaxTime=60 DefaultTime={time}"))
        found = [*drift.partitions(conf, drift.printed_lines(live), conf.nodes)]
        assert bool(found) == differs, found


@pytest.mark.parametrize(
    ("file", "line", "shown"),
    [
        ("slurm.conf", "AccountingStorageEnforce=wckeys", "TrackWCKey = Yes"),
        ("slurmdbd.conf", "ArchiveJobs=yes", "ArchiveJobs = No"),
        ("slurmdbd.conf", "ArchiveJobs=yes\nPurgeJobAfter=1month", "ArchiveJobs = Yes"),
    ],
)
def test_option_that_follows_from_another_is_no_difference(
    file: str, line: str, shown: str
) -> None:
    other = "TrackWCKey = No" if file == "slurm.conf" else f"{shown[:-3]} nonsense"
    for text, different in ((shown, False), (other, True)):
        options = drift.read(line).options
        found = [*drift.config(file, options, drift.printed(text), releases.get("24.11"))]
        named = [line for line in found if line.startswith(shown.partition(" ")[0])]
        assert bool(named) == different, found


@pytest.mark.parametrize(("shown", "count"), [("1920 sec", 0), ("3600 sec", 1)])
def test_number_with_a_leading_zero_is_octal(shown: str, count: int) -> None:
    expected = drift.read("HealthCheckInterval=03600").options
    held = drift.printed(f"HealthCheckInterval = {shown}")
    assert len([*drift.config("slurm.conf", expected, held, releases.get("24.11"))]) == count


def test_feature_counts_before_features() -> None:
    line = drift.read("NodeName=n1 Feature=uan Features=login,amd").nodes
    shown = "NodeName=n1 AvailableFeatures=uan ActiveFeatures=uan"
    assert not [*drift.nodes(line, drift.printed_lines(shown), {})]


def test_words_that_a_release_no_longer_has_are_not_expected() -> None:
    expected = drift.read("PrivateData=cloud,jobs").options
    for name, shown in (("22.05", "cloud,jobs"), ("24.11", "jobs")):
        held = drift.printed(f"PrivateData = {shown}")
        assert not [*drift.config("slurm.conf", expected, held, releases.get(name))]


@pytest.mark.parametrize("file", ["slurm.conf", "slurmdbd.conf"])
def test_slurm_knows_the_options_of_the_table(file: str) -> None:
    known = {option for name in releases.KNOWN for option in releases.get(name).options[file]}
    table = drift.table()
    assert {*table["defaults"][file], *table["left_out"][file]} - known == set()


def test_rendered_configurations_of_all_shipped_scenarios_are_read() -> None:
    for plan in map(golden.plan_of, golden.SCENARIOS):
        for cluster in plan.scenario.clusters:
            rendered = drift.read(render.slurm_conf(plan, cluster))
            assert rendered.options["clustername"] == cluster
            assert rendered.partitions
