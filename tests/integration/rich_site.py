"""A site with everything that an administrator configures, of any size, as a scenario."""

from __future__ import annotations

from typing import Any

CLUSTER = "rich"
_PARTITIONS = {
    "short": {"default": True, "options": {"MaxTime": "2:00:00", "DefaultTime": "0:10:00"}},
    "long": {"options": {"AllowAccounts": "field0,field1", "MaxTime": "7-00:00:00"}},
    "gpu": {"nodes": "g[1-2]", "options": {"AllowQos": "normal,qos2", "PriorityTier": 2}},
    "staff": {"nodes": "n[1-2]", "options": {"AllowGroups": "staff"}},
    "spare": {"nodes": "n[3-4]", "options": {"DenyAccounts": "field2", "QOS": "qos5"}},
}
# Each QOS has another kind of limit.
_QOS: tuple[dict[str, Any], ...] = (
    {"Priority": 10, "UsageFactor": 0.5},
    {"Priority": 1000, "MaxWall": "1:00:00", "Preempt": "qos0,qos6", "GraceTime": 10},
    {"MaxTRESPerUser": "cpu=4,gres/gpu=1", "MaxJobsPerUser": 3},
    {"MaxSubmitJobsPerUser": 4, "Flags": "DenyOnLimit"},
    {"MaxTRESPerJob": "cpu=3", "Flags": "DenyOnLimit"},
    {"GrpTRES": "cpu=6", "GrpJobs": 5},
    {"MaxTRESPerAccount": "cpu=5", "MaxSubmitJobsPerAccount": 20},
    {"GrpTRESMins": "cpu=100000", "GrpWall": "10000"},
    {"MinTRESPerJob": "cpu=2", "Flags": "DenyOnLimit"},
    {"MaxTRESPerNode": "cpu=1", "MaxTRESMins": "cpu=5000"},
    {"GrpSubmitJobs": 50, "MaxJobsPerAccount": 10, "Flags": "OverPartQOS"},
    {"GrpTRESRunMins": "cpu=50000", "Flags": "NoReserve"},
)
_LUA = """\
function slurm_job_submit(job, partitions, uid)
   if job.name == "forbidden" then
      slurm.log_user("site policy: choose another name")
      return slurm.ERROR
   end
   if job.partition == nil and job.time_limit ~= slurm.NO_VAL and job.time_limit > 120 then
      job.partition = "long"
   end
   return slurm.SUCCESS
end
function slurm_job_modify(job, record, partitions, uid)
   return slurm.SUCCESS
end
"""


def rich_site(users: int, accounts: int) -> dict[str, Any]:
    """Return the scenario of a site with so many users and accounts, at least seven."""
    tree = _accounts(accounts)
    people = _users(users, [*tree])
    staff = [name for number, name in enumerate(people) if number % 10 == 0]
    return {
        "description": "A site with a large accounting tree, scripts, licenses and reservations.",
        "clusters": {CLUSTER: _cluster()},
        "accounting": {
            "host": "db",
            "accounts": tree,
            "qos": {f"qos{number}": {"options": options} for number, options in enumerate(_QOS)},
            "resources": {
                "matlab": {"server": "flexlm", "count": 20, "clusters": {CLUSTER: 50}},
            },
        },
        "users": people,
        "groups": {
            "staff": {"gid": 7001, "users": staff},
            "guests": {"gid": 7002, "users": [*people][:3]},
        },
    }


def _cluster() -> dict[str, Any]:
    return {
        "controller": "ctl",
        "backup_controllers": ["ctl2"],
        "hosts": "s[1-2]",
        "nodes": [
            {"name": "n[1-4]", "cpus": 4, "memory": 500, "features": ["amd", "ib"]},
            {"name": "g[1-2]", "cpus": 4, "memory": 500, "gres": ["gpu:a100:2"]},
        ],
        "partitions": _PARTITIONS,
        "options": {
            "AccountingStorageEnforce": "associations,limits,qos",
            "AccountingStorageTRES": "gres/gpu",
            "GresTypes": "gpu",
            "Licenses": "fluent:4,ansys:2",
            "PriorityType": "priority/multifactor",
            "PriorityWeightFairshare": 1000,
            "PriorityWeightQOS": 10000,
            "PreemptType": "preempt/qos",
            "PreemptMode": "REQUEUE",
            "JobSubmitPlugins": "lua",
            "Prolog": "/etc/slurm/prolog.d/*",
            "Epilog": "/etc/slurm/epilog.sh",
            "MaxArraySize": 500,
        },
        "lines": [{"NodeSet": "ib", "Feature": "ib"}],
        "scripts": {
            "/etc/slurm/job_submit.lua": {"hosts": "controllers", "mode": "0644", "text": _LUA},
            "/etc/slurm/prolog.d/10-log": {
                "text": '#!/bin/sh\necho "$SLURM_JOB_ID" >> /var/tmp/prolog\n',
            },
            "/etc/slurm/epilog.sh": {
                "text": '#!/bin/sh\necho "$SLURM_JOB_ID" >> /var/tmp/epilog\n',
            },
        },
        "reservations": {
            "maintenance": {
                "StartTime": "now+7days",
                "Duration": "1-00:00:00",
                "Nodes": "n[1-2]",
                "Users": "root",
                "Flags": "MAINT",
            },
            "course": {
                "StartTime": "now",
                "Duration": "2-00:00:00",
                "Nodes": "n4",
                "Accounts": "field0",
            },
        },
    }


def _accounts(count: int) -> dict[str, Any]:
    """Return fields, groups below them, and teams below those, with every kind of limit."""
    limits: tuple[dict[str, Any], ...] = (
        {"Fairshare": 30, "GrpTRES": "cpu=12,mem=4G"},
        {"MaxJobs": 20, "MaxSubmitJobs": 40},
        {"GrpJobs": 30, "GrpSubmitJobs": 60},
        {"GrpTRESMins": "cpu=100000", "MaxWall": "1-12:00:00"},
        {"MaxTRESPerJob": "cpu=10", "MaxTRESPerNode": "cpu=4"},
        {"GrpWall": "100000", "MaxTRESMinsPerJob": "cpu=20000"},
        {"QOS": "normal,qos1,qos2", "DefaultQOS": "qos2"},
        {"GrpTRESRunMins": "cpu=90000", "Priority": 5},
    )
    tree: dict[str, Any] = {"root": {"options": {"MaxSubmitJobs": 400}}}
    groups = 5 + (count - 4) // 2
    for number in range(count):
        name, parent = f"field{number % 5}", ""
        if number >= groups:
            name, parent = f"team{number}", f"group{number - groups + 5}"
        elif number >= 5:
            name, parent = f"group{number}", name
        tree[name] = {
            **({"parent": parent} if parent else {}),
            "options": {**limits[number % len(limits)], "Description": f"no. {number}"},
        }
    return tree


def _users(count: int, accounts: list[str]) -> dict[str, Any]:
    names = [account for account in accounts if account != "root"]
    people = {}
    for number in range(count):
        own = list(dict.fromkeys([names[number % len(names)], names[(number * 7) % len(names)]]))
        user: dict[str, Any] = {"uid": 3000 + number, "accounts": own}
        if number % 3 == 0:
            user["associations"] = {own[0]: {"Fairshare": number % 9 + 1, "MaxJobs": 5}}
        if number % 4 == 0 or number < len(_QOS):
            # Everyone needs qos2, the default QOS of some accounts.
            own_qos = {number % len(_QOS), (number + 5) % len(_QOS), 2}
            user["qos"] = [f"qos{one}" for one in sorted(own_qos)]
        if number % 25 == 17:
            user["associations"] = {f"{own[0]}:gpu": {"MaxSubmitJobs": 2, "Fairshare": 3}}
        if number % 20 == 3:
            user["coordinates"] = [own[0]]
        if number == 5:
            user["admin"] = "Operator"
        people[f"u{number:03}"] = user
    return people


def submissions() -> list[dict[str, Any]]:
    """Return a table of submissions: each QOS and partition, for users with and without rights."""
    rows: list[dict[str, Any]] = [
        {"name": "default", "user": "u001", "time": 10},
        {"name": "Lua refuses", "user": "u001", "job-name": "forbidden"},
        {"name": "Lua chooses long", "user": "u001", "time": 180},
        {"name": "licenses", "user": "u002", "licenses": "fluent:2", "time": 10},
        {"name": "too many licenses", "user": "u002", "licenses": "fluent:5", "time": 10},
        {"name": "remote license", "user": "u002", "licenses": "matlab@flexlm:2", "time": 10},
        {"name": "reservation", "user": "u000", "reservation": "course", "time": 10},
        {"name": "reservation of others", "user": "u001", "reservation": "course", "time": 10},
        {"name": "features", "user": "u003", "constraint": "amd&ib", "time": 10},
        {"name": "gres", "user": "u003", "partition": "gpu", "gres": "gpu:a100:1", "time": 10},
        {"name": "limit of a partition", "user": "u017", "partition": "gpu", "array": "1-3"},
        {"name": "large array", "user": "u001", "array": "1-50"},
    ]
    for user in ("u000", "u001", "u002"):
        for partition in _PARTITIONS:
            name = f"{user} in {partition}"
            rows.append({"name": name, "user": user, "partition": partition, "time": 10})
    for number in range(len(_QOS)):
        user, qos = f"u{number:03}", f"qos{number}"
        rows.append({"name": f"{qos} small", "user": user, "qos": qos, "time": 10})
        rows.append({"name": f"{qos} wide", "user": user, "qos": qos, "ntasks": 7, "time": 90})
        rows.append({"name": f"{qos} of others", "user": "u013", "qos": qos, "time": 10})
    return rows
