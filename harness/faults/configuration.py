"""Faults of configuration: a file of a host differs from those of the others."""

from harness.faults.model import LINE, Kind

KINDS = {
    "change-munge-key": Kind(
        "a host has a different munge key",
        """cp --preserve /etc/munge/munge.key "$aside"
            head --bytes=64 /dev/urandom > /etc/munge/munge.key; systemctl restart munge""",
        """[ ! -e "$aside/munge.key" ] || mv "$aside/munge.key" /etc/munge
            systemctl restart munge""",
    ),
    "change-conf": Kind(
        "a host's slurm.conf has an additional line",
        """cp --preserve /etc/slurm/slurm.conf "$aside"
            printf '%s\\n' "$1" >> /etc/slurm/slurm.conf""",
        '[ ! -e "$aside/slurm.conf" ] || mv "$aside/slurm.conf" /etc/slurm',
        LINE,
    ),
}
