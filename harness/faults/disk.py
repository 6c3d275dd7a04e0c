"""Faults of disks."""

from harness.faults.model import DIRECTORY, Kind

_FILL = """
    free=$(df --output=avail --block-size=1 "$1" | tail -1)
    [ "$free" -lt 4000000000 ] ||
        { echo "the disk of $1 is too large to fill: $free bytes are free" >&2; exit 3; }
    fallocate --length "$free" "$1/.slurm-harness-fault" 2> /dev/null || true
    # Daemons may take space in the meantime, or free some because they replace a file.
    full=0
    until [ "$full" -eq 2 ]; do
        cat /dev/zero 2> /dev/null >> "$1/.slurm-harness-fault" || true
        sleep 0.2
        free=$(df --output=avail --block-size=1 "$1" | tail -1)
        if [ "$free" -eq 0 ]; then full=$((full + 1)); else full=0; fi
    done
"""

KINDS = {
    "fill-disk": Kind(
        "the file system of a directory is full",
        _FILL,
        'rm -f "$1/.slurm-harness-fault"',
        DIRECTORY,
    ),
}
