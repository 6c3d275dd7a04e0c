"""Credentials of auth/slurm: every host accepts those of every other, and no others."""

from __future__ import annotations

import base64
import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jwt
import pytest
from conftest import ENDED_BY_ITS_OWN_SIGNAL, Jobs, everywhere, listening, reconfigure

from harness import slurm_options
from harness.cluster import slurm
from harness.cluster.slurm import SlurmCluster
from harness.errors import CommandFailed
from harness.plan import Host, Plan
from harness.rundir import RunDir
from harness.ssh import Ssh
from harness.wait import wait_until

pytestmark = pytest.mark.needs("users", "auth_slurm")

ANYONE = 2**32 - 1  # SLURM_AUTH_UID_ANY
# Asks a host's Slurm daemon to sign a credential, or to verify those on standard input: sack_api.h,
# sack_create() and sack_verify() in Slurm's sack_api.c. Prints the credential, or a line with 0 for
# each that is accepted.
ASK = """
import os, socket, struct, sys
def ask(request, body):
    for daemon in ("slurm", "slurmctld", "slurmdbd"):
        path = f"/run/{daemon}/sack.socket"
        if os.path.exists(path):
            break
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(path)
        except OSError as error:
            mode = os.stat(path).st_mode & 0o777 if os.path.exists(path) else 0
            sys.exit(f"cannot connect to {path} (mode {mode:o}): {error.strerror}")
        message = struct.pack("!I", request) + body
        # The header: any version, and the length, which counts itself.
        connection.sendall(struct.pack("!HI", 0, len(message) + 4) + message)
        with connection.makefile("rb") as answer:
            return answer.read()
if sys.argv[1] == "sign":
    print(ask(64001, struct.pack("!II", int(sys.argv[2]), 0))[4:].rstrip(b"\\0").decode())
else:
    for line in sys.stdin:
        text = line.strip().encode() + b"\\0"
        answer = ask(64002, struct.pack("!I", len(text)) + text)
        print(struct.unpack("!i", answer)[0] if answer else "no answer")
"""


def signing(plan: Plan) -> list[Host]:
    """Return the hosts on which a daemon signs credentials."""
    return [
        host
        for host in plan.permanent_hosts()
        if host.nodes or {"slurmctld", "slurmdbd", "sackd"} & {*host.daemons}
    ]


def signed(ssh: Ssh, host: str, user: str, reader: int = ANYONE) -> str:
    """Return a user's credential that only the user `reader` can verify."""
    # Not in the user's home, which a user with a wrong uid cannot read.
    as_user = ["runuser", "-u", user, "--"]
    ask = [*as_user, "python3", "-c", ASK, "sign", str(reader)]
    answer = ssh.run(host, ask, check=False)
    problem = answer.stderr.strip().rpartition("\n")[2]
    assert answer.exit_code == 0, f"{host} issues {user} no credential: {problem}"
    return answer.stdout.strip()


def verified(ssh: Ssh, host: str, credentials: list[str], user: str | None = None) -> list[bool]:
    """Return which credentials a host accepts."""
    lines = "".join(f"{credential}\n" for credential in credentials)
    answer = ssh.run(host, ["python3", "-c", ASK, "verify"], user=user, stdin=lines)
    return [line == "0" for line in answer.stdout.splitlines()]


def claims_of(credential: str) -> dict[str, Any]:
    """Return what a credential says, without verification."""
    return jwt.decode(credential, options={"verify_signature": False})


def test_slurm_credential_of_every_host_is_accepted_on_every_other_with_the_same_uid(
    ssh: Ssh, plan: Plan
) -> None:
    names = [host.name for host in signing(plan)]
    user, facts = next(iter(plan.scenario.users.items()))
    credentials = everywhere(lambda name: signed(ssh, name, user), names)
    for name, credential in credentials.items():
        uid = claims_of(credential)["uid"]
        assert uid == facts.uid, f"{name} issues {user} a credential for uid {uid}"
    accepted = everywhere(lambda name: verified(ssh, name, [*credentials.values()]), names)
    for name, answers in accepted.items():
        refused = [of for of, good in zip(names, answers, strict=True) if not good]
        assert not refused, f"{name} refuses a credential of {', '.join(refused)}"


@pytest.mark.provokes("decode_jwt", "verify_internal", r"sack\.socket.*on_data returned rc")
def test_slurm_credential_that_is_foreign_forged_or_expired_is_refused(
    ssh: Ssh, plan: Plan, run: RunDir
) -> None:
    """The first credential is made in the same way and is good, so only its fault matters."""
    host, user = signing(plan)[-1].name, next(iter(plan.scenario.users))
    genuine = signed(ssh, host, user)
    # On a busy machine, verification may come much later.
    now, claims = int(time.time()), claims_of(genuine)
    claims |= {"iat": now, "exp": now + 600}
    key = run.secrets()["slurm_key"]
    good = jwt.encode(claims, key, "HS256")
    spoiled = {
        "made with another key": jwt.encode(claims, key[::-1], "HS256"),
        "expired a minute ago": jwt.encode(claims | {"exp": now - 60}, key, "HS256"),
        "without a signature": jwt.encode(claims, None, "none"),
        "with root's uid in place of the user's": with_claims(good, claims | {"uid": 0}),
        "with a changed expiry time": with_claims(good, claims | {"exp": now + 9999}),
        "for root only": jwt.encode(claims | {"ruid": 0}, key, "HS256"),
    }

    def look(name: str) -> list[bool]:
        return verified(ssh, name, [good, *spoiled.values()], user=user)

    for name, (is_good, *others) in everywhere(look, [host.name for host in signing(plan)]).items():
        assert is_good, f"{name} refuses a good credential"
        accepted = [what for what, taken in zip(spoiled, others, strict=True) if taken]
        assert not accepted, f"{name} accepts a credential {', '.join(accepted)}"


def with_claims(credential: str, claims: dict[str, Any]) -> str:
    """Return a credential with other claims, but the old signature."""
    header, _, signature = credential.split(".")
    text = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"{header}.{text}.{signature}"


@pytest.fixture
def give_keys(
    ssh: Ssh, plan: Plan, clusters: dict[str, SlurmCluster]
) -> Iterator[Callable[[Mapping[str, str]], None]]:
    """Return a function that gives all hosts keys, by their names, and lets daemons read them.

    Daemons sign with the first, and accept all. Afterwards, all have the run's only key again.
    """
    names = [host.name for host in signing(plan)]
    path = slurm_options.AUTH_KEYS
    new = f"{path}.new"
    write = f"""umask 077; cat > {new} &&
        chown --reference={slurm_options.AUTH_KEY} {new} && mv {new} {path}"""

    def systemctl(verb: str, daemon: str) -> None:
        hosts = [host.name for host in plan.with_daemon(daemon) if host.name in names]
        everywhere(lambda name: ssh.run(name, ["systemctl", verb, daemon]), hosts)

    def restart_slurmdbd() -> None:
        systemctl("restart", "slurmdbd")
        if accounting := plan.scenario.accounting:
            port = slurm_options.slurmdbd_conf(plan.scenario)["DbdPort"]
            wait_until(
                lambda: listening(ssh, accounting.host, port),
                bool,
                what=f"slurmdbd to listen on port {port} of {accounting.host}",
                timeout=90,
            )

    def give(keys: Mapping[str, str]) -> None:
        listed = [
            {
                "alg": "HS256",
                "kty": "oct",
                "kid": name,
                "k": base64.b64encode(key.encode()).decode(),
            }
            for name, key in keys.items()
        ]
        text = json.dumps({"keys": listed})
        everywhere(lambda name: ssh.run(name, ["sh", "-c", write], stdin=text), names)
        # These read keys only when they start; slurmctld and slurmd also when reconfigured.
        restart_slurmdbd()
        systemctl("restart", "sackd")
        for cluster in clusters.values():
            reconfigure(cluster)

    yield give
    everywhere(lambda name: ssh.run(name, ["rm", "-f", path]), names)
    # It would log that slurmdbd refuses its credentials.
    systemctl("stop", "slurmctld")
    restart_slurmdbd()
    for daemon in ("slurmctld", "slurmd", "sackd"):
        systemctl("restart", daemon)
    slurm.wait_until_ready(plan, clusters)


@contextmanager
def a_running_job(ssh: Ssh, plan: Plan, cluster: SlurmCluster, jobs: Jobs) -> Iterator[None]:
    """Run a job meanwhile; it must end in success afterwards."""
    end = f"/run/{secrets.token_hex(4)}.end"
    job_id = jobs.submit_here(cluster, f"until [ -e {end} ]; do sleep 0.2; done")
    cluster.wait_for([job_id], {"RUNNING"})
    nodes = [host.name for host in plan.permanent_hosts() if host.nodes]
    yield
    try:
        everywhere(lambda name: ssh.run(name, ["touch", end]), nodes)
        cluster.wait_for([job_id], {"COMPLETED"})
    finally:
        everywhere(lambda name: ssh.run(name, ["rm", "-f", end]), nodes)


@pytest.mark.needs("several_keys")
@pytest.mark.provokes  # daemons are restarted, and have different keys for a moment
@pytest.mark.provokes(ENDED_BY_ITS_OWN_SIGNAL)
def test_slurm_key_is_rotated_while_a_job_runs_and_then_the_old_key_is_refused(
    ssh: Ssh,
    plan: Plan,
    run: RunDir,
    clusters: dict[str, SlurmCluster],
    jobs: Jobs,
    give_keys: Callable[[Mapping[str, str]], None],
) -> None:
    """All hosts get the new key, then sign with it, and then lose the old one."""
    cluster, user = next(iter(clusters.values())), jobs.user
    keys = {"old": run.secrets()["slurm_key"], "new": secrets.token_hex(64)}
    names = [host.name for host in signing(plan)]
    claims = claims_of(signed(ssh, names[0], user))
    now = int(time.time())
    claims |= {"iat": now, "exp": now + 3600}
    credentials = [
        jwt.encode(claims, key, "HS256", headers={"kid": name}) for name, key in keys.items()
    ]

    def look(name: str) -> str:
        by = jwt.get_unverified_header(signed(ssh, name, user)).get("kid", "old")
        accepted = verified(ssh, name, credentials)
        accepts = [of for of, good in zip(keys, accepted, strict=True) if good]
        return f"signs with {by}, accepts {' '.join(accepts)}"

    def wait_until_used(given: tuple[str, ...]) -> None:
        accepted = " ".join(of for of in keys if of in given)
        wanted = f"signs with {given[0]}, accepts {accepted}"
        wait_until(
            lambda: everywhere(look, names),
            lambda seen: {*seen.values()} == {wanted},
            what=f"each host to sign with {given[0]} and accept {accepted}",
            timeout=180,
            # While a daemon is replaced, nobody answers at its socket, or with nothing.
            ignore=(AssertionError, CommandFailed, jwt.DecodeError),
            show=lambda seen: ", ".join(
                f"{name} {does}" for name, does in seen.items() if does != wanted
            ),
        )

    with a_running_job(ssh, plan, cluster, jobs):
        for given in (("old", "new"), ("new", "old"), ("new",)):
            give_keys({name: keys[name] for name in given})
            wait_until_used(given)
            slurm.wait_until_ready(plan, clusters)
            cluster.wait_for([jobs.submit_here(cluster, "true")], {"COMPLETED"})
