"""Existing machines, reached with the user's own SSH and sudo, and restored after a run.

The state is on the hosts: each host that a run holds has a record and the saved files (see
host_side). The file `held` in the run's directory says that the run may hold hosts.
"""

from __future__ import annotations

import getpass
import inspect
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from harness import inventory, rundir
from harness.capabilities import OWN_MACHINES
from harness.errors import CannotVerify, CommandFailed, HarnessError, Unreachable, UsageError
from harness.inventory import Machine
from harness.parsing import conf
from harness.plan import Host, Plan
from harness.providers.existing import host_side, preview
from harness.providers.existing.preview import HostChanges
from harness.render import Tree, render
from harness.rundir import RunDir
from harness.scenario import Path_, Scenario
from harness.ssh import Ssh

# Runs the program in a request, on a host that has none of the harness's files.
_PROGRAM = (
    "import json, sys; request = json.load(sys.stdin); "
    "exec(request['program']); print(answer(request))"
)
_PARALLEL = 8
# Seconds that daemons may take to stop and start again.
_PATIENCE = 300
# Messages of ssh(1) and sudo(8), and how to fix the cause.
_HINTS = {
    "Host key verification failed": "run `ssh {host}` once, check the key and accept it",
    "Permission denied": "ssh-add your key, or name it in the inventory: "
    "ansible_ssh_private_key_file",
    "a password is required": "allow sudo without a password: "
    "USER ALL=(ALL) NOPASSWD: ALL in a file in /etc/sudoers.d",
    "sudo: not found": "run `apt-get install sudo` on the host",
    "sudo: command not found": "run `apt-get install sudo` on the host",
    "python3: not found": "run `apt-get install python3` on the host",
}
Agree = Callable[[Sequence[HostChanges]], None]


def _refuse_changes(_: Sequence[HostChanges]) -> None:
    raise UsageError("the user has not agreed to the changes")


class ExistingProvider:
    """Existing machines, from an inventory or else from the scenario."""

    name = "existing"
    capabilities = OWN_MACHINES

    def __init__(
        self,
        runs: Path,
        inventory_path: Path | None = None,
        ssh_config: str = "~/.ssh/config",
        agree: Agree = _refuse_changes,
    ) -> None:
        self._runs, self._inventory, self._ssh_config, self._agree = (
            runs,
            inventory_path,
            _whole(ssh_config),
            agree,
        )

    def lacks(self, scenario: Scenario) -> Iterator[tuple[Path_, str]]:
        """Yield the keys of a scenario that existing machines cannot provide, with the reason."""
        for name, cluster in scenario.clusters.items():
            at = ("clusters", name)
            for index, group in enumerate(cluster.nodes):
                if group.provision != "static":
                    yield (
                        (*at, "nodes", index, "provision"),
                        "existing machines cannot be created, removed or switched off",
                    )
            if cluster.image:
                yield (*at, "image"), "existing machines are not created from an image"
            if cluster.source:
                yield (*at, "source"), "existing machines have their own Slurm"
            if cluster.packages:
                yield (*at, "packages"), "install them on the machines yourself"
            if cluster.spank_plugins:
                yield (*at, "spank_plugins"), "install them on the machines yourself"
            if cluster.nss_slurm:
                yield (
                    (*at, "nss_slurm"),
                    "the harness does not change how existing machines look up users",
                )
            if cluster.backup_controllers:
                yield (
                    (*at, "backup_controllers"),
                    "requires a StateSaveLocation that the controllers share: --provider docker",
                )
        if scenario.accounting and scenario.accounting.image:
            yield ("accounting", "image"), "existing machines are not created from an image"
        if scenario.shared_directories:
            yield (
                ("shared_directories",),
                "share them yourself; the harness does not change what existing machines share",
            )
        for place in scenario.user_data():
            yield place, "cloud-init does not initialize existing machines: --provider vagrant"
        for site in scenario.dns_servers():
            yield (
                ("sites", site, "dns_server"),
                "the harness does not change how existing machines resolve names",
            )
        if scenario.disks:
            yield ("disks",), "existing machines keep their disks"

    def prepare(self, plan: Plan, say: Callable[[str], None]) -> None:
        """Do nothing: existing machines need no images."""

    def confirm(self, plan: Plan, tree: Tree, run: RunDir | None = None) -> None:
        """Check that all hosts can and may be used, and ask the user to agree to the changes."""
        secrets = run.secrets() if run else {}
        with tempfile.TemporaryDirectory() as directory:
            ssh = run.ssh() if run else self._ssh_of(self._machines(plan), Path(directory))
            facts = self._look(plan, tree, ssh, run)
        self._agree(
            [
                preview.changes(host, tree[host.name], facts[host.name], secrets)
                for host in plan.permanent_hosts()
            ]
        )

    def up(self, run: RunDir, plan: Plan, hosts: Sequence[Host]) -> list[Machine]:
        """Check the hosts again, and hold them: save what the run will replace on each."""
        machines = self._machines(plan)
        run.ssh_config.write_text(self.ssh_config(run, machines))
        tree, ssh = render(plan), run.ssh()
        self._look(plan, tree, ssh, run)
        (run.path / "held").touch()
        facts = {
            "id": run.id,
            "by": f"{getpass.getuser()}@{socket.gethostname()}",
            "since": run.started,
        }

        def hold(host: Host) -> None:
            _ask_host(
                ssh,
                host.name,
                "hold",
                facts,
                preview.wanted(plan, host, tree[host.name]),
                timeout=_PATIENCE,
            )

        _on_all(hold, hosts)
        return machines

    def ssh_config(self, run: RunDir, machines: Sequence[Machine]) -> str:
        """Return the user's own SSH configuration with the connection settings of the inventory."""
        return inventory.own_ssh_config(machines, run.control_directory, self._ssh_config)

    def hosts(self, run_id: str) -> dict[str, bool]:
        """Return the hosts that a run may hold; all count as running."""
        return dict.fromkeys(self.runs().get(run_id, []), True)

    def console(self, run_id: str, host: str) -> str:
        """Return nothing: the harness does not read the console of an existing machine."""
        return ""

    def runs(self, *, all_users: bool = False) -> dict[str, list[str]]:
        """Return the runs that may hold hosts: those with a directory, which are this user's."""
        return {
            run.id: _hosts_of(run)
            for run in rundir.all_runs(self._runs)
            if run.provider == self.name and (run.path / "held").exists()
        }

    def down(self, run_id: str) -> list[str]:
        """Restore the hosts of a run; CannotVerify names those that could not be restored."""
        run = next((run for run in rundir.all_runs(self._runs) if run.id == run_id), None)
        if run and not (run.path / "held").exists():
            return []
        with tempfile.TemporaryDirectory() as directory:
            if run:
                ssh, names = run.ssh(), [host.name for host in run.plan().permanent_hosts()]
            else:
                machines = read_inventory(self._inventory) if self._inventory else {}
                ssh, names = self._ssh_of(machines.values(), Path(directory)), list(machines)

            def restore(name: str) -> list[str]:
                try:
                    answer = _ask_host(ssh, name, "restore", run_id, timeout=_PATIENCE)
                except HarnessError as error:
                    return [f"{name} could not be restored: {error}"]
                kept.extend(f"{name}: {note}" for note in answer["left"])
                return [f"{name}: {problem}" for problem in answer["problems"]]

            kept: list[str] = []
            with ThreadPoolExecutor(_PARALLEL) as pool:
                problems = [problem for failed in pool.map(restore, names) for problem in failed]
        if problems:
            raise CannotVerify(
                "\n".join([*problems, *kept]),
                hint=f"run `harness down {run_id}` again to restore the remaining hosts",
            )
        if run:
            (run.path / "held").unlink()
        return kept

    def _look(
        self, plan: Plan, tree: Tree, ssh: Ssh, run: RunDir | None
    ) -> dict[str, dict[str, Any]]:
        """Return the facts of each host.

        UsageError lists all reasons why hosts cannot or must not be used.
        """

        def look(host: Host) -> tuple[str, dict[str, Any]]:
            return host.name, _ask_host(
                ssh, host.name, "look", preview.wanted(plan, host, tree[host.name])
            )

        facts = dict(_on_all(look, plan.permanent_hosts()))
        if problems := [
            f"{host.name}: {problem}"
            for host in plan.permanent_hosts()
            for problem in preview.refusals(plan, host, facts[host.name], run.id if run else None)
        ]:
            raise UsageError(
                "\n".join(problems), hint="docs/existing.md lists what a machine needs"
            )
        return facts

    def _machines(self, plan: Plan) -> list[Machine]:
        """Return the machines of the plan's hosts; UsageError names hosts without a machine."""
        known = (
            read_inventory(self._inventory) if self._inventory else _named_machines(plan.scenario)
        )
        names = [host.name for host in plan.permanent_hosts()]
        if lacking := [name for name in names if name not in known]:
            where = self._inventory or "the scenario's machines"
            raise UsageError(
                f"{where}: no machine for {', '.join(lacking)}",
                hint="docs/existing.md shows both ways to name machines",
            )
        return [known[name] for name in names]

    def _ssh_of(self, machines: Iterable[Machine], directory: Path) -> Ssh:
        """Return an SSH connection to machines that does not need the directory of a run."""
        config = directory / "ssh_config"
        config.write_text(inventory.own_ssh_config([*machines], None, self._ssh_config))
        return Ssh(config, directory, sudo=not self.capabilities.root)


def _hosts_of(run: RunDir) -> list[str]:
    """Return a run's hosts; an empty list if its scenario cannot be read."""
    try:
        return [host.name for host in run.plan().permanent_hosts()]
    except HarnessError:
        return []


def read_inventory(path: Path) -> dict[str, Machine]:
    """Return the machines of an Ansible inventory in any format; UsageError if it is invalid."""
    command = [
        str(Path(sys.executable).parent / "ansible-inventory"),
        "--inventory",
        str(path),
        "--list",
    ]
    environment = os.environ | {"ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "True"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        raise UsageError(f"{path} is not a valid inventory: {done.stderr.strip()}")
    inventory_json = json.loads(done.stdout)
    return {
        name: _machine(path, name, inventory_json["_meta"]["hostvars"].get(name, {}))
        for group in inventory_json.values()
        for name in group.get("hosts", ())
    }


def _machine(path: Path, name: str, variables: Mapping[str, Any]) -> Machine:
    texts = (
        "ansible_ssh_private_key_file",
        "ansible_private_key_file",
        "ansible_host",
        "ansible_user",
    )
    for variable in texts:
        if not isinstance(variables.get(variable), str | None):
            raise UsageError(f"{path}: {variable} of {name} is not text: {variables[variable]!r}")
    port = conf.number(str(variables.get("ansible_port") or 22))
    if port is None or not 0 < port < 2**16:
        raise UsageError(
            f"{path}: ansible_port of {name} is not a port: {variables['ansible_port']!r}"
        )
    key = variables.get(texts[0], variables.get(texts[1]))
    address, user = variables.get("ansible_host"), variables.get("ansible_user")
    for text, wrong in (
        (name, r"[\s\"]"),
        (address, r"[\s\"]"),
        (user, r"[\s\"]"),
        (key, r"[\x00-\x1f\x7f\"]"),
    ):
        if re.search(wrong, str(text)):  # each is a word of an ssh_config
            raise UsageError(f"{name}: {text!r} is not a valid host name, address, user or key")
    return Machine(
        name,
        address,
        port if variables.get("ansible_port") else None,
        user,
        _whole(key) if key else None,
    )


def _whole(path: str) -> str:
    """Return a path that is valid wherever ssh(1) runs later; ssh itself expands `~`."""
    return path if path.startswith("~") else str(Path(path).absolute())


def _named_machines(scenario: Scenario) -> dict[str, Machine]:
    """Return the machines that a scenario names as [USER@]ADDRESS[:PORT]."""
    machines = {}
    for name, destination in scenario.machines.items():
        user, _, rest = destination.rpartition("@")
        address, _, port = rest.partition(":")
        machines[name] = Machine(name, address, int(port) if port else None, user or None)
    return machines


def _on_all(act: Callable[[Host], Any], hosts: Sequence[Host]) -> list[Any]:
    """Call `act` for all hosts in parallel; a single error reports all problems."""
    problems: list[HarnessError] = []

    def attempt(host: Host) -> Any:
        try:
            return act(host)
        except HarnessError as error:
            problems.append(error)
            return None

    with ThreadPoolExecutor(_PARALLEL) as pool:
        done = list(pool.map(attempt, hosts))
    if problems:
        raise type(problems[0])(
            "\n".join(error.message for error in problems), hint=problems[0].hint
        )
    return done


def _ask_host(ssh: Ssh, host: str, verb: str, *arguments: Any, timeout: float = 120) -> Any:
    """Execute a request of host_side on a host.

    UsageError if it refuses, Unreachable if it does not answer.
    """
    request = {"program": inspect.getsource(host_side), "verb": verb, "arguments": arguments}
    try:
        done = ssh.run(
            host, ["python3", "-c", _PROGRAM], stdin=json.dumps(request), timeout=timeout
        )
    except (CommandFailed, Unreachable) as error:
        printed = error.message.rpartition("\n")[0]  # without the command, which has our program
        hint = next((hint for text, hint in _HINTS.items() if text in printed), None)
        first = printed.partition("\n")[0]
        raise Unreachable(first, hint=hint and hint.format(host=host)) from error
    answer = json.loads(done.stdout.splitlines()[-1])  # a login shell may print something before it
    if "refused" in answer:
        raise UsageError(f"{host}: {answer['refused']}")
    return answer["result"]
