"""Simulate a policy: submit a trace's jobs to real daemons on an accelerated clock.

The daemons are deployed as for every run. For each repeat they are stopped, forget all jobs and
usage, and start again with the simulated clock. munge and MariaDB use the real clock.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from harness import interrupts, lifecycle, progress, slurm_options
from harness.cluster import slurm
from harness.errors import CannotVerify, CommandFailed, HarnessError, UsageError, WaitTimeout
from harness.open_run import OpenRun, Say
from harness.parsing import hostlist
from harness.plan import Host
from harness.progress import ShowsSteps, Step
from harness.scenario import Cluster, Scenario
from harness.simulation import collect_results, host_side, quality, usage
from harness.simulation.model import Simulation
from harness.simulation.submission import Submission
from harness.simulation.trace import Trace
from harness.simulation.usage import Usage
from harness.wait import wait_until

_PROGRAM = "/usr/local/lib/slurm-harness-simulation.py"
_SECOND = 10**9
_HOUR = 3600
_FOREVER = 1e9
# Real seconds between two lines of progress, where a line cannot change in place.
_LINE_EVERY = 5
# Seconds in which a host must answer, even if it is busy.
_ANSWERS_WITHIN = 300
# Seconds in which slurmdbd must have taken the ends of all jobs.
_RECORDED_WITHIN = 120


@dataclass(frozen=True, slots=True)
class Rates:
    """Simulated seconds per second: `top` while nothing happens, `low` while daemons work.

    With a fixed rate, both are the same.
    """

    low: float
    top: float


GOVERNED = Rates(low=20.0, top=100.0)


@dataclass
class Policy:
    """A policy to simulate: its name, its run, and what to submit, for how long.

    Jobs of the first `warm_up` hours are not measured. `maintenance` lists reservations of all
    nodes: begin and length, in seconds; `failures` lists the nodes that fail, when, and for how
    long. With `think_time`, jobs that depend on others are submitted after these have ended.
    `usage` is the usage at the beginning. `settings` lists the options that are adapted to the
    clock: name, the user's value, the value in the simulation, and why.
    """

    name: str
    run: OpenRun
    trace: Trace
    submissions: Sequence[Submission]
    rates: Rates
    hours: float | None
    warm_up: float = 0.0
    maintenance: tuple[tuple[float, float], ...] = ()
    failures: tuple[tuple[str, float, float], ...] = ()
    think_time: bool = False
    usage: Usage = field(default_factory=dict)
    settings: tuple[tuple[str, str, str, str], ...] = ()
    # The simulated time, in nanoseconds since 1970, after which the next repeat begins.
    not_before: int = 0

    @property
    def cluster(self) -> str:
        """The name of the only cluster."""
        return next(iter(self.run.plan.scenario.clusters))

    @property
    def controller(self) -> Host:
        """The host of its controller."""
        plan = self.run.plan
        return plan.host(plan.scenario.clusters[self.cluster].controller)


def must_be_possible(scenario: Scenario) -> None:
    """Raise UsageError if a scenario has something that a simulation does not support."""
    (name, cluster), *more = scenario.clusters.items()
    unsupported = {
        "several clusters": bool(more),
        "federations": bool(scenario.federations),
        "nodes that are powered up and down": cluster.elastic() or _saves_power(cluster),
        "dynamic nodes": any(group.dynamic for group in cluster.nodes),
        "nodes shared with Kubernetes": bool(cluster.kubernetes),
        "several sites": len(scenario.sites) > 1,
    }
    if present := [what for what, is_present in unsupported.items() if is_present]:
        raise UsageError(
            f"a simulation does not support {', '.join(present)}",
            hint="change a copy of the scenario so that it has one cluster of static nodes",
        )
    fixed = [name for name, facts in cluster.reservations.items() if _at_a_fixed_time(facts)]
    if fixed:
        raise UsageError(
            f"reservations at fixed times do not fit a simulation: {', '.join(fixed)}",
            hint="use times relative to now, such as StartTime: now+90minutes",
        )
    if not scenario.accounting or not scenario.users:
        raise UsageError(
            f"a simulation of {name} needs accounting, and users who submit jobs",
            hint="scenarios/simulate.yml is an example",
        )


def _saves_power(cluster: Cluster) -> bool:
    """Return whether slurmctld suspends idle nodes: slurm.conf(5), SuspendTime."""
    options = [cluster.options, *(part.options for part in cluster.partitions.values())]
    times = [slurm_options.get(own, "SuspendTime") for own in options]
    return any(str(time).lower() not in {"none", "-1", "infinite"} for time in times)


def must_have_nodes(scenario: Scenario, hostlists: Sequence[str]) -> None:
    """Raise UsageError if the only cluster lacks a node of these hostlists."""
    ((name, cluster),) = scenario.clusters.items()
    known = {*cluster.node_names()}
    for nodes in hostlists:
        try:
            named = hostlist.expand(nodes)
        except ValueError as error:
            raise UsageError(f"--node-failure: {error}") from error
        if unknown := [node for node in named if node not in known]:
            raise UsageError(f"--node-failure {nodes}: {name} has no node {', '.join(unknown[:5])}")


def _at_a_fixed_time(reservation: Mapping[str, object]) -> bool:
    times = {name.lower(): str(value).lower() for name, value in reservation.items()}
    return any(not times.get(name, "now").startswith("now") for name in ("starttime", "endtime"))


def simulate(policy: Policy, repeat: int) -> Simulation:
    """Simulate a policy once on hosts that are up; Ctrl-C ends it early.

    After Ctrl-C, the KeyboardInterrupt has the simulation so far as its attribute `simulation`.
    """
    run = policy.run
    with lifecycle.stage(run, f"simulate {policy.name} {repeat}"):
        _restart_daemons(policy)
        interrupted = None
        facts = _DriverReport()
        try:
            _run_driver(policy, repeat, facts)
        except KeyboardInterrupt as error:
            if not facts.begin:
                raise
            interrupted = error
        with interrupts.ignored():
            simulation = _gather(policy, repeat, facts)
        if interrupted:
            interrupted.simulation = simulation  # type: ignore[attr-defined]
            raise interrupted
        return simulation


@dataclass
class _DriverReport:
    """What the driver on the controller has reported."""

    pid: int = 0
    begin: float = 0.0
    end: float = 0.0
    real: float = 0.0
    rate: float = 0.0
    ended: bool = False
    refused: dict[str, str] = field(default_factory=dict)
    held: dict[str, dict[str, float]] = field(default_factory=dict)
    suspensions: dict[str, list[tuple[float, float | None]]] = field(default_factory=dict)
    due: dict[str, float] = field(default_factory=dict)
    slowed: dict[str, float] = field(default_factory=dict)
    longest_completing: float = 0.0

    def take(self, report: dict[str, Any]) -> None:
        """Record what the driver prints."""
        match report["kind"]:
            case "begin":
                self.begin = self.end = report["begin"]
                self.pid = report["pid"]
            case "progress":
                self.real = report["real"]
                self.end = self.begin + report["simulated"]
                self.rate = report["simulated"] / report["real"] if report["real"] else 0.0
            case "end":
                self.end, self.ended = report["end"], True
                self.refused, self.held = report["refused"], report["held"]
                self.suspensions, self.due = report["suspensions"], report["due"]
                self.slowed = report["slowed"]
                self.longest_completing = report["longest_completing"]


def _restart_daemons(policy: Policy) -> None:
    """Restart all daemons on a new simulated clock, without jobs and with the initial usage."""
    run, hosts = policy.run, policy.run.plan.hosts
    seconds = _usage_of_associations(policy)
    stop(run)
    _on_each_host(hosts, lambda host: _install(run, host))
    facts = [_ask(run, host, {"verb": "facts"}) for host in hosts]
    _must_share_a_clock(hosts, facts)
    epoch = max(facts[0]["real"], policy.not_before)
    epoch = (epoch // _SECOND // _HOUR + 1) * _HOUR * _SECOND
    conf = run.plan.slurm_conf(policy.cluster)
    state = slurm_options.state_save_location(conf)
    file = f"{state}/assoc_usage"
    if seconds:
        version = _ask(run, policy.controller, {"verb": "saved_version", "path": file})
        content = usage.state(version, epoch // _SECOND, seconds).hex()
    saved = [
        state,
        (slurm_options.get(conf, "SlurmdSpoolDir") or "/var/spool/slurmd").replace("%n", "*"),
    ]
    _on_each_host(hosts, partial(_ask, run, request={"verb": "wipe", "patterns": saved}))
    if seconds:
        _ask(run, policy.controller, {"verb": "save", "path": file, "content": content})
    # In real time, all daemons start within a few simulated seconds.
    rates = {"rate": 1.0, "top": policy.rates.top}
    _ask(run, policy.controller, {"verb": "make_clock", "epoch": epoch, **rates})
    _on_each_host(hosts, partial(_ask, run, request={"verb": "use_clock"}))
    _start(run)


def _usage_of_associations(policy: Policy) -> list[tuple[int, float]]:
    """Return the ids of associations and their usage at the beginning, in seconds of a CPU."""
    if not policy.usage:
        return []
    cluster = slurm.clusters(policy.run.ssh, policy.run.plan)[policy.cluster]
    listing = ("sacctmgr", "--parsable2", "--noheader", "show", "associations")
    printed = cluster.run(*listing, f"cluster={policy.cluster}", "format=ID,Account,User,Partition")
    usages = []
    for line in printed.stdout.splitlines():
        association, account, user, partition = line.split("|")
        if not partition and (account, user) in policy.usage:
            usages.append((int(association), policy.usage[account, user]))
    return usages


def _must_share_a_clock(hosts: Sequence[Host], facts: Sequence[dict[str, Any]]) -> None:
    if len({fact["machine"] for fact in facts}) > 1:
        raise UsageError(
            "a simulation needs all hosts on one machine: they share a clock",
            hint="--provider docker",
        )
    lacking = [host.name for host, fact in zip(hosts, facts, strict=True) if not fact["library"]]
    if lacking:
        raise UsageError(
            f"the images of {', '.join(lacking)} lack the library of the simulated clock",
            hint="a simulation needs the images of the harness: remove `image:`",
        )


def stop(run: OpenRun) -> None:
    """Stop Slurm's daemons, and end all jobs."""
    script = (
        "systemctl stop slurmd 'slurmd@*' slurmctld slurmdbd 2> /dev/null; "
        "pkill -9 -x slurmstepd; "
        f"fuser -sk {host_side.HOME}/ends/* 2> /dev/null; true"
    )
    _on_each_host(run.plan.hosts, partial(_shell, run, script=script))


def _start(run: OpenRun) -> None:
    """Start Slurm's daemons, and wait until the cluster accepts jobs."""
    for daemon in ("slurmdbd", "slurmctld", "slurmd"):
        start = partial(_shell, run, script=f"systemctl start {daemon}")
        _on_each_host(run.plan.with_daemon(daemon), start)
        if daemon == "slurmdbd":
            _wait_for_slurmdbd(run)
    slurm.wait_until_ready(run.plan, slurm.clusters(run.ssh, run.plan))
    # The scenario's own reservations, at times of the simulated clock.
    clock = " ".join(f"{name}={value}" for name, value in host_side.ENVIRONMENT.items())
    reserve = partial(_shell, run, script=f"{clock} /usr/local/sbin/slurm-reservations")
    _on_each_host(run.plan.with_reservations(), reserve)


def _wait_for_slurmdbd(run: OpenRun) -> None:
    """Wait until slurmdbd answers: slurmctld ends if it has neither its state nor slurmdbd.

    systemd has started it before it listens, because its unit is of Type=simple.
    """
    if client := run.plan.accounting_client():
        query = ["sacctmgr", "--noheader", "show", "cluster"]
        wait_until(
            lambda: run.ssh.run(client.name, query, timeout=30),
            lambda _: True,
            what="slurmdbd to answer",
            timeout=_ANSWERS_WITHIN,
            ignore=(CommandFailed, WaitTimeout),
        )


def _run_driver(policy: Policy, repeat: int, facts: _DriverReport) -> None:
    """Submit the trace's jobs and end them, until the driver on the controller is done."""
    run, controller = policy.run, policy.controller
    request = {
        "verb": "drive",
        "repeat": repeat,
        "low": policy.rates.low,
        "top": policy.rates.top,
        "single_host": len(run.plan.hosts) == 1,
        "seconds": policy.hours * _HOUR if policy.hours else _FOREVER,
        "maintenance": [*policy.maintenance],
        "failures": [*policy.failures],
        "jobs": [
            _job(submission, thinks=policy.think_time and bool(submission.after))
            for submission in policy.submissions
        ],
    }
    path = f"{_PROGRAM}.request"
    run.ssh.feed(controller.name, ["sh", "-c", f"cat > {path}"], [json.dumps(request).encode()])
    command = ["sh", "-c", f"exec python3 -I {_PROGRAM} < {path}"]
    with run.ssh.printed(controller.name, command) as output:
        try:
            _follow(output, run.say, facts)
        except KeyboardInterrupt:
            if not facts.begin:
                raise
            with interrupts.ignored():
                _ask(run, controller, {"verb": "stop_driving", "pid": facts.pid})
                for line in output:
                    with suppress(ValueError):  # the interrupt may have cut the first line
                        facts.take(json.loads(line))
            raise
    if not facts.ended:
        raise CannotVerify(
            f"{controller.name}: {_PROGRAM} ended before the simulation of {policy.name} was over"
        )


def _follow(output: Iterable[bytes], say: Say, facts: _DriverReport) -> None:
    """Record what the driver prints until it ends, and show its progress."""
    with progress.steps(say) as show:
        live, shown = isinstance(say, ShowsSteps), 0.0
        for line in output:
            report = json.loads(line)
            if report["kind"] == "progress" and (live or report["real"] - shown >= _LINE_EVERY):
                shown = report["real"]
                show(_step(report, facts))
            facts.take(report)


def _step(report: dict[str, Any], before: _DriverReport) -> Step:
    """Return the progress; its rate is the one since the previous report."""
    simulated, real = (
        report["simulated"] - (before.end - before.begin),
        report["real"] - before.real,
    )
    name = (
        f"{collect_results.clock_text(report['simulated'])} simulated at x{simulated / real:.0f}, "
        f"{report['running']} running, {report['pending']} pending"
    )
    done, jobs = report["done"], report["jobs"]
    left = report["real"] * (jobs - done) / done if done else None
    return Step("job", done, jobs, name, left)


def _job(submission: Submission, *, thinks: bool) -> dict[str, Any]:
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
        "think": submission.think_time if thinks else None,
        "run_times": {index: job.run_time for index, job in submission.jobs.items()},
    }


def _skew(run: OpenRun) -> float:
    """Return the largest difference of a host's clock from the shared one, in simulated seconds."""
    return max(float(_ask(run, host, {"verb": "skew"})) for host in run.plan.hosts)


def _gather(policy: Policy, repeat: int, facts: _DriverReport) -> Simulation:
    """Return the outcomes of all jobs from accounting, and keep what Slurm's commands printed."""
    run = policy.run
    cluster = slurm.clusters(run.ssh, run.plan)[policy.cluster]
    with suppress(HarnessError):  # such as that of a slurmctld that has ended
        cluster.wait_for_slurmdbd(_RECORDED_WITHIN)
    printed = collect_results.query(cluster, facts.begin)
    directory = run.directory.path / "printed" / str(repeat)
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in printed.items():
        (directory / f"{name}.txt").write_text(text)
    policy.not_before = int(facts.end * _SECOND)
    jobs = collect_results.outcomes(
        policy.submissions,
        printed,
        facts.begin,
        facts.refused,
        facts.held,
        facts.suspensions,
        facts.end - facts.begin,
    )
    measured = quality.measure(
        policy.submissions,
        jobs,
        rate=facts.rate,
        seconds=facts.real,
        clock_skew=_skew(run),
        late_due=facts.due,
        longest_completing=facts.longest_completing,
        slowed=facts.slowed,
    )
    names = run.plan.scenario.clusters[policy.cluster].node_names()
    return Simulation(
        policy=policy.name,
        repeat=repeat,
        release=run.plan.releases()[policy.cluster],
        nodes=len(names),
        cpus=_cpus(run.plan.scenario),
        hours=(facts.end - facts.begin) / _HOUR,
        jobs=tuple(jobs),
        quality=measured,
        scheduler=collect_results.numbers(printed["sdiag"]),
        fairness=tuple(collect_results.fairness(printed["sshare"])),
        warm_up=policy.warm_up,
        ended=facts.end - facts.begin,
        trace=policy.trace.source,
        notes=policy.trace.notes,
        node_names=names,
        settings=policy.settings,
    )


def _cpus(scenario: Scenario) -> int:
    """Return the number of CPUs of the only cluster."""
    (cluster,) = scenario.clusters.values()
    return sum(hostlist.count(group.name) * group.counted_cpus() for group in cluster.nodes)


def _on_each_host(hosts: Sequence[Host], action: Callable[[Host], object]) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(action, hosts))


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
