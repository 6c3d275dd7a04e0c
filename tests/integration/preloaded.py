"""Run pytest in forks of a process that has already imported the harness.

The sabotages verify a run hundreds of times. Most of the CPU time of such a `harness verify` would
be spent on imports.

    python preloaded.py serve SOCKET         # forks for each request
    python preloaded.py run SOCKET [OPTION...]   # like `python -m pytest OPTION...`
"""

from __future__ import annotations

import json
import os
import socket
import sys

_MOST = 2**20


def serve(path: str) -> None:
    """Run pytest for each request, at the same time if necessary, until standard input ends."""
    import select
    import signal

    import pytest

    import harness.cluster.diagnosis
    import harness.verify.selection  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        print("ready", flush=True)
        while sys.stdin not in select.select([server, sys.stdin], [], [])[0]:
            connection, _ = server.accept()
            if os.fork():
                connection.close()
                continue
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            request, streams, *_ = socket.recv_fds(connection, _MOST, 2)
            options, environment = json.loads(request)
            for number, stream in enumerate((os.open(os.devnull, os.O_RDONLY), *streams)):
                os.dup2(stream, number)
            os.environ.clear()
            os.environ.update(environment)
            code = pytest.main(options)
            sys.stdout.flush()
            connection.sendall(bytes([code]))
            os._exit(0)


def run(path: str, *options: str) -> int:
    """Have the server run pytest with this process's output and environment; return its code."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        request = json.dumps([options, dict(os.environ)]).encode()
        socket.send_fds(connection, [request], [1, 2])
        (code,) = connection.recv(1) or b"\x03"  # it was killed: an internal error
        return code


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        sys.exit(run(*sys.argv[2:]))
