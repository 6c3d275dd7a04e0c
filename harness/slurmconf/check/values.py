"""Values of slurm.conf: removed plugins, unknown words, options that contradict each other.

Rules name the function of Slurm's source that refuses a value. It is in src/common/read_config.c
unless noted otherwise.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator

from harness.parsing import c_numbers
from harness.releases import Release
from harness.slurmconf.check import grammar, paths, times
from harness.slurmconf.check.findings import (
    ERROR,
    FATAL,
    INFO,
    SLURMCTLD,
    SLURMD,
    WARNING,
    Finding,
    only_in,
)
from harness.slurmconf.check.nodes import both_per_cpu_and_per_node, default_select
from harness.slurmconf.check.parsed_file import Setting, Source
from harness.slurmconf.check.power import reads_exclusions, uses_multifactor
from harness.slurmconf.check.sql_words import RESERVED_WORDS

# Option -> type of its plugin.
PLUGIN_OF = {
    "accountingstoragetype": "accounting_storage",
    "acctgatherenergytype": "acct_gather_energy",
    "acctgatherfilesystemtype": "acct_gather_filesystem",
    "acctgatherinfinibandtype": "acct_gather_interconnect",
    "acctgatherinterconnecttype": "acct_gather_interconnect",
    "acctgatherprofiletype": "acct_gather_profile",
    "authalttypes": "auth",
    "authtype": "auth",
    "burstbuffertype": "burst_buffer",
    "certmgrtype": "certmgr",
    "clifilterplugins": "cli_filter",
    "credtype": "cred",
    "cryptotype": "cred",
    "extsensorstype": "ext_sensors",
    "hashplugin": "hash",
    "httpparsertype": "http_parser",
    "jobacctgathertype": "jobacct_gather",
    "jobcomptype": "jobcomp",
    "jobcontainertype": "job_container",
    "jobsubmitplugins": "job_submit",
    "mcsplugin": "mcs",
    "metricstype": "metrics",
    "namespacetype": "namespace",
    "nodefeaturesplugins": "node_features",
    "powerplugin": "power",
    "preempttype": "preempt",
    "prepplugins": "prep",
    "prioritytype": "priority",
    "prioritysitefactorplugin": "site_factor",
    "proctracktype": "proctrack",
    "routeplugin": "route",
    "schedulertype": "sched",
    "selecttype": "select",
    "slurmctldplugstack": "slurmctld",
    "switchtype": "switch",
    "taskplugin": "task",
    "tlstype": "tls",
    "topologyplugin": "topology",
    "urlparsertype": "url_parser",
}
# Types of plugins without which daemons start, in all releases; only commands load cli_filter.
_UNNEEDED = {"cli_filter": INFO, "http_parser": ERROR, "route": ERROR, "url_parser": WARNING}
# Options that name several plugins.
_LISTS = {
    "acctgatherenergytype",
    "acctgatherinfinibandtype",
    "acctgatherinterconnecttype",
    "authalttypes",
    "burstbuffertype",
    "clifilterplugins",
    "hashplugin",
    "jobcontainertype",
    "jobsubmitplugins",
    "namespacetype",
    "nodefeaturesplugins",
    "powerplugin",
    "prepplugins",
    "slurmctldplugstack",
    "taskplugin",
    "tlstype",
}
# Old names of options -> the new ones, with which the old ones have no effect.
_REPLACED_BY = {
    "acctgatherinfinibandtype": "acctgatherinterconnecttype",
    "cryptotype": "credtype",
}
# Types for which any value with "none" in it means no plugin, in releases whose "none" plugins are
# not files: _validate_and_set_defaults.
_NONE_ANYWHERE = {
    "accounting_storage",
    "acct_gather_energy",
    "acct_gather_filesystem",
    "acct_gather_interconnect",
    "acct_gather_profile",
    "cli_filter",
    "job_container",
    "jobacct_gather",
    "jobcomp",
    "mcs",
    "namespace",
    "power",
    "site_factor",
    "switch",
    "task",
    "topology",
}
# Types whose plugin "none" does something: it trusts everybody.
_WITH_NONE = {"auth", "cred", "tls"}
# Options whose value is one word, commas included: log_string2num, parse_part_enforce_type.
_ONE_WORD = {
    "enforcepartlimits",
    "priorityusageresetperiod",
    "slurmctlddebug",
    "slurmctldsyslogdebug",
    "slurmddebug",
    "slurmdsyslogdebug",
}
# Options of slurm.conf whose plugins only one daemon loads.
_LOADED_BY = {
    **dict.fromkeys(
        ("jobcontainertype", "namespacetype", "proctracktype", "taskplugin"),
        SLURMD,
    ),
    **dict.fromkeys(
        (
            "authalttypes",
            "burstbuffertype",
            "extsensorstype",
            "jobcomptype",
            "jobsubmitplugins",
            "mcsplugin",
            "metricstype",
            "powerplugin",
            "preempttype",
            "prioritysitefactorplugin",
            "prioritytype",
            "schedulertype",
            "slurmctldplugstack",
        ),
        SLURMCTLD,
    ),
}
_RESOURCES = {
    "cr_cpu",
    "cr_cpu_memory",
    "cr_core",
    "cr_core_memory",
    "cr_socket",
    "cr_socket_memory",
    "cr_memory",
}
# Stands for any number in the words of an option.
_NUMBER = "<number>"
# TaskPluginParam: to what tasks are bound.
_BIND_UNITS = {"none", "boards", "sockets", "cores", "threads"}
# DEFAULT_MAX_JOB_ID (read_config.h) and MAX_JOB_ID (slurm.h).
_DEFAULT_MAX_JOB_ID, _LARGEST_JOB_ID = 0x03FF0000, 0x03FFFFFF
# Words of AccountingStorageEnforce that need slurmdbd.
_ENFORCES = (
    "1",
    "associations",
    "2",
    "limits",
    "safe",
    "wckeys",
    "qos",
    "all",
    "nojobs",
    "nosteps",
)
# Where only root may create directories, whatever the machine.
_OF_ROOT = re.compile("/|/(dev(?!/shm)|proc|sys)(/.*)?")
# storage_pass of _global_auth_key (slurm_protocol_api.c).
LONGEST_PASSWORD = 511
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
        if setting.name.lower() == "suspendexcstates" and not reads_exclusions(source):
            severity = INFO
        if setting.name.lower() == "propagateresourcelimits" and _limits_excepted(source):
            continue
        message = f'"{word}" is unknown{since}'
        hint = "blanks are part of the word; remove them" if word != word.strip() else ""
        yield source.find(
            setting,
            severity,
            "word",
            message if severity == FATAL else f"{message} and ignored",
            hint,
        )


def _limits_excepted(source: Source) -> bool:
    """Return whether PropagateResourceLimitsExcept overrides PropagateResourceLimits."""
    return "propagateresourcelimitsexcept" in source.settings


def is_level_number(word: str) -> bool:
    """Return whether log_string2num() reads a word as a number that is a level.

    The number has 16 bits, and NO_VAL16 stands for an unknown word.
    """
    return c_numbers.begins_with_digit(word) and c_numbers.atoi(word) % 2**16 != 2**16 - 2


def _unknown_words(release: Release, setting: Setting) -> Iterator[tuple[str, str, str]]:
    """Yield the unknown words of a value, with severity and since or before when, if known."""
    key = setting.name.lower()
    words = release.words.get(key)
    if not words:
        return
    one_word, rlimits = key in _ONE_WORD, key.startswith("propagateresourcelimits")
    # strtok_r with a comma leaves blanks in a word; parse_rlimits and xstrcasestr do not.
    separator = r"[,\s]+" if rlimits or words.unknown == "silent" else ","
    for word in [setting.value] if one_word else re.split(separator, setting.value, flags=re.ASCII):
        if rlimits and word != word.upper():
            yield word, words.unknown, ""  # only these are case-sensitive
            continue
        bare = word.lower().removeprefix("rlimit_") if rlimits else word.lower()
        stem = f"{bare.partition('=')[0]}="
        is_known = bare in words.known and bare != _NUMBER
        if (not bare and not one_word) or is_known or stem in words.known:
            continue
        if _NUMBER in words.known and is_level_number(bare):
            continue
        since = next(
            (
                f" {when} {of[name]}"
                for when, of in (("since", words.gone), ("before", words.later))
                for name in (bare, stem)
                if name in of
            ),
            "",
        )
        if words.unknown != "silent":
            yield word, ERROR if bare in words.reported else words.unknown, since
        elif since:
            yield word, ERROR if bare in words.reported else INFO, since


def wrong_plugins(source: Source, setting: Setting) -> Iterator[Finding]:
    """Yield the plugins that an option names and the release lacks (plugin_context_create)."""
    key = setting.name.lower()
    kind = PLUGIN_OF.get(key)
    if kind is None or key not in source.release.options[source.kind]:
        return
    refusal = source.release.refused.get(source.kind, {}).get(key)
    ignored = refusal and refusal.when is None and refusal.severity == ERROR
    if key == "authtype" and not setting.value:
        yield source.find(setting, INFO, "plugin", "the value is empty: nobody can authenticate")
        return
    ignored = ignored or (kind in _UNNEEDED and not source.release.plugins.get(kind))
    if ignored or _REPLACED_BY.get(key) in source.settings:
        return
    if key in _LISTS and (kind != "tls" or kind in source.release.bare_plugins):
        for word in filter(None, setting.value.split(",")):
            yield from _one_plugin(source, setting, kind, word)
    else:
        yield from _one_plugin(source, setting, kind, setting.value)


def _one_plugin(source: Source, setting: Setting, kind: str, word: str) -> Iterator[Finding]:
    release = source.release
    if release.none_is_no_file and _is_none(release, kind, word):
        return
    full = _full_name(release, setting.name.lower(), kind, word)
    if release.renamed_plugins.get(full, full) in release.plugins_of_slurmd:
        message = f"slurmctld cannot load {full}: undefined symbol conf"
        yield source.find(setting, FATAL, "plugin", message, daemons=SLURMCTLD)
    if new_name := release.renamed_plugins.get(full):
        message = f"{full} is now called {new_name}"
        yield source.find(setting, INFO, "renamed-plugin", message, f"write {new_name}")
        return
    family, _, name = full.partition("/")
    if name in release.plugins.get(family, frozenset()) and (
        family == kind or (full == "auth/slurm" and kind == "cred")
    ):
        if full == "topology/3d_torus":
            message = "requires a Slurm built with --with-dimensions=3, unlike Debian's"
            hint = "26.05 has topology/torus3d"
            yield source.find(setting, FATAL, "plugin", message, hint, SLURMCTLD)
        return
    gone = release.gone_plugins.get(full)
    message = f"plugin {full} was removed in {gone}" if gone else f"there is no plugin {full}"
    # plugin_load_and_link() does not survive a plugin that lacks the functions of its family.
    is_other = family != kind and name in release.plugins.get(family, frozenset())
    if is_other:
        message = f"{full} is not a plugin of {kind}"
    names = set(release.plugins.get(kind, ()))
    if kind == "cred" and "cred" in release.bare_plugins:
        names.add("slurm")
    known = ", ".join(f"{kind}/{name_}" for name_ in sorted(names))
    severity = _UNNEEDED.get(kind, FATAL)
    if kind in release.dispensable_plugins and not is_other:
        severity = ERROR
    if kind == "site_factor" and not uses_multifactor(source):
        severity = INFO
    daemons = _loaded_by(source, setting.name.lower())
    if kind in release.eager_plugins:
        severity, daemons = FATAL, SLURMCTLD
    yield source.find(
        setting,
        severity,
        "plugin",
        message if word else "the value is empty",
        _replacement(full) or f"known: {known}",
        daemons,
    )


def _loaded_by(source: Source, option: str) -> tuple[str, ...]:
    """Return the daemons that load the plugins of an option; () for all that read the file."""
    if source.kind != "slurm.conf":
        return ()
    if option in source.release.slurmd_does_not_load:
        return SLURMCTLD
    return _LOADED_BY.get(option, ())


def plugins(release: Release, key: str, value: str) -> list[str]:
    """Return the full names of the plugins that an option in PLUGIN_OF names, without "none"."""
    kind = PLUGIN_OF[key]
    words = filter(None, value.split(",") if key in _LISTS else [value])
    names = [_full_name(release, key, kind, word) for word in words]
    if release.none_is_no_file:
        return [name for name in names if not _is_none(release, kind, name)]
    has_none = "none" in release.plugins.get(kind, ()) and kind not in _WITH_NONE
    return [name for name in names if not (has_none and name == f"{kind}/none")]


def _full_name(release: Release, key: str, kind: str, word: str) -> str:
    """Return the name by which a release looks for a plugin (auth_g_init, cred_g_init, others)."""
    if key == "cryptotype":
        word = word.replace("crypto", "cred", 1)
    if kind in release.bare_plugins:
        if kind == "cred":
            word = word[5:] if word.startswith(("auth/", "cred/")) else word
            word = "auth/slurm" if word == "slurm" else word
        word = word if "/" in word else f"{kind}/{word}"
    if kind == "url_parser" and word in {"libhttp_parser", "http_parser/libhttp_parser"}:
        return "url_parser/libhttp_parser"  # url_parser_g_init
    if kind == "acct_gather_interconnect":
        return word.replace("infiniband", "interconnect")
    return word


def _is_none(release: Release, kind: str, word: str) -> bool:
    """Return whether a value means no plugin, in releases whose "none" plugins are not files."""
    if kind == "preempt":
        return word == "preempt/none"
    if kind == "topology" and release.default_topology_is_no_file:
        return word.lower() in {"none", "default", "topology/none", "topology/default"}
    return "none" in word.lower() and kind in _NONE_ANYWHERE


def _replacement(plugin: str) -> str:
    """Return the hint that names what replaces a plugin, if anything does."""
    return {
        "select/cons_res": "use select/cons_tres, which replaces it",
        "topology/hypercube": "use topology/tree",
        "job_container/tmpfs": "use namespace/tmpfs",
        "accounting_storage/filetxt": "use accounting_storage/slurmdbd",
    }.get(plugin, "")


def wrong_user(source: Source) -> Iterator[Finding]:
    """Yield users that cannot exist, because every daemon looks them up (uid_from_string)."""
    for key in ("slurmuser", "slurmduser"):
        setting = source.settings.get(key)
        if setting is None:
            continue
        if not is_user(source.release, setting.value):
            yield source.find(
                setting, FATAL, "value", f'"{setting.value}" is not the name of a user'
            )


def runs_as_root(source: Source) -> bool:
    """Return whether the SlurmUser of slurm.conf or slurmdbd.conf is root."""
    return (source.get("slurmuser") or "root") in {"root", "0"}


def reserved_port(source: Source, key: str) -> Iterator[Finding]:
    """Yield a port on which only root may listen (slurm_init_msg_engine_port, _open_ports)."""
    setting = source.settings.get(key)
    # DbdPort is a number, SlurmctldPort a text.
    is_text = source.release.options[source.kind][key].type == "string"
    port = c_numbers.atoi(setting.value) if setting and is_text else grammar.number_of(source, key)
    if setting and 0 < (port or 0) < 1024 and not runs_as_root(source):
        message = f"{setting.value}: only root may listen below 1024, and SlurmUser is not root"
        yield source.find(setting, FATAL, "value", message)


def wrong_boot_users(source: Source) -> Iterator[Finding]:
    """Yield users of AllowUserBoot that cannot exist: _make_uid_array of node_features plugins."""
    users = source.settings.get("allowuserboot")
    severity = FATAL if "helpers.conf NodeName" in source.release.options else ERROR
    for user in filter(None, users.value.split(",")) if users else ():
        if users and not is_user(source.release, user):
            yield source.find(users, severity, "value", f'"{user}" is not the name of a user')


def is_user(release: Release, name: str) -> bool:
    """Return whether a user with this name or number can exist."""
    too_large = c_numbers.strtol(name) > release.largest_user_id
    return not too_large and bool(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.@+$-]*", name))


def _preemption(source: Source) -> Iterator[Finding]:
    mode = source.settings.get("preemptmode")
    kind = source.settings.get("preempttype")
    words = [word.lower() for word in mode.value.split(",") if word] if mode else []
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
        if actions == words and actions and actions[0] in {"suspend", "on"}:
            yield source.find(
                mode, FATAL, "contradiction", "SUSPEND requires GANG", "PreemptMode=SUSPEND,GANG"
            )
            return
    off = not actions or actions[0] in {"off", "cluster"}
    preempts = kind is not None and kind.value in {"preempt/qos", "preempt/partition_prio"}
    none = kind is None or kind.value == "preempt/none"
    about = mode or kind
    if about and ((preempts and off) or (none and (not off or {*words} & (extra - {"gang"})))):
        message = (
            f"PreemptType={kind.value if kind else 'preempt/none'} and "
            f"PreemptMode={mode.value if mode else 'OFF'}"
        )
        yield source.find(about, FATAL, "contradiction", f"{message} contradict each other")


def _priority(source: Source) -> Iterator[Finding]:
    for name in ("prioritydecayhalflife", "prioritymaxage", "prioritycalcperiod"):
        setting = source.settings.get(name)
        problem = times.problem(setting.value) if setting else ""
        if setting and problem:
            yield source.find(setting, FATAL, "value", f'"{setting.value}" {problem}')
    exempt = source.settings.get("preemptexempttime")
    if exempt and times.seconds(exempt.value) in {None, times.NO_VALUE}:
        yield source.find(exempt, FATAL, "value", f'"{exempt.value}" {times.NO_TIME}')
    period = source.settings.get("prioritycalcperiod")
    if period and times.minutes(period.value) in {0, times.UNLIMITED}:
        yield source.find(period, FATAL, "value", f'"{period.value}": must be a minute or more')
    flags = source.settings.get("priorityflags")
    if (
        flags
        and re.search("depth_oblivious|no_fair_tree", flags.value, re.I)
        and source.release.crashes_without_fair_tree
        and not source.uses_slurmdbd()
        and uses_multifactor(source)
    ):
        message = "slurmctld crashes without FAIR_TREE and without slurmdbd (_decay_thread)"
        hint = "remove it, or use slurmdbd"
        yield source.find(flags, FATAL, "contradiction", message, hint, SLURMCTLD)
    half_life = source.settings.get("prioritydecayhalflife")
    if (
        half_life
        and times.minutes(half_life.value) == 0
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
            setting,
            FATAL,
            "contradiction",
            f"{', '.join(sorted(resources))} are mutually exclusive",
        )
        return
    if setting and sum(word.lower() in _RESOURCES for word in setting.words()) > 1:
        yield source.find(setting, FATAL, "twice", f"{resources.pop()} is named twice")
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
    linear = select == "select/linear" or (
        select == "select/cray_aries" and not words & {"other_cons_res", "other_cons_tres"}
    )
    if linear and consumes and setting:
        message, daemons = f"{select} accepts only CR_Memory", _loaded_by(source, "selecttype")
        yield source.find(setting, FATAL, "contradiction", message, daemons=daemons)
    elif (
        (select.startswith("select/cons_") or (select == "select/cray_aries" and not linear))
        and not consumes
        and about
        and (setting or source.release.cons_needs_parameters)
    ):
        yield source.find(
            about,
            FATAL,
            "missing",
            f"{select} requires CR_CPU, CR_Core or CR_Socket, or one of these with _Memory",
            daemons=SLURMCTLD,
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
        grammar.number_of(source, "unkillablesteptimeout"),
        grammar.number_of(source, "messagetimeout") or 10,
    )
    if (
        source.release.checks_unkillable_timeout
        and unkillable is not None
        and unkillable < 5 * message_timeout
    ):
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
        yield source.find(binds, INFO, "contradiction", message, "TaskPlugin=task/none")
    if (grammar.number_of(source, "slurmschedloglevel") or 0) > 0 and not source.get(
        "slurmschedlogfile"
    ):
        yield source.find(
            source.settings["slurmschedloglevel"], FATAL, "missing", "needs SlurmSchedLogFile"
        )


def _out_of_bounds(source: Source) -> Iterator[Finding]:
    bounds: list[tuple[str, Callable[[int], bool], str, str]] = [
        ("maxdbdmsgs", lambda n: n < 10000, FATAL, "must be at least 10000"),
        ("maxjobcount", lambda n: n < 1, FATAL, "must be at least 1"),
        ("maxjobid", lambda n: n > _LARGEST_JOB_ID, ERROR, f"is more than {_LARGEST_JOB_ID}"),
        ("maxstepcount", lambda n: n < 1, FATAL, "must be at least 1"),
        ("maxarraysize", lambda n: n > 4000001, ERROR, "cannot be more than 4000001"),
        ("propagateprioprocess", lambda n: n > 2, FATAL, "cannot be more than 2"),
        ("schedulertimeslice", lambda n: n < 5, ERROR, "must be at least 5"),
        ("treewidth", lambda n: n == 0, ERROR, "cannot be 0"),
    ]
    if source.release.checks_job_age:
        bounds += [
            ("messagetimeout", lambda n: n > 100, ERROR, "is too high to notice failures"),
            ("minjobage", lambda n: n < 2, ERROR, "must be at least 2"),
        ]
    if source.release.refuses_first_job_id_0:
        bounds.append(("firstjobid", lambda n: n == 0, FATAL, "cannot be 0"))
    for name, wrong, severity, message in bounds:
        setting = source.settings.get(name)
        number = grammar.number_of(source, name)
        if setting and number is not None and wrong(number):
            yield source.find(setting, severity, "value", f"{setting.value} {message}")
    first, last = grammar.number_of(source, "firstjobid"), grammar.number_of(source, "maxjobid")
    about = source.settings.get("firstjobid") or source.settings.get("maxjobid")
    first = 1 if first is None else first
    last = _DEFAULT_MAX_JOB_ID if last is None else min(last, _LARGEST_JOB_ID)
    if about and first > last:
        yield source.find(
            about, FATAL, "contradiction", f"FirstJobId ({first}) is more than MaxJobId ({last})"
        )


def _prolog_and_containers(source: Source) -> Iterator[Finding]:
    setting = source.settings.get("prologflags")
    flags = {word.lower() for word in source.words("prologflags")}
    contain = bool(flags & {*source.release.implies_contain})
    if setting and "nohold" in flags and contain:
        yield source.find(
            setting, FATAL, "contradiction", "NoHold cannot be combined with Contain or X11"
        )
    known = source.release.words["prologflags"].known
    if setting and {"serial", "runinjob"} <= flags & known:
        message = "Serial is incompatible with RunInJob (prolog_str2flags)"
        yield source.find(setting, ERROR, "contradiction", message)
    if setting and "x11" in flags and source.get("proctracktype") == "proctrack/linuxproc":
        yield source.find(
            setting, FATAL, "contradiction", "X11 cannot be combined with proctrack/linuxproc"
        )
    if setting and contain and source.get("proctracktype") not in {None, "proctrack/cgroup"}:
        yield source.find(
            setting, ERROR, "contradiction", "Contain requires proctrack/cgroup for pam_slurm_adopt"
        )
    container = source.settings.get("namespacetype") or source.settings.get("jobcontainertype")
    needs = container and any(part in container.value for part in source.release.contained)
    if container and needs and "none" not in container.value.lower() and not contain:
        yield source.find(
            container, FATAL, "missing", "needs PrologFlags=Contain", "PrologFlags=Contain"
        )


def _accounting(source: Source) -> Iterator[Finding]:
    storage = source.accounting_storage()
    default = source.settings.get("defaultstoragetype")
    if (
        default
        and "defaultstoragetype" in source.release.options["slurm.conf"]
        and "accountingstoragetype" not in source.settings
        and default.value not in {"none", "slurmdbd"}
    ):
        message = f"there is no plugin accounting_storage/{default.value} for slurmctld"
        yield source.find(default, FATAL, "plugin", message, "use slurmdbd", SLURMCTLD)
    enforce = source.settings.get("accountingstorageenforce")
    if enforce and not source.uses_slurmdbd() and _enforces(source.release, enforce):
        yield source.find(
            enforce, ERROR, "missing", "nothing is enforced without accounting_storage/slurmdbd"
        )
    password = source.settings.get("accountingstoragepass")
    if password and source.uses_slurmdbd() and len(password.value) > LONGEST_PASSWORD:
        message = f"is longer than {LONGEST_PASSWORD} characters (_global_auth_key)"
        yield source.find(password, FATAL, "value", message, daemons=SLURMCTLD)
    if source.uses_slurmdbd():
        host, other = "accountingstoragehost", "accountingstoragebackuphost"
        found = host_and_port(source, host, other, "AccountingStoragePort")
        yield from only_in(SLURMCTLD, found)
    port = source.settings.get("accountingstorageport")
    if port and source.uses_slurmdbd() and grammar.number_of(source, "accountingstorageport") == 0:
        message = "0 is not a port: slurmdbd cannot be reached"
        yield source.find(port, FATAL, "value", message, daemons=SLURMCTLD)
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


def _enforces(release: Release, setting: Setting) -> bool:
    """Return whether AccountingStorageEnforce has a known word; 20.11 finds it inside of others."""
    if release.words["accountingstorageenforce"].unknown == "silent":
        return any(word in setting.value.lower() for word in _ENFORCES)
    return any(word.lower() in _ENFORCES for word in setting.words())


def _exclusive_words(source: Source) -> Iterator[Finding]:
    """Yield words that exclude each other, and words that require a different option."""
    for name, first, second in source.release.exclusive_words:
        setting = source.settings.get(name)
        words = setting.value.lower() if setting else ""
        if setting and first in words and second in words:
            yield source.find(
                setting, FATAL, "contradiction", f"{first} and {second} are mutually exclusive"
            )
    for name, word in source.release.lone_words:
        setting = source.settings.get(name)
        known = source.release.words[name].known
        words_ = {other.lower() for other in setting.words()} & known if setting else set()
        if setting and word in words_ and len(words_) > 1:
            message = f"{word.upper()} cannot be combined with other words"
            yield source.find(setting, FATAL, "contradiction", message)
    stepmgr = source.settings.get("slurmctldparameters")
    flags = {word.lower() for word in source.words("prologflags")}
    if (
        stepmgr
        and "enable_stepmgr" in stepmgr.value.lower()
        and source.release.stepmgr_needs_contain
        and not flags & {*source.release.implies_contain}
    ):
        message = "enable_stepmgr needs PrologFlags=Contain"
        yield source.find(stepmgr, FATAL, "missing", message, daemons=SLURMCTLD)
    action = re.search(
        r"max_dbd_msg_action=([^,]*)", source.get("slurmctldparameters") or "", re.IGNORECASE
    )
    if (
        stepmgr
        and action
        and source.uses_slurmdbd()
        and action[1].lower() not in {"discard", "exit"}
    ):
        message = "max_dbd_msg_action must be discard or exit"
        yield source.find(stepmgr, FATAL, "word", message, daemons=SLURMCTLD)
    yield from no_protocol(source)


def no_protocol(source: Source) -> Iterator[Finding]:
    """Yield CommunicationParameters of slurm.conf or slurmdbd.conf that allow no protocol."""
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
    types = [*dict.fromkeys(source.words("grestypes"))]
    shared = [name for name in types if name in source.release.shared_gres]
    if gres and shared and "gpu" not in types:
        yield source.find(gres, FATAL, "missing", f"{', '.join(shared)} requires gpu")
    elif (
        gres
        and shared
        and (source.get("selecttype") or default_select(source)) != "select/cons_tres"
    ):
        message = f"{', '.join(shared)} requires select/cons_tres"
        yield source.find(gres, FATAL, "missing", message, daemons=SLURMCTLD)
    if gres and (twice := [name for name in types if source.words("grestypes").count(name) > 1]):
        message = f"{twice[0]} is listed twice; the second is ignored (gres_init)"
        yield source.find(gres, ERROR, "twice", message)
    ids = {_gres_id(name): name for name in types[::-1]}
    alike = [name for name in types if ids[_gres_id(name)] != name]
    if gres and alike:
        message = f"{alike[0]} has the same plugin ID as {ids[_gres_id(alike[0])]}"
        yield source.find(gres, FATAL, "contradiction", message, "rename one of them")
    port = source.settings.get("slurmctldport")
    if port and not _is_port_range(port.value):
        yield source.find(port, FATAL, "value", f'"{port.value}" is not a port or a range of ports')
    elif port and c_numbers.strtol(port.value) % 2**32 == 0:  # what an uint32_t holds of it
        message = f'"{port.value}" is not a port: slurmd keeps 0 of it (_read_config of slurmd.c)'
        yield source.find(port, FATAL, "value", message, daemons=SLURMD)
    yield from only_in(SLURMCTLD, reserved_port(source, "slurmctldport"))


def _gres_id(name: str) -> int:
    """Return the number by which Slurm knows a GRES (gres_build_id of gres.c)."""
    return sum(letter << 8 * (place % 4) for place, letter in enumerate(name.encode())) % 2**32


def _is_port_range(value: str) -> bool:
    """Return whether slurmctld accepts a SlurmctldPort; strtol has no bound of 65535."""
    ports = re.fullmatch(r"(\s*\+?\d{1,18})(?:-(.*))?", value, re.ASCII)
    if not ports:
        return False
    first = c_numbers.strtol(ports[1])
    last = first if ports[2] is None else c_numbers.strtol(ports[2])
    is_range = first > 0 and (ports[2] is None or last > first)
    # The number of ports has 16 bits, and must not be 0 (_open_ports, _slurmctld_rpc_mgr).
    return is_range and (last - first + 1) % 2**16 != 0


def _paths(source: Source) -> Iterator[Finding]:
    """Yield what _validate_bcast_exclude, _is_valid_path and set_slurmctld_state_loc refuse."""
    exclude = source.settings.get("bcastexclude")
    if exclude and exclude.value.lower() != "none":
        relative = [path for path in exclude.value.split(",") if path and path[0] != "/"]
        if relative:
            message = f"not an absolute path: {', '.join(relative)}"
            yield source.find(exclude, FATAL, "path", message)
    plugins = source.settings.get("plugindir")
    for path in filter(None, plugins.value.split(":")) if plugins else ():
        if plugins and not path.startswith("/"):
            yield source.find(plugins, FATAL, "path", f'"{path}" is not an absolute path')
    # _set_slurmd_spooldir of slurmd.c creates the last one.
    for key, daemons in (
        ("plugindir", ()),
        ("statesavelocation", SLURMCTLD),
        ("slurmdspooldir", SLURMD),
    ):
        setting = source.settings.get(key)
        if setting and not setting.value:
            yield source.find(setting, FATAL, "path", "the value is empty", daemons=daemons)
    spool = source.settings.get("slurmdspooldir")
    if spool and "/" in posixpath.normpath(spool.value):
        yield from paths.relative_path(source, spool, SLURMD)
    scheduler_log = source.settings.get("slurmschedlogfile")
    # sched_log_alter of log.c opens it; it is created, but not its directory.
    if scheduler_log and not scheduler_log.value:
        yield source.find(scheduler_log, FATAL, "path", "the value is empty", daemons=SLURMCTLD)
    elif scheduler_log and "/" in scheduler_log.value:
        yield from paths.relative_path(source, scheduler_log, SLURMCTLD)
        yield from paths.directory(source, scheduler_log, FATAL, SLURMCTLD)
    state = source.settings.get("statesavelocation")
    path = posixpath.normpath(state.value) if state else ""
    if state and path[0] != "/" and ("/" in path or not runs_as_root(source)):
        message = f'"{state.value}" is not an absolute path: slurmctld cannot create it'
        hint = "only double quotes are not part of a value" if path[0] == "'" else ""
        yield source.find(state, FATAL, "path", message, hint, SLURMCTLD)
    elif state and _OF_ROOT.fullmatch(path) and not runs_as_root(source):
        message = f'"{state.value}": only root can write there, and SlurmUser is not root'
        yield source.find(state, FATAL, "path", message, daemons=SLURMCTLD)


def wrong_database(
    source: Source, setting: Setting, daemons: tuple[str, ...] = ()
) -> Iterator[Finding]:
    """Yield the name of a database that a query needs quotes for (mysql_db_get_db_connection)."""
    # acct_get_db_name and jobcomp_p_set_location take the default instead of one with "." or "/".
    if setting.value.upper() in RESERVED_WORDS or not re.fullmatch(
        r"(?!\d+$)[\w$]{1,64}|.*[./].*", setting.value
    ):
        message = f'"{setting.value}" is not the name of a database without quotes'
        hint = "use letters, digits and _, or create the database before the daemon starts"
        yield source.find(setting, FATAL, "value", message, hint, daemons)


def host_and_port(source: Source, host: str, other: str, port: str) -> Iterator[Finding]:
    """Yield a port after the name of a host: no host has such a name, so the daemon waits for it.

    `host`, `other` and `port` are the options for the host, a host in its place, and its port;
    the first two are keys of settings.
    """
    setting = source.settings.get(host)
    found = re.fullmatch(r"[^:,\s]+:(\d+)", setting.value) if setting else None
    if setting and found and other not in source.settings:
        message = f'"{setting.value}" is not the name of a host, and never answers'
        yield source.find(setting, FATAL, "value", message, f"{port}={found[1]}")


def _tasks(source: Source) -> Iterator[Finding]:
    """Yield words of TaskPluginParam that exclude each other, or limits that do."""
    setting = source.settings.get("taskpluginparam")
    words = [word.lower() for word in setting.words()] if setting else []
    units = [word for word in words if word in _BIND_UNITS]
    bindings = [word for word in words if word.startswith("autobind=")]
    for several in (units, bindings):
        if setting and len(several) > 1:
            message = f"{' and '.join(several)} are mutually exclusive"
            yield source.find(setting, FATAL, "contradiction", message)
    known = source.release.words["taskpluginparam"].known
    for word in ("OOMKillStep", "SlurmdSpecOverride"):
        if (
            setting
            and word.lower() in known & {*words}
            and "task/cgroup"
            not in plugins(source.release, "taskplugin", source.get("taskplugin") or "")
        ):
            message = f"{word} must be used with task/cgroup"
            yield source.find(setting, FATAL, "missing", message, "TaskPlugin=task/cgroup")
    if setting and "slurmdspecoverride" in known & {*words}:
        if "cons_tres" not in (source.get("selecttype") or default_select(source)):
            message = "SlurmdSpecOverride must be used with select/cons_tres"
            yield source.find(setting, FATAL, "missing", message)
        if "slurmdoffspec" in words:
            message = "SlurmdOffSpec and SlurmdSpecOverride are mutually exclusive"
            yield source.find(setting, FATAL, "contradiction", message)
    if (
        setting
        and "slurmdoffspec" in words
        and "cray_aries" in source.release.plugins["task"]
        and "cray_aries" in (source.get("taskplugin") or "").lower()
    ):
        message = "SlurmdOffSpec cannot be combined with TaskPlugin=task/cray_aries"
        yield source.find(setting, FATAL, "contradiction", message)
    name = f"propagateresourcelimits{'except' if _limits_excepted(source) else ''}"
    limits = source.settings.get(name)
    for word in limits.words() if limits else ():
        if limits and word in {"ALL", "NONE"} and word != limits.value:
            yield source.find(limits, FATAL, "contradiction", f"{word} excludes other limits")


def _cray_tasks(source: Source) -> Iterator[Finding]:
    """Yield task/cray_aries without task/cgroup (init of task_cray_aries.c)."""
    tasks = source.settings.get("taskplugin")
    names = plugins(source.release, "taskplugin", tasks.value) if tasks else []
    if (
        tasks
        and "task/cray_aries" in names
        and "task/cgroup" not in names
        and "cray_aries" in source.release.plugins["task"]
    ):
        message = "task/cray_aries needs task/cgroup"
        yield source.find(tasks, FATAL, "missing", message, daemons=SLURMD)


def _suspend_time(source: Source) -> Iterator[Finding]:
    """Yield a SuspendTime that slurm_atoul reads as more than 32 bits."""
    setting = source.settings.get("suspendtime")
    if setting and source.release.bounds_suspend_time and not times.is_suspend_time(setting.value):
        yield source.find(setting, FATAL, "value", f'"{setting.value}" is not a time')


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
    _paths,
    _tasks,
    _cray_tasks,
    _suspend_time,
)
