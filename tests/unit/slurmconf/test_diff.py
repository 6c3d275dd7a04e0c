"""What differs between two configurations, option by option."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import Mock

import pytest

from harness import releases, scenario
from harness.capabilities import OWN_MACHINES
from harness.errors import UsageError
from harness.parsing import conf
from harness.plan import make_plan
from harness.render import render
from harness.rundir import write_rendered
from harness.shipped_files import SCENARIOS
from harness.slurmconf import diff
from harness.ssh import Result, Ssh

SLURM_CONF = """\
ClusterName=c
SlurmctldHost=head
MaxJobCount=100
NodeName=DEFAULT CPUs=4
NodeName=n[1-4] NodeAddr=10.0.0.[1-4] RealMemory=500
PartitionName=p Nodes=ALL MaxTime=60
"""


def source(directory: Path, name: str, **files: str) -> diff.ConfigurationSource:
    """Return a directory with these files as a configuration source."""
    path = directory / name
    path.mkdir()
    for file, text in files.items():
        (path / file.replace("_conf", ".conf")).write_text(text)
    return diff.directory_source(path)


def changed_options(
    directory: Path, before: dict[str, str], after: dict[str, str], release: str = "24.11"
) -> dict[str, tuple[str, bool]]:
    """Return the options that differ, with what they need."""
    found = diff.changes(source(directory, "a", **before), source(directory, "b", **after), release)
    return {
        f"{change.file} {change.option}".strip(): (change.needs, change.drain) for change in found
    }


@pytest.mark.parametrize(
    ("old", "new", "option", "needs"),
    [
        ("MaxJobCount=100", "MaxJobCount=200", "MaxJobCount", ("reconfigure", False)),
        ("MaxJobCount=100\n", "", "MaxJobCount", ("reconfigure", False)),
        ("ClusterName=c\n", "ClusterName=d\n", "ClusterName", ("state", False)),
        ("RealMemory=500", "RealMemory=600", "NodeName n[1-4] RealMemory", ("reconfigure", False)),
        ("CPUs=4", "CPUs=8", "NodeName n[1-4] CPUs", ("reconfigure", True)),
        ("10.0.0.[1-4]", "10.0.0.[1-3,9]", "NodeName n4 NodeAddr", ("reconfigure", False)),
        (
            "NodeName=n[1-4] NodeAddr=10.0.0.[1-4]",
            "NodeName=n[1-5] NodeAddr=10.0.0.[1-5]",
            "NodeName n5 added",
            ("reconfigure", False),
        ),
        (
            "NodeName=n[1-4] NodeAddr=10.0.0.[1-4]",
            "NodeName=n[1-2] NodeAddr=10.0.0.[1-2]",
            "NodeName n[3-4] removed",
            ("reconfigure", True),
        ),
        ("MaxTime=60", "MaxTime=90", "PartitionName p MaxTime", ("reconfigure", False)),
        (
            "PartitionName=p",
            "PartitionName=q Nodes=ALL\nPartitionName=p",
            "PartitionName q added",
            ("reconfigure", False),
        ),
    ],
)
def test_single_change_is_reported_alone_with_what_it_needs(
    tmp_path: Path, old: str, new: str, option: str, needs: tuple[str, bool]
) -> None:
    changed = SLURM_CONF.replace(old, new)
    assert changed_options(tmp_path, {"slurm_conf": SLURM_CONF}, {"slurm_conf": changed}) == {
        f"slurm.conf {option}": needs
    }


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("MaxJobCount=100", "MaxJobCount=7\nMaxJobCount=100"),
        ("MaxJobCount=100", "# a comment\nmaxjobcount = 100  # another"),
        ("MaxJobCount=100", "MaxJobCount=\\\n100"),
        ("MaxJobCount=100", "MaxJobCount=0x64"),
        ("MaxJobCount=100\n", "Include jobs.conf\n"),
        ("MaxJobCount=100", "MaxJobCount=100\nSchedulerType=sched/backfill"),
        ("MaxJobCount=100", "MaxJobCount=100\nSlurmctldPort=6817\nAuthType=auth/munge"),
        ("MaxJobCount=100", 'MaxJobCount=100\nTaskProlog=""\nDebugFlags=""\nPrivateData=none'),
        ("MaxJobCount=100", "MaxJobCount=100\nTaskPlugin=task/none\nPreemptType=preempt/none"),
        ("MaxJobCount=100", "MaxJobCount=100\nTreeWidth=16\nPriorityType=priority/multifactor"),
        ("MaxJobCount=100", "MaxJobCount=100\nSuspendTime=-1\nPriorityDecayHalfLife=7-00:00:00"),
        ("MaxMemPerCPU=1k", "MaxMemPerCPU=1024"),
        ("DisableRootJobs=YES", "DisableRootJobs=true"),
        ("SlurmctldDebug=5", "SlurmctldDebug=Debug"),
        ("TaskPlugin=task/affinity,task/cgroup", "TaskPlugin=affinity,cgroup"),
        ("DebugFlags=Gres,Backfill", "DebugFlags=backfill,gres"),
        ("SchedulerParameters=bf_interval=3,defer", "SchedulerParameters=defer,BF_interval=3"),
        ("AccountingStorageEnforce=limits", "AccountingStorageEnforce=Limits,Associations"),
        ("AccountingStorageTRES=gres/gpu", "AccountingStorageTRES=cpu,gres/gpu"),
        ("EnforcePartLimits=YES", "EnforcePartLimits=all"),
        ("SlurmctldHost=head", "ControlMachine=head\nControlAddr=head"),
        ("SlurmctldHost=head", "SlurmctldHost=head  # the first"),
        ("ClusterName=c", "ClusterName=C"),
        ("NodeName=n[1-4] ", "nodename=n1,n[2-4] "),
        (
            "NodeName=n[1-4] NodeAddr=10.0.0.[1-4]",
            "NodeName=n[3-4] NodeAddr=10.0.0.[3,4] realmemory=500  # the rest\n"
            "NodeName=n[1-2] NodeAddr=10.0.0.[1-2]",
        ),
        ("NodeName=DEFAULT CPUs=4\n", "NodeName=DEFAULT CPUs=8\nNodeName=DEFAULT CPUs=4\n"),
        ("RealMemory=500", "NodeHostname=n[1-4] RealMemory=500 Weight=1 State=unknown"),
        ("RealMemory=500", "RealMemory=7 RealMemory=500"),
        ("CPUs=4", "CPUs=4 Sockets=4 CoresPerSocket=1 ThreadsPerCore=1 Boards=1"),
        ("CPUs=4", "Procs=4"),
        ("CPUs=4", "Sockets=4"),
        ("MaxTime=60", "MaxTime=1:00:00"),
        ("MaxTime=60", "MaxTime=0:59:30 State=UP Default=no Shared=no Priority=1"),
        ("Nodes=ALL", "Nodes=all"),
        ("Nodes=n[1-2]", 'Nodes="n2 n1"'),
        ("AllowAccounts=a,b", "AllowAccounts=B,A"),
        ("Gres=gpu:a100,nic:4", "Gres=nic:4,gpu:a100:1"),
        ("Features=a,b", "Feature=b,a"),
    ],
)
def test_difference_that_slurm_does_not_see_is_no_change(
    tmp_path: Path, old: str, new: str
) -> None:
    conf = SLURM_CONF if old in SLURM_CONF else _with(old)
    files = {"slurm_conf": conf.replace(old, new), "jobs_conf": "MaxJobCount=100\n"}
    assert files["slurm_conf"] != conf
    before = {"slurm_conf": conf, "jobs_conf": files["jobs_conf"]}
    assert changed_options(tmp_path, before, files) == {}


def _with(option: str) -> str:
    """Return SLURM_CONF with one more option, on the line where it belongs."""
    name = option.partition("=")[0]
    if name in {"Gres", "Features"}:
        return SLURM_CONF.replace("RealMemory", f"{option} RealMemory")
    if name in {"Nodes", "AllowAccounts"}:
        return SLURM_CONF.replace("Nodes=ALL", option)
    return f"{option}\n{SLURM_CONF}"


@pytest.mark.parametrize(
    ("old", "new", "option"),
    [
        ("MaxJobCount=100", "MaxJobCount=100\nMaxJobCount=7", "MaxJobCount"),
        ("MaxJobCount=100", "MaxJobCount=010", "MaxJobCount"),
        ("SlurmctldHost=head", "SlurmctldHost=two\nSlurmctldHost=head", "SlurmctldHost"),
        ("SlurmctldHost=head\n", "SlurmctldHost=head(10.0.0.1)\n", "SlurmctldHost"),
        ("Prolog=/opt/prolog", "Prolog=/opt/Prolog", "Prolog"),
        ("Prolog=/opt/prolog", "Prolog=none", "Prolog"),
        ("MaxJobCount=100", 'MaxJobCount=100\nProlog=""', "Prolog"),
        ("MaxJobCount=100", "MaxJobCount=100\nAuthAltTypes=auth/none", "AuthAltTypes"),
        ("MaxJobCount=100", "MaxJobCount=100\nPreemptType=none", "PreemptType"),
        ("JobSubmitPlugins=lua,throttle", "JobSubmitPlugins=throttle,lua", "JobSubmitPlugins"),
        (
            "SchedulerParameters=bf_interval=3,bf_interval=4",
            "SchedulerParameters=bf_interval=4,bf_interval=3",
            "SchedulerParameters",
        ),
        ("Features=a,b", "Features=a,B", "NodeName n[1-4] Features"),
        ("Gres=gpu:1,nic:1", "Gres=gpu:2,nic:1", "NodeName n[1-4] Gres"),
        ("CPUs=4", "CPUs=4 CoresPerSocket=2", "NodeName n[1-4] CoresPerSocket"),
        ("MaxTime=60", "MaxTime=60 DefaultTime=UNLIMITED", "PartitionName p DefaultTime"),
        ("MaxTime=60", "MaxTime=61:00", "PartitionName p MaxTime"),
    ],
)
def test_difference_that_slurm_sees_is_a_change(
    tmp_path: Path, old: str, new: str, option: str
) -> None:
    conf = SLURM_CONF if old in SLURM_CONF else _with(old)
    found = changed_options(tmp_path, {"slurm_conf": conf}, {"slurm_conf": conf.replace(old, new)})
    assert [*found] == [f"slurm.conf {option}"]


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("slurmdbd_conf", "PurgeJobAfter=12\n", "DbdPort=6819\nPurgeJobAfter=12months\n"),
        ("cgroup_conf", "ConstrainCores=yes\n", "ConstrainCores=Yes\nAllowedRAMSpace=100.0\n"),
        (
            "gres_conf",
            "NodeName=n[1-2] Name=gpu File=/dev/gpu[0-1]\n",
            "NodeName=n2 Name=gpu File=/dev/gpu[0,1]\nNodeName=n1 Name=gpu File=/dev/gpu[0-1]\n",
        ),
        ("topology_conf", "SwitchName=s Nodes=n[1-2]\n", "SwitchName=s Nodes=n2,n1  # two\n"),
        ("plugstack_conf", "required a.so  x=1\n", "# local\nrequired a.so x=1\n"),
    ],
)
def test_difference_of_other_files_that_slurm_does_not_see_is_no_change(
    tmp_path: Path, file: str, old: str, new: str
) -> None:
    slurm_conf = {"slurm_conf": SLURM_CONF}
    assert changed_options(tmp_path, slurm_conf | {file: old}, slurm_conf | {file: new}) == {}


def test_file_that_a_release_does_not_know_can_be_compared(tmp_path: Path) -> None:
    before, after = {"slurm_conf": SLURM_CONF}, {"slurm_conf": SLURM_CONF, "mpi_conf": "A=b\n"}
    assert changed_options(tmp_path, before, after, "20.11") == {
        "mpi.conf A": ("reconfigure", False)
    }


def test_comments_and_order_of_topology_yaml_are_no_change(tmp_path: Path) -> None:
    before, after = (
        source(tmp_path, name, slurm_conf=SLURM_CONF, **{"topology.yaml": text})
        for name, text in (
            ("a", "- topology: t\n  flat: true\n"),
            ("b", "# one\n- {flat: true, topology: t}\n"),
        )
    )
    assert diff.changes(before, after, "26.05") == []


def test_eras_need_different_things(tmp_path: Path) -> None:
    before = {
        "slurm_conf": SLURM_CONF,
        "slurmdbd_conf": "DbdHost=a\n",
        "gres_conf": "Name=gpu File=/dev/gpu[0-3]\n",
    }
    after = {
        "slurm_conf": SLURM_CONF.replace("n[1-4]", "n[1-5]").replace("0.[1-4]", "0.[1-5]")
        + "SchedulerType=sched/builtin\n",
        "slurmdbd_conf": "DbdHost=a\nPurgeJobAfter=1\n",
        "gres_conf": "Name=gpu File=/dev/gpu[0-1]\n",
    }
    (tmp_path / "old").mkdir()
    assert changed_options(tmp_path / "old", before, after, "22.05") == {
        "slurm.conf SchedulerType": ("slurmctld", False),
        "slurm.conf NodeName n5 added": ("all", False),
        "slurmdbd.conf PurgeJobAfter": ("reload", False),
        "gres.conf File": ("all", True),
    }
    assert {needs for needs, _ in changed_options(tmp_path, before, after, "23.11").values()} == {
        "reconfigure",
        "reload",
    }


@pytest.mark.parametrize(
    ("release", "parameter", "needs"),
    [
        ("22.05", "SlurmctldParameters=enable_configless", "slurmctld"),
        ("22.05", "SlurmctldParameters=idle_on_node_suspend,enable_configless", "slurmctld"),
        ("22.05", "SlurmctldParameters=idle_on_node_suspend", "reconfigure"),
        ("24.11", "SlurmctldParameters=enable_configless", "reconfigure"),
        ("22.05", "SchedulerParameters=no_backup_scheduling", "slurmctld"),
        ("24.11", "CommunicationParameters=NoCtldInAddrAny", "all"),
        ("24.11", "CommunicationParameters=keepalivetime=30", "reconfigure"),
    ],
)
def test_needs_depend_on_the_words_that_change(
    tmp_path: Path, release: str, parameter: str, needs: str
) -> None:
    before, after = {"slurm_conf": SLURM_CONF}, {"slurm_conf": f"{SLURM_CONF}{parameter}\n"}
    [found] = changed_options(tmp_path, before, after, release).values()
    assert found == (needs, False)
    (tmp_path / "again").mkdir()
    same_word = {"slurm_conf": f"{SLURM_CONF}{parameter},another\n"}
    [found] = changed_options(tmp_path / "again", after, same_word, release).values()
    assert found == ("reconfigure", False)


NODE_SETS = """\
NodeName=g[1-2] Gres=gpu:1 Features=fast
NodeName=n3
NodeSet=gpus Feature=fast
PartitionName=q Nodes=gpus,n3
"""


@pytest.mark.parametrize(
    ("old", "new", "nodes", "last"),
    [
        ("Gres=gpu:1", "Gres=gpu:2", "g[1-2]", "resume g[1-2]"),
        ("PartitionName=q Nodes=gpus,n3\n", "", "g[1-2],n3", "resume g[1-2],n3"),
        ("NodeName=n3\n", "", "n3", "scontrol reconfigure"),
        (
            "NodeName=g[1-2]",
            "SelectType=select/linear\nNodeName=g[1-2]",
            "g[1-2],n[1-3]",
            "resume g[1-2],n[1-3]",
        ),
    ],
)
def test_steps_name_the_nodes_to_drain_and_to_resume(
    tmp_path: Path, old: str, new: str, nodes: str, last: str
) -> None:
    conf = SLURM_CONF.replace("n[1-4]", "n[1-2]").replace("0.[1-4]", "0.[1-2]") + NODE_SETS
    before, after = (
        source(tmp_path, name, slurm_conf=text)
        for name, text in (("a", conf), ("b", conf.replace(old, new)))
    )
    steps = diff.steps(diff.changes(before, after, "24.11"))
    assert steps[0] == f"drain {nodes}, and wait until they have no jobs"
    assert steps[-1] == last


def test_drained_are_only_the_nodes_whose_lines_of_gres_conf_change(tmp_path: Path) -> None:
    line = "NodeName=n[1-4] Name=gpu File=/dev/gpu[0-1]\n"
    files = {"slurm_conf": SLURM_CONF}
    [change] = diff.changes(
        source(tmp_path, "a", **files, gres_conf=line),
        source(
            tmp_path,
            "b",
            **files,
            gres_conf=line.replace("n[1-4]", "n[1-3]") + line.replace("n[1-4]", "n4")[:-2] + "3]\n",
        ),
        "24.11",
    )
    assert (change.option, change.drain, change.nodes) == ("File", True, "n4")


def test_several_lines_of_a_gres_are_compared_as_wholes(tmp_path: Path) -> None:
    line = "NodeName={} Name=gpu Type={} File=/dev/gpu{}\n"
    nodes = ("n[1-3]", "n4")
    files = {"slurm_conf": SLURM_CONF}
    both = [line.format(node, *values) for values in (("a", 0), ("b", 1)) for node in nodes]
    before = source(tmp_path, "before", **files, gres_conf="".join(both))
    moved = source(tmp_path, "moved", **files, gres_conf="".join(reversed(both)))
    assert diff.changes(before, moved, "24.11") == []
    exchanged = "".join(both).replace("n4 Name=gpu Type=a", "n4 Name=gpu Type=x")
    exchanged = exchanged.replace("n4 Name=gpu Type=b", "n4 Name=gpu Type=a").replace("=x", "=b")
    [change] = diff.changes(
        before, source(tmp_path, "after", **files, gres_conf=exchanged), "24.11"
    )
    assert (change.option, change.drain, change.nodes) == ("File", True, "n4")
    assert "file=/dev/gpu0 name=gpu type=a" in str(change.before)


def test_passwords_are_compared_and_not_shown(tmp_path: Path) -> None:
    before, after, same = (
        source(tmp_path, name, slurmdbd_conf=f"DbdHost=a\nStoragePass={word}\n")
        for name, word in (("a", "hunter2"), ("b", "hunter3"), ("c", "hunter2"))
    )
    assert diff.file_diffs(before, same) == []
    assert "hunter" not in diff.file_diffs(before, after)[0].text
    (change,) = diff.changes(before, after)
    assert (change.option, change.needs) == ("StoragePass", "slurmdbd")
    assert "hunter" not in str(change)


def federation(
    release: str = "24.11", settings: Sequence[str] = (), **options: str
) -> diff.ConfigurationSource:
    """Return the shipped federation as a source, with more options on one of its clusters."""
    read = scenario.load(SCENARIOS / "federation.yml", [release], settings=settings)
    aws = read.clusters["aws"]
    aws = aws.model_copy(update={"options": {**aws.options, **options}})
    plan = make_plan(
        "federation",
        read.model_copy(update={"clusters": {**read.clusters, "aws": aws}}),
        OWN_MACHINES,
    )
    return diff.plan_source("federation", plan, render(plan))


def test_hosts_with_the_same_change_are_reported_once() -> None:
    before, after = federation(), federation(MaxJobCount="7")
    (file,) = diff.file_diffs(before, after)
    (change,) = diff.changes(before, after)
    assert file.hosts == change.hosts == "aws[1-4],aws-ctl"
    assert diff.steps([change]) == ["copy the files to their hosts", "scontrol reconfigure"]


@pytest.mark.parametrize(
    ("setting", "change", "why"),
    [
        ("accounting.qos.fast={}", ("qos fast added", None, "", "objects"), ""),
        (
            "accounting.qos.fast={options: {Priority: 5}}",
            ("qos fast added", None, "Priority=5", "objects"),
            "",
        ),
        (
            "accounting.accounts.biology={}",
            ("account biology added", None, "", "objects"),
            "",
        ),
        (
            "users.alice.accounts=[physics, chemistry]",
            ("user alice account=chemistry added", None, "", "objects"),
            "",
        ),
        (
            "users.bob.accounts=[chemistry]",
            ("user bob account=physics removed", "", None, "sacctmgr"),
            "sacctmgr delete user bob account=physics",
        ),
        (
            "accounting.qos.urgent.options={Priority: 9, MaxJobsPerUser: 4}",
            (
                "qos urgent",
                "Priority=1000 MaxJobsPerUser=4",
                "Priority=9 MaxJobsPerUser=4",
                "objects",
            ),
            "",
        ),
        (
            "users.alice.qos=[]",
            ("user alice", "qos=normal,urgent", "", "sacctmgr"),
            "reset qos with sacctmgr modify user alice",
        ),
        (
            "users.alice.associations={physics: {MaxJobs: 4}}",
            ("user alice account=physics", "", "MaxJobs=4", "objects"),
            "",
        ),
        (
            "accounting.qos.urgent.options={Priority: 1000}",
            ("qos urgent", "Priority=1000 MaxJobsPerUser=4", "Priority=1000", "sacctmgr"),
            "reset MaxJobsPerUser with sacctmgr modify qos urgent",
        ),
    ],
)
def test_accounts_users_and_qos_are_changed_with_sacctmgr(
    setting: str, change: tuple[str | None, ...], why: str
) -> None:
    [found] = diff.changes(federation(), federation(settings=[setting]))
    assert (found.option, found.before, found.after, found.needs) == change
    assert (found.hosts, found.why) == ("onprem-ctl", why)
    expected = {"objects": "/usr/local/sbin/slurm-accounting-objects", "sacctmgr": "sacctmgr"}
    assert expected[found.needs] in diff.steps([found])[-1]


def test_new_users_are_created_on_their_hosts() -> None:
    after = federation(settings=["users.carol={uid: 2003, accounts: [physics]}"])
    assert diff.steps(diff.changes(federation(), after)) == [
        "copy the files to their hosts",
        "run systemd-sysusers",
        "run systemd-tmpfiles --create",
        "run /usr/local/sbin/slurm-accounting-objects",
    ]


def test_different_release_is_an_upgrade() -> None:
    found = diff.changes(federation("22.05"), federation("24.11"))
    assert ("Slurm", "22.05", "24.11") in {
        (change.option, change.before, change.after) for change in found
    }
    assert any("upgrade Slurm" in step for step in diff.steps(found))


def test_directory_is_compared_with_its_own_cluster(tmp_path: Path) -> None:
    whole = federation()
    conf = whole.hosts["aws-ctl"]["/etc/slurm/slurm.conf"]
    cgroup = whole.hosts["aws-ctl"]["/etc/slurm/cgroup.conf"]
    (tmp_path / "etc").mkdir()
    mine = source(
        tmp_path / "etc",
        "slurm",
        slurm_conf=conf.replace("ReturnToService=1", "ReturnToService=2"),
        cgroup_conf=cgroup,
    )
    (change,) = diff.changes(*diff.matched(whole, mine))
    assert (change.option, change.before, change.after) == ("ReturnToService", "1", "2")
    stranger = source(tmp_path, "stranger", slurm_conf="ClusterName=nobody\n")
    with pytest.raises(ValueError, match="is of cluster nobody"):
        diff.matched(whole, stranger)


def test_release_data_names_only_options_that_some_release_has() -> None:
    known = {
        option
        for name in releases.KNOWN
        for section in releases.get(name).options
        for option in releases.get(name).options[section]
    } | {
        option.lower()
        for name in releases.KNOWN
        for section in releases.get(name).gone.values()
        for option in section
    }
    path = Path(releases.__file__).parent / "needed_actions.toml"
    for era in tomllib.loads(path.read_text())["era"]:
        for file, part in era["files"].items():
            for need, words in part.items():
                options = (
                    words if need == "why" else words.lower().split() if need != "default" else []
                )
                for option in options:
                    word = option.lower().rpartition("@")[2].partition("=")[0]
                    assert word in known | {"added", "removed", "*"}, f"{file}: {option}"
                    assert need in {*diff.NEEDS, "drain", "why"}, need


@pytest.mark.parametrize("nodes", [4, 100])
def test_files_that_hosts_share_are_read_and_compared_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: int
) -> None:
    path = tmp_path / "s.yml"
    trees = []
    for cpus in (1, 2):
        path.write_text(
            f"clusters: {{c: {{controller: ctl, nodes: [{{name: 'n[1-{nodes}]', cpus: {cpus}}}]}}}}"
        )
        trees.append(render(make_plan("s", scenario.load(path), OWN_MACHINES)))
        write_rendered(tmp_path / f"{cpus}", trees[-1], with_secrets=False)
    read = Mock(wraps=conf.read_text)
    monkeypatch.setattr(conf, "read_text", read)
    before, after = (diff.directory_source(tmp_path / name) for name in "12")
    # The manifest, and the files of slurmd and of slurmctld.
    assert read.call_count == 2 + 2 * len([*trees[0]["ctl"][1:], *trees[0]["n1"][1:]])
    compare = Mock(wraps=difflib.unified_diff)
    monkeypatch.setattr(difflib, "unified_diff", compare)
    [difference] = diff.file_diffs(before, after)
    assert (difference.hosts, difference.path) == (f"ctl,n[1-{nodes}]", "/etc/slurm/slurm.conf")
    assert compare.call_count <= 2  # slurmd's and slurmctld's, which are equal


def test_what_is_outside_a_directory_is_not_shown(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("MaxJobCount=987654\n")
    before = source(tmp_path, "a", slurm_conf=SLURM_CONF)
    after = source(tmp_path, "b", slurm_conf=f"{SLURM_CONF}Include {secret}\n")
    assert [(change.option, change.after) for change in diff.changes(before, after, "24.11")] == [
        (f"Include {secret}", str(secret))
    ]
    (tmp_path / "b" / "key").symlink_to(secret)
    shown = "".join(
        file_diff.text
        for file_diff in diff.file_diffs(before, diff.directory_source(tmp_path / "b"))
    )
    assert "# outside of this directory: hidden-" in shown
    assert "987654" not in shown
    (tmp_path / "b" / "gres.conf").symlink_to(secret)
    with pytest.raises(UsageError, match=r"gres.conf is a link to a file outside of its directory"):
        diff.directory_source(tmp_path / "b")


def test_symbolic_link_to_a_directory_of_a_host_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "manifest.json").write_text('{"h": {}}')
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "key").write_text("987654")
    (tmp_path / "tree" / "h").symlink_to(tmp_path / "secrets")
    [text] = diff.directory_source(tmp_path / "tree").hosts["h"].values()
    assert text.startswith("# outside of this directory: hidden-")


def test_paths_that_a_host_sends_cannot_leave_the_target(tmp_path: Path) -> None:
    plan = make_plan("single", scenario.load(SCENARIOS / "single-node.yml"), OWN_MACHINES)

    class Sends(Ssh):
        def __init__(self) -> None:
            pass

        def run(self, *_: object, **__: object) -> Result:
            return Result(
                0,
                f"\0/etc/slurm/../../{tmp_path}/evil\0text\0/etc/slurm/slurm.conf\0{SLURM_CONF}",
                "",
            )

    found = diff.hosts_source("run", plan, render(plan), Sends(), {})
    assert {path for files in found.hosts.values() for path in files} == {"/etc/slurm/slurm.conf"}
