"""The actions that `harness diff` says a change needs: on a live cluster, exactly these suffice."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.cluster import slurm
from harness.errors import WaitTimeout
from harness.open_run import OpenRun
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
SUBMIT = "sbatch --parsable --output=/dev/null --wrap=true"
NEW_NODE = (
    "NodeName=c5 NodeHostname=sim2 NodeAddr=sim2 Port=20003 CPUs=2 RealMemory=400 State=UNKNOWN"
)


@dataclass(frozen=True)
class Commonest:
    """A change as a sed script, and what it needs to take effect.

    A command prints a text once the change is effective. `documented`: slurm.conf(5) asks for more
    than this cluster needs.
    """

    option: str
    change: str
    probe: str
    effect: str
    before_23_11: str
    since: str
    file: str = "slurm.conf"
    documented: bool = False

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
        "timeout 15 runuser -u alice -- srun -C fast echo ran",
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
    # The last, because commands use the port in slurm.conf.
    Commonest(
        "SlurmctldPort", "s/^SlurmctldPort=.*/SlurmctldPort=6827/", "ss -ltn", ":6827", "all", "all"
    ),
]


@pytest.fixture(scope="module", params=["22.05", "24.11"])
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
        prolog = "/usr/local/bin/prolog"
        on_all(
            run,
            f"printf '#!/bin/sh\\necho yes > /tmp/prolog-ran\\n' > {prolog}; chmod 755 {prolog}",
        )
        yield run


def on_all(run: OpenRun, script: str) -> None:
    """Run a shell script on every host."""
    for host in run.plan.hosts:
        run.ssh.run(host.name, ["sh", "-c", script])


def take(run: OpenRun, need: str) -> None:
    """Perform an action that releases/needed_actions.toml names."""
    if need == "reconfigure":
        run.ssh.run("sim1", ["scontrol", "reconfigure"], check=False)
    elif need == "reload":
        run.ssh.run("sim1", ["systemctl", "reload", "slurmdbd"])
    else:
        run.ssh.run("sim1", ["systemctl", "stop", "slurmctld"])
        if need == "all":
            on_all(run, "systemctl restart slurmd")
        run.ssh.run("sim1", ["systemctl", "start", "slurmctld"])


def seen(run: OpenRun, change: Commonest, timeout: float) -> bool:
    """Return whether a change takes effect within some seconds."""
    try:
        wait_until(
            lambda: run.ssh.run("sim1", ["sh", "-c", change.probe], check=False).stdout,
            lambda text: re.search(change.effect, text, re.M) is not None,
            what=f"{change} to take effect",
            timeout=timeout,
        )
    except WaitTimeout:
        return False
    return True


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_most_common_changes_need_what_diff_says(
    cluster: OpenRun, harness: Harness, change: Commonest
) -> None:
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
        one["option"]: one["needs"]
        for one in json.loads(comparison.stdout)["changes"]
        if one["file"] == change.file
    }
    need = change.before_23_11 if cluster.plan.scenario.release < "23.11" else change.since
    assert found.get(change.option) == need

    if need in {"all", "slurmctld"} and not change.documented:
        take(cluster, "reconfigure")
        assert not seen(cluster, change, timeout=2), "scontrol reconfigure would have been enough"
    take(cluster, need)
    assert seen(cluster, change, timeout=60), run.run(
        "scontrol", "show", "config", check=False
    ).stdout
