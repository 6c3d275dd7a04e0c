"""One run's directory: everything that was decided, rendered, seen and judged. Also ansible-runner's directory.

    scenario.yml run.json manifest.json ssh_config known_hosts events.jsonl report.json junit.xml report.html
    tree/HOST/...        the rendered files, without secrets
    secrets/             0700: keys and passwords of this run
    inventory/hosts.yml  Ansible's inventory
    artifacts/ logs/     what Ansible and the daemons said
"""

from __future__ import annotations

import json
import secrets as random_secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness import scenario as scenario_file
from harness.errors import UsageError
from harness.options import Offers, secrets_in
from harness.plan import Plan, make_plan
from harness.render import Tree, manifest

_SHA = "sha256"


class RunDir:
    """A run's directory. `create` makes one, `RunDir(path)` opens one that is there."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        try:
            self._facts = json.loads((self.path / "run.json").read_text())
        except (OSError, ValueError) as error:
            raise UsageError(f"{path} is not a run's directory", hint="`harness status` lists the runs") from error
        self.id: str = self._facts["id"]
        self.provider: str = self._facts["provider"]

    @classmethod
    def create(cls, root: Path, scenario_path: Path, plan: Plan, provider: str) -> RunDir:
        """Make the directory of a new run under `root`; two runs in the same second get different ones."""
        started = datetime.now(UTC)
        token = random_secrets.token_hex(3)
        path = root / plan.name / f"{started:%Y%m%dT%H%M%S}-{token}"
        path.mkdir(parents=True)
        shutil.copyfile(scenario_path, path / "scenario.yml")
        facts = {
            "id": f"{plan.name}-{started:%Y%m%dT%H%M%S}-{token}",
            "scenario": plan.name,
            "scenario_path": str(scenario_path),
            "provider": provider,
            "offers": {"cgroups": plan.offers.cgroups, "own_hardware": plan.offers.own_hardware},
            "release": plan.scenario.release,
            "started": started.isoformat(),
        }
        (path / "run.json").write_text(json.dumps(facts, indent=2))
        _point(root / plan.name / "latest", path.name)
        return cls(path)

    @property
    def ssh_config(self) -> Path:
        """The configuration with which `ssh -F` reaches every host by name."""
        return self.path / "ssh_config"

    @property
    def events_path(self) -> Path:
        """What happened when, one JSON object a line."""
        return self.path / "events.jsonl"

    @property
    def scenario_path(self) -> str:
        """Where the scenario was read from."""
        return str(self._facts["scenario_path"])

    @property
    def control_directory(self) -> Path:
        """Where SSH keeps the sockets of its shared connections; their paths must stay under 104 characters."""
        return Path(tempfile.gettempdir()) / f"harness-{self.id[-6:]}"

    def plan(self) -> Plan:
        """Return the plan of this run, made again from its scenario."""
        scenario = scenario_file.load(self.path / "scenario.yml")
        if self._facts["release"] != scenario.release:
            scenario = scenario.with_release(self._facts["release"])
        return make_plan(self._facts["scenario"], scenario, Offers(**self._facts["offers"]))

    def write_tree(self, tree: Tree) -> None:
        """Write the rendered files of every host, and the manifest."""
        write_tree(self.path / "tree", tree)
        (self.path / "manifest.json").write_text(json.dumps(manifest(tree), indent=2))

    def make_secrets(self, tree: Tree) -> dict[str, str]:
        """Make what the tree wants of secrets, and the keys for SSH; what is there already stays."""
        directory = self.path / "secrets"
        directory.mkdir(mode=0o700, exist_ok=True)
        for key in ("ssh_key", "ssh_host_key"):
            if not (directory / key).exists():
                command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", self.id, "-f", str(directory / key)]
                subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
        wanted = {name for files in tree.values() for file in files for name in secrets_in(file.text)}
        for name in wanted:
            path = directory / name
            if not path.exists():
                path.touch(mode=0o600)
                # munge wants at least 32 bytes; 64 random ones as text suit passwords too.
                path.write_text(random_secrets.token_hex(64 if name == "munge_key" else 16))
        return {name: (directory / name).read_text() for name in wanted}

    def secret_path(self, name: str) -> Path:
        """Return the file that holds a secret."""
        return self.path / "secrets" / name

    def event(self, kind: str, **facts: Any) -> None:
        """Add a line to events.jsonl."""
        line = json.dumps({"time": datetime.now(UTC).isoformat(), "kind": kind, **facts})
        with self.events_path.open("a") as events:
            events.write(line + "\n")

    def events(self) -> Iterable[dict[str, Any]]:
        """Return what happened so far, oldest first."""
        if not self.events_path.exists():
            return []
        return [json.loads(line) for line in self.events_path.read_text().splitlines()]


def write_tree(directory: Path, tree: Tree, *, secrets: bool = True) -> None:
    """Write DIRECTORY/HOST/absolute path for every file; without `secrets` also those that are nothing else."""
    for host, files in tree.items():
        for file in files:
            path = directory / host / file.path.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=int(file.mode, 8) | 0o200)
            path.write_text(file.text)


def find(root: Path, which: str | None) -> RunDir:
    """Open a run by its directory, its id, or its scenario's name or file; unset, the newest of all."""
    if which and (Path(which) / "run.json").exists():
        return RunDir(Path(which))
    runs = all_runs(root)
    if which:
        name = Path(which).stem
        runs = [run for run in runs if which == run.id or run.path.parent.name == name]
    if not runs:
        raise UsageError(f"no run {which or ''} under {root}".replace("  ", " "), hint="`harness up SCENARIO` starts one")
    return runs[-1]


def all_runs(root: Path) -> list[RunDir]:
    """Return all runs, the newest last."""
    return [RunDir(path.parent) for path in sorted(root.glob("*/[0-9]*/run.json"), key=lambda path: path.parent.name)]


def _point(link: Path, target: str) -> None:
    fresh = link.with_name(f".{link.name}-{target}")
    fresh.symlink_to(target)
    fresh.replace(link)
