"""Find the scripts of a site that failed, with their exit codes and the end of their output.

Slurm reports them in the daemons' logs, differently in each release: run_command() and
_run_subpath_command() in its source, and up to 20.11 _run_one_script(), which leaves the output to
the journal. Until 24.05, the log does not say which of several scripts failed.
"""

from __future__ import annotations

import fnmatch
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from harness import slurm_options
from harness.cluster import logs
from harness.plan import Host, Plan
from harness.ssh import Ssh

# How many lines of each log are searched, and how many lines of a script's output are shown.
_SEARCHED, _SHOWN = 5000, 6
# Seconds in which a host must answer.
_PATIENCE = 45
_DATE = re.compile(r"\[?(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)[^\]\s]*\]? (?:\[[\d.a-z]+\] )?(.*)")
# Prints the lines about scripts, each with the lines without a date that follow it.
_FILTER = (
    r"/^\[?[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]T/"
    r"{ on = /:script=\// || /error: .*(failed|killed|run:|exit)/ } on"
)
_PRINTED = "printed: "
# A line of the journal (journalctl(1), short-iso-precise). It may belong to a script that ended at
# most this much later; other scripts use the same journal.
_JOURNAL = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\S* \S+ [^ :]+: (.*)")
_BEFORE_ITS_END = timedelta(seconds=2)
_RAN = re.compile(r"SCRIPT: run_command:script=(/\S+), resp:$")
_FAILED = re.compile(
    r"error: (\w+) (?:(?:failed: rc:|killed by signal |didn't run: status:)(\d+))"
    r" (?:output|reason):(.*)"
)
# 20.11: the status of wait(2), and the script's path.
_EXITED = re.compile(r"error: (/\S+): exited with status 0x([0-9a-f]{2})[0-9a-f]{2}$")
_SLURMCTLD_FAILED = re.compile(r"error: .*JobId=\d+ (\w+) exit status (\d+):\d+$")
_TASK_FAILED = re.compile(r"error: (Task(?:Prolog|Epilog)) failed status=(\d+)")


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed script (or several, of which one failed), its kind in Slurm, and its output."""

    scripts: tuple[str, ...]
    kind: str
    exit_code: int
    output: tuple[str, ...]

    def __str__(self) -> str:
        names = (
            self.scripts[0]
            if len(self.scripts) == 1
            else f"one of {', '.join(self.scripts)}"
            if self.scripts
            else "a program"
        )
        lines = [line for line in self.output if line.strip()][-_SHOWN:]
        printed = f"; the end of its output: {' | '.join(lines)}" if lines else ""
        return f"{names} ({self.kind}) failed with exit code {self.exit_code}{printed}"


def of_host(ssh: Ssh, plan: Plan, host: Host) -> list[str]:
    """Return a line for the last failure of each script that failed on a host."""
    cluster = plan.scenario.clusters[host.cluster] if host.cluster else None
    if not (cluster and host.cluster and cluster.scripts):
        return []
    daemons = [*({"slurmctld"} & {*host.daemons}), *(["slurmd"] if host.nodes else [])]
    paths = [path for daemon in daemons for path in logs.log_files(plan, host, daemon)]
    searches = [
        f"tail -n {_SEARCHED} {shlex.quote(path)} | awk {shlex.quote(_FILTER)}" for path in paths
    ]
    printed = (
        f"journalctl --quiet --no-pager --output=short-iso-precise --lines={_SEARCHED}"
        f" _TRANSPORT=stdout --unit=slurmd --unit='slurmd@*' | sed 's/^/{_PRINTED}/'"
    )
    answer = ssh.run(
        host.name, ["sh", "-c", "; ".join([*searches, printed])], timeout=_PATIENCE, check=False
    )
    texts = {path: script.text for path, script in cluster.scripts.items()}
    failures = read(answer.stdout.splitlines(), plan.slurm_conf(host.cluster), texts)
    last = {(failure.scripts, failure.kind, failure.exit_code): failure for failure in failures}
    return [f"{host.name}: {failure}" for failure in last.values()]


def read(
    lines: Sequence[str], conf: Mapping[str, str], scripts: Mapping[str, str]
) -> Iterator[Failure]:
    """Yield the failures in lines of logs.

    `conf` are the options of slurm.conf, `scripts` the texts of the cluster's scripts by path.
    """
    journal = [match.groups() for line in lines if (match := _JOURNAL.match(line, len(_PRINTED)))]
    ran, printed = "", tuple[str, ...]()
    for at, (first, *rest) in _entries(line for line in lines if not line.startswith(_PRINTED)):
        if match := _RAN.search(first):
            ran, printed = match[1], tuple(rest)
        elif match := _EXITED.search(first):
            output = tuple(_printed_until(at, journal))
            yield Failure((match[1],), _kind(match[1], conf), int(match[2], 16), output)
        elif match := _FAILED.search(first):
            output = (match[3], *rest)
            candidates = _candidates(match[1], conf, scripts, output)
            yield Failure(
                (ran,) if ran in candidates and printed == output else candidates,
                match[1],
                int(match[2]),
                output,
            )
        elif match := _SLURMCTLD_FAILED.search(first):
            kind = f"{re.sub('_?slurmctld', '', match[1], flags=re.IGNORECASE)}_slurmctld".lower()
            candidates = _candidates(kind, conf, scripts, printed)
            yield Failure(candidates, kind, int(match[2]), printed if ran in candidates else ())
        elif match := _TASK_FAILED.search(first):
            status = int(match[2])
            code = status >> 8 if status > 255 else status
            yield Failure(_candidates(match[1], conf, scripts, ()), match[1], code, ())


def _printed_until(end: str, journal: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield what scripts printed shortly before a time, without what the daemons print."""
    last = datetime.fromisoformat(end)
    for at, text in journal:
        if last - _BEFORE_ITS_END <= datetime.fromisoformat(at) <= last and text[:5] != "slurm":
            yield text


def _entries(lines: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the time and text of each entry of a log; a text may have several lines."""
    at, entry = "", list[str]()
    for line in lines:
        if match := _DATE.match(line):
            if entry:
                yield at, entry
            at, entry = match[1], [match[2]]
        elif entry:
            entry.append(line)
    if entry:
        yield at, entry


def _option(conf: Mapping[str, str], kind: str) -> list[str]:
    """Return the paths and patterns of an option; health_check is HealthCheckProgram."""
    name = kind.replace("_", "")
    value = slurm_options.get(conf, name) or slurm_options.get(conf, f"{name}Program")
    return re.split(r"[\n,]", value) if value else []


def _candidates(
    kind: str, conf: Mapping[str, str], scripts: Mapping[str, str], output: Sequence[str]
) -> tuple[str, ...]:
    """Return the scripts of an option; if possible, only those that can have printed the output."""
    patterns = _option(conf, kind)
    named = [
        path for path in scripts if any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)
    ]
    last = next((line.strip() for line in reversed(output) if line.strip()), "")
    printing = [path for path in named if last and (last in scripts[path] or path in last)]
    return tuple(printing or named or patterns)


def _kind(script: str, conf: Mapping[str, str]) -> str:
    """Return the first option that names a script."""
    return next(
        (
            option
            for option in ("Prolog", "Epilog", "HealthCheckProgram")
            if any(fnmatch.fnmatchcase(script, pattern) for pattern in _option(conf, option))
        ),
        "script",
    )
