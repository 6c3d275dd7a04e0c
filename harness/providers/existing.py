"""Hosts that are there already, reached with the user's own SSH and sudo; they get back what a run replaced.

Truth is on the hosts: each that a run holds has a mark, and all that was put aside (see host_side). The file `held` in
the run's directory says that there may be some.
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

from harness import conf, inventory, rundir
from harness.errors import CannotJudge, CommandFailed, HarnessError, Unreachable, UsageError
from harness.inventory import Machine
from harness.options import OWN_MACHINES
from harness.plan import Host, Plan
from harness.providers import host_side, preview
from harness.providers.preview import HostChanges
from harness.render import Tree, render
from harness.rundir import RunDir
from harness.scenario import Path_, Scenario
from harness.ssh import Ssh

# Runs what comes with a request, on a host that has nothing of ours.
_PROGRAM = "import json, sys; request = json.load(sys.stdin); exec(request['program']); print(answer(request))"
_PARALLEL = 8
# Seconds for daemons to stop and start again.
_PATIENCE = 300
# What ssh(1) and sudo(8) say, and what the user does about it.
_HINTS = {
    "Host key verification failed": "`ssh {host}` once, look at the key, and say yes",
    "Permission denied": "ssh-add your key, or name it in the inventory: ansible_ssh_private_key_file",
    "a password is required": "sudo must not ask there: USER ALL=(ALL) NOPASSWD: ALL in a file of /etc/sudoers.d",
    "sudo: not found": "apt-get install sudo there",
    "sudo: command not found": "apt-get install sudo there",
    "python3: not found": "apt-get install python3 there",
}
Agree = Callable[[Sequence[HostChanges]], None]


def _nobody_asked(_: Sequence[HostChanges]) -> None:
    raise UsageError("nobody has agreed to the changes")


class ExistingProvider:
    """Machines of the user's own: those of an inventory, or else those that the scenario names."""

    name = "existing"
    offers = OWN_MACHINES

    def __init__(
        self,
        runs: Path,
        inventory_path: Path | None = None,
        ssh_config: str = "~/.ssh/config",
        agree: Agree = _nobody_asked,
    ) -> None:
        self._runs, self._inventory, self._ssh_config, self._agree = runs, inventory_path, _whole(ssh_config), agree

    def release_of_image(self, image: str) -> str:
        """Refuse: a machine is no image."""
        raise UsageError(f"image {image}: machines that are there already are made of none")

    def lacks(self, scenario: Scenario) -> Iterator[tuple[Path_, str]]:
        """Yield what wants hosts that can be made, switched off, or given disks and networks."""
        for name, cluster in scenario.clusters.items():
            at = ("clusters", name)
            for index, group in enumerate(cluster.nodes):
                if group.provision != "static":
                    yield (*at, "nodes", index, "provision"), "machines that are there already do not come and go"
            if cluster.image:
                yield (*at, "image"), "machines that are there already are made of no image"
            if cluster.packages:
                yield (*at, "packages"), "install them on the machines yourself"
            if cluster.backup_controllers:
                yield (*at, "backup_controllers"), "wants a StateSaveLocation that controllers share: docker makes one"
        if scenario.accounting and scenario.accounting.image:
            yield ("accounting", "image"), "machines that are there already are made of no image"
        if scenario.shared_directories:
            yield ("shared_directories",), "share them yourself; the machines keep what they have"
        if scenario.disks:
            yield ("disks",), "machines that are there already get no disks"

    def prepare(self, plan: Plan, say: Callable[[str], None]) -> None:
        """Nothing is made."""

    def ask(self, plan: Plan, tree: Tree, run: RunDir | None = None) -> None:
        """Look at all hosts, refuse those that cannot or must not be the plan's, and have the user agree to changes."""
        secrets = run.secrets() if run else {}
        with tempfile.TemporaryDirectory() as directory:
            ssh = run.ssh() if run else self._ssh_of(self._machines(plan), Path(directory))
            facts = self._look(plan, tree, ssh, run)
        self._agree(
            [preview.changes(host, tree[host.name], facts[host.name], secrets) for host in plan.lasting_hosts()]
        )

    def up(self, run: RunDir, plan: Plan, hosts: Sequence[Host]) -> list[Machine]:
        """Look at the hosts again, and hold them: put aside, on each, what the run will replace."""
        machines = self._machines(plan)
        run.ssh_config.write_text(self.ssh_config(run, machines))
        tree, ssh = render(plan), run.ssh()
        self._look(plan, tree, ssh, run)
        (run.path / "held").touch()
        facts = {"id": run.id, "by": f"{getpass.getuser()}@{socket.gethostname()}", "since": run.started}

        def hold(host: Host) -> None:
            _ask_host(ssh, host.name, "hold", facts, preview.wanted(plan, host, tree[host.name]), timeout=_PATIENCE)

        _together(hold, hosts)
        return machines

    def ssh_config(self, run: RunDir, machines: Sequence[Machine]) -> str:
        """Return a configuration that adds the inventory's words to the user's own."""
        return inventory.own_ssh_config(machines, run.control_directory, self._ssh_config)

    def hosts(self, run_id: str) -> dict[str, bool]:
        """Return the hosts of a run that it may hold; all are taken to run."""
        return dict.fromkeys(self.runs().get(run_id, []), True)

    def console(self, run_id: str, host: str) -> str:
        """Return nothing: what a machine of the user's prints is not ours to see."""
        return ""

    def runs(self, *, all_users: bool = False) -> dict[str, list[str]]:
        """Return the runs that may hold hosts: those with a directory, which are this user's."""
        return {
            run.id: _hosts_of(run)
            for run in rundir.all_runs(self._runs)
            if run.provider == self.name and (run.path / "held").exists()
        }

    def down(self, run_id: str) -> list[str]:
        """Give the hosts of a run back as they were; CannotJudge tells which could not be, and how to go on."""
        run = next((one for one in rundir.all_runs(self._runs) if one.id == run_id), None)
        if run and not (run.path / "held").exists():
            return []
        with tempfile.TemporaryDirectory() as directory:
            if run:
                ssh, names = run.ssh(), [host.name for host in run.plan().lasting_hosts()]
            else:
                machines = read_inventory(self._inventory) if self._inventory else {}
                ssh, names = self._ssh_of(machines.values(), Path(directory)), list(machines)

            def give_back(name: str) -> list[str]:
                try:
                    told = _ask_host(ssh, name, "give_back", run_id, timeout=_PATIENCE)
                except HarnessError as error:
                    return [f"{name} is not given back: {error}"]
                kept.extend(f"{name}: {note}" for note in told["left"])
                return [f"{name}: {problem}" for problem in told["problems"]]

            kept: list[str] = []
            with ThreadPoolExecutor(_PARALLEL) as pool:
                problems = [problem for found in pool.map(give_back, names) for problem in found]
        if problems:
            raise CannotJudge(
                "\n".join([*problems, *kept]), hint=f"`harness down {run_id}` again gives back what is held still"
            )
        if run:
            (run.path / "held").unlink()
        return kept

    def _never(self, *_: Any, **__: Any) -> Any:
        raise UsageError("machines that are there already are neither made nor switched off nor cut off")

    make = start = stop = kill = pause = unpause = drop = fetch = put = remove = _never

    def _look(self, plan: Plan, tree: Tree, ssh: Ssh, run: RunDir | None) -> dict[str, dict[str, Any]]:
        """Return what each host tells; UsageError names all that cannot or must not be the plan's."""

        def look(host: Host) -> tuple[str, dict[str, Any]]:
            return host.name, _ask_host(ssh, host.name, "look", preview.wanted(plan, host, tree[host.name]))

        facts = dict(_together(look, plan.lasting_hosts()))
        if problems := [
            f"{host.name}: {problem}"
            for host in plan.lasting_hosts()
            for problem in preview.refusals(plan, host, facts[host.name], run.id if run else None)
        ]:
            raise UsageError("\n".join(problems), hint="docs/existing.md says what a machine has to be")
        return facts

    def _machines(self, plan: Plan) -> list[Machine]:
        """Return the machines of the plan's hosts; UsageError names the hosts that have none."""
        known = read_inventory(self._inventory) if self._inventory else _of_scenario(plan.scenario)
        names = [host.name for host in plan.lasting_hosts()]
        if lacking := [name for name in names if name not in known]:
            where = self._inventory or "the scenario's machines"
            raise UsageError(
                f"{where}: no {', '.join(lacking)}", hint="docs/existing.md shows both ways to name machines"
            )
        return [known[name] for name in names]

    def _ssh_of(self, machines: Iterable[Machine], directory: Path) -> Ssh:
        """Return what reaches machines before there is a run, or when its directory is lost."""
        config = directory / "ssh_config"
        config.write_text(inventory.own_ssh_config([*machines], None, self._ssh_config))
        return Ssh(config, directory, sudo=not self.offers.root)


def _hosts_of(run: RunDir) -> list[str]:
    """Return a run's hosts; none where its scenario cannot be read."""
    try:
        return [host.name for host in run.plan().lasting_hosts()]
    except HarnessError:
        return []


def read_inventory(path: Path) -> dict[str, Machine]:
    """Return the machines of an inventory of Ansible's, in any of its formats; UsageError if it is none."""
    command = [str(Path(sys.executable).parent / "ansible-inventory"), "--inventory", str(path), "--list"]
    environment = os.environ | {"ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "True"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        raise UsageError(f"{path} is no inventory: {done.stderr.strip()}")
    told = json.loads(done.stdout)
    return {
        name: _machine(path, name, told["_meta"]["hostvars"].get(name, {}))
        for group in told.values()
        for name in group.get("hosts", ())
    }


def _machine(path: Path, name: str, variables: Mapping[str, Any]) -> Machine:
    texts = ("ansible_ssh_private_key_file", "ansible_private_key_file", "ansible_host", "ansible_user")
    for variable in texts:
        if not isinstance(variables.get(variable), str | None):
            raise UsageError(f"{path}: {variable} of {name} is not text: {variables[variable]!r}")
    port = conf.number(str(variables.get("ansible_port") or 22))
    if port is None or not 0 < port < 2**16:
        raise UsageError(f"{path}: ansible_port of {name} is no port: {variables['ansible_port']!r}")
    key = variables.get(texts[0], variables.get(texts[1]))
    address, user = variables.get("ansible_host"), variables.get("ansible_user")
    for text, wrong in ((name, r"[\s\"]"), (address, r"[\s\"]"), (user, r"[\s\"]"), (key, r"[\x00-\x1f\x7f\"]")):
        if re.search(wrong, str(text)):  # each is a word of an ssh_config
            raise UsageError(f"{name}: {text!r} is neither a host's name nor an address, user or key")
    return Machine(name, address, port if variables.get("ansible_port") else None, user, _whole(key) if key else None)


def _whole(path: str) -> str:
    """Return a path that means the same wherever ssh(1) runs later; it knows `~` itself."""
    return path if path.startswith("~") else str(Path(path).absolute())


def _of_scenario(scenario: Scenario) -> dict[str, Machine]:
    """Return the machines that a scenario names as [USER@]ADDRESS[:PORT]."""
    found = {}
    for name, destination in scenario.machines.items():
        user, _, rest = destination.rpartition("@")
        address, _, port = rest.partition(":")
        found[name] = Machine(name, address, int(port) if port else None, user or None)
    return found


def _together(act: Callable[[Host], Any], hosts: Sequence[Host]) -> list[Any]:
    """Do something on all hosts, side by side; all that went wrong is told at once."""
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
        raise type(problems[0])("\n".join(error.message for error in problems), hint=problems[0].hint)
    return done


def _ask_host(ssh: Ssh, host: str, verb: str, *arguments: Any, timeout: float = 60) -> Any:
    """Have a host do one of the things of host_side; UsageError if it refuses, Unreachable if it does not answer."""
    request = {"program": inspect.getsource(host_side), "verb": verb, "arguments": arguments}
    try:
        done = ssh.run(host, ["python3", "-c", _PROGRAM], stdin=json.dumps(request), timeout=timeout)
    except (CommandFailed, Unreachable) as error:
        hint = next((hint for said, hint in _HINTS.items() if said in error.message.partition("\n")[2]), None)
        last = error.message.splitlines()[-1]
        raise Unreachable(f"{host}: {last}", hint=hint and hint.format(host=host)) from error
    told = json.loads(done.stdout.splitlines()[-1])  # a login shell may say something before it
    if "refused" in told:
        raise UsageError(f"{host}: {told['refused']}")
    return told["told"]
