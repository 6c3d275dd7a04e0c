"""Credentials of auth/slurm: every host accepts those of every other, and no others."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

import jwt
import pytest
from conftest import everywhere

from harness.plan import Host, Plan
from harness.rundir import RunDir
from harness.ssh import Ssh

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
        "with another time in place of its own": with_claims(good, claims | {"exp": now + 9999}),
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
