"""What `harness status` lists: the user's runs, their verdicts, and what their clusters do."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import rundir
from harness.cluster import slurm
from harness.elastic import node_failures
from harness.errors import HarnessError
from harness.open_run import OpenRun
from harness.providers import Provider
from harness.rundir import RunDir

# Seconds within which a cluster must answer.
_PATIENCE = 20


@dataclass(frozen=True, slots=True)
class Row:
    """One run.

    `clusters` is the `activity` of each cluster, `leaked` are messages about hosts that should no
    longer run. `verdict` and `directory` are None if there is none; `problem` is why the directory
    cannot be read.
    """

    run: str
    hosts_up: list[str]
    verdict: str | None
    directory: str | None
    clusters: dict[str, dict[str, Any]] = field(default_factory=dict)
    leaked: list[str] = field(default_factory=list)
    problem: str = ""


def rows(provider: Provider, runs: Path, open_run: Callable[[RunDir], OpenRun]) -> list[Row]:
    """Return a row for each run that is up or has a directory in `runs`.

    Clusters that are up are queried.
    """
    hosts_of = provider.runs()
    readable = {run.id: run for run in rundir.all_runs(runs)}
    unreadable = {
        rundir.id_of(path): Row(
            rundir.id_of(path),
            hosts_of.get(rundir.id_of(path), []),
            None,
            str(path),
            problem=str(problem),
        )
        for path, problem in rundir.unreadable(runs).items()
    }
    return [
        unreadable.get(run_id) or _row(run_id, readable.get(run_id), hosts_of.get(run_id), open_run)
        for run_id in sorted({*hosts_of, *readable, *unreadable})
    ]


def _row(
    run_id: str,
    run: RunDir | None,
    hosts_up: list[str] | None,
    open_run: Callable[[RunDir], OpenRun],
) -> Row:
    if run is None:
        return Row(run_id, hosts_up or [], None, None)
    clusters: dict[str, dict[str, Any]] = {}
    leaked: list[str] = []
    if hosts_up is not None:
        with suppress(HarnessError):
            opened = open_run(run)
            clusters = activity(opened)
            leaked = node_failures.leaked(opened)
    return Row(run_id, hosts_up or [], _verdict(run), str(run.path), clusters, leaked)


def _verdict(run: RunDir) -> str | None:
    path = run.path / "report.json"
    try:
        return str(json.loads(path.read_text())["verdict"]) if path.exists() else None
    except (ValueError, KeyError, TypeError):  # the harness was killed while it wrote it
        return "unreadable"


def activity(run: OpenRun) -> dict[str, dict[str, Any]]:
    """Return how many nodes and jobs of each cluster are in each state.

    For a cluster that does not answer, return the reason.
    """
    of_cluster: dict[str, dict[str, Any]] = {}
    for name, cluster in slurm.clusters(run.ssh, run.plan, _PATIENCE).items():
        try:
            of_cluster[name] = {
                "nodes": dict(Counter(node.state for node in cluster.nodes())),
                "jobs": dict(Counter(job.state for job in cluster.jobs("--local"))),
            }
        except HarnessError as error:
            of_cluster[name] = {"problem": error.message.splitlines()[0]}
    return of_cluster
