"""What `harness check` finds; tests/integration/test_reference.py compares it with the daemons."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness import cli, releases, scenario
from harness.errors import UsageError
from harness.slurmconf import check
from harness.slurmconf.check.grammar import value_problem

BASE = """\
ClusterName=c
SlurmctldHost=head
NodeName=n[1-4] CPUs=2
PartitionName=p Nodes=ALL Default=YES
"""
SCENARIOS = sorted((Path(__file__).parents[3] / "scenarios").glob("*.yml"))


def found(
    tmp_path: Path, release: str, text: str, older: str | None = None, **files: str
) -> list[str]:
    """Return the findings for the base configuration plus lines, as LINE:COLUMN: SEVERITY: ..."""
    (tmp_path / "slurm.conf").write_text(BASE + text)
    for name, content in files.items():
        (tmp_path / name.replace("_", ".")).write_text(content)
    findings = check.check_path(
        tmp_path, releases.get(release), releases.get(older) if older else None
    )
    return [str(finding).removeprefix(f"{tmp_path}/") for finding in findings]


@pytest.mark.parametrize("release", releases.KNOWN)
def test_plain_configuration_has_no_findings(tmp_path: Path, release: str) -> None:
    assert found(tmp_path, release, "") == []


# The first release that has what these need.
FIRST = {
    "directory": "22.05",
    "dynamic": "22.05",
    "kubernetes-hybrid": "24.05",
    "login": "24.11",
    "oci": "21.08",
    "rest": "22.05",
    "schedmd-suite": "22.05",
    "topology": "26.05",
    "topology-block": "24.05",
}
# The last one: Debian has what the directory needs only with older ones.
LAST = {"directory": "25.11"}
SHIPPED = [
    (path, release)
    for path in SCENARIOS
    for release in releases.KNOWN
    if FIRST.get(path.stem, "") <= release <= LAST.get(path.stem, "99")
]


@pytest.mark.parametrize(("path", "release"), SHIPPED, ids=str)
def test_shipped_scenarios_render_without_findings(path: Path, release: str) -> None:
    findings = check.check_scenario(path, scenario.load(path, [release]))
    # In 25.11, no token opens the metrics that PrivateData hides on one cluster of monitoring.yml.
    hidden = {"metrics"} if (path.stem, release) == ("monitoring", "25.11") else set()
    assert [
        finding
        for finding in findings
        if "--enable-multiple-slurmd" not in finding.message and finding.code not in hidden
    ] == []


@pytest.mark.parametrize(
    ("release", "line", "finding"),
    [
        (
            "24.11",
            "SlurmdParameters=config_overrides\nTaskPlugin=task/affinity",
            "slurm.conf:6:1: info: TaskPlugin: task/affinity cannot bind to CPUs that exist"
            " only because "
            "of config_overrides: jobs fail and the node drains [contradiction]\n"
            "    hint: TaskPlugin=task/none",
        ),
        (
            "24.11",
            "NoSuch=1",
            "slurm.conf:5:1: fatal: NoSuch: is not an option of slurm.conf [unknown]",
        ),
        (
            "24.11",
            "TopologyPlugin=topology/3d_torus",
            "slurm.conf:5:1: fatal: TopologyPlugin: requires a Slurm built with"
            " --with-dimensions=3, unlike Debian's"
            " [plugin]\n    hint: 26.05 has topology/torus3d",
        ),
        (
            "24.11",
            "SlurmctldTimout=1",
            "slurm.conf:5:1: fatal: SlurmctldTimout: is not an option of slurm.conf [unknown]\n"
            "    hint: did you mean SlurmctldTimeout?",
        ),
        (
            "24.11",
            "StorageType=x",
            "slurm.conf:5:1: fatal: StorageType: is not an option of slurm.conf [unknown]\n"
            "    hint: it belongs in slurmdbd.conf",
        ),
        (
            "21.08",
            "CacheGroups=1",
            "slurm.conf:5:1: fatal: CacheGroups: is unknown since 21.08 [gone]\n"
            "    hint: remove it",
        ),
        (
            "20.11",
            "CacheGroups=1",
            "slurm.conf:5:1: info: CacheGroups: is ignored since 20.11 [obsolete]\n"
            "    hint: remove it",
        ),
        (
            "23.11",
            "CertmgrType=x",
            "slurm.conf:5:1: fatal: CertmgrType: is unknown before 24.11 [too-new]",
        ),
        (
            "24.11",
            "MessageTimeout=10s",
            'slurm.conf:5:1: fatal: MessageTimeout: "10s" is not a number [value]',
        ),
        (
            "20.11",
            "MessageTimeout=10s",
            'slurm.conf:5:1: error: MessageTimeout: "10s" is not a number;'
            " the option is ignored [value]",
        ),
        (
            "24.11",
            "PartitionName=q Nodes=n[1-9]",
            "slurm.conf:5:17: fatal: Nodes: no such node: n[5-9] [undefined]",
        ),
        (
            "24.11",
            "NodeName=n2",
            "slurm.conf:5:1: fatal: NodeName: node n2 is already in line 3 [twice]",
        ),
        (
            "24.11",
            "NodeName=m[1-2] NodeAddr=10.0.0.[1-3]",
            "slurm.conf:5:17: fatal: NodeAddr: 3 for 2 nodes; must be one, or one per node [count]",
        ),
        (
            "24.11",
            "NodeName=m1 State=CLOUD",
            "slurm.conf:5:13: info: State: CLOUD nodes require SuspendTime, SuspendProgram,"
            " ResumeProgram: "
            "slurmctld never powers them up or down [power-saving]",
        ),
        (
            "24.11",
            "SuspendTime=60",
            "slurm.conf:5:1: error: SuspendTime: requires SuspendProgram, ResumeProgram;"
            " power saving is off "
            "[power-saving]",
        ),
        (
            "26.05",
            "SchedulerParameters=defer,enable_job_state_cache",
            'slurm.conf:5:1: info: SchedulerParameters: "enable_job_state_cache" is unknown'
            " since 26.05 and ignored "
            "[word]",
        ),
        ("24.11", "DownNodes=x1", "slurm.conf:5:1: error: DownNodes: no such node: x1 [undefined]"),
    ],
)
def test_finding_names_its_place_and_what_to_do(
    tmp_path: Path, release: str, line: str, finding: str
) -> None:
    assert found(tmp_path, release, f"{line}\n") == [finding]


def test_every_problem_of_every_file_is_reported_at_once(tmp_path: Path) -> None:
    texts = found(
        tmp_path,
        "24.11",
        "Include more.conf\nGresTypes=gpu\nNodeName=g[1-2] Gres=gpu:2\n"
        "TopologyPlugin=topology/tree\nWhat\n",
        more_conf="Bad=1\n",
        gres_conf="Name=gpu File=/dev/x\nName=mic Count=1\nName=gpu File=/dev/y Wrong=1\n",
        topology_conf="SwitchName=s Nodes=n[1-4]\nSwitchName=r Switches=t\n",
        slurmdbd_conf="DbdHost=x\n",
        cgroup_conf="CgroupAutomount=yes\n",
    )
    assert [text.split(": ")[:3] for text in texts] == [
        ["cgroup.conf:1:1", "error", "CgroupAutomount"],
        ["gres.conf:2:1", "error", "Name"],
        ["gres.conf:3:22", "fatal", "Wrong"],
        ["more.conf:1:1", "fatal", "Bad"],
        ["slurm.conf:9:1", "fatal", ""],
        ["slurmdbd.conf:1:1", "fatal", "StorageType"],
        ["topology.conf:2:1", "warning", "SwitchName"],
        ["topology.conf:2:14", "fatal", "Switches"],
    ]


def test_topology_loop_is_found(tmp_path: Path) -> None:
    texts = found(
        tmp_path,
        "24.11",
        "TopologyPlugin=topology/tree\n",
        topology_conf="SwitchName=a Nodes=n[1-4]\n"
        "SwitchName=b Switches=c\nSwitchName=c Switches=b\n",
    )
    assert texts == [
        "topology.conf:2:1: fatal: SwitchName: it is below itself: the switches form a loop"
        " [circle]",
        "topology.conf:3:1: fatal: SwitchName: it is below itself: the switches form a loop"
        " [circle]",
    ]


def test_switch_with_two_different_definitions_is_reported(tmp_path: Path) -> None:
    texts = found(
        tmp_path,
        "24.11",
        "TopologyPlugin=topology/tree\n",
        topology_conf="SwitchName=a Nodes=n[1-4]\nSwitchName=b Nodes=n1\nSwitchName=b Switches=x\n",
    )
    assert [text.partition(" [")[0] for text in texts] == [
        "topology.conf:2:14: warning: Nodes: n1 is already on switch a",
        "topology.conf:3:1: fatal: SwitchName: switch b is already defined",
        "topology.conf:3:14: fatal: Switches: there is no switch x",
    ]


def test_file_that_includes_itself_does_not_loop(tmp_path: Path) -> None:
    texts = found(tmp_path, "24.11", "Include slurm.conf\n")
    assert any("files include one another in a loop" in text for text in texts)


SECRET = (
    "root:$y$j9T$sesame:19000:0\npassword=open-sesame\nSlurmctldPort=sesame\nNodeName=c[sesame\n"
)


@pytest.mark.parametrize("way", ["include", "link"])
def test_only_the_place_of_a_file_outside_the_directory_is_shown(tmp_path: Path, way: str) -> None:
    secret, site = tmp_path / "secret", tmp_path / "site"
    secret.write_text(SECRET)
    site.mkdir()
    if way == "link":
        (site / "inside.conf").symlink_to(secret)
        (site / "plugstack.conf").symlink_to(secret)
        (site / "gres.conf").symlink_to(secret)
    texts = "\n".join(
        found(site, "24.11", "Include inside.conf\n" if way == "link" else f"Include {secret}\n")
    )
    assert "sesame" not in texts
    assert "password" not in texts
    assert (
        texts.count("the file is outside of the checked directory, so its text is not shown") >= 4
    )
    assert f"{'inside.conf' if way == 'link' else secret}:1:1: fatal" in texts


@pytest.mark.parametrize(
    "files",
    [
        {"a_conf": "Include slurm.conf\nInclude slurm.conf\n"},
        {
            f"{name}_conf": f"Include {below}.conf\n" * 2
            for name, below in pairwise("abcdefghijklmnopqrstuvwxyz")
        },
    ],
    ids=["circle", "tree"],
)
def test_includes_that_multiply_are_bounded(tmp_path: Path, files: dict[str, str]) -> None:
    texts = "\n".join(
        found(tmp_path, "24.11", "Include a.conf\nInclude a.conf\n", z_conf="", **files)
    )
    assert "files include one another in a loop" in texts or "more than 1000 Includes" in texts


@pytest.mark.parametrize("path", ["/proc/self/mem", "/dev/zero", "/sys/kernel/notes"])
def test_include_of_something_that_is_not_a_file_counts_as_missing(
    tmp_path: Path, path: str
) -> None:
    assert any(
        "the included file does not exist" in text
        for text in found(tmp_path, "24.11", f"Include {path}\n")
    )


def test_file_that_is_too_large_is_reported(tmp_path: Path) -> None:
    with (tmp_path / "large.conf").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(UsageError, match=r"large.conf: .* has at most 16 MiB"):
        found(tmp_path, "24.11", "Include large.conf\n")


def test_changed_defaults_are_reported_for_options_that_are_not_set(tmp_path: Path) -> None:
    texts = found(tmp_path, "24.11", "TreeWidth=50\n", older="22.05")
    assert [text.partition("\n")[0] for text in texts] == [
        "slurm.conf:1:1: warning: SelectType: "
        "the default changed with 23.11: select/linear before, now select/cons_tres [default]",
        "slurm.conf:1:1: warning: PriorityType: "
        "the default changed with 23.11: priority/basic before, now priority/multifactor [default]",
        "slurm.conf:1:1: warning: UnkillableStepTimeout: "
        "the default changed with 24.05: 60 before, now 60, or 5 times MessageTimeout if that is"
        " more [default]",
    ]


@pytest.mark.parametrize(
    ("kind", "value", "right"),
    [
        *[("uint16", value, True) for value in ("0", "65535", "0x1f", "017", "INFINITE", "", " 5")],
        *[("uint16", value, False) for value in ("65536", "-1", "1k", "ten", "08")],
        *[("uint32", value, True) for value in ("10K", "4294967295")],
        *[("uint32", value, False) for value in ("10M", "4294967296")],
        *[("boolean", value, True) for value in ("YES", "up", "1", "False")],
        *[("boolean", value, False) for value in ("on", "2", "")],
        *[("float", value, True) for value in ("1.5", "1e3", ".5")],
        ("float", "1.5x", False),
        ("string", "anything", True),
    ],
)
def test_values_are_accepted_as_slurms_parser_accepts_them(
    kind: str, value: str, right: bool
) -> None:
    assert (value_problem(kind, value) is None) == right


def test_command_prints_json_and_its_exit_code_reflects_errors(tmp_path: Path) -> None:
    path = tmp_path / "slurm.conf"
    path.write_text(BASE)
    completed = CliRunner().invoke(
        cli.app, ["check", str(path), "--release", "26.05", "--format", "json"]
    )
    assert (completed.exit_code, json.loads(completed.stdout)) == (
        0,
        {"release": "26.05", "findings": []},
    )
    path.write_text(f"{BASE}FastSchedule=0\n")
    completed = CliRunner().invoke(cli.app, ["check", str(path), "--format", "json"])
    assert completed.exit_code == 1
    assert json.loads(completed.stdout) == {
        "release": releases.DEFAULT,
        "findings": [
            {
                "file": str(path),
                "line": 5,
                "column": 1,
                "severity": "fatal",
                "code": "refused",
                "option": "FastSchedule",
                "message": "is refused since 20.11",
                "hint": "remove it; for FastSchedule=2 use SlurmdParameters=config_overrides",
                "daemons": ["slurmctld"],
            }
        ],
    }
    assert CliRunner().invoke(cli.app, ["check", str(tmp_path / "none")]).exit_code == 2
    assert CliRunner().invoke(cli.app, ["check", str(path), "--release", "1.0"]).exit_code == 2


@pytest.mark.parametrize(("before", "name"), list(pairwise(releases.KNOWN)))
def test_release_files_state_what_differs(before: str, name: str) -> None:
    """Options that a file calls gone existed before, and options that it introduces did not."""
    new, old = releases.get(name), releases.get(before)
    for section, options in new.options.items():
        brought = {key for key, option in options.items() if option.since == name}
        assert not brought & {*old.options.get(section, {})}, section
    for section, words in new.gone.items():
        for word, since in words.items():
            if since == name:
                assert word in old.options[section], (section, word)
    for section, refusals in new.refused.items():
        assert {*refusals} - {section.split()[-1].lower()} <= {*new.options[section]} | {
            *new.gone.get(section, {})
        }, section


def test_lines_of_plugstack_conf_that_slurmd_ignores(tmp_path: Path) -> None:
    text = (
        "# comment\nrequired /lib/spank.so size=1\ninclude plugstack.conf.d/*\n\n"
        "  mandatory /lib/x.so\noptional\n"
    )
    assert [
        line.partition(" is not")[0] for line in found(tmp_path, "24.11", "", plugstack_conf=text)
    ] == [
        'plugstack.conf:5:3: error: mandatory: "mandatory /lib/x.so"',
        'plugstack.conf:6:1: error: optional: "optional"',
    ]


@pytest.mark.parametrize(("release", "count"), [("20.11", 0), ("22.05", 1), ("26.05", 1)])
def test_memory_per_cpu_and_per_node_exclude_one_another(
    tmp_path: Path, release: str, count: int
) -> None:
    texts = found(tmp_path, release, "DefMemPerCPU=1\nDefMemPerNode=2\n")
    assert len(texts) == count
    assert all(line.startswith("slurm.conf:5:1: error: DefMemPerCPU: is ignored") for line in texts)


@pytest.mark.parametrize(
    ("nodes", "part", "count"),
    [
        ("RealMemory=1000", "", 1),
        ("RealMemory=1025", "", 0),
        ("", "", 0),  # slurmd detects it
        ("RealMemory=1000", "DefMemPerNode=1000", 0),
        ("RealMemory=2000", "DefMemPerCPU=4000", 1),
    ],
)
def test_default_memory_that_no_node_has_is_named(
    tmp_path: Path, nodes: str, part: str, count: int
) -> None:
    lines = f"DefMemPerCPU=1024\nNodeName=m[1-2] {nodes}\nPartitionName=large Nodes=m[1-2] {part}\n"
    texts = found(tmp_path, "24.11", lines)
    assert len([text for text in texts if "no node of partition large" in text]) == count
    assert all(": info: DefMemPerCPU: " in text for text in texts)


@pytest.mark.parametrize("release", releases.KNOWN)
def test_nodes_that_share_hosts_have_no_findings(tmp_path: Path, release: str) -> None:
    path = tmp_path / "shared.yml"
    path.write_text(
        'clusters: {one: {controller: h1, hosts: "h[1-2]",'
        ' nodes: [{name: "c[1-4]", gres: ["gpu:2"]}]}}'
    )
    findings = check.check_scenario(path, scenario.load(path, [release]))
    # In 25.11, no token opens the metrics that PrivateData hides on one cluster of monitoring.yml.
    hidden = {"metrics"} if (path.stem, release) == ("monitoring", "25.11") else set()
    assert [
        finding
        for finding in findings
        if "--enable-multiple-slurmd" not in finding.message and finding.code not in hidden
    ] == []


def test_command_checks_what_a_scenario_renders(tmp_path: Path) -> None:
    scale = next(path for path in SCENARIOS if path.stem == "scale")
    arguments = ["check", str(scale), "--set", "clusters.scale.options.TreeWidth=70000"]
    completed = CliRunner().invoke(cli.app, arguments)
    assert (completed.exit_code, "fatal: TreeWidth" in completed.stdout) == (1, True)
    (tmp_path / "slurm.conf").write_text(BASE)
    assert CliRunner().invoke(cli.app, [*arguments, str(tmp_path)]).exit_code == 2
