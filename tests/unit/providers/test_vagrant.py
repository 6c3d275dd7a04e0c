"""Virtual machines: their limits, their sizes, and who owns a name. None is created here."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from ipaddress import IPv4Network
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from harness import cli, doctor, origins, releases, scenario
from harness.errors import EngineError, ScenarioError
from harness.plan import SHARED_DIRECTORY, make_plan
from harness.providers import Drop, dockerfiles, images, packet_filters, subnets
from harness.providers.docker import engine
from harness.providers.vagrant import boxes, libvirt, machines
from harness.providers.vagrant.machines import VagrantProvider
from harness.shipped_files import IMAGES
from harness.slurm_options import cgroup_conf, slurm_conf

RUN = "small-20261122T041700-d94c01"
TOO_MUCH = """
clusters:
  old:
    release: "20.11"
    controller: boss
    image: somebodys/image
    packages: [gcc]
    spank_plugins: {/opt/a.so: {text: ""}}
    nodes: [{name: worker, cpus: 2}]
users: {alice: {uid: 2001}}
disks: {boss: {/var/lib/slurm: 10M}}
sites: {here: {dns_server: boss}}
"""
SMALL = """
clusters:
  small: {controller: boss, nodes: [{name: worker, cpus: 3, memory: 700}]}
accounting: {host: boss, accounts: {physics: {}}}
users: {alice: {uid: 2001, accounts: [physics]}}
"""
TWO_SITES = """
sites: {here: {}, there: {subnet: 10.20.0.0/24}}
clusters:
  one: {site: here, controller: near, nodes: [{name: near}]}
  two: {site: there, controller: far, nodes: [{name: far}]}
users: {alice: {uid: 2001}}
"""
WITH_USER_DATA = """
clusters:
  small:
    controller: boss
    nodes: [{name: worker, provision: create, user_data: {text: "#cloud-config\\n{}"}}]
users: {alice: {uid: 2001}}
"""
# A machine as Vagrant defines it in libvirt.
DEFINITION = """<domain>
  <name>{run}_boss</name>
  <uuid>8d6d8aa5-1c85-4a3a-adb1-131575d6aaa4</uuid>
  <memory unit='KiB'>774144</memory>
  <currentMemory unit='KiB'>774144</currentMemory>
  <vcpu placement='static'>2</vcpu>
  <devices>
    <disk type='file'><source file='/pool/{run}_boss.img'/></disk>
    <interface type='network'><mac address='52:54:c6:12:00:0a'/><source
      network='{run}__site'/></interface>
    <serial type='file'><source path='{path}/vagrant/boss.console'/></serial>
  </devices>
</domain>"""


def written(directory: Path, text: str) -> Path:
    path = directory / "small.yml"
    path.write_text(text)
    return path


def test_what_virtual_machines_cannot_do_is_reported_with_its_place(tmp_path: Path) -> None:
    provider = VagrantProvider(tmp_path)
    with pytest.raises(ScenarioError) as caught:
        scenario.load(written(tmp_path, TOO_MUCH), (), None, provider.lacks)
    message = str(caught.value)
    for part in (
        "small.yml:6:12: clusters.old.image: virtual machines are built from Debian's packages",
        "clusters.old.packages: virtual machines cannot have additional packages",
        "clusters.old.spank_plugins: virtual machines cannot have additional plugins",
        "sites.here.dns_server: virtual machines lack the packages that this needs",
        "disks: virtual machines have one disk each",
        "Slurm 20.11 does not support cgroup v2; 22.05, 23.02, ",
    ):
        assert part in message


def test_machine_has_what_its_node_offers_and_its_daemons_need(tmp_path: Path) -> None:
    plan = make_plan("small", scenario.load(written(tmp_path, SMALL)), VagrantProvider.capabilities)
    sizes = {
        host.name: (machines._cpus(plan, host), machines._memory(plan, host)) for host in plan.hosts
    }
    assert sizes == {"boss": (1, 256 + 64 + 64 + 192), "worker": (3, 700 + 192)}


def test_slurm_confines_jobs_and_may_reboot_machines_created_for_it(
    tmp_path: Path,
) -> None:
    read = scenario.load(written(tmp_path, SMALL))
    conf = slurm_conf(read, "small", VagrantProvider.capabilities)
    assert (conf["RebootProgram"], conf["ProctrackType"]) == (
        "/usr/sbin/reboot",
        "proctrack/cgroup",
    )
    assert cgroup_conf(read, "small", VagrantProvider.capabilities)["ConstrainRAMSpace"] == "YES"
    assert make_plan("small", read, VagrantProvider.capabilities).clusters_that_confine(
        "ConstrainCores"
    ) == ["small"]


@pytest.mark.parametrize(
    ("name", "whose"),
    [
        (f"{RUN}_boss", (RUN, "boss")),
        (f"{RUN}_boss.img", (RUN, "boss")),
        (f"{RUN}_boss.tar", (RUN, "boss")),
        (f"{RUN}_boss.iso", (RUN, "boss")),
        (f"{RUN}__here", (RUN, "")),
        (f"{RUN}__gateway.img", (RUN, "")),
        ("somebodys_machine.img", ("", "")),
    ],
)
def test_names_show_which_run_something_belongs_to(name: str, whose: tuple[str, str]) -> None:
    assert machines._run_and_host(name) == whose


def test_box_name_changes_with_its_files_and_its_image(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = boxes.name(releases.get("24.11"))
    assert boxes.name(releases.get("24.11")) == before
    bare = replace(origins.base("debian:trixie"), host_packages=("systemd",))
    monkeypatch.setattr(images, "base_of", lambda slurm: bare)
    other = boxes.name(releases.get("24.11"))
    assert other != before
    monkeypatch.setattr(boxes, "_DIRECTORY", IMAGES)
    assert boxes.name(releases.get("24.11")) != other


@pytest.mark.parametrize(
    ("script", "boots"),
    [
        ("exit 33", True),
        ("exit 1", False),
        ("echo 'KVM internal error. Suberror: 1' >&2; exec sleep 600", False),
    ],
)
def test_kvm_is_used_only_if_it_runs_a_boot_sector(
    script: str, boots: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    qemu = tmp_path / libvirt.EMULATOR
    qemu.write_text(f"#!/bin/sh\n{script}\n")
    qemu.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(os, "access", lambda path, mode: True)
    assert libvirt.kvm_boots.__wrapped__() is boots


def test_box_of_a_release_is_built_once_for_all_its_hosts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    built: list[str] = []
    monkeypatch.setattr(boxes, "ensure", lambda slurm, say: built.append(boxes.name(slurm)))
    monkeypatch.setattr(libvirt, "kvm_boots", lambda: True)
    plan = make_plan("small", scenario.load(written(tmp_path, SMALL)), VagrantProvider.capabilities)
    VagrantProvider(tmp_path).prepare(plan, print)
    assert built == [boxes.name(releases.get(plan.scenario.release))]


def test_machine_knows_all_hosts_and_the_route_to_other_sites(tmp_path: Path) -> None:
    plan = make_plan(
        "small", scenario.load(written(tmp_path, TWO_SITES)), VagrantProvider.capabilities
    )
    sites = {"here": next(subnets.for_site(plan, "here")), "there": IPv4Network("10.20.0.0/24")}
    addresses = subnets.addresses(plan, sites)
    assert addresses["far"] == "10.20.0.10"
    files = {
        entry.path: str(entry.content)
        for entry in machines._identity(plan, plan.hosts[0], sites, addresses)
    }
    assert "10.20.0.10 far" in files["/etc/hosts"]
    routes = files["/etc/systemd/network/identity.network.d/sites.conf"]
    assert f"Destination=10.20.0.0/24\\nGateway={sites['here'][2]}" in routes


def test_machines_that_come_and_go_write_into_a_directory_of_their_controller(
    tmp_path: Path,
) -> None:
    text = SMALL.replace("memory: 700", "provision: create")
    plan = make_plan("small", scenario.load(written(tmp_path, text)), VagrantProvider.capabilities)
    sites = {"site": IPv4Network("10.20.0.0/24")}
    boss, worker = (
        {entry.path: str(entry.content) for entry in machines._identity(plan, host, sites, {})}
        for host in plan.hosts
    )
    assert boss["/etc/exports"].startswith(f"b'{SHARED_DIRECTORY} 10.20.0.0/24(rw,")
    assert worker["/etc/fstab"].startswith(f"b'boss:{SHARED_DIRECTORY} {SHARED_DIRECTORY} nfs4 ")
    assert (
        f"RequiresMountsFor={SHARED_DIRECTORY}"
        in worker["/etc/systemd/system/slurmd.service.d/shared.conf"]
    )


def test_machines_mount_shared_directories_from_their_controller(tmp_path: Path) -> None:
    text = SMALL + "shared_directories: {/home: 100M, /scratch: null}"
    plan = make_plan("small", scenario.load(written(tmp_path, text)), VagrantProvider.capabilities)
    sites = {"site": IPv4Network("10.20.0.0/24")}
    boss, worker = (
        {
            entry.path: (entry.mode, (entry.content or b"").decode())
            for entry in machines._identity(plan, host, sites, {})
        }
        for host in plan.hosts
    )
    assert (boss["/home"], boss["/scratch"]) == ((0o755, ""), (0o1777, ""))
    options = "rw,sync,no_subtree_check,no_root_squash"
    assert boss["/etc/exports"][1].splitlines() == [
        f"/home 10.20.0.0/24({options},fsid=1)",
        f"/scratch 10.20.0.0/24({options},fsid=2)",
    ]
    assert boss["/etc/fstab"][1] == "tmpfs /home tmpfs size=100M,mode=755 0 0\n"
    assert "/etc/systemd/system/ssh.service.d/shared.conf" not in boss
    options = "retry=5,x-systemd.mount-timeout=300"
    assert worker["/etc/fstab"][1].splitlines() == [
        f"boss:/home /home nfs4 {options} 0 0",
        f"boss:/scratch /scratch nfs4 {options} 0 0",
    ]
    assert "/etc/exports" not in worker
    assert worker["/etc/systemd/system/slurmd.service.d/shared.conf"][1] == (
        "[Unit]\nRequiresMountsFor=/home /scratch\n"
    )
    assert "After=remote-fs.target" in worker["/etc/systemd/system/ssh.service.d/shared.conf"][1]


def test_machines_of_several_sites_share_no_directories(tmp_path: Path) -> None:
    text = TWO_SITES + "shared_directories: [/home]"
    provider = VagrantProvider(tmp_path)
    with pytest.raises(
        ScenarioError, match="shared_directories: virtual machines share directories within one"
    ):
        scenario.load(written(tmp_path, text), (), None, provider.lacks)


def test_nodes_on_machines_may_take_as_long_to_resume_as_machines_take_to_boot(
    tmp_path: Path,
) -> None:
    text = SMALL.replace("memory: 700", "provision: create")
    conf = slurm_conf(scenario.load(written(tmp_path, text)), "small", VagrantProvider.capabilities)
    assert int(conf["ResumeTimeout"]) == VagrantProvider.capabilities.boot_seconds


def test_subnet_that_is_too_small_for_a_site_is_refused(tmp_path: Path) -> None:
    text = TWO_SITES.replace("10.20.0.0/24", "10.20.0.0/29")
    plan = make_plan("small", scenario.load(written(tmp_path, text)), VagrantProvider.capabilities)
    with pytest.raises(
        EngineError, match=r"10\.20\.0\.0/29 of site there is too small: 13 addresses are needed"
    ):
        next(subnets.for_site(plan, "there"))


def test_gateway_forwards_only_the_ports_of_hosts(tmp_path: Path) -> None:
    plan = make_plan(
        "small", scenario.load(written(tmp_path, TWO_SITES)), VagrantProvider.capabilities
    )
    rules = packet_filters.between_sites(plan, {"near": "198.18.0.10", "far": "10.20.0.10"})
    assert "policy drop;" in rules
    assert "ip daddr 10.20.0.10 tcp dport { 22, 6817, 6818, 60001-63000 } accept" in rules


def test_machine_created_later_matches_its_controller_in_everything_shared(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = SimpleNamespace(id=RUN, path=tmp_path)
    plan = make_plan("small", scenario.load(written(tmp_path, SMALL)), VagrantProvider.capabilities)
    monkeypatch.setattr(machines, "virsh", lambda *_: DEFINITION.format(run=RUN, path=tmp_path))
    worker = next(host for host in plan.hosts if host.name == "worker")
    like = machines._like(run, plan, "boss", worker, "52:54:c6:12:00:0b")
    assert ElementTree.canonicalize(like) == ElementTree.canonicalize(
        f"""<domain>
  <name>{RUN}_worker</name>
  <memory unit='MiB'>892</memory>
  <currentMemory unit='MiB'>892</currentMemory>
  <vcpu placement='static'>3</vcpu>
  <devices>
    <disk type='file'><source file='/pool/{RUN}_worker.img'/></disk>
    <interface type='network'><mac address='52:54:c6:12:00:0b'/><source
      network='{RUN}__site'/></interface>
    <serial type='file'><source path='{tmp_path}/vagrant/worker.console'/></serial>
  </devices>
</domain>"""
    )


def test_slurmd_of_a_machine_with_user_data_waits_for_cloud_init(tmp_path: Path) -> None:
    read = scenario.load(written(tmp_path, WITH_USER_DATA))
    boss, worker = make_plan("small", read, VagrantProvider.capabilities).hosts
    assert [*machines._cloud_init(boss)] == []
    entries = {entry.path: entry for entry in machines._cloud_init(worker)}
    generator = entries["/etc/systemd/system-generators/cloud-init-generator"]
    assert generator.link == "/lib/systemd/system-generators/cloud-init-generator"
    drop_in = entries["/etc/systemd/system/slurmd.service.d/cloud-init.conf"]
    assert drop_in.content == b"[Unit]\nAfter=cloud-final.service\n"


def test_machine_with_user_data_has_a_disk_with_it_and_its_own_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    read = scenario.load(written(tmp_path, WITH_USER_DATA))
    _, worker = make_plan("small", read, VagrantProvider.capabilities).hosts
    calls: list[tuple[str, ...]] = []
    files: dict[str, str] = {}

    def write(command: list[str]) -> None:
        options = dict(word.split("=", 1) for word in command if "=" in word)
        assert options["--options"] == "volume-id=CIDATA"
        Path(options["--file"]).touch()
        place = Path(options["--directory"])
        files.update({name: (place / name).read_text() for name in command[-2:]})

    def virsh(*words: str) -> str:
        calls.append(words)
        return f"/pool/{RUN}_worker.iso\n"

    monkeypatch.setattr(boxes, "run", write)
    monkeypatch.setattr(machines, "virsh", virsh)
    machines._attach_user_data(SimpleNamespace(id=RUN), worker)
    assert json.loads(files["meta-data"]) == {
        "instance-id": f"{RUN}_worker",
        "local-hostname": "worker",
    }
    assert files["user-data"] == "#cloud-config\n{}"
    assert calls[-1][:4] == ("attach-disk", f"{RUN}_worker", f"/pool/{RUN}_worker.iso", "vdc")


def test_networks_are_parsed_however_libvirt_prints_them(monkeypatch: pytest.MonkeyPatch) -> None:
    definition = """<network connections="2">
      <ip
          netmask="255.255.255.0" address="10.20.0.1">
        <dhcp>
          <host ip="10.20.0.2" mac="52:54:c6:12:00:02"/>
          <host ip="10.20.0.10" name="boss" mac="52:54:c6:12:00:0a"></host>
        </dhcp>
      </ip>
    </network>"""
    monkeypatch.setattr(machines, "names", lambda *_: [machines._network(RUN, "here")])
    monkeypatch.setattr(machines, "virsh", lambda *_: definition)
    assert machines._sites(RUN) == {"here": IPv4Network("10.20.0.0/24")}
    assert machines._addresses(RUN) == {"boss": "10.20.0.10"}


def test_packet_filter_lets_this_computer_through_before_it_drops_anything() -> None:
    rules = packet_filters.rules(
        [Drop(source="boss")], {"boss": "198.18.0.10"}, "ip saddr 198.18.0.1 accept"
    ).splitlines()
    assert rules.index("ip saddr 198.18.0.1 accept") < rules.index("ip saddr 198.18.0.10 drop")


def test_missing_libvirt_is_reported_with_a_pointer_to_the_cause(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError) as caught:
        VagrantProvider(tmp_path).runs()
    assert caught.value.hint == "`harness doctor --provider vagrant`"


def test_doctor_says_what_virtual_machines_lack_and_how_to_fix_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    libvirt.qemu_version.cache_clear()
    try:
        found = {finding.subject: finding for finding in doctor.examine("vagrant")}
    finally:
        libvirt.qemu_version.cache_clear()
    for subject, fix in (
        ("vagrant", "vagrant vagrant-libvirt"),
        ("QEMU", "qemu-system-x86 qemu-utils"),
        ("libvirt", "libvirt-daemon-system"),
        ("storage pool", "pool-start default"),
    ):
        assert (found[subject].ok, found[subject].fatal) == (False, True)
        assert fix in str(found[subject].fix)


def test_boxes_are_listed_beside_images_and_old_ones_are_marked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    current = boxes.name(releases.get("24.11"))
    for name in (current, "slurm-harness/22.05-000000000000"):
        disk = (
            tmp_path / "boxes" / name.replace("/", "-VAGRANTSLASH-") / "0" / "libvirt" / "box.img"
        )
        disk.parent.mkdir(parents=True)
        disk.write_bytes(bytes(2_000_000))
    monkeypatch.setattr(boxes, "_HOME", tmp_path)
    monkeypatch.setattr(engine, "connect", lambda: None)
    of = {
        dockerfiles.REPOSITORY: images.tag(releases.get("24.11")),
        images.EXTENDED: "slurm-harness-extended:24.11-1",
    }
    monkeypatch.setattr(
        images,
        "built",
        lambda _, repository=dockerfiles.REPOSITORY: [("24.11", of[repository], 700_000_000)],
    )
    monkeypatch.setattr(images, "current_extensions", lambda _: {"slurm-harness-extended:24.11-1"})
    monkeypatch.setattr(images, "current_origins", lambda _: set())
    listed = CliRunner().invoke(cli.app, ["images", "list"]).stdout.splitlines()
    assert listed == [
        f"image     {images.tag(releases.get('24.11'))}  700 MB",
        "extended  slurm-harness-extended:24.11-1  700 MB",
        "box       slurm-harness/22.05-000000000000  2 MB  (old)",
        f"box       {current}  2 MB",
    ]
