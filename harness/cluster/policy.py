"""Jobs that a scenario's own policy must accept or refuse, their order and preemption. Pure.

The policy is that of accounts, users, QOS, partitions, reservations and licenses; job_submit.lua
can change it.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby, pairwise, product
from typing import Any

from harness import releases, slurm_options
from harness.cluster import association_comparison
from harness.parsing import hostlist
from harness.plan import Plan
from harness.slurm_options import get, minutes
from harness.slurmconf.check.nodes import names_of

# Reasons why a partition does not accept a job, as sbatch and squeue print them. slurmctld replaces
# them by PartitionConfig when it looks at a waiting job again (job_limits_check of its job_mgr.c).
NO_ACCESS = (
    r"account/partition|[Ii]nvalid qos|not (?:in group )?permitted to use this partition|"
    r"Access(?:/permission)? denied|AccountNotAllowed|QOSNotAllowed|QOS? not permitted|"
    r"Job's (?:account|QOS) not permitted|PartitionConfig"
).replace(" ", "[ _]")
# Slurm's answers to a job that a reservation does not accept, or that requests more licenses than
# there are. The reservation may have ended.
_NO_RESERVATION = "Access denied to requested reservation|Requested reservation is invalid"
_NO_LICENSE = "Invalid license specification"
# Columns of limits -> the reason of a job that exceeds them, with {0} for a TRES. Slurm's
# job_reason_string() begins the names with Assoc or QOS, except for limits of a QOS per account.
_REASONS = {
    "MaxTRES": "Max{0}PerJob",
    "MaxTRESPerNode": "Max{0}PerNode",
    "MaxTRESMins": "Max{0}MinutesPerJob",
    "MaxTRESPU": "Max{0}PerUser",
    "MaxTRESPA": "Max{0}PerAccount",
    "MinTRES": "Min{0}",
    "GrpTRES": "Grp{0}(?!Run|Min)",
    "GrpTRESMins": "Grp{0}Minutes",
    "GrpTRESRunMins": "Grp{0}RunMinutes",
    "MaxWall": "MaxWallDurationPerJob",
    "MaxSubmit": "MaxSubmitJob",
    "GrpSubmit": "GrpSubmitJobs",
    "MaxSubmitPU": "MaxSubmitJobs?PerUser",
    "MaxSubmitPA": "MaxSubmitJobs?PerAccount",
}
_TRES = {"cpu": "C(?:pu|PU)", "node": "Node"}
_GROUP_LIMITS = ("GrpTRES", "GrpTRESMins", "GrpTRESRunMins", "GrpSubmit")
_SUBMIT_LIMITS = ("MaxSubmit", "GrpSubmit", "MaxSubmitPU", "MaxSubmitPA")
_IN_MINUTES = ("MaxTRESMins", "GrpTRESMins", "GrpTRESRunMins")
# The factors, as named in PriorityWeight*, in which two jobs of a user can differ at will, and the
# nice value that lowers the priority of one job.
_WEIGHED, _NICE = ("QOS", "Partition", "JobSize"), 50
# A weight of a TRES, and its unit.
_WEIGHT = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)([kmgtp]?)", re.ASCII)
_UNITS = " kmgtp"
# The sizes of two jobs that differ in their CPUs, or in their memory (MiB).
_CPUS, _MEMORY = (1, 2), (50, 100)
# The least and the most seconds by which two jobs may differ in age, and the least difference of
# their priorities that counts.
_SHORTEST_AGE, _LONGEST_AGE, _VISIBLE = 3, 60, 20


@dataclass(frozen=True, slots=True)
class Submission:
    """A job of a user, what it tests, and why Slurm must hold or refuse it.

    `reason` is a regular expression; "" if the cluster must accept the job. A job with `refused`
    must not even wait.
    """

    cluster: str
    user: str
    what: str
    options: tuple[str, ...]
    reason: str = ""
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Preemption:
    """A user whose jobs of one QOS preempt those of another, and what happens to the latter."""

    cluster: str
    partition: str
    user: str
    account: str
    high: str
    low: str
    mode: str


@dataclass(frozen=True, slots=True)
class Order:
    """Two jobs of a user, and by how much the first has a higher priority.

    `factor` is what the jobs differ in, and `columns` are their partitions and QOS.
    """

    cluster: str
    user: str
    factor: str
    options: tuple[tuple[str, ...], tuple[str, ...]]
    columns: tuple[tuple[str, str], tuple[str, str]]
    difference: float


@dataclass(frozen=True, slots=True)
class Age:
    """Jobs of a user that gain priority while they wait, and how much per second.

    The gain is visible after `seconds`.
    """

    cluster: str
    user: str
    options: tuple[str, ...]
    partition: str
    per_second: float
    seconds: int


@dataclass(frozen=True, slots=True)
class Rivals:
    """Two users of an account whose jobs, with these options, differ only in fair share.

    `shares` are those of the users, and the weight is PriorityWeightFairshare.
    """

    cluster: str
    account: str
    users: tuple[str, str]
    shares: tuple[float, float]
    options: tuple[str, ...]
    weight: int


@dataclass(frozen=True, slots=True)
class _Way:
    """How a user submits: an association, and one of its QOS."""

    user: str
    account: str
    qos: str

    @property
    def options(self) -> tuple[str, ...]:
        return f"--account={self.account}", f"--qos={self.qos}"

    def smallest_job(self, partition: str) -> tuple[str, ...]:
        """Return sbatch's options for one task of one minute."""
        return (f"--partition={partition}", *self.options, "--time=1", "--ntasks=1")


@dataclass(frozen=True, slots=True)
class _Policy:
    """The policy of a cluster: its partitions, and the tables of associations and QOS."""

    plan: Plan
    cluster: str
    tree: association_comparison.Table
    qos: association_comparison.Table

    def ways(self) -> Iterator[_Way]:
        """Yield how users without rights over others' jobs can submit, whatever the partition."""
        for name, user in self.plan.scenario.of_cluster(self.cluster).users.items():
            for account in () if user.privileged else user.accounts:
                for qos in sorted(self.nearest(account, name, "QOS") or ()):
                    yield _Way(name, account, qos)

    def chain(self, account: str, user: str) -> Iterator[Mapping[str, Any]]:
        """Yield a user's association, its account and those above it, as far as they are known."""
        yield self.tree.get((account.lower(), user, ""), {})
        name, seen = account.lower(), set[str]()
        while name and name not in seen and (name, "", "") in self.tree:
            seen.add(name)
            row = self.tree[name, "", ""]
            yield row
            name = str(row.get("ParentName") or "")

    def listed_accounts(self, account: str) -> set[str]:
        """Return the names by which a partition's lists of accounts can include an account."""
        release = releases.get(self.plan.releases()[self.cluster])
        if release.account_lists_include_subaccounts:
            return self.with_parents(account)
        return {account.lower()}

    def with_parents(self, account: str) -> set[str]:
        """Return the names of an account and of those above it, in lower case."""
        parents = {str(row.get("ParentName") or "").lower() for row in self.chain(account, "")}
        return {account.lower()} | parents

    def nearest(self, account: str, user: str, column: str) -> Any:
        """Return the value that an association has or inherits."""
        return next((row[column] for row in self.chain(account, user) if row.get(column)), None)

    def partitions(self) -> dict[str, Mapping[str, Any]]:
        """Return the options of the partitions that take jobs of users."""
        parts = self.plan.scenario.clusters[self.cluster].partitions
        return {
            name: part.options
            for name, part in parts.items()
            if str(get(part.options, "State") or "UP").upper() == "UP"
            and str(get(part.options, "RootOnly") or "NO").upper() not in {"YES", "TRUE"}
            and str(get(part.options, "ReqResv") or "NO").upper() not in {"YES", "TRUE"}
            and not get(part.options, "AllocNodes")
        }

    def refusals(self, partition: str, way: _Way) -> list[str]:
        """Return the options of a partition that refuse a user's job, in lower case.

        See part_policy_valid_acct() and part_policy_valid_qos() in slurmctld's partition_mgr.c, and
        validate_group().
        """
        options = self.partitions()[partition]
        own = {
            "accounts": self.listed_accounts(way.account),
            "qos": {way.qos},
            "groups": self.plan.scenario.groups_of(way.user),
        }
        refusing = []
        for kind, names in own.items():
            allowed, denied = (
                {*str(get(options, f"{word}{kind}") or "").lower().split(",")} - {"", "all"}
                for word in ("allow", "deny")
            )
            if allowed and not names & allowed:
                refusing.append(f"allow{kind}")
            elif not allowed and names & denied:
                refusing.append(f"deny{kind}")
        return refusing

    def factors(self) -> dict[str, dict[str, float]]:
        """Return the configured priority of each QOS and partition."""
        partitions = self.plan.scenario.clusters[self.cluster].partitions
        return {
            "QOS": {name: float(row.get("Priority") or 0) for (name,), row in self.qos.items()},
            "Partition": {
                name: float(
                    str(
                        get(part.options, "PriorityJobFactor") or get(part.options, "Priority") or 1
                    )
                )
                for name, part in partitions.items()
            },
        }

    def partition_for(self, *ways: _Way, exclusive: bool = False) -> str | None:
        """Return a partition that accepts a user's jobs; if `exclusive`, one with `--exclusive`."""
        for name, options in self.partitions().items():
            sharing = str(get(options, "OverSubscribe") or get(options, "Shared") or "").upper()
            # OverSubscribe=FORCE has precedence over --exclusive.
            if exclusive and sharing.startswith("FORCE"):
                continue
            if not any(self.refusals(name, way) for way in ways):
                return name
        return None

    def is_reserved_for(self, options: Mapping[str, Any], way: _Way) -> bool:
        """Return whether a reservation's lists of users and accounts accept a user's job.

        An account stands for those below it, and a list that begins with "-" for all others: see
        _valid_job_access_resv() in slurmctld's reservation.c.
        """
        own = {"users": {way.user}, "accounts": self.with_parents(way.account)}
        for kind, names in own.items():
            listed = str(get(options, kind) or get(options, kind[:-1]) or "").lower()
            named = {name.lstrip("-") for name in listed.split(",") if name}
            if named and bool(names & named) == ("-" in listed):
                return False
        return True

    def nodes_of(self, partition: str) -> tuple[str, ...]:
        """Return the nodes of a partition."""
        cluster = self.plan.scenario.clusters[self.cluster]
        named = str(get(cluster.partitions[partition].options, "Nodes") or "ALL")
        if named.upper() == "ALL":
            return cluster.nodes_of_partition(cluster.partitions[partition])
        return tuple(names_of(named) or ())

    def takes_small_jobs(self, way: _Way, count: int) -> bool:
        """Return whether limits allow a user to submit `count` small jobs."""
        return not [*self.limits_of(way, "MinTRES")] and all(
            value >= count for column in _SUBMIT_LIMITS for _, value in self.limits_of(way, column)
        )

    def takes(self, way: _Way, tres: str, amount: int) -> bool:
        """Return whether all limits allow a user's job that requests this amount of a TRES."""
        columns = (column for column in _REASONS if "TRES" in column and column not in _IN_MINUTES)
        return all(
            limit.get(tres, amount) >= amount
            for column in columns
            for _, limit in self.limits_of(way, column)
        )

    def limits_of(self, way: _Way, column: str) -> Iterator[tuple[str, Any]]:
        """Yield the limits of a kind that apply to a user's jobs, and whose they are."""
        qos_limit = self.qos.get((way.qos,), {}).get(column)
        if qos_limit:
            yield "QOS", qos_limit
        elif column in _GROUP_LIMITS:
            values = (row.get(column) for row in self.chain(way.account, way.user))
            yield from (("Assoc", value) for value in values if value)
        elif value := self.nearest(way.account, way.user, column):
            yield "Assoc", value


def _policy(plan: Plan, cluster: str) -> _Policy:
    tables = association_comparison
    scenario = plan.scenario.of_cluster(cluster)
    return _Policy(plan, cluster, tables.associations(scenario), tables.qos(scenario))


def submissions(plan: Plan) -> list[Submission]:
    """Return jobs that test what restricts users: partitions, limits, reservations, licenses."""
    jobs: list[Submission] = []
    if not plan.scenario.accounting:
        return jobs
    for cluster in plan.clusters_with_limits():
        policy = _policy(plan, cluster)
        jobs += [*_partition_submissions(policy), *_limit_submissions(policy)]
        jobs += [*_reservation_submissions(policy), *_license_submissions(policy)]
    return jobs


def _partition_submissions(policy: _Policy) -> Iterator[Submission]:
    """Yield, for each partition, an accepted job, and one for each option that refuses any."""
    ways = [*policy.ways()]
    for name in policy.partitions():
        chosen: dict[str, _Way] = {}
        for way in ways:
            for cause in policy.refusals(name, way) or [""]:
                chosen.setdefault(cause, way)
        for cause, way in chosen.items():
            what = f"partition {name} {'refuses' if cause else 'accepts'} {way.user}"
            what += f" with account {way.account} and QOS {way.qos}"
            reason = NO_ACCESS if cause else ""
            yield Submission(policy.cluster, way.user, what, way.smallest_job(name), reason)


def _limit_submissions(policy: _Policy) -> Iterator[Submission]:
    """Yield a job that exceeds each kind of limit, if the cluster is large enough for one."""
    seen: set[tuple[str, str, str]] = set()
    for way in policy.ways():
        for column in _REASONS:
            for owner, limit in policy.limits_of(way, column):
                values = limit.items() if isinstance(limit, dict) else [("", limit)]
                for tres, value in values:
                    kind = (owner, column, tres)
                    if kind in seen:
                        continue
                    job = _job_exceeding(policy, way, column, tres, value)
                    if job:
                        seen.add(kind)
                        limit_text = f"{column}{f' {tres}' if tres else ''}={value:g}"
                        what = f"{owner} limit {limit_text} of {way.user}, account {way.account}"
                        what += f", QOS {way.qos}"
                        reason = _reasons(policy, way, job)
                        options = (*way.options, *_sbatch_options(job))
                        yield Submission(policy.cluster, way.user, what, options, reason)


def _reservation_submissions(policy: _Policy) -> Iterator[Submission]:
    """Yield, for each reservation with users or accounts, an accepted job and a refused one."""
    for name, options in policy.plan.scenario.clusters[policy.cluster].reservations.items():
        flags = str(get(options, "Flags") or "").upper()
        if get(options, "Groups") or "TIME_FLOAT" in flags:
            continue
        chosen: dict[bool, tuple[_Way, str]] = {}
        for way in policy.ways():
            if partition := policy.partition_for(way):
                chosen.setdefault(policy.is_reserved_for(options, way), (way, partition))
        for accepted, (way, partition) in chosen.items():
            what = f"reservation {name} {'accepts' if accepted else 'refuses'} {way.user}"
            what += f" with account {way.account}"
            requested = (f"--reservation={name}", *way.smallest_job(partition))
            reason = "" if accepted else _NO_RESERVATION
            yield Submission(
                policy.cluster, way.user, what, requested, reason, refused=not accepted
            )


def _license_submissions(policy: _Policy) -> Iterator[Submission]:
    """Yield, for each kind of license, a job that requests one more than slurm.conf has."""
    licenses = str(get(policy.plan.slurm_conf(policy.cluster), "Licenses") or "")
    counts: Counter[str] = Counter()
    for name, count in re.findall(r"([^,;:]+)(?::(\d+))?", licenses):
        counts[name] += int(count or 1)
    for way in policy.ways():
        if partition := policy.partition_for(way):
            for name, total in counts.items():
                what = f"{total + 1} of {total} licenses {name}"
                requested = (f"--licenses={name}:{total + 1}", *way.smallest_job(partition))
                yield Submission(
                    policy.cluster, way.user, what, requested, _NO_LICENSE, refused=True
                )
            return


@dataclass(frozen=True, slots=True)
class _Job:
    partition: str
    cpus: int = 1
    nodes: int = 1
    minutes: int = 1
    tasks_of_array: int = 1


def _job_exceeding(policy: _Policy, way: _Way, column: str, tres: str, value: float) -> _Job | None:
    """Return the smallest job that exceeds a limit; None if the cluster has no room for one."""
    cluster = policy.plan.scenario.clusters[policy.cluster]
    size = cluster.static_nodes()
    beyond = int(value) + 1
    for name, options in policy.partitions().items():
        if policy.refusals(name, way) or get(options, "QOS"):
            continue
        cpus = [size[node] for node in policy.nodes_of(name) if node in size]
        longest = minutes(str(get(options, "MaxTime") or "unlimited"))
        job = None
        if column in _IN_MINUTES:
            job = _Job(name, minutes=beyond) if tres in {"cpu", "node"} else None
        elif column == "MaxWall":
            job = _Job(name, minutes=int(value // 60) + 1)
        elif column in _SUBMIT_LIMITS:
            job = _Job(name, tasks_of_array=beyond)
        elif tres == "cpu" and column == "MaxTRESPerNode":
            job = _Job(name, cpus=beyond) if beyond <= max(cpus, default=0) else None
        elif column == "MinTRES":
            job = _Job(name) if tres == "cpu" and value > 1 else None
        elif tres == "cpu":
            job = _Job(name, cpus=beyond, nodes=0) if beyond <= sum(cpus) else None
        elif tres == "node" and column != "MaxTRESPerNode":
            job = _Job(name, cpus=beyond, nodes=beyond) if beyond <= len(cpus) else None
        most = int(get(policy.plan.slurm_conf(policy.cluster), "MaxArraySize") or 1001)
        if job and job.minutes <= longest and job.tasks_of_array < most:
            return job
    return None


def _sbatch_options(job: _Job) -> tuple[str, ...]:
    """Return the options of sbatch for a job; `nodes` 0: any number."""
    one_node = job.nodes == 1 and job.cpus > 1
    return (
        f"--partition={job.partition}",
        f"--time={job.minutes}",
        "--ntasks=1" if one_node else f"--ntasks={job.cpus}",
        *((f"--cpus-per-task={job.cpus}",) if one_node else ()),
        *((f"--nodes={job.nodes}",) if job.nodes else ()),
        *((f"--array=1-{job.tasks_of_array}",) if job.tasks_of_array > 1 else ()),
    )


def _reasons(policy: _Policy, way: _Way, job: _Job) -> str:
    """Return the reasons of all limits that a job exceeds: Slurm names one of them."""
    amounts = {
        "MaxWall": job.minutes * 60,
        **dict.fromkeys(_SUBMIT_LIMITS, 0),
    }
    reasons = []
    for column, pattern in _REASONS.items():
        for owner, limit in policy.limits_of(way, column):
            prefix = "" if column.endswith("PA") else owner
            for tres, value in limit.items() if isinstance(limit, dict) else [("", limit)]:
                amount = {"cpu": job.cpus, "node": max(job.nodes, 1)}.get(tres, 0)
                if column in _IN_MINUTES:
                    amount *= job.minutes
                elif column in amounts:
                    amount = amounts[column] or job.tasks_of_array
                exceeds = amount < value if column == "MinTRES" else amount > value
                if exceeds and (not tres or tres in _TRES):
                    reasons.append(prefix + pattern.format(_TRES.get(tres, "")))
    return "|".join(dict.fromkeys(reasons))


def preemptions(plan: Plan) -> Iterator[Preemption]:
    """Yield a pair of QOS for each way in which jobs of one preempt those of another."""
    for cluster in plan.clusters_with_limits() if plan.scenario.accounting else ():
        conf = plan.slurm_conf(cluster)
        if (get(conf, "PreemptType") or "").lower() != "preempt/qos":
            continue
        policy = _policy(plan, cluster)
        default = (get(conf, "PreemptMode") or "").lower()
        ways = [*policy.ways()]
        seen: set[str] = set()
        for way in ways:
            for low in sorted(policy.qos.get((way.qos,), {}).get("Preempt", ())):
                mode = str(policy.qos.get((low,), {}).get("PreemptMode") or "cluster").lower()
                mode = default if mode == "cluster" else mode
                mode = mode.replace("gang", "").strip(",")
                if mode in seen or mode not in {"requeue", "cancel", "suspend"}:
                    continue
                way_of_low = _Way(way.user, way.account, low)
                partition = policy.partition_for(way, way_of_low, exclusive=True)
                if partition and way_of_low in ways:
                    seen.add(mode)
                    yield Preemption(cluster, partition, way.user, way.account, way.qos, low, mode)


def orders(plan: Plan) -> Iterator[Order]:
    """Yield two jobs for each factor of priority that a cluster weighs and that jobs can differ in.

    These are QOS, partition, nice value, CPUs and memory: see set_priority_factors() in Slurm's
    priority_multifactor.c. All others are the same for two jobs of one account and user, except for
    the age that PriorityFlags=ACCRUE_ALWAYS gives to jobs that may not start yet, and for what a
    plugin of the site adds.
    """
    for cluster in _predictable_clusters(plan):
        conf = plan.slurm_conf(cluster)
        if get(conf, "PriorityWeightTRES") or any(_weight(conf, kind) for kind in _WEIGHED):
            yield from _orders_of_cluster(_policy(plan, cluster))


def ages(plan: Plan) -> Iterator[Age]:
    """Yield jobs of a user of each cluster on which a minute of waiting changes the priority."""
    for cluster in _predictable_clusters(plan):
        conf = plan.slurm_conf(cluster)
        per_second = _weight(conf, "Age") / (minutes(get(conf, "PriorityMaxAge") or "7-0") * 60)
        # Limits such as MaxJobsAccruePU keep jobs from gaining age.
        if (
            per_second * _LONGEST_AGE < _VISIBLE
            or "jobsaccrue" in plan.scenario.model_dump_json().lower()
        ):
            continue
        policy = _policy(plan, cluster)
        for way in policy.ways():
            partition = policy.partition_for(way, exclusive=True)
            if partition and policy.takes_small_jobs(way, 3):
                seconds = max(_SHORTEST_AGE, math.ceil(_VISIBLE / per_second))
                options = way.smallest_job(partition)
                yield Age(cluster, way.user, options, partition, per_second, seconds)
                break


def rivals(plan: Plan) -> Iterator[Rivals]:
    """Yield two users of an account of each cluster on which fair share visibly counts.

    With Fair Tree, the factors of two users differ by at least one divided by the number of users.
    """
    for cluster in _predictable_clusters(plan):
        conf = plan.slurm_conf(cluster)
        weight = _weight(conf, "Fairshare")
        if not weight or "NO_FAIR_TREE" in _flags(conf):
            continue
        policy = _policy(plan, cluster)
        if weight < 2 * sum(bool(user) for _, user, _ in policy.tree):
            continue
        alike: dict[tuple[str, ...], list[tuple[_Way, float]]] = defaultdict(list)
        people = plan.scenario.of_cluster(cluster).users
        for way in policy.ways():
            share = policy.tree.get((way.account.lower(), way.user, ""), {}).get("Share")
            if (
                isinstance(share, float)  # not "parent"
                and share > 0
                and not people[way.user].has_partitions
                and policy.takes_small_jobs(way, 2)
                and not policy.nearest(way.account, way.user, "Priority")
            ):
                alike[way.options].append((way, share))
        pairs = (pair for ways in alike.values() for pair in pairwise(ways))
        for (one, of_one), (other, of_other) in pairs:
            if partition := policy.partition_for(one, other):
                options, names = one.smallest_job(partition), (one.user, other.user)
                yield Rivals(cluster, one.account, names, (of_one, of_other), options, weight)
                break


def _weight(conf: Mapping[str, Any], kind: str) -> int:
    return int(get(conf, f"PriorityWeight{kind}") or 0)


def _flags(conf: Mapping[str, Any]) -> str:
    return str(get(conf, "PriorityFlags") or "").upper()


def _predictable_clusters(plan: Plan) -> Iterator[str]:
    """Yield the clusters with limits whose priorities follow from their configuration alone."""
    for cluster in plan.clusters_with_limits() if plan.scenario.accounting else ():
        conf = plan.slurm_conf(cluster)
        release = releases.get(plan.releases()[cluster])
        default = releases.default_of(release, "slurm.conf", "PriorityType")
        if (
            (get(conf, "PriorityType") or default) == "priority/multifactor"
            and "ACCRUE_ALWAYS" not in _flags(conf)
            and not get(conf, "PrioritySiteFactorPlugin")
        ):
            yield cluster


def _orders_of_cluster(policy: _Policy) -> Iterator[Order]:
    """Yield two jobs of a cluster's users for each factor in which they can differ."""
    conf = policy.plan.slurm_conf(policy.cluster)
    flags = _flags(conf)
    parts = {}
    for kind, values in policy.factors().items():
        normal = 1.0 if f"NO_NORMAL_{kind[:4].upper()}" in flags else max(values.values()) or 1.0
        weight = _weight(conf, kind)
        parts[kind] = {name: weight * value / normal for name, value in values.items()}
    by_nodes = bool(get(conf, "PriorityWeightTRES")) and "NO_NORMAL_TRES" not in flags
    sizes = _sizes(policy, conf)
    orders_of: dict[str, Order] = {}
    for _, ways in groupby(policy.ways(), lambda way: (way.user, way.account)):
        jobs = [
            (way, partition)
            for way in ways
            if policy.takes_small_jobs(way, 2)
            for partition in policy.partitions()
            if not policy.refusals(partition, way)
        ]
        for (way, partition), (other, elsewhere) in product(jobs, repeat=2):
            nice: tuple[str, ...] = ()
            if way == other and partition == elsewhere:
                factor, difference, nice = "nice value", float(_NICE), (f"--nice={_NICE}",)
            elif way == other:
                if by_nodes and {*policy.nodes_of(partition)} != {*policy.nodes_of(elsewhere)}:
                    continue  # a TRES is worth more where there is less of it
                priorities = parts["Partition"]
                factor, difference = "partition", priorities[partition] - priorities[elsewhere]
            elif partition == elsewhere:
                factor, difference = "QOS", parts["QOS"][way.qos] - parts["QOS"][other.qos]
            else:
                continue
            if difference > 0 and factor not in orders_of:
                options = (way.smallest_job(partition), (*other.smallest_job(elsewhere), *nice))
                columns = ((partition, way.qos), (elsewhere, other.qos))
                orders_of[factor] = Order(
                    policy.cluster, way.user, factor, options, columns, difference
                )
        for way, partition in jobs:
            for pair in sizes[partition]:
                if pair.factor not in orders_of and policy.takes(way, pair.tres, pair.most):
                    orders_of[pair.factor] = pair.order(policy.cluster, way, partition)
    yield from orders_of.values()


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Two jobs that differ in a TRES, of which the larger requests `most`.

    `options` are those of the smaller job, then of the larger one, whose priority is higher by
    `gain`.
    """

    factor: str
    tres: str
    most: int
    options: tuple[tuple[str, ...], tuple[str, ...]]
    gain: float

    def order(self, cluster: str, way: _Way, partition: str) -> Order:
        """Return these jobs, for a user and a partition; the one of higher priority is first."""
        smaller, larger = ((*way.smallest_job(partition), *options) for options in self.options)
        jobs = (larger, smaller) if self.gain > 0 else (smaller, larger)
        columns = ((partition, way.qos),) * 2
        return Order(cluster, way.user, self.factor, jobs, columns, abs(self.gain))


def _sizes(policy: _Policy, conf: Mapping[str, Any]) -> dict[str, list[_Sizes]]:
    """Return, for each partition, two jobs that differ in CPUs, and two that differ in memory.

    JobSize is a job's part of the cluster, a TRES its part of the partition.
    """
    sizes: dict[str, list[_Sizes]] = {name: [] for name in policy.partitions()}
    cluster = policy.plan.scenario.clusters[policy.cluster]
    weights = _tres_weights(conf)
    # Slurm raises a negative priority to 1.
    if cluster.elastic() or "billing" in weights or min(weights.values(), default=0) < 0:
        return sizes
    cpus = cluster.static_nodes()
    memory = {
        node: slurm_options.real_memory(group)
        for group in cluster.nodes
        for node in hostlist.expand(group.name)
    }
    smaller, larger = (_size_factor(conf, cpus, count) for count in _CPUS)
    size_gain = _weight(conf, "JobSize") * (larger - smaller)
    fixed = (f"--mem={_MEMORY[0]}",) if all(memory.values()) else ()
    normalized = "NO_NORMAL_TRES" not in _flags(conf)
    for name, pairs in sizes.items():
        nodes = policy.nodes_of(name)
        if not cpus.keys() >= {*nodes}:
            continue  # it names a NodeSet
        per_cpu, per_mib = (
            weights.get(tres, 0) / (sum(sizes_of[node] for node in nodes) or 1 if normalized else 1)
            for tres, sizes_of in (("cpu", cpus), ("mem", memory))
        )
        if max(cpus[node] for node in nodes) >= _CPUS[1] and (fixed or not per_mib):
            smaller_options, larger_options = (
                (f"--cpus-per-task={count}", *fixed) for count in _CPUS
            )
            gain = size_gain + per_cpu * (_CPUS[1] - _CPUS[0])
            pairs.append(_Sizes("CPUs", "cpu", _CPUS[1], (smaller_options, larger_options), gain))
        if fixed:
            gain = per_mib * (_MEMORY[1] - _MEMORY[0])
            more = (f"--mem={_MEMORY[1]}",)
            pairs.append(_Sizes("memory", "mem", _MEMORY[1], (fixed, more), gain))
        # Slurm cuts fractions off.
        pairs[:] = [pair for pair in pairs if abs(pair.gain) > 2]
    return sizes


def _tres_weights(conf: Mapping[str, Any]) -> dict[str, float]:
    """Return the weights of PriorityWeightTRES, by the TRES in lower case.

    A weight is divided by its unit, that of memory by multiples of MiB (_tres_weight_item of
    src/common/slurm_protocol_api.c).
    """
    weights = {}
    for pair in str(get(conf, "PriorityWeightTRES") or "").lower().split(","):
        tres, _, value = pair.partition("=")
        if found := _WEIGHT.fullmatch(value):
            exponent = _UNITS.index(found[2] or " ") - _UNITS.index("m" if tres == "mem" else " ")
            weights[tres] = float(found[1]) / 1024 ** max(exponent, 0)
    return weights


def _size_factor(conf: Mapping[str, Any], cpus_of: Mapping[str, int], cpus: int) -> float:
    """Return the factor JobSize of a one-minute job with `cpus` CPUs on one node."""
    total, nodes = sum(cpus_of.values()), len(cpus_of)
    if "SMALL_RELATIVE_TO_TIME" in _flags(conf):
        factor = max(total / nodes, cpus) / total
    else:
        factor = (1 / nodes + cpus / total) / 2
    return 1 - factor if str(get(conf, "PriorityFavorSmall") or "NO").upper() == "YES" else factor
