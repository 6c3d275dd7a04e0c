"""The order in which rendered trees are put on machines of one's own, as a script to read and run. Pure."""

from __future__ import annotations

import shlex

from harness.plan import DAEMONS, Host, Plan
from harness.render import RenderedFile, Tree, template

# A host comes with the first of its daemons.
_STAGES = {
    "slurmdbd": "The accounting host",
    "slurmctld": "The controllers",
    "slurmrestd": "The REST API",
    "slurmd": "The nodes",
}


def script(plan: Plan, tree: Tree) -> str:
    """Return a shell script that lies beside the trees: slurmdbd first, then the controllers, then the nodes.

    That is the order of Slurm's guide to upgrades, too: no daemon is ever newer than the one it reports to.
    """
    stages: dict[str, list[Host]] = {title: [] for title in _STAGES.values()}
    # Hosts that come and go get their files when they are made.
    for host in plan.lasting_hosts():
        first = next((title for daemon, title in _STAGES.items() if daemon in host.daemons), _STAGES["slurmd"])
        stages[first].append(host)
    steps = {
        title: [(host.name, _command(plan, host, tree[host.name])) for host in hosts]
        for title, hosts in stages.items()
        if hosts
    }
    if (client := plan.accounting_client()) and plan.has_late_objects():
        last = next(title for title, hosts in reversed(stages.items()) if set(hosts) & {*plan.with_daemon("slurmctld")})
        steps[last].append((client.name, "/usr/local/sbin/slurm-accounting-objects late"))
    return template("/install.sh", name=plan.name, accounting=plan.scenario.accounting, stages=steps)


def _command(plan: Plan, host: Host, files: tuple[RenderedFile, ...]) -> str:
    """Return what is to be done on a host once its files are there."""
    steps = []
    if any(file.path.startswith("/etc/sysusers.d/") for file in files):
        steps.append("systemd-sysusers")
    if any(file.path.startswith("/etc/systemd/") for file in files):
        steps.append("systemctl daemon-reload")
    steps += [
        f"systemd-tmpfiles --create {shlex.quote(file.path)}"
        for file in files
        if file.path.startswith("/etc/tmpfiles.d/")
    ]
    for file in files:
        path = shlex.quote(file.path)
        # A munge key may be the site's own, and then it is not among the files.
        there = f"[ ! -e {path} ] || " if file.path == "/etc/munge/munge.key" else ""
        if (file.owner, file.group) != ("root", "root"):
            steps.append(f"{there}chown {shlex.quote(f'{file.owner}:{file.group}')} {path}")
        if file.mode != "0644":
            steps.append(f"{there}chmod {file.mode} {path}")
    steps.append(f"systemctl enable --quiet {' '.join(host.daemons)}")
    for daemon in (daemon for daemon in DAEMONS if daemon in host.daemons):
        if daemon == "slurmctld" and host == plan.accounting_client():
            steps.append("/usr/local/sbin/slurm-accounting-objects")
        steps.append(f"systemctl restart {daemon}")
    return "; ".join(steps)
