"""Elastic nodes: the process of the provisioning API, and nodes that Slurm does not start."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from harness import run_secrets, slurm_options
from harness.cluster.slurm import SlurmCluster
from harness.errors import CannotVerify, Unreachable, WaitTimeout
from harness.plan import Plan
from harness.render import RenderedFile, Tree
from harness.rundir import RunDir
from harness.ssh import Ssh
from harness.wait import wait_until

# A separate program, because its libraries take longer to load than everything else.
_MODULE = "harness.elastic.provisioning_api"
# Seconds that it may take to end after a signal.
_ENDS_WITHIN = 60


def is_wanted(plan: Plan) -> bool:
    """Return whether a plan has hosts that the API creates or starts."""
    return any(not host.is_permanent for host in plan.hosts)


def files_of(tree: Tree, host: str, secret_values: dict[str, str]) -> list[RenderedFile]:
    """Return a host's files with their secrets filled in."""
    return [replace(file, text=run_secrets.reveal(file.text, secret_values)) for file in tree[host]]


def start(run: RunDir) -> None:
    """Start the API of a run in the background, if it is not running; return when it listens."""
    if list(_processes(run.id)):
        return
    log = run.path / "logs" / "provision.log"
    log.parent.mkdir(exist_ok=True)
    command = [
        "sh",
        "-c",
        '"$@" &',
        "sh",
        sys.executable,
        "-P",
        "-m",
        _MODULE,
        str(run.path),
        run.id,
    ]
    with log.open("a") as output:
        subprocess.run(
            command,
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            check=True,
        )
    wait_until(
        lambda: (_answers(socket_of(run)), [*_processes(run.id)]),
        lambda seen: seen[0],
        what=f"the provisioning API to listen ({log})",
        timeout=120,
        give_up=lambda seen: not seen[1],
    )


def stop(run_id: str, *, all_users: bool = False) -> None:
    """End the API of a run, if there is one; with `all_users`, that of any user."""
    for signal_number in (signal.SIGTERM, signal.SIGKILL):  # it can be killed at any moment
        for process in _processes(run_id, all_users=all_users):
            with suppress(ProcessLookupError):  # it ended by itself
                os.kill(process, signal_number)
        with suppress(WaitTimeout):
            wait_until(
                lambda: list(_processes(run_id, all_users=all_users)),
                lambda left: not left,
                what="the provisioning API to end",
                timeout=_ENDS_WITHIN,
            )
            return
    left = ", ".join(map(str, _processes(run_id, all_users=all_users)))
    raise CannotVerify(
        f"cannot stop the provisioning API of {run_id}; still running as process {left}"
    )


def _processes(run_id: str, *, all_users: bool = False) -> Iterator[int]:
    """Yield the processes of a run's API; other users' may fake the name: proc_pid_cmdline(5)."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if not all_users and path.stat().st_uid != os.geteuid():
                continue
            words = path.read_text(errors="replace").split("\0")
        except OSError:
            continue
        if _MODULE in words and run_id in words:
            yield int(path.parent.name)


def socket_of(run: RunDir) -> Path:
    """Return the socket of a run's API, which only its user can open."""
    return run.control_directory / "api"


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


@contextmanager
def manual_nodes_powered(
    plan: Plan, clusters: Mapping[str, SlurmCluster], ssh: Ssh
) -> Iterator[None]:
    """Start and stop slurmd when slurmctld logs that it is needed, as an external service would."""
    ended = threading.Event()

    def follow_log(cluster: SlurmCluster, nodes: set[str]) -> None:
        handled = 0
        while not ended.wait(0.2):
            with suppress(Unreachable, WaitTimeout):  # handled once the host answers again
                text = cluster.run("cat", slurm_options.POWER_LOG, check=False).stdout
                lines = text.split("\n")[:-1]  # the last line may be incomplete
                if len(lines) < handled:  # the log was truncated
                    handled = 0
                last_request = {
                    node: request["action"]
                    for request in map(json.loads, lines[handled:])
                    for node in nodes & {*request["nodes"]}
                }
                for node, action in last_request.items():
                    verb = "start" if action == "resume" else "stop"
                    # A node that does not start must not keep others waiting.
                    ssh.run(node, ["systemctl", "--no-block", verb, "slurmd"], check=False)
                handled = len(lines)

    threads = []
    for name, cluster in clusters.items():
        if nodes := {
            host.name for host in plan.hosts if host.cluster == name and host.provision == "manual"
        }:
            threads.append(threading.Thread(target=follow_log, args=[cluster, nodes]))
    with running(threads, ended):
        yield


@contextmanager
def running(threads: Sequence[threading.Thread], ended: threading.Event) -> Iterator[None]:
    """Start threads; on leaving, set `ended`, which must make them end, and wait for them."""
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()
