"""All hosts share /home: users find there what their jobs wrote, and nobody else can read it."""

from __future__ import annotations

from collections import Counter
from uuid import uuid4

import pytest
from conftest import Jobs, everywhere, only

from harness.cluster.slurm import SlurmCluster
from harness.plan import HOMES, Plan
from harness.ssh import Ssh

pytestmark = pytest.mark.needs("shared_homes")


def test_home_is_the_same_file_system_on_all_hosts(ssh: Ssh, plan: Plan) -> None:
    """Each host writes a file, and must see those of all others."""
    names = [host.name for host in plan.permanent_hosts()]
    mark = f"{HOMES}/.slurm-harness-{uuid4().hex}-"

    def look(name: str) -> tuple[str, frozenset[str]]:
        script = f"stat --file-system --format=%T {HOMES}; ls {mark}*"
        kind, *files = ssh.run(name, ["sh", "-c", script]).stdout.splitlines()
        return kind, frozenset(file.removeprefix(mark) for file in files)

    try:
        everywhere(lambda name: ssh.run(name, ["touch", mark + name]), names)
        seen = everywhere(look, names)
    finally:
        everywhere(lambda name: ssh.run(name, ["rm", "-f", mark + name]), names)
    ((shared, _),) = Counter(hosts for _, hosts in seen.values()).most_common(1)
    wrong = [
        f"{name}: {HOMES} is a separate {kind}, without the files of {', '.join(sorted(missing))}"
        for name, (kind, hosts) in seen.items()
        if (missing := shared - hosts)
    ]
    assert not wrong, "\n".join(wrong)
    assert shared == {*names}, f"only {', '.join(sorted(shared))} share {HOMES}"


def test_homes_belong_to_their_users_and_nobody_else_can_read_them(ssh: Ssh, plan: Plan) -> None:
    """On each host, each user tries to list another's home."""
    users = [*plan.scenario.users]
    homes = {user: f"{HOMES}/{user}" for user in users}
    wanted = {f"{HOMES} belongs to root, mode 755"}
    wanted |= {f"{home} belongs to {user}, mode 700" for user, home in homes.items()}
    script = [f"stat --format='%n belongs to %U, mode %a' {HOMES} {' '.join(homes.values())}"]
    script += [
        f"runuser -u {reader} -- ls {homes[user]} > /dev/null && echo {reader} reads {homes[user]}"
        for user, reader in zip(users, [*users[1:], *users[:1]], strict=True)
        if user != reader
    ]

    def look(name: str) -> list[str]:
        answer = ssh.run(name, ["sh", "-c", "; ".join(script)], check=False)
        seen = {*answer.stdout.splitlines()}
        return [f"{name}: {line}" for line in sorted(seen - wanted)] + [
            f"{name}: should be: {line}" for line in sorted(wanted - seen)
        ]

    seen = everywhere(look, [host.name for host in plan.permanent_hosts()])
    wrong = [line for lines in seen.values() for line in lines]
    assert not wrong, "\n".join(wrong)


def test_output_of_a_job_is_in_its_users_home_on_every_host(
    ssh: Ssh, plan: Plan, jobs: Jobs, clusters: dict[str, SlurmCluster]
) -> None:
    """Submits from a login host, or from the controller of a cluster without one."""
    output = "slurm-harness-home-%j.out"
    submitted = []
    for name, cluster in clusters.items():
        login = [host.name for host in plan.login_hosts() if host.cluster == name]
        host = [*login, cluster.controller][0]
        options = [*cluster.marked(), *only(cluster, plan), *jobs.access_options(cluster)]
        command = ["sbatch", "--parsable", *options, f"--output={output}"]
        script = "#!/bin/sh\necho written by $SLURM_JOB_ID\n"
        answer = ssh.run(host, command, user=jobs.user, stdin=script)
        submitted.append((cluster, host, int(answer.stdout.split(";")[0])))
    for cluster, host, job_id in submitted:
        cluster.wait_for([job_id], {"COMPLETED"})
        file = output.replace("%j", str(job_id))
        wanted = f"written by {job_id}\nbelongs to {jobs.user}\n"

        def look(name: str, file: str = file) -> str:
            script = f"cat {file} && stat --format='belongs to %U' {file}"
            answer = ssh.run(name, ["sh", "-c", script], user=jobs.user, check=False)
            return answer.stdout or answer.stderr

        seen = everywhere(look, [host.name for host in plan.permanent_hosts()])
        ssh.run(host, ["rm", "-f", file], user=jobs.user)
        wrong = [
            f"{name}: the output of job {job_id} in {jobs.user}'s home: {text!r}, not {wanted!r}"
            for name, text in seen.items()
            if text != wanted
        ]
        assert not wrong, "\n".join(wrong)
