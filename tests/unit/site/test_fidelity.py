"""What a rehearsal copy has of its site, as its files say."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.releases import get
from harness.site import fidelity
from harness.site.fidelity import ADDED, EMULATED, LEFT_OUT, SAME, Entry, Replaced
from harness.slurmconf.check.parsed_file import load

SITE = """\
ClusterName=c
Prolog=/site/prolog
ResumeProgram=/site/resume
KillWait=30
NodeName=n[1-2] CPUs=4 Features=ib NodeAddr=10.0.0.[1-2]
NodeName=n3 CPUs=4 Weight=7
"""
COPY = """\
ClusterName=c
Prolog=/bin/true
SlurmdParameters=config_overrides
NodeName=n[1-2] CPUs=4 Features=ib NodeAddr=copy1
NodeName=n3 CPUs=4 Weight=8
"""
REPLACED = (
    Replaced("slurm.conf", "Prolog", "/site/prolog", "replaced by /bin/true"),
    Replaced("slurm.conf", "ResumeProgram", "/site/resume", "all nodes are up"),
    Replaced("gres.conf", "", None, "needs hardware"),
)


@pytest.fixture
def entries(tmp_path: Path) -> dict[str, Entry]:
    for side, text, gres, password in (
        ("site", SITE, "nvidia", "for-nobody"),
        ("copy", COPY, "zero", "%secret:other%"),
    ):
        (tmp_path / side).mkdir()
        (tmp_path / side / "slurm.conf").write_text(text)
        (tmp_path / side / "gres.conf").write_text(f"Name=gpu File=/dev/{gres}\n")
        (tmp_path / side / "slurmdbd.conf").write_text(f"DbdHost=db\nStoragePass={password}\n")
    release = get("24.11")
    site, copy = load(tmp_path / "site", release), load(tmp_path / "copy", release)
    compared = fidelity.compare(site, copy, release.name, REPLACED)
    return {f"{entry.where} {entry.name}": entry for entry in compared}


@pytest.mark.parametrize(
    ("what", "site", "copy", "state", "why"),
    [
        ("slurm.conf ClusterName", "c", "c", SAME, ""),
        ("slurm.conf Prolog", "/site/prolog", "/bin/true", EMULATED, "replaced by /bin/true"),
        ("slurm.conf ResumeProgram", "/site/resume", None, LEFT_OUT, "all nodes are up"),
        (
            "slurm.conf SlurmdParameters",
            None,
            "config_overrides",
            ADDED,
            "the harness has its own",
        ),
        ("slurm.conf NodeName n3 Weight", "7", "8", EMULATED, "the harness has its own"),
        ("slurm.conf NodeName n3", "CPUs=4", "CPUs=4", SAME, ""),
        ("slurm.conf NodeName n[1-2]", "CPUs=4 Features=ib", "CPUs=4 Features=ib", SAME, ""),
        ("gres.conf File", "gpu: /dev/nvidia", "gpu: /dev/zero", EMULATED, "needs hardware"),
    ],
)
def test_option_is_reported_as_the_copys_file_has_it(
    entries: dict[str, Entry], what: str, site: str | None, copy: str | None, state: str, why: str
) -> None:
    entry = entries[what]
    assert (entry.site, entry.copy, entry.state, entry.why) == (site, copy, state, why)


def test_default_that_the_site_wrote_out_is_the_same_without_it(entries: dict[str, Entry]) -> None:
    assert entries["slurm.conf KillWait"].state == SAME


def test_addresses_of_nodes_are_one_entry(entries: dict[str, Entry]) -> None:
    assert entries["slurm.conf addresses and ports of nodes"].state == EMULATED
    assert not [name for name in entries if name.endswith("NodeAddr")]


def test_passwords_are_not_shown(entries: dict[str, Entry]) -> None:
    assert entries["slurmdbd.conf StoragePass"].site == "a password"
    assert "for-nobody" not in fidelity.markdown("copy", [*entries.values()])


def test_objects_are_the_same_if_the_site_has_them_and_added_otherwise() -> None:
    site = {"account": {"physics": {"parent": "science"}}}
    site["user"] = {"bob": {"uid": 2002}}
    copy = {**site, "user": {"alice": {"uid": 2001}, **site["user"]}}
    notes = ["user carol: no uid"], ["user bob: had no uid"]
    same, added, emulated, left_out = fidelity.objects(site, copy, *notes)
    assert (emulated.name, emulated.state, emulated.why) == ("bob", EMULATED, "had no uid")
    assert (same.name, same.site, same.state) == ("physics", "parent: science", SAME)
    assert (added.name, added.site, added.state) == ("alice", None, ADDED)
    assert (left_out.name, left_out.state, left_out.why) == ("user carol", LEFT_OUT, "no uid")


def test_report_begins_with_what_a_verdict_does_not_cover(entries: dict[str, Entry]) -> None:
    text = fidelity.markdown("copy", [*entries.values()])
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    assert headings == [
        "## Left out: a verdict on the copy says nothing about these",
        "## Emulated: the copy has these in a different form",
        "## Added: only the copy has these",
        "## The same",
    ]
    assert "| slurm.conf | ResumeProgram | /site/resume | all nodes are up |" in text
