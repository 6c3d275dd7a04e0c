"""How elastic resume fails: what Slurm reports, what happens to the job, how the node recovers."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness import slurm_options
from harness.cluster import logs, node_state, slurm
from harness.cluster.slurm import SlurmCluster, job_key, reconfigure
from harness.elastic import provisioning
from harness.errors import CommandFailed
from harness.open_run import OpenRun
from harness.providers import CanCreate, ability
from harness.verify import job_trace
from harness.wait import wait_until
from support import Harness, deployed

# Deadline in seconds for steps that take up to 80 s on an idle machine.
PATIENCE = 400
RESUME_TIMEOUT = 90  # seven hosts at once take 5 s on two idle cores
FAILING = f"""
description: Nodes that are made for jobs, with little patience.
clusters:
  cloud:
    controller: ctl
    nodes: [{{name: "c[1-7]", provision: create}}]
    options:
      SuspendTime: 3
      SuspendTimeout: 3
      ResumeTimeout: {RESUME_TIMEOUT}
      SlurmdTimeout: 10
      # A job that lost its node is not tried again before its credential has expired.
      AuthInfo: cred_expire=15
      SchedulerParameters:
        [batch_sched_delay=0, sched_min_interval=0, sched_interval=2, bf_interval=2,
         requeue_delay=1]
      MinJobAge: 3600
      # slurmctld logs when it decides to resume or suspend nodes.
      DebugFlags: Power
      SlurmctldDebug: verbose
users: {{alice: {{uid: 2001}}}}
"""


@pytest.fixture(scope="module")
def failing(
    harness: Harness, runs: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OpenRun]:
    """A cluster whose nodes do not exist yet."""
    path = tmp_path_factory.mktemp("scenario") / "failing.yml"
    path.write_text(FAILING)
    with deployed(harness, runs, path) as run:
        yield run


SPOILED: dict[str, tuple[str, dict[str, str] | None]] = {
    "c1": (
        "another munge key",
        {"file": "/etc/munge/munge.key", "old": "%secret:munge_key%", "new": "f" * 64},
    ),
    "c2": (
        "no way to slurmctld",
        {
            "file": "/etc/slurm/slurm.conf",
            "old": "SlurmctldHost=ctl",
            "new": "SlurmctldHost=ctl(127.0.0.9)",
        },
    ),
    "c3": (
        "a boot time before the resume",
        {"file": "/etc/systemd/system/slurmd.service.d/options.conf", "old": "-b", "new": "-v"},
    ),
    "c4": ("no capacity", None),
    "c7": (
        "a munge key that munged refuses",
        {"file": "/etc/munge/munge.key", "old": "%secret:munge_key%", "new": "short"},
    ),
}
# slurmd reports to slurmctld that its slurm.conf differs, and is accepted nevertheless.
OTHER_CONF = {
    "file": "/etc/slurm/slurm.conf",
    "old": "SlurmctldHost=ctl",
    "new": "# of its own\nSlurmctldHost=ctl",
}


LOG = "/var/log/slurm/slurmctld.log"
# Prints what the provisioning API says of the nodes.
ASK_API = f"""
import urllib.request
token = open("/etc/slurm/provision.token").read()
url = "http://127.0.0.1:{slurm_options.API_PORT}/v1/nodes"
request = urllib.request.Request(url, headers={{"Authorization": "Bearer " + token}})
print(urllib.request.urlopen(request, timeout=60).read().decode())
"""
# What slurmctld does with a node that does not resume: ResumeFailProgram powers it down, so that
# jobs can use it again. States that a poll sees are no evidence: on a busy machine it misses some.
GIVEN_UP_AND_BACK = ("resume-fail", "resume", "suspend")


@dataclass(frozen=True)
class Fate:
    """What happened to a job and its node, before the cause was fixed and after."""

    actions: list[str]
    resume_failed: bool
    ran_before: list[str]
    ran: list[str]


@pytest.fixture(scope="module")
def fates(failing: OpenRun) -> dict[str, Fate]:
    """Jobs whose hosts are all spoiled at once, each on its node; c5 resumes, for c4's job."""
    cluster = slurm.clusters(failing.ssh, failing.plan)["cloud"]
    wait_until_at_rest(failing, cluster)
    spoiled = {node: change for node, (_, change) in SPOILED.items()} | {"c6": OTHER_CONF}
    wanted = {node: "c[4-5]" if node == "c4" else node for node in spoiled}
    with spoiled_api(failing, spoiled):
        began = len(power_log(failing))
        job_of = {
            node: submit(cluster, "true", f"--nodelist={nodes}", f"--nodes={1 + (node == 'c4')}")
            for node, nodes in wanted.items()
        }
        cluster.wait_for([job_of["c6"]], {"COMPLETED"}, timeout=PATIENCE)
        failed = wait_until_given_up(failing, {*SPOILED}, began)
        # Until then the API wants these hosts up: the next one would create them without a fault,
        # and slurmctld would accept a slurmd that registers late.
        wait_until(
            lambda: {node: actions(failing, began, node) for node in SPOILED},
            lambda seen: all(in_turn(done, "resume-fail", "suspend") for done in seen.values()),
            what="the nodes that were given up to be suspended",
            timeout=PATIENCE,
        )
        before = {node: ran(failing, job_id) for node, job_id in job_of.items()}
    cluster.wait_for(job_of.values(), {"COMPLETED"}, timeout=PATIENCE)
    wait_until_at_rest(failing, cluster)
    return fates_of(failing, job_of, began, failed, before)


@contextmanager
def spoiled_api(run: OpenRun, spoiled: Mapping[str, Any]) -> Iterator[subprocess.Popen[bytes]]:
    """Make the API create faulty hosts while this is entered."""
    provisioning.stop(run.directory.id)
    script = Path(__file__).with_name("spoiled_api.py")
    arguments = [
        "harness.elastic.provisioning_api",
        str(run.directory.path),
        run.directory.id,
        json.dumps(spoiled),
    ]
    with subprocess.Popen(
        [sys.executable, str(script), *arguments], start_new_session=True
    ) as process:
        try:
            wait_for_api(run)
            yield process
        finally:
            process.send_signal(signal.SIGCONT)
            process.terminate()
    provisioning.start(run.directory)
    wait_for_api(run)


def wait_for_api(run: OpenRun) -> None:
    """Wait until the API answers on the controller."""
    wait_until(
        lambda: run.ssh.run("ctl", ["python3", "-c", ASK_API]),
        lambda _: True,
        what="the provisioning API to answer on ctl",
        timeout=PATIENCE,
        ignore=(CommandFailed,),
    )


@pytest.fixture
def cluster(failing: OpenRun) -> Iterator[SlurmCluster]:
    """The cluster; before and after each test its nodes are powered down and have no hosts."""
    cluster = slurm.clusters(failing.ssh, failing.plan)["cloud"]
    wait_until_at_rest(failing, cluster)
    yield cluster
    wait_until_at_rest(failing, cluster)


def wait_until_at_rest(run: OpenRun, cluster: SlurmCluster) -> None:
    wait_until(
        lambda: [
            node.state for node in cluster.nodes() if not node_state.is_powered_down(node.state)
        ],
        lambda left: not left,
        what="all nodes to power down",
        timeout=PATIENCE,
        ignore=(CommandFailed,),
    )
    wait_until(
        lambda: run.provider.hosts(run.directory.id),
        lambda there: {*there} == {"ctl"},
        what="all hosts to be removed",
        timeout=PATIENCE,
    )


def submit(cluster: SlurmCluster, body: str, *options: str) -> int:
    return cluster.submit(job_trace.script(body), "--output=/dev/null", *options, user="alice")


def ran(run: OpenRun, job_id: int) -> list[str]:
    """Return the hosts on which a job ran, one for each execution."""
    return [
        trace.host
        for trace in job_trace.collect(run.ssh, ["ctl"])
        if trace.key == job_key("cloud", job_id)
    ]


def resume_failed(run: OpenRun, since: int) -> set[str]:
    """Return the nodes for which ResumeFailProgram ran, starting at this offset of the log."""
    return {
        node for one in notes(run, since) if one["action"] == "resume-fail" for node in one["nodes"]
    }


def actions(run: OpenRun, since: int, node: str) -> list[str]:
    """Return what slurmctld's programs did to a node, starting at this offset of the log.

    Calls of the API without an answer are left out.
    """
    return [
        one["action"] for one in notes(run, since) if node in one["nodes"] and "problem" not in one
    ]


def notes(run: OpenRun, since: int) -> list[dict[str, Any]]:
    """Return what slurmctld's programs noted, starting at this offset of the log."""
    return [*map(json.loads, power_log(run)[since:].splitlines())]


def wait_until_given_up(run: OpenRun, nodes: set[str], since: int) -> set[str]:
    """Wait until ResumeFailProgram has run for these nodes; return all for which it has."""
    return wait_until(
        lambda: resume_failed(run, since),
        lambda failed: nodes <= failed,
        what="slurmctld to give the nodes up",
        timeout=PATIENCE,
    )


def fates_of(
    run: OpenRun,
    job_of: Mapping[str, int],
    since: int,
    failed: set[str],
    before: Mapping[str, list[str]],
) -> dict[str, Fate]:
    """Return the fate of each node and of its job, which has ended.

    `failed` are the nodes that were given up, and `before` is where the jobs had run by then.
    """
    return {
        node: Fate(actions(run, since, node), node in failed, before[node], ran(run, job_id))
        for node, job_id in job_of.items()
    }


def slurmctld_log(run: OpenRun) -> str:
    return run.ssh.run("ctl", ["cat", LOG]).stdout


def power_log(run: OpenRun) -> str:
    return run.ssh.run("ctl", ["cat", "/var/log/slurm/power.log"], check=False).stdout


def wait_for_state(cluster: SlurmCluster, node: str, flag: str, timeout: float = PATIENCE) -> None:
    wait_until(
        lambda: next(listed.state for listed in cluster.nodes() if listed.name == node),
        lambda state: flag in state.split("+"),
        what=f"{node} to be {flag}",
        timeout=timeout,
        interval=0.1,
        ignore=(CommandFailed,),
    )


@pytest.mark.parametrize("node", SPOILED, ids=[cause for cause, _ in SPOILED.values()])
def test_node_that_does_not_resume_is_given_up_and_its_job_runs_once_when_possible(
    fates: dict[str, Fate], node: str
) -> None:
    fate = fates[node]
    assert in_turn(fate.actions, "resume", *GIVEN_UP_AND_BACK), fate
    assert fate.resume_failed
    assert fate.ran_before == []
    assert fate.ran == [node]


@pytest.mark.parametrize(
    ("node", "why"),
    [("c2", "Unable to contact slurm controller"), ("c7", "munge has failed: ")],
)
@pytest.mark.usefixtures("fates")
def test_host_that_did_not_register_tells_why_before_it_is_removed(
    failing: OpenRun, node: str, why: str
) -> None:
    problems = [
        event["problem"]
        for event in failing.directory.events()
        if event.get("action") == "problem" and event["nodes"] == [node]
    ]
    assert any(why in problem for problem in problems), problems


def test_node_with_a_different_slurm_conf_is_accepted_and_slurmctld_logs_it(
    failing: OpenRun, fates: dict[str, Fate]
) -> None:
    fate = fates["c6"]
    # Its file was still different.
    assert fate.ran_before == fate.ran == ["c6"]
    log = failing.ssh.run("ctl", ["grep", "different slurm.conf", LOG]).stdout
    assert "c6" in log


def in_turn(seen: list[str], *wanted: str) -> bool:
    """Return whether each was seen, one after the other."""
    left = iter(seen)
    return all(action in left for action in wanted)


@pytest.fixture(scope="module")
def bad_programs(failing: OpenRun) -> dict[str, Fate]:
    """Jobs whose ResumeProgram fails for one node, and does not end for the other."""
    cluster = slurm.clusters(failing.ssh, failing.plan)["cloud"]
    wait_until_at_rest(failing, cluster)
    program = "/usr/local/sbin/slurm-resume"
    bad = "case $1 in c1) exit 1 ;; *) exec sleep 1000 ;; esac"
    began = len(power_log(failing))
    failing.ssh.run(
        "ctl",
        [
            "sh",
            "-c",
            f"mv {program} /root && printf '#!/bin/sh\n{bad}\n' > {program} && chmod 755 {program}",
        ],
    )
    try:
        job_of = {}
        # One after the other: slurmctld requests simultaneous nodes in one call.
        for node in ("c1", "c2"):
            job_of[node] = submit(cluster, "true", f"--nodelist={node}")
            wait_for_state(cluster, node, "POWERING_UP")
        failed = wait_until_given_up(failing, {*job_of}, began)
        before = {node: ran(failing, job_id) for node, job_id in job_of.items()}
    finally:
        failing.ssh.run("ctl", ["mv", "/root/slurm-resume", program])
    cluster.wait_for(job_of.values(), {"COMPLETED"}, timeout=PATIENCE)
    wait_until_at_rest(failing, cluster)
    return fates_of(failing, job_of, began, failed, before)


@pytest.mark.parametrize("node", ["c1", "c2"], ids=["fails", "hangs"])
def test_program_that_does_not_work_costs_a_resume_timeout_and_no_job(
    failing: OpenRun, bad_programs: dict[str, Fate], node: str
) -> None:
    fate = bad_programs[node]
    assert in_turn(fate.actions, *GIVEN_UP_AND_BACK), fate
    assert fate.resume_failed
    assert fate.ran_before == []
    assert fate.ran == [node]
    # slurmctld ends a program that hangs.
    assert failing.ssh.run("ctl", ["pgrep", "--full", "sleep 1000"], check=False).stdout == ""


def test_slurmd_that_registers_after_its_node_was_given_up_is_accepted_and_runs_the_job_once(
    failing: OpenRun, cluster: SlurmCluster
) -> None:
    late = {"file": "/etc/systemd/system/slurmd.service.d/options.conf", "old": "[Service]"}
    wait = "until [ -e /run/go ]; do sleep 0.2; done"
    late["new"] = f"[Service]\nTimeoutStartSec=infinity\nExecStartPre=/bin/sh -c '{wait}'"
    began = len(power_log(failing))
    with spoiled_api(failing, {"c1": late}) as api:
        earlier = len([*failing.directory.events()])
        job_id = submit(cluster, "true", "--nodelist=c1")
        wait_until(
            lambda: [*failing.directory.events()][earlier:],
            lambda events: any(event.get("action") == "up" for event in events),
            what="the API to have made c1",
            timeout=PATIENCE,
        )
        # Otherwise the host would be removed before its slurmd starts.
        api.send_signal(signal.SIGSTOP)
        wait_until_given_up(failing, {"c1"}, began)
        # slurmctld does not accept a slurmd that started before it resumed the node again.
        wait_for_state(cluster, "c1", "POWERING_UP")
        failing.ssh.run("c1", ["touch", "/run/go"])
        cluster.wait_for([job_id], {"COMPLETED"}, timeout=PATIENCE)
    assert ran(failing, job_id) == ["c1"]


def test_host_that_could_not_be_suspended_is_named(
    failing: OpenRun, cluster: SlurmCluster, harness: Harness
) -> None:
    began = len(power_log(failing))
    with spoiled_api(failing, {}) as api:
        job_id = submit(cluster, "until [ -e /run/go ]; do sleep 0.2; done", "--nodelist=c1")
        cluster.wait_for([job_id], {"RUNNING"}, timeout=PATIENCE)
        # Before slurmctld can ask the API to remove it.
        api.send_signal(signal.SIGSTOP)
        failing.ssh.run("c1", ["touch", "/run/go"], timeout=PATIENCE)
        cluster.wait_for([job_id], {"COMPLETED"}, timeout=PATIENCE)
        wait_until(
            lambda: notes(failing, began),
            lambda noted: any(note["action"] == "suspend" and "problem" in note for note in noted),
            what="suspend to fail",
            timeout=PATIENCE,
        )
        wait_for_state(cluster, "c1", "POWERED_DOWN")
        note = (
            "c1 runs, but slurmctld has powered it down: harness exec ctl --"
            " /usr/local/sbin/slurm-suspend c1"
        )
        wait_until(
            lambda: harness("status").stdout,
            lambda shown: note in shown,
            what="`harness status` to say what to do",
            timeout=PATIENCE,
        )
    # The API, which now continues, may still do it; a second request does no harm.
    failing.ssh.run("ctl", ["/usr/local/sbin/slurm-suspend", "c1"], timeout=PATIENCE)
    wait_until(
        lambda: {*failing.provider.hosts(failing.directory.id)},
        lambda hosts: "c1" not in hosts,
        what="c1 to be removed",
        timeout=PATIENCE,
    )
    assert note not in harness("status").stdout


def test_api_that_is_down_is_retried_until_it_answers(
    failing: OpenRun, cluster: SlurmCluster
) -> None:
    provisioning.stop(failing.directory.id)
    job_id = submit(cluster, "true", "--nodelist=c1")
    wait_for_state(cluster, "c1", "POWERING_UP")
    assert {*failing.provider.hosts(failing.directory.id)} == {"ctl"}
    provisioning.start(failing.directory)
    cluster.wait_for([job_id], {"COMPLETED"}, timeout=PATIENCE)
    assert ran(failing, job_id) == ["c1"]


def test_restart_of_slurmctld_while_nodes_come_up_loses_no_job(
    failing: OpenRun, cluster: SlurmCluster
) -> None:
    began = len(power_log(failing))
    job_id = submit(cluster, "true", "--nodelist=c2")
    # Not by its state: a poll can miss that c2 is POWERING_UP.
    wait_until(
        lambda: actions(failing, began, "c2"),
        lambda seen: "resume" in seen,
        what="slurmctld to resume c2",
        timeout=PATIENCE,
    )
    failing.ssh.run("ctl", ["systemctl", "restart", "slurmctld"], timeout=PATIENCE)
    cluster.wait_for([job_id], {"COMPLETED"}, timeout=PATIENCE)
    assert ran(failing, job_id) == ["c2"]


def test_job_whose_host_dies_is_requeued(failing: OpenRun, cluster: SlurmCluster) -> None:
    # Only its first run lasts until its host is gone.
    job_id = submit(cluster, '[ -n "$SLURM_RESTART_COUNT" ] || sleep 600', "--requeue")
    cluster.wait_for([job_id], {"RUNNING"}, timeout=PATIENCE)
    [node] = wait_until(
        lambda: ran(failing, job_id), bool, what="the job to start", timeout=PATIENCE
    )
    # The job must not run there again: if the node is back within seconds, the late message that it
    # failed can end the second run. slurmctld powers a node that is DOWN down after SuspendTime, so
    # that a poll can miss that state.
    facts = (f"Nodes={node}", "Users=root", "StartTime=now", "Duration=60", "Flags=IGNORE_JOBS")
    cluster.run("scontrol", "create", "ReservationName=lost", *facts)
    try:
        ability(failing.provider, CanCreate, "test").remove(failing.directory.id, node)
        cluster.wait_for([job_id], {"COMPLETED"}, timeout=PATIENCE)
    finally:
        cluster.run("scontrol", "delete", "ReservationName=lost")
    again = ran(failing, job_id)
    assert len(again) == 2
    assert {*again} > {node}


def test_last_of_contradicting_requests_counts(failing: OpenRun, cluster: SlurmCluster) -> None:
    for _ in range(2):
        for action in ("resume", "resume", "suspend", "resume", "suspend", "suspend"):
            failing.ssh.run("ctl", [f"/usr/local/sbin/slurm-{action}", "c[1-2]"])
    # Nothing may come back.
    wait_until(
        lambda: json.loads(failing.ssh.run("ctl", ["python3", "-c", ASK_API]).stdout),
        lambda nodes: not any(node["busy"] for node in nodes.values()),
        what="the API to have done all that it was asked for",
        timeout=PATIENCE,
        ignore=(CommandFailed,),
    )
    assert {*failing.provider.hosts(failing.directory.id)} == {"ctl"}


@pytest.mark.parametrize(
    ("spoil", "fix"),
    [("chmod 0644 FILE", "chmod 0755 FILE"), ("chmod 0777 FILE", "chmod 0755 FILE")],
    ids=["not executable", "writable by others"],
)
def test_program_that_slurmctld_refuses_keeps_the_job_waiting(
    failing: OpenRun, cluster: SlurmCluster, spoil: str, fix: str
) -> None:
    def do(script: str) -> None:
        program = "/usr/local/sbin/slurm-resume"
        failing.ssh.run("ctl", ["sh", "-c", script.replace("FILE", program)])
        reconfigure(cluster)

    began = len(slurmctld_log(failing))
    do(spoil)
    try:
        job_id = submit(cluster, "true", "--nodelist=c1")
        wait_until(
            lambda: slurmctld_log(failing)[began:],
            lambda text: re.search("error: .*ResumeProgram", text) is not None,
            what="slurmctld to refuse the program",
            timeout=PATIENCE,
        )
        assert {*failing.provider.hosts(failing.directory.id)} == {"ctl"}
    finally:
        do(fix)
    cluster.wait_for([job_id], {"COMPLETED"}, timeout=PATIENCE)
    assert ran(failing, job_id) == ["c1"]


def test_rates_spread_resumes_and_suspends(failing: OpenRun, cluster: SlurmCluster) -> None:
    nodes = ["c1", "c2", "c3"]
    began, logged = len(power_log(failing)), len(slurmctld_log(failing))
    # A minute: one node may go every three seconds, and one permission can be saved up.
    with rates(cluster, 20):
        cluster.wait_for(
            [submit(cluster, "sleep 8", f"--nodelist={node}") for node in nodes],
            {"COMPLETED"},
            timeout=PATIENCE,
        )
        wait_until_at_rest(failing, cluster)
    noted = notes(failing, began)
    # The programs start later than slurmctld decides, on a busy machine by seconds.
    decisions = [*logs.dated(slurmctld_log(failing)[logged:].splitlines(), "+0000")]
    for action, words in (("resume", "waking nodes"), ("suspend", "suspending nodes")):
        requests = [note for note in noted if note["action"] == action and "problem" not in note]
        assert sorted(node for note in requests for node in note["nodes"]) == nodes
        times = [at for at, text in decisions if f"power_save: {words} " in text]
        assert len(requests) == len(times) == len(nodes), (requests, times)
        # Three seconds lie between the first and the last decision.
        assert times[2] - times[0] > 2, times


@contextmanager
def rates(cluster: SlurmCluster, rate: int) -> Iterator[None]:
    """Set both rates for a while, in which no node is given up, however slow it is."""
    conf = "/etc/slurm/slurm.conf"
    change = (
        f"s/^\\(ResumeRate\\|SuspendRate\\)=.*/\\1={rate}/;"
        "s/^\\(ResumeTimeout\\|SlurmdTimeout\\)=.*/\\1=600/"
    )
    cluster.run("sh", "-c", f"cp -p {conf} {conf}.before; sed -i '{change}' {conf}")
    reconfigure(cluster)
    try:
        yield
    finally:
        cluster.run("mv", f"{conf}.before", conf)
        reconfigure(cluster)
