"""All hosts, not only the first: users, directories, names and clocks, and steps between nodes."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from ipaddress import ip_address
from itertools import chain, pairwise
from pathlib import PurePosixPath
from typing import Any

import pytest
from conftest import (
    READS_ALL_FILES,
    Jobs,
    current_reservations,
    everywhere,
    only,
    problems_on,
    reserved_nodes,
    slurm_conf,
)
from test_hosts import has_own_image

from harness import render, slurm_options, topology
from harness.cluster import logs, slurm
from harness.cluster.slurm import Partition, SlurmCluster
from harness.parsing import hostlist
from harness.plan import Host, Plan
from harness.ssh import Ssh
from harness.wait import wait_until

# The maximum number of other nodes on which each node starts a step: so few that there is no
# fan-out (slurm.conf(5), TreeWidth).
_MOST_NEIGHBOURS = 16
# The maximum number of other nodes to whose slurmd each node connects: all pairs of 64 nodes.
_MOST_CONNECTIONS = 63
# Seconds by which the time that a daemon logs may differ from the kernel's time of the write.
_SAME_TIME = 5
# Limits that the kernel derives from a host's memory.
_MEMORY_LIMITS = {"Max processes", "Max pending signals"}
# Limits of the user's shell that a task has unless slurm.conf says otherwise, with their names in
# PropagateResourceLimits. Of the others, Slurm or the kernel change some.
_PROPAGATED = {"Max stack size": "STACK", "Max core file size": "CORE", "Max open files": "NOFILE"}
# Deadline in seconds for a job whose steps hang for 75 s twice.
_PATIENCE = 700
# Prints the task's limits, then runs a step on the next nodes of its job, where each task reads
# more than fits into a packet. If that fails, a separate step on each node shows which of them is
# to blame. Steps inherit only the job's id. To nodes that follow these, it only connects.
_STEPS = r"""
me=$SLURMD_NODENAME
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
unset $(env | sed -n 's/^\(SLURM_[A-Z_]*\)=.*/\1/p' | grep -Evx 'SLURM_(JOB_?ID|CONF)')
sed "s/^/limit $me /" /proc/self/limits
step() {
    head -c 8000 /dev/zero | tr '\0' x | timeout --kill-after=2 75 \
        srun --overlap --mem=0 --nodes=$# --ntasks=$# \
        --nodelist="$(echo "$@" | tr ' ' ,)" \
        sh -c "echo reached $me \$SLURMD_NODENAME \$(wc -c)" 2>&1
}
count=$(($(echo "$nodes" | wc -l) - 1))
others=$(printf '%s\n' "$nodes" "$nodes" | sed "0,/^$me\$/d" | head -n $count)
further=$(echo "$others" | head -n CONNECTIONS | tail -n +$((NEIGHBOURS + 1)) | paste -sd ,)
[ -z "$further" ] || scontrol --oneliner show node "$further" |
    python3 -c "$CONNECT" PORT | sed "s/^/unreached $me /"
set -- $(echo "$others" | head -n NEIGHBOURS)
for other; do echo asks $me $other; done
output=$(step "$@")
echo "$output"
[ $(echo "$output" | grep -c "^reached .* 8000$") = $# ] && exit
for other; do step $other | sed "s/^/$me $other: /" & done
wait
"""

# Connects to the slurmd of each node in `scontrol --oneliner show node`, at the same time, and
# prints the nodes with which that fails. A busy node gets several attempts.
_CONNECT = r"""
import asyncio, os, re, sys

async def connect(node, address, port):
    for _ in range(3):
        try:
            _, writer = await asyncio.wait_for(asyncio.open_connection(address, port), 10)
            return writer.close()
        except (OSError, asyncio.TimeoutError) as error:
            number = getattr(error, "errno", None)
            problem = os.strerror(number) if number else str(error) or "no answer in 10 s"
    print(node, problem)

async def connect_all():
    nodes = (dict(re.findall(r"(\S+?)=(\S+)", line)) for line in sys.stdin)
    await asyncio.gather(*(
        connect(node["NodeName"], node["NodeAddr"], int(node.get("Port", sys.argv[1])))
        for node in nodes if node
    ))

asyncio.run(connect_all())
"""

# Reads the ports to try of each host. For each host whose ports do not all answer, prints its name,
# a tab, and the first that does not, or how many answered if that takes too long. A port on which
# nothing listens refuses the connection at once.
_UNREACHED = r"""
import json, socket, sys, time
from concurrent.futures import ThreadPoolExecutor

end = time.monotonic() + 240

def answers(name, port):
    for _ in range(3):
        try:
            socket.create_connection((name, port), 5).close()
            return True
        except ConnectionRefusedError:
            return True
        except OSError:
            pass
    return False

def unreached(host):
    name, ports = host
    for count, port in enumerate(ports):
        if time.monotonic() > end:
            return f"{name}\treaches only {count} of {len(ports)} ports in 240 s"
        if not answers(name, port):
            return f"{name}\tcannot reach port {port}"

with ThreadPoolExecutor(16) as pool:
    for line in filter(None, pool.map(unreached, json.load(sys.stdin).items())):
        print(line)
"""
# Of more ports, only every second, third and so on is tried: by one node, and by each other one.
_MOST_PORTS, _SOME_PORTS = 4000, 3

# The device number of each device that programs expect: null(4), random(4), tty(4), ptmx(4).
# Everyone may read and write them.
_DEVICES = {
    "/dev/null": "1:3",
    "/dev/zero": "1:5",
    "/dev/full": "1:7",
    "/dev/random": "1:8",
    "/dev/urandom": "1:9",
    "/dev/tty": "5:0",
    "/dev/ptmx": "5:2",
}
# The links to a program's own streams.
_STREAMS = ("/dev/fd/0", "/dev/stdin", "/dev/stdout", "/dev/stderr")

# Directories to which every user writes; libraries of MPI use /dev/shm.
_SHARED_DIRECTORIES = ("/tmp", "/var/tmp", "/dev/shm")
# Directories with users' programs; /run and /dev/shm are usually noexec.
_WITH_PROGRAMS = ("/tmp", "/var/tmp", "/home/")

# Succeeds if each lookup of a host's address takes long: a name server does not answer, for which
# the resolver waits 5 s (resolv.conf(5)).
_LONG, _SLOW = 4, 9
_LOOKUP_IS_SLOW = f"""(
    for attempt in 1 2 3; do
        begin=$(date +%s)
        timeout 8 getent ahosts {{name}} > /dev/null
        [ $(($(date +%s) - begin)) -ge {_LONG} ] || exit 1
    done)"""
# Prints which files of name lookups a user cannot read.
_UNREADABLE = """runuser -u nobody -- sh -c '
    for path in /etc/passwd /etc/group /etc/hosts /etc/nsswitch.conf /etc/resolv.conf; do
        [ ! -e $path ] || [ -r $path ] || echo $path
    done'"""
# Prints "NUMBER NAMES" for each uid and gid that has several names, after its kind.
_SHARED_IDS = """for kind in passwd group; do
    getent $kind | sort -t : -s -k 3,3 | awk -F : -v kind=$kind -v last=none '
        $3 == last { names = names " " $1; more = 1; next }
        more { print kind, names }
        { last = $3; names = $3 " " $1; more = 0 }
        END { if (more) print kind, names }'
done"""
# Prints the accounts that need no password, after that word.
_NO_PASSWORD = """awk -F : '$2 == "" { print "passwordless", $1 }' /etc/shadow"""
# Prints the options of Slurm's commands that a user's login and other shells set, after a word.
_ENVIRONMENT = """runuser -l {user} -c 'env; bash -ic env 2> /dev/null' |
    sed -En 's/^((SLURM|SBATCH|SALLOC|SRUN|SCANCEL|SQUEUE|SINFO|SACCT)_[A-Z_]+)=.*/variable \\1/p' |
    sort -u"""
# Prints the mode and owner of a directory, where it is, and what `closed` prints. Then prints an
# error if a user cannot write there, or `run` fails. An empty file needs no room.
_STAT_AND_WRITE = """
stat -Lc '%a %U %G' {path} 2>&1
realpath -m {path}
{closed}
runuser -u {user} -- sh -c '
    file=$(mktemp -p {path}) && {{ head -c 1048576 /dev/zero > $file; {run}; rm $file; }}' 2>&1
echo end
"""
# Runs a program from a file, as scripts of users do.
_RUN = "cp /bin/true $file && chmod u+x $file && { $file || echo programs cannot run; }"
# Prints the directory because of which other users cannot enter a directory, or "-".
_CLOSED = """runuser -u nobody -- sh -c '
    closed=- at={path}
    until [ $at = / ]; do [ -x $at ] || closed=$at; at=$(dirname $at); done
    echo $closed'"""


@pytest.mark.needs("users")
def test_every_user_is_the_same_on_every_host(ssh: Ssh, plan: Plan) -> None:
    """No two names have one id, and users can read the files in which programs find them.

    No account is without a password, and no shell sets options of Slurm's commands. On machines,
    the site may have given an id a second name, and set options.
    """
    user = next(iter(plan.scenario.users))
    parts = (_UNREADABLE, _SHARED_IDS, _NO_PASSWORD, _ENVIRONMENT.format(user=user))
    script = "\n".join([users_script(plan), *parts])
    hosts = [host.name for host in plan.permanent_hosts()]
    seen = everywhere(lambda name: ssh.run(name, ["sh", "-c", script]).stdout.splitlines(), hosts)
    wrong = wrong_users(seen, plan)
    for host, lines in seen.items():
        for line in lines[len(plan.scenario.users) :]:
            kind, *names = line.split()
            if not names:
                wrong.append(f"{host}:{line} cannot be read by users")
            elif kind == "passwordless":
                wrong.append(f"{host}: {names[0]} needs no password")
            elif kind == "variable" and has_own_image(plan, host):
                wrong.append(
                    f"{host}: a shell of {user} sets {names[0]}: see /etc/bash.bashrc, "
                    "/etc/profile, /etc/environment and the user's home"
                )
            elif has_own_image(plan, host):
                number, *shared = names
                wrong.append(
                    f"{host}: {'uid' if kind == 'passwd' else 'gid'} {number} has several names: "
                    f"{', '.join(shared)}"
                )
    assert not wrong, "\n".join(wrong)


def users_script(plan: Plan) -> str:
    """Return a script that prints what a host knows about each of the scenario's users."""
    look = 'echo "$(getent passwd $user || echo ::::::):$(id -nG $user)"'
    return f"for user in {shlex.join(plan.scenario.users)}; do {look}; done"


def wrong_users(seen: Mapping[str, Sequence[str]], plan: Plan) -> list[str]:
    """Return how users differ from the scenario, given what users_script printed on each host."""
    wrong = []
    for number, (user, configured) in enumerate(plan.scenario.users.items()):
        facts = {host: _user_facts(lines[number]) for host, lines in seen.items()}
        usual = {
            fact: Counter(user_facts[fact] for user_facts in facts.values()).most_common(1)[0][0]
            for fact in _user_facts("")
        }
        wanted = usual | {"uid": str(configured.uid), "home": f"/home/{user}"}
        if plan.capabilities.engine:
            groups = " ".join(sorted(plan.scenario.groups_of(user)))
            wanted |= {"gid": str(configured.uid), "shell": "/bin/bash", "groups": groups}
        for host, user_facts in facts.items():
            if not user_facts["uid"]:
                wrong.append(f"{host} has no user {user}")
                continue
            differing = [fact for fact in user_facts if user_facts[fact] != wanted[fact]]
            wrong += [
                f"{host}: {user} has {fact} {user_facts[fact]}, should have {wanted[fact]}"
                for fact in differing
            ]
    return wrong


def _user_facts(line: str) -> dict[str, str]:
    """Read a line of passwd(5) with a field of the user's groups appended."""
    _, _, uid, gid, _, home, shell, groups, *_ = [*line.split(":"), *[""] * 8]
    names = " ".join(sorted(groups.split()))
    return {"uid": uid, "gid": gid, "home": home, "shell": shell, "groups": names}


def test_every_directory_is_the_rendered_one_and_its_owner_can_write_to_it(
    ssh: Ssh, plan: Plan
) -> None:
    """Covers the directories of tmpfiles.d, such as SlurmdSpoolDir and homes, and shared ones.

    Users can replace neither the files in the daemons' directories nor these directories. MariaDB's
    directory only needs room.
    """
    hosts = (host.name for host in plan.permanent_hosts())
    problems = problems_on(hosts, partial(wrong_directories, ssh, plan, render.render(plan)))
    assert not problems, "\n".join(problems)


def wrong_directories(ssh: Ssh, plan: Plan, tree: render.Tree, name: str) -> list[str]:
    """Return how a host's directories differ from the rendered ones, and what cannot be written."""
    people = plan.scenario.users
    user = next(iter(people), "root")
    own_image = has_own_image(plan, name)
    is_static = plan.host(name).provision == "static"
    texts = [file.text for file in tree[name] if file.path.startswith("/etc/tmpfiles.d/")]
    rendered = re.findall(r"^d (\S+) 0?(\d+) (\S+) (\S+)$", "\n".join(texts), re.M)
    name_of = {str(person.uid): user for user, person in people.items()}
    rendered = [
        (path, mode, *(name_of.get(owner, owner) for owner in owners))
        for path, mode, *owners in rendered
    ]
    # systemd removes a RuntimeDirectory when its daemon stops, as on nodes that come and go.
    rendered = [facts for facts in rendered if is_static or not facts[0].startswith("/run/")]
    writers = dict.fromkeys(_SHARED_DIRECTORIES, user) | {
        path: owner for path, _, owner, _ in rendered
    }
    if "mariadb" in plan.host(name).daemons:
        ask = ["mariadb", "--batch", "--skip-column-names", "--execute", "select @@datadir"]
        if directory := ssh.run(name, ask, check=False).stdout.strip():
            writers[directory.rstrip("/")] = "mysql"
    spool = _spool_directory(plan, name)
    script = "".join(
        _STAT_AND_WRITE.format(
            path=path,
            user=writer,
            run=_RUN if own_image and path.startswith(_WITH_PROGRAMS) else ":",
            closed=_CLOSED.format(path=path) if spool and path.startswith(spool) else "echo -",
        )
        for path, writer in writers.items()
    )
    *answers, _ = ssh.run(name, ["sh", "-c", script]).stdout.split("\nend\n")
    wanted = dict.fromkeys(_SHARED_DIRECTORIES, "1777 root root") | {
        path: " ".join(facts) for path, *facts in rendered
    }
    wrong = []
    for path, answer in zip(writers, answers, strict=True):
        actual, real_path, closed, *refused = answer.splitlines()
        if actual != wanted.get(path, actual):
            wrong.append(f"{name}:{path} is {actual}, should be {wanted[path]}")
        elif closed not in {"-", path}:
            wrong.append(f"{name}:{closed} keeps users from {path}, which has their scripts")
        # Machines, and images of users, may have reasons for links.
        if real_path != path and own_image:
            wrong.append(f"{name}:{path} is a symbolic link to {real_path}")
        wrong += [f"{name}:{path} cannot be used by {writers[path]}: {line}" for line in refused]
    own = [
        path for path, mode, owner, _ in rendered if owner not in people and int(mode, 8) & 2 == 0
    ]
    wrong += [
        f"{name}:{path} can be written by everyone"
        for path in _open_paths(ssh, name, own, system=own_image)
    ]
    return [*wrong, *_unwritable_power_log(ssh, plan, name)]


def _open_paths(ssh: Ssh, name: str, directories: Sequence[str], *, system: bool) -> list[str]:
    """Return the files in daemons' directories, and directories above, that users can replace.

    With `system`, also what users can replace in the directories of programs and settings.
    """
    above = {str(parent) for path in directories for parent in PurePosixPath(path).parents}
    script = f"""
find {shlex.join(above)} -maxdepth 0 -perm -002 ! -perm -1000
find {shlex.join(directories)} -maxdepth 1 -type f -perm -002
"""
    if system:
        script += """
find /etc /usr -xdev '(' -type f -o -type d ')' -perm -002 ! -perm -1000
find /run -xdev -type d -perm -002 ! -perm -1000
"""
    answer = ssh.run(name, ["sh", "-c", script], check=False, timeout=READS_ALL_FILES)
    return [*dict.fromkeys(answer.stdout.splitlines())]


def _spool_directory(plan: Plan, name: str) -> str:
    """Return SlurmdSpoolDir of a host, up to a pattern such as %n, or "" if it has none."""
    cluster = plan.host(name).cluster
    conf = plan.slurm_conf(cluster) if cluster else {}
    return str(slurm_options.get(conf, "SlurmdSpoolDir") or "").partition("%")[0]


def _unwritable_power_log(ssh: Ssh, plan: Plan, name: str) -> Iterator[str]:
    """Yield a problem if slurmctld's power programs cannot write their log on a host."""
    host = plan.host(name)
    if host.with_elastic and host.cluster:
        conf = plan.slurm_conf(host.cluster)
        user = slurm_options.get(conf, "SlurmUser") or "root"
        log = slurm_options.POWER_LOG
        script = f"[ ! -e {log} ] || runuser -u {user} -- test -w {log}"
        if ssh.run(name, ["sh", "-c", script], check=False).exit_code:
            yield f"{name}:{log} cannot be written by {user}"


def test_every_host_has_the_devices_that_programs_expect(ssh: Ssh, plan: Plan) -> None:
    """A program that replaces /dev/null by a regular file makes others read what was discarded."""
    # Do not use /dev/null here: it may be broken.
    look_at = "[ -e $path ] && stat -Lc '%F, mode %a, device %t:%T' $path || echo missing"
    script = (
        f"for path in {shlex.join(_DEVICES)}; do {look_at}; done;"
        f" for path in {shlex.join(_STREAMS)}; do [ -e $path ] || echo $path; done"
    )

    def look(name: str) -> list[str]:
        answers = ssh.run(name, ["sh", "-c", script]).stdout.splitlines()
        wanted = [f"character special file, mode 666, device {at}" for at in _DEVICES.values()]
        missing = answers[len(wanted) :]
        return [
            f"{name}:{path} is {actual}, should be {device}"
            for path, actual, device in zip(_DEVICES, answers, wanted, strict=False)
            if actual != device
        ] + [f"{name}:{path} is missing" for path in missing]

    problems = problems_on((host.name for host in plan.permanent_hosts()), look)
    assert not problems, "\n".join(problems)


@pytest.mark.needs("two_hosts")
def test_every_host_name_resolves_to_that_host(
    ssh: Ssh, plan: Plan, clusters: dict[str, SlurmCluster]
) -> None:
    hosts = [host.name for host in plan.permanent_hosts()]
    names = shlex.join(host.name for host in plan.hosts)
    script = (
        "hostname -I; echo $(getent ahosts localhost | cut -d' ' -f1 | sort -u);"
        f" {_LOOKUP_IS_SLOW.format(name=hosts[0])} && exit {_SLOW};"
        f" for name in {names}; do echo $name $(getent ahosts $name | head -n 1); done"
    )
    answers = everywhere(lambda name: ssh.run(name, ["sh", "-c", script], check=False), hosts)
    printed = {host: answer.stdout.splitlines() for host, answer in answers.items()}
    host_at = {address: host for host, (own, *_) in printed.items() for address in own.split()}
    seen = {host: lines for host, (_, _, *lines) in printed.items()}
    resolved = [
        (host, *line.split()[:2]) for host, lines in seen.items() for line in lines if " " in line
    ]
    wrong = [
        f"on {host}, {name} is {address}, which is {host_at[address]}"
        for host, name, address in resolved
        if host_at.get(address, name) != name
    ]
    wrong += [
        f"{host} takes {_LONG} s or more to resolve {hosts[0]}: "
        "see hosts in /etc/nsswitch.conf, and /etc/resolv.conf"
        for host, answer in answers.items()
        if answer.exit_code == _SLOW
    ]
    # An existing machine may be reached at an address that it does not know.
    wrong += [
        f"on {host}, {name} is {address}, which is not an address of {name}"
        for host, name, address in resolved
        if name in hosts and has_own_image(plan, name)
        if address not in host_at and not ip_address(address).is_loopback
    ]
    # An installer may give a machine a second name for itself, such as Debian's 127.0.1.1.
    wrong += [
        f"on {host}, {name} is {address}, which leads to {host} itself from every host"
        for host, name, address in resolved
        if ip_address(address).is_loopback and (name != host or has_own_image(plan, host))
    ]
    wrong += _wrong_names(seen, {*hosts})
    wrong += [
        f"on {host}, localhost is {local or 'unknown'}"
        for host, (_, local, *_) in printed.items()
        if not local or not all(ip_address(address).is_loopback for address in local.split())
    ]
    for name, cluster in clusters.items():
        answer = cluster.run("scontrol", "--all", "--oneliner", "show", "node").stdout
        for node, address in re.findall(r"^NodeName=(\S+) .*\bNodeAddr=(\S+)", answer, re.M):
            host = plan.hosts_of(name).get(node)
            at = host_at.get(address, address)
            if host in hosts and at in hosts and at != host:
                wrong.append(
                    f"slurmctld of {name} has {address} as the address of {node}, which is {at}"
                )
    assert not wrong, "\n".join(wrong)


def _wrong_names(seen: Mapping[str, Iterable[str]], permanent: Collection[str]) -> Iterator[str]:
    """Yield wrong addresses of hosts that come and go.

    On each host, their addresses must differ from each other and be the same as on most hosts.
    Such a host cannot be asked for its own addresses: it may not exist.
    """
    addresses_of: dict[str, dict[str, str]] = {}
    for host, lines in seen.items():
        names: dict[str, str] = {}
        for name, address in (line.split()[:2] for line in lines if " " in line):
            if name not in permanent:
                addresses_of.setdefault(name, {})[host] = address
                if address in names:
                    yield f"on {host}, {names[address]} and {name} are both {address}"
                names[address] = name
    for name, addresses in addresses_of.items():
        usual = Counter(addresses.values()).most_common(1)[0][0]
        for host, address in addresses.items():
            if address != usual:
                others = hostlist.fold(other for other in addresses if addresses[other] == usual)
                yield f"on {host}, {name} is {address}, but {usual} on {others}"


def test_no_reservation_keeps_jobs_waiting(clusters: dict[str, SlurmCluster], plan: Plan) -> None:
    """A reservation is unexpected unless the scenario has it."""
    unexpected = [
        f"{name}: {reservation} keeps jobs waiting; the scenario does not have it"
        for name, cluster in clusters.items()
        for reservation in current_reservations(cluster, plan)[1]
    ]
    assert not unexpected, "\n".join(unexpected)


def test_no_trigger_runs_a_program(clusters: dict[str, SlurmCluster]) -> None:
    """A trigger runs its program only later: when a node goes down, for example."""
    triggers = [
        f"{name}: a trigger runs {line.split()[-1]}: {' '.join(line.split())}"
        for name, cluster in clusters.items()
        for line in cluster.run("strigger", "--get", "--noheader").stdout.splitlines()
    ]
    assert not triggers, "\n".join(triggers)


@pytest.mark.needs("backup_controllers")
def test_controllers_of_a_cluster_share_their_state(ssh: Ssh, plan: Plan) -> None:
    """A file in StateSaveLocation that SlurmUser writes on one is visible on the others at once."""
    wrong = []
    for name, part in plan.scenario.clusters.items():
        conf = plan.slurm_conf(name)
        directory, user = (
            slurm_options.state_save_location(conf),
            slurm_options.get(conf, "SlurmUser") or "root",
        )
        as_user = ["runuser", "-u", user, "--"]
        write = ["mktemp", "--tmpdir=" + directory, "harness.XXXXXXXXXX"]
        path = ssh.run(part.controller, [*as_user, *write]).stdout.strip()
        try:
            for backup in part.backup_controllers:
                if ssh.run(backup, [*as_user, "test", "-e", path], check=False).exit_code != 0:
                    wrong.append(
                        f"{backup} does not see what {part.controller} writes to {directory} "
                        "(StateSaveLocation)"
                    )
        finally:
            ssh.run(part.controller, ["rm", path])
    assert not wrong, "\n".join(wrong)


@pytest.mark.needs("backup_controllers")
def test_every_host_reaches_every_slurmctld_of_its_cluster(ssh: Ssh, plan: Plan) -> None:
    """Controllers that cannot reach each other may both take control.

    A host that reaches only one controller has none if the other one is in control.
    """

    def look(host: Host) -> list[str]:
        cluster = plan.scenario.clusters[host.cluster]
        answer = ssh.run(host.name, ["scontrol", "ping"], check=False)
        if not answer.stdout and answer.stderr:
            return [f"{host.name} cannot run scontrol: {answer.stderr.splitlines()[0]}"]
        return [
            f"{host.name} cannot reach slurmctld of {controller}"
            for controller in (cluster.controller, *cluster.backup_controllers)
            if not re.search(rf" at {re.escape(controller)} is UP$", answer.stdout, re.M)
        ]

    hosts = [host for host in plan.permanent_hosts() if host.cluster]
    looks = [(look, host) for host in hosts]
    _wait_until_reached(looks, "every host to reach every slurmctld of its cluster")


@pytest.mark.needs("accounting")
def test_every_controller_reaches_slurmdbd(ssh: Ssh, plan: Plan) -> None:
    """A slurmctld that takes over waits for slurmdbd before it takes jobs."""

    def look(host: Host) -> list[str]:
        answer = ssh.run(host.name, ["sacctmgr", "--noheader", "show", "cluster"], check=False)
        problem = " ".join(answer.stderr.splitlines()[:1])
        return [f"{host.name} cannot reach slurmdbd: {problem}"] * (answer.exit_code != 0)

    looks = [(look, host) for host in plan.with_daemon("slurmctld")]
    _wait_until_reached(looks, "every controller to reach slurmdbd")


@pytest.mark.needs("accounting")
@pytest.mark.provokes("Zero Bytes were transmitted")  # a connection without a message
def test_every_slurmdbd_reaches_every_slurmctld(ssh: Ssh, plan: Plan) -> None:
    """A slurmctld learns of changes to associations and QOS from slurmdbd, which connects to it."""

    def look(host: Host) -> list[str]:
        unreached = []
        for controller in plan.with_daemon("slurmctld"):
            ports = slurm_options.port_of(plan.slurm_conf(str(controller.cluster)), "slurmctld")
            connect = f"</dev/tcp/{controller.name}/{ports.partition('-')[0]}"
            if ssh.run(host.name, ["timeout", "10", "bash", "-c", connect], check=False).exit_code:
                unreached.append(f"{host.name} cannot reach slurmctld of {controller.name}")
        return unreached

    looks = [(look, host) for host in plan.with_daemon("slurmdbd")]
    # The kernel accepts a connection, however busy slurmctld is.
    _wait_until_reached(looks, "every slurmdbd to reach every slurmctld")


@pytest.mark.needs("two_hosts")
@pytest.mark.provokes("Zero Bytes were transmitted")  # a connection without a message
def test_every_slurmctld_reaches_the_slurmd_of_every_host(
    ssh: Ssh, plan: Plan, clusters: dict[str, SlurmCluster]
) -> None:
    """Covers hosts that are always up, and one slurmd on each."""
    wrong = []
    for name, cluster in clusters.items():
        static_hosts = {host.name for host in plan.hosts if host.provision == "static"}
        nodes = {host: node for node, host in plan.hosts_of(name).items() if host in static_hosts}
        show = ["scontrol", "--all", "--oneliner", "show", "node", ",".join(nodes.values())]
        shown = cluster.run(*show).stdout if nodes else ""
        port = slurm_options.port_of(plan.slurm_conf(name), "slurmd").partition("-")[0]
        for host in plan.with_daemon("slurmctld"):
            if host.cluster == name:
                answer = ssh.run(host.name, ["python3", "-c", _CONNECT, port], stdin=shown)
                wrong += [
                    f"{host.name} cannot connect to slurmd of {line.replace(' ', ': ', 1)}"
                    for line in answer.stdout.splitlines()
                ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.needs("static", "two_hosts")
def test_tasks_reach_the_ports_of_srun_on_every_host(ssh: Ssh, plan: Plan) -> None:
    """Tasks connect to the srun that started them, at any port of SrunPortRange.

    One node of its cluster tries all those ports of a host on which nothing listens, so that no
    srun is disturbed. All other nodes of the cluster and its federation try some of them.
    """
    hosts = [host for host in plan.permanent_hosts() if host.cluster]

    def ports_range(host: Host) -> str:
        return slurm_options.get(plan.slurm_conf(str(host.cluster)), "SrunPortRange")

    def free_ports(name: str) -> list[int]:
        ports = slurm_options.ports(ports_range(plan.host(name)))
        listening = ssh.run(name, ["ss", "--no-header", "--numeric", "--tcp", "--listening"]).stdout
        busy = {int(line.split()[3].rpartition(":")[2]) for line in listening.splitlines()}
        return [port for port in ports[:: 1 + len(ports) // _MOST_PORTS] if port not in busy]

    free = everywhere(free_ports, [host.name for host in hosts if ports_range(host)])
    tried: dict[str, dict[str, list[int]]] = {}
    for name, ports in free.items():
        cluster = str(plan.host(name).cluster)
        near = {
            cluster,
            *chain.from_iterable(
                part.clusters
                for part in plan.scenario.federations.values()
                if cluster in part.clusters
            ),
        }
        nodes = [
            host for host in hosts if host.nodes and host.name != name and host.cluster in near
        ]
        # All ports from the next one of the cluster, so that each node tries all of one host.
        own = [node.name for node in nodes if node.cluster == cluster]
        thorough = min(own, key=lambda other: (other < name, other), default="")
        for node in nodes:
            some = ports if node.name == thorough else ports[:: 1 + len(ports) // _SOME_PORTS]
            tried.setdefault(node.name, {})[name] = some

    def look(node: str) -> list[str]:
        tries = json.dumps(tried[node])
        answer = ssh.run(node, ["python3", "-c", _UNREACHED], stdin=tries, timeout=300)
        found = (line.split("\t") for line in answer.stdout.splitlines())
        return [
            f"{name}: {node} {problem}; SrunPortRange is {ports_range(plan.host(name))}"
            for name, problem in found
        ]

    problems = problems_on(tried, look)
    assert not problems, "\n".join(problems)


def _wait_until_reached(
    looks: Sequence[tuple[Callable[[Host], list[str]], Host]], what: str, timeout: float = 60
) -> None:
    """Wait until no function finds a problem on its host; a busy daemon may answer late."""

    def unreached() -> list[str]:
        with ThreadPoolExecutor(8) as pool:
            return [*chain.from_iterable(pool.map(lambda look: look[0](look[1]), looks))]

    wait_until(unreached, lambda left: not left, what=what, timeout=timeout, show="; ".join)


@pytest.mark.needs("users", "two_hosts")
@pytest.mark.provokes("Zero Bytes were transmitted")  # a connection without a message
def test_every_node_starts_steps_on_every_other_and_gives_them_the_same_limits(
    ssh: Ssh, plan: Plan, jobs: Jobs
) -> None:
    """Runs a job on a node of each host in a partition.

    If there are many nodes, each starts steps only on the next ones, and connects to more.
    """

    def look(cluster: SlurmCluster) -> list[str]:
        return [
            line
            for group in _node_groups(cluster, plan)
            for line in _wrong_steps(cluster, plan, jobs, *group)
        ]

    with ThreadPoolExecutor() as pool:
        wrong = [*chain(*pool.map(look, slurm.clusters(ssh, plan, _PATIENCE).values()))]
    assert not wrong, "\n".join(wrong)


def _node_groups(cluster: SlurmCluster, plan: Plan) -> Iterator[tuple[Partition, list[str]]]:
    """Yield partitions that together cover all permanent hosts.

    Each comes with a node on each of its hosts, at least two.
    """
    static_hosts = {host.name for host in plan.hosts if host.provision == "static"}
    hosts_of = plan.hosts_of(cluster.name)
    reserved = reserved_nodes(cluster, plan)
    seen: set[str] = set()
    for partition in sorted(cluster.partitions(), key=lambda partition: -len(partition.nodes)):
        on_hosts = {
            hosts_of[node]: node
            for node in reversed(partition.nodes)
            if hosts_of.get(node) in static_hosts and node not in reserved
        }
        nodes = [*reversed(on_hosts.values())][: partition.max_nodes]
        if partition.takes_jobs and len(nodes) > 1 and not seen.issuperset(nodes):
            seen.update(nodes)
            yield partition, nodes


def _wrong_steps(
    cluster: SlurmCluster, plan: Plan, jobs: Jobs, partition: Partition, nodes: list[str]
) -> Iterator[str]:
    """Yield the problems of steps between nodes of a partition, and of their tasks' limits."""
    count = len(nodes)
    placed = topology.placed(plan.scenario, cluster.name).get(partition.name)
    # A topology places the job itself.
    where = [] if placed else [f"--nodelist={','.join(nodes)}"]
    count = min(count, placed.most_nodes()) if placed else count
    line = slurm_conf(plan, cluster.name).partitions.get(partition.name, {})
    conf = plan.slurm_conf(cluster.name)
    user = "root" if partition.root_only else jobs.user_of(cluster.name, line)
    answer = cluster.run(
        "srun",
        *only(cluster, plan),
        f"--partition={partition.name}",
        *jobs.partition_options(cluster.name, line),
        *where,
        f"--nodes={count}",
        "--ntasks-per-node=1",
        "--overlap",
        *("bash", "-c", steps_script(slurm_options.port_of(conf, "slurmd"))),
        user=user,
        check=False,
    )
    if answer.exit_code:
        errors = [line for line in answer.stderr.splitlines() if "error:" in line]
        problem = "; ".join(errors) or answer.stderr.strip()
        yield f"{cluster.name}: a task on each of {','.join(nodes)}: {problem}"
        return
    lines = answer.stdout.splitlines()
    pairs = {tuple(line.split()[1:3]) for line in lines if line.startswith("asks ")}
    reached = {
        tuple(line.split()[-3:-1]) for line in lines if re.search(r"\breached \S+ \S+ 8000$", line)
    }
    if len({node for node, _ in pairs}) != count:
        yield f"{cluster.name}: a job of {count} nodes ran on {sorted({node for node, _ in pairs})}"
    for node, other in sorted(pairs - reached):
        errors = [
            line.partition(": ")[2]
            for line in lines
            if line.startswith(f"{node} {other}: ") and "error:" in line
        ]
        yield f"{node} cannot run a step on {other}: {'; '.join(errors) or 'no answer in 75 s'}"
    for unreached in re.findall(r"^unreached (\S+) (\S+) (.*)", answer.stdout, re.M):
        yield "{} cannot connect to slurmd of {}: {}".format(*unreached)
    limits = _limits(lines)
    yield from _different_limits(cluster, plan, limits)
    shell = cluster.run("sed", "s/^/limit shell /", "/proc/self/limits", user=user)
    of_shell = _limits(shell.stdout.splitlines())["shell"]
    yield from _unpropagated_limits(conf, of_shell, limits)


def steps_script(port: str) -> str:
    """Return the script of each task; `port` is that of each slurmd without a port of its own."""
    numbers = {
        "NEIGHBOURS": _MOST_NEIGHBOURS,
        "CONNECTIONS": _MOST_CONNECTIONS,
        "PORT": port.partition("-")[0],
    }
    script = _STEPS
    for name, number in numbers.items():
        script = re.sub(rf"\b{name}\b", str(number), script)
    return f"CONNECT={shlex.quote(_CONNECT)}\n{script}"


def _limits(lines: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return the soft and the hard value of each limit by node, from lines of /proc/PID/limits."""
    limits: dict[str, dict[str, str]] = {}
    for node, limit, values in re.findall(
        r"^limit (\S+) (Max .*?)  +(\S.*\S)", "\n".join(lines), re.M
    ):
        limits.setdefault(node, {})[limit] = " ".join(values.split()[:2])
    return limits


def _unpropagated_limits(
    conf: Mapping[str, Any], of_shell: Mapping[str, str], limits: Mapping[str, Mapping[str, str]]
) -> Iterator[str]:
    """Yield the soft limits of tasks that are not those of the shell that submitted them."""
    for limit, word in _PROPAGATED.items():
        soft = of_shell[limit].split()[0]
        for node, of_task in limits.items() if slurm_options.propagates(conf, word) else ():
            actual, hard = of_task[limit].split()
            # slurmd cannot raise its own hard limit.
            possible = hard == "unlimited" or (soft.isdigit() and int(soft) <= int(hard))
            if actual != soft and possible:
                yield (
                    f"{limit} of a task on {node} is {actual}, that of the shell which submitted "
                    f"it is {soft}: PropagateResourceLimits has no effect"
                )


def _different_limits(
    cluster: SlurmCluster, plan: Plan, limits: Mapping[str, Mapping[str, str]]
) -> Iterator[str]:
    """Yield the limits of tasks that differ from those on most nodes of the same group."""
    for group in plan.scenario.clusters[cluster.name].nodes:
        limits_of = {node: limits[node] for node in hostlist.expand(group.name) if node in limits}
        for limit in {limit for names in limits_of.values() for limit in names} - _MEMORY_LIMITS:
            usual = Counter(node_limits[limit] for node_limits in limits_of.values()).most_common(
                1
            )[0][0]
            for node, node_limits in limits_of.items():
                if node_limits[limit] != usual:
                    yield (
                        f"{limit} (soft, hard) of a task is {node_limits[limit]} on {node}, "
                        f"and {usual} on other nodes"
                    )


def test_every_daemon_has_the_time_of_its_host(ssh: Ssh, plan: Plan) -> None:
    """Compares the time in the last line of each log with the file's modification time."""

    def look(name: str) -> Iterator[str]:
        host = plan.host(name)
        daemons = {*host.daemons, *(["slurmd"] if host.nodes else [])}
        paths = {
            path: daemon
            for daemon in daemons
            for path in logs.log_files(plan, host, daemon)
            if daemon != "munge"
        }
        # Read again if the daemon has written to it in the meantime.
        script = f"""date +%z
            for path in {shlex.join(paths)}; do
                until written=$(stat -c '%n %.3Y' $path); last=$(tail -n 1 $path)
                    [ "$(stat -c '%n %.3Y' $path)" = "$written" ]
                do :; done
                printf '%s\\n' "$written" "$last"
            done"""
        zone, *lines = ssh.run(name, ["sh", "-c", script], check=False).stdout.splitlines()
        for line, last_line in pairwise(lines):
            path, _, written = line.partition(" ")
            for at, _ in logs.dated([last_line], zone) if path in paths else ():
                if abs(difference := at - float(written)) > _SAME_TIME:
                    yield (
                        f"{name}: the clock of {paths[path]} is {difference:+.0f} s off its host's "
                        f"({path})"
                    )

    problems = problems_on((host.name for host in plan.permanent_hosts()), look)
    assert not problems, "\n".join(problems)
