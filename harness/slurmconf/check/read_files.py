"""Which files the daemons read: some are only for a plugin that slurm.conf names."""

from __future__ import annotations

from harness.slurmconf.check.parsed_file import Configuration, Source

NEED_TOPOLOGY = {"topology/tree", "topology/block", "topology/hypercube", "topology/ring"}


def unused(configuration: Configuration, kind: str) -> str:
    """Return why no daemon reads a file; "" if one does."""
    slurm_conf = configuration.get("slurm.conf")
    if slurm_conf is None:
        return ""
    reason = ""
    if kind == "gres.conf" and not slurm_conf.words("grestypes"):
        reason = "GresTypes"
    elif kind == "job_container.conf":
        kinds = (slurm_conf.get(f"{name}type") or "" for name in ("jobcontainer", "namespace"))
        if not any("tmpfs" in plugin for plugin in kinds):
            reason = "JobContainerType or NamespaceType with tmpfs"
    elif kind == "helpers.conf":
        words = {"helpers", "node_features/helpers"} & {*slurm_conf.words("nodefeaturesplugins")}
        if not words or kind not in configuration.release.options:
            reason = "NodeFeaturesPlugins with helpers"
    elif kind == "knl_generic.conf" and not uses_knl_generic(slurm_conf):
        reason = "NodeFeaturesPlugins with knl_generic"
    elif kind == "burst_buffer.conf" and "none" in (slurm_conf.get("burstbuffertype") or "none"):
        reason = "BurstBufferType"
    elif kind == "topology.conf":
        if configuration.release.topology_file in configuration.others:
            return f"is not read because there is a {configuration.release.topology_file}"
        if slurm_conf.get("topologyplugin") not in NEED_TOPOLOGY:
            reason = "a TopologyPlugin that needs it"
    return reason and f"is not read without {reason} in slurm.conf"


def uses_knl_generic(slurm_conf: Source) -> bool:
    """Return whether daemons load node_features/knl_generic."""
    words = {"knl_generic", "node_features/knl_generic"} & {
        *slurm_conf.words("nodefeaturesplugins")
    }
    return bool(words) and "knl_generic" in slurm_conf.release.plugins["node_features"]


def is_read(configuration: Configuration, kind: str) -> bool:
    """Return whether a daemon reads a file."""
    return not unused(configuration, kind)
