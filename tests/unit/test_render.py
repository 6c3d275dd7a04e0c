from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import Mock

import jwt
import pytest
from ruamel.yaml import YAML

import golden
from harness import (
    capabilities,
    install_script,
    render,
    run_secrets,
    rundir,
    scenario,
    slurm_options,
)
from harness.capabilities import OWN_MACHINES, Capabilities
from harness.plan import Plan, Volume, make_plan

ROOT = Path(__file__).parents[2]
CONTAINERS = Capabilities(cgroups=False, own_hardware=False)


def plan_of(
    name: str,
    changes: dict[str, Any] | None = None,
    capabilities: Capabilities = CONTAINERS,
    **common: Any,
) -> Plan:
    """Return the plan of a shipped scenario.

    `changes` override its first cluster, and `common` its own keys.
    """
    read = scenario.load(ROOT / "scenarios" / f"{name}.yml")
    if changes or common:
        data = read.model_dump(mode="json") | common
        next(iter(data["clusters"].values())).update(changes or {})
        read = scenario.Scenario.model_validate(data)
    return make_plan(name, read, capabilities)


def text_of(plan: Plan, host: str, path: str) -> str:
    return next(file.text for file in render.render(plan)[host] if file.path == path)


@pytest.mark.parametrize("name", golden.SCENARIOS)
def test_tree_matches_the_golden_tree(name: str) -> None:
    stored, now = (golden.DIRECTORY / f"{name}.txt").read_text(), golden.rendered(name)
    different = golden.differences(golden.load(stored), now)
    assert not different, (
        f"{name} is rendered differently; `make golden` accepts this:\n{different}"
    )
    assert stored == golden.dump(now)


def test_clusters_with_accounts_of_their_own_get_these_and_no_others() -> None:
    own = {
        "accounts": {"optics": {"options": {"Fairshare": 7}}},
        "associations": {"alice": {"accounts": ["optics"], "qos": ["urgent"]}},
    }
    plan = plan_of("federation", own)
    text = text_of(plan, "onprem-ctl", "/usr/local/sbin/slurm-accounting-objects")
    common, _, of_on_prem = text.partition('clusters="on-prem"\n')
    assert 'clusters="aws"\n! lacking physics ||' in common
    assert "set_options account physics cluster=aws set Fairshare=60" in common
    assert "set_options account optics cluster=on-prem set Fairshare=7" in of_on_prem
    assert "set_options user alice cluster=on-prem set qos=normal,urgent" in of_on_prem
    assert not [word for word in ("physics", "bob") if word in of_on_prem]


def test_every_golden_tree_is_of_a_scenario() -> None:
    assert {path.stem for path in golden.DIRECTORY.iterdir()} == {*golden.SCENARIOS}


def test_difference_from_a_golden_tree_names_hosts_and_path_once_and_shows_it() -> None:
    before = golden.rendered("federation")
    now = {
        place: text.replace("d /home/bob 0700", "d /home/bob 0755")
        for place, text in before.items()
    }
    del now["aws1", "/etc/slurm/cgroup.conf"]
    difference = golden.differences(before, now)
    assert [
        line for line in difference.splitlines() if not line.startswith((" ", "@", "---", "+++"))
    ] == [
        "accounting,aws[1-4],aws-ctl,onprem[1-2],onprem-ctl:/etc/tmpfiles.d/cluster-users.conf",
        "-d /home/bob 0700 bob bob",
        "+d /home/bob 0755 bob bob",
        "",
        "aws1:/etc/slurm/cgroup.conf",
        "-0644 root:root  restart slurmd",
        "-# cgroup.conf",
        "-CgroupPlugin=disabled",
    ]


def test_a_hundred_thousand_nodes_are_rendered_in_seconds_as_few_lines(tmp_path: Path) -> None:
    """In two clusters, because slurmctld accepts no more than 65,537 nodes."""
    size, parts = 500, 100
    clusters = "".join(
        f"  {name}:\n    controller: {name}-ctl\n    hosts: {name}[1-5]\n"
        f"    nodes: [{{name: '{name}-n[1-{size * parts}]', cpus: 2}}]\n    partitions:\n"
        + "".join(
            f"      p{n}: {{nodes: '{name}-n[{n * size + 1}-{n * size + size}]'}}\n"
            for n in range(parts)
        )
        for name in ("east", "west")
    )
    path = tmp_path / "huge.yml"
    path.write_text(f"clusters:\n{clusters}")
    began = time.process_time()
    plan = make_plan("huge", scenario.load(path), CONTAINERS)
    tree = render.render(plan)
    rundir.write_rendered(tmp_path / "tree", tree, with_secrets=False)
    # It takes a second; an algorithm that is quadratic in the nodes would take minutes.
    assert time.process_time() - began < 30
    text = {(host, file.path): file.text for host, files in tree.items() for file in files}
    for name in ("east", "west"):
        conf = text[f"{name}-ctl", "/etc/slurm/slurm.conf"]
        lines = conf.splitlines()
        assert [line for line in lines if line.startswith("NodeName=")] == [
            f"NodeName={name}-n[{n}0001-{n + 1}0000] NodeHostname={name}{n + 1}"
            f" NodeAddr={name}{n + 1}"
            " Port=[20001-30000] CPUs=2 RealMemory=500 State=UNKNOWN".replace("[00001-", "[1-")
            for n in range(5)
        ]
        assert [line for line in lines if line.startswith("PartitionName=")] == [
            f"PartitionName=p{n} Nodes={name}-n[{n * size + 1}-{n * size + size}] State=UP"
            for n in range(parts)
        ]
        hosts = [f"{name}-ctl", *(f"{name}{n}" for n in range(1, 6))]
        assert {text[host, "/etc/slurm/slurm.conf"] for host in hosts} == {conf}
        units = [
            text[host, "/etc/systemd/system/slurmd.service"].splitlines() for host in hosts[1:]
        ]
        wanted = [line for unit in units for line in unit if line.startswith("Wants=")]
        assert wanted == [f"Wants=slurmd@{name}-n{n}.service" for n in range(1, size * parts + 1)]


def lines_run(function: Callable[[], object]) -> int:
    """Return how many lines of Python a call runs: unlike its time, always the same."""
    count = 0

    def trace(_frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return count


def test_four_times_the_nodes_take_four_times_the_work_and_no_more_files(tmp_path: Path) -> None:
    """Each of the groups has two nodes with GPUs."""
    work, files, inodes = [], [], []
    for groups in (100, 400):
        nodes = ", ".join(f"{{name: 'g{group}n[1-2]', gres: ['gpu:2']}}" for group in range(groups))
        path = tmp_path / f"s{groups}.yml"
        path.write_text(
            f"clusters: {{c: {{controller: ctl, nodes: [{nodes}]}}}}\naccounting: {{}}\n"
        )
        read, output = scenario.load(path), tmp_path / f"{groups}"

        def write(read: scenario.Scenario = read, output: Path = output) -> None:
            tree = render.render(make_plan("s", read, CONTAINERS))
            rundir.write_rendered(output, tree, with_secrets=False)
            files.append({id(file) for files in tree.values() for file in files})

        work.append(lines_run(write))
        inodes.append({file.stat().st_ino for file in output.rglob("*") if file.is_file()})
    assert work[1] < 5 * work[0], work
    assert len(files[0]) == len(files[1])
    assert len(inodes[0]) == len(inodes[1])


def test_files_are_written_again_where_there_are_no_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = render.render(plan_of("federation"))
    rundir.write_rendered(tmp_path / "linked", tree, with_secrets=False)
    monkeypatch.setattr(os, "link", Mock(side_effect=OSError))
    rundir.write_rendered(tmp_path / "copied", tree, with_secrets=False)
    linked, copied = (
        {
            file.relative_to(tmp_path / name): (file.read_text(), file.stat().st_mode)
            for file in (tmp_path / name).rglob("*")
            if file.is_file()
        }
        for name in ("linked", "copied")
    )
    assert linked == copied
    assert {file.stat().st_nlink for file in (tmp_path / "copied").rglob("*.conf")} == {1}
    assert (tmp_path / "linked/onprem1/etc/slurm/slurm.conf").stat().st_nlink > 1


def test_rendering_twice_gives_the_same() -> None:
    assert render.render(plan_of("federation")) == render.render(plan_of("federation"))


def test_secrets_are_written_only_when_asked_for_and_then_privately(tmp_path: Path) -> None:
    tree = render.render(plan_of("federation"))
    rundir.write_rendered(tmp_path / "without", tree, with_secrets=False)
    rundir.write_rendered(tmp_path / "with", tree, with_secrets=True)
    assert not list((tmp_path / "without").rglob("munge.key"))
    assert (
        "%secret:database_password%"
        in (tmp_path / "without/accounting/etc/slurm/slurmdbd.conf").read_text()
    )
    keys = {path.read_text() for path in (tmp_path / "with").rglob("munge.key")}
    assert len(keys) == 1
    assert len(keys.pop()) >= 32
    for path in (tmp_path / "with").rglob("slurmdbd.conf"):
        assert "%secret" not in path.read_text()
        assert path.stat().st_mode & 0o777 == 0o600


def test_manifest_lists_owner_mode_hash_and_service(tmp_path: Path) -> None:
    rundir.write_rendered(tmp_path, render.render(plan_of("federation")), with_secrets=False)
    facts = json.loads((tmp_path / "manifest.json").read_text())["accounting"][
        "/etc/slurm/slurmdbd.conf"
    ]
    assert (facts["owner"], facts["mode"], facts["unit"], facts["action"]) == (
        "slurm",
        "0600",
        "slurmdbd",
        "restart",
    )
    assert len(facts["sha256"]) == 64


def test_any_option_can_be_set_and_null_removes_a_default() -> None:
    plan = plan_of(
        "single-node",
        {
            "options": {
                "returntoservice": 0,
                "MailProg": None,
                "NoSuchOption": ["a", "b"],
                "Prolog": True,
            },
            "nodes": [
                {"name": "single", "options": {"State": None, "Weight": 7, "Reason": "two words"}}
            ],
            "partitions": {"p": {"options": {"Default": True, "MaxTime": "1:00", "State": None}}},
            "cgroup": {"CgroupPlugin": None, "ConstrainCores": False},
        },
    )
    conf = text_of(plan, "single", "/etc/slurm/slurm.conf").splitlines()
    assert "returntoservice=0" in conf
    assert not [line for line in conf if line.startswith(("ReturnToService", "MailProg"))]
    assert "NoSuchOption=a,b" in conf
    assert "Prolog=YES" in conf
    assert 'NodeName=single CPUs=1 RealMemory=500 Weight=7 Reason="two words"' in conf
    assert "PartitionName=p Nodes=ALL Default=YES MaxTime=1:00" in conf
    assert text_of(plan, "single", "/etc/slurm/cgroup.conf").splitlines()[1:] == [
        "ConstrainCores=NO"
    ]


def test_additional_file_that_is_a_program_is_executable() -> None:
    plan = plan_of(
        "single-node", {"files": {"prolog": "#!/bin/sh\n", "gres.conf": "AutoDetect=off\n"}}
    )
    mode_of = {file.path: file.mode for file in render.render(plan)["single"]}
    assert (mode_of["/etc/slurm/prolog"], mode_of["/etc/slurm/gres.conf"]) == ("0755", "0644")


def test_slurmdbd_options_pass_through() -> None:
    read = scenario.load(ROOT / "scenarios/federation.yml")
    data = read.model_dump(mode="json")
    data["accounting"]["slurmdbd"] = {
        "DebugLevel": "debug",
        "PidFile": None,
        "storageuser": "me",
        "StoragePass": None,
    }
    plan = make_plan("federation", scenario.Scenario.model_validate(data), CONTAINERS)
    conf = text_of(plan, "accounting", "/etc/slurm/slurmdbd.conf")
    assert "DebugLevel=debug" in conf
    assert "PidFile" not in conf
    assert "'me'@'localhost' IDENTIFIED BY ''" in text_of(
        plan, "accounting", "/etc/mysql/slurm.sql"
    )


def test_accounts_are_created_after_their_parents() -> None:
    read = scenario.load(ROOT / "scenarios/federation.yml")
    data = read.model_dump(mode="json")
    data["accounting"]["accounts"] = {
        "optics": {"parent": "physics"},
        "physics": {},
        "chemistry": {},
    }
    plan = make_plan("federation", scenario.Scenario.model_validate(data), CONTAINERS)
    script = text_of(plan, "onprem-ctl", "/usr/local/sbin/slurm-accounting-objects")
    assert script.index("add account physics") < script.index("add account optics")


def test_admin_levels_and_the_accounts_of_slurm_user_are_set() -> None:
    script = text_of(
        plan_of("schedmd-suite"), "suite-ctl", "/usr/local/sbin/slurm-accounting-objects"
    )
    assert "set_options user carol set adminlevel=Administrator" in script
    assert "set_options user alice" not in script
    assert "add_users slurm suite '' suite" in script


def test_all_hosts_have_the_shared_directories() -> None:
    plan = plan_of("schedmd-suite")
    assert {host.volumes for host in plan.hosts} == {(Volume("shared-1", "/home"),)}


def test_hosts_with_cgroups_use_them() -> None:
    plan = plan_of("single-node", capabilities=Capabilities(cgroups=True, own_hardware=True))
    conf = text_of(plan, "single", "/etc/slurm/slurm.conf")
    assert "ProctrackType=proctrack/cgroup" in conf
    assert "config_overrides" not in conf


def test_ports_of_other_numbers_are_opened_between_sites() -> None:
    plan = plan_of(
        "federation", {"options": {"slurmctldport": 7000, "SrunPortRange": "50000-50010"}}
    )
    ports = {host.name: host.ports for host in plan.hosts}
    assert ports["onprem-ctl"] == ("22", "7000", "50000-50010")
    assert ports["accounting"] == ("22", "6819", "3306")


def test_every_mark_is_revealed() -> None:
    text = f"a={run_secrets.secret('x')} b={run_secrets.secret('y')}"
    assert run_secrets.secrets_in(text) == {"x", "y"}
    assert run_secrets.reveal(text, {"x": "1", "y": "2"}) == "a=1 b=2"


def test_host_of_slurmdbd_and_slurmctld_gets_the_directories_of_both(tmp_path: Path) -> None:
    path = tmp_path / "s.yml"
    path.write_text(
        "clusters: {one: {controller: ctl, nodes: [{name: n1}]}}\naccounting: {host: ctl}\n"
    )
    plan = make_plan("s", scenario.load(path), capabilities.OWN_MACHINES)
    text = text_of(plan, "ctl", "/etc/tmpfiles.d/slurm.conf")
    assert "d /var/lib/slurm/slurmctld 0700 slurm slurm" in text
    assert "d /run/slurmdbd 0755 slurm slurm" in text


REST = "clusters: {one: {controller: ctl, rest: {%s}, nodes: [{name: n1}, {name: ctl}]}}\n"


def test_slurmrestd_has_a_user_and_a_host_of_its_own_and_no_key(tmp_path: Path) -> None:
    path = tmp_path / "s.yml"
    path.write_text(REST % "host: web, port: 7000, max_token_life: 60" + "accounting: {}\n")
    plan = make_plan("s", scenario.load(path), capabilities.OWN_MACHINES)
    hosts = {host.name: host for host in plan.hosts}
    assert (hosts["web"].daemons, hosts["web"].ports[1]) == (("munge", "slurmrestd"), "7000")
    keys = {
        host: file
        for host, files in render.render(plan).items()
        for file in files
        if file.path == slurm_options.JWT_KEY
    }
    assert {host: (key.owner, key.mode, key.unit) for host, key in keys.items()} == {
        "accounting": ("slurm", "0400", "slurmdbd"),
        "ctl": ("slurm", "0400", "slurmctld"),
    }
    unit = text_of(plan, "web", "/etc/systemd/system/slurmrestd.service.d/options.conf")
    assert "User=slurmrestd\n" in unit
    assert unit.endswith("ExecStart=/usr/sbin/slurmrestd web:7000\n")
    assert "SLURMRESTD_OPENAPI_PLUGINS" not in unit
    conf = text_of(plan, "web", "/etc/slurm/slurm.conf")
    assert f"AuthAltParameters=jwt_key={slurm_options.JWT_KEY},max_token_lifespan=60" in conf
    assert f"jwt_key={slurm_options.JWT_KEY}\n" in text_of(
        plan, "accounting", "/etc/slurm/slurmdbd.conf"
    )


def oci_conf(capabilities: Capabilities, release: str) -> dict[str, str]:
    return slurm_options.oci_conf(
        scenario.load(ROOT / "scenarios" / "oci.yml", [release]), "containers", capabilities
    )


def test_oci_conf_has_the_options_of_its_release_and_runs_nothing_of_a_users_as_root() -> None:
    conf = oci_conf(capabilities.OWN_MACHINES, "24.11")
    assert conf.keys() - oci_conf(capabilities.OWN_MACHINES, "22.05").keys() == {
        *("MountSpoolDir", "EnvExclude", "RunTimeEnvExclude")
    }
    # slurmstepd calls this one as the user already.
    as_root = {
        name: value for name, value in conf.items() if "crun" in value and name != "RunTimeRun"
    }
    assert as_root.keys() == {"RunTimeKill", "RunTimeDelete"}
    assert all(
        command.startswith(("trap ", "/usr/sbin/runuser --user=%u -- crun "))
        for value in as_root.values()
        for command in value.split("; ")
    )


@pytest.mark.parametrize(
    ("release", "lines", "contained"),
    [
        ("26.05", "cgroup: {ConstrainCores: true, ConstrainRAMSpace: 'yes'}", True),
        ("22.05", "cgroup: {ConstrainCores: true, ConstrainRAMSpace: true}", True),
        ("21.08", "cgroup: {ConstrainCores: true}", False),  # it has no plugin for cgroup v2
        ("24.11", "cgroup: {ConstrainCores: true}\n    hosts: h1", False),  # slurmds share it
        ("24.11", "cgroup: {ConstrainCores: false}", False),
        ("24.11", "", False),
    ],
)
def test_containers_confine_jobs_if_they_should_and_can(
    release: str, lines: str, contained: bool, tmp_path: Path
) -> None:
    path = tmp_path / "s.yml"
    path.write_text(
        f"release: '{release}'\nclusters:\n  c:\n    controller: ctl\n"
        f"    nodes: [{{name: 'n[1-2]', cpus: 2, memory: 500}}]\n    {lines}\n"
    )
    plan = make_plan("s", scenario.load(path), Capabilities(cgroups=True, own_hardware=False))
    conf = plan.slurm_conf("c")
    assert conf["SlurmdParameters"] == "config_overrides"
    assert plan.clusters_that_confine("ConstrainDevices") == []
    if contained:
        assert (conf["ProctrackType"], conf["TaskPlugin"]) == ("proctrack/cgroup", "task/cgroup")
        assert plan.clusters_that_confine("ConstrainRAMSpace") == ["c"]
        assert plan.clusters_that_confine_memory() == []  # jobs may swap
        assert "CgroupPlugin" not in plan.cgroup_conf("c")
    else:
        assert conf["ProctrackType"] == "proctrack/linuxproc"
        assert plan.clusters_that_confine("ConstrainCores") == []


def test_containers_do_without_pivot_root_only_in_containers() -> None:
    assert " --no-pivot " in oci_conf(CONTAINERS, "24.11")["RunTimeRun"]
    assert " --no-pivot " not in oci_conf(capabilities.OWN_MACHINES, "24.11")["RunTimeRun"]


@pytest.mark.parametrize(
    ("release", "plugins"), [("22.05", None), ("24.11", "slurmctld"), ("26.05", "slurmctld,util")]
)
def test_slurmrestd_loads_what_works_without_slurmdbd(
    tmp_path: Path, release: str, plugins: str | None
) -> None:
    path = tmp_path / "s.yml"
    path.write_text(REST % "" + f'release: "{release}"\n')
    plan = make_plan("s", scenario.load(path), capabilities.OWN_MACHINES)
    assert plan.hosts[0].daemons == ("munge", "slurmctld", "slurmrestd", "slurmd")
    unit = text_of(plan, "ctl", "/etc/systemd/system/slurmrestd.service.d/options.conf")
    found = [
        line.partition("PLUGINS=")[2].replace("openapi/", "")
        for line in unit.splitlines()
        if "PLUGINS" in line
    ]
    assert found == ([plugins] if plugins else [])


SHARED = """
clusters:
  one:
    controller: ctl
    hosts: h[1-2]
    configless: true
    nodes:
      - {name: "c[1-3]", cpus: 4}
      - {name: g1, gres: ["gpu:a100:2", "gpu:1", "craynetwork:4"]}
"""


def test_nodes_that_share_a_host_each_have_a_slurmd(tmp_path: Path) -> None:
    path = tmp_path / "s.yml"
    path.write_text(SHARED.replace("configless: true", ""))
    plan = make_plan("s", scenario.load(path), capabilities.OWN_MACHINES)
    conf = text_of(plan, "h2", "/etc/slurm/slurm.conf")
    assert "NodeName=c[1-2] NodeHostname=h1 NodeAddr=h1 Port=[20001-20002] CPUs=4" in conf
    assert "NodeName=c3 NodeHostname=h2 NodeAddr=h2 Port=[20001] CPUs=4" in conf
    assert "NodeName=g1 NodeHostname=h2 NodeAddr=h2 Port=[20002]" in conf
    assert "SlurmdParameters=config_overrides" in conf
    assert "ProctrackType=proctrack/linuxproc" in conf
    assert "Wants=slurmd@c3.service\nWants=slurmd@g1.service" in text_of(
        plan, "h2", "/etc/systemd/system/slurmd.service"
    )
    assert plan.hosts_of("one") == {"c1": "h1", "c2": "h1", "c3": "h2", "g1": "h2"}
    assert next(host.ports for host in plan.hosts if host.name == "h2") == (
        "22",
        "20001-20002",
        "60001-63000",
    )


def test_elastic_nodes_have_hosts_of_their_own_beside_shared_ones(tmp_path: Path) -> None:
    path = tmp_path / "s.yml"
    elastic = '      - {name: "e[1-2]", cpus: 4, provision: create}\n'
    path.write_text(SHARED.replace("configless: true", "") + elastic)
    plan = make_plan("s", scenario.load(path), capabilities.CONTAINERS)
    conf = text_of(plan, "ctl", "/etc/slurm/slurm.conf")
    assert "NodeName=c[1-2] NodeHostname=h1" in conf
    assert "NodeName=e[1-2] Port=20001 CPUs=4" in conf
    assert "State=CLOUD" in conf
    assert plan.hosts_of("one")["e2"] == "e2"
    assert {host.name: host.is_permanent for host in plan.hosts}["e2"] is False
    wanted = text_of(plan, "e2", "/etc/systemd/system/slurmd.service")
    assert "Wants=slurmd@e2.service\n" in wanted


@pytest.mark.parametrize(("release", "hosts"), [("20.11", {"ctl", "c1"}), ("22.05", {"ctl"})])
def test_nodes_have_prolog_slurmctld_where_slurmd_opens_it(release: str, hosts: set[str]) -> None:
    """20.11 logs "Invalid PrologSlurmctld" otherwise."""
    tree = render.render(plan_of("elastic-l0", release=release))
    path = "/usr/local/sbin/slurm-wait-for-nodes"
    having = {name for name in ("ctl", "c1") if any(file.path == path for file in tree[name])}
    assert having == hosts


def test_simulated_gpus_have_devices(tmp_path: Path) -> None:
    path = tmp_path / "s.yml"
    path.write_text(SHARED.replace("configless: true", ""))
    plan = make_plan("s", scenario.load(path), capabilities.OWN_MACHINES)
    gres = text_of(plan, "h1", "/etc/slurm/gres.conf")
    assert (
        "NodeName=g1 Name=gpu Type=a100 File=/dev/slurm-gpu[0-1]\n"
        "NodeName=g1 Name=gpu File=/dev/slurm-gpu2\n" in gres
    )
    assert "c /dev/slurm-gpu2 0666 root root - 1:3" in text_of(
        plan, "h2", "/etc/tmpfiles.d/slurm.conf"
    )
    assert "GresTypes=gpu,craynetwork" in text_of(plan, "h1", "/etc/slurm/slurm.conf")
    path.write_text("clusters: {one: {controller: ctl, nodes: [{name: n1, gres: [gpu:2]}]}}")
    own = render.render(make_plan("s", scenario.load(path), capabilities.OWN_MACHINES))["n1"]
    assert "/etc/slurm/gres.conf" not in {file.path for file in own}


@pytest.mark.parametrize("hosts", ["hosts: h[1-2]", ""])
def test_configless_nodes_have_no_files_of_slurm(tmp_path: Path, hosts: str) -> None:
    path = tmp_path / "s.yml"
    path.write_text(SHARED.replace("hosts: h[1-2]", hosts))
    tree = render.render(make_plan("s", scenario.load(path), capabilities.OWN_MACHINES))
    files = {host: {file.path: file.text for file in of} for host, of in tree.items()}
    assert "SlurmctldParameters=enable_configless" in files["ctl"]["/etc/slurm/slurm.conf"]
    for host in files.keys() - {"ctl"}:
        assert not any(name.startswith("/etc/slurm/") for name in files[host])
        assert any("--conf-server=ctl:6817" in text for text in files[host].values())


@pytest.mark.parametrize(
    ("release", "daemons"), [("22.05", ["munge"]), ("24.11", ["munge", "sackd"])]
)
def test_login_host_gets_slurm_conf_through_sackd_or_as_a_file(
    release: str, daemons: list[str]
) -> None:
    plan = plan_of("login", {"release": release}, auth="munge")
    files = {file.path: file for file in render.render(plan)["login"]}
    assert [*plan.host("login").daemons] == daemons
    assert "slurmd" not in {file.unit for file in files.values()}
    has_sackd = "sackd" in daemons
    conf = text_of(plan, "ctl", "/etc/slurm/slurm.conf")
    assert ("SlurmctldParameters=enable_configless" in conf) == has_sackd
    assert ("/etc/slurm/slurm.conf" not in files) == has_sackd
    if has_sackd:
        unit = files["/etc/systemd/system/sackd.service.d/options.conf"].text
        assert 'Environment="SACKD_OPTIONS=--conf-server=ctl:6817"' in unit
    assert text_of(plan, "n1", "/etc/slurm/slurm.conf") == conf


def test_nodes_of_a_cluster_with_nss_slurm_ask_it_first() -> None:
    changes = {"nss_slurm": True, "options": {"SlurmdSpoolDir": "/spool/%h/%n"}}
    plan = plan_of("directory", changes | {"image": "own"})
    assert "LaunchParameters=enable_nss_slurm\n" in text_of(plan, "ctl", "/etc/slurm/slurm.conf")
    assert text_of(plan, "n2", "/etc/nss_slurm.conf").endswith(
        "NodeName=n2\nSlurmdSpoolDir=/spool/n2/%n\n"
    )
    assert "/etc/nss_slurm.conf" not in [file.path for file in render.render(plan)["ctl"]]


def test_auth_slurm_replaces_munge_everywhere() -> None:
    plan = plan_of("login")
    assert not [host.name for host in plan.hosts if "munge" in host.daemons]
    tree = render.render(plan)
    for host in ("accounting", "ctl", "login", "n1"):
        files = {file.path: file for file in tree[host]}
        key = files["/etc/slurm/slurm.key"]
        assert (key.text, key.owner, key.mode) == ("%secret:slurm_key%", "slurm", "0600")
        assert "/etc/munge/munge.key" not in files
        assert "munge" not in "".join(
            file.text for path, file in files.items() if path.endswith(".conf") and "/slurm" in path
        ).replace("After=munge.service", "")
    conf = text_of(plan, "ctl", "/etc/slurm/slurm.conf")
    assert "AuthType=auth/slurm\nCredType=cred/slurm\n" in conf
    assert "AuthType=auth/slurm\n" in text_of(plan, "accounting", "/etc/slurm/slurmdbd.conf")


def test_accounting_objects_are_created_where_commands_can_authenticate() -> None:
    def client(plan: Plan) -> str:
        host = plan.accounting_client()
        return host.name if host else ""

    assert client(plan_of("login", auth="munge")) == "ctl"
    plan = plan_of("login")
    assert client(plan) == "accounting"
    program = text_of(plan, "accounting", "/usr/local/sbin/slurm-accounting-objects")
    path = "/usr/local/lib/slurm-harness/slurm.conf"
    assert f"export SLURM_CONF={path}\n" in program
    assert text_of(plan, "accounting", path) == text_of(plan, "ctl", "/etc/slurm/slurm.conf")
    script = install_script.script(plan, render.render(plan))
    assert "systemctl restart slurmdbd; /usr/local/sbin/slurm-accounting-objects" in script


def test_sackd_can_ask_every_controller() -> None:
    plan = plan_of("login", {"backup_controllers": ["ctl2"]})
    unit = text_of(plan, "login", "/etc/systemd/system/sackd.service.d/options.conf")
    assert "--conf-server=ctl:6817,ctl2:6817" in unit


def test_users_cannot_log_in_to_controllers_and_databases_that_the_harness_made() -> None:
    def hosts_with(path: str, plan: Plan) -> list[str]:
        tree = render.render(plan)
        return [host for host, files in tree.items() if path in {file.path for file in files}]

    plan = plan_of("login")
    assert hosts_with("/etc/nologin", plan) == ["accounting", "ctl"]
    keys = text_of(plan, "ctl", "/etc/tmpfiles.d/cluster-users.conf")
    assert "authorized_keys 0600 alice alice - %secret:user_ssh_key_pub%" in keys
    own = plan_of("login", capabilities=OWN_MACHINES)
    assert hosts_with("/etc/nologin", own) == []
    assert "key" not in text_of(own, "ctl", "/etc/tmpfiles.d/cluster-users.conf")
    assert hosts_with("/etc/nologin", plan_of("federation")) == []


def test_each_half_of_an_ssh_key_comes_with_the_other() -> None:
    secrets = run_secrets.new_secrets({"user_ssh_key_pub"}, {})
    assert secrets["user_ssh_key"].startswith("-----BEGIN OPENSSH PRIVATE KEY-----")
    assert secrets["user_ssh_key_pub"].startswith("ssh-ed25519 ")


@pytest.mark.parametrize(
    ("release", "file"), [("24.11", "topology.conf"), ("25.05", "topology.yaml")]
)
def test_partition_names_its_topology_where_there_is_a_choice(release: str, file: str) -> None:
    plan = plan_of(
        "topology-block", {"release": release, "partitions": {"main": {"topology": "racks"}}}
    )
    conf = text_of(plan, "sim", "/etc/slurm/slurm.conf")
    assert ("TopologyPlugin=topology/block" in conf) == (release == "24.11")
    assert ("Topology=racks" in conf) == (release == "25.05")
    assert "n[5-6]" in text_of(plan, "sim", f"/etc/slurm/{file}")


@pytest.mark.parametrize(("release", "late"), [("20.11", True), ("22.05", True), ("24.11", False)])
def test_federation_waits_where_its_controllers_cannot_join_unregistered_ones(
    release: str, late: bool
) -> None:
    read = scenario.load(ROOT / "scenarios" / "federation.yml", [release])
    plan = make_plan("federation", read, CONTAINERS)
    objects = text_of(plan, "onprem-ctl", "/usr/local/sbin/slurm-accounting-objects")
    in_late_part, _, rest = objects.rpartition("    exit\n")
    assert ("add federation" in in_late_part) is late
    assert ("add federation" in rest) is not late
    assert (
        "slurm-accounting-objects late" in install_script.script(plan, render.render(plan))
    ) is late


def test_nodes_shared_with_kubernetes_are_counted_in_the_ledger_and_wait_for_the_operator() -> None:
    plan = plan_of(
        "kubernetes-hybrid",
        {"nodes": [{"name": "n1", "cpus": 4, "memory": 900, "gres": ["gpu:2"]}]},
    )
    conf = text_of(plan, "n1", "/etc/slurm/slurm.conf").splitlines()
    assert (
        "NodeName=n1 CPUs=4 RealMemory=900 Gres=gpu:2,k8scpu:4,k8smemory:900,k8sgpu:2 State=DRAIN"
        in conf
    )
    assert {
        "GresTypes=gpu,k8scpu,k8smemory,k8sgpu",
        "JobSubmitPlugins=lua",
        "DefMemPerCPU=225",
    } <= {*conf}
    assert "local MEMORY_PER_CPU = 225\n" in text_of(plan, "ctl", "/etc/slurm/job_submit.lua")


def test_qos_exist_before_one_names_another(tmp_path: Path) -> None:
    path = tmp_path / "site.yml"
    path.write_text(
        """\
clusters: {one: {controller: ctl, nodes: [{name: c1}]}}
accounting: {qos: {high: {options: {Preempt: low}}, low: {}}}
"""
    )
    plan = make_plan("site", scenario.load(path), CONTAINERS)
    script = text_of(plan, "ctl", "/usr/local/sbin/slurm-accounting-objects")
    assert script.index("add qos low") < script.index("Preempt=low")


def test_groups_and_reservations_are_created_with_their_ids_and_options(tmp_path: Path) -> None:
    path = tmp_path / "site.yml"
    path.write_text(
        """\
clusters:
  one:
    controller: ctl
    nodes: [{name: c1}]
    reservations: {course: {StartTime: now, Duration: 60, Nodes: c1, Users: alice}}
users: {alice: {uid: 2001}}
groups: {staff: {gid: 7001, users: [alice]}}
"""
    )
    plan = make_plan("site", scenario.load(path), CONTAINERS)
    text = text_of(plan, "c1", "/etc/sysusers.d/cluster-users.conf")
    assert "g staff 7001\n" in text
    assert "m alice staff\n" in text
    script = text_of(plan, "ctl", "/usr/local/sbin/slurm-reservations")
    assert "ReservationName=course StartTime=now Duration=60 Nodes=c1 Users=alice" in script
    assert [host.name for host in plan.with_reservations()] == ["ctl"]


MONITORED = """
clusters:
  open: {controller: a, nodes: [{name: n1, cpus: 2}], options: {SlurmctldPort: 7000}}
  private: {controller: b, nodes: [{name: n2, cpus: 2}], options: {PrivateData: jobs}}
monitoring: {host: mon, targets: {own: ["n1:9100"]}}
"""


def monitored(directory: Path, release: str, more: str = "") -> Plan:
    """Return the plan of two clusters with Prometheus."""
    path = directory / "s.yml"
    path.write_text(f'release: "{release}"\n{MONITORED}{more}')
    return make_plan("s", scenario.load(path), capabilities.CONTAINERS)


def test_prometheus_scrapes_metrics_with_a_token_where_private_data_hides_them(
    tmp_path: Path,
) -> None:
    plan = monitored(tmp_path, "26.05")
    host = plan.host("mon")
    assert host.daemons == ("munge", "prometheus")
    assert (host.packages, "9090" in host.ports) == (("prometheus",), True)
    jobs = YAML(typ="safe").load(text_of(plan, "mon", "/etc/prometheus/prometheus.yml"))
    of = {job["job_name"]: job for job in jobs["scrape_configs"]}
    assert {
        target["labels"]["__metrics_path__"] for target in of["slurm:open"]["static_configs"]
    } == {*slurm_options.METRIC_PATHS}
    assert of["slurm:open"]["static_configs"][0]["targets"] == ["a:7000"]
    assert of["own"]["static_configs"] == [{"targets": ["n1:9100"]}]
    assert [name for name, job in of.items() if "authorization" in job] == ["slurm:private"]
    files = {file.path: file for file in render.render(plan)["mon"]}
    token = files["/etc/prometheus/slurm.token"]
    assert (token.text, token.owner, token.mode) == ("%secret:root_token%", "prometheus", "0400")
    with_key = [
        name
        for name, of_host in render.render(plan).items()
        if slurm_options.JWT_KEY in {file.path for file in of_host}
    ]
    assert with_key == ["b"]
    assert "SlurmctldHttpAuthParameters=jwt_key=" in text_of(plan, "b", "/etc/slurm/slurm.conf")
    assert "jwt" not in text_of(plan, "a", "/etc/slurm/slurm.conf")


def test_prometheus_scrapes_only_other_targets_if_nobody_can_read_metrics(tmp_path: Path) -> None:
    older = monitored(tmp_path, "24.11")
    assert "MetricsType" not in text_of(older, "a", "/etc/slurm/slurm.conf")
    assert "slurm:" not in text_of(older, "mon", "/etc/prometheus/prometheus.yml")
    assert [*monitored(tmp_path, "25.11").metric_targets()] == ["open"]


def test_prometheus_runs_beside_other_daemons(tmp_path: Path) -> None:
    plan = monitored(tmp_path, "26.05", "accounting: {host: mon}")
    assert plan.host("mon").daemons == ("munge", "mariadb", "slurmdbd", "prometheus")
    assert [host.name for host in plan.hosts].count("mon") == 1


def test_token_of_root_is_signed_with_the_key_of_the_run() -> None:
    secrets = run_secrets.new_secrets({run_secrets.ROOT_TOKEN}, {})
    assert jwt.decode(secrets["root_token"], secrets["jwt_key"], ["HS256"])["sun"] == "root"
    later = run_secrets.new_secrets({run_secrets.ROOT_TOKEN}, {"jwt_key": secrets["jwt_key"]})
    assert "jwt_key" not in later
    assert jwt.decode(later["root_token"], secrets["jwt_key"], ["HS256"])
