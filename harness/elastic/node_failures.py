"""Find out why elastic nodes may have made a check fail, and which hosts were left behind."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from harness import slurm_options
from harness.cluster import logs, node_state, slurm
from harness.cluster.slurm import SlurmCluster
from harness.errors import HarnessError
from harness.open_run import OpenRun
from harness.parsing import hostlist
from harness.report import timeline

# Seconds that a cluster has to answer, and seconds by which clocks may differ.
_PATIENCE, _CLOCK_TOLERANCE = 45, 10
# What slurmctld logs when it gives up on a node.
_GIVEN_UP = re.compile(r"node (\S+) not resumed by ResumeTimeout")


def of_failure(run: OpenRun, since: float) -> list[str]:
    """Return the known problems of elastic nodes since a time, one line each.

    This compares the requests that slurmctld's programs noted with those that the provisioning API
    received. `since` is in seconds since 1970. A cluster that does not answer gets a line, too.
    """
    if not any(cluster.elastic() for cluster in run.plan.scenario.clusters.values()):
        return []
    try:
        events = [event for event in run.directory.events() if event["kind"] == "power"]
    except HarnessError as error:
        return [str(error)]
    api_events = [event for event in events if timeline.seconds(event) > since - _CLOCK_TOLERANCE]
    problems = [_problem(event) for event in api_events if event["action"] == "problem"]
    for name, cluster in slurm.clusters(run.ssh, run.plan, _PATIENCE).items():
        if not run.plan.scenario.clusters[name].elastic():
            continue
        try:
            lines = cluster.run("cat", slurm_options.POWER_LOG, check=False).stdout.splitlines()
            notes = [json.loads(line) for line in lines]
            problems += wrong_notes(notes, api_events, cluster.controller, since)
            problems += unrecorded_nodes(
                notes, coming_nodes(run, cluster, since), cluster.controller
            )
        except (HarnessError, ValueError, LookupError, TypeError) as error:
            first_line = " ".join(str(error).splitlines()[:1])
            problems.append(f"{cluster.controller}:{slurm_options.POWER_LOG}: {first_line}")
    with suppress(HarnessError):
        problems += leaked(run)
    return [*dict.fromkeys(problems)]


def wrong_notes(
    notes: Iterable[Mapping[str, Any]],
    api_events: Iterable[Mapping[str, Any]],
    controller: str,
    since: float,
) -> Iterator[str]:
    """Yield the problems in what slurmctld's programs noted since a time.

    `api_events` are the power events that the API recorded.

    >>> [*wrong_notes([{"time": 9, "action": "resume-fail", "nodes": ["c1", "c2"]}], [], "ctl", 0)]
    ['ctl: slurm-resume-fail c[1-2]: slurmd did not register within ResumeTimeout']
    """
    known = {(event["action"], node) for event in api_events for node in event["nodes"]}
    for note in notes:
        action, nodes = note["action"], note["nodes"]
        if note["time"] < since:
            continue
        call = f"{controller}: slurm-{action} {hostlist.fold(nodes)}"
        if "problem" in note:
            yield f"{call}: {note['problem'].strip()}"
        elif action == "resume-fail":
            yield f"{call}: slurmd did not register within ResumeTimeout"
        elif "answer" in note and (
            unrequested := [node for node in nodes if (action, node) not in known]
        ):
            yield (
                f"{call}: the provisioning API got no request for {hostlist.fold(unrequested)}, "
                f"although port {slurm_options.API_PORT} of {controller} answered: "
                "a different program listens there, or the request was lost"
            )


def coming_nodes(run: OpenRun, cluster: SlurmCluster, since: float) -> set[str]:
    """Return the nodes that slurmctld powers up now, or has given up on since a time."""
    coming = {node.name for node in cluster.nodes() if "POWERING_UP" in node.state.split("+")}
    return coming | given_up(run, cluster, since)


def given_up(run: OpenRun, cluster: SlurmCluster, since: float) -> set[str]:
    """Return the nodes on which slurmctld has given up since a time, because they did not come."""
    path = slurm_options.get(run.plan.slurm_conf(cluster.name), "SlurmctldLogFile")
    script = f"date +%z; grep -a 'not resumed by' {shlex.quote(path)} | tail -n 100" if path else ""
    zone, *lines = [*cluster.run("sh", "-c", script).stdout.splitlines(), ""]
    return {
        match[1]
        for at, text in logs.dated(lines, zone)
        if at >= since and (match := _GIVEN_UP.search(text))
    }


def unrecorded_nodes(
    notes: Iterable[Mapping[str, Any]], nodes: Iterable[str], controller: str
) -> Iterator[str]:
    """Yield a problem if the notes of slurmctld's programs lack nodes that it powers up.

    >>> [*unrecorded_nodes([{"action": "resume", "nodes": ["c1"]}], ["c1", "c2"], "ctl")]
    ['ctl: slurmctld powers up c2, but /var/log/slurm/power.log has no call of slurm-resume \
for it: it was not called, or the log was truncated']
    """
    resumed = {node for note in notes if note["action"] == "resume" for node in note["nodes"]}
    if missing := {*nodes} - resumed:
        yield (
            f"{controller}: slurmctld powers up {hostlist.fold(missing)}, but "
            f"{slurm_options.POWER_LOG} has no call of slurm-resume for it: "
            "it was not called, or the log was truncated"
        )


def _problem(event: Mapping[str, Any]) -> str:
    return f"host of {hostlist.fold(event['nodes'])}: {' '.join(event['problem'].split())}"


def leaked(run: OpenRun) -> list[str]:
    """Return how to remove each host that runs although slurmctld has powered its node down."""
    running = run.provider.hosts(run.directory.id)
    leaks = []
    for name, cluster in slurm.clusters(run.ssh, run.plan, _PATIENCE).items():
        hosts = {
            host.name for host in run.plan.hosts if host.cluster == name and not host.is_permanent
        }
        if not any(running.get(host) for host in hosts):
            continue
        leaks += [
            f"{node.name} runs, but slurmctld has powered it down: "
            f"harness exec {cluster.controller} -- "
            f"{slurm_options.PROGRAMS}/slurm-suspend {node.name}"
            for node in cluster.nodes()
            if node.name in hosts
            and running.get(node.name)
            and node_state.is_powered_down(node.state)
        ]
    return leaks
