"""Simulate several policies, each several times, and write the results.

Each policy has its own run; the first one's directory also has the results of all.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness import lifecycle, scenario, slurm_options
from harness.errors import UsageError
from harness.open_run import OpenRun, Say
from harness.plan import make_plan
from harness.providers import Provider
from harness.report.assembly import Evaluation
from harness.report.model import Check, Report
from harness.report.verdict import PASSED
from harness.scenario import Scenario
from harness.simulation import (
    adapted_timeouts,
    execution,
    generator,
    host_side,
    html_report,
    json_csv_report,
    reading,
    scaling,
    simulation_files,
    submission,
    usage,
)
from harness.simulation.adapted_timeouts import ScaledSetting
from harness.simulation.comparison import Comparison
from harness.simulation.execution import GOVERNED, Policy, Rates
from harness.simulation.model import Simulation
from harness.simulation.trace import Trace

_FILES = (*json_csv_report.FILES, "report.html")


@dataclass(frozen=True, slots=True)
class Options:
    """How to simulate.

    `jobs` and `hours` describe a generated trace if there is no file; with a file, `hours` is how
    much of it is simulated. `running`: jobs that were running or pending when these hours
    begin are submitted first. Jobs of the first `warm_up` hours are not measured; `maintenance`
    lists when all nodes are reserved, and for how long, in hours; `failures` lists the nodes that
    fail, when, and for how long. With `think_time`, jobs that depend on others are submitted after
    these have ended. `usage` is a file with the usage at the beginning.
    """

    jobs: int
    hours: float | None
    trace: Path | None = None
    begin: float = 0.0
    by: scaling.By = "nodes"
    seed: int = 1
    rates: Rates = GOVERNED
    running: bool = False
    warm_up: float = 0.0
    maintenance: tuple[tuple[float, float], ...] = ()
    failures: tuple[tuple[str, float, float], ...] = ()
    think_time: bool = False
    usage: Path | None = None


@dataclass(frozen=True, slots=True)
class PolicySource:
    """A policy as the user names it: a scenario file, and settings that override its values."""

    name: str
    path: Path
    settings: tuple[str, ...] = ()


def sources(paths: Sequence[Path], changes: Sequence[str]) -> list[PolicySource]:
    """Return the policies of a command line: each file, and each file with the changes, if any.

    Their names are unique.
    """
    policies = [PolicySource(path.stem, path) for path in paths]
    if changes:
        policies += [
            PolicySource(f"{path.stem} with {' '.join(changes)}", path, tuple(changes))
            for path in paths
        ]
    names = [source.name for source in policies]
    if len({*names}) < len(names):
        policies = [
            PolicySource(f"{number}: {source.name}", source.path, source.settings)
            for number, source in enumerate(policies, 1)
        ]
    return policies


@dataclass(frozen=True, slots=True)
class Prepared:
    """Policies that are ready to be simulated with the same trace, each in its own run."""

    policies: tuple[Policy, ...]
    command: str

    @property
    def run(self) -> OpenRun:
        """The run whose directory has the results."""
        return self.policies[0].run


def prepare(
    found: Sequence[PolicySource],
    provider: Provider,
    runs: Path,
    say: Say,
    releases: Sequence[str],
    options: Options,
    command: str,
) -> Prepared:
    """Read policies and trace, and create a run for each policy; nothing is started.

    `command` repeats the simulation.

    Raises UsageError if a policy or the trace cannot be simulated.
    """
    if not provider.capabilities.engine or provider.capabilities.own_kernel:
        raise UsageError(
            f"a simulation sets the clocks of hosts: provider {provider.name} cannot do that",
            hint="--provider docker",
        )
    scenarios = [scenario.load(source.path, releases, settings=source.settings) for source in found]
    for policy_scenario in scenarios:
        execution.must_be_possible(policy_scenario)
        execution.must_have_nodes(policy_scenario, [nodes for nodes, *_ in options.failures])
    initial_usage = usage.read(options.usage) if options.usage else {}
    if options.trace:
        say(f"reading {options.trace}")  # a million lines take about 6 seconds
    trace = read_trace(scenarios[0], options)
    for policy_scenario in scenarios:
        submission.must_fit(trace, policy_scenario)
    submissions = submission.submissions(trace)
    created = []
    for source, policy_scenario in zip(found, scenarios, strict=True):
        own_usage, notes = usage.of_cluster(initial_usage, policy_scenario)
        overrides, scaled = _adapted_settings(policy_scenario, provider, options.rates.top)
        run = lifecycle.create(
            source.path, provider, runs, say, releases, [*source.settings, *overrides]
        )
        facts = tuple(
            (f"{setting.file} {setting.name}", setting.own, setting.simulated, setting.why)
            for setting in scaled
        )
        created.append(
            Policy(
                source.name,
                run,
                replace(trace, notes=(*trace.notes, *notes)),
                submissions,
                options.rates,
                options.hours,
                warm_up=options.warm_up,
                maintenance=tuple((at * 3600, hours * 3600) for at, hours in options.maintenance),
                failures=tuple(
                    (nodes, at * 3600, hours * 3600) for nodes, at, hours in options.failures
                ),
                think_time=options.think_time,
                usage=own_usage,
                settings=facts,
            )
        )
    return Prepared(tuple(created), command)


def read_trace(read: Scenario, options: Options) -> Trace:
    """Return the jobs to submit: those of a file that fit the cluster, or generated ones."""
    (name,) = read.clusters
    target = scaling.target_of(read, name)
    if options.trace:
        trace = reading.read(
            options.trace,
            hours=options.hours,
            begin=options.begin,
            starting_state=options.running,
        )
        return scaling.fit(trace, target, by=options.by, seed=options.seed)
    return generator.generate(
        options.seed,
        options.jobs,
        options.hours or 1,
        target.users,
        target.partitions,
        target.nodes,
        target.cpus_per_node,
    )


def _adapted_settings(
    policy_scenario: Scenario, provider: Provider, rate: float
) -> tuple[list[str], list[ScaledSetting]]:
    """Return the settings that adapt the daemons' timeouts to the clock, and what they change."""
    (name, cluster), *_ = policy_scenario.clusters.items()
    plan = make_plan(name, policy_scenario, provider.capabilities)
    changed: list[ScaledSetting] = []
    overrides = []
    accounting = policy_scenario.accounting
    for file, key, conf, own in (
        ("slurm.conf", f"clusters.{name}.options", plan.slurm_conf(name), cluster.options),
        (
            "slurmdbd.conf",
            "accounting.slurmdbd",
            slurm_options.slurmdbd_conf(policy_scenario),
            accounting.slurmdbd if accounting else {},
        ),
    ):
        new, changes = adapted_timeouts.scaled(file, conf, rate)
        changed += changes
        if new:
            names = {option.lower() for option in new}
            kept = {option: value for option, value in own.items() if option.lower() not in names}
            overrides.append(f"{key}={json.dumps({**kept, **new})}")
    if len(plan.hosts) > 1:
        shared = {**policy_scenario.shared_directories, host_side.HOME: None}
        overrides.append(f"shared_directories={json.dumps(shared)}")
    return overrides, changed


def run(
    prepared: Prepared, repeat: int, *, keep: bool, directory: Path | None
) -> tuple[Report, Comparison | None]:
    """Simulate all policies, write the results as they come, and then the reports.

    There is no comparison if it was interrupted before the end of the first simulation.
    """

    def evaluate(evaluation: Evaluation) -> None:
        evaluation.facts = {"settings": [], "command": prepared.command}
        for policy in prepared.policies:
            with (
                lifecycle.provisioned(policy.run, keep=keep),
                lifecycle.logs_collected(policy.run),
            ):
                lifecycle.deploy(policy.run)
                for number in range(1, repeat + 1):
                    _simulate(prepared, policy, number, evaluation)

    report = lifecycle.reported(prepared.run, evaluate, directory)
    return report, write_reports(prepared.run.directory.path, directory)


def write_reports(run: Path, directory: Path | None = None) -> Comparison | None:
    """Add how policies differ to the reports of a run, and copy them to another directory.

    Returns the comparison; None if nothing was simulated.
    """
    if not (run / simulation_files.DIRECTORY).is_dir():
        return None
    run_report = json.loads((run / "report.json").read_text())
    comparison = json_csv_report.write(run)
    policies_report = json.loads((run / "report.json").read_text())
    # The run's verdict takes precedence: it includes interruptions.
    text = json.dumps({**policies_report, **run_report}, indent=2) + "\n"
    (run / "report.json").write_text(text)
    html_report.write(run)
    if directory and directory != run:
        for name in _FILES:
            shutil.copyfile(run / name, directory / name)
        shutil.copytree(
            run / simulation_files.DIRECTORY,
            directory / simulation_files.DIRECTORY,
            dirs_exist_ok=True,
        )
    return comparison


def _simulate(prepared: Prepared, policy: Policy, repeat: int, evaluation: Evaluation) -> None:
    """Simulate a policy once, and keep the result, even if the user interrupts."""
    try:
        simulation = execution.simulate(policy, repeat)
    except KeyboardInterrupt as error:
        partial = getattr(error, "simulation", None)
        if isinstance(partial, Simulation) and partial.jobs:
            simulation_files.write(partial, prepared.run.directory.path)
        raise
    simulation_files.write(simulation, prepared.run.directory.path)
    evaluation.checks.append(_check(simulation))


def _check(simulation: Simulation) -> Check:
    """Return whether a simulation kept time; if not, its figures are not reliable."""
    quality = simulation.quality
    return Check(
        f"{simulation.policy}, repeat {simulation.repeat}: the simulation kept time",
        "error" if quality.problems else PASSED,
        round(quality.seconds, 2),
        "\n".join(quality.problems),
    )
