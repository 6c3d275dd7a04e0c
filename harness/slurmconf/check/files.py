"""The other configuration files, such as slurmdbd.conf and gres.conf."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from harness.parsing import c_numbers, conf
from harness.slurmconf.check import grammar, gres, node_gres, nodes, paths, values
from harness.slurmconf.check.findings import ERROR, FATAL, INFO, SLURMD, WARNING, Finding
from harness.slurmconf.check.parsed_file import Configuration, Setting, Source
from harness.slurmconf.check.read_files import is_read

# Beginnings of options of acct_gather.conf -> the plugins that know them; the first one counts.
_ACCT_GATHER = {
    "energyipmi(assume|bridge|discrete|entity|ignore|interpret|power|reread|shared|variable)": (
        "energy/ipmi",
    ),
    "energyipmi": ("energy/ipmi", "energy/xcc"),
    "energyxcc": ("energy/xcc",),
    "profilehdf5": ("profile/hdf5",),
    "profileinfluxdb": ("profile/influxdb",),
    "infinibandofed": ("interconnect/ofed", "infiniband/ofed"),
    "interconnectofed": ("interconnect/ofed", "infiniband/ofed"),
    "sysfsinterfaces": ("interconnect/sysfs",),
}
_ACCT_GATHER_TYPES = (
    "acctgatherenergytype",
    "acctgatherprofiletype",
    "acctgatherinterconnecttype",
    "acctgatherinfinibandtype",
)
_PURGE_OPTION = re.compile("purge(event|job|jobenv|jobscript|resv|step|suspend|txn|usage)after")
# NO_VAL: slurmdb_parse_purge
_NO_AGE = 2**32 - 2
_PURGE = re.compile(
    r"\d+(h|ho|hou|hour|hours|d|da|day|days|m|mo|mon|mont|month|months)?",
    re.IGNORECASE | re.ASCII,
)

# Options of knl_generic.conf without Allow and Default -> their modes, by the names for them:
# _knl_mcdram_token and _knl_numa_token.
_KNL_MODES = {
    "mcdram": {word: word for word in ("cache", "hybrid", "flat", "equal", "auto")},
    "numa": {word: word for word in ("a2a", "snc2", "snc4", "hemi", "quad")},
}
_KNL_MODES["mcdram"]["memory"] = "flat"
# Values of CreateEnvFile in oci.conf.
_ENVIRONMENT_FILES = (
    *("null", "true", "y", "yes", "1", "newline"),
    *("false", "disabled", "n", "no", "0"),
)
# SLURM_TMPFS_DEF_DIRS of read_jcconf.h.
_JOB_DIRS = "/tmp,/dev/shm"  # noqa: S108


def check(configuration: Configuration) -> Iterator[Finding]:
    """Yield problems in the other files, and contradictions between them and slurm.conf."""
    slurm_conf = configuration.get("slurm.conf")
    for kind, rule in (
        ("slurmdbd.conf", _slurmdbd),
        ("gres.conf", gres.check),
        ("acct_gather.conf", _acct_gather),
        ("job_container.conf", _job_container),
        ("knl_generic.conf", _knl_generic),
        ("oci.conf", _oci),
    ):
        source = configuration.get(kind)
        if source and is_read(configuration, kind):
            yield from rule(source, slurm_conf)
    yield from node_gres.check(configuration)
    if plugstack := configuration.others.get("plugstack.conf"):
        yield from _plugstack(plugstack)


def _slurmdbd(source: Source, _: Source | None) -> Iterator[Finding]:
    """Yield what src/slurmdbd/read_config.c refuses."""
    yield from _storage(source)
    yield from values.wrong_user(source)
    yield from values.no_protocol(source)
    timeout = source.settings.get("messagetimeout")
    if timeout and (grammar.number_of(source, "messagetimeout") or 0) > 100:
        severity = WARNING if source.release.logs_warnings else INFO
        yield source.find(timeout, severity, "value", "is too high to notice failures")
    authentication = source.settings.get("authinfo")
    if authentication and len(authentication.value.encode()) > values.LONGEST_PASSWORD:
        message = "is too long: slurmdbd exits at its first message (_global_auth_key)"
        yield source.find(authentication, INFO, "value", message)
    yield from values.reserved_port(source, "dbdport")
    user = source.settings.get("slurmuser")
    if user and source.release.slurmdbd_compares_user_names and user.value.isdigit():
        message = "must be a name: slurmdbd compares it with that of the owner of slurmdbd.conf"
        yield source.find(user, FATAL, "value", message)
    yield from _storage_parameters(source)
    if database := source.settings.get("storageloc"):
        yield from values.wrong_database(source, database)
    yield from values.host_and_port(source, "storagehost", "storagebackuphost", "StoragePort")
    # slurmdbd runs on either; without DbdHost, on localhost.
    hosts = [source.settings[key] for key in ("dbdhost", "dbdbackuphost") if key in source.settings]
    if "dbdhost" in source.settings and not any(
        re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", host.value) for host in hosts
    ):
        for host in hosts:
            message = f'"{host.value}" is not the name of a host'
            yield source.find(host, FATAL, "value", message)
    # _check_storage_pass_script_permissions of mysql_common.c looks for the last one.
    for key in ("archivedir", "archivescript", "plugindir", "storagepassscript"):
        setting = source.settings.get(key)
        if setting and not setting.value:
            yield source.find(setting, FATAL, "path", "the value is empty")
        elif setting and (key != "plugindir" or ":" not in setting.value):
            yield from paths.relative_path(source, setting)
        elif setting and all(map(paths.is_missing_path, filter(None, setting.value.split(":")))):
            message = f'"{setting.value}": none of the directories exists'
            yield source.find(setting, FATAL, "path", message)
    if script := source.settings.get("archivescript"):
        yield from paths.directory(source, script, FATAL)
    if pid_file := source.settings.get("pidfile"):
        yield from paths.directory(source, pid_file, ERROR)  # create_pidfile
    for key, setting in source.settings.items():
        yield from values.wrong_plugins(source, setting)
        yield from _slurmdbd_value(source, key, setting)
    if "dbdhost" not in source.settings:
        yield source.find_here(ERROR, "missing", "DbdHost", "is not set; slurmdbd uses localhost")


def _storage_parameters(source: Source) -> Iterator[Finding]:
    """Yield words that _set_mysql_ssl_opts of mysql_common.c ignores."""
    options = source.release.options["slurmdbd.conf"]
    known = {"ssl_ca", "ssl_capath", "ssl_cert", "ssl_cipher", "ssl_key"}
    for word in source.words("storageparameters"):
        name = word.lower().partition("=")[0]
        is_token = name.startswith("token_") and "storagepassscript" in options
        if name not in known and not is_token:
            parameters = source.settings["storageparameters"]
            message = f'"{word}" is not an option; it is ignored'
            yield source.find(parameters, ERROR, "word", message)


def _storage(source: Source) -> Iterator[Finding]:
    storage = source.settings.get("storagetype")
    if storage is None:
        yield source.find_here(
            FATAL, "missing", "StorageType", "is required", "accounting_storage/mysql"
        )
    elif storage.value == "accounting_storage/none" and source.release.slurmdbd_without_storage:
        yield source.find(storage, INFO, "plugin", "nothing is stored", "accounting_storage/mysql")
    elif storage.value != "accounting_storage/mysql":
        yield source.find(
            storage,
            FATAL,
            "plugin",
            f"{storage.value} cannot store anything",
            "accounting_storage/mysql",
        )


def _slurmdbd_value(source: Source, key: str, setting: Setting) -> Iterator[Finding]:
    value = setting.value
    if _PURGE_OPTION.fullmatch(key) and (
        not _PURGE.fullmatch(value) or c_numbers.strtol(value) % 2**32 == _NO_AGE
    ):
        yield source.find(
            setting, FATAL, "value", f'"{value}" is not an age such as 12months or 30days'
        )
    if key in {"debuglevel", "debuglevelsyslog"}:
        words = source.release.words["slurmctlddebug"]
        is_known = value[:1] != "<" and value.lower() in words.known  # <number> is no word
        if not is_known and not values.is_level_number(value):
            yield source.find(setting, FATAL, "word", f'"{value}" is not a debug level')
    if key == "debugflags":
        yield from _unknown_flags(source, setting)


def _unknown_flags(source: Source, setting: Setting) -> Iterator[Finding]:
    """Yield the words of DebugFlags that debug_str2flags of read_config.c does not know."""
    words = source.release.words["debugflags"]
    known = words.known | words.reported
    for word in filter(None, setting.value.split(",")):
        if word.lower() not in known:
            yield source.find(setting, FATAL, "word", f'"{word}" is unknown')


def _acct_gather(source: Source, slurm_conf: Source | None) -> Iterator[Finding]:
    """Yield the options of plugins that slurm.conf does not load: no other plugin knows them."""
    if slurm_conf is None:
        return
    loaded = ",".join(slurm_conf.get(key) or "" for key in _ACCT_GATHER_TYPES)
    for setting in source.settings.values():
        known = (_ACCT_GATHER[key] for key in _ACCT_GATHER if re.match(key, setting.name.lower()))
        plugins = next(known, ())
        if plugins and not any(plugin in loaded for plugin in plugins):
            message = f"requires {' or '.join(plugins)} in slurm.conf"
            yield source.find(setting, FATAL, "plugin", message)


def _job_container(source: Source, slurm_conf: Source | None) -> Iterator[Finding]:
    """Yield nodes without a directory, and directories that jobs hide (read_jcconf.c).

    Jobs get a directory of their own in place of each of Dirs, which a Slurm built with
    --enable-multiple-slurmd does not compare with BasePath. Earlier releases have no Dirs.
    """
    if (
        source.release.containers_need_base_path
        and not source.rows("basepath")
        and not source.rows("nodename")
    ):
        yield source.find_here(FATAL, "missing", "BasePath", "is required")
    has_dirs = "dirs" in source.release.options.get("job_container.conf BasePath", ())
    known = nodes.node_names(slurm_conf) if slurm_conf else {}
    for row in (*source.rows("basepath"), *source.rows("nodename")):
        is_base = row.first.name.lower() == "basepath"
        base = row.first if is_base else row.own.get("basepath")
        if base is None:
            names = nodes.names_of(row.first.value, source.release) or ()
            if any(name in known for name in names):
                yield source.find(row.first, FATAL, "missing", "needs a BasePath")
            continue
        dirs = (row.get("dirs") or source.get("dirs") or _JOB_DIRS).split(",")
        if not has_dirs and re.match(r"(/tmp|/dev/shm)(/|$)", base.value):
            yield source.find(base, FATAL, "path", "cannot be in /tmp or /dev/shm")
        elif has_dirs and any(path.startswith(base.value) for path in dirs):
            message = "is one of Dirs; a Slurm built without --enable-multiple-slurmd refuses it"
            yield source.find(base, INFO, "path", message)


def _knl_generic(source: Source, _: Source | None) -> Iterator[Finding]:
    """Yield what init() of node_features_knl_generic.c refuses: it ignores unknown modes."""
    for setting in source.settings.values():
        key = setting.name.lower()
        if modes := _KNL_MODES.get(key.removeprefix("allow").removeprefix("default")):
            known = {modes[word] for word in map(str.lower, setting.words()) if word in modes}
            if not known or (key.startswith("default") and len(known) > 1):
                number = "one" if key.startswith("default") else "at least one"
                message = f'"{setting.value}" must be {number} of {", ".join(modes)}'
                yield source.find(setting, FATAL, "value", message)
        if key == "systemtype" and setting.value.lower() not in {"intel", "dell"}:
            yield source.find(setting, FATAL, "value", "must be Intel or Dell")
    yield from values.wrong_boot_users(source)


def _oci(source: Source, _: Source | None) -> Iterator[Finding]:
    """Yield why slurmstepd runs no containers: what get_oci_conf of oci_config.c refuses."""
    known = source.release.options.get("oci.conf")
    if known is None:
        return
    if flags := source.settings.get("debugflags"):
        yield from _unknown_flags(source, flags)
    environment = source.settings.get("createenvfile")
    is_word = known["createenvfile"].type == "string"
    if environment and is_word and environment.value.lower() not in _ENVIRONMENT_FILES:
        message = f'"{environment.value}" must be null, newline or disabled'
        yield source.find(environment, ERROR, "value", message)
    if grammar.is_true(source.get("ignorefileconfigjson") or ""):
        return
    run = source.settings.get("runtimerun")
    if run and ("runtimecreate" in source.settings or "runtimestart" in source.settings):
        message = "cannot be set together with RunTimeCreate and RunTimeStart"
        yield source.find(run, ERROR, "contradiction", message)
        return
    needed = ["RunTimeRun"] if run else ["RunTimeCreate", "RunTimeStart"]
    needed += ["RunTimeDelete", "RunTimeKill"]
    if not run or "ignorefileconfigjson" not in known:
        needed.append("RunTimeQuery")
    missing = [name for name in needed if name.lower() not in source.settings]
    if missing:
        message = f"slurmstepd runs no container without {', '.join(missing)}"
        yield source.find_here(ERROR, "missing", missing[0], message)


def _plugstack(path: Path) -> Iterator[Finding]:
    """Yield lines that _plugin_stack_parse_line of src/common/spank.c ignores.

    slurmd and the commands read the file.
    """
    for number, line in enumerate(conf.read_text(path).splitlines(), 1):
        words = line.partition("#")[0].split()
        if words and (len(words) < 2 or words[0] not in {"include", "optional", "required"}):
            message = (
                f'"{line.strip()}" is not "include", "optional" or "required" with a path: '
                "the line is ignored"
            )
            column = len(line) - len(line.lstrip()) + 1
            yield Finding(str(path), number, column, ERROR, "value", words[0], message, "", SLURMD)
