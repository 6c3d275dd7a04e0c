"""Users build Apptainer images without a registry, change them, and run them under Slurm."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from conftest import SMALLEST_ROOT, Jobs, only

from harness import releases
from harness.cluster import slurm
from harness.cluster.slurm import SlurmCluster
from harness.plan import Plan
from harness.ssh import Ssh

pytestmark = pytest.mark.needs("apptainer")

# Seconds in which a job builds images, even on a busy machine.
_PATIENCE = 400

# Runs a script in an empty directory, and keeps the image that it builds.
_IN_DIRECTORY = """
set -e; directory=$(mktemp -d); trap 'rm -rf "$directory"' EXIT; cd "$directory"
export APPTAINER_TMPDIR=/var/tmp
mkdir root; (cd root; {root})
{build}
"""
# Writes an archive, as registries and `skopeo copy` give it: image-layout.md of the OCI image
# specification.
_OCI_ARCHIVE = """
import hashlib, io, json, platform, tarfile

def blob(content, kind):
    digest = hashlib.sha256(content).hexdigest()
    files[f"blobs/sha256/{digest}"] = content
    media_type = f"application/vnd.oci.image.{kind}"
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}

def packed(add):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        add(tar)
    return packed.getvalue()

def add_files(tar):
    for name in ("blobs", "blobs/sha256"):
        directory = tarfile.TarInfo(name)
        directory.type, directory.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(directory)
    for name, content in files.items():
        file = tarfile.TarInfo(name)
        file.size = len(content)
        tar.addfile(file, io.BytesIO(content))

files = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}'}
layer = packed(lambda tar: tar.add("root", arcname="."))
machine = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
system = {"architecture": machine, "os": "linux", "config": {"Env": ["PATH=/bin"]}}
root = {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]}
config = blob(json.dumps({**system, "rootfs": root}).encode(), "config.v1+json")
layers = [blob(layer, "layer.v1.tar")]
manifest = {"schemaVersion": 2, "config": config, "layers": layers}
manifests = [blob(json.dumps(manifest).encode(), "manifest.v1+json")]
files["index.json"] = json.dumps({"schemaVersion": 2, "manifests": manifests}).encode()
with open("oci.tar", "wb") as archive:
    archive.write(packed(add_files))
"""


@dataclass(frozen=True)
class Node:
    """A node with Apptainer, and the start of a user's srun command that runs there."""

    name: str
    cluster: SlurmCluster
    user: str
    srun: tuple[str, ...]

    def run(self, *command: str) -> str:
        """Run a command of the user under Slurm; return what it prints."""
        return self.cluster.run(*self.srun, *command, user=self.user).stdout

    def build(self, image: str, build: str) -> None:
        """Run a script that builds an image from the directory `root`."""
        script = _IN_DIRECTORY.format(root=SMALLEST_ROOT, build=build)
        self.run("env", f"IMAGE={image}", "sh", "-c", script)


@pytest.fixture
def node(ssh: Ssh, plan: Plan, users: list[str], jobs: Jobs) -> Node:
    """Return the first node with Apptainer."""
    names = [name for name, part in plan.scenario.clusters.items() if part.apptainer]
    for host in plan.hosts:
        if host.apptainer and host.cluster in names and host.nodes:
            cluster = slurm.clusters(ssh, plan, _PATIENCE)[host.cluster]
            srun = (
                "srun",
                "--job-name=interactive",
                *only(cluster, plan),
                *jobs.access_options(cluster),
                f"--nodelist={host.nodes[0]}",
            )
            return Node(host.nodes[0], cluster, users[0], srun)
    able = [release for release in releases.packaged() if releases.get(release).apptainer_suite]
    pytest.skip(
        f"Debian has Apptainer for Slurm {', '.join(able)}, not for {plan.releases()[names[0]]}"
    )


def inside(image: str, *command: str) -> tuple[str, ...]:
    """Return a command that runs in an image."""
    return ("apptainer", "--quiet", "exec", image, *command)


def test_user_builds_a_container_image_and_runs_it_under_slurm(
    node: Node, plan: Plan, jobs: Jobs
) -> None:
    """The image is built from a directory, and it does not change."""
    image = f"/home/{node.user}/smallest.sif"
    node.build(image, "apptainer --quiet build --force $IMAGE root")
    before = node.run("sha256sum", image)
    look = ("sh", "-c", 'echo $(id -u) $SLURM_PROCID "$CUDA_VISIBLE_DEVICES" $(cat /where)')
    has_gpus = node.name in plan.scenario.clusters[node.cluster.name].gpus()
    gpus = ["--gres=gpu:1"] if has_gpus else []
    seen = node.run("--ntasks=2", *gpus, *inside(image, *look)).splitlines()
    uid = plan.scenario.users[node.user].uid
    gpu = "0" if has_gpus else ""
    assert sorted(seen) == [f"{uid} {task} {gpu} inside" for task in (0, 1)]
    cpus = ("sh", "-c", "grep Cpus_allowed_list /proc/self/status")
    assert node.run(*inside(image, *cpus)) == node.run(*cpus)
    batch = jobs.submit_here(
        node.cluster,
        f'[ "$({" ".join(inside(image))} cat /where)" = inside ]',
        f"--nodelist={node.name}",
    )
    node.cluster.wait_for([batch], {"COMPLETED"})
    assert node.run("sha256sum", image) == before


def test_user_changes_an_image_of_a_registry_in_a_sandbox(node: Node) -> None:
    """An OCI archive becomes a sandbox, which is changed and packed, and an image as it was."""
    unchanged, image = (f"/home/{node.user}/{name}.sif" for name in ("unchanged", "changed"))
    archive = f"python3 - << 'END'{_OCI_ARCHIVE}END\n"
    from_archive = "apptainer --quiet build --force"
    node.build(unchanged, f"{archive}{from_archive} $IMAGE oci-archive:oci.tar")
    node.build(
        image,
        f"{archive}{from_archive} --sandbox box oci-archive:oci.tar\n"
        "apptainer --quiet exec --writable box sh -c 'echo changed > /where'\n"
        "apptainer --quiet build --force $IMAGE box\n",
    )
    seen = {name: node.run(*inside(name, "cat", "/where")) for name in (unchanged, image)}
    assert seen == {unchanged: "inside\n", image: "changed\n"}
    shell = f"echo 'cat /where' | apptainer --quiet shell {image}"
    assert node.run("sh", "-c", shell) == "changed\n"
