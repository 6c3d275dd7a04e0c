"""Providers bring hosts up and take them down; they know nothing of clusters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from harness.errors import UsageError
from harness.inventory import Machine
from harness.options import Offers
from harness.plan import Host, Plan
from harness.render import RenderedFile, Tree
from harness.rundir import RunDir
from harness.scenario import Path_, Scenario


@dataclass(frozen=True, slots=True)
class Drop:
    """What a host shall not hear: packets from another host (None: from any), to a TCP or UDP port (None: to any)."""

    source: str | None = None
    port: int | None = None


class Provider(Protocol):
    """Hosts in which every host resolves the names of all others, and root answers over SSH."""

    name: str
    offers: Offers

    def release_of_image(self, image: str) -> str:
        """Return the Slurm release in an image of the user's own, such as "24.11", as its daemons tell it."""

    def lacks(self, scenario: Scenario) -> Iterable[tuple[Path_, str]]:
        """Return the places of a scenario that ask for what these hosts cannot do, and why."""

    def ask(self, plan: Plan, tree: Tree, run: RunDir | None = None) -> None:
        """Where hosts are somebody's, have the user agree to what changes on them; UsageError if that must not be."""

    def prepare(self, plan: Plan, say: Callable[[str], None]) -> None:
        """Make the images that a plan's hosts need, if they are not there."""

    def up(self, run: RunDir, plan: Plan, hosts: Sequence[Host]) -> list[Machine]:
        """Make hosts and start them; they boot when this returns. What was made before an error is left for `down`."""

    def ssh_config(self, run: RunDir, machines: Sequence[Machine]) -> str:
        """Return a configuration for ssh(1) with which every host is reached by its name."""

    def make(self, run: RunDir, plan: Plan, hosts: Sequence[Host], files: Mapping[str, Sequence[RenderedFile]]) -> None:
        """Make hosts without starting them. They have `files`, and start their daemons when they boot."""

    def start(self, run_id: str, host: str) -> Machine:
        """Start a host that was made; it boots when this returns."""

    def stop(self, run_id: str, host: str) -> None:
        """Shut a host down; it can be started again."""

    def kill(self, run_id: str, host: str) -> None:
        """Take the power from a host; it can be started again."""

    def pause(self, run_id: str, host: str) -> None:
        """Have a host do nothing, as if its machine hung."""

    def unpause(self, run_id: str, host: str) -> None:
        """Have a paused host go on; one that is not paused is no error."""

    def drop(self, run_id: str, host: str, drops: Sequence[Drop]) -> None:
        """Have a host drop what comes in from now on, instead of what it dropped so far."""

    def fetch(self, run_id: str, host: str, directory: str, tar: Path) -> None:
        """Write what a directory of a host holds to a tar file; the host may be stopped."""

    def put(self, run_id: str, host: str, directory: str, tar: Path) -> None:
        """Put what `fetch` wrote into a host, which need not have started yet."""

    def remove(self, run_id: str, host: str) -> None:
        """Remove a host, disk and all; one that is not there is no error."""

    def hosts(self, run_id: str) -> dict[str, bool]:
        """Return the hosts of a run that are there, and whether they run."""

    def console(self, run_id: str, host: str) -> str:
        """Return what a host that SSH does not reach printed last."""

    def runs(self, *, all_users: bool = False) -> dict[str, list[str]]:
        """Return this user's runs that have anything here, or those of `all_users`, and their hosts that run."""

    def down(self, run_id: str) -> list[str]:
        """Remove all that a run has here, whatever state it is in; nothing there is no error.

        Return what stays other than it was before the run.
        """


def get(name: str, runs: Path = Path("runs")) -> Provider:
    """Return the provider of a name, which may end with what it is about: "docker:ENGINE,ENGINE".

    `runs` is where runs keep their directories. UsageError if there is none.
    """
    from harness.providers.docker import DockerProvider  # not at the top: they import this module
    from harness.providers.existing import ExistingProvider
    from harness.providers.vagrant import VagrantProvider

    match name.split(":", 1):
        case ["docker", *engines]:
            return DockerProvider(*engines)
        case ["existing"]:
            return ExistingProvider(runs)
        case ["vagrant"]:
            return VagrantProvider(runs)
    raise UsageError(f'no provider "{name}"', hint="known are docker, docker:CONTEXT,CONTEXT,..., vagrant and existing")
