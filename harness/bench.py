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

from harness import deploy, lifecycle, options, slurm
from harness.lifecycle import Live, Say
from harness.plan import Host
from harness.providers import Provider
from harness.render import RenderedFile


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
