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
from harness.site import importer

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


def test_unreadable_input_is_not_imported(site: Path) -> None:
    (site / "slurm.conf").write_text(SITE["slurm.conf"] + "what is this\n")
    with pytest.raises(UsageError, match=r"cannot be read: .*slurm\.conf:12"):
        importer.import_directory(site, releases.get("24.11"))
    (site / "nodes.conf").unlink()
    with pytest.raises(UsageError, match="the included file does not exist"):
        importer.import_directory(site, releases.get("24.11"))


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
