"""What the daemons of a run said: fetch it all, or its last lines."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from threading import Thread

from harness import options
from harness.errors import HarnessError
from harness.plan import Host, Plan
from harness.ssh import Ssh

_LOGS = "/var/log"
# slurm.conf(5), LogTimeFormat: the default, which names no zone; journalctl(1), short-iso.
_DATED = re.compile(r"\[?(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?)([+-]\d\d:?\d\d)?\]? (.*)")
_BAD_NEWS = re.compile(r"\b((?<!no )error|fatal|warning|failed|killed)\b", re.IGNORECASE)
_DIRECTORIES = (options.LOG_DIRECTORY.removeprefix(f"{_LOGS}/"), "munge")


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a log, which a daemon wrote at a time, in seconds since 1970; `source` is HOST/FILE."""

    at: float
    source: str
    text: str


def command(plan: Plan, host: Host, daemon: str, lines: int, *, follow: bool = False) -> list[str]:
    """Return the command that shows a daemon's last lines on its host, from its log file or the journal."""
    paths = log_files(plan, host, daemon)
    if not paths:
        return [
            "journalctl",
            "--no-pager",
            "--output=cat",
            f"--unit={daemon}",
            f"--lines={lines}",
            *["-f"] * follow,
        ]
    return ["tail", f"--lines={lines}", *["--follow=name"] * follow, *paths]


def follow(ssh: Ssh, commands: Mapping[str, tuple[str, list[str]]], say: Callable[[str, str], bool]) -> None:
    """Say each line that commands print on their hosts, with the command's name.

    Ends when all commands have ended, or when `say` returns False.
    """

    def read(name: str, lines: Iterable[str]) -> None:
        for line in lines:
            if not say(name, line.rstrip("\n")):
                for process in processes.values():
                    process.terminate()

    processes = {
        name: subprocess.Popen(
            ssh.command(host, command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        for name, (host, command) in commands.items()
    }
    readers = [Thread(target=read, args=(name, process.stdout), daemon=True) for name, process in processes.items()]
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
    """Return what a daemon said last: its log file, and what systemd kept of it where it did not get that far."""
    texts = []
    for source in (
        command(plan, host, daemon, lines),
        ["journalctl", "--no-pager", "-o", "cat", "-u", daemon, "-n", "5"],
    ):
        try:
            texts.append(ssh.run(host.name, source, check=False, timeout=60).stdout.strip())
        except HarnessError as error:
            texts.append(str(error))
    return "\n".join(dict.fromkeys(filter(None, texts)))


def collect(ssh: Ssh, hosts: Sequence[str], directory: Path) -> list[str]:
    """Copy the daemons' logs and the journal of every host to DIRECTORY/HOST; return what could not be had."""

    def fetch(host: str) -> str:
        target = directory / host
        target.mkdir(parents=True, exist_ok=True)
        try:
            journal = ssh.run(host, ["journalctl", "--no-pager", "--boot", "--output=short-iso"], timeout=120).stdout
            (target / "journal.log").write_text(journal)
            # tar(1) says 1 of a file that grows meanwhile, as logs do.
            pack = f"tar -C {_LOGS} -cf - {' '.join(_DIRECTORIES)} || [ $? = 1 ]"
            with tempfile.TemporaryFile() as packed:
                command = ssh.command(host, [pack])
                subprocess.run(command, stdout=packed, stderr=subprocess.PIPE, timeout=120, check=True)
                packed.seek(0)
                subprocess.run(["tar", "-C", target, "-xf", "-"], stdin=packed, capture_output=True, check=True)
        except (HarnessError, subprocess.SubprocessError) as error:
            return f"{host}: {error}"
        return ""

    with ThreadPoolExecutor(8) as pool:
        return [problem for problem in pool.map(fetch, hosts) if problem]


def collected(directory: Path) -> list[Line]:
    """Return what Slurm's daemons wrote to the logs that `collect` fetched, and the journal's bad news of others."""
    found = []
    for journal in filter(Path.is_file, sorted(directory.glob("*/journal.log"))):
        said = [*_lines(journal, UTC)]
        zone = said[0][0].tzinfo if said else UTC  # Slurm's own lines name none
        for path in (journal, *filter(Path.is_file, sorted(journal.parent.glob("slurm/*.log")))):
            source = f"{journal.parent.name}/{path.name}"
            for at, text in said if path == journal else _lines(path, zone):
                # slurmctld, slurmd and slurmdbd say in the journal what they say in their own files.
                if path != journal or (_BAD_NEWS.search(text) and not re.match(r"\S+ slurm(ctld|d|dbd)\[", text)):
                    found.append(Line(at.timestamp(), source, text))
    return sorted(found, key=lambda line: line.at)


def excerpt(lines: Sequence[Line], begin: float, end: float, message: str, most: int = 20) -> list[Line]:
    """Return the last `most` lines that are bad news between two times, or about a job that a message names."""
    jobs = set(re.findall(r"\bjobs?\b\D{0,3}(\d+)", message, re.IGNORECASE))
    about = re.compile(rf"\b(?:JobId=|job )(?:{'|'.join(jobs)})\b" if jobs else r"(?!)")
    news = {line for line in lines if begin <= line.at <= end and _BAD_NEWS.search(line.text)}
    of_jobs = {line for line in lines if about.search(line.text)}
    return sorted(news | of_jobs, key=lambda line: line.at)[-most:]


def log_files(plan: Plan, host: Host, daemon: str) -> list[str]:
    """Return where a daemon logs to: a file for each node whose slurmd it is; none where only the journal has it."""
    if daemon == "munge":
        return ["/var/log/munge/munged.log"]
    if daemon == "slurmdbd":
        path = options.get(options.slurmdbd_conf(plan.scenario), "LogFile")
        return [path] if path else []
    if daemon in {"slurmctld", "slurmd"} and host.cluster:
        conf = options.slurm_conf(plan.scenario, host.cluster, plan.offers)
        path = options.get(conf, "SlurmctldLogFile" if daemon == "slurmctld" else "SlurmdLogFile") or ""
        names = host.nodes if daemon == "slurmd" else [host.name]
        return [path.replace("%h", host.name).replace("%n", name) for name in names if path]
    return []


def dated(lines: Iterable[str], zone: str) -> Iterator[tuple[float, str]]:
    """Yield those of a log's lines that begin with a time, each with it; `zone` is meant where they name none."""
    for match in filter(None, map(_DATED.match, lines)):
        with suppress(ValueError):
            yield datetime.fromisoformat(match[1] + (match[2] or zone)).timestamp(), match[3]


def _lines(path: Path, zone: tzinfo | None) -> Iterator[tuple[datetime, str]]:
    """Yield the dated lines of a log; `zone` is meant where they name none."""
    with path.open(errors="replace") as file:
        for dated in filter(None, map(_DATED.match, file)):
            with suppress(ValueError, OverflowError):  # what a user made a daemon say may look like a date
                at = datetime.fromisoformat(dated[1] + (dated[2] or ""))
                at = at if at.tzinfo else at.replace(tzinfo=zone)
                at.astimezone(UTC)
                yield at, dated[3]
