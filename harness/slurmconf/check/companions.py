"""Options that need a different option or file, without which the daemon does not start."""

from __future__ import annotations

import re
from collections.abc import Iterator

from harness.slurmconf.check.findings import FATAL, INFO, SLURMCTLD, SLURMD, Finding
from harness.slurmconf.check.parsed_file import Configuration, Setting, Source

# Plugin -> options of acct_gather.conf that it needs: acct_gather_profile_p_conf_set.
_PROFILES = {
    "hdf5": ("ProfileHDF5Dir",),
    "influxdb": ("ProfileInfluxDBHost", "ProfileInfluxDBDatabase"),
}
# Words in ProfileHDF5Default and ProfileInfluxDBDefault: acct_gather_profile_from_string.
_PROFILE = re.compile("none|all|energy|task|lustre|network", re.IGNORECASE)
# Values of CgroupPlugin that are not the name of a plugin.
_NO_CGROUPS = {"autodetect", "disabled"}


def check(configuration: Configuration) -> Iterator[Finding]:
    """Yield options whose companion is missing or contradicts them."""
    slurm_conf = configuration.get("slurm.conf")
    if slurm_conf:
        yield from _profiles(configuration, slurm_conf)
        yield from _files_of_plugins(configuration, slurm_conf)
        yield from _memory_limits(configuration, slurm_conf)
        yield from _plugins(slurm_conf)
        yield from _munge_socket(slurm_conf)
    if cgroup := configuration.get("cgroup.conf"):
        yield from _cgroups(cgroup, slurm_conf)
    if acct_gather := configuration.get("acct_gather.conf"):
        yield from _acct_gather(acct_gather)
    if slurmdbd_conf := configuration.get("slurmdbd.conf"):
        yield from _jwt_key(slurmdbd_conf)


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
    if frequency and re.fullmatch("0*", frequency.value):
        yield source.find(frequency, FATAL, "value", "must be a positive integer")
    for key in ("profilehdf5default", "profileinfluxdbdefault"):
        setting = source.settings.get(key)
        if setting and not _PROFILE.search(setting.value):
            message = f'cannot be "{setting.value}"'
            hint = "known: None, All, Energy, Lustre, Network, Task"
            yield source.find(setting, FATAL, "word", message, hint)


def _files_of_plugins(configuration: Configuration, slurm_conf: Source) -> Iterator[Finding]:
    """Yield plugins without their file: their init fails, or waits for it and gives up."""
    for key, plugin, file, daemons in (
        ("nodefeaturesplugins", "node_features/helpers", "helpers.conf", SLURMCTLD + SLURMD),
        ("jobcontainertype", "job_container/tmpfs", "job_container.conf", SLURMD),
        ("namespacetype", "namespace/tmpfs", "job_container.conf", SLURMD),
        ("namespacetype", "namespace/linux", "namespace.yaml", SLURMD),
    ):
        setting, release = slurm_conf.settings.get(key), slurm_conf.release
        kind, _, name = plugin.partition("/")
        if (
            setting
            and {name, plugin} & {*setting.words()}
            and (name in release.plugins.get(kind, ()) or plugin in release.renamed_plugins)
            and configuration.whole
            and not (slurm_conf.path.parent / file).is_file()
        ):
            message = f"needs {file}, which does not exist"
            yield slurm_conf.find(setting, FATAL, "missing", message, daemons=daemons)


def _cgroups(cgroup: Source, slurm_conf: Source | None) -> Iterator[Finding]:
    """Yield a CgroupPlugin that cgroup_g_init and cgroup_g_initialize of cgroup.c refuse."""
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
        if limit and re.fullmatch("yes|up|true|1", limit.value, re.IGNORECASE):
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


def _munge_socket(slurm_conf: Source) -> Iterator[Finding]:
    """Yield a password for slurmdbd: munge takes it as a socket (slurm_auth_opts_to_socket)."""
    setting = slurm_conf.settings.get("accountingstoragepass")
    if (
        setting
        and setting.value
        and slurm_conf.uses_slurmdbd()
        and slurm_conf.get("authtype") in {None, "auth/munge", "munge"}
        and not setting.value.startswith("/")
        and "=" not in setting.value
    ):
        message = "is the path of a munge socket, not a password: slurmdbd cannot be reached"
        yield slurm_conf.find(setting, FATAL, "value", message, "remove it", SLURMCTLD)


def _jwt_key(slurmdbd_conf: Source) -> Iterator[Finding]:
    """Yield auth/jwt without a key: slurmdbd has no default for it (auth_jwt.c, init)."""
    types: list[Setting] = [
        setting
        for key in ("authtype", "authalttypes")
        if (setting := slurmdbd_conf.settings.get(key)) and {"jwt", "auth/jwt"} & {*setting.words()}
    ]
    if types and not re.search(
        "(^|,)(jwt_key|jwks)=", slurmdbd_conf.get("authaltparameters") or ""
    ):
        hint = "AuthAltParameters=jwt_key=/path/to/key"
        yield slurmdbd_conf.find(types[0], FATAL, "missing", "auth/jwt needs a jwt_key", hint)
