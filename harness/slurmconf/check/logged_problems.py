"""Options of slurm.conf that daemons accept with an error or a warning in the log.

Rules name the function of Slurm's source that logs it. It is _validate_and_set_defaults of
src/common/read_config.c unless noted otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from harness.parsing import c_numbers
from harness.slurmconf.check import grammar, paths, values
from harness.slurmconf.check.findings import (
    ERROR,
    INFO,
    SLURMCTLD,
    SLURMD,
    WARNING,
    Finding,
    only_in,
)
from harness.slurmconf.check.nodes import default_select, names_of
from harness.slurmconf.check.parsed_file import Source
from harness.slurmconf.check.power import uses_multifactor

# The weights that _validate_and_set_defaults adds up.
_WEIGHTS = ("age", "assoc", "fairshare", "jobsize", "partition", "qos")
# Directories that anyone can write in: hier(7).
_WORLD_WRITABLE = {"/tmp", "/var/tmp", "/dev/shm"}  # noqa: S108
# _cpu_freq_check_gov of src/common/cpu_frequency.c reads the beginning of a word only.
_GOVERNOR = re.compile("co|perf|pow|onde|sche", re.IGNORECASE)
_GOVERNORS = re.compile("((co|perf|pow|user|onde|sche)[^,]*(,|$))+$", re.IGNORECASE)
_PID_FILE_OF_SLURMD = "/var/run/slurmd.pid"  # by default
_LEVELS = 10  # LOG_LEVEL_END of src/common/log.h
_HIGHEST_EXIT_CODE = 255  # MAX_EXIT_VAL of src/slurmctld/job_mgr.c
_DEFAULT_HEALTH_CHECK_TIMEOUT = 60  # seconds: src/common/read_config.h


def check(source: Source) -> Iterator[Finding]:
    """Yield what daemons log about options of slurm.conf before they start anyway."""
    yield from _priority(source)
    yield from only_in(SLURMCTLD, _users_and_directories(source))
    yield from _health_check(source)
    yield from _gathering(source)
    yield from _unusable(source)
    yield from only_in(SLURMCTLD, _of_slurmctld(source))
    yield from _contradictions(source)
    yield from only_in(SLURMCTLD, _backfill(source))
    yield from only_in(SLURMCTLD, _builtin(source))


def _number(source: Source, name: str) -> int:
    return grammar.number_of(source, name) or 0


def _priority(source: Source) -> Iterator[Finding]:
    weights = [f"priorityweight{name}" for name in _WEIGHTS]
    if sum(_number(source, name) for name in weights) >= 2**32:
        about = source.settings[next(name for name in weights if _number(source, name))]
        message = "the weights are too high: their sum does not fit in 32 bits"
        yield source.find(about, ERROR, "value", message)
    # init() of src/plugins/priority/multifactor
    for name in ("priorityweightage", "priorityweightfairshare"):
        if _number(source, name) and uses_multifactor(source) and not source.uses_slurmdbd():
            message = "is ignored without accounting_storage/slurmdbd"
            yield source.find(source.settings[name], ERROR, "missing", message, daemons=SLURMCTLD)


def _users_and_directories(source: Source) -> Iterator[Finding]:
    """Yield what src/slurmctld/read_config.c checks, except for what is on the machine."""
    user = source.settings.get("slurmduser")
    plugins = (source.get("taskplugin") or "", source.get("proctracktype") or "proctrack/cgroup")
    if user and user.value not in {"root", "0"}:
        message = (
            f"slurmd ends unless it is started as {user.value}; its unit starts it as root (main)"
        )
        yield source.find(user, INFO, "user", message, "SlurmdUser=root", SLURMD)
        if "cgroup" in " ".join(plugins):
            message = (
                "cgroup plugins do not work unless SlurmdUser is root (_test_cgroup_plugin_use)"
            )
            yield source.find(user, ERROR, "contradiction", message, "SlurmdUser=root")
    for name in ("statesavelocation", "slurmdspooldir"):
        directory = source.settings.get(name)
        if directory and (directory.value.rstrip("/") or "/") in _WORLD_WRITABLE:
            message = f"anyone can write to {directory.value} (_stat_slurm_dirs)"
            yield source.find(directory, ERROR, "path", message, f"{directory.value}/slurm")
            return


def _health_check(source: Source) -> Iterator[Finding]:
    interval, timeout = (
        _number(source, "healthcheckinterval"),
        _number(source, "healthchecktimeout"),
    )
    setting = source.settings.get("healthchecktimeout")
    about = setting or source.settings.get("healthcheckinterval")
    if about is None or "healthchecktimeout" not in source.release.options["slurm.conf"]:
        return
    if setting and timeout == 0:
        yield source.find(setting, ERROR, "value", "cannot be 0; the default is used")
    timeout = timeout or _DEFAULT_HEALTH_CHECK_TIMEOUT
    if 0 < interval <= timeout:
        message = (
            f"HealthCheckTimeout ({timeout}) must be less than HealthCheckInterval ({interval})"
        )
        yield source.find(about, ERROR, "contradiction", message)


def _gathering(source: Source) -> Iterator[Finding]:
    """Yield what is wrong with the storage, JobAcctGatherType and its parameters."""
    storage = source.settings.get("defaultstoragetype")
    if (
        storage
        and storage.name.lower() in source.release.options["slurm.conf"]
        and "jobcomptype" not in source.settings
        and storage.value not in source.release.plugins["jobcomp"]
    ):
        message = "there is no such JobCompType; jobcomp/none is used"
        daemons = () if storage.value.lower() == "slurmdbd" else SLURMCTLD
        yield source.find(storage, ERROR, "missing", message, "set JobCompType", daemons)
    gather = source.settings.get("jobacctgathertype")
    kind = gather.value if gather else ""
    if gather and kind and "none" not in kind and source.get("proctracktype") == "proctrack/pgid":
        severity = WARNING if source.release.logs_warnings else INFO
        message = f"{kind} is much slower with proctrack/pgid (jobacct_gather_g_init)"
        yield source.find(gather, severity, "contradiction", message)
    parameters = source.settings.get("jobacctgatherparams")
    if (
        parameters
        and source.release.checks_word_pairs
        and re.search("usepss|noshared", parameters.value, re.IGNORECASE)
        and "linux" not in kind
    ):
        message = "UsePSS and NoShared are only compatible with jobacct_gather/linux"
        yield source.find(parameters, ERROR, "contradiction", message)


def _unusable(source: Source) -> Iterator[Finding]:
    """Yield values that slurmctld does not use."""
    for name, known in (("cpufreqdef", _GOVERNOR), ("cpufreqgovernors", _GOVERNORS)):
        governor = source.settings.get(name)
        if governor and not known.match(governor.value):
            message = f'"{governor.value}" is not a governor, and ignored (cpu_freq_verify_def)'
            yield source.find(governor, ERROR, "word", message)
    for name in ("requeueexit", "requeueexithold"):
        codes = source.settings.get(name)
        numbers = names_of(f"[{codes.value}]", source.release) if codes else ()
        if codes and not (numbers and all(map(_is_exit_code, numbers))):
            message = f'"{codes.value}" is not a list of exit codes (_make_requeue_array)'
            yield source.find(codes, ERROR, "value", message, daemons=SLURMCTLD)
    for name in ("slurmctlddebug", "slurmctldsyslogdebug", "slurmddebug", "slurmdsyslogdebug"):
        level = source.settings.get(name)
        if (
            level
            and values.is_level_number(level.value)
            and c_numbers.atoi(level.value) % 2**16 > _LEVELS
        ):
            message = f"is more than {_LEVELS - 1}, which is used (_normalize_debug_level)"
            yield source.find(level, ERROR, "value", message)
    port = source.settings.get("slurmdport")
    if port and grammar.number_of(source, "slurmdport") == 0:
        yield source.find(port, ERROR, "value", "cannot be 0: no node can be reached")
    setting = source.settings.get("slurmctldparameters")
    if setting and "enable_rpc_queue" in setting.value.lower():
        message = "enable_rpc_queue is experimental (rpc_queue_init)"
        yield source.find(setting, ERROR, "word", message, daemons=SLURMCTLD)
    if (
        setting
        and source.release.ignores_threadpool
        and "threadpool=enabled" in setting.value.lower().split(",")
    ):
        message = "threadpool=enabled is ignored (_parse_params of src/common/threadpool.c)"
        yield source.find(setting, WARNING, "word", message, daemons=SLURMCTLD)


def _of_slurmctld(source: Source) -> Iterator[Finding]:
    """Yield values that only slurmctld reads."""
    setting = source.settings.get("schedulerparameters")
    window = re.search("bf_window_linear=([^,]*)", setting.value, re.I) if setting else None
    is_cons = "cons_" in (source.get("selecttype") or default_select(source))
    if setting and window and is_cons and c_numbers.atoi(window[1]) < 1:
        message = f"{window[0]} is not a positive number (select_p_node_init)"
        yield source.find(setting, ERROR, "value", message)
    about = source.settings.get("preemptparameters")
    order = re.search("reorder_count=([^,]*)", about.value, re.I) if about else None
    if not order:
        about = setting
        order = re.search("preempt_reorder_count=([^,]*)", about.value, re.I) if about else None
    if about and order and is_cons and c_numbers.atoi(order[1]) < 0:
        message = f"{order[0]} is less than 0, and ignored (select_p_node_init)"
        yield source.find(about, ERROR, "value", message)
    pid_file = source.settings.get("slurmctldpidfile")
    if pid_file:
        yield from paths.directory(source, pid_file, ERROR)  # create_pidfile
        if pid_file.value == (source.get("slurmdpidfile") or _PID_FILE_OF_SLURMD):
            message = "slurmd has the same PID file (_init_pidfile)"
            yield source.find(pid_file, ERROR, "contradiction", message)
    mail = source.settings.get("mailprog")
    if mail and (not mail.value.startswith("/") or " " in mail.value):
        message = "must be the path of a program without arguments (main of slurmctld/controller.c)"
        yield source.find(mail, ERROR, "path", message)


def _is_exit_code(word: str) -> bool:
    return bool(re.fullmatch("[0-9]+", word)) and int(word) <= _HIGHEST_EXIT_CODE


def _contradictions(source: Source) -> Iterator[Finding]:
    mcs, parameters = source.get("mcsplugin"), source.settings.get("mcsparameters")
    if parameters and mcs and "none" in mcs:
        severity = WARNING if source.release.logs_warnings else INFO
        yield source.find(parameters, severity, "contradiction", f"has no effect with {mcs}")
    groups = parameters.value.partition(":")[2] if parameters else ""
    if parameters and mcs == "mcs/group" and not groups:
        severity = WARNING if source.release.logs_warnings else INFO
        message = "no group after a colon: only the defaults of mcs/group apply (init)"
        yield source.find(parameters, severity, "missing", message, "such as ondemand,select:g1|g2")
    slurmd = source.settings.get("slurmdparameters")
    words = slurmd.value.lower() if slurmd else ""
    if (
        slurmd
        and source.release.checks_word_pairs
        and {"l3cache_as_socket", "numa_node_as_socket"} <= {*words.split(",")}
    ):
        message = "numa_node_as_socket is ignored because of l3cache_as_socket"
        yield source.find(slurmd, ERROR, "contradiction", message)
    filters = source.settings.get("clifilterplugins")
    if (
        filters
        and source.release.none_is_no_file
        and "none" in filters.value.lower()
        and "," in filters.value
    ):
        message = '"none" cannot be combined with other plugins: all of them are ignored'
        yield source.find(filters, ERROR, "contradiction", message)


def _backfill(source: Source) -> Iterator[Finding]:
    """Yield limits that contradict each other: src/plugins/sched/backfill, _load_config."""
    setting = source.settings.get("schedulerparameters")
    if setting is None or source.get("schedulertype") not in {None, "sched/backfill"}:
        return
    limits = {
        name.lower(): c_numbers.atoi(number)
        for name, number in re.findall(r"(?:^|,)(bf_max_job_\w+)=(\d+)", setting.value)
    }
    test = limits.get("bf_max_job_test") or source.release.tested_jobs
    if limits.get("bf_max_job_part", 0) >= test:
        message = f"bf_max_job_part must be less than bf_max_job_test ({test})"
        yield source.find(setting, ERROR, "contradiction", message)
    for name in ("bf_max_job_user", "bf_max_job_user_part", "bf_max_job_assoc"):
        if limits.get(name, 0) > test:
            severity = WARNING if source.release.logs_warnings else INFO
            message = f"{name} is more than bf_max_job_test ({test})"
            yield source.find(setting, severity, "contradiction", message)
    if limits.get("bf_max_job_user") and limits.get("bf_max_job_assoc"):
        message = "bf_max_job_user is ignored because of bf_max_job_assoc"
        yield source.find(setting, ERROR, "contradiction", message)


def _builtin(source: Source) -> Iterator[Finding]:
    """Yield numbers that sched/builtin does not use: src/plugins/sched/builtin, _load_config.

    It looks for "interval=" anywhere, so that it reads sched_min_interval, too.
    """
    setting = source.settings.get("schedulerparameters")
    if setting is None or source.get("schedulertype") != "sched/builtin":
        return
    for words in (("interval=",), ("bf_max_job_test=", "max_job_bf=")):
        matches = (re.search(rf"{word}([^,]*)", setting.value, re.IGNORECASE) for word in words)
        found = next(filter(None, matches), None)
        if found and c_numbers.atoi(found[1]) < 1:
            message = f"{found[0]} is less than 1; sched/builtin uses its default"
            yield source.find(setting, ERROR, "value", message)
