"""Compare the accounts, users, QOS and limits of the accounting database with the scenario.

Pure: no I/O.

A limit that the scenario does not set must not be set in the accounting database either.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness import capabilities, slurm_options
from harness.parsing import durations
from harness.scenario import Account, Accounting, Scenario

# Columns by the name of an object: account, user and partition of an association, or the name of
# a user, account or QOS.
Table = dict[tuple[str, ...], dict[str, Any]]

_COMMON = {
    "grpjobs": "GrpJobs",
    "grpjobsaccrue": "GrpJobsAccrue",
    **dict.fromkeys(("grpsubmit", "grpsubmitjobs"), "GrpSubmit"),
    "grptres": "GrpTRES",
    "grptresmins": "GrpTRESMins",
    "grptresrunmins": "GrpTRESRunMins",
    "grpwall": "GrpWall",
    **dict.fromkeys(("maxtres", "maxtresperjob", "maxtrespj"), "MaxTRES"),
    **dict.fromkeys(("maxtrespernode", "maxtrespn"), "MaxTRESPerNode"),
    **dict.fromkeys(("maxtresmins", "maxtresminsperjob", "maxtresminspj"), "MaxTRESMins"),
    **dict.fromkeys(("maxwall", "maxwalldurationperjob", "maxwallpj"), "MaxWall"),
    **dict.fromkeys(("minpriothresh", "minpriothreshold"), "MinPrioThreshold"),
    "priority": "Priority",
}
# sacctmgr(1): the options of `modify`, in lower case, with their columns in `show`.
ASSOCIATION = {
    **_COMMON,
    **dict.fromkeys(("fairshare", "share", "shares"), "Share"),
    "parent": "ParentName",
    "maxjobs": "MaxJobs",
    "maxjobsaccrue": "MaxJobsAccrue",
    **dict.fromkeys(("maxsubmit", "maxsubmitjobs"), "MaxSubmit"),
    **dict.fromkeys(("qos", "qoslevel"), "QOS"),
    "defaultqos": "DefaultQOS",
}
QOS = {
    **_COMMON,
    "gracetime": "GraceTime",
    "preempt": "Preempt",
    "preemptexempttime": "PreemptExemptTime",
    "preemptmode": "PreemptMode",
    "flags": "Flags",
    "usagethreshold": "UsageThreshold",
    "usagefactor": "UsageFactor",
    **dict.fromkeys(("maxtresperuser", "maxtrespu"), "MaxTRESPU"),
    **dict.fromkeys(("maxjobsperuser", "maxjobspu"), "MaxJobsPU"),
    **dict.fromkeys(("maxsubmitjobsperuser", "maxsubmitjobspu", "maxsubmitpu"), "MaxSubmitPU"),
    **dict.fromkeys(("maxtresperaccount", "maxtrespa"), "MaxTRESPA"),
    **dict.fromkeys(("maxjobsperaccount", "maxjobspa"), "MaxJobsPA"),
    **dict.fromkeys(("maxsubmitjobsperaccount", "maxsubmitjobspa", "maxsubmitpa"), "MaxSubmitPA"),
    **dict.fromkeys(("mintres", "mintresperjob"), "MinTRES"),
    **dict.fromkeys(("maxtresrunminsperuser", "maxtresrunminspu"), "MaxTRESRunMinsPU"),
    **dict.fromkeys(("maxtresrunminsperaccount", "maxtresrunminspa"), "MaxTRESRunMinsPA"),
    **dict.fromkeys(("maxjobsaccrueperuser", "maxjobsaccruepu"), "MaxJobsAccruePU"),
    **dict.fromkeys(("maxjobsaccrueperaccount", "maxjobsaccruepa"), "MaxJobsAccruePA"),
}
_OF_ACCOUNTS = {"description", "organization"}  # of an account, not of its associations
ASSOCIATION_DEFAULTS = {"Share": "1"}
QOS_DEFAULTS = {"Priority": "0", "GraceTime": "0", "PreemptMode": "cluster", "UsageFactor": "1"}
_TIMES = {"GrpWall", "MaxWall", "GraceTime", "PreemptExemptTime"}
_SETS = {"QOS", "Preempt", "Flags", "Coordinators"}
# sacctmgr(1): an association without one of these limits has the limit of the account above it.
_INHERITED = ("MaxJobs", "MaxSubmit", "MaxWall")


def columns(kind: Mapping[str, str]) -> list[str]:
    """Return the columns of ASSOCIATION or QOS without duplicates."""
    return [*dict.fromkeys(kind.values())]


def associations(scenario: Scenario) -> Table:
    """Return the associations of a cluster, by account, user and partition.

    The last two are "" where an association has none. For a cluster with accounts of its own,
    `scenario` is `Scenario.of_cluster`.
    """
    accounting = _accounting(scenario)
    default = slurm_options.get(slurm_options.slurmdbd_conf(scenario), "DefaultQOS") or "normal"
    table: Table = {("root", "", ""): _row(ASSOCIATION, {"QOS": default}, ASSOCIATION_DEFAULTS)}
    table["root", "root", ""] = _row(ASSOCIATION, {}, ASSOCIATION_DEFAULTS)
    for name, account in accounting.accounts.items():
        above = {"QOS": default} if name == "root" else {"Parent": account.parent or "root"}
        wanted = {**above, **account.options}
        table[name.lower(), "", ""] = _row(ASSOCIATION, wanted, ASSOCIATION_DEFAULTS)
    for name in _slurm_users(scenario):
        row = _row(ASSOCIATION, {}, ASSOCIATION_DEFAULTS)
        table |= {
            (account.lower(), name, ""): row
            for account in accounting.slurm_user_accounts
            if account in accounting.accounts
        }
    for name, user in scenario.users.items():
        qos = {"QOS": ",".join(("normal", *user.qos))} if user.qos else {}
        for (account_name, partition), own in user.accounts_of_associations().items():
            row = _row(ASSOCIATION, {**qos, **own}, ASSOCIATION_DEFAULTS)
            table[account_name.lower(), name, partition] = row
    return table


def qos(scenario: Scenario) -> Table:
    """Return the QOS that should exist, with their options."""
    options_of = {name: level.options for name, level in _accounting(scenario).qos.items()}
    options_of = {"normal": {}, **options_of}
    return {(name.lower(),): _row(QOS, values, QOS_DEFAULTS) for name, values in options_of.items()}


def users(scenario: Scenario) -> Table:
    """Return the users that should exist.

    These are the users who have an account, and root, which slurmdbd adds as administrator.
    """
    account_of = {
        "root": "root",
        **{name: _accounting(scenario).slurm_user_accounts[0] for name in _slurm_users(scenario)},
        **{
            name: user.default_account
            for name, user in scenario.users.items()
            if user.default_account
        },
    }
    level_of = {
        "root": "administrator",
        **{name: user.admin for name, user in scenario.users.items() if user.admin},
    }
    coordinated = _coordinated(scenario)
    return {
        (name,): {
            "DefaultAccount": account.lower(),
            "AdminLevel": level_of.get(name, "none").lower(),
            "Coordinators": coordinated.get(name, set()),
        }
        for name, account in account_of.items()
    }


def accounts(scenario: Scenario) -> Table:
    """Return the accounts that should exist.

    The description defaults to the name, and the organization to the parent, or to the name below
    root.
    """
    coordinators: dict[str, set[str]] = {}
    for user_name, coordinated in _coordinated(scenario).items():
        for account_name in coordinated:
            coordinators.setdefault(account_name, set()).add(user_name)
    table: Table = {("root",): {"Coordinators": coordinators.get("root", set())}}
    for name, account in _every_account(scenario):
        if name == "root" or (name.lower(),) in table:
            continue
        given = {
            option.lower(): text for option, text in slurm_options.merged(account.options).items()
        }
        parent = account.parent if account.parent not in {None, "root"} else name
        table[name.lower(),] = {
            "Description": given.get("description", name).lower(),
            "Organization": given.get("organization", parent).lower(),
            "Coordinators": coordinators.get(name.lower(), set()),
        }
    return table


def licenses(scenario: Scenario) -> Table:
    """Return the licenses of slurmdbd that should exist, and those that each cluster may use."""
    table: Table = {}
    for name, resource in _accounting(scenario).resources.items():
        for cluster in ("", *resource.clusters):
            table[_license(name, resource.server, cluster),] = {}
    return table


def parse_licenses(text: str) -> Table:
    """Read name, server and, if clusters are shown, cluster of `sacctmgr show resource`."""
    rows = (line.split("|") for line in text.splitlines())
    return {(_license(name, server, *cluster),): {} for name, server, *cluster in rows}


def _license(name: str, server: str, cluster: str = "") -> str:
    return f"{name}@{server}".lower() + (f" of cluster {cluster}" if cluster else "")


def _coordinated(scenario: Scenario) -> dict[str, set[str]]:
    """Return the accounts of which sacctmgr shows each user as a coordinator.

    The coordinators of an account also coordinate the accounts below it: as_mysql_user_get_users()
    and as_mysql_get_accts() in Slurm's accounting_storage/mysql.
    """
    parents = [
        (name.lower(), (account.parent or "root").lower())
        for name, account in _every_account(scenario)
        if name.lower() != "root"
    ]
    coordinated = {}
    for name, user in scenario.users.items():
        known = {account.lower() for account in user.coordinates}
        while below := {account for account, parent in parents if parent in known} - known:
            known |= below
        coordinated[name] = known
    return coordinated


def _every_account(scenario: Scenario) -> Iterator[tuple[str, Account]]:
    """Yield the accounts of all clusters in the order of creation; names can occur repeatedly."""
    for part, _ in scenario.accounting_trees():
        yield from _accounting(part).accounts.items()


def _slurm_users(scenario: Scenario) -> set[str]:
    """Return the SlurmUser of every cluster, if the scenario gives it accounts to submit jobs."""
    if not _accounting(scenario).slurm_user_accounts:
        return set()
    confs = (
        slurm_options.slurm_conf(scenario, name, capabilities.OWN_MACHINES)
        for name in scenario.clusters
    )
    return {slurm_options.get(conf, "SlurmUser") or "root" for conf in confs}


def _accounting(scenario: Scenario) -> Accounting:
    if scenario.accounting is None:
        raise ValueError("the scenario has no accounting")
    return scenario.accounting


def _row(
    kind: Mapping[str, str], values: Mapping[str, Any], defaults: Mapping[str, str]
) -> dict[str, Any]:
    """Return the expected columns; only those in `values` if these have an unknown option."""
    given = {name.lower(): text for name, text in slurm_options.merged(values).items()}
    unknown = {*given} - {*kind} - _OF_ACCOUNTS
    expected = {} if unknown else {column: defaults.get(column, "") for column in columns(kind)}
    expected |= {kind[name]: text for name, text in given.items() if name in kind}
    # +NAME and -NAME change a value that is unknown here.
    return {
        column: value(column, text)
        for column, text in expected.items()
        if not re.match(r"[+-]\D", text)
    }


def value(column: str, text: str) -> Any:
    """Parse the text of a column, from a scenario or from sacctmgr; -1 and "" mean no limit.

    >>> value("MaxWall", "10") == value("MaxWall", "00:10:00")
    True
    >>> value("GrpTRES", "mem=2G,cpu=6") == value("GrpTRES", "cpu=6,mem=2048M")
    True
    """
    text = text.strip().lower()
    if "TRES" in column:
        pairs = (item.partition("=") for item in text.split(",") if item)
        return {name: _amount(name, amount) for name, _, amount in pairs if amount != "-1"}
    if column in _SETS:
        return {item for item in text.split(",") if item}
    if text in {"", "-1"}:
        return None
    if column in _TIMES:
        try:
            return durations.seconds(text, 1 if column == "GraceTime" else 60)
        except ValueError:
            return text
    return float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else text


def _amount(name: str, text: str) -> float | str:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgtp]?)b?", text)
    if not match:
        return text
    # Memory is counted in MiB.
    unit = 1024.0 ** ("kmgtp".index(match[2]) - (1 if name == "mem" else -1)) if match[2] else 1
    return float(match[1]) * unit


def parse(text: str, keys: int, names: Sequence[str]) -> Table:
    """Read `sacctmgr --parsable2 --noheader show`; the first `keys` columns name the object."""
    table: Table = {}
    for line in text.splitlines():
        fields = line.split("|")
        seen = zip(names, fields[keys:], strict=True)
        table[tuple(fields[:keys])] = {name: value(name, field) for name, field in seen}
    return table


def differences(wanted: Table, seen: Table, what: str) -> list[str]:
    """Return missing and unexpected objects and differing columns; `what` is the kind of object."""
    problems = [f"there is no {_named(what, key)}" for key in sorted(wanted.keys() - seen.keys())]
    problems += [
        f"the scenario has no {_named(what, key)}" for key in sorted(seen.keys() - wanted.keys())
    ]
    for key in sorted(wanted.keys() & seen.keys()):
        for column, expected in wanted[key].items():
            if column in seen[key] and seen[key][column] != expected:
                shown = f"{_shown(seen[key][column])}, should be {_shown(expected)}"
                problems.append(f"{column} of {_named(what, key)} is {shown}")
    return problems


def _named(what: str, key: tuple[str, ...]) -> str:
    if len(key) == 1:
        return f"{what} {key[0]}"
    account, user, partition = key
    where = f" and partition {partition}" if partition else ""
    return (
        f"{what} of user {user} in account {account}{where}"
        if user
        else f"{what} of account {account}"
    )


def _shown(setting: Any) -> str:
    if isinstance(setting, dict):
        return (
            ",".join(f"{name}={_shown(amount)}" for name, amount in sorted(setting.items()))
            or "unset"
        )
    if isinstance(setting, set):
        return ",".join(sorted(setting)) or "unset"
    return (
        "unset"
        if setting is None
        else f"{setting:g}"
        if isinstance(setting, float)
        else str(setting)
    )


def in_memory(scenario: Scenario) -> tuple[Table, Table, Table]:
    """Return the users, associations and QOS that slurmctld should have in memory."""
    tree = associations(scenario)
    people = users(scenario)
    columns_in_memory = ("Share", "ParentName", "GrpJobs", "GrpSubmit", "GrpTRES", *_INHERITED)
    rows = {
        key: {
            column: _inherited(tree, key, column) for column in columns_in_memory if column in row
        }
        for key, row in tree.items()
    }
    qos_columns = ("Priority", "GrpJobs", "GrpSubmit", "GrpTRES", "MaxTRES", "MaxWall")
    limits = {
        key: {column: row[column] for column in qos_columns if column in row}
        for key, row in qos(scenario).items()
    }
    return people, rows, limits


def _inherited(tree: Table, key: tuple[str, ...], column: str) -> Any:
    """Return an association's own value, or that of the nearest account above it that has one."""
    account, user, _ = key
    row = tree[key]
    if column not in _INHERITED or row.get(column) is not None:
        return row.get(column)
    parent_name = account if user else tree[account, "", ""].get("ParentName")
    parent = (parent_name or "", "", "")
    return _inherited(tree, parent, column) if parent in tree and parent != key else None


# The columns of sacctmgr by their names in `scontrol show assoc_mgr`: scontrol(1).
_IN_MEMORY = {
    "SharesRaw/Norm/Level/Factor": "Share",
    "ParentAccount": "ParentName",
    "GrpJobs": "GrpJobs",
    "GrpSubmitJobs": "GrpSubmit",
    "GrpTRES": "GrpTRES",
    "MaxTRESPJ": "MaxTRES",
    "MaxJobs": "MaxJobs",
    "MaxSubmitJobs": "MaxSubmit",
    "MaxWallPJ": "MaxWall",
    "Priority": "Priority",
}


def parse_memory(text: str) -> tuple[Table, Table, Table]:
    """Read `scontrol --oneliner show assoc_mgr`: users, associations and QOS.

    Users who have no account on the cluster, but on others of slurmdbd, are left out.
    """
    people: Table = {}
    rows: Table = {}
    limits: Table = {}
    for line in text.splitlines():
        facts: dict[str, str] = {}
        for name, field in re.findall(r"(?<!\S)([A-Z][\w/]*)=(\S*)", line):
            facts.setdefault(name, field)
        if line.startswith("UserName="):
            if facts["DefAccount"] == "(null)":
                continue
            row = {
                "DefaultAccount": facts["DefAccount"].lower(),
                "AdminLevel": facts["AdminLevel"].lower(),
            }
            people[_bare(facts["UserName"]),] = row
        elif line.startswith("ClusterName="):
            partition = facts.get("Partition", "")
            rows[facts["Account"], _bare(facts["UserName"]), partition] = _columns(facts)
        elif line.startswith("QOS="):
            limits[_bare(facts["QOS"]),] = _columns(facts)
    return people, rows, limits


def _columns(facts: Mapping[str, str]) -> dict[str, Any]:
    """Return the columns of sacctmgr in a line of `show assoc_mgr`; N and "" mean no limit."""
    row = {}
    for name, column in _IN_MEMORY.items():
        if name in facts:
            if "TRES" in column:
                limits = map(_bare, facts[name].split(","))
                text = ",".join(limit for limit in limits if not limit.endswith("=N"))
            else:
                text = _bare(facts[name].partition("/")[0])
            row[column] = value(column, "" if text == "N" else text)
    return row


def _bare(text: str) -> str:
    """Return a name without its id, or a limit without its usage."""
    return text.partition("(")[0]
