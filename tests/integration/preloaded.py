"""Run pytest and the harness in forks of a process that has already imported both.

The tests run the harness hundreds of times, and the sabotages its checks. Most of the CPU time of a
short command would be spent on imports.

    python preloaded.py serve SOCKET                      # forks for each request
    python preloaded.py run SOCKET pytest [OPTION...]     # like `python -m pytest OPTION...`
    python preloaded.py run SOCKET harness [ARGUMENT...]  # like `python -m harness ARGUMENT...`
"""

from __future__ import annotations

import json
import os
import socket
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess

_MOST = 2**20


def server(path: str) -> subprocess.Popen[bytes]:
    """Return a process that serves; it ends when its input is closed, or this process is gone."""
    import subprocess

    process = subprocess.Popen(
        [sys.executable, "-P", __file__, "serve", path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout
    assert process.stdout.readline() == b"ready\n"
    return process


def serve(path: str) -> None:
    """Run a module for each request, at the same time if necessary, until standard input ends."""
    import gc
    import select
    import signal

    import ansible_runner  # noqa: F401
    import jwt  # noqa: F401
    import pytest  # noqa: F401

    import harness.cli
    import harness.cluster.diagnosis
    import harness.elastic.node_failures
    import harness.lifecycle
    import harness.providers.docker.containers
    import harness.rehearsal.execution
    import harness.testing
    import harness.verify.selection  # noqa: F401

    _render_once()
    # The forks need not look for garbage among all of this.
    gc.freeze()
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
            (module, *arguments), directory, environment = json.loads(request)
            for number, stream in enumerate((os.open(os.devnull, os.O_RDONLY), *streams)):
                os.dup2(stream, number)
            # What the old ones know of their files, such as whether these can seek, may be wrong.
            sys.stdout, sys.stderr = (
                open(number, "w", errors=errors, buffering=1)  # noqa: PTH123, SIM115
                for number, errors in ((1, "strict"), (2, "backslashreplace"))
            )
            os.chdir(directory)
            os.environ.clear()
            os.environ.update(environment)
            code = _run(module, arguments, path)
            sys.stdout.flush()
            sys.stderr.flush()
            connection.sendall(bytes([code]))
            os._exit(0)


def _render_once() -> None:
    """Compile the templates, and read the files of releases."""
    from harness import scenario
    from harness.capabilities import OWN_MACHINES
    from harness.plan import make_plan
    from harness.render import render
    from harness.shipped_files import SCENARIOS

    render(make_plan("preloaded", scenario.load(SCENARIOS / "federation.yml"), OWN_MACHINES))


def _run(module: str, arguments: list[str], path: str) -> int:
    """Run a module in this process, and return its exit code."""
    if module == "pytest":
        import pytest

        return pytest.main(arguments)
    from harness import __main__
    from harness.verify import pytest_run

    pytest_run._PYTEST = program(path, "pytest")
    sys.argv = [module, *arguments]
    try:
        __main__.main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def program(path: str, module: str) -> tuple[str, ...]:
    """Return the command that has the server run a module."""
    return (sys.executable, "-PSE", __file__, "run", path, module)


def run(path: str, *arguments: str) -> int:
    """Have the server run a module with this process's output and environment; return its code."""
    # Importing pathlib would take this short process a quarter longer.
    directory = os.getcwd()  # noqa: PTH109
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        request = json.dumps([arguments, directory, dict(os.environ)]).encode()
        socket.send_fds(connection, [request], [1, 2])
        (code,) = connection.recv(1) or b"\x03"  # it was killed: an internal error
        return code


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        sys.exit(run(*sys.argv[2:]))
