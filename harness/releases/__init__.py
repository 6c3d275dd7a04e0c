"""What each Slurm release knows. One data file a release, which says what is other than in the one before it.

A release file holds these parts; in each, a text is a list of words, and sections are named after the file, and the key
that begins the line where a line has options of its own ("slurm.conf NodeName").

options     the options that its parsers know, by the type that their values must have
gone        those that they know no longer: a daemon that meets one refuses to start
retyped     options whose values must have another type from here on
refused     options that are known and yet not taken: `severity` says how (see harness.check), `when` of which values
            (a regular expression), `otherwise` how the other values fare
plugins     the plugins; gone_plugins those that are no more, values_without_plugin names that are taken although they
            are none, renamed_plugins what is taken for another
words       the words of which values are made; `unknown` says what becomes of others
defaults    defaults that changed the way a cluster works
serves      releases of the slurmctlds that its slurmdbd serves, oldest first: the upgrade window
debian      where Debian packages it: `suite`, `packages`, what apt needs to install from it (`apt_options`), and the
            suite from which Apptainer can be installed beside it (`apptainer_suite`)
federation_faults                what this release gets wrong in a federation with clusters of `older` ones
backup_faults                    what this release gets wrong where a backup slurmctld takes over
federates_unregistered           a controller may join a federation before its siblings have told slurmdbd of themselves
wants_saved_usage                slurmctld does not start where one was killed before it saved fair-share's usage
near_switches                    a job that no leaf switch has room for gets leaves below one switch, as low as can be
tokens_are_safe                  slurmrestd wants one with each request, not connection; slurmctld limits their lives
rest_tells_allocations           slurmrestd has POST /node/, and GET /jobs/ tells what a job has of each of its nodes
container_for_each_task          each task of a step with --container has a container and its own environment there
most_nodes                       slurmctld does not start with more (MAX_SLURM_NODES of slurm.h; it counts from 0)
external_jobs                    `sbatch --external`: a job that starts nothing on its nodes; nodes in State=EXTERNAL
cgroup_conf_without_controllers  what lets slurmd start where it may use no cgroup controllers

Beside them, changes.toml says what a running cluster needs to take a change.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

_FILES = {path.stem: path for path in sorted(Path(__file__).parent.glob("[0-9]*.toml"))}
KNOWN = tuple(_FILES)
DEFAULT = "24.11"


@dataclass(frozen=True, slots=True)
class Option:
    """An option in Slurm's own spelling, its values' type, and the first release here that has it."""

    name: str
    type: str
    since: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """How a known option is not taken: its severity depends on the value."""

    severity: str
    hint: str
    when: re.Pattern[str] | None
    otherwise: str | None
    since: str

    def of(self, value: str) -> str | None:
        """Return the severity for a value, None where it is taken."""
        return self.severity if self.when is None or self.when.fullmatch(value) else self.otherwise


@dataclass(frozen=True, slots=True)
class Words:
    """The words of an option's value, in lower case; `gone` are those of earlier releases, and when they went."""

    unknown: str
    known: frozenset[str]
    gone: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Default:
    """A default that changed. `matters_with` is the option without which it makes no difference."""

    before: str
    now: str
    matters_with: str | None = None


@dataclass(frozen=True, slots=True)
class FederationFault:
    """What a release gets wrong in a federation with clusters of any of the `older` ones."""

    older: frozenset[str]
    what: str


@dataclass(frozen=True, slots=True)
class Needs:
    """What a running cluster needs to take a changed option of one file: changes.toml says what the words mean."""

    default: str
    by_option: Mapping[str, str]
    drain: frozenset[str]
    why: Mapping[str, str]

    def of(self, option: str) -> tuple[str, bool, str]:
        """Return what a change of an option needs, whether nodes must have no jobs, and why if there is more to say."""
        key = option.lower()
        drain = key in self.drain or "*" in self.drain
        return self.by_option.get(key, self.default), drain, self.why.get(key, self.why.get("*", ""))


@dataclass(frozen=True, slots=True)
class Release:
    """All that is known of a release; the module says what the parts mean. Options as keys are in lower case."""

    name: str
    serves: tuple[str, ...] = ()
    suite: str | None = None
    packages: tuple[str, ...] = ()
    apt_options: tuple[str, ...] = ()
    apptainer_suite: str | None = None
    further_suite: str | None = None
    federation_faults: tuple[FederationFault, ...] = ()
    backup_faults: tuple[str, ...] = ()
    federates_unregistered: bool = False
    wants_saved_usage: bool = False
    near_switches: bool = False
    tokens_are_safe: bool = False
    rest_tells_allocations: bool = False
    container_for_each_task: bool = False
    most_nodes: int | None = None
    external_jobs: bool = False
    cgroup_conf_without_controllers: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Mapping[str, Option]] = field(default_factory=dict)
    gone: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    refused: Mapping[str, Mapping[str, Refusal]] = field(default_factory=dict)
    plugins: Mapping[str, frozenset[str]] = field(default_factory=dict)
    gone_plugins: Mapping[str, str] = field(default_factory=dict)
    renamed_plugins: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[str, Words] = field(default_factory=dict)
    defaults: Mapping[str, Mapping[str, Default]] = field(default_factory=dict)

    @property
    def topology_file(self) -> str:
        """The file that topologies are read from; topology.conf, in releases without topology.yaml, holds one."""
        return "topology.yaml" if "topology.yaml" in self.options else "topology.conf"


# With what mounts a SIF for a user.
_APPTAINER = ("apptainer", "squashfuse", "fuse-overlayfs", "squashfs-tools")


def with_apptainer(release: Release) -> Release:
    """Return a release for hosts that have Apptainer too; the same where Debian has none that fits."""
    if not release.apptainer_suite:
        return release
    return replace(release, packages=(*release.packages, *_APPTAINER), further_suite=release.apptainer_suite)


@cache
def changes(release: str) -> Mapping[str, Needs]:
    """Return what changes of each file need in a release."""
    data = tomllib.loads((Path(__file__).parent / "changes.toml").read_text())
    era = [era for era in data["era"] if era["since"] <= release][-1]
    return {file: _needs(part, data["why"].get(file, {})) for file, part in era["files"].items()}


def _needs(part: Mapping[str, Any], why: Mapping[str, str]) -> Needs:
    lists = {need: words.lower().split() for need, words in part.items() if need not in {"default", "why"}}
    drain = lists.pop("drain", [])
    by_option = {option: need for need, options in lists.items() for option in options}
    reasons = {name.lower(): text for name, text in {**why, **part.get("why", {})}.items()}
    return Needs(part["default"], by_option, frozenset(drain), reasons)


@cache
def get(name: str) -> Release:
    """Return what is known about a release in KNOWN."""
    data = tomllib.loads(_FILES[name].read_text())
    before = get(data["after"]) if "after" in data else Release("")
    debian = data.get("debian", {})
    return replace(
        before,
        name=name,
        serves=tuple(data["serves"]),
        suite=debian.get("suite"),
        packages=tuple(debian.get("packages", ())),
        apt_options=tuple(debian.get("apt_options", ())),
        apptainer_suite=debian.get("apptainer_suite"),
        federation_faults=tuple(
            FederationFault(frozenset(fault["older"]), fault["what"]) for fault in data.get("federation_faults", ())
        ),
        backup_faults=tuple(data.get("backup_faults", ())),
        federates_unregistered=data.get("federates_unregistered", before.federates_unregistered),
        wants_saved_usage=data.get("wants_saved_usage", before.wants_saved_usage),
        near_switches=data.get("near_switches", before.near_switches),
        tokens_are_safe=data.get("tokens_are_safe", before.tokens_are_safe),
        rest_tells_allocations=data.get("rest_tells_allocations", before.rest_tells_allocations),
        container_for_each_task=data.get("container_for_each_task", before.container_for_each_task),
        most_nodes=data.get("most_nodes", before.most_nodes),
        external_jobs=data.get("external_jobs", before.external_jobs),
        cgroup_conf_without_controllers=data.get(
            "cgroup_conf_without_controllers", before.cgroup_conf_without_controllers
        ),
        options=_options(before, data, name),
        gone=_gone(before, data, name),
        refused=_refused(before, data, name),
        plugins=_plugins(before, data),
        gone_plugins={
            **before.gone_plugins,
            **{
                f"{kind}/{plugin}": name
                for kind, words in data.get("gone_plugins", {}).items()
                for plugin in words.split()
            },
        },
        renamed_plugins={**before.renamed_plugins, **data.get("renamed_plugins", {})},
        words=_words(before, data, name),
        defaults={
            section: {key: Default(**default) for key, default in changed.items()}
            for section, changed in data.get("defaults", {}).items()
        },
    )


def since(section: str, key: str) -> str | None:
    """Return the first release in KNOWN that has an option; None if none has."""
    return next((name for name in KNOWN if key.lower() in get(name).options.get(section, {})), None)


def first(section: str) -> str | None:
    """Return the first release in KNOWN that knows options of a file; None if none does."""
    return next((name for name in KNOWN if section in get(name).options), None)


def upgrade_path(older: str, newer: str) -> tuple[str, ...]:
    """Return the shortest way of releases from one to another, each in the upgrade window of the next; () if none is.

    Of ways as short as one another the one over releases that Debian packages is returned.
    """
    ways: list[tuple[str, ...]] = [(older,)]
    while ways and not any(way[-1] == newer for way in ways):
        ways = [(*way, name) for way in ways for name in KNOWN if name > way[-1] and way[-1] in get(name).serves]
    found = [way for way in ways if way[-1] == newer]
    return max(found, key=lambda way: sum(bool(get(name).suite) for name in way), default=())


def between(older: str, newer: str) -> tuple[str, ...]:
    """Return the releases after `older` up to `newer`."""
    return tuple(name for name in KNOWN if older < name <= newer)


def _options(before: Release, data: dict[str, Any], name: str) -> dict[str, Mapping[str, Option]]:
    found: dict[str, dict[str, Option]] = {section: dict(options) for section, options in before.options.items()}
    for section, types in data.get("options", {}).items():
        for kind, words in types.items():
            found.setdefault(section, {}).update({word.lower(): Option(word, kind, name) for word in words.split()})
        found.setdefault(section, {})
    for section, words in data.get("gone", {}).items():
        for word in words.split():
            found[section].pop(word.lower(), None)
    for section, kinds in data.get("retyped", {}).items():
        for key, kind in kinds.items():
            found[section][key.lower()] = replace(found[section][key.lower()], type=kind)
    return dict(found)


def _gone(before: Release, data: dict[str, Any], name: str) -> dict[str, dict[str, str]]:
    found = {section: dict(words) for section, words in before.gone.items()}
    for section, words in data.get("gone", {}).items():
        found.setdefault(section, {}).update({word.lower(): name for word in words.split()})
    return found


def _refused(before: Release, data: dict[str, Any], name: str) -> dict[str, dict[str, Refusal]]:
    found = {section: dict(refusals) for section, refusals in before.refused.items()}
    for section, refusals in data.get("refused", {}).items():
        for key, refusal in refusals.items():
            when = refusal.get("when")
            found.setdefault(section, {})[key.lower()] = Refusal(
                severity=refusal["severity"],
                hint=refusal["hint"],
                when=re.compile(when) if when else None,
                otherwise=refusal.get("otherwise"),
                since=name,
            )
    return found


def _plugins(before: Release, data: dict[str, Any]) -> dict[str, frozenset[str]]:
    found = dict(before.plugins)
    for part in ("gone_plugins", "gone_values_without_plugin"):
        for kind, words in data.get(part, {}).items():
            found[kind] = found.get(kind, frozenset()) - {*words.split()}
    for part in ("plugins", "values_without_plugin"):
        for kind, words in data.get(part, {}).items():
            found[kind] = found.get(kind, frozenset()) | {*words.split()}
    return found


def _words(before: Release, data: dict[str, Any], name: str) -> dict[str, Words]:
    found = dict(before.words)
    for option, change in data.get("words", {}).items():
        old = found.get(option.lower(), Words("silent", frozenset(), {}))
        new, gone = ({*change.get(part, "").lower().split()} for part in ("new", "gone"))
        found[option.lower()] = Words(
            unknown=change.get("unknown", old.unknown),
            known=(old.known - gone) | new,
            gone={word: went for word, went in old.gone.items() if word not in new} | dict.fromkeys(gone, name),
        )
    return found


# The releases that Debian packages.
PACKAGED = tuple(name for name in KNOWN if get(name).suite)
