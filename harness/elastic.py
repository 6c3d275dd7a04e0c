"""Nodes that come and go: the provisioning API beside a run, and whoever starts nodes that Slurm does not."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from harness import options
from harness.errors import CannotJudge, WaitTimeout
from harness.plan import Plan
from harness.render import RenderedFile, Tree
from harness.rundir import RunDir
from harness.slurm import SlurmCluster
from harness.ssh import Ssh
from harness.wait import wait_until

# A program of its own: its libraries take longer to load than all else together.
_MODULE = "harness.provisioning"
# Seconds in which it ends when it is asked to, or killed.
_ENDS_WITHIN = 60


def is_wanted(plan: Plan) -> bool:
    """Tell whether a plan has hosts that the API makes or starts."""
    return any(not host.lasts for host in plan.hosts)


def files_of(tree: Tree, host: str, secret_values: dict[str, str]) -> list[RenderedFile]:
    """Return a host's files with the secrets in them."""
    return [replace(file, text=options.reveal(file.text, secret_values)) for file in tree[host]]


def start(run: RunDir) -> None:
    """Start the API of a run in the background, unless it runs; return when it listens."""
    if list(_processes(run.id)):
        return
    log = run.path / "logs" / "provision.log"
    log.parent.mkdir(exist_ok=True)
    command = ["sh", "-c", '"$@" &', "sh", sys.executable, "-P", "-m", _MODULE, str(run.path), run.id]
    with log.open("a") as output:
        subprocess.run(
            command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True, check=True
        )
    wait_until(
        lambda: (_answers(socket_of(run)), [*_processes(run.id)]),
        lambda seen: seen[0],
        what=f"the provisioning API to listen ({log})",
        timeout=120,
        hopeless=lambda seen: not seen[1],
    )


def stop(run_id: str, *, all_users: bool = False) -> None:
    """End the API of a run, of any user if `all_users`; none there is no error."""
    for number in (signal.SIGTERM, signal.SIGKILL):  # it can be killed at any moment
        for process in _processes(run_id, all_users=all_users):
            with suppress(ProcessLookupError):  # it ended by itself
                os.kill(process, number)
        with suppress(WaitTimeout):
            wait_until(
                lambda: list(_processes(run_id, all_users=all_users)),
                lambda left: not left,
                what="the provisioning API to end",
                timeout=_ENDS_WITHIN,
            )
            return
    raise CannotJudge(f"the provisioning API of {run_id} does not end: {[*_processes(run_id, all_users=all_users)]}")


def _processes(run_id: str, *, all_users: bool = False) -> Iterator[int]:
    """Yield this user's processes that are a run's API; anybody's may have its arguments: see proc_pid_cmdline(5)."""
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
    """Return where the API of a run listens; only its user can open it."""
    return run.control_directory / "api"


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


@contextmanager
def manual_nodes_powered(plan: Plan, clusters: Mapping[str, SlurmCluster], ssh: Ssh) -> Iterator[None]:
    """Start and stop slurmd where slurmctld only writes down that it wants it, as someone outside of Slurm would."""
    ended = threading.Event()

    def obey(cluster: SlurmCluster, nodes: set[str]) -> None:
        done = 0
        while not ended.wait(0.2):
            lines = cluster.run("cat", f"{options.LOG_DIRECTORY}/power.log", check=False).stdout.splitlines()
            for wish in map(json.loads, lines[done:]):
                for node in nodes & {*wish["nodes"]}:
                    ssh.run(node, ["systemctl", "start" if wish["action"] == "resume" else "stop", "slurmd"])
            done = len(lines)

    people = []
    for name, cluster in clusters.items():
        if nodes := {host.name for host in plan.hosts if host.cluster == name and host.provision == "manual"}:
            people.append(threading.Thread(target=obey, args=[cluster, nodes]))
    for person in people:
        person.start()
    try:
        yield
    finally:
        ended.set()
        for person in people:
            person.join()
