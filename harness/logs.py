"""What the daemons of a run said: fetch it all, or its last lines."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from harness import options
from harness.errors import HarnessError
from harness.plan import Host, Plan
from harness.ssh import Ssh

_LOGS = "/var/log"
_DIRECTORIES = (options.LOG_DIRECTORY.removeprefix(f"{_LOGS}/"), "munge")


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


def last_lines(ssh: Ssh, plan: Plan, host: Host, daemon: str, lines: int = 15) -> str:
    """Return what a daemon said last: its log file, and what systemd kept of it where it did not get that far."""
    texts = []
    for source in (
        command(plan, host, daemon, lines),
        ["journalctl", "--no-pager", "-o", "cat", "-u", daemon, "-n", "5"],
    ):
        try:
            texts.append(ssh.run(host.name, source, check=False, timeout=20).stdout.strip())
        except HarnessError as error:
            texts.append(str(error))
    return "\n".join(dict.fromkeys(filter(None, texts)))


def collect(ssh: Ssh, hosts: Sequence[str], directory: Path) -> list[str]:
    """Copy the daemons' logs and the journal of every host to DIRECTORY/HOST; return what could not be had."""

    def fetch(host: str) -> str:
        target = directory / host
        target.mkdir(parents=True, exist_ok=True)
        try:
            journal = ssh.run(host, ["journalctl", "--no-pager", "--boot", "--output=short-iso"], timeout=30).stdout
            (target / "journal.log").write_text(journal)
            # tar(1) says 1 of a file that grows meanwhile, as logs do.
            pack = f"tar -C {_LOGS} -cf - {' '.join(_DIRECTORIES)} || [ $? = 1 ]"
            with tempfile.TemporaryFile() as packed:
                subprocess.run(ssh.command(host, [pack]), stdout=packed, stderr=subprocess.PIPE, timeout=60, check=True)
                packed.seek(0)
                subprocess.run(["tar", "-C", target, "-xf", "-"], stdin=packed, capture_output=True, check=True)
        except (HarnessError, subprocess.SubprocessError) as error:
            return f"{host}: {error}"
        return ""

    with ThreadPoolExecutor(8) as pool:
        return [problem for problem in pool.map(fetch, hosts) if problem]


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
