"""Say what the daemons of a Slurm release will do with a configuration, without them."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath

from harness import releases
from harness.check import changes, files, grammar, nodes, power, values
from harness.check.findings import SEVERITIES, Finding
from harness.check.source import Configuration, load
from harness.errors import UsageError
from harness.options import OWN_MACHINES
from harness.plan import make_plan
from harness.releases import Release
from harness.render import render
from harness.scenario import Scenario

_OUTSIDE = "the file is outside of the directory that is checked, so its text is not shown"
_OUTSIDE_HINT = "check the file by itself to see more"

__all__ = ["Finding", "check", "check_path", "check_scenario"]


def check_path(path: Path, release: Release, older: Release | None = None, name: str = "") -> list[Finding]:
    """Return all findings about a configuration file or directory, file by file, in the order of their lines.

    `older` is the release that the configuration comes from: what changes on the way is told too. `name` stands for
    the path in findings. Of what is found in files outside of the directory, to which a link or an Include leads, only
    the place is reported, never text: a configuration may name any file of this machine. UsageError if there is nothing
    to read.
    """
    # A long file is a million small objects without a cycle: the collector would look at all of them again and again.
    collects = gc.isenabled()
    gc.disable()
    try:
        configuration = load(path, release, name, reads_outside=True)
        found = list(dict.fromkeys(_without_text(configuration, one) for one in check(configuration, older)))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error}") from error
    finally:
        if collects:
            gc.enable()
    return sorted(found, key=lambda one: (one.file, one.line, one.column, SEVERITIES.index(one.severity)))


def _without_text(configuration: Configuration, finding: Finding) -> Finding:
    """Return a finding as it may be shown."""
    if finding.file not in configuration.outside:
        return finding
    return replace(finding, column=1, option="(not shown)", message=_OUTSIDE, hint=_OUTSIDE_HINT)


def check_scenario(path: Path, scenario: Scenario, older: Release | None = None) -> list[Finding]:
    """Return all findings about the files that a scenario is rendered to for machines of one's own.

    Each cluster, and slurmdbd, is checked for its own release; `path` stands for the scenario in findings.
    """
    plan = make_plan(path.stem, scenario, OWN_MACHINES)
    tree = render(plan)
    found: list[Finding] = []
    seen: set[str | None] = set()
    for host in plan.hosts:
        if host.cluster in seen:
            continue  # all hosts of a cluster have the same files
        seen.add(host.cluster)
        with tempfile.TemporaryDirectory() as directory:
            for file in tree[host.name]:
                if file.path.startswith("/etc/slurm/"):
                    (Path(directory) / PurePosixPath(file.path).name).write_text(file.text)
            name = f"{path}:{host.name}:/etc/slurm"
            found += check_path(Path(directory), releases.get(host.release), older, name)
    return found


def check(configuration: Configuration, older: Release | None = None) -> Iterator[Finding]:
    """Yield all findings about a configuration."""
    for source in configuration:
        yield from grammar.check(source)
    if slurm_conf := configuration.get("slurm.conf"):
        yield from values.check(slurm_conf)
        yield from nodes.check(slurm_conf)
        yield from power.check(slurm_conf)
    yield from files.check(configuration)
    if older:
        yield from changes.check(configuration, older)
