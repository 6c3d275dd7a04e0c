"""Remove from a rehearsal copy what its scenario or the daemons of its release do not accept.

A site's files may have been written for a different release, or be incomplete. What is removed is
listed, like everything else that a copy lacks.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness import scenario
from harness.capabilities import CONTAINERS
from harness.errors import Problem, ScenarioError
from harness.parsing.conf import Line
from harness.plan import make_plan
from harness.releases import Release
from harness.render import render
from harness.site.fidelity import Replaced
from harness.slurmconf.check import check_path
from harness.slurmconf.check.findings import ERROR, FATAL, WARNING, Finding
from harness.slurmconf.check.nodes import names_of
from harness.slurmconf.check.parsed_file import Source, load

# Once an option is removed, the daemons may refuse another one.
_ROUNDS = 10
# Lines of slurm.conf with several options, and where a scenario has them.
_ROWS = {"nodename": "nodes", "partitionname": "partitions"}
Data = dict[str, Any]
Write = Callable[[Path, Mapping[str, Any]], None]


@contextmanager
def rendered_configuration(data: Mapping[str, Any], write: Write) -> Iterator[Path]:
    """Render a scenario; return the directory of what its first controller and slurmdbd read.

    Raises ScenarioError.
    """
    with tempfile.TemporaryDirectory() as temporary:
        path, etc = Path(temporary) / "copy.yml", Path(temporary) / "slurm"
        write(path, data)
        plan = make_plan(path.stem, scenario.load(path), CONTAINERS)
        etc.mkdir()
        accounting = plan.with_daemon("slurmdbd")
        for host in (*accounting[:1], *plan.with_daemon("slurmctld")[:1]):
            for file in render(plan, [host])[host.name]:
                if file.path.startswith("/etc/slurm/"):
                    (etc / Path(file.path).name).write_text(file.text)
        yield etc


def make_startable(data: Data, release: Release, replaced: list[Replaced], write: Write) -> None:
    """Remove from a copy's data what keeps it from starting; add what is removed to `replaced`.

    Errors and warnings that its daemons log nevertheless become `known_problems` of its cluster.
    What cannot be removed stays.
    """
    (cluster,) = data["clusters"].values()
    for _ in range(_ROUNDS):
        try:
            with rendered_configuration(data, write) as etc:
                findings = check_path(etc, release)
                source = load(etc, release).files["slurm.conf"]
        except ScenarioError as error:
            removed = _remove_problems(data, error.problems)
        else:
            removed = _remove_findings(cluster, source, findings)
        replaced += removed
        if not removed:
            break
    else:
        return
    if known := _known_problems(findings):
        cluster["known_problems"] = known


def _known_problems(findings: Collection[Finding]) -> list[str]:
    """Return the options about which the daemons log an error or a warning."""
    if any(finding.severity == FATAL for finding in findings):
        return []
    logged = [finding.option for finding in findings if finding.severity in {ERROR, WARNING}]
    return list(dict.fromkeys(option for option in logged if option.isalnum()))


def _in_order(path: tuple[Any, ...]) -> list[str]:
    """Return a key that sorts paths by their keys and indexes.

    >>> sorted([("nodes", 10), ("nodes", 2), ("auth",)], key=_in_order)
    [('auth',), ('nodes', 2), ('nodes', 10)]
    """
    return [f"{key:09}" if isinstance(key, int) else key for key in path]


def _remove_problems(data: Data, problems: Collection[Problem]) -> list[Replaced]:
    """Remove the parts of a scenario that are not valid."""
    paths: dict[tuple[Any, ...], str] = {}
    for problem in problems:
        if path := _path(data, problem.where):
            paths.setdefault(path, problem.message)
    removed: list[Replaced] = []
    for path in sorted(paths, key=_in_order, reverse=True):  # the last of several node groups first
        container: Any = data
        for key in path[:-1]:
            container = container[key]
        value = container[path[-1]]
        if path[-2] == "nodes":
            value = value["name"]
        shown = "" if isinstance(value, dict) else value
        # An entry of a list is named after the list.
        name = next(key for key in reversed(path) if isinstance(key, str))
        if name == "nodes":
            name = "NodeName"
        removed.append(Replaced("slurm.conf", name, shown, paths[path]))
        del container[path[-1]]
    return removed


def _path(data: Data, where: str) -> tuple[Any, ...]:
    """Return the keys that lead to the smallest removable part at a place such as clusters.c.

    It is empty if the scenario needs that part.
    """
    path: list[Any] = []
    part: Any = data
    rest = where
    while rest and isinstance(part, dict | list):
        keys = range(len(part)) if isinstance(part, list) else part
        matching = [key for key in keys if rest == str(key) or rest.startswith(f"{key}.")]
        if not matching:
            break
        key = max(matching, key=lambda key: len(str(key)))
        path.append(key)
        part, rest = part[key], rest[len(str(key)) + 1 :]
    if path[2:3] == ["nodes"]:
        path = path[: {"gres": 5, "options": 6}.get(path[4] if len(path) > 4 else "", 4)]
    return tuple(path) if len(path) > 3 else ()


def _remove_findings(
    cluster: Data, source: Source, findings: Collection[Finding]
) -> list[Replaced]:
    """Remove the options of slurm.conf that daemons refuse or ignore; one finding for each."""
    lines = {line.number: line for _, line in source.lines}
    removed: list[Replaced] = []
    for finding in findings:
        line = lines.get(finding.line)
        if (
            _is_without_effect(finding)
            and line
            and finding.file == str(source.path)
            and any(pair.key.lower() == finding.option.lower() for pair in line.pairs)
        ):
            removed += _remove_option(cluster, line, finding)
    return removed


def _is_without_effect(finding: Finding) -> bool:
    """Return whether daemons refuse or ignore what a finding is about.

    Options that contradict each other are logged, and have their values nevertheless.
    """
    return finding.severity == FATAL or (
        finding.severity == ERROR and finding.code != "contradiction"
    )


def _remove_option(cluster: Data, line: Line, finding: Finding) -> Iterator[Replaced]:
    """Remove an option of a line of slurm.conf from a cluster."""
    first = line.pairs[0]
    option = finding.option.lower()
    if first.key.lower() not in _ROWS:
        yield from _remove_from(cluster["options"], option, "", finding.message)
        if option == "selecttype":  # the harness's own, which fit each other, replace both
            for name in ("SelectType", "SelectTypeParameters"):
                cluster["options"].pop(name, None)
        others = [entry for entry in cluster.get("lines", ()) if not _is_rendered_to(entry, line)]
        if len(others) < len(cluster.get("lines", ())):
            cluster["lines"] = others
            yield Replaced("slurm.conf", first.key, first.value, finding.message)
    elif first.key.lower() == "partitionname":
        options = cluster.get("partitions", {}).get(first.value, {}).get("options", {})
        nodes = next((name for name in options if name.lower() == option == "nodes"), None)
        if nodes and options[nodes] != "ALL":
            why = f"{finding.message}; replaced by all nodes"
            yield Replaced("slurm.conf", f"PartitionName {first.value} Nodes", options[nodes], why)
            options[nodes] = "ALL"
        elif not nodes:
            yield from _remove_from(
                options, option, f"PartitionName {first.value} ", finding.message
            )
    else:
        names = set(names_of(first.value) or ())
        for group in cluster["nodes"]:
            if names & set(names_of(group["name"]) or ()):
                where = f"NodeName {group['name']} "
                if option == "gres" and "gres" in group:
                    value = ",".join(group.pop("gres"))
                    yield Replaced("slurm.conf", f"{where}Gres", value, finding.message)
                yield from _remove_from(group.get("options", {}), option, where, finding.message)


def _remove_from(options: Data, option: str, where: str, why: str) -> Iterator[Replaced]:
    """Remove an option, by lower-case name, unless it is not set."""
    for name in [name for name in options if name.lower() == option]:
        if options[name] is not None:
            yield Replaced("slurm.conf", f"{where}{name}", options[name], why)
            options[name] = None


def _is_rendered_to(entry: Mapping[str, Any], line: Line) -> bool:
    """Return whether an entry of a cluster's `lines` is rendered to a line."""
    return [(key.lower(), str(value)) for key, value in entry.items() if value is not None] == [
        (pair.key.lower(), pair.value) for pair in line.pairs
    ]
