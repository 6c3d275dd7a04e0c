"""Predict what the daemons of a Slurm release do with a configuration, without running them."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from harness import releases
from harness.capabilities import OWN_MACHINES
from harness.errors import UsageError, cannot_read
from harness.releases import Release
from harness.slurmconf.check import (
    changed_defaults,
    companions,
    files,
    grammar,
    hosts,
    logged_problems,
    nodes,
    parameters,
    partitions,
    power,
    resources,
    topologies,
    values,
)
from harness.slurmconf.check.findings import (
    INFO,
    SEVERITIES,
    SLURMCTLD,
    SLURMD,
    Finding,
    only_in,
)
from harness.slurmconf.check.nodes import is_cloud
from harness.slurmconf.check.parsed_file import Configuration, load
from harness.slurmconf.check.read_files import unused

if TYPE_CHECKING:
    from harness.plan import Host, Plan
    from harness.render import Tree
    from harness.scenario import Scenario

_OUTSIDE = "the file is outside of the checked directory, so its text is not shown"
_OUTSIDE_HINT = "check the file itself to see more"

__all__ = ["Finding", "check", "check_path", "check_scenario", "check_tree"]


def check_path(
    path: Path, release: Release, older: Release | None = None, name: str = ""
) -> list[Finding]:
    """Return all findings about a configuration file or directory, by file and line.

    `older` is the release that the configuration comes from; defaults that changed since are
    reported too. `name` replaces the path in findings. Findings in files outside of the directory,
    to which a link or an Include leads, have a place but no text: a configuration can name any file
    of this machine. Raises UsageError if there is nothing to read.
    """
    # A long file becomes a million small objects without cycles, which the garbage collector would
    # visit again and again.
    collects = gc.isenabled()
    gc.disable()
    try:
        configuration = load(path, release, name, reads_outside=True)
        findings = list(
            dict.fromkeys(
                _without_text(configuration, finding) for finding in check(configuration, older)
            )
        )
    except OSError as error:
        raise UsageError(cannot_read(path, error)) from error
    finally:
        if collects:
            gc.enable()
    return sorted(
        findings,
        key=lambda finding: (
            finding.file,
            finding.line,
            finding.column,
            SEVERITIES.index(finding.severity),
        ),
    )


def _without_text(configuration: Configuration, finding: Finding) -> Finding:
    """Return a finding, without its text if the file is outside of the checked directory."""
    if finding.file not in configuration.outside:
        return finding
    return replace(finding, column=1, option="(not shown)", message=_OUTSIDE, hint=_OUTSIDE_HINT)


def check_scenario(
    path: Path, scenario: Scenario, older: Release | None = None, level: str | None = None
) -> list[Finding]:
    """Return all findings about the files that a scenario is rendered to for existing machines.

    Each cluster, and slurmdbd, is checked for its own release, or for a patch level of it. `path`
    represents the scenario in findings.
    """
    from harness.plan import make_plan
    from harness.render import render

    plan = make_plan(path.stem, scenario, OWN_MACHINES)
    return check_tree(plan, render(plan, _first_of_each_cluster(plan)), str(path), older, level)


def check_tree(
    plan: Plan, tree: Tree, name: str, older: Release | None = None, level: str | None = None
) -> list[Finding]:
    """Return all findings about the rendered files of each cluster's first host.

    `name` represents the tree in findings. Hosts are of the patch level of their source or
    packages; those of the release of `level` are of that patch level.
    """
    findings: list[Finding] = []
    for host in _first_of_each_cluster(plan):
        with tempfile.TemporaryDirectory() as directory:
            for file in tree[host.name]:
                if file.path.startswith("/etc/slurm/"):
                    (Path(directory) / PurePosixPath(file.path).name).write_text(file.text)
            place = f"{name}:{host.name}:/etc/slurm"
            release = releases.get(_version(host, level))
            findings += check_path(Path(directory), release, older, place)
    return findings


def _version(host: Host, level: str | None) -> str:
    """Return the patch level of a host's Slurm, or its release if nothing says more."""
    if level and releases.series(level) == host.release:
        return level
    version = host.origin.version if host.origin else host.release
    return version if releases.is_known(version) else host.release


def _first_of_each_cluster(plan: Plan) -> Collection[Host]:
    """Return the host of slurmdbd, and one of each cluster, whose hosts have the same files."""
    first_of: dict[str | None, Host] = {}
    for host in plan.hosts:
        if host.cluster or "slurmdbd" in host.daemons:
            first_of.setdefault(host.cluster, host)
    return first_of.values()


def check(configuration: Configuration, older: Release | None = None) -> Iterator[Finding]:
    """Yield all findings about a configuration."""
    slurm_conf = configuration.get("slurm.conf")
    for source in configuration:
        if reason := unused(configuration, source.kind):
            yield source.find_here(INFO, "unused", source.kind, reason)
        elif (
            source.kind == "gres.conf"
            and slurm_conf
            and any(map(is_cloud, slurm_conf.rows("nodename")))
        ):
            # slurmctld reads it, too, for the GRES of cloud nodes (gres_g_node_config_load).
            yield from only_in(SLURMCTLD + SLURMD, grammar.check(source))
        else:
            yield from grammar.check(source)
    if slurm_conf:
        yield from values.check(slurm_conf)
        yield from hosts.check(slurm_conf)
        yield from nodes.check(slurm_conf)
        yield from partitions.check(slurm_conf)
        yield from power.check(slurm_conf)
        yield from parameters.check(slurm_conf)
        yield from logged_problems.check(slurm_conf)
    yield from files.check(configuration)
    yield from companions.check(configuration)
    yield from topologies.check(configuration)
    yield from resources.check(configuration)
    if older:
        yield from changed_defaults.check(configuration, older)
