"""One run's directory: everything that was decided, rendered, seen and judged. Also ansible-runner's directory.

scenario.yml run.json ssh_config known_hosts events.jsonl report.json junit.xml report.html
tree/HOST/...        the rendered files, without secrets; tree/manifest.json
secrets/             0700: keys and passwords of this run
inventory/hosts.yml  Ansible's inventory
artifacts/ logs/     what Ansible and the daemons said
schedmd-suite/       report.json of `harness schedmd-suite`, and the output of tests that did not pass
"""

from __future__ import annotations

import json
import re
import secrets as random_secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from pydantic import BaseModel
from ruamel.yaml import YAML

from harness import events, plain_json, plain_yaml, private
from harness import scenario as scenario_file
from harness.errors import UsageError
from harness.inventory import Machine, ssh_config
from harness.options import Offers, is_secret, reveal, secrets_in
from harness.plan import Plan, make_plan
from harness.render import Tree, manifest
from harness.scenario import User
from harness.ssh import Ssh

# Directories in which SSH keeps sockets are called so, followed by the last six characters of the run's id.
CONTROL = "harness-"
_CONTROL = re.compile(rf"{CONTROL}[0-9a-f]{{6}}(-[0-9a-f]{{12}})?")


class _Facts(BaseModel):
    """What every run.json has; older ones lack more."""

    id: str
    scenario: str
    scenario_path: str
    provider: str
    offers: Offers
    releases: dict[str, str]
    started: str
    settings: list[str] = []
    control_directory: str = ""


class RunDir:
    """A run's directory. `create` makes one, `RunDir(path)` opens one that is there.

    UsageError if it is none, or another user could have written what is in it: its ssh_config runs commands.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        try:
            text = (self.path / "run.json").read_text(encoding="utf-8", errors="replace")
            reason = private.exposed(self.path)
        except OSError as error:
            raise UsageError(f"{path} is not a run's directory", hint="`harness status` lists the runs") from error
        if reason:
            raise UsageError(
                f"{path} is not opened, because its files run commands, and {reason}",
                hint=f"a run is opened by its owner; if all in it is yours: chmod -R go-w {self.path}",
            )
        try:
            self._facts = plain_json.load(text)
            facts = _Facts.model_validate(self._facts)
        except ValueError as error:
            raise UsageError(
                f"{self.path / 'run.json'} is empty, incomplete or not of this version of the harness",
                hint=f"`harness down {self.path}` removes the run's hosts, if there are any; then remove the directory",
            ) from error
        self.id = facts.id
        self.provider = facts.provider
        self.started = facts.started
        self.scenario_path = facts.scenario_path
        self.settings = facts.settings
        self._offers = facts.offers
        older = f"{tempfile.gettempdir()}/{CONTROL}{self.id[-6:]}"
        self._control_directory = Path(facts.control_directory or older)

    @classmethod
    def create(cls, root: Path, scenario_path: Path, plan: Plan, provider: str, settings: Sequence[str] = ()) -> RunDir:
        """Make the directory of a new run under `root`; two runs in the same second get different ones."""
        started = datetime.now(UTC)
        token = random_secrets.token_hex(3)
        path = root / plan.name / f"{started:%Y%m%dT%H%M%S}-{token}"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir(mode=0o700)  # others must not read logs and job scripts, or write an ssh_config
        except OSError as error:
            raise UsageError(
                f"{root} cannot be written: {error.strerror}", hint="--runs or HARNESS_RUNS names another directory"
            ) from error
        shutil.copyfile(scenario_path, path / "scenario.yml")
        facts = {
            "id": f"{plan.name}-{started:%Y%m%dT%H%M%S}-{token}",
            "scenario": plan.name,
            "scenario_path": str(scenario_path),
            "settings": [*settings],
            "provider": provider,
            "offers": asdict(plan.offers),
            "releases": plan.releases(),  # the user and the images have a say in this, not only the scenario
            "started": started.isoformat(),
            # Nobody can guess it, and make it first.
            "control_directory": f"{tempfile.gettempdir()}/{CONTROL}{token}-{random_secrets.token_hex(6)}",
        }
        _replace(path / "run.json", json.dumps(facts, indent=2))
        _point(root / plan.name / "latest", path.name)
        return cls(path)

    @property
    def root(self) -> Path:
        """Where this run and others have their directories."""
        return self.path.parent.parent

    @property
    def ssh_config(self) -> Path:
        """The configuration with which `ssh -F` reaches every host by name."""
        return self.path / "ssh_config"

    @property
    def events_path(self) -> Path:
        """What happened when, one JSON object a line."""
        return self.path / "events.jsonl"

    @property
    def machines(self) -> Path:
        """Where hosts that come and go have their parts of ssh_config."""
        return self.path / "machines"

    @property
    def control_directory(self) -> Path:
        """Where SSH keeps the sockets of its shared connections; their paths must stay under 104 characters."""
        return self._control_directory

    def ssh(self) -> Ssh:
        """Return what runs commands on this run's hosts."""
        return Ssh(self.ssh_config, self.control_directory, sudo=not self._offers.root)

    @contextmanager
    def worked_on(self) -> Iterator[None]:
        """Note that a process works on the run; `is_abandoned` tells when it has ended without coming to its end."""
        path = self.path / "working.lock"
        with FileLock(path):
            try:
                yield
            finally:
                path.unlink(missing_ok=True)

    def is_worked_on(self) -> bool:
        """Tell whether a process works on the run."""
        return self._working() is True

    def is_abandoned(self) -> bool:
        """Tell whether the process that worked on the run was killed."""
        return self._working() is False

    def _working(self) -> bool | None:
        """Tell whether the process that works on the run still does; None if there is none to be noted."""
        path = self.path / "working.lock"
        if not path.exists():
            return None
        try:
            with FileLock(path, timeout=0):
                return False
        except Timeout:
            return True

    def plan(self, choices: Sequence[str] = ()) -> Plan:
        """Return the plan of this run, made again from its scenario; `choices` put it on other releases."""
        choices = [*(f"{name}={release}" for name, release in self._facts["releases"].items()), *choices]
        scenario = scenario_file.load(self.path / "scenario.yml", choices, settings=self.settings)
        return make_plan(self._facts["scenario"], scenario, self._offers)

    def add_users(self, users: Mapping[str, User]) -> None:
        """Give the run's own copy of its scenario more users; `plan` knows them from now on."""
        path = self.path / "scenario.yml"
        data = plain_yaml.load(path.read_text())
        data.setdefault("users", {}).update({name: {"uid": user.uid} for name, user in users.items()})
        with path.open("w") as file:
            YAML().dump(data, file)

    def upgraded(self, plan: Plan) -> None:
        """Note that the run is on the releases of a plan now."""
        self._facts["releases"] = plan.releases()
        _replace(self.path / "run.json", json.dumps(self._facts, indent=2))

    def write_tree(self, tree: Tree) -> None:
        """Write the rendered files of every host, without secrets, to tree/."""
        write_rendered(self.path / "tree", tree, with_secrets=False)

    def make_secrets(self, tree: Tree) -> None:
        """Make what the tree wants of secrets, and the keys for SSH; what is there already stays."""
        for name in ("secrets", "keys"):
            (self.path / name).mkdir(mode=0o700, exist_ok=True)
        for key in (self.key("ssh_key"), self.key("ssh_host_key")):
            if not key.exists():
                _keygen(key, self.id)
        there = self.secrets()
        for name, value in new_secrets(tree).items():
            if name not in there:
                _write(self.path / "secrets" / name, value, 0o600)

    def secrets(self) -> dict[str, str]:
        """Return the values of the secrets in this run's files."""
        return {path.name: path.read_text() for path in (self.path / "secrets").iterdir()}

    def key(self, name: str) -> Path:
        """Return the file of an SSH key of this run."""
        return self.path / "keys" / name

    def own_ssh_config(self, machines: Sequence[Machine]) -> str:
        """Return a configuration for ssh(1) with this run's keys, and note the key that its hosts show."""
        known_hosts = self.path / "known_hosts"
        known_hosts.write_text(f"harness {self.key('ssh_host_key.pub').read_text()}")
        return ssh_config(machines, self.key("ssh_key"), known_hosts, self.control_directory, self.machines)

    def event(self, kind: str, **facts: Any) -> None:
        """Add a line to events.jsonl."""
        line = json.dumps({"time": datetime.now(UTC).isoformat(), "kind": kind, **facts})
        with self.events_path.open("a") as file:
            file.write(line + "\n")

    def events(self) -> Iterable[dict[str, Any]]:
        """Return what happened so far, oldest first; CannotJudge if the file is damaged."""
        return events.read(self.events_path)


def write_rendered(directory: Path, tree: Tree, *, with_secrets: bool) -> None:
    """Write DIRECTORY/HOST/path for every file and DIRECTORY/manifest.json.

    Without `with_secrets`, marks stand where secrets belong, and files that are nothing but a secret are left out.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "manifest.json").write_text(json.dumps(manifest(tree), indent=2) + "\n")
    secrets = new_secrets(tree) if with_secrets else None
    for host, files in tree.items():
        for file in files:
            if secrets is None and is_secret(file.text):
                continue
            text = reveal(file.text, secrets) if secrets else file.text
            private = bool(secrets and secrets_in(file.text))
            _write(
                directory / host / file.path.lstrip("/"),
                text,
                0o600 if private else int(file.mode, 8) | 0o200,
            )


def new_secrets(tree: Tree) -> dict[str, str]:
    """Return fresh random values for all secrets that a tree wants. NAME_ssh_key is a key, NAME_ssh_key_pub a half."""
    wanted = {name for files in tree.values() for file in files for name in secrets_in(file.text)}
    found = {name: value for name in wanted if name.endswith("_ssh_key") for name, value in _ssh_key(name).items()}
    # munge wants at least 32 bytes; text suits passwords too.
    return found | {name: random_secrets.token_hex(32) for name in sorted(wanted - found.keys())}


def _ssh_key(name: str) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as directory:
        key = Path(directory) / name
        _keygen(key, name)
        return {name: key.read_text(), f"{name}_pub": key.with_suffix(".pub").read_text().strip()}


def _keygen(path: Path, comment: str) -> None:
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


def _write(path: Path, text: str, mode: int) -> None:
    """Write a file that nobody but its owner can read before it has its mode."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_text(text)
    path.chmod(mode)


def _replace(path: Path, text: str) -> None:
    """Write a file that is never seen half written."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text(text)
    fresh.replace(path)


def find(root: Path, which: str | None) -> RunDir:
    """Open the newest of the runs that `which` names."""
    return named(root, which)[-1]


def named(root: Path, which: str | None) -> list[RunDir]:
    """Return the runs of a directory, an id, or a scenario's name or file, the newest last; unset, all. Never none."""
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
        raise UsageError(
            f"no run {which or ''} under {root}".replace("  ", " "), hint="`harness up SCENARIO` starts one"
        )
    return runs


def all_runs(root: Path) -> list[RunDir]:
    """Return all runs of this user's that can be read, the newest last."""
    return sorted((run for run in _opened(root).values() if isinstance(run, RunDir)), key=lambda run: run.started)


def unreadable(root: Path) -> dict[Path, UsageError]:
    """Return the directories of this user's runs that cannot be read, and why."""
    return {path: run for path, run in _opened(root).items() if isinstance(run, UsageError)}


def _opened(root: Path) -> dict[Path, RunDir | UsageError]:
    """Return this user's runs by their directories. Other users' may be there, too: they are not ours to read."""
    found: dict[Path, RunDir | UsageError] = {}
    for path in sorted(root.glob("*/[0-9]*")):
        if private.is_own(path) and _has_facts(path):
            try:
                found[path] = RunDir(path)
            except UsageError as error:
                found[path] = error
    return found


def _has_facts(path: Path) -> bool:
    try:
        return (path / "run.json").exists()
    except PermissionError:  # another user's
        return False


def id_of(path: Path) -> str:
    """Return the id of the run with a directory, whose run.json may be unreadable."""
    return "-".join(path.resolve().parts[-2:])


def control_directories() -> list[Path]:
    """Return the directories in which SSH keeps, or kept, sockets of this user's runs."""
    found = sorted(Path(tempfile.gettempdir()).glob(f"{CONTROL}*"))
    return [path for path in found if _CONTROL.fullmatch(path.name) and private.is_own(path) and path.is_dir()]


def token_of(control_directory: Path) -> str:
    """Return with what the id of the run ends whose sockets are in a directory."""
    return control_directory.name.removeprefix(CONTROL)[:6]


def remove_control_directories(run_id: str, run: RunDir | None) -> None:
    """Remove the sockets of a run's shared connections; its directory may be lost."""
    found = {path for path in control_directories() if token_of(path) == run_id[-6:]}
    for path in found | ({run.control_directory} if run and private.is_own(run.control_directory) else set()):
        with suppress(OSError):
            for socket in path.iterdir():
                socket.unlink()
            path.rmdir()


def _point(link: Path, target: str) -> None:
    fresh = link.with_name(f".{link.name}-{target}")
    fresh.symlink_to(target)
    fresh.replace(link)
