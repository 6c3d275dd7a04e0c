"""Users come from the directory (LDAP) through sssd; jobs run while the directory is down."""

from __future__ import annotations

import shlex
from uuid import uuid4

import pytest
from conftest import Jobs, everywhere, listening, problems_on

from harness import faults
from harness.cluster.slurm import SlurmCluster
from harness.faults import Fault
from harness.open_run import OpenRun
from harness.plan import LDAPS_PORT, Plan
from harness.render import LDAP_CERTIFICATE
from harness.ssh import Ssh

pytestmark = pytest.mark.needs("directory")

# Connects to the directory, and prints what is wrong if there is no TLS, or another certificate.
HANDSHAKE = """
import socket, ssl, sys
host, port, certificate = sys.argv[1:]
try:
    trusted = ssl.create_default_context(cafile=certificate)
    with socket.create_connection((host, int(port)), timeout=10) as plain:
        trusted.wrap_socket(plain, server_hostname=host).close()
except OSError as error:
    print(error)
"""


def test_users_and_groups_come_from_the_directory_only(ssh: Ssh, plan: Plan) -> None:
    """No host has them in its own files, and sssd has them on every host."""
    users, groups = plan.scenario.users, plan.scenario.groups
    wanted = {
        **{f"passwd {user}": str(facts.uid) for user, facts in users.items()},
        **{f"group {user}": str(facts.uid) for user, facts in users.items()},
        **{f"group {group}": str(facts.gid) for group, facts in groups.items()},
    }
    script = "".join(
        f"for from in files sss; do echo {shlex.quote(what)} $from"
        f" $(getent -s $from {shlex.join(what.split())} | cut -d: -f3); done\n"
        for what in wanted
    )

    def look(name: str) -> list[str]:
        wrong = []
        for line in ssh.run(name, ["sh", "-c", script]).stdout.splitlines():
            kind, entry, source, *found = line.split()
            right = [wanted[f"{kind} {entry}"]] if source == "sss" else []
            if found != right:
                where = "sssd" if source == "sss" else "the host's own files"
                seen, should = (" ".join(ids) or "none" for ids in (found, right))
                wrong.append(f"{name}: id of {kind} {entry} in {where}: {seen}, should be {should}")
        return wrong

    problems = problems_on([host.name for host in plan.permanent_hosts()], look)
    assert not problems, "\n".join(problems)


def test_directory_answers_over_tls_only_with_the_certificate_that_hosts_trust(
    ssh: Ssh, plan: Plan
) -> None:
    assert plan.scenario.directory
    host = plan.scenario.directory.host
    command = ["python3", "-c", HANDSHAKE, host, LDAPS_PORT, LDAP_CERTIFICATE]
    names = [found.name for found in plan.permanent_hosts()]
    seen = everywhere(lambda name: ssh.run(name, command).stdout.strip(), names)
    wrong = [f"{name} cannot ask {host} over TLS: {error}" for name, error in seen.items() if error]
    wrong += [f"{host} answers at {at}, without TLS" for at in sorted(listening(ssh, host, 389))]
    assert not wrong, "\n".join(wrong)


def test_jobs_of_known_users_run_while_the_directory_is_down(
    harness_run: OpenRun,
    ssh: Ssh,
    plan: Plan,
    clusters: dict[str, SlurmCluster],
    jobs: Jobs,
) -> None:
    """Jobs of users whom all hosts have seen run; a user whom nobody has seen is unknown."""
    directory = plan.scenario.directory
    assert directory
    user, *_ = plan.scenario.users
    names = [host.name for host in plan.permanent_hosts()]

    def ignorant(who: str) -> list[str]:
        codes = everywhere(lambda name: ssh.run(name, ["id", who], check=False).exit_code, names)
        return [name for name, code in codes.items() if code]

    unknown = ignorant(user)
    assert not unknown, f"{', '.join(unknown)}: no user {user}, although slapd runs"
    with faults.injected(harness_run, Fault("stop-daemon", directory.host, "slapd")):
        # Nobody can have seen this user; asking also makes every sssd notice that slapd is down.
        stranger = f"u{uuid4().hex[:8]}"
        knowing = {*names} - {*ignorant(stranger)}
        assert not knowing, f"{', '.join(knowing)}: there is a user {stranger}"
        unknown = ignorant(user)
        assert not unknown, f"{', '.join(unknown)}: no user {user} any more, since slapd stopped"
        for cluster in clusters.values():
            job = jobs.submit_here(cluster, f'test "$(id -un)" = {user}', user=user)
            cluster.wait_for([job], {"COMPLETED"})
