"""The golden trees: what each shipped scenario renders to. `make golden` regenerates them.

A scenario's tree is one text, which has each content once, below the files that have it:

    onprem-ctl:/etc/slurm/slurm.conf  0644 root:root  reload slurmctld
    onprem[1-4]:/etc/slurm/slurm.conf  0644 root:root  reload slurmd
        ClusterName=onprem
"""

from __future__ import annotations

import difflib
from collections import defaultdict
from itertools import groupby
from pathlib import Path

from harness import install_script, render, scenario
from harness.capabilities import Capabilities
from harness.parsing import hostlist
from harness.plan import Plan, make_plan

ROOT = Path(__file__).parents[2]
DIRECTORY = ROOT / "tests" / "golden"
SCENARIOS = {path.stem: path for path in sorted((ROOT / "scenarios").glob("*.yml"))}
CONTAINERS = Capabilities(cgroups=False, own_hardware=False)
INDENT = "    "
NO_NEWLINE = "\\ no newline at the end\n"
# Host and path -> mode, owner and service in one line, and then the file's text.
Files = dict[tuple[str, str], str]


def plan_of(name: str) -> Plan:
    """Return the plan of a shipped scenario in containers."""
    return make_plan(name, scenario.load(SCENARIOS[name]), CONTAINERS)


def rendered(name: str) -> Files:
    """Return a shipped scenario's files, and its installation script under an empty host name."""
    plan = plan_of(name)
    tree = render.render(plan)
    found = {("", "install.sh"): f"0755 root:root\n{install_script.script(plan, tree)}"}
    for host, files in tree.items():
        for file in files:
            facts = f"{file.mode} {file.owner}:{file.group}" + (
                f"  {file.action} {file.unit}" if file.unit else ""
            )
            end = "" if file.text.endswith("\n") else f"\n{NO_NEWLINE}"
            found[host, file.path] = f"{facts}\n{file.text}{end}"
    return found


def dump(files: Files) -> str:
    """Write files as a golden text: by path, and each content once."""
    sections: dict[tuple[str, str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for (host, path), contents in sorted(files.items()):
        facts, _, text = contents.partition("\n")
        sections[path, text][facts].append(host)
    parts = []
    for (path, text), hosts in sorted(sections.items(), key=lambda section: section[0][0]):
        parts += [f"{hostlist.fold(names)}:{path}  {facts}\n" for facts, names in hosts.items()]
        parts += [
            line if line == "\n" else f"{INDENT}{line}" for line in text.splitlines(keepends=True)
        ]
    return "".join(parts)


def load(text: str) -> Files:
    """Read a golden text again."""
    found: Files = {}
    for is_head, group in groupby(
        text.splitlines(keepends=True), key=lambda line: not line.startswith((INDENT, "\n"))
    ):
        lines = list(group)
        if is_head:
            heads = lines
            continue
        content = "".join(line.removeprefix(INDENT) for line in lines)
        for head in heads:
            place, _, facts = head.partition("  ")
            names, _, path = place.partition(":")
            found |= {
                (host, path): facts + content
                for host in (hostlist.expand(names) if names else [""])
            }
    return found


def differences(golden: Files, now: Files) -> str:
    """Return a unified diff with hosts and path; hosts with the same difference share one entry."""
    hosts: dict[tuple[str, str], list[str]] = defaultdict(list)
    for host, path in sorted(golden.keys() | now.keys()):
        sides = [files.get((host, path), "").splitlines(keepends=True) for files in (golden, now)]
        if lines := list(difflib.unified_diff(*sides, "golden", "rendered")):
            hosts[path, "".join(lines)].append(host)
    return "\n".join(
        f"{hostlist.fold(names)}:{path}\n{diff}" for (path, diff), names in hosts.items()
    )


def main() -> None:
    """Write the golden text of each scenario, and remove those of scenarios that are gone."""
    for path in DIRECTORY.glob("*.txt"):
        path.unlink()
    for name in SCENARIOS:
        (DIRECTORY / f"{name}.txt").write_text(dump(rendered(name)))


if __name__ == "__main__":
    main()
