"""GRES of nodes, as gres_g_node_config_load reads them from gres.conf and slurm.conf.

slurmd does so for its own node, and slurmctld for all nodes with State=CLOUD.

Functions of Slurm are in src/common/gres.c or src/interfaces/gres.c unless noted otherwise.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

from harness.parsing import c_numbers
from harness.slurmconf.check.findings import (
    ERROR,
    FATAL,
    INFO,
    SLURMCTLD,
    SLURMD,
    WARNING,
    Finding,
)
from harness.slurmconf.check.nodes import (
    bits_of,
    cpus_of,
    is_cloud,
    names_of,
    no_hostlist,
    node_names,
    shape_of,
)
from harness.slurmconf.check.parsed_file import Configuration, Row, Setting, Source
from harness.slurmconf.check.paths import is_missing_path

# strtoll() and suffix_mult() of src/common.
_COUNT = re.compile(r"\s*([+-]?[0-9]+)?([kmgtp](i?b)?)?", re.IGNORECASE | re.ASCII)
_UNITS = " kmgtp"
_LIMIT = 2**63 - 1
_MOST_LINKS = 1023  # GRES_MAX_LINK of src/common/gres.h
# Plugins of src/plugins/gres that refuse to load a file twice (gres_p_node_config_load).
_WITH_UNIQUE_FILES = {"gpu", "nic"}


@dataclass(frozen=True, slots=True)
class _Record:
    """A line of gres.conf as a daemon keeps it, or what slurm.conf has beyond gres.conf."""

    name: str
    kind: str | None
    count: int
    files: tuple[str, ...]
    setting: Setting
    joined: bool = False  # MultipleFiles: its files are one device
    cores: Setting | None = None


class _Node(NamedTuple):
    """What decides about the GRES of a node: the numbers of its lines, its CPUs and its Gres.

    `cpus` is None for slurmd, which counts those of its machine; `sockets` and `cores`, of each
    socket, are 0.
    """

    lines: tuple[int, ...]
    cpus: int | None
    sockets: int
    cores: int
    gres: Setting | None


class _Flags(NamedTuple):
    """Flags of the line before (prev_gres_flags_t), which count for the next node, too."""

    name: str = ""
    flags: frozenset[str] = frozenset()
    no_environment: bool = False


def check(configuration: Configuration) -> Iterator[Finding]:
    """Yield what slurmctld refuses about its cloud nodes, and slurmd about its own node.

    A daemon ends at the first fatal problem.
    """
    slurm_conf = configuration.get("slurm.conf")
    source = configuration.get("gres.conf")
    if not slurm_conf or not slurm_conf.words("grestypes"):
        return
    yield from _unusable(slurm_conf)
    if not (source or configuration.whole):
        return
    gres = _Gres(slurm_conf, source)
    nodes = list(gres.nodes())
    cloud = [node for row, node in nodes if is_cloud(row)]
    of_slurmctld = [*gres.problems(node for node, _ in groupby(cloud))]
    # Most nodes have the same lines.
    machines = dict.fromkeys(node._replace(cpus=None, sockets=0, cores=0) for _, node in nodes)
    of_slurmd = [finding for node in machines for finding in gres.problems([node])]
    for finding in dict.fromkeys([*of_slurmctld, *of_slurmd]):
        both = ((SLURMCTLD, of_slurmctld), (SLURMD, of_slurmd))
        daemons = (name for names, found in both for name in names if finding in found)
        yield replace(finding, daemons=tuple(daemons))


class _Gres:
    def __init__(self, slurm_conf: Source, source: Source | None) -> None:
        self._slurm_conf = slurm_conf
        self._release = slurm_conf.release
        self._source = source or slurm_conf
        self._rows = [*source.rows("name"), *source.rows("nodename")] if source else []
        self._previous = _Flags()

    def problems(self, nodes: Iterable[_Node]) -> Iterator[Finding]:
        """Yield the problems of a daemon that reads the GRES of nodes.

        Lines that are fatal on their own are all named, although the daemon ends at the first one.
        """
        self._previous = _Flags()
        fatal = False
        for node in nodes:
            # The parser reads the lines in the order of the file.
            for number in sorted(node.lines, key=self._place):
                row = self._rows[number]
                for finding in (*self._line(row, node.cpus), *self._environment(row)):
                    yield finding
                    fatal = fatal or finding.severity == FATAL
            for finding in () if fatal else self._together(node):
                yield finding
                fatal = fatal or finding.severity == FATAL
                if fatal:
                    break

    def _together(self, node: _Node) -> Iterator[Finding]:
        """Yield problems that the lines of a node have together."""
        yield from self._wrong_autodetect(node)
        detect = self._autodetect(node)
        if detect and node.cpus is not None:
            severity = self._release.cloud_autodetect
            yield self._source.find(detect, severity, "gres", "cannot be used on a cloud node")
            return
        # Later, lines with Name come before lines with NodeName.
        records = (self._record(self._rows[number]) for number in node.lines)
        lines = [record for record in records if record.name]
        yield from self._mixed(node, lines)
        yield from self._unexpected(node, lines)
        if not detect:
            yield from self._merged(node, lines)

    def nodes(self) -> Iterator[tuple[Row, _Node]]:
        """Yield the nodes with their lines of slurm.conf, in its order."""
        nodes = node_names(self._slurm_conf)
        for_all, own = [], {name: list[int]() for name in nodes}
        for number, row in enumerate(self._rows):
            if row.first.name.lower() == "name":
                for_all.append(number)
                continue
            for name in names_of(row.first.value, self._release) or ():
                if name in own:
                    own[name].append(number)
        for name, row in nodes.items():
            lines = (*for_all, *own[name])
            sockets, cores, _ = shape_of(row)
            yield row, _Node(lines, cpus_of(row), sockets, cores, row.all.get("gres"))

    def _place(self, number: int) -> int:
        return self._places[id(self._rows[number].first.line)]

    @cached_property
    def _places(self) -> Mapping[int, int]:
        return {id(line): place for place, (_, line) in enumerate(self._source.lines)}

    def _line(self, row: Row, cpus: int | None) -> Iterator[Finding]:
        """Check a line by itself (_parse_gres_config)."""
        source = self._source
        if row.first.name.lower() == "name" and "autodetect" in row.own:
            message = "has no effect in a line without NodeName"
            yield source.find(row.own["autodetect"], ERROR, "gres", message)
        if not _name(row):
            return  # it is ignored, with an error
        cores = _cores(row)
        if cores and cpus is not None and bits_of(cores.value, cpus) is None:
            message = f'"{cores.value}": only {cpus} CPUs are available'
            yield source.find(cores, FATAL, "value", message)
        file, files = row.own.get("file") or row.own.get("files"), row.own.get("multiplefiles")
        for device in filter(None, (file, files)):
            if problem := no_hostlist(device.value, source.release):
                yield source.find(device, FATAL, "hostlist", problem)
            paths = names_of(device.value, source.release) or ()
            missing = next(filter(is_missing_path, paths), None)
            if missing and cpus is None:  # slurmctld does not look for it (_my_stat)
                message = f'"{missing}" is not an absolute path: it does not exist'
                yield source.find(device, FATAL, "path", message)
        if file and files:
            message = "File and MultipleFiles are mutually exclusive"
            yield source.find(files, FATAL, "contradiction", message)
        elif (
            files
            and source.release.counts_multiple_files
            and len(names_of(files.value, source.release) or ()) < 2
        ):
            message = "does not contain multiple files"
            yield source.find(files, FATAL, "count", message, "use File")
        links = row.own.get("link") or row.own.get("links")
        own_place = 1 if source.release.needs_own_link else None
        if links and not _are_links(links.value, own_place):
            message = f'"{links.value}" is not a list of links, with -1 for itself; it is ignored'
            yield source.find(links, ERROR, "value", message)
        if setting := row.own.get("count"):
            record = self._record(row)
            count = _count(setting.value)
            size = 1 if record.joined else len(record.files)
            if count is None:
                message = f'"{setting.value}" is not a count such as 4 or 2K'
                yield source.find(setting, FATAL, "value", message)
            elif size and size != count and record.name not in self._release.shared_gres:
                message = f"{setting.value} does not match the number of files ({size})"
                yield source.find(setting, FATAL, "count", message)

    def _environment(self, row: Row) -> Iterator[Finding]:
        """Compare the environment flags of a line with those of the line before."""
        known = self._release.gres_flags
        variables = {flag for flag in known if flag.endswith("_env")}
        name, setting = _name(row), row.own.get("flags")
        if not variables or not name:
            return
        inherits = name == self._previous.name
        if setting:
            text = setting.value.lower()
            flags = frozenset(flag for flag in known if flag in text)
            nothing = "no_gpu_env" in text
            if nothing and flags & variables:
                message = "no_gpu_env excludes the flags that set variables"
                yield self._source.find(setting, FATAL, "contradiction", message)
            if name == "mps" and "all_sharing" not in text:
                flags |= {"one_sharing"} & {*known}
            if flags & variables or nothing or self._release.compares_all_gres_flags:
                if inherits and (flags, nothing) != self._previous[1:]:
                    message = f"differs from the flags of {name} before, or from their default"
                    yield self._source.find(setting, FATAL, "contradiction", message)
                self._previous = _Flags(name, flags, nothing)
                return
        inherits = inherits and self._previous[1:] != (frozenset(), False)
        if name == "gpu" and (setting or not inherits):
            self._previous = _Flags(name, frozenset({"by default"}), False)

    def _record(self, row: Row) -> _Record:
        """Return a line as a daemon keeps it; without a name, if it is not in GresTypes."""
        name = _name(row)
        joined = row.own.get("multiplefiles")
        file = joined or row.own.get("file") or row.own.get("files")
        files = names_of(file.value, self._release) or () if file else ()
        kind, count = row.own.get("type"), row.own.get("count")
        size = _count(count.value) if count else None
        if size is None:
            size = 1 if joined or not files else len(files)
        types = (
            kind for kind in self._slurm_conf.words("grestypes") if kind.lower() == name.lower()
        )
        known = next(types, "")
        is_joined = bool(joined)
        return _Record(known, kind and kind.value, size, files, row.first, is_joined, _cores(row))

    def _autodetect(self, node: _Node) -> Setting | None:
        """Return the AutoDetect of a node, if it is one that detects something."""
        local = self._local(node)
        setting = local[0] if local else self._source.settings.get("autodetect")
        return setting if setting and self._detected(setting) not in {"", "off"} else None

    def _detected(self, setting: Setting) -> str:
        """Return what an AutoDetect detects, "off", or "" (_handle_autodetect_flags)."""
        text = setting.value.lower()
        if word := next((word for word in self._release.autodetect if word in text), ""):
            return word
        is_off = (setting.value if self._release.exact_autodetect_off else text) == "off"
        return "off" if is_off else ""

    def _wrong_autodetect(self, node: _Node) -> Iterator[Finding]:
        """Yield unknown values, and a second AutoDetect of a node (_handle_local_autodetect)."""
        first = ""
        for setting in self._local(node):
            detected = self._detected(setting)
            yield from self._unknown_autodetect(setting)
            if first and detected != first:
                message = f"differs from {first} before, for the same node"
                yield self._source.find(setting, FATAL, "contradiction", message)
            first = first or detected
        if not first and (setting_of_all := self._source.settings.get("autodetect")):
            yield from self._unknown_autodetect(setting_of_all)

    def _unknown_autodetect(self, setting: Setting) -> Iterator[Finding]:
        if not self._detected(setting):
            known = ", ".join([*self._release.autodetect, "off"])
            message = f'"{setting.value}" is unknown, and ignored'
            severity = self._release.unknown_autodetect
            yield self._source.find(setting, severity, "word", message, f"known: {known}")

    def _local(self, node: _Node) -> list[Setting]:
        rows = (self._rows[number] for number in node.lines)
        return [
            row.own["autodetect"]
            for row in rows
            if row.first.name.lower() == "nodename" and "autodetect" in row.own
        ]

    def _mixed(self, node: _Node, records: list[_Record]) -> Iterator[Finding]:
        """Yield lines of a GRES that only some others are like (_validate_gres_conf and others)."""
        for name in self._slurm_conf.words("grestypes"):
            kinds, total = _configured(node.gres, name)
            if node.gres and kinds and total > sum(kinds.values()):
                message = f"some {name} have a type while others do not"
                yield self._slurm_conf.find(node.gres, FATAL, "gres", message)
            own = [record for record in records if record.name == name]
            for option, has in (
                ("File", [bool(record.files) for record in own]),
                ("Type", [record.kind is not None for record in own]),
            ):
                if len({*has}) > 1:
                    message = f"some lines of {name} have {option} while others do not"
                    odd = own[has.index(not has[0])]
                    yield self._source.find(odd.setting, FATAL, "gres", message)
            if len(own) > 1 and not own[0].files and own[0].kind is None:
                message = f"{name} is already described, and neither line has File or Type"
                yield self._source.find(own[1].setting, FATAL, "twice", message)

    def _unexpected(self, node: _Node, records: list[_Record]) -> Iterator[Finding]:
        """Yield lines that have more than slurm.conf (_check_conf_mismatch).

        The slurmd of a node without Gres logs it, too, but the lines are meant for other nodes.
        """
        if node.gres is None and node.cpus is None:
            return
        severity = WARNING if self._release.logs_warnings else INFO
        for name in self._slurm_conf.words("grestypes"):
            own = [record for record in records if record.name == name]
            left = [record.count for record in own]
            kinds, total = _configured(node.gres, name)
            for kind, expected in kinds.items() if kinds else (("", total),):
                for number, record in enumerate(own):
                    if record.kind and record.kind.lower() != kind.lower():
                        continue
                    if left[number] > expected:
                        left[number] -= expected
                        break
                    expected, left[number] = expected - left[number], 0
            for record, count in zip(own, left, strict=True):
                if count > 0:
                    message = f"{count} {name} more than in slurm.conf; they are ignored"
                    yield self._source.find(record.setting, severity, "count", message)

    def _merged(self, node: _Node, records: list[_Record]) -> Iterator[Finding]:
        """Yield what plugins refuse after _merge_config (gres_node_config_load, gres_c_s.c)."""
        if node.gres is None:
            return
        merged = {
            name: [*_merge(records, name, node.gres)]
            for name in self._slurm_conf.words("grestypes")
        }
        for name in _WITH_UNIQUE_FILES & {*merged}:
            devices = [record for record in merged[name] if not record.joined]
            times = Counter(file for record in devices for file in record.files)
            twice = [file for file, number in times.items() if number > 1]
            if twice:
                record = next(record for record in devices[::-1] if twice[0] in record.files)
                message = f"{twice[0]} is already a {name} of this node"
                yield self._source.find(record.setting, FATAL, "twice", message)
        for name in {*self._release.shared_gres} & {*merged}:
            own = merged[name]
            without = sum(not record.files for record in own)
            if own and not any(record.files for record in merged.get("gpu", ())):
                message = f"{name} requires a gpu that has File in gres.conf"
                yield self._slurm_conf.find(node.gres, FATAL, "gres", message)
            elif without > 1 or (without and without < len(own)):
                message = f"some {name} are without File in gres.conf, or have more than one type"
                yield self._slurm_conf.find(node.gres, FATAL, "gres", message)
        yield from self._ignored(node, merged)
        for name, own in merged.items():
            # gres_node_config_validate, which calls this for slurmctld
            if node.cpus is not None and any(record.files for record in own):
                yield from self._misplaced(node, name, own)

    def _ignored(self, node: _Node, merged: Mapping[str, list[_Record]]) -> Iterator[Finding]:
        """Yield GPUs of a cloud node without a file (_build_sharing_list, _find_fileless_gres)."""
        if node.gres is None or node.cpus is None or all(r.files for r in merged.get("gpu", ())):
            return
        if {*self._release.shared_gres} & {*merged}:
            message = "gres.conf has no File for some of these GPUs: they cannot be shared"
            yield self._slurm_conf.find(node.gres, ERROR, "gres", message)
        if self._release.logs_warnings:
            message = "gres.conf has no File for some of these GPUs: they are ignored"
            yield self._slurm_conf.find(node.gres, WARNING, "gres", message)

    def _misplaced(self, node: _Node, name: str, records: list[_Record]) -> Iterator[Finding]:
        """Yield Cores that slurmctld cannot use, and lines without (_foreach_rebuild_topo)."""
        total, rule = node.sockets * node.cores, self._release.cores_of_gres
        first: Setting | None = None
        unlike = False
        for record in records:
            cores = record.cores
            if not cores:
                unlike = unlike or first is not None
                continue
            first = first or cores
            bits = bits_of(cores.value, total)
            if bits is None:
                message = f'"{cores.value}": only {total} cores are available'
            elif rule and not _are_sockets(bits, node, one_or_all="all" in rule):
                message = f'"{cores.value}" is not {rule}, with {node.cores} cores in each'
            else:
                continue
            yield self._source.find(cores, ERROR, "value", message)
            if rule:
                return
        if first and unlike:
            message = f"is set for only some of the lines of {name}"
            yield self._source.find(first, ERROR, "gres", message)


def _unusable(slurm_conf: Source) -> Iterator[Finding]:
    """Yield Gres of nodes that daemons cannot use (_get_gres_cnt, gres_init_node_config)."""
    release = slurm_conf.release
    names = slurm_conf.words("grestypes")
    rows = (row for row in node_names(slurm_conf).values() if "gres" in row.all)
    for gres in dict.fromkeys(row.all["gres"] for row in rows):
        for bad in filter(None, (_bad_word(gres, name) for name in names)):
            message = f'"{bad}" has no count such as 4 or 2K; it and what follows are ignored'
            yield slurm_conf.find(gres, ERROR, "value", message)
        shared = [name for name in names if name in release.shared_gres and _total(gres, name)]
        if shared and release.needs_shared_gpu and not _total(gres, "gpu"):
            message = f"{shared[-1]} shares the gpu of a node, and this one has none"
            yield slurm_conf.find(gres, ERROR, "gres", message)


def _name(row: Row) -> str:
    is_name = row.first.name.lower() == "name"
    return row.first.value if is_name else row.get("name") or ""


def _configured(gres: Setting | None, name: str) -> tuple[dict[str, int], int]:
    """Return the count of each type, and of all, in Gres of a node (_get_gres_cnt)."""
    kinds: dict[str, int] = {}
    total = 0
    for word in gres.words() if gres else ():
        if word == name:
            return kinds, 1
        if not word.startswith(f"{name}:"):
            continue
        if _has_bad_count(word):
            break
        words = word.rpartition("(")[0] or word
        *others, last = words.split(":")[1:]
        number = _count(last) if c_numbers.begins_with_digit(last) else None
        count = 1 if number is None else number
        for kind in [*others] if c_numbers.begins_with_digit(last) else [*others, last]:
            if kind and kind.lower() != "no_consume":  # gres_add_type
                kinds[kind] = kinds.get(kind, 0) + count
        total += count
    return kinds, total


def _total(gres: Setting, name: str) -> int:
    return _configured(gres, name)[1]


def _bad_word(gres: Setting, name: str) -> str | None:
    """Return the first word of Gres whose count cannot be read, such as gpu:5x."""
    for word in gres.words():
        if word == name:
            return None
        if word.startswith(f"{name}:") and _has_bad_count(word):
            return word
    return None


def _has_bad_count(word: str) -> bool:
    last = word.partition("(")[0].rpartition(":")[2]
    return c_numbers.begins_with_digit(last) and not _COUNT.fullmatch(last)


def _merge(records: Iterable[_Record], name: str, gres: Setting) -> Iterator[_Record]:
    """Yield the lines that describe what slurm.conf has, and what no line describes."""
    kinds, total = _configured(gres, name)
    left = [record for record in records if record.name == name]
    for kind, configured in kinds.items() if kinds else ((None, total),):
        count = configured
        while count > 0:
            alike = (r for r in left if kind is None or (r.kind or "").lower() == kind.lower())
            record = next(alike, None)
            if record is None:
                yield _Record(name, kind, count, (), gres)
                break
            left.remove(record)
            used = record.files if record.joined else record.files[:count]
            yield replace(record, files=used)
            count -= record.count


def _count(value: str) -> int | None:
    """Return a Count; None if daemons refuse it. Negative numbers become large ones."""
    match = _COUNT.fullmatch(value)
    if match is None:
        return None
    number = c_numbers.strtol(match[1] or "")
    unit = (match[2] or " ").lower()
    base = 1000 if unit.endswith("b") and "i" not in unit else 1024
    size = number * int(base ** _UNITS.index(unit[0])) % 2**64
    # LONG_MIN, LONG_MAX and NO_VAL64
    return None if not -_LIMIT <= number < _LIMIT or size >= 2**64 - 2 else size


def _are_links(value: str, own_places: int | None) -> bool:
    """Return whether gres_links_validate accepts Links, with a number of -1 if it counts them."""
    links = [re.fullmatch(r"\s*([+-]?[0-9]+)", word, re.ASCII) for word in value.split(",") if word]
    numbers = [int(link[1]) if link else _LIMIT for link in links]
    return own_places in {None, numbers.count(-1)} and all(
        -2 <= link <= _MOST_LINKS for link in numbers
    )


def _cores(row: Row) -> Setting | None:
    return row.own.get("cores") or row.own.get("cpus")


def _are_sockets(bits: set[int], node: _Node, one_or_all: bool) -> bool:
    """Return whether cores are those of whole sockets (_check_core_range_matches_sock)."""
    used = Counter(bit // node.cores for bit in bits)
    whole = all(count == node.cores for count in used.values())
    return whole and (not one_or_all or len(used) in {0, 1, node.sockets})
