"""What happened to a job and when, from the daemons' logs and the programs around its tasks.

The program `job-events` of a scenario (see docs/job-start.md) writes to its host's journal, and so
can the job; the time and uid of these entries come from the kernel. The patterns match the daemons'
log lines in every release since 20.11.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import inf

from harness import slurm_options
from harness.cluster import logs
from harness.cluster.slurm import JobKey, Record, job_key
from harness.plan import Plan
from harness.scenario import Cluster
from harness.ssh import Ssh

PROGRAM = "job-events"
# A SPANK plugin that writes to the journal as well; it also does so before a job has an id.
_PLUGIN = "job_events.so"
# What the entries of that plugin, and of cli_filter.lua, begin with.
PLUGINS = ("SPANK ", "cli_filter.lua ")
# Slurm's names for its programs in SLURM_SCRIPT_CONTEXT, and in slurm.conf.
OPTION_OF = {
    "prolog_slurmctld": "PrologSlurmctld",
    "prolog_slurmd": "Prolog",
    "prolog_task": "TaskProlog",
    "epilog_task": "TaskEpilog",
    "epilog_slurmd": "Epilog",
    "epilog_slurmctld": "EpilogSlurmctld",
}
_LINES = {
    "submitted": r"_slurm_rpc_submit_batch_job: JobId=(\d+)",
    "allocated": r"sched: (?:_slurm_rpc_allocate_resources|Allocate) JobId=(\d+) NodeList=\w"
    r"|(?:[\w/]+: )+Started JobId=(\d+) in ",
    "batch launched": r"Launching batch (?:job |JobId=)(\d+) ",
    "step launched": r"launch task StepId=(\d+)\.\d+ request ",
    # The last line before slurmctld makes the nodes run Epilog.
    "completed": r"_job_complete: JobId=(\d+) W",
    "freed": r"_slurm_rpc_epilog_complete: JobId=(\d+) Node=",
}
# What slurmctld logs when a job starts or ends; array tasks and components of heterogeneous jobs
# have their own id in brackets.
_RAN = r"(allocate_resources|Allocate|Started|_job_complete:) JobId=[0-9]+"
_RAN_LINE = re.compile(
    rf"{_RAN.replace('[0-9]+', '')}(?P<id>\d+)(?:[_+]\d+\((?P<raw>\d+)\))?(?! NodeList=\(null)"
)
# Seconds by which a record's times and the log's may differ on a busy machine.
_TOLERANCE = 10
_NODE = re.compile(r" Node=(\S+)")
# Daemons truncate their times to milliseconds. A line counts as logged at the end of its
# millisecond: an event right before the line may be that close to it, but an event that the daemon
# triggers is never recorded so soon after the line.
_CUT_OFF = 0.000999


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a job. `time` is in seconds since 1970.

    `uid` is the user who recorded it, None for a daemon's log. `host` is where it happened; if
    slurmctld logs it about a node, that is the node's host.
    """

    time: float
    host: str
    what: str
    uid: int | None = None


def has_plugins(cluster: Cluster) -> bool:
    """Return whether the plugins of a cluster, and its Lua scripts, report their calls as well."""
    return _PLUGIN in cluster.files.get("plugstack.conf", "")


def collect(ssh: Ssh, plan: Plan, cluster: str, job_id: int) -> list[Event]:
    """Return what happened to a job on the hosts of its cluster, in order.

    Hosts are read in parallel: an event on a host that is read late may be returned although an
    earlier event, on a host that was read before, is missing.
    """
    # Without --sync, a journal may lack what was sent to it a moment ago.
    journal = (
        "journalctl --sync; "
        f"journalctl --quiet --no-pager --output=json --identifier={PROGRAM} --boot"
    )
    hosts_of = plan.hosts_of(cluster)

    def look(host: str) -> list[Event]:
        planned = next(candidate for candidate in plan.hosts if candidate.name == host)
        files = [
            path
            for daemon in ("slurmctld", "slurmd")
            for path in logs.log_files(plan, planned, daemon)
        ]
        grep = f"grep --no-filename --no-messages --word-regexp {job_id}"
        search = f"{grep} /dev/null {shlex.join(files)} || true"
        zone, *lines = ssh.run(
            host, ["sh", "-c", f"date +%z; {journal}; {search}"]
        ).stdout.splitlines()
        events = (
            parse_journal(line, job_id)
            if line.startswith("{")
            else parse_log(line, host, zone, job_id)
            for line in lines
        )
        return [event for event in events if event]

    places = dict.fromkeys((plan.scenario.clusters[cluster].controller, *hosts_of.values()))
    with ThreadPoolExecutor(8) as pool:
        events = (event for of_host in pool.map(look, places) for event in of_host)
        return sorted(events, key=lambda event: event.time)


def invented(ssh: Ssh, plan: Plan, records: Iterable[Record]) -> list[Record]:
    """Return the records of jobs that slurmctld's log does not confirm.

    These are jobs for which slurmctld logged neither a start nor an end between the record's times.
    Clusters whose slurmctld is configured not to log these are left out.
    """
    by_cluster: dict[str, list[Record]] = {}
    for record in records:
        by_cluster.setdefault(record.cluster, []).append(record)
    records_without_run = []
    for name, cluster_records in by_cluster.items():
        conf = plan.slurm_conf(name)
        if slurm_options.log_level(conf, "SlurmctldDebug") >= slurm_options.LOG_INFO:
            times = _times_of_jobs(ssh, plan, name)
            records_without_run += [
                record
                for record in cluster_records
                if not _is_confirmed(record, times.get(record.job_id, []))
            ]
    return records_without_run


def logged_times(ssh: Ssh, plan: Plan) -> dict[JobKey, list[float]]:
    """Return when slurmctld started and ended each job, according to its log."""
    times_of: dict[JobKey, list[float]] = {}
    for cluster in plan.scenario.clusters:
        for job_id, times in _times_of_jobs(ssh, plan, cluster).items():
            job_times = times_of.setdefault(job_key(cluster, job_id), [])
            job_times += [time for time in times if time is not None]
    return times_of


def _is_confirmed(record: Record, times: Sequence[float | None]) -> bool:
    first = (record.submit or record.start or 0) - _TOLERANCE
    last = (record.end or inf) + _TOLERANCE
    return any(time is None or first <= time <= last for time in times)


def _times_of_jobs(ssh: Ssh, plan: Plan, cluster: str) -> dict[int, list[float | None]]:
    """Return when each job started and ended, according to the logs of a cluster's controllers.

    Rotated logs are included. None is a time that cannot be read (slurm.conf(5), LogTimeFormat).
    """
    times_of: dict[int, list[float | None]] = {}
    for host in plan.with_daemon("slurmctld"):
        if host.cluster != cluster:
            continue
        paths = logs.log_files(plan, host, "slurmctld")
        zone, lines = logs.matching(ssh, host.name, paths, "slurmctld", _RAN)
        for line in lines:
            if match := _RAN_LINE.search(line):
                time = next((time for time, _ in logs.dated([line], zone)), None)
                times_of.setdefault(int(match["raw"] or match["id"]), []).append(time)
    return times_of


def parse_journal(line: str, job_id: int) -> Event | None:
    """Parse an entry of the journal; None if it is about a different job."""
    entry = json.loads(line)
    id_in_entry, _, what = entry["MESSAGE"].partition(" ")
    if id_in_entry != str(job_id):
        return None
    context, _, rest = what.partition(" ")
    what = f"{OPTION_OF[context]} {rest}" if context in OPTION_OF else what
    # The time when it was sent, not when the journal received it.
    microseconds = entry.get("_SOURCE_REALTIME_TIMESTAMP") or entry["__REALTIME_TIMESTAMP"]
    return Event(int(microseconds) / 1e6, entry["_HOSTNAME"], what, int(entry["_UID"]))


def parse_log(line: str, host: str, zone: str, job_id: int) -> Event | None:
    """Parse a line of a daemon's log; None if it is not about the job.

    `zone` applies if the line has no time zone.

    >>> parse_log("[2026-01-01T00:00:00.500] Launching batch job 7 for UID 1", "n1", "+0000", 7)
    Event(time=1767225600.500999, host='n1', what='batch launched', uid=None)
    """
    for time, text in logs.dated([line], zone):
        for what, pattern in _LINES.items():
            match = re.match(rf"(?:debug2?: +)?(?:{pattern})", text)
            if match and str(job_id) in match.groups():
                node = _NODE.search(text)
                return Event(time + _CUT_OFF, node[1] if node else host, what)
    return None
