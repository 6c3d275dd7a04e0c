"""Run commands on hosts over SSH: the one way every host is reached."""

from __future__ import annotations

import io
import logging
import os
import re
import selectors
import shlex
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread, Timer
from typing import IO

from harness import private
from harness.errors import CannotJudge, CommandFailed, Unreachable, WaitTimeout
from harness.wait import wait_until

_LOG = logging.getLogger(__name__)
# ssh(1) exits with 255 for its own errors, but a remote command may do so too: tell them apart by the text.
_OWN_ERROR = re.compile(
    r"^(ssh: |kex_|mux_|client_loop|Connection |Permission denied|Host key|Bad owner|.* port \d+: )",
    re.MULTILINE,
)
# The most that a host's answer may have, in bytes: it is in memory as a whole. `scontrol show node` of 20,000 nodes has
# a tenth of this.
_MOST_OUTPUT = 256 * 2**20
# The most that is kept of what a command says of itself.
_MOST_SAID = 2**16
_CHUNK = 2**16


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

        CommandFailed if it fails and `check`; WaitTimeout if its time is up; Unreachable if the host does not answer;
        CannotJudge if it prints more than 256 MiB.
        """
        remote = as_user(user, f"exec {shlex.join(command)}") if user else shlex.join(command)
        local = self.command(host, [remote])
        shown = shlex.join(local)
        _LOG.debug("%s%s$ %s", f"{user}@" if user else "", host, shlex.join(command))
        try:
            done = _answer(local, stdin, timeout)
        except subprocess.TimeoutExpired as error:
            raise WaitTimeout(f"{shown}  (no answer in {timeout:.0f} s)") from error
        if done.exit_code == 255 and _OWN_ERROR.search(done.stderr):
            raise Unreachable(f"{shown}  (host does not answer)\n{done.stderr.strip()}")
        if check and done.exit_code != 0:
            raise CommandFailed(shown, done.exit_code, done.stdout, done.stderr)
        return done

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

    @contextmanager
    def printed(self, host: str, command: Sequence[str], timeout: float | None = None) -> Iterator[IO[bytes]]:
        """Run a command on a host as root and have, however large, what it prints: read it to its end.

        It ends with an exception that is raised meanwhile. CommandFailed if it fails; WaitTimeout if it has not ended
        after `timeout` seconds.
        """
        local = self.command(host, [shlex.join(command)])
        late = Event()
        with _running(local, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as (process, said):

            def expire() -> None:
                late.set()
                process.kill()

            timer = Timer(timeout or 0, expire)
            if timeout:
                timer.start()
            try:
                yield process.stdout  # type: ignore[misc]
                code = process.wait()
            except BaseException as error:
                if late.is_set():
                    raise WaitTimeout(f"{shlex.join(local)}  (not done in {timeout:.0f} s)") from error
                raise
            finally:
                timer.cancel()
        if late.is_set():
            raise WaitTimeout(f"{shlex.join(local)}  (not done in {timeout:.0f} s)")
        if code != 0:
            raise CommandFailed(shlex.join(local), code, "", said.decode(errors="replace"))

    def feed(self, host: str, command: Sequence[str], chunks: Iterable[bytes]) -> None:
        """Run a command on a host as root and give it, however large, what it reads; CommandFailed if it fails."""
        local = self.command(host, [shlex.join(command)])
        with _running(local, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as (process, said):
            with suppress(BrokenPipeError), io.BufferedWriter(process.stdin) as reader:  # type: ignore[type-var]
                for chunk in chunks:
                    reader.write(chunk)
            code = process.wait()
        if code != 0:
            raise CommandFailed(shlex.join(local), code, "", said.decode(errors="replace"))


@contextmanager
def _running(command: Sequence[str], stdin: int, stdout: int) -> Iterator[tuple[subprocess.Popen[bytes], bytearray]]:
    """Have a command that runs, with the beginning of what it says on standard error when it has ended."""
    said = bytearray()
    with subprocess.Popen(
        command, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE, bufsize=0, start_new_session=True
    ) as process:

        def listen() -> None:
            while chunk := process.stderr.read(_CHUNK):  # type: ignore[union-attr]
                said.extend(chunk[: _MOST_SAID - len(said)])

        listener = Thread(target=listen, daemon=True)
        listener.start()
        try:
            yield process, said
        except BaseException:
            process.kill()
            raise
        listener.join()


def _answer(command: Sequence[str], stdin: str, timeout: float) -> Result:
    """Run a command here and return what it answers; TimeoutExpired, or CannotJudge if that is too much."""
    deadline = time.monotonic() + timeout
    with tempfile.TemporaryFile() as given:
        given.write(stdin.encode())
        given.seek(0)
        with subprocess.Popen(
            command,
            stdin=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # or Ctrl-C in a terminal would end the shared connection too
        ) as process:
            try:
                texts = _read_both(process, deadline)
                code = process.wait(max(0, deadline - time.monotonic()))
            except BaseException:
                process.kill()
                raise
    # A job's output may be anything.
    stdout, stderr = (text.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n") for text in texts)
    return Result(code, stdout, stderr)


def _read_both(process: subprocess.Popen[bytes], deadline: float) -> tuple[bytearray, bytearray]:
    """Return what a process prints on both its streams until they end; TimeoutExpired, or CannotJudge, as above."""
    texts = bytearray(), bytearray()
    with selectors.DefaultSelector() as selector:
        for stream, text in zip((process.stdout, process.stderr), texts, strict=True):
            selector.register(stream, selectors.EVENT_READ, text)  # type: ignore[arg-type]
        while selector.get_map():
            for key, _ in selector.select(max(0, deadline - time.monotonic())):
                chunk = os.read(key.fd, _CHUNK)
                key.data.extend(chunk)
                if not chunk:
                    selector.unregister(key.fileobj)
            if max(map(len, texts)) > _MOST_OUTPUT:
                raise CannotJudge(f"{shlex.join(process.args)}  (prints more than {_MOST_OUTPUT >> 20} MiB)")  # type: ignore[arg-type]
            if time.monotonic() > deadline and selector.get_map():
                raise subprocess.TimeoutExpired(process.args, 0)
    return texts
