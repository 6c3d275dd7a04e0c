"""Base images, one for each release, tagged with a digest of the sources."""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import docker
from docker.errors import ImageLoadError, ImageNotFound
from docker.models.containers import Container
from docker.types import LogConfig
from docker.utils import parse_repository_tag

from harness import origins, releases
from harness.errors import EngineError, UsageError, cannot_read
from harness.origins import Base, Origin
from harness.plan import Host
from harness.progress import Say
from harness.providers import building
from harness.providers.docker.engine import engine_errors
from harness.providers.dockerfiles import (
    REPOSITORY,
    alone,
    base_image,
    context,
    digest,
    from_dockerfile,
    has,
    require_disk_space,
)
from harness.releases import Release
from harness.render import RenderedFile
from harness.rundir import RunDir
from harness.shipped_files import IMAGES

# Base images with additional packages.
EXTENDED = f"{REPOSITORY}-extended"
# The label of an extended image that names its base.
_BASE = "harness.base"
# The label of an image that has the digest of the files that it was built from, except Slurm's.
_FILES = "harness.files"
BOOT = "/usr/local/sbin/boot"
OwnerIds = tuple[Mapping[str, int], Mapping[str, int]]
# Programs that deployment and boot call on every host.
_NEEDED = ("systemctl", "sshd", "python3", "munged", "ip", "nft", "setpriv")
# Seconds in which an image must report what it contains, even on a busy machine.
_ANSWERS_WITHIN = 60
_CHUNK = 2**20
# The programs that start a host.
_ENTRY_POINT = ("boot", "restrict")
# The paths of SPANK plugins, with their sources in C.
Plugins = Sequence[tuple[str, str]]
# What an image's Slurm comes from: Debian's packages of a release, or an origin.
Slurm = Release | Origin


def tag(slurm: Slurm) -> str:
    """Return the image's name, which changes with its sources."""
    if isinstance(slurm, Origin):
        base = origins.base(slurm.base)
        made_of = [
            base,
            building.digest(slurm) if slurm.source else slurm.digest,
            digest(IMAGES, ""),
        ]
        return f"{REPOSITORY}:{slurm.version}-{digest(_dockerfiles(base), repr(made_of))}"
    of_debian = (
        slurm.suite,
        slurm.further_suite,
        slurm.packages,
        slurm.apt_options,
        base_of(slurm).host_packages,
    )
    return f"{REPOSITORY}:{slurm.name}-{digest(IMAGES, repr(of_debian))}"


def on(host: Host) -> Slurm:
    """Return what a host's Slurm comes from, if it has no image of its own."""
    slurm = of(host.origin) if host.origin else releases.get(host.release)
    if isinstance(slurm, Release) and host.apptainer:
        return releases.with_apptainer(slurm)
    return slurm


def of_hosts(hosts: Iterable[Host]) -> list[Slurm]:
    """Return what the Slurm of such hosts comes from, each image once."""
    return [*{tag(slurm): slurm for slurm in map(on, hosts)}.values()]


def of(origin: Origin) -> Slurm:
    """Return what the image of an origin consists of: a Debian with its own Slurm is a release."""
    release = releases.get(origin.release)
    own = not origin.digest and origins.base(origin.base) == origins.base(f"debian:{release.suite}")
    return release if own else origin


def extended_tag(slurm: Slurm, packages: Sequence[str], spank_plugins: Plugins = ()) -> str:
    """Return the name of an image with additional packages and plugins, if there are any."""
    base = tag(slurm)
    if not packages and not spank_plugins:
        return base
    more = f"{base} {sorted({*packages})} {sorted(spank_plugins)}"
    made_of = digest(IMAGES / "extended", more)
    return f"{EXTENDED}:{base.split(':')[1].rpartition('-')[0]}-{made_of}"


def extend(
    client: docker.DockerClient,
    slurm: Slurm,
    packages: Sequence[str],
    say: Callable[[str], None],
    spank_plugins: Plugins = (),
) -> str:
    """Return the name of an image with additional packages and plugins; build it if missing."""
    name = extended_tag(slurm, packages, spank_plugins)
    base = ensure(client, slurm, say)
    if name != base and not has(client, name):
        with alone(f"-{_kind(slurm)}", f"image {name}", say):
            if not has(client, name):
                say(
                    f"image {name}: adding {', '.join([*packages, *dict(spank_plugins)])} to {base}"
                )
                _extend(client, slurm, name, packages, spank_plugins, say)
    return name


def _extend(
    client: docker.DockerClient,
    slurm: Slurm,
    name: str,
    packages: Sequence[str],
    spank_plugins: Plugins,
    say: Callable[[str], None],
) -> None:
    headers, header_files = _headers(client, slurm, say) if spank_plugins else ((), [])
    base = tag(slurm)
    arguments = {
        "BASE": base,
        "NAME": name,
        "PACKAGES": " ".join(packages),
        "HEADERS": " ".join(headers),
        "APT_OPTIONS": apt_options(slurm),
    }
    with context(IMAGES / "extended", {"headers": header_files, "spank": []}) as directory:
        for path, source in spank_plugins:
            file = directory / "spank" / Path(path).with_suffix(".c").relative_to("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(source)
        try:
            from_dockerfile(client, directory, name, arguments, say, {_BASE: base})
        except EngineError as error:
            if ".c:" not in error.message:
                raise
            hint = "a plugin in spank_plugins does not compile with the spank.h of this release"
            raise EngineError(error.message, hint=hint) from error
        finally:
            stages = {"dangling": True, "label": f"harness.stage={name}"}
            with suppress(EngineError), engine_errors("cannot remove a stage of the image"):
                for stage in client.images.list(filters=stages):
                    client.images.remove(str(stage.id))


def _headers(
    client: docker.DockerClient, slurm: Slurm, say: Say
) -> tuple[Sequence[str], list[Path]]:
    """Return the packages with Slurm's headers: those of the base, or files."""
    family = base_of(slurm).family
    if not family.header_packages:
        raise UsageError(
            f"spank_plugins: they cannot be compiled on {base_of(slurm).distribution} yet",
            hint="install them in an image of your own: docs/configuration.md",
        )
    if isinstance(slurm, Release) or not slurm.digest:
        return family.header_packages, []
    directory = _package_directory(client, slurm, say)
    files = [path for path in directory.iterdir() if re.match(family.header_files, path.name)]
    if not files:
        raise UsageError(
            f"spank_plugins: no package in {directory} has Slurm's headers",
            hint="add slurm-smd-dev, or libslurm-dev",
        )
    return (), files


def current_extensions(client: docker.DockerClient) -> set[str]:
    """Return the names of the extended images whose base this version of the harness uses."""
    with engine_errors("cannot list images"):
        extended = client.images.list(name=EXTENDED, filters={"label": _BASE})
    bases = wanted()
    return {name for image in extended if image.labels[_BASE] in bases for name in image.tags}


def ensure(client: docker.DockerClient, slurm: Slurm, say: Callable[[str], None]) -> str:
    """Return the name of an image; build it first if it is missing.

    If several runs need images of one suite at the same time, one builds and the others wait.
    """
    name = tag(slurm)
    if not has(client, name):
        with alone(f"-{_kind(slurm)}", f"image {name}", say):
            if not has(client, name):
                build(client, slurm, say)
    return name


def _kind(slurm: Slurm) -> str:
    """Return what only one run builds at a time."""
    return origins.base(slurm.base).name if isinstance(slurm, Origin) else str(slurm.suite)


def copy(
    image: str, source: docker.DockerClient, target: docker.DockerClient, say: Callable[[str], None]
) -> None:
    """Copy an image from one engine to another that lacks it."""
    if has(target, image):
        return
    say(f"image {image}: copying to the engine on {target.info()['Name']}")
    with engine_errors(f"cannot copy {image}"):
        # By this name, because the image may have others.
        _load(target, source.api.get_image(image))


def current_origins(client: docker.DockerClient) -> set[str]:
    """Return the names of the images of origins that this version of the harness would build."""
    with engine_errors("cannot list images"):
        built_ones = client.images.list(name=REPOSITORY, filters={"label": _FILES})
    return {
        name for image in built_ones if image.labels[_FILES] in _files() for name in image.tags
    } - {tag(releases.get(name)) for name in releases.packaged()}


def _files() -> set[str]:
    """Return the digests of the files that images of this version are built from."""
    return {digest(path.parent, "") for path in IMAGES.glob("**/Dockerfile")}


def wanted() -> set[str]:
    """Return the names of all images that this version of the harness builds and uses."""
    known = [releases.get(name) for name in releases.packaged()]
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
            labels = {
                name: json.load(tar.extractfile(image["Config"]) or io.BytesIO())["config"][
                    "Labels"
                ]
                for image in manifest
                for name in image["RepoTags"]
            }
    except OSError as error:
        raise UsageError(cannot_read(file, error)) from error
    except (tarfile.TarError, LookupError, TypeError, ValueError) as error:
        raise UsageError(f"{file} was not written by `harness images save`: {error}") from error
    names = [*labels]
    fitting = {name for name in names if (labels[name] or {}).get(_FILES) in _files()}
    if others := sorted({*names} - wanted() - fitting):
        raise UsageError(
            f"{file} has {', '.join(others)}, which this version of the harness does not use",
            hint="save the images again with this version: `harness images save`",
        )
    with engine_errors(f"cannot load {file}"), file.open("rb") as tar:
        _load(client, tar)
    return names


def _load(client: docker.DockerClient, tar: Iterable[bytes] | IO[bytes]) -> None:
    """Load images from an archive. An engine that is not quiet answers before it has them all."""
    answers: Iterable[dict[str, str]] = client.api.load_image(tar, quiet=False)  # type: ignore[no-untyped-call]
    for answer in answers:
        if "error" in answer:
            raise ImageLoadError(answer["error"])


def origin_of(client: docker.DockerClient, image: str) -> Origin:
    """Return which Slurm is in a user's own image; EngineError says what the image lacks.

    The image is pulled if the engine does not have it, and its programs are run.
    """
    script = f"""
        for program in {" ".join(_NEEDED)}; do
            command -v $program > /dev/null || echo lacks $program
        done
        [ -e /sbin/init ] || echo lacks systemd
        python3 -I -c 'import ctypes; ctypes.CDLL("libseccomp.so.2")' 2> /dev/null ||
            echo lacks libseccomp
        . /etc/os-release && echo "distribution $ID ${{ID_LIKE:-}}"
        slurmctld -V || slurmd -V || slurmdbd -V
    """
    with engine_errors(f"cannot inspect image {image}"):
        try:
            client.images.get(image)
        except ImageNotFound:
            client.images.pull(*parse_repository_tag(image))
        answer = _output_without_rights(client, image, script)
    lacking = re.findall("^lacks (.*)", answer, re.MULTILINE)
    version = re.search(r"^slurm\S* ((\d+\.\d+)(\.\d+)?)", answer, re.MULTILINE)
    distribution = re.search(r"^distribution (.*)", answer, re.MULTILINE)
    if lacking or not version:
        raise EngineError(
            f"image {image} cannot be a host: it lacks {', '.join(lacking) or 'Slurm'}",
            hint="docs/configuration.md says what an image of your own needs",
        )
    family = origins.family_of(distribution[1].split() if distribution else ())
    return Origin("", version[2], version[1], family=family.name, image=image)


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
        for name in _ENTRY_POINT
    ]


def build(client: docker.DockerClient, slurm: Slurm, say: Callable[[str], None]) -> str:
    """Build the image of a release from Debian's packages, or that of an origin."""
    base = base_of(slurm)
    name, packages = tag(slurm), []
    require_disk_space(client)
    if isinstance(slurm, Release):
        what, more = f"Slurm {slurm.name} from Debian {slurm.suite}", slurm.packages
    elif slurm.digest:
        packages = _package_files(client, slurm, say)
        what = f"Slurm {slurm.version} on {slurm.base}"
        more = base.family.loaded_packages
    else:
        what = f"Slurm {slurm.release} of {slurm.base}"
        sackd = ("sackd",) if releases.get(slurm.release).has_sackd else ()
        more = (*base.family.slurm_packages, *sackd)
    own = base_image(client, base, say)
    say(f"image {name}: installing {what}")
    arguments = {
        "BASE": own,
        "HOST_PACKAGES": " ".join(base.host_packages),
        "PACKAGES": " ".join(more),
        "FURTHER_SUITE": (slurm.further_suite or "") if isinstance(slurm, Release) else "",
        "APT_OPTIONS": apt_options(slurm),
    }
    common = [IMAGES / name for name in (*_ENTRY_POINT, "simulated_clock.c")]
    with context(_dockerfiles(base), {"packages": packages, ".": common}) as directory:
        labels = {_FILES: digest(_dockerfiles(base), "")}
        try:
            from_dockerfile(client, directory, name, arguments, say, labels)
        except EngineError as error:
            if not isinstance(slurm, Origin) or not slurm.packages:
                raise
            hint = (
                f"if the packages were not built on {slurm.base}, add the base they were built on"
            )
            raise EngineError(error.message, hint=hint) from error
    return name


def base_of(slurm: Slurm) -> Base:
    """Return the base of an image; UsageError if Debian has no packages of a release."""
    if isinstance(slurm, Origin):
        return origins.base(slurm.base)
    if not slurm.suite:
        raise UsageError(
            f"Debian has no packages of Slurm {slurm.name}",
            hint=f"it has {', '.join(releases.packaged())}; for others, name a source, packages or "
            "an image of your own: docs/how-to/your-own-slurm.md",
        )
    return origins.base(f"debian:{slurm.suite}")


def _package_files(client: docker.DockerClient, origin: Origin, say: Say) -> list[Path]:
    """Return the files of an origin's packages, built from its source if necessary."""
    paths = origins.package_paths(_package_directory(client, origin, say))
    must_be_for_engine(client, paths)
    return paths


def _package_directory(client: docker.DockerClient, origin: Origin, say: Say) -> Path:
    return building.packages(client, origin, say) if origin.source else Path(origin.packages)


def must_be_for_engine(client: docker.DockerClient, paths: Sequence[Path]) -> None:
    """Raise UsageError if packages were not built for the engine's architecture."""
    machine = str(client.info()["Architecture"])
    if foreign := origins.foreign(paths, machine):
        raise UsageError(
            f"packages not built for {machine}, the engine's architecture: {', '.join(foreign)}",
            hint="name packages that were built for this architecture",
        )


def _dockerfiles(base: Base) -> Path:
    return IMAGES / base.family.dockerfiles


def apt_options(slurm: Slurm) -> str:
    """Return the options with which apt-get installs from a release's suite."""
    options = slurm.apt_options if isinstance(slurm, Release) else base_of(slurm).apt_options
    return " ".join(f"-o {option}" for option in options)


def built(client: docker.DockerClient, repository: str = REPOSITORY) -> list[tuple[str, str, int]]:
    """Return the release, name and size in bytes of every image that the harness has built."""
    with engine_errors("cannot list images"):
        images = client.images.list(name=repository, filters={"label": "harness.image"})
    return sorted(
        (name.split(":")[1].split("-")[0], name, image.attrs["Size"])
        for image in images
        for name in image.tags
    )


@dataclass(frozen=True, slots=True)
class Entry:
    """A file for `archive`; a directory if `content` is None, a symbolic link if `link` is set."""

    path: str
    content: bytes | None
    mode: int = 0o644
    owner: tuple[str, str] = ("root", "root")
    link: str = ""


def archive(entries: Iterable[Entry], owner_ids: OwnerIds | None = None) -> bytes:
    """Return a tar of files.

    tar(1) uses the names of owners; Docker uses their `owner_ids`, by default root's.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for entry in entries:
            info = tarfile.TarInfo(entry.path.lstrip("/"))
            info.mode = entry.mode
            info.uname, info.gname = entry.owner
            if owner_ids:
                info.uid, info.gid = owner_ids[0][info.uname], owner_ids[1][info.gname]
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


def seed(
    files: Sequence[RenderedFile], units: Sequence[str], target: str = "multi-user"
) -> list[Entry]:
    """Return what a host needs before its first boot: its files, and links to enable its units.

    systemd starts the units with the target.
    """
    return [
        *(
            Entry(file.path, file.text.encode(), int(file.mode, 8), (file.owner, file.group))
            for file in files
        ),
        *(enabled(unit, target) for unit in units),
        Entry("/var/lib/slurm-harness/enabled", "".join(f"{unit}\n" for unit in units).encode()),
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


def owner_ids(container: Container) -> OwnerIds:
    """Return the ids of a container's users and groups."""
    return _ids(container, "/etc/passwd"), _ids(container, "/etc/group")


def _ids(container: Container, path: str) -> dict[str, int]:
    """Return the names in a container's passwd or group file, with their ids."""
    stream, _ = container.get_archive(path)
    with tarfile.open(fileobj=io.BytesIO(b"".join(stream))) as tar:
        member = tar.extractfile(Path(path).name)
        lines = member.read().decode().splitlines() if member else []
    return {name: int(number) for name, _, number, *_ in (line.split(":") for line in lines)}
