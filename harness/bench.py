"""Benchmarks: ratios measured side by side, because seconds alone say little on a shared machine."""

from __future__ import annotations

import io
import re
import statistics
import subprocess
import tarfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import ceil
from pathlib import Path
from typing import Any

from harness import deploy, elastic, hostlist, lifecycle, options, scenario, slurm
from harness.errors import UsageError
from harness.history import Recorder
from harness.live import Live, Say
from harness.plan import Host
from harness.providers import Provider
from harness.render import RenderedFile, template
from harness.slurm import SlurmCluster
from harness.wait import wait_until

# Seconds after which nodes that did not come or go are given up.
_PATIENCE = 180
# What is drawn of each number of nodes, in panels of so many pixels.
_PLOTTED = {
    "registered": "seconds until all have registered",
    "slurmd": "MiB of a slurmd",
    "slurmctld": "MiB of slurmctld",
}
_WIDTH, _HEIGHT = 200, 120
_SHORT = "#!/bin/sh\n"
_NOWHERE = ("--output=/dev/null",)
_BY_HAND = """\
for i in $(seq {count}); do echo '#!/bin/sh' | sbatch --parsable --output=/dev/null || exit; done > /dev/null
while [ "$(squeue --noheader --user="$USER" | wc -l)" -gt 0 ]; do sleep 1; done
"""


def first_run(scenario_path: Path, provider: Provider, runs: Path, say: Say, *, repeat: int = 3) -> dict[str, Any]:
    """Compare up, deploy and ready with the floor: the same hosts, files and daemons, but started by a plain script.

    Both run in turn, `repeat` times each; after the harness's own deploy comes a second one, which has nothing to do.
    Returns the seconds of every stage; the ratio of each pair, and their median; the median ratio of a second deploy
    to the first; and how many tasks Ansible ran on hosts.
    """
    rounds = []
    again = []
    tasks = 0
    for number in range(1, repeat + 1):
        say(f"round {number} of {repeat}: harness")
        live = lifecycle.create(scenario_path, provider, runs, say)
        with lifecycle.provisioned(live):
            lifecycle.deploy(live)
            tasks = deploy.count_tasks(live.run)
            first = _seconds(live)
            lifecycle.deploy(live)
            second = {stage: _seconds(live)[stage] for stage in ("deploy", "ready")}
            again.append(round(sum(second.values()) / sum(first[stage] for stage in second), 2))
        say(f"round {number} of {repeat}: floor")
        floor = lifecycle.create(scenario_path, provider, runs, say)
        with lifecycle.provisioned(floor):
            _deploy_plainly(floor)
        rounds.append({"harness": first, "again": second, "floor": _seconds(floor)})
    ratios = [round(sum(one["harness"].values()) / sum(one["floor"].values()), 2) for one in rounds]
    return {
        "benchmark": "first-run",
        "scenario": live.plan.name,
        "hosts": len(live.plan.hosts),
        "ansible_tasks": tasks,
        "rounds": rounds,
        "ratios": ratios,
        "ratio": statistics.median(ratios),
        "again": statistics.median(again),
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


def nodes(
    scenario_path: Path,
    provider: Provider,
    runs: Path,
    say: Say,
    *,
    choices: Sequence[str] = (),
    counts: Sequence[int] = (50, 100, 200, 500, 1000),
) -> dict[str, Any]:
    """Measure what nodes that share hosts cost, with growing numbers of them; a host has as many as in the scenario.

    Returns for each number the seconds from the start of all slurmds until slurmctld knows each; the memory of a slurmd
    and of slurmctld; and how much less memory the machine has left for each node, with all that goes with it.
    Memory is in MiB.
    """
    read = scenario.load(scenario_path, choices)
    name, cluster = next(iter(read.clusters.items()))
    names = cluster.node_names()
    if not cluster.hosts or len(cluster.nodes) != 1 or len(names) < max(counts):
        raise UsageError(
            f"{scenario_path}: cluster {name} is not one group of {max(counts)} nodes or more that share hosts",
            hint="scenarios/scale.yml has one of 1000",
        )
    hosts = hostlist.expand(cluster.hosts)
    rows = []
    for count in sorted(counts):
        sharing = hosts[: ceil(count * len(hosts) / len(names))]
        say(f"{count} nodes on {len(sharing)} hosts")
        settings = (
            f"clusters.{name}.nodes.0.name={hostlist.fold(names[:count])}",
            f"clusters.{name}.hosts={hostlist.fold(sharing)}",
        )
        free = _available()
        live = lifecycle.create(scenario_path, provider, runs, say, choices, settings)
        with lifecycle.provisioned(live):
            lifecycle.deploy(live)
            used = free - _available()
            seconds = _registered_again(live, name)
            slurmds = sum(_memory_of_slurmds(live, host.name) for host in live.plan.with_daemon("slurmd"))
            rows.append(
                {
                    "nodes": count,
                    "hosts": len(sharing),
                    "registered": round(seconds, 1),
                    "slurmd": round(slurmds / count, 2),
                    "slurmctld": round(_memory_of_slurmctld(live, cluster.controller), 1),
                    "machine": round(used / count, 2),
                }
            )
    return {"benchmark": "nodes", "scenario": scenario_path.stem, "release": live.plan.releases()[name], "rows": rows}


def _registered_again(live: Live, cluster: str) -> float:
    """Stop all slurmds, start them, and return how many seconds it takes until slurmctld knows each."""
    hosts = live.plan.with_daemon("slurmd")
    # Of units that stop with another systemctl waits for those only that it names; and one of some thousand slurmds of
    # 24.11 does not end by itself, but when systemd kills it after 90 seconds.
    stop = ["systemctl", "stop", "slurmd", "slurmd@*"]
    _everywhere(hosts, lambda host: live.ssh.run(host.name, stop, timeout=_PATIENCE))
    began = time.time()
    _everywhere(hosts, lambda host: live.ssh.run(host.name, ["systemctl", "start", "slurmd"], timeout=_PATIENCE))
    _wait_until_registered(
        slurm.clusters(live.ssh, live.plan)[cluster], [node for host in hosts for node in host.nodes], began
    )
    return time.time() - began


def _memory_of_slurmds(live: Live, host: str) -> float:
    """Return the memory in MiB of all slurmds on a host; what they share is counted once: proc(5), smaps_rollup."""
    script = "awk '/^Pss:/ { sum += $2 } END { print sum }' $(pgrep -x slurmd | sed 's,.*,/proc/&/smaps_rollup,')"
    return int(live.ssh.run(host, ["sh", "-c", script]).stdout) / 1024


def _memory_of_slurmctld(live: Live, host: str) -> float:
    """Return the memory in MiB of slurmctld: resident, because it keeps to itself what is more exact."""
    return int(live.ssh.run(host, ["ps", "-o", "rss=", "-C", "slurmctld"]).stdout) / 1024


def _available() -> float:
    """Return how many MiB of memory this machine has for more programs: proc(5), MemAvailable."""
    found = re.search(r"^MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text(), re.M)
    return int(found[1]) / 1024 if found else 0.0


def jobs(
    scenario_path: Path,
    provider: Provider,
    runs: Path,
    say: Say,
    *,
    choices: Sequence[str] = (),
    settings: Sequence[str] = (),
    count: int = 1000,
    repeat: int = 3,
) -> dict[str, Any]:
    """Compare three ways to submit `count` short jobs and wait for their end: the floor, the harness, and an array.

    The floor is a shell on the controller that calls sbatch for each, and squeue every second. Returns the seconds of
    each round, the ratio of the harness to the floor, and the medians of the ratios.
    """
    live = lifecycle.create(scenario_path, provider, runs, say, choices, settings)
    user = next(iter(live.plan.scenario.users), None)
    if user is None:
        raise UsageError(f"{scenario_path} has no user who submits jobs")
    rounds = []
    with lifecycle.provisioned(live):
        lifecycle.deploy(live)
        cluster = next(iter(slurm.clusters(live.ssh, live.plan).values()))
        patience = _PATIENCE + count

        def wait_for(job_ids: Sequence[int]) -> None:
            cluster.wait_for(job_ids, {"COMPLETED"}, timeout=patience)

        def by_hand() -> None:
            live.ssh.run(cluster.controller, ["sh"], user=user, stdin=_BY_HAND.format(count=count), timeout=patience)

        def by_harness() -> None:
            wait_for(cluster.submit_each(_SHORT, [_NOWHERE] * count, user))

        def as_arrays() -> None:
            arrays = [f"--array=1-{size}" for size in slurm.array_sizes(count)]
            wait_for([cluster.submit(_SHORT, *_NOWHERE, array, user=user) for array in arrays])

        ways = {"floor": by_hand, "harness": by_harness, "array": as_arrays}
        for number in range(1, repeat + 1):
            rounds.append({way: _timed(do) for way, do in ways.items()})
            say(f"round {number} of {repeat}: {', '.join(f'{way} {took:.1f} s' for way, took in rounds[-1].items())}")
    ratios = {way: [round(one[way] / one["floor"], 2) for one in rounds] for way in ("harness", "array")}
    return {
        "benchmark": "jobs",
        "scenario": live.plan.name,
        "release": next(iter(live.plan.releases().values())),
        "jobs": count,
        "rounds": rounds,
        "ratios": ratios,
        "ratio": {way: statistics.median(values) for way, values in ratios.items()},
    }


def _timed(do: Callable[[], object]) -> float:
    began = time.monotonic()
    do()
    return round(time.monotonic() - began, 2)


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
    _wait_until_registered(cluster, names, began)
    seconds = time.time() - began
    cluster.run("scontrol", "update", f"NodeName={','.join(names)}", "State=POWER_DOWN_FORCE")
    _wait_until_powered_down(cluster, names)
    return seconds


def _wait_until_registered(cluster: SlurmCluster, names: Sequence[str], began: float) -> None:
    """Wait until slurmctld knows slurmds of nodes that started after a time."""
    wait_until(
        lambda: {*names} - {node.name for node in cluster.nodes() if (node.slurmd_start or 0) >= int(began)},
        lambda missing: not missing,
        what=f"{hostlist.fold(names)} to register",
        timeout=_PATIENCE,
        interval=0.02,
        show=hostlist.fold,
    )


def _wait_until_powered_down(cluster: SlurmCluster, names: Sequence[str]) -> None:
    wait_until(
        lambda: {node.name: node.state for node in cluster.nodes() if node.name in names},
        lambda states: all(map(slurm.powered_down, states.values())),
        what=f"{', '.join(names)} to power down",
        timeout=_PATIENCE,
    )


def plot(result: dict[str, Any]) -> str:
    """Return a picture (SVG) of what `nodes` found: each quantity against the number of nodes, both from zero."""
    most = max(row["nodes"] for row in result["rows"])
    panels = {}
    for name, title in _PLOTTED.items():
        top = max(row[name] for row in result["rows"]) or 1
        panels[title] = [
            (round(_WIDTH * row["nodes"] / most), round(_HEIGHT * (1 - row[name] / top)), row["nodes"], row[name])
            for row in result["rows"]
        ]
    return template("plot.svg", panels=panels, width=_WIDTH, height=_HEIGHT)


def _seconds(live: Live) -> dict[str, float]:
    """Return how long a run's stages took, each when it was there last."""
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
