"""Benchmarks: ratios measured side by side, because seconds alone say little on a shared machine."""

from __future__ import annotations

import io
import statistics
import subprocess
import tarfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from harness import deploy, elastic, lifecycle, options, slurm
from harness.errors import UsageError
from harness.history import Recorder
from harness.live import Live, Say
from harness.plan import Host
from harness.providers import Provider
from harness.render import RenderedFile
from harness.slurm import SlurmCluster
from harness.wait import wait_until

# Seconds after which nodes that did not come or go are given up.
_PATIENCE = 180


def first_run(scenario_path: Path, provider: Provider, runs: Path, say: Say, *, repeat: int = 3) -> dict[str, Any]:
    """Compare up, deploy and ready with the floor: the same hosts, files and daemons, but started by a plain script.

    Both run in turn, `repeat` times each. Returns the seconds of every stage, the ratio of each pair, their median,
    and how many tasks Ansible ran on hosts.
    """
    rounds = []
    tasks = 0
    for number in range(1, repeat + 1):
        say(f"round {number} of {repeat}: harness")
        live = lifecycle.create(scenario_path, provider, runs, say)
        with lifecycle.provisioned(live):
            lifecycle.deploy(live)
            tasks = deploy.count_tasks(live.run)
        say(f"round {number} of {repeat}: floor")
        floor = lifecycle.create(scenario_path, provider, runs, say)
        with lifecycle.provisioned(floor):
            _deploy_plainly(floor)
        rounds.append({"harness": _seconds(live), "floor": _seconds(floor)})
    ratios = [round(sum(one["harness"].values()) / sum(one["floor"].values()), 2) for one in rounds]
    return {
        "benchmark": "first-run",
        "scenario": live.plan.name,
        "hosts": len(live.plan.hosts),
        "ansible_tasks": tasks,
        "rounds": rounds,
        "ratios": ratios,
        "ratio": statistics.median(ratios),
    }


def elastic_nodes(
    scenario_path: Path,
    provider: Provider,
    runs: Path,
    say: Say,
    *,
    choices: Sequence[str] = (),
    repeat: int = 5,
    count: int = 1,
) -> dict[str, Any]:
    """Time jobs that bring their nodes, beside the floor: the same hosts started by hand, with a plain slurmd.

    Each round submits a job on `count` nodes and waits until all are at rest again; then the floor starts these nodes'
    hosts without asking Slurm. Returns of every round the seconds from submission until all nodes are up, the job runs,
    has ended, and all nodes are powered down; and of the floor those until every slurmd has registered.
    """
    live = lifecycle.create(scenario_path, provider, runs, say, choices)
    name = next((name for name, part in live.plan.scenario.clusters.items() if part.elastic()), None)
    nodes = [host for host in live.plan.hosts if name and host.cluster == name and host.provision != "static"][-count:]
    if len(nodes) < count:
        raise UsageError(f"{scenario_path} has {len(nodes)} nodes that come and go", hint="take fewer --nodes")
    with lifecycle.provisioned(live):
        lifecycle.deploy(live)
        clusters = slurm.clusters(live.ssh, live.plan)
        rounds = []
        with elastic.manual_nodes_powered(live.plan, clusters, live.ssh):
            for number in range(1, repeat + 1):
                say(f"round {number} of {repeat}")
                rounds.append(_round(live, clusters[nodes[0].cluster or ""], nodes))
    worst = {step: max(one[step] for one in rounds) for step in rounds[0]}
    return {
        "benchmark": "elastic",
        "scenario": live.plan.name,
        "release": nodes[0].release,
        "provision": nodes[0].provision,
        "nodes": count,
        "rounds": rounds,
        "median": {step: round(statistics.median(one[step] for one in rounds), 2) for step in rounds[0]},
        "worst": worst,
    }


def _round(live: Live, cluster: SlurmCluster, hosts: Sequence[Host]) -> dict[str, float]:
    names = [host.name for host in hosts]
    user = next(iter(live.plan.scenario.users), "root")
    with Recorder(cluster, live.run, interval=0.02) as recorder:
        began = time.time()
        options_ = ("--output=/dev/null", f"--nodes={len(hosts)}", f"--nodelist={','.join(names)}")
        job_id = cluster.submit("#!/bin/sh\nsleep 2\n", *options_, user=user)
        cluster.wait_for([job_id], {"COMPLETED"}, timeout=_PATIENCE)
        _wait_until_powered_down(cluster, names)

    def first(name: str | int, fits: Callable[[str], bool]) -> float:
        return next(one.at for one in recorder.of(name, began) if fits(one.state)) - began

    seconds = {
        "up": max(first(name, lambda state: "POWER" not in state) for name in names),
        "running": first(job_id, lambda state: state == "RUNNING"),
        "ended": first(job_id, lambda state: state == "COMPLETED"),
        "powered_down": max(recorder.of(name)[-1].at for name in names) - began,
        "floor": _floor(live, cluster, hosts),
    }
    return {step: round(value, 2) for step, value in seconds.items()}


def _floor(live: Live, cluster: SlurmCluster, hosts: Sequence[Host]) -> float:
    """Start hosts, or slurmd where the host lasts, and return how long it takes until slurmctld knows each slurmd."""
    names = [host.name for host in hosts]
    secrets = live.run.secrets()

    def start(host: Host) -> None:
        if host.lasts:
            live.ssh.run(host.name, ["systemctl", "start", "slurmd"])
            return
        if host.provision == "create":
            files = {host.name: elastic.files_of(live.tree, host.name, secrets)}
            live.provider.make(live.run, live.plan, [host], files)
        live.provider.start(live.run.id, host.name)

    began = time.time()
    _everywhere(hosts, start)
    wait_until(
        lambda: {node.name: node.slurmd_start or 0 for node in cluster.nodes()},
        lambda registered: all(registered[name] >= int(began) for name in names),
        what=f"{', '.join(names)} registered",
        timeout=_PATIENCE,
        interval=0.02,
    )
    seconds = time.time() - began
    cluster.run("scontrol", "update", f"NodeName={','.join(names)}", "State=POWER_DOWN_FORCE")
    _wait_until_powered_down(cluster, names)
    return seconds


def _wait_until_powered_down(cluster: SlurmCluster, names: Sequence[str]) -> None:
    wait_until(
        lambda: {node.name: node.state for node in cluster.nodes() if node.name in names},
        lambda states: all(map(slurm.powered_down, states.values())),
        what=f"{', '.join(names)} powered down",
        timeout=_PATIENCE,
    )


def _seconds(live: Live) -> dict[str, float]:
    counted = ("up", "deploy", "ready")
    return {event["name"]: event["seconds"] for event in live.run.events() if event.get("name") in counted}


def _deploy_plainly(live: Live) -> None:
    """Do what roles/site.yml does with tar and systemctl over SSH: as little as can be done, each host by itself."""
    plan, secrets = live.plan, live.run.secrets()
    with lifecycle.stage(live, "deploy"):
        _everywhere(plan.hosts, lambda host: _unpack(live, host, secrets))
        for host in plan.with_daemon("slurmdbd"):
            _start(live, host, "mariadb", "slurmdbd")
        if client := plan.accounting_client():
            live.ssh.run(client.name, ["slurm-accounting-objects"], timeout=120)
        for host in plan.with_daemon("slurmctld"):  # not side by side: see roles/slurmctld
            _start(live, host, "slurmctld")
        _everywhere(plan.with_daemon("slurmd"), lambda host: _start(live, host, "slurmd"))
    with lifecycle.stage(live, "ready"):
        slurm.wait_until_ready(plan, slurm.clusters(live.ssh, plan))


def _start(live: Live, host: Host, *daemons: str) -> None:
    live.ssh.run(host.name, ["systemctl", "enable", "--now", *daemons])


def _unpack(live: Live, host: Host, secrets: dict[str, str]) -> None:
    script = (
        "tar --extract --directory=/ && systemd-sysusers && systemd-tmpfiles --create /etc/tmpfiles.d/*.conf"
        " && systemctl enable --now munge"
    )
    payload = _tar(live.tree[host.name], secrets)
    subprocess.run(live.ssh.command(host.name, [script]), input=payload, capture_output=True, check=True)


def _tar(files: Sequence[RenderedFile], secrets: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for file in files:
            content = options.reveal(file.text, secrets).encode()
            entry = tarfile.TarInfo(file.path.lstrip("/"))
            entry.size, entry.mode, entry.mtime = len(content), int(file.mode, 8), int(time.time())
            entry.uname, entry.gname = file.owner, file.group
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def _everywhere(hosts: Sequence[Host], do: Callable[[Host], object]) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(do, hosts))
