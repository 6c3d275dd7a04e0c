"""Faults: what breaks on purpose, and is healed again whatever happens.

A fault is written down in the run's directory before it is injected, so that a later command can heal it; it counts
as active only once it is injected. What a fault puts aside stays on the host, in a directory that only root can read.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from harness import logs, options, slurm
from harness.errors import (
    CannotJudge,
    ClusterError,
    CommandFailed,
    HarnessError,
    Unreachable,
    UsageError,
    WaitTimeout,
)
from harness.live import Live
from harness.plan import DAEMONS, Host, Plan
from harness.providers import Drop
from harness.rundir import RunDir
from harness.slurm import Node
from harness.wait import wait_until

_ASIDE = "/var/lib/slurm-harness/faults"
# Seconds for what restarts daemons; a database may be slow.
_PATIENCE = 300
# What slurmctld says of a node that it did not ask to reboot.
_REBOOTED = "Node unexpectedly rebooted"
# The daemons that keep state. Each has a systemd unit of its name.
_KEEP_STATE = ("slurmctld", "slurmdbd", "mariadb")
# Faults that can end slurmctld in the middle of a save.
_ABRUPT = {"kill-daemon", "kill-host"}
# Stops slurmctld and exits with 0, or, if it is writing a state file in directory $1, lets it continue and
# exits with 1. All threads must have stopped: one that waits for the disk stops only when its rename() is
# done. An older FILE.new was left by a slurmctld that was killed.
_STOP_BETWEEN_SAVES = """
    process=$(systemctl show --value --property=MainPID slurmctld)
    [ "$process" -gt 0 ] || exit 0
    running() { sed 's/.*) //' /proc/"$process"/task/*/stat | grep --quiet --invert-match ^T; }
    kill -STOP "$process"
    for try in $(seq 100); do running || break; sleep 0.05; done
    if ! running && [ -z "$(find "$1" -maxdepth 1 -name '*.new' -newermt '60 seconds ago')" ]; then exit 0; fi
    kill -CONT "$process"
    exit 1
"""
# With this a script says that it changed nothing.
_NOTHING_DONE = 3
# What the note of a fault has until it is injected.
_BEGUN = "begun"


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: its kind, the host or site that it strikes, and what else the kind wants to know."""

    kind: str
    on: str
    more: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, [self.kind, self.on, self.more]))


@dataclass(frozen=True, slots=True)
class Kind:
    """What a fault does, what it wants to know besides its host, and how it is injected and healed.

    Scripts are for root on the host, with what else the kind wants to know as $1, and a directory of the fault's own as
    $aside; functions are for what the host cannot do to itself.
    """

    says: str
    inject: str | Callable[[Live, Fault], None]
    heal: str | Callable[[Live, Fault], None]
    wants: str = ""


def _kill_host(live: Live, fault: Fault) -> None:
    live.provider.kill(live.run.id, fault.on)


def _start_host(live: Live, fault: Fault) -> None:
    if not live.provider.hosts(live.run.id).get(fault.on):
        live.start_host(fault.on)
    _resume_nodes(live, fault.on)


def _resume_nodes(live: Live, name: str) -> None:
    """Resume the nodes of a host that slurmctld keeps DOWN because they rebooted: slurm.conf(5), ReturnToService.

    Hosts without a kernel of their own have rebooted when their engine's machine has (validate_node_specs in
    slurmctld's node_mgr.c). A controller that does not answer, as another fault may have it, is not waited for long.
    """
    host = next(host for host in live.plan.hosts if host.name == name)
    if not (live.plan.offers.own_kernel and host.cluster and "slurmd" in host.daemons):
        return
    cluster = slurm.clusters(live.ssh, live.plan)[host.cluster]
    show = 'date -d "$(systemctl show --property=ExecMainStartTimestamp --value slurmd)" +%s'

    def registered() -> list[Node]:
        started = int(live.ssh.run(name, ["sh", "-c", show]).stdout)
        nodes = [node for node in cluster.nodes() if node.name in host.nodes]
        return [node for node in nodes if (node.slurmd_start or 0) >= started]

    try:
        nodes = wait_until(
            registered,
            lambda nodes: len(nodes) == len(host.nodes),
            what=f"{name} to register",
            timeout=_PATIENCE,
            ignore=(CommandFailed, Unreachable),
        )
    except WaitTimeout as error:
        live.say(str(error))
        return
    for node in nodes:
        if "DOWN" in node.state and _REBOOTED in node.reason:
            cluster.run("scontrol", "update", f"NodeName={node.name}", "State=RESUME")


def _reboot(live: Live, fault: Fault) -> None:
    live.provider.stop(live.run.id, fault.on)
    live.start_host(fault.on)


def _pause_host(live: Live, fault: Fault) -> None:
    live.provider.pause(live.run.id, fault.on)


def _unpause_host(live: Live, fault: Fault) -> None:
    live.provider.unpause(live.run.id, fault.on)


def _set_filters(live: Live, fault: Fault) -> None:
    """Have the hosts that a fault is about drop what the faults that are written down want dropped."""
    _filter(live, fault, noted_in(live.run))


def _unset_filters(live: Live, fault: Fault) -> None:
    """Have the hosts that a fault is about drop what the other faults want dropped."""
    _filter(live, fault, [other for other in noted_in(live.run) if other != fault])


def _filter(live: Live, fault: Fault, faults: Sequence[Fault]) -> None:
    drops: dict[str, list[Drop]] = {host: [] for host, _ in _drops(live, fault)}
    for host, drop in (wanted for one in faults for wanted in _drops(live, one)):
        if host in drops:
            drops[host].append(drop)
    there = live.provider.hosts(live.run.id)
    with ThreadPoolExecutor(8) as pool:
        up = [host for host in drops if there.get(host)]
        list(pool.map(lambda host: live.provider.drop(live.run.id, host, drops[host]), up))


def _drops(live: Live, fault: Fault) -> Iterator[tuple[str, Drop]]:
    """Yield which hosts drop what for a fault."""
    if fault.kind == "block-port":
        yield fault.on, Drop(port=int(fault.more))
    elif fault.kind in {"cut", "cut-one-way"}:
        for one in _hosts(live, fault.on):
            for other in _hosts(live, fault.more):
                yield other, Drop(source=one)
                if fault.kind == "cut":
                    yield one, Drop(source=other)


def _hosts(live: Live, name: str) -> list[str]:
    """Return the hosts of a site, or the one host of that name."""
    return [host.name for host in live.plan.hosts if name in {host.site, host.name}]


_START = 'systemctl reset-failed "$1" 2> /dev/null || true; systemctl start "$1"'
_PROCESS = """
    process=$(systemctl show --value --property=MainPID "$1")
    [ "$process" -gt 0 ] || { echo "$1 does not run" >&2; exit 3; }
"""
_SLURMDBD_CONF = """
    of() { sed -n "s/^$1=//p" /etc/slurm/slurmdbd.conf; }
    restart() { systemctl reset-failed slurmdbd 2> /dev/null || true; systemctl restart slurmdbd; }
    password() {
        for from in $(mariadb --skip-column-names -e "SELECT host FROM mysql.user WHERE user = '$(of StorageUser)'"); do
            mariadb -e "ALTER USER '$(of StorageUser)'@'$from' IDENTIFIED BY '$1'"
        done
    }
"""
_CLOCK_UNITS = "for unit in munge slurmdbd slurmctld slurmd; do file=/run/systemd/system/$unit.service.d/fault.conf;"
_CLOCK = f"""
    library=$(ls /usr/lib/*/faketime/libfaketimeMT.so.1) || {{ echo "this host has no libfaketime" >&2; exit 3; }}
    {_CLOCK_UNITS}
        systemctl is-active --quiet $unit || continue
        mkdir -p "${{file%/*}}"
        printf '[Service]\\nEnvironment=LD_PRELOAD=%s FAKETIME=%+ds FAKETIME_DONT_FAKE_MONOTONIC=1\\n' \\
            "$library" "$1" > "$file"
        systemctl daemon-reload
        systemctl restart $unit
    done
"""
KINDS = {
    "kill-daemon": Kind(
        "a daemon is killed; systemd may start it again, as its unit says",
        # Until systemd knows, `systemctl start` does nothing: the unit is still active.
        f"""{_PROCESS} kill -KILL "$process"
            while [ "$(systemctl show --value --property=MainPID "$1")" = "$process" ]; do sleep 0.05; done""",
        _START,
        "DAEMON",
    ),
    "stop-daemon": Kind("a daemon is stopped", 'systemctl stop "$1"', _START, "DAEMON"),
    "pause-daemon": Kind(
        "a daemon hangs", f'{_PROCESS} kill -STOP "$process"', f'{_PROCESS} kill -CONT "$process"', "DAEMON"
    ),
    "kill-host": Kind("a host loses its power", _kill_host, _start_host),
    "pause-host": Kind("a host hangs", _pause_host, _unpause_host),
    "reboot-host": Kind("a host is rebooted", _reboot, _start_host),
    "cut": Kind("two hosts, or sites, do not hear one another", _set_filters, _unset_filters, "HOST|SITE"),
    "cut-one-way": Kind("a host or site hears nothing of this one", _set_filters, _unset_filters, "HOST|SITE"),
    "block-port": Kind("a host hears nothing that comes to a port", _set_filters, _unset_filters, "PORT"),
    "forget-names": Kind(
        "a host does not know the addresses of others",
        'cp /etc/hosts "$aside" && : > /etc/hosts',
        '[ ! -e "$aside/hosts" ] || cat "$aside/hosts" > /etc/hosts',
    ),
    "step-clock": Kind(
        "the clock of a host's daemons is off",
        _CLOCK,
        f"""{_CLOCK_UNITS}
                [ -e "$file" ] || continue
                rm "$file" && systemctl daemon-reload && systemctl restart $unit
            done""",
        "SECONDS",
    ),
    "change-munge-key": Kind(
        "a host has another munge key",
        """cp --preserve /etc/munge/munge.key "$aside"
            head --bytes=64 /dev/urandom > /etc/munge/munge.key && systemctl restart munge""",
        '[ ! -e "$aside/munge.key" ] || mv "$aside/munge.key" /etc/munge && systemctl restart munge',
    ),
    "change-conf": Kind(
        "a host's slurm.conf has a line of its own",
        """cp --preserve /etc/slurm/slurm.conf "$aside" && printf '%s\\n' "$1" >> /etc/slurm/slurm.conf""",
        '[ ! -e "$aside/slurm.conf" ] || mv "$aside/slurm.conf" /etc/slurm',
        "LINE",
    ),
    "change-database-password": Kind(
        "the database does not take slurmdbd's password any more",
        f"{_SLURMDBD_CONF} password not-this-one; restart || true",
        f'{_SLURMDBD_CONF} password "$(of StoragePass)" && restart',
    ),
    "lose-database": Kind(
        "the database is dropped; a dump of it comes back",
        f"""{_SLURMDBD_CONF}
            umask 077; mariadb-dump --single-transaction --databases "$(of StorageLoc)" > "$aside/dump.new"
            mv "$aside/dump.new" "$aside/dump.sql"
            systemctl stop slurmdbd && mariadb -e "DROP DATABASE \\`$(of StorageLoc)\\`"; restart""",
        f"""{_SLURMDBD_CONF}
            [ -e "$aside/dump.sql" ] || exit 0
            systemctl stop slurmdbd; mariadb -e "DROP DATABASE IF EXISTS \\`$(of StorageLoc)\\`"
            mariadb < "$aside/dump.sql" && restart""",
    ),
    "fill-disk": Kind(
        "the file system of a directory is full",
        """free=$(df --output=avail --block-size=1 "$1" | tail -1)
            [ "$free" -lt 4000000000 ] || { echo "$1 is on a disk with $free bytes free" >&2; exit 3; }
            fallocate --length "$free" "$1/.slurm-harness-fault\"""",
        'rm -f "$1/.slurm-harness-fault"',
        "DIRECTORY",
    ),
}


def inject(live: Live, fault: Fault) -> None:
    """Inject a fault, or nothing of it: what fails half way is undone.

    UsageError if the run has no place for it, or has it already; CannotJudge if it could not be injected.
    """
    kind = check(live.plan, fault)
    if fault in noted_in(live.run):
        raise UsageError(f"{fault}: it is injected already", hint="harness fault heal")
    note = _note(live, fault)
    note.parent.mkdir(exist_ok=True)
    note.write_text(json.dumps(asdict(fault) | {_BEGUN: True}))
    live.run.event("fault", action="inject", fault=str(fault))
    try:
        _do(live, fault, kind.inject)
    except BaseException as error:
        if isinstance(error, CommandFailed) and error.returncode == _NOTHING_DONE:
            note.unlink()
            live.run.event("fault", action="heal", fault=str(fault))
            raise UsageError(f"{fault}: {error.stderr.strip()}") from error
        undone = _undo(live, fault)
        if isinstance(error, HarnessError):
            raise CannotJudge(f"{fault} could not be injected, and {undone}: {error}") from error
        raise
    note.write_text(json.dumps(asdict(fault)))
    live.run.event("fault", action="injected", fault=str(fault))


def _undo(live: Live, fault: Fault) -> str:
    """Heal what was injected half way; return what became of it."""
    try:
        heal(live, fault)
    except HarnessError as error:
        return f"may be active in part, because it could not be undone ({error}); `harness fault heal` tries again"
    return "is undone"


def inject_between_saves(live: Live, fault: Fault) -> None:
    """Inject a fault; if it kills slurmctld, do so while slurmctld is not writing its state.

    save_buf_to_state() renames FILE to FILE.old and then FILE.new to FILE. If slurmctld of 25.05 or later is
    killed between the two it does not start again: state_save_open() no longer tries FILE.old.
    """
    cluster = next((host.cluster for host in live.plan.with_daemon("slurmctld") if host.name == fault.on), None)
    if cluster is None or fault.kind not in _ABRUPT or fault.more not in {"", "slurmctld"}:
        inject(live, fault)
        return
    directory = options.state_save_location(options.slurm_conf(live.plan.scenario, cluster, live.plan.offers))
    stop = ["sh", "-c", _STOP_BETWEEN_SAVES, "stop", directory]
    wait_until(
        lambda: live.ssh.run(fault.on, stop, check=False).exit_code,
        lambda code: code == 0,
        what=f"slurmctld on {fault.on} to be between two saves",
        timeout=_PATIENCE,
    )
    try:
        inject(live, fault)
    except BaseException:
        live.ssh.run(fault.on, ["systemctl", "kill", "--signal=CONT", "slurmctld"], check=False)
        raise


def heal(live: Live, fault: Fault) -> None:
    """Heal a fault; ClusterError with the daemon's last error if a daemon does not start again."""
    how = KINDS[fault.kind].heal
    try:
        _do(live, fault, how if callable(how) else f'{how}\nrm --recursive "$aside"')
    except CommandFailed as error:
        if failed := failed_daemons(live, [fault.on]):
            raise ClusterError("; ".join(failed)) from error
        raise
    _note(live, fault).unlink()
    live.run.event("fault", action="heal", fault=str(fault))


def failed_daemons(live: Live, hosts: Sequence[str]) -> list[str]:
    """Return which controllers and databases on these hosts have failed, each with the last error of its log.

    `systemctl start` may have succeeded: slurmctld reports to systemd that it is up before it reads its state
    (xsystemd_change_mainpid() in controller.c).
    """
    running = live.provider.hosts(live.run.id)
    return [
        f"{daemon} on {host.name} failed: {_last_error(logs.last_lines(live.ssh, live.plan, host, daemon, 200))}"
        for host in live.plan.hosts
        if host.name in hosts and running.get(host.name)
        for daemon in _failed_units(live, host)
    ]


def _failed_units(live: Live, host: Host) -> list[str]:
    units = [daemon for daemon in _KEEP_STATE if daemon in host.daemons]
    if not units:
        return []
    states = live.ssh.run(host.name, ["systemctl", "is-failed", *units], check=False).stdout.split()
    return [unit for unit, state in zip(units, states, strict=False) if state == "failed"]


def _last_error(log: str) -> str:
    r"""Return the last fatal error in a log, or else the last error.

    >>> _last_error("[2026-11-22T23:40:02] error: a\n[2026-11-22T23:40:03] fatal: b\nerror: c")
    'fatal: b'
    """
    for word in ("fatal", "error"):
        if found := re.findall(rf"\b{word}: .*", log, re.IGNORECASE):
            return str(found[-1])
    return "no error in its log"


def affected(live: Live) -> set[str]:
    """Return the hosts that active faults affect."""
    names = {name for fault in active(live) for name in (fault.on, fault.more)}
    return {host.name for host in live.plan.hosts if {host.name, host.site} & names}


def active(live: Live) -> list[Fault]:
    """Return the faults that are injected and not healed, the last one last."""
    return [fault for fault, begun in _written(live.run) if not begun]


def half_injected(live: Live) -> list[Fault]:
    """Return the faults whose injection has begun, but did not end: it goes on, was killed, or could not be undone."""
    return [fault for fault, begun in _written(live.run) if begun]


def noted_in(run: RunDir) -> list[Fault]:
    """Return the faults that a run has or may have, the last one last."""
    return [fault for fault, _ in _written(run)]


def _written(run: RunDir) -> list[tuple[Fault, bool]]:
    """Return the faults that are written down, and whether their injection has only begun."""
    notes = sorted((run.path / "faults").glob("*.json"), key=lambda note: note.stat().st_mtime)
    found = []
    for note in notes:
        facts = json.loads(note.read_text())
        begun = facts.pop(_BEGUN, False)
        found.append((Fault(**facts), begun))
    return found


def heal_all(live: Live) -> list[str]:
    """Heal what is injected, wholly or in part, the last first; return what could not be healed, and why."""
    problems = []
    for fault in reversed(noted_in(live.run)):
        try:
            heal(live, fault)
        except HarnessError as error:
            problems.append(f"{fault}: {error}")
    return problems


@contextmanager
def injected(live: Live, *faults: Fault, how: Callable[[Live, Fault], None] = inject) -> Iterator[None]:
    """Have faults while this is entered."""
    done = []
    try:
        for fault in faults:
            how(live, fault)
            done.append(fault)
        yield
    finally:
        for fault in reversed(done):
            heal(live, fault)


def parse(plan: Plan, text: str) -> Fault:
    """Read a fault as the command line takes it; UsageError if it is none, or the plan has no place for it."""
    words = text.split(maxsplit=2)
    if len(words) < 2:
        raise UsageError(f'"{text}" is no fault', hint="such as kill-daemon ctl slurmctld")
    fault = Fault(*words)
    check(plan, fault)
    return fault


def check(plan: Plan, fault: Fault) -> Kind:
    """Return the kind of a fault; UsageError if there is none, or the plan has no place for it."""
    kind = KINDS.get(fault.kind)
    if kind is None:
        raise UsageError(f'no fault "{fault.kind}"', hint=f"known are {', '.join(KINDS)}")
    if not plan.offers.engine and not isinstance(kind.inject, str):
        raise UsageError(f"{fault}: machines that are there already are not switched off, paused or cut off")
    if bool(kind.wants) != bool(fault.more):
        wants = f"{fault.kind} HOST {kind.wants}".rstrip()
        raise UsageError(f"{fault}: {'something' if fault.more else 'nothing'} is given", hint=f"it is {wants}")
    known = {host.name: host for host in plan.hosts}
    sites = set(plan.sites()) if kind.wants == "HOST|SITE" else set()
    for name in (fault.on, fault.more) if kind.wants == "HOST|SITE" else (fault.on,):
        if name not in {*known} | sites:
            raise UsageError(f"{fault}: no host {name}", hint=f"there are {', '.join([*known, *sorted(sites)])}")
    if kind.wants == "DAEMON":
        host = known[fault.on]
        runs = [daemon for daemon in DAEMONS if daemon in (*host.daemons, *(["slurmd"] if host.nodes else []))]
        if fault.more.partition("@")[0] not in runs:
            raise UsageError(f"{fault}: {fault.on} runs no {fault.more}", hint=f"it runs {', '.join(runs)}")
    if kind.wants in {"PORT", "SECONDS"} and not fault.more.lstrip("+-").isdigit():
        raise UsageError(f'{fault}: "{fault.more}" is no number', hint=f"it is {fault.kind} HOST {kind.wants}")
    return kind


@contextmanager
def noted(live: Live, what: str, hosts: Sequence[str]) -> Iterator[None]:
    """Note in the history, in the way of faults, that something else is done to hosts while this is entered."""
    for host in hosts:
        live.run.event("fault", action="inject", fault=f"{what} {host}")
    try:
        yield
    finally:
        for host in hosts:
            live.run.event("fault", action="heal", fault=f"{what} {host}")


def _note(live: Live, fault: Fault) -> Path:
    return live.run.path / "faults" / f"{_name(fault)}.json"


def _name(fault: Fault) -> str:
    readable = "".join(letter if letter.isalnum() else "-" for letter in str(fault))
    return f"{readable[:60]}-{hashlib.sha256(str(fault).encode()).hexdigest()[:8]}"


def _do(live: Live, fault: Fault, how: str | Callable[[Live, Fault], None]) -> None:
    if callable(how):
        how(live, fault)
        return
    script = f"set -eu; aside={_ASIDE}/{_name(fault)}; mkdir -p -m 0700 {_ASIDE} $aside\n{how}"
    live.ssh.run(fault.on, ["sh", "-c", script, fault.kind, fault.more], timeout=_PATIENCE)
