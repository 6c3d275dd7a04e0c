"""The other Slurm releases, mixed releases, and custom images."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from harness import lifecycle, providers, releases, rundir
from harness.cluster import slurm
from harness.cluster.slurm import SlurmCluster
from harness.providers import images
from support import SCENARIOS, Harness, verified

MIXED = """
description: Two unfederated clusters; the older one, configless, uses the newer one's slurmdbd.
release: "26.05"
clusters:
  older:
    release: "24.11"
    configless: true
    controller: older-ctl
    nodes: [{name: "older[1-2]", cpus: 2}]
  newer: {controller: newer-ctl, nodes: [{name: "newer[1-2]", cpus: 2}]}
accounting: {accounts: {physics: {}}}
users: {alice: {uid: 2001, accounts: [physics]}}
"""


# `make test-rest` runs a federation on the others.
@pytest.mark.parametrize(
    "release",
    [
        pytest.param(name, marks=[pytest.mark.exhaustive] * (name != "22.05"))
        for name in releases.packaged()
        if name != releases.DEFAULT
    ],
)
def test_single_node_passes(release: str, harness: Harness) -> None:
    done = harness("run", SCENARIOS / "single-node.yml", "--release", release)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"single {release}" in done.stdout


def test_cluster_of_an_older_release_passes_under_a_newer_slurmdbd(
    harness: Harness, tmp_path: Path
) -> None:
    path = tmp_path / "mixed.yml"
    path.write_text(MIXED)
    done = harness("run", path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "older 24.11, newer 26.05, slurmdbd 26.05" in done.stdout


@pytest.mark.exhaustive
def test_what_slurm_gets_wrong_in_a_mixed_federation_is_found_and_explained(
    harness: Harness,
) -> None:
    mixed = ("--release", "26.05", "--release", "on-prem=24.11")
    done = verified(harness, SCENARIOS / "federation.yml", ["accounting_matches"], *mixed)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "waiting for accounting to agree with the jobs' trace" in done.stdout
    assert "known bug in Slurm: slurmdbd 26.05 loses the records of federated jobs" in done.stdout


def test_releases_that_cannot_work_together_are_refused_before_anything_starts(
    harness: Harness,
) -> None:
    done = harness(
        "run", SCENARIOS / "federation.yml", "--release", "26.05", "--release", "aws=22.05"
    )
    assert done.returncode == 2
    assert (
        "clusters.aws.release: 22.05, but slurmdbd is 26.05; rule: slurmdbd 26.05 serves 24.11,"
        in done.stderr
    )


@pytest.mark.parametrize("release", [pytest.param("22.05", marks=pytest.mark.exhaustive), "26.05"])
def test_dynamic_nodes_are_accepted_wherever_they_may_work_and_can_leave(
    release: str, harness: Harness, runs: Path
) -> None:
    done = harness("run", SCENARIOS / "dynamic.yml", "--release", release, "--keep")
    run = lifecycle.open_run(rundir.find(runs, "dynamic"), providers.get("docker"), print)
    try:
        assert done.returncode == 0, done.stdout + done.stderr
        cluster = slurm.clusters(run.ssh, run.plan)["grows"]
        assert guests(cluster) == ("d1", "d2")
        run.ssh.run("d2", ["systemctl", "stop", "slurmd"])
        cluster.run("scontrol", "delete", "NodeName=d2")
        assert guests(cluster) == ("d1",)
        run.ssh.run("d2", ["systemctl", "start", "slurmd"])
        slurm.wait_until_ready(run.plan, {"grows": cluster})
        assert guests(cluster) == ("d1", "d2")
        change = ("AvailableFeatures=other", "ActiveFeatures=other")
        cluster.run("scontrol", "update", "NodeName=d1", *change)
        cluster.run("scontrol", "update", "PartitionName=guests", "Nodes=n1")
        done = harness("verify", "--run", run.directory.id, "--select", "slurmctld_holds")
        assert "node d1: Features is other, slurmd --conf has guest" in done.stdout
        assert "partition guests: Nodes is n1, slurm.conf has guests" in done.stdout
    finally:
        lifecycle.down(run)


def guests(cluster: SlurmCluster) -> tuple[str, ...]:
    return next(partition.nodes for partition in cluster.partitions() if partition.name == "guests")


@pytest.fixture
def own_image() -> Iterator[str]:
    """An image that a user might build: daemons that start at boot, no entry point."""
    client = docker.from_env(timeout=300)
    base = images.ensure(client, releases.get("26.05"), print)
    text = f"FROM {base}\nRUN systemctl enable slurmctld munge\nENTRYPOINT []\n"
    image, _ = client.images.build(
        fileobj=io.BytesIO(text.encode()), tag="slurm-harness-test:own", rm=True
    )
    yield image.tags[0]
    client.images.remove(image.tags[0], force=True)


def test_custom_image_is_asked_for_its_release(
    own_image: str, harness: Harness, tmp_path: Path
) -> None:
    path = tmp_path / "own.yml"
    text = (SCENARIOS / "single-node.yml").read_text()
    path.write_text(text.replace("    controller: ", f"    image: {own_image}\n    controller: "))
    done = harness("run", path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "single 26.05" in done.stdout
    done = harness("run", path, "--release", "24.11")
    assert done.returncode == 2
    assert f"clusters.single.release: 24.11, but image {own_image} has Slurm 26.05" in done.stderr
