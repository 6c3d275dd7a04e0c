"""gres.conf: names of GRES and nodes, and GPUs that it lacks."""

from __future__ import annotations

from collections.abc import Iterator

from harness.parsing import hostlist
from harness.slurmconf.check.findings import ERROR, SLURMCTLD, SLURMD, WARNING, Finding
from harness.slurmconf.check.nodes import is_cloud, names_of, node_names
from harness.slurmconf.check.parsed_file import Source


def check(source: Source, slurm_conf: Source | None) -> Iterator[Finding]:
    """Yield problems of gres.conf, and contradictions between it and slurm.conf."""
    rows = [*source.rows("name"), *source.rows("nodename")]
    if slurm_conf is None:
        return
    known = {word.lower() for word in slurm_conf.words("grestypes")}
    nodes = node_names(slurm_conf)
    cloud = {name for name, row in nodes.items() if is_cloud(row)}
    gres_of: dict[str, set[str]] = {}
    for row in rows:
        is_name = row.first.name.lower() == "name"
        name = row.first if is_name else row.all.get("name")
        where = None if is_name else names_of(row.first.value, source.release)
        if name and name.value.lower() not in known:
            message = f"{name.value} is not in GresTypes of slurm.conf; the line is ignored"
            of_cloud = cloud if where is None else cloud & {*where}
            daemons = SLURMCTLD + SLURMD if of_cloud else SLURMD
            yield source.find(name, ERROR, "gres", message, f"GresTypes={name.value}", daemons)
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
