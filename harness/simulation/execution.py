"""Simulate a policy: real daemons on a clock that runs fast, a trace's jobs, and what they became.

The daemons are deployed as for every run. For each repeat they are stopped, forget all jobs and
usage, and start again with the simulated clock. munge and MariaDB stay on the real clock.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from harness import lifecycle, progress, slurm_options
from harness.cluster import slurm
from harness.errors import CannotVerify, UsageError
from harness.open_run import OpenRun
from harness.parsing import hostlist
from harness.plan import Host
from harness.progress import Step
from harness.scenario import Scenario
from harness.simulation import gathering, host_side, quality
from harness.simulation.outcome import Simulation
from harness.simulation.submission import Submission

_PROGRAM = "/usr/local/lib/slurm-harness-simulation.py"
_SECOND = 10**9
_HOUR = 3600
# Seconds in which a host must answer, even if it is busy.
_ANSWERS_WITHIN = 300


@dataclass
class Policy:
    """A policy to simulate: its name, its run, the trace's submissions, and how."""

    name: str
    run: OpenRun
    submissions: Sequence[Submission]
    rate: float
    hours: float | None
    # The simulated time, in nanoseconds since 1970, after which the next repeat begins.
    not_before: int = field(default=0)

    @property
    def cluster(self) -> str:
        """The name of the only cluster."""
        return next(iter(self.run.plan.scenario.clusters))


def must_be_possible(scenario: Scenario) -> None:
    """Raise UsageError if a scenario has something that a simulation does not support."""
    (name, cluster), *more = scenario.clusters.items()
    wrong = {
        "several clusters": bool(more),
        "federations": bool(scenario.federations),
        "nodes that are powered up and down": cluster.elastic(),
        "dynamic nodes": any(group.dynamic for group in cluster.nodes),
        "nodes shared with Kubernetes": bool(cluster.kubernetes),
        "several sites": len(scenario.sites) > 1,
    }
    if found := [what for what, is_so in wrong.items() if is_so]:
        raise UsageError(
            f"a simulation does not support {', '.join(found)}",
            hint="simulate one cluster of static nodes: remove the rest from a copy of the scenario",
        )
    if not scenario.accounting or not scenario.users:
        raise UsageError(
            f"a simulation of {name} needs accounting, and users who submit jobs",
            hint="scenarios/simulate.yml is an example",
        )


def simulate(policy: Policy, repeat: int) -> Simulation:
    """Simulate a policy once on hosts that are up; Ctrl-C ends it early.

    After Ctrl-C, the KeyboardInterrupt has the simulation so far as its attribute `simulation`.
    """
    run = policy.run
    with lifecycle.stage(run, f"simulate {policy.name} {repeat}"):
        begun = _begin(policy)
        interrupted = None
        facts = _Drive()
        try:
            _drive(policy, begun, facts)
        except KeyboardInterrupt as error:
            interrupted = error
        skew = 0.0 if interrupted else _skew(policy, begun)
        simulation = _gathered(policy, repeat, begun, facts, skew)
        if interrupted:
            interrupted.simulation = simulation  # type: ignore[attr-defined]
            raise interrupted
        return simulation


@dataclass
class _Drive:
    """What the driver on the controller has reported."""

    begin: float = 0.0
    end: float = 0.0
    real: float = 0.0
    rate: float = 0.0
    ids: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    late: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class _Begun:
    """The constants of a simulated clock."""

    began: dict[str, int]
    epoch: int
    rate: float

    def request(self, verb: str) -> dict[str, Any]:
        return {
            "verb": verb,
            "began": self.began["monotonic"],
            "epoch": self.epoch,
            "rate": self.rate,
        }


def _begin(policy: Policy) -> _Begun:
    """Restart all daemons without jobs and usage, on a new simulated clock."""
    run = policy.run
    hosts = run.plan.hosts
    stop(run)
    _everywhere(hosts, lambda host: _install(run, host))
    facts = [_ask(run, host, {"verb": "facts"}) for host in hosts]
    if len({fact["boot_id"] for fact in facts}) > 1:
        raise UsageError(
            "a simulation needs all hosts on one machine: they share a clock",
            hint="--provider docker",
        )
    began = facts[0]
    epoch = max(began["real"], policy.not_before)
    epoch = (epoch // _SECOND // _HOUR + 1) * _HOUR * _SECOND
    begun = _Begun(began, epoch, policy.rate)
    conf = run.plan.slurm_conf(policy.cluster)
    saved = [
        slurm_options.state_save_location(conf),
        (slurm_options.get(conf, "SlurmdSpoolDir") or "/var/spool/slurmd").replace("%n", "*"),
    ]
    clock = {"verb": "set_clock", "began": began, "epoch": epoch, "rate": policy.rate}
    for request in ({"verb": "wipe", "patterns": saved}, clock):
        _everywhere(hosts, partial(_ask, run, request=request))
    _start(run)
    return begun


def stop(run: OpenRun) -> None:
    """Stop Slurm's daemons, and end all jobs."""
    script = (
        "systemctl stop slurmd 'slurmd@*' slurmctld slurmdbd 2> /dev/null; "
        "pkill -9 -x slurmstepd; "
        f"fuser -sk {host_side.HOME}/ends/* 2> /dev/null; true"
    )
    _everywhere(run.plan.hosts, partial(_shell, run, script=script))


def _start(run: OpenRun) -> None:
    """Start Slurm's daemons, and wait until the cluster accepts jobs."""
    for daemon in ("slurmdbd", "slurmctld", "slurmd"):
        start = partial(_shell, run, script=f"systemctl start {daemon}")
        _everywhere(run.plan.with_daemon(daemon), start)
    slurm.wait_until_ready(run.plan, slurm.clusters(run.ssh, run.plan))


def _drive(policy: Policy, begun: _Begun, facts: _Drive) -> None:
    """Submit the trace's jobs and end them, until the driver on the controller is done."""
    run = policy.run
    controller = run.plan.host(run.plan.scenario.clusters[policy.cluster].controller)
    request = begun.request("drive") | {
        "seconds": (policy.hours * _HOUR) if policy.hours else 10.0**9,
        "jobs": [_job(submission) for submission in policy.submissions],
    }
    path = f"{_PROGRAM}.request"
    run.ssh.feed(controller.name, ["sh", "-c", f"cat > {path}"], [json.dumps(request).encode()])
    command = ["sh", "-c", f"exec python3 -I {_PROGRAM} < {path}"]
    with (
        run.ssh.printed(controller.name, command) as output,
        progress.steps(run.say) as show,
    ):
        for line in output:
            _take(json.loads(line), facts, show)
    if not facts.end:
        raise CannotVerify("the driver of the simulation ended early")


def _take(report: dict[str, Any], facts: _Drive, show: Callable[[Step], None]) -> None:
    """Record and show a report of the driver."""
    match report["kind"]:
        case "begin":
            facts.begin = report["begin"]
        case "progress":
            facts.real = report["real"]
            facts.end = facts.begin + report["simulated"]
            facts.rate = report["simulated"] / report["real"] if report["real"] else 0.0
            show(_step(report))
        case "end":
            facts.end = report["end"]
            facts.ids, facts.refused = report["ids"], report["refused"]


def _step(report: dict[str, Any]) -> Step:
    clock = gathering.clock_text(report["simulated"])
    name = (
        f"{clock} simulated at x{report['rate']:.0f}, "
        f"{report['running']} running, {report['pending']} pending"
    )
    done, jobs, left = report["done"], report["jobs"], None
    if done:
        left = report["real"] * (jobs - done) / done
    return Step("job", done, jobs, name, left)


def _job(submission: Submission) -> dict[str, Any]:
    return {
        "key": submission.key,
        "submit": submission.submit,
        "user": submission.user,
        "options": [
            *submission.options,
            f"--comment={slurm.MARK}",
            "--output=/dev/null",
            "--chdir=/tmp",
        ],
        "after": [*submission.after],
        "run_times": {index: job.run_time for index, job in submission.jobs.items()},
    }


def _skew(policy: Policy, begun: _Begun) -> float:
    """Return the largest difference between the clocks of hosts, in simulated seconds."""
    answers = [_ask(policy.run, host, begun.request("skew")) for host in policy.run.plan.hosts]
    return max(float(answer) for answer in answers)


def _gathered(policy: Policy, repeat: int, begun: _Begun, facts: _Drive, skew: float) -> Simulation:
    """Return what became of all jobs, from accounting, and keep what the daemons printed."""
    run = policy.run
    cluster = slurm.clusters(run.ssh, run.plan)[policy.cluster]
    printed = gathering.ask(cluster, facts.begin)
    directory = run.directory.path / "simulation" / str(repeat)
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in printed.items():
        (directory / f"{name}.txt").write_text(text)
    policy.not_before = int(facts.end * _SECOND)
    jobs = gathering.outcomes(policy.submissions, printed, facts.begin, facts.refused)
    measured = quality.measure(
        policy.submissions, jobs, rate=facts.rate, seconds=facts.real, clock_skew=skew
    )
    nodes = cluster_size(run.plan.scenario)
    return Simulation(
        policy=policy.name,
        repeat=repeat,
        release=run.plan.releases()[policy.cluster],
        nodes=nodes[0],
        cpus=nodes[1],
        hours=(facts.end - facts.begin) / _HOUR,
        jobs=tuple(jobs),
        quality=measured,
        scheduler=gathering.numbers(printed["sdiag"]),
        fairness=tuple(gathering.fairness(printed["sshare"])),
    )


def cluster_size(scenario: Scenario) -> tuple[int, int]:
    """Return the number of nodes and CPUs of the only cluster."""
    (cluster,) = scenario.clusters.values()
    groups = [(hostlist.count(group.name), group.counted_cpus()) for group in cluster.nodes]
    return sum(count for count, _ in groups), sum(count * cpus for count, cpus in groups)


def _everywhere(hosts: Sequence[Host], do: Callable[[Host], object]) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(do, hosts))


def _install(run: OpenRun, host: Host) -> None:
    text = inspect.getsource(host_side).encode()
    run.ssh.feed(host.name, ["sh", "-c", f"cat > {_PROGRAM}"], [text])


def _ask(run: OpenRun, host: Host, request: dict[str, Any]) -> Any:
    """Execute a request of host_side on a host."""
    answer = run.ssh.run(
        host.name,
        ["python3", "-I", _PROGRAM],
        stdin=json.dumps(request),
        timeout=_ANSWERS_WITHIN,
    )
    return json.loads(answer.stdout)


def _shell(run: OpenRun, host: Host, script: str) -> None:
    run.ssh.run(host.name, ["sh", "-c", script], timeout=_ANSWERS_WITHIN)
