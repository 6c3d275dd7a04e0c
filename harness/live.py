"""A run that is open, and what every stage of it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harness.errors import Unreachable, WaitTimeout
from harness.inventory import Machine, ssh_host
from harness.plan import Plan
from harness.providers import Provider
from harness.render import Tree
from harness.rundir import RunDir
from harness.ssh import Ssh
from harness.wait import wait_until

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Live:
    """A run and what every stage of it needs."""

    run: RunDir
    plan: Plan
    tree: Tree
    provider: Provider
    ssh: Ssh
    say: Say

    def start_host(self, name: str) -> None:
        """Start a host that was stopped or killed, and wait until SSH answers; its port may be another one now."""
        machine = self.provider.start(self.run.id, name)
        self.run.machines.mkdir(exist_ok=True)
        (self.run.machines / name).write_text(ssh_host(machine))
        self.wait_for_ssh(machine)

    def wait_for_ssh(self, machine: Machine) -> None:
        """Wait until SSH answers on a host; Unreachable, with what the host printed last, if it does not."""

        def look() -> str:
            try:
                self.ssh.run(machine.name, ["true"], timeout=10)
            except (Unreachable, WaitTimeout) as error:
                running = machine.name in self.provider.runs().get(self.run.id, [])
                return str(error) if running else "the host has stopped"
            return ""

        try:
            wait_until(
                look,
                lambda problem: not problem,
                what=f"SSH on {machine.name}",
                timeout=3 * self.provider.offers.boot_seconds,  # on a busy machine; one that has stopped ends it
                hopeless=lambda problem: problem == "the host has stopped",
            )
        except WaitTimeout as error:
            console = self.provider.console(self.run.id, machine.name)
            raise Unreachable(f"{machine.name} did not come up: {error}\n{console}") from error
