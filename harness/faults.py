"""Faults: what breaks on purpose, and is healed again whatever happens.

A fault is written down in the run's directory before it is injected, so that whoever comes next can heal it. What a
fault puts aside stays on the host, in a directory that only root can read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.errors import CommandFailed, HarnessError, UsageError
from harness.live import Live
from harness.plan import DAEMONS, Plan
from harness.providers import Drop
from harness.rundir import RunDir

_ASIDE = "/var/lib/slurm-harness/faults"
# Seconds for what restarts daemons; a database may be slow.
_PATIENCE = 120
# With this a script says that it changed nothing.
_NOTHING_DONE = 3


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


def _reboot(live: Live, fault: Fault) -> None:
    live.provider.stop(live.run.id, fault.on)
    live.start_host(fault.on)


def _pause_host(live: Live, fault: Fault) -> None:
    live.provider.pause(live.run.id, fault.on)


def _unpause_host(live: Live, fault: Fault) -> None:
    live.provider.unpause(live.run.id, fault.on)


def _set_filters(live: Live, fault: Fault) -> None:
    """Have the hosts that a fault is about drop what the faults that are written down want dropped."""
    _filter(live, fault, active(live))


def _unset_filters(live: Live, fault: Fault) -> None:
    """Have the hosts that a fault is about drop what the other faults want dropped."""
    _filter(live, fault, [other for other in active(live) if other != fault])


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
        f'{_PROCESS} kill -KILL "$process"',
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
            systemctl stop slurmdbd && mariadb -e "DROP DATABASE $(of StorageLoc)"; restart""",
        f"""{_SLURMDBD_CONF}
            [ -e "$aside/dump.sql" ] || exit 0
            systemctl stop slurmdbd; mariadb -e "DROP DATABASE IF EXISTS $(of StorageLoc)"
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
    """Inject a fault; UsageError if the run has no place for it, or has it already."""
    kind = check(live.plan, fault)
    if fault in active(live):
        raise UsageError(f"{fault}: it is injected already", hint="harness fault heal")
    note = _note(live, fault)
    note.parent.mkdir(exist_ok=True)
    note.write_text(json.dumps(asdict(fault)))
    live.run.event("fault", action="inject", fault=str(fault))
    try:
        _do(live, fault, kind.inject)
        live.run.event("fault", action="injected", fault=str(fault))
    except CommandFailed as error:
        if error.returncode == _NOTHING_DONE:
            note.unlink()
            raise UsageError(f"{fault}: {error.stderr.strip()}") from error
        raise


def heal(live: Live, fault: Fault) -> None:
    """Heal a fault."""
    how = KINDS[fault.kind].heal
    _do(live, fault, how if callable(how) else f'{how}\nrm --recursive "$aside"')
    _note(live, fault).unlink()
    live.run.event("fault", action="heal", fault=str(fault))


def active(live: Live) -> list[Fault]:
    """Return the faults that are injected and not healed."""
    return noted_in(live.run)


def noted_in(run: RunDir) -> list[Fault]:
    """Return the faults that a run has, the last one last."""
    notes = sorted((run.path / "faults").glob("*.json"), key=lambda note: note.stat().st_mtime)
    return [Fault(**json.loads(note.read_text())) for note in notes]


def heal_all(live: Live) -> list[str]:
    """Heal what is injected, the last first; return what could not be healed, and why."""
    problems = []
    for fault in reversed(active(live)):
        try:
            heal(live, fault)
        except HarnessError as error:
            problems.append(f"{fault}: {error}")
    return problems


@contextmanager
def injected(live: Live, *faults: Fault) -> Iterator[None]:
    """Have faults while this is entered."""
    done = []
    try:
        for fault in faults:
            done.append(fault)
            try:
                inject(live, fault)
            except UsageError:
                done.pop()
                raise
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
