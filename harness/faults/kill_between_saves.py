"""Kill slurmctld between two saves of its state."""

from __future__ import annotations

from harness import slurm_options
from harness.faults.injection import inject
from harness.faults.model import Fault
from harness.open_run import OpenRun
from harness.wait import wait_until

# Seconds to catch a slurmctld that keeps saving its state between two saves.
_PATIENCE = 300
# Faults that can end slurmctld in the middle of a save.
_ABRUPT = {"kill-daemon", "kill-host"}
# Stops slurmctld and exits with 0. If slurmctld is writing a state file in directory $1, the script
# lets it continue and exits with 1. All threads must have stopped: a thread that waits for the disk
# stops only when its rename() is done. An older FILE.new was left by a slurmctld that was killed.
STOP_SCRIPT = """
    process=$(systemctl show --value --property=MainPID slurmctld)
    [ "$process" -gt 0 ] || exit 0
    running() { sed 's/.*) //' /proc/"$process"/task/*/stat | grep --quiet --invert-match ^T; }
    kill -STOP "$process"
    for try in $(seq 100); do running || break; sleep 0.05; done
    if ! running &&
        [ -z "$(find "$1" -maxdepth 1 -name '*.new' -newermt '60 seconds ago')" ]; then exit 0; fi
    kill -CONT "$process"
    exit 1
"""


def inject_between_saves(run: OpenRun, fault: Fault) -> None:
    """Inject a fault; if it kills slurmctld, do so while slurmctld is not writing its state.

    save_buf_to_state() renames FILE to FILE.old and then FILE.new to FILE. A slurmctld of 25.05 or
    later that is killed between the two does not start again, because state_save_open() no longer
    tries FILE.old.
    """
    cluster = next(
        (host.cluster for host in run.plan.with_daemon("slurmctld") if host.name == fault.on), None
    )
    if cluster is None or fault.kind not in _ABRUPT or fault.argument not in {"", "slurmctld"}:
        inject(run, fault)
        return
    directory = slurm_options.state_save_location(run.plan.slurm_conf(cluster))
    stop = ["sh", "-c", STOP_SCRIPT, "stop", directory]
    wait_until(
        lambda: run.ssh.run(fault.on, stop, check=False).exit_code,
        lambda code: code == 0,
        what=f"slurmctld on {fault.on} to be between two saves",
        timeout=_PATIENCE,
    )
    try:
        inject(run, fault)
    except BaseException:
        run.ssh.run(fault.on, ["systemctl", "kill", "--signal=CONT", "slurmctld"], check=False)
        raise
