"""Run commands on hosts over SSH, the only way in which the harness reaches hosts."""

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

from harness import file_ownership, ssh_multiplexing
from harness.errors import (
    NO_EXIT_CODE,
    CannotVerify,
    CommandFailed,
    Unreachable,
    WaitTimeout,
    command_message,
)
from harness.wait import wait_until

_LOG = logging.getLogger(__name__)
# A remote command may exit with NO_EXIT_CODE, too: the text tells ssh's own errors apart.
_OWN_ERROR = re.compile(
    r"^(ssh: |kex_|mux_|client_loop|Connection |Permission denied|Host key|Bad owner"
    r"|.* port \d+: )",
    re.MULTILINE,
)
# Limit on a command's output in bytes, because all of it is in memory. `scontrol show node` for
# 20,000 nodes prints a tenth of this.
_MOST_OUTPUT = 256 * 2**20
# Bytes of a command's standard error that are kept.
_MOST_ERRORS = 2**16
_CHUNK = 2**16
# Lines of a command that a log shows.
_MOST_LINES = 10


@dataclass(frozen=True, slots=True)
class Result:
    """The exit code and output of a command on a host."""

    exit_code: int
    stdout: str
    stderr: str


def as_user(user: str, script: str) -> str:
    """Return the command line with which root runs a script as a user, in that user's home."""
    home = f"/home/{user}"
    environment = ["HOME=" + home, "USER=" + user, "LOGNAME=" + user]
    return shlex.join(
        ["runuser", "-u", user, "--", "env", *environment, "sh", "-c", f"cd {home} && {script}"]
    )


def _cut(word: str) -> str:
    r"""Return a word of a command as a log shows it: without the end if it is a long program.

    >>> _cut("program\n" * 30)
    'program ...'
    """
    first, *more = word.splitlines() or [""]
    return f"{first} ..." if len(more) > _MOST_LINES else word


class Ssh:
    """The hosts of an ssh_config, by name.

    With `sudo`, the login users are not root, but can run anything with sudo. The configuration of
    a host that comes and goes is a file of its name in `more`.
    """

    def __init__(
        self, config: Path, sockets: Path, more: Path | None = None, *, sudo: bool = False
    ) -> None:
        self.config = config
        self.sudo = sudo
        self._sockets = sockets
        self._more = more
        self._shared: dict[tuple[object, ...], Path | None] = {}

    def command(self, host: str, command: Sequence[str] = (), *, tty: bool = False) -> list[str]:
        """Return the local command that runs `command` on a host as root, or opens a shell there.

        Raises CannotVerify if another user could answer in the host's place.
        """
        file_ownership.directory(self._sockets)
        if self.sudo:
            # ssh(1) joins the words with spaces, and a shell on the host parses them.
            command = [
                "sudo",
                "-n",
                *(["sh", "-c", shlex.quote(" ".join(command))] if command else ["-i"]),
            ]
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
        timeout: float = 120,
    ) -> Result:
        """Run a command on a host, as root or as `user` in that user's home.

        With `check`, raises CommandFailed if it fails. Raises WaitTimeout after `timeout` seconds,
        Unreachable if the host does not answer, and CannotVerify if the command prints more than
        256 MiB.
        """
        remote = as_user(user, f"exec {shlex.join(command)}") if user else shlex.join(command)
        local = self.command(host, [remote])
        shown = shlex.join(local)
        _LOG.debug("%s%s$ %s", f"{user}@" if user else "", host, shlex.join(map(_cut, command)))
        try:
            result = self._answer(host, local, stdin, timeout)
        except subprocess.TimeoutExpired as error:
            printed = (error.output or b"").decode(errors="replace")
            raise _timed_out(host, command, shown, timeout, printed) from error
        if result.exit_code == NO_EXIT_CODE and _OWN_ERROR.search(result.stderr):
            raise Unreachable(command_message(f"{host} does not answer", shown, result.stderr))
        if check and result.exit_code != 0:
            raise CommandFailed(host, shown, result.exit_code, result.stdout, result.stderr)
        return result

    def _answer(self, host: str, local: Sequence[str], stdin: str, timeout: float) -> Result:
        """Run the command that `local` runs on a host and return its result.

        Raises TimeoutExpired, or CannotVerify if it prints too much.
        """
        deadline = time.monotonic() + timeout
        with tempfile.TemporaryFile() as file:
            file.write(stdin.encode())
            file.seek(0)
            with self._started(host, local, file, timeout) as running:
                texts = _read_both(running, local, deadline)
                code = running.wait(max(0, deadline - time.monotonic()))
        # A job can print any bytes.
        stdout, stderr = (
            text.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")
            for text in texts
        )
        return Result(code, stdout, stderr)

    @contextmanager
    def _started(
        self, host: str, local: Sequence[str], stdin: IO[bytes], timeout: float
    ) -> Iterator[ssh_multiplexing.Session | subprocess.Popen[bytes]]:
        """Yield the command that `local` runs on a host, over the connection that ssh(1) shares.

        If there is none, yield `local` itself, which shares its connection.
        """
        if path := self._shared_connection(host):
            command = " ".join(local[local.index("--") + 1 :])
            with ssh_multiplexing.session(path, command, stdin, timeout) as session:
                if session:
                    yield session
                    return
        with subprocess.Popen(
            local,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Otherwise Ctrl-C in a terminal would also end the shared connection.
            start_new_session=True,
        ) as process:
            try:
                yield process
            except BaseException:
                process.kill()
                raise

    def _shared_connection(self, host: str) -> Path | None:
        """Return the socket of the connection to a host that ssh(1) shares, or would share.

        Its name depends on the host's address, which changes with the configuration.
        """
        files = [self.config, *([self._more / host] if self._more else [])]
        key = (host, *map(_version, files))
        if key not in self._shared:
            shown = subprocess.run(
                ["ssh", "-F", str(self.config), "-G", host],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
            ).stdout
            found = re.search(r"^controlpath (/.+)$", shown, re.MULTILINE)
            self._shared[key] = Path(found[1]) if found else None
        return self._shared[key]

    @contextmanager
    def forwarded(self, host: str, target: str) -> Iterator[Path]:
        """Yield a socket that forwards to HOST:PORT as seen from a host.

        Only this user can open it. Raises WaitTimeout if it does not exist within a minute, or if
        ssh ends before that.
        """
        options = ["-o", "ControlPath=none", "-o", "ExitOnForwardFailure=yes"]
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "socket"
            command = [
                "ssh",
                "-F",
                str(self.config),
                *options,
                "-N",
                "-L",
                f"{path}:{target}",
                host,
            ]
            with subprocess.Popen(
                command, stdin=subprocess.DEVNULL, start_new_session=True
            ) as process:
                try:
                    shown = f"the socket of {shlex.join(command)}  (running, socket exists)"
                    wait_until(
                        lambda: (process.poll() is None, path.exists()),
                        all,
                        what=shown,
                        timeout=60,
                        give_up=lambda seen: not seen[0],
                    )
                    yield path
                finally:
                    process.terminate()

    @contextmanager
    def printed(
        self, host: str, command: Sequence[str], timeout: float | None = None
    ) -> Iterator[IO[bytes]]:
        """Run a command on a host as root and yield its output, however large: read it to its end.

        An exception in this context ends the command. Raises CommandFailed if it fails,
        and WaitTimeout if it has not ended after `timeout` seconds.
        """
        local = self.command(host, [shlex.join(command)])
        shown = shlex.join(local)
        late = Event()
        with _running(local, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as (process, errors):

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
                    raise _timed_out(host, command, shown, timeout or 0) from error
                raise
            finally:
                timer.cancel()
        if late.is_set():
            raise _timed_out(host, command, shown, timeout or 0)
        if code != 0:
            raise CommandFailed(host, shown, code, "", errors.decode(errors="replace"))

    def feed(self, host: str, command: Sequence[str], chunks: Iterable[bytes]) -> None:
        """Run a command on a host as root and write chunks to its standard input.

        Raises CommandFailed if it fails.
        """
        local = self.command(host, [shlex.join(command)])
        with _running(local, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as (process, errors):
            with suppress(BrokenPipeError), io.BufferedWriter(process.stdin) as reader:  # type: ignore[type-var]
                for chunk in chunks:
                    reader.write(chunk)
            code = process.wait()
        if code != 0:
            raise CommandFailed(host, shlex.join(local), code, "", errors.decode(errors="replace"))


@contextmanager
def _running(
    command: Sequence[str], stdin: int, stdout: int
) -> Iterator[tuple[subprocess.Popen[bytes], bytearray]]:
    """Yield a running command, and a buffer for the beginning of its standard error.

    The buffer is complete when the command has ended.
    """
    errors = bytearray()
    with subprocess.Popen(
        command,
        stdin=stdin,
        stdout=stdout,
        stderr=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,
    ) as process:

        def listen() -> None:
            while chunk := process.stderr.read(_CHUNK):  # type: ignore[union-attr]
                errors.extend(chunk[: _MOST_ERRORS - len(errors)])

        listener = Thread(target=listen, daemon=True)
        listener.start()
        try:
            yield process, errors
        except BaseException:
            process.kill()
            raise
        listener.join()


def _timed_out(
    host: str, command: Sequence[str], shown: str, timeout: float, printed: str = ""
) -> WaitTimeout:
    """Return the error of a command, which may set variables with env(1), that has not ended."""
    program = next((word for word in command if word != "env" and "=" not in word), command[0])
    outcome = f"{host}: {program} timed out after {timeout:.0f} s"
    return WaitTimeout(command_message(outcome, shown, printed), printed=printed)


def _version(file: Path) -> tuple[int, int] | None:
    """Return what changes when a file does."""
    try:
        facts = file.stat()
    except FileNotFoundError:
        return None
    return facts.st_mtime_ns, facts.st_size


def _read_both(
    running: ssh_multiplexing.Session | subprocess.Popen[bytes],
    local: Sequence[str],
    deadline: float,
) -> tuple[bytearray, bytearray]:
    """Return what the command that `local` runs prints on both streams until they end.

    Raises the errors of `Ssh._answer`.
    """
    texts = bytearray(), bytearray()
    with selectors.DefaultSelector() as selector:
        for stream, text in zip((running.stdout, running.stderr), texts, strict=True):
            selector.register(stream, selectors.EVENT_READ, text)  # type: ignore[arg-type]
        while selector.get_map():
            for key, _ in selector.select(max(0, deadline - time.monotonic())):
                chunk = os.read(key.fd, _CHUNK)
                key.data.extend(chunk)
                if not chunk:
                    selector.unregister(key.fileobj)
            if max(map(len, texts)) > _MOST_OUTPUT:
                line = shlex.join(local)
                raise CannotVerify(f"{line}  (prints more than {_MOST_OUTPUT >> 20} MiB)")
            if time.monotonic() > deadline and selector.get_map():
                raise subprocess.TimeoutExpired(local, 0, bytes(texts[0]))
    return texts
