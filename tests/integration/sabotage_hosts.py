"""Sabotages of hosts other than the first of their cluster, and of what keeps jobs from running."""

from __future__ import annotations

from sabotage import (
    CONF,
    FAKETIME,
    MOUNTS_OF,
    NETWORK_OF,
    SLURMDBD_LISTENS,
    TO_SRUN,
    UP,
    Sabotage,
    at_once,
    drop_in,
    on_single,
    stale,
    wrapper,
)

PLUGINS = "/usr/lib/*/slurm-wlm"
FREEZE = "/sys/fs/cgroup/system.slice/slurmd.service/cgroup.freeze"
OF_ALL_UNITS = "/etc/systemd/system/service.d"
LIMITS = "/etc/security/limits.conf"
SPOOL = "/var/lib/slurm/slurmd"
STATE = "/var/lib/slurm/slurmctld"
LOG = "/var/log/slurm/slurmd.log"


def on_host(check: str, host: str, do: str, undo: str, message: str) -> Sabotage:
    """Return a sabotage of a host."""
    return Sabotage((check,), (host, do), (host, undo), message)


def late(daemon: str) -> tuple[str, str]:
    """Return scripts that set a daemon's clock back by 90 s, and correct it."""
    return drop_in(
        daemon, f"Environment=LD_PRELOAD={FAKETIME} FAKETIME=-90s FAKETIME_DONT_FAKE_MONOTONIC=1"
    )


def dropped(match: str) -> tuple[str, str]:
    """Return scripts that make a host drop incoming packets, and accept them again."""
    rules = (
        "add table inet lie; add chain inet lie in { type filter hook input priority -5; };"
        " add rule inet lie in"
    )
    return f'nft "{rules} {match} drop"', "nft delete table inet lie"


def dropped_from(host: str, port: int) -> tuple[str, str]:
    """Return scripts that make a host drop a peer's packets to a port, and accept them again."""
    return dropped(f'ip saddr $(getent hosts {host} | cut -d" " -f1) tcp dport {port}')


def exchanged(first: str, second: str) -> tuple[str, str]:
    """Return scripts that swap two hosts' addresses in /etc/hosts, a mount, and restore them."""
    swap = f"s/\\b{first}\\b/\\n/g; s/\\b{second}\\b/{first}/g; s/\\n/{second}/g"
    return (
        f"cp /etc/hosts /root/hosts && sed '{swap}' /root/hosts > /etc/hosts",
        "cat /root/hosts > /etc/hosts",
    )


def reserved(nodes: str, when: str, options: str = "Users=bob") -> tuple[str, str]:
    """Return scripts that reserve nodes for a user other than the first, and undo that."""
    create = (
        f"scontrol create reservation ReservationName=theirs StartTime={when} Duration=60"
        f" Nodes={nodes} {options}"
    )
    return create, "scontrol delete ReservationName=theirs"


def in_maintenance(node: str) -> tuple[str, str]:
    """Return scripts that put a node in maintenance, and end that.

    slurmctld notices it within five seconds.
    """
    create, delete = reserved(node, "now", "Users=root Flags=MAINT")
    return (
        f"{create} && until scontrol show node {node} | grep -q MAINT; do sleep 0.1; done",
        delete,
    )


SINGLE_NODE = [
    at_once(
        on_single(
            "packages_and_their_settings",
            f"cp -p {LIMITS} /root && echo '* - nproc 5' >> {LIMITS}",
            f"cp -p /root/limits.conf {LIMITS}",
            f"single: {LIMITS} is not as packaged",
        ),
        on_single(
            "packages_and_their_settings",
            "cp -p /etc/profile /root && echo 'TMOUT=5' >> /etc/profile",
            "cp -p /root/profile /etc",
            "single: /etc/profile is not as packaged",
        ),
        on_single(
            "packages_and_their_settings",
            "setcap cap_setuid+ep /usr/bin/perl",
            "setcap -r /usr/bin/perl",
            "single: /usr/bin/perl, which is not as packaged, has the capabilities cap_setuid=ep",
        ),
        on_single(
            "packages_and_their_settings",
            "chmod u+s /usr/bin/sleep",
            "chmod u-s /usr/bin/sleep",
            "single: /usr/bin/sleep has mode 4755 and owner root",
        ),
        on_single(
            "packages_and_their_settings",
            "cp -p /usr/bin/nice /root && echo >> /usr/bin/nice",
            "cp -p /root/nice /usr/bin",
            "single: /usr/bin/nice is not as packaged",
        ),
    ),
    at_once(
        on_single(
            "every_program",
            *wrapper("srun", 'exec /usr/bin/srun "$@"'),
            "single: /usr/local/bin/srun comes before /usr/bin/srun",
        ),
        on_single(
            "every_program",
            "chmod u+s /usr/bin/sacct",
            "chmod u-s /usr/bin/sacct",
            "single: /usr/bin/sacct has mode 4755 and owner root",
        ),
        on_single(
            "every_program",
            "echo SLURMCTLD_OPTIONS=-c >> /etc/default/slurmctld",
            "sed -i '$d' /etc/default/slurmctld",
            "single: /etc/default/slurmctld is not as packaged",
        ),
    ),
    at_once(
        on_single(
            "every_file",
            # It fails to apply the limit in a container, but keeps it for the next start.
            "systemctl set-property --runtime slurmd TasksMax=16 || true",
            "rm -r /run/systemd/system.control/slurmd.service.d && systemctl daemon-reload",
            "system.control/slurmd.service.d/50-TasksMax.conf was not rendered",
        ),
        on_single(
            "every_file",
            "touch /etc/ld.so.preload",
            "rm /etc/ld.so.preload",
            "single:/etc/ld.so.preload was not rendered",
        ),
        on_single(
            "every_file",
            "echo export SBATCH_TIMELIMIT=1 > /etc/profile.d/site.sh",
            "rm /etc/profile.d/site.sh",
            "single:/etc/profile.d/site.sh was not rendered",
        ),
        on_single(
            "every_file",
            "touch /run/nologin",
            "rm /run/nologin",
            "single:/run/nologin was not rendered",
        ),
        on_single(
            "every_file",
            "systemd-run --quiet --unit=nightly --on-calendar=03:00 systemctl stop slurmd",
            "systemctl stop nightly.timer",
            "single:/run/systemd/transient/nightly.timer was not rendered",
        ),
        on_single(
            "every_file",
            f"mkdir {OF_ALL_UNITS} && printf '[Service]\\nNice=5\\n' > {OF_ALL_UNITS}/nice.conf"
            " && systemctl daemon-reload",
            f"rm -r {OF_ALL_UNITS} && systemctl daemon-reload",
            f"single:{OF_ALL_UNITS}/nice.conf was not rendered",
        ),
    ),
    at_once(
        on_single(
            "read_and_write_its_saved_state",
            f"install -m 600 /dev/null {STATE}/lie",
            f"rm {STATE}/lie",
            f"single: slurm cannot read and write its state: {STATE}/lie has mode 600",
        ),
        on_single(
            "read_and_write_its_saved_state",
            f"sed -i.right s/single/other/ {STATE}/clustername",
            f"mv {STATE}/clustername.right {STATE}/clustername",
            f"single:{STATE}/clustername is of other",
        ),
    ),
    at_once(
        on_single(
            "every_file",
            "ln -s /dev/null /etc/slurm/gres.conf",
            "rm /etc/slurm/gres.conf",
            "single:/etc/slurm/gres.conf was not rendered",
        ),
        on_single(
            "every_file",
            "cd /etc/slurm && mv slurm.conf /root && ln -s /root/slurm.conf slurm.conf",
            "mv /root/slurm.conf /etc/slurm/slurm.conf",
            "single:/etc/slurm/slurm.conf is not a regular file",
        ),
        on_single(
            "every_file",
            "chmod 0777 /etc/slurm",
            "chmod 0755 /etc/slurm",
            "single:/etc/slurm can be written by everyone",
        ),
    ),
    at_once(
        on_single(
            "started_without_an_error",
            f"systemctl stop slurmctld && mv {STATE} /root/state"
            f" && install -d -o slurm -g slurm -m 0700 {STATE} && systemctl start slurmctld"
            f" && {UP}",
            f"systemctl stop slurmctld && rm -r {STATE} && mv /root/state {STATE}"
            " && systemctl start slurmctld",
            "single: slurmctld started without the jobs of its cluster",
        ),
        on_single(
            "started_without_an_error",
            f"mv {LOG} {LOG}.1",
            f"mv {LOG}.1 {LOG}",
            f"single: slurmd still writes to {LOG}.1, not to {LOG}: ",
        ),
    ),
    at_once(
        on_single(
            "devices_that_programs_expect",
            "mv /dev/null /dev/null.right && touch /dev/null && chmod 0666 /dev/null",
            "mv /dev/null.right /dev/null",
            # "regular empty file" until a program writes to it.
            "single:/dev/null is regular ",
        ),
        on_single(
            "devices_that_programs_expect",
            "chmod 0600 /dev/ptmx",
            "chmod 0666 /dev/ptmx",
            "single:/dev/ptmx is character special file, mode 600, ",
        ),
        on_single(
            "devices_that_programs_expect",
            "rm /dev/fd",
            "ln -s /proc/self/fd /dev/fd",
            "single:/dev/fd/0 is missing",
        ),
    ),
    at_once(
        on_single(
            "every_user",
            "usermod --shell /usr/sbin/nologin bob",
            "usermod --shell /bin/bash bob",
            "single: bob has shell /usr/sbin/nologin, should have /bin/bash",
        ),
        on_single(
            "every_user",
            "passwd --delete root",
            "passwd --lock root",
            "single: root needs no password",
        ),
        on_single(
            "every_user",
            "cp /etc/bash.bashrc /root && sed -i '1i export SBATCH_QOS=normal' /etc/bash.bashrc",
            "mv /root/bash.bashrc /etc",
            "single: a shell of alice sets SBATCH_QOS",
        ),
    ),
]

FEDERATION = [
    on_host(
        "reach_the_ports_of_srun",
        NETWORK_OF + "aws-ctl",
        *dropped("tcp dport 60101-60300"),
        "aws-ctl: aws1 cannot reach port 60101; SrunPortRange is 60001-63000",
    ),
    on_host(
        "reach_the_ports_of_srun",
        NETWORK_OF + "onprem2",
        *dropped('ip saddr $(getent hosts aws4 | cut -d" " -f1) tcp dport 60001-63000'),
        "onprem2: aws4 cannot reach port 60001; SrunPortRange is 60001-63000",
    ),
    on_host(
        "every_host_name_resolves",
        "aws3",
        r"cp /etc/hosts /root && sed '/\saccounting$/s/^\S*/198.18.0.9/' /root/hosts > /etc/hosts",
        "cat /root/hosts > /etc/hosts && rm /root/hosts",
        "on aws3, accounting is 198.18.0.9, which is not an address of accounting",
    ),
    at_once(
        on_host(
            "runs_its_daemons",
            "aws2",
            "kill -STOP $(pidof munged)",
            "kill -CONT $(pidof munged)",
            "aws2: munged is stopped by a signal",
        ),
        on_host(
            "runs_its_daemons",
            "aws3",
            f"echo 1 > {FREEZE}",
            f"echo 0 > {FREEZE}",
            "aws3: slurmd is frozen",
        ),
        on_host(
            "runs_its_daemons",
            "onprem-ctl",
            "kill -STOP $(pgrep -x slurmscriptd)",
            "kill -CONT $(pgrep -x slurmscriptd)",
            "onprem-ctl: slurmscriptd is stopped by a signal",
        ),
        on_host(
            "runs_its_daemons",
            "aws-ctl",
            "kill -KILL $(pgrep -x slurmscriptd)",
            "systemctl restart slurmctld",
            "aws-ctl: slurmctld has lost slurmscriptd",
        ),
    ),
    at_once(
        on_host(
            "limits_priority_and_environment",
            "aws1",
            "taskset -acp 0 $(pidof -s slurmd)",
            "systemctl restart slurmd",
            "aws1: slurmd may use CPUs 0, not 0-",
        ),
        on_host(
            "limits_priority_and_environment",
            "onprem1",
            "path=$(readlink -f /usr/sbin/slurmd); cp -p $path $path.new && mv $path.new $path",
            "systemctl restart slurmd",
            "onprem1: slurmd runs a program that was replaced on disk",
        ),
        on_host(
            "limits_priority_and_environment",
            "aws2",
            "renice --priority 19 $(pidof slurmd)",
            "systemctl restart slurmd",
            "aws2: slurmd has nice value 19, its unit has 0",
        ),
        on_host(
            "limits_priority_and_environment",
            "aws3",
            "chrt --idle --pid 0 $(pidof slurmd)",
            "systemctl restart slurmd",
            "aws3: slurmd has CPU scheduling policy 5 (sched(7)), its unit has 0",
        ),
        on_host(
            "limits_priority_and_environment",
            "aws4",
            "systemctl set-environment LD_PRELOAD=libm.so.6 && systemctl restart slurmd",
            "systemctl unset-environment LD_PRELOAD && systemctl restart slurmd",
            "aws4: slurmd has LD_PRELOAD in its environment, which its unit does not set",
        ),
        on_host(
            "limits_priority_and_environment",
            "onprem2",
            *stale("slurmd", "UMask=0077"),
            "onprem2: slurmd has umask 0077, its unit has 0022",
        ),
        on_host(
            "limits_priority_and_environment",
            "onprem-ctl",
            "runuser -u slurm -- prlimit --pid $(pidof -s slurmctld) --nofile=500:",
            "systemctl restart slurmctld",
            "onprem-ctl: slurmctld has Max open files 500 (soft), its unit has 65536",
        ),
        on_host(
            "limits_priority_and_environment",
            "accounting",
            "echo 800 > /proc/$(pidof mariadbd)/oom_score_adj",
            "systemctl restart mariadb",
            "accounting: mariadb has OOM score adjustment 800, its unit has 0",
        ),
    ),
    on_host(
        "large_packets",
        "gateway",
        "nft 'add table inet lie; add chain inet lie big { type filter hook forward priority -5; }'"
        " && nft add rule inet lie big meta length gt 600 drop",
        "nft delete table inet lie",
        "large packets from accounting do not reach aws-ctl",
    ),
    on_host(
        "every_program",
        "aws3",
        f"mv {PLUGINS}/proctrack_linuxproc.so /root",
        f"mv /root/proctrack_linuxproc.so {PLUGINS}",
        "proctrack_linuxproc.so is ",
    ),
    at_once(
        on_host(
            "every_user",
            "aws2",
            "usermod -u 3002 bob",
            "usermod -u 2002 bob",
            "aws2: bob has uid 3002, should have 2002",
        ),
        on_host(
            "every_user",
            "onprem2",
            "userdel bob",
            "systemd-sysusers",
            "onprem2 has no user bob",
        ),
        on_host(
            "every_user",
            "onprem1",
            "usermod --append --groups adm bob",
            "gpasswd --delete bob adm",
            "onprem1: bob has groups adm bob, should have bob",
        ),
        on_host(
            "every_user",
            "aws4",
            "usermod --home /nowhere bob",
            "usermod --home /home/bob bob",
            "aws4: bob has home /nowhere, should have /home/bob",
        ),
        on_host(
            "every_user",
            "aws1",
            "chmod 0600 /etc/passwd",
            "chmod 0644 /etc/passwd",
            "aws1:/etc/passwd cannot be read by users",
        ),
        on_host(
            "every_user",
            "aws3",
            "echo eve:x:2001:2001::/home/eve:/bin/sh >> /etc/passwd",
            "sed -i /^eve:/d /etc/passwd",
            "aws3: uid 2001 has several names: alice, eve",
        ),
    ),
    at_once(
        on_host(
            "every_directory",
            "aws3",
            f"chmod 0700 {SPOOL}",
            f"chmod 0755 {SPOOL}",
            f"aws3:{SPOOL} is 700 root root, should be 755 root root",
        ),
        on_host(
            "every_directory",
            "aws1",
            "chmod 0750 /var/lib/slurm",
            "chmod 0755 /var/lib/slurm",
            f"aws1:/var/lib/slurm keeps users from {SPOOL}",
        ),
        on_host(
            "every_directory",
            "aws2",
            "chmod 0755 /tmp",
            "chmod 1777 /tmp",
            "aws2:/tmp is 755 root root",
        ),
        on_host(
            "every_directory",
            "onprem2",
            "chmod 0755 /dev/shm",
            "chmod 1777 /dev/shm",
            "onprem2:/dev/shm is 755 root root, should be 1777 root root",
        ),
        on_host(
            "every_directory",
            "aws4",
            f"mv {SPOOL} {SPOOL}.right && ln -s /proc {SPOOL}",
            f"rm {SPOOL} && mv {SPOOL}.right {SPOOL}",
            f"aws4:{SPOOL} cannot be used by root: mktemp: failed to create file",
        ),
    ),
    on_host(
        "every_directory",
        MOUNTS_OF + "aws1",
        "mount -t tmpfs -o size=4k,mode=1777 tmpfs /tmp",
        "umount /tmp",
        "aws1:/tmp cannot be used by alice: head: error writing 'standard output': No space left",
    ),
    on_host(
        "every_directory",
        MOUNTS_OF + "aws2",
        "mount -t tmpfs -o noexec,mode=1777 tmpfs /tmp",
        "umount /tmp",
        "aws2:/tmp cannot be used by alice: programs cannot run",
    ),
    on_host(
        "every_directory",
        "onprem1",
        f"mv {SPOOL} /tmp/spool && ln -s /tmp/spool {SPOOL}",
        f"rm {SPOOL} && mv /tmp/spool {SPOOL}",
        f"onprem1:{SPOOL} is a symbolic link to /tmp/spool",
    ),
    at_once(
        on_host("every_host_name", "aws-ctl", *exchanged("aws1", "aws2"), "which is aws2"),
        on_host(
            "every_host_name",
            "accounting",
            "cp /etc/hosts /root && sed '/localhost/s/^::1/192.0.2.9/' /root/hosts > /etc/hosts",
            "cat /root/hosts > /etc/hosts && rm /root/hosts",
            "on accounting, localhost is 127.0.0.1 192.0.2.9",
        ),
        on_host(
            "every_host_name",
            "aws3",
            "cp /etc/hosts /root/hosts && sed '1i 127.0.1.1 aws3' /root/hosts > /etc/hosts",
            "cat /root/hosts > /etc/hosts",
            "on aws3, aws3 is 127.0.1.1",
        ),
        on_host(
            "every_host_name",
            "aws4",
            # Nobody has the address, so the resolver waits.
            "cp /etc/resolv.conf /etc/nsswitch.conf /root && sed -i 's/^hosts:/& dns/'"
            " /etc/nsswitch.conf && for last in 250 251; do hostname -I |"
            ' sed -E "s/^([0-9.]+)\\.[0-9]+ .*/nameserver \\1.$last/"; done > /etc/resolv.conf',
            "cat /root/resolv.conf > /etc/resolv.conf && cp /root/nsswitch.conf /etc",
            "aws4 takes 4 s or more to resolve ",
        ),
    ),
    on_host(
        "every_host_name",
        "aws-ctl",
        "scontrol update NodeName=aws1 NodeAddr=aws2",
        "scontrol update NodeName=aws1 NodeAddr=aws1",
        "slurmctld of aws has aws2 as the address of aws1",
    ),
    at_once(  # 90 s, and what passes until a line of a log is written
        on_host(
            "time_of_its_host",
            "aws-ctl",
            *late("slurmctld"),
            "aws-ctl: the clock of slurmctld is -9",
        ),
        on_host("time_of_its_host", "aws3", *late("slurmd"), "aws3: the clock of slurmd is -9"),
        on_host(
            "time_of_its_host",
            "accounting",
            *(f"{script}; {SLURMDBD_LISTENS}" for script in late("slurmdbd")),
            "accounting: the clock of slurmdbd is -9",
        ),
    ),
    at_once(
        on_host(
            "no_reservation",
            "aws-ctl",
            *reserved("aws4", "now"),
            "aws: reservation theirs of aws4 for bob",
        ),
        on_host(
            "no_reservation",
            "onprem-ctl",
            *reserved("onprem2", "now+60days"),
            "on-prem: reservation theirs of onprem2 for bob",
        ),
    ),
    on_host(
        "munge_credential_of_every_host",
        "aws4",
        "chmod 0700 /run/munge",
        "chmod 0755 /run/munge",
        "aws4: munge as alice: munge: Error: ",
    ),
    on_host(
        "no_trigger",
        "aws-ctl",
        "runuser -u slurm -- strigger --set --node=aws1 --down --program=/bin/true",
        "runuser -u slurm -- strigger --clear --user=slurm",
        "aws: a trigger runs /bin/true: ",
    ),
    on_host(
        "every_node_takes_jobs", "aws-ctl", *in_maintenance("aws4"), "aws: aws4 IDLE+MAINTENANCE"
    ),
    on_host(
        "job_on_all_nodes",
        "aws-ctl",
        *reserved("aws4", "now"),
        "aws: reservation theirs of aws4 for bob",
    ),
    on_host(
        "batch_job_runs_once",
        "aws4",
        "chmod 0644 $(readlink -f /usr/sbin/slurmstepd) && systemctl restart slurmd",
        "chmod 0755 $(readlink -f /usr/sbin/slurmstepd) && systemctl restart slurmd",
        "aws4: slurmd cannot start slurmstepd",
    ),
    on_host(
        "batch_job_runs_once",
        NETWORK_OF + "aws4",
        *dropped("tcp sport 6817"),
        "aws4 cannot reach slurmctld",
    ),
    on_host(
        "starts_steps_on_every_other",
        NETWORK_OF + "aws2",
        *dropped('ip saddr $(getent hosts aws3 | cut -d" " -f1)'),
        "aws2 cannot run a step on aws3",
    ),
    on_host(
        "starts_steps_on_every_other",
        NETWORK_OF + "aws3",
        *dropped(TO_SRUN),
        "aws3 cannot run a step on aws1",
    ),
    on_host(
        "starts_steps_on_every_other",
        NETWORK_OF + "aws3",
        *dropped("meta length > 1000"),
        "failed on node aws3",
    ),
    on_host("the_same_limits", "aws2", *drop_in("slurmd", "LimitNOFILE=512"), "on aws2, and"),
    on_host(
        "the_same_limits",
        "aws-ctl",
        f"echo PropagateResourceLimits=NONE >> {CONF}",
        f"sed -i '$d' {CONF}",
        "Max open files of a task on aws1 is ",
    ),
    on_host(
        "failed_and_cancelled_jobs",
        "accounting",
        "mariadb -e 'set global read_only = 1'",
        "mariadb -e 'set global read_only = 0'",
        "--read-only",
    ),
]

DB2 = "$(getent hosts db2 | cut -d' ' -f1)"
HA = [
    on_host(
        "share_their_state",
        "ctl2",
        "sed -i.right 's/^slurm:x:[0-9]*:/slurm:x:4242:/' /etc/passwd",
        "mv /etc/passwd.right /etc/passwd",
        f"ctl2 does not see what ctl1 writes to {STATE}",
    ),
    at_once(
        on_host(
            "every_host_reaches_every_slurmctld",
            NETWORK_OF + "ctl2",
            *dropped_from("n2", 6817),
            "n2 cannot reach slurmctld of ctl2",
        ),
        on_host(
            "every_host_reaches_every_slurmctld",
            NETWORK_OF + "ctl1",
            *dropped_from("n1", 6817),
            "n1 cannot reach slurmctld of ctl1",
        ),
    ),
    on_host(
        "controller_reaches_slurmdbd",
        NETWORK_OF + "db1",
        *dropped_from("ctl2", 6819),
        "ctl2 cannot reach slurmdbd",
    ),
    on_host(
        "slurmdbd_reaches_every_slurmctld",
        NETWORK_OF + "ctl2",
        *dropped_from("db2", 6817),
        "db2 cannot reach slurmctld of ctl2",
    ),
    on_host(
        "backup_slurmdbd_takes_over",
        NETWORK_OF + "db1",
        *dropped_from("db2", 6819),
        "slurmdbd of db2 to give control back to slurmdbd of db1",
    ),
    at_once(
        on_host(
            "rights_on_its_database",
            "db1",
            # MariaDB prefers the account of the host to that of any host.
            f"mariadb -e \"create user slurm@'{DB2}' identified by 'old'\"",
            f"mariadb -e \"drop user slurm@'{DB2}'\"",
            "db2: slurmdbd cannot use its database: ERROR 1045",
        ),
        on_host(
            "rights_on_its_database",
            "db1",
            "mariadb -e \"revoke delete on slurm_acct_db.* from slurm@'%'\"",
            "mariadb -e \"grant all on slurm_acct_db.* to slurm@'%'\"",
            "db1: slurmdbd lacks rights on its database",
        ),
        on_host(
            "rights_on_its_database",
            "db1",
            "mariadb -e \"alter user slurm@'%' password expire interval 30 day\"",
            "mariadb -e \"alter user slurm@'%' password expire never\"",
            "db1: MariaDB's account slurm@% has password_lifetime=30",
        ),
    ),
]

REST = [
    on_host(
        "limits_priority_and_environment",
        "rest",
        "usermod --append --groups slurm slurmrestd",
        "gpasswd --delete slurmrestd slurm",
        "rest: slurmrestd will be in group slurm when it restarts,"
        " because its account slurmrestd now is",
    ),
    on_host(
        "packaged_one",
        "rest",
        "setcap cap_dac_override+ep /usr/sbin/slurmrestd",
        "setcap -r /usr/sbin/slurmrestd",
        "rest: /usr/sbin/slurmrestd, which is not as packaged, has the capabilities",
    ),
    on_host(
        "hosts_own_address",
        NETWORK_OF + "rest",
        *dropped("ip saddr $(getent hosts n2 | cut -d' ' -f1) tcp dport 6820 meta length > 1000"),
        "n2 gets no answer to a request of 8000 bytes from slurmrestd",
    ),
    on_host(
        "reaches_the_slurmd_of_every_host",
        NETWORK_OF + "n2",
        *dropped_from("ctl", 6818),
        "ctl cannot connect to slurmd of n2: no answer in 10 s",
    ),
    Sabotage(
        (
            "administrator_can_change_what",
            "agree_about_accounting",
            "conforms_to_the_openapi_document",
        ),
        (NETWORK_OF + "accounting", dropped_from("rest", 6819)[0]),
        (NETWORK_OF + "accounting", dropped_from("rest", 6819)[1]),
        "rest cannot reach slurmdbd",
    ),
]
