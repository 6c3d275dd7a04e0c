"""What differs between two configurations, option by option."""

from __future__ import annotations

import difflib
import tomllib
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


def source(directory: Path, name: str, **files: str) -> diff.Side:
    """Return a directory with these files as a configuration source."""
    path = directory / name
    path.mkdir()
    for file, text in files.items():
        (path / file.replace("_conf", ".conf")).write_text(text)
    return diff.directory_side(path)


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


def test_different_spelling_of_the_same_value_is_no_change(tmp_path: Path) -> None:
    same = SLURM_CONF.replace(
        "NodeName=n[1-4] NodeAddr=10.0.0.[1-4]", "NodeName=n[1-2] NodeAddr=10.0.0.[1-2]"
    )
    same += "NodeName=n[3-4] NodeAddr=10.0.0.[3-4] realmemory=500  # the rest\n"
    assert changed_options(tmp_path, {"slurm_conf": SLURM_CONF}, {"slurm_conf": same}) == {}


def test_eras_need_different_things(tmp_path: Path) -> None:
    before = {
        "slurm_conf": SLURM_CONF,
        "slurmdbd_conf": "DbdHost=a\n",
        "gres_conf": "Name=gpu File=/dev/gpu[0-3]\n",
    }
    after = {
        "slurm_conf": SLURM_CONF.replace("n[1-4]", "n[1-5]").replace("0.[1-4]", "0.[1-5]")
        + "PriorityType=priority/basic\n",
        "slurmdbd_conf": "DbdHost=a\nPurgeJobAfter=1\n",
        "gres_conf": "Name=gpu File=/dev/gpu[0-1]\n",
    }
    (tmp_path / "old").mkdir()
    assert changed_options(tmp_path / "old", before, after, "22.05") == {
        "slurm.conf PriorityType": ("slurmctld", False),
        "slurm.conf NodeName n5 added": ("all", False),
        "slurmdbd.conf PurgeJobAfter": ("reload", False),
        "gres.conf File": ("all", True),
    }
    assert {needs for needs, _ in changed_options(tmp_path, before, after, "23.11").values()} == {
        "reconfigure",
        "reload",
    }


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


def federation(release: str = "24.11", **options: str) -> diff.Side:
    """Return the shipped federation as a source, with more options on one of its clusters."""
    read = scenario.load(SCENARIOS / "federation.yml", [release])
    aws = read.clusters["aws"]
    aws = aws.model_copy(update={"options": {**aws.options, **options}})
    plan = make_plan(
        "federation",
        read.model_copy(update={"clusters": {**read.clusters, "aws": aws}}),
        OWN_MACHINES,
    )
    return diff.plan_side("federation", plan, render(plan))


def test_hosts_with_the_same_change_are_reported_once() -> None:
    before, after = federation(), federation(MaxJobCount="7")
    (file,) = diff.file_diffs(before, after)
    (change,) = diff.changes(before, after)
    assert file.hosts == change.hosts == "aws[1-4],aws-ctl"
    assert diff.steps([change]) == ["copy the files to their hosts", "scontrol reconfigure"]


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
                    word = option.lower().rpartition("@")[2]
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
    before, after = (diff.directory_side(tmp_path / name) for name in "12")
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
    assert [(one.option, one.after) for one in diff.changes(before, after, "24.11")] == [
        (f"Include {secret}", str(secret))
    ]
    (tmp_path / "b" / "key").symlink_to(secret)
    shown = "".join(
        one.text for one in diff.file_diffs(before, diff.directory_side(tmp_path / "b"))
    )
    assert "# outside of this directory: hidden-" in shown
    assert "987654" not in shown
    (tmp_path / "b" / "gres.conf").symlink_to(secret)
    with pytest.raises(UsageError, match=r"gres.conf is a link to a file outside of its directory"):
        diff.directory_side(tmp_path / "b")


def test_symbolic_link_to_a_directory_of_a_host_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "manifest.json").write_text('{"h": {}}')
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "key").write_text("987654")
    (tmp_path / "tree" / "h").symlink_to(tmp_path / "secrets")
    [text] = diff.directory_side(tmp_path / "tree").hosts["h"].values()
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

    found = diff.live_side("run", plan, render(plan), Sends(), {})
    assert {path for files in found.hosts.values() for path in files} == {"/etc/slurm/slurm.conf"}
