"""Build images from Dockerfiles on a base, with progress, one at a time."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import docker
from docker.errors import APIError, ImageNotFound
from docker.utils import parse_repository_tag
from filelock import FileLock, Timeout

from harness import file_ownership, progress
from harness.errors import EngineError
from harness.origins import Base
from harness.progress import Say, Step
from harness.providers.docker.engine import engine_errors

REPOSITORY = "slurm-harness"
_IMAGE_GB = 2
# What the engine prints when it begins a step of a Dockerfile, and how many characters of the
# instruction are shown.
_STEP = re.compile(r"Step (\d+)/(\d+) : (.*)")
_STEP_WIDTH = 60
# How many lines of the output an error shows, and what the engine marks its errors with.
_LAST_LINES = 30
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# Settings of Docker's own "slim" images of Debian: apt keeps no caches, which every layer would
# have again, and dpkg leaves documentation and translations out, and need not wait for the disk.
_SMALL_APT = (
    "Dir::Cache::pkgcache=",
    "Dir::Cache::srcpkgcache=",
    "Acquire::Languages=none",
)
_SMALL_DPKG = (
    "force-unsafe-io",
    *(f"path-exclude=/usr/share/{part}/*" for part in ("doc", "info", "locale", "man")),
    "path-include=/usr/share/doc/*/copyright",
    "path-include=/usr/share/locale/locale.alias",
)
# Directories of images/ with Dockerfiles of their own.
_OTHER_DOCKERFILES = {"box", "build", "el", "extended", "operator"}


def digest(directory: Path, more: str) -> str:
    """Return a digest of all files in a directory, and of `more`."""
    made_of = hashlib.sha256(more.encode())
    for path in sorted(path for path in directory.iterdir() if path.is_file()):
        made_of.update(path.name.encode() + path.read_bytes())
    return made_of.hexdigest()[:12]


@contextmanager
def alone(kind: str, what: str, say: Callable[[str], None]) -> Iterator[None]:
    """Keep this user's other runs from building the same thing during the block."""
    lock = FileLock(file_ownership.cache() / f"image{kind}.lock", mode=0o600)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        say(f"{what}: waiting for another run that is building")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def has(client: docker.DockerClient, image: str) -> bool:
    """Return whether an engine has an image."""
    try:
        client.images.get(image)
    except ImageNotFound:
        return False
    return True


@contextmanager
def context(dockerfiles: Path, more: Mapping[str, Iterable[Path]]) -> Iterator[Path]:
    """Yield a directory with the files of a directory, and with more files in subdirectories."""
    with tempfile.TemporaryDirectory() as place:
        shutil.copytree(
            dockerfiles,
            place,
            dirs_exist_ok=True,
            ignore=lambda _, names: [name for name in names if name in _OTHER_DOCKERFILES],
        )
        for name, paths in more.items():
            (Path(place) / name).mkdir(exist_ok=True)
            for path in paths:
                shutil.copyfile(path, Path(place) / name / path.name)
        yield Path(place)


def from_dockerfile(
    client: docker.DockerClient,
    directory: Path,
    name: str,
    arguments: dict[str, str],
    say: Say,
    labels: Mapping[str, str] | None = None,
) -> None:
    """Build an image from the Dockerfile of a directory, and show each step.

    EngineError has the end of the output.
    """
    output = ""
    with engine_errors(f"cannot build {name}"), progress.steps(say) as show:
        for entry in client.api.build(
            path=str(directory),
            tag=name,
            buildargs=arguments,
            rm=True,
            forcerm=True,
            labels={"harness.image": name, **(labels or {})},
            decode=True,
        ):
            text = str(entry.get("stream") or entry.get("error") or "")
            output += text
            if step := _STEP.match(text):
                show(Step("step", int(step[1]), int(step[2]), f"{name}: {step[3][:_STEP_WIDTH]}"))
            if "error" in entry:
                lines = _COLOUR.sub("", output).splitlines()[-_LAST_LINES:]
                raise EngineError("\n".join([f"cannot build {name}: {entry['error']}", *lines]))


def require_disk_space(client: docker.DockerClient) -> None:
    """EngineError if a build would fill the engine's disk; not checked on another machine."""
    root = Path(client.info()["DockerRootDir"])
    free = shutil.disk_usage(root).free / 1e9 if root.exists() else _IMAGE_GB
    if free < _IMAGE_GB:
        raise EngineError(
            f"only {free:.1f} GB free in {root}; "
            f"an image takes up to {_IMAGE_GB} GB while it is built",
            hint="`docker system prune` removes unused data",
        )


def base_image(client: docker.DockerClient, base: Base, say: Callable[[str], None]) -> str:
    """Return a minimal image of a base: from a registry, or a Debian built by mmdebstrap."""
    official = base.image
    own = f"{REPOSITORY}-base:{base.name}"
    for name in (official, *([own] if base.bootstrappable else [])):
        if has(client, name):
            return name
    try:
        say(f"image {official}: pulling")
        client.images.pull(*parse_repository_tag(official))
    except APIError as error:
        if not base.bootstrappable:
            raise EngineError(
                f"cannot pull {official}: {error.explanation}",
                hint=f"without access to a registry, copy it from another machine: "
                f"`docker save {official}`, then `docker load`",
            ) from error
        if not shutil.which("mmdebstrap"):
            raise EngineError(
                f"cannot pull {official}: {error.explanation}",
                hint="to build the image from Debian's packages instead: "
                "apt-get install mmdebstrap",
            ) from error
    else:
        return official
    suite = base.name
    say(f"image {own}: no registry answers; bootstrapping Debian {suite} with mmdebstrap")
    with tempfile.TemporaryDirectory() as directory:
        tar = Path(directory) / "base.tar"
        # mmdebstrap needs apt.conf(5)'s syntax where apt-get takes KEY=VALUE.
        options = [
            '--aptopt={} "{}"'.format(*option.split("=", 1))
            for option in (*_SMALL_APT, *base.apt_options)
        ]
        options += [f"--dpkgopt={option}" for option in _SMALL_DPKG]
        command = ["mmdebstrap", "--variant=minbase", "--quiet", *options, suite, str(tar)]
        result = subprocess.run(
            command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )
        if result.returncode != 0:
            raise EngineError(
                f"{' '.join(command)}  (exit {result.returncode})\n{result.stderr.strip()}"
            )
        with engine_errors(f"cannot import {own}"):
            client.api.import_image_from_file(str(tar), repository=own.split(":")[0], tag=suite)
    return own
