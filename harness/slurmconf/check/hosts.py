"""Controllers, their hosts, and licenses of slurm.conf."""

from __future__ import annotations

import re
from collections.abc import Iterator

from harness.parsing import c_numbers
from harness.slurmconf.check.findings import ERROR, FATAL, INFO, SLURMCTLD, Finding, only_in
from harness.slurmconf.check.parsed_file import Setting, Source

_OLD = ("controlmachine", "controladdr", "backupcontroller", "backupaddr")
# _parse_slurmctld_host of src/common/read_config.c.
_NAME_AND_ADDRESS = re.compile(r"[^()]*|[^)]*\([^)]*\)")
# hostname(7); many sites have underscores, too.
_HOST = re.compile("[A-Za-z0-9_][A-Za-z0-9_.-]*")


def check(source: Source) -> Iterator[Finding]:
    """Yield the problems that slurmctld has with its own hosts and with licenses."""
    yield from _controllers(source)
    yield from only_in(SLURMCTLD, _licenses(source))


def _controllers(source: Source) -> Iterator[Finding]:
    """Yield problems with the controllers and ClusterName (_load_slurmctld_host)."""
    if not source.get("clustername"):
        yield source.find_here(FATAL, "missing", "ClusterName", "is required")
    hosts = source.all_of("slurmctldhost")
    old = [source.settings[key] for key in _OLD if key in source.settings]
    if hosts:
        for setting in old:
            message = "is ignored because SlurmctldHost is set"
            yield source.find(setting, ERROR, "ignored", message, "remove it")
    else:
        yield from _old_controllers(source)
    machines = hosts or [
        setting for setting in old if setting.name.lower() in {"controlmachine", "backupcontroller"}
    ]
    usable = [host for host in hosts if _NAME_AND_ADDRESS.fullmatch(host.value)]
    # A release that ignores the value still needs a controller.
    severity = source.release.unusable_value if usable or old else FATAL
    seen: set[str] = set()
    addresses: set[str] = set()
    for machine in machines:
        name = machine.value.partition("(")[0]
        if hosts and machine not in usable:
            message = f'"{machine.value}" is not NAME or NAME(ADDRESS)'
            yield source.find(machine, severity, "value", message)
        elif name in seen:
            yield source.find(machine, FATAL, "twice", f"{name} is named twice")
        elif seen and "localhost" in {name.lower(), *seen}:
            message = "localhost is the host that slurmctld runs on, which is named twice"
            yield source.find(machine, FATAL, "twice", message, daemons=SLURMCTLD)
        elif _address(machine) in addresses:
            message = f"{name} has the address of another controller"
            hint = "slurmctld may stop itself, as if the other one took over"
            yield source.find(machine, INFO, "same-host", message, hint, SLURMCTLD)
        seen.add(name)
        addresses.add(_address(machine))
    yield from only_in(SLURMCTLD, _impossible_hosts(source, machines))


def _address(machine: Setting) -> str:
    """Return the address of NAME(ADDRESS), or else the name; names are case-insensitive."""
    name, _, address = machine.value.partition("(")
    return (address.rstrip(")") or name).lower()


def _old_controllers(source: Source) -> Iterator[Finding]:
    machine = source.settings.get("controlmachine")
    if machine is None:
        yield source.find_here(FATAL, "missing", "SlurmctldHost", "is required")
    elif "," in machine.value and "controladdr" not in source.settings:
        message = "has multiple host names, so ControlAddr must be specified"
        yield source.find(machine, FATAL, "missing", message, "write a SlurmctldHost for each")
    if source.get("backupaddr") and not source.get("backupcontroller"):
        yield source.find(source.settings["backupaddr"], FATAL, "missing", "needs BackupController")


def _impossible_hosts(source: Source, machines: list[Setting]) -> Iterator[Finding]:
    """Yield names that no host has: src/slurmctld/controller.c, _valid_controller().

    slurmctld starts only on a host that is named. It looks for the address of each (slurm_set_addr)
    unless the address is named, too.
    """

    def names(setting: Setting) -> list[str]:
        is_list = setting.name.lower() == "controlmachine"
        return setting.value.split(",") if is_list else [setting.value.partition("(")[0]]

    impossible = [setting for setting in machines if not any(map(_HOST.fullmatch, names(setting)))]
    for setting in impossible:
        # Nothing is looked up for an empty name.
        severity = INFO if "(" in setting.value or not setting.value else ERROR
        if len(impossible) == len(machines):
            severity = FATAL
        if _NAME_AND_ADDRESS.fullmatch(setting.value):
            message = f'no host has the name "{names(setting)[0]}": it is not a valid controller'
            yield source.find(setting, severity, "host", message, "name one host per line")


def _licenses(source: Source) -> Iterator[Finding]:
    """Yield licenses that _build_license_list of src/slurmctld/licenses.c refuses."""
    licenses = source.settings.get("licenses")
    if licenses is None:
        return
    separators = source.release.license_separators
    form = re.compile(rf"[^{separators}\s]*([{separators}](\s*[+-]?\d+)?)?", re.ASCII)
    if "|" in licenses.value and source.release.alternative_licenses:
        words = licenses.value.split("|")
        if re.search("[,;(]", licenses.value):
            yield source.find(licenses, FATAL, "value", 'mixes "|" with other separators')
            return
    else:
        words = re.split("[,;]", licenses.value)
    for word in filter(None, words):
        match = form.fullmatch(word)
        if match is None or c_numbers.atoi(match[2] or "") < 0:
            yield source.find(licenses, FATAL, "value", f'"{word}" is not NAME or NAME:COUNT')
