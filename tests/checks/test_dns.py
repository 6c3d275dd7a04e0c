"""Hosts have one another's names from the DNS server of their site; a short outage costs no job."""

from __future__ import annotations

import secrets
import shlex
from functools import partial

import pytest
from conftest import Jobs, everywhere, problems_on

from harness import faults
from harness.cluster.slurm import FINISHED, JobKey, SlurmCluster, job_key
from harness.faults import Fault
from harness.open_run import OpenRun
from harness.plan import Plan
from harness.ssh import Ssh
from harness.wait import wait_until

pytestmark = pytest.mark.needs("dns_servers")


def test_names_come_from_the_dns_server_only(ssh: Ssh, plan: Plan) -> None:
    """Each host asks the DNS server of its site, which knows all hosts."""
    names = [host.name for host in plan.hosts]
    script = (
        "echo servers $(sed -n 's/^nameserver //p' /etc/resolv.conf);"
        f" for name in {shlex.join(names)}; do for from in files dns; do"
        " getent -s $from hosts $name > /dev/null && echo $from $name; done; done; true"
    )

    def look(name: str) -> list[str]:
        server = plan.host(name).dns_server
        addresses = ssh.run(str(server), ["hostname", "-I"]).stdout.split()
        first, *lines = ssh.run(name, ["sh", "-c", script]).stdout.splitlines()
        known = {(source, host) for source, host in map(str.split, lines)}
        asked = first.split()[1:]
        return [
            *(
                f"{name} asks the name server {at}, not {server}"
                for at in asked
                if at not in addresses
            ),
            *(
                f"{name} has {host} in /etc/hosts"
                for host in names
                if host != name and ("files", host) in known
            ),
            *(f"{server} does not resolve {host}" for host in names if ("dns", host) not in known),
        ]

    clients = [host.name for host in plan.permanent_hosts() if host.dns_server]
    problems = dict.fromkeys(problems_on(clients, look))
    assert not problems, "\n".join(problems)


@pytest.mark.provokes
def test_jobs_outlive_an_outage_of_dns(
    harness_run: OpenRun,
    ssh: Ssh,
    plan: Plan,
    clusters: dict[str, SlurmCluster],
    jobs: Jobs,
) -> None:
    """Jobs that run, begin or end while a site has no DNS complete; other sites notice nothing."""
    for server in sorted({host.dns_server for host in plan.hosts if host.dns_server}):
        nodes = [host for host in plan.permanent_hosts() if host.dns_server == server if host.nodes]
        here = {str(host.cluster) for host in nodes}
        hosts = [host.name for host in nodes]
        _wait_for_early_jobs(clusters, here, jobs)
        nap = f"sleep 600.{secrets.randbelow(10**6):06}"
        held = {name: jobs.submit_here(clusters[name], "true", "--hold") for name in here}
        running = {name: jobs.submit_here(clusters[name], f"{nap} || true") for name in here}
        for name, job in running.items():
            clusters[name].wait_for([job], {"RUNNING"})
        with faults.injected(harness_run, Fault("stop-daemon", server, "dnsmasq")):
            for name, job in held.items():
                clusters[name].run("scontrol", "release", str(job))
                clusters[name].wait_for([job], {"RUNNING", "COMPLETED"})
            for name in clusters.keys() - here:
                job = jobs.submit_here(clusters[name], "srun --ntasks=1 true")
                clusters[name].wait_for([job], {"COMPLETED"})
            end = ["pkill", "-fx", nap]
            ended = (*running.values(), *held.values())
            # "[j]" keeps the pattern from matching the command that has it.
            scripts = "|".join(f"[j]ob{job:05}/slurm_script" for job in ended)
            wait_until(
                partial(_running, ssh, hosts, scripts, end),
                lambda left: not left,
                what=f"jobs to end while {server} is stopped",
                timeout=180,
            )
        for name in here:
            clusters[name].wait_for([running[name], held[name]], {"COMPLETED"})
            count = len(clusters[name].nodes())
            job = jobs.submit_here(clusters[name], "srun true", f"--nodes={count}")
            clusters[name].wait_for([job], {"COMPLETED"})


def _wait_for_early_jobs(clusters: dict[str, SlurmCluster], here: set[str], jobs: Jobs) -> None:
    """Wait until the jobs on these clusters that started before the first check have ended.

    One that reached its time limit during the outage could not tell slurmctld that it has ended,
    and slurmd would drain its node after UnkillableStepTimeout ("Kill task failed").
    """
    early = set[JobKey]().union(*jobs.early.values())

    def active() -> list[str]:
        return [
            f"{job.job_id} {job.state}"
            for name in here
            for job in clusters[name].jobs("--local")
            if job_key(name, job.job_id) in early and job.state not in {"PENDING", *FINISHED}
        ]

    wait_until(active, lambda left: not left, what="the early jobs to end", timeout=300)


def _running(ssh: Ssh, hosts: list[str], scripts: str, end: list[str]) -> list[str]:
    """Return the hosts on which scripts of jobs run, after a command that ends them.

    A job that slurmctld calls RUNNING may not have come to what is to end.
    """
    look = ["sh", "-c", f"{shlex.join(end)}; pgrep -f {shlex.quote(scripts)}"]
    codes = everywhere(lambda name: ssh.run(name, look, check=False).exit_code, hosts)
    return [name for name, code in codes.items() if code == 0]
