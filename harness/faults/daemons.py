"""Faults of daemons: killed, stopped, hanging."""

from harness.faults.database import SLURMDBD
from harness.faults.model import DAEMON, Kind

_START = f"""{SLURMDBD}
    systemctl reset-failed "$1" 2> /dev/null || true
    systemctl start "$1"
    [ "$1" != slurmdbd ] || wait_for_slurmdbd"""
_MAIN_PID = 'process=$(systemctl show --value --property=MainPID "$1")'
_PROCESS = f"""{_MAIN_PID}
    [ "$process" -gt 0 ] || {{ echo "$1 is not running" >&2; exit 3; }}
"""
# Until systemd notices, `systemctl start` does nothing, because the unit is still active.
_KILL = f"""{_PROCESS} kill -KILL "$process"
    while [ "$(systemctl show --value --property=MainPID "$1")" = "$process" ]; do
        sleep 0.05
    done"""

KINDS = {
    "kill-daemon": Kind(
        "a daemon is killed; its unit determines whether systemd restarts it", _KILL, _START, DAEMON
    ),
    "stop-daemon": Kind("a daemon is stopped", 'systemctl stop "$1"', _START, DAEMON),
    "pause-daemon": Kind(
        "a daemon hangs",
        f'{_PROCESS} kill -STOP "$process"',
        # It may have been stopped or killed meanwhile.
        f'{_MAIN_PID}\n[ "$process" -eq 0 ] || kill -CONT "$process"',
        DAEMON,
    ),
}
