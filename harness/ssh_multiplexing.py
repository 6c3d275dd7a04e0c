"""Run commands over a connection that ssh(1) shares, without starting ssh(1) for each of them.

OpenSSH's PROTOCOL.mux describes the messages; `mux_client_request_session()` in its mux.c sends
them.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from harness.errors import NO_EXIT_CODE

_HELLO, _NEW_SESSION, _EXIT_MESSAGE, _SESSION_OPENED = 0x1, 0x10000002, 0x80000004, 0x80000006
_VERSION = 4
_NO_ESCAPE_CHARACTER = 0xFFFFFFFF
_LEAST_TIMEOUT = 0.001  # 0 would mean not to wait at all


class Session:
    """A command that runs on a host; `stdout`, `stderr` and `wait` are like those of Popen."""

    def __init__(
        self, command: str, stdout: IO[bytes], stderr: IO[bytes], control: socket.socket
    ) -> None:
        self._command = command
        self.stdout = stdout
        self.stderr = stderr
        self._control = control

    def wait(self, timeout: float) -> int:
        """Return the exit code when the command has ended, or raise TimeoutExpired."""
        code = NO_EXIT_CODE
        self._control.settimeout(max(timeout, _LEAST_TIMEOUT))
        try:
            while message := _receive(self._control):
                if _kind(message) == _EXIT_MESSAGE:
                    *_, code = struct.unpack(">III", message)
        except TimeoutError:
            raise subprocess.TimeoutExpired(self._command, timeout) from None
        return code


@contextmanager
def session(path: Path, command: str, stdin: IO[bytes], timeout: float) -> Iterator[Session | None]:
    """Yield a command that runs over the connection shared at `path`, or None if none can.

    ssh(1) ends the command when this context is left. Raises TimeoutExpired if ssh(1) does not
    start it in time.
    """
    with ExitStack() as stack:
        control = stack.enter_context(socket.socket(socket.AF_UNIX))
        control.settimeout(max(timeout, _LEAST_TIMEOUT))
        (stdout, to_stdout), (stderr, to_stderr) = (
            [
                stack.enter_context(os.fdopen(end, mode, 0))
                for end, mode in zip(os.pipe(), ("rb", "wb"), strict=True)
            ]
            for _ in range(2)
        )
        try:
            control.connect(os.fspath(path))
            opened = _opened(control, command, (stdin, to_stdout, to_stderr))
        except TimeoutError:
            raise subprocess.TimeoutExpired(command, timeout) from None
        except OSError:  # ssh(1) has ended
            opened = False
        to_stdout.close()
        to_stderr.close()
        yield Session(command, stdout, stderr, control) if opened else None


def _opened(control: socket.socket, command: str, streams: tuple[IO[bytes], ...]) -> bool:
    """Ask for a session; return whether it has been opened."""
    terminal, x11, agent, subsystem = 0, 0, 0, 0
    request = struct.pack(">III", _NEW_SESSION, 0, 0) + struct.pack(
        ">6I", terminal, x11, agent, subsystem, _NO_ESCAPE_CHARACTER, 0
    )
    _send(control, struct.pack(">II", _HELLO, _VERSION))
    _send(control, request + _text(command.encode()))
    for stream in streams:
        socket.send_fds(control, [b"\0"], [stream.fileno()])
    while message := _receive(control):
        if _kind(message) != _HELLO:
            return _kind(message) == _SESSION_OPENED
    return False


def _kind(message: bytes) -> int:
    return int.from_bytes(message[:4])


def _text(text: bytes) -> bytes:
    return struct.pack(">I", len(text)) + text


def _send(control: socket.socket, message: bytes) -> None:
    control.sendall(_text(message))


def _receive(control: socket.socket) -> bytes:
    """Return the next message, or b"" at the end."""
    size = _read(control, 4)
    return _read(control, *struct.unpack(">I", size)) if size else b""


def _read(control: socket.socket, size: int) -> bytes:
    """Return exactly `size` bytes, or b"" if the connection ends before that."""
    text = b""
    with suppress(ConnectionError):
        while len(text) < size:
            if not (chunk := control.recv(size - len(text))):
                return b""
            text += chunk
        return text
    return b""
