"""Sabotages that leave the files intact, but change the daemons' memory, state or logs."""

from __future__ import annotations

from sabotage import CONF, DBD_CONF, RECONFIGURE, RESTART_SLURMDBD, Sabotage, at_once, on_single

STATE = "/var/lib/slurm/slurmctld"
# A slurmdbd on standby does not listen, but logs a line. Once it has given control back, it ignores
# SIGTERM.
RESTART_STANDBY = """
on_standby() { grep -c 'running in background mode' /var/log/slurm/slurmdbd.log; }
before=$(on_standby)
systemctl kill --signal=KILL slurmdbd
systemctl restart slurmdbd
until [ "$(on_standby)" -gt "$before" ]; do sleep 0.1; done"""
# slurmctld on the same host has noticed if slurmd has read a different file.
RESTART_SLURMD = """
different() { grep -c 'different slurm.conf' /var/log/slurm/slurmctld.log; }
before=$(different)
systemctl restart slurmd
until [ "$(different)" -gt "$before" ]; do sleep 0.1; done"""

# A slurmdbd that has read the name of a database of its own, a copy of the right one.
OWN_DATABASE = f"""set -e
password=$(sed -n s/^StoragePass=//p {DBD_CONF})
systemctl start mariadb
mariadb -e "create database slurm_acct_db;
    grant all on slurm_acct_db.* to slurm@localhost identified by '$password'"
mariadb-dump --routines --skip-ssl --host=db1 --user=slurm --password="$password" slurm_acct_db |
    mariadb slurm_acct_db
sed -i.right s/^StorageHost=.*/StorageHost=localhost/ {DBD_CONF}
{RESTART_STANDBY}
mv {DBD_CONF}.right {DBD_CONF}"""


def held_back(option: str, reload: str = RECONFIGURE, conf: str = CONF) -> tuple[str, str]:
    """Return scripts that make a daemon read an additional option, which the file then loses."""
    return f"echo {option} >> {conf} && {reload}; sed -i '$d' {conf}", reload


def partition(name: str, option: str, undo: str) -> tuple[str, str]:
    """Return scripts that change a partition in slurmctld's memory, and change it back."""
    return (
        f"scontrol update PartitionName={name} {option}",
        f"scontrol update PartitionName={name} {undo}",
    )


SINGLE_NODE = [
    on_single(
        "slurmctld_holds_the_rendered_configuration",
        *held_back("JobRequeue=0"),
        "single: JobRequeue is 0, slurm.conf leaves it at 1",
    ),
    on_single(
        "slurmctld_holds_the_rendered_configuration",
        *held_back("PrivateData=jobs,users"),
        "PrivateData is jobs,users, slurm.conf leaves it at none",
    ),
    on_single(
        "slurmctld_holds_the_rendered_configuration",
        *held_back("PrologFlags=NoHold,Serial"),
        "PrologFlags is Alloc,NoHold,Serial, slurm.conf leaves it at none",
    ),
    on_single(
        "slurmctld_holds_the_rendered_configuration",
        *held_back("UnkillableStepTimeout=99"),
        "the slurm.conf that slurmctld has read is not the one on single",
    ),
    on_single(
        "every_slurmd_has_read",
        held_back("UnkillableStepTimeout=99", RESTART_SLURMD)[0],
        "systemctl restart slurmd",
        "single: the slurm.conf that slurmd of single has read is not that of slurmctld",
    ),
    at_once(
        on_single(
            "slurmctld_holds_the_rendered_partitions",
            *partition("main", "MaxNodes=1", "MaxNodes=UNLIMITED"),
            "partition main: MaxNodes is 1, slurm.conf leaves it at UNLIMITED",
        ),
        on_single(
            "slurmctld_holds_the_rendered_partitions",
            *partition("main", "GraceTime=30", "GraceTime=0"),
            "partition main: GraceTime is 30, slurm.conf leaves it at 0",
        ),
        on_single(
            "slurmctld_holds_the_rendered_partitions",
            *partition("main", "MaxTime=5", "MaxTime=UNLIMITED"),
            "partition main: MaxTime is 00:05:00",
        ),
        on_single(
            "slurmctld_holds_the_rendered_partitions",
            *partition("main", "Default=NO", "Default=YES"),
            "partition main: Default is NO, slurm.conf has YES",
        ),
        on_single(
            "slurmctld_holds_the_rendered_partitions",
            "scontrol update PartitionName=main DefMemPerCPU=5",
            RECONFIGURE,
            "partition main: DefMemPerCPU=5, should be DefMemPerNode=UNLIMITED",
        ),
        on_single(
            "slurmctld_holds_the_rendered_partitions",
            "scontrol update PartitionName=main OverTimeLimit=9",
            RECONFIGURE,
            "partition main: OverTimeLimit is 9, slurm.conf leaves it at NONE",
        ),
    ),
    at_once(
        on_single(
            "slurmctld_holds_the_rendered_nodes",
            f"sed -i.right '/^NodeName=/s/$/ CoreSpecCount=1/' {CONF} && {RECONFIGURE};"
            f" mv {CONF}.right {CONF}",
            RECONFIGURE,
            "node single: CoreSpecCount is 1, slurm.conf has no such option",
        ),
        on_single(
            "slurmctld_holds_the_rendered_nodes",
            "scontrol update NodeName=single AvailableFeatures=big ActiveFeatures=big",
            "scontrol update NodeName=single AvailableFeatures= ActiveFeatures=",
            "node single: Features is big, slurm.conf leaves it at none",
        ),
        on_single(
            "slurmctld_holds_the_rendered_nodes",
            "scontrol update NodeName=single Weight=7",
            "scontrol update NodeName=single Weight=1",
            "node single: Weight is 7, slurm.conf leaves it at 1",
        ),
        on_single(
            "slurmctld_holds_the_rendered_nodes",
            "scontrol update NodeName=single CpuBind=thread",
            "scontrol update NodeName=single CpuBind=off",
            "node single: CpuBind is threads, slurm.conf leaves it at off",
        ),
    ),
    at_once(
        on_single(
            "every_directory",
            "chmod 0777 /var/lib/slurm",
            "chmod 0755 /var/lib/slurm",
            "single:/var/lib/slurm can be written by everyone",
        ),
        on_single(
            "every_directory",
            "chmod 0666 /var/log/slurm/slurmctld.log",
            "chmod 0644 /var/log/slurm/slurmctld.log",
            "single:/var/log/slurm/slurmctld.log can be written by everyone",
        ),
        on_single(
            "every_directory",
            "chmod 0777 /usr/lib/*/slurm-wlm",
            "chmod 0755 /usr/lib/*/slurm-wlm",
            "slurm-wlm can be written by everyone",
        ),
    ),
    on_single(
        "every_file",
        "echo ssh-ed25519 AAAA theirs >> /root/.ssh/authorized_keys",
        "sed -i '$d' /root/.ssh/authorized_keys",
        "single:/root/.ssh/authorized_keys is not the harness's",
    ),
    on_single(
        "every_directory",
        f"chown root {STATE}",
        f"chown slurm {STATE}",
        f"single:{STATE} is 700 root slurm, should be 700 slurm slurm",
    ),
    on_single(
        "slurmctld_saves_its_jobs",
        # slurmctld writes there before it renames it.
        f"until mkdir {STATE}/job_state.new; do sleep 0.1; done",
        f"rmdir {STATE}/job_state.new",
        f"slurmctld of single to save its jobs in {STATE} (StateSaveLocation), as seen on single"
        " cannot succeed any more",
    ),
    on_single(
        "no_daemon_logged_an_error",
        # At any time: the check alone takes less than a second.
        "systemd-run --quiet --unit=mischief --uid=alice"
        " sh -c 'for one in 1 2 3 4; do while :; do scontrol shutdown; done & done; wait'",
        "systemctl stop mischief",
        "Security violation, SHUTDOWN RPC from uid",
    ),
]
FEDERATION = [
    Sabotage(
        ("slurmctld_holds_the_rendered_configuration",),
        (
            "aws-ctl",
            f"cp -p {CONF} /root && sed -i /^AccountingStorageEnforce=/d {CONF} && {RECONFIGURE};"
            f"cp -p /root/slurm.conf {CONF}",
        ),
        ("aws-ctl", RECONFIGURE),
        "aws: AccountingStorageEnforce is none, slurm.conf has associations,limits,qos",
    ),
    at_once(
        Sabotage(
            ("slurmctld_holds_the_rendered_partitions",),
            *(
                ("aws-ctl", script)
                for script in partition("batch", "AllowAccounts=chemistry", "AllowAccounts=ALL")
            ),
            "aws: partition batch: AllowAccounts is chemistry, slurm.conf leaves it at ALL",
        ),
        Sabotage(
            ("slurmctld_holds_the_rendered_partitions",),
            *(
                ("onprem-ctl", script)
                for script in partition("batch", "AllowQos=urgent", "AllowQos=ALL")
            ),
            "on-prem: partition batch: AllowQos is urgent, slurm.conf leaves it at ALL",
        ),
    ),
    Sabotage(
        ("slurmd_logs_at_the_rendered_level",),
        ("aws-ctl", "scontrol setdebug quiet nodes=aws2"),
        ("aws-ctl", "scontrol setdebug info nodes=aws2"),
        "slurmd of aws2 logs at level quiet; SlurmdDebug is info",
    ),
    Sabotage(
        ("slurmdbd_holds_the_rendered_configuration",),
        *(
            ("accounting", script)
            for script in held_back("PurgeJobAfter=12months", RESTART_SLURMDBD, DBD_CONF)
        ),
        "slurmdbd: PurgeJobAfter is 12 months, slurmdbd.conf leaves it at none",
    ),
]

HA = [
    Sabotage(
        ("backup_controller_takes_over",),
        (
            "ctl2",
            # Longer than the check waits for the takeover.
            f"sed -i.right s/^SlurmctldTimeout=.*/SlurmctldTimeout=600/ {CONF} &&"
            " systemctl restart slurmctld;"
            f" mv {CONF}.right {CONF}",
        ),
        ("ctl2", "systemctl restart slurmctld"),
        "waiting for ctl2 to take jobs, SlurmctldTimeout is 5 s",
    ),
    Sabotage(
        ("backup_controller_takes_over",),
        (
            "ctl2",
            f"sed -i.right /^AccountingStorageEnforce/d {CONF} && systemctl restart slurmctld;"
            f" mv {CONF}.right {CONF}",
        ),
        ("ctl2", "systemctl restart slurmctld"),
        "slurmctld of ctl2 accepts an account that does not exist",
    ),
    Sabotage(
        ("backup_controller_takes_over",),
        (
            "n2",
            f"sed -i.right /^SlurmctldHost=ctl2/d {CONF} && systemctl restart slurmd;"
            f" mv {CONF}.right {CONF}",
        ),
        ("n2", "systemctl restart slurmd"),
        "slurmctld of ctl2 and each slurmd to reach each other",
    ),
    Sabotage(
        ("backup_slurmdbd_takes_over",),
        *(("db2", script) for script in held_back("PurgeJobAfter=1", RESTART_STANDBY, DBD_CONF)),
        "slurmdbd of db2: PurgeJobAfter is",
    ),
    Sabotage(
        ("backup_slurmdbd_takes_over",),
        ("db2", OWN_DATABASE),
        (
            "db2",
            f"{RESTART_STANDBY}; mariadb -e 'drop database slurm_acct_db'; systemctl stop mariadb",
        ),
        "slurmdbd of db1, whose database must be that of db2 too, to have",
    ),
]
