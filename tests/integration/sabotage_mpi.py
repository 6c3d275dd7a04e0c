"""Sabotages of mpi.yml: of the plugin, of the ways between ranks, and of how they end."""

from __future__ import annotations

from sabotage import NETWORK_OF, wrapper
from sabotage_hosts import PLUGINS, dropped, on_host

# Ranks connect to one another at the first ports that are free from 1024 on.
FROM_N1 = 'ip saddr $(getent hosts n1 | cut -d" " -f1) tcp'
UNREACHABLE = dropped(
    f"{FROM_N1} dport 1024-6817 drop; add rule inet lie in {FROM_N1} sport 1024-6817"
)
INSTALLED = "/var/lib/dpkg/status"
MPI = [
    on_host(
        "packages_and_their_settings",
        "n2",
        f"cp -p {INSTALLED} /root && sed -i '/^Package: openmpi-bin$/,/^$/d' {INSTALLED}",
        f"cp -p /root/status {INSTALLED}",
        "n2: package openmpi-bin is not installed",
    ),
    on_host(
        "ranks_on_all_nodes",
        "n2",
        f"mv {PLUGINS}/mpi_pmix_v*.so /root",
        f"mv /root/mpi_pmix_v*.so {PLUGINS}",
        "error: MPI: Unable to load any plugin",
    ),
    on_host(
        "ranks_on_all_nodes",
        "n2",
        f"mv {PLUGINS}/mpi_pmi2.so /root",
        f"mv /root/mpi_pmi2.so {PLUGINS}",
        "ranks: srun --mpi=pmi2 ends with",
    ),
    on_host(
        "ranks_on_all_nodes",
        f"{NETWORK_OF}n2",
        *UNREACHABLE,
        "of 2 ranks, 2 began and 0 ended",
    ),
    on_host(
        "abort_of_a_rank",
        "ctl",
        *wrapper("srun", '/usr/bin/srun "$@"; exit 0'),
        "srun --mpi=pmix ends with 0, the rank that aborted with 7",
    ),
    on_host(
        "hung_rank_is_killed",
        "n2",
        "systemd-run --unit=left-rank sh -c 'sleep 600; true' rank-that-hangs",
        "systemctl stop left-rank",
        "n2: process",
    ),
]
