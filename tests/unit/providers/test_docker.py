from __future__ import annotations

import ctypes
import errno
import signal
from collections import namedtuple
from collections.abc import Sequence
from dataclasses import replace
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest
import requests
from docker.errors import APIError, ImageNotFound, NotFound

from harness import origins, releases, scenario
from harness.capabilities import CONTAINERS
from harness.errors import EngineError, ScenarioError
from harness.plan import make_plan
from harness.providers import dockerfiles, images, packet_filters
from harness.providers.docker import containers, engine
from harness.providers.docker.containers import DockerProvider
from harness.providers.subnets import routes
from harness.rundir import RunDir
from harness.shipped_files import IMAGES, SCENARIOS

Usage = namedtuple("Usage", "total used free")


class FakeClient:
    """An engine without any image."""

    def __init__(self) -> None:
        self.images = self

    def info(self) -> dict[str, str]:
        return {"DockerRootDir": "/"}

    def get(self, name: str) -> Any:
        raise ImageNotFound(name)


def test_disk_without_room_for_an_image_is_reported_before_anything_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dockerfiles.shutil, "disk_usage", lambda path: Usage(100, 99, 5e8))
    with pytest.raises(EngineError, match=r"0\.5 GB free in /") as caught:
        images.ensure(FakeClient(), releases.get("24.11"), print)  # type: ignore[arg-type]
    assert "docker system prune" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("explanation", "hint"),
    [
        ("write /x: no space left on device", "docker system df"),
        ("Pool overlaps with other one on this address space", "choose another `subnet:`"),
        ("Bind for 127.0.0.1:80 failed: port is already allocated", "another program"),
        ("dial unix /var/run/docker.sock: permission denied", "join the group docker"),
    ],
)
def test_engines_own_errors_come_with_a_hint(explanation: str, hint: str) -> None:
    with (
        pytest.raises(EngineError, match="cannot do it") as caught,
        engine.engine_errors("cannot do it"),
    ):
        raise APIError("x", response=requests.Response(), explanation=explanation)
    assert hint in str(caught.value.hint)


@pytest.mark.parametrize(
    ("machines", "cgroups"),
    [
        ([{"CgroupVersion": "2"}], True),
        ([{"CgroupVersion": "2"}, {"CgroupVersion": "2"}], True),
        ([{"CgroupVersion": "2"}, {"CgroupVersion": "1"}], False),
        ([{"CgroupVersion": "2", "CPUSet": False}], False),  # without root, and not delegated
        ([{"CgroupVersion": "1"}], False),
        ([{}], False),
    ],
)
def test_slurm_uses_cgroups_if_every_engine_gives_controllers(
    machines: list[dict[str, Any]], cgroups: bool
) -> None:
    provider = engines(machines)
    assert provider.capabilities == replace(CONTAINERS, cgroups=cgroups)


def test_engine_that_does_not_answer_gives_no_cgroups(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect() -> None:
        raise EngineError("no engine answers")

    monkeypatch.setattr(engine, "connect", connect)
    assert DockerProvider().capabilities == CONTAINERS


@pytest.mark.parametrize(
    ("version", "lines", "refused"),
    [
        ("2", "cgroup: {ConstrainDevices: true}", True),
        ("2", "cgroup: {constraindevices: 'Yes'}", True),
        ("2", "cgroup: {ConstrainDevices: false}", False),
        ("1", "cgroup: {ConstrainDevices: true}", False),
    ],
)
def test_devices_that_containers_cannot_confine_are_refused(
    version: str, lines: str, refused: bool, tmp_path: Path
) -> None:
    path = tmp_path / "s.yml"
    path.write_text(f"clusters:\n  a:\n    controller: b\n    nodes: [{{name: b}}]\n    {lines}\n")
    provider = engines([{"CgroupVersion": version}])
    found = [*provider.lacks(scenario.load(path))]
    assert [place for place, _ in found] == [("clusters", "a", "cgroup")] * refused


def engines(machines: Sequence[dict[str, Any]]) -> DockerProvider:
    """Return a provider with an engine on each machine, about which the engine says this."""
    provider = DockerProvider(",".join(f"c{number}" for number in range(len(machines))))
    for number, facts in enumerate(machines):
        client = FakeClient()
        everything = {"MemoryLimit": True, "CPUSet": True, **facts}
        client.info = lambda everything=everything: everything  # type: ignore[method-assign]
        provider._connected[f"c{number}"] = client  # type: ignore[assignment]
    return provider


def test_image_name_changes_with_its_contents(monkeypatch: pytest.MonkeyPatch) -> None:
    before = images.tag(releases.get("24.11"))
    assert images.tag(releases.get("24.11")) == before
    other = replace(origins.base("debian:trixie"), host_packages=("systemd",))
    monkeypatch.setattr(images, "base_of", lambda slurm: other)
    assert images.tag(releases.get("24.11")) != before


def test_subnets_that_this_machine_routes_elsewhere_are_detected(tmp_path: Path) -> None:
    table = tmp_path / "route"
    table.write_text(
        "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
        "eth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
        "br0\t000012C6\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
    )
    assert routes(table) == [IPv4Network("198.18.0.0/24")]
    assert routes(tmp_path / "none") == []


def test_user_data_is_refused_at_its_place(tmp_path: Path) -> None:
    path = tmp_path / "small.yml"
    group = "{name: c1, provision: create, user_data: {text: '#!/bin/sh'}}"
    path.write_text(f"clusters: {{small: {{controller: ctl, nodes: [{group}]}}}}\n")
    with pytest.raises(ScenarioError) as caught:
        scenario.load(path, (), None, DockerProvider().lacks)
    message = "clusters.small.nodes.0.user_data: cloud-init does not initialize containers"
    assert message in str(caught.value)


class Busy:
    """A container that cannot be frozen at first, and its engine's client."""

    def __init__(self, *errors: str) -> None:
        self.errors = [*errors]
        self.containers = self

    def get(self, name: str) -> Busy:
        return self

    def pause(self) -> None:
        if self.errors:
            raise APIError("500 Server Error", explanation=self.errors.pop(0))


def test_freezing_a_host_is_retried() -> None:
    provider, busy = (
        DockerProvider(),
        Busy("runc did not terminate successfully: unable to freeze", "unable to freeze"),
    )
    provider._connected[""] = busy  # type: ignore[assignment]
    provider.pause("run", "host")
    assert busy.errors == []


def test_host_that_cannot_be_frozen_for_another_reason_is_reported_at_once() -> None:
    provider, busy = DockerProvider(), Busy("Container is not running", "")
    provider._connected[""] = busy  # type: ignore[assignment]
    with pytest.raises(EngineError, match="cannot pause host: Container is not running"):
        provider.pause("run", "host")
    assert busy.errors == [""]


class Held:
    """A volume that a container uses until its second removal."""

    name = "run_shared-1"

    def __init__(self) -> None:
        self.errors = [
            APIError("409 Client Error", explanation="remove run_shared-1: volume is in use - [c]"),
            None,
            NotFound("no such volume"),
        ]

    def remove(self) -> None:
        if error := self.errors.pop(0):
            raise error


def test_volume_is_removed_as_soon_as_no_container_uses_it() -> None:
    volume = Held()
    containers._remove_unused(volume)  # type: ignore[arg-type]
    containers._remove_unused(volume)  # type: ignore[arg-type]
    assert volume.errors == []


class Making:
    """An engine that creates whatever it is asked to, and keeps the options of containers."""

    def __init__(self) -> None:
        self.made: dict[str, dict[str, Any]] = {}
        self.put: dict[str, list[str]] = {}
        self.containers = self.networks = self.volumes = self
        self.api = type("Api", (), {"api_version": "1.41"})

    def version(self) -> dict[str, str]:
        return {"Version": "20.10.24"}

    def list(self, **wanted: Any) -> list[Any]:
        made = [] if wanted else [given["ipam"] for given in self.made.values() if "ipam" in given]
        return [type("Network", (), {"attrs": {"IPAM": ipam}}) for ipam in made]

    def create(self, what: str, *_: Any, name: str = "", **given: Any) -> Any:
        self.made[name or what] = given

        class Made:
            def __init__(self) -> None:
                self.name, self.status = name, "running"

            def put_archive(made, path: str, tar: bytes) -> None:  # noqa: N805  the engine is self
                self.put.setdefault(name, []).append(tar.decode(errors="replace"))

            def connect(self, *_: Any, **__: Any) -> None: ...

            def start(self) -> None: ...

            def reload(self) -> None: ...

            def logs(self) -> bytes:
                return b"ready"

        return Made()


def made(name: str, tmp_path: Path, *choices: str) -> tuple[Making, dict[str, dict[str, Any]]]:
    """Return an engine with a scenario's hosts, and the options with which each was created."""
    path, client, provider = SCENARIOS / f"{name}.yml", Making(), DockerProvider()
    provider._connected[""] = client  # type: ignore[assignment]
    plan = make_plan(name, scenario.load(path, choices), CONTAINERS)
    run = RunDir.create(tmp_path, path, plan, provider.name)
    run.make_secrets({})
    provider.make(run, plan, plan.hosts, {})
    hosts = {
        name.removeprefix(f"{run.id}-"): given
        for name, given in client.made.items()
        if "hostname" in given
    }
    return client, {host.name: hosts[host.name] for host in plan.hosts}


def test_hosts_are_created_with_a_packet_filter_for_all_their_sites(tmp_path: Path) -> None:
    client, hosts = made("federation", tmp_path)
    pools = [
        given["ipam"]["Config"][0]["Subnet"] for given in client.made.values() if "ipam" in given
    ]
    assert len({*pools}) == 2
    rules = packet_filters.only_hosts(map(IPv4Network, pools))
    assert {given["environment"]["HARNESS_FILTER"] for given in hosts.values()} == {rules}


def test_ssh_of_hosts_is_published_on_loopback_only(tmp_path: Path) -> None:
    for given in made("federation", tmp_path)[1].values():
        assert given["ports"] == {"22/tcp": ("127.0.0.1", 0)}


def test_only_hosts_that_run_users_containers_keep_namespaces(tmp_path: Path) -> None:
    def kept(name: str) -> set[str]:
        hosts = made(name, tmp_path, "26.05")[1]
        return {host for host, given in hosts.items() if given["environment"]["HARNESS_NAMESPACES"]}

    assert (kept("federation"), kept("oci"), kept("apptainer")) == (set(), {"box"}, {"box"})


def test_hosts_boot_with_the_program_that_drops_capabilities(tmp_path: Path) -> None:
    client, hosts = made("single-node", tmp_path)
    assert {given["entrypoint"] for given in hosts.values()} == {"/usr/local/sbin/boot"}
    (put,) = [text for texts in client.put.values() for text in texts]
    assert "usr/local/sbin/boot" in put
    assert (IMAGES / "restrict").read_text() in put
    assert (
        (IMAGES / "boot").read_text().rstrip().endswith("exec /usr/local/sbin/restrict /sbin/init")
    )


def test_packet_filter_lets_only_hosts_and_ssh_of_the_machine_in() -> None:
    rules = packet_filters.only_hosts(
        map(IPv4Network, ("198.18.1.0/24", "198.18.2.0/24"))
    ).splitlines()
    machine, subnets = "{ 198.18.1.1, 198.18.2.1 }", "{ 198.18.1.0/24, 198.18.2.0/24 }"
    chains = [line.strip() for line in rules]
    assert chains[1:8] == [
        "chain input {",
        "type filter hook input priority filter; policy drop;",
        'iifname "lo" accept',
        f"ip saddr {machine} tcp dport 22 accept",
        f"ip saddr {machine} drop",
        f"ip saddr {subnets} accept",
        "}",
    ]
    assert chains[8:17] == [
        "chain output {",
        "type filter hook output priority filter; policy drop;",
        "ip daddr 127.0.0.11 reject",
        'oifname "lo" accept',
        f"ip daddr {machine} tcp sport 22 tcp flags & (syn | ack) != syn accept",
        f"ip daddr {machine} reject",
        f"ip daddr {subnets} accept",
        "reject",
        "}",
    ]


# What Docker's default profile allows with CAP_SYS_ADMIN only: profiles/seccomp/default_linux.go in
# its source.
WITH_SYS_ADMIN = """
bpf clone clone3 fanotify_init fsconfig fsmount fsopen fspick lookup_dcookie mount mount_setattr
move_mount open_tree perf_event_open quotactl quotactl_fd setdomainname sethostname setns syslog
umount umount2 unshare
"""
OF_NAMESPACES = """
clone clone3 fsconfig fsmount fsopen fspick mount mount_setattr move_mount open_tree sethostname
setns umount umount2 unshare
"""


class Library:
    """A libseccomp that records which system calls to deny, and with which errors."""

    def __init__(self) -> None:
        self.denied: dict[str, set[int]] = {}
        self.flags: dict[str, int] = {}
        self.loaded, self.names = 0, list[str]()
        self.seccomp_init = lambda action: 1
        self.seccomp_attr_set = lambda *_: 0

    def seccomp_syscall_resolve_name(self, name: bytes) -> int:
        self.names.append(name.decode())
        return -1 if name in {b"mount_setattr", b"quotactl_fd"} else len(self.names)

    def seccomp_rule_add_array(
        self, context: Any, action: Any, number: int, count: int, comparisons: Any
    ) -> int:
        name = {442: "mount_setattr", 443: "quotactl_fd"}.get(number) or self.names[number - 1]
        self.denied.setdefault(name, set()).add(action.value - 0x50000)
        for comparison in comparisons:
            assert (comparison.argument, comparison.operator, comparison.mask) == (
                0,
                7,
                comparison.value,
            )
            self.flags[name] = self.flags.get(name, 0) | comparison.mask
        return 0

    def seccomp_load(self, context: Any) -> int:
        self.loaded += 1
        return 0


@pytest.mark.parametrize("namespaces", [False, True])
def test_hosts_may_make_the_system_calls_that_dockers_default_profile_allows(
    namespaces: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Library()
    library.seccomp_init = type("Init", (), {"__call__": lambda self, action: 1})()
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: library)
    loader = SourceFileLoader("restrict", str(IMAGES / "restrict"))
    module = module_from_spec(spec_from_loader("restrict", loader))  # type: ignore[arg-type]
    loader.exec_module(module)
    module.restrict(namespaces)
    kept = {*OF_NAMESPACES.split()} if namespaces else set()
    wanted = {
        name: {errno.ENOSYS if name == "clone3" else errno.EPERM} for name in WITH_SYS_ADMIN.split()
    }
    assert library.denied == {name: errors for name, errors in wanted.items() if name not in kept}
    # CLONE_NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET and NEWCGROUP; NEWTIME. slurmrestd
    # unshares other things.
    assert library.flags == ({} if namespaces else {"clone": 0x7E020000, "unshare": 0x7E020080})
    assert library.loaded == 1


def test_signal_interrupts_once_all_hosts_are_created(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def make(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)
        made.append("all")

    provider = DockerProvider()
    monkeypatch.setattr(provider, "_make", make)
    with pytest.raises(KeyboardInterrupt):
        provider.make(None, None, [], {})  # type: ignore[arg-type]
    assert made == ["all"]
