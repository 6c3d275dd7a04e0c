"""A run's directory: everything decided, rendered, observed and evaluated.

It is also ansible-runner's directory.

scenario.yml run.json ssh_config known_hosts events.jsonl report.json junit.xml report.html
tree/HOST/...        the rendered files, without secrets; tree/manifest.json
secrets/ keys/       0700: passwords and keys of the run; its SSH keys
payloads/            0700: each host's files with their secrets
upgrade/             0700: data of hosts that are being recreated, such as a dump of the database
faults/ machines/    faults that are injected; parts of ssh_config for hosts that come and go
inventory/hosts.yml  Ansible's inventory
artifacts/ logs/     output of Ansible, logs of the daemons
simulations/         results of simulations
printed/             what Slurm's commands printed at their end
schedmd-suite/       report.json of `harness schedmd-suite`, output of tests that did not pass
"""

from __future__ import annotations

import json
import re
import secrets as random_secrets
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from pydantic import BaseModel
from ruamel.yaml import YAML

from harness import events, file_ownership, run_secrets
from harness import scenario as scenario_file
from harness.capabilities import Capabilities
from harness.errors import NoSuchRun, UsageError
from harness.inventory import Machine, ssh_config
from harness.origins import Origin
from harness.parsing import bounded_json, bounded_yaml
from harness.plan import Plan, make_plan
from harness.render import RenderedFile, Tree, manifest
from harness.run_secrets import is_secret, reveal, secrets_in
from harness.scenario import User
from harness.ssh import Ssh

# The names of directories for SSH's sockets begin with this, followed by the last six characters of
# the run's id.
CONTROL = "harness-"
_CONTROL = re.compile(rf"{CONTROL}[0-9a-f]{{6}}(-[0-9a-f]{{12}})?")


class _Facts(BaseModel):
    """The content of run.json; fields with a default may be missing in older files."""

    id: str
    scenario: str
    scenario_path: str
    provider: str
    capabilities: Capabilities
    releases: dict[str, str]
    origins: dict[str, Origin] = {}
    started: str
    settings: list[str] = []
    control_directory: str = ""


class RunDir:
    """A run's directory. `create` makes a new one, `RunDir(path)` opens an existing one.

    Raises UsageError if it is not one, or if other users could have written files in it: its
    ssh_config runs commands.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        try:
            text = (self.path / "run.json").read_text(encoding="utf-8", errors="replace")
            reason = file_ownership.exposed(self.path)
        except OSError as error:
            raise UsageError(
                f"{path} is not a run's directory", hint="`harness status` lists the runs"
            ) from error
        if reason:
            raise UsageError(
                f"refusing to open a run whose files can run commands: {reason}",
                hint="only its owner can open a run; if all files in it are yours: "
                f"chmod -R go-w {self.path}",
            )
        try:
            self._facts = bounded_json.load(text)
            facts = _Facts.model_validate(self._facts)
        except ValueError as error:
            raise UsageError(
                f"{self.path / 'run.json'} is empty, incomplete or from another version of the "
                "harness",
                hint=f"`harness down {self.path}` removes the run's hosts, if any; then remove the "
                "directory",
            ) from error
        self.id = facts.id
        self.provider = facts.provider
        self.started = facts.started
        self.scenario_path = facts.scenario_path
        self.settings = facts.settings
        self._capabilities = facts.capabilities
        self._origins = facts.origins
        older = f"{tempfile.gettempdir()}/{CONTROL}{self.id[-6:]}"
        self._control_directory = Path(facts.control_directory or older)

    @classmethod
    def create(
        cls,
        root: Path,
        scenario_path: Path,
        plan: Plan,
        provider: str,
        settings: Sequence[str] = (),
    ) -> RunDir:
        """Create the directory of a new run under `root`.

        Two runs in the same second get different ones.
        """
        started = datetime.now(UTC)
        token = random_secrets.token_hex(3)
        path = root / plan.name / f"{started:%Y%m%dT%H%M%S}-{token}"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Other users must not read logs and job scripts, or write an ssh_config.
            path.mkdir(mode=0o700)
        except OSError as error:
            raise UsageError(
                f"{root} cannot be written: {error.strerror}",
                hint="--runs or HARNESS_RUNS sets a different directory",
            ) from error
        _copy_scenario(scenario_path, path)
        facts = {
            "id": f"{plan.name}-{started:%Y%m%dT%H%M%S}-{token}",
            "scenario": plan.name,
            "scenario_path": str(scenario_path),
            "settings": [*settings],
            "provider": provider,
            "capabilities": asdict(plan.capabilities),
            # They depend not only on the scenario, but also on options and images.
            "releases": plan.releases(),
            "origins": _origins(plan),
            "started": started.isoformat(),
            # Nobody can guess the name and create the directory first.
            "control_directory": (
                f"{tempfile.gettempdir()}/{CONTROL}{token}-{random_secrets.token_hex(6)}"
            ),
        }
        write_atomically(path / "run.json", json.dumps(facts, indent=2))
        _point(root / plan.name / "latest", path.name)
        return cls(path)

    @property
    def root(self) -> Path:
        """The directory that holds the directories of all runs."""
        return self.path.parent.parent

    @property
    def ssh_config(self) -> Path:
        """The configuration with which `ssh -F` reaches every host by name."""
        return self.path / "ssh_config"

    @property
    def events_path(self) -> Path:
        """What happened when, one JSON object per line."""
        return self.path / "events.jsonl"

    @property
    def machines(self) -> Path:
        """The directory for the parts of ssh_config of hosts that come and go."""
        return self.path / "machines"

    @property
    def control_directory(self) -> Path:
        """The directory of the sockets of SSH's shared connections.

        `harness doctor` checks that their paths are short enough for unix(7).
        """
        return self._control_directory

    def ssh(self) -> Ssh:
        """Return an Ssh that runs commands on this run's hosts."""
        root = self._capabilities.root
        return Ssh(self.ssh_config, self.control_directory, self.machines, sudo=not root)

    @contextmanager
    def worked_on(self) -> Iterator[None]:
        """Hold a lock while this process works on the run; see `is_worked_on`, `is_abandoned`."""
        path = self.path / "working.lock"
        with FileLock(path):
            try:
                yield
            finally:
                path.unlink(missing_ok=True)

    def is_worked_on(self) -> bool:
        """Return whether a process works on the run."""
        return self._working() is True

    def is_abandoned(self) -> bool:
        """Return whether the process that worked on the run was killed."""
        return self._working() is False

    def _working(self) -> bool | None:
        """Return whether a process holds the lock of the run; None if there is no lock."""
        path = self.path / "working.lock"
        if not path.exists():
            return None
        try:
            with FileLock(path, timeout=0):
                return False
        except Timeout:
            return True

    def plan(
        self,
        choices: Sequence[str] = (),
        origin_of_image: Callable[[str], Origin] | None = None,
    ) -> Plan:
        """Return the plan of this run, from its scenario.

        `choices` override the releases; `origin_of_image` is for `scenario.load`.
        """
        choices = [
            *(
                f"{name}={release}"
                for name, release in self._facts["releases"].items()
                if name not in self._origins
            ),
            *choices,
        ]
        scenario = scenario_file.load(
            self.path / "scenario.yml",
            choices,
            origin_of_image,
            settings=self.settings,
            origin_of=self._origins,
        )
        return make_plan(self._facts["scenario"], scenario, self._capabilities)

    def add_users(self, users: Mapping[str, User]) -> None:
        """Add users to the run's copy of its scenario; `plan` includes them from now on."""
        path = self.path / "scenario.yml"
        data = bounded_yaml.load(path.read_text())
        data.setdefault("users", {}).update(
            {name: {"uid": user.uid} for name, user in users.items()}
        )
        with path.open("w") as file:
            YAML().dump(data, file)

    def take_scenario(self, scenario_path: Path) -> None:
        """Take another scenario, with its scripts, in place of the run's copy of its own."""
        _copy_scenario(scenario_path, self.path)

    def upgraded(self, plan: Plan) -> None:
        """Record that the run now has the releases of a plan."""
        self._facts["releases"] = plan.releases()
        self._facts["origins"] = _origins(plan)
        self._origins = plan.origins()
        write_atomically(self.path / "run.json", json.dumps(self._facts, indent=2))

    def write_tree(self, tree: Tree) -> None:
        """Write the rendered files of every host, without secrets, to tree/."""
        write_rendered(self.path / "tree", tree, with_secrets=False)

    def make_secrets(self, tree: Tree) -> None:
        """Create the secrets that a tree needs, and the keys for SSH; existing ones stay."""
        for name in ("secrets", "keys"):
            (self.path / name).mkdir(mode=0o700, exist_ok=True)
        for key in (self.key("ssh_key"), self.key("ssh_host_key")):
            if not key.exists():
                run_secrets.make_ssh_key(key, self.id)
        existing = self.secrets()
        for name, value in run_secrets.new_secrets(_secret_names(tree), existing).items():
            _write(self.path / "secrets" / name, value, 0o600)

    def secrets(self) -> dict[str, str]:
        """Return the values of this run's secrets by their names."""
        return {path.name: path.read_text() for path in (self.path / "secrets").iterdir()}

    def key(self, name: str) -> Path:
        """Return the file of an SSH key of this run."""
        return self.path / "keys" / name

    def own_ssh_config(self, machines: Sequence[Machine]) -> str:
        """Return a configuration for ssh(1) with this run's keys.

        Also writes known_hosts, with the run's host key.
        """
        known_hosts = self.path / "known_hosts"
        known_hosts.write_text(f"harness {self.key('ssh_host_key.pub').read_text()}")
        return ssh_config(
            machines, self.key("ssh_key"), known_hosts, self.control_directory, self.machines
        )

    def event(self, kind: str, **facts: Any) -> None:
        """Append an event to events.jsonl."""
        line = json.dumps({"time": datetime.now(UTC).isoformat(), "kind": kind, **facts})
        with self.events_path.open("a") as file:
            file.write(line + "\n")

    def events(self) -> Iterable[dict[str, Any]]:
        """Return all events so far, oldest first; raise CannotVerify if the file is damaged."""
        return events.read(self.events_path)


def _origins(plan: Plan) -> dict[str, dict[str, str]]:
    return {name: asdict(origin) for name, origin in plan.origins().items()}


def _copy_scenario(scenario_path: Path, directory: Path) -> None:
    shutil.copyfile(scenario_path, directory / "scenario.yml")
    for name in scenario_file.script_files(scenario_path):
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(scenario_path.parent / name, directory / name)
    fidelity = scenario_path.with_suffix(".fidelity.json")  # from `harness import --rehearsal`
    if fidelity.exists():
        shutil.copyfile(fidelity, directory / "fidelity.json")


def write_rendered(directory: Path, tree: Tree, *, with_secrets: bool) -> None:
    """Write DIRECTORY/HOST/path for every file and DIRECTORY/manifest.json.

    Files that are the same on several hosts are hard links, because thousands of hosts may have a
    slurm.conf of a megabyte. Without `with_secrets`, marks represent secrets, and files that
    consist of a secret are left out.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "manifest.json").write_text(_manifest(tree))
    secrets = run_secrets.new_secrets(_secret_names(tree), {}) if with_secrets else None
    written: dict[RenderedFile, Path] = {}
    for host, files in tree.items():
        for file in files:
            if secrets is None and is_secret(file.text):
                continue
            path = directory / host / file.path.lstrip("/")
            if file in written and _link(path, written[file]):
                continue
            text = reveal(file.text, secrets) if secrets else file.text
            private = bool(secrets and secrets_in(file.text))
            _write(path, text, 0o600 if private else int(file.mode, 8) | 0o200)
            written[file] = path


def _manifest(tree: Tree) -> str:
    """Return the manifest of a tree as JSON. Hosts with the same files share most of the work."""
    entries = {
        files: json.dumps(manifest(files), indent=2).replace("\n", "\n  ")
        for files in {*tree.values()}
    }
    hosts = (f"  {json.dumps(host)}: {entries[files]}" for host, files in tree.items())
    return "{\n" + ",\n".join(hosts) + "\n}\n"


def _secret_names(tree: Tree) -> set[str]:
    every = {file for files in tree.values() for file in files}
    return {name for file in every for name in secrets_in(file.text)}


def _link(path: Path, same: Path) -> bool:
    """Write a file as a hard link to another one; return whether the file system can do so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    try:
        path.hardlink_to(same)
    except OSError:
        return False
    return True


def _write(path: Path, text: str, mode: int) -> None:
    """Write a file with a mode; only its owner can read it until it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_text(text)
    path.chmod(mode)


def write_atomically(path: Path, text: str) -> None:
    """Replace a file atomically: nobody sees it half written."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text(text)
    fresh.replace(path)


def find(root: Path, which: str | None) -> RunDir:
    """Open the newest of the runs that `which` names."""
    return named(root, which)[-1]


def named(root: Path, which: str | None) -> list[RunDir]:
    """Return the runs that a directory, an id, or a scenario's name or file stands for.

    The newest is last. None stands for all runs. Raises NoSuchRun if there is no run.
    """
    if which and _has_facts(Path(which)):
        return [RunDir(Path(which))]
    runs = all_runs(root)
    names = {Path(which).name, Path(which).stem} if which else set()
    if which:
        runs = [run for run in runs if which == run.id or run.path.parent.name in names]
    if not runs:
        for path, problem in unreadable(root).items():
            if not which or which == id_of(path) or path.parent.name in names:
                raise problem
        raise NoSuchRun(
            f"no run {which or ''} under {root}".replace("  ", " "),
            hint="`harness status` lists the runs, `harness up SCENARIO` starts one",
        )
    return runs


def all_runs(root: Path) -> list[RunDir]:
    """Return all readable runs of this user, the newest last."""
    return sorted(
        (run for run in _opened(root).values() if isinstance(run, RunDir)),
        key=lambda run: run.started,
    )


def unreadable(root: Path) -> dict[Path, UsageError]:
    """Return the directories of this user's runs that cannot be read, and why."""
    return {path: run for path, run in _opened(root).items() if isinstance(run, UsageError)}


def _opened(root: Path) -> dict[Path, RunDir | UsageError]:
    """Return this user's runs by their directories.

    Other users' runs in the same place are left out.
    """
    runs: dict[Path, RunDir | UsageError] = {}
    for path in sorted(root.glob("*/[0-9]*")):
        if file_ownership.is_own(path) and _has_facts(path):
            try:
                runs[path] = RunDir(path)
            except UsageError as error:
                runs[path] = error
    return runs


def _has_facts(path: Path) -> bool:
    try:
        return (path / "run.json").exists()
    except PermissionError:  # another user's
        return False


def id_of(path: Path) -> str:
    """Return the id of the run in a directory whose run.json may be unreadable."""
    return "-".join(path.resolve().parts[-2:])


def control_directories() -> list[Path]:
    """Return the directories of SSH sockets of this user's runs, including runs that have ended."""
    return [
        path
        for path in sorted(Path(tempfile.gettempdir()).glob(f"{CONTROL}*"))
        if _CONTROL.fullmatch(path.name) and file_ownership.is_own(path) and path.is_dir()
    ]


def token_of(control_directory: Path) -> str:
    """Return the last six characters of the id of the run whose sockets are in a directory."""
    return control_directory.name.removeprefix(CONTROL)[:6]


def remove_control_directories(run_id: str, run: RunDir | None) -> None:
    """Remove the sockets of a run's shared connections; its directory may be lost."""
    directories = {path for path in control_directories() if token_of(path) == run_id[-6:]}
    if run and file_ownership.is_own(run.control_directory):
        directories.add(run.control_directory)
    for path in directories:
        with suppress(OSError):
            for socket in path.iterdir():
                socket.unlink(missing_ok=True)  # ssh may remove its socket meanwhile
            path.rmdir()


def _point(link: Path, target: str) -> None:
    """Point a symbolic link to a target, atomically."""
    fresh = link.with_name(f".{link.name}-{target}")
    fresh.symlink_to(target)
    fresh.replace(link)
