"""The actions that `harness diff` says a change needs: on a live cluster, exactly these suffice."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness import releases
from harness.cluster import node_state, slurm
from harness.errors import WaitTimeout
from harness.open_run import OpenRun
from harness.slurmconf import canonical, drift
from harness.wait import wait_until
from support import Harness, deployed

SCENARIO = """
description: Nodes that share hosts, to change their configuration.
release: "{release}"
clusters:
  one:
    controller: sim1
    hosts: sim[1-2]
    nodes: [{{name: "c[1-4]", cpus: 2}}]
    options:
      SchedulerParameters: batch_sched_delay=0,sched_min_interval=0,sched_interval=2
      SlurmctldDebug: info
accounting:
  host: sim1
  accounts: {{physics: {{}}}}
  slurmdbd: {{PurgeJobAfter: 12months}}
users: {{alice: {{uid: 2001, accounts: [physics]}}, stranger: {{uid: 2002}}}}
"""
# Held: the jobs that the probes leave are not in the way of others.
SUBMIT = "sbatch --hold --parsable --output=/dev/null --wrap=true"
# Fails unless each slurmd that runs listens, which it does after it has read its configuration.
SERVING = """
for pid in $(systemctl show --property MainPID --value 'slurmd@*'); do
  [ "$pid" = 0 ] || ss -ltnp | grep -q "pid=$pid," || exit 1
done
"""
NEW_NODE = (
    "NodeName=c5 NodeHostname=sim2 NodeAddr=sim2 Port=20003 CPUs=2 RealMemory=400 State=UNKNOWN"
)


@dataclass(frozen=True)
class Commonest:
    """A change as a sed script, and what it needs to take effect.

    A command prints a text once the change is effective. `documented`: slurm.conf(5) asks for more
    than this cluster needs. `drain` are the nodes to drain.
    """

    option: str
    change: str
    probe: str
    effect: str
    before_23_11: str
    since: str
    file: str = "slurm.conf"
    documented: bool = False
    drain: str = ""

    def __str__(self) -> str:
        return self.option


CHANGES = [
    Commonest(
        "PartitionName main MaxTime",
        "s/^PartitionName=main/& MaxTime=30/",
        "scontrol show partition main",
        "MaxTime=00:30:00",
        "reconfigure",
        "reconfigure",
    ),
    Commonest(
        "NodeName c[1-2] Weight",
        "s/^NodeName=c.*sim1 .*/& Weight=7/",
        "scontrol show node c1",
        "Weight=7",
        "reconfigure",
        "reconfigure",
    ),
    Commonest(
        "NodeName c[1-4] Features",
        "s/^NodeName=c.*/& Features=fast/",
        "timeout 45 runuser -u alice -- srun -C fast echo ran",
        "ran",
        "reconfigure",
        "reconfigure",
    ),
    Commonest(
        "NodeName c[1-4] RealMemory",
        "s/RealMemory=500/RealMemory=400/",
        "scontrol show node c1",
        "RealMemory=400",
        "all",
        "reconfigure",
        documented=True,
    ),
    Commonest(
        "Prolog",
        "$ a Prolog=/usr/local/bin/prolog",
        "timeout 15 runuser -u alice -- srun -w c1 true; cat /tmp/prolog-ran",
        "yes",
        "reconfigure",
        "reconfigure",
    ),
    Commonest(
        "SlurmctldDebug",
        "s/^SlurmctldDebug=.*/SlurmctldDebug=debug2/",
        "scontrol ping > /dev/null; cat /var/log/slurm/slurmctld.log",
        "debug2: ",
        "reconfigure",
        "reconfigure",
    ),
    Commonest(
        "MaxArraySize",
        "$ a MaxArraySize=5",
        f"runuser -u alice -- {SUBMIT} --array=0-9 2>&1",
        "Invalid job array specification",
        "slurmctld",
        "reconfigure",
    ),
    Commonest(
        "AccountingStorageEnforce",
        "/^AccountingStorageEnforce=/ d",
        f"runuser -u stranger -- {SUBMIT} 2>&1",
        r"^\d+$",
        "slurmctld",
        "reconfigure",
    ),
    Commonest(
        "NodeName c5 added",
        f"$ a {NEW_NODE}",
        "scontrol show node c5",
        "NodeName=c5",
        "all",
        "reconfigure",
    ),
    Commonest(
        "PurgeJobAfter",
        "s/^PurgeJobAfter=.*/PurgeJobAfter=6months/",
        "sacctmgr show config",
        "PurgeJobAfter += 6 months",
        "reload",
        "reload",
        file="slurmdbd.conf",
    ),
    Commonest(
        "NodeName c4 removed",
        r"s/^NodeName=c\[3-4\]\(.*Port=\)\S*/NodeName=c3\120001/",
        "scontrol show node c4 2>&1",
        "not found",
        "all",
        "reconfigure",
        drain="c4",
    ),
    Commonest(
        "NodeName c3 CPUs",
        "/^NodeName=c3 / s/CPUs=2/CPUs=1/",
        "scontrol show node c3",
        "CPUTot=1",
        "all",
        "reconfigure",
        documented=True,
        drain="c3",
    ),
    Commonest(
        "SlurmctldParameters",
        "$ a SlurmctldParameters=enable_configless",
        # A slurmd of a node that does not exist fetches the files, and then does not find itself.
        "timeout 45 slurmd -D -N nobody --conf-server sim1 2>&1",
        "nobody",
        "slurmctld",
        "reconfigure",
    ),
    Commonest(
        "SlurmdLogFile",
        "s,^SlurmdLogFile=.*,SlurmdLogFile=/var/log/slurm/other-%n.log,",
        "ls /var/log/slurm",
        "other-c1.log",
        "slurmd",
        "reconfigure",
    ),
    Commonest(
        "SrunProlog",
        "$ a SrunProlog=/usr/local/bin/srun-prolog",
        "timeout 15 srun -w c3 true; cat /tmp/srun-prolog-ran",
        "yes",
        "nothing",
        "nothing",
    ),
    Commonest(
        "PidFile",
        "s,^PidFile=.*,PidFile=/run/slurmdbd/other.pid,",
        "ls /run/slurmdbd",
        "other.pid",
        "slurmdbd",
        "slurmdbd",
        file="slurmdbd.conf",
    ),
    # The last, because commands use the port in slurm.conf.
    Commonest(
        "SlurmctldPort", "s/^SlurmctldPort=.*/SlurmctldPort=6827/", "ss -ltn", ":6827", "all", "all"
    ),
    Commonest(
        "ClusterName",
        "s/^ClusterName=.*/ClusterName=two/",
        "scontrol show config",
        "ClusterName += two",
        "state",
        "state",
    ),
]
# Lines of slurm.conf with several options that have defaults.
KINDS = {"NodeName", "PartitionName"}
# The most that does not suffice for an action.
LESS = {
    "all": "reconfigure",
    "slurmctld": "reconfigure",
    "slurmd": "reconfigure",
    "slurmdbd": "reload",
    "state": "slurmctld",
}


@pytest.fixture(
    scope="module", params=[pytest.param("22.05", marks=pytest.mark.exhaustive), "24.11"]
)
def cluster(
    request: pytest.FixtureRequest,
    harness: Harness,
    runs: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[OpenRun]:
    """A cluster that is up; the changes are cumulative."""
    path = tmp_path_factory.mktemp("scenario") / f"changed-{request.param}.yml"
    path.write_text(SCENARIO.format(release=request.param))
    with deployed(harness, runs, path) as run:
        for name in ("prolog", "srun-prolog"):
            program = f"/usr/local/bin/{name}"
            script = f"#!/bin/sh\\necho yes > /tmp/{name}-ran\\n"
            on_all(run, f"printf '{script}' > {program}; chmod 755 {program}")
        yield run


def on_all(run: OpenRun, script: str) -> None:
    """Run a shell script on every host."""
    for host in run.plan.hosts:
        run.ssh.run(host.name, ["sh", "-c", script], timeout=300)


def take(run: OpenRun, need: str) -> None:
    """Perform an action that releases/needed_actions.toml names, until the slurmds serve."""
    if need == "reconfigure":
        run.ssh.run("sim1", ["scontrol", "reconfigure"], check=False, timeout=300)
    elif need == "reload":
        run.ssh.run("sim1", ["systemctl", "reload", "slurmdbd"], timeout=300)
    elif need == "slurmdbd":
        run.ssh.run("sim1", ["systemctl", "restart", "slurmdbd"], timeout=300)
    elif need == "slurmd":
        on_all(run, "systemctl restart slurmd")
    elif need == "stop":
        on_all(run, "systemctl stop slurmctld slurmd")
        on_all(run, "systemctl start slurmd")
        run.ssh.run("sim1", ["systemctl", "start", "slurmctld"], timeout=300)
    elif need in {"all", "slurmctld", "state"}:
        run.ssh.run("sim1", ["systemctl", "stop", "slurmctld"], timeout=300)
        if need == "all":
            on_all(run, "systemctl restart slurmd")
        if need == "state":
            run.ssh.run("sim1", ["rm", "/var/lib/slurm/slurmctld/clustername"])
        run.ssh.run("sim1", ["systemctl", "start", "slurmctld"], check=False, timeout=300)
    # A slurmd that reads its configuration later would read that of the next change.
    for host in run.plan.hosts:
        wait_until(
            lambda name=host.name: run.ssh.run(name, ["sh", "-c", SERVING], check=False).exit_code,
            lambda code: code == 0,
            what=f"the slurmds of {host.name} to listen",
            timeout=180,
        )


def seen(run: OpenRun, change: Commonest, timeout: float) -> bool:
    """Return whether a change takes effect within some seconds."""
    try:
        wait_until(
            lambda: (
                run.ssh.run("sim1", ["sh", "-c", change.probe], check=False, timeout=180).stdout
            ),
            lambda text: re.search(change.effect, text, re.M) is not None,
            what=f"{change} to take effect",
            timeout=timeout,
            ignore=(WaitTimeout,),
        )
    except WaitTimeout:
        return False
    return True


def respelled(text: str, release: str) -> str:
    """Return a slurm.conf that spells out all defaults, and sets an option twice."""
    lines = ["MaxJobCount=7"]
    for line in text.splitlines():
        kind = line.partition("=")[0]
        section = f"slurm.conf {kind}"
        more = spelled_out(release, section, line) if kind in KINDS else []
        lines.append(" ".join([line, *more]))
    return "\n".join([*lines, *spelled_out(release, "slurm.conf", text), ""])


def spelled_out(name: str, section: str, text: str) -> list[str]:
    """Return the defaults of the options that a text does not set."""
    release = releases.get(name)
    known = release.options[section]
    written = {key.lower() for key in re.findall(r"(\w+)=", text)}
    return [
        f'{known[key].name.upper()}="{value}"'
        for key, value in canonical.defaults(name, section).items()
        if key in known
        and key not in written
        and not re.search("[:,] ", value)  # a sentence
        and canonical.same(release, section, key, None, value)
    ]


def printed(run: OpenRun) -> dict[tuple[str, str], str]:
    """Return the options that slurmctld prints, except what changes with time."""
    show = "scontrol show config; scontrol --oneliner show node; scontrol --oneliner show partition"
    text = run.ssh.run("sim1", ["sh", "-c", show], check=False).stdout
    lines = {"config": drift.printed(text), **drift.printed_lines(text)}
    return {
        (name, key): drift.canonical(key, value)
        for name, line in lines.items()
        for section in ("slurm.conf", "slurm.conf NodeName", "slurm.conf PartitionName")
        for key in canonical.defaults(run.plan.scenario.release, section).keys() - {"state"}
        if (value := line.get(key)) is not None
    }


def test_default_that_is_spelled_out_changes_nothing(cluster: OpenRun, harness: Harness) -> None:
    path = "/etc/slurm/slurm.conf"
    before = printed(cluster)
    text = cluster.ssh.run("sim1", ["cat", path]).stdout
    spelled = respelled(text, cluster.plan.scenario.release)
    try:
        on_all(cluster, f"printf %s {shlex.quote(spelled)} > {path}")
        comparison = harness("diff", cluster.directory.path / "tree", cluster.directory.path)
        assert "Slurm reads the same from both" in comparison.stdout, comparison.stdout
        take(cluster, "all")
        after = wait_until(
            lambda: printed(cluster),
            lambda options: options.keys() >= before.keys(),
            what="slurmctld to answer",
            timeout=180,
        )
        assert after == before
    finally:
        on_all(cluster, f"printf %s {shlex.quote(text)} > {path}")
        take(cluster, "all")


def test_credentials_change_only_when_every_daemon_was_stopped(
    cluster: OpenRun, harness: Harness
) -> None:
    path = "/etc/slurm/slurm.conf"

    def job() -> tuple[int, str]:
        srun = ["timeout", "45", "runuser", "-u", "alice", "--", "srun", "-w", "c1", "true"]
        done = cluster.ssh.run("sim1", srun, check=False, timeout=120)
        return done.exit_code, done.stdout + done.stderr

    # The previous test may have just restarted the daemons.
    wait_until(job, lambda ended: not ended[0], what="a job to run", timeout=180)
    change = "/^CredType=/ d; $ a CredType=cred/none"
    on_all(cluster, f"cp {path} {path}.before; sed -i '{change}' {path}")
    try:
        tree = cluster.directory.path / "tree"
        answer = harness("diff", tree, cluster.directory.path, "--format", "json").stdout
        changes = {one["option"]: one for one in json.loads(answer)["changes"]}
        assert (changes["CredType"]["needs"], changes["CredType"]["nodes"]) == ("stop", "c[1-4]")
        take(cluster, "slurmctld")
        code, text = wait_until(
            job,
            lambda ended: not ended[0] or "failed on node c1" in ended[1],
            what="slurmctld to start the job",
            timeout=180,
        )
        assert code, f"slurmctld alone would have been enough: {text}"
        take(cluster, "stop")
        wait_until(job, lambda ended: not ended[0], what="a job to run", timeout=180)
    finally:
        on_all(cluster, f"mv {path}.before {path}")
        take(cluster, "stop")


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_most_common_changes_need_what_diff_says(
    cluster: OpenRun, harness: Harness, change: Commonest
) -> None:
    # The previous test may have just restarted it, and a reconfiguration would get no answer.
    wait_until(
        lambda: cluster.ssh.run("sim1", ["scontrol", "ping"], check=False).stdout,
        lambda text: "is UP" in text,
        what="slurmctld to be up",
        timeout=180,
    )
    assert not seen(cluster, change, timeout=0), "the probe sees what is not there yet"
    run = slurm.clusters(cluster.ssh, cluster.plan)["one"]
    on_all(
        cluster,
        f"[ ! -e /etc/slurm/{change.file} ] || sed -i '{change.change}' /etc/slurm/{change.file}",
    )

    comparison = harness(
        "diff", cluster.directory.path / "tree", cluster.directory.path, "--format", "json"
    )
    assert comparison.returncode == 0, comparison.stderr
    found = {
        entry["option"]: (entry["needs"], entry["nodes"])
        for entry in json.loads(comparison.stdout)["changes"]
        if entry["file"] == change.file
    }
    need = change.before_23_11 if cluster.plan.scenario.release < "23.11" else change.since
    assert found.get(change.option) == (need, change.drain)

    if change.drain:
        state = ["scontrol", "update", f"NodeName={change.drain}", "Reason=changed"]
        cluster.ssh.run("sim1", [*state, "State=DRAIN"])
    if need in LESS and not change.documented:
        take(cluster, LESS[need])
        assert not seen(cluster, change, timeout=5), f"{LESS[need]} would have been enough"
    take(cluster, need)
    assert seen(cluster, change, timeout=180), run.run(
        "scontrol", "show", "config", check=False
    ).stdout
    if change.drain and "removed" not in change.option:
        resume = ["scontrol", "update", f"NodeName={change.drain}", "State=RESUME"]
        # "Invalid node state specified" for a node that has not registered again, which is resumed
        # all the same: update_node() in Slurm's node_mgr.c.
        cluster.ssh.run("sim1", resume, check=False)
        wait_until(
            lambda: [node.state for node in run.nodes() if node.name == change.drain],
            lambda states: not any(map(node_state.is_draining, states)),
            what=f"{change.drain} to be resumed",
            timeout=60,
        )


def test_new_qos_needs_the_program_that_diff_names(
    cluster: OpenRun, harness: Harness, tmp_path: Path
) -> None:
    path = tmp_path / "with-qos.yml"
    text = SCENARIO.format(release=cluster.plan.scenario.release)
    accounts = "  accounts: {physics: {}}\n"
    path.write_text(text.replace(accounts, f"{accounts}  qos: {{fast: {{}}}}\n"))

    def needed(before: Path, after: Path) -> dict[str, tuple[str, str]]:
        changes = json.loads(harness("diff", before, after, "--format", "json").stdout)["changes"]
        return {
            one["option"]: (one["needs"], one["why"]) for one in changes if "qos" in one["option"]
        }

    def qos() -> list[str]:
        show = ["sacctmgr", "--noheader", "--parsable2", "show", "qos", "format=name"]
        return cluster.ssh.run("sim1", show).stdout.split()

    tree = cluster.directory.path / "tree"
    assert needed(tree, path) == {"qos fast added": ("objects", "")}
    assert "fast" not in qos()
    new = tmp_path / "tree"
    assert harness("render", path, "-o", new).returncode == 0
    program = "/usr/local/sbin/slurm-accounting-objects"
    cluster.ssh.run("sim1", ["sh", "-c", (new / "sim1" / program[1:]).read_text()], timeout=600)
    assert "fast" in qos()

    [(option, (need, command))] = needed(path, tree).items()
    assert (option, need) == ("qos fast removed", "sacctmgr")
    cluster.ssh.run("sim1", ["sh", "-c", (tree / "sim1" / program[1:]).read_text()], timeout=600)
    assert "fast" in qos(), "the program would have been enough"
    cluster.ssh.run("sim1", [*shlex.split(command), "--immediate"])
    assert "fast" not in qos()
