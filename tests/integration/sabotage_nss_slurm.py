"""Sabotages of nss_slurm on a node: it is not asked, or does not find the steps of jobs."""

from __future__ import annotations

from sabotage_hosts import on_host

FROM_SLURMSTEPD, WITHOUT_SSSD = "their_user_and_its_groups_from_slurmstepd", "node_without_sssd"
NSSWITCH, CONF = "/etc/nsswitch.conf", "/etc/nss_slurm.conf"
SLURM_CONF = "/etc/slurm/slurm.conf"
NOT_ASKED = (
    f"sed -i.right '/^(passwd|group):/s/slurm//' -E {NSSWITCH}",
    f"mv {NSSWITCH}.right {NSSWITCH}",
)
NOTHING_FOUND = (f"sed -i.right s,Dir=,Dir=/none, {CONF}", f"mv {CONF}.right {CONF}")

NSS_SLURM = [
    on_host(
        FROM_SLURMSTEPD, "n1", *NOT_ASKED, "n1: passwd is looked up in files first, not in slurm"
    ),
    on_host(
        FROM_SLURMSTEPD,
        "n2",
        *NOTHING_FOUND,
        "getent: error: Domain socket directory /none/var/lib/slurm/slurmd: No such file",
    ),
    on_host(
        FROM_SLURMSTEPD,
        "ctl",
        f"sed -i.right /enable_nss_slurm/d {SLURM_CONF}; scontrol reconfigure",
        f"mv {SLURM_CONF}.right {SLURM_CONF}; scontrol reconfigure",
        "slurmstepd: error: _handle_getgr: incomplete data, ignoring request",
    ),
    on_host(WITHOUT_SSSD, "n1", *NOT_ASKED, "n1: without sssd, a job of bob sees ["),
]
