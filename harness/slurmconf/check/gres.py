"""gres.conf: names, and what slurmctld refuses about cloud nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from harness.parsing import hostlist
from harness.slurmconf.check.findings import ERROR, FATAL, WARNING, Finding
from harness.slurmconf.check.nodes import cpus_of, names_of, no_hostlist, node_names
from harness.slurmconf.check.parsed_file import Row, Source

# strtoll() and suffix_mult() of src/common.
_COUNT = re.compile(r"\s*([+-]?[0-9]{1,18})?([kmgtp](i?b)?)?", re.IGNORECASE)
_UNITS = " kmgtp"


def check(source: Source, slurm_conf: Source | None) -> Iterator[Finding]:
    """Yield problems of gres.conf, and contradictions between it and slurm.conf."""
    rows = [*source.rows("name"), *source.rows("nodename")]
    if slurm_conf is None:
        return
    known = {word.lower() for word in slurm_conf.words("grestypes")}
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
    if known:  # without GresTypes, slurmctld does not read the file
        yield from _cloud(source, slurm_conf, rows)
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
                yield slurm_conf.find(gres, WARNING, "gres", message, daemon="slurmd")


def _without_file(slurm_conf: Source, rows: list[Row]) -> Iterator[Finding]:
    """Yield GPUs of cloud nodes without a file (_find_fileless_gres of gres.c)."""
    with_file: set[str] = set()
    for row in rows:
        if row.own.keys() & {"file", "files", "multiplefiles"}:
            of_nodes = row.first.name.lower() == "nodename"
            with_file.update(names_of(row.first.value) or () if of_nodes else ["all"])
    for row in slurm_conf.rows("nodename"):
        gres = row.all.get("gres")
        lacking = {*(names_of(row.first.value, slurm_conf.release) or ())} - with_file
        if (
            gres
            and lacking
            and "all" not in with_file
            and (row.get("state") or "").upper().startswith("CLOUD")
            and any(word.partition(":")[0].lower() == "gpu" for word in gres.words())
        ):
            message = "gres.conf has no File for these GPUs of CLOUD nodes: they are ignored"
            yield slurm_conf.find(gres, WARNING, "gres", message)


def _cloud(source: Source, slurm_conf: Source, rows: list[Row]) -> Iterator[Finding]:
    """Yield what _parse_gres_config of gres.c refuses.

    slurmctld reads the file for CLOUD nodes only; for others, slurmd does.
    """
    cloud = {
        name: cpus_of(row)
        for name, row in node_names(slurm_conf).items()
        if (row.get("state") or "").upper().startswith("CLOUD")
    }
    for row in rows:
        where = cloud
        if row.first.name.lower() == "nodename":
            names = names_of(row.first.value, source.release) or ()
            where = {name: cloud[name] for name in names if name in cloud}
        if where:
            finding = next(_record(source, row, where), None)
            if finding:
                yield finding
                return  # slurmctld ends here


def _record(source: Source, row: Row, cloud: Mapping[str, int]) -> Iterator[Finding]:
    name = row.first.value if row.first.name.lower() == "name" else row.get("name") or ""
    cores = row.own.get("cores") or row.own.get("cpus")
    if cores and (least := _highest(cores.value)) is not None:
        for node, cpus in cloud.items():
            if least >= cpus:
                message = f'"{cores.value}" for {node}: only {cpus} CPUs are available'
                yield source.find(cores, FATAL, "value", message, daemon="slurmctld")
    file, files = row.own.get("file") or row.own.get("files"), row.own.get("multiplefiles")
    for setting in (file, files):
        if setting and (problem := no_hostlist(setting.value, source.release)):
            yield source.find(setting, FATAL, "hostlist", problem, daemon="slurmctld")
    size = len(names_of(file.value, source.release) or ()) if file else 0
    if files:
        size = 1
        if file:
            message = "File and MultipleFiles are mutually exclusive"
            yield source.find(files, FATAL, "contradiction", message, daemon="slurmctld")
        elif (
            source.release.counts_multiple_files
            and len(names_of(files.value, source.release) or ()) < 2
        ):
            message = "does not contain multiple files"
            yield source.find(files, FATAL, "count", message, "use File", "slurmctld")
    if count := row.own.get("count"):
        match = _COUNT.fullmatch(count.value)
        shared = name.lower() in source.release.shared_gres
        if match is None or int(match[1] or 0) < 0:
            message = f'"{count.value}" is not a count such as 4 or 2K'
            yield source.find(count, FATAL, "value", message, daemon="slurmctld")
        elif size and size != _size(match) and not shared:
            message = f"{count.value} does not match the number of files ({size})"
            yield source.find(count, FATAL, "count", message, daemon="slurmctld")


def _size(match: re.Match[str]) -> int:
    unit = (match[2] or " ").lower()
    base = 1000 if unit.endswith("b") and "i" not in unit else 1024
    return int(match[1] or 0) * int(base ** _UNITS.index(unit[0]))


def _highest(cores: str) -> int | None:
    """Return the highest number of a list such as 0-3,6; None if it is another text."""
    if not re.fullmatch("[0-9]{1,9}(-[0-9]{1,9})?(,[0-9]{1,9}(-[0-9]{1,9})?)*", cores):
        return None
    return max(map(int, re.findall("[0-9]+", cores)))
