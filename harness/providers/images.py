"""Base images: one for each release, tagged by what it is made of, shared by all scenarios."""

from __future__ import annotations

import hashlib
import io
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

import docker
from docker.errors import APIError, BuildError, ImageNotFound

from harness.errors import EngineError
from harness.providers.engine import engine_errors
from harness.releases import Release
from harness.resources import IMAGES

REPOSITORY = "slurm-harness"
_IMAGE_GB = 2
_HOST_PACKAGES = (
    *("systemd", "systemd-sysv", "dbus", "libpam-systemd", "openssh-server", "python3"),
    *("iproute2", "nftables", "procps", "munge", "mariadb-server"),
)


def tag(release: Release) -> str:
    """Return the image's name: it changes with whatever the image is made of."""
    made_of = hashlib.sha256(repr((release.suite, release.packages, release.apt_options, _HOST_PACKAGES)).encode())
    for path in sorted(IMAGES.iterdir()):
        made_of.update(path.name.encode() + path.read_bytes())
    return f"{REPOSITORY}:{release.name}-{made_of.hexdigest()[:12]}"


def ensure(client: docker.DockerClient, release: Release, say: Callable[[str], None]) -> str:
    """Return the name of the image for a release; build it first if the engine does not have it."""
    name = tag(release)
    try:
        client.images.get(name)
    except ImageNotFound:
        build(client, release, say)
    return name


def build(client: docker.DockerClient, release: Release, say: Callable[[str], None]) -> str:
    """Build the image for a release from Debian's packages, on Debian's own image or one bootstrapped here."""
    _want_disk(client)
    base = _base(client, release, say)
    name = tag(release)
    say(f"image {name}: installing Slurm {release.name} from Debian {release.suite}")
    arguments = {
        "BASE": base,
        "PACKAGES": " ".join((*_HOST_PACKAGES, *release.packages)),
        "APT_OPTIONS": " ".join(f"-o {option}" for option in release.apt_options),
    }
    with engine_errors(f"cannot build {name}"):
        try:
            client.images.build(
                path=str(IMAGES),
                tag=name,
                buildargs=arguments,
                rm=True,
                forcerm=True,
                labels={"harness.image": name},
            )
        except BuildError as error:
            log = "".join(str(entry.get("stream") or entry.get("error") or "") for entry in error.build_log)
            raise EngineError(f"cannot build {name}: {error.msg}\n" + log[-2000:]) from error
    return name


def built(client: docker.DockerClient) -> list[tuple[str, str, int]]:
    """Return release, name and size in bytes of every image of ours; an old one's release is in its name."""
    with engine_errors("cannot list images"):
        images = client.images.list(name=REPOSITORY, filters={"label": "harness.image"})
    return sorted(
        (name.split(":")[1].split("-")[0], name, image.attrs["Size"]) for image in images for name in image.tags
    )


def _want_disk(client: docker.DockerClient) -> None:
    """Refuse to begin what would fill the disk, where the engine's disk is this machine's."""
    root = Path(client.info()["DockerRootDir"])
    free = shutil.disk_usage(root).free / 1e9 if root.exists() else _IMAGE_GB
    if free < _IMAGE_GB:
        raise EngineError(
            f"only {free:.1f} GB free in {root}; an image takes up to {_IMAGE_GB} GB while it is built",
            hint="`docker system prune` removes what is not used",
        )


def _base(client: docker.DockerClient, release: Release, say: Callable[[str], None]) -> str:
    """Return a minimal Debian image: pulled from a registry, or made by mmdebstrap where none can be reached."""
    official = f"debian:{release.suite}-slim"
    own = f"{REPOSITORY}-base:{release.suite}"
    for name in (official, own):
        try:
            client.images.get(name)
        except ImageNotFound:
            continue
        return name
    try:
        say(f"image {official}: pulling")
        client.images.pull(official)
    except APIError as error:
        if not shutil.which("mmdebstrap"):
            raise EngineError(
                f"cannot pull {official}: {error.explanation}",
                hint="without a registry the image is made from Debian's packages: apt-get install mmdebstrap",
            ) from error
    else:
        return official
    say(f"image {own}: no registry answers; bootstrapping Debian {release.suite} with mmdebstrap")
    with tempfile.TemporaryDirectory() as directory:
        tar = Path(directory) / "base.tar"
        # mmdebstrap wants apt.conf(5)'s syntax where apt-get takes KEY=VALUE.
        options = ['--aptopt={} "{}"'.format(*option.split("=", 1)) for option in release.apt_options]
        command = ["mmdebstrap", "--variant=minbase", "--quiet", *options, release.suite, str(tar)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            raise EngineError(f"{' '.join(command)}  (exit {done.returncode})\n{done.stderr.strip()}")
        with engine_errors(f"cannot import {own}"):
            client.api.import_image_from_file(str(tar), repository=own.split(":")[0], tag=release.suite)
    return own


def archive(files: dict[str, tuple[bytes, int]]) -> bytes:
    """Return a tar with files (path -> content, mode), owned by root."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path, (content, mode) in files.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(content), mode
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
