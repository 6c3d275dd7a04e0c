"""Sabotages of scheduling.yml: priorities, dependencies, time limits, and what jobs share."""

from __future__ import annotations

from sabotage import CONF, MEND_CONF, Sabotage, at_once, changed_conf, wrapper
from sabotage_configuration import RECONFIGURE, held_back, partition
from sabotage_hosts import on_host
from sabotage_policy import read


def at_ctl(check: str, scripts: tuple[str, str], message: str) -> Sabotage:
    """Return a sabotage of the scenario scheduling.yml on its controller."""
    return on_host(check, "ctl", *scripts, message)


def sbatch(edit: str) -> tuple[str, str]:
    """Return scripts that put an sbatch with edited options before Slurm's own, and remove it."""
    return wrapper("sbatch", f'exec /usr/bin/sbatch $(echo "$@" | sed "{edit}")')


_FAIR_SHARE = "PriorityWeightFairshare"
_DEPENDENCIES = "when_their_dependencies_allow_it"
_REQUEUED = "requeued_job_runs_again"
_SHARED = "share_nodes_and_cpus"
SCHEDULING = [
    at_ctl("than_its_throttle", sbatch("s/%1//"), "of an array with --array=0-3%1 began"),
    at_ctl(
        "entry_of_a_scrontab",
        read("ScronParameters", "explicit_scancel", CONF, RECONFIGURE),
        "scrontab",
    ),
    at_once(
        at_ctl(
            _DEPENDENCIES,
            sbatch("s/--dependency=singleton//; s/--dependency=after:[0-9]*//"),
            "a job with --dependency=singleton --job-name={name} began",
        ),
        at_ctl(_DEPENDENCIES, ("true", "true"), "a job with --dependency=after:{long} began"),
    ),
    at_ctl(
        _DEPENDENCIES,
        held_back("DependencyParameters=kill_invalid_depend"),
        "a job with --dependency=afterok:{bad} is CANCELLED, ",
    ),
    at_ctl(
        "has_lower_priority",
        (
            f"sed -i.right s/^{_FAIR_SHARE}=.*/{_FAIR_SHARE}=0/ {CONF}",
            f"mv {CONF}.right {CONF}; {RECONFIGURE}",
        ),
        "policy: jobs of alice and bob in account physics have priorities",
    ),
    at_ctl("after_the_same_task", sbatch("s/aftercorr/after/"), "with aftercorr did not wait"),
    at_ctl(
        "start_together_each_on_its_node",
        sbatch("s/--nodelist=n1/--nodelist=n2/"),
        "Invalid node name specified",
    ),
    at_once(
        at_ctl(_REQUEUED, held_back("JobRequeue=0"), "requeueing a job with no option"),
        at_ctl(
            _REQUEUED,
            sbatch("s/--no-requeue/--requeue/"),
            "requeueing a job with --no-requeue: it is accepted",
        ),
    ),
    at_ctl(
        "before_its_begin_time", sbatch("s/--begin=now+40//"), "a job with --begin=now+40 began"
    ),
    at_ctl(
        "warning_signal_reaches",
        sbatch("s/--signal=USR1/--signal=B:USR1/"),
        "--signal=USR1@60 reached script",
    ),
    on_host(
        "killwait_seconds_after",
        "n1",
        changed_conf("s/^KillWait=.*/KillWait=30/"),
        MEND_CONF,
        "s after SIGTERM; KillWait is 5",
    ),
    at_ctl(
        _SHARED,
        partition("batch", "OverSubscribe=FORCE:2", "OverSubscribe=NO"),
        "partition batch with OverSubscribe=NO runs 1 at a time",
    ),
    at_ctl(
        _SHARED,
        partition("shared", "OverSubscribe=NO", "OverSubscribe=YES:2"),
        "partition shared with OverSubscribe=YES:2 runs 2 at a time",
    ),
    at_ctl(
        "priority_follows",
        read("PriorityWeightTRES", "CPU=1000,Mem=9000", CONF, RECONFIGURE),
        "jobs of alice that differ in memory",
    ),
    at_ctl(
        "grows_with_the_age",
        read("PriorityWeightAge", "0", CONF, RECONFIGURE),
        "jobs of alice, of which one has waited",
    ),
]
