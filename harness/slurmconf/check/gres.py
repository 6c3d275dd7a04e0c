"""gres.conf and Gres of slurm.conf: unknown names, and what slurmd and slurmctld refuse."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from harness.parsing import hostlist
from harness.slurmconf.check.findings import (
    ERROR,
    FATAL,
    SLURMCTLD,
    SLURMD,
    WARNING,
    Finding,
    only_in,
)
from harness.slurmconf.check.nodes import cpus_of, names_of, no_hostlist, node_names
from harness.slurmconf.check.parsed_file import Row, Setting, Source

# strtoll() and suffix_mult() of src/common.
_COUNT = re.compile(r"\s*([+-]?[0-9]{1,18})?([kmgtp](i?b)?)?", re.IGNORECASE)
_UNITS = " kmgtp"
_FILES = {"file", "files", "multiplefiles"}
_FLAGS = ("nvidia_gpu_env", "amd_gpu_env", "intel_gpu_env", "opencl_env", "no_gpu_env")


def check(source: Source, slurm_conf: Source | None) -> Iterator[Finding]:
    """Yield problems of gres.conf, and contradictions between it and slurm.conf."""
    rows = [*source.rows("name"), *source.rows("nodename")]
    if slurm_conf is None:
        return
    known = _known(slurm_conf)
    nodes = node_names(slurm_conf)
    gres_of: dict[str, set[str]] = {}
    for row in rows:
        is_name = row.first.name.lower() == "name"
        name = row.first if is_name else row.all.get("name")
        if name and name.value.lower() not in known:
            message = f"{name.value} is not in GresTypes of slurm.conf; the line is ignored"
            yield source.find(name, ERROR, "gres", message, f"GresTypes={name.value}")
        where = None if is_name else names_of(row.first.value, source.release)
        missing = [node for node in where or () if node not in nodes]
        if missing and len(missing) == len(where or ()):
            yield source.find(
                row.first,
                WARNING,
                "undefined",
                f"no such node in slurm.conf: {hostlist.fold(missing)}",
            )
        if name:
            for node in nodes if where is None else where:
                gres_of.setdefault(node, set()).add(name.value.lower())
    if known:  # without GresTypes, no daemon reads the file
        yield from _records(source, slurm_conf, rows)
    if known and source.release.logs_warnings:
        yield from _without_file(slurm_conf, rows)
    if not any("autodetect" in row.all for row in rows) and "autodetect" not in source.settings:
        yield from _gres_without_line(slurm_conf, gres_of)


def _gres_without_line(slurm_conf: Source, gres_of: dict[str, set[str]]) -> Iterator[Finding]:
    """Yield GPUs that slurm.conf names and gres.conf does not.

    slurmd detects fewer, and the node is drained.
    """
    for row in slurm_conf.rows("nodename"):
        gres = row.all.get("gres")
        for word in gres.words() if gres else []:
            name = word.partition(":")[0].lower()
            lacking = [
                node
                for node in names_of(row.first.value, slurm_conf.release) or ()
                if name not in gres_of.get(node, set())
            ]
            if gres and name == "gpu" and lacking:
                message = (
                    f"gres.conf has no {name} on {hostlist.fold(lacking)}: the nodes will be "
                    "drained"
                )
                yield slurm_conf.find(gres, WARNING, "gres", message, daemons=SLURMD)


def _without_file(slurm_conf: Source, rows: list[Row]) -> Iterator[Finding]:
    """Yield GPUs of cloud nodes without a file (_find_fileless_gres of gres.c)."""
    with_file: set[str] = set()
    for row in rows:
        if row.own.keys() & _FILES:
            of_nodes = row.first.name.lower() == "nodename"
            with_file.update(names_of(row.first.value) or () if of_nodes else ["all"])
    for row in slurm_conf.rows("nodename"):
        gres = row.all.get("gres")
        lacking = {*(names_of(row.first.value, slurm_conf.release) or ())} - with_file
        if (
            gres
            and lacking
            and "all" not in with_file
            and _is_cloud(row)
            and any(word.partition(":")[0].lower() == "gpu" for word in gres.words())
        ):
            message = "gres.conf has no File for these GPUs of CLOUD nodes: they are ignored"
            yield slurm_conf.find(gres, WARNING, "gres", message)


def _records(source: Source, slurm_conf: Source, rows: list[Row]) -> Iterator[Finding]:
    """Yield what slurmd refuses in the lines of its node, and slurmctld in those of CLOUD nodes.

    The functions are in gres.c.
    """
    nodes, known = node_names(slurm_conf), _known(slurm_conf)
    cloud = {name: cpus_of(row) for name, row in nodes.items() if _is_cloud(row)}
    lines_of: dict[str, list[Row]] = {name: [] for name in nodes}
    for row in rows:
        names: Iterable[str] = nodes
        if row.first.name.lower() == "nodename":
            names = names_of(row.first.value, source.release) or ()
        here = [name for name in names if name in nodes]
        if _name(row) in known or "autodetect" in row.own:
            for name in here:
                lines_of[name].append(row)
        if here:
            yield from _record(source, row, {name: cloud[name] for name in here if name in cloud})
    in_cloud = {tuple(map(id, lines_of[name])) for name in cloud}
    # Most nodes have the same lines.
    alike = {tuple(map(id, lines)): lines for lines in lines_of.values()}
    for key, lines in alike.items():
        daemons = SLURMCTLD + SLURMD if key in in_cloud else SLURMD
        for rule in (_different_records, _different_flags, _different_detection, _nothing_to_share):
            yield from only_in(daemons, rule(source, lines))
        if key in in_cloud:
            yield from only_in(SLURMCTLD, _detection_in_cloud(source, lines))


def _known(slurm_conf: Source) -> set[str]:
    return {word.lower() for word in slurm_conf.words("grestypes")}


def _is_cloud(row: Row) -> bool:
    return (row.get("state") or "").upper().startswith("CLOUD")


def _name(row: Row) -> str:
    return (row.first.value if row.first.name.lower() == "name" else row.get("name") or "").lower()


def _different_records(source: Source, rows: list[Row]) -> Iterator[Finding]:
    """Yield lines of a node that _validate_gres_conf refuses because of the ones before."""
    first_of: dict[str, Row] = {}
    for row in rows:
        first = first_of.setdefault(_name(row), row)
        if first is row or not _name(row):
            continue
        number = first.first.line.number
        for option, keys in (("File", _FILES), ("Type", {"type"})):
            if bool(keys & {*row.own}) != bool(keys & {*first.own}):
                message = f"either all lines of {_name(row)} have a {option}, or none: see {number}"
                yield source.find(row.first, FATAL, "contradiction", message)
        if not (_FILES | {"type"}) & {*row.own, *first.own}:
            message = f"{_name(row)} is already in line {number}; both need a File or a Type"
            yield source.find(row.first, FATAL, "twice", message)


def _different_flags(source: Source, rows: list[Row]) -> Iterator[Finding]:
    """Yield lines of a node whose Flags _parse_gres_config refuses because of the one before."""
    if not source.release.gres_environment_flags:
        return
    place = {id(line): number for number, (_, line) in enumerate(source.lines)}
    before: tuple[str, frozenset[str]] | None = None
    for row in sorted(rows, key=lambda row: place[id(row.first.line)]):
        flags = row.own.get("flags")
        words = frozenset(word for word in _FLAGS if flags and word in flags.value.lower())
        if flags and words:
            if "no_gpu_env" in words and len(words) > 1:
                message = "no_gpu_env excludes the other flags of the environment"
                yield source.find(flags, FATAL, "contradiction", message)
            elif before and before[0] == _name(row) and before[1] != words:
                message = "the line before has different flags of the environment"
                yield source.find(flags, FATAL, "contradiction", message)
        elif before and before[0] == _name(row):
            continue  # it has the flags of the line before
        if words or _name(row) == "gpu":
            before = _name(row), words


def _different_detection(source: Source, rows: list[Row]) -> Iterator[Finding]:
    """Yield the second AutoDetect of a node (_handle_local_autodetect)."""
    local = list(_local_detection(rows))
    for setting in local[1:]:
        if setting.value.lower() != local[0].value.lower():
            message = f"is {local[0].value} in line {local[0].line.number} for the same node"
            yield source.find(setting, FATAL, "contradiction", message)


def _local_detection(rows: list[Row]) -> Iterator[Setting]:
    for row in rows:
        if row.first.name.lower() == "nodename" and "autodetect" in row.own:
            yield row.own["autodetect"]


def _nothing_to_share(source: Source, rows: list[Row]) -> Iterator[Finding]:
    """Yield lines of a GRES that shares GPUs on a node without any (_merge_lists of gres_c_s.c)."""
    shared = [row for row in rows if _name(row) in source.release.shared_gres]
    detects = "autodetect" in source.settings or any(_local_detection(rows))
    if shared and not detects and not any(_name(row) == "gpu" for row in rows):
        message = f"{_name(shared[0])} requires a line of gpu for the same node"
        yield source.find(shared[0].first, FATAL, "missing", message)


def _detection_in_cloud(source: Source, rows: list[Row]) -> Iterator[Finding]:
    """Yield AutoDetect of CLOUD nodes: slurmctld's host has none of their devices."""
    everywhere = source.settings.get("autodetect")
    setting = next(_local_detection(rows), everywhere)
    severity = source.release.autodetect_in_cloud
    if setting and severity and setting.value.lower() != "off":
        message = "slurmctld cannot detect what CLOUD nodes have"
        yield source.find(setting, severity, "contradiction", message)


def mixed_types(slurm_conf: Source) -> Iterator[Finding]:
    """Yield Gres of a node of which only some have a type (_validate_slurm_conf of gres.c)."""
    known = _known(slurm_conf)
    for row in slurm_conf.rows("nodename"):
        gres = row.all.get("gres")
        typed: dict[str, set[bool]] = {}
        for word in gres.words() if gres else ():
            name, *rest = word.partition("(")[0].lower().split(":")
            typed.setdefault(name, set()).add(bool(rest) and not _COUNT.fullmatch(rest[0]))
        for name in typed:
            if gres and name in known and len(typed[name]) > 1:
                message = f"either all {name} have a type, or none"
                daemons = SLURMCTLD + SLURMD if _is_cloud(row) else SLURMD
                yield slurm_conf.find(gres, FATAL, "contradiction", message, daemons=daemons)


def _record(source: Source, row: Row, cloud: Mapping[str, int]) -> Iterator[Finding]:
    name = _name(row)
    if not name:
        return  # the line is ignored, with an error
    daemons = SLURMCTLD + SLURMD if cloud else SLURMD
    cores = row.own.get("cores") or row.own.get("cpus")
    if cores and (least := _highest(cores.value)) is not None:
        too_small = next((node for node, cpus in cloud.items() if least >= cpus), None)
        if too_small:
            message = f'"{cores.value}" for {too_small}: only {cloud[too_small]} CPUs are available'
            yield source.find(cores, FATAL, "value", message, daemons=SLURMCTLD)
    file, files = row.own.get("file") or row.own.get("files"), row.own.get("multiplefiles")
    for setting in (file, files):
        if setting and (problem := no_hostlist(setting.value, source.release)):
            yield source.find(setting, FATAL, "hostlist", problem, daemons=daemons)
    size = len(names_of(file.value, source.release) or ()) if file else 0
    if files:
        size = 1
        if file:
            message = "File and MultipleFiles are mutually exclusive"
            yield source.find(files, FATAL, "contradiction", message, daemons=daemons)
        elif (
            source.release.counts_multiple_files
            and len(names_of(files.value, source.release) or ()) < 2
        ):
            message = "does not contain multiple files"
            yield source.find(files, FATAL, "count", message, "use File", daemons)
    if count := row.own.get("count"):
        match = _COUNT.fullmatch(count.value)
        shared = name in source.release.shared_gres
        if match is None or int(match[1] or 0) < 0:
            message = f'"{count.value}" is not a count such as 4 or 2K'
            yield source.find(count, FATAL, "value", message, daemons=daemons)
        elif size and size != _size(match) and not shared:
            message = f"{count.value} does not match the number of files ({size})"
            yield source.find(count, FATAL, "count", message, daemons=daemons)


def _size(match: re.Match[str]) -> int:
    unit = (match[2] or " ").lower()
    base = 1000 if unit.endswith("b") and "i" not in unit else 1024
    return int(match[1] or 0) * int(base ** _UNITS.index(unit[0]))


def _highest(cores: str) -> int | None:
    """Return the highest number of a list such as 0-3,6; None if it is another text."""
    if not re.fullmatch("[0-9]{1,9}(-[0-9]{1,9})?(,[0-9]{1,9}(-[0-9]{1,9})?)*", cores):
        return None
    return max(map(int, re.findall("[0-9]+", cores)))
