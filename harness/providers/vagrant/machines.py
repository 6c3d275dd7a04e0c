"""Hosts as virtual machines that Vagrant creates with libvirt: each boots its own kernel.

All state is in names: the name of every domain, volume and network of a run begins with the run's
id, so that `down` needs nothing else.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from xml.etree import ElementTree

from harness import releases, rundir
from harness.capabilities import Capabilities
from harness.errors import EngineError, UsageError
from harness.inventory import Machine
from harness.parsing import hostlist
from harness.plan import Host, Plan, Volume
from harness.providers import Drop, images, packet_filters, subnets
from harness.providers.vagrant import boxes, libvirt
from harness.providers.vagrant.libvirt import names, virsh
from harness.render import RenderedFile, Tree
from harness.rundir import RunDir
from harness.scenario import NodeGroup, Path_, Scenario
from harness.shipped_files import VAGRANTFILE
from harness.wait import wait_until

# A run's id, followed by the name of a host: see RunDir.create. Host names have no underscore, so
# networks and the gateway between them are not taken for hosts.
_OF_A_RUN = re.compile(r"(.+-\d{8}T\d{6}-[0-9a-f]{6})(?:_([^_.]+))?")
# The owner of a run, stored in its network definitions: formatnetwork.html, General metadata.
_NAMESPACE = "https://slurm-harness/libvirt"
_OWNER = f"<harness:owner xmlns:harness='{_NAMESPACE}' uid='{{}}'/>"
# Megabytes that a machine needs on top of what Slurm may use: for the kernel and systemd, and for
# each of these daemons.
_OWN_MEMORY = 192
_DAEMON_MEMORY = {"mariadb": 256, "slurmdbd": 64, "slurmctld": 64}
_LEAST_MEMORY = 512
_GATEWAY, _GATEWAY_MEMORY = "_gateway", 256
# Seconds that a machine may take to shut down.
_SHUTDOWN = 180


class VagrantProvider:
    """Virtual machines on this computer, a network per site, and a gateway between the sites."""

    name = "vagrant"
    capabilities = Capabilities(cgroups=True, own_hardware=True, own_kernel=True, boot_seconds=300)

    def __init__(self, runs: Path) -> None:
        self._runs = runs

    def lacks(self, scenario: Scenario) -> Iterator[tuple[Path_, str]]:
        """Yield the keys of a scenario that virtual machines cannot provide, with the reason."""
        for name, cluster in scenario.clusters.items():
            at = ("clusters", name)
            if cluster.image:
                yield (
                    (*at, "image"),
                    "virtual machines are built from Debian's packages: --provider docker",
                )
            if cluster.backup_controllers:
                yield (
                    (*at, "backup_controllers"),
                    "requires a StateSaveLocation that the controllers share: --provider docker",
                )
            if cluster.gpus() and "gres.conf" not in cluster.files:
                yield (*at, "nodes"), "virtual machines have no GPUs"
            if cluster.package_names:
                yield (
                    (*at, "packages"),
                    "virtual machines cannot have additional packages: --provider docker",
                )
            if cluster.spank_plugins:
                yield (
                    (*at, "spank_plugins"),
                    "virtual machines cannot have additional plugins: --provider docker",
                )
            if cluster.apptainer:
                yield (*at, "apptainer"), "virtual machines have no Apptainer"
        services: list[Path_] = [
            (key,) for key in ("monitoring", "directory") if getattr(scenario, key)
        ]
        services += [("sites", site, "dns_server") for site in scenario.dns_servers()]
        for place in services:
            yield place, "virtual machines lack the packages that this needs: --provider docker"
        if scenario.accounting and scenario.accounting.image:
            yield (
                ("accounting", "image"),
                "virtual machines are built from Debian's packages: --provider docker",
            )
        if scenario.shared_directories and len(scenario.sites) > 1:
            yield (
                ("shared_directories",),
                "virtual machines share directories within one site only: --provider docker",
            )
        if scenario.disks:
            yield ("disks",), "virtual machines have one disk each"
        able = [name for name in releases.KNOWN if releases.get(name).supports_cgroup_v2]
        for name in scenario.clusters:
            if (release := scenario.release_of(scenario.clusters[name])) not in able:
                yield (
                    ("clusters", name),
                    f"Slurm {release} does not support cgroup v2; {', '.join(able)} do",
                )

    def confirm(self, plan: Plan, tree: Tree, run: RunDir | None = None) -> None:
        """Check that there is a box for each host: only Debian's kernel boots from one."""
        for host in plan.hosts:
            base = images.base_of(images.on(host))
            if not base.bootstrappable:
                raise UsageError(
                    f"{host.name}: virtual machines must run Debian, not "
                    f"{base.distribution}:{base.name}",
                    hint="--provider docker",
                )

    def prepare(self, plan: Plan, say: Callable[[str], None]) -> None:
        """Build the boxes of a plan's releases that Vagrant does not have."""
        for slurm in images.of_hosts(plan.hosts):
            boxes.ensure(slurm, say)
        if not libvirt.kvm_boots():
            say("KVM cannot run machines here: QEMU emulates them, which is ten times slower")

    def up(self, run: RunDir, plan: Plan, hosts: Sequence[Host]) -> list[Machine]:
        """Create the run's networks and machines, and boot them.

        Vagrant waits until SSH answers on each.
        """
        place = _place(run)
        place.mkdir(exist_ok=True)
        sites = {site: _make_network(run.id, plan, site) for site in plan.sites()}
        addresses = subnets.addresses(plan, sites)
        machines = [
            {
                "name": host.name,
                "cpus": _cpus(plan, host),
                "memory": _memory(plan, host),
                "box": boxes.name(images.on(host)),
                "networks": [_joins(run.id, host.site, sites, addresses[host.name])],
                **_identify(run, host.name, _identity(plan, host, sites, addresses)),
            }
            for host in hosts
        ]
        if len(sites) > 1:
            gateway = {
                "name": _GATEWAY,
                "cpus": 1,
                "memory": _GATEWAY_MEMORY,
                "box": machines[0]["box"],
                "networks": [
                    _joins(run.id, site, sites, _gateway_in(subnet))
                    for site, subnet in sites.items()
                ],
                **_identify(run, _GATEWAY, _identity_of_gateway(plan, addresses)),
            }
            machines.append(gateway)
        facts = {
            "id": run.id,
            "libvirt": libvirt.URI,
            "driver": "kvm" if libvirt.kvm_boots() else "qemu",
            "pool": libvirt.POOL,
            "key": str(run.key("ssh_key")),
            "boot_seconds": self.capabilities.boot_seconds,
            "machines": machines,
        }
        (place / "machines.json").write_text(json.dumps(facts, indent=2))
        boxes.run(["vagrant", "up", "--provider", "libvirt", "--parallel"], _environment(place))
        return [Machine(host.name, addresses[host.name], 22) for host in hosts]

    def ssh_config(self, run: RunDir, machines: Sequence[Machine]) -> str:
        """Return an SSH configuration with the run's own keys; the gateway is called `_gateway`."""
        sites = _sites(run.id)
        gateway = (
            [Machine(_GATEWAY, _gateway_in(next(iter(sites.values()))), 22)]
            if len(sites) > 1
            else []
        )
        return run.own_ssh_config([*machines, *gateway])

    def make(
        self,
        run: RunDir,
        plan: Plan,
        hosts: Sequence[Host],
        files: Mapping[str, Sequence[RenderedFile]],
    ) -> None:
        """Define machines modeled on their cluster's controller, which Vagrant created."""
        sites = _sites(run.id)
        addresses = subnets.addresses(plan, sites)
        for host in hosts:
            self.remove(run.id, host.name)  # in case an interrupted attempt left it
            target = "cloud-init" if host.user_data else "multi-user"
            seed = [*images.seed(files[host.name], host.daemons, target), *_cloud_init(host)]
            _identify(run, host.name, [*_identity(plan, host, sites, addresses), *seed])
            controller = plan.scenario.clusters[str(host.cluster)].controller
            disk = _described("vol-dumpxml", _disk_of(run.id, controller), "--pool", libvirt.POOL)
            size, box = disk.findtext("capacity", ""), disk.findtext("backingStore/path", "")
            fresh = [
                "vol-create-as",
                libvirt.POOL,
                _disk_of(run.id, host.name),
                size,
                "--format",
                "qcow2",
            ]
            virsh(*fresh, "--backing-vol", box, "--backing-vol-format", "qcow2")
            virsh(
                "define",
                "/dev/stdin",
                stdin=_like(run, plan, controller, host, _mac(addresses[host.name])),
            )
            if host.user_data:
                _attach_user_data(run, host)

    def start(self, run_id: str, host: str) -> Machine:
        """Start a machine; its address stays the same."""
        virsh("start", _domain(run_id, host))
        return Machine(host, _addresses(run_id)[host], 22)

    def stop(self, run_id: str, host: str) -> None:
        """Press a machine's power button, and wait until it has shut down."""
        virsh("shutdown", _domain(run_id, host), "--mode", "acpi")
        wait_until(
            lambda: virsh("domstate", _domain(run_id, host)).strip(),
            lambda state: state == "shut off",
            what=f"{host} to shut down",
            timeout=_SHUTDOWN,
            interval=1,
        )

    def kill(self, run_id: str, host: str) -> None:
        """Cut a machine's power."""
        virsh("destroy", _domain(run_id, host))

    def pause(self, run_id: str, host: str) -> None:
        """Stop a machine's CPUs."""
        virsh("suspend", _domain(run_id, host))

    def unpause(self, run_id: str, host: str) -> None:
        """Resume a machine's CPUs."""
        if virsh("domstate", _domain(run_id, host)).strip() == "paused":
            virsh("resume", _domain(run_id, host))

    def drop(self, run_id: str, host: str, drops: Sequence[Drop]) -> None:
        """Set a machine's packet filter over SSH.

        Connections from this computer are never dropped.
        """
        run = next(run for run in rundir.all_runs(self._runs) if run.id == run_id)
        addresses = _addresses(run_id)
        ours = ", ".join(str(subnet[1]) for subnet in _sites(run_id).values())
        rules = packet_filters.rules(drops, addresses, f"ip saddr {{ {ours} }} accept")
        run.ssh().run(host, ["nft", "--file", "-"], stdin=rules)

    def remove(self, run_id: str, host: str) -> None:
        """Remove a machine and its disks."""
        _remove_domain(_domain(run_id, host))
        for volume in libvirt.volumes():
            if _run_and_host(volume) == (run_id, host):
                virsh("vol-delete", volume, "--pool", libvirt.POOL)

    def hosts(self, run_id: str) -> dict[str, bool]:
        """Return the machines of a run."""
        running = {*names("list", "--name", "--state-running")}
        domains = ((domain, *_run_and_host(domain)) for domain in names("list", "--all", "--name"))
        return {
            host: domain in running for domain, owner, host in domains if owner == run_id and host
        }

    def console(self, run_id: str, host: str) -> str:
        """Return the last lines of a machine's serial console, and its state."""
        state = virsh("domstate", _domain(run_id, host), check=False).strip() or "gone"
        run = next((run for run in rundir.all_runs(self._runs) if run.id == run_id), None)
        try:
            output = _console(run, host).read_text(errors="replace") if run else ""
        except OSError as error:
            output = str(error)
        return "\n".join([f"domain {_domain(run_id, host)} is {state}", *output.splitlines()[-20:]])

    def runs(self, *, all_users: bool = False) -> dict[str, list[str]]:
        """Return the runs that have machines, disks or networks here, and their running machines.

        A run belongs to this user if its network says so, or if it has a directory.
        """
        running = {*names("list", "--name", "--state-running")}
        runs: dict[str, list[str]] = {}
        for name in (
            *names("list", "--all", "--name"),
            *names("net-list", "--all", "--name"),
            *libvirt.volumes(),
        ):
            run_id, host = _run_and_host(name)
            if run_id:
                hosts = runs.setdefault(run_id, [])
                hosts += [host] if host and name in running else []
        if not all_users:
            own = {run.id for run in rundir.all_runs(self._runs)}
            runs = {
                run_id: hosts
                for run_id, hosts in runs.items()
                if run_id in own or _made_network_of(run_id)
            }
        return {run_id: sorted(hosts) for run_id, hosts in runs.items()}

    def down(self, run_id: str) -> list[str]:
        """Remove the machines, disks and networks of a run, and Vagrant's data about them.

        Repeats until nothing is left: libvirt may still be creating what a killed Vagrant
        requested.
        """
        for run in rundir.all_runs(self._runs):
            if run.id == run_id:
                shutil.rmtree(_place(run) / "machines", ignore_errors=True)

        def gone() -> bool:
            _sweep(run_id)
            return run_id not in self.runs(all_users=True)

        wait_until(
            gone,
            bool,
            what=f"nothing to be left of {run_id}",
            timeout=60,
            ignore=(EngineError,),
        )
        if shutil.which("vagrant"):
            boxes.run(["vagrant", "global-status", "--prune"])
        return []


def _place(run: RunDir) -> Path:
    return run.path / "vagrant"


def _console(run: RunDir, host: str) -> Path:
    return _place(run) / f"{host}.console"


def _domain(run_id: str, host: str) -> str:
    return f"{run_id}_{host}"


def _run_and_host(name: str) -> tuple[str, str]:
    """Return the run and the host that a domain, volume or network belongs to, "" if to none."""
    match = _OF_A_RUN.match(name)
    return (match[1], match[2] or "") if match else ("", "")


def _sweep(run_id: str) -> None:
    """Remove everything that a run has at the moment."""
    for domain in names("list", "--all", "--name"):
        if _run_and_host(domain)[0] == run_id:
            _remove_domain(domain)
    virsh("pool-refresh", libvirt.POOL, check=False)
    for volume in libvirt.volumes():
        if _run_and_host(volume)[0] == run_id:
            virsh("vol-delete", volume, "--pool", libvirt.POOL)
    for network in names("net-list", "--all", "--name"):
        if _run_and_host(network)[0] == run_id:
            virsh("net-destroy", network)


def _remove_domain(domain: str) -> None:
    virsh("destroy", domain, check=False)  # it may not be running
    virsh("undefine", domain, "--managed-save", "--snapshots-metadata", check=False)


def _environment(place: Path) -> dict[str, str]:
    """Return the environment in which Vagrant works on a run."""
    return {
        "VAGRANT_CWD": str(VAGRANTFILE.parent),
        "VAGRANT_VAGRANTFILE": VAGRANTFILE.name,
        "VAGRANT_DOTFILE_PATH": str(place / "machines"),
        "VAGRANT_CHECKPOINT_DISABLE": "1",
        "HARNESS_MACHINES": str(place / "machines.json"),
    }


def _disk_of(run_id: str, host: str) -> str:
    """Return the volume from which a machine boots, as Vagrant names it."""
    return f"{_domain(run_id, host)}.img"


def _network(run_id: str, site: str) -> str:
    return f"{run_id}__{site}"


def _gateway_in(subnet: IPv4Network) -> str:
    return str(subnet[subnets.GATEWAY])


def _mac(address: str) -> str:
    """Return the hardware address for an IP address; it is locally administered (IEEE 802)."""
    return f"52:54:{IPv4Address(address).packed.hex(':')}"


def _joins(
    run_id: str, site: str, sites: Mapping[str, IPv4Network], address: str
) -> dict[str, str]:
    """Return Vagrant's settings for a machine's network."""
    return {"name": _network(run_id, site), "subnet": str(sites[site]), "mac": _mac(address)}


def _make_network(run_id: str, plan: Plan, site: str) -> IPv4Network:
    """Create the transient network of a site; its definition has the address of each host."""
    candidates = subnets.for_site(plan, site)
    bridge = f"hv{run_id[-6:]}-{plan.sites().index(site)}"
    while True:
        subnet = next(candidates)
        given = subnets.addresses(plan, {site: subnet}).items()
        leases = [
            f"<host mac='{_mac(address)}' name='{name}' ip='{address}'/>" for name, address in given
        ]
        leases.append(f"<host mac='{_mac(_gateway_in(subnet))}' ip='{_gateway_in(subnet)}'/>")
        # Without <forward>, its machines reach each other and this computer, and nothing else.
        definition = f"""<network><name>{_network(run_id, site)}</name>
            <bridge name='{bridge}' stp='off' delay='0'/>
            <metadata>{_OWNER.format(os.geteuid())}</metadata><dns enable='no'/>
            <ip address='{subnet[1]}' netmask='{subnet.netmask}'>
            <dhcp>{"".join(leases)}</dhcp></ip></network>"""
        try:
            virsh("net-create", "/dev/stdin", stdin=definition)
        except EngineError as error:
            # Another run may have taken the subnet in the meantime: libvirt decides.
            if plan.scenario.sites[site].subnet or "already in use" not in str(error):
                raise
            continue
        return subnet


def _described(*words: str) -> ElementTree.Element:
    """Return the XML that a command of libvirt's client prints."""
    return ElementTree.fromstring(virsh(*words))  # noqa: S314  libvirt wrote it


def _made_network_of(run_id: str) -> bool:
    """Return whether this user created the networks of a run."""
    ours = f"metadata/{{{_NAMESPACE}}}owner[@uid='{os.geteuid()}']"
    return any(network.find(ours) is not None for network in _networks(run_id).values())


def _networks(run_id: str) -> dict[str, ElementTree.Element]:
    """Return the definition of each site's network."""
    own = [name for name in names("net-list", "--name") if _run_and_host(name)[0] == run_id]
    return {
        name.removeprefix(_network(run_id, "")): _described("net-dumpxml", name) for name in own
    }


def _sites(run_id: str) -> dict[str, IPv4Network]:
    """Return the subnet of each site."""
    return {
        site: IPv4Network((ip.attrib["address"], ip.attrib["netmask"]), strict=False)
        for site, network in _networks(run_id).items()
        for ip in network.iterfind("ip")
    }


def _addresses(run_id: str) -> dict[str, str]:
    """Return the address of each machine of a run, from the definitions of its networks."""
    leases = (
        lease
        for network in _networks(run_id).values()
        for lease in network.iterfind("ip/dhcp/host[@name]")
    )
    return {lease.attrib["name"]: lease.attrib["ip"] for lease in leases}


def _identity(
    plan: Plan, host: Host, sites: Mapping[str, IPv4Network], addresses: Mapping[str, str]
) -> list[images.Entry]:
    """Return the files that turn a machine into a host: names, and routes to other sites."""
    known = "".join(f"{address} {name}\n" for name, address in addresses.items())
    gateway = _gateway_in(sites[host.site])
    others = [subnet for site, subnet in sites.items() if site != host.site]
    routes = "".join(f"[Route]\nDestination={subnet}\nGateway={gateway}\n" for subnet in others)
    entries = [
        images.Entry("/etc/hostname", f"{host.name}\n".encode()),
        images.Entry("/etc/hosts", f"127.0.0.1 localhost\n{known}".encode()),
        images.Entry("/etc/systemd/network/identity.network.d/sites.conf", routes.encode()),
    ]
    if "mariadb" in host.daemons:
        # InnoDB's pool is larger than the machine's memory, because slurmdbd warns about less than
        # 2 GiB, but little of it is used. The pages in use must not become huge pages.
        small = b"w /sys/kernel/mm/transparent_hugepage/enabled - - - - madvise\n"
        entries.append(images.Entry("/etc/tmpfiles.d/small-pages.conf", small))
        entries.append(images.Entry("/etc/sysctl.d/overcommit.conf", b"vm.overcommit_memory = 1\n"))
    return [*entries, *_shared(plan, host, sites[host.site])]


def _shared(plan: Plan, host: Host, subnet: IPv4Network) -> Iterator[images.Entry]:
    """Yield the files that share directories of controllers with the hosts of a site, by NFS 4."""
    exports, mounts, mounted = "", "", []
    for number, volume in enumerate(host.volumes, 1):
        server, directory = _server(plan, host, volume), volume.directory
        if server != host.name:
            patience = VagrantProvider.capabilities.boot_seconds  # the server may still be booting
            options = f"retry={patience // 60},x-systemd.mount-timeout={patience}"
            mounts += f"{server}:{directory} {directory} nfs4 {options} 0 0\n"
            mounted.append(directory)
            continue
        mode = 0o1777 if volume.public else 0o755
        yield images.Entry(directory, None, mode)
        # A file system in memory has no UUID by which NFS could know it: exports(5).
        exports += f"{directory} {subnet}(rw,sync,no_subtree_check,no_root_squash,fsid={number})\n"
        if volume.size:
            mounts += f"tmpfs {directory} tmpfs size={volume.size},mode={mode:o} 0 0\n"
    if exports:
        yield images.Entry("/etc/exports", exports.encode())
        yield images.enabled("nfs-server")
    if mounts:
        yield images.Entry("/etc/fstab", mounts.encode())
    if mounted:
        # SSH answers only after the directories are mounted. An x-systemd.required-by= in fstab
        # would mount them before the network is up: systemd.mount(5).
        after = b"[Unit]\nWants=remote-fs.target\nAfter=remote-fs.target\n"
        yield images.Entry("/etc/systemd/system/ssh.service.d/shared.conf", after)
        needs = f"[Unit]\nRequiresMountsFor={' '.join(mounted)}\n"
        yield images.Entry("/etc/systemd/system/slurmd.service.d/shared.conf", needs.encode())


def _server(plan: Plan, host: Host, volume: Volume) -> str:
    """Return the host that has a volume on its disk: the first controller at this site with it."""
    return next(
        other.name
        for other in plan.hosts
        if other.site == host.site and "slurmctld" in other.daemons and volume in other.volumes
    )


def _identity_of_gateway(plan: Plan, addresses: Mapping[str, str]) -> list[images.Entry]:
    """Return the files that turn a machine into the gateway between sites.

    It never forwards packets before its rules are in force.
    """
    return [
        images.Entry("/etc/hostname", b"gateway\n"),
        images.Entry("/etc/nftables.conf", packet_filters.between_sites(plan, addresses).encode()),
        images.enabled("nftables", "sysinit"),
        images.Entry("/etc/sysctl.d/gateway.conf", b"net.ipv4.ip_forward = 1\n"),
    ]


def _identify(run: RunDir, name: str, identity: Sequence[images.Entry]) -> dict[str, str | int]:
    """Write a machine's own files as a tar to its second disk.

    Return Vagrant's settings for that disk, and for the file of the machine's console.
    """
    tar = images.archive(
        [
            *identity,
            images.Entry("/root/.ssh", None, 0o700),
            *images.keys(run),
        ]
    )
    volume = f"{_domain(run.id, name)}.tar"
    with tempfile.NamedTemporaryFile() as file:  # no other user can read it
        file.write(tar)
        file.flush()
        _upload(Path(file.name), volume)
    return {"identity": volume, "identity_bytes": len(tar), "console": str(_console(run, name))}


def _upload(file: Path, volume: str) -> None:
    """Make a file the content of a new disk."""
    size = str(file.stat().st_size)
    virsh("vol-create-as", libvirt.POOL, volume, size, "--format", "raw")
    virsh("vol-upload", volume, str(file), "--pool", libvirt.POOL)


def _cloud_init(host: Host) -> Iterator[images.Entry]:
    """Yield the files that make cloud-init look for user-data, and slurmd wait for its end.

    cloud-final.service runs after multi-user.target, so this target cannot start slurmd.
    """
    if host.user_data:
        generator = "systemd/system-generators/cloud-init-generator"
        yield images.Entry(f"/etc/{generator}", None, link=f"/lib/{generator}")
        after = b"[Unit]\nAfter=cloud-final.service\n"
        yield images.Entry("/etc/systemd/system/slurmd.service.d/cloud-init.conf", after)


def _attach_user_data(run: RunDir, host: Host) -> None:
    """Give a machine a third disk with its user-data, as cloud-init's data source NoCloud reads it.

    bsdtar, which Vagrant requires, writes the disk.
    """
    domain = _domain(run.id, host.name)
    # JSON is YAML, in which a host may be called 1.
    meta_data = json.dumps({"instance-id": domain, "local-hostname": host.name})
    with tempfile.TemporaryDirectory() as place:  # no other user can read it
        for name, text in (("meta-data", meta_data), ("user-data", host.user_data)):
            Path(place, name).write_bytes(text.encode())
        disk = Path(place, "disk.iso")
        write = ["bsdtar", "--create", "--format=iso9660", "--options=volume-id=CIDATA"]
        boxes.run([*write, f"--file={disk}", f"--directory={place}", "meta-data", "user-data"])
        _upload(disk, f"{domain}.iso")
    path = virsh("vol-path", f"{domain}.iso", "--pool", libvirt.POOL).strip()
    options = ["--config", "--subdriver", "raw", "--mode", "readonly"]
    virsh("attach-disk", domain, path, "vdc", *options)


def _like(run: RunDir, plan: Plan, other: str, host: Host, mac: str) -> str:
    """Return a machine's definition, copied from another of the run, with its own name and size."""
    text = virsh("dumpxml", "--inactive", _domain(run.id, other))
    # The names of its disks begin with its own.
    text = text.replace(_domain(run.id, other), _domain(run.id, host.name))
    text = text.replace(str(_console(run, other)), str(_console(run, host.name)))
    definition = ElementTree.fromstring(text)  # noqa: S314  libvirt wrote it
    for uuid in definition.findall("uuid"):
        definition.remove(uuid)
    for own in definition.iter("mac"):
        own.set("address", mac)
    for cpus in definition.iterfind("vcpu"):
        cpus.text = str(_cpus(plan, host))
    for size in (*definition.iterfind("memory"), *definition.iterfind("currentMemory")):
        size.set("unit", "MiB")
        size.text = str(_memory(plan, host))
    return ElementTree.tostring(definition, encoding="unicode")


def _group(plan: Plan, host: Host) -> NodeGroup | None:
    """Return the node group that gives a host its size; None for hosts with several slurmds."""
    cluster = plan.scenario.clusters.get(host.cluster or "")
    if not cluster or cluster.hosts:
        return None
    return next(
        (group for group in cluster.nodes if {*host.nodes} & {*hostlist.expand(group.name)}), None
    )


def _cpus(plan: Plan, host: Host) -> int:
    group = _group(plan, host)
    return group.cpus if group else 1


def _memory(plan: Plan, host: Host) -> int:
    """Return the megabytes for a node's jobs, its daemons, and the disks in memory it serves."""
    group = _group(plan, host)
    wanted = (group.memory if group else 0) + sum(
        _DAEMON_MEMORY.get(daemon, 0) for daemon in host.daemons
    )
    small = sum(
        _megabytes(volume.size)
        for volume in host.volumes
        if volume.size and _server(plan, host, volume) == host.name
    )
    return max(_LEAST_MEMORY, wanted + _OWN_MEMORY) + small


def _megabytes(size: str) -> int:
    """Return a size such as "2G" in megabytes.

    >>> _megabytes("100M"), _megabytes("2G")
    (100, 2048)
    """
    return int(size[:-1]) * (1024 if size.endswith("G") else 1)
