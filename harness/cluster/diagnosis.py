"""Find possible reasons why a check failed.

These are options in slurmctld's memory that are not those of slurm.conf, pending jobs, nodes out of
service, reservations, and daemons that ended or logged errors.
"""

from __future__ import annotations

import re
import shlex
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from harness import releases, render, slurm_options
from harness.cluster import logs, node_state, script_failures, slurm
from harness.cluster.slurm import SlurmCluster
from harness.errors import HarnessError, WaitTimeout
from harness.plan import Host, Plan
from harness.slurmconf import drift
from harness.ssh import Ssh

# Seconds in which a cluster or host, and slurmctld for a node, must answer: not many, because they
# may be down.
_PATIENCE, _PING = 45, 8
_NO_ANSWER, _NOT_ACTIVE = "scontrol ping: ", "not active: "
# What systemd logs when a daemon ends unexpectedly; it may have restarted the daemon since.
_EXITED = "Main process exited"
# Defines `frozen PID`, which succeeds if the cgroup of a process is frozen, as by `systemctl
# freeze`.
FROZEN = """frozen() {
    while IFS=: read -r hierarchy _ group; do
        [ "$hierarchy" = 0 ] && while read -r event value; do
            [ "$event $value" = "frozen 1" ] && return
        done < "/sys/fs/cgroup$group/cgroup.events"
    done < "/proc/$1/cgroup"
    return 1
} 2> /dev/null"""
# Waits until journald has written what daemons printed, unless journald hangs.
JOURNAL_IS_WRITTEN = "timeout 8 journalctl --sync"
# Prints the state of each of the units "$@" that does not run, how it ended, and the last line of
# its daemon if that is a fatal error. The process selects this line, because journald does not know
# the unit of a message that it receives when the process has ended. A process that a signal has
# stopped, or whose cgroup is frozen, does not run either.
#
# This runs on every host for every check that fails, so it starts one process if all is well.
# systemctl prints the properties as variables of the shell, and an empty line between units.
_ENDED = f"""{FROZEN}
{{ systemctl show --property=Id,ActiveState,Result,MainPID,ExecMainPID "$@"; echo; }} |
while read -r line; do
    [ -z "$line" ] || {{ export "$line"; continue; }}
    unit=${{Id%.service}}
    case $ActiveState in
    active | reloading | refreshing)
        state=
        read -r _ _ state _ < "/proc/$MainPID/stat"
        if [ "$state" = T ]
        then echo "{_NOT_ACTIVE}$unit is stopped by a signal"
        elif frozen "$MainPID"
        then echo "{_NOT_ACTIVE}$unit is frozen"
        fi
        ;;
    *)
        {JOURNAL_IS_WRITTEN}
        fatal=$(journalctl --quiet --no-pager --output=cat --lines=1 \\
            --identifier="${{unit%@*}}" "_PID=$ExecMainPID" | grep -o 'fatal: .*')
        echo "{_NOT_ACTIVE}$unit is $ActiveState ($Result)${{fatal:+: $fatal}}"
        ;;
    esac 2> /dev/null
done"""
# Prints the statements that MariaDB has been executing for at least 5 s, if root may look.
_STATEMENTS = r"""mariadb --batch --skip-column-names --execute "
    select concat(time, ' s for a statement of ', user, ', ', state, ': ',
        left(replace(info, '\n', ' '), 60))
    from information_schema.processlist
    where command <> 'Sleep' and info is not null and time >= 5" """
# Prints the site's programs that have been running for at least 10 s, such as Prolog. Slurm sets
# SLURM_SCRIPT_CONTEXT for them only; their children inherit it.
_PROGRAM = "program: "
_PROGRAMS = f"""set +f
for file in $(grep -alsz '^SLURM_SCRIPT_CONTEXT=' /proc/[0-9]*/environ); do
    value() {{ tr '\\0' '\\n' < $file | sed -n "s/^$1=//p"; }}
    pid=${{file#/proc/}}
    seconds=$(ps -o etimes= -p ${{pid%/environ}}) && [ $seconds -ge 10 ] &&
        echo "{_PROGRAM}$(value SLURM_SCRIPT_CONTEXT) of job $(value SLURM_JOB_ID)" \\
            "has been running for" $seconds s
done 2> /dev/null
set -f"""
# What slurmd logs of a slurmstepd that cannot be executed or ends at once; which of them depends on
# whether slurmd was still writing to it (_forkexec_slurmstepd() in its req.c).
_NO_SLURMSTEPD = re.compile("Unable to init slurmstepd|Can not read return code from slurmstepd")
# Lines of a report that explain why commands and waits fail: about such a unit, statement or
# program, an option that is different in slurmctld's memory, a slurmstepd that does not start, a
# slurmd that cannot be reached, a statement that MariaDB refused (Slurm's _mysql_query_internal()
# logs it), or a request that the provisioning API did not answer.
_CAUSE = re.compile(
    r"^\S+: (?:\S+ is (?:\w+ \([\w-]+\)(?:: fatal: .*)?|stopped by a signal|frozen)$"
    r"|slurmd cannot start slurmstepd$"
    r"|MariaDB takes .*, Waiting for |\S+ of job \d+ has been running for )"
    r"|^\S+ logged: error: mysql_query failed: |^\S+ cannot reach slurmd of "
    r"|^\S+: slurm-(?:resume|suspend) \S+: "
    r"|^\S+: \w+ is .*, slurm\.conf (?:has|leaves it at) "
)
# Seconds by which the clocks of a daemon and of the check may differ.
_TOLERANCE = 2
# How many lines of each host, and how many jobs, nodes and reservations of each cluster are shown.
_MOST = 3
# How sbatch, srun and salloc report a refusal.
_REFUSED = re.compile(
    "job submission failed|Unable to allocate resources|allocation failure|cli_filter plugin"
)
# A line in which only numbers differ from an earlier one is a repetition.
_NUMBER = re.compile(r"\d+")
# slurmstepd logs the end of a job that is cancelled or reaches its time limit as an error
# (_rpc_signal_container() and _rpc_timelimit() in its req.c).
_CANCELLED = re.compile(r"\*\*\* (?:JOB|STEP) .* CANCELLED AT \S+(?: DUE TO TIME LIMIT)? \*\*\*$")
# slurmctld logs each change of a job, such as a hold, and each cancellation, with the user
# (_slurm_rpc_update_job() and _slurm_rpc_kill_job()). The scenario's users change only their own
# jobs, as checks do.
_JOB_CHANGED = re.compile(
    r"(_slurm_rpc_update_job: complete|REQUEST_KILL_JOB) JobId=(\S+) uid[= ](\d+)"
)
_CHANGES_OF_A_JOB = {
    "_slurm_rpc_update_job: complete": "changed job {} (scontrol update or hold)",
    "REQUEST_KILL_JOB": "cancelled job {} (scancel)",
}


def of_failure(ssh: Ssh, plan: Plan, since: float) -> list[str]:
    """Return a line for each reason why jobs may not run, and for each of the daemons' last errors.

    `since` is when the check began, in seconds since 1970. A cluster or host that does not answer
    gets a line as well.
    """
    clusters = slurm.clusters(ssh, plan, _PATIENCE).values()
    looks: list[Callable[[], Iterable[str]]] = [
        *(partial(_cluster_lines, cluster, plan) for cluster in clusters),
        *(partial(script_failures.of_host, ssh, plan, host) for host in plan.permanent_hosts()),
        *(partial(_host_lines, ssh, plan, host, since) for host in plan.permanent_hosts()),
        *(partial(_database_lines, ssh, host) for host in plan.with_daemon("mariadb")),
    ]
    with ThreadPoolExecutor(8) as pool:
        return [line for lines in pool.map(_lines_or_error, looks) for line in lines]


def with_causes_first(message: str, lines: Sequence[str]) -> str:
    """Return a failure's message followed by what `of_failure` returned.

    Lines that match _CAUSE come before the message: a daemon that does not run, a statement that
    waits for a lock, and so on. Commands then fail for that reason only.
    """
    lines = [line for line in lines if line not in message]
    causes = [line for line in lines if _CAUSE.search(line)]
    return "\n".join([*causes, message, *(line for line in lines if line not in causes)])


def of_refusal(plan: Plan, message: str) -> list[str]:
    """Return a hint if a check's job was refused where the site's own scripts may have done so."""
    if not _REFUSED.search(message):
        return []
    plugins = [
        f"{option}={value}"
        for name in plan.scenario.clusters
        for option in ("JobSubmitPlugins", "CliFilterPlugins")
        if (value := slurm_options.get(plan.slurm_conf(name), option))
    ]
    return [
        f"hint: with {plugin}, a job may need certain options: `checks: {{submit: [--time=5]}}` in "
        "the scenario gives such options to every job of the checks"
        for plugin in plugins[:1]
    ]


def _lines_or_error(look: Callable[[], Iterable[str]]) -> list[str]:
    """Return what `look` returns, or the first line of its error."""
    try:
        return [*look()]
    except HarnessError as error:
        return [" ".join(str(error).splitlines()[:1])]


def _cluster_lines(cluster: SlurmCluster, plan: Plan) -> list[str]:
    waiting = [
        f"{cluster.name}: job {job.job_id} of {job.user} {job.state} ({job.reason})"
        for job in cluster.jobs("--local", "--all")
        if job.state not in {*slurm.FINISHED, "RUNNING"}
        and not (job.ours and job.reason == "JobHeldUser")  # a check holds it
    ]
    nodes = cluster.nodes()
    out_of_service = [
        f"{cluster.name}: node {node.name} {node.state} ({node.reason})"
        for node in nodes
        if node_state.is_out_of_service(node.state)
    ]
    silent = [
        node.name for node in nodes if "NOT_RESPONDING" in node.state and "POWER" not in node.state
    ]
    reservations = cluster.reservations()
    reserved = [f"{cluster.name}: {reservation}" for reservation in reservations]
    own = [
        reservation.name
        for reservation in reservations
        if reservation.name in plan.scenario.clusters[cluster.name].reservations
    ]
    hints = [
        f"hint: if no node is left for the checks, `checks: {{submit: [--reservation={name}]}}` in "
        "the scenario makes their jobs use the reservation"
        for name in (own[:1] if waiting else ())
    ]
    return [
        *_shortened([*_different_options(cluster, plan)]),
        *_unreached(cluster, plan, silent[:_MOST]),
        *_shortened(waiting),
        *_shortened(out_of_service),
        *_shortened(reserved),
        *hints,
    ]


def _different_options(cluster: SlurmCluster, plan: Plan) -> Iterator[str]:
    """Yield the options in slurmctld's memory that differ from the rendered slurm.conf."""
    held = drift.printed(cluster.run("scontrol", "show", "config").stdout)
    rendered = drift.read(render.slurm_conf(plan, cluster.name)).options
    release = releases.get(plan.releases()[cluster.name])
    for difference in drift.config("slurm.conf", rendered, held, release):
        yield f"{cluster.name}: {difference}"


def _unreached(cluster: SlurmCluster, plan: Plan, nodes: Collection[str]) -> list[str]:
    """Return a line for each node to whose slurmd the controller's host cannot connect."""
    default_port = slurm_options.port_of(plan.slurm_conf(cluster.name), "slurmd")
    unreached = []
    for node in nodes:
        answer = cluster.run("scontrol", "--oneliner", "show", "node", node).stdout
        facts = dict(re.findall(r"\b(NodeAddr|Port)=(\S+)", answer))
        address = f"{facts.get('NodeAddr', node)}/{facts.get('Port', default_port)}"
        connect = ["timeout", "5", "bash", "-c", f": < /dev/tcp/{address}"]
        if (connected := cluster.run(*connect, check=False)).exit_code:
            problem = connected.stderr.strip().rpartition(": ")[2] or "no answer in 5 s"
            unreached.append(
                f"{cluster.controller} cannot reach slurmd of {node} at "
                f"{address.replace('/', ':')}: {problem}"
            )
    return unreached


def _shortened(lines: Sequence[str]) -> list[str]:
    return [*lines[:_MOST], *[f"and {len(lines) - _MOST} more"] * (len(lines) > _MOST)]


def _host_lines(ssh: Ssh, plan: Plan, host: Host, since: float) -> list[str]:
    """Return a host's failed daemons, its nodes that cannot reach slurmctld, and recent errors.

    The errors are the last ones that its daemons logged since a time, without repeats.
    """
    daemons = {daemon for daemon in host.daemons if daemon.startswith("slurm")} | (
        {"slurmd"} if host.nodes else set()
    )
    if not daemons:
        return []
    paths = [path for daemon in sorted(daemons) for path in logs.log_files(plan, host, daemon)]
    script = _script(paths, since, pings=bool(host.nodes))
    # Programs such as Prolog may need the journal.
    units = [*host.daemons, "systemd-journald"]
    hangs = []
    try:
        output = ssh.run(host.name, ["sh", "-c", script, "sh", *units], timeout=_PATIENCE).stdout
    except WaitTimeout as error:
        output, hangs = error.printed, [f"{host.name}: no answer in {_PATIENCE} s"]
    zone, *lines = output.splitlines() or [""]
    unreachable = [
        f"{host.name} cannot reach slurmctld: "
        f"{line.removeprefix(_NO_ANSWER) or f'no answer in {_PING} s'}"
        for line in lines
        if line.startswith(_NO_ANSWER)
    ]
    ended = [
        f"{host.name}: {line.removeprefix(_NOT_ACTIVE)}"
        for line in lines
        if line.startswith(_NOT_ACTIVE)
    ]
    programs = dict.fromkeys(
        f"{host.name}: {line.removeprefix(_PROGRAM)}" for line in lines if line.startswith(_PROGRAM)
    )
    exits = dict.fromkeys(f"{host.name}: {line}" for line in lines if _EXITED in line)
    users = {str(user.uid) for user in plan.scenario.users.values()}
    changed_jobs, errors = _job_changes_and_errors(host.name, logs.dated(lines, zone), since, users)
    return [
        *ended,
        *hangs,
        *_shortened([*programs]),
        *unreachable,
        *[*exits][-_MOST:],
        *_shortened(changed_jobs),
        *errors[-_MOST:],
    ]


def _database_lines(ssh: Ssh, host: Host) -> list[str]:
    """Return the statements that take MariaDB long, such as those that wait for a lock."""
    answer = ssh.run(host.name, ["sh", "-c", _STATEMENTS], check=False, timeout=_PATIENCE)
    return _shortened([f"{host.name}: MariaDB takes {line}" for line in answer.stdout.splitlines()])


def _script(paths: Iterable[str], since: float, *, pings: bool) -> str:
    """Return the shell script that prints what `_host_lines` reads, the time zone first."""
    # grep(1) exits with 1 if no line matches.
    pattern = f"(error|fatal): |({'|'.join(_CHANGES_OF_A_JOB)}) JobId="
    errors = "; ".join(
        f"grep -aE '{pattern}' {path} | tail -n 300" for path in map(shlex.quote, paths)
    )
    ping = (
        f'output=$(timeout {_PING} scontrol ping 2>&1) || echo "{_NO_ANSWER}"$output'
        if pings
        else "true"
    )
    exits = (
        "journalctl --quiet --no-pager --output=cat _PID=1"
        f" --since=@{since - _TOLERANCE:.0f} 2> /dev/null | grep -aE '^slurm[^ ]*: {_EXITED}'"
    )
    # In parallel: a ping without an answer takes as long as all the others may.
    checks = f"{{ {_ENDED}; {_PROGRAMS}; {exits}; }}"
    return f"set -f; date +%z; {{ {ping}; }} & {checks}; wait; {errors or 'true'}; true"


def _job_changes_and_errors(
    host: str, dated_lines: Iterable[tuple[float, str]], since: float, users: Collection[str]
) -> tuple[list[str], list[str]]:
    """Return the jobs that anyone but `users` (uids) changed since a time, and the errors.

    Each error is returned once.
    """
    now = time.time()
    last: dict[str, str] = {}
    changes: Counter[tuple[str, str, str]] = Counter()
    for at, text in dated_lines:
        # A check may have advanced a daemon's clock.
        if not since - _TOLERANCE <= at <= now + _TOLERANCE or _CANCELLED.search(text):
            continue
        if changed := _JOB_CHANGED.search(text):
            if changed[3] not in users:
                changes[changed[1], changed[2], changed[3]] += 1
        elif _NO_SLURMSTEPD.search(text):
            last["slurmstepd"] = f"{host}: slurmd cannot start slurmstepd"
        else:
            last[_NUMBER.sub("", text)] = f"{host} logged: {text}"
    changed_jobs = [
        f"{host}: uid {uid} {_CHANGES_OF_A_JOB[change].format(job_id)}"
        + (f", {count} times" if count > 1 else "")
        for (change, job_id, uid), count in changes.items()
    ]
    # Causes last, because only the last errors are shown.
    return changed_jobs, sorted(last.values(), key=lambda line: bool(_CAUSE.search(line)))
