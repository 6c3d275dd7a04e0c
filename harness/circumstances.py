"""Why a check may have failed: waiting jobs, nodes that take no jobs, reservations, errors that daemons logged."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from harness import logs, slurm
from harness.errors import HarnessError
from harness.plan import Host, Plan
from harness.slurm import SlurmCluster
from harness.ssh import Ssh

# Seconds that a cluster or host has to answer, and slurmctld to answer a node; few, because it may be down.
_PATIENCE, _PING = 15, 8
_NO_ANSWER = "scontrol ping: "
# Seconds by which the clocks of a daemon and of the check may differ.
_AROUND = 2
# Lines of each host, and jobs, nodes and reservations of each cluster, that are shown.
_MOST = 3
# What differs between the lines of a daemon that retries.
_CHANGES = re.compile(r"\d+")
# slurmstepd logs the cancellation of a job as an error (_rpc_signal_container() in its req.c).
_CANCELLED = re.compile(r"\*\*\* (?:JOB|STEP) .* CANCELLED AT \S+ \*\*\*$")


def of_failure(ssh: Ssh, plan: Plan, since: float) -> list[str]:
    """Return a line for each thing that may keep jobs from running, and for each of the daemons' last errors.

    `since` is when the check began, in seconds since 1970. A cluster or host that does not answer has a line, too.
    """
    clusters = slurm.clusters(ssh, plan, _PATIENCE).values()
    looks: list[Callable[[], Iterable[str]]] = [
        *(partial(_of_cluster, cluster) for cluster in clusters),
        *(partial(_of_host, ssh, plan, host, since) for host in plan.lasting_hosts()),
    ]
    with ThreadPoolExecutor(8) as pool:
        return [line for lines in pool.map(_answered, looks) for line in lines]


def _answered(look: Callable[[], Iterable[str]]) -> list[str]:
    """Return what `look` returns, or the last line of its error."""
    try:
        return [*look()]
    except HarnessError as error:
        return [" ".join(str(error).splitlines()[-1:])]


def _of_cluster(cluster: SlurmCluster) -> list[str]:
    waiting = [
        f"{cluster.name}: job {job.job_id} of {job.user} {job.state} ({job.reason})"
        for job in cluster.jobs("--local", "--all")
        if job.state not in {*slurm.FINISHED, "RUNNING"}
    ]
    useless = [
        f"{cluster.name}: node {node.name} {node.state} ({node.reason})"
        for node in cluster.nodes()
        if slurm.takes_no_jobs(node.state)
    ]
    reserved = [f"{cluster.name}: {reservation}" for reservation in cluster.reservations()]
    return [*_some(waiting), *_some(useless), *_some(reserved)]


def _some(lines: Sequence[str]) -> list[str]:
    return [*lines[:_MOST], *[f"and {len(lines) - _MOST} more"] * (len(lines) > _MOST)]


def _of_host(ssh: Ssh, plan: Plan, host: Host, since: float) -> list[str]:
    """Return whether the host's nodes do not reach slurmctld, and its daemons' last errors since a time, each once."""
    daemons = {daemon for daemon in host.daemons if daemon.startswith("slurm")} | ({"slurmd"} if host.nodes else set())
    paths = [path for daemon in sorted(daemons) for path in logs.log_files(plan, host, daemon)]
    if not paths:
        return []
    # grep(1) exits with 1 if no line matches.
    errors = "; ".join(f"tail -n 300 {path} | grep -aE '(error|fatal): '" for path in map(shlex.quote, paths))
    ping = f'said=$(timeout {_PING} scontrol ping 2>&1) || echo "{_NO_ANSWER}"$said' if host.nodes else "true"
    answer = ssh.run(host.name, ["sh", "-c", f"date +%z; {ping}; {errors}; true"], timeout=_PATIENCE)
    zone, *lines = answer.stdout.splitlines()
    now = time.time()
    last: dict[str, str] = {}
    for at, text in logs.dated(lines, zone):
        # A check may have set a daemon's clock forward.
        if since - _AROUND <= at <= now + _AROUND and not _CANCELLED.search(text):
            last[_CHANGES.sub("", text)] = f"{host.name} logged: {text}"
    unreachable = [
        f"{host.name} does not reach slurmctld: {line.removeprefix(_NO_ANSWER) or f'no answer in {_PING} s'}"
        for line in lines
        if line.startswith(_NO_ANSWER)
    ]
    return [*unreachable, *[*last.values()][-_MOST:]]
