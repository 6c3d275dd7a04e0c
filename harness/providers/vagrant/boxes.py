"""Vagrant boxes: one for each release or origin, built from the containers' image and a kernel."""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from harness import releases
from harness.errors import EngineError
from harness.providers import dockerfiles, images
from harness.providers.docker import engine
from harness.providers.docker.engine import engine_errors
from harness.providers.images import Slurm
from harness.shipped_files import IMAGES

_DIRECTORY = IMAGES / "box"
_HOME = Path(os.environ.get("VAGRANT_HOME", "~/.vagrant.d")).expanduser()
# The size that the program `disk` uses.
_GIGABYTES = 4


def name(slurm: Slurm) -> str:
    """Return the box's name, which changes with its sources."""
    base = images.tag(slurm)
    version = base.split(":")[1].rpartition("-")[0]
    return f"slurm-harness/{version}-{dockerfiles.digest(_DIRECTORY, base)}"


def ensure(slurm: Slurm, say: Callable[[str], None]) -> None:
    """Build the box of a release or an origin and add it to Vagrant, if it is missing."""
    if _is_known(slurm):
        return
    with dockerfiles.alone("-box", f"box {name(slurm)}", say):
        if not _is_known(slurm):
            _build(slurm, say)


def _is_known(slurm: Slurm) -> bool:
    return name(slurm) in {box for _, box, _ in known()}


def known() -> list[tuple[str, str, int]]:
    """Return the release, name and size in bytes of every box that the harness has built."""
    # In Vagrant's own directory; `vagrant box list` takes seconds.
    paths = (_HOME / "boxes").glob("slurm-harness-VAGRANTSLASH-*/0/**/libvirt/box.img")
    boxes = ((path.relative_to(_HOME / "boxes").parts[0], path.stat().st_size) for path in paths)
    return sorted(
        (box.split("-")[3], box.replace("-VAGRANTSLASH-", "/"), size) for box, size in boxes
    )


def wanted() -> set[str]:
    """Return the names of all boxes that this version of the harness builds and uses."""
    return {name(releases.get(release)) for release in releases.packaged()}


def _build(slurm: Slurm, say: Callable[[str], None]) -> None:
    """Install a kernel into the image of a release, write it to a disk and pack it."""
    client = engine.connect()
    base = images.ensure(client, slurm, say)
    image = f"{name(slurm).replace('/', '-box:')}"
    say(f"box {name(slurm)}: installing a kernel and writing a disk")
    dockerfiles.from_dockerfile(
        client, _DIRECTORY, image, {"BASE": base, "APT_OPTIONS": images.apt_options(slurm)}, say
    )
    (_HOME / "tmp").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_HOME / "tmp") as place:
        directory = Path(place)
        raw, packed = directory / "disk.raw", directory / "box.tar"
        with engine_errors(f"cannot write the disk of {image}"):
            client.containers.run(
                image,
                ["/usr/local/sbin/disk", f"/out/{raw.name}", f"{os.getuid()}:{os.getgid()}"],
                entrypoint="sh",
                volumes={place: {"bind": "/out"}},
                network_mode="none",
                # To see its own root file system without Docker's mounts.
                cap_add=["SYS_ADMIN"],
                security_opt=["apparmor=unconfined"],
                remove=True,
            )
            client.images.remove(image, force=True)
        run(
            [
                "qemu-img",
                "convert",
                "-f",
                "raw",
                "-O",
                "qcow2",
                str(raw),
                str(directory / "box.img"),
            ]
        )
        raw.unlink()
        (directory / "metadata.json").write_text(
            json.dumps({"provider": "libvirt", "format": "qcow2", "virtual_size": _GIGABYTES})
        )
        with tarfile.open(packed, "w") as tar:
            for part in ("metadata.json", "box.img"):
                tar.add(directory / part, part)
        (directory / "box.img").unlink()
        run(["vagrant", "box", "add", "--name", name(slurm), str(packed)])


def run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    """Run a program that ends when this one does; EngineError has its last output."""
    try:
        result = subprocess.run(
            # In its own session, so that Ctrl-C does not reach it; it ends with the harness even if
            # the harness is killed.
            ["setpriv", "--pdeathsig", "KILL", *command],
            # Otherwise Vagrant reads a Vagrantfile in the current directory or above it.
            env={**os.environ, "VAGRANT_CWD": "/", **(environment or {})},
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        raise EngineError(
            f"{command[0]}: {error}", hint="`harness doctor --provider vagrant`"
        ) from error
    if result.returncode != 0:
        output = "\n".join(
            filter(None, [result.stdout[-2000:].strip(), result.stderr[-2000:].strip()])
        )
        raise EngineError(
            f"{' '.join(command)}  (exit {result.returncode})\n{output}",
            hint="`harness doctor --provider vagrant`",
        )
