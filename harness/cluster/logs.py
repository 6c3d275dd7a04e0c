"""The logs of a run's daemons: fetch all of them, or only the last lines."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread
from typing import IO

from harness import slurm_options, transfer
from harness.errors import CannotVerify, HarnessError
from harness.plan import Host, Plan
from harness.ssh import Ssh

_LOGS = "/var/log"
# slurm.conf(5), LogTimeFormat: iso8601, which has no time zone, and rfc5424; journalctl(1),
# short-iso.
_DATED = re.compile(r"\[?(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?)([+-]\d\d:?\d\d)?\]? (.*)")
_PROBLEM = re.compile(r"\b((?<!no )error|fatal|warning|failed|killed)\b", re.IGNORECASE)
_DIRECTORIES = (slurm_options.LOG_DIRECTORY.removeprefix(f"{_LOGS}/"), "munge")
# Seconds to copy a host's journal, and to copy its files.
_PATIENCE = 120
# Limits on what is copied from a host.
_LIMITS = transfer.Limits(total=2**30, file=2**28, members=10_000)
# Longest line that `follow` reads, in characters.
_LONGEST = 2**16


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of a log. `at` is in seconds since 1970, `source` is HOST/FILE."""

    at: float
    source: str
    text: str


def command(plan: Plan, host: Host, daemon: str, lines: int, *, follow: bool = False) -> list[str]:
    """Return the command that prints a daemon's last lines, from its log file or the journal."""
    paths = log_files(plan, host, daemon)
    if not paths:
        return [
            "journalctl",
            "--no-pager",
            "--output=cat",
            f"--lines={lines}",
            *["-f"] * follow,
            *_journal_matches(daemon),
        ]
    return ["tail", f"--lines={lines}", *["--follow=name"] * follow, *paths]


def follow(
    ssh: Ssh, commands: Mapping[str, tuple[str, list[str]]], say: Callable[[str, str], bool]
) -> None:
    """Call `say` with a command's name and each line that it prints on its host.

    `commands` maps a name to a host and a command. Return when all commands have ended, or when
    `say` returns False.
    """

    def read(name: str, printed: IO[str]) -> None:
        while line := printed.readline(_LONGEST):
            if not say(name, line.rstrip("\n")):
                for process in processes.values():
                    process.terminate()

    processes = {
        name: subprocess.Popen(
            ssh.command(host, [shlex.quote(word) for word in command]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        for name, (host, command) in commands.items()
    }
    readers = [
        Thread(target=read, args=(name, process.stdout), daemon=True)
        for name, process in processes.items()
    ]
    try:
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
    finally:
        for process in processes.values():
            process.terminate()
        for process, reader in zip(processes.values(), readers, strict=True):
            process.wait()
            if reader.is_alive():
                reader.join()
            if process.stdout:
                process.stdout.close()


def last_lines(ssh: Ssh, plan: Plan, host: Host, daemon: str, lines: int = 15) -> str:
    """Return the end of a daemon's log, and of its journal in case it failed before logging."""
    texts = []
    for source in (
        command(plan, host, daemon, lines),
        ["journalctl", "--no-pager", "--output=cat", "--lines=5", *_journal_matches(daemon)],
    ):
        try:
            texts.append(ssh.run(host.name, source, check=False, timeout=60).stdout.strip())
        except HarnessError as error:
            texts.append(str(error))
    return "\n".join(dict.fromkeys(filter(None, texts)))


def _journal_matches(name: str) -> list[str]:
    """Return the arguments of journalctl that match a daemon's lines, and systemd's about its unit.

    journald does not know the unit of a message that it receives when the daemon has ended, as a
    fatal error may be on a busy host: `--unit` would miss it.
    """
    unit = f"{name}.service"
    return [f"_SYSTEMD_UNIT={unit}", "+", f"UNIT={unit}", "+", f"SYSLOG_IDENTIFIER={name}"]


def collect(ssh: Ssh, hosts: Sequence[str], directory: Path) -> list[str]:
    """Copy the daemons' logs and the journal of every host to DIRECTORY/HOST.

    Return what could not be copied. Hosts are not trusted (see transfer.unpack): at most 1 GiB in
    10,000 files is copied from each, and at most 256 MiB of one file.
    """

    def fetch(host: str) -> list[str]:
        target = directory / host
        target.mkdir(parents=True, exist_ok=True)
        notes: list[str] = []
        for copy in (_copy_journal, _copy_files):
            try:
                notes += copy(ssh, host, target)
            except HarnessError as error:
                notes.append(str(error))
        return [f"{host}: {note}" for note in notes]

    with ThreadPoolExecutor(8) as pool:
        return [problem for problems in pool.map(fetch, hosts) for problem in problems]


def _copy_journal(ssh: Ssh, host: str, directory: Path) -> list[str]:
    command = ["journalctl", "--no-pager", "--boot", "--output=short-iso"]
    with (
        ssh.printed(host, command, _PATIENCE) as printed,
        (directory / "journal.log").open("wb") as file,
    ):
        if not transfer.copy(printed, file, _LIMITS.file):
            raise CannotVerify(
                f"the journal has more than {_LIMITS.file >> 20} MiB; the rest was not copied"
            )
    return []


def _copy_files(ssh: Ssh, host: str, directory: Path) -> list[str]:
    # tar(1) exits with 1 if a file grows while it is read, as logs do.
    pack = f"tar -C {_LOGS} -cf - {' '.join(_DIRECTORIES)} || [ $? = 1 ]"
    with ssh.printed(host, ["sh", "-c", pack], _PATIENCE) as packed:
        return transfer.unpack(packed, directory, _LIMITS)


def collected(directory: Path) -> list[LogLine]:
    """Return the lines of the copied Slurm logs, and the problems in the rest of the journal."""
    lines = []
    for journal in filter(Path.is_file, sorted(directory.glob("*/journal.log"))):
        with journal.open(errors="replace") as file:  # Slurm's own lines have no time zone
            zone = next(
                (match[2] for match in map(_DATED.match, file) if match and match[2]), "+0000"
            )
        for path in (journal, *filter(Path.is_file, sorted(journal.parent.glob("slurm/*.log")))):
            source = f"{journal.parent.name}/{path.name}"
            with path.open(errors="replace") as file:
                for at, text in dated(file, zone):
                    # slurmctld, slurmd and slurmdbd write the same lines to the journal as to their
                    # own files.
                    if path != journal or (
                        _PROBLEM.search(text) and not re.match(r"\S+ slurm(ctld|d|dbd)\[", text)
                    ):
                        lines.append(LogLine(at, source, text))
    return sorted(lines, key=lambda line: line.at)


def excerpt(
    lines: Sequence[LogLine], begin: float, end: float, message: str, most: int = 20
) -> list[LogLine]:
    """Return the last `most` problems between two times, and lines about jobs in a message."""
    jobs = set(re.findall(r"\bjobs?\b\D{0,3}(\d+)", message, re.IGNORECASE))
    names_job = re.compile(rf"\b(?:JobId=|job )(?:{'|'.join(jobs)})\b" if jobs else r"(?!)")
    problems = {line for line in lines if begin <= line.at <= end and _PROBLEM.search(line.text)}
    of_jobs = {line for line in lines if names_job.search(line.text)}
    return sorted(problems | of_jobs, key=lambda line: line.at)[-most:]


def log_files(plan: Plan, host: Host, daemon: str) -> list[str]:
    """Return a daemon's log files on a host, one for each node of a slurmd.

    The list is empty if the daemon logs only to the journal.
    """
    if daemon == "munge":
        return ["/var/log/munge/munged.log"]
    if daemon == "slurmdbd":
        path = slurm_options.get(slurm_options.slurmdbd_conf(plan.scenario), "LogFile")
        return [path] if path else []
    if daemon in {"slurmctld", "slurmd"} and host.cluster:
        conf = plan.slurm_conf(host.cluster)
        path = (
            slurm_options.get(
                conf, "SlurmctldLogFile" if daemon == "slurmctld" else "SlurmdLogFile"
            )
            or ""
        )
        names = host.nodes if daemon == "slurmd" else [host.name]
        return [path.replace("%h", host.name).replace("%n", name) for name in names if path]
    return []


def matching(
    ssh: Ssh, host: str, paths: Sequence[str], unit: str, pattern: str
) -> tuple[str, list[str]]:
    """Return a host's time zone, and the lines of a log that match a pattern for `grep -E`."""
    zone, *lines = ssh.run(host, matching_command(paths, unit, pattern)).stdout.splitlines()
    return zone, lines


def matching_command(paths: Sequence[str], unit: str, pattern: str) -> list[str]:
    """Return the command that prints a host's time zone, and the matching lines of a log.

    Rotated logs are included, in any order. Without paths, the log is the journal of the unit.
    """
    options = ["--quiet", "--no-pager", "--output=short-iso-precise"]
    files = " ".join(f"{shlex.quote(path)}*" for path in paths)
    source = (
        f"zcat --force {files}"
        if files
        else shlex.join(["journalctl", *options, *_journal_matches(unit)])
    )
    script = f"date +%z; {source} | grep --text --extended-regexp '{pattern}' || true"
    return ["sh", "-c", script]


def dated(lines: Iterable[str], zone: str) -> Iterator[tuple[float, str]]:
    """Yield the time, in seconds since 1970, and text of each line that begins with a time.

    `zone`, such as +0100, applies to times without a time zone.
    """
    for match in filter(None, map(_DATED.match, lines)):
        with suppress(ValueError, OverflowError):  # text of a user in a log may look like a time
            yield (
                datetime.fromisoformat(match[1] + (match[2] or zone)).astimezone(UTC).timestamp(),
                match[3],
            )
