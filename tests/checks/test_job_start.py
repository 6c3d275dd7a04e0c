"""How a job starts, runs and ends with srun, sbatch and salloc.

This includes the programs that Slurm runs around a job's tasks, and what Slurm refuses. The checks
are for clusters whose Prolog, Epilog and similar programs are job-events: see docs/job-start.md.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import zip_longest
from math import inf

import pytest
from conftest import Jobs

from harness import faults, releases, slurm_options
from harness.cluster import slurm
from harness.cluster.slurm import FINISHED, SlurmCluster, parse_details
from harness.faults import Fault
from harness.open_run import OpenRun
from harness.plan import Plan
from harness.ssh import Ssh
from harness.verify import job_events
from harness.verify.job_events import Event
from harness.wait import wait_until

pytestmark = [pytest.mark.needs("users", "job_events"), pytest.mark.provokes()]

# Reports an event as job-events does.
REPORT = f'report() {{ logger --tag {job_events.PROGRAM} "$SLURM_JOB_ID $*"; }};'
TASK = f"{REPORT} report task begins; report task ends"
# Runs a command in a terminal, waits until it prints "started JOB", and closes the terminal. Prints
# the job's id, and whether the command has ended.
IN_A_TERMINAL = """
import os, pty, re, sys, time
command, terminal = pty.fork()
if command == 0:
    os.execvp(sys.argv[1], sys.argv[1:])
printed = b""
while not (job := re.search(rb"started (\\d+)\\s", printed)):
    printed += os.read(terminal, 1000)
os.close(terminal)
closed = time.monotonic()
while not (ended := os.waitpid(command, os.WNOHANG)[0]) and time.monotonic() - closed < 60:
    time.sleep(0.05)
print(job[1].decode(), "ended" if ended else "running")
"""
_NO_PORT = "sock_bind_listen_range: all ports in range"


@pytest.fixture(scope="session")
def recorded(clusters: dict[str, SlurmCluster], plan: Plan) -> dict[str, SlurmCluster]:
    """The clusters that record their jobs' events."""
    parts = plan.scenario.clusters
    return {
        name: cluster
        for name, cluster in clusters.items()
        if job_events.PROGRAM in parts[name].files
    }


@pytest.fixture(scope="session")
def cluster(recorded: dict[str, SlurmCluster], ssh: Ssh, plan: Plan) -> SlurmCluster:
    """The first of these clusters. A Prolog or Epilog may hold up its command for minutes."""
    return slurm.clusters(ssh, plan, timeout=600)[next(iter(recorded))]


@pytest.fixture(scope="session")
def nodes(cluster: SlurmCluster, plan: Plan) -> tuple[str, ...]:
    """The first two nodes of that cluster."""
    return plan.scenario.clusters[cluster.name].node_names()[:2]


class Events:
    """Collects the events of jobs."""

    def __init__(self, ssh: Ssh, plan: Plan) -> None:
        self.ssh, self.plan = ssh, plan

    def of(self, cluster: SlurmCluster, job_id: int) -> list[Event]:
        """Return what has happened to a job, apart from what plugins report."""
        return [
            event
            for event in self.with_plugins(cluster, job_id)
            if not event.what.startswith(job_events.PLUGINS)
        ]

    def with_plugins(self, cluster: SlurmCluster, job_id: int) -> list[Event]:
        return job_events.collect(self.ssh, self.plan, cluster.name, job_id)

    def on(self, host: str, cluster: SlurmCluster, job_id: int) -> set[str]:
        """Return what has happened on a host, apart from launch messages that reached it."""
        seen = {event.what for event in self.of(cluster, job_id) if event.host == host}
        return seen - {"step launched"}

    def wait(
        self, cluster: SlurmCluster, job_id: int, what: str, count: int = 1, timeout: float = 90
    ) -> list[Event]:
        """Wait until an event of a job has happened `count` times; return all its events."""
        wait_until(
            lambda: self.of(cluster, job_id),
            lambda events: sum(event.what == what for event in events) >= count,
            what=f"job {job_id} to report: {what}",
            timeout=timeout,
            show=lambda events: ", ".join(f"{event.what} ({event.host})" for event in events),
        )
        # Hosts are read at the same time: one that was read first may lack what preceded the event.
        return self.of(cluster, job_id)

    @contextmanager
    def held(self, host: str, context: str) -> Iterator[None]:
        """Keep a Prolog or Epilog from ending during the block."""
        with self._marked(host, f"/run/hold.{context}"):
            yield

    @contextmanager
    def failing(self, host: str, context: str) -> Iterator[None]:
        """Let a Prolog or Epilog fail during the block."""
        with self._marked(host, f"/run/fail.{context}"):
            yield

    @contextmanager
    def _marked(self, host: str, file: str) -> Iterator[None]:
        self.ssh.run(host, ["touch", file])
        try:
            yield
        finally:
            self.ssh.run(host, ["rm", file])


@pytest.fixture(scope="session")
def events(ssh: Ssh, plan: Plan) -> Events:
    return Events(ssh, plan)


@pytest.fixture(scope="session")
def with_plugins(recorded: dict[str, SlurmCluster], plan: Plan) -> dict[str, SlurmCluster]:
    """Those of the recorded clusters whose plugins report their calls, too."""
    parts = plan.scenario.clusters
    return {
        name: cluster for name, cluster in recorded.items() if job_events.has_plugins(parts[name])
    }


@pytest.fixture(scope="session")
def plugged(with_plugins: dict[str, SlurmCluster]) -> SlurmCluster:
    """The first of the clusters with such plugins."""
    return next(iter(with_plugins.values()))


def slurm_user(cluster: SlurmCluster, plan: Plan) -> int:
    """Return the uid of SlurmUser."""
    name = slurm_options.get(plan.slurm_conf(cluster.name), "SlurmUser") or "root"
    return int(cluster.run("id", "--user", name).stdout)


def newest_job(cluster: SlurmCluster) -> int:
    return max((job.job_id for job in cluster.jobs("--local")), default=0)


def at_allocation(plan: Plan, cluster: str) -> bool:
    """Return whether Prolog runs as soon as a node is allocated."""
    flags = slurm_options.get(plan.scenario.clusters[cluster].options, "PrologFlags") or ""
    return "alloc" in str(flags).lower()


def around(name: str) -> list[str]:
    return [f"{name} begins", f"{name} ends"]


TASK_EVENTS = [*around("TaskProlog"), *around("task"), *around("TaskEpilog")]
LAST_EVENTS = ["completed", *around("Epilog"), "freed"]
# Events that happen while slurmctld or the node does something else, so they have no fixed place in
# the order. slurmctld may start a batch job before it logs that it was submitted:
# _slurm_rpc_submit_batch_job() in proc_req.c.
UNORDERED_EVENTS = {
    *around("PrologSlurmctld"),
    *around("EpilogSlurmctld"),
    "step launched",
    "submitted",
}
# The functions of a SPANK plugin that Slurm calls for a job of one task on a node, and whose rights
# they have: spank(8). The task's own events are among them. The first two depend on PrologFlags.
FIRST_CALLS = ["SPANK job_script job_prolog as 0", "SPANK local local_user_init as {user}"]
CALLS = [
    "SPANK remote init as 0",
    "SPANK remote init_post_opt as 0",
    "SPANK remote user_init as {user}",
    "SPANK remote task_init_privileged as 0",
    "SPANK remote task_init as {user}",
    *around("task"),
    "SPANK remote task_exit as 0",
    "SPANK remote exit as 0",
    "SPANK job_script job_epilog as 0",
]
# What becomes of a batch job, and of its node, if a Prolog or Epilog fails.
EFFECTS = {
    "prolog_slurmctld": "requeued, its script did not run",
    "prolog_slurmd": "requeued, held, its script did not run, its node is drained",
    "prolog_task": "FAILED, its script did not run",
    "epilog_task": "COMPLETED",
    "epilog_slurmd": "COMPLETED, its node is drained",
    "epilog_slurmctld": "COMPLETED",
}
MODES = ["srun", "sbatch", "salloc", "salloc without a step"]


def start(mode: str, cluster: SlurmCluster, nodes: int, jobs: Jobs) -> int:
    """Start a job with a task on each node in one of the modes; return its id."""
    size = [f"--nodes={nodes}", f"--ntasks={nodes}", *jobs.access_options(cluster)]
    step = "true" if mode == "salloc without a step" else f"srun sh -c '{TASK}'"
    script = f"{REPORT} report script begins; {step}; report script ends"
    if mode == "sbatch":
        return cluster.submit(f"#!/bin/sh\n{script}\n", "--output=/dev/null", *size, user=jobs.user)
    command, body = (["srun"], TASK) if mode == "srun" else (["salloc", "--quiet"], script)
    answer = cluster.run(*command, *size, "sh", "-c", f"{body}; echo $SLURM_JOB_ID", user=jobs.user)
    return int(answer.stdout.split()[0])


def expected(mode: str, *, at_allocation: bool, script_here: bool) -> list[str]:
    """Return the order of events on a node and its controller: the tables in docs/job-start.md."""
    early, late = (around("Prolog"), []) if at_allocation else ([], around("Prolog"))
    match mode:
        case "srun":
            middle = [*late, *TASK_EVENTS]
        case "sbatch" if script_here:
            script = ["script begins", *TASK_EVENTS, "script ends"]
            middle = [
                *late,
                "batch launched",
                *around("TaskProlog"),
                *script,
                *around("TaskEpilog"),
            ]
        case "sbatch":
            middle = [*late, *TASK_EVENTS]
        case "salloc":
            middle = ["script begins", *late, *TASK_EVENTS, "script ends"]
        case _:
            middle = around("script")
    return ["allocated", *early, *middle, *LAST_EVENTS]


def first_difference(seen: list[str], wanted: list[str]) -> str:
    pairs = zip_longest(seen, wanted, fillvalue="nothing")
    return next((f"{event} instead of {other}" for event, other in pairs if event != other), "")


@pytest.mark.parametrize("mode", MODES)
def test_events_of_a_job_come_in_the_order_of_its_mode(
    mode: str, recorded: dict[str, SlurmCluster], plan: Plan, jobs: Jobs, events: Events
) -> None:
    for name, cluster in recorded.items():
        hosts = plan.hosts_of(name)
        job_id = start(mode, cluster, len(hosts), jobs)
        events.wait(cluster, job_id, "freed", len(hosts))
        seen = events.wait(cluster, job_id, "EpilogSlurmctld ends")
        for node, host in hosts.items():
            events_here = [
                event.what
                for event in seen
                if event.host in {host, cluster.controller} and event.what not in UNORDERED_EVENTS
            ]
            wanted = expected(
                mode, at_allocation=at_allocation(plan, name), script_here=node == next(iter(hosts))
            )
            assert events_here == wanted, (
                f"job {job_id} on {node} of {name}: {first_difference(events_here, wanted)}"
            )
        submitted = [event.what for event in seen].count("submitted")
        assert submitted == (mode == "sbatch"), f"job {job_id} was submitted {submitted} times"
        time_of = {event.what: event.time for event in seen}
        early = [event.what for event in seen if event.time < time_of["PrologSlurmctld ends"]]
        assert {*early} <= {"submitted", "allocated", "PrologSlurmctld begins"}, (
            f"before PrologSlurmctld ends: {early}"
        )
        assert time_of["completed"] <= time_of["EpilogSlurmctld begins"], (
            "EpilogSlurmctld began before the job's end"
        )


def test_each_prolog_and_epilog_runs_as_the_documented_user(
    recorded: dict[str, SlurmCluster], plan: Plan, jobs: Jobs, users: list[str], events: Events
) -> None:
    """Prolog and Epilog run as root, those of tasks as the user, those of slurmctld as SlurmUser.

    See slurm.conf(5).
    """
    user = plan.scenario.users[users[0]].uid
    for name, cluster in recorded.items():
        job_id = start("srun", cluster, 1, jobs)
        events.wait(cluster, job_id, "freed")
        seen = events.wait(cluster, job_id, "EpilogSlurmctld ends")
        ran_as = {
            event.what.split()[0]: event.uid for event in seen if event.what.endswith(" begins")
        }
        assert ran_as == {
            **dict.fromkeys(("PrologSlurmctld", "EpilogSlurmctld"), slurm_user(cluster, plan)),
            **dict.fromkeys(("Prolog", "Epilog"), 0),
            **dict.fromkeys(("TaskProlog", "task", "TaskEpilog"), user),
        }, f"on {name} they ran as {ran_as}"


@pytest.mark.needs("users", "job_plugins")
def test_spank_plugin_is_called_at_the_documented_times_and_as_the_documented_user(
    with_plugins: dict[str, SlurmCluster],
    plan: Plan,
    jobs: Jobs,
    users: list[str],
    events: Events,
) -> None:
    """The functions of a plugin, in the order of spank(8), and with its rights."""
    user = plan.scenario.users[users[0]].uid
    for name, cluster in with_plugins.items():
        job_id = start("srun", cluster, 1, jobs)
        events.wait(cluster, job_id, "freed")
        seen = [
            event.what
            for event in events.with_plugins(cluster, job_id)
            if event.what.startswith("SPANK ") or event.what in around("task")
        ]
        for_each_task = "SPANK remote task_post_fork as 0"
        calls = [what for what in seen if what != for_each_task]
        first_calls = FIRST_CALLS if at_allocation(plan, name) else FIRST_CALLS[::-1]
        wanted = [what.format(user=user) for what in (*first_calls, *CALLS)]
        assert calls == wanted, f"job {job_id} of {name}: {first_difference(calls, wanted)}"
        first, last = f"SPANK remote user_init as {user}", "task begins"
        between = seen[seen.index(first) : seen.index(last)]
        assert between.count(for_each_task) == seen.count(for_each_task) == 1, (
            f"job {job_id} of {name}: no call of task_post_fork between {first} and {last}: {seen}"
        )


@pytest.mark.needs("users", "job_plugins")
def test_option_of_a_spank_plugin_reaches_tasks_prologs_and_epilogs(
    plugged: SlurmCluster, jobs: Jobs, events: Events
) -> None:
    """Through spank_setenv() and spank_job_control_setenv(): spank(8)."""
    word = secrets.token_hex(4)
    options = (f"--mark={word}", *jobs.access_options(plugged))
    answer = plugged.run(
        "srun", *options, "sh", "-c", "echo $SLURM_JOB_ID $JOB_MARK", user=jobs.user
    )
    job_id, _, mark = answer.stdout.strip().partition(" ")
    assert mark == word, f"srun --mark={word}: the task has JOB_MARK={mark}"
    events.wait(plugged, int(job_id), "Epilog ends")
    seen = [event.what for event in events.wait(plugged, int(job_id), "EpilogSlurmctld ends")]
    for program in ("PrologSlurmctld", "Prolog", "Epilog", "EpilogSlurmctld"):
        assert f"{program} marked {word}" in seen, (
            f"srun --mark={word}: {program} has no SPANK_JOB_MARK={word}"
        )


@pytest.mark.needs("users", "job_plugins")
@pytest.mark.parametrize("function", ["init_post_opt", "user_init", "task_init"])
def test_no_task_runs_if_a_required_spank_plugin_fails(
    function: str, plugged: SlurmCluster, jobs: Jobs
) -> None:
    options = (f"--fail={function}", *jobs.access_options(plugged))
    answer = plugged.run("srun", *options, "echo", "ran", user=jobs.user, check=False)
    assert "ran" not in answer.stdout.split(), (
        f"a task runs although {function} of a required plugin fails"
    )
    # On 20.11 and 22.05, srun may end with 0 if slurmstepd could not start the task.
    assert "task 0" in answer.stderr, f"srun does not say that a task failed: {answer.stderr}"


@pytest.mark.needs("users", "job_plugins")
def test_lua_scripts_change_and_refuse_jobs(
    plugged: SlurmCluster, plan: Plan, jobs: Jobs, users: list[str], events: Events
) -> None:
    """First cli_filter.lua as the user, in the command, then job_submit.lua in slurmctld."""
    user = plan.scenario.users[users[0]].uid
    job_id = jobs.submit(plugged, "true", "--job-name=changed")
    plugged.wait_for([job_id], {"COMPLETED"})
    (job,) = plugged.jobs_of(job_id)
    wanted = f"changed-by-cli_filter-as-{user}-by-job_submit-as-{slurm_user(plugged, plan)}"
    assert job.name == wanted, f"the job's name is {job.name}, should be {wanted}"
    after = [
        event.uid
        for event in events.with_plugins(plugged, job_id)
        if event.what == "cli_filter.lua ends"
    ]
    assert after == [user], f"after the submission, cli_filter.lua ran as {after}"
    before = newest_job(plugged)
    for script in ("cli_filter", "job_submit"):
        for command in (("sbatch", "--wrap=true"), ("srun", "true"), ("salloc", "true")):
            options = (f"--job-name=refused-by-{script}", *jobs.access_options(plugged))
            answer = plugged.run(command[0], *options, *command[1:], user=jobs.user, check=False)
            assert f"{script}.lua refuses this job" in answer.stderr, (
                f"{command[0]} does not say that {script}.lua refuses the job: {answer.stderr}"
            )
            assert answer.exit_code, f"{command[0]} succeeds although {script}.lua refuses the job"
    assert newest_job(plugged) == before, f"a refused job has an id: {newest_job(plugged)}"


@pytest.mark.needs("users", "job_plugins")
@pytest.mark.parametrize("program", EFFECTS)
def test_failing_prolog_or_epilog_has_the_documented_effect(
    program: str, plugged: SlurmCluster, plan: Plan, jobs: Jobs, events: Events
) -> None:
    """See "Failure Handling" in https://slurm.schedmd.com/prolog_epilog.html."""
    node, host = next(iter(plan.hosts_of(plugged.name).items()))
    option, wanted = job_events.OPTION_OF[program], EFFECTS[program]
    if (
        option == "TaskProlog"
        and not releases.get(plan.releases()[plugged.name]).task_prolog_can_fail
    ):
        wanted = "COMPLETED"
    options = ("--requeue", f"--nodelist={node}", *jobs.access_options(plugged))
    with events.failing(plugged.controller if option.endswith("ctld") else host, program):
        job_id = plugged.submit(
            f"#!/bin/sh\n{REPORT} report script begins\n",
            "--output=/dev/null",
            *options,
            user=jobs.user,
        )
        try:
            events.wait(plugged, job_id, f"{option} ends")
            if "requeued" not in wanted:
                events.wait(plugged, job_id, "Epilog ends")
                events.wait(plugged, job_id, "EpilogSlurmctld ends")
            wait_until(
                lambda: effect(plugged, job_id, node, events),
                lambda seen: seen == wanted,
                what=f"job {job_id}, whose {option} fails, to be {wanted}",
                timeout=60,
                give_up=lambda seen: seen.startswith(("COMPLETED", "FAILED")),
            )
        finally:
            plugged.run("scancel", str(job_id), check=False)
            if any(seen.name == node and "DRAIN" in seen.state for seen in plugged.nodes()):
                plugged.run("scontrol", "update", f"NodeName={node}", "State=RESUME")
    plugged.wait_for([job_id])


def effect(cluster: SlurmCluster, job_id: int, node: str, events: Events) -> str:
    """Return what has become of a job and its node, as in EFFECTS."""
    details = parse_details(
        cluster.run("scontrol", "--oneliner", "show", "job", str(job_id)).stdout
    )
    pending = details["JobState"] == "PENDING"
    (state,) = (seen.state for seen in cluster.nodes() if seen.name == node)
    ran = any(event.what == "script begins" for event in events.of(cluster, job_id))
    parts = {
        "requeued" if pending and int(details["Restarts"]) else details["JobState"]: True,
        "held": pending and details["Priority"] == "0",
        "its script did not run": not ran,
        "its node is drained": "DRAIN" in state,
    }
    return ", ".join(part for part, applies in parts.items() if applies)


@pytest.mark.parametrize("mode", ["srun", "sbatch", "salloc"])
def test_no_task_starts_on_a_node_before_its_prolog_has_ended(
    mode: str, cluster: SlurmCluster, nodes: tuple[str, ...], plan: Plan, jobs: Jobs, events: Events
) -> None:
    """With salloc, and with srun since 22.05, a task waits for Prolog on all nodes of the job.

    Otherwise it only waits for Prolog on its own node.
    """
    node, other = nodes
    release = releases.get(plan.releases()[cluster.name])
    waits_for_all = mode == "salloc" or (mode == "srun" and release.srun_waits_for_every_prolog)
    with ThreadPoolExecutor(1) as pool, events.held(other, "prolog_slurmd"):
        before = newest_job(cluster)
        starting = pool.submit(start, mode, cluster, len(nodes), jobs)
        job_id = wait_until(
            lambda: newest_job(cluster),
            lambda newest: newest > before,
            what=f"{mode} to create a job",
            timeout=60,
        )
        wait_until(
            lambda: events.on(other, cluster, job_id),
            bool,
            what=f"Prolog to begin on {other}",
            timeout=90,
        )
        if not waits_for_all:
            events.wait(cluster, job_id, "task ends")
        else:
            events.wait(cluster, job_id, "Prolog ends")
            # In the meantime, a later job runs to its end on the first node.
            cluster.run("srun", f"--nodelist={node}", "true", user=jobs.user)
            # On a busy machine, tasks may start late that Slurm lets start now. 20.11 does not say.
            (job,) = cluster.jobs(f"--jobs={job_id}")
            assert job.reason == "Prolog" or plan.releases()[cluster.name] < "22.05", (
                f"while Prolog runs on {other}: slurmctld gives the reason {job.reason}, not Prolog"
            )
        held = events.on(other, cluster, job_id)
        assert held == {"Prolog begins"}, f"while Prolog runs on {other}: {sorted(held)}"
    assert starting.result() == job_id
    seen = events.wait(cluster, job_id, "freed", len(nodes))
    order = [event.what for event in seen if event.what in {"Prolog ends", "task begins"}]
    assert order == (sorted(order) if waits_for_all else ["Prolog ends", "task begins"] * 2), (
        f"while Prolog runs on {other}: {order}"
    )


def test_node_is_allocated_again_only_after_its_own_epilog_has_ended(
    cluster: SlurmCluster, nodes: tuple[str, ...], jobs: Jobs, events: Events
) -> None:
    """A node is in use again even if Epilog still runs on another node of the same job."""
    first, last = nodes[0], nodes[-1]
    with events.held(last, "epilog_slurmd"):
        before = jobs.submit(cluster, "true", f"--nodes={len(nodes)}", "--exclusive")
        # A later job may start first while jobs of other users have some of the nodes.
        cluster.wait_for([before], {"COMPLETING", "COMPLETED"})
        on_last = jobs.submit(cluster, "true", f"--nodelist={last}")
        on_first = jobs.submit(cluster, "true", f"--nodelist={first}")
        cluster.wait_for([on_first], {"COMPLETED"})
        assert cluster.job(on_last).state == "PENDING", (
            f"{last} is allocated again while Epilog runs on it"
        )
        assert cluster.job(before).state == "COMPLETING"
    cluster.wait_for([before, on_last], {"COMPLETED"})
    for node, after in ((first, on_first), (last, on_last)):
        ended = [
            event.time
            for event in events.of(cluster, before)
            if (event.host, event.what) == (node, "Epilog ends")
        ]
        began = [e.time for e in events.of(cluster, after) if e.what == "Prolog begins"]
        assert ended, f"the journal of {node} has no end of Epilog of job {before}"
        assert began, f"the journal of {node} has no start of Prolog of job {after}"
        assert ended[0] < began[0], (
            f"job {after} began on {node} before Epilog of job {before} had ended"
        )


def test_steps_start_the_tasks_that_are_requested_on_the_requested_nodes(
    cluster: SlurmCluster, nodes: tuple[str, ...], jobs: Jobs
) -> None:
    show = (
        "echo $SLURM_STEP_ID $SLURM_PROCID $SLURM_LOCALID $SLURM_NODEID $SLURMD_NODENAME "
        "$SLURM_NTASKS"
    )
    block, cyclic = (f"srun --distribution={kind} sh -c '{show}'" for kind in ("block", "cyclic"))
    script = f"{block}; {cyclic}; srun sh -c 'exit $((SLURM_PROCID * 3))'; echo ended with $?"
    size = [
        f"--nodelist={','.join(nodes)}",
        f"--nodes={len(nodes)}",
        "--ntasks=4",
        "--ntasks-per-node=2",
    ]
    lines = cluster.run(
        "salloc", "--quiet", *size, "sh", "-c", script, user=jobs.user
    ).stdout.splitlines()
    first, second = nodes
    wanted = [
        *(f"0 0 0 0 {first} 4", f"0 1 1 0 {first} 4", f"0 2 0 1 {second} 4", f"0 3 1 1 {second} 4"),
        *(f"1 0 0 0 {first} 4", f"1 1 0 1 {second} 4", f"1 2 1 0 {first} 4", f"1 3 1 1 {second} 4"),
        "ended with 9",
    ]
    assert sorted(lines) == wanted, (
        f"wrong SLURM_STEP_ID, PROCID, LOCALID, NODEID, NODENAME or NTASKS: {sorted(lines)}"
    )


def test_array_has_a_job_for_each_index_with_its_own_exit_code(
    cluster: SlurmCluster, jobs: Jobs, events: Events
) -> None:
    indices = (
        "$SLURM_ARRAY_TASK_MIN $SLURM_ARRAY_TASK_MAX $SLURM_ARRAY_TASK_STEP $SLURM_ARRAY_TASK_COUNT"
    )
    report = f'logger --tag {job_events.PROGRAM} "$SLURM_ARRAY_JOB_ID'
    begins, ends = (
        f'{report} index $SLURM_ARRAY_TASK_ID of {indices}"',
        f'{report} end of $SLURM_ARRAY_TASK_ID"',
    )
    script = f"#!/bin/sh\n{begins}\nsleep 1\n{ends}\nexit $SLURM_ARRAY_TASK_ID\n"
    array = cluster.submit(script, "--array=1-5:2%1", "--output=/dev/null", user=jobs.user)
    shown = wait_until(
        lambda: cluster.run("scontrol", "--oneliner", "show", "job", str(array)).stdout,
        lambda text: text.count("JobState=FAILED") == 3,
        what=f"all three tasks of array {array} to fail",
        timeout=120,
    )
    ended = sorted(re.findall(r" ArrayTaskId=(\d+) .* ExitCode=(\S+)", shown))
    assert ended == [("1", "1:0"), ("3", "3:0"), ("5", "5:0")], f"wrong index or exit code: {ended}"
    records = [
        event.what
        for event in events.of(cluster, array)
        if event.what.startswith(("index", "end of"))
    ]
    assert sorted(records[::2]) == [f"index {index} of 1 5 2 3" for index in (1, 3, 5)], (
        f"wrong array variables, or not one at a time: {records}"
    )
    assert [what.split()[-1] for what in records[1::2]] == [
        what.split()[1] for what in records[::2]
    ], f"tasks did not run one at a time: {records}"


def test_job_waits_for_the_end_of_the_job_that_it_depends_on(
    cluster: SlurmCluster, jobs: Jobs
) -> None:
    """If that job does not end in the requested way, the waiting job never starts."""
    failing = jobs.submit(cluster, "sleep 1; exit 3")
    after_failure, after_success = (
        jobs.submit(cluster, "true", f"--dependency={kind}:{failing}")
        for kind in ("afternotok", "afterok")
    )
    cluster.wait_for([failing], {"FAILED"})
    cluster.wait_for([after_failure], {"COMPLETED"})
    state = cluster.job(after_success)
    assert state.state == "PENDING", (
        f"a job that depends on the success of a failed job is {state.state}"
    )
    seen = {trace.job_id: trace for trace in jobs.traces() if trace.cluster == cluster.name}
    waited = seen[after_failure].start - (seen[failing].end or inf)
    assert waited >= 0, f"a job began {-waited:.1f} s before the end of the job that it depends on"


def test_components_of_a_heterogeneous_job_share_one_step(
    cluster: SlurmCluster, nodes: tuple[str, ...], plan: Plan, jobs: Jobs
) -> None:
    """Until 23.02.5, two threads of srun can pick one port of SrunPortRange; the second then fails.

    Each seeds random() with srun's process id, and after a failed listen() it tries to bind the
    same socket again: sock_bind_listen_range() in Slurm's slurm_protocol_api.c. Only this failure
    of these releases is worth a second attempt.
    """
    show = "echo $SLURM_PROCID $SLURMD_NODENAME"
    ids = "$SLURM_HET_SIZE $SLURM_JOB_ID $SLURM_JOB_ID_HET_GROUP_0 $SLURM_JOB_ID_HET_GROUP_1"
    script = f"echo {ids}; srun --het-group=0,1 sh -c '{show}'"
    components = [
        f"--nodelist={nodes[0]}",
        "--ntasks=1",
        ":",
        f"--nodelist={nodes[1]}",
        "--ntasks=2",
    ]
    command = ["salloc", "--quiet", *components, "sh", "-c", script]
    done = cluster.run(*command, user=jobs.user, check=False)
    if plan.releases()[cluster.name] < "23.02" and _NO_PORT in done.stderr:
        done = cluster.run(*command, user=jobs.user, check=False)
    assert done.exit_code == 0, done.stderr
    ids_line, *tasks = done.stdout.splitlines()
    size, job_id, *ids_of = map(int, ids_line.split())
    assert (size, ids_of) == (2, [job_id, job_id + 1])
    wanted = [f"0 {nodes[0]}", f"1 {nodes[1]}", f"2 {nodes[1]}"]
    assert sorted(tasks) == wanted, (
        "a step of both components, srun --het-group=0,1, has these tasks and nodes: "
        f"{sorted(tasks)}, should have {wanted}"
    )


def test_srun_transfers_the_streams_of_its_tasks_unchanged(
    cluster: SlurmCluster, nodes: tuple[str, ...], ssh: Ssh, jobs: Jobs
) -> None:
    name = f"streams-{secrets.token_hex(4)}"
    script = f"""
        size="--nodes={len(nodes)} --ntasks={len(nodes)}"
        printf "line\\n" | srun $size --label cat | sort
        printf "line\\n" | srun $size --label --input=1 cat
        srun --quiet sh -c "echo out; echo err >&2" 2> {name} | sed "s/^/stdout /"
        sed "s/^/stderr /" {name}
        head --bytes=4000000 /dev/urandom > {name}
        srun cat < {name} | cmp - {name} && echo unharmed
        srun $size --output={name}.%t.%N cat < {name}
        sha256sum < {name}; rm {name}
    """
    *output, wanted = cluster.run("sh", "-c", script, user=jobs.user).stdout.splitlines()
    to_all = [f"{task}: line" for task, _ in enumerate(nodes)]
    assert output == [*to_all, "1: line", "stdout out", "stderr err", "unharmed"], output
    for task, node in enumerate(nodes):
        path = f"{name}.{task}.{node}"
        checksum = ssh.run(
            node, ["sh", "-c", f"sha256sum < {path} && rm {path}"], user=jobs.user, check=False
        ).stdout
        assert checksum.strip() == wanted, f"{path} on {node} is not what the task wrote"


# A task or script that reports signals and continues.
DEAF = (
    'for name in USR1 TERM; do trap "report {0} got $name" $name; done; report {0} begins; '
    "while :; do sleep 1; done"
)


def test_signals_reach_the_processes_that_they_are_meant_for(
    cluster: SlurmCluster, nodes: tuple[str, ...], jobs: Jobs, events: Events, plan: Plan
) -> None:
    """The script runs on the first node, a task on each."""
    hosts_of = plan.hosts_of(cluster.name)
    script_host, *hosts = (hosts_of[node] for node in (nodes[0], *nodes))
    size = (f"--nodelist={','.join(nodes)}", f"--nodes={len(nodes)}", f"--ntasks={len(nodes)}")

    def signals(seen: list[Event], host: str) -> list[str]:
        return [event.what for event in seen if event.host == host and " got " in event.what]

    step = f"srun sh -c '{REPORT} {DEAF.format('task')}'"
    script = f"#!/bin/bash\n{REPORT}\n{step} &\n{DEAF.format('script')}\n"
    warned, job_id = (
        cluster.submit(script, "--output=/dev/null", *size, "--time=10", *more, user=jobs.user)
        for more in (["--signal=B:USR1@60"], [])
    )
    # Slurm checks time limits every half minute, and warns up to half a minute early: a script that
    # had only just started would not handle the signal yet (send_job_warn_signal() in job_mgr.c).
    events.wait(cluster, warned, "script begins")
    cluster.run("scontrol", "update", f"JobId={warned}", "EndTime=now+60", user=jobs.user)
    events.wait(cluster, job_id, "task begins", len(nodes))
    events.wait(cluster, job_id, "script begins")
    cluster.run("scancel", "--signal=USR1", str(job_id), user=jobs.user)
    events.wait(cluster, job_id, "task got USR1", len(nodes))
    cluster.run("scancel", "--batch", "--signal=USR1", str(job_id), user=jobs.user)
    events.wait(cluster, job_id, "script got USR1")
    cluster.run("scancel", str(job_id), user=jobs.user)
    seen = events.wait(cluster, job_id, "freed", len(nodes))
    wait = int(slurm_options.get(plan.scenario.clusters[cluster.name].options, "KillWait") or 30)
    for host in hosts:
        received = signals(seen, host)
        first = ["task got USR1", *["script got USR1"] * (host == script_host)]
        last = [*["script got TERM"] * (host == script_host), "task got TERM"]
        assert received[: len(first)] == first, f"signals arrived as {received} on {host}"
        assert sorted(received[len(first) :]) == last, f"signals arrived as {received} on {host}"
        time_of = {event.what: event.time for event in seen if event.host == host}
        assert "Epilog begins" in time_of, f"job {job_id} was freed on {host} without its Epilog"
        survived = time_of["Epilog begins"] - time_of["task got TERM"]
        # The first 0.7 s count as one for slurmd (_pause_for_job_completion() in its req.c), and a
        # busy machine reports the signal late.
        assert wait - 10 < survived < wait + 20, (
            f"killed on {host} {survived:.1f} s after TERM, KillWait is {wait}"
        )
    seen = events.wait(cluster, warned, "script got USR1", timeout=120)
    received = [what for host in hosts for what in signals(seen, host)]
    # On a slow machine, its time may be up by now: Slurm then sends TERM, too.
    assert [what for what in received if what.endswith("USR1")] == ["script got USR1"], (
        f"signals arrived as {received}"
    )
    cluster.run("scancel", "--full", "--signal=KILL", str(warned), user=jobs.user, check=False)
    events.wait(cluster, warned, "freed", len(nodes))


def test_interrupting_srun_twice_ends_its_tasks(
    cluster: SlurmCluster, jobs: Jobs, events: Events
) -> None:
    """Like Ctrl-C in a terminal: the first time, srun only prints the state of its tasks."""
    name = f"interrupted-{secrets.token_hex(4)}"
    script = f"""
        await() {{
            timeout 90 sh -c '
                until grep --quiet "$0" {name} || [ ! -e /proc/$1 ]; do sleep 0.02; done' "$@"
        }}
        env --default-signal=INT srun sh -c 'echo job $SLURM_JOB_ID; exec sleep 300' \\
            > {name} 2>&1 & pid=$!
        await ^job $pid; kill -INT $pid
        await interrupt $pid
        # The second must come within a second of the first: a busy machine may take several.
        while kill -INT $pid 2> /dev/null; do sleep 0.3; done
        wait $pid; echo ended with $?; cat {name}; rm {name}
    """
    output = cluster.run("sh", "-c", script, user=jobs.user).stdout
    assert "one more within 1 sec to abort" in output, output
    assert "ended with 0" not in output, output
    job_id = int(re.search(r"^job (\d+)", output, re.MULTILINE)[1])
    events.wait(cluster, job_id, "freed")


@pytest.mark.parametrize("mode", ["srun", "salloc", "sbatch"])
def test_only_a_batch_job_survives_when_its_terminal_is_closed(
    mode: str, cluster: SlurmCluster, jobs: Jobs
) -> None:
    """The kernel sends SIGHUP, which ends the shell that called sbatch, but not the job."""
    # salloc handles the signal only a moment after it has started its command (salloc.c), and
    # nothing shows when it does.
    task = "sleep 1; echo started $SLURM_JOB_ID; exec sleep 300"
    by_shell = "echo started $(sbatch --parsable --output=/dev/null --wrap='sleep 300'); sleep 300"
    command = ("sh", "-c", by_shell) if mode == "sbatch" else (mode, "sh", "-c", task)
    options = ("python3", "-c", IN_A_TERMINAL, *command)
    answer = cluster.run(*options, user=jobs.user).stdout.split()
    assert len(answer) == 2, f"{mode} started no job: {answer}"
    job_id = int(answer[0])
    try:
        assert answer[1] == "ended", f"{mode} keeps running after its terminal was closed"
        if mode == "sbatch":
            (job,) = cluster.jobs_of(job_id)
            assert job.state in {"PENDING", "CONFIGURING", "RUNNING"}, (
                f"the batch job is {job.state} after its terminal was closed"
            )
        else:
            wait_until(
                lambda: [job.state for job in cluster.jobs_of(job_id)],
                {*FINISHED}.issuperset,
                what=f"the job of {mode} to end after its terminal was closed",
                timeout=60,
            )
    finally:
        cluster.run("scancel", str(job_id), check=False)
    cluster.wait_for([job_id])


def test_job_credential_that_slurmctld_did_not_sign_is_refused(
    cluster: SlurmCluster, nodes: tuple[str, ...], jobs: Jobs
) -> None:
    """`srun --no-allocate` creates a credential itself instead of asking slurmctld for one."""
    command = ("srun", "--no-allocate", f"--nodelist={nodes[0]}", "echo", "ran")
    answer = cluster.run(*command, user=jobs.user, check=False)
    assert "ran" not in answer.stdout.splitlines(), (
        f"{nodes[0]} ran a task with a credential that {jobs.user} made"
    )
    assert f"failed on node {nodes[0]}" in answer.stderr, answer.stderr


def test_job_credential_that_is_too_old_is_refused(
    harness_run: OpenRun, cluster: SlurmCluster, nodes: tuple[str, ...], jobs: Jobs
) -> None:
    """The node's clock is 200 s ahead; cred_expire is 120 s (slurm.conf(5), AuthInfo)."""
    with faults.injected(harness_run, Fault("step-clock", nodes[0], "200")):
        answer = cluster.run(
            "srun", f"--nodelist={nodes[0]}", "echo", "ran", user=jobs.user, check=False
        )
    assert "ran" not in answer.stdout.splitlines(), (
        f"{nodes[0]} accepted a credential that is 200 s old"
    )
    assert "Job credential expired" in answer.stderr, answer.stderr
    answer = cluster.run("srun", f"--nodelist={nodes[0]}", "echo", "healed", user=jobs.user)
    assert answer.stdout == "healed\n"


@pytest.mark.needs("two_users", "munge")
def test_munge_credential_is_valid_once_for_its_lifetime_and_its_user(
    cluster: SlurmCluster, plan: Plan, users: list[str]
) -> None:
    def encode(*more: str) -> str:
        return cluster.run("munge", "--no-input", *more, user=users[0]).stdout

    def decode(credential: str, user: str | None = None) -> str:
        answer = cluster.run("unmunge", stdin=credential, user=user, check=False)
        return answer.stdout + answer.stderr

    once = encode()
    assert "Success" in decode(once)
    assert "Replayed credential" in decode(once), "a credential was accepted twice"
    for_another = encode(f"--restrict-uid={plan.scenario.users[users[1]].uid}")
    assert "Unauthorized credential" in decode(for_another, users[0]), (
        "a credential was accepted for another user"
    )
    assert "Success" in decode(for_another, users[1])
    short_lived = encode("--ttl=1")
    wait_until(
        lambda: decode(short_lived),
        lambda output: "Expired credential" in output,
        what="a credential of one second to expire",
        timeout=90,
    )
