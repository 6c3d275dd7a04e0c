"""Hosts as Docker containers that run systemd, with Docker's default rights once they have booted.

Truth is in labels: every container and network of a run carries `harness.run`, so that `down` needs nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import TypeVar

import docker
from docker.errors import APIError, NotFound
from docker.models.containers import Container
from docker.models.networks import Network
from docker.types import EndpointConfig, IPAMConfig, IPAMPool

from harness import releases
from harness.errors import EngineError, WaitTimeout
from harness.inventory import Machine, ssh_config
from harness.options import Offers
from harness.plan import SHARED_DIRECTORY, Host, Plan
from harness.providers import Drop, engine, images
from harness.providers.engine import engine_errors
from harness.releases import Release
from harness.render import RenderedFile, Tree
from harness.rundir import RunDir
from harness.scenario import Path_, Scenario
from harness.wait import wait_until

RUN, SCENARIO, HOST = "harness.run", "harness.scenario", "harness.host"
# Where a site's subnet is looked for if its scenario names none: RFC 2544 keeps this range for tests in one laboratory.
_SUBNETS = IPv4Network("198.18.0.0/15")
_GATEWAY, _FIRST_HOST = 2, 10
_PARALLEL = 8
# inotify instances that a host's systemd and D-Bus take.
_INOTIFY = 7
Done = TypeVar("Done")


class DockerProvider:
    """Containers on one engine, one network for each site, and a gateway container between the sites."""

    name = "docker"
    # A container sees the CPUs of the whole machine, and gets a cgroup tree mostly without controllers.
    offers = Offers(cgroups=False, own_hardware=False)

    @cached_property
    def _client(self) -> docker.DockerClient:
        return engine.connect()

    def release_of_image(self, image: str) -> str:
        """Ask an image's daemons for their release; EngineError if it cannot be a host."""
        return images.release_of(self._client, image)

    def lacks(self, scenario: Scenario) -> tuple[tuple[Path_, str], ...]:
        """Return nothing: containers can be all that a scenario asks for."""
        return ()

    def ask(self, plan: Plan, tree: Tree, run: RunDir | None = None) -> None:
        """Nobody's hosts change: they are made for the run."""

    def prepare(self, plan: Plan, say: Callable[[str], None]) -> None:
        """Build the images of a plan's releases that the engine does not have."""
        for release in _releases_of_ours(plan):
            images.ensure(self._client, release, say)
        limit = Path("/proc/sys/fs/inotify/max_user_instances")
        hosts = len(plan.hosts) + sum(map(len, self.runs().values()))
        if limit.exists() and hosts * _INOTIFY > (most := int(limit.read_text())):
            say(
                f"{hosts} hosts want {hosts * _INOTIFY} inotify instances, and there are {most}: some may not boot; "
                "sysctl -w fs.inotify.max_user_instances=1024"
            )

    def up(self, run: RunDir, plan: Plan, hosts: Sequence[Host]) -> list[Machine]:
        """Make the containers of `hosts` and start them."""
        self.make(run, plan, hosts, {})
        return self._everywhere(lambda host: self.start(run.id, host.name), hosts)

    def ssh_config(self, run: RunDir, machines: Sequence[Machine]) -> str:
        """Return a configuration with the run's own keys."""
        known_hosts = run.path / "known_hosts"
        known_hosts.write_text(f"harness {run.key('ssh_host_key.pub').read_text()}")
        return ssh_config(machines, run.key("ssh_key"), known_hosts, run.control_directory, run.machines)

    def make(self, run: RunDir, plan: Plan, hosts: Sequence[Host], files: Mapping[str, Sequence[RenderedFile]]) -> None:
        """Make the containers of `hosts`; the run's networks and gateway too, if they are not there yet."""
        networks = self._networks(run, plan)
        addresses = _addresses(plan, networks)
        labels = {RUN: run.id, SCENARIO: plan.name}
        keys = images.archive(
            [
                # An image of the user's own lacks it.
                images.Entry(images.BOOT, images.boot_script(), 0o755),
                images.Entry("/root/.ssh/authorized_keys", run.key("ssh_key.pub").read_bytes(), 0o600),
                images.Entry("/etc/ssh/ssh_host_ed25519_key", run.key("ssh_host_key").read_bytes(), 0o600),
            ]
        )
        if len(networks) > 1:
            self._gateway(run.id, plan, networks, addresses, labels)
        with engine_errors("cannot make the hosts' disks"):
            for volume in {volume for host in hosts for volume in host.volumes}:
                self._client.volumes.create(f"{run.id}_{volume.name}", labels=labels)

        def make(host: Host) -> None:
            network, subnet = networks[host.site]
            network_name = str(network.name)
            routes = [f"{other} via {subnet[_GATEWAY]}" for _, other in networks.values() if other != subnet]
            container = self._client.containers.create(
                host.image or images.tag(_release_on(host)),
                entrypoint=images.BOOT,
                name=f"{run.id}-{host.name}",
                hostname=host.name,
                labels={**labels, HOST: host.name},
                # Only to mount cgroup2 and small disks and to set routes at boot; the entry point gives both up before
                # systemd starts.
                cap_add=["SYS_ADMIN", "NET_ADMIN"],
                security_opt=["apparmor=unconfined"],
                devices=["/dev/fuse"] if host.apptainer and not host.image else [],
                cgroupns="private",
                tmpfs={"/run": ""},
                volumes={f"{run.id}_{volume.name}": {"bind": volume.directory} for volume in host.volumes},
                environment={
                    "HARNESS_ROUTES": ",".join(routes),
                    "HARNESS_DISKS": ",".join(f"{size} {directory}" for directory, size in host.disks),
                    "HARNESS_ADOPT": "yes" if host.image else "",
                },
                # Its own name Docker adds; a daemon that listens at a name with two addresses fails at the second.
                extra_hosts={name: str(address) for name, address in addresses.items() if name != host.name},
                ports={"22/tcp": ("127.0.0.1", 0)},  # any free port
                network=network_name,
                networking_config={network_name: self._endpoint(addresses[host.name])},
            )
            container.put_archive("/", keys)
            if any(volume.directory == SHARED_DIRECTORY for volume in host.volumes):
                container.put_archive("/", images.archive([images.Entry(SHARED_DIRECTORY, None, 0o1777)]))
            if host.name in files:
                container.put_archive("/", images.seed(container, files[host.name], host.daemons))

        self._everywhere(make, hosts)

    def start(self, run_id: str, host: str) -> Machine:
        """Start a container, and find the port at which SSH answers: another one each time."""
        with engine_errors(f"cannot start {host}"):
            container = self._client.containers.get(f"{run_id}-{host}")
            container.start()
            container.reload()
            published = container.ports.get("22/tcp")
        if not published:
            raise EngineError(f"{host} stopped at once\n{self.console(run_id, host)}")
        return Machine(host, "127.0.0.1", int(published[0]["HostPort"]))

    def stop(self, run_id: str, host: str) -> None:
        """Shut a container's systemd down; it has ten seconds for it."""
        with engine_errors(f"cannot stop {host}"):
            self._client.containers.get(f"{run_id}-{host}").stop(timeout=10)

    def kill(self, run_id: str, host: str) -> None:
        """Kill a container."""
        with engine_errors(f"cannot kill {host}"):
            self._client.containers.get(f"{run_id}-{host}").kill()

    def pause(self, run_id: str, host: str) -> None:
        """Freeze all processes of a container."""
        with engine_errors(f"cannot pause {host}"):
            self._client.containers.get(f"{run_id}-{host}").pause()

    def unpause(self, run_id: str, host: str) -> None:
        """Thaw all processes of a container."""
        with engine_errors(f"cannot unpause {host}"):
            container = self._client.containers.get(f"{run_id}-{host}")
            if container.status == "paused":
                container.unpause()

    def drop(self, run_id: str, host: str, drops: Sequence[Drop]) -> None:
        """Set the packet filter of a container's network namespace, from a container that lives in it for a moment."""
        with engine_errors(f"cannot set the packet filter of {host}"):
            container = self._client.containers.get(f"{run_id}-{host}")
            there = {
                other.labels[HOST]: next(iter(other.attrs["NetworkSettings"]["Networks"].values()))["IPAMConfig"]
                for other in self._client.containers.list(all=True, filters={"label": [f"{RUN}={run_id}", HOST]})
            }
            image = container.attrs["Config"]["Image"]
            if not image.startswith(f"{images.REPOSITORY}:"):
                image = images.ensure(self._client, releases.get(releases.DEFAULT), lambda _: None)
            self._client.containers.run(
                image,
                ["-c", 'printf %s "$RULES" | nft --file -'],
                entrypoint="sh",
                environment={"RULES": _filter(drops, {name: at["IPv4Address"] for name, at in there.items()})},
                network_mode=f"container:{container.id}",
                cap_drop=["ALL"],
                cap_add=["NET_ADMIN"],
                labels={RUN: run_id},
                remove=True,
            )

    def fetch(self, run_id: str, host: str, directory: str, tar: Path) -> None:
        """Write a directory of a container to a tar file that nobody else can read."""
        with engine_errors(f"cannot read {directory} of {host}"):
            stream, _ = self._client.containers.get(f"{run_id}-{host}").get_archive(directory)
            tar.touch(mode=0o600)
            with tar.open("wb") as file:
                file.writelines(stream)

    def put(self, run_id: str, host: str, directory: str, tar: Path) -> None:
        """Unpack a tar file over a directory of a container."""
        with engine_errors(f"cannot write {directory} of {host}"), tar.open("rb") as file:
            self._client.containers.get(f"{run_id}-{host}").put_archive(str(Path(directory).parent), file)

    def remove(self, run_id: str, host: str) -> None:
        """Remove a container, disk and all."""
        with engine_errors(f"cannot remove {host}"):
            try:
                _remove(self._client.containers.get(f"{run_id}-{host}"))
            except NotFound:
                return

    def hosts(self, run_id: str) -> dict[str, bool]:
        """Return the containers of a run that are hosts."""
        with engine_errors("cannot list the hosts"):
            found = self._client.containers.list(
                all=True, filters={"label": [f"{RUN}={run_id}", HOST]}, ignore_removed=True
            )
            return {container.labels[HOST]: container.status == "running" for container in found}

    def _everywhere(self, act: Callable[[Host], Done], hosts: Sequence[Host]) -> list[Done]:
        """Do something for all hosts, side by side."""
        with engine_errors("cannot start the hosts"), ThreadPoolExecutor(_PARALLEL) as pool:
            try:
                return list(pool.map(act, hosts))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def console(self, run_id: str, host: str) -> str:
        """Return the last lines that a container printed, and its state."""
        with engine_errors(f"cannot read what {host} printed"):
            found = self._client.containers.list(all=True, filters={"label": [f"{RUN}={run_id}", f"{HOST}={host}"]})
            return "\n".join(
                f"container {container.name} is {container.status}\n{container.logs(tail=20).decode(errors='replace')}"
                for container in found
            )

    def runs(self) -> dict[str, list[str]]:
        """Return the runs that have a container or network on the engine, and their hosts that run."""
        found: dict[str, list[str]] = {}
        with engine_errors("cannot list what runs"):
            for container in self._client.containers.list(all=True, filters={"label": RUN}, ignore_removed=True):
                hosts = found.setdefault(container.labels[RUN], [])
                if container.status == "running" and HOST in container.labels:
                    hosts.append(container.labels[HOST])
            for network in self._client.networks.list(filters={"label": RUN}):
                found.setdefault(network.attrs["Labels"][RUN], [])
            for volume in self._client.volumes.list(filters={"label": RUN}):
                found.setdefault(volume.attrs["Labels"][RUN], [])
        return {run: sorted(hosts) for run, hosts in found.items()}

    def down(self, run_id: str) -> list[str]:
        """Remove the containers, networks and volumes of a run."""
        label: dict[str, str | list[str] | bool] = {"label": f"{RUN}={run_id}"}

        with engine_errors("cannot remove the hosts"):
            with ThreadPoolExecutor(_PARALLEL) as pool:
                list(pool.map(_remove, self._client.containers.list(all=True, filters=label, ignore_removed=True)))
            for network in self._client.networks.list(filters=label):
                _remove_network(network)
            for volume in self._client.volumes.list(filters=label):
                volume.remove()
        return []

    def _endpoint(self, address: IPv4Address) -> EndpointConfig:
        return EndpointConfig(self._client.api.api_version, ipv4_address=str(address))

    def _networks(self, run: RunDir, plan: Plan) -> dict[str, tuple[Network, IPv4Network]]:
        """Return the network of each site, made if it is not there yet."""
        with engine_errors("cannot list networks"):
            there = {
                network.attrs["Labels"]["harness.site"]: (network, _subnets(network)[0])
                for network in self._client.networks.list(filters={"label": f"{RUN}={run.id}"})
            }
        return {site: there.get(site) or self._make_network(run, plan, site) for site in plan.sites()}

    def _make_network(self, run: RunDir, plan: Plan, site: str) -> tuple[Network, IPv4Network]:
        size = sum(host.site == site for host in plan.hosts) + _FIRST_HOST + 1
        wanted = plan.scenario.sites[site].subnet
        if wanted and wanted.num_addresses < size + 1:
            raise EngineError(f"subnet {wanted} of site {site} is too small: {size + 1} addresses are needed")
        for subnet in [wanted] if wanted else self._free_subnets(size):
            with engine_errors(f"cannot make the network of site {site} with subnet {subnet}"):
                try:
                    network = self._client.networks.create(
                        f"{run.id}-{site}",
                        driver="bridge",
                        options=self._bridge_options(run, plan, site),
                        ipam=IPAMConfig(pool_configs=[IPAMPool(subnet=str(subnet), gateway=str(subnet[1]))]),
                        labels={RUN: run.id, SCENARIO: plan.name, "harness.site": site},
                    )
                except APIError as error:
                    # Another run may have taken the subnet since it was looked up: the engine decides.
                    if wanted or "overlaps" not in str(error.explanation).lower():
                        raise
                    continue
            return network, subnet
        raise EngineError(
            f"no free subnet for site {site} in {_SUBNETS}",
            hint="`harness down --all` frees those of old runs",
        )

    def _bridge_options(self, run: RunDir, plan: Plan, site: str) -> dict[str, str]:
        bridges = {name: f"hs{run.id[-6:]}-{number}" for number, name in enumerate(plan.sites())}
        prefix = "com.docker.network.bridge"
        options = {
            f"{prefix}.name": bridges.pop(site),
            # Hosts of a run reach one another and nothing else: no way out for their packets.
            f"{prefix}.enable_ip_masquerade": "false",
        }
        if bridges:
            # Since 28.0 the engine drops what comes to a container over another bridge, as the gateway's packets do.
            # 28.2 lets us name those bridges; the two before it can only be told to drop nothing.
            options[f"{prefix}.trusted_host_interfaces"] = ":".join(bridges.values())
            if (28, 0) <= engine.version_of(self._client) < (28, 2):
                options[f"{prefix}.gateway_mode_ipv4"] = "nat-unprotected"
        return options

    def _free_subnets(self, size: int) -> Iterator[IPv4Network]:
        prefix = min(24, 32 - size.bit_length())
        with engine_errors("cannot list networks"):
            taken = [subnet for network in self._client.networks.list() for subnet in _subnets(network)]
        taken += routes()
        for subnet in _SUBNETS.subnets(new_prefix=prefix):
            if not any(subnet.overlaps(other) for other in taken):
                yield subnet

    def _gateway(
        self,
        run_id: str,
        plan: Plan,
        networks: dict[str, tuple[Network, IPv4Network]],
        addresses: dict[str, IPv4Address],
        labels: dict[str, str],
    ) -> None:
        name = f"{run_id}_gateway"  # no host has this name, because host names have no underscore
        with engine_errors("cannot start the gateway"):
            if self._client.containers.list(all=True, filters={"name": f"^{name}$"}):
                return
            rules = [
                f"ip daddr {addresses[host.name]} tcp dport {{ {', '.join(host.ports)} }} accept" for host in plan.hosts
            ]
            (first, first_subnet), *others = networks.values()
            container = self._client.containers.create(
                images.tag(_releases_of_ours(plan)[0]),
                entrypoint="/usr/local/sbin/gateway",
                name=name,
                hostname="gateway",
                labels={**labels, "harness.gateway": "yes"},
                cap_drop=["ALL"],
                cap_add=["NET_ADMIN"],
                sysctls={"net.ipv4.ip_forward": "1"},
                environment={"GATEWAY_RULES": "\n".join(rules)},
                network=str(first.name),
                networking_config={str(first.name): self._endpoint(first_subnet[_GATEWAY])},
            )
            for network, subnet in others:
                network.connect(container, ipv4_address=str(subnet[_GATEWAY]))
            container.start()
            _wait_for_gateway(container)


def _filter(drops: Sequence[Drop], addresses: Mapping[str, str]) -> str:
    """Return nft(8)'s commands for what a host drops."""
    rules = [
        "".join(
            [
                f"ip saddr {addresses[drop.source]} " if drop.source else "",
                f"meta l4proto {{ tcp, udp }} th dport {drop.port} " if drop.port else "",
                "drop",
            ]
        )
        for drop in drops
        if drop.source is None or drop.source in addresses  # a host that does not exist yet says nothing
    ]
    fresh = "add table inet faults\ndelete table inet faults\n"
    if not rules:
        return fresh
    chain = "\n".join(["type filter hook input priority -10", *rules])
    return f"{fresh}table inet faults {{\nchain input {{\n{chain}\n}}\n}}\n"


def _remove(container: Container) -> None:
    try:
        container.remove(force=True, v=True)
    except NotFound:
        pass
    except APIError as error:
        if error.status_code != 409:  # its removal is under way already
            raise


def _releases_of_ours(plan: Plan) -> list[Release]:
    """Return the releases of the images of ours that a plan needs: one at least, for the gateway."""
    of_hosts = {(host.release, host.apptainer): _release_on(host) for host in plan.hosts if not host.image}
    return [*of_hosts.values()] or [releases.get(releases.DEFAULT)]


def _release_on(host: Host) -> Release:
    release = releases.get(host.release)
    return releases.with_apptainer(release) if host.apptainer else release


def _wait_for_gateway(container: Container) -> None:
    """Wait until the gateway says that its rules hold."""

    def look() -> tuple[str, str]:
        container.reload()
        return container.status, container.logs().decode(errors="replace").strip()

    try:
        wait_until(
            look,
            lambda seen: seen[1] == "ready",
            what="the gateway between the sites",
            timeout=30,
            hopeless=lambda seen: seen[0] == "exited",
            show="\n".join,
            interval=0.05,
        )
    except WaitTimeout as error:
        raise EngineError(str(error)) from error


def routes(table: Path = Path("/proc/net/route")) -> list[IPv4Network]:
    """Return the subnets that this machine has routes to, but for the default route: see proc_pid_net(5)."""
    if not table.exists():
        return []
    found = []
    for line in table.read_text().splitlines()[1:]:
        _, destination, _, _, _, _, _, mask, *_ = line.split()
        address, netmask = (IPv4Address(int.from_bytes(bytes.fromhex(word), "little")) for word in (destination, mask))
        found.append(IPv4Network(f"{address}/{netmask}"))
    return [subnet for subnet in found if subnet.prefixlen > 0]


def _addresses(plan: Plan, networks: dict[str, tuple[Network, IPv4Network]]) -> dict[str, IPv4Address]:
    """Return the address of each host of the plan, those that are not up yet too."""
    free = {site: iter(range(_FIRST_HOST, subnet.num_addresses - 1)) for site, (_, subnet) in networks.items()}
    return {host.name: networks[host.site][1][next(free[host.site])] for host in plan.hosts}


def _remove_network(network: Network) -> None:
    """Remove a network; the engine lets go of a container's address a moment after the container is gone."""
    try:
        wait_until(lambda: _gone(network), bool, what=f"network {network.name} removed", timeout=20)
    except WaitTimeout as error:
        raise EngineError(
            f"cannot remove network {network.name}: the engine counts a container in it that is gone",
            hint="restart the Docker engine, then `harness down --all`",
        ) from error


def _gone(network: Network) -> bool:
    """Remove a network; False while a container still holds on to it."""
    try:
        network.remove()
    except NotFound:
        return True
    except APIError as error:
        if "active endpoints" in str(error.explanation):
            return False
        raise
    return True


def _subnets(network: Network) -> list[IPv4Network]:
    pools = (network.attrs.get("IPAM") or {}).get("Config") or []
    return [IPv4Network(pool["Subnet"]) for pool in pools if ":" not in pool.get("Subnet", ":")]
