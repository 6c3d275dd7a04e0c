"""Existing machines: what is refused, what is shown, and that everything is restored."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness import faults, inventory, scenario
from harness.capabilities import OWN_MACHINES
from harness.errors import ScenarioError, UsageError
from harness.inventory import Machine
from harness.plan import Plan, make_plan
from harness.providers.existing import host_side, preview
from harness.providers.existing.host_side import HELD, HostSide, Refused
from harness.providers.existing.hosts import ExistingProvider, read_inventory
from harness.render import render
from harness.ssh import Ssh

SCENARIO = """
clusters:
  lent: {controller: boss, nodes: [{name: worker, cpus: 2}]}
accounting: {host: boss, accounts: {physics: {}}}
users: {alice: {uid: 2001, accounts: [physics]}}
machines: {boss: admin@boss.example.org:2222, worker: worker.example.org}
"""
RUN = {"id": "lent-1", "by": "me@here", "since": "today"}
CONF = "/etc/slurm/slurm.conf"
MARIADB: dict[str, Any] = {"problem": "", "accounts": [["slurm", "%"]], "databases": []}


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return make_plan("lent", scenario.load(written(tmp_path, SCENARIO)), OWN_MACHINES)


def written(directory: Path, text: str) -> Path:
    path = directory / "lent.yml"
    path.write_text(text)
    return path


def facts(plan: Plan, index: int = 0, **others: Any) -> dict[str, Any]:
    """Facts of a host that suits every role, except for `others`."""
    host = plan.hosts[index]
    wanted = preview.wanted(plan, host, render(plan)[host.name])
    return {
        "name": host.name,
        "held": None,
        "held_for_this": False,
        "clusters": [],
        "releases": dict.fromkeys(wanted["daemons"], "slurm-wlm 24.11.5"),
        "lacking": [],
        "unresolved": [],
        "hardware": "NodeName=worker CPUs=2 Boards=1 RealMemory=1900",
        "files": dict.fromkeys(wanted["files"]),
        "units": {
            unit: {"LoadState": "loaded", "ActiveState": "inactive", "UnitFileState": ""}
            for unit in wanted["units"]
        },
        "uids": dict.fromkeys(wanted["users"]),
        "owners": {},
        "directories": dict.fromkeys(wanted["directories"]),
        "shared": {},
        "mariadb": {"problem": "", "accounts": [["root", "localhost"]], "databases": ["mysql"]}
        if index == 0
        else None,
        "databases": [],
        **others,
    }


@pytest.mark.parametrize(
    ("index", "others", "said"),
    [
        (
            0,
            {"held": {**RUN, "id": "other"}},
            "run other of me@here holds it; `harness down other` there restores it",
        ),
        (0, {"lacking": ["slurmctld"]}, "apt-get install slurmctld"),
        (0, {"name": "chief"}, "its host name is chief"),
        (0, {"unresolved": ["worker"]}, "it cannot resolve worker"),
        (
            0,
            {"releases": {"slurmctld": "slurm-wlm 22.05.8"}},
            "is release 22.05, the scenario requires 24.11: --release 22.05",
        ),
        (1, {"clusters": [(CONF, "foreign")]}, "belongs to cluster foreign, not to lent"),
        (
            1,
            {"clusters": [("slurmd, process 7", None)]},
            "belongs to a cluster of unknown name",
        ),
        (
            1,
            {"uids": {"alice": 1500}},
            "user alice has uid 1500 on the host and 2001 in the scenario",
        ),
        (1, {"owners": {"alice": "carol"}}, "uid 2001 belongs to carol on the host"),
        (
            1,
            {"hardware": "NodeName=worker CPUs=1 RealMemory=1900"},
            "it has CPUs=1, the scenario requires 2",
        ),
        (0, {"databases": ["slurm_acct_db"]}, "it already has a database slurm_acct_db"),
        (
            0,
            {"mariadb": {**MARIADB, "databases": ["slurm_acct_db"]}},
            "it already has a database slurm_acct_db",
        ),
        (
            0,
            {"mariadb": {**MARIADB, "accounts": [["slurm", "localhost"]]}},
            "already has an account slurm@localhost",
        ),
        (
            0,
            {"mariadb": {**MARIADB, "problem": "ERROR 1045"}},
            "root cannot list the databases and accounts of its MariaDB: ERROR 1045",
        ),
        (
            1,
            {"shared": {"/etc/slurm": "a link to /home/slurm"}},
            "/etc/slurm is a link to /home/slurm, so other machines may share",
        ),
    ],
)
def test_unsuitable_host_is_refused(
    index: int, others: dict[str, Any], said: str, plan: Plan
) -> None:
    problems = list(preview.refusals(plan, plan.hosts[index], facts(plan, index, **others), None))
    assert len(problems) == 1
    assert said in problems[0]


@pytest.mark.parametrize("index", [0, 1])
def test_suitable_host_is_accepted_even_if_it_is_already_in_the_cluster(
    index: int, plan: Plan
) -> None:
    host = plan.hosts[index]
    assert not list(
        preview.refusals(plan, host, facts(plan, index, clusters=[(CONF, "lent")]), None)
    )
    own = facts(plan, index, held=RUN, held_for_this=True, databases=["slurm_acct_db"])
    assert not list(preview.refusals(plan, host, own, RUN["id"]))
    changed = facts(plan, index, held=RUN, held_for_this=False)
    assert "has changed since the run began to hold it" in next(
        preview.refusals(plan, host, changed, RUN["id"])
    )


def test_nodes_that_run_containers_need_crun(plan: Plan) -> None:
    cluster = plan.scenario.clusters["lent"].model_copy(update={"oci": {}})
    with_oci = replace(
        plan, scenario=plan.scenario.model_copy(update={"clusters": {"lent": cluster}})
    )
    asked = [
        {*preview.wanted(each_plan, each_plan.hosts[1], ())["packages"]}
        for each_plan in (plan, with_oci)
    ]
    assert asked[1] - asked[0] == {"crun", "busybox-static"}


def test_changes_show_what_differs_without_secrets(plan: Plan) -> None:
    boss = plan.hosts[0]
    tree = render(plan)[boss.name]
    host_facts = facts(plan)
    for file in tree:
        host_facts["files"][file.path] = {
            "owner": file.owner,
            "group": file.group,
            "mode": file.mode,
            "sha256": file.sha256(),
            "text": file.text if file.mode == "0644" else None,
        }
    old = {"sha256": "", "text": "ClusterName=lent\nJobCompPass=sesame\n"}
    host_facts["files"][CONF] |= old
    host_facts["files"]["/etc/slurm/slurmdbd.conf"] |= {"sha256": "", "mode": "0640"}
    host_facts["files"]["/etc/slurm/cgroup.conf"] = None
    host_facts["units"]["slurmctld"]["ActiveState"] = host_facts["units"]["slurmd"][
        "ActiveState"
    ] = "active"
    changes = preview.changes(boss, tree, host_facts, {})
    assert [path for path, _ in changes.new] == ["/etc/slurm/cgroup.conf"]
    assert "+ConstrainCores=YES" in dict(changes.new)["/etc/slurm/cgroup.conf"].splitlines()
    differences = dict(changes.differing)
    assert "-JobCompPass=hidden" in differences[CONF]
    assert "sesame" not in str(changes)
    assert differences["/etc/slurm/slurmdbd.conf"].startswith(
        "- slurm slurm 0640\n+ slurm slurm 0600\nits text is not"
    )
    assert changes.daemons == (
        "munge starts",
        "mariadb starts",
        "slurmdbd starts",
        "slurmctld restarts",
    )
    assert changes.users == ("alice",)
    assert changes.notes == ("slurmd is not part of the scenario, but runs: checks will report it",)


def test_changes_show_existing_directories_and_an_existing_mariadb(plan: Plan) -> None:
    boss, wanted = plan.hosts[0], facts(plan)["directories"]
    directories = {path: ["slurm", "slurm", "0755"] for path in wanted} | {
        "/var/log/slurm": ["root", "adm", "2750"]
    }
    mariadb = {**MARIADB, "databases": ["mysql", "wiki"]}
    changes = preview.changes(
        boss, render(plan)["boss"], facts(plan, directories=directories, mariadb=mariadb), {}
    )
    assert "/var/log/slurm: root adm 2750 -> slurm slurm 0755" in changes.directories
    assert "/var/lib/slurm/slurmctld: slurm slurm 0755 -> slurm slurm 0700" in changes.directories
    assert not any(text.startswith("/run/slurmctld:") for text in changes.directories)
    assert changes.notes == (
        "MariaDB, which has databases wiki, restarts and listens where the run needs it",
    )
    secret = dict(changes.new)["/etc/slurm/slurmdbd.conf"]
    assert secret == "+ slurm slurm 0600\nits text is not shown, because not everyone may read it"
    unseen = preview.changes(boss, render(plan)["boss"], facts(plan, mariadb=None), {})
    assert "/var/log/slurm: none -> slurm slurm 0755" in unseen.directories
    assert unseen.notes[0].startswith("MariaDB is not running: it is started first")


class Stranger(HostSide):
    """A host below a directory, with a table as systemd; its connection is lost at `breaks`."""

    def __init__(self, root: Path, systemd: dict[str, list[str]], breaks: int = 1000) -> None:
        super().__init__(str(root))
        self.systemd, self.breaks = systemd, breaks

    def call(self, *command: str) -> tuple[int, str]:
        self.breaks -= 1
        if self.breaks < 0:
            raise ConnectionError
        verb, unit = (
            [word for word in command[1:] if not word.startswith("-")][:2]
            if len(command) > 2
            else ("", "")
        )
        match verb:
            case "show":
                units = [name.removesuffix(".service") for name in command[3:]]
                words = [(unit, *self.systemd[unit]) for unit in units]
                shown = [
                    f"Id={name}\nLoadState=loaded\nActiveState={a}\nUnitFileState={e}"
                    for name, a, e in words
                ]
                return 0, "\n\n".join(shown)
            case "start" | "stop":
                self.systemd[unit][0] = "active" if verb == "start" else "inactive"
            case "enable" | "disable":
                self.systemd[unit][1] = f"{verb}d"
        return 0, ""


def seen(root: Path) -> dict[str, Any]:
    return {
        str(path.relative_to(root)): (
            path.lstat().st_mode,
            path.read_text() if path.is_file() else None,
        )
        for path in root.rglob("*")
        if path.name != "proc"
    }


def prepared(root: Path) -> tuple[dict[str, list[str]], dict[str, Any]]:
    """A host with a slurm.conf, a link, an empty directory, and running munge and slurmctld."""
    for directory in ("proc", "etc/slurm", "etc/munge", "var/lib", "var/log/slurm"):
        (root / directory).mkdir(parents=True)
    (root / "etc/slurm/slurm.conf").write_text("old")
    (root / "etc/slurm/cgroup.conf").symlink_to("slurm.conf")
    (root / "etc/munge/munge.key").touch(mode=0o400)
    systemd = {
        "munge": ["active", "enabled"],
        "slurmctld": ["active", "disabled"],
        "slurmd": ["inactive", "disabled"],
    }
    units = {
        "/etc/munge/munge.key": "munge",
        CONF: "slurmctld",
        "/etc/slurm/cgroup.conf": "slurmctld",
    }
    wanted = {
        "files": {**units, "/etc/systemd/system/slurmd.service.d/options.conf": "slurmd"},
        "directories": ["/var/log/slurm", "/var/lib/slurm/slurmctld"],
        "daemons": list(systemd),
        "users": {},
        "databases": {},
    }
    return systemd, wanted


def deploy(root: Path, systemd: dict[str, list[str]], wanted: dict[str, Any]) -> None:
    for path in map(root.joinpath, (name.lstrip("/") for name in wanted["files"])):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_text("new")
    (root / "var/log/slurm").chmod(0o700)
    (root / "var/log/slurm/slurmd.log").write_text("said")
    (root / "var/lib/slurm/slurmctld/job.1").mkdir(parents=True)
    systemd.update({unit: ["active", "enabled"] for unit in systemd})


def test_everything_is_restored_wherever_giving_back_was_interrupted(tmp_path: Path) -> None:
    for breaks in range(1, 100):
        root = tmp_path / str(breaks)
        root.mkdir()
        systemd, wanted = prepared(root)
        before, ran = seen(root), {unit: [*words] for unit, words in systemd.items()}
        Stranger(root, systemd).hold(RUN, wanted)
        assert (root / HELD.lstrip("/")).stat().st_mode & 0o777 == 0o700
        deploy(root, systemd, wanted)
        try:
            answer = Stranger(root, systemd, breaks).restore(RUN["id"])
        except ConnectionError:
            assert Stranger(root, systemd).restore(RUN["id"]) == {"problems": [], "left": []}
        assert seen(root) == before
        assert systemd == ran
        if "answer" in locals():
            assert answer == {"problems": [], "left": []}
            assert breaks > 5
            return
    pytest.fail("never ends")


def test_host_is_held_by_one_run_at_a_time_and_only_with_a_complete_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    systemd, wanted = prepared(tmp_path)
    before = seen(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(host_side.os, "sync", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            Stranger(tmp_path, systemd).hold(RUN, wanted)
    assert Stranger(tmp_path, systemd).holder() is None
    host = Stranger(tmp_path, systemd)
    host.hold(RUN, wanted)
    host.hold(RUN, wanted)
    with pytest.raises(Refused, match="run lent-1 of me@here has held it since today"):
        host.hold({**RUN, "id": "second"}, wanted)
    assert host.restore("second") == {"problems": [], "left": []}
    assert host.holder() == RUN
    host.restore(RUN["id"])
    assert seen(tmp_path) == before


def test_files_written_among_existing_ones_are_reported(tmp_path: Path) -> None:
    systemd, wanted = prepared(tmp_path)
    (tmp_path / "var/log/slurm/old.log").touch()
    host = Stranger(tmp_path, systemd)
    host.hold(RUN, wanted)
    deploy(tmp_path, systemd, wanted)
    answer = host.restore(RUN["id"])
    assert answer["left"] == [
        "/var/log/slurm was not empty before: files written there since remain"
    ]


def test_daemon_that_does_not_restart_is_a_problem_and_the_host_stays_held(
    tmp_path: Path,
) -> None:
    class Broken(Stranger):
        def call(self, *command: str) -> tuple[int, str]:
            return (1, "no") if command[1:] == ("start", "munge") else super().call(*command)

    systemd, wanted = prepared(tmp_path)
    Stranger(tmp_path, systemd).hold(RUN, wanted)
    deploy(tmp_path, systemd, wanted)
    assert Broken(tmp_path, systemd).restore(RUN["id"])["problems"] == ["systemctl start munge: no"]
    assert Stranger(tmp_path, systemd).restore(RUN["id"])["problems"] == []


class WithMariadb(Stranger):
    """A host with a MariaDB that has accounts and databases, and executes statements."""

    def __init__(
        self, root: Path, systemd: dict[str, list[str]], accounts: set[str], databases: set[str]
    ) -> None:
        super().__init__(root, systemd)
        self.accounts, self.databases = accounts, databases

    def call(self, *command: str) -> tuple[int, str]:
        if command[0] != "mariadb":
            return super().call(*command)
        assert self.systemd["mariadb"][0] == "active"
        if command[-1].startswith("SELECT"):
            rows = [f"account\t{name.replace('@', chr(9))}" for name in self.accounts]
            return 0, "\n".join([*rows, *(f"database\t{name}" for name in self.databases)])
        for account in re.findall(r"DROP USER IF EXISTS '(\w+)'@'(\w+)'", command[-1]):
            self.accounts.discard("@".join(account))
        for database in re.findall(r"DROP DATABASE IF EXISTS `(\w+)`", command[-1]):
            self.databases.discard(database)
        return 0, ""


@pytest.mark.parametrize("state", ["active", "inactive"])
@pytest.mark.parametrize("there", ["slurm@localhost", "slurm_acct_db", None])
def test_existing_account_or_database_is_neither_changed_nor_removed(
    tmp_path: Path, state: str, there: str | None
) -> None:
    systemd, wanted = prepared(tmp_path)
    systemd["mariadb"] = [state, "disabled"]
    wanted |= {"databases": {"slurm_acct_db": ["slurm", "localhost"]}, "daemons": list(systemd)}
    accounts, databases = {"root@localhost", "slurm@%"}, {"mysql"}
    if there:
        (accounts if "@" in there else databases).add(there)
    before, ran = seen(tmp_path), {unit: [*words] for unit, words in systemd.items()}
    host = WithMariadb(tmp_path, systemd, {*accounts}, {*databases})
    if there:
        with pytest.raises(Refused, match=f"MariaDB already has (account|database) {there}"):
            host.hold(RUN, wanted)
        with pytest.raises(Refused):
            host.hold(RUN, wanted)
    else:
        host.hold(RUN, wanted)
        host.hold(RUN, wanted)
        deploy(tmp_path, systemd, wanted)
        host.accounts.add("slurm@localhost")
        host.databases.add("slurm_acct_db")
    assert host.restore(RUN["id"]) == {"problems": [], "left": []}
    assert (host.accounts, host.databases) == (accounts, databases)
    assert seen(tmp_path) == before
    assert systemd == ran


def test_files_that_other_hosts_may_have_too_are_found(tmp_path: Path) -> None:
    (tmp_path / "home/slurm").mkdir(parents=True)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/slurm").symlink_to(tmp_path / "home/slurm")
    (tmp_path / "proc/self").mkdir(parents=True)
    mounts = "root / nfs rw 0 0\ntmpfs /etc tmpfs rw 0 0\nserver:/opt /opt/slurm nfs4 rw 0 0\n"
    (tmp_path / "proc/self/mounts").write_text(mounts)
    paths = [CONF, "/etc/munge/munge.key", "/opt/slurm/etc/x", "/usr/local/sbin/y"]
    assert HostSide(str(tmp_path))._shared(paths) == {
        "/etc/slurm": f"a link to {tmp_path}/home/slurm",
        "/opt/slurm": "on nfs4",
        "/": "on nfs",
    }


def test_clusters_of_a_host_are_found_in_files_and_daemons(tmp_path: Path) -> None:
    (tmp_path / "etc/slurm").mkdir(parents=True)
    (tmp_path / "etc/slurm/slurm.conf").write_text("# ClusterName=no\ninclude more.conf\n")
    (tmp_path / "etc/slurm/more.conf").write_text(" clustername = Foreign # yes\n")
    (tmp_path / "opt").mkdir()
    (tmp_path / "opt/slurm.conf").write_text("ClusterName=opted")
    for pid, comm, cmdline, environ in (
        ("7", "slurmd\n", "/usr/sbin/slurmd\0-D\0-f\0/opt/slurm.conf\0", ""),
        ("8", "slurmctld\n", "/usr/sbin/slurmctld\0", "A=b\0SLURM_CONF=/opt/gone.conf\0"),
        ("9", "bash\n", "bash", ""),
    ):
        (tmp_path / "proc" / pid).mkdir(parents=True)
        for name, text in (("comm", comm), ("cmdline", cmdline), ("environ", environ)):
            (tmp_path / "proc" / pid / name).write_text(text)
    found = dict(HostSide(str(tmp_path)).clusters())
    assert found == {
        CONF: "foreign",
        "slurmd, process 7": "opted",
        "slurmctld, process 8": "foreign",
    }


@pytest.mark.parametrize(
    "text",
    [
        "[all]\nboss ansible_host=10.0.0.1 ansible_port=2222 ansible_user=admin\nworker\n",
        "all:\n  hosts:\n"
        "    boss: {ansible_host: 10.0.0.1, ansible_port: 2222, ansible_user: admin}\n"
        "    worker:\n",
    ],
)
def test_inventory_is_read_in_ansibles_formats(text: str, tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text(text)
    found = read_inventory(path)
    assert found == {
        "boss": Machine("boss", "10.0.0.1", 2222, "admin"),
        "worker": Machine("worker", None, None, None),
    }


def test_invalid_inventory_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "hosts.yml"
    path.write_text("all: [boss")
    with pytest.raises(UsageError, match="is not a valid inventory"):
        read_inventory(path)


@pytest.mark.parametrize(
    "variable", ["ansible_host", "ansible_user", "ansible_ssh_private_key_file"]
)
def test_inventory_has_no_lines_of_an_ssh_config(variable: str, tmp_path: Path) -> None:
    path = tmp_path / "hosts.yml"
    path.write_text(
        json.dumps({"all": {"hosts": {"boss": {variable: "x\n    ProxyCommand touch evil"}}}})
    )
    with pytest.raises(
        UsageError, match=r"boss: 'x.*ProxyCommand.* is not a valid host name, address"
    ):
        read_inventory(path)


def test_host_without_a_machine_is_refused(tmp_path: Path) -> None:
    read = scenario.load(written(tmp_path, SCENARIO.replace(", worker: worker.example.org", "")))
    plan = make_plan("lent", read, OWN_MACHINES)
    with pytest.raises(UsageError, match="the scenario's machines: no machine for worker"):
        ExistingProvider(tmp_path).confirm(plan, render(plan))


def test_users_own_ssh_config_applies_except_that_ssh_never_prompts(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text(
        "Host *.example.org\n  User carol\n  ProxyJump gate\n  StrictHostKeyChecking no\n"
    )
    config = tmp_path / "config"
    config.write_text(
        inventory.own_ssh_config([Machine("boss", "boss.example.org", 2222, None)], None, str(own))
    )
    printed = subprocess.run(
        ["ssh", "-G", "-F", config, "boss"], capture_output=True, text=True, check=True
    ).stdout
    for line in (
        "hostname boss.example.org",
        "port 2222",
        "user carol",
        "proxyjump gate",
        "stricthostkeychecking true",
    ):
        assert line in printed.splitlines()


def test_commands_of_another_user_than_root_run_with_sudo(tmp_path: Path) -> None:
    ssh = Ssh(tmp_path / "config", tmp_path / "sockets", sudo=True)
    assert ssh.command("boss", ["echo 'two  words'"])[-5:] == [
        "sudo",
        "-n",
        "sh",
        "-c",
        "'echo '\"'\"'two  words'\"'\"''",
    ]
    assert ssh.command("boss", tty=True)[-3:] == ["sudo", "-n", "-i"]


def test_what_needs_an_engine_is_refused_at_its_place(tmp_path: Path, plan: Plan) -> None:
    text = (
        SCENARIO.replace("cpus: 2}", "cpus: 2, provision: power}")
        + "disks: {boss: {/var/lib/mysql: 600M}}\n"
    )
    text = text.replace(
        "cpus: 2, provision: power}]", "cpus: 2, provision: power}], packages: [gcc]"
    )
    text = text.replace(
        "packages: [gcc]", "packages: [gcc], spank_plugins: {/opt/a.so: {text: a}}, nss_slurm: true"
    )
    text = text.replace("provision: power", "provision: create, user_data: {text: '#!/bin/sh'}")
    text += "shared_directories: [/home]\nsites: {here: {dns_server: boss}}\n"
    with pytest.raises(ScenarioError) as caught:
        scenario.load(written(tmp_path, text), (), None, ExistingProvider(tmp_path).lacks)
    assert "lent.yml:3:71: clusters.lent.nodes.0.provision: existing machines cannot" in str(
        caught.value
    )
    assert "clusters.lent.packages: install them on the machines yourself" in str(caught.value)
    assert "clusters.lent.spank_plugins: install them on the machines" in str(caught.value)
    assert "clusters.lent.nss_slurm: the harness does not change how existing" in str(caught.value)
    assert "nodes.0.user_data: cloud-init does not initialize existing" in str(caught.value)
    assert "sites.here.dns_server: the harness does not change how" in str(caught.value)
    assert "lent.yml:8:21: shared_directories: share them yourself" in str(caught.value)
    assert "lent.yml:7:8: disks: existing machines keep their disks" in str(caught.value)
    provider = ExistingProvider(tmp_path)
    with pytest.raises(UsageError, match="provider existing cannot switch hosts on and off") as no:
        faults.parse(plan, provider, "kill-host worker")
    assert no.value.message.startswith("kill-host worker: ")
    assert faults.parse(plan, provider, "kill-daemon worker slurmd")


def test_unknown_machine_of_a_host_is_reported(tmp_path: Path) -> None:
    with pytest.raises(
        ScenarioError, match=r'machines.workers: no host "workers"; did you mean "worker"'
    ):
        scenario.load(written(tmp_path, SCENARIO.replace(" worker:", " workers:")))


def test_requested_files_of_a_host_can_be_sent(plan: Plan) -> None:
    tree = render(plan)
    for host in plan.hosts:
        wanted = preview.wanted(plan, host, tree[host.name])
        assert json.loads(json.dumps(wanted)) == wanted
        assert {file.path for file in tree[host.name]} < {*wanted["files"]}
    wanted = preview.wanted(plan, plan.hosts[0], tree["boss"])
    assert wanted["users"] == {"alice": 2001}
    assert {"/home/alice", "/var/lib/slurm/slurmctld", "/var/log/slurm"} <= {*wanted["directories"]}
    assert wanted["databases"] == {"slurm_acct_db": ["slurm", "localhost"]}
