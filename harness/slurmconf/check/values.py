"""Values of slurm.conf: removed plugins, unknown words, options that contradict each other.

Rules name the function of Slurm's source that refuses a value. It is in src/common/read_config.c
unless noted otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from harness.parsing import conf
from harness.releases import Release
from harness.slurmconf.check.findings import ERROR, FATAL, WARNING, Finding
from harness.slurmconf.check.nodes import TIME, both_per_cpu_and_per_node, default_select
from harness.slurmconf.check.parsed_file import Setting, Source

# Option -> type of its plugin. Items of a list may omit the type.
_PLUGIN_OF = {
    "accountingstoragetype": "accounting_storage",
    "acctgatherenergytype": "acct_gather_energy",
    "acctgatherfilesystemtype": "acct_gather_filesystem",
    "acctgatherinterconnecttype": "acct_gather_interconnect",
    "acctgatherprofiletype": "acct_gather_profile",
    "authalttypes": "auth",
    "authtype": "auth",
    "burstbuffertype": "burst_buffer",
    "certmgrtype": "certmgr",
    "clifilterplugins": "cli_filter",
    "credtype": "cred",
    "hashplugin": "hash",
    "jobacctgathertype": "jobacct_gather",
    "jobcomptype": "jobcomp",
    "jobcontainertype": "job_container",
    "jobsubmitplugins": "job_submit",
    "mcsplugin": "mcs",
    "namespacetype": "namespace",
    "nodefeaturesplugins": "node_features",
    "preempttype": "preempt",
    "prepplugins": "prep",
    "prioritytype": "priority",
    "prioritysitefactorplugin": "site_factor",
    "proctracktype": "proctrack",
    "schedulertype": "sched",
    "selecttype": "select",
    "slurmctldplugstack": "slurmctld",
    "switchtype": "switch",
    "taskplugin": "task",
    "tlstype": "tls",
    "topologyplugin": "topology",
}
_LISTS = {
    "acct_gather_energy",
    "acct_gather_interconnect",
    "auth",
    "burst_buffer",
    "cli_filter",
    "cred",
    "hash",
    "tls",
}
_LISTS |= {"job_container", "job_submit", "namespace", "node_features", "prep", "slurmctld", "task"}
# Types of plugins that slurmctld does not load.
_OF_SLURMD = {"proctrack", "task", "job_container", "namespace", "cli_filter"}
_RESOURCES = {
    "cr_cpu",
    "cr_cpu_memory",
    "cr_core",
    "cr_core_memory",
    "cr_socket",
    "cr_socket_memory",
    "cr_memory",
}
Rule = Callable[[Source], Iterator[Finding]]


def check(source: Source) -> Iterator[Finding]:
    """Yield the problems that the daemons have with values of slurm.conf."""
    for setting in source.settings.values():
        yield from _words(source, setting)
        yield from wrong_plugins(source, setting)
    for rule in _RULES:
        yield from rule(source)


def _words(source: Source, setting: Setting) -> Iterator[Finding]:
    for word, severity, since in _unknown_words(source.release, setting):
        if setting.name.lower() == "preemptmode" and severity == FATAL:
            continue  # see _preemption
        message = f'"{word}" is unknown since {since}' if since else f'"{word}" is unknown'
        yield source.find(
            setting, severity, "word", message if severity == FATAL else f"{message} and ignored"
        )


def _unknown_words(release: Release, setting: Setting) -> Iterator[tuple[str, str, str]]:
    """Yield the unknown words of a value, with severity and the release that removed them."""
    words = release.words.get(setting.name.lower())
    if not words:
        return
    for word in re.split(r"[,\s]+", setting.value):
        if word != word.upper() and setting.name.lower().startswith("propagateresourcelimits"):
            yield word, words.unknown, ""  # only these are case-sensitive
            continue
        bare = word.lower().removeprefix("rlimit_")
        stem = f"{bare.partition('=')[0]}="
        if not bare or bare in words.known or stem in words.known:
            continue
        if "<number>" in words.known and bare[0].isdigit():
            continue
        since = words.gone.get(bare) or words.gone.get(stem, "")
        if words.unknown != "silent":
            yield word, words.unknown, since
        elif since:
            yield word, WARNING, since


def wrong_plugins(source: Source, setting: Setting) -> Iterator[Finding]:
    """Yield the plugins that an option names and the release lacks."""
    key = setting.name.lower()
    kind = _PLUGIN_OF.get(key)
    if kind is None or key not in source.release.options[source.kind]:
        return
    for word in setting.words() if kind in _LISTS else [setting.value]:
        yield from _one_plugin(source, setting, kind, word)


def _one_plugin(source: Source, setting: Setting, kind: str, word: str) -> Iterator[Finding]:
    release = source.release
    if not word or (release.none_is_no_file and _is_none(release, kind, word)):
        return
    full = word if "/" in word or kind not in _LISTS else f"{kind}/{word}"
    if kind == "acct_gather_interconnect":
        full = full.replace("infiniband", "interconnect")
    if new_name := release.renamed_plugins.get(full):
        message = f"{full} is now called {new_name}"
        yield source.find(setting, WARNING, "renamed-plugin", message, f"write {new_name}")
        return
    family, _, name = full.partition("/")
    if (family == kind or kind == "cred") and name in release.plugins.get(family, frozenset()):
        if full == "topology/3d_torus":
            message = "requires a Slurm built with --with-dimensions=3, unlike Debian's"
            yield source.find(setting, FATAL, "plugin", message, "26.05 has topology/torus3d")
        return
    gone = release.gone_plugins.get(full)
    message = f"plugin {full} was removed in {gone}" if gone else f"there is no plugin {full}"
    known = ", ".join(f"{kind}/{name_}" for name_ in sorted(release.plugins.get(kind, ())))
    daemon = "slurmd" if kind in _OF_SLURMD else ""
    yield source.find(
        setting,
        ERROR if kind in release.dispensable_plugins else FATAL,
        "plugin",
        message,
        _replacement(full) or f"known: {known}",
        daemon,
    )


def _is_none(release: Release, kind: str, word: str) -> bool:
    """Return whether a value means no plugin, in releases whose "none" plugins are not files."""
    if kind == "preempt":
        return word == "preempt/none"
    if kind == "topology" and release.default_topology_is_no_file:
        return word.lower() in {"none", "default", "topology/none", "topology/default"}
    return "none" in word.lower() and kind not in {
        "auth",
        "cred",
        "proctrack",
        "priority",
        "sched",
        "select",
    }


def _replacement(plugin: str) -> str:
    """Return the hint that names what replaces a plugin, if anything does."""
    return {
        "select/cons_res": "use select/cons_tres, which replaces it",
        "topology/hypercube": "use topology/tree",
        "job_container/tmpfs": "use namespace/tmpfs",
        "accounting_storage/filetxt": "use accounting_storage/slurmdbd",
    }.get(plugin, "")


def wrong_user(source: Source) -> Iterator[Finding]:
    """Yield a SlurmUser that cannot be the name of a user, because every daemon looks it up."""
    setting = source.settings.get("slurmuser")
    if setting and not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", setting.value):
        yield source.find(setting, FATAL, "value", f'"{setting.value}" is not the name of a user')


def _preemption(source: Source) -> Iterator[Finding]:
    mode = source.settings.get("preemptmode")
    kind = source.settings.get("preempttype")
    words = [word.lower() for word in mode.words()] if mode else []
    extra = {*source.release.preempt_modifiers}
    actions = [word for word in words if word not in extra]
    if mode:
        unknown = [
            word for word in actions if word not in source.release.words["preemptmode"].known
        ]
        if unknown or len(actions) > 1:
            yield source.find(
                mode,
                FATAL,
                "word",
                f'"{mode.value}" is not one of OFF, CANCEL, REQUEUE, SUSPEND and GANG',
            )
            return
        if "gang" in words and {"within", "priority"} & {*words}:
            yield source.find(
                mode, FATAL, "word", "GANG cannot be combined with WITHIN or PRIORITY"
            )
            return
        if actions and actions[0] in {"suspend", "on"} and "gang" not in words:
            yield source.find(
                mode, FATAL, "contradiction", "SUSPEND requires GANG", "PreemptMode=SUSPEND,GANG"
            )
            return
    off = not actions or actions[0] in {"off", "cluster"}
    preempts = kind is not None and kind.value in {"preempt/qos", "preempt/partition_prio"}
    none = kind is None or kind.value == "preempt/none"
    about = mode or kind
    if about and ((preempts and off and not ({*words} & (extra - {"gang"}))) or (none and not off)):
        message = (
            f"PreemptType={kind.value if kind else 'preempt/none'} and "
            f"PreemptMode={mode.value if mode else 'OFF'}"
        )
        yield source.find(about, FATAL, "contradiction", f"{message} contradict each other")


def _priority(source: Source) -> Iterator[Finding]:
    for name in (
        "prioritydecayhalflife",
        "prioritymaxage",
        "prioritycalcperiod",
        "preemptexempttime",
    ):
        setting = source.settings.get(name)
        if setting and not TIME.fullmatch(setting.value):
            yield source.find(
                setting, FATAL, "value", f'"{setting.value}" is not a time such as 7-0 or 12:00:00'
            )
    half_life = source.settings.get("prioritydecayhalflife")
    if (
        half_life
        and re.fullmatch(r"0+(-0*)?(:0+)*", half_life.value)
        and "priorityusageresetperiod" not in source.settings
    ):
        yield source.find(half_life, FATAL, "contradiction", "0 requires PriorityUsageResetPeriod")


def _selection(source: Source) -> Iterator[Finding]:
    """Check SelectTypeParameters; select plugins' init() and _parse_select_type_param."""
    select = source.get("selecttype") or default_select(source)
    setting = source.settings.get("selecttypeparameters")
    words = {word.lower() for word in source.words("selecttypeparameters")}
    resources = words & _RESOURCES
    if setting and len(resources) > 1:
        yield source.find(
            setting, FATAL, "contradiction", f"{', '.join(sorted(resources))} exclude each other"
        )
        return
    if setting and "cr_one_task_per_core" in words and resources & {"cr_cpu", "cr_cpu_memory"}:
        yield source.find(
            setting,
            FATAL,
            "contradiction",
            "CR_ONE_TASK_PER_CORE cannot be combined with CR_CPU",
            "use CR_Core",
        )
    consumes = resources - {"cr_memory"}
    about = source.settings.get("selecttype") or setting
    if select == "select/linear" and consumes and setting:
        yield source.find(setting, FATAL, "contradiction", "select/linear accepts only CR_Memory")
    elif (
        select.startswith("select/cons_")
        and not consumes
        and about
        and (setting or source.release.cons_needs_parameters)
    ):
        yield source.find(
            about,
            FATAL,
            "missing",
            f"{select} requires CR_CPU, CR_Core or CR_Socket, or one of these with _Memory",
        )
    severity = source.release.linear_with_tree
    if select == "select/linear" and source.get("topologyplugin") == "topology/tree" and severity:
        message = "select/linear does not work with topology/tree"
        yield source.find(
            source.settings["topologyplugin"],
            severity,
            "contradiction",
            message,
            "use select/cons_tres",
        )


def _limits(source: Source) -> Iterator[Finding]:
    """Yield numbers that the parser accepts and the daemon does not."""
    yield from _out_of_bounds(source)
    unkillable, message_timeout = (
        _seconds(source, "unkillablesteptimeout"),
        _seconds(source, "messagetimeout") or 10,
    )
    if source.release.checks_unkillable_timeout and unkillable and unkillable < 5 * message_timeout:
        yield source.find(
            source.settings["unkillablesteptimeout"],
            ERROR,
            "value",
            f"{unkillable} is less than 5 times MessageTimeout ({message_timeout}): nodes may go "
            "down",
        )
    if source.release.checks_memory_limits:
        yield from both_per_cpu_and_per_node(source, source.settings)
    binds = source.settings.get("taskplugin")
    if (
        binds
        and "affinity" in binds.value.lower()
        and "config_overrides" in source.words("slurmdparameters")
    ):
        message = (
            "task/affinity cannot bind to CPUs that exist only because of config_overrides: jobs "
            "fail and the node drains"
        )
        yield source.find(binds, WARNING, "contradiction", message, "TaskPlugin=task/none")
    if (_seconds(source, "slurmschedloglevel") or 0) > 0 and not source.get("slurmschedlogfile"):
        yield source.find(
            source.settings["slurmschedloglevel"], FATAL, "missing", "needs SlurmSchedLogFile"
        )


def _out_of_bounds(source: Source) -> Iterator[Finding]:
    bounds: list[tuple[str, Callable[[int], bool], str, str]] = [
        ("maxdbdmsgs", lambda n: 0 < n < 10000, FATAL, "must be at least 10000"),
        ("maxjobcount", lambda n: n < 1, FATAL, "must be at least 1"),
        ("maxstepcount", lambda n: n < 1, FATAL, "must be at least 1"),
        ("maxarraysize", lambda n: n > 4000001, ERROR, "cannot be more than 4000001"),
        ("messagetimeout", lambda n: n > 100, ERROR, "is too high to notice failures"),
        ("minjobage", lambda n: 0 < n < 2, ERROR, "must be at least 2"),
        ("schedulertimeslice", lambda n: n < 5, ERROR, "must be at least 5"),
        ("treewidth", lambda n: n == 0, ERROR, "cannot be 0"),
    ]
    if source.release.refuses_first_job_id_0:
        bounds.append(("firstjobid", lambda n: n == 0, FATAL, "cannot be 0"))
    for name, wrong, severity, message in bounds:
        setting = source.settings.get(name)
        number = conf.number(setting.value) if setting else None
        if setting and number is not None and wrong(number):
            yield source.find(setting, severity, "value", f"{setting.value} {message}")


def _seconds(source: Source, name: str) -> int | None:
    return conf.number(source.get(name) or "")


def _prolog_and_containers(source: Source) -> Iterator[Finding]:
    setting = source.settings.get("prologflags")
    flags = {word.lower() for word in source.words("prologflags")}
    contain = bool(flags & {*source.release.implies_contain})
    if setting and "nohold" in flags and contain:
        yield source.find(
            setting, FATAL, "contradiction", "NoHold cannot be combined with Contain or X11"
        )
    if setting and "x11" in flags and source.get("proctracktype") == "proctrack/linuxproc":
        yield source.find(
            setting, FATAL, "contradiction", "X11 cannot be combined with proctrack/linuxproc"
        )
    if setting and contain and source.get("proctracktype") not in {None, "proctrack/cgroup"}:
        yield source.find(
            setting, ERROR, "contradiction", "Contain requires proctrack/cgroup for pam_slurm_adopt"
        )
    container = source.settings.get("namespacetype") or source.settings.get("jobcontainertype")
    needs = container and {container.value, "*"} & {*source.release.contained}
    if container and needs and "none" not in container.value.lower() and not contain:
        yield source.find(
            container, FATAL, "missing", "needs PrologFlags=Contain", "PrologFlags=Contain"
        )


def _accounting(source: Source) -> Iterator[Finding]:
    storage = source.get("accountingstoragetype") or ""
    enforce = source.settings.get("accountingstorageenforce")
    if (
        enforce
        and not source.uses_slurmdbd()
        and {word.lower() for word in enforce.words()} - {"nojobs", "nosteps", "none", "0"}
    ):
        yield source.find(
            enforce, ERROR, "missing", "nothing is enforced without accounting_storage/slurmdbd"
        )
    gather = source.settings.get("jobacctgathertype")
    if gather and "none" not in gather.value and (not storage or "none" in storage):
        yield source.find(
            gather,
            ERROR,
            "missing",
            "the gathered data is not stored",
            "set AccountingStorageType or JobCompType",
        )
    mcs, parameters = source.settings.get("mcsplugin"), source.settings.get("mcsparameters")
    if parameters and not mcs:
        yield source.find(parameters, FATAL, "missing", "needs MCSPlugin")
    if mcs and mcs.value == "mcs/group" and not parameters:
        yield source.find(mcs, FATAL, "missing", "mcs/group needs MCSParameters")


def _exclusive_words(source: Source) -> Iterator[Finding]:
    """Yield words that exclude each other, and words that require a different option."""
    for name, first, second in source.release.exclusive_words:
        setting = source.settings.get(name)
        words = setting.value.lower() if setting else ""
        if setting and first in words and second in words:
            yield source.find(
                setting, FATAL, "contradiction", f"{first} and {second} exclude each other"
            )
    stepmgr, contain = (
        source.settings.get("slurmctldparameters"),
        (source.get("prologflags") or "").lower(),
    )
    if (
        stepmgr
        and "enable_stepmgr" in stepmgr.value
        and source.release.stepmgr_needs_contain
        and "contain" not in contain
    ):
        yield source.find(stepmgr, FATAL, "missing", "enable_stepmgr needs PrologFlags=Contain")
    action = re.search(
        r"max_dbd_msg_action=([^,]*)", source.get("slurmctldparameters") or "", re.IGNORECASE
    )
    if (
        stepmgr
        and action
        and source.uses_slurmdbd()
        and action[1].lower() not in {"discard", "exit"}
    ):
        yield source.find(stepmgr, FATAL, "word", "max_dbd_msg_action must be discard or exit")
    setting = source.settings.get("communicationparameters")
    if (
        setting
        and "disableipv4" in setting.value.lower()
        and "enableipv6" not in setting.value.lower()
    ):
        yield source.find(setting, FATAL, "contradiction", "DisableIPv4 needs EnableIPv6")


def _resources(source: Source) -> Iterator[Finding]:
    """Yield problems with GresTypes and ports."""
    gres = source.settings.get("grestypes")
    types = {word.lower() for word in source.words("grestypes")}
    shared = types & {*source.release.shared_gres}
    if gres and shared and "gpu" not in types:
        yield source.find(gres, FATAL, "missing", f"{', '.join(shared)} requires gpu")
    elif (
        gres
        and shared
        and (source.get("selecttype") or default_select(source)) != "select/cons_tres"
    ):
        yield source.find(gres, FATAL, "missing", f"{', '.join(shared)} requires select/cons_tres")
    port = source.settings.get("slurmctldport")
    bounds = re.fullmatch(r"(\d+)(?:-(\d+))?", port.value) if port else None
    if port and not (bounds and 0 < int(bounds[1]) <= int(bounds[2] or bounds[1]) < 65536):
        yield source.find(port, FATAL, "value", f'"{port.value}" is not a port or a range of ports')


_RULES: tuple[Rule, ...] = (
    wrong_user,
    _preemption,
    _priority,
    _selection,
    _limits,
    _prolog_and_containers,
    _accounting,
    _exclusive_words,
    _resources,
)
