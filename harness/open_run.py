"""An open run, which every stage works on."""

from __future__ import annotations

from dataclasses import dataclass

from harness.errors import Unreachable, WaitTimeout
from harness.inventory import Machine, ssh_host
from harness.plan import Plan
from harness.progress import Say as Say
from harness.providers import CanPower, Provider, ability
from harness.render import Tree
from harness.rundir import RunDir
from harness.ssh import Ssh
from harness.wait import wait_until


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run, with everything that its stages need."""

    directory: RunDir
    plan: Plan
    tree: Tree
    provider: Provider
    ssh: Ssh
    say: Say

    def start_host(self, name: str) -> None:
        """Start a host that was stopped or killed, and wait until SSH answers.

        Its port may have changed.
        """
        provider = ability(self.provider, CanPower, f"start {name}")
        machine = provider.start(self.directory.id, name)
        self.directory.machines.mkdir(exist_ok=True)
        (self.directory.machines / name).write_text(ssh_host(machine))
        self.wait_for_ssh(machine)

    def wait_for_ssh(self, machine: Machine) -> None:
        """Wait until SSH answers on a host.

        Raises Unreachable, with the end of the host's console, if it does not.
        """

        def look() -> str:
            try:
                self.ssh.run(machine.name, ["true"], timeout=30)
            except (Unreachable, WaitTimeout) as error:
                running = machine.name in self.provider.runs().get(self.directory.id, [])
                return str(error) if running else "the host has stopped"
            return ""

        try:
            wait_until(
                look,
                lambda problem: not problem,
                what=f"SSH on {machine.name}",
                # Generous, for a busy machine; a host that has stopped ends the wait at once.
                timeout=3 * self.plan.capabilities.boot_seconds,
                give_up=lambda problem: problem == "the host has stopped",
            )
        except WaitTimeout as error:
            console = self.provider.console(self.directory.id, machine.name)
            raise Unreachable(f"{machine.name} did not come up: {error}\n{console}") from error
