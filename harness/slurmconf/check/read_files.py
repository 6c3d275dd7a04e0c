"""Which files slurmctld reads: some are only for a plugin that slurm.conf names."""

from __future__ import annotations

from harness.slurmconf.check.parsed_file import Configuration

NEED_TOPOLOGY = {"topology/tree", "topology/block", "topology/hypercube", "topology/ring"}


def is_read(configuration: Configuration, kind: str) -> bool:
    """Return whether slurmctld reads a file; it reads some only for a plugin of slurm.conf."""
    slurm_conf = configuration.get("slurm.conf")
    if slurm_conf is None:
        return True
    if kind == "helpers.conf":
        words = {"helpers", "node_features/helpers"} & {*slurm_conf.words("nodefeaturesplugins")}
        return bool(words) and kind in configuration.release.options
    if kind == "burst_buffer.conf":
        value = slurm_conf.get("burstbuffertype") or "none"
        return "none" not in value
    if kind == "topology.conf":
        replaced = configuration.release.topology_file in configuration.others
        return slurm_conf.get("topologyplugin") in NEED_TOPOLOGY and not replaced
    return True
