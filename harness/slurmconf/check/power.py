"""Power saving, cloud nodes and TRES in slurm.conf: options that only work together."""

from __future__ import annotations

import re
from collections.abc import Iterator

from harness import releases
from harness.parsing import c_numbers, conf
from harness.slurmconf.check.findings import ERROR, FATAL, SLURMCTLD, WARNING, Finding, only_in
from harness.slurmconf.check.nodes import no_hostlist
from harness.slurmconf.check.parsed_file import Source

# TRES that are counted without a database (src/slurmctld/controller.c, _init_tres).
_TRES = {"cpu", "mem", "energy", "node", "billing", "vmem", "pages", "fs/disk"}
# _tres_weight_item of src/common/slurm_protocol_api.c: strtod(), and a unit of get_unit_type().
_WEIGHT = re.compile(
    r"\s*(?:[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?(?:[kmgtp].*)?|[kmgtp].*)", re.IGNORECASE
)
_TRES_KINDS = ("bb/", "gres/", "license/", "fs/", "ic/")
# The least time for a cloud's machines to boot, in seconds: slurm.conf(5), the default of
# ResumeTimeout.
_SHORTEST_BOOT = 60


def check(source: Source) -> Iterator[Finding]:
    """Yield problems with power saving and with TRES."""
    for rule in (_tres, _excluded_nodes, _power_saving):
        yield from only_in(SLURMCTLD, rule(source))


def _power_saving(source: Source) -> Iterator[Finding]:
    cloud = [
        row
        for row in source.rows("nodename")
        if (row.get("state") or "").upper().startswith("CLOUD")
    ]
    needed = [
        ("suspendtime", "SuspendTime"),
        ("suspendprogram", "SuspendProgram"),
        ("resumeprogram", "ResumeProgram"),
    ]
    missing = [spelled for key, spelled in needed if key not in source.settings]
    if "SuspendTime" in missing and any(
        "suspendtime" in row.values for row in source.rows("partitionname")
    ):
        missing.remove("SuspendTime")
    actions = {setting.value for setting in source.all_of("poweraction")}
    if cloud and missing:
        message = (
            f"CLOUD nodes require {', '.join(missing)}: slurmctld never powers them up or down"
        )
        yield source.find(cloud[0].all["state"], ERROR, "power-saving", message)
    elif _saves_power(source) and missing:
        about = source.settings.get("suspendtime")
        if about:
            yield source.find(
                about, ERROR, "power-saving", f"requires {', '.join(missing)}; power saving is off"
            )
    for key in ("suspendprogram", "resumeprogram", "resumefailprogram"):
        setting = source.settings.get(key)
        if (
            setting
            and not setting.value.startswith("/")
            and not {*setting.value.split()[:1]} & actions
        ):
            yield source.find(
                setting, ERROR, "path", "is not an absolute path; power saving is off"
            )
    resume = source.settings.get("resumetimeout")
    seconds = conf.number(resume.value) if resume else None
    if cloud and resume and seconds is not None and seconds < _SHORTEST_BOOT:
        message = (
            f"{resume.value} s may be too short for a machine to boot: nodes that take longer "
            "are set DOWN"
        )
        yield source.find(resume, WARNING, "power-saving", message, f"{_SHORTEST_BOOT} or more")


def is_suspend_time(value: str) -> bool:
    """Return whether slurm_atoul() makes a number of 32 bits of a SuspendTime, or it is -1.

    It reads NONE and INFINITE as 0.
    """
    return value == "-1" or c_numbers.atoul(value) < 2**32


def _saves_power(source: Source) -> bool:
    value = (source.get("suspendtime") or "").upper()
    return bool(value) and value not in {"NONE", "INFINITE", "-1"}


def _excluded_nodes(source: Source) -> Iterator[Finding]:
    """Yield a hostlist on which slurmctld crashes: src/slurmctld/power_save.c, _parse_exc_nodes.

    It does not notice that nodespec_to_hostlist() returns NULL.
    """
    setting = source.settings.get("suspendexcnodes")
    when = source.release.reads_suspend_exc_nodes
    programs = ("suspendprogram", "resumeprogram")
    saves = _saves_power(source) and all(map(source.get, programs))
    if setting is None or not (when == "always" or (when == "saving" and saves)):
        return
    # With a count of nodes, it cuts at each comma, even between brackets.
    parts = re.sub(":[^,]*", "", setting.value).split(",")
    for part in parts if ":" in setting.value else [setting.value]:
        if problem := no_hostlist(part, source.release):
            yield source.find(setting, FATAL, "hostlist", f"{problem}; slurmctld crashes")
            return


def _tres(source: Source) -> Iterator[Finding]:
    database = source.uses_slurmdbd()
    known = set(_TRES)
    for word in source.words("accountingstoragetres"):
        setting, name = source.settings["accountingstoragetres"], word.lower()
        if name not in _TRES and not name.startswith(_TRES_KINDS):
            yield source.find(setting, FATAL, "tres", f'"{word}" is not a TRES', "such as gres/gpu")
        elif name == "gres/" and database:
            message = f"{word} has no name: slurmctld crashes"
            yield source.find(setting, FATAL, "tres", message, "such as gres/gpu")
        elif name not in _TRES and not database:
            yield source.find(
                setting, FATAL, "tres", f"{word} requires accounting_storage/slurmdbd"
            )
        known.add(name)
    if not database:
        known = set(_TRES)
    weights = [
        row.all["tresbillingweights"]
        for row in source.rows("partitionname")
        if "tresbillingweights" in row.values
    ]
    weights += [
        row.all["tresweights"] for row in source.rows("nodename") if "tresweights" in row.values
    ]
    if (source.get("prioritytype") or default_priority(source)) == "priority/multifactor":
        weights += (
            [source.settings["priorityweighttres"]]
            if "priorityweighttres" in source.settings
            else []
        )
    for weight in weights:
        for word in weight.words():
            name, equals, value = word.partition("=")
            if not equals or not _WEIGHT.fullmatch(value):
                yield source.find(weight, FATAL, "tres", f'"{word}" is not TRES=WEIGHT')
            elif name.lower() not in known:
                hint = "use accounting_storage/slurmdbd and add it to AccountingStorageTRES"
                yield source.find(
                    weight, FATAL, "tres", f"{name} is not a TRES of this cluster", hint
                )


def default_priority(source: Source) -> str:
    """Return the PriorityType of a slurm.conf without one."""
    return releases.default_of(source.release, "slurm.conf", "PriorityType")
