"""The scenario file."""

from harness.scenario.contradictions import (
    FIRST_NODE_PORT,
    MOST_NODES_OF_A_HOST,
    SYSTEM_USERS,
)
from harness.scenario.loading import (
    is_named_like_one,
    load,
    name_of,
    script_files,
    unprobed_images,
)
from harness.scenario.model import (
    SLURMDBD,
    Accounting,
    Cluster,
    NodeGroup,
    Path_,
    Provision,
    Rehearsal,
    Scenario,
    ScheduledFault,
    ScriptPath,
    Topology,
    Torus,
    User,
    UserName,
    gres_count,
    schema,
)

__all__ = [
    "FIRST_NODE_PORT",
    "MOST_NODES_OF_A_HOST",
    "SLURMDBD",
    "SYSTEM_USERS",
    "Accounting",
    "Cluster",
    "NodeGroup",
    "Path_",
    "Provision",
    "Rehearsal",
    "Scenario",
    "ScheduledFault",
    "ScriptPath",
    "Topology",
    "Torus",
    "User",
    "UserName",
    "gres_count",
    "is_named_like_one",
    "load",
    "name_of",
    "schema",
    "script_files",
    "unprobed_images",
]
