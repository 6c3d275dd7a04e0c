"""Faults of federations: a member leaves, and joins again when the fault is healed."""

from harness.faults.model import Kind

# Shell functions: the cluster that the host controls, and the federation that it is in.
_NAMES = """
    cluster() { sed -n "s/^ClusterName=//p" /etc/slurm/slurm.conf; }
    federation() { sacctmgr --noheader --parsable2 show federation format=federation,cluster |
        sed -n "s/|$(cluster)\\$//p"; }
"""
# Seconds in which the jobs of the cluster must end.
_LEAVES_WITHIN = 120
# slurmctld refuses jobs, and removes itself once it has none: _job_watch_thread() in fed_mgr.c.
_LEAVE = f"""{_NAMES}
    name=$(federation); [ -n "$name" ] || {{ echo "$(cluster) is in no federation" >&2; exit 3; }}
    echo "$name" > "$aside/federation"
    sacctmgr --immediate modify cluster "$(cluster)" set fedstate=DRAIN+REMOVE"""
_JOIN = f"""{_NAMES}
    [ -e "$aside/federation" ] || exit 0
    for _ in $(seq {_LEAVES_WITHIN}); do [ -n "$(federation)" ] || break; sleep 1; done
    if [ -n "$(federation)" ]; then
        sacctmgr --immediate modify cluster "$(cluster)" set fedstate=ACTIVE
        echo "$(cluster) did not leave: jobs $(squeue --local --noheader --format=%i | xargs)" >&2
        exit 1
    fi
    sacctmgr --immediate modify federation "$(cat "$aside/federation")" set clusters+="$(cluster)"
"""

KINDS = {
    "leave-federation": Kind(
        "the host's cluster accepts no jobs, and leaves its federation when it has none left; "
        "healing waits for that, and lets it join again",
        _LEAVE,
        _JOIN,
    ),
}
