"""Compare two configurations, and say what a running cluster needs to apply the changes."""

from __future__ import annotations

import difflib
import hashlib
import re
import secrets
import shlex
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path, PurePosixPath
from typing import Annotated, NamedTuple

from pydantic import BaseModel, StringConstraints, TypeAdapter

from harness import releases, run_secrets
from harness.errors import UsageError
from harness.parsing import bounded_json, bounded_yaml, conf, hostlist
from harness.plan import Plan
from harness.releases import Needs, Release
from harness.render import Tree
from harness.slurmconf import canonical
from harness.slurmconf.check.nodes import names_of, node_names
from harness.slurmconf.check.parsed_file import (
    KINDS,
    OTHER_KINDS,
    Configuration,
    Row,
    Source,
    leads_outside,
    load,
)
from harness.ssh import Ssh

_SLURM = PurePosixPath("/etc/slurm")
_SLURM_CONF = str(_SLURM / "slurm.conf")
_SALT = secrets.token_bytes(16)
_UPGRADE = "slurmdbd first, then slurmctld, then slurmd; `harness check --from` lists what changes"
_Files = tuple[tuple[str, str], ...]
# Device and inode of a file -> its text.
_Seen = dict[tuple[int, int], str]
# Each of 128K hosts takes about two kilobytes.
_MOST_BYTES_OF_A_MANIFEST = 256 * 2**20
# Lines that define something by a name that occurs once. Lines of other files, such as gres.conf,
# do not.
_NAMING = {
    *(
        ("slurm.conf", key)
        for key in ("nodename", "partitionname", "nodeset", "downnodes", "frontendname")
    ),
    *(("topology.conf", key) for key in ("switchname", "blockname")),
}
_OF_HOSTS = {"nodename", "downnodes", "frontendname"}
_OLD_CONTROLLERS = ("controlmachine", "controladdr", "backupcontroller", "backupaddr")
# Options that can have a value for each name in their line.
_PER_NAME = ("nodehostname", "nodeaddr", "bcastaddr", "port")
# The program that creates accounts, users and QOS, and the objects and options in it.
_OBJECTS = "/usr/local/sbin/slurm-accounting-objects"
_ADDED = re.compile(r"\badd ((?:qos|account|federation) \S+)")
_ADDED_USERS = re.compile(r"^ *add_users (\S+) (\S+)", re.MULTILINE)
_SET = re.compile(
    r"^ *set_options (\w+) (?:where name=)?(\S+)((?: \w+=\S+)*) set (.*)", re.MULTILINE
)
# What changed files of the system need.
_SYSTEM = {
    "/etc/sysusers.d": "run systemd-sysusers",
    "/etc/tmpfiles.d": "run systemd-tmpfiles --create",
}
# What the words of releases/needed_actions.toml mean.
NEEDS = {
    "all": "restart slurmctld and every slurmd",
    "copy": "copy it",
    "nothing": "nothing: only commands read it",
    "objects": f"run {_OBJECTS}",
    "reconfigure": "scontrol reconfigure",
    "reload": "systemctl reload slurmdbd",
    "sacctmgr": "change it with sacctmgr",
    "slurmctld": "restart slurmctld",
    "slurmd": "restart every slurmd",
    "slurmdbd": "restart slurmdbd",
    "state": "stop slurmctld first",
    "stop": "stop every daemon first",
    "upgrade": "upgrade Slurm",
}
_REMOVED_NODES = re.compile("NodeName .* removed", re.IGNORECASE)
# The steps, in their order.
STEPS = {
    "stop": "stop slurmd, slurmctld and slurmdbd on all hosts",
    "upgrade": "upgrade Slurm: slurmdbd first, then slurmctld, then slurmd",
    "copy": "copy the files to their hosts",
    "state": "stop slurmctld, change saved state or database as described above, start slurmctld",
    "units": "",
    "slurmdbd": "restart slurmdbd",
    "reload": "systemctl reload slurmdbd",
    "start slurmdbd": "start slurmdbd",
    "objects": f"run {_OBJECTS}",
    "start": "start slurmctld, then slurmd",
    "all": "stop slurmctld, restart slurmd on all nodes, start slurmctld",
    "slurmctld": "restart slurmctld",
    "slurmd": "restart slurmd on all nodes",
    "reconfigure": "scontrol reconfigure",
    "sacctmgr": "change accounts, users and QOS with sacctmgr as described above",
}
# Steps that make others unnecessary.
_COVERED = {
    "stop": {"slurmdbd", "reload", "all", "slurmctld", "slurmd", "reconfigure"},
    "slurmdbd": {"reload"},
    "all": {"slurmctld", "slurmd", "reconfigure"},
}


class _Facts(BaseModel):
    """What `harness diff` uses of a manifest's facts about a file."""

    unit: str | None
    action: str | None


_HostName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]*$")]
_Manifest = dict[_HostName, dict[str, _Facts]]
_MANIFEST: TypeAdapter[_Manifest] = TypeAdapter(_Manifest)


@dataclass(frozen=True, slots=True)
class ConfigurationSource:
    """One of two configurations: host -> path -> text.

    A plain directory has one host without a name, and paths relative to the directory. `releases`
    are those of the hosts, as far as they are known; `controllers` are the hosts whose /etc/slurm
    represents their cluster's; `units` maps a path to the action, "restart" or "reload", that a
    change of the file requires, and the unit.
    """

    label: str
    hosts: Mapping[str, Mapping[str, str]]
    releases: Mapping[str, str] = field(default_factory=dict)
    controllers: Sequence[str] = ()
    units: Mapping[str, tuple[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Change:
    """An option or file that differs; `before` or `after` is None where it is not set.

    `needs` is a word of releases/needed_actions.toml, or a command such as "restart UNIT" for files
    that are not Slurm's. `nodes` are the nodes to drain; they are empty unless `drain`.
    """

    hosts: str
    file: str
    option: str
    before: str | None
    after: str | None
    needs: str
    drain: bool
    why: str
    nodes: str = ""


@dataclass(frozen=True, slots=True)
class FileDiff:
    """A file that differs in the same way on some hosts."""

    hosts: str
    path: str
    text: str


def directory_source(path: Path) -> ConfigurationSource:
    """Return one file, a directory such as /etc/slurm, or what `harness render` wrote.

    If a link leads out of the directory, its target is not shown, because it can be any file of
    this machine. Raises UsageError if that is one of Slurm's files, or if a file cannot be read.
    """
    if path.is_file():
        kind = path.name if path.name in {*KINDS, *OTHER_KINDS} else "slurm.conf"
        return ConfigurationSource(str(path), {"": {kind: _read(path, path.parent, {})}})
    if (path / "manifest.json").exists():
        return _tree_source(path, _manifest(path / "manifest.json"))
    return ConfigurationSource(str(path), {"": _texts(path, path, {})})


def _manifest(path: Path) -> _Manifest:
    """Read the manifest that `harness render` writes; raise UsageError if it is something else."""
    try:
        return _MANIFEST.validate_python(
            bounded_json.load(conf.read_text(path, _MOST_BYTES_OF_A_MANIFEST))
        )
    except ValueError as error:
        raise UsageError(
            f"{path} is not the manifest of a rendered tree", hint="`harness render` writes one"
        ) from error


def _tree_source(path: Path, manifest: _Manifest) -> ConfigurationSource:
    seen: _Seen = {}
    hosts = {
        host: {f"/{name}": text for name, text in _texts(path / host, path, seen).items()}
        for host in manifest
    }
    return ConfigurationSource(
        str(path),
        hosts,
        controllers=[
            host
            for host, files in manifest.items()
            if _SLURM_CONF in files and files[_SLURM_CONF].unit == "slurmctld"
        ],
        units={
            name: (str(facts.action), facts.unit)
            for files in manifest.values()
            for name, facts in files.items()
            if facts.unit
        },
    )


def _texts(path: Path, directory: Path, seen: _Seen) -> dict[str, str]:
    return {
        _name(file.relative_to(path)): _read(file, directory, seen)
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


def _name(path: Path) -> str:
    """Return the name of a file, which need not be UTF-8, as text."""
    return str(path).encode(errors="surrogateescape").decode(errors="replace")


def _read(path: Path, directory: Path, seen: _Seen) -> str:
    """Return a file's text with hashes in place of passwords: they show whether passwords differ.

    If a link leads to a file outside of the directory, a hash replaces its whole text. Files that
    are hard links to one another, as in a rendered tree, are read once: `seen` keeps their text.
    """

    def hidden(text: str) -> str:
        return f"hidden-{hashlib.sha256(_SALT + text.encode()).hexdigest()[:6]}"

    outside = leads_outside(path, directory)
    if outside and path.name in {*KINDS, *OTHER_KINDS}:
        raise UsageError(
            f"{path} is a link to a file outside of its directory",
            hint=f"name {path.resolve()} itself",
        )
    if outside:
        return f"# outside of this directory: {hidden(conf.read_text(path))}\n"
    facts = path.stat()
    inode = facts.st_dev, facts.st_ino
    if inode not in seen:
        seen[inode] = run_secrets.PASSWORD.sub(
            lambda match: f"{match[1]}{hidden(match[2])}", conf.read_text(path)
        )
    return seen[inode]


def plan_source(label: str, plan: Plan, tree: Tree) -> ConfigurationSource:
    """Return what a plan renders to, without files that consist of a secret."""
    return ConfigurationSource(
        label,
        {
            host: {file.path: file.text for file in files if not run_secrets.is_secret(file.text)}
            for host, files in tree.items()
        },
        {host.name: host.release for host in plan.hosts},
        [host.name for host in plan.with_daemon("slurmctld")],
        {
            file.path: (file.action, file.unit)
            for files in tree.values()
            for file in files
            if file.action and file.unit
        },
    )


def hosts_source(
    label: str, plan: Plan, tree: Tree, ssh: Ssh, values: Mapping[str, str]
) -> ConfigurationSource:
    """Return the files that running hosts actually have.

    They are the files of the tree, and other files of Slurm that no package owns. Marks replace the
    `values` of secrets.
    """
    rendered = plan_source(label, plan, tree)

    def fetch(host: str) -> tuple[str, dict[str, str]]:
        rendered_files = "\n".join(rendered.hosts[host])
        # Asking for owners takes long, so ask for each file only if a package lacks one of them.
        script = f"""
            set -f
            rendered={shlex.quote(rendered_files)} owner="{plan.host(host).family.owner_of_file}"
            others=$(find {_SLURM} -type f 2> /dev/null | grep --line-regexp -vF "$rendered")
            [ -z "$others" ] || $owner $others > /dev/null 2>&1 || own=$(
                for file in $others; do $owner $file > /dev/null 2>&1 || echo $file; done)
            for file in $( (ls -1 $rendered 2> /dev/null; echo "${{own-}}") | sort -u); do
                printf '\\0%s\\0' "$file"; cat "$file"
            done"""
        _, *parts = ssh.run(host, ["sh", "-c", script]).stdout.split("\0")
        texts = zip(parts[::2], parts[1::2], strict=False)
        # Names of files on a host are not trusted, because the files are written to a directory
        # here.
        return host, {
            path: run_secrets.hide(text, values)
            for path, text in texts
            if ".." not in PurePosixPath(path).parts
        }

    with ThreadPoolExecutor(8) as pool:
        return replace(rendered, hosts=dict(pool.map(fetch, rendered.hosts)))


def matched(
    before: ConfigurationSource, after: ConfigurationSource
) -> tuple[ConfigurationSource, ConfigurationSource]:
    """Return both configurations with the same hosts.

    If one is a plain directory, the other becomes its /etc/slurm of one cluster. Raises ValueError
    if there are several clusters to choose from.
    """
    plain = [set(source.hosts) == {""} for source in (before, after)]
    if plain == [True, False]:
        return before, _as_directory(after, before)
    if plain == [False, True]:
        return _as_directory(before, after), after
    return before, after


def _as_directory(source: ConfigurationSource, like: ConfigurationSource) -> ConfigurationSource:
    cluster = _cluster_name(like.hosts[""].get("slurm.conf", ""))
    matching = [
        host
        for host in source.controllers
        if _cluster_name(_slurm_files(source.hosts[host]).get("slurm.conf", "")) == cluster
    ]
    chosen = matching or (list(source.controllers) if len(source.controllers) == 1 else [])
    if not chosen and cluster:
        raise ValueError(
            f"{like.label} is of cluster {cluster}, which {source.label} does not have"
        )
    if not chosen:
        raise ValueError(
            f"{like.label} has no ClusterName, and {source.label} has several clusters"
        )
    files = dict(_slurm_files(source.hosts[chosen[0]]))
    slurmdbd = next(
        (
            files_["slurmdbd.conf"]
            for files_ in map(_slurm_files, source.hosts.values())
            if "slurmdbd.conf" in files_
        ),
        None,
    )
    if slurmdbd is not None and "slurmdbd.conf" in like.hosts[""]:
        files["slurmdbd.conf"] = slurmdbd
    elif "slurmdbd.conf" not in like.hosts[""]:
        files.pop("slurmdbd.conf", None)
    release = source.releases.get(chosen[0])
    return ConfigurationSource(source.label, {"": files}, {"": release} if release else {})


def _cluster_name(slurm_conf: str) -> str:
    lines = (line.split("#")[0].partition("=") for line in slurm_conf.splitlines())
    return next(
        (value.strip().lower() for key, _, value in lines if key.strip().lower() == "clustername"),
        "",
    )


def _slurm_files(files: Mapping[str, str]) -> Mapping[str, str]:
    """Return the files of /etc/slurm by their paths in it."""
    names = {path: _in_slurm(path) for path in files}
    return {name: files[path] for path, name in names.items() if name is not None}


@lru_cache
def _in_slurm(path: str) -> str | None:
    """Return the path of a file in /etc/slurm; None if it is somewhere else."""
    if not path.startswith("/"):
        return path
    whole = PurePosixPath(path)
    return str(whole.relative_to(_SLURM)) if whole.is_relative_to(_SLURM) else None


def file_diffs(before: ConfigurationSource, after: ConfigurationSource) -> list[FileDiff]:
    """Return the unified diffs of all files; hosts with the same diff share one."""
    hosts_of: dict[tuple[str, str | None, str | None], list[str]] = {}
    for host in dict.fromkeys((*before.hosts, *after.hosts)):
        old, new = before.hosts.get(host, {}), after.hosts.get(host, {})
        for path in dict.fromkeys((*old, *new)):
            if old.get(path) != new.get(path):
                hosts_of.setdefault((path, old.get(path), new.get(path)), []).append(host)
    diffs: dict[tuple[str, str], list[str]] = {}
    for (path, *texts), hosts in hosts_of.items():
        old_lines, new_lines = ((text or "").splitlines(keepends=True) for text in texts)
        old_name, new_name = ("/dev/null" if text is None else path for text in texts)
        diff = "".join(
            line if line.endswith("\n") else f"{line}\n"
            for line in difflib.unified_diff(old_lines, new_lines, old_name, new_name)
        )
        diffs.setdefault((path, diff), []).extend(hosts)
    return [FileDiff(_folded(hosts), path, text) for (path, text), hosts in diffs.items()]


def changes(
    before: ConfigurationSource, after: ConfigurationSource, release: str | None = None
) -> list[Change]:
    """Return the options that differ, with what each change needs in a release.

    The default is the release of each host.
    """
    groups: dict[tuple[str, _Files, _Files], list[str]] = {}
    differing: list[Change] = []
    for host in before.hosts:
        if host not in after.hosts:
            continue
        older, newer = before.releases.get(host), after.releases.get(host)
        if older and newer and older != newer and not release:
            differing.append(Change(host, "", "Slurm", older, newer, "upgrade", False, _UPGRADE))
        old, new = (
            tuple(sorted(_slurm_files(source.hosts[host]).items())) for source in (before, after)
        )
        if old != new:
            known = release or newer or older or releases.DEFAULT
            groups.setdefault((known, old, new), []).append(host)
    for (name, old, new), hosts in groups.items():
        differing += _slurm_changes(dict(old), dict(new), name, _folded(hosts))
    # One host has the program; with a different AuthType, it is a different host.
    (_, old_program), (host, program) = map(_program, (before, after))
    differing += _object_changes(host, old_program, program)
    units = {**before.units, **after.units}
    for diff in file_diffs(before, after):
        if (
            diff.path != _OBJECTS
            and diff.path.startswith("/")
            and not PurePosixPath(diff.path).is_relative_to(_SLURM)
        ):
            needs = _SYSTEM.get(str(PurePosixPath(diff.path).parent))
            needs = needs or " ".join(units.get(diff.path, ()))
            differing.append(Change(diff.hosts, diff.path, "", None, None, needs, False, ""))
    return _merged([*differing, *_keys_for(differing)])


def _keys_for(changes_: Sequence[Change]) -> Iterator[Change]:
    """Yield what a different AuthType needs in addition to the options; keys are not compared."""
    for change in changes_:
        if change.option.lower() != "authtype":
            continue
        new = partial(Change, change.hosts, option="", before=None, after=None, drain=False)
        same = "the same key on all hosts"
        if change.after in {"auth/slurm", "slurm"}:
            yield new("/etc/slurm/slurm.key", needs="copy", why=f"{same}; owner SlurmUser, 0600")
            yield new("munge.service", needs="disable --now munge", why="if nothing else needs it")
        else:
            why = f"{same}; owner munge, 0400"
            yield new("/etc/munge/munge.key", needs="enable --now munge", why=why)


def _program(source: ConfigurationSource) -> tuple[str, str]:
    """Return the host with the program that creates the accounting objects, and the program."""
    found = ((host, files[_OBJECTS]) for host, files in source.hosts.items() if _OBJECTS in files)
    return next(found, ("", ""))


def _object_changes(hosts: str, before: str, after: str) -> Iterator[Change]:
    """Yield which accounts, users and QOS differ: the program adds them, but removes none."""
    change = partial(Change, hosts, _OBJECTS, drain=False)
    old, new = map(_objects, (before, after))
    old_options, new_options = map(_object_options, (before, after))
    for name in sorted(new - old):
        yield change(f"{name} added", None, new_options.get(name, ""), "objects", why="")
    for name in sorted(old - new):
        why = f"sacctmgr delete {name}"
        yield change(f"{name} removed", old_options.get(name, ""), None, "sacctmgr", why=why)
    added_or_removed = tuple(f"{name} " for name in old ^ new)
    for name in sorted({*old_options, *new_options}):
        if f"{name} ".startswith(added_or_removed):
            continue
        values = old_options.get(name, ""), new_options.get(name, "")
        first, second = ([word.partition("=")[0] for word in value.split()] for value in values)
        unset = [option for option in first if option not in second]
        if unset:
            why = f"reset {', '.join(unset)} with sacctmgr modify {name}"
            yield change(name, *values, "sacctmgr", why=why)
        elif values[0] != values[1]:
            yield change(name, *values, "objects", why="")


def _objects(program: str) -> set[str]:
    """Return the objects that the program adds; it adds several users at once."""
    users = {
        f"user {user} account={account}"
        for names, account in _ADDED_USERS.findall(program)
        for user in names.split(",")
    }
    return {*_ADDED.findall(program)} | users


def _object_options(program: str) -> dict[str, str]:
    """Return the options that the program sets, by object.

    An object may be "user alice account=physics cluster=alpha".
    """
    options_of: dict[str, list[str]] = {}
    for kind, names, where, options in _SET.findall(program):
        for name in names.split(","):
            options_of.setdefault(f"{kind} {name}{where}", []).append(options)
    return {name: " ".join(options) for name, options in options_of.items()}


def _merged(changes_: Sequence[Change]) -> list[Change]:
    """Merge changes that are the same on several groups of hosts."""
    hosts: dict[Change, list[str]] = {}
    for change in changes_:
        key = Change("", *(getattr(change, name) for name in change.__slots__[1:]))
        hosts.setdefault(key, []).append(change.hosts)
    return [
        Change(
            _folded(hostlist.expand(",".join(filter(None, of)))) if any(of) else "",
            *(getattr(key, name) for name in key.__slots__[1:]),
        )
        for key, of in hosts.items()
    ]


def needed(changes_: Sequence[Change]) -> list[str]:
    """Return what applies all changes to a running cluster, in order.

    That is keys of STEPS, and commands such as "restart UNIT"; steps that others cover are left
    out. Nodes to drain come first: see `drained`.
    """
    needs = {change.needs for change in changes_}
    covered = set().union(*(_COVERED.get(need, set()) for need in needs))
    needs = (needs - covered) | {"copy"} if changes_ else set()
    if "stop" in needs:
        needs |= {"start slurmdbd", "start"}
    commands = sorted(need for need in needs if " " in need and need not in STEPS)
    return [
        step
        for need in STEPS
        for step in (commands if need == "units" else [need] * (need in needs))
    ]


def drained(changes_: Sequence[Change]) -> str | None:
    """Return the nodes to drain before the first step; None if there are none, "" if unknown."""
    return _nodes_to_drain(changes_, set())


def resumed(changes_: Sequence[Change]) -> str | None:
    """Return the nodes to resume after the last step, as `drained` does: those that still exist."""
    removing = [change for change in changes_ if _REMOVED_NODES.fullmatch(change.option)]
    removed = {name for change in removing for name in names_of(change.nodes) or ()}
    nodes = _nodes_to_drain(changes_, removed)
    return None if nodes == "" and drained(changes_) else nodes


def _nodes_to_drain(changes_: Sequence[Change], without: set[str]) -> str | None:
    draining = [change for change in changes_ if change.drain]
    names = dict.fromkeys(name for change in draining for name in names_of(change.nodes) or ())
    return hostlist.fold([name for name in names if name not in without]) if draining else None


def steps(changes_: Sequence[Change]) -> list[str]:
    """Return the steps, in order, that apply all changes to a running cluster."""
    listed = [STEPS.get(need, need) for need in needed(changes_)]
    if (nodes := drained(changes_)) is None:
        return listed
    unknown = "the affected nodes"
    resuming = [f"resume {left or unknown}" for left in [resumed(changes_)] if left is not None]
    return [f"drain {nodes or unknown}, and wait until they have no jobs", *listed, *resuming]


def _slurm_changes(
    old: Mapping[str, str], new: Mapping[str, str], release: str, hosts: str
) -> Iterator[Change]:
    with tempfile.TemporaryDirectory() as directory:
        before, after = (
            _load(Path(directory) / name, files, release)
            for name, files in (("before", old), ("after", new))
        )
        yield from compare(before, after, release, hosts)


def _load(directory: Path, files: Mapping[str, str], release: str) -> Configuration | None:
    for path, text in files.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text(text, encoding="utf-8", errors="replace", newline="")
    return load(directory, releases.get(release)) if files else None


def compare(
    before: Configuration | None,
    after: Configuration | None,
    release: str,
    hosts: str = "",
    ignored: Collection[str] = (),
) -> Iterator[Change]:
    """Yield what differs between two configurations; None stands for one without files.

    `ignored` are options of nodes, in lower case, that may differ.
    """
    needs = releases.changes(release)
    nothing = Needs("reconfigure", {}, frozenset(), {})
    slurm_conf = before.get("slurm.conf") if before else None
    rows = node_names(slurm_conf) if slurm_conf else {}
    with_gres = [name for name, row in rows.items() if row.get("gres")]
    for kind in (*KINDS, *OTHER_KINDS):
        needs_of_file = needs.get(kind, nothing)
        if kind in OTHER_KINDS:
            contents = [
                _content(side.others.get(kind) if side else None) for side in (before, after)
            ]
            differing = [_OptionChange("", None, None)] if contents[0] != contents[1] else []
        else:
            old, new = (side.get(kind) if side else None for side in (before, after))
            differing = list(_source_changes(kind, releases.get(release), old, new, ignored))
        for change in differing:
            needed, drain, why = needs_of_file.of(_key(change.option) or "*", change.words())
            every = with_gres if kind == "gres.conf" and with_gres else rows
            nodes = change.nodes or hostlist.fold(every) if drain else ""
            values_ = (change.before, change.after)
            yield Change(hosts, kind, change.option, *values_, needed, drain, why, nodes)


def _content(path: Path | None) -> object:
    """Return what Slurm reads from a file of OTHER_KINDS; None if there is no such file."""
    if path is None:
        return None
    text = conf.read_text(path)
    if path.suffix == ".yaml":
        with suppress(ValueError):
            return bounded_yaml.load(text)
    lines = (line.partition("#")[0].split() for line in text.splitlines())
    return list(filter(None, lines))


def _key(option: str) -> str:
    """Return the name of a change in needed_actions.toml: "NodeName c1 Gres" is NodeName@Gres."""
    first, *rest = option.split(" ")
    return f"{first}@{rest[-1]}" if rest else first


@dataclass(frozen=True, slots=True)
class _OptionChange:
    """An option with its values; `before` or `after` is None where there is none.

    `nodes` are those that it concerns, or "" if these are all nodes.
    """

    option: str
    before: str | None
    after: str | None
    nodes: str = ""

    def words(self) -> list[str]:
        """Return the words that only one of the values has, without what follows "="."""
        old, new = (
            {word.strip().lower() for word in (value or "").split(",")}
            for value in (self.before, self.after)
        )
        return sorted({word.partition("=")[0] for word in old ^ new})


def _source_changes(
    kind: str,
    release: Release,
    before: Source | None,
    after: Source | None,
    ignored: Collection[str],
) -> Iterator[_OptionChange]:
    """Yield the options that differ."""
    old, new = (_options(kind, source) if source else {} for source in (before, after))
    for key in dict.fromkeys((*old, *new)):
        old_value, new_value = (side[key].value if key in side else None for side in (old, new))
        if not canonical.same(release, kind, key, old_value, new_value):
            yield _OptionChange((new.get(key) or old[key]).name, old_value, new_value)
    old_paths, new_paths = (source.outside if source else set[str]() for source in (before, after))
    for path in sorted(old_paths ^ new_paths):  # files outside of the directory are not read
        yield _OptionChange(
            f"Include {path}",
            path if path in old_paths else None,
            path if path in new_paths else None,
        )
    sections = {**(before.sections if before else {}), **(after.sections if after else {})}
    for key, section in sections.items():
        old_rows, new_rows = (source.rows(key) if source else [] for source in (before, after))
        if (kind, key) in _NAMING:
            nodes = partial(_nodes_of_line, before, key)
            without = ignored if key == "nodename" else ()
            yield from _named(release, section, old_rows, new_rows, nodes, without)
        elif key != "slurmctldhost":
            yield from _unnamed(release, section, old_rows, new_rows)


class _Option(NamedTuple):
    name: str
    value: str


def _options(kind: str, source: Source) -> dict[str, _Option]:
    """Return the options that are alone on their line, by names in lower case.

    Slurm collects the values of some, and uses the last one of the others.
    """
    known = source.release.options.get(kind, {})
    options = {}
    for key, setting in source.settings.items():
        several = key in known and known[key].type == "array"
        settings = source.all_of(key) if several else [setting]
        options[key] = _Option(setting.name, ",".join(item.value for item in settings))
    if kind == "slurm.conf":
        hosts = [row.first.value for row in source.rows("slurmctldhost")] or _controllers(options)
        if hosts:
            for key in _OLD_CONTROLLERS:
                options.pop(key, None)
            options["slurmctldhost"] = _Option("SlurmctldHost", ",".join(hosts))
    return {
        key: option._replace(name=known[key].name) if key in known else option
        for key, option in canonical.renamed(kind, options).items()
    }


def _controllers(options: Mapping[str, _Option]) -> list[str]:
    """Return the older names of SlurmctldHost as its values: _load_slurmctld_host()."""
    hosts = []
    for name, address in zip(_OLD_CONTROLLERS[::2], _OLD_CONTROLLERS[1::2], strict=True):
        if host := options.get(name):
            at = options.get(address, host).value
            hosts.append(host.value if at == host.value else f"{host.value}({at})")
    return hosts


def _nodes_of_line(source: Source | None, key: str, name: str) -> tuple[str, ...]:
    """Return the nodes that a line concerns; () stands for all."""
    if key in _OF_HOSTS:
        return (name,)
    if key != "partitionname" or source is None:
        return ()
    [*_, row] = [row for row in source.rows(key) if row.first.value == name]
    sets = {row.first.value: row for row in source.rows("nodeset")}
    nodes = node_names(source)
    members: list[str] = []
    for word in names_of(row.get("nodes") or "") or ():
        if word in sets:
            features = _features(sets[word])
            members += names_of(sets[word].get("nodes") or "") or ()
            members += [node for node, line in nodes.items() if features & _features(line)]
        elif word in nodes:
            members.append(word)
    return tuple(members)


def _features(row: Row) -> set[str]:
    return {*(row.get("features") or row.get("feature") or "").split(",")} - {""}


def _named(
    release: Release,
    section: str,
    before: Sequence[Row],
    after: Sequence[Row],
    nodes_of: Callable[[str], Sequence[str]],
    ignored: Collection[str],
) -> Iterator[_OptionChange]:
    """Yield what differs between lines that name things.

    That is names that were added or removed, and options that changed.
    """
    first = section.partition(" ")[2]
    many = first.lower() in _OF_HOSTS
    old, new = (_by_name(rows, many=many) for rows in (before, after))
    fold: Callable[[list[str]], str] = hostlist.fold if many else ",".join
    if added := [name for name in new if name not in old]:
        yield _OptionChange(f"{first} {fold(added)} added", None, "")
    if removed := [name for name in old if name not in new]:
        nodes = hostlist.fold(dict.fromkeys(node for name in removed for node in nodes_of(name)))
        yield _OptionChange(f"{first} {fold(removed)} removed", "", None, nodes)
    names_of_change: dict[_OptionChange, list[str]] = {}
    known: dict[tuple[int, int], list[_OptionChange]] = {}
    for name in old:
        if name in new:
            for change in _row_changes(release, section, old[name], new[name], known):
                if change.option.lower() not in ignored:
                    names_of_change.setdefault(change, []).append(name)
    for change, names in names_of_change.items():
        nodes = fold(names) if many else ""
        yield replace(change, option=f"{first} {fold(names)} {change.option}", nodes=nodes)


@dataclass(frozen=True, slots=True)
class _NamedRow:
    """The line of a name, and the place of the name among the line's names."""

    name: str
    row: Row
    place: int

    def value(self, key: str) -> str | None:
        """Return the name's value of an option of _PER_NAME, which may have a list of values."""
        value = self.row.get(key)
        if value and "[" in value:
            values = names_of(value)
            return values[self.place] if values and self.place < len(values) else value
        return value

    def address(self, key: str) -> str | None:
        """Return the same, or else the name that Slurm uses instead: _parse_nodename()."""
        host = self.value("nodehostname") or self.name
        return self.value(key) or {"nodehostname": host, "nodeaddr": host}.get(key)


def _row_changes(
    release: Release,
    section: str,
    before: _NamedRow,
    after: _NamedRow,
    known: dict[tuple[int, int], list[_OptionChange]],
) -> Iterator[_OptionChange]:
    """Yield the options that differ; `known` has those of the lines that were compared before."""
    lines = (id(before.row.values), id(after.row.values))
    if lines not in known:
        known[lines] = list(_line_changes(release, section, before.row, after.row))
    yield from known[lines]
    for key in _PER_NAME:
        if section.endswith("NodeName") and before.address(key) != after.address(key):
            name = release.options[section][key].name
            yield _OptionChange(name, before.value(key), after.value(key))


def _line_changes(
    release: Release, section: str, before: Row, after: Row
) -> Iterator[_OptionChange]:
    old, new = (canonical.renamed(section, row.values) for row in (before, after))
    left_out: tuple[str, ...] = ()
    if section.endswith("NodeName"):
        size = canonical.node_size(old)
        left_out = (*_PER_NAME, *(canonical.SIZE if size == canonical.node_size(new) else ()))
    for key in dict.fromkeys((*old, *new)):
        values = old.get(key), new.get(key)
        if key not in left_out and not canonical.same(release, section, key, *values):
            known = release.options[section].get(key)
            yield _OptionChange(known.name if known else key, *values)


def _by_name(rows: Sequence[Row], *, many: bool) -> dict[str, _NamedRow]:
    return {
        name: _NamedRow(name, row, place)
        for row in rows
        for place, name in enumerate(
            (names_of(row.first.value) if many else None) or (row.first.value,)
        )
    }


def _unnamed(
    release: Release, section: str, before: Sequence[Row], after: Sequence[Row]
) -> Iterator[_OptionChange]:
    """Yield what differs between lines that name nothing.

    That is, for each option, all values that only one side has. Lines of nodes, such as those of
    gres.conf, are compared for each node.
    """
    first = section.partition(" ")[2]
    old, new = (_counted(release, section, rows) for rows in (before, after))
    nodes_of: dict[_OptionChange, list[str]] = {}
    for node, key in dict.fromkeys((*old, *new)):
        counts = [side.get((node, key), Counter[str]()) for side in (old, new)]
        only_old, only_new = (
            "; ".join(sorted((one - other).elements())) or None
            for one, other in (counts, reversed(counts))
        )
        if only_old != only_new:
            known = release.options[section].get(key)
            name = first if key == first.lower() else known.name if known else key
            change = _OptionChange(name, only_old, only_new)
            nodes_of.setdefault(change, []).append(node)
    for change, nodes in nodes_of.items():
        yield replace(change, nodes=hostlist.fold(filter(None, nodes)))
    changed = {node for nodes in nodes_of.values() for node in nodes}
    yield from _exchanged(release, section, before, after, changed)


def _exchanged(
    release: Release,
    section: str,
    before: Sequence[Row],
    after: Sequence[Row],
    changed: Collection[str],
) -> Iterator[_OptionChange]:
    """Yield lines between which only values moved, such as File between the Types of a GRES."""
    old, new = (_lines_of(release, section, rows) for rows in (before, after))
    nodes_of: dict[tuple[str, str], list[str]] = {}
    for node in (node for node in old if node in new and node not in changed):
        only_old, only_new = (
            "; ".join(sorted((one - other).elements()))
            for one, other in ((old[node], new[node]), (new[node], old[node]))
        )
        if only_old != only_new:
            nodes_of.setdefault((only_old, only_new), []).append(node)
    known = release.options[section]
    name = known["file"].name if "file" in known else section.partition(" ")[2]
    for (only_old, only_new), nodes in nodes_of.items():
        yield _OptionChange(name, only_old, only_new, nodes=hostlist.fold(filter(None, nodes)))


def _lines_of(release: Release, section: str, rows: Sequence[Row]) -> dict[str, Counter[str]]:
    """Count the lines of each node, in one spelling; "" stands for all nodes."""
    key = section.partition(" ")[2].lower()
    counted: dict[str, Counter[str]] = {}
    for row in rows:
        options = [
            f"{option}={canonical.canonical(release, section, option, value)}"
            for option, value in sorted(row.values.items())
        ]
        nodes = (names_of(row.first.value) if key == "nodename" else None) or ("",)
        text = " ".join(options if key == "nodename" else [row.first.value, *options])
        for node in nodes:
            counted.setdefault(node, Counter())[text] += 1
    return counted


def _counted(
    release: Release, section: str, rows: Sequence[Row]
) -> dict[tuple[str, str], Counter[str]]:
    """Count the values of each option of each node; "" stands for all nodes."""
    key = section.partition(" ")[2].lower()
    counted: dict[tuple[str, str], Counter[str]] = {}
    for row in rows:
        nodes = (names_of(row.first.value) if key == "nodename" else None) or ("",)
        label = row.get("name") or "" if key == "nodename" else row.first.value
        for option, value in {key: "", **row.values}.items():
            form = canonical.canonical(release, section, option, value)
            for node in nodes:
                counted.setdefault((node, option), Counter())[f"{label}: {form}"] += 1
    return counted


def _folded(hosts: Sequence[str]) -> str:
    return hostlist.fold(hosts) if any(hosts) else ""
