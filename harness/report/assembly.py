"""Assemble the report of a run from its directory, its plan and its evaluation."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from harness import topology
from harness.parsing import hostlist
from harness.plan import Plan
from harness.report import model
from harness.report.model import Check, Report
from harness.report.verdict import verdict
from harness.rundir import RunDir


@dataclass
class Evaluation:
    """What is known about a run: its checks, and all jobs that ran.

    `problem` is why there is no verdict, "" if there is one. `facts` are further fields of the
    report.
    """

    checks: list[Check] = field(default_factory=list)
    jobs: list[dict[str, Any]] = field(default_factory=list)
    problem: str = ""
    facts: dict[str, Any] = field(default_factory=dict)

    def verdict(self) -> str:
        """Return the verdict of the checks."""
        return verdict((check.outcome for check in self.checks), self.problem)


def report(run: RunDir, plan: Plan, evaluation: Evaluation) -> Report:
    """Return the report of a run."""
    events = list(run.events())
    clusters = plan.scenario.clusters
    assembled = Report(
        scenario=plan.name,
        description=plan.scenario.description,
        verdict=evaluation.verdict(),
        releases=plan.versions(),
        choices=plan.choices(),
        provider=run.provider,
        run=str(run.path),
        stages=[
            {"name": event["name"], "seconds": event["seconds"]}
            for event in events
            if event["kind"] == "stage"
        ],
        checks=evaluation.checks,
        jobs=evaluation.jobs,
        problem=evaluation.problem,
        known_faults=plan.known_faults(),
        topologies={
            f"{name}: {topology_name}": topology.picture(described)
            for name, cluster in clusters.items()
            for topology_name, described in cluster.topology.items()
        },
        kubernetes=next(
            (event["kubernetes"] for event in reversed(events) if event["kind"] == "operator"), ""
        ),
        scenario_path=run.scenario_path,
        settings=run.settings,
        started=run.started,
        nodes={
            name: hostlist.fold(cluster.node_names())
            for name, cluster in clusters.items()
            if cluster.nodes
        },
        federations={
            name: [*federation.clusters] for name, federation in plan.scenario.federations.items()
        },
        layout=model.layout(plan),
    )
    return replace(assembled, **evaluation.facts)
