"""Virtual machines: what they cannot be, how large they are, and whose a name is. None is made here."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import doctor, releases, scenario
from harness.errors import EngineError, ScenarioError
from harness.options import cgroup_conf, slurm_conf
from harness.plan import make_plan
from harness.providers import Drop, boxes, images, libvirt, packets, vagrant
from harness.providers.vagrant import VagrantProvider
from harness.resources import IMAGES

RUN = "small-20261122T041700-d94c01"
TOO_MUCH = """
sites: {here: {}, there: {}}
clusters:
  old:
    site: here
    release: "20.11"
    controller: boss
    nodes: [{name: worker, cpus: 2, provision: create}]
    options: {ResumeTimeout: 60}
users: {alice: {uid: 2001}}
disks: {boss: {/var/lib/slurm: 10M}}
"""
SMALL = """
clusters:
  small: {controller: boss, nodes: [{name: worker, cpus: 3, memory: 700}]}
accounting: {host: boss, accounts: {physics: {}}}
users: {alice: {uid: 2001, accounts: [physics]}}
"""


def written(directory: Path, text: str) -> Path:
    path = directory / "small.yml"
    path.write_text(text)
    return path


def test_what_virtual_machines_cannot_be_is_told_with_its_place(tmp_path: Path) -> None:
    provider = VagrantProvider(tmp_path)
    with pytest.raises(ScenarioError) as caught:
        scenario.load(written(tmp_path, TOO_MUCH), (), provider.release_of_image, provider.lacks)
    told = str(caught.value)
    for part in (
        "small.yml:2:8: sites: virtual machines of a run have one network",
        "provision: virtual machines that come and go are not offered",
        "disks: virtual machines have one disk each",
        "Slurm 20.11 does not know cgroup v2; 22.05, 24.11, 26.05 do",
    ):
        assert part in told


def test_machine_has_what_its_node_offers_and_its_daemons_need(tmp_path: Path) -> None:
    plan = make_plan("small", scenario.load(written(tmp_path, SMALL)), VagrantProvider.offers)
    sizes = {host.name: (vagrant._cpus(plan, host), vagrant._memory(plan, host)) for host in plan.hosts}
    assert sizes == {"boss": (1, 256 + 64 + 64 + 192), "worker": (3, 700 + 192)}


def test_slurm_holds_jobs_to_what_is_theirs_and_may_reboot_machines_made_for_it(tmp_path: Path) -> None:
    read = scenario.load(written(tmp_path, SMALL))
    conf = slurm_conf(read, "small", VagrantProvider.offers)
    assert (conf["RebootProgram"], conf["ProctrackType"]) == ("/usr/sbin/reboot", "proctrack/cgroup")
    assert cgroup_conf(read, "small", VagrantProvider.offers)["ConstrainRAMSpace"] == "YES"
    assert make_plan("small", read, VagrantProvider.offers).clusters_that_confine("ConstrainCores") == ["small"]


@pytest.mark.parametrize(
    ("name", "whose"),
    [
        (f"{RUN}_boss", (RUN, "boss")),
        (f"{RUN}_boss.img", (RUN, "boss")),
        (f"{RUN}_boss.tar", (RUN, "boss")),
        (RUN, (RUN, "")),
        ("somebodys_machine.img", ("", "")),
    ],
)
def test_names_tell_which_run_something_belongs_to(name: str, whose: tuple[str, str]) -> None:
    assert vagrant._of_run(name) == whose


def test_box_changes_with_its_files_and_with_the_image_it_is_made_of(monkeypatch: pytest.MonkeyPatch) -> None:
    before = boxes.name(releases.get("24.11"))
    assert boxes.name(releases.get("24.11")) == before
    monkeypatch.setattr(images, "_HOST_PACKAGES", ("systemd",))
    other = boxes.name(releases.get("24.11"))
    assert other != before
    monkeypatch.setattr(boxes, "_DIRECTORY", IMAGES)
    assert boxes.name(releases.get("24.11")) != other


def test_packet_filter_lets_this_computer_through_before_it_drops_anything() -> None:
    rules = packets.rules([Drop(source="boss")], {"boss": "198.18.0.10"}, "ip saddr 198.18.0.1 accept").splitlines()
    assert rules.index("ip saddr 198.18.0.1 accept") < rules.index("ip saddr 198.18.0.10 drop")


def test_libvirt_that_is_not_there_is_told_with_who_knows_more(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError) as caught:
        VagrantProvider(tmp_path).runs()
    assert caught.value.hint == "`harness doctor --provider vagrant`"


def test_doctor_says_what_virtual_machines_lack_and_how_to_mend_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    libvirt.qemu_version.cache_clear()
    try:
        found = {finding.subject: finding for finding in doctor.examine("vagrant")}
    finally:
        libvirt.qemu_version.cache_clear()
    for subject, mend in (
        ("vagrant", "vagrant vagrant-libvirt"),
        ("QEMU", "qemu-system-x86 qemu-utils"),
        ("libvirt", "libvirt-daemon-system"),
        ("storage pool", "pool-start default"),
    ):
        assert (found[subject].ok, found[subject].fatal) == (False, True)
        assert mend in str(found[subject].mend)
