"""A configuration as its daemons see it: Includes, options by name, lines with DEFAULT lines."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from harness.errors import UsageError, cannot_read
from harness.parsing import conf, hostlist
from harness.parsing.conf import Line, Pair
from harness.releases import Release
from harness.slurmconf.check.findings import (
    FATAL,
    SLURMCTLD,
    SLURMD,
    SLURMDBD,
    SLURMSTEPD,
    Finding,
)

# Kind of file -> the daemons that read it.
KINDS = {
    "slurm.conf": SLURMCTLD + SLURMD,
    "slurmdbd.conf": SLURMDBD,
    "cgroup.conf": SLURMCTLD + SLURMD,
    "gres.conf": SLURMD,
    "topology.conf": SLURMCTLD + SLURMD,
    "acct_gather.conf": SLURMCTLD + SLURMD,
    "job_container.conf": SLURMD,
    "burst_buffer.conf": SLURMCTLD,
    "helpers.conf": SLURMCTLD + SLURMD,
    "knl_generic.conf": SLURMCTLD + SLURMD,
    "oci.conf": SLURMSTEPD,
    "mpi.conf": SLURMCTLD + SLURMD,
}
# Not read by the parser of slurm.conf.
OTHER_KINDS = ("plugstack.conf", "topology.yaml", "resources.yaml", "rpc_queue.yaml")
# Slurm's parser has no limits. These are more than any site needs, and stop files that include one
# another again and again.
_DEEPEST_INCLUDE, _MOST_INCLUDES = 50, 1000
# Directories without configuration files, but with files that may never end.
_NO_FILES = ("/dev", "/proc", "/sys")


class Setting(NamedTuple):
    """An option and its place."""

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
        """Return the words of the value, as strtok_r separates them by commas.

        Blanks are part of a word, which Slurm then mostly does not know.
        """
        return [word for word in self.value.split(",") if word]


Settings = Mapping[str, Setting]


class Row:
    """A line of several options, such as NodeName=....

    It has its first option, the line's other options, and those that DEFAULT lines add. `alike` is
    the same for lines that differ only in their first value. `values` are the values by lower-case
    name.
    """

    def __init__(
        self,
        first: Setting,
        defaults: Settings,
        values: dict[tuple[object, ...], Mapping[str, str]],
    ) -> None:
        self.first = first
        self._defaults = defaults
        _, line, pair = first
        self.alike: tuple[object, ...] = (
            line.text[pair.value_start + len(pair.value) :],
            id(defaults),
        )
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
        """The line's own options, and those that DEFAULT lines add."""
        return {**self._defaults, **self.own} if self._defaults else self.own

    def get(self, name: str) -> str | None:
        """Return an option's value."""
        return self.values.get(name)

    def values_without(self, names: Collection[str]) -> tuple[object, ...]:
        """Return the same for lines that differ only in their first value and in these options."""
        own = ((name, self.values[name]) for name in self.own if name not in names)
        return (id(self._defaults), *own)


@dataclass
class Source:
    """One file of a configuration, with everything that it includes.

    `kind` is the name by which daemons know it. Files outside of the directory of `path` are read
    only with `reads_outside`. `outside` has their names; their text must not be shown, because an
    Include can name any file that this user can read.
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
                raise UsageError(
                    f"{self.path} is a link to a file outside of its directory",
                    hint=f"name {self.path.resolve()} itself",
                )
            self.outside.add(name)
        self._load(self.path, name)

    @property
    def sections(self) -> Mapping[str, str]:
        """Keys that begin a line of options, in lower case -> the section of these options."""
        prefix = f"{self.kind} "
        return {
            section.removeprefix(prefix).lower(): section
            for section in self.release.options
            if section.startswith(prefix)
        }

    @cached_property
    def settings(self) -> Settings:
        """Options that are alone on their line, by lower-case name; the last of each counts."""
        sections = self.sections
        return {
            line.pairs[0].key.lower(): Setting(path, line, line.pairs[0])
            for path, line in self.lines
            if line.pairs and line.pairs[0].key.lower() not in sections
        }

    def all_of(self, key: str) -> list[Setting]:
        """Return the lines that begin with an option."""
        return [
            Setting(path, line, line.pairs[0])
            for path, line in self.lines
            if line.pairs and line.pairs[0].key.lower() == key
        ]

    def rows(self, key: str) -> list[Row]:
        """Return the lines of `key` (lower case), each with the DEFAULT lines before it."""
        return self._rows.get(key, [])

    @cached_property
    def _rows(self) -> dict[str, list[Row]]:
        rows: dict[str, list[Row]] = {key: [] for key in self.sections}
        defaults: dict[str, Settings] = {key: {} for key in rows}
        values: dict[tuple[object, ...], Mapping[str, str]] = {}
        for path, line in self.lines:
            if not line.pairs or (key := line.pairs[0].key.lower()) not in rows:
                continue
            row = Row(Setting(path, line, line.pairs[0]), defaults[key], values)
            is_default = line.pairs[0].value.upper() == "DEFAULT" and key != "downnodes"
            if is_default and self.kind == "slurm.conf":
                defaults[key] = row.all
            else:
                rows[key].append(row)
        return rows

    def leave_out_unreadable(self) -> list[tuple[str, Line]]:
        """Remove the lines that Slurm cannot read; return them, each with the name of its file."""
        unreadable = [(name, line) for name, line in self.lines if line.rest is not None]
        if unreadable:
            self.lines = [(name, line) for name, line in self.lines if line.rest is None]
            for cached in ("settings", "_rows"):
                self.__dict__.pop(cached, None)
        return unreadable

    def get(self, name: str) -> str | None:
        """Return the value of an option that is alone on its line; `name` is in lower case."""
        setting = self.settings.get(name)
        return setting.value if setting else None

    def words(self, name: str) -> list[str]:
        """Return the words of an option that is alone on its line; none if it is not set.

        `name` is in lower case.
        """
        setting = self.settings.get(name)
        return setting.words() if setting else []

    def uses_slurmdbd(self) -> bool:
        """Return whether a slurm.conf stores its accounting in slurmdbd."""
        return self.accounting_storage() == "accounting_storage/slurmdbd"

    def accounting_storage(self) -> str:
        """Return the AccountingStorageType of a slurm.conf; "" if it has none.

        Up to 20.11, DefaultStorageType stands in for it (_validate_and_set_defaults).
        """
        default = self.get("defaultstoragetype")
        if default and "defaultstoragetype" in self.release.options[self.kind]:
            default = f"accounting_storage/{default}"
        return self.get("accountingstoragetype") or default or ""

    def find(
        self,
        setting: Setting,
        severity: str,
        code: str,
        message: str,
        hint: str = "",
        daemons: tuple[str, ...] = (),
    ) -> Finding:
        """Return a finding about an option, of all daemons that read the file or of some."""
        line, column = setting.line.place(setting.pair.start)
        return Finding(
            setting.path,
            line,
            column,
            severity,
            code,
            setting.name,
            message,
            hint,
            daemons or KINDS[self.kind],
        )

    def find_here(
        self,
        severity: str,
        code: str,
        option: str,
        message: str,
        hint: str = "",
        daemons: tuple[str, ...] = (),
    ) -> Finding:
        """Return a finding about an option that the file lacks."""
        return Finding(
            self.name or str(self.path),
            1,
            1,
            severity,
            code,
            option,
            message,
            hint,
            daemons or KINDS[self.kind],
        )

    def _load(self, path: Path, name: str) -> None:
        text = conf.read_text(path, self._room)
        self._room -= len(text)
        self._open.append(path.resolve())
        lines = list(conf.read(text))
        self._find_rests(name, lines)
        for line in lines:
            self.lines.append((name, line))
            if line.pairs and line.pairs[0].key.lower() == "clustername":
                self._cluster_name = line.pairs[0].value
            if line.include:
                self._include(path, name, line)
        self._open.pop()

    def _find_rests(self, name: str, lines: list[Line]) -> None:
        """Find the first Include without a blank after its file, if Slurm reads text there."""
        for index, line in enumerate(lines):
            if line.include and line.text.endswith(line.include):
                rest = conf.rest_of_include(lines[:index], line).strip()
                if rest:
                    shown = rest if len(rest) <= 60 else f"{rest[:57]}..."
                    problem = f'cannot be read: "{shown}", which remains of the lines before'
                    hint = "write a blank or an end of line after the file's name"
                    self.findings.append(
                        Finding(
                            name,
                            *line.place(0),
                            FATAL,
                            "include",
                            f"Include {line.include}",
                            problem,
                            hint,
                            KINDS[self.kind],
                        )
                    )
                return

    def _include(self, path: Path, name: str, line: Line) -> None:
        target_name = str(line.include).replace("%c", (self._cluster_name or "%c").lower())
        problem, hint = "", ""
        target = self._included(path, target_name)
        if "%c" in target_name:
            problem = "ClusterName must be set before %c is used"
        elif "*" in target_name and (not target or not self.release.include_wildcards):
            problem, hint = "Include does not accept wildcards", "name each file"
        elif not target:
            problem = (
                "the included file does not exist; the daemon waits a minute for it and gives up"
            )
        elif target.resolve() in self._open or len(self._open) >= _DEEPEST_INCLUDE:
            problem = "files include one another in a loop"
        elif self._includes >= _MOST_INCLUDES:
            problem = f"is not read, because there are more than {_MOST_INCLUDES} Includes"
        elif leads_outside(target, self.path.parent):
            self.outside.add(str(target))
            if not self.reads_outside:
                problem, hint = (
                    "is not read, because it is outside of the directory",
                    "put the file next to the others",
                )
        self._includes += 1
        if problem or target is None:
            place = line.place(0)
            finding = Finding(
                name,
                *place,
                FATAL,
                "include",
                f"Include {target_name}",
                problem,
                hint,
                KINDS[self.kind],
            )
            self.findings.append(finding)
        elif target.is_file():  # nothing can be read from a directory, which is no problem
            self._load(target, str(target))

    def _included(self, path: Path, target: str) -> Path | None:
        """Return the included file.

        In a copy of the directory, a file of /etc/slurm is next to the including one.
        """
        base = self.path.parent if self.release.include_from_main_file else path.parent
        candidates = [Path(target)] if target.startswith("/") else [base / target]
        if target.startswith("/"):
            for above in ("/etc/slurm", "/etc/slurm-llnl", "/usr/local/etc"):
                if PurePosixPath(target).is_relative_to(above):
                    candidates.append(self.path.parent / PurePosixPath(target).relative_to(above))
        return next(
            (
                candidate
                for candidate in candidates
                if (candidate.is_file() or candidate.is_dir()) and not _is_special(candidate)
            ),
            None,
        )


def leads_outside(path: Path, directory: Path) -> bool:
    """Return whether a path, after following links, is outside of a directory."""
    return not path.resolve().is_relative_to(directory.resolve())


def _is_special(path: Path) -> bool:
    return any(path.resolve().is_relative_to(above) for above in _NO_FILES)


@dataclass(frozen=True)
class Configuration:
    """The files of a configuration directory, or a single file, by kind.

    `whole`: this is a directory, so that a missing file does not exist. `outside` are the names, in
    findings, of files outside of the directory, whose text must not be shown.
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


def load(
    path: Path, release: Release, name: str = "", *, reads_outside: bool = False
) -> Configuration:
    """Read a configuration file or directory for a release.

    `name` replaces the path in findings. Files outside of the directory, to which a link or an
    Include leads, are read only with `reads_outside`; otherwise a link is a UsageError, and an
    Include a finding. Raises UsageError if there is no file, or if there are too many nodes.
    """
    paths = _files_by_kind(path)

    def read(kind: str, file: Path) -> Source:
        shown = f"{name}/{file.relative_to(path)}" if name and file != path else name
        return Source(kind, file, release, shown, reads_outside)

    try:
        files = {kind: read(kind, file) for kind, file in paths.items() if kind not in OTHER_KINDS}
        slurm_conf = files.get("slurm.conf")
        if slurm_conf and "burst_buffer.conf" not in files:
            buffers = filter(Path.is_file, _burst_buffer_files(path, slurm_conf))
            if file := next(buffers, None):
                files["burst_buffer.conf"] = read("burst_buffer.conf", file)
    except OSError as error:
        raise UsageError(cannot_read(path, error)) from error
    for source in files.values():
        _must_be_countable(source)
    others = {kind: file for kind, file in paths.items() if kind in OTHER_KINDS}
    foreign = [file for file in others.values() if leads_outside(file, file.parent)]
    if foreign and not reads_outside:
        raise UsageError(
            f"{foreign[0]} is a link to a file outside of its directory",
            hint=f"name {foreign[0].resolve()} itself",
        )
    outside = {str(file) for file in foreign}.union(*(source.outside for source in files.values()))
    return Configuration(release, files, others, path.is_dir(), frozenset(outside))


def _burst_buffer_files(directory: Path, slurm_conf: Source) -> Iterator[Path]:
    """Yield the files that plugins read if there is no burst_buffer.conf (bb_load_config)."""
    for plugin in slurm_conf.words("burstbuffertype"):
        yield directory / f"burst_buffer_{plugin.removeprefix('burst_buffer/')}.conf"


def _files_by_kind(path: Path) -> dict[str, Path]:
    """Return the files of a directory, or a single file, by kind; raise UsageError if none."""
    if path.is_file():
        return {kind_of(path): path}
    if not path.is_dir():
        missing = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        raise UsageError(cannot_read(path, missing))
    paths = {kind: path / kind for kind in (*KINDS, *OTHER_KINDS) if (path / kind).is_file()}
    if "slurm.conf" not in paths:
        similar = [
            file for file in sorted(path.glob("*slurm*.conf*")) if "slurmdbd" not in file.name
        ]
        if len(similar) == 1:
            paths["slurm.conf"] = similar[0]
    if not paths:
        raise UsageError(f"{path}: no Slurm configuration file", hint=f"known: {', '.join(KINDS)}")
    return paths


def _must_be_countable(source: Source) -> None:
    """Refuse more nodes than a hostlist can name, before the names are created.

    Invalid hostlists are found later.
    """
    count = 0
    for row in source.rows("nodename"):
        value = row.first.value
        if "[" not in value:
            count += 1 + value.count(",")
            continue
        try:
            count += hostlist.count(",".join(value.split()))
        except ValueError:  # odd characters, which Slurm accepts
            with suppress(ValueError):
                count += len(hostlist.create(value))
        if count > hostlist.MOST_NAMES:
            place = f"{row.first.path}:{row.first.line.number}"
            raise UsageError(
                f"{place}: there are more than {hostlist.MOST_NAMES} nodes up to this line"
            )


def kind_of(path: Path) -> str:
    """Return the kind of a file by its name; any other name counts as slurm.conf."""
    return next(
        (
            kind
            for kind in (*KINDS, *OTHER_KINDS)
            if kind != "slurm.conf" and kind.partition(".")[0] in path.name
        ),
        "slurm.conf",
    )
