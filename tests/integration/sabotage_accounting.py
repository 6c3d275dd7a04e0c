"""Sabotages of accounting: false records; associations, users and QOS that differ."""

from __future__ import annotations

from sabotage import CONF, JOB_TABLES, UP, Sabotage, at_once, trigger

# Other clusters reach a new slurmctld once slurmdbd knows where it is.
RESTART_REGISTERED = (
    f"systemctl restart slurmctld; {UP};"
    " until sacctmgr -nP show cluster aws format=controlhost | grep -q .; do sleep 0.1; done"
)

AWS_JOBS = "slurm_acct_db.aws_job_table"
STEP_TABLES = JOB_TABLES.replace("job_table", "step_table")


def lie(check: str, tables: str, text: str, message: str) -> Sabotage:
    """Return a sabotage: the database changes the record of every job or step in tables."""
    return Sabotage((check,), *trigger(tables, "update", text), message)


def of_bob(account: str, message: str) -> Sabotage:
    """Return a sabotage: the database changes the record of every job to bob's in an account."""
    steps = []
    for table in JOB_TABLES.split():
        users = table.replace("job_table", "assoc_table")
        one = f"(select id_assoc from {users} where user = 'bob' and acct = '{account}')"
        steps.append(trigger(table, "update", f"new.id_assoc = {one}"))
    do, undo = (
        ("accounting", "; ".join(script for _, script in part)) for part in zip(*steps, strict=True)
    )
    return Sabotage((_SAW,), do, undo, message)


def invented(job_id: int, changes: str, message: str) -> Sabotage:
    """Return a sabotage: a copy of a job's record with an id of its own and some changes."""
    steps = (
        f"create table slurm_acct_db.lie as select * from {AWS_JOBS} where time_end > 0 limit 1",
        f"update slurm_acct_db.lie set job_db_inx = {job_id}, id_job = {job_id}, {changes}",
        f"insert into {AWS_JOBS} select * from slurm_acct_db.lie",
        "drop table slurm_acct_db.lie",
    )
    check = "never_submitted" if "state = 1," not in changes else "what_slurmctld_remembers"
    undo = f"delete from {AWS_JOBS} where id_job = {job_id}"
    return Sabotage(
        (check,),
        ("accounting", f'mariadb -e "{"; ".join(steps)}"'),
        ("accounting", f'mariadb -e "{undo}"'),
        message,
    )


def changed(check: str, do: str, undo: str, message: str) -> Sabotage:
    """Return a sabotage: sacctmgr changes something that the scenario sets, and changes it back."""
    return Sabotage(
        (check,), ("aws-ctl", f"sacctmgr -i {do}"), ("aws-ctl", f"sacctmgr -i {undo}"), message
    )


_CPUS = "regexp_replace(new.tres_alloc, '^1=[0-9]+', '1=200')"
_SAW = "accounting_matches_what_every_job_saw"
_REMEMBERS = "what_slurmctld_remembers"
_TREE = "associations_and_qos"
_PEOPLE = "users_and_accounts"
_MEMORY = "every_slurmctld_knows"
_OF_PHYSICS = "of association of account physics"
_OF_BOB = "of association of user bob in account physics"
# The accounting host has no slurm.conf.
_SLURM_CONF = (
    r"ClusterName=aws\nSlurmctldHost=aws-ctl\nAccountingStorageType=accounting_storage/slurmdbd\n"
)
_SACCTMGR = (
    f"printf '{_SLURM_CONF}AccountingStorageHost=accounting\\n' > /root/slurm.conf;"
    "SLURM_CONF=/root/slurm.conf sacctmgr -i modify"
)
_SHARES = f"{_SACCTMGR} account physics where cluster=aws set fairshare"
_CPUS_OF_A_JOB = f"{_SACCTMGR} qos normal set maxtresperjob=cpu"

FEDERATION = [
    Sabotage(
        ("usage_reports_agree",),
        *trigger(
            "slurm_acct_db.aws_assoc_usage_hour_table",
            "insert",
            "new.alloc_secs = 2 * new.alloc_secs",
        ),
        "aws/physics/alice: sreport has",
    ),
    of_bob("physics", "its user is alice, accounting says bob"),
    at_once(
        of_bob("chemistry", "its account is physics, accounting says chemistry"),
        lie(_SAW, JOB_TABLES, f"new.tres_alloc = {_CPUS}", "it had 1 CPUs, accounting says 200"),
        lie(_SAW, JOB_TABLES, "new.id_group = 0", "its gid is 2001, accounting says 0"),
        lie(_SAW, STEP_TABLES, "new.nodelist = 'ghost'", "has ghost in accounting, the job"),
        lie(_SAW, JOB_TABLES, "new.id_qos = 2", "its qos is normal, accounting says urgent"),
        lie(
            _SAW,
            JOB_TABLES,
            "new.partition = 'other'",
            "its partition is batch, accounting says other",
        ),
        lie(
            _SAW,
            JOB_TABLES,
            "new.work_dir = '/tmp'",
            "its work_dir is /home/alice, accounting says /tmp",
        ),
        lie(
            _SAW,
            JOB_TABLES,
            "new.timelimit = 60",
            "submitted with --job-name=accounting --time=3, accounting says accounting, 60",
        ),
        lie(_SAW, STEP_TABLES, "new.exit_code = 0", "its step 1 exited with 3, accounting says 0"),
        lie(_SAW, STEP_TABLES, "new.tres_usage_in_max = ''", "MaxRSS in accounting is none"),
    ),
    at_once(
        lie(
            _REMEMBERS,
            JOB_TABLES,
            "new.time_end = if(new.time_end, new.time_end + 8, 0)",
            "for slurmctld, accounting says",
        ),
        lie(
            _REMEMBERS, JOB_TABLES, "new.timelimit = 59", "its time limit is 60, accounting says 59"
        ),
        lie(
            _REMEMBERS,
            JOB_TABLES,
            "new.time_eligible = if(new.time_eligible > 60, new.time_eligible - 60, 0)",
            "its eligible is ",
        ),
        lie(
            _REMEMBERS,
            JOB_TABLES,
            "new.tres_alloc = regexp_replace(new.tres_alloc, ',2=[0-9]+', ',2=7')",
            "accounting says 7M",
        ),
        invented(
            134299998,
            "state = 1, time_end = 0",
            "is RUNNING in accounting, but unknown to slurmctld",
        ),
    ),
    invented(
        134299999, "state = 5, exit_code = 256", "is FAILED in accounting, but was never submitted"
    ),
    at_once(
        changed(
            _TREE,
            "modify account physics set fairshare=1",
            "modify account physics set fairshare=60",
            f"Share {_OF_PHYSICS} is 1, should be 60",
        ),
        changed(
            _TREE,
            "add resource name=lie server=flex count=1 type=license",
            "delete resource name=lie",
            "the scenario has no license lie@flex",
        ),
        changed(
            _TREE,
            "modify user alice where cluster=aws set qos=normal",
            "modify user alice where cluster=aws set qos=normal,urgent",
            "aws: QOS of association of user alice in account physics is normal, should be"
            " normal,urgent",
        ),
        changed(
            _TREE,
            "modify account chemistry set parent=physics",
            "modify account chemistry set parent=root",
            "ParentName of association of account chemistry is physics, should be root",
        ),
        changed(
            _TREE,
            "modify qos urgent set priority=1",
            "modify qos urgent set priority=1000",
            "Priority of QOS urgent is 1, should be 1000",
        ),
        changed(
            _TREE,
            "modify qos urgent set maxwall=1-00",
            "modify qos urgent set maxwall=-1",
            "MaxWall of QOS urgent is 86400, should be unset",
        ),
        changed(
            _TREE,
            "modify user bob where account=physics set maxsubmitjobs=0",
            "modify user bob where account=physics set maxsubmitjobs=-1",
            f"MaxSubmit {_OF_BOB} is 0, should be unset",
        ),
        changed(
            _TREE,
            "modify user bob where account=physics cluster=aws set maxjobs=0",
            "modify user bob where account=physics cluster=aws set maxjobs=-1",
            f"aws: MaxJobs {_OF_BOB} is 0, should be unset",
        ),
        changed(_TREE, "add qos secret", "delete qos secret", "the scenario has no QOS secret"),
    ),
    Sabotage(
        (_TREE,),
        ("aws-ctl", "sacctmgr -i delete user name=bob account=physics cluster=aws"),
        ("onprem-ctl", "slurm-accounting-objects"),
        "aws: there is no association of user bob in account physics",
    ),
    at_once(
        changed(
            _PEOPLE,
            "modify user bob set defaultaccount=physics",
            "modify user bob set defaultaccount=chemistry",
            "DefaultAccount of user bob is physics, should be chemistry",
        ),
        changed(
            _PEOPLE,
            "add coordinator account=physics names=bob",
            "delete coordinator account=physics names=bob",
            "Coordinators of user bob is physics, should be unset",
        ),
        changed(
            _PEOPLE,
            "modify user bob set adminlevel=operator",
            "modify user bob set adminlevel=none",
            "AdminLevel of user bob is operator, should be none",
        ),
        changed(
            _PEOPLE,
            "add account biology",
            "delete account biology",
            "the scenario has no account biology",
        ),
    ),
    # slurmdbd notifies slurmctld of the change, then the database is corrected without slurmdbd.
    at_once(
        Sabotage(
            (_MEMORY,),
            (
                "accounting",
                f"{_SHARES}=1 &&"
                ' mariadb -e "update slurm_acct_db.aws_assoc_table set shares = 60'
                " where acct = 'physics' and user = ''\"",
            ),
            ("accounting", f"{_SHARES}=2 && {_SHARES}=60; rm /root/slurm.conf"),
            f"Share {_OF_PHYSICS} is 1, should be 60",
        ),
        Sabotage(
            (_MEMORY,),
            (
                "accounting",
                f"{_CPUS_OF_A_JOB}=7 &&"
                " mariadb -e \"update slurm_acct_db.qos_table set max_tres_pj = ''"
                " where name = 'normal'\"",
            ),
            (
                "accounting",
                f"{_CPUS_OF_A_JOB}=8 && {_CPUS_OF_A_JOB}=-1; rm /root/slurm.conf",
            ),
            "MaxTRES of QOS normal is cpu=7, should be unset",
        ),
    ),
    Sabotage(
        ("no_more_jobs_at_a_time",),
        (
            "aws-ctl",
            f"sed -i s/^AccountingStorageEnforce=.*/AccountingStorageEnforce=associations/ {CONF};"
            f"{RESTART_REGISTERED}",
        ),
        (
            "aws-ctl",
            "sed -i s/^AccountingStorageEnforce=.*/"
            f"AccountingStorageEnforce=associations,limits,qos/ {CONF};"
            f"{RESTART_REGISTERED}",
        ),
        "QOSMaxJobsPerUserLimit",
    ),
]
