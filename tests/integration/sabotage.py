"""Sabotages: each breaks a cluster in a way that a check must notice."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import count

import docker

from harness import lifecycle
from harness.cluster import slurm
from harness.errors import CommandFailed
from harness.open_run import OpenRun
from harness.report import model
from harness.wait import wait_until

# Of both clusters, because either may run a federated job.
JOB_TABLES = r"slurm_acct_db.aws_job_table slurm_acct_db.\`on-prem_job_table\`"
CONF = "/etc/slurm/slurm.conf"
TRACES = "/var/tmp/slurm-harness-traces"
# slurmdbd listens once it has read its file.
SLURMDBD_LISTENS = "until bash -c '</dev/tcp/127.0.0.1/6819' 2>/dev/null; do sleep 0.1; done"
RESTART_SLURMDBD = f"systemctl restart slurmdbd; {SLURMDBD_LISTENS}"
# A slurmctld that was just started may not answer commands for longer than they wait.
UP = "until scontrol ping | grep -q 'is UP'; do sleep 0.1; done"
# A busy member of a federation may answer later than scontrol waits. A new slurmctld that waits for
# slurmdbd, while slurmdbd waits for it, is killed: docs/slurm-defects.md. Its successor has read
# the file once it answers.
RECONFIGURE = f"""
timeout 120 sh -c 'until scontrol reconfigure; do sleep 1; done' || {{
    systemctl kill --signal=KILL slurmctld
    systemctl restart slurmctld
    {UP}
}}"""
BUSY = {"ALLOCATED", "MIXED", "COMPLETING"}
Step = tuple[str, str]  # host, shell script
# Prefix of a step's host: the script runs in its network and may change its packet filter.
NETWORK_OF = "network of "
# The script runs in its mount namespace and may mount.
MOUNTS_OF = "mounts of "
_NUMBERS = count()  # of triggers: a table may have several at once


@dataclass(frozen=True)
class Sabotage:
    """How to break a cluster and repair it, and which checks must fail.

    `checks` are parts of names; each must select at least one check of the scenario. The failure of
    each check must contain `message`. The cluster is broken in the way of `also`, too.
    """

    checks: tuple[str, ...]
    do: Step
    undo: Step
    message: str
    also: tuple[Sabotage, ...] = ()

    def __str__(self) -> str:
        return f"{self.checks[0]}-{self.message}"


def at_once(first: Sabotage, *others: Sabotage) -> Sabotage:
    """Combine sabotages of the same checks, which must fail with the messages of all of them."""
    assert all(other.checks == first.checks for other in others)
    return replace(first, also=others)


def on_single(checks: str, do: str, undo: str, message: str) -> Sabotage:
    return Sabotage(tuple(checks.split()), ("single", do), ("single", undo), message)


def wrapper(program: str, text: str) -> tuple[str, str]:
    """Return scripts that put a fake program before Slurm's own, and remove it."""
    path = f"/usr/local/bin/{program}"
    return f"printf '#!/bin/sh\\n%s\\n' '{text}' > {path} && chmod 0755 {path}", f"rm {path}"


def task_prolog(text: str) -> tuple[str, str]:
    """Return scripts that have a TaskProlog print a line for every task, and remove it."""
    make, remove = wrapper("lie", f"echo {text}")
    return (
        f"{make}; echo TaskProlog=/usr/local/bin/lie >> {CONF} && systemctl restart slurmd",
        f"sed -i '$d' {CONF} && systemctl restart slurmd && {remove}",
    )


def trigger(tables: str, when: str, lie: str) -> tuple[Step, Step]:
    """Return steps that make the database change what is written to tables, and undo that."""
    make, drop = [], []
    for table in tables.split():
        name = f"{table.split('.')[0]}.lie{next(_NUMBERS)}"
        make.append(f"create trigger {name} before {when} on {table} for each row set {lie}")
        drop.append(f"drop trigger {name}")
    return ("accounting", f'mariadb -e "{"; ".join(make)}"'), (
        "accounting",
        f'mariadb -e "{"; ".join(drop)}"',
    )


DRAINED = (
    "scontrol update PartitionName=main State=DRAIN",
    "scontrol update PartitionName=main State=UP",
)
SINGLE_NODE = [
    on_single(
        "runs_its_daemons",
        "systemctl start mariadb",
        "systemctl stop mariadb",
        "runs mariadb, munge, slurmctld, slurmd, should run munge, slurmctld, slurmd",
    ),
    on_single(
        "runs_its_daemons",
        "systemctl disable --quiet slurmd",
        "systemctl enable --quiet slurmd",
        "starts munge, slurmctld at boot",
    ),
    at_once(
        on_single(
            "runs_its_daemons",
            "systemctl mask --quiet slurmctld",
            "systemctl unmask --quiet slurmctld",
            "slurmctld.service is masked, so slurmctld cannot start again",
        ),
        on_single(
            "runs_its_daemons",
            "systemctl set-default --quiet rescue.target",
            "rm /etc/systemd/system/default.target",
            "single: boots into rescue.target, which starts no daemons",
        ),
    ),
    on_single(
        "runs_its_daemons",
        "systemctl stop slurmd && systemd-run --quiet --unit=stray slurmd -D",
        "systemctl stop stray; systemctl start slurmd",
        "slurmd runs outside of slurmd.service",
    ),
    on_single(
        "daemon_has_the_release",
        *wrapper("slurmd", "echo slurm 19.05.2"),
        "single has slurm 19.05.2, not 24.11",
    ),
    on_single(
        "started_without_an_error",
        "sed -i s,^MailProg=.*,MailProg=/no/such, /etc/slurm/slurm.conf &&"
        " systemctl restart slurmctld",
        "sed -i s,^MailProg=.*,MailProg=/bin/true, /etc/slurm/slurm.conf &&"
        " systemctl restart slurmctld",
        "Configured MailProg is invalid",
    ),
    at_once(
        on_single(
            "every_file",
            "echo '# drift' >> /etc/slurm/slurm.conf",
            "sed -i '$d' /etc/slurm/slurm.conf",
            "single:/etc/slurm/slurm.conf is not the rendered file",
        ),
        on_single(
            "every_file",
            "chmod 0644 /etc/munge/munge.key",
            "chmod 0400 /etc/munge/munge.key",
            "munge.key is ('munge', 'munge', '0644')",
        ),
        on_single(
            "every_file",
            "touch /etc/slurm/gres.conf",
            "rm /etc/slurm/gres.conf",
            "single:/etc/slurm/gres.conf was not rendered",
        ),
    ),
    on_single(
        "foreign_key", *wrapper("unmunge", "exit 0"), "accepts a credential made with another key"
    ),
    on_single("interactive_job failing_job", *DRAINED, "Required partition not available"),
    on_single(
        "as_its_user[salloc]",
        *wrapper("salloc", '/usr/bin/salloc "$@"; exit 0'),
        "salloc ends with 0",
    ),
    on_single("job_on_all_nodes", *DRAINED, "'DRAIN' == 'UP'"),
    on_single(
        "batch_job_runs_once",
        f"chown root {TRACES} && chmod 0755 {TRACES}",
        f"chmod 1777 {TRACES}",
        "FAILED on single (NonZeroExitCode)",
    ),
    on_single(
        "batch_job_runs_once",
        *wrapper("sbatch", 'exec /usr/bin/sbatch --wrap=true "$@"'),
        "ran 0 times",
    ),
    on_single(
        "batch_job_runs_once",
        *wrapper("sbatch", 'cd /tmp && exec /usr/bin/sbatch "$@"'),
        "ran in /tmp, not in /home/alice; its output went to /tmp/",
    ),
    on_single(
        "job_ran_at_most_once",
        f"cd {TRACES} && first=$(ls | head -1) && cp $first ${{first%%.*}}.again",
        f"rm {TRACES}/*.again",
        "ran 2 times",
    ),
    on_single(
        "test_user_cannot_cancel_a_job",
        "chmod u+s /usr/bin/scancel",
        "chmod u-s /usr/bin/scancel",
        "Access/permission denied",
    ),
    on_single(
        "change_the_cluster",
        "chmod u+s /usr/bin/scontrol",
        "chmod u-s /usr/bin/scontrol",
        "alice may use scontrol update NodeName=single State=DRAIN",
    ),
    on_single(
        "batch_job_runs_once",
        f"echo Prolog=/usr/bin/false >> {CONF} && systemctl restart slurmd",
        f"sed -i '$d' {CONF} && systemctl restart slurmd &&"
        " scontrol update NodeName=single State=RESUME",
        "launch failed requeued held",
    ),
    on_single(
        "variables_that_its_user_exports",
        *task_prolog("unset PASSWORD"),
        "FAILED on single (NonZeroExitCode)",
    ),
    on_single(
        "core_file_only_if_its_user_wants_one",
        f"echo PropagateResourceLimitsExcept=CORE >> {CONF} && systemctl restart slurmd",
        f"sed -i '$d' {CONF} && systemctl restart slurmd",
        "PropagateResourceLimits has no effect",
    ),
    on_single(
        "every_file",
        f"sed -i 's/ CPUs=[0-9]*/ CPUs=99/' {CONF} && systemctl restart slurmctld slurmd",
        f"sed -i 's/ CPUs=[0-9]*/ CPUs=2/' {CONF} && systemctl restart slurmctld slurmd",
        "single:/etc/slurm/slurm.conf is not the rendered file",
    ),
    on_single(
        "job_on_all_nodes",
        f"printf '#!/bin/sh\\nexec sleep 1000\\n' > /root/epilog && chmod 755 /root/epilog &&"
        f"echo Epilog=/root/epilog >> {CONF} && systemctl restart slurmd",
        # A slurmd that ends now may not report the end of Epilog.
        f"sed -i '$d' {CONF} && pkill -f '[s]leep 1000';"
        "until scontrol show node single | grep -q 'Epilog error'; do sleep 0.1; done;"
        "systemctl restart slurmd && scontrol update NodeName=single State=RESUME",
        "waiting for all jobs to end on every cluster",
    ),
]


# slurmctld of aws, which has no jobs, marks it DRAINED within five seconds. A cluster that is set
# active at that moment would be DRAINED afterwards: _mark_self_as_drained() in Slurm's fed_mgr.c.
DRAIN_AWS = (
    (
        "onprem-ctl",
        "sacctmgr -i modify cluster aws set fedstate=DRAIN;"
        " until sacctmgr -nP show federation format=cluster,fedstate | grep -q '^aws|DRAINED';"
        " do sleep 0.2; done",
    ),
    ("onprem-ctl", "sacctmgr -i modify cluster aws set fedstate=ACTIVE"),
)
ONLY_ON_PREM = (
    ("onprem-ctl", wrapper("sbatch", 'exec /usr/bin/sbatch "$@" --clusters=on-prem')[0]),
    ("onprem-ctl", "rm /usr/local/bin/sbatch"),
)
FEDERATION = [
    Sabotage(
        ("only_at_slurms_own_ports",),
        ("gateway", "nft insert rule inet sites forward tcp dport 6819 drop"),
        (
            "gateway",
            "nft delete rule inet sites forward handle"
            " $(nft -a list ruleset | sed -n 's/.*6819 drop # handle //p')",
        ),
        "cannot reach accounting:6819",
    ),
    Sabotage(
        ("federation_is_formed",),
        ("onprem-ctl", "sacctmgr -i modify federation cloudburst set clusters-=aws"),
        ("onprem-ctl", "sacctmgr -i modify federation cloudburst set clusters+=aws"),
        "in accounting, aws is no member; it should be cloudburst's member 2, ACTIVE",
    ),
    Sabotage(
        ("one_collation",),
        ("accounting", "mariadb -e 'alter table slurm_acct_db.aws_job_table engine=MyISAM'"),
        ("accounting", "mariadb -e 'alter table slurm_acct_db.aws_job_table engine=InnoDB'"),
        "tables without transactions: MyISAM: aws_job_table",
    ),
    Sabotage(
        ("munge_credential_of_every_host",),
        ("aws2", "usermod -u 3001 alice"),
        ("aws2", "usermod -u 2001 alice"),
        "sees a different uid than aws2",
    ),
    Sabotage(
        ("clocks_and_time_zones",),
        (
            "aws3",
            "directory=/run/systemd/system/munge.service.d; mkdir -p $directory;"
            " printf '[Service]\\nEnvironment=LD_PRELOAD=%s FAKETIME=-90s\\n'"
            " /usr/lib/*/faketime/libfaketimeMT.so.1 > $directory/late.conf;"
            "systemctl daemon-reload; systemctl restart munge",
        ),
        (
            "aws3",
            "rm -r /run/systemd/system/munge.service.d; systemctl daemon-reload;"
            " systemctl restart munge",
        ),
        # 90 s, minus the time that a busy host takes to answer.
        "clocks that differ from this machine's: aws3 -",
    ),
    Sabotage(
        ("clocks_and_time_zones",),
        (
            "aws3",
            "cp -P /etc/localtime /root; ln -sf /usr/share/zoneinfo/Asia/Tokyo /etc/localtime",
        ),
        ("aws3", "mv /root/localtime /etc/localtime"),
        "'aws3': '+0900'",
    ),
    Sabotage(
        ("every_node_takes_jobs",),
        ("onprem-ctl", "scontrol update NodeName=onprem2 State=DOWN Reason=broken"),
        ("onprem-ctl", "scontrol update NodeName=onprem2 State=RESUME"),
        "on-prem: onprem2 DOWN broken",
    ),
    at_once(
        Sabotage(
            ("every_file",),
            (
                "aws2",
                f"echo JobAcctGatherType=jobacct_gather/none >> {CONF} && systemctl restart slurmd",
            ),
            ("aws2", f"sed -i '$d' {CONF} && systemctl restart slurmd"),
            "aws2:/etc/slurm/slurm.conf is not the rendered file",
        ),
        Sabotage(
            ("every_file",),
            (
                "accounting",
                "echo PurgeJobAfter=1hours >> /etc/slurm/slurmdbd.conf"
                " && systemctl restart slurmdbd",
            ),
            ("accounting", f"sed -i '$d' /etc/slurm/slurmdbd.conf; {RESTART_SLURMDBD}"),
            "accounting:/etc/slurm/slurmdbd.conf is not the rendered file",
        ),
    ),
    Sabotage(
        ("failed_and_cancelled_jobs",),
        (
            "aws-ctl",
            f"sed -i s/^AccountingStorageHost=.*/AccountingStorageHost=onprem1/ {CONF};"
            " systemctl restart slurmctld",
        ),
        (
            "aws-ctl",
            f"sed -i s/^AccountingStorageHost=.*/AccountingStorageHost=accounting/ {CONF};"
            " systemctl restart slurmctld",
        ),
        "onprem1:6819",
    ),
    at_once(
        Sabotage(
            ("settings_of_its_file",),
            ("accounting", "mariadb -e 'set global innodb_lock_wait_timeout = 50'"),
            ("accounting", "mariadb -e 'set global innodb_lock_wait_timeout = 900'"),
            "MariaDB's innodb_lock_wait_timeout is 50",
        ),
        Sabotage(
            ("settings_of_its_file",),
            ("accounting", "mariadb -e 'set global read_only = 1'"),
            ("accounting", "mariadb -e 'set global read_only = 0'"),
            "MariaDB's read_only is ON",
        ),
        Sabotage(
            ("settings_of_its_file",),
            ("accounting", "mariadb -e 'set global wait_timeout = 5'"),
            ("accounting", "mariadb -e 'set global wait_timeout = default'"),
            "MariaDB's wait_timeout was set to 5",
        ),
    ),
    at_once(
        Sabotage(
            ("only_daemons_change",),
            ("accounting", "mariadb -e 'create user backup'"),
            ("accounting", "mariadb -e 'drop user backup'"),
            "accounting: MariaDB accepts 'backup'@'%' without a password",
        ),
        Sabotage(
            ("only_daemons_change",),
            (
                "accounting",
                "mariadb -e 'create event slurm_acct_db.purge on schedule every 1 day"
                " do delete from slurm_acct_db.aws_step_table'",
            ),
            ("accounting", "mariadb -e 'drop event slurm_acct_db.purge'"),
            "accounting: MariaDB's event purge may change records of slurm_acct_db",
        ),
        Sabotage(
            ("only_daemons_change",),
            *trigger("slurm_acct_db.aws_job_table", "insert", "new.state = 3"),
            "may change records of aws_job_table",
        ),
    ),
    Sabotage(
        ("rolls_up_the_usage",),
        (
            "accounting",
            "mariadb -e 'insert into slurm_acct_db.aws_last_ran_table values (0, 0, 4e9)'",
        ),
        (
            "accounting",
            "mariadb -e 'delete from slurm_acct_db.aws_last_ran_table where monthly_rollup = 4e9'",
        ),
        "aws: slurmdbd rolls usage up only from 2096-",
    ),
    Sabotage(
        ("one_collation",),
        (
            "accounting",
            "mariadb -e 'alter table slurm_acct_db.aws_step_table convert to character set latin1'",
        ),
        (
            "accounting",
            "mariadb -e 'alter table slurm_acct_db.aws_step_table convert to character set"
            " utf8mb3'",
        ),
        "aws_step_table",
    ),
    Sabotage(
        ("munge_credential_of_every_host",),
        (
            "aws2",
            "cd /etc/munge && cp -p munge.key /root && date | sha256sum > munge.key &&"
            " systemctl restart munge",
        ),
        ("aws2", "cp -p /root/munge.key /etc/munge && systemctl restart munge slurmd"),
        ": unmunge: Error: Invalid credential",
    ),
    Sabotage(
        ("only_at_slurms_own_ports",),
        ("gateway", "nft insert rule inet sites forward tcp dport 873 accept"),
        (
            "gateway",
            "nft delete rule inet sites forward handle"
            " $(nft -a list ruleset | sed -n 's/.*873.*# handle //p')",
        ),
        "('open', 'open')",
    ),
    Sabotage(
        ("federation_is_formed",),
        *DRAIN_AWS,
        "in accounting, aws is cloudburst's member 2, DRAINED; it should be",
    ),
    Sabotage(
        ("job_ids_carry_the_origin",),
        (
            "onprem-ctl",
            wrapper("sbatch", 'echo $(($(/usr/bin/sbatch "$@" | cut -d";" -f1) % 67108864))')[0],
        ),
        ("onprem-ctl", "rm /usr/local/bin/sbatch"),
        "'no cluster of the federation' != 'on-prem'",
    ),
    Sabotage(
        ("burst_to_the_sibling",),
        *DRAIN_AWS,
        "cannot run on aws: FedViableSiblings=on-prem",
    ),
    Sabotage(("clusters_option_keeps",), *ONLY_ON_PREM, "'on-prem' == 'aws'"),
    Sabotage(
        ("clusters_option_with_several",),
        *ONLY_ON_PREM,
        "cannot run on aws: FedViableSiblings=on-prem",
    ),
    Sabotage(
        ("cluster_constraint",),
        (
            "onprem-ctl",
            "for c in on-prem=cloud aws=onsite; do"
            " sacctmgr -i modify cluster ${c%=*} set feature=${c#*=};"
            ' until scontrol show federation | grep -q "${c%=*}:.*Features:${c#*=}"; do'
            " sleep 0.1; done; done",
        ),
        (
            "onprem-ctl",
            "for c in on-prem=onsite aws=cloud; do"
            " sacctmgr -i modify cluster ${c%=*} set feature=${c#*=}; done",
        ),
        "'aws' in {'on-prem'}",
    ),
    Sabotage(
        ("draining_cluster",),
        ("onprem-ctl", wrapper("sacctmgr", "exit 0")[0]),
        ("onprem-ctl", "rm /usr/local/bin/sacctmgr"),
        "to know that aws is DRAIN",
    ),
    Sabotage(
        ("federated_views_agree",),
        (
            "onprem-ctl",
            wrapper("squeue", 'exec /usr/bin/squeue $(echo "$@" | sed s/--federation/--local/)')[0],
        ),
        ("onprem-ctl", "rm /usr/local/bin/squeue"),
        "waiting for squeue --federation on on-prem to list the jobs and their hosts {",
    ),
    Sabotage(
        ("federated_job_ran_twice",),
        ("aws1", f"cd {TRACES} && first=$(ls | head -1) && cp $first ${{first%%.*}}.again"),
        ("aws1", f"rm {TRACES}/*.again"),
        "ran 2 times",
    ),
    Sabotage(
        ("registered_with_its_controller",),
        (
            "accounting",
            "mariadb -e \"update slurm_acct_db.cluster_table set control_host='x' where"
            " name='aws'\"",
        ),
        ("aws-ctl", "systemctl restart slurmctld"),
        "aws is not registered at",
    ),
    Sabotage(
        ("failed_and_cancelled_jobs",),
        *trigger("slurm_acct_db.aws_job_table", "update", "new.state = 3"),
        "'COMPLETED'",
    ),
    Sabotage(
        ("accounting_matches",),
        *trigger(JOB_TABLES, "update", "new.nodelist = 'aws9'"),
        "accounting says aws9",
    ),
    Sabotage(
        ("job_that_timed_out",),
        *trigger(JOB_TABLES, "update", "new.state = if(new.state > 2, 3, new.state)"),
        "('COMPLETED', None)",
    ),
    Sabotage(
        ("job_completion",),
        *trigger("slurm_jobcomp.jobcomp_table", "insert", "new.name = left(new.name, 2)"),
        "completion records",
    ),
    Sabotage(
        ("job_completion",),
        *trigger("slurm_jobcomp.jobcomp_table", "insert", "new.state = 3"),
        "completion records",
    ),
]


CLOUDBURST = [
    Sabotage(
        ("no_more_cloud_nodes_than_they_need",),
        # LLN=YES would spread only those jobs that begin before their first node is powered up.
        ("aws-ctl", "scontrol update PartitionName=main MaxCPUsPerNode=4"),
        ("aws-ctl", "scontrol update PartitionName=main MaxCPUsPerNode=UNLIMITED"),
        "'aws5', 'aws6'] were powered up",
    ),
]
HA = [
    Sabotage(
        ("backup_controller_takes_over",),
        ("ctl2", "systemctl stop slurmctld"),
        ("ctl2", "systemctl start slurmctld"),
        "slurmctld is inactive",
    ),
    Sabotage(
        ("backup_slurmdbd_takes_over",),
        ("db2", "systemctl stop slurmdbd"),
        ("db2", "systemctl start slurmdbd"),
        "slurmdbd of db2 is inactive",
    ),
]
SUBMIT_TWICE = wrapper(
    "sbatch",
    # Jobs that last longer run at the same time, even if a busy machine submits them slowly.
    'cat > /tmp/$$; case "$*" in *qos=urgent*) echo sleep 5 >> /tmp/$$ ;; esac;'
    ' /usr/bin/sbatch "$@" < /tmp/$$ > /dev/null; exec /usr/bin/sbatch "$@" < /tmp/$$',
)
# The output must contain each line of the text.
REHEARSAL = [
    Sabotage(
        ("rehearsal_shows_that",),
        ("aws-ctl", f"sacctmgr -i modify qos urgent set MaxJobsPerUser=-1 && {SUBMIT_TWICE[0]}"),
        ("aws-ctl", f"sacctmgr -i modify qos urgent set MaxJobsPerUser=2 && {SUBMIT_TWICE[1]}"),
        "MaxJobsPerUser is 2\nand was not requeued",
    ),
    Sabotage(
        ("rehearsal_shows_that",),
        *trigger(JOB_TABLES, "update", "new.nodelist = 'aws9'"),
        "accounting says aws9",
    ),
]
SUSPEND = "/usr/local/sbin/slurm-suspend"
# Matches new connections to srun. Answers to a host's own connections may have the same ports:
# ip_local_port_range of Linux is 32768 to 60999.
TO_SRUN = "tcp flags == syn tcp dport 60001-63000"
# Add a rule to a chain of its own.
NEW_CHAIN = (
    "nft add table inet lie && nft 'add chain inet lie in { type filter hook input priority 0; }'"
    " && nft add rule inet lie in"
)
# A program that listens in place of the provisioning API, and ignores every request.
ANOTHER_API = """cat > /root/another-api << END
from http.server import BaseHTTPRequestHandler, HTTPServer
class Yes(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(202)
        self.end_headers()
        self.wfile.write(b"{}")
HTTPServer(("127.0.0.1", 8470), Yes).serve_forever()
END
at_once="--property=Restart=always --property=RestartSec=100ms --property=StartLimitIntervalSec=0"
systemd-run --quiet --unit=another-api $at_once python3 /root/another-api
listener() { ss -Hltnp sport = :8470; }
until listener | grep -q python3; do
    kill $(listener | grep -o 'pid=[0-9]*' | cut -d = -f 2)
    sleep 0.1
done"""
HIDE_L1, SHOW_L1 = wrapper("sinfo", 'exec /usr/bin/sinfo "$@" | grep -v "^l1 "')
ELASTIC = [
    Sabotage(
        ("sinfo_shows_which_nodes",),
        ("ctl", HIDE_L1),
        ("ctl", SHOW_L1),
        "'l1': 'not shown'",
    ),
    Sabotage(
        ("leave_no_defunct_process",),
        (
            "ctl",
            "systemd-run --quiet --unit=careless sh -c 'sleep 1 & exec sleep 600';"
            " until ps -e --no-headers -o stat | grep -q ^Z; do sleep 0.1; done",
        ),
        ("ctl", "systemctl stop careless"),
        "[sleep] <defunct>, whose parent is sleep 600",
    ),
    Sabotage(
        ("job_resumes_the_node", "as_many_nodes", "of_the_shape"),
        ("ctl", "scontrol update PartitionName=main State=DRAIN"),
        ("ctl", "scontrol update PartitionName=main State=UP"),
        "Required partition not available",
    ),
    Sabotage(
        ("powers_a_node_up",),
        ("ctl", "scontrol update NodeName=l1 State=DRAIN Reason=broken"),
        ("ctl", "scontrol update NodeName=l1 State=RESUME"),
        "'l1': 'IDLE+CLOUD+DRAIN",
    ),
    Sabotage(
        ("idle_nodes_are_powered_down",),
        ("ctl", f"mv {SUSPEND} /root && printf '#!/bin/sh\\n' > {SUSPEND} && chmod 755 {SUSPEND}"),
        ("ctl", f"mv /root/slurm-suspend {SUSPEND} && {SUSPEND} l1"),
        "l1 runs, but slurmctld has powered it down: "
        "harness exec ctl -- /usr/local/sbin/slurm-suspend l1",
    ),
    Sabotage(
        ("job_resumes_the_node",),
        ("ctl", ANOTHER_API),
        # SSH forwards the port again half a second after it is free.
        (
            "ctl",
            "systemctl stop another-api; rm /root/another-api;"
            " until ss -Hltn sport = :8470 | grep -q .; do sleep 0.1; done",
        ),
        "the provisioning API got no request for c3, although port 8470 of ctl answered",
    ),
    Sabotage(
        ("job_resumes_the_node",),
        (f"{NETWORK_OF}ctl", f"{NEW_CHAIN} tcp dport 8470 drop"),
        (f"{NETWORK_OF}ctl", "nft delete table inet lie"),
        "ctl: slurm-resume c3: http://127.0.0.1:8470/v1: timed out",
    ),
    Sabotage(
        ("job_resumes_the_node",),
        (
            f"{NETWORK_OF}ctl",
            f"{NEW_CHAIN} ip saddr $(getent hosts c3 | cut -d ' ' -f 1) tcp dport 6817 drop",
        ),
        (f"{NETWORK_OF}ctl", "nft delete table inet lie"),
        "ctl: slurm-resume-fail c3: slurmd did not register within ResumeTimeout",
    ),
    Sabotage(
        ("job_on_all_nodes",),
        (
            f"{NETWORK_OF}ctl",
            f"{NEW_CHAIN} ip saddr $(getent hosts c1 | cut -d ' ' -f 1) {TO_SRUN} drop",
        ),
        (f"{NETWORK_OF}ctl", "nft delete table inet lie"),
        "main: no output of c1: ",
    ),
    at_once(
        Sabotage(
            ("users_files_programs",),
            (
                "ctl",
                "scontrol update SuspendExcNodes=n1,c2"
                " && srun --nodelist=c2 sed -i s/^bob:x:2002:/bob:x:2003:/ /etc/passwd",
            ),
            (
                "ctl",
                "scontrol update SuspendExcNodes=n1"
                " && scontrol update NodeName=c2 State=POWER_DOWN",
            ),
            "c2: bob has uid 2003, should have 2002",
        ),
        Sabotage(
            ("users_files_programs",),
            ("ctl", "srun --nodelist=c2 sed -i s,:/home/bob:,:/tmp/bob:, /etc/passwd"),
            ("ctl", "true"),  # the node is created again
            "c2: bob has home /tmp/bob, should have /home/bob",
        ),
        Sabotage(
            ("users_files_programs",),
            ("ctl", "srun --nodelist=c2 ln -sf /usr/share/zoneinfo/Asia/Tokyo /etc/localtime"),
            ("ctl", "true"),
            "c2 has time zone +0900, ctl has +0000",
        ),
        Sabotage(
            ("users_files_programs",),
            ("ctl", "srun --nodelist=c2 sh -c 'echo ulimit -t 60 > /etc/profile.d/limits.sh'"),
            ("ctl", "true"),
            "c2:/etc/profile.d/limits.sh was not rendered",
        ),
        Sabotage(
            ("users_files_programs",),
            ("ctl", "srun --nodelist=c2 sh -c 'rm /usr/lib/*/slurm-wlm/mpi_pmi2.so'"),
            ("ctl", "true"),
            "slurm-wlm/mpi_pmi2.so is missing",
        ),
        Sabotage(
            ("users_files_programs",),
            ("ctl", "srun --nodelist=c2 chown root /home/bob"),
            ("ctl", "true"),
            "c2:/home/bob is 700 root bob, should be 700 bob bob",
        ),
    ),
    Sabotage(
        ("every_resumed_node_has_read",),
        (
            "ctl",
            "different() { grep -c 'different slurm.conf' /var/log/slurm/slurmctld.log; };"
            " before=$(different); scontrol update SuspendExcNodes=n1,c2 && srun --nodelist=c2"
            f" sh -c 'echo KillWait=31 >> {CONF} && systemctl restart slurmd' &&"
            ' until [ "$(different)" -gt "$before" ]; do sleep 0.1; done',
        ),
        (
            "ctl",
            "scontrol update SuspendExcNodes=n1 && scontrol update NodeName=c2 State=POWER_DOWN",
        ),
        "cloud: the slurm.conf that slurmd of c2 has read is not that of slurmctld",
    ),
    Sabotage(
        ("every_directory",),
        ("ctl", "chown root:root /var/log/slurm/power.log"),
        ("ctl", "chown slurm:slurm /var/log/slurm/power.log"),
        "ctl:/var/log/slurm/power.log cannot be written by slurm",
    ),
    Sabotage(
        ("host_name_resolves",),
        ("n1", r"cp /etc/hosts /root && sed '/\sc2$/s/^\S*/192.0.2.1/' /root/hosts > /etc/hosts"),
        ("n1", "cat /root/hosts > /etc/hosts && rm /root/hosts"),
        "on n1, c2 is 192.0.2.1, but ",
    ),
    Sabotage(
        ("rendered_partitions",),
        ("ctl", "scontrol update PartitionName=main PowerDownOnIdle=YES"),
        ("ctl", "scontrol update PartitionName=main PowerDownOnIdle=NO"),
        "partition main: PowerDownOnIdle is YES, slurm.conf leaves it at NO",
    ),
    Sabotage(
        ("filled_first",),
        ("ctl", "scontrol update NodeName=n1 State=DRAIN Reason=broken"),
        ("ctl", "scontrol update NodeName=n1 State=RESUME"),
        "cloud: node n1 IDLE+DRAIN (broken",
    ),
    Sabotage(
        ("on_resumed_nodes_ran_once",),
        ("ctl", f"cd {TRACES} && first=$(ls | head -1) && cp $first ${{first%%.*}}.again"),
        ("ctl", f"rm {TRACES}/*.again"),
        "ran 2 times",
    ),
]
MEND_CONF = f"mv /root/slurm.conf {CONF} && systemctl restart slurmd"


def on_n1(checks: str, do: str, undo: str, message: str) -> Sabotage:
    return Sabotage(tuple(checks.split()), ("n1", do), ("n1", undo), message)


def changed_conf(change: str) -> str:
    """Return a script that changes slurm.conf of a host with sed."""
    return f"cp -p {CONF} /root/slurm.conf && sed -i '{change}' {CONF} && systemctl restart slurmd"


def at_ctl(check: str, program: str, text: str, message: str) -> Sabotage:
    """Return a sabotage that puts a fake program before Slurm's own on the controller."""
    do, undo = wrapper(program, text)
    return Sabotage((check,), ("ctl", do), ("ctl", undo), message)


WITHOUT_PROLOG = (changed_conf("/^Prolog=/d"), MEND_CONF)
# Slurm takes Prolog and Epilog for ended while they still run.
HASTY_PROGRAMS = (
    (
        "n2",
        wrapper("hasty", "setsid /etc/slurm/job-events > /dev/null 2>&1 &")[0]
        + f"; {changed_conf('/^...log=/s,=.*,=/usr/local/bin/hasty,')}",
    ),
    ("n2", f"rm /usr/local/bin/hasty && {MEND_CONF}"),
)
LYING_TASK_PROLOG = (
    wrapper("lie", 'printf "export %s=7\\\\n" SLURM_PROCID SLURM_ARRAY_TASK_ID')[0]
    + f"; {changed_conf('s,^TaskProlog=.*,TaskProlog=/usr/local/bin/lie,')}",
    f"rm /usr/local/bin/lie && {MEND_CONF}",
)
JOB_SUBMIT = "/etc/slurm/job_submit.lua"
ASKS_FOR_NOTHING = (
    "function slurm_job_submit() return slurm.SUCCESS end"
    " slurm_job_modify = slurm_job_submit return slurm.SUCCESS"
)


def job_submit(change: str) -> tuple[str, str]:
    """Return commands that change job_submit.lua with a filter, and that restore it.

    slurmctld reads a script again if it was changed in a later second than the one that it has
    loaded (slurm_lua_loadscript()).
    """
    right = f"{JOB_SUBMIT}.right"
    return (
        f"mv {JOB_SUBMIT} {right} && {change} < {right} > {JOB_SUBMIT}"
        f" && touch --reference={right} --date='+1 second' {JOB_SUBMIT}",
        f"touch --reference={JOB_SUBMIT} --date='+1 second' {right} && mv {right} {JOB_SUBMIT}",
    )


# A job_submit.lua that accepts every job as it is.
UNCHANGED_JOBS = job_submit(f"echo '{ASKS_FOR_NOTHING}'")


def at_shared(checks: str, do: str, undo: str, message: str) -> Sabotage:
    return Sabotage(tuple(checks.split()), ("ctl", do), ("ctl", undo), message)


def replaced(option: str, text: str) -> tuple[str, str]:
    """Return scripts that put a different program in place of one around jobs, and undo that."""
    make, remove = wrapper("other", text)
    change = changed_conf(f"s,^{option}=.*,{option}=/usr/local/bin/other,")
    return f"{make}; {change}", f"{remove} && {MEND_CONF}"


def plugstack(change: str) -> tuple[str, str]:
    """Return scripts that change plugstack.conf with sed, and that restore it."""
    path = "/etc/slurm/plugstack.conf"
    return (
        f"cp -p {path} /root/plugstack.conf && sed -i '{change}' {path}",
        f"mv /root/plugstack.conf {path}",
    )


JOB_START = [
    on_n1("in_the_order_of_its_mode", *WITHOUT_PROLOG, "instead of Prolog"),
    on_n1("prolog_and_epilog_runs_as_the_documented_user", *WITHOUT_PROLOG, "{'Prolog': 0}"),
    Sabotage(("before_its_prolog_has_ended",), *HASTY_PROGRAMS, "while Prolog runs on n2: "),
    Sabotage(
        ("after_its_own_epilog_has_ended",),
        *HASTY_PROGRAMS,
        "n2 is allocated again while Epilog runs on it",
    ),
    *(
        on_n1(check, *LYING_TASK_PROLOG, message)
        for check, message in (
            ("steps_start_the_tasks", "'0 7 0 0 n1 4'"),
            ("array_has_a_job", "('1', '7:0')"),
            ("components_of_a_heterogeneous_job", "'7 n1'"),
        )
    ),
    at_ctl(
        "streams_of_its_tasks_unchanged", "srun", '/usr/bin/srun "$@" | tr -d "\\000"', "unharmed"
    ),
    at_ctl(
        "array_has_a_job",
        "sbatch",
        # Tasks that last longer run at the same time, even if a busy slurmd starts them slowly.
        'sed "s/^sleep 1/sleep 9/" | /usr/bin/sbatch $(echo $@ | sed s/%1//)',
        "one at a time: [",
    ),
    at_ctl(
        "that_it_depends_on",
        "sbatch",
        "exec /usr/bin/sbatch $(echo $@ | sed s/--dependency=[a-z:0-9]*//)",
        "a job that depends on the success of a failed job is",
    ),
    Sabotage(
        ("signals_reach_the_processes",),
        ("n2", changed_conf("s/^KillWait=.*/KillWait=30/")),
        ("n2", MEND_CONF),
        "killed on n2",
    ),
    at_ctl(
        "signals_reach_the_processes",
        "scancel",
        'exec /usr/bin/scancel --full "$@"',
        "signals arrived as",
    ),
    at_ctl(
        "interrupting_srun_twice",
        "srun",
        'exec /usr/bin/srun --quit-on-interrupt "$@"',
        "ended with",
    ),
    on_n1(
        "slurmctld_did_not_sign",
        changed_conf("s/^SlurmUser=.*/SlurmUser=alice/"),
        MEND_CONF,
        "credential that alice",
    ),
    on_n1(
        "that_is_too_old",
        changed_conf("1iAuthInfo=cred_expire=1000"),
        MEND_CONF,
        "credential that is 200 s old",
    ),
    at_ctl(
        "valid_once_for_its_lifetime", "unmunge", "echo Success", "a credential was accepted twice"
    ),
    at_ctl(
        "when_its_terminal_is_closed[srun]",
        "srun",
        'exec setsid --wait /usr/bin/srun "$@"',
        "waiting for the job of srun to end after its terminal was closed",
    ),
    at_ctl(
        "when_its_terminal_is_closed[sbatch]",
        "sbatch",
        'job=$(/usr/bin/sbatch "$@"); echo $job; scancel $job',
        "the batch job is C",  # CANCELLED, or COMPLETING if it had started
    ),
    on_n1(
        "spank_plugin_is_called",
        *plugstack("s/^required/# &/"),
        "local_user_init as 2001 instead of SPANK job_script job_prolog as 0",
    ),
    on_n1(
        "required_spank_plugin_fails",
        *plugstack("s/^required/optional/"),
        "a task runs although",
    ),
    on_n1(
        "option_of_a_spank_plugin",
        *replaced("Prolog", "unset SPANK_JOB_MARK; /etc/slurm/job-events"),
        "Prolog has no SPANK_JOB_MARK",
    ),
    on_n1(
        "documented_effect[prolog_task]",
        *replaced("TaskProlog", "/etc/slurm/job-events; exit 0"),
        "whose TaskProlog fails, to be FAILED, its script did not run cannot succeed any more",
    ),
    at_shared(
        "lua_scripts_change",
        *UNCHANGED_JOBS,
        "the job's name is changed-by-cli_filter-as-2001, should be",
    ),
]

TOPOLOGY_YAML = "/etc/slurm/topology.yaml"
TWO_NODES_EXCHANGED = (
    (
        "sim",
        rf"sed -i.right 's/n\[1-4\]/n[1-3,5]/; s/n\[5-8\]/n[4,6-8]/' {TOPOLOGY_YAML};"
        f"systemctl restart slurmctld slurmd; {UP}",
    ),
    ("sim", f"mv {TOPOLOGY_YAML}.right {TOPOLOGY_YAML}; systemctl restart slurmctld slurmd; {UP}"),
)
TOPOLOGY = [
    *(
        Sabotage((check,), *TWO_NODES_EXCHANGED, message)
        for check, message in (
            (
                "every_switch_block_and_torus",
                "leaf2 is n[4,6-8] in slurmctld's memory, n[5-8] in topology.yaml",
            ),
            ("only_switch_block_or_sub_cube", "a job of 4 nodes got n[4,6-8], not leaf2: n[5-8]"),
            (
                "sees_where_its_node_is",
                "slurmd of n5 places it at core.leaf1.n5, should be core.leaf2.n5",
            ),
        )
    ),
    Sabotage(
        ("every_switch_block_and_torus",),
        (
            "sim",
            rf"sed -i.right 's/block_sizes: \[2, 4/&, 8/' {TOPOLOGY_YAML};"
            r" systemctl restart slurmctld",
        ),
        ("sim", f"mv {TOPOLOGY_YAML}.right {TOPOLOGY_YAML}; systemctl restart slurmctld"),
        "b[1-4] is n[1-8] in slurmctld's memory, missing in topology.yaml",
    ),
    Sabotage(
        ("only_switch_block_or_sub_cube",),
        ("sim", "scontrol update PartitionName=torus Topology=fabric"),
        ("sim", "scontrol update PartitionName=torus Topology=cube"),
        "topology cube: a job of 2 nodes got n[3-4], not pod from",
    ),
    Sabotage(
        ("in_segments",),
        ("sim", "scontrol update PartitionName=block Topology=fabric"),
        ("sim", "scontrol update PartitionName=block Topology=racks"),
        "a job got n[1-2,5-6], which is not a larger unit",
    ),
    Sabotage(
        ("in_segments",),
        (
            "sim",
            wrapper("sbatch", 'exec /usr/bin/sbatch $(echo "$@" | sed s/--segment=.//)')[0],
        ),
        ("sim", "rm /usr/local/bin/sbatch"),
        "a job with --segment=",
    ),
    Sabotage(
        ("slurmctld_holds_the_rendered_nodes",),
        (
            "sim",
            rf"sed -i.right 's/Port=\[20001-/Port=[20002,20001,20003-/' {CONF};"
            " systemctl restart slurmctld",
        ),
        ("sim", f"mv {CONF}.right {CONF}; systemctl restart slurmctld"),
        "node n1: Port is 20002, slurm.conf has 20001",
    ),
    Sabotage(
        ("slurmctld_holds_the_rendered_partitions",),
        ("sim", "scontrol update PartitionName=block Exclusive=TOPO"),
        ("sim", "scontrol update PartitionName=block Exclusive=NO"),
        "partition block: Exclusive is TOPO, should be NO",
    ),
    Sabotage(
        ("waits_for_the_switches",),
        (
            "sim",
            f"sed -i.right '/^SchedulerParameters/s/$/,max_switch_wait=0/' {CONF};{RECONFIGURE}",
        ),
        ("sim", f"mv {CONF}.right {CONF};{RECONFIGURE}"),
        "after only",
    ),
]


def on_box(check: str, do: str, undo: str, message: str) -> Sabotage:
    return Sabotage((check,), ("box", do), ("box", undo), message)


WORKSTATION = [
    on_box(
        "no_more_jobs_at_a_time_than_the_qos",
        "sacctmgr -i modify qos fair set MaxJobsPerUser=-1",
        "sacctmgr -i modify qos fair set MaxJobsPerUser=2",
        "with the reason QOSMaxJobsPerUserLimit cannot succeed any more",
    ),
    on_box(
        "no_more_gpus_at_a_time_than_the_qos",
        "sacctmgr -i modify qos fair set MaxTRESPerUser=gres/gpu=-1",
        "sacctmgr -i modify qos fair set MaxTRESPerUser=gres/gpu=3",
        "with the reason QOSMaxGRESPerUser cannot succeed any more",
    ),
    on_box(
        "more_time_than_the_qos",
        "sacctmgr -i modify qos fair set MaxWall=-1",
        "sacctmgr -i modify qos fair set MaxWall=00:10:00",
        "with the reason QOSMaxWallDurationPerJobLimit cannot succeed any more",
    ),
    on_box(
        "gpus_are_allocated_to_one_job",
        *task_prolog("export CUDA_VISIBLE_DEVICES=0"),
        "a job got GPU 0, which belongs to another job",
    ),
    on_box(
        "builds_a_container_image",
        *wrapper("apptainer", 'exec env -u CUDA_VISIBLE_DEVICES /usr/bin/apptainer "$@"'),
        "'2001 0  inside'",
    ),
    on_box(
        "image_of_a_registry_in_a_sandbox",
        *wrapper(
            "apptainer",
            'case "$*" in *--writable*) exit 0; esac; exec /usr/bin/apptainer "$@"',
        ),
        "changed.sif': 'inside",
    ),
]


def drop_in(unit: str, lines: str) -> tuple[str, str]:
    """Return scripts that add settings to a unit, and remove them."""
    directory = f"/run/systemd/system/{unit}.service.d"
    restart = f"systemctl daemon-reload; systemctl restart {unit}"
    do = (
        f"mkdir -p {directory}; cat > {directory}/zz.conf << END\n[Service]\n{lines}\nEND\n"
        f"{restart}"
    )
    return do, f"rm -r {directory} && {restart}"


def stale(unit: str, lines: str) -> tuple[str, str]:
    """Return scripts that start a unit with settings that it then loses, and start it again."""
    do, _ = drop_in(unit, lines)
    forget = f"rm -r /run/systemd/system/{unit}.service.d; systemctl daemon-reload"
    return f"{do}; {forget}", f"systemctl restart {unit}"


def listening(port: int) -> str:
    """Return a script that waits until slurmrestd, or what takes its place, listens or has failed.

    systemd does not: slurmrestd.service has Type=simple.
    """
    return (
        f"until ss -Hltn sport = :{port} | grep -q . || systemctl is-failed --quiet slurmrestd;"
        " do sleep 0.2; done"
    )


def on_rest(checks: str, lines: str, message: str) -> Sabotage:
    do, undo = (f"{script}; {listening(6820)}" for script in drop_in("slurmrestd", lines))
    return Sabotage(tuple(checks.split()), ("rest", do), ("rest", undo), message)


# A proxy in place of slurmrestd. In each request and each response, it replaces one text with
# another.
LIAR = """
import socket, sys, threading
asked, answered = sys.argv[1:3], sys.argv[3:]
def pour(source, sink, lie):
    while said := source.recv(65536):
        sink.sendall(said.replace(*(text.encode() for text in lie)) if lie[0] else said)
    sink.shutdown(socket.SHUT_WR)
server = socket.create_server(("rest", 6820))
while True:
    asks, tells = server.accept()[0], socket.create_connection(("127.0.0.1", 6821))
    for flow in ((asks, tells, asked), (tells, asks, answered)):
        threading.Thread(target=pour, args=flow).start()
"""
ASIDE = drop_in("slurmrestd", "ExecStart=\nExecStart=/usr/sbin/slurmrestd 127.0.0.1:6821")


def by_proxy(check: str, program: str, arguments: str, message: str) -> Sabotage:
    """Return a sabotage by a program that listens in place of slurmrestd."""
    do = (
        f"{ASIDE[0]}; systemd-run --quiet --unit=liar python3 -c '{program}' {arguments};"
        f" {listening(6820)}; {listening(6821)}"
    )
    undo = f"systemctl stop liar; {ASIDE[1]}; {listening(6820)}"
    return Sabotage((check,), ("rest", do), ("rest", undo), message)


def liar(check: str, asked: tuple[str, str], answered: tuple[str, str], message: str) -> Sabotage:
    """Return a sabotage by a proxy that replaces texts with others of the same length."""
    return by_proxy(check, LIAR, shlex.join([*asked, *answered]), message)


# A proxy in place of slurmrestd that answers each query as it did the first time.
STALE = """
import http.client, http.server
kept = {}
class Proxy(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path not in kept:
            slurmrestd = http.client.HTTPConnection("127.0.0.1", 6821)
            slurmrestd.request("GET", self.path, headers=dict(self.headers))
            answer = slurmrestd.getresponse()
            kept[self.path] = answer.status, answer.read()
        status, body = kept[self.path]
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.HTTPServer(("rest", 6820), Proxy).serve_forever()
"""
JWT_KEY = "/etc/slurm/jwt_hs256.key"
OTHER_KEY = "/var/lib/slurm/other.key"
DBD_CONF = "/etc/slurm/slurmdbd.conf"
DBD_KEY = f"sed -i.right s,jwt_key={JWT_KEY},jwt_key={OTHER_KEY}, {DBD_CONF} && {RESTART_SLURMDBD}"
FAKETIME = "$(ls /usr/lib/*/faketime/libfaketimeMT.so.1)"
LATE = drop_in(
    "slurmctld", f"Environment=LD_PRELOAD={FAKETIME} FAKETIME=-600s FAKETIME_DONT_FAKE_MONOTONIC=1"
)
FEW_FILES = stale("slurmctld", "LimitNOFILE=99")
ONCE = drop_in("slurmrestd", "Restart=no")
OTHER_OPTIONS = stale("slurmrestd", "ExecStart=\nExecStart=/usr/sbin/slurmrestd -t 4 rest:6820")
REST = [
    by_proxy("as_new_as_the_request", STALE, "", "is answered with comment"),
    on_rest("runs_as_its_own_user", "User=daemon\nGroup=daemon", "{'daemon'} == {'slurmrestd'}"),
    on_rest(
        "runs_as_its_own_user",
        "CapabilityBoundingSet=CAP_KILL",
        "slurmrestd has capabilities: {'CapBnd': '0000000000000020'}",
    ),
    Sabotage(
        ("ended_unless_a_fault",),
        (
            "rest",
            "systemd-run --quiet --unit=killer sh -c"
            # Otherwise systemd gives up after five starts.
            " 'while sleep 0.3; do systemctl kill --signal=KILL slurmrestd;"
            " systemctl reset-failed; done'",
        ),
        (
            "rest",
            "systemctl stop killer; systemctl reset-failed; systemctl restart slurmrestd;"
            f" {listening(6820)}",
        ),
        "rest: slurmrestd.service: Main process exited, code=killed, status=9/KILL",
    ),
    Sabotage(
        ("runs_its_daemons",),
        ("rest", OTHER_OPTIONS[0]),
        ("rest", f"{OTHER_OPTIONS[1]}; {listening(6820)}"),
        "slurmrestd was started as '/usr/sbin/slurmrestd -t 4 rest:6820',"
        " its unit now has '/usr/sbin/slurmrestd rest:6820'",
    ),
    Sabotage(
        ("limits_priority_and_environment",),
        ("ctl", FEW_FILES[0]),
        ("ctl", FEW_FILES[1]),
        "ctl: slurmctld has Max open files 99 (hard), its unit has ",
    ),
    Sabotage(
        ("serves_every_version",),
        ("rest", "systemctl kill --signal=STOP slurmrestd"),
        ("rest", "systemctl kill --signal=CONT slurmrestd"),
        "slurmrestd on rest does not answer GET /openapi/v3: timed out",
    ),
    Sabotage(
        ("after_its_rotation",),
        ("ctl", f"chmod 0644 {JWT_KEY}"),
        ("ctl", f"chmod 0400 {JWT_KEY}; systemctl restart slurmctld"),
        "ctl: slurmctld is failed (exit-code): fatal: auth/jwt: key file is insecure",
    ),
    on_rest("runs_as_its_own_user", "SupplementaryGroups=shadow", "['shadow', 'slurmrestd']"),
    Sabotage(
        ("hosts_own_address",),
        (
            f"{NETWORK_OF}rest",
            f"{NEW_CHAIN} ip saddr $(getent hosts ctl | cut -d ' ' -f 1) tcp dport 6820 drop",
        ),
        (f"{NETWORK_OF}rest", "nft delete table inet lie"),
        "ctl cannot reach slurmrestd at rest:6820: no answer in 10 s",
    ),
    Sabotage(
        ("runs_its_daemons",),
        (
            "rest",
            # A slurmrestd that systemd starts again is active for a moment, each time. journald
            # receives its messages when it has ended, as on a busy host.
            "usermod --append --groups slurm slurmrestd;"
            f" systemctl kill --signal=STOP systemd-journald; {ONCE[0]};"
            " until systemctl is-failed --quiet slurmrestd; do sleep 0.1; done;"
            " systemctl kill --signal=CONT systemd-journald",
        ),
        ("rest", f"gpasswd --delete slurmrestd slurm; {ONCE[1]}; {listening(6820)}"),
        "SlurmUser",
    ),
    on_rest(
        "hosts_own_address",
        "ExecStart=\nExecStart=/usr/sbin/slurmrestd 0.0.0.0:6820",
        "0.0.0.0:6820",
    ),
    on_rest(
        "every_version_of_the_api",
        "Environment=SLURMRESTD_DATA_PARSER_PLUGINS=data_parser/v0.0.42",
        "serves versions v0.0.42 of slurm, should serve v0.0.40, v0.0.41, v0.0.42",
    ),
    on_rest(
        "every_version_of_the_api",
        "ExecStart=\nExecStart=/usr/sbin/slurmrestd -s slurmctld rest:6820",
        "serves versions none of slurmdb, should serve v0.0.40, v0.0.41, v0.0.42",
    ),
    on_rest(
        "every_file",
        "LimitNOFILE=32",
        "rest:/run/systemd/system/slurmrestd.service.d/zz.conf was not rendered",
    ),
    Sabotage(
        ("submits_queries_and_cancels",),
        ("ctl", "scontrol update PartitionName=main State=DRAIN"),
        ("ctl", "scontrol update PartitionName=main State=UP"),
        "Required partition not available",
    ),
    Sabotage(
        ("token_of_a_user_cannot_cancel",),
        ("ctl", "sacctmgr -i modify user bob set adminlevel=operator"),
        ("ctl", "sacctmgr -i modify user bob set adminlevel=none"),
        "bob cancelled the job of alice",
    ),
    Sabotage(
        ("administrator_can_change_what",),
        ("ctl", "sacctmgr -i modify user alice set adminlevel=administrator"),
        ("ctl", "sacctmgr -i modify user alice set adminlevel=none"),
        "as alice: 200",
    ),
    Sabotage(
        ("agree_about_accounting",),
        ("ctl", "sacctmgr -i add user carol account=physics"),
        ("ctl", "sacctmgr -i delete user carol"),
        "'carol'",
    ),
    liar(
        "conforms_to_the_openapi_document",
        ("", ""),
        (": true", ": null"),
        "None is not of type 'boolean'",
    ),
    liar(
        "submits_queries_and_cancels",
        ("OF_THE_CHECK=v", "OF_NO_CHECKS=v"),
        ("", ""),
        "the job has OF_THE_CHECK=None",
    ),
    liar(
        "submits_queries_and_cancels",
        ('"/home/alice"', '"/var/tmp///"'),
        ("", ""),
        "ran in /var/tmp, not in /home/alice",
    ),
    liar(
        "about_nodes_and_partitions",
        ("", ""),
        ('"name": "n2"', '"name": "n3"'),
        "should be ['n1', 'n2']",
    ),
    Sabotage(
        ("valid_token_is_refused",),
        ("ctl", f"{LATE[0]}; {UP}"),
        ("ctl", f"{LATE[1]}; {UP}"),
        "a token (expired a minute ago) is accepted by",
    ),
    Sabotage(
        ("has_the_lifetime",),
        (
            "ctl",
            wrapper(
                "scontrol", 'exec /usr/bin/scontrol $(echo "$@" | sed s/lifespan=8/lifespan=80/)'
            )[0],
        ),
        ("ctl", "rm /usr/local/bin/scontrol"),
        "a token requested for 8 s has the claims",
    ),
    Sabotage(
        ("after_its_rotation",),
        (
            "ctl",
            f"cp -p {JWT_KEY} /var/lib/slurm/old.key &&"
            f"sed -i s,jwt_key={JWT_KEY},jwt_key=/var/lib/slurm/old.key, {CONF} &&"
            " systemctl restart slurmctld",
        ),
        (
            "ctl",
            f"sed -i s,jwt_key=/var/lib/slurm/old.key,jwt_key={JWT_KEY}, {CONF} &&"
            " systemctl restart slurmctld;"
            "rm /var/lib/slurm/old.key",
        ),
        "refused with the old key's token",
    ),
    Sabotage(
        ("after_its_rotation",),
        (
            "accounting",
            f"echo other > {OTHER_KEY} && chown slurm {OTHER_KEY} && chmod 0400 {OTHER_KEY} &&"
            f" {DBD_KEY}",
        ),
        (
            "accounting",
            f"mv {DBD_CONF}.right {DBD_CONF}; {RESTART_SLURMDBD}; rm {OTHER_KEY}",
        ),
        "a valid token is refused: /slurmdb/",
    ),
]


HYBRID = [
    *(
        at_shared(check, *UNCHANGED_JOBS, message)
        for check, message in (
            ("never_have_the_same_cpu", "taken by"),
            ("is_refused_where_jobs_occupy", "{'type': 'Slurm', 'allocated': {'cpu': '0m'"),
            ("requests_from_the_ledger", "but requested (0, "),
            ("bypass_the_ledger", "alice was allowed: ['sbatch --exclusive"),
        )
    ),
    at_shared(
        "mem-per-cpu=300",
        *job_submit("sed 's/job.min_mem_per_cpu [*] cpus/MEMORY_PER_CPU * cpus/'"),
        "--mem-per-cpu=300: jobs have (2, 600) of n1, but requested (2, 500) from the ledger",
    ),
    at_shared(
        "bypass_the_ledger",
        "chmod u+s /usr/bin/scontrol",
        "chmod u-s /usr/bin/scontrol",
        "alice was allowed: ['scontrol update JobId=",
    ),
    at_shared(
        "until_the_operator_has_cut_again",
        f"sed -i.right 's/State=DRAIN/State=UNKNOWN/' {CONF}; systemctl restart slurmctld; {UP}",
        f"mv {CONF}.right {CONF}; systemctl restart slurmctld; {UP}",
        "a job that needs what a pod has is RUNNING",
    ),
    at_shared(
        "until_the_operator_has_cut_again",
        "systemd-run --quiet --unit=resumer sh -c"
        " 'while sleep 0.2; do scontrol update NodeName=n1,n2 State=RESUME; done'",
        "systemctl stop resumer",
        "although no operator runs: something else resumes nodes",
    ),
    at_shared(
        "until_the_operator_has_cut_again",
        "systemd-run --quiet --unit=changer sh -c"
        " 'while sleep 0.1; do scontrol update NodeName=n1"
        " Gres=gpu:2,k8scpu:4,k8smemory:1000,k8sgpu:2; done'",
        "systemctl stop changer",
        "something else changes Gres of nodes",
    ),
    at_shared(
        "gpus_of_pods_are_not_given_to_jobs",
        *job_submit("sed 's/, gpus_of_a_node(job)}/, 0}/'"),
        " is accepted although pods have all GPUs",
    ),
    at_shared(
        "gpus-per-task=1",
        *job_submit(
            "sed 's/gpus(job.tres_per_task) [*] tasks_of_a_node(job)/gpus(job.tres_per_task)/'"
        ),
        "jobs have 2 GPUs of n1, but requested 1 from the ledger",
    ),
    Sabotage(
        ("operator_keeps_the_ledger_of_each_cluster",),
        (
            "m1",
            "systemd-run --quiet --unit=changer sh -c"
            " 'while sleep 0.1; do scontrol update NodeName=m1 Gres=k8scpu:2,k8smemory:1K; done'",
        ),
        ("m1", "systemctl stop changer"),
        "m1 offers (2, 1024) to jobs, should be (1, 924)",
    ),
    at_shared(
        "external_job_reserves_for_a_pod",
        *wrapper(
            "sbatch",
            'exec /usr/bin/sbatch $(echo "$@" | sed "s/--external/--wrap=sleep\\${IFS}300/")',
        ),
        "the external job has started",
    ),
    at_shared(
        "external_node_is_allocated_only_to_external_jobs",
        *wrapper("scontrol", 'exec /usr/bin/scontrol $(echo "$@" | sed "s/=EXTERNAL/=CLOUD/")'),
        "which has none",
    ),
]


def constrain(*options: str) -> tuple[str, str]:
    """Return scripts that make slurmd ignore options of cgroup.conf, and enforce them again."""
    return tuple(  # type: ignore[return-value]
        rf"sed -Ei 's,^({'|'.join(options)})=.*,\1={value},' /etc/slurm/cgroup.conf &&"
        " systemctl restart slurmd"
        for value in ("NO", "YES")
    )


# Of a host on which Slurm uses cgroups.
CONFINEMENT = [
    on_single(
        "cannot_use_more_cpus",
        *constrain("ConstrainCores"),
        "a job that was allocated 1 CPUs runs on 2",
    ),
    on_single(
        "exceeds_its_memory",
        *constrain("ConstrainRAMSpace", "ConstrainSwapSpace"),  # each of them limits memory
        "COMPLETED",
    ),
]

# Of a virtual machine.
MACHINE = [
    *CONFINEMENT,
    on_single(
        "reboots_on_request",
        f"sed -i s,^RebootProgram=.*,RebootProgram=/usr/bin/true, {CONF};{RECONFIGURE}",
        # Cancel the reboot first, or it would happen now.
        "scontrol update NodeName=single State=RESUME;"
        f"sed -i s,^RebootProgram=.*,RebootProgram=/usr/sbin/reboot, {CONF} &&"
        " systemctl restart slurmctld slurmd",
        "waiting for single to go down for the reboot",
    ),
    on_single(
        "lost_power",
        "systemctl disable --quiet slurmd",
        # When slurmd registers, slurmctld sets the node DOWN because it rebooted, or did so before.
        "systemctl enable --quiet --now slurmd;"
        " until sinfo --noheader --nodes=single --format=%t | grep -x 'idle\\|mix\\|alloc';"
        " do scontrol update NodeName=single State=RESUME; sleep 1; done",
        "single: slurmd is inactive",
    ),
]

# Of virtual machines whose user-data copies a file from a shared directory.
USER_DATA_MACHINES = [
    Sabotage(
        ("initialized_by_cloud_init",),
        ("ctl", "mv /opt/motd /root"),
        ("ctl", "mv /root/motd /opt"),
        "Runparts: 1 failures (runcmd)",
    ),
]

# Of a virtual machine with GPUs.
GPU_MACHINE = [
    on_single(
        "open_only_the_devices_of_its_gpus",
        *constrain("ConstrainDevices"),
        "single: a job can open /dev/gpu1 /dev/gpu2 of /dev/gpu1 /dev/gpu2, but its GPU is none",
    ),
]

# Of many nodes that share hosts.
SCALE = [
    Sabotage(
        ("its_own_slurmd",),
        ("sim1", "systemctl stop slurmd@n7"),
        ("sim1", "systemctl start slurmd@n7"),
        "sim1 does not run exactly one slurmd for each of n7",
    ),
    Sabotage(
        ("its_own_slurmd",),
        ("ctl", "scontrol update NodeName=n9 State=DRAIN Reason='no fan'"),
        ("ctl", "scontrol update NodeName=n9 State=RESUME"),
        "n9 IDLE+DRAIN no fan",
    ),
    Sabotage(
        ("job_on_all_nodes",),
        ("ctl", wrapper("srun", '/usr/bin/srun "$@" | sed "s/ n7$/ n8/"')[0]),
        ("ctl", "rm /usr/local/bin/srun"),
        "main: unexpected tasks, by host and node: ['sim1 n8']",
    ),
    Sabotage(
        ("many_short_jobs",),
        *trigger(
            "slurm_acct_db.scale_job_table",
            "update",
            "new.nodelist = if(new.id_array_task = 7, 'n99', new.nodelist)",
        ),
        "accounting says n99",
    ),
]


OCI = "/etc/slurm/oci.conf"


def in_oci_conf(edit: str, also: str = "true") -> tuple[str, str]:
    """Return scripts that edit oci.conf, which every step reads again, and restore it."""
    return f"cp -p {OCI} /root && sed -i '{edit}' {OCI}", f"cp -p /root/oci.conf {OCI}; {also}"


def of_containers(checks: str, scripts: tuple[str, str], message: str) -> Sabotage:
    do, undo = scripts
    return Sabotage(tuple(checks.split()), ("box", do), ("box", undo), message)


CONTAINERS = [
    of_containers(
        "its_own_root_file_system", (f"mv {OCI} /root", f"mv /root/oci.conf {OCI}"), "/etc/slurm"
    ),
    of_containers(
        "exit_code_of_a_container_pass_through",
        in_oci_conf('s/="exec \\(crun.*run .*\\)"/="\\1; exit 0"/'),
        "exit_code=0",
    ),
    of_containers(
        "names_the_container_of_each_step",
        (
            "mariadb -e 'create trigger slurm_acct_db.lie before insert on"
            " slurm_acct_db.containers_step_table"
            " for each row set new.container = null'",
            "mariadb -e 'drop trigger slurm_acct_db.lie'",
        ),
        "accounting to have /home/alice/containers/bundle",
    ),
    of_containers(
        "sees_its_cpus_and_gpus", in_oci_conf("s/^EnvExclude=./&CUDA|/"), "CUDA_VISIBLE_DEVICES=0"
    ),
    of_containers(
        "sees_its_cpus_and_gpus",
        in_oci_conf('s/="exec crun/="exec taskset --cpu-list 0 crun/'),
        "Cpus_allowed_list: 0",
    ),
    of_containers(
        "nothing_is_left_of_a_container",
        in_oci_conf("s/^RunTimeDelete=.*/RunTimeDelete=true/", "rm -r /run/crun/alice/*"),
        "/run/crun/alice/box-",
    ),
    of_containers(
        "nothing_is_left_of_a_container",
        in_oci_conf('s/="exec /="/', "pkill -KILL -u alice"),
        "sleep 4321",
    ),
    of_containers(
        "hooks_of_a_bundle_run_as_its_user",
        in_oci_conf('s,^RunTimeDelete=.*-- ,RunTimeDelete=",'),
        "'0'",
    ),
    of_containers("bundle_is_unchanged", in_oci_conf("/^MountSpoolDir/d"), "rootfs/var/run/slurm"),
]


# Of a federation of virtual machines, whose gateway is one, too.
MACHINES = [
    Sabotage(
        ("only_at_slurms_own_ports",),
        ("gateway", "nft insert rule inet sites forward tcp dport 873 accept"),
        ("gateway", "nft --file /etc/nftables.conf"),
        "('open', 'open')",
    ),
    Sabotage(
        ("only_at_slurms_own_ports",),
        ("gateway", "sysctl --quiet net.ipv4.ip_forward=0"),
        ("gateway", "sysctl --quiet net.ipv4.ip_forward=1"),
        "cloud cannot reach onprem:6819",
    ),
]


def break_and_verify(run: OpenRun, sabotage: Sabotage) -> None:
    """Break the cluster, run the checks that must notice, and repair it."""
    sabotages = [sabotage, *sabotage.also]
    try:
        with ExitStack() as repairs:
            for one in sabotages:
                on_host(run, *one.do)
                repairs.callback(on_host, run, *one.undo)
            evaluation = lifecycle.verify(run, sabotage.checks)
    finally:
        clear_nodes(run)
        # slurmctld asks a node that was silent for a moment only every 100 s.
        lifecycle.wait_until_ready(run, timeout=400)
        # The next sabotage may be one of the database.
        for cluster in slurm.clusters(run.ssh, run.plan).values():
            cluster.wait_for_slurmdbd(300)
    messages = (
        "\n".join(f"{check.outcome} {check.id}: {check.message}" for check in evaluation.checks)
        + evaluation.problem
    )
    missed = [one.message for one in sabotages if undetected(one, evaluation.checks)]
    assert not missed, f"{missed} not in:\n{messages}"
    assert evaluation.verdict() == "failed", messages


def clear_nodes(run: OpenRun) -> None:
    """Wait until no node has jobs, and resume nodes that were drained because a job did not end."""
    for cluster in slurm.clusters(run.ssh, run.plan).values():
        wait_until(
            lambda cluster=cluster: [
                node.name for node in cluster.nodes() if BUSY & {*node.state.split("+")}
            ],
            lambda left: not left,
            what=f"jobs to leave the nodes of {cluster.name}",
            timeout=300,
            ignore=(CommandFailed,),
        )
        for node in cluster.nodes():
            if "Kill task failed" in node.reason:
                cluster.run("scontrol", "update", f"NodeName={node.name}", "State=RESUME")


def undetected(sabotage: Sabotage, checks: Sequence[model.Check]) -> list[str]:
    """Return the sabotaged checks that did not run, passed, or failed without the message."""
    missing = [part for part in sabotage.checks if not any(part in check.id for check in checks)]
    wrong = [
        check.id
        for check in checks
        if check.outcome != "failed" or sabotage.message not in check.message
    ]
    return [*missing, *wrong]


def on_host(run: OpenRun, host: str, script: str) -> None:
    """Run a script on a host, in its network, among its mounts, or on the gateway.

    The gateway has SSH only if it is a virtual machine.
    """
    if host.startswith(NETWORK_OF):
        in_network(f"{run.directory.id}-{host.removeprefix(NETWORK_OF)}", script)
        return
    if host.startswith(MOUNTS_OF):
        among_mounts(f"{run.directory.id}-{host.removeprefix(MOUNTS_OF)}", script)
        return
    if host == "gateway" and run.provider.name == "vagrant":
        host = "_gateway"
    if host != "gateway":
        # systemd refuses to start a unit for the sixth time in ten seconds unless its counter is
        # reset.
        command = ["sh", "-c", f"systemctl reset-failed; {script}"]
        # It may restart daemons, copy a database or wait for a node that is created.
        run.ssh.run(host, command, timeout=300)
        return
    code, output = (
        docker.from_env(timeout=300)
        .containers.get(f"{run.directory.id}_gateway")
        .exec_run(["sh", "-c", script])
    )
    assert code == 0, output


def in_network(name: str, script: str) -> None:
    """Run a script in a container's network namespace with CAP_NET_ADMIN.

    The container itself lacks this capability.
    """
    client = docker.from_env(timeout=300)
    container = client.containers.get(name)
    client.containers.run(
        container.attrs["Config"]["Image"],
        ["-c", script],
        entrypoint="sh",
        network_mode=f"container:{container.id}",
        cap_drop=["ALL"],
        cap_add=["NET_ADMIN"],
        remove=True,
    )


def among_mounts(name: str, script: str) -> None:
    """Run a script in a container's mount namespace with CAP_SYS_ADMIN.

    The container itself lacks this capability.
    """
    client = docker.from_env(timeout=300)
    container = client.containers.get(name)
    client.containers.run(
        container.attrs["Config"]["Image"],
        ["--target=1", "--mount", "sh", "-c", script],
        entrypoint="nsenter",
        pid_mode=f"container:{container.id}",
        cap_drop=["ALL"],
        cap_add=["SYS_ADMIN", "SYS_CHROOT", "SYS_PTRACE"],
        security_opt=["apparmor=unconfined"],
        remove=True,
    )
