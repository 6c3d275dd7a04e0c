"""A configuration as its daemons see it: all files with their Includes, options by name, nodes with their defaults."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from harness import conf, hostlist
from harness.check.findings import FATAL, Finding
from harness.conf import Line, Pair
from harness.errors import UsageError
from harness.releases import Release

# Kind of file -> the daemon that reads it first.
KINDS = {
    "slurm.conf": "slurmctld",
    "slurmdbd.conf": "slurmdbd",
    "cgroup.conf": "slurmctld",
    "gres.conf": "slurmd",
    "topology.conf": "slurmctld",
    "acct_gather.conf": "slurmctld",
    "job_container.conf": "slurmd",
    "burst_buffer.conf": "slurmctld",
    "helpers.conf": "slurmctld",
    "oci.conf": "slurmd",
    "mpi.conf": "slurmctld",
}
# Read by other means than the parser of slurm.conf.
OTHER_KINDS = ("plugstack.conf", "topology.yaml")
# Slurm's parser has no limits. These end what no site has: files that include one another many times over.
_DEEPEST_INCLUDE, _MOST_INCLUDES = 50, 1000
# No site keeps its files there, and reading from there may never end.
_NO_FILES = ("/dev", "/proc", "/sys")


class Setting(NamedTuple):
    """An option and where it stands."""

    path: str
    line: Line
    pair: Pair

    @property
    def name(self) -> str:
        """The option as it is spelled in the file."""
        return self.pair.key

    @property
    def value(self) -> str:
        """Its value, without the quotes around it."""
        return self.pair.value

    def words(self) -> list[str]:
        """Return the value's words, which commas separate."""
        return [word.strip() for word in self.value.split(",") if word.strip()]


Settings = Mapping[str, Setting]


class Row:
    """A line of many options, such as NodeName=...: its first, its own others, and all that DEFAULT lines add.

    `alike` is the same for lines that differ in their first value only; `values` are theirs, by lower-case name.
    """

    def __init__(self, first: Setting, defaults: Settings, values: dict[tuple[str, int], Mapping[str, str]]) -> None:
        self.first = first
        self._defaults = defaults
        _, line, pair = first
        self.alike = (line.text[pair.value_start + len(pair.value) :], id(defaults))
        if self.alike not in values:
            values[self.alike] = {name: setting.value for name, setting in self.all.items()}
        self.values = values[self.alike]

    @cached_property
    def own(self) -> Settings:
        """The line's own options, by lower-case name."""
        path, line, _ = self.first
        return {pair.key.lower(): Setting(path, line, pair) for pair in line.pairs[1:]}

    @cached_property
    def all(self) -> Settings:
        """These, and what DEFAULT lines say of others."""
        return {**self._defaults, **self.own} if self._defaults else self.own

    def get(self, name: str) -> str | None:
        """Return an option's value."""
        return self.values.get(name)


@dataclass
class Source:
    """One file of a configuration with all that it includes. `kind` is the name that daemons know it by.

    Files outside of `path`'s directory are read only where `reads_outside` says so; `outside` has their names, and
    their text is not to be shown: an Include may name any file that this user can read.
    """

    kind: str
    path: Path
    release: Release
    name: str = ""
    reads_outside: bool = False
    lines: list[tuple[str, Line]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    outside: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._open: list[Path] = []
        self._includes = 0
        self._room = conf.MOST_BYTES
        self._cluster_name: str | None = None
        name = self.name or str(self.path)
        if leads_outside(self.path, self.path.parent):
            if not self.reads_outside:
                raise UsageError(f"{self.path} leads out of its directory", hint=f"name {self.path.resolve()} itself")
            self.outside.add(name)
        self._load(self.path, name)

    @property
    def sections(self) -> Mapping[str, str]:
        """Keys in lower case that begin a line with options of its own -> the section of these options."""
        prefix = f"{self.kind} "
        return {
            section.removeprefix(prefix).lower(): section
            for section in self.release.options
            if section.startswith(prefix)
        }

    @cached_property
    def settings(self) -> Settings:
        """Options that stand alone on a line, by lower-case name; the last of each counts."""
        sections = self.sections
        return {
            line.pairs[0].key.lower(): Setting(path, line, line.pairs[0])
            for path, line in self.lines
            if line.pairs and line.pairs[0].key.lower() not in sections
        }

    def all_of(self, key: str) -> list[Setting]:
        """Return every line that begins with an option."""
        return [
            Setting(path, line, line.pairs[0])
            for path, line in self.lines
            if line.pairs and line.pairs[0].key.lower() == key
        ]

    def rows(self, key: str) -> list[Row]:
        """Return the lines that begin with `key`, in lower case, each with what DEFAULT lines before it say."""
        return self._rows.get(key, [])

    @cached_property
    def _rows(self) -> dict[str, list[Row]]:
        found: dict[str, list[Row]] = {key: [] for key in self.sections}
        defaults: dict[str, Settings] = {key: {} for key in found}
        values: dict[tuple[str, int], Mapping[str, str]] = {}
        for path, line in self.lines:
            if not line.pairs or (key := line.pairs[0].key.lower()) not in found:
                continue
            row = Row(Setting(path, line, line.pairs[0]), defaults[key], values)
            if line.pairs[0].value.upper() == "DEFAULT" and self.kind == "slurm.conf":
                defaults[key] = row.all
            else:
                found[key].append(row)
        return found

    def get(self, name: str) -> str | None:
        """Return the value of an option that stands alone; `name` in lower case."""
        setting = self.settings.get(name)
        return setting.value if setting else None

    def words(self, name: str) -> list[str]:
        """Return the words of an option that stands alone; none where it is not set. `name` in lower case."""
        setting = self.settings.get(name)
        return setting.words() if setting else []

    def uses_slurmdbd(self) -> bool:
        """Tell whether a slurm.conf stores its accounting in slurmdbd."""
        return self.get("accountingstoragetype") == "accounting_storage/slurmdbd"

    def find(
        self, setting: Setting, severity: str, code: str, message: str, hint: str = "", daemon: str = ""
    ) -> Finding:
        """Return a finding about an option; `daemon` if it is not the one that reads the file first."""
        line, column = setting.line.place(setting.pair.start)
        says = daemon or KINDS[self.kind]
        return Finding(setting.path, line, column, severity, code, setting.name, message, hint, says)

    def find_here(self, severity: str, code: str, option: str, message: str, hint: str = "") -> Finding:
        """Return a finding about something that the file lacks."""
        return Finding(self.name or str(self.path), 1, 1, severity, code, option, message, hint, KINDS[self.kind])

    def _load(self, path: Path, name: str) -> None:
        text = conf.read_text(path, self._room)
        self._room -= len(text)
        self._open.append(path.resolve())
        for line in conf.read(text):
            self.lines.append((name, line))
            if line.pairs and line.pairs[0].key.lower() == "clustername":
                self._cluster_name = line.pairs[0].value
            if line.include:
                self._include(path, name, line)
        self._open.pop()

    def _include(self, path: Path, name: str, line: Line) -> None:
        wanted = str(line.include).replace("%c", (self._cluster_name or "%c").lower())
        problem, hint = "", ""
        target = self._included(path, wanted)
        if "%c" in wanted:
            problem = "%c needs ClusterName before it"
        elif "*" in wanted and (not target or self.release.name >= "23.11"):
            problem, hint = "Include takes no wildcards", "name each file"
        elif not target:
            problem = "the included file is not there; the daemon looks for it for a minute and gives up"
        elif target.resolve() in self._open or len(self._open) >= _DEEPEST_INCLUDE:
            problem = "Include goes in circles"
        elif self._includes >= _MOST_INCLUDES:
            problem = f"is one of more than {_MOST_INCLUDES} Includes, and is not read"
        elif leads_outside(target, self.path.parent):
            self.outside.add(str(target))
            if not self.reads_outside:
                problem, hint = "leads out of the directory, and is not read", "put the file beside the others"
        self._includes += 1
        if problem or target is None:
            place = line.place(0)
            finding = Finding(name, *place, FATAL, "include", f"Include {wanted}", problem, hint, KINDS[self.kind])
            self.findings.append(finding)
        else:
            self._load(target, str(target))

    def _included(self, path: Path, wanted: str) -> Path | None:
        """Return the file that is included; one of /etc/slurm may stand beside the file in a copy of the directory."""
        beside = self.path.parent if self.release.name >= "23.02" else path.parent
        candidates = [Path(wanted)] if wanted.startswith("/") else [beside / wanted]
        if wanted.startswith("/"):
            for above in ("/etc/slurm", "/etc/slurm-llnl", "/usr/local/etc"):
                if PurePosixPath(wanted).is_relative_to(above):
                    candidates.append(self.path.parent / PurePosixPath(wanted).relative_to(above))
        return next((candidate for candidate in candidates if candidate.is_file() and not _is_special(candidate)), None)


def leads_outside(path: Path, directory: Path) -> bool:
    """Tell whether a path, with its links followed, is outside of a directory."""
    return not path.resolve().is_relative_to(directory.resolve())


def _is_special(path: Path) -> bool:
    return any(path.resolve().is_relative_to(above) for above in _NO_FILES)


@dataclass(frozen=True)
class Configuration:
    """The files of one configuration directory, or a single one, by kind. `whole`: what is not there is not there.

    `outside` are the names, in findings, of files outside of the directory: their text is not to be shown.
    """

    release: Release
    files: Mapping[str, Source]
    others: Mapping[str, Path]
    whole: bool
    outside: frozenset[str] = frozenset()

    def __iter__(self) -> Iterator[Source]:
        return iter(self.files.values())

    def get(self, kind: str) -> Source | None:
        """Return a file."""
        return self.files.get(kind)


def load(path: Path, release: Release, name: str = "", *, reads_outside: bool = False) -> Configuration:
    """Read a configuration file or directory for a release; UsageError if there is none, or if it has too many nodes.

    `name` is what findings call the path, where that is not the path itself. Files outside of the directory to which
    a link or an Include leads are read only if `reads_outside`; a link is a UsageError otherwise, and an Include a
    finding.
    """
    if path.is_dir():
        paths = {kind: path / kind for kind in (*KINDS, *OTHER_KINDS) if (path / kind).is_file()}
        if "slurm.conf" not in paths:
            alike = [one for one in sorted(path.glob("*slurm*.conf*")) if "slurmdbd" not in one.name]
            if len(alike) == 1:
                paths["slurm.conf"] = alike[0]
        if not paths:
            raise UsageError(f"{path}: no file of Slurm's configuration", hint=f"known are {', '.join(KINDS)}")
    elif path.is_file():
        paths = {kind_of(path): path}
    else:
        raise UsageError(f"{path}: there is no such file or directory")
    called = {one: f"{name}/{one.relative_to(path)}" if name and one != path else name for one in paths.values()}
    try:
        files = {
            kind: Source(kind, one, release, called[one], reads_outside)
            for kind, one in paths.items()
            if kind not in OTHER_KINDS
        }
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error}") from error
    for source in files.values():
        _must_be_countable(source)
    others = {kind: one for kind, one in paths.items() if kind in OTHER_KINDS}
    foreign = [one for one in others.values() if leads_outside(one, one.parent)]
    if foreign and not reads_outside:
        raise UsageError(f"{foreign[0]} leads out of its directory", hint=f"name {foreign[0].resolve()} itself")
    outside = {str(one) for one in foreign}.union(*(source.outside for source in files.values()))
    return Configuration(release, files, others, path.is_dir(), frozenset(outside))


def _must_be_countable(source: Source) -> None:
    """Refuse more nodes than a hostlist may stand for, before any are made; what is no hostlist is found later."""
    count = 0
    for row in source.rows("nodename"):
        with suppress(ValueError):
            count += hostlist.count(",".join(row.first.value.split()))
        if count > hostlist.MOST_NAMES:
            place = f"{row.first.path}:{row.first.line.number}"
            raise UsageError(f"{place}: with this line there are more than {hostlist.MOST_NAMES} nodes")


def kind_of(path: Path) -> str:
    """Return the kind of a file by its name; one that is like no other counts as slurm.conf."""
    return next(
        (kind for kind in (*KINDS, *OTHER_KINDS) if kind != "slurm.conf" and kind.partition(".")[0] in path.name),
        "slurm.conf",
    )
