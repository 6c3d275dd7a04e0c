"""The secrets of a run: random values, and the placeholders for them in rendered files.

A placeholder is replaced when its file is copied to a host.
"""

from __future__ import annotations

import re
import secrets as random_secrets
import subprocess
import tempfile
import time
from collections.abc import Mapping, Set
from pathlib import Path

from harness.errors import CannotVerify

_SECRET = re.compile(r"%secret:([\w.-]+)%")
_SSH_KEY = re.compile(r"(\w+_ssh_key)(_pub)?")
_TLS = re.compile(r"tls\.([\w-]+)\.(key|certificate)")
# The key that signs tokens, and root's token.
JWT_KEY, ROOT_TOKEN = "jwt_key", "root_token"
_TOKEN_LIFE = 365 * 24 * 3600  # seconds
# A password in a file of Slurm or MariaDB: what precedes it on its line, and the password.
PASSWORD = re.compile(r"(?im)^(\s*\w*pass\s*=\s*)(?!%secret:)(\S+)")


def secret(name: str) -> str:
    """Return the placeholder of a secret."""
    return f"%secret:{name}%"


def secrets_in(text: str) -> set[str]:
    """Return the names of the secrets that a rendered text needs."""
    return set(_SECRET.findall(text))


def reveal(text: str, secrets: Mapping[str, str]) -> str:
    """Replace placeholders with their secrets."""
    return _SECRET.sub(lambda match: secrets[match.group(1)], text)


def is_secret(text: str) -> bool:
    """Return whether a rendered text is nothing but a secret."""
    return bool(_SECRET.fullmatch(text))


def hide(text: str, secrets: Mapping[str, str]) -> str:
    """Replace secrets in a text with their placeholders."""
    for name, value in secrets.items():
        text = text.replace(value, secret(name))
    return text


def new_secrets(names: Set[str], existing: Mapping[str, str]) -> dict[str, str]:
    """Return random values for secrets, without those that are `existing`.

    NAME_ssh_key is a private key, and NAME_ssh_key_pub its public half; each comes with the other.
    So do tls.HOST.key and tls.HOST.certificate. The key signs root's token, and comes with it.
    """
    names = (names | ({JWT_KEY} if ROOT_TOKEN in names else set())) - existing.keys()
    private_keys = {match[1] for match in map(_SSH_KEY.fullmatch, names) if match}
    ssh_keys = {
        name: value for private in private_keys for name, value in _ssh_key(private).items()
    }
    hosts = {match[1] for match in map(_TLS.fullmatch, names) if match}
    certificates = {name: text for host in hosts for name, text in _certificate(host).items()}
    pairs = ssh_keys | certificates
    # munge needs at least 32 bytes; text is good for passwords, too.
    values = pairs | {name: random_secrets.token_hex(32) for name in sorted(names - pairs.keys())}
    if ROOT_TOKEN in values:
        values[ROOT_TOKEN] = token("root", {**existing, **values}[JWT_KEY], _TOKEN_LIFE)
    return values


def token(user: str, key: str, life: int) -> str:
    """Return a token with which Slurm takes requests as a user's, for `life` seconds from now.

    slurm.schedmd.com/jwt.html describes it.
    """
    import jwt

    now = int(time.time())
    return jwt.encode({"sun": user, "iat": now, "exp": now + life}, key, "HS256")


def tls(host: str, part: str) -> str:
    """Return the name of a host's "key" or "certificate" for TLS."""
    return f"tls.{host}.{part}"


def _certificate(host: str) -> dict[str, str]:
    """Return a new key for TLS, and a certificate for this name that the key itself has signed."""
    with tempfile.TemporaryDirectory() as directory:
        key, certificate = Path(directory) / "key", Path(directory) / "certificate"
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "3650"]
        command += ["-subj", f"/CN={host}", "-addext", f"subjectAltName=DNS:{host}"]
        command += ["-keyout", str(key), "-out", str(certificate)]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            reason = getattr(error, "stderr", "") or str(error)
            raise CannotVerify(
                f"openssl cannot make a certificate: {reason.strip()}", hint="harness doctor"
            ) from error
        return {
            tls(host, "key"): key.read_text(),
            tls(host, "certificate"): certificate.read_text(),
        }


def _ssh_key(name: str) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as directory:
        key = Path(directory) / name
        make_ssh_key(key, name)
        return {name: key.read_text(), f"{name}_pub": key.with_suffix(".pub").read_text().strip()}


def make_ssh_key(path: Path, comment: str) -> None:
    """Write a new private key for SSH to a file, and its public half beside it."""
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
