"""Slurm runs users' containers itself (`srun --container`), and cleans up after them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from conftest import SMALLEST_ROOT, Jobs, only

from harness import releases, slurm_options
from harness.cluster.slurm import SlurmCluster
from harness.plan import Plan
from harness.ssh import Result, Ssh
from harness.wait import wait_until

pytestmark = [pytest.mark.needs("oci"), pytest.mark.provokes()]


@dataclass(frozen=True)
class Containers:
    """A user with a bundle on a node.

    A hook of the bundle writes the uid that it runs as to `ended_by`.
    """

    cluster: SlurmCluster
    node: str
    user: str
    ways: tuple[str, ...]

    @property
    def directory(self) -> str:
        return f"/home/{self.user}/containers"

    @property
    def bundle(self) -> str:
        return f"{self.directory}/bundle"

    @property
    def ended_by(self) -> str:
        return f"{self.directory}/ended-by"

    def srun(
        self, *command: str, inside: bool = True, stdin: str = "", check: bool = True
    ) -> Result:
        """Run an interactive job inside a container, or outside."""
        container = [f"--container={self.bundle}"] if inside else []
        return self.cluster.run(
            "srun", *self.ways, *container, *command, user=self.user, stdin=stdin, check=check
        )

    def sbatch(self, script: str, output: str = "/dev/null") -> int:
        """Submit a batch job that runs in a container."""
        wanted = (*self.ways, f"--container={self.bundle}", f"--output={output}")
        return self.cluster.submit(f"#!/bin/sh\n{script}\n", *wanted, user=self.user)

    def files(self) -> set[str]:
        """Return the bundle's files with their owners, modes, sizes and times."""
        listing = self.srun(
            "find", self.bundle, "-printf", "%P %u %m %s %t\\n", inside=False
        ).stdout
        return {*listing.splitlines()}


@pytest.fixture(scope="module")
def containers(
    clusters: dict[str, SlurmCluster], plan: Plan, users: list[str], jobs: Jobs
) -> Iterator[Containers]:
    """A bundle on the first node on which Slurm runs containers."""
    parts = plan.scenario.clusters
    name, node = next(
        (name, node)
        for name, part in parts.items()
        if part.oci is not None
        for node in part.static_nodes()
    )
    options = (
        *only(clusters[name], plan),
        *jobs.access_options(clusters[name]),
        f"--nodelist={node}",
    )
    runner = Containers(clusters[name], node, users[0], (*options, "--job-name=interactive"))
    runner.srun("sh", "-c", _BUNDLE, "sh", runner.bundle, runner.ended_by, inside=False)
    yield runner
    runner.srun("rm", "-r", runner.directory, inside=False)


def test_container_has_its_own_root_file_system_and_its_users_permissions(
    containers: Containers, plan: Plan
) -> None:
    seen = containers.srun("sh", "-c", "echo $(id -u) $(cat /where) /etc/*").stdout
    assert seen == f"{plan.scenario.users[containers.user].uid} inside /etc/*\n", (
        f"a container shows {seen}"
    )


def test_streams_and_exit_code_of_a_container_pass_through(
    containers: Containers,
) -> None:
    answer = containers.srun("sh", "-c", "cat; echo no >&2; exit 7", stdin="yes\n", check=False)
    assert (answer.stdout, answer.exit_code) == ("yes\n", 7), answer
    assert "no\n" in answer.stderr
    output = f"{containers.directory}/output"
    batch = containers.sbatch("cat /where; echo no >&2; exit 3", output)
    containers.cluster.wait_for([batch], {"FAILED"})
    assert "ExitCode=3:0" in containers.cluster.run("scontrol", "show", "job", str(batch)).stdout
    assert containers.srun("cat", output, inside=False).stdout == "inside\nno\n"


@pytest.mark.needs("accounting")
def test_accounting_names_the_container_of_each_step(containers: Containers) -> None:
    job = containers.srun("sh", "-c", "echo $SLURM_JOB_ID").stdout.strip()
    batch = containers.sbatch("true")
    containers.cluster.wait_for([batch], {"COMPLETED"})
    sacct = (
        "sacct",
        "--parsable2",
        "--noheader",
        "--format=JobID,Container",
        f"--jobs={job},{batch}",
    )
    # slurmctld sends records in the background.
    wait_until(
        lambda: {*containers.cluster.run(*sacct).stdout.splitlines()},
        lambda seen: (
            seen
            == {
                f"{step}|{containers.bundle}" for step in (job, f"{job}.0", batch, f"{batch}.batch")
            }
        ),
        what=f"accounting to have {containers.bundle} for jobs {job} and {batch}, and their steps",
        timeout=60,
    )


def test_each_task_has_a_container_that_sees_its_cpus_and_gpus(
    containers: Containers, plan: Plan
) -> None:
    part, release = (
        plan.scenario.clusters[containers.cluster.name],
        plan.releases()[containers.cluster.name],
    )
    if not releases.get(release).container_for_each_task:
        able = next(
            known for known in releases.KNOWN if releases.get(known).container_for_each_task
        )
        pytest.skip(
            f"Slurm {release} runs a single task in a container, and hides its resources; "
            f"{able} does not"
        )
    wanted = ["--ntasks=2", *(["--gres=gpu:1"] if containers.node in part.gpus() else [])]
    variables = "^SLURM_(PROCID|NTASKS|CPUS_ON_NODE|JOB_GPUS)=|^CUDA_VISIBLE_DEVICES="
    look = f"echo $(env | grep -E '{variables}' | sort) $(grep Cpus_allowed_list /proc/self/status)"
    inside, outside = (
        sorted(containers.srun(*wanted, "sh", "-c", look, inside=inside).stdout.splitlines())
        for inside in (True, False)
    )
    assert [("SLURM_PROCID=0" in line, "SLURM_PROCID=1" in line) for line in outside] == [
        (True, False),
        (False, True),
    ]
    assert inside == outside


@dataclass(frozen=True)
class Cancelled:
    """The processes and files of a job that ignores SIGTERM.

    `running` has those before it was cancelled, `left` returns those that are left. `ended_by` has
    the uids that ran the hooks of its bundle, at its end and at the end of another job.
    """

    running: str
    left: Callable[[], str]
    ended_by: set[str]


@pytest.fixture(scope="module")
def cancelled(containers: Containers, plan: Plan, ssh: Ssh) -> Cancelled:
    """A job in a container that has to be killed, with a process in a separate session."""
    cluster = containers.cluster
    host = plan.hosts_of(cluster.name)[containers.node]
    spool = slurm_options.get(plan.slurm_conf(cluster.name), "SlurmdSpoolDir") or ""
    look = f"""
        pgrep --uid {containers.user} --list-full --full 'crun|/tmp/slurm/startup|sleep 4321'
        ls -d {slurm_options.CONTAINERS}/{containers.user}/* \\
            {spool.replace("%n", containers.node)}/oci-job* 2> /dev/null
        true
    """

    def traces() -> str:
        return ssh.run(host, ["sh", "-c", look]).stdout

    containers.srun("true")
    job = containers.sbatch("trap '' TERM; setsid sleep 4321 & while :; do sleep 1; done")
    running = wait_until(
        traces,
        lambda seen: "sleep 4321" in seen,
        what=f"job {job} to run in its container",
        timeout=90,
    )
    cluster.run("scancel", str(job), user=containers.user)
    # This includes KillWait, 30 s by default.
    cluster.wait_for([job], {"CANCELLED"}, timeout=120)
    # squeue shows the end of the job before its step has ended.
    wait_until(
        lambda: cluster.run("scontrol", "show", "node", containers.node).stdout,
        lambda seen: "COMPLETING" not in seen,
        what=f"{containers.node} to complete job {job}",
        timeout=60,
    )
    ended_by = containers.srun("cat", containers.ended_by, inside=False, check=False).stdout
    return Cancelled(running, traces, {*ended_by.split()})


def test_nothing_is_left_of_a_container_that_is_cancelled(cancelled: Cancelled) -> None:
    """The end of the container is in the background: slurmstepd deletes it."""
    assert "/oci-job" in cancelled.running
    wait_until(
        cancelled.left, lambda left: not left, what="nothing to be left of the job", timeout=60
    )


def test_hooks_of_a_bundle_run_as_its_user(
    cancelled: Cancelled, containers: Containers, plan: Plan
) -> None:
    """Slurm cleans up as root, but must not run the hooks of a user's bundle as root."""
    assert cancelled.ended_by == {str(plan.scenario.users[containers.user].uid)}


def test_bundle_is_unchanged_after_its_containers(containers: Containers) -> None:
    before = containers.files()
    containers.srun("true")
    containers.cluster.wait_for([containers.sbatch("true")], {"COMPLETED"})
    changed = containers.files() ^ before
    assert not changed, "\n".join(sorted(changed))


# The directories and files are mount points that Slurm needs. Docker masks parts of /proc, so no
# other /proc can be mounted; without a PID namespace, none is needed.
_BUNDLE = f"""set -e; mkdir -p "$1/rootfs"; cd "$1/rootfs"
{SMALLEST_ROOT}
ln -s busybox usr/bin/true; ln -s busybox usr/bin/sort
mkdir -p run/slurm tmp/slurm; touch tmp/slurm/startup tmp/slurm/stdout tmp/slurm/stderr
cat > ../config.json <<END
{{
    "ociVersion": "1.0.0",
    "process": {{"user": {{"uid": $(id -u), "gid": $(id -g)}}, "args": ["sh"], "cwd": "/"}},
    "root": {{"path": "rootfs", "readonly": true}},
    "mounts": [
        {{"destination": "/proc", "type": "none", "source": "/proc", "options": ["rbind"]}},
        {{"destination": "/dev", "type": "none", "source": "/dev", "options": ["rbind"]}}
    ],
    "hooks": {{"poststop": [{{"path": "/bin/sh", "args": ["sh", "-c", "id -u >> $2"]}}]}},
    "linux": {{
        "uidMappings": [{{"containerID": $(id -u), "hostID": $(id -u), "size": 1}}],
        "gidMappings": [{{"containerID": $(id -g), "hostID": $(id -g), "size": 1}}],
        "namespaces": [{{"type": "user"}}, {{"type": "mount"}}]
    }}
}}
END
"""
