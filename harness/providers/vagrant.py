"""Hosts as virtual machines that Vagrant makes with libvirt: each boots a kernel of its own.

Truth is in names: every domain, volume and network of a run begins with its id, so that `down` needs nothing else.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

from harness import hostlist, releases, rundir
from harness.errors import EngineError, UsageError
from harness.inventory import Machine
from harness.options import Offers
from harness.plan import Host, Plan
from harness.providers import Drop, boxes, images, libvirt, packets, subnets
from harness.providers.libvirt import names, virsh
from harness.render import Tree
from harness.resources import VAGRANTFILE
from harness.rundir import RunDir
from harness.scenario import NodeGroup, Path_, Scenario
from harness.wait import wait_until

# What a run's id looks like, and what follows it: see RunDir.create. No host's name has an underscore.
_OF_A_RUN = re.compile(r"(.+-\d{8}T\d{6}-[0-9a-f]{6})(?:_([^_.]+))?")
# Megabytes that a machine has beside what Slurm may use of it: kernel and systemd, and each of these daemons.
_OWN_MEMORY = 192
_DAEMON_MEMORY = {"mariadb": 256, "slurmdbd": 64, "slurmctld": 64}
_LEAST_MEMORY = 512
# Seconds for a machine to shut down when it is asked to.
_SHUTDOWN = 180


class VagrantProvider:
    """Virtual machines on this computer, with one network for each run."""

    name = "vagrant"
    offers = Offers(cgroups=True, own_hardware=True, own_kernel=True, boot_seconds=300)

    def __init__(self, runs: Path) -> None:
        self._runs = runs

    def release_of_image(self, image: str) -> str:
        """Refuse: boxes are made of Debian's packages."""
        raise UsageError(f"image {image}: virtual machines are made of Debian's packages: --provider docker")

    def lacks(self, scenario: Scenario) -> Iterator[tuple[Path_, str]]:
        """Yield what wants disks that hosts share, several networks, images, or Slurm without cgroup v2."""
        if len(scenario.sites) > 1:
            yield ("sites",), "virtual machines of a run have one network: --provider docker joins sites by a gateway"
        for name, cluster in scenario.clusters.items():
            at = ("clusters", name)
            for index, group in enumerate(cluster.nodes):
                if group.provision in {"power", "create"}:
                    yield (*at, "nodes", index, "provision"), "virtual machines that come and go are not offered"
            if cluster.image:
                yield (*at, "image"), "virtual machines are made of Debian's packages"
            if cluster.backup_controllers:
                yield (*at, "backup_controllers"), "wants a StateSaveLocation that controllers share: docker makes one"
            if cluster.gpus() and "gres.conf" not in cluster.files:
                yield (*at, "nodes"), "virtual machines have no GPUs"
            if cluster.apptainer:
                yield (*at, "apptainer"), "virtual machines have no Apptainer"
        if scenario.accounting and scenario.accounting.image:
            yield ("accounting", "image"), "virtual machines are made of Debian's packages"
        if scenario.disks:
            yield ("disks",), "virtual machines have one disk each"
        able = [name for name in releases.PACKAGED if "v2" in releases.get(name).plugins.get("cgroup", ())]
        for name in scenario.clusters:
            if (release := scenario.release_of(scenario.clusters[name])) not in able:
                yield ("clusters", name), f"Slurm {release} does not know cgroup v2; {', '.join(able)} do"

    def ask(self, plan: Plan, tree: Tree, run: RunDir | None = None) -> None:
        """Nobody's hosts change: they are made for the run."""

    def prepare(self, plan: Plan, say: Callable[[str], None]) -> None:
        """Build the boxes of a plan's releases that Vagrant does not have."""
        for name in dict.fromkeys(host.release for host in plan.hosts):
            boxes.ensure(releases.get(name), say)
        if not libvirt.kvm_boots():
            say("KVM runs no machine here: QEMU emulates them, which takes ten times as long")

    def up(self, run: RunDir, plan: Plan, hosts: Sequence[Host]) -> list[Machine]:
        """Make the run's network and machines, and boot them; Vagrant returns when SSH answers on each."""
        place = run.path / "vagrant"
        place.mkdir(exist_ok=True)
        macs = {host.name: _mac(number) for number, host in enumerate(plan.hosts)}
        subnet = _make_network(run.id, macs)
        addresses = dict(zip(macs, map(str, subnets.hosts_in(subnet)), strict=False))
        machines = [
            {
                "name": host.name,
                "box": boxes.name(releases.get(host.release)),
                "cpus": _cpus(plan, host),
                "memory": _memory(plan, host),
                "mac": macs[host.name],
                "console": str(place / f"{host.name}.console"),
                "identity": f"{run.id}_{host.name}.tar",
                "identity_bytes": _upload(run, host.name, addresses),
            }
            for host in hosts
        ]
        facts = {
            "id": run.id,
            "libvirt": libvirt.URI,
            "driver": "kvm" if libvirt.kvm_boots() else "qemu",
            "pool": libvirt.POOL,
            "subnet": str(subnet),
            "key": str(run.key("ssh_key")),
            "boot_seconds": self.offers.boot_seconds,
            "machines": machines,
        }
        (place / "machines.json").write_text(json.dumps(facts, indent=2))
        boxes.run(["vagrant", "up", "--provider", "libvirt", "--parallel"], _environment(place))
        return [Machine(host.name, addresses[host.name], 22) for host in hosts]

    def ssh_config(self, run: RunDir, machines: Sequence[Machine]) -> str:
        """Return a configuration with the run's own keys."""
        return run.own_ssh_config(machines)

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
            what=f"{host} shut down",
            timeout=_SHUTDOWN,
            interval=1,
        )

    def kill(self, run_id: str, host: str) -> None:
        """Take the power from a machine."""
        virsh("destroy", _domain(run_id, host))

    def pause(self, run_id: str, host: str) -> None:
        """Stop a machine's CPUs."""
        virsh("suspend", _domain(run_id, host))

    def unpause(self, run_id: str, host: str) -> None:
        """Have a machine's CPUs go on."""
        if virsh("domstate", _domain(run_id, host)).strip() == "paused":
            virsh("resume", _domain(run_id, host))

    def drop(self, run_id: str, host: str, drops: Sequence[Drop]) -> None:
        """Set a machine's packet filter over SSH, which it never drops: it comes from this computer."""
        run = next(run for run in rundir.all_runs(self._runs) if run.id == run_id)
        addresses = _addresses(run_id)
        ours = re.findall("<ip address='([^']*)'", virsh("net-dumpxml", run_id))[0]
        rules = packets.rules(drops, addresses, f"ip saddr {ours} accept")
        run.ssh().run(host, ["nft", "--file", "-"], stdin=rules)

    def remove(self, run_id: str, host: str) -> None:
        """Remove a machine and its disks."""
        _remove_domain(_domain(run_id, host))
        for volume in libvirt.volumes():
            if _of_run(volume) == (run_id, host):
                virsh("vol-delete", volume, "--pool", libvirt.POOL)

    def hosts(self, run_id: str) -> dict[str, bool]:
        """Return the machines of a run."""
        running = {*names("list", "--name", "--state-running")}
        there = ((domain, *_of_run(domain)) for domain in names("list", "--all", "--name"))
        return {host: domain in running for domain, of, host in there if of == run_id and host}

    def console(self, run_id: str, host: str) -> str:
        """Return the last lines of a machine's serial console, and its state."""
        state = virsh("domstate", _domain(run_id, host), check=False).strip() or "gone"
        run = next((run for run in rundir.all_runs(self._runs) if run.id == run_id), None)
        try:
            said = (run.path / "vagrant" / f"{host}.console").read_text(errors="replace") if run else ""
        except OSError as error:
            said = str(error)
        return "\n".join([f"domain {_domain(run_id, host)} is {state}", *said.splitlines()[-20:]])

    def runs(self) -> dict[str, list[str]]:
        """Return the runs that have a machine, a network or a disk here, and their machines that run."""
        running = {*names("list", "--name", "--state-running")}
        found: dict[str, list[str]] = {}
        for name in (*names("list", "--all", "--name"), *names("net-list", "--all", "--name"), *libvirt.volumes()):
            run_id, host = _of_run(name)
            if run_id:
                hosts = found.setdefault(run_id, [])
                hosts += [host] if host and name in running else []
        return {run_id: sorted(hosts) for run_id, hosts in found.items()}

    def down(self, run_id: str) -> list[str]:
        """Remove the machines, disks and network of a run, and what Vagrant knows of them.

        What libvirt was asked for by a Vagrant that was killed may come into being meanwhile: look again.
        """
        for run in rundir.all_runs(self._runs):
            if run.id == run_id:
                shutil.rmtree(run.path / "vagrant" / "machines", ignore_errors=True)

        def gone() -> bool:
            _sweep(run_id)
            return run_id not in self.runs()

        wait_until(
            gone,
            bool,
            what=f"nothing left of {run_id}",
            timeout=60,
            ignore=(EngineError,),
        )
        if shutil.which("vagrant"):
            boxes.run(["vagrant", "global-status", "--prune"])
        return []

    def _never(self, *_: Any, **__: Any) -> Any:
        raise UsageError("virtual machines are made and booted at once, each from its box: --provider docker")

    make = fetch = put = _never


def _domain(run_id: str, host: str) -> str:
    return f"{run_id}_{host}"


def _of_run(name: str) -> tuple[str, str]:
    """Return the run that a domain, volume or network belongs to ("": none), and its host ("": the run itself)."""
    found = _OF_A_RUN.match(name)
    return (found[1], found[2] or "") if found else ("", "")


def _sweep(run_id: str) -> None:
    """Remove what there is of a run."""
    for domain in names("list", "--all", "--name"):
        if _of_run(domain)[0] == run_id:
            _remove_domain(domain)
    virsh("pool-refresh", libvirt.POOL, check=False)
    for volume in libvirt.volumes():
        if _of_run(volume)[0] == run_id:
            virsh("vol-delete", volume, "--pool", libvirt.POOL)
    if run_id in names("net-list", "--all", "--name"):
        virsh("net-destroy", run_id)


def _remove_domain(domain: str) -> None:
    virsh("destroy", domain, check=False)  # it may not run
    virsh("undefine", domain, "--managed-save", "--snapshots-metadata", check=False)


def _environment(place: Path) -> dict[str, str]:
    """Return what tells Vagrant of a run."""
    return {
        "VAGRANT_CWD": str(VAGRANTFILE.parent),
        "VAGRANT_VAGRANTFILE": VAGRANTFILE.name,
        "VAGRANT_DOTFILE_PATH": str(place / "machines"),
        "VAGRANT_CHECKPOINT_DISABLE": "1",
        "HARNESS_MACHINES": str(place / "machines.json"),
    }


def _mac(number: int) -> str:
    """Return a hardware address of QEMU's range; another run's machines may have it too, in their own network."""
    return f"52:54:00:00:{number >> 8:02x}:{number & 255:02x}"


def _make_network(run_id: str, macs: Mapping[str, str]) -> IPv4Network:
    """Make the network of a run, which ends with libvirt; who has which address in it stands in its definition."""
    for subnet in subnets.free(subnets.size_for(len(macs))):
        given = zip(macs.items(), subnets.hosts_in(subnet), strict=False)
        leases = "".join(f"<host mac='{mac}' name='{name}' ip='{address}'/>" for (name, mac), address in given)
        # Without <forward> its machines reach one another and this computer, and nothing else.
        definition = f"""<network><name>{run_id}</name><bridge name='hv{run_id[-6:]}' stp='off' delay='0'/>
            <dns enable='no'/>
            <ip address='{subnet[1]}' netmask='{subnet.netmask}'><dhcp>{leases}</dhcp></ip></network>"""
        try:
            virsh("net-create", "/dev/stdin", stdin=definition)
        except EngineError as error:
            # Another run may have taken the subnet since it was looked up: libvirt decides.
            if "already in use" not in str(error):
                raise
            continue
        return subnet
    raise EngineError(f"no free subnet in {subnets.RANGE}", hint="`harness down --all` frees those of old runs")


def _addresses(run_id: str) -> dict[str, str]:
    """Return the address of each machine of a run, as its network was made with."""
    return dict(re.findall(r"<host mac='[^']*' name='([^']*)' ip='([^']*)'/>", virsh("net-dumpxml", run_id)))


def _upload(run: RunDir, host: str, addresses: Mapping[str, str]) -> int:
    """Put what makes a machine this host of this run onto a disk that is a tar; return its size in bytes."""
    known = "".join(f"{address} {name}\n" for name, address in addresses.items())
    identity = images.archive(
        [
            images.Entry("/etc/hostname", f"{host}\n".encode()),
            images.Entry("/etc/hosts", f"127.0.0.1 localhost\n{known}".encode()),
            images.Entry("/root/.ssh", None, 0o700),
            images.Entry("/root/.ssh/authorized_keys", run.key("ssh_key.pub").read_bytes(), 0o600),
            images.Entry("/etc/ssh/ssh_host_ed25519_key", run.key("ssh_host_key").read_bytes(), 0o600),
        ]
    )
    volume = f"{_domain(run.id, host)}.tar"
    virsh("vol-create-as", libvirt.POOL, volume, str(len(identity)), "--format", "raw")
    with tempfile.NamedTemporaryFile() as file:  # which nobody else may read
        file.write(identity)
        file.flush()
        virsh("vol-upload", volume, file.name, "--pool", libvirt.POOL)
    return len(identity)


def _group(plan: Plan, host: Host) -> NodeGroup | None:
    """Return the group of nodes whose size a host must have; slurmds that share one are each told theirs."""
    cluster = plan.scenario.clusters.get(host.cluster or "")
    if not cluster or cluster.hosts:
        return None
    return next((group for group in cluster.nodes if {*host.nodes} & {*hostlist.expand(group.name)}), None)


def _cpus(plan: Plan, host: Host) -> int:
    group = _group(plan, host)
    return group.cpus if group else 1


def _memory(plan: Plan, host: Host) -> int:
    """Return how many megabytes a machine wants for what its node offers to jobs, and for its daemons."""
    group = _group(plan, host)
    wanted = (group.memory if group else 0) + sum(_DAEMON_MEMORY.get(daemon, 0) for daemon in host.daemons)
    return max(_LEAST_MEMORY, wanted + _OWN_MEMORY)
