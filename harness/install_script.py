"""A script that installs a rendered tree on your own machines, in the right order. Pure."""

from __future__ import annotations

import shlex

from harness.plan import DAEMONS, Host, Plan
from harness.render import RenderedFile, Tree, template

# A host belongs to the stage of the first of its daemons in this list.
_STAGES = {
    "slurmdbd": "The accounting host",
    "slurmctld": "The controllers",
    "slurmrestd": "The REST API",
    "sackd": "The login hosts",
    "slurmd": "The nodes",
    "slapd": "The directory of users",
    "dnsmasq": "The DNS servers",
    "prometheus": "Prometheus",
}


def script(plan: Plan, tree: Tree) -> str:
    """Return a shell script that installs the tree next to it.

    slurmdbd comes first, then the controllers, then the nodes, as in Slurm's guide to upgrades: no
    daemon is ever newer than the one that it reports to.
    """
    stages: dict[str, list[Host]] = {title: [] for title in _STAGES.values()}
    # Hosts that come and go get their files when they are created.
    for host in plan.permanent_hosts():
        first = next(
            (title for daemon, title in _STAGES.items() if daemon in host.daemons),
            _STAGES["slurmd"],
        )
        stages[first].append(host)
    steps = {
        title: [(host.name, _command(plan, host, tree[host.name])) for host in hosts]
        for title, hosts in stages.items()
        if hosts
    }
    if (client := plan.accounting_client()) and plan.has_late_objects():
        last = next(
            title
            for title, hosts in reversed(stages.items())
            if set(hosts) & {*plan.with_daemon("slurmctld")}
        )
        steps[last].append((client.name, "/usr/local/sbin/slurm-accounting-objects late"))
    return template(
        "/install.sh",
        name=plan.name,
        auth=plan.scenario.auth,
        accounting=plan.scenario.accounting,
        stages=steps,
    )


def _command(plan: Plan, host: Host, files: tuple[RenderedFile, ...]) -> str:
    """Return the command to run on a host after its files are installed."""
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
        # A site may have its own munge key, which is not among the files.
        unless_absent = f"[ ! -e {path} ] || " if file.path == "/etc/munge/munge.key" else ""
        if (file.owner, file.group) != ("root", "root"):
            steps.append(f"{unless_absent}chown {shlex.quote(f'{file.owner}:{file.group}')} {path}")
        if file.mode != "0644":
            steps.append(f"{unless_absent}chmod {file.mode} {path}")
    steps.append(f"systemctl enable --quiet {' '.join(host.daemons)}")
    creates_objects = "/usr/local/sbin/slurm-accounting-objects"
    for daemon in (daemon for daemon in DAEMONS if daemon in host.daemons):
        if daemon == "slurmctld" and host == plan.accounting_client():
            steps.append(creates_objects)
        steps.append(f"systemctl restart {daemon}")
        if (
            daemon == "slurmdbd"
            and "slurmctld" not in host.daemons
            and host == plan.accounting_client()
        ):
            steps.append(creates_objects)
        if daemon == "slurmctld" and host in plan.with_reservations():
            steps.append("until scontrol ping | grep --quiet UP; do sleep 1; done")
            steps.append("/usr/local/sbin/slurm-reservations")
    return "; ".join(steps)
