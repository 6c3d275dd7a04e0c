"""Who may do what, by AdminLevel and coordinators, and what PrivateData lets users see."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
from conftest import Jobs, only, small

from harness import slurm_options
from harness.cluster import association_comparison, policy
from harness.cluster.slurm import SlurmCluster
from harness.errors import CommandFailed
from harness.plan import Plan
from harness.scenario import Scenario
from harness.wait import wait_until

# What Slurm prints for ESLURM_USER_ID_MISSING, ESLURM_ACCESS_DENIED and EPERM, and for an account
# that PrivateData hides: sacctmgr_add_user() in user_functions.c of 22.05.
DENIED = re.compile(
    r"Invalid user id|[Pp]ermission denied|[Oo]nly admins|must be a super user"
    r"|account '.*' doesn't exist"
)
# No job may run until then, so the reservation keeps no job from the node: slurm.conf(5), MaxTime.
NOT_BEFORE = "now+400days"
# The errors of slurmctld and slurmdbd about the requests that they must refuse.
REFUSALS = pytest.mark.provokes(
    "[Ss]ecurity violation",
    "Invalid user id",
    "request from non-super user",
    "[Oo]nly admins",
    "must be a super user",
    "Access/permission denied",
    "tried to access events",
    r"(ability to modify|not coordinators? of|[Cc]oordinator .* where they were not allowed)",
    "You can only change your own",
    "Your user doesn't have privilege to perform this action",
    r"Processing last message from connection .* uid\([1-9]",
)


@dataclass(frozen=True, slots=True)
class Action:
    """Commands, and whether a user may run them. They leave the cluster as it was.

    If `only_refused`, they are only run for a user whom Slurm has refused all similar commands.
    """

    what: str
    commands: tuple[str, ...]
    allowed: bool
    only_refused: bool = False


@dataclass(frozen=True, slots=True)
class Actor:
    """A user, with the rights that the scenario gives: AdminLevel, and coordinated accounts."""

    name: str
    level: str
    accounts: frozenset[str]

    @property
    def is_operator(self) -> bool:
        """Whether validate_operator() in slurmctld's proc_req.c accepts the user."""
        return self.level != "none"

    @property
    def is_administrator(self) -> bool:
        """Whether validate_super_user() in slurmctld's proc_req.c accepts the user."""
        return self.level == "administrator"

    def __str__(self) -> str:
        """Describe the user, such as "carol (AdminLevel none, coordinator of physics)"."""
        accounts = ", ".join(sorted(self.accounts))
        coordinates = f", coordinator of {accounts}" if accounts else ""
        return f"{self.name} (AdminLevel {self.level}{coordinates})"


def actors(scenario: Scenario) -> list[Actor]:
    """Return a user for each kind of rights; others have the same rights as one of them."""
    levels = association_comparison.users(scenario)
    kinds: dict[tuple[str, frozenset[str]], Actor] = {}
    for name in scenario.users:
        if row := levels.get((name,)):
            rights = (row["AdminLevel"], frozenset(row["Coordinators"]))
            kinds.setdefault(rights, Actor(name, *rights))
    return [*kinds.values()]


def show(cluster: SlurmCluster, *query: str) -> str:
    """Return what `sacctmgr show` prints for root."""
    return cluster.run("sacctmgr", "--parsable2", "--noheader", "show", *query).stdout.strip()


def held_job(jobs: Jobs, cluster: SlurmCluster, user: str, account: str = "") -> int | None:
    """Submit a held job of a user; return None if no partition takes it."""
    options = ["--hold", *small(jobs.plan, cluster.name, 1)]
    try:
        if account:
            options.append(f"--account={account}")
        return jobs.submit(cluster, "true", *only(cluster, jobs.plan), *options, user=user)
    except CommandFailed as error:
        if re.search(policy.NO_ACCESS, error.stderr):
            return None
        raise


def answers(cluster: SlurmCluster, user: str, commands: list[str]) -> list[tuple[int, str]]:
    """Run commands of a user over one connection; return the exit code and output of each."""
    mark = "-END-OF-ANSWER-"
    script = "".join(f'{command} 2>&1 < /dev/null\necho "{mark}$?"\n' for command in commands)
    printed = cluster.run("sh", user=user, stdin=script).stdout
    outputs = re.findall(rf"(.*?){mark}(\d+)\n", printed, re.S)
    assert len(outputs) == len(commands), printed
    return [(int(code), text.strip()) for text, code in outputs]


def hides(options: dict[str, str], item: str) -> bool:
    """Return whether PrivateData hides something: Slurm looks for parts of words.

    See _validate_and_set_defaults() in read_config.c, and read_slurmdbd_conf().

    >>> hides({"PrivateData": "job,usage"}, "jobs"), hides({"PrivateData": "all"}, "nodes")
    (True, True)
    """
    value = str(slurm_options.get(options, "PrivateData") or "").lower()
    return "all" in value or item.removesuffix("s") in value


def depends_on_label(options: dict[str, str], item: str) -> bool:
    """Return whether the MCS labels of jobs decide who sees something: _hide_job_user_rec()."""
    parameters = str(slurm_options.get(options, "MCSParameters") or "").lower()
    return "privatedata" in parameters and item in {"jobs", "nodes"}


class Rights:
    """What each actor may do on a cluster: sacctmgr(1), AdminLevel and coordinators."""

    def __init__(self, cluster: SlurmCluster, plan: Plan, jobs: Jobs) -> None:
        self.cluster = cluster
        self.scenario = plan.scenario.of_cluster(cluster.name)
        self.node = self.scenario.clusters[cluster.name].node_names()[0]
        self.jobs = jobs
        options = slurm_options.slurmdbd_conf(plan.scenario)
        revoked = str(slurm_options.get(options, "DisableCoordDBD") or "no").lower()
        self.coordinators_count = revoked not in {"yes", "true"}
        # To a coordinator who does not see a user, sacctmgr of 20.11 treats that user as new, which
        # slurmdbd refuses: as_mysql_add_assocs().
        self.users_are_hidden = hides(options, "users")
        self.slurmctld = self._unchanging_commands()
        accounting = self.scenario.accounting
        self.accounts = [*accounting.accounts] if accounting else []

    def _unchanging_commands(self) -> list[str]:
        """Return commands that set what is set already: a node's weight, a partition's state."""
        shown = self.cluster.run("scontrol", "--oneliner", "show", "node", self.node).stdout
        weight = re.search(r" Weight=(\d+)", shown)
        config = self.cluster.run("scontrol", "show", "config").stdout
        level = re.search(r"SlurmctldDebug\s*=\s*(\S+)", config)
        partition = self.cluster.partitions()[0]
        assert weight, shown
        assert level, config
        return [
            f"scontrol update NodeName={self.node} Weight={weight[1]}",
            f"scontrol update PartitionName={partition.name} State={partition.state}",
            f"scontrol setdebug {level[1]}",
        ]

    def actions(self, actor: Actor) -> Iterator[Action]:
        """Yield what to try as an actor."""
        yield from self._cluster_actions(actor)
        # Those with jobs of others first.
        accounts = sorted(self.accounts, key=lambda account: not self._other_users(actor, account))
        coordinated = [name for name in accounts if name.lower() in actor.accounts]
        others = [name for name in accounts if name.lower() not in actor.accounts]
        for account in (*coordinated[:1], *others[:1]):
            yield from self._in_account(actor, account, coordinates=account in coordinated)

    def _cluster_actions(self, actor: Actor) -> Iterator[Action]:
        """Yield actions for which it does not matter whether the actor is a coordinator.

        See _slurm_rpc_*() in slurmctld's proc_req.c, and as_mysql_modify_qos().
        """
        name = f"ReservationName={check_of(actor.name)}"
        details = f"StartTime={NOT_BEFORE} Duration=1 Users=root Nodes={self.node} Flags=OVERLAP"
        reserve = (f"scontrol create reservation {name} {details}", f"scontrol delete {name}")
        yield Action("create and delete a reservation", reserve, actor.is_operator)
        for command in self.slurmctld:
            what = "change " + command.removeprefix("scontrol ").removeprefix("update ")
            yield Action(what, (command,), actor.is_administrator)
        if priority := show(self.cluster, "qos", "normal", "format=priority"):
            change = f"sacctmgr -i modify qos normal set priority={priority}"
            yield Action("change QOS normal", (change,), actor.is_administrator)
        user = self.jobs.user
        if level := show(self.cluster, "user", user, "format=adminlevel"):
            change = f"sacctmgr -i modify user {user} set adminlevel={level}"
            yield Action(f"set the AdminLevel of {user}", (change,), actor.is_administrator)
        if not actor.is_administrator:
            down = f"update NodeName={self.node} State=DOWN Reason=check"
            for command in ("reconfigure", "shutdown", down):
                yield Action(command, (f"scontrol {command}",), allowed=False, only_refused=True)

    def _in_account(self, actor: Actor, account: str, *, coordinates: bool) -> Iterator[Action]:
        """Yield what a coordinator may do in an account, and what only operators may.

        See _update_job(), job_str_signal(), as_mysql_modify_assocs() and as_mysql_add_assocs().
        """
        members = self._other_users(actor, account)
        outsiders = [user for user in self._other_users(actor) if user not in members]
        in_slurmctld = actor.is_operator or coordinates
        in_slurmdbd = actor.is_operator or (coordinates and self.coordinators_count)
        where = f"account={account} cluster={self.cluster.name}"
        for user in members[:1]:
            if job_id := held_job(self.jobs, self.cluster, user, account):
                for verb, command in (("hold", "scontrol hold"), ("cancel", "scancel")):
                    what = f"{verb} a job of {user} in account {account}"
                    yield Action(what, (f"{command} {job_id}",), in_slurmctld)
            limit = self._association(user, where)
            change = f"sacctmgr -i modify user {user} where {where} set fairshare={limit}"
            what = f"set the fairshare of {user} in account {account}"
            yield Action(what, (change,), in_slurmdbd)
        if coordinates and self.users_are_hidden:
            outsiders = []
        for user in [user for user in outsiders[:1] if not self._association(user, where)]:
            commands = (
                f"sacctmgr -i add user {user} {where}",
                f"sacctmgr -i delete user {user} where {where}",
            )
            yield Action(f"add {user} to account {account}", commands, in_slurmdbd)
        text = show(self.cluster, "account", account, "format=description")
        change = f"sacctmgr -i modify account {account} set {shlex.quote(f'description={text}')}"
        yield Action(f"change account {account}", (change,), actor.is_operator)

    def _other_users(self, actor: Actor, account: str | None = None) -> list[str]:
        """Return users without rights who have this account, or any; not the actor."""
        return [
            name
            for name, user in self.scenario.users.items()
            if not user.privileged and name != actor.name and not user.has_partitions
            if (account in user.accounts if account else user.accounts)
        ]

    def _association(self, user: str, where: str) -> str:
        """Return the fairshare of a user's association; "" if there is none."""
        query = ("association", "where", f"user={user}", *where.split(), "format=fairshare")
        return show(self.cluster, *query)

    def problems(self, actor: Actor) -> list[str]:
        """Try everything as an actor, and return what is wrong."""
        actions = [*self.actions(actor)]
        try:
            problems = self._try(actor, [action for action in actions if not action.only_refused])
            if not problems:
                problems = self._try(actor, [action for action in actions if action.only_refused])
        finally:
            # What the actor could do, but not undo.
            undo = [command for action in actions for command in action.commands[1:]]
            script = "\n".join(f"{command} < /dev/null" for command in undo)
            self.cluster.run("sh", stdin=script, check=False)
        return problems

    def _try(self, actor: Actor, actions: list[Action]) -> list[str]:
        problems = []
        commands = [command for action in actions for command in action.commands]
        answered = iter(zip(commands, answers(self.cluster, actor.name, commands), strict=True))
        for action in actions:
            for number, _ in enumerate(action.commands):
                command, (code, text) = next(answered)
                denied = bool(DENIED.search(text))
                if action.allowed and (denied or code):
                    problems.append(f"{actor} cannot {action.what}: {command}: {text or code}")
                elif not action.allowed and not denied and number == 0:
                    problems.append(
                        f"{actor} may not {action.what}, but can: {command}: {text or code}"
                    )
        return problems


@REFUSALS
@pytest.mark.needs("administrators")
def test_administrators_and_coordinators_can_do_what_slurm_documents_and_no_more(
    clusters: dict[str, SlurmCluster], plan: Plan, jobs: Jobs
) -> None:
    """Each kind of user: without rights, coordinators, Operator and Administrator."""
    problems = []
    for name, cluster in clusters.items():
        rights = Rights(cluster, plan, jobs)
        for actor in actors(rights.scenario):
            problems += [f"{name}: {text}" for text in rights.problems(actor)]
    assert not problems, "\n".join(problems)


@dataclass(frozen=True, slots=True)
class View:
    """A command that shows what PrivateData can hide, and what it shows of another user.

    `item` is a word of PrivateData. `own` and `other` are regular expressions of what belongs to
    the user who looks, and to another; "" if there is nothing.
    """

    item: str
    command: str
    own: str = ""
    other: str = ""

    def problems(self, code: int, text: str, *, hidden: bool) -> Iterator[str]:
        """Yield what is wrong with the command's answer."""
        refused = code != 0 or bool(DENIED.search(text))
        sees_other = bool(re.search(self.other, text, re.M)) if self.other else not refused
        if sees_other == hidden:
            verb = "sees" if hidden else "does not see"
            yield f"{verb} {self.item} of others: {self.command}: {text[:200] or code}"
        if self.own and not re.search(self.own, text, re.M):
            yield f"does not see their own {self.item}: {self.command}: {text[:200] or code}"


def views_of_slurmctld(
    cluster: SlurmCluster, plan: Plan, user: str, other: str, own_job: int | None, job: int | None
) -> Iterator[View]:
    """Yield what slurmctld shows, except to users from whom its PrivateData hides it."""
    if job:
        own = rf"^{own_job}$" if own_job else ""
        yield View("jobs", "squeue --local --all --noheader --format=%A", own, rf"^{job}$")
        yield View("jobs", f"scontrol --oneliner show job {job}", other=f"^JobId={job} ")
    node = plan.scenario.clusters[cluster.name].node_names()[0]
    yield View("nodes", f"scontrol --oneliner show node {node}", other=f"^NodeName={node} ")
    partition = cluster.partitions()[0].name
    yield View(
        "partitions",
        f"scontrol --all --oneliner show partition {partition}",
        other=f"^PartitionName={partition} ",
    )
    reservations = "scontrol --oneliner show reservation"
    yield View(
        "reservations",
        reservations,
        *(f"^ReservationName={check_of(name)} " for name in (user, other)),
    )
    if plan.scenario.accounting:
        yield View(
            "users",
            "scontrol --oneliner show assoc_mgr flags=users",
            *(rf"^UserName={name}\(" for name in (user, other)),
        )
        if "priority/basic" not in cluster.run("scontrol", "show", "config").stdout:
            yield View(
                "usage",
                "sshare --all --noheader --parsable2 --format=User",
                *(rf"^\s*{name}$" for name in (user, other)),
            )


def views_of_slurmdbd(
    cluster: SlurmCluster, user: str, other: str, own_job: int | None, job: int | None
) -> Iterator[View]:
    """Yield what slurmdbd shows, except to users from whom its PrivateData hides it."""
    sacctmgr = "sacctmgr --parsable2 --noheader show"
    names = tuple(f"^{name}$" for name in (user, other))
    yield View("users", f"{sacctmgr} user format=user", *names)
    yield View("users", f"{sacctmgr} association format=user", *names)
    yield View("accounts", f"{sacctmgr} account format=account")
    yield View("events", f"{sacctmgr} event format=cluster")
    yield View("reservations", f"{sacctmgr} reservation format=name")
    if job:
        ids = ",".join(str(job_id) for job_id in (own_job, job) if job_id)
        own = rf"^{own_job}$" if own_job else ""
        sacct = f"sacct --allusers --allocations --noheader --parsable2 --format=jobid --jobs={ids}"
        yield View("jobs", sacct, own, rf"^{job}$")


def check_of(user: str) -> str:
    """Return the name of a reservation of a user."""
    return f"check_{user}"


@REFUSALS
@pytest.mark.needs("private_data")
def test_user_sees_what_private_data_does_not_hide_and_no_more(
    clusters: dict[str, SlurmCluster], plan: Plan, jobs: Jobs, users: list[str]
) -> None:
    """An ordinary user looks for what another one has; an operator sees all of it."""
    other, user = users[:2]
    of_slurmdbd = slurm_options.slurmdbd_conf(plan.scenario)
    problems = []
    for name, cluster in clusters.items():
        cluster_actors = actors(plan.scenario.of_cluster(name)) if plan.scenario.accounting else []
        operators = [actor.name for actor in cluster_actors if actor.is_operator][:1]
        job, own_job = held_job(jobs, cluster, other), held_job(jobs, cluster, user)
        with ExitStack() as reserved:
            for owner in (other, user):
                reserve(cluster, plan, owner, reserved)
            views = [
                view
                for view in views_of_slurmctld(cluster, plan, user, other, own_job, job)
                if not depends_on_label(plan.slurm_conf(name), view.item)
            ]
            problems += look(cluster, views, user, operators, plan.slurm_conf(name), "slurm.conf")
        if plan.scenario.accounting:
            if ids := [str(job_id) for job_id in (own_job, job) if job_id]:
                cluster.run("scancel", *ids)
                wait_until_recorded(cluster, ids)
            views = [*views_of_slurmdbd(cluster, user, other, own_job, job)]
            problems += look(cluster, views, user, operators, of_slurmdbd, "slurmdbd.conf")
    assert not problems, "\n".join(problems)


def reserve(cluster: SlurmCluster, plan: Plan, user: str, stack: ExitStack) -> None:
    """Reserve a node for a user at a time that no job reaches; `stack` deletes the reservation."""
    name = f"ReservationName={check_of(user)}"
    node = plan.scenario.clusters[cluster.name].node_names()[0]
    stack.callback(cluster.run, "scontrol", "delete", name, check=False)
    when = (f"StartTime={NOT_BEFORE}", "Duration=1", "Flags=OVERLAP")
    cluster.run("scontrol", "create", "reservation", name, *when, f"Nodes={node}", f"Users={user}")


def look(
    cluster: SlurmCluster,
    views: list[View],
    user: str,
    operators: list[str],
    options: dict[str, str],
    file: str,
) -> list[str]:
    """Return what is wrong with what a user and operators see."""
    private = slurm_options.get(options, "PrivateData") or "none"
    problems = []
    for name in (user, *operators):
        answered = answers(cluster, name, [view.command for view in views])
        for view, (code, text) in zip(views, answered, strict=True):
            ordinary = view if name == user else View(view.item, view.command, "", view.other)
            hidden = name == user and hides(options, view.item)
            problems += [
                f"{cluster.name}: {name} {problem}; {file} has PrivateData={private}"
                for problem in ordinary.problems(code, text, hidden=hidden)
            ]
    return problems


def wait_until_recorded(cluster: SlurmCluster, job_ids: list[str]) -> None:
    """Wait until slurmdbd has the records of jobs."""
    query = ("sacct", "--allocations", "--noheader", "--parsable2", "--format=jobid")
    wait_until(
        lambda: {*cluster.run(*query, f"--jobs={','.join(job_ids)}").stdout.split()},
        lambda recorded: recorded >= {*job_ids},
        what=f"slurmdbd to have records of the jobs {', '.join(job_ids)}",
        timeout=120,
    )
