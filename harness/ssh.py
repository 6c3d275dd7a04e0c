"""Run commands on hosts over SSH: the one way every host is reached."""

from __future__ import annotations

import logging
import re
import shlex
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from harness import private
from harness.errors import CommandFailed, Unreachable, WaitTimeout
from harness.wait import wait_until

_LOG = logging.getLogger(__name__)
# ssh(1) exits with 255 for its own errors, but a remote command may do so too: tell them apart by the text.
_OWN_ERROR = re.compile(
    r"^(ssh: |kex_|mux_|client_loop|Connection |Permission denied|Host key|Bad owner|.* port \d+: )",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Result:
    """What a command on a host answered."""

    exit_code: int
    stdout: str
    stderr: str


def as_user(user: str, script: str) -> str:
    """Return the line of a shell of root's in which `sh` runs a script as an ordinary user, in that user's home."""
    home = f"/home/{user}"
    environment = ["HOME=" + home, "USER=" + user, "LOGNAME=" + user]
    return shlex.join(["runuser", "-u", user, "--", "env", *environment, "sh", "-c", f"cd {home} && {script}"])


class Ssh:
    """Hosts by their names in an ssh_config; with `sudo`, its users are others than root, who may do all."""

    def __init__(self, config: Path, sockets: Path, *, sudo: bool = False) -> None:
        self.config = config
        self.sudo = sudo
        self._sockets = sockets

    def command(self, host: str, command: Sequence[str] = (), *, tty: bool = False) -> list[str]:
        """Return the local command that runs `command` on a host as root, or opens a shell there.

        CannotJudge if another user could answer in the host's place.
        """
        private.directory(self._sockets)
        if self.sudo:
            # ssh(1) joins the words with blanks, and a shell of the host reads them.
            command = ["sudo", "-n", *(["sh", "-c", shlex.quote(" ".join(command))] if command else ["-i"])]
        return [
            "ssh",
            "-F",
            str(self.config),
            *(["-t"] if tty else []),
            host,
            *(["--", *command] if command else []),
        ]

    def run(
        self,
        host: str,
        command: Sequence[str],
        *,
        user: str | None = None,
        stdin: str = "",
        check: bool = True,
        timeout: float = 60,
    ) -> Result:
        """Run a command on a host, as root or as `user` in that user's home; it gets `timeout` seconds.

        CommandFailed if it fails and `check`; WaitTimeout if its time is up; Unreachable if the host does not answer.
        """
        remote = as_user(user, f"exec {shlex.join(command)}") if user else shlex.join(command)
        local = self.command(host, [remote])
        shown = shlex.join(local)
        _LOG.debug("%s%s$ %s", f"{user}@" if user else "", host, shlex.join(command))
        try:
            done = subprocess.run(
                local,
                input=stdin,
                capture_output=True,
                text=True,
                errors="replace",  # a job's output may be anything
                timeout=timeout,
                check=False,
                start_new_session=True,  # or Ctrl-C in a terminal would end the shared connection too
            )
        except subprocess.TimeoutExpired as error:
            raise WaitTimeout(f"{shown}  (no answer in {timeout:.0f} s)") from error
        if done.returncode == 255 and _OWN_ERROR.search(done.stderr):
            raise Unreachable(f"{shown}  (host does not answer)\n{done.stderr.strip()}")
        if check and done.returncode != 0:
            raise CommandFailed(shown, done.returncode, done.stdout, done.stderr)
        return Result(done.returncode, done.stdout, done.stderr)

    @contextmanager
    def forwarded(self, host: str, target: str) -> Iterator[Path]:
        """Have a socket that leads to HOST:PORT as seen from a host; nobody else on this machine may open it.

        WaitTimeout if there is none in a minute, or ssh ends before.
        """
        options = ["-o", "ControlPath=none", "-o", "ExitOnForwardFailure=yes"]
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "socket"
            command = ["ssh", "-F", str(self.config), *options, "-N", "-L", f"{path}:{target}", host]
            with subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True) as process:
                try:
                    shown = f"the socket of {shlex.join(command)}  (running, socket exists)"
                    wait_until(
                        lambda: (process.poll() is None, path.exists()),
                        all,
                        what=shown,
                        timeout=60,
                        hopeless=lambda seen: not seen[0],
                    )
                    yield path
                finally:
                    process.terminate()

    def save(self, host: str, command: Sequence[str], file: IO[bytes]) -> None:
        """Run a command on a host as root, and write what it prints to a file; CommandFailed if it fails."""
        local = self.command(host, [shlex.join(command)])
        done = subprocess.run(
            local, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.PIPE, check=False, start_new_session=True
        )
        if done.returncode != 0:
            raise CommandFailed(shlex.join(local), done.returncode, "", done.stderr.decode(errors="replace"))

    def feed(self, host: str, command: Sequence[str], chunks: Iterable[bytes]) -> None:
        """Run a command on a host as root and give it, however large, what it reads; CommandFailed if it fails."""
        local = self.command(host, [shlex.join(command)])
        with (
            tempfile.TemporaryFile() as said,
            subprocess.Popen(
                local, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True
            ) as process,
        ):
            with suppress(BrokenPipeError), process.stdin as reader:  # type: ignore[union-attr]
                for chunk in chunks:
                    reader.write(chunk)
            code = process.wait()
            said.seek(0)
            if code != 0:
                raise CommandFailed(shlex.join(local), code, "", said.read().decode(errors="replace"))
