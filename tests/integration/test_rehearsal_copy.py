"""Rehearsal copies of sites: their nodes and partitions on a few hosts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support import Harness

SITE = Path(__file__).parent / "site"
# What real sites have: files that are incomplete or were written for another release, an error that
# their own slurmctld logs, and scripts.
INCOMPLETE_SITE = {
    "slurm.conf": """\
ClusterName=Lab-2.5
SlurmctldHost=<name of the head node>
FastSchedule=1
Include nodes.conf
Include missing.conf
; NodeName=old CPUs=4
GresTypes=gpu
NodeName=g[1-2] CPUs=4 Gres=gpu:2080ti:1(S:0-1)
PrologFlags=X11
PrologSlurmctld=/opt/site/prolog
Prolog=/etc/slurm/prolog.sh
JobSubmitPlugins=lua
VSizeFactor=101
SlurmSchedLogLevel=1
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageTRES=gres/gpu
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=2000
TopologyPlugin=topology/tree
PartitionName=gpus Nodes=g[1-2] MaxTime=60 DefaultTime=120
PartitionName=others Nodes=n[1-2]
""",
    "nodes.conf": "# written by a program that did not run\n",
    "topology.conf": "SwitchName=s1 Nodes=g[1-2]\nSwitchName=s2 Nodes=n1\nSwitchName=s3 Nodes=n2\n",
    "prolog.sh": "#!/bin/sh\nexit 0\n",
    "job_submit.lua": """\
function slurm_job_submit(job, partitions, uid) return slurm.SUCCESS end
function slurm_job_modify(job, record, partitions, uid) return slurm.SUCCESS end
""",
}
# All checks except those that wait for a time limit.
CHECKS = (
    "runs_its_daemons",
    "without_an_error",
    "every_file",
    "job_on_all_nodes",
    "batch_job",
    "accounting_matches",
)


@pytest.fixture
def passes(harness: Harness) -> Iterator[Callable[[Path], None]]:
    """Bring a scenario up, check it, take it down."""
    names: list[str] = []

    def verify_copy(scenario: Path) -> None:
        up = harness("up", scenario)
        assert up.returncode == 0, up.stderr
        names.append(scenario.stem)
        for stage in (
            ["deploy"],
            ["verify", *(word for check in CHECKS for word in ("--select", check))],
        ):
            done = harness(stage[0], "--run", scenario.stem, *stage[1:])
            assert done.returncode == 0, done.stdout + done.stderr

    yield verify_copy
    for name in names:
        harness("down", name)


@pytest.mark.parametrize("release", [pytest.param("20.11", marks=pytest.mark.exhaustive), "26.05"])
def test_rehearsal_copy_runs_jobs_in_each_partition_and_gets_its_configuration_from_slurmctld(
    passes: Callable[[Path], None], harness: Harness, tmp_path: Path, release: str
) -> None:
    scenario = tmp_path / f"copy-{release}.yml"
    words = ("--no-start", "--rehearsal", "2", "--release", release, "-o", scenario)
    done = harness("import", SITE, *words)
    assert done.returncode == 0, done.stderr
    assert "replaced: Prolog=/gpfs/slurm/bin/prolog.sh: replaced by /bin/true" in done.stderr
    assert "not-for-your-eyes" not in scenario.read_text() + done.stderr
    text = scenario.read_text()
    scenario.write_text(
        text.replace(
            "    controller: copy-ctl1\n", "    controller: copy-ctl1\n    configless: true\n"
        )
    )
    passes(scenario)


def test_copy_of_an_incomplete_site_starts_when_it_is_imported_and_passes_its_checks(
    passes: Callable[[Path], None], harness: Harness, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    for name, text in INCOMPLETE_SITE.items():
        (site / name).write_text(text)
    (site / "prolog.sh").chmod(0o755)
    scenario = tmp_path / "incomplete.yml"
    done = harness("import", site, "--rehearsal", "2", "--release", "24.11", "-o", scenario)
    assert done.returncode == 0, done.stderr
    assert "[ready]" in done.stderr  # its daemons have run
    for note in (
        "ClusterName=lab-2.5: the copy is named lab-2-5",
        "slurm.conf:6: cannot be read: ; NodeName=old CPUs=4",
        "Include missing.conf: the included file does not exist",
        "NodeName=n[1-2]: no line of the site defines them",
        "runs: JobSubmitPlugins=lua: /etc/slurm/job_submit.lua",
        "runs: Prolog=/etc/slurm/prolog.sh",
        "replaced: FastSchedule=1",
    ):
        assert note in done.stderr
    passes(scenario)


@pytest.mark.skipif(
    "HARNESS_CORPUS" not in os.environ, reason="HARNESS_CORPUS names no directory of real sites"
)
def test_rehearsal_copy_of_a_site_with_118_nodes(
    passes: Callable[[Path], None], harness: Harness, tmp_path: Path
) -> None:
    scenario = tmp_path / "large.yml"
    site = Path(os.environ["HARNESS_CORPUS"]) / "ucr-hpcc__hpcc_slurm_examples"
    done = harness("import", site, "--rehearsal", "2", "--release", "20.11", "-o", scenario)
    assert "118 nodes" in done.stdout
    passes(scenario)
