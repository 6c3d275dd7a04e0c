"""A machine with several users: nobody takes over, blocks or removes what another user owns."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from ipaddress import IPv4Network
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from fakes import SCENARIO, FakeProvider
from harness import cli, doctor, file_ownership, lifecycle, providers, rundir
from harness.elastic import provisioning
from harness.errors import CannotVerify, UsageError, WaitTimeout
from harness.kubernetes import apiserver, hybrid_cluster
from harness.providers import dockerfiles
from harness.providers.docker import containers
from harness.providers.docker.containers import DockerProvider
from harness.providers.vagrant import machines
from harness.rundir import RunDir
from harness.verify import pytest_run
from harness.wait import wait_until

OTHER_USER = 54321
TYPES = (
    '{"id": "x", "scenario": "s", "scenario_path": "s", "provider": "p", "capabilities": 5,'
    ' "releases": [], "started": 5}'
)
UNREADABLE = ["", '{"id": "single', "{}", "[]", "[" * 100_000, TYPES]


@pytest.fixture(autouse=True)
def shared(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory for temporary files of all users."""
    directory = tmp_path_factory.mktemp("shared")
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    return directory


@pytest.fixture
def as_other_user(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Become another user, who owns nothing that exists now."""
    return lambda: monkeypatch.setattr(os, "geteuid", lambda: OTHER_USER)


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> FakeProvider:
    """The provider of every command."""
    fake = FakeProvider()
    monkeypatch.setattr(providers, "get", lambda *_: fake)
    return fake


def created(runs: Path, provider: FakeProvider | None = None) -> RunDir:
    """Return a run, whose hosts are up if it has a provider."""
    run = lifecycle.create(SCENARIO, provider or FakeProvider(), runs, lambda _: None).directory
    if provider:
        provider.running[run.id] = ["single"]
    return run


def harness(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli.app, [*map(str, arguments)])


def test_path_of_a_runs_sockets_cannot_be_guessed(tmp_path: Path, shared: Path) -> None:
    run = created(tmp_path)
    assert run.control_directory.parent == shared
    assert run.control_directory.name.removeprefix(rundir.CONTROL) not in str(run.path)
    assert RunDir(run.path).control_directory == run.control_directory
    longest = len(f"/tmp/{run.control_directory.name}/") + doctor._SOCKET_NAME
    assert longest < 108, "unix(7)"


def test_sockets_stay_where_they_are_when_tmpdir_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = created(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert RunDir(run.path).control_directory == run.control_directory


@pytest.mark.parametrize("kind", ["another user's", "open", "link"])
def test_socket_directory_writable_by_others_is_not_used(
    kind: str, tmp_path: Path, as_other_user: Callable[[], None]
) -> None:
    run = created(tmp_path)
    if kind == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        run.control_directory.symlink_to(tmp_path / "elsewhere")
    else:
        run.control_directory.mkdir(mode=0o755 if kind == "open" else 0o700)
        run.control_directory.chmod(0o755 if kind == "open" else 0o700)
    ssh = run.ssh()
    if kind == "another user's":
        as_other_user()
    with pytest.raises(CannotVerify, match="other users could read or replace files in it"):
        ssh.command("single")


def test_removed_socket_directory_is_recreated(tmp_path: Path) -> None:
    run = created(tmp_path)
    for _ in (1, 2):
        run.ssh().command("single")
        assert run.control_directory.stat().st_mode & 0o777 == 0o700
        run.control_directory.rmdir()


def test_image_lock_is_out_of_reach_of_other_users(
    tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with dockerfiles.alone("-bookworm", "image", print):
        assert [path.stat().st_mode & 0o777 for path in (tmp_path / "cache").iterdir()] == [0o700]
        assert not [*shared.iterdir()]


def test_unwritable_cache_is_reported_with_an_alternative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "cache"))
    with pytest.raises(CannotVerify, match="set XDG_CACHE_HOME to a different directory"):
        file_ownership.cache()


@pytest.mark.parametrize("arguments", [["--all"], ["single-node"]])
def test_down_removes_the_sockets_of_a_run_that_was_killed(
    arguments: list[str], tmp_path: Path, provider: FakeProvider
) -> None:
    run = created(tmp_path, provider)
    file_ownership.directory(run.control_directory)
    (run.control_directory / "api").touch()
    del provider.running[run.id]
    completed = harness("down", *arguments, "--runs", tmp_path)
    assert completed.exit_code == 0, completed.output
    assert not run.control_directory.exists()


def test_down_removes_the_sockets_of_a_run_whose_directory_is_lost(
    tmp_path: Path, provider: FakeProvider, shared: Path
) -> None:
    run = created(tmp_path / "elsewhere", provider)
    file_ownership.directory(run.control_directory)
    other = file_ownership.directory(created(tmp_path / "elsewhere").control_directory)
    assert harness("down", run.id, "--runs", tmp_path).exit_code == 0
    assert [*shared.iterdir()] == [other]


def test_run_directory_is_private(tmp_path: Path, as_other_user: Callable[[], None]) -> None:
    """Root's would be accepted: root can change everything here anyway."""
    run = created(tmp_path)
    assert run.path.stat().st_mode & 0o777 == 0o700
    if os.geteuid() == 0:
        os.chown(run.path, OTHER_USER, -1)
    else:
        as_other_user()
    assert (rundir.all_runs(tmp_path), rundir.unreadable(tmp_path)) == ([], {})
    with pytest.raises(UsageError, match=r"whose files can run commands: .* belongs to "):
        RunDir(run.path)


@pytest.mark.parametrize("name", [".", "ssh_config", "machines/c1"])
def test_run_writable_by_others_is_not_opened(name: str, tmp_path: Path) -> None:
    run = created(tmp_path)
    run.path.chmod(0o755)
    path = run.path / name
    path.parent.mkdir(exist_ok=True)
    if not path.exists():
        path.touch()
    RunDir(run.path)
    path.chmod(path.stat().st_mode | 0o020)
    with pytest.raises(UsageError, match="users other than its owner can write") as caught:
        RunDir(run.path)
    assert "chmod -R go-w" in str(caught.value.hint)


class Started(Exception):
    """A program would have been started."""


@pytest.mark.parametrize("program", ["provisioning", "operator", "emulator", "verify"])
def test_programs_import_nothing_from_the_working_directory(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def start(command: list[str], **_: Any) -> None:
        commands.append(command)
        raise Started

    run = created(tmp_path / "runs")
    operator = hybrid_cluster.Operator(tmp_path, tmp_path, tmp_path / "log")
    begin = {
        "provisioning": lambda: provisioning.start(run),
        "operator": operator.start,
        "emulator": lambda: apiserver._emulated({"clusters.yaml": ""}).__enter__(),
        "verify": lambda: pytest_run.verify(run, print),
    }
    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", start)
        patched.setattr(subprocess, "run", start)
        with pytest.raises(Started):
            begin[program]()
    (tmp_path / "planted.py").write_text("print('planted')")
    (command,) = commands
    python = command[command.index(sys.executable) : command.index("-m")]
    completed = subprocess.run(
        [*python, "-c", "import planted"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "No module named 'planted'" in completed.stderr


@pytest.fixture
def impostor() -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A process with the arguments of a run's provisioning API, and the run's id."""
    run_id = f"mine-20261122T041700-{secrets.token_hex(3)}"
    words = ["sh", "-c", "read forever", "sh", "harness.elastic.provisioning_api", run_id]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as process:
        # The kernel sets a new program's arguments a moment after Popen returns.
        cmdline = Path(f"/proc/{process.pid}/cmdline")
        wait_until(
            cmdline.read_text,
            lambda text: run_id in text,
            what="the impostor to start",
            timeout=30,
            interval=0,
        )
        yield run_id, process
        process.kill()


def test_another_users_process_is_not_mistaken_for_the_api_of_a_run(
    impostor: tuple[str, subprocess.Popen[bytes]], as_other_user: Callable[[], None]
) -> None:
    run_id, process = impostor
    assert [*provisioning._processes(run_id)] == [process.pid]
    as_other_user()
    assert [*provisioning._processes(run_id)] == []
    provisioning.stop(run_id)
    assert process.poll() is None


def test_process_that_ignores_sigterm_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_id = f"mine-20261122T041700-{secrets.token_hex(3)}"
    stubborn = [
        "sh",
        "-c",
        "trap '' TERM; echo; read forever",
        "sh",
        "harness.elastic.provisioning_api",
        run_id,
    ]
    asked: list[Any] = []

    def wait(look: Callable[[], Any], *rest: Any, **options: Any) -> None:
        asked.append(look())
        if len(asked) == 1:
            raise WaitTimeout("it still runs")
        wait_until(look, *rest, **options)

    monkeypatch.setattr(provisioning, "wait_until", wait)
    with subprocess.Popen(stubborn, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        provisioning.stop(run_id)
        assert process.wait() == -signal.SIGKILL


class Engine:
    """An engine with labeled networks and volumes, and containers that have only these labels."""

    def __init__(self, *labels: dict[str, str]) -> None:
        self._labels = labels
        self.containers = SimpleNamespace(list=lambda **_: [])
        self.networks = self.volumes = SimpleNamespace(list=self._list)

    def _list(self, filters: dict[str, list[str]]) -> list[Any]:
        wanted = [filter_.partition("=") for filter_ in filters["label"]]
        return [
            SimpleNamespace(attrs={"Labels": labels})
            for labels in self._labels
            if all(name in labels and value in {"", labels[name]} for name, _, value in wanted)
        ]


def test_only_the_users_own_runs_are_listed_unless_all_users_are_requested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine, others = {containers.OWNER: str(os.geteuid())}, {containers.OWNER: str(OTHER_USER)}
    engine = Engine(
        {containers.RUN: "mine", **mine},
        {containers.RUN: "theirs", **others},
        {containers.RUN: "of an older harness"},
    )
    monkeypatch.setattr("harness.providers.docker.engine.connect", lambda: engine)
    assert {*DockerProvider().runs()} == {"mine"}
    assert {*DockerProvider().runs(all_users=True)} == {"mine", "theirs", "of an older harness"}


def test_network_records_who_owns_the_machines_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    defined: dict[str, str] = {}

    def virsh(*words: str, check: bool = True, stdin: str = "") -> str:
        match words:
            case ("net-create", *_):
                defined[stdin.partition("<name>")[2].partition("</name>")[0]] = stdin
            case ("net-dumpxml", name):
                return defined[name].replace("'", '"')  # as libvirt prints it
        return ""

    monkeypatch.setattr(machines, "virsh", virsh)
    monkeypatch.setattr(
        machines, "names", lambda verb, *_: [*defined] if verb == "net-list" else []
    )
    monkeypatch.setattr("harness.providers.vagrant.libvirt.volumes", list)
    monkeypatch.setattr("harness.providers.subnets.routes", list)
    plan = created(tmp_path).plan()
    run_id = "single-node-20261122T041700-d94c01"
    machines._make_network(run_id, plan, next(iter(plan.sites())))
    assert [*machines.VagrantProvider(tmp_path).runs()] == [run_id]
    monkeypatch.setattr(os, "geteuid", lambda: OTHER_USER)
    assert not machines.VagrantProvider(tmp_path).runs()
    assert [*machines.VagrantProvider(tmp_path).runs(all_users=True)] == [run_id]


def test_only_root_may_remove_other_users_runs(
    tmp_path: Path, as_other_user: Callable[[], None], provider: FakeProvider
) -> None:
    provider.running["theirs"] = ["single"]
    as_other_user()
    completed = harness("down", "--all-users", "--runs", tmp_path)
    assert (completed.exit_code, provider.running) == (2, {"theirs": ["single"]})
    assert "--all-users requires root" in completed.output


def test_root_removes_the_runs_of_all_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, provider: FakeProvider
) -> None:
    provider.running["theirs"] = ["single"]
    monkeypatch.setattr(
        provider, "runs", lambda *, all_users=False: dict(provider.running) if all_users else {}
    )
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert "no runs are up" in harness("down", "--all", "--runs", tmp_path).output
    assert harness("down", "--all-users", "--runs", tmp_path).exit_code == 0
    assert provider.running == {}


def test_two_users_of_one_scenario_do_not_interfere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Networks, bridges, labels and sockets differ; the engine picks ports; subnets are tried."""
    monkeypatch.setattr("harness.providers.docker.engine.version_of", lambda _: (27, 0))
    monkeypatch.setattr("harness.providers.docker.engine.connect", SimpleNamespace)
    named: list[set[str]] = []
    for user in (os.geteuid(), OTHER_USER):
        run = created(tmp_path / str(user))
        plan = run.plan()
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        bridges = DockerProvider()._bridge_options(run, plan, next(iter(plan.sites())))
        labels = containers._labels(run, plan)
        assert labels[containers.OWNER] == str(user)
        named.append(
            {run.id, str(run.control_directory), bridges["com.docker.network.bridge.name"]}
        )
    assert not named[0] & named[1]


def test_subnet_of_another_users_run_is_not_used() -> None:
    from harness.providers import subnets

    first = next(subnets.free(10))
    assert next(subnets.free(10, [first])) != first
    assert not next(subnets.free(10, [IPv4Network("198.18.0.0/16")])).overlaps(
        IPv4Network("198.18.0.0/16")
    )


@pytest.mark.parametrize("text", UNREADABLE)
def test_unreadable_run_is_named_by_status_and_skipped(
    text: str, tmp_path: Path, provider: FakeProvider
) -> None:
    good, bad = (created(tmp_path, provider) for _ in range(2))
    (bad.path / "run.json").write_text(text)
    completed = harness("status", "--format", "json", "--runs", tmp_path)
    assert completed.exit_code == 0, completed.output
    rows = {row["run"]: row for row in json.loads(completed.stdout)}
    assert rows[bad.id]["hosts_up"] == ["single"]
    assert str(bad.path / "run.json") in rows[bad.id]["problem"]
    assert rows[good.id]["problem"] == ""
    shown = harness("status", "--runs", tmp_path)
    assert "run.json" in shown.output.replace("\n", "")
    assert rundir.find(tmp_path, "single-node").id == good.id


@pytest.mark.parametrize("text", UNREADABLE)
@pytest.mark.parametrize("named_by", ["id", "path"])
def test_unreadable_run_is_still_removed(
    text: str, named_by: str, tmp_path: Path, provider: FakeProvider
) -> None:
    good, bad = (created(tmp_path, provider) for _ in range(2))
    file_ownership.directory(bad.control_directory)
    (bad.path / "run.json").write_text(text)
    completed = harness("down", getattr(bad, named_by), "--runs", tmp_path)
    assert completed.exit_code == 0, completed.output
    assert [*provider.running] == [good.id]
    assert not bad.control_directory.exists()


def test_unreadable_run_leaves_other_reports_readable(
    tmp_path: Path, provider: FakeProvider
) -> None:
    result = lifecycle.run(
        SCENARIO, FakeProvider("up", CannotVerify("no disk")), tmp_path, lambda _: None
    )
    bad = created(tmp_path)
    (bad.path / "run.json").write_text("")
    completed = harness("report", "--runs", tmp_path)
    assert completed.exit_code == 0, completed.output
    assert result.run in completed.output.replace("\n", "")
    assert "run.json is empty" in harness("report", bad.id, "--runs", tmp_path).output.replace(
        "\n", " "
    )


def test_truncated_report_or_event_does_not_prevent_reading_the_rest(
    tmp_path: Path, provider: FakeProvider
) -> None:
    run = created(tmp_path)
    run.event("stage", name="up", seconds=1)
    before = [*run.events()]
    with run.events_path.open("a") as events:
        events.write('{"time": "2026-11')
    assert [*run.events()] == before
    (run.path / "report.json").write_text('{"verdict": "pa')
    completed = harness("status", "--format", "json", "--runs", tmp_path)
    assert [row["verdict"] for row in json.loads(completed.stdout)] == ["unreadable"]


KILLED = """
import os, signal, sys
from pathlib import Path
from harness.rundir import RunDir

with RunDir(Path(sys.argv[1])).worked_on():
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_doctor_lists_what_killed_runs_left_behind(tmp_path: Path, provider: FakeProvider) -> None:
    kept, killed, working = (created(tmp_path, provider) for _ in range(3))
    assert [finding.ok for finding in doctor.leftovers(provider, tmp_path)] == [True]
    for run in (kept, killed, working):
        file_ownership.directory(run.control_directory)
    gone = file_ownership.directory(created(tmp_path / "elsewhere").control_directory)
    provider.running["lost"] = ["single"]
    subprocess.run([sys.executable, "-c", KILLED, str(killed.path)], check=False)
    with working.worked_on():
        found = {finding.text: finding.fix for finding in doctor.leftovers(provider, tmp_path)}
    assert found == {
        f"{killed.id}: the process that worked on it was killed": f"harness down {killed.id}",
        f"lost: it has no directory in {tmp_path}": "harness down lost",
        f"{gone}: its run is not up": f"rm -r {gone}",
    }
    for run in (kept, killed, working):
        assert harness("down", run.id, "--runs", tmp_path).exit_code == 0
    del provider.running["lost"]
    gone.rmdir()
    assert [finding.ok for finding in doctor.leftovers(provider, tmp_path)] == [True]


CHECK = """
import os, signal
from pathlib import Path

import pytest

@pytest.fixture
def started():
    yield
    Path("ended").touch()

def test_it(started):
    os.kill(os.getpid(), signal.{})
"""


@pytest.mark.parametrize("number", ["SIGTERM", "SIGHUP"])
def test_checks_stop_what_they_started_when_a_signal_ends_them(number: str, tmp_path: Path) -> None:
    run = created(tmp_path / "runs")
    (tmp_path / "test_it.py").write_text(CHECK.format(number))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "harness.pytest_plugin.plugin",
        "-p",
        "harness.verify.checks_plugin",
    ]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    completed = subprocess.run(
        [*command, "--harness-run", str(run.path), "test_it.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (tmp_path / "ended").exists(), completed.stderr
