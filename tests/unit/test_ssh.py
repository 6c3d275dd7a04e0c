"""Commands run over a connection that is shared; the test shares it in ssh(1)'s place."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest

from harness.errors import Unreachable, WaitTimeout
from harness.ssh import Result, Ssh

Answer = Callable[[socket.socket, str, list[int]], None]
# OpenSSH's PROTOCOL.mux.
HELLO, EXIT, FAILURE, OPENED = 0x1, 0x80000004, 0x80000003, 0x80000006
SESSION = 7


def send(connection: socket.socket, *words: int) -> None:
    connection.sendall(struct.pack(f">{len(words) + 1}I", 4 * len(words), *words))


def receive(connection: socket.socket) -> bytes:
    (size,) = struct.unpack(">I", connection.recv(4))
    return connection.recv(size)


def runs(connection: socket.socket, command: str, streams: list[int]) -> None:
    send(connection, OPENED, 0, SESSION)
    stdin, stdout, stderr = streams
    done = subprocess.run(
        ["sh", "-c", command], stdin=stdin, stdout=stdout, stderr=stderr, check=False
    )
    send(connection, EXIT, SESSION, done.returncode)


def is_lost(connection: socket.socket, command: str, streams: list[int]) -> None:
    send(connection, OPENED, 0, SESSION)


@contextmanager
def shared(tmp_path: Path, answer: Answer) -> Iterator[Ssh]:
    """Yield an Ssh with a shared connection to `node`, whose address refuses any other."""
    config, path = tmp_path / "config", tmp_path / "socket"
    config.write_text(
        f"BatchMode yes\nControlPath {path}\nHost node\n    HostName 127.0.0.1\n    Port 9\n"
    )

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            send(connection, HELLO, 4)
            assert struct.unpack(">II", receive(connection)) == (HELLO, 4)
            # Nine numbers and the command's length come before the command.
            command = receive(connection)[4 * 10 :].decode()
            streams = [socket.recv_fds(connection, 1, 1)[1][0] for _ in range(3)]
            answer(connection, command, streams)
            for stream in streams:
                os.close(stream)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        thread = Thread(target=serve)
        thread.start()
        yield Ssh(config, tmp_path / "sockets")
        thread.join()


def test_command_has_its_input_output_and_exit_code(tmp_path: Path) -> None:
    with shared(tmp_path, runs) as ssh:
        result = ssh.run(
            "node", ["sh", "-c", "cat; echo 'a  b' >&2; exit 3"], stdin="text", check=False
        )
    assert result == Result(3, "text", "a  b\n")


def test_command_that_a_lost_connection_ends_has_the_exit_code_of_ssh(tmp_path: Path) -> None:
    with shared(tmp_path, is_lost) as ssh:
        assert ssh.run("node", ["true"], check=False) == Result(255, "", "")


def test_command_that_does_not_end_is_given_up(tmp_path: Path) -> None:
    given_up = Event()

    def hangs(connection: socket.socket, command: str, streams: list[int]) -> None:
        send(connection, OPENED, 0, SESSION)
        os.write(streams[1], b"so far")
        assert connection.recv(1) == b""
        given_up.set()

    with shared(tmp_path, hangs) as ssh, pytest.raises(WaitTimeout, match="timed out") as caught:
        ssh.run("node", ["sleep", "60"], timeout=5)
    assert caught.value.printed == "so far"
    assert given_up.is_set()


def test_ssh_connects_where_no_session_can_be_opened(tmp_path: Path) -> None:
    def refuses(connection: socket.socket, command: str, streams: list[int]) -> None:
        (tmp_path / "socket").unlink()
        send(connection, FAILURE, 0, 0)

    with shared(tmp_path, refuses) as ssh, pytest.raises(Unreachable, match="Connection refused"):
        ssh.run("node", ["true"])
    with pytest.raises(Unreachable, match="Connection refused"):
        ssh.run("node", ["true"])


def test_connection_of_a_host_with_another_address_is_another(tmp_path: Path) -> None:
    machines = tmp_path / "machines"
    machines.mkdir()
    host = machines / "node"
    (tmp_path / "config").write_text(f"Include {machines}/*\nControlPath {tmp_path}/%C\n")
    ssh = Ssh(tmp_path / "config", tmp_path, machines)
    paths: list[Path | None] = []
    for port in (22, 2222, 22):
        host.write_text(f"Host node\n    HostName 127.0.0.1\n    Port {port}\n")
        os.utime(host, ns=(port, len(paths)))
        paths.append(ssh._shared_connection("node"))
    assert paths[0] == paths[2] != paths[1]
