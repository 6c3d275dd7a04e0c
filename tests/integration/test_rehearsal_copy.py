"""Rehearsal copies of sites: their nodes and partitions on a few hosts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support import Harness

SITE = Path(__file__).parent / "site"
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


@pytest.mark.parametrize("release", ["20.11", "26.05"])
def test_rehearsal_copy_runs_jobs_in_each_partition_and_gets_its_configuration_from_slurmctld(
    passes: Callable[[Path], None], harness: Harness, tmp_path: Path, release: str
) -> None:
    scenario = tmp_path / f"copy-{release}.yml"
    done = harness("import", SITE, "--rehearsal", "2", "--release", release, "-o", scenario)
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
