"""Deploy a rendered tree to hosts, with Ansible."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.text import Text

from harness import interrupts, run_secrets
from harness.cluster import logs, slurm
from harness.errors import CommandFailed, DeployError, HarnessError
from harness.inventory import PYTHON
from harness.plan import Host, Plan
from harness.render import Tree
from harness.rundir import RunDir
from harness.shipped_files import ROLES
from harness.ssh import Ssh

_LOG = logging.getLogger(__name__)
# How many of the last lines of a failed task's output are shown.
_TAIL = 15
# Where install_files.py notes which daemons have not read their files yet.
_PENDING = "/run/slurm-harness"
_INSTALL_FILES = ROLES / "files" / "files" / "install_files.py"


def deploy(run: RunDir, plan: Plan, tree: Tree, ssh: Ssh, say: Callable[[str], None]) -> None:
    """Run roles/site.yml over the run's inventory, unless every host is already deployed.

    Raises DeployError with the tasks that failed, and the last log lines of the daemons.
    """
    payloads = run.path / "payloads"
    deployed_before = payloads.exists()
    secrets = run.secrets()
    _write_payloads(payloads, tree, secrets)
    if deployed_before and _deploy_without_restart(plan, payloads, ssh, say):
        return
    failures: list[Failure] = []

    def on_event(event: dict[str, Any]) -> bool:
        data = event.get("event_data", {})
        match event["event"]:
            case "playbook_on_play_start":
                say(str(data.get("name")))
            case "runner_on_start":
                _LOG.debug(
                    "%s: Ansible: %s: %s", data.get("host"), data.get("role"), data.get("task")
                )
            case "runner_on_failed" | "runner_on_unreachable":
                host, role, task = (str(data.get(key)) for key in ("host", "role", "task"))
                failures.append(Failure(host, role, task, _output(data.get("res", {}), secrets)))
        return True

    import ansible_runner  # here, because rendering does not need it

    with interrupts.deferred() as interrupted:  # Ansible and its children stop first
        result = ansible_runner.run(
            private_data_dir=str(run.path),
            playbook=str(ROLES / "site.yml"),
            inventory=str(run.path / "inventory" / "hosts.yml"),
            roles_path=str(ROLES),
            envvars=_environment(run),
            extravars={"files_payloads": str(payloads)},
            event_handler=on_event,
            cancel_callback=interrupted,
            settings={"pexpect_timeout": 1},  # seconds between two calls of cancel_callback
            quiet=True,
        )
    if result.status != "successful":
        messages = [_message(failure, plan, ssh) for failure in failures]
        raise DeployError(
            "\n".join(messages) or Path(result.config.artifact_dir, "stdout").read_text()[-2000:]
        )


def copy(run: RunDir, plan: Plan, tree: Tree, ssh: Ssh) -> None:
    """Install the files of every host that is up, for daemons that read them later."""
    payloads = run.path / "payloads"
    _write_payloads(payloads, tree, run.secrets())

    def install(host: Host) -> None:
        _install_files(host, payloads, ssh)
        # The next deployment must not restart what has read its files by then.
        _daemons_have_read(host, ssh)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(install, plan.permanent_hosts()))


def _install_files(host: Host, payloads: Path, ssh: Ssh, *options: str) -> dict[str, Any]:
    """Install the files of a host; return what install_files.py prints."""
    program = [PYTHON, "-c", _INSTALL_FILES.read_text(), "[]", json.dumps(host.daemons), *options]
    stdin = (payloads / f"{host.name}.json").read_text()
    printed: dict[str, Any] = json.loads(ssh.run(host.name, program, stdin=stdin).stdout)
    return printed


def _daemons_have_read(host: Host, ssh: Ssh) -> None:
    """Forget which daemons of a host had to read their files."""
    ssh.run(host.name, ["rm", "--recursive", "--force", _PENDING])


def _deploy_without_restart(
    plan: Plan, payloads: Path, ssh: Ssh, say: Callable[[str], None]
) -> bool:
    """Do what the playbook would do, in less time, if no daemon must start or restart.

    Return whether that was so. If not, the playbook completes what this has begun. DeployError if
    slurmctld refuses what has changed.
    """
    if any(cluster.backup_controllers for cluster in plan.scenario.clusters.values()):
        return False  # slurmctld does not tell backup controllers to read their files again

    def install(host: Host) -> dict[str, Any]:
        return _install_files(host, payloads, ssh, "reload")

    hosts = plan.permanent_hosts()
    try:
        with ThreadPoolExecutor(8) as pool:
            results = dict(zip(hosts, pool.map(install, hosts), strict=True))
            _create_objects(plan, ssh)
            reloading = [host for host in hosts if results[host]["unit_actions"]]
            _reconfigure(plan, {host.cluster for host in reloading}, ssh, say)
            list(pool.map(lambda host: _daemons_have_read(host, ssh), reloading))
        if plan.has_late_objects():
            _create_objects(plan, ssh, "late")
        for host in plan.with_reservations():
            ssh.run(host.name, ["/usr/local/sbin/slurm-reservations"])
    except DeployError:
        raise
    except HarnessError as error:
        _LOG.debug("%s", error)  # the playbook will fail in the same way, and report it
        return False
    if not any(result["changed"] for result in results.values()):
        say("nothing to do: every host has its files, and its daemons are running")
    return True


def _create_objects(plan: Plan, ssh: Ssh, part: str = "") -> None:
    """Create the accounts, users and other objects that slurmdbd lacks."""
    if client := plan.accounting_client():
        ssh.run(client.name, ["/usr/local/sbin/slurm-accounting-objects", part])


def _reconfigure(plan: Plan, names: Set[str | None], ssh: Ssh, say: Callable[[str], None]) -> None:
    """Have the daemons of clusters read their configuration, one cluster after the other.

    A member of a federation must be connected again before the next one is reconfigured.
    """
    clusters = slurm.clusters(ssh, plan)
    for name, cluster in clusters.items():
        if name in names:
            say(f"Reconfigure {name}")
            try:
                slurm.reconfigure(cluster)
            except CommandFailed as error:
                output = error.stderr.strip()
                failure = Failure(cluster.controller, "slurmctld", "scontrol reconfigure", output)
                raise DeployError(_message(failure, plan, ssh)) from error
            slurm.connect_siblings(plan, clusters, say)


def _output(result: Mapping[str, Any], secrets: Mapping[str, str]) -> str:
    r"""Return the message of a failed task, and the last lines that its command printed.

    Secrets are hidden. Ansible runs a raw command in a terminal, so its errors are in `stdout`, and
    may be colored. A task with no_log has no output.

    >>> printed = "\x1b[31msacctmgr: fatal: no cluster\x1b[0m\r\n"
    >>> _output({"msg": "non-zero return code", "stdout": printed}, {})
    'non-zero return code\nsacctmgr: fatal: no cluster'
    """
    if "censored" in result:
        return str(result["censored"])
    lines = [run_secrets.hide(str(result.get("msg") or ""), secrets)]
    for stream in ("stderr", "stdout"):
        plain = Text.from_ansi(str(result.get(stream) or "").replace("\r\n", "\n")).plain
        text = run_secrets.hide(plain, secrets)
        lines += run_secrets.PASSWORD.sub(r"\1(hidden)", text).splitlines()[-_TAIL:]
    return "\n".join(dict.fromkeys(filter(None, lines)))


@dataclass(frozen=True, slots=True)
class Failure:
    """A task that failed on a host."""

    host: str
    role: str
    task: str
    output: str


def _message(failure: Failure, plan: Plan, ssh: Ssh) -> str:
    """Describe a failed task.

    If a daemon did not start, its last log lines follow, because they say why.
    """
    text = f"{failure.host}: {failure.task}: failed\n{failure.output}"
    host = next((host for host in plan.hosts if host.name == failure.host), None)
    if host and failure.role in host.daemons:
        lines = logs.last_lines(ssh, plan, host, failure.role)
        text += f"\nlast log lines of {failure.role} on {host.name}:\n{lines}"
    return text


def count_tasks(run: RunDir) -> int:
    """Return how many tasks Ansible ran on hosts in the newest deployment."""
    newest = max((run.path / "artifacts").iterdir(), key=lambda path: path.stat().st_mtime)
    events = (json.loads(path.read_text()) for path in (newest / "job_events").glob("*.json"))
    return sum(event["event"] == "runner_on_ok" for event in events)


def _environment(run: RunDir) -> dict[str, str]:
    return {
        # ansible-playbook is next to the Python that runs this, which need not be in the user's
        # PATH.
        "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}",
        # The run's ssh_config has all options of connections, including how they are shared.
        "ANSIBLE_SSH_ARGS": f"-F {run.ssh_config}",
        # Ansible overrides ConnectTimeout of that file with this, by default 10 s. It includes the
        # time that sshd needs to start, which takes long where CPUs are busy.
        "ANSIBLE_TIMEOUT": "60",
        "ANSIBLE_PIPELINING": "True",
        "ANSIBLE_FORKS": str(max(8, 4 * (os.cpu_count() or 1))),
        "ANSIBLE_HOST_KEY_CHECKING": "True",
        "ANSIBLE_LOCAL_TEMP": str(run.path / "artifacts" / "tmp"),
        "ANSIBLE_RETRY_FILES_ENABLED": "False",
        "ANSIBLE_DEPRECATION_WARNINGS": "False",
    }


def _write_payloads(directory: Path, tree: Tree, secrets: dict[str, str]) -> None:
    """Write the files of each host, with secrets; only the owner can read the directory."""
    directory.mkdir(mode=0o700, exist_ok=True)
    for host, files in tree.items():
        payload: Sequence[dict[str, Any]] = [
            asdict(file) | {"text": run_secrets.reveal(file.text, secrets)} for file in files
        ]
        path = directory / f"{host}.json"
        path.touch(mode=0o600)
        path.write_text(json.dumps(payload))
