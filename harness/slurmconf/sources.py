"""Configuration sources: what a user names as one of two configurations to compare.

A source is a scenario, a file or directory of Slurm's, a directory that `harness render` wrote, or
a run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from harness import scenario
from harness.capabilities import OWN_MACHINES
from harness.origins import Origin
from harness.parsing.bounded_yaml import is_named_like_a_scenario
from harness.plan import Plan, make_plan
from harness.render import Tree, render
from harness.slurmconf import diff
from harness.ssh import Ssh


def read(
    name: str,
    of_run: Callable[[str], diff.Side],
    origin_of_image: Callable[[str], Origin] | None = None,
    on_scenario: Callable[[Path, scenario.Scenario], None] = lambda *_: None,
) -> diff.Side:
    """Return the configuration that `name` stands for; `of_run` returns that of a run.

    `on_scenario` is called with each scenario that is read.
    """
    path = Path(name)
    if path.is_file() and is_named_like_a_scenario(path):
        loaded = scenario.load(path, (), origin_of_image)
        on_scenario(path, loaded)
        plan = make_plan(path.stem, loaded, OWN_MACHINES)
        return diff.plan_side(name, plan, render(plan))
    if path.exists() and not (path / "run.json").exists():
        return diff.directory_side(path)
    return of_run(name)


def of_run(
    name: str, plan: Plan, tree: Tree, ssh: Ssh | None, secrets: Mapping[str, str]
) -> diff.Side:
    """Return the files that a run's hosts have.

    If the hosts are down (`ssh` is None), return what was rendered for them.
    """
    if ssh is None:
        return diff.plan_side(f"{name} (down, as it was rendered)", plan, tree)
    return diff.live_side(name, plan, tree, ssh, secrets)
