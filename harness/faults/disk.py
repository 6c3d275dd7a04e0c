"""Faults of disks."""

from harness.faults.model import DIRECTORY, Kind

_FILL = """
    free=$(df --output=avail --block-size=1 "$1" | tail -1)
    [ "$free" -lt 4000000000 ] ||
        { echo "the disk of $1 is too large to fill: $free bytes are free" >&2; exit 3; }
    # Daemons may take or free space in the meantime: what is left is written until nothing is.
    fallocate --length "$free" "$1/.slurm-harness-fault" 2> /dev/null || true
    cat /dev/zero 2> /dev/null >> "$1/.slurm-harness-fault" || true
"""

KINDS = {
    "fill-disk": Kind(
        "the file system of a directory is full",
        _FILL,
        'rm -f "$1/.slurm-harness-fault"',
        DIRECTORY,
    ),
}
