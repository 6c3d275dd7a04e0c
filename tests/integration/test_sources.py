"""Slurm that Debian does not package: built from its source, and from packages."""

from __future__ import annotations

import io
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from harness import file_ownership, lifecycle, origins, releases, rundir
from harness.open_run import OpenRun
from harness.providers import dockerfiles
from harness.report import model
from sabotage import Sabotage, break_and_verify
from support import SCENARIOS, Harness, command_line, deployed, environment_of, sabotages, verified

# Checks of what the packages contain; the other checks pass on the same daemons from the source.
PACKAGED = ("daemon_has_the_release", "is_the_packaged_one", "runs_its_daemons", "batch_job_runs")
# Without optimization, Slurm compiles in half of the time.
FAST = {"DEB_BUILD_OPTIONS": "noopt"}
CHAIN = """
description: A cluster that goes through several upgrades while its users submit.
clusters:
  chain:
    controller: ctl
    nodes: [{name: n1, cpus: 4, memory: 1000}]
    options:
      AuthInfo: cred_expire=15  # seconds that a requeued job waits at least
      MinJobAge: 3600
      SlurmdTimeout: 30  # see test_upgrade.py
accounting:
  accounts: {physics: {}}
users:
  alice: {uid: 2001, accounts: [physics]}
"""


@pytest.fixture(scope="module")
def harness(runs: Path) -> Harness:
    """The command line, with a compiler that does not optimize."""
    return command_line(environment_of(runs) | FAST)


@pytest.fixture(scope="module")
def tarball() -> Path:
    """The tarball that Debian's packages of the default release are made of, from its mirror."""
    kept = sorted(sources().glob("slurm-wlm_*.orig.tar.*"))
    return kept[-1] if kept else fetch()


def sources() -> Path:
    return file_ownership.directory(file_ownership.cache() / "sources")


def fetch() -> Path:
    client = docker.from_env(timeout=300)
    base = origins.base(f"debian:{releases.get(releases.DEFAULT).suite}")
    script = f"""
        cd /etc/apt && mirror=$(grep -rhoE 'https?://[^ ]+' sources.list sources.list.d | head -1)
        echo "deb-src $mirror {base.name} main" > /etc/apt/sources.list.d/source.list
        mkdir /tarball && cd /tarball && apt-get update &&
        apt-get source --download-only --tar-only slurm-wlm
    """
    container = client.containers.create(
        dockerfiles.base_image(client, base, print), ["sh", "-c", script]
    )
    try:
        container.start()
        ended = container.wait()
        assert ended["StatusCode"] == 0, container.logs().decode()
        stream, _ = container.get_archive("/tarball")
        with tarfile.open(fileobj=io.BytesIO(b"".join(stream))) as tar:
            (member,) = [member for member in tar if ".orig.tar." in member.name]
            member.name = Path(member.name).name
            tar.extract(member, sources(), filter="data")
    finally:
        container.remove(force=True)
    return sources() / member.name


def test_single_node_passes_with_slurm_from_its_source(tarball: Path, harness: Harness) -> None:
    done = harness("run", SCENARIOS / "single-node.yml", "--release", f"source:{tarball}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"single {version(tarball)}" in done.stdout


@pytest.fixture(scope="module")
def with_nss_slurm(tarball: Path, harness: Harness, runs: Path) -> Iterator[OpenRun]:
    """A run of a cluster with a directory, whose jobs get their user from slurmstepd."""
    options = ("--release", f"source:{tarball}", "--set", "clusters.campus.nss_slurm=true")
    with deployed(harness, runs, SCENARIOS / "directory.yml", *options) as run:
        evaluation = lifecycle.verify(run, ["test_nss_slurm"])
        assert evaluation.verdict() == "passed", evaluation
        yield run


@pytest.mark.parametrize("sabotage", sabotages("NSS_SLURM"))
def test_check_fails_where_jobs_do_not_get_their_user_from_slurmstepd(
    with_nss_slurm: OpenRun, sabotage: Sabotage
) -> None:
    break_and_verify(with_nss_slurm, sabotage)


@pytest.mark.exhaustive
def test_cluster_from_a_source_passes_in_a_federation_with_a_packaged_one(
    tarball: Path, harness: Harness
) -> None:
    choice = f"cloud=source:{tarball}"
    done = harness("run", SCENARIOS / "federation-small.yml", "--release", choice)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"cloud {version(tarball)}" in done.stdout
    assert f"slurmdbd {releases.DEFAULT}" in done.stdout


def test_packages_of_the_source_are_installed_like_those_of_a_site(
    tarball: Path, harness: Harness, tmp_path: Path
) -> None:
    built = harness("images", "build", f"source:{tarball}")
    assert built.returncode == 0, built.stderr
    built_ones = (file_ownership.cache() / "packages").glob(f"{version(tarball)}-*")
    newest = max(built_ones, key=lambda directory: directory.stat().st_mtime)
    shutil.copytree(newest, tmp_path / "debs")
    text = (SCENARIOS / "single-node.yml").read_text()
    path = tmp_path / "site.yml"
    path.write_text(text.replace("    controller: ", "    packages: debs\n    controller: "))
    done = verified(harness, path, PACKAGED)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"single {version(tarball)}" in done.stdout


@pytest.mark.exhaustive
def test_chain_of_upgrades_goes_through_a_source(
    tarball: Path, harness: Harness, runs: Path, tmp_path: Path
) -> None:
    path = tmp_path / "chain.yml"
    path.write_text(CHAIN)
    origin = origins.resolve(origins.Wanted(source=str(tarball)))
    way = f"{releases.DEFAULT}:{origin.choice}:26.05"
    done = harness("upgrade", path, "--to", way, "--report", tmp_path / "report")
    assert done.returncode == 0, done.stdout + done.stderr
    report = model.read(tmp_path / "report")
    steps = [
        check.id.removeprefix("upgrade::")
        for check in report.checks
        if check.id.startswith("upgrade::") and check.seconds > 0
    ]
    parts = ("slurmdbd", "slurmctld of chain", "nodes n1")
    assert steps == [
        f"{part} to {target}" for target in (origin.version, "26.05") for part in parts
    ]
    assert report.releases == {"chain": "26.05", "slurmdbd": "26.05"}
    assert report.command == f"harness upgrade {path} --to {way}"
    upgraded = {
        event["step"] for event in rundir.find(runs, "chain").events() if event["kind"] == "upgrade"
    }
    assert upgraded == {*steps}


def version(tarball: Path) -> str:
    return origins.resolve(origins.Wanted(source=str(tarball))).version
