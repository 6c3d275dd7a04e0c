"""Select the checks to run: those that fit the scenario, narrowed down by the user's words.

A check fits if the scenario has the features that the check needs. It names them in its marker:
`@pytest.mark.needs("users", "accounting")`. A feature is a function below, registered under the
name that the marker uses.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Set

from harness import releases, slurm_options
from harness.cluster import policy
from harness.errors import UsageError
from harness.plan import Plan
from harness.scenario import Cluster, gpus_of
from harness.topology import Placed, placed_once
from harness.verify import job_events

FEATURES: dict[str, Callable[[Plan], bool]] = {}
_MANY_NODES = 20
# The smallest node on which the jobs and pods of the checks for Kubernetes fit.
_POD_NODE_CPUS, _POD_NODE_MIB = 4, 1000


def select(plan: Plan, needs_of: Mapping[str, Set[str]], words: Iterable[str] = ()) -> list[str]:
    """Return the checks that fit a plan, in the given order.

    With `words`, only checks whose name contains one of them. `needs_of` has the features that each
    check needs. UsageError for a word that selects none of the checks that fit.
    """
    features = features_of(plan)
    fitting = [check for check, needs in needs_of.items() if needs <= features]
    words = [*words]
    for word in words:
        if not any(_is_selected(check, word) for check in fitting):
            raise _nothing_selected(word, [*needs_of])
    return [
        check for check in fitting if not words or any(_is_selected(check, word) for word in words)
    ]


def unknown_features(needs_of: Mapping[str, Set[str]]) -> list[str]:
    """Return a line for each feature that a check needs, but that is not defined.

    >>> unknown_features({"test_jobs": {"users", "usres"}})
    ['test_jobs: usres']
    """
    return [
        f"{check}: {name}"
        for check, needs in needs_of.items()
        for name in sorted(needs - FEATURES.keys())
    ]


def features_of(plan: Plan) -> set[str]:
    """Return the features that a plan has."""
    return {name for name, has in FEATURES.items() if has(plan)}


def has_many_nodes(cluster: Cluster) -> bool:
    """Return whether many of a cluster's nodes share hosts.

    Checks then submit hundreds of short jobs to them.
    """
    return bool(cluster.hosts) and len(cluster.node_names()) >= _MANY_NODES


def _is_selected(check: str, word: str) -> bool:
    return word.lower() in check.lower()


def _nothing_selected(word: str, checks: list[str]) -> UsageError:
    """Return the error for a word that selects nothing; its hint suggests similar names."""
    if any(_is_selected(check, word) for check in checks):
        return UsageError(f'no check with "{word}" in its name applies to this scenario')
    plain_word = word.lower().removeprefix("test_")
    parts = _parts(dict.fromkeys(map(_plain_name, checks)))
    matches = difflib.get_close_matches(plain_word, parts, n=3, cutoff=0.6)
    hint = (
        f"did you mean {', '.join(matches)}?"
        if matches
        else "the run's report lists the names of all checks"
    )
    return UsageError(f'no check has "{word}" in its name', hint=hint)


def _plain_name(check: str) -> str:
    """Return the name of a check's function.

    >>> _plain_name("test_jobs.py::test_job_runs_once[alpha]")
    'job_runs_once'
    """
    return check.rpartition("::")[2].partition("[")[0].removeprefix("test_")


def _parts(names: Iterable[str]) -> list[str]:
    """Return all runs of words in names, because a part of a name selects a check.

    >>> _parts(["job_runs_once"])
    ['job', 'job_runs', 'job_runs_once', 'runs', 'runs_once', 'once']
    """
    parts: dict[str, None] = {}
    for name in names:
        words = name.split("_")
        for begin in range(len(words)):
            for end in range(begin + 1, len(words) + 1):
                parts["_".join(words[begin:end])] = None
    return [*parts]


def feature(name: str) -> Callable[[Callable[[Plan], bool]], Callable[[Plan], bool]]:
    """Register a function that returns whether a plan has a feature.

    `name` is what `needs` calls the feature.
    """

    def register(has: Callable[[Plan], bool]) -> Callable[[Plan], bool]:
        FEATURES[name] = has
        return has

    return register


@feature("users")
def _users(plan: Plan) -> bool:
    """Users who submit jobs."""
    return bool(plan.scenario.users)


@feature("two_users")
def _two_users(plan: Plan) -> bool:
    """At least two users who have no rights over each other's jobs."""
    return sum(not user.privileged for user in plan.scenario.users.values()) > 1


@feature("administrators")
def _administrators(plan: Plan) -> bool:
    """Users with an AdminLevel, or who coordinate accounts."""
    return _accounting(plan) and any(user.privileged for user in plan.scenario.users.values())


@feature("private_data")
def _private_data(plan: Plan) -> bool:
    """Two users, and a PrivateData that hides what one has from the other."""
    conf = [slurm_options.slurmdbd_conf(plan.scenario)]
    conf += [plan.slurm_conf(name) for name in plan.scenario.clusters]
    private = {str(slurm_options.get(options, "PrivateData") or "none") for options in conf}
    return _two_users(plan) and not {word.lower() for word in private} <= {"none", "cloud"}


@feature("two_hosts")
def _two_hosts(plan: Plan) -> bool:
    """At least two hosts."""
    return len(plan.hosts) > 1


@feature("sites")
def _sites(plan: Plan) -> bool:
    """Several sites, joined by a gateway of the harness."""
    return len(plan.sites()) > 1 and plan.capabilities.engine


@feature("accounting")
def _accounting(plan: Plan) -> bool:
    """A slurmdbd."""
    return plan.scenario.accounting is not None


@feature("backup_slurmdbd")
def _backup_slurmdbd(plan: Plan) -> bool:
    """A second slurmdbd."""
    return plan.scenario.accounting is not None and bool(plan.scenario.accounting.backup)


@feature("job_completion")
def _job_completion(plan: Plan) -> bool:
    """A job completion log (JobCompType)."""
    return plan.scenario.accounting is not None and bool(plan.scenario.accounting.job_completion)


@feature("federation")
def _federation(plan: Plan) -> bool:
    """A federation of several clusters."""
    return any(len(federation.clusters) > 1 for federation in plan.scenario.federations.values())


@feature("separate_clusters")
def _separate_clusters(plan: Plan) -> bool:
    """Clusters that share a slurmdbd but no federation."""
    return bool(plan.separate_clusters())


@feature("backup_controllers")
def _backup_controllers(plan: Plan) -> bool:
    """A backup controller."""
    return any(cluster.backup_controllers for cluster in _clusters(plan))


@feature("static")
def _static(plan: Plan) -> bool:
    """Nodes that are all permanent."""
    return not _elastic(plan)


@feature("elastic")
def _elastic(plan: Plan) -> bool:
    """Nodes that come and go."""
    return any(cluster.elastic() for cluster in _clusters(plan))


@feature("static_and_elastic")
def _static_and_elastic(plan: Plan) -> bool:
    """Permanent nodes and nodes that come and go, in one cluster."""
    return any(
        cluster.elastic() and any(group.provision == "static" for group in cluster.nodes)
        for cluster in _clusters(plan)
    )


@feature("two_shapes")
def _two_shapes(plan: Plan) -> bool:
    """Two groups of nodes that come and go, with features that tell them apart."""
    return any(
        sum(group.provision != "static" and bool(group.features) for group in cluster.nodes) > 1
        for cluster in _clusters(plan)
    )


@feature("user_data")
def _user_data(plan: Plan) -> bool:
    """User-data for nodes of the first cluster with nodes that come and go."""
    cluster = next((cluster for cluster in _clusters(plan) if cluster.elastic()), None)
    return cluster is not None and any(cluster.user_data_of().values())


@feature("room_for_nodes")
def _room_for_nodes(plan: Plan) -> bool:
    """Room for more nodes than slurm.conf lists (MaxNodeCount)."""
    return all(cluster.room_for_nodes() for cluster in _clusters(plan))


@feature("many_nodes")
def _many_nodes(plan: Plan) -> bool:
    """Accounting, and a cluster with many nodes that share hosts."""
    return _accounting(plan) and any(map(has_many_nodes, _clusters(plan)))


@feature("topology")
def _topology(plan: Plan) -> bool:
    """A topology that places jobs."""
    return any(_placements(plan))


@feature("placement")
def _placement(plan: Plan) -> bool:
    """A topology that limits which nodes a job can get."""
    return any(placement.choices() for placement in _placements(plan))


@feature("switches")
def _switches(plan: Plan) -> bool:
    """A topology with leaf switches."""
    return any(placement.leaves() for placement in _placements(plan))


@feature("segments")
def _segments(plan: Plan) -> bool:
    """A topology with blocks, in which jobs can ask for segments."""
    return any(placement.segments() for placement in _placements(plan))


@feature("limit_of_jobs")
def _limit_of_jobs(plan: Plan) -> bool:
    """A limit on the jobs of a user."""
    return "MaxJobsPerUser" in _enforced_limits(plan)


@feature("limit_of_gpus")
def _limit_of_gpus(plan: Plan) -> bool:
    """A limit on the GPUs of a user."""
    return "MaxTRESPerUser" in _enforced_limits(plan)


@feature("limit_of_time")
def _limit_of_time(plan: Plan) -> bool:
    """A limit on the time of a job."""
    return "MaxWall" in _enforced_limits(plan)


@feature("policy")
def _policy(plan: Plan) -> bool:
    """Partitions that restrict their users, or enforced limits, on clusters that are on their own.

    In a federation, jobs go to other clusters meanwhile.
    """
    return not _federation(plan) and any(job.reason for job in policy.submissions(plan))


@feature("preemption")
def _preemption(plan: Plan) -> bool:
    """QOS whose jobs preempt others."""
    return not _federation(plan) and any(policy.preemptions(plan))


@feature("priority")
def _priority(plan: Plan) -> bool:
    """Priority that depends on QOS, partitions or sizes."""
    return not _federation(plan) and any(policy.orders(plan))


@feature("age")
def _age(plan: Plan) -> bool:
    """Priority that a minute of waiting changes."""
    return not _federation(plan) and any(policy.ages(plan))


@feature("fair_share")
def _fair_share(plan: Plan) -> bool:
    """Priority that depends on fair share, and two users of an account."""
    return not _federation(plan) and any(policy.rivals(plan))


@feature("scheduling")
def _scheduling(plan: Plan) -> bool:
    """`checks: {scheduling: true}`, and users of clusters on their own with permanent nodes."""
    return (
        plan.scenario.checks.scheduling and _users(plan) and _static(plan) and not _federation(plan)
    )


@feature("scrontab")
def _scrontab(plan: Plan) -> bool:
    """A cluster on which users can have a scrontab (ScronParameters)."""
    return _scheduling(plan) and any(map(plan.has_scrontab, plan.scenario.clusters))


@feature("gpus")
def _gpus(plan: Plan) -> bool:
    """GPUs."""
    return any(cluster.gpus() for cluster in _clusters(plan))


@feature("confined_cpus")
def _confined_cpus(plan: Plan) -> bool:
    """Nodes that confine jobs to their CPUs."""
    return bool(plan.clusters_that_confine("ConstrainCores"))


@feature("confined_devices")
def _confined_devices(plan: Plan) -> bool:
    """Nodes with GPUs that confine jobs to their devices."""
    return any(
        plan.scenario.clusters[name].gpus()
        for name in plan.clusters_that_confine("ConstrainDevices")
    )


@feature("confined_memory")
def _confined_memory(plan: Plan) -> bool:
    """Nodes that confine jobs to their memory, so that these cannot swap either."""
    return bool(plan.clusters_that_confine_memory())


@feature("reboots")
def _reboots(plan: Plan) -> bool:
    """Static nodes that can be rebooted."""
    return plan.capabilities.own_kernel and all(
        cluster.static_nodes() for cluster in _clusters(plan)
    )


@feature("apptainer")
def _apptainer(plan: Plan) -> bool:
    """Apptainer on the nodes."""
    return any(cluster.apptainer for cluster in _clusters(plan))


@feature("mpi")
def _mpi(plan: Plan) -> bool:
    """Users, and plugins with which srun starts MPI programs (checks.mpi)."""
    return _users(plan) and bool(plan.scenario.checks.mpi)


@feature("monitoring")
def _monitoring(plan: Plan) -> bool:
    """Prometheus."""
    return plan.scenario.monitoring is not None


@feature("figures")
def _figures(plan: Plan) -> bool:
    """Prometheus, and users of clusters on their own with permanent nodes."""
    return _monitoring(plan) and _users(plan) and _static(plan) and not _federation(plan)


@feature("oci")
def _oci(plan: Plan) -> bool:
    """Users, and static nodes that run OCI containers (oci.conf)."""
    return _users(plan) and any(
        cluster.oci is not None and cluster.static_nodes() for cluster in _clusters(plan)
    )


@feature("job_events")
def _job_events(plan: Plan) -> bool:
    """The program that records when parts of a job start: docs/job-start.md."""
    return any(job_events.PROGRAM in cluster.files for cluster in _clusters(plan))


@feature("job_plugins")
def _job_plugins(plan: Plan) -> bool:
    """The plugins and Lua scripts that record their calls: docs/job-start.md."""
    return _job_events(plan) and any(map(job_events.has_plugins, _clusters(plan)))


@feature("rest")
def _rest(plan: Plan) -> bool:
    """A slurmrestd."""
    return any(cluster.rest for cluster in _clusters(plan))


@feature("munge")
def _munge(plan: Plan) -> bool:
    """Daemons and commands that authenticate with munge."""
    return plan.scenario.auth == "munge"


@feature("auth_slurm")
def _auth_slurm(plan: Plan) -> bool:
    """Daemons and commands that authenticate with Slurm's own plugin."""
    return plan.scenario.auth == "slurm"


@feature("several_keys")
def _several_keys(plan: Plan) -> bool:
    """Slurm's own authentication with several keys, which the releases of all clusters support."""
    return _auth_slurm(plan) and all(
        releases.get(release).several_auth_keys for release in plan.releases().values()
    )


@feature("login")
def _login(plan: Plan) -> bool:
    """Users, and login hosts."""
    return _users(plan) and bool(plan.login_hosts())


@feature("shared_homes")
def _shared_homes(plan: Plan) -> bool:
    """Users whose home directories all hosts share."""
    return plan.shares_homes()


@feature("directory")
def _directory(plan: Plan) -> bool:
    """Users who come from an LDAP server."""
    return bool(plan.scenario.directory)


@feature("dns_servers")
def _dns_servers(plan: Plan) -> bool:
    """Sites whose hosts resolve names by DNS."""
    return any(host.dns_server for host in plan.hosts)


@feature("users_log_in")
def _users_log_in(plan: Plan) -> bool:
    """Login hosts that the harness creates: only there, users have a key to log in."""
    return plan.users_log_in()


@feature("pam_slurm_adopt")
def _pam_slurm_adopt(plan: Plan) -> bool:
    """Nodes that are always up, to which users log in only while they have a job there."""
    return _users_log_in(plan) and any(
        plan.scenario.clusters[host.cluster].pam_slurm_adopt
        for host in plan.with_daemon("slurmd")
        if host.cluster and host.is_permanent
    )


@feature("nss_slurm")
def _nss_slurm(plan: Plan) -> bool:
    """Nodes that are always up, whose jobs get their user from slurmstepd."""
    return any(
        plan.scenario.clusters[host.cluster].nss_slurm
        for host in plan.with_daemon("slurmd")
        if host.cluster and host.is_permanent
    )


@feature("rehearsal")
def _rehearsal(plan: Plan) -> bool:
    """A rehearsal."""
    return plan.scenario.rehearsal is not None


@feature("external_jobs")
def _external_jobs(plan: Plan) -> bool:
    """External jobs, which the releases of all clusters support."""
    return all(releases.get(release).external_jobs for release in plan.releases().values())


@feature("user_environment")
def _user_environment(plan: Plan) -> bool:
    """Users, and a slurmd that gets their environment: 23.11 and 24.05 cannot in a container."""
    return _users(plan) and (
        plan.capabilities.own_hardware
        or plan.capabilities.own_kernel
        or not any(
            releases.get(release).environment_needs_namespaces
            for release in plan.releases().values()
        )
    )


@feature("kubernetes")
def _kubernetes(plan: Plan) -> bool:
    """A cluster shared with Kubernetes, with at least two nodes that are large enough."""
    return any(map(has_room_for_pods, _clusters(plan)))


def has_room_for_pods(cluster: Cluster) -> bool:
    """Return whether the checks of the ledger can use a cluster's nodes."""
    return (
        cluster.kubernetes
        and len(cluster.node_names()) > 1
        and all(
            group.cpus >= _POD_NODE_CPUS and group.memory >= _POD_NODE_MIB
            for group in cluster.nodes
        )
    )


@feature("shared_gpus")
def _shared_gpus(plan: Plan) -> bool:
    """The same, with GPUs on its nodes."""
    return any(
        has_room_for_pods(cluster) and all(gpus_of(group.gres) > 1 for group in cluster.nodes)
        for cluster in _clusters(plan)
    )


@feature("several_shared_clusters")
def _several_shared_clusters(plan: Plan) -> bool:
    """Several clusters shared with Kubernetes."""
    return len(plan.scenario.shared_clusters()) > 1


def _clusters(plan: Plan) -> Iterable[Cluster]:
    return plan.scenario.clusters.values()


def _placements(plan: Plan) -> Iterator[Placed]:
    for name in plan.scenario.clusters:
        yield from placed_once(plan.scenario, name)


def _enforced_limits(plan: Plan) -> set[str]:
    """Return the limits of QOS that clusters enforce on users.

    MaxTRESPerUser counts if it limits GPUs.
    """
    scenario = plan.scenario
    if not scenario.accounting or not plan.clusters_with_limits():
        return set()
    qos_of_users = {
        name
        for part, _ in scenario.accounting_trees()
        for user in part.users.values()
        for name in user.qos
    }
    return {
        option
        for name, qos in scenario.accounting.qos.items()
        for option, value in qos.options.items()
        if name in qos_of_users and (option != "MaxTRESPerUser" or "gpu" in str(value))
    }
