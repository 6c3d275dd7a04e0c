"""How jobs are scheduled: dependencies, arrays, time limits, and what jobs share.

Times come from the traces of jobs on one node, and so from one clock.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from itertools import pairwise
from math import inf

import pytest
from conftest import Jobs, everywhere, over_time, reserved_nodes, slurm_conf, small
from early_jobs import DELAY

from harness import releases, slurm_options
from harness.cluster.slurm import FINISHED, SlurmCluster
from harness.plan import Plan
from harness.slurmconf import drift
from harness.verify import job_trace
from harness.verify.job_trace import JobTrace
from harness.wait import wait_until

pytestmark = pytest.mark.needs("scheduling")
Clusters = dict[str, SlurmCluster]
Find = Callable[[SlurmCluster], list[str]]
# Time limit, in minutes, of jobs that a check ends itself.
MINUTES = 5
# Seconds by which the clocks of a controller and its nodes, and rounded times, may differ.
CLOCKS = 2
# This many jobs on a node show as much as any larger number.
MANY = 5
# squeue(1), JOB REASON CODES: the reason of a job that finds no room on its node.
NO_ROOM = "Resources"
# Options of a job that may run -> jobs that must have ended before it starts.
MAY_RUN: dict[str, tuple[str, ...]] = {
    "--dependency=after:{long}": (),
    "--dependency=afterok:{ok}": ("ok",),
    "--dependency=afternotok:{bad}": ("bad",),
    "--dependency=afterany:{ok}:{bad}": ("ok", "bad"),
    "--dependency=afterok:{bad}?afterok:{ok}": ("ok",),
    "--dependency=singleton --job-name={name}": ("ok",),
}
# Two jobs on one node: what they are, and the options of both, with {} for the node's CPUs.
PAIRS = {
    "small jobs": ("--ntasks=1", "--ntasks=1"),
    "jobs of all CPUs": ("--ntasks={}", "--ntasks={}"),
    "jobs of all CPUs with --oversubscribe": ("--ntasks={} --oversubscribe",) * 2,
    "a job with --exclusive and a small one": ("--ntasks=1 --exclusive", "--ntasks=1"),
}


def on_each(find: Find, clusters: Clusters) -> None:
    """Fail with the problems that a function finds on any cluster."""
    problems_of = everywhere(lambda name: find(clusters[name]), clusters)
    problems = [f"{name}: {problem}" for name, lines in problems_of.items() for problem in lines]
    assert not problems, "\n".join(problems)


def usable_nodes(cluster: SlurmCluster, plan: Plan) -> dict[str, int]:
    """Return the CPUs of each node of a cluster that is not reserved, largest first."""
    cpus = plan.scenario.clusters[cluster.name].static_nodes()
    nodes = {*cpus} - reserved_nodes(cluster, plan)
    return {node: cpus[node] for node in sorted(nodes, key=lambda node: (-cpus[node], node))}


def free_nodes(cluster: SlurmCluster, plan: Plan) -> dict[str, int]:
    """Return the usable nodes of the default partition."""
    default = slurm_conf(plan, cluster.name).default_partition()
    partition = next(part for part in cluster.partitions() if part.name == default)
    usable = usable_nodes(cluster, plan)
    return {node: cpus for node, cpus in usable.items() if node in partition.nodes}


def traces_of(jobs: Jobs, cluster: SlurmCluster, *job_ids: int) -> list[JobTrace]:
    """Return the traces of jobs, and of the tasks of arrays, in the order of their start."""
    tasks = {job.job_id for job_id in job_ids for job in cluster.jobs_of(job_id)}
    traces = (trace for trace in jobs.traces() if trace.cluster == cluster.name)
    return sorted(
        (trace for trace in traces if trace.job_id in tasks), key=lambda trace: trace.start
    )


def wait_until_begun(jobs: Jobs, cluster: SlurmCluster, *job_ids: int) -> list[JobTrace]:
    """Wait until each job, or any task of an array, has left a trace; return the traces."""
    return wait_until(
        lambda: traces_of(jobs, cluster, *job_ids),
        lambda traces: len(traces) >= len(job_ids),
        what=f"jobs {job_ids} of {cluster.name} to begin",
        timeout=120,
        show=lambda traces: f"{[trace.job_id for trace in traces]} have begun",
    )


def test_jobs_start_when_their_dependencies_allow_it(
    clusters: Clusters, jobs: Jobs, plan: Plan
) -> None:
    """A job that can never start is cancelled only if it or the configuration says so."""

    def find(cluster: SlurmCluster) -> list[str]:
        name = f"first-{secrets.token_hex(4)}"
        # Jobs that start early prefer the first node.
        *_, node = free_nodes(cluster, plan)
        options = [*small(plan, cluster.name, MINUTES), f"--nodelist={node}"]
        before = {
            what: jobs.submit(cluster, body, *options, "--hold", f"--job-name={name}-{what}")
            for what, body in (
                ("ok", "sleep 1"),
                ("bad", "exit 3"),
                ("long", job_trace.UNTIL_CANCELLED),
            )
        }
        words = {**before, "name": f"{name}-ok"}
        may_run = {
            text: jobs.submit(cluster, "true", *options, *text.format(**words).split())
            for text in MAY_RUN
        }
        outcomes = never_run(plan, cluster.name)
        never = {
            text: jobs.submit(cluster, "true", *options, *text.format(**words).split())
            for text in outcomes
        }
        # slurmctld has started the jobs above before this one, unless they wait.
        independent = jobs.submit(cluster, "true", *options)
        cluster.wait_for([independent], {"COMPLETED"})
        waiting = {job.job_id for job in cluster.jobs("--local") if job.state == "PENDING"}
        early = [
            f"a job with {text} began before the jobs on which it depends were released"
            for text, job_id in may_run.items()
            if job_id not in waiting
        ]
        cluster.run("scontrol", "release", *map(str, before.values()), user=jobs.user)
        cluster.wait_for(may_run.values(), {"COMPLETED"})
        wait_until_given_up(cluster, never, outcomes)
        seen = traces_of(jobs, cluster, *before.values(), *may_run.values())
        traces = {trace.job_id: trace for trace in seen}
        return early + [
            f"a job with {text} began {-waited:.1f} s before the end of {what}"
            for text, job_id in may_run.items()
            for what in MAY_RUN[text]
            for waited in [traces[job_id].start - (traces[before[what]].end or inf)]
            if waited < 0
        ]

    on_each(find, clusters)


def never_run(plan: Plan, cluster: str) -> dict[str, str]:
    """Return options of jobs that can never start, and what becomes of the jobs."""
    conf = plan.slurm_conf(cluster)
    parameters = [
        str(slurm_options.get(conf, option) or "")
        for option in ("DependencyParameters", "SchedulerParameters")
    ]
    waits, cancelled = "PENDING, DependencyNeverSatisfied", "CANCELLED"
    return {
        "--dependency=afterok:{bad}": (
            cancelled if "kill_invalid_depend" in ",".join(parameters).split(",") else waits
        ),
        "--dependency=afternotok:{ok} --kill-on-invalid-dep=yes": cancelled,
        "--dependency=afternotok:{ok} --kill-on-invalid-dep=no": waits,
    }


def wait_until_given_up(
    cluster: SlurmCluster, never: dict[str, int], wanted: dict[str, str]
) -> None:
    """Wait until jobs that can never start, by their options, are treated as they should be."""

    def look() -> list[str]:
        seen = {job.job_id: f"{job.state}, {job.reason}" for job in cluster.jobs("--local")}
        return [
            f"a job with {text} is {seen.get(job_id)}, should be {wanted[text]}"
            for text, job_id in never.items()
            if not seen.get(job_id, "").startswith(wanted[text])
        ]

    what = "slurmctld to give up jobs whose dependencies can never be satisfied"
    wait_until(look, lambda left: not left, what=what, timeout=60, show="; ".join)


def test_array_tasks_start_after_the_same_task_of_the_array_they_depend_on(
    clusters: Clusters, jobs: Jobs, plan: Plan
) -> None:
    """The first task has ended well; the second still runs (aftercorr)."""

    def find(cluster: SlurmCluster) -> list[str]:
        options = (*small(plan, cluster.name, MINUTES), "--array=0-1")
        body = f'[ "$SLURM_ARRAY_TASK_ID" = 0 ] || {{ {job_trace.UNTIL_CANCELLED}; }}'
        first = jobs.submit(cluster, body, *options, "--hold")
        second = jobs.submit(
            cluster, job_trace.UNTIL_CANCELLED, *options, f"--dependency=aftercorr:{first}"
        )
        cluster.run("scontrol", "release", str(first), user=jobs.user)
        began = [trace.task for trace in wait_until_begun(jobs, cluster, second)]
        waits = any(job.state == "PENDING" for job in cluster.jobs_of(second))
        if began == [0] and waits:
            return []
        return [
            "the second task of an array with aftercorr did not wait for that of the other array"
        ]

    on_each(find, clusters)


def test_array_runs_no_more_tasks_at_a_time_than_its_throttle(
    clusters: Clusters, jobs: Jobs, plan: Plan
) -> None:
    def find(cluster: SlurmCluster) -> list[str]:
        node, cpus = next(iter(free_nodes(cluster, plan).items()))
        if cpus < 2:
            return []  # there is only room for one
        options = (*small(plan, cluster.name, MINUTES), f"--nodelist={node}")
        array = jobs.submit(cluster, "sleep 1", *options, "--array=0-3%1")
        cluster.wait_for([array], {"COMPLETED"})
        traces = traces_of(jobs, cluster, array)
        problems = [
            f"task {later.task} of an array with --array=0-3%1 began"
            f" {(earlier.end or inf) - later.start:.1f} s before the end of task {earlier.task}"
            for earlier, later in pairwise(traces)
            if later.start < (earlier.end or inf)
        ]
        missing = {0, 1, 2, 3} - {trace.task for trace in traces}
        return [*problems, *([f"tasks {missing} did not run"] if missing else [])]

    on_each(find, clusters)


def test_components_of_a_heterogeneous_job_start_together_each_on_its_node(
    clusters: Clusters, jobs: Jobs, plan: Plan
) -> None:
    """Only the backfill scheduler starts heterogeneous jobs."""
    able = {
        name: nodes
        for name, cluster in clusters.items()
        if (nodes := [*free_nodes(cluster, plan)][:2])[1:]
        and "builtin" not in str(slurm_options.get(plan.slurm_conf(name), "SchedulerType") or "")
    }
    if not able:
        pytest.skip("no cluster has the backfill scheduler and two nodes")

    def find(cluster: SlurmCluster) -> list[str]:
        nodes = able[cluster.name]
        body = "\n".join(
            f'echo "note.{group}=$(srun --het-group={group} printenv SLURMD_NODENAME)" >> "$trace"'
            for group in (0, 1)
        )
        options = [
            *plan.scenario.checks.submit,
            "--output=/dev/null",
            *jobs.access_options(cluster),
        ]
        options += small(plan, cluster.name, MINUTES)
        components = [[*options, f"--nodelist={node}"] for node in nodes]
        script = job_trace.script(body)
        job_id = cluster.submit(script, *components[0], ":", *components[1], user=jobs.user)
        cluster.wait_for([job_id], {"COMPLETED"})
        notes = traces_of(jobs, cluster, job_id)[0].notes
        records = {record.job_id: record for record in cluster.remembered()}
        seen = [records[job_id + group] for group in (0, 1) if job_id + group in records]
        problems = [
            f"component {group} has {record.node_list}, its task ran on {ran}, not on {node}"
            for group, (record, node) in enumerate(zip(seen, nodes, strict=False))
            if {record.node_list, ran := notes.get(str(group), "no node")} != {node}
        ]
        starts = [record.start for record in seen]
        # slurmctld starts one after the other, each with its own time: _het_job_start_now().
        together = len(starts) == 2 and abs((starts[0] or 0) - (starts[1] or 0)) <= CLOCKS
        return problems if together else [*problems, f"its components start at {starts}"]

    on_each(find, {name: clusters[name] for name in able})


def test_requeued_job_runs_again_with_its_id_unless_it_forbids_that(
    clusters: Clusters, jobs: Jobs, plan: Plan
) -> None:
    """Without an option, JobRequeue decides. A requeued job may wait for AuthInfo's cred_expire."""
    script = job_trace.script('[ "$SLURM_RESTART_COUNT" ] || sleep 300')

    def find(cluster: SlurmCluster) -> list[str]:
        options = (
            "--output=/dev/null",
            *jobs.access_options(cluster),
            *small(plan, cluster.name, MINUTES),
        )
        default = str(slurm_options.get(plan.slurm_conf(cluster.name), "JobRequeue") or 1) == "1"
        expected = {"": default, "--requeue": True, "--no-requeue": False}
        ids = {
            option: cluster.submit(script, *options, *option.split(), user=jobs.user)
            for option in expected
        }
        wait_until_begun(jobs, cluster, *ids.values())
        problems = []
        for option, allowed in expected.items():
            answer = cluster.run(
                "scontrol", "requeue", str(ids[option]), user=jobs.user, check=False
            )
            if (answer.exit_code == 0) != allowed:
                text = answer.stderr.strip() or "it is accepted"
                problems.append(f"requeueing a job with {option or 'no option'}: {text}")
        requeued = [ids[option] for option, allowed in expected.items() if allowed]
        if not problems:
            cluster.wait_for(requeued, {"COMPLETED"}, timeout=300)
        runs = {(trace.job_id, trace.restarts) for trace in traces_of(jobs, cluster, *requeued)}
        missing = [job_id for job_id in requeued if not {(job_id, 0), (job_id, 1)} <= runs]
        return problems + [f"requeued job {job_id} did not run twice: {runs}" for job_id in missing]

    on_each(find, clusters)


def test_job_does_not_start_before_its_begin_time(
    clusters: Clusters, delayed_jobs: dict[str, tuple[int, int]], jobs: Jobs
) -> None:
    def find(cluster: SlurmCluster) -> list[str]:
        since, job_id = delayed_jobs[cluster.name]
        cluster.wait_for([job_id], {"COMPLETED"})
        waited = traces_of(jobs, cluster, job_id)[0].start - since
        text = f"a job with --begin=now+{DELAY} began {waited:.1f} s after sbatch started"
        return [] if waited >= DELAY - CLOCKS else [text]

    on_each(find, clusters)


def test_warning_signal_reaches_the_script_or_the_tasks_before_the_time_limit(
    clusters: Clusters, warned_jobs: dict[tuple[str, str], int], jobs: Jobs
) -> None:
    """With `--signal=B:`, only the script gets it; without, only the tasks of steps."""

    def find(cluster: SlurmCluster) -> list[str]:
        ids = {target: warned_jobs[cluster.name, target] for target in ("script", "task")}
        states = {job.job_id: job.state for job in cluster.wait_for(ids.values(), timeout=240)}
        problems = []
        for target, job_id in ids.items():
            notes = traces_of(jobs, cluster, job_id)[0].notes
            warned = sorted({"script", "task"} & {*notes})
            if (warned, states[job_id]) != ([target], "COMPLETED"):
                text = f"--signal={'B:' if target == 'script' else ''}USR1@60"
                seen = f"{' and '.join(warned) or 'nothing'}, and the job is {states[job_id]}"
                problems.append(f"{text} reached {seen}; it should reach the {target}")
        return problems

    on_each(find, clusters)


def test_job_is_killed_killwait_seconds_after_its_time_limit(
    clusters: Clusters, killed_jobs: dict[str, int], jobs: Jobs, plan: Plan
) -> None:
    """It gets SIGTERM first. slurmd waits at least 5 s for it to end."""

    def find(cluster: SlurmCluster) -> list[str]:
        job_id = killed_jobs[cluster.name]
        wait = max(5, int(slurm_options.get(plan.slurm_conf(cluster.name), "KillWait") or 30))
        timeout = 180 + wait + 60 * over_time(plan, cluster.name)
        cluster.wait_for([job_id], {"TIMEOUT"}, timeout=timeout)
        notes = traces_of(jobs, cluster, job_id)[0].notes
        if "term" not in notes:
            return ["a job was killed at its time limit without SIGTERM"]
        survived = float(notes["alive"]) - float(notes["term"])
        # As in test_job_start.py: slurmd counts its first 0.7 s as one, and may be slow.
        if wait - 10 < survived < wait + 20:
            return []
        return [f"a job was killed {survived:.1f} s after SIGTERM; KillWait is {wait}"]

    on_each(find, clusters)


def test_jobs_share_nodes_and_cpus_as_their_partition_allows(
    clusters: Clusters, jobs: Jobs, plan: Plan
) -> None:
    """Jobs are started on one node of each partition, up to one more than may run there.

    One partition follows the other: a job that waits delays those of other partitions.
    """

    def share(name: str) -> None:
        cluster, conf = clusters[name], slurm_conf(plan, name)
        usable = usable_nodes(cluster, plan)
        for partition in cluster.partitions():
            line = conf.partitions[partition.name]
            nodes = [node for node in usable if node in partition.nodes and usable[node] > 1]
            if partition.takes_jobs_of_users and nodes and drift.exclusive(line) in {"NO", "NODE"}:
                node = nodes[-1]
                for pair in PAIRS:
                    fill_node(cluster, jobs, partition.name, line, node, usable[node], pair)

    everywhere(share, clusters)


def fill_node(
    cluster: SlurmCluster,
    jobs: Jobs,
    partition: str,
    line: drift.Options,
    node: str,
    cpus: int,
    pair: str,
) -> None:
    """Fail unless as many jobs run on a node at a time as its partition allows, and no more.

    `line` has the options of the partition.
    """
    user = jobs.user_of(cluster.name, line)
    job_options = [
        f"--partition={partition}",
        *jobs.partition_options(cluster.name, line),
        f"--nodelist={node}",
        # An earlier job may not have left the node: then this one must not get others beside it.
        "--nodes=1",
    ]
    job_options += small(jobs.plan, cluster.name, MINUTES)
    first, other = (options.format(cpus).split() for options in PAIRS[pair])
    most = most_at_once(jobs.plan, cluster.name, line, pair)
    many = most >= MANY
    started: list[int] = []
    for number in range(2 if many else most + 1):
        job_id = jobs.submit(
            cluster,
            job_trace.UNTIL_CANCELLED,
            *job_options,
            *(other if number else first),
            user=user,
        )
        started.append(job_id)
        wanted = "RUNNING" if number < most else "PENDING"
        wait_until(
            lambda: cluster.job(job_id),  # noqa: B023  called at once
            lambda job: (
                job is not None
                and job.state == wanted  # noqa: B023
                and (job.state == "RUNNING" or job.reason == NO_ROOM)
            ),
            what=f"job {number + 1} of {pair} on {node} to be {wanted}: partition {partition} with"
            f" OverSubscribe={line.get('oversubscribe', 'NO')} runs"
            f" {'several' if many else most} at a time",
            timeout=180,
            give_up=lambda job: (
                job is not None and job.state not in {"PENDING", "CONFIGURING", wanted}  # noqa: B023
            ),
        )
    cluster.run("scancel", *map(str, started), user=user)
    cluster.wait_for(started)


def most_at_once(plan: Plan, cluster: str, partition: drift.Options, pair: str) -> int:
    """Return how many jobs of a kind may run on a node at a time; MANY: as many as fit.

    See OverSubscribe in slurm.conf(5), and slurm.schedmd.com/cons_tres_share.html.
    """
    release = releases.get(plan.releases()[cluster])
    default = releases.default_of(release, "slurm.conf", "SelectType")
    linear = "linear" in str(slurm_options.get(plan.slurm_conf(cluster), "SelectType") or default)
    word, _, count = partition.get("oversubscribe", "no").lower().partition(":")
    if drift.exclusive(partition) == "NODE":
        return 1
    oversubscribes = word == "force" or (word == "yes" and "--oversubscribe" in pair)
    if oversubscribes and (linear or "all CPUs" in pair):
        return min(int(count or 4), MANY)
    return MANY if word == "force" or (pair == "small jobs" and not linear) else 1


@pytest.mark.needs("scrontab")
def test_entry_of_a_scrontab_runs_every_minute_as_its_user(
    clusters: Clusters, scrontab_jobs: dict[str, tuple[str, str]], jobs: Jobs, plan: Plan
) -> None:
    """The job of an entry keeps its id, and waits for its next minute after each run."""
    if not scrontab_jobs:
        packaged = [name for name in releases.packaged() if releases.get(name).scrontab]
        pytest.skip(f"Debian has scrontab for Slurm {', '.join(packaged)}")

    def find(cluster: SlurmCluster) -> list[str]:
        file, problem = scrontab_jobs.get(cluster.name, ("", ""))
        if problem or not file:
            return [f"scrontab: {problem}"] if problem else []
        read = ["sh", "-c", f"cat {file} 2> /dev/null || :"]
        lines = wait_until(
            lambda: "".join(jobs.ssh.run(host, read).stdout for host in jobs.places()).splitlines(),
            bool,
            what=f"the entry of {jobs.user}'s scrontab to run",
            timeout=180,
        )
        job_id, user = lines[0].split()
        job = cluster.job(int(job_id))
        problems = [f"its job ran as {user}, not as {jobs.user}"] if user != jobs.user else []
        if not job or job.state in FINISHED:
            problems.append(f"its job {job_id} is {job.state if job else 'gone'} after a run")
        return problems

    on_each(find, clusters)
