"""Every host runs its daemons with the rendered configuration, and munge works between hosts."""

from __future__ import annotations

import hashlib
import math
import re
import shlex
import stat
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import PurePosixPath

import pytest
from conftest import READS_ALL_FILES, database_rows, everywhere, problems_on

from harness import releases, render, run_secrets, slurm_options
from harness.cluster import diagnosis, logs
from harness.origins import Family
from harness.plan import DAEMONS, Plan
from harness.plan import Host as PlannedHost
from harness.releases import DEFAULT_PORTS
from harness.report import timeline
from harness.rundir import RunDir
from harness.slurmconf.check import log_messages
from harness.ssh import Ssh

PORT_OF = {daemon: DEFAULT_PORTS[daemon] for daemon in ("slurmctld", "slurmd", "slurmdbd")}
PROCESS_OF = {"munge": "munged", "mariadb": "mariadbd"}
# slurmctld's own helper, which runs programs such as PrologSlurmctld for it.
HELPER = "slurmscriptd"
# A daemon sends a message to a client that ends at this moment, such as srun after its last step.
# _writev_timeout() of Slurm notices it in one of three places, and each has its own words.
PEER_ENDED = (
    r"slurm_(send_node_msg|msg_sendto): .*"
    r"(Connection reset|Unexpected missing socket error|Message send failure)"
)
# A client sends DBD_FINI and ends at once, so that slurmdbd's answer meets a closed connection: the
# end of _process_service_connection() in Slurm's persist_conn.c. Usually slurmdbd sees just that
# the connection is closed; it sees the error if it looks at the moment between both, or if the
# client has not read all of an earlier answer. 20.11 logs this differently.
CLIENT_ENDED = (
    r"_conn_readable: persistent connection for fd \d+ experienced "
    r"(error\[(32|104)\]|an unknown error)"
)
# slurmd cannot keep CPUs and memory for itself (CoreSpecCount, MemSpecLimit) in a container without
# cgroups, whose CPUs are not those of its node.
RESERVED_FOR_SYSTEM = re.compile(r"error: Resource spec: ")
# What a daemon logs at its start although nothing is wrong, and why this cannot be avoided.
HARMLESS = (
    # A new cluster has no state yet.
    r"Could not open (node|job|reservation|trigger) state file .*: No such file",
    r"NOTE: Trying backup state save file\.",
    r"No fed_mgr state file",
    # slurmdbd 24.11 logs this for each cluster that is added.
    r"We can't find assoc 1 on cluster",
    # The controllers of a federation start one by one, and learn of a new federation one by one.
    r"slurm_persist_conn_open_without_init: .* Connection refused",
    r"fed_mgr: Unable to open connection to cluster",
    r"slurm_persist_conn_open: .* no fed_mgr_fed_rec on cluster",
    # A member of a federation that is busy does not answer within MessageTimeout. The other one
    # closes the connection (slurm_receive_msg() in slurm_protocol_api.c), and sends the message
    # again on a new one: _agent_thread() in fed_mgr.c.
    r"slurm_(receive_msg|persist_conn_open): No response to persist_init$",
    r"_agent_thread: Failed to send RPC: (Unspecified error|Socket timed out)",
    # Debian's plugstack.conf, if slurmctld serves it.
    r"Slurm does not support glob parsing\. /etc/slurm/plugstack",
    r'"Include" failed in file /etc/slurm/plugstack.conf',
    # Debian's 22.05 needs PMIx's development package.
    r" mpi/pmix_v4: init: .* can not load PMIx library",
    r"Couldn't load specified plugin name for mpi/pmix",
    r"MPI: Cannot create context for mpi/pmix",
    # slurmdbd treats the connections of auth/slurm's local socket as if they were TCP.
    r"Unable to set keepalive (interval|probes|socket time): Operation not supported",
    # Debian's unit of slurmd, which runs as root, creates the directory of auth/slurm's socket.
    r"_prepare_run_dir: /run/slurm exists but is owned by root, not SlurmUser",
    # Nodes have files, and only login hosts get theirs from slurmctld.
    r"Running with local config file despite slurmctld having been setup for configless operation",
    # In containers, pam_slurm_adopt has no cgroup into which it could take a session.
    r"If using PrologFlags=Contain for pam_slurm_adopt, ",
    # The backup controller starts after the first controller.
    r"_shutdown_bu_thread: ?send/recv \S+: Connection refused",
    # A client asked a backup before it asked the first controller; it retries.
    r"Invalid RPC received \S+ while in standby",
    PEER_ENDED,
    CLIENT_ENDED,
    # The machine is busy.
    r"High latency for \d+ calls to gettimeofday",
    # It is busy, too, if a daemon answers late: slurm_recv_timeout() in slurm_protocol_socket.c.
    # slurmd registers again, slurmctld asks again. Without any answer, clusters are never ready.
    r"(.*: )?Socket timed out on send/recv operation$",
    # slurmd -Z of 26.05 looks for GPUs, and there are none.
    r"System GPU detection failed",
    # slurmds that share a host start one after the other.
    r"_?forward_thread: failed to \S+ .*Connection refused",
    r"_fwd_tree_thread: Abandon tree forward by",
    r"forward_thread to \S+: Connection refused",
    # slurmctld asks again, and makes nodes DOWN that do not answer in the end.
    r"Nodes \S+ not responding$",
    # slurmd -Z stores what it detects before it knows its spool directory.
    r"xcpuinfo_hwloc_topo_load: failed",
)
# What slurmctld logs if it has no saved jobs. Only that of a new cluster has none.
NO_JOBS = re.compile(r"Could not open job state file|No job state file \(.*\) to recover")
# Prints the files from which systemd has the units of daemons, wherever they are.
_LOADED = f"systemctl show --value --property=FragmentPath,DropInPaths {' '.join(DAEMONS)}"
# The keys with which the harness, and nobody else, logs in as root.
_ROOT_KEYS = "/root/.ssh/authorized_keys"
# Limits of an account of MariaDB, as mysql.global_priv calls them.
_LIMITS_OF_ACCOUNTS = (
    "password_lifetime",
    "max_questions",
    "max_updates",
    "max_connections",
    "max_user_connections",
    "max_statement_time",
)
# Targets that start daemons at boot.
_TARGETS = ("multi-user.target", "graphical.target")
# Paths of configuration files whose changes affect the daemons.
SETTINGS = r"/etc/(slurm|munge|default|sysconfig|logrotate\.d)/"


# Conditions of find(1) that hold for a program or plugin as no package installs it.
_UNSAFE = r"""-type f \( ! -user root -o -perm /6022 -o ! -perm -0444 \
    -o ! -name '*.so' ! -perm -0111 \) -printf '%p has mode %m and owner %u\n'"""


def different_programs(family: Family) -> str:
    """Return a script that prints what differs from the packages of Slurm and munge.

    It prints which of their files are missing or changed, and which programs the shell does not
    find because another of the same name comes first. Links to the packaged program, such as those
    that stand_ins of a scenario create, are not reported, nor is documentation, which small images
    leave out. dpkg does not compare owners and modes.
    """
    return rf"""
packages=$({family.installed_packages})
{family.verify_packages} |
    sed -En '\,/usr/share/(doc|info|locale|man)/,d
        s,^missing .* (/usr/.*),\1 is missing,p; t; s,^.* (/usr/.*),\1 is not as packaged,p
        s,^..5.* c ({SETTINGS}.*),\1 is not as packaged,p'
files=$({family.list_files} | grep -E '^/usr/(s?bin/.|lib.*\.so$)')
find $files -maxdepth 0 {_UNSAFE} 2> /dev/null
for path in $(echo "$files" | grep -v '\.so$'); do
    first=$(command -v "${{path##*/}}")
    [ "$first" -ef "$path" ] || echo "$first comes before $path"
done
getcap $files | sed 's/ /, which is not as packaged, has the capabilities /'
"""


def changed_since_boot(family: Family) -> str:
    """Return a script that prints which settings and programs of other packages were changed.

    To verify hundreds of packages takes seconds, so it looks only at the packages of files that
    have changed since the host was started.
    """
    copies = "\n".join(
        f"cmp -s {packaged} {copy} || echo {copy} is not as packaged"
        for copy, packaged in family.copied_settings.items()
    )
    return rf"""{copies}
since="$(ps -o etimes= -p 1) seconds ago"
changed=$(find /etc /usr/bin /usr/sbin -xdev -type f -newerct "$since" | sed -n 'p; s,^/usr,,p')
find $changed -maxdepth 0 -path '/usr/*' {_UNSAFE}
getcap $changed | sed 's/ /, which is not as packaged, has the capabilities /'
packages=$({family.owner_of_file} $changed 2> /dev/null |
    sed 's,: /.*,,; s/, /\n/g' | grep -v ' ' | sort -u)
[ -z "$packages" ] || {family.verify_packages} | sed -En 's,^..5.* (/.*),\1,p' |
    grep -Fx "$changed" | sed 's/$/ is not as packaged/'
"""


def test_every_host_runs_its_daemons_under_systemd_and_no_others(ssh: Ssh, plan: Plan) -> None:
    wrong = []

    def look(name: str) -> str:
        properties = ["--property=Id,ActiveState,LoadState,UnitFileState,MainPID,ExecStart"]
        shared = [f"slurmd@{node}" for node in shared_nodes(plan.host(name), plan)]
        units = ssh.run(
            name,
            [
                "systemctl",
                "show",
                *properties,
                *(f"{unit}.service" for unit in (*DAEMONS, *shared)),
            ],
        )
        names = "|".join([HELPER, *(PROCESS_OF.get(unit, unit) for unit in DAEMONS)])
        shown = (
            "cat /proc/$pid/comm",
            "frozen $pid && echo frozen || cut -d' ' -f3 /proc/$pid/stat",
            "tail -1 /proc/$pid/cgroup",
            "tr '\\0' ' ' < /proc/$pid/cmdline",
        )
        show = "echo $pid " + " ".join(f"$({fact})" for fact in shown)
        script = (
            f"{diagnosis.FROZEN}; systemctl get-default;"
            f" for pid in $(pgrep -x '{names}'); do {show}; done"
        )
        return units.stdout + "\n\n" + ssh.run(name, ["sh", "-c", script]).stdout

    seen = everywhere(look, [host.name for host in plan.permanent_hosts()])
    for host in plan.permanent_hosts():
        *units, rest = seen[host.name].split("\n\n")
        target, _, processes = rest.strip().partition("\n")
        facts = [dict(line.split("=", 1) for line in unit.strip().splitlines()) for unit in units]
        running = {
            fact["Id"].removesuffix(".service") for fact in facts if fact["ActiveState"] == "active"
        }
        enabled = {
            fact["Id"].removesuffix(".service")
            for fact in facts
            if fact["UnitFileState"] == "enabled"
        }
        wanted = {*host.daemons, *(f"slurmd@{node}" for node in shared_nodes(host, plan))}
        if running != wanted:
            wrong.append(
                f"{host.name}: runs {', '.join(sorted(running)) or 'none'}, "
                f"should run {', '.join(sorted(wanted))}"
            )
            wrong += [
                f"{host.name}: {line}"
                for unit in sorted(wanted - running)
                for line in last_lines(ssh, host, unit)
            ]
        masked = {
            fact["Id"].removesuffix(".service") for fact in facts if fact["LoadState"] == "masked"
        }
        wrong += [
            f"{host.name}: {unit}.service is masked, so {unit} cannot start again"
            for unit in sorted(masked & wanted)
        ]
        if enabled | masked & {*host.daemons} != {*host.daemons}:
            wrong.append(
                f"{host.name}: starts {', '.join(sorted(enabled)) or 'none'} at boot, "
                f"should start {', '.join(sorted(host.daemons))}"
            )
        if target not in _TARGETS:
            wrong.append(f"{host.name}: boots into {target}, which starts no daemons")
        daemons = facts_of_processes(processes)
        for pid, process, state, cgroup, command in daemons:
            if problem := {"T": "stopped by a signal", "frozen": "frozen"}.get(state):
                wrong.append(f"{host.name}: {process} is {problem}: {cgroup}")
            unit = next((unit for unit, name in PROCESS_OF.items() if name == process), process)
            unit = "slurmctld" if process == HELPER else unit
            if not re.search(rf"/{unit}(@[^/]*)?\.service(/|$)", cgroup):
                wrong.append(f"{host.name}: {process} runs outside of {unit}.service: {cgroup}")
            if process.startswith("slurm") and has_own_image(plan, host.name):
                # A masked unit has no ExecStart.
                started = (fact for fact in facts if fact["MainPID"] == pid and "ExecStart" in fact)
                wrong += [
                    f"{host.name}: {process} {difference}"
                    for fact in started
                    for difference in different_start(fact, command)
                ]
        names = [process for _, process, *_ in daemons]
        if (
            "slurmctld" in names
            and HELPER not in names
            and releases.get(host.release).has_slurmscriptd
        ):
            wrong.append(
                f"{host.name}: slurmctld has lost {HELPER}, without which it runs no programs"
            )
    assert not wrong, "\n".join(wrong)


def facts_of_processes(printed: str) -> list[list[str]]:
    """Return the five facts of each process.

    A process that ended in the meantime has fewer, and is left out: slurmd and slurmctld fork for
    each program that they run.
    """
    lines = (line.split(" ", 4) for line in printed.strip().splitlines())
    return [facts for facts in lines if len(facts) == 5]


def different_start(unit: Mapping[str, str], command: str) -> Iterator[str]:
    """Yield how a daemon's command differs from its unit's.

    A variable in the unit's command stands for any words.
    """
    (unit_command,) = re.findall(r"argv\[\]=(.*?) ; ", unit["ExecStart"])
    pattern = "".join(
        ".*" if word.startswith("$") else re.escape(f"{word} ") for word in unit_command.split()
    )
    if not re.fullmatch(pattern, f"{command} "):
        yield f"was started as {command!r}, its unit now has {unit_command!r}"


def last_lines(ssh: Ssh, host: PlannedHost, unit: str) -> list[str]:
    """Return the last errors that the daemon of a unit wrote to its host's journal.

    If there are none among its last lines, return the last one.
    """
    process = PROCESS_OF.get(unit, unit.partition("@")[0])
    look = f"journalctl --unit={unit} --identifier={process} --lines=10 --output=cat --quiet"
    script = f"{diagnosis.JOURNAL_IS_WRITTEN}; {look}"
    lines = ssh.run(host.name, ["sh", "-c", script]).stdout.splitlines()
    errors = [line for line in lines if re.search(r"\b(error|fatal): ", line)]
    return errors[-4:] or lines[-1:]


def shared_nodes(host: PlannedHost, plan: Plan) -> tuple[str, ...]:
    """Return the nodes whose slurmd has a separate unit, because they share the host."""
    return host.nodes if host.cluster and plan.scenario.clusters[host.cluster].hosts else ()


def test_every_slurm_daemon_has_the_release_that_the_scenario_names(ssh: Ssh, plan: Plan) -> None:
    def look(name: str) -> str:
        host = plan.host(name)
        daemons = {*host.daemons, *(["slurmd"] if host.nodes else [])}
        # sackd does not print its release.
        programs = [name for name in daemons if name.startswith("slurm")] or ["sinfo"]
        script = "; ".join(f"{program} -V" for program in programs)
        return ssh.run(name, ["sh", "-c", script]).stdout

    # A host that only runs Prometheus needs no Slurm.
    hosts = [
        host.name
        for host in plan.permanent_hosts()
        if host.cluster or any(daemon.startswith("slurm") for daemon in host.daemons)
    ]
    for name, answer in everywhere(look, hosts).items():
        host = plan.host(name)
        version = host.origin.version if host.origin else host.release
        for line in answer.splitlines():
            assert re.fullmatch(rf"slurm\S* {re.escape(version)}([.-]\S+)?", line), (
                f"{name} has {line}, not {version}"
            )
        assert answer, name


def test_every_host_has_its_packages_and_their_settings(ssh: Ssh, plan: Plan) -> None:
    """Compares settings and programs with the packages, and `packages` with the scenario."""
    tree = render.render(plan)
    hosts = [host.name for host in plan.permanent_hosts()]
    problems = problems_on(hosts, partial(wrong_packages, ssh, plan, tree))
    assert not problems, "\n".join(problems)


def wrong_packages(ssh: Ssh, plan: Plan, tree: render.Tree, name: str) -> list[str]:
    """Return which packages a host lacks, and what was changed in others than Slurm and munge."""
    if not has_own_image(plan, name):
        return []
    host = plan.host(name)
    provided = (
        ssh.run(name, ["sh", "-c", host.family.provided_packages]).stdout.split()
        if host.packages
        else []
    )
    wrong = [
        f"{name}: package {package} is not installed"
        for package in host.packages
        if package not in provided
    ]
    return wrong + differences(ssh, tree, name, changed_since_boot(host.family))


def differences(ssh: Ssh, tree: render.Tree, name: str, script: str) -> list[str]:
    """Return what a script prints on a host, without lines that begin with a rendered file."""
    rendered = {file.path for file in tree[name]}
    lines = ssh.run(name, ["sh", "-c", script], timeout=READS_ALL_FILES).stdout.splitlines()
    return [f"{name}: {x}" for x in dict.fromkeys(lines) if x.split(" ")[0] not in rendered]


def test_every_program_and_plugin_of_slurm_is_the_packaged_one(ssh: Ssh, plan: Plan) -> None:
    """A wrapper in front of a program, or a plugin that is missing, affects later jobs only.

    A packaged file of settings takes effect when its daemon starts again. Machines, and images of
    users, may have Slurm from elsewhere.
    """
    tree = render.render(plan)
    hosts = [host.name for host in plan.permanent_hosts()]
    problems = problems_on(hosts, partial(wrong_programs, ssh, plan, tree))
    assert not problems, "\n".join(problems)


def wrong_programs(ssh: Ssh, plan: Plan, tree: render.Tree, name: str) -> list[str]:
    """Return what differs on a host from the packages of Slurm and munge."""
    if not has_own_image(plan, name):
        return []
    return differences(ssh, tree, name, different_programs(plan.host(name).family))


def test_every_slurm_daemon_started_without_an_error_or_warning(
    ssh: Ssh, plan: Plan, run: RunDir
) -> None:
    """Reads only what each logged until the clusters were ready: checks cause errors on purpose."""
    events = [*run.events()]
    ready = [timeline.seconds(event) for event in events if event.get("name") == "ready"]

    def look(daemon_log: tuple[str, str, str]) -> list[str]:
        name, daemon, path = daemon_log
        log = shlex.quote(path)
        # A check may have provoked errors in the second in which it restarted the daemon. systemd
        # before 248 prints no fractions of seconds.
        script = (
            f'show="systemctl show --property=ExecMainStartTimestamp --value {daemon}";'
            'date -d "$($show --timestamp=us 2> /dev/null || $show)" +%s.%N; date +%z;'
            f"pid=$(systemctl show --property=MainPID --value {daemon});"
            f"echo $(readlink /proc/$pid/fd/* | grep -F {log} | sort -u | paste -sd '|');"
            f"[ ! -e {log} ] || cat {log}"
        )
        started, zone, open_files, *lines = ssh.run(name, ["sh", "-c", script]).stdout.splitlines()
        moved = [f"{name}: {daemon} {how}" for how in rotated(path, open_files.split("|"))]
        if not lines and not moved and not quiet(plan, name, daemon):
            moved.append(f"{name}: {daemon} logged nothing to {path}")
        end = timeline.end_of_start(events, float(started))
        # Jobs that slurmctld has forgotten may get their ids again.
        job_losses = [
            f"{name}: {daemon} started without the jobs of its cluster: {line}"
            for line in lines
            for at, text in logs.dated([line], zone)
            if ready and ready[0] < math.floor(float(started)) <= at and NO_JOBS.search(text)
        ]
        return [*moved, *job_losses] + [
            f"{name}: {daemon}: {line}"
            for _, line in complaints(lines, zone, float(started), end)
            if not is_known(plan, name, line)
            and (plan.capabilities.own_hardware or not RESERVED_FOR_SYSTEM.search(line))
        ]

    problems = [
        line for lines in everywhere(look, daemons_with_logs(plan)).values() for line in lines
    ]
    assert not problems, "\n".join(problems)


def rotated(path: str, open_files: Collection[str]) -> Iterator[str]:
    """Yield that a daemon has its log open under another name only.

    Each slurmstepd opens the log by its name, so it may have recent lines all the same.
    """
    logs_of_daemon = [file for file in open_files if file.startswith(path)]
    if path not in logs_of_daemon:
        for file in logs_of_daemon:
            yield (
                f"still writes to {file}, not to {path}: "
                "the log was rotated without a signal to the daemon"
            )


def is_known(plan: Plan, host: str, line: str) -> bool:
    """Return whether a line is about a known problem of the host's cluster, or of any."""
    cluster = plan.host(host).cluster
    clusters = plan.scenario.clusters
    return any(
        log_messages.is_certainly_about(line, option)
        for name in ([cluster] if cluster else clusters)
        for option in clusters[name].known_problems
    )


def quiet(plan: Plan, host: str, daemon: str) -> bool:
    """Return whether a daemon is configured to log nothing at its start if nothing is wrong."""
    cluster = plan.host(host).cluster
    if daemon == "slurmdbd":
        return (
            slurm_options.log_level(slurm_options.slurmdbd_conf(plan.scenario), "DebugLevel")
            < slurm_options.LOG_INFO
        )
    conf = plan.slurm_conf(cluster) if cluster else {}
    return (
        slurm_options.log_level(
            conf, {"slurmctld": "SlurmctldDebug", "slurmd": "SlurmdDebug"}.get(daemon, "")
        )
        < slurm_options.LOG_INFO
    )


def daemons_with_logs(plan: Plan) -> list[tuple[str, str, str]]:
    """Return the host, daemon and path of each log file of Slurm's daemons."""
    return [
        (host.name, daemon, path)
        for host in plan.permanent_hosts()
        for daemon in host.daemons
        if daemon.startswith("slurm")
        for path in logs.log_files(plan, host, daemon)
    ]


def complaints(
    lines: Iterable[str], zone: str, start: float, end: float, levels: str = "error|fatal|warning"
) -> Iterator[tuple[float, str]]:
    """Yield the time and text of each line of these levels, unless it is harmless.

    Only lines between two times, in seconds since 1970, count. `zone` applies to times without a
    time zone.
    """
    for line in lines:
        for at, text in logs.dated([line], zone):
            logged = re.match(rf"(?:{levels}): (.*)", text)
            # A log may have only whole seconds.
            begin = math.floor(start) if at.is_integer() else start
            if (
                logged
                and begin <= at <= end
                and not any(re.match(harmless, logged[1]) for harmless in HARMLESS)
            ):
                yield at, line


def test_every_file_is_the_rendered_one_with_owner_and_mode(
    ssh: Ssh, run: RunDir, plan: Plan
) -> None:
    hosts = [host.name for host in plan.permanent_hosts()]
    problems = problems_on(hosts, partial(wrong_files, ssh, run, plan, render.render(plan)))
    assert not problems, "\n".join(problems)


def wrong_files(ssh: Ssh, run: RunDir, plan: Plan, tree: render.Tree, name: str) -> list[str]:
    """Return how the files of a host differ from the rendered ones."""
    wrong = []
    secrets = run.secrets()
    # A federation has a hundred files: ask a host only once for the owners of its files, and once
    # for their sums.
    paths = shlex.join(file.path for file in tree[name])
    rows = table(ssh, name, f"stat -c '%f %U %G %04a %n' {paths}", 4)
    stats = {path: facts for *facts, path in rows}
    owners = {path: tuple(owner) for path, (_, *owner) in stats.items()}
    digests = {path: digest for digest, path in table(ssh, name, f"sha256sum {paths}", 1)}
    for file in tree[name]:
        if file.path not in owners:
            wrong.append(f"{name}:{file.path} is missing")
            continue
        wanted = hashlib.sha256(run_secrets.reveal(file.text, secrets).encode()).hexdigest()
        if digests.get(file.path) != wanted:
            wrong.append(f"{name}:{file.path} is not the rendered file")
        if not stat.S_ISREG(int(stats[file.path][0], 16)):
            wrong.append(f"{name}:{file.path} is not a regular file")
        elif (owner := owners[file.path]) != (file.owner, file.group, file.mode):
            wanted_owner = (file.owner, file.group, file.mode)
            wrong.append(f"{name}:{file.path} is {owner}, should be {wanted_owner}")
    wrong += [f"{name}:{line}" for line in open_directories(ssh, name, tree[name])]
    if has_own_image(plan, name):
        keys = printed(ssh, name, f"cat {_ROOT_KEYS}")
        if keys != run.key("ssh_key.pub").read_text():
            wrong.append(f"{name}:{_ROOT_KEYS} is not the harness's: it decides who becomes root")
    # A file that comes from neither the harness nor a package may change what the daemons do.
    files = printed(ssh, name, f"find {' '.join(places(plan, name))} ! -type d").splitlines()
    if has_own_image(plan, name):
        files += printed(ssh, name, _LOADED).split()
    owner = plan.host(name).family.owner_of_file
    others = sorted({*files} - {*owners})
    # Only if a package lacks one of the files, ask for each of them.
    if others and failed(ssh, name, f"{owner} {shlex.join(others)}"):
        # Packages may name files without the /usr that /lib is now a link into.
        wrong += [
            f"{name}:{path} was not rendered"
            for path in others
            if failed(ssh, name, f"{owner} {shlex.quote(path)}")
            and failed(ssh, name, f"{owner} {shlex.quote(path.removeprefix('/usr'))}")
        ]
    return wrong


def open_directories(ssh: Ssh, name: str, files: Sequence[render.RenderedFile]) -> Iterator[str]:
    """Yield the directories above rendered files in which others could replace these files."""
    owners = {"root", *(file.owner for file in files)}
    directories = {str(above) for file in files for above in PurePosixPath(file.path).parents}
    for mode, owner, path in table(ssh, name, f"stat -Lc '%a %U %n' {shlex.join(directories)}", 2):
        if int(mode, 8) & stat.S_IWOTH and not int(mode, 8) & stat.S_ISVTX:
            yield f"{path} can be written by everyone (mode {mode}), who can replace its files"
        if owner not in owners:
            yield f"{path} belongs to {owner}, who can replace its files"


def has_own_image(plan: Plan, host: str) -> bool:
    """Return whether a host is a container of an image that the harness builds."""
    return not (plan.capabilities.own_hardware or plan.host(host).image)


def places(plan: Plan, host: str) -> list[str]:
    """Return where files change what Slurm's daemons do on a host, as patterns of the shell.

    Machines, and images of users, may have settings of their own for systemd's units.
    """
    if not has_own_image(plan, host):
        return ["/etc/slurm"]
    return [
        "/etc/slurm",
        "/etc/default/slurm*",
        "/etc/systemd/system*/slurm*",  # set-property writes to system.control
        "/run/systemd/system*/slurm*",
        "/run/systemd/transient/*.timer",
        "/etc/ld.so.preload",
        "/etc/ld.so.conf.d",
        "/etc/profile.d",
        "/etc/security/limits.d",
        "/etc/tmpfiles.d",
        "/run/tmpfiles.d",
        "/etc/nologin",
        "/run/nologin",
    ]


def table(ssh: Ssh, host: str, command: str, gaps: int) -> list[list[str]]:
    """Return what a command prints, even if it fails: each line split at its first `gaps` gaps."""
    return [line.split(maxsplit=gaps) for line in printed(ssh, host, command).splitlines()]


def printed(ssh: Ssh, host: str, command: str) -> str:
    """Return what a command prints, even if it fails."""
    return ssh.run(host, ["sh", "-c", command], check=False).stdout


def failed(ssh: Ssh, host: str, command: str) -> bool:
    """Return whether a command fails."""
    return ssh.run(host, ["sh", "-c", command], check=False).exit_code != 0


@pytest.mark.needs("accounting")
def test_every_slurmdbd_has_all_rights_on_its_database(ssh: Ssh, run: RunDir, plan: Plan) -> None:
    """A backup slurmdbd logs in only when it takes over."""
    conf = slurm_options.slurmdbd_conf(plan.scenario)
    user, _, password = next(iter(slurm_options.database_grants(plan.scenario).values()))
    server = [f"--host={slurm_options.get(conf, 'StorageHost') or 'localhost'}"]
    if port := slurm_options.get(conf, "StoragePort"):
        server.append(f"--port={port}")
    client = ["mariadb", "--no-defaults", "-N", "-B", *server, f"--user={user}"]
    # Machines may have no client.
    script = (
        "read -r MYSQL_PWD; export MYSQL_PWD; ! command -v mariadb > /dev/null ||"
        f" {shlex.join([*client, '--execute=show grants'])}"
    )
    secret = f"{run_secrets.reveal(password, run.secrets())}\n"

    def look(name: str) -> list[str]:
        answer = ssh.run(name, ["sh", "-c", script], stdin=secret, check=False)
        if answer.exit_code:
            return [f"{name}: slurmdbd cannot use its database: {answer.stderr.strip()}"]
        # The other lines have a hash of the password.
        lines = [line for line in answer.stdout.splitlines() if "IDENTIFIED" not in line]
        has_all = any(re.search(r"ALL PRIVILEGES ON `\S*`\.\*", line) for line in lines)
        if has_own_image(plan, name) and not has_all:
            return [f"{name}: slurmdbd lacks rights on its database: {lines}"]
        return []

    problems = problems_on((host.name for host in plan.with_daemon("slurmdbd")), look)
    # Rights that end some day, or after some queries.
    limits = " union ".join(
        f"select concat(user, '@', host), '{limit}', json_value(priv, '$.{limit}')"
        f" from mysql.global_priv where user = '{user}' and json_value(priv, '$.{limit}') > 0"
        for limit in _LIMITS_OF_ACCOUNTS
    )
    for host in plan.with_daemon("mariadb"):
        problems += [
            "{}: MariaDB's account {} has {}={}".format(host.name, *row)
            for row in database_rows(ssh, host.name, limits)
        ]
    assert not problems, "\n".join(problems)


@pytest.mark.needs("users", "munge")
def test_munge_credential_of_every_host_decodes_on_every_other_with_the_same_uid(
    ssh: Ssh, plan: Plan
) -> None:
    names = [host.name for host in plan.permanent_hosts()]
    user, facts = next(iter(plan.scenario.users.items()))
    encoded = everywhere(
        lambda name: ssh.run(name, ["munge", "--no-input"], user=user, check=False), names
    )
    failed = [
        f"{name}: munge as {user}: {answer.stderr.strip()}"
        for name, answer in encoded.items()
        if answer.exit_code
    ]
    assert not failed, "\n".join(failed)
    credentials = {name: answer.stdout.strip() for name, answer in encoded.items()}
    decode = "while read -r credential; do echo $credential | unmunge 2>&1; echo end; done"

    def decode_all(name: str) -> list[str]:
        return ssh.run(
            name, ["sh", "-c", decode], stdin="\n".join(credentials.values()) + "\n"
        ).stdout.split("end\n")[:-1]

    for decoder, answers in everywhere(decode_all, names).items():
        for encoder, answer in zip(names, answers, strict=True):
            assert "Success (0)" in answer, (
                f"{decoder} refuses a credential of {encoder}: {answer.strip()}"
            )
            assert f"({facts.uid})" in re.search("UID:.*", answer)[0], (
                f"{decoder} sees a different uid than {encoder}"
            )


def test_clocks_and_time_zones_agree(ssh: Ssh, plan: Plan) -> None:
    """Asks munge for the time: it refuses credentials that are too old or from the future."""
    by_munge = "munge --no-input | unmunge | sed -n 's/^ENCODE_TIME.*(\\(.*\\))$/\\1/p'"
    ask = by_munge if plan.scenario.auth == "munge" else "date +%s"

    def look(name: str) -> tuple[float, str]:
        before = time.time()
        answer = ssh.run(name, ["sh", "-c", f"{ask}; date +%z"])
        match = re.fullmatch(r"(\d+)\n(\S+)\n", answer.stdout)
        assert match, f"a munge credential of {name} has no time: {answer.stderr}"
        encode_time, zone = match.groups()
        # On a slow host or network, it may have been encoded at any time between the two.
        nearest = min(max(int(encode_time), before), time.time())
        return int(encode_time) - nearest, zone

    seen = everywhere(look, [host.name for host in plan.permanent_hosts()])
    off = [f"{name} {seconds:+.0f} s" for name, (seconds, _) in seen.items() if abs(seconds) > 3]
    assert not off, f"clocks that differ from this machine's: {', '.join(off)}"
    zones = [f"{name} {zone}" for name, (_, zone) in seen.items()]
    assert len({zone for _, zone in seen.values()}) == 1, f"time zones differ: {', '.join(zones)}"


@pytest.mark.needs("users", "munge")
def test_munge_credential_made_with_a_foreign_key_is_refused(ssh: Ssh, plan: Plan) -> None:
    stranger = plan.permanent_hosts()[-1].name
    # A second munged with a different key, on the same host so that only the key differs.
    script = """
        set -e
        directory=$(mktemp -d) && chmod 0755 $directory && chown munge: $directory && cd $directory
        run="runuser -u munge --"
        $run dd if=/dev/urandom of=key bs=64 count=1 status=none && $run chmod 0400 key
        $run munged --socket=$directory/socket --key-file=$directory/key --pid-file=$directory/pid \
            --log-file=$directory/log --seed-file=$directory/seed
        munge --no-input --socket=$directory/socket
        pid=$(cat pid)
        # munged waits for the next connection if a signal arrives just before it calls accept().
        while kill $pid 2> /dev/null; do sleep 0.02; done
        rm -rf $directory
    """
    credential = ssh.run(stranger, ["sh", "-c", script]).stdout
    assert credential.startswith("MUNGE:"), credential
    for host in plan.permanent_hosts():
        answer = ssh.run(host.name, ["unmunge"], stdin=credential, check=False)
        assert answer.exit_code != 0, f"{host.name} accepts a credential made with another key"
        assert "Invalid credential" in answer.stderr + answer.stdout, answer


# Sends more than fits into a packet to each host's port 22, and names the hosts whose kernel does
# not acknowledge it in time. That sshd then closes the connection is no problem.
SEND_LARGE_PACKETS = r"""
import array, fcntl, socket, sys, termios, time
for host in sys.argv[1:]:
    try:
        with socket.create_connection((host, 22), timeout=10) as connection:
            connection.sendall(b"x" * 8000)
            unacknowledged, deadline = array.array("i", [1]), time.monotonic() + 10
            while unacknowledged[0] and time.monotonic() < deadline:
                time.sleep(0.02)
                fcntl.ioctl(connection, termios.TIOCOUTQ, unacknowledged)
        if unacknowledged[0]:
            print(host)
    except OSError:
        pass  # it is closed, or does not answer at all
"""


@pytest.mark.needs("sites")
def test_large_packets_pass_between_sites(ssh: Ssh, plan: Plan) -> None:
    """A gateway that drops them lets connections open, but most answers never arrive."""
    site_of = {host.name: host.site for host in plan.permanent_hosts()}
    firsts = [*{site: name for name, site in reversed(site_of.items())}.values()]

    def look(name: str) -> list[str]:
        others = [other for other in firsts if site_of[other] != site_of[name]]
        return ssh.run(name, ["python3", "-c", SEND_LARGE_PACKETS, *others]).stdout.split()

    wrong = [
        f"large packets from {name} do not reach {other}"
        for name, others in everywhere(look, firsts).items()
        for other in others
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.needs("sites")
@pytest.mark.provokes("Zero Bytes were transmitted or received")
def test_sites_reach_one_another_only_at_slurms_own_ports(ssh: Ssh, plan: Plan) -> None:
    """A listener on port 873 makes sure that the gateway refuses the connection, not the host."""
    first = plan.permanent_hosts()[0]
    other = next(host for host in plan.permanent_hosts() if host.site != first.site)
    server = (
        "import socket; s = socket.socket();"
        "s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1);"
        "s.bind(('', 873)); s.listen()"
    )
    ask = "timeout 30 bash -c '</dev/tcp/{}/{}' 2>/dev/null && echo open || echo closed"
    # If the site has no other host, this is the first host itself.
    neighbor = [host for host in plan.permanent_hosts() if host.site == first.site][:2][-1]
    script = (
        f'systemd-run --quiet --unit=listener python3 -c "{server}\nimport time; time.sleep(120)"'
    )
    ssh.run(first.name, ["sh", "-c", script])
    try:
        answer = ask.format("localhost", 873)
        wait = f'for i in $(seq 200); do [ "$({answer})" = open ] && exit; sleep 0.1; done; exit 1'
        ssh.run(first.name, ["sh", "-c", wait])
        near = ssh.run(neighbor.name, ["sh", "-c", ask.format(first.name, 873)]).stdout.strip()
        far = ssh.run(other.name, ["sh", "-c", ask.format(first.name, 873)]).stdout.strip()
        allowed = {
            (host.name, port): ssh.run(
                other.name, ["sh", "-c", ask.format(host.name, port)]
            ).stdout.strip()
            for host in plan.permanent_hosts()
            if host.site != other.site
            for port in (22, *(PORT_OF[daemon] for daemon in host.daemons if daemon in PORT_OF))
        }
    finally:
        ssh.run(first.name, ["systemctl", "stop", "listener"], check=False)
    assert (near, far) == ("open", "closed"), (
        f"port 873 of {first.name} is {near} from {neighbor.name}, which should reach it, "
        f"and {far} from {other.name}, which should not"
    )
    closed = [
        f"{other.name} cannot reach {name}:{port}"
        for (name, port), state in allowed.items()
        if state != "open"
    ]
    assert not closed, "\n".join(closed)
