"""Options that need a different option or file, without which the daemon does not start."""

from __future__ import annotations

import re
from collections.abc import Iterator

from harness.parsing import c_numbers
from harness.releases import Release, metric_readers
from harness.slurmconf.check import grammar, paths, values
from harness.slurmconf.check.findings import ERROR, FATAL, INFO, SLURMCTLD, SLURMD, WARNING, Finding
from harness.slurmconf.check.nodes import names_of
from harness.slurmconf.check.parsed_file import Configuration, Row, Setting, Source
from harness.slurmconf.check.read_files import is_read, uses_knl_generic

# Plugin -> options of acct_gather.conf that it needs: acct_gather_profile_p_conf_set.
_PROFILES = {
    "hdf5": ("ProfileHDF5Dir",),
    "influxdb": ("ProfileInfluxDBHost", "ProfileInfluxDBDatabase"),
}
# Words of the plugin influxdb: _str2flags, _str2extra_tags.
_INFLUXDB_WORDS = {
    "profileinfluxdbflags": ("grouped_fields",),
    "profileinfluxdbextratags": ("cluster", "sluid", "uid", "user"),
}
# Option, plugin -> the file without which it does not start, and the daemons that load it.
_OWN_FILES = {
    ("nodefeaturesplugins", "node_features/helpers"): ("helpers.conf", SLURMCTLD + SLURMD),
    ("extsensorstype", "ext_sensors/rrd"): ("ext_sensors.conf", SLURMCTLD),
    ("slurmctldplugstack", "slurmctld/nonstop"): ("nonstop.conf", SLURMCTLD),
    ("jobcontainertype", "job_container/tmpfs"): ("job_container.conf", SLURMD),
    ("namespacetype", "namespace/tmpfs"): ("job_container.conf", SLURMD),
    ("namespacetype", "namespace/linux"): ("namespace.yaml", SLURMD),
}
# What certmgr/script needs in CertmgrParameters, and in which daemon.
_CERTIFICATE_SCRIPTS = {
    "generate_csr_script=": SLURMD,
    "get_node_cert_key_script=": SLURMD,
    "get_node_token_script=": SLURMD,
    "sign_csr_script=": SLURMCTLD,
}
# Words in ProfileHDF5Default and ProfileInfluxDBDefault: acct_gather_profile_from_string.
_PROFILE = re.compile("none|all|energy|task|lustre|network", re.IGNORECASE)
# Values of CgroupPlugin that are not the name of a plugin.
_NO_CGROUPS = {"autodetect", "disabled"}
_MOST_SWAPPINESS = 100
# _test_config of burst_buffer/lua.
_UNUSED_BY_LUA = {"defaultpool", "getsysstate", "getsysstatus"}
_LONGEST_BURST_BUFFER_TIMEOUT = 24 * 24 * 60 * 60  # seconds
# _is_feature_valid of node_features/helpers.
_FEATURE = re.compile("[A-Za-z_=][A-Za-z0-9_.=]*")


def check(configuration: Configuration) -> Iterator[Finding]:
    """Yield options whose companion is missing or contradicts them."""
    slurm_conf = configuration.get("slurm.conf")
    if slurm_conf:
        yield from _profiles(configuration, slurm_conf)
        yield from _missing_files(configuration, slurm_conf)
        yield from _memory_limits(configuration, slurm_conf)
        yield from _plugins(slurm_conf)
        yield from _certificates(slurm_conf)
        yield from _munge_sockets(slurm_conf)
        yield from _jwt_file(slurm_conf)
        yield from _unread_metrics(slurm_conf)
    if cgroup := configuration.get("cgroup.conf"):
        yield from _cgroups(cgroup, slurm_conf)
    if acct_gather := configuration.get("acct_gather.conf"):
        yield from _acct_gather(acct_gather)
    helpers_conf = configuration.get("helpers.conf")
    if helpers_conf and is_read(configuration, "helpers.conf"):
        yield from _features(helpers_conf)
    burst_buffer_conf = configuration.get("burst_buffer.conf")
    if slurm_conf and burst_buffer_conf and is_read(configuration, "burst_buffer.conf"):
        yield from _burst_buffers(slurm_conf, burst_buffer_conf)
    if slurmdbd_conf := configuration.get("slurmdbd.conf"):
        yield from _jwt_key(slurmdbd_conf)
        yield from _jwt_file(slurmdbd_conf)
        yield from _munge_sockets(slurmdbd_conf)


def _profiles(configuration: Configuration, slurm_conf: Source) -> Iterator[Finding]:
    plugin = slurm_conf.settings.get("acctgatherprofiletype")
    acct_gather = configuration.get("acct_gather.conf")
    if plugin is None or (acct_gather is None and not configuration.whole):
        return
    name = plugin.value.removeprefix("acct_gather_profile/")
    settings = acct_gather.settings if acct_gather else {}
    needed = _PROFILES.get(name, ())
    if name == "influxdb" and slurm_conf.release.influxdb_needs_policy:
        needed += ("ProfileInfluxDBRTPolicy",)
    if "profileinfluxdbpass" in settings:
        needed += ("ProfileInfluxDBUser",)
    missing = [option for option in needed if option.lower() not in settings]
    if missing:
        message = f"needs {' and '.join(missing)} in acct_gather.conf"
        yield slurm_conf.find(plugin, FATAL, "missing", message)


def _acct_gather(source: Source) -> Iterator[Finding]:
    """Yield values that the plugins of acct_gather.conf refuse (acct_gather_*_p_conf_set)."""
    frequency = source.settings.get("energyipmifrequency")
    number = grammar.number("uint32", frequency.value) if frequency else None
    # The plugins read it as a number with a sign.
    if frequency and number is not None and not 0 < number < 2**31:
        yield source.find(frequency, FATAL, "value", "must be a positive integer below 2^31")
    for key in ("profilehdf5default", "profileinfluxdbdefault"):
        setting = source.settings.get(key)
        if setting and not _PROFILE.search(setting.value):
            message = f'cannot be "{setting.value}"'
            hint = "known: None, All, Energy, Lustre, Network, Task"
            yield source.find(setting, FATAL, "word", message, hint)
    for key, known in _INFLUXDB_WORDS.items():
        setting = source.settings.get(key)
        for word in filter(None, setting.value.split(",")) if setting else ():
            if setting and word.lower() not in known:
                hint = f"known: {', '.join(known)}"
                yield source.find(setting, FATAL, "word", f'"{word}" is unknown', hint)
    tags = source.settings.get("profileinfluxdbextratags")
    if tags and tags.words() and not source.words("profileinfluxdbflags"):
        message = "needs ProfileInfluxDBFlags=grouped_fields"
        yield source.find(tags, FATAL, "missing", message)


def _cgroups(cgroup: Source, slurm_conf: Source | None) -> Iterator[Finding]:
    """Yield a CgroupPlugin that cgroup_g_init and cgroup_g_initialize of cgroup.c refuse.

    _read_slurm_cgroup_conf reads MemorySwappiness.
    """
    if (grammar.number_of(cgroup, "memoryswappiness") or 0) > _MOST_SWAPPINESS:
        message = f"is more than {_MOST_SWAPPINESS}, which is used"
        yield cgroup.find(cgroup.settings["memoryswappiness"], ERROR, "value", message)
    setting = cgroup.settings.get("cgroupplugin")
    if setting is None or "cgroup" not in cgroup.release.plugins:
        return
    plugins = cgroup.release.plugins["cgroup"]
    known = {name if name in _NO_CGROUPS else f"cgroup/{name}" for name in plugins}
    if setting.value not in known:
        message = f"there is no plugin {setting.value}"
        hint = f"known: {', '.join(sorted(known))}"
        yield cgroup.find(setting, FATAL, "plugin", message, hint, SLURMD)
    elif setting.value == "disabled" and slurm_conf:
        tracks = slurm_conf.get("proctracktype") or "proctrack/cgroup"
        users = [tracks, *slurm_conf.words("taskplugin"), slurm_conf.get("jobacctgathertype") or ""]
        using = [plugin for plugin in users if plugin.endswith("cgroup")]
        if using:
            message = f"{' and '.join(using)} cannot work without cgroups"
            yield cgroup.find(setting, FATAL, "contradiction", message, daemons=SLURMD)


def _missing_files(configuration: Configuration, slurm_conf: Source) -> Iterator[Finding]:
    """Yield plugins without the file that they need.

    For helpers.conf, s_p_parse_file waits, and gives up; _ext_sensors_read_conf and
    nonstop_read_config do not wait.
    """
    if not configuration.whole:
        return
    release = slurm_conf.release
    for (option, plugin), (file, daemons) in _OWN_FILES.items():
        setting = slurm_conf.settings.get(option)
        kind, _, name = plugin.partition("/")
        if (
            setting
            and {name, plugin} & {*setting.words()}
            and (name in release.plugins.get(kind, ()) or plugin in release.renamed_plugins)
            and not _is_ignored(release, option)
            and not (slurm_conf.path.parent / file).exists()
        ):
            message = f"needs {file}, which does not exist"
            yield slurm_conf.find(setting, FATAL, "missing", message, daemons=daemons)


def _is_ignored(release: Release, option: str) -> bool:
    """Return whether a release ignores an option, whatever its value."""
    refusal = release.refused["slurm.conf"].get(option)
    return bool(refusal and refusal.severity == ERROR and refusal.when is None)


def _features(source: Source) -> Iterator[Finding]:
    """Yield features that _feature_register and _is_feature_valid of node_features/helpers refuse.

    Since helpers.conf has NodeName lines, lines have several features; slurmctld reads only their
    names, and slurmd accepts a second line of a feature with the same Helper.
    """
    by_node = "helpers.conf NodeName" in source.release.options
    has_flags = "flags" in source.release.options.get("helpers.conf Feature", {})
    features = [(row, row.first) for row in source.rows("feature")]
    for row in source.rows("nodename"):
        if "feature" in row.own:
            features.append((row, row.own["feature"]))
        else:
            yield source.find(row.first, FATAL, "missing", "needs a Feature")
    if not features and not by_node:
        yield source.find_here(FATAL, "missing", "Feature", "there is none")
    for row, feature in features:
        flags = row.own.get("flags") if has_flags else None
        bad = [word for word in flags.words() if word.lower() != "rebootless"] if flags else []
        if flags and bad:
            message = f'"{bad[0]}" is not rebootless, and ignored (_parse_feature)'
            yield source.find(flags, ERROR, "word", message)
        for name in _feature_names(feature, by_node):
            if not _FEATURE.fullmatch(name):
                yield source.find(feature, FATAL, "value", f'"{name}" is not the name of a feature')
    yield from _features_twice(source, features, by_node)
    yield from values.wrong_boot_users(source)


def _feature_names(feature: Setting, by_node: bool) -> list[str]:
    return [name for name in feature.value.split(",") if name] if by_node else [feature.value]


def _features_twice(
    source: Source, features: list[tuple[Row, Setting]], by_node: bool
) -> Iterator[Finding]:
    """Yield features that a node has twice; each node reads its own NodeName lines."""
    # Feature -> Helper, or each line if none may be repeated -> its first line, and its nodes or
    # None for all.
    known: dict[str, dict[object, tuple[Row, set[str] | None]]] = {}
    for row, feature in features:
        nodes = None if row.first is feature else {*(names_of(row.first.value) or ())}
        helper = row.get("helper") if by_node else row
        for name in _feature_names(feature, by_node):
            helpers = known.setdefault(name, {})
            for other, (first, others) in helpers.items():
                if other != helper and (nodes is None or others is None or nodes & others):
                    message = f"{name} is already in line {first.first.line.number}"
                    daemons = SLURMD if by_node else ()
                    yield source.find(feature, FATAL, "twice", message, daemons=daemons)
                    break
            first, others = helpers.get(helper, (row, set()))
            both = None if nodes is None or others is None else nodes | others
            helpers[helper] = (first, both)


def _burst_buffers(slurm_conf: Source, source: Source) -> Iterator[Finding]:
    """Yield what is ignored in burst_buffer.conf: _test_config of burst_buffer_lua.c.

    Users are read by _parse_users of burst_buffer_common.c.
    """
    for name in ("allowusers", "denyusers"):
        users = source.settings.get(name)
        if users and {"root", "0"} & {*users.words()}:
            yield source.find(users, ERROR, "value", "root is ignored")
    granularity = source.settings.get("granularity")
    if granularity and c_numbers.atoi(granularity.value) == 0:  # bb_load_config
        yield source.find(granularity, ERROR, "value", "cannot be 0; 1 is used")
    plugins = {"lua", "burst_buffer/lua"} & {*slurm_conf.words("burstbuffertype")}
    if not plugins or "lua" not in slurm_conf.release.plugins["burst_buffer"]:
        return
    for name in _UNUSED_BY_LUA & {*source.settings}:
        yield source.find(source.settings[name], ERROR, "word", "burst_buffer/lua does not use it")
    flags = source.settings.get("flags")
    for word in ("enablepersistent", "emulatecray"):
        if flags and word in flags.value.lower():
            yield source.find(flags, ERROR, "word", f"burst_buffer/lua does not support {word}")
    for name in ("othertimeout", "stageintimeout", "stageouttimeout"):
        if (grammar.number_of(source, name) or 0) > _LONGEST_BURST_BUFFER_TIMEOUT:
            message = f"cannot be more than {_LONGEST_BURST_BUFFER_TIMEOUT} (24 days)"
            yield source.find(source.settings[name], ERROR, "value", message)


def _memory_limits(configuration: Configuration, slurm_conf: Source) -> Iterator[Finding]:
    """Yield OverMemoryKill where task/cgroup limits memory too (cgroup_memcg_job_confinement)."""
    setting = slurm_conf.settings.get("jobacctgatherparams")
    cgroup = configuration.get("cgroup.conf")
    if (
        setting is None
        or cgroup is None
        or "overmemorykill" not in {word.lower() for word in setting.words()}
        or "cgroup" not in (slurm_conf.get("taskplugin") or "")
        or (
            slurm_conf.release.disabled_cgroups_limit_nothing
            and cgroup.get("cgroupplugin") == "disabled"
        )
    ):
        return
    for key in ("constrainramspace", "constrainswapspace"):
        limit = cgroup.settings.get(key)
        if limit and grammar.is_true(limit.value):
            message = (
                "OverMemoryKill contradicts TaskPlugin=task/cgroup with "
                f"{limit.name}={limit.value} in cgroup.conf: two incompatible memory enforcement "
                "mechanisms"
            )
            yield slurm_conf.find(setting, FATAL, "contradiction", message, "disable one of them")
            return


def _plugins(slurm_conf: Source) -> Iterator[Finding]:
    """Yield plugins whose init or set_location fails without a different option."""
    release = slurm_conf.release
    completion = slurm_conf.settings.get("jobcomptype")
    if (
        completion
        and completion.value in {"jobcomp/script", "jobcomp/elasticsearch", "jobcomp/kafka"}
        and "jobcomploc" not in slurm_conf.settings
    ):
        severity = INFO if "jobcomp" in release.dispensable_plugins else FATAL
        yield slurm_conf.find(
            completion, severity, "missing", "needs JobCompLoc", daemons=SLURMCTLD
        )
    route = slurm_conf.settings.get("routeplugin")
    if (
        route
        and route.value == "route/topology"
        and "topology" in release.plugins.get("route", ())
        and slurm_conf.get("topologyplugin") != "topology/tree"
    ):
        message = "route/topology requires topology/tree"
        yield slurm_conf.find(route, FATAL, "missing", message, "TopologyPlugin=topology/tree")
    location = slurm_conf.settings.get("jobcomploc")
    if completion and completion.value == "jobcomp/filetxt" and location and not location.value:
        yield slurm_conf.find(location, FATAL, "path", "the value is empty", daemons=SLURMCTLD)
    elif completion and location:
        # jobcomp_p_set_location looks for it; only filetxt creates it, and always has to.
        plugin = completion.value
        is_path = plugin in {"jobcomp/script", "jobcomp/kafka"}
        creates = "/" in location.value or not values.runs_as_root(slurm_conf)
        if (plugin == "jobcomp/filetxt" and creates) or (
            is_path and "jobcomp" not in release.dispensable_plugins
        ):
            yield from paths.relative_path(slurm_conf, location, SLURMCTLD)
        if plugin in {"jobcomp/filetxt", "jobcomp/script"}:
            reports = plugin == "jobcomp/script" and "jobcomp" in release.dispensable_plugins
            severity = ERROR if reports else FATAL
            yield from paths.directory(slurm_conf, location, severity, SLURMCTLD)
    if completion and location and location.value and completion.value == "jobcomp/mysql":
        yield from values.wrong_database(slurm_conf, location, SLURMCTLD)
    script = slurm_conf.settings.get("jobcomppassscript")
    if completion and script and completion.value == "jobcomp/mysql":
        # _check_storage_pass_script_permissions of mysql_common.c
        yield from paths.relative_path(slurm_conf, script, SLURMCTLD)
    yield from _controller_scripts(slurm_conf)
    kafka = "kafka" in release.plugins["jobcomp"]
    if completion and completion.value == "jobcomp/kafka" and kafka:
        yield from _kafka(slurm_conf)
    buffers = slurm_conf.settings.get("burstbuffertype")
    if buffers and release.one_burst_buffer and len(buffers.words()) > 1:
        message = "only one burst buffer plugin can be used (bb_g_init)"
        yield slurm_conf.find(buffers, FATAL, "contradiction", message, daemons=SLURMCTLD)
    features = slurm_conf.settings.get("nodefeaturesplugins")
    if features and uses_knl_generic(slurm_conf) and "resumeprogram" in slurm_conf.settings:
        message = "node_features/knl_generic does not work with ResumeProgram"
        yield slurm_conf.find(features, FATAL, "contradiction", message)


def _controller_scripts(slurm_conf: Source) -> Iterator[Finding]:
    """Yield scripts that init of prep_script.c cannot execute."""
    if slurm_conf.release.checks_controller_scripts and "script" in (
        slurm_conf.get("prepplugins") or "script"
    ):
        for key in ("prologslurmctld", "epilogslurmctld"):
            for script in slurm_conf.all_of(key):
                yield from paths.relative_path(slurm_conf, script, SLURMCTLD)
                if re.search("[*?]", script.value):
                    message = "is the path of one script: patterns are for Prolog and Epilog only"
                    yield slurm_conf.find(script, FATAL, "path", message, daemons=SLURMCTLD)


def _kafka(slurm_conf: Source) -> Iterator[Finding]:
    """Check what jobcomp_kafka_conf_parse_params finds in JobCompParams, in lower case only."""
    parameters = slurm_conf.settings.get("jobcompparams")
    if parameters is None:
        return
    interval = re.search("poll_interval=(.+)", parameters.value)
    if interval and not (
        # _parse_uint32
        re.match(r"\s*[-+]?[0-9]", interval[1], re.ASCII)
        and abs(c_numbers.strtol(interval[1])) < 2**64
    ):
        message = (
            f'"{interval[0]}" is not a number; slurmctld polls without a pause, which keeps one CPU'
            " busy"
        )
        yield slurm_conf.find(parameters, ERROR, "value", message, daemons=SLURMCTLD)
    cluster = (slurm_conf.get("clustername") or "").lower()
    topics = [
        found[1] if (found := re.search(f"{word}=([^,]*)", parameters.value)) else default
        for word, default in (("topic", cluster), ("topic_job_start", f"{cluster}-job-start"))
    ]
    if slurm_conf.release.compares_topics and topics[0] == topics[1]:
        message = f"topic and topic_job_start are the same: {topics[0]}"
        yield slurm_conf.find(parameters, WARNING, "value", message, daemons=SLURMCTLD)


def _certificates(slurm_conf: Source) -> Iterator[Finding]:
    """Yield what certmgr_g_init and _load_script_paths of certmgr_script.c refuse."""
    plugin = slurm_conf.settings.get("certmgrtype")
    parameters = slurm_conf.get("certmgrparameters") or ""
    if plugin is None or "certmgr" not in slurm_conf.release.plugins:
        return
    known = slurm_conf.release.words["certmgrparameters"].known
    for script, daemons in _CERTIFICATE_SCRIPTS.items():
        if (
            plugin.value == "certmgr/script"
            and script in known
            and script not in parameters.lower()
        ):
            message = f"needs {script} in CertmgrParameters"
            yield slurm_conf.find(plugin, FATAL, "missing", message, daemons=daemons)
    period = re.search("certificate_renewal_period=([^,]*)", parameters, re.IGNORECASE)
    if period and c_numbers.atoi(period[1]) < 0:
        setting = slurm_conf.settings["certmgrparameters"]
        yield slurm_conf.find(setting, FATAL, "value", f"{period[0]} is less than 0")


def _munge_sockets(source: Source) -> Iterator[Finding]:
    """Yield passwords where munge expects its socket (slurm_auth_opts_to_socket)."""
    if source.get("authtype") not in {None, "auth/munge", "munge"}:
        return
    password = source.settings.get("accountingstoragepass")
    if password and password.value and source.uses_slurmdbd() and _is_no_socket(password.value):
        message = "is the path of a munge socket, not a password: slurmdbd cannot be reached"
        yield source.find(password, FATAL, "value", message, "remove it", SLURMCTLD)
    info = source.settings.get("authinfo")
    # init of auth_munge.c tests munge; releases without that test fail when they need it, and do
    # not skip an empty socket.
    severity = source.release.unusable_munge_socket
    is_empty = info and severity != FATAL and re.search("socket=(,|$)", info.value)
    socket = re.search("(?:^|socket=)(/[^,]*)", info.value) if info else None
    is_directory = socket and severity != INFO and paths.is_directory(socket[1])
    if info and (is_empty or is_directory or _is_no_socket(info.value)):
        message = "is neither options nor the path of a munge socket: nothing can authenticate"
        yield source.find(info, severity, "value", message, "remove it")


def _is_no_socket(value: str) -> bool:
    return not value.startswith("/") and "=" not in value


def _uses_jwt(source: Source) -> list[Setting]:
    """Return the options that load auth/jwt."""
    return [
        setting
        for key in ("authtype", "authalttypes")
        if (setting := source.settings.get(key)) and {"jwt", "auth/jwt"} & {*setting.words()}
    ]


def _jwt_file(source: Source) -> Iterator[Finding]:
    """Yield a jwt_key that cannot be a file (auth_jwt.c, _init_key, later init_hs256)."""
    setting = source.settings.get("authaltparameters")
    key = re.search("jwt_key=([^,]*)", setting.value, re.IGNORECASE) if setting else None
    if setting is None or key is None or not _uses_jwt(source):
        return
    is_missing = bool(key[1]) and paths.is_missing_path(key[1])
    is_empty = not key[1] and source.release.refuses_empty_jwt_key
    if paths.is_directory(key[1]) or is_missing or is_empty:
        message = f'"{key[0]}" does not name a file that exists'
        daemons = SLURMCTLD if source.kind == "slurm.conf" else ()
        yield source.find(setting, FATAL, "path", message, daemons=daemons)


def _unread_metrics(source: Source) -> Iterator[Finding]:
    """Yield MetricsType if slurmctld refuses every request for metrics, and logs nothing.

    That is what _check_metrics_authorized() of http.c does.
    """
    if metric_readers(source.release, lambda name: source.get(name.lower())) != "nobody":
        return
    cause = "MetricsAuthUsers" if source.get("metricsauthusers") else "PrivateData"
    known = source.release.options["slurm.conf"]
    message = f"nobody can read the metrics, because {cause} is set"
    hint = "remove PrivateData"
    if "slurmctldhttpauthparameters" in known:
        message += " without SlurmctldHttpAuthParameters"
        hint = "set SlurmctldHttpAuthParameters and AuthAltParameters to jwt_key=/path/to/key"
        if cause == "PrivateData":
            hint += ", or MetricsParameters=ignore_private_data"
    yield source.find(source.settings["metricstype"], INFO, "metrics", message, hint, SLURMCTLD)


def _jwt_key(slurmdbd_conf: Source) -> Iterator[Finding]:
    """Yield auth/jwt without a key: slurmdbd has no default for it (auth_jwt.c, init)."""
    types = _uses_jwt(slurmdbd_conf)
    keys = {"jwt_key=", "jwks="} & slurmdbd_conf.release.words["authaltparameters"].known
    parameters = slurmdbd_conf.get("authaltparameters") or ""
    if types and not re.search(f"(^|,)({'|'.join(keys)})", parameters):
        hint = "AuthAltParameters=jwt_key=/path/to/key"
        yield slurmdbd_conf.find(types[0], FATAL, "missing", "auth/jwt needs a jwt_key", hint)
