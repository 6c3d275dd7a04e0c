"""Make hosts what the rendered tree says, with Ansible."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ansible_runner

from harness import options
from harness.errors import DeployError
from harness.render import Tree
from harness.resources import ROLES
from harness.rundir import RunDir


def deploy(run: RunDir, tree: Tree, secrets: dict[str, str], say: Callable[[str], None]) -> None:
    """Run roles/site.yml over the run's inventory; DeployError names the hosts and tasks that failed."""
    payloads = run.path / "secrets" / "files"
    _write_payloads(payloads, tree, secrets)
    failures: list[str] = []

    def on_event(event: dict[str, Any]) -> bool:
        data = event.get("event_data", {})
        match event["event"]:
            case "playbook_on_play_start":
                say(str(data.get("name")))
            case "runner_on_failed" | "runner_on_unreachable" if not data.get("ignore_errors"):
                result = data.get("res", {})
                said = [str(result[key]) for key in ("msg", "stderr") if result.get(key)]
                failures.append(f"{data.get('host')}: {data.get('task')}: " + "\n".join(said))
        return True

    result = ansible_runner.run(
        private_data_dir=str(run.path),
        playbook=str(ROLES / "site.yml"),
        inventory=str(run.path / "inventory" / "hosts.yml"),
        roles_path=str(ROLES),
        envvars=_environment(run),
        extravars={"files_payloads": str(payloads)},
        event_handler=on_event,
        quiet=True,
    )
    if result.status == "canceled":
        raise KeyboardInterrupt
    if result.status != "successful":
        said = failures or [Path(result.config.artifact_dir, "stdout").read_text()[-2000:]]
        raise DeployError("Ansible could not deploy:\n" + "\n".join(said))


def count_tasks(run: RunDir) -> int:
    """Return how many tasks Ansible ran on hosts in the newest deploy."""
    newest = max((run.path / "artifacts").iterdir(), key=lambda path: path.stat().st_mtime)
    events = (json.loads(path.read_text()) for path in (newest / "job_events").glob("*.json"))
    return sum(event["event"] == "runner_on_ok" for event in events)


def _environment(run: RunDir) -> dict[str, str]:
    return {
        # ansible-playbook stands beside the Python that runs this, whatever the user's PATH says.
        "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}",
        # The harness's own ssh_config says everything about connections, their sharing too.
        "ANSIBLE_SSH_ARGS": f"-F {run.ssh_config}",
        "ANSIBLE_PIPELINING": "True",
        "ANSIBLE_FORKS": str(max(8, 4 * (os.cpu_count() or 1))),
        "ANSIBLE_HOST_KEY_CHECKING": "True",
        "ANSIBLE_LOCAL_TEMP": str(run.path / "artifacts" / "tmp"),
        "ANSIBLE_RETRY_FILES_ENABLED": "False",
        "ANSIBLE_DEPRECATION_WARNINGS": "False",
    }


def _write_payloads(directory: Path, tree: Tree, secrets: dict[str, str]) -> None:
    """Write what each host gets, secrets and all; the directory is readable by its owner only."""
    directory.mkdir(mode=0o700, exist_ok=True)
    for host, files in tree.items():
        payload: Sequence[dict[str, Any]] = [
            asdict(file) | {"text": options.reveal(file.text, secrets)} for file in files
        ]
        path = directory / f"{host}.json"
        path.touch(mode=0o600)
        path.write_text(json.dumps(payload))
