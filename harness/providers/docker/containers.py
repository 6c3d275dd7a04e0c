"""Hosts as Docker containers that run systemd with Docker's default capabilities and system calls.

Nodes whose Slurm uses cgroups also have CAP_SYS_RESOURCE.

All state is in labels: every container, network and volume of a run has the labels `harness.run`,
so that `down` needs nothing else, and `harness.uid`, the user who owns it. Several engines must be
in the same Swarm: its overlay networks connect their hosts, and `docker exec` reaches the hosts
from here.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from ipaddress import IPv4Network
from pathlib import Path
from typing import TypeVar

import docker
from docker.errors import APIError, NotFound
from docker.models.containers import Container
from docker.models.networks import Network
from docker.models.volumes import Volume
from docker.types import EndpointConfig, IPAMConfig, IPAMPool

from harness import interrupts, origins, releases, slurm_options
from harness.capabilities import CONTAINERS, Capabilities
from harness.errors import EngineError, UsageError, WaitTimeout
from harness.inventory import Machine
from harness.origins import Origin
from harness.plan import Host, Plan
from harness.providers import Drop, dockerfiles, images, packet_filters, subnets
from harness.providers.docker import engine
from harness.providers.docker.engine import engine_errors
from harness.render import RenderedFile, Tree
from harness.rundir import RunDir
from harness.scenario import Path_, Scenario
from harness.wait import wait_until

RUN, SCENARIO, HOST, OWNER = "harness.run", "harness.scenario", "harness.host", "harness.uid"
# The prefix length of the range, at the end of a network that spans several engines, from which
# each engine takes an address.
_ENGINES_PREFIX = 28
_PARALLEL = 8
# Connects standard input and output with a host's sshd.
_TO_SSH = "exec 3<>/dev/tcp/127.0.0.1/22; cat <&3 & cat >&3; kill $!"
# Seconds in which a Swarm must attach a container to its networks, and the engine's message if it
# fails.
_ATTACHED = 300
_UNATTACHED = re.compile(r"attach(ing)? to network|network \S+ not found")
# Seconds in which an engine must release the networks and volumes of containers that it removed.
_RELEASED = 300
# Seconds in which an engine must freeze a host, even on a busy machine.
_FROZEN = 60
# The inotify instances that a host's systemd and D-Bus use.
_INOTIFY = 7
Done = TypeVar("Done")


class DockerProvider:
    """Containers, one network for each site, and a gateway container between the sites.

    `engines` are Docker contexts, "CONTEXT,..." or "SITE=CONTEXT,...": hosts are distributed among
    them, or placed by site. The first engine has the networks and the gateway. By default,
    everything is on the user's own engine.
    """

    def __init__(self, engines: str | None = None) -> None:
        self.name = "docker" if engines is None else f"docker:{engines}"
        placed = [entry.rpartition("=") for entry in (engines or "").split(",")]
        self._contexts = list(dict.fromkeys(context for _, _, context in placed))
        self._context_of_site = {site: context for site, _, context in placed if site}
        self._connected: dict[str, docker.DockerClient] = {}
        self._owner_ids: dict[str, images.OwnerIds] = {}  # by image id
        if engines is not None and not (
            all(self._contexts) and len(self._context_of_site) in {0, len(placed)}
        ):
            raise UsageError(
                f"--provider {self.name}: not a list of Docker contexts",
                hint="docker:CONTEXT,CONTEXT or docker:SITE=CONTEXT,SITE=CONTEXT",
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

    @cached_property
    def capabilities(self) -> Capabilities:
        """Containers see all CPUs of the machine; not every machine gives them cgroups.

        If an engine does not answer, its machine gives none: a run reports that later.
        """
        with suppress(EngineError):
            return replace(
                CONTAINERS, cgroups=all(map(engine.has_controllers, self._clients.values()))
            )
        return CONTAINERS

    def _container(self, run_id: str, host: str) -> tuple[str, Container]:
        """Return a host's container and the name of its engine; NotFound if no engine has it."""
        for name, client in self._clients.items():
            with suppress(NotFound):
                return name, client.containers.get(f"{run_id}-{host}")
        raise NotFound(f"no container {run_id}-{host}")

    def placed(self, plan: Plan) -> dict[str, str]:
        """Return the engine of each host; hosts that share a disk are on the same engine."""
        if unknown := [site for site in self._context_of_site if site not in plan.scenario.sites]:
            raise UsageError(
                f"--provider {self.name}: the scenario has no site {unknown[0]}",
                hint=f"its sites are {', '.join(plan.scenario.sites)}",
            )
        if homeless := [
            site
            for site in plan.sites()
            if self._context_of_site and site not in self._context_of_site
        ]:
            raise UsageError(
                f"--provider {self.name}: no engine for site {homeless[0]}",
                hint=f"add {homeless[0]}=CONTEXT",
            )
        place: dict[str, str] = {}
        disks: dict[str, str] = {}
        for number, host in enumerate(plan.hosts):
            dealt = (
                self._context_of_site.get(host.site) or self._contexts[number % len(self._contexts)]
            )
            shared = next(
                (disks[volume.name] for volume in host.volumes if volume.name in disks), dealt
            )
            if self._context_of_site and shared != dealt:
                raise UsageError(
                    f"--provider {self.name}: {host.name} shares a disk with a host at another site"
                )
            place[host.name] = shared
            disks |= {volume.name: shared for volume in host.volumes}
        return place

    def origin_of_image(self, image: str) -> Origin:
        """Ask an image's daemons for their version, and the image for its distribution.

        EngineError if hosts cannot be created from it.
        """
        return images.origin_of(self._client, image)

    def lacks(self, scenario: Scenario) -> Iterator[tuple[Path_, str]]:
        """Yield what containers do not support."""
        for place in scenario.user_data():
            yield place, "cloud-init does not initialize containers: --provider vagrant"
        for name, cluster in scenario.clusters.items():
            if slurm_options.is_yes(
                cluster.cgroup, "ConstrainDevices"
            ) and slurm_options.is_contained(scenario, cluster, self.capabilities):
                yield (
                    ("clusters", name, "cgroup"),
                    "containers cannot confine jobs to devices (ConstrainDevices), for which "
                    "slurmd needs CAP_BPF: --provider vagrant",
                )

    def confirm(self, plan: Plan, tree: Tree, run: RunDir | None = None) -> None:
        """Check where hosts are placed, and that there is a Slurm for each that runs there.

        A run in containers changes no existing machine.
        """
        self.placed(plan)
        for host in _without_image(plan):
            base = images.base_of(images.on(host))
            if host.packages and base.family.package != ".deb":
                raise UsageError(
                    f"{host.name}: additional packages ({', '.join(host.packages)}) cannot be "
                    f"installed on {base.distribution} yet",
                    hint="use an image of your own that has them: docs/configuration.md",
                )
        if run:
            return
        for directory in {origin.packages for origin in plan.origins().values() if origin.packages}:
            images.must_be_for_engine(self._client, origins.package_paths(Path(directory)))

    def prepare(self, plan: Plan, say: Callable[[str], None]) -> None:
        """Build the images of a plan that the engine lacks, and copy them to the other engines."""
        if len(self._clients) > 1:
            _require_swarm(self._clients)
        wanted = {images.ensure(self._client, slurm, say) for slurm in _slurms_of_ours(plan)}
        wanted |= {
            images.extend(self._client, images.on(host), host.packages, say, host.spank_plugins)
            for host in _without_image(plan)
            if host.packages or host.spank_plugins
        }
        wanted |= {host.image for host in plan.hosts if host.image}
        for client in list(self._clients.values())[1:]:
            for image in wanted:
                images.copy(image, self._client, client, say)
        for name, cluster in plan.scenario.clusters.items():
            if slurm_options.wants_confinement(cluster) and not slurm_options.is_contained(
                plan.scenario, cluster, self.capabilities
            ):
                say(
                    f"{name}: jobs are not confined as `cgroup` says, which needs Slurm 22.05 or "
                    "later, one node for each host, and an engine on a machine with cgroup v2"
                )
        limit = Path("/proc/sys/fs/inotify/max_user_instances")
        hosts = len(plan.hosts) + sum(map(len, self.runs(all_users=True).values()))
        if limit.exists() and hosts * _INOTIFY > (most := int(limit.read_text())):
            say(
                f"{hosts} hosts need {hosts * _INOTIFY} inotify instances, "
                f"but the limit is {most}: "
                "some may not boot; sysctl -w fs.inotify.max_user_instances=1024"
            )

    def up(self, run: RunDir, plan: Plan, hosts: Sequence[Host]) -> list[Machine]:
        """Create the containers of `hosts` and start them."""
        self.make(run, plan, hosts, {})
        return self._everywhere(lambda host: self.start(run.id, host.name), hosts)

    def ssh_config(self, run: RunDir, machines: Sequence[Machine]) -> str:
        """Return an SSH configuration with the run's own keys."""
        return run.own_ssh_config(machines)

    def make(
        self,
        run: RunDir,
        plan: Plan,
        hosts: Sequence[Host],
        files: Mapping[str, Sequence[RenderedFile]],
    ) -> None:
        """Create the containers of `hosts`, and the run's networks and gateway if they are missing.

        A signal interrupts the caller only after all are created. The engine would otherwise create
        what was requested without anyone waiting for the answer, and `down` would not find it yet.
        """
        with interrupts.deferred():
            self._make(run, plan, hosts, files)

    def _make(
        self,
        run: RunDir,
        plan: Plan,
        hosts: Sequence[Host],
        files: Mapping[str, Sequence[RenderedFile]],
    ) -> None:
        place = self.placed(plan)
        networks = self._networks(run, plan)
        subnet_of = {site: subnet for site, (_, subnet) in networks.items()}
        layout = _Layout(
            run, plan, place, networks, subnets.addresses(plan, subnet_of), _labels(run, plan)
        )
        if len(networks) > 1:
            self._gateway(run.id, plan, networks, layout.addresses, layout.labels)
        with engine_errors("cannot create the hosts' disks"):
            for context, volume in {
                (place[host.name], volume) for host in hosts for volume in host.volumes
            }:
                size, public = volume.size, volume.public
                self._clients[context].volumes.create(
                    f"{run.id}_{volume.name}",
                    labels=layout.labels,
                    driver_opts=_in_memory(size, public=public) if size else None,
                )
        common = [*images.entry_point(), *images.keys(run)]

        def make(host: Host) -> None:
            container = self._create(layout, host)
            entries = [
                *common,
                *(
                    images.Entry(volume.directory, None, 0o1777)
                    for volume in host.volumes
                    if volume.public
                ),
            ]
            owner_ids = None
            if host.name in files:
                entries += images.seed(files[host.name], host.daemons)
                owner_ids = self._owner_ids_of(container)
            # The engine starts a process for each archive.
            container.put_archive("/", images.archive(entries, owner_ids))

        self._everywhere(make, hosts)

    def _owner_ids_of(self, container: Container) -> images.OwnerIds:
        """Return the ids of the users and groups of a container's image."""
        image = container.attrs["Image"]
        if image not in self._owner_ids:
            self._owner_ids[image] = images.owner_ids(container)
        return self._owner_ids[image]

    def _create(self, layout: _Layout, host: Host) -> Container:
        """Create the container of a host without starting it."""
        run_id, context = layout.run.id, layout.place[host.name]
        network = str(layout.networks[host.site][0].name)
        return self._clients[context].containers.create(
            host.image or images.extended_tag(images.on(host), host.packages, host.spank_plugins),
            entrypoint=images.BOOT,
            name=f"{run_id}-{host.name}",
            hostname=host.name,
            labels={**layout.labels, HOST: host.name},
            # Needed only to mount cgroup2 and small disks, and to set routes and the packet filter
            # at boot. The entry point drops both, and the system calls that come with them, before
            # it starts systemd.
            # With SYS_RESOURCE, which stays, slurmstepd protects itself: the kernel would otherwise
            # kill it, too, when a job runs out of memory, and the job would never end.
            cap_add=[
                *("SYS_ADMIN", "NET_ADMIN"),
                *(["SYS_RESOURCE"] if layout.plan.confines_jobs(host) else []),
            ],
            security_opt=["apparmor=unconfined"],
            devices=["/dev/fuse"] if host.apptainer and not host.image else [],
            cgroupns="private",
            tmpfs={"/run": ""},
            volumes={
                f"{run_id}_{volume.name}": {"bind": volume.directory} for volume in host.volumes
            },
            environment=layout.environment(host),
            # Docker adds the host's own name. If a name has two addresses, a daemon that listens
            # on it fails on the second.
            extra_hosts={
                name: address for name, address in layout.addresses.items() if name != host.name
            }
            if not host.dns_server
            else {},
            ports={} if context else {"22/tcp": ("127.0.0.1", 0)},  # any free port
            network=network,
            networking_config={network: self._endpoint(layout.addresses[host.name])},
        )

    def start(self, run_id: str, host: str) -> Machine:
        """Start a container, and find its SSH port, which differs each time.

        An engine that may be on another machine publishes no ports: its hosts are reached with
        docker(1).
        """
        with engine_errors(f"cannot start {host}"):
            context, container = self._container(run_id, host)
            _start(container, host)
            container.reload()
            published = container.ports.get("22/tcp")
        if context:
            proxy = shlex.join(
                [
                    "docker",
                    "--context",
                    context,
                    "exec",
                    "-i",
                    str(container.name),
                    "bash",
                    "-c",
                    _TO_SSH,
                ]
            )
            return Machine(host, None, None, proxy=proxy)
        if not published:
            raise EngineError(f"{host} stopped immediately\n{self.console(run_id, host)}")
        return Machine(host, "127.0.0.1", int(published[0]["HostPort"]))

    def stop(self, run_id: str, host: str) -> None:
        """Shut down a container's systemd, within a minute."""
        with engine_errors(f"cannot stop {host}"):
            self._container(run_id, host)[1].stop(timeout=60)

    def kill(self, run_id: str, host: str) -> None:
        """Kill a container."""
        with engine_errors(f"cannot kill {host}"):
            self._container(run_id, host)[1].kill()

    def pause(self, run_id: str, host: str) -> None:
        """Freeze all processes of a container; EngineError if that fails for a minute."""
        with engine_errors(f"cannot pause {host}"):
            _, container = self._container(run_id, host)
            try:
                wait_until(
                    lambda: _pause(container),
                    lambda paused: paused is True,
                    what=f"{host} to freeze",
                    timeout=_FROZEN,
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
        """Set a container's packet filter, from a temporary container in its network namespace."""
        with engine_errors(f"cannot set the packet filter of {host}"):
            context, container = self._container(run_id, host)
            addresses = {
                other.attrs["Labels"][HOST]: next(
                    iter(other.attrs["NetworkSettings"]["Networks"].values())
                )["IPAMConfig"]
                for engine_name in self._contexts
                for other in self._hosts(run_id, engine_name)
            }
            image = container.attrs["Config"]["Image"]
            if not image.startswith((f"{dockerfiles.REPOSITORY}:", f"{images.EXTENDED}:")):
                image = images.ensure(
                    self._clients[context], releases.get(releases.DEFAULT), lambda _: None
                )
            self._clients[context].containers.run(
                image,
                ["-c", 'printf %s "$RULES" | nft --file -'],
                entrypoint="sh",
                environment={
                    "RULES": packet_filters.rules(
                        drops, {name: config["IPv4Address"] for name, config in addresses.items()}
                    )
                },
                network_mode=f"container:{container.id}",
                cap_drop=["ALL"],
                cap_add=["NET_ADMIN"],
                labels={RUN: run_id, OWNER: str(os.geteuid())},
                remove=True,
            )

    def fetch(self, run_id: str, host: str, directory: str, tar: Path) -> None:
        """Write a directory of a container to a tar file that no other user can read."""
        with engine_errors(f"cannot read {directory} of {host}"):
            stream, _ = self._container(run_id, host)[1].get_archive(directory)
            tar.touch(mode=0o600)
            with tar.open("wb") as file:
                file.writelines(stream)

    def put(self, run_id: str, host: str, directory: str, tar: Path) -> None:
        """Unpack a tar file over a directory of a container; create its parent if it is missing."""
        parent = str(Path(directory).parent)
        with engine_errors(f"cannot write {directory} of {host}"), tar.open("rb") as file:
            container = self._container(run_id, host)[1]
            try:
                container.put_archive(parent, file)
            except NotFound:  # systemd-tmpfiles would create it at the first boot
                container.put_archive("/", images.archive([images.Entry(parent, None, 0o755)]))
                file.seek(0)
                container.put_archive(parent, file)

    def remove(self, run_id: str, host: str) -> None:
        """Remove a container and its volumes."""
        with engine_errors(f"cannot remove {host}"):
            try:
                _remove(self._container(run_id, host)[1])
            except NotFound:
                return

    def hosts(self, run_id: str) -> dict[str, bool]:
        """Return the hosts of a run; those on an engine that the Swarm cannot reach are stopped."""
        running: dict[str, bool] = {}
        with engine_errors("cannot list the hosts"):
            for context in self._contexts:
                reached = self._is_reached(context)
                for container in self._hosts(run_id, context):
                    name = container.attrs["Labels"][HOST]
                    running[name] = reached and container.status == "running"
        return running

    def _hosts(self, run_id: str, context: str) -> list[Container]:
        """Return the hosts on an engine, with the facts that a single request lists."""
        return self._engine(context).containers.list(
            all=True, filters={"label": [f"{RUN}={run_id}", HOST]}, sparse=True
        )

    def _is_reached(self, context: str) -> bool:
        """Return whether the Swarm reaches an engine; it notices within seconds if it cannot."""
        if len(self._contexts) == 1:
            return True
        node = self._client.nodes.get(self._engine(context).info()["Swarm"]["NodeID"])
        return bool(node.attrs["Status"]["State"] == "ready")

    def _everywhere(self, act: Callable[[Host], Done], hosts: Sequence[Host]) -> list[Done]:
        """Call `act` for all hosts in parallel."""
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
            lines = container.logs(tail=20).decode(errors="replace")
            return f"container {container.name} is {container.status}\n{lines}"

    def runs(self, *, all_users: bool = False) -> dict[str, list[str]]:
        """Return the runs that have containers, networks or volumes, and their running hosts."""
        runs: dict[str, list[str]] = {}
        ours: dict[str, str | list[str] | bool] = {
            "label": [RUN] if all_users else [RUN, f"{OWNER}={os.geteuid()}"]
        }
        with engine_errors("cannot list what runs"):
            for client in self._clients.values():
                # One request, without another one for each container.
                for container in client.containers.list(all=True, filters=ours, sparse=True):
                    labels = container.attrs["Labels"]
                    hosts = runs.setdefault(labels[RUN], [])
                    if container.status == "running" and HOST in labels:
                        hosts.append(labels[HOST])
                for network in client.networks.list(filters=ours):
                    runs.setdefault(network.attrs["Labels"][RUN], [])
                for volume in client.volumes.list(filters=ours):
                    runs.setdefault(volume.attrs["Labels"][RUN], [])
        return {run: sorted(hosts) for run, hosts in runs.items()}

    def down(self, run_id: str) -> list[str]:
        """Remove the containers, networks and volumes of a run.

        EngineError names engines that do not answer, after everything is removed from the others.
        """
        problems: list[EngineError] = []
        # The first engine comes last: it has the networks that connect the hosts of all engines.
        for name in reversed(self._contexts):
            try:
                with engine_errors(f"cannot remove the hosts{name and f' from the engine {name}'}"):
                    self._remove_all(self._engine(name), run_id, lost=bool(problems))
            except EngineError as error:
                problems.append(error)
        if len(problems) == 1:
            raise problems[0]
        if problems:
            raise EngineError("\n".join(map(str, problems)))
        # The Swarm removes a network from its other engines after the first has answered.
        for name in self._contexts[1:]:
            with engine_errors(f"the engine {name} keeps networks"):
                wait_until(
                    partial(self._engine(name).networks.list, filters={"label": f"{RUN}={run_id}"}),
                    lambda left: not left,
                    what="the Swarm to remove them",
                    timeout=_RELEASED,
                    show=lambda left: ", ".join(str(network.name) for network in left),
                )
        return []

    def _remove_all(self, client: docker.DockerClient, run_id: str, *, lost: bool) -> None:
        """Remove what a run has on an engine.

        If another engine is `lost`, because it does not answer, networks may remain: the Swarm
        keeps those of its containers.
        """
        label: dict[str, str | list[str] | bool] = {"label": f"{RUN}={run_id}"}
        with ThreadPoolExecutor(_PARALLEL) as pool:
            list(
                pool.map(
                    _remove, client.containers.list(all=True, filters=label, ignore_removed=True)
                )
            )
        for volume in client.volumes.list(filters=label):
            _remove_unused(volume)
        if client is self._client:
            for network in client.networks.list(filters=label):
                (_gone if lost else _remove_unused)(network)

    def _endpoint(self, address: str) -> EndpointConfig:
        return EndpointConfig(self._client.api.api_version, ipv4_address=address)

    def _networks(self, run: RunDir, plan: Plan) -> dict[str, tuple[Network, IPv4Network]]:
        """Return the network of each site; create those that are missing."""
        with engine_errors("cannot list networks"):
            existing = {
                network.attrs["Labels"]["harness.site"]: (network, _subnets(network)[0])
                for network in self._client.networks.list(filters={"label": f"{RUN}={run.id}"})
            }
        return {
            site: existing.get(site) or self._make_network(run, plan, site) for site in plan.sites()
        }

    def _make_network(self, run: RunDir, plan: Plan, site: str) -> tuple[Network, IPv4Network]:
        joined = len(self._contexts) > 1
        engines = 2 ** (32 - _ENGINES_PREFIX) if joined else 0
        candidates = subnets.for_site(plan, site, engines, taken(self._clients.values()))
        while True:
            subnet = next(candidates)
            with engine_errors(f"cannot create the network of site {site} with subnet {subnet}"):
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
                    # Another run may have taken the subnet since it was looked up: the engine
                    # decides.
                    if (
                        plan.scenario.sites[site].subnet
                        or "overlaps" not in str(error.explanation).lower()
                    ):
                        raise
                    continue
            return network, subnet

    def _bridge_options(self, run: RunDir, plan: Plan, site: str) -> dict[str, str]:
        bridges = {name: f"hs{run.id[-6:]}-{number}" for number, name in enumerate(plan.sites())}
        prefix = "com.docker.network.bridge"
        options = {
            f"{prefix}.name": bridges.pop(site),
            # Even what a host's own packet filter lets through cannot leave.
            f"{prefix}.enable_ip_masquerade": "false",
        }
        if bridges:
            # Since 28.0, the engine drops packets to a container over another bridge, such as the
            # gateway's. 28.2 can trust single bridges; the two versions before it can only turn
            # this off completely.
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
                images.tag(_slurms_of_ours(plan)[0]),
                ["-c", 'printf %s "$RULES" | nft --file - && echo ready && exec sleep infinity'],
                entrypoint="sh",
                name=name,
                hostname="gateway",
                labels={**labels, "harness.gateway": "yes"},
                cap_drop=["ALL"],
                cap_add=["NET_ADMIN"],
                sysctls={"net.ipv4.ip_forward": "1"},
                environment={"RULES": packet_filters.between_sites(plan, addresses)},
                network=str(first.name),
                networking_config={
                    str(first.name): self._endpoint(str(first_subnet[subnets.GATEWAY]))
                },
            )
            for network, subnet in others:
                network.connect(container, ipv4_address=str(subnet[subnets.GATEWAY]))
            _start(container, "the gateway")
            _wait_for_gateway(container)


@dataclass(frozen=True, slots=True)
class _Layout:
    """What a run's containers share: engines, networks and addresses of all hosts, and labels."""

    run: RunDir
    plan: Plan
    place: Mapping[str, str]
    networks: Mapping[str, tuple[Network, IPv4Network]]
    addresses: dict[str, str]
    labels: dict[str, str]

    def environment(self, host: Host) -> dict[str, str]:
        """Return the settings that a host's entry point reads (images/boot)."""
        own = self.networks[host.site][1]
        all_subnets = [subnet for _, subnet in self.networks.values()]
        routes = [f"{other} via {own[subnets.GATEWAY]}" for other in all_subnets if other != own]
        return {
            "HARNESS_ROUTES": ",".join(routes),
            "HARNESS_DNS_SERVER": self.addresses[host.dns_server] if host.dns_server else "",
            "HARNESS_FILTER": packet_filters.only_hosts(all_subnets),
            "HARNESS_NAMESPACES": "yes" if _runs_containers(self.plan, host) else "",
            "HARNESS_DISKS": ",".join(f"{size} {directory}" for directory, size in host.disks),
            "HARNESS_ADOPT": "yes" if host.image else "",
        }


def _labels(run: RunDir, plan: Plan) -> dict[str, str]:
    """Return the labels of everything that is created for a run."""
    return {RUN: run.id, SCENARIO: plan.name, OWNER: str(os.geteuid())}


def _in_memory(size: str, *, public: bool) -> dict[str, str]:
    """Return the options with which Docker's local driver makes a small disk in memory."""
    options = f"size={size},mode={'1777' if public else '0755'}"
    return {"type": "tmpfs", "device": "tmpfs", "o": options}


def _pool(subnet: IPv4Network, *, joined: bool) -> IPAMPool:
    """Return a network's address pool; if it spans several engines, each takes one address."""
    for_engines = (
        str(IPv4Network((subnet[-(2 ** (32 - _ENGINES_PREFIX))], _ENGINES_PREFIX)))
        if joined
        else None
    )
    return IPAMPool(subnet=str(subnet), gateway=str(subnet[1]), iprange=for_engines)


def _require_swarm(clients: Mapping[str, docker.DockerClient]) -> None:
    """EngineError if engines are not in one Swarm that the first of them manages."""
    (first, manager), *others = clients.items()
    with engine_errors("cannot ask the engines for their Swarm"):
        if not manager.info()["Swarm"]["ControlAvailable"]:
            raise EngineError(
                f"the engine {first} is not the manager of a Swarm",
                hint=f"docker --context {first} swarm init --advertise-addr ADDRESS",
            )
        members = {node.id for node in manager.nodes.list()}
        for name, client in others:
            if client.info()["Swarm"]["NodeID"] not in members:
                raise EngineError(
                    f"the engine {name} is not in the Swarm of {first}",
                    hint=f"`docker --context {first} swarm join-token worker` prints the command "
                    f"to run with --context {name}",
                )


def _start(container: Container, name: str) -> None:
    """Start a container; repeat that while a Swarm does not attach it to a network in time.

    The engine gives a manager 20 s for that (getRequestContext in its daemon/cluster), which may
    not be enough while the processor or the disk is busy. It then counts the container as attached
    to a network that it cannot find.
    """
    wait_until(
        lambda: _try_to_start(container),
        lambda started: started is True,
        what=f"the Swarm to attach {name} to its networks",
        timeout=_ATTACHED,
    )


def _try_to_start(container: Container) -> bool | str:
    """Start a container; return the Swarm's message if it did not attach it in time."""
    try:
        container.start()
    except APIError as error:
        if _UNATTACHED.search(message := str(error.explanation)):
            return message
        raise
    return True


def _pause(container: Container) -> bool | str:
    """Freeze a container; return runc's message if it gave up.

    The freezer of cgroup v1 may miss processes that are being forked. runc then thaws all others
    and reports "unable to freeze" (Set() of its fs/freezer.go), which happens on a busy machine.
    """
    try:
        container.pause()
    except APIError as error:
        if "unable to freeze" in (message := str(error.explanation)):
            return message
        raise
    return True


def _remove(container: Container) -> None:
    try:
        container.remove(force=True, v=True)
    except NotFound:
        pass
    except APIError as error:
        if error.status_code != 409:  # it is already being removed
            raise


def _slurms_of_ours(plan: Plan) -> list[images.Slurm]:
    """Return what the base images that a plan needs consist of: at least one, for the gateway."""
    return images.of_hosts(_without_image(plan)) or [releases.get(releases.DEFAULT)]


def _without_image(plan: Plan) -> list[Host]:
    return [host for host in plan.hosts if not host.image]


def _runs_containers(plan: Plan, host: Host) -> bool:
    """Return whether users run containers on a host, which need namespaces and mounts."""
    with_oci = host.cluster is not None and plan.scenario.clusters[host.cluster].oci is not None
    return host.apptainer or (with_oci and bool(host.nodes))


def _wait_for_gateway(container: Container) -> None:
    """Wait until the gateway reports that its rules are in force."""

    def look() -> tuple[str, str]:
        container.reload()
        return container.status, container.logs().decode(errors="replace").strip()

    wait_until(
        look,
        lambda seen: seen[1] == "ready",
        what="the gateway between the sites",
        timeout=120,
        give_up=lambda seen: seen[0] == "exited",
        show="\n".join,
        interval=0.05,
    )


def taken(clients: Iterable[docker.DockerClient]) -> list[IPv4Network]:
    """Return the subnets of all networks of engines."""
    with engine_errors("cannot list networks"):
        return [
            subnet
            for client in clients
            for network in client.networks.list()
            for subnet in _subnets(network)
        ]


def _remove_unused(resource: Network | Volume) -> None:
    """Remove a network or volume; the engine releases those of a container after its removal."""
    name = f"{'network' if isinstance(resource, Network) else 'volume'} {resource.name}"
    try:
        wait_until(lambda: _gone(resource), bool, what=f"{name} to be removed", timeout=_RELEASED)
    except WaitTimeout as error:
        raise EngineError(
            f"cannot remove {name}: the engine still counts a container that is gone",
            hint="restart the Docker engine, then `harness down --all`",
        ) from error


def _gone(resource: Network | Volume) -> bool:
    """Remove a network or volume; False while a container still uses it."""
    try:
        resource.remove()
    except NotFound:
        return True
    except APIError as error:
        if re.search("active endpoints|in use", str(error.explanation)):
            return False
        raise
    return True


def _subnets(network: Network) -> list[IPv4Network]:
    pools = (network.attrs.get("IPAM") or {}).get("Config") or []
    return [IPv4Network(pool["Subnet"]) for pool in pools if ":" not in pool.get("Subnet", ":")]
