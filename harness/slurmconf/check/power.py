"""Power saving, cloud nodes and TRES in slurm.conf: options that only work together."""

from __future__ import annotations

import re
from collections.abc import Iterator

from harness import releases
from harness.parsing import c_numbers, hostlist
from harness.slurmconf.check import grammar
from harness.slurmconf.check.findings import ERROR, FATAL, INFO, SLURMCTLD, Finding, only_in
from harness.slurmconf.check.nodes import is_cloud, names_of, no_hostlist, node_names
from harness.slurmconf.check.parsed_file import Setting, Source

# TRES that are counted without a database (src/slurmctld/controller.c, _init_tres).
_TRES = {"cpu", "mem", "energy", "node", "billing", "vmem", "pages", "fs/disk"}
# _tres_weight_item of src/common/slurm_protocol_api.c: strtod(), and a unit of get_unit_type().
_DECIMAL, _HEXADECIMAL = (
    rf"(?:{digit}+\.?{digit}*|\.{digit}+)(?:{exponent}[-+]?\d+)?"
    for digit, exponent in (("[0-9]", "e"), ("[0-9a-f]", "p"))
)
_WEIGHT = re.compile(
    rf"\s*(?:[-+]?(?:{_DECIMAL}|0x{_HEXADECIMAL}|inf|infinity|nan)(?:[kmgtp].*)?|[kmgtp].*)",
    re.IGNORECASE | re.ASCII,
)
_TRES_KINDS = ("bb/", "gres/", "license/", "fs/", "ic/")
# The least time for a cloud's machines to boot, in seconds: slurm.conf(5), the default of
# ResumeTimeout.
_SHORTEST_BOOT = 60
# MAX_NODE_RATE, in nodes per minute, and the longest interval in seconds (_init_power_config).
_HIGHEST_RATE, _LONGEST_INTERVAL = 60000, 60


def check(source: Source) -> Iterator[Finding]:
    """Yield problems with power saving and with TRES."""
    yield from _power_actions(source)
    for rule in (_tres, _excluded, _knl_nodes, _power_saving, _rates):
        yield from only_in(SLURMCTLD, rule(source))


def _power_actions(source: Source) -> Iterator[Finding]:
    """Yield what _parse_power_action of src/common/read_config.c refuses.

    The daemon that runs an action also checks its program (power_action_valid_prog).
    """
    for row in source.rows("poweraction"):
        location, program = row.own.get("location"), row.own.get("program")
        daemon = location.value.lower() if location else ""
        if daemon not in {"slurmctld", "slurmd"}:
            message = "requires Location=slurmctld or Location=slurmd"
            yield source.find(location or row.first, FATAL, "value", message)
        elif program is None or not program.value:
            yield source.find(program or row.first, FATAL, "missing", "requires a Program")
        elif not program.value.startswith("/"):
            message = f'"{program.value}" is not an absolute path'
            yield source.find(program, FATAL, "path", message, daemons=(daemon,))


def _power_saving(source: Source) -> Iterator[Finding]:
    rows = source.rows("nodename")
    if source.release.reports_cloud_without_power_saving:
        rows = [*rows, *source.rows("downnodes")]  # _set_slurmd_addr, after _handle_downnodes_line
    cloud = [row.all["state"] for row in rows if is_cloud(row)]
    about = _saves_power(source)
    needed = [
        ("suspendtime", "SuspendTime"),
        ("suspendprogram", "SuspendProgram"),
        ("resumeprogram", "ResumeProgram"),
    ]
    missing = [spelled for key, spelled in needed if key not in source.settings]
    if "SuspendTime" in missing and about:
        missing.remove("SuspendTime")
    actions = {setting.value for setting in source.all_of("poweraction")}
    if cloud and missing:
        message = (
            f"CLOUD nodes require {', '.join(missing)}: slurmctld never powers them up or down"
        )
        severity = ERROR if source.release.reports_cloud_without_power_saving else INFO
        yield source.find(cloud[0], severity, "power-saving", message)
    if about and missing:
        severity = ERROR if source.release.reports_no_power_saving else INFO
        message = f"requires {', '.join(missing)}; power saving is off"
        yield source.find(about, severity, "power-saving", message)
    severity = ERROR if about else INFO
    for key in ("suspendprogram", "resumeprogram", "resumefailprogram"):
        setting = source.settings.get(key)
        if not source.release.reports_no_power_saving:
            severity = ERROR
        elif not setting:
            severity = INFO  # slurmctld reads no further
        if (
            setting
            and not setting.value.startswith("/")
            and not {*setting.value.split()[:1]} & actions
        ):
            message = "is not an absolute path; power saving is off"
            yield source.find(setting, severity, "path", message)
            severity = INFO  # slurmctld reads no further
    resume = source.settings.get("resumetimeout")
    seconds = grammar.number_of(source, "resumetimeout")
    if cloud and resume and seconds is not None and seconds < _SHORTEST_BOOT:
        message = (
            f"{resume.value} s may be too short for a machine to boot: nodes that take longer "
            "are set DOWN"
        )
        yield source.find(resume, INFO, "power-saving", message, f"{_SHORTEST_BOOT} or more")


def _rates(source: Source) -> Iterator[Finding]:
    """Yield rates and intervals with which power saving is off: _init_power_config.

    Since 26.05, slurmctld goes on with a rate that is too high, and soon ends with SIGFPE:
    _rl_get_tokens divides by MAX_NODE_RATE / rate, which is 0.
    """
    if not source.release.checks_power_saving or not reads_exclusions(source):
        return
    rates = [grammar.number_of(source, key) for key in ("suspendrate", "resumerate")]
    parameters = source.settings.get("slurmctldparameters")
    for word in ("power_save_interval=", "power_save_min_interval="):
        found = re.search(f"{word}([^,]*)", parameters.value, re.I) if parameters else None
        # The number has 16 bits and no sign.
        is_long = found and c_numbers.atoi(found[1]) % 2**16 > _LONGEST_INTERVAL
        if parameters and found and is_long and rates != [0, 0]:
            message = f"{found[0]} is not between 0 and {_LONGEST_INTERVAL}; power saving is off"
            yield source.find(parameters, ERROR, "value", message)
            if source.release.checks_power_saving != "always":
                return  # slurmctld checks no further
            break
    for key, rate in zip(("suspendrate", "resumerate"), rates, strict=True):
        if rate is not None and rate > _HIGHEST_RATE:
            ends = source.release.checks_power_saving == "always"
            severity, effect = (
                (FATAL, "slurmctld divides by zero") if ends else (ERROR, "power saving is off")
            )
            message = f"cannot be more than {_HIGHEST_RATE}; {effect}"
            yield source.find(source.settings[key], severity, "value", message)


def reads_exclusions(source: Source) -> bool:
    """Return whether slurmctld reads the nodes, partitions and states that SuspendExc... names."""
    return _is_complete(source) or source.release.checks_power_saving == "always"


def _saves_power(source: Source) -> Setting | None:
    """Return the first SuspendTime, of the cluster, a partition or a node, that saves power."""
    rows = (*source.rows("partitionname"), *source.rows("nodename"))
    settings = [row.all["suspendtime"] for row in rows if "suspendtime" in row.values]
    if alone := source.settings.get("suspendtime"):
        settings.insert(0, alone)
    never = {"NONE", "INFINITE"} if source.release.has_infinite_suspend_time else {"NONE"}
    return next(
        (
            setting
            for setting in settings
            if setting.value.upper() not in never and c_numbers.atoi(setting.value) != -1
        ),
        None,
    )


def _excluded(source: Source) -> Iterator[Finding]:
    """Yield unknown nodes and partitions of SuspendExc... (power_save_exc_setup)."""
    if not reads_exclusions(source):
        return
    nodes = source.settings.get("suspendexcnodes")
    if nodes:
        crashes = list(_crashes(source, nodes))
        yield from crashes
        names = names_of(re.sub(":[^,]*", "", nodes.value), source.release) or ()
        sets = {"ALL", *(row.first.value for row in source.rows("nodeset"))}
        known = {*node_names(source), *(sets if source.release.excludes_node_sets else ())}
        missing = [name for name in names if name not in known]
        if missing and not crashes and "{" not in nodes.value:
            message = f"no such node: {hostlist.fold(missing)}"
            yield source.find(nodes, ERROR, "undefined", message)
    partitions = {row.first.value for row in source.rows("partitionname")}
    for name in source.words("suspendexcparts"):
        if name not in partitions:
            about = source.settings["suspendexcparts"]
            yield source.find(about, ERROR, "undefined", f"no such partition: {name}")


def _is_complete(source: Source) -> bool:
    """Return whether slurmctld can save power (_init_power_config)."""
    programs = ("suspendprogram", "resumeprogram")
    return _saves_power(source) is not None and all(map(source.get, programs))


def _knl_nodes(source: Source) -> Iterator[Finding]:
    """Yield node_features/knl_cray without power saving, which config_power_mgr() refuses.

    In 20.11, main() does. It is the only plugin whose node_features_p_node_power() is true.
    """
    setting = source.settings.get("nodefeaturesplugins")
    if (
        setting
        and {"knl_cray", "node_features/knl_cray"} & {*setting.words()}
        and "knl_cray" in source.release.plugins["node_features"]
        and not _is_complete(source)
    ):
        message = "knl_cray requires SuspendProgram, ResumeProgram and SuspendTime"
        yield source.find(setting, FATAL, "missing", message)


def _crashes(source: Source, setting: Setting) -> Iterator[Finding]:
    """Yield a hostlist on which slurmctld crashes: src/slurmctld/power_save.c, _parse_exc_nodes.

    It does not notice that nodespec_to_hostlist() returns NULL.
    """
    if not source.release.checks_power_saving:
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
        name = name.strip() if source.release.trims_tres else name
        if name not in _TRES and not name.startswith(_TRES_KINDS):
            yield source.find(setting, FATAL, "tres", f'"{word}" is not a TRES', "such as gres/gpu")
        elif name in source.release.renamed_tres:
            yield source.find(setting, FATAL, "tres", f"{word} is now called bb/datawarp")
        elif name == "gres/" and database:
            message = f"{word} has no name: slurmctld crashes"
            yield source.find(setting, FATAL, "tres", message, "such as gres/gpu")
        elif name not in _TRES and not name.startswith("fs/disk") and not database:
            yield source.find(
                setting, FATAL, "tres", f"{word} requires accounting_storage/slurmdbd"
            )
        known.add(name)
    if source.release.counts_gpu_usage and "gres/gpu" in known:
        known |= {"gres/gpumem", "gres/gpuutil"}
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
    if uses_multifactor(source):
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


def uses_multifactor(source: Source) -> bool:
    """Return whether the PriorityType of a slurm.conf is priority/multifactor."""
    default = releases.default_of(source.release, "slurm.conf", "PriorityType")
    return (source.get("prioritytype") or default) == "priority/multifactor"
