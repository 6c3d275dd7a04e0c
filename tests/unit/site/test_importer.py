"""Importing a site's directory; tests/integration/test_reference.py runs daemons on the result."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness import cli, releases, scenario
from harness.capabilities import OWN_MACHINES
from harness.errors import UsageError
from harness.plan import make_plan
from harness.render import render
from harness.scenario import Scenario
from harness.site import importer
from harness.slurmconf import check

SITE = {
    "slurm.conf": """\
ClusterName=Site  # upper case is for people
SlurmctldHost=ctl.example.com(10.0.0.1)
SlurmctldHost=spare
AccountingStorageType=accounting_storage/slurmdbd
AccountingStoragePass=secret1
InteractiveStepOptions="--pty bash"
Include nodes.conf
PartitionName=DEFAULT MaxTime=1-0
PartitionName=all Nodes=ALL Default=YES
NodeSet=big Feature=big
PartitionName=large Nodes=big MaxTime=2-0
""",
    "nodes.conf": "NodeName=DEFAULT CPUs=8\nNodeName=n[1-2] Feature=big Gres=gpu:2\n"
    "NodeName=n3,n4 CPUs=4 State=DOWN\n",
    "slurmdbd.conf": "DbdHost=ctl\nStorageType=accounting_storage/mysql\nStoragePass=secret2\n"
    "PurgeJobAfter=12months\n",
    "gres.conf": "# GPUs\nName=gpu File=/dev/nvidia[0-1]\n",
    "secret.key": "x",
}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A site's /etc/slurm."""
    directory = tmp_path / "slurm"
    directory.mkdir()
    for name, text in SITE.items():
        (directory / name).write_text(text)
    return directory


def test_imported_site_renders_to_its_own_configuration(site: Path, tmp_path: Path) -> None:
    data, left_out = importer.import_directory(site, releases.get("24.11"))
    path = tmp_path / "site.yml"
    path.write_text(importer.dump(data))
    plan = make_plan("site", scenario.load(path), OWN_MACHINES)
    files = {file.path: file.text for file in render(plan)["ctl"]}
    lines = [
        line
        for line in files["/etc/slurm/slurm.conf"].splitlines()
        if line and not line.startswith("#")
    ]
    assert sorted(lines) == sorted(
        [
            "ClusterName=site",
            "SlurmctldHost=ctl.example.com(10.0.0.1)",
            "SlurmctldHost=spare",
            "AccountingStorageType=accounting_storage/slurmdbd",
            'InteractiveStepOptions="--pty bash"',
            "NodeName=n[1-2] CPUs=8 Gres=gpu:2 Feature=big",
            "NodeName=n[3-4] CPUs=4 State=DOWN",
            "NodeSet=big Feature=big",
            "PartitionName=all Nodes=ALL Default=YES MaxTime=1-0",
            "PartitionName=large Nodes=big MaxTime=2-0",
        ]
    )
    assert files["/etc/slurm/gres.conf"] == SITE["gres.conf"]
    assert "/etc/slurm/cgroup.conf" not in files
    assert "PurgeJobAfter=12months" in files["/etc/slurm/slurmdbd.conf"]
    assert plan.hosts[0].daemons == ("munge", "mariadb", "slurmdbd", "slurmctld")
    assert "secret" not in path.read_text()
    assert left_out == [
        f"{site}/secret.key: not a Slurm file",
        f"{site}/slurm.conf:5: AccountingStoragePass, a password",
        f"{site}/slurmdbd.conf:3: StoragePass, a password",
    ]


@pytest.mark.parametrize(
    ("lines", "groups"),
    [
        (["n1 CPUs=2", "n2 CPUs=2", "n3 CPUs=4"], [("n[1-2]", None), ("n3", None)]),
        (["n2", "n1"], [("n2", None), ("n1", None)]),
        (["n09", "n10"], [("n[09-10]", None)]),
        (["n1", "m2"], [("n1", None), ("m2", None)]),
        (["n[1-2]", "n[3-4]"], [("n[1-2]", None), ("n[3-4]", None)]),
        (
            ["n1 NodeAddr=10.0.0.7", "n2 NodeAddr=10.0.0.8", "n3 NodeAddr=10.0.1.1"],
            [("n[1-2]", "10.0.0.[7-8]"), ("n3", "10.0.1.1")],
        ),
        (
            ["n1 NodeAddr=10.0.0.8", "n2 NodeAddr=10.0.0.7"],
            [("n1", "10.0.0.8"), ("n2", "10.0.0.7")],
        ),
        (["n1 NodeAddr=10.0.0.8", "n2"], [("n1", "10.0.0.8"), ("n2", None)]),
    ],
)
def test_consecutive_nodes_that_differ_in_their_number_are_one_group(
    tmp_path: Path, lines: list[str], groups: list[tuple[str, str | None]]
) -> None:
    text = "".join(f"NodeName={line}\n" for line in lines)
    (tmp_path / "slurm.conf").write_text(f"ClusterName=c\nSlurmctldHost=ctl\n{text}")
    data, _ = importer.import_directory(tmp_path, releases.get("24.11"))
    nodes = data["clusters"]["c"]["nodes"]
    assert [(group["name"], group["options"].get("NodeAddr")) for group in nodes] == groups


def test_unreadable_input_is_not_imported(site: Path) -> None:
    (site / "slurm.conf").write_text(SITE["slurm.conf"] + "what is this\n")
    with pytest.raises(UsageError, match=r"cannot be read: .*slurm\.conf:12"):
        importer.import_directory(site, releases.get("24.11"))
    (site / "nodes.conf").unlink()
    with pytest.raises(UsageError, match="the included file does not exist"):
        importer.import_directory(site, releases.get("24.11"))


def imported(directory: Path, text: str, release: str = "24.11") -> tuple[Scenario, list[str]]:
    """Return the copy of a slurm.conf, which must be one that starts, and the notes."""
    (directory / "site").mkdir()
    (directory / "site" / "slurm.conf").write_text(text)
    path = directory / "copy.yml"
    done = importer.import_site([directory / "site"], release, 2)
    importer.write(path, done)
    copy = scenario.load(path)
    findings = check.check_scenario(path, copy)
    assert not [finding for finding in findings if finding.severity == "fatal"]
    return copy, done.notes


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("ClusterName=Lab-2.5\nNodeName=n1\n", "ClusterName=lab-2.5: the copy is named lab-2-5"),
        ("NodeName=n1\n", "ClusterName=: the copy is named cluster"),
        ("SlurmctldHost=<name of host>\n", "slurm.conf:1: cannot be read: SlurmctldHost=<name of"),
        ("Include nodes.conf\n", "the included file does not exist"),
        ("NodeName=n[1-COUNT]\n", "NodeName=n[1-COUNT] is not a hostlist"),
        ("NodeName=n1\nNodeName=n[1-2]\n", "NodeName=n1: not the name of a node, or the second"),
        ("NodeName=@HEAD@\nPartitionName=p Nodes=@HEAD@\n", "NodeName=@HEAD@: not the name"),
        ("PartitionName=p Nodes=n[1-3]\n", "NodeName=n[1-3]: no line of the site defines them"),
        ("StateSaveLocation={state}\nNodeName=n1\n", "StateSaveLocation={state}: the harness"),
        ("NodeName=n1 RealMemory=%MEM%\n", "RealMemory=%MEM%"),
        ("NodeName=n1\nTopologyPlugin=topology/tree\n", "requires topology.conf"),
        (
            "NodeName=n1\nSelectType=select/linear\nSelectTypeParameters=CR_Core\n",
            "select/linear accepts only CR_Memory",
        ),
        ("NodeName=n1\nSelectTypeParameters=CR_Core_Memory\n", "NodeName n1 RealMemory="),
    ],
)
def test_copy_starts_without_what_daemons_refuse(tmp_path: Path, text: str, note: str) -> None:
    _, notes = imported(tmp_path, text)
    assert any(note in line for line in notes), notes


def test_select_type_that_another_release_accepts_is_replaced_by_one_that_fits(
    tmp_path: Path,
) -> None:
    text = "SelectType=select/cons_tres\nNodeName=n1\n"
    _, notes = imported(tmp_path, text, "20.11")
    assert any("SelectType=select/cons_tres: " in line for line in notes), notes


def test_errors_that_the_sites_own_daemons_log_are_known_problems_of_the_copy(
    tmp_path: Path,
) -> None:
    copy, _ = imported(tmp_path, "ClusterName=c\nNodeName=n1\nPartitionName=p Nodes=ALL\n")
    assert copy.clusters["c"].known_problems == ("PartitionName",)


@pytest.mark.parametrize(
    ("gres", "kept"),
    [
        ("gpu:a100:4(S:0-1),shard:8", ("gpu:a100:4", "shard:8")),
        ("gpu:2080ti:2,gpu:3g.20gb:1", ("gpu:2080ti:2", "gpu:3g.20gb:1")),
        ("bandwidth:lustre:no_consume:4G", ("bandwidth:lustre:no_consume:4G",)),
    ],
)
def test_copy_has_the_gres_of_its_nodes(tmp_path: Path, gres: str, kept: tuple[str, ...]) -> None:
    text = f"ClusterName=c\nGresTypes=gpu,shard,bandwidth\nNodeName=n1 CPUs=2 Gres={gres}\n"
    copy, _ = imported(tmp_path, text)
    assert copy.clusters["c"].nodes[0].gres == kept


def test_copy_of_a_directory_runs_its_scripts(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    for name in ("prolog.sh", "job_submit.lua", "other.sh"):
        (tmp_path / "site" / name).write_text("#!/bin/sh\n" if name.endswith("sh") else "")
    (tmp_path / "site" / "slurm.conf").write_text(
        "ClusterName=c\nSlurmctldHost=ctl\nNodeName=n1\nJobSubmitPlugins=lua\n"
        "Prolog=/etc/slurm/prolog.sh\nEpilog=/opt/epilog.sh\n"
    )
    data = importer.import_site([tmp_path / "site"], "24.11", 1).data
    cluster = data["clusters"]["c"]
    assert {*cluster["scripts"]} == {"/etc/slurm/prolog.sh", "/etc/slurm/job_submit.lua"}
    assert cluster["options"]["JobSubmitPlugins"] == "lua"
    assert cluster["options"]["Epilog"] == "/bin/true"


def test_report_says_which_script_an_option_lacks(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text(
        "ClusterName=c\nSlurmctldHost=ctl\nNodeName=n1\nPartitionName=p Nodes=ALL\n"
        "JobSubmitPlugins=lua\n"
    )
    imported = importer.import_site([tmp_path], "24.11", 1)
    (entry,) = [entry for entry in imported.fidelity if entry.name == "JobSubmitPlugins"]
    assert entry.why == "there is no /etc/slurm/job_submit.lua"
    assert f"left out: JobSubmitPlugins=lua: {entry.why}" in imported.notes


@pytest.mark.parametrize(
    ("script", "accounting", "options"),
    [
        ("if job.account == nil then", True, ["--account=rehearsal"]),
        ("if job.account == nil then", False, None),
        ("if job.time_limit == nil then", False, ["--time=5"]),
        ("job.account, job.time_limit = x", True, ["--account=rehearsal", "--time=5"]),
        ("return slurm.SUCCESS", True, None),
    ],
)
def test_jobs_of_invented_users_get_what_lua_scripts_look_at(
    tmp_path: Path, script: str, accounting: bool, options: list[str] | None
) -> None:
    (tmp_path / "job_submit.lua").write_text(script)
    (tmp_path / "slurm.conf").write_text(
        "ClusterName=c\nSlurmctldHost=ctl\nNodeName=n1\nPartitionName=p Nodes=ALL\n"
        "JobSubmitPlugins=lua\n"
        + ("AccountingStorageType=accounting_storage/slurmdbd\n" if accounting else "")
    )
    imported = importer.import_site([tmp_path], "24.11", 1)
    assert imported.data.get("checks") == ({"submit": options} if options else None)
    assert any("added: checks.submit=" in note for note in imported.notes) == bool(options)


def test_directory_without_slurm_conf_lists_the_files_that_may_be_it(tmp_path: Path) -> None:
    for name in ("slurm.conf.old", "slurm.conf.new", "cgroup.conf"):
        (tmp_path / name).write_text("ClusterName=c\n")
    with pytest.raises(UsageError) as error:
        importer.import_site([tmp_path], "24.11", 2)
    assert "to slurm.conf: slurm.conf.new, slurm.conf.old" in str(error.value)


def test_import_overwrites_nothing(site: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.yml"
    assert CliRunner().invoke(cli.app, ["import", str(site), "-o", str(output)]).exit_code == 0
    text = output.read_text()
    assert CliRunner().invoke(cli.app, ["import", str(site), "-o", str(output)]).exit_code == 2
    assert output.read_text() == text
    done = CliRunner().invoke(cli.app, ["import", str(site), "-o", str(tmp_path / "my@site.yml")])
    assert (done.exit_code, "letters, digits" in done.output) == (2, True)
    assert not (tmp_path / "my@site.yml").exists()


@pytest.mark.parametrize("way", ["include", "link"])
def test_what_is_outside_the_directory_is_not_imported(
    site: Path, tmp_path: Path, way: str
) -> None:
    secret = tmp_path / "elsewhere" / "secret"
    secret.parent.mkdir()
    secret.write_text("NodeName=sesame\n")
    (site / "gres.conf").unlink(missing_ok=True)
    if way == "include":
        (site / "gres.conf").write_text(f"Include {secret}\n")
    else:
        (site / "gres.conf").symlink_to(secret)
    with pytest.raises(UsageError, match="outside of"):
        importer.import_directory(site, releases.get("24.11"))
