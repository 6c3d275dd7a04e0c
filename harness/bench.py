"""Benchmarks: ratios of two measurements taken in turn.

Seconds alone say little on a shared machine.
"""

from __future__ import annotations

import io
import re
import statistics
import subprocess
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

from harness import deploy, lifecycle, run_secrets, scenario
from harness.cluster import node_state, slurm
from harness.cluster.history import Recorder
from harness.cluster.slurm import SlurmCluster
from harness.elastic import provisioning
from harness.errors import CannotVerify, UsageError
from harness.open_run import OpenRun, Say
from harness.parsing import hostlist
from harness.plan import Host
from harness.providers import CanCreate, Provider, ability
from harness.render import RenderedFile, render, template
from harness.simulation import session
from harness.simulation.session import PolicySource
from harness.wait import wait_until

# Time limit in seconds for nodes that come up or go down.
_PATIENCE = 180
# The quantities that are plotted against the number of nodes, with the titles of their panels.
_PLOTTED = {
    "registered": "seconds until all have registered",
    "slurmd": "MiB per slurmd",
    "slurmctld": "MiB of slurmctld",
}
# Size of a panel in pixels.
_WIDTH, _HEIGHT = 200, 120
_SHORT = "#!/bin/sh\n"
_NOWHERE = ("--output=/dev/null",)
_BY_HAND = """\
for i in $(seq {count}); do
    echo '#!/bin/sh' | sbatch --parsable --output=/dev/null || exit
done > /dev/null
while [ "$(squeue --noheader --user="$USER" | wc -l)" -gt 0 ]; do sleep 1; done
"""


def first_run(
    scenario_path: Path, provider: Provider, runs: Path, say: Say, *, repeat: int = 3
) -> dict[str, Any]:
    """Compare up, deploy and ready with the floor.

    The floor is a plain script that brings up the same hosts, files and daemons. Both run in turn,
    `repeat` times each; the harness deploys a second time, with nothing to do, and a third time,
    with a changed option. Returns the seconds of every stage; the ratio of each pair, and their
    median; the median ratio of the second deploy to the first; the median seconds of the third, and
    of `scontrol reconfigure` alone; and the number of tasks that Ansible ran on hosts.
    """
    rounds = []
    again = []
    changed = []
    tasks = 0
    for number in range(1, repeat + 1):
        say(f"round {number} of {repeat}: harness")
        run = lifecycle.create(scenario_path, provider, runs, say)
        with lifecycle.provisioned(run):
            lifecycle.deploy(run)
            tasks = deploy.count_tasks(run.directory)
            first = _seconds(run)
            lifecycle.deploy(run)
            second = {stage: _seconds(run)[stage] for stage in ("deploy", "ready")}
            again.append(round(sum(second.values()) / sum(first[stage] for stage in second), 2))
            changed.append(_deploy_a_change(run, scenario_path))
        say(f"round {number} of {repeat}: floor")
        floor = lifecycle.create(scenario_path, provider, runs, say)
        with lifecycle.provisioned(floor):
            _deploy_plainly(floor)
        rounds.append({"harness": first, "again": second, "floor": _seconds(floor)})
    ratios = [
        round(sum(pair["harness"].values()) / sum(pair["floor"].values()), 2) for pair in rounds
    ]
    return {
        "benchmark": "first-run",
        "scenario": run.plan.name,
        "hosts": len(run.plan.hosts),
        "ansible_tasks": tasks,
        "rounds": rounds,
        "ratios": ratios,
        "ratio": statistics.median(ratios),
        "again": statistics.median(again),
        "changed": {
            what: statistics.median(seconds[what] for seconds in changed)
            for what in ("deploy", "reconfigure")
        },
    }


def _deploy_a_change(run: OpenRun, path: Path) -> dict[str, float]:
    """Return the seconds to deploy a changed option of slurm.conf, and to reconfigure by hand."""
    clusters = slurm.clusters(run.ssh, run.plan)
    settings = [f"clusters.{name}.options.MinJobAge=299" for name in clusters]
    plan = lifecycle.read_plan(path, run.provider, (), settings)
    changed = replace(run, plan=plan, tree=render(plan))
    deployed = _timed(lambda: lifecycle.deploy(changed))
    reconfigured = 0.0
    for cluster in clusters.values():
        reconfigured += _timed(partial(slurm.reconfigure, cluster))
        slurm.connect_siblings(plan, clusters, run.say)
    return {"deploy": deployed, "reconfigure": reconfigured}


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
    """Time jobs whose nodes are powered up for them, and compare them with the floor.

    Each round submits a job to `count` nodes and waits until all are powered down again. The floor
    then starts the hosts of these nodes by hand, with a plain slurmd. For every round, returns the
    seconds from submission until all nodes are up, the job runs, the job has ended, and all nodes
    are powered down; and for the floor, the seconds until every slurmd has registered.
    """
    run = lifecycle.create(scenario_path, provider, runs, say, choices)
    name = next((name for name, part in run.plan.scenario.clusters.items() if part.elastic()), None)
    nodes = [
        host
        for host in run.plan.hosts
        if name and host.cluster == name and host.provision != "static"
    ][-count:]
    if len(nodes) < count:
        raise UsageError(
            f"{scenario_path} has {len(nodes)} nodes that come and go", hint="choose fewer --nodes"
        )
    with lifecycle.provisioned(run):
        lifecycle.deploy(run)
        clusters = slurm.clusters(run.ssh, run.plan)
        rounds = []
        with provisioning.manual_nodes_powered(run.plan, clusters, run.ssh):
            for number in range(1, repeat + 1):
                say(f"round {number} of {repeat}")
                rounds.append(_round(run, clusters[nodes[0].cluster or ""], nodes))
    worst = {step: max(seconds[step] for seconds in rounds) for step in rounds[0]}
    return {
        "benchmark": "elastic",
        "scenario": run.plan.name,
        "release": nodes[0].release,
        "provision": nodes[0].provision,
        "nodes": count,
        "rounds": rounds,
        "median": {
            step: round(statistics.median(seconds[step] for seconds in rounds), 2)
            for step in rounds[0]
        },
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
    """Measure the cost of growing numbers of nodes that share hosts.

    A host runs as many nodes as in the scenario. For each number, returns the seconds from the
    start of all slurmds until all have registered; the memory of a slurmd and of slurmctld; and the
    memory that the machine loses per node, everything included. Memory is in MiB.
    """
    read = scenario.load(scenario_path, choices)
    name, cluster = next(iter(read.clusters.items()))
    names = cluster.node_names()
    if not cluster.hosts or len(cluster.nodes) != 1 or len(names) < max(counts):
        raise UsageError(
            f"{scenario_path}: cluster {name} does not have one group of at least {max(counts)} "
            "nodes that share hosts",
            hint="scenarios/scale.yml has one of 1000",
        )
    hosts = hostlist.expand(cluster.hosts)
    rows = []
    for count in sorted(counts):
        used_hosts = hosts[: ceil(count * len(hosts) / len(names))]
        say(f"{count} nodes on {len(used_hosts)} hosts")
        settings = (
            f"clusters.{name}.nodes.0.name={hostlist.fold(names[:count])}",
            f"clusters.{name}.hosts={hostlist.fold(used_hosts)}",
        )
        free = _available()
        run = lifecycle.create(scenario_path, provider, runs, say, choices, settings)
        with lifecycle.provisioned(run):
            lifecycle.deploy(run)
            used = free - _available()
            seconds = _registered_again(run, name)
            slurmds = sum(
                _memory_of_slurmds(run, host.name) for host in run.plan.with_daemon("slurmd")
            )
            rows.append(
                {
                    "nodes": count,
                    "hosts": len(used_hosts),
                    "registered": round(seconds, 1),
                    "slurmd": round(slurmds / count, 2),
                    "slurmctld": round(_memory_of_slurmctld(run, cluster.controller), 1),
                    "machine": round(used / count, 2),
                }
            )
    return {
        "benchmark": "nodes",
        "scenario": scenario_path.stem,
        "release": run.plan.releases()[name],
        "rows": rows,
    }


def simulations(
    scenario_path: Path,
    provider: Provider,
    runs: Path,
    say: Say,
    *,
    choices: Sequence[str] = (),
    counts: Sequence[int] = (100, 200, 500),
    jobs_a_day: Sequence[int] = (1000, 5000, 10000),
    hours: float = 2.0,
) -> dict[str, Any]:
    """Measure how fast simulations are, for growing numbers of nodes and of jobs.

    Each simulates `hours` in which generated jobs are submitted. For each, returns the number of
    simulated hours per hour, which parts of the real time the clock was slow for which reason, and
    what was wrong if it did not keep time.
    """
    read = scenario.load(scenario_path, choices)
    name, cluster = next(iter(read.clusters.items()))
    if len(cluster.nodes) != 1:
        raise UsageError(
            f"{scenario_path}: cluster {name} does not have a single group of nodes",
            hint="scenarios/simulate.yml has one",
        )
    rows = []
    for count in sorted(counts):
        policy = PolicySource(
            f"{count} nodes", scenario_path, (f"clusters.{name}.nodes.0.name=n[1-{count}]",)
        )
        for jobs_of_day in sorted(jobs_a_day):
            say(f"{count} nodes, {jobs_of_day} jobs a day")
            number = max(1, round(jobs_of_day * hours / 24))
            options = session.Options(number, hours)
            prepared = session.prepare([policy], provider, runs, say, choices, options, "")
            report, comparison = session.run(prepared, 1, keep=False, directory=None)
            if not comparison:
                raise CannotVerify(report.problem)
            (simulation,) = comparison.policies[0].simulations
            quality = simulation.quality
            rows.append(
                {
                    "nodes": count,
                    "jobs_a_day": jobs_of_day,
                    "rate": round(quality.rate, 1),
                    "slowed": quality.slowed,
                    "problems": list(quality.problems),
                }
            )
    return {
        "benchmark": "simulations",
        "scenario": scenario_path.stem,
        "release": simulation.release,
        "hours": hours,
        "rows": rows,
    }


def _registered_again(run: OpenRun, cluster: str) -> float:
    """Stop all slurmds, start them, and return the seconds until all have registered."""
    hosts = run.plan.with_daemon("slurmd")
    # systemctl waits only for the units that it is given. One of several thousand slurmds of 24.11
    # does not exit by itself, but is killed by systemd after 90 seconds.
    stop = ["systemctl", "stop", "slurmd", "slurmd@*"]
    _everywhere(hosts, lambda host: run.ssh.run(host.name, stop, timeout=_PATIENCE))
    began = time.time()
    _everywhere(
        hosts,
        lambda host: run.ssh.run(host.name, ["systemctl", "start", "slurmd"], timeout=_PATIENCE),
    )
    _wait_until_registered(
        slurm.clusters(run.ssh, run.plan)[cluster],
        [node for host in hosts for node in host.nodes],
        began,
    )
    return time.time() - began


def _memory_of_slurmds(run: OpenRun, host: str) -> float:
    """Return the memory in MiB of all slurmds on a host.

    It counts shared pages once: proc(5), smaps_rollup.
    """
    files = "$(pgrep -x slurmd | sed 's,.*,/proc/&/smaps_rollup,')"
    script = f"awk '/^Pss:/ {{ sum += $2 }} END {{ print sum }}' {files}"
    return int(run.ssh.run(host, ["sh", "-c", script]).stdout) / 1024


def _memory_of_slurmctld(run: OpenRun, host: str) -> float:
    """Return the resident memory of slurmctld in MiB: the kernel does not show its smaps_rollup."""
    return int(run.ssh.run(host, ["ps", "-o", "rss=", "-C", "slurmctld"]).stdout) / 1024


def _available() -> float:
    """Return the available memory of this machine in MiB: proc(5), MemAvailable."""
    available = re.search(r"^MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text(), re.M)
    return int(available[1]) / 1024 if available else 0.0


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
    """Compare three ways to submit `count` short jobs and wait for their end.

    The floor is a shell on the controller that calls sbatch for each job, and then squeue every
    second; the others are the harness, and job arrays. Returns the seconds of each round, the
    ratios to the floor, and the medians of the ratios.
    """
    run = lifecycle.create(scenario_path, provider, runs, say, choices, settings)
    user = next(iter(run.plan.scenario.users), None)
    if user is None:
        raise UsageError(f"{scenario_path} has no users")
    rounds = []
    with lifecycle.provisioned(run):
        lifecycle.deploy(run)
        ways = _ways_to_submit(run, user, count)
        for number in range(1, repeat + 1):
            seconds = {way: _timed(submit) for way, submit in ways.items()}
            rounds.append(seconds)
            times = ", ".join(f"{way} {value:.1f} s" for way, value in seconds.items())
            say(f"round {number} of {repeat}: {times}")
    ratios = {
        way: [round(seconds[way] / seconds["floor"], 2) for seconds in rounds]
        for way in ("harness", "array")
    }
    return {
        "benchmark": "jobs",
        "scenario": run.plan.name,
        "release": next(iter(run.plan.releases().values())),
        "jobs": count,
        "rounds": rounds,
        "ratios": ratios,
        "ratio": {way: statistics.median(values) for way, values in ratios.items()},
    }


def _ways_to_submit(run: OpenRun, user: str, count: int) -> dict[str, Callable[[], None]]:
    """Return functions that submit `count` short jobs as a user and wait for their end."""
    cluster = next(iter(slurm.clusters(run.ssh, run.plan).values()))
    patience = _PATIENCE + count

    def wait_for(job_ids: Sequence[int]) -> None:
        cluster.wait_for(job_ids, {"COMPLETED"}, timeout=patience)

    def by_hand() -> None:
        script = _BY_HAND.format(count=count)
        run.ssh.run(cluster.controller, ["sh"], user=user, stdin=script, timeout=patience)

    def by_harness() -> None:
        wait_for(cluster.submit_each(_SHORT, [_NOWHERE] * count, user))

    def as_arrays() -> None:
        arrays = [f"--array=1-{size}" for size in slurm.array_sizes(count)]
        wait_for([cluster.submit(_SHORT, *_NOWHERE, array, user=user) for array in arrays])

    return {"floor": by_hand, "harness": by_harness, "array": as_arrays}


def _timed(do: Callable[[], object]) -> float:
    began = time.monotonic()
    do()
    return round(time.monotonic() - began, 2)


def _round(run: OpenRun, cluster: SlurmCluster, hosts: Sequence[Host]) -> dict[str, float]:
    names = [host.name for host in hosts]
    user = next(iter(run.plan.scenario.users), "root")
    with Recorder(cluster, run.directory, interval=0.02) as recorder:
        began = time.time()
        options_ = ("--output=/dev/null", f"--nodes={len(hosts)}", f"--nodelist={','.join(names)}")
        job_id = cluster.submit("#!/bin/sh\nsleep 2\n", *options_, user=user)
        cluster.wait_for([job_id], {"COMPLETED"}, timeout=_PATIENCE)
        _wait_until_powered_down(cluster, names)

    def first(name: str | int, fits: Callable[[str], bool]) -> float:
        return next(change.at for change in recorder.of(name, began) if fits(change.state)) - began

    seconds = {
        "up": max(first(name, lambda state: "POWER" not in state) for name in names),
        "running": first(job_id, lambda state: state == "RUNNING"),
        "ended": first(job_id, lambda state: state == "COMPLETED"),
        "powered_down": max(recorder.of(name)[-1].at for name in names) - began,
        "floor": _floor(run, cluster, hosts),
    }
    return {step: round(value, 2) for step, value in seconds.items()}


def _floor(run: OpenRun, cluster: SlurmCluster, hosts: Sequence[Host]) -> float:
    """Start hosts, and return the seconds until every slurmd has registered.

    On hosts that are always up, only slurmd is started.
    """
    names = [host.name for host in hosts]
    secrets = run.directory.secrets()

    def start(host: Host) -> None:
        if host.is_permanent:
            run.ssh.run(host.name, ["systemctl", "start", "slurmd"])
            return
        provider = ability(run.provider, CanCreate, "provisioning benchmark")
        if host.provision == "create":
            files = {host.name: provisioning.files_of(run.tree, host.name, secrets)}
            provider.make(run.directory, run.plan, [host], files)
        provider.start(run.directory.id, host.name)

    began = time.time()
    _everywhere(hosts, start)
    _wait_until_registered(cluster, names, began)
    seconds = time.time() - began
    cluster.run("scontrol", "update", f"NodeName={','.join(names)}", "State=POWER_DOWN_FORCE")
    _wait_until_powered_down(cluster, names)
    return seconds


def _wait_until_registered(cluster: SlurmCluster, names: Sequence[str], began: float) -> None:
    """Wait until slurmds that started after a time have registered for all of these nodes."""
    wait_until(
        lambda: (
            {*names}
            - {node.name for node in cluster.nodes() if (node.slurmd_start or 0) >= int(began)}
        ),
        lambda missing: not missing,
        what=f"{hostlist.fold(names)} to register",
        timeout=_PATIENCE,
        interval=0.02,
        show=hostlist.fold,
    )


def _wait_until_powered_down(cluster: SlurmCluster, names: Sequence[str]) -> None:
    wait_until(
        lambda: {node.name: node.state for node in cluster.nodes() if node.name in names},
        lambda states: all(map(node_state.is_powered_down, states.values())),
        what=f"{', '.join(names)} to power down",
        timeout=_PATIENCE,
    )


def plot(result: dict[str, Any]) -> str:
    """Return an SVG plot of the result of `nodes`: each quantity against the number of nodes."""
    return _plot(
        {
            title: [(row["nodes"], row[name]) for row in result["rows"]]
            for name, title in _PLOTTED.items()
        }
    )


def plot_simulations(result: dict[str, Any]) -> str:
    """Return an SVG plot of the result of `simulations`: the rate against the number of nodes."""
    panels: dict[str, list[tuple[int, float]]] = {}
    for row in result["rows"]:
        title = f"simulated h per h, {row['jobs_a_day']} jobs a day"
        panels.setdefault(title, []).append((row["nodes"], row["rate"]))
    return _plot(panels)


def _plot(panels: Mapping[str, Sequence[tuple[int, float]]]) -> str:
    """Return a plot of values against numbers of nodes, by title; all axes begin at zero."""
    placed = {}
    for title, points in panels.items():
        most = max(nodes for nodes, _ in points)
        top = max(value for _, value in points) or 1
        placed[title] = [
            (round(_WIDTH * nodes / most), round(_HEIGHT * (1 - value / top)), nodes, value)
            for nodes, value in points
        ]
    return template("plot.svg", panels=placed, width=_WIDTH, height=_HEIGHT)


def _seconds(run: OpenRun) -> dict[str, float]:
    """Return how many seconds each stage of a run took the last time it ran."""
    stages = ("up", "deploy", "ready")
    return {
        event["name"]: event["seconds"]
        for event in run.directory.events()
        if event.get("name") in stages
    }


def _deploy_plainly(run: OpenRun) -> None:
    """Do what roles/site.yml does, with as little as possible: tar and systemctl over SSH."""
    plan, secrets = run.plan, run.directory.secrets()
    with lifecycle.stage(run, "deploy"):
        _everywhere(plan.hosts, lambda host: _unpack(run, host, secrets))
        for host in plan.with_daemon("slurmdbd"):
            _start(run, host, "mariadb", "slurmdbd")
        if client := plan.accounting_client():
            run.ssh.run(client.name, ["slurm-accounting-objects"], timeout=120)
        for host in plan.with_daemon("slurmctld"):  # one after the other: see roles/slurmctld
            _start(run, host, "slurmctld")
        _everywhere(plan.with_daemon("slurmd"), lambda host: _start(run, host, "slurmd"))
    with lifecycle.stage(run, "ready"):
        slurm.wait_until_ready(plan, slurm.clusters(run.ssh, plan))


def _start(run: OpenRun, host: Host, *daemons: str) -> None:
    run.ssh.run(host.name, ["systemctl", "enable", "--now", *daemons])


def _unpack(run: OpenRun, host: Host, secrets: dict[str, str]) -> None:
    script = (
        "tar --extract --directory=/ && systemd-sysusers"
        " && systemd-tmpfiles --create /etc/tmpfiles.d/*.conf"
        " && systemctl enable --now munge"
    )
    payload = _tar(run.tree[host.name], secrets)
    subprocess.run(
        run.ssh.command(host.name, [script]), input=payload, capture_output=True, check=True
    )


def _tar(files: Sequence[RenderedFile], secrets: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for file in files:
            content = run_secrets.reveal(file.text, secrets).encode()
            entry = tarfile.TarInfo(file.path.lstrip("/"))
            entry.size, entry.mode, entry.mtime = len(content), int(file.mode, 8), int(time.time())
            entry.uname, entry.gname = file.owner, file.group
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def _everywhere(hosts: Sequence[Host], do: Callable[[Host], object]) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(do, hosts))
