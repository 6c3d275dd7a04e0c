"""Users log in to login hosts, and submit and run their jobs from there."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace

import pytest
from conftest import Jobs, only
from early_jobs import job_places
from test_scheduling import wait_until_begun

from harness import render, run_secrets, slurm_options
from harness.cluster import slurm
from harness.cluster.slurm import FINISHED, SlurmCluster
from harness.plan import Host, Plan
from harness.rundir import RunDir
from harness.ssh import Ssh
from harness.verify import job_trace
from harness.wait import wait_until

pytestmark = pytest.mark.needs("login")

# Where the commands look for the configuration that sackd has got from slurmctld.
SERVED = "/run/slurm/conf"
_LOG_OF_SSHD = [
    *("journalctl", "--quiet", "--no-pager", "--lines=3", "--output=cat"),
    *("--identifier=sshd", "--identifier=sshd-session"),
]
# Seconds for one login over SSH, even on a busy machine.
LOGS_IN_WITHIN = 60


@pytest.fixture(params=["srun", "salloc"])
def start_command(request: pytest.FixtureRequest) -> list[str]:
    """Commands that run a task in the foreground."""
    return {"srun": ["srun"], "salloc": ["salloc", "--quiet", "srun"]}[request.param]


def test_login_hosts_get_slurm_conf_from_slurmctld(ssh: Ssh, plan: Plan, run: RunDir) -> None:
    """Where there is no sackd, the file is a rendered one, which another check compares."""
    secrets = run.secrets()
    for host in plan.login_hosts():
        if "sackd" in host.daemons:
            wanted = run_secrets.reveal(render.slurm_conf(plan, host.cluster or ""), secrets)
            held = ssh.run(host.name, ["cat", f"{SERVED}/slurm.conf"], check=False)
            assert held.stdout.rstrip() == wanted.rstrip(), (
                f"{host.name}: {SERVED}/slurm.conf is not the controller's: {held.stderr}"
            )
            assert ssh.run(host.name, ["find", "/etc/slurm", "-name", "slurm.conf"]).stdout == "", (
                f"{host.name} has a slurm.conf of its own, which commands use instead"
            )


def test_login_hosts_reach_slurmctld_and_slurmdbd(ssh: Ssh, plan: Plan) -> None:
    queries = [["sinfo", "--noheader", "--format=%N"]]
    if plan.scenario.accounting:
        queries.append(["sacct", "--noheader", "--allocations"])
    for host in plan.login_hosts():
        for query in queries:
            answer = wait_until(
                lambda host=host, query=query: ssh.run(host.name, query, check=False),
                lambda answer: slurm.LATE not in answer.stderr,
                what=f"an answer to {query[0]} on {host.name}",
                timeout=120,
            )
            assert answer.exit_code == 0, f"{host.name}: {query[0]} fails: {answer.stderr}"


@pytest.mark.needs("static")
def test_user_submits_from_a_login_host_and_gets_the_output(
    ssh: Ssh, plan: Plan, jobs: Jobs, clusters: dict[str, SlurmCluster]
) -> None:
    """Reads it on the node: another check looks for it on every host if all share /home."""
    submitted = []
    for host in plan.login_hosts():
        for name in targets(plan, host):
            cluster, options = clusters[name], [*only(clusters[name], plan)]
            output = f"slurm-harness-login-{host.name}-{name}.out"
            options += [*jobs.access_options(cluster), f"--output={output}"]
            command = ["sbatch", "--parsable", *cluster.marked(), *options]
            script = "#!/bin/sh\necho submitted on $SLURM_SUBMIT_HOST as $(id -un)\n"
            answer = ssh.run(host.name, command, user=jobs.user, stdin=script, check=False)
            assert answer.exit_code == 0, f"{host.name}: sbatch fails: {answer.stderr}"
            job_id = int(answer.stdout.split(";")[0])
            submitted.append((host.name, cluster, job_id, output))
    for host, cluster, job_id, output in submitted:
        cluster.wait_for([job_id], {"COMPLETED"})
        at = batch_host(cluster, plan, job_id)
        read = ["sh", "-c", f"cat {output} && rm {output}"]
        seen = wait_until(
            lambda at=at, read=read: ssh.run(at, read, user=jobs.user, check=False),
            lambda answer: answer.exit_code == 0,
            what=f"the output of job {job_id} in {jobs.user}'s home on {at}",
            timeout=120,
        )
        assert seen.stdout == f"submitted on {host} as {jobs.user}\n", f"{host}: {seen.stdout}"


def test_interactive_job_of_a_login_host_has_its_input_output_and_exit_code(
    ssh: Ssh,
    plan: Plan,
    jobs: Jobs,
    clusters: dict[str, SlurmCluster],
    start_command: list[str],
) -> None:
    program, *rest = start_command
    for host in plan.login_hosts():
        cluster = clusters[host.cluster]
        task = ["sh", "-c", "echo $(cat /proc/sys/kernel/hostname) $(id -u) $(cat); exit 7"]
        options = [*cluster.marked(), *only(cluster, plan), *jobs.access_options(cluster)]
        command = [program, *options, *rest, *task]
        answer = ssh.run(
            host.name, command, user=jobs.user, stdin="typed", check=False, timeout=180
        )
        assert answer.exit_code == 7, (
            f"{host.name}: {program} ends with {answer.exit_code}, its task with 7: {answer.stderr}"
        )
        node, *printed = answer.stdout.split()
        uid = plan.scenario.users[jobs.user].uid
        assert printed == [str(uid), "typed"], f"{host.name}: {program} prints {answer.stdout!r}"
        assert node in plan.scenario.clusters[cluster.name].nodes_on(), (
            f"{host.name}: ran on {node}"
        )


@pytest.mark.needs("users_log_in")
def test_users_log_in_to_login_hosts_but_not_to_controllers_or_the_database(
    ssh: Ssh, plan: Plan, run: RunDir
) -> None:
    for user, facts in plan.scenario.users.items():
        for host in plan.login_hosts():
            answer = log_in(ssh, run, host.name, user)
            if (answer.returncode, answer.stdout.strip()) != (0, str(facts.uid)):
                logged = ssh.run(host.name, _LOG_OF_SSHD).stdout.strip()
                pytest.fail(
                    f"{user} cannot log in to {host.name}: {answer.stderr or answer.stdout}\n"
                    f"the last lines of sshd's log:\n{logged}"
                )
    user = next(iter(plan.scenario.users))
    for host in plan.permanent_hosts():
        if {"slurmctld", "slurmdbd", "mariadb"} & {*host.daemons}:
            answer = log_in(ssh, run, host.name, user)
            assert answer.returncode == 255, f"{user} can log in to {host.name}: {answer.stdout}"
            assert "Users log in to " in answer.stderr + answer.stdout, (
                f"{host.name} refuses {user} for another reason: {answer.stderr}"
            )


@pytest.mark.needs("pam_slurm_adopt", "static")
def test_users_log_in_to_a_node_only_while_they_have_a_job_there(
    ssh: Ssh, plan: Plan, run: RunDir, jobs: Jobs, clusters: dict[str, SlurmCluster]
) -> None:
    """Where Slurm uses cgroups, the session belongs to the job."""
    jobs = replace(jobs, users=jobs.users[::-1])  # the jobs of other checks belong to the first
    for name, cluster in clusters.items():
        if plan.scenario.clusters[name].pam_slurm_adopt:
            verify_admission(ssh, plan, run, jobs, cluster)


def verify_admission(ssh: Ssh, plan: Plan, run: RunDir, jobs: Jobs, cluster: SlurmCluster) -> None:
    wanted = job_places(cluster, plan, jobs)
    users = {user for user, *_ in wanted.values()}
    wait_until(
        lambda: [job for job in cluster.jobs() if job.user in users],
        lambda seen: all(job.state in FINISHED for job in seen),
        what=f"{' and '.join(users)} to have no jobs on {cluster.name}",
        timeout=180,
    )
    for host, (user, *_) in wanted.items():
        answer = log_in(ssh, run, host, user)
        assert answer.returncode == 255, f"{user} can log in to {host} without a job there"
        assert "pam_slurm_adopt" in answer.stderr, (
            f"{host} refuses {user} for another reason: {answer.stderr}"
        )
    job_on = {
        host: jobs.submit(
            cluster, job_trace.UNTIL_CANCELLED, *only(cluster, plan), *options, user=user
        )
        for host, (user, *options) in wanted.items()
    }
    # pam_slurm_adopt looks for the extern step, which slurmd starts before the script.
    wait_until_begun(jobs, cluster, *job_on.values())
    for host, job_id in job_on.items():
        user = wanted[host][0]
        answer = log_in(ssh, run, host, user, "id -u; cat /proc/self/cgroup")
        uid, *cgroups = answer.stdout.split("\n")
        assert (answer.returncode, uid) == (0, str(plan.scenario.users[user].uid)), (
            f"{user} cannot log in to {host}, where job {job_id} runs: {answer.stderr}"
        )
        if "cgroup" in (slurm_options.get(plan.slurm_conf(cluster.name), "ProctrackType") or ""):
            shown = cluster.run("scontrol", "--details", "show", "job", str(job_id)).stdout
            # From 26.05 on, a job's cgroup is named after its SLUID.
            names = {f"job_{job_id}", *re.findall(r"\bSLUID=(\S+)", shown)}
            assert any(names & {*line.split("/")} for line in cgroups), (
                f"{host}: the session of {user} is not in the cgroup of job {job_id}: {cgroups}"
            )
    cluster.run("scancel", *map(str, job_on.values()))
    cluster.wait_for(job_on.values(), {"CANCELLED"})
    for host, (user, *_) in wanted.items():
        wait_until(
            lambda host=host, user=user: log_in(ssh, run, host, user),
            lambda answer: answer.returncode == 255,
            what=f"{host} to refuse {user}, whose job has ended",
            timeout=60,
        )


def log_in(
    ssh: Ssh, run: RunDir, host: str, user: str, command: str = "id -u"
) -> subprocess.CompletedProcess[str]:
    """Return the answer of a host to a user who logs in with the users' key and runs a command."""
    key = run.path / "secrets" / "user_ssh_key"
    # A host says why it refuses a user in a banner, which ssh shows from this level on.
    own = [
        "-o",
        "LogLevel=INFO",
        "-o",
        "ControlPath=none",
        "-o",
        "IdentityAgent=none",
        "-i",
        str(key),
        "-l",
        user,
    ]
    program, *options = ssh.command(host, [command])
    return subprocess.run(
        [program, *own, *options],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=LOGS_IN_WITHIN,
    )


def targets(plan: Plan, host: Host) -> list[str]:
    """Return the clusters to which a login host's users submit: its own, and a federation's."""
    members = [
        federation.clusters
        for federation in plan.scenario.federations.values()
        if host.cluster in federation.clusters
    ]
    return [*dict.fromkeys([host.cluster, *(name for names in members for name in names)])]


def batch_host(cluster: SlurmCluster, plan: Plan, job_id: int) -> str:
    """Return the host of the node on which a job's batch script ran."""
    shown = cluster.run("scontrol", "--oneliner", "show", "job", str(job_id)).stdout
    node = next(word[10:] for word in shown.split() if word.startswith("BatchHost="))
    return plan.hosts_of(cluster.name)[node]
