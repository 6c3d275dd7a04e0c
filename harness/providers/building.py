"""Build packages from Slurm's source, once: they are cached by what they are made of.

The build runs in a container of the base, with SchedMD's packaging if the source has it. See
images/build.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import tarfile
import tempfile
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, TextIO

import docker
from docker.errors import APIError
from docker.models.containers import Container

from harness import file_ownership, origins, progress
from harness.errors import CannotVerify, EngineError, UsageError
from harness.origins import NotAnOrigin, Origin, Wanted
from harness.progress import Say, Step
from harness.providers import dockerfiles
from harness.providers.docker.engine import engine_errors
from harness.shipped_files import IMAGES

# Compiled objects of earlier builds, in a volume of the engine.
CCACHE = "slurm-harness-ccache"
# Further options for Debian's build tools, such as noopt: Debian's policy manual, 4.9.1.
_OPTIONS = "DEB_BUILD_OPTIONS"
_STEPS = ("unpack", "compile", "package")
_MARK = re.compile(r"harness: (\w+) ?(.*)")
# A line for each file that libtool or make compiles; libtool also prints its own command line.
_COMPILES = re.compile(r"^(?!.*--mode=compile).*\s-c\s.*\.c\b")
_SHOW_EVERY = 25
_LAST_LINES = 30
_CHUNK = 2**20


def digest(origin: Origin) -> str:
    """Return a digest of what an origin's packages are made of."""
    base = origins.base(origin.base)
    # How many compilers run at once does not matter to the packages.
    options = [word for word in _options().split() if not word.startswith("parallel=")]
    made_of = [origin.digest, origin.base, base.family.build_packages, options]
    return dockerfiles.digest(_directory(base), repr(made_of))


def _options() -> str:
    return os.environ.get(_OPTIONS, "")


def packages(client: docker.DockerClient, origin: Origin, say: Say) -> Path:
    """Return the directory with the packages of an origin's source; build them if necessary."""
    directory = _cache("packages") / f"{origin.version}-{digest(origin)}"
    if not directory.exists():
        with dockerfiles.alone("-source", f"Slurm {origin.version}", say):
            if not directory.exists():
                _build(client, origin, directory, say)
    return directory


def _build(client: docker.DockerClient, origin: Origin, directory: Path, say: Say) -> None:
    source = _local(origin, say)
    dockerfiles.require_disk_space(client)
    builder = _builder(client, origin, say)
    say(f"Slurm {origin.version}: building packages on {origin.base} from {origin.source}")
    log = _cache("builds") / f"{directory.name}.log"
    with engine_errors(f"cannot build Slurm {origin.version}"):
        client.volumes.create(CCACHE, labels={"harness.cache": "ccache"})
        container = client.containers.create(
            builder,
            environment={_OPTIONS: _options()},
            labels={"harness.builder": origin.version},
            network_mode="none",
            volumes={CCACHE: {"bind": "/ccache"}},
        )
        try:
            with tempfile.TemporaryFile() as tar:
                _write_tar(source, tar)
                tar.seek(0)
                container.put_archive("/", tar)
            container.start()
            _follow(container, origin, log, say)
            _take(container, directory)
        finally:
            # It may have been removed by someone else, which has ended the build.
            with contextlib.suppress(APIError):
                container.remove(force=True, v=True)


def _builder(client: docker.DockerClient, origin: Origin, say: Say) -> str:
    """Return the image in which packages for an origin's base are built."""
    base = origins.base(origin.base)
    directory = _directory(base)
    made_of = repr((base.image, base.apt_options, base.family.build_packages))
    name = f"{dockerfiles.REPOSITORY}-builder:{base.name}-{dockerfiles.digest(directory, made_of)}"
    if dockerfiles.has(client, name):
        return name
    own = dockerfiles.base_image(client, base, say)
    say(f"image {name}: installing a compiler and libraries")
    arguments = {
        "BASE": own,
        "PACKAGES": " ".join(base.family.build_packages),
        "APT_OPTIONS": " ".join(f"-o {option}" for option in base.apt_options),
    }
    dockerfiles.from_dockerfile(client, directory, name, arguments, say)
    return name


def _directory(base: origins.Base) -> Path:
    return IMAGES / base.family.dockerfiles / "build"


def _local(origin: Origin, say: Say) -> Path:
    """Return the path of a source, which is downloaded if it is a URL."""
    if not origins.is_url(origin.source):
        return Path(origin.source)
    name = hashlib.sha256(origin.source.encode()).hexdigest()[:12]
    path = _cache("sources") / f"{name}-{origin.source.rpartition('/')[2]}"
    if not path.exists():
        say(f"{origin.source}: downloading")
        _download(origin.source, path)
    try:
        origins.resolve(Wanted(source=str(path), base=origin.base), origin.release)
    except NotAnOrigin as error:
        path.unlink()
        raise UsageError(f"{origin.source}: {error}", hint=error.hint) from error
    return path


def _download(url: str, path: Path) -> None:
    part = path.with_name(f"{path.name}.part")
    try:
        with urllib.request.urlopen(url, timeout=60) as answer, part.open("wb") as file:  # noqa: S310
            shutil.copyfileobj(answer, file, _CHUNK)
        part.replace(path)
    except OSError as error:
        raise CannotVerify(
            f"cannot download {url}: {error}",
            hint="download it on another machine, and name the file",
        ) from error
    finally:
        part.unlink(missing_ok=True)


def _write_tar(source: Path, file: IO[bytes]) -> None:
    """Write /source with a tarball, or with an unpacked source in tree/."""
    with tarfile.open(fileobj=file, mode="w") as tar:
        if source.is_file():
            tar.add(source, f"source/{source.name}")
        else:
            tar.add(
                source, "source/tree", filter=lambda info: None if "/.git" in info.name else info
            )


def _follow(container: Container, origin: Origin, log: Path, say: Say) -> None:
    """Show the steps of a build until it ends, and keep its output in a log.

    EngineError has the last lines, and the place of the log.
    """
    with log.open("w", buffering=1) as file, progress.steps(say) as show:
        for step in _steps(_kept(container.logs(stream=True, follow=True), file)):
            show(step)
    code = container.wait()["StatusCode"]
    log.write_bytes(container.logs())  # the engine may end the stream early
    if code != 0:
        last = "\n".join(log.read_text().splitlines()[-_LAST_LINES:])
        raise EngineError(
            f"Slurm {origin.version} cannot be built on {origin.base} (exit {code}):\n{last}",
            hint=f"the complete output is in {log}",
        )


def _kept(chunks: Iterable[bytes], log: TextIO) -> Iterator[str]:
    """Yield the lines of an output, and write them to a log."""
    rest = ""
    for chunk in chunks:
        *lines, rest = (rest + chunk.decode(errors="replace")).split("\n")
        for line in lines:
            log.write(f"{line}\n")
            yield line
    log.write(rest)


def _steps(lines: Iterable[str]) -> Iterator[Step]:
    """Yield the steps of a build, and how many files it has compiled.

    >>> compiled = ["libtool --mode=compile gcc -c a.c", "gcc -c a.c -o a.o"] * 25
    >>> for step in _steps(["harness: compile 90", *compiled, "harness: package"]):
    ...     print(step)
    step 2 of 3: compile
    step 2 of 3: compile (25 of about 90 files)
    step 3 of 3: package
    """
    compiled, files = 0, ""
    for line in lines:
        if (mark := _MARK.match(line)) and mark[1] in _STEPS:
            files = mark[2]
            yield Step("step", _STEPS.index(mark[1]) + 1, len(_STEPS), mark[1])
        elif files and _COMPILES.search(line):
            compiled += 1
            if compiled % _SHOW_EVERY == 0:
                text = f"compile ({compiled} of about {files} files)"
                yield Step("step", 2, len(_STEPS), text)


def _take(container: Container, directory: Path) -> None:
    """Take the packages out of a container that has built them."""
    stream, _ = container.get_archive("/packages")
    with (
        tempfile.TemporaryDirectory(dir=directory.parent) as place,
        tempfile.TemporaryFile() as tar,
    ):
        for chunk in stream:
            tar.write(chunk)
        tar.seek(0)
        with tarfile.open(fileobj=tar) as opened:
            opened.extractall(place, filter="data")
        (Path(place) / "packages").rename(directory)


def _cache(name: str) -> Path:
    return file_ownership.directory(file_ownership.cache() / name)
