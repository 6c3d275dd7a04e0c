"""Hosts as Docker containers that run systemd, with Docker's default capabilities and system calls after the boot.

Truth is in labels: every container, network and volume of a run carries `harness.run`, so that `down` needs nothing
else, and `harness.uid`, the user whose it is. Several engines must be in one Swarm: its overlay networks join their
hosts, and `docker exec` reaches these from here.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from ipaddress import IPv4Network
from pathlib import Path
from typing import TypeVar

import docker
from docker.errors import APIError, NotFound
from docker.models.containers import Container
from docker.models.networks import Network
from docker.types import EndpointConfig, IPAMConfig, IPAMPool

from harness import interrupts, releases
from harness.errors import EngineError, UsageError, WaitTimeout
from harness.inventory import Machine
from harness.options import Offers
from harness.plan import Host, Plan
from harness.providers import Drop, engine, images, packets, subnets
from harness.providers.engine import engine_errors
from harness.releases import Release
from harness.render import RenderedFile, Tree
from harness.rundir import RunDir
from harness.scenario import Path_, Scenario
from harness.wait import wait_until

RUN, SCENARIO, HOST, OWNER = "harness.run", "harness.scenario", "harness.host", "harness.uid"
# Of a network over several engines, the end that is left to them: each takes an address.
_ENGINES_PREFIX = 28
_PARALLEL = 8
# Connects standard input and output with a host's sshd.
_TO_SSH = "exec 3<>/dev/tcp/127.0.0.1/22; cat <&3 & cat >&3; kill $!"
# Seconds in which a Swarm attaches a host to its network, and what an engine says of one that it did not attach.
_ATTACHED = 120
_UNATTACHED = re.compile(r"attach(ing)? to network|network \S+ not found")
# Seconds in which an engine freezes a host, also on a busy machine.
_FROZEN = 60
# inotify instances that a host's systemd and D-Bus take.
_INOTIFY = 7
Done = TypeVar("Done")


class DockerProvider:
    """Containers, one network for each site, and a gateway container between the sites.

    `engines` are Docker contexts, "CONTEXT,..." or "SITE=CONTEXT,...": hosts are dealt out to them, or placed by their
    sites. The first one makes the networks and has the gateway. Without any, all is on the user's own engine.
    """

    # A container sees the CPUs of the whole machine, and gets a cgroup tree mostly without controllers.
    offers = Offers(cgroups=False, own_hardware=False)

    def __init__(self, engines: str | None = None) -> None:
        self.name = "docker" if engines is None else f"docker:{engines}"
        placed = [one.rpartition("=") for one in (engines or "").split(",")]
        self._contexts = list(dict.fromkeys(context for _, _, context in placed))
        self._context_of_site = {site: context for site, _, context in placed if site}
        self._connected: dict[str, docker.DockerClient] = {}
        if engines is not None and not (all(self._contexts) and len(self._context_of_site) in {0, len(placed)}):
            raise UsageError(
                f"--provider {self.name}", hint="docker:CONTEXT,CONTEXT or docker:SITE=CONTEXT,SITE=CONTEXT"
            )

    def _engine(self, name: str) -> docker.DockerClient:
        if name not in self._connected:
            self._connected[name] = engine.connect_to(name) if name else engine.connect()
        return self._connected[name]

    @property
    def _client(self) -> docker.DockerClient:
        """The first engine."""
        return self._engine(self._contexts[0])

    @property
    def _clients(self) -> dict[str, docker.DockerClient]:
        return {name: self._engine(name) for name in self._contexts}

    def _container(self, run_id: str, host: str) -> tuple[str, Container]:
        """Return a host's container and the name of its engine; NotFound if no engine has it."""
        for name, client in self._clients.items():
            with suppress(NotFound):
                return name, client.containers.get(f"{run_id}-{host}")
        raise NotFound(f"no container {run_id}-{host}")

    def placed(self, plan: Plan) -> dict[str, str]:
        """Return host -> engine; hosts that share a disk are on one."""
        if unknown := [site for site in self._context_of_site if site not in plan.scenario.sites]:
            raise UsageError(f"--provider {self.name}: the scenario has no site {unknown[0]}")
        if homeless := [site for site in plan.sites() if self._context_of_site and site not in self._context_of_site]:
            raise UsageError(f"--provider {self.name}: no engine for site {homeless[0]}")
        place: dict[str, str] = {}
        disks: dict[str, str] = {}
        for number, host in enumerate(plan.hosts):
            dealt = self._context_of_site.get(host.site) or self._contexts[number % len(self._contexts)]
            shared = next((disks[volume.name] for volume in host.volumes if volume.name in disks), dealt)
            if self._context_of_site and shared != dealt:
                raise UsageError(f"--provider {self.name}: {host.name} shares a disk with a host at another site")
            place[host.name] = shared
            disks |= {volume.name: shared for volume in host.volumes}
        return place

    def release_of_image(self, image: str) -> str:
        """Ask an image's daemons for their release; EngineError if it cannot be a host."""
        return images.release_of(self._client, image)

    def lacks(self, scenario: Scenario) -> tuple[tuple[Path_, str], ...]:
        """Return nothing: containers can be all that a scenario asks for."""
        return ()

    def ask(self, plan: Plan, tree: Tree, run: RunDir | None = None) -> None:
        """Nobody's hosts change: they are made for the run. But they must be placed."""
        self.placed(plan)

    def prepare(self, plan: Plan, say: Callable[[str], None]) -> None:
        """Build the images of a plan's releases that the engine does not have; give them to the other engines."""
        if len(self._clients) > 1:
            _want_swarm(self._clients)
        wanted = {images.ensure(self._client, release, say) for release in _releases_of_ours(plan)}
        wanted |= {
            images.extend(self._client, _release_on(host), host.packages, say) for host in plan.hosts if host.packages
        }
        wanted |= {host.image for host in plan.hosts if host.image}
        for client in list(self._clients.values())[1:]:
            for image in wanted:
                images.copy(image, self._client, client, say)
        limit = Path("/proc/sys/fs/inotify/max_user_instances")
        hosts = len(plan.hosts) + sum(map(len, self.runs(all_users=True).values()))
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
        return run.own_ssh_config(machines)

    def make(self, run: RunDir, plan: Plan, hosts: Sequence[Host], files: Mapping[str, Sequence[RenderedFile]]) -> None:
        """Make the containers of `hosts`; the run's networks and gateway too, if they are not there yet.

        A signal interrupts the caller once all is made: the engine finishes what it was asked to make even if nobody
        waits for the answer any more, and `down` would not find it yet.
        """
        with interrupts.deferred():
            self._make(run, plan, hosts, files)

    def _make(
        self, run: RunDir, plan: Plan, hosts: Sequence[Host], files: Mapping[str, Sequence[RenderedFile]]
    ) -> None:
        networks = self._networks(run, plan)
        addresses = subnets.addresses(plan, {site: subnet for site, (_, subnet) in networks.items()})
        labels = _labels(run, plan)
        keys = images.archive(
            [
                *images.entry_point(),
                images.Entry("/root/.ssh/authorized_keys", run.key("ssh_key.pub").read_bytes(), 0o600),
                images.Entry("/etc/ssh/ssh_host_ed25519_key", run.key("ssh_host_key").read_bytes(), 0o600),
            ]
        )
        if len(networks) > 1:
            self._gateway(run.id, plan, networks, addresses, labels)
        place = self.placed(plan)
        with engine_errors("cannot make the hosts' disks"):
            for at, volume in {(place[host.name], volume) for host in hosts for volume in host.volumes}:
                self._clients[at].volumes.create(f"{run.id}_{volume.name}", labels=labels)

        def make(host: Host) -> None:
            network, subnet = networks[host.site]
            network_name = str(network.name)
            routes = [f"{other} via {subnet[subnets.GATEWAY]}" for _, other in networks.values() if other != subnet]
            container = self._clients[place[host.name]].containers.create(
                host.image or images.extended_tag(_release_on(host), host.packages),
                entrypoint=images.BOOT,
                name=f"{run.id}-{host.name}",
                hostname=host.name,
                labels={**labels, HOST: host.name},
                # Only to mount cgroup2 and small disks, and to set routes and the packet filter at boot; the entry
                # point gives both up before systemd starts, and the system calls that come with them.
                cap_add=["SYS_ADMIN", "NET_ADMIN"],
                security_opt=["apparmor=unconfined"],
                devices=["/dev/fuse"] if host.apptainer and not host.image else [],
                cgroupns="private",
                tmpfs={"/run": ""},
                volumes={f"{run.id}_{volume.name}": {"bind": volume.directory} for volume in host.volumes},
                environment={
                    "HARNESS_ROUTES": ",".join(routes),
                    "HARNESS_FILTER": packets.only_hosts(subnet for _, subnet in networks.values()),
                    "HARNESS_NAMESPACES": "yes" if _runs_containers(plan, host) else "",
                    "HARNESS_DISKS": ",".join(f"{size} {directory}" for directory, size in host.disks),
                    "HARNESS_ADOPT": "yes" if host.image else "",
                },
                # Its own name Docker adds; a daemon that listens at a name with two addresses fails at the second.
                extra_hosts={name: address for name, address in addresses.items() if name != host.name},
                ports={} if place[host.name] else {"22/tcp": ("127.0.0.1", 0)},  # any free port
                network=network_name,
                networking_config={network_name: self._endpoint(addresses[host.name])},
            )
            container.put_archive("/", keys)
            public = [images.Entry(volume.directory, None, 0o1777) for volume in host.volumes if volume.public]
            if public:
                container.put_archive("/", images.archive(public))
            if host.name in files:
                seed = images.seed(files[host.name], host.daemons)
                container.put_archive("/", images.archive(seed, images.numbers(container)))

        self._everywhere(make, hosts)

    def start(self, run_id: str, host: str) -> Machine:
        """Start a container, and find the port at which SSH answers: another one each time.

        Ports of an engine that may be on another machine are not published: docker(1) reaches its hosts.
        """
        with engine_errors(f"cannot start {host}"):
            at, container = self._container(run_id, host)
            wait_until(
                lambda: _start(container),
                lambda started: started is True,
                what=f"the Swarm to attach {host} to its network",
                timeout=_ATTACHED,
            )
            container.reload()
            published = container.ports.get("22/tcp")
        if at:
            proxy = shlex.join(["docker", "--context", at, "exec", "-i", str(container.name), "bash", "-c", _TO_SSH])
            return Machine(host, None, None, proxy=proxy)
        if not published:
            raise EngineError(f"{host} stopped at once\n{self.console(run_id, host)}")
        return Machine(host, "127.0.0.1", int(published[0]["HostPort"]))

    def stop(self, run_id: str, host: str) -> None:
        """Shut a container's systemd down; it has ten seconds for it."""
        with engine_errors(f"cannot stop {host}"):
            self._container(run_id, host)[1].stop(timeout=10)

    def kill(self, run_id: str, host: str) -> None:
        """Kill a container."""
        with engine_errors(f"cannot kill {host}"):
            self._container(run_id, host)[1].kill()

    def pause(self, run_id: str, host: str) -> None:
        """Freeze all processes of a container; EngineError if that does not succeed within a minute."""
        with engine_errors(f"cannot pause {host}"):
            _, container = self._container(run_id, host)
            try:
                wait_until(
                    lambda: _pause(container), lambda paused: paused is True, what=f"{host} to freeze", timeout=_FROZEN
                )
            except WaitTimeout as error:
                raise EngineError(str(error)) from error

    def unpause(self, run_id: str, host: str) -> None:
        """Thaw all processes of a container."""
        with engine_errors(f"cannot unpause {host}"):
            _, container = self._container(run_id, host)
            if container.status == "paused":
                container.unpause()

    def drop(self, run_id: str, host: str, drops: Sequence[Drop]) -> None:
        """Set the packet filter of a container's network namespace, from a container that lives in it for a moment."""
        with engine_errors(f"cannot set the packet filter of {host}"):
            at, container = self._container(run_id, host)
            there = {
                other.labels[HOST]: next(iter(other.attrs["NetworkSettings"]["Networks"].values()))["IPAMConfig"]
                for engine_name in self._contexts
                for other in self._hosts(run_id, engine_name)
            }
            image = container.attrs["Config"]["Image"]
            if not image.startswith((f"{images.REPOSITORY}:", f"{images.EXTENDED}:")):
                image = images.ensure(self._clients[at], releases.get(releases.DEFAULT), lambda _: None)
            self._clients[at].containers.run(
                image,
                ["-c", 'printf %s "$RULES" | nft --file -'],
                entrypoint="sh",
                environment={"RULES": packets.rules(drops, {name: at["IPv4Address"] for name, at in there.items()})},
                network_mode=f"container:{container.id}",
                cap_drop=["ALL"],
                cap_add=["NET_ADMIN"],
                labels={RUN: run_id, OWNER: str(os.geteuid())},
                remove=True,
            )

    def fetch(self, run_id: str, host: str, directory: str, tar: Path) -> None:
        """Write a directory of a container to a tar file that nobody else can read."""
        with engine_errors(f"cannot read {directory} of {host}"):
            stream, _ = self._container(run_id, host)[1].get_archive(directory)
            tar.touch(mode=0o600)
            with tar.open("wb") as file:
                file.writelines(stream)

    def put(self, run_id: str, host: str, directory: str, tar: Path) -> None:
        """Unpack a tar file over a directory of a container."""
        with engine_errors(f"cannot write {directory} of {host}"), tar.open("rb") as file:
            self._container(run_id, host)[1].put_archive(str(Path(directory).parent), file)

    def remove(self, run_id: str, host: str) -> None:
        """Remove a container, disk and all."""
        with engine_errors(f"cannot remove {host}"):
            try:
                _remove(self._container(run_id, host)[1])
            except NotFound:
                return

    def hosts(self, run_id: str) -> dict[str, bool]:
        """Return the containers of a run that are hosts; one that other engines do not reach does not run for them."""
        found: dict[str, bool] = {}
        with engine_errors("cannot list the hosts"):
            for at in self._contexts:
                reached = self._is_reached(at)
                for container in self._hosts(run_id, at):
                    found[container.labels[HOST]] = reached and container.status == "running"
        return found

    def _hosts(self, run_id: str, at: str) -> list[Container]:
        return self._engine(at).containers.list(
            all=True, filters={"label": [f"{RUN}={run_id}", HOST]}, ignore_removed=True
        )

    def _is_reached(self, at: str) -> bool:
        """Tell whether the Swarm reaches an engine; it notices within seconds that it does not."""
        if len(self._contexts) == 1:
            return True
        node = self._client.nodes.get(self._engine(at).info()["Swarm"]["NodeID"])
        return bool(node.attrs["Status"]["State"] == "ready")

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
            try:
                _, container = self._container(run_id, host)
            except NotFound:
                return ""
            said = container.logs(tail=20).decode(errors="replace")
            return f"container {container.name} is {container.status}\n{said}"

    def runs(self, *, all_users: bool = False) -> dict[str, list[str]]:
        """Return the runs that have a container, network or volume on an engine, and their hosts that run."""
        found: dict[str, list[str]] = {}
        ours: dict[str, str | list[str] | bool] = {"label": [RUN] if all_users else [RUN, f"{OWNER}={os.geteuid()}"]}
        with engine_errors("cannot list what runs"):
            for client in self._clients.values():
                for container in client.containers.list(all=True, filters=ours, ignore_removed=True):
                    hosts = found.setdefault(container.labels[RUN], [])
                    if container.status == "running" and HOST in container.labels:
                        hosts.append(container.labels[HOST])
                for network in client.networks.list(filters=ours):
                    found.setdefault(network.attrs["Labels"][RUN], [])
                for volume in client.volumes.list(filters=ours):
                    found.setdefault(volume.attrs["Labels"][RUN], [])
        return {run: sorted(hosts) for run, hosts in found.items()}

    def down(self, run_id: str) -> list[str]:
        """Remove the containers, networks and volumes of a run.

        EngineError tells of engines that do not answer, when all is removed from the others.
        """
        problems = []
        # The first one last: it has the networks that join the hosts of all.
        for name in reversed(self._contexts):
            try:
                with engine_errors(f"cannot remove the hosts{name and f' from the engine {name}'}"):
                    self._remove_all(self._engine(name), run_id)
            except EngineError as error:
                problems.append(error)
        if len(problems) == 1:
            raise problems[0]
        if problems:
            raise EngineError("\n".join(map(str, problems)))
        return []

    def _remove_all(self, client: docker.DockerClient, run_id: str) -> None:
        label: dict[str, str | list[str] | bool] = {"label": f"{RUN}={run_id}"}
        with ThreadPoolExecutor(_PARALLEL) as pool:
            list(pool.map(_remove, client.containers.list(all=True, filters=label, ignore_removed=True)))
        if client is self._client:
            for network in client.networks.list(filters=label):
                _remove_network(network)
        for volume in client.volumes.list(filters=label):
            volume.remove()

    def _endpoint(self, address: str) -> EndpointConfig:
        return EndpointConfig(self._client.api.api_version, ipv4_address=address)

    def _networks(self, run: RunDir, plan: Plan) -> dict[str, tuple[Network, IPv4Network]]:
        """Return the network of each site, made if it is not there yet."""
        with engine_errors("cannot list networks"):
            there = {
                network.attrs["Labels"]["harness.site"]: (network, _subnets(network)[0])
                for network in self._client.networks.list(filters={"label": f"{RUN}={run.id}"})
            }
        return {site: there.get(site) or self._make_network(run, plan, site) for site in plan.sites()}

    def _make_network(self, run: RunDir, plan: Plan, site: str) -> tuple[Network, IPv4Network]:
        joined = len(self._contexts) > 1
        engines = 2 ** (32 - _ENGINES_PREFIX) if joined else 0
        candidates = subnets.for_site(plan, site, engines, taken(self._clients.values()))
        while True:
            subnet = next(candidates)
            with engine_errors(f"cannot make the network of site {site} with subnet {subnet}"):
                try:
                    network = self._client.networks.create(
                        f"{run.id}-{site}",
                        driver="overlay" if joined else "bridge",
                        options={} if joined else self._bridge_options(run, plan, site),
                        ipam=IPAMConfig(pool_configs=[_pool(subnet, joined=joined)]),
                        labels={**_labels(run, plan), "harness.site": site},
                        internal=joined,
                        attachable=joined,
                    )
                except APIError as error:
                    # Another run may have taken the subnet since it was looked up: the engine decides.
                    if plan.scenario.sites[site].subnet or "overlaps" not in str(error.explanation).lower():
                        raise
                    continue
            return network, subnet

    def _bridge_options(self, run: RunDir, plan: Plan, site: str) -> dict[str, str]:
        bridges = {name: f"hs{run.id[-6:]}-{number}" for number, name in enumerate(plan.sites())}
        prefix = "com.docker.network.bridge"
        options = {
            f"{prefix}.name": bridges.pop(site),
            # What leaves a host's own packet filter finds no way out, either.
            f"{prefix}.enable_ip_masquerade": "false",
        }
        if bridges:
            # Since 28.0 the engine drops what comes to a container over another bridge, as the gateway's packets do.
            # 28.2 lets us name those bridges; the two before it can only be told to drop nothing.
            options[f"{prefix}.trusted_host_interfaces"] = ":".join(bridges.values())
            if (28, 0) <= engine.version_of(self._client) < (28, 2):
                options[f"{prefix}.gateway_mode_ipv4"] = "nat-unprotected"
        return options

    def _gateway(
        self,
        run_id: str,
        plan: Plan,
        networks: dict[str, tuple[Network, IPv4Network]],
        addresses: dict[str, str],
        labels: dict[str, str],
    ) -> None:
        name = f"{run_id}_gateway"  # no host has this name, because host names have no underscore
        with engine_errors("cannot start the gateway"):
            if self._client.containers.list(all=True, filters={"name": f"^{name}$"}):
                return
            (first, first_subnet), *others = networks.values()
            container = self._client.containers.create(
                images.tag(_releases_of_ours(plan)[0]),
                ["-c", 'printf %s "$RULES" | nft --file - && echo ready && exec sleep infinity'],
                entrypoint="sh",
                name=name,
                hostname="gateway",
                labels={**labels, "harness.gateway": "yes"},
                cap_drop=["ALL"],
                cap_add=["NET_ADMIN"],
                sysctls={"net.ipv4.ip_forward": "1"},
                environment={"RULES": packets.between_sites(plan, addresses)},
                network=str(first.name),
                networking_config={str(first.name): self._endpoint(str(first_subnet[subnets.GATEWAY]))},
            )
            for network, subnet in others:
                network.connect(container, ipv4_address=str(subnet[subnets.GATEWAY]))
            container.start()
            _wait_for_gateway(container)


def _labels(run: RunDir, plan: Plan) -> dict[str, str]:
    """Return the labels of all that is made for a run."""
    return {RUN: run.id, SCENARIO: plan.name, OWNER: str(os.geteuid())}


def _pool(subnet: IPv4Network, *, joined: bool) -> IPAMPool:
    """Return how a network's addresses are given out; each engine of a network that joins several takes one."""
    for_engines = str(IPv4Network((subnet[-(2 ** (32 - _ENGINES_PREFIX))], _ENGINES_PREFIX))) if joined else None
    return IPAMPool(subnet=str(subnet), gateway=str(subnet[1]), iprange=for_engines)


def _want_swarm(clients: Mapping[str, docker.DockerClient]) -> None:
    """EngineError if engines are not in one Swarm that the first of them manages."""
    (first, manager), *others = clients.items()
    with engine_errors("cannot ask the engines for their Swarm"):
        if not manager.info()["Swarm"]["ControlAvailable"]:
            raise EngineError(
                f"the engine {first} manages no Swarm",
                hint=f"docker --context {first} swarm init --advertise-addr ADDRESS",
            )
        members = {node.id for node in manager.nodes.list()}
        for name, client in others:
            if client.info()["Swarm"]["NodeID"] not in members:
                raise EngineError(
                    f"the engine {name} is not in the Swarm of {first}",
                    hint=f"`docker --context {first} swarm join-token worker` prints what to run with --context {name}",
                )


def _start(container: Container) -> bool | str:
    """Start a container; say what a Swarm says that had no time to attach it to a network.

    The engine gives a manager 20 s for it (getRequestContext in its daemon/cluster), which a busy machine's first
    network may exceed. It then takes the container for attached once more, to a network that it does not find.
    """
    try:
        container.start()
    except APIError as error:
        if _UNATTACHED.search(said := str(error.explanation)):
            return said
        raise
    return True


def _pause(container: Container) -> bool | str:
    """Freeze a container; return what runc says if it gave up.

    The freezer of cgroup v1 may miss processes that are being forked. runc then thaws all others and reports "unable to
    freeze" (Set() of its fs/freezer.go), which happens on a busy machine.
    """
    try:
        container.pause()
    except APIError as error:
        if "unable to freeze" in (said := str(error.explanation)):
            return said
        raise
    return True


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


def _runs_containers(plan: Plan, host: Host) -> bool:
    """Tell whether users run containers of their own on a host, which are made of namespaces and mounts."""
    with_oci = host.cluster is not None and plan.scenario.clusters[host.cluster].oci is not None
    return host.apptainer or (with_oci and bool(host.nodes))


def _wait_for_gateway(container: Container) -> None:
    """Wait until the gateway says that its rules hold."""

    def look() -> tuple[str, str]:
        container.reload()
        return container.status, container.logs().decode(errors="replace").strip()

    wait_until(
        look,
        lambda seen: seen[1] == "ready",
        what="the gateway between the sites",
        timeout=30,
        hopeless=lambda seen: seen[0] == "exited",
        show="\n".join,
        interval=0.05,
    )


def taken(clients: Iterable[docker.DockerClient]) -> list[IPv4Network]:
    """Return the subnets that the networks of engines have."""
    with engine_errors("cannot list networks"):
        return [subnet for client in clients for network in client.networks.list() for subnet in _subnets(network)]


def _remove_network(network: Network) -> None:
    """Remove a network; the engine lets go of a container's address a moment after the container is gone."""
    try:
        wait_until(lambda: _gone(network), bool, what=f"network {network.name} to be removed", timeout=20)
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
        if re.search("active endpoints|in use by", str(error.explanation)):
            return False
        raise
    return True


def _subnets(network: Network) -> list[IPv4Network]:
    pools = (network.attrs.get("IPAM") or {}).get("Config") or []
    return [IPv4Network(pool["Subnet"]) for pool in pools if ":" not in pool.get("Subnet", ":")]
