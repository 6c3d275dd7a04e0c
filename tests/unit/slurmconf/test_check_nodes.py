"""What `harness check` finds about hosts, nodes, partitions and topologies, by release."""

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


def fatal(tmp_path: Path, release: str, text: str, **files: str) -> str:
    """Return the fatal findings for the base configuration plus lines; files by name with _."""
    (tmp_path / "slurm.conf").write_text(BASE + text)
    for name, content in files.items():
        (tmp_path / name.replace("_", ".")).write_text(content)
    findings = check.check_path(tmp_path, releases.get(release))
    return "\n".join(
        str(finding).removeprefix(f"{tmp_path}/")
        for finding in findings
        if finding.severity == "fatal"
    )


def assert_fatal(actual: str, expected: str) -> None:
    """Assert one fatal finding that contains a text, or none if it is ""."""
    assert (actual.count("fatal:") == 1 and expected in actual) if expected else not actual, actual


@pytest.mark.parametrize(
    ("release", "text", "expected"),
    [
        ("24.11", "NodeName=cn[01-100]", ""),
        ("24.11", "NodeName=m[1-3]-ib", ""),
        ("23.02", "NodeName=m[1-3]-ib", '5:1: fatal: NodeName: "m[1-3]-ib" is not a hostlist: '),
        ("22.05", "NodeName=m[1-3", ""),
        ("23.02", "NodeName=m[1-3", '"m[1-3" has a "[" without a "]"'),
        ("24.11", "NodeName=m+1\nNodeName=m{1-3}\nNodeName=m[4-5]]", ""),
        ("24.11", "NodeName=m[1-70000]", "Too many hosts in range `1-70000'"),
        ("24.11", "NodeName=m[1-5],m5", "node m5 is already in line 5"),
        ("24.11", "NodeName=m[1-2] Port=7001-7002", ""),
        ("24.11", 'NodeName=m1 Port=""', ""),
        ("24.11", "NodeName=m1 Port=-1", '"[-1]" is not a hostlist: Invalid range: `-1\''),
        ("22.05", "NodeName=m1 Port=[7001", ""),
        ("24.11", "NodeName=m1 Port=[7001", '5:13: fatal: Port: "[7001" is not a hostlist'),
        ("20.11", "NodeName=m1 BcastAddr=[1 NodeAddr=h[1-3", ""),
        ("24.11", "NodeName=m1 State=ERROR", '"ERROR" is not a node state'),
        ("22.05", "NodeName=m[1-2] NodeHostname=h[1-3]", ""),
        ("24.11", "NodeName=m[1-2] NodeHostname=h[1-3]", "3 for 2 nodes"),
        ("24.11", "PartitionName=q,q Nodes=n1", ""),
        ("24.11", "PartitionName=q Nodes=n1,ALL", "no such node: ALL"),
        ("20.11", "NodeSet=s Nodes=ALL\nPartitionName=q Nodes=s", ""),
        ("22.05", "NodeSet=s Nodes=ALL\nPartitionName=q Nodes=s", "no such node: ALL"),
        ("23.02", "NodeSet=s Nodes=all\nPartitionName=q Nodes=n1,s", ""),
        ("26.05", "NodeSet=s Nodes=n[1\nPartitionName=q Nodes=s", ""),
        ("24.11", "PartitionName=q Nodes=feature{x},n1", ""),
        ("23.11", "PartitionName=q Nodes=feature{x},n1", "no such node: feature{x}"),
    ],
)
def test_names_are_refused_where_slurmctld_refuses_them(
    tmp_path: Path, release: str, text: str, expected: str
) -> None:
    assert_fatal(fatal(tmp_path, release, text), expected)


@pytest.mark.parametrize(
    ("release", "options", "expected"),
    [
        ("24.11", "MaxTime=99999999999", '5:26: fatal: MaxTime: "99999999999" is too long a time'),
        ("24.11", "MaxTime=365-00:00:00 DefaultTime=UNLIMITED", ""),
        ("24.11", "SuspendTime=99999999999", '"99999999999" is not INFINITE or a number of'),
        ("22.05", "SuspendTime=NONE", ""),
        ("26.05", "Exclusive=odd", '"odd" is not NO, NODE, USER or TOPO'),
        ("26.05", "Exclusive=none", ""),
        ("22.05", "PreemptMode=CHECKPOINT", '"CHECKPOINT" is not one of OFF, CANCEL, REQUEUE and'),
        ("22.05", "PreemptMode=GANG,SUSPEND", ""),
        ("24.11", "PreemptMode=odd", ""),
        ("24.11", "SelectTypeParameters=CR_CPU", '"CR_CPU" is not CR_Core, CR_Socket, or one of'),
        ("24.11", "SelectTypeParameters=cr_core_memory", ""),
    ],
)
def test_partition_values_are_refused_where_slurmctld_refuses_them(
    tmp_path: Path, release: str, options: str, expected: str
) -> None:
    assert_fatal(fatal(tmp_path, release, f"PartitionName=q Nodes=n1 {options}"), expected)


@pytest.mark.parametrize(
    ("release", "enforce", "expected"),
    [
        ("26.05", "", '6:26: fatal: QOS: "a,b" is not one QOS'),
        ("24.11", "AccountingStorageEnforce=qos", '7:26: fatal: QOS: "a,b" is not one QOS'),
        ("24.11", "", ""),
    ],
)
def test_partition_has_one_qos(tmp_path: Path, release: str, enforce: str, expected: str) -> None:
    lines = ["AccountingStorageType=accounting_storage/slurmdbd", enforce]
    lines.append("PartitionName=q Nodes=n1 QOS=a,b")
    assert_fatal(fatal(tmp_path, release, "\n".join(filter(None, lines))), expected)
