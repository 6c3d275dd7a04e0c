"""Run a release's real daemons on configurations, to compare with `harness check`.

Each case has its own namespaces, file system and network, which contain everything that the
configuration names: users, directories, programs, hosts, munge and, if needed, an accounting
database. So only the configuration decides. `python3 tests/reference/reference.py RELEASE
DIRECTORY...` prints the verdicts on directories as JSON.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import uuid4

import docker
from docker.models.containers import Container

from harness import origins, releases
from harness.providers import images
from harness.slurmconf.check import Finding, check_path

_HERE = Path(__file__).parent
# The Slurm to test instead of Debian's packages, as `--release` takes it: see `make test-source`.
SOURCE = os.environ.get("HARNESS_SOURCE", "")
ORIGIN = origins.resolve(origins.parse(SOURCE).under(Path())) if SOURCE else None
MAIN_FILES = {"slurmctld": "slurm.conf", "slurmdbd": "slurmdbd.conf", "slurmd": "slurm.conf"}

# What Debian packages apart from slurm-wlm-basic-plugins, and the library that mpi/pmix only
# recommends.
_SINCE_22_05 = tuple(
    f"slurm-wlm-{name}"
    for name in (
        "elasticsearch-plugin",
        "hdf5-plugin",
        "influxdb-plugin",
        "ipmi-plugins",
        "jwt-plugin",
    )
)
_PMIX = "libpmix2*"
_PACKAGES = {
    "20.11": ("libpmix2",),
    "22.05": (*_SINCE_22_05, "slurm-wlm-rrd-plugin", "libpmix2"),
    "24.11": (*_SINCE_22_05, "slurm-wlm-kafka-plugin", "libpmix2t64"),
    "26.05": (*_SINCE_22_05, "slurm-wlm-kafka-plugin"),
}
# What a release's source holds and Debian does not package: that the daemon lacks it is not the
# configuration's fault.
_NOWHERE = {"gpu/nvml", "gpu/rsmi", "mpi/pmix_v2", "mpi/pmix_v3"}
# What a build from the source lacks besides: its libraries are not among `build_packages`.
_NOT_BUILT = _NOWHERE | {"jobcomp/kafka"}
_NOT_PACKAGED = {
    "20.11": _NOWHERE
    | {
        "acct_gather_energy/rsmi",
        "acct_gather_interconnect/ofed",
        "job_container/tmpfs",
        "mpi/pmix_v1",
    }
    | {"proctrack/cray_aries"},
    "22.05": _NOWHERE
    | {
        "acct_gather_interconnect/ofed",
        "gpu/oneapi",
        "mpi/pmix_v5",
        "proctrack/cray_aries",
        "switch/hpe_slingshot",
    },
    "24.11": _NOWHERE
    | {
        "acct_gather_interconnect/ofed",
        "gpu/oneapi",
        "mpi/pmix_v4",
        "switch/hpe_slingshot",
        "tls/s2n",
    },
    "26.05": _NOWHERE
    | {"mpi/pmix", "mpi/pmix_v4", "mpi/pmix_v5", "mpi/pmix_v6", "switch/hpe_slingshot", "tls/s2n"},
}


@dataclass(frozen=True, slots=True)
class Case:
    """A configuration for a daemon to reference.

    `files` are relative to /etc/slurm and decoded as Latin-1, so that any bytes survive; `hostname`
    is the host the daemon runs on, by default the first to which the configuration gives this role.
    For slurmd, that is the first node that is not CLOUD or FUTURE. The container has no cgroups, so
    slurmd needs another ProctrackType than proctrack/cgroup, which is the default. `shows`: the
    verdict has what a slurmctld that starts prints of its configuration.
    """

    name: str
    files: dict[str, str]
    daemon: str = "slurmctld"
    hostname: str | None = None
    shows: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a daemon made of a configuration.

    `started` is None where the rig itself failed: see `rig`, which is empty otherwise. A daemon
    that waits in vain for a file or for slurmdbd neither starts nor ends: it counts as a refusal
    without `exit_code`. `timed_out` means that it neither started nor refused within 90 s, or more
    on a busy machine. `fatal` is the first fatal message, or else the last problem; `problems` are
    all fatal, error and warning lines; `plugins_not_packaged` are plugins they name that Debian
    does not package. `config`, `node` and `partition` are the output of `scontrol show`, one node
    or partition per line, if the case shows it; `metrics` are the HTTP statuses of a request for
    metrics without a token, and of one with root's token.
    """

    started: bool | None
    seconds: float
    exit_code: int | None = None
    timed_out: bool = False
    fatal: str | None = None
    problems: tuple[str, ...] = ()
    plugins_not_packaged: tuple[str, ...] = ()
    config: str = ""
    node: str = ""
    partition: str = ""
    metrics: tuple[int, ...] = ()
    log_tail: str = ""
    rig: str = ""


def read(directory: Path) -> Iterator[Case]:
    """Yield the cases of a directory of configuration files: slurmctld's and slurmdbd's."""
    paths = [path for path in sorted(directory.rglob("*")) if path.is_file()]
    files = {str(path.relative_to(directory)): path.read_text("latin-1") for path in paths}
    for daemon in ("slurmctld", "slurmdbd"):
        if MAIN_FILES[daemon] in files:
            yield Case(directory.name, files, daemon)


def corpus(directory: Path) -> list[Case]:
    """Return the cases of a directory of configuration directories.

    A file with slurm and .conf in its name counts as slurm.conf, if that is missing.
    """
    found = []
    for path in sorted(path for path in directory.iterdir() if path.is_dir()):
        cases = list(read(path))
        found += cases
        if not any(case.daemon == "slurmctld" for case in cases):
            names = [one.name for one in path.glob("*slurm*.conf*") if "slurmdbd" not in one.name]
            assert cases or len(names) == 1, f"{path} has no slurm.conf"
            files = {one.name: one.read_text("latin-1") for one in path.iterdir() if one.is_file()}
            found += [Case(path.name, {**files, "slurm.conf": files[name]}) for name in names[:1]]
    return found


def write(case: Case, directory: Path) -> None:
    """Write the files of a case to a directory."""
    for name, text in case.files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "latin-1")


def findings(case: Case, release: str, directory: Path) -> list[Finding]:
    """Write a case to a directory, and return what check finds there for the case's daemon."""
    write(case, directory)
    found = check_path(directory, releases.get(release))
    return [finding for finding in found if case.daemon in finding.daemons]


def verdicts(release: str, cases: Iterable[Case]) -> Iterator[tuple[Case, Verdict]]:
    """Yield each case with its verdict, in order; all run in one container, several at a time."""
    cases = list(cases)
    lines = _answers(release, "run", [asdict(case) for case in cases])
    yield from zip(cases, (_verdict(release, line) for line in lines), strict=True)


def tested() -> tuple[str, ...]:
    """Return the releases to test: the version of SOURCE, or all that Debian packages."""
    return (ORIGIN.version,) if ORIGIN else releases.packaged()


def hostnames(release: str, hostlists: Iterable[str]) -> Iterator[tuple[str, ...] | None]:
    """Yield what `scontrol show hostnames` makes of each hostlist; None if it refuses it."""
    for line in _answers(release, "names", list(hostlists)):
        names = json.loads(line)
        yield None if names is None else tuple(names)


def _answers(release: str, command: str, questions: list[Any]) -> Iterator[bytes]:
    """Yield the line that a reference container prints for each question."""
    with closing(docker.from_env(timeout=300)) as client:
        yield from _lines_of(client, release, command, questions)


def _lines_of(
    client: docker.DockerClient, release: str, command: str, questions: list[Any]
) -> Iterator[bytes]:
    container = client.containers.create(
        _image(client, release),
        [command, "/questions.json"],
        name=f"slurm-harness-reference-{uuid4().hex[:8]}",
        network_mode="none",
        # For the namespaces of each case, and to see which process has a socket.
        cap_add=["SYS_ADMIN", "NET_ADMIN", "SYS_PTRACE"],
        security_opt=["apparmor=unconfined"],
        tmpfs={"/reference": "exec,mode=755,size=4g"},
        init=True,
    )
    try:
        container.put_archive("/", _tar({"questions.json": json.dumps(questions).encode()}))
        container.start()
        lines = _printed(container)
        for _ in questions:
            line = next(lines, None)
            if line is None:
                raise RuntimeError(_end_of(container, release))
            yield line
        for line in lines:  # to its end, or the connection stays open
            raise RuntimeError(
                f"the reference container of {release} printed an unexpected line: {line!r}"
            )
    finally:
        container.remove(force=True)


def _printed(container: Container) -> Iterator[bytes]:
    """Yield the lines that a container prints until it ends.

    An engine may stop following a log before that, if it reads a line that is not all there yet.
    """
    seen, running = 0, True
    while running:
        container.reload()
        running = container.status == "running"
        log = container.logs(stream=True, follow=True, stderr=False)
        for line in islice(_lines(log), seen, None):
            seen += 1
            yield line


def _end_of(container: Container, release: str) -> str:
    """Say how a container ended that has not answered everything."""
    container.reload()
    state = container.attrs["State"]
    return (
        f"the reference container of {release} says no more: it is {state['Status']},"
        f" exit code {state['ExitCode']}{', out of memory' if state['OOMKilled'] else ''}:"
        f" {container.logs(stdout=False).decode()}"
    )


def _verdict(release: str, line: bytes) -> Verdict:
    verdict = json.loads(line)
    problems = tuple(verdict.pop("problems", ()))
    metrics = tuple(verdict.pop("metrics", ()))
    said = {word.strip("':,") for problem in problems for word in problem.split()}
    return Verdict(
        **verdict,
        problems=problems,
        metrics=metrics,
        plugins_not_packaged=tuple(sorted(_NOT_PACKAGED.get(release, _NOT_BUILT) & said)),
    )


def _image(client: docker.DockerClient, release: str) -> str:
    """Return the reference image of a release; build it unless one with the same content exists."""
    base = images.ensure(client, ORIGIN or releases.get(release), print)
    sources = [_HERE / "Dockerfile", *sorted((_HERE / "inside").glob("*.py"))]
    files = {str(path.relative_to(_HERE)): path.read_bytes() for path in sources}
    packages = (_PMIX,) if ORIGIN else _PACKAGES[release]
    arguments = {"BASE": base, "PACKAGES": " ".join(packages)}
    content = (files, arguments, client.images.get(base).id)
    digest = hashlib.sha256(repr(content).encode()).hexdigest()[:12]
    name = f"slurm-harness-reference:{release}-{digest}"
    if not client.images.list(name):
        client.images.build(
            fileobj=io.BytesIO(_tar(files)),
            custom_context=True,
            tag=name,
            buildargs=arguments,
            network_mode="host",
            rm=True,
            forcerm=True,
        )
    return name


def _tar(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines


def main(release: str, directories: list[str]) -> None:
    """Print the verdicts on directories as JSON."""
    cases = [replace(case, shows=True) for name in directories for case in read(Path(name))]
    rows = [
        {"directory": case.name, "daemon": case.daemon, **asdict(verdict)}
        for case, verdict in verdicts(release, cases)
    ]
    json.dump(rows, sys.stdout, indent=1)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
