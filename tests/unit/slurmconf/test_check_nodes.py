"""What `harness check` finds about hosts, nodes, partitions and topologies, by release."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import releases
from harness.errors import UsageError
from harness.slurmconf import check

BASE = """\
ClusterName=c
SlurmctldHost=head
NodeName=n[1-4] CPUs=2
PartitionName=p Nodes=ALL Default=YES
"""


def fatal(tmp_path: Path, release: str, text: str, without: str = "\n", **files: str) -> str:
    """Return the fatal findings for the base configuration plus lines; files by name with _.

    Lines of the base configuration that start with `without` are left out.
    """
    base = "".join(line for line in BASE.splitlines(keepends=True) if not line.startswith(without))
    (tmp_path / "slurm.conf").write_text(base + text)
    for name, content in files.items():
        (tmp_path / ".".join(name.rsplit("_", 1))).write_text(content)
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
        ("22.05", "NodeName=m[1-2] NodeHostname=h[1-3]", "3 for 2 nodes"),
        ("22.05", "NodeName=m[1-2] NodeHostname=h[1-3] NodeAddr=h", ""),
        ("22.05", "NodeName=m1 Port=4294967297", ""),
        ("22.05", "NodeName=m1 Port=65536", '"65536" is not a port'),
        ("26.05", "NodeName=DEFAULT SuspendTime=-2\nNodeName=m1", '5:18: fatal: SuspendTime: "-2"'),
        ("26.05", "NodeName=m1 SuspendTime=NONE", ""),
        ("24.11", "NodeName=m[1-2] NodeHostname=h[1-3]", "3 for 2 nodes"),
        ("24.11", "PartitionName=q,q Nodes=n1", ""),
        ("24.11", "PartitionName=q Nodes=n1,ALL", "no such node: ALL"),
        ("20.11", "NodeSet=s Nodes=ALL\nPartitionName=q Nodes=s", ""),
        ("22.05", "NodeSet=s Nodes=ALL\nPartitionName=q Nodes=s", "no such node: ALL"),
        ("23.02", "NodeSet=s Nodes=all\nPartitionName=q Nodes=n1,s", ""),
        ("26.05", "NodeSet=s Nodes=n[1\nPartitionName=q Nodes=s", ""),
        ("24.11", "NodeSet=s Nodes=n[1\nPartitionName=q Nodes=s", '"n[1" is not a hostlist'),
        ("24.11", "NodeSet=s Nodes=n[1", ""),
        ("24.11", "PartitionName=q Nodes=feature{x},n1", ""),
        ("23.11", "PartitionName=q Nodes=feature{x},n1", "no such node: feature{x}"),
    ],
)
def test_names_are_refused_where_slurmctld_refuses_them(
    tmp_path: Path, release: str, text: str, expected: str
) -> None:
    assert_fatal(fatal(tmp_path, release, text), expected)


def test_bad_down_nodes_are_errors(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text(f"{BASE}DownNodes=n[1\nDownNodes=n1 State=ODD\n")
    findings = check.check_path(tmp_path, releases.get("24.11"))
    assert [(finding.severity, finding.line, finding.option) for finding in findings] == [
        ("error", 5, "DownNodes"),
        ("error", 6, "State"),
    ]


def test_odd_names_are_counted_before_they_are_created(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"slurm\.conf:6: there are more than 131072 nodes"):
        fatal(tmp_path, "24.11", "".join(f"NodeName={x}[1-65536]+\n" for x in "abc"))


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
    ("release", "enforce", "qos", "expected"),
    [
        ("26.05", "", "a,b", '6:26: fatal: QOS: "a,b" is not one QOS'),
        ("24.11", "AccountingStorageEnforce=qos", "a,b", '7:26: fatal: QOS: "a,b" is not one QOS'),
        ("24.11", "AccountingStorageEnforce=qos", '""', '7:26: fatal: QOS: "" is not one QOS'),
        ("24.11", "", "a,b", ""),
    ],
)
def test_partition_has_one_qos(
    tmp_path: Path, release: str, enforce: str, qos: str, expected: str
) -> None:
    lines = ["AccountingStorageType=accounting_storage/slurmdbd", enforce]
    lines.append(f"PartitionName=q Nodes=n1 QOS={qos}")
    assert_fatal(fatal(tmp_path, release, "\n".join(filter(None, lines))), expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SlurmctldHost=@HEAD@", '4:1: fatal: SlurmctldHost: no host has the name "@HEAD@"'),
        ("SlurmctldHost=head[1-2]", "is not a valid controller"),
        ("SlurmctldHost=head\nSlurmctldHost=(10.0.0.1)", ""),
        ("SlurmctldHost=a(b)c", '"a(b)c" is not NAME or NAME(ADDRESS)'),
        ("ControlMachine=task/cgroup", 'no host has the name "task/cgroup"'),
        ("ControlMachine=a,b", "has multiple host names, so ControlAddr must be specified"),
        ("ControlMachine=a,b\nControlAddr=c", ""),
        ("ControlMachine=a\nBackupController=a", "5:1: fatal: BackupController: a is named twice"),
        ("SlurmctldHost=a\nSlurmctldHost=localhost", "localhost is the host that slurmctld runs"),
        ("SlurmctldHost=localhost", ""),
    ],
)
def test_slurmctld_needs_a_possible_host(tmp_path: Path, text: str, expected: str) -> None:
    assert_fatal(fatal(tmp_path, "24.11", text, without="SlurmctldHost"), expected)


@pytest.mark.parametrize(
    ("hosts", "reported"),
    [
        (("a(10.0.0.1)", "b(10.0.0.1)"), True),
        (("a", "A"), True),
        (("a(b)", "b"), True),
        (("a(10.0.0.1)", "b(10.0.0.2)"), False),
    ],
)
def test_controllers_have_different_addresses(
    tmp_path: Path, hosts: tuple[str, str], reported: bool
) -> None:
    text = BASE.replace(
        "SlurmctldHost=head\n", "".join(f"SlurmctldHost={host}\n" for host in hosts)
    )
    (tmp_path / "slurm.conf").write_text(text)
    found = [finding.code for finding in check.check_path(tmp_path, releases.get("24.11"))]
    assert ("same-host" in found) == reported


SOCKETS = "SelectType=select/cons_tres\nSelectTypeParameters=CR_Socket\n"
DATABASE = "AccountingStorageType=accounting_storage/slurmdbd\n"
GPU = f"{DATABASE}AccountingStorageTRES=gres/gpu\n"
SAVING = "SuspendTime=60\nSuspendProgram=/s\nResumeProgram=/r\n"
TRES = "SelectType=select/cons_tres\n"
BAD_EXC = "SuspendExcNodes=n[1"


@pytest.mark.parametrize(
    ("release", "text", "expected"),
    [
        ("24.11", "Licenses=:5,matlab:,a:0", ""),
        ("24.11", "Licenses=a:-1", '"a:-1" is not NAME or NAME:COUNT'),
        ("24.11", f"Licenses=a:1{'0' * 19}", "is not NAME or NAME:COUNT"),
        ("26.05", "Licenses=a:1|b:1", ""),
        ("26.05", "Licenses=a:1|b:1,c", 'mixes "|" with other separators'),
        ("24.11", f"{TRES}MaxNodeCount=65536", ""),
        (
            "24.11",
            f"{TRES}MaxNodeCount=999999",
            "999999 is higher than the maximum allowed (65536)",
        ),
        ("24.11", f"{TRES}MaxNodeCount=4", ""),
        ("24.11", "NodeName=a[1-65533]", ""),
        ("24.11", "NodeName=a[1-65534]", "there are 65538 nodes; the release supports 65537"),
        ("23.11", "NodeName=a[1-65534]", ""),
        ("24.11", f"{TRES}MaxNodeCount=3", "3 is lower than the number of nodes (4)"),
        ("24.11", f"{TRES}MaxNodeCount=0", "0 is lower than the number of nodes (4)"),
        ("22.05", f"{TRES}MaxNodeCount=0", ""),
        ("24.11", f"{TRES}MaxNodeCount=INFINITE", "INFINITE is higher than the maximum allowed"),
        (
            "24.11",
            f"{SOCKETS}NodeName=m1 CPUs=4 Sockets=2 CoreSpecCount=3 CoresPerSocket=2",
            "all s",
        ),
        ("24.11", f"{SOCKETS}NodeName=m1 CPUs=4 Sockets=2 CoreSpecCount=2 CoresPerSocket=2", ""),
        ("24.11", f"{SOCKETS}NodeName=m1 CPUs=4 CoresPerSocket=2 CPUSpecList=1-3", "all sockets"),
        ("24.11", f"{SOCKETS}NodeName=m1 CPUs=4 CoresPerSocket=2 CPUSpecList=2-3", ""),
        ("24.11", f"{DATABASE}AccountingStorageTRES=gres/", "has no name: slurmctld crashes"),
        ("23.11", f"{DATABASE}AccountingStorageTRES=bb/cray", "bb/cray is now called bb/datawarp"),
        ("24.05", f"{DATABASE}AccountingStorageTRES=bb/cray", ""),
        ("24.11", "AccountingStorageTRES=fs/diskette", ""),
        ("24.11", "NodeName=m1 TRESWeights=x", '"x" is not TRES=WEIGHT'),
        ("24.11", "NodeName=m1 TRESWeights=CPU=1.5,Mem=0.25G", ""),
        ("24.11", 'NodeName=m1 TRESWeights="CPU=1.5, Mem=1"', " Mem is not a TRES of this cluster"),
        ("23.02", f"{GPU}NodeName=m1 TRESWeights=gres/gpumem=1", ""),
        ("22.05", f"{GPU}NodeName=m1 TRESWeights=gres/gpumem=1", "gres/gpumem is not a TRES"),
        ("24.11", 'AccountingStorageTRES="cpu, mem"', '" mem" is not a TRES'),
        ("25.05", 'AccountingStorageTRES="cpu, mem"', ""),
        ("24.11", "NodeName=m1 TRESWeights=CPU=nan,Mem=-INF", ""),
        ("24.11", "NodeName=m1 TRESWeights=CPU=1x", '"CPU=1x" is not TRES=WEIGHT'),
        ("26.05", BAD_EXC, '5:1: fatal: SuspendExcNodes: "n[1" is not a hostlist'),
        ("24.11", BAD_EXC, ""),
        ("24.11", SAVING + BAD_EXC, '"n[1" is not a hostlist'),
        ("26.05", "SuspendExcNodes=n[1,2]:1", '"n[1" is not a hostlist'),
        ("26.05", "SuspendExcNodes=n[1-2]:1,n3", ""),
        (
            "26.05",
            "PowerAction=a Program=/p",
            "5:1: fatal: PowerAction: requires Location=slurmctld",
        ),
        ("26.05", "PowerAction=a Location=x Program=/p", "5:15: fatal: Location: requires"),
        ("26.05", "PowerAction=a Location=slurmd", "5:1: fatal: PowerAction: requires a Program"),
        ("26.05", "PowerAction=a Location=SLURMD Program=p", '5:31: fatal: Program: "p" is not an'),
        ("26.05", "PowerAction=a Location=slurmctld Program=/p", ""),
        (
            "23.11",
            "NodeFeaturesPlugins=knl_cray",
            "knl_cray requires SuspendProgram, ResumeProgram",
        ),
        ("23.11", f"{SAVING}NodeFeaturesPlugins=knl_cray", ""),
        ("23.11", "NodeFeaturesPlugins=knl_generic", ""),
    ],
)
def test_lists_and_counts_are_refused_where_slurmctld_refuses_them(
    tmp_path: Path, release: str, text: str, expected: str
) -> None:
    assert_fatal(fatal(tmp_path, release, text), expected)


@pytest.mark.parametrize(
    ("release", "text", "expected"),
    [
        ("24.11", "SwitchName=s", "1:1: fatal: SwitchName: switch s has neither child switches"),
        ("25.05", "SwitchName=s\nSwitchName=t Nodes=n[1-4]", ""),
        ("24.11", "SwitchName=s Nodes=n[1-", '1:14: fatal: Nodes: "n[1-" is not a hostlist'),
        ("24.11", "BlockName=b Nodes=n1\nBlockSizes=1", "BlockName: is unknown to topology/tree"),
    ],
)
def test_tree_is_refused_where_slurmctld_refuses_it(
    tmp_path: Path, release: str, text: str, expected: str
) -> None:
    plugin = "TopologyPlugin=topology/tree"
    assert_fatal(fatal(tmp_path, release, plugin, topology_conf=text), expected)


@pytest.mark.parametrize(
    ("release", "text", "expected"),
    [
        ("24.11", "SwitchName=s Nodes=n[1-4]", "SwitchName: is unknown to topology/block"),
        ("24.11", "BlockName=b\nBlockSizes=1", "block b hasn't got nodes"),
        ("25.05", "BlockName=b\nBlockSizes=1", ""),
        ("24.11", "BlockName=b Nodes=n[1-4]\nBlockSizes=99", "each block has at least 99"),
        ("25.05", "BlockName=b Nodes=n[1-4]\nBlockSizes=99", ""),
        ("24.11", "BlockName=b Nodes=nosuch[1-2]\nBlockSizes=1", "0 nodes, but each block has"),
    ],
)
def test_blocks_are_refused_where_slurmctld_refuses_them(
    tmp_path: Path, release: str, text: str, expected: str
) -> None:
    plugin = "TopologyPlugin=topology/block"
    assert_fatal(fatal(tmp_path, release, plugin, topology_conf=text), expected)


def topology(plugin: str) -> str:
    """Return a topology.yaml with a topology t."""
    return f"- topology: t\n  cluster_default: true\n  {plugin}\n"


LEAF = "switch: s, nodes: 'n[1-4]'"


@pytest.mark.parametrize(
    ("plugin", "expected"),
    [
        (f"tree: {{switches: [{{{LEAF}}}, {{switch: r, children: s}}]}}", ""),
        (
            f"tree:\n    switches:\n    - {{{LEAF}}}\n    - {{switch: r, children: 's,x'}}",
            "topology.yaml:6:1: fatal: children: there is no switch x",
        ),
        (f"tree: {{switches: [{{{LEAF}}}, {{{LEAF}}}]}}", "switch s is already defined"),
        ("tree: {switch: []}", "No switches configured"),
        ("", "topology t has no type; it needs one of block, flat, ring, torus3d, tree"),
        (
            "block: {block_sizes: [1, 3], blocks: [{block: b, nodes: 'n[1-4]'}]}",
            "[1, 3]: each size must be the first one times a power of two",
        ),
        ("block: {block_sizes: [1, 4], blocks: [{block: b, nodes: 'n[1-4]'}]}", ""),
    ],
)
def test_topology_yaml_means_what_slurmctld_accepts(
    tmp_path: Path, plugin: str, expected: str
) -> None:
    assert_fatal(fatal(tmp_path, "26.05", "", topology_yaml=topology(plugin)), expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("- flat: true", ""),
        ("topology: a\nflat: true", ""),
        ("- topology: a\n  flat: maybe", ""),
        ("- topology: a\n  flat: true\n---\n- [", ""),
        ("- topology: a\n  flat: false\n  tree: {switches: [{switch: s, nodes: n1}]}", ""),
        ("- topology: a\n  flat: no", "topology a has no type"),
        ("- topology: a\n  flat:", "topology a has no type"),
        ("- topology: a\n  Flat: true", "topology a has no type"),
        ("- topology: a\n  tree: {}", "No switches configured"),
        ("- topology: a\n  flat: {}", ""),
        ("# c\n%YAML 1.1\n---\n- topology: a\n  flat: true", ""),
        ("%YAML 2.0\n---\n- topology: a\n  flat: true", "a YAML directive"),
        ("%YAML 1.1\n- topology: a\n  flat: true", "a YAML directive"),
        ("- topology: a\n  tree: null", "tree: must be a mapping"),
        ("- topology: a\n  flat: true\n  tree: {switches: []}", "several types: flat, tree"),
        ("[]", "must be a list of topologies"),
        ("- a", "must be a list of topologies"),
    ],
)
def test_topology_yaml_has_topologies_of_one_type_each(
    tmp_path: Path, text: str, expected: str
) -> None:
    assert_fatal(fatal(tmp_path, "26.05", "", topology_yaml=f"{text}\n"), expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NodeName=m1 Topology=t:s", ""),
        ("NodeName=m1 Topology=nosuch:x", "5:13: fatal: Topology: there is no topology nosuch"),
        ("PartitionName=q Nodes=n1 Topology=nosuch", "there is no topology nosuch"),
    ],
)
def test_topologies_that_nodes_name_exist(tmp_path: Path, text: str, expected: str) -> None:
    yaml = topology(f"tree: {{switches: [{{{LEAF}}}]}}")
    assert_fatal(fatal(tmp_path, "26.05", text, topology_yaml=yaml), expected)


@pytest.mark.parametrize("release", ["25.05", "25.11"])
def test_flat_topology_has_no_options_before_26_05(tmp_path: Path, release: str) -> None:
    found = fatal(tmp_path, release, "", topology_yaml="- topology: a\n  flat: {}\n")
    assert_fatal(found, "flat: must be true or false")
    assert_fatal(fatal(tmp_path, release, "", topology_yaml="- topology: a\n  flat: true\n"), "")


def test_topology_is_called_default_without_topology_yaml(tmp_path: Path) -> None:
    assert fatal(tmp_path, "26.05", "PartitionName=q Nodes=n1 Topology=default") == ""
    text = "PartitionName=q Nodes=n1 Topology=t"
    assert_fatal(fatal(tmp_path, "26.05", text), "there is no topology t")


def layers(text: str, mode: str = "MODE_1") -> str:
    """Return a resources.yaml with one resource."""
    return f"- resource: r\n  mode: {mode}\n  layers: [{text}]\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "resources.yaml:1:1: fatal: resources.yaml: must be a list of resources"),
        ("- {resource: r", "resources.yaml:1:1: fatal: resources.yaml: not YAML"),
        ("- resource: r\n  mode: MODE_1", "1:1: fatal: layers: is missing"),
        ("[]", ""),
        (layers(""), ""),
        (layers("{nodes: 'n[1-2]', count: 5}, {nodes: [n3, n4], count: '0x5'}"), ""),
        (layers("{count: 5}"), "3:1: fatal: nodes: is missing"),
        (layers("{nodes: n1, count: 5.5}"), "count: 5.5 is not accepted"),
        (layers("{nodes: n9, count: 5}"), "nodes: no such node: n9"),
        (layers("{nodes: 'n[1', count: 5}"), "nodes: 'n[1' is not accepted"),
        (
            layers("{nodes: 'n1,n2', count: 5}, {nodes: 'n[1-2]', count: 6}"),
            "r has two layers of the same nodes",
        ),
        (layers("{nodes: n1, count: 5}") + layers("{nodes: n2, count: 5}", "MODE_2"), "two modes"),
        (layers("{nodes: n1, count: 5}").replace(": r", ": matlab"), "is also one of Licenses"),
        (layers("{nodes: n1, count: 5, base: [{name: a, value: 6}]}"), "6 is more than the count"),
        (layers("{nodes: n1, count: -1, base: [{name: a, value: 6}]}"), ""),
        (layers("{nodes: n1, count: 5, base: [{name: a}]}"), "base: must be a list, each with a"),
        (layers("{nodes: n1, count: 5}, {nodes: n2, count: 5}", "MODE_3"), "MODE_3 requires"),
        (
            layers(
                "{nodes: 'n[1-4]', count: 5}, {nodes: n1, count: 5, base: [{name: a, value: 3}]}, "
                "{nodes: n2, count: 5, base: [{name: a, value: 3}]}",
                "MODE_3",
            ),
            "6 is more than the count of 5",
        ),
        (
            layers(
                "{nodes: 'n[1-2]', count: 1}, {nodes: 'n[2-3]', count: 1}, {nodes: n2, count: 1,"
                " base: [{name: a, value: 1}]}, {nodes: 'n[1-4]', count: 1}",
                "MODE_3",
            ),
            "",
        ),
        (
            layers(
                "{nodes: n1, count: 5}", "MODE_3\n  topology: x\n  variables: [{name: v, value: 1}]"
            ),
            "topology: there is no topology x",
        ),
        (
            layers(
                "{nodes: n1, count: 5}",
                "MODE_3\n  topology: default\n  variables: [{name: v, value: 1}]",
            ),
            "",
        ),
        (layers("{nodes: n1, count: 5}", "MODE_3\n  topology: x"), ""),
    ],
)
def test_resources_are_refused_where_slurmctld_refuses_them(
    tmp_path: Path, text: str, expected: str
) -> None:
    licenses = "Licenses=matlab:5"
    assert_fatal(fatal(tmp_path, "26.05", licenses, resources_yaml=text), expected)
    assert_fatal(fatal(tmp_path, "24.11", licenses, resources_yaml=text), "")


def test_resources_of_25_05_have_no_variables(tmp_path: Path) -> None:
    text = layers(
        "{nodes: n1, count: 5, base: [{name: v, value: 9}]}",
        "MODE_3\n  topology: x\n  variables: [{name: v, value: 1}]",
    )
    (tmp_path / "slurm.conf").write_text(f"{BASE}Licenses=matlab:5\n")
    (tmp_path / "resources.yaml").write_text(text)
    found = [
        (one.severity, one.option, one.message)
        for one in check.check_path(tmp_path, releases.get("25.05"))
        if one.file.endswith("resources.yaml")
    ]
    assert sorted(found) == [
        ("error", "mode", "MODE_3 is unknown"),
        ("warning", "base", "is unknown and ignored"),
        ("warning", "topology", "is unknown and ignored"),
        ("warning", "variables", "is unknown and ignored"),
    ]


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([f"m[1-{number}]" for number in range(1, 17)], ""),
        ([f"m[1-{number}]" for number in range(1, 18)], "r has more than 16 levels"),
        # The leaves m1 and m3 are next to each other after sorting, or m[1-2] is between them.
        (["m1", "m3", "m[1-2]", "m[1-4]"], "r has lowest layers on different levels"),
        (["m1", "m[1-2]", "m3", "m[1-4]"], ""),
    ],
)
def test_the_layers_of_mode_3_are_a_tree_that_is_even_in_the_order_of_slurmctld(
    tmp_path: Path, nodes: list[str], expected: str
) -> None:
    text = layers(", ".join(f"{{nodes: '{part}', count: 1}}" for part in nodes), "MODE_3")
    conf = "NodeName=m[1-17]"
    assert_fatal(fatal(tmp_path, "26.05", conf, resources_yaml=text), expected)


@pytest.mark.parametrize(
    ("release", "text", "expected"),
    [
        ("23.11", "a: [", ""),
        ("24.05", "a: [", "rpc_queue.yaml:2:1: fatal: rpc_queue.yaml: "),
        ("24.05", "[]", ""),
        ("24.11", "rpc_queue: []", "rpc_queue.yaml: slurmctld crashes"),
        ("25.05", "[]", "rpc_queue.yaml:1:1: fatal: rpc_queue.yaml: must be a mapping"),
        ("25.05", "rpc_queue: []", ""),
    ],
)
def test_rpc_queue_is_read_only_if_it_is_enabled(
    tmp_path: Path, release: str, text: str, expected: str
) -> None:
    enabled = "SlurmctldParameters=Enable_RPC_Queue"
    assert_fatal(fatal(tmp_path, release, enabled, rpc_queue_yaml=f"{text}\n"), expected)
    assert_fatal(fatal(tmp_path, release, "", rpc_queue_yaml=f"{text}\n"), "")


@pytest.mark.parametrize(
    ("text", "cloud", "others"),
    [
        ("Name=gpu Count=two", "slurmctld slurmd", "slurmd"),
        ("Name=gpu Count=1", "", ""),
        ("Name=gpu NoSuch=1", "slurmctld slurmd", "slurmd"),
        ("Name=gpu File=/dev/null Cores=0-1", "slurmctld", ""),
        ("NodeName=n1 Name=gpu File=/dev/null Cores=0-1", "", ""),
        ("NodeName=n1 Name=gpu Count=two", "slurmd", "slurmd"),
        ("NodeName=cloud1 Name=gpu File=/dev/null Cores=0-1", "slurmctld", ""),
        ("NodeName=cloud1 Name=gpu Count=two", "slurmctld slurmd", ""),
        ("Name=gpu File=/dev/null MultipleFiles=/dev/a,/dev/b", "slurmctld slurmd", "slurmd"),
        ("Name=gpu MultipleFiles=/dev/null", "slurmctld slurmd", "slurmd"),
        ("Name=gpu File=/dev/gpu[0-1] Count=3", "slurmctld slurmd", "slurmd"),
        ("Name=gpu File=/dev/gpu[0-1] Count=2", "", ""),
        ("NodeName=n1 Name=gpu Count=1\nNodeName=n[1-2] Name=gpu Count=1", "slurmd", "slurmd"),
        ("NodeName=n1 Name=gpu Count=1\nNodeName=n2 Name=gpu Count=1", "", ""),
        ("Name=gpu File=nvidia0", "slurmd", "slurmd"),
        ("Name=gpu File=dev/nvidia0", "", ""),
    ],
)
def test_gres_conf_is_slurmctlds_for_cloud_nodes(
    tmp_path: Path, text: str, cloud: str, others: str
) -> None:
    (tmp_path / "gres.conf").write_text(text)
    node = "NodeName=cloud[0-1] CPUs=1 State=CLOUD\n"
    for nodes, daemons in ((node, cloud), ("", others)):
        (tmp_path / "slurm.conf").write_text(f"{BASE}GresTypes=gpu\n{nodes}")
        findings = check.check_path(tmp_path, releases.get("24.11"))
        refusing = {
            name for finding in findings if finding.severity == "fatal" for name in finding.daemons
        }
        assert " ".join(sorted(refusing)) == daemons


def test_each_line_of_gres_conf_that_is_fatal_on_its_own_is_named(tmp_path: Path) -> None:
    text = "Name=gpu File=/dev/a Cores=0-1\nName=gpu File=/dev/b Cores=7\nName=gpu File=/dev/c\n"
    (tmp_path / "gres.conf").write_text(text)
    nodes = "GresTypes=gpu\nNodeName=k1 CPUs=1 State=CLOUD Gres=gpu:9\n"
    (tmp_path / "slurm.conf").write_text(f"{BASE}{nodes}")
    findings = check.check_path(tmp_path, releases.get("24.11"))
    assert [finding.line for finding in findings if finding.severity == "fatal"] == [1, 2]


def test_include_that_ends_the_file_needs_an_end_of_line(tmp_path: Path) -> None:
    text = "\nInclude x.conf"
    base = "PartitionName=q Nodes=n1 Default=YES"
    assert_fatal(
        fatal(tmp_path, "24.11", base + text, x_conf="MinJobAge=300\n"),
        '6:1: fatal: Include x.conf: cannot be read: "Nodes=n1 Default=YES", which remains of',
    )
    assert fatal(tmp_path, "24.11", f"{base}{text}\n", x_conf="MinJobAge=300\n") == ""
