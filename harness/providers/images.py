"""Base images, one for each release, tagged with a digest of the sources."""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import docker
from docker.errors import APIError, ImageNotFound
from docker.models.containers import Container
from docker.types import LogConfig
from docker.utils import parse_repository_tag
from filelock import FileLock, Timeout

from harness import file_ownership, progress, releases
from harness.errors import EngineError, UsageError
from harness.progress import Say, Step
from harness.providers.docker.engine import engine_errors
from harness.releases import Release
from harness.render import RenderedFile
from harness.rundir import RunDir
from harness.shipped_files import IMAGES

REPOSITORY = "slurm-harness"
# Base images with additional packages.
EXTENDED = f"{REPOSITORY}-extended"
# The label of an extended image that names its base.
_BASE = "harness.base"
BOOT = "/usr/local/sbin/boot"
Numbers = tuple[Mapping[str, int], Mapping[str, int]]
# Programs that deployment and boot call on every host.
_NEEDED = ("systemctl", "sshd", "python3", "munged", "ip", "nft", "setpriv")
# Seconds in which an image must report what it contains, even on a busy machine.
_ANSWERS_WITHIN = 60
_IMAGE_GB = 2
_CHUNK = 2**20
# What the engine prints when it begins a step of a Dockerfile, and how many characters of the
# instruction are shown.
_STEP = re.compile(r"Step (\d+)/(\d+) : (.*)")
_STEP_WIDTH = 60
_HOST_PACKAGES = (
    "systemd",
    "systemd-sysv",
    "dbus",
    "libpam-systemd",
    "openssh-server",
    "openssh-client",
    "python3",
    "iproute2",
    "nftables",
    "libseccomp2",
    "procps",
    "munge",
    "mariadb-server",
    "libfaketime",
    "crun",  # runs a user's container
    "busybox-static",  # the smallest content for such a container
)


def tag(release: Release) -> str:
    """Return the image's name, which changes with its sources."""
    of_debian = (
        release.suite,
        release.further_suite,
        release.packages,
        release.apt_options,
        _HOST_PACKAGES,
    )
    return f"{REPOSITORY}:{release.name}-{digest(IMAGES, repr(of_debian))}"


def extended_tag(release: Release, packages: Sequence[str]) -> str:
    """Return the name of a release's image with additional packages, if there are any."""
    if not packages:
        return tag(release)
    made_of = digest(IMAGES / "extended", f"{tag(release)} {sorted({*packages})}")
    return f"{EXTENDED}:{release.name}-{made_of}"


def extend(
    client: docker.DockerClient,
    release: Release,
    packages: Sequence[str],
    say: Callable[[str], None],
) -> str:
    """Return the name of a release's image with additional packages; build it if it is missing."""
    name = extended_tag(release, packages)
    base = ensure(client, release, say)
    if packages and not _has(client, name):
        with alone(f"-{release.suite}", f"image {name}", say):
            if not _has(client, name):
                say(f"image {name}: installing {', '.join(packages)} in {base}")
                arguments = {
                    "BASE": base,
                    "PACKAGES": " ".join(packages),
                    "APT_OPTIONS": apt_options(release),
                }
                from_dockerfile(client, IMAGES / "extended", name, arguments, say, {_BASE: base})
    return name


def current_extensions(client: docker.DockerClient) -> set[str]:
    """Return the names of the extended images whose base this version of the harness uses."""
    with engine_errors("cannot list images"):
        extended = client.images.list(name=EXTENDED, filters={"label": _BASE})
    bases = wanted()
    return {name for image in extended if image.labels[_BASE] in bases for name in image.tags}


def digest(directory: Path, more: str) -> str:
    """Return a digest of all files in a directory, and of `more`."""
    made_of = hashlib.sha256(more.encode())
    for path in sorted(path for path in directory.iterdir() if path.is_file()):
        made_of.update(path.name.encode() + path.read_bytes())
    return made_of.hexdigest()[:12]


def ensure(client: docker.DockerClient, release: Release, say: Callable[[str], None]) -> str:
    """Return the name of the image for a release; build it first if it is missing.

    If several runs need images of one suite at the same time, one builds and the others wait.
    """
    name = tag(release)
    if not _has(client, name):
        with alone(f"-{release.suite}", f"image {name}", say):
            if not _has(client, name):
                build(client, release, say)
    return name


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


def copy(
    image: str, source: docker.DockerClient, target: docker.DockerClient, say: Callable[[str], None]
) -> None:
    """Copy an image from one engine to another that lacks it."""
    if _has(target, image):
        return
    say(f"image {image}: copying to the engine on {target.info()['Name']}")
    with engine_errors(f"cannot copy {image}"):
        # docker's types declare bytes and files only; its HTTP library takes any iterator.
        target.images.load(source.images.get(image).save(named=True))  # type: ignore[arg-type]


def wanted() -> set[str]:
    """Return the names of all images that this version of the harness builds and uses."""
    known = [releases.get(name) for name in releases.PACKAGED]
    return {tag(release) for base in known for release in (base, releases.with_apptainer(base))}


def save(client: docker.DockerClient, names: Sequence[str], file: Path) -> None:
    """Write images to a file for `load` and `docker load`.

    After an error there is no partial file.
    """
    # The SDK's own call saves a single image; images that are saved together share their layers.
    url = f"{client.api.base_url}/v{client.api.api_version}/images/get"
    part = file.with_name(f"{file.name}.part")
    try:
        with (
            engine_errors(f"cannot save {', '.join(names)}"),
            part.open("wb") as tar,
            client.api.get(url, params={"names": names}, stream=True) as answer,
        ):
            answer.raise_for_status()
            for chunk in answer.iter_content(_CHUNK):
                tar.write(chunk)
        part.replace(file)
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)


def load(client: docker.DockerClient, file: Path) -> list[str]:
    """Load what `save` wrote, and return the images' names; UsageError if one is not `wanted`."""
    try:
        with tarfile.open(file) as tar:
            manifest = json.load(tar.extractfile("manifest.json") or io.BytesIO())
        names = [name for image in manifest for name in image["RepoTags"]]
    except (OSError, tarfile.TarError, LookupError, TypeError, ValueError) as error:
        raise UsageError(f"{file} was not written by `harness images save`: {error}") from error
    if others := sorted({*names} - wanted()):
        raise UsageError(
            f"{file} has {', '.join(others)}, which this version of the harness does not use",
            hint="run `harness images save` of the same version on a machine with a registry",
        )
    with engine_errors(f"cannot load {file}"), file.open("rb") as tar:
        client.images.load(tar)
    return names


def _has(client: docker.DockerClient, image: str) -> bool:
    try:
        client.images.get(image)
    except ImageNotFound:
        return False
    return True


def release_of(client: docker.DockerClient, image: str) -> str:
    """Return the Slurm release in a user's own image; EngineError says what the image lacks.

    The image is pulled if the engine does not have it, and its programs are run.
    """
    script = f"""
        for program in {" ".join(_NEEDED)}; do
            command -v $program > /dev/null || echo lacks $program
        done
        [ -e /sbin/init ] || echo lacks systemd
        python3 -I -c 'import ctypes; ctypes.CDLL("libseccomp.so.2")' 2> /dev/null ||
            echo lacks libseccomp
        slurmctld -V || slurmd -V || slurmdbd -V
    """
    with engine_errors(f"cannot inspect image {image}"):
        try:
            client.images.get(image)
        except ImageNotFound:
            client.images.pull(*parse_repository_tag(image))
        answer = _output_without_rights(client, image, script)
    lacking = re.findall("^lacks (.*)", answer, re.MULTILINE)
    version = re.search(r"^slurm\S* (\d+\.\d+)", answer, re.MULTILINE)
    if lacking or not version:
        raise EngineError(
            f"image {image} cannot be a host: it lacks {', '.join(lacking) or 'Slurm'}",
            hint="docs/configuration.md says what an image of your own needs",
        )
    return version[1]


def _output_without_rights(client: docker.DockerClient, image: str, script: str) -> str:
    """Run a script with an image's shell, without privileges or network; return its output."""
    container = client.containers.create(
        image,
        ["-c", script],
        entrypoint="sh",
        user="65534:65534",
        cap_drop=["ALL"],
        security_opt=["no-new-privileges"],
        network_mode="none",
        read_only=True,
        pids_limit=100,
        mem_limit="512m",
        log_config=LogConfig(type=LogConfig.types.JSON, config={"max-size": "1m"}),
    )
    try:
        container.start()
        container.wait(timeout=_ANSWERS_WITHIN)
        return container.logs(stderr=False).decode(errors="replace")
    finally:
        container.remove(force=True, v=True)


def entry_point() -> list[Entry]:
    """Return the files that start a host, which a user's own image lacks."""
    return [
        Entry(f"/usr/local/sbin/{name}", (IMAGES / name).read_bytes(), 0o755)
        for name in ("boot", "restrict")
    ]


def build(client: docker.DockerClient, release: Release, say: Callable[[str], None]) -> str:
    """Build the image for a release from Debian's packages."""
    if not release.suite:
        raise UsageError(
            f"Debian has no packages of Slurm {release.name}",
            hint=f"it has {', '.join(releases.PACKAGED)}; "
            "a cluster can have an image of your own: docs/scenario.md",
        )
    _require_disk_space(client)
    base = _base(client, release.suite, release.apt_options, say)
    name = tag(release)
    say(f"image {name}: installing Slurm {release.name} from Debian {release.suite}")
    arguments = {
        "BASE": base,
        "PACKAGES": " ".join((*_HOST_PACKAGES, *release.packages)),
        "FURTHER_SUITE": release.further_suite or "",
        "APT_OPTIONS": apt_options(release),
    }
    from_dockerfile(client, IMAGES, name, arguments, say)
    return name


def apt_options(release: Release) -> str:
    """Return the options with which apt-get installs from a release's suite."""
    return " ".join(f"-o {option}" for option in release.apt_options)


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
                raise EngineError(f"cannot build {name}: {entry['error']}\n{output[-2000:]}")


def built(client: docker.DockerClient, repository: str = REPOSITORY) -> list[tuple[str, str, int]]:
    """Return the release, name and size in bytes of every image that the harness has built."""
    with engine_errors("cannot list images"):
        images = client.images.list(name=repository, filters={"label": "harness.image"})
    return sorted(
        (name.split(":")[1].split("-")[0], name, image.attrs["Size"])
        for image in images
        for name in image.tags
    )


def _require_disk_space(client: docker.DockerClient) -> None:
    """EngineError if a build would fill the engine's disk; not checked on another machine."""
    root = Path(client.info()["DockerRootDir"])
    free = shutil.disk_usage(root).free / 1e9 if root.exists() else _IMAGE_GB
    if free < _IMAGE_GB:
        raise EngineError(
            f"only {free:.1f} GB free in {root}; "
            f"an image takes up to {_IMAGE_GB} GB while it is built",
            hint="`docker system prune` removes unused data",
        )


def _base(
    client: docker.DockerClient,
    suite: str,
    apt_options: tuple[str, ...],
    say: Callable[[str], None],
) -> str:
    """Return a minimal Debian image: from a registry, or else built by mmdebstrap."""
    official = f"debian:{suite}-slim"
    own = f"{REPOSITORY}-base:{suite}"
    for name in (official, own):
        if _has(client, name):
            return name
    try:
        say(f"image {official}: pulling")
        client.images.pull(official)
    except APIError as error:
        if not shutil.which("mmdebstrap"):
            raise EngineError(
                f"cannot pull {official}: {error.explanation}",
                hint="to build the image from Debian's packages instead: "
                "apt-get install mmdebstrap",
            ) from error
    else:
        return official
    say(f"image {own}: no registry answers; bootstrapping Debian {suite} with mmdebstrap")
    with tempfile.TemporaryDirectory() as directory:
        tar = Path(directory) / "base.tar"
        # mmdebstrap needs apt.conf(5)'s syntax where apt-get takes KEY=VALUE.
        options = ['--aptopt={} "{}"'.format(*option.split("=", 1)) for option in apt_options]
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


@dataclass(frozen=True, slots=True)
class Entry:
    """A file for `archive`; a directory if `content` is None, a symbolic link if `link` is set."""

    path: str
    content: bytes | None
    mode: int = 0o644
    owner: tuple[str, str] = ("root", "root")
    link: str = ""


def archive(entries: Iterable[Entry], numbers: Numbers | None = None) -> bytes:
    """Return a tar of files.

    tar(1) uses the names of owners; Docker uses their `numbers`, by default root's.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for entry in entries:
            info = tarfile.TarInfo(entry.path.lstrip("/"))
            info.mode = entry.mode
            info.uname, info.gname = entry.owner
            if numbers:
                info.uid, info.gid = numbers[0][info.uname], numbers[1][info.gname]
            if entry.link:
                info.type, info.linkname = tarfile.SYMTYPE, entry.link
            elif entry.content is None:
                info.type = tarfile.DIRTYPE
            info.size = len(entry.content or b"")
            tar.addfile(info, io.BytesIO(entry.content or b""))
    return buffer.getvalue()


def keys(run: RunDir) -> list[Entry]:
    """Return the run's SSH keys as the files of a host."""
    return [
        Entry("/root/.ssh/authorized_keys", run.key("ssh_key.pub").read_bytes(), 0o600),
        Entry("/etc/ssh/ssh_host_ed25519_key", run.key("ssh_host_key").read_bytes(), 0o600),
    ]


def seed(files: Sequence[RenderedFile], units: Sequence[str]) -> list[Entry]:
    """Return what a host needs before its first boot: its files, and links to enable its units."""
    return [
        *(
            Entry(file.path, file.text.encode(), int(file.mode, 8), (file.owner, file.group))
            for file in files
        ),
        *(enabled(unit) for unit in units),
        # The users of sysusers.d are created at the first boot.
        Entry(
            "/etc/systemd/system/systemd-sysusers.service.d/always.conf",
            b"[Unit]\nConditionNeedsUpdate=\n",
        ),
    ]


def enabled(unit: str, target: str = "multi-user") -> Entry:
    """Return the link that makes systemd start a service with a target."""
    path = f"/etc/systemd/system/{target}.target.wants/{unit}.service"
    return Entry(path, None, link=f"/lib/systemd/system/{unit}.service")


def numbers(container: Container) -> Numbers:
    """Return the ids of a container's users and groups."""
    return _ids(container, "/etc/passwd"), _ids(container, "/etc/group")


def _ids(container: Container, path: str) -> dict[str, int]:
    """Return the names in a container's passwd or group file, with their ids."""
    stream, _ = container.get_archive(path)
    with tarfile.open(fileobj=io.BytesIO(b"".join(stream))) as tar:
        member = tar.extractfile(Path(path).name)
        lines = member.read().decode().splitlines() if member else []
    return {name: int(number) for name, _, number, *_ in (line.split(":") for line in lines)}
