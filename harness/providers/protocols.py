"""What a provider does, and the abilities that only some providers have.

Every provider is a `Provider`. Each ability is a separate Protocol, and a provider has the ability
if it has the Protocol's methods. Code that needs an ability names it as the type of an argument, or
asks for it with `ability`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

from harness.capabilities import Capabilities
from harness.errors import UsageError
from harness.inventory import Machine
from harness.origins import Origin
from harness.plan import Host, Plan
from harness.render import RenderedFile, Tree
from harness.rundir import RunDir
from harness.scenario import Path_, Scenario


class Provider(Protocol):
    """Creates hosts that resolve each other's names and accept root over SSH."""

    name: str

    @property
    def capabilities(self) -> Capabilities:
        """What its hosts can do."""

    def lacks(self, scenario: Scenario) -> Iterable[tuple[Path_, str]]:
        """Return the keys of a scenario that these hosts cannot fulfil, each with the reason."""

    def confirm(self, plan: Plan, tree: Tree, run: RunDir | None = None) -> None:
        """Ask the user to agree to changes on existing machines.

        UsageError if they must not be changed.
        """

    def prepare(self, plan: Plan, say: Callable[[str], None]) -> None:
        """Build the images that a plan's hosts need and that are missing."""

    def up(self, run: RunDir, plan: Plan, hosts: Sequence[Host]) -> list[Machine]:
        """Create hosts and start them; they are still booting when this returns.

        After an error, `down` removes what was already created.
        """

    def ssh_config(self, run: RunDir, machines: Sequence[Machine]) -> str:
        """Return a configuration with which ssh(1) reaches every host by name."""

    def hosts(self, run_id: str) -> dict[str, bool]:
        """Return the hosts of a run that exist, and whether they are running."""

    def console(self, run_id: str, host: str) -> str:
        """Return the last lines of a host's console, for a host that SSH cannot reach."""

    def runs(self, *, all_users: bool = False) -> dict[str, list[str]]:
        """Return the runs of this user, or of all users, with their running hosts.

        This includes runs of which only a part is left.
        """

    def down(self, run_id: str) -> list[str]:
        """Remove everything that a run has here, in any state; do nothing if there is nothing.

        Return what differs from the state before the run and cannot be restored.
        """


@runtime_checkable
class CanReadImages(Provider, Protocol):
    """Hosts can be created from the user's own images."""

    def origin_of_image(self, image: str) -> Origin:
        """Return which Slurm is in an image, as its daemons report it, and on what it is based."""


@runtime_checkable
class CanPower(Provider, Protocol):
    """Hosts can be switched on and off."""

    def start(self, run_id: str, host: str) -> Machine:
        """Start a host that exists; it is still booting when this returns."""

    def stop(self, run_id: str, host: str) -> None:
        """Shut a host down; it can be started again."""

    def kill(self, run_id: str, host: str) -> None:
        """Cut a host's power; it can be started again."""


@runtime_checkable
class CanCreate(CanPower, Protocol):
    """Single hosts can be created and removed while the run is up."""

    def make(
        self,
        run: RunDir,
        plan: Plan,
        hosts: Sequence[Host],
        files: Mapping[str, Sequence[RenderedFile]],
    ) -> None:
        """Create hosts without starting them.

        They contain `files`, and start their daemons when they boot.
        """

    def remove(self, run_id: str, host: str) -> None:
        """Remove a host and its disk; it is not an error if there is no such host."""


@runtime_checkable
class CanPause(Provider, Protocol):
    """Hosts can be paused."""

    def pause(self, run_id: str, host: str) -> None:
        """Freeze a host, as if its machine hung."""

    def unpause(self, run_id: str, host: str) -> None:
        """Let a paused host continue; it is not an error if the host is not paused."""


@dataclass(frozen=True, slots=True)
class Drop:
    """Packets that a host drops: from a host (None: any) to a TCP or UDP port (None: any)."""

    source: str | None = None
    port: int | None = None


@runtime_checkable
class CanPartition(Provider, Protocol):
    """Hosts can be cut off from each other, from the outside."""

    def drop(self, run_id: str, host: str, drops: Sequence[Drop]) -> None:
        """Set which incoming packets a host drops; this replaces what an earlier call set."""


@runtime_checkable
class CanCopy(Provider, Protocol):
    """Directories can be copied from and to hosts that are stopped."""

    def fetch(self, run_id: str, host: str, directory: str, tar: Path) -> None:
        """Write a host's directory to a tar file."""

    def put(self, run_id: str, host: str, directory: str, tar: Path) -> None:
        """Unpack a tar file from `fetch` on a host, even one that has never been started."""


@runtime_checkable
class CanRecreate(CanCreate, CanCopy, Protocol):
    """Hosts can be recreated, with their data carried over."""


Ability = TypeVar("Ability", bound=Provider)
# How errors describe each ability, and which providers have it.
ABILITIES: dict[type[Provider], tuple[str, tuple[str, ...]]] = {
    CanReadImages: ("create hosts from images of your own", ("docker",)),
    CanPower: ("switch hosts on and off", ("docker", "vagrant")),
    CanCreate: ("create and remove single hosts", ("docker", "vagrant")),
    CanPause: ("pause hosts", ("docker", "vagrant")),
    CanPartition: ("cut hosts off from each other", ("docker", "vagrant")),
    CanCopy: ("copy files of stopped hosts", ("docker",)),
    CanRecreate: ("recreate hosts with their data", ("docker",)),
}


def ability(provider: Provider, needed: type[Ability], purpose: str) -> Ability:
    """Return the provider, typed as having an ability; UsageError with `purpose` if it lacks it."""
    if isinstance(provider, needed):
        return provider
    description, providers = ABILITIES[needed]
    raise UsageError(
        f"{purpose}: provider {provider.name} cannot {description}",
        hint=f"--provider {' or '.join(providers)}",
    )


def image_reader(provider: Provider) -> Callable[[str], Origin] | None:
    """Return the function that reads an image's release; None if the provider cannot use images."""
    return provider.origin_of_image if isinstance(provider, CanReadImages) else None
